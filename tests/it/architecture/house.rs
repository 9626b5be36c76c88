//! The rules of the house that are not about imports.

use std::collections::BTreeMap;

use portcullis::model::digest::Digest;

use super::source::{self, Source};

/// The most lines of a file, its tests aside.
const MAX_LINES: usize = 500;
/// How far above `unsafe` its reason may stand: the head of a function that fits one screen.
const REACH: usize = 16;
/// What a built component must not hold: folders of the machine that built it, and registries.
const TRACES: [&str; 6] = ["/root/", "/home/", "/work/", "/Users/", ".cargo/registry", "index."];

/// A file that is too long.
pub(super) fn too_long(file: &str, text: &str) -> Option<String> {
    let lines = Source::read(text).lines_without_tests();
    (lines > MAX_LINES).then(|| format!("{file}: {lines} lines, more than {MAX_LINES}"))
}

/// `unsafe` that nobody has answered for: an `allow(unsafe_code, reason = …)` must stand just above it, or at the head
/// of the file.
pub(super) fn unexplained_unsafe(file: &str, text: &str) -> Vec<String> {
    let explained = |text: &str| {
        let text: String = text.split_whitespace().collect();
        text.split_once("allow(unsafe_code").is_some_and(|(_, rest)| rest.contains("reason=\""))
    };
    let lines: Vec<&str> = text.lines().collect();
    let head = text.split("#![allow(unsafe_code").nth(1).and_then(|rest| rest.split(")]").next());
    let whole_file = head.is_some_and(|rest| rest.contains("reason = \""));
    let mut out = Vec::new();
    for line in source::lines_with(&Source::read(text).code, "unsafe") {
        let above = lines[line.saturating_sub(REACH)..line].join("\n");
        if !whole_file && !explained(&above) {
            out.push(format!("{file}:{line}: `unsafe` without `allow(unsafe_code, reason = …)`"));
        }
    }
    out
}

/// What an adapter of one version of the interface has nothing to do with: what arms, counts and bounds an evaluation, what its
/// answer means, and the machine.
const BEYOND: [&str; 16] = [
    "set_fuel",
    "fuel_async_yield_interval",
    "set_epoch_deadline",
    "epoch_deadline_trap",
    "epoch_deadline_callback",
    "limiter",
    "set_hostcall_fuel",
    "set_max_component_handles",
    "into_data",
    "mem",
    "std",
    "answer",
    "limits",
    "run",
    "config",
    "unsafe",
];

/// Where a version's adapter names what it has nothing to do with. Types keep the facts from it; the store cannot be kept
/// from it, since generated code needs it.
pub(super) fn reaches_beyond(file: &str, text: &str) -> Vec<String> {
    let code = Source::read(text).without_tests();
    let lines =
        BEYOND.iter().flat_map(|word| source::lines_with(&code, word).into_iter().map(move |line| (word, line)));
    lines.map(|(word, line)| format!("{file}:{line}: a version's adapter names `{word}`")).collect()
}

/// The guest that a manifest makes, if it makes one.
pub(super) fn guest(manifest: &str) -> Option<String> {
    let manifest: toml::Table = manifest.parse().ok()?;
    let kinds = manifest.get("lib")?.get("crate-type")?.as_array()?;
    let name = manifest.get("package")?.get("name")?.as_str()?;
    kinds.iter().any(|kind| kind.as_str() == Some("cdylib")).then(|| name.to_owned())
}

/// The guests that no test names in a text (a comment that promises a test is none).
pub(super) fn untested<'a>(guests: &'a [String], tests: &[String]) -> Vec<&'a String> {
    let literals: Vec<String> =
        tests.iter().flat_map(|text| Source::read(text).literals).map(|(_, literal)| literal).collect();
    let names = |literal: &str, guest: &str| {
        let word = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_');
        literal.split(|c| !word(c)).any(|part| part == guest)
    };
    guests.iter().filter(|guest| !literals.iter().any(|literal| names(literal, guest))).collect()
}

/// The files that a manifest makes targets of their own, so that no module needs to list them.
pub(super) fn targets(manifest: &str) -> Vec<String> {
    let manifest: toml::Table = manifest.parse().unwrap_or_default();
    let kinds = ["bin", "example", "test", "bench"].iter().filter_map(|kind| manifest.get(*kind)?.as_array());
    kinds.flatten().filter_map(|target| Some(target.get("path")?.as_str()?.to_owned())).collect()
}

/// The modules beside a module's root that it does not list, so that nothing runs them.
pub(super) fn unlisted<'a>(root: &str, beside: &'a [String]) -> Vec<&'a String> {
    let code = Source::read(root).code;
    let listed: Vec<&str> = code
        .split(';')
        .filter_map(|item| {
            let mut words = item.split_whitespace().rev();
            let name = words.next()?;
            (words.next() == Some("mod")).then_some(name)
        })
        .collect();
    beside.iter().filter(|name| !listed.contains(&name.as_str())).collect()
}

/// What is wrong with the committed components, given the text of `SHA256SUMS` and the files.
pub(super) fn artifacts(sums: &str, files: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let mut out = Vec::new();
    let mut listed = BTreeMap::new();
    for line in sums.lines() {
        match line.split_once("  ") {
            Some((digest, name)) if Digest::parse(digest).is_ok() => {
                listed.insert(name, digest);
            }
            _ => out.push(format!("SHA256SUMS: `{line}` is not `DIGEST  FILE`")),
        }
    }
    for name in listed.keys().filter(|name| !files.contains_key(**name)) {
        out.push(format!("{name}: listed, but not there"));
    }
    for (name, bytes) in files {
        match listed.get(name.as_str()) {
            None => out.push(format!("{name}: not in SHA256SUMS")),
            Some(digest) if *digest != Digest::of(bytes).to_string() => {
                out.push(format!("{name}: not the file that SHA256SUMS lists"));
            }
            Some(_) => {}
        }
        for trace in TRACES.iter().filter(|trace| bytes.windows(trace.len()).any(|part| part == trace.as_bytes())) {
            out.push(format!("{name}: holds `{trace}`"));
        }
    }
    out
}
