//! The one clean answer of a call: what every view, item and record below sees.
//!
//! Sanitiser components are later work; their place is [`clean`], the only function that opens a [`Raw`]. Errors go through
//! it too: a protocol error's message is as untrusted as an answer.

use crate::model::answer::{Answer, ProtocolError, ToolResult};
use crate::model::outcome::{Code, Failure, Outcome, Stage};
use crate::model::text;
use crate::pipeline::dispatch::call::Raw;

/// The longest message of a protocol error that is shown, in characters.
const MAX_ERROR_MESSAGE: usize = 2048;

/// The `_meta` key by which this host says that and why it refused.
const REFUSAL: &str = "portcullis/refusal";

/// An answer that may be shown.
#[derive(Debug, Clone)]
pub struct Clean {
    answer: CleanAnswer,
    result: ToolResult,
    outcome: Outcome,
}

/// What a clean answer is made of.
#[derive(Debug, Clone)]
pub enum CleanAnswer {
    /// The tool's own result.
    Result(ToolResult),
    /// The upstream's protocol error.
    Protocol(ProtocolError),
    /// A failure of ours.
    Failure(Failure),
}

/// Cleans an answer of an upstream.
#[must_use]
pub fn clean(raw: Raw) -> Clean {
    let (answer, target) = raw.into_parts();
    match answer {
        Answer::Result(result) => {
            // An upstream may not speak as the host: a forged refusal would look like ours.
            let result = result.without_meta(REFUSAL);
            let outcome = if result.is_error() { Outcome::ToolError } else { Outcome::Answered };
            Clean { answer: CleanAnswer::Result(result.clone()), result, outcome }
        }
        Answer::Error(error) => {
            let said = text::shown(&error.message, MAX_ERROR_MESSAGE);
            let tool = text::shown(&target.to_string(), 256);
            let message = format!("tool call error: tool call failed for `{tool}`: {said} (code {})", error.code);
            let failure = Failure::new(Stage::Call, Code::ProtocolError, message);
            Clean { answer: CleanAnswer::Protocol(error), ..Clean::of_failure(failure) }
        }
    }
}

impl Clean {
    /// The answer that stands for a failure: one text block, `isError`, and who refused in `_meta`.
    #[must_use]
    pub fn of_failure(failure: Failure) -> Self {
        let result = ToolResult::ours(&failure.message, true, failure.meta());
        Self { answer: CleanAnswer::Failure(failure.clone()), result, outcome: Outcome::Failed(failure) }
    }

    /// Returns what the answer is made of.
    #[must_use]
    pub fn answer(&self) -> &CleanAnswer {
        &self.answer
    }

    /// Returns the answer as a tool result; for protocol errors and failures, the one that stands for them.
    #[must_use]
    pub fn result(&self) -> &ToolResult {
        &self.result
    }

    /// Returns how the call ended.
    #[must_use]
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }
}
