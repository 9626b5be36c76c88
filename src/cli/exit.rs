//! How a command ends: its exit code, and the error that a person reads.

use std::error::Error;
use std::process::ExitCode;

use portcullis::model::outcome::{Code, Outcome};

/// The exit codes. Stable: scripts branch on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done.
    Done = 0,
    /// Failed.
    Failed = 1,
    /// Usage or configuration.
    Usage = 2,
    /// Refused by policy.
    Refused = 3,
    /// Stale or unavailable.
    Unavailable = 4,
    /// The tool answered with an error.
    ToolError = 5,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl Exit {
    /// Returns the code of a call that has ended.
    pub(crate) fn of(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Answered => Self::Done,
            Outcome::ToolError => Self::ToolError,
            Outcome::Failed(failure) => Self::of_code(failure.code),
        }
    }

    /// Returns the code of a failure.
    pub(crate) fn of_code(code: Code) -> Self {
        match code {
            Code::Denied
            | Code::Disabled
            | Code::ComponentFailed
            | Code::NeverAsks
            | Code::NobodyToAsk
            | Code::Declined
            | Code::HookBlocked
            | Code::HookDenied
            | Code::HookFailed
            | Code::ReviewDenied
            | Code::ReviewTimedOut
            | Code::ReviewFailed
            | Code::Interrupted
            | Code::GrantSpent
            | Code::AskExpired
            | Code::AskCancelled
            | Code::PoliciesUnstable
            | Code::Withheld => Self::Refused,
            Code::Stale | Code::NotAvailable | Code::NotSent => Self::Unavailable,
            Code::ProtocolError | Code::ToolError => Self::ToolError,
            Code::InvalidArguments => Self::Usage,
            Code::UnsupportedPayload
            | Code::DuplicateId
            | Code::RecordFailed
            | Code::StateFailed
            | Code::UploadFailed
            | Code::Timeout
            | Code::QuestionRefused
            | Code::Ambiguous
            | Code::Cancelled
            | Code::Internal => Self::Failed,
        }
    }
}

/// A command that could not do its work: what, why, and what to do about it.
#[derive(Debug)]
pub(crate) struct Trouble {
    /// The exit code.
    pub exit: Exit,
    /// What could not be done.
    pub what: String,
    /// Why, outermost cause first.
    pub why: Vec<String>,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Trouble {
    /// Trouble without a cause.
    pub(crate) fn new(exit: Exit, what: impl Into<String>) -> Self {
        Self { exit, what: what.into(), why: Vec::new(), hint: None }
    }

    /// Trouble that an error causes; its sources follow it.
    pub(crate) fn from_error(exit: Exit, error: &(dyn Error + 'static)) -> Self {
        let mut why = Vec::new();
        let mut next = error.source();
        while let Some(cause) = next {
            why.push(cause.to_string());
            next = cause.source();
        }
        Self { exit, what: error.to_string(), why, hint: None }
    }

    /// Trouble with a text of our own, and the error that caused it with its sources.
    pub(crate) fn caused(exit: Exit, what: impl Into<String>, error: &(dyn Error + 'static)) -> Self {
        let Self { what: cause, mut why, .. } = Self::from_error(exit, error);
        why.insert(0, cause);
        Self { exit, what: what.into(), why, hint: None }
    }

    /// Adds what to do about it.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_brings_its_causes_in_order() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Outer(#[source] std::io::Error);

        let trouble = Trouble::from_error(Exit::Failed, &Outer(std::io::Error::other("inner")));
        assert_eq!((trouble.what.as_str(), trouble.why), ("outer", vec!["inner".to_owned()]));
    }
}
