//! A tool as its upstream defines it, and as the catalog lists it.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::arguments::Arguments;
use super::check::{ArgumentCheck, Unfit};
use super::digest::Digest;
use super::file_params::FileParams;
use super::json::{self, Json, JsonFault};
use super::name::{CallableName, FlatName, Namespace, RawToolName, ServerName, ToolRef};
use super::schema::BadSchema;
use super::spelled;

/// The largest definition of one tool, in bytes of JSON.
pub const MAX_DEFINITION: usize = 1024 * 1024;

/// `_meta` keys that claim a connector; only the Apps server may set them (catalog-dispatch 1.1 rule 2).
const CONNECTOR_CLAIMS: [&str; 5] =
    ["connector_id", "connector_name", "connector_display_name", "connector_description", "connectorDescription"];

/// A tool's annotations; absent means that the server did not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ServerIdentity(pub Digest);

/// The App connector a tool belongs to. Only the Apps server earns one (R9).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Connector {
    /// The connector's id.
    pub id: String,
    /// Its name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The linked account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// What it is for, in its own words; describes the namespace of its tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// One tool definition, parsed from the upstream's own JSON text. Immutable.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolDefinition {
    name: RawToolName,
    text: Arc<str>,
    /// Where the value of `name` stands in the text, quotes included.
    name_at: Range<usize>,
    value: Map<String, Value>,
    hints: Hints,
    digest: Digest,
    check: ArgumentCheck,
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
        Self::parse_shared(text.into())
    }

    /// The same for a text that is shared already: it is kept, not copied.
    ///
    /// # Errors
    /// A [`BadDefinition`], as [`ToolDefinition::parse`].
    pub fn parse_shared(text: Arc<str>) -> Result<Self, BadDefinition> {
        let limits = json::Limits { bytes: MAX_DEFINITION, depth: json::MAX_DEPTH };
        let mut tree = Json::parse(&text, limits).map_err(BadDefinition::Json)?;
        tree.remove_members(&["_meta"], &CONNECTOR_CLAIMS);
        let digest = Digest::of(tree.canonical().as_bytes());
        let Value::Object(value) = tree.into_value_lossy() else { return Err(BadDefinition::NotAnObject) };
        let name = match value.get("name") {
            Some(Value::String(name)) => RawToolName::parse(name).map_err(|bad| BadDefinition::Name(Some(bad)))?,
            _ => return Err(BadDefinition::Name(None)),
        };
        check_fields(&value, &name)?;
        let (text, name_at) = verbatim(text).map_err(unlike)?;
        Ok(Self { hints: hints(&value), name, text, name_at, value, digest, check: ArgumentCheck::default() })
    }

    /// Returns the same without its annotations.
    ///
    /// # Errors
    /// A [`BadDefinition`]; none is known that could come of this.
    pub fn without_annotations(self: &Arc<Self>) -> Result<Arc<Self>, BadDefinition> {
        spelled::without(&self.text, &["annotations"])
            .map_or_else(|| Ok(Arc::clone(self)), |text| Self::parse(&text).map(Arc::new))
    }

    /// Returns the raw name.
    #[must_use]
    pub fn name(&self) -> &RawToolName {
        &self.name
    }

    /// Returns the definition as the upstream spelled it, byte for byte, on one line and without connector claims.
    #[must_use]
    pub fn verbatim(&self) -> &Arc<str> {
        &self.text
    }

    /// Appends the definition under another name to `out`: of [`ToolDefinition::verbatim`] only the value of the
    /// outermost `name` is another one.
    pub fn write_renamed(&self, name: &str, out: &mut String) {
        let (before, rest) = self.text.split_at_checked(self.name_at.start).unwrap_or_default();
        out.push_str(before);
        out.push_str(&Value::from(name).to_string());
        out.push_str(rest.get(self.name_at.len()..).unwrap_or_default());
    }

    /// Returns the definition as a value, unknown fields included, keys in the upstream's order. Numbers that no `f64`
    /// and no 64-bit integer can hold are rounded; [`ToolDefinition::verbatim`] has them as they were spelled.
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

    /// Checks arguments against the input schema, in the dialect that it names. A schema that cannot be used checks nothing:
    /// [`ToolDefinition::unchecked`] tells of it.
    ///
    /// # Errors
    /// [`Unfit`], with JSON Pointers into the arguments.
    pub fn check(&self, arguments: &Arguments) -> Result<(), Unfit> {
        self.check.check(arguments, self.input_schema())
    }

    /// Whether [`ToolDefinition::check`] may take longer than others should wait for.
    #[must_use]
    pub fn is_heavy_to_check(&self, arguments: &Arguments) -> bool {
        self.check.is_heavy(arguments, self.input_schema())
    }

    /// Returns why arguments cannot be checked, if so. Compiles the schema when nobody has before.
    #[must_use]
    pub fn unchecked(&self) -> Option<&BadSchema> {
        self.check.unusable(self.input_schema())
    }

    /// Returns the input schema as the upstream defined it.
    #[must_use]
    pub fn input_schema(&self) -> &Value {
        self.value.get("inputSchema").unwrap_or(&Value::Null)
    }

    /// Tells whether a model may be shown the tool: not if `_meta.ui.visibility` is a list without `model`. A tool that
    /// says nothing, or something else than a list, is visible (catalog-dispatch 3.1 rule 4).
    #[must_use]
    pub fn is_visible_to_model(&self) -> bool {
        let visibility = self.meta().and_then(|meta| meta.get("ui")?.get("visibility")?.as_array());
        visibility.is_none_or(|list| list.iter().any(|who| who == "model"))
    }

    /// Returns `_meta`, if it is an object.
    #[must_use]
    pub fn meta(&self) -> Option<&Map<String, Value>> {
        self.value.get("_meta").and_then(Value::as_object)
    }
}

/// Returns the text on one line without connector claims, and where the value of its `name` stands.
fn verbatim(text: Arc<str>) -> serde_json::Result<(Arc<str>, Range<usize>)> {
    let mut text = if text.contains(['\n', '\r']) { spelled::one_line(&text).into() } else { text };
    let mut members = spelled::members(&text)?;
    let meta = members.iter().find(|member| member.key == "_meta").map(|member| member.value.clone());
    if let Some(meta) = meta
        && let Some(clean) = text.get(meta.clone()).and_then(|meta| spelled::without(meta, &CONNECTOR_CLAIMS))
    {
        let mut edited = text.to_string();
        edited.replace_range(meta, &clean);
        text = edited.into();
        members = spelled::members(&text)?;
    }
    let name = members.into_iter().find(|member| member.key == "name").map(|member| member.value);
    let name = name.ok_or_else(|| serde::de::Error::missing_field("name"))?;
    Ok((text, name))
}

/// The strict parser took what the other one does not.
fn unlike(error: serde_json::Error) -> BadDefinition {
    let (line, column) = (error.line(), error.column());
    BadDefinition::Json(JsonFault::Syntax { message: "no JSON".to_owned(), line, column })
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

/// A plugin that provides a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plugin {
    /// Its id: what servers and records are told.
    pub id: String,
    /// What it is called for people and models; its id, where nobody gave it a name.
    pub name: String,
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
    pub plugin: Option<Plugin>,
    /// Its file parameters, where its server may have some.
    pub files: Option<Arc<FileParams>>,
    /// What is shown of it while its server is starting: what the server listed the last time, without annotations. None: a
    /// connection vouches for the tool.
    pub unvouched: Option<Arc<ToolDefinition>>,
}

impl CatalogTool {
    /// Returns the raw identity.
    #[must_use]
    pub fn reference(&self) -> ToolRef {
        ToolRef { server: self.server.clone(), tool: self.definition.name().clone() }
    }

    /// Returns the title for people, if there is one; an App's without its leading `<connector name>_` (catalog-dispatch 1.1 rule 3).
    #[must_use]
    pub fn title(&self) -> Option<&str> {
        self.definition.title().map(|title| self.own_title(title))
    }

    /// Returns a title of this tool, as somebody shows it, without the connector's name in front.
    #[must_use]
    pub fn own_title<'a>(&self, title: &'a str) -> &'a str {
        let name = self.connector.as_ref().and_then(|own| own.name.as_deref()).map(str::trim);
        let rest = name.filter(|name| !name.is_empty()).and_then(|name| title.strip_prefix(name)?.strip_prefix('_'));
        rest.filter(|rest| !rest.is_empty()).unwrap_or(title)
    }

    /// Returns the definition that a model is shown: the server's own, but with paths in the place of files, and without
    /// annotations as long as no connection vouches for them.
    #[must_use]
    pub fn model_facing(&self) -> &Arc<ToolDefinition> {
        let own = || self.files.as_ref().map_or(&self.definition, |files| files.masked());
        self.unvouched.as_ref().unwrap_or_else(own)
    }
}

#[cfg(test)]
#[path = "tool_tests.rs"]
mod tests;
