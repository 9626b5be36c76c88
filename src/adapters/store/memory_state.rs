//! State that lives as long as the process: for the demo, for tests, and for embedders that want nothing kept.

use std::collections::{BTreeMap, HashMap};

use super::backing::{Backing, Counter, Ended, Kept, Owner, Past, too_many_labels, too_many_pins};
use super::state::State;
use crate::model::caller::{Caller, Principal, SessionId, TenantId};
use crate::model::digest::Digest;
use crate::model::layer::LayerRef;
use crate::model::name::ToolRef;
use crate::model::verdict::{Label, Source};
use crate::ports::state::{
    HISTORY_LIFE_MS, LABEL_LIFE_MS, MAX_COUNTER_POINTS, MAX_HISTORY, MAX_LABELS, MAX_PINS, Pin, StateFailed,
};

/// Returns an empty state.
#[must_use]
pub fn in_memory() -> State {
    State::over(Tables::default())
}

#[derive(Default)]
struct Tables {
    counters: HashMap<Owner, HashMap<String, Points>>,
    labels: HashMap<(TenantId, Principal), BTreeMap<LabelKey, Set>>,
    history: HashMap<(TenantId, Principal, SessionId), Calls>,
    pins: HashMap<TenantId, HashMap<ToolRef, Pin>>,
}

/// Ended calls of a session, in the order in which they began.
type Calls = BTreeMap<(u64, u64), Ended>;

/// What was counted, by time, and the longest window that was asked for.
#[derive(Default)]
struct Points {
    at: BTreeMap<u64, u64>,
    window_ms: u64,
}

/// A label is one mark of one component, whichever version of it.
type LabelKey = (String, LayerRef, std::sync::Arc<str>);

struct Set {
    digest: Option<Digest>,
    expires_ms: u64,
    /// Who set it first; none once it was set again.
    setter: String,
}

impl Points {
    /// What is older than the longest window is forgotten.
    fn live(&self, now_ms: u64, window_ms: u64) -> impl Iterator<Item = (&u64, &u64)> {
        let window = window_ms.min(self.window_ms);
        self.at.iter().filter(move |(at, _)| at.saturating_add(window) > now_ms)
    }

    fn is_over(&self, now_ms: u64) -> bool {
        self.live(now_ms, u64::MAX).next().is_none()
    }

    fn add(&mut self, now_ms: u64, window_ms: u64) {
        let over = self.window_ms;
        self.at.retain(|at, _| at.saturating_add(over) > now_ms);
        self.window_ms = over.max(window_ms);
        *self.at.entry(now_ms).or_default() += 1;
        if self.at.len() > MAX_COUNTER_POINTS
            && let Some((_, oldest)) = self.at.pop_first()
            && let Some(mut next) = self.at.first_entry()
        {
            *next.get_mut() += oldest;
        }
    }

    fn take_back(&mut self, at_ms: u64) {
        // The point may have become one with a later one meanwhile.
        if let Some((&at, n)) = self.at.range_mut(at_ms..).next() {
            *n -= 1;
            if *n == 0 {
                self.at.remove(&at);
            }
        }
    }
}

impl Backing for Tables {
    fn sum(&mut self, counter: &Counter, now_ms: u64, window_ms: u64) -> Result<Kept, StateFailed> {
        let points = self.counters.get(&counter.owner).and_then(|keys| keys.get(&counter.key));
        let sum = points.map_or(0, |points| points.live(now_ms, window_ms).map(|(_, n)| *n).sum());
        Ok(Kept { sum, known: points.is_some_and(|points| !points.is_over(now_ms)) })
    }

    fn counters(&mut self, owner: &Owner, now_ms: u64) -> Result<usize, StateFailed> {
        let keys = self.counters.get(owner);
        Ok(keys.map_or(0, |keys| keys.values().filter(|points| !points.is_over(now_ms)).count()))
    }

    fn commit(
        &mut self,
        caller: &Caller,
        setter: &str,
        now_ms: u64,
        counts: &[(Counter, u64)],
        labels: &[Label],
    ) -> Result<(), StateFailed> {
        if !labels.is_empty() {
            let set = self.labels.entry((caller.tenant.clone(), caller.principal.clone())).or_default();
            set.retain(|_, label| label.expires_ms > now_ms);
            let key = |label: &Label| (label.name.clone(), label.source.layer.clone(), label.source.component.clone());
            let mut new: Vec<LabelKey> = labels.iter().map(key).filter(|key| !set.contains_key(key)).collect();
            new.sort();
            new.dedup();
            if set.len() + new.len() > MAX_LABELS {
                return Err(too_many_labels());
            }
            for label in labels {
                let (digest, expires_ms) = (label.source.digest, now_ms.saturating_add(LABEL_LIFE_MS));
                let setter = if new.contains(&key(label)) { setter.to_owned() } else { String::new() };
                set.insert(key(label), Set { digest, expires_ms, setter });
            }
        }
        for (counter, window_ms) in counts {
            let keys = self.counters.entry(counter.owner.clone()).or_default();
            keys.entry(counter.key.clone()).or_default().add(now_ms, *window_ms);
        }
        Ok(())
    }

    fn take_back(&mut self, setter: &str, at_ms: u64, counters: &[Counter]) -> Result<(), StateFailed> {
        for set in self.labels.values_mut() {
            set.retain(|_, label| label.setter != setter);
        }
        for counter in counters {
            let Some(keys) = self.counters.get_mut(&counter.owner) else { continue };
            let Some(points) = keys.get_mut(&counter.key) else { continue };
            points.take_back(at_ms);
            if points.at.is_empty() {
                keys.remove(&counter.key);
            }
        }
        Ok(())
    }

    fn past(&mut self, caller: &Caller, now_ms: u64) -> Result<Past, StateFailed> {
        let set = self.labels.get(&(caller.tenant.clone(), caller.principal.clone()));
        let live = set.into_iter().flatten().filter(|(_, label)| label.expires_ms > now_ms);
        let label = |((name, layer, component), set): (&LabelKey, &Set)| Label {
            name: name.clone(),
            source: Source { layer: layer.clone(), component: component.clone(), digest: set.digest },
        };
        let session = (caller.tenant.clone(), caller.principal.clone(), caller.session.clone());
        let calls = self.history.get(&session);
        let calls = calls.map(|calls| calls.values().rev().cloned().collect()).unwrap_or_default();
        Ok((live.map(label).collect(), calls))
    }

    fn ended(&mut self, caller: &Caller, ended: &Ended) -> Result<(), StateFailed> {
        let session = (caller.tenant.clone(), caller.principal.clone(), caller.session.clone());
        let calls = self.history.entry(session).or_default();
        calls.insert((ended.begun_ms, ended.order), ended.clone());
        while calls.len() > MAX_HISTORY {
            calls.pop_first();
        }
        Ok(())
    }

    fn purge(&mut self, now_ms: u64) -> Result<(), StateFailed> {
        self.counters.retain(|_, keys| {
            keys.retain(|_, points| !points.is_over(now_ms));
            !keys.is_empty()
        });
        self.labels.retain(|_, set| {
            set.retain(|_, label| label.expires_ms > now_ms);
            !set.is_empty()
        });
        let newest = |calls: &Calls| calls.last_key_value().map_or(0, |((begun, _), _)| *begun);
        self.history.retain(|_, calls| newest(calls).saturating_add(HISTORY_LIFE_MS) > now_ms);
        Ok(())
    }

    fn pinned(&mut self, tenant: &TenantId, tool: &ToolRef) -> Result<Option<Pin>, StateFailed> {
        Ok(self.pins.get(tenant).and_then(|pins| pins.get(tool)).cloned())
    }

    fn pin(&mut self, tenant: &TenantId, tool: &ToolRef, pin: &Pin) -> Result<(), StateFailed> {
        let pins = self.pins.entry(tenant.clone()).or_default();
        if pins.len() >= MAX_PINS && !pins.contains_key(tool) {
            return Err(too_many_pins());
        }
        pins.insert(tool.clone(), pin.clone());
        Ok(())
    }
}
