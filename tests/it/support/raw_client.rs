//! An MCP client that keeps the raw text of every answer, over a child's pipes or over HTTP.
//!
//! It shares no code with what it tests: messages are cut with `serde_json`'s raw values, and nothing in them is
//! interpreted but `id` and `method`. Over pipes it answers a server's questions, always in the same way.

use std::collections::BTreeMap;
use std::process::{ExitStatus, Stdio};

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Split};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::PATIENCE;

const VERSION: &str = "2025-11-25";

/// The answer to a request, as it was spelled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    Result(String),
    Error(String),
}

impl Reply {
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Result(text) | Self::Error(text) => text,
        }
    }
}

/// A tool as it was listed: its members, each as it was spelled, and their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Definition {
    pub(crate) members: BTreeMap<String, String>,
    pub(crate) order: Vec<String>,
}

impl Definition {
    fn parse(text: &str) -> Self {
        let members: BTreeMap<String, &RawValue> = serde_json::from_str(text).unwrap();
        let value: Value = serde_json::from_str(text).unwrap();
        Self {
            members: members.into_iter().map(|(name, value)| (name, value.get().to_owned())).collect(),
            order: value.as_object().unwrap().keys().cloned().collect(),
        }
    }

    pub(crate) fn name(&self) -> String {
        serde_json::from_str(&self.members["name"]).unwrap()
    }

    pub(crate) fn schema(&self) -> Value {
        serde_json::from_str(&self.members["inputSchema"]).unwrap()
    }
}

/// What is looked at in a message.
#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    method: Option<String>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// A client and, over stdio, its server.
pub(crate) struct RawClient {
    link: Link,
    last: u64,
}

enum Link {
    Pipes { child: Box<Child>, input: ChildStdin, lines: Split<BufReader<ChildStdout>> },
    Http { http: reqwest::Client, url: String, session: Option<String> },
}

impl RawClient {
    /// Starts a server; what it writes to stderr is dropped.
    pub(crate) fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = Box::new(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")));
        let lines = BufReader::new(child.stdout.take().unwrap()).split(b'\n');
        Self { link: Link::Pipes { input: child.stdin.take().unwrap(), lines, child }, last: 0 }
    }

    /// Makes a client of a server that listens already.
    pub(crate) fn http(url: String) -> Self {
        // Whoever else is in this process may have chosen one; any will do.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().timeout(PATIENCE).no_proxy().build().unwrap();
        Self { link: Link::Http { http, url, session: None }, last: 0 }
    }

    /// Returns the server's process, if this client started it.
    pub(crate) fn pid(&self) -> Option<u32> {
        match &self.link {
            Link::Pipes { child, .. } => child.id(),
            Link::Http { .. } => None,
        }
    }

    /// Shakes hands. `capabilities` are the client's.
    pub(crate) async fn initialize(&mut self, capabilities: &Value) {
        let info = json!({ "name": "raw", "version": "1" });
        let params = json!({ "protocolVersion": VERSION, "capabilities": capabilities, "clientInfo": info });
        let reply = self.request("initialize", &params.to_string()).await;
        assert!(matches!(reply, Reply::Result(_)), "the handshake failed: {reply:?}");
        self.put(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
    }

    /// Sends a request and returns its answer.
    pub(crate) async fn request(&mut self, method: &str, params: &str) -> Reply {
        self.last += 1;
        let id = self.last;
        let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        if let Some(answer) = self.put(&line).await {
            return reply_in(&answer, id).unwrap_or_else(|| panic!("no answer to {line} in {answer}"));
        }
        loop {
            let line = self.line().await;
            let Ok(message) = serde_json::from_str::<Message<'_>>(&line) else { continue };
            if let (Some(question), Some(id)) = (message.method.as_deref(), message.id) {
                self.answer(id, answer_to(question)).await;
            }
            if let Some(reply) = reply(&message, id) {
                return reply;
            }
        }
    }

    /// Calls a tool; the arguments are spelled by the caller.
    pub(crate) async fn call(&mut self, tool: &str, arguments: &str) -> Reply {
        let name = Value::from(tool);
        self.request("tools/call", &format!(r#"{{"name":{name},"arguments":{arguments}}}"#)).await
    }

    /// Returns every tool, of all pages.
    pub(crate) async fn tools(&mut self) -> Vec<Definition> {
        #[derive(Deserialize)]
        struct Page<'a> {
            #[serde(borrow)]
            tools: Vec<&'a RawValue>,
            #[serde(rename = "nextCursor")]
            next: Option<String>,
        }
        let (mut tools, mut params) = (Vec::new(), "{}".to_owned());
        loop {
            let reply = self.request("tools/list", &params).await;
            let Reply::Result(text) = &reply else { panic!("the list failed: {reply:?}") };
            let page: Page<'_> = serde_json::from_str(text).unwrap();
            tools.extend(page.tools.iter().map(|tool| Definition::parse(tool.get())));
            match page.next {
                Some(cursor) => params = json!({ "cursor": cursor }).to_string(),
                None => return tools,
            }
        }
    }

    /// Ends the server's input and waits for its end.
    pub(crate) async fn end(self) -> Option<ExitStatus> {
        let Link::Pipes { mut child, input, mut lines } = self.link else { return None };
        drop(input);
        let ended = async {
            // Read on, so that nothing keeps it from ending.
            while let Ok(Some(_)) = lines.next_segment().await {}
            child.wait().await.unwrap()
        };
        Some(timeout(PATIENCE, ended).await.expect("the server does not end with its input"))
    }

    async fn answer(&mut self, id: &RawValue, what: &str) {
        self.put(&format!(r#"{{"jsonrpc":"2.0","id":{id},{what}}}"#)).await;
    }

    async fn line(&mut self) -> String {
        let Link::Pipes { lines, .. } = &mut self.link else { panic!("HTTP answers in the response") };
        loop {
            let line = timeout(PATIENCE, lines.next_segment()).await.expect("the server says nothing");
            // Some servers write what is no message, not even text.
            if let Ok(text) = String::from_utf8(line.unwrap().expect("the server ended its output")) {
                return text;
            }
        }
    }

    /// Sends a message. Over HTTP returns what came back, as it came.
    async fn put(&mut self, message: &str) -> Option<String> {
        match &mut self.link {
            Link::Pipes { input, .. } => {
                input.write_all(format!("{message}\n").as_bytes()).await.expect("the server takes nothing");
                None
            }
            Link::Http { http, url, session } => {
                let mut request = http.post(url.as_str()).header("Content-Type", "application/json");
                request = request.header("Accept", "application/json, text/event-stream");
                if let Some(session) = session {
                    request =
                        request.header("Mcp-Session-Id", session.as_str()).header("MCP-Protocol-Version", VERSION);
                }
                let response = request.body(message.to_owned()).send().await.unwrap();
                let status = response.status();
                if let Some(id) = response.headers().get("Mcp-Session-Id") {
                    *session = Some(id.to_str().unwrap().to_owned());
                }
                let text = response.text().await.unwrap();
                assert!(status.is_success(), "{status}: {text}");
                Some(text)
            }
        }
    }
}

/// What this client says to a question of a server.
fn answer_to(question: &str) -> &'static str {
    match question {
        "ping" => r#""result":{}"#,
        "roots/list" => r#""result":{"roots":[{"uri":"file:///nowhere","name":"nowhere"}]}"#,
        "elicitation/create" => r#""result":{"action":"decline"}"#,
        "sampling/createMessage" => {
            r#""result":{"role":"assistant","content":{"type":"text","text":"said"},"model":"none","stopReason":"endTurn"}"#
        }
        _ => r#""error":{"code":-32601,"message":"not offered"}"#,
    }
}

/// The answer in the body of a response: JSON, or events of which one is the answer.
fn reply_in(body: &str, id: u64) -> Option<Reply> {
    let events = body.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim_start);
    let found = |text: &str| serde_json::from_str::<Message<'_>>(text).ok().and_then(|message| reply(&message, id));
    found(body).or_else(|| events.into_iter().find_map(found))
}

fn reply(message: &Message<'_>, id: u64) -> Option<Reply> {
    if message.method.is_some() || message.id?.get() != id.to_string() {
        return None;
    }
    let result = message.result.map(|text| Reply::Result(text.get().to_owned()));
    result.or_else(|| message.error.map(|text| Reply::Error(text.get().to_owned())))
}
