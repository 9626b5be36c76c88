//! The library's way: a step's specs, search, and a model's function calls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use portcullis::host::listing::Surface;
use portcullis::host::session::Session;
use portcullis::host::step::{Dispatched, FunctionCall, Step};
use portcullis::model::caller::Caller;
use portcullis::model::exposure::{Exposure, Way};
use portcullis::model::item::Status;
use portcullis::model::layer::LayerKind;
use portcullis::model::name::RawToolName;
use portcullis::model::outcome::Code;
use portcullis::model::tool::Connector;
use portcullis::model::verdict::{ConnectorAnswer, Remember, Verdict};
use portcullis::pipeline::admit::exposure::Exposing;
use portcullis::pipeline::emit::views::model::ModelViewOptions;
use portcullis::ports::approval::Bound;
use serde_json::{Value, json};

use crate::fakes::bench::failed;
use crate::fakes::house::{House, spec};
use crate::fakes::people::{Person, allowed};
use crate::fakes::policy::{Apps, Policies, Scripted, ask, bound_app};
use crate::fakes::server::{FakeServer, How, OK, tool, tool_with};
use crate::fakes::{Gate, Journal};

fn exposing(search: bool) -> Exposing {
    Exposing { search, ..Exposing::library() }
}

fn session(house: &House, how: Exposing) -> Arc<Session> {
    let session = house.session();
    session.show_on(Surface::Library(how));
    session
}

fn exposures(step: &Step) -> Vec<(String, Exposure)> {
    let row = |offer: &portcullis::host::step::Offer| (offer.handler.tool().callable.to_string(), offer.exposure);
    step.offers().iter().map(row).collect()
}

fn called(dispatched: Dispatched) -> portcullis::pipeline::Finished {
    let Dispatched::Called(finished) = dispatched else { panic!("{dispatched:?}") };
    *finished
}

fn refused(dispatched: &Dispatched) -> &str {
    let Dispatched::Refused(why) = dispatched else { panic!("{dispatched:?}") };
    why
}

/// Waits until the catalog has what the server defines from now on.
async fn redefine(house: &House, server: &Arc<FakeServer>, tools: Vec<String>) {
    let mut revisions = house.host.catalog().watch();
    let before = revisions.borrow_and_update().number();
    server.define(tools);
    server.last().say_tools_changed();
    revisions.wait_for(|revision| revision.number() > before).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_provider_without_namespaces_is_given_no_tool_and_scripts_have_them_all() {
    // catalog-dispatch 1.4 rule 15 and 3.2 rule 11.
    let files = FakeServer::new("files", &Journal::default(), vec![tool("write"), tool("read")]);
    let house = House::of(&[&files]);
    for search in [false, true] {
        let session = session(&house, Exposing { namespaces: false, ..exposing(search) });
        let step = session.step().await.unwrap();
        assert_eq!((step.tools(), step.namespaces(), step.search_tool()), (vec![], vec![], None));
        assert_eq!(step.scripts().count(), 2);
        let reason = step.offers()[0].reason.to_string();
        assert!(reason.contains("takes no namespaces"), "{reason}");
        // A tool that a script names is called as any other.
        let finished = called(session.dispatch(&step, FunctionCall::new(Some("mcp__files"), "read", "{}")).await);
        assert_eq!(finished.item.status, Status::Completed);
    }
}

#[tokio::test(start_paused = true)]
async fn e1_without_search_all_tools_are_in_the_request_and_with_it_the_search_tool_alone() {
    let files = FakeServer::new("files", &Journal::default(), vec![tool("write"), tool("read")]);
    let house = House::of(&[&files]);
    let step = session(&house, exposing(false)).step().await.unwrap();
    let tools = step.tools();
    assert_eq!(exposures(&step), [("read".to_owned(), Exposure::Direct), ("write".to_owned(), Exposure::Direct)]);
    assert_eq!(tools.len(), 1, "{tools:?}");
    assert_eq!((&tools[0]["type"], &tools[0]["name"]), (&json!("namespace"), &json!("mcp__files")));
    assert_eq!(tools[0]["tools"][1]["description"], "does write");
    let step = session(&house, exposing(true)).step().await.unwrap();
    let tools = step.tools();
    assert_eq!(exposures(&step), [("read".to_owned(), Exposure::Deferred), ("write".to_owned(), Exposure::Deferred)]);
    assert_eq!((tools.len(), &tools[0]["name"]), (1, &json!("tool_search")));
}

#[tokio::test(start_paused = true)]
async fn e9_b4_handlers_are_the_same_objects_within_a_binding_and_new_in_the_next() {
    let files = FakeServer::new("files", &Journal::default(), vec![tool("write"), tool("read")]);
    let house = House::of(&[&files]);
    let session = session(&house, exposing(false));
    let (first, second) = (session.step().await.unwrap(), session.step().await.unwrap());
    assert!(Arc::ptr_eq(first.listing().snapshot(), second.listing().snapshot()), "B4");
    for (one, other) in first.offers().iter().zip(second.offers()) {
        assert!(Arc::ptr_eq(&one.handler, &other.handler));
        assert!(Arc::ptr_eq(one.handler.spec().script(), other.handler.spec().script()), "built twice");
    }
    assert_eq!(first.scripts().map(|script| script.name.as_str()).collect::<Vec<_>>(), ["read", "write"]);
    let scripts = serde_json::to_value(first.scripts().collect::<Vec<_>>()).unwrap();
    assert!(scripts[0].get("inputSchema").is_none() && scripts[0].get("parameters").is_none(), "{scripts}");

    let gone = Arc::downgrade(&first.offers()[0].handler);
    drop((first, second));
    assert!(gone.upgrade().is_some(), "a handler does not outlive its step");
    // One tool alone is another; the binding is, so all handlers are.
    redefine(&house, &files, vec![tool("read"), tool_with("write", r#"{"title":"Other"}"#)]).await;
    let third = session.step().await.unwrap();
    assert!(gone.upgrade().is_none(), "a handler outlives its binding");
    assert_eq!(third.offers().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn e4_a_policy_is_asked_at_every_step_and_the_handler_stays() {
    let on = Arc::new(AtomicBool::new(true));
    let switch = {
        let on = Arc::clone(&on);
        Apps::by(move |_| Ok(ConnectorAnswer { enabled: Some(on.load(Ordering::SeqCst)), mode: None, rule: None }))
    };
    let files = FakeServer::new("files", &Journal::default(), vec![tool("write")]);
    let component: Bound<dyn portcullis::ports::connector::ConnectorComponent> =
        bound_app(LayerKind::User, "apps", &switch);
    let policies = Policies::open(&["files"]).and_app(component);
    let mut apps = spec(&files);
    let connector = Connector { id: "calendar".to_owned(), name: None, account: None, description: None };
    apps.connectors = [(RawToolName::parse("write").unwrap(), connector)].into();
    let house = House::under(&policies, [("files".to_owned(), apps)].into(), BTreeMap::new());
    let session = session(&house, exposing(false));
    let allowed = session.step().await.unwrap();
    assert_eq!(exposures(&allowed), [("write".to_owned(), Exposure::Direct)]);
    session.show_on(Surface::Library(Exposing { apps: false, ..exposing(false) }));
    assert_eq!(exposures(&session.step().await.unwrap()), []);
    session.show_on(Surface::Library(exposing(false)));
    on.store(false, Ordering::SeqCst);
    assert_eq!(exposures(&session.step().await.unwrap()), []);
    on.store(true, Ordering::SeqCst);
    session.show_on(Surface::Library(exposing(true)));
    let again = session.step().await.unwrap();
    assert_eq!(exposures(&again), [("write".to_owned(), Exposure::Deferred)]);
    assert!(Arc::ptr_eq(&allowed.offers()[0].handler, &again.offers()[0].handler));
}

#[tokio::test(start_paused = true)]
async fn b10_an_older_step_goes_on_listing_what_it_did() {
    let files = FakeServer::new("files", &Journal::default(), vec![tool("write"), tool("read")]);
    let house = House::of(&[&files]);
    let session = session(&house, exposing(false));
    let old = session.step().await.unwrap();
    redefine(&house, &files, vec![tool("write")]).await;
    assert_eq!(exposures(&session.step().await.unwrap()).len(), 1);
    assert_eq!(exposures(&old).len(), 2);
    let gone = called(session.dispatch(&old, FunctionCall::new(Some("mcp__files"), "read", "{}")).await);
    assert_eq!(failed(&gone).1, Code::NotAvailable);
}

#[tokio::test(start_paused = true)]
async fn a_function_call_runs_and_its_output_is_what_the_model_reads() {
    let files = FakeServer::new("files", &Journal::default(), vec![tool("write")]);
    let house = House::of(&[&files]);
    let session = session(&house, exposing(false));
    let step = session.step().await.unwrap();
    let call = FunctionCall::new(Some("mcp__files"), "write", r#"{"path":"a"}"#);
    let done = session.dispatch(&step, call).await;
    let output = done.output(&ModelViewOptions::default()).await;
    assert!(output.as_str().unwrap().contains("done") && !done.is_error(), "{output}");
    assert_eq!(called(done).item.status, Status::Completed);
    assert_eq!(files.handed().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn r24_a_call_is_for_the_definition_of_its_step_whatever_the_session_was_shown_since() {
    let files = FakeServer::new("files", &Journal::default(), vec![tool("write")]);
    let house = House::of(&[&files]);
    let session = session(&house, exposing(false));
    let old = session.step().await.unwrap();
    redefine(&house, &files, vec![tool_with("write", r#"{"title":"Other"}"#)]).await;
    let new = session.step().await.unwrap();
    let call = || FunctionCall::new(Some("mcp__files"), "write", "{}");
    assert_eq!(failed(&called(session.dispatch(&old, call()).await)).1, Code::Stale);
    assert_eq!(called(session.dispatch(&new, call()).await).item.status, Status::Completed);
}

#[tokio::test(start_paused = true)]
async fn names_that_are_not_in_the_step_are_refused_and_leave_no_item() {
    let files = FakeServer::new("files", &Journal::default(), vec![tool("write")]);
    let house = House::of(&[&files]);
    let session = session(&house, exposing(false));
    let step = session.step().await.unwrap();
    for (namespace, name) in
        [(None, "write"), (Some("mcp__files"), "wrote"), (Some(""), "write"), (None, "tool_search")]
    {
        let done = session.dispatch(&step, FunctionCall::new(namespace, name, "{}")).await;
        assert!(refused(&done).starts_with("unsupported call: ") && done.is_error());
    }
    assert!(house.tape.started().is_empty());
}

#[tokio::test(start_paused = true)]
async fn r18_a_search_merges_what_it_found_by_namespace_and_each_function_is_deferred() {
    let journal = Journal::default();
    let files = FakeServer::new("files", &journal, vec![tool("write"), tool("read"), tool("other")]);
    let mail = FakeServer::new("mail", &journal, vec![tool("read")]);
    let house = House::of(&[&files, &mail]);
    let session = session(&house, exposing(true));
    let step = session.step().await.unwrap();
    let searched = |arguments: &str| FunctionCall::new(None, "tool_search", arguments);
    let done = session.dispatch(&step, searched(r#"{"query":"read or write"}"#)).await;
    let output: Value =
        serde_json::from_str(done.output(&ModelViewOptions::default()).await.as_str().unwrap()).unwrap();
    let found = output["tools"].as_array().unwrap();
    let namespaces: BTreeSet<_> = found.iter().map(|namespace| namespace["name"].as_str().unwrap()).collect();
    assert_eq!((found.len(), namespaces), (2, ["mcp__files", "mcp__mail"].into()));
    let functions: Vec<&Value> = found.iter().flat_map(|namespace| namespace["tools"].as_array().unwrap()).collect();
    assert_eq!(functions.len(), 3);
    for function in functions {
        assert!(function["defer_loading"] == true && function.get("output_schema").is_none(), "{function}");
    }
    let call = FunctionCall::new(Some("mcp__mail"), "read", "{}");
    assert_eq!(called(session.dispatch(&step, call).await).item.status, Status::Completed);

    let cases = [
        (r#"{"query":"  "}"#, "query must not be empty"),
        (r#"{"query":"a","limit":0}"#, "limit must be greater than zero"),
        (r#"{"query":"a","query":"b"}"#, "err: "),
        ("{}", "missing field `query`"),
        ("[]", "err: "),
    ];
    for (arguments, wanted) in cases {
        let done = session.dispatch(&step, searched(arguments)).await;
        assert!(refused(&done).contains(wanted), "{arguments}: {}", refused(&done));
    }
}

#[tokio::test(start_paused = true)]
async fn r19_an_index_is_the_same_object_while_its_tools_are() {
    let files = FakeServer::new("files", &Journal::default(), vec![tool("write")]);
    let house = House::of(&[&files]);
    let session = session(&house, exposing(true));
    let (first, second) = (session.step().await.unwrap(), session.step().await.unwrap());
    assert!(std::ptr::eq(first.index(), second.index()));
    redefine(&house, &files, vec![tool("write"), tool("read")]).await;
    assert!(!std::ptr::eq(first.index(), session.step().await.unwrap().index()));
}

#[tokio::test(start_paused = true)]
async fn a_schema_that_no_model_can_be_given_leaves_its_tool_out_and_the_others_stay() {
    let bad = r#"{"name":"bad","inputSchema":{"type":"object","properties":1}}"#.to_owned();
    let files = FakeServer::new("files", &Journal::default(), vec![bad, tool("write")]);
    let house = House::of(&[&files]);
    let session = session(&house, exposing(false));
    let step = session.step().await.unwrap();
    assert_eq!(exposures(&step), [("write".to_owned(), Exposure::Direct)]);
    let [(left_out, why)] = step.left_out() else { panic!("{:?}", step.left_out()) };
    assert_eq!(left_out.tool.as_str(), "bad");
    assert_eq!(why.pointer(), "/properties");
}

#[tokio::test(start_paused = true)]
async fn e15_a_hidden_tool_is_in_no_list_and_a_call_that_names_it_runs() {
    let files = FakeServer::new("files", &Journal::default(), vec![tool("write")]);
    let mut omitting = spec(&files);
    omitting.view.omitted = [Way::Direct, Way::Deferred, Way::CodeMode].into();
    let house = House::with([("files".to_owned(), omitting)].into(), BTreeMap::new());
    let session = session(&house, exposing(true));
    let step = session.step().await.unwrap();
    assert_eq!(exposures(&step), [("write".to_owned(), Exposure::Hidden)]);
    assert!(step.tools().is_empty() && step.scripts().next().is_none());
    let call = FunctionCall::new(Some("mcp__files"), "write", "{}");
    assert_eq!(called(session.dispatch(&step, call).await).item.status, Status::Completed);
}

fn write() -> FunctionCall {
    FunctionCall::new(Some("mcp__files"), "write", "{}")
}

fn read() -> FunctionCall {
    FunctionCall::new(Some("mcp__files"), "read", "{}")
}

#[tokio::test(start_paused = true)]
async fn p1_calls_run_side_by_side_only_where_the_server_or_the_tool_says_so() {
    let reads = r#"{"readOnlyHint":true,"destructiveHint":true}"#;
    let rows = [("{}", false, 1), (r#"{"readOnlyHint":false}"#, false, 1), (reads, false, 2), ("{}", true, 2)];
    for (annotations, opted_in, together) in rows {
        let gate = Gate::closed();
        let files = FakeServer::new("files", &Journal::default(), vec![tool_with("write", annotations)]);
        files.answers(How::Gated(Arc::clone(&gate)));
        let mut configured = spec(&files);
        configured.view.parallel = opted_in;
        let house = House::with([("files".to_owned(), configured)].into(), BTreeMap::new());
        let session = session(&house, exposing(false));
        let step = session.step().await.unwrap();
        let mut calls =
            Box::pin(futures::future::join(session.dispatch(&step, write()), session.dispatch(&step, write())));
        tokio::select! {
            biased;
            _ended = &mut calls => panic!("nothing holds the calls up"),
            () = files.handed_over(together) => {}
        }
        // Time stands still unless everything waits.
        let settled = tokio::time::timeout(std::time::Duration::from_secs(1), &mut calls).await;
        assert!(settled.is_err() && files.handed().len() == together, "{annotations} {opted_in}");
        gate.open();
        let (one, two) = calls.await;
        assert!(!one.is_error() && !two.is_error() && files.handed().len() == 2);
    }
}

#[tokio::test(start_paused = true)]
async fn the_gate_is_not_held_while_somebody_is_asked() {
    let gate = Gate::closed();
    let person = Person::replying(&Journal::default(), [allowed(Remember::Never)]).at(&gate);
    let files = FakeServer::new("files", &Journal::default(), vec![tool("write"), tool("read")]);
    let ask = Scripted::by(|_, facts| {
        Ok(if facts.tool.tool.as_str() == "write" { ask("sure", Remember::Never) } else { Verdict::Abstain })
    });
    let policies = Policies::open(&["files"]).with(LayerKind::User, "asks", &ask);
    let house = House::under(&policies, [("files".to_owned(), spec(&files))].into(), BTreeMap::new());
    let session = house.host.session(Caller::local("ann"), Arc::clone(&person) as _);
    session.show_on(Surface::Library(exposing(false)));
    let step = session.step().await.unwrap();
    let mut asked = Box::pin(session.dispatch(&step, write()));
    tokio::select! {
        biased;
        _ended = &mut asked => panic!("nobody was asked"),
        () = gate.reached(1) => {}
    }
    assert_eq!(called(session.dispatch(&step, read()).await).item.status, Status::Completed);
    gate.open();
    assert_eq!(called(asked.await).item.status, Status::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_leaves_the_gate_and_says_how_long_it_took() {
    let files = FakeServer::new("files", &Journal::default(), vec![tool("write"), tool("read")]);
    files.answers(How::Never);
    let house = House::of(&[&files]);
    let session = session(&house, exposing(false));
    let step = session.step().await.unwrap();
    let call = write();
    let cancel = call.cancel.clone();
    let mut running = Box::pin(session.dispatch(&step, call));
    tokio::select! {
        biased;
        _ended = &mut running => panic!("nothing holds the call up"),
        () = files.handed_over(1) => {}
    }
    cancel.cancel();
    let output = running.await.output(&ModelViewOptions::default()).await;
    assert_eq!(output, "aborted by user after 0.1s");
    files.answers(How::Result(OK));
    assert_eq!(called(session.dispatch(&step, read()).await).item.status, Status::Completed);
}
