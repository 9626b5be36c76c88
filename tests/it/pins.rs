//! A definition that was accepted is kept, and another one in its place is asked about (R24).

use std::sync::Arc;

use portcullis::gateway::question::question_text;
use portcullis::model::item::Status;
use portcullis::model::layer::LayerKind;
use portcullis::model::name::ToolRef;
use portcullis::model::outcome::Code;
use portcullis::model::verdict::{ConnectorAnswer, Remember, RuleId};
use portcullis::pipeline::{CallRequest, Would};
use portcullis::ports::reviewer::Reply;
use portcullis::ports::sanitiser::Class;
use portcullis::ports::state::{Pin, PolicyState as _};

use crate::fakes::Journal;
use crate::fakes::bench::{Bench, failed, said};
use crate::fakes::people::{Person, allowed};
use crate::fakes::policy::{Apps, Policies, Scripted, allow};
use crate::fakes::sanitiser::{Cleaner, bound};
use crate::fakes::server::{tool, tool_with};

const READS: &str = r#"{"readOnlyHint":true}"#;

/// A bench on which `files/write` and `files/read` were called and so accepted.
async fn accepted(policies: &Policies) -> Bench {
    let bench = Bench::new(policies).await;
    for target in ["files/write", "files/read"] {
        let done = bench.pipeline.run(bench.request(target, "{}")).await;
        assert_eq!(done.item.status, Status::Completed, "{}", said(&done));
    }
    bench
}

fn agreeing(times: usize) -> Arc<Person> {
    Person::replying(&Journal::default(), std::iter::repeat_n(allowed(Remember::Never), times))
}

fn asking(bench: &Bench, person: &Arc<Person>, target: &str) -> CallRequest {
    CallRequest { reviewer: Arc::clone(person) as _, ..bench.request(target, "{}") }
}

#[tokio::test(start_paused = true)]
async fn r24_a_changed_definition_asks_once_with_a_readable_difference() {
    let bench = accepted(&Policies::open(&["files", "mail"])).await;
    bench.redefine(&bench.files, vec![tool_with("write", READS), tool("read")]).await;
    let refused = bench.pipeline.run(bench.request("files/write", "{}")).await;
    assert_eq!(failed(&refused).1, Code::NobodyToAsk, "{}", said(&refused));
    let person = agreeing(1);
    for _ in 0..2 {
        let done = bench.pipeline.run(asking(&bench, &person, "files/write")).await;
        assert_eq!(done.item.status, Status::Completed, "{}", said(&done));
    }
    let [question] = &person.questions()[..] else { panic!("asked {} times", person.questions().len()) };
    assert_eq!(question.asks[0].key.rule, RuleId::parse("definition-changed"));
    assert_eq!(
        question.asks[0].ask.reason.text,
        "the tool's definition changed since it was accepted (`annotations`); hints that relax: it says that it only reads"
    );
    assert_eq!(question.options, [Remember::Never]);
    let text = question_text(question);
    assert!(text.contains("files/write\n {\n-  \"annotations\": {},\n+  \"annotations\": {\n"), "{text}");
    assert!(text.contains("+    \"readOnlyHint\": true\n"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn r24_no_allow_lifts_the_question_and_a_refusal_accepts_nothing() {
    let permissive = Scripted::says(allow("all"));
    let policies = Policies::open(&["files", "mail"]).with(LayerKind::Managed, "permissive", &permissive);
    let bench = accepted(&policies).await;
    bench.redefine(&bench.files, vec![tool_with("write", READS), tool("read")]).await;
    let person = Person::replying(&Journal::default(), [Reply::Declined, Reply::Declined]);
    for _ in 0..2 {
        let refused = bench.pipeline.run(asking(&bench, &person, "files/write")).await;
        assert_eq!(failed(&refused).1, Code::Declined, "{}", said(&refused));
    }
    assert_eq!(person.questions().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn r24_one_acceptance_covers_the_servers_whole_change() {
    let bench = accepted(&Policies::open(&["files", "mail"])).await;
    bench.redefine(&bench.files, vec![tool_with("write", READS), tool_with("read", READS)]).await;
    let person = agreeing(1);
    let done = bench.pipeline.run(asking(&bench, &person, "files/write")).await;
    assert_eq!(done.item.status, Status::Completed, "{}", said(&done));
    let text = question_text(&person.questions()[0]);
    assert!(text.contains("1 other tool of its server changed too") && text.contains("\nfiles/read\n"), "{text}");
    let done = bench.pipeline.run(bench.request("files/read", "{}")).await;
    assert_eq!(done.item.status, Status::Completed, "{}", said(&done));
}

#[tokio::test(start_paused = true)]
async fn r24_what_was_not_shown_whole_is_not_accepted() {
    let bench = accepted(&Policies::open(&["files", "mail"])).await;
    let long = (0..400).map(|line| format!(r#""key{line}":{line}"#)).collect::<Vec<_>>().join(",");
    bench.redefine(&bench.files, vec![tool_with("write", &format!("{{{long}}}")), tool_with("read", READS)]).await;
    let person = agreeing(3);
    for target in ["files/write", "files/write", "files/read"] {
        let done = bench.pipeline.run(asking(&bench, &person, target)).await;
        assert_eq!(done.item.status, Status::Completed, "{}", said(&done));
    }
    let questions = person.questions();
    assert_eq!(questions.len(), 3, "a definition that was not shown whole was accepted");
    assert!(questions[0].changes.last().unwrap().contains("more lines"), "{:?}", questions[0].changes.last());
}

#[tokio::test(start_paused = true)]
async fn r24_a_tool_that_went_and_came_back_is_compared_with_what_was_accepted() {
    let bench = accepted(&Policies::open(&["files", "mail"])).await;
    bench.redefine(&bench.files, vec![tool("read")]).await;
    bench.redefine(&bench.files, vec![tool_with("write", READS), tool("read")]).await;
    assert_eq!(failed(&bench.pipeline.run(bench.request("files/write", "{}")).await).1, Code::NobodyToAsk);
    // What comes back as it was needs nobody.
    bench.redefine(&bench.files, vec![tool("write"), tool("read")]).await;
    let done = bench.pipeline.run(bench.request("files/write", "{}")).await;
    assert_eq!(done.item.status, Status::Completed, "{}", said(&done));
}

#[tokio::test(start_paused = true)]
async fn r24_what_another_process_accepted_before_counts() {
    let bench = Bench::new(&Policies::open(&["files", "mail"])).await;
    let before = portcullis::model::tool::ToolDefinition::parse(&tool_with("write", READS)).unwrap();
    let pin = Pin { digest: before.digest(), definition: Arc::clone(before.verbatim()) };
    bench.state.pin(&bench.caller.tenant, &ToolRef::parse("files/write").unwrap(), &pin).unwrap();
    assert_eq!(failed(&bench.pipeline.run(bench.request("files/write", "{}")).await).1, Code::NobodyToAsk);
}

#[tokio::test(start_paused = true)]
async fn r31_what_a_sanitiser_removes_is_not_in_the_difference() {
    let words = bound(LayerKind::User, "words", &Cleaner::removes("CANARY7", Class::Secret));
    let bench = accepted(&Policies::open(&["files", "mail"]).cleaning(words)).await;
    bench.redefine(&bench.files, vec![tool_with("write", r#"{"title":"a CANARY7 b"}"#), tool("read")]).await;
    let person = agreeing(1);
    bench.pipeline.run(asking(&bench, &person, "files/write")).await;
    let text = question_text(&person.questions()[0]);
    assert!(text.contains("title") && !text.contains("CANARY7"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn r38_explaining_shows_the_change_and_accepts_nothing() {
    let bench = accepted(&Policies::open(&["files", "mail"])).await;
    bench.redefine(&bench.files, vec![tool_with("write", READS), tool("read")]).await;
    for _ in 0..2 {
        let explained = bench.pipeline.explain(bench.request("files/write", "{}")).await;
        assert!(matches!(explained.would, Would::Ask { .. }), "{:?}", explained.would);
        assert!(explained.changes.iter().any(|line| line.contains("readOnlyHint")), "{:?}", explained.changes);
    }
}

#[tokio::test(start_paused = true)]
async fn r25_a_tool_that_is_hidden_from_the_caller_has_not_changed_either() {
    let off = Apps::by(|facts| {
        let enabled = Some(facts.tool.tool.as_str() != "write");
        Ok(ConnectorAnswer { enabled, mode: None, rule: None })
    });
    let policies = |on: bool| {
        let open = Policies::open(&["files", "mail"]);
        if on { open.app(LayerKind::User, "apps", &off) } else { open }
    };
    let bench = accepted(&policies(false)).await;
    bench.link("calendar").await;
    bench.redefine(&bench.files, vec![tool_with("write", READS), tool_with("read", READS)]).await;
    bench.decide_by(&policies(true)).await;
    let person = agreeing(1);
    bench.pipeline.run(asking(&bench, &person, "files/read")).await;
    let text = question_text(&person.questions()[0]);
    assert!(!text.contains("files/write") && !text.contains("other tool"), "{text}");
    // Nothing of it was accepted.
    bench.decide_by(&policies(false)).await;
    assert_eq!(failed(&bench.pipeline.run(bench.request("files/write", "{}")).await).1, Code::NobodyToAsk);
}

#[tokio::test(start_paused = true)]
async fn r31_no_word_of_the_servers_own_is_in_the_reason() {
    let words = bound(LayerKind::User, "words", &Cleaner::drops("CANARY7"));
    let bench = accepted(&Policies::open(&["files", "mail"]).cleaning(words)).await;
    let other = r#"{"name":"write","CANARY7":1,"inputSchema":{"type":"object"}}"#.to_owned();
    bench.redefine(&bench.files, vec![other, tool("read")]).await;
    let refused = bench.pipeline.run(bench.request("files/write", "{}")).await;
    assert!(!said(&refused).contains("CANARY7"), "{}", said(&refused));
    let decisions = bench.tape.decisions();
    assert!(!format!("{:?}", decisions.last().unwrap().decision.folded).contains("CANARY7"));
}
