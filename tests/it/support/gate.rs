//! A gateway with a scripted server behind it and a client that writes raw lines, all in one process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use portcullis::adapters::store::memory_state::in_memory;
use portcullis::gateway::{self, Ended, ServeError, ServeOptions};
use portcullis::host::fleet::{BackOff, ServerSpec};
use portcullis::host::{Host, HostParts};
use portcullis::model::answer::{Answer, ProtocolError, ToolResult};
use portcullis::model::caller::Caller;
use portcullis::model::digest::Digest;
use portcullis::model::item::{CompletedItem, Item};
use portcullis::model::layer::{LayerKind, LayerRef};
use portcullis::model::name::{RawToolName, ServerName, ToolRef};
use portcullis::model::outcome::Code;
use portcullis::model::posture::PostureLayers;
use portcullis::model::revision::{ConnectionId, PolicySetDigest};
use portcullis::model::tool::ServerIdentity;
use portcullis::model::verdict::{Ask, OnFailure, Reason, Remember, Reviewers, RuleId, Source, Verdict};
use portcullis::pipeline::admit::catalog::{Names, ServerView};
use portcullis::pipeline::admit::naming::{FlatStyle, NameLimit, NamingOptions};
use portcullis::pipeline::emit::sanitise::Sanitiser;
use portcullis::ports::approval::{
    ApprovalComponent, BoundComponent, CallFacts, Evaluation, Kind, Matches, PolicySet, Usage,
};
use portcullis::ports::clock::Clock;
use portcullis::ports::grants::{Grant, GrantSubject, Grants, NotRemembered};
use portcullis::ports::recorder::{DecisionRecord, ObservedRecord, RecordFailed, Recorder};
use portcullis::ports::upstream::{
    Connection, InFlight, ListFailure, Listing, NotSent, OutgoingCall, Progress, StartFailure, Unanswered, Upstream,
    UpstreamEvents,
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, Lines};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::PATIENCE;

/// What the tool `verbatim` answers: spacing, key order, spelling of numbers and unknown fields are all odd.
pub(crate) const VERBATIM: &str =
    r#"{"zeta": 1.50, "content":[{"type":"text","text":"x","odd":1e2}],"isError" :false,"_meta":{"b":1,"a":2}}"#;

/// What the tool `error` answers.
pub(crate) const ERROR: &str = r#"{"odd": 1e2,"code":-32042,"message":"go away","data":{"z":1.50,"a":[2]}}"#;

/// The scripted server. Its tools do what their names say; any other tool echoes its arguments.
#[derive(Default)]
pub(crate) struct Script {
    pub(crate) tools: Mutex<Vec<Arc<str>>>,
    pub(crate) calls: Mutex<Vec<(String, Option<Value>, Value)>>,
    pub(crate) dropped: AtomicUsize,
    pub(crate) events: Mutex<Option<Arc<dyn UpstreamEvents>>>,
    arrived: Notify,
}

impl Script {
    pub(crate) fn set_tools(&self, names: &[&str]) {
        let tool = |name: &&str| json!({ "name": name, "inputSchema": { "type": "object" } }).to_string().into();
        *self.tools.lock() = names.iter().map(tool).collect();
    }

    /// Waits for the next call that is handed over.
    pub(crate) async fn called(&self) {
        tokio::time::timeout(PATIENCE, self.arrived.notified()).await.expect("no call was handed over");
    }

    pub(crate) fn events(&self) -> Arc<dyn UpstreamEvents> {
        self.events.lock().clone().unwrap()
    }
}

struct FakeUpstream(Arc<Script>);

struct FakeConnection(Arc<Script>, ConnectionId);

struct FakeCall {
    script: Arc<Script>,
    call: OutgoingCall,
    answered: bool,
}

#[async_trait]
impl Upstream for FakeUpstream {
    async fn connect(
        &self,
        _deadline: Instant,
        events: Arc<dyn UpstreamEvents>,
    ) -> Result<Arc<dyn Connection>, StartFailure> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        *self.0.events.lock() = Some(events);
        let id = ConnectionId(NEXT.fetch_add(1, Ordering::Relaxed));
        Ok(Arc::new(FakeConnection(Arc::clone(&self.0), id)))
    }
}

#[async_trait]
impl Connection for FakeConnection {
    fn id(&self) -> ConnectionId {
        self.1
    }

    fn is_open(&self) -> bool {
        true
    }

    async fn list(&self, _deadline: Instant) -> Result<Listing, ListFailure> {
        Ok(Listing { tools: self.0.tools.lock().clone(), ..Listing::default() })
    }

    async fn hand_over(&self, call: OutgoingCall) -> Result<Box<dyn InFlight>, NotSent> {
        let arguments = call.arguments.clone().map(Value::Object);
        self.0.calls.lock().push((call.tool.to_string(), arguments, Value::Object(call.meta.clone())));
        self.0.arrived.notify_one();
        Ok(Box::new(FakeCall { script: Arc::clone(&self.0), call, answered: false }))
    }

    async fn close(&self) {}
}

#[async_trait]
impl InFlight for FakeCall {
    async fn answer(&mut self) -> Result<Answer, Unanswered> {
        let answer = match self.call.tool.as_str() {
            "verbatim" => Answer::Result(result(VERBATIM)),
            "error" => Answer::Error(ProtocolError {
                code: -32_042,
                message: "go away".to_owned(),
                data: Some(json!({ "z": 1.5, "a": [2] })),
                verbatim: Some(ERROR.into()),
            }),
            "steps" => {
                for step in [1.0, 3.0, 2.0, 3.0, f64::NAN, 4.5] {
                    let message = Some(format!("at {step}"));
                    let Some(sink) = &self.call.progress else { break };
                    sink.progress(Progress { progress: step, total: Some(5.0), message });
                }
                Answer::Result(result(r#"{"content":[]}"#))
            }
            "guarded_steps" => {
                for progress in [0.0, 0.5] {
                    let Some(sink) = &self.call.progress else { break };
                    sink.progress(Progress { progress, total: Some(1.0), message: None });
                }
                Answer::Result(result(r#"{"content":[]}"#))
            }
            "hang" | "guarded_hang" => std::future::pending().await,
            "defect" => panic!("a defect, on purpose"),
            _ => {
                let text = self.call.arguments.clone().map_or("none".to_owned(), |map| Value::Object(map).to_string());
                Answer::Result(result(&json!({ "content": [{ "type": "text", "text": text }] }).to_string()))
            }
        };
        self.answered = true;
        Ok(answer)
    }

    async fn cancel(self: Box<Self>, _reason: &str) {}
}

impl Drop for FakeCall {
    fn drop(&mut self) {
        if !self.answered {
            self.script.dropped.fetch_add(1, Ordering::SeqCst);
        }
    }
}

fn result(text: &str) -> ToolResult {
    ToolResult::from_upstream(serde_json::from_str(text).unwrap(), text.into())
}

/// Asks about `guarded` and what begins so, refuses `refused`, allows the rest.
struct FakePolicy;

#[async_trait]
impl ApprovalComponent for FakePolicy {
    async fn evaluate(&self, facts: Arc<CallFacts>) -> Evaluation {
        let reason = |text: &str| Reason { rule: RuleId::parse("rule-1"), text: text.to_owned() };
        let verdict = match facts.tool.tool.as_str() {
            "guarded" | "guarded_steps" | "guarded_hang" => Verdict::Ask(Ask {
                reason: reason("because it is guarded"),
                remember: Remember::Session,
                bind_arguments: false,
                reviewers: Reviewers::PERSON,
            }),
            "refused" => Verdict::Deny(reason("a secret reason")),
            _ => Verdict::Allow(reason("")),
        };
        Evaluation { result: Ok(verdict), labels: Vec::new(), log: Vec::new(), usage: Usage::default() }
    }
}

#[derive(Debug)]
struct Everything;

impl Matches for Everything {
    fn matches(&self, _kind: Kind, _tool: &ToolRef, _identity: ServerIdentity) -> bool {
        true
    }
}

/// The baseline of a host that asks about nothing by itself.
struct Content;

#[async_trait]
impl ApprovalComponent for Content {
    async fn evaluate(&self, _facts: Arc<CallFacts>) -> Evaluation {
        let verdict = Verdict::Allow(Reason { rule: None, text: String::new() });
        Evaluation { result: Ok(verdict), labels: Vec::new(), log: Vec::new(), usage: Usage::default() }
    }
}

fn bound(kind: LayerKind, name: &str, component: Arc<dyn ApprovalComponent>) -> BoundComponent {
    BoundComponent {
        source: Source { layer: LayerRef::new(kind), component: name.into(), digest: None },
        may_allow: kind.may_allow_by_default(),
        on_failure: OnFailure::Deny,
        observe: false,
        matches: Arc::new(Everything),
        component: Ok(component),
    }
}

/// Remembers what is recorded.
#[derive(Default)]
pub(crate) struct Items(Mutex<Vec<Item>>);

impl Recorder for Items {
    fn item(&self, item: &Item) {
        self.0.lock().push(item.clone());
    }

    fn decision(&self, _record: &DecisionRecord) -> Result<(), RecordFailed> {
        Ok(())
    }

    fn observed(&self, _record: &ObservedRecord) {}
}

impl Items {
    pub(crate) fn started(&self) -> usize {
        self.0.lock().iter().filter(|item| matches!(item, Item::Started(_))).count()
    }

    pub(crate) fn completed(&self) -> Vec<CompletedItem> {
        let completed = |item: &Item| match item {
            Item::Completed(completed) => Some(completed.clone()),
            Item::Started(_) => None,
        };
        self.0.lock().iter().filter_map(completed).collect()
    }

    pub(crate) fn codes(&self) -> Vec<Option<Code>> {
        self.completed().iter().map(|item| item.failure().map(|failure| failure.code)).collect()
    }
}

/// Keeps grants for the session.
#[derive(Default)]
struct SessionGrants(Mutex<Vec<Grant>>);

impl Grants for SessionGrants {
    fn widest(&self) -> Remember {
        Remember::Session
    }

    fn find(&self, subject: &GrantSubject, _now_ms: u64) -> Vec<Grant> {
        self.0.lock().iter().filter(|grant| grant.binds(subject)).cloned().collect()
    }

    fn related(&self, _caller: &Caller, tool: &ToolRef) -> Vec<Grant> {
        self.0.lock().iter().filter(|grant| grant.subject.tool == *tool).cloned().collect()
    }

    fn take(&self, _id: &str) -> Result<bool, NotRemembered> {
        Ok(false)
    }

    fn store(&self, grant: Grant) -> Result<(), NotRemembered> {
        self.0.lock().push(grant);
        Ok(())
    }

    fn forget(&self, id: &str) {
        self.0.lock().retain(|grant| grant.id != id);
    }
}

struct RealClock;

impl Clock for RealClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// Everything behind the client.
pub(crate) struct Bench {
    pub(crate) script: Arc<Script>,
    pub(crate) items: Arc<Items>,
    pub(crate) host: Arc<Host>,
}

impl Bench {
    /// A host with the server `fake`, whose tools are `tools`.
    pub(crate) fn new(tools: &[&str]) -> Self {
        let script = Arc::new(Script::default());
        script.set_tools(tools);
        Self::with(script)
    }

    pub(crate) fn with(script: Arc<Script>) -> Self {
        let spec = Self::spec(Arc::new(FakeUpstream(Arc::clone(&script))));
        Self { script, ..Self::of(BTreeMap::from([(ServerName::parse("fake").unwrap(), spec)])) }
    }

    /// The same as [`Bench::new`], with a sanitiser of the managed layer.
    pub(crate) fn cleaned(tools: &[&str], sanitiser: Sanitiser) -> Self {
        let script = Arc::new(Script::default());
        script.set_tools(tools);
        let spec = Self::spec(Arc::new(FakeUpstream(Arc::clone(&script))));
        let servers = BTreeMap::from([(ServerName::parse("fake").unwrap(), spec)]);
        Self { script, ..Self::of_cleaned(servers, vec![sanitiser]) }
    }

    /// How a server is run that is reached like this.
    pub(crate) fn spec(upstream: Arc<dyn Upstream>) -> ServerSpec {
        ServerSpec {
            upstream,
            identity: ServerIdentity(Digest::of(b"fake")),
            launch: Digest::of(b"launch"),
            config: Digest::of(b"config"),
            view: ServerView { parallel: true, ..ServerView::embedded(Duration::from_secs(600), true) },
            connectors: BTreeMap::new(),
            filter: Arc::new(|name: &RawToolName| (name.as_str() == "hidden").then(|| LayerRef::new(LayerKind::User))),
            required: false,
            startup_timeout: Duration::from_secs(30),
            back_off: BackOff::default(),
        }
    }

    /// A host with these servers.
    pub(crate) fn of(servers: BTreeMap<ServerName, ServerSpec>) -> Self {
        Self::of_cleaned(servers, Vec::new())
    }

    fn of_cleaned(servers: BTreeMap<ServerName, ServerSpec>, sanitisers: Vec<Sanitiser>) -> Self {
        let items = Arc::new(Items::default());
        let host = Host::start(HostParts {
            policies: PolicySet {
                digest: PolicySetDigest(Digest::of(b"policies")),
                baseline: bound(LayerKind::Builtin, "approval-baseline", Arc::new(Content)),
                components: vec![bound(LayerKind::Managed, "guard", Arc::new(FakePolicy))],
                connectors: Vec::new(),
                sanitisers,
                hooks: Vec::new(),
                reviewers: Vec::new(),
                postures: PostureLayers::default(),
                refusals: Vec::new(),
                engine: Digest::of(b"no engine"),
            },
            names: Names {
                model: NamingOptions::default(),
                flat: FlatStyle::Namespaced,
                flat_limit: NameLimit::GATEWAY,
            },
            servers,
            disabled: BTreeMap::new(),
            state: Arc::new(in_memory()),
            recorder: Arc::clone(&items) as _,
            grants: Arc::new(SessionGrants::default()),
            clock: Arc::new(RealClock),
            ask_deadline: None,
        });
        Self { script: Arc::default(), items, host }
    }

    /// Connects a client that has said nothing yet.
    pub(crate) fn client(&self, options: ServeOptions) -> Client {
        Client::of(&self.host, options)
    }

    /// Connects a client and shakes hands.
    pub(crate) async fn greeted(&self, capabilities: Value) -> Client {
        let mut client = self.client(ServeOptions::default());
        client.greet(capabilities).await;
        client
    }
}

/// A client that writes lines.
pub(crate) struct Client {
    write: Option<DuplexStream>,
    lines: Lines<BufReader<DuplexStream>>,
    served: JoinHandle<Result<Ended, ServeError>>,
    kept: Vec<String>,
}

impl Client {
    /// Connects a client to any host.
    pub(crate) fn of(host: &Arc<Host>, options: ServeOptions) -> Self {
        let (near, far) = tokio::io::duplex(1024 * 1024);
        let (out_near, out_far) = tokio::io::duplex(1024 * 1024);
        let served = tokio::spawn(gateway::serve(Arc::clone(host), Caller::local("me"), far, out_far, options));
        Self { write: Some(near), lines: BufReader::new(out_near).lines(), served, kept: Vec::new() }
    }

    pub(crate) async fn send(&mut self, line: &str) {
        let write = self.write.as_mut().unwrap();
        write.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    /// Sends a call; `params` are spelled by the caller.
    pub(crate) async fn call(&mut self, id: &str, params: &str) {
        self.send(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{params}}}"#)).await;
    }

    pub(crate) async fn greet(&mut self, capabilities: Value) -> Value {
        let params = json!({
            "protocolVersion": "2025-06-18", "capabilities": capabilities,
            "clientInfo": { "name": "test", "version": "1" },
        });
        self.send(&json!({ "jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": params }).to_string())
            .await;
        let answer = self.answer(json!("hello")).await;
        self.send(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
        answer
    }

    /// Reads the next line that nobody waited for yet; `None` at the end.
    pub(crate) async fn line(&mut self) -> Option<String> {
        tokio::time::timeout(PATIENCE, self.lines.next_line()).await.expect("the gateway says nothing").unwrap()
    }

    /// Returns the first message that fits, kept ones first, and keeps the others.
    pub(crate) async fn find(&mut self, fits: impl Fn(&Value) -> bool) -> String {
        let fits = |line: &String| fits(&serde_json::from_str(line).unwrap());
        if let Some(at) = self.kept.iter().position(fits) {
            return self.kept.remove(at);
        }
        loop {
            let line = self.line().await.expect("the gateway closed its output");
            if fits(&line) {
                return line;
            }
            self.kept.push(line);
        }
    }

    /// Returns the text of the answer to a request.
    pub(crate) async fn answer_text(&mut self, id: Value) -> String {
        self.find(|message| message.get("method").is_none() && message["id"] == id).await
    }

    pub(crate) async fn answer(&mut self, id: Value) -> Value {
        serde_json::from_str(&self.answer_text(id).await).unwrap()
    }

    /// Returns the next notification or request of the gateway with this method.
    pub(crate) async fn told(&mut self, method: &str) -> Value {
        serde_json::from_str(&self.find(|message| message["method"] == method).await).unwrap()
    }

    /// Asks something and waits for the answer, so that everything sent before has been read.
    pub(crate) async fn ping(&mut self) {
        self.send(r#"{"jsonrpc":"2.0","id":"ping","method":"ping"}"#).await;
        assert_eq!(self.answer(json!("ping")).await["result"], json!({}));
    }

    pub(crate) async fn list(&mut self) -> Value {
        self.send(r#"{"jsonrpc":"2.0","id":"list","method":"tools/list"}"#).await;
        self.answer(json!("list")).await["result"].take()
    }

    /// Messages that were kept or still come with this method, once the gateway has answered a ping.
    pub(crate) async fn count_told(&mut self, method: &str) -> usize {
        self.ping().await;
        self.kept.iter().filter(|line| serde_json::from_str::<Value>(line).unwrap()["method"] == method).count()
    }

    /// Ends the input.
    pub(crate) fn hang_up(&mut self) {
        self.write = None;
    }

    /// Waits until serving has ended, and returns what was still written.
    pub(crate) async fn ended(mut self) -> (Result<Ended, ServeError>, Vec<String>) {
        let mut rest = std::mem::take(&mut self.kept);
        while let Some(line) = self.line().await {
            rest.push(line);
        }
        let ended = tokio::time::timeout(PATIENCE, self.served).await.expect("serving does not end").unwrap();
        (ended, rest)
    }

    /// Waits until serving has ended, without reading anything.
    pub(crate) async fn ended_unread(self) -> Result<Ended, ServeError> {
        tokio::time::timeout(PATIENCE, self.served).await.expect("serving does not end").unwrap()
    }
}
