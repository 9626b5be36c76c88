//! One call of a session, as whoever makes it says it.

use std::sync::Arc;

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::model::caller::CallSource;
use crate::model::digest::Digest;
use crate::model::media::Modalities;
use crate::model::name::{CallId, Target};
use crate::model::sandbox::SandboxState;
use crate::pipeline::Payload;
use crate::pipeline::dispatch::meta::TraceId;
use crate::ports::questions::Questions;
use crate::ports::reviewer::Reviewer;
use crate::ports::upstream::ProgressSink;

/// One call of a session.
pub struct SessionCall {
    /// Its id; a fresh one when there is none.
    pub id: Option<CallId>,
    /// What is called.
    pub target: Target,
    /// With what.
    pub payload: Payload,
    /// `_meta` of the client's request.
    pub client_meta: Map<String, Value>,
    /// The turn's metadata, for upstreams that read it.
    pub turn_metadata: Option<Map<String, Value>>,
    /// The sandbox, for servers that ask for it; none: no server is told.
    pub sandbox: Option<Arc<SandboxState>>,
    /// The trace that it belongs to; none: no server is told of any.
    pub trace: Option<TraceId>,
    /// Where progress goes, if it is wanted.
    pub progress: Option<Arc<dyn ProgressSink>>,
    /// Who answers what the server asks meanwhile; none: nobody.
    pub questions: Option<Arc<dyn Questions>>,
    /// Whoever can be asked about this call; none: the session's.
    pub reviewer: Option<Arc<dyn Reviewer>>,
    /// What makes it.
    pub source: CallSource,
    /// What the model of this turn takes; none: what the session's does ([`Session::model_takes`](super::session::Session::model_takes)).
    pub takes: Option<Modalities>,
    /// The digest of the definition that it is made for; none: of the one that the session was shown last (R24).
    pub seen: Option<Digest>,
    /// Ends the call.
    pub cancel: CancellationToken,
}

impl SessionCall {
    /// A call with arguments as text and nothing else.
    #[must_use]
    pub fn new(target: Target, arguments: impl Into<String>) -> Self {
        Self {
            id: None,
            target,
            payload: Payload::Function(arguments.into()),
            client_meta: Map::new(),
            turn_metadata: None,
            sandbox: None,
            trace: None,
            progress: None,
            questions: None,
            reviewer: None,
            source: CallSource::Direct,
            takes: None,
            seen: None,
            cancel: CancellationToken::new(),
        }
    }
}
