//! What an auto reviewer says about a call.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::decision::microseconds;
use super::verdict::Source;

/// How dangerous a reviewer takes an action to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Risk {
    /// Nothing to worry about.
    Low,
    /// Some harm is possible.
    Medium,
    /// Much harm is possible.
    High,
    /// Harm that cannot be undone.
    Critical,
}

/// How far the reviewer thinks that the user wanted the action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Authorization {
    /// It cannot be told.
    #[default]
    Unknown,
    /// Hardly.
    Low,
    /// In part.
    Medium,
    /// It was asked for.
    High,
}

/// Whether the action may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Judgement {
    /// It may.
    Allow,
    /// It may not.
    Deny,
}

/// A reviewer's answer, read and checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Assessment {
    /// Whether it may run.
    pub outcome: Judgement,
    /// How dangerous it is; where the reviewer does not say, low for an allow and high for a deny.
    pub risk: Risk,
    /// How far it was wanted.
    pub authorization: Authorization,
    /// Why, in the reviewer's words: bounded, control characters visible; empty where it said nothing.
    pub rationale: String,
}

/// How one review ended, as it is recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReviewVoice {
    /// Layer and name of the reviewer.
    pub source: Source,
    /// What came of it.
    #[serde(flatten)]
    pub said: ReviewSaid,
    /// How often it was asked.
    pub attempts: u8,
    /// How long it took in all; written as whole microseconds.
    #[serde(rename = "time_us", serialize_with = "microseconds")]
    pub time: Duration,
}

/// What came of a review.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "said")]
pub enum ReviewSaid {
    /// It was assessed.
    Assessed(Assessment),
    /// There was no answer in time.
    TimedOut,
    /// No attempt gave an answer that can be read.
    Failed {
        /// Why; for people and records.
        why: String,
    },
    /// It could not be asked at all.
    Nobody {
        /// Why; for people and records.
        why: String,
    },
}
