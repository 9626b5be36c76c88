//! The clock of all deadlines: one thread that advances the engine's epoch every millisecond while somebody is in the sandbox.
//!
//! A tick that the thread missed (a busy machine, a suspended one) is skipped, not made up for: a component is not stopped
//! for time in which it could not run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// The length of a tick; deadlines are counted in ticks.
pub(super) const TICK: Duration = Duration::from_millis(1);

#[derive(Default)]
struct Shared {
    /// How many are in the sandbox. Not under the lock: every evaluation on every core passes here twice.
    running: AtomicUsize,
    /// The thread waits for work; it does not tick.
    idle: AtomicBool,
    /// Whether the ticker is gone.
    closed: Mutex<bool>,
    wake: Condvar,
}

/// The ticker; its thread ends with it.
pub(super) struct Ticker(Arc<Shared>);

/// While one exists, the ticker ticks.
pub(super) struct Ticking<'t>(&'t Shared);

impl Ticker {
    /// Starts the thread; it advances the epoch of `engine`.
    pub(super) fn start(engine: wasmtime::Engine) -> std::io::Result<Self> {
        Self::calling(move || engine.increment_epoch())
    }

    fn calling(tick: impl Fn() + Send + 'static) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        std::thread::Builder::new().name("policy-ticker".to_owned()).spawn(move || {
            while of_thread.wait_for_work() {
                std::thread::sleep(TICK);
                tick();
            }
        })?;
        Ok(Self(shared))
    }

    /// Ticks until the guard is dropped.
    pub(super) fn tick(&self) -> Ticking<'_> {
        self.0.running.fetch_add(1, Ordering::SeqCst);
        // Either this sees that the thread is idle, or the thread sees that somebody runs.
        if self.0.idle.load(Ordering::SeqCst) {
            let _not_between_its_look_and_its_sleep = self.0.closed.lock();
            self.0.wake.notify_all();
        }
        Ticking(&self.0)
    }
}

impl Shared {
    /// Blocks while nobody is in the sandbox; false when the ticker is gone.
    fn wait_for_work(&self) -> bool {
        let mut closed = self.closed.lock();
        self.idle.store(true, Ordering::SeqCst);
        while self.running.load(Ordering::SeqCst) == 0 && !*closed {
            self.wake.notify_all();
            self.wake.wait(&mut closed);
        }
        self.idle.store(false, Ordering::SeqCst);
        !*closed
    }
}

impl Drop for Ticking<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        *self.0.closed.lock() = true;
        self.0.wake.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A ticker whose ticks are counted, and a channel that brings each.
    fn counted() -> (Ticker, Arc<AtomicUsize>, mpsc::Receiver<()>) {
        let (count, (sender, ticks)) = (Arc::new(AtomicUsize::new(0)), mpsc::channel());
        let of_thread = Arc::clone(&count);
        let tick = move || {
            of_thread.fetch_add(1, Ordering::SeqCst);
            let _ = sender.send(());
        };
        (Ticker::calling(tick).unwrap(), count, ticks)
    }

    fn wait_until_idle(ticker: &Ticker) {
        let mut closed = ticker.0.closed.lock();
        while !ticker.0.idle.load(Ordering::SeqCst) || ticker.0.running.load(Ordering::SeqCst) > 0 {
            ticker.0.wake.wait(&mut closed);
        }
    }

    #[test]
    fn it_ticks_while_somebody_is_in_the_sandbox_and_stops_with_the_last() {
        let (ticker, count, ticks) = counted();
        wait_until_idle(&ticker);
        assert_eq!(count.load(Ordering::SeqCst), 0, "it ticked for nobody");
        let (first, second) = (ticker.tick(), ticker.tick());
        ticks.recv().unwrap();
        drop(first);
        ticks.recv().unwrap();
        drop(second);
        wait_until_idle(&ticker);
        assert!(count.load(Ordering::SeqCst) >= 2);
        // Idle, the thread is inside its wait: nothing can tick before somebody comes.
        assert!(ticker.0.idle.load(Ordering::SeqCst));
    }

    #[test]
    fn ticks_that_were_missed_are_not_made_up_for() {
        let (held, gate) = mpsc::channel::<()>();
        let (sender, ticks) = mpsc::channel();
        let ticker = Ticker::calling(move || {
            let _ = sender.send(());
            // A machine that stands still: the next tick comes after this one, not at once and twice.
            let _ = gate.recv();
        })
        .unwrap();
        let _inside = ticker.tick();
        ticks.recv().unwrap();
        assert!(ticks.try_recv().is_err(), "a second tick while the first one was held");
        held.send(()).unwrap();
        ticks.recv().unwrap();
        assert!(ticks.try_recv().is_err(), "what was missed was made up for");
    }
}
