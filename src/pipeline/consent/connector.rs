//! May an App connector's tool be seen and called, and in which approval modes?
//!
//! Every layer's connector components that match are asked side by side, when tools are listed and again whenever a call is
//! decided. A tool is enabled only if nobody who answers says otherwise, and a component that fails disables it: what one
//! layer switched off no other layer switches on.
//!
//! Modes are not merged. All that were contributed are handed to the baseline, one after the other, and the call asks if
//! any of them asks (R13, [decision 12](../../../docs/decisions/0012-connector-modes.md)). Components that are only observed
//! are not asked here (R16).
//!
//! Only tools of the Apps server have a connector (R9); about all others nobody is asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::future::join_all;

use crate::model::caller::Caller;
use crate::model::decision::{ConnectorSpoken, ConnectorVoice};
use crate::model::layer::{LayerKind, LayerRef};
use crate::model::name::{Target, ToolRef};
use crate::model::outcome::{Failure, Origin};
use crate::model::posture::{ApprovalMode, Posture, PostureLayers};
use crate::model::tool::CatalogTool;
use crate::model::verdict::{ConnectorAnswer, Fault, Reason, Refusal, Source};
use crate::pipeline::admit::catalog::Snapshot;
use crate::ports::approval::{Bound, Kind, PolicySet};
use crate::ports::connector::{AppToolFacts, ConnectorComponent, ConnectorEvaluation};
use crate::ports::inputs::Case;

/// A connector component as one layer configured it.
pub type BoundConnector = Bound<dyn ConnectorComponent>;

/// How many tools of a list are judged at once: a list must not fill the queue that calls stand in.
const TOOLS_AT_ONCE: usize = 8;

/// One answer, with what the fold needs to know about whoever gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opinion {
    /// Who.
    pub source: Source,
    /// Whether its layer may loosen what is built in (R3).
    pub may_allow: bool,
    /// What it said.
    pub said: Result<ConnectorAnswer, Fault>,
}

/// What all layers together say about an App tool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Folded {
    /// Who disables the tool. Empty: it is enabled.
    pub disabled: BTreeSet<Refusal>,
    /// The modes to evaluate, each with the layer that it comes from. Not empty for an enabled App tool.
    pub modes: BTreeSet<(LayerRef, ApprovalMode)>,
    /// The steps, a sentence each.
    pub steps: Vec<String>,
}

/// The judgement about one tool.
#[derive(Debug, Clone, Default)]
pub struct Judged {
    /// What each component said, in order of trust. Empty for a tool without a connector.
    pub voices: Vec<ConnectorVoice>,
    /// What that comes to. Without modes and refusals for a tool without a connector.
    pub folded: Folded,
}

/// What components may know of an App tool; none for a tool that has no connector.
pub(super) fn facts(tool: &CatalogTool, caller: &Caller, now_ms: u64) -> Option<Arc<AppToolFacts>> {
    let connector = tool.connector.clone()?;
    Some(Arc::new(AppToolFacts {
        connector: Some(connector),
        tool: tool.reference(),
        identity: tool.identity,
        title: tool.title().map(str::to_owned),
        hints: tool.hints,
        caller: caller.clone(),
        now_ms,
    }))
}

/// The same of a tool as a decision has it.
pub(super) fn facts_of(case: &Case) -> Option<Arc<AppToolFacts>> {
    let connector = case.connector.clone()?;
    Some(Arc::new(AppToolFacts {
        connector: Some(connector),
        tool: case.tool.clone(),
        identity: case.identity,
        title: case.title.clone(),
        hints: case.hints,
        caller: case.caller.clone(),
        now_ms: case.now_ms,
    }))
}

/// The components that are asked about a tool, or only observed.
pub(super) fn matching<'a>(
    policies: &'a PolicySet,
    facts: &'a AppToolFacts,
    observed: bool,
) -> impl Iterator<Item = &'a BoundConnector> {
    let of = policies.connectors.iter().filter(move |component| component.observe == observed);
    of.filter(|component| component.matches.matches(Kind::Tool, &facts.tool, facts.identity))
}

/// Asks every layer about a tool; about one without a connector nobody.
pub async fn judge(policies: &PolicySet, tool: &CatalogTool, caller: &Caller, now_ms: u64) -> Judged {
    judge_by(policies, facts(tool, caller, now_ms)).await
}

/// The same, of facts that are there already; none: a tool without a connector.
pub(super) async fn judge_by(policies: &PolicySet, facts: Option<Arc<AppToolFacts>>) -> Judged {
    let Some(facts) = facts else { return Judged::default() };
    let asked: Vec<&BoundConnector> = matching(policies, &facts, false).collect();
    let answers = join_all(asked.iter().map(|component| ask(component, Arc::clone(&facts)))).await;
    let opinions: Vec<Opinion> = asked
        .iter()
        .zip(&answers)
        .map(|(component, evaluation)| Opinion {
            source: component.source.clone(),
            may_allow: component.may_allow,
            said: evaluation.result.clone(),
        })
        .collect();
    let voices = asked.iter().zip(answers).map(|(component, evaluation)| voice(component, evaluation)).collect();
    Judged { voices, folded: fold(&opinions) }
}

/// Returns the tools of a snapshot that this caller may not see, each with whoever disables it. Asked afresh at every list,
/// because the time of day is among what components may decide on.
pub async fn hidden(snapshot: &Snapshot, caller: &Caller, now_ms: u64) -> BTreeMap<ToolRef, BTreeSet<Refusal>> {
    let apps: Vec<_> = snapshot.tools().iter().filter(|tool| tool.connector.is_some()).collect();
    let mut hidden = BTreeMap::new();
    for some in apps.chunks(TOOLS_AT_ONCE) {
        let judged = join_all(some.iter().map(|tool| judge(snapshot.policies(), tool, caller, now_ms))).await;
        for (tool, judged) in some.iter().zip(judged) {
            if !judged.folded.disabled.is_empty() {
                hidden.insert(tool.reference(), judged.folded.disabled);
            }
        }
    }
    hidden
}

/// A component that could not be loaded fails, every time: an error, never an absence.
pub(super) async fn ask(component: &BoundConnector, facts: Arc<AppToolFacts>) -> ConnectorEvaluation {
    match &component.component {
        Ok(loaded) => loaded.evaluate(facts).await,
        Err(fault) => ConnectorEvaluation::failed(fault.clone()),
    }
}

/// Folds all answers; their order does not matter but for the steps.
#[must_use]
pub fn fold(opinions: &[Opinion]) -> Folded {
    let mut folded = Folded::default();
    let mut loosened = false;
    for Opinion { source, may_allow, said } in opinions {
        let answer = match said {
            Ok(answer) => answer,
            Err(fault) => {
                folded.steps.push(format!("{source}: failed ({}), counts as disabled", fault.code));
                let reason = Reason { rule: None, text: format!("the component failed ({fault})") };
                folded.disabled.insert(Refusal { source: source.clone(), reason, fault: Some(fault.clone()) });
                continue;
            }
        };
        folded.steps.push(format!("{source}: {}", in_words(answer)));
        if answer.enabled == Some(false) {
            let reason = Reason { rule: answer.rule.clone(), text: "disabled".to_owned() };
            folded.disabled.insert(Refusal { source: source.clone(), reason, fault: None });
        }
        if let Some(mode) = answer.mode {
            loosened |= *may_allow;
            folded.modes.insert((source.layer.clone(), mode));
        }
    }
    // As with postures: a layer that may not allow is never the only one that speaks (R2).
    if !loosened {
        folded.modes.insert((LayerRef::new(LayerKind::Builtin), ApprovalMode::default()));
    }
    folded.steps.push(match folded.disabled.len() {
        0 => "the app's tool is enabled".to_owned(),
        by => format!("the app's tool is disabled ({by} standing); nothing else is asked"),
    });
    folded
}

/// The postures that the baseline is asked with, each with the layer that an ask under it is the ask of.
///
/// For a tool without a connector those of the layers. For an App tool every one of them with every mode that was contributed
/// (R13); the ask is that of the more trusted of the two layers, so that what lifts it must be as trusted as both (R11). A mode
/// that a layer sets for the Apps server itself counts like a contributed one, and so can only tighten.
#[must_use]
pub(super) fn postures(layers: &PostureLayers, tool: &ToolRef, judged: &Judged) -> Vec<(LayerRef, Posture)> {
    let own = layers.for_tool(tool);
    let mut modes = judged.folded.modes.clone();
    if modes.is_empty() {
        return own;
    }
    modes.extend(layers.modes_for(tool));
    let mut all: Vec<(LayerRef, Posture)> = Vec::new();
    for (layer, posture) in &own {
        for (contributed_by, mode) in &modes {
            let of = if layer.is_at_least_as_trusted_as(contributed_by) { layer } else { contributed_by };
            let one = (of.clone(), Posture { mode: *mode, ..*posture });
            if !all.contains(&one) {
                all.push(one);
            }
        }
    }
    // Most trusted first, as the governing posture is chosen by that order.
    all.sort_by(|(a, _), (b, _)| b.cmp(a));
    all
}

/// The failure of a call whose tool is disabled. Names the most trusted layer that did it, to people.
#[must_use]
pub(in crate::pipeline) fn disabled(target: &Target, by: &BTreeSet<Refusal>) -> Failure {
    let first = by.iter().max_by(|a, b| a.source.layer.cmp(&b.source.layer).then_with(|| b.cmp(a)));
    let origin = first.map(|refusal| Origin {
        layer: refusal.source.layer.clone(),
        component: refusal.source.component.to_string(),
        rule: refusal.reason.rule.clone(),
    });
    let why: Vec<String> = by.iter().map(|refusal| format!("{}: {}", refusal.source, refusal.reason.text)).collect();
    Failure::disabled(target, origin, &why.join("; "))
}

pub(super) fn voice(component: &BoundConnector, evaluation: ConnectorEvaluation) -> ConnectorVoice {
    ConnectorVoice {
        source: component.source.clone(),
        spoken: match evaluation.result {
            Ok(answer) => ConnectorSpoken::Answer(answer),
            Err(fault) => ConnectorSpoken::Fault(fault),
        },
        observed: component.observe,
        fuel: evaluation.usage.fuel,
        time: evaluation.usage.time,
    }
}

fn in_words(answer: &ConnectorAnswer) -> String {
    let mut out = match answer.enabled {
        Some(true) => "enabled".to_owned(),
        Some(false) => "disabled".to_owned(),
        None => "no opinion on whether it is enabled".to_owned(),
    };
    if let Some(mode) = answer.mode {
        out.push_str(&format!(", mode {}", mode.as_str()));
    }
    if let Some(rule) = &answer.rule {
        out.push_str(&format!(", by rule `{rule}`"));
    }
    out
}

#[cfg(test)]
#[path = "connector_tests.rs"]
mod tests;
