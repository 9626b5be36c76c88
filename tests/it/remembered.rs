//! What a server listed the last time is listed while it starts (B3), looked at by everything that looks at a live list, and
//! nothing is called by it.

use std::collections::BTreeMap;
use std::sync::Arc;

use portcullis::gateway::ServeOptions;
use portcullis::host::fleet::{GRACE, ServerSpec, ServerState};
use portcullis::host::known::{KnownLists, LIFE};
use portcullis::host::listing::{Listing, Surface};
use portcullis::host::session::Session;
use portcullis::model::caller::TenantId;
use portcullis::model::digest::Digest;
use portcullis::model::item::Status;
use portcullis::model::layer::{LayerKind, LayerRef};
use portcullis::model::name::{RawToolName, ServerName, ToolRef};
use portcullis::model::outcome::{Code, Stage};
use portcullis::model::tool::{Connector, Hints};
use portcullis::model::verdict::ConnectorAnswer;
use portcullis::pipeline::admit::exposure::Exposing;
use portcullis::ports::sanitiser::Class;
use serde_json::json;
use tokio::time::Instant;

use crate::fakes::bench::{failed, said};
use crate::fakes::house::{House, call, spec};
use crate::fakes::policy::{Apps, Policies};
use crate::fakes::sanitiser::{Cleaner, bound};
use crate::fakes::server::{FakeServer, Start, tool, tool_with};
use crate::fakes::{Gate, Journal};
use crate::support::gate::Client;

const HINTS: &str =
    r#"{"title":"Shown by annotation","readOnlyHint":true,"destructiveHint":false,"openWorldHint":false}"#;

/// A child process that lists these tools.
fn child(tools: Vec<String>) -> Arc<FakeServer> {
    let server = FakeServer::new("files", &Journal::default(), tools);
    server.is_child(false);
    server
}

fn known() -> KnownLists {
    KnownLists::new(TenantId::new("one"))
}

fn run_by(spec: ServerSpec) -> BTreeMap<String, ServerSpec> {
    [("files".to_owned(), spec)].into()
}

/// Has the server list once, on a host that has ended since.
async fn seen_once(known: &KnownLists, server: &Arc<FakeServer>) {
    let house = House::knowing(known, &Policies::open(&["files"]), run_by(spec(server)));
    house.host.fleet().settle_fully().await;
    house.host.shutdown(std::time::Duration::ZERO).await;
}

/// The server starts only once the gate is open.
fn slow(server: &FakeServer) -> Arc<Gate> {
    let gate = Gate::closed();
    server.starts(Start::Gated(Arc::clone(&gate)));
    gate
}

/// A host that knows what the server lists, and waits for it.
async fn starting(
    server: &Arc<FakeServer>,
    policies: &Policies,
    change: impl FnOnce(&mut ServerSpec),
) -> (House, Arc<Gate>) {
    let known = known();
    seen_once(&known, server).await;
    let gate = slow(server);
    let mut spec = spec(server);
    change(&mut spec);
    (House::knowing(&known, policies, run_by(spec)), gate)
}

fn names(listing: &Listing) -> Vec<String> {
    listing.tools().iter().map(|tool| tool.reference().to_string()).collect()
}

fn reference(tool: &str) -> ToolRef {
    ToolRef::parse(&format!("files/{tool}")).unwrap()
}

fn model(house: &House) -> Arc<Session> {
    let session = house.session();
    session.show_on(Surface::Library(Exposing::library()));
    session
}

#[tokio::test(start_paused = true)]
async fn b3_a_starting_servers_last_list_is_shown_at_once_without_hints_and_without_a_call_that_could_be_made() {
    let server = child(vec![tool_with("read", HINTS), tool("write")]);
    let (house, gate) = starting(&server, &Policies::open(&["files"]), |_| ()).await;
    let session = house.session();
    let begun = Instant::now();
    let listing = session.list().await;
    assert_eq!((names(&listing), Instant::now()), (vec!["files/read".to_owned(), "files/write".to_owned()], begun));
    assert_eq!(house.state("files"), ServerState::Starting);
    let snapshot = listing.snapshot();
    let read = snapshot.tool(&reference("read")).unwrap();
    assert_eq!(read.hints, Hints::default(), "nobody vouches for them");
    assert!(snapshot.find(&reference("read")).is_none(), "a call could be prepared");
    assert!(snapshot.server(&ServerName::parse("files").unwrap()).is_none());
    let shown = listing.shown(&reference("read")).unwrap();
    assert_eq!((shown.description(), shown.value().get("annotations")), (Some("does read"), None));

    // R24: what was shown is what is live, so the call is not stale, and it waited.
    let running = tokio::spawn({
        let session = Arc::clone(&session);
        async move { session.call(call("files/read")).await }
    });
    server.connected(2).await;
    assert!(server.handed().is_empty());
    gate.open();
    assert_eq!(running.await.unwrap().item.status, Status::Completed);
    let listing = session.list().await;
    let read = listing.snapshot().tool(&reference("read")).unwrap();
    assert_eq!(read.hints.read_only, Some(true));
    assert_eq!(listing.shown(&reference("read")).unwrap().title(), Some("Shown by annotation"));
}

#[tokio::test(start_paused = true)]
async fn r24_a_definition_that_is_another_one_once_the_server_is_there_makes_the_call_stale_once() {
    let server = child(vec![tool("write"), tool("gone")]);
    let (house, gate) = starting(&server, &Policies::open(&["files"]), |_| ()).await;
    let session = house.session();
    assert_eq!(session.list().await.tools().len(), 2);
    server.define(vec![tool_with("write", r#"{"title":"Other"}"#)]);
    gate.open();
    let finished = session.call(call("files/write")).await;
    assert_eq!(failed(&finished).1, Code::Stale);
    assert!(said(&finished).contains("Other"), "the new definition is not shown: {}", said(&finished));
    assert!(server.handed().is_empty());
    assert_eq!(session.call(call("files/write")).await.item.status, Status::Completed);
    assert_eq!(failed(&session.call(call("files/gone")).await).1, Code::NotAvailable);
}

#[tokio::test(start_paused = true)]
async fn b3_only_a_child_of_the_same_launch_name_and_tenant_is_known_and_only_for_its_time_and_by_its_leave() {
    let listed = async |known: &KnownLists, server: &Arc<FakeServer>, spec: ServerSpec| {
        let house = House::knowing(known, &Policies::open(&["files"]), run_by(spec));
        let begun = Instant::now();
        let listed = house.session().list().await.tools().len();
        assert_eq!(begun.elapsed(), if listed == 0 { GRACE } else { std::time::Duration::ZERO });
        house.host.shutdown(std::time::Duration::ZERO).await;
        assert_eq!(server.open_connections(), 0);
        listed
    };
    let (server, lists) = (child(vec![tool("write")]), known());
    seen_once(&lists, &server).await;
    server.starts(Start::Hangs);
    assert_eq!(listed(&lists, &server, spec(&server)).await, 1);
    let other = ServerSpec { launch: Digest::of(b"other"), ..spec(&server) };
    assert_eq!(listed(&lists, &server, other).await, 0, "another launch");
    assert_eq!(listed(&lists.for_tenant(TenantId::new("two")), &server, spec(&server)).await, 0, "another tenant");
    assert_eq!(listed(&known(), &server, spec(&server)).await, 0, "another memory");
    tokio::time::advance(LIFE).await;
    assert_eq!(listed(&lists, &server, spec(&server)).await, 0, "half an hour later");

    // Over HTTP, or inside of this process.
    let (elsewhere, lists) = (FakeServer::new("files", &Journal::default(), vec![tool("write")]), known());
    seen_once(&lists, &elsewhere).await;
    elsewhere.starts(Start::Hangs);
    assert_eq!(listed(&lists, &elsewhere, spec(&elsewhere)).await, 0, "no child");

    // It says `codex/tool-catalog-cache: {"cacheable": false}`, and what was known before goes.
    let (unwilling, lists) = (child(vec![tool("write")]), known());
    seen_once(&lists, &unwilling).await;
    unwilling.is_child(true);
    seen_once(&lists, &unwilling).await;
    unwilling.starts(Start::Hangs);
    assert_eq!(listed(&lists, &unwilling, spec(&unwilling)).await, 0, "it does not want that");
}

#[tokio::test(start_paused = true)]
async fn b3_a_server_that_fails_takes_its_last_list_along_and_its_next_attempts_do_not_bring_it_back() {
    let (server, known) = (child(vec![tool("write")]), known());
    seen_once(&known, &server).await;
    server.starts(Start::Hangs);
    let house = House::knowing(&known, &Policies::open(&["files"]), run_by(spec(&server)));
    assert_eq!(house.session().list().await.tools().len(), 1);
    server.starts(Start::Fails("broken"));
    house.host.fleet().settle_fully().await;
    let mut revisions = house.host.catalog().watch();
    assert!(house.listed().is_empty());
    let before = *revisions.borrow_and_update();
    server.connected(6).await;
    assert_eq!(*revisions.borrow(), before, "the list came and went");
    assert_eq!(failed(&house.session().call(call("files/write")).await).1, Code::NotAvailable);
}

#[tokio::test(start_paused = true)]
async fn b3_what_is_filtered_today_is_not_listed_and_a_changed_filter_counts_while_the_server_starts() {
    let leaves_out = |name: &'static str| -> Arc<portcullis::host::fleet::LeavesOut> {
        Arc::new(move |tool: &RawToolName| (tool.as_str() == name).then(|| LayerRef::new(LayerKind::User)))
    };
    let server = child(vec![tool("read"), tool("write")]);
    let policies = Policies::open(&["files"]);
    let (house, gate) = starting(&server, &policies, |spec| spec.filter = leaves_out("write")).await;
    assert_eq!(names(&house.session().list().await), ["files/read"]);
    let other = ServerSpec { filter: leaves_out("read"), config: Digest::of(b"other"), ..spec(&server) };
    let specs = [(ServerName::parse("files").unwrap(), other)].into();
    house.host.reconfigure(policies.finish(), specs, BTreeMap::new(), Vec::new()).await;
    let session = house.session();
    assert_eq!(names(&session.list().await), ["files/write"]);
    gate.open();
    assert_eq!(failed(&session.call(call("files/read")).await).1, Code::NotAvailable);
    assert_eq!(session.call(call("files/write")).await.item.status, Status::Completed);
    assert_eq!(*server.connects.borrow(), 2, "the start went on");

    // One that is switched off is not listed from memory either.
    let off = [(ServerName::parse("files").unwrap(), "off".to_owned())].into();
    house.host.reconfigure(policies.finish(), BTreeMap::new(), off, Vec::new()).await;
    assert!(house.listed().is_empty());

    // Switched on again it is.
    let _gate = slow(&server);
    let on = [(ServerName::parse("files").unwrap(), spec(&server))].into();
    house.host.reconfigure(policies.finish(), on, BTreeMap::new(), Vec::new()).await;
    let begun = Instant::now();
    assert_eq!(names(&house.session().list().await), ["files/read", "files/write"]);
    assert_eq!((Instant::now(), house.state("files")), (begun, ServerState::Starting));
}

#[tokio::test(start_paused = true)]
async fn r31_sanitisers_look_at_what_is_remembered_and_what_they_withhold_stays_hidden_when_the_server_is_there() {
    let server = child(vec![tool_with("CANARY", r#"{"readOnlyHint":true}"#), tool("sings")]);
    let cleaner = Cleaner::removes("CANARY", Class::Secret);
    let policies = Policies::open(&["files"]).cleaning(bound(LayerKind::User, "words", &cleaner));
    let (house, gate) = starting(&server, &policies, |_| ()).await;
    let session = house.session();
    let listing = session.list().await;
    assert_eq!(names(&listing), ["files/sings"], "an edit of a name hides the tool");
    assert!(listing.withheld().contains_key(&reference("CANARY")));
    gate.open();
    // Not listed since: what was withheld is known by what is called.
    let hidden = session.call(call("files/CANARY")).await;
    assert_eq!(failed(&hidden), (Stage::Sanitise, Code::Disabled));
    assert!(server.handed().is_empty());
}

#[tokio::test(start_paused = true)]
async fn r25_connector_policies_are_asked_about_what_is_remembered_without_hints() {
    let server = child(vec![tool_with("read", HINTS), tool_with("write", HINTS), tool("plain")]);
    let app = Connector { id: "c1".to_owned(), name: None, account: None, description: None };
    let policy = Apps::by(|facts| {
        let trusted = facts.hints.read_only == Some(true);
        Ok(ConnectorAnswer { rule: None, enabled: Some(trusted || facts.tool.tool.as_str() == "write"), mode: None })
    });
    let policies = Policies::open(&["files"]).app(LayerKind::Managed, "apps", &policy);
    let connectors = ["read", "write"].map(|name| (RawToolName::parse(name).unwrap(), app.clone()));
    let (house, gate) = starting(&server, &policies, |spec| spec.connectors = connectors.into()).await;
    let session = house.session();
    assert_eq!(names(&session.list().await), ["files/write"], "a hint that nobody vouches for relaxed");
    gate.open();
    house.host.fleet().settle_fully().await;
    assert_eq!(names(&session.list().await), ["files/read", "files/write"]);
}

#[tokio::test(start_paused = true)]
async fn b2_a_server_that_is_required_is_waited_for_whatever_is_known_of_it() {
    let server = child(vec![tool("write")]);
    let (house, gate) = starting(&server, &Policies::open(&["files"]), |_| ()).await;
    let session = model(&house);
    let needed = [ServerName::parse("files").unwrap()].into();
    let mut step = std::pin::pin!(async {
        session.await_servers(&needed).await;
        session.step().await.unwrap()
    });
    assert!(tokio::time::timeout(GRACE * 5, &mut step).await.is_err(), "the step was taken without the server");
    gate.open();
    let step = step.await;
    assert!(step.listing().snapshot().find(&reference("write")).is_some());
}

#[tokio::test(start_paused = true)]
async fn b3_a_model_is_given_what_is_remembered_and_its_call_runs_against_the_live_definition() {
    let server = child(vec![tool_with("write", HINTS)]);
    let (house, gate) = starting(&server, &Policies::open(&["files"]), |_| ()).await;
    let session = model(&house);
    let step = session.step().await.unwrap();
    assert_eq!(step.tools()[0]["tools"][0]["name"], json!("write"));
    gate.open();
    let made = portcullis::host::step::FunctionCall::new(Some("mcp__files"), "write", "{}");
    let portcullis::host::step::Dispatched::Called(finished) = session.dispatch(&step, made).await else { panic!() };
    assert_eq!(finished.item.status, Status::Completed);
    assert_eq!(server.handed().len(), 1);
}

#[tokio::test]
async fn b3_a_client_of_the_gateway_lists_a_starting_server_without_hints_and_is_told_when_it_is_there() {
    let server = child(vec![tool_with("read", HINTS)]);
    let (house, gate) = starting(&server, &Policies::open(&["files"]), |_| ()).await;
    let mut client = Client::of(&house.host, ServeOptions::default());
    client.greet(json!({})).await;
    let list = client.list().await;
    let read = &list["tools"][0];
    assert_eq!((&read["name"], read.get("annotations")), (&json!("files__read"), None));
    client.call("1", r#"{"name":"files__read","arguments":{}}"#).await;
    server.connected(2).await;
    gate.open();
    assert_ne!(client.answer(json!(1)).await["result"]["isError"], true);
    client.told("notifications/tools/list_changed").await;
    assert_eq!(client.list().await["tools"][0]["annotations"]["readOnlyHint"], true);
}
