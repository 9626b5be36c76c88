//! An MCP server that does what a test tells it: by flags for its start and its list, by tools for the rest.
//!
//! Standard library and `serde_json` only, so that it shares no mistake with what it tests.
//!
//! Flags: `--exit CODE`, `--stderr TEXT`, `--silent` (answers nothing), `--stubborn` (outlives the end of its input),
//! `--deaf` (reads nothing after the handshake),
//! `--rubbish` (before the handshake), `--early WORD` (what should not come before its end), `--changes N` (that many
//! `list_changed` at once), `--version V`, `--wants-sandbox` (asks for the sandbox's state), `--init-error`, `--init-null`, `--all` (lists the tools for bad behaviour too),
//! `--list MODE` with `pages`, `repeated`, `endless`, `long-cursor`, `many`, `duplicate`, `bad-schema`, `error`, `no-list`,
//! `never`, `unknown`, `odd` (tools whose answers are odd on the wire).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a broken script shall be seen")]

use std::collections::HashMap;
use std::io::{BufRead as _, Write as _};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

#[derive(Default)]
struct State {
    /// Ids that were cancelled, with the reason.
    cancelled: Mutex<Vec<(String, String)>>,
    news: Condvar,
    asked: Mutex<HashMap<String, Sender<Value>>>,
    extra_tool: Mutex<bool>,
}

struct Script {
    flags: Vec<String>,
    state: State,
}

impl Script {
    fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|given| given == flag)
    }

    fn value(&self, flag: &str) -> Option<&str> {
        let at = self.flags.iter().position(|given| given == flag)?;
        self.flags.get(at + 1).map(String::as_str)
    }
}

fn put(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    // The other side may have gone; then so do we, at the end of the input.
    let _ = out.write_all(bytes).and_then(|()| out.flush());
}

fn say(message: &Value) {
    put(format!("{message}\n").as_bytes());
}

fn answer(id: &Value, result: &Value) {
    say(&json!({ "jsonrpc": "2.0", "id": id, "result": result }));
}

fn answer_raw(id: &Value, result: &str) {
    put(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}\n").as_bytes());
}

fn refuse(id: &Value, code: i64, message: &str, data: &Value) {
    let error = json!({ "code": code, "message": message, "data": data });
    say(&json!({ "jsonrpc": "2.0", "id": id, "error": error }));
}

fn notify(method: &str, params: &Value) {
    say(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
}

fn text(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

fn main() {
    let script = Arc::new(Script { flags: std::env::args().skip(1).collect(), state: State::default() });
    if let Some(words) = script.value("--stderr") {
        eprintln!("{words}");
    }
    if let Some(code) = script.value("--exit") {
        std::process::exit(code.parse().unwrap());
    }
    if script.has("--rubbish") {
        put(b"Server starting on stdio...\n\xff\xfe\x00\n{\"level\":\"info\"}\n[1,2]\n\n{\"jsonrpc\":\n");
    }
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
        if !script.has("--silent") {
            take(&script, message);
        }
        while script.has("--deaf") && line.contains("notifications/initialized") {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    while script.has("--stubborn") {
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn take(script: &Arc<Script>, message: Value) {
    let id = message["id"].clone();
    let params = message["params"].clone();
    match message["method"].as_str() {
        Some("initialize") => initialize(script, &id),
        Some("notifications/initialized") => {
            for _ in 0..script.value("--changes").map_or(0, |count| count.parse().unwrap()) {
                notify("notifications/tools/list_changed", &json!({}));
            }
        }
        Some("notifications/cancelled") => {
            let entry = (params["requestId"].to_string(), params["reason"].as_str().unwrap_or_default().to_owned());
            script.state.cancelled.lock().unwrap().push(entry);
            script.state.news.notify_all();
        }
        Some("tools/list") => list(script, &id, &params),
        Some("tools/call") => {
            let script = script.clone();
            std::thread::spawn(move || call(&script, &id, &params));
        }
        Some(_) if !id.is_null() => refuse(&id, -32601, "no such method", &Value::Null),
        Some(_) => {}
        None => {
            if let Some(asked) = script.state.asked.lock().unwrap().remove(&id.to_string()) {
                let _ = asked.send(message);
            }
        }
    }
}

fn initialize(script: &Script, id: &Value) {
    if let Some(secret) = script.value("--early") {
        early(secret);
    }
    if script.has("--init-error") {
        return refuse(id, -32000, "not today", &Value::Null);
    }
    if script.has("--init-null") {
        return answer(id, &Value::Null);
    }
    // What a server may do before it has answered: log, announce, ping.
    notify("notifications/message", &json!({ "level": "info", "logger": "start", "data": "hello" }));
    say(&json!({ "jsonrpc": "2.0", "id": "early", "method": "ping" }));
    let version = script.value("--version").unwrap_or("2025-11-25");
    let experimental = if script.has("--wants-sandbox") { "codex/sandbox-state-meta" } else { "odd" };
    answer(
        id,
        &json!({
            "protocolVersion": version,
            "capabilities": { "tools": { "listChanged": true }, "experimental": { experimental: {} } },
            "serverInfo": { "name": "scripted", "version": "1", "unknown": true },
            "instructions": "Be brief.",
        }),
    );
}

/// What should not come before the handshake is over, each with a word that nobody may repeat.
fn early(secret: &str) {
    notify("notifications/progress", &json!({ "progressToken": 0, "progress": 1, "message": secret }));
    notify("notifications/odd", &json!({ "secret": secret }));
    say(&json!({ "jsonrpc": "2.0", "id": 77, "result": { "secret": secret } }));
    say(&json!({ "jsonrpc": "2.0", "id": "x", "error": { "code": 1, "message": secret } }));
    say(&json!({ "jsonrpc": "2.0", "id": secret, "method": "odd/request", "params": { "secret": secret } }));
    say(&json!([secret]));
    put(format!("{secret}\n\"{secret}\"\n{{\"{secret}\":1}}\n{{\"{secret}\n").as_bytes());
    put(b"\xff\xfe\n");
}

fn tool(name: &str) -> Value {
    json!({ "name": name, "inputSchema": { "type": "object" } })
}

fn list(script: &Script, id: &Value, params: &Value) {
    let cursor = params["cursor"].as_str();
    let page = |tools: Vec<Value>, next: Option<String>| match next {
        Some(next) => json!({ "tools": tools, "nextCursor": next }),
        None => json!({ "tools": tools }),
    };
    let number = cursor.map_or(0, |cursor| cursor.trim_start_matches('p').parse::<usize>().unwrap_or(0));
    let result = match script.value("--list").unwrap_or("all") {
        "pages" if number < 3 => page(vec![tool(&format!("t{number}"))], Some(format!("p{}", number + 1))),
        "pages" => page(vec![tool("last")], None),
        "repeated" => page(vec![tool("again")], Some("same".to_owned())),
        "endless" => page(vec![], Some(format!("p{}", number + 1))),
        "long-cursor" => page(vec![], Some("c".repeat(64 * 1024 + 1))),
        "many" => page((0..2049).map(|i| tool(&format!("t{i}"))).collect(), None),
        "too-many" => page((0..8193).map(|i| tool(&format!("t{i}"))).collect(), None),
        "duplicate" => page(vec![tool("twin"), tool("twin"), tool("other")], None),
        "bad-schema" => page(vec![json!({ "name": "bad", "inputSchema": 7 }), tool("good")], None),
        "error" => return refuse(id, -32050, "the list is closed", &Value::Null),
        "no-list" => json!({ "tools": "none" }),
        "never" => return,
        "odd" => page(["raw", "protocol-error", "rubbish", "log"].map(tool).into(), None),
        "unknown" => {
            return answer_raw(
                id,
                r#"{"tools":[{ "zeta":1.50,"name":"odd","inputSchema":{"b":1,"a":1e2} }],"x":null}"#,
            );
        }
        _ => all(script),
    };
    answer(id, &result);
}

fn all(script: &Script) -> Value {
    let hints = json!({ "readOnlyHint": false, "destructiveHint": true });
    let mut tools: Vec<Value> = ["echo", "add", "fail", "slow", "hang", "die"].map(tool).into();
    if script.has("--all") {
        let more = [
            "raw",
            "line",
            "rubbish",
            "pid",
            "oversized",
            "endless",
            "endless-errors",
            "together",
            "protocol-error",
            "log",
        ];
        tools.extend(more.map(tool));
    }
    tools.push(json!({ "name": "write", "inputSchema": { "type": "object" }, "annotations": hints }));
    if *script.state.extra_tool.lock().unwrap() {
        tools.push(tool("extra"));
    }
    json!({ "tools": tools })
}

fn call(script: &Script, id: &Value, params: &Value) {
    let arguments = &params["arguments"];
    let token = &params["_meta"]["progressToken"];
    let number = |key: &str, default: u64| arguments[key].as_u64().unwrap_or(default);
    let words = |key: &str| arguments[key].as_str().unwrap_or_default();
    match params["name"].as_str().unwrap_or_default() {
        "echo" => answer(id, &text(&params.to_string())),
        "add" => answer(id, &text(&(number("a", 0) + number("b", 0)).to_string())),
        "write" => answer(id, &text("written")),
        "fail" => answer(id, &json!({ "content": [{ "type": "text", "text": "it failed" }], "isError": true })),
        "protocol-error" => refuse(id, -32050, "out of order", &json!({ "z": 1, "a": [2] })),
        "slow" => {
            for step in 1..=number("steps", 3) {
                progress(token, step as f64, Some(&format!("step {step}")));
                std::thread::sleep(Duration::from_millis(number("ms", 0)));
            }
            answer(id, &text("done"));
            progress(token, 1e9, Some("too late"));
        }
        // All in one write.
        "together" => {
            let steps = number("steps", 1);
            let note = |step| {
                let params = json!({ "progressToken": token, "progress": step });
                json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params }).to_string()
            };
            let mut lines: Vec<String> = (1..=steps).map(note).collect();
            lines.push(json!({ "jsonrpc": "2.0", "id": id, "result": text("done") }).to_string());
            put(format!("{}\n", lines.join("\n")).as_bytes());
        }
        "disorder" => {
            for step in [1.0, 3.0, 2.0, 3.0, 4.0] {
                progress(token, step, None);
            }
            answer(id, &text("done"));
        }
        "hang" => {}
        "late" => {
            wait_for_cancel(script, id);
            answer(id, &text("late"));
        }
        "cancelled" => {
            let cancelled = script.state.cancelled.lock().unwrap();
            let all: Vec<Value> = cancelled.iter().map(|(id, why)| json!([id, why])).collect();
            answer(id, &text(&Value::from(all).to_string()));
        }
        "die" => std::process::exit(number("code", 7).try_into().unwrap_or(7)),
        "rubbish" => {
            put(b"DEBUG: calling\n\xc3\x28\n{\"a\":\n");
            answer(id, &text("fine"));
            put(b"DEBUG: called\n");
        }
        "deep" => answer_raw(id, &format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000))),
        "raw" => answer_raw(id, words("text")),
        "line" => put(format!("{}\n", words("text").replace("$ID", &id.to_string())).as_bytes()),
        "oversized" => oversized(id, words("where"), number("bytes", 0)),
        "endless" => loop {
            put(&[b'x'; 65536]);
        },
        "endless-errors" => {
            answer(id, &text("begun"));
            loop {
                std::io::stderr().write_all(&[b'x'; 65536]).unwrap();
            }
        }
        "change" => {
            *script.state.extra_tool.lock().unwrap() = true;
            notify("notifications/tools/list_changed", &json!({}));
            answer(id, &text("changed"));
        }
        "log" => {
            for i in 0..number("count", 1) {
                notify("notifications/message", &json!({ "level": "warning", "logger": "l", "data": { "i": i } }));
            }
            answer(id, &text("logged"));
        }
        "spawn" => {
            let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
            answer(id, &text(&child.id().to_string()));
            let _ = child.wait();
        }
        "pid" => answer(id, &text(&std::process::id().to_string())),
        "env" => {
            let mut names: Vec<String> = std::env::vars_os().map(|(n, _)| n.to_string_lossy().into_owned()).collect();
            names.sort();
            answer(id, &text(&names.join(",")));
        }
        "ask" => answer(id, &text(&ask(script, words("method")).to_string())),
        other => refuse(id, -32602, &format!("no such tool: {other}"), &Value::Null),
    }
}

fn progress(token: &Value, progress: f64, message: Option<&str>) {
    if !token.is_null() {
        let params = json!({ "progressToken": token, "progress": progress, "total": 10, "message": message });
        notify("notifications/progress", &params);
    }
}

fn wait_for_cancel(script: &Script, id: &Value) {
    let id = id.to_string();
    let cancelled = script.state.cancelled.lock().unwrap();
    let _unused = script.state.news.wait_while(cancelled, |all| !all.iter().any(|(other, _)| *other == id)).unwrap();
}

fn oversized(id: &Value, at: &str, bytes: u64) {
    let filler = "x".repeat(bytes.try_into().unwrap());
    match at {
        "head" => put(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"a\":\"{filler}\"}}}}\n").as_bytes()),
        "tail" => put(format!("{{\"result\":{{\"a\":\"{filler}\"}},\"jsonrpc\":\"2.0\",\"id\":{id}}}\n").as_bytes()),
        _ => put(format!("{filler}\n").as_bytes()),
    }
}

fn ask(script: &Script, method: &str) -> Value {
    let (sender, receiver): (Sender<Value>, Receiver<Value>) = channel();
    script.state.asked.lock().unwrap().insert("\"q\"".to_owned(), sender);
    let params = match method {
        "sampling/createMessage" => json!({ "messages": [], "maxTokens": 1 }),
        "elicitation/create" => {
            json!({ "message": "?", "requestedSchema": { "type": "object", "properties": {} } })
        }
        _ => json!({}),
    };
    say(&json!({ "jsonrpc": "2.0", "id": "q", "method": method, "params": params }));
    receiver.recv().unwrap()
}
