//! The state of components: open calls in memory, everything that lasts in a backing.
//!
//! Promises: counting and reserving is one step, so that of two open calls with a limit of one only one sees 1; what a call
//! reserved is kept when it is committed, and gone when it was refused, whatever ends it. One lock covers a step, the backing
//! included: a step is a few short reads or one short transaction.
//!
//! Does not know the open calls of other processes that use the same backing.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;

use super::backing::{Backing, Counter, Ended, Owner};
use crate::model::caller::{Caller, TenantId};
use crate::model::name::{CallId, ToolRef};
use crate::model::verdict::{Label, Source};
use crate::ports::approval::{PastCall, PastState};
use crate::ports::state::{
    Counters, Effects, MAX_COUNTER_KEY, MAX_COUNTER_WINDOW_MS, MAX_COUNTERS, MAX_HISTORY, MAX_LABEL, Moment, Pin,
    PolicyState, StateFailed, StatedCall,
};

/// How often expired things are removed, in milliseconds.
const PURGE_EVERY_MS: u64 = 60 * 60 * 1000;

/// What components may know of earlier calls. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct State {
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    backing: Box<dyn Backing>,
    open: HashMap<CallKey, Open>,
    /// Counters with open reservations, by owner.
    reserved: HashMap<Owner, HashMap<String, Reserved>>,
    next: u64,
    purge_at_ms: u64,
    max_counters: usize,
}

/// A call id is unique among the open calls of its session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct CallKey {
    caller: Caller,
    id: CallId,
}

/// An open call.
struct Open {
    begun_ms: u64,
    order: u64,
    call: PastCall,
    /// The number of the decision that counts; handles of earlier ones do nothing any more.
    round: u64,
    /// What it reserved, with the longest window that was asked for, and the round.
    counts: HashMap<Counter, (u64, u64)>,
    committed: Option<Committed>,
}

/// What was kept for a call that may still turn out not to be sent.
struct Committed {
    at_ms: u64,
    setter: String,
    counters: Vec<Counter>,
}

/// The open calls that have reserved one of a counter.
#[derive(Default)]
struct Reserved {
    calls: HashSet<CallKey>,
    /// Whether the counter will take a place of its owner that the backing does not count yet.
    new: bool,
}

impl State {
    /// A state over a backing.
    pub(super) fn over(backing: impl Backing + 'static) -> Self {
        let (open, reserved) = (HashMap::new(), HashMap::new());
        let inner =
            Inner { backing: Box::new(backing), open, reserved, next: 0, purge_at_ms: 0, max_counters: MAX_COUNTERS };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    /// Changes how many counters a component can have.
    #[cfg(test)]
    pub(super) fn with_max_counters(&self, max: usize) -> &Self {
        self.inner.lock().max_counters = max;
        self
    }
}

impl PolicyState for State {
    fn moment(&self, call: StatedCall<'_>, now_ms: u64, effects: Effects) -> Result<Moment, StateFailed> {
        let key = CallKey::of(call);
        let mut inner = self.inner.lock();
        let round = match effects {
            Effects::Reserve => {
                let open = inner.open.get_mut(&key).ok_or_else(not_open)?;
                open.round += 1;
                Some(open.round)
            }
            Effects::None => None,
        };
        let (labels, ended) = inner.backing.past(call.caller, now_ms)?;
        let history = inner.history(&key, ended);
        drop(inner);
        let counters = Counting { state: self.clone(), key, round, now_ms, answers: Mutex::default() };
        Ok(Moment { labels: labels.into(), history: history.into(), counters: Arc::new(counters) })
    }

    fn note(&self, call: StatedCall<'_>, now_ms: u64, state: PastState) {
        let mut inner = self.inner.lock();
        match state {
            PastState::Open => inner.begin(call, now_ms),
            PastState::Ran | PastState::Refused => inner.end(call, state),
        }
    }

    fn commit(&self, call: StatedCall<'_>, now_ms: u64, labels: &[Label]) -> Result<(), StateFailed> {
        check_labels(labels)?;
        let mut inner = self.inner.lock();
        inner.purge(now_ms)?;
        inner.commit(call, now_ms, labels)
    }

    fn label(&self, caller: &Caller, now_ms: u64, labels: &[Label]) -> Result<(), StateFailed> {
        check_labels(labels)?;
        if labels.is_empty() {
            return Ok(());
        }
        // What has no setter is never taken back.
        self.inner.lock().backing.commit(caller, "", now_ms, &[], labels)
    }

    fn pinned(&self, tenant: &TenantId, tool: &ToolRef) -> Result<Option<Pin>, StateFailed> {
        self.inner.lock().backing.pinned(tenant, tool)
    }

    fn pin(&self, tenant: &TenantId, tool: &ToolRef, pin: &Pin) -> Result<(), StateFailed> {
        let (bytes, most) = (pin.definition.len(), crate::model::tool::MAX_DEFINITION);
        if bytes > most {
            return Err(StateFailed(format!("a pinned definition has {bytes} bytes, more than {most}")));
        }
        self.inner.lock().backing.pin(tenant, tool, pin)
    }
}

impl Inner {
    fn begin(&mut self, call: StatedCall<'_>, now_ms: u64) {
        let order = self.next;
        self.next += 1;
        self.open.entry(CallKey::of(call)).or_insert_with(|| Open {
            begun_ms: now_ms,
            order,
            call: PastCall { kind: call.kind, tool: call.tool.clone(), state: PastState::Open },
            round: 0,
            counts: HashMap::new(),
            committed: None,
        });
    }

    fn end(&mut self, call: StatedCall<'_>, state: PastState) {
        let key = CallKey::of(call);
        let Some(open) = self.open.remove(&key) else { return };
        for counter in open.counts.keys() {
            self.release(counter, &key);
        }
        if let (PastState::Refused, Some(committed)) = (state, &open.committed) {
            let Committed { at_ms, setter, counters } = committed;
            if let Err(error) = self.backing.take_back(setter, *at_ms, counters) {
                // It stays counted and labelled: too strict rather than too lax.
                tracing::warn!(%error, "the effects of a call that was not sent could not be taken back");
            }
        }
        let call_that_ended = PastCall { state, ..open.call };
        let ended = Ended { begun_ms: open.begun_ms, order: open.order, call: call_that_ended };
        if let Err(error) = self.backing.ended(&key.caller, &ended) {
            tracing::warn!(%error, "an ended call is missing in the history of its session");
        }
    }

    fn commit(&mut self, call: StatedCall<'_>, now_ms: u64, labels: &[Label]) -> Result<(), StateFailed> {
        let key = CallKey::of(call);
        let open = self.open.get_mut(&key).filter(|open| open.committed.is_none()).ok_or_else(not_open)?;
        let setter = uuid::Uuid::new_v4().simple().to_string();
        let counted = open.counts.iter().filter(|(_, (_, round))| *round == open.round);
        let counts: Vec<(Counter, u64)> = counted.map(|(counter, (window, _))| (counter.clone(), *window)).collect();
        if !counts.is_empty() || !labels.is_empty() {
            self.backing.commit(call.caller, &setter, now_ms, &counts, labels)?;
        }
        let reserved: Vec<Counter> = open.counts.drain().map(|(counter, _)| counter).collect();
        let counters = counts.into_iter().map(|(counter, _)| counter).collect();
        open.committed = Some(Committed { at_ms: now_ms, setter, counters });
        for counter in &reserved {
            self.release(counter, &key);
        }
        Ok(())
    }

    /// Earlier and open calls of the session without `key`'s own, newest first.
    fn history(&self, key: &CallKey, ended: Vec<Ended>) -> Vec<PastCall> {
        let mine = |other: &CallKey| {
            other.caller.tenant == key.caller.tenant
                && other.caller.principal == key.caller.principal
                && other.caller.session == key.caller.session
        };
        let open = self.open.iter().filter(|(other, _)| *other != key && mine(other));
        let open = open.map(|(_, open)| (open.begun_ms, open.order, open.call.clone()));
        let mut all: Vec<(u64, u64, PastCall)> = open.collect();
        all.extend(ended.into_iter().map(|ended| (ended.begun_ms, ended.order, ended.call)));
        all.sort_by_key(|(begun, order, _)| std::cmp::Reverse((*begun, *order)));
        all.into_iter().take(MAX_HISTORY).map(|(_, _, call)| call).collect()
    }

    /// Counts for a decision; with `round`, and if that is still the call's own, the call reserves one.
    fn count(&mut self, asked: &Asked<'_>, counter: Counter) -> Result<u64, StateFailed> {
        let kept = self.backing.sum(&counter, asked.now_ms, asked.window_ms)?;
        let reserved = self.reserved.get(&counter.owner).and_then(|keys| keys.get(&counter.key));
        let others = reserved.map_or(0, |reserved| reserved.calls.iter().filter(|call| *call != asked.key).count());
        let others = u64::try_from(others).unwrap_or(u64::MAX);
        let taken = kept.known || reserved.is_some();
        let committed = |open: &Open| open.committed.as_ref().is_some_and(|by| by.counters.contains(&counter));
        let own = u64::from(!self.open.get(asked.key).is_some_and(committed));
        if !taken && self.places(&counter.owner, asked.now_ms)? >= self.max_counters {
            let owner = format!("{}/{}", counter.owner.layer, counter.owner.component);
            return Err(StateFailed(format!("`{owner}` has {} counters, and can have no more", self.max_counters)));
        }
        if let Some(round) = asked.round {
            let open = self.open.get_mut(asked.key).filter(|open| open.round == round).ok_or_else(not_open)?;
            if own == 1 {
                let window = open.counts.get(&counter).map_or(0, |(window, _)| *window).max(asked.window_ms);
                open.counts.insert(counter.clone(), (window, round));
                let keys = self.reserved.entry(counter.owner).or_default();
                let reserved =
                    keys.entry(counter.key).or_insert_with(|| Reserved { new: !kept.known, ..Reserved::default() });
                reserved.calls.insert(asked.key.clone());
            }
        }
        Ok(kept.sum.saturating_add(others).saturating_add(own))
    }

    /// How many counters an owner has, those that are only reserved included.
    fn places(&mut self, owner: &Owner, now_ms: u64) -> Result<usize, StateFailed> {
        let new = self.reserved.get(owner).map_or(0, |keys| keys.values().filter(|reserved| reserved.new).count());
        Ok(self.backing.counters(owner, now_ms)?.saturating_add(new))
    }

    fn release(&mut self, counter: &Counter, key: &CallKey) {
        let Some(keys) = self.reserved.get_mut(&counter.owner) else { return };
        if let Some(reserved) = keys.get_mut(&counter.key) {
            reserved.calls.remove(key);
            if reserved.calls.is_empty() {
                keys.remove(&counter.key);
            }
        }
        if keys.is_empty() {
            self.reserved.remove(&counter.owner);
        }
    }

    fn purge(&mut self, now_ms: u64) -> Result<(), StateFailed> {
        if now_ms >= self.purge_at_ms {
            self.backing.purge(now_ms)?;
            self.purge_at_ms = now_ms.saturating_add(PURGE_EVERY_MS);
        }
        Ok(())
    }
}

/// What one decision asks of a counter.
struct Asked<'a> {
    key: &'a CallKey,
    round: Option<u64>,
    now_ms: u64,
    window_ms: u64,
}

/// The counters of one moment.
struct Counting {
    state: State,
    key: CallKey,
    /// The decision that reserves; none: nothing is left.
    round: Option<u64>,
    now_ms: u64,
    /// R33: one moment gives one answer.
    answers: Mutex<HashMap<(Counter, u64), u64>>,
}

impl Counters for Counting {
    fn count(&self, owner: &Source, key: &str, window_ms: u64) -> Result<u64, StateFailed> {
        if key.len() > MAX_COUNTER_KEY {
            return Err(StateFailed(format!("a counter's key has {} bytes, more than {MAX_COUNTER_KEY}", key.len())));
        }
        if window_ms == 0 || window_ms > MAX_COUNTER_WINDOW_MS {
            return Err(StateFailed(format!(
                "a counter's window has 1 to {MAX_COUNTER_WINDOW_MS} ms, not {window_ms}"
            )));
        }
        let counter = Counter { owner: Owner::of(&self.key.caller.tenant, owner), key: key.to_owned() };
        let asked = (counter.clone(), window_ms);
        let mut answers = self.answers.lock();
        if let Some(answer) = answers.get(&asked) {
            return Ok(*answer);
        }
        let of = Asked { key: &self.key, round: self.round, now_ms: self.now_ms, window_ms };
        let answer = self.state.inner.lock().count(&of, counter)?;
        answers.insert(asked, answer);
        Ok(answer)
    }
}

impl CallKey {
    fn of(call: StatedCall<'_>) -> Self {
        Self { caller: call.caller.clone(), id: call.id.clone() }
    }
}

fn check_labels(labels: &[Label]) -> Result<(), StateFailed> {
    match labels.iter().find(|label| label.name.is_empty() || label.name.len() > MAX_LABEL) {
        Some(label) => Err(StateFailed(format!("a label has 1 to {MAX_LABEL} bytes, not {}", label.name.len()))),
        None => Ok(()),
    }
}

fn not_open() -> StateFailed {
    StateFailed("the call is not open".to_owned())
}
