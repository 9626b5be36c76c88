//! The queue of questions: what an answer, a poll and a departure make of one, over whatever keeps them.
//!
//! Each step is one transaction of the backing, the grant that it makes or takes included: that is what makes the first
//! valid answer win, and keeps an answer from being delivered and granted both.

use std::sync::Arc;

use parking_lot::Mutex;

use super::form;
use crate::model::caller::TenantId;
use crate::model::verdict::Remember;
use crate::ports::approval::Kind;
use crate::ports::asks::{
    Answer, AskState, Asks, AsksFailed, Decision, Delivery, KeptAsk, LEASE_MS, MAX_APPROVER, MAX_KEPT_QUESTION,
    NotAnswered, NotQueued, ONCE_GRANT_MS, Polled,
};
use crate::ports::grants::Grant;
use crate::ports::reviewer::Question;

/// Where the grants are that a step makes or takes: in its own transaction.
pub(super) trait Shelf {
    fn put(&mut self, grant: Grant) -> Result<(), AsksFailed>;
    fn take(&mut self, id: &str) -> Result<bool, AsksFailed>;
}

/// What may be done to one question.
pub(super) type Step<'a> = &'a mut dyn FnMut(&mut KeptAsk, &mut dyn Shelf) -> Result<(), AsksFailed>;

/// How a question stands, without its text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    pub(super) pending: bool,
    pub(super) deadline_ms: u64,
    pub(super) live_until_ms: u64,
}

/// Keeps questions. Each method is one transaction.
pub(super) trait AskBacking: Send {
    /// Keeps a new question, of `size` bytes as text; removes what has ended long ago.
    fn insert(&mut self, ask: &KeptAsk, text: &str) -> Result<(), NotQueued>;

    /// Lets `step` change a question, and keeps what it has become. False: there is none.
    fn change(&mut self, id: &str, step: Step<'_>) -> Result<bool, AsksFailed>;

    fn standing(&mut self, id: &str) -> Result<Option<Standing>, AsksFailed>;

    fn get(&mut self, id: &str) -> Result<Option<KeptAsk>, AsksFailed>;

    fn list(&mut self, tenant: &TenantId, all: bool, now_ms: u64) -> Result<Vec<KeptAsk>, AsksFailed>;

    /// The ids of questions that [`settle`] would change.
    fn due(&mut self, now_ms: u64) -> Result<Vec<String>, AsksFailed>;
}

/// The queue over a backing. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Queue {
    backing: Arc<Mutex<dyn AskBacking>>,
}

impl Queue {
    pub(super) fn over(backing: Arc<Mutex<dyn AskBacking>>) -> Self {
        Self { backing }
    }
}

impl Asks for Queue {
    fn open(&self, question: &Question, now_ms: u64, deadline_ms: u64) -> Result<(), NotQueued> {
        let text = form::question_text(question).map_err(|form::Unreadable(why)| AsksFailed(why))?;
        if text.len() > MAX_KEPT_QUESTION {
            return Err(NotQueued::TooLarge(text.len()));
        }
        self.settle(now_ms)?;
        let ask = KeptAsk {
            question: question.clone(),
            created_ms: now_ms,
            deadline_ms,
            live_until_ms: now_ms.saturating_add(LEASE_MS),
            state: AskState::Pending,
        };
        self.backing.lock().insert(&ask, &text)
    }

    fn answer(&self, id: &str, answer: &Answer, now_ms: u64) -> Result<Delivery, NotAnswered> {
        let mut told = Err(NotAnswered::Unknown);
        let mut step = |ask: &mut KeptAsk, shelf: &mut dyn Shelf| {
            expire(ask, now_ms);
            told = answered(ask, answer, now_ms, shelf);
            // A store that failed in the middle keeps nothing of the step.
            match &told {
                Err(NotAnswered::Failed(failed)) => Err(failed.clone()),
                _ => Ok(()),
            }
        };
        self.backing.lock().change(id, &mut step)?;
        told
    }

    fn poll(&self, id: &str, now_ms: u64) -> Result<Polled, AsksFailed> {
        let mut backing = self.backing.lock();
        match backing.standing(id)? {
            None => return Ok(Polled::Over),
            Some(at)
                if at.pending && at.deadline_ms > now_ms && at.live_until_ms > now_ms.saturating_add(LEASE_MS / 2) =>
            {
                return Ok(Polled::Nothing);
            }
            Some(_) => {}
        }
        let mut polled = Polled::Over;
        backing.change(id, &mut |ask, shelf| {
            expire(ask, now_ms);
            polled = collect(ask, now_ms, shelf)?;
            Ok(())
        })?;
        Ok(polled)
    }

    fn leave(&self, id: &str, now_ms: u64) -> Result<(), AsksFailed> {
        let step: Step<'_> = &mut |ask, shelf| {
            ask.live_until_ms = 0;
            settle(ask, now_ms, shelf)
        };
        self.backing.lock().change(id, step).map(|_| ())
    }

    fn get(&self, id: &str) -> Result<Option<KeptAsk>, AsksFailed> {
        self.backing.lock().get(id)
    }

    fn list(&self, tenant: &TenantId, all: bool, now_ms: u64) -> Result<Vec<KeptAsk>, AsksFailed> {
        self.backing.lock().list(tenant, all, now_ms)
    }

    fn settle(&self, now_ms: u64) -> Result<(), AsksFailed> {
        settle_due(&mut *self.backing.lock(), now_ms)
    }
}

/// Settles every question that is due.
pub(super) fn settle_due(backing: &mut dyn AskBacking, now_ms: u64) -> Result<(), AsksFailed> {
    for id in backing.due(now_ms)? {
        backing.change(&id, &mut |ask, shelf| settle(ask, now_ms, shelf))?;
    }
    Ok(())
}

fn expire(ask: &mut KeptAsk, now_ms: u64) {
    if ask.state == AskState::Pending && ask.deadline_ms <= now_ms {
        ask.state = AskState::Expired;
    }
}

fn answered(ask: &mut KeptAsk, answer: &Answer, now_ms: u64, shelf: &mut dyn Shelf) -> Result<Delivery, NotAnswered> {
    match &ask.state {
        AskState::Pending => {}
        AskState::Expired => return Err(NotAnswered::Expired),
        answered @ AskState::Answered { .. } => return Err(NotAnswered::Already(answered.clone())),
    }
    let lacks = || ask.question.wants_other_than(&answer.roles);
    if let (Decision::Allow(_), Some(why)) = (answer.decision, lacks()) {
        return Err(NotAnswered::WithoutRole(why));
    }
    let approver = bounded(&ask.question.named(&answer.approver, &answer.roles));
    let outcome = match answer.decision {
        Decision::Allow(scope) if !ask.question.options.contains(&scope) => {
            return Err(NotAnswered::NotOffered(ask.question.options.clone()));
        }
        _ if answer.own => Delivery::Delivered,
        _ if ask.is_awaited(now_ms) => Delivery::Waiting,
        Decision::Deny => Delivery::Delivered,
        Decision::Allow(scope) => {
            if let Some(why) = cannot_outlive(&ask.question) {
                return Err(NotAnswered::TooLate(why));
            }
            if scope != Remember::Never {
                return Err(NotAnswered::NotOffered(vec![Remember::Never]));
            }
            Delivery::Granted(grant(ask, &approver, now_ms, shelf)?)
        }
    };
    ask.state = AskState::Answered { decision: answer.decision, approver, at_ms: now_ms, outcome: outcome.clone() };
    Ok(outcome)
}

/// Why an allow of this question is worth nothing once its call has ended.
fn cannot_outlive(question: &Question) -> Option<&'static str> {
    if !question.agreement.lasts {
        Some("the question comes from a failure or a strict review, which has to be answered while the call waits")
    } else if question.kind != Kind::Tool {
        Some("only the call of a tool can be made again")
    } else {
        None
    }
}

fn grant(ask: &KeptAsk, approver: &str, now_ms: u64, shelf: &mut dyn Shelf) -> Result<String, AsksFailed> {
    let agreement = &ask.question.agreement;
    let id = format!("grant_{}", uuid::Uuid::now_v7().simple());
    shelf.put(Grant {
        id: id.clone(),
        subject: agreement.subject.clone(),
        answered: agreement.answered.clone(),
        arguments: Some(agreement.arguments),
        scope: Remember::Never,
        expires_ms: now_ms.saturating_add(ONCE_GRANT_MS),
        approver: approver.to_owned(),
    })?;
    Ok(id)
}

/// Whoever waits comes for the answer.
fn collect(ask: &mut KeptAsk, now_ms: u64, shelf: &mut dyn Shelf) -> Result<Polled, AsksFailed> {
    let AskState::Answered { decision, approver, outcome, .. } = &mut ask.state else {
        return Ok(if ask.state == AskState::Pending {
            ask.live_until_ms = now_ms.saturating_add(LEASE_MS);
            Polled::Nothing
        } else {
            Polled::Over
        });
    };
    let there = match outcome {
        Delivery::Waiting => true,
        // The lease was over, and yet somebody waits: a machine that slept. The grant is this call's, if it is still there.
        Delivery::Granted(id) => shelf.take(id)?,
        Delivery::Delivered | Delivery::Lost => false,
    };
    if !there {
        return Ok(Polled::Over);
    }
    *outcome = Delivery::Delivered;
    Ok(Polled::Answer { decision: *decision, approver: approver.clone() })
}

/// Ends what is over: the deadline, and an answer that nobody came for.
fn settle(ask: &mut KeptAsk, now_ms: u64, shelf: &mut dyn Shelf) -> Result<(), AsksFailed> {
    expire(ask, now_ms);
    if ask.is_awaited(now_ms) {
        return Ok(());
    }
    let AskState::Answered { decision, approver, outcome: Delivery::Waiting, at_ms } = ask.state.clone() else {
        return Ok(());
    };
    let outcome = match decision {
        Decision::Deny => Delivery::Delivered,
        // What was agreed for longer is no more than the one call that was never made.
        Decision::Allow(_) if cannot_outlive(&ask.question).is_none() => {
            Delivery::Granted(grant(ask, &approver, now_ms, shelf)?)
        }
        Decision::Allow(_) => Delivery::Lost,
    };
    ask.state = AskState::Answered { decision, approver, at_ms, outcome };
    Ok(())
}

fn bounded(approver: &str) -> String {
    crate::model::text::shown(approver, MAX_APPROVER)
}
