//! A server behind us can do what it likes: each call gets its answer or one clear error, and the connection lives as
//! long as it can.

use std::sync::Arc;

use portcullis::adapters::mcp::client::{InProcessUpstream, Settings, StdioUpstream};
use portcullis::adapters::mcp::transport::Limits;
use portcullis::model::answer::{Answer, ProtocolError, ToolResult};
use portcullis::model::caller::Caller;
use portcullis::model::name::{RawToolName, ServerName};
use portcullis::ports::upstream::{
    Connection, InFlight, ListFailure, Listing, OutgoingCall, ProgressSink, StartFailure, Upstream,
};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::support::{Heard, PATIENCE, Seen, eventually, scripted};

const SMALL: usize = 200_000;

async fn connect_with(flags: &[&str], limits: Limits) -> (Arc<dyn Connection>, Arc<Heard>) {
    let heard = Heard::new();
    let server = ServerName::parse("scripted").unwrap();
    let upstream = StdioUpstream::new(server, scripted(flags), Settings { limits, ..Settings::default() });
    let connection = upstream.connect(Instant::now() + PATIENCE, heard.clone()).await.unwrap();
    (connection, heard)
}

async fn connect(flags: &[&str]) -> (Arc<dyn Connection>, Arc<Heard>) {
    connect_with(flags, Limits::default()).await
}

async fn small(flags: &[&str]) -> (Arc<dyn Connection>, Arc<Heard>) {
    connect_with(flags, Limits { line: SMALL, ..Limits::default() }).await
}

fn outgoing(tool: &str, arguments: Value, progress: Option<Arc<dyn ProgressSink>>) -> OutgoingCall {
    let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
    OutgoingCall {
        caller: Caller::local("test"),
        tool: RawToolName::parse(tool).unwrap(),
        arguments: Some(arguments),
        meta: Map::new(),
        progress,
        questions: None,
    }
}

async fn start(connection: &Arc<dyn Connection>, tool: &str, arguments: Value) -> Box<dyn InFlight> {
    connection.hand_over(outgoing(tool, arguments, None)).await.unwrap()
}

async fn answer(connection: &Arc<dyn Connection>, tool: &str, arguments: Value) -> Answer {
    let mut call = start(connection, tool, arguments).await;
    tokio::time::timeout(PATIENCE, call.answer()).await.expect("an answer in time").unwrap()
}

async fn result(connection: &Arc<dyn Connection>, tool: &str, arguments: Value) -> ToolResult {
    match answer(connection, tool, arguments).await {
        Answer::Result(result) => result,
        Answer::Error(error) => panic!("{error:?}"),
    }
}

async fn error(connection: &Arc<dyn Connection>, tool: &str, arguments: Value) -> ProtocolError {
    match answer(connection, tool, arguments).await {
        Answer::Error(error) => error,
        Answer::Result(result) => panic!("{result:?}"),
    }
}

async fn text(connection: &Arc<dyn Connection>, tool: &str, arguments: Value) -> String {
    result(connection, tool, arguments).await.content()[0]["text"].as_str().unwrap().to_owned()
}

async fn lives(connection: &Arc<dyn Connection>) {
    assert_eq!(text(connection, "add", json!({ "a": 2, "b": 3 })).await, "5");
    assert!(connection.is_open());
}

async fn list(flags: &[&str]) -> Result<Listing, ListFailure> {
    let (connection, _) = connect(flags).await;
    let listing = connection.list(Instant::now() + PATIENCE).await;
    lives(&connection).await;
    listing
}

#[tokio::test]
async fn a_call_is_answered_and_a_failing_tool_is_a_result_and_an_error_keeps_code_and_data() {
    let (connection, _) = connect(&[]).await;
    lives(&connection).await;
    assert!(result(&connection, "fail", json!({})).await.is_error());
    let refused = error(&connection, "protocol-error", json!({})).await;
    assert_eq!((refused.code, refused.message.as_str()), (-32050, "out of order"));
    assert_eq!(refused.data.unwrap(), json!({ "z": 1, "a": [2] }));
}

#[tokio::test]
async fn m6_whether_a_server_asks_for_the_sandbox_is_what_it_declared_as_it_was_connected() {
    assert!(!list(&[]).await.unwrap().wants_sandbox_state, "it declared another experimental capability");
    assert!(list(&["--wants-sandbox"]).await.unwrap().wants_sandbox_state);
}

#[tokio::test]
async fn arguments_and_meta_arrive_as_they_were_given_and_without_a_token_nobody_asked_for() {
    let (connection, _) = connect(&[]).await;
    let mut call = outgoing("echo", json!({ "z": 1, "a": { "y": [1.5, null] } }), None);
    call.meta = json!({ "ours/id": "7", "progressToken": "the client's" }).as_object().unwrap().clone();
    let answer = connection.hand_over(call).await.unwrap().answer().await.unwrap();
    let Answer::Result(result) = answer else { panic!("{answer:?}") };
    let seen: Value = serde_json::from_str(result.content()[0]["text"].as_str().unwrap()).unwrap();
    let expected =
        json!({ "name": "echo", "arguments": { "z": 1, "a": { "y": [1.5, null] } }, "_meta": { "ours/id": "7" } });
    assert_eq!(seen, expected);
    let bare = OutgoingCall { arguments: None, ..outgoing("echo", json!({}), None) };
    let Answer::Result(result) = connection.hand_over(bare).await.unwrap().answer().await.unwrap() else { panic!() };
    assert_eq!(result.content()[0]["text"], r#"{"name":"echo"}"#);
}

#[tokio::test]
async fn pitfall_4_an_answer_keeps_unknown_fields_key_order_and_the_spelling_of_numbers() {
    let (connection, _) = connect(&[]).await;
    let odd =
        r#"{"zz":1.50,"content":[{"type":"hologram","x":[1e2,123456789012345678901]}],"resultType":"new","a":null}"#;
    assert_eq!(result(&connection, "raw", json!({ "text": odd })).await.verbatim().unwrap().as_ref(), odd);
}

#[tokio::test]
async fn what_is_no_result_object_or_cannot_be_read_is_an_error_and_the_connection_lives() {
    let (connection, _) = connect(&[]).await;
    for raw in ["null", "[]", "7"] {
        assert!(error(&connection, "raw", json!({ "text": raw })).await.message.contains("no result object"));
    }
    assert!(error(&connection, "deep", json!({})).await.message.contains("cannot be read"));
    let nothing = json!({ "text": r#"{"jsonrpc":"2.0","id":$ID}"# });
    assert!(error(&connection, "line", nothing).await.message.contains("neither"));
    lives(&connection).await;
}

#[tokio::test]
async fn an_id_that_comes_back_as_a_string_is_still_ours() {
    let (connection, _) = connect(&[]).await;
    let line = json!({ "text": r#"{"jsonrpc":"2.0","id":"$ID","result":{"content":[]}}"# });
    assert!(result(&connection, "line", line).await.content().is_empty());
}

#[tokio::test]
async fn rubbish_before_the_handshake_and_around_answers_is_skipped() {
    let (connection, _) = connect(&["--rubbish"]).await;
    assert_eq!(text(&connection, "rubbish", json!({})).await, "fine");
    lives(&connection).await;
}

#[tokio::test]
async fn pitfall_2_an_oversized_answer_fails_its_own_call_wherever_its_id_stands() {
    let (connection, _) = small(&[]).await;
    let mut other = start(&connection, "hang", json!({})).await;
    for (at, bytes) in [("head", SMALL), ("tail", SMALL), ("head", 3 * SMALL), ("tail", 3 * SMALL)] {
        let why = error(&connection, "oversized", json!({ "where": at, "bytes": bytes })).await.message;
        assert_eq!(why, format!("the server's answer has more than {SMALL} bytes"), "{at} {bytes}");
    }
    lives(&connection).await;
    assert!(futures::poll!(other.answer()).is_pending(), "other calls are not touched");
}

#[tokio::test]
async fn an_oversized_line_that_is_nobodys_closes_the_connection_with_that_reason() {
    let (connection, heard) = small(&[]).await;
    let mut call = start(&connection, "oversized", json!({ "where": "nowhere", "bytes": SMALL * 2 })).await;
    let lost = tokio::time::timeout(PATIENCE, call.answer()).await.unwrap().unwrap_err();
    assert!(lost.to_string().contains("names no request"), "{lost}");
    assert!(!connection.is_open());
    let closed = eventually("closed", || heard.closed().pop()).await;
    assert!(closed.1.contains("names no request"), "{}", closed.1);
}

#[tokio::test]
async fn an_endless_line_closes_the_connection() {
    let (connection, _) = small(&[]).await;
    let mut call = start(&connection, "endless", json!({})).await;
    let lost = tokio::time::timeout(PATIENCE, call.answer()).await.unwrap().unwrap_err();
    assert!(lost.to_string().contains("a line without end"), "{lost}");
}

#[tokio::test]
async fn pitfall_5_progress_comes_in_order_only_grows_and_ends_with_the_answer() {
    let (connection, _) = connect(&[]).await;
    let seen = Seen::new();
    let call = outgoing("slow", json!({ "steps": 200 }), Some(seen.clone()));
    connection.hand_over(call).await.unwrap().answer().await.unwrap();
    lives(&connection).await;
    let steps: Vec<f64> = seen.all().iter().map(|progress| progress.progress).collect();
    assert_eq!(steps, (1..=200).map(f64::from).collect::<Vec<_>>(), "the late one is dropped");
    assert_eq!(seen.all()[0].message.as_deref(), Some("step 1"));
    assert_eq!(seen.all()[0].total, Some(10.0));

    let seen = Seen::new();
    let call = outgoing("disorder", json!({}), Some(seen.clone()));
    connection.hand_over(call).await.unwrap().answer().await.unwrap();
    let steps: Vec<f64> = seen.all().iter().map(|progress| progress.progress).collect();
    assert_eq!(steps, [1.0, 3.0, 4.0]);
}

#[tokio::test]
async fn sixty_four_calls_at_once_get_each_their_own_answer_and_progress() {
    let (connection, _) = connect(&[]).await;
    let calls = (0..64_u64).map(|i| {
        let connection = connection.clone();
        async move {
            let seen = Seen::new();
            let steps = i % 5;
            let slow = outgoing("slow", json!({ "steps": steps, "ms": 1 }), Some(seen.clone()));
            connection.hand_over(slow).await.unwrap().answer().await.unwrap();
            assert_eq!(seen.all().len() as u64, steps);
            assert_eq!(text(&connection, "add", json!({ "a": i, "b": 1000 })).await, (i + 1000).to_string());
        }
    });
    futures::future::join_all(calls).await;
}

#[tokio::test]
async fn a_cancelled_call_and_a_dropped_one_reach_the_server_and_a_late_answer_is_dropped() {
    let (connection, _) = connect(&[]).await;
    let late = start(&connection, "late", json!({})).await;
    late.cancel("changed my mind").await;
    drop(start(&connection, "late", json!({})).await);
    lives(&connection).await;
    let give_up = Instant::now() + PATIENCE;
    loop {
        let cancelled = text(&connection, "cancelled", json!({})).await;
        if cancelled.contains("changed my mind") && cancelled.contains("the caller has gone") {
            break;
        }
        assert!(Instant::now() < give_up, "{cancelled}");
    }
    lives(&connection).await;
}

#[tokio::test]
async fn waiting_for_an_answer_may_be_interrupted_and_taken_up_again() {
    let (connection, _) = connect(&[]).await;
    let mut call = start(&connection, "slow", json!({ "steps": 1, "ms": 20 })).await;
    assert!(futures::poll!(call.answer()).is_pending());
    assert!(matches!(call.answer().await, Ok(Answer::Result(_))));
    assert!(call.answer().await.is_err(), "an answer is told once");
}

#[tokio::test]
async fn a_server_that_does_not_read_fills_no_memory_and_holds_up_no_close() {
    let (connection, _) = connect_with(&["--deaf"], Limits { waiting: 1 << 20, ..Limits::default() }).await;
    let arguments = json!({ "filler": "x".repeat(1 << 20) });
    let mut calls = Vec::new();
    let refused = eventually("the queue is full", || {
        let call = outgoing("echo", arguments.clone(), None);
        match futures::executor::block_on(connection.hand_over(call)) {
            Ok(call) => calls.push(call),
            Err(refused) => return Some(refused),
        }
        None
    })
    .await;
    assert!(refused.0.contains("does not read"), "{refused}");
    assert!(calls.len() < 64, "{} megabytes were taken", calls.len());
    calls.pop().unwrap().cancel("no use").await;
    tokio::time::timeout(PATIENCE, connection.close()).await.unwrap();
    for mut call in calls {
        assert!(call.answer().await.is_err());
    }
}

#[tokio::test]
async fn what_a_server_asks_of_us_is_refused() {
    let (connection, _) = connect(&[]).await;
    for method in ["sampling/createMessage", "elicitation/create", "roots/list", "made/up"] {
        let reply: Value = serde_json::from_str(&text(&connection, "ask", json!({ "method": method })).await).unwrap();
        assert_eq!(reply["error"]["code"], -32601, "{method}: {reply}");
    }
    let reply: Value = serde_json::from_str(&text(&connection, "ask", json!({ "method": "ping" })).await).unwrap();
    assert_eq!(reply["result"], json!({}));
}

#[tokio::test]
async fn changes_and_log_messages_are_told_in_order() {
    let (connection, heard) = connect(&["--changes", "5"]).await;
    text(&connection, "log", json!({ "count": 50 })).await;
    assert_eq!(heard.changes(), 5);
    let logs = heard.logs();
    assert_eq!(logs[0].data, "hello", "also before the handshake is over");
    let order: Vec<i64> = logs[1..].iter().map(|log| log.data["i"].as_i64().unwrap()).collect();
    assert_eq!(order, (0..50).collect::<Vec<_>>());
    assert_eq!((logs[1].level.as_str(), logs[1].logger.as_deref()), ("warning", Some("l")));
    text(&connection, "change", json!({})).await;
    assert_eq!(heard.changes(), 6);
    let tools = connection.list(Instant::now() + PATIENCE).await.unwrap().tools;
    assert!(tools.iter().any(|tool| tool.contains("extra")));
}

#[tokio::test]
async fn all_pages_are_listed_each_definition_as_it_was_spelled() {
    let pages = list(&["--list", "pages"]).await.unwrap();
    assert_eq!(pages.tools.len(), 4);
    assert_eq!(pages.instructions.as_deref(), Some("Be brief."));
    let odd = list(&["--list", "unknown"]).await.unwrap();
    assert_eq!(odd.tools[0].as_ref(), r#"{ "zeta":1.50,"name":"odd","inputSchema":{"b":1,"a":1e2} }"#);
    // What these mean is decided by whoever reads the definitions.
    assert_eq!(list(&["--list", "duplicate"]).await.unwrap().tools.len(), 3);
    assert_eq!(list(&["--list", "bad-schema"]).await.unwrap().tools.len(), 2);
}

#[tokio::test]
async fn a_list_that_never_ends_or_is_none_fails_with_its_reason_and_calls_still_work() {
    assert_eq!(list(&["--list", "repeated"]).await, Err(ListFailure::RepeatedCursor));
    assert_eq!(list(&["--list", "endless"]).await, Err(ListFailure::TooManyPages(100)));
    assert_eq!(list(&["--list", "long-cursor"]).await, Err(ListFailure::LongCursor(65536)));
    // How many a server may have is known to whoever runs it (B15); more than the Apps server may nobody has.
    assert_eq!(list(&["--list", "many"]).await.unwrap().tools.len(), 2049);
    assert_eq!(list(&["--list", "too-many"]).await, Err(ListFailure::TooManyTools(8192)));
    let Err(ListFailure::Answer(why)) = list(&["--list", "error"]).await else { panic!() };
    assert_eq!(why, "the server answered with error -32050: the list is closed");
    assert!(matches!(list(&["--list", "no-list"]).await, Err(ListFailure::Answer(_))));
}

#[tokio::test]
async fn a_list_without_an_answer_ends_at_its_deadline() {
    let (connection, _) = connect(&["--list", "never"]).await;
    let patience = std::time::Duration::from_millis(50);
    assert!(matches!(connection.list(Instant::now() + patience).await, Err(ListFailure::Timeout(_))));
    lives(&connection).await;
}

#[tokio::test]
async fn a_server_inside_of_this_process_is_used_in_the_same_way_and_ends_with_its_stream() {
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    let ended = tokio_util::sync::CancellationToken::new();
    let open = {
        let ended = ended.clone();
        move || {
            let (near, far) = tokio::io::duplex(4096);
            let ended = ended.clone().drop_guard();
            tokio::spawn(async move {
                let _ended = ended;
                let (input, mut output) = tokio::io::split(far);
                let mut lines = BufReader::new(input).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    let message: Value = serde_json::from_str(&line).unwrap();
                    let result = match message["method"].as_str() {
                        Some("initialize") => json!({ "protocolVersion": "2025-06-18", "capabilities": {},
                            "serverInfo": { "name": "in", "version": "1" } }),
                        Some("tools/call") => json!({ "content": [] }),
                        _ => continue,
                    };
                    let answer = json!({ "jsonrpc": "2.0", "id": message["id"], "result": result });
                    output.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
                }
            });
            near
        }
    };
    let heard = Heard::new();
    let upstream = InProcessUpstream::new(ServerName::parse("inside").unwrap(), Settings::default(), Arc::new(open));
    let connection = upstream.connect(Instant::now() + PATIENCE, heard.clone()).await.unwrap();
    assert!(result(&connection, "any", json!({})).await.content().is_empty());
    connection.close().await;
    connection.close().await;
    tokio::time::timeout(PATIENCE, ended.cancelled()).await.unwrap();
    assert_eq!(heard.closed(), [(connection.id(), "closed".to_owned())]);
}

#[tokio::test]
async fn a_handshake_that_fails_says_why() {
    for (flags, expected) in [
        (["--init-error", ""], "the server refused with error -32000: not today"),
        (["--init-null", ""], "not what the protocol says"),
        (["--version", "2026-07-28"], "protocol version `2026-07-28`"),
        (["--version", "1999-01-01"], "protocol version `1999-01-01`"),
    ] {
        let upstream = StdioUpstream::new(ServerName::parse("s").unwrap(), scripted(&flags), Settings::default());
        let failure = upstream.connect(Instant::now() + PATIENCE, Heard::new()).await.err().unwrap();
        let StartFailure::Handshake(why) = &failure else { panic!("{failure:?}") };
        assert!(why.contains(expected), "{why}");
    }
}

#[tokio::test]
async fn bytes_are_counted_both_ways() {
    let (connection, _) = connect(&[]).await;
    lives(&connection).await;
    let before = connection.traffic();
    assert!(before.received > 100 && before.sent > 100, "the handshake counts: {before:?}");
    let body = json!({ "content": [], "filler": "x".repeat(1_000_000) }).to_string();
    let arguments = json!({ "text": body });
    result(&connection, "raw", arguments.clone()).await;
    let after = connection.traffic();
    // Around each body there are a few dozen bytes of envelope.
    let (received, sent) = (after.received - before.received, after.sent - before.sent);
    assert!((body.len()..body.len() + 60).contains(&(received as usize)), "{received}");
    let spelled = arguments.to_string().len();
    assert!((spelled..spelled + 120).contains(&(sent as usize)), "{sent}");
}
