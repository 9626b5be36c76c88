//! What a call is to the pipeline, and what comes back of it.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::admit::gate::ParallelGate;
use super::consent::remember::RelatedGrant;
use super::consent::review::Breaker;
use super::dispatch::memory::ThreadMemory;
use super::dispatch::meta::TurnInfo;
use super::emit::sanitise::{Clean, Definitions};
use super::follow::evidence::EvidenceStore;
use crate::model::caller::{CallSource, Caller};
use crate::model::decision::Decision;
use crate::model::digest::Digest;
use crate::model::hook::HookEvent;
use crate::model::item::CompletedItem;
use crate::model::media::Modalities;
use crate::model::name::{CallId, Target};
use crate::model::outcome::Failure;
use crate::model::verdict::{Remember, Reviewers, Source};
use crate::ports::questions::Questions;
use crate::ports::reviewer::Reviewer;
use crate::ports::upstream::ProgressSink;

/// What a call carries.
#[derive(Debug, Clone)]
pub enum Payload {
    /// A function call with its arguments as text.
    Function(String),
    /// Anything else: refused.
    Other,
}

/// One call.
pub struct CallRequest {
    /// Its id, unique among the open calls of the session.
    pub id: CallId,
    /// Who calls.
    pub caller: Caller,
    /// What is called.
    pub target: Target,
    /// With what.
    pub payload: Payload,
    /// The digest of the definition that the caller was last shown (R24).
    pub seen: Option<Digest>,
    /// What the caller's session knows of definitions as they are shown.
    pub definitions: Arc<Definitions>,
    /// What the model behind it takes: other media is text for everybody who sees the answer.
    pub takes: Modalities,
    /// What the request says about its turn.
    pub turn: TurnInfo,
    /// The memory of its thread; none: nobody wants to know whether it is polluted.
    pub memory: Option<Arc<ThreadMemory>>,
    /// Where progress goes, if it is wanted.
    pub progress: Option<Arc<dyn ProgressSink>>,
    /// Who answers what the server asks meanwhile; none: nobody.
    pub questions: Option<Arc<dyn Questions>>,
    /// Whoever can be asked.
    pub reviewer: Arc<dyn Reviewer>,
    /// Keeps it apart from other calls of the session; none: the client does that itself.
    pub gate: Option<ParallelGate>,
    /// What made it.
    pub source: CallSource,
    /// Where what scripts are answered is kept for auto reviewers; none: nowhere.
    pub evidence: Option<Arc<EvidenceStore>>,
    /// Counts what the auto reviewer denies in the session (R40).
    pub breaker: Arc<Breaker>,
    /// Ends the call.
    pub cancel: CancellationToken,
}

/// A call that has ended.
#[derive(Debug)]
pub struct Finished {
    /// The clean answer.
    pub clean: Clean,
    /// The completed item.
    pub item: CompletedItem,
    /// The last decision, if it came to one.
    pub decision: Option<Decision>,
    /// The digest of the definition that a stale answer has shown (R24).
    pub shown: Option<Digest>,
    /// Whether the agent's turn should end here: the auto reviewer has denied too much. True once (approval-results 3.4).
    pub interrupts: bool,
}

/// What a call would come to.
#[derive(Debug)]
pub struct Explanation {
    /// The decision, if it came to one.
    pub decision: Option<Decision>,
    /// What changed of the tool's definition since it was accepted, line by line, fit to be shown (R24).
    pub changes: Arc<[String]>,
    /// The grants that are about the tool, and why each does not cover what would be asked; empty where nobody is asked.
    pub grants: Vec<RelatedGrant>,
    /// The hooks that are for the tool: each could change what comes of the call. None was run.
    pub hooks: Vec<(HookEvent, Source)>,
    /// What would happen next.
    pub would: Would,
}

/// What would happen next.
#[derive(Debug)]
pub enum Would {
    /// It would be sent.
    Run {
        /// The id of the remembered grant that covers the asks.
        grant: Option<String>,
    },
    /// Somebody would be asked; the answer could change the result.
    Ask {
        /// What could be chosen besides refusing.
        options: Vec<Remember>,
        /// Who would be asked.
        reviewers: Reviewers,
    },
    /// It would fail.
    Fail(Failure),
}
