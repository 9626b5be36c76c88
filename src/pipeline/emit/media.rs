//! Step 12 of a call, first part: media that this model cannot take becomes text, before anybody else sees the answer.
//!
//! Rule: approval-results 9 rule 1. A block goes by its type alone, whatever its data is; `structuredContent`, `isError` and
//! `_meta` stay as they are, and how the call ended is not touched: an answer whose image was left out is still an answer.
//! What an embedded resource holds is no media block and stays.
//!
//! [`fit`] is the only function that opens a [`Raw`].

use serde_json::{Value, json};

use crate::model::answer::{Answer, ToolResult};
use crate::model::media::{LeftOut, Media, Modalities};
use crate::model::name::Target;
use crate::pipeline::dispatch::call::Raw;

/// An upstream's answer without media that the model cannot take; not cleaned yet.
#[derive(Debug)]
pub struct Fitted {
    answer: Answer,
    target: Target,
}

/// Puts a text in the place of every block that a model with these modalities cannot take.
#[must_use]
pub fn fit(raw: Raw, takes: Modalities) -> Fitted {
    let (answer, target) = raw.into_parts();
    let answer = match answer {
        Answer::Result(result) => Answer::Result(fitted(result, takes)),
        // A protocol error has no blocks.
        Answer::Error(error) => Answer::Error(error),
    };
    Fitted { answer, target }
}

impl Fitted {
    /// Gives the answer to whoever cleans it.
    pub(in crate::pipeline) fn into_parts(self) -> (Answer, Target) {
        (self.answer, self.target)
    }
}

/// Returns the media of a block that the model does not take.
fn untaken(block: &Value, takes: Modalities) -> Option<Media> {
    let media = block.get("type").and_then(Value::as_str).and_then(Media::of_type)?;
    (!media.is_taken_by(takes)).then_some(media)
}

/// Returns the result itself, spelled as it came, where there is nothing to replace.
pub(super) fn fitted(result: ToolResult, takes: Modalities) -> ToolResult {
    if !result.content().iter().any(|block| untaken(block, takes).is_some()) {
        return result;
    }
    let mut root = result.into_value();
    if let Some(Value::Array(blocks)) = root.get_mut("content") {
        for block in blocks {
            if let Some(media) = untaken(block, takes) {
                *block = json!({ "type": "text", "text": LeftOut::NotTaken.placeholder(media) });
            }
        }
    }
    ToolResult::edited(root)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(value: &Value) -> ToolResult {
        ToolResult::from_upstream(value.as_object().unwrap().clone(), value.to_string().into())
    }

    fn text(media: Media) -> Value {
        json!({ "type": "text", "text": LeftOut::NotTaken.placeholder(media) })
    }

    #[test]
    fn what_is_not_taken_becomes_text_in_its_place_and_nothing_else_changes() {
        let image = json!({ "type": "image", "data": "AAA", "mimeType": "image/png", "_meta": { "a": 1 } });
        let broken = json!({ "type": "image" });
        let audio = json!({ "type": "audio", "data": "AAA", "mimeType": "audio/wav" });
        let resource =
            json!({ "type": "resource", "resource": { "uri": "x:1", "mimeType": "image/png", "blob": "AAA" } });
        let unknown = json!({ "type": "Image", "data": "AAA" });
        let whole = |first: Value, second: Value, third: Value| {
            json!({
                "content": [first, second, third, resource, unknown, 7],
                "structuredContent": { "image": { "type": "image" } }, "isError": true, "_meta": { "type": "image" },
            })
        };
        let given = whole(image.clone(), broken.clone(), audio.clone());
        let left = fitted(result(&given), Modalities::TEXT);
        assert_eq!(
            Value::Object(left.value().clone()),
            whole(text(Media::Image), text(Media::Image), text(Media::Audio))
        );
        assert!(left.verbatim().is_none() && left.is_error());
        let images = fitted(result(&given), Modalities::of([crate::model::media::Modality::Image]));
        assert_eq!(Value::Object(images.value().clone()), whole(image, broken, text(Media::Audio)));
    }

    #[test]
    fn an_answer_that_fits_keeps_its_spelling() {
        let value = json!({ "content": [{ "type": "image", "data": "AAA" }] });
        assert!(fitted(result(&value), Modalities::ALL).verbatim().is_some());
        let texts = json!({ "content": [{ "type": "text", "text": "a" }] });
        assert!(fitted(result(&texts), Modalities::TEXT).verbatim().is_some());
        assert!(fitted(result(&json!({ "content": "no array" })), Modalities::TEXT).verbatim().is_some());
    }
}
