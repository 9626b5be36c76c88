//! `audit`: the record of calls, read and verified.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use portcullis::adapters::record::find;
use portcullis::adapters::record::place::{Place, files_in};
use portcullis::adapters::record::verify::{self, ChainReport, Known, Marks, Report, Spot};
use portcullis::host::records::{folder, open_chains};
use portcullis::model::chain::{Head, RootKey};
use portcullis::model::text::shown;
use serde_json::{Value, json};

use super::args::{Format, Global};
use super::exit::{Exit, Trouble};
use super::record_args::Audit;
use super::render::{self, BAD, FAINT, GOOD, STRONG, WARN, field, styled};
use super::setup;

/// How often `tail --follow` looks for more.
const LOOK: Duration = Duration::from_millis(250);
/// How many chains are listed one by one for people.
const LISTED: usize = 20;
/// The largest key file, in bytes.
const MAX_KEY: u64 = 1024;

/// Runs one of them.
pub(crate) fn run(global: &Global, wanted: &Audit) -> Result<Exit, Trouble> {
    match wanted {
        Audit::Tail { file, lines, follow } => tail(global, file.as_deref(), *lines, *follow),
        Audit::Show { call, files } => show(global, call, files),
        Audit::Verify { files, heads, keys } => verified(global, files, heads, keys),
        Audit::Key { file } => key(global, file),
    }
}

/// The files that were given, or those of the configured folder, oldest first; with the folder, if it is all of it.
pub(crate) fn files(global: &Global, given: &[PathBuf]) -> Result<(Vec<PathBuf>, Option<PathBuf>), Trouble> {
    if !given.is_empty() {
        return Ok((given.to_vec(), None));
    }
    let places = setup::places()?;
    let folder = folder(&setup::resolve(global, &places), &places).ok_or_else(|| {
        Trouble::new(Exit::Usage, "no layer keeps records").hint("give a file, or set `[records]` `keep = true`")
    })?;
    let unreadable = |error| Trouble::caused(Exit::Failed, format!("cannot read `{}`", setup::shown(&folder)), &error);
    let files = match files_in(&folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        found => found.map_err(unreadable)?,
    };
    Ok((files, Some(folder)))
}

fn tail(global: &Global, file: Option<&Path>, lines: u32, follow: bool) -> Result<Exit, Trouble> {
    let given: Vec<PathBuf> = file.map(Path::to_owned).into_iter().collect();
    let (files, _) = files(global, &given)?;
    let Some(file) = files.last() else { return Err(Trouble::new(Exit::Failed, "nothing is recorded yet")) };
    let unreadable = |error| Trouble::caused(Exit::Failed, format!("cannot read `{}`", setup::shown(file)), &error);
    let mut found = find::tail(file, usize::try_from(lines).unwrap_or(usize::MAX)).map_err(unreadable)?;
    loop {
        for line in &found.lines {
            print(global, line)?;
        }
        if !follow {
            return Ok(Exit::Done);
        }
        std::thread::sleep(LOOK);
        found.lines = find::more(file, &mut found.end).map_err(unreadable)?;
    }
}

/// Prints a line: as it is, or what it says in short.
fn print(global: &Global, line: &[u8]) -> Result<(), Trouble> {
    let value: Option<Value> = serde_json::from_slice(line).ok();
    match (global.format, value) {
        (Format::Json, Some(value)) => render::json(&value),
        (Format::Json, None) => render::json(&json!({ "unreadable": shown(&String::from_utf8_lossy(line), 200) })),
        (Format::Human, Some(value)) => render::data(&short(&value)),
        (Format::Human, None) => {
            render::data(&format!("{} {}\n", styled(BAD, "unreadable"), shown(&String::from_utf8_lossy(line), 200)))
        }
    }
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// A line in short: when, what, of which tool, what came of it, the call.
fn short(value: &Value) -> String {
    let kind = text(value, "/type");
    let what = match kind {
        "decision" => {
            let (verdict, consent) = (first_key(value.get("folded")), text(value, "/consent/by"));
            let style = match verdict {
                "run" => GOOD,
                "deny" => BAD,
                _ => WARN,
            };
            format!("{} {}", styled(style, &shown(verdict, 16)), styled(FAINT, &shown(consent, 16)))
        }
        "completed" => {
            let code = text(value, "/outcome/failed/code");
            let (status, code) = (shown(text(value, "/status"), 16), shown(code, 32));
            styled(if code.is_empty() { GOOD } else { BAD }, format!("{status} {code}").trim_end())
        }
        "chain-start" => format!("process {}", value.get("process").cloned().unwrap_or_default()),
        "chain-close" => shown(text(value, "/reason"), 32),
        _ => String::new(),
    };
    let tool = match (text(value, "/server"), text(value, "/tool")) {
        ("", "") => String::new(),
        ("", tool) => shown(tool, 128),
        (server, tool) => shown(&format!("{server}/{tool}"), 128),
    };
    let (time, call) = (shown(text(value, "/time"), 40), shown(text(value, "/call"), 64));
    format!("{time} {} {tool} {what} {}\n", styled(STRONG, &shown(kind, 16)), styled(FAINT, &call))
}

fn first_key(value: Option<&Value>) -> &str {
    value.and_then(Value::as_object).and_then(|object| object.keys().next()).map_or("", String::as_str)
}

fn show(global: &Global, call: &str, given: &[PathBuf]) -> Result<Exit, Trouble> {
    let (files, _) = files(global, given)?;
    let mut found = 0u64;
    for file in &files {
        let mut printed = Ok(());
        let read = find::every_line(file, |line| {
            if find::is_of(line, call) {
                found += 1;
                printed = whole(global, line);
            }
            printed.is_ok()
        });
        printed?;
        read.map_err(|error| Trouble::caused(Exit::Failed, format!("cannot read `{}`", setup::shown(file)), &error))?;
    }
    if found == 0 {
        let hint = "`portcullis audit tail` shows the last calls with their ids";
        return Err(Trouble::new(Exit::Failed, format!("nothing is recorded of `{}`", shown(call, 64))).hint(hint));
    }
    Ok(Exit::Done)
}

/// Prints a line with what it says of components and their reasons.
fn whole(global: &Global, line: &[u8]) -> Result<(), Trouble> {
    print(global, line)?;
    let Ok(value) = serde_json::from_slice::<Value>(line) else { return Ok(()) };
    if global.format == Format::Json {
        return Ok(());
    }
    let (width, mut out) = (render::width(), String::new());
    for step in value.get("steps").and_then(Value::as_array).into_iter().flatten() {
        out.push_str(&field(2, "", &shown(step.as_str().unwrap_or_default(), 1000), width));
    }
    for part in ["approver", "id"] {
        let said = text(&value, &format!("/consent/{part}"));
        if !said.is_empty() {
            out.push_str(&field(2, part, &shown(said, 128), width));
        }
    }
    for key in ["message", "detail"] {
        let said = text(&value, &format!("/outcome/failed/{key}"));
        if !said.is_empty() {
            out.push_str(&field(2, "", &shown(said, 1000), width));
        }
    }
    render::data(&out)
}

fn verified(global: &Global, given: &[PathBuf], heads: &[Head], keys: &[PathBuf]) -> Result<Exit, Trouble> {
    let failed = |error: &(dyn std::error::Error + 'static)| Trouble::from_error(Exit::Failed, error);
    let roots: Vec<RootKey> = keys.iter().map(|key| read_root(key)).collect::<Result<_, _>>()?;
    let (files, folder) = files(global, given)?;
    let chains = open_chains(&setup::places()?).map_err(|error| failed(&error))?;
    // A file of `--log` is a place of its own; a file of a folder is a part of one.
    let places: Vec<Place> = match folder {
        Some(folder) => vec![Place::Folder(folder)],
        None => files.iter().cloned().map(Place::File).collect(),
    };
    let (mut expected, mut whole) = (Vec::new(), true);
    for place in places {
        let chains = chains.of_place(&place.name()).map_err(|error| failed(&error))?;
        whole &= matches!(place, Place::Folder(_)) || !chains.is_empty();
        expected.extend(chains);
    }
    let anchored = |chain: &_| chains.anchored(chain);
    let known = Known { roots: &roots, anchored: &anchored, heads, expected: &expected, whole };
    let report = verify::verify(&files, &known).map_err(|error| failed(&error))?;
    match global.format {
        Format::Human => render::data(&human(&report))?,
        Format::Json => render::json(&json!({ "holds": report.holds(), "report": report }))?,
    }
    Ok(if report.holds() { Exit::Done } else { Exit::Refused })
}

fn place(spot: &Spot) -> String {
    spot.file.as_ref().map_or_else(|| "nowhere".to_owned(), |file| format!("{}:{}", setup::shown(file), spot.line))
}

fn human(report: &Report) -> String {
    let (width, mut out) = (render::width(), String::new());
    for note in &report.notes {
        out.push_str(&field(0, &format!("{}:", place(&note.spot)), &note.what.to_string(), width));
    }
    for finding in &report.findings {
        out.push_str(&field(0, &format!("{}:", place(&finding.spot)), &styled(BAD, &finding.what.to_string()), width));
    }
    if report.more_findings > 0 {
        out.push_str(&format!("and {} more\n", report.more_findings));
    }
    for chain in report.chains.iter().take(LISTED) {
        out.push_str(&field(0, "chain", &described(chain), width));
        out.push_str(&field(2, "head", &chain.head.to_string(), width));
    }
    if report.chains.len() > LISTED {
        out.push_str(&format!("and {} chains more; --format json has them all\n", report.chains.len() - LISTED));
    }
    let unanchored: u64 = report.chains.iter().map(|chain| chain.unanchored).sum();
    let sum = format!("{} lines in {} chains, {unanchored} lines unanchored", report.lines, report.chains.len());
    let word = if report.holds() { styled(GOOD, "holds") } else { styled(BAD, "does not hold") };
    out.push_str(&format!("{word}: {sum}\n"));
    out
}

fn described(chain: &ChainReport) -> String {
    let anchored = match chain.anchored {
        None => styled(WARN, "no head of it is known, so nothing vouches for its end"),
        Some(_) if chain.unanchored == 0 => "anchored to its end".to_owned(),
        Some(_) => format!("unanchored tail of {} lines", chain.unanchored),
    };
    let marks = match chain.marks {
        Marks::Checked => "marks checked",
        Marks::NoKey => "marks not checked: no key was given",
        Marks::OtherKey => "marks not checked: it was begun under another key, or too far from it",
    };
    let end = if chain.closed { "closed" } else { "not closed: its writer runs, or was killed" };
    format!("{}: {} lines, {anchored}; {marks}; {end}", chain.head.chain, chain.head.lines)
}

fn read_root(file: &Path) -> Result<RootKey, Trouble> {
    use std::io::Read as _;

    let unreadable = |error| Trouble::caused(Exit::Usage, format!("cannot read `{}`", setup::shown(file)), &error);
    let mut text = String::new();
    let opened = std::fs::File::open(file).map_err(unreadable)?;
    opened.take(MAX_KEY).read_to_string(&mut text).map_err(unreadable)?;
    RootKey::parse(&text).map_err(|error| Trouble::from_error(Exit::Usage, &error))
}

fn key(global: &Global, file: &Path) -> Result<Exit, Trouble> {
    let failed = |error: &(dyn std::error::Error + 'static)| Trouble::from_error(Exit::Failed, error);
    let chains = open_chains(&setup::places()?).map_err(|error| failed(&error))?;
    // Before the key is replaced: one that can be kept nowhere would be lost.
    let mut options = OpenOptions::new();
    let unwritten = |error| Trouble::caused(Exit::Usage, format!("cannot write `{}`", setup::shown(file)), &error);
    let mut out = options.write(true).create_new(true).mode(0o600).open(file).map_err(unwritten)?;
    let root = chains.renew().map_err(|error| failed(&error))?;
    out.write_all(root.text().as_bytes()).and_then(|()| out.sync_all()).map_err(unwritten)?;
    match global.format {
        Format::Human => {
            render::data(&field(0, "key:", &root.0.id(), render::width()))?;
            render::talk(
                "Records that begin from now on are marked under it. Carry the file away, to where this user cannot read it.",
            );
        }
        Format::Json => render::json(&json!({ "key": root.0.id(), "file": file }))?,
    }
    Ok(Exit::Done)
}
