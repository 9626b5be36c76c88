//! `[apps]`: what a layer says about Apps, and the settings that the component `connector-baseline` gets for it.
//!
//! Source: approval-results 2.1 with the deviations of design page 3 and R13. Layers never merge here: the component is asked
//! once for each layer, enabled joins by AND and modes by outcome. A table that cannot be read is a failure of its layer.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::requirements_keys::{AppRequirement, RequirementsTable};
use super::stack::Layer;
use crate::model::layer::LayerRef;
use crate::model::posture::{ApprovalMode, Reviewer};

/// The table that holds for Apps without one of their own, and for what none of their keys says.
const DEFAULT: &str = "_default";
/// The most apps, and the most tools of one.
const MAX_ENTRIES: usize = 4096;

/// `[apps]`, by connector id; `_default` holds where an app says nothing.
pub type AppsTable = BTreeMap<String, AppTable>;

/// `[apps.ID]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AppTable {
    /// Whether the app exists. An app that `_default` switches off needs `true` here to exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Whether its tools that may destroy exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destructive_enabled: Option<bool>,
    /// Whether its tools that reach beyond the app exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_world_enabled: Option<bool>,
    /// Whether tools without an entry exist, whatever their hints. Not in `_default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_tools_enabled: Option<bool>,
    /// How its tools are approved: `auto`, `prompt`, `writes` or `approve`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_tools_approval_mode: Option<ApprovalMode>,
    /// Who answers its asks: `user` or `auto_review`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approvals_reviewer: Option<Reviewer>,
    /// Single tools, by raw name or title. Not in `_default`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tools: BTreeMap<String, AppToolTable>,
}

/// `[apps.ID.tools.TOOL]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AppToolTable {
    /// Whether the tool exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// How it is approved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval_mode: Option<ApprovalMode>,
}

/// What one layer says about Apps, as the component `connector-baseline` takes it.
#[derive(Debug, Clone, PartialEq)]
pub struct AppSettings {
    /// The layer.
    pub layer: LayerRef,
    /// Whether a mode of it may loosen the built-in one (R3).
    pub may_allow: bool,
    /// `{"apps": the layer's table, "managed": the requirements of that layer and of more trusted ones}`.
    pub settings: Value,
}

/// Returns who answers the asks of single Apps, by id, `_default` included.
pub(crate) fn reviewers(apps: Option<&AppsTable>) -> BTreeMap<String, Reviewer> {
    let tables = apps.into_iter().flat_map(|apps| apps.iter());
    tables.filter_map(|(name, table)| Some((name.clone(), table.approvals_reviewer?))).collect()
}

/// Whether a text can be an app's id or a tool's name.
pub(crate) fn is_app_key(text: &str) -> bool {
    (1..=256).contains(&text.chars().count())
}

/// Returns what is wrong with the values: key below `apps`, and message.
pub(crate) fn faults(apps: &AppsTable) -> Vec<(String, String)> {
    let mut faults = Vec::new();
    if apps.len() > MAX_ENTRIES || apps.values().any(|app| app.tools.len() > MAX_ENTRIES) {
        faults.push((String::new(), format!("has more than {MAX_ENTRIES} apps, or tools of one")));
    }
    for (id, app) in apps {
        let key = super::parse::join("", id);
        if !is_app_key(id) || !app.tools.keys().all(|tool| is_app_key(tool)) {
            faults.push((key, "needs ids and names of 1 to 256 characters".to_owned()));
        } else if id == DEFAULT && (app.default_tools_enabled.is_some() || !app.tools.is_empty()) {
            faults.push((key, "has neither `default_tools_enabled` nor `tools`: those are an app's own".to_owned()));
        }
    }
    faults
}

/// Returns what `connector-baseline` is set to for each layer that says something, most trusted layer first:
/// `{"apps": …, "managed": …}`. `apps` is the layer's own table with the keys of the file; `managed` is
/// `{ID: {"enabled"?: bool, "tools"?: {TOOL: {"approval_mode"?: MODE}}}}`, joined over the requirements of that layer and of
/// every more trusted one: `enabled = false` is sticky.
pub(crate) fn settings(layers: &[Layer]) -> Vec<AppSettings> {
    let required = |layer: &Layer| layer.file.settings.requirements.as_ref().and_then(|r| r.apps.clone());
    let speaks = |layer: &&Layer| layer.file.settings.apps.is_some() || required(layer).is_some();
    let mut speaking: Vec<&Layer> = layers.iter().rev().filter(speaks).collect();
    speaking.sort_by_key(|layer| std::cmp::Reverse(layer.reference.kind()));
    let one = |layer: &Layer| {
        let above = layers.iter().filter(|other| other.reference.kind() >= layer.reference.kind());
        let mut managed = BTreeMap::new();
        above.filter_map(|other| other.file.settings.requirements.as_ref()).for_each(|r| join(&mut managed, r));
        let own = layer.file.settings.apps.clone().unwrap_or_default();
        let settings = json!({ "apps": own, "managed": managed });
        AppSettings { layer: layer.reference.clone(), may_allow: layer.may_allow, settings }
    };
    speaking.into_iter().map(one).collect()
}

fn join(managed: &mut BTreeMap<String, AppRequirement>, requirements: &RequirementsTable) {
    for (id, app) in requirements.apps.iter().flatten() {
        let joined = managed.entry(id.clone()).or_default();
        joined.enabled = match (joined.enabled, app.enabled) {
            (Some(false), _) | (_, Some(false)) => Some(false),
            (one, other) => one.or(other),
        };
        for (tool, own) in &app.tools {
            let mode = &mut joined.tools.entry(tool.clone()).or_default().approval_mode;
            *mode = match (*mode, own.approval_mode) {
                (Some(one), Some(other)) => Some(strictest(one, other)),
                (one, other) => one.or(other),
            };
        }
    }
}

/// The least strict mode that asks wherever one of the two does. `auto` and `writes` ask about different calls.
pub(crate) fn strictest(one: ApprovalMode, other: ApprovalMode) -> ApprovalMode {
    match (one, other) {
        (ApprovalMode::Approve, mode) | (mode, ApprovalMode::Approve) => mode,
        (one, other) if one == other => one,
        _ => ApprovalMode::Prompt,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r13_the_join_of_two_modes_asks_wherever_one_of_them_asks() {
        use ApprovalMode::{Approve, Auto, Prompt, Writes};
        assert_eq!(strictest(Approve, Auto), Auto);
        assert_eq!(strictest(Auto, Writes), Prompt);
        assert_eq!(strictest(Writes, Writes), Writes);
        assert_eq!(strictest(Prompt, Approve), Prompt);
    }
}
