//! An MCP server behind us: connecting, listing, calling.
//!
//! The pipeline knows connections, never processes or sockets. Contract of every method: it ends within the deadline
//! given, it never panics, and dropping its future leaves nothing running.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::questions::Questions;
use crate::model::answer::Answer;
use crate::model::caller::{Audience, Caller, SessionId};
use crate::model::name::{RawToolName, ServerName};
use crate::model::revision::ConnectionId;

/// Makes connections to one server. Knows its configuration; holds no connection itself.
#[async_trait]
pub trait Upstream: Send + Sync {
    /// Starts the server (or opens the connection) and shakes hands.
    ///
    /// Events of the connection go to `events` until it is closed; `closed` is the last one.
    ///
    /// # Errors
    /// A [`StartFailure`]; whatever was started is gone by then.
    async fn connect(
        &self,
        deadline: Instant,
        events: Arc<dyn UpstreamEvents>,
    ) -> Result<Arc<dyn Connection>, StartFailure>;

    /// Whether what the server lists may be remembered, and listed while it starts the next time: what it is started from says
    /// which server it is (catalog-dispatch 2.1 rule 14).
    fn may_be_remembered(&self) -> bool {
        false
    }

    /// The same for calls of `audience` alone: with what they are logged in with, where a server has logins.
    ///
    /// # Errors
    /// A [`StartFailure`]; whatever was started is gone by then.
    async fn connect_for(
        &self,
        _audience: &Audience,
        deadline: Instant,
        events: Arc<dyn UpstreamEvents>,
    ) -> Result<Arc<dyn Connection>, StartFailure> {
        self.connect(deadline, events).await
    }
}

/// Why a server could not be started. The text names the cause and, where there is one, the setting to change.
///
/// Serialised as its `reason`, a word, and its text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartFailure {
    /// The program could not be run.
    #[error("could not start: {0}")]
    Spawn(String),
    /// The program ended during the handshake; the text ends with what it wrote to stderr.
    #[error("ended during start-up: {0}")]
    Exited(String),
    /// The connection ended after it had been ready.
    #[error("the connection ended: {0}")]
    Ended(String),
    /// The server could not be reached, or did not let us in.
    #[error("no connection: {0}")]
    Unreachable(String),
    /// The handshake failed.
    #[error("handshake failed: {0}")]
    Handshake(String),
    /// No answer in time.
    #[error("did not start within {}; raise `startup_timeout_sec` if it needs longer", crate::model::text::seconds(*.0))]
    Timeout(Duration),
    /// The server lists what cannot be listed.
    #[error("tools/list failed: {0}")]
    List(ListFailure),
    /// This kind of server is not served here.
    #[error("{0}")]
    Unsupported(String),
}

impl StartFailure {
    /// Returns the word for the kind of failure.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Spawn(_) => "spawn",
            Self::Exited(_) => "exited",
            Self::Ended(_) => "ended",
            Self::Unreachable(_) => "unreachable",
            Self::Handshake(_) => "handshake",
            Self::Timeout(_) => "timeout",
            Self::List(_) => "list",
            Self::Unsupported(_) => "unsupported",
        }
    }
}

impl Serialize for StartFailure {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;

        let mut out = serializer.serialize_struct("StartFailure", 2)?;
        out.serialize_field("reason", self.reason())?;
        out.serialize_field("text", &self.to_string())?;
        out.end()
    }
}

/// The most tools of one server (catalog-dispatch 2.1 rule 8).
pub const MAX_TOOLS: usize = 2_048;
/// The most tools of the Apps server (the same rule).
pub const MAX_APPS_TOOLS: usize = 8_192;

/// Why the tools of a server could not be listed. Limits: catalog-dispatch 2.1 rule 8.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ListFailure {
    /// A cursor came back a second time.
    #[error("the server repeated a cursor, so its list never ends")]
    RepeatedCursor,
    /// Too many pages.
    #[error("more than {0} pages")]
    TooManyPages(usize),
    /// Too many tools.
    #[error("more than {0} tools")]
    TooManyTools(usize),
    /// A cursor is too long.
    #[error("a cursor has more than {0} bytes")]
    LongCursor(usize),
    /// The server answered with an error or not with a list.
    #[error("{0}")]
    Answer(String),
    /// No answer in time.
    #[error("no answer within {}", crate::model::text::seconds(*.0))]
    Timeout(Duration),
    /// The connection closed.
    #[error("the connection closed")]
    Closed,
}

/// All pages of a `tools/list`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Listing {
    /// The definitions, each as the upstream spelled it.
    pub tools: Vec<Arc<str>>,
    /// The server's instructions from the handshake, bounded.
    pub instructions: Option<Arc<str>>,
    /// Whether the server asked for the state of the sandbox when it was connected: by the experimental capability
    /// [`SANDBOX_STATE`](crate::model::sandbox::SANDBOX_STATE).
    pub wants_sandbox_state: bool,
    /// Whether the server does not want its list to be remembered: by the experimental capability [`CATALOG_CACHE`].
    pub unremembered: bool,
}

/// The experimental capability by which a server says whether its list may be remembered: `{"cacheable": false}`.
pub const CATALOG_CACHE: &str = "codex/tool-catalog-cache";

/// How many bytes passed over one connection: over lines all of them, over HTTP those of bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Traffic {
    /// From the server.
    pub received: u64,
    /// To the server.
    pub sent: u64,
}

impl Traffic {
    /// Returns both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { received: self.received.saturating_add(other.received), sent: self.sent.saturating_add(other.sent) }
    }
}

/// One live connection.
#[async_trait]
pub trait Connection: Send + Sync {
    /// Returns the connection's id; a restart makes another one.
    fn id(&self) -> ConnectionId;

    /// Whether requests can still be handed over.
    fn is_open(&self) -> bool;

    /// Returns how many bytes have passed so far; zeros where nobody counts.
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }

    /// Reads all pages of the tool list: at most [`MAX_APPS_TOOLS`], whatever the server is.
    ///
    /// # Errors
    /// A [`ListFailure`].
    async fn list(&self, deadline: Instant) -> Result<Listing, ListFailure>;

    /// Makes sure that a call of this caller can be handed over at once: a server that not everybody shares is started
    /// for its caller here, before any lease.
    ///
    /// # Errors
    /// A [`StartFailure`].
    async fn ready_for(&self, _caller: &Caller, _deadline: Instant) -> Result<(), StartFailure> {
        Ok(())
    }

    /// A session has ended: what was started for it alone is closed.
    fn session_ended(&self, _session: &SessionId) {}

    /// Hands a request to the transport; returns as soon as it is queued there, not when it is answered. Dropping the future
    /// before it returns hands nothing over.
    ///
    /// # Errors
    /// [`NotSent`] when nothing was handed over.
    async fn hand_over(&self, call: OutgoingCall) -> Result<Box<dyn InFlight>, NotSent>;

    /// Closes the connection and ends the server that it started, group and all. Idempotent.
    async fn close(&self);
}

/// The request could not be handed over; the upstream has not seen it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("nothing was handed over: {0}")]
pub struct NotSent(pub String);

/// What goes on the wire.
pub struct OutgoingCall {
    /// Who calls. Nothing of it is sent.
    pub caller: Caller,
    /// The raw tool name.
    pub tool: RawToolName,
    /// The arguments; `None`: the request has no such member.
    pub arguments: Option<Map<String, Value>>,
    /// The request's `_meta`.
    pub meta: Map<String, Value>,
    /// Where progress goes, if the caller asked for it.
    pub progress: Option<Arc<dyn ProgressSink>>,
    /// Who answers what the server asks meanwhile; none: nobody.
    pub questions: Option<Arc<dyn Questions>>,
}

/// A progress notification.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// How far; only grows.
    pub progress: f64,
    /// Of how much.
    pub total: Option<f64>,
    /// What is going on; untrusted.
    pub message: Option<String>,
}

/// Takes progress notifications, in the order in which the upstream sent them. Must not block.
pub trait ProgressSink: Send + Sync {
    /// Takes one.
    fn progress(&self, progress: Progress);

    /// Hears what the call waits for while its server does not have it, again and again for as long as it waits (R21). By default
    /// nothing is done with that.
    fn waiting(&self, _waits_for: WaitsFor) {}
}

/// What a call waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitsFor {
    /// Hooks, before or after it.
    Hooks,
    /// An auto reviewer.
    AutoReviewer,
    /// A person.
    Person,
}

/// A request that was handed over. Dropping it before its answer tells the upstream that it is cancelled.
#[async_trait]
pub trait InFlight: Send {
    /// Waits for the answer. Cancel-safe: may be dropped and called again.
    ///
    /// # Errors
    /// [`Unanswered`].
    async fn answer(&mut self) -> Result<Answer, Unanswered>;

    /// Tells the upstream that the request is cancelled, with a reason.
    async fn cancel(self: Box<Self>, reason: &str);
}

/// There will be no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// The connection was lost after the hand-over: the call may have run.
    #[error("the connection was lost: {0}")]
    Lost(String),
    /// The request never reached the server.
    #[error("it was not sent: {0}")]
    NotSent(String),
    /// The server wants to know something that nobody may or can be asked.
    #[error("{0}")]
    Question(String),
}

/// Something that happened to a connection which goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConnectionEvent {
    /// What came was no message, or belonged to nothing.
    Rubbish,
    /// A message was too long.
    Oversized,
    /// A question of the server was refused.
    QuestionRefused,
    /// The server had forgotten the session, and a new one was opened.
    SessionRenewed,
    /// A stream that broke was taken up again.
    StreamResumed,
}

/// Takes what happens on a connection outside a call. Must not block.
pub trait UpstreamEvents: Send + Sync {
    /// The server says that its tools changed.
    fn tools_changed(&self, connection: ConnectionId);

    /// The server sent a log message (`notifications/message`).
    fn log(&self, message: UpstreamLog);

    /// Something happened that a person may want to know of.
    fn event(&self, _connection: ConnectionId, _event: ConnectionEvent) {}

    /// The connection closed; nothing follows.
    fn closed(&self, connection: ConnectionId, why: &str);
}

/// A log message of a server.
#[derive(Debug, Clone, PartialEq)]
pub struct UpstreamLog {
    /// The level's name: `debug` to `emergency`.
    pub level: String,
    /// The logger.
    pub logger: Option<String>,
    /// The data; untrusted.
    pub data: Value,
    /// Whom it may be shown to; none: everybody who uses the server.
    pub audience: Option<Audience>,
}

/// What the pipeline asks of the servers as a whole.
#[async_trait]
pub trait Fleet: Send + Sync {
    /// Refreshes the server if it is dirty, and waits until it is ready, has failed, or its startup timeout is over.
    /// The catalog is published by then. A server that is unknown or disabled returns at once. A server that is not shared
    /// by everybody is started for this caller, too.
    async fn await_ready(&self, server: &ServerName, caller: &Caller);

    /// A session has ended: servers that were started for it alone are ended.
    fn session_ended(&self, session: &SessionId);

    /// A connection turned out to be closed: its server is dirty, the next call reconnects.
    fn mark_dirty(&self, server: &ServerName, connection: ConnectionId);
}
