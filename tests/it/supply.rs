//! Signed components, with the real binary: who signs, what verifies, and what the host loads.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;

use assert_cmd::cargo::cargo_bin_cmd;
use portcullis::adapters::wasm::Engine;
use portcullis::config::{EmbeddedLayer, Places, SessionSources, load};
use portcullis::host::wire;
use portcullis::model::layer::LayerKind;
use portcullis::model::verdict::FaultCode;
use serde_json::Value;

const COMPONENT: &[u8] = b"not quite a component";

fn portcullis(dir: &Path, args: &[&str]) -> Output {
    let mut command = cargo_bin_cmd!("portcullis");
    command.current_dir(dir).env("HOME", dir).env_remove("XDG_CONFIG_HOME").args(args).output().unwrap()
}

fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("p.wasm"), COMPONENT).unwrap();
    dir
}

/// Signs `p.wasm` with a new key and returns the public one.
fn signed(dir: &Path, key: &str) -> String {
    let output = portcullis(dir, &["policy", "sign", "p.wasm", "--new-key", key, "--format", "json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    said["public_key"].as_str().unwrap().to_owned()
}

/// What the host makes of `p.wasm` where the managed layer wants a signature of `key`.
fn fault(dir: &Path, key: &str) -> (FaultCode, String) {
    let required = format!("[requirements.components]\nrequire_signature = true\nsigners = {{ us = '{key}' }}\n");
    let user = "[[policies]]\nname = 'p'\ncomponent = 'p.wasm'\non_failure = 'ask'\n";
    let layer = |kind, text: &str| EmbeddedLayer { kind, text: text.to_owned(), folder: dir.to_owned() };
    let embedded = vec![layer(LayerKind::Managed, &required), layer(LayerKind::User, user)];
    let places = Places::nowhere();
    let resolved = load(&places, &SessionSources { embedded, ..SessionSources::default() });
    assert!(resolved.refusals.is_empty(), "{:?}", resolved.refusals);
    let set = wire::policies(&resolved, places.user, &Engine::on_demand().unwrap());
    let fault = set.components[0].component.as_ref().err().unwrap();
    (fault.code, fault.to_string())
}

#[test]
fn a_key_is_its_owners_alone_and_in_no_output() {
    let dir = folder();
    let output = portcullis(dir.path(), &["policy", "sign", "p.wasm", "--new-key", "k", "-vv"]);
    assert!(output.status.success());
    let key = dir.path().join("k");
    assert_eq!(key.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(&key).unwrap();
    let secret = text.split_whitespace().nth(1).unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(!String::from_utf8_lossy(&said).contains(secret));
    // A key is never overwritten, and one that others could read is not used.
    assert_eq!(portcullis(dir.path(), &["policy", "sign", "p.wasm", "--new-key", "k"]).status.code(), Some(2));
    assert_eq!(std::fs::read_to_string(&key).unwrap(), text);
    assert!(portcullis(dir.path(), &["policy", "sign", "p.wasm", "--key", "k"]).status.success());
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o640)).unwrap();
    let output = portcullis(dir.path(), &["policy", "sign", "p.wasm", "--key", "k"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("can be read by others"));
}

#[test]
fn a_signature_verifies_by_its_key_and_by_no_other_until_a_byte_changes() {
    let dir = folder();
    let other = signed(dir.path(), "other");
    let public = signed(dir.path(), "key");
    let verify = |key: &str| portcullis(dir.path(), &["policy", "verify", "p.wasm", "--pub", key]);
    assert_eq!(verify(&public).status.code(), Some(0));
    let output = verify(&other);
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("unknown key"));
    assert_eq!(verify("rubbish").status.code(), Some(2));
    let output = portcullis(dir.path(), &["policy", "verify", "p.wasm"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("no key is known"));
    std::fs::write(dir.path().join("p.wasm"), b"another component").unwrap();
    assert_eq!(verify(&public).status.code(), Some(3));
}

#[test]
fn r14_a_component_without_a_signature_that_counts_is_denied_whatever_on_failure_says() {
    let dir = folder();
    let public = signed(dir.path(), "key");
    // The signature holds, so that only what the bytes are is at fault.
    assert_eq!(fault(dir.path(), &public).0, FaultCode::Missing);
    let stranger = signed(folder().path(), "stranger");
    let (code, text) = fault(dir.path(), &stranger);
    assert_eq!(code, FaultCode::Signature);
    assert!(code.always_denies());
    for part in ["p.wasm", "of the managed layer", "unknown key"] {
        assert!(text.contains(part), "{text}");
    }
    std::fs::write(dir.path().join("p.wasm"), b"another component").unwrap();
    assert!(fault(dir.path(), &public).1.contains("does not hold for these bytes"));
    std::fs::remove_file(dir.path().join("p.wasm.sig")).unwrap();
    assert!(fault(dir.path(), &public).1.contains("there is no signature"));
}

#[test]
fn a_signature_file_is_bounded() {
    let dir = folder();
    let public = signed(dir.path(), "key");
    std::fs::write(dir.path().join("p.wasm.sig"), [b'a'; 2048]).unwrap();
    assert!(fault(dir.path(), &public).1.contains("more than 1024 bytes"));
}
