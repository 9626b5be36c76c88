//! Everything around the pipeline, scripted and in memory: servers, components, people, records, grants, the clock.
//!
//! A fake does what its script says, counts what it was asked, and writes a line into the one journal of its bench, so that
//! the order of steps across all ports can be read off.

pub(crate) mod bench;
pub(crate) mod hook;
pub(crate) mod house;
pub(crate) mod judge;
pub(crate) mod people;
pub(crate) mod policy;
pub(crate) mod sanitiser;
pub(crate) mod server;

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

/// What happened, across all fakes, in order; one line each.
#[derive(Debug, Clone, Default)]
pub(crate) struct Journal(Arc<Mutex<Vec<String>>>);

impl Journal {
    pub(crate) fn note(&self, line: impl Into<String>) {
        self.0.lock().push(line.into());
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

/// Holds whoever passes until it is opened, and tells how many have come.
#[derive(Debug)]
pub(crate) struct Gate {
    come: watch::Sender<usize>,
    open: watch::Sender<bool>,
}

impl Gate {
    pub(crate) fn closed() -> Arc<Self> {
        Arc::new(Self { come: watch::Sender::new(0), open: watch::Sender::new(false) })
    }

    pub(crate) async fn pass(&self) {
        self.come.send_modify(|come| *come += 1);
        self.open.subscribe().wait_for(|open| *open).await.unwrap();
    }

    /// Waits until `count` have come.
    pub(crate) async fn reached(&self, count: usize) {
        self.come.subscribe().wait_for(|come| *come >= count).await.unwrap();
    }

    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }
}
