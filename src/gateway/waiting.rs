//! Tells a client that its call waits for a person, so that it does not take the silence for a hang (R21).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::MissedTickBehavior;

use super::progress::Sink;
use crate::model::verdict::Remember;
use crate::ports::reviewer::{Question, Reply, Reviewer};

/// How often.
pub(super) const EVERY: Duration = Duration::from_secs(10);

/// A channel that tells of the waiting while it asks. Only for a call whose client wants progress.
pub(super) struct Telling {
    inner: Arc<dyn Reviewer>,
    sink: Sink,
}

impl Telling {
    pub(super) fn new(inner: Arc<dyn Reviewer>, sink: Sink) -> Self {
        Self { inner, sink }
    }
}

#[async_trait]
impl Reviewer for Telling {
    async fn ask(&self, question: &Question) -> Reply {
        let mut every = tokio::time::interval(EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut asked = self.inner.ask(question);
        loop {
            tokio::select! {
                // First: a channel that answers at once has kept nobody waiting.
                biased;
                reply = &mut asked => return reply,
                _now = every.tick() => self.sink.waiting(),
            }
        }
    }

    fn widest(&self) -> Remember {
        self.inner.widest()
    }
}
