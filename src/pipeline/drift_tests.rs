use serde_json::json;

use super::*;

fn lines(was: &Value, is: &Value) -> Vec<String> {
    diff(was.as_object().unwrap(), is.as_object().unwrap())
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
