//! File arguments: vectors U1 to U9 of catalog-dispatch 8.6 and R27, through the whole pipeline, real folders and a place for
//! uploads over HTTP.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use portcullis::adapters::files::{HttpUploads, Roots};
use portcullis::host::network::client_builder;
use portcullis::model::digest::Digest;
use portcullis::model::file_params::SENTENCE;
use portcullis::model::item::Status;
use portcullis::model::layer::LayerKind;
use portcullis::model::outcome::{Code, Stage};
use portcullis::model::posture::ApprovalMode;
use portcullis::model::verdict::{Ask, Remember, Reviewers, Verdict};
use portcullis::pipeline::emit::sanitise::{Definitions, Viewer};
use portcullis::pipeline::{CallRequest, Finished, Would};
use portcullis::ports::files::{FileAccess, MAX_FILE};
use portcullis::ports::reviewer::Reply as Answer;
use portcullis::ports::state::PolicyState;
use portcullis::ports::upstream::{Progress, ProgressSink};
use serde_json::{Value, json};

use crate::fakes::Gate;
use crate::fakes::bench::{Bench, failed, failure, said};
use crate::fakes::people::{Person, allowed};
use crate::fakes::policy::{Apps, Policies, Scripted, reason};
use crate::fakes::server::tool;
use crate::support::upload_server::{Reply, UploadServer};

/// A bench whose server `files` has a tool `write` with file parameters, a folder with files, and a place for uploads.
struct Desk {
    bench: Bench,
    uploads: UploadServer,
    folder: tempfile::TempDir,
}

/// The tool `write`, whose parameter `file` has this schema.
fn taking(schema: &Value) -> String {
    json!({
        "name": "write",
        "inputSchema": { "type": "object", "properties": { "file": schema, "note": {} } },
        "_meta": { "openai/fileParams": ["file"] },
    })
    .to_string()
}

fn object() -> Value {
    json!({ "type": "object" })
}

impl Desk {
    async fn open() -> Self {
        Self::under(&Policies::open(&["files", "mail"])).await
    }

    async fn under(policies: &Policies) -> Self {
        let (bench, uploads) = (Bench::new(policies).await, UploadServer::start().await);
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("root")).unwrap();
        let desk = Self { bench, uploads, folder };
        for (name, text) in [("a.csv", "a,b"), ("one.csv", "1"), ("two.csv", "2"), ("noext", "?")] {
            std::fs::write(desk.root().join(name), text).unwrap();
        }
        std::fs::write(desk.folder.path().join("secret"), "hush").unwrap();
        let access = desk.access(None);
        desk.bench.change(&desk.bench.files, |published| {
            (published.view.file_parameters, published.view.files) = (true, Some(access));
            // What is not a path is passed on as it is; the check would refuse most of it before.
            published.view.check_arguments = false;
        });
        desk.define(&object()).await;
        desk
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    fn access(&self, token: Option<&str>) -> FileAccess {
        let variable = |name: &str| (name == "TOKEN").then(|| "hush-token".to_owned());
        let uploader = HttpUploads::new(self.uploads.url(), token.map(str::to_owned), client_builder, variable);
        let (roots, digest) =
            (Roots::new(&[self.root()]), Digest::of(format!("{} {token:?}", self.uploads.url()).as_bytes()));
        FileAccess { roots: Arc::new(roots), uploader: Arc::new(uploader), digest }
    }

    async fn define(&self, schema: &Value) {
        self.bench.redefine(&self.bench.files, vec![taking(schema), tool("read")]).await;
    }

    fn request(&self, arguments: &Value) -> CallRequest {
        self.bench.request("files/write", &arguments.to_string())
    }

    async fn call(&self, arguments: &Value) -> Finished {
        self.bench.pipeline.run(self.request(arguments)).await
    }

    /// What the server got as arguments of the last call.
    fn sent(&self) -> Value {
        Value::Object(self.bench.files.handed().last().unwrap().arguments.clone().unwrap())
    }

    fn arrived(&self) -> Vec<String> {
        let arrived = self.uploads.arrived();
        arrived.iter().map(|file| String::from_utf8_lossy(&file.bytes).into_owned()).collect()
    }

    /// Nothing was sent, nothing was remembered, and the call has its two items.
    fn assert_not_sent(&self, finished: &Finished) {
        assert_eq!(failed(finished), (Stage::Files, Code::UploadFailed), "{}", said(finished));
        assert!(self.bench.files.handed().is_empty(), "it was sent");
        assert!(self.bench.purse.kept().is_empty(), "it left a grant");
        self.bench.tape.only_pair();
    }
}

/// What is sent for the file that arrived as number `n`.
fn reference(n: usize, kind: Option<&str>, name: Option<&str>) -> Value {
    let mut value =
        json!({ "download_url": format!("https://files.example/{n}?sig=hush"), "file_id": format!("id-{n}") });
    if let Some(kind) = kind {
        value["mime_type"] = kind.into();
    }
    if let Some(name) = name {
        value["file_name"] = name.into();
    }
    value
}

/// One row of the table: the parameter's schema, the argument, what is sent for it, and the files that arrive.
struct Row {
    id: &'static str,
    schema: Value,
    given: Value,
    sent: Value,
    arrived: &'static [&'static str],
}

fn rows() -> Vec<Row> {
    let row = |id, schema, given, sent, arrived| Row { id, schema, given, sent, arrived };
    let closed = |fields: Value| json!({ "type": "object", "properties": fields, "additionalProperties": false });
    let bare = || reference(1, None, None);
    let same = |id, given: Value| row(id, object(), given.clone(), given, &[]);
    vec![
        row("U2", object(), json!("a.csv"), reference(1, Some("text/csv"), Some("a.csv")), &["a,b"]),
        row("U2 without a known type", object(), json!("noext"), reference(1, None, Some("noext")), &["?"]),
        row("U3", closed(json!({})), json!("a.csv"), bare(), &["a,b"]),
        row(
            "U4",
            json!({ "type": "array", "items": closed(json!({ "file_name": {} })) }),
            json!(["one.csv", "two.csv"]),
            json!([reference(1, None, Some("one.csv")), reference(2, None, Some("two.csv"))]),
            &["1", "2"],
        ),
        same("U4 of none", json!([])),
        same("U7 number", json!(7)),
        same("U7 mixed", json!(["a.csv", 7])),
        same("U7 object", json!({ "file_id": "mine" })),
        row("U9 closed", closed(json!({})), json!("a.csv"), bare(), &["a,b"]),
        row(
            "U9 open",
            json!({ "type": "object", "additionalProperties": true }),
            json!("a.csv"),
            reference(1, Some("text/csv"), Some("a.csv")),
            &["a,b"],
        ),
        row(
            "U9 items without type",
            json!({ "items": { "properties": { "mime_type": {} }, "additionalProperties": false } }),
            json!(["a.csv"]),
            json!([reference(1, Some("text/csv"), None)]),
            &["a,b"],
        ),
    ]
}

#[tokio::test]
async fn u2_u3_u4_u7_u9_a_server_gets_references_in_the_place_of_paths() {
    for Row { id, schema, given, sent, arrived } in rows() {
        let desk = Desk::open().await;
        desk.define(&schema).await;
        let finished = desk.call(&json!({ "note": "a.csv", "file": given })).await;
        assert_eq!(finished.item.status, Status::Completed, "{id}: {}", said(&finished));
        assert_eq!(desk.sent(), json!({ "note": "a.csv", "file": sent }), "{id}");
        assert_eq!(desk.arrived(), arrived, "{id}");
        // The item has what was given, and beside it what was sent.
        assert_eq!(finished.item.call.arguments.object().unwrap()["file"], given, "{id}");
        let input = finished.item.tool_input.map(|input| input["file"].clone());
        assert_eq!(input, (!arrived.is_empty()).then_some(sent), "{id}");
    }
}

#[tokio::test]
async fn u1_u8_without_declared_parameters_or_on_a_plain_server_nothing_is_uploaded() {
    let desk = Desk::open().await;
    let undeclared = json!({ "name": "write", "inputSchema": { "type": "object" } }).to_string();
    desk.bench.redefine(&desk.bench.files, vec![undeclared]).await;
    desk.call(&json!({ "file": "a.csv" })).await;
    assert_eq!((desk.sent(), desk.arrived().len()), (json!({ "file": "a.csv" }), 0));

    desk.bench.change(&desk.bench.files, |published| published.view.file_parameters = false);
    desk.define(&object()).await;
    desk.call(&json!({ "file": "a.csv" })).await;
    assert_eq!((desk.sent(), desk.arrived().len()), (json!({ "file": "a.csv" }), 0));
    let tools = desk.bench.catalog().current();
    assert!(tools.tools().iter().all(|tool| tool.files.is_none()));
}

#[tokio::test]
async fn a_tool_of_an_app_has_file_parameters_without_being_configured() {
    let yes = Apps::says("yes", Some(true), Some(ApprovalMode::Approve));
    let desk = Desk::under(&Policies::open(&["files", "mail"]).app(LayerKind::User, "apps", &yes)).await;
    desk.bench.change(&desk.bench.files, |published| published.view.file_parameters = false);
    desk.bench.link("drive").await;
    let finished = desk.call(&json!({ "file": "a.csv" })).await;
    assert_eq!(finished.item.status, Status::Completed, "{}", said(&finished));
    assert_eq!(desk.sent()["file"], reference(1, Some("text/csv"), Some("a.csv")));
}

/// A desk where `files/write` is the tool of an App, with this address for its action.
async fn apps_desk(address: Option<&str>) -> Desk {
    let yes = Apps::says("yes", Some(true), Some(ApprovalMode::Approve));
    let desk = Desk::under(&Policies::open(&["files", "mail"]).app(LayerKind::User, "apps", &yes)).await;
    let mut tool: Value = serde_json::from_str(&taking(&object())).unwrap();
    if let Some(address) = address {
        tool["_meta"]["_codex_apps"] = json!({ "resource_uri": address });
    }
    desk.bench.redefine(&desk.bench.files, vec![tool.to_string()]).await;
    desk.bench.link("drive").await;
    desk
}

/// Calls in a turn of this model and returns what the upload said of connector, action and model.
async fn purpose(desk: &Desk, model: Option<&str>) -> [Option<String>; 3] {
    let mut request = desk.request(&json!({ "file": "a.csv" }));
    request.turn.metadata = model.map(|model| json!({ "model": model }).as_object().unwrap().clone());
    let finished = desk.bench.pipeline.run(request).await;
    assert_eq!(finished.item.status, Status::Completed, "{}", said(&finished));
    let arrived = desk.uploads.arrived().remove(0);
    ["portcullis-connector-id", "portcullis-action-name", "portcullis-model"]
        .map(|name| Some(arrived.headers.get(name)?.to_str().unwrap().to_owned()))
}

#[tokio::test]
async fn rule_13_an_apps_upload_says_connector_action_and_model() {
    let text = |text: &str| Some(text.to_owned());
    let desk = apps_desk(Some("/drive/files/send it//")).await;
    assert_eq!(purpose(&desk, Some("gpt-5")).await, [text("drive"), text("send%20it"), text("gpt-5")]);
    let desk = apps_desk(Some("/drive/files/send")).await;
    assert_eq!(purpose(&desk, None).await, [text("drive"), text("send"), None]);
}

#[tokio::test]
async fn rule_13_an_upload_says_nothing_of_its_call_unless_connector_and_action_are_known() {
    for address in [None, Some(""), Some("//")] {
        assert_eq!(purpose(&apps_desk(address).await, Some("gpt-5")).await, [None, None, None], "{address:?}");
    }
    let plain = Desk::open().await;
    let mut tool: Value = serde_json::from_str(&taking(&object())).unwrap();
    tool["_meta"]["_codex_apps"] = json!({ "resource_uri": "/drive/files/send" });
    plain.bench.redefine(&plain.bench.files, vec![tool.to_string()]).await;
    assert_eq!(purpose(&plain, Some("gpt-5")).await, [None, None, None]);
}

#[tokio::test]
async fn rule_13_an_action_that_no_header_can_hold_fails_the_upload_and_the_call() {
    let desk = apps_desk(Some(&"x".repeat(1025))).await;
    let finished = desk.call(&json!({ "file": "a.csv" })).await;
    desk.assert_not_sent(&finished);
    assert!(said(&finished).contains("`portcullis-action-name` has more than 1024 bytes"), "{}", said(&finished));
    assert!(desk.arrived().is_empty());
}

#[tokio::test]
async fn what_is_uploaded_are_the_files_bytes_with_length_name_digest_and_token() {
    let desk = Desk::open().await;
    let access = desk.access(Some("TOKEN"));
    desk.bench.change(&desk.bench.files, |published| published.view.files = Some(access));
    desk.bench.publish().await;
    let bytes: Vec<u8> = (0..1_000_003_u32).map(|at| (at % 251) as u8).collect();
    std::fs::write(desk.root().join("ä b.png"), &bytes).unwrap();
    let finished = desk.call(&json!({ "file": "ä b.png" })).await;
    assert_eq!(finished.item.status, Status::Completed, "{}", said(&finished));
    let arrived = desk.uploads.arrived().remove(0);
    assert!(arrived.bytes == bytes);
    let header = |name: &str| arrived.headers[name].to_str().unwrap().to_owned();
    assert_eq!(header("content-length"), "1000003");
    assert_eq!(header("content-type"), "image/png");
    assert_eq!(header("content-disposition"), "attachment; filename*=UTF-8''%C3%A4%20b.png");
    assert_eq!(header("authorization"), "Bearer hush-token");
    assert!(header("repr-digest").starts_with("sha-256=:"));

    std::fs::write(desk.root().join("empty.txt"), "").unwrap();
    desk.call(&json!({ "file": "empty.txt" })).await;
    assert_eq!(desk.uploads.arrived()[1].headers["content-length"], "0");
}

#[tokio::test]
async fn u5_u6_r27_a_file_that_cannot_be_had_fails_the_call_before_anything_is_uploaded_or_sent() {
    let desk = Desk::open().await;
    let root = desk.root();
    std::os::unix::fs::symlink("../secret", root.join("link")).unwrap();
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, root.join("pipe"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    std::fs::File::create(root.join("large")).unwrap().set_len(MAX_FILE + 1).unwrap();
    let outside = desk.folder.path().join("secret").display().to_string();
    let rows = [
        ("none.csv", "there is no such file"),
        ("link", "not inside the allowed folders"),
        ("../secret", "not inside the allowed folders"),
        (&outside, "not inside the allowed folders"),
        ("pipe", "not a regular file"),
        (".", "not a regular file"),
        ("large", "536870913 bytes, which is more than"),
        ("", "no path of a file"),
    ];
    for (path, cause) in rows {
        // A good file before it stays where it is, too.
        for (given, field) in [(json!(path), "file"), (json!(["a.csv", path]), "file[1]")] {
            let finished = desk.call(&json!({ "file": given })).await;
            assert_eq!(failed(&finished), (Stage::Files, Code::UploadFailed), "{path}");
            let text = said(&finished);
            assert!(text.starts_with(&format!("failed to upload `{path}` for `{field}`: ")), "{text}");
            assert!(text.contains(cause) && !text.contains("hush"), "{text}");
        }
    }
    assert!(desk.bench.files.handed().is_empty() && desk.uploads.arrived().is_empty());
    let explained = desk.bench.pipeline.explain(desk.request(&json!({ "file": "none.csv" }))).await;
    assert!(matches!(explained.would, Would::Fail(failure) if failure.code == Code::UploadFailed));
}

#[tokio::test]
async fn too_many_files_and_nowhere_to_upload_to_fail_the_call() {
    let desk = Desk::open().await;
    let many = vec!["a.csv"; 65];
    let finished = desk.call(&json!({ "file": many })).await;
    assert!(said(&finished).contains("for `file[64]`: a call may name at most 64 files"), "{}", said(&finished));
    desk.assert_not_sent(&finished);

    let desk = Desk::open().await;
    desk.bench.change(&desk.bench.files, |published| published.view.files = None);
    desk.bench.publish().await;
    let finished = desk.call(&json!({ "file": "a.csv" })).await;
    assert!(said(&finished).contains("set `[files]`"), "{}", said(&finished));
    desk.assert_not_sent(&finished);
}

#[tokio::test]
async fn l07_an_upload_that_fails_fails_the_call_without_a_word_of_the_other_side() {
    let usual = Reply::usual();
    let elsewhere = UploadServer::start().await;
    let location = Some(elsewhere.url().to_string());
    let rows = [
        (Reply { status: 500, body: "hush".to_owned(), ..usual.clone() }, "HTTP status 500"),
        (Reply { status: 307, location, ..usual.clone() }, "HTTP status 307"),
        (Reply { body: "hush".to_owned(), ..usual.clone() }, "no usable JSON"),
        (Reply { body: r#"{"file_id":"hush"}"#.to_owned(), ..usual.clone() }, "no `download_url`"),
        (Reply { body: format!("\"{}\"", "hush".repeat(20_000)), ..usual }, "more than 65536 bytes"),
    ];
    for (reply, cause) in rows {
        let desk = Desk::open().await;
        desk.uploads.replies(reply);
        let finished = desk.call(&json!({ "file": ["one.csv", "two.csv"] })).await;
        assert!(said(&finished).contains(cause) && !said(&finished).contains("hush"), "{}", said(&finished));
        desk.assert_not_sent(&finished);
        assert_eq!(desk.arrived(), ["1"], "the other file was uploaded");
    }
    assert!(elsewhere.arrived().is_empty(), "a redirect was followed");

    let desk = Desk::open().await;
    let access = desk.access(Some("ABSENT"));
    desk.bench.change(&desk.bench.files, |published| published.view.files = Some(access));
    desk.bench.publish().await;
    let finished = desk.call(&json!({ "file": "a.csv" })).await;
    assert!(said(&finished).contains("the environment variable `ABSENT` is not set"), "{}", said(&finished));
    assert!(desk.uploads.arrived().is_empty());
    desk.assert_not_sent(&finished);
}

/// Policies under which a person is asked, once for these arguments.
fn asking() -> Policies {
    let ask =
        Ask { reason: reason("r"), remember: Remember::Session, bind_arguments: true, reviewers: Reviewers::default() };
    let asks = Scripted::says(Verdict::Ask(ask));
    Policies::open(&["files", "mail"]).with(LayerKind::User, "asks", &asks)
}

/// Runs a call of which a person is asked, and does `meanwhile` before they answer.
async fn asked(desk: &Desk, arguments: &Value, answer: Answer, meanwhile: impl AsyncFnOnce(&Desk)) -> Finished {
    let gate = Gate::closed();
    let person = Person::replying(&desk.bench.journal, [answer]).at(&gate);
    let running = desk.bench.spawn(CallRequest { reviewer: person, ..desk.request(arguments) });
    gate.reached(1).await;
    meanwhile(desk).await;
    gate.open();
    running.await.unwrap()
}

#[tokio::test]
async fn r27_a_file_that_grows_shrinks_or_changes_after_prepare_never_arrives_whole() {
    let changes: [fn(&PathBuf); 3] = [
        |path| std::fs::OpenOptions::new().append(true).open(path).unwrap().write_all(b"more").unwrap(),
        |path| std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(1).unwrap(),
        |path| std::fs::OpenOptions::new().write(true).open(path).unwrap().write_all(b"A").unwrap(),
    ];
    for change in changes {
        let desk = Desk::under(&asking()).await;
        let arguments = json!({ "file": "a.csv" });
        let finished = asked(&desk, &arguments, allowed(Remember::Session), async |desk| {
            change(&desk.root().join("a.csv"));
        })
        .await;
        assert!(said(&finished).contains("it changed after the call was prepared"), "{}", said(&finished));
        desk.assert_not_sent(&finished);
        assert!(desk.uploads.arrived().is_empty(), "it arrived");
    }
}

#[tokio::test]
async fn r27_what_was_opened_is_what_is_uploaded_whatever_is_at_its_path_by_then() {
    let desk = Desk::under(&asking()).await;
    let arguments = json!({ "file": "a.csv" });
    let finished = asked(&desk, &arguments, allowed(Remember::Never), async |desk| {
        std::fs::remove_file(desk.root().join("a.csv")).unwrap();
        std::os::unix::fs::symlink("../secret", desk.root().join("a.csv")).unwrap();
    })
    .await;
    assert_eq!(finished.item.status, Status::Completed, "{}", said(&finished));
    assert_eq!(desk.arrived(), ["a,b"]);
}

#[tokio::test]
async fn a_refused_call_uploads_nothing() {
    let desk = Desk::under(&asking()).await;
    let finished = asked(&desk, &json!({ "file": "a.csv" }), Answer::Declined, async |_| {}).await;
    assert_eq!(failed(&finished), (Stage::Approval, Code::Declined));
    assert!(desk.uploads.arrived().is_empty() && desk.bench.files.handed().is_empty());
}

#[tokio::test]
async fn r27_the_question_has_the_files_size_and_digest_and_an_agreement_binds_its_bytes() {
    let desk = Desk::under(&asking()).await;
    let person = Person::replying(&desk.bench.journal, [allowed(Remember::Session)]);
    let call = async || {
        let request = desk.request(&json!({ "file": ["a.csv"] }));
        let finished = desk.bench.pipeline.run(CallRequest { reviewer: person.clone(), ..request }).await;
        assert_eq!(finished.item.status, Status::Completed, "{}", said(&finished));
    };
    call().await;
    let shown = person.questions()[0].files[0].clone();
    assert_eq!((shown.argument.as_str(), shown.path.as_str(), shown.length), ("file[0]", "a.csv", 3));
    assert_eq!(shown.sha256, Digest::of(b"a,b"));
    call().await;
    assert_eq!(person.questions().len(), 1, "the same bytes were asked about again");
    std::fs::write(desk.root().join("a.csv"), "A,B").unwrap();
    call().await;
    assert_eq!(person.questions().len(), 2, "an agreement covered other bytes");
}

#[tokio::test]
async fn r27_a_call_that_is_stale_before_its_upload_uploads_nothing() {
    let desk = Desk::under(&asking()).await;
    let arguments = json!({ "file": "a.csv" });
    let finished =
        asked(&desk, &arguments, allowed(Remember::Session), async |desk| desk.define(&json!({})).await).await;
    assert_eq!(failed(&finished), (Stage::Lease, Code::Stale));
    assert!(desk.uploads.arrived().is_empty() && desk.bench.files.handed().is_empty());
    assert!(desk.bench.purse.kept().is_empty());
}

#[tokio::test]
async fn r27_a_call_that_becomes_stale_during_its_upload_uploads_no_more_and_is_not_sent() {
    let (desk, gate) = (Desk::open().await, Gate::closed());
    desk.uploads.at(&gate);
    let running = desk.bench.spawn(desk.request(&json!({ "file": ["one.csv", "two.csv"] })));
    gate.reached(1).await;
    desk.define(&json!({})).await;
    gate.open();
    let finished = running.await.unwrap();
    assert_eq!(failed(&finished), (Stage::Lease, Code::Stale));
    assert_eq!(desk.arrived(), ["1"]);
    assert!(desk.bench.files.handed().is_empty() && desk.bench.purse.kept().is_empty());
}

#[tokio::test]
async fn r19_a_call_whose_policies_change_during_its_upload_is_decided_again_and_no_file_goes_out_twice() {
    let policies = Policies::open(&["files", "mail"]);
    let (desk, gate) = (Desk::under(&policies).await, Gate::closed());
    desk.uploads.at(&gate);
    let running = desk.bench.spawn(desk.request(&json!({ "file": ["one.csv", "two.csv"] })));
    gate.reached(1).await;
    let seen = Scripted::says(Verdict::Abstain);
    desk.bench.decide_by(&policies.with(LayerKind::User, "new", &seen)).await;
    gate.open();
    let finished = running.await.unwrap();
    assert_eq!(finished.item.status, Status::Completed, "{}", said(&finished));
    assert_eq!((seen.asked(), desk.arrived()), (1, vec!["1".to_owned(), "2".to_owned()]));
}

#[tokio::test]
async fn r34_nothing_is_uploaded_before_the_decision_is_recorded() {
    let desk = Desk::open().await;
    desk.call(&json!({ "file": "a.csv" })).await;
    let records = desk.bench.tape.decisions();
    let uploading: Vec<bool> = records.iter().map(|record| record.uploading).collect();
    assert_eq!(uploading, [true, false]);
    let file = &records[1].files[0];
    assert_eq!((file.argument.as_str(), file.length, file.sha256), ("file", 3, Digest::of(b"a,b")));

    let desk = Desk::open().await;
    desk.bench.tape.fail();
    let finished = desk.call(&json!({ "file": "a.csv" })).await;
    assert_eq!(failure(&finished).code, Code::RecordFailed);
    assert!(desk.uploads.arrived().is_empty() && desk.bench.files.handed().is_empty());
}

#[tokio::test]
async fn r25_nothing_is_said_about_a_file_of_a_call_whose_tool_is_disabled() {
    let no = Apps::says("no", Some(false), None);
    let desk = Desk::under(&Policies::open(&["files", "mail"]).app(LayerKind::User, "apps", &no)).await;
    desk.bench.link("drive").await;
    let finished = desk.call(&json!({ "file": "none.csv" })).await;
    assert_eq!(failure(&finished).code, Code::Disabled);
    assert!(said(&finished).contains("is not available to the model"), "{}", said(&finished));
}

#[tokio::test]
async fn a_model_is_shown_paths_and_calls_what_it_was_shown() {
    let desk = Desk::open().await;
    let snapshot = desk.bench.catalog().current();
    let tool = snapshot.tools().iter().find(|tool| tool.definition.name().as_str() == "write").unwrap();
    let state = Arc::clone(&desk.bench.state) as Arc<dyn PolicyState>;
    let viewer = Viewer { caller: &desk.bench.caller, state: &state, now_ms: 0 };
    let shown = Definitions::default().show(tool, snapshot.policies(), &viewer).await.unwrap();
    let shown: Value = serde_json::from_str(shown.text()).unwrap();
    let wanted = json!({ "description": SENTENCE, "type": "string" });
    assert_eq!(shown["inputSchema"]["properties"]["file"], wanted);
    // What was seen is told by what is called (R24).
    let seen = Some(tool.definition.digest());
    let finished = desk.bench.pipeline.run(CallRequest { seen, ..desk.request(&json!({ "file": "a.csv" })) }).await;
    assert_eq!(finished.item.status, Status::Completed);
}

#[derive(Default)]
struct Steps(Mutex<Vec<Progress>>);

impl ProgressSink for Steps {
    fn progress(&self, progress: Progress) {
        self.0.lock().push(progress);
    }
}

#[tokio::test]
async fn an_upload_is_progress_of_its_call_and_leaves_room_for_the_servers_own() {
    let desk = Desk::open().await;
    std::fs::write(desk.root().join("large"), vec![7; 3 * 1024 * 1024]).unwrap();
    let steps = Arc::new(Steps::default());
    let request = desk.request(&json!({ "file": ["large", "a.csv"] }));
    desk.bench.pipeline.run(CallRequest { progress: Some(steps.clone()), ..request }).await;
    let steps = steps.0.lock();
    assert!(steps.len() > 2 && steps.windows(2).all(|pair| pair[0].progress < pair[1].progress), "{steps:?}");
    assert!(steps.iter().all(|step| step.progress > 0.0 && step.progress <= 1e-6));
    assert_eq!(steps.last().unwrap().message.as_deref(), Some("uploading `a.csv`: 100 %"));
}

#[tokio::test]
async fn arguments_fit_what_the_model_was_shown_or_what_the_server_takes() {
    let desk = Desk::open().await;
    desk.bench.change(&desk.bench.files, |published| published.view.check_arguments = true);
    desk.define(&json!({ "type": "object", "required": ["download_url"] })).await;
    assert!(said(&desk.call(&json!({ "file": "a.csv" })).await).contains("done"));
    assert_eq!(desk.sent()["file"], reference(1, Some("text/csv"), Some("a.csv")));
    let own = json!({ "file": { "download_url": "https://elsewhere.example/", "file_id": "x" } });
    assert!(said(&desk.call(&own).await).contains("done"));
    assert_eq!(desk.sent(), own);
    for unfit in [json!({ "file": 7 }), json!({ "file": ["a.csv"] }), json!({ "file": {} })] {
        let finished = desk.call(&unfit).await;
        assert_eq!(failed(&finished), (Stage::Arguments, Code::InvalidArguments));
        // The message is about what the model was asked for.
        assert!(said(&finished).contains("at /file, value is not of type \"string\""), "{}", said(&finished));
    }
    assert_eq!(desk.arrived().len(), 1);
}
