//! The clock of all deadlines: one thread that advances the engine's epoch every millisecond while somebody is in the sandbox.
//!
//! A tick that the thread missed (a busy machine, a suspended one) is skipped, not made up for: a component is not stopped
//! for time in which it could not run.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// The length of a tick; deadlines are counted in ticks.
pub(super) const TICK: Duration = Duration::from_millis(1);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    running: usize,
    closed: bool,
}

/// The ticker; its thread ends with it.
pub(super) struct Ticker(Arc<Shared>);

/// While one exists, the ticker ticks.
pub(super) struct Ticking<'t>(&'t Shared);

impl Ticker {
    /// Starts the thread.
    pub(super) fn start(engine: wasmtime::Engine) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        std::thread::Builder::new().name("policy-ticker".to_owned()).spawn(move || {
            while of_thread.wait_for_work() {
                std::thread::sleep(TICK);
                engine.increment_epoch();
            }
        })?;
        Ok(Self(shared))
    }

    /// Ticks until the guard is dropped.
    pub(super) fn tick(&self) -> Ticking<'_> {
        self.0.state.lock().running += 1;
        self.0.wake.notify_one();
        Ticking(&self.0)
    }
}

impl Shared {
    /// Blocks while nobody is in the sandbox; false when the ticker is gone.
    fn wait_for_work(&self) -> bool {
        let mut state = self.state.lock();
        while state.running == 0 && !state.closed {
            self.wake.wait(&mut state);
        }
        !state.closed
    }
}

impl Drop for Ticking<'_> {
    fn drop(&mut self) {
        self.0.state.lock().running -= 1;
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.0.state.lock().closed = true;
        self.0.wake.notify_one();
    }
}
