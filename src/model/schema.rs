//! JSON Schemas that come from outside: a server's for arguments and answers, a component's for its settings.
//!
//! Whoever wrote one may be hostile, so it is bounded: nothing is fetched, patterns run in linear time, and a schema that would be
//! too large or too deep with all of its references written out is refused before it is compiled. It may refer to itself where
//! each way round goes into the value; then every value is weighed before the library looks at it (`weight`), so that no value
//! takes the library deeper than its stack bears.

use std::collections::HashMap;

use serde_json::Value;

use super::text;
use super::weight::{self, Shape, TooHeavy, Weight};

/// The most values of a schema with its references written out.
const MAX_EXPANDED: usize = 20_000;
/// The largest compiled pattern, in bytes.
const MAX_PATTERN: usize = 1024 * 1024;
/// What all patterns of one schema may take, in bytes.
const MAX_PATTERNS: usize = 16 * MAX_PATTERN;

/// Why a schema cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSchema {
    /// Its references lead nowhere or out of it, go round without going into a value, or it is too large or too deep with all of
    /// them written out.
    #[error(
        "refers out of itself, or to itself without going into a value, or is too large or too deep with all references written \
         out"
    )]
    References,
    /// It is no schema, or a pattern of it is none or too large.
    #[error("is no JSON Schema: {0}")]
    Invalid(String),
}

/// A schema that was compiled.
#[derive(Debug)]
pub struct Schema {
    validator: jsonschema::Validator,
    values: usize,
    /// What values are weighed by; none where the schema ends by itself.
    recursive: Option<Box<Value>>,
}

/// What is wrong with a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// A JSON Pointer to where; empty for the whole value.
    pub pointer: String,
    /// What was wanted there, with the value.
    pub text: String,
    /// What was wanted there, without the value.
    pub masked: String,
}

/// A value is too deep or too large to be checked against a schema that refers to itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is too deep or too large to be checked against a schema that refers to itself")]
pub struct TooDeep;

impl From<TooHeavy> for TooDeep {
    fn from(_: TooHeavy) -> Self {
        Self
    }
}

/// How often parts of a schema that refers to itself may be applied for its violations to be collected: the library collects what
/// it has found before once more, so that there may be more of them than anything could hold.
const MOST_COLLECTED: u64 = 1 << 16;

impl Schema {
    /// Returns how many values it has with its references written out, each round once.
    #[must_use]
    pub fn values(&self) -> usize {
        self.values
    }

    /// Whether it refers to itself: checking a value costs some more then.
    #[must_use]
    pub fn is_recursive(&self) -> bool {
        self.recursive.is_some()
    }

    /// Returns at most `most` of what is wrong with a value; nothing if it is valid.
    ///
    /// # Errors
    /// [`TooDeep`]; whether it is valid is not known then.
    pub fn violations(&self, value: &Value, most: usize) -> Result<Vec<Violation>, TooDeep> {
        if let Some(Weight { times, .. }) = self.weigh(value)?
            && times > MOST_COLLECTED
        {
            // The library remembers what it has found valid, so that this costs no more than there are parts and values.
            let text = "it does not fit a schema that refers to itself; where cannot be told".to_owned();
            let whole = Violation { pointer: String::new(), masked: text.clone(), text };
            return Ok(if self.validator.is_valid(value) { Vec::new() } else { vec![whole] });
        }
        let violation = |error: jsonschema::ValidationError<'_>| Violation {
            pointer: error.instance_path().to_string(),
            text: error.to_string(),
            masked: error.masked().to_string(),
        };
        Ok(self.validator.iter_errors(value).take(most).map(violation).collect())
    }

    /// Whether a value is valid; one that is too deep to be checked is not.
    #[must_use]
    pub fn holds(&self, value: &Value) -> bool {
        self.weigh(value).is_ok() && self.validator.is_valid(value)
    }

    fn weigh(&self, value: &Value) -> Result<Option<Weight>, TooDeep> {
        self.recursive.as_ref().map(|schema| weight::weigh(schema, value)).transpose().map_err(TooDeep::from)
    }
}

/// Compiles a schema of the dialect that it names; without one, 2020-12.
///
/// # Errors
/// [`BadSchema`].
pub fn compile(schema: &Value) -> Result<Schema, BadSchema> {
    let values = size(schema)?;
    let recursive = match weight::shape(schema).ok_or(BadSchema::References)? {
        Shape::Finite => None,
        Shape::Recursive => Some(Box::new(schema.clone())),
    };
    let most = MAX_PATTERNS.checked_div(patterns(schema)).map_or(MAX_PATTERN, |share| share.min(MAX_PATTERN));
    let patterns = jsonschema::PatternOptions::regex().size_limit(most).dfa_size_limit(most);
    let options = jsonschema::options().with_pattern_options(patterns).should_validate_formats(false);
    let validator = options.build(schema).map_err(|error| BadSchema::Invalid(text::shown(&error.to_string(), 256)))?;
    Ok(Schema { validator, values, recursive })
}

/// Returns how many values a schema has with its references written out, each round once.
///
/// # Errors
/// [`BadSchema::References`].
pub fn size(schema: &Value) -> Result<usize, BadSchema> {
    let mut sizes = HashMap::new();
    expanded(schema, schema, &mut sizes, 0).filter(|size| *size <= MAX_EXPANDED).ok_or(BadSchema::References)
}

/// Returns how many patterns a schema can have at most.
fn patterns(schema: &Value) -> usize {
    match schema {
        Value::Object(members) => members
            .iter()
            .map(|(key, member)| match (key.as_str(), member) {
                ("patternProperties", Value::Object(by_pattern)) => by_pattern.len() + patterns(member),
                ("pattern", Value::String(_)) => 1,
                _ => patterns(member),
            })
            .sum(),
        Value::Array(items) => items.iter().map(patterns).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// Whether `instance` is valid. A schema that cannot be used says no.
#[must_use]
pub fn holds(schema: &Value, instance: &Value) -> bool {
    compile(schema).is_ok_and(|schema| schema.holds(instance))
}

/// Returns how many values the schema has with its references written out; `None` for references that lead nowhere or out of the
/// schema, and for a total that is too large. Whether rounds have an end is not asked here.
fn expanded(root: &Value, value: &Value, sizes: &mut HashMap<String, Option<usize>>, depth: usize) -> Option<usize> {
    if depth > 256 {
        return None;
    }
    let mut total: usize = 1;
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                let size = match (key.as_str(), member) {
                    ("$ref", Value::String(reference)) => match sizes.get(reference) {
                        // `None` while it is being measured: it goes round, and counts where it began.
                        Some(known) => known.unwrap_or(1),
                        None => {
                            let target = weight::target(root, reference)?;
                            sizes.insert(reference.clone(), None);
                            let size = expanded(root, target, sizes, depth + 1)?;
                            sizes.insert(reference.clone(), Some(size));
                            size
                        }
                    },
                    ("$dynamicRef" | "$recursiveRef", Value::String(_)) => return None,
                    _ => expanded(root, member, sizes, depth + 1)?,
                };
                total = total.saturating_add(size);
            }
        }
        Value::Array(items) => {
            for item in items {
                total = total.saturating_add(expanded(root, item, sizes, depth + 1)?);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    (total <= MAX_EXPANDED).then_some(total)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_valid_instance_holds_and_another_one_does_not() {
        let schema = json!({"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]});
        assert!(holds(&schema, &json!({"n": 1})));
        assert!(!holds(&schema, &json!({"n": "[redacted: secret]"})));
        assert!(!holds(&schema, &json!({})));
    }

    #[test]
    fn references_within_the_schema_are_followed() {
        let schema = json!({"$defs":{"n":{"type":"integer"}},"properties":{"a":{"$ref":"#/$defs/n"}}});
        assert!(holds(&schema, &json!({"a": 1})));
        assert!(!holds(&schema, &json!({"a": "x"})));
    }

    #[test]
    fn a_schema_that_refers_to_itself_holds_for_what_it_says_at_every_depth() {
        let tree = json!({
            "type": "object",
            "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#"}}},
            "required": ["name"],
            "additionalProperties": false,
        });
        let nested = |depth: usize, leaf: Value| {
            (0..depth).fold(leaf, |inner, _| json!({"name": "n", "children": [inner, {"name": "m"}]}))
        };
        for depth in [0, 1, 7, 60] {
            assert!(holds(&tree, &nested(depth, json!({"name": "leaf"}))), "{depth}");
            let bad = nested(depth, json!({"name": 7}));
            assert!(!holds(&tree, &bad), "{depth}");
            let found = compile(&tree).unwrap().violations(&bad, 3).unwrap();
            assert_eq!((found.len(), found[0].pointer.clone()), (1, "/children/0".repeat(depth) + "/name"));
        }
        assert_eq!(compile(&tree).unwrap().violations(&nested(200, json!({"name": 7})), 3), Err(TooDeep));
    }

    #[test]
    fn a_schema_that_doubles_with_every_level_ends_and_says_that_it_does_not_hold() {
        let part = json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]});
        let twice = json!({"anyOf": [part, {"const": 1}, part]});
        let nested = |depth: usize, leaf: Value| (0..depth).fold(leaf, |inner, _| json!({ "a": inner }));
        let schema = compile(&twice).unwrap();
        assert!(schema.holds(&nested(60, json!(1))));
        assert_eq!(schema.violations(&nested(60, json!(1)), 3), Ok(vec![]));
        let found = schema.violations(&nested(60, json!(2)), 3).unwrap();
        assert!(found.len() == 1 && found[0].text.contains("refers to itself"), "{found:?}");
        // A small one is told where.
        assert_eq!(schema.violations(&nested(2, json!(2)), 3).unwrap().len(), 1);
    }

    #[test]
    fn the_longest_ways_that_are_let_through_fit_into_the_stack_of_a_thread() {
        // Parts of a round: the member, one of each composition, the reference, and the whole again.
        let level = json!({"oneOf": [{"allOf": [{"anyOf": [{"$ref": "#"}, {"const": 1}]}]}]});
        let round = json!({"type": "object", "properties": {"a": level}, "additionalProperties": false});
        let nested = |depth: usize, leaf: Value| (0..depth).fold(leaf, |inner, _| json!({ "a": inner }));
        let link = |at: usize| (at.to_string(), json!({"$ref": format!("#/$defs/{}", at + 1)}));
        let mut defs: serde_json::Map<String, Value> = (0..190).map(link).collect();
        defs.insert("190".to_owned(), json!({"type": "object"}));
        let chain = json!({"$defs": defs, "$ref": "#/$defs/0"});
        let checks = move || {
            let schema = compile(&round).unwrap();
            assert!(schema.holds(&nested(50, json!({}))));
            assert_eq!(schema.violations(&nested(50, json!({})), 3), Ok(vec![]));
            assert_eq!(schema.violations(&nested(50, json!({"b": 1})), 3).unwrap().len(), 1);
            assert_eq!(schema.violations(&nested(60, json!({})), 3), Err(TooDeep));
            let schema = compile(&chain).unwrap();
            assert!(schema.holds(&json!({})) && !schema.holds(&json!(7)));
            assert_eq!(schema.violations(&json!(7), 3).unwrap().len(), 1);
        };
        // As much as the threads of the runtime have.
        std::thread::Builder::new().stack_size(2 << 20).spawn(checks).unwrap().join().unwrap();
    }

    #[test]
    fn a_schema_that_goes_round_out_or_on_for_ever_holds_for_nothing() {
        let mut bomb = serde_json::Map::new();
        for level in 0..40 {
            let next = format!("#/$defs/{}", level + 1);
            bomb.insert(level.to_string(), json!({"allOf": [{"$ref": next}, {"$ref": next}]}));
        }
        bomb.insert("40".to_owned(), json!({}));
        for bad in [
            json!({"$ref": "#"}),
            json!({"anyOf": [{"type": "object"}, {"$ref": "#"}]}),
            json!({"properties": {"a": {"$ref": "#"}}, "unevaluatedProperties": false}),
            json!({"$ref": "https://example.org/schema"}),
            json!({"$ref": "#/nowhere"}),
            json!({"$ref": "#/$defs/0", "$defs": bomb}),
            json!({"type": "no such type"}),
        ] {
            assert!(!holds(&bad, &json!({"a": 1})), "{bad}");
        }
    }

    #[test]
    fn many_patterns_share_what_all_of_them_may_take() {
        let large = |count: usize| {
            let one = |at| (format!("p{at}"), json!({"pattern": "[a-z]{4000}"}));
            json!({"properties": (0..count).map(one).collect::<serde_json::Map<_, _>>()})
        };
        assert!(compile(&large(1)).is_ok());
        assert!(matches!(compile(&large(500)), Err(BadSchema::Invalid(_))));
    }

    #[test]
    fn patterns_run_in_linear_time() {
        let schema = json!({"properties":{"a":{"type":"string","pattern":"^(a+)+$"}}});
        assert!(!holds(&schema, &json!({"a": format!("{}!", "a".repeat(50_000))})));
    }
}
