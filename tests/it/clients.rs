//! The official Python SDK's client in front of real servers from npm and PyPI.
//!
//! What is checked is in `tests/e2e/client.py`. It needs servers that a machine with rustup alone does not have: `.ci/run`
//! installs them at pinned versions and says where with `PORTCULLIS_E2E`. Without that the test is left out and says so;
//! with it, whatever is missing is a failure.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What the folder must hold.
const INSTALLED: [&str; 4] = [
    "npm/node_modules/@modelcontextprotocol/server-everything/dist/index.js",
    "npm/node_modules/@modelcontextprotocol/server-filesystem/dist/index.js",
    "venv/bin/python",
    "venv/bin/mcp-server-time",
];

fn missing(folder: &Path) -> Vec<PathBuf> {
    INSTALLED.iter().map(|file| folder.join(file)).filter(|file| !file.exists()).collect()
}

#[test]
fn an_official_client_works_through_the_gateway_with_real_servers() {
    let Some(folder) = std::env::var_os("PORTCULLIS_E2E").map(PathBuf::from) else {
        println!("left out: PORTCULLIS_E2E is not set; `bash .ci/run` installs the real servers and sets it");
        return;
    };
    let missing = missing(&folder);
    assert!(missing.is_empty(), "PORTCULLIS_E2E is set, but these are missing: {missing:?}");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/client.py");
    let run = Command::new(folder.join("venv/bin/python"))
        .arg("-B")
        .arg(script)
        .env("PORTCULLIS_E2E", &folder)
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
    assert_eq!(missing(folder.path()).len(), INSTALLED.len());
}
