//! All servers of one host: started side by side, watched, restarted, and published into the catalog.
//!
//! Each server has one task, and one dead server never takes down the rest. A server that closes stays listed while it is
//! restarted, so that a client's list does not flicker; its calls wait for the restart. A server that cannot be started is
//! taken out of the catalog and tried again with back-off, or when a call wants it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::{Mutex, RwLock};
use tokio::sync::broadcast;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::known::KnownLists;
use super::live::Shared;
use super::server::Server;
pub use super::server::{BackOff, Filtered, LeavesOut, MAX_FILTERED, ServerSpec, ServerState, ServerStatus, Since};
use super::supervise::{self, Supervised};
use crate::model::caller::{Caller, SessionId};
use crate::model::name::ServerName;
use crate::model::revision::ConnectionId;
use crate::pipeline::admit::catalog::Catalog;
use crate::ports::approval::PolicySet;
use crate::ports::upstream::{Fleet as FleetPort, UpstreamLog};

/// How long servers that are still starting are waited for before a list is served without them (catalog-dispatch 3.1).
pub const GRACE: Duration = Duration::from_secs(1);
/// A call that wants a failed server does not start it more often than this.
const RETRY_ON_DEMAND: Duration = Duration::from_secs(1);
/// How many log messages of upstreams are kept for a slow reader.
const LOG_BACKLOG: usize = 256;

/// All servers of one host.
pub struct Fleet {
    servers: RwLock<BTreeMap<ServerName, Arc<Server>>>,
    /// Those that are not to be run any more, by the name that they had: they may be ending still.
    gone: Mutex<BTreeMap<ServerName, Arc<Server>>>,
    shared: Arc<Shared>,
    tasks: TaskTracker,
    grace: Mutex<Option<Instant>>,
}

impl Fleet {
    /// Starts all servers side by side and returns at once. `disabled` servers are kept for the status only; what `known` has
    /// of a server is listed while it starts.
    #[must_use]
    pub fn start(
        specs: BTreeMap<ServerName, ServerSpec>,
        disabled: BTreeMap<ServerName, String>,
        catalog: Arc<Catalog>,
        known: KnownLists,
    ) -> Arc<Self> {
        let shared = Shared::new(catalog, known, LOG_BACKLOG);
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

    /// Puts other policies in force together with what else changed of the servers that go on; the others end, and new ones
    /// start. A server goes on over its connection as long as what that is made of is the same. Returns when the policies are
    /// in force and the servers that go have been told.
    pub(super) async fn reconfigure(
        &self,
        policies: Arc<PolicySet>,
        specs: BTreeMap<ServerName, ServerSpec>,
        disabled: BTreeMap<ServerName, String>,
    ) {
        let going_on = |(name, server): (ServerName, Arc<Server>)| {
            let spec = specs.get(&name).filter(|spec| server.goes_on_by(spec))?.clone();
            Some((name, (server, spec)))
        };
        let go_on = self.servers().into_iter().filter_map(going_on).collect();
        // What goes is called by nobody from now on, however long its end takes.
        self.shared.decide_by(policies, go_on, || self.run(specs, disabled)).await;
    }

    fn run(&self, specs: BTreeMap<ServerName, ServerSpec>, disabled: BTreeMap<ServerName, String>) {
        let mut servers = self.servers.write();
        let mut gone = self.gone.lock();
        let mut before = std::mem::take(&mut *servers);
        for (name, spec) in specs {
            let old = before.remove(&name);
            if let Some(same) = old.as_ref().filter(|old| old.goes_on_by(&spec)) {
                servers.insert(name, Arc::clone(same));
                continue;
            }
            let server = Arc::new(Server::starting(spec, self.shared.stop.child_token()));
            let task = Supervised::new(name.clone(), Arc::clone(&server), Arc::clone(&self.shared)).map(supervise::run);
            let ended = old.filter(|old| old.is_run()).or_else(|| gone.remove(&name)).map(Server::end);
            self.tasks.spawn(async move {
                // What the one before publishes at its end is that there is none.
                if let Some(ended) = ended {
                    ended.await;
                }
                if let Some(task) = task {
                    task.await;
                }
            });
            servers.insert(name, server);
        }
        for (name, text) in disabled {
            if let Some(old) = before.remove(&name) {
                self.tasks.spawn(Arc::clone(&old).end());
                if old.is_run() {
                    gone.insert(name.clone(), old);
                }
            }
            servers.insert(name, Arc::new(Server::disabled(text)));
        }
        for (name, old) in before {
            self.tasks.spawn(Arc::clone(&old).end());
            if old.is_run() {
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
        for (name, server) in self.required() {
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

    fn required(&self) -> impl Iterator<Item = (ServerName, Arc<Server>)> {
        self.servers().into_iter().filter(|(_, server)| server.spec().is_some_and(|spec| spec.required))
    }

    /// Waits until no server is starting any more, at most [`GRACE`] in the whole life of the fleet: the first list waits,
    /// later ones do not. A required server has more time at its first start: its own. One whose last list is shown meanwhile is
    /// not waited for.
    pub async fn settle(&self) {
        self.settle_for(&BTreeSet::new()).await;
    }

    /// The same, and waits for these servers too whenever they are starting, as long as each may take (B2): what a turn
    /// requires. A name that no server has waits for nothing.
    pub async fn settle_for(&self, needed: &BTreeSet<ServerName>) {
        let now = Instant::now();
        let grace = *self.grace.lock().get_or_insert_with(|| now + GRACE);
        for (name, server) in self.servers() {
            let Some(spec) = server.spec() else { continue };
            let waited_for = needed.contains(&name) || (spec.required && !server.tried.load(Ordering::Acquire));
            let until = if waited_for { grace.max(now + patience_of(&spec)) } else { grace };
            let (mut state, mut remembered) = (server.state.subscribe(), server.remembered.subscribe());
            // What they guard is let go of before the next wait.
            let settled = async { drop(state.wait_for(ServerState::is_settled).await) };
            let listed = async { drop(remembered.wait_for(|listed| *listed).await) };
            let enough = async {
                tokio::select! {
                    () = settled => {}
                    () = listed, if !waited_for => {}
                }
            };
            // Late is no failure: the list is served without it.
            let _late = tokio::time::timeout_at(until, enough).await;
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
        self.server(server).and_then(|server| server.spec()).is_some_and(|spec| spec.view.local)
    }

    /// Returns where every server is.
    #[must_use]
    pub fn status(&self) -> Vec<ServerStatus> {
        let snapshot = self.shared.catalog.current();
        let listed = |name: &ServerName| snapshot.tools().iter().filter(|tool| tool.server == *name).count();
        let status = |(name, server): (ServerName, Arc<Server>)| {
            let tools = listed(&name);
            server.status(name, tools)
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
        if let Some(server) = self.server(name) {
            server.call_ended(name, failed);
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

#[async_trait]
impl FleetPort for Fleet {
    async fn await_ready(&self, name: &ServerName, caller: &Caller) {
        let Some(server) = self.server(name) else { return };
        let Some(spec) = server.spec() else { return };
        if let Some(connection) = server.connection().filter(|connection| !connection.is_open()) {
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
        // What it guards is let go of before the next wait.
        drop(tokio::time::timeout(patience_of(&spec), state.wait_for(ServerState::is_settled)).await);
        if let Some(connection) = server.connection().filter(|connection| connection.is_open()) {
            let deadline = Instant::now() + spec.startup_timeout;
            if let Err(failure) = connection.ready_for(caller, deadline).await {
                // The hand-over will say that there is none.
                tracing::warn!(server = %name, %failure, "no connection of the caller's own");
            }
        }
    }

    fn session_ended(&self, session: &SessionId) {
        for (_name, server) in self.servers() {
            if let Some(connection) = server.connection() {
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
            server.state.send_if_modified(|state| state.replace(&ServerState::Ready, ServerState::Starting));
            server.wanted.notify_one();
        }
    }
}

/// How long a start is waited for: connecting and listing are each bounded by the startup timeout in the task.
fn patience_of(spec: &ServerSpec) -> Duration {
    spec.startup_timeout.saturating_mul(2)
}
