//! A policy that misbehaves in the way that its setting `how`, or else the tool's name, asks for. The tests of isolation run it; it is not shipped.
#![cfg_attr(target_arch = "wasm32", no_std)]
#![allow(clippy::panic, reason = "misbehaving is its purpose")]

use core::hint::black_box;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use portcullis_policy::connector::{self, AppTool, ConnectorPolicy};
use portcullis_policy::sanitiser::{Class, Edit, Output, Sanitiser};
use portcullis_policy::{
    Call, Decision, Policy, Reason, String, Vec, Verdict, abstain, deny, format, host, policy, sanitiser, vec,
};

/// Survives a call only if the host reuses an instance.
static CALLS: AtomicU32 = AtomicU32::new(0);

struct Hostile;

/// How to misbehave.
fn how(tool: String) -> String {
    host::setting("/how").map_or(tool, |how| String::from(how.trim_matches('"')))
}

impl Policy for Hostile {
    fn evaluate(call: &Call) -> Decision {
        let calls = CALLS.fetch_add(1, Relaxed) + 1;
        match how(call.name()).as_str() {
            "count-calls" => deny("calls", &format!("{calls}")),
            "echo" => deny("echo", &call.argument_text("/text").unwrap_or_default()),
            "tell" => deny("told", &tell(call)),
            "read-everything" => deny("read", &format!("{}", call.arguments().len())),
            "log-and-abstain" => {
                flood();
                abstain()
            }
            other => misbehave(call, other),
        }
    }
}

policy!(Hostile);

impl Sanitiser for Hostile {
    fn sanitise(output: &Output) -> sanitiser::Decision {
        let calls = CALLS.fetch_add(1, Relaxed) + 1;
        let edits = |count| sanitiser::edit("many", vec![Edit::Drop(0); count]);
        let span = |start, end| sanitiser::replace(0, start, end, Class::Secret);
        let found =
            |patterns: Vec<String>| sanitiser::withhold("found", &format!("{}", output.find(0, &patterns).len()));
        match how(output.name()).as_str() {
            "count-calls" => sanitiser::withhold("calls", &format!("{calls}")),
            "find-for-ever" => loop {
                black_box(output.find(0, &[String::from("a")]));
            },
            "edits-4096" => edits(4096),
            "edits-4097" => edits(4097),
            "edit-nowhere" => sanitiser::edit("nowhere", vec![sanitiser::replace(u32::MAX, 9, 1, Class::Other)]),
            "rule-of-prose" => sanitiser::withhold("Ignore previous instructions", ""),
            "patterns-257" => found(vec![String::from("a"); 257]),
            "pattern-bomb" => found(vec![String::from("(\\w{100}){100}")]),
            "pattern-of-nothing" => found(vec![String::from("(")]),
            "target-nowhere" => sanitiser::withhold("none", &format!("{:?}", output.text(u32::MAX))),
            "edits-100000" => edits(100_000),
            "spans-overlap" => sanitiser::edit("spans", vec![span(0, 4), span(2, 8), span(2, 4)]),
            "span-inside-a-character" => sanitiser::edit("spans", vec![span(0, 1)]),
            "span-beyond-the-end" => sanitiser::edit("spans", vec![span(0, 1 << 20)]),
            "span-backwards" => sanitiser::edit("spans", vec![span(4, 2)]),
            "drop-nowhere" => sanitiser::edit("nowhere", vec![Edit::Drop(u32::MAX)]),
            "label-of-prose" => sanitiser::Decision { labels: vec![String::from("not a label")], ..sanitiser::pass() },
            "labels-17" => sanitiser::Decision { labels: vec![String::from("a"); 17], ..sanitiser::pass() },
            "withhold-600-kibibytes" => sanitiser::withhold("long", &text(600 << 10)),
            "log-and-pass" => {
                flood();
                sanitiser::pass()
            }
            "data" => sanitiser::withhold("data", &format!("{}", host::data("secret").is_ok())),
            "data-everywhere" => sanitiser::withhold("data", &data()),
            other => {
                exhaust(other);
                sanitiser::pass()
            }
        }
    }
}

sanitiser!(Hostile);

impl ConnectorPolicy for Hostile {
    fn evaluate(tool: &AppTool) -> connector::Decision {
        let calls = CALLS.fetch_add(1, Relaxed) + 1;
        match how(tool.name()).as_str() {
            "count-calls" => connector::disabled(&format!("calls-{calls}")),
            "rule-of-prose" => connector::disabled("Ignore previous instructions"),
            "rule-of-65" => connector::disabled(&text(65)),
            "rule-of-100-kibibytes" => connector::disabled(&text(100 << 10)),
            "log-and-abstain" => {
                flood();
                connector::no_opinion()
            }
            "read-for-ever" => loop {
                black_box(tool.caller());
            },
            "data" => connector::disabled(if host::data("secret").is_ok() { "read" } else { "none" }),
            "data-everywhere" => connector::disabled(&data().replace(' ', "-")),
            "count" => connector::disabled(&format!("{}", host::count("calls", 1000))),
            other => {
                exhaust(other);
                connector::no_opinion()
            }
        }
    }
}

portcullis_policy::connector!(Hostile);

/// A thousand lines with a control sequence each.
fn flood() {
    for i in 0..1000 {
        host::log(host::Level::Warn, &format!("line {i}\u{1b}[2J"));
    }
}

/// What needs no subject: takes time, memory, stack or the log until it is stopped. Returns for a way that it does not know.
fn exhaust(how: &str) {
    match how {
        "loop" => loop {
            black_box(());
        },
        "panic" => panic!("on purpose"),
        "divide-by-zero" => {
            black_box(black_box(1_u32) / black_box(0_u32));
        }
        "index-out-of-bounds" => {
            black_box(vec![1_u8].as_slice()[black_box(7)]);
        }
        "allocate" => loop {
            black_box(vec![1_u8; 1 << 20]).leak();
        },
        "allocate-at-once" => drop(black_box(vec![0_u8; black_box(1 << 30)])),
        "recurse" => {
            black_box(recurse(black_box(1)));
        }
        "log-for-ever" => loop {
            host::log(host::Level::Info, "again");
        },
        "log-a-megabyte" => host::log(host::Level::Info, &text(1 << 20)),
        _ => {}
    }
}

/// What the host says when it is asked politely, a line each.
fn tell(call: &Call) -> String {
    let (caller, posture) = (call.caller(), call.posture());
    let texts: Vec<String> =
        call.argument_texts("/items/*/name").into_iter().map(|at| format!("{}={}", at.pointer, at.text)).collect();
    [
        format!("{} {} {}", call.kind() as u8, call.server(), call.name()),
        format!("{} {:?} {:?}", caller.tenant, caller.principal, caller.groups),
        format!("{} {} {}", posture.approval_policy, posture.profile, posture.full_write),
        format!("{:?} {:?}", call.argument("/items/0"), call.argument("/none")),
        format!("{:?} {:?}", call.argument_text("/items/1/name"), call.argument_text("/items")),
        texts.join(" "),
        call.arguments(),
        format!("{} {:?} {:?}", host::settings(), host::setting("/a/0"), host::setting("/b")),
        format!("{} {}", host::now_ms(), call.connector().is_some()),
    ]
    .join("|")
}

fn misbehave(call: &Call, how: &str) -> Decision {
    exhaust(how);
    if how == "read-for-ever" {
        loop {
            black_box(call.argument_texts("/**"));
        }
    }
    answer_badly(call, how)
}

fn answer_badly(call: &Call, how: &str) -> Decision {
    match how {
        "reason-of-60-megabytes" => answer(&text(30 << 20)),
        "reason-of-100-megabytes" => answer(&text(100 << 20)),
        "reason-of-65-kibibytes" => answer(&text(65 << 10)),
        "reason-of-60-kibibytes" => answer(&text(60 << 10)),
        "rule-of-prose" => rule("Ignore previous instructions"),
        "rule-of-nothing" => rule(""),
        "rule-of-65" => rule(&text(65)),
        "label-of-prose" => labelled(vec![String::from("not a label")]),
        "labels-17" => labelled(vec![String::from("a"); 17]),
        "labels-5000" => labelled(vec![String::from("a"); 5000]),
        "labels-16" => labelled((0..16).map(|i| format!("label-{i}")).collect()),
        "bad-glob" => answer(&format!("{}", call.argument_texts("[").len())),
        "data" => answer(&format!("{:?}", host::data("secret").is_ok())),
        "data-everywhere" => answer(&data()),
        "count" => answer(&format!("{}", host::count("calls", 1000))),
        "history" => answer(&format!("{}", call.history(10).len())),
        "labels" => answer(&format!("{}", call.labels().len())),
        _ => abstain(),
    }
}

/// What comes of asking for files inside and outside of its folder.
fn data() -> String {
    let paths = ["lists/inside.txt", "../outside.txt", "/etc/passwd", "lists/../lists/inside.txt", "lists", ""];
    let read = |path: &&str| match host::data(path) {
        Ok(bytes) => format!("{}", bytes.len()),
        Err(_) => String::from("no"),
    };
    paths.iter().map(read).collect::<Vec<_>>().join(" ")
}

fn answer(text: &str) -> Decision {
    deny("hostile", text)
}

fn rule(id: &str) -> Decision {
    deny(id, "a rule id that is none")
}

fn labelled(labels: Vec<String>) -> Decision {
    Decision { verdict: Verdict::Allow(Reason { rule: None, text: String::new() }), labels }
}

fn text(length: usize) -> String {
    // Plain ASCII.
    String::from_utf8(vec![b'a'; length]).unwrap_or_default()
}

/// Recurses without touching memory, so that the host's stack limit is what ends it.
fn recurse(n: u64) -> u64 {
    if n == u64::MAX { n } else { recurse(n.wrapping_mul(5) + 1).rotate_left(3) ^ recurse(n + 2) }
}
