//! Grants that live as long as the process.
//!
//! Promises to keep at most [`MAX_GRANTS`] grants a tenant: callers choose tools and arguments, so they choose how many
//! grants there are, and one tenant must not push out another's (R37). When a tenant's share is full, its oldest
//! session grant makes room: its owner is asked again, which is safe. If all are for always, the new one is not
//! remembered, and the record says so (R17).
//!
//! Does not decide whether a grant satisfies an ask; that is consent's.

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;

use crate::model::caller::TenantId;
use crate::model::verdict::Remember;
use crate::ports::grants::{Grant, GrantSubject, Grants, NotRemembered};

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
    /// The session grants among them.
    sessions: std::collections::BTreeSet<u64>,
    by_subject: HashMap<GrantSubject, Vec<u64>>,
}

impl Grants for MemoryGrants {
    fn find(&self, subject: &GrantSubject) -> Vec<Grant> {
        let tenants = self.tenants.lock();
        let Some(shelf) = tenants.get(&subject.caller.tenant) else { return Vec::new() };
        let ages = shelf.by_subject.get(subject).map(Vec::as_slice).unwrap_or_default();
        ages.iter().filter_map(|age| shelf.grants.get(age)).cloned().collect()
    }

    fn store(&self, grant: Grant) -> Result<(), NotRemembered> {
        match grant.scope {
            Remember::Session | Remember::Always => {}
            Remember::Never => return Err(NotRemembered("it holds for one call only".to_owned())),
        }
        let mut tenants = self.tenants.lock();
        tenants.entry(grant.subject.caller.tenant.clone()).or_default().put(grant, self.max)
    }
}

impl Shelf {
    fn put(&mut self, grant: Grant, max: usize) -> Result<(), NotRemembered> {
        // The same agreement given again takes the place of the old one instead of another slot.
        let same = |old: &Grant| {
            old.answered == grant.answered && old.arguments == grant.arguments && old.scope == grant.scope
        };
        let ages = self.by_subject.get(&grant.subject).map(Vec::as_slice).unwrap_or_default();
        if let Some(age) = ages.iter().copied().find(|age| self.grants.get(age).is_some_and(same)) {
            self.remove(age);
        }
        if self.grants.len() >= max {
            let Some(oldest) = self.sessions.first().copied() else {
                return Err(NotRemembered(format!("{max} grants are kept already")));
            };
            self.remove(oldest);
        }
        let age = self.next;
        self.next += 1;
        if grant.scope == Remember::Session {
            self.sessions.insert(age);
        }
        self.by_subject.entry(grant.subject.clone()).or_default().push(age);
        self.grants.insert(age, grant);
        Ok(())
    }

    fn remove(&mut self, age: u64) {
        self.sessions.remove(&age);
        let Some(grant) = self.grants.remove(&age) else { return };
        if let Some(ages) = self.by_subject.get_mut(&grant.subject) {
            ages.retain(|other| *other != age);
            if ages.is_empty() {
                self.by_subject.remove(&grant.subject);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::model::caller::Caller;
    use crate::model::digest::Digest;
    use crate::model::name::ToolRef;
    use crate::model::tool::ServerIdentity;

    fn subject(tenant: &str, tool: &str) -> GrantSubject {
        let mut caller = Caller::local("me");
        caller.tenant = TenantId::new(tenant);
        caller.session = crate::model::caller::SessionId::new("one");
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
            approver: "terminal".to_owned(),
        }
    }

    fn small(max: usize) -> MemoryGrants {
        MemoryGrants { max, ..MemoryGrants::default() }
    }

    fn ids(store: &MemoryGrants, subject: &GrantSubject) -> Vec<String> {
        store.find(subject).into_iter().map(|grant| grant.id).collect()
    }

    #[test]
    fn a_grant_is_found_by_its_very_subject_only() {
        let store = MemoryGrants::default();
        let mine = subject("local", "files/write");
        store.store(grant("g", mine.clone(), Remember::Session)).unwrap();
        assert_eq!(ids(&store, &mine), ["g"]);
        let mut changed = mine;
        changed.definition = Digest::of(b"another definition");
        assert!(store.find(&changed).is_empty());
    }

    #[test]
    fn a_full_store_forgets_its_oldest_session_grant() {
        let store = small(2);
        let [a, b, c] = ["s/a", "s/b", "s/c"].map(|tool| subject("local", tool));
        store.store(grant("a", a.clone(), Remember::Always)).unwrap();
        store.store(grant("b", b.clone(), Remember::Session)).unwrap();
        store.store(grant("c", c.clone(), Remember::Session)).unwrap();
        assert_eq!((ids(&store, &a).len(), ids(&store, &b).len(), ids(&store, &c).len()), (1, 0, 1));
    }

    #[test]
    fn r17_a_grant_that_finds_no_room_is_not_remembered() {
        let store = small(1);
        store.store(grant("a", subject("local", "s/a"), Remember::Always)).unwrap();
        let refused = store.store(grant("b", subject("local", "s/b"), Remember::Session)).unwrap_err();
        assert_eq!(refused.to_string(), "the approval could not be remembered: 1 grants are kept already");
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
    fn the_same_agreement_twice_takes_one_place() {
        let store = small(2);
        let (a, b) = (subject("local", "s/a"), subject("local", "s/b"));
        store.store(grant("b", b.clone(), Remember::Session)).unwrap();
        for id in ["first", "second", "third"] {
            store.store(grant(id, a.clone(), Remember::Session)).unwrap();
        }
        assert_eq!((ids(&store, &a), ids(&store, &b)), (vec!["third".to_owned()], vec!["b".to_owned()]));
    }

    #[test]
    fn an_agreement_for_one_call_is_not_kept() {
        let store = MemoryGrants::default();
        assert!(store.store(grant("g", subject("local", "s/a"), Remember::Never)).is_err());
    }
}
