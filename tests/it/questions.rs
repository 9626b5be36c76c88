//! A question of a server reaches the client of its call, or nobody; what goes back was decided about (R23).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use portcullis::adapters::mcp::lanes::Lanes;
use portcullis::config::server_keys::{Lifecycle, Sharing};
use portcullis::host::fleet::ServerSpec;
use portcullis::host::session::{Session, SessionCall};
use portcullis::model::answerable::Answerable;
use portcullis::model::caller::Caller;
use portcullis::model::layer::LayerKind;
use portcullis::model::outcome::{Code, Outcome};
use portcullis::model::posture::{ApprovalMode, Profile};
use portcullis::model::verdict::{Remember, Verdict};
use portcullis::pipeline::Finished;
use portcullis::ports::approval::{Kind, PastState};
use portcullis::ports::questions::{NoAnswer, Questions, ServerQuestion};
use portcullis::ports::reviewer::NobodyThere;
use portcullis::ports::upstream::Upstream;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::fakes::house::{House, call, spec};
use crate::fakes::people::{Person, allowed};
use crate::fakes::policy::{Policies, Scripted, ask, deny, source};
use crate::fakes::server::FakeServer;
use crate::fakes::{Gate, Journal};
use crate::support::far_end::{FarEnd, FarEnds, far_ends};
use crate::support::{Seen, eventually};

const ASK: &str = "elicitation/create";

/// A client that answers everything with the same.
struct Client {
    answerable: Answerable,
    answer: Value,
    asked: Mutex<Vec<ServerQuestion>>,
    gate: Option<Arc<Gate>>,
    withdrawn: Arc<Mutex<usize>>,
}

impl Client {
    fn with(answerable: Answerable, answer: Value) -> Arc<Self> {
        Arc::new(Self { answerable, answer, asked: Mutex::default(), gate: None, withdrawn: Arc::default() })
    }

    fn forms() -> Arc<Self> {
        let answer = json!({ "action": "accept", "content": { "name": "Ann" } });
        Self::with(Answerable { forms: true, ..Answerable::default() }, answer)
    }

    fn slow(gate: &Arc<Gate>) -> Arc<Self> {
        let client = Arc::into_inner(Self::forms()).unwrap();
        Arc::new(Self { gate: Some(Arc::clone(gate)), ..client })
    }

    fn count(&self) -> usize {
        self.asked.lock().len()
    }
}

struct Withdrawn(Arc<Mutex<usize>>, bool);

impl Drop for Withdrawn {
    fn drop(&mut self) {
        if !self.1 {
            *self.0.lock() += 1;
        }
    }
}

#[async_trait]
impl Questions for Client {
    fn answerable(&self) -> Answerable {
        self.answerable
    }

    async fn ask(&self, question: ServerQuestion) -> Result<Arc<str>, NoAnswer> {
        self.asked.lock().push(question);
        let mut withdrawn = Withdrawn(Arc::clone(&self.withdrawn), false);
        if let Some(gate) = &self.gate {
            gate.pass().await;
        }
        withdrawn.1 = true;
        Ok(self.answer.to_string().into())
    }
}

/// A host with one server, `far`, that the test plays.
pub(crate) struct Stage {
    pub(crate) house: House,
    ends: FarEnds,
}

impl Stage {
    fn under(policies: &Policies, lifecycle: Lifecycle, sharing: Sharing) -> Self {
        let (upstream, ends) = far_ends("far", lifecycle);
        let upstream: Arc<dyn Upstream> = Lanes::of(upstream, sharing, true);
        let spec = ServerSpec { upstream, ..spec(&FakeServer::new("far", &Journal::default(), Vec::new())) };
        let specs = BTreeMap::from([("far".to_owned(), spec)]);
        Self { house: House::under(policies, specs, BTreeMap::new()), ends }
    }

    pub(crate) fn new(lifecycle: Lifecycle) -> Self {
        Self::under(&Policies::open(&["far"]), lifecycle, Sharing::Process)
    }

    /// The same on another machine than this one.
    pub(crate) fn elsewhere(lifecycle: Lifecycle) -> Self {
        let (upstream, ends) = far_ends("far", lifecycle);
        let mut spec = ServerSpec { upstream, ..spec(&FakeServer::new("far", &Journal::default(), Vec::new())) };
        spec.view.local = false;
        let specs = BTreeMap::from([("far".to_owned(), spec)]);
        Self { house: House::under(&Policies::open(&["far"]), specs, BTreeMap::new()), ends }
    }

    /// Serves the connection that lists.
    pub(crate) async fn served(&mut self) -> FarEnd {
        let far = self.ends.served(&["t", "u"]).await;
        self.house.lists(&["far/t", "far/u"]).await;
        far
    }

    fn session(&self, who: &str) -> Arc<Session> {
        self.house.host.session(Caller::local(who), Arc::new(NobodyThere))
    }
}

fn calls(session: &Arc<Session>, tool: &str, client: &Arc<Client>) -> JoinHandle<Finished> {
    let call = SessionCall { questions: Some(Arc::clone(client) as _), ..call(&format!("far/{tool}")) };
    run(session, call)
}

fn run(session: &Arc<Session>, call: SessionCall) -> JoinHandle<Finished> {
    let session = Arc::clone(session);
    tokio::spawn(async move { session.call(call).await })
}

fn done(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

fn form() -> Value {
    json!({ "message": "Your name?", "requestedSchema": { "type": "object", "properties": {} } })
}

fn code(finished: &Finished) -> Option<Code> {
    match finished.clean.outcome() {
        Outcome::Failed(failure) => Some(failure.code),
        _ => None,
    }
}

/// Whether the server was told that its question is not asked.
fn is_refused(answer: &Value) -> bool {
    answer["error"]["code"] == -32601
}

#[tokio::test]
async fn the_only_call_in_flight_answers_and_goes_on() {
    let mut stage = Stage::new(Lifecycle::Legacy);
    let mut far = stage.served().await;
    let client = Client::forms();
    let running = calls(&stage.session("ann"), "t", &client);
    let request = far.told("tools/call").await;
    far.ask("q", ASK, form()).await;
    let answer = far.answer("q").await;
    assert_eq!(answer["result"], client.answer);
    far.result(&request, done("hello Ann")).await;
    assert_eq!(code(&running.await.unwrap()), None);
    assert_eq!(client.asked.lock()[0].value(), form());
}

#[tokio::test]
async fn the_time_of_a_form_is_a_persons_and_no_time_of_the_calls_own() {
    const FORM: Duration = Duration::from_secs(500);
    let mut stage = Stage::new(Lifecycle::Legacy);
    let mut far = stage.served().await;
    let gate = Gate::closed();
    let running = calls(&stage.session("ann"), "t", &Client::slow(&gate));
    let request = far.told("tools/call").await;
    far.ask("q", ASK, form()).await;
    gate.reached(1).await;
    tokio::time::pause();
    tokio::time::advance(FORM).await;
    tokio::time::resume();
    gate.open();
    far.answer("q").await;
    far.result(&request, done("hello Ann")).await;
    let durations = running.await.unwrap().item.durations;
    assert!(durations.people_in_call >= FORM && durations.people == durations.people_in_call, "{durations:?}");
    assert!(durations.call >= FORM && durations.call_alone() < FORM && durations.wall_alone() < FORM, "{durations:?}");
}

#[tokio::test]
async fn pitfall_14_what_the_client_did_not_declare_is_not_asked() {
    let mut stage = Stage::new(Lifecycle::Legacy);
    let mut far = stage.served().await;
    let client = Client::forms();
    let _running = calls(&stage.session("ann"), "t", &client);
    far.told("tools/call").await;
    for (method, params) in [
        ("sampling/createMessage", json!({ "messages": [], "maxTokens": 1 })),
        ("roots/list", json!({})),
        (ASK, json!({ "mode": "url", "message": "go", "url": "https://example.com", "elicitationId": "1" })),
    ] {
        far.ask("q", method, params).await;
        let answer = far.answer("q").await;
        assert!(is_refused(&answer), "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("has not declared"), "{answer}");
    }
    assert_eq!(client.count(), 0);
}

#[tokio::test]
async fn a_question_without_a_call_or_without_a_client_is_refused() {
    let mut stage = Stage::new(Lifecycle::Legacy);
    let mut far = stage.served().await;
    far.ask("early", "roots/list", json!({})).await;
    assert!(is_refused(&far.answer("early").await));
    let _running = run(&stage.session("ann"), call("far/t"));
    far.told("tools/call").await;
    far.ask("q", ASK, form()).await;
    assert!(is_refused(&far.answer("q").await));
}

#[tokio::test]
async fn pitfall_8_with_calls_of_two_sessions_in_flight_nobody_is_asked() {
    let mut stage = Stage::new(Lifecycle::Legacy);
    let mut far = stage.served().await;
    let (ann, bob) = (Client::forms(), Client::forms());
    let _ann = calls(&stage.session("ann"), "t", &ann);
    far.told("tools/call").await;
    let _bob = calls(&stage.session("bob"), "t", &bob);
    let second = far.told("tools/call").await;
    far.ask("q", ASK, form()).await;
    let answer = far.answer("q").await;
    assert!(answer["error"]["message"].as_str().unwrap().contains("2 calls are in flight"), "{answer}");
    assert_eq!((ann.count(), bob.count()), (0, 0));
    far.result(&second, done("")).await;
}

#[tokio::test]
async fn calls_of_one_session_to_one_tool_count_as_one_and_to_two_tools_do_not() {
    let mut stage = Stage::new(Lifecycle::Legacy);
    let mut far = stage.served().await;
    let (session, client) = (stage.session("ann"), Client::forms());
    let _one = calls(&session, "t", &client);
    far.told("tools/call").await;
    let _two = calls(&session, "t", &client);
    far.told("tools/call").await;
    far.ask("q", ASK, form()).await;
    assert_eq!(far.answer("q").await["result"], client.answer);
    let _other = calls(&session, "u", &client);
    far.told("tools/call").await;
    far.ask("r", ASK, form()).await;
    assert!(is_refused(&far.answer("r").await));
}

#[tokio::test]
async fn pitfall_8_a_question_of_a_call_that_was_given_up_reaches_nobody_else() {
    let mut stage = Stage::new(Lifecycle::Legacy);
    let mut far = stage.served().await;
    let cancel = CancellationToken::new();
    let given_up = SessionCall { questions: Some(Client::forms()), cancel: cancel.clone(), ..call("far/t") };
    let (ann, bob) = (stage.session("ann"), Client::forms());
    let running = run(&ann, given_up);
    let first = far.told("tools/call").await;
    cancel.cancel();
    running.await.unwrap();
    far.told("notifications/cancelled").await;
    let _bob = calls(&stage.session("bob"), "t", &bob);
    let second = far.told("tools/call").await;
    far.ask("q", ASK, form()).await;
    let answer = far.answer("q").await;
    assert!(answer["error"]["message"].as_str().unwrap().contains("given up"), "{answer}");
    // Once the server has answered the first call after all, there is no doubt any more.
    far.result(&first, done("late")).await;
    far.ask("r", ASK, form()).await;
    assert_eq!(far.answer("r").await["result"], bob.answer);
    assert_eq!(bob.count(), 1);
    far.result(&second, done("")).await;
}

#[tokio::test]
async fn a_question_ends_with_its_call_and_with_the_servers_word() {
    let mut stage = Stage::new(Lifecycle::Legacy);
    let mut far = stage.served().await;
    let (gate, session) = (Gate::closed(), stage.session("ann"));
    let client = Client::slow(&gate);
    let running = calls(&session, "t", &client);
    let request = far.told("tools/call").await;
    far.ask("q", ASK, form()).await;
    gate.reached(1).await;
    far.write(json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": "q" } })).await;
    eventually("the withdrawal", || (*client.withdrawn.lock() == 1).then_some(())).await;
    far.ask("r", ASK, form()).await;
    gate.reached(2).await;
    far.result(&request, done("without an answer")).await;
    assert_eq!(code(&running.await.unwrap()), None);
    eventually("the withdrawal", || (*client.withdrawn.lock() == 2).then_some(())).await;
}

#[tokio::test]
async fn r23_an_answer_that_a_layer_denies_is_not_passed_on() {
    let guard = Scripted::by(|_, facts| {
        let secret = facts.arguments.at("/content/name").is_some();
        Ok(if facts.kind == Kind::Reply && secret { deny("no-names") } else { Verdict::Abstain })
    });
    let policies = Policies::open(&["far"]).with(LayerKind::Managed, "guard", &guard);
    let mut stage = Stage::under(&policies, Lifecycle::Legacy, Sharing::Process);
    let mut far = stage.served().await;
    let running = calls(&stage.session("ann"), "t", &Client::forms());
    let request = far.told("tools/call").await;
    far.ask("q", ASK, form()).await;
    let answer = far.answer("q").await;
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("managed/guard") && message.contains("no-names"), "{message}");
    assert!(!answer.to_string().contains("Ann") && !message.contains("SECRET"), "{answer}");
    far.result(&request, done("")).await;
    running.await.unwrap();
    let kinds: Vec<Kind> = stage.house.tape.decisions().iter().map(|record| record.kind).collect();
    assert_eq!(kinds, [Kind::Tool, Kind::Reply]);
}

#[tokio::test]
async fn r33_an_answer_is_a_call_of_its_own_in_history_and_counters() {
    let guard = Scripted::by(|_, facts| {
        let owner = source(LayerKind::Managed, "guard");
        let count = facts.moment.counters.count(&owner, "all", 60_000).unwrap();
        let open = facts.moment.history.iter().filter(|call| call.state == PastState::Open).count();
        // The first answer, in its call: the second of all, while the call is open. It is refused, so the next is no third.
        let first = facts.kind == Kind::Reply && facts.moment.history.len() == 1;
        assert_eq!((count, open), if facts.kind == Kind::Reply { (2, 1) } else { (1, 0) });
        Ok(if first { deny("not-yet") } else { Verdict::Abstain })
    });
    let policies = Policies::open(&["far"]).with(LayerKind::Managed, "guard", &guard);
    let mut stage = Stage::under(&policies, Lifecycle::Legacy, Sharing::Process);
    let mut far = stage.served().await;
    let running = calls(&stage.session("ann"), "t", &Client::forms());
    let request = far.told("tools/call").await;
    far.ask("first", ASK, form()).await;
    assert!(far.answer("first").await["error"].is_object());
    far.ask("second", ASK, form()).await;
    assert!(far.answer("second").await["error"].is_null());
    far.result(&request, done("")).await;
    running.await.unwrap();
    assert_eq!(guard.asked(), 3);
}

#[tokio::test]
async fn r23_an_answer_may_need_a_persons_agreement_which_is_never_remembered() {
    let guard = Scripted::by(|_, facts| {
        let reply = facts.kind == Kind::Reply;
        Ok(if reply { ask("look-first", Remember::Always) } else { Verdict::Abstain })
    });
    let policies = Policies::open(&["far"]).with(LayerKind::Managed, "guard", &guard);
    let mut stage = Stage::under(&policies, Lifecycle::Legacy, Sharing::Process);
    let mut far = stage.served().await;
    let person = Person::replying(&Journal::default(), [allowed(Remember::Never), allowed(Remember::Never)]);
    let reviewed =
        SessionCall { questions: Some(Client::forms()), reviewer: Some(Arc::clone(&person) as _), ..call("far/t") };
    let running = run(&stage.session("ann"), reviewed);
    let request = far.told("tools/call").await;
    for id in ["q", "r"] {
        far.ask(id, ASK, form()).await;
        assert_eq!(far.answer(id).await["result"]["action"], "accept");
    }
    far.result(&request, done("")).await;
    running.await.unwrap();
    let asked = person.questions();
    assert_eq!(asked.len(), 2, "an agreement to an answer is not remembered");
    assert!(asked.iter().all(|question| question.kind == Kind::Reply && question.options == [Remember::Never]));
    assert!(asked[0].arguments.contains("Ann"));
}

#[tokio::test]
async fn r26_an_answer_with_a_key_twice_is_not_passed_on() {
    struct Twice;
    #[async_trait]
    impl Questions for Twice {
        fn answerable(&self) -> Answerable {
            Answerable::RELAYED
        }

        async fn ask(&self, _question: ServerQuestion) -> Result<Arc<str>, NoAnswer> {
            Ok(r#"{"action":"accept","action":"decline"}"#.into())
        }
    }
    let mut stage = Stage::new(Lifecycle::Legacy);
    let mut far = stage.served().await;
    let _running = run(&stage.session("ann"), SessionCall { questions: Some(Arc::new(Twice)), ..call("far/t") });
    far.told("tools/call").await;
    far.ask("q", ASK, form()).await;
    let answer = far.answer("q").await;
    assert!(answer["error"]["message"].as_str().unwrap().contains("cannot be passed on"), "{answer}");
}

#[tokio::test]
async fn a_call_may_ask_only_so_often() {
    let mut stage = Stage::new(Lifecycle::Legacy);
    let mut far = stage.served().await;
    let client = Client::forms();
    let _running = calls(&stage.session("ann"), "t", &client);
    far.told("tools/call").await;
    let mut refused = 0;
    for n in 0..40 {
        let id = format!("q{n}");
        far.ask(&id, ASK, form()).await;
        refused += usize::from(is_refused(&far.answer(&id).await));
    }
    assert_eq!((client.count(), refused), (32, 8));
}

#[tokio::test]
async fn pitfall_1_7_15_the_questions_of_a_stateless_server_become_rounds_of_one_call() {
    let mut stage = Stage::new(Lifecycle::Modern);
    let mut far = stage.served().await;
    let (client, seen) = (Client::forms(), Seen::new());
    let asking = SessionCall {
        questions: Some(Arc::clone(&client) as _),
        progress: Some(Arc::clone(&seen) as _),
        ..call("far/t")
    };
    let running = run(&stage.session("ann"), asking);
    let first = far.told("tools/call").await;
    let meta = &first["params"]["_meta"];
    assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
    // Pitfall 14: what the client of this call can be asked, and nothing else.
    assert_eq!(meta["io.modelcontextprotocol/clientCapabilities"], json!({ "elicitation": { "form": {} } }));
    let input = json!({ "name": { "method": ASK, "params": form() } });
    far.result(&first, json!({ "resultType": "input_required", "inputRequests": input, "requestState": "s1" })).await;
    let second = far.told("tools/call").await;
    assert_ne!(second["id"], first["id"]);
    assert_eq!(second["params"]["requestState"], "s1");
    assert_eq!(second["params"]["inputResponses"], json!({ "name": client.answer }));
    assert_eq!(second["params"]["arguments"], first["params"]["arguments"]);
    // The second round has a progress of its own.
    let token = &second["params"]["_meta"]["progressToken"];
    assert_ne!(*token, first["params"]["_meta"]["progressToken"]);
    let step = json!({ "progressToken": token, "progress": 1 });
    far.write(json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": step })).await;
    let result = r#"{"resultType":"complete","zz":1.50,"content":[],"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"far","version":"1"}}}"#;
    far.write_raw(&format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, second["id"])).await;
    let finished = running.await.unwrap();
    let text = finished.clean.result().verbatim().unwrap().to_string();
    // Pitfalls 1 and 15: what belongs to the hop stays on it, all else is as it was spelled.
    let kept = r#"{"zz":1.50,"content":[],"_meta":{"portcullis/serverInfo":{"name":"far","version":"1"}}}"#;
    assert_eq!(text, kept);
    assert_eq!(seen.all().len(), 1);
}

#[tokio::test]
async fn pitfall_7_a_cancellation_in_a_later_round_names_that_rounds_request() {
    let mut stage = Stage::new(Lifecycle::Modern);
    let mut far = stage.served().await;
    let cancel = CancellationToken::new();
    let asking = SessionCall { questions: Some(Client::forms()), cancel: cancel.clone(), ..call("far/t") };
    let running = run(&stage.session("ann"), asking);
    let first = far.told("tools/call").await;
    let input = json!({ "n": { "method": ASK, "params": form() } });
    far.result(&first, json!({ "resultType": "input_required", "inputRequests": input })).await;
    let second = far.told("tools/call").await;
    cancel.cancel();
    assert_eq!(far.told("notifications/cancelled").await["params"]["requestId"], second["id"]);
    assert_eq!(code(&running.await.unwrap()), Some(Code::Cancelled));
}

#[tokio::test]
async fn what_a_stateless_server_may_not_ask_ends_the_call_with_the_reason() {
    for (input, why) in [
        (json!({ "r": { "method": "roots/list" } }), "has not declared `roots`"),
        (json!({ "r": { "method": "tools/call" } }), "nobody can be asked"),
        (json!({}), "says not which"),
    ] {
        let mut stage = Stage::new(Lifecycle::Modern);
        let mut far = stage.served().await;
        let running = calls(&stage.session("ann"), "t", &Client::forms());
        let request = far.told("tools/call").await;
        far.result(&request, json!({ "resultType": "input_required", "inputRequests": input })).await;
        let finished = running.await.unwrap();
        let Outcome::Failed(failure) = finished.clean.outcome() else { panic!("{finished:?}") };
        assert_eq!(failure.code, Code::QuestionRefused);
        assert!(failure.detail.as_deref().unwrap_or_default().contains(why), "{failure:?}");
    }
}

#[tokio::test]
async fn a_server_that_asks_without_end_is_given_up() {
    let mut stage = Stage::new(Lifecycle::Modern);
    let mut far = stage.served().await;
    let running = calls(&stage.session("ann"), "t", &Client::forms());
    let mut rounds = 0;
    while let Some(request) = tokio::select! {
        request = far.told("tools/call") => Some(request),
        () = async { while !running.is_finished() { tokio::task::yield_now().await; } } => None,
    } {
        rounds += 1;
        let input = json!({ "n": { "method": ASK, "params": form() } });
        far.result(&request, json!({ "resultType": "input_required", "inputRequests": input })).await;
    }
    assert_eq!(code(&running.await.unwrap()), Some(Code::QuestionRefused));
    assert!(rounds <= 12, "{rounds} rounds");
}

#[tokio::test]
async fn a_stateless_server_tells_changes_where_it_is_listened_to() {
    let mut stage = Stage::new(Lifecycle::Modern);
    let mut far = stage.ends.served(&["t"]).await;
    stage.house.lists(&["far/t"]).await;
    let listen = far.told("subscriptions/listen").await;
    assert_eq!(listen["params"]["notifications"], json!({ "toolsListChanged": true }));
    far.write(json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": {} })).await;
    far.list(&["t", "u"]).await;
    stage.house.lists(&["far/t", "far/u"]).await;
    // A stream that ends is opened again, and what may have been missed is listed.
    far.result(&listen, json!({ "resultType": "complete" })).await;
    far.told("subscriptions/listen").await;
    far.list(&["u"]).await;
    stage.house.lists(&["far/u"]).await;
}

#[tokio::test]
async fn auto_falls_back_to_a_server_with_a_handshake() {
    let mut stage = Stage::new(Lifecycle::Auto);
    let mut far = stage.ends.next().await;
    let probe = far.read().await;
    assert_eq!(probe["method"], "server/discover");
    let error = json!({ "code": -32601, "message": "no such method" });
    far.write(json!({ "jsonrpc": "2.0", "id": probe["id"], "error": error })).await;
    let initialize = far.shake().await;
    assert_eq!(initialize["method"], "initialize");
    far.list(&["t"]).await;
    stage.house.lists(&["far/t"]).await;
    let running = calls(&stage.session("ann"), "t", &Client::forms());
    let request = far.told("tools/call").await;
    assert!(request["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"].is_null());
    far.result(&request, done("")).await;
    assert_eq!(code(&running.await.unwrap()), None);
}

#[tokio::test]
async fn auto_shakes_hands_with_a_server_that_knows_discovery_and_older_versions_only() {
    let mut stage = Stage::new(Lifecycle::Auto);
    let mut far = stage.ends.next().await;
    let probe = far.read().await;
    let result = json!({
        "resultType": "complete", "supportedVersions": ["2025-11-25"], "capabilities": {},
        "serverInfo": { "name": "far", "version": "1" }, "ttlMs": 0, "cacheScope": "private",
    });
    far.result(&probe, result).await;
    assert_eq!(far.shake().await["method"], "initialize");
    far.list(&["t"]).await;
    stage.house.lists(&["far/t"]).await;
}

#[tokio::test]
async fn pitfall_13_each_server_is_spoken_to_in_the_era_that_is_set_for_it() {
    for (lifecycle, method) in [
        (Lifecycle::Legacy, "initialize"),
        (Lifecycle::Modern, "server/discover"),
        (Lifecycle::Auto, "server/discover"),
    ] {
        let mut stage = Stage::new(lifecycle);
        assert_eq!(stage.ends.next().await.read().await["method"], method, "{lifecycle:?}");
    }
}

#[tokio::test]
async fn pitfall_8_sessions_with_servers_of_their_own_are_each_asked_about_their_own_calls() {
    let mut stage = Stage::under(&Policies::open(&["far"]), Lifecycle::Legacy, Sharing::Session);
    let _listing = stage.served().await;
    let (ann, bob) = (Client::forms(), Client::forms());
    let (of_ann, of_bob) = (stage.session("ann"), stage.session("bob"));
    let first = calls(&of_ann, "t", &ann);
    let mut anns = stage.ends.served(&["t", "u"]).await;
    let second = calls(&of_bob, "t", &bob);
    let mut bobs = stage.ends.served(&["t", "u"]).await;
    let (one, two) = (anns.told("tools/call").await, bobs.told("tools/call").await);
    bobs.ask("q", ASK, form()).await;
    assert_eq!(bobs.answer("q").await["result"], bob.answer);
    assert_eq!((ann.count(), bob.count()), (0, 1));
    anns.result(&one, done("")).await;
    bobs.result(&two, done("")).await;
    assert_eq!((code(&first.await.unwrap()), code(&second.await.unwrap())), (None, None));
    // The next call finds the server there; the end of the session ends it, and no other.
    let again = calls(&of_ann, "u", &ann);
    let request = anns.told("tools/call").await;
    anns.result(&request, done("")).await;
    again.await.unwrap();
    assert!(stage.ends.is_quiet());
    drop(of_ann);
    while anns.read_or_end().await.is_some() {}
    let still = calls(&of_bob, "t", &bob);
    let request = bobs.told("tools/call").await;
    bobs.result(&request, done("")).await;
    assert_eq!(code(&still.await.unwrap()), None);
}

#[tokio::test]
async fn sessions_of_one_principal_share_a_server_and_other_principals_have_another() {
    let mut stage = Stage::under(&Policies::open(&["far"]), Lifecycle::Legacy, Sharing::Principal);
    let _listing = stage.served().await;
    let client = Client::forms();
    let first = calls(&stage.session("ann"), "t", &client);
    let mut anns = stage.ends.served(&["t", "u"]).await;
    let request = anns.told("tools/call").await;
    anns.result(&request, done("")).await;
    first.await.unwrap();
    let second = calls(&stage.session("ann"), "t", &client);
    let request = anns.told("tools/call").await;
    anns.result(&request, done("")).await;
    second.await.unwrap();
    let _third = calls(&stage.session("bob"), "t", &client);
    let mut bobs = stage.ends.served(&["t", "u"]).await;
    bobs.told("tools/call").await;
}

#[tokio::test]
async fn r24_a_callers_own_server_that_defines_a_tool_otherwise_is_not_called() {
    let mut stage = Stage::under(&Policies::open(&["far"]), Lifecycle::Legacy, Sharing::Session);
    let _listing = stage.served().await;
    let running = calls(&stage.session("ann"), "t", &Client::forms());
    let mut own = stage.ends.next().await;
    own.shake().await;
    let request = own.told("tools/list").await;
    let other = json!([{ "name": "t", "description": "something else", "inputSchema": { "type": "object" } }]);
    own.result(&request, json!({ "tools": other })).await;
    let finished = running.await.unwrap();
    assert_eq!(code(&finished), Some(Code::NotSent));
}

#[tokio::test]
async fn what_a_callers_own_server_logs_is_for_that_caller() {
    let mut stage = Stage::under(&Policies::open(&["far"]), Lifecycle::Legacy, Sharing::Session);
    let _listing = stage.served().await;
    let mut logs = stage.house.host.fleet().logs();
    let session = stage.session("ann");
    let _running = calls(&session, "t", &Client::forms());
    let mut own = stage.ends.served(&["t", "u"]).await;
    let params = json!({ "level": "info", "data": "for ann" });
    own.write(json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": params })).await;
    let (_, message) = logs.recv().await.unwrap();
    let audience = message.audience.unwrap();
    assert!(audience.includes(session.caller()) && !audience.includes(&Caller::local("ann")));
}

#[tokio::test]
async fn r2_policies_see_the_posture_of_the_call_in_its_replies_too() {
    let seen: Arc<Mutex<Vec<(Kind, Profile)>>> = Arc::default();
    let kept = Arc::clone(&seen);
    let guard = Scripted::by(move |_, facts| {
        kept.lock().push((facts.kind, facts.posture.profile));
        Ok(Verdict::Abstain)
    });
    let policies = Policies::open(&["far"])
        .posture(LayerKind::Managed, |posture| posture.profile = Some(Profile::ReadOnly))
        .mode(LayerKind::Managed, "far", ApprovalMode::Approve)
        .with(LayerKind::Managed, "guard", &guard);
    let mut stage = Stage::under(&policies, Lifecycle::Legacy, Sharing::Process);
    let mut far = stage.served().await;
    let _running = calls(&stage.session("ann"), "t", &Client::forms());
    far.told("tools/call").await;
    far.ask("q", ASK, form()).await;
    far.answer("q").await;
    assert_eq!(*seen.lock(), [(Kind::Tool, Profile::ReadOnly), (Kind::Reply, Profile::ReadOnly)]);
}

#[tokio::test]
async fn a_question_that_may_be_of_two_calls_ends_with_the_last_of_them_and_the_server_hears() {
    let mut stage = Stage::new(Lifecycle::Legacy);
    let mut far = stage.served().await;
    let (gate, session) = (Gate::closed(), stage.session("ann"));
    let client = Client::slow(&gate);
    let one = calls(&session, "t", &client);
    let first = far.told("tools/call").await;
    let two = calls(&session, "t", &client);
    let second = far.told("tools/call").await;
    far.ask("q", ASK, form()).await;
    gate.reached(1).await;
    far.result(&first, done("")).await;
    one.await.unwrap();
    assert_eq!(*client.withdrawn.lock(), 0, "it may be the other's");
    far.result(&second, done("")).await;
    two.await.unwrap();
    let answer = far.answer("q").await;
    assert!(answer["error"]["message"].as_str().unwrap().contains("the call is over"), "{answer}");
    assert_eq!(*client.withdrawn.lock(), 1);
}

#[tokio::test]
async fn calls_that_one_session_gave_up_do_not_end_its_own_questions() {
    let mut stage = Stage::new(Lifecycle::Legacy);
    let mut far = stage.served().await;
    let session = stage.session("ann");
    for _ in 0..300 {
        let cancel = CancellationToken::new();
        let given_up = SessionCall { cancel: cancel.clone(), ..call("far/t") };
        let running = run(&session, given_up);
        far.told("tools/call").await;
        cancel.cancel();
        running.await.unwrap();
        far.told("notifications/cancelled").await;
    }
    let client = Client::forms();
    let _running = calls(&session, "t", &client);
    far.told("tools/call").await;
    far.ask("q", ASK, form()).await;
    assert_eq!(far.answer("q").await["result"], client.answer);
}

#[tokio::test]
async fn pitfall_1_what_a_key_says_counts_however_it_is_spelled() {
    let mut stage = Stage::new(Lifecycle::Modern);
    let mut far = stage.served().await;
    let running = calls(&stage.session("ann"), "t", &Client::forms());
    let request = far.told("tools/call").await;
    let result = r#"{"content":[],"result\u0054ype":"input_required","inputRequests":{"a":{"method":"roots/list"}}}"#;
    far.write_raw(&format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, request["id"])).await;
    assert_eq!(code(&running.await.unwrap()), Some(Code::QuestionRefused));
}

/// Has a caller's own server listed and called once.
async fn own_server(stage: &mut Stage, session: &Arc<Session>, client: &Arc<Client>) -> FarEnd {
    let first = calls(session, "t", client);
    let mut own = stage.ends.served(&["t", "u"]).await;
    let request = own.told("tools/call").await;
    own.result(&request, done("")).await;
    first.await.unwrap();
    own
}

async fn changes(own: &mut FarEnd) -> Value {
    own.write(json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" })).await;
    own.told("tools/list").await
}

#[tokio::test]
async fn r24_a_change_that_could_not_be_listed_still_stands() {
    let mut stage = Stage::under(&Policies::open(&["far"]), Lifecycle::Legacy, Sharing::Session);
    let _listing = stage.served().await;
    let (session, client) = (stage.session("ann"), Client::forms());
    let mut own = own_server(&mut stage, &session, &client).await;
    let relist = changes(&mut own).await;
    let busy = json!({ "code": -32603, "message": "busy" });
    own.write(json!({ "jsonrpc": "2.0", "id": relist["id"], "error": busy })).await;
    // The next call lists first, and finds another tool than the one that was seen.
    let second = calls(&session, "t", &client);
    let relist = own.told("tools/list").await;
    let other = json!([{ "name": "t", "description": "something else", "inputSchema": { "type": "object" } }]);
    own.result(&relist, json!({ "tools": other })).await;
    assert_eq!(code(&second.await.unwrap()), Some(Code::NotSent));
}

#[tokio::test]
async fn r19_a_change_during_consent_is_seen_at_the_hand_over_and_a_listing_holds_no_call_up() {
    for (definition, expected) in [("", None), ("something else", Some(Code::NotSent))] {
        let gate = Gate::closed();
        let slow = Scripted::by(|_, _| Ok(Verdict::Abstain)).at(&gate);
        let policies = Policies::open(&["far"]).with(LayerKind::Managed, "slow", &slow);
        let mut stage = Stage::under(&policies, Lifecycle::Legacy, Sharing::Session);
        let _listing = stage.served().await;
        let (session, client) = (stage.session("ann"), Client::forms());
        let first = calls(&session, "t", &client);
        let mut own = stage.ends.served(&["t", "u"]).await;
        gate.reached(1).await;
        let relist = changes(&mut own).await;
        if definition.is_empty() {
            // Still being listed at the hand-over: what was listed before counts.
            gate.open();
            let request = own.told("tools/call").await;
            own.result(&request, done("")).await;
        } else {
            let tool = json!({ "name": "t", "description": definition, "inputSchema": { "type": "object" } });
            own.result(&relist, json!({ "tools": [tool] })).await;
            own.ask("p", "ping", json!({})).await;
            own.answer("p").await;
            gate.open();
        }
        assert_eq!(code(&first.await.unwrap()), expected);
    }
}

#[tokio::test]
async fn r37_one_principal_cannot_take_all_the_room() {
    let mut stage = Stage::under(&Policies::open(&["far"]), Lifecycle::Legacy, Sharing::Session);
    let _listing = stage.served().await;
    let client = Client::forms();
    let (mut sessions, mut owns) = (Vec::new(), Vec::new());
    for _ in 0..16 {
        let session = stage.session("ann");
        owns.push(own_server(&mut stage, &session, &client).await);
        sessions.push(session);
    }
    let one_more = stage.session("ann");
    let _own = own_server(&mut stage, &one_more, &client).await;
    // The one that was used longest ago made room, and no other.
    while owns[0].read_or_end().await.is_some() {}
    let still = calls(&sessions[1], "t", &client);
    let request = owns[1].told("tools/call").await;
    owns[1].result(&request, done("")).await;
    assert_eq!(code(&still.await.unwrap()), None);
}

#[tokio::test]
async fn what_a_shared_server_logs_while_two_sessions_call_is_shown_to_nobody() {
    let mut stage = Stage::new(Lifecycle::Legacy);
    let mut far = stage.served().await;
    let mut logs = stage.house.host.fleet().logs();
    let ann = stage.session("ann");
    let say = |text: &str| json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": { "level": "info", "data": text } });
    let _one = calls(&ann, "t", &Client::forms());
    far.told("tools/call").await;
    far.write(say("of ann")).await;
    let (_, message) = logs.recv().await.unwrap();
    assert!(message.audience.unwrap().includes(ann.caller()));
    let two = calls(&stage.session("bob"), "t", &Client::forms());
    let request = far.told("tools/call").await;
    far.write(say("of somebody")).await;
    far.result(&request, done("")).await;
    two.await.unwrap();
    far.write(say("of ann again")).await;
    assert_eq!(logs.recv().await.unwrap().1.data, "of ann again");
}
