//! Several records at once.

use std::sync::Arc;

use crate::model::item::Item;
use crate::ports::recorder::{DecisionRecord, ObservedRecord, RecordFailed, Recorder};

/// Gives everything to each of its recorders, in order. Without any it keeps nothing: a host without a record.
#[derive(Clone, Default)]
pub struct Fanout(Vec<Arc<dyn Recorder>>);

impl Fanout {
    /// Makes one of these recorders.
    #[must_use]
    pub fn new(recorders: Vec<Arc<dyn Recorder>>) -> Self {
        Self(recorders)
    }
}

impl std::fmt::Debug for Fanout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fanout({})", self.0.len())
    }
}

impl Recorder for Fanout {
    fn item(&self, item: &Item) {
        for recorder in &self.0 {
            recorder.item(item);
        }
    }

    /// Every recorder must keep the decision. One that fails does not keep the others from trying; the first failure
    /// is returned.
    fn decision(&self, record: &DecisionRecord) -> Result<(), RecordFailed> {
        let mut outcome = Ok(());
        for recorder in &self.0 {
            outcome = outcome.and(recorder.decision(record));
        }
        outcome
    }

    fn observed(&self, record: &ObservedRecord) {
        for recorder in &self.0 {
            recorder.observed(record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapters::record::line::samples;
    use crate::adapters::record::memory::MemoryRecorder;

    struct Full;

    impl Recorder for Full {
        fn item(&self, _item: &Item) {}

        fn decision(&self, _record: &DecisionRecord) -> Result<(), RecordFailed> {
            Err(RecordFailed(std::io::Error::other("full")))
        }

        fn observed(&self, _record: &ObservedRecord) {}
    }

    #[test]
    fn r34_one_recorder_that_fails_fails_the_decision_and_the_others_still_have_it() {
        let memory = Arc::new(MemoryRecorder::default());
        let fanout = Fanout::new(vec![Arc::new(Full), Arc::clone(&memory) as Arc<dyn Recorder>]);
        assert!(fanout.decision(&samples::decision()).is_err());
        fanout.item(&samples::started());
        assert_eq!((memory.decisions().len(), memory.items().len()), (1, 1));
    }

    #[test]
    fn without_recorders_everything_is_taken_and_nothing_kept() {
        assert!(Fanout::default().decision(&samples::decision()).is_ok());
    }
}
