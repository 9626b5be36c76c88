//! Exactly one completed item for each started one, on every path; what a refusal costs; what was sent (L01 to L19, R40).

use std::sync::Arc;
use std::time::Duration;

use portcullis::model::hook::HookEvent;
use portcullis::model::item::Status;
use portcullis::model::layer::LayerKind;
use portcullis::model::name::{CallId, RawToolName, Target};
use portcullis::model::outcome::{Code, Outcome, Stage};
use portcullis::model::posture::{ApprovalPolicy, Reviewer as Answers};
use portcullis::model::verdict::{FaultCode, Remember};
use portcullis::pipeline::{CallRequest, Payload};
use portcullis::ports::review::{AutoReviewer, BoundReviewer, NoReview, ReviewRequest};
use portcullis::ports::reviewer::{Reply, Reviewer};

use crate::fakes::bench::{Bench, TOOL_TIMEOUT, failed, failure, said};
use crate::fakes::hook::{ScriptedHook, hook};
use crate::fakes::house::{House, call};
use crate::fakes::judge::{DENY, Judge, judging};
use crate::fakes::people::{Panics, Person, allowed};
use crate::fakes::policy::{Apps, Policies, Scripted, ask, deny};
use crate::fakes::server::{FakeServer, How, tool};
use crate::fakes::{Gate, Journal};

/// Policies under which `files` and `mail` ask (the builtin posture, no hints).
fn asking() -> Policies {
    Policies::new()
}

/// One pair, failed like this, nothing handed over, and no time that counts as the call's (L08 to L12).
fn assert_refused(bench: &Bench, stage: Stage, code: Code) {
    let item = bench.tape.only_pair();
    let failure = item.failure().unwrap();
    assert_eq!((failure.stage, failure.code), (stage, code));
    assert_eq!(item.status, Status::Failed);
    assert_eq!(item.durations.call, Duration::ZERO, "a call that was not sent has a duration");
    assert!(!item.is_ambiguous());
    assert!(bench.files.handed().is_empty(), "a refused call reached the upstream");
    assert_eq!(bench.pipeline.pending.count(), 0);
}

/// One pair, failed like this, after exactly one request was handed over.
fn assert_failed_after_sending(bench: &Bench, code: Code) {
    let item = bench.tape.only_pair();
    let failure = item.failure().unwrap();
    assert_eq!((failure.stage, failure.code), (Stage::Call, code));
    assert_eq!(item.status, Status::Failed);
    assert_eq!(bench.files.handed().len(), 1);
    assert_eq!(bench.pipeline.pending.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn l01_l03_an_answer_completes_the_call() {
    let bench = Bench::open().await;
    let finished = bench.write().await;
    let item = bench.tape.only_pair();
    assert_eq!((item.status, &item.outcome), (Status::Completed, &Outcome::Answered));
    assert_eq!(finished.item.call.id, item.call.id);
    assert_eq!(bench.files.handed().len(), 1);
    assert_eq!(said(&finished), "done");
}

#[tokio::test(start_paused = true)]
async fn l02_a_tools_own_error_is_a_failed_item_that_keeps_its_result() {
    let bench = Bench::open().await;
    bench.files.answers(How::Result(r#"{"content":[{"type":"text","text":"no such file"}],"isError":true}"#));
    let finished = bench.write().await;
    let item = bench.tape.only_pair();
    assert_eq!((item.status, &item.outcome), (Status::Failed, &Outcome::ToolError));
    assert_eq!(said(&finished), "no such file");
    assert!(item.failure().is_none(), "a tool's own error is no failure of the call");
}

#[tokio::test(start_paused = true)]
async fn l04_a_protocol_error_fails_the_call() {
    let bench = Bench::open().await;
    bench.files.answers(How::Protocol(-32602, "bad\u{1b}[2Jparams"));
    let finished = bench.write().await;
    assert_failed_after_sending(&bench, Code::ProtocolError);
    assert_eq!(
        said(&finished),
        "tool call error: tool call failed for `files/write`: bad\\u{1b}[2Jparams (code -32602)"
    );
}

#[tokio::test(start_paused = true)]
async fn l04_a_connection_lost_after_the_hand_over_is_ambiguous() {
    let bench = Bench::open().await;
    bench.files.answers(How::Lost);
    bench.write().await;
    assert_failed_after_sending(&bench, Code::Ambiguous);
    assert!(bench.tape.completed()[0].is_ambiguous());
}

#[tokio::test(start_paused = true)]
async fn l04_a_closed_transport_takes_nothing_and_says_so() {
    let bench = Bench::open().await;
    bench.files.answers(How::NotSent);
    bench.write().await;
    assert_refused(&bench, Stage::Call, Code::NotSent);
}

#[tokio::test(start_paused = true)]
async fn l05_a_timeout_tells_the_upstream_and_may_have_run() {
    let bench = Bench::open().await;
    bench.files.answers(How::Never);
    let finished = bench.write().await;
    assert_failed_after_sending(&bench, Code::Timeout);
    let item = &finished.item;
    assert!(item.is_ambiguous());
    assert_eq!((item.durations.call, item.durations.wall), (TOOL_TIMEOUT, TOOL_TIMEOUT));
    assert!(said(&finished).contains("timed out awaiting tools/call after 300 s"), "{}", said(&finished));
    assert!(bench.journal.lines().contains(&"cancelled: the tool timeout is over".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_transport_that_takes_nothing_ends_with_the_tool_timeout_unsent() {
    let bench = Bench::open().await;
    bench.files.answers(How::Stuck(Gate::closed()));
    bench.write().await;
    assert_refused(&bench, Stage::Call, Code::NotSent);
}

#[tokio::test(start_paused = true)]
async fn l06_a_stale_call_fails_before_it_is_sent() {
    let gate = Gate::closed();
    let slow = Scripted::says(portcullis::model::verdict::Verdict::Abstain).at(&gate);
    let bench = Bench::new(&Policies::open(&["files"]).with(LayerKind::User, "slow", &slow)).await;
    let running = bench.spawn(bench.request("files/write", "{}"));
    gate.reached(1).await;
    bench.reconnect(&bench.files).await;
    gate.open();
    let finished = running.await.unwrap();
    assert_refused(&bench, Stage::Lease, Code::Stale);
    let text = "tool call rejected because the catalog changed after files/write was prepared";
    assert_eq!(said(&finished), text);
}

#[tokio::test(start_paused = true)]
async fn l08_a_declined_ask_fails_the_call() {
    let bench = Bench::new(&asking()).await;
    bench.write_asking(Person::replying(&bench.journal, [Reply::Declined])).await;
    assert_refused(&bench, Stage::Approval, Code::Declined);
}

#[tokio::test(start_paused = true)]
async fn l09_a_cancelled_ask_fails_the_call() {
    let bench = Bench::new(&asking()).await;
    bench.write_asking(Person::replying(&bench.journal, [Reply::Cancelled])).await;
    assert_refused(&bench, Stage::Approval, Code::AskCancelled);
}

#[tokio::test(start_paused = true)]
async fn l12_a_denied_call_fails() {
    let set = Policies::open(&["files"]).with(LayerKind::Managed, "guard", &Scripted::says(deny("no-writes")));
    let bench = Bench::new(&set).await;
    bench.write().await;
    assert_refused(&bench, Stage::Approval, Code::Denied);
}

#[tokio::test(start_paused = true)]
async fn a_broken_component_fails_the_call() {
    let set = Policies::open(&["files"]).with(LayerKind::Managed, "guard", &Scripted::fails(FaultCode::Trap));
    let bench = Bench::new(&set).await;
    bench.write().await;
    assert_refused(&bench, Stage::Approval, Code::ComponentFailed);
}

#[tokio::test(start_paused = true)]
async fn r34_a_decision_that_cannot_be_recorded_fails_the_call() {
    let bench = Bench::open().await;
    bench.tape.fail();
    let finished = bench.write().await;
    assert_refused(&bench, Stage::Record, Code::RecordFailed);
    assert!(!said(&finished).contains("SECRET"), "the model reads the cause: {}", said(&finished));
    assert!(failure(&finished).detail.as_ref().unwrap().contains("the disk is full"));
}

#[tokio::test(start_paused = true)]
async fn l14_an_unavailable_tool_gets_a_pair_without_optional_metadata() {
    let bench = Bench::open().await;
    let finished = bench.pipeline.run(bench.request("files/gone", r#"{"path":"a"}"#)).await;
    assert_refused(&bench, Stage::Prepare, Code::NotAvailable);
    let item = serde_json::to_value(&finished.item).unwrap();
    for absent in
        ["connector_id", "link_id", "app_name", "action_name", "mcp_app_resource_uri", "plugin_id", "read_only_hint"]
    {
        assert!(item.get(absent).is_none(), "{absent} is there");
    }
    assert_eq!(item["arguments"], serde_json::json!({"path": "a"}));
    assert_eq!(said(&finished), "MCP tool `files/gone` is not available to the model");
}

#[tokio::test(start_paused = true)]
async fn r25_a_name_that_leads_nowhere_fails_with_the_same_words() {
    let bench = Bench::open().await;
    let target = Target { server: None, tool: RawToolName::parse("files__gone").unwrap() };
    let finished = bench.pipeline.run(CallRequest { target, ..bench.request("files/write", "{}") }).await;
    assert_refused(&bench, Stage::Prepare, Code::NotAvailable);
    assert_eq!(said(&finished), "MCP tool `files__gone` is not available to the model");
}

#[tokio::test(start_paused = true)]
async fn l15_r40_unusable_arguments_get_a_pair_and_go_nowhere() {
    for (arguments, says) in [("{bad", "err: "), ("[1]", "must be a JSON object, got an array"), ("null", "got null")] {
        let bench = Bench::open().await;
        let finished = bench.pipeline.run(bench.request("files/write", arguments)).await;
        assert_refused(&bench, Stage::Arguments, Code::InvalidArguments);
        assert!(said(&finished).starts_with("err: ") && said(&finished).contains(says), "{}", said(&finished));
        assert!(finished.item.call.arguments.object().is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn r26_a_look_alike_argument_gets_a_pair_and_goes_nowhere() {
    let bench = Bench::open().await;
    let finished = bench.pipeline.run(bench.request("files/write", r#"{"Path":"a"}"#)).await;
    assert_refused(&bench, Stage::Arguments, Code::InvalidArguments);
    assert!(said(&finished).contains("`Path`"), "{}", said(&finished));
}

#[tokio::test(start_paused = true)]
async fn l16_r40_another_kind_of_payload_gets_a_pair_and_goes_nowhere() {
    let bench = Bench::open().await;
    bench.pipeline.run(CallRequest { payload: Payload::Other, ..bench.request("files/write", "{}") }).await;
    assert_refused(&bench, Stage::Payload, Code::UnsupportedPayload);
}

#[tokio::test(start_paused = true)]
async fn an_id_that_is_open_is_refused_with_a_pair_of_its_own_and_the_first_call_goes_on() {
    let bench = Bench::open().await;
    let gate = Gate::closed();
    bench.files.answers(How::Gated(Arc::clone(&gate)));
    let id = CallId::new("1").unwrap();
    let first = bench.spawn(CallRequest { id: id.clone(), ..bench.request("files/write", "{}") });
    gate.reached(1).await;
    let second = bench.pipeline.run(CallRequest { id: id.clone(), ..bench.request("files/read", "{}") }).await;
    assert_eq!(failed(&second), (Stage::Payload, Code::DuplicateId));
    gate.open();
    assert_eq!(first.await.unwrap().item.status, Status::Completed);
    assert_eq!((bench.tape.started().len(), bench.tape.completed().len()), (2, 2));
    assert_eq!(bench.files.handed().len(), 1);
    let third = bench.pipeline.run(CallRequest { id, ..bench.request("files/read", "{}") }).await;
    assert_eq!(third.item.status, Status::Completed, "an id whose call has ended is free again");
}

#[tokio::test(start_paused = true)]
async fn l18_a_call_that_is_cancelled_while_somebody_is_asked_completes_unsent() {
    let bench = Bench::new(&asking()).await;
    let gate = Gate::closed();
    let person = Person::replying(&bench.journal, [allowed(Remember::Never)]).at(&gate);
    let request = CallRequest { reviewer: person, ..bench.request("files/write", "{}") };
    let cancel = request.cancel.clone();
    let running = bench.spawn(request);
    gate.reached(1).await;
    cancel.cancel();
    let finished = running.await.unwrap();
    assert_refused(&bench, Stage::Approval, Code::Cancelled);
    assert_eq!(said(&finished), "the call was cancelled");
}

#[tokio::test(start_paused = true)]
async fn l18_a_call_that_is_cancelled_after_it_was_sent_tells_the_upstream() {
    let bench = Bench::open().await;
    bench.files.answers(How::Never);
    let request = bench.request("files/write", "{}");
    let cancel = request.cancel.clone();
    let running = bench.spawn(request);
    while bench.files.handed().is_empty() {
        tokio::task::yield_now().await;
    }
    cancel.cancel();
    let finished = running.await.unwrap();
    assert_failed_after_sending(&bench, Code::Cancelled);
    assert_eq!(bench.files.cancelled.load(std::sync::atomic::Ordering::SeqCst), 1);
    assert!(said(&finished).contains("may have run"));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_cancelled_before_it_starts_completes_unsent() {
    let bench = Bench::new(&asking()).await;
    let request = CallRequest { reviewer: never_answering(&bench), ..bench.request("files/write", "{}") };
    request.cancel.cancel();
    bench.pipeline.run(request).await;
    assert_refused(&bench, Stage::Approval, Code::Cancelled);
}

fn never_answering(bench: &Bench) -> Arc<dyn Reviewer> {
    Person::replying(&bench.journal, [Reply::Declined]).at(&Gate::closed())
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_future_is_dropped_while_somebody_is_asked_completes_as_cancelled() {
    let bench = Bench::new(&asking()).await;
    let gate = Gate::closed();
    let person = Person::replying(&bench.journal, [Reply::Declined]).at(&gate);
    let running = bench.spawn(CallRequest { reviewer: person, ..bench.request("files/write", "{}") });
    gate.reached(1).await;
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    assert_refused(&bench, Stage::Approval, Code::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_future_is_dropped_after_sending_tells_the_upstream() {
    let bench = Bench::open().await;
    bench.files.answers(How::Never);
    let running = bench.spawn(bench.request("files/write", "{}"));
    while bench.files.handed().is_empty() {
        tokio::task::yield_now().await;
    }
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    assert_failed_after_sending(&bench, Code::Cancelled);
    assert_eq!(bench.files.cancelled.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_panicking_component_completes_the_call_as_a_defect() {
    let set = asking().with(LayerKind::User, "broken", &Scripted::by(|_, _| panic!("a component panics, as scripted")));
    let bench = Bench::new(&set).await;
    let running = bench.spawn(bench.request("files/write", "{}"));
    assert!(running.await.unwrap_err().is_panic());
    assert_refused(&bench, Stage::Approval, Code::Internal);
}

#[tokio::test(start_paused = true)]
async fn a_panicking_reviewer_completes_the_call_as_a_defect() {
    let bench = Bench::new(&asking()).await;
    let running = bench.spawn(CallRequest { reviewer: Arc::new(Panics), ..bench.request("files/write", "{}") });
    assert!(running.await.unwrap_err().is_panic());
    assert_refused(&bench, Stage::Approval, Code::Internal);
}

#[tokio::test(start_paused = true)]
async fn a_panic_after_sending_completes_the_call_as_one_that_may_have_run() {
    let bench = Bench::open().await;
    bench.files.answers(How::Panics);
    let running = bench.spawn(bench.request("files/write", "{}"));
    assert!(running.await.unwrap_err().is_panic());
    assert_failed_after_sending(&bench, Code::Internal);
    let item = bench.tape.completed().remove(0);
    assert!(item.failure().unwrap().message.contains("may have run"));
}

#[tokio::test(start_paused = true)]
async fn a_panic_that_is_caught_outside_of_the_task_completes_the_call_as_a_defect() {
    use futures::FutureExt as _;
    let set = asking().with(LayerKind::User, "broken", &Scripted::by(|_, _| panic!("a component panics, as scripted")));
    let bench = Bench::new(&set).await;
    let caught = std::panic::AssertUnwindSafe(bench.write()).catch_unwind().await;
    assert!(caught.is_err());
    assert_refused(&bench, Stage::Approval, Code::Internal);
}

#[tokio::test(start_paused = true)]
async fn the_calls_own_time_begins_after_the_asking() {
    let bench = Bench::new(&asking()).await;
    let (asked, sent) = (Gate::closed(), Gate::closed());
    bench.files.answers(How::Gated(Arc::clone(&sent)));
    let person = Person::replying(&bench.journal, [allowed(Remember::Never)]).at(&asked);
    let running = bench.spawn(CallRequest { reviewer: person, ..bench.request("files/write", "{}") });
    asked.reached(1).await;
    tokio::time::advance(Duration::from_secs(400)).await;
    asked.open();
    sent.reached(1).await;
    tokio::time::advance(Duration::from_secs(7)).await;
    sent.open();
    let durations = running.await.unwrap().item.durations;
    assert_eq!((durations.call.as_secs(), durations.wall.as_secs()), (7, 407));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_completes_the_call_that_waits_for_an_answer() {
    let server = FakeServer::new("files", &Journal::default(), vec![tool("write")]);
    server.answers(How::Never);
    let house = House::of(&[&server]);
    let session = house.session();
    let running = tokio::spawn(async move { session.call(call("files/write")).await });
    server.handed_over(1).await;
    house.host.shutdown(Duration::from_secs(1)).await;
    let finished = running.await.unwrap();
    assert_eq!(failed(&finished), (Stage::Call, Code::Ambiguous));
    house.tape.only_pair();
    assert_eq!(server.open_connections(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_the_call_that_ends_in_time() {
    let server = FakeServer::new("files", &Journal::default(), vec![tool("write")]);
    let gate = Gate::closed();
    server.answers(How::Gated(Arc::clone(&gate)));
    let house = House::of(&[&server]);
    let session = house.session();
    let running = tokio::spawn(async move { session.call(call("files/write")).await });
    gate.reached(1).await;
    let host = Arc::clone(&house.host);
    let stopping = tokio::spawn(async move { host.shutdown(Duration::from_secs(1)).await });
    tokio::task::yield_now().await;
    gate.open();
    assert_eq!(running.await.unwrap().item.status, Status::Completed);
    stopping.await.unwrap();
    house.tape.only_pair();
}

#[tokio::test(start_paused = true)]
async fn an_ask_with_a_rule_of_a_layer_names_it_in_the_item_and_to_the_model() {
    let set = Policies::open(&["files"]).with(
        LayerKind::Organisation,
        "care",
        &Scripted::says(ask("think-first", Remember::Never)),
    );
    let bench = Bench::new(&set).await;
    let finished = bench.write().await;
    assert_refused(&bench, Stage::Approval, Code::NobodyToAsk);
    let refusal = &finished.clean.result().value()["_meta"]["portcullis/refusal"];
    let wanted = serde_json::json!({
        "stage": "approval", "code": "nobody-to-ask", "layer": "organisation", "component": "care", "rule": "think-first",
    });
    assert_eq!(*refusal, wanted);
}

/// A hook of the user's layer that says no when somebody would be asked.
fn denying() -> Policies {
    asking().hook(hook(LayerKind::User, HookEvent::PermissionRequest, &ScriptedHook::blocks("not today")))
}

/// The builtin ask goes to an auto reviewer that gives these answers.
fn reviewed(answer: Result<String, NoReview>) -> Policies {
    let judge = judging(LayerKind::User, &Judge::answers([answer]));
    asking().posture(LayerKind::User, |posture| posture.reviewer = Some(Answers::AutoReview)).reviewer(judge)
}

#[tokio::test(start_paused = true)]
async fn l10_a_hook_that_denies_fails_the_call() {
    let bench = Bench::new(&denying()).await;
    bench.write().await;
    assert_refused(&bench, Stage::Approval, Code::HookDenied);
}

#[tokio::test(start_paused = true)]
async fn l11_a_reviewer_that_denies_fails_or_does_not_answer_fails_the_call() {
    let silent = Arc::new(NeverJudges);
    let silent = BoundReviewer { reviewer: Ok(silent as _), ..judging(LayerKind::User, &Judge::says(DENY)) };
    let silent =
        asking().posture(LayerKind::User, |posture| posture.reviewer = Some(Answers::AutoReview)).reviewer(silent);
    for (policies, code) in [
        (reviewed(Ok(DENY.to_owned())), Code::ReviewDenied),
        (reviewed(Err(NoReview::Failed("401".to_owned()))), Code::ReviewFailed),
        (silent, Code::ReviewTimedOut),
    ] {
        let bench = Bench::new(&policies).await;
        bench.write().await;
        assert_refused(&bench, Stage::Approval, code);
    }
}

/// A reviewer that never comes to an end.
struct NeverJudges;

#[async_trait::async_trait]
impl AutoReviewer for NeverJudges {
    async fn review(&self, _request: &ReviewRequest) -> Result<String, NoReview> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn l12_under_never_what_needs_asking_fails_the_call() {
    let never = asking().posture(LayerKind::User, |posture| posture.policy = Some(ApprovalPolicy::Never));
    let bench = Bench::new(&never).await;
    bench.write().await;
    assert_refused(&bench, Stage::Approval, Code::NeverAsks);
}

#[tokio::test(start_paused = true)]
async fn l13_an_app_that_is_disabled_fails_the_call() {
    let off = Apps::says("off", Some(false), None);
    let bench = Bench::new(&asking().app(LayerKind::User, "apps", &off)).await;
    bench.link("calendar").await;
    bench.write().await;
    assert_refused(&bench, Stage::Connector, Code::Disabled);
}
