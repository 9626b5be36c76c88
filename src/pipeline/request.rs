//! What a call is to the pipeline, and what comes back of it.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::admit::gate::ParallelGate;
use super::dispatch::memory::ThreadMemory;
use super::dispatch::meta::TurnInfo;
use super::emit::sanitise::{Clean, Definitions};
use crate::model::caller::Caller;
use crate::model::decision::Decision;
use crate::model::digest::Digest;
use crate::model::item::CompletedItem;
use crate::model::name::{CallId, Target};
use crate::model::outcome::Failure;
use crate::model::verdict::Remember;
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
}

/// What a call would come to.
#[derive(Debug)]
pub struct Explanation {
    /// The decision, if it came to one.
    pub decision: Option<Decision>,
    /// What changed of the tool's definition since it was accepted, line by line, fit to be shown (R24).
    pub changes: Arc<[String]>,
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
    },
    /// It would fail.
    Fail(Failure),
}
