//! The `_meta` of the request (catalog-dispatch 5.1).

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::model::app::{self, APPS};
use crate::model::name::CallId;
use crate::model::sandbox::{SANDBOX_STATE, SandboxState};
use crate::pipeline::bind::prepare::Prepared;

/// The key of the turn's metadata.
const TURN: &str = "x-codex-turn-metadata";
/// The key of the trace that the call belongs to.
const TRACE: &str = "codex_bridge_mcp_call_id";
/// The longest id of a trace, in bytes.
pub const MAX_TRACE_ID: usize = 128;

/// The id of the trace that a call belongs to, as whoever traces it spells it. At most [`MAX_TRACE_ID`] visible ASCII
/// characters: servers are told it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceId(Arc<str>);

/// A text that is no id of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the id of a trace is 1 to {MAX_TRACE_ID} visible ASCII characters")]
pub struct BadTraceId;

impl TraceId {
    /// Takes an id.
    ///
    /// # Errors
    /// [`BadTraceId`].
    pub fn parse(text: &str) -> Result<Self, BadTraceId> {
        let fits = (1..=MAX_TRACE_ID).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        if fits { Ok(Self(text.into())) } else { Err(BadTraceId) }
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What the request says about its turn.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TurnInfo {
    /// The thread; in the gateway, the session (R40).
    pub thread_id: String,
    /// The turn's metadata, for upstreams that read it. What never goes out is taken out of it.
    pub metadata: Option<Map<String, Value>>,
    /// The sandbox, for servers that ask for it; none: no server is told.
    pub sandbox: Option<Arc<SandboxState>>,
    /// The trace that the call belongs to; none: no server is told of any.
    pub trace: Option<TraceId>,
    /// `_meta` of the client's own request, passed on but for what belongs to the client's hop.
    pub client_meta: Map<String, Value>,
}

impl TurnInfo {
    /// Returns the model's name, if the turn's metadata has one.
    pub(super) fn model(&self) -> Option<&str> {
        self.metadata.as_ref()?.get("model")?.as_str()
    }
}

/// Keys that a client's `_meta` may not carry to an upstream: those that mean something on one hop only, and those by
/// which an upstream is told what this host vouches for.
fn is_not_the_clients(key: &str) -> bool {
    const OURS: [&str; 6] = ["callId", "threadId", "plugin_id", TURN, APPS, TRACE];
    const PREFIXES: [&str; 3] = ["io.modelcontextprotocol/", "portcullis/", "codex/"];
    key == "progressToken" || OURS.contains(&key) || PREFIXES.iter().any(|prefix| key.starts_with(prefix))
}

/// Builds the request's `_meta`: the client's keys, then ours, which win.
#[must_use]
pub fn request_meta(call: &CallId, prepared: &Prepared, turn: &TurnInfo) -> Map<String, Value> {
    let kept = turn.client_meta.iter().filter(|(key, _)| !is_not_the_clients(key));
    let mut meta: Map<String, Value> = kept.map(|(key, value)| (key.clone(), value.clone())).collect();
    meta.insert("callId".to_owned(), Value::from(call.as_str()));
    if let Some(metadata) = &turn.metadata {
        meta.insert(TURN.to_owned(), Value::Object(told(metadata)));
    }
    if let Some((_, own)) = app::own(prepared.tool()) {
        let mut own = own.cloned().unwrap_or_default();
        own.insert("call_id".to_owned(), Value::from(call.as_str()));
        meta.insert(APPS.to_owned(), Value::Object(own));
    }
    if let Some(plugin) = &prepared.tool().plugin {
        meta.insert("plugin_id".to_owned(), Value::from(plugin.id.as_str()));
    }
    meta.insert("threadId".to_owned(), Value::from(turn.thread_id.as_str()));
    if let Some(state) = sandbox(prepared, turn) {
        meta.insert(SANDBOX_STATE.to_owned(), state);
    }
    if let Some(trace) = &turn.trace {
        meta.insert(TRACE.to_owned(), Value::from(trace.as_str()));
    }
    meta
}

/// What of the turn's metadata an upstream is told: which tools there are, whose turn it came from and where the client is
/// installed are nobody's business, and that a person was asked is said only when it is so.
fn told(metadata: &Map<String, Value>) -> Map<String, Value> {
    const NEVER: [&str; 5] = ["tool_inventory", "mcp_tool_inventory", "parent_turn_id", "installation_id", "window_id"];
    const ASKED: &str = "user_input_requested_during_turn";
    let goes = |key: &str, value: &Value| !NEVER.contains(&key) && (key != ASKED || *value == Value::Bool(true));
    let told = metadata.iter().filter(|(key, value)| goes(key, value));
    told.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Only a server that asked for it is told, and only where its directory is known.
fn sandbox(prepared: &Prepared, turn: &TurnInfo) -> Option<Value> {
    let server = prepared.server();
    let state = turn.sandbox.as_ref().filter(|_| server.wants_sandbox_state)?;
    state.of_environment(&server.view.environment)
}
