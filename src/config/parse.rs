//! The text of a layer file -> [`LayerFile`], or why it cannot be read.
//!
//! What is wrong outside `[mcp_servers]`, `[plugins]`, `[[policies]]` and `[hooks]` fails the file as a whole; what is wrong inside one entry
//! fails that entry alone, closed: the server is disabled, the policy denies what it matches, which is everything if
//! even its match is unreadable (R8). Every problem carries file, line and key path.
//!
//! Values of environment variables and headers never appear in a problem.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde::de::DeserializeOwned;
use serde_json::Value;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue, ValueDeserializer};

use super::file::{NOT_ENFORCED, Settings};
use super::hooks::HookItem;
use super::plugins::{PluginItem, PluginTable, ServerItem, is_id};
use super::policy_keys::{MatchTable, PolicyTable, is_policy_name};
use super::problem::Problem;
use super::server_keys::ServerTable;
use super::unknown::{closest, schema_of, unknown_keys};
use crate::model::layer::{LayerKind, LayerRef};
use crate::model::name::ServerName;
use crate::model::text::shown;

static SETTINGS: LazyLock<Value> = LazyLock::new(schema_of::<Settings>);
static SERVER: LazyLock<Value> = LazyLock::new(schema_of::<ServerTable>);
static PLUGIN: LazyLock<Value> = LazyLock::new(schema_of::<PluginTable>);
static POLICY: LazyLock<Value> = LazyLock::new(schema_of::<PolicyTable>);
static MATCH: LazyLock<Value> = LazyLock::new(schema_of::<MatchTable>);

/// The most servers, plugins, policies or hooks in one layer, and the most servers of one plugin.
pub(super) const MAX_ENTRIES: usize = 512;

/// One layer file, read.
#[derive(Debug, Clone, Default)]
pub struct LayerFile {
    /// The keys outside entries.
    pub settings: Settings,
    /// `[mcp_servers.NAME]`; an entry that cannot be read is its problem.
    pub servers: BTreeMap<ServerName, ServerItem>,
    /// `[plugins.ID]`, by id.
    pub plugins: BTreeMap<String, PluginItem>,
    /// `[[policies]]`, in the file's order.
    pub policies: Vec<PolicyItem>,
    /// `[hooks]`, in the file's order within each event.
    pub hooks: Vec<HookItem>,
    /// What is wrong without failing the file.
    pub problems: Vec<Problem>,
    /// The line of every key, by its dotted path.
    pub lines: BTreeMap<String, usize>,
}

impl LayerFile {
    /// Returns the tables of servers that can be read, those of plugins included.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (&ServerName, &ServerTable)> {
        let plugins = self.plugins.values().flat_map(|plugin| &plugin.servers);
        self.servers.iter().chain(plugins).filter_map(|(name, item)| Some((name, &**item.as_ref().ok()?)))
    }
}

/// One entry of `[[policies]]`.
#[derive(Debug, Clone)]
pub struct PolicyItem {
    /// The name, or `policies[N]` where it has none.
    pub name: String,
    /// The path of the entry, for messages and lines.
    pub key: String,
    /// What it matches; everything if that cannot be read.
    pub matches: MatchTable,
    /// The entry, or what is wrong with it.
    pub entry: Result<Box<PolicyTable>, Problem>,
}

/// Reads the text of one layer.
///
/// # Errors
/// Everything that makes the file as a whole unreadable, at least one problem.
pub fn parse(text: &str, layer: &LayerRef) -> Result<LayerFile, Vec<Problem>> {
    let source = Source::new(text, layer);
    let mut root = match DeTable::parse(text) {
        Ok(root) => root.into_inner(),
        Err(error) => {
            let line = error.span().map(|span| source.line(span.start));
            return Err(vec![Problem::at(layer, line, "", format!("is not TOML: {}", error.message()))]);
        }
    };
    let mut file = LayerFile { lines: source.key_lines(&root), ..LayerFile::default() };
    let mut fatal = source.take_not_enforced(&mut root);
    let servers = take(&mut root, "mcp_servers");
    let plugins = take(&mut root, "plugins");
    let policies = take(&mut root, "policies");
    let hooks = take(&mut root, "hooks");
    match source.read::<Settings>(&root, &SETTINGS, "") {
        Ok(settings) => file.settings = settings,
        Err(problems) => fatal.extend(problems),
    }
    for (key, message) in file.settings.faults() {
        fatal.push(Problem::at(layer, file.lines.get(key).copied(), key, message));
    }
    for (key, message) in file.settings.section_faults(layer.kind()) {
        fatal.push(Problem::at(layer, file.lines.get(&key).copied(), &key, message));
    }
    match source.servers(servers, "mcp_servers", &file.lines, &mut file.problems) {
        Ok(servers) => file.servers = servers,
        Err(problem) => fatal.push(*problem),
    }
    source.plugins(plugins, &mut file, &mut fatal);
    source.policies(policies, &mut file, &mut fatal);
    source.hooks(hooks, &mut file, &mut fatal);
    if fatal.is_empty() { Ok(file) } else { Err(fatal) }
}

fn take_entry<'i>(root: &mut DeTable<'i>, name: &str) -> Option<(Spanned<DeString<'i>>, Spanned<DeValue<'i>>)> {
    let key = root.keys().find(|key| key.get_ref().as_ref() == name)?.clone();
    root.remove_entry(&key)
}

pub(super) fn take<'i>(root: &mut DeTable<'i>, name: &str) -> Option<Spanned<DeValue<'i>>> {
    take_entry(root, name).map(|(_, value)| value)
}

pub(super) struct Source<'a> {
    pub(super) layer: &'a LayerRef,
    line_starts: Vec<usize>,
}

impl<'a> Source<'a> {
    fn new(text: &str, layer: &'a LayerRef) -> Self {
        let newlines = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Self { layer, line_starts: std::iter::once(0).chain(newlines.map(|(at, _)| at + 1)).collect() }
    }

    fn line(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= offset)
    }

    fn key_lines(&self, root: &DeTable<'_>) -> BTreeMap<String, usize> {
        let mut lines = BTreeMap::new();
        self.collect_lines(root, "", &mut lines);
        lines
    }

    fn collect_lines(&self, table: &DeTable<'_>, path: &str, lines: &mut BTreeMap<String, usize>) {
        for (key, value) in table {
            let path = join(path, key.get_ref());
            lines.insert(path.clone(), self.line(key.span().start));
            match value.get_ref() {
                DeValue::Table(below) => self.collect_lines(below, &path, lines),
                DeValue::Array(items) => {
                    for (index, item) in items.iter().enumerate() {
                        let path = format!("{path}[{index}]");
                        lines.insert(path.clone(), self.line(item.span().start));
                        if let DeValue::Table(below) = item.get_ref() {
                            self.collect_lines(below, &path, lines);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    pub(super) fn problem(&self, offset: usize, key: &str, message: impl AsRef<str>) -> Problem {
        Problem::at(self.layer, Some(self.line(offset)), key, message)
    }

    fn take_not_enforced(&self, root: &mut DeTable<'_>) -> Vec<Problem> {
        let message = "this version does not enforce this section, so it refuses it rather than ignore it";
        let mut problems = Vec::new();
        for section in NOT_ENFORCED {
            if let Some((key, _)) = take_entry(root, section) {
                problems.push(self.problem(key.span().start, section, message));
            }
        }
        problems
    }

    /// Reads a table as a type. `path` is the table's own, for messages.
    pub(super) fn read<T: DeserializeOwned>(
        &self,
        table: &DeTable<'_>,
        schema: &Value,
        path: &str,
    ) -> Result<T, Vec<Problem>> {
        let unknown = unknown_keys(table, schema);
        if !unknown.is_empty() {
            let problems = unknown.into_iter().map(|unknown| {
                let key = unknown.path.iter().fold(path.to_owned(), |path, key| join(&path, key));
                let sections = ["mcp_servers", "plugins", "policies", "hooks"].into_iter().filter(|_| path.is_empty());
                let last = unknown.path.last().map_or("", String::as_str);
                let suggestion = unknown.suggestion.or_else(|| closest(last, sections));
                Problem { suggestion, ..self.problem(unknown.offset, &key, "unknown key") }
            });
            return Err(problems.collect());
        }
        let whole = Spanned::new(0..0, DeValue::Table(table.clone()));
        T::deserialize(ValueDeserializer::from(whole)).map_err(|error| {
            let offset = error.span().map(|span| span.start).filter(|start| *start > 0);
            let key = offset.and_then(|offset| key_at(table, offset));
            let key = key.map_or_else(|| path.to_owned(), |key| join_path(path, &key));
            let secret = key.contains(".env") || key.contains("headers");
            let message = if secret { "has the wrong type" } else { error.message() };
            vec![Problem::at(self.layer, offset.map(|offset| self.line(offset)), &key, message)]
        })
    }

    fn servers(
        &self,
        value: Option<Spanned<DeValue<'_>>>,
        above: &str,
        lines: &BTreeMap<String, usize>,
        problems: &mut Vec<Problem>,
    ) -> Result<BTreeMap<ServerName, ServerItem>, Box<Problem>> {
        let mut servers = BTreeMap::new();
        let Some(value) = value else { return Ok(servers) };
        let DeValue::Table(table) = value.get_ref() else {
            return Err(Box::new(self.problem(value.span().start, above, "must be a table of servers")));
        };
        if table.len() > MAX_ENTRIES {
            let message = format!("has more than {MAX_ENTRIES} servers");
            return Err(Box::new(self.problem(value.span().start, above, message)));
        }
        for (key, value) in table {
            let path = join(above, key.get_ref());
            let name = match ServerName::parse(key.get_ref()) {
                Ok(name) => name,
                Err(error) => {
                    problems.push(self.problem(key.span().start, &path, error.to_string()));
                    continue;
                }
            };
            servers.insert(name, self.server(value, key.span().start, &path, lines, problems));
        }
        Ok(servers)
    }

    fn plugins(&self, value: Option<Spanned<DeValue<'_>>>, file: &mut LayerFile, fatal: &mut Vec<Problem>) {
        let Some(value) = value else { return };
        let DeValue::Table(table) = value.get_ref() else {
            fatal.push(self.problem(value.span().start, "plugins", "must be a table of plugins"));
            return;
        };
        if table.len() > MAX_ENTRIES {
            fatal.push(self.problem(value.span().start, "plugins", format!("has more than {MAX_ENTRIES} plugins")));
            return;
        }
        for (key, value) in table {
            let (id, offset) = (key.get_ref().as_ref(), key.span().start);
            let path = join("plugins", id);
            if !is_id(id) {
                let message = "an id has 1 to 128 characters, none of them a control character";
                // Whom an unreadable `enabled = false` was about is not known, so it cannot fail by itself.
                fatal.push(self.problem(offset, &path, message));
                continue;
            }
            let item = self.plugin(value.get_ref(), offset, &path, &file.lines, &mut file.problems);
            file.plugins.insert(id.to_owned(), item);
        }
    }

    /// One mistake in a plugin's own keys disables all of its servers; one in a server's table that server.
    fn plugin(
        &self,
        value: &DeValue<'_>,
        offset: usize,
        path: &str,
        lines: &BTreeMap<String, usize>,
        problems: &mut Vec<Problem>,
    ) -> PluginItem {
        let DeValue::Table(table) = value else {
            let problem = self.problem(offset, path, "must be a table");
            problems.push(problem.clone());
            return PluginItem { table: Err(Box::new(problem)), servers: BTreeMap::new() };
        };
        let mut own = table.clone();
        let servers = take(&mut own, "mcp_servers");
        let mut found = Vec::new();
        let servers = self.servers(servers, &join(path, "mcp_servers"), lines, problems).unwrap_or_else(|problem| {
            found.push(*problem);
            BTreeMap::new()
        });
        let read = self.read::<PluginTable>(&own, &PLUGIN, path).and_then(|plugin| {
            let faults = self.placed(plugin.faults(), path, offset, lines);
            if faults.is_empty() { Ok(plugin) } else { Err(faults) }
        });
        let table = match read {
            Ok(plugin) => Some(plugin),
            Err(problems) => {
                found.extend(problems);
                None
            }
        };
        let table = match (first(&found), table) {
            (None, Some(table)) => Ok(table),
            (Some(problem), _) => Err(Box::new(problem)),
            (None, None) => Err(Box::new(self.problem(offset, path, "cannot be read"))),
        };
        problems.extend(found);
        PluginItem { table, servers }
    }

    fn server(
        &self,
        value: &Spanned<DeValue<'_>>,
        offset: usize,
        path: &str,
        lines: &BTreeMap<String, usize>,
        problems: &mut Vec<Problem>,
    ) -> ServerItem {
        let DeValue::Table(table) = value.get_ref() else {
            let problem = self.problem(offset, path, "must be a table");
            problems.push(problem.clone());
            return Err(Box::new(problem));
        };
        let found = if let Some(key) = table.keys().find(|key| key.get_ref().as_ref() == "bearer_token") {
            let message = "a token does not belong in a file; name its variable in `bearer_token_env_var`";
            vec![self.problem(key.span().start, &join(path, "bearer_token"), message)]
        } else {
            match self.read::<ServerTable>(table, &SERVER, path) {
                Ok(server) => match self.placed(server.faults(), path, offset, lines) {
                    faults if faults.is_empty() => return Ok(Box::new(server)),
                    faults => faults,
                },
                Err(problems) => problems,
            }
        };
        let first = first(&found).unwrap_or_else(|| self.problem(offset, path, "cannot be read"));
        problems.extend(found);
        Err(Box::new(first))
    }

    fn policies(&self, value: Option<Spanned<DeValue<'_>>>, file: &mut LayerFile, fatal: &mut Vec<Problem>) {
        let Some(value) = value else { return };
        let DeValue::Array(items) = value.get_ref() else {
            fatal.push(self.problem(value.span().start, "policies", "must be written as `[[policies]]`"));
            return;
        };
        if items.len() > MAX_ENTRIES {
            fatal.push(self.problem(value.span().start, "policies", format!("has more than {MAX_ENTRIES} entries")));
            return;
        }
        let mut names = BTreeSet::new();
        for (index, item) in items.iter().enumerate() {
            let mut policy = self.policy(item, index, file);
            if !names.insert(policy.name.clone()) {
                let message = format!("of the policy `{}`: its name is used twice in this layer", policy.name);
                let problem = self.problem(item.span().start, &join(&policy.key, "name"), message);
                file.problems.push(problem.clone());
                policy.name = format!("{}#{index}", policy.name);
                policy.entry = Err(problem);
            }
            file.policies.push(policy);
        }
    }

    fn policy(&self, item: &Spanned<DeValue<'_>>, index: usize, file: &mut LayerFile) -> PolicyItem {
        let (key, offset) = (format!("policies[{index}]"), item.span().start);
        let DeValue::Table(table) = item.get_ref() else {
            let problem = self.problem(offset, &key, "must be a table");
            file.problems.push(problem.clone());
            return PolicyItem { name: key.clone(), key, matches: MatchTable::default(), entry: Err(problem) };
        };
        let name = table.get("name").and_then(|v| v.get_ref().as_str()).filter(|name| is_policy_name(name));
        let name = name.map_or_else(|| key.clone(), str::to_owned);
        let matches = self.matches(table, &join(&key, "match"), &file.lines);
        // A file that others may replace is not a file that they vouch for.
        let digest_required = matches!(self.layer.kind(), LayerKind::Managed | LayerKind::Organisation);
        let mut found = Vec::new();
        let entry = match self.read::<PolicyTable>(table, &POLICY, &key) {
            Ok(policy) => {
                found.extend(self.placed(policy.faults(digest_required), &key, offset, &file.lines));
                Some(policy)
            }
            Err(problems) => {
                found.extend(problems);
                None
            }
        };
        let matches = matches.unwrap_or_else(|problems| {
            // What the entry's own reading found in the match is not said twice.
            found.extend(problems.into_iter().filter(|p| entry.is_some() || p.message != "unknown key"));
            MatchTable::default()
        });
        found.dedup();
        if name != key {
            for problem in &mut found {
                *problem = problem.of_policy(&name);
            }
        }
        let broken = first(&found);
        file.problems.extend(found);
        let entry = match (broken, entry) {
            (None, Some(entry)) => Ok(Box::new(entry)),
            (Some(problem), _) => Err(problem),
            (None, None) => Err(self.problem(offset, &key, "cannot be read")),
        };
        PolicyItem { name, key, matches, entry }
    }

    fn matches(
        &self,
        policy: &DeTable<'_>,
        path: &str,
        lines: &BTreeMap<String, usize>,
    ) -> Result<MatchTable, Vec<Problem>> {
        let Some(value) = policy.get("match") else { return Ok(MatchTable::default()) };
        let offset = value.span().start;
        let DeValue::Table(table) = value.get_ref() else {
            return Err(vec![self.problem(offset, path, "must be a table")]);
        };
        let matches = self.read::<MatchTable>(table, &MATCH, path)?;
        let faults = self.placed(matches.faults(), path, offset, lines);
        if faults.is_empty() { Ok(matches) } else { Err(faults) }
    }

    pub(super) fn placed(
        &self,
        faults: Vec<(String, String)>,
        path: &str,
        offset: usize,
        lines: &BTreeMap<String, usize>,
    ) -> Vec<Problem> {
        let place = |(key, message): (String, String)| {
            let key = join_path(path, &key);
            let line = lines.get(&key).copied().unwrap_or_else(|| self.line(offset));
            Problem::at(self.layer, Some(line), &key, message)
        };
        faults.into_iter().map(place).collect()
    }
}

pub(super) fn first(problems: &[Problem]) -> Option<Problem> {
    problems.first().cloned()
}

/// Appends a key to a dotted path, quoted where TOML needs quotes.
pub(crate) fn join(path: &str, key: &str) -> String {
    let bare = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    let key = if bare { key.to_owned() } else { format!("\"{}\"", shown(key, 64)) };
    join_path(path, &key)
}

fn join_path(path: &str, below: &str) -> String {
    match (path.is_empty(), below.is_empty()) {
        (true, _) => below.to_owned(),
        (_, true) => path.to_owned(),
        (false, false) => format!("{path}.{below}"),
    }
}

/// Returns the path of the narrowest key or value around an offset.
fn key_at(table: &DeTable<'_>, offset: usize) -> Option<String> {
    let mut best: Option<(usize, String)> = None;
    narrow(table, "", offset, &mut best);
    best.map(|(_, path)| path)
}

fn narrow(table: &DeTable<'_>, path: &str, offset: usize, best: &mut Option<(usize, String)>) {
    let mut offer = |span: std::ops::Range<usize>, path: &str| {
        if (span.contains(&offset) || span.start == offset) && best.as_ref().is_none_or(|(len, _)| span.len() <= *len) {
            *best = Some((span.len(), path.to_owned()));
        }
    };
    let mut below = Vec::new();
    for (key, value) in table {
        let path = join(path, key.get_ref());
        offer(key.span(), &path);
        offer(value.span(), &path);
        match value.get_ref() {
            DeValue::Table(table) => below.push((table, path)),
            DeValue::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    let path = format!("{path}[{index}]");
                    offer(item.span(), &path);
                    if let DeValue::Table(table) = item.get_ref() {
                        below.push((table, path));
                    }
                }
            }
            _ => {}
        }
    }
    for (table, path) in below {
        narrow(table, &path, offset, best);
    }
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
