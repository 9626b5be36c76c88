//! Components that were built for a version of the interface get the same answers from every later host.
//!
//! The files are what was built then, and are not built again: today's sources, kit and compiler have no part in them. Until
//! 0.1 is released its interface may change, and then `v0.1/` is replaced and the changelog says so; from then on it never is.

use std::path::PathBuf;
use std::sync::Arc;

use portcullis::adapters::wasm::{Admission, Admitted};
use portcullis::model::digest::Digest;
use portcullis::model::posture::ApprovalMode;
use portcullis::model::verdict::{Fault, FaultCode, Verdict};
use portcullis::ports::approval::ApprovalComponent as _;
use portcullis::ports::connector::ConnectorComponent as _;
use portcullis::ports::sanitiser::{Class, Edit, Place, SanitiserComponent as _, Target, Verdict as Cleaned};
use serde_json::{Value, json};

use crate::support::policy::{engine, facts, output, patient, source, tool_facts};

fn admit(name: &str, settings: Value) -> Result<Admitted, Fault> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden/v0.1");
    let bytes = std::fs::read(folder.join(name)).unwrap();
    // The digests are here too: a file that was exchanged together with its list would be another golden.
    let golden = GOLDEN.iter().find(|(file, _)| *file == name).unwrap().1;
    assert_eq!(Digest::of(&bytes).to_string(), golden, "{name} is not the file that was built");
    engine().admit(&bytes, Admission { settings, limits: patient(), ..Admission::plain(source("golden")) })
}

const GOLDEN: [(&str, &str); 3] = [
    ("approval.wasm", "0306f390404c087592e2d985409d437acc179e207528e3902468840fab9f2045"),
    ("connector.wasm", "811523cc9333458c7b3511e27cdc2c91b65bc3001ee16fa96cd30a9fd928ba26"),
    ("sanitiser.wasm", "ea6b805d939de1676543cb3c2812f708b0a3759da0a13da4accc52e84c1fe671"),
];

#[tokio::test]
async fn an_approval_component_of_0_1_answers_as_it_did() {
    let component = admit("approval.wasm", Value::Null).unwrap().approval.unwrap();
    for (tool, arguments, rule) in [
        ("mail/send_mail", r#"{"to":"ann@example.org"}"#, None),
        ("mail/send_mail", r#"{"to":"eve@example.com"}"#, Some("mail-stays-inside")),
        ("mail/send_mail", r#"{"to":["ann@example.org"]}"#, Some("mail-stays-inside")),
        ("vault/read_secret", r#"{"name":"root-key"}"#, Some("root-key-is-sealed")),
        ("vault/read_secret", r#"{"name":"wifi"}"#, None),
    ] {
        let said = component.evaluate(Arc::new(facts(tool, arguments))).await.result.unwrap();
        match (said, rule) {
            (Verdict::Abstain, None) => {}
            (Verdict::Deny(why), Some(rule)) => assert_eq!(why.rule.unwrap().as_str(), rule),
            (said, _) => panic!("{tool} {arguments}: {said:?}"),
        }
    }
}

#[tokio::test]
async fn a_connector_policy_of_0_1_answers_as_it_did() {
    for (apps, enabled, mode) in [
        (json!({"calendar": {"enabled": false}}), Some(false), None),
        (json!({"_default": {"enabled": false}, "calendar": {}}), Some(false), None),
        (json!({"calendar": {"tools": {"any": {"approval_mode": "prompt"}}}}), Some(true), Some(ApprovalMode::Prompt)),
        (json!({"calendar": {"enabled": "what"}}), Some(false), None),
    ] {
        let component = admit("connector.wasm", json!({"apps": apps})).unwrap().connector.unwrap();
        let said = component.evaluate(Arc::new(tool_facts("test/any"))).await.result.unwrap();
        assert_eq!((said.enabled, said.mode), (enabled, mode), "{apps}");
    }
}

#[tokio::test]
async fn a_sanitiser_of_0_1_with_settings_answers_as_it_did() {
    let component = admit("sanitiser.wasm", json!({"word": "secret"})).unwrap().sanitiser.unwrap();
    let target = Target { place: Place::Text, pointer: "/content/0/text".to_owned(), text: "é secret, secret".into() };
    let (said, rule) = component.sanitise(Arc::new(output("test/any", target))).await.result.unwrap();
    let span = |start, end| Edit::Replace { target: 0, start, end, class: Class::Secret };
    assert_eq!((said, rule.unwrap().as_str()), (Cleaned::Edit(vec![span(3, 9), span(11, 17)]), "the-word"));
    for (settings, why) in [(json!({}), "required"), (json!({"word": "two words"}), "one word of small letters")] {
        let fault = admit("sanitiser.wasm", settings).unwrap_err();
        assert!(fault.code == FaultCode::Settings && fault.detail.contains(why), "{fault}");
    }
}
