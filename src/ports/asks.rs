//! The queue of open questions: kept with the state, so that a person can answer from another terminal, and after the
//! process that asked has gone (R21).
//!
//! A question is pending, then answered or expired; that is one compare-and-set, and the first valid answer wins. Whoever
//! waits for it holds a lease and renews it. An allow under a lease is for the waiting call; one without becomes a grant for
//! one call, if the agreement lasts. No answer becomes both.

use std::collections::BTreeSet;

use serde::Serialize;

use super::reviewer::Question;
use crate::model::caller::TenantId;
use crate::model::role::Role;
use crate::model::verdict::Remember;

/// The most pending questions of one tenant. As many ended ones are kept beside them.
pub const MAX_PENDING: usize = 1000;
/// The largest question that is kept, in bytes of its JSON.
pub const MAX_KEPT_QUESTION: usize = 64 * 1024;
/// The longest text that says who answered, in characters.
pub const MAX_APPROVER: usize = 256;
/// How long a lease holds. Whoever waits renews it in half that time.
pub const LEASE_MS: u64 = 10 * 1000;
/// How long a grant for one call holds that came of a late answer.
pub const ONCE_GRANT_MS: u64 = 24 * 60 * 60 * 1000;
/// How long an ended question is kept.
pub const ENDED_LIFE_MS: u64 = 7 * 24 * 60 * 60 * 1000;

/// The queue cannot be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the queue of questions cannot be used: {0}")]
pub struct AsksFailed(pub String);

/// A question as it is kept.
#[derive(Debug, Clone, Serialize)]
pub struct KeptAsk {
    /// The question.
    pub question: Question,
    /// When it was asked, in milliseconds since the Unix epoch, as everything here.
    pub created_ms: u64,
    /// Until when it can be answered.
    pub deadline_ms: u64,
    /// Until when whoever asked is known to wait; 0: it has gone.
    pub live_until_ms: u64,
    /// What became of it.
    pub state: AskState,
}

impl KeptAsk {
    /// Whether somebody waits for the answer.
    #[must_use]
    pub fn is_awaited(&self, now_ms: u64) -> bool {
        self.live_until_ms > now_ms
    }

    /// Whether it can be answered.
    #[must_use]
    pub fn is_open(&self, now_ms: u64) -> bool {
        self.state == AskState::Pending && self.deadline_ms > now_ms
    }
}

/// What became of a question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "state")]
pub enum AskState {
    /// Nobody has answered.
    Pending,
    /// Somebody has.
    Answered {
        /// What was said.
        decision: Decision,
        /// Who said it, at most [`MAX_APPROVER`] characters.
        approver: String,
        /// When.
        at_ms: u64,
        /// Where the answer went.
        outcome: Delivery,
    },
    /// Nobody answered in time.
    Expired,
}

/// What a person says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    /// The call may run, and this is how long that is remembered.
    Allow(Remember),
    /// It may not.
    Deny,
}

/// Where an answer went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Delivery {
    /// It is there for whoever waits.
    Waiting,
    /// Whoever waited has it; or it was a refusal, and nobody waited.
    Delivered,
    /// Nobody waited: it is the grant with this id.
    Granted(String),
    /// Nobody came for it, and it could not become a grant.
    Lost,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// What is said.
    pub decision: Decision,
    /// Who says it.
    pub approver: String,
    /// What they are, as far as somebody vouches for it (R20). The queue compares them with the question, and does not keep them.
    pub roles: BTreeSet<Role>,
    /// Whether it comes from a channel of whoever waits, and so is delivered at once.
    pub own: bool,
}

/// Why a question was not queued.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotQueued {
    /// The tenant has as many as it may.
    #[error("{MAX_PENDING} questions are pending already")]
    Full,
    /// It is too large.
    #[error("the question has {0} bytes, more than the {MAX_KEPT_QUESTION} that are kept")]
    TooLarge(usize),
    /// The queue failed.
    #[error(transparent)]
    Failed(#[from] AsksFailed),
}

/// Why an answer does not count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAnswered {
    /// There is no such question.
    #[error("there is no such question")]
    Unknown,
    /// Somebody was first.
    #[error("it was answered before")]
    Already(AskState),
    /// Its deadline is over.
    #[error("its deadline is over")]
    Expired,
    /// Whoever allows has none of the roles that a layer wants for its asks (R20); the text names both.
    #[error("{0}")]
    WithoutRole(String),
    /// The answer is none of those that were offered.
    #[error("that was not offered")]
    NotOffered(Vec<Remember>),
    /// Whoever asked has gone, and the agreement does not outlive the call.
    #[error("it is too late: whoever asked has gone, and {0}")]
    TooLate(&'static str),
    /// The queue failed.
    #[error(transparent)]
    Failed(#[from] AsksFailed),
}

/// Keeps questions until they are answered or expire. Methods are short and may be called from a drop guard.
pub trait Asks: Send + Sync {
    /// Queues a question, with a lease for whoever waits.
    ///
    /// # Errors
    /// [`NotQueued`]; the question is asked elsewhere, or not at all.
    fn open(&self, question: &Question, now_ms: u64, deadline_ms: u64) -> Result<(), NotQueued>;

    /// Answers a question, once and for all.
    ///
    /// # Errors
    /// [`NotAnswered`]; nothing has changed then, except that a question whose deadline is over is expired.
    fn answer(&self, id: &str, answer: &Answer, now_ms: u64) -> Result<Delivery, NotAnswered>;

    /// For whoever waits: takes what there is, once, and renews the lease if there is nothing.
    ///
    /// # Errors
    /// [`AsksFailed`].
    fn poll(&self, id: &str, now_ms: u64) -> Result<Polled, AsksFailed>;

    /// For whoever waits: goes. What was answered meanwhile and allows becomes a grant for one call.
    ///
    /// # Errors
    /// [`AsksFailed`]; the lease ends by itself then.
    fn leave(&self, id: &str, now_ms: u64) -> Result<(), AsksFailed>;

    /// Returns a question.
    ///
    /// # Errors
    /// [`AsksFailed`].
    fn get(&self, id: &str) -> Result<Option<KeptAsk>, AsksFailed>;

    /// Returns a tenant's questions, the newest first, at most twice [`MAX_PENDING`]: those that can be answered, or all.
    ///
    /// # Errors
    /// [`AsksFailed`].
    fn list(&self, tenant: &TenantId, all: bool, now_ms: u64) -> Result<Vec<KeptAsk>, AsksFailed>;

    /// Ends what is over: deadlines, and answers whose caller has gone without them.
    ///
    /// # Errors
    /// [`AsksFailed`].
    fn settle(&self, now_ms: u64) -> Result<(), AsksFailed>;
}

/// What whoever waits finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Polled {
    /// No answer yet.
    Nothing,
    /// The answer; nobody else gets it.
    Answer {
        /// What was said.
        decision: Decision,
        /// Who said it.
        approver: String,
    },
    /// There will be none: expired, unknown, or somebody else has it.
    Over,
}
