//! Consent through the whole pipeline: who may let a call run, what is remembered, what a model reads of it.

use std::sync::Arc;
use std::time::Duration;

use portcullis::model::caller::Caller;
use portcullis::model::item::Status;
use portcullis::model::layer::LayerKind;
use portcullis::model::outcome::{Code, Stage};
use portcullis::model::posture::{ApprovalMode, ApprovalPolicy, Channel, Profile, Reviewer as Answers};
use portcullis::model::tool::Plugin;
use portcullis::model::verdict::{FaultCode, OnFailure, Refusal, Remember, Verdict};
use portcullis::pipeline::{CallRequest, Finished, Would};
use portcullis::ports::approval::BoundComponent;
use portcullis::ports::grants::{Grant, Grants as _};
use portcullis::ports::recorder::Consent;
use portcullis::ports::reviewer::Reply;
use proptest::prelude::*;

use crate::fakes::Gate;
use crate::fakes::bench::{ASK_DEADLINE, Bench, failed, failure, said};
use crate::fakes::people::{Person, allowed};
use crate::fakes::policy::{Policies, Scripted, allow, ask, bound, deny, reason, source};
use crate::fakes::server::{How, OK, tool, tool_with};

fn ran(finished: &Finished) -> bool {
    finished.item.status == Status::Completed
}

fn on_failure(layer: LayerKind, code: FaultCode, on_failure: OnFailure) -> BoundComponent {
    BoundComponent { on_failure, ..bound(layer, "broken", Scripted::fails(code)) }
}

async fn yes(bench: &Bench, remember: Remember) -> Arc<Person> {
    Person::replying(&bench.journal, [allowed(remember)])
}

#[tokio::test(start_paused = true)]
async fn r17_an_agreement_for_the_session_covers_the_next_call() {
    let bench = Bench::new(&Policies::new()).await;
    let person = yes(&bench, Remember::Session).await;
    assert!(ran(&bench.write_asking(person.clone()).await));
    assert!(ran(&bench.write_asking(person.clone()).await));
    assert_eq!(person.questions().len(), 1);
    let grant = bench.purse.kept().remove(0);
    assert_eq!(bench.tape.decisions()[1].consent, Consent::Grant { id: grant.id });
    assert_eq!((grant.scope, grant.approver.as_str()), (Remember::Session, "ann"));
}

#[tokio::test(start_paused = true)]
async fn an_agreement_for_this_call_covers_no_other() {
    let bench = Bench::new(&Policies::new()).await;
    let person = yes(&bench, Remember::Never).await;
    assert!(ran(&bench.write_asking(person.clone()).await));
    assert!(ran(&bench.write_asking(person.clone()).await));
    assert_eq!(person.questions().len(), 2);
    assert!(bench.purse.kept().is_empty());
}

#[tokio::test(start_paused = true)]
async fn r17_a_grant_covers_no_other_tool_caller_or_definition() {
    let bench = Bench::new(&Policies::new()).await;
    bench.write_asking(yes(&bench, Remember::Session).await).await;
    assert_eq!(failed(&bench.pipeline.run(bench.request("files/read", "{}")).await).1, Code::NobodyToAsk);
    let bob = CallRequest { caller: Caller::local("bob"), ..bench.request("files/write", "{}") };
    assert_eq!(failed(&bench.pipeline.run(bob).await).1, Code::NobodyToAsk);
    assert!(ran(&bench.write().await));
    bench.redefine(&bench.files, vec![tool_with("write", r#"{"title":"Write"}"#), tool("read")]).await;
    assert_eq!(failed(&bench.write().await).1, Code::NobodyToAsk);
}

#[tokio::test(start_paused = true)]
async fn r17_a_grant_does_not_cover_an_ask_that_it_did_not_answer() {
    let bench = Bench::new(&Policies::new()).await;
    bench.write_asking(yes(&bench, Remember::Session).await).await;
    let more = Scripted::says(ask("also", Remember::Session));
    bench.decide_by(&Policies::new().with(LayerKind::Managed, "more", &more)).await;
    assert_eq!(failed(&bench.write().await).1, Code::NobodyToAsk);
}

#[tokio::test(start_paused = true)]
async fn r17_a_grant_satisfies_no_deny() {
    let bench = Bench::new(&Policies::new()).await;
    bench.write_asking(yes(&bench, Remember::Session).await).await;
    let no = Scripted::says(deny("no"));
    bench.decide_by(&Policies::new().with(LayerKind::Project, "no", &no)).await;
    assert_eq!(failed(&bench.write().await).1, Code::Denied);
}

#[tokio::test(start_paused = true)]
async fn r17_bound_arguments_must_be_the_same() {
    let binding = Scripted::by(|_, _| {
        let Verdict::Ask(mut asked) = ask("exact", Remember::Session) else { unreachable!() };
        asked.bind_arguments = true;
        Ok(Verdict::Ask(asked))
    });
    let bench = Bench::new(&Policies::open(&["files"]).with(LayerKind::User, "exact", &binding)).await;
    let reviewer = yes(&bench, Remember::Session).await;
    let with = |arguments| bench.request("files/write", arguments);
    bench.pipeline.run(CallRequest { reviewer, ..with(r#"{"path":"a","n":1}"#) }).await;
    assert!(ran(&bench.pipeline.run(with(r#"{"n":1,"path":"a"}"#)).await), "the order of keys counted");
    assert_eq!(failed(&bench.pipeline.run(with(r#"{"path":"b","n":1}"#)).await).1, Code::NobodyToAsk);
}

#[tokio::test(start_paused = true)]
async fn u1_never_refuses_what_needs_asking_and_asks_nobody() {
    let set = Policies::new().posture(LayerKind::User, |posture| posture.policy = Some(ApprovalPolicy::Never));
    let bench = Bench::new(&set).await;
    let person = yes(&bench, Remember::Never).await;
    let finished = bench.write_asking(person.clone()).await;
    assert_eq!(failed(&finished), (Stage::Approval, Code::NeverAsks));
    assert!(said(&finished).contains("approval policy is `never`"), "{}", said(&finished));
    assert!(person.questions().is_empty());
}

#[tokio::test(start_paused = true)]
async fn u1_a_remembered_grant_satisfies_an_ask_under_never() {
    let bench = Bench::new(&Policies::new()).await;
    bench.write_asking(yes(&bench, Remember::Session).await).await;
    let never = Policies::new().posture(LayerKind::User, |posture| posture.policy = Some(ApprovalPolicy::Never));
    bench.decide_by(&never).await;
    // The ask is another one now: it comes from the user's posture, not from the builtin one.
    assert_eq!(failed(&bench.write().await).1, Code::NeverAsks);
    let on_request =
        Policies::new().posture(LayerKind::User, |posture| posture.policy = Some(ApprovalPolicy::OnRequest));
    bench.decide_by(&on_request).await;
    bench.write_asking(yes(&bench, Remember::Session).await).await;
    bench.decide_by(&never).await;
    assert!(ran(&bench.write().await));
}

#[tokio::test(start_paused = true)]
async fn r2_never_of_a_less_trusted_layer_counts_too() {
    let set = Policies::new()
        .posture(LayerKind::Managed, |posture| posture.policy = Some(ApprovalPolicy::OnRequest))
        .posture(LayerKind::Project, |posture| posture.policy = Some(ApprovalPolicy::Never));
    let bench = Bench::new(&set).await;
    assert_eq!(failed(&bench.write_asking(yes(&bench, Remember::Never).await).await).1, Code::NeverAsks);
}

#[tokio::test(start_paused = true)]
async fn r12_strict_review_needs_an_auto_reviewer_and_without_one_nobody_is_asked() {
    for policy in [ApprovalPolicy::OnRequest, ApprovalPolicy::Never] {
        let set = Policies::open(&["files"]).posture(LayerKind::User, |posture| {
            (posture.strict_review, posture.policy) = (Some(true), Some(policy));
        });
        let bench = Bench::new(&set).await;
        let person = yes(&bench, Remember::Never).await;
        let finished = bench.write_asking(person.clone()).await;
        assert_eq!(failed(&finished), (Stage::Approval, Code::NobodyToAsk), "under {policy:?}");
        assert!(person.questions().is_empty(), "a person was asked in the auto reviewer's place");
    }
}

#[tokio::test(start_paused = true)]
async fn r12_the_auto_reviewer_is_asked_where_it_is_configured_but_never_under_untrusted() {
    for (policy, code) in [(ApprovalPolicy::OnRequest, Some(Code::NobodyToAsk)), (ApprovalPolicy::Untrusted, None)] {
        let set = Policies::new().posture(LayerKind::User, |posture| {
            (posture.policy, posture.reviewer) = (Some(policy), Some(Answers::AutoReview));
        });
        let bench = Bench::new(&set).await;
        let finished = bench.write_asking(yes(&bench, Remember::Never).await).await;
        assert_eq!(finished.item.failure().map(|failure| failure.code), code, "under {policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn r20_an_option_that_was_not_offered_is_a_decline() {
    let asks = Scripted::says(ask("think", Remember::Session));
    let bench = Bench::new(&Policies::open(&["files"]).with(LayerKind::User, "care", &asks)).await;
    let person = yes(&bench, Remember::Always).await;
    assert_eq!(failed(&bench.write_asking(person.clone()).await), (Stage::Approval, Code::Declined));
    assert_eq!(person.questions()[0].options, [Remember::Never, Remember::Session]);
    assert!(bench.purse.kept().is_empty());
}

#[tokio::test(start_paused = true)]
async fn r22_a_question_whose_arguments_were_cut_says_so_and_offers_no_remembering() {
    let bench = Bench::new(&Policies::new()).await;
    let person = yes(&bench, Remember::Session).await;
    let arguments = format!(r#"{{"text":"{}"}}"#, "x".repeat(5_000));
    let request = || CallRequest { reviewer: person.clone(), ..bench.request("files/write", &arguments) };
    let explained = bench.pipeline.explain(request()).await;
    assert_eq!(failed(&bench.pipeline.run(request()).await).1, Code::Declined);
    let question = person.questions().remove(0);
    assert!(question.cut && question.arguments.ends_with('…'));
    assert_eq!(question.options, [Remember::Never]);
    assert!(matches!(explained.would, Would::Ask { options, .. } if options == question.options), "R38");
}

#[tokio::test(start_paused = true)]
async fn a_person_reads_the_arguments_with_sorted_keys_and_plain_numbers() {
    let bench = Bench::new(&Policies::new()).await;
    let reviewer = yes(&bench, Remember::Never).await;
    let arguments = r#"{"to":"\u202ebob","amount":1200,"rate":1.50}"#;
    bench.pipeline.run(CallRequest { reviewer: reviewer.clone(), ..bench.request("files/write", arguments) }).await;
    let shown = reviewer.questions().remove(0).arguments;
    assert_eq!(shown, r#"{"amount":1200,"rate":1.5,"to":"\u{202e}bob"}"#);
}

#[tokio::test(start_paused = true)]
async fn nobody_there_is_an_outcome_of_its_own() {
    let bench = Bench::new(&Policies::new()).await;
    let finished = bench.write().await;
    assert_eq!(failed(&finished), (Stage::Approval, Code::NobodyToAsk));
    assert!(said(&finished).contains("nobody could be asked"), "{}", said(&finished));
}

#[tokio::test(start_paused = true)]
async fn an_ask_expires_at_its_deadline() {
    let bench = Bench::new(&Policies::new()).await;
    let person = Person::replying(&bench.journal, [allowed(Remember::Never)]).at(&Gate::closed());
    let finished = bench.write_asking(person.clone()).await;
    assert_eq!(failed(&finished), (Stage::Approval, Code::AskExpired));
    assert_eq!((finished.item.durations.wall, finished.item.durations.call), (ASK_DEADLINE, Duration::ZERO));
    assert_eq!(person.questions()[0].deadline, ASK_DEADLINE);
}

#[tokio::test(start_paused = true)]
async fn concurrent_questions_have_ids_of_their_own() {
    let bench = Bench::new(&Policies::new()).await;
    let person = yes(&bench, Remember::Never).await;
    let call = || bench.write_asking(person.clone());
    let (one, two) = tokio::join!(call(), call());
    assert!(ran(&one) && ran(&two));
    let asked = person.questions();
    assert_ne!(asked[0].id, asked[1].id);
}

#[tokio::test(start_paused = true)]
async fn r14_a_failure_under_deny_refuses_and_asks_nobody() {
    let set = Policies::open(&["files"]).and(on_failure(LayerKind::User, FaultCode::Deadline, OnFailure::Deny));
    let bench = Bench::new(&set).await;
    let person = yes(&bench, Remember::Never).await;
    assert_eq!(failed(&bench.write_asking(person.clone()).await).1, Code::ComponentFailed);
    assert!(person.questions().is_empty());
}

#[tokio::test(start_paused = true)]
async fn r14_a_failure_under_ask_is_asked_about_again_next_time() {
    let set = Policies::open(&["files"]).and(on_failure(LayerKind::User, FaultCode::Deadline, OnFailure::Ask));
    let bench = Bench::new(&set).await;
    let person = yes(&bench, Remember::Never).await;
    assert!(ran(&bench.write_asking(person.clone()).await));
    assert!(ran(&bench.write_asking(person.clone()).await));
    let questions = person.questions();
    assert_eq!(questions.len(), 2);
    assert!(questions.iter().all(|question| question.options == [Remember::Never]), "remembering was offered");
    assert!(bench.purse.kept().is_empty());
}

#[tokio::test(start_paused = true)]
async fn r14_a_component_that_is_not_the_one_that_was_meant_refuses_whatever_on_failure_says() {
    for code in [FaultCode::Digest, FaultCode::Missing, FaultCode::Settings, FaultCode::WrongVersion] {
        let fault = portcullis::model::verdict::Fault::new(code, "x");
        let broken = BoundComponent {
            component: Err(fault),
            on_failure: OnFailure::Ask,
            ..bound(LayerKind::Project, "broken", Scripted::says(Verdict::Abstain))
        };
        let bench = Bench::new(&Policies::open(&["files"]).and(broken)).await;
        let finished = bench.write_asking(yes(&bench, Remember::Never).await).await;
        assert_eq!(failed(&finished).1, Code::ComponentFailed, "for {code}");
    }
}

#[tokio::test(start_paused = true)]
async fn r10_a_failure_of_the_baseline_refuses() {
    let set = Policies::open(&["files"]).baseline(Scripted::fails(FaultCode::Trap));
    let bench = Bench::new(&set).await;
    assert_eq!(failed(&bench.write().await).1, Code::ComponentFailed);
}

#[tokio::test(start_paused = true)]
async fn r3_r11_an_allow_lifts_the_builtin_ask_only_from_a_layer_that_may() {
    for (layer, runs) in [(LayerKind::User, true), (LayerKind::Managed, true), (LayerKind::Project, false)] {
        let yes = Scripted::says(allow("fine"));
        let bench = Bench::new(&Policies::new().with(layer, "yes", &yes)).await;
        assert_eq!(ran(&bench.write().await), runs, "for {layer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn r11_an_allow_does_not_lift_the_ask_of_a_more_trusted_layers_posture() {
    for (origin, runs) in [(LayerKind::Managed, false), (LayerKind::User, true)] {
        let yes = Scripted::says(allow("fine"));
        let set = Policies::new().mode(origin, "files", ApprovalMode::Prompt).with(LayerKind::User, "yes", &yes);
        let bench = Bench::new(&set).await;
        assert_eq!(ran(&bench.write().await), runs, "against a prompt of {origin:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_allow_lifts_no_ask_and_no_deny_of_another_component() {
    let yes = Scripted::says(allow("fine"));
    for (said, code) in [(ask("think", Remember::Session), Code::NobodyToAsk), (deny("no"), Code::Denied)] {
        let set = Policies::new().with(LayerKind::Managed, "yes", &yes);
        let bench = Bench::new(&set.with(LayerKind::Project, "other", &Scripted::says(said))).await;
        assert_eq!(failed(&bench.write().await).1, code);
    }
}

#[tokio::test(start_paused = true)]
async fn r8_a_layer_that_could_not_be_read_refuses_every_call() {
    let refusal = Refusal { source: source(LayerKind::System, "host"), reason: reason("unreadable"), fault: None };
    let bench = Bench::new(&Policies::open(&["files", "mail"]).refusing(refusal)).await;
    for target in ["files/write", "files/read", "mail/send"] {
        let finished = bench.pipeline.run(bench.request(target, "{}")).await;
        assert_eq!(failed(&finished), (Stage::Approval, Code::Denied));
        assert_eq!(failure(&finished).origin.as_ref().unwrap().layer.kind(), LayerKind::System);
    }
}

#[tokio::test(start_paused = true)]
async fn r30_nothing_that_a_component_wrote_reaches_the_model() {
    let replies = [Reply::Declined, Reply::Cancelled, Reply::Nobody];
    let sets = [
        Policies::open(&["files"]).with(LayerKind::User, "c", &Scripted::says(deny("a-rule"))),
        Policies::open(&["files"]).with(LayerKind::User, "c", &Scripted::says(ask("a-rule", Remember::Session))),
        Policies::open(&["files"]).with(LayerKind::User, "c", &Scripted::fails(FaultCode::Trap)),
        Policies::open(&["files"]).and(on_failure(LayerKind::User, FaultCode::Trap, OnFailure::Ask)),
    ];
    for set in sets {
        for reply in &replies {
            let bench = Bench::new(&set).await;
            let person = Person::replying(&bench.journal, [reply.clone()]);
            let finished = bench.write_asking(person).await;
            assert!(!ran(&finished));
            let model = serde_json::to_string(finished.clean.result().value()).unwrap();
            assert!(!model.contains("SECRET"), "the model reads {model}");
            assert!(failure(&finished).detail.as_ref().unwrap().contains("SECRET"), "people do not read the reason");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_most_trusted_refusal_is_the_one_that_is_named() {
    let set = Policies::open(&["files"]).with(LayerKind::Project, "small", &Scripted::says(deny("small-no"))).with(
        LayerKind::Managed,
        "big",
        &Scripted::says(deny("big-no")),
    );
    let bench = Bench::new(&set).await;
    let finished = bench.write().await;
    let text = "MCP tool call `files/write` was refused by policy (managed/big, rule big-no)";
    assert_eq!(said(&finished), text);
}

#[tokio::test(start_paused = true)]
async fn r9_hints_that_relax_count_only_where_the_servers_layer_may_allow() {
    for (may_relax, runs) in [(true, true), (false, false)] {
        let bench = Bench::new(&Policies::new()).await;
        bench.files.define(vec![tool_with("write", r#"{"readOnlyHint":true}"#)]);
        bench.connect(&bench.files);
        bench.change(&bench.files, |published| published.view.may_relax = may_relax);
        bench.publish().await;
        assert_eq!(ran(&bench.write().await), runs, "may_relax = {may_relax}");
    }
}

#[derive(Debug, Clone, Copy)]
enum Says {
    Abstain,
    Allow,
    Ask,
    Deny,
    Fault,
}

/// One component of one layer: what it says, and what its failure means.
fn components() -> impl Strategy<Value = Vec<(LayerKind, Says, OnFailure)>> {
    use LayerKind::{Managed, Organisation, Project, Session, User};
    let layer = prop::sample::select(vec![Managed, Organisation, User, Session, Project]);
    let says = prop::sample::select(vec![Says::Abstain, Says::Allow, Says::Ask, Says::Deny, Says::Fault]);
    let failing = prop::sample::select(vec![OnFailure::Ask, OnFailure::Deny]);
    prop::collection::vec((layer, says, failing), 0..4)
}

fn set_of(components: &[(LayerKind, Says, OnFailure)], policy: ApprovalPolicy, mode: ApprovalMode) -> Policies {
    let posture = Policies::new()
        .posture(LayerKind::User, |posture| {
            (posture.policy, posture.profile) = (Some(policy), Some(Profile::Workspace))
        })
        .mode(LayerKind::User, "files", mode);
    components.iter().enumerate().fold(posture, |set, (index, (layer, says, on_failure))| {
        let component = match says {
            Says::Abstain => Scripted::says(Verdict::Abstain),
            Says::Allow => Scripted::says(allow("yes")),
            Says::Ask => Scripted::says(ask("think", Remember::Session)),
            Says::Deny => Scripted::says(deny("no")),
            Says::Fault => Scripted::fails(FaultCode::Fuel),
        };
        set.and(BoundComponent { on_failure: *on_failure, ..bound(*layer, &format!("c{index}"), component) })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn r38_explaining_says_what_calling_does(
        components in components(),
        policy in prop::sample::select(vec![ApprovalPolicy::OnRequest, ApprovalPolicy::Never, ApprovalPolicy::Untrusted]),
        mode in prop::sample::select(vec![ApprovalMode::Approve, ApprovalMode::Auto, ApprovalMode::Prompt]),
        remembered: bool,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let bench = Bench::new(&set_of(&components, policy, mode)).await;
            let person = yes(&bench, Remember::Session).await;
            if remembered {
                bench.write_asking(person.clone()).await;
            }
            let asked_before = person.questions().len();
            let explained = bench.pipeline.explain(bench.request("files/write", "{}")).await;
            let sent_before = bench.files.handed().len();
            let finished = bench.write_asking(person.clone()).await;
            let asked = person.questions().split_off(asked_before);
            match explained.would {
                Would::Run { .. } => {
                    assert!(ran(&finished) && asked.is_empty());
                    assert_eq!(explained.decision, finished.decision);
                }
                Would::Ask { options, .. } => assert_eq!(asked[0].options, options),
                Would::Fail(failure) => {
                    assert_eq!(Some(&failure), finished.item.failure());
                    assert_eq!(explained.decision, finished.decision);
                    assert!(asked.is_empty());
                }
            }
            assert_eq!(bench.files.handed().len() - sent_before, usize::from(ran(&finished)));
        });
    }
}

/// What a person is offered, in the words of approval-results 4.
async fn offered(bench: &Bench) -> Vec<Remember> {
    let person = Person::replying(&bench.journal, [Reply::Declined]);
    bench.write_asking(person.clone()).await;
    person.questions()[0].options.clone()
}

#[tokio::test(start_paused = true)]
async fn m1_to_m8_what_is_offered_to_be_remembered_and_when() {
    use Remember::{Always, Never, Session};
    // M2 to M5: a plain server's tool, wherever it is defined: what is agreed to is a grant and changes no layer.
    let plain = Bench::new(&Policies::new()).await;
    assert_eq!(offered(&plain).await, [Never, Session, Always], "M2 to M5");
    // M1: a tool of an App whose connector is known; its account is part of what the grant binds.
    let app = Bench::new(&Policies::new()).await;
    app.link("calendar").await;
    assert_eq!(offered(&app).await, [Never, Session, Always], "M1");
    // M6: a server that a plugin provides.
    let plugin = Bench::new(&Policies::new()).await;
    let kit = Plugin { id: "kit".to_owned(), name: "Kit".to_owned() };
    plugin.change(&plugin.files, |published| published.view.plugin = Some(kit));
    plugin.publish().await;
    assert_eq!(offered(&plugin).await, [Never, Session], "M6");
    // M8: a tool of the Apps server whose connector nobody knows.
    let unknown = Bench::new(&Policies::new()).await;
    unknown.link_tool("read", "calendar").await;
    assert_eq!(offered(&unknown).await, [Never], "M8");
}

#[tokio::test(start_paused = true)]
async fn m7_r17_an_agreement_that_cannot_be_kept_lets_the_call_run_once_and_the_record_says_so() {
    let bench = Bench::new(&Policies::new()).await;
    bench.purse.fail();
    let person = yes(&bench, Remember::Always).await;
    assert!(ran(&bench.write_asking(person.clone()).await));
    let consent = &bench.tape.decisions()[0].consent;
    assert!(matches!(consent, Consent::Agreed { not_remembered: true, .. }), "{consent:?}");
    assert!(ran(&bench.write_asking(person.clone()).await));
    assert_eq!(person.questions().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn r17_an_agreement_that_holds_always_covers_another_session_and_one_for_the_session_does_not() {
    for (scope, covers) in [(Remember::Always, true), (Remember::Session, false)] {
        let bench = Bench::new(&Policies::new()).await;
        bench.write_asking(yes(&bench, scope).await).await;
        let caller = Caller { session: portcullis::model::caller::SessionId::new("another"), ..bench.caller.clone() };
        let later = CallRequest { caller, ..bench.request("files/write", "{}") };
        assert_eq!(ran(&bench.pipeline.run(later).await), covers, "{scope:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn r17_an_agreement_for_one_call_is_used_up_at_the_hand_over_and_by_one_call_alone() {
    let bench = Bench::new(&Policies::new()).await;
    bench.write_asking(yes(&bench, Remember::Session).await).await;
    let kept = bench.purse.kept().remove(0);
    let arguments = portcullis::model::arguments::Arguments::none().digest();
    let once = Grant { id: "once".to_owned(), scope: Remember::Never, arguments: Some(arguments), ..kept.clone() };
    bench.purse.forget(&kept.id);
    bench.purse.store(once.clone()).unwrap();
    // Other arguments are not what it was given for.
    let other = bench.pipeline.run(bench.request("files/write", r#"{"path":"b"}"#)).await;
    assert_eq!(failed(&other).1, Code::NobodyToAsk);
    // A call that is not sent leaves it.
    bench.files.answers(How::Full);
    assert_eq!(failed(&bench.write().await).1, Code::NotSent);
    assert_eq!(bench.purse.kept(), [once]);
    bench.files.answers(How::Result(OK));
    assert!(ran(&bench.write().await));
    assert!(bench.purse.kept().is_empty());
    assert_eq!(failed(&bench.write().await).1, Code::NobodyToAsk);
}

#[tokio::test(start_paused = true)]
async fn r38_explaining_says_which_agreements_match_and_why_others_do_not() {
    let bench = Bench::new(&Policies::new()).await;
    let explain = || bench.pipeline.explain(bench.request("files/write", "{}"));
    assert!(explain().await.grants.is_empty());
    bench.write_asking(yes(&bench, Remember::Session).await).await;
    let explained = explain().await;
    assert_eq!(explained.grants.len(), 1);
    assert!(explained.grants[0].why_not.is_empty(), "{:?}", explained.grants);

    let more = Scripted::says(ask("also", Remember::Never));
    bench.decide_by(&Policies::new().with(LayerKind::Managed, "more", &more)).await;
    bench.redefine(&bench.files, vec![tool_with("write", r#"{"title":"Write"}"#), tool("read")]).await;
    let why = explain().await.grants.remove(0).why_not.join("; ");
    for part in ["definition has changed", "asks now who was not asked then", "agree for as long"] {
        assert!(why.contains(part), "{part}: {why}");
    }
    assert!(!why.contains("another session"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn r20_a_layer_names_who_may_answer_what_it_asks() {
    let asks = Scripted::says(ask("think", Remember::Session));
    let only = |channel| {
        Policies::open(&["files"])
            .with(LayerKind::Managed, "care", &asks)
            .posture(LayerKind::Managed, |posture| posture.channels = Some([channel].into()))
    };
    // This person answers by the program that embeds the host.
    for (channel, code) in [(Channel::Program, None), (Channel::Queue, Some(Code::Declined))] {
        let bench = Bench::new(&only(channel)).await;
        let person = yes(&bench, Remember::Never).await;
        let finished = bench.write_asking(person.clone()).await;
        assert_eq!(finished.item.failure().map(|failure| failure.code), code, "{channel:?}");
        assert_eq!(person.questions()[0].channels, [channel].into());
    }
    // What another layer asks, the managed layer's word does not bind.
    let users = Policies::open(&["files"])
        .with(LayerKind::User, "care", &asks)
        .posture(LayerKind::Managed, |posture| posture.channels = Some([Channel::Queue].into()));
    let bench = Bench::new(&users).await;
    assert!(ran(&bench.write_asking(yes(&bench, Remember::Never).await).await));
}
