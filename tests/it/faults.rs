//! A stream to a server may break anywhere: every call ends with an answer or a typed failure within its timeout, other
//! servers do not notice, and the server comes back for the next call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use portcullis::adapters::mcp::client::{InProcessUpstream, Settings};
use portcullis::host::fleet::ServerSpec;
use portcullis::model::name::ServerName;
use portcullis::ports::upstream::Upstream;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};

use crate::fakes::Gate;
use crate::support::faulty::{Fault, Faulty, Harm};
use crate::support::gate::{Bench, Client};

/// What the server answers: nobody but the client may see it, and it has characters of several bytes.
const SECRET: &str = "grüße-🦀-swordfish4711";
/// The timeout of a call, and of a start.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Starts a small server and returns the other end of its stream.
fn small_server() -> DuplexStream {
    let (near, far) = tokio::io::duplex(64 * 1024);
    tokio::spawn(async move {
        let (input, mut output) = tokio::io::split(far);
        let mut lines = BufReader::new(input).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let message: Value = serde_json::from_str(&line).unwrap();
            if output.write_all(replies(&message).as_bytes()).await.is_err() {
                return;
            }
        }
    });
    near
}

/// What it says to a message, all in one write.
fn replies(message: &Value) -> String {
    let answer = |result: Value| json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }).to_string() + "\n";
    match message["method"].as_str() {
        Some("initialize") => answer(json!({ "protocolVersion": "2025-11-25", "capabilities": { "tools": {} },
            "serverInfo": { "name": "small", "version": SECRET } })),
        Some("tools/list") => {
            answer(json!({ "tools": [{ "name": "use", "description": SECRET, "inputSchema": { "type": "object" } }] }))
        }
        Some("tools/call") => {
            let token = &message["params"]["_meta"]["progressToken"];
            let note = json!({ "progressToken": token, "progress": 1, "message": SECRET });
            let note = json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": note });
            format!("{note}\n{}", answer(json!({ "content": [{ "type": "text", "text": SECRET }] })))
        }
        _ => String::new(),
    }
}

fn spec(name: &str, harm: Option<Arc<Harm>>) -> (ServerName, ServerSpec) {
    let server = ServerName::parse(name).unwrap();
    let upstream: Arc<dyn Upstream> = match harm {
        None => Arc::new(InProcessUpstream::new(server.clone(), Settings::default(), Arc::new(small_server))),
        Some(harm) => {
            let open = move || Faulty::new(small_server(), Arc::clone(&harm));
            Arc::new(InProcessUpstream::over(server.clone(), Settings::default(), open))
        }
    };
    let mut spec = Bench::spec(upstream);
    spec.startup_timeout = TIMEOUT;
    spec.view.tool_timeout = TIMEOUT;
    (server, spec)
}

async fn ask(client: &mut Client, id: &str, server: &str) {
    let params = json!({ "name": format!("{server}__use"), "arguments": {}, "_meta": { "progressToken": id } });
    client.call(&format!("\"{id}\""), &params.to_string()).await;
}

/// Whether it is the server's own answer; anything else must be a typed failure that quotes nothing.
fn answered(answer: &Value, server: &str) -> bool {
    let result = &answer["result"];
    if result["content"][0]["text"] == SECRET {
        return true;
    }
    let code = result["_meta"]["portcullis/refusal"]["code"].as_str().unwrap_or_else(|| panic!("{answer}"));
    assert!(["timeout", "ambiguous", "not-sent", "not-available", "stale"].contains(&code), "{answer}");
    let text = result["content"][0]["text"].as_str().unwrap();
    assert!(text.contains(&format!("{server}/use")) || text.contains(&format!("{server}__use")), "{text}");
    assert!(!answer.to_string().contains("swordfish"), "{answer}");
    false
}

/// One fault at one place.
async fn endure(word: &'static str, fault: Fault, survives: bool) {
    let what = format!("{fault:?} at {word}");
    let gate = if let Fault::Stall(_, gate) = &fault { Some(Arc::clone(gate)) } else { None };
    let harm = Arc::new(Harm { word, fault, done: AtomicBool::new(false) });
    let servers = BTreeMap::from([spec("bad", Some(Arc::clone(&harm))), spec("good", None)]);
    let bench = Bench::of(servers);
    let mut client = bench.greeted(json!({})).await;
    client.list().await;

    ask(&mut client, "first", "bad").await;
    ask(&mut client, "beside", "good").await;
    assert!(answered(&client.answer(json!("beside")).await, "good"), "{what}: another server noticed");
    let begun = tokio::time::Instant::now();
    let first = answered(&client.answer(json!("first")).await, "bad");
    assert!(begun.elapsed() <= 3 * TIMEOUT, "{what}: {:?}", begun.elapsed());
    assert!(harm.done.load(std::sync::atomic::Ordering::SeqCst), "{what}: it never happened");
    assert!(first || !survives, "{what}: this is no reason to fail");
    if let Some(gate) = gate {
        gate.open();
    }
    for attempt in 0.. {
        assert!(attempt < 20, "{what}: the server does not come back");
        ask(&mut client, "again", "bad").await;
        if answered(&client.answer(json!("again")).await, "bad") {
            break;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    for status in bench.host.status() {
        assert!(!serde_json::to_string(&status).unwrap().contains("swordfish"), "{what}: {status:?}");
    }
}

/// In the line that holds it: the handshake's answer, the list, a call's progress, a call's answer.
const PLACES: [&str; 4] = ["protocolVersion", "inputSchema", "notifications/progress", "\"content\""];

async fn everywhere(survives: bool, fault: impl Fn() -> Fault) {
    for word in PLACES {
        endure(word, fault(), survives).await;
    }
}

#[tokio::test(start_paused = true)]
async fn pieces_of_any_size_do_no_harm() {
    everywhere(true, || Fault::Chunks(1)).await;
    everywhere(true, || Fault::Chunks(7)).await;
    everywhere(true, || Fault::SplitCharacters).await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_within_a_line_or_behind_it_costs_no_more_than_that_call() {
    everywhere(false, || Fault::Cut(0)).await;
    everywhere(false, || Fault::Cut(30)).await;
    everywhere(false, || Fault::Cut(usize::MAX)).await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_fails_costs_no_more_than_that_call() {
    everywhere(false, || Fault::Error(0)).await;
    everywhere(false, || Fault::Error(30)).await;
    everywhere(false, || Fault::Error(usize::MAX)).await;
}

#[tokio::test(start_paused = true)]
async fn garbage_between_lines_does_no_harm_and_within_one_costs_no_more_than_that_call() {
    everywhere(true, || Fault::Garbage(0, b"\xff\xfe\x00 swordfish\n")).await;
    everywhere(true, || Fault::Garbage(usize::MAX, b"{\"swordfish\n[]\n")).await;
    everywhere(false, || Fault::Garbage(30, b"\xff swordfish \"")).await;
    everywhere(false, || Fault::Garbage(30, b"\n")).await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_stalls_costs_no_more_than_the_calls_that_time_out() {
    everywhere(false, || Fault::Stall(0, Gate::closed())).await;
    everywhere(false, || Fault::Stall(30, Gate::closed())).await;
    everywhere(false, || Fault::Stall(usize::MAX, Gate::closed())).await;
}
