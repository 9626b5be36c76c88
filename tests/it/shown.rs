//! What a sanitiser removes of a tool's definition is in no list, no stale answer and no output of `tools` (R31), and what is
//! called stays the server's own definition (R24).

use std::collections::BTreeMap;
use std::sync::Arc;

use portcullis::gateway::ServeOptions;
use portcullis::host::listing::Listing;
use portcullis::model::layer::LayerKind;
use portcullis::model::name::ToolRef;
use portcullis::model::outcome::{Code, Stage};
use portcullis::model::verdict::FaultCode;
use portcullis::pipeline::emit::sanitise::Sanitiser;
use portcullis::ports::reviewer::Reply;
use portcullis::ports::sanitiser::{Class, Verdict};
use serde_json::json;

use crate::fakes::Journal;
use crate::fakes::bench::{Bench, failed, said};
use crate::fakes::house::{House, call, spec};
use crate::fakes::people::Person;
use crate::fakes::policy::Policies;
use crate::fakes::sanitiser::{Cleaner, bound};
use crate::fakes::server::{FakeServer, tool, tool_with};
use crate::support::gate::Client;

const CANARY: &str = "CANARY7";

/// A canary in every text of a definition that may be edited.
const SINGS: &str = r#"{"name":"sings","title":"a CANARY7","description":"b CANARY7","annotations":{"title":"c CANARY7"},"inputSchema":{"type":"object","properties":{"type":{"type":"string","description":"d CANARY7","enum":["e CANARY7"]}},"required":["type"]},"outputSchema":{"type":"object","description":"f CANARY7"},"_meta":{"g":"CANARY7"}}"#;

/// Definitions of which an edit leaves none: a key, a required name, a type, the name.
const NAMES: [(&str, &str); 4] = [
    ("key", r#"{"name":"key","inputSchema":{"type":"object","properties":{"CANARY7":{}}}}"#),
    ("needs", r#"{"name":"needs","inputSchema":{"type":"object","required":["CANARY7"]}}"#),
    ("other", r##"{"name":"other","inputSchema":{"type":"object","properties":{"a":{"$ref":"#/CANARY7"}}}}"##),
    ("CANARY7", r#"{"name":"CANARY7","inputSchema":{"type":"object"}}"#),
];

fn words() -> Sanitiser {
    bound(LayerKind::User, "words", &Cleaner::removes(CANARY, Class::Secret))
}

fn house(files: &Arc<FakeServer>, sanitiser: Sanitiser) -> House {
    let policies = Policies::open(&["files"]).cleaning(sanitiser);
    House::under(&policies, [("files".to_owned(), spec(files))].into(), BTreeMap::new())
}

fn files(tools: Vec<String>) -> Arc<FakeServer> {
    FakeServer::new("files", &Journal::default(), tools)
}

fn names(listing: &Listing) -> Vec<String> {
    listing.tools().iter().map(|tool| tool.reference().to_string()).collect()
}

/// Gives the server this one tool and waits until it is listed so.
async fn redefine(house: &House, files: &Arc<FakeServer>, tool: String) {
    let mut revisions = house.host.catalog().watch();
    let before = revisions.borrow_and_update().number();
    files.define(vec![tool]);
    files.last().say_tools_changed();
    revisions.wait_for(|revision| revision.number() > before).await.unwrap();
}

#[tokio::test]
async fn r31_a_client_lists_definitions_without_what_was_removed_and_calls_the_raw_ones() {
    let files = files(vec![SINGS.to_owned(), tool("use")]);
    let house = house(&files, words());
    house.lists(&["files/sings", "files/use"]).await;
    let mut client = Client::of(&house.host, ServeOptions::default());
    client.greet(json!({})).await;
    let list = client.list().await;
    assert!(!list.to_string().contains("CANARY"), "{list:#}");
    let first = &list["tools"][0];
    assert_eq!((&first["name"], &first["title"]), (&json!("files__sings"), &json!("a [redacted: secret]")));
    assert_eq!(first["inputSchema"]["properties"]["type"]["enum"], json!(["e [redacted: secret]"]));
    assert_eq!(list["tools"][1]["description"], "does use");
    client.call("1", r#"{"name":"files__sings","arguments":{"type":"e CANARY7"}}"#).await;
    assert_ne!(client.answer(json!(1)).await["result"]["isError"], true);
    assert_eq!(files.handed().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn r31_an_edit_of_a_name_of_any_kind_hides_the_tool_and_says_who_did_it() {
    for (name, definition) in NAMES {
        let files = files(vec![definition.to_owned(), tool("use")]);
        let house = house(&files, words());
        house.lists(&[&*format!("files/{name}"), "files/use"]).await;
        let session = house.session();
        let listing = session.list().await;
        assert_eq!(names(&listing), ["files/use"], "{name}");
        let target = format!("files/{name}");
        let reference = ToolRef::parse(&target).unwrap();
        assert!(listing.shown(&reference).is_none());
        assert!(listing.withheld()[&reference].why.contains("edits"), "{name}");
        let hidden = session.call(call(&target)).await;
        assert_eq!(failed(&hidden), (Stage::Sanitise, Code::Disabled), "{name}");
        assert!(files.handed().is_empty());
    }
}

#[tokio::test]
async fn r25_a_tool_of_a_withheld_definition_answers_like_an_unknown_one() {
    let files = files(vec![tool("write")]);
    let house = house(&files, bound(LayerKind::Managed, "never", &Cleaner::withholds("no-words")));
    house.lists(&["files/write"]).await;
    let mut client = Client::of(&house.host, ServeOptions::default());
    client.greet(json!({})).await;
    assert_eq!(client.list().await["tools"], json!([]));
    client.call("1", r#"{"name":"files__write"}"#).await;
    client.call("2", r#"{"name":"files__wrote"}"#).await;
    let (hidden, unknown) = (client.answer(json!(1)).await, client.answer(json!(2)).await);
    assert_eq!(hidden["result"].to_string().replace("write", "wrote"), unknown["result"].to_string());
    let listing = house.session().list().await;
    let unshown = listing.withheld().values().next().unwrap();
    assert_eq!((unshown.origin.component.as_str(), unshown.origin.layer.kind()), ("never", LayerKind::Managed));
    assert_eq!(unshown.origin.rule.as_ref().map(ToString::to_string).as_deref(), Some("no-words"));
}

#[tokio::test(start_paused = true)]
async fn a_definition_is_looked_at_once_for_each_policy_set_and_a_failure_every_time() {
    let (counts, fails) = (Cleaner::removes(CANARY, Class::Secret), Cleaner::fails(FaultCode::Trap));
    for (cleaner, tools, asked) in [(&counts, 2, [2, 2]), (&fails, 0, [2, 4])] {
        let files = files(vec![SINGS.to_owned(), tool("use")]);
        let house = house(&files, bound(LayerKind::User, "words", cleaner));
        house.lists(&["files/sings", "files/use"]).await;
        let session = house.session();
        for asked in asked {
            assert_eq!(session.list().await.tools().len(), tools);
            assert_eq!(cleaner.seen().len(), asked);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn r16_an_observed_sanitiser_neither_sees_nor_changes_a_definition() {
    let cleaner = Cleaner::withholds("x");
    let files = files(vec![tool("use")]);
    let house = house(&files, Sanitiser { observe: true, ..bound(LayerKind::User, "words", &cleaner) });
    house.lists(&["files/use"]).await;
    assert_eq!(names(&house.session().list().await), ["files/use"]);
    assert!(cleaner.seen().is_empty());
}

#[tokio::test(start_paused = true)]
async fn r24_a_stale_answer_serves_the_new_definition_cleaned_and_the_raw_digest_counts_as_seen() {
    let files = files(vec![tool("use")]);
    let house = house(&files, words());
    let session = house.session();
    session.list().await;
    redefine(&house, &files, tool_with("use", r#"{"title":"Other CANARY7"}"#)).await;
    let stale = session.call(call("files/use")).await;
    assert_eq!(failed(&stale).1, Code::Stale);
    assert!(said(&stale).contains("Other [redacted: secret]") && !said(&stale).contains("CANARY"), "{}", said(&stale));
    session.call(call("files/use")).await;
    assert_eq!(files.handed().len(), 1, "what was shown may be called");
    // Edited it is the same text: what is called is another one all the same.
    redefine(&house, &files, tool_with("use", r#"{"title":"Other CANARY7CANARY7"}"#)).await;
    assert_eq!(failed(&session.call(call("files/use")).await).1, Code::Stale);
}

#[tokio::test(start_paused = true)]
async fn r25_a_stale_answer_shows_nothing_of_a_definition_that_is_withheld() {
    let files = files(vec![tool("use")]);
    let house = house(&files, words());
    let session = house.session();
    session.list().await;
    redefine(&house, &files, tool_with("use", r#"{"CANARY7":true}"#)).await;
    for _ in 0..2 {
        let hidden = session.call(call("files/use")).await;
        assert_eq!(failed(&hidden), (Stage::Sanitise, Code::Disabled));
        assert!(!said(&hidden).contains("definition"), "{}", said(&hidden));
    }
}

#[tokio::test(start_paused = true)]
async fn r24_other_sanitisers_alone_make_no_call_stale() {
    let bench = Bench::open().await;
    let seen = bench.catalog().current().tools()[0].definition.digest();
    let cleaner = Cleaner::by(|facts| {
        let definition = facts.targets.iter().any(|target| target.pointer == "/inputSchema/type");
        Ok((if definition { Verdict::Withhold("no".to_owned()) } else { Verdict::Pass }, None))
    });
    bench.decide_by(&Policies::open(&["files", "mail"]).cleaning(bound(LayerKind::User, "new", &cleaner))).await;
    let request = portcullis::pipeline::CallRequest { seen: Some(seen), ..bench.request("files/read", "{}") };
    assert!(bench.pipeline.run(request).await.clean.failure().is_none());
}

#[tokio::test]
async fn r31_the_title_in_a_question_to_a_person_is_cleaned_and_that_of_a_withheld_definition_is_left_out() {
    let asked = async |sanitiser: Option<Sanitiser>| {
        let policies = Policies::new();
        let bench = Bench::new(&sanitiser.into_iter().fold(policies, Policies::cleaning)).await;
        let titled = r#"{"name":"write","title":"Write CANARY7","inputSchema":{"type":"object"}}"#;
        bench.redefine(&bench.files, vec![titled.to_owned()]).await;
        let person = Person::replying(&bench.journal, [Reply::Declined, Reply::Declined]);
        // Asking leaves no trace: the second call is asked about like the first.
        for _ in 0..2 {
            assert_eq!(failed(&bench.write_asking(Arc::clone(&person) as _).await).1, Code::Declined);
        }
        person.questions().remove(1).title
    };
    assert_eq!(asked(None).await.as_deref(), Some("Write CANARY7"));
    assert_eq!(asked(Some(words())).await.as_deref(), Some("Write [redacted: secret]"));
    assert_eq!(asked(Some(bound(LayerKind::User, "no", &Cleaner::withholds("no")))).await, None);
}
