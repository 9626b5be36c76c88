//! The `_meta` of the request (catalog-dispatch 5.1).

use serde_json::{Map, Value};

use crate::model::name::CallId;
use crate::pipeline::bind::prepare::Prepared;

/// What the request says about its turn.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TurnInfo {
    /// The thread; in the gateway, the session (R40).
    pub thread_id: String,
    /// The turn's metadata, for upstreams that read it.
    pub metadata: Option<Map<String, Value>>,
    /// `_meta` of the client's own request, passed on but for what belongs to the client's hop.
    pub client_meta: Map<String, Value>,
}

/// Keys that mean something on one hop only.
fn is_hop_local(key: &str) -> bool {
    key == "progressToken" || key.starts_with("io.modelcontextprotocol/") || key.starts_with("portcullis/")
}

/// Builds the request's `_meta`: the client's keys, then ours, which win.
#[must_use]
pub fn request_meta(call: &CallId, prepared: &Prepared, turn: &TurnInfo) -> Map<String, Value> {
    let kept = turn.client_meta.iter().filter(|(key, _)| !is_hop_local(key));
    let mut meta: Map<String, Value> = kept.map(|(key, value)| (key.clone(), value.clone())).collect();
    meta.insert("callId".to_owned(), Value::from(call.as_str()));
    if let Some(metadata) = &turn.metadata {
        meta.insert("x-codex-turn-metadata".to_owned(), Value::Object(metadata.clone()));
    }
    match &prepared.tool().plugin {
        Some(plugin) => meta.insert("plugin_id".to_owned(), Value::from(plugin.as_str())),
        // A client may not claim a plugin.
        None => meta.shift_remove("plugin_id"),
    };
    meta.insert("threadId".to_owned(), Value::from(turn.thread_id.as_str()));
    meta
}
