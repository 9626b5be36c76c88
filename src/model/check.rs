//! Whether arguments are what a tool's input schema describes.
//!
//! The schema is the server's own, in the dialect that it names. One that cannot be used (see [`schema`]) checks nothing: the
//! tool still works, and whoever lists the tools is told why its arguments go unchecked.

use std::sync::{Arc, OnceLock};

use serde_json::Value;

use super::arguments::Arguments;
use super::schema::{self, BadSchema};
use super::text;

/// How many violations are told.
const MAX_TOLD: usize = 3;
/// Up to this much work the check is done at once: values of the schema, times bytes of the arguments.
const LIGHT: usize = 1 << 22;
/// With more work than this, arguments are not checked but refused.
const MOST: usize = 1 << 31;

/// Why arguments do not fit a tool's input schema.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// They violate it. Values are not told, only places and what was wanted there.
    #[error("the arguments do not fit the tool's input schema: {}{}", .told.join("; "), if *.more { "; and more" } else { "" })]
    Violates {
        /// Each violation: a JSON Pointer into the arguments, and what is wrong there.
        told: Vec<String>,
        /// Whether there are others.
        more: bool,
    },
    /// Checking them would take too long.
    #[error(
        "arguments of {bytes} bytes are too many to be checked against an input schema of {values} values; `check_arguments = \
         false` for this server switches the check off"
    )]
    TooMuch {
        /// The size of the arguments.
        bytes: usize,
        /// The size of the schema.
        values: usize,
    },
}

/// A tool's input schema as a check of arguments; compiled when it is first needed, once for all its clones.
#[derive(Debug, Clone, Default)]
pub struct ArgumentCheck(Arc<OnceLock<Result<Compiled, BadSchema>>>);

#[derive(Debug)]
struct Compiled {
    validator: jsonschema::Validator,
    values: usize,
}

impl ArgumentCheck {
    fn compiled(&self, input: &Value) -> Result<&Compiled, &BadSchema> {
        let compile = || Ok(Compiled { values: schema::size(input)?, validator: schema::compile(input)? });
        self.0.get_or_init(compile).as_ref()
    }

    /// Returns why `input` checks nothing, if so.
    pub(super) fn unusable(&self, input: &Value) -> Option<&BadSchema> {
        self.compiled(input).err()
    }

    /// Whether checking may take long enough to be done aside.
    pub(super) fn is_heavy(&self, arguments: &Arguments, input: &Value) -> bool {
        match self.0.get() {
            Some(Ok(compiled)) => compiled.values.saturating_mul(arguments.canonical().len()) > LIGHT,
            Some(Err(_)) => false,
            // What it comes to is not known before it is compiled, and a large one takes a while to be.
            None => {
                schema::size(input).is_ok_and(|values| values > 1000 || values * arguments.canonical().len() > LIGHT)
            }
        }
    }

    /// Checks arguments against `input`, the schema that this was made for.
    pub(super) fn check(&self, arguments: &Arguments, input: &Value) -> Result<(), Unfit> {
        let Ok(Compiled { validator, values }) = self.compiled(input) else { return Ok(()) };
        let bytes = arguments.canonical().len();
        if values.saturating_mul(bytes) > MOST {
            return Err(Unfit::TooMuch { bytes, values: *values });
        }
        let instance = arguments.object().cloned().map_or_else(|| Value::Object(serde_json::Map::new()), Value::Object);
        let mut errors = validator.iter_errors(&instance);
        let told: Vec<String> = errors.by_ref().take(MAX_TOLD).map(|error| told(&error)).collect();
        if told.is_empty() {
            return Ok(());
        }
        Err(Unfit::Violates { told, more: errors.next().is_some() })
    }
}

fn told(error: &jsonschema::ValidationError<'_>) -> String {
    let place = error.instance_path().to_string();
    let place = if place.is_empty() { "at the top".to_owned() } else { format!("at {}", text::shown(&place, 128)) };
    format!("{place}, {}", text::shown(&error.masked().to_string(), 256))
}

/// Two checks are alike: what they check by is beside them.
impl PartialEq for ArgumentCheck {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(input: &Value, arguments: &str) -> Result<(), Unfit> {
        ArgumentCheck::default().check(&Arguments::parse(arguments).unwrap(), input)
    }

    #[test]
    fn a_violation_is_told_by_its_pointer_and_without_the_value() {
        let input =
            json!({"type":"object","properties":{"a":{"type":"array","items":{"type":"integer"}}},"required":["b"]});
        let told = check(&input, r#"{"a":[1,"hunter2"]}"#).unwrap_err().to_string();
        assert!(told.contains("at /a/1") && told.contains("integer"), "{told}");
        assert!(told.contains("at the top") && told.contains("\"b\""), "{told}");
        assert!(!told.contains("hunter2"), "{told}");
        assert_eq!(check(&input, r#"{"a":[1],"b":null}"#), Ok(()));
    }

    #[test]
    fn no_arguments_are_an_empty_object() {
        assert_eq!(check(&json!({"type":"object"}), ""), Ok(()));
        assert!(check(&json!({"type":"object","required":["a"]}), "").is_err());
    }

    #[test]
    fn no_more_violations_are_told_than_a_reader_takes() {
        let input = json!({"additionalProperties":{"type":"integer"}});
        let Err(Unfit::Violates { told, more }) = check(&input, r#"{"a":"","b":"","c":"","d":""}"#) else { panic!() };
        assert_eq!((told.len(), more), (MAX_TOLD, true));
    }

    #[test]
    fn the_dialect_that_the_schema_names_is_honoured() {
        let tuple = |dialect: &str| json!({"$schema": dialect, "properties": {"a": {"items": [{"type": "integer"}]}}});
        let (old, new) = ("http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema");
        assert!(check(&tuple(old), r#"{"a":["x"]}"#).is_err());
        // There, `items` is one schema: a list of them makes no schema, so nothing is checked.
        assert!(ArgumentCheck::default().unusable(&tuple(new)).is_some());
    }

    #[test]
    fn a_schema_that_cannot_be_used_checks_nothing_and_says_why() {
        let round = json!({"properties":{"a":{"$ref":"#"}}});
        assert_eq!(check(&round, r#"{"a":7}"#), Ok(()));
        assert_eq!(ArgumentCheck::default().unusable(&round), Some(&BadSchema::References));
    }

    #[test]
    fn what_would_take_too_long_is_refused() {
        let wide: Vec<Value> = (0..19_000).map(|at| json!(at)).collect();
        let long = format!(r#"{{"a":"{}"}}"#, "x".repeat(200_000));
        let input = json!({"properties":{"a":{"enum": wide}}});
        assert!(matches!(check(&input, &long), Err(Unfit::TooMuch { .. })));
        assert!(ArgumentCheck::default().is_heavy(&Arguments::parse(&long).unwrap(), &input));
    }
}
