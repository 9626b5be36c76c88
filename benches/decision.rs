//! What a decision costs: one component asked about one call, fresh and in a sandbox, against the same rule in plain Rust.
//!
//! ```sh
//! cargo bench --bench decision              # a few minutes at most, mostly building
//! cargo bench --bench decision -- --quick   # a few decisions: does it still run?
//! ```
//!
//! Ratios are taken within this one run, of series that were measured in turns, so that whatever else the machine does hits
//! all alike; absolute times say more about the machine than about us. Aims: wasm-limits sections 7 and 9. Nothing is
//! asserted but that every answer is the right one. `docs/performance.md` has the figures of a run.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a bench that cannot run shall say so")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};
// What the scanner takes from its component.
use std::vec::Vec;

use portcullis::adapters::wasm::{Admission, Cache, Engine, Limits, Options, WasmApproval, builtin};
use portcullis::model::arguments::Arguments;
use portcullis::model::caller::Caller;
use portcullis::model::digest::Digest;
use portcullis::model::layer::{LayerKind, LayerRef};
use portcullis::model::name::ToolRef;
use portcullis::model::posture::Posture;
use portcullis::model::tool::{Hints, ServerIdentity};
use portcullis::model::verdict::{Source, Verdict};
use portcullis::ports::approval::{CallFacts, Evaluation, Kind};
use portcullis::ports::sanitiser::{OutputFacts, Place, Target, Verdict as Clean};
use portcullis::ports::state::Moment;
use serde_json::{Value, json};

/// The shipped sanitiser's own scanner, compiled for this machine.
#[path = "../policies/sanitise-secrets/src/rules.rs"]
mod rules;
#[path = "../policies/sanitise-secrets/src/scan.rs"]
#[allow(dead_code, reason = "the component uses more of it")]
mod scan;
#[path = "../policies/sanitise-secrets/src/values.rs"]
mod values;

/// Sizes of arguments, in bytes.
const SIZES: [(&str, usize); 3] = [("900 B", 900), ("64 KB", 64 << 10), ("1 MB", 1 << 20)];

/// How much is measured.
struct Extent {
    rounds: usize,
    decisions: usize,
    distinct: usize,
    users: usize,
}

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let extent = if quick {
        Extent { rounds: 2, decisions: 50, distinct: 8, users: 50 }
    } else {
        Extent { rounds: 20, decisions: 500, distinct: 1000, users: 1000 }
    };
    let engine = Engine::new().unwrap();
    println!("pool: {}", engine.is_pooling());
    latencies(&engine, &extent);
    throughput(&engine, &extent);
    secrets(&engine, &extent);
    kept_code(&extent);
    memory(&engine, &extent);
}

/// The demo's managed policy: mail goes to one domain only. It reads three short texts of a call.
fn policy(engine: &Engine) -> Arc<WasmApproval> {
    load(engine, builtin::DEMO_MANAGED, 0)
}

fn load(engine: &Engine, bytes: &[u8], number: usize) -> Arc<WasmApproval> {
    let layer = LayerRef::new(LayerKind::Managed);
    let source = Source { layer, component: format!("bench-{number}").into(), digest: None };
    let wanted = Admission { settings: json!({ "number": number }), ..Admission::plain(source) };
    engine.admit(bytes, wanted).unwrap().approval.unwrap()
}

fn facts(bytes: usize) -> Arc<CallFacts> {
    let filler = "x".repeat(bytes.saturating_sub(60));
    let arguments = json!({ "to": "ann@elsewhere.example", "subject": "s", "body": filler }).to_string();
    Arc::new(CallFacts {
        kind: Kind::Tool,
        tool: ToolRef::parse("mail/send_mail").unwrap(),
        identity: ServerIdentity(Digest::of(b"identity")),
        definition: Digest::of(b"definition"),
        hints: Hints::default(),
        caller: Caller::local("bench"),
        connector: None,
        posture: Posture::default(),
        arguments: Arguments::parse(&arguments).unwrap(),
        now_ms: 1_700_000_000_000,
        moment: Moment::empty(),
    })
}

/// The rule of the policy in plain Rust, on the same facts.
fn native(facts: &CallFacts) -> bool {
    if (facts.tool.server.as_str(), facts.tool.tool.as_str()) != ("mail", "send_mail") {
        return false;
    }
    let to = facts.arguments.at("/to").and_then(Value::as_str).unwrap_or_default().to_owned();
    let plain = |name: &str| {
        !name.is_empty() && name.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'+' | b'-'))
    };
    !matches!(to.rsplit_once('@'), Some((name, domain)) if plain(name) && domain.eq_ignore_ascii_case("example.org"))
}

/// One series of times.
struct Series {
    name: String,
    times: Vec<Duration>,
}

impl Series {
    fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), times: Vec::new() }
    }

    fn percentile(&self, percent: usize) -> f64 {
        let mut times = self.times.clone();
        times.sort_unstable();
        times[(times.len() * percent / 100).min(times.len() - 1)].as_nanos() as f64 / 1000.0
    }

    fn p50(&self) -> f64 {
        self.percentile(50)
    }

    fn print(&self) {
        let (p50, p90, p99) = (self.p50(), self.percentile(90), self.percentile(99));
        println!("  {:<34} {p50:>9.2} {p90:>9.2} {p99:>9.2}", self.name);
    }
}

fn refuses(evaluation: &Evaluation) {
    assert!(matches!(evaluation.result, Ok(Verdict::Deny(_))), "{:?}", evaluation.result);
}

fn latencies(engine: &Engine, extent: &Extent) {
    let component = policy(engine);
    let layers: Vec<_> = (0..5).map(|number| load(engine, builtin::DEMO_MANAGED, number)).collect();
    let sizes: Vec<_> = SIZES.iter().map(|(name, bytes)| (*name, facts(*bytes))).collect();
    let small = Arc::clone(&sizes[0].1);
    let mut fresh: Vec<Series> = sizes.iter().map(|(name, _)| Series::new(format!("fresh, {name}"))).collect();
    let (mut reused, mut five) = (Series::new("reused instance, 900 B"), Series::new("five layers, 900 B"));
    let mut plain = Series::new("plain Rust, 900 B");
    let mut kept = component.reusable(&small).unwrap();
    for _ in 0..extent.rounds {
        for ((_, facts), series) in sizes.iter().zip(&mut fresh) {
            time(series, extent.decisions, || refuses(&component.evaluate_here(facts)));
        }
        time(&mut reused, extent.decisions, || refuses(&kept.evaluate()));
        time(&mut five, extent.decisions, || layers.iter().for_each(|layer| refuses(&layer.evaluate_here(&small))));
        time(&mut plain, extent.decisions, || assert!(native(black_box(&small))));
    }
    println!("one decision, microseconds               p50       p90       p99");
    fresh.iter().chain([&reused, &five, &plain]).for_each(Series::print);
    ratio("fresh / reused", fresh[0].p50() / reused.p50(), "at most 6");
    ratio("64 KB / 900 B", fresh[1].p50() / fresh[0].p50(), "0.9 to 1.1");
    ratio("1 MB / 900 B", fresh[2].p50() / fresh[0].p50(), "0.9 to 1.1");
    ratio("five layers / one", five.p50() / fresh[0].p50(), "at most 5.5");
    ratio("fresh / plain Rust", fresh[0].p50() / plain.p50(), "stated");
}

fn time(series: &mut Series, times: usize, mut work: impl FnMut()) {
    for _ in 0..times {
        let begun = Instant::now();
        work();
        series.times.push(begun.elapsed());
    }
}

fn ratio(what: &str, value: f64, aim: &str) {
    println!("  {what:<34} {value:>9.2}   aim: {aim}");
}

fn throughput(engine: &Engine, extent: &Extent) {
    let component = policy(engine);
    let small = facts(SIZES[0].1);
    let decisions = extent.decisions * 4;
    let run = |threads: usize| {
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| (0..decisions).for_each(|_| refuses(&component.evaluate_here(&small))));
            }
        });
        (threads * decisions) as f64 / begun.elapsed().as_secs_f64()
    };
    let (mut one, mut two) = (Vec::new(), Vec::new());
    for _ in 0..extent.rounds {
        one.push(run(1));
        two.push(run(2));
    }
    let median = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let (one, two) = (median(&mut one), median(&mut two));
    println!("decisions a second: {one:.0} on one thread, {two:.0} on two");
    ratio("two threads / one", two / one, "at least 1.7");
}

/// A megabyte as tools answer it: code, JSON, links, digests and prose, with a secret every 64 KiB.
fn megabyte() -> String {
    const LINES: &str = r#"{"id": 4711, "name": "a list of things", "url": "https://example.org:8443/a/b?c=d#e", "ok": true}
    let answer = client.get(&url).header("accept", "text/plain").send().await?; // and so on: see below
commit 9fceb02d0ae598e95dc970b74767f19372d61af8  2026-11-30T10:00:00Z  fix(parser): keep the spelling of numbers
The quick brown fox jumps over the lazy dog, and nobody minds; what was said of it elsewhere is said here once more.
iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==
"#;
    let (part, secret) = (64 << 10, format!("password = \"{}\"\n", "hunter2hunter3"));
    let filler = LINES.repeat(part / LINES.len() + 1);
    let part = format!("{}{secret}", &filler[..part - secret.len()]);
    part.repeat(16)
}

fn secrets(engine: &Engine, extent: &Extent) {
    let source = Source { layer: LayerRef::new(LayerKind::User), component: "secrets".into(), digest: None };
    let limits = Limits { time: Duration::from_secs(1), ..Limits::default() };
    let wanted = Admission { limits, ..Admission::plain(source) };
    let sanitiser = engine.admit(builtin::SANITISE_SECRETS, wanted).unwrap().sanitiser.unwrap();
    let text: Arc<str> = megabyte().into();
    let target = Target { place: Place::Text, pointer: "/content/0/text".to_owned(), text: Arc::clone(&text) };
    let small = facts(SIZES[0].1);
    let answer = Arc::new(OutputFacts {
        kind: Kind::Tool,
        tool: ToolRef::parse("files/read").unwrap(),
        identity: ServerIdentity(Digest::of(b"identity")),
        caller: Caller::local("bench"),
        is_error: false,
        targets: vec![target],
        labels: Arc::from([]),
        now_ms: 1_700_000_000_000,
    });
    let decision = policy(engine);
    let (mut sandboxed, mut native) = (Series::new("sandboxed, 1 MB"), Series::new("plain Rust, 1 MB"));
    let mut one = Series::new("one decision");
    let mut fuel = 0;
    for _ in 0..extent.rounds {
        let times = extent.decisions.div_ceil(50);
        time(&mut sandboxed, times, || {
            let said = sanitiser.sanitise_here(&answer);
            fuel = said.usage.fuel;
            assert!(matches!(said.result, Ok((Clean::Edit(ref edits), _)) if edits.len() == 16), "{:?}", said.result);
        });
        time(&mut native, times, || assert_eq!(scan::scan(black_box(&text)).len(), 16));
        time(&mut one, times, || refuses(&decision.evaluate_here(&small)));
    }
    println!("a megabyte scanned for secrets, microseconds   p50       p90       p99   ({fuel} fuel)");
    [&sandboxed, &native, &one].into_iter().for_each(Series::print);
    ratio("sandboxed / (1.3 plain + decision)", sandboxed.p50() / (1.3 * native.p50() + one.p50()), "at most 1");
}

/// Loading a component whose code was compiled and kept before.
fn kept_code(extent: &Extent) {
    let dir = tempfile::tempdir().unwrap();
    let user = rustix::process::getuid().as_raw();
    let cache = Cache::open(&dir.path().join("compiled"), &dir.path().join("state/cache.key"), user).unwrap();
    let engine = Engine::with_options(Options { cache: Some(cache), ..Options::default() }).unwrap();
    let mut compiled = Series::new("compiled");
    time(&mut compiled, 1, || drop(load(&engine, builtin::DEMO_MANAGED, 0)));
    let mut kept = Series::new("kept");
    for number in 0..extent.decisions {
        // Each is dropped at once, so that the next one cannot share its code.
        time(&mut kept, 1, || drop(load(&engine, builtin::DEMO_MANAGED, number)));
    }
    println!("loading a component, microseconds         p50       p90       p99");
    [&compiled, &kept].into_iter().for_each(Series::print);
    ratio("kept, in milliseconds", kept.p50() / 1000.0, "at most 0.5");
}

fn memory(engine: &Engine, extent: &Extent) {
    // A custom section at the end: other bytes, another digest, the same policy.
    let distinct = |number: usize| {
        let mut bytes = builtin::DEMO_MANAGED.to_vec();
        let content = format!("{number:08}");
        bytes.extend([0, (content.len() + 2) as u8, 1, b'n']);
        bytes.extend(content.as_bytes());
        bytes
    };
    let before = resident();
    let loaded: Vec<_> = (0..extent.distinct).map(|number| load(engine, &distinct(number), number)).collect();
    let small = facts(SIZES[0].1);
    loaded.iter().for_each(|component| refuses(&component.evaluate_here(&small)));
    let per_component = resident().saturating_sub(before);
    println!(
        "memory, MiB: {} distinct components {:.1}   aim: 1,000 at most 300",
        extent.distinct,
        mebi(per_component)
    );
    drop(loaded);

    let before = resident();
    let users: Vec<_> = (0..extent.users).map(|number| load(engine, builtin::DEMO_MANAGED, number)).collect();
    users.iter().for_each(|component| refuses(&component.evaluate_here(&small)));
    let per_user = resident().saturating_sub(before);
    println!("memory, MiB: {} users of one component {:.1}   aim: 1,000 at most 64", extent.users, mebi(per_user));
}

fn mebi(bytes: usize) -> f64 {
    bytes as f64 / (1 << 20) as f64
}

/// The resident memory of this process, in bytes; 0 where the system does not say.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()).and_then(|kib| kib.parse::<usize>().ok()).unwrap_or(0) * 1024
}
