//! Which way each tool is reached in one session, and why (catalog-dispatch 3.2 rules 9 to 15).
//!
//! A pure decision, taken afresh whenever one of its inputs changes. First it is settled whether a tool is there at all:
//! what may not be seen by a model is absent, and so is whoever comes second to a name. Then agent plugins are held to
//! their budgets; what is beyond is hidden, but can be called. What is left gets the ways that its server, its namespace
//! and the session leave it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::model::exposure::{Exposure, Way};
use crate::model::name::ToolRef;
use crate::model::tool::CatalogTool;

/// The largest spec of an agent plugin's tool, in bytes as serialised (rule 12).
pub const MAX_PLUGIN_SPEC: usize = 8_000;
/// The most that the specs of all agent plugins' tools may have together, in bytes as serialised (rule 12).
pub const MAX_PLUGIN_TOTAL: usize = 64_000;

/// A tool that is to be decided on, with what its server brings.
#[derive(Debug, Clone)]
pub struct Candidate<'a> {
    /// The tool.
    pub tool: &'a Arc<CatalogTool>,
    /// Bytes of its serialised spec. Read for agent plugins alone.
    pub spec_bytes: usize,
    /// Whether an agent plugin provides the server; its specs have a budget.
    pub agent_plugin: bool,
    /// Its server's `omit_tools_from`.
    pub omitted: &'a BTreeSet<Way>,
    /// What the connector policies say; none where the server is not the Apps server.
    pub app: Option<ConnectorSays>,
}

/// What the connector policies of all layers say of an App's tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectorSays {
    /// Every layer lets it be seen.
    Enabled,
    /// At least one layer does not.
    Disabled,
}

/// The name that a tool has in the registry of a session.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegistryName {
    /// The namespace; empty for the default one.
    pub namespace: String,
    /// The name in it.
    pub name: String,
}

impl RegistryName {
    /// A name in the default namespace.
    #[must_use]
    pub fn plain(name: impl Into<String>) -> Self {
        Self { namespace: String::new(), name: name.into() }
    }
}

impl fmt::Display for RegistryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => f.write_str(&self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}

/// By which of its names a tool is registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registry {
    /// By namespace and name: the library.
    Namespaced,
    /// By the one name that clients see, which stands in the default namespace: the gateway.
    Flat,
}

impl Registry {
    fn name_of(self, tool: &CatalogTool) -> RegistryName {
        match self {
            Self::Namespaced => {
                RegistryName { namespace: tool.namespace.as_str().to_owned(), name: tool.callable.as_str().to_owned() }
            }
            Self::Flat => RegistryName::plain(tool.flat.as_str()),
        }
    }
}

/// What is the same for all tools of a session.
#[derive(Debug, Clone)]
pub struct Exposing {
    /// By which name tools are registered.
    pub registry: Registry,
    /// Whether tools can be searched: the model takes the search tool (and its provider namespaces); in the gateway,
    /// whether it has `search_tools` and `call_tool`.
    pub search: bool,
    /// Whether the model's provider takes namespaces. One that does not is given none of these tools, for all of them stand in
    /// one (catalog-dispatch 1.4 rule 15), and nothing is found by search (3.2 rule 11); scripts have them as before.
    pub namespaces: bool,
    /// Whether the model calls tools from scripts only.
    pub code_only: bool,
    /// Whether Apps are on.
    pub apps: bool,
    /// Whether whoever lists the tools shows Apps as well and keeps what is for them alone from its model itself, as MCP
    /// clients with the extension `io.modelcontextprotocol/ui` do.
    pub app_surface: bool,
    /// `code_mode.direct_only_tool_namespaces`, as the model sees them.
    pub direct_only: BTreeSet<String>,
    /// Names that no tool may have.
    pub reserved: BTreeSet<RegistryName>,
    /// Whether a name that is taken is an error for the whole session (`error_on_tool_collisions`).
    pub collisions_fail: bool,
}

impl Exposing {
    /// What holds for the library: tools in namespaces, Apps on, no search, `shell_command` reserved.
    #[must_use]
    pub fn library() -> Self {
        Self {
            registry: Registry::Namespaced,
            search: false,
            namespaces: true,
            code_only: false,
            apps: true,
            app_surface: false,
            direct_only: BTreeSet::new(),
            reserved: [RegistryName::plain("shell_command")].into(),
            collisions_fail: false,
        }
    }

    /// What holds for the gateway: one name for each tool, Apps on; with search, its two own tools' names are reserved
    /// as well.
    #[must_use]
    pub fn gateway(search: bool) -> Self {
        let mut reserved: BTreeSet<_> = [RegistryName::plain("shell_command")].into();
        if search {
            reserved.extend(["search_tools", "call_tool"].map(RegistryName::plain));
        }
        Self { registry: Registry::Flat, search, reserved, ..Self::library() }
    }
}

/// A tool whose name is taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} is left out: the name `{name}` {}", shown(&.tool.to_string()), by(.taken_by.as_ref()))]
pub struct Collision {
    /// The tool that came second.
    pub tool: ToolRef,
    /// The name.
    pub name: RegistryName,
    /// The tool that has it; none if it is reserved.
    pub taken_by: Option<ToolRef>,
}

fn by(taken_by: Option<&ToolRef>) -> String {
    match taken_by {
        Some(tool) => format!("is that of {}", shown(&tool.to_string())),
        None => "is reserved".to_owned(),
    }
}

/// A server writes tool names: what people read of one is bounded and has no control characters.
fn shown(text: &str) -> String {
    crate::model::text::shown(text, 160)
}

/// Why a tool has the exposure that it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// Absent: its definition says that it is for people or the App's own surface.
    Visibility,
    /// Absent: Apps are off.
    AppsOff,
    /// Absent: the Apps server lists it without a connector, so that no policy could be asked.
    NoConnector,
    /// Absent: a connector policy disables it.
    ConnectorPolicy,
    /// Absent: its name is taken.
    NameTaken(Collision),
    /// Hidden: its spec is larger than [`MAX_PLUGIN_SPEC`].
    LargeSpec {
        /// Bytes of the spec.
        bytes: usize,
    },
    /// Hidden: with it, the specs of agent plugins would be larger than [`MAX_PLUGIN_TOTAL`].
    PluginsFull {
        /// Bytes of the spec.
        bytes: usize,
        /// Bytes of those before it.
        used: usize,
    },
    /// What server, namespace and session leave.
    Left(Left),
}

impl Reason {
    /// Returns the exposure that follows.
    #[must_use]
    pub fn exposure(&self) -> Exposure {
        match self {
            Self::Visibility | Self::AppsOff | Self::NoConnector | Self::ConnectorPolicy | Self::NameTaken(_) => {
                Exposure::Absent
            }
            Self::LargeSpec { .. } | Self::PluginsFull { .. } => Exposure::Hidden,
            Self::Left(left) => left.exposure(),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Visibility => f.write_str("`_meta.ui.visibility` does not name `model`"),
            Self::AppsOff => f.write_str("Apps are off"),
            Self::NoConnector => f.write_str("the Apps server gives it no connector id"),
            Self::ConnectorPolicy => f.write_str("a connector policy disables it"),
            Self::NameTaken(Collision { name, taken_by, .. }) => {
                write!(f, "the name `{name}` {}", by(taken_by.as_ref()))
            }
            Self::LargeSpec { bytes } => write!(
                f,
                "its spec of {} bytes is larger than the {} that a plugin's tool may have",
                grouped(*bytes),
                grouped(MAX_PLUGIN_SPEC)
            ),
            Self::PluginsFull { bytes, used } => write!(
                f,
                "its spec of {} bytes comes after {} of other plugins' tools, and all may have {} together",
                grouped(*bytes),
                grouped(*used),
                grouped(MAX_PLUGIN_TOTAL)
            ),
            Self::Left(left) => left.fmt(f),
        }
    }
}

/// Writes a number in groups of three digits.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// What decides which of the three ways a tool keeps (rule 14). The exposure is a function of it, so that the sentence
/// for people cannot tell another story than the decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// The server's `omit_tools_from`.
    pub omitted: BTreeSet<Way>,
    /// Whether the namespace is a direct-only one.
    pub direct_only: bool,
    /// Whether tools can be searched.
    pub search: bool,
    /// Whether the model's provider takes namespaces.
    pub namespaces: bool,
    /// Whether the model calls from scripts only.
    pub code_only: bool,
}

impl Left {
    /// Returns the ways after `omit_tools_from` and the direct-only namespaces: direct, deferred, scripts.
    fn ways(&self) -> (bool, bool, bool) {
        let keeps = |way| !self.omitted.contains(&way);
        let (direct, deferred) = (keeps(Way::Direct) && self.namespaces, keeps(Way::Deferred) && self.namespaces);
        (direct, deferred && !self.direct_only, keeps(Way::CodeMode) && !self.direct_only)
    }

    /// Returns the exposure.
    #[must_use]
    pub fn exposure(&self) -> Exposure {
        let (direct, deferred, scripts) = self.ways();
        // A tool is in the list or found by search, never both. One that a session of scripts could not call there stays
        // in the list.
        let searched = self.search && deferred && (!self.code_only || scripts);
        match (direct && !searched, searched, scripts) {
            (_, true, true) => Exposure::Deferred,
            (_, true, false) => Exposure::DeferredModelOnly,
            (true, false, true) => Exposure::Direct,
            (true, false, false) => Exposure::DirectModelOnly,
            (false, false, true) => Exposure::CodeModeOnly,
            (false, false, false) => Exposure::Hidden,
        }
    }

    /// Names what `omit_tools_from` says of these ways; nothing if it says nothing.
    fn omits(&self, ways: &[Way]) -> Option<String> {
        let named: Vec<_> = ways.iter().filter(|way| self.omitted.contains(way)).map(|way| way.as_str()).collect();
        match named.as_slice() {
            [] => None,
            [rest @ .., last] if !rest.is_empty() => {
                Some(format!("`omit_tools_from` names `{}` and `{last}`", rest.join("`, `")))
            }
            _ => Some(format!("`omit_tools_from` names `{}`", named.join("`, `"))),
        }
    }

    /// Why it is not found by search.
    fn no_search(&self) -> String {
        if !self.search {
            return "tool search is off".to_owned();
        }
        if self.direct_only {
            return DIRECT_ONLY.to_owned();
        }
        self.omits(&[Way::Deferred])
            .unwrap_or_else(|| "calls come from scripts only, and search would not lead to one".to_owned())
    }

    /// Why scripts do not get it.
    fn no_scripts(&self) -> String {
        self.omits(&[Way::CodeMode]).unwrap_or_else(|| DIRECT_ONLY.to_owned())
    }
}

const NO_NAMESPACES: &str = "the model's provider takes no namespaces, and the tool stands in one";
const DIRECT_ONLY: &str = "its namespace is among `code_mode.direct_only_tool_namespaces`";

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.exposure() {
            Exposure::Deferred => f.write_str("tool search is on"),
            Exposure::DeferredModelOnly => write!(f, "tool search is on; not for scripts: {}", self.no_scripts()),
            Exposure::Direct => f.write_str(&self.no_search()),
            Exposure::DirectModelOnly => {
                let (search, scripts) = (self.no_search(), self.no_scripts());
                if search == scripts {
                    return f.write_str(&search);
                }
                write!(f, "{search}; not for scripts: {scripts}")
            }
            // Neither listed nor found.
            Exposure::CodeModeOnly | Exposure::Hidden | Exposure::Absent => {
                let mut facts: Vec<_> = self.omits(&[Way::Direct, Way::Deferred, Way::CodeMode]).into_iter().collect();
                if !self.namespaces {
                    facts.push(NO_NAMESPACES.to_owned());
                }
                if self.direct_only {
                    facts.push(DIRECT_ONLY.to_owned());
                } else if !self.namespaces {
                    // That says it all: nothing could be searched either.
                } else if !self.omitted.contains(&Way::Deferred) {
                    facts.push(self.no_search());
                }
                f.write_str(&facts.join(", and "))
            }
        }
    }
}

/// One tool with its exposure and the reason. Displays as `deferred: tool search is on`.
#[derive(Debug, Clone)]
pub struct Exposed {
    /// The tool.
    pub tool: Arc<CatalogTool>,
    /// Which way it is reached.
    pub exposure: Exposure,
    /// Why.
    pub reason: Reason,
}

impl fmt::Display for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.exposure, self.reason)
    }
}

/// All decisions.
#[derive(Debug, Clone, Default)]
pub struct Exposures {
    /// One for each candidate: ordinary tools first, then those of Apps, each in the order of the input (rule 9).
    pub tools: Vec<Exposed>,
    /// The first name that was taken, for a warning; each tool's own reason says the rest.
    pub first_collision: Option<Collision>,
}

/// Decides on each candidate.
///
/// # Errors
/// The first [`Collision`], where `how` makes one an error.
pub fn expose(candidates: &[Candidate<'_>], how: &Exposing) -> Result<Exposures, Collision> {
    let mut out = Exposures { tools: Vec::with_capacity(candidates.len()), first_collision: None };
    let mut registered = BTreeMap::<RegistryName, &CatalogTool>::new();
    let mut plugins = 0_usize;
    let (ordinary, apps): (Vec<_>, Vec<_>) = candidates.iter().partition(|candidate| candidate.app.is_none());
    for candidate in ordinary.into_iter().chain(apps) {
        let absent = absent(candidate, how).or_else(|| {
            let collision = register(candidate.tool, how, &mut registered)?;
            out.first_collision.get_or_insert_with(|| collision.clone());
            Some(Reason::NameTaken(collision))
        });
        if how.collisions_fail
            && let Some(collision) = &out.first_collision
        {
            return Err(collision.clone());
        }
        let reason = absent.or_else(|| beyond_budget(candidate, &mut plugins)).unwrap_or_else(|| {
            Reason::Left(Left {
                omitted: candidate.omitted.clone(),
                direct_only: how.direct_only.contains(candidate.tool.namespace.as_str()),
                search: how.search,
                namespaces: how.namespaces,
                code_only: how.code_only,
            })
        });
        out.tools.push(Exposed { tool: Arc::clone(candidate.tool), exposure: reason.exposure(), reason });
    }
    Ok(out)
}

/// Why a model may not see the tool at all (rules 10 and 3.1 rule 4).
fn absent(candidate: &Candidate<'_>, how: &Exposing) -> Option<Reason> {
    barred(candidate.tool, candidate.app.is_some(), how).or_else(|| match candidate.app? {
        ConnectorSays::Enabled => None,
        ConnectorSays::Disabled => Some(Reason::ConnectorPolicy),
    })
}

/// Why a tool is absent whatever policies and other tools there are. `app` tells whether its server is the Apps server.
fn barred(tool: &CatalogTool, app: bool, how: &Exposing) -> Option<Reason> {
    if !how.app_surface && !tool.definition.is_visible_to_model() {
        return Some(Reason::Visibility);
    }
    if !app {
        return None;
    }
    if !how.apps {
        return Some(Reason::AppsOff);
    }
    let nameless = tool.connector.as_ref().is_none_or(|connector| connector.id.is_empty());
    nameless.then_some(Reason::NoConnector)
}

/// Tells whether a tool of a catalog is absent whatever the policies say, so that a call that names it leads nowhere. `app`
/// tells whether its server is the Apps server.
///
/// No two tools of a catalog have one name ([`super::naming`]): one that is taken is a reserved one.
#[must_use]
pub fn is_barred(tool: &CatalogTool, app: bool, how: &Exposing) -> bool {
    barred(tool, app, how).is_some() || how.reserved.contains(&how.registry.name_of(tool))
}

/// Takes the tool's name, or tells who has it (rule 13).
fn register<'a>(
    tool: &'a CatalogTool,
    how: &Exposing,
    registered: &mut BTreeMap<RegistryName, &'a CatalogTool>,
) -> Option<Collision> {
    let name = how.registry.name_of(tool);
    let taken_by = registered.get(&name).map(|first| first.reference());
    if taken_by.is_some() || how.reserved.contains(&name) {
        return Some(Collision { tool: tool.reference(), name, taken_by });
    }
    registered.insert(name, tool);
    None
}

/// Counts an agent plugin's spec, or tells why it has no room. A smaller one that comes later may still have (rule 12).
fn beyond_budget(candidate: &Candidate<'_>, used: &mut usize) -> Option<Reason> {
    let bytes = candidate.spec_bytes;
    if !candidate.agent_plugin {
        return None;
    }
    if bytes > MAX_PLUGIN_SPEC {
        return Some(Reason::LargeSpec { bytes });
    }
    if bytes > MAX_PLUGIN_TOTAL - *used {
        return Some(Reason::PluginsFull { bytes, used: *used });
    }
    *used += bytes;
    None
}

#[cfg(test)]
#[path = "exposure_tests.rs"]
mod tests;
