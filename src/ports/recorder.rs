//! Where lifecycle items and decision records go.

use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;

use super::approval::Kind;
use super::inputs::DecisionInputs;
use crate::model::caller::{Caller, TenantId};
use crate::model::cleaning::SanitiserVoice;
use crate::model::decision::{ConnectorVoice, Decision, Voice};
use crate::model::digest::Digest;
use crate::model::hook::HookVoice;
use crate::model::item::Item;
use crate::model::name::{CallId, ToolRef};
use crate::model::review::ReviewVoice;
use crate::model::revision::{PolicySetDigest, Revision};
use crate::model::verdict::Source;

/// How an ask was settled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "by")]
pub enum Consent {
    /// Nothing had to be asked.
    Unasked,
    /// A remembered grant covered every ask.
    Grant {
        /// The grant's id.
        id: String,
    },
    /// A hook's allow settled every ask.
    Hook {
        /// The hook.
        source: Source,
    },
    /// The auto reviewer agreed; what it said is among the reviews.
    Reviewed {
        /// The most trusted reviewer that did.
        source: Source,
    },
    /// Somebody agreed.
    Agreed {
        /// Who answered, in the channel's own terms.
        approver: String,
        /// How long the agreement is remembered.
        remember: crate::model::verdict::Remember,
        /// Whether remembering failed (R17: the call runs once, the record says so).
        not_remembered: bool,
    },
    /// The call was refused.
    Refused,
}

/// A file that a call would upload. Holds no path: paths are arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RecordedFile {
    /// The argument, with an index where it is one of several: `file`, `files[1]`.
    pub argument: String,
    /// How many bytes it has.
    pub length: u64,
    /// Their digest.
    pub sha256: Digest,
}

/// What is recorded about one decision before anything is sent. Holds digests, never arguments.
#[derive(Debug, Clone, Serialize)]
pub struct DecisionRecord {
    /// When.
    pub at: Timestamp,
    /// The call.
    pub call: CallId,
    /// What would be sent.
    pub kind: Kind,
    /// Raw server and tool.
    #[serde(flatten)]
    pub tool: ToolRef,
    /// Who called.
    pub caller: Caller,
    /// The catalog's revision at prepare.
    pub revision: Revision,
    /// The policies in force.
    pub policy_set: PolicySetDigest,
    /// What ran their components (R35).
    pub engine: Digest,
    /// The definition that was prepared.
    pub definition: Digest,
    /// The arguments' digest.
    pub arguments: Digest,
    /// The files that the arguments name.
    pub files: Vec<RecordedFile>,
    /// Whether this was written before those files are uploaded. Another record follows before anything is sent to the server.
    pub uploading: bool,
    /// The decision.
    #[serde(flatten)]
    pub decision: Decision,
    /// How it was settled.
    pub consent: Consent,
    /// What hooks said before and while it was decided.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<HookVoice>,
    /// What came of the reviews.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reviews: Vec<ReviewVoice>,
    /// All that the decision was taken on, by value; none where nothing was asked. Kept only by who is told to (R35).
    #[serde(skip)]
    pub inputs: Option<Arc<DecisionInputs>>,
}

/// What observed components said about a call whose decision is already recorded (R16).
#[derive(Debug, Clone, Serialize)]
pub struct ObservedRecord {
    /// When.
    pub at: Timestamp,
    /// The call.
    pub call: CallId,
    /// What would be sent.
    pub kind: Kind,
    /// Raw server and tool.
    #[serde(flatten)]
    pub tool: ToolRef,
    /// Whose call it is.
    pub tenant: TenantId,
    /// The policies in force.
    pub policy_set: PolicySetDigest,
    /// The arguments' digest.
    pub arguments: Digest,
    /// What approval components said.
    pub voices: Vec<Voice>,
    /// What those said that decide about tools of Apps.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub connectors: Vec<ConnectorVoice>,
    /// What sanitisers said of the answer: a record of its own, under the policies in force when it arrived.
    pub sanitisers: Vec<SanitiserVoice>,
    /// What hooks said after the answer: a record of its own, too. These were not only observed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<HookVoice>,
}

/// A record could not be written.
#[derive(Debug, thiserror::Error)]
#[error("the record could not be written")]
pub struct RecordFailed(#[source] pub std::io::Error);

/// Takes items and decisions. Methods are called from a drop guard too: they must not block for long and never panic.
pub trait Recorder: Send + Sync {
    /// Takes a lifecycle item. A failure to keep one is the recorder's to report; it cannot stop a call.
    fn item(&self, item: &Item);

    /// Keeps a decision; durable (handed to the operating system) when this returns (R34).
    ///
    /// # Errors
    /// [`RecordFailed`]; the call is refused then.
    fn decision(&self, record: &DecisionRecord) -> Result<(), RecordFailed>;

    /// Takes what observed components said. Like an item: a failure to keep it is the recorder's to report.
    fn observed(&self, record: &ObservedRecord);
}
