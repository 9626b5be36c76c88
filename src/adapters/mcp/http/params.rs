//! Which arguments of a tool are HTTP headers, too (`x-mcp-header`, stateless era only).
//!
//! Learnt from the lists that the server gives. A tool whose annotations break the rules gets none of these headers.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::model::text;
use crate::ports::upstream::MAX_APPS_TOOLS;

/// The annotation of a property.
const ANNOTATION: &str = "x-mcp-header";
/// How the header's name begins.
const PREFIX: &str = "mcp-param-";
/// How many tools are remembered.
const MAX_TOOLS: usize = MAX_APPS_TOOLS;
/// How many headers one tool may ask for.
const MAX_HEADERS: usize = 32;
/// The longest value of such a header, in bytes; the body has it in any case.
const MAX_VALUE: usize = 4096;
/// How deep annotations are looked for.
const MAX_DEPTH: usize = 64;

/// An argument that is a header.
#[derive(Debug, Clone, PartialEq)]
struct Promoted {
    path: Vec<String>,
    header: HeaderName,
}

/// What was learnt of the tools of one server.
#[derive(Debug, Default)]
pub(super) struct ParamHeaders {
    tools: Mutex<HashMap<String, Arc<[Promoted]>>>,
    warned: AtomicBool,
}

impl ParamHeaders {
    /// Learns from the answer to a `tools/list`.
    pub(super) fn learn(&self, server: &str, answer: &str) {
        #[derive(Deserialize)]
        struct Answer {
            result: Listed,
        }
        #[derive(Deserialize)]
        struct Listed {
            tools: Vec<Tool>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Tool {
            name: String,
            #[serde(default)]
            input_schema: Map<String, Value>,
        }
        // Most lists have none.
        if !answer.contains(ANNOTATION) && self.tools.lock().is_empty() {
            return;
        }
        let Ok(Answer { result }) = serde_json::from_str(answer) else { return };
        let mut tools = self.tools.lock();
        for tool in result.tools {
            match promoted(&tool.input_schema) {
                Ok(list) if list.is_empty() => _ = tools.remove(&tool.name),
                Ok(list) if tools.len() < MAX_TOOLS => _ = tools.insert(tool.name, list.into()),
                Ok(_) => {}
                Err(why) => {
                    if !self.warned.swap(true, Ordering::Relaxed) {
                        let name = text::shown(&tool.name, 64);
                        tracing::warn!(target: "portcullis::upstream", server, "the `{ANNOTATION}` of tool `{name}` is ignored: {why}; further ones are not logged");
                    }
                    tools.remove(&tool.name);
                }
            }
        }
    }

    /// Adds the headers of a call.
    pub(super) fn add(&self, tool: &str, arguments: Option<&str>, headers: &mut HeaderMap) {
        let Some(list) = self.tools.lock().get(tool).cloned() else { return };
        let Some(Ok(arguments)) = arguments.map(serde_json::from_str::<Value>) else { return };
        for Promoted { path, header } in list.iter() {
            let value = path.iter().try_fold(&arguments, |value, key| value.get(key));
            let text = match value {
                Some(Value::String(text)) => text.clone(),
                Some(Value::Bool(flag)) => flag.to_string(),
                Some(Value::Number(number)) => number.to_string(),
                Some(Value::Null | Value::Array(_) | Value::Object(_)) | None => continue,
            };
            if let Some(mut value) = header_value(&text) {
                // An argument may be anything.
                value.set_sensitive(true);
                headers.insert(header.clone(), value);
            }
        }
    }
}

/// Returns a text as the value of a header, wrapped where it could not travel bare; `None`: it is too long.
pub(super) fn header_value(text: &str) -> Option<HeaderValue> {
    if text.len() > MAX_VALUE {
        return None;
    }
    let bare = text.bytes().all(|byte| (0x20..=0x7e).contains(&byte))
        && text.trim_matches([' ', '\t']) == text
        && !(text.starts_with("=?base64?") && text.ends_with("?="));
    if bare {
        return HeaderValue::from_str(text).ok();
    }
    HeaderValue::from_str(&format!("=?base64?{}?=", BASE64_STANDARD.encode(text))).ok()
}

/// Finds the annotations of a schema; the error is what is wrong with them.
fn promoted(schema: &Map<String, Value>) -> Result<Vec<Promoted>, String> {
    let mut found = Vec::new();
    let counted = along(schema, &mut Vec::new(), &mut found)?;
    if occurrences(&Value::Object(schema.clone()), 0) != counted {
        return Err("one is not on a property that is reached from the root through `properties` only".to_owned());
    }
    if found.len() > MAX_HEADERS {
        return Err(format!("there are more than {MAX_HEADERS}"));
    }
    let mut names = HashSet::new();
    if !found.iter().all(|promoted| names.insert(promoted.header.clone())) {
        return Err("two have the same name".to_owned());
    }
    Ok(found)
}

/// Walks the properties; returns how many annotations there were.
fn along(schema: &Map<String, Value>, path: &mut Vec<String>, found: &mut Vec<Promoted>) -> Result<usize, String> {
    let Some(Value::Object(properties)) = schema.get("properties") else { return Ok(0) };
    if path.len() >= MAX_DEPTH {
        return Ok(0);
    }
    let mut count = 0;
    for (name, property) in properties {
        let Value::Object(property) = property else { continue };
        path.push(name.clone());
        if let Some(annotation) = property.get(ANNOTATION) {
            count += 1;
            let header = annotation.as_str().filter(|name| !name.is_empty());
            let header = header.and_then(|name| HeaderName::from_bytes(format!("{PREFIX}{name}").as_bytes()).ok());
            let Some(header) = header else { return Err("one is no name of a header".to_owned()) };
            if !matches!(property.get("type").and_then(Value::as_str), Some("string" | "integer" | "boolean")) {
                return Err("one is on a property that is no string, integer or boolean".to_owned());
            }
            found.push(Promoted { path: path.clone(), header });
        }
        count += along(property, path, found)?;
        path.pop();
    }
    Ok(count)
}

/// Counts annotations in whatever is a schema or may hold one.
fn occurrences(value: &Value, depth: usize) -> usize {
    if depth > 2 * MAX_DEPTH {
        return 0;
    }
    match value {
        Value::Object(members) => members
            .iter()
            .map(|(key, value)| match key.as_str() {
                ANNOTATION if value.is_string() => 1,
                // Data and names, no schemas.
                "default" | "const" | "enum" | "examples" | "dependentRequired" => 0,
                _ => occurrences(value, depth + 1),
            })
            .sum(),
        Value::Array(items) => items.iter().map(|item| occurrences(item, depth + 1)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(schema: Value) -> Result<Vec<Promoted>, String> {
        let Value::Object(schema) = schema else { panic!("a schema is an object") };
        promoted(&schema)
    }

    #[test]
    fn annotations_are_found_along_properties_only() {
        let nested = json!({ "properties": { "a": { "type": "object", "properties": {
            "b": { "type": "integer", "x-mcp-header": "Region" } } } } });
        let found = of(nested).unwrap();
        assert_eq!(
            found,
            [Promoted { path: vec!["a".into(), "b".into()], header: "mcp-param-region".parse().unwrap() }]
        );
        let items = json!({ "properties": { "a": { "items": { "type": "string", "x-mcp-header": "X" } } } });
        assert!(of(items).unwrap_err().contains("through `properties`"));
        assert!(of(json!({ "x-mcp-header": "X" })).unwrap_err().contains("through `properties`"));
        assert_eq!(of(json!({ "properties": { "a": { "default": { "x-mcp-header": "X" } } } })).unwrap(), []);
    }

    #[test]
    fn annotations_that_break_the_rules_are_refused() {
        let with =
            |kind: &str, header: Value| of(json!({ "properties": { "a": { "type": kind, "x-mcp-header": header } } }));
        assert!(with("string", json!("a b")).unwrap_err().contains("no name"));
        assert!(with("string", json!("")).unwrap_err().contains("no name"));
        assert!(with("number", json!("X")).unwrap_err().contains("no string"));
        let twice = json!({ "properties": { "a": { "type": "string", "x-mcp-header": "X" },
            "b": { "type": "string", "x-mcp-header": "x" } } });
        assert!(of(twice).unwrap_err().contains("same name"));
    }

    #[test]
    fn a_value_that_cannot_travel_bare_is_wrapped() {
        let shown = |text: &str| header_value(text).unwrap().to_str().unwrap().to_owned();
        assert_eq!(shown("plain text"), "plain text");
        assert_eq!(shown(" x"), "=?base64?IHg=?=");
        assert_eq!(shown("é\n"), "=?base64?w6kK?=");
        assert_eq!(shown("=?base64?x?="), "=?base64?PT9iYXNlNjQ/eD89?=");
        assert_eq!(shown(""), "");
        assert!(header_value(&"x".repeat(MAX_VALUE + 1)).is_none());
    }

    #[test]
    fn what_a_list_says_goes_with_the_next_call_and_a_later_list_takes_it_back() {
        let learnt = ParamHeaders::default();
        let list =
            |schema: Value| json!({ "result": { "tools": [{ "name": "t", "inputSchema": schema }] } }).to_string();
        let headers = || {
            let mut headers = HeaderMap::new();
            learnt.add("t", Some(r#"{"a":"x","n":null}"#), &mut headers);
            headers
        };
        let annotated =
            |name: &str, header: &str| json!({ "properties": { name: { "type": "string", "x-mcp-header": header } } });
        learnt.learn("s", &list(annotated("a", "X")));
        assert_eq!(headers()["mcp-param-x"], "x");
        learnt.learn("s", &list(annotated("n", "X")));
        assert!(headers().is_empty(), "null is no value");
        learnt.learn("s", &list(annotated("a", "X")));
        learnt.learn("s", &list(annotated("a", "no name")));
        assert!(headers().is_empty());
    }
}
