//! Layers -> one resolved view that knows where each value comes from.
//!
//! Ordinary values are replaced by the later layer. What restricts never is: policies of all layers stand side by side,
//! the most trusted first (R1); approval settings are kept for each layer (R2); servers are defined whole in one layer
//! and tightened by the others (R4); limits take the minimum. A layer that is there but cannot be read refuses every call
//! (R8), except a project's, which then has no effect at all.
//!
//! Values of environment variables are never resolved here; the view holds their names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::discover::{Places, SessionSources};
use super::file::{
    DEFAULT_ASK_TIMEOUT, DEFAULT_CONCURRENT_CALLS, DEFAULT_NAME_LIMIT, DEFAULT_SEARCH_FROM, Names, Search,
};
use super::found::Found;
use super::lock::LayerLock;
use super::matcher::Matcher;
use super::parse::LayerFile;
use super::plugins::PluginTable;
use super::policy_ref::PolicyEntry;
use super::problem::Problem;
use super::reading::Reading;
use super::requirements::{self, Floor, Source};
use super::server::{self, ResolvedServer};
use super::{apps, delegate, files, hooks, records, reviewer, telemetry};
use crate::model::digest::Digest;
use crate::model::layer::{LayerKind, LayerRef};
use crate::model::media::Modalities;
use crate::model::name::{RawToolName, ServerName};
use crate::model::posture::{LayerPosture, PostureLayers, ServerModes};

/// Everything that the configuration says, with the origin of every value.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// Every place where a layer was looked for, weak to strong, and what became of it.
    pub layers: Vec<LayerStatus>,
    /// Why every call is refused; empty when calls are not.
    pub refusals: Vec<EveryCall>,
    /// What is wrong without refusing every call.
    pub problems: Vec<Problem>,
    /// The servers, disabled ones included.
    pub servers: BTreeMap<ServerName, ResolvedServer>,
    /// What each layer says about plugins, by id, weak to strong; what cannot be read is among the problems.
    pub plugins: BTreeMap<String, Vec<(LayerRef, PluginTable)>>,
    /// The policies of all layers, most trusted layer first, in each file's order (R1).
    pub policies: Vec<PolicyEntry>,
    /// The hooks of all layers, most trusted layer first, in each file's order (R1).
    pub hooks: Vec<hooks::HookEntry>,
    /// What each layer says about approval (R2).
    pub postures: PostureLayers,
    /// The gateway's settings.
    pub gateway: Gateway,
    /// The model view's settings.
    pub output: Output,
    /// Whether questions wait in the queue; none: as the command has it.
    pub queue: Sourced<Option<bool>>,
    /// Bounds on calls.
    pub limits: CallLimits,
    /// What is recorded, and where.
    pub records: records::Records,
    /// Which files calls may name, and where they go; none: no file is uploaded.
    pub files: Option<files::Files>,
    /// The auto reviewers of all layers, most trusted layer first (R1).
    pub reviewers: Vec<reviewer::ReviewerEntry>,
    /// Where traces and metrics are sent; none: nowhere.
    pub telemetry: Option<telemetry::Telemetry>,
    /// What `connector-baseline` is set to, for each layer that speaks about Apps, most trusted layer first.
    pub apps: Vec<apps::AppSettings>,
    /// What each layer demands of less trusted ones, most trusted layer first.
    pub(crate) requirements: Vec<Source>,
    /// What is likely to be a mistake, but may be meant.
    pub warnings: Vec<Problem>,
    /// Digest over the kind, place and content of every layer in force; changes when any of them does.
    pub digest: Digest,
}

impl Resolved {
    /// Returns the server whose name is most like this one, if one is like it at all.
    #[must_use]
    pub fn closest_server(&self, name: &str) -> Option<String> {
        super::unknown::closest(name, self.servers.keys().map(ServerName::as_str))
    }
}

/// A value and the layer that it comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// The layer; builtin where no layer sets it.
    pub layer: LayerRef,
}

impl<T> Sourced<T> {
    pub(super) fn builtin(value: T) -> Self {
        Self { value, layer: LayerRef::new(LayerKind::Builtin) }
    }

    pub(super) fn replace(&mut self, value: Option<T>, layer: &LayerRef) {
        if let Some(value) = value {
            *self = Self { value, layer: layer.clone() };
        }
    }
}

impl<T: PartialOrd> Sourced<T> {
    /// A restricting value: any layer may lower it, none may raise what another set (R2).
    /// Who may not allow may not go beyond a builtin bound either (R3).
    pub(super) fn lower(&mut self, value: Option<T>, layer: &LayerRef, may_allow: bool) {
        if let Some(value) = value
            && (self.layer.kind() == LayerKind::Builtin && may_allow || value < self.value)
        {
            *self = Self { value, layer: layer.clone() };
        }
    }
}

/// `[gateway]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gateway {
    /// How tools are named.
    pub names: Sourced<Names>,
    /// The longest name, in characters.
    pub name_limit: Sourced<u16>,
    /// Whether tools are found by search.
    pub search: Sourced<Search>,
    /// From how many tools on, if that is what decides.
    pub search_from: Sourced<u32>,
}

/// Settings of the model view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// How many tokens of text are kept; none: the model's own limit.
    pub tool_output_token_limit: Sourced<Option<u32>>,
    /// What the model behind takes.
    pub input_modalities: Sourced<Modalities>,
}

/// `[limits]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallLimits {
    /// How long an ask waits.
    pub ask_timeout: Sourced<Duration>,
    /// How many calls may be in flight at once.
    pub concurrent_calls: Sourced<u32>,
}

/// A place where a layer was looked for.
#[derive(Debug, Clone)]
pub struct LayerStatus {
    /// The layer and its file.
    pub layer: LayerRef,
    /// The digest of what was read.
    pub digest: Option<Digest>,
    /// What became of it.
    pub state: LayerState,
    /// The line of every key.
    pub lines: Arc<BTreeMap<String, usize>>,
}

/// A reason to refuse every call (R8). Serialises as its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub struct EveryCall {
    /// The layer that it is about.
    pub layer: LayerRef,
    /// The rule: `layer-unreadable` or `managed-required`.
    pub rule: &'static str,
    /// The reason, for people.
    pub text: String,
}

impl From<EveryCall> for String {
    fn from(refusal: EveryCall) -> Self {
        refusal.text
    }
}

impl std::fmt::Display for EveryCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// What became of a layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "state", content = "why")]
pub enum LayerState {
    /// In force.
    Applied,
    /// There is none.
    Absent,
    /// A project that the user has not trusted: it has no effect.
    Untrusted,
    /// A requirement says that it is not read.
    Refused(String),
    /// A project that changed since it was trusted; the last trusted copy keeps restricting, and defines nothing (R7).
    Changed(String),
    /// It is there and cannot be read.
    Broken(String),
}

/// A layer in force, as the merge needs it.
#[derive(Debug, Clone)]
pub(crate) struct Layer {
    /// The layer as it restricts.
    pub(crate) reference: LayerRef,
    /// The layer as it defines servers.
    pub(crate) definer: LayerRef,
    /// Whether its allows count (R3).
    pub(crate) may_allow: bool,
    /// Whether it may define servers; the copy of a changed project may not.
    pub(crate) defines: bool,
    /// What components and data are relative to.
    pub(crate) folder: PathBuf,
    /// Where its servers run unless they say otherwise.
    pub(crate) cwd: PathBuf,
    /// Variables that its servers may name; none: all (R4).
    pub(crate) variables: Option<BTreeSet<String>>,
    /// Digests that the user's trust bound, of a trusted project; none for a file that did not exist (R7).
    pub(crate) pins: Option<BTreeMap<PathBuf, Option<Digest>>>,
    /// Whether it is the user's own layer, which lies in a project (R6).
    pub(crate) users: bool,
    /// What the lock beside its file records.
    pub(crate) lock: LayerLock,
    /// What it says.
    pub(crate) file: LayerFile,
}

/// Finds, reads and merges all layers. Never fails: what is wrong is in the view, and refuses what it must.
#[must_use]
pub fn load(places: &Places, session: &SessionSources) -> Resolved {
    resolve(places, &Found::read(places, session))
}

/// Merges what was found, as [`load`] does.
#[must_use]
pub fn resolve(places: &Places, found: &Found) -> Resolved {
    let Reading { mut layers, statuses, refusals, mut problems, .. } = Reading::of(places, found);
    let sources = requirements::sources(&layers);
    // What was taken cannot be given on, and what was given can be taken.
    requirements::take_right(&mut layers, &sources);
    delegate::give_right(&mut layers);
    requirements::take_right(&mut layers, &sources);
    requirements::restrict(&mut layers, &sources, &mut problems);
    delegate::step_aside(&mut layers);
    merge(&layers, sources, statuses, refusals, problems, places)
}

fn merge(
    layers: &[Layer],
    sources: Vec<Source>,
    statuses: Vec<LayerStatus>,
    refusals: Vec<EveryCall>,
    mut problems: Vec<Problem>,
    places: &Places,
) -> Resolved {
    let mut gateway = Gateway {
        names: Sourced::builtin(Names::default()),
        name_limit: Sourced::builtin(DEFAULT_NAME_LIMIT),
        search: Sourced::builtin(Search::default()),
        search_from: Sourced::builtin(DEFAULT_SEARCH_FROM),
    };
    let mut output =
        Output { tool_output_token_limit: Sourced::builtin(None), input_modalities: Sourced::builtin(Modalities::ALL) };
    let mut limits = CallLimits {
        ask_timeout: Sourced::builtin(Duration::from_secs_f64(DEFAULT_ASK_TIMEOUT)),
        concurrent_calls: Sourced::builtin(DEFAULT_CONCURRENT_CALLS),
    };
    let mut queue = Sourced::builtin(None);
    for layer in layers {
        let (settings, from) = (&layer.file.settings, &layer.reference);
        let wanted = settings.approvals.as_ref().and_then(|table| table.queue);
        if wanted == Some(false) || wanted == Some(true) && layer.may_allow && queue.value != Some(false) {
            queue.replace(Some(wanted), from);
        }
        let table = settings.gateway.clone().unwrap_or_default();
        gateway.names.replace(table.names, from);
        gateway.name_limit.replace(table.name_limit, from);
        gateway.search.replace(table.search, from);
        gateway.search_from.replace(table.search_from, from);
        output.tool_output_token_limit.replace(settings.tool_output_token_limit.map(Some), from);
        let takes = settings.input_modalities.as_ref().map(|set| Modalities::of(set.iter().copied()));
        let left = takes.map(|takes| takes.and(output.input_modalities.value));
        output.input_modalities.replace(left.filter(|left| *left != output.input_modalities.value), from);
        let table = settings.limits.clone().unwrap_or_default();
        let timeout = table.ask_timeout_sec.and_then(|v| super::server_keys::seconds(v).ok());
        limits.ask_timeout.lower(timeout, &layer.definer, layer.may_allow);
        limits.concurrent_calls.lower(table.concurrent_calls, &layer.definer, layer.may_allow);
    }
    let mut warnings = Vec::new();
    let servers = super::plugins::names(layers).into_iter().filter_map(|name| {
        server::resolve(name, layers, &sources, places.path.as_deref(), &mut problems, &mut warnings)
            .map(|server| (name.clone(), server))
    });
    let servers: BTreeMap<_, _> = servers.collect();
    let ordered = by_trust(layers);
    let policies = policies(&ordered, &sources, &servers);
    let hooks = hooks::resolve(&ordered, &sources, places.path.as_deref(), &mut problems);
    let files = files::resolve(layers, &mut problems);
    let telemetry = telemetry::resolve(layers, &mut problems);
    let reviewers = reviewer::resolve(layers, &sources, places.path.as_deref(), &mut problems);
    warnings.extend(super::matcher::unmatched_servers(layers, &servers));
    warnings.extend(super::lock::stale(layers));
    Resolved {
        postures: PostureLayers::new(layers.iter().map(|layer| posture(layer, &servers)).collect()),
        digest: digest(&statuses),
        layers: statuses,
        refusals,
        problems,
        servers,
        plugins: super::plugins::said(layers),
        policies,
        hooks,
        files,
        reviewers,
        telemetry,
        apps: apps::settings(layers),
        requirements: sources,
        warnings,
        gateway,
        output,
        queue,
        limits,
        records: records::resolve(layers),
    }
}

/// The most trusted layer first. What was found last among equals comes first, so that the machine's managed file stands
/// before `--managed FILE`.
fn by_trust(layers: &[Layer]) -> Vec<&Layer> {
    let mut ordered: Vec<&Layer> = layers.iter().rev().collect();
    ordered.sort_by_key(|layer| std::cmp::Reverse(layer.reference.kind()));
    ordered
}

/// R1: every layer's policies, the most trusted layer's first.
fn policies(layers: &[&Layer], sources: &[Source], servers: &BTreeMap<ServerName, ResolvedServer>) -> Vec<PolicyEntry> {
    let entries = layers.iter().flat_map(|layer| layer.file.policies.iter().map(move |item| (*layer, item)));
    let entry = |(layer, item): (&Layer, &super::parse::PolicyItem)| {
        let matcher = Matcher::new(&item.matches, layer.reference.kind(), servers);
        PolicyEntry::new(item, layer, matcher, Floor::of(&layer.definer, sources))
    };
    entries.map(entry).collect()
}

fn posture(layer: &Layer, servers: &BTreeMap<ServerName, ResolvedServer>) -> LayerPosture {
    let settings = &layer.file.settings;
    let mut modes = BTreeMap::<ServerName, ServerModes>::new();
    for name in super::plugins::names(std::slice::from_ref(layer)) {
        let own = layer.file.servers.get(name);
        // A plugin's table speaks for its own server alone.
        let id = servers.get(name).and_then(|server| server.plugin.as_ref());
        let plugin = id.and_then(|id| layer.file.plugins.get(id)?.servers.get(name));
        for table in own.into_iter().chain(plugin).filter_map(|item| item.as_ref().ok()) {
            add_modes(modes.entry(name.clone()).or_default(), table);
        }
    }
    LayerPosture {
        policy: settings.approval_policy,
        profile: settings.permission_profile,
        strict_review: settings.strict_auto_review,
        reviewer: settings.approvals_reviewer,
        app_reviewers: apps::reviewers(settings.apps.as_ref()),
        channels: settings.approvals.as_ref().and_then(|approvals| approvals.channels.clone()),
        roles: settings.approvals.as_ref().and_then(|approvals| approvals.roles.clone()),
        modes,
        ..LayerPosture::silent(layer.reference.clone(), layer.may_allow)
    }
}

/// Of two modes within one layer the stricter one counts.
fn add_modes(modes: &mut ServerModes, table: &super::server_keys::ServerTable) {
    modes.default = match (modes.default, table.default_tools_approval_mode) {
        (Some(one), Some(other)) => Some(apps::strictest(one, other)),
        (one, other) => one.or(other),
    };
    for (tool, own) in table.tools.iter().flatten() {
        if let (Ok(tool), Some(mode)) = (RawToolName::parse(tool), own.approval_mode) {
            let strictest = modes.tools.get(&tool).map_or(mode, |before| apps::strictest(*before, mode));
            modes.tools.insert(tool, strictest);
        }
    }
}

fn digest(statuses: &[LayerStatus]) -> Digest {
    let parts = statuses.iter().filter(|status| status.state != LayerState::Absent).map(|status| {
        let file = status.layer.file().map(|file| file.display().to_string());
        serde_json::json!([status.layer, file, status.digest, status.state]).to_string()
    });
    let parts: Vec<String> = parts.collect();
    Digest::of_parts(parts.iter().map(String::as_bytes))
}
