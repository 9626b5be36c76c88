//! Tells whoever wants progress what a call waits for before and after its server has it: a hook, an auto reviewer, a person.
//! A client that hears nothing takes the silence for a hang and gives up (R21).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::ports::upstream::{ProgressSink, WaitsFor};

/// How often. Clients give up after a minute of silence, some after half of that.
pub const EVERY: Duration = Duration::from_secs(10);

/// Waits for `work`, and tells `sink` of it: every ten seconds, and of a person at once. A hook or a reviewer that is quick is
/// not worth a word.
pub async fn telling<T>(sink: Option<&Arc<dyn ProgressSink>>, waits_for: WaitsFor, work: impl Future<Output = T>) -> T {
    let Some(sink) = sink else { return work.await };
    let first = if waits_for == WaitsFor::Person { Duration::ZERO } else { EVERY };
    let mut every = interval_at(Instant::now() + first, EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tokio::pin!(work);
    loop {
        tokio::select! {
            // First: what is done at once has kept nobody waiting.
            biased;
            done = &mut work => return done,
            _now = every.tick() => sink.waiting(waits_for),
        }
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::ports::upstream::Progress;

    #[derive(Default)]
    struct Told(Mutex<Vec<(u64, WaitsFor)>>, Option<Instant>);

    impl ProgressSink for Told {
        fn progress(&self, _: Progress) {}

        fn waiting(&self, waits_for: WaitsFor) {
            self.0.lock().push((self.1.unwrap().elapsed().as_secs(), waits_for));
        }
    }

    async fn told(waits_for: WaitsFor, lasts: u64) -> Vec<u64> {
        let told = Arc::new(Told(Mutex::default(), Some(Instant::now())));
        let sink: Arc<dyn ProgressSink> = Arc::clone(&told) as _;
        telling(Some(&sink), waits_for, tokio::time::sleep(Duration::from_secs(lasts))).await;
        let told = told.0.lock();
        assert!(told.iter().all(|(_, what)| *what == waits_for));
        told.iter().map(|(at, _)| *at).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn r21_who_waits_long_hears_of_it_every_ten_seconds() {
        for waits_for in [WaitsFor::Hooks, WaitsFor::AutoReviewer] {
            assert_eq!(told(waits_for, 35).await, [10, 20, 30], "{waits_for:?}");
            assert!(told(waits_for, 9).await.is_empty(), "what is quick was told of");
        }
        assert_eq!(told(WaitsFor::Person, 25).await, [0, 10, 20]);
        telling(None, WaitsFor::Person, std::future::ready(())).await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_there_at_once_is_not_waited_for() {
        let told = Arc::new(Told(Mutex::default(), Some(Instant::now())));
        let sink: Arc<dyn ProgressSink> = Arc::clone(&told) as _;
        telling(Some(&sink), WaitsFor::Person, std::future::ready(())).await;
        assert!(told.0.lock().is_empty());
    }
}
