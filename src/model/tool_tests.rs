use proptest::prelude::*;

use super::*;

fn renamed(definition: &ToolDefinition, name: &str) -> String {
    let mut out = String::new();
    definition.write_renamed(name, &mut out);
    out
}

#[test]
fn a_definition_keeps_its_text_but_for_the_name() {
    let text = "{ \"zeta\":1.50,\t\"x\":123456789012345678901234567890, \"inputSchema\":{\"name\":\"deep\",\"a\":1e400},\r\n\"n\\u0061me\" : \"a\\u0062\" }";
    let tool = ToolDefinition::parse(text).unwrap();
    assert_eq!(tool.name().as_str(), "ab");
    assert_eq!(tool.verbatim().as_ref(), text.replace("\r\n", "  "));
    let expected = text.replace("\r\n", "  ").replace("\"a\\u0062\"", "\"s__\\\"ab\"");
    assert_eq!(renamed(&tool, "s__\"ab"), expected);
}

#[test]
fn a_text_on_one_line_is_shared_and_not_copied() {
    let text: Arc<str> = r#"{"name":"t","inputSchema":{}}"#.into();
    let tool = ToolDefinition::parse_shared(Arc::clone(&text)).unwrap();
    assert!(Arc::ptr_eq(tool.verbatim(), &text));
}

#[test]
fn r9_connector_claims_are_in_neither_value_nor_text() {
    let text = r#"{"_meta": {"connector_id":"c", "keep" : 1.0,"connectorDescription":{}},"name":"t","inputSchema":{}}"#;
    let tool = ToolDefinition::parse(text).unwrap();
    assert_eq!(tool.verbatim().as_ref(), r#"{"_meta": {"keep" : 1.0},"name":"t","inputSchema":{}}"#);
    assert_eq!(tool.meta().unwrap().len(), 1);
    let escaped = text.replace("connector_id", "connector\\u005fid");
    assert_eq!(ToolDefinition::parse(&escaped).unwrap().verbatim(), tool.verbatim());
}

#[test]
fn r26_duplicate_keys_and_lone_surrogates_make_a_definition_unusable() {
    for bad in [
        r#"{"name":"a","name":"b","inputSchema":{}}"#,
        r#"{"name":"a","n\u0061me":"b","inputSchema":{}}"#,
        r#"{"name":"a","inputSchema":{"x":{"y":1,"y":2}}}"#,
        r#"{"name":"a","inputSchema":{},"title":"\ud800"}"#,
        r#"{"name":"a","inputSchema":{},"\udc00":1}"#,
    ] {
        assert!(matches!(ToolDefinition::parse(bad), Err(BadDefinition::Json(_))), "{bad} was taken");
    }
}

#[test]
fn r26_the_digest_is_over_canonical_json_and_sees_every_digit() {
    let digest = |text: &str| ToolDefinition::parse(text).unwrap().digest();
    let plain = digest(r#"{"name":"t","inputSchema":{"a":1,"b":2}}"#);
    assert_eq!(plain, digest("{ \"inputSchema\":{\"b\":2.0,\"a\":1e0},\n \"n\\u0061me\":\"t\" }"));
    let long = |last: char| format!(r#"{{"name":"t","inputSchema":{{"a":12345678901234567890123{last}}}}}"#);
    assert_ne!(digest(&long('4')), digest(&long('5')));
}

/// A value with spaces between its tokens and numbers that are spelled oddly.
fn spelled_value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        "-?(0|[1-9][0-9]{0,40})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?",
        ".{0,8}".prop_map(|text| Value::from(text).to_string()),
        "[a-z]{0,4}".prop_map(|text| format!("\"\\u0041\\/{text}\\ud83d\\ude00\"")),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        let space = "[ \t]{0,2}";
        let members = prop::collection::btree_map("[a-z]{1,5}|name", (space, inner.clone()), 0..4);
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(|items| format!("[ {} ]", items.join(" ,"))),
            members.prop_map(|members| {
                let member = |(key, (space, value)): (String, (String, String))| format!("\"{key}\"{space}:{value}");
                format!("{{{}}}", members.into_iter().map(member).collect::<Vec<_>>().join(","))
            }),
        ]
    })
}

proptest! {
    #[test]
    fn only_the_name_of_any_definition_changes(
        others in prop::collection::btree_map("[a-z ]{1,6}", spelled_value(), 0..6),
        at in any::<prop::sample::Index>(),
        space in "[ \t\n\r]{0,3}",
        given in "[a-z]{1,8}",
        name in "\\PC{1,20}",
    ) {
        let known = ["name", "title", "description", "annotations", "_meta"];
        let mut members: Vec<(String, String)> =
            others.into_iter().filter(|(key, _)| !known.contains(&key.as_str())).collect();
        members.push(("inputSchema".to_owned(), "{\"x\" : 1.50}".to_owned()));
        members.insert(at.index(members.len() + 1), ("name".to_owned(), Value::from(given).to_string()));
        let spell = |(key, value): &(String, String)| format!("{space}\"{key}\" :{space}{value}{space}");
        let text = format!("{{{}}}", members.iter().map(spell).collect::<Vec<_>>().join(","));

        let tool = ToolDefinition::parse(&text).unwrap();
        let out = renamed(&tool, &name);

        prop_assert!(!out.contains(['\n', '\r']));
        let mut was: Vec<(String, Box<serde_json::value::RawValue>)> = Vec::new();
        for member in spelled::members(&out).unwrap() {
            let raw = serde_json::from_str(&out[member.value]).unwrap();
            was.push((member.key, raw));
        }
        prop_assert_eq!(was.len(), members.len());
        for ((key, raw), (wanted_key, wanted)) in was.iter().zip(&members) {
            prop_assert_eq!(key, wanted_key);
            if key == "name" {
                prop_assert_eq!(serde_json::from_str::<String>(raw.get()).unwrap(), name.clone());
            } else {
                prop_assert_eq!(raw.get(), wanted.as_str());
            }
        }
        let again = ToolDefinition::parse(&renamed(&tool, tool.name().as_str())).unwrap();
        prop_assert_eq!(again.digest(), tool.digest());
        prop_assert_eq!(again.value(), tool.value());
    }
}
