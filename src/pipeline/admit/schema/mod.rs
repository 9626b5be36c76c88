//! Input schemas as model providers take them (catalog-dispatch 1.5, rules 20 to 25).
//!
//! Providers take a part of JSON Schema. A server's schema is brought down to it: what a provider would refuse is left out or
//! put in a form that it takes, and what is too long is shortened until it fits. The raw schema stays what the server is
//! called by, and what arguments are checked against; nothing of this is seen by the upstream.
//!
//! Pure functions. Every schema is hostile: it is measured before anything recurses, each definition is converted once and
//! only if the root reaches it, and no reference is ever written out. Two spellings of one schema, with its keys in another
//! order, give the same bytes, so that a model's cache of the prompt holds.

mod convert;
mod definitions;
mod measure;
mod path;
mod shrink;
mod tuple;

pub(super) use measure::length;

#[cfg(test)]
mod tests;

use serde_json::Value;

pub use measure::{MAX_BYTES, MAX_DEPTH};
pub use shrink::{BUDGET, Shrunk};

/// The most repairs that are listed for one schema; it may have a million.
pub const MAX_REPAIRS: usize = 64;

/// A schema that a provider takes.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSchema {
    /// The schema. Its keys, properties and definitions are sorted.
    pub value: Value,
    /// What was repaired, at most [`MAX_REPAIRS`].
    pub repairs: Vec<Repair>,
    /// How many repairs there were besides.
    pub unlisted: usize,
    /// What was left out for its length.
    pub shrunk: Shrunk,
}

/// A mistake of the server's that was put right. Rules 21 to 24 are no repairs: they are what conversion is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repair {
    /// Where in the server's schema, as a JSON Pointer fit to be shown; at most 256 characters.
    pub pointer: String,
    /// What was done.
    pub what: Fix,
}

/// What was done about a mistake. Nothing that the server's schema describes in words is excluded by it; of items beyond the
/// places of a tuple, where that schema is silent, see [`Fix::Tuple`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fix {
    /// `items` or `prefixItems` gave each place of an array its own schema; C18. Further items that the server's schema is
    /// silent about, and so permits, are not described.
    #[error("items that have a schema each are described as any of these schemas")]
    Tuple,
    /// `required` was one name; C19.
    #[error("`required` was one name and is a list of it")]
    RequiredName,
    /// `required` had entries that are no names.
    #[error("entries of `required` that are not strings are left out")]
    RequiredEntries,
    /// A keyword that only describes or restricts had a value of a type that it cannot have; C19, C20.
    #[error("`{0}` has a value that it cannot have and is left out")]
    Dropped(&'static str),
}

/// Why a schema cannot be converted: the tool is left out and reported, other tools stay (rule 18).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unconvertible {
    /// It is longer than [`MAX_BYTES`].
    #[error("the schema has {0} bytes of JSON, more than {MAX_BYTES}")]
    TooLarge(usize),
    /// It is deeper than [`MAX_DEPTH`].
    #[error("the schema is deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// It is no object.
    #[error("the schema is {0}, not an object")]
    Root(&'static str),
    /// It describes nothing but null; C7.
    #[error("the schema must not be of the type null alone")]
    Null,
    /// A schema has to stand there.
    #[error("`{pointer}` is {found}, not a schema")]
    NotASchema {
        /// Where.
        pointer: String,
        /// The type of what stands there.
        found: &'static str,
    },
    /// A keyword that holds schemas does not.
    #[error("`{pointer}` is {found}, not {wanted}")]
    NotSchemas {
        /// Where.
        pointer: String,
        /// The type of what stands there.
        found: &'static str,
        /// What should.
        wanted: &'static str,
    },
}

impl Unconvertible {
    /// Returns where the reason stands, as a JSON Pointer into the server's schema; empty for the schema as a whole.
    #[must_use]
    pub fn pointer(&self) -> &str {
        match self {
            Self::TooLarge(_) | Self::TooDeep | Self::Root(_) | Self::Null => "",
            Self::NotASchema { pointer, .. } | Self::NotSchemas { pointer, .. } => pointer,
        }
    }
}

/// Converts the input schema of a tool: arguments are an object, so `properties` is there in any case (rule 20).
///
/// # Errors
/// [`Unconvertible`], with the place of the first reason.
pub fn for_model(schema: &Value) -> Result<ModelSchema, Unconvertible> {
    if !schema.is_object() {
        return Err(Unconvertible::Root(kind(schema)));
    }
    run(schema, Root::Arguments)
}

/// Converts a schema that may describe anything: rules 21 to 25 without rule 20.
///
/// # Errors
/// [`Unconvertible`], with the place of the first reason.
pub fn convert(schema: &Value) -> Result<ModelSchema, Unconvertible> {
    run(schema, Root::Anything)
}

/// What the root describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Root {
    /// The arguments of a tool.
    Arguments,
    /// Anything.
    Anything,
}

fn run(schema: &Value, root: Root) -> Result<ModelSchema, Unconvertible> {
    measure::check(schema)?;
    let mut conversion = convert::Conversion::new(root);
    let mut value = definitions::with_reachable(schema, &mut conversion)?;
    if value.get("type").is_some_and(|kind| kind == "null") {
        return Err(Unconvertible::Null);
    }
    let shrunk = shrink::to_budget(&mut value, root);
    let (repairs, unlisted) = conversion.into_repairs();
    Ok(ModelSchema { value, repairs, unlisted, shrunk })
}

/// The type of a value, for people.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
