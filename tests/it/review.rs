//! Auto reviewers that answer slowly, wrongly or not at all: over HTTP in both forms, and as programs.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::response::Response;
use parking_lot::Mutex;
use portcullis::adapters::review::{CommandReviewer, Endpoint, HttpReviewer, Program};
use portcullis::config::reviewer::Form;
use portcullis::host::network::client_builder;
use portcullis::model::evidence::Evidence;
use portcullis::model::layer::LayerKind;
use portcullis::model::outcome::Code;
use portcullis::model::posture::Reviewer as Answers;
use portcullis::model::review::{Assessment, ReviewSaid};
use portcullis::pipeline::consent::review::{self, Action, DEADLINE, Panel, Reviewed};
use portcullis::ports::review::{AutoReviewer, BoundReviewer, NoReview, ReviewRequest};
use serde_json::json;

use crate::fakes::bench::{Bench, failed};
use crate::fakes::judge::{Judge, judging};
use crate::fakes::policy::Policies;
use crate::support::eventually;
use crate::support::http_server::{HttpServer, fed, json, piece, refused, status, typed};

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

fn http(server: &HttpServer, form: Form) -> BoundReviewer {
    let url = server.url().parse().unwrap();
    let endpoint = Endpoint { url, form, model: "m".to_owned(), key_env: Some("KEY".to_owned()) };
    let reviewer = HttpReviewer::new(endpoint, client_builder, |name| (name == "KEY").then(|| KEY.to_owned()));
    BoundReviewer { reviewer: Ok(Arc::new(reviewer)), ..judging(LayerKind::User, &Judge::says(ALLOW)) }
}

/// What one of these reviewers alone makes of an action.
async fn reviewed(reviewer: BoundReviewer) -> review::Outcome {
    let breaker = Default::default();
    let panel = Panel { reviewers: &[reviewer], breaker: &breaker, client: None, evidence: Evidence::default() };
    review::review(&panel, &BTreeSet::new(), &Action { text: r#"{"server":"s"}"#.into(), cut: false }).await
}

/// Reviews, and lets the whole time of a review pass once the server has been asked.
async fn out_of_time(server: &HttpServer, form: Form) -> review::Outcome {
    let review = tokio::spawn(reviewed(http(server, form)));
    eventually("the server is asked", || (!server.asked().is_empty()).then_some(())).await;
    // From here on nothing but time happens.
    tokio::time::pause();
    tokio::time::advance(DEADLINE).await;
    let outcome = review.await.unwrap();
    tokio::time::resume();
    outcome
}

#[tokio::test]
async fn g4_a_server_that_is_slow_to_begin_or_to_end_its_answer_is_out_of_time() {
    for form in [Form::Responses, Form::Chat] {
        let silent = HttpServer::start(|_| std::future::pending());
        let begun = HttpServer::start(move |_| {
            let (feed, response) = fed("application/json");
            feed.send(piece(r#"{"status":"completed","output":["#)).unwrap();
            // Neither ends nor breaks off.
            std::mem::forget(feed);
            async { Some(response) }
        });
        for server in [silent, begun] {
            let outcome = out_of_time(&server, form).await;
            assert_eq!(outcome.reviewed, Reviewed::TimedOut, "{form}");
            let [voice] = &outcome.voices[..] else { panic!() };
            assert_eq!((&voice.said, voice.attempts), (&ReviewSaid::TimedOut, 1));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn r22_g6_nothing_that_a_hostile_server_answers_is_an_allow_but_the_exact_object() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for form in [Form::Responses, Form::Chat] {
        let deep = deep.clone();
        let hostile: Vec<Box<dyn Fn() -> Response + Send + Sync>> = vec![
            Box::new(move || says(form, r#"{"outcome":"deny","outcome":"allow"}"#)),
            Box::new(move || says(form, r#"{"outcome":"ALLOW"}"#)),
            Box::new(move || says(form, r#"{"outcome":"allow","also":{"outcome":"allow"}}"#)),
            Box::new(move || says(form, &format!("{ALLOW}\n{ALLOW}"))),
            Box::new(move || says(form, &format!("```\n{ALLOW}\n```"))),
            Box::new(move || says(form, "{\"outcome\":\"allow\"}\u{0}")),
            Box::new(|| json(&json!({ "outcome": "allow" }))),
            Box::new(|| json(&json!({ "output_text": ALLOW, "error": ALLOW, "message": { "content": ALLOW } }))),
            Box::new(|| typed("text/html", format!("<pre>{ALLOW}</pre>"))),
            Box::new(move || typed("application/json", deep.clone().into_bytes())),
            Box::new(|| typed("application/json", &b"\xff\xfe{}"[..])),
            Box::new(|| status(204)),
            Box::new(|| refused(403, &json!({ "outcome": "allow" }))),
        ];
        for (at, answer) in hostile.into_iter().enumerate() {
            let server = HttpServer::start(move |_| std::future::ready(Some(answer())));
            let outcome = reviewed(http(&server, form)).await;
            assert_eq!(outcome.reviewed, Reviewed::Failed, "{form}, answer {at}: {:?}", outcome.voices);
        }
        let server = HttpServer::start(move |_| std::future::ready(Some(says(form, ALLOW))));
        assert_eq!(reviewed(http(&server, form)).await.reviewed, Reviewed::Allowed);
    }
}

/// Keeps what is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// All that is kept, shown and logged of a call that this reviewer judges.
async fn traces(reviewer: BoundReviewer) -> (Option<Code>, String) {
    let log = Log::default();
    let writer = log.clone();
    let logging =
        tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(move || writer.clone()).finish();
    let _logging = tracing::subscriber::set_default(logging);
    let policies = Policies::new().posture(LayerKind::User, |posture| posture.reviewer = Some(Answers::AutoReview));
    let bench = Bench::new(&policies.reviewer(reviewer)).await;
    let finished = bench.write().await;
    let code = finished.item.failure().map(|_| failed(&finished).1);
    let kept = format!("{finished:?}\n{:?}\n{:?}", bench.tape.decisions(), bench.tape.completed());
    let logged = String::from_utf8_lossy(&log.0.lock()).into_owned();
    assert!(
        logged.contains("hyper") || logged.contains("reqwest") || logged.contains("portcullis"),
        "nothing was logged"
    );
    (code, kept + &logged)
}

#[tokio::test]
async fn the_key_is_in_no_log_no_record_and_no_error_whatever_the_server_makes_of_it() {
    for form in [Form::Responses, Form::Chat] {
        let echo = move |key: &str| says(form, &json!({ "outcome": "deny", "rationale": key }).to_string());
        let denied = HttpServer::start(move |asked| {
            let key = asked.header("authorization").unwrap().to_owned();
            assert!(key.ends_with(KEY), "the server was not given the key");
            std::future::ready(Some(echo(&key)))
        });
        let unauthorised = HttpServer::start(|_| {
            std::future::ready(Some(refused(401, &json!({ "error": format!("bad key {KEY}") }))))
        });
        let broken = HttpServer::start(|_| std::future::ready(Some(typed("application/json", KEY))));
        for (server, expected) in
            [(denied, Code::ReviewDenied), (unauthorised, Code::ReviewFailed), (broken, Code::ReviewFailed)]
        {
            let (code, traces) = traces(http(&server, form)).await;
            assert_eq!(code, Some(expected));
            assert!(!traces.contains(KEY), "{}", around(&traces));
        }
    }
    let says_it = Program {
        program: "/bin/sh".into(),
        args: vec!["-c".to_owned(), r#"echo "{\"outcome\":\"deny\",\"rationale\":\"$KEY\"}""#.to_owned()],
        folder: std::env::temp_dir(),
        key_env: Some("KEY".to_owned()),
        bound: Default::default(),
    };
    let variable = |name: &str| if name == "KEY" { Some(KEY.to_owned()) } else { std::env::var(name).ok() };
    let reviewer = Ok(Arc::new(CommandReviewer::new(says_it, variable)) as Arc<dyn AutoReviewer>);
    let (code, traces) = traces(BoundReviewer { reviewer, ..judging(LayerKind::User, &Judge::says(ALLOW)) }).await;
    assert_eq!(code, Some(Code::ReviewDenied));
    assert!(traces.contains("<key>") && !traces.contains(KEY), "{}", around(&traces));
}

/// Where the key stands, if it does.
fn around(traces: &str) -> &str {
    let at = traces.find(KEY).unwrap_or(0);
    traces.get(at.saturating_sub(200)..(at + 100).min(traces.len())).unwrap_or(traces)
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
    assert_eq!(run("/bin/sh", "printf %s \"${#KEY}\"").await, Ok(KEY.len().to_string()));
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
