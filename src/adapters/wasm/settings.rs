//! A component's settings, as it may read them.

use serde_json::{Map, Value};

use super::limits::MAX_READ;
use crate::model::verdict::{Fault, FaultCode};

/// The settings of one component. Immutable.
#[derive(Debug)]
pub(super) struct Settings {
    value: Value,
    text: String,
}

impl Settings {
    /// Takes an object; null is no settings.
    ///
    /// # Errors
    /// A `settings` fault for another value, and for one that a component could not read in one piece.
    pub(super) fn new(value: Value) -> Result<Self, Fault> {
        let value = match value {
            Value::Null => Value::Object(Map::new()),
            Value::Object(_) => value,
            _ => return Err(Fault::new(FaultCode::Settings, "settings must be a table")),
        };
        let text = sorted_json(&value).ok_or_else(|| {
            Fault::new(FaultCode::Settings, format!("settings have more than {MAX_READ} bytes as JSON text"))
        })?;
        Ok(Self { value, text })
    }

    /// Returns all settings.
    pub(super) fn value(&self) -> &Value {
        &self.value
    }

    /// Returns all settings as JSON text with sorted keys.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the setting at an RFC 6901 pointer as JSON text.
    pub(super) fn at(&self, pointer: &str) -> Option<String> {
        sorted_json(self.value.pointer(pointer)?)
    }
}

/// Returns the value as JSON text with sorted keys, numbers as they were spelled; none beyond [`MAX_READ`] bytes.
///
/// Not the canonical text that digests are taken over: a guest should read `1000`, not `1e3`.
pub(super) fn sorted_json(value: &Value) -> Option<String> {
    let mut out = Bounded(Vec::new());
    write_sorted(value, &mut out).ok()?;
    String::from_utf8(out.0).ok()
}

/// Returns an object as [`sorted_json`] does.
pub(super) fn sorted_object(members: &Map<String, Value>) -> Option<String> {
    let mut out = Bounded(Vec::new());
    write_members(members, &mut out).ok()?;
    String::from_utf8(out.0).ok()
}

fn write_members(members: &Map<String, Value>, out: &mut Bounded) -> std::io::Result<()> {
    use std::io::Write as _;
    let mut sorted: Vec<_> = members.iter().collect();
    sorted.sort_by_key(|(key, _)| *key);
    out.write_all(b"{")?;
    for (i, (key, value)) in sorted.into_iter().enumerate() {
        out.write_all(if i > 0 { b"," } else { b"" })?;
        serde_json::to_writer(&mut *out, key)?;
        out.write_all(b":")?;
        write_sorted(value, out)?;
    }
    out.write_all(b"}")
}

fn write_sorted(value: &Value, out: &mut Bounded) -> std::io::Result<()> {
    use std::io::Write as _;
    match value {
        Value::Object(members) => write_members(members, out),
        Value::Array(items) => {
            out.write_all(b"[")?;
            for (i, item) in items.iter().enumerate() {
                out.write_all(if i > 0 { b"," } else { b"" })?;
                write_sorted(item, out)?;
            }
            out.write_all(b"]")
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            Ok(serde_json::to_writer(&mut *out, value)?)
        }
    }
}

/// Stops the work, not only the result, at the limit.
struct Bounded(Vec<u8>);

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_READ {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_are_sorted_at_every_depth_and_numbers_keep_their_spelling() {
        let value = json!({"b": [{"z": 1, "a": 1000}], "a": "é\n"});
        assert_eq!(sorted_json(&value).unwrap(), r#"{"a":"é\n","b":[{"a":1000,"z":1}]}"#);
    }

    #[test]
    fn what_is_longer_than_one_read_is_not_written_at_all() {
        assert_eq!(sorted_json(&json!("x".repeat(MAX_READ))), None);
        assert!(sorted_json(&json!("x".repeat(MAX_READ - 2))).is_some());
    }

    #[test]
    fn settings_that_are_no_table_are_refused() {
        assert_eq!(Settings::new(json!([1])).unwrap_err().code, FaultCode::Settings);
        assert_eq!(Settings::new(Value::Null).unwrap().text(), "{}");
    }
}
