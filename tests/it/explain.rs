//! `explain` over five layers at once: who said what, by which rule, at which cost, and the fold step by step.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use portcullis::adapters::wasm::builtin;
use portcullis::config::Places;
use portcullis::config::trust::{Grant, TrustStore, describe};
use portcullis::model::digest::Digest;
use serde_json::Value;

use crate::cli::Place;
use crate::support::scripted_server;

/// Managed, user, project (trusted) and session with a component each, over the builtin baseline.
fn five_layers() -> Place {
    let place = Place::new();
    let hostile = guest_builder::build("hostile").unwrap();
    let component = |folder: &str, name: &str, bytes: &[u8], more: &str| {
        let file = place.write(&format!("{folder}/{name}.wasm"), "");
        fs::write(&file, bytes).unwrap();
        let pin = Digest::of(bytes);
        format!("[[policies]]\nname = \"{name}\"\ncomponent = \"{name}.wasm\"\nsha256 = \"{pin}\"\n{more}\n")
    };
    let server = scripted_server();
    let user = component("config/portcullis", "house-rules", builtin::DEMO_ORGANISATION, "");
    place.user(&format!("{user}\n[mcp_servers.s]\ncommand = {server:?}\n"));
    let project = component("work/.portcullis", "echo-guard", &hostile, "");
    let project = place.write("work/.portcullis/config.toml", &project);
    let session = component("session", "broken", builtin::DEMO_BROKEN, "on_failure = \"ask\"");
    place.write("session/session.toml", &session);
    let managed = component("managed", "company", builtin::DEMO_MANAGED, "");
    place.write("managed/managed.toml", &managed);

    fs::set_permissions(place.path("state"), fs::Permissions::from_mode(0o700)).unwrap();
    let places = Places {
        state: Some(place.path("state/portcullis")),
        user: rustix::process::getuid().as_raw(),
        ..Places::nowhere()
    };
    let mut store = TrustStore::open(&places.trust_store().unwrap(), places.user).unwrap();
    store.trust(&describe(&places, project.parent().unwrap().parent().unwrap()).unwrap(), Grant::default()).unwrap();
    store.save().unwrap();
    place
}

fn explain(place: &Place, tool: &str, more: &[&str]) -> crate::cli::Ran {
    let (session, managed) = (place.path("session/session.toml"), place.path("managed/managed.toml"));
    let (session, managed) = (session.to_str().unwrap(), managed.to_str().unwrap());
    let mut args = vec!["explain", tool, r#"{"text":"hello"}"#, "--config", session, "--managed", managed];
    args.extend(more);
    place.run(&args)
}

#[test]
fn explain_over_five_layers_names_every_component_with_its_verdict_rule_digest_and_cost() {
    let place = five_layers();
    let ran = explain(&place, "s/echo", &["--format", "json"]);
    assert_eq!(ran.code, 3, "{}{}", ran.out, ran.err);
    let said: Value = serde_json::from_str(&ran.out).unwrap();
    let voices = said["decision"]["voices"].as_array().unwrap();
    let by_layer: BTreeMap<&str, &Value> =
        voices.iter().map(|voice| (voice["source"]["layer"].as_str().unwrap(), voice)).collect();
    assert_eq!(by_layer.keys().copied().collect::<Vec<_>>(), ["builtin", "managed", "project", "session", "user"]);
    for (layer, voice) in &by_layer {
        assert!(voice["source"]["digest"].as_str().is_some_and(|digest| digest.len() == 64), "{layer}: {voice}");
        assert!(voice["fuel"].as_u64().unwrap() > 0, "{layer}: {voice}");
        assert!(voice["time_us"].is_u64(), "{layer}: {voice}");
    }
    assert_eq!(by_layer["managed"]["verdict"], "abstain");
    assert_eq!(by_layer["project"]["verdict"]["deny"]["rule"], "echo");
    assert_eq!(by_layer["session"]["fault"]["code"], "fuel");
    let order: Vec<&str> = voices.iter().map(|voice| voice["source"]["layer"].as_str().unwrap()).collect();
    assert_eq!(order, ["managed", "user", "session", "project", "builtin"], "most trusted first, the baseline last");
}

#[test]
fn explain_over_five_layers_shows_the_fold_step_by_step() {
    let place = five_layers();
    let ran = explain(&place, "s/echo", &[]);
    let fold: Vec<&str> =
        ran.out.lines().skip_while(|line| *line != "fold").take_while(|line| *line != "result").collect();
    for step in [
        "managed/company: no opinion",
        "user/house-rules: no opinion",
        "session/broken: failed (fuel), counts as an ask of a person",
        "project/echo-guard: deny by rule `echo`",
        "result: deny (1 standing)",
    ] {
        assert!(fold.iter().any(|line| line.contains(step)), "{step}:\n{}", ran.out);
    }
    // Without the project's denial, what is left is an ask that only a person satisfies.
    let other = explain(&place, "s/write", &[]);
    assert_eq!(other.code, 0, "{}{}", other.out, other.err);
    assert!(other.out.contains("s/write would be asked about"), "{}", other.out);
}
