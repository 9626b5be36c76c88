//! What follows from a decision: run, ask, or refuse. Pure, and shared by the real call and the dry run (R38).

use std::collections::{BTreeMap, BTreeSet};

use super::decide::Decided;
use super::{connector, remember};
use crate::model::name::Target;
use crate::model::outcome::{Code, Failure, Origin, Stage};
use crate::model::posture::{ApprovalPolicy, Reviewer};
use crate::model::text;
use crate::model::verdict::{AskKey, Folded, Refusal, Remember, Reviewers, Source, StandingAsk};
use crate::ports::grants::{Grant, GrantSubject, Grants};

/// What a decision comes to.
#[derive(Debug, Clone)]
pub enum Settled {
    /// It may run.
    Run {
        /// The remembered grant that covers the asks, if there were any.
        grant: Option<Box<Grant>>,
    },
    /// Somebody must agree.
    Ask {
        /// The asks that stand.
        asks: BTreeSet<StandingAsk>,
        /// Who must agree.
        reviewers: Reviewers,
        /// What may be offered besides refusing.
        options: Vec<Remember>,
    },
    /// It is refused.
    Refuse(Box<Failure>),
}

/// What `settle` needs besides the decision.
pub struct Standing<'a> {
    /// What was called, for texts.
    pub target: &'a Target,
    /// What a grant would bind.
    pub subject: &'a GrantSubject,
    /// The digest of the arguments and of the files that they name.
    pub arguments: crate::model::digest::Digest,
    /// The time of day, in milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// What was just agreed to for this very call (R19 as amended).
    pub answered: &'a Answered,
    /// Who answers an ask that names nobody.
    pub reviewer: Reviewer,
    /// How long an agreement may be remembered at most, whatever the asks and the store allow (R22). Only looked at when
    /// somebody is to be asked.
    pub widest: &'a (dyn Fn(&BTreeSet<StandingAsk>) -> Remember + Sync),
}

/// The asks of one call that were agreed to just now, and who agreed to each.
///
/// An ask that comes from a failure is another ask than one that the component made itself, by the same rule or none: only an
/// answer to the failure satisfies it (R14, R15).
#[derive(Debug, Clone, Default)]
pub struct Answered(BTreeMap<(AskKey, bool), Reviewers>);

impl Answered {
    /// Notes that `reviewers` agreed to all of `asks`.
    pub fn note(&mut self, asks: &BTreeSet<StandingAsk>, reviewers: Reviewers) {
        for ask in asks {
            let agreed = self.0.entry(identity(ask)).or_default();
            *agreed = agreed.union(reviewers);
        }
    }

    /// Whether everybody who must agree to `ask` has agreed to it.
    fn covers(&self, ask: &StandingAsk, must: Reviewers) -> bool {
        self.0.get(&identity(ask)).is_some_and(|agreed| agreed.union(must) == *agreed)
    }
}

fn identity(ask: &StandingAsk) -> (AskKey, bool) {
    (ask.key.clone(), ask.fault.is_some())
}

/// Says what follows from a decision.
#[must_use]
pub fn settle(decided: &Decided, grants: &dyn Grants, standing: &Standing<'_>) -> Settled {
    let asks = match &decided.decision.folded {
        Folded::Run { .. } => return Settled::Run { grant: None },
        Folded::Deny(by) if decided.disabled => {
            return Settled::Refuse(Box::new(connector::disabled(standing.target, by)));
        }
        Folded::Deny(refusals) => return Settled::Refuse(Box::new(refused(standing.target, refusals))),
        Folded::Ask(asks) => asks,
    };
    // An answer that was just given for this call stands until the hand-over, fault asks included.
    let must = |ask: &StandingAsk| must_agree(ask, decided, standing.reviewer);
    if asks.iter().all(|ask| standing.answered.covers(ask, must(ask))) {
        return Settled::Run { grant: None };
    }
    if let Some(grant) = remember::covering(grants, standing.subject, asks, standing.arguments, standing.now_ms) {
        return Settled::Run { grant: Some(Box::new(grant)) };
    }
    // U1: what is left to ask under `never` is refused. The strict ask is the auto reviewer's, who may be asked (R10).
    if decided.never && asks.iter().any(|ask| !ask.strict) {
        return Settled::Refuse(Box::new(never(standing.target, asks)));
    }
    let widest = remember::limit(asks).min(grants.widest()).min((standing.widest)(asks));
    let options = [Remember::Never, Remember::Session, Remember::Always].into_iter().filter(|o| *o <= widest).collect();
    // R12: the union over all asks.
    let reviewers = asks.iter().map(must).fold(Reviewers::default(), Reviewers::union);
    // There is no auto reviewer in this host: what needs its agreement can be agreed to by nobody.
    if reviewers.auto {
        return Settled::Refuse(Box::new(not_agreed(standing.target, Code::NobodyToAsk, asks)));
    }
    Settled::Ask { asks: asks.clone(), reviewers, options }
}

/// Who must agree to one ask; an ask that names nobody leaves it to the configuration.
fn must_agree(ask: &StandingAsk, decided: &Decided, configured: Reviewer) -> Reviewers {
    if ask.ask.reviewers != Reviewers::default() {
        return ask.ask.reviewers;
    }
    let automatic = matches!(decided.posture.policy, ApprovalPolicy::OnRequest | ApprovalPolicy::Granular);
    match configured {
        Reviewer::AutoReview if automatic => Reviewers::AUTO,
        Reviewer::AutoReview | Reviewer::User => Reviewers::PERSON,
    }
}

/// The failure of a call that was denied. Names the most trusted layer that did; the rest is detail for people.
pub(in crate::pipeline) fn refused(target: &Target, refusals: &BTreeSet<Refusal>) -> Failure {
    let first = refusals.iter().max_by(|a, b| a.source.layer.cmp(&b.source.layer).then_with(|| b.cmp(a)));
    let faulty = first.is_some_and(|refusal| refusal.fault.is_some());
    let code = if faulty { Code::ComponentFailed } else { Code::Denied };
    let why = if faulty { "because a policy component failed" } else { "by policy" };
    let origin = first.map(|refusal| origin(&refusal.source, refusal.reason.rule.clone()));
    let detail: Vec<String> = refusals.iter().map(|r| format!("{}: {}", r.source, r.reason.text)).collect();
    failure(target, code, why, origin).detail(detail.join("; "))
}

fn never(target: &Target, asks: &BTreeSet<StandingAsk>) -> Failure {
    let why = "because it needs approval and the approval policy is `never`";
    failure(target, Code::NeverAsks, why, first_asker(asks)).detail(reasons(asks))
}

/// The failure of a call whose asks nobody could be asked, or that was not agreed to.
#[must_use]
pub fn not_agreed(target: &Target, code: Code, asks: &BTreeSet<StandingAsk>) -> Failure {
    let why = match code {
        Code::NobodyToAsk => "because it needs approval and nobody could be asked",
        Code::AskExpired => "because nobody answered the request for approval in time",
        Code::AskCancelled => "because the request for approval was cancelled",
        Code::PoliciesUnstable => "because the policies kept changing while it was decided",
        _ => "because it was not approved",
    };
    failure(target, code, why, first_asker(asks)).detail(reasons(asks))
}

/// One sentence for the model: what, why in the host's words, who by id. No text of a component (R30).
fn failure(target: &Target, code: Code, why: &str, origin: Option<Origin>) -> Failure {
    let by = origin.as_ref().map_or_else(String::new, |origin| match &origin.rule {
        Some(rule) => format!(" ({}/{}, rule {rule})", origin.layer, origin.component),
        None => format!(" ({}/{})", origin.layer, origin.component),
    });
    let message = format!("MCP tool call `{}` was refused {why}{by}", text::shown(&target.to_string(), 256));
    let failure = Failure::new(Stage::Approval, code, message);
    match origin {
        Some(origin) => failure.by(origin),
        None => failure,
    }
}

fn first_asker(asks: &BTreeSet<StandingAsk>) -> Option<Origin> {
    let first = asks.iter().max_by(|a, b| a.key.source.layer.cmp(&b.key.source.layer).then_with(|| b.cmp(a)));
    first.map(|ask| origin(&ask.key.source, ask.key.rule.clone()))
}

fn origin(source: &Source, rule: Option<crate::model::verdict::RuleId>) -> Origin {
    Origin { layer: source.layer.clone(), component: source.component.to_string(), rule }
}

fn reasons(asks: &BTreeSet<StandingAsk>) -> String {
    asks.iter().map(|ask| format!("{}: {}", ask.key.source, ask.ask.reason.text)).collect::<Vec<_>>().join("; ")
}
