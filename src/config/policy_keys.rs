//! The keys of `[[policies]]`, one component of one layer.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::builtin::Builtin;
use crate::model::digest::Digest;
use crate::model::text::shown;
use crate::model::verdict::OnFailure;

/// The longest name of a policy.
const MAX_NAME: usize = 64;
/// The most patterns in one list of a match.
const MAX_PATTERNS: usize = 1024;
/// The longest pattern, in bytes.
const MAX_PATTERN: usize = 1024;

/// One entry of `[[policies]]`.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyTable {
    /// The policy's name, unique in its layer: letters, digits, `_`, `-`, `.`; at most 64.
    pub name: String,
    /// The component's file, relative to the folder of this file and inside it; or `builtin:sanitise-secrets`, which comes with
    /// the program.
    pub component: String,
    /// The SHA-256 of the component, 64 hex digits. Required in managed and organisation, but for what comes with the
    /// program.
    pub sha256: Option<String>,
    /// Which calls the component is asked about. Default: all.
    #[serde(rename = "match")]
    pub matches: Option<MatchTable>,
    /// `enforce` (default), or `observe`: evaluated and recorded, never applied (R16).
    pub mode: Option<Mode>,
    /// What a failure of the component means: `deny` (default) or `ask`.
    pub on_failure: Option<OnFailure>,
    /// The component's bounds.
    pub limits: Option<PolicyLimitsTable>,
    /// A folder that the component may read, relative to the folder of this file and inside it.
    pub data: Option<String>,
    /// Handed to the component as JSON.
    #[schemars(with = "Option<std::collections::BTreeMap<String, serde_json::Value>>")]
    pub settings: Option<toml::Table>,
}

/// `match` of a policy. Lists hold globs (`*`, `?`, `[a-z]`, `{a,b}`); an absent list means everything.
///
/// `servers` and `identities` widen each other; `tools` and `kinds` narrow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MatchTable {
    /// Servers by name. In managed and organisation this covers every server that is the same program or URL under another name (R5).
    pub servers: Option<Vec<String>>,
    /// Tools by raw name.
    pub tools: Option<Vec<String>>,
    /// What is called: `tool`, `read`, `prompt`, `completion`, `reply`.
    pub kinds: Option<Vec<KindName>>,
    /// Servers by what they are, whatever they are called.
    pub identities: Option<Vec<IdentityTable>>,
}

/// A server by what it is: an executable with a script, or a URL.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IdentityTable {
    /// The program: its file name, or its whole path.
    pub executable: Option<String>,
    /// An argument: a script's path or a package, its version left out.
    pub script: Option<String>,
    /// A URL; covers everything below it (a prefix that ends at a segment border).
    pub url: Option<String>,
}

/// What a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KindName {
    /// A tool call.
    Tool,
    /// A resource read.
    Read,
    /// A prompt.
    Prompt,
    /// An argument completion.
    Completion,
    /// A reply to an upstream's question.
    Reply,
}

/// Whether a component's verdicts are applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Applied.
    #[default]
    Enforce,
    /// Recorded only.
    Observe,
}

/// `limits` of a policy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyLimitsTable {
    /// Time for one evaluation, in milliseconds, 1 to 1,000.
    pub time_ms: Option<u32>,
    /// Memory, in MiB, 1 to 64.
    pub memory_mib: Option<u32>,
    /// `standard` (default) or `script`, for an interpreter with its script (R41).
    pub class: Option<LimitsClass>,
}

/// A set of bounds (R41).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LimitsClass {
    /// For compiled policies.
    #[default]
    Standard,
    /// For an interpreter with its script.
    Script,
}

impl PolicyTable {
    /// Returns what is wrong with the values: key below the entry, and message.
    pub(crate) fn faults(&self, digest_required: bool) -> Vec<(String, String)> {
        let mut faults = Vec::new();
        let mut fault = |key: &str, message: String| faults.push((key.to_owned(), message));
        if !is_policy_name(&self.name) {
            fault("name", format!("`{}` must have 1 to {MAX_NAME} of a-z A-Z 0-9 _ - .", shown(&self.name, 64)));
        }
        let builtin = Builtin::named(&self.component).is_some();
        if let Some(message) = Builtin::fault(&self.component) {
            fault("component", message);
        }
        if builtin && self.data.is_some() {
            fault("data", "is nothing that a component of this program reads".to_owned());
        }
        for (key, path) in [("component", Some(&self.component)), ("data", self.data.as_ref())] {
            if let Some(message) = path.and_then(|path| path_fault(path)) {
                fault(key, message);
            }
        }
        match &self.sha256 {
            None if digest_required && !builtin => {
                fault("sha256", "is required in this layer; without it the file could be replaced".to_owned());
            }
            None => {}
            Some(text) => {
                if let Err(error) = Digest::parse(text) {
                    fault("sha256", error.to_string());
                }
            }
        }
        let limits = self.limits.unwrap_or_default();
        if limits.time_ms.is_some_and(|n| !(1..=1_000).contains(&n)) {
            fault("limits.time_ms", "must lie between 1 and 1000".to_owned());
        }
        if limits.memory_mib.is_some_and(|n| !(1..=64).contains(&n)) {
            fault("limits.memory_mib", "must lie between 1 and 64".to_owned());
        }
        if let Some(message) = self.settings.as_ref().and_then(|table| to_json(table).err()) {
            fault("settings", message);
        }
        faults
    }
}

impl MatchTable {
    /// Returns what is wrong with the match: key below it, and message.
    pub(crate) fn faults(&self) -> Vec<(String, String)> {
        let mut faults = Vec::new();
        for (key, patterns) in [("servers", &self.servers), ("tools", &self.tools)] {
            let patterns = patterns.as_deref().unwrap_or_default();
            if patterns.len() > MAX_PATTERNS {
                faults.push((key.to_owned(), format!("has more than {MAX_PATTERNS} patterns")));
            }
            for pattern in patterns.iter().take(MAX_PATTERNS) {
                if pattern.len() > MAX_PATTERN {
                    faults.push((key.to_owned(), format!("has a pattern of more than {MAX_PATTERN} bytes")));
                } else if let Err(error) = globset::Glob::new(pattern) {
                    faults.push((key.to_owned(), error.to_string()));
                }
            }
        }
        for identity in self.identities.iter().flatten() {
            let launch = identity.executable.is_some() || identity.script.is_some();
            if launch == identity.url.is_some() {
                let message = "each needs `executable`, `script` or both, or else `url`";
                faults.push(("identities".to_owned(), message.to_owned()));
            }
        }
        faults
    }
}

/// Whether a text is a policy's name.
pub(crate) fn is_policy_name(text: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    !text.is_empty() && text.len() <= MAX_NAME && text.chars().all(legal)
}

/// A path stays below its layer's folder by its spelling alone; links are the directory capability's matter.
fn path_fault(path: &str) -> Option<String> {
    use std::path::{Component, Path};
    let fine = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    let inside = !path.is_empty() && !path.contains('\0') && Path::new(path).components().all(fine);
    (!inside).then(|| format!("`{}` must be a relative path without `..`", shown(path, 200)))
}

/// Converts settings to JSON; dates become texts.
///
/// # Errors
/// A message about a number that JSON does not have.
pub(crate) fn to_json(table: &toml::Table) -> Result<serde_json::Value, String> {
    let members = table.iter().map(|(key, value)| Ok((key.clone(), value_to_json(value)?)));
    members.collect::<Result<_, String>>().map(serde_json::Value::Object)
}

fn value_to_json(value: &toml::Value) -> Result<serde_json::Value, String> {
    use serde_json::Value as Json;
    Ok(match value {
        toml::Value::String(text) => Json::from(text.as_str()),
        toml::Value::Integer(number) => Json::from(*number),
        toml::Value::Float(number) => serde_json::Number::from_f64(*number)
            .map(Json::Number)
            .ok_or_else(|| "JSON has neither infinity nor NaN".to_owned())?,
        toml::Value::Boolean(flag) => Json::from(*flag),
        toml::Value::Datetime(date) => Json::from(date.to_string()),
        toml::Value::Array(items) => Json::Array(items.iter().map(value_to_json).collect::<Result<_, _>>()?),
        toml::Value::Table(table) => to_json(table)?,
    })
}
