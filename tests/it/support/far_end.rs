//! A server inside of the test, line by line: the test reads what we send and writes what it likes.

use std::sync::Arc;

use parking_lot::Mutex;
use portcullis::adapters::mcp::client::{InProcessUpstream, Settings};
use portcullis::config::server_keys::Lifecycle;
use portcullis::model::name::ServerName;
use portcullis::ports::upstream::Upstream;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf, split};
use tokio::sync::mpsc;

use super::PATIENCE;

/// Where the connections to the server arrive.
pub(crate) struct FarEnds(mpsc::UnboundedReceiver<DuplexStream>);

/// One connection, seen from the server.
pub(crate) struct FarEnd {
    lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
    output: WriteHalf<DuplexStream>,
}

/// A server under this name, spoken to in this era.
pub(crate) fn far_ends(name: &str, lifecycle: Lifecycle) -> (Arc<dyn Upstream>, FarEnds) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let sender = Mutex::new(sender);
    let open = move || {
        let (near, far) = tokio::io::duplex(1 << 20);
        sender.lock().send(far).unwrap();
        near
    };
    let settings = Settings { lifecycle, ..Settings::default() };
    let upstream = InProcessUpstream::new(ServerName::parse(name).unwrap(), settings, Arc::new(open));
    (Arc::new(upstream), FarEnds(receiver))
}

impl FarEnds {
    /// Waits for the next connection.
    pub(crate) async fn next(&mut self) -> FarEnd {
        let far = tokio::time::timeout(PATIENCE, self.0.recv()).await.expect("a connection").unwrap();
        let (input, output) = split(far);
        FarEnd { lines: BufReader::new(input).lines(), output }
    }

    /// Waits for the next connection and serves its handshake and its list.
    pub(crate) async fn served(&mut self, tools: &[&str]) -> FarEnd {
        let mut far = self.next().await;
        far.shake().await;
        far.list(tools).await;
        far
    }

    /// Whether nobody else has connected.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.0.try_recv().is_err()
    }
}

impl FarEnd {
    /// Reads the next message; `None`: the other side has closed.
    pub(crate) async fn read_or_end(&mut self) -> Option<Value> {
        let line = tokio::time::timeout(PATIENCE, self.lines.next_line()).await.expect("a message").unwrap_or(None)?;
        Some(serde_json::from_str(&line).unwrap())
    }

    /// Reads the next message.
    pub(crate) async fn read(&mut self) -> Value {
        self.read_or_end().await.expect("the connection is open")
    }

    /// Reads until a message of this method.
    pub(crate) async fn told(&mut self, method: &str) -> Value {
        loop {
            let message = self.read().await;
            if message["method"] == method {
                return message;
            }
        }
    }

    /// Reads the answer to our request with this id.
    pub(crate) async fn answer(&mut self, id: &str) -> Value {
        loop {
            let message = self.read().await;
            if message["id"] == id && message["method"].is_null() {
                return message;
            }
        }
    }

    pub(crate) async fn write(&mut self, message: Value) {
        self.write_raw(&message.to_string()).await;
    }

    pub(crate) async fn write_raw(&mut self, line: &str) {
        self.output.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    /// Answers a request.
    pub(crate) async fn result(&mut self, request: &Value, result: Value) {
        self.write(json!({ "jsonrpc": "2.0", "id": request["id"], "result": result })).await;
    }

    /// Asks something, under this id.
    pub(crate) async fn ask(&mut self, id: &str, method: &str, params: Value) {
        self.write(json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await;
    }

    /// Serves the handshake of the era that is asked for; returns the request.
    pub(crate) async fn shake(&mut self) -> Value {
        let request = self.read().await;
        if request["method"] == "server/discover" {
            let result = json!({
                "resultType": "complete",
                "supportedVersions": ["2026-07-28"],
                "capabilities": { "tools": { "listChanged": true } },
                "_meta": { "io.modelcontextprotocol/serverInfo": { "name": "far", "version": "1" } },
                "serverInfo": { "name": "far", "version": "1" },
                "ttlMs": 0,
                "cacheScope": "private",
            });
            self.result(&request, result).await;
        } else {
            let capabilities = json!({ "tools": { "listChanged": true } });
            let info = json!({ "name": "far", "version": "1" });
            let result = json!({ "protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info });
            self.result(&request, result).await;
            self.told("notifications/initialized").await;
        }
        request
    }

    /// Serves a list of tools without parameters.
    pub(crate) async fn list(&mut self, tools: &[&str]) {
        let request = self.told("tools/list").await;
        let tools: Vec<Value> =
            tools.iter().map(|name| json!({ "name": name, "inputSchema": { "type": "object" } })).collect();
        self.result(&request, json!({ "tools": tools })).await;
    }
}
