//! Every failure of a component, a hook and a reviewer, in every layer: none ends in a call (R14, R15).
//!
//! Around each failure stands everything that could be taken for consent: a hook of the managed layer that allows, an auto
//! reviewer of the managed layer that allows, an agreement for the session, and another component that allows. What may let
//! the call run is a person's fresh answer alone, and that only where the layer asks for one.

use std::sync::Arc;

use async_trait::async_trait;
use portcullis::model::hook::{HookEvent, HookFailureMeans, HookFault, HookFaultCode};
use portcullis::model::item::Status;
use portcullis::model::layer::LayerKind;
use portcullis::model::outcome::Code;
use portcullis::model::posture::{LayerPosture, Reviewer as Answers};
use portcullis::model::verdict::{Fault, FaultCode, OnFailure, Remember};
use portcullis::pipeline::Finished;
use portcullis::ports::approval::{ApprovalComponent, BoundComponent};
use portcullis::ports::hook::BoundHook;
use portcullis::ports::review::{AutoReviewer, BoundReviewer, NoReview, ReviewRequest};
use serde_json::json;

use crate::fakes::bench::{Bench, failed};
use crate::fakes::hook::{ScriptedHook, hook};
use crate::fakes::judge::{ALLOW, Judge, judging};
use crate::fakes::people::{Person, allowed};
use crate::fakes::policy::{Policies, Scripted, allow, ask, bound};

const LAYERS: [LayerKind; 6] = [
    LayerKind::Managed,
    LayerKind::System,
    LayerKind::Organisation,
    LayerKind::User,
    LayerKind::Project,
    LayerKind::Session,
];

const FAULTS: [FaultCode; 16] = [
    FaultCode::Trap,
    FaultCode::Fuel,
    FaultCode::Deadline,
    FaultCode::Memory,
    FaultCode::Stack,
    FaultCode::OutputInvalid,
    FaultCode::OutputTooLarge,
    FaultCode::InputTooLarge,
    FaultCode::MissingImport,
    FaultCode::WrongVersion,
    FaultCode::Digest,
    FaultCode::Signature,
    FaultCode::Settings,
    FaultCode::Budget,
    FaultCode::Circuit,
    FaultCode::Missing,
];

const HOOK_FAULTS: [HookFaultCode; 7] = [
    HookFaultCode::Missing,
    HookFaultCode::Spawn,
    HookFaultCode::Timeout,
    HookFaultCode::Signal,
    HookFaultCode::Exit,
    HookFaultCode::OutputTooLarge,
    HookFaultCode::OutputInvalid,
];

fn allowing_hook() -> BoundHook {
    let allows = ScriptedHook::prints(json!({ "hookSpecificOutput": {
        "hookEventName": "PermissionRequest", "decision": { "behavior": "allow" } } }));
    hook(LayerKind::Managed, HookEvent::PermissionRequest, &allows)
}

/// Everything that could be taken for consent.
fn consenting() -> Policies {
    Policies::new()
        .with(LayerKind::Managed, "allows", &Scripted::says(allow("fine")))
        .hook(allowing_hook())
        .reviewer(judging(LayerKind::Managed, &Judge::says(ALLOW)))
}

fn broken_hook(layer: LayerKind, event: HookEvent, code: HookFaultCode) -> BoundHook {
    hook(layer, event, &ScriptedHook::ends(Err(HookFault::new(code, "it fails"))))
}

/// Runs the call, first with an agreement for the session kept where one was to be had.
async fn run(policies: &Policies) -> (Bench, Finished) {
    let bench = Bench::new(&Policies::new()).await;
    bench.write_asking(Person::replying(&bench.journal, [allowed(Remember::Session)])).await;
    assert_eq!(bench.purse.kept().len(), 1);
    bench.decide_by(policies).await;
    let finished = bench.write().await;
    (bench, finished)
}

fn assert_not_run(bench: &Bench, finished: &Finished, what: &str) {
    assert_ne!(finished.item.status, Status::Completed, "{what} ended in a call");
    assert_eq!(bench.files.handed().len(), 1, "{what}: something was sent beside the call before");
}

#[tokio::test(start_paused = true)]
async fn r14_r15_no_failure_of_a_component_ends_in_a_call() {
    for layer in LAYERS {
        for code in FAULTS {
            for on_failure in [OnFailure::Deny, OnFailure::Ask] {
                let what = format!("{code:?} in {layer:?} with {on_failure:?}");
                for loaded in [true, false] {
                    let fails = bound(layer, "fails", Scripted::fails(code));
                    let component = if loaded { fails.component.clone() } else { Err(Fault::new(code, "unloaded")) };
                    let fails = BoundComponent { on_failure, component, ..fails };
                    let policies = consenting().and(fails);
                    let (bench, finished) = run(&policies).await;
                    assert_not_run(&bench, &finished, &what);
                    let yes = Person::replying(&bench.journal, [allowed(Remember::Never)]);
                    let asked = bench.write_asking(yes.clone()).await;
                    let may_be_asked = on_failure == OnFailure::Ask && !code.always_denies();
                    assert_eq!(asked.item.status == Status::Completed, may_be_asked, "{what}, with a person");
                    assert_eq!(yes.questions().len(), usize::from(may_be_asked), "{what}, with a person");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn r10_no_failure_of_the_baseline_ends_in_a_call() {
    for code in FAULTS {
        let baseline: Arc<dyn ApprovalComponent> = Scripted::fails(code);
        let (bench, finished) = run(&consenting().baseline(baseline)).await;
        assert_not_run(&bench, &finished, &format!("{code:?} of the baseline"));
    }
}

#[tokio::test(start_paused = true)]
async fn no_failure_of_a_hook_before_the_call_ends_in_a_call() {
    for layer in LAYERS {
        for code in HOOK_FAULTS {
            let policies = consenting().hook(broken_hook(layer, HookEvent::PreToolUse, code));
            let (bench, finished) = run(&policies).await;
            assert_not_run(&bench, &finished, &format!("{code:?} in {layer:?}"));
            assert_eq!(failed(&finished).1, Code::HookFailed);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_failure_of_a_permission_hook_is_consent() {
    for layer in LAYERS {
        for code in HOOK_FAULTS {
            for on_failure in [HookFailureMeans::Block, HookFailureMeans::Continue] {
                let broken = broken_hook(layer, HookEvent::PermissionRequest, code);
                let asks = Scripted::says(ask("think", Remember::Never));
                let policies = Policies::new().with(LayerKind::Session, "asks", &asks).hook(BoundHook {
                    on_failure,
                    may_allow: true,
                    ..broken
                });
                let (bench, finished) = run(&policies).await;
                assert_not_run(&bench, &finished, &format!("{code:?} in {layer:?} with {on_failure:?}"));
                assert_eq!(failed(&finished).1, Code::NobodyToAsk);
            }
        }
    }
}

/// A reviewer that never answers.
struct Silent;

#[async_trait]
impl AutoReviewer for Silent {
    async fn review(&self, _request: &ReviewRequest) -> Result<String, NoReview> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn no_failure_of_a_reviewer_ends_in_a_call_or_in_a_question_to_a_person() {
    let failures: [(&str, Vec<Result<String, NoReview>>); 9] = [
        ("the transport", vec![Err(NoReview::Transient("reset".to_owned()))]),
        ("a refusal", vec![Err(NoReview::Failed("401".to_owned()))]),
        ("nobody", vec![Err(NoReview::Nobody("no sampling".to_owned()))]),
        ("an empty answer", vec![Ok(String::new())]),
        ("an essay", vec![Ok(format!("I think that {ALLOW} is right"))]),
        ("another type", vec![Ok(r#"{"outcome":true}"#.to_owned())]),
        ("a word of its own", vec![Ok(r#"{"outcome":"approve"}"#.to_owned())]),
        ("two keys of one name", vec![Ok(r#"{"outcome":"deny","outcome":"allow"}"#.to_owned())]),
        ("megabytes", vec![Ok(format!(r#"{{"outcome":"allow","rationale":"{}"}}"#, "x".repeat(4 << 20)))]),
    ];
    for layer in LAYERS {
        for (what, answers) in &failures {
            let judge = Judge::answers(answers.clone());
            let policies = Policies::new()
                .posture(LayerKind::User, |posture| posture.reviewer = Some(Answers::AutoReview))
                .with(LayerKind::Session, "asks", &Scripted::says(ask("think", Remember::Never)))
                .reviewer(judging(layer, &judge));
            let (bench, finished) = run(&policies).await;
            assert_not_run(&bench, &finished, &format!("{what} of a reviewer in {layer:?}"));
            let yes = Person::replying(&bench.journal, [allowed(Remember::Never)]);
            let again = bench.write_asking(yes.clone()).await;
            assert_not_run(&bench, &again, &format!("{what} of a reviewer in {layer:?}, with a person there"));
            assert!(yes.questions().is_empty(), "{what}: a person was asked in the reviewer's place");
        }
        let missing: Result<Arc<dyn AutoReviewer>, Fault> = Err(Fault::new(FaultCode::Missing, "no such file"));
        for (what, reviewer) in [("one that could not be loaded", missing), ("silence", Ok(Arc::new(Silent) as _))] {
            for strict in [false, true] {
                let bound = BoundReviewer { reviewer: reviewer.clone(), ..judging(layer, &Judge::says(ALLOW)) };
                let answers = |posture: &mut LayerPosture| {
                    (posture.reviewer, posture.strict_review) = (Some(Answers::AutoReview), Some(strict));
                };
                let (bench, finished) = run(&Policies::new().posture(LayerKind::User, answers).reviewer(bound)).await;
                assert_not_run(&bench, &finished, &format!("{what} of a reviewer in {layer:?}, strict: {strict}"));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn r15_all_failures_at_once_end_in_no_call() {
    let mut policies = consenting();
    for (layer, code) in LAYERS.into_iter().zip(FAULTS) {
        let fails = bound(layer, "fails", Scripted::fails(code));
        policies = policies.and(BoundComponent { on_failure: OnFailure::Ask, ..fails });
    }
    for (layer, code) in LAYERS.into_iter().zip(HOOK_FAULTS) {
        policies = policies.hook(broken_hook(layer, HookEvent::PermissionRequest, code));
        let before = broken_hook(layer, HookEvent::PreToolUse, code);
        policies = policies.hook(BoundHook { on_failure: HookFailureMeans::Continue, ..before });
    }
    let (bench, finished) = run(&policies).await;
    assert_not_run(&bench, &finished, "everything at once");
    assert_eq!(failed(&finished).1, Code::NobodyToAsk);
}
