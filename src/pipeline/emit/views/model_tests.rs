use futures::FutureExt as _;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::model::media::{Modalities, Modality};
use crate::pipeline::emit::media::fitted;

const H: &str = "Wall time: 1.2500 seconds\nOutput:";

/// A policy that cuts nothing, and media as it is: what the vectors hold is no real image.
const AMPLE: ModelViewOptions = ModelViewOptions {
    truncation: Policy::Tokens(10_000),
    original_detail: false,
    structured_replaces_images: false,
    media: None,
};

fn result(value: &Value) -> ToolResult {
    let Value::Object(map) = value.clone() else { panic!("not an object") };
    ToolResult::from_upstream(map, value.to_string().into())
}

fn shown(value: &Value, wall: Duration, options: &ModelViewOptions) -> ModelAnswer {
    // Without preparation there is nothing to wait for.
    render(&result(value), wall, options).now_or_never().expect("nothing is waited for").0
}

fn body(result: &Value, options: &ModelViewOptions) -> ModelBody {
    shown(result, Duration::from_millis(1250), options).body
}

fn content(blocks: &Value, options: &ModelViewOptions) -> ModelBody {
    body(&json!({ "content": blocks }), options)
}

fn after_header(text: &str) -> ModelBody {
    ModelBody::Text(format!("{H}\n{text}"))
}

fn items(items: impl IntoIterator<Item = BodyItem>) -> ModelBody {
    ModelBody::Items(items.into_iter().collect())
}

fn txt(text: &str) -> BodyItem {
    BodyItem::InputText { text: text.to_owned() }
}

fn img(url: &str, detail: Detail) -> BodyItem {
    BodyItem::InputImage { image_url: url.to_owned(), detail }
}

fn text(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

fn png() -> Value {
    json!({ "type": "image", "data": "AAA", "mimeType": "image/png" })
}

fn png_item() -> BodyItem {
    img("data:image/png;base64,AAA", Detail::High)
}

/// The item that an image block becomes.
fn image(block: &Value, options: &ModelViewOptions) -> BodyItem {
    let ModelBody::Items(mut items) = content(&json!([block]), options) else { panic!("no items for {block}") };
    assert_eq!(items.len(), 2);
    items.remove(1)
}

#[test]
fn p01_to_p03_content_without_media_is_its_own_json() {
    let one = r#"[{"text":"done","type":"text"}]"#;
    assert_eq!(content(&json!([text("done")]), &AMPLE), after_header(one));
    let two = r#"[{"text":"a","type":"text"},{"text":"b","type":"text"}]"#;
    assert_eq!(content(&json!([text("a"), text("b")]), &AMPLE), after_header(two));
    assert_eq!(content(&json!([]), &AMPLE), after_header("[]"));
}

#[test]
fn p04_to_p07_structured_content_replaces_text_unless_it_is_null() {
    let with = |structured: Value| body(&json!({ "content": [text("kept")], "structuredContent": structured }), &AMPLE);
    assert_eq!(with(json!({ "x": 1 })), after_header(r#"{"x":1}"#));
    assert_eq!(with(json!(null)), after_header(r#"[{"text":"kept","type":"text"}]"#));
    assert_eq!(with(json!("hi")), after_header("\"hi\""));
    assert_eq!(with(json!({})), after_header("{}"));
}

#[test]
fn p08_an_image_beside_structured_content_is_kept_unless_a_setting_drops_it() {
    let result = json!({ "content": [text("t"), png()], "structuredContent": { "x": 1 } });
    assert_eq!(body(&result, &AMPLE), items([txt(H), txt(r#"{"x":1}"#), png_item()]));
    let reference = ModelViewOptions { structured_replaces_images: true, ..AMPLE };
    assert_eq!(body(&result, &reference), after_header(r#"{"x":1}"#));
}

#[test]
fn p09_p10_media_makes_items_in_order() {
    let half = shown(&json!({ "content": [png()] }), Duration::from_millis(500), &AMPLE).body;
    assert_eq!(half, items([txt("Wall time: 0.5000 seconds\nOutput:"), png_item()]));
    let mixed = content(&json!([text("cap"), png(), text("end")]), &AMPLE);
    assert_eq!(mixed, items([txt(H), txt("cap"), png_item(), txt("end")]));
}

#[test]
fn p11_to_p14_only_a_lower_case_data_url_is_taken_as_it_is() {
    let with = |data: &str| image(&json!({ "type": "image", "data": data, "mimeType": "image/png" }), &AMPLE);
    assert_eq!(with("data:image/jpeg;base64,QQ=="), img("data:image/jpeg;base64,QQ==", Detail::High));
    // P13 deviates: an address is not presented as if it were data, and nothing is fetched.
    let remote = txt("<image content omitted because remote image URLs are not supported>");
    for address in ["https://e.x/a.png", "HTTP://e.x/a.png", "http://"] {
        assert_eq!(with(address), remote);
    }
    assert_eq!(
        with("DATA:image/png;base64,QQ=="),
        img("data:image/png;base64,DATA:image/png;base64,QQ==", Detail::High)
    );
    let untyped = image(&json!({ "type": "image", "data": "AAA" }), &AMPLE);
    assert_eq!(untyped, img("data:application/octet-stream;base64,AAA", Detail::High));
    let snake = image(&json!({ "type": "image", "data": "AAA", "mime_type": "image/gif" }), &AMPLE);
    assert_eq!(snake, img("data:image/gif;base64,AAA", Detail::High));
}

#[test]
fn p15_to_p18_detail_is_what_was_wished_where_the_model_can() {
    let detail = |wish: &str, original_detail| {
        let block =
            json!({ "type": "image", "data": "AAA", "mimeType": "image/png", "_meta": { "codex/imageDetail": wish } });
        match image(&block, &ModelViewOptions { original_detail, ..AMPLE }) {
            BodyItem::InputImage { detail, .. } => detail,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(detail("low", false), Detail::Low);
    assert_eq!(detail("original", false), Detail::High);
    assert_eq!(detail("original", true), Detail::Original);
    assert_eq!(detail("ultra", true), Detail::High);
}

#[test]
fn p19_audio_is_an_item() {
    let audio = BodyItem::InputAudio { audio_url: "data:audio/wav;base64,BBB".to_owned() };
    let block = json!({ "type": "audio", "data": "BBB", "mimeType": "audio/wav" });
    assert_eq!(content(&json!([block]), &AMPLE), items([txt(H), audio]));
}

#[test]
fn p20_p21_encrypted_content_wins_over_structured_content_only_if_it_says_true() {
    let block = |flag: bool| json!({ "type": "text", "text": "ENC", "_meta": { "codex/encryptedContent": flag } });
    let result = json!({ "content": [block(true)], "structuredContent": { "x": 1 } });
    let encrypted = BodyItem::EncryptedContent { encrypted_content: "ENC".to_owned() };
    assert_eq!(body(&result, &AMPLE), items([txt(H), encrypted]));
    let plain = r#"[{"_meta":{"codex/encryptedContent":false},"text":"ENC","type":"text"}]"#;
    assert_eq!(content(&json!([block(false)]), &AMPLE), after_header(plain));
}

#[test]
fn p22_to_p25_what_is_not_text_or_media_is_json() {
    let link = json!({ "type": "resource_link", "uri": "file:///a", "name": "a" });
    let link_json = r#"{"name":"a","type":"resource_link","uri":"file:///a"}"#;
    assert_eq!(content(&json!([link]), &AMPLE), after_header(&format!("[{link_json}]")));
    assert_eq!(content(&json!([link, png()]), &AMPLE), items([txt(H), txt(link_json), png_item()]));
    let resource = json!({ "type": "resource", "resource": { "uri": "file:///a", "text": "b" } });
    let resource_json = r#"{"resource":{"text":"b","uri":"file:///a"},"type":"resource"}"#;
    assert_eq!(content(&json!([resource, png()]), &AMPLE), items([txt(H), txt(resource_json), png_item()]));
    let broken = json!([{ "type": "image", "mimeType": "image/png" }]);
    assert_eq!(content(&broken, &AMPLE), after_header(r#"[{"mimeType":"image/png","type":"image"}]"#));
}

#[test]
fn p26_a_tools_error_shows_in_success_alone() {
    let failed = shown(&json!({ "content": [text("boom")], "isError": true }), Duration::from_millis(1250), &AMPLE);
    assert_eq!(failed.body, after_header(r#"[{"text":"boom","type":"text"}]"#));
    assert!(!failed.success);
    assert!(shown(&json!({ "content": [] }), Duration::ZERO, &AMPLE).success);
}

#[test]
fn p27_to_p29_media_that_the_model_cannot_take_becomes_text() {
    // The step before the view, as every call takes it.
    let read = |value: Value, takes| {
        let wall = Duration::from_millis(1250);
        render(&fitted(result(&value), takes), wall, &AMPLE).now_or_never().unwrap().0.body
    };
    let no_image = LeftOut::NotTaken.placeholder(Media::Image);
    let two = format!(r#"[{{"text":"{no_image}","type":"text"}},{{"text":"x","type":"text"}}]"#);
    assert_eq!(read(json!({ "content": [png(), text("x")] }), Modalities::TEXT), after_header(&two));
    let structured = json!({ "content": [png()], "structuredContent": { "x": 1 } });
    assert_eq!(read(structured, Modalities::TEXT), after_header(r#"{"x":1}"#));
    let audio = json!({ "type": "audio", "data": "BBB", "mimeType": "audio/wav" });
    let deaf = read(json!({ "content": [png(), audio] }), Modalities::of([Modality::Image]));
    assert_eq!(deaf, items([txt(H), png_item(), txt(LeftOut::NotTaken.placeholder(Media::Audio))]));
}

fn cut_to(policy: Policy) -> ModelViewOptions {
    ModelViewOptions { truncation: policy, ..AMPLE }
}

#[test]
fn p30_to_p32_a_text_body_is_cut_with_its_header() {
    let blocks = json!([text("abcdefghijklmnopqrstuvwxyz0123456789")]);
    let cut = |policy| match content(&blocks, &cut_to(policy)) {
        ModelBody::Text(text) => text,
        ModelBody::Items(items) => panic!("{items:?}"),
    };
    let tail = r#"3456789","type":"text"}]"#;
    assert_eq!(cut(Policy::Bytes(40)), format!("Wall time: 1.2500 second…49 chars truncated…{tail}"));
    assert_eq!(cut(Policy::Tokens(10)), format!("Wall time: 1.2500 second…13 tokens truncated…{tail}"));
    assert_eq!(cut(Policy::Bytes(0)), "…97 chars truncated…");
}

#[test]
fn p33_to_p36_items_share_one_budget_and_images_are_free() {
    let blocks = json!([png(), text(&"alpha".repeat(10)), text(&"beta".repeat(10))]);
    let alpha = txt("alphaal…35 chars truncated…phaalpha");
    let one_left_out = txt("[omitted 1 text items ...]");
    assert_eq!(content(&blocks, &cut_to(Policy::Bytes(40))), items([txt(H), png_item(), alpha, one_left_out]));
    let three_left_out = txt("[omitted 3 text items ...]");
    assert_eq!(content(&blocks, &cut_to(Policy::Bytes(0))), items([png_item(), three_left_out]));
    let header = txt("Wall time: 1…3 tokens truncated…onds\nOutput:");
    let two_left_out = txt("[omitted 2 text items ...]");
    assert_eq!(content(&blocks, &cut_to(Policy::Tokens(5))), items([header, png_item(), two_left_out]));
    let exact = content(&json!([png(), text("z")]), &cut_to(Policy::Bytes(28)));
    assert_eq!(exact, items([txt(H), png_item(), txt("z")]));
}

#[test]
fn p37_audio_over_the_budget_is_left_out_and_costs_nothing() {
    // Two seconds of speech: 32,000 bytes, 20 tokens.
    let audio = json!({ "type": "audio", "data": "A".repeat(42_664), "mimeType": "audio/wav" });
    let BodyItem::InputAudio { audio_url } = image(&audio, &AMPLE) else { panic!("no audio") };
    assert_eq!(audio_tokens(&audio_url), 20);
    let got = content(&json!([audio, text("hello")]), &cut_to(Policy::Tokens(10)));
    assert_eq!(got, items([txt(H), txt("hello"), txt("[omitted 1 audio items ...]")]));
}

#[test]
fn p38_wall_time_has_four_decimals() {
    let header = |seconds: f64| {
        let answer = shown(&json!({ "content": [] }), Duration::from_secs_f64(seconds), &AMPLE);
        let ModelBody::Text(text) = answer.body else { panic!("no text") };
        text.split(' ').nth(2).map(str::to_owned)
    };
    assert_eq!(header(0.00005).as_deref(), Some("0.0001"));
    assert_eq!(header(12.34567).as_deref(), Some("12.3457"));
}

#[test]
fn keys_are_sorted_at_every_depth_and_numbers_stay_readable() {
    let result = r#"{"content":[],"structuredContent":{"z":1.50,"a":[{"y":1e3,"b":-0.0}]}}"#;
    let got = body(&serde_json::from_str(result).unwrap(), &AMPLE);
    assert_eq!(got, after_header(r#"{"a":[{"b":-0.0,"y":1000.0}],"z":1.5}"#));
}

#[test]
fn a_body_serialises_as_the_responses_interface_has_it() {
    let got = serde_json::to_value(items([txt("a"), png_item()])).unwrap();
    let image = json!({ "type": "input_image", "image_url": "data:image/png;base64,AAA", "detail": "high" });
    assert_eq!(got, json!([{ "type": "input_text", "text": "a" }, image]));
}

const UNREADABLE: &str = "<image content omitted because it could not be processed>";
const TOO_LARGE: &str = "<image content omitted because it is too large>";

/// A PNG of this size, as base64.
fn drawn(width: u32, height: u32) -> String {
    crate::pipeline::emit::views::medium::samples::png(width, height)
}

async fn prepared(blocks: Value, options: &ModelViewOptions) -> ModelBody {
    render(&result(&json!({ "content": blocks })), Duration::from_millis(1250), options).await.0.body
}

fn images(datas: &[&str]) -> Value {
    datas.iter().map(|data| json!({ "type": "image", "data": data, "mimeType": "image/png" })).collect()
}

#[tokio::test]
async fn prepared_images_stay_if_they_are_some_and_a_text_stands_for_what_is_none() {
    let small = drawn(3, 2);
    let body = prepared(images(&[&small, "AAA", "https://e.x/a.png"]), &ModelViewOptions::default()).await;
    let kept = img(&format!("data:image/png;base64,{small}"), Detail::High);
    let remote = txt(LeftOut::Remote.placeholder(Media::Image));
    assert_eq!(body, items([txt(H), kept, txt(UNREADABLE), remote]));
    let mut low = images(&[&small]);
    low[0]["_meta"] = json!({ "codex/imageDetail": "low" });
    let body = prepared(low, &ModelViewOptions::default()).await;
    assert_eq!(body, items([txt(H), txt("<image content omitted because low image detail is not supported>")]));
}

#[tokio::test]
async fn all_images_of_an_answer_share_their_pixels_and_too_many_are_counted() {
    let small = drawn(10, 10);
    let media = MediaLimits { all_pixels: 250, images: 4, ..MediaLimits::default() };
    let options = ModelViewOptions { media: Some(media), ..AMPLE };
    let body = prepared(images(&[&small, &small, &small, "AAA", &small, &small]), &options).await;
    let kept = || img(&format!("data:image/png;base64,{small}"), Detail::High);
    let too_many = txt("[omitted 2 image items ...]");
    assert_eq!(body, items([txt(H), kept(), kept(), txt(TOO_LARGE), txt(UNREADABLE), too_many]));
}

#[tokio::test]
async fn prepared_audio_must_begin_like_some() {
    use base64::Engine as _;
    let clip = |mime: &str, bytes: &[u8]| {
        let data = base64::engine::general_purpose::STANDARD.encode(bytes);
        json!([{ "type": "audio", "data": data, "mimeType": mime }])
    };
    let bad = items([txt(H), txt("<audio content omitted because it could not be processed>")]);
    for (mime, bytes, good) in [
        ("audio/wav", b"RIFF\0\0\0\0WAVE".as_slice(), true),
        ("audio/mpeg", b"ID3\x04", true),
        ("audio/pcm;rate=8000", b"\x01\x02", true),
        ("audio/wav", b"PK\x03\x04 a zip", false),
        ("audio/wav", b"", false),
    ] {
        let body = prepared(clip(mime, bytes), &ModelViewOptions::default()).await;
        assert_eq!(body != bad, good, "{mime} {bytes:?}: {body:?}");
    }
    let none = json!([{ "type": "audio", "data": "no base64", "mimeType": "audio/wav" }]);
    assert_eq!(prepared(none, &ModelViewOptions::default()).await, bad);
    let media = MediaLimits { bytes: 4, ..MediaLimits::default() };
    let options = ModelViewOptions { media: Some(media), ..AMPLE };
    let large = prepared(clip("audio/mpeg", b"ID3 and more"), &options).await;
    assert_eq!(large, items([txt(H), txt("<audio content omitted because it is too large>")]));
}

#[tokio::test]
async fn placeholders_spend_the_budget_so_that_many_bad_images_are_not_many_texts() {
    let options = ModelViewOptions { truncation: Policy::Bytes(200), ..ModelViewOptions::default() };
    let ModelBody::Items(items) = prepared(images(&["AAA"; 60]), &options).await else { panic!("no items") };
    let texts: Vec<&str> = items
        .iter()
        .map(|item| match item {
            BodyItem::InputText { text } => text.as_str(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(texts.iter().map(|text| text.len()).sum::<usize>() < 240 + 64 + 32);
    assert_eq!(texts.last(), Some(&"[omitted 56 text items ...]"));
}

/// The texts of a body.
fn texts(body: &ModelBody) -> Vec<&str> {
    match body {
        ModelBody::Text(text) => vec![text],
        ModelBody::Items(items) => items
            .iter()
            .filter_map(|item| match item {
                BodyItem::InputText { text } => Some(text.as_str()),
                _ => None,
            })
            .collect(),
    }
}

fn block() -> impl Strategy<Value = Value> {
    let words = "[a-z\"\\\\é😀 \n]{0,60}";
    prop_oneof![
        words.prop_map(|words| json!({ "type": "text", "text": words })),
        words.prop_map(|words| json!({ "type": "resource_link", "uri": words, "name": "n" })),
        Just(png()),
        (0_usize..5000).prop_map(|n| json!({ "type": "audio", "data": "A".repeat(n), "mimeType": "audio/wav" })),
        words.prop_map(|words| json!({ "type": "strange", "é": words })),
        Just(json!({ "type": "image" })),
        Just(json!(null)),
    ]
}

proptest! {
    #[test]
    fn a_body_has_no_more_text_than_its_budget_and_markers(
        blocks in prop::collection::vec(block(), 0..12), structured in prop::option::of("[a-zé]{0,300}"),
        n in 0_usize..200, tokens: bool,
    ) {
        let policy = if tokens { Policy::Tokens(n) } else { Policy::Bytes(n) };
        let mut value = json!({ "content": blocks });
        value.as_object_mut().unwrap().extend(structured.map(|text| ("structuredContent".to_owned(), json!({ "x": text }))));
        let answer = shown(&value, Duration::from_millis(1250), &cut_to(policy));
        let budget = policy.with_allowance().budget() * if tokens { 4 } else { 1 };
        let bytes: usize = texts(&answer.body).iter().map(|text| text.len()).sum();
        // One text is cut, and texts and audio that are left out are counted.
        prop_assert!(bytes <= budget + 48 + 2 * 48, "{bytes} bytes of a budget of {budget}: {:?}", answer.body);
        let spelled = serde_json::to_string(&answer).unwrap();
        prop_assert!(serde_json::from_str::<Value>(&spelled).is_ok());
    }
}
