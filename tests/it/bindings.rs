//! What a step stands on: the rows B1 to B15 of the reference (catalog-dispatch 8.5), one after the other, on a whole host.
//!
//! A row that we hold otherwise names the decision record that says why.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use portcullis::adapters::mcp::client::{Settings, StdioUpstream};
use portcullis::config::{Places, SessionSources, load};
use portcullis::host::fleet::{GRACE, ServerSpec, ServerState};
use portcullis::host::known::KnownLists;
use portcullis::host::listing::Surface;
use portcullis::host::session::Session;
use portcullis::host::step::Step;
use portcullis::model::caller::{Caller, TenantId};
use portcullis::model::digest::Digest;
use portcullis::model::item::Status;
use portcullis::model::layer::LayerKind;
use portcullis::model::name::{RawToolName, ServerName};
use portcullis::model::outcome::{Code, Stage};
use portcullis::model::tool::Connector;
use portcullis::model::verdict::{Remember, Verdict};
use portcullis::pipeline::Finished;
use portcullis::pipeline::admit::exposure::Exposing;
use portcullis::pipeline::admit::leases::DRAIN;
use portcullis::ports::reviewer::NobodyThere;
use portcullis::ports::upstream::{Connection as _, ListFailure, StartFailure};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::fakes::bench::{failed, said};
use crate::fakes::house::{House, STARTUP, call, spec};
use crate::fakes::people::{Person, allowed};
use crate::fakes::policy::{Policies, Scripted, ask, deny};
use crate::fakes::server::{FakeServer, How, Start, tool, tool_with};
use crate::fakes::{Gate, Journal};
use crate::support::scripted;

/// A row of the reference.
struct Row {
    id: u8,
    situation: &'static str,
    expected: &'static str,
    /// The decision record that says why we hold it otherwise, and how.
    ours: Option<(&'static str, &'static str)>,
    /// Shows it; on a clock that stands still unless everything waits, or on the real one where processes run.
    clock: Clock,
    shown: fn() -> LocalBoxFuture<'static, ()>,
}

#[derive(Clone, Copy, PartialEq)]
enum Clock {
    Still,
    Real,
}

const BINDINGS: &str = "0019-bindings.md";
const RELOAD: &str = "0015-reload.md";

fn rows() -> Vec<Row> {
    let row = |id, situation, expected, shown| Row { id, situation, expected, ours: None, clock: Clock::Still, shown };
    vec![
        row(1, "two pending optional servers, no cache", "about 1 s without them; the next at once", || {
            b1().boxed_local()
        }),
        row(2, "the same server explicitly required this turn", "keeps waiting", || b2().boxed_local()),
        row(3, "pending server with cached tools", "listed, no prepared call, read-only hint cleared", || {
            b3().boxed_local()
        }),
        row(4, "same published runtime, unchanged revision", "same binding; a new one after republishing", || {
            b4().boxed_local()
        }),
        Row {
            ours: Some((BINDINGS, "the same client, but decided again by what is in force (R19)")),
            ..row(5, "old and new bindings differ in mode", "old prepared call keeps client and config", || {
                b5().boxed_local()
            })
        },
        Row {
            ours: Some((BINDINGS, "stale, and the next call reaches the new client")),
            ..row(6, "captured client closed, new one exists", "client is shut down, no re-route", || {
                b6().boxed_local()
            })
        },
        row(7, "revision +1 after prepare", "error contains `catalog changed`", || b7().boxed_local()),
        row(8, "B7 with a side effect", "never happens", || b8().boxed_local()),
        Row {
            ours: Some((BINDINGS, "a lease holds a publication up no longer than the drain")),
            ..row(9, "preparation in progress", "a writer waits until it ends", || b9().boxed_local())
        },
        row(10, "view-only change (filter, mode)", "connection reused; old step lists both, new step one", || {
            b10().boxed_local()
        }),
        row(11, "URL change", "new connection", || b11().boxed_local()),
        Row {
            ours: Some((RELOAD, "stale, as the founding text says; the reference's code proceeds")),
            ..row(12, "runtime republished between prepare and call", "rejected", || b12().boxed_local())
        },
        row(13, "allow {keep, remove}, deny {remove}", "keep yes; remove no; other no", || b13().boxed_local()),
        Row {
            ours: Some((BINDINGS, "all pages are read in both eras")),
            clock: Clock::Real,
            ..row(14, "legacy server returning a cursor", "one page, one request", || b14().boxed_local())
        },
        Row {
            clock: Clock::Real,
            ..row(15, "cursor repeated / 101st page / item 2,049 / cursor > 64 KiB", "four errors", || {
                b15().boxed_local()
            })
        },
    ]
}

#[test]
fn b1_to_b15_every_row_holds_or_says_which_record_has_it_otherwise() {
    let rows = rows();
    assert!(rows.iter().map(|row| row.id).eq(1..=15));
    let mut broken = Vec::new();
    for row in rows {
        let name = format!("B{}: {} -> {}", row.id, row.situation, row.ours.map_or(row.expected, |(_, ours)| ours));
        if let Some((record, _)) = row.ours {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/decisions").join(record);
            let text = std::fs::read_to_string(file).unwrap();
            assert!(text.contains(&format!("B{}", row.id)), "{record} says nothing of {name}");
        }
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(row.clock == Clock::Still).build().unwrap();
        let shown = runtime.block_on(AssertUnwindSafe((row.shown)()).catch_unwind());
        if shown.is_err() {
            broken.push(name);
        }
    }
    assert!(broken.is_empty(), "what panicked is above: {broken:#?}");
}

fn server(name: &str, tools: &[&str]) -> Arc<FakeServer> {
    FakeServer::new(name, &Journal::default(), tools.iter().map(|name| tool(name)).collect())
}

fn files() -> Arc<FakeServer> {
    server("files", &["write", "read"])
}

fn one(server: &Arc<FakeServer>, change: impl FnOnce(&mut ServerSpec)) -> BTreeMap<String, ServerSpec> {
    let mut spec = spec(server);
    change(&mut spec);
    [(server.name.clone(), spec)].into()
}

fn model(house: &House) -> Arc<Session> {
    let session = house.session();
    session.show_on(Surface::Library(Exposing { search: false, ..Exposing::library() }));
    session
}

fn tools(step: &Step) -> Vec<String> {
    step.offers().iter().map(|offer| offer.handler.tool().reference().to_string()).collect()
}

fn calling(session: &Arc<Session>, target: &'static str) -> JoinHandle<Finished> {
    let session = Arc::clone(session);
    tokio::spawn(async move { session.call(call(target)).await })
}

/// A server as these layers configure it, reached as the scripted one is.
fn configured(server: &Arc<FakeServer>, layers: &[(LayerKind, &str)]) -> ServerSpec {
    let resolved = load(&Places::nowhere(), &SessionSources::of_texts(layers, &std::env::temp_dir()));
    let own = resolved.servers.get(server.name.as_str()).unwrap();
    let filter = own.filter.clone();
    let mut spec = spec(server);
    spec.view.tool_timeout = own.tool_timeout;
    ServerSpec {
        launch: own.launch_digest,
        config: own.digest,
        filter: Arc::new(move |tool| filter.filtered_by(tool).cloned()),
        ..spec
    }
}

async fn reconfigure(house: &House, policies: &Policies, specs: BTreeMap<String, ServerSpec>) {
    let specs = specs.into_iter().map(|(name, spec)| (ServerName::parse(&name).unwrap(), spec)).collect();
    house.host.reconfigure(policies.finish(), specs, BTreeMap::new(), Vec::new()).await;
}

/// A host whose calls stop in the middle of their decision until the gate is open, and such a call that has got there.
async fn stopped(files: &Arc<FakeServer>) -> (House, Policies, Arc<Gate>, JoinHandle<Finished>) {
    let gate = Gate::closed();
    let stop = Scripted::says(Verdict::Abstain).at(&gate);
    let policies = Policies::open(&["files"]).with(LayerKind::User, "stop", &stop);
    let house = House::under(&policies, one(files, |_| ()), BTreeMap::new());
    let running = calling(&house.session(), "files/write");
    gate.reached(1).await;
    (house, policies, gate, running)
}

fn assert_stale(files: &FakeServer, finished: &Finished) {
    assert_eq!(failed(finished), (Stage::Lease, Code::Stale));
    assert!(said(finished).contains("catalog changed"), "{}", said(finished));
    assert!(files.handed().is_empty(), "a stale call was sent");
}

async fn b1() {
    let (slow, slower, quick) = (server("slow", &["use"]), server("slower", &["use"]), server("quick", &["use"]));
    slow.starts(Start::Hangs);
    slower.starts(Start::Hangs);
    let house = House::of(&[&slow, &slower, &quick]);
    let begun = Instant::now();
    assert_eq!(tools(&model(&house).step().await.unwrap()), ["quick/use"]);
    assert_eq!(begun.elapsed(), GRACE);
    assert_eq!(house.session().list().await.tools().len(), 1);
    assert_eq!(begun.elapsed(), GRACE, "a later list waited again");
}

async fn b2() {
    // A turn that names the server.
    let (slow, other, gate) = (server("slow", &["use"]), server("other", &["use"]), Gate::closed());
    slow.starts(Start::Gated(Arc::clone(&gate)));
    other.starts(Start::Hangs);
    let house = House::of(&[&slow, &other]);
    let session = model(&house);
    let needed = BTreeSet::from([ServerName::parse("slow").unwrap(), ServerName::parse("unheard-of").unwrap()]);
    let mut step = std::pin::pin!(async {
        session.await_servers(&needed).await;
        session.step().await.unwrap()
    });
    assert!(timeout(GRACE * 5, &mut step).await.is_err(), "the step was taken without the server");
    gate.open();
    assert_eq!(tools(&step.await), ["slow/use"]);

    // A configuration that requires it.
    let (slow, gate) = (server("slow", &["use"]), Gate::closed());
    slow.starts(Start::Gated(Arc::clone(&gate)));
    let house = House::with(one(&slow, |spec| spec.required = true), BTreeMap::new());
    let session = house.session();
    let mut list = std::pin::pin!(session.list());
    assert!(timeout(GRACE * 5, &mut list).await.is_err(), "the list was served without the server");
    gate.open();
    assert_eq!(list.await.tools().len(), 1);

    // Its own startup timeout bounds that, and once it has failed nobody waits again.
    let stuck = server("stuck", &["use"]);
    stuck.starts(Start::Hangs);
    let house = House::with(one(&stuck, |spec| spec.required = true), BTreeMap::new());
    let begun = Instant::now();
    assert!(house.session().list().await.tools().is_empty());
    assert_eq!(begun.elapsed(), STARTUP);
    stuck.connected(2).await;
    let again = Instant::now();
    house.session().list().await;
    assert_eq!(Instant::now(), again);
}

async fn b3() {
    // What policies make of it, and what is known for whom: `remembered`.
    let (files, known) = (server("files", &[]), KnownLists::new(TenantId::new("one")));
    files.define(vec![tool("write"), tool_with("read", r#"{"readOnlyHint":true}"#)]);
    files.is_child(false);
    let specs = || one(&files, |_| ());
    let before = House::knowing(&known, &Policies::open(&["files"]), specs());
    let step = model(&before).step().await.unwrap();
    assert_eq!(tools(&step), ["files/read", "files/write"]);
    let read = |step: &Step| Arc::clone(step.offers()[0].handler.tool());
    assert_eq!(read(&step).hints.read_only, Some(true));
    before.host.shutdown(std::time::Duration::ZERO).await;
    let gate = Gate::closed();
    files.starts(Start::Gated(Arc::clone(&gate)));
    let house = House::knowing(&known, &Policies::open(&["files"]), specs());
    let (session, begun) = (model(&house), Instant::now());
    let step = session.step().await.unwrap();
    assert_eq!((tools(&step), Instant::now()), (vec!["files/read".to_owned(), "files/write".to_owned()], begun));
    assert_eq!(read(&step).hints.read_only, None);
    assert!(step.listing().snapshot().find(&read(&step).reference()).is_none(), "a call could be prepared");
    // It waits for the server instead, and is not stale for having been listed before that.
    let running = calling(&session, "files/read");
    gate.open();
    assert_eq!(running.await.unwrap().item.status, Status::Completed);
}

async fn b4() {
    let files = files();
    let house = House::of(&[&files]);
    let session = model(&house);
    let (first, second) = (session.step().await.unwrap(), session.step().await.unwrap());
    assert!(Arc::ptr_eq(first.listing().snapshot(), second.listing().snapshot()));
    assert!(Arc::ptr_eq(&first.offers()[0].handler, &second.offers()[0].handler));
    // The same configuration once more is no other runtime.
    let policies = Policies::open(&["files"]);
    reconfigure(&house, &policies, one(&files, |_| ())).await;
    reconfigure(&house, &policies, one(&files, |spec| spec.config = Digest::of(b"other"))).await;
    assert!(!Arc::ptr_eq(first.listing().snapshot(), session.step().await.unwrap().listing().snapshot()));
}

async fn b5() {
    // A person is asked under the old policies, and agrees when others are in force.
    let (files, gate) = (files(), Gate::closed());
    let person = Person::replying(&Journal::default(), [allowed(Remember::Never)]).at(&gate);
    let asks = Policies::open(&["files"]).with(LayerKind::User, "p", &Scripted::says(ask("sure", Remember::Never)));
    let house = House::under(&asks, one(&files, |_| ()), BTreeMap::new());
    let session = house.host.session(Caller::local("ann"), Arc::clone(&person) as _);
    let running = calling(&session, "files/write");
    gate.reached(1).await;
    let denies = Policies::open(&["files"]).with(LayerKind::User, "p", &Scripted::says(deny("not any more")));
    reconfigure(&house, &denies, one(&files, |_| ())).await;
    gate.open();
    assert_eq!(failed(&running.await.unwrap()).1, Code::Denied);
    assert!(files.handed().is_empty());

    // One that was handed over goes on over its client, whatever is in force by then.
    let open = Policies::open(&["files"]);
    reconfigure(&house, &open, one(&files, |_| ())).await;
    let gate = Gate::closed();
    files.answers(How::Gated(Arc::clone(&gate)));
    let (running, client) = (calling(&session, "files/write"), files.last());
    gate.reached(1).await;
    reconfigure(&house, &denies, one(&files, |spec| spec.config = Digest::of(b"other"))).await;
    gate.open();
    assert_eq!(running.await.unwrap().item.status, Status::Completed);
    assert_eq!(files.handed()[0].connection, client.id());
}

async fn b6() {
    let files = files();
    let (house, _, gate, running) = stopped(&files).await;
    let captured = files.last();
    captured.die("it crashed");
    files.connected(2).await;
    house.host.fleet().settle_fully().await;
    gate.open();
    assert_stale(&files, &running.await.unwrap());
    assert_eq!(house.session().call(call("files/write")).await.item.status, Status::Completed);
    assert!(files.handed()[0].connection == files.last().id() && files.last().id() != captured.id());
}

/// The server defines the tool otherwise, and the catalog has it.
async fn redefine(house: &House, files: &FakeServer) {
    let mut revisions = house.host.catalog().watch();
    let before = *revisions.borrow_and_update();
    files.define(vec![tool_with("write", r#"{"title":"Other"}"#), tool("read")]);
    files.last().say_tools_changed();
    let after = *revisions.wait_for(|revision| *revision != before).await.unwrap();
    assert_eq!(after.number(), before.number() + 1);
}

async fn b7() {
    let files = files();
    let (house, _, gate, running) = stopped(&files).await;
    redefine(&house, &files).await;
    gate.open();
    assert_stale(&files, &running.await.unwrap());
}

async fn b8() {
    // The side effects of a hand-over: the request, the mark of the memory, a kept agreement, a decision that was carried out.
    let (files, gate) = (files(), Gate::closed());
    let person =
        Person::replying(&Journal::default(), [allowed(Remember::Session), allowed(Remember::Session)]).at(&gate);
    let house = House::under(&Policies::new(), one(&files, |_| ()), BTreeMap::new());
    let session = house.host.session(Caller::local("ann"), Arc::clone(&person) as _);
    session.mark_memory(Arc::new(Journal::default()));
    let running = calling(&session, "files/write");
    gate.reached(1).await;
    redefine(&house, &files).await;
    gate.open();
    assert_stale(&files, &running.await.unwrap());
    assert!(!session.memory_polluted());
    // Nothing was remembered: the next call is asked about again.
    session.list().await;
    assert_eq!(session.call(call("files/write")).await.item.status, Status::Completed);
    assert_eq!(person.questions().len(), 2);
    assert!(session.memory_polluted());
}

async fn b9() {
    // With a lease alone: `barrier::b9_a_publication_waits_for_an_open_lease_of_its_server`.
    let (files, gate) = (files(), Gate::closed());
    files.answers(How::Stuck(Arc::clone(&gate)));
    let (house, policies) = (House::of(&[&files]), Policies::open(&["files"]));
    let running = calling(&house.session(), "files/write");
    gate.reached(1).await;
    let other = || one(&files, |spec| spec.config = Digest::of(b"other"));
    let begun = Instant::now();
    let mut writer = std::pin::pin!(reconfigure(&house, &policies, other()));
    assert!(futures::poll!(writer.as_mut()).is_pending());
    gate.open();
    writer.await;
    assert_eq!(Instant::now(), begun, "the lease ended with the hand-over");
    assert_eq!(running.await.unwrap().item.status, Status::Completed);

    let stuck = Gate::closed();
    files.answers(How::Stuck(Arc::clone(&stuck)));
    let _running = calling(&house.session(), "files/write");
    stuck.reached(1).await;
    let begun = Instant::now();
    reconfigure(&house, &policies, one(&files, |_| ())).await;
    assert_eq!(begun.elapsed(), DRAIN);
}

async fn b10() {
    let files = files();
    let table = "[mcp_servers.files]\ncommand = \"files\"\n";
    let with = |keys: &str| -> BTreeMap<String, ServerSpec> {
        let text = format!("{table}{keys}");
        [("files".to_owned(), configured(&files, &[(LayerKind::User, &text)]))].into()
    };
    let policies = Policies::open(&["files"]);
    let house = House::under(&policies, with(""), BTreeMap::new());
    let session = model(&house);
    let old = session.step().await.unwrap();
    let gate = Gate::closed();
    files.answers(How::Gated(Arc::clone(&gate)));
    let (running, client) = (calling(&session, "files/write"), files.last().id());
    gate.reached(1).await;

    // Another filter and timeout, and with other policies another mode.
    reconfigure(&house, &Policies::new(), with("disabled_tools = [\"read\"]\ntool_timeout_sec = 5\n")).await;
    let new = session.step().await.unwrap();
    assert_eq!((tools(&old).len(), tools(&new)), (2, vec!["files/write".to_owned()]));
    assert_eq!(new.listing().snapshot().server(&ServerName::parse("files").unwrap()).unwrap().connection.id(), client);
    let hidden = session.call(call("files/read")).await;
    assert_eq!(failed(&hidden).1, Code::NotAvailable);
    assert_eq!(failed(&session.call(call("files/write")).await).1, Code::NobodyToAsk, "the new mode");
    gate.open();
    assert_eq!(running.await.unwrap().item.status, Status::Completed, "a running call ended with the old view");

    // What was filtered is known still.
    reconfigure(&house, &policies, with("")).await;
    assert_eq!(tools(&session.step().await.unwrap()).len(), 2);
    assert_eq!(session.call(call("files/read")).await.item.status, Status::Completed);
    assert_eq!((*files.connects.borrow(), *files.lists.borrow()), (1, 1));
}

async fn b11() {
    let files = files();
    let at = |host: &str| -> BTreeMap<String, ServerSpec> {
        let text = format!("[mcp_servers.files]\nurl = \"https://{host}.example/\"\n");
        [("files".to_owned(), configured(&files, &[(LayerKind::User, &text)]))].into()
    };
    let policies = Policies::open(&["files"]);
    let house = House::under(&policies, at("a"), BTreeMap::new());
    house.host.fleet().settle_fully().await;
    let old = files.last();
    reconfigure(&house, &policies, at("b")).await;
    house.host.fleet().settle_fully().await;
    assert_eq!(*files.connects.borrow(), 2);
    assert!(!old.is_open() && files.last().is_open() && files.last().id() != old.id());
}

async fn b12() {
    let files = files();
    let (house, policies, gate, running) = stopped(&files).await;
    let client = files.last().id();
    reconfigure(&house, &policies, one(&files, |spec| spec.config = Digest::of(b"other"))).await;
    gate.open();
    assert_stale(&files, &running.await.unwrap());
    // Not for want of a client.
    assert!(files.last().id() == client && files.last().is_open());
    assert_eq!(house.session().call(call("files/write")).await.item.status, Status::Completed);
}

async fn b13() {
    let files = server("files", &["keep", "remove", "other"]);
    let whole = "[mcp_servers.files]\ncommand = \"files\"\nenabled_tools = [\"keep\", \"remove\"]\n";
    let tighter = "[mcp_servers.files]\ndisabled_tools = [\"remove\"]\n";
    let spec = configured(&files, &[(LayerKind::Organisation, whole), (LayerKind::User, tighter)]);
    let house = House::with([("files".to_owned(), spec)].into(), BTreeMap::new());
    let session = house.host.session(Caller::local("ann"), Arc::new(NobodyThere));
    assert_eq!(session.list().await.tools().len(), 1);
    assert_eq!(house.listed(), ["files/keep"]);
    // Every decision has a reason, for people; a model is told nothing (R25).
    let status = serde_json::to_value(&house.host.status()[0]).unwrap();
    let row = |tool: &str, layer: &str| {
        let reason = format!("filtered by the {layer} layer");
        serde_json::json!({ "tool": tool, "exposure": "absent", "reason": reason, "layer": layer })
    };
    assert_eq!(status["filtered"], serde_json::json!([row("remove", "user"), row("other", "organisation")]));
    assert_eq!(failed(&session.call(call("files/other")).await).1, Code::NotAvailable);
}

/// A host with the scripted process that lists like this.
async fn listing(how: &str) -> House {
    listing_with(how, BTreeMap::new()).await
}

/// The same for the Apps server, which is what has a connector.
async fn listing_apps(how: &str) -> House {
    let app = Connector { id: "c1".to_owned(), name: None, account: None, description: None };
    listing_with(how, [(RawToolName::parse("t0").unwrap(), app)].into()).await
}

async fn listing_with(how: &str, connectors: BTreeMap<RawToolName, Connector>) -> House {
    let name = ServerName::parse("s").unwrap();
    let upstream = Arc::new(StdioUpstream::new(name, scripted(&["--list", how]), Settings::default()));
    let spec = ServerSpec { upstream, connectors, ..spec(&server("s", &[])) };
    let house = House::with([("s".to_owned(), spec)].into(), BTreeMap::new());
    house.host.fleet().settle_fully().await;
    house
}

async fn b14() {
    let house = listing("pages").await;
    assert_eq!(house.listed().len(), 4, "{:?}", house.listed());
    house.host.shutdown(std::time::Duration::ZERO).await;
}

async fn b15() {
    let failures = [
        ("repeated", ListFailure::RepeatedCursor),
        ("endless", ListFailure::TooManyPages(100)),
        ("many", ListFailure::TooManyTools(2048)),
        ("long-cursor", ListFailure::LongCursor(65536)),
    ];
    for (how, failure) in failures {
        let house = listing(how).await;
        let ServerState::Failed { why, .. } = house.state("s") else { panic!("{how}: {:?}", house.state("s")) };
        assert_eq!(why, StartFailure::List(failure));
        house.host.shutdown(std::time::Duration::ZERO).await;
    }
    // The Apps server may have more: item 8,193 is one too many of it.
    let house = listing_apps("many").await;
    assert_eq!((house.state("s"), house.listed().len()), (ServerState::Ready, 2049));
    house.host.shutdown(std::time::Duration::ZERO).await;
    let house = listing_apps("too-many").await;
    let ServerState::Failed { why, .. } = house.state("s") else { panic!("{:?}", house.state("s")) };
    assert_eq!(why, StartFailure::List(ListFailure::TooManyTools(8192)));
    house.host.shutdown(std::time::Duration::ZERO).await;
}
