//! The one clean answer of a call: what every view, item and record below sees.
//!
//! [`clean`] is the only function that makes a [`Clean`] of an upstream's answer. Errors go through it too: a protocol error's message is as untrusted
//! as an answer. Failures of ours are made of our own words and need no cleaning.
//!
//! While nothing is edited, the upstream's own text passes byte for byte. Once something is, what is shown is rendered from
//! the edited value, and everything of the text that the value does not hold (spacing, the spelling of numbers, members that an
//! error does not have) is gone with it (R28).

mod aside;
mod edits;
mod literals;
mod shown;
mod sweep;
mod targets;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde_json::{Map, Value, json};

pub use self::aside::{Aside, log, progress, words};
pub use self::shown::{Definitions, ShownDefinition, Unshown, Viewer};
pub use self::sweep::{About, Sanitiser};
use self::sweep::{Document, Swept, Withheld};
use self::targets::Shape;
use crate::model::answer::{Answer, ProtocolError, ToolResult};
use crate::model::cleaning::SanitiserVoice;
use crate::model::name::Target;
use crate::model::outcome::{Code, Failure, Outcome, Stage};
use crate::model::schema;
use crate::model::text;
use crate::model::verdict::Label;
use crate::pipeline::emit::media::Fitted;
use crate::ports::approval::PolicySet;
use crate::ports::sanitiser::OutputFacts;

/// The longest message of a protocol error that is shown, in characters.
const MAX_ERROR_MESSAGE: usize = 2048;

/// The `_meta` key by which this host says that and why it refused.
const REFUSAL: &str = "portcullis/refusal";

/// JSON-RPC's "internal error": the code of an error whose own code was removed.
const NO_CODE: i64 = -32603;

/// What a result says when its edits broke the tool's output schema (R29).
const BROKEN: &str =
    "What had to be removed from this answer broke the tool's output schema; what remains is given as text.";

/// An answer that may be shown.
#[derive(Debug, Clone)]
pub struct Clean {
    answer: CleanAnswer,
    result: ToolResult,
    outcome: Outcome,
    /// What a hook's feedback has taken the place of: scripts and evidence still see it (approval-results 10 rule 5).
    replaced: Option<Arc<ToolResult>>,
    /// What hooks add for the model.
    context: Vec<String>,
}

/// What a clean answer is made of.
#[derive(Debug, Clone)]
pub enum CleanAnswer {
    /// The tool's own result.
    Result(ToolResult),
    /// The upstream's protocol error.
    Protocol(ProtocolError),
    /// A failure of ours, or that the answer was withheld.
    Failure(Failure),
}

/// A cleaned answer, with what came of cleaning it.
pub struct Cleaned {
    /// The answer.
    pub clean: Clean,
    /// Labels that the principal carries before the answer is shown (R33), those of a sanitiser that withheld it included.
    pub labels: Vec<Label>,
    /// What sanitisers said, in the order in which they were asked.
    pub voices: Vec<SanitiserVoice>,
    /// Observed sanitisers that match, with what they would have seen (R16).
    pub observers: Vec<(Sanitiser, Arc<OutputFacts>)>,
}

/// Cleans an answer of an upstream by the sanitisers of `policies`, which are those in force when it arrived (R19).
/// `output_schema` is that of the definition which was called.
pub async fn clean(fitted: Fitted, policies: &PolicySet, about: &About, output_schema: Option<&Value>) -> Cleaned {
    let (answer, target) = fitted.into_parts();
    let sanitisers = sweep::matching(policies, about);
    match answer {
        Answer::Result(result) => {
            // An upstream may not speak as the host: a forged refusal would look like ours.
            let result = result.without_meta(REFUSAL);
            // The upstream's own status: it stays the item's, whatever becomes of the answer (R31).
            let outcome = if result.is_error() { Outcome::ToolError } else { Outcome::Answered };
            if sanitisers.is_empty() {
                return Cleaned::untouched(Clean::of_result(result, outcome));
            }
            let verbatim = result.verbatim().cloned();
            let mut document = Document::new(result.value().clone(), Shape::Result, verbatim);
            document.is_error = result.is_error();
            let swept = sweep::sweep(&sanitisers, about, &mut document).await;
            let clean = match &swept.withheld {
                Some(withheld) => Clean::withheld(&target, withheld, outcome),
                None if document.is_edited() => {
                    Clean::of_result(ToolResult::edited(whole(document, output_schema).await), outcome)
                }
                None => Clean::of_result(result, outcome),
            };
            swept.with(clean)
        }
        Answer::Error(error) => {
            if sanitisers.is_empty() {
                return Cleaned::untouched(Clean::of_error(error, &target));
            }
            let (root, verbatim) = read(&error);
            let covered = verbatim.is_some() || error.verbatim.is_none();
            let mut document = Document::new(root, Shape::Error, verbatim);
            document.is_error = true;
            let swept = sweep::sweep(&sanitisers, about, &mut document).await;
            let clean = match &swept.withheld {
                Some(withheld) => {
                    let message = format!("tool call error: tool call failed for `{}`", shown(&target));
                    let own = Failure::new(Stage::Call, Code::ProtocolError, message);
                    Clean::withheld(&target, withheld, Outcome::Failed(own))
                }
                None if document.is_edited() => Clean::of_error(error_of(document.root), &target),
                None if covered => Clean::of_error(error, &target),
                None => Clean::of_error(ProtocolError { verbatim: None, ..error }, &target),
            };
            swept.with(clean)
        }
    }
}

/// Returns an error as an object, and its text if that is the same object: members that a [`ProtocolError`] does not have are
/// in both.
fn read(error: &ProtocolError) -> (Map<String, Value>, Option<Arc<str>>) {
    if let Some(text) = &error.verbatim
        && let Ok(Value::Object(root)) = serde_json::from_str(text)
    {
        return (root, Some(Arc::clone(text)));
    }
    let mut root = Map::new();
    root.insert("code".to_owned(), error.code.into());
    root.insert("message".to_owned(), error.message.as_str().into());
    root.extend(error.data.clone().map(|data| ("data".to_owned(), data)));
    (root, None)
}

fn error_of(mut root: Map<String, Value>) -> ProtocolError {
    ProtocolError {
        code: root.get("code").and_then(Value::as_i64).unwrap_or(NO_CODE),
        message: root.get("message").and_then(Value::as_str).unwrap_or_default().to_owned(),
        data: root.remove("data"),
        verbatim: None,
    }
}

/// Returns what is left of a result. If the output schema does not hold for it any more, it is an error, and what remains of
/// `structuredContent` a text.
async fn whole(document: Document, output_schema: Option<&Value>) -> Map<String, Value> {
    let touched = document.removed.iter().any(|removals| removals.touch("/structuredContent"));
    let mut root = document.root;
    let Some(schema) = output_schema.filter(|_| touched) else { return root };
    let Some(structured) = root.get("structuredContent").filter(|value| !value.is_null()).cloned() else { return root };
    let schema = schema.clone();
    // Bounded, but a large instance takes its time; a panic of the library is a no.
    let checked = tokio::task::spawn_blocking(move || {
        let holds = schema::holds(&schema, &structured);
        (holds, structured)
    });
    let structured = match checked.await {
        Ok((true, _)) => return root,
        Ok((false, structured)) => Some(structured),
        Err(_panicked) => root.get("structuredContent").cloned(),
    };
    root.remove("structuredContent");
    root.insert("isError".to_owned(), Value::Bool(true));
    let content = root.entry("content").or_insert_with(|| json!([]));
    if !content.is_array() {
        *content = json!([]);
    }
    if let (Value::Array(blocks), Some(structured)) = (content, structured) {
        blocks.insert(0, json!({ "type": "text", "text": BROKEN }));
        blocks.push(json!({ "type": "text", "text": structured.to_string() }));
    }
    root
}

impl Swept {
    fn with(self, clean: Clean) -> Cleaned {
        Cleaned { clean, labels: self.labels, voices: self.voices, observers: self.observers }
    }
}

impl Cleaned {
    fn untouched(clean: Clean) -> Self {
        Self { clean, labels: Vec::new(), voices: Vec::new(), observers: Vec::new() }
    }
}

impl Clean {
    fn of_result(result: ToolResult, outcome: Outcome) -> Self {
        let answer = CleanAnswer::Result(result.clone());
        Self { answer, result, outcome, replaced: None, context: Vec::new() }
    }

    fn of_error(error: ProtocolError, target: &Target) -> Self {
        let said = text::shown(&error.message, MAX_ERROR_MESSAGE);
        let message =
            format!("tool call error: tool call failed for `{}`: {said} (code {})", shown(target), error.code);
        let failure = Failure::new(Stage::Call, Code::ProtocolError, message);
        Self { answer: CleanAnswer::Protocol(error), ..Self::of_failure(failure) }
    }

    /// The answer that stands for one of which nothing may be shown. `outcome` is the upstream's own.
    fn withheld(target: &Target, withheld: &Withheld, outcome: Outcome) -> Self {
        let rule = withheld.origin.rule.as_ref().map(|rule| format!(", rule {rule}")).unwrap_or_default();
        let message = format!(
            "the answer of `{}` was withheld (stage sanitise, code withheld, layer {}{rule})",
            shown(target),
            withheld.origin.layer,
        );
        let failure = Failure::new(Stage::Sanitise, Code::Withheld, message).by(withheld.origin.clone());
        let detail = text::shown(&withheld.why, MAX_ERROR_MESSAGE);
        Self { outcome, ..Self::of_failure(failure.detail(detail)) }
    }

    /// Withholds the answer after all, for a reason of the host's own: for example, labels that could not be kept. How the
    /// call ended stays as it is.
    #[must_use]
    pub fn withhold(self, failure: Failure) -> Self {
        Self { outcome: self.outcome, ..Self::of_failure(failure) }
    }

    /// The answer that stands for a failure: one text block, `isError`, and who refused in `_meta`.
    #[must_use]
    pub fn of_failure(failure: Failure) -> Self {
        let result = ToolResult::ours(&failure.message, true, failure.meta());
        let (answer, outcome) = (CleanAnswer::Failure(failure.clone()), Outcome::Failed(failure));
        Self { answer, result, outcome, replaced: None, context: Vec::new() }
    }

    /// Puts a hook's feedback in the place of what a model reads. How the call ended stays as it is, and scripts see the
    /// answer itself.
    #[must_use]
    pub(in crate::pipeline) fn instead(self, texts: &[String]) -> Self {
        let mut result = ToolResult::ours(&texts.join("\n"), false, Map::new()).value().clone();
        result.shift_remove("isError");
        let result = ToolResult::edited(result);
        let replaced = Some(Arc::new(self.result));
        Self { answer: CleanAnswer::Result(result.clone()), result, replaced, ..self }
    }

    /// Adds what hooks say for the model.
    #[must_use]
    pub(in crate::pipeline) fn with_context(mut self, texts: &[String]) -> Self {
        self.context.extend_from_slice(texts);
        self
    }

    /// Returns what the answer is made of.
    #[must_use]
    pub fn answer(&self) -> &CleanAnswer {
        &self.answer
    }

    /// Returns the answer as a tool result; for protocol errors and failures, the one that stands for them.
    #[must_use]
    pub fn result(&self) -> &ToolResult {
        &self.result
    }

    /// Returns the answer as the gateway serves it: the result, and what hooks add for the model as texts at its end.
    #[must_use]
    pub fn served(&self) -> ToolResult {
        if self.context.is_empty() {
            return self.result.clone();
        }
        let mut root = self.result.value().clone();
        let content = root.entry("content").or_insert_with(|| json!([]));
        if let Value::Array(blocks) = content {
            blocks.extend(self.context.iter().map(|text| json!({ "type": "text", "text": text })));
        }
        ToolResult::edited(root)
    }

    /// Returns what scripts see: the answer itself, whatever a hook's feedback has put in its place for the model.
    #[must_use]
    pub fn for_scripts(&self) -> &ToolResult {
        self.replaced.as_deref().unwrap_or(&self.result)
    }

    /// Returns what hooks add for the model, each a text.
    #[must_use]
    pub fn context(&self) -> &[String] {
        &self.context
    }

    /// Returns how the call ended: by the upstream's own status, also where its answer was withheld (R31).
    #[must_use]
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// Returns why nothing of the upstream's answer is shown, if that is so.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        match &self.answer {
            CleanAnswer::Failure(failure) => Some(failure),
            CleanAnswer::Result(_) | CleanAnswer::Protocol(_) => None,
        }
    }
}

fn shown(target: &Target) -> String {
    text::shown(&target.to_string(), 256)
}
