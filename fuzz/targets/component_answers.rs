//! Answers of a component, as raw memory: pointers, lengths, discriminants and texts are the fuzzer's. The host takes the
//! answer over into its own types or makes a fault of it.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use portcullis::adapters::wasm::{Admission, Engine};

#[path = "support.rs"]
mod support;

/// What the fuzzer's bytes take the place of.
const AREA: usize = 512;
const MARK: [u8; 8] = *b"@ANSWER@";

static ENGINE: LazyLock<Engine> = LazyLock::new(|| Engine::on_demand().expect("an engine"));

/// A component whose answer lies in its data, and where in its bytes.
static TEMPLATE: LazyLock<(Vec<u8>, usize)> = LazyLock::new(|| {
    let area = String::from_utf8(MARK.repeat(AREA / MARK.len())).expect("text");
    let text = format!(
        r#"(module
            (import "portcullis:policy/types@0.1.0" "[resource-drop]call" (func $drop (param i32)))
            (memory (export "memory") 1)
            (data (i32.const 64) "{area}")
            (func (export "portcullis:policy/approval@0.1.0#evaluate") (param $call i32) (result i32)
              (call $drop (local.get $call)) (i32.const 64))
            (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 4096)))"#
    );
    let module = wat::parse_str(text).expect("a module");
    let component = guest_builder::from_core_module(&module, "wit/v0.1", "approval-policy").expect("a component");
    let at = component.windows(AREA).position(|window| window == area.as_bytes()).expect("the area");
    (component, at)
});

fuzz_target!(|answer: &[u8]| {
    let (mut bytes, at) = TEMPLATE.clone();
    let length = answer.len().min(AREA);
    bytes[at..at + AREA].fill(0);
    bytes[at..at + length].copy_from_slice(&answer[..length]);
    let component = ENGINE
        .admit(&bytes, Admission::plain(support::source()))
        .expect("the template is admitted whatever its data is")
        .approval
        .expect("it decides about calls");
    let evaluation = support::ask(&component, "{}");
    // A rule that reaches a model is short and plain (R30); texts are bounded.
    if let Ok(verdict) = &evaluation.result {
        assert!(format!("{verdict:?}").len() < 4096);
    }
    assert!(evaluation.labels.len() <= 16);
});
