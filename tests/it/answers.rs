//! One clean answer and what each reader gets of it: media that the model cannot take, views, items, and answers that mean
//! harm. What real servers answer is at the end.

use std::sync::Arc;
use std::time::Duration;

use portcullis::model::item::Status;
use portcullis::model::layer::LayerKind;
use portcullis::model::media::{LeftOut, Media, Modalities, Modality};
use portcullis::model::outcome::{Code, Outcome};
use portcullis::pipeline::emit::views::event;
use portcullis::pipeline::emit::views::hook::HookView;
use portcullis::pipeline::emit::views::model::{BodyItem, ModelBody, ModelView, ModelViewOptions};
use portcullis::pipeline::emit::views::script::ScriptView;
use portcullis::pipeline::{CallRequest, Finished};
use portcullis::ports::sanitiser::Class;
use serde_json::{Value, json};

use crate::fakes::bench::Bench;
use crate::fakes::policy::{Policies, Scripted, deny};
use crate::fakes::sanitiser::{Cleaner, bound};
use crate::fakes::server::How;

fn open() -> Policies {
    Policies::open(&["files"])
}

/// A server's answer that is made by the test.
fn how(value: &Value) -> How {
    How::Result(value.to_string().leak())
}

async fn call(bench: &Bench, takes: Modalities) -> Finished {
    bench.pipeline.run(CallRequest { takes, ..bench.request("files/write", "{}") }).await
}

async fn answered(policies: &Policies, value: &Value) -> (Bench, Finished) {
    let bench = Bench::new(policies).await;
    bench.files.answers(how(value));
    let finished = call(&bench, Modalities::ALL).await;
    (bench, finished)
}

async fn read(finished: &Finished) -> ModelView {
    ModelView::of(&finished.clean, Duration::ZERO, &ModelViewOptions::default()).await
}

fn spelled(view: &ModelView) -> String {
    serde_json::to_string(view).unwrap()
}

fn item_result(finished: &Finished) -> String {
    Value::Object((**finished.item.result.as_ref().unwrap()).clone()).to_string()
}

fn no_image() -> &'static str {
    LeftOut::NotTaken.placeholder(Media::Image)
}

#[tokio::test(start_paused = true)]
async fn c5_media_that_the_model_cannot_take_is_text_for_everybody_who_sees_the_answer() {
    let cleaner = Cleaner::passes();
    let bench = Bench::new(&open().cleaning(bound(LayerKind::User, "looks", &cleaner))).await;
    for is_error in [false, true] {
        let image = json!({ "type": "image", "data": "SECRETPICTURE", "mimeType": "image/png" });
        bench.files.answers(how(&json!({ "content": [image], "isError": is_error, "structuredContent": { "x": 1 } })));
        let finished = call(&bench, Modalities::TEXT).await;
        // The call ended as its server says (founding text 7.4).
        let (outcome, status) =
            if is_error { (Outcome::ToolError, Status::Failed) } else { (Outcome::Answered, Status::Completed) };
        assert_eq!((finished.clean.outcome(), finished.item.status), (&outcome, status));
        assert!(cleaner.last().iter().any(|target| &*target.text == no_image()));
        let mut seen = vec![
            format!("{:?}", cleaner.last()),
            ScriptView::of(&finished.clean).text(),
            item_result(&finished),
            Value::Object(finished.clean.served().value().clone()).to_string(),
        ];
        seen.extend(HookView::of(&finished.clean).map(|view| view.into_response().to_string()));
        assert_eq!(seen.len(), if is_error { 4 } else { 5 });
        for text in seen {
            assert!(!text.contains("SECRETPICTURE") && text.contains(no_image()), "{text}");
        }
        let whole = call(&bench, Modalities::of([Modality::Image])).await;
        assert!(ScriptView::of(&whole.clean).text().contains("SECRETPICTURE"));
    }
}

#[tokio::test(start_paused = true)]
async fn l01_to_l04_an_item_shows_the_result_or_a_sentence() {
    let bench = Bench::new(&open()).await;
    let result = json!({ "content": [{ "type": "text", "text": "a" }], "_meta": { "m": 1 } });
    bench.files.answers(how(&result));
    let finished = bench.write().await;
    assert_eq!(item_result(&finished), result.to_string());
    assert_eq!((finished.item.status, &finished.item.error), (Status::Completed, &None));

    bench.files.answers(How::Result(r#"{"content":[],"isError":true}"#));
    let finished = bench.write().await;
    assert_eq!(item_result(&finished), r#"{"content":[],"isError":true}"#);
    assert_eq!((finished.item.status, &finished.item.error), (Status::Failed, &None));

    bench.files.answers(How::Protocol(-32000, "it is closed"));
    let finished = bench.write().await;
    let error = finished.item.error.clone().unwrap().message;
    assert_eq!(error, "tool call error: it is closed");
    assert_eq!((finished.item.status, &finished.item.result), (Status::Failed, &None));
}

#[tokio::test(start_paused = true)]
async fn l08_to_l14_a_call_without_an_answer_has_an_error_in_its_item() {
    let refuses = Scripted::says(deny("no"));
    let bench = Bench::new(&open().with(LayerKind::User, "refuses", &refuses)).await;
    let finished = bench.write().await;
    let message = finished.item.error.clone().unwrap().message;
    assert_eq!(Some(message.as_str()), finished.item.failure().map(|failure| failure.message.as_str()));
    assert!(finished.item.result.is_none());
    let script = ScriptView::of(&finished.clean);
    assert!(script.is_error() && !script.value().contains_key("_meta") && script.text().contains(&message));
    assert!(HookView::of(&finished.clean).is_none());
}

#[tokio::test(start_paused = true)]
async fn r31_a_withheld_answer_is_an_error_in_an_item_that_keeps_the_upstreams_status() {
    let withholds = bound(LayerKind::User, "withholds", &Cleaner::withholds("all"));
    let result = json!({ "content": [{ "type": "text", "text": "CANARY7" }] });
    let (_, finished) = answered(&open().cleaning(withholds), &result).await;
    assert_eq!((finished.item.status, &finished.item.result), (Status::Completed, &None));
    let message = finished.item.error.clone().unwrap().message;
    assert!(message.contains("code withheld") && !message.contains("SECRET"), "{message}");
    assert!(!format!("{:?}{}", finished.item, spelled(&read(&finished).await)).contains("CANARY7"));
}

#[tokio::test(start_paused = true)]
async fn r28_what_a_sanitiser_removed_is_in_no_view() {
    let removes = bound(LayerKind::User, "removes", &Cleaner::removes("CANARY7", Class::Secret));
    let long = format!("{}CANARY7{}", "x".repeat(600_000), "y".repeat(600_000));
    let result = json!({
        "content": [{ "type": "text", "text": long }], "structuredContent": { "k": "CANARY7" }, "_meta": { "m": "CANARY7" },
    });
    let (_, finished) = answered(&open().cleaning(removes), &result).await;
    let views = [
        item_result(&finished),
        ScriptView::of(&finished.clean).text(),
        HookView::of(&finished.clean).unwrap().into_response().to_string(),
        spelled(&read(&finished).await),
    ];
    for view in &views {
        assert!(!view.contains("CANARY"), "a view of {} bytes", view.len());
    }
    assert!(views[1].contains("[redacted: secret]"));
}

#[tokio::test(start_paused = true)]
async fn content_of_unknown_type_is_json_for_the_model_and_stays_for_others() {
    let result = json!({ "content": [{ "type": "hologram", "data": "AAA" }, 7, null, { "type": 3 }] });
    let (_, finished) = answered(&open(), &result).await;
    assert_eq!(*finished.clean.outcome(), Outcome::Answered);
    assert_eq!(ScriptView::of(&finished.clean).text(), result.to_string());
    assert!(spelled(&read(&finished).await).contains("hologram"));
}

#[tokio::test(start_paused = true)]
async fn fifty_megabytes_in_one_block_are_bounded_where_they_must_be_and_whole_for_scripts() {
    let result = json!({ "content": [{ "type": "text", "text": "é".repeat(25 << 20) }] });
    let (_, finished) = answered(&open(), &result).await;
    assert_eq!(*finished.clean.outcome(), Outcome::Answered);
    let item = finished.item.result.clone().unwrap();
    let preview = item["content"][0]["text"].as_str().unwrap();
    assert!(preview.len() <= event::LIMIT + 64 && preview.contains("chars truncated…"));
    let model = spelled(&read(&finished).await);
    assert!(model.len() < 60_000 && model.contains("tokens truncated…"));
    assert_eq!(ScriptView::of(&finished.clean).content()[0]["text"].as_str().unwrap().len(), 50 << 20);
}

#[tokio::test(start_paused = true)]
async fn a_hundred_thousand_blocks_are_bounded_and_counted() {
    let mut blocks: Vec<Value> =
        (0..100_000).map(|n| json!({ "type": "text", "text": format!("block {n}") })).collect();
    blocks.push(json!({ "type": "image", "data": "AAA", "mimeType": "image/png" }));
    let (_, finished) = answered(&open(), &json!({ "content": blocks })).await;
    assert_eq!(*finished.clean.outcome(), Outcome::Answered);
    let ModelBody::Items(items) = read(&finished).await.answer().body.clone() else { panic!("no items") };
    let bytes: usize = items
        .iter()
        .map(|item| match item {
            BodyItem::InputText { text } => text.len(),
            other => panic!("{other:?}"),
        })
        .sum();
    assert!(bytes < 12_000 * 4 + 128, "{bytes}");
    let Some(BodyItem::InputText { text }) = items.last() else { panic!("no text") };
    assert!(text.starts_with("[omitted ") && text.ends_with(" text items ...]"), "{text}");
    assert_eq!(finished.item.result.unwrap()["content"].as_array().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_breaks_its_own_schema_is_shown_as_it_is() {
    let result = json!({ "content": [], "structuredContent": { "n": "no number" } });
    let bench = Bench::new(&open()).await;
    let definition = json!({
        "name": "write", "inputSchema": { "type": "object" },
        "outputSchema": { "type": "object", "properties": { "n": { "type": "number" } } },
    });
    bench.redefine(&bench.files, vec![definition.to_string()]).await;
    bench.files.answers(how(&result));
    let finished = bench.write().await;
    // The server said so; nobody here edited it (R29 is about edits).
    assert_eq!(*finished.clean.outcome(), Outcome::Answered);
    assert_eq!(ScriptView::of(&finished.clean).text(), result.to_string());
}

#[tokio::test(start_paused = true)]
async fn bad_media_is_a_placeholder_for_the_model_and_no_failure_of_the_call() {
    let media = |kind: &str, data: &str| json!({ "type": kind, "data": data, "mimeType": format!("{kind}/png") });
    // A zip, no base64 at all, and an address.
    let datas = ["UEsDBBQAAAAI", "!!!", "https://elsewhere.example/a.png"];
    for kind in ["image", "audio"] {
        let blocks: Vec<Value> = datas.iter().map(|data| media(kind, data)).collect();
        let (_, finished) = answered(&open(), &json!({ "content": blocks })).await;
        assert_eq!((finished.clean.outcome(), finished.item.status), (&Outcome::Answered, Status::Completed));
        let view = read(&finished).await;
        assert!(view.answer().success);
        let ModelBody::Items(items) = &view.answer().body else { panic!("no items") };
        let texts: Vec<Value> = items.iter().skip(1).map(|item| serde_json::to_value(item).unwrap()).collect();
        let unreadable = format!("<{kind} content omitted because it could not be processed>");
        let remote = format!("<{kind} content omitted because remote {kind} URLs are not supported>");
        let wanted = [&unreadable, &unreadable, &remote].map(|text| json!({ "type": "input_text", "text": text }));
        assert_eq!(texts, wanted);
    }
}

#[tokio::test(start_paused = true)]
async fn an_unknown_tool_is_no_matter_of_media() {
    let bench = Bench::new(&open()).await;
    let request = CallRequest { takes: Modalities::TEXT, ..bench.request("files/nothing", "{}") };
    let finished = bench.pipeline.run(request).await;
    assert_eq!(finished.item.failure().map(|failure| failure.code), Some(Code::NotAvailable));
    assert!(finished.item.error.is_some());
}

#[tokio::test]
async fn one_answer_with_everything_reaches_three_kinds_of_models() {
    let png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    // The head of a WAV, and silence.
    let wav = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA=";
    let resource = json!({ "uri": "file:///a", "text": "embedded" });
    let answer = json!({ "content": [
        { "type": "text", "text": "said", "annotations": { "priority": 1.0 } },
        { "type": "image", "data": png, "mimeType": "image/png" },
        { "type": "audio", "data": wav, "mimeType": "audio/wav" },
        { "type": "resource", "resource": resource },
        { "type": "resource_link", "uri": "file:///b", "name": "linked" },
    ] });
    let bench = Bench::new(&open()).await;
    bench.files.answers(how(&answer));
    let image = Modalities::of([Modality::Image]);
    for (takes, wanted) in [
        (Modalities::TEXT, vec![]),
        (image, vec!["input_text", "input_text", "input_image", "input_text", "input_text", "input_text"]),
        (Modalities::ALL, vec!["input_text", "input_text", "input_image", "input_audio", "input_text", "input_text"]),
    ] {
        let finished = call(&bench, takes).await;
        assert_eq!(*finished.clean.outcome(), Outcome::Answered);
        let body = serde_json::to_value(&read(&finished).await.answer().body).unwrap();
        let kinds: Vec<&str> =
            body.as_array().into_iter().flatten().map(|item| item["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, wanted, "{body}");
        let body = body.to_string();
        assert_eq!(body.contains(LeftOut::NotTaken.placeholder(Media::Image)), !takes.images);
        assert_eq!(body.contains(LeftOut::NotTaken.placeholder(Media::Audio)), !takes.audio);
        assert!(body.contains("said") && body.contains("embedded") && body.contains("linked"), "{body}");
    }
}

mod real {
    //! What `server-everything` answers, for models that take more and less.

    use portcullis::host::build::HostBuilder;
    use portcullis::host::session::{Session, SessionCall};
    use portcullis::host::user::local_caller;
    use portcullis::model::name::{Target, ToolRef};
    use portcullis::ports::reviewer::NobodyThere;

    use super::*;
    use crate::support::installed::Installed;

    const SERVER: &str = "npm/node_modules/@modelcontextprotocol/server-everything/dist/index.js";
    const NODE: &str = "npm/node_modules/.bin/node";

    async fn shown(session: &Session, takes: Modalities, tool: &str, arguments: &str) -> (Finished, Value) {
        let target = Target::from(ToolRef::parse(&format!("everything/{tool}")).unwrap());
        let call = SessionCall { takes: Some(takes), ..SessionCall::new(target, arguments) };
        let finished = session.call(call).await;
        assert_eq!(*finished.clean.outcome(), Outcome::Answered, "{tool}: {:?}", finished.item.outcome);
        let view = read(&finished).await;
        assert!(view.answer().success);
        let body = serde_json::to_value(&view.answer().body).unwrap();
        (finished, body)
    }

    fn kinds(body: &Value) -> Vec<&str> {
        let Some(items) = body.as_array() else { return vec!["text"] };
        items.iter().map(|item| item["type"].as_str().unwrap()).collect()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn answers_of_server_everything_reach_three_kinds_of_models() {
        let Some(installed) = Installed::with(&[NODE, SERVER]) else { return };
        let layer = format!(
            "[mcp_servers.everything]\ncommand = {:?}\nargs = [{:?}]\ndefault_tools_approval_mode = \"approve\"\n\
             required = true\nstartup_timeout_sec = 60\n",
            installed.file(NODE),
            installed.file(SERVER),
        );
        let built = HostBuilder::new().layer(LayerKind::User, layer, installed.folder()).start().await.unwrap();
        let session = built.host.session(local_caller(), Arc::new(NobodyThere));
        let models = [Modalities::TEXT, Modalities::of([Modality::Image]), Modalities::ALL];
        for takes in models {
            let (finished, body) = shown(&session, takes, "get-tiny-image", "{}").await;
            let script = ScriptView::of(&finished.clean).text();
            if takes.images {
                assert!(kinds(&body).contains(&"input_image"), "{body}");
                let url = body.as_array().unwrap().iter().find_map(|item| item["image_url"].as_str()).unwrap();
                assert!(url.starts_with("data:image/png;base64,iVBOR"), "{url}");
                assert!(script.contains(r#""type":"image""#));
            } else {
                assert_eq!(kinds(&body), ["text"]);
                assert!(body.as_str().unwrap().contains(no_image()) && script.contains(no_image()));
                assert!(!script.contains("iVBOR"));
            }
            let annotated = r#"{"messageType":"success","includeImage":true}"#;
            let (_, body) = shown(&session, takes, "get-annotated-message", annotated).await;
            assert_eq!(kinds(&body).contains(&"input_image"), takes.images, "{body}");

            let (_, body) = shown(&session, takes, "get-structured-content", r#"{"location":"Chicago"}"#).await;
            let text = body.as_str().unwrap().split_once("Output:\n").unwrap().1;
            let structured: Value = serde_json::from_str(text).unwrap();
            assert!(structured.get("temperature").is_some(), "{structured}");

            let (_, body) = shown(&session, takes, "get-resource-links", r#"{"count":2}"#).await;
            assert_eq!(body.as_str().unwrap().matches("resource_link").count(), 2, "{body}");
            let reference = r#"{"resourceType":"Text","resourceId":1}"#;
            let (_, body) = shown(&session, takes, "get-resource-reference", reference).await;
            assert!(body.as_str().unwrap().contains(r#""type":"resource""#), "{body}");
        }
        built.host.shutdown(Duration::from_secs(1)).await;
    }
}
