//! What is not let in, and why.

use portcullis::adapters::wasm::{Admission, Class, Limits, builtin};
use portcullis::model::digest::Digest;
use portcullis::model::verdict::{Fault, FaultCode};
use serde_json::json;

use crate::support::policy::{ABSTAIN, approval, engine, handmade, load, source};

fn refused(bytes: &[u8]) -> Fault {
    load(bytes).expect_err("it was let in")
}

fn component(text: &str) -> Vec<u8> {
    wat::parse_str(format!("(component {text})")).unwrap()
}

#[test]
fn what_is_no_component_is_told_what_it_is() {
    let module = wat::parse_str("(module)").unwrap();
    let cases: [(&[u8], &str); 5] = [
        (b"", "not a WebAssembly component"),
        (b"#!/bin/sh\nexit 0\n", "not a WebAssembly component"),
        (&module, "core module"),
        (b"\x7fELF\x02\x01\x01", "precompiled code"),
        (&builtin::APPROVAL_BASELINE[..1000], "not a valid component"),
    ];
    for (bytes, why) in cases {
        let fault = refused(bytes);
        assert_eq!(fault.code, FaultCode::Missing);
        assert!(fault.detail.contains(why), "{fault}");
    }
}

#[test]
fn a_component_that_decides_nothing_is_refused() {
    let fault = refused(&component(""));
    assert_eq!(fault.code, FaultCode::Missing);
    assert!(fault.detail.contains("exports none of `portcullis:policy/approval@0.1.0`"), "{fault}");
}

#[test]
fn an_import_of_wasi_names_the_build_flag() {
    let fault = refused(&component(r#"(import "wasi:cli/environment@0.2.6" (instance))"#));
    assert_eq!(fault.code, FaultCode::MissingImport);
    assert!(fault.detail.contains("`wasi:cli/environment@0.2.6`"), "{fault}");
    assert!(fault.detail.contains("--target wasm32-unknown-unknown"), "{fault}");
}

#[test]
fn an_unknown_import_is_named() {
    for name in ["evil:corp/exfiltrate@1.0.0", "portcullis:policy/shell@0.1.0", "portcullis:policy/host", "free"] {
        let fault = refused(&component(&format!(r#"(import "{name}" (instance))"#)));
        assert_eq!(fault.code, FaultCode::MissingImport, "{fault}");
        assert!(fault.detail.contains(&format!("`{name}`")), "{fault}");
    }
}

#[test]
fn another_version_says_what_was_wanted_and_what_is_offered() {
    let import = |version: &str| component(&format!(r#"(import "portcullis:policy/types@{version}" (instance))"#));
    let export = component(r#"(instance $i) (export "portcullis:policy/approval@0.2.0" (instance $i))"#);
    for bytes in [import("0.2.0"), import("0.1.0-rc.1"), import("1.0.0"), export] {
        let fault = refused(&bytes);
        assert_eq!(fault.code, FaultCode::WrongVersion, "{fault}");
        assert!(fault.detail.contains("it wants `portcullis:policy/") && fault.detail.contains("@0.1.0`"), "{fault}");
    }
}

#[test]
fn an_interface_of_the_right_name_and_another_shape_is_refused() {
    let fault = refused(&component(r#"(instance $i) (export "portcullis:policy/approval@0.1.0" (instance $i))"#));
    assert_eq!(fault.code, FaultCode::WrongVersion, "{fault}");
    let import = r#"(import "portcullis:policy/host@0.1.0" (instance (export "exec" (func))))
        (instance $i) (export "portcullis:policy/approval@0.1.0" (instance $i))"#;
    let fault = refused(&component(import));
    assert_eq!(fault.code, FaultCode::MissingImport, "{fault}");
    assert!(fault.detail.contains("exec"), "{fault}");
}

#[test]
fn exports_that_we_do_not_know_are_left_alone() {
    let plain = handmade("1", ABSTAIN, "");
    let more = add_export(&plain);
    assert_ne!(plain, more);
    assert!(load(&more).is_ok());
}

/// Appends an export of an empty instance named `left-over` to a component.
fn add_export(component: &[u8]) -> Vec<u8> {
    let added = wat::parse_str(r#"(component (instance $i) (export "left-over" (instance $i)))"#).unwrap();
    // A component is a header and sections; sections of an instance made of nothing depend on no earlier index but its own.
    let instances = u8::try_from(count_instances(component)).unwrap();
    let mut sections = added[8..].to_vec();
    // The export's sort index is the last byte before its absent type.
    let at = sections.windows(9).position(|window| window == b"left-over").unwrap() + 9;
    assert_eq!(sections[at..at + 2], [5, 0]);
    sections[at + 1] = instances;
    [component, &sections].concat()
}

fn count_instances(component: &[u8]) -> usize {
    use wasmparser::{ComponentExternalKind, Parser, Payload};
    let (mut depth, mut count) = (0, 0);
    for payload in Parser::new(0).parse_all(component) {
        match payload.unwrap() {
            Payload::Version { .. } => depth += 1,
            Payload::End(_) => depth -= 1,
            Payload::ComponentInstanceSection(section) if depth == 1 => count += section.count() as usize,
            Payload::ComponentImportSection(section) if depth == 1 => count += section.count() as usize,
            Payload::ComponentExportSection(section) if depth == 1 => {
                count +=
                    section.into_iter().filter(|e| e.as_ref().unwrap().kind == ComponentExternalKind::Instance).count();
            }
            _ => {}
        }
    }
    count
}

#[test]
fn a_pin_binds_the_very_bytes() {
    let bytes = builtin::APPROVAL_BASELINE;
    let load = |pin| approval(engine(), bytes, Admission { pin: Some(pin), ..Admission::plain(source("pinned")) });
    assert_eq!(load(Digest::of(bytes)).unwrap().digest(), Digest::of(bytes));
    let fault = load(Digest::of(b"other")).unwrap_err();
    assert_eq!(fault.code, FaultCode::Digest);
    assert!(fault.detail.contains(&Digest::of(bytes).to_string()));
}

#[test]
fn a_pin_is_compared_before_the_bytes_are_looked_at() {
    let pin = Some(Digest::of(b"other"));
    let fault = approval(engine(), b"rubbish", Admission { pin, ..Admission::plain(source("pinned")) }).unwrap_err();
    assert_eq!(fault.code, FaultCode::Digest);
}

#[test]
fn r41_a_component_over_its_class_is_refused() {
    let bytes = vec![0; (4 << 20) + 1];
    let fault = refused(&bytes);
    assert!(fault.code == FaultCode::Missing && fault.detail.contains("4194304"), "{fault}");
    // As a script it is small enough, and then no component.
    let script = Limits::of(Class::Script);
    let fault =
        approval(engine(), &bytes, Admission { limits: script, ..Admission::plain(source("script")) }).unwrap_err();
    assert!(fault.detail.contains("not a WebAssembly component"), "{fault}");
}

#[test]
fn settings_that_are_no_table_are_refused() {
    let fault = approval(
        engine(),
        builtin::APPROVAL_BASELINE,
        Admission { settings: json!("x"), ..Admission::plain(source("settings")) },
    )
    .unwrap_err();
    assert_eq!(fault.code, FaultCode::Settings);
}

#[test]
fn a_component_with_too_many_functions_is_refused_before_it_is_compiled() {
    let fault = refused(&handmade("1", ABSTAIN, &"(func)".repeat(20_001)));
    assert_eq!(fault.code, FaultCode::Missing);
    assert!(fault.detail.contains("20000"), "{fault}");
}

#[test]
fn a_component_that_starts_with_too_much_memory_is_refused() {
    for memory in ["1025", "65536"] {
        let fault = refused(&handmade(memory, ABSTAIN, ""));
        assert_eq!(fault.code, FaultCode::Memory, "{fault}");
    }
    let fault = refused(&handmade("1", ABSTAIN, "(table 10000000 funcref)"));
    assert_eq!(fault.code, FaultCode::Memory, "{fault}");
    assert!(load(&handmade("1 65536", ABSTAIN, "")).is_ok(), "a wish for more later is no harm");
}
