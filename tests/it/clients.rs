//! The official Python SDK's client in front of real servers from npm and PyPI.
//!
//! What is checked is in `tests/e2e/client.py`, and of approvals in both eras in `tests/e2e/approvals.py`. What it needs is in [`crate::support::installed`].

use std::path::Path;
use std::process::Command;

use crate::support::installed::{Installed, missing};

/// What the folder must hold.
const NEEDED: [&str; 4] = [
    "npm/node_modules/@modelcontextprotocol/server-everything/dist/index.js",
    "npm/node_modules/@modelcontextprotocol/server-filesystem/dist/index.js",
    "venv/bin/python",
    "venv/bin/mcp-server-time",
];

#[test]
fn an_official_client_works_through_the_gateway_with_real_servers() {
    let Some(installed) = Installed::with(&NEEDED) else { return };
    run(&installed, "client.py");
}

#[test]
fn r20_r21_an_official_client_answers_approvals_in_both_eras() {
    let Some(installed) = Installed::with(&["venv/bin/python"]) else { return };
    run(&installed, "approvals.py");
}

/// Runs one of the scripts, which has to say itself that all of it holds.
fn run(installed: &Installed, script: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e").join(script);
    let run = Command::new(installed.file("venv/bin/python"))
        .arg("-B")
        .arg(script)
        .env("PORTCULLIS_E2E", installed.folder())
        .env("PORTCULLIS_BIN", env!("CARGO_BIN_EXE_portcullis"))
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    print!("{stdout}");
    assert!(run.status.success(), "{}\n{stdout}\n{stderr}", run.status);
}

#[test]
fn an_installation_that_lacks_something_is_named_as_such() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(missing(folder.path(), &NEEDED).len(), NEEDED.len());
}
