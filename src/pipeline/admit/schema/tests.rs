use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::*;

#[derive(Deserialize)]
struct Vectors {
    #[serde(rename = "about")]
    _about: String,
    rows: Vec<Row>,
}

/// One row. A field that this test does not know is an error: no row is run without all that it says.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    id: String,
    #[serde(default)]
    root: bool,
    #[serde(default)]
    nested: bool,
    #[serde(rename = "ours")]
    _ours: Option<String>,
    input: Value,
    output: Option<Value>,
    error: Option<String>,
    pointer: Option<String>,
    #[serde(default)]
    repairs: Vec<String>,
}

#[test]
fn the_vectors_of_the_conversion_hold() {
    let text = include_str!("../../../../tests/it/corpus/schemas.json");
    let rows = serde_json::from_str::<Vectors>(text).unwrap().rows;
    assert_eq!(rows.len(), 46);
    // C28, C29 and C30 are tests of their own.
    for id in (1..=33).filter(|id| !(28..=30).contains(id)).map(|id| format!("C{id}")) {
        assert!(rows.iter().any(|row| row.id.split(' ').next() == Some(&id)), "{id} has no row");
    }
    for row in rows {
        let id = &row.id;
        let wrap = |schema: &Value| {
            if row.nested { json!({"type": "object", "properties": {"p": schema}}) } else { schema.clone() }
        };
        let input = wrap(&row.input);
        let got = if row.root { for_model(&input) } else { convert(&input) };
        match (&row.output, got) {
            (Some(output), Ok(model)) => {
                assert_eq!(model.value, wrap(output), "{id}");
                let pointers: Vec<&String> = model.repairs.iter().map(|repair| &repair.pointer).collect();
                assert_eq!(pointers, row.repairs.iter().collect::<Vec<_>>(), "{id}");
            }
            (None, Err(reason)) => {
                assert_eq!(Some(reason.to_string()), row.error, "{id}");
                assert_eq!(Some(reason.pointer()), row.pointer.as_deref(), "{id}");
            }
            (_, got) => panic!("{id}: {got:?}"),
        }
    }
}

fn flat(count: usize, property: impl Fn(usize) -> (String, Value)) -> Value {
    json!({"type": "object", "properties": (0..count).map(property).collect::<Map<_, _>>()})
}

#[test]
fn c28_descriptions_go_first_and_all_names_stay() {
    let mut input = flat(80, |n| (format!("p{n:02}"), json!({"type": "string", "description": "d".repeat(60)})));
    input["description"] = json!("root");
    let model = for_model(&input).unwrap();
    assert_eq!(length(&input), 8_133);
    assert_eq!(length(&model.value), 1_952);
    assert_eq!(model.shrunk, Shrunk::Descriptions);
}

#[test]
fn c29_a_flat_schema_stays_above_the_budget() {
    let input = flat(300, |n| (format!("property_{n:03}"), json!({"type": "string"})));
    let model = for_model(&input).unwrap();
    assert_eq!(length(&input), 9_932);
    assert_eq!(model.value, input);
}

#[test]
fn r23_each_pass_runs_only_where_the_one_before_was_not_enough() {
    let long = |n: usize| format!("p{n}{}", "x".repeat(60));
    let wide = flat(70, |n| (long(n), json!({"type": "string"})));
    let referring = json!({"properties": {"a": {"$ref": "#/$defs/W"}}, "$defs": {"W": wide}});
    let model = for_model(&referring).unwrap();
    assert_eq!(model.value, json!({"type": "object", "properties": {"a": {}}}));
    assert_eq!(model.shrunk, Shrunk::Definitions);

    let deep =
        json!({"properties": {"a": {"properties": {"b": {"properties": {"c": wide, "d": {"type": "string"}}}}}}});
    let model = for_model(&deep).unwrap();
    let inner = json!({"type": "object", "properties": {"c": {}, "d": {"type": "string"}}});
    let outer = json!({"type": "object", "properties": {"b": inner}});
    assert_eq!(model.value, json!({"type": "object", "properties": {"a": outer}}));
    assert_eq!(model.shrunk, Shrunk::Deep);

    let choices: Vec<Value> = (0..70).map(|n| json!({"enum": [long(n)]})).collect();
    let model = for_model(&json!({"properties": {"a": {"anyOf": choices}, "b": {"type": "number"}}})).unwrap();
    assert_eq!(model.value, json!({"type": "object", "properties": {"a": {}, "b": {"type": "number"}}}));
    assert_eq!(model.shrunk, Shrunk::Compositions);
    let model = for_model(&json!({ "anyOf": choices })).unwrap();
    assert_eq!(model.value, json!({"type": "object", "properties": {}}));
}

type Wrap = fn(Value) -> Value;

/// Schemas within schemas, by one keyword. Not by `json!`, which goes through all levels again for each.
fn nested(levels: usize, key: &str, wrap: Wrap) -> Value {
    (0..levels).fold(json!({}), |inner, _| Value::Object(Map::from_iter([(key.to_owned(), wrap(inner))])))
}

#[test]
fn a_schema_as_deep_as_the_limit_is_converted_on_a_stack_of_two_megabytes() {
    let table = |inner| Value::Object(Map::from_iter([("a".to_owned(), inner)]));
    let list = |inner| Value::Array(vec![inner]);
    let kinds: [(&str, usize, Wrap); 6] = [
        ("items", MAX_DEPTH, |inner| inner),
        ("items", MAX_DEPTH / 2, list),
        ("prefixItems", MAX_DEPTH / 2, list),
        ("additionalProperties", MAX_DEPTH, |inner| inner),
        ("properties", MAX_DEPTH / 2, table),
        ("anyOf", MAX_DEPTH / 2, list),
    ];
    let convert_all = move || kinds.map(|(key, levels, wrap)| convert(&nested(levels, key, wrap)).is_ok());
    let small = std::thread::Builder::new().stack_size(2 * 1024 * 1024).spawn(convert_all).unwrap();
    assert_eq!(small.join().unwrap(), [true; 6]);
}

#[test]
fn a_deeper_schema_is_refused_before_anything_recurses() {
    assert_eq!(convert(&nested(MAX_DEPTH + 1, "items", |inner| inner)), Err(Unconvertible::TooDeep));
    assert_eq!(convert(&nested(2_000, "items", |inner| inner)), Err(Unconvertible::TooDeep));
}

#[test]
fn a_schema_beyond_the_bytes_is_refused() {
    let input = json!({"description": "a".repeat(MAX_BYTES)});
    assert_eq!(for_model(&input), Err(Unconvertible::TooLarge(MAX_BYTES + 18)));
}

#[test]
fn a_million_mistakes_are_counted_and_not_all_listed() {
    let input = flat(1_000, |n| (n.to_string(), json!({"type": "string", "description": n})));
    let model = for_model(&input).unwrap();
    assert_eq!((model.repairs.len(), model.unlisted), (MAX_REPAIRS, 1_000 - MAX_REPAIRS));
}

#[test]
fn definitions_that_double_at_each_step_are_converted_once_each() {
    let mut bomb = Map::new();
    for level in 0..60 {
        let next = json!({"$ref": format!("#/$defs/{}", level + 1)});
        bomb.insert(level.to_string(), json!({"allOf": [next, next]}));
    }
    bomb.insert("60".to_owned(), json!({"$ref": "#/$defs/0"}));
    let model = for_model(&json!({"$ref": "#/$defs/0", "$defs": bomb})).unwrap();
    assert_eq!(model.value["$defs"].as_object().unwrap().len(), 61);
}

#[test]
fn c18_every_array_of_a_closed_tuple_stays_valid() {
    let tuple = json!({"$schema": "http://json-schema.org/draft-07/schema#", "type": "array",
        "items": [{"type": "number"}, {"type": "string"}], "additionalItems": {"type": "boolean"}});
    let model = convert(&tuple).unwrap().value;
    for valid in [json!([]), json!([1]), json!([1, "a"]), json!([1, "a", true, false])] {
        assert!(crate::model::schema::holds(&tuple, &valid), "{valid}");
        assert!(crate::model::schema::holds(&model, &valid), "{valid}");
    }
}

/// Schemas of every keyword, with values that fit and values that do not, and references that go round.
fn any_schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(true)),
        Just(json!({})),
        Just(json!({"type": "weird", "format": "x"})),
        Just(json!({"type": ["object", "array", "null"], "required": "a"})),
        Just(json!({"const": {"$ref": "#/$defs/1"}, "description": 7})),
        Just(json!({"title": "x"})),
        Just(json!({"type": "string", "description": "d".repeat(700)})),
        (0..4_u8).prop_map(|n| json!({"$ref": format!("#/$defs/{n}")})),
        Just(json!({"$ref": "#"})),
        Just(json!({"minimum": 1, "required": [1, "a"]})),
    ];
    leaf.prop_recursive(5, 40, 4, |inner| {
        let list = prop::collection::vec(inner.clone(), 0..4);
        prop_oneof![
            (prop::sample::select(vec!["items", "additionalProperties", "not"]), inner.clone())
                .prop_map(|(key, schema)| json!({ key: schema })),
            (prop::sample::select(vec!["anyOf", "oneOf", "allOf", "items", "prefixItems"]), list)
                .prop_map(|(key, schemas)| json!({ key: schemas, "description": "d" })),
            (
                prop::sample::select(vec!["properties", "$defs", "definitions"]),
                prop::collection::btree_map("[0-3]", inner.clone(), 0..4),
                inner
            )
                .prop_map(|(key, table, other)| json!({ key: table, "properties": {"o": other} })),
        ]
    })
}

/// Every key of every schema in a converted one.
fn only_kept(schema: &Value) -> bool {
    let Some(members) = schema.as_object() else { return false };
    members.iter().all(|(key, value)| match key.as_str() {
        "$ref" | "type" | "description" | "encrypted" | "enum" | "required" => true,
        "items" => only_kept(value),
        "additionalProperties" => value.is_boolean() || only_kept(value),
        "properties" | "$defs" | "definitions" => value.as_object().is_some_and(|table| table.values().all(only_kept)),
        "anyOf" | "oneOf" | "allOf" => value.as_array().is_some_and(|schemas| schemas.iter().all(only_kept)),
        _ => false,
    })
}

/// The same value with the keys of its objects in the opposite order.
fn turned(value: &Value) -> Value {
    match value {
        Value::Object(members) => members.iter().rev().map(|(key, value)| (key.clone(), turned(value))).collect(),
        Value::Array(items) => items.iter().map(turned).collect(),
        other => other.clone(),
    }
}

proptest! {
    #[test]
    fn a_converted_schema_has_kept_keywords_alone_and_converts_to_itself(schema in any_schema(), defs in any_schema()) {
        let mut input = json!({"properties": {"a": schema}});
        if let Some(defs) = defs.get("properties") {
            input["$defs"] = defs.clone();
        }
        let model = for_model(&input).unwrap();
        prop_assert!(only_kept(&model.value), "{}", model.value);
        prop_assert!(length(&model.value) <= 5 * length(&input) + 40);
        let again = for_model(&model.value).unwrap();
        prop_assert_eq!(again.value.to_string(), model.value.to_string());
        prop_assert!(again.repairs.is_empty());
    }

    #[test]
    fn the_order_of_keys_makes_no_difference_to_a_single_byte(schema in any_schema()) {
        let input = json!({"properties": {"a": schema}});
        let model = for_model(&input).unwrap();
        prop_assert_eq!(for_model(&turned(&input)).unwrap().value.to_string(), model.value.to_string());
    }
}
