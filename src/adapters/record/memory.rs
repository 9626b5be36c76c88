//! A record in memory, for embedders and tests.

use std::collections::VecDeque;

use parking_lot::Mutex;

use crate::model::item::Item;
use crate::ports::recorder::{DecisionRecord, ObservedRecord, RecordFailed, Recorder};

/// Keeps the newest items and decisions. The oldest make room: a process that runs for weeks must not grow for weeks.
#[derive(Debug)]
pub struct MemoryRecorder {
    kept: Mutex<Kept>,
    capacity: usize,
}

#[derive(Debug, Default)]
struct Kept {
    items: VecDeque<Item>,
    decisions: VecDeque<DecisionRecord>,
    observed: VecDeque<ObservedRecord>,
}

impl Default for MemoryRecorder {
    /// Keeps 10,000 of each.
    fn default() -> Self {
        Self::new(10_000)
    }
}

impl MemoryRecorder {
    /// Makes a record that keeps at most `capacity` items and as many decisions.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { kept: Mutex::default(), capacity }
    }

    /// Returns the items, oldest first.
    #[must_use]
    pub fn items(&self) -> Vec<Item> {
        self.kept.lock().items.iter().cloned().collect()
    }

    /// Returns the decisions, oldest first.
    #[must_use]
    pub fn decisions(&self) -> Vec<DecisionRecord> {
        self.kept.lock().decisions.iter().cloned().collect()
    }

    /// Returns what observed components said, oldest first.
    #[must_use]
    pub fn observed_decisions(&self) -> Vec<ObservedRecord> {
        self.kept.lock().observed.iter().cloned().collect()
    }
}

impl Recorder for MemoryRecorder {
    fn item(&self, item: &Item) {
        push(&mut self.kept.lock().items, item.clone(), self.capacity);
    }

    fn decision(&self, record: &DecisionRecord) -> Result<(), RecordFailed> {
        push(&mut self.kept.lock().decisions, record.clone(), self.capacity);
        Ok(())
    }

    fn observed(&self, record: &ObservedRecord) {
        push(&mut self.kept.lock().observed, record.clone(), self.capacity);
    }
}

fn push<T>(queue: &mut VecDeque<T>, value: T, capacity: usize) {
    queue.push_back(value);
    while queue.len() > capacity {
        queue.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapters::record::line::samples;

    #[test]
    fn the_newest_are_kept() {
        let memory = MemoryRecorder::new(1);
        memory.item(&samples::started());
        memory.item(&samples::completed());
        memory.decision(&samples::decision()).unwrap();
        assert!(matches!(memory.items().as_slice(), [Item::Completed(_)]));
        assert_eq!(memory.decisions().len(), 1);
    }
}
