//! What every tool is called with, what of an answer cannot be the same twice, and which tools are not called.

use serde_json::{Map, Value, json};

use super::servers::{Over, Server};

/// What of an answer is different at every call, by the nature of the tool.
#[derive(Debug, Clone, Copy)]
pub(super) enum Varies {
    /// The text between each `after` and the next `until`.
    Value { after: &'static str, until: &'static str },
    /// A text that only the gateway's answer has, from `from` to `to`.
    Added { from: &'static str, to: &'static str },
}

/// One call. `{folder}` in the arguments stands for the folder of the server's state.
pub(super) struct Call {
    pub(super) kind: &'static str,
    pub(super) tool: &'static str,
    pub(super) arguments: &'static str,
    pub(super) varies: &'static [Varies],
}

const fn call(kind: &'static str, tool: &'static str, arguments: &'static str) -> Call {
    Call { kind, tool, arguments, varies: &[] }
}

const fn varying(kind: &'static str, tool: &'static str, arguments: &'static str, varies: &'static [Varies]) -> Call {
    Call { kind, tool, arguments, varies }
}

/// The time of day, in a text that ends with it.
const TIME_OF_DAY: &[Varies] = &[Varies::Value { after: "created at ", until: "\"" }];
/// The time of day, in a text that was encoded.
const ENCODED_TIME: &[Varies] = &[Varies::Value { after: r#""blob":""#, until: "\"" }];
/// The time, and what follows from the date; a test may run over midnight.
const NOW: &[Varies] = &[
    Varies::Value { after: r#"\"datetime\": \""#, until: "\\" },
    Varies::Value { after: r#"\"day_of_week\": \""#, until: "\\" },
];
/// When a file was made and used: two copies are not made at once.
const TIMES_OF_A_FILE: &[Varies] = &[
    Varies::Value { after: "created: ", until: "\\n" },
    Varies::Value { after: "modified: ", until: "\\n" },
    Varies::Value { after: "accessed: ", until: "\\n" },
];
/// The session's id, which a server over HTTP makes up. Over stdio it is `undefined`.
const SESSION: &[Varies] = &[Varies::Value { after: "for session ", until: " " }];
/// The same at the end of the text.
const LAST_SESSION: &[Varies] = &[Varies::Value { after: "for session ", until: "\"" }];
/// The id that a server makes up for its question.
const ELICITATION: &[Varies] = &[Varies::Value { after: "Elicitation ID: ", until: ")" }];
/// The server tells everything that it was sent: the request has an identity of the gateway's besides.
const REQUEST_IDENTITY: &[Varies] = &[Varies::Added { from: r#",\"_meta\":{\"callId\":"#, to: "}" }];

/// Calls in this order for each server: what one of them writes another reads.
pub(super) const CALLS: &[Call] = &[
    call("everything", "echo", r#"{"message":"grüße \" \\ \u0007 🦀"}"#),
    call("everything", "get-annotated-message", r#"{"messageType":"error","includeImage":true}"#),
    call("everything", "get-env", "{}"),
    call("everything", "get-resource-links", r#"{"count":3}"#),
    varying("everything", "get-resource-reference", r#"{"resourceType":"Text","resourceId":3}"#, TIME_OF_DAY),
    varying("everything", "get-resource-reference", r#"{"resourceType":"Blob","resourceId":1}"#, ENCODED_TIME),
    call("everything", "get-resource-reference", r#"{"resourceType":"Text","resourceId":-1.5}"#),
    call("everything", "get-structured-content", r#"{"location":"Chicago"}"#),
    call("everything", "get-sum", r#"{"a":0.1,"b":0.2}"#),
    call("everything", "get-sum", r#"{"a":"one","b":2}"#),
    call("everything", "gzip-file-as-resource", r#"{"name":"a.gz","data":"data:text/plain,hello"}"#),
    call(
        "everything",
        "gzip-file-as-resource",
        r#"{"name":"b.gz","data":"data:text/plain,hello","outputType":"resource"}"#,
    ),
    varying("everything", "toggle-simulated-logging", "{}", SESSION),
    varying("everything", "toggle-simulated-logging", "{}", LAST_SESSION),
    varying("everything", "toggle-subscriber-updates", "{}", SESSION),
    varying("everything", "toggle-subscriber-updates", "{}", LAST_SESSION),
    call("everything", "trigger-long-running-operation", r#"{"duration":0.01,"steps":2}"#),
    call("everything", "trigger-sampling-request", r#"{"prompt":"say it","maxTokens":10}"#),
    varying("everything", "trigger-url-elicitation", r#"{"url":"https://example.org/"}"#, ELICITATION),
    call("filesystem", "read_text_file", r#"{"path":"{folder}/lines.txt"}"#),
    call("filesystem", "read_text_file", r#"{"path":"{folder}/lines.txt","tail":2}"#),
    call("filesystem", "read_text_file", r#"{"path":"{folder}/missing.txt"}"#),
    call("filesystem", "read_text_file", r#"{"path":"/outside/of/it"}"#),
    call("filesystem", "read_file", r#"{"path":"{folder}/lines.txt","head":1}"#),
    call("filesystem", "read_media_file", r#"{"path":"{folder}/pixel.gif"}"#),
    call(
        "filesystem",
        "read_multiple_files",
        r#"{"paths":["{folder}/lines.txt","{folder}/missing","{folder}/sub/inner.txt"]}"#,
    ),
    call("filesystem", "write_file", r#"{"path":"{folder}/written.txt","content":"a\nb\nc\n"}"#),
    call(
        "filesystem",
        "edit_file",
        r#"{"path":"{folder}/written.txt","edits":[{"oldText":"b","newText":"B"}],"dryRun":true}"#,
    ),
    call("filesystem", "edit_file", r#"{"path":"{folder}/written.txt","edits":[{"oldText":"b","newText":"B"}]}"#),
    call("filesystem", "create_directory", r#"{"path":"{folder}/made/deep"}"#),
    call("filesystem", "move_file", r#"{"source":"{folder}/written.txt","destination":"{folder}/made/moved.txt"}"#),
    call("filesystem", "read_text_file", r#"{"path":"{folder}/made/moved.txt"}"#),
    call("filesystem", "list_directory", r#"{"path":"{folder}"}"#),
    call("filesystem", "list_directory_with_sizes", r#"{"path":"{folder}/sub","sortBy":"size"}"#),
    call("filesystem", "directory_tree", r#"{"path":"{folder}","excludePatterns":["made"]}"#),
    call("filesystem", "search_files", r#"{"path":"{folder}","pattern":"**/*.md"}"#),
    varying("filesystem", "get_file_info", r#"{"path":"{folder}/lines.txt"}"#, TIMES_OF_A_FILE),
    call("filesystem", "list_allowed_directories", "{}"),
    call(
        "memory",
        "create_entities",
        r#"{"entities":[{"name":"a","entityType":"t","observations":["x","ü"]},{"name":"b","entityType":"t","observations":[]}]}"#,
    ),
    call("memory", "create_relations", r#"{"relations":[{"from":"a","to":"b","relationType":"knows"}]}"#),
    call("memory", "add_observations", r#"{"observations":[{"entityName":"b","contents":["y","z"]}]}"#),
    call("memory", "add_observations", r#"{"observations":[{"entityName":"nobody","contents":["y"]}]}"#),
    call("memory", "read_graph", "{}"),
    call("memory", "search_nodes", r#"{"query":"y"}"#),
    call("memory", "open_nodes", r#"{"names":["a","nobody"]}"#),
    call("memory", "delete_observations", r#"{"deletions":[{"entityName":"b","observations":["y"]}]}"#),
    call("memory", "delete_relations", r#"{"relations":[{"from":"a","to":"b","relationType":"knows"}]}"#),
    call("memory", "delete_entities", r#"{"entityNames":["a"]}"#),
    call("memory", "read_graph", "{}"),
    call(
        "thinking",
        "sequentialthinking",
        r#"{"thought":"first","thoughtNumber":1,"totalThoughts":2,"nextThoughtNeeded":true}"#,
    ),
    call(
        "thinking",
        "sequentialthinking",
        r#"{"thought":"second","thoughtNumber":2,"totalThoughts":2,"nextThoughtNeeded":false,"isRevision":true,"revisesThought":1}"#,
    ),
    varying("time", "get_current_time", r#"{"timezone":"Europe/Berlin"}"#, NOW),
    call("time", "get_current_time", r#"{"timezone":"Nowhere/At_All"}"#),
    varying(
        "time",
        "convert_time",
        r#"{"source_timezone":"UTC","time":"12:34","target_timezone":"Asia/Kathmandu"}"#,
        NOW,
    ),
    call("git", "git_status", r#"{"repo_path":"{folder}"}"#),
    call("git", "git_diff_unstaged", r#"{"repo_path":"{folder}","context_lines":1}"#),
    call("git", "git_add", r#"{"repo_path":"{folder}","files":["tracked.txt","new.txt"]}"#),
    call("git", "git_diff_staged", r#"{"repo_path":"{folder}"}"#),
    call("git", "git_reset", r#"{"repo_path":"{folder}"}"#),
    call("git", "git_add", r#"{"repo_path":"{folder}","files":["new.txt"]}"#),
    call("git", "git_commit", r#"{"repo_path":"{folder}","message":"third"}"#),
    call("git", "git_log", r#"{"repo_path":"{folder}","max_count":5}"#),
    call("git", "git_show", r#"{"repo_path":"{folder}","revision":"HEAD~1"}"#),
    call("git", "git_diff", r#"{"repo_path":"{folder}","target":"HEAD~2"}"#),
    call("git", "git_create_branch", r#"{"repo_path":"{folder}","branch_name":"side"}"#),
    call("git", "git_checkout", r#"{"repo_path":"{folder}","branch_name":"side"}"#),
    call("git", "git_branch", r#"{"repo_path":"{folder}","branch_type":"local"}"#),
    call("git", "git_status", r#"{"repo_path":"/outside/of/it"}"#),
    call("fast", "add", r#"{"a":2,"b":40}"#),
    call("fast", "add", r#"{"a":"two","b":40}"#),
    call("fast", "greet", r#"{"name":"Zoë","polite":true}"#),
    call("fast", "steps", r#"{"count":3}"#),
    varying("ours", "echo", r#"{"b":1.5,"a":[null,true]}"#, REQUEST_IDENTITY),
    call("ours", "add", r#"{"a":2,"b":40}"#),
    call(
        "odd",
        "raw",
        r#"{"text":"{\"zeta\": 1.50, \"content\":[ ],\"isError\" :false,\"_meta\":{\"b\":1e2,\"a\":2}}"}"#,
    ),
];

/// Tools that are listed and not called, and why.
pub(super) const NOT_CALLED: &[(&str, &str, &str)] =
    &[("fetch", "fetch", "needs the network"), ("ours", "hang", "answers nothing"), ("ours", "die", "ends its server")];

/// Tools whose call asks its client. Over HTTP they are not called: the client of this test answers over pipes only.
const ASKS_ITS_CLIENT: &[(&str, &str)] = &[
    ("everything", "get-roots-list"),
    ("everything", "trigger-elicitation-request"),
    ("everything", "trigger-elicitation-request-async"),
    ("everything", "trigger-sampling-request"),
    ("everything", "trigger-sampling-request-async"),
    ("everything", "trigger-url-elicitation"),
];

/// Why a tool is not called.
pub(super) fn why_not(server: Server, tool: &str) -> Option<&'static str> {
    let told = NOT_CALLED.iter().find(|entry| (entry.0, entry.1) == (server.kind, tool)).map(|entry| entry.2);
    let asks = || ASKS_ITS_CLIENT.contains(&(server.kind, tool)) && server.over == Over::Http;
    told.or_else(|| asks().then_some("asks its client, which is over HTTP"))
}

/// Makes arguments that a schema takes: what it requires, and nothing else.
pub(super) fn made_up(schema: &Value) -> Value {
    if let Some(value) = schema.get("const").or_else(|| schema.get("default")) {
        return value.clone();
    }
    if let Some(first) = ["enum", "examples"].iter().find_map(|key| schema.get(key)?.get(0)) {
        return first.clone();
    }
    if let Some(first) = ["anyOf", "oneOf", "allOf"].iter().find_map(|key| schema.get(key)?.get(0)) {
        return made_up(first);
    }
    let kind = schema.get("type").and_then(|kind| kind.as_str().or_else(|| kind.get(0)?.as_str()));
    match kind {
        Some("string") if schema["format"] == "uri" => json!("data:text/plain,made-up"),
        Some("string") => json!("made up"),
        Some("integer" | "number") => schema.get("minimum").cloned().unwrap_or_else(|| json!(1)),
        Some("boolean") => json!(true),
        Some("array") => json!([made_up(&schema["items"])]),
        Some("null") => Value::Null,
        _ => {
            let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            Value::Object(
                required.map(|name| (name.to_owned(), made_up(&schema["properties"][name]))).collect::<Map<_, _>>(),
            )
        }
    }
}

impl Varies {
    /// Takes out of an answer what varies; `None` if it is not there.
    pub(super) fn taken_out(self, text: &str) -> Option<String> {
        let (after, until, kept) = match self {
            Self::Value { after, until } => (after, until, true),
            Self::Added { from, to } => (from, to, false),
        };
        let (mut out, mut rest) = (String::new(), text);
        while let Some((before, found)) = rest.split_once(after) {
            let end = found.find(until)?;
            out.push_str(before);
            if kept {
                out.push_str(after);
                out.push('*');
                rest = &found[end..];
            } else {
                rest = &found[end + until.len()..];
            }
        }
        (rest.len() < text.len()).then(|| out + rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_varies_is_taken_out_and_nothing_else() {
        let time = Varies::Value { after: "at ", until: "\"" };
        assert_eq!(time.taken_out(r#"{"a":"at 12","b":"at 13"}"#).unwrap(), r#"{"a":"at *","b":"at *"}"#);
        assert_eq!(time.taken_out(r#"{"a":12}"#), None);
        let added = Varies::Added { from: ",meta:{", to: "}" };
        assert_eq!(added.taken_out("{a:1,meta:{b:2}}").unwrap(), "{a:1}");
    }

    #[test]
    fn made_up_arguments_are_what_the_schema_requires() {
        let schema = json!({
            "type": "object",
            "required": ["s", "n", "l", "e", "o", "u"],
            "properties": {
                "s": { "type": "string" }, "n": { "type": "integer", "minimum": 3 },
                "l": { "type": "array", "items": { "type": ["boolean", "null"] } }, "e": { "enum": ["x", "y"] },
                "o": { "type": "object" }, "u": { "anyOf": [{ "type": "number" }, { "type": "null" }] },
                "optional": { "type": "string" },
            },
        });
        let wanted = json!({ "s": "made up", "n": 3, "l": [true], "e": "x", "o": {}, "u": 1 });
        assert_eq!(made_up(&schema), wanted);
    }
}
