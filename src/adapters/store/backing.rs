//! What a state needs from whatever keeps it. Each method is one transaction: it happens whole or not at all.

use crate::model::caller::{Caller, TenantId};
use crate::model::layer::LayerRef;
use crate::model::name::ToolRef;
use crate::model::verdict::{Label, Source};
use crate::ports::approval::PastCall;
use crate::ports::state::{Pin, StateFailed};

/// Whose counter it is: a component of a layer, in one tenant. Its digest is no part: a new version counts on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Owner {
    pub(super) tenant: TenantId,
    pub(super) layer: LayerRef,
    pub(super) component: String,
}

impl Owner {
    pub(super) fn of(tenant: &TenantId, source: &Source) -> Self {
        Self { tenant: tenant.clone(), layer: source.layer.clone(), component: (*source.component).to_owned() }
    }
}

/// One counter.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Counter {
    pub(super) owner: Owner,
    pub(super) key: String,
}

/// What is kept of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kept {
    /// Its sum over the window that was asked for.
    pub(super) sum: u64,
    /// Whether it takes one of its owner's places.
    pub(super) known: bool,
}

/// A call that has ended.
#[derive(Debug, Clone)]
pub(super) struct Ended {
    pub(super) begun_ms: u64,
    /// Tells calls of one millisecond apart.
    pub(super) order: u64,
    pub(super) call: PastCall,
}

/// What one read finds of a caller: live labels, and the ended calls of the session, newest first.
pub(super) type Past = (Vec<Label>, Vec<Ended>);

/// Keeps state. Counts and labels that have expired are absent at once, sessions with the next purge.
pub(super) trait Backing: Send {
    /// The committed sum of a counter.
    fn sum(&mut self, counter: &Counter, now_ms: u64, window_ms: u64) -> Result<Kept, StateFailed>;

    /// How many counters the owner has.
    fn counters(&mut self, owner: &Owner, now_ms: u64) -> Result<usize, StateFailed>;

    /// Adds one to each counter, and sets the labels as new ones of `setter`.
    fn commit(
        &mut self,
        caller: &Caller,
        setter: &str,
        now_ms: u64,
        counts: &[(Counter, u64)],
        labels: &[Label],
    ) -> Result<(), StateFailed>;

    /// Takes back what `setter` has committed at `at_ms`: one of each counter, and the labels that it was the first and the
    /// last to set.
    fn take_back(&mut self, setter: &str, at_ms: u64, counters: &[Counter]) -> Result<(), StateFailed>;

    /// Labels and history, as of one moment.
    fn past(&mut self, caller: &Caller, now_ms: u64) -> Result<Past, StateFailed>;

    /// Keeps a call in its session's history.
    fn ended(&mut self, caller: &Caller, ended: &Ended) -> Result<(), StateFailed>;

    /// Removes what has expired.
    fn purge(&mut self, now_ms: u64) -> Result<(), StateFailed>;

    /// The pin of a tool.
    fn pinned(&mut self, tenant: &TenantId, tool: &ToolRef) -> Result<Option<Pin>, StateFailed>;

    /// Sets the pin of a tool.
    fn pin(&mut self, tenant: &TenantId, tool: &ToolRef, pin: &Pin) -> Result<(), StateFailed>;
}

/// Says that a principal carries as many labels as it can.
pub(super) fn too_many_labels() -> StateFailed {
    StateFailed(format!("one principal can carry {} labels", crate::ports::state::MAX_LABELS))
}

/// Says that a tenant has pinned as many definitions as it can.
pub(super) fn too_many_pins() -> StateFailed {
    StateFailed(format!("one tenant can have {} definitions pinned", crate::ports::state::MAX_PINS))
}
