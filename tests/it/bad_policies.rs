//! What is wrong with a policy, as people read it: layer, file, line and component, and the policy refuses by itself.

use std::fs;
use std::os::unix::fs::symlink;

use portcullis::adapters::wasm::builtin;
use serde_json::Value;

use crate::cli::Place;
use crate::support::policy::{ABSTAIN, handmade};
use crate::support::served::Served;
use crate::support::{PATIENCE, scripted_server};

/// The smallest component there is: it exports nothing.
const EMPTY: &[u8] = b"\0asm\x0d\0\x01\0";
/// The line of the entry in [`with`].
const LINE: usize = 4;

/// A user's layer with a server `s`, the policy `p` and whatever else; the entry begins at line [`LINE`].
fn with(bytes: &[u8], more: &str) -> Place {
    let place = Place::new();
    let file = place.write("config/portcullis/paths.wasm", "");
    fs::write(&file, bytes).unwrap();
    let server = scripted_server();
    place.user(&format!(
        "[mcp_servers.s]\ncommand = {server:?}\n\n[[policies]]\nname = 'p'\ncomponent = 'paths.wasm'\n{more}\n"
    ));
    place
}

/// What `explain` prints about the fault of `p`: its code and its text.
fn explained(place: &Place, more: &[&str]) -> (String, String) {
    let ran = place.run(&[&["explain", "s/echo", r#"{"text":"a"}"#, "--format", "json"], more].concat());
    assert_eq!(ran.code, 3, "{}{}", ran.out, ran.err);
    let said: Value = serde_json::from_str(&ran.out).unwrap();
    let voices = said["decision"]["voices"].as_array().unwrap();
    let voice = voices.iter().find(|voice| voice["source"]["component"] == "p").unwrap();
    let text = |key: &str| voice["fault"][key].as_str().unwrap().to_owned();
    (text("code"), text("detail"))
}

/// The only problem that `config check` finds, as JSON.
fn checked(place: &Place, more: &[&str]) -> Value {
    let ran = place.run(&[&["config", "check", "--format", "json"], more].concat());
    assert_eq!(ran.code, 2, "{}{}", ran.out, ran.err);
    let said: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(said["problems"].as_array().unwrap().len(), 1, "{said}");
    said["problems"][0].clone()
}

/// Both commands name layer, file, line, policy and component, and say `wanted`.
#[track_caller]
fn is_named(place: &Place, code: &str, wanted: &str, more: &[&str]) {
    let (found, text) = explained(place, more);
    assert_eq!(found, code, "{text}");
    let file = place.path("config/portcullis/config.toml");
    let start = format!("{}:{LINE} (user layer): policy `p`, component `paths.wasm`: ", file.display());
    assert!(text.starts_with(&start) && text.contains(wanted), "{text}");
    let problem = checked(place, more);
    assert_eq!(problem["layer"], "user");
    assert_eq!(problem["file"], file.to_str().unwrap());
    assert_eq!(problem["line"], LINE);
    assert_eq!(problem["key"], "policies.p");
    let message = problem["message"].as_str().unwrap();
    assert!(message.starts_with("the component `paths.wasm` refuses every call: "), "{message}");
    assert!(message.contains(wanted) && message.matches("config.toml").count() == 0, "{message}");
}

#[test]
fn settings_that_fail_the_schema_name_layer_file_line_and_component() {
    let schema = r#"{"type":"object","required":["limit"]}"#;
    let text = schema.replace('"', "\\22");
    let length = schema.len();
    let settings = format!(
        r#"(data (i32.const 2048) "\08\08\00\00\{length:02x}\00\00\00{text}")
           (func (export "portcullis:policy/settings@0.1.0#schema") (result i32) (i32.const 2048))
           (func (export "portcullis:policy/settings@0.1.0#validate") (param i32 i32) (result i32) (i32.const 64))"#
    );
    let place = with(&handmade("1", ABSTAIN, &settings), "settings = { limits = 3 }");
    is_named(&place, "settings", "limit", &[]);
}

#[test]
fn a_component_without_hooks_names_layer_file_line_and_component() {
    is_named(&with(EMPTY, ""), "missing", "none of", &[]);
}

#[test]
fn a_data_folder_that_is_a_link_names_layer_file_line_and_component() {
    let place = with(builtin::DEMO_ORGANISATION, "data = 'lists'");
    fs::create_dir(place.path("config/portcullis/real")).unwrap();
    symlink("real", place.path("config/portcullis/lists")).unwrap();
    is_named(&place, "missing", "is a link", &[]);
}

#[test]
fn a_signature_by_an_unknown_key_names_layer_file_line_and_component() {
    let place = with(builtin::DEMO_ORGANISATION, "");
    let component = place.path("config/portcullis/paths.wasm");
    let signed = |key: &str| {
        let ran = place.run(&["policy", "sign", component.to_str().unwrap(), "--new-key", key, "--format", "json"]);
        serde_json::from_str::<Value>(&ran.out).unwrap()["public_key"].as_str().unwrap().to_owned()
    };
    let listed = signed("listed");
    signed("stranger");
    let required = format!("[requirements.components]\nrequire_signature = true\nsigners = {{ us = '{listed}' }}\n");
    let managed = place.write("managed/managed.toml", &required);
    is_named(&place, "signature", "unknown key", &["--managed", managed.to_str().unwrap()]);
}

#[test]
fn a_lock_that_disagrees_names_layer_file_line_and_component() {
    let place = with(builtin::DEMO_ORGANISATION, "");
    assert_eq!(place.run(&["policy", "lock"]).code, 0);
    assert_eq!(place.run(&["config", "check"]).code, 0);
    fs::write(place.path("config/portcullis/paths.wasm"), builtin::DEMO_MANAGED).unwrap();
    is_named(&place, "digest", "run `portcullis policy lock`", &[]);
}

#[test]
fn two_policies_of_one_name_name_layer_file_line_and_component() {
    let place = with(builtin::DEMO_ORGANISATION, "[[policies]]\nname = 'p'\ncomponent = 'paths.wasm'\n");
    let problem = checked(&place, &[]);
    assert_eq!((&problem["layer"], &problem["line"]), (&"user".into(), &7.into()));
    assert!(problem["message"].as_str().unwrap().contains("policy `p`: its name is used twice"), "{problem}");
    let ran = place.run(&["explain", "s/echo", "{}"]);
    assert_eq!(ran.code, 3, "{}{}", ran.out, ran.err);
    let file = place.path("config/portcullis/config.toml");
    assert!(ran.err.contains(&format!("{}:7 (user layer): ", file.display())), "{}", ran.err);
}

#[test]
fn one_bad_policy_fails_closed_by_itself() {
    let place = with(EMPTY, "match = { tools = ['nothing'] }");
    let ran = place.run(&["explain", "s/echo", r#"{"text":"a"}"#, "--format", "json"]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
}

#[test]
fn a_match_of_no_known_tool_is_a_warning_of_tools_that_names_the_nearest_with_layer_file_line_and_component() {
    let place = with(builtin::DEMO_ORGANISATION, "match = { tools = ['ecko', '*'] }");
    let file = place.path("config/portcullis/config.toml");
    let ran = place.run(&["tools"]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let wanted = format!(
        "{}:7 (user layer): `policies[0].match.tools`: of the policy `p`, component `paths.wasm`: no tool of its servers is \
         called `ecko` (did you mean `echo`?)",
        file.display()
    );
    assert!(ran.err.contains(&wanted), "{}", ran.err);
    let ran = place.run(&["tools", "--format", "json"]);
    let said: Value = serde_json::from_str(&ran.out).unwrap();
    let warnings = said["warnings"].as_array().unwrap();
    assert_eq!((warnings.len(), &warnings[0]["suggestion"]), (1, &"echo".into()), "{said}");
    // A server that is not ready may have any tool.
    let server = scripted_server();
    let policy = "[[policies]]\nname = 'p'\ncomponent = 'paths.wasm'\nmatch = { tools = ['ecko'] }\n";
    place.user(&format!(
        "[mcp_servers.s]\ncommand = {server:?}\n[mcp_servers.t]\ncommand = 'no-such-program'\n{policy}"
    ));
    let ran = place.run(&["tools", "--format", "json"]);
    let said: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(said["warnings"], serde_json::json!([]), "{}", ran.err);
}

#[tokio::test]
async fn serve_says_once_which_match_fits_no_tool() {
    let server = scripted_server();
    let policy = "[[policies]]\nname = 'p'\ncomponent = 'paths.wasm'\nmatch = { tools = ['ecko'] }\n";
    let mut served = Served::greeted(&format!("{policy}[mcp_servers.s]\ncommand = {server:?}\n"), &[]).await;
    let said = |served: &Served| served.stderr().matches("no tool of its servers is called `ecko`").count();
    tokio::time::timeout(PATIENCE, async {
        while said(&served) == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    served.finish().await;
    assert_eq!(said(&served), 1, "{}", served.stderr());
}
