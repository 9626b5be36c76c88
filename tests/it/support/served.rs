//! The real program as a client's only server: `portcullis serve` in a home of its own.

use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;

use super::PATIENCE;

/// A running `portcullis serve`, and the client in front of it. Dropping it kills it.
pub(crate) struct Served {
    pub(crate) child: Child,
    input: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    kept: VecDeque<String>,
    stderr: Arc<Mutex<String>>,
    errors: JoinHandle<()>,
    place: tempfile::TempDir,
}

impl Served {
    /// Starts it with this configuration of its user, in which `$PLACE` is a folder of its own.
    pub(crate) fn start(config: &str, env: &[(&str, &str)]) -> Self {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        for folder in ["work", "home", "config/portcullis", "state"] {
            fs::create_dir_all(path(folder)).unwrap();
        }
        let file = path("config/portcullis/config.toml");
        fs::write(&file, config.replace("$PLACE", place.path().to_str().unwrap())).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        Self::start_in(place, env)
    }

    /// Kills it at once, and starts another one in the same home.
    pub(crate) async fn killed_and_started_again(mut self) -> Self {
        self.child.kill().await.unwrap();
        Self::start_in(self.place, &[])
    }

    fn start_in(place: tempfile::TempDir, env: &[(&str, &str)]) -> Self {
        let path = |name: &str| place.path().join(name);
        // A shell that leaves one of its descriptors open, as careless parents do.
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", "exec 7</dev/zero; exec \"$0\" serve", env!("CARGO_BIN_EXE_portcullis")])
            .current_dir(path("work"))
            .env_remove("PORTCULLIS_LOG")
            .env("HOME", path("home"))
            .env("XDG_CONFIG_HOME", path("config"))
            .env("XDG_STATE_HOME", path("state"))
            .envs(env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take(), child.stdout.take().unwrap());
        let errors = child.stderr.take().unwrap();
        let stderr = Arc::new(Mutex::new(String::new()));
        let errors = tokio::spawn({
            let mut errors = errors;
            let stderr = Arc::clone(&stderr);
            async move {
                let mut bytes = [0; 4096];
                while let Ok(count @ 1..) = errors.read(&mut bytes).await {
                    stderr.lock().push_str(&String::from_utf8_lossy(&bytes[..count]));
                }
            }
        });
        Self { child, input, lines: BufReader::new(output).lines(), kept: VecDeque::new(), stderr, errors, place }
    }

    /// Starts it and shakes hands.
    pub(crate) async fn greeted(config: &str, env: &[(&str, &str)]) -> Self {
        let mut served = Self::start(config, env);
        served.greet().await;
        served
    }

    /// Shakes hands.
    pub(crate) async fn greet(&mut self) {
        let served = self;
        let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": { "name": "test", "version": "1" } });
        served.request("hello", "initialize", &params.to_string()).await;
        assert!(served.answer(json!("hello")).await["result"].is_object());
        served.send(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id().unwrap()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// Returns what it has written to stderr.
    pub(crate) fn stderr(&self) -> String {
        self.stderr.lock().clone()
    }

    pub(crate) async fn send(&mut self, line: &str) {
        let input = self.input.as_mut().unwrap();
        input.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    /// Sends a request; `params` are spelled by the caller.
    pub(crate) async fn request(&mut self, id: &str, method: &str, params: &str) {
        self.send(&format!(r#"{{"jsonrpc":"2.0","id":"{id}","method":"{method}","params":{params}}}"#)).await;
    }

    /// Returns the line of the first answer with this id, kept ones first, and keeps the others.
    pub(crate) async fn line(&mut self, id: Value) -> String {
        let fits = |line: &String| {
            let message: Value = serde_json::from_str(line).unwrap();
            message.get("method").is_none() && message["id"] == id
        };
        if let Some(at) = self.kept.iter().position(fits) {
            return self.kept.remove(at).unwrap();
        }
        loop {
            let line = tokio::time::timeout(PATIENCE, self.lines.next_line()).await;
            let line = line.unwrap_or_else(|_| panic!("no answer to {id}: {}", self.stderr()));
            let line = line.unwrap().unwrap_or_else(|| panic!("it ended: {}", self.stderr()));
            if fits(&line) {
                return line;
            }
            self.kept.push_back(line);
        }
    }

    pub(crate) async fn answer(&mut self, id: Value) -> Value {
        serde_json::from_str(&self.line(id).await).unwrap()
    }

    /// Calls a tool by its visible name and returns the answer.
    pub(crate) async fn call(&mut self, tool: &str, arguments: &Value) -> Value {
        self.request(tool, "tools/call", &json!({ "name": tool, "arguments": arguments }).to_string()).await;
        self.answer(json!(tool)).await
    }

    /// Returns the values of the progress notes that came since the last time, in order.
    pub(crate) fn steps(&mut self) -> Vec<f64> {
        let all: Vec<Value> = self.kept.drain(..).map(|line| serde_json::from_str(&line).unwrap()).collect();
        let steps = all.iter().filter(|message| message["method"] == "notifications/progress");
        steps.map(|message| message["params"]["progress"].as_f64().unwrap()).collect()
    }

    /// Ends the input and waits for the end of the process, and of what it writes to stderr.
    pub(crate) async fn finish(&mut self) -> std::process::ExitStatus {
        self.input = None;
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await.expect("serving does not end").unwrap();
        tokio::time::timeout(PATIENCE, &mut self.errors).await.expect("stderr is held open").unwrap();
        ended
    }
}
