//! The open leases, and how a publication gets past them.
//!
//! A lease is the right to hand over one prepared call. It is short: it covers the revision check and the hand-over, never
//! the wait for an answer. A publication waits for the leases that it would invalidate, at most [`DRAIN`]; what is still
//! open then is revoked, and a revoked lease cannot hand over any more (R27). The hand-over is one compare-and-set, so a
//! lease is either handed over before a revocation or never.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::model::name::ServerName;

/// The longest time that a publication waits for open leases (R27).
pub const DRAIN: Duration = Duration::from_secs(2);

const OPEN: u8 = 0;
const HANDED_OVER: u8 = 1;
const REVOKED: u8 = 2;

/// All open leases of one catalog.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    book: Mutex<Book>,
    closed: Notify,
}

#[derive(Debug, Default)]
struct Book {
    next: u64,
    open: HashMap<u64, (ServerName, Arc<AtomicU8>)>,
}

/// One open lease; ends when it is dropped.
#[derive(Debug)]
pub(crate) struct OpenLease {
    leases: Arc<Leases>,
    id: u64,
    state: Arc<AtomicU8>,
}

impl Leases {
    /// Opens a lease if `still_valid` says so. No publication can swap the catalog between the check and the opening.
    pub(crate) fn open<E>(
        self: &Arc<Self>,
        server: &ServerName,
        still_valid: impl FnOnce() -> Result<(), E>,
    ) -> Result<OpenLease, E> {
        let mut book = self.book.lock();
        still_valid()?;
        let id = book.next;
        book.next += 1;
        let state = Arc::new(AtomicU8::new(OPEN));
        book.open.insert(id, (server.clone(), Arc::clone(&state)));
        Ok(OpenLease { leases: Arc::clone(self), id, state })
    }

    /// Waits until no lease on `servers` is open, at most [`DRAIN`]; then revokes what is left and runs `swap`, with no
    /// lease opening in between. Returns how many were revoked.
    pub(crate) async fn drain_then(&self, servers: &BTreeSet<ServerName>, swap: impl FnOnce()) -> usize {
        let deadline = Instant::now() + DRAIN;
        loop {
            // Registered before the look, so that a lease which closes right after it is not missed.
            let closed = self.closed.notified();
            if !self.book.lock().open.values().any(|(server, _)| servers.contains(server)) {
                break;
            }
            if tokio::time::timeout_at(deadline, closed).await.is_err() {
                break;
            }
        }
        let book = self.book.lock();
        let mut revoked = 0;
        for (_, state) in book.open.values().filter(|(server, _)| servers.contains(server)) {
            if state.compare_exchange(OPEN, REVOKED, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                revoked += 1;
            }
        }
        swap();
        revoked
    }
}

impl OpenLease {
    /// Marks the call as handed over; false when the lease was revoked. Must come right before the hand-over.
    pub(crate) fn begin_hand_over(&self) -> bool {
        self.state.compare_exchange(OPEN, HANDED_OVER, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

impl Drop for OpenLease {
    fn drop(&mut self) {
        self.leases.book.lock().open.remove(&self.id);
        self.leases.closed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(name: &str) -> ServerName {
        ServerName::parse(name).unwrap()
    }

    fn open(leases: &Arc<Leases>, name: &str) -> OpenLease {
        leases.open(&server(name), || Ok::<_, ()>(())).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn r27_a_drain_that_times_out_revokes_what_is_open() {
        let leases = Arc::new(Leases::default());
        let lease = open(&leases, "a");
        let revoked = leases.drain_then(&BTreeSet::from([server("a")]), || ()).await;
        assert_eq!(revoked, 1);
        assert!(!lease.begin_hand_over(), "a revoked lease handed over");
    }

    #[tokio::test(start_paused = true)]
    async fn r27_a_publication_does_not_wait_for_leases_of_other_servers() {
        let leases = Arc::new(Leases::default());
        let lease = open(&leases, "a");
        let before = Instant::now();
        leases.drain_then(&BTreeSet::from([server("b")]), || ()).await;
        assert_eq!(Instant::now(), before);
        assert!(lease.begin_hand_over());
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_ends_as_soon_as_the_last_lease_is_closed() {
        let leases = Arc::new(Leases::default());
        let lease = open(&leases, "a");
        let before = Instant::now();
        let closing = async {
            tokio::task::yield_now().await;
            assert!(lease.begin_hand_over());
            drop(lease);
        };
        let servers = BTreeSet::from([server("a")]);
        let (revoked, ()) = tokio::join!(leases.drain_then(&servers, || ()), closing);
        assert_eq!((revoked, Instant::now()), (0, before));
    }

    #[tokio::test]
    async fn a_lease_that_is_no_longer_valid_is_not_opened() {
        let leases = Arc::new(Leases::default());
        assert_eq!(leases.open(&server("a"), || Err("stale")).unwrap_err(), "stale");
        assert!(leases.book.lock().open.is_empty());
    }
}
