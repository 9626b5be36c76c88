//! Arrays whose places have a schema each, which no provider takes (C18).
//!
//! `items` is then any of these schemas, and that of further items where the server's schema speaks of them. Every array that
//! the server's schema describes place by place stays described. Of further items that it is silent about nothing is said, as
//! rule 21 says nothing of an array without `items`.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::convert::Conversion;
use super::path::At;
use super::{Fix, Unconvertible};

impl Conversion {
    /// Returns the schema of the items of an array, if the schema has one.
    #[inline(never)]
    pub(super) fn items(&mut self, from: &Map<String, Value>, at: &At<'_>) -> Result<Option<Value>, Unconvertible> {
        // 2020-12 has the places in `prefixItems`, and `items` is of what follows; before, `additionalItems` was.
        let prefix = from.get("prefixItems").and_then(Value::as_array).filter(|places| !places.is_empty());
        match (from.get("items"), prefix) {
            (Some(Value::Array(places)), _) => self.places(places, "items", from.get("additionalItems"), at),
            (further, Some(places)) => self.places(places, "prefixItems", further, at),
            (None | Some(Value::Null), None) => Ok(None),
            (Some(schema), None) => self.schema(schema, &At::Key(at, "items")).map(Some),
        }
    }

    #[inline(never)]
    fn places(
        &mut self,
        places: &[Value],
        key: &'static str,
        further: Option<&Value>,
        at: &At<'_>,
    ) -> Result<Option<Value>, Unconvertible> {
        let places_at = At::Key(at, key);
        let further_at = At::Key(at, if key == "items" { "additionalItems" } else { "items" });
        self.repaired(&places_at, Fix::Tuple);
        let mut any = self.each(places, &places_at)?;
        match further {
            None | Some(Value::Null | Value::Bool(false)) => {}
            Some(Value::Bool(true)) => any.push(json!({})),
            Some(schema) => any.push(self.schema(schema, &further_at)?),
        }
        Ok(Some(any_of(any)))
    }
}

/// Returns the schema that is any of these, each told once.
#[inline(never)]
fn any_of(mut any: Vec<Value>) -> Value {
    let mut seen = HashSet::new();
    any.retain(|schema| seen.insert(schema.to_string()));
    if any.len() > 1 { json!({ "anyOf": any }) } else { any.pop().unwrap_or_else(|| json!({})) }
}
