//! Clients of the stateless era (2026-07-28) on the same endpoint: no handshake, and a question is the result of the call.

use std::sync::Arc;
use std::time::Duration;

use portcullis::adapters::clock::SystemClock;
use portcullis::adapters::store::memory::MemoryGrants;
use portcullis::adapters::store::memory_asks::in_memory;
use portcullis::gateway::ServeOptions;
use portcullis::host::asking::Desk;
use portcullis::model::caller::TenantId;
use portcullis::model::outcome::Code;
use portcullis::model::verdict::Remember;
use portcullis::ports::asks::{Answer, AskState, Asks, Decision, Delivery, KeptAsk, NotAnswered};
use portcullis::ports::clock::Clock as _;
use serde_json::{Value, json};

use crate::support::eventually;
use crate::support::gate::{Bench, Client};

const GUARDED: &str = "fake__guarded";

/// What each request says of its client.
fn meta(capabilities: &Value) -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": capabilities,
        "io.modelcontextprotocol/clientInfo": { "name": "modern", "version": "1" },
    })
}

fn forms() -> Value {
    json!({ "elicitation": { "form": {} } })
}

/// Sends a request of the stateless era.
async fn send(client: &mut Client, id: i64, method: &str, mut params: Value, capabilities: &Value) {
    let mut stamped = meta(capabilities);
    if let Some(more) = params.get("_meta").and_then(Value::as_object) {
        stamped.as_object_mut().unwrap().extend(more.clone());
    }
    params["_meta"] = stamped;
    client.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string()).await;
}

async fn request(client: &mut Client, id: i64, method: &str, params: Value) -> Value {
    send(client, id, method, params, &forms()).await;
    client.answer(json!(id)).await
}

fn guarded(path: &str) -> Value {
    json!({ "name": GUARDED, "arguments": { "path": path } })
}

/// The same call with an answer and the state of `question`.
fn again(call: &Value, question: &Value, answer: Value) -> Value {
    let mut call = call.clone();
    call["requestState"] = question["result"]["requestState"].clone();
    call["inputResponses"] = json!({ "question-1": answer });
    call
}

fn choose(word: &str) -> Value {
    json!({ "action": "accept", "content": { "decision": word } })
}

fn code(answer: &Value) -> &Value {
    &answer["result"]["_meta"]["portcullis/refusal"]["code"]
}

/// A client that has listed the tools and called `guarded`; returns the question as well.
async fn asked(bench: &Bench) -> (Client, Value) {
    let mut client = bench.client(ServeOptions::default());
    request(&mut client, 1, "tools/list", json!({})).await;
    let question = request(&mut client, 2, "tools/call", guarded("a")).await;
    assert_eq!(question["result"]["resultType"], "input_required", "{question}");
    (client, question)
}

fn calls(bench: &Bench) -> usize {
    bench.script.calls.lock().len()
}

#[tokio::test]
async fn discovery_lists_and_calls_work_without_a_handshake_and_each_result_has_its_type() {
    let bench = Bench::new(&["echo", "verbatim", "refused"]);
    let mut client = bench.client(ServeOptions::default());
    let discovered = request(&mut client, 1, "server/discover", json!({})).await;
    let result = &discovered["result"];
    assert_eq!(result["resultType"], "complete");
    let versions = result["supportedVersions"].as_array().unwrap();
    assert!(versions.contains(&json!("2026-07-28")) && versions.contains(&json!("2025-11-25")), "{versions:?}");
    assert_eq!(result["capabilities"], json!({ "tools": {} }), "nothing is told unasked");
    let listed = request(&mut client, 2, "tools/list", json!({})).await;
    assert_eq!(listed["result"]["resultType"], "complete");
    assert_eq!((&listed["result"]["ttlMs"], &listed["result"]["cacheScope"]), (&json!(0), &json!("private")));
    assert_eq!(listed["result"]["tools"].as_array().map(Vec::len), Some(3));
    for (id, name) in [(3, "fake__echo"), (4, "fake__refused"), (5, "nothing")] {
        let answer = request(&mut client, id, "tools/call", json!({ "name": name, "arguments": {} })).await;
        assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
    }
    send(&mut client, 6, "tools/call", json!({ "name": "fake__verbatim" }), &forms()).await;
    let text = client.answer_text(json!(6)).await;
    assert!(text.contains(r#""zeta": 1.50, "content":[{"type":"text","text":"x","odd":1e2}]"#), "{text}");
}

#[tokio::test]
async fn pitfall_1_a_client_with_a_handshake_gets_no_type() {
    let bench = Bench::new(&["echo"]);
    let mut client = bench.greeted(json!({})).await;
    let listed = client.list().await;
    assert!(listed.get("resultType").is_none() && listed.get("ttlMs").is_none(), "{listed}");
    client.call("1", r#"{"name":"fake__echo"}"#).await;
    assert!(client.answer(json!(1)).await["result"].get("resultType").is_none());
}

#[tokio::test]
async fn a_probe_decides_nothing_and_a_handshake_may_follow_it() {
    let bench = Bench::new(&["guarded"]);
    let mut client = bench.client(ServeOptions::default());
    request(&mut client, 1, "server/discover", json!({})).await;
    let answer = client.greet(json!({ "elicitation": {} })).await;
    assert_eq!(answer["result"]["protocolVersion"], "2025-06-18");
    client.list().await;
    client.call("2", &guarded("a").to_string()).await;
    let question = client.told("elicitation/create").await;
    client.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": choose("allow") }).to_string()).await;
    assert!(client.answer(json!(2)).await["result"]["isError"].is_null());
}

#[tokio::test]
async fn a_request_that_is_not_whole_or_of_an_unknown_version_is_refused_and_decides_nothing() {
    let bench = Bench::new(&["echo"]);
    let mut client = bench.client(ServeOptions::default());
    let version = "io.modelcontextprotocol/protocolVersion";
    for (id, meta, code) in [
        (1, json!({ version: "2026-07-28" }), -32602),
        (2, json!({ version: "2099-01-01", "io.modelcontextprotocol/clientCapabilities": {} }), -32022),
    ] {
        let line = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/list", "params": { "_meta": meta } });
        client.send(&line.to_string()).await;
        assert_eq!(client.answer(json!(id)).await["error"]["code"], code);
    }
    let line = r#"{"jsonrpc":"2.0","id":3,"method":"tools/list"}"#;
    client.send(line).await;
    assert_eq!(client.answer(json!(3)).await["error"]["code"], -32600);
    assert!(client.greet(json!({})).await["error"].is_null());
}

#[tokio::test]
async fn after_a_stateless_request_there_is_no_handshake_and_no_older_request() {
    let bench = Bench::new(&["echo"]);
    let mut client = bench.client(ServeOptions::default());
    request(&mut client, 1, "tools/list", json!({})).await;
    let answer = client.greet(json!({})).await;
    assert_eq!(answer["error"]["code"], -32022);
    assert_eq!(answer["error"]["data"]["supported"], json!(["2026-07-28"]));
    for (id, method, params) in [(3, "logging/setLevel", json!({ "level": "debug" })), (4, "ping", json!({}))] {
        assert_eq!(request(&mut client, id, method, params).await["error"]["code"], -32601, "{method}");
    }
}

#[tokio::test]
async fn a_question_is_the_result_of_the_call_and_an_agreement_runs_it_once() {
    let bench = Bench::new(&["guarded"]);
    let (mut client, question) = asked(&bench).await;
    let input = &question["result"]["inputRequests"]["question-1"];
    assert_eq!(input["method"], "elicitation/create");
    let params = &input["params"];
    assert!(params["message"].as_str().unwrap().contains("because it is guarded"));
    assert_eq!(params["requestedSchema"]["required"], json!(["decision"]));
    let words = &params["requestedSchema"]["properties"]["decision"]["enum"];
    assert_eq!(words, &json!(["allow", "allow-for-session", "decline"]));
    assert_eq!(params["_meta"]["codex_approval_kind"], "mcp_tool_call");
    assert_eq!((calls(&bench), bench.items.completed().len()), (0, 0), "nothing is sent before the answer");

    let answer = request(&mut client, 3, "tools/call", again(&guarded("a"), &question, choose("allow"))).await;
    assert!(answer["result"]["isError"].is_null(), "{answer}");
    assert_eq!(answer["result"]["resultType"], "complete");
    assert_eq!((calls(&bench), bench.items.codes(), bench.items.started()), (1, vec![None], 1));
}

#[tokio::test]
async fn r20_in_either_era_only_an_offered_choice_is_an_agreement() {
    let rows = [
        (json!({ "action": "decline" }), "declined"),
        (json!({ "action": "cancel" }), "ask-cancelled"),
        (json!({ "action": "accept" }), "declined"),
        (choose("always-allow"), "declined"),
        (json!({ "action": "accept", "content": { "decision": ["allow"] } }), "declined"),
        (json!("allow"), "declined"),
        (json!({}), "declined"),
        (Value::Null, "declined"),
    ];
    for (answer, expected) in rows {
        let bench = Bench::new(&["guarded"]);
        let (mut client, question) = asked(&bench).await;
        let ended = request(&mut client, 3, "tools/call", again(&guarded("a"), &question, answer.clone())).await;
        assert_eq!(code(&ended), expected, "stateless, {answer}");
        assert_eq!((calls(&bench), bench.items.completed().len()), (0, 1));

        let bench = Bench::new(&["guarded"]);
        let mut client = bench.greeted(forms()).await;
        client.list().await;
        client.call("1", &guarded("a").to_string()).await;
        let id = client.told("elicitation/create").await["id"].take();
        client.send(&json!({ "jsonrpc": "2.0", "id": id, "result": answer }).to_string()).await;
        assert_eq!(code(&client.answer(json!(1)).await), expected, "with a handshake, {answer}");
        assert_eq!(calls(&bench), 0);
    }
}

#[tokio::test]
async fn r20_a_client_that_comes_back_without_an_answer_has_declined() {
    for responses in
        [None, Some(json!({})), Some(json!({ "other": choose("allow") })), Some(json!([1])), Some(json!(7))]
    {
        let bench = Bench::new(&["guarded"]);
        let (mut client, question) = asked(&bench).await;
        let mut call = guarded("a");
        call["requestState"] = question["result"]["requestState"].clone();
        if let Some(responses) = &responses {
            call["inputResponses"] = responses.clone();
        }
        assert_eq!(code(&request(&mut client, 3, "tools/call", call).await), "declined", "{responses:?}");
        assert_eq!(calls(&bench), 0);
    }
}

#[tokio::test]
async fn a_session_agreement_holds_for_later_calls() {
    let bench = Bench::new(&["guarded"]);
    let (mut client, question) = asked(&bench).await;
    let agreed = again(&guarded("a"), &question, choose("allow-for-session"));
    assert!(request(&mut client, 3, "tools/call", agreed).await["result"]["isError"].is_null());
    let later = request(&mut client, 4, "tools/call", guarded("b")).await;
    assert_eq!(later["result"]["resultType"], "complete");
    assert_eq!(calls(&bench), 2);
}

#[tokio::test]
async fn r21_a_state_holds_once_and_for_its_own_call_only() {
    let bench = Bench::new(&["guarded", "other"]);
    let (mut client, question) = asked(&bench).await;
    let good = again(&guarded("a"), &question, choose("allow"));
    let state = good["requestState"].as_str().unwrap().to_owned();
    let with = |change: &dyn Fn(&mut Value)| {
        let mut call = good.clone();
        change(&mut call);
        call
    };
    let mut altered = state.clone().into_bytes();
    *altered.last_mut().unwrap() ^= 1;
    let altered = String::from_utf8(altered).unwrap();
    let wrong = [
        ("other arguments", with(&|call| call["arguments"] = json!({ "path": "b" }))),
        ("no arguments", with(&|call| _ = call.as_object_mut().unwrap().remove("arguments"))),
        ("another tool", with(&|call| call["name"] = json!("fake__other"))),
        ("altered", with(&|call| call["requestState"] = json!(altered))),
        ("cut", with(&|call| call["requestState"] = json!(state[..state.len() / 2]))),
        ("empty", with(&|call| call["requestState"] = json!(""))),
        ("no text", with(&|call| call["requestState"] = json!({}))),
    ];
    for (at, (what, call)) in wrong.into_iter().enumerate() {
        let answer = request(&mut client, 100 + i64::try_from(at).unwrap(), "tools/call", call).await;
        assert_eq!(answer["error"]["code"], -32602, "{what}: {answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("requestState"), "{what}: {answer}");
    }
    assert_eq!((calls(&bench), bench.items.completed().len()), (0, 0), "nothing ran, and nothing ended");

    let answer = request(&mut client, 3, "tools/call", good.clone()).await;
    assert!(answer["result"]["isError"].is_null(), "the right one is still good: {answer}");
    let replayed = request(&mut client, 4, "tools/call", good).await;
    assert!(replayed["error"]["message"].as_str().unwrap().contains("used already"), "{replayed}");
    assert_eq!(calls(&bench), 1);
}

#[tokio::test]
async fn r21_a_state_is_no_good_in_another_session() {
    let bench = Bench::new(&["guarded"]);
    let (mut client, question) = asked(&bench).await;
    let mut other = bench.client(ServeOptions::default());
    request(&mut other, 1, "tools/list", json!({})).await;
    let good = again(&guarded("a"), &question, choose("allow"));
    let refused = request(&mut other, 2, "tools/call", good.clone()).await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    assert!(request(&mut client, 3, "tools/call", good).await["result"]["isError"].is_null());
}

#[tokio::test]
async fn two_questions_at_once_are_answered_in_any_order() {
    let bench = Bench::new(&["guarded"]);
    let (mut client, first) = asked(&bench).await;
    let second = request(&mut client, 3, "tools/call", guarded("b")).await;
    let same = request(&mut client, 4, "tools/call", guarded("a")).await;
    assert_ne!(first["result"]["requestState"], same["result"]["requestState"]);
    let answer = request(&mut client, 5, "tools/call", again(&guarded("b"), &second, choose("allow"))).await;
    assert!(answer["result"]["content"][0]["text"].as_str().unwrap().contains(r#""b""#), "{answer}");
    let declined = json!({ "action": "decline" });
    assert_eq!(code(&request(&mut client, 6, "tools/call", again(&guarded("a"), &first, declined)).await), "declined");
    let answer = request(&mut client, 7, "tools/call", again(&guarded("a"), &same, choose("allow"))).await;
    assert!(answer["result"]["isError"].is_null(), "{answer}");
    assert_eq!(calls(&bench), 2);
}

#[tokio::test]
async fn a_client_that_did_not_declare_forms_is_not_asked() {
    for capabilities in [json!({}), json!({ "elicitation": { "url": {} } }), json!({ "sampling": {} })] {
        let bench = Bench::new(&["guarded"]);
        let mut client = bench.client(ServeOptions::default());
        send(&mut client, 1, "tools/list", json!({}), &capabilities).await;
        client.answer(json!(1)).await;
        send(&mut client, 2, "tools/call", guarded("a"), &capabilities).await;
        assert_eq!(code(&client.answer(json!(2)).await), "nobody-to-ask", "{capabilities}");
    }
}

#[tokio::test]
async fn what_a_client_can_is_asked_of_each_request() {
    let bench = Bench::new(&["guarded"]);
    let (mut client, _) = asked(&bench).await;
    send(&mut client, 3, "tools/call", guarded("b"), &json!({})).await;
    assert_eq!(code(&client.answer(json!(3)).await), "nobody-to-ask");
}

#[tokio::test(start_paused = true)]
async fn r21_silence_ends_the_call_at_the_deadline_and_its_state_with_it() {
    let bench = Bench::new(&["guarded"]);
    let (mut client, question) = asked(&bench).await;
    tokio::time::sleep(Duration::from_secs(599)).await;
    assert_eq!(bench.items.completed().len(), 0);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(bench.items.codes(), [Some(Code::AskExpired)]);
    let late = request(&mut client, 3, "tools/call", again(&guarded("a"), &question, choose("allow"))).await;
    assert_eq!(late["error"]["code"], -32602, "{late}");
    assert_eq!(calls(&bench), 0);
}

#[tokio::test]
async fn r21_a_client_that_hangs_up_ends_what_waits_for_it() {
    let bench = Bench::new(&["guarded"]);
    let (mut client, _) = asked(&bench).await;
    client.hang_up();
    let (_, rest) = client.ended().await;
    assert_eq!((rest.len(), bench.items.codes()), (0, vec![Some(Code::AskCancelled)]));
}

#[tokio::test]
async fn a_repeated_call_that_is_cancelled_ends_the_run() {
    let bench = Bench::new(&["guarded_hang"]);
    let mut client = bench.client(ServeOptions::default());
    request(&mut client, 1, "tools/list", json!({})).await;
    let call = json!({ "name": "fake__guarded_hang", "arguments": {} });
    let question = request(&mut client, 2, "tools/call", call.clone()).await;
    // Its own round is over: this cancels nothing.
    client.send(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}"#).await;
    send(&mut client, 3, "tools/call", again(&call, &question, choose("allow")), &forms()).await;
    bench.script.called().await;
    client.send(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}"#).await;
    eventually("the completed item", || (bench.items.completed().len() == 1).then_some(())).await;
    assert_eq!(bench.items.codes(), [Some(Code::Cancelled)]);
}

#[tokio::test]
async fn r21_more_calls_than_can_wait_are_refused_and_the_others_stay() {
    let bench = Bench::new(&["guarded"]);
    let (mut client, first) = asked(&bench).await;
    for id in 3..66 {
        let question = request(&mut client, id, "tools/call", guarded("b")).await;
        assert_eq!(question["result"]["resultType"], "input_required", "{id}");
    }
    assert_eq!(code(&request(&mut client, 66, "tools/call", guarded("b")).await), "nobody-to-ask");
    let answer = request(&mut client, 67, "tools/call", again(&guarded("a"), &first, choose("allow"))).await;
    assert!(answer["result"]["isError"].is_null(), "{answer}");
    let question = request(&mut client, 68, "tools/call", guarded("b")).await;
    assert_eq!(question["result"]["resultType"], "input_required", "there is room again");
}

#[tokio::test(start_paused = true)]
async fn r21_progress_goes_out_while_a_person_is_asked() {
    let bench = Bench::new(&["guarded"]);
    let mut client = bench.greeted(forms()).await;
    client.list().await;
    client.call("1", r#"{"name":"fake__guarded","arguments":{},"_meta":{"progressToken":"t"}}"#).await;
    let id = client.told("elicitation/create").await["id"].take();
    let mut last = -1.0;
    for _ in 0..4 {
        let told = client.told("notifications/progress").await;
        assert_eq!(
            (&told["params"]["progressToken"], &told["params"]["message"]),
            (&json!("t"), &json!("waiting for approval"))
        );
        let progress = told["params"]["progress"].as_f64().unwrap();
        assert!(progress > last && progress < 0.001, "{progress} after {last}");
        last = progress;
    }
    client.send(&json!({ "jsonrpc": "2.0", "id": id, "result": choose("allow") }).to_string()).await;
    assert!(client.answer(json!(1)).await["result"]["isError"].is_null());
    client.call("2", r#"{"name":"fake__guarded","arguments":{}}"#).await;
    client.told("elicitation/create").await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(client.count_told("notifications/progress").await, 0, "nobody wanted any");
}

#[tokio::test]
async fn r21_steps_of_the_server_follow_those_of_the_waiting() {
    let bench = Bench::new(&["guarded_steps"]);
    let mut client = bench.greeted(forms()).await;
    client.list().await;
    client.call("1", r#"{"name":"fake__guarded_steps","arguments":{},"_meta":{"progressToken":"t"}}"#).await;
    let id = client.told("elicitation/create").await["id"].take();
    let mut steps = vec![client.told("notifications/progress").await];
    client.send(&json!({ "jsonrpc": "2.0", "id": id, "result": choose("allow") }).to_string()).await;
    for _ in 0..2 {
        steps.push(client.told("notifications/progress").await);
    }
    let values: Vec<f64> = steps.iter().map(|step| step["params"]["progress"].as_f64().unwrap()).collect();
    assert!(values[0] < values[1] && values[1] < values[2], "{values:?}");
    assert_eq!(
        (values[0], values[2]),
        (0.0, 0.5),
        "the server's own values, but for the one that would not have risen"
    );
    assert_eq!(steps[1]["params"]["total"], 1.0);
    client.answer(json!(1)).await;
}

fn now_ms() -> u64 {
    u64::try_from(SystemClock.now().as_millisecond()).unwrap()
}

/// A queue beside the client.
struct Beside(Arc<dyn Asks>);

impl Beside {
    fn new() -> Self {
        Self(Arc::new(in_memory(Arc::new(MemoryGrants::default()))))
    }

    fn options(&self) -> ServeOptions {
        let desk = Desk::new(Arc::clone(&self.0), Arc::new(SystemClock));
        ServeOptions { desk: Some(desk), ..ServeOptions::default() }
    }

    /// All questions, the newest first.
    fn all(&self) -> Vec<KeptAsk> {
        self.0.list(&TenantId::new("local"), true, now_ms()).unwrap()
    }

    fn answer(&self, decision: Decision) -> Result<Delivery, NotAnswered> {
        let approver = "another terminal".to_owned();
        let answer = Answer { decision, approver, roles: Default::default(), own: false };
        self.0.answer(&self.all()[0].question.id, &answer, now_ms())
    }

    /// A client whose call of `guarded` is parked, with its question in the queue as well.
    async fn parked(&self, bench: &Bench) -> (Client, Value) {
        let mut client = bench.client(self.options());
        request(&mut client, 1, "tools/list", json!({})).await;
        let question = request(&mut client, 2, "tools/call", guarded("a")).await;
        assert_eq!(question["result"]["resultType"], "input_required", "{question}");
        assert_eq!(self.all().len(), 1, "the question is not in the queue");
        (client, question)
    }
}

#[tokio::test]
async fn r21_a_parked_call_that_another_terminal_answers_goes_on_and_its_client_fetches_what_came_of_it() {
    for (decision, runs) in [(Decision::Allow(Remember::Never), true), (Decision::Deny, false)] {
        let (bench, beside) = (Bench::new(&["guarded"]), Beside::new());
        let (mut client, question) = beside.parked(&bench).await;
        assert_eq!(beside.answer(decision), Ok(Delivery::Waiting));
        // Nobody comes back for it: the call itself goes on.
        eventually("the call ends", || (bench.items.completed().len() == 1).then_some(())).await;
        assert_eq!(calls(&bench), usize::from(runs));
        // What the client says now is too late either way.
        let other = if runs { json!({ "action": "decline" }) } else { choose("allow") };
        let answer = request(&mut client, 3, "tools/call", again(&guarded("a"), &question, other)).await;
        assert_eq!(code(&answer), &if runs { Value::Null } else { json!("declined") }, "{answer}");
        assert_eq!((calls(&bench), bench.items.completed().len()), (usize::from(runs), 1), "it was called anew");
    }
}

#[tokio::test]
async fn r21_what_the_client_of_a_parked_call_answers_first_counts_and_the_queue_knows() {
    let (bench, beside) = (Bench::new(&["guarded"]), Beside::new());
    let (mut client, question) = beside.parked(&bench).await;
    let answer = request(&mut client, 3, "tools/call", again(&guarded("a"), &question, choose("allow"))).await;
    assert!(answer["result"]["isError"].is_null(), "{answer}");
    assert!(matches!(beside.answer(Decision::Deny), Err(NotAnswered::Already(_))));
    let AskState::Answered { approver, outcome: Delivery::Delivered, .. } = &beside.all()[0].state else { panic!() };
    assert!(approver.contains("elicitation by client `modern`"), "{approver}");
}

#[tokio::test]
async fn r21_a_parked_call_whose_client_goes_leaves_its_question_for_the_same_call_once() {
    let (bench, beside) = (Bench::new(&["guarded"]), Beside::new());
    let (mut client, _question) = beside.parked(&bench).await;
    client.hang_up();
    client.ended().await.0.unwrap();
    let left = &beside.all()[0];
    assert!(left.is_open(now_ms()) && !left.is_awaited(now_ms()), "{:?}", left.state);
    assert!(matches!(beside.answer(Decision::Allow(Remember::Never)), Ok(Delivery::Granted(_))));
    assert_eq!(calls(&bench), 0);
}
