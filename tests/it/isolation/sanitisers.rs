//! A sanitiser that misbehaves is stopped like any other component, and what it says is bounded before anybody applies it.

use std::sync::Arc;

use portcullis::adapters::wasm::Admission;
use portcullis::model::verdict::FaultCode;
use portcullis::ports::sanitiser::{Place, Sanitised, SanitiserComponent as _, Target, Verdict};

use super::{is_out_of_budget, works_still};
use crate::support::policy::{engine, output, patient, source};

async fn behave(how: &str) -> Sanitised {
    let bytes = guest_builder::build("hostile").unwrap();
    let wanted = Admission { limits: patient(), ..Admission::plain(source("under-test")) };
    let sanitiser = engine().admit(&bytes, wanted).unwrap().sanitiser.unwrap();
    let target = Target { place: Place::Text, pointer: "/content/0/text".to_owned(), text: "a bad text".into() };
    let said = sanitiser.sanitise(Arc::new(output(&format!("test/{how}"), target))).await;
    works_still().await;
    said
}

async fn code(how: &str) -> FaultCode {
    behave(how).await.result.expect_err("it was not stopped").code
}

#[tokio::test]
async fn r14_a_sanitiser_that_runs_for_ever_is_stopped() {
    for how in ["loop", "find-for-ever"] {
        assert!(is_out_of_budget(code(how).await), "{how}");
    }
    assert_eq!(code("panic").await, FaultCode::Trap);
}

#[tokio::test]
async fn r41_more_edits_than_the_bound_are_a_fault_and_never_cut() {
    assert!(matches!(behave("edits-4096").await.result, Ok((Verdict::Edit(edits), _)) if edits.len() == 4096));
    assert_eq!(code("edits-4097").await, FaultCode::OutputTooLarge);
}

#[tokio::test]
async fn r41_patterns_that_are_too_many_too_large_or_none_are_a_fault() {
    for how in ["patterns-257", "pattern-bomb", "pattern-of-nothing"] {
        assert_eq!(code(how).await, FaultCode::OutputInvalid, "{how}");
    }
}

#[tokio::test]
async fn r30_a_sanitisers_rule_is_never_prose() {
    assert_eq!(code("rule-of-prose").await, FaultCode::OutputInvalid);
}

#[tokio::test]
async fn nothing_is_left_of_an_answer_for_the_next() {
    for _ in 0..2 {
        assert!(matches!(behave("count-calls").await.result, Ok((Verdict::Withhold(text), _)) if text == "1"));
    }
}

#[tokio::test]
async fn a_target_that_is_not_there_has_no_text() {
    assert!(matches!(behave("target-nowhere").await.result, Ok((Verdict::Withhold(text), _)) if text == "None"));
}
