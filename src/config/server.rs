//! One server out of every layer's table for it: defined whole in one layer, tightened by the others (R2, R4).
//!
//! The definition is that of the most trusted layer that has one. Of every other table only what tightens counts:
//! `enabled` is AND, allow-lists intersect, deny-lists unite, timeouts and limits take the minimum. A key that defines,
//! in another layer than the defining one, is reported and has no effect. A table that cannot be read disables.
//!
//! Does not merge approval modes: each layer's stand side by side (`PostureLayers`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::json;

use super::identity;
use super::plugins::{self, Registration};
use super::problem::Problem;
use super::requirements::{Source, refused_server};
use super::server_keys::{Auth, Lifecycle, RestartTable, RestartWhen, ServerTable, Sharing, seconds};
use super::stack::Layer;
use super::template::Template;
pub use super::transport::{HttpTarget, StdioLaunch, Transport};
use crate::model::digest::Digest;
use crate::model::exposure::Way;
use crate::model::layer::{LayerKind, LayerRef};
use crate::model::name::{RawToolName, ServerName};
use crate::model::tool::ServerIdentity;

/// How long a server may take to start where nobody says (catalog-dispatch 2.1 rule 7).
pub const STARTUP_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a call may take where nobody says.
pub const TOOL_TIMEOUT: Duration = Duration::from_secs(300);
/// The largest message where nobody says, in bytes.
pub const MESSAGE_LIMIT: u64 = 64 * 1024 * 1024;
/// How many calls may be in flight at one server where nobody says.
pub const CONCURRENCY: u32 = 64;
/// One server as it is in force.
#[derive(Debug, Clone)]
pub struct ResolvedServer {
    /// Its name.
    pub name: ServerName,
    /// The layer that defines it.
    pub layer: LayerRef,
    /// How it is reached.
    pub transport: Transport,
    /// What it is (R5).
    pub identity: ServerIdentity,
    /// Digest over what its process or connection is made of; when it changes, the connection is made anew, and else it is
    /// not (catalog-dispatch 2.1 rule 13). Values of variables are not in it.
    pub launch_digest: Digest,
    /// Digest over the whole effective configuration of the server; when it changes, prepared calls are stale (R19).
    pub digest: Digest,
    /// Whether it exists; if not, why. A disabled server stays visible to people.
    pub enabled: Result<(), String>,
    /// Whether the session fails without it.
    pub required: bool,
    /// How long it may take to start.
    pub startup_timeout: Duration,
    /// How long a call may take.
    pub tool_timeout: Duration,
    /// Whether tools that do not say that they only read may be called side by side.
    pub parallel: bool,
    /// Which of its tools exist.
    pub filter: ToolFilter,
    /// Whether hints that relax count: the layer may allow, and none says `trust_annotations = false` (R9).
    pub may_relax: bool,
    /// Whether arguments are checked against the tools' input schemas.
    pub check_arguments: bool,
    /// Whether its tools may declare file parameters: the layer may allow and says so, and none says `false` (R3).
    pub file_parameters: bool,
    /// Whether what it answers pollutes a thread's memory: it does, unless the layer may allow and says `false` (R3).
    pub pollutes_memory: bool,
    /// The protocol era.
    pub lifecycle: Lifecycle,
    /// Who shares a connection.
    pub sharing: Sharing,
    /// The largest message, in bytes.
    pub message_limit: u64,
    /// How many calls may be in flight at once.
    pub concurrency: u32,
    /// What happens when it dies.
    pub restart: Restart,
    /// Exposures that its tools are left out of.
    pub omit_tools_from: BTreeSet<Way>,
    /// How many tokens of its tools' text the model view keeps.
    pub output_token_limit: Option<u32>,
    /// How many tokens of a tool's text the model view keeps.
    pub output_token_limits: BTreeMap<RawToolName, u32>,
    /// The id of the plugin that provides it.
    pub plugin: Option<String>,
    /// What that plugin is called, if a layer says so that is at least as trusted as the one that defines it.
    pub plugin_name: Option<String>,
    /// Which layer each value comes from, by key; a key without an entry is builtin.
    pub origins: BTreeMap<&'static str, LayerRef>,
}

/// How the reason begins of a server that a layer switched off.
const SWITCHED_OFF: &str = "disabled by";

impl ResolvedServer {
    /// Whether a layer switched the server off (`enabled = false`), rather than a mistake.
    #[must_use]
    pub fn is_switched_off(&self) -> bool {
        self.enabled.as_ref().is_err_and(|why| why.starts_with(SWITCHED_OFF))
    }
}

/// What happens when a server dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restart {
    /// Whether it is started again.
    pub when: RestartWhen,
    /// The first delay; doubles with each failure in a row.
    pub first_delay: Duration,
    /// The longest delay; never less than the first.
    pub max_delay: Duration,
    /// How many failures in a row end the attempts.
    pub attempts: u32,
}

impl Restart {
    fn from_table(table: &RestartTable) -> Self {
        let first_delay = Duration::from_millis(table.first_delay_ms.unwrap_or(500));
        let max_delay = Duration::from_millis(table.max_delay_ms.unwrap_or(30_000)).max(first_delay);
        Self { when: table.when.unwrap_or_default(), first_delay, max_delay, attempts: table.attempts.unwrap_or(8) }
    }
}

/// Which tools of a server exist, by raw name, before any naming (catalog-dispatch 2 rule 6).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ToolFilter {
    /// The only ones, if there is such a list.
    pub enabled: Option<BTreeSet<RawToolName>>,
    /// Those that are not.
    pub disabled: BTreeSet<RawToolName>,
    /// Each layer's own list of the only ones, in the order in which they were put in.
    only: Vec<(LayerRef, BTreeSet<RawToolName>)>,
    /// Each layer's own list of those that are not.
    never: Vec<(LayerRef, BTreeSet<RawToolName>)>,
}

impl ToolFilter {
    /// Whether the tool exists.
    #[must_use]
    pub fn allows(&self, tool: &RawToolName) -> bool {
        self.enabled.as_ref().is_none_or(|enabled| enabled.contains(tool)) && !self.disabled.contains(tool)
    }

    /// Returns the most trusted layer that leaves the tool out; none: it exists.
    #[must_use]
    pub fn filtered_by(&self, tool: &RawToolName) -> Option<&LayerRef> {
        let only = self.only.iter().filter(|(_, list)| !list.contains(tool));
        let never = self.never.iter().filter(|(_, list)| list.contains(tool));
        only.chain(never).map(|(layer, _)| layer).max_by_key(|layer| layer.kind())
    }

    /// Leaves only these: what earlier lists left out stays out.
    fn only(&mut self, layer: &LayerRef, list: BTreeSet<RawToolName>) {
        self.enabled = Some(match self.enabled.take() {
            Some(earlier) => earlier.intersection(&list).cloned().collect(),
            None => list.clone(),
        });
        self.only.push((layer.clone(), list));
    }

    /// Leaves these out.
    fn never(&mut self, layer: &LayerRef, list: BTreeSet<RawToolName>) {
        self.disabled.extend(list.iter().cloned());
        self.never.push((layer.clone(), list));
    }
}

/// Resolves one server from every layer's entry for it, weak to strong. `None`: no layer defines it and none is broken. Plugins
/// that dispute a name are a warning.
pub(crate) fn resolve(
    name: &ServerName,
    layers: &[Layer],
    sources: &[Source],
    path: Option<&std::ffi::OsStr>,
    problems: &mut Vec<Problem>,
    warnings: &mut Vec<Problem>,
) -> Option<ResolvedServer> {
    let winner = plugins::registered(name, layers, sources, warnings);
    let entries = plugins::tables(name, layers, winner.as_ref());
    let tables: Vec<Entry<'_>> =
        entries.iter().filter_map(|(layer, plugin, item)| Some((*layer, *plugin, &**item.as_ref().ok()?))).collect();
    let meant = |plugin: &Option<&str>| plugin.is_none() || winner.is_some();
    let broken = entries.iter().filter(|(_, plugin, _)| meant(plugin));
    let broken = broken.into_iter().find_map(|(_, _, item)| item.as_ref().err().map(|problem| &**problem));
    report(name, &tables, winner.as_ref(), problems);
    let definition = winner.as_ref().and_then(|winner| Some((winner.layer, winner.table?)));
    let (layer, may_allow, transport) = match (&winner, broken) {
        (Some(Registration { layer, table: Some(table), .. }), _) => {
            (layer.definer.clone(), layer.may_allow, transport(layer, table, path))
        }
        (Some(Registration { layer, table: None, .. }), _) => (layer.definer.clone(), false, Transport::Unreadable),
        (None, Some(problem)) => (problem.layer.clone(), false, Transport::Unreadable),
        (None, None) => return None,
    };
    let own = definition.map(|(_, table)| table.clone()).unwrap_or_default();
    let mut server = ResolvedServer {
        identity: identity::identify(name, &transport),
        launch_digest: Digest::of(b""),
        digest: Digest::of(b""),
        enabled: Ok(()),
        required: false,
        startup_timeout: own.startup_timeout().unwrap_or(STARTUP_TIMEOUT),
        tool_timeout: own.tool_timeout_sec.and_then(|v| seconds(v).ok()).unwrap_or(TOOL_TIMEOUT),
        parallel: own.supports_parallel_tool_calls.unwrap_or(false),
        filter: ToolFilter::default(),
        may_relax: may_allow,
        check_arguments: own.check_arguments.unwrap_or(true),
        file_parameters: may_allow && own.file_parameters.unwrap_or(false),
        pollutes_memory: !may_allow || own.pollutes_memory.unwrap_or(true),
        lifecycle: lifecycle(&transport, &own),
        sharing: Sharing::default(),
        message_limit: own.message_limit.unwrap_or(MESSAGE_LIMIT),
        concurrency: own.concurrency.unwrap_or(CONCURRENCY),
        restart: Restart::from_table(&own.restart.clone().unwrap_or_default()),
        omit_tools_from: BTreeSet::new(),
        output_token_limit: None,
        output_token_limits: BTreeMap::new(),
        plugin: winner.as_ref().and_then(|winner| winner.plugin).map(str::to_owned),
        plugin_name: winner.as_ref().and_then(|winner| winner.plugin_name(layers)).map(str::to_owned),
        origins: own_origins(&own, &layer),
        name: name.clone(),
        layer,
        transport,
    };
    for (layer, _, table) in &tables {
        tighten(&mut server, &layer.reference, table);
    }
    let off = winner.as_ref().and_then(|winner| winner.off.as_ref()).map(|off| (off.layer.clone(), off.why.clone()));
    server.enabled = enabled(&server, definition, broken, &tables);
    if let Some((layer, why)) = off.or_else(|| refused_server(&server, sources))
        && server.enabled.is_ok()
    {
        server.origins.insert("enabled", layer);
        server.enabled = Err(why);
    }
    server.launch_digest = launch_digest(&server);
    server.digest = digest(&server);
    Some(server)
}

/// A table of a server, where it is, and the plugin that it is in.
type Entry<'a> = (&'a Layer, Option<&'a str>, &'a ServerTable);

/// Reports what another layer than the defining one says in vain (R4).
fn report(name: &ServerName, tables: &[Entry<'_>], winner: Option<&Registration<'_>>, problems: &mut Vec<Problem>) {
    for (layer, plugin, table) in tables {
        if winner.is_some_and(|winner| std::ptr::eq(winner.layer, *layer) && winner.plugin == *plugin) {
            continue;
        }
        let path = plugins::path_of(*plugin, name);
        let mut say = |key: &str, message: String| {
            let line = layer.file.lines.get(key).copied();
            problems.push(Problem::at(&layer.reference, line, key, message));
        };
        let Some(winner) = winner else {
            // A restriction may stand before there is anything to restrict; a user's own half table is a mistake.
            let expected = layer.reference.kind() >= LayerKind::Organisation || !layer.defines;
            if !expected || !table.defining_keys().is_empty() {
                say(&path, "no layer defines this server: it has neither `command` nor `url`".to_owned());
            }
            continue;
        };
        for key in table.defining_keys() {
            let message =
                format!("has no effect: `{name}` is defined whole by the {} layer (R4)", winner.layer.definer);
            say(&format!("{path}.{key}"), message);
        }
    }
}

fn transport(layer: &Layer, table: &ServerTable, path: Option<&std::ffi::OsStr>) -> Transport {
    let Some(command) = &table.command else {
        let Some(url) = table.url.clone() else { return Transport::Unreadable };
        return Transport::Http(HttpTarget {
            url,
            bearer_token_env_var: table.bearer_token_env_var.clone(),
            headers: table.http_headers.clone().unwrap_or_default(),
            env_headers: table.env_http_headers.clone().unwrap_or_default(),
            auth: table.auth.unwrap_or_default(),
            client_id: table.oauth.clone().and_then(|oauth| oauth.client_id),
            resource: table.oauth_resource.clone(),
            scopes: table.scopes.clone(),
        });
    };
    let cwd = table.cwd.as_ref().map_or_else(|| layer.cwd.clone(), |cwd| layer.cwd.join(cwd));
    Transport::Stdio(StdioLaunch {
        executable: identity::find_executable(command, &cwd, path),
        command: command.clone(),
        args: table.args.clone().unwrap_or_default(),
        env: table.env.clone().unwrap_or_default(),
        inherit: table.env_vars.iter().flatten().map(|variable| variable.name().to_owned()).collect(),
        base_environment: table.base_environment.unwrap_or(true),
        bound: layer.pins.clone().unwrap_or_default(),
        cwd,
    })
}

/// Applies what may only tighten; the defining layer's own table passes through here too.
fn tighten(server: &mut ResolvedServer, layer: &LayerRef, table: &ServerTable) {
    let mut changed = Vec::new();
    if table.enabled == Some(false) {
        changed.push("enabled");
    }
    if table.required == Some(true) {
        server.required = true;
        changed.push("required");
    }
    lower(&mut server.startup_timeout, table.startup_timeout(), "startup_timeout_sec", &mut changed);
    let tool_timeout = table.tool_timeout_sec.and_then(|v| seconds(v).ok());
    lower(&mut server.tool_timeout, tool_timeout, "tool_timeout_sec", &mut changed);
    lower(&mut server.message_limit, table.message_limit, "message_limit", &mut changed);
    lower(&mut server.concurrency, table.concurrency, "concurrency", &mut changed);
    lower(&mut server.parallel, table.supports_parallel_tool_calls, "supports_parallel_tool_calls", &mut changed);
    lower(&mut server.file_parameters, table.file_parameters, "file_parameters", &mut changed);
    lower(&mut server.may_relax, table.trust_annotations, "trust_annotations", &mut changed);
    switch_on(&mut server.check_arguments, table.check_arguments, "check_arguments", &mut changed);
    switch_on(&mut server.pollutes_memory, table.pollutes_memory, "pollutes_memory", &mut changed);
    if table.sharing.is_some_and(|sharing| sharing > server.sharing) {
        server.sharing = table.sharing.unwrap_or_default();
        changed.push("sharing");
    }
    let names = |names: &[String]| names.iter().filter_map(|name| RawToolName::parse(name).ok()).collect();
    if let Some(list) = &table.enabled_tools {
        server.filter.only(layer, names(list));
        changed.push("enabled_tools");
    }
    if let Some(list) = &table.disabled_tools {
        server.filter.never(layer, names(list));
        changed.push("disabled_tools");
    }
    if let Some(list) = &table.omit_tools_from {
        server.omit_tools_from.extend(list);
        changed.push("omit_tools_from");
    }
    if let Some(limit) = table.output_token_limit
        && server.output_token_limit.is_none_or(|earlier| limit < earlier)
    {
        server.output_token_limit = Some(limit);
        changed.push("output_token_limit");
    }
    for (tool, settings) in table.tools.iter().flatten() {
        if let (Ok(tool), Some(limit)) = (RawToolName::parse(tool), settings.output_token_limit) {
            let least = server.output_token_limits.get(&tool).map_or(limit, |earlier| limit.min(*earlier));
            server.output_token_limits.insert(tool, least);
        }
    }
    for key in changed {
        server.origins.insert(key, layer.clone());
    }
}

fn lower<T: PartialOrd>(value: &mut T, other: Option<T>, key: &'static str, changed: &mut Vec<&'static str>) {
    if let Some(other) = other
        && other < *value
    {
        *value = other;
        changed.push(key);
    }
}

fn switch_on(value: &mut bool, other: Option<bool>, key: &'static str, changed: &mut Vec<&'static str>) {
    if other == Some(true) && !*value {
        *value = true;
        changed.push(key);
    }
}

/// The values that the defining table itself sets, before anybody tightens them.
fn own_origins(own: &ServerTable, layer: &LayerRef) -> BTreeMap<&'static str, LayerRef> {
    let set = [
        (own.startup_timeout().is_some(), "startup_timeout_sec"),
        (own.tool_timeout_sec.is_some(), "tool_timeout_sec"),
        (own.message_limit.is_some(), "message_limit"),
        (own.concurrency.is_some(), "concurrency"),
        (own.supports_parallel_tool_calls.is_some(), "supports_parallel_tool_calls"),
        (own.trust_annotations.is_some(), "trust_annotations"),
        (own.check_arguments.is_some(), "check_arguments"),
        (own.file_parameters.is_some(), "file_parameters"),
        (own.pollutes_memory.is_some(), "pollutes_memory"),
    ];
    let set = set.into_iter().filter_map(|(set, key)| set.then_some(key));
    set.chain(own.defining_keys()).map(|key| (key, layer.clone())).collect()
}

fn enabled(
    server: &ResolvedServer,
    definition: Option<(&Layer, &ServerTable)>,
    broken: Option<&Problem>,
    tables: &[Entry<'_>],
) -> Result<(), String> {
    if let Some(problem) = broken {
        return Err(format!("its configuration cannot be read: {problem}"));
    }
    // The most trusted layer's word is the reason that people see.
    let off = tables.iter().filter(|(_, _, table)| table.enabled == Some(false)).map(|(layer, _, _)| &layer.reference);
    if let Some(layer) = off.max_by_key(|layer| layer.kind()) {
        return Err(format!("{SWITCHED_OFF} the {layer} layer"));
    }
    if let Transport::Http(HttpTarget { auth: Auth::Chatgpt, .. }) = server.transport {
        return Err("this version has no `auth = \"chatgpt\"`; use `oauth` or a bearer token".to_owned());
    }
    if let Some((layer, table)) = definition
        && let Some(granted) = &layer.variables
        && let Some(name) = references(table).into_iter().find(|name| !granted.contains(*name))
    {
        return Err(format!(
            "it names the environment variable `{name}`, which the trust in its project does not grant (R4)"
        ));
    }
    Ok(())
}

/// Returns the variables of our environment that a table would read.
pub(crate) fn references(table: &ServerTable) -> BTreeSet<&str> {
    let templates = table.args.iter().flatten().chain(&table.url);
    let templates = templates.chain(table.env.iter().flatten().map(|(_, value)| value));
    let templates = templates.chain(table.http_headers.iter().flatten().map(|(_, value)| value));
    let mut names: BTreeSet<&str> = templates.flat_map(Template::variables).collect();
    names.extend(table.env_vars.iter().flatten().map(super::server_keys::EnvVar::name));
    names.extend(table.bearer_token_env_var.as_deref());
    names.extend(table.env_http_headers.iter().flatten().map(|(_, name)| name.as_str()));
    names
}

/// The era: over HTTP the server is asked, a child process may hang on a question that it does not know.
fn lifecycle(transport: &Transport, own: &ServerTable) -> Lifecycle {
    own.lifecycle.unwrap_or(match transport {
        Transport::Http(_) => Lifecycle::Auto,
        Transport::Stdio(_) | Transport::Unreadable => Lifecycle::Legacy,
    })
}

/// The transport, and whatever else a connection is made with and cannot change while it lives.
fn launch_digest(server: &ResolvedServer) -> Digest {
    // Literal values go in by their digest, inside this digest: they cannot be read back or compared one by one.
    let sealed = |map: &BTreeMap<String, Template>| {
        let sealed = map.iter().map(|(k, v)| (k.clone(), Digest::of(v.as_written().as_bytes()).to_string()));
        sealed.collect::<BTreeMap<_, _>>()
    };
    let encoded = match &server.transport {
        Transport::Stdio(launch) => json!({
            "command": launch.command, "executable": launch.executable.as_ref().ok().map(|p| p.display().to_string()),
            "args": launch.args.iter().map(Template::as_written).collect::<Vec<_>>(), "cwd": launch.cwd.display().to_string(),
            "env": sealed(&launch.env), "inherit": launch.inherit, "base": launch.base_environment,
            // Trusting anew must reach a server that would else compare with what was trusted before.
            "bound": launch.bound.iter().map(|(path, digest)| (path.display().to_string(), digest)).collect::<Vec<_>>(),
        }),
        Transport::Http(target) => json!({
            "url": target.url.as_written(), "headers": sealed(&target.headers), "env_headers": target.env_headers,
            "token": target.bearer_token_env_var, "auth": target.auth, "client": target.client_id,
            "resource": target.resource, "scopes": target.scopes,
        }),
        Transport::Unreadable => json!(null),
    };
    // Callers' own connections know whether one that ended is opened again; over HTTP the connection itself bounds its calls.
    let reopens = (server.sharing != Sharing::Process).then_some(server.restart.when);
    let at_once = matches!(server.transport, Transport::Http(_)).then_some(server.concurrency);
    let made_with = json!([server.identity, server.lifecycle, server.sharing, reopens, server.message_limit, at_once]);
    Digest::of(json!([encoded, made_with]).to_string().as_bytes())
}

fn digest(server: &ResolvedServer) -> Digest {
    let restart = server.restart;
    let value = json!([
        server.name,
        server.layer,
        server.identity,
        server.launch_digest,
        server.enabled.is_ok(),
        server.required,
        server.startup_timeout.as_millis() as u64,
        server.tool_timeout.as_millis() as u64,
        server.parallel,
        server.filter.enabled,
        server.filter.disabled,
        server.may_relax,
        server.check_arguments,
        server.file_parameters,
        server.pollutes_memory,
        server.sharing,
        server.message_limit,
        server.concurrency,
        restart.when,
        restart.first_delay.as_millis() as u64,
        restart.max_delay.as_millis() as u64,
        restart.attempts,
        server.omit_tools_from,
        server.output_token_limit,
        server.output_token_limits,
        server.plugin,
    ]);
    Digest::of(value.to_string().as_bytes())
}
