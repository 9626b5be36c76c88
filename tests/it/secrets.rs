//! The shipped sanitiser of secrets, as it is built, against a corpus of secrets and of what only looks like one.

use std::sync::Arc;

use portcullis::adapters::wasm::{Admission, WasmSanitiser, builtin};
use portcullis::config::{self, EmbeddedLayer, Places, SessionSources};
use portcullis::host::entries;
use portcullis::model::layer::LayerKind;
use portcullis::model::verdict::{Fault, FaultCode};
use portcullis::ports::sanitiser::{Edit, Place, Sanitised, SanitiserComponent as _, Target, Verdict};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::fakes::bench::Bench;
use crate::fakes::policy::Policies;
use crate::fakes::sanitiser::{Cleaner, bound};
use crate::fakes::server::How;
use crate::support::policy::{engine, output, patient, source};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Corpus {
    secret: Vec<Secret>,
    clean: Vec<String>,
}

/// A text whose secrets stand between `⟦` and `⟧`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Secret {
    class: String,
    text: String,
}

fn corpus() -> Corpus {
    let path = guest_builder::workspace().join("tests/it/corpus/secrets.toml");
    toml::from_str(&std::fs::read_to_string(path).unwrap().replace("{}", "")).unwrap()
}

fn load(settings: Value) -> Arc<WasmSanitiser> {
    let wanted = Admission { settings, limits: patient(), ..Admission::plain(source("sanitise-secrets")) };
    engine().admit(builtin::SANITISE_SECRETS, wanted).unwrap().sanitiser.unwrap()
}

async fn ask(sanitiser: &WasmSanitiser, text: &str) -> Sanitised {
    let target = Target { place: Place::Text, pointer: "/content/0/text".to_owned(), text: text.into() };
    sanitiser.sanitise(Arc::new(output("files/read", target))).await
}

/// The text with `⟦...⟧` around what is removed, and the rule.
async fn marked(sanitiser: &WasmSanitiser, text: &str) -> (String, String) {
    marks(text, ask(sanitiser, text).await, |secret| format!("⟦{secret}⟧"))
}

fn marks(text: &str, said: Sanitised, put: impl Fn(&str) -> String) -> (String, String) {
    let (verdict, rule) = said.result.unwrap();
    let rule = rule.map(|rule| rule.to_string()).unwrap_or_default();
    let Verdict::Edit(edits) = verdict else {
        assert_eq!(verdict, Verdict::Pass);
        return (text.to_owned(), rule);
    };
    let (mut out, mut done) = (String::new(), 0);
    for edit in edits {
        let Edit::Replace { start, end, .. } = edit else { panic!("{edit:?}") };
        out += &text[done..start as usize];
        out += &put(&text[start as usize..end as usize]);
        done = end as usize;
    }
    (out + &text[done..], rule)
}

#[tokio::test]
async fn every_secret_of_the_corpus_is_found_to_the_byte_with_its_class() {
    let (sanitiser, mut wrong) = (load(json!({})), Vec::new());
    for Secret { class, text } in corpus().secret {
        let found = marked(&sanitiser, &text.replace(['⟦', '⟧'], "")).await;
        if found != (text.clone(), class.clone()) {
            wrong.push(format!("wanted {class}: {text}\n found {}: {}", found.1, found.0));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// The scanner looks at 32 bytes in one step.
#[tokio::test]
async fn a_secret_is_found_wherever_in_a_step_it_begins() {
    let sanitiser = load(json!({}));
    for Secret { class, text } in corpus().secret {
        for before in 0..=33 {
            let text = format!("{}{text}", "\n".repeat(before));
            let found = marked(&sanitiser, &text.replace(['⟦', '⟧'], "")).await;
            assert_eq!(found, (text, class.clone()), "behind {before} bytes");
        }
    }
}

#[tokio::test]
async fn nothing_of_the_corpus_that_is_no_secret_is_touched() {
    let (sanitiser, mut wrong) = (load(json!({})), Vec::new());
    for text in corpus().clean {
        let (found, _) = marked(&sanitiser, &text).await;
        if found != text {
            wrong.push(found);
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test]
async fn settings_switch_classes_off_and_allow_texts() {
    let text = "password = \"hunter2\" and https://me:s3cr3tpw@host/";
    let only = |classes: Value| load(json!({ "classes": classes }));
    assert_eq!(marked(&only(json!(["password"])), text).await.1, "password");
    assert_eq!(marked(&only(json!(["url-password"])), text).await.1, "url-password");
    assert_eq!(marked(&only(json!([])), text).await.0, text);
    assert_eq!(marked(&load(json!({"allow": ["hunter2", "s3*pw"]})), text).await.0, text);
}

#[test]
fn settings_that_the_component_does_not_know_are_refused() {
    for bad in [json!({"clases": []}), json!({"classes": ["keys"]}), json!({"allow": "x"}), json!({"allow": [""]})] {
        let wanted = Admission { settings: bad.clone(), ..Admission::plain(source("sanitise-secrets")) };
        assert!(engine().admit(builtin::SANITISE_SECRETS, wanted).is_err(), "{bad}");
    }
}

#[tokio::test]
async fn a_megabyte_with_few_or_many_secrets_is_within_the_fuel() {
    let sanitiser = load(json!({}));
    let few = "the quick: brown = fox\n".repeat(1024 * 1024 / 23);
    let many = format!("{}password=\"hunter2x\" ", "x = y: z ".repeat(26)).repeat(4000);
    for text in [few, many, "-----BEGIN PRIVATE KEY-----!".repeat(37_000)] {
        let said = ask(&sanitiser, &text).await;
        assert!(said.result.is_ok(), "{:?}", said.result);
    }
}

#[tokio::test(start_paused = true)]
async fn r28_secrets_go_from_texts_keys_links_split_texts_and_inner_json() {
    let mut sanitiser = bound(LayerKind::User, "secrets", &Cleaner::passes());
    sanitiser.component = Ok(load(json!({})));
    let bench = Bench::new(&Policies::open(&["files", "mail"]).cleaning(sanitiser)).await;
    let token = ["gh", "p_0a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R"].concat();
    let answer = json!({
        "content": [
            {"type": "text", "text": format!("one {token} two")},
            {"type": "text", "text": &token[..12]},
            {"type": "text", "text": format!("{} end", &token[12..])},
            {"type": "text", "text": json!({"k": json!({"i": token}).to_string()}).to_string()},
            {"type": "resource", "resource": {"uri": format!("file:///?t={token}"), "text": token}},
            {"type": "resource_link", "uri": format!("x://{token}"), "name": token},
        ],
        "structuredContent": {"password": "correct-horse", &token: 1},
    });
    bench.files.answers(How::Result(answer.to_string().leak()));
    let finished = bench.write().await;
    let value = Value::Object(finished.clean.result().value().clone());
    let text = value.to_string();
    assert!(!text.contains(&token[4..12]) && !text.contains(&token[12..]), "{value:#}");
    assert_eq!(value["content"][0]["text"], "one [redacted: secret] two");
    assert_eq!(value["structuredContent"]["password"], "[redacted: secret]");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_was_cleaned_has_no_secret_left(
        parts in prop::collection::vec(
            prop_oneof![
                "\\PC{0,12}",
                prop::sample::select(vec!["password=", "\"", " ", "https://a:", "@h", "sk-", "-----BEGIN PRIVATE KEY-----",
                    "-----END PRIVATE KEY-----", "Bearer ", "Authorization: ", "PuTTY-User-Key-File-", "Private-Lines:"])
                    .prop_map(str::to_owned),
                "[A-Za-z0-9]{8,40}",
            ],
            0..12,
        )
    ) {
        let text = parts.concat();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let sanitiser = load(json!({}));
        let clean = |text: &str| {
            marks(text, runtime.block_on(ask(&sanitiser, text)), |_| "[redacted: secret]".to_owned()).0
        };
        let once = clean(&text);
        prop_assert_eq!(clean(&once), once);
    }
}

/// The sanitisers of a configuration, as the host loads them, and what is wrong.
fn configured(layers: &[(LayerKind, &str)]) -> (Vec<(String, Option<Fault>)>, Vec<String>) {
    let layer = |(kind, text): &(LayerKind, &str)| EmbeddedLayer {
        kind: *kind,
        text: (*text).to_owned(),
        folder: std::env::temp_dir(),
    };
    let session = SessionSources { embedded: layers.iter().map(layer).collect(), ..SessionSources::default() };
    let resolved = config::load(&Places::nowhere(), &session);
    let set = entries::policies(&resolved, Places::nowhere().user, engine());
    let sanitisers =
        set.sanitisers.iter().map(|bound| (bound.source.to_string(), bound.component.as_ref().err().cloned()));
    (sanitisers.collect(), resolved.problems.iter().map(ToString::to_string).collect())
}

#[test]
fn every_layer_can_switch_it_on_without_a_file_or_a_pin_whatever_may_be_loaded() {
    let entry =
        "[[policies]]\nname = 's'\ncomponent = 'builtin:sanitise-secrets'\nsettings = { classes = ['token'] }\n";
    let managed = format!("[requirements.components]\nsha256 = []\n{entry}");
    for kind in [LayerKind::System, LayerKind::Organisation, LayerKind::User, LayerKind::Project, LayerKind::Session] {
        let (sanitisers, problems) = configured(&[(LayerKind::Managed, &managed), (kind, entry)]);
        assert_eq!(sanitisers, [("managed/s".into(), None), (format!("{}/s", kind.as_str()), None)], "{problems:?}");
    }
}

#[test]
fn a_name_that_is_none_settings_that_it_does_not_take_and_a_folder_are_refused() {
    let entry = |name: &str, more: &str| {
        let text = format!("[[policies]]\nname = 's'\ncomponent = 'builtin:{name}'\n{more}\n");
        let (sanitisers, problems) = configured(&[(LayerKind::User, &text)]);
        let [(_, Some(fault))] = sanitisers.as_slice() else { panic!("{sanitisers:?}") };
        assert_eq!(fault.code, FaultCode::Settings, "{fault}");
        format!("{fault} {problems:?}")
    };
    assert!(entry("sanitise-secret", "").contains("did you mean `builtin:sanitise-secrets`?"));
    assert!(entry("sanitise-secrets", "settings = { clases = [] }").contains("clases"));
    assert!(entry("sanitise-secrets", "data = 'lists'").contains("nothing that a component of this program reads"));
    let pin = format!("sha256 = '{}'", "0".repeat(64));
    let text = format!("[[policies]]\nname = 's'\ncomponent = 'builtin:sanitise-secrets'\n{pin}\n");
    assert_eq!(configured(&[(LayerKind::User, &text)]).0[0].1.as_ref().unwrap().code, FaultCode::Digest);
}

#[tokio::test(start_paused = true)]
async fn a_secret_in_a_protocol_error_goes_too() {
    let mut sanitiser = bound(LayerKind::User, "secrets", &Cleaner::passes());
    sanitiser.component = Ok(load(json!({})));
    let bench = Bench::new(&Policies::open(&["files", "mail"]).cleaning(sanitiser)).await;
    let token = ["gl", "pat-0a1B2c3D4e5F6g7H8i9J"].concat();
    bench.files.answers(How::Protocol(-32000, format!("bad token {token}").leak()));
    let finished = bench.write().await;
    let shown = format!("{:?} {:?}", finished.clean.answer(), finished.item);
    assert!(!shown.contains(&token[6..]) && shown.contains("[redacted: secret]"), "{shown}");
}
