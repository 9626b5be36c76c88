//! A component that keeps failing for a tenant is left alone for a while (R14).
//!
//! Its calls are refused all the same: an open circuit is a fault, and always denies. When the while is over, one call is the
//! probe: if it gets an answer all is as before, otherwise the next while is twice as long. Circuits are per tenant, so that
//! what one does to a component costs the others nothing. What a call's size or the host's own load causes does not count.
//!
//! In memory only: a component that is loaded anew, or whose settings changed, starts with none.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::model::caller::TenantId;
use crate::model::text;
use crate::model::verdict::{Fault, FaultCode};

/// How many failures in a row open the circuit.
const FAILURES: u32 = 5;
/// The first while.
const FIRST: Duration = Duration::from_secs(1);
/// The longest.
const LONGEST: Duration = Duration::from_secs(60);

/// The circuits of one component.
#[derive(Debug, Default)]
pub(super) struct Circuits {
    /// No entry: the last evaluation of that tenant's went well.
    tenants: Mutex<HashMap<TenantId, Circuit>>,
}

#[derive(Debug)]
struct Circuit {
    failed: u32,
    last: FaultCode,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Calls pass.
    Closed,
    /// None does until then; `pause` is what the next while is measured by.
    Open { until: Instant, pause: Duration },
    /// One is under way, the others do not pass.
    Probing { pause: Duration },
}

/// The right to ask a component once. Dropped without a result, it was not asked, or its evaluation panicked.
#[derive(Debug)]
pub(super) struct Pass {
    circuits: Arc<Circuits>,
    tenant: TenantId,
    /// The while before; set for the probe.
    probe: Option<Duration>,
    settled: bool,
}

impl Circuits {
    /// Asks for a pass.
    ///
    /// # Errors
    /// A `circuit` fault that says what went wrong and when the component is tried again.
    pub(super) fn enter(self: &Arc<Self>, tenant: &TenantId, now: Instant) -> Result<Pass, Fault> {
        let probe = match self.tenants.lock().get_mut(tenant) {
            None => None,
            Some(circuit) => match circuit.state {
                State::Closed => None,
                State::Open { until, pause } if now >= until => {
                    circuit.state = State::Probing { pause };
                    Some(pause)
                }
                State::Open { until, .. } => {
                    return Err(circuit.open(&format!("in {}", text::seconds(until.saturating_duration_since(now)))));
                }
                State::Probing { .. } => return Err(circuit.open("now, by another call")),
            },
        };
        Ok(Pass { circuits: Arc::clone(self), tenant: tenant.clone(), probe, settled: false })
    }
}

impl Circuit {
    fn open(&self, again: &str) -> Fault {
        let (failed, last) = (self.failed, self.last);
        Fault::new(
            FaultCode::Circuit,
            format!("it failed {failed} times in a row, at last by `{last}`; it is tried again {again}"),
        )
    }
}

impl Pass {
    /// Notes how the evaluation ended; `None` for an answer.
    pub(super) fn settle(mut self, fault: Option<FaultCode>, now: Instant) {
        self.note(fault, now);
    }

    fn note(&mut self, fault: Option<FaultCode>, now: Instant) {
        self.settled = true;
        let probe = self.probe.take();
        let mut tenants = self.circuits.tenants.lock();
        let counted = fault.filter(|code| counts(*code));
        match (counted, tenants.get_mut(&self.tenant)) {
            (None, None) => {}
            // What does not count is no good news either: the next call is the probe.
            (None, Some(circuit)) if fault.is_some() => {
                if let Some(pause) = probe {
                    circuit.state = State::Open { until: now, pause };
                }
            }
            // An answer to a call that was let in before the circuit opened says nothing new.
            (None, Some(circuit)) => {
                if probe.is_some() || circuit.state == State::Closed {
                    tenants.remove(&self.tenant);
                }
            }
            (Some(last), None) => {
                _ = tenants.insert(self.tenant.clone(), Circuit { failed: 1, last, state: State::Closed })
            }
            (Some(last), Some(circuit)) => {
                circuit.failed = circuit.failed.saturating_add(1);
                circuit.last = last;
                let pause = match (circuit.state, probe) {
                    (_, Some(before)) => Some((before * 2).min(LONGEST)),
                    (State::Closed, None) => (circuit.failed >= FAILURES).then_some(FIRST),
                    (State::Open { .. } | State::Probing { .. }, None) => None,
                };
                if let Some(pause) = pause {
                    circuit.state = State::Open { until: now + pause, pause };
                }
            }
        }
    }
}

impl Drop for Pass {
    /// A probe that was never asked leaves its place to the next call. A panic in the host is a failure like any other: what
    /// provokes it would do so for ever.
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        if std::thread::panicking() {
            return self.note(Some(FaultCode::Trap), Instant::now());
        }
        if let Some(pause) = self.probe
            && let Some(circuit) = self.circuits.tenants.lock().get_mut(&self.tenant)
        {
            circuit.state = State::Open { until: Instant::now(), pause };
        }
    }
}

/// Whether a fault says that the component itself is no good.
fn counts(code: FaultCode) -> bool {
    match code {
        FaultCode::Trap
        | FaultCode::Fuel
        | FaultCode::Deadline
        | FaultCode::Memory
        | FaultCode::Stack
        | FaultCode::OutputInvalid
        | FaultCode::OutputTooLarge
        | FaultCode::MissingImport
        | FaultCode::WrongVersion
        | FaultCode::Digest
        | FaultCode::Signature
        | FaultCode::Settings
        | FaultCode::Missing => true,
        // The call was too large, the host too busy, or nobody was asked.
        FaultCode::InputTooLarge | FaultCode::Budget | FaultCode::Circuit => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixture {
        circuits: Arc<Circuits>,
        tenant: TenantId,
        now: Instant,
    }

    impl Fixture {
        fn new() -> Self {
            Self { circuits: Arc::default(), tenant: TenantId::new("one"), now: Instant::now() }
        }

        fn enter(&self) -> Result<Pass, Fault> {
            self.circuits.enter(&self.tenant, self.now)
        }

        fn end(&self, fault: Option<FaultCode>) {
            self.enter().unwrap().settle(fault, self.now);
        }

        fn fail(&self, times: u32) {
            (0..times).for_each(|_| self.end(Some(FaultCode::Trap)));
        }

        fn is_open(&self) -> bool {
            let fault = self.enter().map(drop).err();
            fault.inspect(|fault| assert_eq!(fault.code, FaultCode::Circuit)).is_some()
        }
    }

    #[test]
    fn r14_only_failures_in_a_row_open_a_circuit_and_it_says_so() {
        let fixture = Fixture::new();
        for _ in 0..3 {
            fixture.fail(FAILURES - 1);
            fixture.end(None);
        }
        fixture.fail(FAILURES);
        let fault = fixture.enter().unwrap_err();
        assert_eq!(fault.code, FaultCode::Circuit);
        assert!(
            fault.detail.contains("failed 5 times in a row, at last by `trap`; it is tried again in 1 s"),
            "{fault}"
        );
    }

    #[test]
    fn r14_circuits_are_per_tenant() {
        let fixture = Fixture::new();
        fixture.fail(FAILURES);
        assert!(fixture.is_open());
        assert!(fixture.circuits.enter(&TenantId::new("two"), fixture.now).is_ok());
    }

    #[test]
    fn r14_faults_of_the_input_and_of_the_host_do_not_count() {
        let fixture = Fixture::new();
        for code in [FaultCode::InputTooLarge, FaultCode::Budget, FaultCode::Circuit] {
            (0..2 * FAILURES).for_each(|_| fixture.end(Some(code)));
            assert!(!fixture.is_open(), "{code}");
        }
    }

    #[test]
    fn one_probe_at_a_time_and_the_while_doubles_up_to_a_minute() {
        let mut fixture = Fixture::new();
        fixture.fail(FAILURES);
        let mut pause = FIRST;
        for _ in 0..8 {
            assert!(fixture.is_open());
            fixture.now += pause;
            let probe = fixture.enter().unwrap();
            assert!(fixture.is_open(), "a second call is let in beside the probe");
            probe.settle(Some(FaultCode::Fuel), fixture.now);
            pause = (pause * 2).min(LONGEST);
        }
        assert_eq!(pause, LONGEST);
        fixture.now += pause;
        fixture.end(None);
        fixture.fail(FAILURES - 1);
        assert!(!fixture.is_open(), "an answer to the probe did not close the circuit");
    }

    #[test]
    fn a_probe_that_was_never_asked_leaves_its_place() {
        let mut fixture = Fixture::new();
        fixture.fail(FAILURES);
        fixture.now += FIRST;
        drop(fixture.enter().unwrap());
        fixture.now = Instant::now();
        fixture.end(Some(FaultCode::Budget));
        fixture.now += Duration::from_millis(1);
        fixture.end(None);
        assert!(!fixture.is_open());
    }

    #[test]
    fn an_answer_to_a_call_from_before_does_not_close_an_open_circuit() {
        let fixture = Fixture::new();
        let early = fixture.enter().unwrap();
        fixture.fail(FAILURES);
        early.settle(None, fixture.now);
        assert!(fixture.is_open());
    }

    #[test]
    fn a_panic_in_the_host_counts_like_a_failure() {
        let fixture = Fixture::new();
        for _ in 0..FAILURES {
            let pass = fixture.enter().unwrap();
            let work = std::panic::AssertUnwindSafe(move || {
                let _pass = pass;
                panic!("a bug");
            });
            std::panic::catch_unwind(work).unwrap_err();
        }
        assert!(fixture.is_open());
    }
}
