//! The fold: what all layers together say about a call.
//!
//! ```text
//! R = strictest of the restricting answers (asks, denies, failures) of all components of all layers
//! B = the baseline's answer, once for every layer's posture: allow or ask
//! G = the most trusted layer that answered allow and may allow
//! result = R joined with (allow if G may lift B, by R11, else B)
//! ```
//!
//! So any layer can tighten, none can loosen what another restricted, and an allow can only lift the baseline's ask.
//! A failure is never an absence: it is a deny, or an ask that only a person's fresh answer satisfies (R14).
//! Knows nothing of grants, hooks and people: what satisfies an ask is decided later.

use std::collections::BTreeSet;

use crate::model::layer::{LayerKind, LayerRef};
use crate::model::verdict::{
    Ask, AskKey, Fault, Folded, HOST, OnFailure, Reason, Refusal, Remember, Reviewers, RuleId, Source, StandingAsk,
    Verdict,
};

/// One answer, with what the fold needs to know about whoever gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opinion {
    /// Who.
    pub source: Source,
    /// Whether it is the baseline, asked with this layer's posture.
    pub baseline_for: Option<LayerRef>,
    /// Whether an allow of it may lift the baseline's ask (R3).
    pub may_allow: bool,
    /// What a failure of it means.
    pub on_failure: OnFailure,
    /// What it said.
    pub said: Result<Verdict, Fault>,
}

/// Folds all answers; the order of `opinions` does not matter. Returns the result and the steps, a sentence each.
///
/// `refusals` are those that no component made (R8); `strict` is the layer that wants every call reviewed (R12).
#[must_use]
pub fn fold(opinions: &[Opinion], refusals: &[Refusal], strict: Option<&LayerRef>) -> (Folded, Vec<String>) {
    let mut state = State { asks: BTreeSet::new(), denies: refusals.iter().cloned().collect(), steps: Vec::new() };
    for refusal in refusals {
        state.steps.push(format!("{} refuses every call", refusal.source));
    }
    for opinion in opinions.iter().filter(|opinion| opinion.baseline_for.is_none()) {
        state.restrict(opinion);
    }
    let lifted_by = state.baseline(opinions);
    if let Some(layer) = strict {
        state.steps.push(format!("{layer} wants every call reviewed: the auto reviewer must agree"));
        state.asks.insert(strict_ask(layer));
    }
    let folded = if !state.denies.is_empty() {
        Folded::Deny(state.denies)
    } else if !state.asks.is_empty() {
        Folded::Ask(state.asks)
    } else {
        Folded::Run { lifted_by }
    };
    state.steps.push(match &folded {
        Folded::Run { .. } => "result: run".to_owned(),
        Folded::Ask(asks) => format!("result: ask ({} standing)", asks.len()),
        Folded::Deny(denies) => format!("result: deny ({} standing)", denies.len()),
    });
    (folded, state.steps)
}

struct State {
    asks: BTreeSet<StandingAsk>,
    denies: BTreeSet<Refusal>,
    steps: Vec<String>,
}

impl State {
    /// Takes a restricting answer of a component; allow and abstain restrict nothing.
    fn restrict(&mut self, opinion: &Opinion) {
        let source = &opinion.source;
        match &opinion.said {
            Ok(Verdict::Abstain) => self.steps.push(format!("{source}: no opinion")),
            Ok(Verdict::Allow(reason)) if opinion.may_allow => {
                self.steps.push(format!("{source}: allow{}", by(reason)))
            }
            Ok(Verdict::Allow(reason)) => {
                self.steps.push(format!("{source}: allow{}, which this layer may not give", by(reason)));
            }
            Ok(Verdict::Ask(ask)) => {
                self.steps.push(format!("{source}: ask{}", by(&ask.reason)));
                self.asks.insert(standing(source.clone(), ask.clone()));
            }
            Ok(Verdict::Deny(reason)) => {
                self.steps.push(format!("{source}: deny{}", by(reason)));
                self.denies.insert(Refusal { source: source.clone(), reason: reason.clone(), fault: None });
            }
            Err(fault) => self.fail(source, opinion.on_failure, fault),
        }
    }

    /// A broken guard is no open door (R14).
    fn fail(&mut self, source: &Source, on_failure: OnFailure, fault: &Fault) {
        let reason = Reason { rule: None, text: format!("the component failed ({fault})") };
        if on_failure == OnFailure::Deny || fault.code.always_denies() {
            self.steps.push(format!("{source}: failed ({}), counts as deny", fault.code));
            self.denies.insert(Refusal { source: source.clone(), reason, fault: Some(fault.clone()) });
        } else {
            self.steps.push(format!("{source}: failed ({}), counts as an ask of a person", fault.code));
            let ask = Ask { reason, remember: Remember::Never, bind_arguments: true, reviewers: Reviewers::PERSON };
            let key = AskKey { source: source.clone(), rule: None };
            self.asks.insert(StandingAsk { key, ask, fault: Some(fault.clone()), strict: false });
        }
    }

    /// Takes the baseline's answers, one for each posture, and returns who lifted an ask of it.
    fn baseline(&mut self, opinions: &[Opinion]) -> Option<Source> {
        let mut allowing: Vec<&Opinion> = opinions.iter().filter(|o| o.baseline_for.is_none() && allows(o)).collect();
        allowing.sort_by(|a, b| b.source.layer.cmp(&a.source.layer).then_with(|| a.source.cmp(&b.source)));
        let strongest = allowing.first();
        let mut lifted_by = None;
        for opinion in opinions {
            let Some(origin) = &opinion.baseline_for else { continue };
            let source = Source { layer: origin.clone(), ..opinion.source.clone() };
            match &opinion.said {
                Ok(Verdict::Abstain | Verdict::Allow(_)) => {
                    self.steps.push(format!("baseline for the posture of {origin}: allow"));
                }
                Ok(Verdict::Ask(ask)) => match strongest.filter(|allow| may_lift(&allow.source.layer, origin)) {
                    Some(allow) => {
                        self.steps.push(format!(
                            "baseline for the posture of {origin}: ask{}, lifted by {}",
                            by(&ask.reason),
                            allow.source
                        ));
                        lifted_by = Some(allow.source.clone());
                    }
                    None => {
                        self.steps.push(format!("baseline for the posture of {origin}: ask{}", by(&ask.reason)));
                        self.asks.insert(standing(source, ask.clone()));
                    }
                },
                Ok(Verdict::Deny(reason)) => {
                    self.steps.push(format!("baseline for the posture of {origin}: deny{}", by(reason)));
                    self.denies.insert(Refusal { source, reason: reason.clone(), fault: None });
                }
                Err(fault) => self.fail(&source, opinion.on_failure, fault),
            }
        }
        lifted_by
    }
}

fn allows(opinion: &Opinion) -> bool {
    opinion.may_allow && matches!(opinion.said, Ok(Verdict::Allow(_)))
}

/// R11: an allow lifts an ask that builtin values produced, or those of a layer no more trusted than the allowing one.
pub(super) fn may_lift(allowing: &LayerRef, origin: &LayerRef) -> bool {
    origin.kind() == LayerKind::Builtin || allowing.is_at_least_as_trusted_as(origin)
}

fn standing(source: Source, ask: Ask) -> StandingAsk {
    let key = AskKey { source, rule: ask.reason.rule.clone() };
    StandingAsk { key, ask, fault: None, strict: false }
}

/// R12: strict review asks the auto reviewer alone, and is never remembered.
fn strict_ask(layer: &LayerRef) -> StandingAsk {
    let rule = RuleId::parse("strict-review");
    let source = Source { layer: layer.clone(), component: HOST.into(), digest: None };
    let reason = Reason { rule: rule.clone(), text: "every call is to be reviewed".to_owned() };
    let ask = Ask { reason, remember: Remember::Never, bind_arguments: true, reviewers: Reviewers::AUTO };
    StandingAsk { key: AskKey { source, rule }, ask, fault: None, strict: true }
}

fn by(reason: &Reason) -> String {
    reason.rule.as_ref().map_or_else(String::new, |rule| format!(" by rule `{rule}`"))
}

#[cfg(test)]
#[path = "fold_tests.rs"]
mod tests;
