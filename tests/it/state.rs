//! What a call leaves behind for the next one: counters, labels, history; and what leaves nothing (R33).

use std::sync::Arc;

use parking_lot::Mutex;
use portcullis::model::layer::LayerKind;
use portcullis::model::outcome::{Code, Stage};
use portcullis::model::verdict::{Remember, Verdict};
use portcullis::pipeline::{CallRequest, Would};
use portcullis::ports::approval::{BoundComponent, CallFacts, PastState};
use portcullis::ports::reviewer::Reply;

use crate::fakes::Gate;
use crate::fakes::bench::{Bench, failed, failure, said};
use crate::fakes::people::{Person, Step, allowed};
use crate::fakes::policy::{Policies, Scripted, allow, ask, bound, deny, source};
use crate::fakes::server::How;

const MINUTE: u64 = 60_000;

/// What a component saw of earlier calls: its count, the labels, the history.
type Look = (u64, Vec<String>, Vec<(String, PastState)>);
/// One for each evaluation.
type Seen = Arc<Mutex<Vec<Look>>>;

/// A component of the user's layer that counts, looks around, sets the label `seen`, and answers this.
fn curious(name: &'static str, verdict: Verdict) -> (Arc<Scripted>, Seen) {
    let seen = Seen::default();
    let notes = Arc::clone(&seen);
    let look = move |_: usize, facts: &CallFacts| {
        let count = facts.moment.counters.count(&source(LayerKind::User, name), "calls", MINUTE).unwrap();
        let labels = facts.moment.labels.iter().map(|label| label.name.clone()).collect();
        let past = facts.moment.history.iter().map(|call| (call.tool.to_string(), call.state)).collect();
        notes.lock().push((count, labels, past));
        Ok(verdict.clone())
    };
    (Scripted::by(look).labelling("seen", source(LayerKind::User, name)), seen)
}

async fn bench(verdict: Verdict) -> (Bench, Seen) {
    let (component, seen) = curious("rate", verdict);
    (Bench::new(&Policies::open(&["files", "mail"]).with(LayerKind::User, "rate", &component)).await, seen)
}

fn counts(seen: &Seen) -> Vec<u64> {
    seen.lock().iter().map(|(count, _, _)| *count).collect()
}

fn labels(seen: &Seen) -> Vec<String> {
    seen.lock().last().unwrap().1.clone()
}

fn history(seen: &Seen) -> Vec<(String, PastState)> {
    seen.lock().last().unwrap().2.clone()
}

fn observed(mut component: BoundComponent) -> BoundComponent {
    component.observe = true;
    component
}

#[tokio::test(start_paused = true)]
async fn r33_a_call_that_is_sent_counts_and_sets_its_labels_for_the_next_one() {
    let (bench, seen) = bench(allow("fine")).await;
    bench.write().await;
    assert!(labels(&seen).is_empty(), "its own labels come with the hand-over");
    bench.write().await;
    assert_eq!((counts(&seen), labels(&seen)), (vec![1, 2], vec!["seen".to_owned()]));
    assert_eq!(history(&seen), [("files/write".to_owned(), PastState::Ran)]);
}

#[tokio::test(start_paused = true)]
async fn r33_a_refused_call_counts_nothing_and_sets_no_label() {
    let (bench, seen) = bench(deny("no")).await;
    bench.write().await;
    bench.write().await;
    assert_eq!((counts(&seen), labels(&seen)), (vec![1, 1], Vec::new()));
    assert_eq!(history(&seen), [("files/write".to_owned(), PastState::Refused)]);
}

#[tokio::test(start_paused = true)]
async fn r33_a_declined_a_cancelled_and_an_unsent_call_count_nothing() {
    let (bench, seen) = bench(ask("think", Remember::Never)).await;
    let declines = Person::replying(&bench.journal, [Reply::Declined]);
    bench.write_asking(declines).await;

    let gate = Gate::closed();
    let agrees = || Person::replying(&bench.journal, [allowed(Remember::Never)]);
    let running = bench.spawn(CallRequest { reviewer: agrees().at(&gate), ..bench.request("files/write", "{}") });
    gate.reached(1).await;
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());

    bench.files.answers(How::NotSent);
    assert_eq!(failed(&bench.write_asking(agrees()).await), (Stage::Call, Code::NotSent));

    let before = seen.lock().len();
    bench.write_asking(agrees()).await;
    assert_eq!(counts(&seen)[before..], [1, 1], "asked twice, before and after the person's answer: one call");
    assert!(labels(&seen).is_empty());
    let refused = || ("files/write".to_owned(), PastState::Refused);
    assert_eq!(history(&seen), [refused(), refused(), refused()]);
}

#[tokio::test(start_paused = true)]
async fn r33_an_open_call_has_reserved_and_is_in_the_history() {
    let (bench, seen) = bench(allow("fine")).await;
    bench.mail.answers(How::Never);
    let running = bench.spawn(bench.request("mail/send", "{}"));
    bench.mail.handed_over(1).await;
    bench.write().await;
    assert_eq!(counts(&seen), [1, 2]);
    assert_eq!(history(&seen), [("mail/send".to_owned(), PastState::Open)]);
    running.abort();
    let _cancelled = running.await;
    bench.write().await;
    let want =
        [("files/write", PastState::Ran), ("mail/send", PastState::Ran)].map(|(tool, how)| (tool.to_owned(), how));
    assert_eq!(history(&seen), want, "it was sent, whatever came of it");
}

#[tokio::test(start_paused = true)]
async fn r33_of_two_calls_that_wait_for_a_person_only_one_is_the_first() {
    let (bench, seen) = bench(ask("think", Remember::Never)).await;
    let gate = Gate::closed();
    let person = Person::replying(&bench.journal, [allowed(Remember::Never)]).at(&gate);
    let request =
        |person: &Arc<Person>| CallRequest { reviewer: Arc::clone(person) as _, ..bench.request("files/write", "{}") };
    let running = [bench.spawn(request(&person)), bench.spawn(request(&person))];
    gate.reached(2).await;
    assert_eq!(counts(&seen), [1, 2]);
    gate.open();
    for call in running {
        call.await.unwrap();
    }
    bench.write_asking(person).await;
    assert_eq!(counts(&seen).last(), Some(&3));
}

#[tokio::test(start_paused = true)]
async fn r33_explain_sees_what_a_call_would_and_leaves_nothing() {
    let (bench, seen) = bench(allow("fine")).await;
    bench.write().await;
    for _ in 0..2 {
        let explained = bench.pipeline.explain(bench.request("files/write", "{}")).await;
        assert!(matches!(explained.would, Would::Run { .. }));
    }
    bench.write().await;
    assert_eq!(counts(&seen), [1, 2, 2, 2]);
    assert_eq!((labels(&seen), history(&seen).len()), (vec!["seen".to_owned()], 1));
}

#[tokio::test(start_paused = true)]
async fn r16_r33_what_an_observed_component_counts_and_labels_is_not_kept() {
    let (component, seen) = curious("trial", deny("no"));
    let component = observed(bound(LayerKind::User, "trial", component));
    let bench = Bench::new(&Policies::open(&["files"]).and(component)).await;
    for _ in 0..2 {
        bench.write().await;
        bench.pipeline.observatory.idle().await;
    }
    assert_eq!((counts(&seen), labels(&seen)), (vec![1, 1], Vec::new()));
    assert_eq!(history(&seen).len(), 1, "it sees what was before all the same");
}

#[tokio::test(start_paused = true)]
async fn effects_are_committed_after_the_record_and_before_the_hand_over() {
    let (bench, _seen) = bench(allow("fine")).await;
    bench.state.noting();
    bench.write().await;
    let order = [
        "started item",
        "noted as open",
        "recorded the decision",
        "committed",
        "handed over files/write",
        "noted as run",
        "completed item",
    ];
    assert_eq!(bench.journal.lines(), order);
}

#[tokio::test(start_paused = true)]
async fn a_state_that_cannot_be_read_refuses_the_call_and_its_dry_run() {
    let (bench, seen) = bench(allow("fine")).await;
    bench.state.fail_at(Step::Moment);
    let finished = bench.write().await;
    assert_eq!(failed(&finished), (Stage::Approval, Code::StateFailed));
    assert!(!said(&finished).contains("SECRET"), "{}", said(&finished));
    assert_eq!(failure(&finished).detail.as_deref(), Some("the state store failed: SECRET: the disk is full"));
    assert!(seen.lock().is_empty() && bench.files.handed().is_empty());
    assert_eq!(bench.tape.decisions().len(), 1, "the refusal is recorded");
    let explained = bench.pipeline.explain(bench.request("files/write", "{}")).await;
    assert!(matches!(explained.would, Would::Fail(failure) if failure.code == Code::StateFailed));
}

#[tokio::test(start_paused = true)]
async fn a_state_that_cannot_be_written_refuses_the_call_and_its_grant_is_forgotten() {
    let (bench, _seen) = bench(ask("think", Remember::Session)).await;
    bench.state.fail_at(Step::Commit);
    let finished = bench.write_asking(Person::replying(&bench.journal, [allowed(Remember::Session)])).await;
    assert_eq!(failed(&finished), (Stage::Lease, Code::StateFailed));
    assert!(bench.files.handed().is_empty() && bench.purse.kept().is_empty());
}
