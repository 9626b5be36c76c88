//! The keys of `[requirements]` and `[delegate]`: what a layer demands of less trusted ones, and what it leaves to them.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::apps::is_app_key;
use super::identity::{is_runner, parsed_url};
use super::plugins::is_id;
use super::signature::PublicKey;
use crate::model::digest::Digest;
use crate::model::layer::LayerKind;
use crate::model::name::ServerName;
use crate::model::posture::{ApprovalMode, ApprovalPolicy, Profile, Reviewer};
use crate::model::text::shown;
use crate::model::verdict::OnFailure;

/// The most entries of one list or table of requirements.
const MAX_ENTRIES: usize = 4096;
/// The longest regex, in bytes.
const MAX_REGEX: usize = 1024;
/// How large a compiled regex may be, in bytes.
const MAX_COMPILED: usize = 1024 * 1024;

/// `[requirements]`: only in managed, system and organisation. Each restricts the layers that are less trusted than its
/// own; of several, every one must be met. An unknown key here fails the layer (R8).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequirementsTable {
    /// `false`: layers of projects are not read at all. The user's own file that lies in a project still restricts.
    pub projects: Option<bool>,
    /// The only layers whose allows may count: `managed`, `system`, `organisation`, `user`, `session`, `project`. Gives nobody the right.
    pub may_allow: Option<BTreeSet<LayerName>>,
    /// The only approval policies that may be chosen. Any other choice counts as `untrusted`: a person is asked.
    pub approval_policies: Option<BTreeSet<PolicyName>>,
    /// The only approval modes that may be chosen. Any other choice counts as `prompt`.
    pub approval_modes: Option<BTreeSet<ModeName>>,
    /// Who may be chosen to answer asks, of `user` and `auto_review`. `["user"]`: no auto reviewer stands in for a person; any other choice counts as `user`. `["auto_review"]`: every ask that names nobody is for the auto reviewer; any other choice is void.
    pub approvals_reviewers: Option<BTreeSet<ReviewerName>>,
    /// The only permission profiles that may be chosen. Any other choice counts as `read-only`.
    pub permission_profiles: Option<BTreeSet<ProfileName>>,
    /// `false`: hooks are not run. They stay in their places, so that each counts as one that failed (R1).
    pub hooks: Option<bool>,
    /// `false`: auto reviewers (`[reviewer]`) are not asked. They stay in their places, so that each counts as one that failed and allows nothing (R1).
    pub reviewers: Option<bool>,
    /// `deny`: a component's failure is never an ask, and no call goes on without a hook that failed.
    pub on_failure: Option<OnFailure>,
    /// The most that components may use.
    pub limits: Option<MostTable>,
    /// The only servers that may exist, each by its name and what it is. An empty list: none, not of plugins either.
    pub servers: Option<Vec<ServerRequirement>>,
    /// Plugins that are switched off, and the only servers that plugins may bring, by the plugin's id. Once any plugin has `servers`
    /// here, a server of a plugin exists only if it is listed for its plugin; else `requirements.servers` counts for it as well.
    pub plugins: Option<BTreeMap<String, PluginRequirement>>,
    /// The only components that may be loaded.
    pub components: Option<ComponentsTable>,
    /// Apps that are switched off, and the approval modes of their tools, by connector id.
    pub apps: Option<BTreeMap<String, AppRequirement>>,
}

/// `[requirements.limits]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MostTable {
    /// The longest evaluation, in milliseconds, 1 to 1,000.
    pub time_ms: Option<u32>,
    /// The most memory, in MiB, 1 to 64.
    pub memory_mib: Option<u32>,
}

/// `[requirements.plugins.ID]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PluginRequirement {
    /// `false` switches the plugin off for good; `true` switches nothing on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// The only servers that the plugin may bring. An empty list: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub servers: Option<Vec<ServerRequirement>>,
}

/// A server that may exist: exactly one of `command`, `command_regex`, `executable`, `url`, `url_prefix`, `url_regex`. What a
/// variable (`${NAME}`) is part of is never met: it is known only when the server starts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerRequirement {
    /// The server's name. Default: any name; then what the server is counts alone.
    pub name: Option<String>,
    /// The program and all arguments. The program by its whole path, or as it is written in the server's table.
    pub command: Option<Vec<String>>,
    /// A regex for the program as written and all arguments, joined by single spaces; anchored at both ends.
    pub command_regex: Option<String>,
    /// The program, by its whole path or as it is written in the server's table. Its arguments are those of `args`.
    pub executable: Option<String>,
    /// What each argument must be, in the same order and number. Default: no arguments. Only with `executable`.
    pub args: Option<Vec<ArgumentMatcher>>,
    /// The whole URL.
    pub url: Option<String>,
    /// The URL or what lies below it: the prefix ends at the border of the host or of a path segment.
    pub url_prefix: Option<String>,
    /// A regex for the whole URL, without a query; anchored at both ends.
    pub url_regex: Option<String>,
    /// The only variables that its `env` and `env_vars` may name: some decide what a program runs. Default: none.
    pub env: Option<BTreeSet<String>>,
    /// The working directory, absolute. Default: any; name it where an argument is a relative path.
    pub cwd: Option<String>,
}

/// One argument: exactly one of `exact`, `prefix`, `regex`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArgumentMatcher {
    /// The whole argument.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exact: Option<String>,
    /// The argument, or a path that it begins: the prefix ends at a `/`, and no part after it is `..`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// A regex for the whole argument; anchored at both ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regex: Option<String>,
}

/// `[requirements.components]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ComponentsTable {
    /// The SHA-256 of every component that may be loaded.
    pub sha256: Option<BTreeSet<String>>,
    /// Who may sign components: a name, and the Ed25519 public key in base64 as `policy sign` prints it.
    pub signers: Option<BTreeMap<String, String>>,
    /// `true`: a component needs a signature of one of `signers`, in the file beside it with `.sig` appended.
    pub require_signature: Option<bool>,
}

/// `[requirements.apps.ID]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AppRequirement {
    /// `false` switches the app off for good; `true` switches nothing on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Tools, by raw name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tools: BTreeMap<String, AppToolRequirement>,
}

/// `[requirements.apps.ID.tools.TOOL]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AppToolRequirement {
    /// The tool's approval mode. Of two different ones `approve` gives way, and else `prompt` counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval_mode: Option<ApprovalMode>,
}

/// `[delegate]`: what this layer leaves to a less trusted one, by name (R2, R3). Not in projects and session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DelegateTable {
    /// Less trusted layers that get the right to allow. Only `session`: a project gets it from `portcullis trust` alone.
    pub may_allow: Option<BTreeSet<AllowName>>,
    /// Keys, each with the layers whose value replaces this layer's own, if they may allow and set it. What any third layer says stands.
    pub keys: Option<BTreeMap<DelegableKey, BTreeSet<LayerName>>>,
}

/// Who can be given the right to allow in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AllowName {
    /// Flags, `--config` and the embedder.
    Session,
}

/// A key that can be left to a less trusted layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
pub enum DelegableKey {
    /// `approval_policy`.
    #[serde(rename = "approval_policy")]
    ApprovalPolicy,
    /// `permission_profile`.
    #[serde(rename = "permission_profile")]
    PermissionProfile,
    /// `limits.ask_timeout_sec`.
    #[serde(rename = "limits.ask_timeout_sec")]
    AskTimeout,
    /// `limits.concurrent_calls`.
    #[serde(rename = "limits.concurrent_calls")]
    ConcurrentCalls,
}

/// Gives a type of the model the order and the words that a set in a file needs.
macro_rules! named {
    ($(#[$doc:meta])* $name:ident: $of:ty { $($variant:ident $word:literal => $value:expr),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
        pub enum $name {
            $(#[doc = concat!("`", $word, "`.")] #[serde(rename = $word)] $variant),+
        }

        impl $name {
            /// Returns what the name stands for.
            #[must_use]
            pub fn value(self) -> $of {
                match self { $(Self::$variant => $value),+ }
            }

            /// Returns the word in the file.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }
    };
}

named! {
    /// A kind of layer, by name.
    LayerName: LayerKind {
        Managed "managed" => LayerKind::Managed, System "system" => LayerKind::System,
        Organisation "organisation" => LayerKind::Organisation, User "user" => LayerKind::User,
        Session "session" => LayerKind::Session, Project "project" => LayerKind::Project,
    }
}
named! {
    /// An approval policy, by name.
    PolicyName: ApprovalPolicy {
        Untrusted "untrusted" => ApprovalPolicy::Untrusted, OnRequest "on-request" => ApprovalPolicy::OnRequest,
        Granular "granular" => ApprovalPolicy::Granular, Never "never" => ApprovalPolicy::Never,
    }
}
named! {
    /// An approval mode, by name.
    ModeName: ApprovalMode {
        Approve "approve" => ApprovalMode::Approve, Auto "auto" => ApprovalMode::Auto,
        Writes "writes" => ApprovalMode::Writes, Prompt "prompt" => ApprovalMode::Prompt,
    }
}
named! {
    /// Who answers asks, by name.
    ReviewerName: Reviewer {
        User "user" => Reviewer::User, AutoReview "auto_review" => Reviewer::AutoReview,
    }
}
named! {
    /// A permission profile, by name.
    ProfileName: Profile {
        ReadOnly "read-only" => Profile::ReadOnly, Workspace "workspace" => Profile::Workspace, Full "full" => Profile::Full,
    }
}

/// Compiles a regex of a requirement, anchored at both ends.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn anchored(pattern: &str) -> Result<regex::Regex, String> {
    if pattern.len() > MAX_REGEX {
        return Err(format!("has more than {MAX_REGEX} bytes"));
    }
    // The pattern must be one by itself: `a)|(b` would climb over the anchors.
    regex::Regex::new(pattern).map_err(|error| shown(&error.to_string(), 200))?;
    regex::RegexBuilder::new(&format!(r"\A(?:{pattern})\z"))
        .size_limit(MAX_COMPILED)
        .build()
        .map_err(|error| shown(&error.to_string(), 200))
}

impl RequirementsTable {
    /// Returns what is wrong with the values: key below the section, and message.
    pub(crate) fn faults(&self) -> Vec<(String, String)> {
        let mut faults = Vec::new();
        let limits = self.limits.unwrap_or_default();
        if limits.time_ms.is_some_and(|n| !(1..=1_000).contains(&n)) {
            faults.push(("limits.time_ms".to_owned(), "must lie between 1 and 1000".to_owned()));
        }
        if limits.memory_mib.is_some_and(|n| !(1..=64).contains(&n)) {
            faults.push(("limits.memory_mib".to_owned(), "must lie between 1 and 64".to_owned()));
        }
        if self.approvals_reviewers.as_ref().is_some_and(BTreeSet::is_empty) {
            faults.push(("approvals_reviewers".to_owned(), "names nobody; name `user` or `auto_review`".to_owned()));
        }
        for (index, server) in self.servers.iter().flatten().enumerate().take(MAX_ENTRIES) {
            faults.extend(server.fault().map(|fault| (format!("servers[{index}]"), fault)));
        }
        for (id, plugin) in self.plugins.iter().flatten() {
            let path = super::parse::join("plugins", id);
            if !is_id(id) {
                let message = "an id has 1 to 128 characters, none of them a control character";
                faults.push((path.clone(), message.to_owned()));
            }
            for (index, server) in plugin.servers.iter().flatten().enumerate().take(MAX_ENTRIES) {
                faults.extend(server.fault().map(|fault| (format!("{path}.servers[{index}]"), fault)));
            }
        }
        for (id, app) in self.apps.iter().flatten() {
            if !is_app_key(id) || id == "_default" || !app.tools.keys().all(|tool| is_app_key(tool)) {
                let message = "needs ids and names of 1 to 256 characters, and `_default` is none";
                faults.push((super::parse::join("apps", id), message.to_owned()));
            }
        }
        let large = [
            ("servers", self.servers.as_ref().map_or(0, Vec::len)),
            ("apps", self.apps.as_ref().map_or(0, BTreeMap::len)),
            ("plugins", self.plugins.as_ref().map_or(0, BTreeMap::len)),
            ("plugins", self.plugins.iter().flatten().filter_map(|(_, own)| Some(own.servers.as_ref()?.len())).sum()),
        ];
        for (key, _) in large.iter().filter(|(_, count)| *count > MAX_ENTRIES) {
            faults.push(((*key).to_owned(), format!("has more than {MAX_ENTRIES} entries")));
        }
        if let Some(components) = &self.components {
            faults.extend(components.faults().into_iter().map(|(key, fault)| (format!("components.{key}"), fault)));
        }
        faults
    }
}

impl ComponentsTable {
    fn faults(&self) -> Vec<(&'static str, String)> {
        let mut faults = Vec::new();
        let bad = self.sha256.iter().flatten().find_map(|text| Digest::parse(text).err());
        faults.extend(bad.map(|error| ("sha256", error.to_string())));
        for (name, key) in self.signers.iter().flatten() {
            if let Err(error) = PublicKey::parse(key) {
                faults.push(("signers", format!("`{}`: {error}", shown(name, 64))));
            }
        }
        let counts = [self.sha256.as_ref().map_or(0, BTreeSet::len), self.signers.as_ref().map_or(0, BTreeMap::len)];
        if counts.iter().any(|count| *count > MAX_ENTRIES) {
            faults.push(("sha256", format!("there are more than {MAX_ENTRIES} digests or signers")));
        }
        if self.require_signature == Some(true) && self.signers.as_ref().is_none_or(BTreeMap::is_empty) {
            faults.push(("require_signature", "needs `signers`: whose signature else?".to_owned()));
        }
        if self.require_signature != Some(true) && self.signers.is_some() {
            faults.push(("signers", "has no effect without `require_signature = true`".to_owned()));
        }
        faults
    }
}

impl ServerRequirement {
    fn fault(&self) -> Option<String> {
        if let Some(Err(error)) = self.name.as_deref().map(ServerName::parse) {
            return Some(error.to_string());
        }
        // A list may be long; the name finds the entry.
        let of = |fault| match &self.name {
            Some(name) => format!("of the server `{name}`: {fault}"),
            None => fault,
        };
        self.identity_fault().map(of)
    }

    fn identity_fault(&self) -> Option<String> {
        let texts = [&self.command_regex, &self.executable, &self.url, &self.url_prefix, &self.url_regex];
        if texts.iter().filter(|text| text.is_some()).count() + usize::from(self.command.is_some()) != 1 {
            return Some(
                "needs exactly one of command, command_regex, executable, url, url_prefix, url_regex".to_owned(),
            );
        }
        if self.cwd.as_ref().is_some_and(|cwd| !cwd.starts_with('/')) {
            return Some("`cwd` must be absolute".to_owned());
        }
        let by_url = self.url.is_some() || self.url_prefix.is_some() || self.url_regex.is_some();
        if by_url && (self.env.is_some() || self.cwd.is_some()) {
            return Some("`env` and `cwd` are those of a command".to_owned());
        }
        if self.args.is_some() && self.executable.is_none() {
            return Some("`args` are those of an `executable`".to_owned());
        }
        if let Some(fault) = self.args.iter().flatten().find_map(ArgumentMatcher::fault) {
            return Some(fault);
        }
        if let Some(command) = &self.command {
            let program = command.first().map(String::as_str).unwrap_or_default();
            let names_nothing = command.iter().skip(1).all(|arg| arg.starts_with('-'));
            if let Some(fault) = self.program_fault("command", program, names_nothing) {
                return Some(fault);
            }
        }
        if let Some(program) = &self.executable {
            let flag = |arg: &ArgumentMatcher| arg.exact.as_ref().is_some_and(|arg| arg.starts_with('-'));
            let names_nothing = self.args.iter().flatten().all(flag);
            if let Some(fault) = self.program_fault("executable", program, names_nothing) {
                return Some(fault);
            }
        }
        if let Some(url) = self.url.iter().chain(&self.url_prefix).find(|url| parsed_url(url).is_none()) {
            return Some(format!("`{}` is no URL", shown(url, 200)));
        }
        if self.url_prefix.as_ref().is_some_and(|url| url.contains(['?', '#'])) {
            return Some("`url_prefix` ends at a path: it can have no query".to_owned());
        }
        let regex = self.command_regex.iter().chain(&self.url_regex).find_map(|regex| anchored(regex).err());
        regex.map(|error| format!("the regex is none: {error}"))
    }

    fn program_fault(&self, key: &str, program: &str, names_nothing: bool) -> Option<String> {
        if program.is_empty() {
            return Some(format!("`{key}` needs a program"));
        }
        if program.contains('/') && !program.starts_with('/') && self.cwd.is_none() {
            return Some("a program by a relative path needs `cwd`".to_owned());
        }
        let name = program.rsplit('/').next().unwrap_or_default();
        (is_runner(name) && names_nothing)
            .then(|| format!("`{name}` alone is no identity: it runs what its arguments name (R5)"))
    }
}

impl ArgumentMatcher {
    fn fault(&self) -> Option<String> {
        let texts = [&self.exact, &self.prefix, &self.regex];
        if texts.iter().filter(|text| text.is_some()).count() != 1 {
            return Some("each of `args` needs exactly one of exact, prefix, regex".to_owned());
        }
        if self.prefix.as_ref().is_some_and(|prefix| prefix.trim_end_matches('/').is_empty()) {
            return Some("a prefix of an argument needs a text before its last `/`".to_owned());
        }
        let error = self.regex.as_deref().and_then(|regex| anchored(regex).err());
        error.map(|error| format!("the regex is none: {error}"))
    }

    /// Whether an argument is what is wanted.
    pub(crate) fn is_met_by(&self, arg: &str) -> bool {
        let below = |prefix: &str| {
            let rest = arg.strip_prefix(prefix.trim_end_matches('/'));
            rest.is_some_and(|rest| {
                rest.is_empty() || rest.starts_with('/') && !rest.split('/').any(|part| part == "..")
            })
        };
        self.exact.as_deref().is_some_and(|exact| exact == arg)
            || self.prefix.as_deref().is_some_and(below)
            || self.regex.as_deref().and_then(|regex| anchored(regex).ok()).is_some_and(|regex| regex.is_match(arg))
    }
}
