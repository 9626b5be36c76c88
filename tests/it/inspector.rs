//! MCP Inspector's command line lists and calls through `serve`, as it would through any other server.
//!
//! Needs what `.ci/run` installs ([`crate::support::installed`]); the Inspector needs the newer node of it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::timeout;

use crate::support::PATIENCE;
use crate::support::installed::Installed;

const NODE: &str = "npm/node_modules/.bin/node";
const INSPECTOR: &str = "npm/node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js";
const EVERYTHING: &str = "npm/node_modules/@modelcontextprotocol/server-everything/dist/index.js";

/// What the Inspector printed, as JSON.
struct Inspected {
    code: Option<i32>,
    out: Value,
}

/// Runs the Inspector with `serve` as its server, in front of server-everything.
async fn inspect(installed: &Installed, request: &[&str]) -> Inspected {
    let home = tempfile::tempdir().unwrap();
    // The Inspector hands its server `HOME` and `PATH`, but no `XDG_CONFIG_HOME`.
    let user = home.path().join(".config/portcullis");
    fs::create_dir_all(&user).unwrap();
    let (node, args) = (json!(installed.file(NODE)), json!([installed.file(EVERYTHING), "stdio"]));
    // It lists once, right after the handshake: so the server has to be there first.
    let keys = "required = true\nstartup_timeout_sec = 60\ndefault_tools_approval_mode = \"approve\"";
    let file = user.join("config.toml");
    fs::write(&file, format!("[mcp_servers.everything]\ncommand = {node}\nargs = {args}\n{keys}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();

    let mut inspector = Command::new(installed.file(NODE));
    inspector.arg(installed.file(INSPECTOR)).args(["--cli", env!("CARGO_BIN_EXE_portcullis"), "serve"]).args(request);
    inspector.env_clear().env("HOME", home.path()).env("PATH", std::env::var_os("PATH").unwrap());
    inspector.current_dir(home.path()).stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(PATIENCE * 2, inspector.output()).await.expect("the Inspector does not end").unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let parsed = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error} in {out:?}; {err}"));
    Inspected { code: output.status.code(), out: parsed }
}

#[tokio::test]
async fn the_inspector_lists_and_calls_through_the_gateway() {
    let Some(installed) = Installed::with(&[NODE, INSPECTOR, EVERYTHING]) else { return };
    let listed = inspect(&installed, &["--method", "tools/list"]).await;
    assert_eq!(listed.code, Some(0), "{}", listed.out);
    let tools = listed.out["tools"].as_array().unwrap();
    let sum = tools.iter().find(|tool| tool["name"] == "everything__get_sum").unwrap();
    assert_eq!(sum["inputSchema"]["required"], json!(["a", "b"]));
    println!("the Inspector lists {} tools", tools.len());

    let call = ["--method", "tools/call", "--tool-name", "everything__get_sum", "--tool-arg", "a=2", "b=40"];
    let called = inspect(&installed, &call).await;
    assert_eq!(called.code, Some(0), "{}", called.out);
    assert_eq!(called.out, json!({ "content": [{ "type": "text", "text": "The sum of 2 and 40 is 42." }] }));

    let missing = ["--method", "tools/call", "--tool-name", "everything__echo", "--tool-arg", "text=wrong"];
    let failed = inspect(&installed, &missing).await;
    assert_ne!(failed.code, Some(0), "a tool's own error is one for the Inspector: {}", failed.out);
    assert_eq!(failed.out["isError"], true, "{}", failed.out);
}
