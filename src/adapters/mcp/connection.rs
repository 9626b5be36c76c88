//! One live connection: listing and calling.
//!
//! Listing follows all pages within the limits of catalog-dispatch 2.1 rule 8 and keeps each definition as it was
//! spelled. What follows the hand-over of a call is in [`super::rounds`].

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::answer::{self, Page};
use super::link::{Link, Order};
use super::rounds::CallInFlight;
use super::upstream_side::RawAnswer;
use crate::model::answer::Answer;
use crate::model::answerable::Answerable;
use crate::model::revision::ConnectionId;
use crate::model::sandbox::SANDBOX_STATE;
use crate::model::text;
use crate::ports::upstream::{
    CATALOG_CACHE, Connection, InFlight, ListFailure, Listing, MAX_APPS_TOOLS, NotSent, OutgoingCall, Traffic,
};

/// The most pages of one list.
const MAX_PAGES: usize = 100;
/// The most tools of any server. How many one may have depends on what it is; whoever lists it knows.
pub(super) const MAX_TOOLS: usize = MAX_APPS_TOOLS;
/// The longest cursor, in bytes.
const MAX_CURSOR: usize = 64 * 1024;
/// The most bytes of all definitions together.
const MAX_LIST: usize = 64 * 1024 * 1024;
/// The longest instructions that are kept, in bytes.
const MAX_INSTRUCTIONS: usize = 64 * 1024;
/// JSON-RPC: the server does not know the method.
const METHOD_NOT_FOUND: i64 = -32601;

/// A connection to one server, whatever carries it.
pub(super) struct McpConnection {
    id: ConnectionId,
    link: Arc<Link>,
    closed: CancellationToken,
    /// Dropping the connection closes it.
    closing: DropGuard,
    close: CancellationToken,
}

impl McpConnection {
    pub(super) fn new(id: ConnectionId, link: Arc<Link>, close: CancellationToken, closed: CancellationToken) -> Self {
        Self { id, link, closed, closing: close.clone().drop_guard(), close }
    }

    async fn page(&self, cursor: Option<String>) -> Result<Page, ListFailure> {
        let mut params = Map::new();
        if let Some(cursor) = cursor {
            params.insert("cursor".to_owned(), cursor.into());
        }
        // What is listed must not depend on who may call it later.
        let (era, mut meta) = (self.link.side.era(), Map::new());
        era.stamp(&mut meta, Answerable::RELAYED);
        if !meta.is_empty() {
            params.insert("_meta".to_owned(), Value::Object(meta));
        }
        // A transport that is full is not closed: its server stays, and the list is read again later.
        let failed = |why: String| if self.link.end.is_set() { ListFailure::Closed } else { ListFailure::Answer(why) };
        let order = Order { method: "tools/list", params, progress: None, asker: None };
        let mut sent = self.link.send(order).await.map_err(|why| failed(why.0))?;
        match sent.raw().await.map_err(|why| failed(why.to_string()))? {
            RawAnswer::Result(text) => Page::read(&text).map_err(|why| ListFailure::Answer(text::shown(&why, 400))),
            other => match answer::read(other, era) {
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
        self.link.peer.peer_info().is_some_and(|info| info.capabilities.tools.is_some())
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
        !self.link.end.is_set() && !self.close.is_cancelled()
    }

    fn traffic(&self) -> Traffic {
        self.link.side.traffic().read()
    }

    async fn list(&self, deadline: Instant) -> Result<Listing, ListFailure> {
        let patience = deadline.saturating_duration_since(Instant::now());
        let tools = timeout_at(deadline, self.pages()).await.map_err(|_| ListFailure::Timeout(patience))??;
        let info = self.link.peer.peer_info();
        let instructions = info.as_ref().and_then(|info| {
            let instructions = info.instructions.as_deref()?;
            Some(Arc::from(text::prefix(instructions, MAX_INSTRUCTIONS)))
        });
        let experimental = info.as_ref().and_then(|info| info.capabilities.experimental.as_ref());
        let wants_sandbox_state = experimental.is_some_and(|all| all.contains_key(SANDBOX_STATE));
        let cache = experimental.and_then(|all| all.get(CATALOG_CACHE));
        let unremembered = cache.and_then(|cache| cache.get("cacheable")) == Some(&Value::Bool(false));
        Ok(Listing { tools, instructions, wants_sandbox_state, unremembered })
    }

    async fn hand_over(&self, call: OutgoingCall) -> Result<Box<dyn InFlight>, NotSent> {
        Ok(Box::new(CallInFlight::send(Arc::clone(&self.link), call).await?))
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
