//! Every effective value with its origin, for `config show` and `config check`.
//!
//! Values of environment variables and headers are shown as `<set>`: they may be secrets.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::parse::join;
use super::plugins::path_of;
use super::records::KeptIn;
use super::reviewer::ReviewerWay;
use super::server::{ResolvedServer, Transport};
use super::stack::{LayerStatus, Resolved, Sourced};
use crate::model::hook::HookEvent;
use crate::model::layer::{LayerKind, LayerRef};

/// What stands for a value that may be a secret.
const HIDDEN: &str = "<set>";

/// One effective value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Shown {
    /// The dotted path of the key.
    pub key: String,
    /// The value as TOML, or `<set>`.
    pub value: String,
    /// The layer that it comes from.
    pub layer: LayerRef,
    /// That layer's file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// The line, where the layer has the key under this path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
}

/// Returns every effective value: settings, each layer's say about approval, servers, policies, hooks.
#[must_use]
pub fn effective(resolved: &Resolved) -> Vec<Shown> {
    let mut list = List { resolved, shown: Vec::new(), plugin: None };
    list.settings();
    for server in resolved.servers.values() {
        list.server(server);
    }
    list.plugins();
    list.policies();
    list.reviewers();
    list.hooks();
    list.tables();
    list.shown
}

struct List<'a> {
    resolved: &'a Resolved,
    shown: Vec<Shown>,
    /// While a plugin's server is listed: the path that it is listed under, and its path in the plugin's file.
    plugin: Option<(String, String)>,
}

impl List<'_> {
    fn push(&mut self, key: &str, value: impl Into<toml::Value>, layer: &LayerRef) {
        self.push_text(key, value.into().to_string(), layer, key);
    }

    /// `found_at` is the key's path in the layer's own file.
    fn push_text(&mut self, key: &str, value: String, layer: &LayerRef, found_at: &str) {
        // What a plugin brings stands in its file under the plugin.
        let below = |(above, at): &(String, String)| Some(format!("{at}{}", found_at.strip_prefix(above.as_str())?));
        let in_plugin = self.plugin.as_ref().and_then(below);
        let status = self
            .resolved
            .layers
            .iter()
            .find(|s| s.layer == *layer || (layer.file().is_some() && s.layer.file() == layer.file()));
        let found = |status: &LayerStatus| {
            let other = || in_plugin.as_ref().and_then(|at| status.lines.get(at));
            status.lines.get(found_at).or_else(other).copied()
        };
        let line = status.and_then(found);
        let file = layer.file().map(PathBuf::from);
        self.shown.push(Shown { key: key.to_owned(), value, layer: layer.clone(), file, line });
    }

    fn records(&mut self) {
        let records = &self.resolved.records;
        match &records.keep {
            Some(Sourced { value: KeptIn::Folder(folder), layer }) => {
                self.push("records.folder", folder.display().to_string(), layer);
            }
            Some(Sourced { value: KeptIn::State, layer }) => self.push("records.keep", true, layer),
            None => {}
        }
        self.push("records.on_failure", spelled(records.on_failure.value), &records.on_failure.layer);
        self.push("records.fsync", spelled(records.fsync.value), &records.fsync.layer);
        self.push("records.rotate_mib", i64::from(records.rotate_mib.value), &records.rotate_mib.layer);
        self.push("records.inputs", records.inputs.value, &records.inputs.layer);
    }

    fn settings(&mut self) {
        let resolved = self.resolved;
        for own in resolved.postures.layers() {
            let mut word = |key: &str, value: Option<String>| {
                if let Some(value) = value {
                    self.push(key, value, &own.layer);
                }
            };
            word("approval_policy", own.policy.map(spelled));
            word("approvals_reviewer", own.reviewer.map(spelled));
            word("permission_profile", own.profile.map(spelled));
            if let Some(channels) = &own.channels {
                let words: Vec<String> = channels.iter().map(|channel| channel.as_str().to_owned()).collect();
                self.push("approvals.channels", words, &own.layer);
            }
            if let Some(roles) = &own.roles {
                let words: Vec<String> = roles.iter().map(|role| role.as_str().to_owned()).collect();
                self.push("approvals.roles", words, &own.layer);
            }
            if let Some(strict) = own.strict_review {
                self.push("strict_auto_review", strict, &own.layer);
            }
            for (server, modes) in &own.modes {
                let path = join("mcp_servers", server.as_str());
                let plugin = resolved.servers.get(server).and_then(|own| own.plugin.as_deref());
                self.plugin = plugin.map(|id| (path.clone(), path_of(Some(id), server)));
                if let Some(mode) = modes.default {
                    self.push(&format!("{path}.default_tools_approval_mode"), spelled(mode), &own.layer);
                }
                for (tool, mode) in &modes.tools {
                    let key = join(&format!("{path}.tools"), tool.as_str());
                    self.push(&format!("{key}.approval_mode"), spelled(*mode), &own.layer);
                }
            }
            self.plugin = None;
        }
        let gateway = &resolved.gateway;
        self.push("gateway.names", spelled(gateway.names.value), &gateway.names.layer);
        self.push("gateway.name_limit", i64::from(gateway.name_limit.value), &gateway.name_limit.layer);
        self.push("gateway.search", spelled(gateway.search.value), &gateway.search.layer);
        self.push("gateway.search_from", i64::from(gateway.search_from.value), &gateway.search_from.layer);
        let queue = &resolved.queue;
        if let Some(wanted) = queue.value {
            self.push("approvals.queue", wanted, &queue.layer);
        }
        let limits = &resolved.limits;
        self.push("limits.ask_timeout_sec", limits.ask_timeout.value.as_secs_f64(), &limits.ask_timeout.layer);
        let calls = &limits.concurrent_calls;
        self.push("limits.concurrent_calls", i64::from(calls.value), &calls.layer);
        self.records();
        if let Some(files) = &resolved.files {
            let roots: Vec<String> = files.roots.iter().map(|root| root.display().to_string()).collect();
            self.push("files.upload_url", without_query(files.upload_url.as_str()), &files.layer);
            self.push("files.roots", roots, &files.layer);
            if let Some(name) = &files.bearer_token_env_var {
                self.push("files.bearer_token_env_var", name.clone(), &files.layer);
            }
        }
        self.telemetry();
        let tokens = &resolved.output.tool_output_token_limit;
        if let Some(limit) = tokens.value {
            self.push("tool_output_token_limit", i64::from(limit), &tokens.layer);
        }
        let takes = &resolved.output.input_modalities;
        let members: Vec<String> = takes.value.members().map(spelled).collect();
        self.push("input_modalities", members, &takes.layer);
    }

    fn telemetry(&mut self) {
        let Some(telemetry) = &self.resolved.telemetry else { return };
        let layer = &telemetry.layer;
        let mut put = |key: &str, value: toml::Value| self.push(&format!("telemetry.{key}"), value, layer);
        put("endpoint", without_query(telemetry.endpoint.as_str()).into());
        put("traces", telemetry.traces.into());
        put("metrics", telemetry.metrics.into());
        put("interval_sec", telemetry.interval.as_secs_f64().into());
        put("timeout_sec", telemetry.timeout.as_secs_f64().into());
        put("sampling", telemetry.sampling.into());
        put("service_name", telemetry.service_name.clone().into());
        for (key, value) in &telemetry.resource {
            put(&join("resource", key), value.clone().into());
        }
        for name in telemetry.headers.keys() {
            let key = format!("telemetry.{}", join("headers", name));
            self.push_text(&key, HIDDEN.to_owned(), layer, &key);
        }
    }

    fn server(&mut self, server: &ResolvedServer) {
        let path = join("mcp_servers", server.name.as_str());
        let own = |key: &str| format!("{path}.{key}");
        let layer = &server.layer;
        self.plugin = server.plugin.as_deref().map(|id| (path.clone(), path_of(Some(id), &server.name)));
        if let (Some(id), Some((_, at))) = (&server.plugin, self.plugin.clone()) {
            self.push_text(&own("plugin"), toml::Value::from(id.as_str()).to_string(), layer, &at);
        }
        match &server.transport {
            Transport::Stdio(launch) => {
                self.push(&own("command"), launch.command.clone(), layer);
                let args: Vec<String> = launch.args.iter().map(|arg| arg.as_written().to_owned()).collect();
                self.push(&own("args"), args, layer);
                self.push(&own("cwd"), launch.cwd.display().to_string(), layer);
                self.push(&own("env_vars"), launch.inherit.clone(), layer);
                self.push(&own("base_environment"), launch.base_environment, layer);
                for name in launch.env.keys() {
                    let key = join(&own("env"), name);
                    self.push_text(&key, HIDDEN.to_owned(), layer, &key);
                }
            }
            Transport::Http(target) => {
                self.push(&own("url"), without_query(target.url.as_written()), layer);
                if let Some(name) = &target.bearer_token_env_var {
                    self.push(&own("bearer_token_env_var"), name.clone(), layer);
                }
                for name in target.headers.keys() {
                    let key = join(&own("http_headers"), name);
                    self.push_text(&key, HIDDEN.to_owned(), layer, &key);
                }
                for (name, variable) in &target.env_headers {
                    self.push(&join(&own("env_http_headers"), name), variable.clone(), layer);
                }
                self.push(&own("auth"), spelled(target.auth), layer);
            }
            Transport::Unreadable => {}
        }
        let builtin = LayerRef::new(LayerKind::Builtin);
        let origin = |key: &str| server.origins.get(key).unwrap_or(&builtin);
        self.push(&own("enabled"), server.enabled.is_ok(), origin("enabled"));
        if let Err(why) = &server.enabled {
            self.push_text(
                &own("disabled"),
                toml::Value::from(why.as_str()).to_string(),
                origin("enabled"),
                &own("enabled"),
            );
        }
        self.push(&own("required"), server.required, origin("required"));
        let seconds = |time: Duration| time.as_secs_f64();
        self.push(&own("startup_timeout_sec"), seconds(server.startup_timeout), origin("startup_timeout_sec"));
        self.push(&own("tool_timeout_sec"), seconds(server.tool_timeout), origin("tool_timeout_sec"));
        let parallel = "supports_parallel_tool_calls";
        self.push(&own(parallel), server.parallel, origin(parallel));
        let texts = |names: &std::collections::BTreeSet<crate::model::name::RawToolName>| {
            names.iter().map(|name| name.as_str().to_owned()).collect::<Vec<_>>()
        };
        if let Some(enabled) = &server.filter.enabled {
            self.push(&own("enabled_tools"), texts(enabled), origin("enabled_tools"));
        }
        if !server.filter.disabled.is_empty() {
            self.push(&own("disabled_tools"), texts(&server.filter.disabled), origin("disabled_tools"));
        }
        if !server.omit_tools_from.is_empty() {
            let omitted: Vec<String> = server.omit_tools_from.iter().map(|way| spelled(*way)).collect();
            self.push(&own("omit_tools_from"), omitted, origin("omit_tools_from"));
        }
        self.push(&own("trust_annotations"), server.may_relax, origin("trust_annotations"));
        self.push(&own("check_arguments"), server.check_arguments, origin("check_arguments"));
        self.push(&own("file_parameters"), server.file_parameters, origin("file_parameters"));
        self.push(&own("pollutes_memory"), server.pollutes_memory, origin("pollutes_memory"));
        self.push(&own("lifecycle"), spelled(server.lifecycle), origin("lifecycle"));
        self.push(&own("sharing"), spelled(server.sharing), origin("sharing"));
        let message_limit = i64::try_from(server.message_limit).unwrap_or(i64::MAX);
        self.push(&own("message_limit"), message_limit, origin("message_limit"));
        self.push(&own("concurrency"), i64::from(server.concurrency), origin("concurrency"));
        if let Some(limit) = server.output_token_limit {
            self.push(&own("output_token_limit"), i64::from(limit), origin("output_token_limit"));
        }
        self.push(&own("restart.when"), spelled(server.restart.when), origin("restart"));
        let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        self.push(&own("restart.first_delay_ms"), millis(server.restart.first_delay), origin("restart"));
        self.push(&own("restart.max_delay_ms"), millis(server.restart.max_delay), origin("restart"));
        self.push(&own("restart.attempts"), i64::from(server.restart.attempts), origin("restart"));
        for (tool, limit) in &server.output_token_limits {
            let key = join(&own("tools"), tool.as_str());
            self.push(&format!("{key}.output_token_limit"), i64::from(*limit), layer);
        }
        self.plugin = None;
    }

    /// What each layer says about plugins themselves; any `false` counts.
    fn plugins(&mut self) {
        let resolved = self.resolved;
        for (id, plugin) in &resolved.plugins {
            let path = join("plugins", id);
            for (layer, table) in plugin {
                if let Some(enabled) = table.enabled {
                    self.push(&format!("{path}.enabled"), enabled, layer);
                }
                if let Some(name) = &table.display_name {
                    self.push(&format!("{path}.display_name"), name.clone(), layer);
                }
            }
        }
    }

    /// Requirements and apps, as each layer has them: they stand side by side (R1).
    fn tables(&mut self) {
        let resolved = self.resolved;
        for source in &resolved.requirements {
            self.table("requirements", &source.shown(), source.layer());
        }
        for apps in &resolved.apps {
            self.table("apps", &apps.settings["apps"], &apps.layer);
        }
    }

    fn table(&mut self, path: &str, value: &serde_json::Value, layer: &LayerRef) {
        match value {
            serde_json::Value::Null => {}
            serde_json::Value::Object(members) => {
                members.iter().for_each(|(key, below)| self.table(&join(path, key), below, layer));
            }
            other => self.push_text(path, other.to_string(), layer, path),
        }
    }

    fn policies(&mut self) {
        for policy in &self.resolved.policies {
            let (key, layer) = (format!("policies.{}", policy.name), &policy.layer);
            let mut put = |name: &str, value: toml::Value| {
                self.push_text(&format!("{key}.{name}"), value.to_string(), layer, &format!("{}.{name}", policy.key));
            };
            if let Some(broken) = &policy.broken {
                put("broken", broken.clone().into());
                continue;
            }
            put("component", policy.component.display().to_string().into());
            if let Some(digest) = policy.sha256 {
                put("sha256", digest.to_string().into());
            }
            put("mode", if policy.observe { "observe" } else { "enforce" }.into());
            put("on_failure", spelled(policy.on_failure).into());
            if let Some(data) = &policy.data {
                put("data", data.display().to_string().into());
            }
        }
    }

    /// They stand side by side (R1).
    fn reviewers(&mut self) {
        let resolved = self.resolved;
        for entry in &resolved.reviewers {
            let layer = &entry.layer;
            let mut put = |key: &str, value: toml::Value| self.push(&format!("reviewer.{key}"), value, layer);
            put("type", spelled(entry.kind).into());
            put("name", entry.name.clone().into());
            put("appeal", entry.appeal.into());
            if let Some(timeout) = entry.timeout {
                put("timeout_sec", timeout.as_secs_f64().into());
            }
            let key_env = match &entry.way {
                Err(why) => {
                    put("broken", why.clone().into());
                    continue;
                }
                Ok(ReviewerWay::Sampling) => &None,
                Ok(ReviewerWay::Command { words, key_env, .. }) => {
                    put("command", words.clone().into());
                    key_env
                }
                Ok(ReviewerWay::Http { url, form, model, key_env }) => {
                    put("url", without_query(url.as_str()).into());
                    put("form", spelled(form).into());
                    put("model", model.clone().into());
                    key_env
                }
            };
            if let Some(name) = key_env {
                put("key_env", name.clone().into());
            }
        }
    }

    /// Hooks of all layers: they stand side by side (R1).
    fn hooks(&mut self) {
        for hook in &self.resolved.hooks {
            let (key, layer) = (format!("hooks.{}.{}", hook.event.as_str(), hook.name), &hook.layer);
            let group = hook.key.split(".hooks[").next().unwrap_or_default();
            let mut put = |name: &str, value: toml::Value, at: &str| {
                self.push_text(&format!("{key}.{name}"), value.to_string(), layer, at);
            };
            let own = |name: &str| format!("{}.{name}", hook.key);
            if let Err(why) = &hook.program {
                put("broken", why.clone().into(), &hook.key);
            }
            put("matcher", hook.matcher.clone().unwrap_or_else(|| "*".to_owned()).into(), &format!("{group}.matcher"));
            if !hook.command.is_empty() {
                put("command", hook.command.clone().into(), &own("command"));
                put("timeout", i64::try_from(hook.timeout.as_secs()).unwrap_or(i64::MAX).into(), &own("timeout"));
            }
            if let Ok(file) = &hook.program {
                put("program", file.path.display().to_string().into(), &own("command"));
                if let Some(digest) = file.digest {
                    put("sha256", digest.to_string().into(), &own("command"));
                }
            }
            match hook.event {
                HookEvent::PreToolUse => put("on_failure", spelled(hook.on_failure).into(), &own("on_failure")),
                HookEvent::PermissionRequest => put("may_allow", hook.may_allow.into(), &hook.key),
                HookEvent::PostToolUse => {}
            }
        }
    }
}

/// The word that a configuration file has for a value.
fn spelled(value: impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        other => other.map(|value| value.to_string()).unwrap_or_default(),
    }
}
/// The address as it may be shown: a query may hold a secret.
fn without_query(url: &str) -> String {
    match url.split_once('?') {
        Some((address, _)) => format!("{address}?{HIDDEN}"),
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_not_shown() {
        assert_eq!(without_query("https://a.example/mcp?key=hush&b"), "https://a.example/mcp?<set>");
        assert_eq!(without_query("https://a.example/mcp"), "https://a.example/mcp");
    }
}
