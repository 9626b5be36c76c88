//! The mark that a thread's memory is polluted: catalog-dispatch 5, step 10c, and 3.5.

use std::sync::Arc;

use portcullis::model::item::{CompletedItem, Status};
use portcullis::model::layer::LayerKind;
use portcullis::model::outcome::Code;
use portcullis::model::verdict::Verdict;
use portcullis::pipeline::dispatch::memory::ThreadMemory;
use portcullis::pipeline::{CallRequest, Would};
use portcullis::ports::memory::MemorySink;

use crate::fakes::bench::{Bench, failure};
use crate::fakes::house::{House, call, spec};
use crate::fakes::policy::{Policies, Scripted, deny};
use crate::fakes::server::{FakeServer, How, tool};
use crate::fakes::{Gate, Journal};

impl MemorySink for Journal {
    fn polluted(&self, thread: &str) {
        self.note(format!("marked {thread}"));
    }
}

fn memory(bench: &Bench) -> Arc<ThreadMemory> {
    Arc::new(ThreadMemory::new("thread", Arc::new(bench.journal.clone())))
}

fn request(bench: &Bench, memory: &Arc<ThreadMemory>) -> CallRequest {
    CallRequest { memory: Some(Arc::clone(memory)), ..bench.request("files/write", "{}") }
}

async fn run(bench: &Bench, memory: &Arc<ThreadMemory>) -> CompletedItem {
    bench.pipeline.run(request(bench, memory)).await.item
}

fn marks(bench: &Bench) -> usize {
    bench.journal.lines().iter().filter(|line| line.starts_with("marked")).count()
}

#[tokio::test(start_paused = true)]
async fn step_10c_a_thread_is_marked_after_the_record_and_before_the_call_is_handed_over() {
    let bench = Bench::open().await;
    let memory = memory(&bench);
    assert!(!memory.is_polluted());
    let item = run(&bench, &memory).await;
    let order = ["started item", "recorded the decision", "marked thread", "handed over files/write", "completed item"];
    assert_eq!(bench.journal.lines(), order);
    assert!(memory.is_polluted() && item.pollutes_memory);
    assert_eq!(serde_json::to_value(item).unwrap()["pollutes_memory"], true);
}

#[tokio::test(start_paused = true)]
async fn step_10c_a_thread_is_marked_once_and_every_call_that_pollutes_it_says_so() {
    let bench = Bench::open().await;
    let memory = memory(&bench);
    let (one, two) = Box::pin(futures::future::join(run(&bench, &memory), run(&bench, &memory))).await;
    assert!(one.pollutes_memory && two.pollutes_memory && run(&bench, &memory).await.pollutes_memory);
    assert_eq!(marks(&bench), 1);
}

#[tokio::test(start_paused = true)]
async fn step_10c_a_server_that_does_not_pollute_marks_nothing() {
    let bench = Bench::open().await;
    bench.change(&bench.files, |published| published.view.pollutes_memory = false);
    bench.publish().await;
    let memory = memory(&bench);
    let item = run(&bench, &memory).await;
    assert_eq!((item.status, item.pollutes_memory, memory.is_polluted()), (Status::Completed, false, false));
    assert_eq!(marks(&bench), 0);
}

#[tokio::test(start_paused = true)]
async fn step_10c_nothing_is_said_of_memory_where_nobody_wants_to_know() {
    let bench = Bench::open().await;
    let item = serde_json::to_value(bench.write().await.item).unwrap();
    assert!(item.get("pollutes_memory").is_none(), "{item}");
}

#[tokio::test(start_paused = true)]
async fn step_10c_a_call_that_turns_stale_marks_nothing() {
    let gate = Gate::closed();
    let stop = Scripted::says(Verdict::Abstain).at(&gate);
    let bench = Bench::new(&Policies::open(&["files"]).with(LayerKind::User, "stop", &stop)).await;
    let memory = memory(&bench);
    let running = bench.spawn(request(&bench, &memory));
    gate.reached(1).await;
    bench.reconnect(&bench.files).await;
    gate.open();
    let finished = running.await.unwrap();
    assert_eq!(failure(&finished).code, Code::Stale);
    assert!(!finished.item.pollutes_memory && !memory.is_polluted());
}

#[tokio::test(start_paused = true)]
async fn step_10c_a_call_that_is_refused_not_recorded_or_explained_marks_nothing() {
    let refusing = Scripted::says(deny("no"));
    let refused = Bench::new(&Policies::open(&["files"]).with(LayerKind::User, "no", &refusing)).await;
    let unrecorded = Bench::open().await;
    unrecorded.tape.fail();
    for bench in [refused, unrecorded] {
        let memory = memory(&bench);
        let item = run(&bench, &memory).await;
        assert!(item.status == Status::Failed && !item.pollutes_memory && !memory.is_polluted(), "{item:?}");
    }
    let bench = Bench::open().await;
    let memory = memory(&bench);
    let explained = bench.pipeline.explain(request(&bench, &memory)).await;
    assert!(matches!(explained.would, Would::Run { .. }) && !memory.is_polluted());
}

#[tokio::test(start_paused = true)]
async fn step_10c_the_mark_stays_where_the_transport_does_not_take_the_call() {
    let bench = Bench::open().await;
    bench.files.answers(How::NotSent);
    let memory = memory(&bench);
    let item = run(&bench, &memory).await;
    assert_eq!(item.failure().unwrap().code, Code::NotSent);
    assert!(item.pollutes_memory && memory.is_polluted());
}

#[tokio::test(start_paused = true)]
async fn step_10c_a_session_that_wants_to_know_is_told_once_of_its_own_thread_alone() {
    let (journal, server) = (Journal::default(), FakeServer::new("files", &Journal::default(), vec![tool("write")]));
    let mut clean = spec(&FakeServer::new("clean", &Journal::default(), vec![tool("read")]));
    clean.view.pollutes_memory = false;
    let house =
        House::with([("files".to_owned(), spec(&server)), ("clean".to_owned(), clean)].into(), Default::default());
    let (session, other) = (house.session(), house.session());
    session.mark_memory(Arc::new(journal.clone()));
    session.list().await;
    assert_eq!(session.call(call("clean/read")).await.item.status, Status::Completed);
    assert_eq!(other.call(call("files/write")).await.item.status, Status::Completed);
    assert!(!session.memory_polluted() && journal.lines().is_empty());
    for _ in 0..2 {
        assert!(session.call(call("files/write")).await.item.pollutes_memory);
    }
    assert!(session.memory_polluted() && !other.memory_polluted());
    assert_eq!(journal.lines(), [format!("marked {}", session.caller().session)]);
}
