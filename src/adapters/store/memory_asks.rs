//! A queue of questions that lives as long as the process.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::asks::{AskBacking, Queue, Shelf, Standing, Step};
use super::memory::MemoryGrants;
use crate::model::caller::TenantId;
use crate::ports::asks::{AskState, AsksFailed, ENDED_LIFE_MS, KeptAsk, MAX_PENDING, NotQueued};
use crate::ports::grants::{Grant, Grants as _};

/// Makes a queue in memory. Late answers become grants in `grants`.
#[must_use]
pub fn in_memory(grants: Arc<MemoryGrants>) -> Queue {
    Queue::over(Arc::new(Mutex::new(Memory { asks: BTreeMap::new(), next: 0, grants: Taken(grants) })))
}

struct Memory {
    /// By age.
    asks: BTreeMap<u64, KeptAsk>,
    next: u64,
    grants: Taken,
}

struct Taken(Arc<MemoryGrants>);

impl Shelf for Taken {
    fn put(&mut self, grant: Grant) -> Result<(), AsksFailed> {
        self.0.store(grant).map_err(|failed| AsksFailed(failed.to_string()))
    }

    fn take(&mut self, id: &str) -> Result<bool, AsksFailed> {
        self.0.take(id).map_err(|failed| AsksFailed(failed.to_string()))
    }
}

impl Memory {
    fn of<'a>(&'a self, tenant: &'a TenantId, pending: bool) -> impl Iterator<Item = (&'a u64, &'a KeptAsk)> {
        self.asks.iter().filter(move |(_, ask)| tenant_of(ask) == tenant && (ask.state == AskState::Pending) == pending)
    }
}

impl AskBacking for Memory {
    fn insert(&mut self, ask: &KeptAsk, _text: &str) -> Result<(), NotQueued> {
        let now_ms = ask.created_ms;
        self.asks
            .retain(|_, old| old.state == AskState::Pending || old.deadline_ms.saturating_add(ENDED_LIFE_MS) > now_ms);
        let tenant = tenant_of(ask);
        if self.of(tenant, true).count() >= MAX_PENDING {
            return Err(NotQueued::Full);
        }
        let ended: Vec<u64> = self.of(tenant, false).map(|(age, _)| *age).collect();
        for age in ended.iter().rev().skip(MAX_PENDING) {
            self.asks.remove(age);
        }
        self.asks.insert(self.next, ask.clone());
        self.next += 1;
        Ok(())
    }

    fn change(&mut self, id: &str, step: Step<'_>) -> Result<bool, AsksFailed> {
        let Some(ask) = self.asks.values_mut().find(|ask| ask.question.id == id) else { return Ok(false) };
        let mut changed = ask.clone();
        step(&mut changed, &mut self.grants)?;
        *ask = changed;
        Ok(true)
    }

    fn standing(&mut self, id: &str) -> Result<Option<Standing>, AsksFailed> {
        Ok(self.get(id)?.map(|ask| Standing {
            pending: ask.state == AskState::Pending,
            deadline_ms: ask.deadline_ms,
            live_until_ms: ask.live_until_ms,
        }))
    }

    fn get(&mut self, id: &str) -> Result<Option<KeptAsk>, AsksFailed> {
        Ok(self.asks.values().find(|ask| ask.question.id == id).cloned())
    }

    fn list(&mut self, tenant: &TenantId, all: bool, now_ms: u64) -> Result<Vec<KeptAsk>, AsksFailed> {
        let wanted = |ask: &&KeptAsk| tenant_of(ask) == tenant && (all || ask.is_open(now_ms));
        Ok(self.asks.values().rev().filter(wanted).take(2 * MAX_PENDING).cloned().collect())
    }

    fn due(&mut self, now_ms: u64) -> Result<Vec<String>, AsksFailed> {
        use crate::ports::asks::Delivery::Waiting;
        let due = |ask: &&KeptAsk| match &ask.state {
            AskState::Pending => ask.deadline_ms <= now_ms,
            AskState::Answered { outcome: Waiting, .. } => !ask.is_awaited(now_ms),
            AskState::Answered { .. } | AskState::Expired => false,
        };
        Ok(self.asks.values().filter(due).map(|ask| ask.question.id.clone()).collect())
    }
}

fn tenant_of(ask: &KeptAsk) -> &TenantId {
    &ask.question.agreement.subject.caller.tenant
}
