//! The definitions that each session and each principal were last shown (R24).
//!
//! A session goes by what it was shown itself; one that was shown nothing of a tool goes by what its principal was shown in
//! whichever session. Kept for the life of the host: what has to outlive that is what was accepted
//! ([`crate::pipeline::drift`]).
//!
//! All of it is bounded, for each principal and each tenant by itself (R37). Forgotten is not never shown: whoever
//! forgot something takes a tool that it knows nothing of for one that changed, so that it is served anew.

use std::collections::HashMap;
use std::hash::Hash;

use parking_lot::Mutex;

use crate::model::caller::{Caller, Principal, TenantId};
use crate::model::digest::Digest;
use crate::model::name::ToolRef;

/// How much is remembered.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Definitions of one principal.
    tools: usize,
    /// Principals of one tenant.
    principals: usize,
    /// Definitions of all principals of one tenant.
    tenant: usize,
    /// Tenants.
    tenants: usize,
}

const LIMITS: Limits = Limits { tools: 65_536, principals: 4_096, tenant: 262_144, tenants: 4_096 };

/// What is known of a tool that is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Last {
    /// It was never shown.
    Never,
    /// It may have been, but that was forgotten.
    Forgotten,
    /// This definition was shown last.
    Shown(Digest),
}

impl Last {
    fn unknown(forgot: bool) -> Self {
        if forgot { Self::Forgotten } else { Self::Never }
    }

    /// Returns what a call was made for; one of which that was forgotten was made for something that no tool is.
    pub(super) fn seen(self) -> Option<Digest> {
        match self {
            Self::Never => None,
            Self::Forgotten => Some(Digest::of(b"a definition that was forgotten")),
            Self::Shown(digest) => Some(digest),
        }
    }
}

/// The definitions that were shown last.
#[derive(Debug, Default)]
pub(super) struct Definitions {
    /// With the time at which each was shown.
    of: HashMap<ToolRef, (Digest, u64)>,
    time: u64,
    forgot: bool,
}

impl Definitions {
    /// Notes what was shown. Beyond `max` what is not listed any more is forgotten first, then what was shown longest ago.
    pub(super) fn note(
        &mut self,
        shown: impl IntoIterator<Item = (ToolRef, Digest)>,
        is_listed: impl Fn(&ToolRef) -> bool,
        max: usize,
    ) {
        self.time += 1;
        let now = self.time;
        self.of.extend(shown.into_iter().map(|(tool, digest)| (tool, (digest, now))));
        if self.of.len() <= max {
            return;
        }
        self.forgot = true;
        self.of.retain(|tool, _| is_listed(tool));
        if self.of.len() > max {
            // Some more, so that the next does not have to look through all again.
            let least = self.of.len() - (max - max / 4);
            let mut times: Vec<u64> = self.of.values().map(|(_, at)| *at).collect();
            times.sort_unstable();
            let until = times.get(least.saturating_sub(1)).copied().unwrap_or(now);
            let mut left = least;
            self.of.retain(|_, (_, at)| {
                let goes = *at <= until && left > 0;
                left -= usize::from(goes);
                !goes
            });
        }
    }

    /// Returns what is known of a tool.
    pub(super) fn last(&self, tool: &ToolRef) -> Last {
        self.of.get(tool).map_or(Last::unknown(self.forgot), |(digest, _)| Last::Shown(*digest))
    }

    /// Forgets everything, and that there was something.
    pub(super) fn forget(&mut self) {
        *self = Self { of: HashMap::new(), time: self.time, forgot: true };
    }
}

/// So many of something; whoever was not used for the longest time goes first.
struct Few<K, V> {
    of: HashMap<K, (V, u64)>,
    time: u64,
    forgot: bool,
}

impl<K, V> Default for Few<K, V> {
    fn default() -> Self {
        Self { of: HashMap::new(), time: 0, forgot: false }
    }
}

impl<K: Eq + Hash + Clone, V> Few<K, V> {
    /// Returns what `key` has; of a new one it is made of whether somebody was forgotten.
    fn entry(&mut self, key: &K, max: usize, new: impl FnOnce(bool) -> V) -> &mut V {
        while self.of.len() >= max.max(1) && !self.of.contains_key(key) && self.drop_oldest(key).is_some() {}
        self.time += 1;
        let (now, forgot) = (self.time, self.forgot);
        let (value, used) = self.of.entry(key.clone()).or_insert_with(|| (new(forgot), now));
        *used = now;
        value
    }

    /// Forgets whoever was not used for the longest time, but for `key`.
    fn drop_oldest(&mut self, key: &K) -> Option<V> {
        let others = self.of.iter().filter(|(other, _)| *other != key);
        let oldest = others.min_by_key(|(_, (_, used))| *used)?.0.clone();
        self.forgot = true;
        self.of.remove(&oldest).map(|(value, _)| value)
    }
}

/// What the principals of one tenant were shown.
type Tenant = Few<Principal, Definitions>;

/// What principals were last shown.
pub(super) struct Served {
    tenants: Mutex<Few<TenantId, Tenant>>,
    limits: Limits,
}

impl Default for Served {
    fn default() -> Self {
        Self { tenants: Mutex::default(), limits: LIMITS }
    }
}

impl Served {
    /// Notes that a caller was shown these definitions.
    pub(super) fn note(
        &self,
        caller: &Caller,
        shown: impl IntoIterator<Item = (ToolRef, Digest)>,
        is_listed: impl Fn(&ToolRef) -> bool,
    ) {
        let Limits { tools, principals, tenant: most, tenants } = self.limits;
        let mut all = self.tenants.lock();
        let principals_of = all.entry(&caller.tenant, tenants, |forgot| Few { forgot, ..Few::default() });
        let new = |forgot| Definitions { forgot, ..Definitions::default() };
        let own = principals_of.entry(&caller.principal, principals, new);
        own.note(shown, is_listed, tools);
        let mut count: usize = principals_of.of.values().map(|(own, _)| own.of.len()).sum();
        while count > most {
            let Some(gone) = principals_of.drop_oldest(&caller.principal) else { break };
            count = count.saturating_sub(gone.of.len());
        }
    }

    /// Returns what is known of the definition that a caller's principal was last shown.
    pub(super) fn last(&self, caller: &Caller, tool: &ToolRef) -> Last {
        let all = self.tenants.lock();
        let Some((tenant, _)) = all.of.get(&caller.tenant) else { return Last::unknown(all.forgot) };
        let own = tenant.of.get(&caller.principal);
        own.map_or(Last::unknown(tenant.forgot), |(own, _)| own.last(tool))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(name: &str) -> ToolRef {
        ToolRef::parse(&format!("files/{name}")).unwrap()
    }

    fn shown(names: &[&str]) -> Vec<(ToolRef, Digest)> {
        names.iter().map(|name| (reference(name), digest(name))).collect()
    }

    fn digest(name: &str) -> Digest {
        Digest::of(name.as_bytes())
    }

    fn caller(tenant: &str, principal: &str) -> Caller {
        Caller { tenant: TenantId::new(tenant), ..Caller::local(principal) }
    }

    fn served(limits: Limits) -> Served {
        Served { limits, ..Served::default() }
    }

    const SMALL: Limits = Limits { tools: 4, principals: 3, tenant: 6, tenants: 2 };

    #[test]
    fn r24_what_is_not_listed_any_more_is_forgotten_first_and_forgotten_is_not_never_shown() {
        let mut own = Definitions::default();
        own.note(shown(&["gone", "a", "b", "c"]), |_| true, 4);
        assert_eq!(own.last(&reference("other")), Last::Never);
        own.note(shown(&["d"]), |tool| *tool != reference("gone"), 4);
        assert_eq!(own.last(&reference("gone")), Last::Forgotten);
        for kept in ["a", "b", "c", "d"] {
            assert_eq!(own.last(&reference(kept)), Last::Shown(digest(kept)));
        }
        own.note(shown(&["e"]), |_| true, 4);
        assert_eq!(own.of.len(), 3);
        assert_eq!(own.last(&reference("e")), Last::Shown(digest("e")), "the newest stays");
        assert_eq!(own.last(&reference("other")), Last::Forgotten, "nobody knows any more");
        assert!(Last::Never.seen().is_none() && Last::Forgotten.seen().is_some());
    }

    #[test]
    fn r37_a_principal_that_is_shown_much_costs_no_other_tenant_anything() {
        let all = served(SMALL);
        let (ann, other) = (caller("one", "ann"), caller("two", "ann"));
        all.note(&other, shown(&["a"]), |_| true);
        for name in ["a", "b", "c", "d", "e", "f", "g"] {
            all.note(&ann, shown(&[name]), |_| true);
        }
        assert_eq!(all.last(&other, &reference("a")), Last::Shown(digest("a")));
        assert_eq!(all.last(&other, &reference("b")), Last::Never);
        assert_eq!(all.last(&ann, &reference("a")), Last::Forgotten);
        assert_eq!(all.last(&ann, &reference("g")), Last::Shown(digest("g")));
    }

    #[test]
    fn r37_a_tenant_keeps_so_many_principals_and_definitions_the_latest_of_them() {
        let all = served(SMALL);
        for principal in ["ann", "bob", "cyd", "dan"] {
            all.note(&caller("one", principal), shown(&["a"]), |_| true);
        }
        assert_eq!(all.last(&caller("one", "ann"), &reference("a")), Last::Forgotten);
        assert_eq!(all.last(&caller("one", "dan"), &reference("a")), Last::Shown(digest("a")));
        for principal in ["cyd", "dan"] {
            all.note(&caller("one", principal), shown(&["a", "b", "c", "d"]), |_| true);
        }
        assert_eq!(all.last(&caller("one", "bob"), &reference("a")), Last::Forgotten);
        assert_eq!(all.last(&caller("one", "cyd"), &reference("a")), Last::Forgotten, "all together were too many");
        assert_eq!(all.last(&caller("one", "dan"), &reference("d")), Last::Shown(digest("d")));
        for tenant in ["two", "three"] {
            all.note(&caller(tenant, "ann"), shown(&["a"]), |_| true);
        }
        assert_eq!(all.last(&caller("one", "dan"), &reference("d")), Last::Forgotten);
    }
}
