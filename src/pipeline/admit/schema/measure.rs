//! Bounds on a schema, checked without recursion before anything recurses.

use std::io;

use serde_json::Value;

use super::Unconvertible;
use crate::model::tool::MAX_DEFINITION;

/// The largest schema, in bytes of compact JSON: that of a whole definition.
pub const MAX_BYTES: usize = MAX_DEFINITION;
/// The deepest schema, in levels of JSON. Twice what a definition can have.
pub const MAX_DEPTH: usize = 256;

/// Whether the schema is within the bounds.
pub(super) fn check(schema: &Value) -> Result<(), Unconvertible> {
    let mut open = vec![(schema, 0_usize)];
    while let Some((value, depth)) = open.pop() {
        if depth > MAX_DEPTH {
            return Err(Unconvertible::TooDeep);
        }
        match value {
            Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(members) => open.extend(members.values().map(|member| (member, depth + 1))),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let bytes = length(schema);
    if bytes > MAX_BYTES { Err(Unconvertible::TooLarge(bytes)) } else { Ok(()) }
}

/// Returns the length of a value as compact JSON, in bytes, without writing it anywhere.
pub(in crate::pipeline::admit) fn length(value: &impl serde::Serialize) -> usize {
    let mut count = Count(0);
    // What cannot be written is no value of ours; it counts as too long.
    if serde_json::to_writer(&mut count, value).is_ok() { count.0 } else { usize::MAX }
}

struct Count(usize);

impl io::Write for Count {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.saturating_add(bytes.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
