//! Requests on one connection, whatever carries them: sent, waited for, cancelled.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rmcp::model::{ClientRequest, CustomRequest, GetExtensions as _};
use rmcp::service::{Peer, PeerRequestOptions, RequestHandle, RoleClient, ServiceError};
use serde_json::{Map, Value};
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::inquiry::Asker;
use super::transport::LineEnd;
use super::upstream_side::{Outbound, RawAnswer, Slot, UpstreamSide};
use crate::ports::upstream::{NotSent, ProgressSink, Unanswered};

/// The most requests in flight on one connection.
const MAX_IN_FLIGHT: usize = 1024;
/// How long the writing of a cancellation is waited for.
const CANCEL: Duration = Duration::from_secs(1);

/// Says whether the transport has room for another request; the error says why not.
pub(super) type Room = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// The way to one server.
pub(super) struct Link {
    pub(super) peer: Peer<RoleClient>,
    pub(super) side: Arc<UpstreamSide>,
    pub(super) end: LineEnd,
    room: Room,
    in_flight: Arc<AtomicUsize>,
    runtime: Handle,
}

/// One request.
pub(super) struct Order {
    pub(super) method: &'static str,
    pub(super) params: Map<String, Value>,
    pub(super) progress: Option<Arc<dyn ProgressSink>>,
    pub(super) asker: Option<Asker>,
}

impl Link {
    /// Makes the link; needs a running tokio.
    pub(super) fn new(peer: Peer<RoleClient>, side: Arc<UpstreamSide>, end: LineEnd, room: Room) -> Self {
        Self { peer, side, end, room, in_flight: Arc::default(), runtime: Handle::current() }
    }

    /// Sends a request; returns as soon as it is queued.
    ///
    /// # Errors
    /// [`NotSent`]: nothing was queued.
    pub(super) async fn send(&self, order: Order) -> Result<Pending, NotSent> {
        if self.end.is_set() {
            return Err(NotSent(self.end.why().to_owned()));
        }
        (self.room)().map_err(NotSent)?;
        let Some(place) = Place::take(&self.in_flight) else {
            return Err(NotSent(format!("{MAX_IN_FLIGHT} requests are waiting for an answer")));
        };
        let Order { method, params, progress, asker } = order;
        let slot = Slot::default();
        let mut request = CustomRequest::new(method, None);
        let outbound = Outbound { method, params: Arc::new(params), slot: slot.clone(), progress, asker };
        request.extensions_mut().insert(outbound);
        let sent =
            self.peer.send_request_with_option(ClientRequest::CustomRequest(request), PeerRequestOptions::no_options());
        // A loop that has ended takes nothing: then nothing was written.
        let handle = sent.await.map_err(|_| NotSent(self.end.why().to_owned()))?;
        Ok(Pending {
            handle: Some(handle),
            slot,
            side: self.side.clone(),
            end: self.end.clone(),
            runtime: self.runtime.clone(),
            _place: place,
        })
    }
}

/// A place among the requests in flight.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(count: &Arc<AtomicUsize>) -> Option<Self> {
        let before = count.fetch_add(1, Ordering::Relaxed);
        let place = Self(count.clone());
        (before < MAX_IN_FLIGHT).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request that was handed over. Dropped before its answer, it is cancelled.
pub(super) struct Pending {
    /// Gone once it is answered, lost or cancelled.
    handle: Option<RequestHandle<RoleClient>>,
    slot: Slot,
    side: Arc<UpstreamSide>,
    end: LineEnd,
    runtime: Handle,
    _place: Place,
}

impl Pending {
    /// Waits for the raw answer. Cancel-safe.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub(super) async fn raw(&mut self) -> Result<RawAnswer, Unanswered> {
        let Some(handle) = &mut self.handle else { return Err(Unanswered::Lost("the request is over".to_owned())) };
        let told = tokio::select! {
            biased;
            told = &mut handle.rx => Some(told),
            () = self.end.wait() => None,
        };
        let id = handle.id.clone();
        self.handle = None;
        self.side.forget(&id);
        // The text is what counts; rmcp only tells that it is there.
        match self.slot.lock().take() {
            Some(RawAnswer::NotSent(why)) => return Err(Unanswered::NotSent(why)),
            Some(RawAnswer::Lost(why)) => return Err(Unanswered::Lost(why)),
            Some(raw) => return Ok(raw),
            None => {}
        }
        let why = match told {
            Some(Ok(Err(ServiceError::TransportSend(error)))) if !self.end.is_set() => error.error.to_string(),
            _ => self.end.why().to_owned(),
        };
        Err(Unanswered::Lost(why))
    }

    /// Takes the request out of its place and returns what tells the server that it is cancelled.
    fn cancelling(&mut self, reason: &str) -> Option<impl Future<Output = ()> + Send + use<>> {
        let handle = self.handle.take()?;
        self.side.forget(&handle.id);
        let reason = reason.to_owned();
        // An answer that has come already needs no cancellation; one that nobody can hear neither.
        if self.end.is_set() || self.slot.lock().is_some() {
            return None;
        }
        Some(async move {
            // It is told as well as it can be; nobody waits for it any more.
            let _ = handle.cancel(Some(reason)).await;
        })
    }

    /// Tells the server that the request is cancelled.
    pub(super) async fn cancel(mut self, reason: &str) {
        if let Some(cancelling) = self.cancelling(reason) {
            // Spawned, so that it is told even if this future is dropped or the server is slow to read.
            let _ = timeout(CANCEL, self.runtime.spawn(cancelling)).await;
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(cancelling) = self.cancelling("the caller has gone") {
            self.runtime.spawn(cancelling);
        }
    }
}
