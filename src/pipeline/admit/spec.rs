//! What a model is given of a tool (catalog-dispatch 1.4): one namespace with one function, immutable and shared.
//!
//! Made from a definition as it may be shown, never from the raw one. Limits here are the reference's; what they cut is
//! listed with the specification ([`Cut`]).

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::schema::{self, ModelSchema, Unconvertible};
use crate::model::name::{CallableName, Namespace};
use crate::model::text;
use crate::model::tool::CatalogTool;

/// The longest description of a namespace, in bytes (rule 13).
pub const MAX_NAMESPACE_DESCRIPTION: usize = 512 * 1024;
/// The longest description of a plugin's tool or namespace, in bytes (rules 14 and 16).
pub const MAX_PLUGIN_DESCRIPTION: usize = 1_000;
/// The longest function of a plugin as JSON, in bytes; beyond it, its parameters are open (rule 17).
pub const MAX_PLUGIN_FUNCTION: usize = 8_000;

/// One function of a namespace, as JSON in the form of the Responses API.
#[derive(Debug, Clone, PartialEq)]
pub struct FunctionSpec {
    /// The model-visible name.
    pub name: CallableName,
    /// The description; empty if the tool has none.
    pub description: Arc<str>,
    /// The converted input schema.
    pub parameters: Arc<Value>,
}

/// A namespace and its functions, as JSON in the form of the Responses API.
#[derive(Debug, Clone, PartialEq)]
pub struct NamespaceSpec {
    /// The model-visible namespace.
    pub name: Namespace,
    /// The description; empty until namespaces are merged if nobody gave one.
    pub description: Arc<str>,
    /// The functions.
    pub tools: Arc<[Arc<FunctionSpec>]>,
}

/// What a script is told of a tool, without schemas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ScriptSpec {
    /// The model-visible namespace.
    pub namespace: Namespace,
    /// The model-visible name.
    pub name: CallableName,
    /// The description.
    pub description: Arc<str>,
}

/// What was cut for its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Cut {
    /// The description of the namespace.
    #[error("the description of the namespace has {0} bytes and was cut")]
    NamespaceDescription(usize),
    /// The description of the tool.
    #[error("the description has {0} bytes and was cut to {MAX_PLUGIN_DESCRIPTION}")]
    Description(usize),
    /// The parameters.
    #[error("the function has {0} bytes, more than {MAX_PLUGIN_FUNCTION}; its parameters are not told")]
    Parameters(usize),
}

/// The specification of one handler, with what became of the definition on the way.
#[derive(Debug)]
pub struct ToolSpec {
    /// One namespace with exactly one function (rule 12).
    pub namespace: Arc<NamespaceSpec>,
    /// The function.
    pub function: Arc<FunctionSpec>,
    /// The schema with its repairs; `function.parameters` is another one only where [`Cut::Parameters`] says so.
    pub schema: ModelSchema,
    /// What was cut.
    pub cuts: Vec<Cut>,
    output: Option<Value>,
    bytes: OnceLock<usize>,
    script: OnceLock<Arc<ScriptSpec>>,
}

impl ToolSpec {
    /// Makes the specification of a tool from its definition and the description of its namespace as they may be shown.
    ///
    /// # Errors
    /// [`Unconvertible`]: this tool is left out with a warning, others of its server stay (rule 18).
    pub fn new(tool: &CatalogTool, shown: &Map<String, Value>, described: Option<&str>) -> Result<Self, Unconvertible> {
        let schema = schema::for_model(shown.get("inputSchema").unwrap_or(&Value::Null))?;
        let mut cuts = Vec::new();
        let namespace_description = namespace_description(tool, described, &mut cuts);
        let own = shown.get("description").and_then(Value::as_str).unwrap_or_default();
        let plugin = tool.plugin.as_ref().map(|plugin| plugin.name.as_str());
        let mut description = plugin.map_or_else(|| own.to_owned(), |plugin| with_plugins(own, &[plugin]));
        if plugin.is_some() && description.len() > MAX_PLUGIN_DESCRIPTION {
            cuts.push(Cut::Description(description.len()));
            description = text::prefix(&description, MAX_PLUGIN_DESCRIPTION).to_owned();
        }
        let mut function = FunctionSpec {
            name: tool.callable.clone(),
            description: description.into(),
            parameters: Arc::new(schema.value.clone()),
        };
        let bytes = schema::length(&function);
        if plugin.is_some() && bytes > MAX_PLUGIN_FUNCTION {
            cuts.push(Cut::Parameters(bytes));
            function.parameters = Arc::new(json!({"type": "object", "properties": {}, "additionalProperties": true}));
        }
        let function = Arc::new(function);
        let namespace = NamespaceSpec {
            name: tool.namespace.clone(),
            description: namespace_description.into(),
            tools: Arc::from([Arc::clone(&function)]),
        };
        let output = shown.get("outputSchema").filter(|schema| schema.is_object()).cloned();
        let (bytes, script) = (OnceLock::new(), OnceLock::new());
        Ok(Self { namespace: Arc::new(namespace), function, schema, cuts, output, bytes, script })
    }

    /// Returns how many bytes of JSON it has: the namespace with its description and the function. Counted at the first
    /// demand.
    #[must_use]
    pub fn bytes(&self) -> usize {
        *self.bytes.get_or_init(|| schema::length(&self.namespace))
    }

    /// Returns what a script is told, built at the first demand.
    pub fn script(&self) -> &Arc<ScriptSpec> {
        self.script.get_or_init(|| {
            Arc::new(ScriptSpec {
                namespace: self.namespace.name.clone(),
                name: self.function.name.clone(),
                description: Arc::clone(&self.function.description),
            })
        })
    }

    /// Returns the schema of what a script gets back: a fixed envelope around the tool's own output schema (rule 19).
    #[must_use]
    pub fn script_output(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "content": {"type": "array", "items": {"type": "object"}},
                "structuredContent": self.output.clone().unwrap_or_else(|| json!({})),
                "isError": {"type": "boolean"},
                "_meta": {"type": "object"},
            },
            "required": ["content"],
            "additionalProperties": false,
        })
    }
}

/// Rules 13 and 14.
fn namespace_description(tool: &CatalogTool, described: Option<&str>, cuts: &mut Vec<Cut>) -> String {
    let whole = described.unwrap_or_default();
    let limit = if tool.plugin.is_some() { MAX_PLUGIN_DESCRIPTION } else { usize::MAX };
    let given = text::prefix(whole, limit);
    if given.len() < whole.len() {
        cuts.push(Cut::NamespaceDescription(whole.len()));
    }
    let connector = tool.connector.as_ref().and_then(|connector| connector.name.as_deref()).unwrap_or_default().trim();
    let description = match (given.trim(), connector) {
        ("", "") => String::new(),
        ("", connector) => format!("Tools for working with {connector}."),
        (given, _) => given.to_owned(),
    };
    if description.len() > MAX_NAMESPACE_DESCRIPTION {
        cuts.push(Cut::NamespaceDescription(description.len()));
    }
    text::prefix(&description, MAX_NAMESPACE_DESCRIPTION).to_owned()
}

/// Returns a description that says which plugins the tool is part of (1.1 rule 4).
#[must_use]
pub fn with_plugins(description: &str, plugins: &[&str]) -> String {
    let names: Vec<String> = plugins.iter().map(|name| format!("`{name}`")).collect();
    let sentence = match names.as_slice() {
        [] => return description.to_owned(),
        [name] => format!("This tool is part of plugin {name}."),
        names => format!("This tool is part of plugins {}.", names.join(", ")),
    };
    let own = description.trim_end();
    let stop = if own.ends_with(['.', '!', '?']) { "" } else { "." };
    if own.is_empty() { sentence } else { format!("{own}{stop} {sentence}") }
}

/// Merges namespaces of one name, in the order in which the names come first (rule 15): the first description that is not
/// empty counts, functions are sorted by their names, and a namespace that nobody described says its name.
#[must_use]
pub fn merge<'a>(specs: impl IntoIterator<Item = &'a NamespaceSpec>) -> Vec<NamespaceSpec> {
    let mut at = HashMap::new();
    let mut merged: Vec<(Namespace, Arc<str>, Vec<Arc<FunctionSpec>>)> = Vec::new();
    for spec in specs {
        let index = *at.entry(spec.name.clone()).or_insert(merged.len());
        if index == merged.len() {
            merged.push((spec.name.clone(), Arc::default(), Vec::new()));
        }
        let Some((_, description, tools)) = merged.get_mut(index) else { continue };
        if description.is_empty() {
            *description = Arc::clone(&spec.description);
        }
        tools.extend(spec.tools.iter().cloned());
    }
    let whole = |(name, mut description, mut tools): (Namespace, Arc<str>, Vec<Arc<FunctionSpec>>)| {
        tools.sort_by(|a, b| a.name.cmp(&b.name));
        if description.is_empty() {
            description = format!("Tools in the {name} namespace.").into();
        }
        NamespaceSpec { name, description, tools: tools.into() }
    };
    merged.into_iter().map(whole).collect()
}

/// A namespace whose functions a search found: each says `defer_loading` (rule 16).
#[derive(Debug, Clone, Copy)]
pub struct Deferred<'a>(pub &'a NamespaceSpec);

#[derive(Serialize)]
struct FunctionForm<'a> {
    r#type: &'static str,
    name: &'a str,
    description: &'a str,
    strict: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    defer_loading: Option<bool>,
    parameters: &'a Value,
}

#[derive(Serialize)]
struct NamespaceForm<'a> {
    r#type: &'static str,
    name: &'a str,
    description: &'a str,
    tools: Vec<FunctionForm<'a>>,
}

impl FunctionSpec {
    fn form(&self, defer_loading: Option<bool>) -> FunctionForm<'_> {
        FunctionForm {
            r#type: "function",
            name: self.name.as_str(),
            description: &self.description,
            strict: false,
            defer_loading,
            parameters: &self.parameters,
        }
    }
}

impl NamespaceSpec {
    fn form(&self, defer_loading: Option<bool>) -> NamespaceForm<'_> {
        let tools = self.tools.iter().map(|tool| tool.form(defer_loading)).collect();
        NamespaceForm { r#type: "namespace", name: self.name.as_str(), description: &self.description, tools }
    }
}

impl Serialize for FunctionSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.form(None).serialize(serializer)
    }
}

impl Serialize for NamespaceSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.form(None).serialize(serializer)
    }
}

impl Serialize for Deferred<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.form(Some(true)).serialize(serializer)
    }
}

#[cfg(test)]
#[path = "spec_tests.rs"]
mod tests;
