//! The keys of `[mcp_servers.NAME]`, and which of them go together (catalog-dispatch 7.3).
//!
//! A table with `command` or `url` defines a server whole; one without can only disable or tighten (R4).

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::endpoint;
use super::template::{Template, is_variable_name};
use crate::model::exposure::Way;
use crate::model::name::RawToolName;
use crate::model::posture::ApprovalMode;
use crate::model::text::shown;

/// The longest timeout that a layer may set, in seconds.
const MAX_SECONDS: f64 = 86_400.0;
/// The largest message that a layer may allow, in bytes.
const MAX_MESSAGE: u64 = 1024 * 1024 * 1024;

/// `[mcp_servers.NAME]`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerTable {
    /// stdio: the program. A name is looked up on `PATH`; a path is relative to `cwd`.
    pub command: Option<String>,
    /// stdio: its arguments; `${NAME}` is replaced when it starts.
    pub args: Option<Vec<Template>>,
    /// stdio: its environment variables; `${NAME}` is replaced when it starts. Values are never printed.
    pub env: Option<BTreeMap<String, Template>>,
    /// stdio: variables handed on from our environment: names, or `{ name, source = "local" }`.
    pub env_vars: Option<Vec<EnvVar>>,
    /// stdio: its working directory. Relative to the project's folder in a project layer, else to our working directory.
    pub cwd: Option<String>,
    /// stdio: whether `HOME`, `PATH`, `LANG` and the like are handed on as well. Default `true`.
    pub base_environment: Option<bool>,
    /// http: the endpoint.
    pub url: Option<Template>,
    /// http: the variable that holds the bearer token.
    pub bearer_token_env_var: Option<String>,
    /// http: fixed headers. Values are never printed.
    pub http_headers: Option<BTreeMap<String, Template>>,
    /// http: headers whose values are in the named variables.
    pub env_http_headers: Option<BTreeMap<String, String>>,
    /// http: `oauth` (default) or `chatgpt`.
    pub auth: Option<Auth>,
    /// http: the registered client.
    pub oauth: Option<OauthTable>,
    /// http: the resource that a token is asked for.
    pub oauth_resource: Option<String>,
    /// Scopes that a login asks for.
    pub scopes: Option<Vec<String>>,
    /// Where the server runs; only `local`.
    pub environment_id: Option<String>,
    /// Whether the server exists at all. `false` in any layer disables it. Default `true`.
    pub enabled: Option<bool>,
    /// Whether the session fails if the server does not start. Default `false`.
    pub required: Option<bool>,
    /// How long it may take to start, in seconds. Wins over `startup_timeout_ms`. Default 30; the smallest of all layers counts.
    pub startup_timeout_sec: Option<f64>,
    /// The same in milliseconds.
    pub startup_timeout_ms: Option<u64>,
    /// How long a call may take, in seconds; fractions allowed. Default 300; the smallest of all layers counts.
    pub tool_timeout_sec: Option<f64>,
    /// For programs that embed the host: whether its tools may be called side by side in one session although they do not say that they only read. Through `serve` the client puts its calls in order; `concurrency = 1` keeps the calls of all sessions apart. `false` in any layer wins. Default `false`.
    pub supports_parallel_tool_calls: Option<bool>,
    /// The raw names of the only tools that exist. Layers intersect.
    pub enabled_tools: Option<Vec<String>>,
    /// The raw names of tools that do not exist. Layers unite.
    pub disabled_tools: Option<Vec<String>>,
    /// `auto`, `prompt`, `writes` or `approve`. Each layer's value is evaluated and the strictest outcome counts. Default `auto`.
    pub default_tools_approval_mode: Option<ApprovalMode>,
    /// Settings of single tools, by raw name.
    pub tools: Option<BTreeMap<String, ToolTable>>,
    /// Exposures that its tools are left out of: `direct`, `deferred`, `code_mode`. Layers unite.
    pub omit_tools_from: Option<Vec<Way>>,
    /// Whether hints that relax count (R9). `false` in any layer wins. Default `true` where the defining layer may allow.
    pub trust_annotations: Option<bool>,
    /// Whether arguments are checked against the tools' input schemas before anybody is asked. A schema that cannot be bounded checks
    /// nothing, and `tools` says so: one that is too large, refers out of itself or by `$dynamicRef`, or goes round without going into a
    /// value or with `unevaluatedProperties`. `false` counts in the layer that defines the server, `true` in any. Default `true`.
    pub check_arguments: Option<bool>,
    /// Whether its tools may declare file parameters (`_meta["openai/fileParams"]`): a model is asked for paths there, and the files are uploaded as `[files]` says. `true` counts where the defining layer may allow (R3). `false` in any layer wins. Default `false`.
    pub file_parameters: Option<bool>,
    /// Whether what it answers pollutes the memory of a thread, for programs that embed the host and keep one. `false` counts where the defining layer may allow (R3). `true` in any layer wins. Default `true`.
    pub pollutes_memory: Option<bool>,
    /// Which protocol era it is spoken to in: `legacy` (default for stdio), `auto` (default for http) or `modern`.
    pub lifecycle: Option<Lifecycle>,
    /// Who shares one connection: `process` (default), `principal` or `session`. The narrowest of all layers counts.
    pub sharing: Option<Sharing>,
    /// The largest message, in bytes, 1,024 to 1 GiB. Default 64 MiB; the smallest of all layers counts.
    pub message_limit: Option<u64>,
    /// How many calls may be in flight at it, 1 to 65,536. Default 64; the smallest of all layers counts.
    pub concurrency: Option<u32>,
    /// How many tokens of its tools' text the model view keeps, 1 to 10,000,000. The smallest of all layers, of this, the tool's own and the top-level `tool_output_token_limit` counts. Unset: no limit of its own.
    pub output_token_limit: Option<u32>,
    /// What happens when it dies.
    pub restart: Option<RestartTable>,
    /// Ignored; old files have it.
    pub name: Option<String>,
}

/// An inherited variable.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum EnvVar {
    /// Its name.
    Name(String),
    /// Its name and where it is taken from.
    Table(EnvVarTable),
}

/// An inherited variable with its source.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnvVarTable {
    /// The name.
    pub name: String,
    /// `local`; there are no remote environments.
    pub source: Option<String>,
}

impl EnvVar {
    /// Returns the variable's name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Name(name) | Self::Table(EnvVarTable { name, .. }) => name,
        }
    }
}

/// How an HTTP server is authenticated to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Auth {
    /// OAuth, if the server wants it.
    #[default]
    Oauth,
    /// The account of the vendor's own login.
    Chatgpt,
}

/// `[mcp_servers.NAME.oauth]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OauthTable {
    /// The registered client's id.
    pub client_id: Option<String>,
}

/// `[mcp_servers.NAME.tools.TOOL]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolTable {
    /// Overrides `default_tools_approval_mode` within this layer.
    pub approval_mode: Option<ApprovalMode>,
    /// How many tokens of its text the model view keeps, 1 to 10,000,000. The smallest of all layers counts, and of this and the server's.
    pub output_token_limit: Option<u32>,
}

/// The protocol era of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Lifecycle {
    /// Handshake and session.
    #[default]
    Legacy,
    /// Whatever the server speaks.
    Auto,
    /// Stateless.
    Modern,
}

/// Who shares one connection. **The order of the variants runs from wide to narrow.**
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    /// Everybody in this process.
    #[default]
    Process,
    /// The sessions of one principal.
    Principal,
    /// Nobody.
    Session,
}

/// `[mcp_servers.NAME.restart]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RestartTable {
    /// `on-exit` (default) or `never`.
    pub when: Option<RestartWhen>,
    /// The first delay, in milliseconds, 10 to 3,600,000; doubles with each failure. Default 500.
    pub first_delay_ms: Option<u64>,
    /// The longest delay, in milliseconds, at most 3,600,000. Default 30,000.
    pub max_delay_ms: Option<u64>,
    /// How many failures in a row end the attempts, 1 to 1,000. Default 8.
    pub attempts: Option<u32>,
}

/// When a server that died is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RestartWhen {
    /// Whenever it exits, after its delay.
    #[default]
    OnExit,
    /// Not until the configuration changes.
    Never,
}

/// Returns the duration, or why it is none: not positive, not finite, longer than a day.
pub(crate) fn seconds(value: f64) -> Result<Duration, String> {
    if value.is_finite() && value > 0.0 && value <= MAX_SECONDS {
        // Below a millisecond nothing can be waited for; rounding to zero would mean "at once".
        Ok(Duration::from_secs_f64(value).max(Duration::from_millis(1)))
    } else {
        Err(format!("must be more than 0 and at most {MAX_SECONDS} seconds"))
    }
}

/// What is said of a limit of tokens that is none.
pub(super) const BAD_TOKEN_LIMIT: &str = "must lie between 1 and 10000000";

/// Whether a limit of tokens is out of bounds.
pub(super) fn bad_token_limit(limit: u32) -> bool {
    !(1..=10_000_000).contains(&limit)
}

impl ServerTable {
    /// Whether the table defines a server, rather than disabling or tightening one.
    #[must_use]
    pub fn defines(&self) -> bool {
        self.command.is_some() || self.url.is_some()
    }

    /// Returns the keys that only the defining layer may set and that are set (R4).
    #[must_use]
    pub fn defining_keys(&self) -> Vec<&'static str> {
        let both = [
            (self.scopes.is_some(), "scopes"),
            (self.environment_id.is_some(), "environment_id"),
            (self.lifecycle.is_some(), "lifecycle"),
            (self.restart.is_some(), "restart"),
        ];
        let all = self.stdio_keys().into_iter().chain(self.http_keys()).chain(both);
        all.filter_map(|(set, key)| set.then_some(key)).collect()
    }

    fn stdio_keys(&self) -> [(bool, &'static str); 6] {
        [
            (self.command.is_some(), "command"),
            (self.args.is_some(), "args"),
            (self.env.is_some(), "env"),
            (self.env_vars.is_some(), "env_vars"),
            (self.cwd.is_some(), "cwd"),
            (self.base_environment.is_some(), "base_environment"),
        ]
    }

    fn http_keys(&self) -> [(bool, &'static str); 7] {
        [
            (self.url.is_some(), "url"),
            (self.bearer_token_env_var.is_some(), "bearer_token_env_var"),
            (self.http_headers.is_some(), "http_headers"),
            (self.env_http_headers.is_some(), "env_http_headers"),
            (self.auth.is_some(), "auth"),
            (self.oauth.is_some(), "oauth"),
            (self.oauth_resource.is_some(), "oauth_resource"),
        ]
    }

    /// Returns the startup timeout that this table sets: seconds win over milliseconds.
    #[must_use]
    pub fn startup_timeout(&self) -> Option<Duration> {
        let millis = self.startup_timeout_ms.map(Duration::from_millis);
        self.startup_timeout_sec.and_then(|v| seconds(v).ok()).or(millis)
    }

    /// Returns what is wrong with the values or their combination: key below the table, and message.
    pub(crate) fn faults(&self) -> Vec<(String, String)> {
        let mut faults = self.transport_faults();
        let mut fault = |bad: bool, key: &str, message: &str| {
            if bad {
                faults.push((key.to_owned(), message.to_owned()));
            }
        };
        for (key, value) in
            [("startup_timeout_sec", self.startup_timeout_sec), ("tool_timeout_sec", self.tool_timeout_sec)]
        {
            let message = value.and_then(|v| seconds(v).err());
            fault(message.is_some(), key, &message.unwrap_or_default());
        }
        let beyond_day = |ms: u64| ms == 0 || ms > 86_400_000;
        fault(
            self.startup_timeout_ms.is_some_and(beyond_day),
            "startup_timeout_ms",
            "must be more than 0 and at most 86400000 milliseconds",
        );
        fault(
            self.message_limit.is_some_and(|n| !(1024..=MAX_MESSAGE).contains(&n)),
            "message_limit",
            "must lie between 1024 and 1073741824",
        );
        fault(
            self.concurrency.is_some_and(|n| !(1..=65_536).contains(&n)),
            "concurrency",
            "must lie between 1 and 65536",
        );
        fault(self.output_token_limit.is_some_and(bad_token_limit), "output_token_limit", BAD_TOKEN_LIMIT);
        let restart = self.restart.clone().unwrap_or_default();
        let bad_delay = |ms: u64| !(10..=3_600_000).contains(&ms);
        fault(
            restart.first_delay_ms.is_some_and(bad_delay),
            "restart.first_delay_ms",
            "must lie between 10 and 3600000",
        );
        fault(restart.max_delay_ms.is_some_and(bad_delay), "restart.max_delay_ms", "must lie between 10 and 3600000");
        fault(
            restart.attempts.is_some_and(|n| !(1..=1000).contains(&n)),
            "restart.attempts",
            "must lie between 1 and 1000",
        );
        let remote = self.environment_id.as_deref().is_some_and(|id| id != "local");
        fault(remote, "environment_id", "this version knows `local` only");
        faults.extend(self.name_faults());
        faults.extend(endpoint::faults(self));
        faults
    }

    fn transport_faults(&self) -> Vec<(String, String)> {
        let refuse = |keys: &[(bool, &'static str)], transport: &str| {
            let set = keys.iter().filter(|(set, _)| *set);
            set.map(|(_, key)| ((*key).to_owned(), format!("{key} is not supported for {transport}"))).collect()
        };
        let mut faults: Vec<_> = match (&self.command, &self.url) {
            (Some(_), _) => refuse(&self.http_keys(), "stdio"),
            (None, Some(_)) => refuse(&self.stdio_keys(), "http"),
            (None, None) => Vec::new(),
        };
        if self.command.as_deref().is_some_and(|command| command.is_empty() || command.contains('\0')) {
            faults.push(("command".to_owned(), "is empty or has a NUL character".to_owned()));
        }
        faults
    }

    fn name_faults(&self) -> Vec<(String, String)> {
        let mut faults = Vec::new();
        let not_variable =
            |key: &str, name: &str| (key.to_owned(), format!("`{}` is no variable name", shown(name, 64)));
        for name in self.env.iter().flatten().map(|(name, _)| name).filter(|name| !is_variable_name(name)) {
            faults.push(not_variable("env", name));
        }
        for variable in self.env_vars.iter().flatten() {
            if !is_variable_name(variable.name()) {
                faults.push(not_variable("env_vars", variable.name()));
            }
            if let EnvVar::Table(EnvVarTable { source: Some(source), .. }) = variable
                && source != "local"
            {
                faults.push(("env_vars".to_owned(), "this version has no source but `local`".to_owned()));
            }
        }
        let tokens = self.bearer_token_env_var.iter().map(|name| ("bearer_token_env_var", name));
        let headers = self.env_http_headers.iter().flatten().map(|(_, name)| ("env_http_headers", name));
        for (key, name) in tokens.chain(headers).filter(|(_, name)| !is_variable_name(name)) {
            faults.push(not_variable(key, name));
        }
        let listed = |key: &'static str, names: &Option<Vec<String>>| {
            let names = names.iter().flatten();
            names
                .filter_map(move |name| RawToolName::parse(name).err().map(|e| (key.to_owned(), e.to_string())))
                .collect::<Vec<_>>()
        };
        faults.extend(listed("enabled_tools", &self.enabled_tools));
        faults.extend(listed("disabled_tools", &self.disabled_tools));
        for (name, tool) in self.tools.iter().flatten() {
            if let Err(error) = RawToolName::parse(name) {
                faults.push(("tools".to_owned(), error.to_string()));
            }
            if tool.output_token_limit.is_some_and(bad_token_limit) {
                faults.push((format!("tools.{name}.output_token_limit"), BAD_TOKEN_LIMIT.to_owned()));
            }
        }
        faults
    }
}
