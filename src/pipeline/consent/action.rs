//! The action that an auto reviewer is told of: one JSON object, bounded (approval-results 3.4).

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::model::tool::Hints;
use crate::model::truncate::{self, Policy};
use crate::pipeline::bind::prepare::Prepared;
use crate::ports::approval::Kind;

/// The longest action, in bytes of JSON.
pub const MAX_ACTION: usize = 1024 * 1024;
/// The longest text in it: about 16,000 tokens.
const MAX_TEXT: Policy = Policy::Tokens(16_000);
/// The longest text of an action that is too long as a whole.
const SHORT_TEXT: Policy = Policy::Tokens(1_000);
/// How much is kept of the arguments of such an action, as one text: at most twice as much once it is quoted.
const SHORT_ARGUMENTS: Policy = Policy::Tokens(64_000);
/// The most files that such an action names.
const SHORT_FILES: usize = 16;

/// An action, as a reviewer is told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Action {
    /// A JSON object with sorted keys, at most [`MAX_ACTION`] bytes. Untrusted: the server's and the model's words.
    pub text: Arc<str>,
    /// Whether something was cut for its length. Such an action cannot be allowed (R22).
    pub cut: bool,
}

/// Makes the action of a prepared call. What is a connector's is told for tools of Apps only (R9).
///
/// `title` and `description` are the tool's, as far as the sanitisers leave them to be shown (R31). Beside the fields of the
/// reference it holds the `files` that the arguments name, with the digests of their bytes (R27).
#[must_use]
pub fn action(prepared: &Prepared, title: Option<&str>, description: Option<&str>) -> Action {
    let tool = prepared.tool();
    let mut own = Map::new();
    let mut put = |key: &str, text: Option<&str>| {
        if let Some(text) = text {
            own.insert(key.to_owned(), text.into());
        }
    };
    put("tool", Some(what(prepared.kind())));
    put("server", Some(tool.server.as_str()));
    put("tool_name", Some(tool.definition.name().as_str()));
    put("tool_title", title);
    put("tool_description", description);
    if let Some(connector) = &tool.connector {
        put("connector_id", Some(&connector.id));
        put("connector_name", connector.name.as_deref());
        put("connector_description", connector.description.as_deref());
        put("connected_account_email", connector.account.as_deref());
    }
    if let Some(hints) = annotations(tool.hints) {
        own.insert("annotations".to_owned(), hints);
    }
    let files: Vec<Value> = prepared.files().into_iter().flat_map(|files| files.iter()).map(file).collect();
    written(own, prepared.arguments().object().cloned().map(Value::Object), files)
}

/// What would go to the server, in a word that no tool can choose.
fn what(kind: Kind) -> &'static str {
    match kind {
        Kind::Tool => "mcp_tool_call",
        Kind::Read => "mcp_resource_read",
        Kind::Prompt => "mcp_prompt",
        Kind::Completion => "mcp_completion",
        Kind::Reply => "mcp_reply",
    }
}

/// The hints that count.
fn annotations(hints: Hints) -> Option<Value> {
    let known = [
        ("destructive_hint", hints.destructive),
        ("open_world_hint", hints.open_world),
        ("read_only_hint", hints.read_only),
    ];
    let known: Map<_, _> = known.into_iter().filter_map(|(key, hint)| Some((key.to_owned(), hint?.into()))).collect();
    (!known.is_empty()).then_some(Value::Object(known))
}

fn file(file: &crate::pipeline::bind::files::BoundFile) -> Value {
    let facts = file.facts();
    json!({ "argument": file.field(), "bytes": facts.length, "path": file.path(), "sha256": facts.sha256 })
}

fn written(own: Map<String, Value>, arguments: Option<Value>, files: Vec<Value>) -> Action {
    let (mut whole, mut cut) = (Value::Object(own), false);
    if let Value::Object(members) = &mut whole {
        members.extend(arguments.clone().map(|arguments| ("arguments".to_owned(), arguments)));
        if !files.is_empty() {
            members.insert("files".to_owned(), files.into());
        }
    }
    shorten(&mut whole, MAX_TEXT, &mut cut);
    whole.sort_all_objects();
    let text = whole.to_string();
    if text.len() <= MAX_ACTION {
        return Action { text: text.into(), cut };
    }
    if let Value::Object(members) = &mut whole {
        if let Some(Value::Array(files)) = members.get_mut("files") {
            files.truncate(SHORT_FILES);
        }
        members.remove("arguments");
    }
    shorten(&mut whole, SHORT_TEXT, &mut cut);
    if let (Value::Object(members), Some(mut arguments)) = (&mut whole, arguments) {
        arguments.sort_all_objects();
        let arguments = truncate::cut(&arguments.to_string(), SHORT_ARGUMENTS);
        members.insert("arguments".to_owned(), arguments.into());
    }
    whole.sort_all_objects();
    Action { text: whole.to_string().into(), cut: true }
}

/// Cuts every text out of its middle, keys included.
fn shorten(value: &mut Value, policy: Policy, cut: &mut bool) {
    let is_long = |text: &str| policy.cost(text.len()) > policy.budget();
    match value {
        Value::String(text) if is_long(text) => {
            *text = truncate::cut(text, policy);
            *cut = true;
        }
        Value::Array(items) => items.iter_mut().for_each(|item| shorten(item, policy, cut)),
        Value::Object(members) => {
            if members.keys().any(|key| is_long(key)) {
                *cut = true;
                let short =
                    std::mem::take(members).into_iter().map(|(key, value)| (truncate::cut(&key, policy), value));
                *members = short.collect();
            }
            members.values_mut().for_each(|member| shorten(member, policy, cut));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(own: &Value, arguments: Option<Value>) -> Action {
        written(own.as_object().unwrap().clone(), arguments, Vec::new())
    }

    #[test]
    fn keys_are_sorted_and_what_is_short_stays_as_it_is() {
        let action =
            of(&json!({ "tool": "mcp_tool_call", "server": "s" }), Some(json!({ "b": 1, "a": { "d": 1, "c": [] } })));
        let wanted = r#"{"arguments":{"a":{"c":[],"d":1},"b":1},"server":"s","tool":"mcp_tool_call"}"#;
        assert_eq!((&*action.text, action.cut), (wanted, false));
        assert_eq!(&*of(&json!({ "server": "s" }), None).text, r#"{"server":"s"}"#);
    }

    #[test]
    fn r22_a_long_text_is_cut_in_its_middle_wherever_it_is_and_the_action_says_so() {
        let fits = "x".repeat(64_000);
        assert!(!of(&json!({}), Some(json!({ "a": fits }))).cut);
        let long = format!("begin{}end", "x".repeat(64_000));
        for arguments in [json!({ "a": [{ "b": long }] }), json!({ long.clone(): 1 })] {
            let action = of(&json!({}), Some(arguments));
            assert!(action.cut && action.text.len() < 65_000);
            assert!(action.text.contains("begin") && action.text.contains(" tokens truncated…"));
        }
    }

    #[test]
    fn r22_an_action_is_bounded_as_a_whole() {
        let control = "\u{1}".repeat(63_000);
        let own = json!({ "tool_description": control, "tool_title": control, "connector_name": control });
        let files = vec![json!({ "path": control }); 100];
        let many: Map<_, _> = (0..4000).map(|n| (format!("k{n}"), "\u{1}".repeat(200).into())).collect();
        let action = written(own.as_object().unwrap().clone(), Some(Value::Object(many)), files);
        assert!(action.cut && action.text.len() <= MAX_ACTION, "{}", action.text.len());
        assert!(serde_json::from_str::<Value>(&action.text).unwrap()["arguments"].is_string());
    }
}
