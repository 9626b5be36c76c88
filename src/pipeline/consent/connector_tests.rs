//! The laws of the connector fold, and R13 through the postures.

use proptest::prelude::*;

use super::*;
use crate::model::posture::{ApprovalPolicy, LayerPosture, Profile, ServerModes};
use crate::model::verdict::{FaultCode, RuleId};

fn tool() -> ToolRef {
    ToolRef::parse("apps/send").unwrap()
}

fn opinion(kind: LayerKind, component: &str, enabled: Option<bool>, mode: Option<ApprovalMode>) -> Opinion {
    Opinion {
        source: Source { layer: LayerRef::new(kind), component: component.into(), digest: None },
        may_allow: kind.may_allow_by_default(),
        said: Ok(ConnectorAnswer { rule: RuleId::parse("r"), enabled, mode }),
    }
}

fn failing(kind: LayerKind) -> Opinion {
    Opinion { said: Err(Fault::new(FaultCode::Trap, "x")), ..opinion(kind, "broken", None, None) }
}

fn modes(folded: &Folded) -> Vec<(LayerKind, ApprovalMode)> {
    folded.modes.iter().map(|(layer, mode)| (layer.kind(), *mode)).collect()
}

fn any_opinion() -> impl Strategy<Value = Opinion> {
    use LayerKind::{Managed, Organisation, Project, Session, User};
    let kinds = prop::sample::select(vec![Managed, Organisation, User, Session, Project]);
    let mode = prop::option::of(prop::sample::select(vec![
        ApprovalMode::Approve,
        ApprovalMode::Auto,
        ApprovalMode::Writes,
        ApprovalMode::Prompt,
    ]));
    (kinds, "[abc]", prop::option::of(any::<bool>()), mode, any::<u8>()).prop_map(|(kind, name, enabled, mode, n)| {
        if n < 32 { failing(kind) } else { opinion(kind, &name, enabled, mode) }
    })
}

proptest! {
    #[test]
    fn r15_the_order_of_answers_does_not_matter_and_none_counts_twice(
        opinions in prop::collection::vec(any_opinion(), 0..8),
    ) {
        let folded = fold(&opinions);
        let mut other: Vec<Opinion> = opinions.iter().rev().cloned().collect();
        other.extend(opinions);
        let again = fold(&other);
        prop_assert_eq!((folded.disabled, folded.modes), (again.disabled, again.modes));
    }

    #[test]
    fn r15_one_more_answer_enables_nothing_and_a_failure_disables(
        opinions in prop::collection::vec(any_opinion(), 0..8),
        more in any_opinion(),
    ) {
        let folded = fold(&opinions);
        let with: Vec<Opinion> = opinions.iter().cloned().chain([more.clone()]).collect();
        let then = fold(&with);
        prop_assert!(then.disabled.is_superset(&folded.disabled));
        prop_assert!(more.said.is_ok() || !then.disabled.is_empty());
        // What was evaluated still is; only the built-in mode makes way, and only for a layer that may allow.
        let lost: Vec<_> = folded.modes.difference(&then.modes).collect();
        let made_way = more.may_allow && more.said.as_ref().is_ok_and(|answer| answer.mode.is_some());
        prop_assert!(lost.is_empty() || made_way && lost.iter().all(|(layer, _)| layer.kind() == LayerKind::Builtin));
    }

    #[test]
    fn r2_without_a_layer_that_may_allow_the_built_in_mode_is_evaluated(
        opinions in prop::collection::vec(any_opinion(), 0..8),
    ) {
        let spoken = |o: &Opinion| o.may_allow && o.said.as_ref().is_ok_and(|answer| answer.mode.is_some());
        let builtin = fold(&opinions).modes.contains(&(LayerRef::new(LayerKind::Builtin), ApprovalMode::Auto));
        prop_assert_eq!(builtin, !opinions.iter().any(spoken));
    }
}

#[test]
fn a_tool_is_enabled_unless_somebody_says_otherwise() {
    assert!(fold(&[]).disabled.is_empty());
    let yes = opinion(LayerKind::Managed, "m", Some(true), None);
    let no = opinion(LayerKind::Project, "p", Some(false), None);
    assert!(fold(std::slice::from_ref(&yes)).disabled.is_empty());
    let folded = fold(&[yes, no]);
    assert_eq!(folded.disabled.iter().map(|by| by.source.to_string()).collect::<Vec<_>>(), ["project/p"]);
}

#[test]
fn a_failure_names_its_fault() {
    let folded = fold(&[failing(LayerKind::User), opinion(LayerKind::Managed, "m", Some(true), None)]);
    let by = folded.disabled.first().unwrap();
    assert_eq!(by.fault.as_ref().map(|fault| fault.code), Some(FaultCode::Trap));
}

#[test]
fn r2_an_approve_of_a_project_stands_beside_the_built_in_mode() {
    let folded = fold(&[opinion(LayerKind::Project, "p", None, Some(ApprovalMode::Approve))]);
    assert_eq!(modes(&folded), [(LayerKind::Builtin, ApprovalMode::Auto), (LayerKind::Project, ApprovalMode::Approve)]);
}

fn judged(opinions: &[Opinion]) -> Judged {
    Judged { voices: Vec::new(), folded: fold(opinions) }
}

#[test]
fn r13_every_mode_is_evaluated_with_every_posture() {
    let user = LayerPosture {
        policy: Some(ApprovalPolicy::Never),
        profile: Some(Profile::Full),
        ..LayerPosture::silent(LayerRef::new(LayerKind::User), true)
    };
    let layers = PostureLayers::new(vec![user]);
    let judged = judged(&[
        opinion(LayerKind::Managed, "m", None, Some(ApprovalMode::Prompt)),
        opinion(LayerKind::Project, "p", None, Some(ApprovalMode::Writes)),
    ]);
    let got: Vec<_> = postures(&layers, &tool(), &judged)
        .into_iter()
        .map(|(layer, posture)| (layer.kind(), posture.mode, posture.policy))
        .collect();
    // R11: the ask is that of the more trusted layer.
    let want = [
        (LayerKind::Managed, ApprovalMode::Prompt, ApprovalPolicy::Never),
        (LayerKind::User, ApprovalMode::Writes, ApprovalPolicy::Never),
    ];
    assert_eq!(got, want);
}

#[test]
fn a_mode_set_for_the_apps_server_only_tightens() {
    let server = ServerModes { default: Some(ApprovalMode::Approve), ..ServerModes::default() };
    let user = LayerPosture {
        modes: [(tool().server, server)].into(),
        ..LayerPosture::silent(LayerRef::new(LayerKind::User), true)
    };
    let all = postures(&PostureLayers::new(vec![user]), &tool(), &judged(&[]));
    let modes: BTreeSet<String> = all.iter().map(|(_, posture)| posture.mode.as_str().to_owned()).collect();
    assert_eq!(modes, BTreeSet::from(["approve".to_owned(), "auto".to_owned()]));
}

#[test]
fn a_tool_without_a_connector_keeps_the_postures_of_the_layers() {
    let layers = PostureLayers::default();
    assert_eq!(postures(&layers, &tool(), &Judged::default()), layers.for_tool(&tool()));
}
