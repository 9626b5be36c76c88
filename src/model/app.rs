//! What a tool's definition says about its App. It counts for tools of the Apps server alone: of any other server it is a claim
//! (R9, catalog-dispatch 5 rule 6).

use serde::Serialize;
use serde_json::{Map, Value};

use super::tool::{CatalogTool, Connector};

/// The member of a definition's `_meta` that the Apps server puts there for itself.
pub const APPS: &str = "_codex_apps";

/// The longest text of a definition that items repeat, in bytes; a longer one is left out.
const MAX_TEXT: usize = 2048;

/// What items and records say about a tool, as far as the catalog knows it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ToolFacts {
    /// The App connector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connector_id: Option<String>,
    /// The link to the account that the connector is used with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_id: Option<String>,
    /// What the App is called for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_name: Option<String>,
    /// What the App calls the tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action_name: Option<String>,
    /// The resource that an MCP App shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mcp_app_resource_uri: Option<String>,
    /// The plugin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugin_id: Option<String>,
    /// The hint, as it counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only_hint: Option<bool>,
}

impl ToolFacts {
    /// What is known of this tool. `meta` is the `_meta` of its definition as the sanitisers leave it to be shown (R31); none: the
    /// definition has none, or is withheld.
    #[must_use]
    pub fn of(tool: &CatalogTool, meta: Option<&Map<String, Value>>) -> Self {
        let bounded = |text: &str| (text.len() <= MAX_TEXT).then(|| text.to_owned());
        let connector = tool.connector.as_ref();
        let own = connector.and_then(|_| meta?.get(APPS)?.as_object());
        Self {
            connector_id: connector.map(|connector| connector.id.clone()),
            link_id: own.and_then(|own| own.get("link_id")?.as_str()).and_then(bounded),
            app_name: connector.and_then(|connector| connector.name.as_deref()).and_then(bounded),
            action_name: own.and_then(action_of).and_then(bounded),
            mcp_app_resource_uri: meta.and_then(resource_uri).and_then(bounded),
            plugin_id: tool.plugin.as_ref().map(|plugin| plugin.id.clone()),
            read_only_hint: tool.hints.read_only,
        }
    }
}

/// A tool's App, and what the Apps server put into the tool for itself. No other server's tool has any that counts.
#[must_use]
pub fn own(tool: &CatalogTool) -> Option<(&Connector, Option<&Map<String, Value>>)> {
    let own = tool.definition.meta().and_then(|meta| meta.get(APPS)?.as_object());
    tool.connector.as_ref().map(|connector| (connector, own))
}

/// The connector of a tool's App and the name of its action, where both are known: the last part of its resource's address
/// that is not empty.
#[must_use]
pub fn action(tool: &CatalogTool) -> Option<(&Connector, &str)> {
    let (connector, own) = own(tool)?;
    Some((connector, action_of(own?)?))
}

fn action_of(own: &Map<String, Value>) -> Option<&str> {
    own.get("resource_uri")?.as_str()?.rsplit('/').find(|part| !part.is_empty())
}

/// `_meta.ui.resourceUri`, else `_meta["ui/resourceUri"]`, else `_meta["openai/outputTemplate"]`.
fn resource_uri(meta: &Map<String, Value>) -> Option<&str> {
    let nested = meta.get("ui").and_then(|ui| ui.get("resourceUri"));
    let flat = || meta.get("ui/resourceUri").or_else(|| meta.get("openai/outputTemplate"));
    nested.or_else(flat).and_then(Value::as_str)
}
