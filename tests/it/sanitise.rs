//! What sanitisers remove is nowhere, what they leave is what is shown, and who fails shows nothing.

use portcullis::model::cleaning::SanitiserSaid;
use portcullis::model::item::Status;
use portcullis::model::layer::LayerKind;
use portcullis::model::outcome::{Code, Outcome, Stage};
use portcullis::model::verdict::{Fault, FaultCode};
use portcullis::pipeline::Finished;
use portcullis::pipeline::emit::sanitise::{CleanAnswer, Sanitiser};
use portcullis::ports::sanitiser::{Class, Edit, Place};
use serde_json::{Value, json};

use crate::fakes::bench::Bench;
use crate::fakes::policy::Policies;
use crate::fakes::sanitiser::{Cleaner, bound};
use crate::fakes::server::{How, tool};

const CANARY: &str = "CANARY7";

fn open() -> Policies {
    Policies::open(&["files", "mail"])
}

fn value(finished: &Finished) -> Value {
    Value::Object(finished.clean.result().value().clone())
}

async fn answered(policies: &Policies, how: How) -> (Bench, Finished) {
    let bench = Bench::new(policies).await;
    bench.files.answers(how);
    let finished = bench.write().await;
    (bench, finished)
}

/// A canary in every place that a text can stand in.
const EVERYWHERE: &str = r#"{
    "content": [
        {"type":"text","text":"one CANARY7 two","annotations":{"audience":["CANARY7"]},"_meta":{"m":"CANARY7"}},
        {"type":"text","text":"first half CANA"},
        {"type":"text","text":"RY7 second half"},
        {"type":"text","text":"{\"k\":\"C\\u0041NARY7\"}"},
        {"type":"text","text":"{\"k\":\"{\\\"i\\\":\\\"\\\\u0043ANARY7\\\"}\"}"},
        {"type":"resource","resource":{"uri":"file:///CANARY7","text":"CANARY7","blob":"CANARY7","x":"CANARY7","_meta":{"CANARY7":1}}},
        {"type":"resource_link","uri":"x://CANARY7","name":"CANARY7","title":"CANARY7","description":"CANARY7","icons":[{"src":"CANARY7"}]},
        {"type":"image","data":"CANARY7","mimeType":"image/CANARY7"},
        {"type":"CANARY7","CANARY7":"CANARY7"},
        "CANARY7"
    ],
    "structuredContent": {"a":"CANARY7","CANARY7":{"deep":[1,"CANARY7"]},"b":{"xCANARY7":1,"yCANARY7":2}},
    "_meta": {"other/CANARY7": "CANARY7"},
    "CANARY7": ["CANARY7"]
}"#;

/// Whether a text holds the canary in any reading that is looked at.
fn sings(value: &Value) -> bool {
    let text = value.to_string();
    text.contains("CANA") || text.contains("RY7") || text.contains("u0041NARY") || text.contains("ANARY7")
}

#[tokio::test(start_paused = true)]
async fn r28_a_canary_in_every_place_is_seen_and_gone_by_spans() {
    let cleaner = Cleaner::removes(CANARY, Class::Secret);
    let policies = open().cleaning(bound(LayerKind::User, "words", &cleaner));
    let (bench, finished) = answered(&policies, How::Result(EVERYWHERE)).await;
    let value = value(&finished);
    assert!(!sings(&value), "{value:#}");
    assert!(value.to_string().contains("one [redacted: secret] two"));
    assert!(finished.clean.result().verbatim().is_none());
    assert_eq!(value["structuredContent"]["b"], json!({"x[redacted: secret]": 1, "y[redacted: secret]": 2}));
    let said = serde_json::to_string(&bench.tape.only_pair()).unwrap();
    assert!(!said.contains(CANARY) && said.contains(r#""spans":{"secret":"#), "{said}");
}

#[tokio::test(start_paused = true)]
async fn r28_a_canary_in_every_place_is_gone_by_drops() {
    let policies = open().cleaning(bound(LayerKind::User, "words", &Cleaner::drops(CANARY)));
    let (_bench, finished) = answered(&policies, How::Result(EVERYWHERE)).await;
    let value = value(&finished);
    assert!(!sings(&value), "{value:#}");
    assert_eq!(value["structuredContent"], json!({"a": "[redacted: other]", "b": {}}), "a key takes its value along");
    assert_eq!(value["content"].as_array().unwrap().len(), 10, "items keep their places");
    assert_eq!(value["content"][9], "[redacted: other]");
}

#[tokio::test(start_paused = true)]
async fn r28_targets_have_places_and_pointers() {
    let cleaner = Cleaner::passes();
    let policies = open().cleaning(bound(LayerKind::User, "looks", &cleaner));
    let (_bench, finished) = answered(&policies, How::Result(EVERYWHERE)).await;
    assert_eq!(finished.clean.result().verbatim().map(AsRef::as_ref), Some(EVERYWHERE), "nothing was edited");
    let seen = cleaner.last();
    let at =
        |pointer: &str| seen.iter().find(|target| target.pointer == pointer).map(|t| (t.place, t.text.to_string()));
    let is = |pointer: &str, place: Place, text: &str| {
        assert_eq!(at(pointer), Some((place, text.to_owned())), "{pointer}");
    };
    is("/content/0/text", Place::Text, "one CANARY7 two");
    is("/content/0/annotations/audience/0", Place::Metadata, CANARY);
    is("/content/5/resource/uri", Place::Embedded, "file:///CANARY7");
    is("key:/content/5/resource/_meta/CANARY7", Place::Metadata, CANARY);
    is("/content/6/title", Place::Link, CANARY);
    is("/content/8/type", Place::Metadata, CANARY);
    is("/structuredContent/CANARY7/deep/0", Place::Structured, "1");
    is("key:/structuredContent/b/xCANARY7", Place::Structured, "xCANARY7");
    is("key:/_meta/other~1CANARY7", Place::Metadata, "other/CANARY7");
    is("json:/content/3/text@6", Place::Text, CANARY);
    assert!(at("joined:/content").unwrap().1.contains("first half CANARY7 second half"), "split texts are one again");
    assert!(at("key:/content").is_none() && at("/content/0/type").is_none(), "the protocol's own words are no targets");
}

#[tokio::test(start_paused = true)]
async fn r28_numbers_are_looked_at_to_the_last_digit_and_go_whole() {
    let cleaner = Cleaner::removes("4111111111111111111111", Class::Personal);
    let policies = open().cleaning(bound(LayerKind::User, "cards", &cleaner));
    let how = How::Result(r#"{"content":[],"structuredContent":{"n":[1.50,4111111111111111111111,"2"]}}"#);
    let (_bench, finished) = answered(&policies, how).await;
    assert!(cleaner.last().iter().any(|target| &*target.text == "1.50"));
    assert_eq!(value(&finished)["structuredContent"]["n"], json!([1.5, "[redacted: personal]", "2"]));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_nobody_edits_passes_byte_for_byte() {
    let policies = open().cleaning(bound(LayerKind::Managed, "looks", &Cleaner::passes())).cleaning(bound(
        LayerKind::User,
        "nothing",
        &Cleaner::edits(vec![Edit::Truncate { target: 0, keep: 4 }]),
    ));
    let text = "{ \"content\" : [{\"text\":\"done\",\"type\":\"text\"}], \"x\":1.50 }";
    let (bench, finished) = answered(&policies, How::Result(text)).await;
    assert_eq!(finished.clean.result().verbatim().map(AsRef::as_ref), Some(text));
    assert_eq!(bench.tape.only_pair().sanitisers.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn r30_a_protocol_errors_message_and_data_are_cleaned_in_item_and_answer() {
    let policies = open().cleaning(bound(LayerKind::User, "words", &Cleaner::removes("lost", Class::Other)));
    let (bench, finished) = answered(&policies, How::Protocol(-32001, "the key lost is bad")).await;
    let CleanAnswer::Protocol(error) = finished.clean.answer() else { panic!("{:?}", finished.clean.answer()) };
    assert_eq!(error.message, "the key [redacted: other] is bad");
    assert!(error.verbatim.is_none());
    let item = serde_json::to_string(&bench.tape.only_pair()).unwrap();
    assert!(!item.contains("lost") && item.contains("[redacted: other]"), "{item}");
}

#[tokio::test(start_paused = true)]
async fn r31_a_withheld_answer_says_stage_code_layer_and_rule_and_the_item_keeps_the_upstreams_status() {
    let policies = open().cleaning(bound(LayerKind::Managed, "stop", &Cleaner::withholds("no-dumps")));
    let (bench, finished) = answered(&policies, How::Result(EVERYWHERE)).await;
    let value = value(&finished);
    assert_eq!(value["isError"], true);
    let text = value["content"][0]["text"].as_str().unwrap();
    let wanted =
        "the answer of `files/write` was withheld (stage sanitise, code withheld, layer managed, rule no-dumps)";
    assert_eq!(text, wanted);
    assert!(!value.to_string().contains("SECRET") && !sings(&value));
    let item = bench.tape.only_pair();
    assert_eq!((item.status, &item.outcome), (Status::Completed, &Outcome::Answered));
    let [voice] = item.sanitisers.as_slice() else { panic!("{:?}", item.sanitisers) };
    let SanitiserSaid::Withhold { text, .. } = &voice.said else { panic!("{voice:?}") };
    assert_eq!(text, "SECRET words of a component", "people and records have the component's words");
}

#[tokio::test(start_paused = true)]
async fn r30_a_withheld_protocol_error_leaves_no_word_of_it_in_the_item() {
    let policies = open().cleaning(bound(LayerKind::User, "stop", &Cleaner::withholds("all")));
    let (bench, finished) = answered(&policies, How::Protocol(-32001, CANARY)).await;
    assert_eq!(finished.clean.failure().map(|f| (f.stage, f.code)), Some((Stage::Sanitise, Code::Withheld)));
    let item = bench.tape.only_pair();
    assert_eq!((item.status, item.failure().map(|f| f.code)), (Status::Failed, Some(Code::ProtocolError)));
    assert!(!serde_json::to_string(&item).unwrap().contains(CANARY));
}

async fn withheld_by(sanitiser: Sanitiser) -> FaultCode {
    let (bench, finished) = answered(&open().cleaning(sanitiser), How::Result(EVERYWHERE)).await;
    assert_eq!(finished.clean.failure().map(|f| f.code), Some(Code::Withheld));
    assert!(!sings(&value(&finished)) && !value(&finished).to_string().contains("SECRET"));
    let item = bench.tape.only_pair();
    let [voice] = item.sanitisers.as_slice() else { panic!("{:?}", item.sanitisers) };
    let SanitiserSaid::Fault(fault) = &voice.said else { panic!("{voice:?}") };
    fault.code
}

#[tokio::test(start_paused = true)]
async fn a_sanitiser_that_fails_or_is_not_there_withholds() {
    for code in [FaultCode::Trap, FaultCode::Deadline, FaultCode::Fuel] {
        assert_eq!(withheld_by(bound(LayerKind::Project, "broken", &Cleaner::fails(code))).await, code);
    }
    let missing = Sanitiser {
        component: Err(Fault::new(FaultCode::Missing, "gone")),
        ..bound(LayerKind::User, "gone", &Cleaner::passes())
    };
    assert_eq!(withheld_by(missing).await, FaultCode::Missing);
}

#[tokio::test(start_paused = true)]
async fn r29_a_bad_span_or_target_withholds() {
    let span = |start, end| Edit::Replace { target: 0, start, end, class: Class::Other };
    let bad = [span(0, 99), span(2, 1), Edit::Drop { target: 9999 }, Edit::Truncate { target: 0, keep: 16 }];
    for edit in bad {
        let cleaner = Cleaner::edits(vec![edit]);
        assert_eq!(withheld_by(bound(LayerKind::User, "bad", &cleaner)).await, FaultCode::OutputInvalid, "{edit:?}");
    }
    let inside = Cleaner::edits(vec![span(0, 1)]);
    let policies = open().cleaning(bound(LayerKind::User, "bad", &inside));
    let (_bench, finished) = answered(&policies, How::Result(r#"{"content":[{"type":"text","text":"é"}]}"#)).await;
    assert_eq!(finished.clean.failure().map(|f| f.code), Some(Code::Withheld), "a span inside a character");
}

#[tokio::test(start_paused = true)]
async fn less_trusted_layers_never_see_what_more_trusted_ones_removed() {
    let (managed, project) = (Cleaner::removes(CANARY, Class::Secret), Cleaner::passes());
    let policies = open().cleaning(bound(LayerKind::Project, "project", &project)).cleaning(bound(
        LayerKind::Managed,
        "managed",
        &managed,
    ));
    answered(&policies, How::Result(EVERYWHERE)).await;
    assert!(!project.last().iter().any(|target| target.text.contains(CANARY)));
    assert_eq!(managed.seen().len(), 1, "nobody less trusted edited");
}

#[tokio::test(start_paused = true)]
async fn r30_more_trusted_layers_look_once_more_where_a_less_trusted_one_edited() {
    let (managed, user) = (Cleaner::removes("]", Class::Secret), Cleaner::removes("two", Class::Other));
    let policies =
        open().cleaning(bound(LayerKind::User, "user", &user)).cleaning(bound(LayerKind::Managed, "managed", &managed));
    let how = How::Result(r#"{"content":[{"type":"text","text":"one two three"}]}"#);
    let (bench, finished) = answered(&policies, how).await;
    assert_eq!((managed.seen().len(), user.seen().len()), (2, 1));
    assert_eq!(value(&finished)["content"][0]["text"], "one [redacted: secret] three");
    let again: Vec<bool> = bench.tape.only_pair().sanitisers.iter().map(|voice| voice.again).collect();
    assert_eq!(again, [false, false, true]);
}

#[tokio::test(start_paused = true)]
async fn r16_an_observed_sanitiser_runs_and_is_recorded_and_changes_nothing() {
    let observer = Cleaner::withholds("would");
    let observed = Sanitiser { observe: true, ..bound(LayerKind::User, "watch", &observer) };
    let first = bound(LayerKind::Managed, "words", &Cleaner::removes("done", Class::Other));
    let policies = open().cleaning(observed).cleaning(first);
    let (bench, finished) = answered(&policies, How::Result(crate::fakes::server::OK)).await;
    assert_eq!(value(&finished)["content"][0]["text"], "[redacted: other]");
    bench.pipeline.observatory.idle().await;
    assert!(!observer.last().iter().any(|target| target.text.contains("done")), "it sees what it would see");
    let [record] = &bench.tape.observed()[..] else { panic!("{:?}", bench.tape.observed()) };
    assert!(record.sanitisers[0].observed && matches!(record.sanitisers[0].said, SanitiserSaid::Withhold { .. }));
    assert_eq!(bench.tape.only_pair().sanitisers.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn r19_the_sanitisers_in_force_when_the_answer_arrives_count() {
    let bench = Bench::new(&open()).await;
    let gate = crate::fakes::Gate::closed();
    bench.files.answers(How::Gated(std::sync::Arc::clone(&gate)));
    let running = bench.spawn(bench.request("files/write", "{}"));
    gate.reached(1).await;
    bench.decide_by(&open().cleaning(bound(LayerKind::User, "late", &Cleaner::withholds("late")))).await;
    gate.open();
    let finished = running.await.unwrap();
    assert_eq!(finished.clean.failure().map(|f| f.code), Some(Code::Withheld));
}

#[tokio::test(start_paused = true)]
async fn r29_an_edit_that_breaks_the_output_schema_makes_an_error_with_what_remains_as_text() {
    let cleaner = Cleaner::removes("41", Class::Secret);
    let policies = open().cleaning(bound(LayerKind::User, "numbers", &cleaner));
    let bench = Bench::new(&policies).await;
    let schema = r#","outputSchema":{"type":"object","properties":{"n":{"type":"integer"},"s":{"type":"string"}}}}"#;
    bench.redefine(&bench.files, vec![tool("write").trim_end_matches('}').to_owned() + "}" + schema]).await;
    bench.files.answers(How::Result(r#"{"content":[],"structuredContent":{"n":41,"s":"kept"}}"#));
    let broken = value(&bench.write().await);
    assert_eq!(broken["isError"], true);
    assert!(broken.get("structuredContent").is_none());
    assert_eq!(broken["content"][1]["text"], r#"{"n":"[redacted: secret]","s":"kept"}"#);
    bench.files.answers(How::Result(r#"{"content":[],"structuredContent":{"n":7,"s":"x41"}}"#));
    let holds = value(&bench.write().await);
    assert_eq!(holds["structuredContent"], json!({"n": 7, "s": "x[redacted: secret]"}));
    assert!(holds.get("isError").is_none());
}

#[tokio::test(start_paused = true)]
async fn failures_of_ours_are_not_looked_at() {
    let cleaner = Cleaner::withholds("all");
    let policies = open().cleaning(bound(LayerKind::User, "stop", &cleaner));
    let (_bench, finished) = answered(&policies, How::Lost).await;
    assert_eq!(finished.clean.failure().map(|f| f.code), Some(Code::Ambiguous));
    assert!(cleaner.seen().is_empty());
}
