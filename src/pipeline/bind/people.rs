//! How much of a call's time people took: whoever is asked whether it may run, and whoever fills in what its server asks.
//!
//! A program, a model and the client's own answers are no people; what is asked side by side takes its time once.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::model::waiting::Waiting;

/// The time that people took of one call.
#[derive(Debug)]
pub struct People {
    begun: Instant,
    waiting: Mutex<Waiting>,
}

/// A person is waited for as long as this lives.
#[derive(Debug)]
pub struct Waited<'a>(&'a People);

impl People {
    /// Nobody was waited for since `begun`, when the call came in.
    #[must_use]
    pub fn since(begun: Instant) -> Self {
        Self { begun, waiting: Mutex::default() }
    }

    /// Returns when the call came in.
    #[must_use]
    pub fn begun(&self) -> Instant {
        self.begun
    }

    /// Begins to wait for a person.
    #[must_use]
    pub fn wait(&self) -> Waited<'_> {
        self.waiting.lock().begin(self.begun.elapsed());
        Waited(self)
    }

    /// Returns how long people were waited for until now.
    #[must_use]
    pub fn took(&self) -> Duration {
        self.waiting.lock().total(self.begun.elapsed())
    }
}

impl Drop for Waited<'_> {
    fn drop(&mut self) {
        self.0.waiting.lock().end(self.0.begun.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_person_is_waited_for_until_the_guard_is_dropped() {
        let people = People::since(Instant::now());
        let pass = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
        pass(3).await;
        let waited = people.wait();
        pass(5).await;
        assert_eq!(people.took(), Duration::from_secs(5));
        drop(waited);
        pass(7).await;
        assert_eq!(people.took(), Duration::from_secs(5));
    }
}
