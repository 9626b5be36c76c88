//! Asking somebody whether a call may run.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;

use super::approval::Kind;
use crate::model::digest::Digest;
use crate::model::name::{CallId, ToolRef};
use crate::model::verdict::{Remember, Reviewers, StandingAsk};

/// A question for a person: everything that is needed to decide, made fit to be shown.
#[derive(Debug, Clone, Serialize)]
pub struct Question {
    /// The question's own id; concurrent questions are independent.
    pub id: String,
    /// The call.
    pub call: CallId,
    /// What would be sent: a call, or an answer to what the tool's server asked.
    pub kind: Kind,
    /// Raw server and tool.
    pub tool: ToolRef,
    /// The tool's title as the sanitisers leave it, bounded, control characters visible.
    pub title: Option<String>,
    /// The arguments as sorted JSON, bounded, control characters visible.
    pub arguments: String,
    /// The files that the arguments name, as they were opened; at most 16.
    pub files: Vec<AskedFile>,
    /// What changed of the tool's definition, and of other tools of its server, since they were accepted: lines of a
    /// difference, bounded, control characters visible (R24).
    pub changes: Arc<[String]>,
    /// Whether the arguments or the files were cut. Then nothing is remembered (R22).
    pub cut: bool,
    /// Who asks and why, in order of trust.
    pub asks: Vec<StandingAsk>,
    /// Who must agree.
    pub reviewers: Reviewers,
    /// What may be chosen besides refusing; [`Remember::Never`] means "allow this call". Never empty.
    pub options: Vec<Remember>,
    /// How long an answer is waited for.
    pub deadline: Duration,
}

/// A file that would be uploaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AskedFile {
    /// The argument, bounded, control characters visible.
    pub argument: String,
    /// The path as the call has it, bounded, control characters visible.
    pub path: String,
    /// How many bytes it has.
    pub length: u64,
    /// Their digest.
    pub sha256: Digest,
}

/// What came of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// One of the offered options was chosen.
    Allowed {
        /// Which.
        remember: Remember,
        /// Who chose, in the channel's own terms.
        approver: String,
    },
    /// Refused, or an answer that chose nothing that was offered (R20).
    Declined,
    /// The asking was called off by whoever was asked.
    Cancelled,
    /// Nobody answered in time.
    Expired,
    /// There is nobody to ask, or this channel cannot ask.
    Nobody,
}

/// A channel to a person. Contract: answers within the question's deadline; dropping the future withdraws the question.
#[async_trait]
pub trait Reviewer: Send + Sync {
    /// Asks and waits.
    async fn ask(&self, question: &Question) -> Reply;
}

/// The channel of a process that has none.
#[derive(Debug, Clone, Copy, Default)]
pub struct NobodyThere;

#[async_trait]
impl Reviewer for NobodyThere {
    async fn ask(&self, _question: &Question) -> Reply {
        Reply::Nobody
    }
}
