//! Only definitions that something refers to (rule 22). Each is converted once, so that cycles end.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};

use super::Unconvertible;
use super::convert::{Conversion, TABLES};
use super::path::At;

/// Converts the root, and every definition of it that is reached. References that lead nowhere stay as they are.
pub(super) fn with_reachable(schema: &Value, conversion: &mut Conversion) -> Result<Value, Unconvertible> {
    let mut root = conversion.schema(schema, &At::Root)?;
    let mut seen = HashSet::new();
    let mut tables: BTreeMap<&str, BTreeMap<String, Value>> = BTreeMap::new();
    while let Some(reference) = conversion.next_reference() {
        let Some((table, name)) = definition(&reference) else { continue };
        if seen.contains(&(table, name.clone())) {
            continue;
        }
        if let Some(value) = schema.get(table).and_then(Value::as_object).and_then(|table| table.get(&name)) {
            let converted = conversion.schema(value, &At::Key(&At::Key(&At::Root, table), &name))?;
            tables.entry(table).or_default().insert(name.clone(), converted);
        }
        seen.insert((table, name));
    }
    if let Value::Object(root) = &mut root {
        for (table, definitions) in tables {
            root.insert(table.to_owned(), Value::Object(definitions.into_iter().collect::<Map<_, _>>()));
        }
    }
    Ok(root)
}

/// Returns the definition of the root that a reference leads to or into: `#/$defs/NAME`, percent-encoded and escaped.
pub(super) fn definition(reference: &str) -> Option<(&'static str, String)> {
    let pointer: Cow<'_, str> = percent_decode_str(reference.strip_prefix('#')?).decode_utf8().ok()?;
    let mut segments = pointer.strip_prefix('/')?.split('/');
    let table = segments.next()?;
    let table = TABLES.into_iter().find(|known| *known == table)?;
    Some((table, segments.next()?.replace("~1", "/").replace("~0", "~")))
}
