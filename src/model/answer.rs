//! What an upstream answered, with the text as it came beside the parsed value.

use std::sync::Arc;

use serde_json::{Map, Value};

/// The answer to one request: a result or a protocol error. A tool's own error is a result with `isError`.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// A result object.
    Result(ToolResult),
    /// A JSON-RPC error.
    Error(ProtocolError),
}

/// The result object of a `tools/call`. Cheap to clone: an answer has many readers.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolResult {
    value: Arc<Map<String, Value>>,
    verbatim: Option<Arc<str>>,
}

impl ToolResult {
    /// Wraps a result and the text that it was parsed from.
    ///
    /// The text is what a client gets when nothing was edited: unknown fields, key order and the spelling of numbers
    /// survive.
    #[must_use]
    pub fn from_upstream(value: Map<String, Value>, verbatim: Arc<str>) -> Self {
        Self { value: Arc::new(value), verbatim: Some(verbatim) }
    }

    /// Makes a result of our own, for example a refusal: one text block, `isError`, and `_meta`.
    #[must_use]
    pub fn ours(text: &str, is_error: bool, meta: Map<String, Value>) -> Self {
        let mut value = Map::new();
        value.insert("content".to_owned(), serde_json::json!([{ "type": "text", "text": text }]));
        value.insert("isError".to_owned(), Value::Bool(is_error));
        if !meta.is_empty() {
            value.insert("_meta".to_owned(), Value::Object(meta));
        }
        Self { value: Arc::new(value), verbatim: None }
    }

    /// Makes the result that is left after something was removed: there is no text of the upstream's any more.
    #[must_use]
    pub fn edited(value: Map<String, Value>) -> Self {
        Self { value: Arc::new(value), verbatim: None }
    }

    /// Returns the whole object, keys in order.
    #[must_use]
    pub fn value(&self) -> &Map<String, Value> {
        &self.value
    }

    /// Returns the whole object for another owner, without copying it.
    #[must_use]
    pub fn shared(&self) -> Arc<Map<String, Value>> {
        Arc::clone(&self.value)
    }

    /// Returns the whole object by itself; copies it if others have it, too.
    #[must_use]
    pub fn into_value(self) -> Map<String, Value> {
        Arc::unwrap_or_clone(self.value)
    }

    /// Returns the upstream's own text, as long as nothing in it was changed.
    #[must_use]
    pub fn verbatim(&self) -> Option<&Arc<str>> {
        self.verbatim.as_ref()
    }

    /// Removes the `_meta` keys with a prefix. If there were any, the text is no longer the upstream's own.
    #[must_use]
    pub fn without_meta(mut self, prefix: &str) -> Self {
        let meta = self.value.get("_meta").and_then(Value::as_object);
        if meta.is_some_and(|meta| meta.keys().any(|key| key.starts_with(prefix))) {
            if let Some(Value::Object(meta)) = Arc::make_mut(&mut self.value).get_mut("_meta") {
                meta.retain(|key, _| !key.starts_with(prefix));
            }
            self.verbatim = None;
        }
        self
    }

    /// Returns the content blocks; empty when there are none.
    #[must_use]
    pub fn content(&self) -> &[Value] {
        self.value.get("content").and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// Returns `structuredContent` unless it is absent or null.
    #[must_use]
    pub fn structured(&self) -> Option<&Value> {
        self.value.get("structuredContent").filter(|value| !value.is_null())
    }

    /// Whether the tool says that it failed.
    #[must_use]
    pub fn is_error(&self) -> bool {
        self.value.get("isError").and_then(Value::as_bool) == Some(true)
    }
}

/// A JSON-RPC error as the upstream sent it.
#[derive(Debug, Clone, PartialEq)]
pub struct ProtocolError {
    /// The code.
    pub code: i64,
    /// The message; untrusted.
    pub message: String,
    /// The data; untrusted.
    pub data: Option<Value>,
    /// The whole error object as the upstream spelled it, if it has code and message; `None` when something was changed.
    pub verbatim: Option<Arc<str>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_stays_verbatim_unless_something_is_removed_from_it() {
        let result = |text: &str| ToolResult::from_upstream(serde_json::from_str(text).unwrap(), text.into());
        let plain = result(r#"{"content":[],"_meta":{"a":1.50}}"#).without_meta("x/");
        assert!(plain.verbatim().is_some());
        let claimed = result(r#"{"content":[],"_meta":{"x/y":1,"a":2}}"#).without_meta("x/");
        assert!(claimed.verbatim().is_none());
        assert_eq!(claimed.value()["_meta"], serde_json::json!({ "a": 2 }));
    }

    #[test]
    fn only_is_error_true_is_an_error() {
        let result = |text: &str| ToolResult::from_upstream(serde_json::from_str(text).unwrap(), text.into());
        assert!(result(r#"{"content":[],"isError":true}"#).is_error());
        assert!(!result(r#"{"content":[],"isError":"true"}"#).is_error());
        assert!(!result(r#"{"content":[]}"#).is_error());
        assert!(result(r#"{"structuredContent":null}"#).structured().is_none());
    }
}
