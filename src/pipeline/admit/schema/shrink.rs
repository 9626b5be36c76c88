//! A schema that is too long for a prompt is told shorter (rule 23): names first, then types, then the rest.
//!
//! What is measured is what is kept, so rule 24 has been applied before. No pass is a bound: a schema of many properties
//! stays long, because arguments that a model has not been told of are arguments that it cannot give.

use serde_json::{Map, Value, json};

use super::convert::{COMPOSITIONS, TABLES};
use super::{Root, definitions, measure};

/// What a schema may have, in bytes of compact JSON, before it is shortened.
pub const BUDGET: usize = 5_000;
/// From this depth on schemas with schemas in them are left out.
const DEEP: usize = 3;

/// How much of a schema was left out for its length. Each includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Shrunk {
    /// Nothing: it was short enough.
    No,
    /// All descriptions.
    Descriptions,
    /// All definitions; references to them are `{}`.
    Definitions,
    /// Schemas with schemas in them, from the third level on.
    Deep,
    /// Every schema that is put together of others.
    Compositions,
}

/// A sentence for people; empty if nothing was left out. Each pass comes after those before it.
impl std::fmt::Display for Shrunk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match self {
            Self::No => return Ok(()),
            Self::Descriptions => "its descriptions",
            Self::Definitions => "its descriptions and definitions",
            Self::Deep => "its descriptions, its definitions and what is deep in it",
            Self::Compositions => {
                "its descriptions, its definitions, what is deep in it and what is put together of schemas"
            }
        };
        write!(f, "the schema was too long, so {what} were left out")
    }
}

type Pass = fn(&mut Value);

/// Runs the passes, one after another, until the schema fits.
pub(super) fn to_budget(value: &mut Value, root: Root) -> Shrunk {
    let passes: [(Shrunk, Pass); 4] = [
        (Shrunk::Descriptions, drop_descriptions),
        (Shrunk::Definitions, drop_definitions),
        (Shrunk::Deep, |value| drop_deep(value, 0)),
        (Shrunk::Compositions, drop_compositions),
    ];
    let mut shrunk = Shrunk::No;
    for (next, pass) in passes {
        if measure::length(value) <= BUDGET {
            break;
        }
        pass(value);
        shrunk = next;
    }
    // Of arguments nothing remained: they are an object in any case (rule 20).
    if root == Root::Arguments && value.as_object().is_some_and(Map::is_empty) {
        *value = json!({"type": "object", "properties": {}});
    }
    shrunk
}

fn drop_descriptions(value: &mut Value) {
    let Value::Object(members) = value else { return };
    members.shift_remove("description");
    for table in TABLES {
        each_of(members.get_mut(table), drop_descriptions);
    }
    each_child(members, drop_descriptions);
}

fn drop_definitions(value: &mut Value) {
    let Value::Object(members) = value else { return };
    if members.get("$ref").and_then(Value::as_str).and_then(definitions::definition).is_some() {
        members.clear();
        return;
    }
    for table in TABLES {
        members.shift_remove(table);
    }
    each_child(members, drop_definitions);
}

fn drop_deep(value: &mut Value, depth: usize) {
    let Value::Object(members) = value else { return };
    let complex = ["$ref", "items", "properties", "additionalProperties"].iter().chain(&COMPOSITIONS);
    if depth >= DEEP && complex.into_iter().any(|key| members.contains_key(*key)) {
        members.clear();
        return;
    }
    each_child(members, |child| drop_deep(child, depth + 1));
}

fn drop_compositions(value: &mut Value) {
    let Value::Object(members) = value else { return };
    if COMPOSITIONS.iter().any(|key| members.contains_key(*key)) {
        members.clear();
        return;
    }
    each_child(members, drop_compositions);
}

/// Visits the schemas in a converted schema, but for definitions.
fn each_child(members: &mut Map<String, Value>, mut visit: impl FnMut(&mut Value)) {
    each_of(members.get_mut("properties"), &mut visit);
    for key in ["items", "additionalProperties"] {
        members.get_mut(key).into_iter().for_each(&mut visit);
    }
    for key in COMPOSITIONS {
        members.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten().for_each(&mut visit);
    }
}

fn each_of(table: Option<&mut Value>, visit: impl FnMut(&mut Value)) {
    table.and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut).for_each(visit);
}
