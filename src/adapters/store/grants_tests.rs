//! One contract, two stores of grants.

use std::collections::BTreeSet;

use super::memory::MemoryGrants;
use super::sqlite;
use crate::model::caller::{Caller, Principal, SessionId, TenantId};
use crate::model::digest::Digest;
use crate::model::layer::{LayerKind, LayerRef};
use crate::model::name::ToolRef;
use crate::model::tool::{Connector, ServerIdentity};
use crate::model::verdict::{AskKey, Remember, RuleId, Source};
use crate::ports::grants::{Grant, GrantSubject, Grants};

pub(super) fn opened(dir: &tempfile::TempDir) -> sqlite::Opened {
    sqlite::open(&dir.path().join("portcullis"), rustix::process::getuid().as_raw()).unwrap()
}

fn both(test: impl Fn(&dyn Grants)) {
    test(&MemoryGrants::default());
    let dir = tempfile::tempdir().unwrap();
    test(&opened(&dir).grants);
}

fn subject(session: &str) -> GrantSubject {
    let connector = Connector { id: "c".into(), name: None, account: Some("a".into()), description: None };
    GrantSubject {
        caller: Caller { session: SessionId::new(session), groups: vec!["g".into()], ..Caller::local("ann") },
        tool: ToolRef::parse("s/t").unwrap(),
        identity: ServerIdentity(Digest::of(b"server")),
        definition: Digest::of(b"definition"),
        connector: Some(connector),
    }
}

fn grant(id: &str, scope: Remember) -> Grant {
    let layer = LayerRef::from_file(LayerKind::Project, "/p/\u{e9}.toml".into());
    let source = Source { layer, component: "guard".into(), digest: Some(Digest::of(b"guard")) };
    Grant {
        id: id.to_owned(),
        subject: subject("one"),
        answered: BTreeSet::from([AskKey { source, rule: RuleId::parse("r") }]),
        arguments: (scope == Remember::Never).then(|| Digest::of(b"{}")),
        scope,
        expires_ms: 10,
        approver: "terminal".to_owned(),
    }
}

#[test]
fn r17_a_grant_comes_back_as_it_was_until_it_ends() {
    both(|store| {
        for scope in [Remember::Never, store.widest()] {
            let given = grant(&format!("{scope:?}"), scope);
            store.store(given.clone()).unwrap();
            assert!(store.find(&subject("one"), 9).contains(&given), "{scope:?}");
        }
        assert_eq!(
            (store.find(&subject("one"), 10).len(), store.related(&subject("two").caller, &subject("x").tool).len()),
            (0, 2)
        );
    });
}

#[test]
fn r21_a_grant_for_one_call_is_found_from_another_session_of_the_same_principal_only() {
    both(|store| {
        store.store(grant("once", Remember::Never)).unwrap();
        store.store(grant("session", Remember::Session)).unwrap();
        let ids = |subject: &GrantSubject| store.find(subject, 0).into_iter().map(|grant| grant.id).collect::<Vec<_>>();
        assert_eq!(ids(&subject("two")), ["once"]);
        assert_eq!(ids(&subject("one")).len(), 2);
        let mut others = [subject("two"), subject("two"), subject("two"), subject("two"), subject("two")];
        others[0].caller.principal = Principal::new("bob");
        others[1].caller.tenant = TenantId::new("theirs");
        others[2].caller.groups.clear();
        others[3].definition = Digest::of(b"another");
        others[4].connector = None;
        for other in &others {
            assert!(ids(other).is_empty(), "{other:?}");
        }
    });
}

#[test]
fn r17_a_grant_is_taken_once_and_one_without_arguments_is_none_for_a_call() {
    both(|store| {
        store.store(grant("once", Remember::Never)).unwrap();
        assert_eq!([store.take("once"), store.take("once"), store.take("other")], [Ok(true), Ok(false), Ok(false)]);
        assert!(store.store(Grant { arguments: None, ..grant("x", Remember::Never) }).is_err());
    });
}

#[test]
fn the_same_agreement_is_kept_once_unless_the_older_one_had_ended() {
    both(|store| {
        let life = crate::ports::asks::ONCE_GRANT_MS;
        store.store(Grant { expires_ms: life, ..grant("a", Remember::Never) }).unwrap();
        store.store(Grant { expires_ms: life + 1, ..grant("b", Remember::Never) }).unwrap();
        assert_eq!(store.find(&subject("one"), 0).len(), 1);
        store.store(Grant { expires_ms: 2 * life, ..grant("c", Remember::Never) }).unwrap();
        assert_eq!(store.find(&subject("one"), 0)[0].id, "c");
        store.forget("c");
        assert!(store.find(&subject("one"), 0).is_empty());
    });
}

#[test]
fn what_lasts_is_seen_by_other_processes_and_what_is_of_a_session_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = (opened(&dir), opened(&dir));
    for scope in [Remember::Never, Remember::Session, Remember::Always] {
        one.grants.store(grant(&format!("{scope:?}"), scope)).unwrap();
    }
    assert_eq!(one.grants.find(&subject("one"), 0).len(), 3);
    let ids: Vec<String> = other.grants.find(&subject("one"), 0).into_iter().map(|grant| grant.id).collect();
    assert_eq!(ids, ["Always", "Never"]);
    assert_eq!([other.grants.take("Never"), one.grants.take("Never")], [Ok(true), Ok(false)]);
}

#[test]
fn r37_a_full_share_forgets_its_oldest_and_nobody_elses() {
    let dir = tempfile::tempdir().unwrap();
    let store = opened(&dir).grants.with_max(1);
    let mut theirs = grant("theirs", Remember::Always);
    theirs.subject.caller.tenant = TenantId::new("theirs");
    store.store(theirs.clone()).unwrap();
    for id in ["a", "b"] {
        let mut own = grant(id, Remember::Always);
        own.arguments = Some(Digest::of(id.as_bytes()));
        store.store(own).unwrap();
    }
    assert_eq!(store.find(&subject("one"), 0).len(), 1);
    assert_eq!(store.find(&theirs.subject, 0), [theirs]);
}
