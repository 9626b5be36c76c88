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
use std::sync::atomic::{AtomicUsize, Ordering};
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

    /// What it took where nothing else ran.
    fn least(&self) -> f64 {
        self.percentile(0)
    }

    fn print(&self) {
        let (p50, p90, p99) = (self.p50(), self.percentile(90), self.percentile(99));
        println!("  {:<34} {p50:>9.2} {p90:>9.2} {p99:>9.2} {:>9.2}", self.name, self.least());
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
    println!("one decision, microseconds               p50       p90       p99     least");
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

/// What two threads do together, against one; and the same of work that shares nothing, to tell the machine's part from ours.
fn throughput(engine: &Engine, extent: &Extent) {
    let components = [load(engine, builtin::DEMO_MANAGED, 0), load(engine, &distinct(0), 1)];
    let calls = [facts(SIZES[0].1), facts(SIZES[0].1)];
    let buffers = [0; 2].map(|_| std::sync::Mutex::new((vec![1_u8; 64 << 10], vec![0_u8; 64 << 10])));
    let decide = |component: usize, call: usize| refuses(&components[component].evaluate_here(&calls[call]));
    let copy = |thread: usize| {
        let (from, to) = &mut *buffers[thread].lock().unwrap();
        to.copy_from_slice(black_box(from));
    };
    // The system counts who is at an open file, so these two threads share that count and little else.
    let file = || {
        (0..20).for_each(|_| {
            black_box(rustix::fs::fstat(std::io::stdin()).ok());
        });
    };
    let system = || {
        (0..20).for_each(|_| {
            black_box(rustix::process::getuid());
        });
    };
    let kinds: [(&str, &(dyn Fn(usize) + Sync)); 8] = [
        ("decisions, a call each", &|thread| decide(0, thread)),
        ("decisions, call and component each", &|thread| decide(thread, thread)),
        ("decisions on one and the same call", &|_| decide(0, 0)),
        ("control: arithmetic", &|_| arithmetic()),
        ("control: 64 KiB copied", &copy),
        ("control: the plain rule, a call each", &|thread| {
            (0..50).for_each(|_| assert!(native(black_box(&calls[thread]))))
        }),
        ("control: 20 system calls", &|_| system()),
        ("control: 20 of them on one open file", &|_| file()),
    ];
    // Short ones, and many: the best of them had the cores to itself, whatever else the machine does.
    let (times, runs) = (extent.decisions / 5, extent.rounds * 20);
    let mut rates = vec![[Vec::new(), Vec::new()]; kinds.len()];
    for _ in 0..runs {
        for ((_, work), rates) in kinds.iter().zip(&mut rates) {
            rates[0].push(together(1, times, *work));
            rates[1].push(together(2, times, *work));
        }
    }
    println!("a second, on one thread and on two: the best of {runs} short runs; the medians");
    let mut scaled = Vec::new();
    for ((name, _), rates) in kinds.iter().zip(&mut rates) {
        rates.iter_mut().for_each(|rates| rates.sort_by(f64::total_cmp));
        let [[one, two], [usual, usual_two]] = [runs - 1, runs / 2].map(|at| [rates[0][at], rates[1][at]]);
        let (best, medians) = (two / one, usual_two / usual);
        println!("  {name:<36} {one:>9.0} {two:>9.0} {best:>6.2}   {usual:>9.0} {usual_two:>9.0} {medians:>6.2}");
        scaled.push(best);
    }
    ratio("two threads / one", scaled[0], "at least 1.7");
    ratio("of what arithmetic gains", scaled[0] / scaled[3], "stated");
    ratio("of what the plain rule gains", scaled[0] / scaled[5], "stated");
}

/// Work of several threads that begin at once: how many times a second, from the first one's begin to the last one's end.
fn together(threads: usize, times: usize, work: &(dyn Fn(usize) + Sync)) -> f64 {
    let ready = AtomicUsize::new(0);
    let one = |thread: usize| {
        work(thread);
        ready.fetch_add(1, Ordering::SeqCst);
        while ready.load(Ordering::SeqCst) < threads {
            std::hint::spin_loop();
        }
        let begun = Instant::now();
        (0..times).for_each(|_| work(thread));
        (begun, Instant::now())
    };
    let one = &one;
    let spans: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || one(thread))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let (begun, ended) = (spans.iter().map(|span| span.0).min(), spans.iter().map(|span| span.1).max());
    (threads * times) as f64 / ended.unwrap().duration_since(begun.unwrap()).as_secs_f64()
}

/// Some microseconds in the registers of one core.
fn arithmetic() {
    let mut number = black_box(0x9E37_79B9_7F4A_7C15_u64);
    for _ in 0..4000 {
        number ^= number << 13;
        number ^= number >> 7;
        number ^= number << 17;
    }
    black_box(number);
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

/// A sanitiser that takes the text of an answer, and lets all of it pass.
fn reader() -> Vec<u8> {
    let text = r#"(module
        (import "portcullis:policy/types@0.1.0" "[resource-drop]output" (func $drop (param i32)))
        (import "portcullis:policy/types@0.1.0" "[method]output.text" (func $text (param i32 i32 i32)))
        (memory (export "memory") 1)
        (func (export "portcullis:policy/sanitiser@0.1.0#sanitise") (param $output i32) (result i32)
            (call $text (local.get $output) (i32.const 0) (i32.const 8))
            (call $drop (local.get $output))
            (i32.const 64))
        (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
            (i32.mul (i32.const 65536)
                (memory.grow (i32.shr_u (i32.add (local.get 3) (i32.const 65535)) (i32.const 16))))))"#;
    guest_builder::from_core_module(&wat::parse_str(text).unwrap(), "wit/v0.1", "output-sanitiser").unwrap()
}

fn secrets(engine: &Engine, extent: &Extent) {
    let admit = |bytes: &[u8], name: &str| {
        let source = Source { layer: LayerRef::new(LayerKind::User), component: name.into(), digest: None };
        let limits = Limits { time: Duration::from_secs(1), ..Limits::default() };
        engine.admit(bytes, Admission { limits, ..Admission::plain(source) }).unwrap().sanitiser.unwrap()
    };
    let (sanitiser, reader) = (admit(builtin::SANITISE_SECRETS, "secrets"), admit(&reader(), "reader"));
    let text: Arc<str> = megabyte().into();
    let target = Target { place: Place::Text, pointer: "/content/0/text".to_owned(), text: Arc::clone(&text) };
    let small = facts(SIZES[0].1);
    let answer = || {
        Arc::new(OutputFacts {
            kind: Kind::Tool,
            tool: ToolRef::parse("files/read").unwrap(),
            identity: ServerIdentity(Digest::of(b"identity")),
            caller: Caller::local("bench"),
            is_error: false,
            targets: vec![target.clone()],
            labels: Arc::from([]),
            now_ms: 1_700_000_000_000,
        })
    };
    let decision = policy(engine);
    let mut sandboxed = Series::new("sandboxed");
    let mut native = Series::new("plain Rust");
    let mut one = Series::new("one decision");
    let mut read = Series::new("sandboxed, taken and not scanned");
    let mut digest = Series::new("its digest");
    let mut copied = Series::new("copied");
    let mut fuel = 0;
    for _ in 0..extent.rounds {
        let times = extent.decisions.div_ceil(50);
        // Made anew each time, as if no other sanitiser had seen the answer.
        time(&mut sandboxed, times, || {
            let said = sanitiser.sanitise_here(&answer());
            fuel = said.usage.fuel;
            assert!(matches!(said.result, Ok((Clean::Edit(ref edits), _)) if edits.len() == 16), "{:?}", said.result);
        });
        time(&mut native, times, || assert_eq!(scan::scan(black_box(&text)).len(), 16));
        time(&mut one, times, || refuses(&decision.evaluate_here(&small)));
        time(&mut read, times, || {
            let said = reader.sanitise_here(&answer());
            assert!(matches!(said.result, Ok((Clean::Pass, _))), "{:?}", said.result);
        });
        time(&mut digest, times, || {
            black_box(Digest::of(black_box(text.as_bytes())));
        });
        time(&mut copied, times, || drop(black_box(text.as_bytes().to_vec())));
    }
    println!("a megabyte scanned for secrets, microseconds   p50       p90       p99     least   ({fuel} fuel)");
    [&sandboxed, &native, &one, &read, &digest, &copied].into_iter().for_each(Series::print);
    ratio("sandboxed / (1.3 plain + decision)", sandboxed.p50() / (1.3 * native.p50() + one.p50()), "at most 1");
    let least = sandboxed.least() / (1.3 * native.least() + one.least());
    ratio("the same of the least times", least, "at most 1");
    ratio("what scans / plain, of those", (sandboxed.least() - read.least()) / native.least(), "stated");
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
    println!("loading a component, microseconds         p50       p90       p99     least");
    [&compiled, &kept].into_iter().for_each(Series::print);
    ratio("kept, in milliseconds", kept.p50() / 1000.0, "at most 0.5");
}

fn memory(engine: &Engine, extent: &Extent) {
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

/// The policy with a custom section at its end: other bytes, another digest, the same policy.
fn distinct(number: usize) -> Vec<u8> {
    let mut bytes = builtin::DEMO_MANAGED.to_vec();
    let content = format!("{number:08}");
    bytes.extend([0, (content.len() + 2) as u8, 1, b'n']);
    bytes.extend(content.as_bytes());
    bytes
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
