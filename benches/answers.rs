//! What an answer costs: 1 KB, 1 MB and 10 MB through the whole pipeline, without and with the sanitiser of secrets, and each
//! view of what comes out.
//!
//! ```sh
//! cargo bench --bench answers              # a minute, and the building
//! cargo bench --bench answers -- --quick   # once each: does it still run?
//! ```
//!
//! The least of some rounds, all series in turns, and the ratio to copying the answer's text once. The server is inside of this
//! process and gives the same parsed answer every time: reading it from the wire is `--bench hop`'s. Nothing is asserted but that
//! every answer arrives and the secret does not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a bench that cannot run shall say so")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use portcullis::host::build::{HostBuilder, server_of};
use portcullis::host::session::{Session, SessionCall};
use portcullis::host::user::local_caller;
use portcullis::model::answer::{Answer, ToolResult};
use portcullis::model::layer::LayerKind;
use portcullis::model::name::{ServerName, Target, ToolRef};
use portcullis::model::outcome::Outcome;
use portcullis::model::revision::ConnectionId;
use portcullis::pipeline::Finished;
use portcullis::pipeline::emit::views::event::EventView;
use portcullis::pipeline::emit::views::hook::HookView;
use portcullis::pipeline::emit::views::model::{ModelView, ModelViewOptions};
use portcullis::pipeline::emit::views::script::ScriptView;
use portcullis::ports::reviewer::NobodyThere;
use portcullis::ports::upstream::{
    Connection, InFlight, ListFailure, Listing, NotSent, OutgoingCall, StartFailure, Unanswered, Upstream,
    UpstreamEvents,
};
use serde_json::json;

/// Sizes of an answer's text, in bytes.
const SIZES: [(&str, usize); 3] = [("1 KB", 1 << 10), ("1 MB", 1 << 20), ("10 MB", 10 << 20)];

/// What is measured. The first is what the others are compared with.
const SERIES: [&str; 7] = [
    "a copy of the text",
    "a call, no sanitiser",
    "a call, secrets looked for",
    "the event view",
    "the script view, as text",
    "the hook view, as text",
    "the model view",
];

/// The longest block, in bytes.
const BLOCK: usize = 1 << 19;

/// What the sanitiser takes out.
const SECRET: &str = "ghp_0123456789abcdefghijABCDEFGHIJ012345";

const SANITISED: &str = "[[policies]]\nname = \"secrets\"\ncomponent = \"builtin:sanitise-secrets\"\n";

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    println!("{:<28}{:>14}{:>14}   ratio to the copy", "", "size", "microseconds");
    for (name, size) in SIZES {
        let rounds = if quick { 1 } else { (200 >> (size >> 20)).max(7) };
        let best = runtime.block_on(measure(size, rounds));
        let copy = best[0].as_secs_f64();
        for (series, took) in SERIES.iter().zip(best) {
            let seconds = took.as_secs_f64();
            println!("{series:<28}{name:>14}{:>14.1}{:>12.1}", seconds * 1e6, seconds / copy);
        }
    }
}

async fn measure(size: usize, rounds: usize) -> [Duration; SERIES.len()] {
    let (text, answer) = answer(size);
    let plain = session(&answer, "").await;
    let sanitised = session(&answer, SANITISED).await;
    let mut best = [Duration::MAX; SERIES.len()];
    for _ in 0..rounds {
        for (best, took) in best.iter_mut().zip(round(&text, &plain, &sanitised).await) {
            *best = took.min(*best);
        }
    }
    for session in [plain, sanitised] {
        session.host().shutdown(Duration::ZERO).await;
    }
    best
}

async fn round(text: &str, plain: &Session, sanitised: &Session) -> [Duration; SERIES.len()] {
    let clock = |work: &mut dyn FnMut()| {
        let begun = Instant::now();
        work();
        begun.elapsed()
    };
    let copy = clock(&mut || drop(black_box(black_box(text).to_owned())));
    let (through, finished) = call(plain).await;
    assert!(ScriptView::of(&finished.clean).text().contains(SECRET));
    let (cleaned, finished) = call(sanitised).await;
    let clean = &finished.clean;
    let event = clock(&mut || drop(black_box(EventView::of(clean))));
    let mut script = String::new();
    let scripted = clock(&mut || script = black_box(ScriptView::of(clean).text()));
    assert!(!script.contains(SECRET), "the secret is still there");
    let hook = clock(&mut || {
        drop(black_box(
            HookView::of(clean).unwrap_or_else(|| panic!("{:?}", clean.failure())).into_response().to_string(),
        ))
    });
    let begun = Instant::now();
    black_box(ModelView::of(clean, Duration::ZERO, &ModelViewOptions::default()).await);
    [copy, through, cleaned, event, scripted, hook, begun.elapsed()]
}

async fn call(session: &Session) -> (Duration, Finished) {
    let target = Target::from(ToolRef::parse("bench/read").unwrap());
    let begun = Instant::now();
    let finished = session.call(SessionCall::new(target, "{}")).await;
    let took = begun.elapsed();
    assert_eq!(*finished.clean.outcome(), Outcome::Answered, "{:?}", finished.item.outcome);
    (took, finished)
}

/// Lines as tools print them, and one secret in their middle. They are strings of structured content, none longer than what a
/// sanitiser may read at once (R41): a longer one is withheld, which costs nothing, and so are texts that are so long together.
fn answer(size: usize) -> (String, Answer) {
    let lines =
        "2026-12-03 12:00:00 info worker finished the task in 17 ms, 3 files changed\n".repeat(size / 77 / 2 + 1);
    let text = format!("{lines}{SECRET}\n{lines}");
    let (mut blocks, mut rest) = (Vec::new(), text.as_str());
    while !rest.is_empty() {
        let (block, after) = rest.split_at(rest.len().min(BLOCK));
        blocks.push(block);
        rest = after;
    }
    let result = json!({ "content": [], "structuredContent": { "pages": blocks }, "isError": false });
    let spelled: Arc<str> = result.to_string().into();
    let value = result.as_object().unwrap().clone();
    (spelled.to_string(), Answer::Result(ToolResult::from_upstream(value, spelled)))
}

async fn session(answer: &Answer, policies: &str) -> Arc<Session> {
    let name = ServerName::parse("bench").unwrap();
    let spec = server_of(&name, Arc::new(Canned(answer.clone())), true);
    let built = HostBuilder::new()
        .layer(LayerKind::User, policies, ".")
        .server(LayerKind::User, name, spec)
        .start()
        .await
        .unwrap();
    built.host.fleet().settle_fully().await;
    built.host.session(local_caller(), Arc::new(NobodyThere))
}

/// A server that answers every call the same.
struct Canned(Answer);

struct Line(Answer);

struct Flying(Answer);

#[async_trait]
impl Upstream for Canned {
    async fn connect(
        &self,
        _deadline: tokio::time::Instant,
        _events: Arc<dyn UpstreamEvents>,
    ) -> Result<Arc<dyn Connection>, StartFailure> {
        Ok(Arc::new(Line(self.0.clone())))
    }
}

#[async_trait]
impl Connection for Line {
    fn id(&self) -> ConnectionId {
        ConnectionId(1)
    }

    fn is_open(&self) -> bool {
        true
    }

    async fn list(&self, _deadline: tokio::time::Instant) -> Result<Listing, ListFailure> {
        let tool =
            json!({ "name": "read", "inputSchema": { "type": "object" }, "annotations": { "readOnlyHint": true } });
        Ok(Listing { tools: vec![tool.to_string().into()], ..Listing::default() })
    }

    async fn hand_over(&self, _call: OutgoingCall) -> Result<Box<dyn InFlight>, NotSent> {
        Ok(Box::new(Flying(self.0.clone())))
    }

    async fn close(&self) {}
}

#[async_trait]
impl InFlight for Flying {
    async fn answer(&mut self) -> Result<Answer, Unanswered> {
        Ok(self.0.clone())
    }

    async fn cancel(self: Box<Self>, _reason: &str) {}
}
