//! Whatever a component does, it is stopped, the call gets a fault with the right code, and the engine works afterwards.

mod admission;
mod circuits;
mod handmade;
mod mutants;
mod neighbours;
mod sanitisers;
mod table;
mod tunable;

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use portcullis::adapters::wasm::{Admission, Class, Engine, Limits, WasmApproval, builtin};
use portcullis::config::data::DataFiles;
use portcullis::model::caller::Caller;
use portcullis::model::verdict::{FaultCode, MAX_REASON, Remember, Verdict};
use portcullis::ports::approval::{ApprovalComponent as _, CallFacts, Evaluation};
use serde_json::{Value, json};

use crate::support::policy::{approval, ask, engine, facts, load, patient, source};

fn hostile() -> Arc<WasmApproval> {
    load(&guest_builder::build("hostile").unwrap()).unwrap()
}

async fn behave(how: &str) -> Evaluation {
    let evaluation = ask(&hostile(), facts(&format!("test/{how}"), "{}")).await;
    works_still().await;
    evaluation
}

use neighbours::neighbours_work;

/// The engine, the very component and others answer an ordinary call.
pub(super) async fn works_still() {
    neighbours_work().await;
    let evaluation = ask(&hostile(), facts("test/echo", r#"{"text":"still here"}"#)).await;
    assert_eq!(text(&evaluation), "still here");
}

fn text(evaluation: &Evaluation) -> &str {
    match &evaluation.result {
        Ok(Verdict::Deny(reason)) => &reason.text,
        other => panic!("no denial: {other:?}"),
    }
}

fn code(evaluation: &Evaluation) -> FaultCode {
    evaluation.result.as_ref().expect_err("it was not stopped").code
}

/// What fuel and deadline have in common: which of them is first depends on the machine.
pub(super) fn is_out_of_budget(code: FaultCode) -> bool {
    matches!(code, FaultCode::Fuel | FaultCode::Deadline)
}

#[tokio::test]
async fn r14_a_component_that_runs_for_ever_is_stopped() {
    for how in ["loop", "log-for-ever", "read-for-ever"] {
        let evaluation = behave(how).await;
        assert!(is_out_of_budget(code(&evaluation)), "{how}: {:?}", evaluation.result);
        assert!(evaluation.log.len() <= 33, "{how} kept {} lines", evaluation.log.len());
    }
}

#[tokio::test]
async fn r14_time_is_the_safety_net_where_fuel_is_left() {
    let limits = Limits { time: Duration::from_millis(1), ..Limits::of(Class::Script) };
    let bytes = guest_builder::build("hostile").unwrap();
    let component = approval(engine(), &bytes, Admission { limits, ..Admission::plain(source("slow")) }).unwrap();
    let evaluation = ask(&component, facts("test/loop", "{}")).await;
    assert_eq!(code(&evaluation), FaultCode::Deadline);
    assert!(evaluation.usage.fuel < limits.fuel);
    works_still().await;
}

#[tokio::test]
async fn a_component_that_traps_is_stopped() {
    for how in ["panic", "divide-by-zero", "index-out-of-bounds"] {
        assert_eq!(code(&behave(how).await), FaultCode::Trap, "{how}");
    }
}

#[tokio::test]
async fn a_component_that_allocates_without_end_is_stopped() {
    for how in ["allocate", "allocate-at-once", "reason-of-100-megabytes"] {
        let evaluation = behave(how).await;
        assert!(code(&evaluation) == FaultCode::Memory || how == "allocate" && is_out_of_budget(code(&evaluation)));
    }
}

#[tokio::test]
async fn a_component_that_recurses_without_end_is_stopped() {
    assert_eq!(code(&behave("recurse").await), FaultCode::Stack);
}

#[tokio::test]
async fn r41_an_answer_that_is_too_large_is_a_fault_and_never_cut() {
    for how in ["reason-of-65-kibibytes", "reason-of-60-megabytes", "log-a-megabyte"] {
        let evaluation = behave(how).await;
        let code = code(&evaluation);
        // Filling tens of megabytes can take longer than the deadline on a busy machine.
        assert!(code == FaultCode::OutputTooLarge || how.contains("mega") && is_out_of_budget(code), "{how}: {code}");
    }
}

#[tokio::test]
async fn r30_a_long_reason_is_shortened_for_people() {
    let evaluation = behave("reason-of-60-kibibytes").await;
    assert!(text(&evaluation).len() <= MAX_REASON);
    assert!(text(&evaluation).ends_with('…'));
}

#[tokio::test]
async fn r30_an_illegal_rule_or_label_is_a_fault() {
    for how in
        ["rule-of-prose", "rule-of-nothing", "rule-of-65", "label-of-prose", "labels-17", "labels-5000", "bad-glob"]
    {
        let evaluation = behave(how).await;
        assert!(
            code(&evaluation) == FaultCode::OutputInvalid
                || how == "labels-5000" && code(&evaluation) == FaultCode::OutputTooLarge,
            "{how}: {:?}",
            evaluation.result
        );
        assert!(evaluation.labels.is_empty(), "{how} set labels all the same");
    }
}

#[tokio::test]
async fn labels_carry_who_set_them() {
    let evaluation = behave("labels-16").await;
    assert_eq!(evaluation.labels.len(), 16);
    let label = &evaluation.labels[0];
    assert_eq!((label.name.as_str(), &*label.source.component), ("label-0", "under-test"));
    assert_eq!(label.source.digest, Some(hostile().digest()));
}

#[tokio::test]
async fn what_nobody_granted_is_a_fault_when_it_is_called() {
    let fault = behave("data").await.result.unwrap_err();
    assert_eq!(fault.code, FaultCode::MissingImport, "{fault}");
    assert!(fault.detail.contains("host.data"), "{fault}");
}

#[tokio::test]
async fn data_is_what_lay_in_the_folder_and_nothing_else() {
    let files = DataFiles::new([("lists/inside.txt".to_owned(), b"inside".to_vec())].into());
    let wanted = Admission { data: Some(Arc::new(files)), limits: patient(), ..Admission::plain(source("reader")) };
    let component = approval(engine(), &guest_builder::build("hostile").unwrap(), wanted).unwrap();
    let evaluation = ask(&component, facts("test/data-everywhere", "{}")).await;
    assert_eq!(text(&evaluation), "6 no no no no no");
    works_still().await;
}

#[tokio::test]
async fn r33_without_a_past_there_is_no_history_no_label_and_a_count_of_one() {
    for (how, said) in [("count", "1"), ("history", "0"), ("labels", "0")] {
        assert_eq!(text(&behave(how).await), said, "{how}");
    }
}

#[tokio::test]
async fn r41_a_read_of_more_than_a_mebibyte_is_a_fault() {
    let big = |bytes: usize| format!(r#"{{"text":"{}"}}"#, "x".repeat(bytes));
    let component = hostile();
    for tool in ["test/read-everything", "test/echo"] {
        let evaluation = ask(&component, facts(tool, &big(1 << 20 | 1))).await;
        assert_eq!(code(&evaluation), FaultCode::InputTooLarge, "{tool}");
    }
    let evaluation = ask(&component, facts("test/read-everything", &big((1 << 20) - 11))).await;
    assert_eq!(text(&evaluation), "1048576");
}

#[tokio::test]
async fn a_log_is_bounded_and_cannot_move_the_cursor() {
    let evaluation = behave("log-and-abstain").await;
    assert_eq!(evaluation.result, Ok(Verdict::Abstain));
    assert_eq!(evaluation.log.len(), 33);
    assert_eq!(evaluation.log[0].text, "line 0\\u{1b}[2J");
    assert_eq!(evaluation.log[32].text, "further lines were left out");
}

#[tokio::test]
async fn nothing_is_left_of_a_call_for_the_next() {
    let component = hostile();
    for _ in 0..3 {
        assert_eq!(text(&ask(&component, facts("test/count-calls", "{}")).await), "1");
    }
}

#[tokio::test]
async fn calls_at_once_see_only_their_own_facts() {
    let component = hostile();
    let asked = (0..200).map(|i| {
        let component = Arc::clone(&component);
        async move { (i, ask(&component, facts("test/echo", &format!(r#"{{"text":"call {i}"}}"#))).await) }
    });
    for (i, evaluation) in futures::future::join_all(asked).await {
        assert_eq!(text(&evaluation), format!("call {i}"));
    }
}

#[tokio::test]
async fn a_call_that_is_given_up_leaves_the_component_usable() {
    let component = hostile();
    for _ in 0..8 {
        let asked = component.evaluate(Arc::new(facts("test/loop", "{}")));
        tokio::pin!(asked);
        assert!(futures::poll!(&mut asked).is_pending());
    }
    works_still().await;
}

#[tokio::test]
async fn a_component_is_told_what_the_interface_says() {
    let bytes = guest_builder::build("hostile").unwrap();
    let settings = json!({"z": 1, "a": [1000]});
    let component =
        approval(engine(), &bytes, Admission { settings, limits: patient(), ..Admission::plain(source("curious")) })
            .unwrap();
    let arguments = r#"{"items":[{"name":"a/b","n":1000},{"name":"c"}],"deep":{"name":"d"}}"#;
    let facts = CallFacts { caller: Caller::local("tester"), ..facts("test/tell", arguments) };
    let evaluation = ask(&component, facts).await;
    let told: Vec<_> = text(&evaluation).split('|').collect();
    assert_eq!(
        told,
        [
            "0 test tell",
            r#"local Some("tester") []"#,
            "on-request workspace false",
            r#"Some("{\"n\":1000,\"name\":\"a/b\"}") None"#,
            r#"Some("c") None"#,
            "/items/0/name=a/b /items/1/name=c",
            r#"{"deep":{"name":"d"},"items":[{"n":1000,"name":"a/b"},{"name":"c"}]}"#,
            r#"{"a":[1000],"z":1} Some("1000") None"#,
            "1700000000000 false",
        ]
    );
}

#[test]
fn shipped_components_name_no_machine_and_no_registry() {
    let sums = std::fs::read_to_string(guest_builder::workspace().join("policies/artifacts/SHA256SUMS")).unwrap();
    let shipped = [
        ("approval-baseline", builtin::APPROVAL_BASELINE),
        ("connector-baseline", builtin::CONNECTOR_BASELINE),
        ("demo-broken", builtin::DEMO_BROKEN),
        ("demo-managed", builtin::DEMO_MANAGED),
        ("demo-organisation", builtin::DEMO_ORGANISATION),
        ("sanitise-secrets", builtin::SANITISE_SECRETS),
    ];
    assert_eq!(shipped.map(|(name, _)| name), guest_builder::SHIPPED);
    let root = guest_builder::workspace();
    for (name, bytes) in shipped {
        let line = format!("{}  {name}.wasm", guest_builder::sha256(bytes));
        assert!(sums.lines().any(|sum| sum == line), "SHA256SUMS lacks `{line}`");
        let text = String::from_utf8_lossy(bytes);
        for trace in [root.to_str().unwrap(), "/home/", "/root/", "/Users/", "registry", "index.", ".cargo", "http"] {
            assert!(!text.contains(trace), "`{name}` contains `{trace}`");
        }
    }
}

#[tokio::test]
async fn equal_calls_use_equal_fuel() {
    let component = hostile();
    let mut fuel = BTreeSet::new();
    for _ in 0..5 {
        fuel.insert(ask(&component, facts("test/echo", r#"{"text":"same"}"#)).await.usage.fuel);
    }
    assert_eq!(fuel.len(), 1, "{fuel:?}");
    assert!(fuel.first().is_some_and(|fuel| (1..20_000_000).contains(fuel)));
}

#[tokio::test]
async fn an_engine_without_a_memory_pool_isolates_as_well() {
    let engine = Engine::on_demand().unwrap();
    assert!(!engine.is_pooling());
    let bytes = guest_builder::build("hostile").unwrap();
    let component =
        approval(&engine, &bytes, Admission { limits: patient(), ..Admission::plain(source("on-demand")) }).unwrap();
    for (how, want) in [
        ("panic", FaultCode::Trap),
        ("allocate-at-once", FaultCode::Memory),
        ("recurse", FaultCode::Stack),
        ("reason-of-65-kibibytes", FaultCode::OutputTooLarge),
    ] {
        assert_eq!(code(&ask(&component, facts(&format!("test/{how}"), "{}")).await), want, "{how}");
        assert_eq!(text(&ask(&component, facts("test/echo", r#"{"text":"fine"}"#)).await), "fine");
    }
    assert!(is_out_of_budget(code(&ask(&component, facts("test/loop", "{}")).await)));
    assert_eq!(text(&ask(&component, facts("test/echo", r#"{"text":"fine"}"#)).await), "fine");
}

#[test]
fn where_the_address_space_is_small_there_is_no_pool_and_no_other_difference() {
    let test = "isolation::in_a_small_address_space";
    let output = Command::new("sh")
        .args(["-c", r#"ulimit -v 8000000 && exec "$0" --exact --ignored "$1""#])
        .arg(std::env::current_exe().unwrap())
        .arg(test)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
}

#[tokio::test]
#[ignore = "run by the test above, in a process with a limit"]
async fn in_a_small_address_space() {
    let engine = Engine::new().unwrap();
    assert!(!engine.is_pooling());
    let baseline = approval(
        &engine,
        builtin::APPROVAL_BASELINE,
        Admission { limits: patient(), ..Admission::plain(source("small")) },
    )
    .unwrap();
    assert!(matches!(ask(&baseline, facts("files/read_file", "{}")).await.result, Ok(Verdict::Ask(_))));
}

#[tokio::test]
async fn the_demo_components_do_what_they_say() {
    let (managed, organisation) = (load(builtin::DEMO_MANAGED).unwrap(), load(builtin::DEMO_ORGANISATION).unwrap());
    let rule = async |component: &WasmApproval, tool: &str, arguments: Value| match ask(
        component,
        facts(tool, &arguments.to_string()),
    )
    .await
    .result
    .unwrap()
    {
        Verdict::Abstain => "abstain".to_owned(),
        Verdict::Allow(reason) => format!("allow {}", reason.rule.unwrap()),
        Verdict::Ask(asked) => format!("ask {} {:?}", asked.reason.rule.unwrap(), asked.remember),
        Verdict::Deny(reason) => format!("deny {}", reason.rule.unwrap()),
    };
    assert_eq!(rule(&managed, "mail/send_mail", json!({"to": "ann@example.org"})).await, "abstain");
    for outside in [
        json!({"to": "eve@example.com"}),
        json!({"to": "eve@example.org.evil"}),
        json!({"to": "eve@evil,ann@example.org"}),
        json!({"to": ["ann@example.org"]}),
        json!({}),
    ] {
        assert_eq!(rule(&managed, "mail/send_mail", outside).await, "deny mail-stays-inside");
    }
    assert_eq!(rule(&managed, "vault/read_secret", json!({"name": "root-key"})).await, "deny root-key-is-sealed");
    assert_eq!(rule(&managed, "vault/read_secret", json!({"name": "wifi"})).await, "abstain");
    let session = format!("ask mail-needs-consent {:?}", Remember::Session);
    assert_eq!(rule(&organisation, "mail/send_mail", json!({"to": "ann@example.org"})).await, session);
    assert_eq!(rule(&organisation, "files/read_file", json!({"path": "a"})).await, "allow file-store-is-open");
    assert_eq!(rule(&organisation, "files/delete_file", json!({"path": "a"})).await, "abstain");
    let broken = ask(&load(builtin::DEMO_BROKEN).unwrap(), facts("files/list_files", "{}")).await;
    assert!(is_out_of_budget(code(&broken)));
}

#[test]
fn every_guest_is_built_and_used_by_a_test() {
    // The guests that the tests of this folder, of `baseline`, `apps` and `secrets` run. A new guest comes with its test.
    let tested = [
        "approval-baseline",
        "connector-baseline",
        "demo-broken",
        "demo-managed",
        "demo-organisation",
        "hostile",
        "sanitise-secrets",
        "tunable",
    ];
    let guests = guest_builder::build_all().unwrap();
    assert_eq!(guests.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), tested);
    for (name, bytes) in guests {
        let settings = if name == "tunable" { json!({"word": "word"}) } else { Value::Null };
        let admitted = engine().admit(&bytes, Admission { settings, ..Admission::plain(source(&name)) });
        assert!(admitted.is_ok(), "`{name}` is not admitted: {admitted:?}");
    }
}
