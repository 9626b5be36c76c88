//! Grants that live as long as the process: nothing wider than the session is kept.
//!
//! Promises to keep at most [`MAX_GRANTS`] grants a tenant: callers choose tools and arguments, so they choose how many
//! grants there are, and one tenant must not push out another's (R37). When a tenant's share is full, its oldest grant
//! makes room: its owner is asked again, which is safe.
//!
//! Does not decide whether a grant satisfies an ask; that is consent's.

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;

use crate::model::caller::{Caller, SessionId, TenantId};
use crate::model::name::ToolRef;
use crate::model::verdict::Remember;
use crate::ports::asks::ONCE_GRANT_MS;
use crate::ports::grants::{
    ALWAYS_GRANT_MS, Grant, GrantSubject, Grants, MAX_RELATED, NotRemembered, SESSION_GRANT_MS,
};

/// The most grants of one tenant.
pub const MAX_GRANTS: usize = 10_000;

/// Keeps grants in memory.
#[derive(Debug)]
pub struct MemoryGrants {
    tenants: Mutex<HashMap<TenantId, Shelf>>,
    max: usize,
}

impl Default for MemoryGrants {
    fn default() -> Self {
        Self { tenants: Mutex::default(), max: MAX_GRANTS }
    }
}

/// One tenant's grants, by age.
#[derive(Debug, Default)]
struct Shelf {
    next: u64,
    grants: BTreeMap<u64, Grant>,
    by_subject: HashMap<GrantSubject, Vec<u64>>,
    by_id: HashMap<String, u64>,
}

impl Grants for MemoryGrants {
    fn widest(&self) -> Remember {
        Remember::Session
    }

    fn find(&self, subject: &GrantSubject, now_ms: u64) -> Vec<Grant> {
        let tenants = self.tenants.lock();
        let shelf = tenants.get(&subject.caller.tenant);
        let lives = |grant: &&Grant| grant.expires_ms > now_ms;
        shelf.map(|shelf| shelf.of(subject).filter(lives).cloned().collect()).unwrap_or_default()
    }

    fn related(&self, caller: &Caller, tool: &ToolRef) -> Vec<Grant> {
        let tenants = self.tenants.lock();
        let Some(shelf) = tenants.get(&caller.tenant) else { return Vec::new() };
        let about = |grant: &&Grant| grant.subject.tool == *tool && grant.subject.caller.principal == caller.principal;
        shelf.grants.values().rev().filter(about).take(MAX_RELATED).cloned().collect()
    }

    fn take(&self, id: &str) -> Result<bool, NotRemembered> {
        for shelf in self.tenants.lock().values_mut() {
            if let Some(age) = shelf.by_id.get(id).copied() {
                shelf.remove(age);
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn store(&self, grant: Grant) -> Result<(), NotRemembered> {
        match grant.scope {
            Remember::Session => {}
            Remember::Never if grant.arguments.is_some() => {}
            Remember::Never => return Err(NotRemembered("it holds for one call and binds no arguments".to_owned())),
            Remember::Always => {
                return Err(NotRemembered("grants of this process are kept for the session at most".to_owned()));
            }
        }
        let mut tenants = self.tenants.lock();
        tenants.entry(grant.subject.caller.tenant.clone()).or_default().put(grant, self.max);
        Ok(())
    }

    fn forget(&self, id: &str) {
        for shelf in self.tenants.lock().values_mut() {
            if let Some(age) = shelf.by_id.get(id).copied() {
                shelf.remove(age);
            }
        }
    }
}

impl Shelf {
    fn of(&self, subject: &GrantSubject) -> impl Iterator<Item = &Grant> {
        let own = self.by_subject.get(subject).into_iter().flatten();
        let all = self.by_subject.get(&of_all_sessions(subject.clone())).into_iter().flatten();
        own.chain(all).filter_map(|age| self.grants.get(age)).filter(|grant| grant.binds(subject))
    }

    fn put(&mut self, grant: Grant, max: usize) {
        // The same agreement is kept once. The older one stays: should the newer one's call not be sent, forgetting it
        // must not take back what was agreed before.
        let given_ms = given_ms(&grant);
        let ended = self.grants.iter().filter(|(_, old)| old.expires_ms <= given_ms).map(|(age, _)| *age);
        for age in ended.collect::<Vec<_>>() {
            self.remove(age);
        }
        if self.of(&grant.subject).any(|old| is_same(old, &grant)) {
            return;
        }
        if self.grants.len() >= max
            && let Some(oldest) = self.grants.keys().next().copied()
        {
            self.remove(oldest);
        }
        let age = self.next;
        self.next += 1;
        self.by_subject.entry(place(&grant)).or_default().push(age);
        self.by_id.insert(grant.id.clone(), age);
        self.grants.insert(age, grant);
    }

    fn remove(&mut self, age: u64) {
        let Some(grant) = self.grants.remove(&age) else { return };
        self.by_id.remove(&grant.id);
        let place = place(&grant);
        if let Some(ages) = self.by_subject.get_mut(&place) {
            ages.retain(|other| *other != age);
            if ages.is_empty() {
                self.by_subject.remove(&place);
            }
        }
    }
}

/// Where a grant is looked for: that for one session under it, every other under none (R21).
fn place(grant: &Grant) -> GrantSubject {
    let subject = grant.subject.clone();
    if grant.scope == Remember::Session { subject } else { of_all_sessions(subject) }
}

fn of_all_sessions(mut subject: GrantSubject) -> GrantSubject {
    subject.caller.session = SessionId::new("");
    subject
}

/// Whether two grants for one subject are the same agreement.
pub(super) fn is_same(old: &Grant, new: &Grant) -> bool {
    (old.scope, old.arguments, &old.answered) == (new.scope, new.arguments, &new.answered)
}

/// When a grant was given at the latest: what had ended by then is over.
pub(super) fn given_ms(grant: &Grant) -> u64 {
    let lives_ms = match grant.scope {
        Remember::Never => ONCE_GRANT_MS,
        Remember::Session => SESSION_GRANT_MS,
        Remember::Always => ALWAYS_GRANT_MS,
    };
    grant.expires_ms.saturating_sub(lives_ms)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::model::digest::Digest;
    use crate::model::tool::ServerIdentity;

    fn subject(tenant: &str, tool: &str) -> GrantSubject {
        let mut caller = Caller::local("me");
        caller.tenant = TenantId::new(tenant);
        caller.session = SessionId::new("one");
        GrantSubject {
            caller,
            tool: ToolRef::parse(tool).unwrap(),
            identity: ServerIdentity(Digest::of(b"server")),
            definition: Digest::of(b"definition"),
            connector: None,
        }
    }

    fn grant(id: &str, subject: GrantSubject, scope: Remember) -> Grant {
        Grant {
            id: id.to_owned(),
            subject,
            answered: BTreeSet::new(),
            arguments: None,
            scope,
            expires_ms: 10,
            approver: "terminal".to_owned(),
        }
    }

    fn small(max: usize) -> MemoryGrants {
        MemoryGrants { max, ..MemoryGrants::default() }
    }

    fn ids(store: &MemoryGrants, subject: &GrantSubject) -> Vec<String> {
        store.find(subject, 0).into_iter().map(|grant| grant.id).collect()
    }

    #[test]
    fn a_grant_is_found_by_its_very_subject_only() {
        let store = MemoryGrants::default();
        let mine = subject("local", "files/write");
        store.store(grant("g", mine.clone(), Remember::Session)).unwrap();
        assert_eq!(ids(&store, &mine), ["g"]);
        let mut changed = mine;
        changed.definition = Digest::of(b"another definition");
        assert!(store.find(&changed, 0).is_empty());
    }

    #[test]
    fn a_full_store_forgets_its_oldest_grant() {
        let store = small(2);
        let [a, b, c] = ["s/a", "s/b", "s/c"].map(|tool| subject("local", tool));
        for (id, subject) in [("a", &a), ("b", &b), ("c", &c)] {
            store.store(grant(id, subject.clone(), Remember::Session)).unwrap();
        }
        assert_eq!((ids(&store, &a).len(), ids(&store, &b).len(), ids(&store, &c).len()), (0, 1, 1));
    }

    #[test]
    fn r17_what_cannot_be_kept_as_long_as_agreed_is_not_remembered() {
        let store = MemoryGrants::default();
        assert_eq!(store.widest(), Remember::Session);
        for scope in [Remember::Never, Remember::Always] {
            assert!(store.store(grant("g", subject("local", "s/a"), scope)).is_err());
        }
        assert!(store.find(&subject("local", "s/a"), 0).is_empty());
    }

    #[test]
    fn r37_one_tenants_grants_push_out_no_other_tenants() {
        let store = small(1);
        let theirs = subject("theirs", "s/a");
        store.store(grant("theirs", theirs.clone(), Remember::Session)).unwrap();
        for tool in ["s/a", "s/b", "s/c"] {
            store.store(grant(tool, subject("ours", tool), Remember::Session)).unwrap();
        }
        assert_eq!(ids(&store, &theirs), ["theirs"]);
    }

    #[test]
    fn the_same_agreement_twice_takes_one_place_and_the_older_one_stays() {
        let store = small(2);
        let (a, b) = (subject("local", "s/a"), subject("local", "s/b"));
        store.store(grant("b", b.clone(), Remember::Session)).unwrap();
        for id in ["first", "second", "third"] {
            store.store(grant(id, a.clone(), Remember::Session)).unwrap();
        }
        store.forget("third");
        assert_eq!((ids(&store, &a), ids(&store, &b)), (vec!["first".to_owned()], vec!["b".to_owned()]));
    }

    #[test]
    fn a_forgotten_grant_is_gone_and_an_unknown_id_changes_nothing() {
        let store = MemoryGrants::default();
        let mine = subject("local", "s/a");
        store.store(grant("g", mine.clone(), Remember::Session)).unwrap();
        store.forget("other");
        assert_eq!(ids(&store, &mine), ["g"]);
        store.forget("g");
        assert!(store.find(&mine, 0).is_empty());
    }
}
