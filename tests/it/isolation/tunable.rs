//! A component that describes its settings, from the kit's `settings!` to the fault that names the place.

use std::sync::Arc;

use portcullis::adapters::wasm::{Admission, Admitted};
use portcullis::model::verdict::{Fault, FaultCode, Verdict};
use portcullis::ports::approval::ApprovalComponent as _;
use serde_json::{Value, json};

use crate::support::policy::{engine, facts, patient, source};

fn admit(settings: Value) -> Result<Admitted, Fault> {
    let bytes = guest_builder::build("tunable").unwrap();
    engine().admit(&bytes, Admission { settings, limits: patient(), ..Admission::plain(source("tunable")) })
}

#[test]
fn settings_that_break_the_schema_or_the_components_own_rule_are_refused_by_their_place() {
    let cases = [
        (json!({"word": 7}), "/word", "string"),
        (json!({"word": "ab"}), "/word", "shorter than 3"),
        (json!({"word": "word", "longest": 0}), "/longest", "minimum"),
        (json!({"longest": 5}), "", "required"),
        (json!({"word": "word", "wrod": 1}), "", "wrod"),
        (json!({"word": "two words"}), "/word", "must be one word of small letters"),
    ];
    for (settings, place, why) in cases {
        let fault = admit(settings.clone()).expect_err("they were taken");
        assert_eq!(fault.code, FaultCode::Settings, "{settings}: {fault}");
        assert!(fault.detail.contains(place) && fault.detail.contains(why), "{settings}: {fault}");
    }
}

#[tokio::test]
async fn settings_that_are_good_are_what_the_component_decides_by() {
    let mut said = Vec::new();
    for settings in [json!({"word": "secret"}), json!({"word": "other", "longest": 5})] {
        let component = admit(settings).unwrap().approval.unwrap();
        let verdict = component.evaluate(Arc::new(facts("test/any", r#"{"text":"secret"}"#))).await.result.unwrap();
        let Verdict::Deny(why) = verdict else { panic!("{verdict:?}") };
        said.push(why.rule.unwrap().to_string());
    }
    assert_eq!(said, ["the-word", "too-long"]);
}
