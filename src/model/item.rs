//! Lifecycle items: one started and exactly one completed for each call, on every path.
//!
//! Fields: approval-results section 7. An item's arguments are those before any rewriting, `null` when there are none.

use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::app::ToolFacts;
use super::arguments::Arguments;
use super::caller::Caller;
use super::cleaning::SanitiserVoice;
use super::hook::HookVoice;
use super::name::{CallId, Target};
use super::outcome::{Code, Durations, Failure, Outcome};
use super::review::ReviewVoice;

/// The state that an item reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Status {
    /// The call has started.
    InProgress,
    /// The tool answered.
    Completed,
    /// The tool failed, or there is no answer of it.
    Failed,
}

/// What both items of a call say about it.
#[derive(Debug, Clone, Serialize)]
pub struct CallInfo {
    /// The call.
    pub id: CallId,
    /// What was called.
    #[serde(flatten)]
    pub tool: Target,
    /// Who called.
    pub caller: Caller,
    /// The arguments, before any rewriting. Records leave them out unless asked.
    #[serde(serialize_with = "object_or_null")]
    pub arguments: Arguments,
    /// What the catalog knows about the tool; nothing where it does not know it.
    #[serde(flatten)]
    pub facts: ToolFacts,
}

fn object_or_null<S: serde::Serializer>(arguments: &Arguments, serializer: S) -> Result<S::Ok, S::Error> {
    arguments.object().serialize(serializer)
}

impl CallInfo {
    /// The info of a call whose tool is not known: unavailable, or failed before it was looked up.
    #[must_use]
    pub fn unknown(id: CallId, tool: Target, caller: Caller, arguments: Arguments) -> Self {
        Self { id, tool, caller, arguments, facts: ToolFacts::default() }
    }

    /// Adds what the catalog knows about the tool.
    #[must_use]
    pub fn with_facts(self, facts: ToolFacts) -> Self {
        Self { facts, ..self }
    }
}

/// The item that opens a call.
#[derive(Debug, Clone, Serialize)]
pub struct StartedItem {
    /// The call.
    #[serde(flatten)]
    pub call: CallInfo,
    /// Always [`Status::InProgress`].
    pub status: Status,
    /// When.
    pub started_at: Timestamp,
}

/// The item that closes a call.
#[derive(Debug, Clone, Serialize)]
pub struct CompletedItem {
    /// The call.
    #[serde(flatten)]
    pub call: CallInfo,
    /// Completed or failed.
    pub status: Status,
    /// How it ended.
    pub outcome: Outcome,
    /// When.
    pub completed_at: Timestamp,
    /// How long it took.
    pub durations: Durations,
    /// The arguments as they were sent, where that is not as they were given: with references in the place of files. The
    /// references may be secrets; records leave them out unless asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_input: Option<Arc<serde_json::Map<String, Value>>>,
    /// What sanitisers said of the answer, in the order in which they were asked; nothing of what they removed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sanitisers: Vec<SanitiserVoice>,
    /// The answer, at most a megabyte of it, as the sanitisers left it. Records leave it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Arc<serde_json::Map<String, Value>>>,
    /// Why there is no result to show: the call failed, or its answer was withheld. The status is the upstream's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ItemError>,
    /// What hooks said before and while it was decided; what `PostToolUse` hooks say comes after the item, in a record.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<HookVoice>,
    /// What came of the auto reviews.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reviews: Vec<ReviewVoice>,
    /// Whether the call came so far that it counts as polluting its thread's memory; only where the session wants to know.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub pollutes_memory: bool,
}

/// What stands in an item for a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ItemError {
    /// The sentence, at most a megabyte of it.
    pub message: String,
}

impl CompletedItem {
    /// Returns the status that belongs to an outcome.
    #[must_use]
    pub fn status_of(outcome: &Outcome) -> Status {
        match outcome {
            Outcome::Answered => Status::Completed,
            Outcome::ToolError | Outcome::Failed(_) => Status::Failed,
        }
    }

    /// Returns the failure, if the call failed without an answer of its tool.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        match &self.outcome {
            Outcome::Failed(failure) => Some(failure),
            Outcome::Answered | Outcome::ToolError => None,
        }
    }

    /// Whether the call may have run although nobody knows (a connection lost after the hand-over, a timeout).
    #[must_use]
    pub fn is_ambiguous(&self) -> bool {
        self.failure().is_some_and(|failure| matches!(failure.code, Code::Ambiguous | Code::Timeout))
    }
}

/// A lifecycle event.
#[allow(clippy::large_enum_variant, reason = "one is made for each end of a call and then borrowed")]
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Item {
    /// A call has started.
    Started(StartedItem),
    /// A call has ended.
    Completed(CompletedItem),
}
