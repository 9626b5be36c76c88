//! The baseline, through the real component: steps A1 and A2 for every posture and every combination of hints (R10).

use portcullis::adapters::wasm::{WasmApproval, builtin};
use portcullis::model::posture::{ApprovalMode, ApprovalPolicy, Posture, Profile};
use portcullis::model::tool::Hints;
use portcullis::model::verdict::{Remember, Reviewers, Verdict};
use portcullis::ports::approval::CallFacts;

use crate::support::policy::{ask, facts, load};

/// The rule again, from approval-results 1.1 and 1.2, written apart from the component.
fn needs_asking(posture: Posture, hints: Hints) -> bool {
    let full = posture.policy == ApprovalPolicy::Never && posture.profile == Profile::Full;
    let auto = if hints.destructive == Some(true) {
        true
    } else if hints.read_only == Some(true) {
        false
    } else {
        hints.destructive.unwrap_or(true) || hints.open_world.unwrap_or(true)
    };
    !full
        && match posture.mode {
            ApprovalMode::Approve => false,
            ApprovalMode::Prompt => true,
            ApprovalMode::Writes => hints.read_only != Some(true),
            ApprovalMode::Auto => auto,
        }
}

fn postures() -> Vec<Posture> {
    let mut all = Vec::new();
    for policy in
        [ApprovalPolicy::Untrusted, ApprovalPolicy::OnRequest, ApprovalPolicy::Granular, ApprovalPolicy::Never]
    {
        for profile in [Profile::ReadOnly, Profile::Workspace, Profile::Full] {
            for mode in [ApprovalMode::Approve, ApprovalMode::Auto, ApprovalMode::Writes, ApprovalMode::Prompt] {
                for strict_review in [false, true] {
                    all.push(Posture { policy, profile, mode, strict_review });
                }
            }
        }
    }
    all
}

fn all_hints() -> Vec<Hints> {
    const ANY: [Option<bool>; 3] = [None, Some(false), Some(true)];
    let mut all = Vec::new();
    for read_only in ANY {
        for destructive in ANY {
            for open_world in ANY {
                all.push(Hints { read_only, destructive, idempotent: None, open_world });
            }
        }
    }
    all
}

async fn answer(baseline: &WasmApproval, posture: Posture, hints: Hints) -> Verdict {
    let evaluation = ask(baseline, CallFacts { posture, hints, ..facts("files/write_file", "{}") }).await;
    assert!(evaluation.labels.is_empty() && evaluation.log.is_empty());
    evaluation.result.unwrap()
}

#[tokio::test]
async fn r10_the_baseline_follows_its_truth_table() {
    let baseline = load(builtin::APPROVAL_BASELINE).unwrap();
    for posture in postures() {
        for hints in all_hints() {
            let verdict = answer(&baseline, posture, hints).await;
            let asked = matches!(verdict, Verdict::Ask(_));
            assert!(asked || matches!(verdict, Verdict::Allow(_)), "{posture:?} {hints:?} gave {verdict:?}");
            assert_eq!(asked, needs_asking(posture, hints), "{posture:?} {hints:?}");
        }
    }
}

#[tokio::test]
async fn r10_only_the_mode_auto_offers_to_remember() {
    let baseline = load(builtin::APPROVAL_BASELINE).unwrap();
    for (mode, remember, rule) in [
        (ApprovalMode::Auto, Remember::Always, "may-destroy-or-reach-out"),
        (ApprovalMode::Writes, Remember::Never, "mode-writes"),
        (ApprovalMode::Prompt, Remember::Never, "mode-prompt"),
    ] {
        let Verdict::Ask(asked) = answer(&baseline, Posture { mode, ..Posture::default() }, Hints::default()).await
        else {
            panic!("{mode:?} did not ask");
        };
        assert_eq!(asked.remember, remember);
        assert_eq!(asked.reason.rule.unwrap().as_str(), rule);
        assert!(!asked.bind_arguments);
        assert_eq!(asked.reviewers, Reviewers::default());
    }
}

#[tokio::test]
async fn r42_a_reading_tool_that_reaches_out_is_not_asked_for() {
    let baseline = load(builtin::APPROVAL_BASELINE).unwrap();
    // Rows D21 and D22.
    for destructive in [None, Some(false)] {
        let hints = Hints { read_only: Some(true), destructive, idempotent: None, open_world: Some(true) };
        let Verdict::Allow(reason) = answer(&baseline, Posture::default(), hints).await else { panic!("asked") };
        assert_eq!(reason.rule.unwrap().as_str(), "read-only-hint");
    }
}
