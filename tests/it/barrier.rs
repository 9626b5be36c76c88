//! The revision barrier and the lease: what makes a prepared call stale, what has it decided again, what delays nobody.

use std::sync::{Arc, OnceLock};

use futures::FutureExt as _;
use portcullis::model::arguments::Arguments;
use portcullis::model::digest::Digest;
use portcullis::model::evidence::Evidence;
use portcullis::model::item::Status;
use portcullis::model::layer::LayerKind;
use portcullis::model::name::{CallId, ToolRef};
use portcullis::model::outcome::{Code, Stage};
use portcullis::model::verdict::{FaultCode, OnFailure, Remember, Reviewers, Verdict};
use portcullis::pipeline::CallRequest;
use portcullis::pipeline::admit::leases::DRAIN;
use portcullis::pipeline::bind::noted::{Noted, Stated};
use portcullis::pipeline::bind::people::People;
use portcullis::pipeline::bind::prepare::prepare;
use portcullis::pipeline::consent::agree::{Agreed, Askable};
use portcullis::pipeline::consent::approve::{Approvers, approve};
use portcullis::pipeline::consent::review::Breaker;
use portcullis::pipeline::dispatch::memory::{Marking, ThreadMemory};
use portcullis::pipeline::dispatch::meta::TurnInfo;
use portcullis::pipeline::dispatch::{barrier, call, files};
use portcullis::ports::approval::BoundComponent;
use portcullis::ports::recorder::{Consent, DecisionRecord};
use portcullis::ports::reviewer::{NobodyThere, Reply};
use portcullis::ports::upstream::Connection as _;
use tokio::time::Instant;

use crate::fakes::Gate;
use crate::fakes::bench::{Bench, failed, failure, said};
use crate::fakes::people::{Person, allowed};
use crate::fakes::policy::{Policies, Scripted, ask, bound, deny};
use crate::fakes::server::{How, tool, tool_with};

fn abstains() -> Arc<Scripted> {
    Scripted::says(Verdict::Abstain)
}

/// A bench whose calls stop in the middle of their decision, until the gate is open.
async fn stopping() -> (Bench, Arc<Gate>, Arc<Scripted>) {
    let gate = Gate::closed();
    let stop = abstains().at(&gate);
    let bench = Bench::new(&Policies::open(&["files", "mail"]).with(LayerKind::User, "stop", &stop)).await;
    (bench, gate, stop)
}

/// Publishes what `change` says between prepare and lease of a call of `files/write`, and returns how the call ended.
async fn with_change(change: impl AsyncFnOnce(&Bench)) -> (Bench, portcullis::pipeline::Finished) {
    let (bench, gate, _) = stopping().await;
    let running = bench.spawn(bench.request("files/write", "{}"));
    gate.reached(1).await;
    change(&bench).await;
    gate.open();
    let finished = running.await.unwrap();
    (bench, finished)
}

async fn reconnect_files(bench: &Bench) {
    bench.reconnect(&bench.files).await;
}

fn assert_stale(bench: &Bench, finished: &portcullis::pipeline::Finished) {
    assert_eq!(failed(finished), (Stage::Lease, Code::Stale));
    assert!(said(finished).contains("catalog changed"), "{}", said(finished));
    assert!(bench.files.handed().is_empty(), "a stale call was sent");
    bench.tape.only_pair();
}

#[tokio::test(start_paused = true)]
async fn b7_a_call_prepared_before_a_reconnection_is_never_sent() {
    let (bench, finished) = with_change(reconnect_files).await;
    assert_stale(&bench, &finished);
}

#[tokio::test(start_paused = true)]
async fn b7_a_call_prepared_before_its_servers_configuration_changed_is_never_sent() {
    let (bench, finished) = with_change(async |bench| {
        bench.change(&bench.files, |published| published.config = Digest::of(b"other"));
        bench.publish().await;
    })
    .await;
    assert_stale(&bench, &finished);
}

#[tokio::test(start_paused = true)]
async fn b7_a_call_prepared_before_its_definition_changed_is_never_sent() {
    let (bench, finished) = with_change(async |bench| {
        bench.redefine(&bench.files, vec![tool_with("write", r#"{"destructiveHint":false}"#), tool("read")]).await;
    })
    .await;
    assert_stale(&bench, &finished);
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_tool_is_gone_by_the_lease_is_never_sent() {
    let (bench, finished) = with_change(async |bench| bench.redefine(&bench.files, vec![tool("read")]).await).await;
    assert_stale(&bench, &finished);
}

#[tokio::test(start_paused = true)]
async fn b6_b12_a_stale_call_is_not_routed_to_the_new_connection() {
    let (bench, finished) = with_change(reconnect_files).await;
    assert_stale(&bench, &finished);
    assert_eq!(bench.write().await.item.status, Status::Completed);
    assert_eq!(bench.files.handed()[0].connection, bench.files.last().id());
}

#[tokio::test(start_paused = true)]
async fn a_change_of_another_server_does_not_disturb_a_prepared_call() {
    let (bench, finished) = with_change(async |bench| {
        bench.reconnect(&bench.mail).await;
        bench.redefine(&bench.mail, vec![tool("send"), tool("more")]).await;
    })
    .await;
    assert_eq!(finished.item.status, Status::Completed);
    assert_eq!(bench.files.handed().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_change_of_another_tool_of_the_server_does_not_disturb_a_prepared_call() {
    let (_, finished) = with_change(async |bench| {
        bench.redefine(&bench.files, vec![tool("write"), tool("other")]).await;
    })
    .await;
    assert_eq!(finished.item.status, Status::Completed);
}

#[tokio::test(start_paused = true)]
async fn b4_a_publication_that_changes_nothing_keeps_the_revision_and_the_snapshot() {
    let bench = Bench::open().await;
    let before = bench.catalog().current();
    assert_eq!(bench.publish().await, before.revision());
    assert!(Arc::ptr_eq(&bench.catalog().current(), &before));
    bench.reconnect(&bench.files).await;
    assert_eq!(bench.catalog().current().revision(), before.revision().next());
}

#[tokio::test(start_paused = true)]
async fn r19_nobody_asked_and_nothing_changed_is_one_evaluation() {
    let (bench, gate, component) = stopping().await;
    gate.open();
    bench.write().await;
    assert_eq!(component.asked(), 1);
    assert_eq!(bench.files.handed().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn r19_a_call_whose_policies_changed_is_decided_again_by_the_new_ones() {
    let guard = Scripted::says(deny("not-any-more"));
    let set = Policies::open(&["files"]).with(LayerKind::Managed, "guard", &guard);
    let (bench, finished) = with_change(async |bench| bench.decide_by(&set).await).await;
    assert_eq!(failed(&finished), (Stage::Approval, Code::Denied));
    assert_eq!(guard.asked(), 1);
    assert!(bench.files.handed().is_empty());
}

#[tokio::test(start_paused = true)]
async fn r19_a_call_whose_policies_changed_runs_if_the_new_ones_let_it() {
    let (bench, finished) = with_change(async |bench| bench.decide_by(&Policies::open(&["files", "mail"])).await).await;
    assert_eq!(finished.item.status, Status::Completed);
    let recorded = bench.tape.decisions();
    assert_eq!(recorded.len(), 1);
    assert_eq!(recorded[0].policy_set, bench.catalog().current().policies().digest, "the record names old policies");
}

/// A bench whose policies change during every evaluation of the component.
async fn unsteady(verdict: Verdict, changes: usize) -> (Arc<Bench>, Arc<Scripted>) {
    let place: Arc<OnceLock<(Arc<Bench>, Policies)>> = Arc::default();
    let inside = Arc::clone(&place);
    let component = Scripted::by(move |before, _| {
        let (bench, set) = inside.get().unwrap();
        if before < changes {
            // No lease is open, so the publication is through at once.
            bench.decide_by(set).now_or_never().unwrap();
        }
        Ok(verdict.clone())
    });
    let set = Policies::open(&["files", "mail"]).with(LayerKind::User, "unsteady", &component);
    let bench = Arc::new(Bench::new(&set).await);
    assert!(place.set((Arc::clone(&bench), set)).is_ok());
    (bench, component)
}

#[tokio::test(start_paused = true)]
async fn r19_policies_that_keep_changing_refuse_the_call_after_three_more_evaluations() {
    let (bench, component) = unsteady(Verdict::Abstain, usize::MAX).await;
    let finished = bench.write().await;
    assert_eq!(failed(&finished), (Stage::Lease, Code::PoliciesUnstable));
    assert_eq!(component.asked(), 4);
    assert!(bench.files.handed().is_empty());
}

#[tokio::test(start_paused = true)]
async fn r19_policies_that_settle_in_time_let_the_call_run() {
    let (bench, component) = unsteady(Verdict::Abstain, 3).await;
    assert_eq!(bench.write().await.item.status, Status::Completed);
    assert_eq!(component.asked(), 4);
}

#[tokio::test(start_paused = true)]
async fn r19_an_answer_does_not_use_up_an_evaluation_for_changed_policies() {
    let (bench, component) = unsteady(ask("think", Remember::Session), 4).await;
    let person = Person::replying(&bench.journal, [allowed(Remember::Never)]);
    // The first change is met by the evaluation after the answer, three more by the barrier.
    assert_eq!(bench.write_asking(person.clone()).await.item.status, Status::Completed);
    assert_eq!((component.asked(), person.questions().len()), (5, 1));
}

#[tokio::test(start_paused = true)]
async fn r19_a_call_is_decided_again_after_an_answer() {
    let component = Scripted::says(ask("think", Remember::Session));
    let bench = Bench::new(&Policies::open(&["files"]).with(LayerKind::User, "care", &component)).await;
    let person = Person::replying(&bench.journal, [allowed(Remember::Never)]);
    assert_eq!(bench.write_asking(person.clone()).await.item.status, Status::Completed);
    assert_eq!((component.asked(), person.questions().len()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn r19_an_answer_does_not_stand_against_an_ask_that_was_not_answered() {
    let care = Scripted::says(ask("think", Remember::Session));
    let set = Policies::open(&["files"]).with(LayerKind::User, "care", &care);
    let more = set.clone().with(LayerKind::Managed, "late", &Scripted::says(ask("late", Remember::Session)));
    let bench = Arc::new(Bench::new(&set).await);
    let gate = Gate::closed();
    let person = Person::replying(&bench.journal, [allowed(Remember::Never), Reply::Declined]).at(&gate);
    let running = bench.spawn(CallRequest { reviewer: person.clone(), ..bench.request("files/write", "{}") });
    gate.reached(1).await;
    bench.decide_by(&more).await;
    gate.open();
    let finished = running.await.unwrap();
    assert_eq!(failed(&finished), (Stage::Approval, Code::Declined));
    let asked: Vec<usize> = person.questions().iter().map(|question| question.asks.len()).collect();
    assert_eq!(asked, [1, 2], "the second question shows every ask that stands");
    assert!(bench.files.handed().is_empty());
}

#[tokio::test(start_paused = true)]
async fn r19_an_answer_stands_when_fewer_ask_than_were_answered() {
    let care = Scripted::says(ask("think", Remember::Session));
    let fewer = Policies::open(&["files"]).with(LayerKind::User, "care", &care);
    let set = fewer.clone().with(LayerKind::Managed, "late", &Scripted::says(ask("late", Remember::Session)));
    let bench = Arc::new(Bench::new(&set).await);
    let gate = Gate::closed();
    let person = Person::replying(&bench.journal, [allowed(Remember::Never)]).at(&gate);
    let running = bench.spawn(CallRequest { reviewer: person.clone(), ..bench.request("files/write", "{}") });
    gate.reached(1).await;
    bench.decide_by(&fewer).await;
    gate.open();
    assert_eq!(running.await.unwrap().item.status, Status::Completed);
    assert_eq!(person.questions().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn r15_an_answer_to_a_plain_ask_does_not_stand_against_a_failure_of_the_same_component() {
    let Verdict::Ask(mut plain) = ask("x", Remember::Session) else { unreachable!() };
    plain.reason.rule = None;
    let turns = Scripted::by(move |before, _| match before {
        0 => Ok(Verdict::Ask(plain.clone())),
        _ => Err(portcullis::model::verdict::Fault::new(FaultCode::Trap, "x")),
    });
    let component = BoundComponent { on_failure: OnFailure::Ask, ..bound(LayerKind::User, "turns", turns) };
    let bench = Bench::new(&Policies::open(&["files"]).and(component)).await;
    let person = Person::replying(&bench.journal, [allowed(Remember::Never), Reply::Declined]);
    let finished = bench.write_asking(person.clone()).await;
    assert_eq!(failed(&finished), (Stage::Approval, Code::Declined));
    assert_eq!(person.questions().len(), 2, "the failure itself was put to nobody");
}

#[tokio::test(start_paused = true)]
async fn r12_a_persons_answer_does_not_stand_where_the_auto_reviewer_must_agree_by_now() {
    let turns = Scripted::by(|before, _| {
        let Verdict::Ask(mut asked) = ask("x", Remember::Session) else { unreachable!() };
        asked.reviewers = if before == 0 { Reviewers::PERSON } else { Reviewers::AUTO };
        Ok(Verdict::Ask(asked))
    });
    let bench = Bench::new(&Policies::open(&["files"]).with(LayerKind::User, "turns", &turns)).await;
    let person = Person::replying(&bench.journal, [allowed(Remember::Never)]);
    assert_eq!(failed(&bench.write_asking(person).await), (Stage::Approval, Code::NobodyToAsk));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_turns_stale_while_somebody_is_asked_is_not_sent_and_leaves_no_grant() {
    let bench = Bench::new(&Policies::new()).await;
    let gate = Gate::closed();
    let person = Person::replying(&bench.journal, [allowed(Remember::Session)]).at(&gate);
    let running = bench.spawn(CallRequest { reviewer: person, ..bench.request("files/write", "{}") });
    gate.reached(1).await;
    bench.reconnect(&bench.files).await;
    gate.open();
    let finished = running.await.unwrap();
    assert_stale(&bench, &finished);
    assert!(bench.purse.kept().is_empty());
    assert!(!bench.journal.lines().contains(&"kept the grant".to_owned()), "it was kept for a moment");
}

/// Runs a call of `files/write` by hand up to its lease.
async fn leased(bench: &Bench, person: &Person) -> (CallId, barrier::Lease, Noted) {
    let id = CallId::fresh();
    let reference = ToolRef::parse("files/write").unwrap();
    let prepared = prepare(bench.catalog(), &reference, Arguments::none(), None).await.unwrap();
    let (state, clock) = (&bench.pipeline.state, &bench.pipeline.clock);
    let noted = Noted::open(Stated::of(state, clock, &id, &bench.caller, &prepared));
    let who = Approvers {
        catalog: bench.catalog(),
        grants: &*bench.purse,
        askable: Askable {
            progress: None,
            hooks: None,
            breaker: &Breaker::default(),
            evidence: Evidence::default(),
            client: None,
            told: &|| Box::pin(async { (None, None) }),
            reviewer: person,
            deadline: bench.pipeline.ask_deadline,
            people: &People::since(Instant::now()),
        },
        clock: &*bench.pipeline.clock,
        stated: noted.stated(),
        changed: None,
    };
    let approved = approve(&who, &id, &bench.caller, prepared, &mut Agreed::default()).await.unwrap();
    let (mut sofar, turn) = (files::Sofar::default(), TurnInfo::default());
    let uploads = files::upload(bench.catalog(), &approved, &mut sofar, &turn, None);
    let uploads = uploads.await.unwrap();
    (id, barrier::lease(bench.catalog(), approved, uploads).unwrap(), noted)
}

fn record(bench: &Bench, id: &CallId, lease: &barrier::Lease) -> DecisionRecord {
    let prepared = lease.approved().prepared();
    DecisionRecord {
        at: bench.pipeline.clock.now(),
        call: id.clone(),
        kind: prepared.kind(),
        tool: prepared.reference(),
        caller: bench.caller.clone(),
        revision: prepared.revision(),
        policy_set: prepared.policies().digest,
        engine: Digest::of(b"no engine"),
        definition: prepared.tool().definition.digest(),
        arguments: prepared.arguments().digest(),
        files: Vec::new(),
        uploading: false,
        decision: lease.approved().decision().clone(),
        consent: lease.approved().consent().clone(),
        hooks: Vec::new(),
        reviews: Vec::new(),
        inputs: None,
    }
}

#[tokio::test(start_paused = true)]
async fn b7_b8_r27_a_revoked_lease_hands_nothing_over_and_leaves_no_grant_and_no_mark() {
    let bench = Bench::new(&Policies::new()).await;
    let person = Person::replying(&bench.journal, [allowed(Remember::Session)]);
    let (id, lease, mut noted) = leased(&bench, &person).await;
    let before = Instant::now();
    bench.reconnect(&bench.files).await;
    assert_eq!(before.elapsed().as_secs(), DRAIN.as_secs(), "the publication waited as long as it may");
    let record = record(&bench, &id, &lease);
    let (turn, caller) = (Default::default(), record.caller.clone());
    let (memory, mut marked) = (ThreadMemory::new("thread", Arc::new(bench.journal.clone())), 0);
    let mut noting = || marked += 1;
    let memory_of = Some(Marking { memory: &memory, noted: &mut noting });
    let (id, noted, turn) = (&id, &mut noted, &turn);
    let with = call::With {
        id,
        caller: &caller,
        noted,
        turn,
        accepts: [].into(),
        memory: memory_of,
        progress: None,
        desk: None,
    };
    let handed = call::hand_over(lease, with, &*bench.purse, &*bench.tape, record).await;
    let failure = handed.err().unwrap();
    assert_eq!((failure.stage, failure.code), (Stage::Lease, Code::Stale));
    assert!(bench.files.handed().is_empty());
    assert!(bench.purse.kept().is_empty());
    assert!(!memory.is_polluted() && marked == 0, "the revision differs: step 10c never runs");
}

#[tokio::test(start_paused = true)]
async fn b9_a_publication_waits_for_an_open_lease_of_its_server() {
    let bench = Bench::new(&Policies::new()).await;
    let person = Person::replying(&bench.journal, [allowed(Remember::Session)]);
    let (id, lease, mut noted) = leased(&bench, &person).await;
    bench.connect(&bench.files);
    let mut publishing = std::pin::pin!(bench.publish());
    assert!(futures::poll!(publishing.as_mut()).is_pending());
    let record = record(&bench, &id, &lease);
    let (turn, caller) = (Default::default(), record.caller.clone());
    let (id, noted, turn) = (&id, &mut noted, &turn);
    let with =
        call::With { id, caller: &caller, noted, turn, accepts: [].into(), memory: None, progress: None, desk: None };
    let handed = call::hand_over(lease, with, &*bench.purse, &*bench.tape, record).await;
    assert!(handed.is_ok());
    let before = Instant::now();
    publishing.await;
    assert_eq!(Instant::now(), before, "the lease ended with the hand-over");
    assert_eq!(bench.purse.kept().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_never_answered_delays_no_publication() {
    let bench = Bench::open().await;
    bench.files.answers(How::Never);
    let _running = bench.spawn(bench.request("files/write", "{}"));
    while bench.files.handed().is_empty() {
        tokio::task::yield_now().await;
    }
    let before = Instant::now();
    bench.reconnect(&bench.files).await;
    bench.reconnect(&bench.mail).await;
    bench.decide_by(&Policies::open(&["mail"])).await;
    assert_eq!(Instant::now(), before);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_never_answered_delays_no_call_elsewhere() {
    let bench = Bench::open().await;
    bench.files.answers(How::Never);
    let _running = bench.spawn(bench.request("files/write", "{}"));
    while bench.files.handed().is_empty() {
        tokio::task::yield_now().await;
    }
    let before = Instant::now();
    let finished = bench.pipeline.run(bench.request("mail/send", "{}")).await;
    assert_eq!((finished.item.status, Instant::now()), (Status::Completed, before));
}

#[tokio::test(start_paused = true)]
async fn b5_a_call_past_its_lease_finishes_on_the_connection_that_it_was_sent_over() {
    let bench = Bench::open().await;
    let gate = Gate::closed();
    bench.files.answers(How::Gated(Arc::clone(&gate)));
    let old = bench.files.last().id();
    let running = bench.spawn(bench.request("files/write", "{}"));
    gate.reached(1).await;
    bench.reconnect(&bench.files).await;
    gate.open();
    assert_eq!(running.await.unwrap().item.status, Status::Completed);
    assert_eq!(bench.files.handed()[0].connection, old);
}

#[tokio::test(start_paused = true)]
async fn a_transport_that_takes_nothing_delays_a_publication_no_longer_than_the_drain() {
    let bench = Bench::open().await;
    let gate = Gate::closed();
    bench.files.answers(How::Stuck(Arc::clone(&gate)));
    let _running = bench.spawn(bench.request("files/write", "{}"));
    gate.reached(1).await;
    let before = Instant::now();
    bench.reconnect(&bench.files).await;
    assert_eq!(before.elapsed().as_secs(), DRAIN.as_secs());
}

async fn grants_left_by(how: How, cancel: bool) -> usize {
    let bench = Bench::new(&Policies::new()).await;
    let stuck = Gate::closed();
    bench.files.answers(if cancel { How::Stuck(Arc::clone(&stuck)) } else { how });
    let person = Person::replying(&bench.journal, [allowed(Remember::Session)]);
    let request = CallRequest { reviewer: person, ..bench.request("files/write", "{}") };
    let token = request.cancel.clone();
    let running = bench.spawn(request);
    if cancel {
        stuck.reached(1).await;
        token.cancel();
    }
    running.await.unwrap();
    bench.purse.kept().len()
}

#[tokio::test(start_paused = true)]
async fn a_grant_is_forgotten_when_the_transport_did_not_take_the_call() {
    assert_eq!(grants_left_by(How::NotSent, false).await, 0);
    assert_eq!(grants_left_by(How::Lost, false).await, 1, "a call that was sent keeps its grant");
}

#[tokio::test(start_paused = true)]
async fn a_grant_is_forgotten_when_the_call_is_cancelled_before_the_transport_took_it() {
    assert_eq!(grants_left_by(How::Never, true).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_grant_is_forgotten_when_the_decision_could_not_be_recorded() {
    let bench = Bench::new(&Policies::new()).await;
    bench.tape.fail();
    bench.write_asking(Person::replying(&bench.journal, [allowed(Remember::Session)])).await;
    assert!(bench.purse.kept().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_closed_transport_marks_its_server_dirty_and_a_full_one_does_not() {
    let bench = Bench::open().await;
    bench.files.answers(How::Full);
    bench.write().await;
    assert!(bench.fleet.dirty.lock().is_empty(), "a busy server would be restarted under its running calls");
    bench.files.answers(How::NotSent);
    bench.write().await;
    let dirty = bench.fleet.dirty.lock().clone();
    assert_eq!(
        dirty,
        [("files".to_owned(), bench.files.last().id())]
            .map(|(name, id)| { (portcullis::model::name::ServerName::parse(&name).unwrap(), id) })
    );
}

#[tokio::test(start_paused = true)]
async fn r24_a_definition_other_than_the_one_that_was_shown_is_stale_and_is_shown() {
    let bench = Bench::open().await;
    let seen = Some(Digest::of(b"what was shown"));
    let finished = bench.pipeline.run(CallRequest { seen, ..bench.request("files/write", "{}") }).await;
    assert_eq!(failure(&finished).code, Code::Stale);
    let text = said(&finished);
    assert!(text.contains("catalog changed") && text.contains(r#""description":"does write""#), "{text}");
    assert!(bench.files.handed().is_empty());
    let reference = ToolRef::parse("files/write").unwrap();
    let now = bench.catalog().current().find(&reference).unwrap().tool().definition.digest();
    let next = bench.pipeline.run(CallRequest { seen: Some(now), ..bench.request("files/write", "{}") }).await;
    assert_eq!(next.item.status, Status::Completed);
}

#[tokio::test(start_paused = true)]
async fn nobody_there_is_asked_nothing_when_nothing_has_to_be_asked() {
    let bench = Bench::open().await;
    let finished = bench.write_asking(Arc::new(NobodyThere)).await;
    assert_eq!(finished.item.status, Status::Completed);
    assert_eq!(bench.tape.decisions()[0].consent, Consent::Unasked);
}
