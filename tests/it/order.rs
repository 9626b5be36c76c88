//! The order of steps across all ports, and what is on the wire (catalog-dispatch 5.1, M1 to M5; design page 3, "Order").

use std::sync::Arc;

use portcullis::model::decision::Spoken;
use portcullis::model::item::Status;
use portcullis::model::layer::LayerKind;
use portcullis::model::verdict::{FaultCode, Remember, Verdict};
use portcullis::pipeline::dispatch::meta::TurnInfo;
use portcullis::pipeline::{CallRequest, Would};
use portcullis::ports::recorder::Consent;
use portcullis::ports::reviewer::Reply;
use serde_json::{Map, Value, json};

use crate::fakes::Gate;
use crate::fakes::bench::Bench;
use crate::fakes::people::{Person, allowed};
use crate::fakes::policy::{Policies, Scripted, ask, bound, deny};
use crate::fakes::server::{How, tool_with};

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
    TurnInfo { thread_id: "thread".into(), metadata: None, client_meta: object(client_meta) }
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
async fn m2_a_plugins_server_is_told_its_plugin() {
    let bench = Bench::open().await;
    bench.change(&bench.files, |published| published.view.plugin = Some("sample@test".into()));
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
