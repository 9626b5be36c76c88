//! What was seen is what is called (R24): a definition that changed since a session was shown it is stale, once it is shown.

use std::sync::Arc;

use portcullis::model::caller::Caller;
use portcullis::model::item::Status;
use portcullis::model::layer::LayerKind;
use portcullis::model::outcome::Code;
use portcullis::model::verdict::Verdict;
use portcullis::ports::reviewer::NobodyThere;

use crate::fakes::bench::{Bench, failed, said};
use crate::fakes::house::{House, call};
use crate::fakes::policy::{Policies, Scripted};
use crate::fakes::server::{FakeServer, tool, tool_with};
use crate::fakes::{Gate, Journal};

#[tokio::test(start_paused = true)]
async fn r24_a_tool_that_changed_since_it_was_shown_is_stale_once_and_then_runs() {
    let files = FakeServer::new("files", &Journal::default(), vec![tool("use")]);
    let house = House::of(&[&files]);
    let session = house.session();
    session.list().await;
    files.define(vec![tool_with("use", r#"{"title":"Other"}"#)]);
    files.last().say_tools_changed();
    files.listed(2).await;
    house.host.catalog().watch().wait_for(|revision| revision.number() >= 2).await.unwrap();
    let stale = session.call(call("files/use")).await;
    assert_eq!(failed(&stale).1, Code::Stale);
    assert!(said(&stale).contains(r#""title":"Other""#), "{}", said(&stale));
    assert_eq!(session.call(call("files/use")).await.item.status, Status::Completed);
}

#[tokio::test(start_paused = true)]
async fn r24_a_session_that_never_listed_goes_by_what_its_principal_was_shown_last() {
    let files = FakeServer::new("files", &Journal::default(), vec![tool("use")]);
    let house = House::of(&[&files]);
    house.session().list().await;
    files.define(vec![tool_with("use", r#"{"title":"Other"}"#)]);
    files.last().say_tools_changed();
    house.host.catalog().watch().wait_for(|revision| revision.number() >= 2).await.unwrap();
    let bob = house.host.session(Caller::local("bob"), Arc::new(NobodyThere));
    assert_eq!(bob.call(call("files/use")).await.item.status, Status::Completed, "bob was shown nothing");
    assert_eq!(failed(&house.session().call(call("files/use")).await).1, Code::Stale);
    assert_eq!(house.session().call(call("files/use")).await.item.status, Status::Completed, "it was shown by then");
}

#[tokio::test(start_paused = true)]
async fn r24_a_tool_that_went_and_came_back_as_another_is_stale() {
    let files = FakeServer::new("files", &Journal::default(), vec![tool("use")]);
    let house = House::of(&[&files]);
    let session = house.session();
    session.list().await;
    for (tools, listed) in [(vec![], vec![]), (vec![tool_with("use", r#"{"title":"Other"}"#)], vec!["files/use"])] {
        files.define(tools);
        files.last().say_tools_changed();
        house.lists(&listed).await;
        if listed.is_empty() {
            session.list().await;
        }
    }
    assert_eq!(failed(&session.call(call("files/use")).await).1, Code::Stale);
}

#[tokio::test(start_paused = true)]
async fn r24_a_call_that_turned_stale_at_its_lease_has_shown_what_it_is_now() {
    let gate = Gate::closed();
    let stop = Scripted::says(Verdict::Abstain).at(&gate);
    let bench = Bench::new(&Policies::open(&["files"]).with(LayerKind::User, "stop", &stop)).await;
    let running = bench.spawn(bench.request("files/write", "{}"));
    gate.reached(1).await;
    bench.redefine(&bench.files, vec![tool_with("write", r#"{"title":"Other"}"#)]).await;
    gate.open();
    let stale = running.await.unwrap();
    assert!(said(&stale).contains(r#""title":"Other""#), "{}", said(&stale));
    let now = bench.catalog().current().tools()[0].definition.digest();
    assert_eq!(stale.shown, Some(now));
}

#[tokio::test(start_paused = true)]
async fn r24_a_definition_that_is_too_long_to_be_shown_whole_has_not_been_seen() {
    let files = FakeServer::new("files", &Journal::default(), vec![tool("use")]);
    let house = House::of(&[&files]);
    let session = house.session();
    session.list().await;
    files.define(vec![tool_with("use", &format!(r#"{{"title":"{}"}}"#, "x".repeat(20_000)))]);
    files.last().say_tools_changed();
    house.host.catalog().watch().wait_for(|revision| revision.number() >= 2).await.unwrap();
    for _ in 0..2 {
        assert_eq!(failed(&session.call(call("files/use")).await).1, Code::Stale);
    }
    session.list().await;
    assert_eq!(session.call(call("files/use")).await.item.status, Status::Completed);
}
