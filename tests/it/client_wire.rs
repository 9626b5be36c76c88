//! What a client in front of us sends and gets passes byte by byte, and bad messages get one clear error.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use portcullis::adapters::mcp::client_side::Incoming;
use portcullis::adapters::mcp::transport::{Limits, LineTransport};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ErrorData, ListToolsResult, PaginatedRequestParams,
    ServerCapabilities, ServerConfig,
};
use rmcp::service::{QuitReason, RequestContext, RoleServer};
use rmcp::{ServerHandler, ServiceExt as _};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf};
use tokio::task::JoinHandle;

use crate::support::PATIENCE;

const LIST: &str = r#"{"tools":[{"zeta":1.50,"name":"odd","inputSchema":{"type":"object"}}],"unknown":1e2}"#;

/// Answers `echo` with its own arguments, `odd-error` with an error that rmcp cannot carry, and `hang` never.
#[derive(Clone, Default)]
struct Front {
    cancelled: Arc<Mutex<HashMap<String, usize>>>,
}

impl ServerHandler for Front {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        context.extensions.get::<Incoming>().unwrap().respond(LIST).unwrap();
        Ok(ListToolsResult::default())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let incoming = context.extensions.get::<Incoming>().unwrap();
        assert!(request.arguments.is_none(), "the raw text is the only source of arguments");
        match request.name.as_ref() {
            "echo" => {
                let arguments = incoming.arguments().unwrap_or("absent").to_owned();
                incoming.respond(&format!("{{\"got\":\n{arguments}}}")).unwrap_or_else(|_| {
                    incoming.respond(&json!({ "got": arguments }).to_string()).unwrap();
                });
            }
            "odd-error" => incoming.respond_error(-99_999_999_999, "odd", Some(&json!({ "z": 1, "a": 2 }))),
            "hang" => {
                context.ct.cancelled().await;
                *self.cancelled.lock().entry(incoming.client_id().to_string()).or_default() += 1;
            }
            _ => return Err(ErrorData::invalid_params("no such tool", None)),
        }
        Ok(CallToolResult::success(Vec::new()).into())
    }
}

struct Client {
    input: WriteHalf<DuplexStream>,
    lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
    server: JoinHandle<QuitReason>,
    front: Front,
}

impl Client {
    async fn start(limits: Limits) -> Self {
        let (near, far) = tokio::io::duplex(1 << 20);
        let (input, output) = tokio::io::split(far);
        let front = Front::default();
        let handler = front.clone();
        let server = tokio::spawn(async move {
            let transport = LineTransport::to_client(input, output, limits);
            handler.serve(transport).await.unwrap().waiting().await.unwrap()
        });
        let (output, input) = tokio::io::split(near);
        let mut client = Self { input, lines: BufReader::new(output).lines(), server, front };
        let hello = json!({ "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": { "name": "c", "version": "1" } });
        client
            .send(&json!({ "jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": hello }).to_string())
            .await;
        assert_eq!(client.message().await["id"], "hello");
        client.send(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
        client
    }

    async fn send(&mut self, line: &str) {
        self.input.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    async fn call(&mut self, id: &str, params: &str) {
        self.send(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{params}}}"#)).await;
    }

    async fn line(&mut self) -> String {
        tokio::time::timeout(PATIENCE, self.lines.next_line()).await.unwrap().unwrap().unwrap()
    }

    async fn message(&mut self) -> Value {
        serde_json::from_str(&self.line().await).unwrap()
    }
}

#[tokio::test]
async fn r26_arguments_arrive_as_the_client_spelled_them_and_answers_leave_as_they_were_given() {
    let mut client = Client::start(Limits::default()).await;
    for arguments in [r#"{"a":1,"a":2}"#, r#"{ "b":1.50, "a":1e2 }"#, "null", "[1]", "{}"] {
        client.call("1", &format!(r#"{{"name":"echo","arguments":{arguments},"_meta":{{"progressToken":5}}}}"#)).await;
        // The line feed between two tokens has become a space.
        assert_eq!(client.line().await, format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"got": {arguments}}}}}"#));
    }
    client.call(r#""x""#, r#"{"name":"echo"}"#).await;
    assert_eq!(client.message().await["result"]["got"], "absent");
    client.send(r#"{"jsonrpc":"2.0","id":7,"method":"tools/list"}"#).await;
    assert_eq!(client.line().await, format!(r#"{{"jsonrpc":"2.0","id":7,"result":{LIST}}}"#));
}

#[tokio::test]
async fn arguments_nested_ten_thousand_deep_reach_the_handler_as_text() {
    let mut client = Client::start(Limits::default()).await;
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    client.call("1", &format!(r#"{{"name":"echo","arguments":{deep}}}"#)).await;
    assert!(client.line().await.ends_with(&format!("{deep}}}}}")));
}

#[tokio::test]
async fn an_error_that_rmcp_cannot_carry_passes_whole_and_one_of_the_handler_too() {
    let mut client = Client::start(Limits::default()).await;
    client.call("1", r#"{"name":"odd-error"}"#).await;
    let expected = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-99999999999,"message":"odd","data":{"z":1,"a":2}}}"#;
    assert_eq!(client.line().await, expected);
    client.call("2", r#"{"name":"missing"}"#).await;
    let answer = client.message().await;
    assert_eq!((&answer["id"], &answer["error"]["message"]), (&json!(2), &json!("no such tool")));
}

#[tokio::test]
async fn pitfall_11_a_client_that_uses_one_id_for_everything_gets_each_of_its_answers() {
    let mut client = Client::start(Limits::default()).await;
    for i in 0..20 {
        client.call("1", &format!(r#"{{"name":"echo","arguments":{i}}}"#)).await;
    }
    let mut got = Vec::new();
    for _ in 0..20 {
        let answer = client.message().await;
        assert_eq!(answer["id"], 1);
        got.push(answer["result"]["got"].as_u64().unwrap());
    }
    got.sort_unstable();
    assert_eq!(got, (0..20).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_client_that_reads_gets_all_its_answers_however_large_they_are_together() {
    let mut client = Client::start(Limits { waiting: 1 << 20, ..Limits::default() }).await;
    let filler = "x".repeat(3 << 20);
    for id in 0..4 {
        client.call(&id.to_string(), &format!(r#"{{"name":"echo","arguments":"{filler}"}}"#)).await;
    }
    // Refused on the spot, though the queue is full.
    client.call("4", "[1]").await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(client.message().await["id"].as_u64().unwrap());
    }
    ids.sort_unstable();
    assert_eq!(ids, [0, 1, 2, 3, 4]);
}

#[tokio::test]
async fn a_cancelled_request_is_told_to_its_handler_and_gets_no_answer() {
    let mut client = Client::start(Limits::default()).await;
    client.call(r#""h""#, r#"{"name":"hang"}"#).await;
    client.send(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"h"}}"#).await;
    client.send(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"unknown"}}"#).await;
    let cancelled = client.front.cancelled.clone();
    crate::support::eventually("cancelled", || cancelled.lock().get("h").copied()).await;
    client.call("2", r#"{"name":"echo","arguments":1}"#).await;
    assert_eq!(client.message().await["id"], 2, "the cancelled one was answered");
}

#[tokio::test]
async fn a_bad_message_gets_an_error_that_names_what_is_wrong_and_the_session_goes_on() {
    let mut client = Client::start(Limits { line: 100_000, ..Limits::default() }).await;
    for (params, wanted) in [
        ("[1]", "`params` is not an object"),
        ("{}", "missing field `name`"),
        (r#"{"name":7}"#, "expected a string"),
        (r#"{"name":"echo","arguments":{},"arguments":{}}"#, "duplicate field `arguments`"),
        (r#"{"name":"echo","_meta":[]}"#, "invalid type"),
    ] {
        client.call("1", params).await;
        let answer = client.message().await;
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(1), &json!(-32602)), "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(wanted), "{answer}");
    }
    client.send(r#"{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":7}}"#).await;
    assert_eq!(client.message().await["error"]["code"], -32602);
    client.send(r#"{"jsonrpc":"2.0","id":{},"method":"tools/list"}"#).await;
    assert_eq!(client.message().await["error"]["code"], -32600);
    client.send(r#"{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"#).await;
    assert_eq!(client.message().await["error"]["code"], -32700);
    for at in ["head", "tail"] {
        let filler = "x".repeat(100_000);
        let line = match at {
            "head" => format!(r#"{{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{{"name":"{filler}"}}}}"#),
            _ => format!(r#"{{"method":"tools/call","params":{{"name":"{filler}"}},"jsonrpc":"2.0","id":4}}"#),
        };
        client.send(&line).await;
        let answer = client.message().await;
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(4), &json!(-32600)), "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("100000 bytes"));
    }
    client.send("hello?\n\n[1]\n{\"a\":1}").await;
    // Of these the batch alone is somebody's question.
    assert_eq!(client.message().await["error"]["code"], -32600);
    client.call("9", r#"{"name":"echo","arguments":1}"#).await;
    assert_eq!(client.message().await["id"], 9);
}

#[tokio::test]
async fn the_end_of_the_input_ends_the_session_after_the_answers_that_are_under_way() {
    let mut client = Client::start(Limits::default()).await;
    client.call("1", r#"{"name":"echo","arguments":1}"#).await;
    client.input.shutdown().await.unwrap();
    assert_eq!(client.message().await["id"], 1);
    assert_eq!(tokio::time::timeout(PATIENCE, client.lines.next_line()).await.unwrap().unwrap(), None);
    assert!(matches!(client.server.await.unwrap(), QuitReason::Closed));
}
