//! Shaking hands over a transport, and watching over the connection from then on.
//!
//! In the older era by `initialize`, in the newer one by `server/discover`; `auto` tries the newer and falls back. To a server
//! with a handshake we declare what can be relayed at all, because no client is known yet; whether a question is relayed
//! is decided for each call. When connecting fails, what was started is gone before the failure is told. A live
//! connection has one supervising task, which ends the process and tells `closed` exactly once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rmcp::ClientHandler;
use rmcp::model::{ClientCapabilities, ClientConfig, CustomRequest, ErrorCode, ErrorData, ProtocolVersion};
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, ClientServiceExt as _, RequestContext, RoleClient, RunningService,
};
use rmcp::transport::Transport;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::child::Process;
use super::connection::McpConnection;
use super::era::{Era, us};
use super::link::{Link, Room};
use super::listen;
use super::transport::LineEnd;
use super::upstream_side::UpstreamSide;
use crate::config::server_keys::Lifecycle;
use crate::model::answerable::Answerable;
use crate::model::revision::ConnectionId;
use crate::model::text;
use crate::ports::upstream::{Connection, UpstreamEvents};

/// How long the rest of its output is read once a child has ended.
pub(super) const DRAIN: Duration = Duration::from_millis(250);
/// How long rmcp's loop may take to end.
const LOOP_END: Duration = Duration::from_secs(3);
/// The longest text of a failed handshake, in characters.
const MAX_WHY: usize = 400;

/// Returns the id of a new connection.
pub(super) fn fresh_id() -> ConnectionId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    ConnectionId(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A connection before its handshake.
pub(super) struct Opening<T> {
    pub(super) transport: T,
    pub(super) id: ConnectionId,
    pub(super) side: Arc<UpstreamSide>,
    pub(super) end: LineEnd,
    pub(super) room: Room,
    pub(super) events: Arc<dyn UpstreamEvents>,
    pub(super) lifecycle: Lifecycle,
}

/// A connection after its handshake, not yet supervised.
pub(super) struct Opened {
    service: RunningService<RoleClient, Us>,
    id: ConnectionId,
    link: Arc<Link>,
    events: Arc<dyn UpstreamEvents>,
}

/// Why there is no connection.
pub(super) struct ShakeFailure {
    /// The stream ended: perhaps because the process did.
    pub(super) closed: bool,
    pub(super) why: String,
}

impl<T: Transport<RoleClient> + 'static> Opening<T> {
    pub(super) async fn shake_hands(self) -> Result<Opened, ShakeFailure> {
        let Self { transport, id, side, end, room, events, lifecycle } = self;
        let refusing = |why: String| ShakeFailure { closed: false, why };
        let shaking = Us.serve_with_lifecycle(transport, mode(lifecycle));
        let service = Box::pin(shaking).await.map_err(|error| failure(&error, &end))?;
        let version = service.peer().peer_info().map(|info| info.protocol_version.clone());
        match version {
            // Who shook hands in the older way cannot have agreed on a version without a handshake.
            Some(version)
                if ProtocolVersion::KNOWN_VERSIONS.contains(&version)
                    && (lifecycle != Lifecycle::Legacy || version.has_initialize()) =>
            {
                side.shaken(if version.has_initialize() { Era::Legacy } else { Era::Modern });
            }
            other => {
                let version = other.map_or_else(String::new, |version| text::shown(&version.to_string(), 32));
                return Err(refusing(format!(
                    "the server chose protocol version `{version}`, which cannot be spoken here"
                )));
            }
        }
        let link = Arc::new(Link::new(service.peer().clone(), side, end, room));
        Ok(Opened { service, id, link, events })
    }
}

fn mode(lifecycle: Lifecycle) -> ClientLifecycleMode {
    let preferred_versions = vec![ProtocolVersion::NO_INITIALIZE];
    match lifecycle {
        Lifecycle::Legacy => ClientLifecycleMode::Initialize,
        Lifecycle::Modern => ClientLifecycleMode::Discover { preferred_versions },
        Lifecycle::Auto => ClientLifecycleMode::Auto {
            preferred_versions,
            legacy_version: Some(ProtocolVersion::LATEST_WITH_INITIALIZE),
        },
    }
}

fn failure(error: &ClientInitializeError, end: &LineEnd) -> ShakeFailure {
    let why = match error {
        ClientInitializeError::ConnectionClosed(_) | ClientInitializeError::TransportError { .. } => {
            return ShakeFailure { closed: true, why: end.why().to_owned() };
        }
        // What the older handshake met is what counts: the newer one is only tried.
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => return failure(fallback, end),
        ClientInitializeError::JsonRpcError(error) => refused(error),
        // Their texts would quote what the server sent.
        ClientInitializeError::ExpectedInitResponse(_) | ClientInitializeError::ExpectedInitResult(_) => {
            "the server's answer to the handshake is not what the protocol says".to_owned()
        }
        other => text::shown(&other.to_string(), MAX_WHY),
    };
    ShakeFailure { closed: false, why }
}

fn refused(error: &ErrorData) -> String {
    format!("the server refused with error {}: {}", error.code.0, text::shown(&error.message, MAX_WHY))
}

impl Opened {
    /// Starts the supervising task; from here on the connection cleans up after itself.
    pub(super) fn supervise(self, process: Option<Process>) -> Arc<dyn Connection> {
        let Self { service, id, link, events } = self;
        let closing = CancellationToken::new();
        let closed = CancellationToken::new();
        let connection = McpConnection::new(id, Arc::clone(&link), closing.clone(), closed.clone());
        tokio::spawn(async move {
            // Also when this task is thrown away with its runtime.
            let _closed = closed.drop_guard();
            supervise(service, process, link, closing, id, events).await;
        });
        Arc::new(connection)
    }
}

async fn supervise(
    mut service: RunningService<RoleClient, Us>,
    mut process: Option<Process>,
    link: Arc<Link>,
    closing: CancellationToken,
    id: ConnectionId,
    events: Arc<dyn UpstreamEvents>,
) {
    let end = link.end.clone();
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
        () = listen::to_changes(&link) => {}
    }
    drop(link);
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
            why = process.with_last_words(why).await;
        }
    }
    events.closed(id, &why);
}

fn ended(status: Option<std::process::ExitStatus>) -> String {
    status.map_or_else(|| "the server had to be killed".to_owned(), |status| format!("the server ended with {status}"))
}

/// What we are to a server.
struct Us;

fn not_here(method: &str) -> ErrorData {
    ErrorData::new(ErrorCode::METHOD_NOT_FOUND, format!("`{method}` is not offered by this client"), None)
}

impl ClientHandler for Us {
    fn get_info(&self) -> ClientConfig {
        let relayed = Value::Object(Answerable::RELAYED.to_capabilities());
        let capabilities: ClientCapabilities = serde_json::from_value(relayed).unwrap_or_default();
        ClientConfig::new(capabilities, us()).with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }

    // Questions are taken out of the stream before they get here.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _context: RequestContext<RoleClient>,
    ) -> Result<rmcp::model::CustomResult, ErrorData> {
        Err(not_here(&text::shown(&request.method, 64)))
    }
}
