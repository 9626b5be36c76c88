//! One step towards agreement: the hooks are asked, else the auto reviewer, else a person. Then all is decided again.
//!
//! Nothing here decides: what an answer settles is noted, and the next decision says whether that is enough (R19).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tracing::Instrument as _;

use super::hooks::{self, Heard};
use super::review::{self, Breaker, Panel, Reviewed};
use super::settle::{Answered, Open, not_agreed, refused_because};
use super::{ask, remember};
use crate::model::evidence::Evidence;
use crate::model::hook::HookVoice;
use crate::model::name::{CallId, Target};
use crate::model::outcome::{Code, Failure};
use crate::model::review::{ReviewSaid, ReviewVoice};
use crate::model::revision::PolicySetDigest;
use crate::model::verdict::{Remember, Reviewers, Source, StandingAsk};
use crate::pipeline::bind::hooks::{HookFacts, HookText};
use crate::pipeline::bind::people::People;
use crate::pipeline::bind::prepare::Prepared;
use crate::pipeline::bind::waiting::telling;
use crate::ports::approval::{Kind, PolicySet};
use crate::ports::grants::{Grant, GrantSubject};
use crate::ports::questions::Questions;
use crate::ports::recorder::Consent;
use crate::ports::reviewer::{Agreement, Question, Reply, Reviewer, wants};
use crate::ports::telemetry::{self, About, Phase};
use crate::ports::upstream::{ProgressSink, WaitsFor};

/// How often anybody is asked about one call: hooks, the auto reviewer, a person, each.
pub const MAX_ROUNDS: usize = 3;

/// A definition as it may be told to a reviewer: title and description.
pub type Told = (Option<String>, Option<String>);

/// Who can be asked.
pub struct Askable<'a> {
    /// The facts that hooks are told; none: no hook is asked.
    pub hooks: Option<&'a HookFacts>,
    /// Hears what is waited for, if somebody wants to know (R21).
    pub progress: Option<&'a Arc<dyn ProgressSink>>,
    /// Counts the auto reviewer's denials of the session.
    pub breaker: &'a Breaker,
    /// The session's client, for a reviewer that asks the client's own model.
    pub client: Option<Arc<dyn Questions>>,
    /// What scripts of the session were answered before, for the auto reviewer.
    pub evidence: Evidence,
    /// Tells of the tool what the sanitisers leave.
    pub told: &'a (dyn Fn() -> BoxFuture<'static, Told> + Send + Sync),
    /// A person.
    pub reviewer: &'a dyn Reviewer,
    /// How long a person's answer is waited for.
    pub deadline: Duration,
    /// Counts how long it was.
    pub people: &'a People,
}

/// What hooks and reviewers have said of a call so far.
#[derive(Debug, Clone, Default)]
pub struct Said {
    /// Hooks.
    pub hooks: Vec<HookVoice>,
    /// The auto reviewer.
    pub reviews: Vec<ReviewVoice>,
}

/// What was agreed to so far for one call; survives a decision that has to be taken again.
#[derive(Debug, Default)]
pub struct Agreed {
    pub(super) answered: Answered,
    pub(super) grant: Option<Grant>,
    pub(super) consent: Option<Consent>,
    /// What was said of the call.
    pub(in crate::pipeline) said: Said,
    /// The words of the hook that did not allow it.
    pub(in crate::pipeline) words: Option<HookText>,
    /// Whether the auto reviewer's denials are to end the turn.
    pub(in crate::pipeline) interrupts: bool,
    heard: Option<(PolicySetDigest, Heard)>,
    hearings: usize,
    reviews: usize,
    questions: usize,
    again: usize,
}

/// One decision that somebody must agree to.
pub(super) struct Step<'a> {
    pub(super) call: &'a CallId,
    pub(super) target: &'a Target,
    pub(super) subject: &'a GrantSubject,
    pub(super) prepared: &'a Prepared,
    pub(super) policies: &'a PolicySet,
    pub(super) now_ms: u64,
}

impl Agreed {
    /// Nothing is agreed to yet; this was said of the call before.
    #[must_use]
    pub fn saying(said: Said) -> Self {
        Self { said, ..Self::default() }
    }

    /// Notes that the policies changed before the lease; false when that has happened too often to decide once more.
    #[must_use]
    pub fn decide_again(&mut self) -> bool {
        self.again += 1;
        self.again <= MAX_ROUNDS
    }

    /// Asks whoever is next, and notes the answer.
    ///
    /// # Errors
    /// A [`Failure`]: somebody said no, nobody could be asked, or all have been asked too often.
    pub(super) async fn step(&mut self, who: &Askable<'_>, step: &Step<'_>, open: &Open) -> Result<(), Box<Failure>> {
        let asks = open.all();
        if who.breaker.holds() {
            return Err(Box::new(refused_because(step.target, Code::Interrupted, review::INTERRUPTED, None, &asks)));
        }
        if let Some(facts) = who.hooks {
            telling(who.progress, WaitsFor::Hooks, self.hear(facts, step, &asks)).await?;
        }
        let settled = self.heard.as_ref().and_then(|(_, heard)| heard.settled(&asks));
        if let Some((source, settled)) = settled.filter(|(_, settled)| !settled.is_disjoint(&open.left())) {
            self.answered.note(&settled, Reviewers::PERSON.union(Reviewers::AUTO));
            self.consent = Some(Consent::Hook { source });
            return Ok(());
        }
        if let Some(failure) = open.refused_by_never(step.target) {
            return Err(failure);
        }
        let automatic = open.automatic();
        if automatic.is_empty() {
            let personal = open.personal();
            let reply = self.ask(who, step, &personal, (open, None)).await?;
            return self.take(reply, step, &personal, Reviewers::PERSON);
        }
        self.review(who, step, open, &automatic).await
    }

    /// The hooks of one policy set are asked once.
    async fn hear(
        &mut self,
        facts: &HookFacts,
        step: &Step<'_>,
        asks: &BTreeSet<StandingAsk>,
    ) -> Result<(), Box<Failure>> {
        let digest = step.policies.digest;
        if self.heard.as_ref().is_some_and(|(under, _)| *under == digest) {
            return Ok(());
        }
        if self.hearings == MAX_ROUNDS {
            return Err(Box::new(not_agreed(step.target, Code::PoliciesUnstable, asks)));
        }
        self.hearings += 1;
        let heard = hooks::hear(facts, &step.policies.hooks, step.prepared, asks).await;
        self.said.hooks.extend(heard.voices.iter().cloned());
        if let Some(words) = heard.denied {
            let detail = format!("{}: {}", words.source, words.text);
            let why = "a hook did not allow it";
            let failure = refused_because(step.target, Code::HookDenied, why, Some(&words.source), asks);
            self.words = Some(words);
            return Err(Box::new(failure.detail(detail)));
        }
        self.heard = Some((digest, heard));
        Ok(())
    }

    /// Puts the call to the auto reviewer. A denial may be appealed to a person where the reviewer's layer says so; nothing
    /// else falls back to one.
    async fn review(
        &mut self,
        who: &Askable<'_>,
        step: &Step<'_>,
        open: &Open,
        asks: &BTreeSet<StandingAsk>,
    ) -> Result<(), Box<Failure>> {
        if self.reviews == MAX_ROUNDS {
            return Err(Box::new(not_agreed(step.target, Code::PoliciesUnstable, asks)));
        }
        self.reviews += 1;
        let (title, description) = (who.told)().await;
        let action = review::action(step.prepared, title.as_deref(), description.as_deref());
        let (client, evidence) = (who.client.clone(), who.evidence.clone());
        let panel = Panel { reviewers: &step.policies.reviewers, breaker: who.breaker, client, evidence };
        let span = telemetry::phase(Phase::Review, About::target(step.call, step.target));
        let reviewing = review::review(&panel, asks, &action).instrument(span);
        let review::Outcome { reviewed, voices } = telling(who.progress, WaitsFor::AutoReviewer, reviewing).await;
        let (first, last) = (voices.first().cloned(), voices.last().cloned());
        self.said.reviews.extend(voices);
        let said = last.map_or_else(String::new, |voice| format!("{}: {}; ", voice.source, why(&voice.said)));
        let failed = |code, because: &str, by: Option<&Source>| {
            let failure = refused_because(step.target, code, because, by, asks);
            let asked = failure.detail.clone().unwrap_or_default();
            Box::new(failure.detail(format!("{said}{asked}")))
        };
        match reviewed {
            Reviewed::Allowed => {
                self.answered.note(asks, Reviewers::AUTO);
                self.consent = first.map(|voice| Consent::Reviewed { source: voice.source });
                Ok(())
            }
            Reviewed::Denied { by, text, appeal, interrupts } => {
                self.interrupts |= interrupts;
                let failure = failed(Code::ReviewDenied, &text, Some(&by));
                if !appeal || open.never {
                    return Err(failure);
                }
                let reply = self.ask(who, step, asks, (open, Some(said))).await?;
                if reply == Reply::Nobody {
                    return Err(failure);
                }
                if matches!(reply, Reply::Allowed { .. }) {
                    who.breaker.overruled(interrupts);
                    self.interrupts &= !interrupts;
                }
                self.take(reply, step, asks, Reviewers::PERSON.union(Reviewers::AUTO))
            }
            Reviewed::TimedOut => Err(failed(Code::ReviewTimedOut, review::TIMED_OUT, None)),
            Reviewed::Failed => Err(failed(Code::ReviewFailed, review::FAILED, None)),
            Reviewed::Nobody { why } => {
                let failure = not_agreed(step.target, Code::NobodyToAsk, asks);
                let asked = failure.detail.clone().unwrap_or_default();
                Err(Box::new(failure.detail(format!("{why}; {asked}"))))
            }
        }
    }

    async fn ask(
        &mut self,
        who: &Askable<'_>,
        step: &Step<'_>,
        asks: &BTreeSet<StandingAsk>,
        (open, denial): (&Open, Option<String>),
    ) -> Result<Reply, Box<Failure>> {
        if self.questions == MAX_ROUNDS {
            return Err(Box::new(not_agreed(step.target, Code::PoliciesUnstable, asks)));
        }
        self.questions += 1;
        // An appeal is about this call alone.
        let options = if denial.is_some() { &[Remember::Never][..] } else { &open.options };
        let agreement = Arc::new(self.agreement(step, asks, open.reviewed));
        let (asking, postures) = (|| asks.iter().map(|ask| &ask.key.source.layer), &step.policies.postures);
        let may_answer = (postures.channels(asking()), postures.roles(asking()));
        if may_answer.0.is_empty() {
            return Ok(Reply::Nobody);
        }
        let question = ask::question(step.call, step.prepared, &agreement, asks, options, may_answer, who.deadline);
        let question = Question { denial, ..question };
        let span = telemetry::phase(Phase::Ask, About::target(step.call, step.target));
        let reply = {
            let _waited = who.people.wait();
            let asking = ask::ask(who.reviewer, &question).instrument(span.clone());
            telling(who.progress, WaitsFor::Person, asking).await
        };
        telemetry::replied(&span, &reply);
        Ok(reply)
    }

    /// What a person agrees to by these asks. Only what a person alone had to agree to lasts longer than the call.
    fn agreement(&self, step: &Step<'_>, asks: &BTreeSet<StandingAsk>, reviewed: bool) -> Agreement {
        let agreement = remember::agreement(step.subject.clone(), asks, step.prepared.bound());
        let lasts = agreement.lasts && !reviewed && step.prepared.kind() != Kind::Reply;
        Agreement { lasts, ..agreement }
    }

    fn take(
        &mut self,
        reply: Reply,
        step: &Step<'_>,
        asks: &BTreeSet<StandingAsk>,
        agreed: Reviewers,
    ) -> Result<(), Box<Failure>> {
        let code = match reply {
            Reply::Allowed { remember: scope, approver, channel: _, roles: _ } => {
                self.answered.note(asks, agreed);
                let agreement = remember::agreement(step.subject.clone(), asks, step.prepared.bound());
                self.grant = remember::grant(&agreement, scope, &approver, step.now_ms);
                self.consent = Some(Consent::Agreed { approver, remember: scope, not_remembered: false });
                return Ok(());
            }
            Reply::Declined => Code::Declined,
            Reply::Cancelled => Code::AskCancelled,
            Reply::Expired => Code::AskExpired,
            Reply::Nobody => Code::NobodyToAsk,
        };
        let failure = not_agreed(step.target, code, asks);
        let wanted = step.policies.postures.roles(asks.iter().map(|ask| &ask.key.source.layer));
        if code != Code::NobodyToAsk || wanted.is_empty() {
            return Err(Box::new(failure));
        }
        // R20: whoever was there may lack the role, and only the layer that names it knows who has it.
        let wanted: Vec<String> = wanted.iter().map(|wanted| wants(wanted, asks)).collect();
        let asked = failure.detail.clone().unwrap_or_default();
        Err(Box::new(failure.detail(format!("{}; {asked}", wanted.join("; ")))))
    }
}

/// What a review came to, for people and records.
fn why(said: &ReviewSaid) -> String {
    match said {
        ReviewSaid::Assessed(assessment) if assessment.rationale.is_empty() => "it gave no reason".to_owned(),
        ReviewSaid::Assessed(assessment) => assessment.rationale.clone(),
        ReviewSaid::TimedOut => "it did not answer in time".to_owned(),
        ReviewSaid::Failed { why } | ReviewSaid::Nobody { why } => why.clone(),
    }
}
