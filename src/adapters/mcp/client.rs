//! How a server over a pair of byte streams is connected: a child process, or a server inside of this one.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::time::{Instant, timeout, timeout_at};

use super::child::{Launch, Pipes, Process};
use super::handshake::{DRAIN, Opening, fresh_id};
use super::traffic::Counted;
use super::transport::{Limits, LineTransport, TransportFault};
use super::upstream_side::UpstreamSide;
use crate::config::server_keys::Lifecycle;
use crate::model::name::ServerName;
use crate::ports::upstream::{Connection, StartFailure, Upstream, UpstreamEvents};
use rmcp::RoleClient;

/// Settings of one server's connections.
#[derive(Debug, Clone, Copy, Default)]
pub struct Settings {
    /// Bounds of messages.
    pub limits: Limits,
    /// The protocol era that is spoken.
    pub lifecycle: Lifecycle,
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
    fn may_be_remembered(&self) -> bool {
        true
    }

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

        let opening = over_streams(&server, output, input, self.settings, events);
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
                Err(StartFailure::Handshake(process.with_last_words(failure.why).await))
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
    StartFailure::Exited(process.with_last_words(status).await)
}

/// Opens a stream to a server inside of this process. The server ends when the stream does.
pub type OpenStream = dyn Fn() -> DuplexStream + Send + Sync;

/// A stream of any kind to a server.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A server inside of this process, for embedding and the demo.
#[derive(Clone)]
pub struct InProcessUpstream {
    server: ServerName,
    settings: Settings,
    open: Arc<dyn Fn() -> Box<dyn Stream> + Send + Sync>,
}

impl InProcessUpstream {
    /// Describes a server: `open` starts an instance of it on one end of a duplex stream and returns the other end.
    #[must_use]
    pub fn new(server: ServerName, settings: Settings, open: Arc<OpenStream>) -> Self {
        Self::over(server, settings, move || open())
    }

    /// The same for streams of any kind.
    #[must_use]
    pub fn over<S>(server: ServerName, settings: Settings, open: impl Fn() -> S + Send + Sync + 'static) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        Self { server, settings, open: Arc::new(move || Box::new(open())) }
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
        let opening = over_streams(self.server.as_str(), input, output, self.settings, events);
        match timeout_at(deadline, opening.shake_hands()).await {
            Ok(Ok(opened)) => Ok(opened.supervise(None)),
            Ok(Err(failure)) => Err(StartFailure::Handshake(failure.why)),
            Err(_) => Err(StartFailure::Timeout(patience)),
        }
    }
}

fn over_streams<I, W>(
    server: &str,
    input: I,
    output: W,
    settings: Settings,
    events: Arc<dyn UpstreamEvents>,
) -> Opening<LineTransport<RoleClient, Counted<I>>>
where
    I: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let id = fresh_id();
    let side = Arc::new(UpstreamSide::new(server, id, events.clone()));
    let (input, output) = (side.traffic().input(input), side.traffic().output(output));
    let transport = LineTransport::to_upstream(server, input, output, settings.limits, side.clone());
    let (end, outbox) = (transport.end(), transport.outbox());
    let room = Arc::new(move || match &outbox {
        Some(outbox) if outbox.has_room() => Ok(()),
        _ => Err(TransportFault::Full.to_string()),
    });
    Opening { transport, id, side, end, room, events, lifecycle: settings.lifecycle }
}
