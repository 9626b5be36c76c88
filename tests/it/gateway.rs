//! What a client of the gateway sends is answered as the protocol and the rules say, down to the bytes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use portcullis::gateway::{Ended, ServeOptions};
use portcullis::model::layer::LayerKind;
use portcullis::model::outcome::Code;
use portcullis::model::verdict::{Fault, FaultCode};
use portcullis::ports::sanitiser::{Class, Edit, OutputFacts, Verdict};
use portcullis::ports::upstream::UpstreamLog;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::fakes::sanitiser::{self, Cleaner};
use crate::support::eventually;
use crate::support::gate::{Bench, Client, ERROR, Script, VERBATIM};

fn names(list: &Value) -> Vec<&str> {
    list["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect()
}

fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap()
}

/// A client that has listed the tools.
async fn ready(bench: &Bench) -> Client {
    let mut client = bench.greeted(json!({})).await;
    client.list().await;
    client
}

#[tokio::test]
async fn the_handshake_answers_with_our_own_name_in_the_clients_revision() {
    let bench = Bench::new(&[]);
    let mut client = bench.client(ServeOptions::default());
    let result = client.greet(json!({})).await["result"].take();
    assert_eq!(result["serverInfo"]["name"], "portcullis");
    assert_eq!(result["serverInfo"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(result["protocolVersion"], "2025-06-18");
    assert_eq!(result["capabilities"], json!({ "logging": {}, "tools": { "listChanged": true } }));
}

#[tokio::test]
async fn what_comes_before_the_handshake_is_ignored_or_refused_and_never_ends_the_session() {
    let bench = Bench::new(&[]);
    let mut client = bench.client(ServeOptions::default());
    for early in ["rubbish", "[]", r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#] {
        client.send(early).await;
    }
    client.send(r#"{"jsonrpc":"2.0","id":77,"result":{}}"#).await;
    client.send(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#).await;
    assert_eq!(client.answer(json!(1)).await["error"]["code"], -32600);
    client.ping().await;
    assert!(client.greet(json!({})).await["result"].is_object());
    client.send(r#"{"jsonrpc":"2.0","id":2,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"a","version":"1"}}}"#).await;
    assert_eq!(client.answer(json!(2)).await["error"]["code"], -32600, "initialized twice");
}

#[tokio::test]
async fn unknown_methods_and_bad_parameters_have_their_own_codes() {
    let bench = Bench::new(&["echo"]);
    let mut client = ready(&bench).await;
    let cases = [
        (r#""method":"resources/list""#, -32601),
        (r#""method":"prompts/get","params":{"name":"a"}"#, -32601),
        (r#""method":"no/such/method","params":{"a":1}"#, -32601),
        (r#""method":"tools/call","params":{"name":7}"#, -32602),
        (r#""method":"tools/call","params":{"name":""}"#, -32602),
        (r#""method":"tools/call""#, -32602),
        (r#""method":"tools/list","params":{"cursor":7}"#, -32602),
        (r#""method":"tools/list","params":{"cursor":"zz"}"#, -32602),
        (r#""method":"logging/setLevel","params":{"level":"loud"}"#, -32602),
    ];
    for (at, (request, code)) in cases.into_iter().enumerate() {
        client.send(&format!(r#"{{"jsonrpc":"2.0","id":{at},{request}}}"#)).await;
        assert_eq!(client.answer(json!(at)).await["error"]["code"], code, "{request}");
    }
    assert_eq!(bench.items.started(), 0);
}

#[tokio::test]
async fn pitfall_4_the_list_is_the_servers_own_text_but_for_the_name_and_without_connector_claims() {
    let script = Arc::new(Script::default());
    let odd = r#"{ "zeta":{"b":1.50,"a":[123456789012345678901234567890]},"name" : "odd tool","title":"\u004fdd", "inputSchema":{"type":"object","x":true},"execution":{"taskSupport":"optional"},"_meta":{"keep": 1,"connector_id":"c"}}"#;
    *script.tools.lock() = vec![odd.into(), r#"{"name":"hidden","inputSchema":{"type":"object"}}"#.into()];
    let bench = Bench::with(script);
    let mut client = bench.greeted(json!({})).await;
    client.send(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#).await;
    let line = client.answer_text(json!(1)).await;
    let list = serde_json::from_str::<Value>(&line).unwrap()["result"].take();
    let [name] = names(&list)[..] else { panic!("{list}") };
    let expected = odd.replace("odd tool", name).replace(r#","connector_id":"c""#, "");
    assert_eq!(line, format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"tools":[{expected}]}}}}"#));
    assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'), "{name}");
}

#[tokio::test]
async fn pages_follow_each_other_and_a_cursor_of_an_older_list_is_refused() {
    let bench = Bench::new(&["a", "b", "c", "d", "e"]);
    let mut client = bench.client(ServeOptions { page: 2, ..ServeOptions::default() });
    client.greet(json!({})).await;
    let mut all: Vec<String> = Vec::new();
    let mut page = client.list().await;
    let first = page["nextCursor"].as_str().unwrap().to_owned();
    loop {
        all.extend(names(&page).into_iter().map(str::to_owned));
        let Some(cursor) = page["nextCursor"].as_str() else { break };
        let params = json!({ "cursor": cursor });
        client.send(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{params}}}"#)).await;
        page = client.answer(json!(1)).await["result"].take();
    }
    assert_eq!(all, ["a", "b", "c", "d", "e"].map(|name| format!("fake__{name}")));

    bench.script.set_tools(&["a", "b", "c"]);
    let events = bench.script.events();
    events.tools_changed(portcullis::model::revision::ConnectionId(0));
    client.told("notifications/tools/list_changed").await;
    let params = json!({ "cursor": first });
    client.send(&format!(r#"{{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{params}}}"#)).await;
    assert_eq!(client.answer(json!(2)).await["error"]["code"], -32602);
}

#[tokio::test]
async fn a_changed_list_is_told_once_and_a_reconnection_that_changes_nothing_is_not() {
    let bench = Bench::new(&["echo"]);
    let mut client = ready(&bench).await;
    let before = bench.host.catalog().current().revision();
    let connection = portcullis::model::revision::ConnectionId(0);
    bench.script.events().closed(connection, "on purpose");
    eventually("the reconnection", || (bench.host.catalog().current().revision() > before).then_some(())).await;
    bench.script.set_tools(&["echo", "steps"]);
    bench.script.events().tools_changed(connection);
    bench.script.events().tools_changed(connection);
    client.told("notifications/tools/list_changed").await;
    assert_eq!(client.list().await["tools"].as_array().unwrap().len(), 2);
    assert_eq!(client.count_told("notifications/tools/list_changed").await, 0);
}

#[tokio::test]
async fn pitfall_4_an_answer_passes_byte_by_byte() {
    let bench = Bench::new(&["verbatim"]);
    let mut client = ready(&bench).await;
    client.call("1", r#"{"name":"fake__verbatim"}"#).await;
    let line = client.answer_text(json!(1)).await;
    assert_eq!(line, format!(r#"{{"jsonrpc":"2.0","id":1,"result":{VERBATIM}}}"#));
}

#[tokio::test]
async fn pitfall_4_a_protocol_error_passes_byte_by_byte() {
    let bench = Bench::new(&["error"]);
    let mut client = ready(&bench).await;
    client.call("1", r#"{"name":"fake__error"}"#).await;
    assert_eq!(client.answer_text(json!(1)).await, format!(r#"{{"jsonrpc":"2.0","id":1,"error":{ERROR}}}"#));
    assert_eq!(bench.items.codes(), [Some(Code::ProtocolError)]);
}

#[tokio::test]
async fn r26_bad_arguments_are_refused_in_band_and_nothing_is_sent() {
    let bench = Bench::new(&["echo"]);
    let mut client = ready(&bench).await;
    let deep = format!("{}1{}", r#"{"a":"#.repeat(10_000), "}".repeat(10_000));
    let bad = [r#"{"a":1,"a":2}"#, r#"{"a":"\ud800"}"#, r#"{"a":0.10000000000000000001}"#, &deep];
    for arguments in bad {
        client.call("1", &format!(r#"{{"name":"fake__echo","arguments":{arguments}}}"#)).await;
        let result = client.answer(json!(1)).await["result"].take();
        assert_eq!(result["isError"], true, "{result}");
        assert_eq!(result["_meta"]["portcullis/refusal"]["code"], "invalid-arguments");
    }
    assert!(bench.script.calls.lock().is_empty());
    assert_eq!(bench.items.started(), bad.len(), "R40: a pair of items for each");
    assert_eq!(bench.items.completed().len(), bad.len());
}

#[tokio::test]
async fn pitfall_3_arguments_that_are_no_object_are_invalid_params_and_nothing_is_sent() {
    let bench = Bench::new(&["echo"]);
    let mut client = ready(&bench).await;
    for (at, arguments) in ["[1]", "7", "\"a\"", "true"].into_iter().enumerate() {
        client.call("1", &format!(r#"{{"name":"fake__echo","arguments":{arguments}}}"#)).await;
        let error = client.answer(json!(1)).await["error"].take();
        assert_eq!(error["code"], -32602, "{arguments}");
        assert!(error["message"].as_str().unwrap().contains("must be a JSON object"), "{error}");
        assert_eq!(bench.items.completed().len(), at + 1, "R40: a pair of items for each");
    }
    assert!(bench.script.calls.lock().is_empty());
}

#[tokio::test]
async fn pitfall_3_arguments_null_absent_and_empty_give_the_same_answer_but_for_their_text() {
    let bench = Bench::new(&["echo"]);
    let mut client = ready(&bench).await;
    for (member, echoed) in [("", "none"), (r#","arguments":null"#, "none"), (r#","arguments":{}"#, "{}")] {
        client.call("1", &format!(r#"{{"name":"fake__echo"{member}}}"#)).await;
        assert_eq!(text(&client.answer(json!(1)).await), echoed);
    }
    let digests: Vec<_> = bench.items.completed().iter().map(|item| item.call.arguments.digest()).collect();
    assert!(digests.windows(2).all(|pair| pair[0] == pair[1]));
}

#[tokio::test]
async fn the_clients_meta_goes_on_without_what_belongs_to_its_hop() {
    let bench = Bench::new(&["echo"]);
    let mut client = ready(&bench).await;
    client.call("1", r#"{"name":"fake__echo","_meta":{"progressToken":1,"mine":{"b":1},"callId":"forged"}}"#).await;
    client.answer(json!(1)).await;
    let (_, _, meta) = bench.script.calls.lock()[0].clone();
    assert_eq!(meta["mine"], json!({ "b": 1 }));
    assert!(meta.get("progressToken").is_none());
    assert_ne!(meta["callId"], "forged");
}

#[tokio::test]
async fn r25_a_hidden_tool_answers_like_an_unknown_one() {
    let bench = Bench::new(&["echo", "hidden"]);
    let mut client = ready(&bench).await;
    let mut answers = Vec::new();
    for name in ["fake__hidden", "fake__nosuch"] {
        client.call("1", &format!(r#"{{"name":"{name}","arguments":{{"a":1}}}}"#)).await;
        answers.push(client.answer_text(json!(1)).await.replace(name, "NAME"));
    }
    assert_eq!(answers[0], answers[1]);
    assert!(answers[0].contains("MCP tool `NAME` is not available to the model"), "{}", answers[0]);
    assert_eq!(bench.items.codes(), [Some(Code::NotAvailable); 2]);
}

#[tokio::test]
async fn r25_r30_a_refusal_names_layer_component_and_rule_but_not_the_reason() {
    let bench = Bench::new(&["refused"]);
    let mut client = ready(&bench).await;
    client.call("1", r#"{"name":"fake__refused"}"#).await;
    let line = client.answer_text(json!(1)).await;
    let answer: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(answer["result"]["isError"], true);
    let refusal = &answer["result"]["_meta"]["portcullis/refusal"];
    let expected = json!({
        "stage": "approval", "code": "denied", "layer": "managed", "component": "guard", "rule": "rule-1",
    });
    assert_eq!(*refusal, expected);
    assert!(!line.contains("secret reason"));
}

#[tokio::test]
async fn progress_rises_and_comes_before_the_answer_and_only_to_who_asked_for_it() {
    let bench = Bench::new(&["steps"]);
    let mut client = ready(&bench).await;
    client.call("1", r#"{"name":"fake__steps"}"#).await;
    client.answer(json!(1)).await;
    assert_eq!(client.count_told("notifications/progress").await, 0);
    client.call("2", r#"{"name":"fake__steps","_meta":{"progressToken":"t"}}"#).await;
    let mut steps = Vec::new();
    loop {
        let mut message: Value = serde_json::from_str(&client.line().await.unwrap()).unwrap();
        if message["id"] == 2 {
            break;
        }
        assert_eq!(message["params"]["progressToken"], "t");
        assert_eq!(message["params"]["total"], 5.0);
        steps.push((message["params"]["progress"].as_f64().unwrap(), message["params"]["message"].take()));
    }
    assert_eq!(steps, [(1.0, json!("at 1")), (3.0, json!("at 3")), (4.5, json!("at 4.5"))]);
}

#[tokio::test]
async fn a_cancelled_call_has_no_answer_and_the_upstream_is_told() {
    let bench = Bench::new(&["hang", "echo"]);
    let mut client = ready(&bench).await;
    client.call("5", r#"{"name":"fake__hang"}"#).await;
    bench.script.called().await;
    client.send(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}"#).await;
    eventually("the cancellation", || (bench.items.completed().len() == 1).then_some(())).await;
    assert_eq!(bench.items.codes(), [Some(Code::Cancelled)]);
    assert_eq!(bench.script.dropped.load(Ordering::SeqCst), 1);
    client.ping().await;
    client.hang_up();
    let (_, rest) = client.ended().await;
    assert!(rest.is_empty(), "{rest:?}");
}

#[tokio::test]
async fn a_cancellation_of_nothing_and_an_answer_to_nothing_are_ignored() {
    let bench = Bench::new(&["echo"]);
    let mut client = ready(&bench).await;
    client.send(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}}"#).await;
    client.send(r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#).await;
    client.send(r#"{"jsonrpc":"2.0","id":12345,"result":{"action":"accept"}}"#).await;
    client.send(r#"{"jsonrpc":"2.0","id":12346,"error":{"code":1,"message":"m"}}"#).await;
    client.call("1", r#"{"name":"fake__echo"}"#).await;
    assert_eq!(text(&client.answer(json!(1)).await), "none");
}

#[tokio::test]
async fn equal_ids_of_both_types_each_get_their_own_answer() {
    let bench = Bench::new(&["echo", "hang"]);
    let mut client = ready(&bench).await;
    client.call("1", r#"{"name":"fake__hang"}"#).await;
    bench.script.called().await;
    client.call(r#""1""#, r#"{"name":"fake__echo","arguments":{"a":"text"}}"#).await;
    assert_eq!(text(&client.answer(json!("1")).await), r#"{"a":"text"}"#);
    client.call("1", r#"{"name":"fake__echo","arguments":{"a":"number"}}"#).await;
    assert_eq!(text(&client.answer(json!(1)).await), r#"{"a":"number"}"#, "beside an open call with the same id");
}

#[tokio::test]
async fn sixty_four_calls_at_once_each_get_their_own_answer() {
    let bench = Bench::new(&["echo"]);
    let mut client = ready(&bench).await;
    for id in 0..64 {
        client.call(&id.to_string(), &format!(r#"{{"name":"fake__echo","arguments":{{"id":{id}}}}}"#)).await;
    }
    for id in (0..64).rev() {
        assert_eq!(text(&client.answer(json!(id)).await), format!(r#"{{"id":{id}}}"#));
    }
    assert_eq!((bench.items.started(), bench.items.completed().len()), (64, 64));
}

#[tokio::test]
async fn a_call_that_panics_is_an_internal_error_of_that_call_alone() {
    let bench = Bench::new(&["defect", "echo"]);
    let mut client = ready(&bench).await;
    client.call("1", r#"{"name":"fake__defect"}"#).await;
    let answer = client.answer(json!(1)).await;
    assert_eq!(answer["result"]["_meta"]["portcullis/refusal"]["code"], "internal");
    assert_eq!(bench.items.codes(), [Some(Code::Internal)]);
    client.call("2", r#"{"name":"fake__echo"}"#).await;
    assert_eq!(text(&client.answer(json!(2)).await), "none");
}

#[tokio::test]
async fn r40_the_end_of_the_input_completes_an_open_call_exactly_once_and_answers_it() {
    let bench = Bench::new(&["hang"]);
    let mut client = bench.client(ServeOptions { grace: Duration::from_millis(10), ..ServeOptions::default() });
    client.greet(json!({})).await;
    client.list().await;
    client.call("1", r#"{"name":"fake__hang","_meta":{"progressToken":1}}"#).await;
    bench.script.called().await;
    client.hang_up();
    let (ended, rest) = client.ended().await;
    assert!(matches!(ended, Ok(Ended::Client(_))), "{ended:?}");
    assert_eq!(bench.items.codes(), [Some(Code::Cancelled)]);
    assert_eq!((bench.items.started(), bench.script.dropped.load(Ordering::SeqCst)), (1, 1));
    let [line] = &rest[..] else { panic!("{rest:?}") };
    assert_eq!(serde_json::from_str::<Value>(line).unwrap()["id"], 1);
}

#[tokio::test]
async fn requests_that_were_sent_before_the_end_of_the_input_are_answered() {
    let bench = Bench::new(&["echo", "steps"]);
    let mut client = ready(&bench).await;
    client.call("1", r#"{"name":"fake__echo"}"#).await;
    client.call("2", r#"{"name":"fake__steps","_meta":{"progressToken":1}}"#).await;
    client.hang_up();
    let (ended, rest) = client.ended().await;
    assert!(matches!(ended, Ok(Ended::Client(_))), "{ended:?}");
    let ids: Vec<Value> = rest.iter().map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].take()).collect();
    assert!(ids.contains(&json!(1)) && ids.contains(&json!(2)), "{rest:?}");
}

#[tokio::test]
async fn a_shutdown_ends_open_calls_and_serving() {
    let bench = Bench::new(&["hang"]);
    let shutdown = CancellationToken::new();
    let mut client = bench.client(ServeOptions { shutdown: shutdown.clone(), ..ServeOptions::default() });
    client.greet(json!({})).await;
    client.list().await;
    client.call("1", r#"{"name":"fake__hang"}"#).await;
    bench.script.called().await;
    shutdown.cancel();
    let (ended, rest) = client.ended().await;
    assert_eq!(ended, Ok(Ended::Shutdown));
    assert_eq!(bench.items.codes(), [Some(Code::Cancelled)]);
    assert_eq!(rest.len(), 1, "{rest:?}");
}

#[tokio::test]
async fn a_client_that_leaves_before_the_handshake_ends_serving() {
    let bench = Bench::new(&["echo"]);
    let mut client = bench.client(ServeOptions::default());
    client.hang_up();
    assert!(matches!(client.ended().await.0, Ok(Ended::Client(_))));

    let bench = Bench::new(&["echo"]);
    let shutdown = CancellationToken::new();
    let client = bench.client(ServeOptions { shutdown: shutdown.clone(), ..ServeOptions::default() });
    shutdown.cancel();
    assert_eq!(client.ended().await.0, Ok(Ended::Shutdown));
}

#[tokio::test]
async fn a_refused_handshake_is_answered_even_if_the_input_ends_right_after_it() {
    let bench = Bench::new(&[]);
    let mut client = bench.client(ServeOptions::default());
    client.send(r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#).await;
    client.hang_up();
    let (ended, rest) = client.ended().await;
    assert!(matches!(ended, Ok(Ended::Client(_))), "{ended:?}");
    let [line] = &rest[..] else { panic!("{rest:?}") };
    assert_eq!(serde_json::from_str::<Value>(line).unwrap()["error"]["code"], -32602);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_cannot_keep_serving_alive() {
    let bench = Bench::new(&["echo"]);
    let mut client = ready(&bench).await;
    let large = "x".repeat(3 * 1024 * 1024);
    for id in 1..4 {
        client.call(&id.to_string(), &format!(r#"{{"name":"fake__echo","arguments":{{"a":"{large}"}}}}"#)).await;
    }
    bench.script.called().await;
    client.hang_up();
    assert!(matches!(client.ended_unread().await, Ok(Ended::Client(_))));
    assert_eq!(bench.items.started(), bench.items.completed().len());
}

#[tokio::test]
async fn log_messages_of_upstreams_pass_at_or_above_the_level_that_was_set() {
    let bench = Bench::new(&["echo"]);
    let mut client = ready(&bench).await;
    client.send(r#"{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"warning"}}"#).await;
    assert_eq!(client.answer(json!(1)).await["result"], json!({}));
    let log = |level: &str, logger: Option<&str>| {
        let logger = logger.map(str::to_owned);
        bench.script.events().log(UpstreamLog {
            level: level.to_owned(),
            logger,
            data: json!({ "of": level }),
            audience: None,
        });
    };
    log("info", None);
    log("error", Some("db"));
    log("warning", None);
    let told = client.told("notifications/message").await;
    assert_eq!(told["params"], json!({ "level": "error", "logger": "fake/db", "data": { "of": "error" } }));
    let told = client.told("notifications/message").await;
    assert_eq!(told["params"], json!({ "level": "warning", "logger": "fake", "data": { "of": "warning" } }));
}

/// The messages of the steps of one call, in order.
async fn step_messages(bench: &Bench) -> Vec<Value> {
    let mut client = ready(bench).await;
    client.call("1", r#"{"name":"fake__steps","_meta":{"progressToken":"t"}}"#).await;
    let mut messages = Vec::new();
    loop {
        let mut message: Value = serde_json::from_str(&client.line().await.unwrap()).unwrap();
        if message["id"] == 1 {
            return messages;
        }
        messages.push(message["params"]["message"].take());
    }
}

#[tokio::test]
async fn r31_progress_messages_pass_the_sanitisers_and_one_that_fails_leaves_the_numbers_alone() {
    let removing = sanitiser::bound(LayerKind::Managed, "m", &Cleaner::removes("at", Class::Secret));
    let messages = step_messages(&Bench::cleaned(&["steps"], removing)).await;
    assert_eq!(messages, ["[redacted: secret] 1", "[redacted: secret] 3", "[redacted: secret] 4.5"]);
    // It fails for steps alone: a definition that it failed for would not be listed.
    let script = |facts: &OutputFacts| match facts.targets.iter().any(|target| target.text.starts_with("at ")) {
        true => Err(Fault::new(FaultCode::Trap, "a step")),
        false => Ok((Verdict::Pass, None)),
    };
    let failing = sanitiser::bound(LayerKind::Managed, "m", &Cleaner::by(script));
    assert_eq!(step_messages(&Bench::cleaned(&["steps"], failing)).await, vec![Value::Null; 3]);
}

#[tokio::test]
async fn r31_log_messages_pass_the_sanitisers_and_one_that_is_withheld_is_not_sent() {
    let script = |facts: &OutputFacts| match facts.targets.iter().position(|target| &*target.text == "hunter2") {
        Some(at) => {
            let edit = Edit::Replace { target: at as u32, start: 0, end: 7, class: Class::Secret };
            Ok((Verdict::Edit(vec![edit]), None))
        }
        None if facts.targets.iter().any(|target| &*target.text == "gone") => {
            Ok((Verdict::Withhold("no".to_owned()), None))
        }
        None => Ok((Verdict::Pass, None)),
    };
    let bench = Bench::cleaned(&["echo"], sanitiser::bound(LayerKind::Managed, "m", &Cleaner::by(script)));
    let mut client = ready(&bench).await;
    for data in ["gone", "hunter2", "plain"] {
        let (level, logger) = ("error".to_owned(), Some("db".to_owned()));
        bench.script.events().log(UpstreamLog { level, logger, data: json!({ "k": data }), audience: None });
    }
    for left in ["[redacted: secret]", "plain"] {
        let told = client.told("notifications/message").await;
        assert_eq!(told["params"], json!({ "level": "error", "logger": "fake/db", "data": { "k": left } }));
    }
}

#[tokio::test]
async fn pitfall_11_two_clients_with_equal_ids_get_each_their_own_answers() {
    let bench = Bench::new(&["echo"]);
    let mut clients = [ready(&bench).await, ready(&bench).await];
    for round in 0..20 {
        for (who, client) in clients.iter_mut().enumerate() {
            let arguments = json!({ "who": who, "round": round });
            client.call("1", &json!({ "name": "fake__echo", "arguments": arguments }).to_string()).await;
        }
    }
    for (who, client) in clients.iter_mut().enumerate() {
        let mut rounds = Vec::new();
        for _ in 0..20 {
            let echoed: Value = serde_json::from_str(text(&client.answer(json!(1)).await)).unwrap();
            assert_eq!(echoed["who"], who);
            rounds.push(echoed["round"].as_u64().unwrap());
        }
        rounds.sort_unstable();
        assert_eq!(rounds, (0..20).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_batch_is_answered_with_an_error_and_the_session_goes_on() {
    let bench = Bench::new(&["t"]);
    let mut client = bench.greeted(json!({})).await;
    client.send(r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#).await;
    let answer = client.answer(Value::Null).await;
    assert_eq!(answer["error"]["code"], -32600);
    assert!(answer["error"]["message"].as_str().unwrap().contains("batch"), "{answer}");
    client.ping().await;
}
