//! What a component says of its own settings, asked when it is loaded.

use std::sync::Arc;

use serde_json::Value;

use super::engine::Shared;
use super::limits::Budget;
use super::run::Component;
use super::state::Subject;
use crate::model::schema;
use crate::model::text::shown;
use crate::model::verdict::{Fault, FaultCode};

/// The most problems that one message names.
const NAMED: usize = 4;

/// Checks a component's settings against the schema that it brings, then has it look at them itself.
///
/// # Errors
/// A `settings` fault with each place and what is wrong there, also for a schema that is none; or what the component ended with.
pub(super) fn check(shared: &Shared, component: &Arc<Component>) -> Result<(), Fault> {
    let budget = Budget::deciding(&component.limits);
    let schema = component.run(shared, &budget, || Subject::Nothing, |hooks, store| hooks.schema(store)).result?;
    let found = against(&schema, component.settings.value())?;
    refuse(found)?;
    let text = component.settings.text();
    let own = component.run(shared, &budget, || Subject::Nothing, |hooks, store| hooks.validate(store, text));
    refuse(own.result?)
}

/// Compares settings with a JSON Schema. A guest wrote it, so it is bounded like any other from outside.
fn against(text: &str, settings: &Value) -> Result<Vec<(String, String)>, Fault> {
    let bad = |why: &str| Fault::new(FaultCode::Settings, format!("the schema that it brings for its settings {why}"));
    let schema: Value = serde_json::from_str(text).map_err(|error| bad(&format!("is no JSON: {error}")))?;
    let compiled = schema::compile(&schema).map_err(|error| bad(&error.to_string()))?;
    let violations = compiled.violations(settings, NAMED + 1);
    let violations = violations.map_err(|deep| Fault::new(FaultCode::Settings, format!("what is set {deep}")))?;
    Ok(violations.into_iter().map(|violation| (violation.pointer, violation.text)).collect())
}

fn refuse(problems: Vec<(String, String)>) -> Result<(), Fault> {
    if problems.is_empty() {
        return Ok(());
    }
    let more = if problems.len() > NAMED { "; and more" } else { "" };
    let named = problems.iter().take(NAMED).map(|(pointer, message)| {
        let place = if pointer.is_empty() { "settings".to_owned() } else { format!("settings{}", shown(pointer, 64)) };
        format!("{place}: {}", shown(message, 160))
    });
    let named: Vec<String> = named.collect();
    Err(Fault::new(FaultCode::Settings, format!("{}{more}", named.join("; "))))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_that_do_not_fit_are_named_by_place() {
        let schema = r#"{"properties":{"limit":{"type":"integer"}}}"#;
        assert_eq!(against(schema, &json!({ "limit": 1 })), Ok(vec![]));
        let fault = refuse(against(schema, &json!({ "limit": "x" })).unwrap()).unwrap_err();
        assert_eq!(fault.code, FaultCode::Settings);
        assert!(fault.detail.starts_with("settings/limit: "), "{fault}");
    }

    #[test]
    fn a_schema_that_goes_round_is_no_json_or_none_is_a_fault_and_ends_nothing() {
        for bad in [r##"{"$ref":"#"}"##, r#"{"$ref":"https://example.org/s"}"#, "{", r#"{"type":"no such type"}"#] {
            let fault = against(bad, &json!({ "a": 1 })).unwrap_err();
            assert_eq!(fault.code, FaultCode::Settings, "{bad}");
        }
    }

    #[test]
    fn patterns_of_a_schema_run_in_linear_time() {
        let schema = r#"{"properties":{"a":{"pattern":"^(a+)+$"}}}"#;
        assert_eq!(against(schema, &json!({ "a": format!("{}!", "a".repeat(50_000)) })).unwrap().len(), 1);
    }
}
