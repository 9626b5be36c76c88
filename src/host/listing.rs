//! What a session may see of the catalog at one moment, and which way each tool is reached.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::config::file::Search;
use crate::config::stack::Gateway;
use crate::model::exposure::Exposure;
use crate::model::name::{ServerName, ToolRef};
use crate::model::tool::CatalogTool;
use crate::model::verdict::Refusal;
use crate::pipeline::admit::catalog::Snapshot;
use crate::pipeline::admit::exposure::{Candidate, Collision, ConnectorSays, Exposed, Exposing, Exposures, expose};
use crate::pipeline::admit::search::{SearchIndex, ShownTool};
use crate::pipeline::emit::sanitise::{ShownDefinition, Unshown};

/// What a session may see of the catalog at one moment. Immutable.
#[derive(Debug)]
pub struct Listing {
    snapshot: Arc<Snapshot>,
    how: Exposing,
    exposed: HashMap<ToolRef, Exposed>,
    order: Vec<Arc<CatalogTool>>,
    listed: Vec<Arc<CatalogTool>>,
    collision: Option<Collision>,
    hidden: BTreeMap<ToolRef, BTreeSet<Refusal>>,
    shown: HashMap<ToolRef, ShownDefinition>,
    withheld: BTreeMap<ToolRef, Unshown>,
    described: Descriptions,
}

/// What may be shown of the descriptions of namespaces: by server, the text as it is and what is left of it.
pub(super) type Descriptions = HashMap<(ServerName, Arc<str>), Arc<str>>;

/// What there is to decide by.
pub(super) struct Seen {
    pub(super) snapshot: Arc<Snapshot>,
    /// The tools that the connector policies hide.
    pub(super) hidden: BTreeMap<ToolRef, BTreeSet<Refusal>>,
    /// The definitions that may be shown.
    pub(super) shown: HashMap<ToolRef, ShownDefinition>,
    /// The tools whose definitions may not be.
    pub(super) withheld: BTreeMap<ToolRef, Unshown>,
    pub(super) described: Descriptions,
    /// The bytes of what a model would be given, for each tool of a plugin: nobody else has a budget.
    pub(super) spec_bytes: HashMap<ToolRef, usize>,
}

impl Listing {
    pub(super) fn of(seen: Seen, surface: &Surface) -> Self {
        let Seen { snapshot, hidden, shown, withheld, described, spec_bytes } = seen;
        let none = BTreeSet::new();
        let candidate = |tool: &Arc<CatalogTool>| {
            let reference = tool.reference();
            if withheld.contains_key(&reference) {
                return None;
            }
            let says = if hidden.contains_key(&reference) { ConnectorSays::Disabled } else { ConnectorSays::Enabled };
            let app = snapshot.is_apps(&tool.server).then_some(says);
            Some((spec_bytes.get(&reference).copied().unwrap_or(0), tool.plugin.is_some(), app))
        };
        let candidates: Vec<Candidate<'_>> = snapshot
            .tools()
            .iter()
            .filter_map(|tool| {
                let (spec_bytes, agent_plugin, app) = candidate(tool)?;
                let omitted = snapshot.view(&tool.server).map_or(&none, |view| &view.omitted);
                Some(Candidate { tool, spec_bytes, agent_plugin, omitted, app })
            })
            .collect();
        let how = surface.exposing(|how| {
            // What would stand in the list: what nobody sees makes it no longer.
            let listed = |exposed: &&Exposed| exposed.exposure.is_listed();
            expose(&candidates, how).map_or(0, |exposures| exposures.tools.iter().filter(listed).count())
        });
        let (Exposures { tools, first_collision }, failed) = match expose(&candidates, &how) {
            Ok(exposures) => (exposures, None),
            Err(collision) => (Exposures::default(), Some(collision)),
        };
        let order = tools.iter().map(|exposed| Arc::clone(&exposed.tool)).collect();
        let exposed: HashMap<_, _> = tools.into_iter().map(|exposed| (exposed.tool.reference(), exposed)).collect();
        let is_listed = |tool: &&Arc<CatalogTool>| {
            exposed.get(&tool.reference()).is_some_and(|exposed| exposed.exposure.is_listed())
        };
        let listed = snapshot.tools().iter().filter(is_listed).cloned().collect();
        let collision = failed.or(first_collision);
        Self { exposed, order, listed, collision, snapshot, how, hidden, shown, withheld, described }
    }

    /// Returns the tools that stand in the list, sorted by raw identity.
    #[must_use]
    pub fn tools(&self) -> &[Arc<CatalogTool>] {
        &self.listed
    }

    /// Returns every tool about which there is a decision: ordinary ones first, then those of Apps (catalog-dispatch 3.2
    /// rule 9).
    pub fn exposed(&self) -> impl Iterator<Item = &Exposed> {
        self.order.iter().filter_map(|tool| self.exposed.get(&tool.reference()))
    }

    /// Returns which way a tool is reached; none for one that is not in the catalog, or whose definition was withheld.
    #[must_use]
    pub fn exposure(&self, tool: &ToolRef) -> Option<&Exposed> {
        self.exposed.get(tool)
    }

    /// Returns by what it was decided.
    #[must_use]
    pub fn how(&self) -> &Exposing {
        &self.how
    }

    /// Returns the first tool whose name was taken. Where that is an error no tool is exposed.
    #[must_use]
    pub fn collision(&self) -> Option<&Collision> {
        self.collision.as_ref()
    }

    /// Returns the whole catalog that this is a part of, hidden tools included.
    #[must_use]
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// Returns the tools that the connector policy hides, each with whoever disables it.
    #[must_use]
    pub fn hidden(&self) -> &BTreeMap<ToolRef, BTreeSet<Refusal>> {
        &self.hidden
    }

    /// Returns the definition of a tool as it may be shown, in the list or otherwise; none for a tool that is absent.
    #[must_use]
    pub fn shown(&self, tool: &ToolRef) -> Option<&ShownDefinition> {
        let absent = self.exposed.get(tool).is_none_or(|exposed| exposed.exposure == Exposure::Absent);
        self.shown.get(tool).filter(|_| !absent)
    }

    /// Returns the tools that are hidden because their definitions were withheld, each with the reason (R31).
    #[must_use]
    pub fn withheld(&self) -> &BTreeMap<ToolRef, Unshown> {
        &self.withheld
    }

    /// Returns what may be shown of the description of a tool's namespace.
    #[must_use]
    pub fn namespace_description(&self, tool: &CatalogTool) -> Option<&Arc<str>> {
        self.described.get(&(tool.server.clone(), Arc::clone(tool.namespace_description.as_ref()?)))
    }

    /// Returns a tool with the texts that may be shown of it; none for one that is absent.
    pub(super) fn shown_tool<'a>(&'a self, tool: &'a Arc<CatalogTool>) -> Option<ShownTool<'a>> {
        let shown = self.shown(&tool.reference())?;
        let namespace_description = self.namespace_description(tool);
        Some(ShownTool { tool, shown: shown.value(), shown_digest: shown.shown_digest(), namespace_description })
    }

    /// Returns the tools that are found by search, in order.
    pub(super) fn searched(&self) -> Vec<ShownTool<'_>> {
        let searched = self.exposed().filter(|exposed| exposed.exposure.is_searched());
        searched.filter_map(|exposed| self.shown_tool(&exposed.tool)).collect()
    }

    /// Returns an index of the tools that are found by search, built anew; a session keeps its own.
    #[must_use]
    pub fn index(&self) -> Arc<SearchIndex> {
        SearchIndex::of(&self.searched(), None)
    }
}

/// Whether tools are found by search instead of standing in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Searching {
    /// Never.
    Never,
    /// Always.
    Always,
    /// From this number of tools on that would be in the list without it.
    From(usize),
}

impl Searching {
    /// Returns what a configuration says.
    #[must_use]
    pub fn of(gateway: &Gateway) -> Self {
        match gateway.search.value {
            Search::Auto => Self::From(usize::try_from(gateway.search_from.value).unwrap_or(usize::MAX)),
            Search::Always => Self::Always,
            Search::Never => Self::Never,
        }
    }

    /// Tells whether it holds where so many tools would be in the list without it.
    #[must_use]
    pub fn holds(self, tools: usize) -> bool {
        match self {
            Self::Never => false,
            Self::Always => true,
            Self::From(least) => tools >= least,
        }
    }
}

/// Where a session's tools are shown.
#[derive(Debug, Clone)]
pub enum Surface {
    /// To a model, by a program that this host is a library of.
    Library(Exposing),
    /// To an MCP client.
    Gateway {
        /// Whether tools are found by search.
        searching: Searching,
        /// Whether the client shows Apps as well ([`Exposing::app_surface`]).
        app_surface: bool,
    },
}

impl Surface {
    /// A gateway's whose client takes all tools as a list, and no Apps.
    #[must_use]
    pub fn plain() -> Self {
        Self::Gateway { searching: Searching::Never, app_surface: false }
    }

    /// The same, where it does not depend on the tools.
    pub(super) fn at_once(&self) -> Option<Exposing> {
        let counts = matches!(self, Self::Gateway { searching: Searching::From(_), .. });
        (!counts).then(|| self.exposing(|_| 0))
    }

    /// By what is decided. `listed` counts the tools that would be in the list; it is asked only where that matters.
    pub(super) fn exposing(&self, listed: impl FnOnce(&Exposing) -> usize) -> Exposing {
        match self {
            Self::Library(how) => how.clone(),
            Self::Gateway { searching, app_surface } => {
                let with = |search| Exposing { app_surface: *app_surface, ..Exposing::gateway(search) };
                match searching {
                    Searching::From(_) if !searching.holds(listed(&with(false))) => with(false),
                    Searching::Never => with(false),
                    Searching::From(_) | Searching::Always => with(true),
                }
            }
        }
    }

    /// Tells whether a program of which this host is a library makes the calls: the order of an MCP client's calls is its own.
    pub(super) fn is_library(&self) -> bool {
        matches!(self, Self::Library(_))
    }
}
