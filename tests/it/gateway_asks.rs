//! Whoever must agree is asked through the client, and only a choice that was offered counts as one (R20).

use portcullis::gateway::ServeOptions;
use portcullis::model::outcome::Code;
use serde_json::{Value, json};

use crate::support::eventually;
use crate::support::gate::{Bench, Client};

const GUARDED: &str = r#"{"name":"fake__guarded","arguments":{"path":"a\nb"}}"#;

/// A client that can be asked and has called `guarded` with id 1; returns the question.
async fn asked(bench: &Bench) -> (Client, Value) {
    let mut client = bench.greeted(json!({ "elicitation": {} })).await;
    client.list().await;
    client.call("1", GUARDED).await;
    let question = client.told("elicitation/create").await;
    (client, question)
}

async fn reply(client: &mut Client, question: &Value, result: Value) -> Value {
    client.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": result }).to_string()).await;
    client.answer(json!(1)).await
}

fn code(answer: &Value) -> &Value {
    &answer["result"]["_meta"]["portcullis/refusal"]["code"]
}

#[tokio::test]
async fn the_question_says_what_is_called_who_asks_and_what_can_be_chosen() {
    let bench = Bench::new(&["guarded"]);
    let (_client, question) = asked(&bench).await;
    let message = question["params"]["message"].as_str().unwrap();
    for part in ["`guarded`", "`fake`", r#"{"path":"a\nb"}"#, "managed/guard, rule rule-1: because it is guarded"] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
    let schema = &question["params"]["requestedSchema"];
    assert_eq!(schema["required"], json!(["decision"]));
    assert_eq!(schema["properties"]["decision"]["enum"], json!(["allow", "allow-for-session", "decline"]));
    let meta = &question["params"]["_meta"];
    assert_eq!((&meta["codex_approval_kind"], &meta["persist"]), (&json!("mcp_tool_call"), &json!("session")));
    assert_eq!(meta["tool_params"], json!({ "path": "a\nb" }));
    assert!(bench.script.calls.lock().is_empty(), "nothing is sent before the answer");
}

#[tokio::test]
async fn an_accepted_call_runs_once_and_is_asked_about_again() {
    let bench = Bench::new(&["guarded"]);
    let (mut client, question) = asked(&bench).await;
    let answer = reply(&mut client, &question, json!({ "action": "accept", "content": { "decision": "allow" } })).await;
    assert!(answer["result"]["isError"].is_null(), "{answer}");
    client.call("1", GUARDED).await;
    let again = client.told("elicitation/create").await;
    assert_ne!(again["id"], question["id"]);
}

#[tokio::test]
async fn a_session_agreement_is_not_asked_about_again() {
    let bench = Bench::new(&["guarded"]);
    let (mut client, question) = asked(&bench).await;
    let choice = json!({ "action": "accept", "content": { "decision": "allow-for-session" } });
    reply(&mut client, &question, choice).await;
    client.call("2", GUARDED).await;
    assert!(client.answer(json!(2)).await["result"]["isError"].is_null());
    assert_eq!(client.count_told("elicitation/create").await, 0);
}

#[tokio::test]
async fn r20_an_accept_without_an_offered_choice_is_a_decline() {
    let contents =
        [json!({}), json!({ "decision": "always-allow" }), json!({ "decision": true }), json!("allow"), Value::Null];
    let whole = contents.map(|content| json!({ "action": "accept", "content": content }));
    let bare =
        [json!({ "action": "accept" }), json!({ "action": "accept", "_meta": { "persist": "always" } }), json!({})];
    for result in whole.into_iter().chain(bare) {
        let bench = Bench::new(&["guarded"]);
        let (mut client, question) = asked(&bench).await;
        let answer = reply(&mut client, &question, result.clone()).await;
        assert_eq!(code(&answer), "declined", "{result}");
        assert!(bench.script.calls.lock().is_empty(), "{result} ran the call");
    }
}

#[tokio::test]
async fn declining_cancelling_and_refusing_to_ask_are_told_apart() {
    let cases = [(json!({ "action": "decline" }), "declined"), (json!({ "action": "cancel" }), "ask-cancelled")];
    for (result, expected) in cases {
        let bench = Bench::new(&["guarded"]);
        let (mut client, question) = asked(&bench).await;
        assert_eq!(code(&reply(&mut client, &question, result).await), expected);
    }
    let bench = Bench::new(&["guarded"]);
    let (mut client, question) = asked(&bench).await;
    let error = json!({ "jsonrpc": "2.0", "id": question["id"], "error": { "code": -32601, "message": "no" } });
    client.send(&error.to_string()).await;
    assert_eq!(code(&client.answer(json!(1)).await), "nobody-to-ask");
}

#[tokio::test]
async fn a_client_that_did_not_declare_forms_is_not_asked() {
    for capabilities in [json!({}), json!({ "elicitation": { "url": {} } })] {
        let bench = Bench::new(&["guarded"]);
        let mut client = bench.greeted(capabilities).await;
        client.list().await;
        client.call("1", GUARDED).await;
        assert_eq!(code(&client.answer(json!(1)).await), "nobody-to-ask");
        assert_eq!(bench.items.codes(), [Some(Code::NobodyToAsk)]);
    }
}

#[tokio::test]
async fn a_call_that_is_cancelled_while_asking_withdraws_its_question() {
    let bench = Bench::new(&["guarded"]);
    let (mut client, question) = asked(&bench).await;
    client.send(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#).await;
    let withdrawn = client.told("notifications/cancelled").await;
    assert_eq!(withdrawn["params"]["requestId"], question["id"]);
    eventually("the completed item", || (bench.items.completed().len() == 1).then_some(())).await;
    assert_eq!(bench.items.codes(), [Some(Code::Cancelled)]);
    assert!(bench.script.calls.lock().is_empty());
}

#[tokio::test]
async fn two_questions_at_once_are_answered_independently() {
    let bench = Bench::new(&["guarded"]);
    let (mut client, first) = asked(&bench).await;
    client.call("2", GUARDED).await;
    let second = client.told("elicitation/create").await;
    let allow = json!({ "action": "accept", "content": { "decision": "allow" } });
    client.send(&json!({ "jsonrpc": "2.0", "id": second["id"], "result": allow }).to_string()).await;
    assert!(client.answer(json!(2)).await["result"]["isError"].is_null());
    assert_eq!(code(&reply(&mut client, &first, json!({ "action": "decline" })).await), "declined");
}

#[tokio::test]
async fn the_end_of_the_input_ends_the_asking_at_once() {
    let bench = Bench::new(&["guarded"]);
    let mut client = bench.client(ServeOptions::default());
    client.greet(json!({ "elicitation": { "form": {} } })).await;
    client.list().await;
    client.call("1", GUARDED).await;
    client.told("elicitation/create").await;
    client.hang_up();
    let (_, rest) = client.ended().await;
    assert_eq!(bench.items.codes(), [Some(Code::AskCancelled)]);
    assert_eq!(rest.len(), 1, "{rest:?}");
}
