//! Traces and metrics reach a collector, whole and without a word of arguments and answers; a collector that is gone, hangs or
//! refuses costs no call anything.

use std::sync::Arc;

use axum::http::StatusCode;
use serde_json::json;

use crate::cli::{Place, Ran};
use crate::fakes::Gate;
use crate::support::collector::{Collector, Words, words};
use crate::support::served::Served;
use crate::support::{PATIENCE, scripted_server};

const APPROVE: &str = "default_tools_approval_mode = \"approve\"";

fn section(endpoint: &str) -> String {
    format!("[telemetry]\nendpoint = \"{endpoint}\"\n")
}

/// A place whose user sends telemetry there.
fn place(endpoint: &str, more: &str) -> Place {
    Place::with_server(APPROVE, &format!("{}{more}", section(endpoint)))
}

/// Runs a command beside the collector.
async fn run(place: Place, args: &'static [&'static str]) -> Ran {
    let ran = tokio::task::spawn_blocking(move || place.run(args));
    tokio::time::timeout(PATIENCE, ran).await.expect("it ends").unwrap()
}

fn attributes(pairs: &[(&str, &str)]) -> Words {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

const CANARY: &str = "canary-4711";

#[tokio::test(flavor = "multi_thread")]
async fn the_spans_of_a_call_are_one_trace_and_hold_no_argument_and_no_answer() {
    let collector = Collector::start().await;
    let more = "service_name = \"gate\"\nresource = { \"deployment.environment.name\" = \"test\" }\n\
                headers = { \"x-key\" = \"${HOME}\" }\n";
    // It answers what it was told.
    let ran = run(place(&collector.origin, more), &["call", "s/echo", r#"{"word":"canary-4711"}"#]).await;
    assert!(ran.code == 0 && ran.out.contains(CANARY), "{}{}", ran.out, ran.err);

    let spans = collector.spans();
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    for name in
        ["call", "ready", "arguments", "prepare", "approval", "decide", "hand-over", "answer", "sanitise", "complete"]
    {
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
    let call = spans.iter().find(|span| span.name == "call").unwrap();
    assert!(call.parent_span_id.is_empty());
    let of_call = words(&call.attributes);
    assert_eq!((of_call["server"].as_str(), of_call["tool"].as_str()), ("s", "echo"));
    assert_eq!(of_call["outcome"], "answered");
    for span in &spans {
        assert_eq!(span.trace_id, call.trace_id, "{}", span.name);
        assert_eq!(words(&span.attributes)["call"], of_call["call"], "{}", span.name);
        assert!(span.name == "call" || spans.iter().any(|other| other.span_id == span.parent_span_id), "{}", span.name);
        assert!(span.events.is_empty() && span.dropped_attributes_count == 0, "{}", span.name);
    }
    let resource = collector.resource();
    assert_eq!((resource["service.name"].as_str(), resource["deployment.environment.name"].as_str()), ("gate", "test"));

    for arrived in collector.arrived() {
        assert!(["/v1/traces", "/v1/metrics"].contains(&arrived.path.as_str()), "{}", arrived.path);
        assert_eq!(arrived.headers["content-type"], "application/x-protobuf");
        assert!(arrived.headers["x-key"].to_str().unwrap().ends_with("/home"));
        let found = arrived.body.windows(CANARY.len()).any(|bytes| bytes == CANARY.as_bytes());
        assert!(!found, "{} holds the canary", arrived.path);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_call_comes_to_is_counted() {
    let collector = Collector::start().await;
    let ran = run(place(&collector.origin, ""), &["call", "s/add", r#"{"a":2,"b":3}"#]).await;
    assert_eq!(ran.code, 0, "{}", ran.err);
    let calls = collector.metric("portcullis.calls");
    assert_eq!(calls, [(attributes(&[("server", "s"), ("outcome", "answered")]), 1)]);
    assert_eq!(collector.metric("portcullis.call.duration"), [(attributes(&[("server", "s")]), 1)]);
    let verdicts = collector.metric("portcullis.verdicts");
    assert!(!verdicts.is_empty());
    for (verdict, _) in &verdicts {
        let keys: Vec<&str> = verdict.keys().map(String::as_str).collect();
        assert_eq!(keys, ["hook", "layer", "observed", "verdict"]);
    }
    let phases = collector.metric("portcullis.phase.duration");
    for phase in ["ready", "decide", "answer", "complete"] {
        let wanted = attributes(&[("phase", phase), ("server", "s")]);
        assert!(phases.contains(&(wanted, 1)), "{phase}: {phases:?}");
    }
    assert_eq!(collector.metric("portcullis.people.duration"), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ask_that_reaches_nobody_and_the_refusal_are_counted() {
    let collector = Collector::start().await;
    let place = Place::with_server("", &section(&collector.origin));
    let ran = run(place, &["call", "s/write"]).await;
    assert_eq!(ran.code, 3, "{}", ran.err);
    assert_eq!(
        collector.metric("portcullis.calls"),
        [(attributes(&[("server", "s"), ("outcome", "nobody-to-ask")]), 1)]
    );
    assert_eq!(collector.metric("portcullis.asks"), [(attributes(&[("channel", "none"), ("outcome", "nobody")]), 1)]);
    let call = collector.spans().into_iter().find(|span| span.name == "call").unwrap();
    assert_eq!(words(&call.attributes)["outcome"], "nobody-to-ask");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_cut_is_counted() {
    let collector = Collector::start().await;
    let place = Place::with_server(APPROVE, &format!("tool_output_token_limit = 1\n{}", section(&collector.origin)));
    assert_eq!(run(place, &["call", "s/echo", r#"{"word":"0123456789"}"#]).await.code, 0);
    assert_eq!(collector.metric("portcullis.truncations"), [(attributes(&[("view", "model")]), 1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_switched_off_is_not_sent() {
    let collector = Collector::start().await;
    let ran = run(place(&collector.origin, "traces = false\n"), &["call", "s/add"]).await;
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(collector.spans().is_empty() && !collector.metric("portcullis.calls").is_empty());
    let collector = Collector::start().await;
    let ran = run(place(&collector.origin, "metrics = false\nsampling = 0\n"), &["call", "s/add"]).await;
    assert_eq!((ran.code, collector.arrived().len()), (0, 0), "{}", ran.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_not_there_is_told_once_and_costs_no_call() {
    // Nobody listens on a port that was just free.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    let ran = run(place(&endpoint, ""), &["call", "s/add", r#"{"a":2,"b":3}"#]).await;
    assert!(ran.code == 0 && ran.out.contains('5'), "{}{}", ran.out, ran.err);
    assert_eq!(ran.err.matches("telemetry is not sent").count(), 1, "{}", ran.err);
    assert!(!ran.err.contains(&endpoint), "{}", ran.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_refuses_is_told_once_with_its_status() {
    let collector = Collector::answering(StatusCode::SERVICE_UNAVAILABLE, None).await;
    let ran = run(place(&collector.origin, ""), &["call", "s/add"]).await;
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(ran.err.matches("HTTP 503").count(), 1, "{}", ran.err);
    assert!(ran.err.contains("spans were lost"), "{}", ran.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_never_answers_does_not_keep_a_command_from_ending() {
    let gate = Gate::closed();
    let collector = Collector::answering(StatusCode::OK, Some(Arc::clone(&gate))).await;
    let ran = run(place(&collector.origin, ""), &["call", "s/add", r#"{"a":2,"b":3}"#]).await;
    assert!(ran.code == 0 && ran.out.contains('5'), "{}{}", ran.out, ran.err);
    assert!(!collector.arrived().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_whose_variable_is_missing_is_a_warning_and_sends_nothing() {
    let collector = Collector::start().await;
    let more = "headers = { \"x-key\" = \"${PORTCULLIS_NO_SUCH_VARIABLE}\" }\n";
    let ran = run(place(&collector.origin, more), &["call", "s/add"]).await;
    assert_eq!((ran.code, collector.arrived().len()), (0, 0), "{}", ran.err);
    assert!(ran.err.contains("x-key") && ran.err.contains("PORTCULLIS_NO_SUCH_VARIABLE"), "{}", ran.err);
}

#[tokio::test]
async fn serve_sends_what_its_clients_call_and_no_variable_leads_it_elsewhere() {
    let (collector, elsewhere) = (Collector::start().await, Collector::start().await);
    let config =
        format!("{}[mcp_servers.s]\ncommand = {:?}\n{APPROVE}\n", section(&collector.origin), scripted_server());
    let other = elsewhere.origin.as_str();
    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", other),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", other),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-stolen=1"),
        ("OTEL_RESOURCE_ATTRIBUTES", "stolen=1"),
        ("OTEL_TRACES_SAMPLER", "always_off"),
        ("OTEL_SDK_DISABLED", "true"),
        ("http_proxy", other),
    ];
    let mut served = Served::greeted(&config, &environment).await;
    let arguments = json!({ "a": 20, "b": 3 });
    assert!(served.call("s__add", &arguments).await.to_string().contains("23"));
    served.finish().await;
    assert!(collector.spans().iter().any(|span| span.name == "call"));
    assert_eq!(collector.metric("portcullis.calls").len(), 1);
    assert!(!collector.resource().contains_key("stolen") && elsewhere.arrived().is_empty());
    assert!(collector.arrived().iter().all(|arrived| !arrived.headers.contains_key("x-stolen")));
}
