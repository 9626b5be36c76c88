//! Components are compiled in a child of the program, and what was compiled is kept.

use std::path::Path;
use std::process::{Command, Stdio};

use portcullis::adapters::wasm::{Admission, Bounds, Cache, Compiling, Engine, Options, builtin};
use portcullis::host::policies::{ComponentSpec, EveryCall, policy_set};
use portcullis::model::digest::Digest;
use portcullis::model::layer::{LayerKind, LayerRef};
use portcullis::model::posture::PostureLayers;
use portcullis::model::verdict::{Fault, FaultCode, OnFailure};

use crate::support::policy::{ABSTAIN, handmade, patient, source};

fn child() -> Compiling {
    Compiling::Child { program: env!("CARGO_BIN_EXE_portcullis").into(), most: None }
}

/// Loads a component with an engine of these options, and returns its fault.
fn load(options: Options, bytes: &[u8]) -> Option<Fault> {
    let engine = Engine::with_options(options).unwrap();
    let spec = ComponentSpec {
        layer: LayerRef::new(LayerKind::User),
        name: "under-test".to_owned(),
        place: None,
        bytes: Ok(bytes.to_vec()),
        pin: None,
        settings: serde_json::Value::Null,
        limits: patient(),
        data: Ok(None),
        may_allow: true,
        on_failure: OnFailure::Deny,
        observe: false,
        matches: std::sync::Arc::new(EveryCall),
    };
    let set = policy_set(&engine, vec![spec], Vec::new(), PostureLayers::default(), Vec::new(), Digest::of(b""));
    assert!(set.baseline.component.is_ok(), "{:?}", set.baseline.component.err());
    set.components[0].component.as_ref().err().cloned()
}

#[test]
fn r36_a_child_compiles_what_this_engine_can_run() {
    let options = Options { compiling: child(), cache: None };
    assert_eq!(load(options, builtin::DEMO_MANAGED), None);
}

#[test]
fn r36_kept_code_is_used_instead_of_compiling_and_compiled_again_when_it_was_changed() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, state) = (dir.path().join("compiled"), dir.path().join("state"));
    let options = |compiling| {
        let user = rustix::process::getuid().as_raw();
        Options { compiling, cache: Some(Cache::open(&folder, &state.join("cache.key"), user).unwrap()) }
    };
    let nowhere = || Compiling::Child { program: "/nonexistent".into(), most: None };
    let files = || std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    assert_eq!(load(options(child()), builtin::DEMO_MANAGED), None);
    assert_eq!(files().len(), 2, "the built-in component is kept like any other");
    // No compiler can be had: only the kept code makes this work.
    assert_eq!(load(options(nowhere()), builtin::DEMO_MANAGED), None);
    for file in files() {
        let mut bytes = std::fs::read(&file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&file, bytes).unwrap();
    }
    assert_eq!(load(options(child()), builtin::DEMO_MANAGED), None);
    assert_eq!(load(options(nowhere()), builtin::DEMO_MANAGED), None, "compiled and kept again");
}

#[test]
fn r36_precompiled_code_is_no_component_also_when_it_is_ours() {
    let artifact = compiled(&["on-demand", "native", "10", "512"], builtin::DEMO_MANAGED);
    let fault = load(Options::default(), &artifact).unwrap();
    assert_eq!(fault.code, FaultCode::Missing);
    assert!(fault.detail.contains("precompiled"), "{fault}");
}

#[test]
fn a_child_that_is_given_rubbish_says_so_and_one_that_is_given_no_order_does_nothing() {
    let run = |args: &[&str]| {
        let program = Command::new(env!("CARGO_BIN_EXE_portcullis")).arg("__compile").args(args).env_clear().output();
        program.unwrap()
    };
    let refused = run(&["pooling", "native", "10", "512"]);
    assert_eq!(refused.status.code(), Some(3));
    assert!(!refused.stdout.is_empty());
    assert_eq!(run(&["pooling", "huge", "10", "512"]).status.code(), Some(2));
}

fn compiled(args: &[&str], bytes: &[u8]) -> Vec<u8> {
    use std::io::Write as _;

    let program = Path::new(env!("CARGO_BIN_EXE_portcullis"));
    let mut command = Command::new(program);
    command.arg("__compile").args(args).env_clear().stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    output.stdout
}

/// A component with so many functions beside its own, of so many steps each; each step is a block that can be jumped out of.
fn heavy(functions: usize, steps: usize) -> Vec<u8> {
    let step = "(block (br_if 0 (i32.eqz (local.get 0))) (local.set 0 (i32.mul (i32.add (local.get 0) (i32.const 77777)) (local.get 1))))";
    let body = step.repeat(steps);
    let function = format!("(func (export \"NAME\") (param i32 i32) (result i32) {body} (local.get 0))");
    // Exported, so that none is left out.
    let all: String = (0..functions).map(|i| function.replace("NAME", &format!("f{i}"))).collect();
    handmade("1", ABSTAIN, &all)
}

/// The fault of a heavy component under these bounds; the same engine then loads another one under them.
fn refused(bounds: Bounds, heavy: &[u8]) -> Fault {
    let program = env!("CARGO_BIN_EXE_portcullis").into();
    let compiling = Compiling::Child { program, most: Some(bounds) };
    let engine = Engine::with_options(Options { compiling, cache: None }).unwrap();
    let admit = |bytes: &[u8]| engine.admit(bytes, Admission::plain(source("heavy"))).map(drop);
    assert_eq!(admit(builtin::DEMO_MANAGED), Ok(()), "an ordinary component is within the bounds");
    let fault = admit(heavy).expect_err("it was compiled");
    assert_eq!(admit(builtin::APPROVAL_BASELINE), Ok(()), "the host goes on");
    fault
}

#[test]
fn r41_a_component_whose_compiling_takes_too_long_is_refused() {
    let fault = refused(Bounds { seconds: 1, mebibytes: 512 }, &heavy(600, 200));
    assert_eq!(fault.code, FaultCode::Budget, "{fault}");
    assert!(fault.detail.contains("used up its 1 seconds of processor time"), "{fault}");
}

#[test]
fn r41_a_component_whose_compiling_needs_too_much_memory_is_refused() {
    let fault = refused(Bounds { seconds: 10, mebibytes: 48 }, &heavy(4, 10_000));
    assert_eq!(fault.code, FaultCode::Budget, "{fault}");
    assert!(fault.detail.contains("for want of memory (48 MiB)"), "{fault}");
}
