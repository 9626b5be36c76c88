//! The order of steps across all ports, and what is on the wire (catalog-dispatch 5.1, M1 to M8; design page 3, "Order").

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use portcullis::adapters::mcp::lanes::Lanes;
use portcullis::config::server_keys::Sharing;
use portcullis::host::listing::Surface;
use portcullis::host::session::SessionCall;
use portcullis::host::step::FunctionCall;
use portcullis::model::decision::Spoken;
use portcullis::model::item::Status;
use portcullis::model::layer::LayerKind;
use portcullis::model::posture::ApprovalMode;
use portcullis::model::sandbox::{DirectoryUri, SandboxState};
use portcullis::model::tool::Plugin;
use portcullis::model::verdict::{FaultCode, Remember, Verdict};
use portcullis::pipeline::admit::exposure::Exposing;
use portcullis::pipeline::dispatch::meta::{BadTraceId, TraceId, TurnInfo};
use portcullis::pipeline::{CallRequest, Would};
use portcullis::ports::recorder::Consent;
use portcullis::ports::reviewer::Reply;
use serde_json::{Map, Value, json};

use crate::fakes::bench::Bench;
use crate::fakes::house::{House, call, spec};
use crate::fakes::people::{Person, allowed};
use crate::fakes::policy::{Apps, Policies, Scripted, ask, bound, deny};
use crate::fakes::server::{FakeServer, Handed, How, tool, tool_with};
use crate::fakes::{Gate, Journal};

/// A bench whose user layer asks by a component that notes its evaluations.
async fn noting(verdict: Verdict) -> Bench {
    let component = Scripted::says(verdict);
    let bench = Bench::new(&Policies::open(&["files"]).with(LayerKind::User, "care", &component)).await;
    let _noting = component.noting(&bench.journal, "evaluated");
    bench
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_asked_about_goes_through_its_steps_in_order() {
    let bench = noting(ask("think", Remember::Session)).await;
    bench.write_asking(Person::replying(&bench.journal, [allowed(Remember::Session)])).await;
    let order = [
        "started item",
        "evaluated",
        "asked a person",
        "evaluated",
        "kept the grant",
        "recorded the decision",
        "handed over files/write",
        "completed item",
    ];
    assert_eq!(bench.journal.lines(), order);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_recorded_and_keeps_nothing() {
    let bench = noting(deny("no")).await;
    bench.write().await;
    let order = ["started item", "evaluated", "recorded the decision", "completed item"];
    assert_eq!(bench.journal.lines(), order);
    assert_eq!(bench.tape.decisions()[0].consent, Consent::Refused);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_whose_record_is_lost_is_still_that_refusal() {
    let bench = noting(deny("no")).await;
    bench.tape.fail();
    let finished = bench.write().await;
    assert_eq!(finished.item.failure().unwrap().code.as_str(), "denied");
}

#[tokio::test(start_paused = true)]
async fn r34_a_call_whose_decision_is_not_recorded_forgets_its_grant_and_is_not_sent() {
    let bench = noting(ask("think", Remember::Session)).await;
    bench.tape.fail();
    bench.write_asking(Person::replying(&bench.journal, [allowed(Remember::Session)])).await;
    let lines = bench.journal.lines();
    assert_eq!(lines[lines.len() - 3..], ["kept the grant", "forgot the grant", "completed item"]);
}

#[tokio::test(start_paused = true)]
async fn r17_a_grant_that_cannot_be_kept_lets_the_call_run_once_and_the_record_says_so() {
    let bench = noting(ask("think", Remember::Session)).await;
    bench.purse.fail();
    let person = Person::replying(&bench.journal, [allowed(Remember::Session), Reply::Declined]);
    assert_eq!(bench.write_asking(person.clone()).await.item.status, Status::Completed);
    let agreed = Consent::Agreed { approver: "ann".into(), remember: Remember::Session, not_remembered: true };
    assert_eq!(bench.tape.decisions()[0].consent, agreed);
    assert_eq!(bench.write_asking(person).await.item.status, Status::Failed, "the agreement was for one call");
}

#[tokio::test(start_paused = true)]
async fn r16_an_observed_component_holds_nothing_up_changes_nothing_and_is_recorded() {
    let gate = Gate::closed();
    let watching = Scripted::says(deny("would-refuse")).at(&gate);
    let mut observed = bound(LayerKind::Managed, "watching", Arc::clone(&watching) as _);
    observed.observe = true;
    let bench = Bench::new(&Policies::open(&["files"]).and(observed)).await;
    let finished = bench.write().await;
    assert_eq!(finished.item.status, Status::Completed, "the call waited for what is only observed");
    assert!(bench.tape.decisions()[0].decision.voices.iter().all(|voice| !voice.observed));
    gate.open();
    bench.pipeline.observatory.idle().await;
    let record = &bench.tape.observed()[0];
    assert_eq!((&record.call, record.policy_set), (&finished.item.call.id, bench.tape.decisions()[0].policy_set));
    let [voice] = record.voices.as_slice() else { panic!("{record:?}") };
    assert!(voice.observed && matches!(voice.spoken, Spoken::Verdict(Verdict::Deny(_))), "{voice:?}");
}

#[tokio::test(start_paused = true)]
async fn r16_a_refused_call_is_observed_too_and_an_observer_that_never_ends_is_given_up() {
    let mut observed = bound(LayerKind::Managed, "watching", Scripted::says(Verdict::Abstain).at(&Gate::closed()) as _);
    observed.observe = true;
    let refuses = Scripted::says(deny("no"));
    let bench = Bench::new(&Policies::open(&["files"]).with(LayerKind::User, "refuses", &refuses).and(observed)).await;
    assert_eq!(bench.write().await.item.status, Status::Failed);
    bench.pipeline.observatory.idle().await;
    let record = &bench.tape.observed()[0];
    assert!(matches!(&record.voices[0].spoken, Spoken::Fault(fault) if fault.code == FaultCode::Budget), "{record:?}");
}

#[tokio::test(start_paused = true)]
async fn r16_explaining_shows_what_is_observed_and_records_nothing() {
    let mut observed = bound(LayerKind::Managed, "watching", Scripted::says(deny("would-refuse")) as _);
    observed.observe = true;
    let bench = Bench::new(&Policies::open(&["files"]).and(observed)).await;
    let explained = bench.pipeline.explain(bench.request("files/write", "{}")).await;
    assert!(matches!(explained.would, Would::Run { .. }), "{:?}", explained.would);
    assert!(explained.decision.unwrap().voices.iter().any(|voice| voice.observed));
    assert!(bench.tape.observed().is_empty());
}

/// Calls with this turn and returns the `_meta` on the wire.
async fn meta_with(bench: &Bench, turn: TurnInfo) -> (String, Map<String, Value>) {
    let request = CallRequest { turn, ..bench.request("files/write", "{}") };
    let id = request.id.as_str().to_owned();
    bench.pipeline.run(request).await;
    (id, bench.files.handed().pop().unwrap().meta)
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn turn(client_meta: Value) -> TurnInfo {
    TurnInfo { thread_id: "thread".into(), client_meta: object(client_meta), ..TurnInfo::default() }
}

#[tokio::test(start_paused = true)]
async fn m1_the_request_says_its_call_its_turn_and_its_thread() {
    let bench = Bench::open().await;
    let metadata = Some(object(json!({"turn_id": "7"})));
    let (id, meta) = meta_with(&bench, TurnInfo { metadata, ..turn(json!({})) }).await;
    let wanted = json!({"callId": id, "x-codex-turn-metadata": {"turn_id": "7"}, "threadId": "thread"});
    assert_eq!(Value::Object(meta), wanted);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_traced_tells_its_trace_and_no_other_call_does() {
    // catalog-dispatch 5.1, last row: `codex_bridge_mcp_call_id`.
    let bench = Bench::open().await;
    let (_, untraced) = meta_with(&bench, turn(json!({"codex_bridge_mcp_call_id": "claimed"}))).await;
    assert!(!untraced.contains_key("codex_bridge_mcp_call_id"));
    let trace = Some(TraceId::parse("4bf92f3577b34da6a3ce929d0e0e4736").unwrap());
    let (id, meta) = meta_with(&bench, TurnInfo { trace: trace.clone(), ..turn(json!({})) }).await;
    let wanted =
        json!({"callId": id, "threadId": "thread", "codex_bridge_mcp_call_id": "4bf92f3577b34da6a3ce929d0e0e4736"});
    assert_eq!(Value::Object(meta), wanted);

    // A model's function call, and any other, bring it from whoever embeds the host.
    let server = FakeServer::new("files", &Journal::default(), vec![tool("write")]);
    let house = House::of(&[&server]);
    let session = house.session();
    session.show_on(Surface::Library(Exposing::library()));
    session.call(SessionCall { trace: trace.clone(), ..call("files/write") }).await;
    let step = session.step().await.unwrap();
    let made = FunctionCall { trace, ..FunctionCall::new(Some("mcp__files"), "write", "{}") };
    session.dispatch(&step, made).await;
    let told = |handed: &Handed| handed.meta["codex_bridge_mcp_call_id"].as_str().map(str::len);
    assert_eq!(server.handed().iter().map(told).collect::<Vec<_>>(), [Some(32), Some(32)]);
    for bad in ["", "a b", "a\n", "é", &"x".repeat(129)] {
        assert_eq!(TraceId::parse(bad), Err(BadTraceId), "{bad:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_this_host_vouches_for_is_not_the_clients_to_say() {
    let bench = Bench::open().await;
    let ours =
        ["callId", "threadId", "plugin_id", "_codex_apps", "codex_bridge_mcp_call_id", "codex/x", "portcullis/x"];
    let claimed: Map<String, Value> = ours.iter().map(|key| ((*key).to_owned(), json!("claimed"))).collect();
    let (_, meta) = meta_with(&bench, turn(Value::Object(claimed))).await;
    assert!(meta.values().all(|value| value != "claimed"), "{meta:?}");
}

#[tokio::test(start_paused = true)]
async fn m2_a_plugins_server_is_told_its_plugin() {
    let bench = Bench::open().await;
    bench.change(&bench.files, |published| {
        published.view.plugin = Some(Plugin { id: "sample@test".into(), name: "Sample".into() })
    });
    bench.publish().await;
    let (_, meta) = meta_with(&bench, turn(json!({"plugin_id": "claimed"}))).await;
    assert_eq!(meta["plugin_id"], "sample@test");
}

#[tokio::test(start_paused = true)]
async fn a_client_cannot_claim_a_plugin() {
    let bench = Bench::open().await;
    let (_, meta) = meta_with(&bench, turn(json!({"plugin_id": "claimed"}))).await;
    assert!(!meta.contains_key("plugin_id"));
}

/// `files/write` with this `_meta`.
fn with_meta(meta: &Value) -> String {
    json!({"name": "write", "inputSchema": {"type": "object"}, "_meta": meta}).to_string()
}

/// A bench where Apps are open and `files/write` has this `_meta`.
async fn apps_bench(meta: &Value) -> Bench {
    let yes = Apps::says("yes", Some(true), Some(ApprovalMode::Approve));
    let bench = Bench::new(&Policies::open(&["files"]).app(LayerKind::User, "apps", &yes)).await;
    bench.redefine(&bench.files, vec![with_meta(meta)]).await;
    bench
}

#[tokio::test(start_paused = true)]
async fn m3_the_apps_server_gets_its_tools_own_object_back_with_the_call() {
    let own = json!({"resource_uri": "/c/events/create", "call_id": "stale", "more": [1]});
    let bench = apps_bench(&json!({"_codex_apps": own, "other": 1})).await;
    bench.link("calendar").await;
    let (id, meta) = meta_with(&bench, turn(json!({"_codex_apps": {"claimed": 1}}))).await;
    let wanted = json!({"resource_uri": "/c/events/create", "call_id": id, "more": [1]});
    assert_eq!(Value::Object(meta), json!({"callId": id, "_codex_apps": wanted, "threadId": "thread"}));
}

#[tokio::test(start_paused = true)]
async fn m4_the_apps_server_is_told_the_call_where_its_tool_has_no_object_of_its_own() {
    for own in [json!({}), json!({"_codex_apps": "no object"}), json!({"_codex_apps": null})] {
        let bench = apps_bench(&own).await;
        bench.link("calendar").await;
        let (id, meta) = meta_with(&bench, turn(json!({}))).await;
        assert_eq!(meta["_codex_apps"], json!({"call_id": id}), "{own}");
    }
}

#[tokio::test(start_paused = true)]
async fn m8_a_server_that_is_not_the_apps_server_claims_no_connector_and_gets_no_object() {
    let claims = json!({"connector_id": "calendar", "connector_name": "Calendar", "kept": 1,
        "_codex_apps": {"resource_uri": "/c/events/create"}});
    let bench = apps_bench(&claims).await;
    let (id, meta) = meta_with(&bench, turn(json!({}))).await;
    assert_eq!(Value::Object(meta), json!({"callId": id, "threadId": "thread"}));
    let snapshot = bench.catalog().current();
    let tool = &snapshot.tools()[0];
    let own = tool.definition.meta().unwrap();
    assert!(tool.connector.is_none() && own["kept"] == 1 && !own.contains_key("connector_id"), "{own:?}");
    assert!(!tool.definition.verbatim().contains("Calendar"), "{}", tool.definition.verbatim());
}

/// A read-only sandbox whose turn is in `/place/my project`, and whose environment `far` is in `/far`.
fn sandboxed() -> TurnInfo {
    let uri = |path: &str| DirectoryUri::of(Path::new(path)).unwrap();
    let state = SandboxState {
        permission_profile: json!({"type": "read-only"}),
        directories: [("far".to_owned(), uri("/far"))].into(),
        directory: Some(uri("/place/my project")),
        ..SandboxState::default()
    };
    TurnInfo { sandbox: Some(Arc::new(state)), ..turn(json!({})) }
}

/// A bench whose server `files` asked for the sandbox and runs in this environment.
async fn asking_bench(environment: &str) -> Bench {
    let bench = Bench::open().await;
    bench.connect(&bench.files);
    bench.change(&bench.files, |published| {
        (published.wants_sandbox_state, published.view.environment) = (true, environment.to_owned());
    });
    bench.publish().await;
    bench
}

#[tokio::test(start_paused = true)]
async fn m6_a_server_that_asked_for_it_is_told_the_sandbox_with_its_directory_as_a_uri() {
    let told = |cwd: &str| {
        json!({"permissionProfile": {"type": "read-only"}, "codexLinuxSandboxExe": null,
        "sandboxCwd": cwd, "useLegacyLandlock": false})
    };
    for (environment, cwd) in [("local", "file:///place/my%20project"), ("far", "file:///far")] {
        let (_, meta) = meta_with(&asking_bench(environment).await, sandboxed()).await;
        assert_eq!(meta["codex/sandbox-state-meta"], told(cwd), "{environment}");
    }
}

#[tokio::test(start_paused = true)]
async fn m6_a_server_that_did_not_ask_is_not_told_the_sandbox() {
    let (_, meta) = meta_with(&Bench::open().await, sandboxed()).await;
    assert_eq!(meta.keys().map(String::as_str).collect::<Vec<_>>(), ["callId", "threadId"]);
}

/// The sandbox's state that was sent with the last call.
fn sandbox_sent(server: &FakeServer) -> Option<Value> {
    server.handed().pop().unwrap().meta.get("codex/sandbox-state-meta").cloned()
}

#[tokio::test(start_paused = true)]
async fn m6_the_sandbox_of_a_sessions_call_and_of_a_models_reaches_a_server_that_asked() {
    for wants in [true, false] {
        let files = FakeServer::new("files", &Journal::default(), vec![tool("write")]);
        files.wants_sandbox(wants);
        let house = House::of(&[&files]);
        let session = house.session();
        let sandbox = sandboxed().sandbox;
        let step = session.step().await.unwrap();
        session.call(SessionCall { sandbox: sandbox.clone(), ..call("files/write") }).await;
        assert_eq!(sandbox_sent(&files).is_some(), wants);
        let made = FunctionCall { sandbox, ..FunctionCall::new(Some("mcp__files"), "write", "{}") };
        assert!(!session.dispatch(&step, made).await.is_error());
        assert_eq!(sandbox_sent(&files).is_some(), wants);
        session.call(call("files/write")).await;
        assert_eq!((sandbox_sent(&files), files.handed().len()), (None, 3));
    }
}

#[tokio::test(start_paused = true)]
async fn m6_a_callers_own_server_is_told_the_sandbox_only_if_it_asked_itself() {
    for wants in [true, false] {
        let files = FakeServer::new("files", &Journal::default(), vec![tool("write")]);
        files.wants_sandbox(true);
        let mut own = spec(&files);
        own.upstream = Lanes::of(own.upstream, Sharing::Session, true);
        let house = House::with([("files".to_owned(), own)].into(), BTreeMap::new());
        let session = house.session();
        session.list().await;
        files.wants_sandbox(wants);
        session.call(SessionCall { sandbox: sandboxed().sandbox, ..call("files/write") }).await;
        assert_eq!(sandbox_sent(&files).is_some(), wants);
    }
}

#[tokio::test(start_paused = true)]
async fn m7_without_a_known_directory_no_server_is_told_the_sandbox() {
    let nowhere = Arc::new(SandboxState::default());
    let turns = [("elsewhere", sandboxed()), ("local", TurnInfo { sandbox: Some(nowhere), ..turn(json!({})) })];
    for (environment, turn) in turns {
        let (_, meta) = meta_with(&asking_bench(environment).await, turn).await;
        assert!(!meta.contains_key("codex/sandbox-state-meta"), "{environment}: {meta:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn m7_a_client_cannot_say_what_the_sandbox_is() {
    let claimed = turn(json!({"codex/sandbox-state-meta": {"sandboxCwd": "file:///"}}));
    let (_, meta) = meta_with(&asking_bench("local").await, claimed).await;
    assert!(!meta.contains_key("codex/sandbox-state-meta"), "{meta:?}");
}

#[tokio::test(start_paused = true)]
async fn m1_what_is_nobodys_business_is_taken_out_of_the_turns_metadata() {
    let bench = Bench::open().await;
    for (asked, told) in [(json!(true), true), (json!(false), false), (json!("true"), false), (Value::Null, false)] {
        let metadata = json!({"session_id": "s", "tool_inventory": [], "mcp_tool_inventory": [], "model": "m",
            "parent_turn_id": "1", "installation_id": "2", "window_id": "3", "user_input_requested_during_turn": asked});
        let turn = TurnInfo { metadata: Some(object(metadata)), ..turn(json!({})) };
        let (_, meta) = meta_with(&bench, turn).await;
        let mut wanted = json!({"session_id": "s", "model": "m"});
        if told {
            wanted["user_input_requested_during_turn"] = json!(true);
        }
        assert_eq!(meta["x-codex-turn-metadata"], wanted, "{asked}");
    }
}

#[tokio::test(start_paused = true)]
async fn m5_stale_ids_of_the_client_are_replaced_and_its_other_keys_kept() {
    let bench = Bench::open().await;
    let (id, meta) = meta_with(&bench, turn(json!({"threadId": "old", "callId": "old", "traceparent": "00-1"}))).await;
    assert_eq!((&meta["threadId"], &meta["callId"]), (&json!("thread"), &json!(id)));
    assert_eq!(meta["traceparent"], "00-1");
}

#[tokio::test(start_paused = true)]
async fn keys_of_the_clients_hop_end_there() {
    let bench = Bench::open().await;
    let local = json!({"progressToken": 1, "io.modelcontextprotocol/task": {}, "portcullis/refusal": {}, "mine": 1});
    let (_, meta) = meta_with(&bench, turn(local)).await;
    let keys: Vec<&str> = meta.keys().map(String::as_str).collect();
    assert_eq!(keys, ["mine", "callId", "threadId"]);
}

#[tokio::test(start_paused = true)]
async fn a1_blank_arguments_are_absent_on_the_wire_and_an_empty_object_is_one() {
    let bench = Bench::open().await;
    for (text, wire) in [("", None), ("  \n", None), ("{}", Some(Map::new()))] {
        bench.pipeline.run(bench.request("files/write", text)).await;
        assert_eq!(bench.files.handed().pop().unwrap().arguments, wire, "for {text:?}");
    }
    assert!(bench.tape.completed()[0].call.arguments.object().is_none(), "the item says null");
}

#[tokio::test(start_paused = true)]
async fn r26_what_is_sent_is_the_value_that_policies_saw() {
    let seen = Scripted::by(|_, facts| {
        assert_eq!(facts.arguments.at("/a"), Some(&json!(1.5)));
        Ok(Verdict::Abstain)
    });
    let bench = Bench::new(&Policies::open(&["files"]).with(LayerKind::User, "sees", &seen)).await;
    bench.pipeline.run(bench.request("files/write", r#"{"path":"x","a":1.50}"#)).await;
    let handed = bench.files.handed().pop().unwrap();
    assert_eq!(
        (handed.tool.as_str(), Value::Object(handed.arguments.unwrap())),
        ("write", json!({"path":"x","a":1.5}))
    );
    assert_eq!(seen.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn r38_explaining_has_no_effect() {
    let bench = noting(ask("think", Remember::Session)).await;
    bench.files.answers(How::Never);
    let person = Person::replying(&bench.journal, [Reply::Declined]);
    let request = CallRequest { reviewer: person.clone(), ..bench.request("files/write", "{}") };
    let explained = bench.pipeline.explain(request).await;
    assert!(matches!(explained.would, Would::Ask { .. }), "{:?}", explained.would);
    assert_eq!(bench.journal.lines(), ["evaluated"]);
    assert!(bench.files.handed().is_empty() && bench.purse.kept().is_empty() && person.questions().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_item_names_the_tools_hint_and_resource() {
    let bench = Bench::open().await;
    let mut definition: Value = serde_json::from_str(&tool_with("write", r#"{"readOnlyHint":true}"#)).unwrap();
    definition["_meta"] = json!({"ui": {"resourceUri": "ui://panel"}});
    bench.redefine(&bench.files, vec![definition.to_string()]).await;
    let item = serde_json::to_value(bench.write().await.item).unwrap();
    assert_eq!((&item["read_only_hint"], &item["mcp_app_resource_uri"]), (&json!(true), &json!("ui://panel")));
}

#[tokio::test(start_paused = true)]
async fn the_item_names_app_link_and_action_of_an_apps_tool_and_of_no_other() {
    let own = json!({"resource_uri": "/calendar/events/create/", "link_id": "link-1"});
    let bench = apps_bench(&json!({"_codex_apps": own})).await;
    bench.link("calendar").await;
    let item = serde_json::to_value(bench.write().await.item).unwrap();
    assert_eq!((&item["link_id"], &item["action_name"]), (&json!("link-1"), &json!("create")));
    let bench = Bench::open().await;
    let mut definition: Value = serde_json::from_str(&tool_with("write", "{}")).unwrap();
    definition["_meta"] = json!({"_codex_apps": own});
    bench.redefine(&bench.files, vec![definition.to_string()]).await;
    let item = serde_json::to_value(bench.write().await.item).unwrap();
    for absent in ["connector_id", "link_id", "app_name", "action_name"] {
        assert!(item.get(absent).is_none(), "{absent} is there");
    }
}
