//! The laws of the fold (R15), and the rules R10, R11, R12 and R14 one by one.
//!
//! The model in `reference` is written apart from the fold: it computes only the strictness of the result, from sets of
//! facts, and never builds a `Folded`.

use proptest::prelude::*;

use super::*;
use crate::model::verdict::FaultCode;

/// How strict a result is: run < ask < ask of a person only < deny.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Strictness {
    Run,
    Ask,
    AskPerson,
    Deny,
}

fn strictness(folded: &Folded) -> Strictness {
    match folded {
        Folded::Run { .. } => Strictness::Run,
        Folded::Ask(asks) if asks.iter().any(|ask| ask.fault.is_some()) => Strictness::AskPerson,
        Folded::Ask(_) => Strictness::Ask,
        Folded::Deny(_) => Strictness::Deny,
    }
}

/// The reference model: what the result must be, from counting alone.
fn reference(opinions: &[Opinion]) -> Strictness {
    let of_component = |o: &&Opinion| o.baseline_for.is_none();
    let any = |p: &dyn Fn(&Opinion) -> bool| opinions.iter().any(p);
    if any(&|o| matches!(o.said, Ok(Verdict::Deny(_)))) {
        return Strictness::Deny;
    }
    let denying =
        |o: &Opinion| o.said.as_ref().is_err_and(|f| o.on_failure == OnFailure::Deny || f.code.always_denies());
    if any(&denying) {
        return Strictness::Deny;
    }
    if any(&|o| o.said.is_err()) {
        return Strictness::AskPerson;
    }
    let best_allow = opinions
        .iter()
        .filter(of_component)
        .filter(|o| o.may_allow && matches!(o.said, Ok(Verdict::Allow(_))))
        .map(|o| o.source.layer.kind())
        .max();
    let asks = opinions.iter().filter(|o| matches!(o.said, Ok(Verdict::Ask(_)))).any(|o| match &o.baseline_for {
        None => true,
        Some(origin) if origin.kind() == LayerKind::Builtin => best_allow.is_none(),
        Some(origin) => best_allow.is_none_or(|best| best < origin.kind()),
    });
    if asks { Strictness::Ask } else { Strictness::Run }
}

fn reason(rule: &str) -> Reason {
    Reason { rule: RuleId::parse(rule), text: rule.to_owned() }
}

fn ask(rule: &str) -> Verdict {
    Verdict::Ask(Ask {
        reason: reason(rule),
        remember: Remember::Always,
        bind_arguments: false,
        reviewers: Reviewers::default(),
    })
}

fn opinion(kind: LayerKind, component: &str, said: Result<Verdict, Fault>) -> Opinion {
    Opinion {
        source: Source { layer: LayerRef::new(kind), component: component.into(), digest: None },
        baseline_for: None,
        may_allow: kind.may_allow_by_default(),
        on_failure: OnFailure::Deny,
        said,
    }
}

fn baseline(origin: LayerKind, said: Verdict) -> Opinion {
    let mut opinion = opinion(LayerKind::Builtin, "approval-baseline", Ok(said));
    opinion.baseline_for = Some(LayerRef::new(origin));
    opinion
}

fn result(opinions: &[Opinion]) -> Strictness {
    strictness(&fold(opinions, &[], None).0)
}

const LAYERS: [LayerKind; 5] =
    [LayerKind::Managed, LayerKind::Organisation, LayerKind::User, LayerKind::Session, LayerKind::Project];

/// Every answer that a component can give or get.
fn answers() -> Vec<(Result<Verdict, Fault>, OnFailure)> {
    let fault = |code| Err(Fault::new(code, "x"));
    vec![
        (Ok(Verdict::Abstain), OnFailure::Deny),
        (Ok(Verdict::Allow(reason("a"))), OnFailure::Deny),
        (Ok(ask("q")), OnFailure::Deny),
        (Ok(Verdict::Deny(reason("d"))), OnFailure::Deny),
        (fault(FaultCode::Fuel), OnFailure::Deny),
        (fault(FaultCode::Fuel), OnFailure::Ask),
        (fault(FaultCode::Digest), OnFailure::Ask),
    ]
}

/// All combinations of answers over five layers, each with a baseline that asks for the posture of each layer and of none.
fn every_combination(mut check: impl FnMut(&[Opinion])) {
    for origin in LAYERS.into_iter().chain([LayerKind::Builtin]) {
        every_combination_for(origin, &mut check);
    }
}

fn every_combination_for(origin: LayerKind, check: &mut impl FnMut(&[Opinion])) {
    let answers = answers();
    for index in 0..answers.len().pow(5) {
        let mut rest = index;
        let mut opinions = Vec::with_capacity(6);
        for kind in LAYERS {
            let (said, on_failure) = &answers[rest % answers.len()];
            rest /= answers.len();
            opinions.push(Opinion { on_failure: *on_failure, ..opinion(kind, "c", said.clone()) });
        }
        opinions.push(baseline(origin, ask("baseline")));
        check(&opinions);
    }
}

#[test]
fn r15_the_fold_agrees_with_the_reference_model_on_every_combination_of_five_layers() {
    let mut seen = BTreeSet::new();
    every_combination(|opinions| {
        let got = result(opinions);
        assert_eq!(got, reference(opinions), "{opinions:?}");
        seen.insert(got);
    });
    assert_eq!(seen.len(), 4, "the enumeration does not reach every kind of result");
}

#[test]
fn r15_removing_a_right_to_allow_or_failing_closed_never_loosens() {
    every_combination(|opinions| {
        let before = result(opinions);
        for i in 0..5 {
            let mut changed = opinions.to_vec();
            changed[i].may_allow = false;
            assert!(result(&changed) >= before, "without the right of {i}: {opinions:?}");
            let mut changed = opinions.to_vec();
            changed[i].said = Err(Fault::new(FaultCode::Trap, "x"));
            changed[i].on_failure = OnFailure::Deny;
            assert!(result(&changed) >= before, "failing {i}: {opinions:?}");
        }
    });
}

#[test]
fn r15_no_combination_of_failures_runs_without_a_fresh_answer() {
    every_combination(|opinions| {
        if opinions.iter().any(|o| o.said.is_err()) {
            assert!(result(opinions) >= Strictness::AskPerson, "{opinions:?}");
        }
    });
}

#[test]
fn r10_a_fault_of_the_baseline_is_a_deny() {
    let mut broken = baseline(LayerKind::Builtin, Verdict::Abstain);
    broken.said = Err(Fault::new(FaultCode::Fuel, "x"));
    let allow = opinion(LayerKind::Managed, "c", Ok(Verdict::Allow(reason("a"))));
    assert_eq!(result(&[allow, broken]), Strictness::Deny);
}

#[test]
fn r11_an_allow_lifts_only_asks_of_layers_that_are_no_more_trusted() {
    let allow = |kind| opinion(kind, "c", Ok(Verdict::Allow(reason("a"))));
    let asks_for = |kind| baseline(kind, ask("mode-prompt"));
    assert_eq!(result(&[allow(LayerKind::User), asks_for(LayerKind::Builtin)]), Strictness::Run);
    assert_eq!(result(&[allow(LayerKind::User), asks_for(LayerKind::User)]), Strictness::Run);
    assert_eq!(result(&[allow(LayerKind::User), asks_for(LayerKind::Project)]), Strictness::Run);
    assert_eq!(result(&[allow(LayerKind::User), asks_for(LayerKind::Organisation)]), Strictness::Ask);
    assert_eq!(result(&[allow(LayerKind::Managed), asks_for(LayerKind::Organisation)]), Strictness::Run);
}

#[test]
fn r11_a_lifted_ask_names_who_lifted_it_and_an_unlifted_one_its_origin() {
    let allow = opinion(LayerKind::User, "mine", Ok(Verdict::Allow(reason("a"))));
    let (folded, _) = fold(&[allow.clone(), baseline(LayerKind::Builtin, ask("x"))], &[], None);
    let Folded::Run { lifted_by: Some(source) } = folded else { panic!("{folded:?}") };
    assert_eq!(source.to_string(), "user/mine");
    let (folded, _) = fold(&[allow, baseline(LayerKind::System, ask("x"))], &[], None);
    let Folded::Ask(asks) = folded else { panic!("{folded:?}") };
    assert_eq!(asks.first().unwrap().key.source.to_string(), "system/approval-baseline");
}

#[test]
fn r12_strict_review_adds_an_ask_of_the_auto_reviewer_that_is_never_remembered() {
    let layer = LayerRef::new(LayerKind::Organisation);
    let (folded, _) = fold(&[baseline(LayerKind::Builtin, Verdict::Allow(reason("a")))], &[], Some(&layer));
    let Folded::Ask(asks) = folded else { panic!("{folded:?}") };
    let ask = asks.first().unwrap();
    assert!(ask.strict);
    assert_eq!((ask.ask.reviewers, ask.ask.remember), (Reviewers::AUTO, Remember::Never));
}

#[test]
fn r14_a_fault_ask_is_never_remembered_and_needs_a_person() {
    let mut failing = opinion(LayerKind::User, "c", Err(Fault::new(FaultCode::Deadline, "x")));
    failing.on_failure = OnFailure::Ask;
    let (folded, _) = fold(&[failing], &[], None);
    let Folded::Ask(asks) = folded else { panic!("{folded:?}") };
    let ask = asks.first().unwrap();
    assert!(ask.fault.is_some());
    assert_eq!((ask.ask.reviewers, ask.ask.remember), (Reviewers::PERSON, Remember::Never));
}

#[test]
fn r8_a_refusal_of_a_layer_denies_whatever_components_say() {
    let refusal = Refusal {
        source: Source { layer: LayerRef::new(LayerKind::System), component: "host".into(), digest: None },
        reason: reason("layer-unreadable"),
        fault: None,
    };
    let allow = opinion(LayerKind::Managed, "c", Ok(Verdict::Allow(reason("a"))));
    assert_eq!(strictness(&fold(&[allow], &[refusal], None).0), Strictness::Deny);
}

fn any_opinion() -> impl Strategy<Value = Opinion> {
    let parts = (0..LAYERS.len(), 0..answers().len(), "[a-c]", any::<bool>(), 0..4usize);
    parts.prop_map(|(layer, answer, component, may_allow, as_baseline)| {
        let (said, on_failure) = answers()[answer].clone();
        let mut opinion = Opinion { on_failure, may_allow, ..opinion(LAYERS[layer], &component, said) };
        opinion.baseline_for = (as_baseline == 0).then(|| LayerRef::new(LAYERS[layer]));
        opinion
    })
}

proptest! {
    #[test]
    fn r15_the_fold_agrees_with_the_reference_model(opinions in prop::collection::vec(any_opinion(), 0..8)) {
        prop_assert_eq!(result(&opinions), reference(&opinions));
    }

    #[test]
    fn r15_the_order_of_answers_does_not_matter(opinions in prop::collection::vec(any_opinion(), 0..8), seed in any::<u64>()) {
        let mut shuffled = opinions.clone();
        let mut state = seed;
        for i in (1..shuffled.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            shuffled.swap(i, (state >> 33) as usize % (i + 1));
        }
        prop_assert_eq!(fold(&opinions, &[], None).0, fold(&shuffled, &[], None).0);
    }

    #[test]
    fn r15_saying_it_twice_changes_nothing(opinions in prop::collection::vec(any_opinion(), 0..8)) {
        let twice: Vec<_> = opinions.iter().chain(&opinions).cloned().collect();
        prop_assert_eq!(fold(&opinions, &[], None).0, fold(&twice, &[], None).0);
    }

    #[test]
    fn r15_adding_a_component_that_may_not_allow_never_loosens(
        opinions in prop::collection::vec(any_opinion(), 0..8),
        added in any_opinion(),
    ) {
        let mut more = opinions.clone();
        more.push(Opinion { may_allow: false, baseline_for: None, ..added });
        prop_assert!(result(&more) >= result(&opinions));
    }
}
