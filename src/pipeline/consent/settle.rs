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
    Ask(Open),
    /// It is refused.
    Refuse(Box<Failure>),
}

/// Asks of which some are not settled yet. Hooks may settle them, the auto reviewer and a person the rest.
#[derive(Debug, Clone)]
pub struct Open {
    /// Every ask that stands, the settled ones included: who agrees reads all of them. Some of them lack somebody.
    pub asks: BTreeMap<StandingAsk, Needs>,
    /// What may be offered to a person besides refusing.
    pub options: Vec<Remember>,
    /// Whether the auto reviewer has, or had, a part in it: then nothing is remembered.
    pub reviewed: bool,
    /// Whether nobody may be asked because of the approval policy `never` (U1).
    pub never: bool,
}

/// Who has a say about one ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// Who must agree.
    pub must: Reviewers,
    /// Who of these has not yet.
    pub missing: Reviewers,
}

impl Needs {
    fn is_settled(&self) -> bool {
        self.missing == Reviewers::default()
    }
}

impl Open {
    fn those(&self, which: impl Fn(&Needs) -> bool) -> BTreeSet<StandingAsk> {
        self.asks.iter().filter(|(_, needs)| which(needs)).map(|(ask, _)| ask.clone()).collect()
    }

    /// Returns all of them.
    #[must_use]
    pub fn all(&self) -> BTreeSet<StandingAsk> {
        self.those(|_| true)
    }

    /// Returns those that are not settled. Never empty.
    #[must_use]
    pub fn left(&self) -> BTreeSet<StandingAsk> {
        self.those(|needs| !needs.is_settled())
    }

    /// Returns those that the auto reviewer must agree to, if it has not agreed to all of them; else none.
    #[must_use]
    pub fn automatic(&self) -> BTreeSet<StandingAsk> {
        if self.missing().auto { self.those(|needs| needs.must.auto) } else { BTreeSet::new() }
    }

    /// Returns those that a person must agree to.
    #[must_use]
    pub fn personal(&self) -> BTreeSet<StandingAsk> {
        self.those(|needs| needs.must.person)
    }

    /// Returns who must still agree, all asks together (R12: the union).
    #[must_use]
    pub fn missing(&self) -> Reviewers {
        self.asks.values().fold(Reviewers::default(), |all, needs| all.union(needs.missing))
    }

    /// U1: what is left to ask under `never` is refused. The strict ask is the auto reviewer's, who may be asked (R10).
    #[must_use]
    pub fn refused_by_never(&self, target: &Target) -> Option<Box<Failure>> {
        let left = self.left();
        (self.never && left.iter().any(|ask| !ask.strict)).then(|| Box::new(never(target, &left)))
    }
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

    /// Returns who of those that must agree to `ask` have not.
    fn missing(&self, ask: &StandingAsk, must: Reviewers) -> Reviewers {
        let agreed = self.0.get(&identity(ask)).copied().unwrap_or_default();
        Reviewers { person: must.person && !agreed.person, auto: must.auto && !agreed.auto }
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
    let needs = |ask: &StandingAsk| Needs { must: must(ask), missing: standing.answered.missing(ask, must(ask)) };
    let all: BTreeMap<_, _> = asks.iter().map(|ask| (ask.clone(), needs(ask))).collect();
    let left: BTreeSet<_> = all.iter().filter(|(_, needs)| !needs.is_settled()).map(|(ask, _)| ask.clone()).collect();
    if left.is_empty() {
        return Settled::Run { grant: None };
    }
    if let Some(grant) = remember::covering(grants, standing.subject, &left, standing.arguments, standing.now_ms) {
        return Settled::Run { grant: Some(Box::new(grant)) };
    }
    // What the auto reviewer agrees to holds for the call alone, and so does what a person agrees to beside it.
    let reviewed = all.values().any(|needs| needs.must.auto);
    let widest = remember::limit(asks).min(grants.widest()).min((standing.widest)(asks));
    let widest = if reviewed { Remember::Never } else { widest };
    let options = [Remember::Never, Remember::Session, Remember::Always].into_iter().filter(|o| *o <= widest).collect();
    Settled::Ask(Open { asks: all, options, reviewed, never: decided.never })
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
    let origin = first.map(|refusal| Origin::of(&refusal.source, refusal.reason.rule.clone()));
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

/// The same, where a hook or a reviewer is behind it: `by` it, else the first who asked; `why` in the host's words.
#[must_use]
pub fn refused_because(
    target: &Target,
    code: Code,
    why: &str,
    by: Option<&Source>,
    asks: &BTreeSet<StandingAsk>,
) -> Failure {
    let origin = by.map(|by| Origin::of(by, None)).or_else(|| first_asker(asks));
    failure(target, code, &format!("because {why}"), origin).detail(reasons(asks))
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
    first.map(|ask| Origin::of(&ask.key.source, ask.key.rule.clone()))
}

fn reasons(asks: &BTreeSet<StandingAsk>) -> String {
    asks.iter().map(|ask| format!("{}: {}", ask.key.source, ask.ask.reason.text)).collect::<Vec<_>>().join("; ")
}
