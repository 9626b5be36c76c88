//! One server of a host: how it is run, where it is, and what is told of it.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use serde::ser::SerializeStruct as _;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::model::digest::Digest;
use crate::model::exposure::Exposure;
use crate::model::layer::LayerRef;
use crate::model::name::{RawToolName, ServerName};
use crate::model::revision::ConnectionId;
use crate::model::text;
use crate::model::tool::{Connector, ServerIdentity};
use crate::pipeline::admit::catalog::ServerView;
use crate::ports::upstream::{Connection, ConnectionEvent, MAX_APPS_TOOLS, MAX_TOOLS, StartFailure, Traffic, Upstream};

/// Which layer leaves a tool out, if one does.
pub type LeavesOut = dyn Fn(&RawToolName) -> Option<LayerRef> + Send + Sync;

/// One server to run.
#[derive(Clone)]
pub struct ServerSpec {
    /// Connects to it.
    pub upstream: Arc<dyn Upstream>,
    /// What it is.
    pub identity: ServerIdentity,
    /// Digest of what its connection is made of: when it changes, the server is started anew. Nothing else of its configuration
    /// ends a connection.
    pub launch: Digest,
    /// Digest of its effective configuration; when it changes, calls that were prepared before are stale (R19).
    pub config: Digest,
    /// What calls need to know.
    pub view: ServerView,
    /// The App connectors of its tools. Whoever embeds the host says so; a server cannot claim one, and no file can (R9).
    pub connectors: BTreeMap<RawToolName, Connector>,
    /// Which layer leaves a tool out; none: it exists for us.
    pub filter: Arc<LeavesOut>,
    /// Whether the host does not start without it.
    pub required: bool,
    /// How long connecting may take, and listing again.
    pub startup_timeout: Duration,
    /// The waits between attempts to start it.
    pub back_off: BackOff,
}

impl ServerSpec {
    /// Returns how many tools it may list: only the Apps server, which is what has connectors (R9), may list more than others.
    #[must_use]
    pub fn most_tools(&self) -> usize {
        if self.connectors.is_empty() { MAX_TOOLS } else { MAX_APPS_TOOLS }
    }
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

impl ServerState {
    /// Replaces `from` by `to`; false when it is another one.
    pub(super) fn replace(&mut self, from: &Self, to: Self) -> bool {
        let same = self == from;
        if same {
            *self = to;
        }
        same
    }

    pub(super) fn is_settled(&self) -> bool {
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
    /// What it lists that a layer leaves out, in the server's order; at most [`MAX_FILTERED`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub filtered: Vec<Filtered>,
    /// How many more it lists that a layer leaves out.
    #[serde(skip_serializing_if = "is_zero")]
    pub filtered_more: usize,
    /// How many bytes have passed over its connection, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic: Option<Traffic>,
    /// What happened on its connections so far, and how often.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub events: BTreeMap<ConnectionEvent, u64>,
}

/// How many tools that a layer leaves out are named for one server; the others are counted.
pub const MAX_FILTERED: usize = 256;

/// A tool that is listed by its server and left out by a layer. Serialised as `tool`, `exposure`, `reason` and `layer`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filtered {
    /// Its raw name.
    pub tool: RawToolName,
    /// The most trusted of the layers that leave it out.
    pub layer: LayerRef,
}

impl Filtered {
    /// Returns the reason, for people.
    #[must_use]
    pub fn reason(&self) -> String {
        format!("filtered by the {} layer", self.layer)
    }
}

impl Serialize for Filtered {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("Filtered", 4)?;
        out.serialize_field("tool", &self.tool)?;
        out.serialize_field("exposure", &Exposure::Absent)?;
        out.serialize_field("reason", &self.reason())?;
        out.serialize_field("layer", &self.layer)?;
        out.end()
    }
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// What is told of what a server lists; bounded.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) problems: Vec<String>,
    pub(super) filtered: Vec<Filtered>,
    pub(super) filtered_more: usize,
}

/// What one server's task shares with the fleet.
pub(super) struct Server {
    pub(super) state: watch::Sender<ServerState>,
    /// Whether it has started or failed once.
    pub(super) tried: AtomicBool,
    /// Whether what it listed the last time is listed while it starts.
    pub(super) remembered: watch::Sender<bool>,
    pub(super) wanted: Notify,
    pub(super) dirty: Mutex<Option<ConnectionId>>,
    pub(super) told: Mutex<Told>,
    pub(super) events: Arc<Mutex<BTreeMap<ConnectionEvent, u64>>>,
    pub(super) live: Mutex<Option<Weak<dyn Connection>>>,
    /// Why a call to it failed last, until one succeeds.
    failing: Mutex<Option<String>>,
    /// What it runs by now; none: it is not run.
    spec: Option<watch::Sender<Arc<ServerSpec>>>,
    pub(super) stop: CancellationToken,
}

impl Server {
    fn new(state: ServerState, spec: Option<ServerSpec>, stop: CancellationToken) -> Self {
        Self {
            state: watch::Sender::new(state),
            tried: AtomicBool::new(false),
            remembered: watch::Sender::new(false),
            wanted: Notify::new(),
            dirty: Mutex::default(),
            told: Mutex::default(),
            events: Arc::default(),
            live: Mutex::default(),
            failing: Mutex::default(),
            spec: spec.map(|spec| watch::Sender::new(Arc::new(spec))),
            stop,
        }
    }

    /// One that is to be started, and ends with `stop`.
    pub(super) fn starting(spec: ServerSpec, stop: CancellationToken) -> Self {
        Self::new(ServerState::Starting, Some(spec), stop)
    }

    pub(super) fn disabled(text: String) -> Self {
        Self::new(ServerState::Disabled { text }, None, CancellationToken::new())
    }

    pub(super) fn is_run(&self) -> bool {
        self.spec.is_some()
    }

    /// Returns what it runs by now; none: it is not run.
    pub(super) fn spec(&self) -> Option<Arc<ServerSpec>> {
        self.spec.as_ref().map(|spec| Arc::clone(&spec.borrow()))
    }

    /// Returns a receiver of what it runs by.
    pub(super) fn specs(&self) -> Option<watch::Receiver<Arc<ServerSpec>>> {
        self.spec.as_ref().map(watch::Sender::subscribe)
    }

    /// Whether its connection is what this asks for.
    pub(super) fn goes_on_by(&self, spec: &ServerSpec) -> bool {
        self.spec().is_some_and(|own| own.launch == spec.launch)
    }

    /// Runs it by another configuration from now on, over the connection that it has. False: it is the one that it had.
    pub(super) fn run_by(&self, mut spec: ServerSpec) -> bool {
        let (Some(sender), Some(before)) = (&self.spec, self.spec()) else { return false };
        if before.config == spec.config {
            return false;
        }
        // Calls that are under way have their places; as many stay the same places.
        for (slots, before) in spec.view.slots.iter_mut().zip(&before.view.slots) {
            if slots == before {
                *slots = before.clone();
            }
        }
        sender.send_replace(Arc::new(spec));
        true
    }

    /// Returns the connection, open or not, if there is one.
    pub(super) fn connection(&self) -> Option<Arc<dyn Connection>> {
        self.live.lock().as_ref().and_then(Weak::upgrade)
    }

    /// Takes what is told of it from now on; what is new of the problems goes to the log.
    pub(super) fn tell(&self, name: &ServerName, told: Told) {
        let mut before = self.told.lock();
        for problem in told.problems.iter().filter(|problem| !before.problems.contains(problem)) {
            tracing::warn!(server = %name, problem, "unusable definition");
        }
        *before = told;
    }

    /// Says why a call to it failed on its way: each reason once, until a call succeeds.
    pub(super) fn call_ended(&self, name: &ServerName, failed: Option<&str>) {
        let mut failing = self.failing.lock();
        if failing.as_deref() == failed {
            return;
        }
        *failing = failed.map(str::to_owned);
        if let Some(why) = failed {
            tracing::warn!(server = %name, why = %text::shown(why, 512), "a call failed on its way");
        }
    }

    /// Returns where it is, for people. `tools`: how many of its tools are listed.
    pub(super) fn status(&self, name: ServerName, tools: usize) -> ServerStatus {
        let told = self.told.lock();
        ServerStatus {
            state: self.state.borrow().clone(),
            tools,
            server: name,
            problems: told.problems.clone(),
            filtered: told.filtered.clone(),
            filtered_more: told.filtered_more,
            traffic: self.connection().filter(|connection| connection.is_open()).map(|open| open.traffic()),
            events: self.events.lock().clone(),
        }
    }

    /// Ends it; done when it has ended.
    pub(super) fn end(self: Arc<Self>) -> impl Future<Output = ()> + Send + 'static {
        self.stop.cancel();
        async move {
            if self.is_run() {
                let mut state = self.state.subscribe();
                // The sender is ours, so waiting cannot fail.
                drop(state.wait_for(|state| matches!(state, ServerState::Stopped)).await);
            }
        }
    }
}
