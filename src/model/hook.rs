//! Hooks: commands of a layer that are run around a call. What happened, which tools a hook is for, and what one said.
//!
//! Pure: who starts the command is an adapter, who asks which hooks at what point is the pipeline.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::decision::microseconds;
use super::text;
use super::verdict::{MAX_REASON, Source};

/// How long a hook may run where nobody says. Source: approval-results 3.2.
pub const DEFAULT_HOOK_TIMEOUT: Duration = Duration::from_secs(600);

/// When a hook is run. The names are those that users of agents know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum HookEvent {
    /// Before a call's arguments are parsed: may block it, replace its arguments, or add context.
    PreToolUse,
    /// When somebody would be asked: may allow or deny.
    PermissionRequest,
    /// After a success: may block the answer, give feedback in its place, or add context.
    PostToolUse,
}

impl HookEvent {
    /// Returns the name as configuration and programs read it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PreToolUse => "PreToolUse",
            Self::PermissionRequest => "PermissionRequest",
            Self::PostToolUse => "PostToolUse",
        }
    }
}

/// What the failure of a `PreToolUse` hook means. No failure ever counts as consent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HookFailureMeans {
    /// The call is refused.
    #[default]
    Block,
    /// The call goes on, and the record says that the hook failed.
    Continue,
}

/// A hook's program that ran to its end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HookExit {
    /// Its exit code.
    pub code: i32,
    /// What it printed, whole, at most the adapter's bound.
    pub stdout: String,
    /// What it printed as errors, likewise.
    pub stderr: String,
}

/// Why a hook said nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HookFaultCode {
    /// Its entry is broken, its program is missing, or is not the one that was trusted.
    Missing,
    /// It could not be started.
    Spawn,
    /// It ran for longer than it may.
    Timeout,
    /// It ended by a signal.
    Signal,
    /// It ended with another exit code than 0 and 2, or with 2 and no reason.
    Exit,
    /// It printed more than it may.
    OutputTooLarge,
    /// It printed what looks like JSON and is not the object that its event has (R18).
    OutputInvalid,
}

impl HookFaultCode {
    /// Returns the code as it is written everywhere.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Spawn => "spawn",
            Self::Timeout => "timeout",
            Self::Signal => "signal",
            Self::Exit => "exit",
            Self::OutputTooLarge => "output-too-large",
            Self::OutputInvalid => "output-invalid",
        }
    }
}

/// A hook's failure.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, thiserror::Error)]
#[error("{}: {detail}", code.as_str())]
pub struct HookFault {
    /// The stable code.
    pub code: HookFaultCode,
    /// The detail for people and records; never for the model.
    pub detail: String,
}

impl HookFault {
    /// Makes a fault; the detail is bounded and made visible.
    #[must_use]
    pub fn new(code: HookFaultCode, detail: impl AsRef<str>) -> Self {
        Self { code, detail: text::shown(detail.as_ref(), MAX_REASON) }
    }
}

/// What one hook said, as it is recorded. Holds no arguments and no text of the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HookVoice {
    /// Layer and name of the hook; the digest is that of its program, where it has one.
    pub source: Source,
    /// When it was run.
    pub event: HookEvent,
    /// What it said, or how it failed.
    #[serde(flatten)]
    pub said: HookSaid,
    /// How long it ran; written as whole microseconds.
    #[serde(rename = "time_us", serialize_with = "microseconds")]
    pub time: Duration,
}

/// What a hook's answer comes to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "said")]
pub enum HookSaid {
    /// No opinion.
    Nothing,
    /// `PermissionRequest`: the call may run. `counts` is false where its layer may not say so (R18).
    Allow {
        /// Whether it counted.
        counts: bool,
    },
    /// `PermissionRequest`: it may not run.
    Deny {
        /// Why, in the hook's words.
        reason: String,
    },
    /// The call, or its answer, is blocked.
    Block {
        /// Why, in the hook's words.
        reason: String,
    },
    /// `PreToolUse`: goes on, perhaps with other arguments and more context; `PostToolUse`: likewise.
    Change {
        /// Whether it replaced the arguments, or the text that the model reads.
        replaced: bool,
        /// Whether it added context.
        context: bool,
    },
    /// It failed.
    Failed(HookFault),
}
