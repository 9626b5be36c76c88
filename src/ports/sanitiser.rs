//! Decision point 3: what of an answer may pass?
//!
//! A component sees the texts of an answer as a list of targets and answers with edits, which only remove: it never
//! supplies content (R28, R29). What a component that fails means is fixed: the answer is withheld.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde::Serialize;

use super::approval::{Kind, LogLine, Usage};
use crate::model::caller::Caller;
pub use crate::model::cleaning::{Class, Place};
use crate::model::cleaning::{SanitiserSaid, SanitiserVoice};
use crate::model::name::ToolRef;
use crate::model::text;
use crate::model::tool::ServerIdentity;
use crate::model::verdict::{Fault, Label, MAX_REASON, RuleId, Source};

/// One text of an answer.
///
/// What is a value of its own has its RFC 6901 pointer. The other forms begin with a word, as no such pointer does:
///
/// | form | what it is | what an edit does |
/// |---|---|---|
/// | `/content/0/text` | a string or a number | a number goes whole, whatever span of it was meant |
/// | `key:/structuredContent/a` | the key of the member at that pointer | a dropped key takes its value along |
/// | `joined:/content` | the texts of all text blocks as one, where there are several | is that of the blocks it falls on |
/// | `json:/content/0/text@17` | a string inside JSON inside the string, unescaped; its place in that string in bytes | the inner string goes whole |
///
/// The protocol's own keys where the protocol puts them, the types of blocks that it knows, and `true`, `false` and `null` are
/// no targets: they say nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Where it stands.
    pub place: Place,
    /// Where in the answer; see above.
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

impl Sanitised {
    /// Returns what was said, as records keep it: edits are counted, and nothing of the answer is in it.
    #[must_use]
    pub fn voice(&self, source: &Source, observed: bool) -> SanitiserVoice {
        let said = match &self.result {
            Ok((Verdict::Pass, rule)) => SanitiserSaid::Pass { rule: rule.clone() },
            Ok((Verdict::Edit(edits), rule)) => counted(edits, rule.clone()),
            Ok((Verdict::Withhold(why), rule)) => {
                SanitiserSaid::Withhold { rule: rule.clone(), text: text::shown(why, MAX_REASON) }
            }
            Err(fault) => SanitiserSaid::Fault(fault.clone()),
        };
        let Usage { fuel, time, heard, .. } = self.usage;
        SanitiserVoice { source: source.clone(), said, observed, again: false, fuel, time, heard }
    }
}

fn counted(edits: &[Edit], rule: Option<RuleId>) -> SanitiserSaid {
    let (mut spans, mut dropped, mut truncated) = (BTreeMap::new(), 0, 0);
    for edit in edits {
        match edit {
            Edit::Replace { class, .. } => *spans.entry(*class).or_insert(0) += 1,
            Edit::Drop { .. } => dropped += 1,
            Edit::Truncate { .. } => truncated += 1,
        }
    }
    SanitiserSaid::Edit { rule, spans, dropped, truncated }
}

/// One sanitiser, ready to be asked. The contract is that of
/// [`ApprovalComponent`](super::approval::ApprovalComponent).
#[async_trait]
pub trait SanitiserComponent: Send + Sync {
    /// Looks at one answer.
    async fn sanitise(&self, facts: Arc<OutputFacts>) -> Sanitised;
}
