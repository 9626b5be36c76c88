//! How long something was waited for, where several waits may overlap: what is waited for twice at once takes its time once.

use std::time::Duration;

/// The waits of one call or of one phase. Times are counted from its begin, by whoever owns the clock; they never run back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waiting {
    open: u32,
    since: Duration,
    closed: Duration,
}

impl Waiting {
    /// A wait begins.
    pub fn begin(&mut self, now: Duration) {
        if self.open == 0 {
            self.since = now;
        }
        self.open = self.open.saturating_add(1);
    }

    /// A wait that has begun is over.
    pub fn end(&mut self, now: Duration) {
        self.closed = self.total(if self.open == 1 { now } else { self.since });
        self.open = self.open.saturating_sub(1);
    }

    /// Returns the time in which at least one wait was open until now.
    #[must_use]
    pub fn total(&self, now: Duration) -> Duration {
        let open = if self.open == 0 { Duration::ZERO } else { now.saturating_sub(self.since) };
        self.closed.saturating_add(open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn waits_that_overlap_take_their_time_once() {
        let mut waiting = Waiting::default();
        waiting.begin(s(10));
        waiting.begin(s(12));
        waiting.end(s(15));
        assert_eq!(waiting.total(s(17)), s(7), "one of them is still open");
        waiting.end(s(20));
        assert_eq!(waiting.total(s(99)), s(10));
        waiting.begin(s(100));
        waiting.end(s(101));
        assert_eq!(waiting.total(s(200)), s(11));
    }

    #[test]
    fn nothing_that_was_waited_for_takes_no_time() {
        assert_eq!(Waiting::default().total(s(5)), Duration::ZERO);
    }
}
