//! What sanitisers said of an answer, without a word of what they removed.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::decision::microseconds;
use super::digest::Digest;
use super::verdict::{Fault, RuleId, Source};

/// Where a text stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// A text block.
    Text,
    /// `structuredContent`.
    Structured,
    /// An embedded resource.
    Embedded,
    /// A resource link.
    Link,
    /// A protocol error.
    Error,
    /// `_meta`, annotations and whatever stands nowhere else.
    Metadata,
    /// A progress message.
    Progress,
    /// A log message.
    Log,
    /// A tool's definition.
    Description,
}

/// What a removed text was. **The order of the variants is that of weight, heaviest first**: a run that several classes claim
/// shows the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// A key, token or password.
    Secret,
    /// Something about a person.
    Personal,
    /// An instruction to the model.
    Instruction,
    /// An address.
    Address,
    /// Anything else.
    Other,
}

impl Class {
    /// All classes, heaviest first.
    pub const ALL: [Self; 5] = [Self::Secret, Self::Personal, Self::Instruction, Self::Address, Self::Other];

    /// Returns the word as placeholders show it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Secret => "secret",
            Self::Personal => "personal",
            Self::Instruction => "instruction",
            Self::Address => "address",
            Self::Other => "other",
        }
    }

    /// Returns what stands where a text of this class was (R30): the host's own words, never empty, in delimiters that no
    /// pattern of a secret holds.
    #[must_use]
    pub fn placeholder(self) -> &'static str {
        match self {
            Self::Secret => "[redacted: secret]",
            Self::Personal => "[redacted: personal]",
            Self::Instruction => "[redacted: instruction]",
            Self::Address => "[redacted: address]",
            Self::Other => "[redacted: other]",
        }
    }
}

/// What one sanitiser said of one answer. Holds no text of the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SanitiserVoice {
    /// The component.
    pub source: Source,
    /// Its answer, or its failure.
    #[serde(flatten)]
    pub said: SanitiserSaid,
    /// Whether it was only observed: recorded, never applied (R16).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub observed: bool,
    /// Whether this was its second look, because a less trusted layer had edited (R30).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
    /// The fuel that it used.
    pub fuel: u64,
    /// The time that it took in the sandbox; written as whole microseconds.
    #[serde(rename = "time_us", serialize_with = "microseconds")]
    pub time: Duration,
    /// The digest of all that the host told it, in order (R35).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heard: Option<Digest>,
}

/// An answer or a failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "said")]
pub enum SanitiserSaid {
    /// Everything may pass.
    Pass {
        /// The rule.
        #[serde(skip_serializing_if = "Option::is_none")]
        rule: Option<RuleId>,
    },
    /// Something had to go.
    Edit {
        /// The rule.
        #[serde(skip_serializing_if = "Option::is_none")]
        rule: Option<RuleId>,
        /// How many spans of which class.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        spans: BTreeMap<Class, usize>,
        /// How many whole targets.
        #[serde(skip_serializing_if = "is_zero")]
        dropped: usize,
        /// How many ends of targets.
        #[serde(skip_serializing_if = "is_zero")]
        truncated: usize,
    },
    /// Nothing may pass.
    Withhold {
        /// The rule.
        #[serde(skip_serializing_if = "Option::is_none")]
        rule: Option<RuleId>,
        /// The component's words: for people and records only (R30), bounded, control characters visible.
        text: String,
    },
    /// It failed, or its edits could not be applied: nothing passes.
    Fault(Fault),
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}
