//! Hooks through the whole pipeline: what they are told, what they may do, and what their failures mean.

use std::sync::Arc;

use portcullis::model::hook::{HookEvent, HookFailureMeans, HookFault, HookFaultCode, HookSaid};
use portcullis::model::item::Status;
use portcullis::model::layer::LayerKind;
use portcullis::model::outcome::{Code, Outcome, Stage};
use portcullis::model::posture::{ApprovalMode, ApprovalPolicy};
use portcullis::model::verdict::{FaultCode, OnFailure, Remember};
use portcullis::pipeline::emit::views::model::{ModelView, ModelViewOptions};
use portcullis::pipeline::emit::views::script::ScriptView;
use portcullis::pipeline::{CallRequest, Finished, Payload};
use portcullis::ports::approval::BoundComponent;
use portcullis::ports::hook::{BoundHook, HookMatches};
use portcullis::ports::recorder::Consent;
use portcullis::ports::sanitiser::Class;
use serde_json::{Value, json};

use crate::fakes::Gate;
use crate::fakes::bench::{Bench, failed, said};
use crate::fakes::hook::{ScriptedHook, hook};
use crate::fakes::people::{Person, allowed};
use crate::fakes::policy::{Apps, Policies, Scripted, ask, bound, deny};
use crate::fakes::sanitiser::{self, Cleaner};
use crate::fakes::server::{FakeServer, How, tool_with};

fn open() -> Policies {
    Policies::open(&["files"])
}

fn pre(program: &Arc<ScriptedHook>) -> BoundHook {
    hook(LayerKind::User, HookEvent::PreToolUse, program)
}

fn permission(layer: LayerKind, program: &Arc<ScriptedHook>) -> BoundHook {
    hook(layer, HookEvent::PermissionRequest, program)
}

fn post(program: &Arc<ScriptedHook>) -> BoundHook {
    hook(LayerKind::User, HookEvent::PostToolUse, program)
}

/// A `PreToolUse` hook that says this.
fn ahead(output: Value) -> Arc<ScriptedHook> {
    let mut output = output;
    output["hookEventName"] = json!("PreToolUse");
    ScriptedHook::prints(json!({ "hookSpecificOutput": output }))
}

fn allows() -> Arc<ScriptedHook> {
    let decision = json!({ "behavior": "allow" });
    ScriptedHook::prints(
        json!({ "hookSpecificOutput": { "hookEventName": "PermissionRequest", "decision": decision } }),
    )
}

fn broken(code: HookFaultCode) -> Arc<ScriptedHook> {
    ScriptedHook::ends(Err(HookFault::new(code, "SECRET detail")))
}

fn ran(finished: &Finished) -> bool {
    finished.item.status == Status::Completed
}

async fn shown(finished: &Finished) -> String {
    let view = ModelView::of(&finished.clean, std::time::Duration::ZERO, &ModelViewOptions::default()).await;
    serde_json::to_string(view.answer()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn every_hook_is_told_the_raw_identity_beside_the_name_that_is_not_injective() {
    let (before, asked, after) = (ScriptedHook::prints(""), ScriptedHook::prints(""), ScriptedHook::prints(""));
    let policies = Policies::new().hook(pre(&before)).hook(permission(LayerKind::User, &asked)).hook(post(&after));
    let bench = Bench::new(&policies).await;
    let yes = Person::replying(&bench.journal, [allowed(Remember::Never)]);
    let request = CallRequest { reviewer: yes, ..bench.request("files/write", r#"{"path":"a"}"#) };
    let id = request.id.as_str().to_owned();
    assert!(ran(&bench.pipeline.run(request).await));
    for (program, event) in [(&before, "PreToolUse"), (&asked, "PermissionRequest"), (&after, "PostToolUse")] {
        let told = program.told();
        assert_eq!(told.len(), 1, "{event}");
        let told = &told[0];
        assert_eq!(told["hook_event_name"], event);
        assert_eq!(told["tool_name"], "mcp__files__write");
        assert_eq!((&told["mcp_server"], &told["mcp_tool"]), (&json!("files"), &json!("write")));
        assert_eq!(told["tool_input"], json!({ "path": "a" }));
        assert_eq!(told["session_id"], bench.caller.session.as_str());
        assert_eq!(told["permission_mode"], "default");
        assert_eq!(told.get("tool_use_id").is_some(), event != "PermissionRequest", "{event}");
    }
    assert_eq!(before.told()[0]["tool_use_id"], id.as_str());
    assert!(after.told()[0]["tool_response"]["content"].is_array());
}

#[tokio::test(start_paused = true)]
async fn h9_a_hook_before_is_told_blank_arguments_as_an_object_and_bad_ones_as_they_are() {
    for (given, told) in [(" ", json!({})), ("{bad", json!("{bad"))] {
        let program = ScriptedHook::prints("");
        let bench = Bench::new(&open().hook(pre(&program))).await;
        let finished = bench.pipeline.run(bench.request("files/write", given)).await;
        assert_eq!(program.told()[0]["tool_input"], told);
        assert_eq!(ran(&finished), given == " ");
    }
}

#[tokio::test(start_paused = true)]
async fn the_permission_mode_tells_of_never() {
    let program = ScriptedHook::prints("");
    let never =
        open().posture(LayerKind::User, |posture| posture.policy = Some(ApprovalPolicy::Never)).hook(pre(&program));
    Bench::new(&never).await.write().await;
    assert_eq!(program.told()[0]["permission_mode"], "bypassPermissions");
}

#[tokio::test(start_paused = true)]
async fn l17_a_hook_that_blocks_ends_the_call_before_anybody_decides_and_r40_the_items_are_a_pair() {
    let decides = Scripted::says(deny("no"));
    let policies = open().with(LayerKind::User, "decides", &decides).hook(pre(&ScriptedHook::blocks("not in here")));
    let bench = Bench::new(&policies).await;
    let finished = bench.write().await;
    assert_eq!(failed(&finished), (Stage::Hook, Code::HookBlocked));
    assert_eq!(said(&finished), "MCP tool call `files/write` was blocked by a hook (user/hook): not in here");
    assert_eq!((decides.asked(), bench.files.handed().len(), bench.tape.decisions().len()), (0, 0, 0));
    let item = bench.tape.only_pair();
    assert!(matches!(&item.hooks[0].said, HookSaid::Block { reason } if reason == "not in here"));
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_fails_before_the_call_blocks_it_unless_its_layer_continues() {
    use HookFaultCode::{Exit, Missing, OutputInvalid, OutputTooLarge, Signal, Spawn, Timeout};
    for code in [Missing, Spawn, Timeout, Signal, Exit, OutputTooLarge, OutputInvalid] {
        let program = broken(code);
        let finished = Bench::new(&open().hook(pre(&program))).await.write().await;
        assert_eq!(failed(&finished), (Stage::Hook, Code::HookFailed), "{code:?}");
        assert!(!said(&finished).contains("SECRET"));
        let goes_on = BoundHook { on_failure: HookFailureMeans::Continue, ..pre(&program) };
        let bench = Bench::new(&open().hook(goes_on)).await;
        assert!(ran(&bench.write().await), "{code:?}");
        let recorded = &bench.tape.decisions()[0].hooks[0].said;
        assert!(matches!(recorded, HookSaid::Failed(fault) if fault.code == code), "{recorded:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn rewritten_arguments_are_what_every_policy_sees_and_what_is_sent() {
    let seen = Scripted::by(|_, facts| {
        assert_eq!(facts.arguments.canonical(), r#"{"path":"safe"}"#);
        Ok(portcullis::model::verdict::Verdict::Abstain)
    });
    let rewrites = ahead(json!({ "permissionDecision": "allow", "updatedInput": { "path": "safe" } }));
    let policies = open().with(LayerKind::Managed, "sees", &seen).hook(pre(&rewrites));
    let bench = Bench::new(&policies).await;
    let finished = bench.pipeline.run(bench.request("files/write", r#"{"path":"/etc"}"#)).await;
    assert!(ran(&finished), "{}", said(&finished));
    assert_eq!(seen.asked(), 1);
    assert_eq!(bench.files.handed()[0].arguments.clone().map(Value::Object), Some(json!({ "path": "safe" })));
    let object = finished.item.call.arguments.object().cloned();
    assert_eq!(object.map(Value::Object), Some(json!({ "path": "safe" })), "the item has what was sent");
}

#[tokio::test(start_paused = true)]
async fn two_hooks_that_want_different_arguments_block_and_two_that_want_the_same_do_not() {
    let wants = |path: &str| pre(&ahead(json!({ "permissionDecision": "allow", "updatedInput": { "path": path } })));
    let agree = Bench::new(&open().hook(wants("a")).hook(wants("a"))).await;
    assert!(ran(&agree.write().await));
    let differ = Bench::new(&open().hook(wants("a")).hook(wants("b"))).await;
    let finished = differ.write().await;
    assert_eq!(failed(&finished), (Stage::Hook, Code::HookFailed));
    assert!(said(&finished).contains("two hooks want different arguments"), "{}", said(&finished));
}

#[tokio::test(start_paused = true)]
async fn context_of_a_hook_reaches_the_model_and_no_script() {
    let adds = ahead(json!({ "additionalContext": "the folder is shared" }));
    let bench = Bench::new(&open().hook(pre(&adds))).await;
    let finished = bench.write().await;
    assert!(shown(&finished).await.contains("the folder is shared"), "{}", shown(&finished).await);
    let served = Value::Object(finished.clean.served().value().clone()).to_string();
    assert!(served.contains("the folder is shared"));
    let script = ScriptView::of(&finished.clean).text();
    assert!(!script.contains("the folder is shared"));
}

#[tokio::test(start_paused = true)]
async fn r25_a_hook_tells_nobody_that_a_disabled_tool_is_there() {
    let off = Apps::says("off", Some(false), None);
    let bench =
        Bench::new(&Policies::new().app(LayerKind::User, "apps", &off).hook(pre(&ScriptedHook::blocks("no")))).await;
    bench.link("calendar").await;
    let (finished, unknown) = (bench.write().await, bench.pipeline.run(bench.request("files/nothing", "{}")).await);
    assert_eq!(said(&finished), said(&unknown).replace("nothing", "write"));
}

#[tokio::test(start_paused = true)]
async fn r31_what_a_hook_says_passes_the_sanitisers() {
    let hooks = [
        pre(&ScriptedHook::blocks("the key is hunter2")),
        permission(LayerKind::User, &ScriptedHook::blocks("the key is hunter2")),
        post(&ScriptedHook::blocks("the key is hunter2")),
        post(&ScriptedHook::prints(json!({ "continue": false, "stopReason": "the key is hunter2" }))),
        pre(&ahead(json!({ "additionalContext": "the key is hunter2" }))),
    ];
    for one in hooks {
        let event = one.event;
        let removes = Cleaner::removes("hunter2", Class::Secret);
        let clean = sanitiser::bound(LayerKind::Managed, "clean", &removes);
        let base = if event == HookEvent::PermissionRequest { Policies::new() } else { open() };
        let bench = Bench::new(&base.cleaning(clean).hook(one)).await;
        let finished = bench.write().await;
        assert!(!shown(&finished).await.contains("hunter2"), "{event:?}: {}", shown(&finished).await);
        assert!(shown(&finished).await.contains("the key is"), "{event:?}: {}", shown(&finished).await);
        let item = format!("{:?}", finished.item.outcome);
        assert!(!item.contains("hunter2") || finished.item.failure().unwrap().detail.is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn r18_an_allow_counts_from_a_layer_as_trusted_as_everybody_who_asked() {
    use LayerKind::{Managed, Organisation, Project, Session, System, User};
    let kinds = [Managed, System, Organisation, User, Project, Session];
    for of in kinds {
        for asker in kinds {
            let asks = Scripted::says(ask("think", Remember::Session));
            let policies = Policies::open(&["files"]).with(asker, "care", &asks).hook(permission(of, &allows()));
            let bench = Bench::new(&policies).await;
            let finished = bench.write().await;
            let counts = of.may_allow_by_default() && of >= asker;
            assert_eq!(ran(&finished), counts, "{of:?} for an ask of {asker:?}");
            let record = &bench.tape.decisions()[0];
            assert!(matches!(record.hooks[0].said, HookSaid::Allow { counts: counted } if counted == counts));
            if counts {
                assert!(matches!(&record.consent, Consent::Hook { source } if source.layer.kind() == of));
            } else {
                assert_eq!(failed(&finished).1, Code::NobodyToAsk);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn r14_r18_no_hook_settles_an_ask_that_comes_from_a_failure() {
    let fails = BoundComponent {
        on_failure: OnFailure::Ask,
        ..bound(LayerKind::User, "fails", Scripted::fails(FaultCode::Trap))
    };
    let bench = Bench::new(&open().and(fails).hook(permission(LayerKind::Managed, &allows()))).await;
    assert_eq!(failed(&bench.write().await).1, Code::NobodyToAsk);
}

#[tokio::test(start_paused = true)]
async fn k13_k14_the_first_deny_wins_over_any_allow() {
    let no = |why: &str| ScriptedHook::blocks(why);
    let policies = Policies::new()
        .hook(permission(LayerKind::User, &allows()))
        .hook(permission(LayerKind::User, &no("a")))
        .hook(permission(LayerKind::User, &no("b")));
    let bench = Bench::new(&policies).await;
    let finished = bench.write().await;
    assert_eq!(failed(&finished), (Stage::Approval, Code::HookDenied));
    assert!(said(&finished).ends_with("because a hook did not allow it (user/hook): a"), "{}", said(&finished));
}

#[tokio::test(start_paused = true)]
async fn k12_a_permission_hook_that_fails_has_no_opinion() {
    let bench = Bench::new(&Policies::new().hook(permission(LayerKind::User, &broken(HookFaultCode::Timeout)))).await;
    let yes = Person::replying(&bench.journal, [allowed(Remember::Never)]);
    assert!(ran(&bench.write_asking(yes.clone()).await));
    assert_eq!(yes.questions().len(), 1);
    assert_eq!(failed(&bench.write().await).1, Code::NobodyToAsk, "a failure counted as consent");
}

#[tokio::test(start_paused = true)]
async fn d38_hooks_do_not_hear_of_calls_that_nobody_asks_about() {
    let program = ScriptedHook::blocks("no");
    let bench = Bench::new(&open().hook(permission(LayerKind::Managed, &program))).await;
    assert!(ran(&bench.write().await));
    assert!(program.told().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_allow_is_asked_for_once_and_stands_only_for_the_policies_under_which_it_was_given() {
    let program = allows();
    let asks = Scripted::says(ask("think", Remember::Session));
    let policies = open().with(LayerKind::User, "care", &asks).hook(permission(LayerKind::User, &program));
    let bench = Bench::new(&policies).await;
    assert!(ran(&bench.write().await));
    assert_eq!((program.told().len(), asks.asked()), (1, 2), "decided again after the answer (R19)");
    assert!(bench.purse.kept().is_empty(), "a hook's allow is remembered by nobody");
}

#[tokio::test(start_paused = true)]
async fn l19_c7_a_hook_that_blocks_after_the_call_leaves_the_item_completed() {
    let bench = Bench::new(&open().hook(post(&ScriptedHook::blocks("do not trust this")))).await;
    let finished = bench.write().await;
    assert_eq!(bench.tape.only_pair().status, Status::Completed);
    assert_eq!(*finished.clean.outcome(), Outcome::Answered);
    assert_eq!(finished.clean.failure().map(|failure| failure.code), Some(Code::HookBlocked));
    assert_eq!(finished.clean.result().value()["isError"], true);
    assert!(said(&finished).ends_with("the call has run: do not trust this"), "{}", said(&finished));
    let heard = bench.tape.observed().remove(0).hooks.remove(0);
    assert!(matches!(heard.said, HookSaid::Block { .. }));
}

#[tokio::test(start_paused = true)]
async fn c8_feedback_takes_the_place_of_what_the_model_reads_and_scripts_keep_the_answer() {
    let stops = ScriptedHook::prints(json!({ "continue": false, "stopReason": "look at the log instead" }));
    let bench = Bench::new(&open().hook(post(&stops))).await;
    let (finished, plain) = (bench.write().await, Bench::open().await.write().await);
    assert_eq!(said(&finished), "look at the log instead");
    assert_eq!(ScriptView::of(&finished.clean), ScriptView::of(&plain.clean));
    assert_eq!(finished.item.result, plain.item.result);
    assert_eq!(*finished.clean.outcome(), Outcome::Answered);
}

#[tokio::test(start_paused = true)]
async fn c9_an_answer_cannot_be_rewritten_and_a_hook_that_fails_after_the_call_changes_nothing() {
    let rewrites = ScriptedHook::prints(json!({ "hookSpecificOutput": {
        "hookEventName": "PostToolUse", "updatedMCPToolOutput": { "content": [] } } }));
    for program in [rewrites, broken(HookFaultCode::Timeout)] {
        let bench = Bench::new(&open().hook(post(&program))).await;
        let (finished, plain) = (bench.write().await, Bench::open().await.write().await);
        assert_eq!(finished.clean.result().value(), plain.clean.result().value());
        assert!(matches!(bench.tape.observed()[0].hooks[0].said, HookSaid::Failed(_)));
    }
}

#[tokio::test(start_paused = true)]
async fn c6_c10_hooks_after_the_call_hear_of_successes_only() {
    let program = ScriptedHook::blocks("no");
    let refuses = Scripted::says(deny("no"));
    let bench = Bench::new(&open().with(LayerKind::User, "no", &refuses).hook(post(&program))).await;
    bench.write().await;
    assert!(program.told().is_empty());
    let bench = Bench::new(&open().hook(post(&program))).await;
    bench.files.answers(How::Result(r#"{"content":[],"isError":true}"#));
    bench.write().await;
    assert!(program.told().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_payload_that_is_no_function_runs_no_hook() {
    let program = ScriptedHook::blocks("no");
    let bench = Bench::new(&open().hook(pre(&program))).await;
    let request = CallRequest { payload: Payload::Other, ..bench.request("files/write", "{}") };
    assert_eq!(failed(&bench.pipeline.run(request).await), (Stage::Payload, Code::UnsupportedPayload));
    assert!(program.told().is_empty());
}

#[tokio::test(start_paused = true)]
async fn r38_explaining_runs_no_hook_and_names_those_that_could_change_the_result() {
    let programs = [ScriptedHook::blocks("no"), ScriptedHook::blocks("no"), ScriptedHook::blocks("no")];
    let [before, asked, after] = &programs;
    let policies = Policies::new()
        .mode(LayerKind::User, "files", ApprovalMode::Prompt)
        .hook(pre(before))
        .hook(permission(LayerKind::Managed, asked))
        .hook(post(after));
    let bench = Bench::new(&policies).await;
    let explained = bench.pipeline.explain(bench.request("files/write", "{}")).await;
    assert!(programs.iter().all(|program| program.told().is_empty()));
    let named: Vec<_> = explained.hooks.iter().map(|(event, source)| (*event, source.layer.kind())).collect();
    let wanted = [
        (HookEvent::PreToolUse, LayerKind::User),
        (HookEvent::PermissionRequest, LayerKind::Managed),
        (HookEvent::PostToolUse, LayerKind::User),
    ];
    assert_eq!(named, wanted);
}

#[tokio::test(start_paused = true)]
async fn r25_what_a_hook_adds_is_not_said_of_a_tool_that_answers_like_an_unknown_one() {
    let off = Apps::says("off", Some(false), None);
    let adds = ahead(json!({ "additionalContext": "the calendar is shared" }));
    let bench = Bench::new(&Policies::new().app(LayerKind::User, "apps", &off).hook(pre(&adds))).await;
    bench.link("calendar").await;
    assert!(!shown(&bench.write().await).await.contains("shared"));
}

#[tokio::test(start_paused = true)]
async fn hooks_after_the_call_are_heard_although_the_tool_is_gone_by_then() {
    let gate = Gate::closed();
    let bench = Bench::new(&open().hook(post(&ScriptedHook::blocks("do not trust this")))).await;
    bench.files.answers(How::Gated(Arc::clone(&gate)));
    let running = bench.spawn(bench.request("files/write", "{}"));
    gate.reached(1).await;
    bench.redefine(&bench.files, Vec::new()).await;
    gate.open();
    let finished = running.await.unwrap();
    assert_eq!(finished.clean.failure().map(|failure| failure.code), Some(Code::HookBlocked));
}

#[tokio::test(start_paused = true)]
async fn r24_no_hook_accepts_what_a_definition_has_become() {
    let allows = permission(LayerKind::Managed, &allows());
    let bench = Bench::new(&open().hook(allows)).await;
    assert!(ran(&bench.write().await));
    bench.redefine(&bench.files, vec![tool_with("write", r#"{"title":"Other"}"#)]).await;
    assert_eq!(failed(&bench.write().await).1, Code::NobodyToAsk);
    let yes = Person::replying(&bench.journal, [allowed(Remember::Never)]);
    assert!(ran(&bench.write_asking(yes).await));
    assert!(ran(&bench.write().await), "what a person has agreed to is the accepted definition");
}

/// Matches one name, as a configuration would.
#[derive(Debug)]
struct Named(&'static str);

impl HookMatches for Named {
    fn matches(&self, hook_name: &str) -> bool {
        hook_name == self.0
    }
}

fn named(event: HookEvent, program: &Arc<ScriptedHook>) -> BoundHook {
    BoundHook { matches: Arc::new(Named("mcp__files__x__write")), ..hook(LayerKind::User, event, program) }
}

#[tokio::test(start_paused = true)]
async fn r15_h7_a_server_that_comes_beside_takes_no_tool_from_a_hook_and_gets_no_allow_of_another() {
    // `files` has a tool `x__write` and `files__x` a tool `write`: one hook name for both.
    let journal = crate::fakes::Journal::default();
    let other = FakeServer::new("files__x", &journal, vec![tool_with("write", "{}")]);
    let allowing = Policies::new().hook(named(HookEvent::PermissionRequest, &allows()));
    let bench = Bench::new(&allowing).await;
    bench.redefine(&bench.files, vec![tool_with("x__write", "{}")]).await;
    assert!(ran(&bench.pipeline.run(bench.request("files/x__write", "{}")).await), "alone, the name is clear");
    bench.connect(&other);
    bench.publish().await;
    for call in ["files/x__write", "files__x/write"] {
        assert_eq!(failed(&bench.pipeline.run(bench.request(call, "{}")).await).1, Code::NobodyToAsk, "{call}");
    }
    let blocking = open().hook(named(HookEvent::PreToolUse, &ScriptedHook::blocks("no")));
    bench.decide_by(&blocking).await;
    for call in ["files/x__write", "files__x/write"] {
        assert_eq!(failed(&bench.pipeline.run(bench.request(call, "{}")).await).1, Code::HookBlocked, "{call}");
    }
}

#[tokio::test(start_paused = true)]
async fn r19_a_hook_that_comes_while_somebody_is_asked_is_not_passed_by() {
    let gate = Gate::closed();
    let bench = Bench::new(&Policies::new()).await;
    let yes = Person::replying(&bench.journal, [allowed(Remember::Never)]).at(&gate);
    let running = bench.spawn(CallRequest { reviewer: yes, ..bench.request("files/write", "{}") });
    gate.reached(1).await;
    bench.decide_by(&Policies::new().hook(pre(&ScriptedHook::blocks("no")))).await;
    gate.open();
    let finished = running.await.unwrap();
    assert_eq!(failed(&finished), (Stage::Hook, Code::PoliciesUnstable));
    assert!(bench.files.handed().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_a_hook_adds_is_said_with_an_answer_only() {
    let adds = ahead(json!({ "additionalContext": "the folder is shared" }));
    let refuses = Scripted::says(deny("no"));
    let bench = Bench::new(&open().with(LayerKind::User, "no", &refuses).hook(pre(&adds))).await;
    assert!(!shown(&bench.write().await).await.contains("shared"));
}
