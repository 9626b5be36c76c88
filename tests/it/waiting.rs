//! Whoever wants progress hears what a call waits for, whether that is a hook, an auto reviewer or a person (R21).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use portcullis::model::hook::{HookEvent, HookExit, HookFault};
use portcullis::model::layer::LayerKind;
use portcullis::model::posture::Reviewer as Answers;
use portcullis::model::verdict::Remember;
use portcullis::pipeline::CallRequest;
use portcullis::ports::hook::{BoundHook, HookProgram};
use portcullis::ports::review::{AutoReviewer, BoundReviewer, NoReview, ReviewRequest};
use portcullis::ports::reviewer::{Question, Reply, Reviewer};
use portcullis::ports::upstream::{Progress, ProgressSink, WaitsFor};

use crate::fakes::bench::Bench;
use crate::fakes::hook::{ScriptedHook, hook};
use crate::fakes::judge::{ALLOW, Judge, judging};
use crate::fakes::people::allowed;
use crate::fakes::policy::{Policies, Scripted, ask};

/// Takes 25 seconds, whatever it is.
struct Slow;

const LONG: Duration = Duration::from_secs(25);

#[async_trait]
impl HookProgram for Slow {
    async fn run(&self, _input: Arc<str>) -> Result<HookExit, HookFault> {
        tokio::time::sleep(LONG).await;
        Ok(HookExit { code: 0, stdout: String::new(), stderr: String::new() })
    }
}

#[async_trait]
impl AutoReviewer for Slow {
    async fn review(&self, _request: &ReviewRequest) -> Result<String, NoReview> {
        tokio::time::sleep(LONG).await;
        Ok(ALLOW.to_owned())
    }
}

#[async_trait]
impl Reviewer for Slow {
    async fn ask(&self, _question: &Question) -> Reply {
        tokio::time::sleep(LONG).await;
        allowed(Remember::Never)
    }
}

#[derive(Default)]
struct Told(Mutex<Vec<WaitsFor>>);

impl ProgressSink for Told {
    fn progress(&self, _progress: Progress) {}

    fn waiting(&self, waits_for: WaitsFor) {
        self.0.lock().push(waits_for);
    }
}

/// What is told of one call under these policies, by a person who is as slow as everybody.
async fn told(policies: Policies) -> Vec<WaitsFor> {
    let bench = Bench::new(&policies).await;
    let told = Arc::new(Told::default());
    let request = CallRequest {
        progress: Some(Arc::clone(&told) as _),
        reviewer: Arc::new(Slow),
        ..bench.request("files/write", "{}")
    };
    let finished = bench.pipeline.run(request).await;
    assert!(finished.item.failure().is_none(), "{:?}", finished.item.outcome);
    told.0.lock().clone()
}

fn asked() -> Policies {
    Policies::open(&["files"]).with(LayerKind::User, "care", &Scripted::says(ask("think", Remember::Session)))
}

fn slow(event: HookEvent) -> BoundHook {
    let quick = ScriptedHook::prints("");
    BoundHook { program: Ok(Arc::new(Slow)), ..hook(LayerKind::User, event, &quick) }
}

#[tokio::test(start_paused = true)]
async fn r21_a_slow_hook_before_or_after_the_call_is_told_of() {
    for event in [HookEvent::PreToolUse, HookEvent::PostToolUse] {
        assert_eq!(told(Policies::open(&["files"]).hook(slow(event))).await, [WaitsFor::Hooks; 2], "{event:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn r21_a_slow_hook_that_could_agree_is_told_of_and_then_the_person() {
    let all = told(asked().hook(slow(HookEvent::PermissionRequest))).await;
    assert_eq!(all, [WaitsFor::Hooks, WaitsFor::Hooks, WaitsFor::Person, WaitsFor::Person, WaitsFor::Person]);
}

#[tokio::test(start_paused = true)]
async fn r21_a_slow_auto_reviewer_is_told_of_and_a_quick_one_is_not() {
    let automatic = || Policies::new().posture(LayerKind::User, |posture| posture.reviewer = Some(Answers::AutoReview));
    let quick = judging(LayerKind::User, &Judge::says(ALLOW));
    let slow = BoundReviewer { reviewer: Ok(Arc::new(Slow)), ..quick.clone() };
    assert_eq!(told(automatic().reviewer(slow)).await, [WaitsFor::AutoReviewer; 2]);
    assert!(told(automatic().reviewer(quick)).await.is_empty());
}
