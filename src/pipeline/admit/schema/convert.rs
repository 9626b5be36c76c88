//! One schema and what is in it: types (rule 21), kept keywords (rule 24), and what is no schema (rule 25).

use serde_json::{Map, Value, json};

use super::path::At;
use super::{Fix, MAX_REPAIRS, Repair, Root, Unconvertible, kind};

/// The types that there are.
const TYPES: [&str; 7] = ["string", "number", "boolean", "integer", "object", "array", "null"];
/// Keywords that put schemas together.
pub(super) const COMPOSITIONS: [&str; 3] = ["anyOf", "oneOf", "allOf"];
/// Keywords that hold definitions.
pub(super) const TABLES: [&str; 2] = ["$defs", "definitions"];
/// What makes an untyped schema one of numbers.
const BOUNDS: [&str; 5] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];

/// What is gathered while a schema is converted.
pub(super) struct Conversion {
    root: Root,
    repairs: Vec<Repair>,
    unlisted: usize,
    /// References that were kept and not yet followed.
    references: Vec<String>,
}

impl Conversion {
    pub(super) fn new(root: Root) -> Self {
        Self { root, repairs: Vec::new(), unlisted: 0, references: Vec::new() }
    }

    pub(super) fn into_repairs(self) -> (Vec<Repair>, usize) {
        (self.repairs, self.unlisted)
    }

    /// Returns a reference that was kept and not yet followed.
    pub(super) fn next_reference(&mut self) -> Option<String> {
        self.references.pop()
    }

    pub(super) fn repaired(&mut self, at: &At<'_>, what: Fix) {
        if self.repairs.len() < MAX_REPAIRS {
            self.repairs.push(Repair { pointer: at.pointer(), what });
        } else {
            self.unlisted += 1;
        }
    }

    /// Converts one schema.
    pub(super) fn schema(&mut self, value: &Value, at: &At<'_>) -> Result<Value, Unconvertible> {
        match value {
            Value::Bool(_) => Ok(json!({"type": "string"})),
            Value::Object(members) => self.object(members, at).map(Value::Object),
            Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                Err(Unconvertible::NotASchema { pointer: at.pointer(), found: kind(value) })
            }
        }
    }

    /// Keywords are visited in the order of rule 24, so that two spellings give one result. What does not recurse is in
    /// functions of its own: the frames of those that do must be small, for the schema's depth is the server's choice.
    fn object(&mut self, from: &Map<String, Value>, at: &At<'_>) -> Result<Map<String, Value>, Unconvertible> {
        let Some((mut to, defaults)) = self.head(from, at) else { return Ok(Map::new()) };
        let items = self.items(from, at)?;
        put(&mut to, "items", items, defaults.items);
        let properties = self.table(from, "properties", at)?;
        put(&mut to, "properties", properties, defaults.properties);
        let required = self.required(from, at);
        put(&mut to, "required", required, false);
        let additional = self.additional(from, at)?;
        put(&mut to, "additionalProperties", additional, false);
        for key in COMPOSITIONS {
            let schemas = self.composition(from, key, at)?;
            put(&mut to, key, schemas, false);
        }
        // Those of the root are converted where something refers to them. One that is no object is removed.
        for key in TABLES {
            if !matches!(at, At::Root) && from.get(key).is_some_and(Value::is_object) {
                let definitions = self.table(from, key, at)?;
                put(&mut to, key, definitions, false);
            }
        }
        Ok(to)
    }

    /// Returns what comes before the schemas in a schema, and what follows by its types; nothing if it says nothing.
    #[inline(never)]
    fn head(&mut self, from: &Map<String, Value>, at: &At<'_>) -> Option<(Map<String, Value>, Defaults)> {
        // Rule 20: the arguments of a tool always have `properties`.
        let arguments =
            matches!(at, At::Root) && self.root == Root::Arguments && from.get("properties").is_none_or(Value::is_null);
        let has = |key: &str| from.contains_key(key) || (arguments && key == "properties");
        let mut types = usable_types(from.get("type"));
        if types.is_empty() && !has("$ref") && !COMPOSITIONS.iter().any(|key| has(key)) {
            types.push(inferred(has)?);
        }
        let mut to = Map::new();
        let reference = self.keep(from, "$ref", at, Value::is_string);
        self.references.extend(reference.as_ref().and_then(Value::as_str).map(str::to_owned));
        let kind = match types.as_slice() {
            [] => None,
            [one] => Some(Value::from(*one)),
            several => Some(Value::from(several)),
        };
        let description = self.keep(from, "description", at, Value::is_string);
        let encrypted = self.keep(from, "encrypted", at, Value::is_boolean);
        let values = match from.get("const") {
            Some(value) => Some(Value::Array(vec![value.clone()])),
            None => self.keep(from, "enum", at, Value::is_array),
        };
        let all = [
            ("$ref", reference),
            ("type", kind),
            ("description", description),
            ("encrypted", encrypted),
            ("enum", values),
        ];
        to.extend(all.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
        // A keyword of null suppresses the default, as in the reference (C21).
        let items = types.contains(&"array") && !has("items");
        let properties = arguments || (types.contains(&"object") && !has("properties"));
        Some((to, Defaults { items, properties }))
    }

    #[inline(never)]
    fn additional(&mut self, from: &Map<String, Value>, at: &At<'_>) -> Result<Option<Value>, Unconvertible> {
        match from.get("additionalProperties") {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Bool(open)) => Ok(Some(Value::Bool(*open))),
            Some(schema) => self.schema(schema, &At::Key(at, "additionalProperties")).map(Some),
        }
    }

    /// Returns a value that only describes or restricts, if it is of its type.
    fn keep(
        &mut self,
        from: &Map<String, Value>,
        key: &'static str,
        at: &At<'_>,
        is: fn(&Value) -> bool,
    ) -> Option<Value> {
        let value = from.get(key).filter(|value| !value.is_null())?;
        if is(value) {
            return Some(value.clone());
        }
        self.repaired(&At::Key(at, key), Fix::Dropped(key));
        None
    }

    fn required(&mut self, from: &Map<String, Value>, at: &At<'_>) -> Option<Value> {
        let at = At::Key(at, "required");
        match from.get("required")? {
            Value::Null => None,
            Value::Array(names) => {
                let kept: Vec<Value> = names.iter().filter(|name| name.is_string()).cloned().collect();
                if kept.len() < names.len() {
                    self.repaired(&at, Fix::RequiredEntries);
                }
                Some(Value::Array(kept))
            }
            name @ Value::String(_) => {
                self.repaired(&at, Fix::RequiredName);
                Some(Value::Array(vec![name.clone()]))
            }
            Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
                self.repaired(&at, Fix::Dropped("required"));
                None
            }
        }
    }

    /// Converts all schemas of a table, sorted by their names.
    #[inline(never)]
    fn table(
        &mut self,
        from: &Map<String, Value>,
        key: &'static str,
        at: &At<'_>,
    ) -> Result<Option<Value>, Unconvertible> {
        let at = At::Key(at, key);
        let table = match from.get(key) {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::Object(table)) => table,
            Some(other) => return Err(not_schemas(&at, other, "an object of schemas")),
        };
        let mut out = Map::new();
        for (name, schema) in sorted(table) {
            let schema = self.schema(schema, &At::Key(&at, name))?;
            out.insert(name.clone(), schema);
        }
        Ok(Some(Value::Object(out)))
    }

    #[inline(never)]
    fn composition(
        &mut self,
        from: &Map<String, Value>,
        key: &'static str,
        at: &At<'_>,
    ) -> Result<Option<Value>, Unconvertible> {
        let at = At::Key(at, key);
        match from.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Array(schemas)) => self.each(schemas, &at).map(|schemas| Some(Value::Array(schemas))),
            Some(other) => Err(not_schemas(&at, other, "a list of schemas")),
        }
    }

    /// Converts the schemas of a list.
    #[inline(never)]
    pub(super) fn each(&mut self, schemas: &[Value], at: &At<'_>) -> Result<Vec<Value>, Unconvertible> {
        let mut out = Vec::with_capacity(schemas.len());
        for (index, schema) in schemas.iter().enumerate() {
            out.push(self.schema(schema, &At::Index(at, index))?);
        }
        Ok(out)
    }
}

/// Which keywords a schema has by its types if it does not speak of them.
struct Defaults {
    items: bool,
    properties: bool,
}

/// Puts a keyword into a schema: what it was converted to, else its default, if that is due.
#[inline(never)]
fn put(to: &mut Map<String, Value>, key: &str, value: Option<Value>, default: bool) {
    let default = || default.then(|| if key == "items" { json!({"type": "string"}) } else { json!({}) });
    to.extend(value.or_else(default).map(|value| (key.to_owned(), value)));
}

fn sorted(table: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_unstable_by_key(|(name, _)| *name);
    entries
}

fn not_schemas(at: &At<'_>, found: &Value, wanted: &'static str) -> Unconvertible {
    Unconvertible::NotSchemas { pointer: at.pointer(), found: kind(found), wanted }
}

/// Returns the types that there are, in the order given, each once.
fn usable_types(value: Option<&Value>) -> Vec<&'static str> {
    let known = |name: &Value| TYPES.into_iter().find(|known| name == known);
    match value {
        Some(Value::Array(names)) => {
            let mut types = Vec::new();
            for name in names.iter().filter_map(known) {
                if !types.contains(&name) {
                    types.push(name);
                }
            }
            types
        }
        Some(name) => known(name).into_iter().collect(),
        None => Vec::new(),
    }
}

/// Returns the type that a schema without one most likely means.
fn inferred(has: impl Fn(&str) -> bool) -> Option<&'static str> {
    let any = |keys: &[&str]| keys.iter().any(|key| has(key));
    if any(&["properties", "required", "additionalProperties"]) {
        Some("object")
    } else if any(&["items", "prefixItems"]) {
        Some("array")
    } else if any(&["enum", "const", "format"]) {
        Some("string")
    } else if any(&BOUNDS) {
        Some("number")
    } else {
        None
    }
}
