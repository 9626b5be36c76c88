//! Questions that wait outlive their caller, and are answered from another terminal (R20, R21).

use std::collections::BTreeSet;
use std::sync::Arc;

use portcullis::adapters::store::memory_asks::in_memory;
use portcullis::config::Places;
use portcullis::host::build::{Built, HostBuilder};
use portcullis::host::wire::open_state;
use portcullis::model::caller::{Caller, TenantId};
use portcullis::model::digest::Digest;
use portcullis::model::item::Status;
use portcullis::model::layer::LayerKind;
use portcullis::model::name::{ServerName, ToolRef};
use portcullis::model::tool::ServerIdentity;
use portcullis::model::verdict::Remember;
use portcullis::ports::asks::{Answer, Asks, Decision, Delivery};
use portcullis::ports::grants::{Grant, GrantSubject, Grants as _};
use portcullis::ports::reviewer::NobodyThere;
use serde_json::{Value, json};

use crate::cli::Place;
use crate::fakes::Journal;
use crate::fakes::house::{call, spec};
use crate::fakes::server::{FakeServer, tool};
use crate::support::served::Served;
use crate::support::{eventually, scripted_server};

const KEY: &str = "a key of the test";

fn config() -> String {
    format!(
        "approval_policy = \"untrusted\"\n[approvals]\nqueue = true\n[mcp_servers.s]\ncommand = {:?}\n",
        scripted_server()
    )
}

/// Runs `approvals` in the place of a host.
fn approvals(served: &Served, args: &[&str], key: Option<&str>) -> (i32, String, String) {
    let mut command = std::process::Command::new("setsid");
    command.arg("--wait").arg(env!("CARGO_BIN_EXE_portcullis")).arg("approvals").args(args);
    for (name, folder) in [("HOME", "home"), ("XDG_CONFIG_HOME", "config"), ("XDG_STATE_HOME", "state")] {
        command.env(name, served.path(folder));
    }
    command.env_remove("PORTCULLIS_APPROVER_KEY").envs(key.map(|key| ("PORTCULLIS_APPROVER_KEY", key)));
    let ran = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (ran.status.code().unwrap(), text(ran.stdout), text(ran.stderr))
}

fn pending(served: &Served) -> Vec<Value> {
    let (code, out, err) = approvals(served, &["list", "--format", "json"], None);
    assert_eq!(code, 0, "{err}");
    serde_json::from_str(&out).unwrap()
}

#[tokio::test]
async fn r20_r21_a_question_is_answered_from_another_terminal_with_the_key_only() {
    let mut served = with_key().await;
    served.request("call", "tools/call", &json!({ "name": "s__echo", "arguments": {} }).to_string()).await;
    eventually("it is pending", || (pending(&served).len() == 1).then_some(())).await;
    let id = pending(&served)[0]["question"]["id"].as_str().unwrap().to_owned();

    let (code, _, err) = approvals(&served, &["allow", &id], None);
    assert!(code == 3 && err.contains("needs a person at a terminal"), "{code} {err}");
    let (code, _, err) = approvals(&served, &["allow", &id], Some("another"));
    assert!(code == 3 && err.contains("is not the approver key"), "{code} {err}");
    let (code, _, err) = approvals(&served, &["allow", &id, "--scope", "session"], Some(KEY));
    assert!(code == 0, "{code} {err}");
    assert!(served.answer(json!("call")).await["result"]["isError"].is_null());
    let (code, _, err) = approvals(&served, &["deny", &id], None);
    assert!(code == 4 && err.contains("allowed session by approver key"), "{code} {err}");
}

#[tokio::test]
async fn r20_what_a_layer_asks_of_a_role_is_allowed_by_a_key_that_carries_it() {
    let config = config().replace("queue = true", "queue = true\nroles = [\"no such group\", \"on call\"]");
    let mut served = with_key_of(&config, "").await;
    served.request("call", "tools/call", &json!({ "name": "s__echo", "arguments": {} }).to_string()).await;
    eventually("it is pending", || (pending(&served).len() == 1).then_some(())).await;
    let id = pending(&served)[0]["question"]["id"].as_str().unwrap().to_owned();
    let (_, shown, _) = approvals(&served, &["show", &id], None);
    assert!(shown.contains("Allowed only by: `no such group` or `on call` (the user"), "{shown}");

    let (code, _, err) = approvals(&served, &["allow", &id], Some(KEY));
    assert!(code == 3 && err.contains("`no such group` or `on call`") && err.contains("user"), "{code} {err}");
    // Not even a code is asked for at a terminal of somebody who may not allow it.
    let (code, _, err) = approvals(&served, &["allow", &id], None);
    assert!(code == 3 && err.contains("`on call`"), "{code} {err}");
    assert_eq!(pending(&served).len(), 1);

    set_key(&served, "users\non call\n");
    let (code, _, err) = approvals(&served, &["allow", &id], Some(KEY));
    assert!(code == 0, "{code} {err}");
    assert!(served.answer(json!("call")).await["result"]["isError"].is_null());
    let (_, all, _) = approvals(&served, &["list", "--all"], None);
    assert!(all.contains("allowed once by approver key as on call"), "{all}");
}

/// The program with an approver key.
async fn with_key() -> Served {
    with_key_of(&config(), "").await
}

/// The same with this configuration; the key carries these roles, one a line.
async fn with_key_of(config: &str, roles: &str) -> Served {
    let served = Served::greeted(config, &[]).await;
    set_key(&served, roles);
    served
}

fn set_key(served: &Served, roles: &str) {
    let key = format!("{}\n{roles}", Digest::of(KEY.as_bytes()));
    let file = served.path("state/portcullis/approver.key");
    std::fs::write(&file, key).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
}

#[tokio::test]
async fn r21_an_allow_after_the_host_was_killed_lets_the_same_call_run_once() {
    let mut served = with_key().await;
    let echo = |text: &str| json!({ "name": "s__echo", "arguments": { "text": text } }).to_string();
    served.request("call", "tools/call", &echo("a")).await;
    eventually("it is pending", || (pending(&served).len() == 1).then_some(())).await;
    let id = pending(&served)[0]["question"]["id"].as_str().unwrap().to_owned();

    let mut served = served.killed_and_started_again().await;
    served.greet().await;
    let (code, _, err) = approvals(&served, &["allow", &id], Some(KEY));
    assert!(code == 0, "{code} {err}");
    // Until the lease of the host that is gone has ended, the answer is its own to take.
    let kept = || {
        let (_, out, _) = approvals(&served, &["grants", "--format", "json"], None);
        serde_json::from_str::<Vec<Value>>(&out).ok().filter(|grants| grants.len() == 1)
    };
    eventually("the answer has become a grant", kept).await;

    served.request("other", "tools/call", &echo("b")).await;
    eventually("other arguments are asked about", || (pending(&served).len() == 1).then_some(())).await;
    served.request("same", "tools/call", &echo("a")).await;
    assert!(served.answer(json!("same")).await["result"]["isError"].is_null());
    let (_, out, _) = approvals(&served, &["grants", "--format", "json"], None);
    assert_eq!(out.trim(), "[]", "it held for more than one call");
    served.request("again", "tools/call", &echo("a")).await;
    eventually("the next one is asked about", || (pending(&served).len() == 2).then_some(())).await;
}

#[test]
fn a_damaged_and_a_newer_store_are_told_of_and_left_alone() {
    let place = Place::new();
    assert_eq!(place.run(&["approvals", "list"]).code, 0);
    let file = place.path("state/portcullis/state.db");
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, "rubbish".repeat(1000)).unwrap();
    let ran = place.run(&["approvals", "list"]);
    assert!(ran.code != 0 && ran.err.contains("is damaged"), "{}", ran.err);
    assert!(std::fs::read(&file).unwrap().starts_with(b"rubbish"));
    let mut newer = whole;
    // `user_version`: big-endian, at byte 60 of the header.
    newer[60..64].copy_from_slice(&99_u32.to_be_bytes());
    std::fs::write(&file, newer).unwrap();
    let ran = place.run(&["approvals", "list"]);
    assert!(ran.code != 0 && ran.err.contains("is of version 99"), "{}", ran.err);
}

#[test]
fn bad_ids_and_an_empty_queue_are_said() {
    let place = Place::new();
    assert_eq!(place.run(&["approvals", "list"]).out, "No question waits.\n");
    assert_eq!(place.run(&["approvals", "grants"]).out, "Nothing is remembered.\n");
    let ran = place.run(&["approvals", "deny", "ask_1"]);
    assert!(ran.code == 2 && ran.err.contains("there is no `ask_1`"), "{}", ran.err);
    assert_eq!(place.run(&["approvals", "forget"]).code, 2);
    assert_eq!(place.run(&["approvals", "key", "set"]).code, 3);
}

#[test]
fn what_is_forgotten_is_gone_and_nothing_else_is() {
    let place = Place::new();
    let places = Places { state: Some(place.path("state/portcullis")), ..Places::nowhere() };
    let grants = open_state(&places).unwrap().grants;
    let tenant = TenantId::new("local");
    for (id, tool) in [("grant_a1", "s/one"), ("grant_a2", "s/two"), ("grant_b1", "t/one"), ("grant_c1", "u/one")] {
        let subject = GrantSubject {
            caller: Caller::local("ann"),
            tool: ToolRef::parse(tool).unwrap(),
            identity: ServerIdentity(Digest::of(b"server")),
            definition: Digest::of(b"definition"),
            connector: None,
        };
        let grant = Grant {
            id: id.to_owned(),
            subject,
            answered: BTreeSet::new(),
            arguments: None,
            scope: Remember::Always,
            expires_ms: 4_102_444_800_000,
            approver: "terminal".to_owned(),
        };
        grants.store(grant).unwrap();
    }
    let left =
        || -> BTreeSet<String> { grants.all(&tenant, 1_000).unwrap().into_iter().map(|grant| grant.id).collect() };
    assert_eq!(place.run(&["approvals", "grants"]).out.matches("grant_").count(), 4);
    let ran = place.run(&["approvals", "forget", "grant_"]);
    assert!(ran.code == 2 && left().len() == 4, "{}", ran.err);
    assert_eq!(place.run(&["approvals", "forget", "grant_c1"]).code, 0);
    assert_eq!(left(), ["grant_a1", "grant_a2", "grant_b1"].map(str::to_owned).into());
    assert!(place.run(&["approvals", "forget", "--server", "s"]).err.contains("Forgotten: 2."));
    assert_eq!(left(), ["grant_b1".to_owned()].into());
    assert_eq!(place.run(&["approvals", "forget", "--all"]).code, 0);
    assert_eq!(left(), BTreeSet::new());
}

#[tokio::test]
async fn r21_a_host_that_is_built_with_a_queue_has_its_questions_wait_there() {
    let (asks, now_ms): (Arc<dyn Asks>, u64) = (Arc::new(in_memory(Arc::default())), 1_000);
    let built = async |layer: &str| -> Built {
        let files = FakeServer::new("files", &Journal::default(), vec![tool("use")]);
        let name = ServerName::parse("files").unwrap();
        let builder = HostBuilder::new().layer(LayerKind::User, layer, ".").queue(Arc::clone(&asks));
        builder.server(LayerKind::User, name, spec(&files)).start().await.ok().unwrap()
    };
    let off = built("approval_policy = 'untrusted'\n[approvals]\nqueue = false\n").await;
    assert!(off.desk.is_none(), "a layer switches the queue off");
    let waits = built("approval_policy = 'untrusted'\n[approvals]\nqueue = true\n").await;
    let session = waits.session(Caller::local("me"), Arc::new(NobodyThere));
    let calling = tokio::spawn(async move { session.call(call("files/use")).await });
    let tenant = TenantId::new("local");
    let asked = eventually("it is pending", || asks.list(&tenant, false, now_ms).unwrap().pop()).await;
    let (decision, approver) = (Decision::Allow(Remember::Never), "ann".to_owned());
    let answer = Answer { decision, approver, roles: Default::default(), own: false };
    assert_eq!(asks.answer(&asked.question.id, &answer, now_ms), Ok(Delivery::Waiting));
    assert_eq!(calling.await.unwrap().item.status, Status::Completed);
}
