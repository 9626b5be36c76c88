//! The catalog: what all servers list, as one immutable snapshot with a revision.
//!
//! A publication builds a new snapshot beside the old one and swaps a pointer. Its revision rises only when something
//! changed that a call depends on: a connection, a server's configuration, a definition, the policies. Readers take the
//! snapshot by reference and are never stopped; a call that was prepared from an older one is checked at its lease.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

use super::apps;
use super::leases::{Leases, OpenLease};
use super::naming::{self, FlatStyle, NameLimit, Nameable, NamingOptions};
use super::remembered::{Publication, RememberedServer};
use super::slots::Slots;
use crate::model::digest::Digest;
use crate::model::exposure::Way;
use crate::model::file_params::FileParams;
use crate::model::name::{FlatName, RawToolName, ServerName, ToolRef};
use crate::model::revision::{Revision, ServerFingerprint};
use crate::model::sandbox::LOCAL;
use crate::model::text;
use crate::model::tool::{BadDefinition, CatalogTool, Connector, Plugin, ServerIdentity, ToolDefinition};
use crate::ports::approval::PolicySet;
use crate::ports::files::FileAccess;
use crate::ports::upstream::Connection;

/// What one server brings into a publication.
#[derive(Clone)]
pub struct PublishedServer {
    /// The live connection.
    pub connection: Arc<dyn Connection>,
    /// Digest of the server's effective configuration.
    pub config: Digest,
    /// What the server is.
    pub identity: ServerIdentity,
    /// The definitions, filtered and usable, in the server's order.
    pub tools: Vec<Arc<ToolDefinition>>,
    /// The App connectors of its tools. Empty for every server but the Apps server: no other earns connector trust (R9).
    pub connectors: BTreeMap<RawToolName, Connector>,
    /// The server's instructions.
    pub instructions: Option<Arc<str>>,
    /// Whether the server asked for the state of the sandbox when it was connected.
    pub wants_sandbox_state: bool,
    /// What calls need to know.
    pub view: ServerView,
}

/// What of a server's configuration calls need to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerView {
    /// The longest wait for an answer.
    pub tool_timeout: Duration,
    /// Whether hints that relax count (R9).
    pub may_relax: bool,
    /// Whether arguments are checked against its tools' input schemas before anybody is asked.
    pub check_arguments: bool,
    /// Ways in which its tools are not reached.
    pub omitted: BTreeSet<Way>,
    /// Whether its calls may run in parallel without a read-only hint.
    pub parallel: bool,
    /// Whether it runs on this machine: only then may it send a person's browser to an address here.
    pub local: bool,
    /// The plugin that provides it.
    pub plugin: Option<Plugin>,
    /// Whether what it answers pollutes the memory of a thread.
    pub pollutes_memory: bool,
    /// The environment that it runs in, by its id.
    pub environment: String,
    /// The places that a call of it needs, all of them.
    pub slots: Vec<Slots>,
    /// Whether its tools may have file parameters although they belong to no App.
    pub file_parameters: bool,
    /// Where the files of its calls come from and go to; none: a call that names one fails.
    pub files: Option<FileAccess>,
}

impl ServerView {
    /// Of a server in this process or beside it of which no configuration says anything.
    #[must_use]
    pub fn embedded(tool_timeout: Duration, may_relax: bool) -> Self {
        Self {
            tool_timeout,
            may_relax,
            check_arguments: true,
            omitted: BTreeSet::new(),
            parallel: false,
            local: true,
            plugin: None,
            pollutes_memory: true,
            environment: LOCAL.to_owned(),
            slots: Vec::new(),
            file_parameters: false,
            files: None,
        }
    }
}

/// Which names the tools get.
#[derive(Debug, Clone)]
pub struct Names {
    /// Names for the model.
    pub model: NamingOptions,
    /// Names for the gateway.
    pub flat: FlatStyle,
    /// The longest gateway name.
    pub flat_limit: NameLimit,
}

/// One server in a snapshot.
#[derive(Clone)]
pub struct ServerEntry {
    /// What a prepared call of this server depends on.
    pub fingerprint: ServerFingerprint,
    /// The connection that calls go to.
    pub connection: Arc<dyn Connection>,
    /// Whether the server asked for the state of the sandbox on this connection.
    pub wants_sandbox_state: bool,
    /// Whether it is the Apps server: whoever embeds the host gave it connectors (R9).
    pub apps: bool,
    /// What calls need to know.
    pub view: ServerView,
}

/// The catalog at one moment. Immutable.
pub struct Snapshot {
    revision: Revision,
    servers: BTreeMap<ServerName, ServerEntry>,
    tools: Vec<Arc<CatalogTool>>,
    by_reference: HashMap<ToolRef, usize>,
    by_flat: HashMap<FlatName, usize>,
    /// Servers that are starting, with what they listed the last time.
    remembered: BTreeMap<ServerName, RememberedServer>,
    policies: Arc<PolicySet>,
    /// Tools that were left out because another tool of the server has the same name.
    duplicates: Vec<ToolRef>,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot")
            .field("revision", &self.revision)
            .field("servers", &self.servers.keys())
            .field("tools", &self.tools.len())
            .finish_non_exhaustive()
    }
}

impl Snapshot {
    fn build(revision: Revision, published: Publication, policies: Arc<PolicySet>, names: &Names) -> Self {
        let sources = published.sources();
        let mut rows: Vec<(ServerName, Arc<ToolDefinition>)> = Vec::new();
        for (server, source) in &sources {
            rows.extend(source.tools.iter().map(|tool| (server.clone(), Arc::clone(tool))));
        }
        let none = BTreeMap::new();
        let connectors = |server: &ServerName| sources.get(server).map_or(&none, |source| source.connectors);
        let nameable: Vec<Nameable> =
            rows.iter().map(|(server, tool)| wish(server, tool.name(), connectors(server))).collect();
        let naming::Naming { named, duplicates } = naming::names(&nameable, &names.model);
        let flats = naming::flat_names(&nameable, names.flat, names.flat_limit).named;
        let mut flats: HashMap<usize, FlatName> = flats.into_iter().map(|row| (row.index, row.flat)).collect();
        let mut tools = Vec::with_capacity(named.len());
        for row in named {
            let (Some((server, definition)), Some(flat)) = (rows.get(row.index), flats.remove(&row.index)) else {
                continue;
            };
            let Some(source) = sources.get(server) else { continue };
            let connector = source.connectors.get(definition.name());
            let Ok(files) = file_params(definition, connector.is_some() || source.view.file_parameters) else {
                let (server, tool) = (server.as_str(), text::shown(definition.name().as_str(), 128));
                tracing::warn!(
                    server,
                    tool,
                    "a tool is left out: with paths for its files its definition is too large"
                );
                continue;
            };
            let Ok(unvouched) = source.unvouched(files.as_ref().map_or(definition, |files| files.masked())) else {
                continue;
            };
            tools.push(Arc::new(CatalogTool {
                server: server.clone(),
                identity: source.identity,
                definition: Arc::clone(definition),
                hints: source.hints(definition),
                namespace: row.namespace,
                callable: row.callable,
                flat,
                namespace_description: apps::description(connector, source.instructions),
                connector: connector.cloned(),
                plugin: source.view.plugin.clone(),
                files,
                unvouched,
            }));
        }
        let duplicates = duplicates
            .into_iter()
            .filter_map(|index| rows.get(index))
            .map(|(server, tool)| ToolRef { server: server.clone(), tool: tool.name().clone() })
            .collect();
        Self {
            revision,
            by_reference: tools.iter().enumerate().map(|(i, tool)| (tool.reference(), i)).collect(),
            by_flat: tools.iter().enumerate().map(|(i, tool)| (tool.flat.clone(), i)).collect(),
            tools,
            servers: published.live.into_iter().map(|(name, server)| (name, ServerEntry::of(server))).collect(),
            remembered: published.remembered,
            policies,
            duplicates,
        }
    }

    /// Returns the revision.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Returns the tools, sorted by raw identity.
    #[must_use]
    pub fn tools(&self) -> &[Arc<CatalogTool>] {
        &self.tools
    }

    /// Returns the policies in force.
    #[must_use]
    pub fn policies(&self) -> &Arc<PolicySet> {
        &self.policies
    }

    /// Returns the tools that were left out because their server lists the name twice.
    #[must_use]
    pub fn duplicates(&self) -> &[ToolRef] {
        &self.duplicates
    }

    /// Returns a server that is connected.
    #[must_use]
    pub fn server(&self, name: &ServerName) -> Option<&ServerEntry> {
        self.servers.get(name)
    }

    /// Returns what is configured of a server whose tools are listed, over a connection or as they were the last time.
    #[must_use]
    pub fn view(&self, name: &ServerName) -> Option<&ServerView> {
        let live = self.servers.get(name).map(|server| &server.view);
        live.or_else(|| self.remembered.get(name).map(|server| &server.view))
    }

    /// Whether a server whose tools are listed is the Apps server (R9).
    #[must_use]
    pub fn is_apps(&self, name: &ServerName) -> bool {
        let remembered = || self.remembered.get(name).is_some_and(|server| !server.connectors.is_empty());
        self.servers.get(name).map_or_else(remembered, |server| server.apps)
    }

    /// Returns a tool that is listed, whether it can be called yet or not.
    #[must_use]
    pub fn tool(&self, reference: &ToolRef) -> Option<&Arc<CatalogTool>> {
        self.tools.get(*self.by_reference.get(reference)?)
    }

    /// Finds a tool by the name that the gateway shows.
    #[must_use]
    pub fn by_flat_name(&self, name: &str) -> Option<&Arc<CatalogTool>> {
        // A map leads back to the raw identity: no string is ever split to route.
        self.tools.get(*self.by_flat.get(name)?)
    }

    /// Finds a tool of a connected server by its raw identity. The [`Listed`] is the only way to prepare a call.
    #[must_use]
    pub fn find(self: &Arc<Self>, reference: &ToolRef) -> Option<Listed> {
        let tool = Arc::clone(self.tool(reference)?);
        let server = self.servers.get(&reference.server)?.clone();
        Some(Listed { tool, server, snapshot: Arc::clone(self) })
    }

    /// What of a server a prepared call depends on beyond its fingerprint: the definitions of its tools.
    fn definition_of(&self, reference: &ToolRef) -> Option<Digest> {
        Some(self.tool(reference)?.definition.digest())
    }

    fn digests_of(&self, server: &ServerName) -> BTreeMap<RawToolName, Digest> {
        let own = self.tools.iter().filter(|tool| tool.server == *server);
        own.map(|tool| (tool.definition.name().clone(), tool.definition.digest())).collect()
    }

    /// Returns the servers whose calls `next` would invalidate.
    fn servers_changed_by(&self, next: &Self) -> BTreeSet<ServerName> {
        if self.policies.digest != next.policies.digest {
            return self.servers.keys().chain(next.servers.keys()).cloned().collect();
        }
        let names: BTreeSet<_> = self.servers.keys().chain(next.servers.keys()).cloned().collect();
        let same = |name: &ServerName| {
            let fingerprint = |snapshot: &Self| snapshot.servers.get(name).map(|entry| entry.fingerprint.clone());
            fingerprint(self) == fingerprint(next) && self.digests_of(name) == next.digests_of(name)
        };
        names.into_iter().filter(|name| !same(name)).collect()
    }
}

/// What a tool would like to be called: by its connector only where its server has connectors (R9).
fn wish(server: &ServerName, tool: &RawToolName, connectors: &BTreeMap<RawToolName, Connector>) -> Nameable {
    if connectors.is_empty() {
        return Nameable::ordinary(server.clone(), tool.clone());
    }
    apps::nameable(server.clone(), tool.clone(), connectors.get(tool))
}

impl ServerView {
    /// Whether calls of this server's tool may run side by side: the server is said to bear it, or the tool says that it only reads
    /// and its word counts (catalog-dispatch 4.1 rule 8, R9). That a tool may destroy says nothing here.
    #[must_use]
    pub fn may_run_parallel(&self, tool: &CatalogTool) -> bool {
        // `tool.hints` has no hint that does not count.
        self.parallel || tool.hints.read_only == Some(true)
    }
}

impl ServerEntry {
    fn of(server: PublishedServer) -> Self {
        let config = with_connectors(server.config, &server.connectors);
        let fingerprint = ServerFingerprint { connection: server.connection.id(), config };
        let apps = !server.connectors.is_empty();
        let PublishedServer { connection, wants_sandbox_state, view, .. } = server;
        Self { fingerprint, connection, wants_sandbox_state, apps, view }
    }
}

/// The file parameters of a tool, if its server may have some: a plain server's word alone is none (U8).
fn file_params(definition: &ToolDefinition, may: bool) -> Result<Option<Arc<FileParams>>, BadDefinition> {
    if may { Ok(FileParams::of(definition)?.map(Arc::new)) } else { Ok(None) }
}

/// The connectors are part of what a call depends on: the account link of one decides and binds agreements.
fn with_connectors(config: Digest, connectors: &BTreeMap<RawToolName, Connector>) -> Digest {
    if connectors.is_empty() {
        return config;
    }
    // Debug text of our own types: no two different maps read alike.
    Digest::of_parts([config.as_bytes().as_slice(), format!("{connectors:?}").as_bytes()])
}

/// Proof that a tool was in the catalog, with the snapshot that it was found in.
#[derive(Clone)]
pub struct Listed {
    tool: Arc<CatalogTool>,
    server: ServerEntry,
    snapshot: Arc<Snapshot>,
}

impl Listed {
    /// Returns the tool.
    #[must_use]
    pub fn tool(&self) -> &Arc<CatalogTool> {
        &self.tool
    }

    /// Returns its server.
    #[must_use]
    pub fn server(&self) -> &ServerEntry {
        &self.server
    }

    /// Returns the snapshot.
    #[must_use]
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }
}

/// Why a lease was not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseRefusal {
    /// The connection, the server's configuration or the definition changed: the call is stale, never re-routed.
    Stale,
    /// Only the policies changed: the call is decided again (R19).
    PoliciesChanged,
}

/// The published catalog.
pub struct Catalog {
    current: ArcSwap<Snapshot>,
    names: Names,
    leases: Arc<Leases>,
    publishing: tokio::sync::Mutex<()>,
    changes: tokio::sync::watch::Sender<Revision>,
}

impl std::fmt::Debug for Catalog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.current().fmt(f)
    }
}

impl Catalog {
    /// Makes a catalog without servers.
    #[must_use]
    pub fn new(policies: Arc<PolicySet>, names: Names) -> Self {
        let empty = Snapshot::build(Revision::FIRST, Publication::default(), policies, &names);
        Self {
            current: ArcSwap::from_pointee(empty),
            names,
            leases: Arc::default(),
            publishing: tokio::sync::Mutex::new(()),
            changes: tokio::sync::watch::Sender::new(Revision::FIRST),
        }
    }

    /// Returns the current snapshot.
    #[must_use]
    pub fn current(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// Returns a receiver that sees every new revision.
    #[must_use]
    pub fn watch(&self) -> tokio::sync::watch::Receiver<Revision> {
        self.changes.subscribe()
    }

    /// Publishes what the servers list now, under the policies given, and returns the revision.
    ///
    /// One publication at a time. Waits at most [`super::leases::DRAIN`] for leases that it invalidates. A publication that
    /// changes nothing keeps the revision, and the snapshot.
    pub async fn publish(&self, servers: impl Into<Publication>, policies: Arc<PolicySet>) -> Revision {
        let _one_at_a_time = self.publishing.lock().await;
        let before = self.current();
        let next = Snapshot::build(before.revision.next(), servers.into(), policies, &self.names);
        let changed = before.servers_changed_by(&next);
        let same_views = before.remembered == next.remembered
            && before.servers.iter().all(|(name, old)| next.servers.get(name).is_some_and(|new| new.view == old.view));
        if changed.is_empty() && same_views && before.policies.digest == next.policies.digest {
            return before.revision;
        }
        let revision = next.revision;
        let revoked = self.leases.drain_then(&changed, || self.current.store(Arc::new(next))).await;
        if revoked > 0 {
            tracing::warn!(revoked, revision = revision.number(), "leases were revoked by a publication");
        }
        self.changes.send_replace(revision);
        revision
    }

    /// Opens a lease for a call that was prepared with these values, if all of them are still current.
    pub(crate) fn lease(
        &self,
        reference: &ToolRef,
        fingerprint: &ServerFingerprint,
        definition: Digest,
        policies: &PolicySet,
    ) -> Result<OpenLease, LeaseRefusal> {
        self.leases.open(&reference.server, || self.check(reference, fingerprint, definition, policies))
    }

    /// Tells whether a call that was prepared with these values could still be sent.
    pub(crate) fn check(
        &self,
        reference: &ToolRef,
        fingerprint: &ServerFingerprint,
        definition: Digest,
        policies: &PolicySet,
    ) -> Result<(), LeaseRefusal> {
        let now = self.current.load();
        let same_server = now.servers.get(&reference.server).is_some_and(|entry| entry.fingerprint == *fingerprint);
        if !same_server || now.definition_of(reference) != Some(definition) {
            return Err(LeaseRefusal::Stale);
        }
        if now.policies.digest != policies.digest {
            return Err(LeaseRefusal::PoliciesChanged);
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "catalog_tests.rs"]
mod tests;
