//! Keeps the calls of one session apart that may not run side by side (catalog-dispatch 4.1 rule 9).
//!
//! A tool that may run in parallel shares the gate, any other has it alone. A call passes it once it is approved, and steps
//! out of it for as long as its server asks somebody something: whoever thinks an answer over holds up no other call.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// The gate of one session, shared by its clones. First come, first served.
#[derive(Debug, Clone, Default)]
pub struct ParallelGate(Arc<RwLock<()>>);

/// How long the gate is held is how long this lives.
#[derive(Debug)]
enum Held {
    Shared(#[expect(dead_code, reason = "held for its drop")] OwnedRwLockReadGuard<()>),
    Alone(#[expect(dead_code, reason = "held for its drop")] OwnedRwLockWriteGuard<()>),
}

impl ParallelGate {
    /// Waits until a call may run: beside others, or alone. Dropping what is returned ends its time inside.
    pub(in crate::pipeline) async fn enter(&self, parallel: bool) -> Inside {
        let inside = State { held: Some(self.hold(parallel).await), out: 0, over: false };
        Inside(Arc::new(Passage { gate: self.clone(), parallel, state: Mutex::new(inside) }))
    }

    async fn hold(&self, parallel: bool) -> Held {
        let lock = Arc::clone(&self.0);
        if parallel { Held::Shared(lock.read_owned().await) } else { Held::Alone(lock.write_owned().await) }
    }
}

/// One call's way through the gate.
#[derive(Debug)]
pub(in crate::pipeline) struct Passage {
    gate: ParallelGate,
    parallel: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    held: Option<Held>,
    /// How many times the call is out.
    out: usize,
    /// The call has ended: it does not come back.
    over: bool,
}

/// A call that is inside, unless it stepped out.
#[derive(Debug)]
pub(in crate::pipeline) struct Inside(Arc<Passage>);

impl Inside {
    pub(in crate::pipeline) fn passage(&self) -> Arc<Passage> {
        Arc::clone(&self.0)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.over = true;
        state.held = None;
    }
}

impl Passage {
    /// Leaves the gate to others until [`Out::back`].
    pub(in crate::pipeline) fn step_out(self: &Arc<Self>) -> Out {
        let mut state = self.state.lock();
        state.out += 1;
        state.held = None;
        Out(Some(Arc::clone(self)))
    }
}

/// A call that stepped out. Of several at once the last one back brings it in again; one that is dropped is back without
/// waiting, if the gate is free.
#[derive(Debug)]
pub(in crate::pipeline) struct Out(Option<Arc<Passage>>);

impl Out {
    /// Waits until the call may go on.
    pub(in crate::pipeline) async fn back(mut self) {
        let Some(passage) = self.0.take() else { return };
        if !passage.returned() {
            return;
        }
        let held = passage.gate.hold(passage.parallel).await;
        passage.keep(held);
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        let Some(passage) = self.0.take() else { return };
        if passage.returned() {
            let lock = Arc::clone(&passage.gate.0);
            let held = if passage.parallel {
                lock.try_read_owned().ok().map(Held::Shared)
            } else {
                lock.try_write_owned().ok().map(Held::Alone)
            };
            if let Some(held) = held {
                passage.keep(held);
            }
        }
    }
}

impl Passage {
    /// Counts one as back; tells whether the call has to come in.
    fn returned(&self) -> bool {
        let mut state = self.state.lock();
        state.out = state.out.saturating_sub(1);
        state.out == 0 && !state.over
    }

    /// Comes in, unless the call stepped out again or ended meanwhile.
    fn keep(&self, held: Held) {
        let mut state = self.state.lock();
        if state.out == 0 && !state.over {
            state.held = Some(held);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::poll;

    use super::*;

    #[tokio::test]
    async fn calls_that_may_run_in_parallel_are_inside_together_and_others_alone() {
        let gate = ParallelGate::default();
        let (one, two) = (gate.enter(true).await, gate.enter(true).await);
        let mut alone = Box::pin(gate.enter(false));
        assert!(poll!(&mut alone).is_pending());
        drop((one, two));
        let alone = alone.await;
        let mut later = Box::pin(gate.enter(true));
        assert!(poll!(&mut later).is_pending());
        drop(alone);
        later.await;
    }

    #[tokio::test]
    async fn a_call_that_stepped_out_holds_nobody_up_and_comes_back_when_it_is_free() {
        let gate = ParallelGate::default();
        let asking = gate.enter(false).await;
        let (first, second) = (asking.passage().step_out(), asking.passage().step_out());
        let other = gate.enter(false).await;
        // Another question is open still.
        first.back().await;
        let mut back = Box::pin(second.back());
        assert!(poll!(&mut back).is_pending());
        drop(other);
        back.await;
        let mut next = Box::pin(gate.enter(false));
        assert!(poll!(&mut next).is_pending());
        drop(asking);
        next.await;
    }

    #[tokio::test]
    async fn a_call_that_ended_outside_does_not_come_back() {
        let gate = ParallelGate::default();
        let asking = gate.enter(false).await;
        let out = asking.passage().step_out();
        drop(asking);
        out.back().await;
        gate.enter(false).await;
    }

    #[tokio::test]
    async fn a_question_that_is_dropped_brings_the_call_back_if_the_gate_is_free() {
        let gate = ParallelGate::default();
        let asking = gate.enter(false).await;
        drop(asking.passage().step_out());
        let mut next = Box::pin(gate.enter(true));
        assert!(poll!(&mut next).is_pending());
        drop(asking);
        next.await;
    }
}
