//! All servers of one host: started side by side, watched, restarted, and published into the catalog.
//!
//! Each server has one task, and one dead server never takes down the rest. A server that closes stays listed while it is
//! restarted, so that a client's list does not flicker; its calls wait for the restart. A server that cannot be started is
//! taken out of the catalog and tried again with back-off, or when a call wants it.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::{Mutex, RwLock};
use serde::Serialize;
use tokio::sync::{Notify, broadcast, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::supervise::{self, Supervised};
use crate::model::caller::{Caller, SessionId};
use crate::model::digest::Digest;
use crate::model::name::{RawToolName, ServerName};
use crate::model::revision::ConnectionId;
use crate::model::text;
use crate::model::tool::{Connector, ServerIdentity};
use crate::pipeline::admit::catalog::{Catalog, PublishedServer, ServerView};
use crate::ports::approval::PolicySet;
use crate::ports::upstream::{
    Connection, ConnectionEvent, Fleet as FleetPort, StartFailure, Traffic, Upstream, UpstreamLog,
};

/// How long servers that are still starting are waited for before a list is served without them (catalog-dispatch 3.1).
pub const GRACE: Duration = Duration::from_secs(1);
/// A call that wants a failed server does not start it more often than this.
const RETRY_ON_DEMAND: Duration = Duration::from_secs(1);
/// How many log messages of upstreams are kept for a slow reader.
const LOG_BACKLOG: usize = 256;

/// One server to run.
#[derive(Clone)]
pub struct ServerSpec {
    /// Connects to it.
    pub upstream: Arc<dyn Upstream>,
    /// What it is.
    pub identity: ServerIdentity,
    /// Digest of its effective configuration.
    pub config: Digest,
    /// What calls need to know.
    pub view: ServerView,
    /// The App connectors of its tools. Whoever embeds the host says so; a server cannot claim one, and no file can (R9).
    pub connectors: BTreeMap<RawToolName, Connector>,
    /// Which of its tools exist for us.
    pub filter: Arc<dyn Fn(&RawToolName) -> bool + Send + Sync>,
    /// Whether the host does not start without it.
    pub required: bool,
    /// How long connecting may take, and listing again.
    pub startup_timeout: Duration,
    /// The waits between attempts to start it.
    pub back_off: BackOff,
}

/// The waits between attempts: doubling from `first` to `longest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackOff {
    /// The first wait.
    pub first: Duration,
    /// The longest wait.
    pub longest: Duration,
    /// How many failures in a row end the attempts; a call that wants the server makes another one.
    pub attempts: u32,
    /// Whether it is started again at all; if not, no call makes an attempt either.
    pub restarts: bool,
}

impl Default for BackOff {
    fn default() -> Self {
        let (first, longest) = (Duration::from_secs(1), Duration::from_secs(60));
        Self { first, longest, attempts: u32::MAX, restarts: true }
    }
}

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum ServerState {
    /// It is being started, or started again.
    Starting,
    /// It answers.
    Ready,
    /// It could not be started, or is gone.
    Failed {
        /// Why.
        #[serde(flatten)]
        why: StartFailure,
        /// Since when.
        #[serde(skip)]
        since: Since,
    },
    /// It is not to be started.
    Disabled {
        /// Why.
        text: String,
    },
    /// The host is shutting down.
    Stopped,
}

/// A moment; all moments are equal, so that states compare by what they say.
#[derive(Debug, Clone, Copy)]
pub struct Since(pub Instant);

impl PartialEq for Since {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for Since {}

/// Replaces `from` by `to`; false when the state is another one.
pub(super) fn replace(state: &mut ServerState, from: &ServerState, to: ServerState) -> bool {
    let same = state == from;
    if same {
        *state = to;
    }
    same
}

impl ServerState {
    fn is_settled(&self) -> bool {
        !matches!(self, Self::Starting)
    }
}

/// A server's state, for people.
#[derive(Debug, Clone, Serialize)]
pub struct ServerStatus {
    /// The server.
    pub server: ServerName,
    /// Where it is.
    #[serde(flatten)]
    pub state: ServerState,
    /// How many of its tools are listed.
    pub tools: usize,
    /// What it lists that cannot be used, and why; bounded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// How many bytes have passed over its connection, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic: Option<Traffic>,
    /// What happened on its connections so far, and how often.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub events: BTreeMap<ConnectionEvent, u64>,
}

/// All servers of one host.
pub struct Fleet {
    servers: RwLock<BTreeMap<ServerName, Arc<Server>>>,
    /// Those that are not to be run any more, by the name that they had: they may be ending still.
    gone: Mutex<BTreeMap<ServerName, Arc<Server>>>,
    shared: Arc<Shared>,
    tasks: TaskTracker,
    grace: Mutex<Option<Instant>>,
}

/// What one server's task shares with the fleet.
pub(super) struct Server {
    pub(super) state: watch::Sender<ServerState>,
    pub(super) wanted: Arc<Notify>,
    pub(super) dirty: Arc<Mutex<Option<ConnectionId>>>,
    pub(super) problems: Arc<Mutex<Vec<String>>>,
    pub(super) events: Arc<Mutex<BTreeMap<ConnectionEvent, u64>>>,
    pub(super) live: Arc<Mutex<Option<Weak<dyn Connection>>>>,
    /// Why a call to it failed last, until one succeeds.
    failing: Mutex<Option<String>>,
    required: bool,
    local: bool,
    startup_timeout: Duration,
    /// What it runs by; none: it is not run.
    config: Option<Digest>,
    pub(super) stop: CancellationToken,
}

/// What all tasks share.
pub(super) struct Shared {
    catalog: Arc<Catalog>,
    live: tokio::sync::Mutex<Live>,
    pub(super) logs: broadcast::Sender<(ServerName, UpstreamLog)>,
    pub(super) stop: CancellationToken,
}

struct Live {
    servers: BTreeMap<ServerName, PublishedServer>,
    policies: Arc<PolicySet>,
}

impl Shared {
    /// Publishes what a server lists now, or takes it out. Holding the map while publishing keeps publications in order.
    pub(super) async fn publish(&self, name: &ServerName, server: Option<PublishedServer>) {
        let mut live = self.live.lock().await;
        match server {
            Some(server) => live.servers.insert(name.clone(), server),
            None => live.servers.remove(name),
        };
        self.catalog.publish(live.servers.clone(), Arc::clone(&live.policies)).await;
    }

    /// Publishes other policies, for the servers that stay.
    async fn decide_by(&self, policies: Arc<PolicySet>, stays: impl Fn(&ServerName, Digest) -> bool) {
        let mut live = self.live.lock().await;
        live.policies = policies;
        live.servers.retain(|name, server| stays(name, server.config));
        self.catalog.publish(live.servers.clone(), Arc::clone(&live.policies)).await;
    }
}

impl Fleet {
    /// Starts all servers side by side and returns at once. `disabled` servers are kept for the status only.
    #[must_use]
    pub fn start(
        specs: BTreeMap<ServerName, ServerSpec>,
        disabled: BTreeMap<ServerName, String>,
        catalog: Arc<Catalog>,
    ) -> Arc<Self> {
        let policies = Arc::clone(catalog.current().policies());
        let shared = Arc::new(Shared {
            catalog,
            live: tokio::sync::Mutex::new(Live { servers: BTreeMap::new(), policies }),
            logs: broadcast::Sender::new(LOG_BACKLOG),
            stop: CancellationToken::new(),
        });
        let fleet = Self {
            servers: RwLock::default(),
            gone: Mutex::default(),
            shared,
            tasks: TaskTracker::new(),
            grace: Mutex::new(None),
        };
        fleet.run(specs, disabled);
        Arc::new(fleet)
    }

    /// Puts other policies in force, then other servers: those whose configuration is the same go on as they are, the others
    /// end, and new ones start. Returns when the policies are in force and the servers that go have been told.
    pub(super) async fn reconfigure(
        &self,
        policies: Arc<PolicySet>,
        specs: BTreeMap<ServerName, ServerSpec>,
        disabled: BTreeMap<ServerName, String>,
    ) {
        // What goes is called by nobody from now on, however long its end takes.
        let stays = |name: &ServerName, config| specs.get(name).is_some_and(|spec| spec.config == config);
        self.shared.decide_by(policies, stays).await;
        self.run(specs, disabled);
    }

    fn run(&self, specs: BTreeMap<ServerName, ServerSpec>, disabled: BTreeMap<ServerName, String>) {
        let mut servers = self.servers.write();
        let mut gone = self.gone.lock();
        let mut before = std::mem::take(&mut *servers);
        for (name, spec) in specs {
            let old = before.remove(&name);
            if let Some(same) = old.as_ref().filter(|old| old.config == Some(spec.config)) {
                servers.insert(name, Arc::clone(same));
                continue;
            }
            let (required, local, config) = (spec.required, spec.view.local, Some(spec.config));
            let stop = self.shared.stop.child_token();
            let new = Server::new(ServerState::Starting, spec.startup_timeout);
            let server = Server { required, local, config, stop, ..new };
            let task = supervise::run(Supervised::new(name.clone(), spec, &server, Arc::clone(&self.shared)));
            let ended = old.filter(|old| old.config.is_some()).or_else(|| gone.remove(&name)).map(Server::end);
            self.tasks.spawn(async move {
                // What the one before publishes at its end is that there is none.
                if let Some(ended) = ended {
                    ended.await;
                }
                task.await;
            });
            servers.insert(name, Arc::new(server));
        }
        for (name, text) in disabled {
            if let Some(old) = before.remove(&name) {
                self.tasks.spawn(Arc::clone(&old).end());
                if old.config.is_some() {
                    gone.insert(name.clone(), old);
                }
            }
            servers.insert(name, Arc::new(Server::new(ServerState::Disabled { text }, Duration::ZERO)));
        }
        for (name, old) in before {
            self.tasks.spawn(Arc::clone(&old).end());
            if old.config.is_some() {
                gone.insert(name, old);
            }
        }
    }

    fn server(&self, name: &ServerName) -> Option<Arc<Server>> {
        self.servers.read().get(name).cloned()
    }

    fn servers(&self) -> Vec<(ServerName, Arc<Server>)> {
        self.servers.read().iter().map(|(name, server)| (name.clone(), Arc::clone(server))).collect()
    }

    /// Waits for the required servers.
    ///
    /// # Errors
    /// One text that names every required server that failed, and why.
    pub async fn await_required(&self) -> Result<(), String> {
        let mut failures = Vec::new();
        for (name, server) in self.servers().into_iter().filter(|(_, server)| server.required) {
            let mut state = server.state.subscribe();
            let settled = state.wait_for(ServerState::is_settled).await.map(|state| state.clone());
            if let Ok(ServerState::Failed { why, .. }) = settled {
                failures.push(format!("{name}: {why}"));
            }
        }
        if failures.is_empty() {
            return Ok(());
        }
        Err(format!("required MCP servers failed to initialize: {}", failures.join("; ")))
    }

    /// Waits until no server is starting any more, at most [`GRACE`] in the whole life of the fleet: the first list waits,
    /// later ones do not.
    pub async fn settle(&self) {
        let deadline = *self.grace.lock().get_or_insert_with(|| Instant::now() + GRACE);
        for (_name, server) in self.servers() {
            let mut state = server.state.subscribe();
            let settled = state.wait_for(ServerState::is_settled);
            if tokio::time::timeout_at(deadline, settled).await.is_err() {
                return;
            }
        }
    }

    /// Waits until every server has started or failed; each is bounded by its own startup timeout.
    pub async fn settle_fully(&self) {
        for (_name, server) in self.servers() {
            let mut state = server.state.subscribe();
            let _settled = state.wait_for(ServerState::is_settled).await;
        }
    }

    /// Returns the servers that are starting or have failed.
    #[must_use]
    pub fn absent(&self) -> Vec<ServerName> {
        let absent =
            |server: &Server| matches!(*server.state.borrow(), ServerState::Starting | ServerState::Failed { .. });
        self.servers().into_iter().filter(|(_, server)| absent(server)).map(|(name, _)| name).collect()
    }

    /// Whether a server is known to run on this machine.
    #[must_use]
    pub fn is_local(&self, server: &ServerName) -> bool {
        self.server(server).is_some_and(|server| server.local)
    }

    /// Returns where every server is.
    #[must_use]
    pub fn status(&self) -> Vec<ServerStatus> {
        let snapshot = self.shared.catalog.current();
        let listed = |name: &ServerName| snapshot.tools().iter().filter(|tool| tool.server == *name).count();
        let live = |server: &Server| {
            let live = server.live.lock().as_ref().and_then(Weak::upgrade);
            live.filter(|connection| connection.is_open())
        };
        let status = |(name, server): (ServerName, Arc<Server>)| ServerStatus {
            state: server.state.borrow().clone(),
            tools: listed(&name),
            server: name,
            problems: server.problems.lock().clone(),
            traffic: live(&server).map(|connection| connection.traffic()),
            events: server.events.lock().clone(),
        };
        self.servers().into_iter().map(status).collect()
    }

    /// Returns a receiver of the servers' log messages.
    #[must_use]
    pub fn logs(&self) -> broadcast::Receiver<(ServerName, UpstreamLog)> {
        self.shared.logs.subscribe()
    }

    /// Says why a call to a server failed on its way: each reason once, until a call succeeds.
    pub(super) fn call_ended(&self, name: &ServerName, failed: Option<&str>) {
        let Some(server) = self.server(name) else { return };
        let mut failing = server.failing.lock();
        if failing.as_deref() == failed {
            return;
        }
        *failing = failed.map(str::to_owned);
        if let Some(why) = failed {
            tracing::warn!(server = %name, why = %text::shown(why, 512), "a call failed on its way");
        }
    }

    /// Ends all servers and waits until they are gone.
    pub async fn stop(&self) {
        self.shared.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

impl Server {
    fn new(state: ServerState, startup_timeout: Duration) -> Self {
        Self {
            state: watch::Sender::new(state),
            wanted: Arc::default(),
            dirty: Arc::default(),
            problems: Arc::default(),
            events: Arc::default(),
            live: Arc::default(),
            failing: Mutex::default(),
            required: false,
            local: false,
            startup_timeout,
            config: None,
            stop: CancellationToken::new(),
        }
    }

    /// Ends it; done when it has ended.
    fn end(self: Arc<Self>) -> impl Future<Output = ()> + Send + 'static {
        self.stop.cancel();
        async move {
            if self.config.is_some() {
                let mut state = self.state.subscribe();
                // The sender is ours, so waiting cannot fail.
                drop(state.wait_for(|state| matches!(state, ServerState::Stopped)).await);
            }
        }
    }
}

#[async_trait]
impl FleetPort for Fleet {
    async fn await_ready(&self, name: &ServerName, caller: &Caller) {
        let Some(server) = self.server(name) else { return };
        let live = server.live.lock().as_ref().and_then(Weak::upgrade);
        if let Some(connection) = live.filter(|connection| !connection.is_open()) {
            // Its end is told only once its process is gone, and that may take a while.
            self.mark_dirty(name, connection.id());
        }
        server.state.send_if_modified(|state| {
            let retry = matches!(state, ServerState::Failed { since, .. } if since.0.elapsed() >= RETRY_ON_DEMAND);
            if retry {
                *state = ServerState::Starting;
                server.wanted.notify_one();
            }
            retry
        });
        let mut state = server.state.subscribe();
        // Connecting and listing are each bounded by the startup timeout in the task; this is the bound of the wait.
        let bound = server.startup_timeout.saturating_mul(2);
        // What it guards is let go of before the next wait.
        drop(tokio::time::timeout(bound, state.wait_for(ServerState::is_settled)).await);
        let live = server.live.lock().as_ref().and_then(Weak::upgrade);
        if let Some(connection) = live.filter(|connection| connection.is_open()) {
            let deadline = Instant::now() + server.startup_timeout;
            if let Err(failure) = connection.ready_for(caller, deadline).await {
                // The hand-over will say that there is none.
                tracing::warn!(server = %name, %failure, "no connection of the caller's own");
            }
        }
    }

    fn session_ended(&self, session: &SessionId) {
        for (_name, server) in self.servers() {
            if let Some(connection) = server.live.lock().as_ref().and_then(Weak::upgrade) {
                connection.session_ended(session);
            }
        }
    }

    fn mark_dirty(&self, name: &ServerName, connection: ConnectionId) {
        if let Some(server) = self.server(name) {
            // A late word about an older connection must not hide one about the newest.
            let mut dirty = server.dirty.lock();
            *dirty = (*dirty).max(Some(connection));
            drop(dirty);
            server.state.send_if_modified(|state| replace(state, &ServerState::Ready, ServerState::Starting));
            server.wanted.notify_one();
        }
    }
}
