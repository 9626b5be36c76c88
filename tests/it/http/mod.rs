//! Servers over Streamable HTTP can answer as they like: each call gets its answer or one clear failure in time, and no
//! text holds a secret.

mod answers;
mod auth;
mod flow;
mod real;
mod served;
mod session;
mod tls;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use parking_lot::Mutex;
use portcullis::adapters::mcp::http::endpoint::HttpEndpoint;
use portcullis::adapters::mcp::http::upstream::{HttpSettings, HttpUpstream};
use portcullis::adapters::mcp::transport::Limits;
use portcullis::config::server_keys::Lifecycle;
use portcullis::model::answer::Answer;
use portcullis::model::caller::Caller;
use portcullis::model::name::{RawToolName, ServerName};
use portcullis::model::revision::ConnectionId;
use portcullis::model::secret::Secret;
use portcullis::ports::credentials::Credentials;
use portcullis::ports::upstream::{
    Connection, ConnectionEvent, InFlight, OutgoingCall, StartFailure, Unanswered, Upstream, UpstreamEvents,
    UpstreamLog,
};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout};

use crate::support::PATIENCE;
use crate::support::http_server::HttpServer;

/// The largest message in tests of bounds.
const SMALL: usize = 20_000;
/// What must be in no text.
const HUSH: &str = "hush-hush-hush";

/// Keeps what a connection tells.
#[derive(Debug, Default)]
struct Told {
    changes: Mutex<usize>,
    events: Mutex<Vec<ConnectionEvent>>,
    closed: Mutex<Vec<String>>,
}

impl Told {
    fn saw(&self, event: ConnectionEvent) -> usize {
        self.events.lock().iter().filter(|seen| **seen == event).count()
    }

    fn changes(&self) -> usize {
        *self.changes.lock()
    }

    fn closed(&self) -> Option<String> {
        self.closed.lock().first().cloned()
    }
}

impl UpstreamEvents for Told {
    fn tools_changed(&self, _connection: ConnectionId) {
        *self.changes.lock() += 1;
    }

    fn log(&self, _message: UpstreamLog) {}

    fn event(&self, _connection: ConnectionId, event: ConnectionEvent) {
        self.events.lock().push(event);
    }

    fn closed(&self, _connection: ConnectionId, why: &str) {
        self.closed.lock().push(why.to_owned());
    }
}

/// How a server is connected.
struct How {
    lifecycle: Lifecycle,
    concurrency: usize,
    limits: Limits,
    headers: Vec<(String, Secret)>,
    bearer: Option<Secret>,
    login: Option<Arc<dyn Credentials>>,
}

impl Default for How {
    fn default() -> Self {
        Self {
            lifecycle: Lifecycle::Auto,
            concurrency: 8,
            limits: Limits::default(),
            headers: Vec::new(),
            bearer: None,
            login: None,
        }
    }
}

impl How {
    fn small() -> Self {
        Self { limits: Limits { line: SMALL, waiting: 2 * SMALL }, ..Self::default() }
    }

    fn upstream(&self, url: &str) -> HttpUpstream {
        let endpoint = HttpEndpoint { url: url.to_owned(), headers: self.headers.clone(), bearer: self.bearer.clone() };
        let settings = HttpSettings { limits: self.limits, lifecycle: self.lifecycle, concurrency: self.concurrency };
        HttpUpstream::new(ServerName::parse("web").unwrap(), endpoint, self.login.clone(), settings)
    }

    async fn try_connect(&self, url: &str) -> Result<(Arc<dyn Connection>, Arc<Told>), StartFailure> {
        let told = Arc::<Told>::default();
        let connected = self.upstream(url).connect(Instant::now() + PATIENCE, told.clone()).await;
        connected.map(|connection| (connection, told))
    }

    async fn connect(&self, server: &HttpServer) -> (Arc<dyn Connection>, Arc<Told>) {
        self.try_connect(&server.url()).await.unwrap()
    }

    /// Why there is no connection.
    async fn refused(&self, url: &str) -> String {
        let why = self.try_connect(url).await.err().unwrap().to_string();
        assert!(!why.contains(HUSH), "{why}");
        why
    }
}

async fn connect(server: &HttpServer) -> (Arc<dyn Connection>, Arc<Told>) {
    How::default().connect(server).await
}

fn outgoing(tool: &str) -> OutgoingCall {
    OutgoingCall {
        caller: Caller::local("test"),
        tool: RawToolName::parse(tool).unwrap(),
        arguments: Some(Map::new()),
        meta: Map::new(),
        progress: None,
        questions: None,
    }
}

async fn start(connection: &Arc<dyn Connection>, tool: &str) -> Box<dyn InFlight> {
    connection.hand_over(outgoing(tool)).await.unwrap()
}

/// What comes of a call that was started.
async fn end(mut call: Box<dyn InFlight>) -> Result<Answer, Unanswered> {
    timeout(PATIENCE, call.answer()).await.expect("an answer in time")
}

async fn call(connection: &Arc<dyn Connection>, tool: &str) -> Result<Answer, Unanswered> {
    end(start(connection, tool).await).await
}

/// The text that a tool says.
fn said(answer: Result<Answer, Unanswered>) -> String {
    match answer {
        Ok(Answer::Result(result)) => result.content()[0]["text"].as_str().unwrap().to_owned(),
        other => panic!("{other:?}"),
    }
}

/// The text of the error that a call ended with.
fn failed(answer: Result<Answer, Unanswered>) -> String {
    let why = match answer {
        Ok(Answer::Error(error)) => error.message,
        Ok(Answer::Result(result)) => panic!("{result:?}"),
        Err(unanswered) => unanswered.to_string(),
    };
    assert!(!why.contains(HUSH), "{why}");
    why
}

async fn lives(connection: &Arc<dyn Connection>) {
    assert_eq!(said(call(connection, "t").await), "t");
    assert!(connection.is_open());
}

async fn list(connection: &Arc<dyn Connection>) -> usize {
    connection.list(Instant::now() + PATIENCE).await.unwrap().tools.len()
}

/// The error member of an answer.
fn error(id: &Value, code: i64, message: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message, "data": { "k": [1] } } })
}

/// Runs a command of ours with one server `web`, whose table is this; returns the exit code and all that was printed.
fn command(table: &str, args: &[&str], env: &[(&str, &str)]) -> (i32, String) {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("portcullis/config.toml");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, format!("[mcp_servers.web]\n{table}")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    // A session of its own: a developer's terminal is nobody to ask.
    let mut command = assert_cmd::Command::new("setsid");
    command.arg("--wait").arg(env!("CARGO_BIN_EXE_portcullis")).args(args).current_dir(place.path());
    command.env_clear().env("PATH", std::env::var("PATH").unwrap());
    for name in ["HOME", "XDG_CONFIG_HOME"] {
        command.env(name, place.path());
    }
    command.env("XDG_STATE_HOME", place.path().join("state"));
    let output = command.envs(env.iter().copied()).output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    (output.status.code().unwrap(), text)
}
