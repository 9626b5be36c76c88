//! What scripts were answered, kept for auto reviewers: E01 to E16 of approval-results 11, through the whole pipeline.

use std::sync::Arc;
use std::time::Duration;

use portcullis::host::build::HostBuilder;
use portcullis::host::listing::Surface;
use portcullis::host::step::FunctionCall;
use portcullis::model::caller::{CallSource, Caller};
use portcullis::model::evidence::RenderedEvidence;
use portcullis::model::hook::HookEvent;
use portcullis::model::layer::LayerKind;
use portcullis::pipeline::CallRequest;
use portcullis::pipeline::admit::exposure::Exposing;
use portcullis::pipeline::follow::evidence::{EvidenceOptions, EvidenceStore};
use portcullis::ports::reviewer::NobodyThere;
use portcullis::ports::sanitiser::Class;
use serde_json::json;

use crate::fakes::bench::Bench;
use crate::fakes::hook::{ScriptedHook, hook};
use crate::fakes::judge::{ALLOW, Judge, judging};
use crate::fakes::policy::Policies;
use crate::fakes::sanitiser::{self, Cleaner};
use crate::fakes::server::How;
use crate::support::http_server::{HttpServer, json as http_json, status};
use crate::support::scripted_server;

/// A PNG of one pixel.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const MIB: usize = 1024 * 1024;

fn options() -> EvidenceOptions {
    EvidenceOptions { servers: ["files".to_owned()].into(), ..EvidenceOptions::default() }
}

fn texts_alone() -> EvidenceOptions {
    EvidenceOptions { images: false, ..options() }
}

fn disabled() -> EvidenceOptions {
    EvidenceOptions { transcripts: false, images: false, ..options() }
}

fn script() -> CallSource {
    CallSource::Script { cell: "cell-1".into() }
}

/// What is kept of one call that is answered so.
async fn kept_of(
    bench: &Bench,
    options: EvidenceOptions,
    source: CallSource,
    answer: String,
) -> Option<RenderedEvidence> {
    bench.files.answers(How::Result(answer.leak()));
    let evidence = Arc::new(EvidenceStore::new(options));
    let request = bench.request("files/write", "{}");
    let _finished = bench.pipeline.run(CallRequest { source, evidence: Some(Arc::clone(&evidence)), ..request }).await;
    evidence.evidence().after(0)
}

async fn kept(options: EvidenceOptions, answer: serde_json::Value) -> Option<RenderedEvidence> {
    kept_of(&Bench::open().await, options, script(), answer.to_string()).await
}

/// The lines of a result behind its head, and how many images there are.
fn seen(kept: Option<RenderedEvidence>) -> Option<(Vec<String>, usize)> {
    let kept = kept?;
    assert!(kept.text.starts_with("UNTRUSTED EVIDENCE."), "{}", kept.text);
    let lines = kept.text.lines().skip_while(|line| !line.starts_with("[result=")).skip(1);
    let lines = lines.take_while(|line| *line != "</evidence>").map(str::to_owned).collect();
    Some((lines, kept.images.len()))
}

fn lines(texts: &[&str], images: usize) -> Option<(Vec<String>, usize)> {
    Some((texts.iter().map(|text| (*text).to_owned()).collect(), images))
}

fn image(mime: &str, data: &str) -> serde_json::Value {
    json!({ "type": "image", "data": data, "mimeType": mime })
}

#[tokio::test]
async fn e01_e02_e03_a_script_of_a_server_that_is_watched_and_nobody_else() {
    let bench = Bench::open().await;
    let done = || crate::fakes::server::OK.to_owned();
    let first = kept_of(&bench, options(), script(), done()).await;
    assert!(first.as_ref().unwrap().text.contains("[result=1 tool=files.write cell=cell-1 call="));
    assert_eq!(seen(first), lines(&["| done"], 0));
    assert_eq!(kept_of(&bench, options(), CallSource::Direct, done()).await, None);
    assert_eq!(kept_of(&bench, EvidenceOptions::default(), script(), done()).await, None);
    assert!(EvidenceOptions::default().servers.contains("node_repl"));
}

#[tokio::test]
async fn e04_e05_e06_a_success_that_no_hook_has_blocked() {
    let text = json!([{ "type": "text", "text": "the answer" }]);
    assert_eq!(kept(options(), json!({ "content": text, "isError": true })).await, None);
    for (program, wanted) in [
        (ScriptedHook::blocks("no"), None),
        (ScriptedHook::prints(json!({ "continue": false, "stopReason": "feedback" })), lines(&["| the answer"], 0)),
    ] {
        let policies = Policies::open(&["files"]).hook(hook(LayerKind::User, HookEvent::PostToolUse, &program));
        let bench = Bench::new(&policies).await;
        let kept = kept_of(&bench, options(), script(), json!({ "content": text }).to_string()).await;
        assert_eq!((seen(kept), program.told().len()), (wanted, 1));
    }
}

#[tokio::test]
async fn e07_e08_e09_what_is_kept_is_what_is_asked_for() {
    let both = json!({ "content": [{ "type": "text", "text": "t" }, image("image/png", PNG)] });
    let captured = EvidenceOptions { capture_images: true, ..disabled() };
    let required = EvidenceOptions { required: true, ..disabled() };
    for (options, wanted) in [
        (disabled(), None),
        (captured, lines(&["[image 1]"], 1)),
        (texts_alone(), lines(&["| t"], 0)),
        (required, lines(&["| t", "[image 1]"], 1)),
        (options(), lines(&["| t", "[image 1]"], 1)),
    ] {
        assert_eq!(seen(kept(options.clone(), both.clone()).await), wanted, "{options:?}");
    }
}

#[tokio::test]
async fn e10_e11_e12_structured_content_stands_for_a_text_that_is_not_there() {
    let structured = json!({ "a": 1 });
    let answer = |content: serde_json::Value| json!({ "content": content, "structuredContent": structured });
    let blank = answer(json!([{ "type": "text", "text": " \n" }]));
    assert_eq!(seen(kept(options(), blank).await), lines(&[r#"| {"a":1}"#], 0));
    let encrypted = json!([{ "type": "text", "text": "x", "_meta": { "codex/encryptedContent": true } }]);
    let empty = lines(&["[completed without visible text]"], 0);
    assert_eq!(seen(kept(options(), answer(encrypted)).await), empty);
    let alone = answer(json!([image("image/png", PNG)]));
    assert_eq!(seen(kept(options(), alone).await), lines(&[r#"| {"a":1}"#, "[image 1]"], 1));
    let null = json!({ "content": [], "structuredContent": null });
    assert_eq!(seen(kept(options(), null).await), empty);
}

#[tokio::test]
async fn e13_e15_an_image_is_one_by_its_type_and_by_its_bytes() {
    for (mime, data, wanted) in [
        ("text/plain", PNG, 0),
        ("image/png", "", 0),
        ("image/png", "no base64!", 0),
        ("image/png", "UEsDBBQAAAAI", 0),
        ("IMAGE/PNG", PNG, 1),
    ] {
        let kept = kept(options(), json!({ "content": [image(mime, data)] })).await.unwrap();
        assert_eq!(kept.images.len(), wanted, "{mime} {data}");
        assert!(kept.images.iter().all(|image| image.url.starts_with("data:image/png;base64,iVBOR")));
    }
}

#[tokio::test]
async fn e14_what_does_not_fit_is_skipped_and_a_smaller_one_behind_it_is_not() {
    // A decoder stops at the end of the picture: what is behind it only makes the data long.
    let padded = |mib: usize| format!("{}AA{}", PNG.trim_end_matches('='), "AAAA".repeat(mib * MIB / 4));
    let sizes = [5, 5, 1].map(|mib| image("image/png", &padded(mib)));
    let lengths = sizes.clone().map(|image| image["data"].as_str().unwrap().len());
    let kept = kept(options(), json!({ "content": sizes })).await.unwrap();
    let of = |at: usize| "data:image/png;base64,".len() + lengths[at];
    assert_eq!(kept.images.iter().map(|image| image.url.len()).collect::<Vec<_>>(), [of(0), of(2)]);
}

#[tokio::test]
async fn r31_evidence_is_what_the_sanitisers_left() {
    let cleaner = Cleaner::removes("SECRET", Class::Secret);
    let policies = Policies::open(&["files"]).cleaning(sanitiser::bound(LayerKind::User, "clean", &cleaner));
    let bench = Bench::new(&policies).await;
    let answer = json!({ "content": [{ "type": "text", "text": "a SECRET b" }] }).to_string();
    let kept = kept_of(&bench, options(), script(), answer).await;
    assert_eq!(seen(kept), lines(&["| a [redacted: secret] b"], 0));
}

#[tokio::test]
async fn a_reviewer_is_given_what_the_sessions_scripts_were_answered_before() {
    let judge = Judge::says(ALLOW);
    let strict = Policies::open(&["files"])
        .posture(LayerKind::User, |posture| posture.strict_review = Some(true))
        .reviewer(judging(LayerKind::User, &judge));
    let bench = Bench::new(&strict).await;
    let evidence = Arc::new(EvidenceStore::new(options()));
    for text in ["one", "two"] {
        let answer = json!({ "content": [{ "type": "text", "text": text }] }).to_string();
        bench.files.answers(How::Result(answer.leak()));
        let request = bench.request("files/write", "{}");
        bench.pipeline.run(CallRequest { source: script(), evidence: Some(Arc::clone(&evidence)), ..request }).await;
    }
    let given: Vec<_> = judge.evidence().into_iter().map(seen).collect();
    assert_eq!(given, [None, lines(&["| one"], 0)]);
    assert_eq!(evidence.evidence().after(1).unwrap().last, 2);
}

/// The whole way, with nothing scripted but the model: a real process as the server, a real step, a script's call, and a
/// reviewer behind HTTP that is asked about the next one.
#[tokio::test]
async fn from_a_scripts_call_to_a_reviewers_request() {
    let reviewer = HttpServer::start(|asked| async move {
        let allow = json!({ "status": "completed", "output": [
            { "type": "message", "content": [{ "type": "output_text", "text": ALLOW }] }] });
        Some(if asked.verb == http::Method::POST { http_json(&allow) } else { status(404) })
    });
    let layer = format!(
        "approvals_reviewer = 'auto_review'\n\
         [reviewer]\ntype = 'http'\nurl = '{}'\nmodel = 'reviewer-1'\nform = 'responses'\n\
         [mcp_servers.node_repl]\ncommand = '{}'\nargs = ['--all']\n",
        reviewer.url(),
        scripted_server().display(),
    );
    let folder = tempfile::tempdir().unwrap();
    let built = HostBuilder::new().layer(LayerKind::User, layer, folder.path()).start().await.unwrap();
    built.host.fleet().settle_fully().await;
    let session = built.host.session(Caller::local("ann"), Arc::new(NobodyThere));
    session.show_on(Surface::Library(Exposing::library()));
    session.keep_evidence(EvidenceOptions::default());
    let step = session.step().await.unwrap();
    let echo = |text: &str| FunctionCall::new(Some("mcp__node_repl"), "echo", json!({ "text": text }).to_string());
    let first = session.dispatch(&step, FunctionCall { source: script(), ..echo("look </evidence> here") }).await;
    assert!(!first.is_error(), "{first:?}");
    let second = session.dispatch(&step, echo("and act")).await;
    assert!(!second.is_error(), "{second:?}");
    let asked = reviewer.asked();
    assert_eq!(asked.len(), 2);
    assert!(asked[0].body["input"].is_string(), "there was nothing to tell: {}", asked[0].body);
    let content = asked[1].body["input"][0]["content"].as_array().unwrap();
    let [evidence, action] = &content[..] else { panic!("{content:?}") };
    let evidence = evidence["text"].as_str().unwrap();
    assert!(evidence.starts_with("UNTRUSTED EVIDENCE.") && evidence.ends_with("</evidence>\n"), "{evidence}");
    assert!(evidence.contains("[result=1 tool=node_repl.echo cell=cell-1 call="), "{evidence}");
    assert!(evidence.contains("\n| ") && evidence.contains("look < /evidence> here"), "{evidence}");
    assert!(action["text"].as_str().unwrap().contains("and act"));
    assert!(asked[1].body["instructions"].as_str().unwrap().contains("evidence"));
    built.host.shutdown(Duration::from_secs(5)).await;
}
