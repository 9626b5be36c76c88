//! Asks one component about one call: a fresh store and instance, limits armed before anything of the guest runs.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use wasmtime::Store;
use wasmtime::component::Resource;

use super::bindings::v0_1::approval;
use super::engine::Shared;
use super::fault;
use super::limits::{Limits, MAX_ANSWER, MAX_HANDLES};
use super::linker::State;
use super::load::Compiled;
use super::settings::Settings;
use super::ticker::TICK;
use crate::model::digest::Digest;
use crate::model::text::{prefix, shown};
use crate::model::verdict::{
    Ask, Fault, FaultCode, Label, MAX_REASON, Reason, Remember, Reviewers, RuleId, Source, Verdict,
};
use crate::ports::approval::{ApprovalComponent, CallFacts, Evaluation, LogLine, Usage};

/// The most labels that one answer may set.
const MAX_LABELS: usize = 16;

/// An admitted approval component.
pub struct WasmApproval {
    shared: Arc<Shared>,
    component: Arc<Component>,
    digest: Digest,
}

/// What an evaluation on a worker needs; it may outlive the caller.
struct Component {
    compiled: Arc<Compiled>,
    settings: Arc<Settings>,
    limits: Limits,
    source: Source,
}

impl WasmApproval {
    pub(super) fn new(
        shared: Arc<Shared>,
        compiled: Arc<Compiled>,
        digest: Digest,
        settings: Arc<Settings>,
        limits: Limits,
        source: Source,
    ) -> Self {
        Self { shared, component: Arc::new(Component { compiled, settings, limits, source }), digest }
    }

    /// Returns the digest of the component's bytes.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Returns who the component is, its digest included.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.component.source
    }

    /// Returns its limits.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.component.limits
    }
}

impl std::fmt::Debug for WasmApproval {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WasmApproval").field("source", &self.component.source).finish_non_exhaustive()
    }
}

#[async_trait]
impl ApprovalComponent for WasmApproval {
    async fn evaluate(&self, facts: Arc<CallFacts>) -> Evaluation {
        let (shared, component) = (Arc::clone(&self.shared), Arc::clone(&self.component));
        let evaluation = self.shared.pool.run(move || component.evaluate(&shared, &facts)).await;
        evaluation.unwrap_or_else(Evaluation::failed)
    }
}

impl Component {
    fn evaluate(&self, shared: &Shared, facts: &Arc<CallFacts>) -> Evaluation {
        let first = self.attempt(shared, facts);
        match first.result {
            // The machine was busy: a deadline says little about the component, and fuel still bounds it (R14).
            Err(Fault { code: FaultCode::Deadline, .. }) => {
                let mut second = self.attempt(shared, facts);
                second.usage.fuel = second.usage.fuel.saturating_add(first.usage.fuel);
                second.usage.time += first.usage.time;
                second
            }
            _ => first,
        }
    }

    fn attempt(&self, shared: &Shared, facts: &Arc<CallFacts>) -> Evaluation {
        let state = State::new(Some(Arc::clone(facts)), Arc::clone(&self.settings), &self.limits);
        let run = enter(shared, &self.limits, state, |store| {
            let policy = self.compiled.policy.instantiate(&mut *store)?;
            policy.portcullis_policy_approval().call_evaluate(&mut *store, Resource::new_borrow(0))
        });
        let answer = run.result.and_then(|decision| self.read(decision));
        let (result, labels) = match answer {
            Ok((verdict, labels)) => (Ok(verdict), labels),
            Err(fault) => (Err(fault), Vec::new()),
        };
        Evaluation { result, labels, log: run.log, usage: run.usage }
    }

    /// Takes an answer over into our own values. What is illegal is a fault, not repaired.
    fn read(&self, decision: approval::Decision) -> Result<(Verdict, Vec<Label>), Fault> {
        let verdict = match decision.verdict {
            approval::Verdict::Abstain => Verdict::Abstain,
            approval::Verdict::Allow(why) => Verdict::Allow(reason(why)?),
            approval::Verdict::Ask(question) => Verdict::Ask(ask(question)?),
            approval::Verdict::Deny(why) => Verdict::Deny(reason(why)?),
        };
        if decision.labels.len() > MAX_LABELS {
            let count = decision.labels.len();
            return Err(invalid(&format!("it sets {count} labels, more than {MAX_LABELS}")));
        }
        let labels = decision.labels.into_iter().map(|name| self.label(name)).collect::<Result<_, _>>()?;
        Ok((verdict, labels))
    }

    fn label(&self, name: String) -> Result<Label, Fault> {
        // Labels follow the grammar of rule ids: both are compared and shown, neither is prose.
        match RuleId::parse(&name) {
            Some(_) => Ok(Label { name, source: self.source.clone() }),
            None => Err(invalid(&format!("`{}` is no label", shown(&name, 64)))),
        }
    }
}

fn ask(question: approval::Question) -> Result<Ask, Fault> {
    Ok(Ask {
        reason: reason(question.reason)?,
        remember: match question.remember {
            approval::Remember::Never => Remember::Never,
            approval::Remember::Session => Remember::Session,
            approval::Remember::Always => Remember::Always,
        },
        bind_arguments: question.bind_arguments,
        reviewers: Reviewers { person: question.reviewers.person, auto: question.reviewers.auto },
    })
}

fn reason(reason: approval::Reason) -> Result<Reason, Fault> {
    let rule = match reason.rule {
        None => None,
        Some(rule) => match RuleId::parse(&rule) {
            Some(rule) => Some(rule),
            None => return Err(invalid(&format!("`{}` is no rule id", shown(&rule, 64)))),
        },
    };
    Ok(Reason { rule, text: bounded(&reason.text) })
}

/// Returns at most [`MAX_REASON`] bytes for people, with `…` where something was left out.
///
/// The one thing that is cut: a long explanation does not change what the component decided.
fn bounded(text: &str) -> String {
    let text = shown(text, MAX_REASON);
    if text.len() <= MAX_REASON { text } else { format!("{}…", prefix(&text, MAX_REASON - '…'.len_utf8())) }
}

fn invalid(detail: &str) -> Fault {
    Fault::new(FaultCode::OutputInvalid, detail)
}

/// Instantiates once, so that a component that cannot even start is found when it is loaded.
pub(super) fn dry_run(
    shared: &Shared,
    compiled: &Compiled,
    settings: &Arc<Settings>,
    limits: &Limits,
) -> Result<(), Fault> {
    let attempt = || {
        let state = State::new(None, Arc::clone(settings), limits);
        enter(shared, limits, state, |store| compiled.policy.instantiate(store).map(drop)).result
    };
    match attempt() {
        Err(Fault { code: FaultCode::Deadline, .. }) => attempt(),
        result => result,
    }
}

struct Run<R> {
    result: Result<R, Fault>,
    log: Vec<LogLine>,
    usage: Usage,
}

/// Runs `work` in a store of its own, with all limits armed before the first instruction; start functions loop too.
///
/// The store is dropped whatever happened: after a trap the engine would not let anybody in again.
fn enter<R>(
    shared: &Shared,
    limits: &Limits,
    state: State,
    work: impl FnOnce(&mut Store<State>) -> wasmtime::Result<R>,
) -> Run<R> {
    let started = Instant::now();
    let mut store = Store::new(&shared.engine, state);
    store.limiter(|state| &mut state.caps);
    store.set_hostcall_fuel(MAX_ANSWER);
    store.set_max_component_handles(MAX_HANDLES);
    let ticks = limits.time.as_millis().div_ceil(TICK.as_millis());
    let result = store.set_fuel(limits.fuel).and_then(|()| {
        let _ticking = shared.ticker.tick();
        // The tick that is under way does not count.
        store.set_epoch_deadline(u64::try_from(ticks).unwrap_or(u64::MAX).saturating_add(1));
        store.epoch_deadline_trap();
        work(&mut store)
    });
    let left = store.get_fuel().unwrap_or(0);
    let state = store.into_data();
    let usage = Usage { fuel: limits.fuel.saturating_sub(left).saturating_add(state.spent), time: started.elapsed() };
    Run { result: result.map_err(|e| fault::of(&e)), log: state.log, usage }
}
