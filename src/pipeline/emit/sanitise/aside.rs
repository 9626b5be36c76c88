//! What is shown besides answers: progress messages, log messages, tool definitions (R31).
//!
//! The same sanitisers by the same rules, without their labels and without observing: nothing here is the effect of a call
//! (R33). What is withheld, or of which a sanitiser fails, is left out.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::sweep::{self, About, Document, Sanitiser, Withheld};
use super::targets::Shape;
use crate::ports::approval::PolicySet;

/// What came of looking at something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Aside<T> {
    /// It may be shown as it is.
    Whole,
    /// This is left of it.
    Edited(T),
    /// Nothing of it may be shown. The text is for people and records.
    Withheld(String),
}

/// Looks at the message of a progress notification.
pub async fn progress(policies: &PolicySet, about: &About, message: &str) -> Aside<String> {
    let root = Map::from_iter([("message".to_owned(), Value::from(message))]);
    let text = |mut root: Map<String, Value>| match root.remove("message") {
        Some(Value::String(text)) => Aside::Edited(text),
        _ => Aside::Withheld("the message is gone".to_owned()),
    };
    match swept(&sweep::matching(policies, about), about, root, Shape::Progress, None).await {
        Aside::Whole => Aside::Whole,
        Aside::Edited(document) => text(document.root),
        Aside::Withheld(why) => Aside::Withheld(why),
    }
}

/// Looks at what is said about a tool beside its definition and its answers: by a hook, or of its connector (R31).
pub async fn words(policies: &PolicySet, about: &About, text: &str) -> Aside<String> {
    progress(policies, about, text).await
}

/// Looks at a log message of a server: its logger and its data. No tool is behind it, so every sanitiser is asked that would
/// be for any of the server's tools in `tools`, and all of them if it has none yet.
pub async fn log(
    policies: &PolicySet,
    tools: &[About],
    about: &About,
    logger: Option<&str>,
    data: &Value,
) -> Aside<(Option<String>, Value)> {
    let matches = |of: &&Sanitiser| {
        let by = |about: &About| of.matches.matches(about.kind, &about.tool, about.identity);
        tools.is_empty() || by(about) || tools.iter().any(by)
    };
    let sanitisers: Vec<&Sanitiser> = policies.sanitisers.iter().filter(matches).collect();
    let mut root = Map::from_iter([("data".to_owned(), data.clone())]);
    root.extend(logger.map(|logger| ("logger".to_owned(), logger.into())));
    match swept(&sanitisers, about, root, Shape::Log, None).await {
        Aside::Whole => Aside::Whole,
        Aside::Edited(mut document) => {
            let logger = document.root.remove("logger").and_then(|logger| logger.as_str().map(str::to_owned));
            Aside::Edited((logger, document.root.remove("data").unwrap_or_default()))
        }
        Aside::Withheld(why) => Aside::Withheld(why),
    }
}

/// Looks at a tool's definition, as a value and as it would be served. Returns what is left if something was removed. Where
/// edits take from its name or from any key, it is withheld in the name of whoever edited it so.
pub(super) async fn definition(
    policies: &PolicySet,
    about: &About,
    value: &Map<String, Value>,
    text: &Arc<str>,
) -> Result<Option<Map<String, Value>>, Withheld> {
    let matching = sweep::matching(policies, about);
    let enforced: Vec<&Sanitiser> = matching.into_iter().filter(|sanitiser| !sanitiser.observe).collect();
    if enforced.is_empty() {
        return Ok(None);
    }
    let mut document = Document::new(value.clone(), Shape::Definition, Some(Arc::clone(text)));
    let swept = sweep::sweep(&enforced, about, &mut document).await;
    if let Some(withheld) = swept.withheld {
        return Err(withheld);
    }
    let bad = document.removed.iter().zip(swept.editors);
    match bad.into_iter().find(|(removals, _)| removals.touch_keys() || removals.touch("/name")) {
        Some((_, origin)) => {
            let why = "edits of a name or a key leave no definition".to_owned();
            Err(Withheld { origin, why, fault: false })
        }
        None => Ok(document.is_edited().then_some(document.root)),
    }
}

async fn swept(
    sanitisers: &[&Sanitiser],
    about: &About,
    root: Map<String, Value>,
    shape: Shape,
    spelled: Option<Arc<str>>,
) -> Aside<Document> {
    let enforced: Vec<&Sanitiser> = sanitisers.iter().copied().filter(|sanitiser| !sanitiser.observe).collect();
    if enforced.is_empty() {
        return Aside::Whole;
    }
    let mut document = Document::new(root, shape, spelled);
    let swept = sweep::sweep(&enforced, about, &mut document).await;
    match swept.withheld {
        Some(withheld) => Aside::Withheld(withheld.why),
        None if document.is_edited() => Aside::Edited(document),
        None => Aside::Whole,
    }
}
