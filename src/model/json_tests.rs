use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits { bytes: 1 << 20, depth: MAX_DEPTH };

fn parse(text: &str) -> Result<Json, JsonFault> {
    Json::parse(text, LIMITS)
}

#[test]
fn r26_a_duplicate_key_is_found_at_its_place() {
    let fault = parse(r#"{"a":[{"b":1,"b":2}]}"#).unwrap_err();
    assert_eq!(fault, JsonFault::DuplicateKey { pointer: "/a/0".into(), key: "b".into() });
    assert!(parse(r#"{"a":1,"\u0061":2}"#).is_err(), "an escaped spelling of the same key");
}

#[test]
fn r26_a_lone_surrogate_is_refused() {
    assert!(matches!(parse(r#"["\ud800"]"#), Err(JsonFault::Syntax { .. })));
    assert!(matches!(parse(r#"{"\udc00x":1}"#), Err(JsonFault::Syntax { .. })));
    assert!(parse(r#"["\ud83d\ude00"]"#).is_ok());
}

#[test]
fn r26_digests_take_numbers_by_exact_decimal() {
    let same = ["1", "1.0", "10e-1", "0.1e1", "1E0"];
    assert!(same.iter().all(|text| parse(text).unwrap().canonical() == "1"));
    assert_ne!(parse("0.1").unwrap().canonical(), parse("0.10000000000000001").unwrap().canonical());
    assert_eq!(parse("-0.0").unwrap().canonical(), "0");
    assert_eq!(parse("1200").unwrap().canonical(), "12e2");
    assert!(parse("1.5e-9223372036854775808").unwrap().canonical().starts_with("15e-"));
    assert!(parse("150e9223372036854775807").unwrap().canonical().starts_with("15e"));
    assert_eq!(parse("1e99999999999999999999").unwrap().canonical(), format!("1e{}", i64::MAX / 2));
}

#[test]
fn r26_a_number_that_would_change_is_refused_with_its_place() {
    for exact in ["0.1", "18446744073709551615", "-9223372036854775808", "1.5e300", "1.0"] {
        assert!(parse(exact).unwrap().into_value().is_ok(), "{exact} was refused");
    }
    for inexact in ["18446744073709551617", "0.1000000000000000055", "1e400"] {
        let fault = parse(&format!(r#"{{"a/b":[{inexact}]}}"#)).unwrap().into_value().unwrap_err();
        assert_eq!(fault, JsonFault::InexactNumber { pointer: "/a~1b/0".into() });
    }
}

#[test]
fn r30_the_place_in_an_error_is_bounded_and_visible() {
    let text = format!("{{\"{}\\u001b\":{{\"a\":1,\"a\":2}}}}", "k".repeat(300));
    let fault = parse(&text).unwrap_err().to_string();
    assert!(fault.chars().count() < 400 && !fault.contains('\u{1b}'), "{fault:?}");
}

#[test]
fn depth_is_bounded_without_recursing_into_the_text() {
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    assert_eq!(parse(&deep), Err(JsonFault::TooDeep { limit: MAX_DEPTH }));
    let fits = format!("{}{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH));
    assert!(parse(&fits).is_ok());
}

#[test]
fn what_is_not_json_names_its_place() {
    for bad in ["", "{bad", "[1,]", "{\"a\":1,}", "01", "NaN", "Infinity", "-Infinity", "1 2", "'a'", "nul"] {
        assert!(matches!(parse(bad), Err(JsonFault::Syntax { .. })), "{bad:?} was taken");
    }
    let JsonFault::Syntax { line, .. } = parse("{\n \"a\": x}").unwrap_err() else { unreachable!() };
    assert_eq!(line, 2);
}

#[test]
fn insertion_order_is_kept_in_values_and_sorted_in_digests() {
    let tree = parse(r#"{"b":1,"a":2}"#).unwrap();
    assert_eq!(tree.canonical(), r#"{"a":2,"b":1}"#);
    assert_eq!(tree.into_value().unwrap().to_string(), r#"{"b":1,"a":2}"#);
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_filter("finite", |f| f.is_finite()).prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map(".{0,6}", inner, 0..4).prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn what_serde_json_prints_is_read_back_unchanged(value in value()) {
        let text = value.to_string();
        let tree = parse(&text).unwrap();
        prop_assert_eq!(tree.canonical(), canonical(&value));
        prop_assert_eq!(tree.into_value().unwrap().to_string(), text);
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in ".{0,64}") {
        let _ = parse(&text);
    }
}
