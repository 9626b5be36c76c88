//! What the completed item shows of an answer, for user interfaces and whoever listens: the result, or what is left of it.
//!
//! Rule: approval-results 8.2. A result of up to [`LIMIT`] bytes is there whole. Of a longer one there is a text block with
//! the beginning and the end of its JSON; `structuredContent` and `_meta` are gone then, `isError` stays. Messages of errors
//! are cut alike. How the call ended is the item's own and never touched.

use std::io;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::truncate::{self, Policy};
use crate::model::answer::ToolResult;
use crate::model::item::ItemError;
use crate::model::outcome::Failure;
use crate::pipeline::emit::sanitise::{Clean, CleanAnswer};
use crate::ports::telemetry::{self, View};

/// The longest result as compact JSON, and the longest message, in bytes. The marker of a cut comes on top, and so do the
/// escapes when the cut JSON is a string in JSON itself.
pub const LIMIT: usize = 1024 * 1024;

/// Proof that what an item shows was rendered from a clean answer, or is a failure in the host's words.
#[derive(Debug, Clone, PartialEq)]
pub struct EventView(Shown);

#[derive(Debug, Clone, PartialEq)]
enum Shown {
    Result(Arc<Map<String, Value>>),
    /// The sentence that stands for one.
    Error(ItemError),
}

impl EventView {
    /// Renders a clean answer.
    #[must_use]
    pub fn of(clean: &Clean) -> Self {
        Self(match clean.answer() {
            CleanAnswer::Result(_) => Shown::Result(result(clean.for_scripts())),
            CleanAnswer::Protocol(error) => Shown::Error(message(&format!("tool call error: {}", error.message))),
            CleanAnswer::Failure(failure) => Shown::Error(message(&failure.message)),
        })
    }

    /// Renders a failure, without its detail: that is for people and records.
    #[must_use]
    pub fn of_failure(failure: &Failure) -> Self {
        Self(Shown::Error(message(&failure.message)))
    }

    /// Returns the members `result` and `error` of the item.
    #[must_use]
    pub(in crate::pipeline) fn into_parts(self) -> (Option<Arc<Map<String, Value>>>, Option<ItemError>) {
        match self.0 {
            Shown::Result(result) => (Some(result), None),
            Shown::Error(error) => (None, Some(error)),
        }
    }
}

fn message(text: &str) -> ItemError {
    if text.len() > LIMIT {
        telemetry::cut(View::Event);
    }
    ItemError { message: truncate::cut(text, Policy::Bytes(LIMIT)) }
}

fn result(result: &ToolResult) -> Arc<Map<String, Value>> {
    let whole = result.shared();
    if fits(&whole) {
        return whole;
    }
    telemetry::cut(View::Event);
    // Maps with text keys always serialise.
    let text = serde_json::to_string(&*whole).unwrap_or_default();
    let mut left = Map::new();
    left.insert("content".to_owned(), json!([{ "type": "text", "text": truncate::cut(&text, Policy::Bytes(LIMIT)) }]));
    left.extend(whole.get("isError").map(|is_error| ("isError".to_owned(), is_error.clone())));
    Arc::new(left)
}

/// Whether the compact JSON of a result has no more bytes than fit. Nothing is written down for it.
fn fits(whole: &Map<String, Value>) -> bool {
    serde_json::to_writer(Room(LIMIT), whole).is_ok()
}

/// Takes so many bytes and forgets them.
struct Room(usize);

impl io::Write for Room {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(value: &Value) -> Value {
        let root = value.as_object().unwrap().clone();
        Value::Object((*result(&ToolResult::from_upstream(root, value.to_string().into()))).clone())
    }

    fn text_of(bytes: usize) -> Value {
        json!({ "content": [{ "text": "x".repeat(bytes), "type": "text" }] })
    }

    #[test]
    fn t08_a_result_of_just_the_limit_stays_whole() {
        let value = text_of(1_048_537);
        assert_eq!(value.to_string().len(), LIMIT);
        assert_eq!(shown(&value), value);
    }

    #[test]
    fn t09_one_byte_more_leaves_beginning_and_end_as_a_text() {
        let left = shown(&text_of(1_048_538));
        let preview = left["content"][0]["text"].as_str().unwrap();
        assert_eq!(preview.len(), 1_048_599);
        assert!(preview.starts_with(r#"{"content":[{"text":"xxx"#) && preview.ends_with(r#"xxx","type":"text"}]}"#));
        assert!(preview.contains("…1 chars truncated…"));
        assert_eq!(left.as_object().unwrap().len(), 1);
    }

    #[test]
    fn t10_a_long_message_is_cut_alike() {
        let left = message(&"e".repeat(2_800_000)).message;
        assert_eq!(left.len(), 1_048_605);
        assert!(left.contains("…1751424 chars truncated…"));
    }

    #[test]
    fn t11_a_large_error_is_still_one_and_loses_its_other_members() {
        let mut value = text_of(2_000_000);
        value["isError"] = json!(true);
        value["structuredContent"] = json!({ "x": 1 });
        value["_meta"] = json!({ "m": 1 });
        let left = shown(&value);
        assert_eq!(left["isError"], true);
        assert!(left.get("structuredContent").is_none() && left.get("_meta").is_none());
        let small = json!({ "content": [], "structuredContent": { "x": 1 }, "_meta": { "m": 1 } });
        assert_eq!(shown(&small), small);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]

        #[test]
        fn an_item_never_shows_more_than_the_limit_and_a_marker(
            unit in "[a-zé\"\\\\]{1,8}", bytes in LIMIT / 2..LIMIT * 3 / 2, is_error: bool,
        ) {
            let text = unit.repeat(bytes / unit.len());
            let value = json!({ "content": [{ "type": "text", "text": text }], "isError": is_error });
            let left = shown(&value);
            prop_assert_eq!(&left["isError"], &json!(is_error));
            if left != value {
                prop_assert!(value.to_string().len() > LIMIT);
                prop_assert!(left["content"][0]["text"].as_str().unwrap().len() <= LIMIT + 64);
            }
        }
    }
}
