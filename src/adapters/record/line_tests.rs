use std::sync::Arc;

use super::*;
use crate::model::item::ItemError;
use crate::model::name::ToolRef;
use crate::model::outcome::{Failure, Stage};
use crate::model::verdict::FaultCode;

fn parse(line: &[u8]) -> Value {
    let text = std::str::from_utf8(line).unwrap();
    assert!(text.ends_with('\n') && text.matches('\n').count() == 1, "not one line: {text:?}");
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_line_says_what_happened_to_which_call_and_holds_no_arguments() {
    let line = item(&samples::completed(), false, MAX_LINE).unwrap();
    assert!(!String::from_utf8_lossy(&line).contains("hunter2"));
    let value = parse(&line);
    assert_eq!(value["type"], "completed");
    assert_eq!(value["time"], "1970-01-01T00:00:00Z");
    assert_eq!(
        (&value["call"], &value["server"], &value["tool"]),
        (&"call_1".into(), &"files".into(), &"write".into())
    );
    assert_eq!(value["status"], "failed");
    assert_eq!(value["outcome"]["failed"]["code"], "denied");
    assert_eq!((value["wall_ms"].as_f64(), value["call_ms"].as_f64()), (Some(12.345), Some(0.0)));
    assert!(value.get("arguments").is_none() && value.get("cut").is_none());
}

#[test]
fn an_answer_is_in_no_line() {
    let Item::Completed(mut item) = samples::completed() else { panic!() };
    let result = serde_json::json!({ "content": [{ "type": "text", "text": "hunter3" }] });
    item.result = Some(Arc::new(result.as_object().unwrap().clone()));
    item.error = Some(ItemError { message: "hunter3".to_owned() });
    for include_arguments in [false, true] {
        let line = super::item(&Item::Completed(item.clone()), include_arguments, MAX_LINE).unwrap();
        assert!(!String::from_utf8_lossy(&line).contains("hunter3"));
    }
}

#[test]
fn arguments_are_there_when_asked_for() {
    let value = parse(&item(&samples::started(), true, MAX_LINE).unwrap());
    assert_eq!(value["arguments"]["token"], "hunter2");
    assert_eq!((&value["type"], &value["status"]), (&"started".into(), &"inProgress".into()));
    assert!(value.get("outcome").is_none());
}

#[test]
fn a_call_that_pollutes_memory_says_so_and_another_says_nothing() {
    let Item::Completed(mut item) = samples::completed() else { panic!() };
    assert!(parse(&super::item(&samples::completed(), true, MAX_LINE).unwrap()).get("pollutes_memory").is_none());
    item.pollutes_memory = true;
    assert_eq!(parse(&super::item(&Item::Completed(item), false, MAX_LINE).unwrap())["pollutes_memory"], true);
}

#[test]
fn references_to_files_are_there_when_arguments_are_asked_for_and_only_then() {
    let Item::Completed(mut item) = samples::completed() else { panic!() };
    item.tool_input = serde_json::json!({ "file": { "download_url": "hush" } }).as_object().cloned().map(Arc::new);
    let item = Item::Completed(item);
    let value = parse(&super::item(&item, true, MAX_LINE).unwrap());
    assert_eq!(value["tool_input"]["file"]["download_url"], "hush");
    assert!(parse(&super::item(&item, false, MAX_LINE).unwrap()).get("tool_input").is_none());
}

#[test]
fn a_line_that_is_too_long_loses_its_arguments_first_and_says_so() {
    let whole = item(&samples::started(), true, MAX_LINE).unwrap();
    let value = parse(&item(&samples::started(), true, whole.len() - 1).unwrap());
    assert!(value.get("arguments").is_none());
    assert_eq!(value["cut"], true);
    assert_eq!(value["caller"]["principal"], "me");
}

#[test]
fn a_huge_failure_leaves_its_code() {
    let failure = Failure::new(Stage::Call, Code::Timeout, "x".repeat(2 * MAX_LINE));
    let line = item(&samples::failed(failure), false, MAX_LINE).unwrap();
    let value = parse(&line);
    assert!(line.len() < 1024);
    assert_eq!((&value["outcome"]["failed"], &value["cut"]), (&"timeout".into(), &true.into()));
}

#[test]
fn the_words_of_a_protocol_error_are_an_answer() {
    let failure = Failure::new(Stage::Call, Code::ProtocolError, "hush").detail("hush");
    let failed = samples::failed(failure);
    let line = parse(&item(&failed, false, MAX_LINE).unwrap());
    assert!(!line.to_string().contains("hush") && line["outcome"]["failed"]["code"] == "protocol-error", "{line}");
    assert!(parse(&item(&failed, true, MAX_LINE).unwrap()).to_string().contains("hush"));
}

#[test]
fn a_decision_says_who_spoke_and_holds_digests_only() {
    let value = parse(&decision(&samples::decision(), MAX_LINE).unwrap());
    assert_eq!((&value["type"], &value["call"]), (&"decision".into(), &"call_1".into()));
    assert_eq!(value["voices"][0]["source"]["layer"], "managed");
    assert_eq!(value["voices"][0]["verdict"]["deny"]["rule"], "no-writes");
    assert_eq!(value["arguments_digest"], Digest::of(b"arguments").to_string());
    assert_eq!(value["consent"]["by"], "refused");
}

#[test]
fn the_page_about_records_names_every_field() {
    let page = include_str!("../../../docs/records.md");
    let lines = [
        decision(&samples::decision(), MAX_LINE).unwrap(),
        item(&samples::started(), true, MAX_LINE).unwrap(),
        item(&samples::completed(), true, MAX_LINE).unwrap(),
    ];
    for line in lines {
        let value = parse(&line);
        let voice = value["voices"][0].as_object().into_iter().flatten();
        for (key, _) in value.as_object().unwrap().iter().chain(voice) {
            assert!(page.contains(&format!("`{key}`")), "`{key}` is not explained");
        }
    }
    for code in [FaultCode::Trap, FaultCode::InputTooLarge, FaultCode::Circuit, FaultCode::Signature] {
        assert!(page.contains(&format!("`{code}`")), "`{code}` is not explained");
    }
}

#[test]
fn r34_a_decision_too_long_loses_its_steps_and_beyond_that_is_refused() {
    let mut record = samples::decision();
    record.decision.steps = vec!["x".repeat(MAX_LINE)];
    let value = parse(&decision(&record, MAX_LINE).unwrap());
    assert_eq!((value.get("steps"), &value["cut"]), (None, &true.into()));
    record.caller.groups = vec!["x".repeat(MAX_LINE)];
    assert!(decision(&record, MAX_LINE).is_err());
}

#[test]
fn the_longest_names_still_give_a_line() {
    let mut sample = samples::started();
    if let Item::Started(started) = &mut sample {
        started.call.tool = ToolRef::parse(&format!("{}/{}", "s".repeat(128), "\u{1}".repeat(1024))).unwrap().into();
        started.call.id = CallId::new(&"\u{1}".repeat(256)).unwrap();
        started.call.caller.groups = vec!["x".repeat(MAX_LINE)];
    }
    assert!(item(&sample, true, MAX_LINE).unwrap().len() < 16 * 1024);
}
