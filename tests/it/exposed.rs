//! Which tools a whole house shows, and that what is absent cannot be called (catalog-dispatch 3.2, vectors E).

use std::collections::BTreeMap;
use std::sync::Arc;

use portcullis::gateway::ServeOptions;
use portcullis::host::listing::{Searching, Surface};
use portcullis::host::session::{Session, SessionCall};
use portcullis::model::exposure::Exposure;
use portcullis::model::name::{RawToolName, Target, ToolRef};
use portcullis::model::tool::{Connector, Plugin};
use portcullis::pipeline::admit::catalog::Names;
use portcullis::pipeline::admit::exposure::{Exposing, Reason, RegistryName};
use portcullis::pipeline::admit::naming::FlatStyle;
use serde_json::{Value, json};

use crate::fakes::Journal;
use crate::fakes::bench::said;
use crate::fakes::house::{House, call, spec};
use crate::fakes::policy::{Apps, Policies};
use crate::fakes::server::{FakeServer, tool};
use crate::support::gate::Client;

fn reference(target: &str) -> ToolRef {
    ToolRef::parse(target).unwrap()
}

fn calendar() -> Connector {
    Connector { id: "calendar".to_owned(), name: None, account: None, description: None }
}

/// A house with the Apps server `apps`, which has a connector for `mapped` alone.
fn half_mapped() -> (Arc<FakeServer>, House) {
    let apps = FakeServer::new("apps", &Journal::default(), vec![tool("mapped"), tool("unmapped")]);
    let mut configured = spec(&apps);
    configured.connectors = [(RawToolName::parse("mapped").unwrap(), calendar())].into();
    let house = House::with([("apps".to_owned(), configured)].into(), BTreeMap::new());
    (apps, house)
}

fn library(house: &House, how: Exposing) -> Arc<Session> {
    let session = house.session();
    session.show_on(Surface::Library(how));
    session
}

#[tokio::test(start_paused = true)]
async fn e3_r9_a_tool_that_the_apps_server_lists_without_a_connector_is_absent_and_so_it_is_where_apps_are_off() {
    let (_apps, house) = half_mapped();
    for (apps, mapped, reason) in
        [(true, Exposure::Direct, Reason::NoConnector), (false, Exposure::Absent, Reason::AppsOff)]
    {
        let step = library(&house, Exposing { apps, ..Exposing::library() }).step().await.unwrap();
        let exposure = |tool: &str| step.listing().exposure(&reference(tool)).unwrap().clone();
        assert_eq!(exposure("apps/mapped").exposure, mapped);
        assert_eq!((exposure("apps/unmapped").exposure, exposure("apps/unmapped").reason), (Exposure::Absent, reason));
        assert!(step.offer(&reference("apps/unmapped")).is_none());
        assert!(step.listing().shown(&reference("apps/unmapped")).is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn e3_r25_a_call_of_an_apps_tool_without_a_connector_answers_like_an_unknown_one() {
    let (apps, house) = half_mapped();
    let session = library(&house, Exposing::library());
    let hidden = session.call(call("apps/unmapped")).await;
    let unknown = Target { server: None, tool: RawToolName::parse("nothing").unwrap() };
    let unknown = session.call(SessionCall::new(unknown, "{}")).await;
    assert_eq!(said(&hidden).replace("unmapped", "nothing"), said(&unknown));
    let off = library(&house, Exposing { apps: false, ..Exposing::library() });
    assert_eq!(said(&off.call(call("apps/mapped")).await), said(&hidden).replace("unmapped", "mapped"));
    assert!(apps.handed().is_empty());
}

#[tokio::test]
async fn e3_r25_a_client_of_the_gateway_neither_lists_nor_calls_an_apps_tool_without_a_connector() {
    let (apps, house) = half_mapped();
    house.lists(&["apps/unmapped", "apps/mapped"]).await;
    let flat = |tool: &str| house.host.catalog().current().find(&reference(tool)).unwrap().tool().flat.to_string();
    let mut client = Client::of(&house.host, ServeOptions::default());
    client.greet(json!({})).await;
    assert_absent(&mut client, &flat("apps/unmapped")).await;
    assert_eq!(names(&client.list().await), [flat("apps/mapped")]);
    assert_absent(&mut client, &flat("apps/unmapped")).await;
    assert!(apps.handed().is_empty());
}

#[tokio::test]
async fn rule_13_r25_a_tool_of_a_reserved_name_is_absent_and_is_not_called_through_the_gateway() {
    let fake = FakeServer::new("fake", &Journal::default(), vec![tool("shell_command"), tool("echo")]);
    let bare = Names { flat: FlatStyle::Bare, ..crate::fakes::bench::names() };
    let house = House::named(&Policies::open(&["fake"]), [("fake".to_owned(), spec(&fake))].into(), bare);
    house.lists(&["fake/echo", "fake/shell_command"]).await;
    let mut client = Client::of(&house.host, ServeOptions::default());
    client.greet(json!({})).await;
    assert_absent(&mut client, "shell_command").await;
    assert_eq!(names(&client.list().await), ["echo"]);
    assert_absent(&mut client, "shell_command").await;
    assert!(fake.handed().is_empty());
    client.call("3", r#"{"name":"echo"}"#).await;
    assert_ne!(client.answer(json!(3)).await["result"]["isError"], true);
}

fn names(list: &Value) -> Vec<String> {
    list["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

/// A call by this name is answered like one by a name that no tool has.
async fn assert_absent(client: &mut Client, name: &str) {
    client.call("1", &json!({ "name": name }).to_string()).await;
    client.call("2", r#"{"name":"no_such_tool"}"#).await;
    let (absent, unknown) = (client.answer(json!(1)).await, client.answer(json!(2)).await);
    assert_eq!(absent["result"].to_string().replace(name, "no_such_tool"), unknown["result"].to_string());
    assert_eq!(absent["result"]["isError"], true);
}

#[tokio::test(start_paused = true)]
async fn rule_13_a_name_that_is_taken_fails_the_step_where_collisions_do() {
    let files = FakeServer::new("files", &Journal::default(), vec![tool("write"), tool("read")]);
    let house = House::of(&[&files]);
    let taken = RegistryName { namespace: "mcp__files".to_owned(), name: "read".to_owned() };
    let how = |collisions_fail| Exposing { reserved: [taken.clone()].into(), collisions_fail, ..Exposing::library() };
    let session = library(&house, how(true));
    let collision = session.step().await.unwrap_err();
    assert_eq!((&collision.tool, &collision.name), (&reference("files/read"), &taken));
    session.show_on(Surface::Library(how(false)));
    let step = session.step().await.unwrap();
    assert_eq!(step.offers().len(), 1);
    assert_eq!(step.listing().collision(), Some(&collision));
}

#[tokio::test(start_paused = true)]
async fn what_nobody_sees_does_not_turn_search_on() {
    let on_app = FakeServer::new("app", &Journal::default(), vec![tool("a"), tool("b")]);
    let files = FakeServer::new("files", &Journal::default(), vec![tool("c"), tool("d")]);
    let mut apps = spec(&on_app);
    apps.connectors = ["a", "b"].map(|tool| (RawToolName::parse(tool).unwrap(), calendar())).into();
    let policies = Policies::open(&["app", "files"]).app(
        portcullis::model::layer::LayerKind::User,
        "off",
        &Apps::says("off", Some(false), None),
    );
    let specs = [("app".to_owned(), apps), ("files".to_owned(), spec(&files))].into();
    let house = House::under(&policies, specs, BTreeMap::new());
    for (least, searches) in [(2, true), (3, false), (4, false)] {
        let session = house.session();
        session.show_on(Surface::Gateway { searching: Searching::From(least), app_surface: false });
        let listing = session.catalog().await;
        assert_eq!(listing.snapshot().tools().len(), 4);
        assert_eq!(listing.how().search, searches, "from {least}");
        assert_eq!(session.searches().await, searches);
    }
}

fn of_plugin(tools: Vec<String>) -> House {
    let plug = FakeServer::new("plug", &Journal::default(), tools);
    let mut configured = spec(&plug);
    configured.view.plugin = Some(Plugin { id: "plug@here".to_owned(), name: "Plug In".to_owned() });
    House::with([("plug".to_owned(), configured)].into(), BTreeMap::new())
}

/// A definition of so many properties, which no shortening leaves out, with a description of so many bytes.
fn long(name: &str, properties: usize, described: usize) -> String {
    let properties: serde_json::Map<String, Value> =
        (100..100 + properties).map(|n| (format!("property{n}"), json!({ "type": "string" }))).collect();
    let schema = json!({ "type": "object", "properties": properties });
    json!({ "name": name, "description": "x".repeat(described), "inputSchema": schema }).to_string()
}

async fn bytes(definition: String) -> (usize, usize, Exposure) {
    let house = of_plugin(vec![definition]);
    let step = library(&house, Exposing::library()).step().await.unwrap();
    let offer = &step.offers()[0];
    let spec = offer.handler.spec();
    (serde_json::to_string(&*spec.function).unwrap().len(), spec.bytes(), offer.exposure)
}

#[tokio::test(start_paused = true)]
async fn e7_the_namespace_of_a_plugins_tool_counts_not_its_function_alone() {
    let (function, _, _) = bytes(long("long", 225, 1)).await;
    let room = 8_000 - function;
    // With its namespace it is just beyond; the function alone is not.
    let (function, whole, exposure) = bytes(long("long", 225, room)).await;
    assert!(function <= 8_000 && whole > 8_000, "{function} {whole}");
    assert_eq!(exposure, Exposure::Hidden);
    let (_, whole, exposure) = bytes(long("long", 225, room - (whole - 8_000))).await;
    assert_eq!((whole, exposure), (8_000, Exposure::Direct));
}

#[tokio::test(start_paused = true)]
async fn e8_a_plugins_tool_beyond_the_total_is_hidden_and_a_smaller_one_after_it_fits() {
    let mut tools: Vec<String> = (1..=9).map(|n| long(&format!("long{n}"), 225, 1)).collect();
    tools.push(tool("small"));
    let house = of_plugin(tools);
    let session = library(&house, Exposing::library());
    let step = session.step().await.unwrap();
    let bytes: usize = step.offers().iter().map(|offer| offer.handler.spec().bytes()).take(8).sum();
    assert!(bytes <= 64_000 && bytes + 7_000 > 64_000, "{bytes}");
    let hidden: Vec<_> = step.offers().iter().filter(|offer| offer.exposure == Exposure::Hidden).collect();
    let [beyond] = hidden.as_slice() else { panic!("{}", hidden.len()) };
    assert_eq!(beyond.handler.tool().reference(), reference("plug/long9"));
    let own = beyond.handler.spec().bytes();
    assert_eq!(beyond.reason, Reason::PluginsFull { bytes: own, used: bytes });
    assert_eq!(step.offer(&reference("plug/small")).unwrap().exposure, Exposure::Direct);
    // Hidden is not absent.
    let called = session.call(call("plug/long9")).await;
    assert!(called.clean.failure().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_model_reads_and_searches_a_plugin_by_its_name_and_the_server_is_told_its_id() {
    let plug = FakeServer::new("plug", &Journal::default(), vec![tool("write")]);
    let mut configured = spec(&plug);
    configured.view.plugin = Some(Plugin { id: "plug@here".to_owned(), name: "Flying Carpet".to_owned() });
    let house = House::with([("plug".to_owned(), configured)].into(), BTreeMap::new());
    let session = library(&house, Exposing { search: true, ..Exposing::library() });
    let step = session.step().await.unwrap();
    let described = &step.offers()[0].handler.spec().function.description;
    assert_eq!(&**described, "does write. This tool is part of plugin `Flying Carpet`.");
    assert_eq!(session.find(&step, "carpet", None).unwrap().offers.len(), 1);
    let called = session.call(call("plug/write")).await;
    assert_eq!(called.item.call.facts.plugin_id.as_deref(), Some("plug@here"));
    assert_eq!(plug.handed()[0].meta["plugin_id"], "plug@here");
}
