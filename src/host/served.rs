//! The definitions that each principal was last shown, in whichever session (R24).
//!
//! A session goes by what it was shown itself; one that was shown nothing of a tool goes by this. Kept for the life of the
//! host: what has to outlive that is what was accepted ([`crate::pipeline::drift`]).

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::model::caller::{Caller, Principal, TenantId};
use crate::model::digest::Digest;
use crate::model::name::ToolRef;

/// How many definitions are remembered of all principals together; beyond, all are forgotten.
const MAX: usize = 262_144;

/// What principals were last shown.
#[derive(Default)]
pub(super) struct Served(Mutex<Shown>);

#[derive(Default)]
struct Shown {
    of: HashMap<(TenantId, Principal), HashMap<ToolRef, Digest>>,
    count: usize,
}

impl Served {
    /// Notes that a caller was shown these definitions.
    pub(super) fn note(&self, caller: &Caller, shown: impl IntoIterator<Item = (ToolRef, Digest)>) {
        let mut all = self.0.lock();
        if all.count > MAX {
            *all = Shown::default();
        }
        let own = all.of.entry((caller.tenant.clone(), caller.principal.clone())).or_default();
        let before = own.len();
        own.extend(shown);
        let more = own.len().saturating_sub(before);
        all.count = all.count.saturating_add(more);
    }

    /// Returns the digest of the definition that a caller's principal was last shown.
    pub(super) fn last(&self, caller: &Caller, tool: &ToolRef) -> Option<Digest> {
        let key = (caller.tenant.clone(), caller.principal.clone());
        self.0.lock().of.get(&key).and_then(|shown| shown.get(tool)).copied()
    }
}
