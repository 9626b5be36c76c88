//! Auto reviewers that answer slowly, wrongly or not at all: over HTTP in both forms, and as programs.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::response::Response;
use parking_lot::Mutex;
use portcullis::adapters::review::{CommandReviewer, Endpoint, HttpReviewer, Program};
use portcullis::config::reviewer::Form;
use portcullis::host::network::client_builder;
use portcullis::model::evidence::Evidence;
use portcullis::model::review::Assessment;
use portcullis::ports::review::{AutoReviewer, NoReview, ReviewRequest};
use serde_json::json;

use crate::support::http_server::{HttpServer, json, refused, status, typed};

const KEY: &str = "sk-hush-hush";
const ALLOW: &str = r#"{"outcome":"allow"}"#;

fn request() -> ReviewRequest {
    ReviewRequest {
        instructions: "judge".into(),
        action: r#"{"server":"s"}"#.into(),
        evidence: Evidence::default(),
        client: None,
    }
}

fn says(form: Form, text: &str) -> Response {
    json(&match form {
        Form::Responses => json!({ "status": "completed", "output": [
            { "type": "message", "content": [{ "type": "output_text", "text": text }] }] }),
        Form::Chat => json!({ "choices": [{ "message": { "role": "assistant", "content": text } }] }),
    })
}

/// Asks a server that gives these answers, once for each.
async fn asked(form: Form, answers: Vec<Response>) -> (Vec<Result<String, NoReview>>, HttpServer) {
    let count = answers.len();
    let answers = Arc::new(Mutex::new(answers.into_iter()));
    let server = HttpServer::start(move |_| {
        let answer = answers.lock().next();
        async move { answer }
    });
    let url = format!("{}?secret=hush", server.url()).parse().unwrap();
    let endpoint = Endpoint { url, form, model: "m".to_owned(), key_env: Some("KEY".to_owned()) };
    let reviewer = HttpReviewer::new(endpoint, client_builder, |name| (name == "KEY").then(|| KEY.to_owned()));
    let mut said = Vec::new();
    for _ in 0..count {
        said.push(reviewer.review(&request()).await);
    }
    (said, server)
}

#[tokio::test]
async fn both_forms_get_instructions_and_action_apart_and_the_key_in_its_header() {
    for form in [Form::Responses, Form::Chat] {
        let (said, server) = asked(form, vec![says(form, ALLOW)]).await;
        assert_eq!(said, [Ok(ALLOW.to_owned())]);
        let [asked] = &server.asked()[..] else { panic!() };
        assert_eq!(asked.header("authorization"), Some(format!("Bearer {KEY}").as_str()));
        let wanted = match form {
            Form::Responses => {
                json!({ "model": "m", "instructions": "judge", "input": "{\"server\":\"s\"}", "store": false })
            }
            Form::Chat => json!({ "model": "m", "messages": [
                { "role": "system", "content": "judge" }, { "role": "user", "content": "{\"server\":\"s\"}" }] }),
        };
        assert_eq!(asked.body, wanted);
    }
}

#[tokio::test]
async fn overload_and_what_breaks_on_the_way_may_be_better_the_next_time() {
    let half = futures::stream::iter([Ok(Bytes::from_static(b"{\"output\":")), Err(std::io::Error::other("gone"))]);
    let answers = vec![
        refused(429, &json!({ "error": KEY })),
        status(503),
        typed("application/json", Body::from_stream(half)),
        typed("application/json", "hush"),
        json(&json!({ "error": { "message": "hush" } })),
        says(Form::Responses, ALLOW),
    ];
    let (mut said, _server) = asked(Form::Responses, answers).await;
    assert_eq!(said.pop(), Some(Ok(ALLOW.to_owned())));
    for answer in said {
        let Err(NoReview::Transient(why)) = answer else { panic!("{answer:?}") };
        assert!(!why.contains("hush") && !why.contains("127.0.0.1"), "{why}");
    }
}

#[tokio::test]
async fn a_redirect_a_refusal_and_megabytes_are_failures_that_name_no_key_and_no_address() {
    let mut redirect = status(307);
    redirect.headers_mut().insert("location", "/elsewhere".parse().unwrap());
    let answers = vec![
        redirect,
        refused(401, &json!({ "error": format!("bad key {KEY}") })),
        typed("application/json", vec![b' '; 3 << 20]),
        says(Form::Chat, &"x".repeat(100_000)),
    ];
    let (said, server) = asked(Form::Chat, answers).await;
    assert_eq!(server.asked().len(), 4, "a redirect was followed");
    for answer in said {
        let Err(NoReview::Failed(why)) = answer else { panic!("{answer:?}") };
        assert!(!why.contains("hush") && !why.contains("elsewhere"), "{why}");
    }
}

#[tokio::test]
async fn r22_an_essay_around_the_object_reaches_the_reader_whole_and_is_no_answer() {
    let essay = format!("The action is harmless.\n```json\n{ALLOW}\n```");
    let (said, _server) = asked(Form::Chat, vec![says(Form::Chat, &essay)]).await;
    let Ok(text) = &said[0] else { panic!("{said:?}") };
    assert_eq!(*text, essay);
    assert!(Assessment::parse(text).is_err());
}

#[tokio::test]
async fn without_its_key_nothing_is_sent() {
    let server = HttpServer::start(|_| async { None });
    let endpoint = Endpoint {
        url: server.url().parse().unwrap(),
        form: Form::Chat,
        model: "m".to_owned(),
        key_env: Some("KEY".to_owned()),
    };
    let reviewer = HttpReviewer::new(endpoint, client_builder, |_| None);
    assert!(
        matches!(reviewer.review(&request()).await, Err(NoReview::Failed(why)) if why.contains("`KEY` is not set"))
    );
    assert!(server.asked().is_empty());
}

async fn run(program: &str, script: &str) -> Result<String, NoReview> {
    let program = Program {
        program: program.into(),
        args: vec!["-c".to_owned(), script.to_owned()],
        folder: std::env::temp_dir(),
        key_env: Some("KEY".to_owned()),
        bound: Default::default(),
    };
    let variable = |name: &str| if name == "KEY" { Some(KEY.to_owned()) } else { std::env::var(name).ok() };
    CommandReviewer::new(program, variable).review(&request()).await
}

#[tokio::test]
async fn a_program_reads_instructions_and_action_and_its_output_is_the_answer() {
    let said = run("/bin/sh", "cat").await.unwrap();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said, json!({ "action": { "server": "s" }, "instructions": "judge" }));
    assert_eq!(run("/bin/sh", "printf %s \"$KEY\"").await.as_deref(), Ok(KEY));
    // One that reads nothing, and leaves something behind that holds its output.
    assert_eq!(run("/bin/sh", "sleep 1000 & echo '{}'").await.as_deref(), Ok("{}\n"));
}

#[tokio::test]
async fn a_program_that_floods_fails_or_is_missing_is_a_failure() {
    let cases = [
        ("/bin/sh", "exec yes", "more than 65536 bytes"),
        ("/bin/sh", "echo \"no $KEY\" >&2; exit 3", "stderr: no <key>"),
        ("/no/such/program", "", "no such program"),
    ];
    for (program, script, wanted) in cases {
        let Err(NoReview::Failed(why)) = run(program, script).await else { panic!("{script}") };
        assert!(why.contains(wanted) && !why.contains("hush"), "{why}");
    }
    assert!(matches!(run("/bin/sh", "exit 75").await, Err(NoReview::Transient(_))));
}
