//! The laws of edits: they only remove, in any order, and nothing makes them panic.

use futures::FutureExt as _;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::Clean;
use super::edits::{APART, BadEdit, apply, resolve};
use super::targets::{Beyond, Found, MAX_DEPTH, Origin, Shape, find};
use crate::model::answer::ToolResult;
use crate::model::outcome::Outcome;
use crate::model::truncate::Policy;
use crate::pipeline::emit::views::event::EventView;
use crate::pipeline::emit::views::hook::HookView;
use crate::pipeline::emit::views::model::{ModelView, ModelViewOptions};
use crate::pipeline::emit::views::script::ScriptView;
use crate::ports::sanitiser::{Class, Edit};

fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn found(root: &Map<String, Value>) -> Found {
    find(root, Shape::Result, None).unwrap()
}

fn index(found: &Found, pointer: &str) -> u32 {
    found.targets.iter().position(|target| target.pointer == pointer).unwrap() as u32
}

fn edited(value: Value, edits: impl Fn(&Found) -> Vec<Edit>) -> Value {
    let root = object(value);
    let found = found(&root);
    let removals = resolve(&found, &edits(&found)).unwrap();
    Value::Object(apply(root, &removals))
}

fn text(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

fn span(target: u32, start: u32, end: u32, class: Class) -> Edit {
    Edit::Replace { target, start, end, class }
}

#[test]
fn r30_runs_less_than_sixteen_kept_bytes_apart_are_one_and_show_the_heaviest_class() {
    let long = format!("aaaa{}bbbb{}cccc", "-".repeat(APART - 1), "-".repeat(APART));
    let left = edited(text(&long), |_| {
        vec![span(0, 0, 4, Class::Other), span(0, 19, 23, Class::Secret), span(0, 39, 43, Class::Address)]
    });
    let wanted = format!("[redacted: secret]{}[redacted: address]", "-".repeat(APART));
    assert_eq!(left["content"][0]["text"], wanted);
}

#[test]
fn r29_a_drop_beats_spans_and_a_dropped_key_what_is_inside_its_value() {
    let left = edited(json!({"content": [], "structuredContent": {"k": {"deep": "x"}, "s": "abc"}}), |found| {
        let (key, deep) = (index(found, "key:/structuredContent/k"), index(found, "/structuredContent/k/deep"));
        let s = index(found, "/structuredContent/s");
        vec![
            span(deep, 0, 1, Class::Other),
            Edit::Drop { target: key },
            span(s, 1, 2, Class::Personal),
            Edit::Drop { target: s },
        ]
    });
    assert_eq!(left["structuredContent"], json!({"s": "[redacted: personal]"}));
}

#[test]
fn keys_of_which_the_same_is_left_are_told_apart() {
    let keys = json!({"content": [], "structuredContent": {"a1": 1, "b1": 2, "[redacted: secret]": 3}});
    let left = edited(keys, |found| {
        ["a1", "b1"].map(|key| span(index(found, &format!("key:/structuredContent/{key}")), 0, 2, Class::Secret)).into()
    });
    let wanted = json!({"[redacted: secret 2]": 1, "[redacted: secret 3]": 2, "[redacted: secret]": 3});
    assert_eq!(left["structuredContent"], wanted);
}

#[test]
fn r30_an_edit_of_a_later_layer_takes_a_numbered_placeholder_whole() {
    let keys = json!({"content": [], "structuredContent": {"a1": 1, "b1": 2}});
    let left = edited(keys, |found| {
        ["a1", "b1"].map(|key| span(index(found, &format!("key:/structuredContent/{key}")), 0, 2, Class::Secret)).into()
    });
    let wanted = json!({"[redacted: secret]": 1, "[redacted: secret 2]": 2});
    assert_eq!(left["structuredContent"], wanted);
    let left = edited(left, |found| {
        vec![span(index(found, "key:/structuredContent/[redacted: secret 2]"), 3, 6, Class::Other)]
    });
    assert_eq!(left["structuredContent"], wanted);
}

#[test]
fn r31_an_edit_of_joined_texts_falls_on_the_blocks() {
    let blocks = json!({"content": [{"type": "text", "text": "ab"}, {"type": "text", "text": "cd"}]});
    let left = edited(blocks, |found| vec![span(index(found, "joined:/content"), 1, 3, Class::Secret)]);
    assert_eq!(left["content"][0]["text"], "a[redacted: secret]");
    assert_eq!(left["content"][1]["text"], "[redacted: secret]d");
}

#[test]
fn what_is_too_deep_is_not_looked_at() {
    let mut deep = json!("x");
    for _ in 0..=MAX_DEPTH {
        deep = json!([deep]);
    }
    assert_eq!(find(&object(json!({"content": deep})), Shape::Result, None).unwrap_err(), Beyond::Depth);
    let mut nested = "\"".to_owned();
    for _ in 0..6 {
        nested = json!({ "k": nested }).to_string();
    }
    assert_eq!(find(&object(text(&nested)), Shape::Result, None).unwrap_err(), Beyond::Decoded);
}

#[test]
fn a_bad_edit_is_told_from_one_of_nothing() {
    let root = object(text("é"));
    let found = found(&root);
    assert_eq!(resolve(&found, &[span(0, 0, 1, Class::Other)]), Err(BadEdit::Span(0, 0, 1)));
    assert_eq!(resolve(&found, &[Edit::Drop { target: 1 }]), Err(BadEdit::Target(1)));
    assert!(resolve(&found, &[span(0, 2, 2, Class::Other), Edit::Truncate { target: 0, keep: 2 }]).unwrap().is_empty());
}

/// The text without the host's placeholders.
fn bare(text: &str) -> String {
    let mut text = text.to_owned();
    for class in Class::ALL {
        text = text.replace(class.placeholder(), "");
        let word = class.as_str();
        for number in 2..40 {
            text = text.replace(&format!("[redacted: {word} {number}]"), "");
        }
    }
    text
}

fn is_subsequence(part: &str, whole: &str) -> bool {
    let mut whole = whole.chars();
    part.chars().all(|c| whole.any(|other| other == c))
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-zé\\\\\"]{0,40}".prop_map(Value::from),
        "[a-z]{0,6}".prop_map(|inner| Value::from(format!("{{\"k\":\"\\u0041{inner}\"}}"))),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map("[a-c]{0,3}", inner, 0..4).prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

fn answer() -> impl Strategy<Value = Value> {
    (value(), prop::collection::vec("[a-zé]{0,40}", 0..4), value()).prop_map(|(structured, texts, other)| {
        let blocks: Vec<Value> = texts.into_iter().map(|text| json!({"type": "text", "text": text})).collect();
        json!({"content": blocks, "structuredContent": structured, "x": other})
    })
}

/// Edits that may be bad in every way.
fn edit() -> impl Strategy<Value = Edit> {
    let class = prop::sample::select(Class::ALL.to_vec());
    prop_oneof![
        (0_u32..40, 0_u32..50, 0_u32..50, class)
            .prop_map(|(target, start, end, class)| span(target, start, end, class)),
        (0_u32..40).prop_map(|target| Edit::Drop { target }),
        (0_u32..40, 0_u32..50).prop_map(|(target, keep)| Edit::Truncate { target, keep }),
    ]
}

/// The edits that are good for this answer.
fn good(found: &Found, edits: Vec<Edit>) -> Vec<Edit> {
    edits.into_iter().filter(|edit| resolve(found, &[*edit]).is_ok()).collect()
}

proptest! {
    #[test]
    fn r29_edits_only_remove(root in answer(), edits in prop::collection::vec(edit(), 0..12)) {
        let root = object(root);
        let before = found(&root);
        let edits = good(&before, edits);
        let removals = resolve(&before, &edits).unwrap();
        let after = Value::Object(apply(root.clone(), &removals));
        let after = found(&object(after));
        // Texts keep their order, and so do keys; each one that is left is part of one that was.
        for (target, origin) in after.targets.iter().zip(&after.origins) {
            if matches!(origin, Origin::Joined(_) | Origin::Decoded { .. }) {
                continue;
            }
            let left = bare(&target.text);
            prop_assert!(
                before.targets.iter().any(|was| is_subsequence(&left, &was.text)),
                "{:?} is nowhere in what was", target
            );
        }
    }

    #[test]
    fn r29_the_order_of_edits_does_not_matter_and_twice_is_once(
        root in answer(),
        edits in prop::collection::vec(edit(), 0..12).prop_shuffle(),
    ) {
        let root = object(root);
        let before = found(&root);
        let edits = good(&before, edits);
        let reversed: Vec<Edit> = edits.iter().rev().chain(&edits).copied().collect();
        let one = apply(root.clone(), &resolve(&before, &edits).unwrap());
        let other = apply(root, &resolve(&before, &reversed).unwrap());
        prop_assert_eq!(Value::Object(one).to_string(), Value::Object(other).to_string());
    }

    #[test]
    fn r28_no_removed_character_is_left_in_any_reading(root in answer(), c in prop::sample::select(vec!['a', 'b', 'é', 'A'])) {
        let root = object(root);
        let before = found(&root);
        let edits: Vec<Edit> = before.targets.iter().enumerate().flat_map(|(at, target)| {
            target.text.match_indices(c).map(move |(start, found)| {
                span(at as u32, start as u32, (start + found.len()) as u32, Class::Secret)
            })
        }).collect();
        let after = found(&apply(root, &resolve(&before, &edits).unwrap()));
        for target in after.targets {
            prop_assert!(!bare(&target.text).contains(c), "{:?}", target);
        }
    }

    #[test]
    fn r30_edits_of_several_layers_leave_the_hosts_placeholders_whole(
        root in answer(),
        layers in prop::collection::vec(prop::collection::vec(edit(), 0..8), 1..4),
    ) {
        let mut root = object(root);
        for edits in layers {
            let seen = found(&root);
            let removals = resolve(&seen, &good(&seen, edits)).unwrap();
            root = apply(root, &removals);
            for target in found(&root).targets {
                // No text has brackets of its own: what is left of them is half of a placeholder.
                prop_assert!(!bare(&target.text).contains(['[', ']']), "{:?}", target);
            }
        }
    }

    #[test]
    fn sanitising_then_cutting_shows_nothing_of_what_was_removed(
        texts in prop::collection::vec("[a-z \"é]{0,30}(QQQQ[a-z \"é]{0,30}){0,4}", 1..5),
        n in 0_usize..200, tokens: bool, media: bool,
    ) {
        let mut blocks: Vec<Value> = texts.iter().map(|text| json!({"type": "text", "text": text})).collect();
        if media {
            blocks.push(json!({"type": "image", "data": "AAA", "mimeType": "image/png"}));
        }
        let root = object(json!({"content": blocks, "isError": false, "_meta": {"QQQQ": texts}}));
        let before = found(&root);
        let edits: Vec<Edit> = before.targets.iter().enumerate().flat_map(|(at, target)| {
            target.text.match_indices("QQQQ").map(move |(start, found)| {
                span(at as u32, start as u32, (start + found.len()) as u32, Class::Secret)
            })
        }).collect();
        let left = apply(root, &resolve(&before, &edits).unwrap());
        let clean = Clean::of_result(ToolResult::edited(left), Outcome::Answered);
        let truncation = if tokens { Policy::Tokens(n) } else { Policy::Bytes(n) };
        let options = ModelViewOptions { truncation, media: None, ..ModelViewOptions::default() };
        let model = ModelView::of(&clean, std::time::Duration::ZERO, &options).now_or_never().unwrap();
        let views = [
            serde_json::to_string(&model).unwrap(),
            ScriptView::of(&clean).text(),
            HookView::of(&clean).unwrap().into_response().to_string(),
            Value::Object((*EventView::of(&clean).into_parts().0.unwrap()).clone()).to_string(),
        ];
        for view in views {
            prop_assert!(!view.contains('Q'), "{view}");
            prop_assert!(serde_json::from_str::<Value>(&view).is_ok());
        }
    }

    #[test]
    fn no_edits_make_it_panic(root in answer(), edits in prop::collection::vec(edit(), 0..30)) {
        let root = object(root);
        if let Ok(removals) = resolve(&found(&root), &edits) {
            let _ = apply(root, &removals);
        }
    }
}
