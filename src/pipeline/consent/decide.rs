//! Asks every layer's components about a call, and folds what they say.
//!
//! About a tool of an App the connector components are asked before anybody else; a tool that they disable is refused
//! without asking further ([`super::connector`]). The baseline is asked next, once for every layer's posture (R2 as amended). The posture under which it answered most
//! strictly, most trusted layer first, is the one that the other components see. Those are asked side by side. What it
//! says about a reply to a server's question is kept but not applied. Observed
//! components are not asked here: the decision brings them along for [`super::observe`] (R16).
//!
//! Asks no person: that is [`super::ask`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;

use super::connector;
use super::fold::{self, Opinion};
use super::observe::Observers;
use super::replay::Noting;
use crate::model::caller::Caller;
use crate::model::decision::{Decision, Spoken, Voice};
use crate::model::layer::{LayerKind, LayerRef};
use crate::model::posture::{ApprovalPolicy, Posture};
use crate::model::verdict::{Ask, Folded, HOST, Label, OnFailure, Reason, Remember, Reviewers, Source, Verdict};
use crate::pipeline::bind::noted::Moments;
use crate::pipeline::bind::prepare::Prepared;
use crate::ports::approval::{BoundComponent, CallFacts, Evaluation, Kind, PolicySet};
use crate::ports::inputs::{Case, DecisionInputs};
use crate::ports::state::Moment;

/// A decision, with what the steps after it need to know.
#[derive(Debug, Clone)]
pub struct Decided {
    /// The answers and the fold.
    pub decision: Decision,
    /// The posture that governs the call.
    pub posture: Posture,
    /// Whether some layer's posture says `never`: then nothing that is left to ask is asked.
    pub never: bool,
    /// Whether the connector policy disabled the tool; then nothing else was asked.
    pub disabled: bool,
    /// The observed components that match the call.
    pub observers: Option<Observers>,
    /// The labels of those that count, each once; kept when the call is handed over (R33).
    pub labels: Vec<Label>,
    /// All that it was taken on.
    pub inputs: Arc<DecisionInputs>,
}

/// Asks all layers in `policies` about a prepared call, as of these moments. `changed` says why the host itself asks a person
/// (R24): no allow lifts that.
pub async fn decide(
    policies: &PolicySet,
    prepared: &Prepared,
    caller: &Caller,
    now_ms: u64,
    moments: &Moments,
    changed: Option<&Reason>,
) -> Decided {
    let tool = prepared.tool();
    let case = Case {
        kind: prepared.kind(),
        tool: prepared.reference(),
        identity: tool.identity,
        definition: tool.definition.digest(),
        title: tool.title().map(str::to_owned),
        hints: tool.hints,
        connector: tool.connector.clone(),
        caller: caller.clone(),
        arguments: prepared.arguments().clone(),
        now_ms,
        changed: changed.cloned(),
    };
    decide_case(policies, case, moments).await
}

/// The same about what is known by value alone: a replay has no server.
pub(super) async fn decide_case(policies: &PolicySet, case: Case, moments: &Moments) -> Decided {
    let (kind, now_ms) = (case.kind, case.now_ms);
    let reference = case.tool.clone();
    let noting = Arc::new(Noting::over(Arc::clone(&moments.asked.counters)));
    let asked_moment = Moment { counters: Arc::clone(&noting) as _, ..moments.asked.clone() };
    let app = connector::facts_of(&case);
    let judged = connector::judge_by(policies, app.clone()).await;
    let postures = connector::postures(&policies.postures, &reference, &judged);
    let facts = |posture: Posture, moment: &Moment| {
        Arc::new(CallFacts {
            kind,
            tool: reference.clone(),
            identity: case.identity,
            definition: case.definition,
            hints: case.hints,
            caller: case.caller.clone(),
            connector: case.connector.clone(),
            posture,
            arguments: case.arguments.clone(),
            now_ms,
            moment: moment.clone(),
        })
    };
    let inputs = |case: Case| {
        let (labels, history) = (Arc::clone(&moments.asked.labels), Arc::clone(&moments.asked.history));
        Arc::new(DecisionInputs { case, labels, history, counts: noting.counts(), masked: false })
    };

    let observed_apps = app.map(|app| (connector::matching(policies, &app, true).cloned().collect(), app));
    let connector::Judged { voices: connectors, folded: connector } = judged;
    if !connector.disabled.is_empty() {
        let (folded, steps) = (Folded::Deny(connector.disabled), connector.steps);
        let decision = Decision { connectors, voices: Vec::new(), folded, steps, now_ms };
        let observers = Observers::new(Vec::new(), facts(Posture::default(), &moments.observed), observed_apps);
        let (posture, labels) = (Posture::default(), Vec::new());
        let inputs = inputs(case);
        return Decided { decision, posture, never: false, disabled: true, observers, labels, inputs };
    }

    let baseline =
        join_all(postures.iter().map(|(_, posture)| ask(&policies.baseline, facts(*posture, &asked_moment)))).await;
    let posture = governing(&postures, &baseline);

    let matching = |observed: bool| {
        let of = policies.components.iter().filter(move |component| component.observe == observed);
        of.filter(|component| component.matches.matches(kind, &reference, case.identity))
    };
    let asked: Vec<&BoundComponent> = matching(false).collect();
    let answers = join_all(asked.iter().map(|component| ask(component, facts(posture, &asked_moment)))).await;

    let mut voices = Vec::new();
    let mut opinions = Vec::new();
    let said = answers.iter().filter(|evaluation| evaluation.result.is_ok()).flat_map(|evaluation| &evaluation.labels);
    let labels: BTreeSet<Label> = said.cloned().collect();
    if let Some(reason) = &case.changed {
        let (opinion, voice) = changed_definition(reason);
        opinions.push(opinion);
        voices.push(voice);
    }
    for (component, evaluation) in asked.iter().zip(answers) {
        opinions.push(opinion(component, None, &evaluation));
        voices.push(voice(component, None, evaluation));
    }
    for ((layer, posture), evaluation) in postures.iter().zip(baseline) {
        // A reply belongs to a call that the baseline has let run; only what layers add can stop it. Which posture governs
        // is the baseline's to say all the same.
        if kind != Kind::Reply {
            opinions.push(opinion(&policies.baseline, Some(layer.clone()), &evaluation));
        }
        let mut voice = voice(&policies.baseline, Some((layer.clone(), *posture)), evaluation);
        voice.observed |= kind == Kind::Reply;
        voices.push(voice);
    }
    let (folded, more) = fold::fold(&opinions, &policies.refusals, policies.postures.strict_review());
    let steps = connector.steps.into_iter().chain(more).collect();

    let observers = Observers::new(matching(true).cloned().collect(), facts(posture, &moments.observed), observed_apps);
    let never = postures.iter().any(|(_, posture)| posture.policy == ApprovalPolicy::Never);
    let decision = Decision { connectors, voices, folded, steps, now_ms };
    let (labels, inputs) = (labels.into_iter().collect(), inputs(case));
    Decided { decision, posture, never, disabled: false, observers, labels, inputs }
}

/// A component that could not be loaded fails, every time: an error, never an absence.
pub(super) async fn ask(component: &BoundComponent, facts: Arc<CallFacts>) -> Evaluation {
    match &component.component {
        Ok(loaded) => loaded.evaluate(facts).await,
        Err(fault) => Evaluation::failed(fault.clone()),
    }
}

/// The posture of the strictest baseline answer; of equal ones, that of the most trusted layer.
fn governing(postures: &[(LayerRef, Posture)], answers: &[Evaluation]) -> Posture {
    let strict = |evaluation: &Evaluation| match &evaluation.result {
        Ok(Verdict::Abstain | Verdict::Allow(_)) => 0,
        Ok(Verdict::Ask(_)) => 1,
        Ok(Verdict::Deny(_)) | Err(_) => 2,
    };
    let mut best: Option<(u8, Posture)> = None;
    for ((_, posture), evaluation) in postures.iter().zip(answers) {
        if best.is_none_or(|(strictest, _)| strict(evaluation) > strictest) {
            best = Some((strict(evaluation), *posture));
        }
    }
    best.map(|(_, posture)| posture).unwrap_or_default()
}

/// The host's own ask. It is never remembered: what was agreed to is kept as a pin.
fn changed_definition(reason: &Reason) -> (Opinion, Voice) {
    let source = Source { layer: LayerRef::new(LayerKind::Builtin), component: HOST.into(), digest: None };
    let ask =
        Ask { reason: reason.clone(), remember: Remember::Never, bind_arguments: false, reviewers: Reviewers::PERSON };
    let verdict = Verdict::Ask(ask);
    let opinion = Opinion {
        source: source.clone(),
        baseline_for: None,
        may_allow: false,
        on_failure: OnFailure::Deny,
        said: Ok(verdict.clone()),
    };
    let spoken = Spoken::Verdict(verdict);
    let voice = Voice { source, spoken, posture: None, observed: false, fuel: 0, time: Duration::ZERO, heard: None };
    (opinion, voice)
}

fn opinion(component: &BoundComponent, baseline_for: Option<LayerRef>, evaluation: &Evaluation) -> Opinion {
    Opinion {
        source: component.source.clone(),
        baseline_for,
        may_allow: component.may_allow,
        on_failure: component.on_failure,
        said: evaluation.result.clone(),
    }
}

pub(super) fn voice(component: &BoundComponent, posture: Option<(LayerRef, Posture)>, evaluation: Evaluation) -> Voice {
    Voice {
        source: component.source.clone(),
        spoken: match evaluation.result {
            Ok(verdict) => Spoken::Verdict(verdict),
            Err(fault) => Spoken::Fault(fault),
        },
        posture,
        observed: component.observe,
        fuel: evaluation.usage.fuel,
        time: evaluation.usage.time,
        heard: evaluation.usage.heard,
    }
}
