//! The auto reviewer through the whole pipeline: who is asked, what its answers come to, and that nothing replaces it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use portcullis::model::item::Status;
use portcullis::model::layer::LayerKind;
use portcullis::model::outcome::{Code, Stage};
use portcullis::model::posture::{ApprovalPolicy, Reviewer as Answers};
use portcullis::model::review::{Judgement, ReviewSaid};
use portcullis::model::verdict::{Ask, Remember, Reviewers, Verdict};
use portcullis::pipeline::consent::review::Breaker;
use portcullis::pipeline::{CallRequest, Finished, Would};
use portcullis::ports::recorder::Consent;
use portcullis::ports::review::{AutoReviewer, BoundReviewer, NoReview, ReviewRequest};
use portcullis::ports::reviewer::Reply;
use serde_json::json;

use crate::fakes::Gate;
use crate::fakes::bench::{Bench, failed, failure, said};
use crate::fakes::hook::{ScriptedHook, hook};
use crate::fakes::judge::{ALLOW, DENY, Judge, judging};
use crate::fakes::people::{Person, allowed};
use crate::fakes::policy::{Policies, Scripted, ask};
use crate::support::scripted_server;
use crate::support::served::Served;

/// The builtin ask, which the auto reviewer of the user's layer answers.
fn reviewed(judge: &Arc<Judge>) -> Policies {
    automatic().reviewer(judging(LayerKind::User, judge))
}

fn automatic() -> Policies {
    Policies::new().posture(LayerKind::User, |posture| posture.reviewer = Some(Answers::AutoReview))
}

fn strict() -> Policies {
    Policies::open(&["files"]).posture(LayerKind::User, |posture| posture.strict_review = Some(true))
}

fn ran(finished: &Finished) -> bool {
    finished.item.status == Status::Completed
}

#[tokio::test(start_paused = true)]
async fn g1_an_allow_lets_the_call_run_once_and_is_remembered_by_nobody() {
    let judge = Judge::says(ALLOW);
    let bench = Bench::new(&reviewed(&judge)).await;
    let request = || bench.request("files/write", r#"{"path":"a"}"#);
    assert!(ran(&bench.pipeline.run(request()).await));
    assert!(ran(&bench.pipeline.run(request()).await));
    assert_eq!(judge.actions().len(), 2);
    let action = &judge.actions()[0];
    assert_eq!((&action["tool"], &action["server"]), (&json!("mcp_tool_call"), &json!("files")));
    assert_eq!((&action["tool_name"], &action["arguments"]), (&json!("write"), &json!({ "path": "a" })));
    assert!(bench.purse.kept().is_empty());
    let record = &bench.tape.decisions()[0];
    assert!(matches!(&record.consent, Consent::Reviewed { source } if source.layer.kind() == LayerKind::User));
    let assessed = |said: &ReviewSaid| matches!(said, ReviewSaid::Assessed(a) if a.outcome == Judgement::Allow);
    assert!(assessed(&record.reviews[0].said) && assessed(&bench.tape.completed()[0].reviews[0].said));
}

#[tokio::test(start_paused = true)]
async fn g2_r30_a_denial_refuses_and_its_words_are_for_people_alone() {
    let judge = Judge::says(DENY);
    let bench = Bench::new(&reviewed(&judge)).await;
    let yes = Person::replying(&bench.journal, [allowed(Remember::Never)]);
    let finished = bench.write_asking(yes.clone()).await;
    assert_eq!(failed(&finished), (Stage::Approval, Code::ReviewDenied));
    assert!(yes.questions().is_empty(), "a person was asked after a denial");
    assert!(!said(&finished).contains("SECRET") && said(&finished).contains("do not try to reach the same"));
    assert!(failure(&finished).detail.as_ref().unwrap().contains("SECRET reasons"));
    assert_eq!(failure(&finished).origin.as_ref().unwrap().component, "judge");
    assert!(bench.files.handed().is_empty());
}

#[tokio::test(start_paused = true)]
async fn g4_g6_what_is_no_answer_refuses_with_a_code_of_its_own() {
    for (answer, code) in [
        (Err(NoReview::Failed("401".to_owned())), Code::ReviewFailed),
        (Ok("maybe".to_owned()), Code::ReviewFailed),
        (Err(NoReview::Nobody("no sampling".to_owned())), Code::NobodyToAsk),
    ] {
        let bench = Bench::new(&reviewed(&Judge::answers([answer]))).await;
        let yes = Person::replying(&bench.journal, [allowed(Remember::Never)]);
        assert_eq!(failed(&bench.write_asking(yes.clone()).await), (Stage::Approval, code));
        assert!(yes.questions().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn r12_an_ask_for_both_needs_both_and_the_reviewer_is_asked_first() {
    let Verdict::Ask(plain) = ask("both", Remember::Session) else { unreachable!() };
    let both = Scripted::says(Verdict::Ask(Ask { reviewers: Reviewers { person: true, auto: true }, ..plain }));
    for (answer, reply, outcome) in [
        (ALLOW, allowed(Remember::Never), None),
        (ALLOW, Reply::Declined, Some(Code::Declined)),
        (DENY, allowed(Remember::Never), Some(Code::ReviewDenied)),
    ] {
        let judge = Judge::says(answer);
        let policies =
            Policies::open(&["files"]).with(LayerKind::User, "both", &both).reviewer(judging(LayerKind::User, &judge));
        let bench = Bench::new(&policies).await;
        let person = Person::replying(&bench.journal, [reply]);
        let finished = bench.write_asking(person.clone()).await;
        assert_eq!(finished.item.failure().map(|failure| failure.code), outcome);
        assert_eq!(judge.actions().len(), 1);
        assert_eq!(person.questions().len(), usize::from(answer == ALLOW));
        if let Some(question) = person.questions().first() {
            assert_eq!(question.options, [Remember::Never], "what is reviewed is not remembered");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn r10_r12_strict_review_is_the_auto_reviewers_also_under_never() {
    for policy in [ApprovalPolicy::OnRequest, ApprovalPolicy::Never] {
        for (answer, outcome) in [(ALLOW, None), (DENY, Some(Code::ReviewDenied))] {
            let judge = Judge::says(answer);
            let set = strict()
                .posture(LayerKind::User, |posture| posture.policy = Some(policy))
                .reviewer(judging(LayerKind::User, &judge));
            let finished = Bench::new(&set).await.write().await;
            assert_eq!(finished.item.failure().map(|failure| failure.code), outcome, "under {policy:?}");
            assert_eq!(judge.actions().len(), 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn r12_neither_a_hook_nor_a_grant_nor_a_person_satisfies_strict_review() {
    let allows = ScriptedHook::prints(json!({ "hookSpecificOutput": {
        "hookEventName": "PermissionRequest", "decision": { "behavior": "allow" } } }));
    let event = portcullis::model::hook::HookEvent::PermissionRequest;
    let bench = Bench::new(&strict().hook(hook(LayerKind::Managed, event, &allows))).await;
    let yes = Person::replying(&bench.journal, [allowed(Remember::Always)]);
    assert_eq!(failed(&bench.write_asking(yes.clone()).await).1, Code::NobodyToAsk);
    assert!(yes.questions().is_empty() && bench.purse.kept().is_empty());
}

#[tokio::test(start_paused = true)]
async fn r22_a_reviewer_of_a_less_trusted_layer_than_whoever_asks_cannot_agree() {
    let asks = Scripted::says(ask("think", Remember::Session));
    let judge = Judge::says(ALLOW);
    let policies = automatic().with(LayerKind::Managed, "care", &asks).reviewer(judging(LayerKind::User, &judge));
    let finished = Bench::new(&policies).await.write().await;
    assert_eq!(failed(&finished).1, Code::NobodyToAsk);
    assert!(judge.actions().is_empty());
    let policies = automatic().with(LayerKind::Managed, "care", &asks).reviewer(judging(LayerKind::Managed, &judge));
    assert!(ran(&Bench::new(&policies).await.write().await));
}

#[tokio::test(start_paused = true)]
async fn r1_reviewers_of_all_layers_must_agree() {
    let (yes, no) = (Judge::says(ALLOW), Judge::says(DENY));
    let policies = automatic().reviewer(judging(LayerKind::Managed, &yes)).reviewer(judging(LayerKind::Project, &no));
    assert_eq!(failed(&Bench::new(&policies).await.write().await).1, Code::ReviewDenied);
    assert_eq!((yes.actions().len(), no.actions().len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_denial_may_be_appealed_where_the_reviewers_layer_says_so_and_the_person_reads_it() {
    for (reply, outcome) in [
        (allowed(Remember::Never), None),
        (Reply::Declined, Some(Code::Declined)),
        (Reply::Nobody, Some(Code::ReviewDenied)),
        (allowed(Remember::Session), Some(Code::Declined)),
    ] {
        let appealed = BoundReviewer { appeal: true, ..judging(LayerKind::User, &Judge::says(DENY)) };
        let bench = Bench::new(&automatic().reviewer(appealed)).await;
        let person = Person::replying(&bench.journal, [reply]);
        let finished = bench.write_asking(person.clone()).await;
        assert_eq!(finished.item.failure().map(|failure| failure.code), outcome);
        let question = person.questions().remove(0);
        assert!(question.denial.unwrap().contains("SECRET reasons"));
        assert_eq!(question.options, [Remember::Never]);
        assert!(!question.agreement.lasts);
    }
}

#[tokio::test(start_paused = true)]
async fn under_never_no_denial_is_appealed() {
    let appealed = BoundReviewer { appeal: true, ..judging(LayerKind::User, &Judge::says(DENY)) };
    let set = strict().posture(LayerKind::User, |posture| posture.policy = Some(ApprovalPolicy::Never));
    let bench = Bench::new(&set.reviewer(appealed)).await;
    let person = Person::replying(&bench.journal, [allowed(Remember::Never)]);
    assert_eq!(failed(&bench.write_asking(person.clone()).await).1, Code::ReviewDenied);
    assert!(person.questions().is_empty());
}

#[tokio::test(start_paused = true)]
async fn r40_three_denials_in_a_row_interrupt_once() {
    let bench = Bench::new(&reviewed(&Judge::says(DENY))).await;
    let breaker = bench.request("files/write", "{}").breaker;
    let mut interrupts = Vec::new();
    for _ in 0..5 {
        let request = CallRequest { breaker: Arc::clone(&breaker), ..bench.request("files/write", "{}") };
        interrupts.push(bench.pipeline.run(request).await.interrupts);
    }
    assert_eq!(interrupts, [false, false, true, false, false]);
}

#[tokio::test(start_paused = true)]
async fn r40_where_the_session_is_the_turn_what_interrupts_it_holds_for_every_later_call() {
    let judge = Judge::says(DENY);
    let bench = Bench::new(&reviewed(&judge)).await;
    let breaker: Arc<Breaker> = Arc::default();
    breaker.hold();
    let request = |target| CallRequest { breaker: Arc::clone(&breaker), ..bench.request(target, "{}") };
    for _ in 0..3 {
        assert_eq!(failed(&bench.pipeline.run(request("files/write")).await).1, Code::ReviewDenied);
    }
    let over = bench.pipeline.run(request("mail/send")).await;
    assert_eq!(failed(&over), (Stage::Approval, Code::Interrupted));
    assert!(said(&over).contains("stop") && said(&over).contains("new session"), "{}", said(&over));
    assert_eq!((bench.tape.started().len(), bench.tape.completed().len()), (4, 4), "it has its pair of items");
    let would = bench.pipeline.explain(request("files/write")).await.would;
    assert!(matches!(would, Would::Fail(failure) if failure.code == Code::Interrupted), "explain says something else");
    assert_eq!(judge.actions().len(), 3, "somebody was asked about a call that is not made");
    // Another session of the same host goes on.
    assert_eq!(failed(&bench.write().await).1, Code::ReviewDenied);
}

#[tokio::test(start_paused = true)]
async fn r40_a_denial_that_a_person_overrules_counts_for_nothing() {
    let appealed = BoundReviewer { appeal: true, ..judging(LayerKind::User, &Judge::says(DENY)) };
    let bench = Bench::new(&automatic().reviewer(appealed)).await;
    let breaker: Arc<Breaker> = Arc::default();
    breaker.hold();
    let run = async |reply| {
        let reviewer = Person::replying(&bench.journal, [reply]);
        let request = bench.request("files/write", "{}");
        bench.pipeline.run(CallRequest { breaker: Arc::clone(&breaker), reviewer, ..request }).await
    };
    for _ in 0..12 {
        let finished = run(allowed(Remember::Never)).await;
        assert!(ran(&finished) && !finished.interrupts);
    }
    for interrupts in [false, false, true] {
        assert_eq!(run(Reply::Declined).await.interrupts, interrupts);
    }
    assert_eq!(failed(&run(allowed(Remember::Never)).await).1, Code::Interrupted);
}

#[tokio::test]
async fn r40_serve_refuses_the_calls_of_an_interrupted_session_until_a_new_one() {
    let config = format!(
        "approvals_reviewer = \"auto_review\"\n[reviewer]\ntype = \"command\"\n\
         command = [\"/bin/sh\", \"-c\", 'echo \"{{\\\"outcome\\\":\\\"deny\\\"}}\"']\n[mcp_servers.s]\ncommand = {:?}\n",
        scripted_server()
    );
    let mut served = Served::greeted(&config, &[]).await;
    for expected in ["review-denied", "review-denied", "review-denied", "interrupted", "interrupted"] {
        assert_eq!(code_of_echo(&mut served).await, expected);
    }
    let mut served = served.killed_and_started_again().await;
    served.greet().await;
    assert_eq!(code_of_echo(&mut served).await, "review-denied");
}

async fn code_of_echo(served: &mut Served) -> serde_json::Value {
    let call = json!({ "name": "s__echo", "arguments": {} });
    served.request("call", "tools/call", &call.to_string()).await;
    served.answer(json!("call")).await["result"]["_meta"]["portcullis/refusal"]["code"].take()
}

#[tokio::test(start_paused = true)]
async fn r22_an_action_that_is_cut_is_put_to_nobody_and_refused() {
    let judge = Judge::says(ALLOW);
    let bench = Bench::new(&reviewed(&judge)).await;
    let arguments = json!({ "text": "x".repeat(2 << 20) }).to_string();
    let finished = bench.pipeline.run(bench.request("files/write", &arguments)).await;
    assert_eq!(failed(&finished).1, Code::ReviewFailed);
    assert!(judge.actions().is_empty());
}

#[tokio::test(start_paused = true)]
async fn r3_a_project_cannot_put_its_own_reviewer_in_a_persons_place() {
    let judge = Judge::says(ALLOW);
    let policies = Policies::new()
        .posture(LayerKind::Project, |posture| posture.reviewer = Some(Answers::AutoReview))
        .reviewer(judging(LayerKind::Project, &judge));
    let bench = Bench::new(&policies).await;
    let no = Person::replying(&bench.journal, [Reply::Declined]);
    assert_eq!(failed(&bench.write_asking(no.clone()).await).1, Code::Declined);
    assert_eq!((no.questions().len(), judge.actions().len()), (1, 0));
    // Where the user wants reviews, the project's reviewer does not do for them either.
    let bench = Bench::new(&automatic().reviewer(judging(LayerKind::Project, &judge))).await;
    assert_eq!(failed(&bench.write().await).1, Code::NobodyToAsk);
}

#[tokio::test(start_paused = true)]
async fn r1_a_denial_is_appealed_only_where_every_reviewer_lets_it_be() {
    let appealed = BoundReviewer { appeal: true, ..judging(LayerKind::Managed, &Judge::says(DENY)) };
    let firm = judging(LayerKind::User, &Judge::says(ALLOW));
    let bench = Bench::new(&automatic().reviewer(appealed).reviewer(firm)).await;
    let yes = Person::replying(&bench.journal, [allowed(Remember::Never)]);
    assert_eq!(failed(&bench.write_asking(yes.clone()).await).1, Code::ReviewDenied);
    assert!(yes.questions().is_empty());
}

/// A reviewer that is asked and never answers.
struct Silent(Arc<Gate>);

#[async_trait]
impl AutoReviewer for Silent {
    async fn review(&self, _request: &ReviewRequest) -> Result<String, NoReview> {
        self.0.pass().await;
        Err(NoReview::Nobody("the gate is never opened".to_owned()))
    }
}

#[tokio::test(start_paused = true)]
async fn g5_l18_a_call_that_is_cancelled_while_it_is_reviewed_gets_its_pair_and_is_not_sent() {
    let gate = Gate::closed();
    let silent = BoundReviewer {
        reviewer: Ok(Arc::new(Silent(Arc::clone(&gate)))),
        ..judging(LayerKind::User, &Judge::says(ALLOW))
    };
    let bench = Bench::new(&automatic().reviewer(silent)).await;
    let request = bench.request("files/write", "{}");
    let cancel = request.cancel.clone();
    let running = bench.spawn(request);
    gate.reached(1).await;
    cancel.cancel();
    let finished = running.await.unwrap();
    assert_eq!(failed(&finished), (Stage::Approval, Code::Cancelled));
    assert_eq!((bench.tape.started().len(), bench.tape.completed().len()), (1, 1));
    assert!(bench.files.handed().is_empty());
}

/// A reviewer that lets the first action wait, then allows it, and denies all others.
struct FirstWaits(Arc<Gate>, AtomicBool);

#[async_trait]
impl AutoReviewer for FirstWaits {
    async fn review(&self, _request: &ReviewRequest) -> Result<String, NoReview> {
        if self.1.swap(false, Ordering::SeqCst) {
            self.0.pass().await;
            return Ok(ALLOW.to_owned());
        }
        Ok(DENY.to_owned())
    }
}

#[tokio::test(start_paused = true)]
async fn r40_what_is_allowed_after_the_interruption_is_not_sent_either() {
    let gate = Gate::closed();
    let reviewer = FirstWaits(Arc::clone(&gate), AtomicBool::new(true));
    let bound = BoundReviewer { reviewer: Ok(Arc::new(reviewer)), ..judging(LayerKind::User, &Judge::says(ALLOW)) };
    let bench = Bench::new(&automatic().reviewer(bound)).await;
    let breaker = Arc::new(Breaker::default());
    breaker.hold();
    let request = || CallRequest { breaker: Arc::clone(&breaker), ..bench.request("files/write", "{}") };
    let first = bench.spawn(request());
    gate.reached(1).await;
    for _ in 0..3 {
        assert_eq!(failed(&bench.pipeline.run(request()).await).1, Code::ReviewDenied);
    }
    gate.open();
    assert_eq!(failed(&first.await.unwrap()), (Stage::Approval, Code::Interrupted));
    assert!(bench.files.handed().is_empty());
}
