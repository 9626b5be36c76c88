//! The record through the program itself: kept, verified, killed, and its decisions taken again (R34, R35).

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::Value;

use crate::cli::Place;
use crate::support::PATIENCE;

const KEEP: &str = "[records]\nkeep = true\ninputs = true\n";
const APPROVE: &str = "default_tools_approval_mode = \"approve\"";

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// A place whose user keeps records with inputs, after these calls of `s/add`.
fn place_after(calls: usize) -> Place {
    let place = Place::with_server(APPROVE, KEEP);
    for n in 0..calls {
        let ran = place.run(&["call", "s/add", &format!("{{\"a\":{n}}}")]);
        assert_eq!(ran.code, 0, "{}", ran.err);
    }
    place
}

fn files(place: &Place, end: &str) -> Vec<PathBuf> {
    let read = fs::read_dir(place.path("state/portcullis/records")).unwrap();
    let mut files: Vec<PathBuf> = read.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.to_str().unwrap().ends_with(end));
    files.sort();
    files
}

#[test]
fn r34_what_is_kept_is_shown_and_holds_until_somebody_changes_it() {
    let place = place_after(2);
    let ran = place.run(&["audit", "verify", "--format", "json"]);
    assert_eq!(ran.code, 0, "{} {}", ran.out, ran.err);
    let report = json(&ran.out);
    assert_eq!(report["report"]["chains"].as_array().unwrap().len(), 2);
    for chain in report["report"]["chains"].as_array().unwrap() {
        assert_eq!((&chain["closed"], &chain["unanchored"]), (&true.into(), &0.into()), "{chain}");
    }

    let tail = place.run(&["audit", "tail", "--format", "json", "-n", "100"]);
    let decision = tail.out.lines().map(json).find(|line| line["type"] == "decision").unwrap();
    let call = decision["call"].as_str().unwrap();
    let shown = place.run(&["audit", "show", call, "--format", "json"]);
    let types: Vec<Value> = shown.out.lines().map(|line| json(line)["type"].clone()).collect();
    assert_eq!(types, ["started", "decision", "completed"]);
    assert!(place.run(&["audit", "show", call]).out.contains("s/add"));
    assert_eq!(place.run(&["audit", "show", "call_of_nobody"]).code, 1);

    let file = &files(&place, ".jsonl")[0];
    let text = fs::read_to_string(file).unwrap();
    fs::write(file, text.replacen("\"tool\":\"add\"", "\"tool\":\"sub\"", 1)).unwrap();
    let ran = place.run(&["audit", "verify"]);
    assert_eq!(ran.code, 3, "{}", ran.out);
    let named = format!("{}:2", file.file_name().unwrap().to_str().unwrap());
    let joined = ran.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(joined.contains(&named) && joined.contains("this line was changed"), "{}", ran.out);
    fs::remove_file(file).unwrap();
    let ran = place.run(&["audit", "verify", "--format", "json"]);
    assert_eq!(
        (ran.code, &json(&ran.out)["report"]["findings"][0]["what"]["kind"]),
        (3, &"gone".into()),
        "{}",
        ran.out
    );
}

#[test]
fn r34_with_the_key_that_was_carried_away_every_mark_is_checked() {
    let place = Place::with_server(APPROVE, KEEP);
    let made = place.run(&["audit", "key", "carried.key"]);
    assert_eq!(made.code, 0, "{}", made.err);
    assert_eq!(place.run(&["call", "s/add", r#"{"a":1}"#]).code, 0);
    let ran = place.run(&["audit", "verify", "--key", "carried.key", "--format", "json"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(json(&ran.out)["report"]["chains"][0]["marks"], "checked");
    assert_eq!(place.run(&["audit", "key", "carried.key"]).code, 2, "a key that is there is not written over");
}

#[test]
fn r34_a_full_disk_under_the_record_refuses_the_call_unless_a_layer_lets_it_go_on() {
    let place = Place::with_server(APPROVE, "");
    let refused = place.run(&["call", "s/add", r#"{"a":1}"#, "--log", "/dev/full", "--format", "json"]);
    assert_eq!(refused.code, 1);
    assert_eq!(json(&refused.out)["outcome"]["failed"]["code"], "record-failed");
    let loose = ["call", "s/add", r#"{"a":1}"#, "--log", "/dev/full", "-c", "records.on_failure=\"continue\""];
    assert_eq!(place.run(&loose).code, 1, "R3: a flag loosens nothing");
    let place = Place::with_server(APPROVE, "[records]\non_failure = \"continue\"\n");
    let ran = place.run(&["call", "s/add", r#"{"a":1}"#, "--log", "/dev/full"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("its call goes on"), "{}", ran.err);
}

#[test]
fn r34_a_process_that_is_killed_leaves_a_chain_that_is_not_closed_and_holds() {
    let place = place_after(1);
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.args(["call", "s/hang"]).current_dir(place.path("work")).env("HOME", place.path("home"));
    command.env("XDG_CONFIG_HOME", place.path("config")).env("XDG_STATE_HOME", place.path("state"));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let give_up = Instant::now() + PATIENCE;
    let decided = || {
        files(&place, ".jsonl").last().is_some_and(|file| {
            let text = fs::read_to_string(file).unwrap();
            text.contains("\"hang\"") && text.contains("\"decision\"")
        })
    };
    while !decided() {
        assert!(Instant::now() < give_up, "the call was never decided");
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // As if it had been killed in the middle of its next line.
    let file = files(&place, ".jsonl").pop().unwrap();
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{text}{{\"type\":\"comp")).unwrap();
    assert_eq!(place.run(&["call", "s/add", r#"{"a":9}"#]).code, 0);
    let ran = place.run(&["audit", "verify", "--format", "json"]);
    assert_eq!(ran.code, 0, "{}", ran.out);
    let report = json(&ran.out);
    let closed: Vec<&Value> =
        report["report"]["chains"].as_array().unwrap().iter().map(|chain| &chain["closed"]).collect();
    assert_eq!(closed, [&true, &false, &true].map(|closed| Value::from(*closed)).iter().collect::<Vec<_>>());
    assert_eq!(report["report"]["notes"][0]["what"]["kind"], "cut-short");
}

#[test]
fn r35_recorded_decisions_come_out_equal_and_a_candidate_that_changes_them_is_told_why() {
    let place = place_after(3);
    let replayed = place.run(&["policy", "replay", "--format", "json"]);
    let totals = json(replayed.out.lines().last().unwrap());
    assert_eq!(replayed.code, 0, "{} {}", replayed.out, replayed.err);
    assert_eq!((&totals["totals"]["decisions"], &totals["totals"]["same"]), (&3.into(), &3.into()), "{totals}");

    let server = crate::support::scripted_server();
    let candidate = format!("[mcp_servers.s]\ncommand = {server:?}\ndefault_tools_approval_mode = \"prompt\"\n");
    place.write("work/candidate.toml", &candidate);
    let diff = place.run(&["policy", "diff", "--candidate", "candidate.toml", "--format", "json"]);
    assert_eq!(diff.code, 3, "{} {}", diff.out, diff.err);
    let first = json(diff.out.lines().next().unwrap());
    assert_eq!((&first["result"], &first["same_policies"]), (&"changed".into(), &false.into()), "{first}");
    assert_eq!((&first["was"]["verdict"], &first["now"]["verdict"]), (&"run".into(), &"ask".into()), "{first}");
    assert_eq!(first["because"][0]["component"], "approval-baseline", "{first}");
    assert!(place.run(&["policy", "diff", "--candidate", "candidate.toml"]).out.contains("3 changed"));

    let inputs = &files(&place, ".inputs")[0];
    let text = fs::read_to_string(inputs).unwrap();
    fs::write(inputs, text.replacen("\"a\":0", "\"a\":7", 1)).unwrap();
    let ran = place.run(&["policy", "replay"]);
    assert!(ran.out.contains("2 the same") && ran.out.contains("1 not reproducible"), "{}", ran.out);

    // A line that cannot be read is no decision less, and a file that is no record is no record without changes.
    let record = &files(&place, ".jsonl")[0];
    let text = fs::read_to_string(record).unwrap();
    fs::write(record, text.replacen("\"folded\":", "\"fold\":", 1)).unwrap();
    let ran = place.run(&["policy", "replay", record.to_str().unwrap()]);
    assert!(ran.out.contains("1: its line cannot be read") && ran.out.contains("1 not reproducible"), "{}", ran.out);
    place.write("work/none.txt", "no record\n");
    let ran = place.run(&["policy", "diff", "--candidate", "candidate.toml", "--records", "none.txt"]);
    assert!(ran.code != 0 && ran.err.contains("has no line of a record"), "{} {}", ran.out, ran.err);
}

#[test]
fn r35_decisions_without_inputs_are_told_as_not_reproducible() {
    let place = Place::with_server(APPROVE, "");
    let log = place.path("log.jsonl");
    assert_eq!(place.run(&["call", "s/add", r#"{"a":1}"#, "--log", log.to_str().unwrap()]).code, 0);
    let ran = place.run(&["policy", "replay", log.to_str().unwrap(), "--format", "json"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let totals = json(ran.out.lines().last().unwrap());
    assert_eq!(totals["totals"]["not_reproducible"]["its inputs were not kept"], 1, "{totals}");
}
