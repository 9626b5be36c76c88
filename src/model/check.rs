//! Whether arguments are what a tool's input schema describes.
//!
//! The schema is the server's own, in the dialect that it names. One that cannot be used (see [`schema`]) checks nothing: the
//! tool still works, and whoever lists the tools is told why its arguments go unchecked.

use std::sync::{Arc, OnceLock};

use serde_json::Value;

use super::arguments::Arguments;
use super::schema::{self, BadSchema, Schema, TooDeep, Violation};
use super::text;

/// How many violations are told.
const MAX_TOLD: usize = 3;
/// Up to this much work the check is done at once: values of the schema, times bytes of the arguments.
const LIGHT: usize = 1 << 22;
/// The same for a schema that refers to itself: every value is weighed first, and some are looked at several times.
const LIGHT_RECURSIVE: usize = LIGHT >> 5;
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
    /// They are nested too deep to be checked against a schema that refers to itself.
    #[error(
        "the arguments are nested too deep, or are too many, to be checked against an input schema that refers to itself; \
         `check_arguments = false` for this server switches the check off"
    )]
    TooDeep,
}

/// A tool's input schema as a check of arguments; compiled when it is first needed, once for all its clones.
#[derive(Debug, Clone, Default)]
pub struct ArgumentCheck(Arc<OnceLock<Result<Schema, BadSchema>>>);

impl ArgumentCheck {
    fn compiled(&self, input: &Value) -> Result<&Schema, &BadSchema> {
        self.0.get_or_init(|| schema::compile(input)).as_ref()
    }

    /// Returns why `input` checks nothing, if so.
    pub(super) fn unusable(&self, input: &Value) -> Option<&BadSchema> {
        self.compiled(input).err()
    }

    /// Whether checking may take long enough to be done aside.
    pub(super) fn is_heavy(&self, arguments: &Arguments, input: &Value) -> bool {
        match self.0.get() {
            Some(Ok(compiled)) => {
                let light = if compiled.is_recursive() { LIGHT_RECURSIVE } else { LIGHT };
                compiled.values().saturating_mul(arguments.canonical().len()) > light
            }
            Some(Err(_)) => false,
            // What it comes to is not known before it is compiled, and a large one takes a while to be.
            None => {
                schema::size(input).is_ok_and(|values| values > 1000 || values * arguments.canonical().len() > LIGHT)
            }
        }
    }

    /// Checks arguments against `input`, the schema that this was made for.
    pub(super) fn check(&self, arguments: &Arguments, input: &Value) -> Result<(), Unfit> {
        let Ok(compiled) = self.compiled(input) else { return Ok(()) };
        let (bytes, values) = (arguments.canonical().len(), compiled.values());
        if values.saturating_mul(bytes) > MOST {
            return Err(Unfit::TooMuch { bytes, values });
        }
        let instance = arguments.object().cloned().map_or_else(|| Value::Object(serde_json::Map::new()), Value::Object);
        let violations = compiled.violations(&instance, MAX_TOLD + 1).map_err(|TooDeep| Unfit::TooDeep)?;
        if violations.is_empty() {
            return Ok(());
        }
        let more = violations.len() > MAX_TOLD;
        Err(Unfit::Violates { told: violations.iter().take(MAX_TOLD).map(told).collect(), more })
    }
}

fn told(Violation { pointer, masked, .. }: &Violation) -> String {
    let place = if pointer.is_empty() { "at the top".to_owned() } else { format!("at {}", text::shown(pointer, 128)) };
    format!("{place}, {}", text::shown(masked, 256))
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
    fn a_schema_that_refers_to_itself_checks_what_it_says_and_what_is_too_deep_for_it_is_refused() {
        let tree = json!({"type":"object","properties":{"a":{"$ref":"#"}}});
        let nested = |depth: usize, leaf: &str| format!("{}{leaf}{}", r#"{"a":"#.repeat(depth), "}".repeat(depth));
        assert_eq!(check(&tree, &nested(100, "{}")), Ok(()));
        let told = check(&tree, &nested(3, "7")).unwrap_err().to_string();
        assert!(told.contains("at /a/a/a") && told.contains("object"), "{told}");
        let chain = json!({"type":"object","properties":{"a":{"allOf":[{"allOf":[{"$ref":"#"}]}]}}});
        let told = check(&chain, &nested(100, "{}")).unwrap_err().to_string();
        assert!(told.contains("too deep") && told.contains("check_arguments"), "{told}");
        assert_eq!(check(&chain, &nested(50, "{}")), Ok(()));
    }

    #[test]
    fn a_schema_that_cannot_be_used_checks_nothing_and_says_why() {
        let round = json!({"properties":{"a":{"anyOf":[{"$ref":"#/properties/a"}]}}});
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
