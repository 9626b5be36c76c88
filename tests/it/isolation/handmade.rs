//! Attacks on the binary interface that no compiler writes.

use portcullis::model::verdict::{FaultCode, Verdict};

use super::{is_out_of_budget, works_still};
use crate::support::policy::{ABSTAIN, ask, facts, handmade, load};

async fn attack(memory: &str, evaluate: &str, more: &str) -> FaultCode {
    let component = load(&handmade(memory, evaluate, more)).unwrap();
    let evaluation = ask(&component, facts("test/any", "{}")).await;
    works_still().await;
    evaluation.result.expect_err("it was not stopped").code
}

#[tokio::test]
async fn the_template_itself_is_harmless() {
    let component = load(&handmade("1", ABSTAIN, "")).unwrap();
    assert_eq!(ask(&component, facts("test/any", "{}")).await.result, Ok(Verdict::Abstain));
}

#[tokio::test]
async fn loops_are_stopped_wherever_they_are() {
    let forever = "(loop $l (br $l)) (unreachable)";
    assert!(is_out_of_budget(attack("1", forever, "").await));
    let realloc = format!(r#"(func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) {forever})"#);
    let reads = format!("(call $server (local.get $call) (i32.const 128)) {ABSTAIN}");
    assert!(is_out_of_budget(attack("1", &reads, &realloc).await));
    let post =
        format!(r#"(func (export "cabi_post_portcullis:policy/approval@0.1.0#evaluate") (param i32) {forever})"#);
    assert!(is_out_of_budget(attack("1", ABSTAIN, &post).await));
}

#[tokio::test]
async fn a_start_function_is_bound_by_the_same_limits() {
    let start = |body: &str| handmade("1", ABSTAIN, &format!("(func $start {body}) (start $start)"));
    let code = |body: &str| load(&start(body)).unwrap_err().code;
    assert!(is_out_of_budget(code("(loop $l (br $l))")));
    assert_eq!(code("(unreachable)"), FaultCode::Trap);
    assert_eq!(code("(drop (memory.grow (i32.const 2000)))"), FaultCode::Memory);
    assert_eq!(code("(call $start)"), FaultCode::Stack);
    works_still().await;
}

#[tokio::test]
async fn traps_of_every_kind_are_one_fault() {
    for body in [
        "(unreachable)",
        "(i32.div_s (i32.const 1) (i32.const 0))",
        "(i32.rem_u (i32.const 1) (i32.const 0))",
        "(i32.div_s (i32.const -2147483648) (i32.const -1))",
        "(i32.trunc_f64_s (f64.const nan))",
        "(i32.load (i32.const 65536))",
        "(i32.load (i32.const -4))",
        "(call_indirect (type $none) (i32.const 0)) (i32.const 64)",
        "(call_indirect (type $none) (i32.const 1)) (i32.const 64)",
        "(call_indirect (type $none) (i32.const 99)) (i32.const 64)",
    ] {
        let more = "(type $none (func)) (table 2 funcref) (elem (i32.const 1) $other) (func $other (param i32))";
        assert_eq!(attack("1", body, more).await, FaultCode::Trap, "{body}");
    }
}

#[tokio::test]
async fn endless_recursion_is_a_stack_fault() {
    assert_eq!(attack("1", "(call $again)", "(func $again (result i32) (call $again))").await, FaultCode::Stack);
    let mutual = "(func $a (result i32) (call $b)) (func $b (result i32) (i32.add (call $a) (call $a)))";
    assert_eq!(attack("1", "(call $a)", mutual).await, FaultCode::Stack);
}

#[tokio::test]
async fn growth_beyond_the_limits_is_a_memory_fault() {
    let grow = "(loop $l (drop (memory.grow (i32.const 64))) (br $l)) (unreachable)";
    assert_eq!(attack("1", grow, "").await, FaultCode::Memory);
    assert_eq!(attack("1", "(drop (memory.grow (i32.const 65535))) (unreachable)", "").await, FaultCode::Memory);
    let table = "(loop $l (drop (table.grow $t (ref.null func) (i32.const 1000))) (br $l)) (unreachable)";
    assert_eq!(attack("1", table, "(table $t 1 funcref)").await, FaultCode::Memory);
}

#[tokio::test]
async fn bulk_work_counts() {
    let fill = "(loop $l (memory.fill (i32.const 0) (i32.const 1) (i32.const 67108864)) (br $l)) (unreachable)";
    assert!(is_out_of_budget(attack("1024", fill, "").await));
}

/// An answer at address 1024 made of 32-bit words: verdict tag, then its payload; the labels are words 7 and 8.
fn words(words: &[u32]) -> String {
    let bytes: String = words.iter().flat_map(|word| word.to_le_bytes()).map(|byte| format!("\\{byte:02x}")).collect();
    format!(r#"(data (i32.const 1024) "{bytes}")"#)
}

const ANSWER: &str = "(call $drop (local.get $call)) (i32.const 1024)";
const DENY: u32 = 3;

#[tokio::test]
async fn an_answer_that_breaks_the_interface_is_a_trap() {
    let cases: [(&str, [u32; 9]); 8] = [
        ("an unknown verdict", [9, 0, 0, 0, 0, 0, 0, 0, 0]),
        ("an unknown option", [DENY, 7, 0, 0, 0, 0, 0, 0, 0]),
        ("a text outside of the memory", [DENY, 0, 0, 0, 0xffff_fff0, 64, 0, 0, 0]),
        ("a text across the end", [DENY, 0, 0, 0, 65530, 64, 0, 0, 0]),
        ("a text of four gibibytes", [DENY, 0, 0, 0, 0, 0xffff_ffff, 0, 0, 0]),
        ("a text that is not UTF-8", [DENY, 0, 0, 0, 1020, 8, 0, 0, 0]),
        ("labels outside of the memory", [0, 0, 0, 0, 0, 0, 0, 0xffff_fff0, 4]),
        ("an unaligned list", [0, 0, 0, 0, 0, 0, 0, 1026, 1]),
    ];
    for (what, answer) in cases {
        let more = format!("{} (data (i32.const 1020) \"\\ff\\fe\\fd\\fc\")", words(&answer));
        assert_eq!(attack("1", ANSWER, &more).await, FaultCode::Trap, "{what}");
    }
    for address in ["65535", "-4", "1025"] {
        let body = format!("(call $drop (local.get $call)) (i32.const {address})");
        assert_eq!(attack("1", &body, "").await, FaultCode::Trap, "the answer at {address}");
    }
}

#[tokio::test]
async fn r41_an_answer_that_grows_when_it_is_read_is_too_large() {
    let cases: [(&str, [u32; 9]); 4] = [
        ("a reason of 60 MiB", [DENY, 0, 0, 0, 0, 60 << 20, 0, 0, 0]),
        ("a rule of 60 MiB", [DENY, 1, 0, 60 << 20, 0, 0, 0, 0, 0]),
        ("five million empty labels", [0, 0, 0, 0, 0, 0, 0, 65536, 5_000_000]),
        // Each of them the same text of one mebibyte: 2 GiB when it is read.
        ("labels that share one text", [0, 0, 0, 0, 0, 0, 0, 65536, 2000]),
    ];
    for (what, answer) in cases {
        let shared = "\\00\\00\\20\\00\\00\\00\\10\\00".repeat(if what.contains("share") { 2000 } else { 0 });
        let more = format!("{} (data (i32.const 65536) \"{shared}\")", words(&answer));
        assert_eq!(attack("1024", ANSWER, &more).await, FaultCode::OutputTooLarge, "{what}");
    }
}

#[tokio::test]
async fn a_handle_is_what_it_is() {
    // Kept beyond the call, given back twice, and made up.
    assert_eq!(attack("1", "(i32.const 64)", "").await, FaultCode::Trap);
    let twice = format!("(call $drop (local.get $call)) {ABSTAIN}");
    assert_eq!(attack("1", &twice, "").await, FaultCode::Trap);
    let forged = format!("(call $server (i32.const 77) (i32.const 128)) {ABSTAIN}");
    assert_eq!(attack("1", &forged, "").await, FaultCode::Trap);
    let stale = "(call $drop (local.get $call)) (call $server (local.get $call) (i32.const 128)) (i32.const 64)";
    assert_eq!(attack("1", stale, "").await, FaultCode::Trap);
}

#[tokio::test]
async fn an_allocator_that_lies_harms_its_own_guest_only() {
    let reads = format!("(call $server (local.get $call) (i32.const 128)) {ABSTAIN}");
    for address in ["-1", "65535", "2147483647"] {
        let realloc =
            format!(r#"(func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const {address}))"#);
        assert_eq!(attack("1", &reads, &realloc).await, FaultCode::Trap, "{address}");
    }
    let far = format!("(call $server (local.get $call) (i32.const -8)) {ABSTAIN}");
    assert_eq!(attack("1", &far, "").await, FaultCode::Trap);
}
