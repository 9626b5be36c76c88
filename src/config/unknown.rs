//! Finds keys that no type of ours has, and the known key that was probably meant.
//!
//! The known keys come from the types' own schema, the one that the reference is generated from, so the check and the
//! documentation cannot differ.

use schemars::generate::SchemaSettings;
use serde_json::Value;
use toml::de::{DeTable, DeValue};

use crate::model::text::shown;

/// How alike two keys must be for one to be suggested for the other.
const LIKENESS: f64 = 0.78;
/// How many unknown keys of one table are reported.
const MAX_REPORTED: usize = 32;

/// A key that nothing knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unknown {
    /// Its path below the table that was checked.
    pub(crate) path: Vec<String>,
    /// Where it starts, in bytes.
    pub(crate) offset: usize,
    /// The known key that is most like it.
    pub(crate) suggestion: Option<String>,
}

/// Returns the schema of a type with all its parts in place.
pub(crate) fn schema_of<T: schemars::JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|s| s.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

/// Returns the unknown keys of a table.
pub(crate) fn unknown_keys(table: &DeTable<'_>, schema: &Value) -> Vec<Unknown> {
    let mut found = Vec::new();
    walk_table(table, schema, &mut Vec::new(), &mut found);
    found
}

fn walk_table(table: &DeTable<'_>, schema: &Value, path: &mut Vec<String>, found: &mut Vec<Unknown>) {
    let schema = without_null(schema);
    let known = schema.get("properties").and_then(Value::as_object);
    let rest = schema.get("additionalProperties");
    for (key, value) in table {
        let name = key.get_ref().as_ref();
        path.push(name.to_owned());
        match (known.and_then(|known| known.get(name)), rest) {
            (Some(below), _) => walk(value.get_ref(), below, path, found),
            (None, Some(Value::Bool(false))) if found.len() < MAX_REPORTED => {
                let names = known.into_iter().flat_map(|known| known.keys().map(String::as_str));
                let suggestion = closest(name, names);
                found.push(Unknown { path: path.clone(), offset: key.span().start, suggestion });
            }
            (None, Some(below)) => walk(value.get_ref(), below, path, found),
            (None, None) => {}
        }
        path.pop();
    }
}

fn walk(value: &DeValue<'_>, schema: &Value, path: &mut Vec<String>, found: &mut Vec<Unknown>) {
    match value {
        DeValue::Table(table) => walk_table(table, schema, path, found),
        DeValue::Array(items) => {
            let Some(below) = without_null(schema).get("items") else { return };
            for (index, item) in items.iter().enumerate() {
                path.push(index.to_string());
                walk(item.get_ref(), below, path, found);
                path.pop();
            }
        }
        _ => {}
    }
}

/// An optional value's schema is "this or null"; returns this.
pub(crate) fn without_null(schema: &Value) -> &Value {
    let Some(variants) = schema.get("anyOf").and_then(Value::as_array) else { return schema };
    let mut others = variants.iter().filter(|v| v.get("type").and_then(Value::as_str) != Some("null"));
    match (others.next(), others.next()) {
        (Some(only), None) => only,
        _ => schema,
    }
}

/// Returns the name most like `key`, if one is like it at all.
pub(crate) fn closest<'a>(key: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    // A key may be as long as its file; likeness is quadratic.
    if key.len() > 64 {
        return None;
    }
    let scored = names.map(|name| (strsim::jaro_winkler(key, name), name));
    let best = scored.filter(|(score, _)| *score >= LIKENESS).max_by(|a, b| a.0.total_cmp(&b.0));
    best.map(|(_, name)| shown(name, 64))
}
