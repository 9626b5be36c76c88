//! One contract, two queues: pending, then answered or expired, and no answer twice.

use std::collections::BTreeSet;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use super::grants_tests::opened;
use super::memory::MemoryGrants;
use super::memory_asks::in_memory;
use crate::model::caller::TenantId;
use crate::model::layer::{LayerKind, LayerRef};
use crate::model::name::{CallId, ToolRef};
use crate::model::role::{LayerRoles, Role};
use crate::model::verdict::{Remember, Reviewers};
use crate::ports::approval::Kind;
use crate::ports::asks::{
    Answer, AskState, Asks, Decision, Delivery, LEASE_MS, MAX_KEPT_QUESTION, MAX_PENDING, NotAnswered, NotQueued,
    Polled,
};
use crate::ports::grants::Grants;
use crate::ports::reviewer::{Agreement, AskedConnector, Question};

const NOW: u64 = 1_700_000_000_000;
const END: u64 = NOW + 600_000;
const GONE: u64 = NOW + LEASE_MS;

fn both(test: impl Fn(&dyn Asks, &dyn Grants)) {
    let grants = Arc::new(MemoryGrants::default());
    test(&in_memory(Arc::clone(&grants)), &*grants);
    let dir = tempfile::tempdir().unwrap();
    let opened = opened(&dir);
    test(&opened.asks, &opened.grants);
}

fn question(id: &str) -> Question {
    let tool = ToolRef::parse("s/t").unwrap();
    Question {
        id: id.to_owned(),
        call: CallId::fresh(),
        kind: Kind::Tool,
        agreement: Agreement::to_nothing(&tool),
        tool,
        title: Some("T".to_owned()),
        description: Some("D".to_owned()),
        connector: Some(AskedConnector { id: "c".to_owned(), name: Some("C".to_owned()), description: None }),
        arguments: "{}".to_owned(),
        files: Vec::new(),
        changes: ["+ a".to_owned()].into(),
        cut: false,
        denial: None,
        asks: Vec::new(),
        reviewers: Reviewers::PERSON,
        options: vec![Remember::Never, Remember::Session],
        channels: crate::model::posture::Channel::ALL.into(),
        roles: Vec::new(),
        deadline: Duration::from_secs(600),
    }
}

fn says(decision: Decision) -> Answer {
    Answer { decision, approver: "ann".to_owned(), roles: BTreeSet::new(), own: false }
}

const ONCE: Decision = Decision::Allow(Remember::Never);

#[test]
fn r21_an_answer_is_delivered_once_to_whoever_waits_and_a_second_one_does_not_count() {
    both(|asks, grants| {
        let asked = question("a");
        asks.open(&asked, NOW, END).unwrap();
        assert_eq!(asks.poll("a", NOW), Ok(Polled::Nothing));
        assert_eq!(asks.answer("a", &says(Decision::Allow(Remember::Session)), NOW), Ok(Delivery::Waiting));
        assert!(matches!(asks.answer("a", &says(Decision::Deny), NOW), Err(NotAnswered::Already(_))));
        let answer = Polled::Answer { decision: Decision::Allow(Remember::Session), approver: "ann".to_owned() };
        assert_eq!([asks.poll("a", NOW), asks.poll("a", NOW)], [Ok(answer), Ok(Polled::Over)]);
        asks.leave("a", NOW).unwrap();
        assert!(grants.find(&asked.agreement.subject, NOW).is_empty(), "it was delivered and granted both");
    });
}

#[test]
fn r21_an_allow_after_the_lease_is_a_grant_for_one_call_and_nothing_wider() {
    both(|asks, grants| {
        let asked = question("a");
        asks.open(&asked, NOW, END).unwrap();
        let wider = asks.answer("a", &says(Decision::Allow(Remember::Session)), GONE);
        assert_eq!(wider, Err(NotAnswered::NotOffered(vec![Remember::Never])));
        let Ok(Delivery::Granted(id)) = asks.answer("a", &says(ONCE), GONE) else { panic!() };
        let found = grants.find(&asked.agreement.subject, GONE);
        assert_eq!((found.len(), &found[0].id, found[0].scope), (1, &id, Remember::Never));
        assert_eq!((found[0].arguments, &found[0].approver), (Some(asked.agreement.arguments), &"ann".to_owned()));
        // It was only asleep: the grant is its own, once.
        assert!(matches!(asks.poll("a", GONE), Ok(Polled::Answer { decision: ONCE, .. })));
        assert_eq!((grants.take(&id), asks.poll("a", GONE)), (Ok(false), Ok(Polled::Over)));
    });
}

#[test]
fn r21_an_answer_that_nobody_comes_for_becomes_a_grant_when_its_caller_goes() {
    both(|asks, grants| {
        let asked = question("a");
        for (id, leaves) in [("a", true), ("b", false)] {
            asks.open(&Question { id: id.to_owned(), ..asked.clone() }, NOW, END).unwrap();
            assert_eq!(asks.answer(id, &says(ONCE), NOW), Ok(Delivery::Waiting));
            if leaves {
                asks.leave(id, NOW).unwrap();
            }
            asks.settle(GONE).unwrap();
            let found = grants.find(&asked.agreement.subject, GONE);
            assert_eq!((found.len(), grants.take(&found[0].id)), (1, Ok(true)), "{id}");
        }
    });
}

#[test]
fn r12_r14_what_does_not_outlive_its_call_is_too_late_and_stays_pending() {
    both(|asks, _| {
        let asked = question("a");
        let agreement = Agreement { lasts: false, ..(*asked.agreement).clone() };
        asks.open(&Question { agreement: Arc::new(agreement), ..asked }, NOW, END).unwrap();
        asks.open(&Question { kind: Kind::Reply, ..question("b") }, NOW, END).unwrap();
        for id in ["a", "b"] {
            assert!(matches!(asks.answer(id, &says(ONCE), GONE), Err(NotAnswered::TooLate(_))), "{id}");
            assert_eq!(asks.get(id).unwrap().unwrap().state, AskState::Pending);
        }
    });
}

#[test]
fn an_expired_an_unknown_and_an_unoffered_answer_are_refused() {
    both(|asks, _| {
        asks.open(&question("a"), NOW, END).unwrap();
        let always = asks.answer("a", &says(Decision::Allow(Remember::Always)), NOW);
        assert_eq!(always, Err(NotAnswered::NotOffered(vec![Remember::Never, Remember::Session])));
        assert_eq!(asks.answer("b", &says(ONCE), NOW), Err(NotAnswered::Unknown));
        assert_eq!(asks.answer("a", &says(ONCE), END), Err(NotAnswered::Expired));
        assert_eq!(asks.get("a").unwrap().unwrap().state, AskState::Expired);
        let tenant = TenantId::new("local");
        let count = |all| asks.list(&tenant, all, END).unwrap().len();
        assert_eq!((count(false), count(true)), (0, 1));
    });
}

#[test]
fn r20_an_allow_needs_a_role_of_every_layer_that_names_some_and_a_refusal_none() {
    both(|asks, grants| {
        let wanted = |kind, roles: &[&str]| LayerRoles {
            layer: LayerRef::new(kind),
            roles: Role::of_groups(roles.iter().copied()),
        };
        let roles = vec![wanted(LayerKind::Managed, &["audit", "security"]), wanted(LayerKind::User, &["ops"])];
        let asked = Question { roles: roles.clone(), ..question("a") };
        asks.open(&asked, NOW, END).unwrap();
        asks.open(&Question { id: "b".to_owned(), ..asked.clone() }, NOW, END).unwrap();
        asks.open(&Question { id: "c".to_owned(), ..asked.clone() }, NOW, END).unwrap();
        assert_eq!(asks.get("a").unwrap().unwrap().question.roles, roles);
        let as_role = |roles: &[&str]| Answer { roles: Role::of_groups(roles.iter().copied()), ..says(ONCE) };
        for (now, lacking, names) in
            [(NOW, &[][..], "managed"), (NOW, &["security"], "user"), (GONE, &["ops", "Audit"], "managed")]
        {
            let Err(NotAnswered::WithoutRole(why)) = asks.answer("a", &as_role(lacking), now) else {
                panic!("{lacking:?}")
            };
            assert!(why.contains(names), "{why}");
            assert_eq!(asks.get("a").unwrap().unwrap().state, AskState::Pending);
        }
        assert!(
            grants.find(&asked.agreement.subject, GONE).is_empty(),
            "an answer that does not count has made a grant"
        );
        assert_eq!(asks.answer("a", &as_role(&["security", "ops", "users"]), NOW), Ok(Delivery::Waiting));
        let by = |id: &str| match asks.get(id).unwrap().unwrap().state {
            AskState::Answered { approver, .. } => approver,
            other => panic!("{other:?}"),
        };
        assert_eq!(by("a"), "ann as ops, security");
        assert!(matches!(asks.answer("b", &as_role(&["audit", "ops"]), GONE), Ok(Delivery::Granted(_))));
        assert_eq!(asks.answer("c", &says(Decision::Deny), NOW), Ok(Delivery::Waiting));
        assert_eq!(by("c"), "ann");
    });
}

#[test]
fn a_queue_that_is_full_and_a_question_that_is_too_large_are_said() {
    both(|asks, _| {
        let large = Question { arguments: "x".repeat(MAX_KEPT_QUESTION), ..question("large") };
        assert!(matches!(asks.open(&large, NOW, END), Err(NotQueued::TooLarge(_))));
        for n in 0..MAX_PENDING {
            asks.open(&question(&format!("q{n}")), NOW, END).unwrap();
        }
        assert_eq!(asks.open(&question("more"), NOW, END), Err(NotQueued::Full));
        assert_eq!(asks.open(&question("more"), END, END + 1), Ok(()), "the others have expired");
    });
}

#[test]
fn r21_of_two_answers_from_two_connections_exactly_one_wins() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = (opened(&dir), opened(&dir));
    for n in 0..20 {
        let id = format!("q{n}");
        one.asks.open(&question(&id), NOW, END).unwrap();
        let barrier = Barrier::new(2);
        let answer = |asks: &dyn Asks, decision| {
            barrier.wait();
            asks.answer(&id, &says(decision), NOW).is_ok()
        };
        let won = std::thread::scope(|scope| {
            let first = scope.spawn(|| answer(&one.asks, ONCE));
            let second = answer(&other.asks, Decision::Deny);
            [first.join().unwrap(), second]
        });
        assert!(won[0] != won[1], "{won:?}");
    }
}

#[test]
fn a_question_comes_back_from_the_file_without_control_characters() {
    let dir = tempfile::tempdir().unwrap();
    let asked = Question { arguments: "\u{1b}[2J".to_owned(), ..question("a") };
    opened(&dir).asks.open(&asked, NOW, END).unwrap();
    let kept = opened(&dir).asks.get("a").unwrap().unwrap();
    assert_eq!(kept.question.arguments, "\\u{1b}[2J");
    assert_eq!((kept.question.agreement, kept.question.options), (asked.agreement, asked.options));
    assert_eq!((kept.question.title, kept.question.changes), (asked.title, asked.changes));
    assert_eq!((kept.question.description, kept.question.connector), (asked.description, asked.connector));
}
