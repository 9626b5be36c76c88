//! A whole agent on embedded servers: a scripted model, its tools, a person who is asked, and the transcript.
//!
//! ```sh
//! cargo run --example agent
//! ```
//!
//! The loop is what a real agent does with a real model: take a step, give the model the conversation and the step's tools,
//! run its function calls, and give it their outputs, until it has no more calls. Everything between a call and its output is
//! the host's pipeline. Put a client of a model's provider in the place of [`Script`] to have a real one.

use std::collections::VecDeque;
use std::error::Error;
use std::sync::Arc;

use async_trait::async_trait;
use portcullis::adapters::mcp::client::{InProcessUpstream, Settings};
use portcullis::adapters::record::memory::MemoryRecorder;
use portcullis::host::build::{Built, HostBuilder, server_of};
use portcullis::host::listing::Surface;
use portcullis::host::step::{FunctionCall, Step};
use portcullis::host::user::local_caller;
use portcullis::host::wire::model_view;
use portcullis::model::item::Item;
use portcullis::model::layer::LayerKind;
use portcullis::model::name::{CallId, ServerName};
use portcullis::model::posture::Channel;
use portcullis::pipeline::admit::exposure::Exposing;
use portcullis::pipeline::emit::views::model::ModelViewOptions;
use portcullis::ports::reviewer::{Question, Reply, Reviewer, Roles};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler, ServiceExt as _};
use serde_json::{Map, Value, json};
use tokio::io::DuplexStream;

/// The organisation's layer: secrets never reach the model.
const ORGANISATION: &str = r#"
[[policies]]
name = "secrets"
component = "builtin:sanitise-secrets"
"#;

/// The most steps of one turn.
const MAX_STEPS: usize = 16;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let recorder = Arc::new(MemoryRecorder::new(64));
    let (notes, mail) = (ServerName::parse("notes")?, ServerName::parse("mail")?);
    let folder = std::env::temp_dir();
    let Built { host, resolved, desk: _ } = HostBuilder::new()
        .layer(LayerKind::Organisation, ORGANISATION, folder)
        .server(LayerKind::User, notes.clone(), server_of(&notes, upstream(&notes, self::notes()), true))
        .server(LayerKind::User, mail.clone(), server_of(&mail, upstream(&mail, self::mail()), true))
        .recorder(Arc::clone(&recorder) as _)
        .start()
        .await?;
    // Servers start beside each other; who cannot wait takes a step with those that are there.
    host.fleet().settle_fully().await;

    let session = host.session(local_caller(), Arc::new(Person));
    // The model finds tools by search instead of being given all of them.
    session.show_on(Surface::Library(Exposing { search: true, ..Exposing::library() }));

    let mut model = Script::new();
    let mut input = vec![json!({ "role": "user", "content": "Send my plan for Friday to Ann, then clear the notes." })];
    say("user", &input[0]["content"]);
    for _ in 0..MAX_STEPS {
        let step = session.step().await?;
        let output = model.respond(&input, &step.tools());
        let calls: Vec<Value> = output.iter().filter(|item| item["type"] == "function_call").cloned().collect();
        for item in output.iter().filter(|item| item["type"] == "message") {
            say("model", &item["content"]);
        }
        input.extend(output);
        if calls.is_empty() {
            break;
        }
        for call in calls {
            let output = run(&session, &step, &call, &resolved).await;
            input.push(json!({ "type": "function_call_output", "call_id": call["call_id"], "output": output }));
        }
    }

    println!("\nitems");
    for item in recorder.items() {
        if let Item::Completed(done) = item {
            let failure = done.failure().map(|failure| format!(", {}", failure.code.as_str())).unwrap_or_default();
            println!("  {}: {}{failure}", done.call.tool, json!(done.status).as_str().unwrap_or_default());
        }
    }
    host.shutdown(std::time::Duration::from_secs(1)).await;
    Ok(())
}

/// Runs one function call of the model, and returns what it reads of it.
async fn run(
    session: &portcullis::host::session::Session,
    step: &Step,
    call: &Value,
    resolved: &portcullis::config::Resolved,
) -> Value {
    let text = |key: &str| call[key].as_str().unwrap_or_default();
    let namespace = call["namespace"].as_str();
    let name = namespace.map_or_else(|| text("name").to_owned(), |namespace| format!("{namespace} {}", text("name")));
    say("call", &json!(format!("{name} {}", text("arguments"))));
    let mut made = FunctionCall::new(namespace, text("name"), text("arguments"));
    made.id = CallId::new(text("call_id"));
    let options = step
        .resolve(namespace, text("name"))
        .map(|offer| model_view(resolved, &offer.handler.tool().reference(), ModelViewOptions::default()));
    let output = session.dispatch(step, made).await.output(&options.unwrap_or_default()).await;
    say("output", &output);
    output
}

/// Prints a line of the transcript. The wall time differs from run to run, so it is left out.
fn say(who: &str, what: &Value) {
    let text = what.as_str().map_or_else(|| what.to_string(), str::to_owned);
    let lines = text.lines().filter(|line| !line.starts_with("Wall time:") && *line != "Output:");
    println!("{who:>7}  {}", lines.collect::<Vec<_>>().join("\n         "));
}

/// A model that says what it is scripted to say, whatever it is asked; it looks at its input only to see that the answers
/// of its calls came.
struct Script(VecDeque<Vec<Value>>);

impl Script {
    fn new() -> Self {
        let call = |id: &str, namespace: Option<&str>, name: &str, arguments: Value| {
            let mut item = json!({
                "type": "function_call", "call_id": id, "name": name, "arguments": arguments.to_string(),
            });
            if let Some(namespace) = namespace {
                item["namespace"] = namespace.into();
            }
            item
        };
        let (notes, mail) = (Some("mcp__notes"), Some("mcp__mail"));
        let turns = [
            vec![call("1", None, "tool_search", json!({ "query": "read a note, send a mail" }))],
            vec![call("2", notes, "read_note", json!({ "name": "friday" }))],
            // Not what the tool takes: the model is told where, and tries again.
            vec![call("3", mail, "send", json!({ "to": ["ann"], "text": "The plan." }))],
            vec![call("4", mail, "send", json!({ "to": "ann", "text": "The plan for Friday: plants at nine." }))],
            vec![call("5", notes, "clear", json!({}))],
            vec![call("6", notes, "burn", json!({}))],
            vec![
                json!({ "type": "message", "role": "assistant", "content": "Ann has the plan; the notes are still there." }),
            ],
        ];
        Self(turns.into())
    }

    fn respond(&mut self, input: &[Value], tools: &[Value]) -> Vec<Value> {
        let answered =
            |id: &Value| input.iter().any(|item| item["type"] == "function_call_output" && item["call_id"] == *id);
        let open = input.iter().filter(|item| item["type"] == "function_call" && !answered(&item["call_id"]));
        assert_eq!(open.count(), 0, "a call was not answered");
        assert!(!tools.is_empty(), "no tools were given");
        self.0.pop_front().unwrap_or_default()
    }
}

/// The person at the desk: mails may go out, nothing is cleared.
struct Person;

#[async_trait]
impl Reviewer for Person {
    async fn ask(&self, question: &Question) -> Reply {
        let allows = question.tool.server.as_str() == "mail";
        let why: Vec<&str> = question.asks.iter().map(|ask| ask.ask.reason.text.as_str()).collect();
        let answer = if allows { "yes" } else { "no" };
        say("person", &json!(format!("{} {}? {answer} ({})", question.tool, question.arguments, why.join("; "))));
        match (allows, question.options.first()) {
            (true, Some(narrowest)) => Reply::Allowed {
                remember: *narrowest,
                approver: "the person".to_owned(),
                channel: Channel::Program,
                roles: Roles::none(),
            },
            _ => Reply::Declined,
        }
    }
}

/// A small MCP server, as one would write it with any library.
#[derive(Clone)]
struct Server {
    name: &'static str,
    tools: Vec<Tool>,
    work: fn(&str, &Map<String, Value>) -> String,
}

fn upstream(name: &ServerName, server: Server) -> Arc<InProcessUpstream> {
    let open = move || server.open();
    Arc::new(InProcessUpstream::new(name.clone(), Settings::default(), Arc::new(open)))
}

impl Server {
    fn open(&self) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let server = self.clone();
        tokio::spawn(async move {
            if let Ok(running) = server.serve(theirs).await {
                let _ended = running.waiting().await;
            }
        });
        ours
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        ServerConfig::new(capabilities).with_server_info(Implementation::new(self.name, "1.0.0"))
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.tools.clone()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let text = (self.work)(&request.name, &request.arguments.unwrap_or_default());
        Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
    }
}

fn tool(name: &'static str, description: &'static str, properties: &[&str]) -> Tool {
    let texts: Map<String, Value> =
        properties.iter().map(|name| ((*name).to_owned(), json!({ "type": "string" }))).collect();
    let schema =
        json!({ "type": "object", "properties": texts, "required": properties, "additionalProperties": false });
    let Value::Object(schema) = schema else { unreachable!("it is written as an object") };
    Tool::new(name, description, Arc::new(schema))
}

/// Notes, one of them with a password in it that nobody should send on.
fn notes() -> Server {
    let (reads, destroys) = (ToolAnnotations::new().read_only(true), ToolAnnotations::new().destructive(true));
    Server {
        name: "notes",
        tools: vec![
            tool("read_note", "Reads one of your notes", &["name"]).with_annotations(reads),
            tool("clear", "Deletes all notes", &[]).with_annotations(destroys),
        ],
        work: |tool, _arguments| match tool {
            "read_note" => {
                "Friday: plants at nine. Database: postgres://ann:tr0ub4dor-and-3@db.example/plants".to_owned()
            }
            _ => "all notes are gone".to_owned(),
        },
    }
}

/// A mailer that delivers nowhere.
fn mail() -> Server {
    let reaches_out = ToolAnnotations::new().destructive(false).open_world(true);
    Server {
        name: "mail",
        tools: vec![tool("send", "Sends a mail to somebody", &["to", "text"]).with_annotations(reaches_out)],
        work: |_tool, arguments| format!("sent to {}", arguments["to"].as_str().unwrap_or_default()),
    }
}
