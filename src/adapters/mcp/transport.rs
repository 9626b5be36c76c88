//! An rmcp transport over lines of JSON that keeps the text of what passes.
//!
//! Works over any pair of byte streams: a child's pipes, our own stdin and stdout, an in-process duplex. Rules:
//!
//! - a line is at most [`Limits::line`] bytes long; a longer one is skipped in bounded memory, and the request that it
//!   belonged to gets an error. If nobody can tell which, the connection is closed with that reason: no call hangs;
//! - what is no message (not UTF-8, not JSON, no JSON-RPC), or an answer that nobody asked for, is skipped; each kind of it is
//!   reported once, by the server's name and without a word of it;
//! - messages are written in the order in which rmcp sends them, through a queue that is bounded in bytes. When it is full,
//!   an answer to a client waits for room, and anything else is refused to its sender;
//! - what each role takes out of the stream beside rmcp is in [`super::client_side`] and `upstream_side`.
//!
//! Does not restart anything and knows no deadline: whoever sends a request waits with one.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rmcp::model::{JsonRpcMessage, RequestId};
use rmcp::service::{RxJsonRpcMessage, ServiceRole, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::envelope::Salvage;
use super::line::{LineReader, Read};
use super::outbox::{Outbox, Writing};

/// The longest line, unless the configuration says otherwise.
pub const DEFAULT_LINE: usize = 64 * 1024 * 1024;
/// How long `close` waits for what is queued.
const FLUSH: Duration = Duration::from_secs(2);

/// Bounds of one connection.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The longest message, in bytes.
    pub line: usize,
    /// How many bytes may wait to be written.
    pub waiting: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { line: DEFAULT_LINE, waiting: 2 * DEFAULT_LINE }
    }
}

/// Why a message could not be sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransportFault {
    /// The connection ended.
    #[error("the connection is closed")]
    Closed,
    /// The other side does not read what was sent before.
    #[error("the other side does not read: too much is waiting to be written")]
    Full,
    /// The message cannot be written as JSON.
    #[error("the message is no JSON: {0}")]
    Message(String),
}

/// Tells that a connection ended, and why. The first reason stays.
#[derive(Debug, Clone, Default)]
pub struct LineEnd {
    token: CancellationToken,
    why: Arc<OnceLock<String>>,
}

impl LineEnd {
    /// Ends it.
    pub fn set(&self, why: &str) {
        // A reason first: whoever is woken reads it.
        let _ = self.why.set(why.to_owned());
        self.token.cancel();
    }

    /// Whether it ended.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Waits for the end.
    pub async fn wait(&self) {
        self.token.cancelled().await;
    }

    /// Returns why it ended.
    #[must_use]
    pub fn why(&self) -> &str {
        self.why.get().map_or("the connection ended", String::as_str)
    }
}

/// What became of a line.
pub enum Inbound<R: ServiceRole> {
    /// Messages for rmcp.
    Messages(Vec<RxJsonRpcMessage<R>>),
    /// It was dealt with.
    Consumed,
    /// It is no message, with what it is instead.
    Rubbish(&'static str),
    /// The connection cannot go on.
    Fatal(String),
}

impl<R: ServiceRole> Inbound<R> {
    pub(super) fn one(message: RxJsonRpcMessage<R>) -> Self {
        Self::Messages(vec![message])
    }
}

/// How a message came, and the way back.
pub struct Arrival {
    way_back: WayBack,
    /// Over HTTP: our number of the request on whose stream it came. Over lines nothing tells.
    pub(super) of: Option<i64>,
}

/// Sends messages of our own to the other side. Cheap to clone.
#[derive(Clone)]
pub(super) enum WayBack {
    /// Over lines. A peer that does not read them loses its connection.
    Lines(Option<Outbox>, LineEnd),
    /// In some other way; must not block.
    Other(Arc<dyn Fn(String) + Send + Sync>),
}

impl WayBack {
    pub(super) fn send(&self, line: String) {
        match self {
            Self::Lines(None, _) => {}
            Self::Lines(Some(outbox), end) => {
                if let Err(fault) = outbox.push_short(line) {
                    end.set(&fault.to_string());
                }
            }
            Self::Other(send) => send(line),
        }
    }
}

impl Arrival {
    pub(super) fn new(way_back: WayBack, of: Option<i64>) -> Self {
        Self { way_back, of }
    }

    /// Sends a message of our own back.
    pub(super) fn reply(&self, line: String) {
        self.way_back.send(line);
    }

    pub(super) fn way_back(&self) -> WayBack {
        self.way_back.clone()
    }
}

/// What one role does with the stream beside rmcp.
pub trait LineRole: ServiceRole {
    /// What it remembers.
    type Side: Send + Sync + 'static;
    /// Whether what is queued is still written when the other side has ended its output.
    const WRITES_AFTER_END: bool;

    /// Returns the line for a message of rmcp; `None`: it is not sent.
    ///
    /// # Errors
    /// The message is no JSON.
    fn outgoing(side: &Self::Side, message: TxJsonRpcMessage<Self>) -> Result<Option<String>, TransportFault>;

    /// Takes a message that came.
    fn incoming(side: &Arc<Self::Side>, line: &str, arrival: &Arrival) -> Inbound<Self>;

    /// Takes an oversized message of which only `id` is known. `answers`: it is an answer to a request of ours.
    fn oversized(
        side: &Arc<Self::Side>,
        id: RequestId,
        answers: bool,
        limit: usize,
        arrival: &Arrival,
    ) -> Inbound<Self>;
}

/// The transport. `R` is our role.
pub struct LineTransport<R: LineRole, I> {
    reader: LineReader<I>,
    ready: VecDeque<RxJsonRpcMessage<R>>,
    side: Arc<R::Side>,
    outbox: Option<Outbox>,
    writing: Writing,
    end: LineEnd,
    peer: Arc<str>,
    /// What kinds of rubbish were reported.
    rubbish: Vec<&'static str>,
    limits: Limits,
    oversized: Oversized,
    role: PhantomData<fn() -> R>,
}

/// What is known of the oversized line that is being skipped.
enum Oversized {
    /// There is none, or none is known yet.
    None,
    /// Whose it is has not been found.
    Open(Salvage),
    /// It has been dealt with.
    Settled,
}

impl<R: LineRole, I: AsyncRead + Send + Unpin> LineTransport<R, I> {
    /// Makes a transport; needs a running tokio. `peer` names the other side in the log.
    pub(super) fn with_side<W>(peer: &str, input: I, output: W, limits: Limits, side: Arc<R::Side>) -> Self
    where
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let end = LineEnd::default();
        let (outbox, writing) = Outbox::start(output, limits.waiting, end.clone());
        Self {
            reader: LineReader::new(input, limits.line),
            ready: VecDeque::new(),
            side,
            outbox: Some(outbox),
            writing,
            end,
            peer: peer.into(),
            rubbish: Vec::new(),
            limits,
            oversized: Oversized::None,
            role: PhantomData,
        }
    }

    /// Returns what tells the end of this connection.
    pub fn end(&self) -> LineEnd {
        self.end.clone()
    }

    pub(super) fn outbox(&self) -> Option<Outbox> {
        self.outbox.clone()
    }

    fn rubbish(&mut self, what: &'static str) {
        if !self.rubbish.contains(&what) {
            self.rubbish.push(what);
            let peer = &self.peer;
            tracing::warn!(target: "portcullis::upstream", server = %peer, "a line that is {what} was skipped; further ones are not reported");
        }
    }

    fn finish(&mut self, why: &str) {
        self.end.set(why);
        if !R::WRITES_AFTER_END {
            self.outbox = None;
            self.writing.stop();
        }
    }

    /// Deals with what the reader told.
    fn take(&mut self, read: &Read) {
        match read {
            Read::Line => self.take_line(),
            Read::Oversized => {
                let salvage = Salvage::head(self.reader.line());
                self.oversized = Oversized::None;
                self.settle(salvage, false)
            }
            Read::OversizedEnd => match std::mem::replace(&mut self.oversized, Oversized::None) {
                Oversized::Settled => {}
                Oversized::Open(mut salvage) => {
                    salvage.id = salvage.id.or_else(|| Salvage::tail(self.reader.line()));
                    self.settle(salvage, true)
                }
                // Head and tail came at once, with a line feed between them.
                Oversized::None => {
                    let mut parts = self.reader.line().splitn(2, |byte| *byte == b'\n');
                    let mut salvage = Salvage::head(parts.next().unwrap_or_default());
                    salvage.id = salvage.id.or_else(|| Salvage::tail(parts.next().unwrap_or_default()));
                    self.settle(salvage, true)
                }
            },
            Read::Endless => {
                self.finish(&format!("the other side sent a line without end (limit {} bytes)", self.limits.line));
            }
            // A last message without a line feed counts; the next read tells the end once more.
            Read::End if !self.reader.line().is_empty() => self.take_line(),
            Read::End => self.finish("the other side closed its output"),
            Read::Failed(error) => self.finish(&format!("reading failed: {error}")),
        }
    }

    fn arrival(&self) -> Arrival {
        Arrival::new(WayBack::Lines(self.outbox.clone(), self.end.clone()), None)
    }

    fn take_line(&mut self) {
        let inbound = match std::str::from_utf8(self.reader.line()) {
            Ok(text) if text.trim().is_empty() => Inbound::Consumed,
            Ok(text) => R::incoming(&self.side, text.trim(), &self.arrival()),
            Err(_) => Inbound::Rubbish("not UTF-8"),
        };
        self.accept(inbound);
    }

    /// Deals with an oversized line; `ended`: all that will ever be known of it is known.
    fn settle(&mut self, salvage: Salvage, ended: bool) {
        let inbound = match (salvage.id.clone(), salvage.answers) {
            (Some(id), Some(answers)) => R::oversized(&self.side, id, answers, self.limits.line, &self.arrival()),
            _ if !ended => {
                self.oversized = Oversized::Open(salvage);
                return;
            }
            (None, Some(false)) => Inbound::Rubbish("an oversized notification"),
            _ => Inbound::Fatal(format!(
                "the other side sent a message of more than {} bytes that names no request",
                self.limits.line
            )),
        };
        if !ended {
            self.oversized = Oversized::Settled;
        }
        self.accept(inbound);
    }

    fn accept(&mut self, inbound: Inbound<R>) {
        match inbound {
            Inbound::Messages(messages) => self.ready.extend(messages),
            Inbound::Consumed => {}
            Inbound::Rubbish(what) => self.rubbish(what),
            Inbound::Fatal(why) => self.finish(&why),
        }
    }
}

/// What became of a message that rmcp sends.
enum Queued {
    /// There is nothing to wait for.
    Told(Result<(), TransportFault>),
    Writes(oneshot::Receiver<()>),
    /// An answer for which there is no room yet.
    Waits(Outbox, String),
}

impl From<Result<oneshot::Receiver<()>, TransportFault>> for Queued {
    fn from(pushed: Result<oneshot::Receiver<()>, TransportFault>) -> Self {
        pushed.map_or_else(|fault| Self::Told(Err(fault)), Self::Writes)
    }
}

/// Queues an answer as soon as there is room. How many can wait is bounded by the requests in flight.
async fn patiently(outbox: &Outbox, line: String, end: &LineEnd) -> Result<oneshot::Receiver<()>, TransportFault> {
    let room = outbox.room().await;
    if room == Err(TransportFault::Full) {
        // A client that does not read its answers would otherwise wait for this one for ever.
        end.set(&TransportFault::Full.to_string());
    }
    room?;
    outbox.push_anyway(line)
}

impl<R: LineRole, I: AsyncRead + Send + Unpin> Transport<R> for LineTransport<R, I> {
    type Error = TransportFault;

    fn send(&mut self, item: TxJsonRpcMessage<R>) -> impl Future<Output = Result<(), TransportFault>> + Send + 'static {
        let answers = matches!(item, JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_));
        // Queued before the future is first polled: rmcp polls its sends side by side.
        let queued = match (&self.outbox, R::outgoing(&self.side, item)) {
            (None, _) => Queued::Told(Err(TransportFault::Closed)),
            (_, Err(fault)) => Queued::Told(Err(fault)),
            (_, Ok(None)) => Queued::Told(Ok(())),
            (Some(outbox), Ok(Some(line))) if R::WRITES_AFTER_END && answers => {
                if outbox.has_room() {
                    outbox.push_anyway(line).into()
                } else {
                    Queued::Waits(outbox.clone(), line)
                }
            }
            (Some(outbox), Ok(Some(line))) => outbox.push(line).into(),
        };
        let end = self.end.clone();
        async move {
            let written = match queued {
                Queued::Told(told) => return told,
                Queued::Writes(written) => written,
                Queued::Waits(outbox, line) => patiently(&outbox, line, &end).await?,
            };
            written.await.map_err(|_| TransportFault::Closed)
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<R>> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Some(message);
            }
            if self.end.is_set() {
                return None;
            }
            let end = self.end.clone();
            let read = tokio::select! {
                biased;
                () = end.wait() => None,
                read = self.reader.next() => Some(read),
            };
            match read {
                // Whoever ended it has said why.
                None => self.finish("the connection ended"),
                Some(read) => self.take(&read),
            }
        }
    }

    async fn close(&mut self) -> Result<(), TransportFault> {
        self.end.set("closed");
        self.outbox = None;
        if R::WRITES_AFTER_END {
            let _ = tokio::time::timeout(FLUSH, self.writing.finished()).await;
        }
        self.writing.stop();
        Ok(())
    }
}

impl<R: LineRole, I> Drop for LineTransport<R, I> {
    fn drop(&mut self) {
        self.end.set("the connection was dropped");
        self.writing.stop();
    }
}

/// Parses a whole message for rmcp: everything that is not taken out of the stream goes here.
pub(super) fn parse_message<R: ServiceRole>(line: &str) -> Result<RxJsonRpcMessage<R>, String> {
    serde_json::from_str(line).map_err(|error| error.to_string())
}

/// Returns the line of an error answer. `id` is what the request said, or nothing.
pub(super) fn error_line(id: Option<&RequestId>, code: i64, message: &str) -> String {
    let id = id.map_or(serde_json::Value::Null, |id| id.clone().into_json_value());
    let error = serde_json::json!({ "code": code, "message": message });
    serde_json::json!({ "jsonrpc": "2.0", "id": id, "error": error }).to_string()
}

/// Returns the line of an answer whose body is JSON text already. `member` is `result` or `error`.
pub(super) fn answer_line(id: &RequestId, member: &str, body: &str) -> String {
    let id = id.clone().into_json_value();
    format!(r#"{{"jsonrpc":"2.0","id":{id},"{member}":{body}}}"#)
}
