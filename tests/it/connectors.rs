//! Connector policies through the whole pipeline and the gateway: what is hidden, what is refused, and which modes count.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use portcullis::gateway::ServeOptions;
use portcullis::model::decision::ConnectorSpoken;
use portcullis::model::layer::LayerKind;
use portcullis::model::name::RawToolName;
use portcullis::model::outcome::{Code, Stage};
use portcullis::model::posture::ApprovalMode::{self, Approve, Auto, Prompt, Writes};
use portcullis::model::tool::Connector;
use portcullis::model::verdict::{ConnectorAnswer, Fault, FaultCode, Remember, RuleId};
use portcullis::pipeline::Would;
use portcullis::ports::approval::Bound;
use serde_json::json;

use crate::fakes::Journal;
use crate::fakes::bench::{Bench, failed, failure, said};
use crate::fakes::house::{House, call, spec};
use crate::fakes::people::{Person, allowed};
use crate::fakes::policy::{Apps, Policies, Scripted, allow, bound_app};
use crate::fakes::server::{FakeServer, tool, tool_with};
use crate::support::gate::Client;

const MAY_DESTROY: &str = r#"{"destructiveHint":true}"#;
const READS: &str = r#"{"readOnlyHint":true}"#;

async fn linked(policies: &Policies) -> Bench {
    let bench = Bench::new(policies).await;
    bench.link("calendar").await;
    bench
}

fn disabling(rule: &str) -> Arc<Apps> {
    Apps::says(rule, Some(false), None)
}

#[tokio::test(start_paused = true)]
async fn r25_a_disabled_apps_tool_answers_like_an_unknown_one_and_the_record_says_who() {
    let approval = Scripted::says(allow("fine"));
    let off = disabling("calendar-off");
    let policies = Policies::new().app(LayerKind::User, "apps", &off).with(LayerKind::User, "a", &approval);
    let bench = linked(&policies).await;
    let finished = bench.write().await;
    let unknown = bench.pipeline.run(bench.request("files/nothing", "{}")).await;
    assert_eq!(said(&finished), said(&unknown).replace("nothing", "write"));
    assert_eq!(finished.clean.result().value()["_meta"], unknown.clean.result().value()["_meta"]);
    assert_eq!(failed(&finished), (Stage::Connector, Code::Disabled));
    let origin = failure(&finished).origin.clone().unwrap();
    assert_eq!((origin.layer.kind(), origin.component.as_str()), (LayerKind::User, "apps"));
    assert_eq!(origin.rule, RuleId::parse("calendar-off"));
    assert!(failure(&finished).detail.as_ref().unwrap().starts_with("blocked by app configuration: user/apps"));
    assert_eq!(finished.item.call.facts.connector_id.as_deref(), Some("calendar"));
    let record = bench.tape.decisions().remove(0);
    assert_eq!(record.decision.connectors.len(), 1);
    assert!(record.decision.voices.is_empty() && approval.asked() == 0 && bench.files.handed().is_empty());
}

#[tokio::test(start_paused = true)]
async fn r25_what_else_is_wrong_with_the_call_of_a_hidden_tool_is_not_said() {
    let bench = linked(&Policies::new().app(LayerKind::User, "apps", &disabling("off"))).await;
    let seen = portcullis::model::digest::Digest::of(b"another definition");
    let request = portcullis::pipeline::CallRequest { seen: Some(seen), ..bench.request("files/write", "{}") };
    let finished = bench.pipeline.run(request).await;
    assert_eq!(failed(&finished), (Stage::Connector, Code::Disabled));
    assert_eq!(said(&finished), "MCP tool `files/write` is not available to the model");
}

#[tokio::test(start_paused = true)]
async fn r9_nobody_is_asked_about_a_tool_without_a_connector() {
    let off = disabling("off");
    let bench = Bench::new(&Policies::open(&["files"]).app(LayerKind::Managed, "apps", &off)).await;
    assert!(bench.write().await.item.failure().is_none());
    assert_eq!(off.asked(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_connector_policy_that_fails_disables() {
    let broken = Apps::by(|_| Err(Fault::new(FaultCode::Trap, "SECRET")));
    let gone = bound_app(LayerKind::Managed, "gone", &broken);
    let gone = Bound { component: Err(Fault::new(FaultCode::Missing, "no such file")), ..gone };
    for policies in [Policies::new().app(LayerKind::User, "broken", &broken), Policies::new().and_app(gone)] {
        let finished = linked(&policies).await.write().await;
        assert_eq!(failed(&finished), (Stage::Connector, Code::Disabled));
        assert!(!said(&finished).contains("SECRET"));
    }
}

#[tokio::test(start_paused = true)]
async fn r2_no_layer_enables_what_another_disabled() {
    let (on, off) = (Apps::says("on", Some(true), None), disabling("off"));
    for (yes, no) in [(LayerKind::Managed, LayerKind::Project), (LayerKind::Project, LayerKind::Managed)] {
        let bench = linked(&Policies::new().app(yes, "on", &on).app(no, "off", &off)).await;
        assert_eq!(failed(&bench.write().await).1, Code::Disabled);
    }
}

#[tokio::test(start_paused = true)]
async fn r16_an_observed_connector_policy_is_recorded_and_not_applied() {
    let off = disabling("off");
    let observed = Bound { observe: true, ..bound_app(LayerKind::Managed, "watch", &off) };
    let policies =
        Policies::new().and_app(observed).app(LayerKind::User, "modes", &Apps::says("m", None, Some(Approve)));
    let bench = linked(&policies).await;
    assert!(bench.write().await.item.failure().is_none());
    bench.pipeline.observatory.idle().await;
    let record = bench.tape.observed().remove(0);
    assert!(record.connectors[0].observed && record.voices.is_empty());
    let explained = bench.pipeline.explain(bench.request("files/write", "{}")).await;
    assert_eq!(explained.decision.unwrap().connectors.len(), 2);
}

/// What comes of `files/write` with these hints under these modes: "run", or the longest time that is offered.
async fn under(modes: &[(LayerKind, ApprovalMode)], hints: &str) -> String {
    let policies = modes.iter().fold(Policies::new(), |policies, (layer, mode)| {
        policies.app(*layer, "modes", &Apps::says("m", None, Some(*mode)))
    });
    let bench = linked(&policies).await;
    bench.redefine(&bench.files, vec![tool_with("write", hints)]).await;
    match bench.pipeline.explain(bench.request("files/write", "{}")).await.would {
        Would::Run { .. } => "run".to_owned(),
        Would::Ask { options, .. } => format!("{:?}", options.last().unwrap()),
        Would::Fail(failure) => panic!("{failure:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn r13_the_call_asks_if_any_contributed_mode_asks() {
    use LayerKind::{Managed, Organisation, User};
    assert_eq!(under(&[], MAY_DESTROY).await, "Always", "the built-in mode");
    assert_eq!(under(&[], READS).await, "run");
    assert_eq!(under(&[(User, Approve)], MAY_DESTROY).await, "run");
    assert_eq!(under(&[(User, Approve), (Managed, Auto)], MAY_DESTROY).await, "Always");
    assert_eq!(under(&[(User, Writes), (Managed, Approve)], READS).await, "run");
    // By outcome, not by name: `writes` lets a reading tool pass that `auto` asks about.
    let both = r#"{"readOnlyHint":true,"destructiveHint":true}"#;
    assert_eq!(under(&[(User, Writes)], both).await, "run");
    assert_eq!(under(&[(User, Writes), (Organisation, Auto)], both).await, "Always");
}

#[tokio::test(start_paused = true)]
async fn r13_remembering_is_offered_only_if_every_mode_that_asks_offers_it() {
    use LayerKind::{Managed, User};
    assert_eq!(under(&[(User, Auto), (Managed, Prompt)], MAY_DESTROY).await, "Never");
    assert_eq!(under(&[(Managed, Auto), (User, Writes)], MAY_DESTROY).await, "Never");
    assert_eq!(under(&[(Managed, Auto), (User, Auto)], MAY_DESTROY).await, "Always");
}

#[tokio::test(start_paused = true)]
async fn r2_r3_an_approve_of_a_session_or_project_lets_nothing_run() {
    for layer in [LayerKind::Session, LayerKind::Project] {
        assert_eq!(under(&[(layer, Approve)], MAY_DESTROY).await, "Always");
    }
}

#[tokio::test(start_paused = true)]
async fn r11_an_allow_lifts_the_ask_of_a_contributed_mode_only_from_a_layer_as_trusted() {
    let prompting = Apps::says("m", None, Some(Prompt));
    for (allowing, runs) in [(LayerKind::User, false), (LayerKind::Organisation, true), (LayerKind::Managed, true)] {
        let policies = Policies::new().app(LayerKind::Organisation, "modes", &prompting);
        let bench = linked(&policies.with(allowing, "yes", &Scripted::says(allow("yes")))).await;
        assert_eq!(bench.write().await.item.failure().is_none(), runs, "{allowing:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn r17_an_agreement_is_void_when_the_account_link_changes() {
    let bench = linked(&Policies::new()).await;
    let person = Person::replying(&bench.journal, [allowed(Remember::Session)]);
    for _ in 0..2 {
        assert!(bench.write_asking(person.clone()).await.item.failure().is_none());
    }
    assert_eq!(person.questions().len(), 1);
    let app = Connector { id: "calendar".to_owned(), name: None, account: Some("other".to_owned()), description: None };
    bench.change(&bench.files, |published| _ = published.connectors.insert(RawToolName::parse("write").unwrap(), app));
    bench.publish().await;
    assert!(bench.write_asking(person.clone()).await.item.failure().is_none());
    assert_eq!(person.questions().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn r19_a_tool_that_is_disabled_while_a_person_is_asked_is_not_called() {
    let off = Arc::new(AtomicBool::new(false));
    let switch = {
        let off = Arc::clone(&off);
        Apps::by(move |_| {
            Ok(ConnectorAnswer { enabled: Some(!off.load(Ordering::SeqCst)), ..ConnectorAnswer::default() })
        })
    };
    let bench = linked(&Policies::new().app(LayerKind::User, "switch", &switch)).await;
    let gate = crate::fakes::Gate::closed();
    let person = Person::replying(&bench.journal, [allowed(Remember::Never)]).at(&gate);
    let request = portcullis::pipeline::CallRequest { reviewer: person, ..bench.request("files/write", "{}") };
    let running = bench.spawn(request);
    gate.reached(1).await;
    off.store(true, Ordering::SeqCst);
    gate.open();
    assert_eq!(failed(&running.await.unwrap()).1, Code::Disabled);
    assert!(bench.files.handed().is_empty());
}

/// A host whose server `apps` has `read` and `write`, both tools of an App.
fn house(policies: &Policies) -> House {
    let server = FakeServer::new("apps", &Journal::default(), vec![tool("write"), tool("read"), tool("plain")]);
    let app = |name: &str| {
        (
            RawToolName::parse(name).unwrap(),
            Connector {
                id: "c1".to_owned(),
                name: Some("Calendar".to_owned()),
                account: None,
                description: Some("Your events.".to_owned()),
            },
        )
    };
    let connectors = BTreeMap::from([app("write"), app("read")]);
    let spec = portcullis::host::fleet::ServerSpec { connectors, ..spec(&server) };
    House::under(policies, BTreeMap::from([("apps".to_owned(), spec)]), BTreeMap::new())
}

fn no_writes() -> Arc<Apps> {
    Apps::by(|facts| {
        let enabled = facts.tool.tool.as_str() != "write";
        Ok(ConnectorAnswer { rule: RuleId::parse("no-writes"), enabled: Some(enabled), mode: Some(Approve) })
    })
}

#[tokio::test(start_paused = true)]
async fn r25_a_disabled_tool_is_not_listed_and_whoever_asks_the_host_is_told_why() {
    let house = house(&Policies::new().app(LayerKind::Managed, "apps", &no_writes()));
    house.lists(&["apps/plain", "apps/read", "apps/write"]).await;
    let listing = house.session().list().await;
    let names: Vec<String> = listing.tools().iter().map(|tool| tool.reference().to_string()).collect();
    assert_eq!(names, ["apps/read"], "E3: nobody says which App `plain` is of");
    let described: Vec<_> = listing.tools().iter().map(|tool| tool.namespace_description.as_deref()).collect();
    assert_eq!(described, [Some("Your events.")]);
    let by = listing.hidden().values().next().unwrap().first().unwrap();
    assert_eq!(
        (by.source.to_string(), by.reason.rule.clone()),
        ("managed/apps".to_owned(), RuleId::parse("no-writes"))
    );
    let finished = house.session().call(call("apps/write")).await;
    assert_eq!(failed(&finished), (Stage::Connector, Code::Disabled));
}

#[tokio::test]
async fn r25_a_client_sees_neither_in_the_list_nor_in_an_answer_that_a_hidden_tool_is_there() {
    let house = house(&Policies::new().app(LayerKind::Managed, "apps", &no_writes()));
    house.lists(&["apps/plain", "apps/read", "apps/write"]).await;
    let mut client = Client::of(&house.host, ServeOptions { page: 1, ..ServeOptions::default() });
    client.greet(json!({})).await;
    let mut listed = Vec::new();
    let mut page = client.list().await;
    loop {
        listed.extend(page["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()));
        let Some(cursor) = page["nextCursor"].as_str() else { break };
        let params = json!({ "cursor": cursor });
        client.send(&format!(r#"{{"jsonrpc":"2.0","id":9,"method":"tools/list","params":{params}}}"#)).await;
        page = client.answer(json!(9)).await["result"].take();
    }
    assert_eq!(listed, ["codex_apps__calendar__read"]);
    client.call("1", r#"{"name":"codex_apps__calendar__write"}"#).await;
    client.call("2", r#"{"name":"codex_apps__calendar__wrote"}"#).await;
    let (hidden, unknown) = (client.answer(json!(1)).await, client.answer(json!(2)).await);
    assert_eq!(hidden["result"].to_string().replace("write", "wrote"), unknown["result"].to_string());
}

#[tokio::test(start_paused = true)]
async fn r38_explain_says_what_every_layer_said_about_the_app() {
    let policies = Policies::new().app(LayerKind::User, "modes", &Apps::says("m", Some(true), Some(Approve)));
    let bench = linked(&policies).await;
    let explained = bench.pipeline.explain(bench.request("files/write", "{}")).await;
    let decision = explained.decision.unwrap();
    let want = ConnectorAnswer { rule: RuleId::parse("m"), enabled: Some(true), mode: Some(Approve) };
    assert_eq!(decision.connectors[0].spoken, ConnectorSpoken::Answer(want));
    assert_eq!(decision.steps[0], "user/modes: enabled, mode approve, by rule `m`");
    let record = serde_json::to_value(&decision).unwrap();
    assert_eq!(record["connectors"][0]["answer"]["mode"], "approve");
}
