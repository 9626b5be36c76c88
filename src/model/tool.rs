//! A tool as its upstream defines it, and as the catalog lists it.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};

use super::digest::Digest;
use super::json::{self, Json, JsonFault};
use super::name::{CallableName, FlatName, Namespace, RawToolName, ServerName, ToolRef};

/// The largest definition of one tool, in bytes of JSON.
pub const MAX_DEFINITION: usize = 1024 * 1024;

/// `_meta` keys that claim a connector; only the Apps server may set them (catalog-dispatch 1.1 rule 2).
const CONNECTOR_CLAIMS: [&str; 5] =
    ["connector_id", "connector_name", "connector_display_name", "connector_description", "connectorDescription"];

/// A tool's annotations; absent means that the server did not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
pub struct Hints {
    /// The tool changes nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// The tool may destroy something.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destructive: Option<bool>,
    /// Calling twice is like calling once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotent: Option<bool>,
    /// The tool reaches the outside world.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_world: Option<bool>,
}

impl Hints {
    /// Returns the hints without those that relax (R9): read-only true, destructive false, open-world false.
    #[must_use]
    pub fn without_relaxing(self) -> Self {
        Self {
            read_only: self.read_only.filter(|v| !v),
            destructive: self.destructive.filter(|v| *v),
            idempotent: self.idempotent.filter(|v| !v),
            open_world: self.open_world.filter(|v| *v),
        }
    }
}

/// What a server is: digest of its transport, executable, arguments, directory and environment names, or URL (R5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct ServerIdentity(pub Digest);

/// The App connector a tool belongs to. Only the Apps server earns one (R9).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Connector {
    /// The connector's id.
    pub id: String,
    /// Its name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The linked account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
}

/// One tool definition, parsed from the upstream's own JSON text. Immutable.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolDefinition {
    name: RawToolName,
    value: Map<String, Value>,
    hints: Hints,
    digest: Digest,
}

/// Why a definition cannot be used. The tool is left out of the catalog and reported; other tools stay.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadDefinition {
    /// Not strict JSON: duplicate keys, lone surrogates, too deep or too large (R26).
    #[error("the definition is not usable JSON")]
    Json(#[source] JsonFault),
    /// Not an object.
    #[error("the definition is not an object")]
    NotAnObject,
    /// No usable name.
    #[error("the definition has no usable `name`")]
    Name(#[source] Option<super::name::BadName>),
    /// The input schema is no object, or describes something else than one.
    #[error("the `inputSchema` of tool `{0}` is not an object")]
    Schema(String),
    /// A field has a type that the protocol does not give it.
    #[error("the field `{field}` of tool `{tool}` is not {wanted}")]
    Field {
        /// The tool.
        tool: String,
        /// The field.
        field: &'static str,
        /// What it should be.
        wanted: &'static str,
    },
}

impl ToolDefinition {
    /// Parses one element of a `tools/list` answer, as the upstream spelled it.
    ///
    /// Connector claims in `_meta` are removed: an ordinary server may not make any. The digest is taken over our
    /// canonical JSON of what remains (sorted keys, numbers as exact decimals), never over a protocol library's types.
    ///
    /// # Errors
    /// A [`BadDefinition`] that names the tool and the field where there is one.
    pub fn parse(text: &str) -> Result<Self, BadDefinition> {
        let limits = json::Limits { bytes: MAX_DEFINITION, depth: json::MAX_DEPTH };
        let mut tree = Json::parse(text, limits).map_err(BadDefinition::Json)?;
        tree.remove_members(&["_meta"], &CONNECTOR_CLAIMS);
        let digest = Digest::of(tree.canonical().as_bytes());
        let Value::Object(value) = tree.into_value_lossy() else { return Err(BadDefinition::NotAnObject) };
        let name = match value.get("name") {
            Some(Value::String(name)) => RawToolName::parse(name).map_err(|bad| BadDefinition::Name(Some(bad)))?,
            _ => return Err(BadDefinition::Name(None)),
        };
        check_fields(&value, &name)?;
        Ok(Self { hints: hints(&value), name, value, digest })
    }

    /// Returns the raw name.
    #[must_use]
    pub fn name(&self) -> &RawToolName {
        &self.name
    }

    /// Returns the definition, unknown fields included, keys in the upstream's order.
    #[must_use]
    pub fn value(&self) -> &Map<String, Value> {
        &self.value
    }

    /// Returns the annotations.
    #[must_use]
    pub fn hints(&self) -> Hints {
        self.hints
    }

    /// Returns the digest of the definition.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Returns the title for people, if there is one: `title`, else `annotations.title`.
    #[must_use]
    pub fn title(&self) -> Option<&str> {
        self.value
            .get("title")
            .and_then(Value::as_str)
            .or_else(|| self.value.get("annotations")?.get("title")?.as_str())
    }

    /// Returns the description, if there is one.
    #[must_use]
    pub fn description(&self) -> Option<&str> {
        self.value.get("description").and_then(Value::as_str)
    }

    /// Returns the names of the declared top-level parameters.
    pub fn declared_parameters(&self) -> impl Iterator<Item = &str> {
        let properties = self.value.get("inputSchema").and_then(|schema| schema.get("properties"));
        properties.and_then(Value::as_object).into_iter().flat_map(|map| map.keys().map(String::as_str))
    }

    /// Returns `_meta`, if it is an object.
    #[must_use]
    pub fn meta(&self) -> Option<&Map<String, Value>> {
        self.value.get("_meta").and_then(Value::as_object)
    }
}

fn check_fields(value: &Map<String, Value>, name: &RawToolName) -> Result<(), BadDefinition> {
    let tool = || super::text::shown(name.as_str(), 128);
    match value.get("inputSchema") {
        Some(Value::Object(schema)) if describes_an_object(schema) => {}
        _ => return Err(BadDefinition::Schema(tool())),
    }
    let wrong = |field, wanted| BadDefinition::Field { tool: tool(), field, wanted };
    for field in ["title", "description"] {
        if value.get(field).is_some_and(|v| !v.is_string() && !v.is_null()) {
            return Err(wrong(field, "a string"));
        }
    }
    for field in ["annotations", "_meta", "outputSchema"] {
        if value.get(field).is_some_and(|v| !v.is_object() && !v.is_null()) {
            return Err(wrong(field, "an object"));
        }
    }
    Ok(())
}

/// Arguments are an object: a schema whose `type` leaves none is no input schema.
fn describes_an_object(schema: &Map<String, Value>) -> bool {
    match schema.get("type") {
        None => true,
        Some(Value::String(kind)) => kind == "object",
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "object"),
        Some(_) => false,
    }
}

fn hints(value: &Map<String, Value>) -> Hints {
    let annotations = value.get("annotations");
    let hint = |key| annotations.and_then(|a| a.get(key)).and_then(Value::as_bool);
    Hints {
        read_only: hint("readOnlyHint"),
        destructive: hint("destructiveHint"),
        idempotent: hint("idempotentHint"),
        open_world: hint("openWorldHint"),
    }
}

/// A tool in the catalog: raw identity, visible names, definition. Immutable and cheap to share.
#[derive(Debug, Clone)]
pub struct CatalogTool {
    /// The upstream.
    pub server: ServerName,
    /// What the upstream is.
    pub identity: ServerIdentity,
    /// The definition.
    pub definition: Arc<ToolDefinition>,
    /// The hints that count: without relaxing ones where the server's layer may not allow (R9).
    pub hints: Hints,
    /// The model-visible namespace.
    pub namespace: Namespace,
    /// The model-visible name.
    pub callable: CallableName,
    /// The gateway's name.
    pub flat: FlatName,
    /// The server's instructions, or the connector's description.
    pub namespace_description: Option<Arc<str>>,
    /// The connector, for tools of the Apps server.
    pub connector: Option<Connector>,
    /// The plugin that provides the server.
    pub plugin: Option<String>,
}

impl CatalogTool {
    /// Returns the raw identity.
    #[must_use]
    pub fn reference(&self) -> ToolRef {
        ToolRef { server: self.server.clone(), tool: self.definition.name().clone() }
    }
}
