//! What the servers of a host list, and what of it is published under which configuration.
//!
//! A listing is kept whole: another filter shows another part of it, over the same connection (catalog-dispatch 2.1 rule 13).

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::known::{KnownLists, List};
use super::server::{Filtered, MAX_FILTERED, Server, ServerSpec, Told};
use crate::model::file_params::FileParams;
use crate::model::name::ServerName;
use crate::model::text;
use crate::model::tool::ToolDefinition;
use crate::pipeline::admit::catalog::{Catalog, PublishedServer};
use crate::pipeline::admit::remembered::{Publication, RememberedServer};
use crate::ports::approval::PolicySet;
use crate::ports::upstream::{Connection, Listing, UpstreamLog};

/// How many problems of one server are kept.
const MAX_PROBLEMS: usize = 20;

/// What a server lists, over which connection. Immutable.
#[derive(Clone)]
pub(super) struct Listed {
    connection: Arc<dyn Connection>,
    definitions: Vec<Arc<ToolDefinition>>,
    listing: Arc<Listing>,
    problems: Vec<String>,
}

impl Listed {
    /// Parses a listing. A definition that cannot be used is left out and reported.
    pub(super) fn of(connection: &Arc<dyn Connection>, listing: Listing) -> Self {
        let mut problems = Vec::new();
        let mut definitions = Vec::with_capacity(listing.tools.len());
        for definition in &listing.tools {
            match ToolDefinition::parse_shared(Arc::clone(definition)) {
                Ok(definition) => definitions.push(Arc::new(definition)),
                Err(bad) if problems.len() < MAX_PROBLEMS => problems.push(match std::error::Error::source(&bad) {
                    Some(cause) => format!("{bad}: {cause}"),
                    None => bad.to_string(),
                }),
                Err(_) => {}
            }
        }
        Self { connection: Arc::clone(connection), definitions, listing: Arc::new(listing), problems }
    }

    /// What of it exists under a configuration, and what is told of the rest.
    fn under(&self, spec: &ServerSpec) -> (PublishedServer, Told) {
        let mut told = Told { problems: self.problems.clone(), ..Told::default() };
        let tools = chosen(&self.definitions, spec, &mut told);
        let published = PublishedServer {
            connectors: spec.connectors.clone(),
            connection: Arc::clone(&self.connection),
            config: spec.config,
            identity: spec.identity,
            tools,
            instructions: self.listing.instructions.clone(),
            wants_sandbox_state: self.listing.wants_sandbox_state,
            view: spec.view.clone(),
        };
        (published, told)
    }
}

/// What of a list exists under a configuration.
fn chosen(definitions: &[Arc<ToolDefinition>], spec: &ServerSpec, told: &mut Told) -> Vec<Arc<ToolDefinition>> {
    let mut tools = Vec::with_capacity(definitions.len());
    let (mut names, mut filtered) = (HashSet::new(), HashSet::new());
    for tool in definitions {
        let name = tool.name();
        if let Some(layer) = (spec.filter)(name) {
            if !filtered.insert(name) {
                // Listed twice: named once.
            } else if told.filtered.len() < MAX_FILTERED {
                told.filtered.push(Filtered { tool: name.clone(), layer });
            } else {
                told.filtered_more += 1;
            }
            continue;
        }
        let shown = || text::shown(name.as_str(), 128);
        // The catalog would leave it out without a word to whoever asks.
        if (spec.view.file_parameters || spec.connectors.contains_key(name))
            && let Err(bad) = FileParams::of(tool)
        {
            told.problems.push(format!("the tool `{}` cannot be shown with paths for its files: {bad}", shown()));
            continue;
        }
        if !names.insert(name) {
            told.problems.push(format!("the tool `{}` is listed twice; the first one is used", shown()));
        }
        tools.push(Arc::clone(tool));
    }
    told.problems.truncate(MAX_PROBLEMS);
    tools
}

/// What all tasks share.
pub(super) struct Shared {
    pub(super) catalog: Arc<Catalog>,
    live: tokio::sync::Mutex<Live>,
    known: KnownLists,
    pub(super) logs: broadcast::Sender<(ServerName, UpstreamLog)>,
    pub(super) stop: CancellationToken,
}

struct Live {
    servers: BTreeMap<ServerName, (Listed, PublishedServer)>,
    /// Servers that are starting, each with its last list, whole and as it is published.
    remembered: BTreeMap<ServerName, (List, RememberedServer)>,
    policies: Arc<PolicySet>,
}

impl Live {
    /// Puts in what a server lists, as the configuration that it runs by has it.
    fn put(&mut self, name: &ServerName, server: &Server, listed: Listed) {
        let Some(spec) = server.spec() else { return };
        let (published, told) = listed.under(&spec);
        server.tell(name, told);
        self.forget(name, server);
        self.servers.insert(name.clone(), (listed, published));
    }

    /// Puts in what a server that is starting listed the last time, as the configuration that it runs by has it.
    fn remember(&mut self, name: &ServerName, server: &Server, list: List) {
        let Some(spec) = server.spec() else { return };
        let mut told = Told::default();
        let remembered = RememberedServer {
            identity: spec.identity,
            tools: chosen(&list, &spec, &mut told),
            connectors: spec.connectors.clone(),
            view: spec.view.clone(),
        };
        server.tell(name, told);
        self.remembered.insert(name.clone(), (list, remembered));
    }

    fn forget(&mut self, name: &ServerName, server: &Server) {
        self.remembered.remove(name);
        server.remembered.send_replace(false);
    }

    async fn publish(&self, catalog: &Catalog) {
        let live = self.servers.iter().map(|(name, (_, published))| (name.clone(), published.clone())).collect();
        let remembered = self.remembered.iter().map(|(name, (_, own))| (name.clone(), own.clone())).collect();
        catalog.publish(Publication { live, remembered }, Arc::clone(&self.policies)).await;
    }
}

impl Shared {
    /// Of a host without servers. `logs`: how many log messages are kept for a slow reader.
    pub(super) fn new(catalog: Arc<Catalog>, known: KnownLists, logs: usize) -> Arc<Self> {
        let policies = Arc::clone(catalog.current().policies());
        Arc::new(Self {
            catalog,
            live: tokio::sync::Mutex::new(Live { servers: BTreeMap::new(), remembered: BTreeMap::new(), policies }),
            known,
            logs: broadcast::Sender::new(logs),
            stop: CancellationToken::new(),
        })
    }

    /// Publishes what a server lists now, or takes it out. Holding the map while publishing keeps publications in order.
    pub(super) async fn publish(&self, name: &ServerName, server: &Server, listed: Option<Listed>) {
        let mut live = self.live.lock().await;
        match listed {
            // What was told to end is called by nobody any more, however late its listing comes.
            Some(listed) if !server.stop.is_cancelled() => {
                self.keep(name, server, &listed);
                live.put(name, server, listed);
            }
            _ => {
                live.servers.remove(name);
                live.forget(name, server);
            }
        }
        live.publish(&self.catalog).await;
    }

    /// Publishes what a server that is about to be started listed the last time, if that is known and nothing is listed of it.
    pub(super) async fn remember(&self, name: &ServerName, server: &Server) {
        let Some(spec) = server.spec() else { return };
        let mut live = self.live.lock().await;
        if server.stop.is_cancelled() || live.servers.contains_key(name) || live.remembered.contains_key(name) {
            return;
        }
        let Some(list) = self.known.last(name, spec.launch) else { return };
        live.remember(name, server, list);
        live.publish(&self.catalog).await;
        server.remembered.send_replace(true);
    }

    /// Keeps what a server lists for its next start, if it may be.
    fn keep(&self, name: &ServerName, server: &Server, listed: &Listed) {
        let Some(spec) = server.spec().filter(|spec| spec.upstream.may_be_remembered()) else { return };
        if listed.listing.unremembered {
            self.known.forget(name, spec.launch);
        } else {
            self.known.keep(name, spec.launch, &listed.definitions);
        }
    }

    /// Publishes other policies together with the configurations that the servers that go on are run by from now on, and
    /// without the others; then does `then`, before anything else is published.
    pub(super) async fn decide_by(
        &self,
        policies: Arc<PolicySet>,
        go_on: BTreeMap<ServerName, (Arc<Server>, ServerSpec)>,
        then: impl FnOnce(),
    ) {
        let mut live = self.live.lock().await;
        live.policies = policies;
        live.servers.retain(|name, _| go_on.contains_key(name));
        live.remembered.retain(|name, _| go_on.contains_key(name));
        for (name, (server, spec)) in go_on {
            if !server.run_by(spec) {
                continue;
            }
            if let Some((listed, _)) = live.servers.remove(&name) {
                live.put(&name, &server, listed);
            } else if let Some((list, _)) = live.remembered.remove(&name) {
                live.remember(&name, &server, list);
            }
        }
        live.publish(&self.catalog).await;
        then();
    }
}
