//! Builds a host from layers, for a program that has it as a library.
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//!
//! use portcullis::host::build::HostBuilder;
//! use portcullis::host::user::local_caller;
//! use portcullis::model::layer::LayerKind;
//! use portcullis::ports::reviewer::NobodyThere;
//!
//! let layer = "[mcp_servers.files]\ncommand = \"my-files-server\"\n";
//! let built = HostBuilder::new().layer(LayerKind::User, layer, ".").start().await?;
//! let session = built.host.session(local_caller(), Arc::new(NobodyThere));
//! for tool in session.step().await?.tools() {
//!     println!("{tool}");
//! }
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::asking::Desk;
use super::fleet::{BackOff, ServerSpec};
use super::known::KnownLists;
use super::overlay::{self, NotAdded};
use super::records::{self, NoRecord};
use super::reload::{Loaded, Reloader};
use super::session::Session;
use super::{Host, wire};
use crate::adapters::record::fanout::Fanout;
use crate::adapters::store::memory_state::in_memory;
use crate::adapters::wasm::{Engine, EngineError};
use crate::config::{EmbeddedLayer, Places, Resolved, SessionSources};
use crate::model::caller::Caller;
use crate::model::digest::Digest;
use crate::model::layer::LayerKind;
use crate::model::name::ServerName;
use crate::model::tool::ServerIdentity;
use crate::model::verdict::Refusal;
use crate::pipeline::admit::catalog::ServerView;
use crate::ports::asks::Asks;
use crate::ports::grants::Grants;
use crate::ports::recorder::Recorder;
use crate::ports::reviewer::Reviewer;
use crate::ports::state::PolicyState;
use crate::ports::upstream::Upstream;

/// How long a server that the embedder brings may take to start, and to answer a call.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What a host is to be built from. With nothing said it reads no file, keeps its state in memory and records nothing.
pub struct HostBuilder {
    places: Places,
    session: SessionSources,
    servers: Vec<(LayerKind, ServerName, ServerSpec)>,
    recorder: Option<Arc<dyn Recorder>>,
    grants: Option<Arc<dyn Grants>>,
    state: Option<Arc<dyn PolicyState>>,
    asks: Option<Arc<dyn Asks>>,
    ask_deadline: Option<Duration>,
    known: Option<KnownLists>,
}

/// A running host, and the configuration that it was built from.
pub struct Built {
    /// The host.
    pub host: Arc<Host>,
    /// The configuration, with its warnings and problems.
    pub resolved: Arc<Resolved>,
    /// The queue that questions wait in as well; none without one, and where a layer switches it off.
    pub desk: Option<Desk>,
}

impl Built {
    /// Begins a session. What `reviewer` is asked waits in the queue as well, if there is one (R21).
    #[must_use]
    pub fn session(&self, caller: Caller, reviewer: Arc<dyn Reviewer>) -> Arc<Session> {
        let reviewer = match &self.desk {
            Some(desk) => desk.beside(reviewer),
            None => reviewer,
        };
        self.host.session(caller, reviewer)
    }
}

/// Why there is no host.
#[derive(Debug, thiserror::Error)]
pub enum NotBuilt {
    /// The policy sandbox cannot start.
    #[error("the policy sandbox cannot start")]
    Engine(#[from] EngineError),
    /// A layer cannot be used, so every call would be refused (R8).
    #[error("a layer cannot be used, so every call would be refused: {}", texts(.0))]
    Refused(Vec<Refusal>),
    /// A layer wants calls recorded, and that cannot be done.
    #[error(transparent)]
    Record(#[from] NoRecord),
    /// A server of the embedder was not added.
    #[error(transparent)]
    Server(#[from] NotAdded),
    /// A required server did not start. All servers were ended again.
    #[error("{0}")]
    Required(String),
    /// Loading panicked, or the runtime is ending.
    #[error("loading was broken off")]
    BrokenOff,
}

fn texts(refusals: &[Refusal]) -> String {
    let text = |refusal: &Refusal| format!("{}: {}", refusal.source.layer, refusal.reason.text);
    refusals.iter().map(text).collect::<Vec<_>>().join("; ")
}

impl Default for HostBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl HostBuilder {
    /// Begins with nothing: no layer but the built-in one.
    #[must_use]
    pub fn new() -> Self {
        Self {
            places: Places::nowhere(),
            session: SessionSources::default(),
            servers: Vec::new(),
            recorder: None,
            grants: None,
            state: None,
            asks: None,
            ask_deadline: None,
            known: None,
        }
    }

    /// Reads the layers of a machine as well; [`Places::from_environment`] are those that the command reads.
    #[must_use]
    pub fn places(mut self, places: Places) -> Self {
        self.places = places;
        self
    }

    /// Adds a layer as TOML text. Components and data in it are relative to `folder`. The embedder vouches for the kind.
    #[must_use]
    pub fn layer(mut self, kind: LayerKind, text: impl Into<String>, folder: impl Into<PathBuf>) -> Self {
        self.session.embedded.push(EmbeddedLayer { kind, text: text.into(), folder: folder.into() });
        self
    }

    /// Adds a server that the embedder brings, as trusted as `kind` is; [`server_of`] makes one of an upstream. It replaces
    /// one of that name that no more trusted layer defines.
    #[must_use]
    pub fn server(mut self, kind: LayerKind, name: ServerName, spec: ServerSpec) -> Self {
        self.servers.push((kind, name, spec));
        self
    }

    /// Says who takes items and decisions, besides the record that layers keep.
    #[must_use]
    pub fn recorder(mut self, recorder: Arc<dyn Recorder>) -> Self {
        self.recorder = Some(recorder);
        self
    }

    /// Says who keeps remembered agreements.
    #[must_use]
    pub fn grants(mut self, grants: Arc<dyn Grants>) -> Self {
        self.grants = Some(grants);
        self
    }

    /// Says what is known of servers' last lists, and where they are kept: hosts that share it list a server of the same launch
    /// while it starts. Alone a host knows what its own servers have listed.
    #[must_use]
    pub fn known_lists(mut self, known: KnownLists) -> Self {
        self.known = Some(known);
        self
    }

    /// Says who keeps labels, history, counters and pins; [`wire::open_state`] opens the user's.
    #[must_use]
    pub fn state(mut self, state: Arc<dyn PolicyState>) -> Self {
        self.state = Some(state);
        self
    }

    /// Says where questions wait besides, so that they outlive their caller and another terminal can answer them (R21). The layers
    /// say by `[approvals]` whether it is used, and whether a call that reaches nobody else waits there. Use [`Built::session`].
    #[must_use]
    pub fn queue(mut self, asks: Arc<dyn Asks>) -> Self {
        self.asks = Some(asks);
        self
    }

    /// Keeps agreements, questions and what components know of earlier calls in a store; [`wire::open_state`] opens the user's,
    /// which `portcullis approvals` works on.
    #[must_use]
    pub fn stored(self, stored: &wire::Stored) -> Self {
        let grants: Arc<dyn Grants> = Arc::clone(&stored.grants) as _;
        self.grants(grants).state(Arc::clone(&stored.state)).queue(Arc::clone(&stored.asks))
    }

    /// Says how long an answer of a person is waited for, whatever the layers say.
    #[must_use]
    pub fn ask_deadline(mut self, deadline: Duration) -> Self {
        self.ask_deadline = Some(deadline);
        self
    }

    /// Reads the layers, loads their components and starts the servers. Returns once the required ones are ready, each within
    /// its own startup timeout; the others may be starting still.
    ///
    /// # Errors
    /// [`NotBuilt`], also when a required server does not start. What is wrong with single entries is in [`Built::resolved`].
    pub async fn start(self) -> Result<Built, NotBuilt> {
        let (places, session) = (self.places, self.session);
        let places_of_records = places.clone();
        let loading = tokio::task::spawn_blocking(move || {
            let mut reloader = Reloader::new(places, session, Engine::on_demand()?);
            Ok::<_, EngineError>(reloader.load(Instant::now()))
        });
        let Loaded { resolved, policies, calls, .. } = loading.await.map_err(|_broken| NotBuilt::BrokenOff)??;
        if !policies.refusals.is_empty() {
            return Err(NotBuilt::Refused(policies.refusals));
        }
        // What layers want kept is kept besides: an embedder's own recorder does not switch it off.
        let kept = records::open(&resolved, &places_of_records, None, false)?;
        let recorder = match self.recorder {
            Some(own) => Arc::new(Fanout::new(vec![kept, own])),
            None => kept,
        };
        let state = self.state.unwrap_or_else(|| Arc::new(in_memory()));
        let mut parts = wire::host_parts(&resolved, policies, &calls, recorder, None, state);
        for (kind, name, spec) in self.servers {
            overlay::add(&mut parts.servers, &parts.disabled, &resolved, kind, (name, spec))?;
        }
        parts.grants = self.grants.unwrap_or(parts.grants);
        parts.ask_deadline = self.ask_deadline.or(parts.ask_deadline);
        let desk = self.asks.filter(|_| resolved.queue.value != Some(false));
        let desk = desk.map(|asks| Desk::new(asks, Arc::clone(&parts.clock)));
        let desk = desk.map(|desk| if resolved.queue.value == Some(true) { desk.patient() } else { desk });
        let host = match self.known {
            Some(known) => Host::start_knowing(parts, known),
            None => Host::start(parts),
        };
        if let Err(why) = host.fleet().await_required().await {
            host.shutdown(Duration::ZERO).await;
            return Err(NotBuilt::Required(why));
        }
        Ok(Built { host, resolved: Arc::new(resolved), desk })
    }
}

/// Describes a server that the embedder brings. Its hints count for what `may_relax` says (R9); everything else is as for a
/// server of which a configuration says nothing.
#[must_use]
pub fn server_of(name: &ServerName, upstream: Arc<dyn Upstream>, may_relax: bool) -> ServerSpec {
    let identity = ServerIdentity(Digest::of_parts([b"embedded".as_slice(), name.as_str().as_bytes()]));
    ServerSpec {
        upstream,
        identity,
        launch: identity.0,
        config: identity.0,
        view: ServerView::embedded(TIMEOUT, may_relax),
        connectors: BTreeMap::new(),
        filter: Arc::new(|_| None),
        required: false,
        startup_timeout: TIMEOUT,
        back_off: BackOff::default(),
    }
}
