//! A secret that a server says appears nowhere: every place it can stand in, times everyone who is told of an answer.
//!
//! The shipped sanitiser looks; the server is played line by line. Without the sanitiser the same answers are seen by the same
//! consumers, which shows that they would have been.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use portcullis::adapters::record::memory::MemoryRecorder;
use portcullis::config::Places;
use portcullis::config::server_keys::Lifecycle;
use portcullis::gateway::ServeOptions;
use portcullis::host::Host;
use portcullis::host::build::{Built, HostBuilder, server_of};
use portcullis::host::listing::Surface;
use portcullis::host::step::{Dispatched, FunctionCall};
use portcullis::model::caller::{CallSource, Caller};
use portcullis::model::layer::LayerKind;
use portcullis::model::name::ServerName;
use portcullis::pipeline::admit::exposure::Exposing;
use portcullis::pipeline::emit::views::hook::HookView;
use portcullis::pipeline::emit::views::model::{ModelView, ModelViewOptions};
use portcullis::pipeline::emit::views::script::ScriptView;
use portcullis::pipeline::follow::evidence::EvidenceOptions;
use portcullis::ports::reviewer::NobodyThere;
use serde_json::{Value, json};
use tracing_subscriber::fmt::MakeWriter;

use crate::support::far_end::{FarEnd, far_ends};
use crate::support::gate::Client;
use crate::support::http_server::{HttpServer, json as http_json};
use crate::support::write_owned;

/// Two halves of a token; neither is one.
const HALVES: [&str; 2] = ["ghp_q7Rt2KzW9mXc4VbN8", "pLs5DfG1hJ6kYaE3uT0oB"];
/// What stands beside it, and may be seen.
const MARK: &str = "beside-the-secret";

const CLEANED: &str = "[[policies]]\nname = 'secrets'\ncomponent = 'builtin:sanitise-secrets'\n";

fn secret() -> String {
    HALVES.concat()
}

/// Everything that was told, by who was told it.
type Seen = BTreeMap<&'static str, String>;

/// The log of the process, spans included.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Everything that is logged on this thread from now on.
    fn heard() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_span_events(tracing_subscriber::fmt::format::FmtSpan::FULL)
            .with_writer(log.clone())
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock()).into_owned()
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// A host over a server that the test plays, with a hook that keeps what it is told, and a record.
struct House {
    built: Built,
    far: FarEnd,
    items: Arc<MemoryRecorder>,
    reviewer: HttpServer,
    folder: tempfile::TempDir,
}

impl House {
    async fn new(cleaned: bool, tool: &Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let told = folder.path().join("told");
        let state = folder.path().join("state");
        let reviewer = HttpServer::start(|_| async {
            Some(http_json(&json!({ "status": "completed", "output": [{ "type": "message", "content": [
                { "type": "output_text", "text": r#"{"outcome":"deny"}"# }] }] })))
        });
        let (name, items) = (ServerName::parse("far").unwrap(), Arc::new(MemoryRecorder::new(64)));
        let (upstream, mut ends) = far_ends("far", Lifecycle::Legacy);
        let layer = format!(
            "approvals_reviewer = 'auto_review'\n[reviewer]\ntype = 'http'\nurl = '{}'\nmodel = 'm'\n[records]\nkeep = true\ninputs = true\n[[hooks.PostToolUse]]\n[[hooks.PostToolUse.hooks]]\ntype = 'command'\n\
             command = ['/bin/sh', '-c', 'cat >> {}']\n",
            reviewer.url(),
            told.display(),
        );
        let layer = if cleaned { format!("{layer}{CLEANED}") } else { layer };
        write_owned(&told, "");
        let building = HostBuilder::new()
            .places(Places { state: Some(state), ..Places::nowhere() })
            .layer(LayerKind::User, layer, folder.path())
            .server(LayerKind::User, name.clone(), server_of(&name, upstream, true))
            .recorder(Arc::clone(&items) as _)
            .start();
        let (built, far) = tokio::join!(building, async {
            let mut far = ends.next().await;
            far.shake().await;
            let request = far.told("tools/list").await;
            // One that no annotation relaxes is asked about.
            let reviewed = json!({ "name": "reviewed", "inputSchema": { "type": "object" } });
            far.result(&request, json!({ "tools": [tool, reviewed] })).await;
            far
        });
        let built = built.unwrap();
        built.host.fleet().settle_fully().await;
        Self { built, far, items, reviewer, folder }
    }

    fn host(&self) -> &Arc<Host> {
        &self.built.host
    }

    /// What is in the files that are kept: what hooks were told, and the record.
    fn kept(&self, path: &Path, into: &mut String) {
        for entry in std::fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                self.kept(&path, into);
            } else {
                into.push_str(&String::from_utf8_lossy(&std::fs::read(&path).unwrap()));
            }
        }
    }

    async fn end(self, mut seen: Seen) -> Seen {
        seen.insert("items", json!(self.items.items()).to_string());
        seen.insert("decisions", json!(self.items.decisions()).to_string());
        self.built.host.shutdown(Duration::from_secs(5)).await;
        let mut state = String::new();
        self.kept(&self.folder.path().join("state"), &mut state);
        seen.insert("records", state);
        seen.insert("hook", std::fs::read_to_string(self.folder.path().join("told")).unwrap());
        seen
    }
}

fn tool() -> Value {
    json!({ "name": "t", "inputSchema": { "type": "object" }, "annotations": { "readOnlyHint": true } })
}

/// What everyone is told of one call that is answered so.
async fn told_of(cleaned: bool, answer: &Value) -> Seen {
    let (log, _heard) = Log::heard();
    let mut house = House::new(cleaned, &tool()).await;
    let mut seen = Seen::new();

    // As a library: a script's call.
    let session = house.host().session(Caller::local("ann"), Arc::new(NobodyThere));
    session.show_on(Surface::Library(Exposing::library()));
    session.keep_evidence(EvidenceOptions { servers: ["far".to_owned()].into(), ..EvidenceOptions::default() });
    let step = session.step().await.unwrap();
    let source = CallSource::Script { cell: "1".into() };
    let call = FunctionCall { source, ..FunctionCall::new(Some("mcp__far"), "t", "{}") };
    let (dispatched, ()) = tokio::join!(session.dispatch(&step, call), reply(&mut house.far, answer));
    let Dispatched::Called(finished) = dispatched else { panic!("{dispatched:?}") };
    let view = ModelView::of(&finished.clean, Duration::ZERO, &ModelViewOptions::default()).await;
    seen.insert("model", json!(view).to_string());
    seen.insert("script", ScriptView::of(&finished.clean).text());
    let response = HookView::of(&finished.clean).map(|view| view.into_response().to_string());
    seen.insert("hook view", response.unwrap_or_default());
    seen.insert("item", json!(finished.item).to_string());
    seen.insert("error text", format!("{:?}", finished.item.failure()));
    seen.insert("evidence", session.evidence().after(0).map(|evidence| evidence.text).unwrap_or_default());
    // The next call is reviewed: what goes to the reviewer's server has the evidence of the first one.
    let next = FunctionCall::new(Some("mcp__far"), "reviewed", "{}");
    let _refused = session.dispatch(&step, next).await;
    seen.insert("reviewer", house.reviewer.asked().iter().map(|asked| asked.body.to_string()).collect());
    assert_ne!(seen["reviewer"], "", "nobody was asked to review");

    // Through the gateway: progress and a log message beside the answer.
    let mut client = Client::of(house.host(), ServeOptions::default());
    client.greet(json!({})).await;
    client.call("1", r#"{"name":"far__t","arguments":{},"_meta":{"progressToken":"p"}}"#).await;
    reply(&mut house.far, answer).await;
    let line = client.find(|message| message["id"] == 1).await;
    seen.insert("client", line);
    let mut seen = house.end(seen).await;
    seen.insert("log and spans", log.text());
    seen
}

/// Answers the next call with a result, or with an error where it is one.
async fn reply(far: &mut FarEnd, answer: &Value) {
    let request = far.told("tools/call").await;
    let mut message = json!({ "jsonrpc": "2.0", "id": request["id"] });
    match answer.get("code") {
        Some(_) => message["error"] = answer.clone(),
        None => message["result"] = answer.clone(),
    }
    far.write(message).await;
}

fn text(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

/// The places in which a secret can stand in an answer.
fn places() -> Vec<(&'static str, Value)> {
    let secret = secret();
    let said = format!("{MARK} {secret} end");
    let quoted = json!({ "token": secret, "note": MARK }).to_string();
    let resource = |resource: Value| json!({ "type": "resource", "resource": resource });
    let link = |extra: Value| {
        let mut link = json!({ "type": "resource_link", "uri": "file:///a", "name": MARK });
        link.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        link
    };
    let with = |content: Value| json!({ "content": content });
    vec![
        ("text", with(json!([text(&said)]))),
        ("structured content", json!({ "content": [text(MARK)], "structuredContent": { "a": [{ "b": said }] } })),
        ("a key", json!({ "content": [text(MARK)], "structuredContent": { secret.clone(): 1, "note": MARK } })),
        ("embedded resource", with(json!([resource(json!({ "uri": "file:///a", "text": said }))]))),
        ("a resource's address", with(json!([resource(json!({ "uri": format!("x://a/{secret}"), "text": MARK }))]))),
        ("link", with(json!([link(json!({ "description": said })), text(MARK)]))),
        (
            "a link's address",
            with(json!([link(json!({ "uri": format!("https://e.example/?t={secret}") })), text(MARK)])),
        ),
        ("tool error", json!({ "content": [text(&said)], "isError": true })),
        ("protocol error", json!({ "code": -32000, "message": said })),
        ("an error's data", json!({ "code": -32000, "message": MARK, "data": { "why": said } })),
        ("_meta", json!({ "content": [text(MARK)], "_meta": { "a/b": said } })),
        ("a block's _meta", with(json!([{ "type": "text", "text": MARK, "_meta": { "a/b": said } }]))),
        ("a block of an unknown type", with(json!([{ "type": "novel", "x": { "y": said } }, text(MARK)]))),
        ("an unknown member", json!({ "content": [text(MARK)], "novel": [said] })),
        ("two texts", with(json!([text(&format!("{MARK} {}", HALVES[0])), text(HALVES[1])]))),
        ("JSON in a string", with(json!([text(&quoted)]))),
        (
            "JSON in a string in structured content",
            json!({ "content": [text(MARK)], "structuredContent": { "j": quoted } }),
        ),
        ("JSON in a string, spelled with escapes", with(json!([text(&quoted.replace("ghp_", "\\u0067hp_"))]))),
    ]
}

fn assert_hidden(place: &str, seen: &Seen) {
    for (who, told) in seen {
        for half in HALVES {
            assert!(!told.contains(half), "{place}: {who} is told a part of the secret: {told}");
        }
        assert!(!told.contains("\\u0067hp_"), "{place}: {who} is told the secret in escapes: {told}");
    }
}

#[tokio::test]
async fn a_secret_in_any_place_of_an_answer_is_told_to_nobody() {
    for (place, answer) in places() {
        let seen = told_of(true, &answer).await;
        assert_hidden(place, &seen);
        // The answer did arrive: what may be seen of it is seen.
        assert!(seen["client"].contains(MARK) || seen["client"].contains("redacted"), "{place}: {}", seen["client"]);
    }
}

#[tokio::test]
async fn without_a_sanitiser_the_secret_is_told_from_every_place() {
    for (place, answer) in places() {
        let seen = told_of(false, &answer).await;
        // Spelled in escapes it is another text, and two texts are two.
        let wanted = if seen["client"].contains("\\u0067") { HALVES[0].trim_start_matches('g') } else { HALVES[0] };
        let told = |who: &str| seen[who].contains(wanted) && seen[who].contains(HALVES[1]);
        assert!(told("client"), "{place}: {}", seen["client"]);
        match place {
            // Its data is the gateway's client's alone, and a message is for nobody who is told of results.
            "an error's data" => {}
            "protocol error" => assert!(told("model") && told("item"), "{place}"),
            "tool error" => assert!(told("model") && told("script") && told("item"), "{place}"),
            _ => assert!(told("hook") && told("hook view") && told("item") && told("items"), "{place}: {seen:?}"),
        }
    }
}

#[tokio::test]
async fn without_a_sanitiser_everyone_who_is_told_of_an_answer_is_told_the_secret() {
    let seen = told_of(false, &json!({ "content": [text(&secret())] })).await;
    for who in ["model", "script", "hook view", "hook", "item", "items", "client", "evidence", "reviewer"] {
        assert!(seen[who].contains(&secret()), "{who} is told nothing: the other test cannot fail there");
    }
    // These are told of a call, and never of its answer.
    for who in ["records", "decisions", "log and spans", "error text"] {
        assert!(!seen[who].contains(&secret()), "{who} is told the answer: {}", seen[who]);
    }
    for who in ["records", "decisions", "log and spans"] {
        assert!(seen[who].contains("far"), "{who} is told nothing of the call");
    }
    let failed = told_of(false, &json!({ "code": -1, "message": secret() })).await;
    assert!(failed["error text"].contains(&secret()));
    assert!(!failed["records"].contains(&secret()), "{}", failed["records"]);
}

#[tokio::test]
async fn a_secret_in_progress_in_a_log_message_and_in_a_definition_is_told_to_nobody() {
    let secret = secret();
    let mut tool = tool();
    tool["description"] = format!("{MARK} {secret}").into();
    tool["title"] = secret.clone().into();
    tool["_meta"] = json!({ "ui": { "resourceUri": format!("ui://{secret}") } });
    let (heard, _guard) = Log::heard();
    let mut house = House::new(true, &tool).await;
    let session = house.host().session(Caller::local("ann"), Arc::new(NobodyThere));
    session.show_on(Surface::Library(Exposing { search: true, ..Exposing::library() }));
    let step = session.step().await.unwrap();
    let found = session.find(&step, MARK, None).unwrap();
    let mut seen = Seen::new();
    seen.insert("specs", json!(step.tools()).to_string());
    seen.insert("search", json!(found).to_string());
    seen.insert("scripts", step.scripts().map(|spec| format!("{spec:?}")).collect());
    assert!(seen["search"].contains(MARK), "{}", seen["search"]);

    let mut client = Client::of(house.host(), ServeOptions::default());
    client.greet(json!({})).await;
    seen.insert("list", client.list().await.to_string());
    client.call("1", r#"{"name":"far__t","arguments":{},"_meta":{"progressToken":"p"}}"#).await;
    let request = house.far.told("tools/call").await;
    let progress = json!({ "progressToken": request["params"]["_meta"]["progressToken"], "progress": 1,
        "message": format!("{MARK} {secret}") });
    house.far.write(json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": progress })).await;
    seen.insert("progress", client.told("notifications/progress").await.to_string());
    let log = json!({ "level": "error", "logger": "l", "data": { "said": format!("{MARK} {secret}") } });
    house.far.write(json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": log })).await;
    seen.insert("log message", client.told("notifications/message").await.to_string());
    house.far.result(&request, json!({ "content": [] })).await;
    client.answer(json!(1)).await;
    for who in ["list", "progress", "log message"] {
        assert!(seen[who].contains(MARK), "{who}: {}", seen[who]);
    }
    let mut seen = house.end(seen).await;
    seen.insert("log and spans", heard.text());
    assert_hidden("definition", &seen);
}
