use serde_json::json;

use super::*;

fn lines(was: &Value, is: &Value) -> Vec<String> {
    diff(was.as_object().unwrap(), is.as_object().unwrap()).unwrap()
}

#[test]
fn a_difference_is_the_lines_that_differ_and_one_on_each_side() {
    let was = json!({ "name": "t", "description": "reads", "inputSchema": { "type": "object" } });
    let is = json!({ "inputSchema": { "type": "object" }, "name": "t", "description": "writes" });
    let wanted = [" {", r#"-  "description": "reads","#, r#"+  "description": "writes","#, r#"   "inputSchema": {"#];
    assert_eq!(lines(&was, &is), wanted);
    assert!(lines(&was, &was).is_empty());
}

#[test]
fn no_change_is_beyond_the_width_and_nothing_moves_the_cursor() {
    let long = |end: &str| json!({ "description": format!("{}\u{1b}[2J{end}", "x".repeat(5 * WIDTH)) });
    let lines = lines(&long("good"), &long("bad"));
    assert!(lines.iter().any(|line| line.starts_with('+') && line.ends_with("bad\"")), "{lines:?}");
    assert!(lines.iter().all(|line| !line.contains('\u{1b}') && line.chars().count() < 2 * WIDTH), "{lines:?}");
}

#[test]
fn a_hint_that_says_less_danger_is_named_and_one_that_says_more_is_not() {
    let none = Hints::default();
    let safe =
        Hints { read_only: Some(true), destructive: Some(false), idempotent: Some(true), open_world: Some(false) };
    assert_eq!(relaxed(none, safe).len(), 4);
    assert!(relaxed(safe, none).is_empty() && relaxed(safe, safe).is_empty());
    let unsafe_now = Hints { read_only: Some(false), destructive: Some(true), ..none };
    assert!(relaxed(none, unsafe_now).is_empty());
}

#[test]
fn what_is_long_or_deep_is_not_compared() {
    let deep = (0..100).fold(json!(1), |inner, _| json!([inner, 1]));
    let many = json!({ "description": "x", "inputSchema": { "enum": vec![1; MAX_COMPARED] } });
    let wide = json!({ "description": "x".repeat((MAX_COMPARED + 1) * WIDTH) });
    let bulky = json!({ "inputSchema": vec![deep; 10_000] });
    for long in [many, wide, bulky] {
        assert_eq!(diff(long.as_object().unwrap(), &Map::new()), None);
        assert_eq!(diff(&Map::new(), long.as_object().unwrap()), None);
    }
}

#[test]
fn r31_a_reason_names_no_member_by_the_servers_own_word() {
    let was = json!({ "name": "t", "description": "a" });
    let is = json!({ "name": "t", "description": "b", "CANARY7": 1 });
    let named = differing(was.as_object().unwrap(), is.as_object().unwrap());
    assert_eq!(named, ["`description`", "something of the server's own"]);
}
