//! Tools that are not in the list: `search_tools` finds them, `call_tool` calls them.
//!
//! What is found passes the same filters and sanitisers as a list, and counts as shown (R24, R25, R31). `call_tool` takes the
//! sealed reference that a search gave, and its call takes the same way as any other.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::call::{Callee, respond};
use super::handler::Gate;
use crate::adapters::mcp::client_side::Incoming;
use crate::host::listing::Listing;
use crate::host::seal::BadSeal;
use crate::host::session::{Hit, Session};
use crate::model::answer::ToolResult;
use crate::model::arguments::{Arguments, BadArguments};
use crate::model::text::shown;
use crate::pipeline::admit::search::{BadSearch, DEFAULT_LIMIT, MAX_LIMIT, SearchIndex};

/// The tool that finds tools.
pub(super) const SEARCH: &str = "search_tools";
/// The tool that calls them.
pub(super) const CALL: &str = "call_tool";
/// The size from which no tool is added to what a search returns, in bytes of JSON. One tool may have a mebibyte.
const MAX_FOUND: usize = 512 * 1024;

/// Why one of our own tools could not be used. The text is for the model.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    /// Not strict JSON, or no object.
    #[error("err: {0}")]
    Arguments(#[from] BadArguments),
    /// Of another shape.
    #[error("err: arguments of `{tool}` do not fit its input schema: {why}")]
    Shape {
        /// Which of ours.
        tool: &'static str,
        /// What the parser says.
        why: String,
    },
    /// Nothing was searched.
    #[error(transparent)]
    Search(#[from] BadSearch),
    /// The reference is not one.
    #[error(transparent)]
    Seal(#[from] BadSeal),
}

/// Finds tools and puts the answer into `incoming`.
pub(super) async fn find(gate: &Gate, incoming: &Incoming) {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Wanted {
        query: String,
        limit: Option<usize>,
    }
    let found = async {
        let Wanted { query, limit } = strictly(SEARCH, incoming.arguments())?;
        Ok::<_, Unusable>(gate.session.search(&query, limit).await?)
    };
    match found.await {
        Ok(hits) => respond(incoming, &result(&hits)),
        Err(bad) => refuse(incoming, &bad),
    }
}

/// Returns what a `call_tool` calls.
pub(super) fn callee<'a>(session: &Session, arguments: Option<&'a str>) -> Result<Callee<'a>, Unusable> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Wanted<'a> {
        tool: &'a str,
        #[serde(borrow)]
        arguments: Option<&'a RawValue>,
    }
    let Wanted { tool, arguments } = strictly(CALL, arguments)?;
    let target = session.unseal(tool)?;
    // As the client spelled them, without the members around them.
    Ok(Callee { name: tool, target, arguments: arguments.map_or("", RawValue::get) })
}

/// Answers a call of one of our own tools that came to nothing.
pub(super) fn refuse(incoming: &Incoming, why: &Unusable) {
    let mut result = Map::new();
    result.insert("content".to_owned(), json!([{ "type": "text", "text": why.to_string() }]));
    result.insert("isError".to_owned(), Value::Bool(true));
    respond(incoming, &ToolResult::edited(result));
}

/// Reads arguments of one of ours: strict as those of any tool (R26), then by their shape.
fn strictly<'a, T: Deserialize<'a>>(tool: &'static str, arguments: Option<&'a str>) -> Result<T, Unusable> {
    let text = arguments.filter(|text| *text != "null").unwrap_or("{}");
    Arguments::parse(text)?;
    serde_json::from_str(text).map_err(|error| Unusable::Shape { tool, why: shown(&error.to_string(), 256) })
}

fn result(hits: &[Hit]) -> ToolResult {
    let mut rows: Vec<Value> = Vec::new();
    let mut bytes = 0;
    for hit in hits {
        bytes += hit.definition.text().len();
        if !rows.is_empty() && bytes > MAX_FOUND {
            break;
        }
        let mut definition = hit.definition.value().clone();
        definition.insert("name".to_owned(), Value::from(hit.tool.flat.as_str()));
        rows.push(json!({ "tool": hit.seal, "server": hit.tool.server, "definition": definition }));
    }
    let mut found = json!({ "tools": rows });
    if let (Some(left_off), Some(found)) =
        (hits.len().checked_sub(rows.len()).filter(|n| *n > 0), found.as_object_mut())
    {
        found.insert("leftOff".to_owned(), Value::from(left_off));
    }
    let mut result = Map::new();
    result.insert("content".to_owned(), json!([{ "type": "text", "text": found.to_string() }]));
    result.insert("structuredContent".to_owned(), found);
    ToolResult::edited(result)
}

/// Returns the definitions of our own tools as elements of a list; nothing where tools are not found by search.
pub(super) fn ours(session: &Session, listing: &Listing) -> String {
    if listing.how().search { definitions(&session.index(listing)) } else { String::new() }
}

/// Nothing in them was written by a server.
fn definitions(index: &SearchIndex) -> String {
    let found_by = index.spec();
    let description = found_by.get("description").cloned().unwrap_or_default();
    let search = json!({
        "name": SEARCH,
        "title": "Search tools",
        "description": description,
        "inputSchema": {
            "type": "object",
            "properties": {
                "query": { "type": "string", "description": "What the tool should do, or its name, in a few English words." },
                "limit": {
                    "type": "integer", "minimum": 1, "maximum": MAX_LIMIT,
                    "description": format!("How many tools to return at most; {DEFAULT_LIMIT} if left out."),
                },
            },
            "required": ["query"],
            "additionalProperties": false,
        },
        "annotations": { "readOnlyHint": true, "openWorldHint": false },
    });
    let call = json!({
        "name": CALL,
        "title": "Call a tool that was found",
        "description": format!("Calls a tool that `{SEARCH}` has found."),
        "inputSchema": {
            "type": "object",
            "properties": {
                "tool": { "type": "string", "description": format!("The member `tool` of what `{SEARCH}` returned, whole.") },
                "arguments": { "type": "object", "description": "Arguments by the tool's own input schema." },
            },
            "required": ["tool"],
            "additionalProperties": false,
        },
    });
    format!("{search},{call}")
}
