//! Decision point 3: what of an answer may pass?
//!
//! A component sees the texts of an answer as a list of targets and answers with edits, which only remove: it never
//! supplies content (R28, R29). What a component that fails means is fixed: the answer is withheld.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Serialize;

use super::approval::{Kind, LogLine, Usage};
use crate::model::caller::Caller;
use crate::model::name::ToolRef;
use crate::model::tool::ServerIdentity;
use crate::model::verdict::{Fault, Label, RuleId};

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

/// One text of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Where it stands.
    pub place: Place,
    /// Its RFC 6901 pointer in the answer; a marked form for what is no value of its own (`model` of the answer says which).
    pub pointer: String,
    /// The text, as all edits before have left it.
    pub text: Arc<str>,
}

/// What a sanitiser may know of an answer.
#[derive(Debug, Clone)]
pub struct OutputFacts {
    /// What was called.
    pub kind: Kind,
    /// Raw server and tool.
    pub tool: ToolRef,
    /// What the server is; for matching, components do not see it.
    pub identity: ServerIdentity,
    /// Who called.
    pub caller: Caller,
    /// Whether it is an error.
    pub is_error: bool,
    /// All its texts.
    pub targets: Vec<Target>,
    /// The labels of the caller's principal.
    pub labels: Arc<[Label]>,
    /// Milliseconds since the Unix epoch; one value for the whole answer.
    pub now_ms: u64,
}

impl OutputFacts {
    /// Returns the length of all texts together, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.targets.iter().map(|target| target.text.len()).sum()
    }
}

/// A place that a pattern was found at, on character boundaries. The order is that of place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The pattern's index.
    pub pattern: u32,
    /// The first byte.
    pub start: u32,
    /// The byte after the last.
    pub end: u32,
}

impl Ord for Span {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.start, self.end, self.pattern).cmp(&(other.start, other.end, other.pattern))
    }
}

impl PartialOrd for Span {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// What a removed text was.
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
}

/// One edit. Indexes and positions refer to the component's own input (R29).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Edit {
    /// A byte range becomes a placeholder.
    Replace {
        /// The target's index.
        target: u32,
        /// The first byte.
        start: u32,
        /// The byte after the last.
        end: u32,
        /// What it was.
        class: Class,
    },
    /// The target goes.
    Drop {
        /// The target's index.
        target: u32,
    },
    /// What follows a byte goes.
    Truncate {
        /// The target's index.
        target: u32,
        /// The bytes that stay.
        keep: u32,
    },
}

/// What a sanitiser says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Everything may pass.
    Pass,
    /// These edits, and the rest may pass. Not checked yet.
    Edit(Vec<Edit>),
    /// Nothing may pass; the text is for people and records.
    Withhold(String),
}

/// A sanitiser's answer, with what it cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sanitised {
    /// The answer with its rule, or the failure.
    pub result: Result<(Verdict, Option<RuleId>), Fault>,
    /// Labels that the principal carries before the answer is shown.
    pub labels: Vec<Label>,
    /// What it logged.
    pub log: Vec<LogLine>,
    /// What it used.
    pub usage: Usage,
}

impl Sanitised {
    /// The answer of a component that failed before it could run.
    #[must_use]
    pub fn failed(fault: Fault) -> Self {
        Self { result: Err(fault), labels: Vec::new(), log: Vec::new(), usage: Usage::default() }
    }
}

/// One sanitiser, ready to be asked. The contract is that of
/// [`ApprovalComponent`](super::approval::ApprovalComponent).
#[async_trait]
pub trait SanitiserComponent: Send + Sync {
    /// Looks at one answer.
    async fn sanitise(&self, facts: Arc<OutputFacts>) -> Sanitised;
}
