//! Plugins: tables that bring servers of their own; and which of several registrations of one name counts (catalog-dispatch 2).
//!
//! A more trusted layer's registration is never replaced by a less trusted one's (R4). Within one degree of trust `[mcp_servers]` comes
//! before plugins, and of plugins the one whose id sorts first. The winner keeps its name even if it is disabled: nothing weaker
//! takes its place. Only a plugin that is switched off by a layer at least as trusted as the one that defines it has no servers.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Deserialize;

use super::parse;
use super::problem::Problem;
use super::requirements::{self, Source};
use super::server_keys::ServerTable;
use super::stack::Layer;
use crate::model::layer::LayerRef;
use crate::model::name::ServerName;
use crate::model::text::shown;

/// The longest id, in characters.
const MAX_ID: usize = 128;
/// The longest name for people, in characters.
const MAX_DISPLAY: usize = 128;

/// `[plugins.ID]`. Below it, `[plugins.ID.mcp_servers.NAME]` has the keys of `[mcp_servers.NAME]`; with the same trust
/// `[mcp_servers.NAME]` wins over a plugin's server of that name, and of two plugins the one whose id sorts first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PluginTable {
    /// Whether the plugin's servers exist. `false` in any layer disables them. Default `true`.
    pub enabled: Option<bool>,
    /// What the plugin is called for people and models, at most 128 characters. Servers and records have the id.
    pub display_name: Option<String>,
}

/// A server's table, or what is wrong with it.
pub type ServerItem = Result<Box<ServerTable>, Box<Problem>>;

/// One plugin of one layer.
#[derive(Debug, Clone)]
pub struct PluginItem {
    /// The plugin's own keys, or what is wrong with them.
    pub table: Result<PluginTable, Box<Problem>>,
    /// `[plugins.ID.mcp_servers.NAME]`.
    pub servers: BTreeMap<ServerName, ServerItem>,
}

impl PluginTable {
    /// Returns what is wrong with the values: key below the table, and message.
    pub(crate) fn faults(&self) -> Vec<(String, String)> {
        let bad = |name: &String| !is_plain(name, MAX_DISPLAY);
        let fault = self.display_name.as_ref().filter(|name| bad(name));
        let message = format!("needs 1 to {MAX_DISPLAY} characters, none of them a control character");
        fault.map(|_| ("display_name".to_owned(), message)).into_iter().collect()
    }
}

/// Whether a text can be a plugin's id: it goes to servers and into records.
pub(crate) fn is_id(text: &str) -> bool {
    is_plain(text, MAX_ID)
}

fn is_plain(text: &str, max: usize) -> bool {
    (1..=max).contains(&text.chars().count()) && !text.chars().any(char::is_control)
}

/// The path of a server's table in its file.
pub(crate) fn path_of(plugin: Option<&str>, name: &ServerName) -> String {
    let above =
        plugin.map_or_else(|| "mcp_servers".to_owned(), |id| format!("{}.mcp_servers", parse::join("plugins", id)));
    parse::join(&above, name.as_str())
}

/// The registration of a name that counts.
#[derive(Debug, Clone)]
pub(crate) struct Registration<'a> {
    /// The layer that it is in.
    pub(crate) layer: &'a Layer,
    /// The plugin that brings it.
    pub(crate) plugin: Option<&'a str>,
    /// Its table; none if that cannot be read.
    pub(crate) table: Option<&'a ServerTable>,
    /// Who switched its plugin off, and the reason for people.
    pub(crate) off: Option<Off>,
}

/// A plugin that is switched off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Off {
    /// The layer that did it.
    pub(crate) layer: LayerRef,
    /// The reason for people.
    pub(crate) why: String,
    /// Whether it then has no servers at all, so that others may have their names.
    frees: bool,
}

impl Registration<'_> {
    /// Returns what its plugin is called: by the most trusted layer that says so and may. A less trusted one than the plugin's
    /// own has no say in what a model reads of it.
    pub(crate) fn plugin_name<'l>(&self, layers: &'l [Layer]) -> Option<&'l str> {
        let id = self.plugin?;
        let named = layers.iter().filter_map(|layer| {
            let table = layer.file.plugins.get(id)?.table.as_ref().ok()?;
            Some((layer.reference.kind(), table.display_name.as_deref()?))
        });
        let may = named.filter(|(kind, _)| *kind >= self.layer.definer.kind());
        may.max_by_key(|(kind, _)| *kind).map(|(_, name)| name)
    }
}

/// What each layer says about plugins, by id, weak to strong.
pub(crate) fn said(layers: &[Layer]) -> BTreeMap<String, Vec<(LayerRef, PluginTable)>> {
    let mut said = BTreeMap::<String, Vec<_>>::new();
    for layer in layers {
        for (id, plugin) in &layer.file.plugins {
            let own = said.entry(id.clone()).or_default();
            own.extend(plugin.table.as_ref().ok().map(|table| (layer.reference.clone(), table.clone())));
        }
    }
    said
}

/// Every name that some layer has a server's table for.
pub(crate) fn names(layers: &[Layer]) -> BTreeSet<&ServerName> {
    let plugins = layers.iter().flat_map(|layer| layer.file.plugins.values()).flat_map(|item| item.servers.keys());
    layers.iter().flat_map(|layer| layer.file.servers.keys()).chain(plugins).collect()
}

/// Returns the tables of one server, weak to strong: those of `[mcp_servers]`, and those of the plugin that brings it, or of all
/// plugins where nobody does.
pub(crate) fn tables<'a>(
    name: &ServerName,
    layers: &'a [Layer],
    winner: Option<&Registration<'a>>,
) -> Vec<(&'a Layer, Option<&'a str>, &'a ServerItem)> {
    let mut tables = Vec::new();
    for layer in layers {
        tables.extend(layer.file.servers.get(name).map(|item| (layer, None, item)));
        for (id, plugin) in &layer.file.plugins {
            if winner.is_none_or(|winner| winner.plugin == Some(id.as_str())) {
                tables.extend(plugin.servers.get(name).map(|item| (layer, Some(id.as_str()), item)));
            }
        }
    }
    tables
}

/// Returns the registration of a name that counts, and warns where plugins dispute it.
pub(crate) fn registered<'a>(
    name: &ServerName,
    layers: &'a [Layer],
    sources: &[Source],
    warnings: &mut Vec<Problem>,
) -> Option<Registration<'a>> {
    let tables = layers.iter().filter(|layer| layer.defines);
    let tables = tables.filter_map(|layer| Some((layer, &**layer.file.servers.get(name)?.as_ref().ok()?)));
    // Of equals the later wins: the nearer project, the later flag.
    let config = tables.filter(|(_, table)| table.defines()).max_by_key(|(layer, _)| layer.definer.kind());
    let config = config.map(|(layer, table)| Registration { layer, plugin: None, table: Some(table), off: None });

    let ids: BTreeSet<&str> = layers.iter().flat_map(|layer| layer.file.plugins.keys()).map(String::as_str).collect();
    let mut plugins: Vec<_> = ids.into_iter().filter_map(|id| of_plugin(name, id, layers, sources)).collect();
    // Stable: of equal trust the ids keep their order.
    plugins.sort_by_key(|one| std::cmp::Reverse(one.layer.definer.kind()));
    let freed = |one: &Registration<'_>| one.off.as_ref().is_some_and(|off| off.frees);
    let (gone, plugins): (Vec<_>, Vec<_>) = plugins.into_iter().partition(freed);
    if let Some((first, others)) = plugins.split_first() {
        warnings.extend(dispute(name, first, others));
    }
    match (config, plugins.into_iter().next()) {
        (Some(config), Some(plugin)) if plugin.layer.definer.kind() > config.layer.definer.kind() => Some(plugin),
        (Some(config), _) => Some(config),
        (None, Some(plugin)) => Some(plugin),
        // It stays visible as disabled.
        (None, None) => gone.into_iter().next(),
    }
}

/// What a plugin, as far as all layers have it, registers under a name.
fn of_plugin<'a>(name: &ServerName, id: &'a str, layers: &'a [Layer], sources: &[Source]) -> Option<Registration<'a>> {
    let mut best: Option<(&Layer, Option<&ServerTable>)> = None;
    for layer in layers.iter().filter(|layer| layer.defines) {
        let table = match layer.file.plugins.get(id).and_then(|plugin| plugin.servers.get(name)) {
            Some(Ok(table)) if table.defines() => Some(&**table),
            Some(Err(_)) => None,
            Some(Ok(_)) | None => continue,
        };
        if best.is_none_or(|(before, _)| before.definer.kind() <= layer.definer.kind()) {
            best = Some((layer, table));
        }
    }
    let (layer, table) = best?;
    Some(Registration { layer, plugin: Some(id), table, off: off(id, &layer.definer, layers, sources) })
}

/// Who switched a plugin off, of those who did the most trusted; requirements first.
pub(crate) fn off(id: &str, definer: &LayerRef, layers: &[Layer], sources: &[Source]) -> Option<Off> {
    if let Some((layer, why)) = requirements::refused_plugin(id, definer, sources) {
        return Some(Off { layer, why, frees: true });
    }
    let said = layers.iter().filter_map(|layer| Some((&layer.reference, &layer.file.plugins.get(id)?.table)));
    let said = said.filter(|(_, table)| table.as_ref().map_or(true, |table| table.enabled == Some(false)));
    let (layer, table) = said.max_by_key(|(layer, _)| layer.kind())?;
    let id = shown(id, MAX_ID);
    let why = match table {
        Ok(_) => format!("disabled by the {layer} layer, which switches the plugin `{id}` off"),
        Err(problem) => format!("the table of its plugin `{id}` cannot be read: {problem}"),
    };
    // A less trusted layer may disable (R2), but not make room for a server of its own under that name (R4).
    Some(Off { layer: layer.clone(), why, frees: table.is_ok() && layer.kind() >= definer.kind() })
}

fn dispute(name: &ServerName, first: &Registration<'_>, others: &[Registration<'_>]) -> Option<Problem> {
    let loser = others.first()?;
    let said = |one: &Registration<'_>| {
        format!("the plugin `{}` of the {} layer", shown(one.plugin.unwrap_or_default(), MAX_ID), one.layer.definer)
    };
    let losers: Vec<_> = others.iter().map(said).collect();
    let path = path_of(loser.plugin, name);
    let line = loser.layer.file.lines.get(&path).copied();
    let message = format!("{} has no say: {} registers this name first", losers.join(", "), said(first));
    Some(Problem::at(&loser.layer.reference, line, &path, message))
}
