//! The auto reviewer: a program or a model that is told of one call, and says whether it may run.

use std::sync::Arc;

use async_trait::async_trait;

use super::questions::Questions;
use crate::model::evidence::Evidence;
use crate::model::verdict::{Fault, Source};

/// The longest answer of a reviewer, in bytes.
pub const MAX_REVIEW: usize = crate::model::review::MAX_ANSWER;

/// What a reviewer is told.
#[derive(Clone)]
pub struct ReviewRequest {
    /// What it is to do, and in which form it answers: the host's own words.
    pub instructions: Arc<str>,
    /// The action: a JSON object with sorted keys, bounded. Untrusted.
    pub action: Arc<str>,
    /// What scripts of the session were answered before. Untrusted.
    pub evidence: Evidence,
    /// The client of the session, for a reviewer that asks the client's own model.
    pub client: Option<Arc<dyn Questions>>,
}

/// Why a reviewer said nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoReview {
    /// It may be better the next time: the transport failed, or the reviewer has too much to do.
    #[error("{0}")]
    Transient(String),
    /// It will be the same the next time.
    #[error("{0}")]
    Failed(String),
    /// It cannot be asked here: the client offers no sampling.
    #[error("{0}")]
    Nobody(String),
}

/// A reviewer.
///
/// Contract: gives at most [`MAX_REVIEW`] bytes; dropping the future ends what it does. Its texts hold no secrets. It need
/// not have a deadline of its own.
#[async_trait]
pub trait AutoReviewer: Send + Sync {
    /// Asks once, and returns the whole answer as text.
    ///
    /// # Errors
    /// [`NoReview`].
    async fn review(&self, request: &ReviewRequest) -> Result<String, NoReview>;
}

/// A reviewer as one layer defined it.
#[derive(Clone)]
pub struct BoundReviewer {
    /// Layer and name.
    pub source: Source,
    /// Whether its allow may take the place of a person's (R3).
    pub may_allow: bool,
    /// Whether it asks the client of the agent that is judged: it satisfies neither strict asks nor those of managed and
    /// organisation then (R22).
    pub asks_own_client: bool,
    /// Whether its denial may be appealed to a person.
    pub appeal: bool,
    /// The reviewer, or why there is none: an error, never an absence.
    pub reviewer: Result<Arc<dyn AutoReviewer>, Fault>,
}

impl std::fmt::Debug for BoundReviewer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BoundReviewer")
            .field("source", &self.source)
            .field("usable", &self.reviewer.is_ok())
            .finish_non_exhaustive()
    }
}
