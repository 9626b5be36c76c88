//! How many bytes passed: counted where they are read and written, whatever they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::io::{InspectReader, InspectWriter};

use crate::ports::upstream::Traffic;

/// Sees bytes pass.
pub(super) type Inspect = Box<dyn FnMut(&[u8]) + Send>;

/// A stream whose bytes are counted when they are read.
pub(super) type Counted<I> = InspectReader<I, Inspect>;

/// Counts the bytes of one connection.
#[derive(Debug, Default)]
pub(super) struct Counter {
    received: AtomicU64,
    sent: AtomicU64,
}

impl Counter {
    pub(super) fn received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Returns the counts so far.
    pub(super) fn read(&self) -> Traffic {
        Traffic { received: self.received.load(Ordering::Relaxed), sent: self.sent.load(Ordering::Relaxed) }
    }

    /// Returns a stream whose bytes count as received when they are read.
    pub(super) fn input<I: AsyncRead>(self: &Arc<Self>, input: I) -> Counted<I> {
        let counter = Arc::clone(self);
        InspectReader::new(input, Box::new(move |bytes: &[u8]| counter.received(bytes.len())))
    }

    /// Returns a stream whose bytes count as sent when they are written.
    pub(super) fn output<W: AsyncWrite>(self: &Arc<Self>, output: W) -> InspectWriter<W, Inspect> {
        let counter = Arc::clone(self);
        InspectWriter::new(output, Box::new(move |bytes: &[u8]| counter.sent(bytes.len())))
    }
}
