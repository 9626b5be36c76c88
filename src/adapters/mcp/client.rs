//! How a server is connected: a child process, or a server inside of this one.
//!
//! Handshakes in the legacy way (`initialize`), declares no capability, and so refuses sampling, elicitation and roots;
//! `ping` is answered. When connecting fails, what was started is gone before the failure is told. A live connection has
//! one supervising task, which ends the process and tells `closed` exactly once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use rmcp::model::{
    ClientCapabilities, ClientConfig, CustomRequest, ElicitRequestParams, ElicitResult, ErrorCode, ErrorData,
    Implementation, ProtocolVersion,
};
use rmcp::service::{ClientInitializeError, RequestContext, RoleClient, RunningService};
use rmcp::{ClientHandler, ServiceExt as _};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::child::{Launch, Pipes, Process};
use super::connection::McpConnection;
use super::outbox::Outbox;
use super::transport::{Limits, LineEnd, LineTransport};
use super::upstream_side::UpstreamSide;
use crate::model::name::ServerName;
use crate::model::revision::ConnectionId;
use crate::model::text;
use crate::ports::upstream::{Connection, StartFailure, Upstream, UpstreamEvents};

/// How long the rest of its output is read once a child has ended.
const DRAIN: Duration = Duration::from_millis(250);
/// How long rmcp's loop may take to end.
const LOOP_END: Duration = Duration::from_secs(3);
/// The longest text of a failed handshake, in characters.
const MAX_WHY: usize = 400;

/// Settings of one server's connections.
#[derive(Debug, Clone, Copy, Default)]
pub struct Settings {
    /// Bounds of messages.
    pub limits: Limits,
}

/// A server that is a child process and speaks over its pipes.
#[derive(Debug, Clone)]
pub struct StdioUpstream {
    server: ServerName,
    launch: Launch,
    settings: Settings,
}

impl StdioUpstream {
    /// Describes a server. Nothing is started before [`Upstream::connect`].
    #[must_use]
    pub fn new(server: ServerName, launch: Launch, settings: Settings) -> Self {
        Self { server, launch, settings }
    }
}

#[async_trait]
impl Upstream for StdioUpstream {
    async fn connect(
        &self,
        deadline: Instant,
        events: Arc<dyn UpstreamEvents>,
    ) -> Result<Arc<dyn Connection>, StartFailure> {
        let patience = deadline.saturating_duration_since(Instant::now());
        let server: Arc<str> = self.server.as_str().into();
        let started = timeout_at(deadline, Process::start(&server, &self.launch)).await;
        let (mut process, Pipes { input, output }) =
            started.map_err(|_| StartFailure::Timeout(patience))?.map_err(StartFailure::Spawn)?;

        let opening = Opening::new(&server, output, input, self.settings, events);
        let shaken = tokio::select! {
            biased;
            shaken = timeout_at(deadline, opening.shake_hands()) => shaken,
            // A grandchild may hold the pipes open: the end of the leader counts, once its output has been read.
            () = async { process.exited().await; tokio::time::sleep(DRAIN).await } => {
                return Err(exited(&mut process).await);
            }
        };
        match shaken {
            Ok(Ok(opened)) => Ok(opened.supervise(Some(process))),
            Ok(Err(failure)) => {
                if failure.closed && timeout(DRAIN, process.exited()).await.is_ok() {
                    return Err(exited(&mut process).await);
                }
                process.kill().await;
                Err(StartFailure::Handshake(with_last_words(failure.why, &mut process).await))
            }
            Err(_) => {
                process.kill().await;
                Err(StartFailure::Timeout(patience))
            }
        }
    }
}

async fn exited(process: &mut Process) -> StartFailure {
    let status = process.kill().await.map_or_else(|| "ended".to_owned(), |status| status.to_string());
    StartFailure::Exited(with_last_words(status, process).await)
}

async fn with_last_words(why: String, process: &mut Process) -> String {
    match process.last_words().await {
        Some(words) => format!("{why}; stderr: {words}"),
        None => format!("{why}; nothing on stderr"),
    }
}

/// Opens a stream to a server inside of this process. The server ends when the stream does.
pub type OpenStream = dyn Fn() -> DuplexStream + Send + Sync;

/// A server inside of this process, for embedding and the demo.
#[derive(Clone)]
pub struct InProcessUpstream {
    server: ServerName,
    settings: Settings,
    open: Arc<OpenStream>,
}

impl InProcessUpstream {
    /// Describes a server: `open` starts an instance of it on one end of a duplex stream and returns the other end.
    #[must_use]
    pub fn new(server: ServerName, settings: Settings, open: Arc<OpenStream>) -> Self {
        Self { server, settings, open }
    }
}

#[async_trait]
impl Upstream for InProcessUpstream {
    async fn connect(
        &self,
        deadline: Instant,
        events: Arc<dyn UpstreamEvents>,
    ) -> Result<Arc<dyn Connection>, StartFailure> {
        let patience = deadline.saturating_duration_since(Instant::now());
        let (input, output) = tokio::io::split((self.open)());
        let opening = Opening::new(self.server.as_str(), input, output, self.settings, events);
        match timeout_at(deadline, opening.shake_hands()).await {
            Ok(Ok(opened)) => Ok(opened.supervise(None)),
            Ok(Err(failure)) => Err(StartFailure::Handshake(failure.why)),
            Err(_) => Err(StartFailure::Timeout(patience)),
        }
    }
}

/// A connection before its handshake.
struct Opening<I> {
    transport: LineTransport<RoleClient, I>,
    id: ConnectionId,
    side: Arc<UpstreamSide>,
    events: Arc<dyn UpstreamEvents>,
}

/// A connection after its handshake, not yet supervised.
struct Opened {
    service: RunningService<RoleClient, Us>,
    id: ConnectionId,
    side: Arc<UpstreamSide>,
    end: LineEnd,
    outbox: Outbox,
    events: Arc<dyn UpstreamEvents>,
}

struct ShakeFailure {
    /// The stream ended: perhaps because the process did.
    closed: bool,
    why: String,
}

impl<I: AsyncRead + Send + Unpin + 'static> Opening<I> {
    fn new<W>(server: &str, input: I, output: W, settings: Settings, events: Arc<dyn UpstreamEvents>) -> Self
    where
        W: AsyncWrite + Send + Unpin + 'static,
    {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = ConnectionId(NEXT.fetch_add(1, Ordering::Relaxed));
        let side = Arc::new(UpstreamSide::new(id, events.clone()));
        let transport = LineTransport::to_upstream(server, input, output, settings.limits, side.clone());
        Self { transport, id, side, events }
    }

    async fn shake_hands(self) -> Result<Opened, ShakeFailure> {
        let Self { transport, id, side, events } = self;
        let end = transport.end();
        let closed = |why: &str| ShakeFailure { closed: true, why: why.to_owned() };
        let Some(outbox) = transport.outbox() else { return Err(closed(end.why())) };
        let service = Box::pin(Us.serve(transport)).await.map_err(|error| match error {
            ClientInitializeError::ConnectionClosed(_) | ClientInitializeError::TransportError { .. } => {
                closed(end.why())
            }
            ClientInitializeError::JsonRpcError(error) => refused(&error),
            ClientInitializeError::ExpectedInitResult(_) => ShakeFailure {
                closed: false,
                why: "the server's answer to `initialize` is not what the protocol says".to_owned(),
            },
            other => ShakeFailure { closed: false, why: text::shown(&other.to_string(), MAX_WHY) },
        })?;
        let version = service.peer().peer_info().map(|info| info.protocol_version.clone());
        match version {
            Some(version) if version.has_initialize() && ProtocolVersion::KNOWN_VERSIONS.contains(&version) => {}
            other => {
                let version = other.map_or_else(String::new, |version| text::shown(&version.to_string(), 32));
                let why = format!("the server chose protocol version `{version}`, which cannot be spoken here");
                return Err(ShakeFailure { closed: false, why });
            }
        }
        Ok(Opened { service, id, side, end, outbox, events })
    }
}

fn refused(error: &ErrorData) -> ShakeFailure {
    let why = format!("the server refused with error {}: {}", error.code.0, text::shown(&error.message, MAX_WHY));
    ShakeFailure { closed: false, why }
}

impl Opened {
    /// Starts the supervising task; from here on the connection cleans up after itself.
    fn supervise(self, process: Option<Process>) -> Arc<dyn Connection> {
        let Self { service, id, side, end, outbox, events } = self;
        let closing = CancellationToken::new();
        let closed = CancellationToken::new();
        let connection =
            McpConnection::new(id, service.peer().clone(), side, end.clone(), outbox, closing.clone(), closed.clone());
        tokio::spawn(async move {
            // Also when this task is thrown away with its runtime.
            let _closed = closed.drop_guard();
            supervise(service, process, end, closing, id, events).await;
        });
        Arc::new(connection)
    }
}

async fn supervise(
    mut service: RunningService<RoleClient, Us>,
    mut process: Option<Process>,
    end: LineEnd,
    closing: CancellationToken,
    id: ConnectionId,
    events: Arc<dyn UpstreamEvents>,
) {
    let exited = async {
        match &mut process {
            Some(process) => {
                let status = process.exited().await;
                tokio::time::sleep(DRAIN).await;
                status
            }
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = closing.cancelled() => end.set("closed"),
        () = end.wait() => {}
        status = exited => end.set(&ended(status)),
    }
    // The loop drops the transport, and with it the child's input.
    let _ = service.close_with_timeout(LOOP_END).await;
    drop(service);
    let mut why = end.why().to_owned();
    if let Some(mut process) = process {
        let status = process.shut_down().await;
        if !closing.is_cancelled() {
            let status = ended(status);
            if why != status {
                why = format!("{why}; {status}");
            }
            why = with_last_words(why, &mut process).await;
        }
    }
    events.closed(id, &why);
}

fn ended(status: Option<std::process::ExitStatus>) -> String {
    status.map_or_else(|| "the server had to be killed".to_owned(), |status| format!("the server ended with {status}"))
}

/// What we are to a server: a client without capabilities.
struct Us;

fn not_here(method: &str) -> ErrorData {
    ErrorData::new(ErrorCode::METHOD_NOT_FOUND, format!("`{method}` is not offered by this client"), None)
}

impl ClientHandler for Us {
    fn get_info(&self) -> ClientConfig {
        let us = Implementation::new("portcullis", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), us)
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }

    // rmcp's defaults would answer these three with an empty list, a decline, and a bare method name.
    #[expect(deprecated, reason = "roots are deprecated, and legacy servers ask for them")]
    async fn list_roots(
        &self,
        _context: RequestContext<RoleClient>,
    ) -> Result<rmcp::model::ListRootsResult, ErrorData> {
        Err(not_here("roots/list"))
    }

    async fn create_elicitation(
        &self,
        _request: ElicitRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        Err(not_here("elicitation/create"))
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _context: RequestContext<RoleClient>,
    ) -> Result<rmcp::model::CustomResult, ErrorData> {
        Err(not_here(&text::shown(&request.method, 64)))
    }
}
