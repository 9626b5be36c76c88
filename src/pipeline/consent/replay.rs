//! Takes a recorded decision again, from what it was taken on (R35).
//!
//! The same code as for a call; what the host answered then is answered again. Leaves nothing behind (R33).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::decide;
use crate::model::decision::Decision;
use crate::model::layer::LayerKind;
use crate::model::verdict::Source;
use crate::pipeline::bind::noted::Moments;
use crate::ports::approval::PolicySet;
use crate::ports::inputs::{Count, DecisionInputs};
use crate::ports::state::{Counters, Moment, StateFailed};

/// How many counts of one decision are noted. What is beyond is not, so that it cannot be replayed.
const MAX_COUNTS: usize = 10_000;

/// A decision that was taken again.
#[derive(Debug, Clone)]
pub struct Replayed {
    /// The decision.
    pub decision: Decision,
    /// Whether a component counted what nobody counted then: what it was told is made up, and the decision worth nothing.
    pub unheard_of: bool,
}

/// Takes a decision again, by these policies.
pub async fn replay(policies: &PolicySet, inputs: &DecisionInputs) -> Replayed {
    let told = Arc::new(Told::of(&inputs.counts));
    let (labels, history) = (Arc::clone(&inputs.labels), Arc::clone(&inputs.history));
    let moment = Moment { labels, history, counters: Arc::clone(&told) as _ };
    let moments = Moments { asked: moment.clone(), observed: moment };
    let decided = decide::decide_case(policies, inputs.case.clone(), &moments).await;
    Replayed { decision: decided.decision, unheard_of: told.unheard_of.load(Ordering::Relaxed) }
}

/// Who counts what: the layer, the component, the key, the window. Neither file nor digest: a candidate's component is
/// answered what the one in its place was.
type Counted = (LayerKind, Arc<str>, String, u64);

fn counted(owner: &Source, key: &str, window_ms: u64) -> Counted {
    (owner.layer.kind(), Arc::clone(&owner.component), key.to_owned(), window_ms)
}

/// Counters that note what they answer.
pub(super) struct Noting {
    counters: Arc<dyn Counters>,
    noted: Mutex<BTreeMap<Counted, u64>>,
}

impl Noting {
    pub(super) fn over(counters: Arc<dyn Counters>) -> Self {
        Self { counters, noted: Mutex::default() }
    }

    pub(super) fn counts(&self) -> Vec<Count> {
        let count = |((layer, component, key, window_ms), sum): (&Counted, &u64)| Count {
            layer: *layer,
            component: Arc::clone(component),
            key: key.clone(),
            window_ms: *window_ms,
            sum: *sum,
        };
        self.noted.lock().iter().map(count).collect()
    }
}

impl Counters for Noting {
    fn count(&self, owner: &Source, key: &str, window_ms: u64) -> Result<u64, StateFailed> {
        let sum = self.counters.count(owner, key, window_ms)?;
        let mut noted = self.noted.lock();
        if noted.len() < MAX_COUNTS {
            noted.insert(counted(owner, key, window_ms), sum);
        }
        Ok(sum)
    }
}

/// Counters that answer what others answered then.
struct Told {
    counts: BTreeMap<Counted, u64>,
    unheard_of: AtomicBool,
}

impl Told {
    fn of(counts: &[Count]) -> Self {
        let told = |count: &Count| {
            ((count.layer, Arc::clone(&count.component), count.key.clone(), count.window_ms), count.sum)
        };
        Self { counts: counts.iter().map(told).collect(), unheard_of: AtomicBool::new(false) }
    }
}

impl Counters for Told {
    fn count(&self, owner: &Source, key: &str, window_ms: u64) -> Result<u64, StateFailed> {
        self.counts.get(&counted(owner, key, window_ms)).copied().ok_or_else(|| {
            self.unheard_of.store(true, Ordering::Relaxed);
            StateFailed("nobody counted this then".to_owned())
        })
    }
}
