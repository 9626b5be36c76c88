use serde_json::json;

use super::*;

type Wanted = Result<Option<Permission>, HookFaultCode>;

fn exit(code: i32, stdout: &str, stderr: &str) -> HookExit {
    HookExit { code, stdout: stdout.to_owned(), stderr: stderr.to_owned() }
}

fn says(value: &Value) -> HookExit {
    exit(0, &value.to_string(), "")
}

fn decides(decision: Value) -> HookExit {
    says(&json!({ "hookSpecificOutput": { "hookEventName": "PermissionRequest", "decision": decision } }))
}

fn deny(why: &str) -> Wanted {
    Ok(Some(Permission::Deny(why.to_owned())))
}

#[test]
fn k01_to_k12_what_a_permission_hook_comes_to() {
    use HookFaultCode::{Exit, OutputInvalid};
    let rows: [(&str, HookExit, Wanted); 20] = [
        ("K01", exit(0, "", ""), Ok(None)),
        ("K01", exit(0, " \n", "noise"), Ok(None)),
        ("K02", decides(json!({ "behavior": "allow" })), Ok(Some(Permission::Allow))),
        ("K03", decides(json!({ "behavior": "deny", "message": " not now " })), deny("not now")),
        ("K04", decides(json!({ "behavior": "deny", "message": " " })), deny(NO_REASON)),
        ("K04", decides(json!({ "behavior": "deny" })), deny(NO_REASON)),
        ("K05", decides(json!({ "behavior": "allow", "updatedInput": {} })), Err(OutputInvalid)),
        ("K06", decides(json!({ "behavior": "allow", "updatedPermissions": [] })), Err(OutputInvalid)),
        ("K06", decides(json!({ "behavior": "deny", "interrupt": true })), Err(OutputInvalid)),
        ("K07", says(&json!({ "continue": false })), Err(OutputInvalid)),
        ("K07", says(&json!({ "stopReason": "x" })), Err(OutputInvalid)),
        ("K07", says(&json!({ "suppressOutput": true })), Err(OutputInvalid)),
        ("K08", exit(0, r#"{"hookSpecificOutput""#, ""), Err(OutputInvalid)),
        ("K08", says(&json!({ "verdict": "allow" })), Err(OutputInvalid)),
        ("K08", decides(json!({ "behavior": "maybe" })), Err(OutputInvalid)),
        ("K09", exit(0, "looks fine to me", ""), Ok(None)),
        ("K10", exit(2, "", " not today \n"), deny("not today")),
        ("K11", exit(2, r#"{"ignored":1}"#, " \n"), Err(Exit)),
        ("K12", exit(1, "", "boom"), Err(Exit)),
        ("K12", exit(127, "", "not found"), Err(Exit)),
    ];
    for (id, exit, wanted) in rows {
        assert_eq!(permission(&exit).map_err(|fault| fault.code), wanted, "{id}: {exit:?}");
    }
}

#[test]
fn r18_what_looks_like_json_and_is_not_the_exact_object_is_a_failure() {
    let allow = r#"{"hookSpecificOutput":{"hookEventName":"PermissionRequest","decision":{"behavior":"allow"}}}"#;
    assert_eq!(permission(&exit(0, allow, "")), Ok(Some(Permission::Allow)));
    let bad = [
        format!("checking...\n{allow}"),
        format!("\u{feff}{allow}"),
        format!("{allow} and that is it"),
        format!("{allow}{allow}"),
        format!("[{allow}]"),
        allow.replace("PermissionRequest", "PreToolUse"),
        allow.replace(r#""behavior":"allow""#, r#""behavior":"deny","behavior":"allow""#),
        allow.replace(r#""decision""#, r#""more":1,"decision""#),
        allow.replace("allow", "ALLOW"),
        "[".repeat(100_000),
    ];
    for text in bad {
        let said = permission(&exit(0, &text, "")).map_err(|fault| fault.code);
        assert_eq!(said, Err(HookFaultCode::OutputInvalid), "{}", text::prefix(&text, 200));
    }
    assert_eq!(permission(&exit(0, "checking {braces} and [brackets]\nfine", "")), Ok(None));
}

fn ahead(own: &Value) -> HookExit {
    let mut own = own.clone();
    own["hookEventName"] = json!("PreToolUse");
    says(&json!({ "hookSpecificOutput": own }))
}

#[test]
fn a_hook_before_the_call_blocks_rewrites_and_adds_context() {
    let block = |why: &str| Ok(Before { block: Some(why.to_owned()), ..Before::default() });
    assert_eq!(before(&exit(0, "fine", "")), Ok(Before::default()));
    assert_eq!(before(&exit(2, "", "no")), block("no"));
    assert_eq!(before(&says(&json!({ "decision": "block", "reason": "no" }))), block("no"));
    let denies = json!({ "permissionDecision": "deny", "permissionDecisionReason": "no" });
    assert_eq!(before(&ahead(&denies)), block("no"));
    let rewrites =
        json!({ "permissionDecision": "allow", "updatedInput": { "a": 1 }, "additionalContext": "mind\nthis" });
    let rewritten = before(&ahead(&rewrites)).unwrap();
    assert_eq!(rewritten.arguments.map(Value::Object), Some(json!({ "a": 1 })));
    assert_eq!(rewritten.context.as_deref(), Some("mind\nthis"));
    assert_eq!(rewritten.block, None);
}

#[test]
fn a_hook_before_the_call_can_neither_approve_nor_ask() {
    let bad = [
        ahead(&json!({ "permissionDecision": "allow" })),
        ahead(&json!({ "permissionDecision": "ask" })),
        ahead(&json!({ "permissionDecision": "deny", "updatedInput": {} })),
        ahead(&json!({ "updatedInput": {} })),
        ahead(&json!({ "permissionDecision": "allow", "updatedInput": [] })),
        ahead(&json!({ "updatedMCPToolOutput": {} })),
        says(&json!({ "decision": "approve" })),
        says(&json!({ "reason": "because" })),
        says(&json!({ "continue": false })),
    ];
    for exit in bad {
        assert_eq!(before(&exit).map_err(|fault| fault.code), Err(HookFaultCode::OutputInvalid), "{exit:?}");
    }
}

#[test]
fn c7_to_c9_what_a_hook_after_the_call_comes_to() {
    let after_says = |value: Value| after(&says(&value)).map_err(|fault| fault.code);
    let block = After { block: Some("no".to_owned()), ..After::default() };
    assert_eq!(after(&exit(2, "", "no")).unwrap(), block);
    assert_eq!(after_says(json!({ "decision": "block", "reason": "no" })), Ok(block));
    let feedback = After { feedback: Some("stop".to_owned()), ..After::default() };
    assert_eq!(after_says(json!({ "continue": false, "stopReason": "stop" })), Ok(feedback.clone()));
    assert_eq!(after_says(json!({ "continue": false, "reason": "stop" })), Ok(feedback));
    let output = |own: Value| json!({ "hookSpecificOutput": own });
    let adds = output(json!({ "hookEventName": "PostToolUse", "additionalContext": "more" }));
    assert_eq!(after_says(adds).unwrap().context.as_deref(), Some("more"));
    let rewrites = output(json!({ "hookEventName": "PostToolUse", "updatedMCPToolOutput": {} }));
    assert_eq!(after_says(rewrites), Err(HookFaultCode::OutputInvalid));
    assert_eq!(after_says(json!({ "stopReason": "stop" })), Err(HookFaultCode::OutputInvalid));
}

#[test]
fn texts_of_hooks_are_bounded_and_move_no_cursor() {
    let said = before(&ahead(&json!({ "additionalContext": format!("a\u{1b}[2J\n{}", "x".repeat(1 << 20)) }))).unwrap();
    let context = said.context.unwrap();
    assert!(context.starts_with("a\\u{1b}[2J\nxxx") && context.ends_with('…') && context.len() < 2 * MAX_CONTEXT);
    let Ok(Some(Permission::Deny(why))) = permission(&exit(2, "", &"y".repeat(1 << 20))) else { panic!("no deny") };
    assert!(why.chars().count() <= MAX_REASON + 1);
}

#[test]
fn h1_to_h8_hook_names() {
    let rows = [
        (Some("memory"), "create_entities", "mcp__memory__create_entities"),
        (Some("mcp__foo"), "exec_command", "mcp__foo__exec_command"),
        (Some("mcp__foo__"), "read", "mcp__foo__read"),
        (Some("mcp__codex_apps__calendar"), "_create_event", "mcp__codex_apps__calendar__create_event"),
        (Some("foo___"), "___bar", "mcp__foo__bar"),
        (None, "x", "mcp__x"),
        (None, "mcp__x", "mcp__x"),
        (Some("a"), "b__c", "mcp__a__b__c"),
        (Some("a__b"), "c", "mcp__a__b__c"),
        (Some("mcp"), "fs__write", "mcp__fs__write"),
    ];
    for (namespace, name, wanted) in rows {
        assert_eq!(hook_name(namespace, name), wanted);
    }
}

#[test]
fn h9_arguments_as_hooks_are_told_of_them() {
    assert_eq!(hook_input(" \n"), json!({}));
    assert_eq!(hook_input(r#"{"m":1}"#), json!({ "m": 1 }));
    assert_eq!(hook_input("{bad"), json!("{bad"));
}
