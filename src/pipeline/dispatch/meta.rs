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

/// Keys that a client's `_meta` may not carry to an upstream: those that mean something on one hop only, and those by
/// which an upstream is told what this host vouches for.
fn is_not_the_clients(key: &str) -> bool {
    const OURS: [&str; 5] = ["callId", "threadId", "plugin_id", "x-codex-turn-metadata", "_codex_apps"];
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
        meta.insert("x-codex-turn-metadata".to_owned(), Value::Object(metadata.clone()));
    }
    if let Some(plugin) = &prepared.tool().plugin {
        meta.insert("plugin_id".to_owned(), Value::from(plugin.as_str()));
    }
    meta.insert("threadId".to_owned(), Value::from(turn.thread_id.as_str()));
    meta
}
