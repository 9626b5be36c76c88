//! A whole host with scripted servers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use portcullis::adapters::store::memory_state::in_memory;
use portcullis::host::fleet::{BackOff, ServerSpec, ServerState};
use portcullis::host::known::KnownLists;
use portcullis::host::session::{Session, SessionCall};
use portcullis::host::{Host, HostParts};
use portcullis::model::caller::Caller;
use portcullis::model::digest::Digest;
use portcullis::model::name::{ServerName, Target, ToolRef};
use portcullis::model::tool::ServerIdentity;
use portcullis::pipeline::admit::catalog::Names;
use portcullis::ports::reviewer::NobodyThere;

use super::Journal;
use super::bench::{names, view};
use super::people::{Purse, Still, Tape};
use super::policy::Policies;
use super::server::{Connects, FakeServer};

pub(crate) const STARTUP: Duration = Duration::from_secs(30);

pub(crate) struct House {
    pub(crate) host: Arc<Host>,
    pub(crate) tape: Arc<Tape>,
}

/// A server as it is configured unless a test says otherwise.
pub(crate) fn spec(server: &Arc<FakeServer>) -> ServerSpec {
    ServerSpec {
        upstream: Arc::new(Connects(Arc::clone(server))),
        identity: ServerIdentity(Digest::of(server.name.as_bytes())),
        launch: Digest::of(b"launch"),
        config: Digest::of(b"config"),
        view: view(),
        connectors: BTreeMap::new(),
        filter: Arc::new(|_| None),
        required: false,
        startup_timeout: STARTUP,
        back_off: BackOff::default(),
    }
}

impl House {
    /// Runs these servers, under policies that ask nothing.
    pub(crate) fn of(servers: &[&Arc<FakeServer>]) -> Self {
        Self::with(servers.iter().map(|server| (server.name.clone(), spec(server))).collect(), BTreeMap::new())
    }

    pub(crate) fn with(specs: BTreeMap<String, ServerSpec>, disabled: BTreeMap<ServerName, String>) -> Self {
        let names_of: Vec<&str> = specs.keys().map(String::as_str).collect();
        let policies = Policies::open(&names_of);
        Self::under(&policies, specs, disabled)
    }

    /// Runs these servers under these policies.
    pub(crate) fn under(
        policies: &Policies,
        specs: BTreeMap<String, ServerSpec>,
        disabled: BTreeMap<ServerName, String>,
    ) -> Self {
        Self::build(policies, specs, disabled, names(), None)
    }

    /// Runs these servers, whose tools are named like this.
    pub(crate) fn named(policies: &Policies, specs: BTreeMap<String, ServerSpec>, names: Names) -> Self {
        Self::build(policies, specs, BTreeMap::new(), names, None)
    }

    /// Runs these servers on a host that knows what they listed before.
    pub(crate) fn knowing(known: &KnownLists, policies: &Policies, specs: BTreeMap<String, ServerSpec>) -> Self {
        Self::build(policies, specs, BTreeMap::new(), names(), Some(known.clone()))
    }

    fn build(
        policies: &Policies,
        specs: BTreeMap<String, ServerSpec>,
        disabled: BTreeMap<ServerName, String>,
        names: Names,
        known: Option<KnownLists>,
    ) -> Self {
        let journal = Journal::default();
        let tape = Tape::new(&journal);
        let parts = HostParts {
            policies: policies.finish(),
            names,
            servers: specs.into_iter().map(|(name, spec)| (ServerName::parse(&name).unwrap(), spec)).collect(),
            disabled,
            state: Arc::new(in_memory()),
            recorder: Arc::clone(&tape) as _,
            grants: Purse::new(&journal),
            clock: Arc::new(Still),
            ask_deadline: None,
        };
        let host = match known {
            Some(known) => Host::start_knowing(parts, known),
            None => Host::start(parts),
        };
        Self { host, tape }
    }

    pub(crate) fn session(&self) -> Arc<Session> {
        self.host.session(Caller::local("ann"), Arc::new(NobodyThere))
    }

    pub(crate) fn state(&self, server: &str) -> ServerState {
        self.host.status().into_iter().find(|status| status.server.as_str() == server).unwrap().state
    }

    /// Waits until the catalog lists exactly this.
    pub(crate) async fn lists(&self, tools: &[&str]) {
        let mut revisions = self.host.catalog().watch();
        while self.listed() != tools {
            revisions.changed().await.unwrap();
        }
    }

    /// The tools that are listed, by raw identity.
    pub(crate) fn listed(&self) -> Vec<String> {
        self.host.catalog().current().tools().iter().map(|tool| tool.reference().to_string()).collect()
    }
}

/// A call with arguments `{}`.
pub(crate) fn call(target: &str) -> SessionCall {
    SessionCall::new(Target::from(ToolRef::parse(target).unwrap()), "{}")
}
