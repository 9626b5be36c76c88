//! The servers of one host: started side by side, restarted, listed again, ended; none takes another down.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use portcullis::host::build::{HostBuilder, NotBuilt};
use portcullis::host::fleet::{BackOff, MAX_FILTERED, ServerSpec, ServerState, ServerStatus};
use portcullis::host::session::Session;
use portcullis::model::digest::Digest;
use portcullis::model::item::Status;
use portcullis::model::layer::{LayerKind, LayerRef};
use portcullis::model::name::{RawToolName, ServerName};
use portcullis::model::outcome::{Code, Stage};
use portcullis::model::tool::MAX_DEFINITION;
use portcullis::pipeline::Finished;
use portcullis::pipeline::admit::slots::Slots;
use portcullis::ports::upstream::{Connection as _, Fleet as _, StartFailure, UpstreamLog};
use tokio::time::Instant;

use crate::fakes::bench::{failed, said};
use crate::fakes::house::{House, STARTUP, call, spec};
use crate::fakes::policy::Policies;
use crate::fakes::server::{FakeServer, How, Start, tool, tool_with};
use crate::fakes::{Gate, Journal};

fn server(name: &str) -> Arc<FakeServer> {
    FakeServer::new(name, &Journal::default(), vec![tool("use")])
}

/// A server, and what is changed of its usual configuration.
type Changed<'a> = (&'a Arc<FakeServer>, fn(&mut ServerSpec));

fn house_of(servers: &[Changed<'_>]) -> House {
    let mut specs = BTreeMap::new();
    for (server, change) in servers {
        let mut spec = spec(server);
        change(&mut spec);
        specs.insert(server.name.clone(), spec);
    }
    House::with(specs, BTreeMap::new())
}

async fn ready(house: &House) {
    house.host.fleet().settle_fully().await;
}

fn status(house: &House, server: &str) -> ServerStatus {
    house.host.status().into_iter().find(|status| status.server.as_str() == server).unwrap()
}

async fn call_one(house: &House, target: &str) -> Finished {
    house.session().call(call(target)).await
}

#[tokio::test(start_paused = true)]
async fn servers_start_side_by_side() {
    let (one, two, gate) = (server("one"), server("two"), Gate::closed());
    one.starts(Start::Gated(Arc::clone(&gate)));
    two.starts(Start::Gated(Arc::clone(&gate)));
    let house = House::of(&[&one, &two]);
    gate.reached(2).await;
    gate.open();
    ready(&house).await;
    assert_eq!(house.listed(), ["one/use", "two/use"]);
}

#[tokio::test(start_paused = true)]
async fn a_list_does_not_wait_when_all_servers_have_settled() {
    let (dead, quick) = (server("dead"), server("quick"));
    dead.starts(Start::Fails("no such file"));
    let house = House::of(&[&dead, &quick]);
    let begun = Instant::now();
    assert_eq!(house.session().list().await.tools().len(), 1);
    assert_eq!(Instant::now(), begun);
}

#[tokio::test(start_paused = true)]
async fn b2_whoever_starts_a_host_can_wait_for_its_required_servers() {
    let slow = server("slow");
    let gate = Gate::closed();
    slow.starts(Start::Gated(Arc::clone(&gate)));
    let house = house_of(&[(&slow, |spec| spec.required = true)]);
    let mut waiting = std::pin::pin!(house.host.fleet().await_required());
    assert!(futures::poll!(waiting.as_mut()).is_pending());
    gate.open();
    assert_eq!(waiting.await, Ok(()));
    assert_eq!(house.listed(), ["slow/use"]);
}

#[tokio::test(start_paused = true)]
async fn every_required_server_that_failed_is_named_with_its_reason() {
    let (one, two, optional) = (server("one"), server("two"), server("optional"));
    one.starts(Start::Fails("no such file"));
    two.starts(Start::Hangs);
    optional.starts(Start::Fails("who cares"));
    let required = |spec: &mut ServerSpec| spec.required = true;
    let house = house_of(&[(&one, required), (&two, required), (&optional, |_| ())]);
    let error = house.host.fleet().await_required().await.unwrap_err();
    assert_eq!(
        error,
        "required MCP servers failed to initialize: one: ended during start-up: no such file; two: did not start within \
         30 s; raise `startup_timeout_sec` if it needs longer"
    );
}

#[tokio::test(start_paused = true)]
async fn a_dead_server_does_not_take_down_the_rest() {
    let (dead, alive) = (server("dead"), server("alive"));
    dead.starts(Start::Fails("no such file"));
    let house = House::of(&[&dead, &alive]);
    ready(&house).await;
    assert_eq!(call_one(&house, "alive/use").await.item.status, Status::Completed);
    let why = StartFailure::Exited("no such file".into());
    assert!(matches!(house.state("dead"), ServerState::Failed { why: reported, .. } if reported == why));
    assert_eq!(failed(&call_one(&house, "dead/use").await).1, Code::NotAvailable);
}

#[tokio::test(start_paused = true)]
async fn r25_unknown_disabled_and_failed_servers_answer_alike() {
    let dead = server("dead");
    dead.starts(Start::Fails("no such file"));
    let disabled = BTreeMap::from([(ServerName::parse("off").unwrap(), "disabled by managed".to_owned())]);
    let house = House::with(BTreeMap::from([("dead".to_owned(), spec(&dead))]), disabled);
    ready(&house).await;
    for target in ["dead/use", "off/use", "unheard/use"] {
        let text = format!("MCP tool `{target}` is not available to the model");
        assert_eq!(said(&call_one(&house, target).await), text);
    }
    assert!(matches!(house.state("off"), ServerState::Disabled { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_for_its_server_to_start() {
    let slow = server("slow");
    let gate = Gate::closed();
    slow.starts(Start::Gated(Arc::clone(&gate)));
    let house = House::of(&[&slow]);
    let session = house.session();
    let calling = tokio::spawn(async move { session.call(call("slow/use")).await });
    gate.reached(1).await;
    gate.open();
    assert_eq!(calling.await.unwrap().item.status, Status::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_call_gives_up_on_a_server_that_never_initialises_and_calls_elsewhere_do_not_wait() {
    let (stuck, alive) = (server("stuck"), server("alive"));
    stuck.starts(Start::Hangs);
    let house = House::of(&[&stuck, &alive]);
    let begun = Instant::now();
    assert_eq!(call_one(&house, "alive/use").await.item.status, Status::Completed);
    assert_eq!(Instant::now(), begun);
    assert_eq!(failed(&call_one(&house, "stuck/use").await).1, Code::NotAvailable);
    assert_eq!(begun.elapsed(), STARTUP);
}

#[tokio::test(start_paused = true)]
async fn the_next_call_after_a_close_waits_for_the_restart_and_reaches_the_new_connection() {
    let files = server("files");
    let house = House::of(&[&files]);
    ready(&house).await;
    let (old, gate) = (files.last(), Gate::closed());
    files.starts(Start::Gated(Arc::clone(&gate)));
    old.die("it crashed");
    assert_eq!(house.state("files"), ServerState::Starting);
    let session = house.session();
    let calling = tokio::spawn(async move { session.call(call("files/use")).await });
    gate.reached(1).await;
    assert_eq!(house.listed(), ["files/use"], "a restarting server is taken out of the list");
    gate.open();
    assert_eq!(calling.await.unwrap().item.status, Status::Completed);
    assert_ne!(files.handed()[0].connection, old.id());
    assert_eq!(files.handed()[0].connection, files.last().id());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_in_the_middle_of_a_call_makes_it_ambiguous_and_is_restarted() {
    let files = server("files");
    files.answers(How::Never);
    let house = House::of(&[&files]);
    let session = house.session();
    let calling = tokio::spawn(async move { session.call(call("files/use")).await });
    files.handed_over(1).await;
    files.last().die("it crashed");
    assert_eq!(failed(&calling.await.unwrap()).1, Code::Ambiguous);
    files.answers(How::Result(crate::fakes::server::OK));
    assert_eq!(call_one(&house, "files/use").await.item.status, Status::Completed);
    assert_eq!(*files.connects.borrow(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_transport_that_closed_unnoticed_is_reconnected_for_the_next_call() {
    let files = server("files");
    let house = House::of(&[&files]);
    ready(&house).await;
    files.last().close_silently();
    assert_eq!(call_one(&house, "files/use").await.item.status, Status::Completed);
    assert_eq!(*files.connects.borrow(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_late_word_about_an_old_connection_does_not_hide_one_about_the_new() {
    let files = server("files");
    let house = House::of(&[&files]);
    ready(&house).await;
    let (fleet, name) = (house.host.fleet(), ServerName::parse("files").unwrap());
    let old = files.last().id();
    files.last().die("it crashed");
    files.connected(2).await;
    ready(&house).await;
    fleet.mark_dirty(&name, files.last().id());
    fleet.mark_dirty(&name, old);
    assert_eq!(call_one(&house, "files/use").await.item.status, Status::Completed);
    assert_eq!(*files.connects.borrow(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_cancelled_while_its_server_starts_completes_unsent() {
    let slow = server("slow");
    let gate = Gate::closed();
    slow.starts(Start::Gated(Arc::clone(&gate)));
    let house = House::of(&[&slow]);
    let (session, waiting) = (house.session(), call("slow/use"));
    let cancel = waiting.cancel.clone();
    let calling = tokio::spawn(async move { session.call(waiting).await });
    gate.reached(1).await;
    cancel.cancel();
    assert_eq!(failed(&calling.await.unwrap()), (Stage::Prepare, Code::Cancelled));
    house.tape.only_pair();
    gate.open();
}

#[tokio::test(start_paused = true)]
async fn what_an_old_connection_reports_late_disturbs_nobody() {
    let files = server("files");
    let house = House::of(&[&files]);
    ready(&house).await;
    let old = files.last();
    old.die("it crashed");
    files.connected(2).await;
    ready(&house).await;
    old.die("it crashed again");
    assert_eq!(house.state("files"), ServerState::Ready);
    assert_eq!(call_one(&house, "files/use").await.item.status, Status::Completed);
    assert_eq!(*files.connects.borrow(), 2);
}

#[tokio::test(start_paused = true)]
async fn attempts_to_start_are_spaced_by_a_doubling_wait_with_a_bound() {
    let dead = server("dead");
    dead.starts(Start::Fails("no such file"));
    let slower = |spec: &mut ServerSpec| {
        spec.back_off =
            BackOff { first: Duration::from_secs(1), longest: Duration::from_secs(5), ..BackOff::default() };
    };
    let _house = house_of(&[(&dead, slower)]);
    let begun = Instant::now();
    let mut at = Vec::new();
    for attempt in 1..=6 {
        dead.connected(attempt).await;
        at.push(begun.elapsed().as_secs());
    }
    assert_eq!(at, [0, 1, 3, 7, 12, 17]);
}

#[tokio::test(start_paused = true)]
async fn a_call_starts_a_failed_server_again_but_not_more_often_than_once_a_second() {
    let files = server("files");
    files.starts(Start::Fails("not yet"));
    let patient = |spec: &mut ServerSpec| {
        spec.back_off =
            BackOff { first: Duration::from_secs(50), longest: Duration::from_secs(50), ..BackOff::default() };
    };
    let house = house_of(&[(&files, patient)]);
    ready(&house).await;
    files.starts(Start::Works);
    let begun = Instant::now();
    assert_eq!(failed(&call_one(&house, "files/use").await).1, Code::NotAvailable);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(call_one(&house, "files/use").await.item.status, Status::Completed);
    assert_eq!(begun.elapsed(), Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_comes_back_is_listed_again_without_anybody_asking() {
    let files = server("files");
    files.starts(Start::Fails("not yet"));
    let house = House::of(&[&files]);
    ready(&house).await;
    files.starts(Start::Works);
    house.lists(&["files/use"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_be_restarted_is_taken_out_and_says_why() {
    let (files, mail) = (server("files"), server("mail"));
    let house = House::of(&[&files, &mail]);
    ready(&house).await;
    files.starts(Start::Fails("its disk is gone"));
    files.last().die("it crashed");
    house.lists(&["mail/use"]).await;
    ready(&house).await;
    let status = serde_json::to_value(status(&house, "files")).unwrap();
    let wanted = serde_json::json!({
        "server": "files", "state": "failed", "reason": "exited", "text": "ended during start-up: its disk is gone", "tools": 0,
    });
    assert_eq!(status, wanted);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_nothing_but_end_counts_as_failed() {
    let files = server("files");
    let house = House::of(&[&files]);
    for times in 1..=3 {
        files.connected(times).await;
        ready(&house).await;
        files.last().die("it crashed");
    }
    house.lists(&[]).await;
    ready(&house).await;
    assert!(matches!(house.state("files"), ServerState::Failed { .. }));
}

#[tokio::test(start_paused = true)]
async fn several_signals_of_changed_tools_are_one_list_call() {
    let files = server("files");
    let house = House::of(&[&files]);
    ready(&house).await;
    files.define(vec![tool("use"), tool("more")]);
    for _ in 0..5 {
        files.last().say_tools_changed();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    house.lists(&["files/more", "files/use"]).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(*files.lists.borrow(), 2);
    assert_eq!(*files.connects.borrow(), 1, "a changed list is no reason to reconnect");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_stops_signalling_is_listed_all_the_same() {
    let files = server("files");
    let house = House::of(&[&files]);
    ready(&house).await;
    files.define(vec![tool("more")]);
    let connection = files.last();
    let noise = tokio::spawn(async move {
        loop {
            connection.say_tools_changed();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let begun = Instant::now();
    house.lists(&["files/more"]).await;
    assert!(begun.elapsed() <= Duration::from_millis(1_100), "{:?}", begun.elapsed());
    noise.abort();
}

#[tokio::test(start_paused = true)]
async fn a_signal_that_comes_while_the_list_is_read_is_not_lost() {
    let files = server("files");
    let house = House::of(&[&files]);
    ready(&house).await;
    let gate = Gate::closed();
    files.lists_at(&gate);
    files.last().say_tools_changed();
    gate.reached(1).await;
    files.last().say_tools_changed();
    gate.open();
    files.listed(3).await;
}

#[tokio::test(start_paused = true)]
async fn a_changed_list_that_cannot_be_read_leaves_the_known_one() {
    let files = server("files");
    let house = House::of(&[&files]);
    ready(&house).await;
    files.list_fails(true);
    files.last().say_tools_changed();
    files.listed(2).await;
    assert_eq!(call_one(&house, "files/use").await.item.status, Status::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_changed_list_that_cannot_be_read_is_read_again_without_another_signal() {
    let files = server("files");
    let house = House::of(&[&files]);
    ready(&house).await;
    files.list_fails(true);
    files.define(vec![tool("use"), tool("more")]);
    files.last().say_tools_changed();
    files.listed(3).await;
    files.list_fails(false);
    house.lists(&["files/more", "files/use"]).await;
    assert_eq!(*files.connects.borrow(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_first_list_that_cannot_be_read_fails_the_start_and_closes_the_connection() {
    let files = server("files");
    files.list_fails(true);
    let house = House::of(&[&files]);
    ready(&house).await;
    assert!(matches!(house.state("files"), ServerState::Failed { why: StartFailure::List(_), .. }));
    assert_eq!(files.open_connections(), 0);
}

#[tokio::test(start_paused = true)]
async fn unusable_and_doubled_definitions_are_left_out_and_reported() {
    let files = server("files");
    let twice = tool_with("use", r#"{"readOnlyHint":true}"#);
    files.define(vec![tool("use"), twice, r#"{"name":"bad","inputSchema":7}"#.into(), "{not json".into()]);
    let house = House::of(&[&files]);
    ready(&house).await;
    let status = status(&house, "files");
    assert_eq!((house.listed(), status.tools), (vec!["files/use".to_owned()], 1));
    assert_eq!(status.problems.len(), 3, "{:?}", status.problems);
    assert!(status.problems.iter().any(|problem| problem == "the `inputSchema` of tool `bad` is not an object"));
    assert!(status.problems.iter().any(|problem| problem.contains("`use` is listed twice")));
    let listed = house.host.catalog().current();
    assert_eq!(listed.tools()[0].hints.read_only, None, "the first one is used");
}

#[tokio::test(start_paused = true)]
async fn a_filtered_tool_answers_like_an_unknown_one() {
    let files = server("files");
    files.define(vec![tool("use"), tool("hidden")]);
    let filter = |spec: &mut ServerSpec| {
        spec.filter =
            Arc::new(|name: &RawToolName| (name.as_str() == "hidden").then(|| LayerRef::new(LayerKind::User)));
    };
    let house = house_of(&[(&files, filter)]);
    ready(&house).await;
    assert_eq!(house.listed(), ["files/use"]);
    let text = "MCP tool `files/hidden` is not available to the model";
    assert_eq!(said(&call_one(&house, "files/hidden").await), text);
    let status = status(&house, "files");
    let [filtered] = status.filtered.as_slice() else { panic!("{status:?}") };
    assert_eq!((filtered.tool.as_str(), filtered.reason()), ("hidden", "filtered by the user layer".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn r25_of_many_filtered_tools_some_are_named_and_all_are_counted() {
    let files = server("files");
    files.define((0..MAX_FILTERED + 7).map(|number| tool(&format!("t{number}"))).collect());
    let house = house_of(&[(&files, |spec| spec.filter = Arc::new(|_| Some(LayerRef::new(LayerKind::User))))]);
    ready(&house).await;
    let status = status(&house, "files");
    assert_eq!((status.tools, status.filtered.len(), status.filtered_more), (0, MAX_FILTERED, 7));
}

#[tokio::test(start_paused = true)]
async fn r26_a_tool_that_paths_for_files_make_too_large_is_left_out_and_reported() {
    let files = server("files");
    let room = MAX_DEFINITION - 400;
    let large = format!(
        r#"{{"name":"large","description":"{}","_meta":{{"openai/fileParams":["a","b","c"]}},"inputSchema":{{"type":"object","properties":{{"a":{{}},"b":{{}},"c":{{}}}}}}}}"#,
        "x".repeat(room)
    );
    files.define(vec![tool("use"), large]);
    let house = house_of(&[(&files, |spec| spec.view.file_parameters = true)]);
    ready(&house).await;
    assert_eq!(house.listed(), ["files/use"]);
    let [problem] = status(&house, "files").problems.try_into().unwrap();
    assert!(problem.starts_with("the tool `large` cannot be shown with paths for its files: "), "{problem}");
    // Where nobody masks it, it is as large as it may be.
    let house = House::of(&[&files]);
    ready(&house).await;
    assert_eq!((house.listed().len(), status(&house, "files").problems.len()), (2, 0));
}

/// Runs the one server of a house by another configuration from now on.
async fn reconfigure(house: &House, server: &Arc<FakeServer>, change: impl FnOnce(&mut ServerSpec)) {
    let mut spec = spec(server);
    spec.config = Digest::of(b"another");
    change(&mut spec);
    let specs = [(ServerName::parse(&server.name).unwrap(), spec)].into();
    house.host.reconfigure(Policies::open(&[&server.name]).finish(), specs, BTreeMap::new(), Vec::new()).await;
}

#[tokio::test(start_paused = true)]
async fn b10_a_server_that_has_failed_is_tried_at_once_when_it_is_configured_otherwise() {
    let files = server("files");
    files.starts(Start::Fails("no such file"));
    let house = house_of(&[(&files, |spec| spec.back_off.restarts = false)]);
    ready(&house).await;
    files.starts(Start::Works);
    let begun = Instant::now();
    reconfigure(&house, &files, |spec| spec.startup_timeout = STARTUP * 2).await;
    house.lists(&["files/use"]).await;
    assert_eq!((*files.connects.borrow(), Instant::now()), (2, begun));
}

#[tokio::test(start_paused = true)]
async fn b10_a_configuration_that_comes_while_a_server_starts_is_the_one_that_it_is_listed_by() {
    let (files, gate) = (server("files"), Gate::closed());
    files.define(vec![tool("use"), tool("hidden")]);
    files.starts(Start::Gated(Arc::clone(&gate)));
    let house = House::of(&[&files]);
    gate.reached(1).await;
    let hides = |name: &RawToolName| (name.as_str() == "hidden").then(|| LayerRef::new(LayerKind::User));
    reconfigure(&house, &files, |spec| spec.filter = Arc::new(hides)).await;
    gate.open();
    ready(&house).await;
    assert_eq!((house.listed(), *files.connects.borrow()), (vec!["files/use".to_owned()], 1));
    // So is what it lists later.
    files.define(vec![tool("more"), tool("hidden")]);
    files.last().say_tools_changed();
    house.lists(&["files/more"]).await;
}

#[tokio::test(start_paused = true)]
async fn b10_calls_that_go_on_keep_their_places_under_another_configuration() {
    let (files, gate) = (server("files"), Gate::closed());
    let one_place = |spec: &mut ServerSpec| spec.view.slots = vec![Slots::new(1)];
    let house = house_of(&[(&files, one_place)]);
    files.answers(How::Gated(Arc::clone(&gate)));
    let calling = |session: Arc<Session>| tokio::spawn(async move { session.call(call("files/use")).await });
    let first = calling(house.session());
    gate.reached(1).await;
    reconfigure(&house, &files, one_place).await;
    let mut second = calling(house.session());
    assert!(tokio::time::timeout(Duration::from_secs(60), &mut second).await.is_err());
    assert_eq!(files.handed().len(), 1, "one more call than there are places");
    gate.open();
    assert_eq!(first.await.unwrap().item.status, Status::Completed);
    assert_eq!(second.await.unwrap().item.status, Status::Completed);
}

#[tokio::test]
async fn b2_a_host_that_is_built_has_its_required_servers_or_is_none() {
    let (files, gate) = (server("files"), Gate::closed());
    files.starts(Start::Gated(Arc::clone(&gate)));
    let built = || {
        let required = ServerSpec { required: true, ..spec(&files) };
        HostBuilder::new().server(LayerKind::User, ServerName::parse("files").unwrap(), required).start()
    };
    let mut building = Box::pin(built());
    tokio::select! {
        _built = &mut building => panic!("the host is there without its server"),
        () = gate.reached(1) => {}
    }
    gate.open();
    let host = building.await.ok().unwrap().host;
    assert_eq!(host.catalog().current().tools().len(), 1);
    host.shutdown(Duration::ZERO).await;
    files.starts(Start::Fails("no such file"));
    let Err(NotBuilt::Required(why)) = built().await else { panic!("a host without its server") };
    assert_eq!(why, "required MCP servers failed to initialize: files: ended during start-up: no such file");
}

#[tokio::test(start_paused = true)]
async fn log_messages_arrive_with_their_servers_name() {
    let files = server("files");
    let house = House::of(&[&files]);
    let mut logs = house.host.fleet().logs();
    ready(&house).await;
    let message = UpstreamLog { level: "warning".into(), logger: None, data: "careful".into(), audience: None };
    files.last().log(message.clone());
    let (from, got) = logs.recv().await.unwrap();
    assert_eq!((from.as_str(), got), ("files", message));
}

#[tokio::test(start_paused = true)]
async fn stopping_ends_every_connection_and_leaves_nothing_listed() {
    let (one, two) = (server("one"), server("two"));
    let house = House::of(&[&one, &two]);
    ready(&house).await;
    house.host.shutdown(Duration::ZERO).await;
    assert_eq!((one.open_connections(), two.open_connections()), (0, 0));
    assert_eq!(house.state("one"), ServerState::Stopped);
    assert!(house.listed().is_empty());
    assert_eq!(failed(&call_one(&house, "one/use").await).1, Code::NotAvailable);
}

#[tokio::test(start_paused = true)]
async fn stopping_waits_for_no_server_that_starts_rests_or_lists() {
    let (starting, resting, listing) = (server("starting"), server("resting"), server("listing"));
    starting.starts(Start::Hangs);
    resting.starts(Start::Fails("no such file"));
    let house = House::of(&[&starting, &resting, &listing]);
    listing.listed(1).await;
    let gate = Gate::closed();
    listing.lists_at(&gate);
    house.lists(&["listing/use"]).await;
    listing.last().say_tools_changed();
    gate.reached(1).await;
    let begun = Instant::now();
    house.host.shutdown(Duration::from_secs(60)).await;
    assert_eq!(Instant::now(), begun);
    assert_eq!(listing.open_connections(), 0);
}

#[tokio::test]
async fn r19_a_server_that_is_disabled_is_called_by_nobody_and_comes_back_when_it_is_enabled_again() {
    let (files, mail) = (
        FakeServer::new("files", &Journal::default(), vec![tool("write")]),
        FakeServer::new("mail", &Journal::default(), vec![tool("send")]),
    );
    let house = House::of(&[&files, &mail]);
    house.lists(&["files/write", "mail/send"]).await;
    let specs = |names: &[&str]| {
        let all = [("files", spec(&files)), ("mail", spec(&mail))];
        let some = all.into_iter().filter(|(name, _)| names.contains(name));
        some.map(|(name, spec)| (ServerName::parse(name).unwrap(), spec)).collect::<BTreeMap<_, _>>()
    };
    let off: BTreeMap<_, _> = [(ServerName::parse("files").unwrap(), "off".to_owned())].into();
    let policies = || Policies::open(&["files", "mail"]).finish();
    house.host.reconfigure(policies(), specs(&["mail"]), off, Vec::new()).await;
    assert_eq!(house.listed(), ["mail/send"], "what is disabled is gone at once");
    assert!(matches!(house.state("files"), ServerState::Disabled { .. }));
    house.host.reconfigure(policies(), specs(&["files", "mail"]), BTreeMap::new(), Vec::new()).await;
    house.lists(&["files/write", "mail/send"]).await;
    house.host.fleet().settle_fully().await;
    assert_eq!(house.state("files"), ServerState::Ready);
    assert_eq!(house.listed(), ["files/write", "mail/send"]);
}
