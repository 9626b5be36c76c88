//! The host: everything wired together. One process, many sessions.

pub mod approver;
mod aside;
pub mod asking;
pub mod build;
pub mod entries;
pub mod fleet;
mod hooks;
mod http_server;
pub mod known;
pub mod listing;
mod live;
pub mod network;
pub mod overlay;
mod past;
pub mod policies;
mod recorded;
pub mod records;
pub mod reload;
pub mod replay;
mod reviewers;
pub mod seal;
mod served;
mod server;
pub mod session;
mod session_call;
pub mod step;
mod supervise;
pub mod telemetry;
pub mod user;
pub mod watch;
pub mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::config::matcher::KnownTools;
use crate::model::caller::{Caller, TenantId};
use crate::model::name::ServerName;
use crate::pipeline::Pipeline;
use crate::pipeline::admit::catalog::{Catalog, Names};
use crate::pipeline::consent::ask;
use crate::pipeline::consent::observe::Observatory;
use crate::pipeline::drift::Accepted;
use crate::pipeline::follow::pending::PendingCalls;
use crate::ports::approval::PolicySet;
use crate::ports::clock::Clock;
use crate::ports::grants::Grants;
use crate::ports::recorder::Recorder;
use crate::ports::reviewer::Reviewer;
use crate::ports::state::PolicyState;
use fleet::{Fleet, ServerSpec, ServerState, ServerStatus};
use known::KnownLists;
use reload::Kept;
use served::Served;
use session::Session;

/// What a host is made of. Every field is needed: a host without a recorder or a clock does not exist.
pub struct HostParts {
    /// What decides about calls.
    pub policies: PolicySet,
    /// How tools are named.
    pub names: Names,
    /// The servers to run.
    pub servers: BTreeMap<ServerName, ServerSpec>,
    /// Servers that are not to be run, and why.
    pub disabled: BTreeMap<ServerName, String>,
    /// Takes items and decisions.
    pub recorder: Arc<dyn Recorder>,
    /// Keeps remembered agreements.
    pub grants: Arc<dyn Grants>,
    /// Keeps labels, history, counters and pins.
    pub state: Arc<dyn PolicyState>,
    /// Tells the time of day.
    pub clock: Arc<dyn Clock>,
    /// How long an answer of a person is waited for; [`ask::DEADLINE`] by default.
    pub ask_deadline: Option<Duration>,
}

/// A running host.
pub struct Host {
    pipeline: Pipeline,
    catalog: Arc<Catalog>,
    fleet: Arc<Fleet>,
    kept: ArcSwap<Vec<Kept>>,
    served: Served,
}

impl Host {
    /// Starts all servers side by side and returns at once.
    #[must_use]
    pub fn start(parts: HostParts) -> Arc<Self> {
        Self::start_knowing(parts, KnownLists::new(TenantId::new("local")))
    }

    /// The same for a host that knows what servers listed before it was there.
    #[must_use]
    pub fn start_knowing(parts: HostParts, known: KnownLists) -> Arc<Self> {
        let catalog = Arc::new(Catalog::new(Arc::new(parts.policies), parts.names));
        let fleet = Fleet::start(parts.servers, parts.disabled, Arc::clone(&catalog), known);
        let observatory = Arc::new(Observatory::new(Arc::clone(&parts.recorder), Arc::clone(&parts.clock)));
        let pipeline = Pipeline {
            catalog: Arc::clone(&catalog),
            fleet: Arc::clone(&fleet) as _,
            grants: parts.grants,
            recorder: parts.recorder,
            state: parts.state,
            clock: parts.clock,
            accepted: Accepted::default(),
            pending: Arc::new(PendingCalls::default()),
            observatory,
            ask_deadline: parts.ask_deadline.unwrap_or(ask::DEADLINE),
        };
        Arc::new(Self { pipeline, catalog, fleet, kept: ArcSwap::default(), served: Served::default() })
    }

    /// Opens a session of a caller, with whoever can be asked in it.
    #[must_use]
    pub fn session(self: &Arc<Self>, caller: Caller, reviewer: Arc<dyn Reviewer>) -> Arc<Session> {
        Arc::new(Session::new(Arc::clone(self), caller, reviewer))
    }

    /// Returns the tools of each server that is ready and of whose tools all can be used: what a policy may be meant for.
    #[must_use]
    pub fn known_tools(&self) -> KnownTools {
        // The servers first: what is ready now has its tools in any later snapshot.
        let told = |status: ServerStatus| {
            (status.state == ServerState::Ready && status.problems.is_empty())
                .then_some((status.server, BTreeSet::new()))
        };
        let mut known: KnownTools = self.status().into_iter().filter_map(told).collect();
        for tool in self.catalog.current().tools() {
            if let Some(own) = known.get_mut(&tool.server) {
                own.insert(tool.definition.name().clone());
            }
        }
        known
    }

    /// Returns the servers.
    #[must_use]
    pub fn fleet(&self) -> &Arc<Fleet> {
        &self.fleet
    }

    /// Returns the catalog.
    #[must_use]
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// Returns where every server is.
    #[must_use]
    pub fn status(&self) -> Vec<ServerStatus> {
        self.fleet.status()
    }

    /// Puts another configuration in force: calls are decided by it from now on, and one that was decided before is decided
    /// again before it is sent (R19). Servers whose connection is made of the same go on over it (B10).
    pub async fn reconfigure(
        &self,
        policies: PolicySet,
        servers: BTreeMap<ServerName, ServerSpec>,
        disabled: BTreeMap<ServerName, String>,
        kept: Vec<Kept>,
    ) {
        self.kept.store(Arc::new(kept));
        self.fleet.reconfigure(Arc::new(policies), servers, disabled).await;
    }

    /// Returns the layers that cannot be used as they are now and stay as they were, and those that did for too long (R8).
    #[must_use]
    pub fn kept(&self) -> Arc<Vec<Kept>> {
        self.kept.load_full()
    }

    fn served(&self) -> &Served {
        &self.served
    }

    pub(crate) fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// Waits for open calls, at most `grace`, then ends all servers.
    ///
    /// Calls that are still open then lose their connection and complete as such; whoever runs them may also drop them, which
    /// completes them as cancelled.
    pub async fn shutdown(&self, grace: Duration) {
        let quiet = async {
            self.pipeline.pending.idle().await;
            self.pipeline.observatory.idle().await;
        };
        let _idle = tokio::time::timeout(grace, quiet).await;
        self.fleet.stop().await;
    }
}
