//! The keys of a layer file, as types. `docs/configuration.md` is generated from them.
//!
//! Every struct refuses unknown keys, and every key is optional: unset means that the layer leaves it to others. What
//! later work builds is not here; its sections are refused by name ([`NOT_ENFORCED`]) rather than read and ignored.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::apps::{self, AppsTable};
use super::files::FilesTable;
use super::records::RecordsTable;
use super::requirements::may_require;
use super::requirements_keys::{DelegateTable, RequirementsTable};
use super::reviewer::ReviewerTable;
use super::server_keys::{BAD_TOKEN_LIMIT, bad_token_limit};
use super::telemetry::TelemetryTable;
use crate::model::layer::LayerKind;
use crate::model::media::Modality;
use crate::model::posture::{ApprovalPolicy, Channel, Profile, Reviewer};
use crate::model::role::{MAX_ROLES, Role};

/// Sections of the design that this version does not enforce. A restriction nobody enforces is worse than an error.
pub const NOT_ENFORCED: [&str; 1] = ["granular"];

/// How many tools make clients search where nobody says.
pub const DEFAULT_SEARCH_FROM: u32 = 100;
/// The limit of gateway names where nobody sets one: leaves room for a client's own prefix within 64 (R39).
pub const DEFAULT_NAME_LIMIT: u16 = 46;
/// How long an ask waits where nobody says, in seconds.
pub const DEFAULT_ASK_TIMEOUT: f64 = 600.0;
/// How many calls run at once where nobody says.
pub const DEFAULT_CONCURRENT_CALLS: u32 = 256;

/// The keys outside `[mcp_servers]`, `[plugins]`, `[[policies]]` and `[hooks]`. An unknown key here is a failure to parse the layer (R8).
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// When a person is asked: `untrusted`, `on-request`, `granular` or `never`. Each layer's value is evaluated and the strictest outcome counts (R2). Builtin: `on-request`.
    pub approval_policy: Option<ApprovalPolicy>,
    /// Who answers an ask: `user` or `auto_review`. The most trusted layer that sets it decides. Builtin: `user`.
    pub approvals_reviewer: Option<Reviewer>,
    /// What the agent's surroundings permit: `read-only`, `workspace` or `full`. Side by side like `approval_policy`. Builtin: `workspace`.
    pub permission_profile: Option<Profile>,
    /// Every call also goes to the auto reviewer if any layer says so (R12).
    pub strict_auto_review: Option<bool>,
    /// Calls are refused while the managed file is absent (R8). Not read from projects.
    pub require_managed: Option<bool>,
    /// How many tokens of a tool's text the model view keeps, 1 to 10,000,000. Unset: the model's own limit.
    pub tool_output_token_limit: Option<u32>,
    /// What the model behind takes: `text`, `image`, `audio`. Media of other kinds becomes a text that says so, before anybody else sees the answer. Layers intersect; text is always taken. Builtin: everything.
    pub input_modalities: Option<BTreeSet<Modality>>,
    /// The gateway's names.
    pub gateway: Option<GatewayTable>,
    /// Where questions can be answered besides the session that asks.
    pub approvals: Option<ApprovalsTable>,
    /// Bounds on calls; the smallest value of all layers counts (R2).
    pub limits: Option<LimitsTable>,
    /// Files that calls name, and where they are uploaded to.
    pub files: Option<FilesTable>,
    /// What is recorded of calls, and where.
    pub records: Option<RecordsTable>,
    /// Apps, by connector id; `_default` holds where an app says nothing.
    pub apps: Option<AppsTable>,
    /// An auto reviewer. Those of all layers stand side by side, and all must allow (R1).
    pub reviewer: Option<ReviewerTable>,
    /// Where traces and metrics of calls are sent; said whole by the most trusted layer that has it, never by a project.
    pub telemetry: Option<TelemetryTable>,
    /// What less trusted layers must keep to; only in managed, system and organisation.
    pub requirements: Option<RequirementsTable>,
    /// What is left to less trusted layers; not in projects and session.
    pub delegate: Option<DelegateTable>,
}

/// `[gateway]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GatewayTable {
    /// `namespaced` (`<server>__<tool>`) or `bare` (a namespace only on collision, R39). Builtin: `namespaced`.
    pub names: Option<Names>,
    /// The longest gateway name, 32 to 128 characters. Builtin: 46, so that a client's prefix fits in 64 (R39).
    pub name_limit: Option<u16>,
    /// Whether clients find tools by `search_tools` and call them by `call_tool`, instead of having all of them in the list:
    /// `auto` (from `search_from` tools on), `always` or `never`. Builtin: `auto`.
    pub search: Option<Search>,
    /// From how many tools on `search = "auto"` searches, 1 to 1,000,000. Builtin: 100.
    pub search_from: Option<u32>,
}

/// `[approvals]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApprovalsTable {
    /// Whether questions are also in the queue that `portcullis approvals` answers, until `limits.ask_timeout_sec`. `true`: a call that reaches nobody else waits there as well. Any layer may switch it off; only one whose allows count may switch it on. Builtin: for `serve` on, but a call that reaches nobody ends at once, and a later allow holds for the same call once; for `call` off.
    pub queue: Option<bool>,
    /// Who may answer what this layer asks, of `elicitation` (the client of the session), `terminal` (that of the process which makes the call), `queue` (`portcullis approvals`) and `program` (one that embeds the host). Where several layers ask, only those that all of them name (R20). Unset: everybody.
    pub channels: Option<BTreeSet<Channel>>,
    /// What whoever allows what this layer asks must be: one of these roles. At a terminal and in the queue the groups of the system's user count, or the roles of the approver key (`approvals key set --role`); of the session's client the groups that its authentication vouches for, which a local process has none of. Where several layers ask, one role of each of them that names some (R20). Unset: everybody.
    pub roles: Option<BTreeSet<Role>>,
}

/// When the gateway's tools are found by search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Search {
    /// When there are many of them.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// How the gateway names tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Names {
    /// `<server>__<tool>`.
    #[default]
    Namespaced,
    /// `<tool>`, with a namespace only where two would collide.
    Bare,
}

/// `[limits]`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitsTable {
    /// How long an ask waits for its answer, in seconds, at most 86,400. Builtin: 600.
    pub ask_timeout_sec: Option<f64>,
    /// How many calls may be in flight at once, 1 to 65,536. Builtin: 256.
    pub concurrent_calls: Option<u32>,
}

impl Settings {
    /// Returns what is out of bounds: key and message.
    pub(crate) fn faults(&self) -> Vec<(&'static str, String)> {
        let mut faults = Vec::new();
        if self.tool_output_token_limit.is_some_and(bad_token_limit) {
            faults.push(("tool_output_token_limit", BAD_TOKEN_LIMIT.to_owned()));
        }
        let gateway = self.gateway.as_ref();
        if gateway.and_then(|g| g.name_limit).is_some_and(|n| !(32..=128).contains(&n)) {
            faults.push(("gateway.name_limit", "must lie between 32 and 128".to_owned()));
        }
        if gateway.and_then(|g| g.search_from).is_some_and(|n| !(1..=1_000_000).contains(&n)) {
            faults.push(("gateway.search_from", "must lie between 1 and 1000000".to_owned()));
        }
        if self.approvals.as_ref().and_then(|a| a.channels.as_ref()).is_some_and(BTreeSet::is_empty) {
            let message =
                "names nobody, so that nothing could ever be agreed to; name a channel, or set `approval_policy`";
            faults.push(("approvals.channels", message.to_owned()));
        }
        if let Some(roles) = self.approvals.as_ref().and_then(|a| a.roles.as_ref())
            && !(1..=MAX_ROLES).contains(&roles.len())
        {
            faults.push(("approvals.roles", format!("must name 1 to {MAX_ROLES} roles")));
        }
        let limits = self.limits.clone().unwrap_or_default();
        if let Some(fault) = limits.ask_timeout_sec.and_then(|v| super::server_keys::seconds(v).err()) {
            faults.push(("limits.ask_timeout_sec", fault));
        }
        if limits.concurrent_calls.is_some_and(|n| !(1..=65_536).contains(&n)) {
            faults.push(("limits.concurrent_calls", "must lie between 1 and 65536".to_owned()));
        }
        faults
    }

    /// Returns what is wrong with the sections that not every kind of layer may have: key and message.
    pub(crate) fn section_faults(&self, kind: LayerKind) -> Vec<(String, String)> {
        let below = |section: &'static str| {
            move |(key, message): (String, String)| {
                let key = if key.is_empty() { section.to_owned() } else { format!("{section}.{key}") };
                (key, message)
            }
        };
        let mut faults: Vec<_> = self.apps.iter().flat_map(apps::faults).map(below("apps")).collect();
        faults.extend(self.files.iter().flat_map(|files| files.faults(kind)).map(below("files")));
        faults.extend(self.telemetry.iter().flat_map(|table| table.faults(kind)).map(below("telemetry")));
        faults.extend(self.records.iter().flat_map(|records| records.faults(kind)).map(below("records")));
        match &self.requirements {
            Some(_) if !may_require(kind) => {
                let message = "only the managed, system and organisation layers may have requirements";
                faults.push(("requirements".to_owned(), message.to_owned()));
            }
            Some(requirements) => faults.extend(requirements.faults().into_iter().map(below("requirements"))),
            None => {}
        }
        if self.delegate.is_some() && kind < LayerKind::User {
            let message = "this layer has nothing to leave to others; only user, organisation, system and managed have";
            faults.push(("delegate".to_owned(), message.to_owned()));
        }
        faults
    }
}
