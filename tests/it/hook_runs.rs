//! Hooks as real processes: what they get, what they print, and that they end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use portcullis::adapters::hooks::{HookCommand, HookLaunch};
use portcullis::config::transport::BASE_ENVIRONMENT;
use portcullis::model::digest::Digest;
use portcullis::model::hook::{HookExit, HookFault, HookFaultCode};
use portcullis::ports::hook::{HookProgram as _, MAX_HOOK_OUTPUT};
use serde_json::{Value, json};

use crate::support::{gone, written};

/// As long as no test ever takes.
const PATIENT: Duration = Duration::from_secs(600);

fn launch(program: &str, args: &[&str]) -> HookLaunch {
    HookLaunch {
        program: PathBuf::from(program),
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        cwd: std::env::current_dir().unwrap(),
        timeout: PATIENT,
        bound: BTreeMap::new(),
    }
}

fn shell(script: &str) -> HookLaunch {
    launch("/bin/sh", &["-c", script])
}

/// A script that runs in `folder`.
fn shell_in(folder: &Path, script: &str) -> HookLaunch {
    HookLaunch { cwd: folder.to_owned(), ..shell(script) }
}

async fn run(launch: HookLaunch) -> Result<HookExit, HookFault> {
    run_with(launch, &json!({ "hook_event_name": "PreToolUse" })).await
}

async fn run_with(launch: HookLaunch, input: &Value) -> Result<HookExit, HookFault> {
    HookCommand::new(launch).run(Arc::from(input.to_string())).await
}

async fn fails(launch: HookLaunch) -> HookFaultCode {
    run(launch).await.unwrap_err().code
}

/// The number in the file that a script wrote.
async fn pid(file: &Path) -> u32 {
    written(file).await.trim().parse().unwrap()
}

#[tokio::test]
async fn a_hook_reads_its_input_with_the_folder_it_runs_in_and_says_how_it_ended() {
    let folder = tempfile::tempdir().unwrap();
    let ended = run(shell_in(folder.path(), "cat; echo oops >&2; exit 2")).await.unwrap();
    let told: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(told["hook_event_name"], "PreToolUse");
    assert_eq!(told["cwd"], folder.path().display().to_string());
    assert_eq!((ended.code, ended.stderr.as_str()), (2, "oops\n"));
}

#[tokio::test]
async fn a_hook_gets_the_base_environment_and_nothing_else() {
    let ended = run(launch("/usr/bin/env", &[])).await.unwrap();
    let names: Vec<&str> = ended.stdout.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    assert!(!names.is_empty() && names.iter().all(|name| BASE_ENVIRONMENT.contains(name)), "{names:?}");
}

#[tokio::test]
async fn a_hook_that_does_not_read_its_input_is_no_failure() {
    let large = json!({ "tool_input": { "text": "x".repeat(4 << 20) } });
    let ended = run_with(shell("echo done"), &large).await.unwrap();
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "done\n"));
}

#[tokio::test]
async fn a_hook_that_floods_its_output_is_stopped_with_its_group() {
    for stream in ["1", "2"] {
        let folder = tempfile::tempdir().unwrap();
        let script =
            format!("echo $$ > leader; while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx >&{stream}; done");
        let fault = run(shell_in(folder.path(), &script)).await.unwrap_err();
        assert_eq!(fault.code, HookFaultCode::OutputTooLarge);
        assert!(fault.detail.contains(&MAX_HOOK_OUTPUT.to_string()), "{fault}");
        gone(&[pid(&folder.path().join("leader")).await]).await;
    }
}

#[tokio::test]
async fn the_whole_group_dies_with_the_timeout() {
    let folder = tempfile::tempdir().unwrap();
    let script = "sleep 1000 & echo $! > member; echo $$ > leader; trap '' TERM; wait";
    let running = tokio::spawn(run(shell_in(folder.path(), script)));
    let pids = [pid(&folder.path().join("leader")).await, pid(&folder.path().join("member")).await];
    tokio::time::pause();
    tokio::time::advance(PATIENT).await;
    tokio::time::resume();
    assert_eq!(running.await.unwrap().unwrap_err().code, HookFaultCode::Timeout);
    gone(&pids).await;
}

#[tokio::test]
async fn a_daemon_that_holds_the_outputs_open_is_not_waited_for_and_dies() {
    let folder = tempfile::tempdir().unwrap();
    let ended = run(shell_in(folder.path(), "sleep 1000 & echo $! > daemon; echo said")).await.unwrap();
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "said\n"));
    gone(&[pid(&folder.path().join("daemon")).await]).await;
}

#[tokio::test]
async fn a_run_that_nobody_waits_for_any_more_ends_with_its_group() {
    let folder = tempfile::tempdir().unwrap();
    let running = tokio::spawn(run(shell_in(folder.path(), "sleep 1000 & echo $! > member; wait")));
    let member = pid(&folder.path().join("member")).await;
    running.abort();
    gone(&[member]).await;
}

#[tokio::test]
async fn what_cannot_be_run_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("plain");
    std::fs::write(&plain, "text").unwrap();
    let missing = run(launch("/nonexistent/hook", &[])).await.unwrap_err();
    assert_eq!(missing.code, HookFaultCode::Spawn);
    assert_eq!(missing.detail, "`/nonexistent/hook` cannot be started: no such program or folder");
    let plain = run(launch(plain.to_str().unwrap(), &[])).await.unwrap_err();
    assert_eq!(plain.code, HookFaultCode::Spawn);
    assert!(plain.detail.ends_with("not executable"), "{plain}");
    let nowhere = HookLaunch { cwd: folder.path().join("gone"), ..shell("exit 0") };
    assert_eq!(fails(nowhere).await, HookFaultCode::Spawn);
}

#[tokio::test]
async fn k12_a_signal_and_bytes_that_are_no_text_are_failures() {
    assert_eq!(fails(shell("kill -9 $$")).await, HookFaultCode::Signal);
    assert_eq!(fails(shell(r"printf '\377\376'")).await, HookFaultCode::OutputInvalid);
    assert_eq!(run(shell(r"printf '\377' >&2; exit 1")).await.unwrap().code, 1);
}

#[tokio::test]
async fn r7_a_program_that_is_not_the_one_that_was_bound_is_not_started() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("hook.sh");
    std::fs::write(&script, "echo first").unwrap();
    let bound = BTreeMap::from([(script.clone(), Some(Digest::of(b"echo first")))]);
    let bound = || HookLaunch { bound: bound.clone(), ..launch("/bin/sh", &[script.to_str().unwrap()]) };
    assert_eq!(run(bound()).await.unwrap().stdout, "first\n");
    std::fs::write(&script, "echo second").unwrap();
    let fault = run(bound()).await.unwrap_err();
    assert_eq!(fault.code, HookFaultCode::Missing);
    assert!(fault.detail.contains("hook.sh` changed since"), "{fault}");
}
