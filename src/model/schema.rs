//! JSON Schemas that come from outside: a server's for arguments and answers, a component's for its settings.
//!
//! Whoever wrote one may be hostile, so it is bounded: nothing is fetched, patterns run in linear time, and a schema whose
//! references go round, or which would be too large with all of them written out, is refused before it is compiled. Compiled,
//! one that goes round would recurse until the stack is gone.

use std::collections::HashMap;

use serde_json::Value;

use super::text;

/// The most values of a schema with its references written out.
const MAX_EXPANDED: usize = 20_000;
/// The largest compiled pattern, in bytes.
const MAX_PATTERN: usize = 1024 * 1024;
/// What all patterns of one schema may take, in bytes.
const MAX_PATTERNS: usize = 16 * MAX_PATTERN;

/// Why a schema cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSchema {
    /// Its references go round, lead nowhere or out of it, or it is too large with all of them written out.
    #[error("refers to itself or out of itself, or is too large with all references written out")]
    References,
    /// It is no schema, or a pattern of it is none or too large.
    #[error("is no JSON Schema: {0}")]
    Invalid(String),
}

/// Compiles a schema of the dialect that it names; without one, 2020-12.
///
/// # Errors
/// [`BadSchema`].
pub fn compile(schema: &Value) -> Result<jsonschema::Validator, BadSchema> {
    size(schema)?;
    let most = MAX_PATTERNS.checked_div(patterns(schema)).map_or(MAX_PATTERN, |share| share.min(MAX_PATTERN));
    let patterns = jsonschema::PatternOptions::regex().size_limit(most).dfa_size_limit(most);
    let options = jsonschema::options().with_pattern_options(patterns).should_validate_formats(false);
    options.build(schema).map_err(|error| BadSchema::Invalid(text::shown(&error.to_string(), 256)))
}

/// Returns how many values a schema has with its references written out.
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
    compile(schema).is_ok_and(|validator| validator.is_valid(instance))
}

/// Returns how many values the schema has with its references written out; `None` for references that go round, lead
/// nowhere or out of the schema, and for a total that is too large.
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
                        // `None` while it is being measured: it goes round.
                        Some(known) => (*known)?,
                        None => {
                            let target = root.pointer(reference.strip_prefix('#')?)?;
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
    fn a_schema_that_goes_round_out_or_on_for_ever_holds_for_nothing() {
        let mut bomb = serde_json::Map::new();
        for level in 0..40 {
            let next = format!("#/$defs/{}", level + 1);
            bomb.insert(level.to_string(), json!({"allOf": [{"$ref": next}, {"$ref": next}]}));
        }
        bomb.insert("40".to_owned(), json!({}));
        for bad in [
            json!({"$ref": "#"}),
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
