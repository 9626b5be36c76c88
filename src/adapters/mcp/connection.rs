//! One live connection: listing and calling.
//!
//! Listing follows all pages within the limits of catalog-dispatch 2.1 rule 8 and keeps each definition as it was
//! spelled. A call is handed over with `_meta` as given, and can be cancelled: explicitly, or by dropping it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use rmcp::model::{ClientRequest, CustomRequest, GetExtensions as _};
use rmcp::service::{Peer, PeerRequestOptions, RequestHandle, RoleClient, ServiceError};
use serde_json::{Map, Value};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::answer::{self, Page};
use super::outbox::Outbox;
use super::transport::{LineEnd, TransportFault};
use super::upstream_side::{Outbound, RawAnswer, Slot, UpstreamSide};
use crate::model::answer::Answer;
use crate::model::revision::ConnectionId;
use crate::model::text;
use crate::ports::upstream::{Connection, InFlight, ListFailure, Listing, Lost, NotSent, OutgoingCall, ProgressSink};

/// The most pages of one list.
const MAX_PAGES: usize = 100;
/// The most tools of one server.
pub(super) const MAX_TOOLS: usize = 2048;
/// The longest cursor, in bytes.
const MAX_CURSOR: usize = 64 * 1024;
/// The most bytes of all definitions together.
const MAX_LIST: usize = 64 * 1024 * 1024;
/// The longest instructions that are kept, in bytes.
const MAX_INSTRUCTIONS: usize = 64 * 1024;
/// The most requests in flight on one connection.
const MAX_IN_FLIGHT: usize = 1024;
/// How long the writing of a cancellation is waited for.
const CANCEL: Duration = Duration::from_secs(1);
/// JSON-RPC: the server does not know the method.
const METHOD_NOT_FOUND: i64 = -32601;

/// A connection over lines of JSON.
pub(super) struct McpConnection {
    id: ConnectionId,
    peer: Peer<RoleClient>,
    side: Arc<UpstreamSide>,
    end: LineEnd,
    outbox: Outbox,
    in_flight: Arc<AtomicUsize>,
    runtime: Handle,
    closed: CancellationToken,
    /// Dropping the connection closes it.
    closing: DropGuard,
    close: CancellationToken,
}

impl McpConnection {
    pub(super) fn new(
        id: ConnectionId,
        peer: Peer<RoleClient>,
        side: Arc<UpstreamSide>,
        end: LineEnd,
        outbox: Outbox,
        close: CancellationToken,
        closed: CancellationToken,
    ) -> Self {
        let (in_flight, runtime) = (Arc::default(), Handle::current());
        Self { id, peer, side, end, outbox, in_flight, runtime, closed, closing: close.clone().drop_guard(), close }
    }

    async fn send(
        &self,
        method: &'static str,
        params: Map<String, Value>,
        progress: Option<Arc<dyn ProgressSink>>,
    ) -> Result<Sent, NotSent> {
        if self.end.is_set() {
            return Err(NotSent(self.end.why().to_owned()));
        }
        if !self.outbox.has_room() {
            return Err(NotSent(TransportFault::Full.to_string()));
        }
        let Some(place) = Place::take(&self.in_flight) else {
            return Err(NotSent(format!("{MAX_IN_FLIGHT} requests are waiting for an answer")));
        };
        let slot = Slot::default();
        let mut request = CustomRequest::new(method, None);
        let outbound = Outbound { method, params: Arc::new(params), slot: slot.clone(), progress };
        request.extensions_mut().insert(outbound);
        let sent =
            self.peer.send_request_with_option(ClientRequest::CustomRequest(request), PeerRequestOptions::no_options());
        // A loop that has ended takes nothing: then nothing was written.
        let handle = sent.await.map_err(|_| NotSent(self.end.why().to_owned()))?;
        Ok(Sent {
            handle: Some(handle),
            slot,
            side: self.side.clone(),
            end: self.end.clone(),
            runtime: self.runtime.clone(),
            _place: place,
        })
    }

    async fn page(&self, cursor: Option<String>) -> Result<Page, ListFailure> {
        let mut params = Map::new();
        if let Some(cursor) = cursor {
            params.insert("cursor".to_owned(), cursor.into());
        }
        // A transport that is full is not closed: its server stays, and the list is read again later.
        let failed = |why: String| if self.end.is_set() { ListFailure::Closed } else { ListFailure::Answer(why) };
        let mut sent = self.send("tools/list", params, None).await.map_err(|why| failed(why.0))?;
        match sent.raw().await.map_err(|why| failed(why.0))? {
            RawAnswer::Result(text) => Page::read(&text).map_err(|why| ListFailure::Answer(text::shown(&why, 400))),
            other => match answer::read(other) {
                // A server without tools need not know the method.
                Answer::Error(error) if error.code == METHOD_NOT_FOUND && !self.has_tools() => {
                    Ok(Page { tools: Vec::new(), next: None })
                }
                Answer::Error(error) => {
                    let message = text::shown(&error.message, 400);
                    Err(ListFailure::Answer(format!("the server answered with error {}: {message}", error.code)))
                }
                Answer::Result(_) => Err(ListFailure::Answer("the answer is no list of tools".to_owned())),
            },
        }
    }

    fn has_tools(&self) -> bool {
        self.peer.peer_info().is_some_and(|info| info.capabilities.tools.is_some())
    }

    async fn pages(&self) -> Result<Vec<Arc<str>>, ListFailure> {
        let mut tools: Vec<Arc<str>> = Vec::new();
        let mut seen = HashSet::new();
        let mut cursor = None;
        let mut bytes = 0_usize;
        for _ in 0..MAX_PAGES {
            let page = self.page(cursor).await?;
            bytes += page.tools.iter().map(|tool| tool.len()).sum::<usize>();
            tools.extend(page.tools);
            if tools.len() > MAX_TOOLS {
                return Err(ListFailure::TooManyTools(MAX_TOOLS));
            }
            if bytes > MAX_LIST {
                return Err(ListFailure::Answer(format!("the definitions have more than {MAX_LIST} bytes")));
            }
            // Some servers say the end with an empty text.
            let Some(next) = page.next.filter(|next| !next.is_empty()) else { return Ok(tools) };
            if next.len() > MAX_CURSOR {
                return Err(ListFailure::LongCursor(MAX_CURSOR));
            }
            if !seen.insert(next.clone()) {
                return Err(ListFailure::RepeatedCursor);
            }
            cursor = Some(next);
        }
        Err(ListFailure::TooManyPages(MAX_PAGES))
    }
}

#[async_trait]
impl Connection for McpConnection {
    fn id(&self) -> ConnectionId {
        self.id
    }

    fn is_open(&self) -> bool {
        !self.end.is_set() && !self.close.is_cancelled()
    }

    async fn list(&self, deadline: Instant) -> Result<Listing, ListFailure> {
        let patience = deadline.saturating_duration_since(Instant::now());
        let tools = timeout_at(deadline, self.pages()).await.map_err(|_| ListFailure::Timeout(patience))??;
        let instructions = self.peer.peer_info().and_then(|info| {
            let instructions = info.instructions.as_deref()?;
            Some(Arc::from(text::prefix(instructions, MAX_INSTRUCTIONS)))
        });
        Ok(Listing { tools, instructions })
    }

    async fn hand_over(&self, call: OutgoingCall) -> Result<Box<dyn InFlight>, NotSent> {
        let mut params = Map::new();
        params.insert("name".to_owned(), call.tool.as_str().into());
        if let Some(arguments) = call.arguments {
            params.insert("arguments".to_owned(), Value::Object(arguments));
        }
        // A token belongs to one hop; ours is added where the request is written.
        let mut meta = call.meta;
        meta.shift_remove("progressToken");
        if !meta.is_empty() {
            params.insert("_meta".to_owned(), Value::Object(meta));
        }
        let sent = self.send("tools/call", params, call.progress).await?;
        Ok(Box::new(sent))
    }

    async fn close(&self) {
        self.close.cancel();
        self.closed.cancelled().await;
    }
}

impl std::fmt::Debug for McpConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("McpConnection").field("id", &self.id).field("closing", &self.closing).finish_non_exhaustive()
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

/// A request that was handed over.
struct Sent {
    /// Gone once it is answered, lost or cancelled.
    handle: Option<RequestHandle<RoleClient>>,
    slot: Slot,
    side: Arc<UpstreamSide>,
    end: LineEnd,
    runtime: Handle,
    _place: Place,
}

impl Sent {
    /// Waits for the raw answer. Cancel-safe.
    async fn raw(&mut self) -> Result<RawAnswer, Lost> {
        let Some(handle) = &mut self.handle else { return Err(Lost("the request is over".to_owned())) };
        let told = tokio::select! {
            biased;
            told = &mut handle.rx => Some(told),
            () = self.end.wait() => None,
        };
        let id = handle.id.clone();
        self.handle = None;
        self.side.forget(&id);
        // The text is what counts; rmcp only tells that it is there.
        if let Some(raw) = self.slot.lock().take() {
            return Ok(raw);
        }
        let why = match told {
            Some(Ok(Err(ServiceError::TransportSend(error)))) if !self.end.is_set() => error.error.to_string(),
            _ => self.end.why().to_owned(),
        };
        Err(Lost(why))
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
            let _ = handle.cancel(Some(reason)).await;
        })
    }
}

#[async_trait]
impl InFlight for Sent {
    async fn answer(&mut self) -> Result<Answer, Lost> {
        self.raw().await.map(answer::read)
    }

    async fn cancel(mut self: Box<Self>, reason: &str) {
        if let Some(cancelling) = self.cancelling(reason) {
            // Spawned, so that it is told even if this future is dropped or the server is slow to read.
            let _ = timeout(CANCEL, self.runtime.spawn(cancelling)).await;
        }
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        if let Some(cancelling) = self.cancelling("the caller has gone") {
            self.runtime.spawn(cancelling);
        }
    }
}
