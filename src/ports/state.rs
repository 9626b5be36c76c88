//! What is kept between calls for components: labels, history, counters; and the pins of definitions.
//!
//! R33: all that components of one decision learn from here comes from one [`Moment`]. Their effects are kept only when
//! the call is handed over: a counter reserves under the call's id and is released on refusal, labels are committed.
//! A dry run, an observed component, a listing, a self-test and a replay take a moment that has no effects.

use std::sync::Arc;

use super::approval::{Kind, PastCall, PastState};
use crate::model::caller::{Caller, TenantId};
use crate::model::digest::Digest;
use crate::model::name::{CallId, ToolRef};
use crate::model::verdict::{Label, Source};

/// The longest key of a counter, in bytes.
pub const MAX_COUNTER_KEY: usize = 256;
/// The longest window of a counter, in milliseconds: 30 days.
pub const MAX_COUNTER_WINDOW_MS: u64 = 30 * 24 * 60 * 60 * 1000;
/// How many earlier calls of a session are kept.
pub const MAX_HISTORY: usize = 1000;
/// How long a session is remembered after its last call began, in milliseconds: 7 days.
pub const HISTORY_LIFE_MS: u64 = 7 * 24 * 60 * 60 * 1000;
/// How many labels one principal can carry.
pub const MAX_LABELS: usize = 256;
/// The longest name of a label, in bytes.
pub const MAX_LABEL: usize = 256;
/// How long a label holds after it was last set, in milliseconds: 30 days.
pub const LABEL_LIFE_MS: u64 = 30 * 24 * 60 * 60 * 1000;
/// How many counters one component can have in one tenant at a time. One whose window is over is none any more.
pub const MAX_COUNTERS: usize = 10_000;
/// How many points in time are kept of one counter. Beyond, the oldest two become one at the time of the later: the sum is
/// then too high for a while, never too low.
pub const MAX_COUNTER_POINTS: usize = 4096;
/// How many definitions one tenant can have pinned.
pub const MAX_PINS: usize = 65_536;

/// What was kept could not be read or written. Whoever needed it fails closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the state store failed: {0}")]
pub struct StateFailed(pub String);

/// Whether a decision leaves anything behind (R33).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effects {
    /// A call: counters reserve.
    Reserve,
    /// A dry run: counters answer as if they had, and nothing is left.
    None,
}

/// Counts for one decision.
///
/// Contract: asking twice for one key in one decision, or again for the same call, counts once. The answer includes the
/// call's own one and what other open calls of this process have reserved; asked twice for the same in one moment, it is
/// the same. What is older than the longest window that was asked for so far is forgotten. Never blocks for long: it is
/// called from inside the sandbox.
pub trait Counters: Send + Sync {
    /// Adds one to a counter of `owner` and returns its sum over the last `window_ms`.
    ///
    /// # Errors
    /// [`StateFailed`], also for a key or window beyond the bounds and when the owner has too many keys.
    fn count(&self, owner: &Source, key: &str, window_ms: u64) -> Result<u64, StateFailed>;
}

/// What components may know of what was before, as of one moment.
#[derive(Clone)]
pub struct Moment {
    /// The labels of the caller's principal.
    pub labels: Arc<[Label]>,
    /// Earlier and open calls of the session without the one that is decided about, newest first.
    pub history: Arc<[PastCall]>,
    /// The counters of the tenant.
    pub counters: Arc<dyn Counters>,
}

impl std::fmt::Debug for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Moment").field("labels", &self.labels).field("history", &self.history).finish_non_exhaustive()
    }
}

impl Moment {
    /// A moment before which nothing was, and in which nothing is counted: what a listing and a self-test see.
    #[must_use]
    pub fn empty() -> Self {
        Self { labels: Arc::new([]), history: Arc::new([]), counters: Arc::new(FirstTime) }
    }
}

/// Every count is the first.
struct FirstTime;

impl Counters for FirstTime {
    fn count(&self, _owner: &Source, _key: &str, _window_ms: u64) -> Result<u64, StateFailed> {
        Ok(1)
    }
}

/// One call, as the state knows it.
#[derive(Debug, Clone, Copy)]
pub struct StatedCall<'a> {
    /// Its id.
    pub id: &'a CallId,
    /// Who calls.
    pub caller: &'a Caller,
    /// What it is.
    pub kind: Kind,
    /// Raw server and tool.
    pub tool: &'a ToolRef,
}

/// Keeps labels, history, counters and pins.
///
/// Labels belong to (tenant, principal), history to a session, counters to (tenant, layer, component). Everything is
/// bounded by the constants of this module; labels and history expire. Methods are short and may be called from a drop guard.
pub trait PolicyState: Send + Sync {
    /// Returns what components of one decision about `call` may know. With [`Effects::Reserve`] the decision replaces earlier
    /// ones about the same call: only what its own components count is kept.
    ///
    /// # Errors
    /// [`StateFailed`]; the call is refused then. Also when counters are to reserve for a call that was not noted as open.
    fn moment(&self, call: StatedCall<'_>, now_ms: u64, effects: Effects) -> Result<Moment, StateFailed>;

    /// Notes that a call has begun or how it ended; `Open` replaces nothing, the others replace `Open`. A call that was
    /// refused releases what its counters reserved, and takes back what was committed for it: it was not sent.
    fn note(&self, call: StatedCall<'_>, now_ms: u64, state: PastState);

    /// Keeps the effects of a decision, all or none: called once, right before the call is handed over.
    ///
    /// # Errors
    /// [`StateFailed`]; the call is refused then. Also for a call that is not open any more.
    fn commit(&self, call: StatedCall<'_>, now_ms: u64, labels: &[Label]) -> Result<(), StateFailed>;

    /// Sets labels of sanitisers, before the answer is shown.
    ///
    /// # Errors
    /// [`StateFailed`]; the answer is withheld then.
    fn label(&self, caller: &Caller, now_ms: u64, labels: &[Label]) -> Result<(), StateFailed>;

    /// Returns the digest of the tool's definition that the tenant has pinned, if there is one (R24).
    ///
    /// # Errors
    /// [`StateFailed`].
    fn pinned(&self, tenant: &TenantId, tool: &ToolRef) -> Result<Option<Pin>, StateFailed>;

    /// Pins a definition, whatever was pinned before.
    ///
    /// # Errors
    /// [`StateFailed`].
    fn pin(&self, tenant: &TenantId, tool: &ToolRef, pin: &Pin) -> Result<(), StateFailed>;
}

/// A definition that was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// Its digest.
    pub digest: Digest,
    /// Its text as the server spelled it, for a readable diff.
    pub definition: Arc<str>,
}
