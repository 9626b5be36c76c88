//! Tools that are not in the gateway's list are found by `search_tools` and called by `call_tool`, through the same pipeline.

use std::collections::BTreeMap;
use std::sync::Arc;

use portcullis::gateway::ServeOptions;
use portcullis::host::listing::Searching;
use portcullis::model::layer::LayerKind;
use portcullis::model::name::RawToolName;
use portcullis::model::tool::Connector;
use portcullis::pipeline::admit::catalog::Names;
use portcullis::pipeline::admit::naming::FlatStyle;
use portcullis::ports::sanitiser::Class;
use serde_json::{Value, json};

use crate::fakes::Journal;
use crate::fakes::house::{House, spec};
use crate::fakes::policy::{Apps, Policies, bound_app};
use crate::fakes::sanitiser::{Cleaner, bound};
use crate::fakes::server::{FakeServer, tool, tool_with};
use crate::support::gate::{Bench, Client};

fn searching(searching: Searching) -> ServeOptions {
    ServeOptions { searching, ..ServeOptions::default() }
}

async fn client(bench: &Bench, how: Searching) -> Client {
    let mut client = bench.client(searching(how));
    client.greet(json!({})).await;
    client
}

fn names(list: &Value) -> Vec<&str> {
    list["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect()
}

/// Calls a tool and returns its result.
async fn call(client: &mut Client, name: &str, arguments: &Value) -> Value {
    client.call("7", &json!({ "name": name, "arguments": arguments }).to_string()).await;
    client.answer(json!(7)).await["result"].take()
}

async fn search(client: &mut Client, query: &str) -> Vec<Value> {
    let found = call(client, "search_tools", &json!({ "query": query })).await;
    let structured = found["structuredContent"].clone();
    assert_eq!(serde_json::from_str::<Value>(found["content"][0]["text"].as_str().unwrap()).unwrap(), structured);
    structured["tools"].as_array().unwrap_or_else(|| panic!("{found}")).clone()
}

fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{result}"))
}

#[tokio::test]
async fn with_search_the_list_has_two_tools_of_ours_and_the_others_are_found_and_called() {
    let bench = Bench::new(&["echo", "steps"]);
    let mut client = client(&bench, Searching::Always).await;
    let list = client.list().await;
    assert_eq!(names(&list), ["search_tools", "call_tool"]);
    let described = list["tools"][0]["description"].as_str().unwrap();
    assert!(described.contains("(server fake): 2 tools"), "{described}");
    for ours in list["tools"].as_array().unwrap() {
        assert!(jsonschema::draft202012::meta::is_valid(&ours["inputSchema"]), "{ours}");
    }

    let found = search(&mut client, "echo").await;
    assert_eq!(found.len(), 1);
    assert_eq!((&found[0]["server"], &found[0]["definition"]["name"]), (&json!("fake"), &json!("fake__echo")));
    let arguments = json!({ "tool": found[0]["tool"], "arguments": { "a": [1.50] } });
    let answer = call(&mut client, "call_tool", &arguments).await;
    assert_eq!(answer["isError"], Value::Null, "{answer}");
    let calls = bench.script.calls.lock().clone();
    assert_eq!((calls.len(), calls[0].0.as_str(), &calls[0].1), (1, "echo", &Some(json!({ "a": [1.50] }))));
}

#[tokio::test]
async fn a_number_of_tools_turns_search_on_and_off_and_the_client_is_told() {
    let bench = Bench::new(&["a", "b"]);
    let mut client = client(&bench, Searching::From(3)).await;
    assert_eq!(names(&client.list().await), ["fake__a", "fake__b"]);
    assert!(text(&call(&mut client, "search_tools", &json!({ "query": "a" })).await).contains("not available"));
    bench.script.set_tools(&["a", "b", "c"]);
    bench.script.events().tools_changed(portcullis::model::revision::ConnectionId(0));
    client.told("notifications/tools/list_changed").await;
    assert_eq!(names(&client.list().await), ["search_tools", "call_tool"]);
    // What is not in the list any more was shown all the same, and its name leads to it.
    assert_eq!(call(&mut client, "fake__a", &json!({})).await["isError"], Value::Null);
}

#[tokio::test]
async fn a_tool_of_an_upstream_that_is_called_like_one_of_ours_is_left_out_with_search_and_there_without() {
    let cases = [(Searching::Always, vec!["search_tools", "call_tool"]), (Searching::Never, vec!["call_tool", "echo"])];
    for (how, listed) in cases {
        let fake = FakeServer::new("fake", &Journal::default(), vec![tool("call_tool"), tool("echo")]);
        let names_of = Names { flat: FlatStyle::Bare, ..crate::fakes::bench::names() };
        let house = House::named(&Policies::open(&["fake"]), [("fake".to_owned(), spec(&fake))].into(), names_of);
        let mut client = Client::of(&house.host, searching(how));
        client.greet(json!({})).await;
        assert_eq!(names(&client.list().await), listed);
        if how == Searching::Always {
            let found = search(&mut client, "call tool echo").await;
            let found: Vec<_> = found.iter().map(|row| row["definition"]["name"].as_str().unwrap()).collect();
            assert_eq!(found, ["echo"]);
        }
    }
}

#[tokio::test]
async fn r24_only_a_reference_that_this_session_was_given_leads_to_a_tool() {
    let bench = Bench::new(&["echo", "steps"]);
    let mut client = client(&bench, Searching::Always).await;
    let seal = search(&mut client, "echo").await[0]["tool"].as_str().unwrap().to_owned();
    let mut other = self::client(&bench, Searching::Always).await;
    let foreign = search(&mut other, "echo").await[0]["tool"].as_str().unwrap().to_owned();
    assert_ne!(seal, foreign);
    let digits = seal.split_once('#').unwrap().1;
    let other_tool = format!("fake__steps#{digits}");
    let wrong =
        [foreign.as_str(), "fake__echo", "fake__echo#", "#", "", other_tool.as_str(), "fake__echo#0123456789abcdef"];
    for reference in wrong {
        let answer = call(&mut client, "call_tool", &json!({ "tool": reference, "arguments": {} })).await;
        assert_eq!(answer["isError"], true, "{reference} was taken");
        assert!(text(&answer).contains("search"), "{answer}");
    }
    assert!(bench.script.calls.lock().is_empty());
    assert_eq!(call(&mut client, "call_tool", &json!({ "tool": seal })).await["isError"], Value::Null);
}

#[tokio::test]
async fn r24_a_reference_ends_with_its_definition() {
    let files = FakeServer::new("files", &Journal::default(), vec![tool("use")]);
    let house = House::of(&[&files]);
    let mut client = Client::of(&house.host, searching(Searching::Always));
    client.greet(json!({})).await;
    let seal = search(&mut client, "use").await[0]["tool"].clone();
    files.define(vec![tool_with("use", r#"{"title":"Other"}"#)]);
    let mut revisions = house.host.catalog().watch();
    let before = revisions.borrow_and_update().number();
    files.last().say_tools_changed();
    revisions.wait_for(|revision| revision.number() > before).await.unwrap();
    // Not called: the answer shows what the tool is now, as for every other call, and the reference is outdated from then on.
    let stale = call(&mut client, "call_tool", &json!({ "tool": seal })).await;
    assert!(text(&stale).contains(r#""title":"Other""#), "{stale}");
    let outdated = call(&mut client, "call_tool", &json!({ "tool": seal })).await;
    assert!(text(&outdated).contains("search again"), "{outdated}");
    assert!(files.handed().is_empty());
    let seal = search(&mut client, "use").await[0]["tool"].clone();
    assert_eq!(call(&mut client, "call_tool", &json!({ "tool": seal })).await["isError"], Value::Null);
    assert_eq!(files.handed().len(), 1);
}

#[tokio::test]
async fn r31_what_a_sanitiser_removes_is_not_found_by_and_not_shown() {
    let words = bound(LayerKind::User, "words", &Cleaner::removes("CANARY7", Class::Secret));
    let files = FakeServer::new("files", &Journal::default(), vec![tool_with("use", r#"{"title":"a CANARY7 title"}"#)]);
    let policies = Policies::open(&["files"]).cleaning(words);
    let house = House::under(&policies, [("files".to_owned(), spec(&files))].into(), BTreeMap::new());
    let mut client = Client::of(&house.host, searching(Searching::Always));
    client.greet(json!({})).await;
    assert_eq!(search(&mut client, "CANARY7").await, Vec::<Value>::new());
    let found = search(&mut client, "title").await;
    assert_eq!(found.len(), 1);
    assert!(!found[0].to_string().contains("CANARY7"), "{}", found[0]);
}

#[tokio::test]
async fn r25_what_a_connector_policy_hides_is_not_found_and_its_name_leads_nowhere() {
    let off = Apps::by(|facts| {
        let enabled = Some(facts.tool.tool.as_str() != "write");
        Ok(portcullis::model::verdict::ConnectorAnswer { rule: None, enabled, mode: None })
    });
    let files = FakeServer::new("files", &Journal::default(), vec![tool("write"), tool("read")]);
    let mut policies = Policies::open(&["files"]);
    policies = policies.and_app(bound_app(LayerKind::User, "apps", &off));
    let mut apps = spec(&files);
    let connector = Connector { id: "calendar".to_owned(), name: None, account: None, description: None };
    apps.connectors = ["write", "read"].map(|tool| (RawToolName::parse(tool).unwrap(), connector.clone())).into();
    let house = House::under(&policies, [("files".to_owned(), apps)].into(), BTreeMap::new());
    let mut client = Client::of(&house.host, searching(Searching::Always));
    client.greet(json!({})).await;
    assert_eq!(search(&mut client, "write").await, Vec::<Value>::new());
    assert_eq!(search(&mut client, "read").await.len(), 1);
    let (hidden, unknown) = (
        call(&mut client, "codex_apps__write", &json!({})).await,
        call(&mut client, "codex_apps__wrote", &json!({})).await,
    );
    assert_eq!(text(&hidden), text(&unknown).replace("wrote", "write"));
}

#[tokio::test]
async fn arguments_of_ours_that_do_not_fit_are_named() {
    let bench = Bench::new(&["echo"]);
    let mut client = client(&bench, Searching::Always).await;
    let long = "x ".repeat(2000);
    let cases = [
        ("search_tools", json!({}), "missing field `query`"),
        ("search_tools", json!({ "query": 7 }), "invalid type"),
        ("search_tools", json!({ "query": " " }), "query must not be empty"),
        ("search_tools", json!({ "query": "a", "limit": 0 }), "limit must be greater than zero"),
        ("search_tools", json!({ "query": "a", "limit": 101 }), "limit must be at most 100"),
        ("search_tools", json!({ "query": "a", "limit": -1 }), "invalid value"),
        ("search_tools", json!({ "query": "a", "more": 1 }), "unknown field `more`"),
        ("search_tools", json!({ "query": long }), "query has 4000 bytes"),
        ("call_tool", json!({}), "missing field `tool`"),
        ("call_tool", json!({ "tool": 7 }), "invalid type"),
    ];
    for (name, arguments, wanted) in cases {
        let answer = call(&mut client, name, &arguments).await;
        assert_eq!(answer["isError"], true, "{name} {arguments}");
        assert!(text(&answer).contains(wanted), "{name} {arguments}: {}", text(&answer));
    }
    let twice = r#"{"name":"search_tools","arguments":{"query":"a","query":"b"}}"#;
    client.call("8", twice).await;
    let answer = client.answer(json!(8)).await;
    assert!(text(&answer["result"]).contains("err: "), "{answer}");
}

#[tokio::test]
async fn an_app_shows_what_is_for_it_alone_only_to_a_client_that_shows_apps() {
    let script = Arc::new(crate::support::gate::Script::default());
    let for_apps = r#"{"name":"refresh","inputSchema":{"type":"object"},"_meta":{"ui":{"visibility":["app"]}}}"#;
    *script.tools.lock() = vec![for_apps.into(), r#"{"name":"echo","inputSchema":{"type":"object"}}"#.into()];
    let bench = Bench::with(script);
    let mut plain = bench.greeted(json!({})).await;
    assert_eq!(names(&plain.list().await), ["fake__echo"]);
    let (hidden, unknown) =
        (call(&mut plain, "fake__refresh", &json!({})).await, call(&mut plain, "fake__nothing", &json!({})).await);
    assert_eq!(text(&hidden).replace("refresh", "nothing"), text(&unknown), "R25");
    let extension = json!({ "io.modelcontextprotocol/ui": { "mimeTypes": ["text/html;profile=mcp-app"] } });
    let mut shows = bench.greeted(json!({ "extensions": extension })).await;
    assert_eq!(names(&shows.list().await), ["fake__echo", "fake__refresh"]);
    assert_eq!(call(&mut shows, "fake__refresh", &json!({})).await["isError"], Value::Null);
}
