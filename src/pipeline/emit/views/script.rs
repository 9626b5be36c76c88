//! What a script reads of an answer, and what is kept of the calls that scripts make: the whole result.
//!
//! Rule: approval-results 10 rule 1. Neither cut nor headed: whoever runs the script bounds what it gives on. The result's own
//! `_meta` is between server and host and is left out; that of a block stays.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::model::answer::ToolResult;
use crate::pipeline::emit::sanitise::Clean;

/// Proof that what a script reads was rendered from a clean answer. Serialises as the result object.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct ScriptView(Arc<Map<String, Value>>);

impl ScriptView {
    /// Renders a clean answer: the answer itself where a hook's feedback took its place for the model, and for a failure the
    /// result that stands for it. Without a `_meta` nothing is copied.
    #[must_use]
    pub fn of(clean: &Clean) -> Self {
        Self::render(clean.for_scripts())
    }

    fn render(result: &ToolResult) -> Self {
        let mut whole = result.shared();
        if whole.contains_key("_meta") {
            // Keys keep their order.
            Arc::make_mut(&mut whole).shift_remove("_meta");
        }
        Self(whole)
    }

    /// Returns the result object.
    #[must_use]
    pub fn value(&self) -> &Map<String, Value> {
        &self.0
    }

    /// Returns the content blocks; empty when there are none.
    #[must_use]
    pub fn content(&self) -> &[Value] {
        self.0.get("content").and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// Returns `structuredContent` unless it is absent or null.
    #[must_use]
    pub fn structured(&self) -> Option<&Value> {
        self.0.get("structuredContent").filter(|value| !value.is_null())
    }

    /// Whether it says that the tool failed, or stands for a failure of ours.
    #[must_use]
    pub fn is_error(&self) -> bool {
        self.0.get("isError").and_then(Value::as_bool) == Some(true)
    }

    /// Returns the result as compact JSON.
    #[must_use]
    pub fn text(&self) -> String {
        // Maps with text keys always serialise.
        serde_json::to_string(&*self.0).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::outcome::{Code, Failure, Stage};

    fn shown(value: &Value) -> String {
        let root = value.as_object().unwrap().clone();
        ScriptView::render(&ToolResult::from_upstream(root, value.to_string().into())).text()
    }

    #[test]
    fn c1_to_c3_c6_the_results_own_meta_goes_and_everything_else_stays_as_it_is() {
        let rows = [
            (
                json!({ "content": [{ "type": "text", "text": "a" }], "structuredContent": { "x": 1 },
                        "isError": false, "_meta": { "m": 1 }, "more": true }),
                r#"{"content":[{"type":"text","text":"a"}],"structuredContent":{"x":1},"isError":false,"more":true}"#,
            ),
            (json!({ "_meta": {}, "content": [] }), r#"{"content":[]}"#),
            (
                json!({ "content": [{ "type": "text", "text": "a", "_meta": { "m": 1 } }] }),
                r#"{"content":[{"type":"text","text":"a","_meta":{"m":1}}]}"#,
            ),
            (json!({ "content": [], "isError": true }), r#"{"content":[],"isError":true}"#),
        ];
        for (value, wanted) in rows {
            assert_eq!(shown(&value), wanted);
        }
    }

    #[test]
    fn c4_nothing_is_cut() {
        let value = json!({ "content": [], "structuredContent": { "long": "x".repeat(2_000_000) } });
        assert_eq!(shown(&value), value.to_string());
    }

    #[test]
    fn c10_a_refused_call_is_a_text_and_an_error() {
        let failure = Failure::new(Stage::Approval, Code::Denied, "refused");
        let clean = Clean::of_failure(failure);
        assert!(clean.result().value().contains_key("_meta"));
        let view = ScriptView::of(&clean);
        assert_eq!(view.text(), r#"{"content":[{"type":"text","text":"refused"}],"isError":true}"#);
        assert!(view.is_error() && view.structured().is_none() && view.content().len() == 1);
    }
}
