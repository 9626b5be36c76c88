//! The rows of `vectors/approval.json` through the whole pipeline, once with the real baseline and once with the stand-in.
//!
//! Where one of our rules says otherwise than the row, [`OURS`] has what we expect instead, with the rule. A row that says
//! "remembered" is run after a call of the same session that was agreed to for the session. A row's hook and its auto
//! reviewer are those of the layer that set the posture; the reviewer denies, so that it is seen to have been asked.

use std::sync::Arc;

use portcullis::adapters::wasm::builtin;
use portcullis::model::hook::HookEvent;
use portcullis::model::layer::LayerKind;
use portcullis::model::outcome::Code;
use portcullis::model::posture::{ApprovalMode, ApprovalPolicy, Profile, Reviewer};
use portcullis::model::tool::Plugin;
use portcullis::model::verdict::Remember;
use portcullis::pipeline::{CallRequest, Would};
use portcullis::ports::approval::ApprovalComponent;
use portcullis::ports::recorder::Consent;
use portcullis::ports::reviewer::Reply;
use serde::Deserialize;
use serde_json::json;

use crate::fakes::bench::Bench;
use crate::fakes::hook::{ScriptedHook, hook};
use crate::fakes::judge::{DENY, Judge, judging};
use crate::fakes::people::{Person, allowed};
use crate::fakes::policy::{Policies, baseline, bound_connector_baseline};
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
    /// Some of none: an App's tool whose connector nobody knows.
    #[serde(default, deserialize_with = "present")]
    connector_id: Option<Option<String>>,
    expected: Expected,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    outcome: String,
    step: String,
    options: Vec<String>,
}

/// A field that is there, null included.
fn present<'de, D: serde::Deserializer<'de>>(field: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(field).map(Some)
}

fn rows() -> Vec<Row> {
    serde_json::from_str::<Vectors>(include_str!("../vectors/approval.json")).unwrap().rows
}

/// Rows that end otherwise here: the row, the outcome and step that we expect, and the rule behind it.
const OURS: [(&str, &str, &str, &str); 1] = [
    // A hook's allow does not bypass strict review.
    ("D65", "guardian", "G strict", "R12 and R18"),
];

impl Row {
    fn is_app(&self) -> bool {
        self.server_kind == "apps"
    }

    /// What is expected here: outcome and step.
    fn wanted(&self) -> (&str, &str) {
        let own = OURS.iter().find(|(id, ..)| *id == self.id);
        own.map_or((&self.expected.outcome, &self.expected.step), |(_, outcome, step, _)| (outcome, step))
    }

    fn policies(&self, baseline: &Arc<dyn ApprovalComponent>, policy: ApprovalPolicy, mode: ApprovalMode) -> Policies {
        let profile = match self.profile.as_str() {
            "disabled" | "external" | "managed-unrestricted" | "managed-root-write" => Profile::Full,
            "managed-workspace" => Profile::Workspace,
            "managed-read-only" => Profile::ReadOnly,
            other => panic!("no profile is called {other}"),
        };
        let reviewer: Reviewer = parse(&self.reviewer);
        let set = Policies::new().baseline(Arc::clone(baseline)).posture(LayerKind::User, |posture| {
            (posture.policy, posture.profile, posture.reviewer) = (Some(policy), Some(profile), Some(reviewer));
            posture.strict_review = Some(self.strict_auto_review);
        });
        if self.is_app() {
            // The modes of Apps are those of their connector policy; what is said of the server counts for nothing.
            let settings = json!({ "apps": { "calendar": { "default_tools_approval_mode": mode.as_str() } } });
            return set.and_app(bound_connector_baseline(LayerKind::User, settings));
        }
        set.mode(LayerKind::User, "files", mode)
    }

    /// The policies of the row's own call, hooks and reviewers included.
    fn whole(&self, baseline: &Arc<dyn ApprovalComponent>, judge: &Arc<Judge>) -> Policies {
        let set = self.policies(baseline, parse(&self.approval_policy), parse(&self.mode));
        let set = set.reviewer(judging(LayerKind::User, judge));
        let program = match self.hook.as_deref() {
            None => return set,
            Some("allow") => ScriptedHook::prints(json!({ "hookSpecificOutput": {
                "hookEventName": "PermissionRequest", "decision": { "behavior": "allow" } } })),
            Some("deny") => ScriptedHook::blocks("not today"),
            Some(other) => panic!("no hook says {other}"),
        };
        set.hook(hook(LayerKind::User, HookEvent::PermissionRequest, &program))
    }

    /// Makes the server what the row says it is.
    async fn dress(&self, bench: &Bench) {
        match self.server_kind.as_str() {
            "plain" => {}
            "plugin" => {
                let plugin = Plugin { id: "kit".to_owned(), name: "Kit".to_owned() };
                bench.change(&bench.files, |published| published.view.plugin = Some(plugin));
            }
            "apps" => {
                // The Apps server has connectors; whether this tool is one of theirs is the row's to say.
                let tool = if self.connector_id == Some(None) { "read" } else { "write" };
                bench.link_tool(tool, "calendar").await;
            }
            other => panic!("no server is {other}"),
        }
        bench.redefine(&bench.files, vec![self.tool(), tool_with("read", "{}")]).await;
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
    step: &'static str,
    options: Vec<&'static str>,
}

async fn run(row: &Row, baseline: &Arc<dyn ApprovalComponent>) -> (Outcome, Would) {
    let before = row.policies(baseline, ApprovalPolicy::OnRequest, ApprovalMode::Auto);
    let before = before.posture(LayerKind::User, |posture| {
        (posture.strict_review, posture.reviewer) = (None, None);
    });
    let bench = Bench::new(&before).await;
    row.dress(&bench).await;
    if row.remembered {
        let yes = Person::replying(&bench.journal, [allowed(Remember::Session)]);
        bench.write_asking(yes.clone()).await;
        // Without a connector there is nothing to remember an App's call by.
        let kept = usize::from(row.connector_id != Some(None));
        assert_eq!((yes.questions().len(), bench.purse.kept().len()), (1, kept), "{} was not remembered", row.id);
    }
    let judge = Judge::says(DENY);
    bench.decide_by(&row.whole(baseline, &judge)).await;
    let sent = bench.files.handed().len();
    let person = Person::replying(&bench.journal, [Reply::Declined]);
    let person = if row.elicitation == Some(false) { person.without_always() } else { person };
    let explaining = CallRequest { reviewer: person.clone(), ..bench.request("files/write", "{}") };
    let explained = bench.pipeline.explain(explaining).await;
    assert!(person.questions().is_empty() && judge.actions().is_empty(), "explaining {} asked somebody", row.id);
    let finished = bench.write_asking(person.clone()).await;
    let options = person.questions().first().map_or_else(Vec::new, |question| {
        let named = question.options.iter().map(|option| match option {
            Remember::Never => "Allow",
            Remember::Session => "Session",
            Remember::Always => "Always",
        });
        named.chain(["Cancel"]).collect()
    });
    let record = bench.tape.decisions().pop().unwrap();
    let (outcome, step) = match (finished.item.failure().map(|failure| failure.code), &record.consent) {
        // Which of A1 and A2 let it run is the baseline's own affair, and its own test's.
        (None, Consent::Unasked) if row.wanted().1.starts_with("A1") => ("run", "A1 auto-approve"),
        (None, Consent::Unasked) => ("run", "A2 hints"),
        (None, Consent::Grant { .. }) => ("run", "A3 remembered"),
        (None, Consent::Hook { .. }) => ("run", "H hook allow"),
        (Some(Code::HookDenied), _) => ("reject", "H hook message"),
        (Some(Code::ReviewDenied), _) if row.strict_auto_review => ("guardian", "G strict"),
        (Some(Code::ReviewDenied), _) => ("guardian", "G reviewer"),
        (Some(Code::Declined), _) => ("ask", "U prompt"),
        (Some(Code::NeverAsks), _) => ("reject", "U never"),
        other => panic!("{} ended as {other:?}", row.id),
    };
    assert_eq!(judge.actions().len(), usize::from(outcome == "guardian"), "{}", row.id);
    assert_eq!(bench.files.handed().len() - sent, usize::from(outcome == "run"), "{} was sent or not", row.id);
    (Outcome { outcome, step, options }, explained.would)
}

async fn every_row_passes(baseline: Arc<dyn ApprovalComponent>) {
    for row in rows() {
        let (got, would) = run(&row, &baseline).await;
        let (outcome, step) = row.wanted();
        assert_eq!((got.outcome, got.step), (outcome, step), "row {}", row.id);
        assert_eq!(got.options, row.expected.options, "row {}", row.id);
        // What a hook would say is its own to say: without it, somebody would be asked, or nobody may be.
        let explained = match would {
            Would::Run { .. } => "run",
            Would::Ask { reviewers, .. } if reviewers.auto => "guardian",
            Would::Ask { .. } => "ask",
            Would::Fail(_) => "reject",
        };
        let expected = match (step, row.approval_policy.as_str(), row.strict_auto_review) {
            ("H hook allow" | "H hook message", _, true) => "guardian",
            ("H hook allow" | "H hook message", "never", false) => "reject",
            ("H hook allow", ..) if row.reviewer == "auto_review" => "guardian",
            ("H hook allow" | "H hook message", ..) => "ask",
            _ => outcome,
        };
        assert_eq!(explained, expected, "explaining row {} (R38)", row.id);
    }
}

#[tokio::test]
async fn every_row_passes_with_the_real_baseline() {
    every_row_passes(load(builtin::APPROVAL_BASELINE).unwrap()).await;
}

#[tokio::test]
async fn every_row_passes_with_the_stand_in_that_the_other_tests_use() {
    every_row_passes(baseline()).await;
}

#[test]
fn there_are_sixty_six_rows_and_ours_are_among_them() {
    let rows = rows();
    assert_eq!(rows.len(), 66);
    for (id, outcome, step, rule) in OURS {
        let row = rows.iter().find(|row| row.id == id).unwrap();
        assert_ne!((row.expected.outcome.as_str(), row.expected.step.as_str()), (outcome, step), "{id}: {rule}");
    }
}
