//! A pipeline on a bench: its catalog is published by the test, its servers are scripted, and no fleet runs behind it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use portcullis::model::caller::{CallSource, Caller, SessionId};
use portcullis::model::digest::Digest;
use portcullis::model::media::Modalities;
use portcullis::model::name::{CallId, RawToolName, ServerName, Target, ToolRef};
use portcullis::model::outcome::{Code, Failure, Stage};
use portcullis::model::revision::{ConnectionId, Revision};
use portcullis::model::tool::{Connector, ServerIdentity, ToolDefinition};
use portcullis::pipeline::admit::catalog::{Catalog, Names, PublishedServer, ServerView};
use portcullis::pipeline::admit::naming::{FlatStyle, NameLimit, NamingOptions};
use portcullis::pipeline::consent::observe::Observatory;
use portcullis::pipeline::dispatch::meta::TurnInfo;
use portcullis::pipeline::follow::pending::PendingCalls;
use portcullis::pipeline::{CallRequest, Finished, Payload, Pipeline};
use portcullis::ports::approval::PolicySet;
use portcullis::ports::reviewer::{NobodyThere, Reviewer};
use portcullis::ports::upstream::{Connection as _, Fleet};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::Journal;
use super::people::{Ledger, Purse, Still, Tape};
use super::policy::Policies;
use super::server::{FakeServer, tool};

pub(crate) const TOOL_TIMEOUT: Duration = Duration::from_secs(300);
pub(crate) const ASK_DEADLINE: Duration = Duration::from_secs(600);

pub(crate) fn names() -> Names {
    Names { model: NamingOptions::default(), flat: FlatStyle::Namespaced, flat_limit: NameLimit::GATEWAY }
}

pub(crate) fn view() -> ServerView {
    ServerView::embedded(TOOL_TIMEOUT, true)
}

/// Servers that are always ready; notes what was marked dirty.
#[derive(Default)]
pub(crate) struct Ready {
    pub(crate) dirty: Mutex<Vec<(ServerName, ConnectionId)>>,
}

#[async_trait]
impl Fleet for Ready {
    async fn await_ready(&self, _server: &ServerName, _caller: &Caller) {}

    fn session_ended(&self, _session: &SessionId) {}

    fn mark_dirty(&self, server: &ServerName, connection: ConnectionId) {
        self.dirty.lock().push((server.clone(), connection));
    }
}

pub(crate) struct Bench {
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) journal: Journal,
    pub(crate) tape: Arc<Tape>,
    pub(crate) purse: Arc<Purse>,
    pub(crate) state: Arc<Ledger>,
    pub(crate) fleet: Arc<Ready>,
    pub(crate) caller: Caller,
    /// `files`, with the tools `write` and `read`.
    pub(crate) files: Arc<FakeServer>,
    /// `mail`, with the tool `send`.
    pub(crate) mail: Arc<FakeServer>,
    published: Mutex<BTreeMap<ServerName, PublishedServer>>,
    policies: Mutex<Arc<PolicySet>>,
}

impl Bench {
    /// Policies under which nothing is asked.
    pub(crate) async fn open() -> Self {
        Self::new(&Policies::open(&["files", "mail"])).await
    }

    pub(crate) async fn new(policies: &Policies) -> Self {
        let journal = Journal::default();
        let policies = Arc::new(policies.finish());
        let (tape, purse, fleet) = (Tape::new(&journal), Purse::new(&journal), Arc::new(Ready::default()));
        let state = Ledger::new(&journal);
        let pipeline = Arc::new(Pipeline {
            catalog: Arc::new(Catalog::new(Arc::clone(&policies), names())),
            fleet: Arc::clone(&fleet) as _,
            grants: Arc::clone(&purse) as _,
            recorder: Arc::clone(&tape) as _,
            state: Arc::clone(&state) as _,
            clock: Arc::new(Still),
            accepted: Default::default(),
            pending: Arc::new(PendingCalls::default()),
            observatory: Arc::new(Observatory::new(Arc::clone(&tape) as _, Arc::new(Still))),
            ask_deadline: ASK_DEADLINE,
        });
        let files = FakeServer::new("files", &journal, vec![tool("write"), tool("read")]);
        let mail = FakeServer::new("mail", &journal, vec![tool("send")]);
        let bench = Self {
            pipeline,
            journal,
            tape,
            purse,
            state,
            fleet,
            caller: Caller::local("ann"),
            files,
            mail,
            published: Mutex::default(),
            policies: Mutex::new(policies),
        };
        bench.connect(&bench.files);
        bench.connect(&bench.mail);
        bench.publish().await;
        bench
    }

    pub(crate) fn catalog(&self) -> &Arc<Catalog> {
        &self.pipeline.catalog
    }

    /// Gives the server a fresh connection and its definitions of now; published with the next publication.
    pub(crate) fn connect(&self, server: &Arc<FakeServer>) {
        let published = PublishedServer {
            connectors: BTreeMap::new(),
            connection: server.connection(None),
            config: Digest::of(b"config"),
            identity: ServerIdentity(Digest::of(server.name.as_bytes())),
            tools: definitions(server),
            instructions: None,
            wants_sandbox_state: false,
            view: view(),
        };
        self.published.lock().insert(ServerName::parse(&server.name).unwrap(), published);
    }

    /// Changes what the server brings into the next publication.
    pub(crate) fn change(&self, server: &Arc<FakeServer>, change: impl FnOnce(&mut PublishedServer)) {
        change(self.published.lock().get_mut(server.name.as_str()).unwrap());
    }

    /// `files/write` is from now on a tool of this App.
    pub(crate) async fn link(&self, connector: &str) {
        self.link_tool("write", connector).await;
    }

    /// The same for any tool of `files`, which is the Apps server from now on.
    pub(crate) async fn link_tool(&self, tool: &str, connector: &str) {
        let app = Connector { id: connector.to_owned(), name: None, account: None, description: None };
        self.change(&self.files, |published| _ = published.connectors.insert(RawToolName::parse(tool).unwrap(), app));
        self.publish().await;
    }

    pub(crate) async fn publish(&self) -> Revision {
        let (servers, policies) = (self.published.lock().clone(), Arc::clone(&self.policies.lock()));
        self.catalog().publish(servers, policies).await
    }

    /// The server has a new connection.
    pub(crate) async fn reconnect(&self, server: &Arc<FakeServer>) -> ConnectionId {
        self.connect(server);
        self.publish().await;
        server.last().id()
    }

    /// The server defines its tools anew, over the connection that it has.
    pub(crate) async fn redefine(&self, server: &Arc<FakeServer>, tools: Vec<String>) {
        server.define(tools);
        self.change(server, |published| published.tools = definitions(server));
        self.publish().await;
    }

    pub(crate) async fn decide_by(&self, policies: &Policies) {
        *self.policies.lock() = Arc::new(policies.finish());
        self.publish().await;
    }

    /// A call of `SERVER/TOOL` by the bench's caller; nobody can be asked.
    pub(crate) fn request(&self, target: &str, arguments: &str) -> CallRequest {
        CallRequest {
            id: CallId::fresh(),
            caller: self.caller.clone(),
            target: Target::from(ToolRef::parse(target).unwrap()),
            payload: Payload::Function(arguments.to_owned()),
            seen: None,
            definitions: Arc::default(),
            takes: Modalities::ALL,
            turn: TurnInfo { thread_id: self.caller.session.as_str().to_owned(), ..TurnInfo::default() },
            memory: None,
            progress: None,
            questions: None,
            reviewer: Arc::new(NobodyThere),
            gate: None,
            source: CallSource::Direct,
            evidence: None,
            breaker: Arc::default(),
            cancel: CancellationToken::new(),
        }
    }

    /// Calls `files/write`.
    pub(crate) async fn write(&self) -> Finished {
        self.pipeline.run(self.request("files/write", "{}")).await
    }

    /// Calls `files/write`, where this person is asked.
    pub(crate) async fn write_asking(&self, reviewer: Arc<dyn Reviewer>) -> Finished {
        self.pipeline.run(CallRequest { reviewer, ..self.request("files/write", "{}") }).await
    }

    /// Calls in a task of its own.
    pub(crate) fn spawn(&self, request: CallRequest) -> JoinHandle<Finished> {
        let pipeline = Arc::clone(&self.pipeline);
        tokio::spawn(async move { pipeline.run(request).await })
    }
}

fn definitions(server: &FakeServer) -> Vec<Arc<ToolDefinition>> {
    server.tools().iter().map(|tool| Arc::new(ToolDefinition::parse(tool).unwrap())).collect()
}

/// What went wrong with a call that has no answer of its tool.
pub(crate) fn failure(finished: &Finished) -> &Failure {
    finished.item.failure().unwrap_or_else(|| panic!("{:?} is no failure", finished.item.outcome))
}

pub(crate) fn failed(finished: &Finished) -> (Stage, Code) {
    let failure = failure(finished);
    (failure.stage, failure.code)
}

/// What the model reads.
pub(crate) fn said(finished: &Finished) -> String {
    finished.clean.result().content().iter().filter_map(|block| block["text"].as_str()).collect()
}
