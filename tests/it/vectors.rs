//! The rows of `vectors/approval.json` through the whole pipeline, once with the real baseline and once with the stand-in.
//!
//! Left out are rows that need what is later work: hooks, Apps, plugin servers, the auto reviewer, a channel without
//! elicitation. The exact list is asserted. A row that says "remembered" is run after a call of the same session that was
//! agreed to for the session.

use std::sync::Arc;

use portcullis::adapters::wasm::builtin;
use portcullis::model::layer::LayerKind;
use portcullis::model::outcome::Code;
use portcullis::model::posture::{ApprovalMode, ApprovalPolicy, Profile, Reviewer};
use portcullis::model::verdict::Remember;
use portcullis::pipeline::{Finished, Would};
use portcullis::ports::approval::ApprovalComponent;
use portcullis::ports::reviewer::Reply;
use serde::Deserialize;

use crate::fakes::bench::Bench;
use crate::fakes::people::{Person, allowed};
use crate::fakes::policy::{Policies, baseline};
use crate::fakes::server::tool_with;
use crate::support::policy::load;

#[derive(Deserialize)]
struct Vectors {
    rows: Vec<Row>,
}

/// One row. A field that this test does not know is an error: no row is run without all that it says.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    id: String,
    server_kind: String,
    approval_policy: String,
    profile: String,
    mode: String,
    read_only_hint: Option<bool>,
    destructive_hint: Option<bool>,
    open_world_hint: Option<bool>,
    reviewer: String,
    #[serde(default)]
    remembered: bool,
    hook: Option<String>,
    #[serde(default)]
    strict_auto_review: bool,
    elicitation: Option<bool>,
    #[serde(rename = "connector_id")]
    _connector_id: Option<String>,
    expected: Expected,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    outcome: String,
    step: String,
    options: Vec<String>,
}

fn rows() -> Vec<Row> {
    serde_json::from_str::<Vectors>(include_str!("../vectors/approval.json")).unwrap().rows
}

impl Row {
    /// Why the row cannot be run yet.
    fn needs(&self) -> Option<&'static str> {
        match self {
            row if row.server_kind == "apps" => Some("an App"),
            row if row.server_kind == "plugin" => Some("a plugin's server"),
            row if row.hook.is_some() => Some("a hook"),
            row if row.expected.outcome == "guardian" => Some("the auto reviewer"),
            row if row.elicitation == Some(false) => Some("a channel without elicitation"),
            _ => None,
        }
    }

    fn policies(&self, baseline: &Arc<dyn ApprovalComponent>, policy: ApprovalPolicy, mode: ApprovalMode) -> Policies {
        let profile = match self.profile.as_str() {
            "disabled" | "external" | "managed-unrestricted" | "managed-root-write" => Profile::Full,
            "managed-workspace" => Profile::Workspace,
            "managed-read-only" => Profile::ReadOnly,
            other => panic!("no profile is called {other}"),
        };
        let reviewer: Reviewer = parse(&self.reviewer);
        Policies::new()
            .baseline(Arc::clone(baseline))
            .posture(LayerKind::User, |posture| {
                (posture.policy, posture.profile, posture.reviewer) = (Some(policy), Some(profile), Some(reviewer));
                posture.strict_review = Some(self.strict_auto_review);
            })
            .mode(LayerKind::User, "files", mode)
    }

    fn tool(&self) -> String {
        let hints = [
            ("readOnlyHint", self.read_only_hint),
            ("destructiveHint", self.destructive_hint),
            ("openWorldHint", self.open_world_hint),
        ];
        let hints: serde_json::Map<_, _> =
            hints.into_iter().filter_map(|(name, hint)| Some((name.to_owned(), hint?.into()))).collect();
        tool_with("write", &serde_json::Value::Object(hints).to_string())
    }
}

/// Reads a word as the configuration spells it.
fn parse<T: for<'de> Deserialize<'de>>(word: &str) -> T {
    T::deserialize(serde::de::value::StrDeserializer::<serde::de::value::Error>::new(word)).unwrap()
}

/// What came of a row, in the vectors' own words.
#[derive(Debug, PartialEq)]
struct Outcome {
    outcome: &'static str,
    options: Vec<&'static str>,
    decided_by: Option<String>,
}

async fn run(row: &Row, baseline: &Arc<dyn ApprovalComponent>) -> (Outcome, Finished, Would) {
    let (policy, mode) = (parse(&row.approval_policy), parse(&row.mode));
    let before = row.policies(baseline, ApprovalPolicy::OnRequest, ApprovalMode::Auto);
    let bench = Bench::new(&before).await;
    bench.redefine(&bench.files, vec![row.tool()]).await;
    if row.remembered {
        let yes = Person::replying(&bench.journal, [allowed(Remember::Session)]);
        bench.write_asking(yes.clone()).await;
        assert_eq!((yes.questions().len(), bench.purse.kept().len()), (1, 1), "{} was not remembered", row.id);
    }
    bench.decide_by(&row.policies(baseline, policy, mode)).await;
    let sent = bench.files.handed().len();
    let explained = bench.pipeline.explain(bench.request("files/write", "{}")).await;
    let person = Person::replying(&bench.journal, [Reply::Declined]);
    let finished = bench.write_asking(person.clone()).await;
    let options = person.questions().first().map_or_else(Vec::new, |question| {
        let named = question.options.iter().map(|option| match option {
            Remember::Never => "Allow",
            Remember::Session => "Session",
            Remember::Always => "Always",
        });
        named.chain(["Cancel"]).collect()
    });
    let outcome = match finished.item.failure().map(|failure| failure.code) {
        None => "run",
        Some(Code::Declined) => "ask",
        Some(Code::NeverAsks) => "reject",
        Some(other) => panic!("{} ended as {other:?}", row.id),
    };
    assert_eq!(bench.files.handed().len() - sent, usize::from(outcome == "run"), "{} was sent or not", row.id);
    let by_grant = matches!(explained.would, Would::Run { grant: Some(_) }).then(|| "A3 remembered".to_owned());
    (Outcome { outcome, options, decided_by: by_grant }, finished, explained.would)
}

async fn every_row_passes(baseline: Arc<dyn ApprovalComponent>) {
    for row in rows().iter().filter(|row| row.needs().is_none()) {
        let (got, _finished, would) = run(row, &baseline).await;
        let remembered = row.expected.step == "A3 remembered";
        let wanted = (row.expected.outcome.as_str(), &row.expected.options, remembered);
        let options: Vec<String> = got.options.iter().map(|&option| option.to_owned()).collect();
        assert_eq!((got.outcome, &options, got.decided_by.is_some()), wanted, "row {}", row.id);
        let explained = match would {
            Would::Run { .. } => "run",
            Would::Ask { .. } => "ask",
            Would::Fail(_) => "reject",
        };
        assert_eq!(explained, row.expected.outcome, "explaining row {} (R38)", row.id);
    }
}

#[tokio::test]
async fn every_row_passes_with_the_real_baseline() {
    every_row_passes(load(builtin::APPROVAL_BASELINE).unwrap()).await;
}

#[tokio::test(start_paused = true)]
async fn every_row_passes_with_the_stand_in_that_the_other_tests_use() {
    every_row_passes(baseline()).await;
}

#[test]
fn the_rows_that_are_left_out_are_known() {
    let mut left_out: std::collections::BTreeMap<&str, Vec<String>> = std::collections::BTreeMap::new();
    for row in rows() {
        if let Some(why) = row.needs() {
            left_out.entry(why).or_default().push(row.id);
        }
    }
    for (why, rows) in &left_out {
        println!("left out, for they need {why}: {}", rows.join(" "));
    }
    let wanted: [(&str, &[&str]); 5] = [
        ("a channel without elicitation", &["D53"]),
        ("a hook", &["D38", "D41", "D42", "D43", "D44", "D45", "D46", "D65", "D66"]),
        ("a plugin's server", &["D40", "D54", "D55"]),
        ("an App", &["D39", "D51", "D56", "D57", "D58"]),
        ("the auto reviewer", &["D47", "D48", "D60", "D61", "D62", "D63", "D64"]),
    ];
    let got: Vec<_> = left_out.into_iter().collect();
    let wanted: Vec<_> =
        wanted.iter().map(|(why, rows)| (*why, rows.iter().map(|row| (*row).to_owned()).collect())).collect();
    assert_eq!(got, wanted);
    assert_eq!(rows().len(), 66);
}

/// Without an auto reviewer these rows end where it would be asked: nobody is asked in its place, nothing is sent.
#[tokio::test(start_paused = true)]
async fn a_row_that_needs_the_auto_reviewer_asks_nobody_else() {
    for row in rows().iter().filter(|row| row.needs() == Some("the auto reviewer")) {
        let (policy, mode) = (parse(&row.approval_policy), parse(&row.mode));
        let bench = Bench::new(&row.policies(&baseline(), policy, mode)).await;
        bench.redefine(&bench.files, vec![row.tool()]).await;
        let person = Person::replying(&bench.journal, [allowed(Remember::Never)]);
        let finished = bench.write_asking(person.clone()).await;
        assert_eq!(finished.item.failure().map(|failure| failure.code), Some(Code::NobodyToAsk), "row {}", row.id);
        assert!(person.questions().is_empty() && bench.files.handed().is_empty(), "row {}", row.id);
    }
}
