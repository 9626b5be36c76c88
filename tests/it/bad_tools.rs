//! What servers list that nobody should: it is bounded and reported, and everything else works. Files that grow or lead outside
//! are in `files.rs`.

use std::collections::BTreeSet;
use std::sync::Arc;

use portcullis::host::listing::Surface;
use portcullis::host::session::Session;
use portcullis::host::step::{Dispatched, FunctionCall, Step};
use portcullis::model::item::Status;
use portcullis::model::outcome::Code;
use portcullis::pipeline::admit::exposure::Exposing;
use portcullis::pipeline::admit::schema::Shrunk;
use portcullis::pipeline::emit::views::model::ModelViewOptions;
use serde_json::{Value, json};

use crate::fakes::Journal;
use crate::fakes::bench::{failed, said};
use crate::fakes::house::House;
use crate::fakes::server::{FakeServer, tool, tool_with};

fn serving(tools: Vec<String>) -> (Arc<FakeServer>, House) {
    let odd = FakeServer::new("odd", &Journal::default(), tools);
    let house = House::of(&[&odd]);
    (odd, house)
}

fn session(house: &House, search: bool) -> Arc<Session> {
    let session = house.session();
    session.show_on(Surface::Library(Exposing { search, ..Exposing::library() }));
    session
}

fn with_schema(name: &str, schema: &Value) -> String {
    json!({ "name": name, "description": "odd", "inputSchema": schema }).to_string()
}

/// The tool `good` is given to the model and runs.
async fn assert_good_works(session: &Session, step: &Step) {
    let good = step.offers().iter().find(|offer| offer.handler.tool().definition.name().as_str() == "good").unwrap();
    let tool = good.handler.tool();
    let call = FunctionCall::new(Some(tool.namespace.as_str()), tool.callable.as_str(), "{}");
    let Dispatched::Called(done) = session.dispatch(step, call).await else { panic!("it is not there") };
    assert_eq!(done.item.status, Status::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_schema_that_refers_to_itself_is_given_and_checked_and_one_that_says_nothing_by_it_is_told_of() {
    let node = json!({ "type": "object", "properties": { "next": { "$ref": "#/$defs/node" } } });
    let cyclic = json!({
        "type": "object",
        "properties": { "list": { "$ref": "#/$defs/node" }, "self": { "$ref": "#" } },
        "$defs": { "node": node },
    });
    let endless = json!({
        "type": "object", "properties": { "a": { "$ref": "#/$defs/loop" } }, "$defs": { "loop": { "$ref": "#/$defs/loop" } },
    });
    let (_odd, house) = serving(vec![with_schema("cyclic", &cyclic), with_schema("endless", &endless), tool("good")]);
    let session = session(&house, false);
    let step = session.step().await.unwrap();
    assert_good_works(&session, &step).await;
    let call = FunctionCall::new(Some("mcp__odd"), "cyclic", r#"{"list":{"next":{"next":{}}}}"#);
    assert!(!session.dispatch(&step, call).await.is_error());
    let call = FunctionCall::new(Some("mcp__odd"), "cyclic", r#"{"list":{"next":{"next":7}}}"#);
    let Dispatched::Called(done) = session.dispatch(&step, call).await else { panic!("it is not there") };
    assert_eq!(failed(&done).1, Code::InvalidArguments);
    assert!(said(&done).contains("/list/next/next"), "{}", said(&done));
    let snapshot = step.listing().snapshot();
    let unchecked = snapshot.tools().iter().filter(|tool| tool.definition.unchecked().is_some());
    let unchecked: Vec<_> = unchecked.map(|tool| tool.definition.name().as_str()).collect();
    assert_eq!(unchecked, ["endless"]);
    let call = FunctionCall::new(Some("mcp__odd"), "endless", r#"{"a":7}"#);
    assert!(!session.dispatch(&step, call).await.is_error(), "it checks nothing");
}

#[tokio::test(start_paused = true)]
async fn rule_23_a_megabyte_of_schema_is_shortened_and_that_is_told_and_never_given_whole() {
    let properties: serde_json::Map<String, Value> = (0..9_000)
        .map(|n| (format!("property{n}"), json!({ "type": "string", "description": "x".repeat(60) })))
        .collect();
    let long = with_schema("long", &json!({ "type": "object", "properties": properties }));
    assert!(long.len() > 900_000, "{}", long.len());
    let (_odd, house) = serving(vec![long, tool("good")]);
    let session = session(&house, false);
    let step = session.step().await.unwrap();
    assert_good_works(&session, &step).await;
    let given = step.offers().iter().find(|offer| offer.handler.tool().definition.name().as_str() == "long").unwrap();
    let spec = given.handler.spec();
    assert_eq!(spec.schema.shrunk, Shrunk::Compositions);
    assert!(spec.schema.shrunk.to_string().contains("the schema was too long"));
    // The names of 9,000 properties with their types: arguments that a model is not told of it cannot give.
    assert!(spec.bytes() < 400_000, "{}", spec.bytes());
    assert!(house.host.status().remove(0).problems.is_empty(), "it is usable");
}

#[tokio::test(start_paused = true)]
async fn r26_a_definition_of_more_than_a_mebibyte_is_left_out_and_reported_and_the_others_stay() {
    let beyond = json!({ "name": "beyond", "description": "x".repeat(1 << 20), "inputSchema": { "type": "object" } });
    let (_odd, house) = serving(vec![beyond.to_string(), tool("good")]);
    let session = session(&house, false);
    let step = session.step().await.unwrap();
    assert_good_works(&session, &step).await;
    assert_eq!(house.listed(), ["odd/good"]);
    let problems = house.host.status().remove(0).problems;
    let [problem] = problems.as_slice() else { panic!("{problems:?}") };
    assert!(problem.starts_with("the definition is not usable JSON: ") && problem.contains("1048576"), "{problem}");
}

#[tokio::test(start_paused = true)]
async fn as_many_tools_as_a_server_may_have_are_all_found() {
    let tools = |count: usize| (0..count).map(|n| tool(&format!("tool{n}"))).collect::<Vec<_>>();
    let mut most = tools(2_047);
    most.push(tool("good"));
    let (_odd, house) = serving(most);
    let session = session(&house, true);
    let step = session.step().await.unwrap();
    assert_eq!(step.offers().len(), 2_048);
    assert_good_works(&session, &step).await;
    let found = session.find(&step, "tool1234", None).unwrap();
    assert_eq!(found.offers[0].handler.tool().definition.name().as_str(), "tool1234");
}

#[tokio::test(start_paused = true)]
async fn names_in_every_script_have_names_that_models_take_each_its_own() {
    let raw = [
        "größe",
        "имя",
        "名前",
        "اسم",
        "नाम",
        "이름",
        "🙂",
        "a b",
        "a.b",
        "a/b",
        "a_b",
        "A_B",
        "__proto__",
        "constructor",
        "toString",
        "..",
        "%2e",
        "good",
    ];
    let (_odd, house) = serving(raw.iter().map(|name| tool(name)).collect());
    let session = session(&house, false);
    let step = session.step().await.unwrap();
    assert_eq!(step.offers().len(), raw.len(), "{:?}", step.left_out());
    let mut names = BTreeSet::new();
    for offer in step.offers() {
        let tool = offer.handler.tool();
        let both = format!("{}{}", tool.namespace, tool.callable);
        assert!(both.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'), "{both}");
        assert!(names.insert(both.clone()), "{both} twice");
        let call = FunctionCall::new(Some(tool.namespace.as_str()), tool.callable.as_str(), "{}");
        let Dispatched::Called(done) = session.dispatch(&step, call).await else { panic!("{both}") };
        assert_eq!(done.item.call.tool.to_string(), tool.reference().to_string());
    }
}

#[tokio::test(start_paused = true)]
async fn proto_as_a_property_is_a_property_like_any_other() {
    let schema = json!({
        "type": "object", "additionalProperties": false,
        "properties": { "__proto__": { "type": "string" }, "constructor": { "type": "string" } },
    });
    let (odd, house) = serving(vec![with_schema("odd", &schema), tool("good")]);
    let session = session(&house, false);
    let step = session.step().await.unwrap();
    let call = FunctionCall::new(Some("mcp__odd"), "odd", r#"{"__proto__":"a"}"#);
    assert!(!session.dispatch(&step, call).await.is_error());
    assert_eq!(odd.handed()[0].arguments.as_ref().unwrap()["__proto__"], "a");
    let call = FunctionCall::new(Some("mcp__odd"), "odd", r#"{"__proto__":7}"#);
    let output = session.dispatch(&step, call).await.output(&ModelViewOptions::default()).await;
    assert!(output.to_string().contains("at /__proto__"), "{output}");
}

#[tokio::test(start_paused = true)]
async fn two_tools_of_one_raw_name_are_one_and_the_other_is_reported() {
    let (_odd, house) = serving(vec![tool("twice"), tool_with("twice", r#"{"title":"Other"}"#), tool("good")]);
    let session = session(&house, false);
    let step = session.step().await.unwrap();
    assert_good_works(&session, &step).await;
    assert_eq!(step.offers().len(), 2);
    let twice = session.list().await.tools().iter().find(|tool| tool.definition.name().as_str() == "twice").cloned();
    assert_eq!(twice.unwrap().title(), None, "the first one is used");
    let duplicates: Vec<_> = house.host.catalog().current().duplicates().iter().map(ToString::to_string).collect();
    assert_eq!(duplicates, ["odd/twice"]);
    let problems = house.host.status().remove(0).problems;
    assert_eq!(problems, ["the tool `twice` is listed twice; the first one is used"]);
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_changes_at_each_listing_is_stale_each_time_and_asks_once_it_was_called() {
    let (odd, house) = serving(vec![tool_with("shifty", r#"{"title":"0"}"#), tool("good")]);
    let session = session(&house, false);
    let call = || FunctionCall::new(Some("mcp__odd"), "shifty", "{}");
    let mut step = session.step().await.unwrap();
    assert!(!session.dispatch(&step, call()).await.is_error());
    for turn in 1..4 {
        let mut revisions = house.host.catalog().watch();
        let before = revisions.borrow_and_update().number();
        odd.define(vec![tool_with("shifty", &format!(r#"{{"title":"{turn}"}}"#)), tool("good")]);
        odd.last().say_tools_changed();
        revisions.wait_for(|revision| revision.number() > before).await.unwrap();
        let Dispatched::Called(stale) = session.dispatch(&step, call()).await else { panic!() };
        assert_eq!(failed(&stale).1, Code::Stale);
        step = session.step().await.unwrap();
        let Dispatched::Called(asked) = session.dispatch(&step, call()).await else { panic!() };
        assert_eq!(failed(&asked).1, Code::NobodyToAsk, "R24");
        assert_good_works(&session, &step).await;
    }
    assert_eq!(odd.handed().iter().filter(|handed| handed.tool == "shifty").count(), 1);
}
