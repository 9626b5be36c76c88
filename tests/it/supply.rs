//! Signed components, with the real binary: who signs, what verifies, and what the host loads.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;

use assert_cmd::cargo::cargo_bin_cmd;
use portcullis::adapters::wasm::Engine;
use portcullis::config::{EmbeddedLayer, Places, SessionSources, load};
use portcullis::host::entries;
use portcullis::model::layer::LayerKind;
use portcullis::model::verdict::FaultCode;
use serde_json::Value;

use crate::cli::{Place, Ran};

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
    let set = entries::policies(&resolved, places.user, &Engine::on_demand().unwrap());
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

const FOLDER: &str = "config/portcullis";

/// A user's layer with the policies `p` and `q`, which has a data folder; nothing decides here, so the bytes are any.
fn two_policies() -> Place {
    let place = Place::new();
    for name in ["p", "q"] {
        place.write(&format!("{FOLDER}/{name}.wasm"), name);
    }
    place.write(&format!("{FOLDER}/lists/a.txt"), "one");
    place.user(
        "[[policies]]\nname = 'q'\ncomponent = 'q.wasm'\ndata = 'lists'\n\n\
         [[policies]]\nname = 'p'\ncomponent = 'p.wasm'\n",
    );
    place
}

fn lock(place: &Place, more: &[&str]) -> (i32, Value) {
    let Ran { code, out, err } = place.run(&[&["policy", "lock", "--format", "json"], more].concat());
    (code, serde_json::from_str(&out).unwrap_or_else(|_| panic!("{err}")))
}

/// What is said about the one layer: its state, and its problems as texts.
fn only(said: &Value) -> (String, Vec<String>) {
    assert_eq!(said["layers"].as_array().unwrap().len(), 1, "{said}");
    let layer = &said["layers"][0];
    let problems = layer["problems"].as_array().unwrap().iter().map(|p| p["message"].as_str().unwrap().to_owned());
    (layer["state"].as_str().unwrap().to_owned(), problems.collect())
}

/// The faults of the policies by their names, as the host loads them.
fn faults(place: &Place) -> Vec<(String, FaultCode, String)> {
    let places = Places {
        user_config: Some(place.path(FOLDER).canonicalize().unwrap()),
        user: rustix::process::getuid().as_raw(),
        ..Places::nowhere()
    };
    let resolved = load(&places, &SessionSources::default());
    let set = entries::policies(&resolved, places.user, &Engine::on_demand().unwrap());
    let fault = |bound: &portcullis::ports::approval::BoundComponent| {
        let fault = bound.component.as_ref().err().unwrap();
        (bound.source.component.to_string(), fault.code, fault.detail.clone())
    };
    set.components.iter().map(fault).collect()
}

/// The names of the policies that the lock refuses.
fn refused(place: &Place) -> Vec<String> {
    faults(place).into_iter().filter(|(_, code, _)| *code == FaultCode::Digest).map(|(name, ..)| name).collect()
}

#[test]
fn a_lock_is_written_once_and_is_the_same_until_something_changes() {
    let place = two_policies();
    let (code, said) = lock(&place, &["--check"]);
    assert_eq!((code, only(&said).0.as_str()), (3, "differs"));
    assert!(only(&said).1[0].contains("there is no `policies.lock`"), "{said}");
    let file = place.path(&format!("{FOLDER}/policies.lock"));
    assert!(!file.exists(), "--check writes nothing");
    let (code, said) = lock(&place, &[]);
    assert_eq!((code, only(&said).0.as_str(), &said["layers"][0]["policies"]), (0, "written", &2.into()));
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.starts_with("# Made by `portcullis policy lock`"), "{text}");
    assert!(text.find("name = \"p\"") < text.find("name = \"q\""), "{text}");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o022, 0);
    assert_eq!(only(&lock(&place, &[]).1).0, "unchanged");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    assert_eq!(lock(&place, &["--check"]).0, 0);
    assert_eq!(refused(&place), [] as [&str; 0]);
    let left: Vec<_> = std::fs::read_dir(place.path(FOLDER)).unwrap().map(|f| f.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_str().unwrap().starts_with('.')), "{left:?}");
}

#[test]
fn what_the_lock_does_not_record_is_refused_by_itself_and_every_disagreement_is_said() {
    let place = two_policies();
    lock(&place, &[]);
    place.write(&format!("{FOLDER}/p.wasm"), "another");
    assert_eq!(refused(&place), ["p"]);
    place.write(&format!("{FOLDER}/lists/a.txt"), "two");
    assert_eq!(refused(&place), ["q", "p"]);
    let (code, said) = lock(&place, &["--check"]);
    let problems = only(&said).1;
    assert_eq!(code, 3);
    for part in ["policy `p`: `policies.lock` records ", "policy `q`: `policies.lock` records the data", "has 7"] {
        assert!(problems.iter().any(|problem| problem.contains(part)), "{part}: {problems:?}");
    }
    lock(&place, &[]);
    assert_eq!(refused(&place), [] as [&str; 0]);
    // An entry that the lock does not have, and one that only the lock has.
    place.user("[[policies]]\nname = 'r'\ncomponent = 'p.wasm'\n\n[[policies]]\nname = 'p'\ncomponent = 'p.wasm'\n");
    let (_, _, text) = faults(&place).into_iter().find(|(name, ..)| name == "r").unwrap();
    let wanted =
        ["config.toml:1 (user layer): policy `r`, component `p.wasm`: ", "no entry", "run `portcullis policy lock`"];
    assert!(wanted.iter().all(|part| text.contains(part)), "{text}");
    assert_eq!(refused(&place), ["r"]);
    let shown = place.run(&["config", "show", "--format", "json"]);
    let shown: Value = serde_json::from_str(&shown.out).unwrap();
    assert!(shown["warnings"][0]["message"].as_str().unwrap().contains("`q` is in the lock, but not in its layer"));
    assert!(shown["warnings"][0]["file"].as_str().unwrap().ends_with("policies.lock"), "{shown}");
    assert_eq!(only(&lock(&place, &[]).1).0, "written");
    assert_eq!(refused(&place), [] as [&str; 0]);
}

#[test]
fn r8_a_lock_that_cannot_be_read_refuses_every_policy_beside_it_with_file_and_line() {
    let place = two_policies();
    lock(&place, &[]);
    let name = format!("{FOLDER}/policies.lock");
    let text = std::fs::read_to_string(place.path(&name)).unwrap();
    let entry = text.split_once("[[policy]]").unwrap().1;
    let newer = text.replace("version = 1", "version = 2");
    for (bad, wanted) in [
        ("rubbish".to_owned(), "policies.lock:1: "),
        (newer.clone(), "policies.lock:2: the lock has the version 2"),
        (format!("{text}\n[[policy]]{entry}"), "in the lock twice"),
    ] {
        place.write(&name, &bad);
        assert_eq!(refused(&place), ["q", "p"]);
        assert!(faults(&place).iter().all(|(.., text)| text.contains(wanted)), "{wanted}: {:?}", faults(&place));
        assert_eq!(lock(&place, &["--check"]).0, 3);
    }
    // One of a newer version is not ours to replace; a damaged one is made anew.
    place.write(&name, &newer);
    assert_eq!((lock(&place, &[]).0, std::fs::read_to_string(place.path(&name)).unwrap()), (1, newer));
    place.write(&name, "rubbish");
    assert_eq!(lock(&place, &[]).0, 0);
    assert_eq!(std::fs::read_to_string(place.path(&name)).unwrap(), text);
    std::fs::set_permissions(place.path(&name), PermissionsExt::from_mode(0o666)).unwrap();
    assert_eq!(refused(&place), ["q", "p"]);
    assert!(faults(&place)[0].2.contains("is writable by group or others"), "{:?}", faults(&place));
    std::fs::remove_file(place.path(&name)).unwrap();
    std::os::unix::fs::symlink("nowhere", place.path(&name)).unwrap();
    assert_eq!(refused(&place), ["q", "p"], "a link that leads nowhere is not absence");
}

#[test]
fn files_of_one_folder_share_a_lock_and_keep_their_own_entries() {
    let place = two_policies();
    let pin = |name: &str| portcullis::model::digest::Digest::of(name.as_bytes());
    let entry =
        |name: &str| format!("[[policies]]\nname = '{name}'\ncomponent = '{name}.wasm'\nsha256 = '{}'\n", pin(name));
    let managed = place.write(&format!("{FOLDER}/managed.toml"), &entry("p"));
    let managed = managed.to_str().unwrap();
    let name = place.path(&format!("{FOLDER}/policies.lock"));
    // Choosing one locks what would be refused from now on, too.
    let (code, said) = lock(&place, &["--layer", "user", "--managed", managed]);
    assert_eq!((code, said["layers"].as_array().unwrap().len()), (0, 2), "{said}");
    let both = std::fs::read_to_string(&name).unwrap();
    assert_eq!(both.matches("[[policy]]").count(), 3);
    // Locking one of them alone, by its path, leaves the others as they were.
    place.write(&format!("{FOLDER}/lists/a.txt"), "two");
    let (code, said) = lock(&place, &[managed]);
    assert_eq!((code, only(&said).0.as_str()), (0, "unchanged"));
    assert_eq!(std::fs::read_to_string(&name).unwrap(), both);
    std::fs::remove_file(managed).unwrap();
    lock(&place, &[]);
    assert_eq!(std::fs::read_to_string(&name).unwrap().matches("[[policy]]").count(), 2);
}

#[test]
fn a_layer_that_cannot_be_locked_whole_keeps_its_lock_and_says_why() {
    let place = two_policies();
    lock(&place, &[]);
    let name = place.path(&format!("{FOLDER}/policies.lock"));
    let before = std::fs::read_to_string(&name).unwrap();
    std::fs::remove_file(place.path(&format!("{FOLDER}/q.wasm"))).unwrap();
    place.write(&format!("{FOLDER}/p.wasm"), "another");
    let (code, said) = lock(&place, &[]);
    let (state, problems) = only(&said);
    assert_eq!((code, state.as_str()), (1, "refused"));
    assert!(problems.len() == 1 && problems[0].contains("of the policy `q`: the component"), "{problems:?}");
    assert_eq!(std::fs::read_to_string(&name).unwrap(), before);
    assert_eq!(lock(&place, &["no-such.toml"]).0, 1);
    assert_eq!(place.run(&["policy", "lock", "--layer", "organisation"]).code, 2);
}

#[test]
fn a_lock_names_the_key_that_signed_if_requirements_list_it() {
    let place = two_policies();
    let component = place.path(&format!("{FOLDER}/p.wasm"));
    let ran = place.run(&["policy", "sign", component.to_str().unwrap(), "--new-key", "k", "--format", "json"]);
    let said: Value = serde_json::from_str(&ran.out).unwrap();
    let key = &said["public_key"];
    let required = format!("[requirements.components]\nrequire_signature = true\nsigners = {{ us = {key} }}\n");
    let managed = place.write("managed/managed.toml", &required);
    lock(&place, &["--managed", managed.to_str().unwrap()]);
    let text = std::fs::read_to_string(place.path(&format!("{FOLDER}/policies.lock"))).unwrap();
    assert!(text.contains(&format!("signer = {}", said["key"])), "{text}");
    assert_eq!(text.matches("signer").count(), 1);
    // Nobody lists the key: then it is no signer, and that is a difference.
    let problems = only(&lock(&place, &["--check"]).1).1;
    assert!(problems.len() == 1 && problems[0].contains("it is nobody"), "{problems:?}");
}
