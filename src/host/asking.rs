//! Asking in two places at once: a channel of the session, and the queue that `approvals` answers.
//!
//! The first valid answer wins, and the queue decides which that is: a channel's answer goes through it too. A channel that
//! reaches nobody leaves the question in the queue, where a patient desk waits for it. Whoever waits holds a lease there; when the caller goes, the future is
//! dropped, the question is without requester and stays until its deadline (R21). A channel that calls the asking off
//! ends the call in the same way. A queue that cannot take the question is not used, and the log says so.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::model::posture::Channel;
use crate::model::role::Role;
use crate::model::verdict::Remember;
use crate::ports::asks::{Answer, Asks, Decision, NotAnswered, Polled};
use crate::ports::clock::Clock;
use crate::ports::reviewer::{Question, Reply, Reviewer, Roles};

/// How often the queue is looked at.
const LOOK: Duration = Duration::from_millis(300);
/// Who refused, where the channel does not say.
const CHANNEL: &str = "the session's own channel";

/// The queue, as whoever asks uses it. Cheap to clone.
#[derive(Clone)]
pub struct Desk {
    asks: Arc<dyn Asks>,
    clock: Arc<dyn Clock>,
    patient: bool,
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Desk")
    }
}

impl Desk {
    /// Makes a desk over a queue.
    #[must_use]
    pub fn new(asks: Arc<dyn Asks>, clock: Arc<dyn Clock>) -> Self {
        Self { asks, clock, patient: false }
    }

    /// Waits for an answer from the queue even where the channel reaches nobody. Else such a call ends at once; its question
    /// stays, and an allow that comes later holds for the same call once (R21).
    #[must_use]
    pub fn patient(self) -> Self {
        Self { patient: true, ..self }
    }

    /// Returns a channel that asks here, and through `channel`.
    #[must_use]
    pub fn beside(&self, channel: Arc<dyn Reviewer>) -> Arc<dyn Reviewer> {
        Arc::new(Asking { channel, desk: self.clone() })
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.clock.now().as_millisecond()).unwrap_or(0)
    }

    /// Waits for an answer in the queue. Ends when there can be none; the deadline ends it at the latest.
    async fn wait(&self, id: &str) -> Reply {
        let mut failing = false;
        loop {
            tokio::time::sleep(LOOK).await;
            match self.asks.poll(id, self.now_ms()) {
                Ok(Polled::Nothing) => failing = false,
                Ok(polled) => return reply(polled),
                Err(error) if !failing => {
                    failing = true;
                    tracing::warn!(%error, "answers of other terminals are not seen");
                }
                Err(_) => {}
            }
        }
    }

    /// The channel has an answer: it counts if it is the first.
    fn settle(&self, question: &Question, decision: Decision, by: By) -> Reply {
        let By { approver, channel, roles } = by;
        let answer = Answer { decision, approver: approver.clone(), roles: roles.clone(), own: true };
        let now_ms = self.now_ms();
        match self.asks.answer(&question.id, &answer, now_ms) {
            Ok(_) => said(decision, approver, channel, Roles::Of(roles)),
            Err(NotAnswered::Already(_)) => match self.asks.poll(&question.id, now_ms) {
                Ok(polled) => reply(polled),
                Err(error) => unsettled(decision, &error),
            },
            Err(NotAnswered::Expired) => Reply::Expired,
            Err(error) => unsettled(decision, &error),
        }
    }
}

/// It cannot be told whether somebody else has refused meanwhile: an allow does not count.
fn unsettled(decision: Decision, error: &dyn std::error::Error) -> Reply {
    if decision == Decision::Deny {
        return Reply::Declined;
    }
    tracing::warn!(error = %error, "an answer could not be noted in the queue, and so does not count");
    Reply::Cancelled
}

fn reply(polled: Polled) -> Reply {
    match polled {
        Polled::Answer { decision, approver } => said(decision, approver, Channel::Queue, Roles::Compared),
        Polled::Nothing | Polled::Over => Reply::Expired,
    }
}

/// Who answered through a channel.
struct By {
    approver: String,
    channel: Channel,
    roles: BTreeSet<Role>,
}

fn said(decision: Decision, approver: String, channel: Channel, roles: Roles) -> Reply {
    match decision {
        Decision::Allow(remember) => Reply::Allowed { remember, approver, channel, roles },
        Decision::Deny => Reply::Declined,
    }
}

struct Asking {
    channel: Arc<dyn Reviewer>,
    desk: Desk,
}

#[async_trait]
impl Reviewer for Asking {
    async fn ask(&self, question: &Question) -> Reply {
        if !question.may_be_answered_by(Channel::Queue) {
            return self.channel.ask(question).await;
        }
        let now_ms = self.desk.now_ms();
        let lives_ms = u64::try_from(question.deadline.as_millis()).unwrap_or(u64::MAX);
        if let Err(why) = self.desk.asks.open(question, now_ms, now_ms.saturating_add(lives_ms)) {
            tracing::warn!(%why, "a question is not in the queue, and `approvals` cannot answer it");
            return self.channel.ask(question).await;
        }
        let waits = Waits { desk: &self.desk, id: &question.id };
        // Dropping the one that lost withdraws its question.
        let said = tokio::select! {
            biased;
            said = self.channel.ask(question) => said,
            said = self.desk.wait(waits.id) => return said,
        };
        // An allow of somebody without the role reaches nobody who may allow: the queue may yet (R20).
        let said = match said {
            Reply::Allowed { roles: Roles::Of(roles), .. } if question.wants_other_than(&roles).is_some() => {
                Reply::Nobody
            }
            said => said,
        };
        match said {
            Reply::Allowed { remember, approver, channel, roles: Roles::Of(roles) }
                if question.options.contains(&remember) && question.may_be_answered_by(channel) =>
            {
                self.desk.settle(question, Decision::Allow(remember), By { approver, channel, roles })
            }
            Reply::Allowed { .. } | Reply::Declined => {
                let by = By { approver: CHANNEL.to_owned(), channel: Channel::Program, roles: BTreeSet::new() };
                self.desk.settle(question, Decision::Deny, by)
            }
            Reply::Nobody if self.desk.patient => self.desk.wait(waits.id).await,
            Reply::Nobody => said,
            Reply::Cancelled | Reply::Expired => said,
        }
    }

    fn widest(&self) -> Remember {
        self.channel.widest()
    }
}

/// Somebody waits, until this is dropped.
struct Waits<'a> {
    desk: &'a Desk,
    id: &'a str,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.desk.asks.leave(self.id, self.desk.now_ms()) {
            tracing::warn!(%error, "the queue does not know that a caller has gone, until its lease ends");
        }
    }
}

#[cfg(test)]
#[path = "asking_tests.rs"]
mod tests;
