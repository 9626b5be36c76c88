//! The gateway: one MCP client in front of us, over a pair of byte streams.
//!
//! Promises: every request gets exactly one answer, or none if the client cancelled it; answers pass byte by byte; what is
//! hidden answers like what does not exist (R25); when the input ends or a shutdown comes, every open call completes its
//! item, its answer is written, and the servers are gone before [`serve`] returns (R40).
//!
//! | file | question |
//! |---|---|
//! | `door` | what may come before the era is known? |
//! | `handler` | what is answered to which request? |
//! | `list` | what does the client see of the catalog? |
//! | `search` | how are tools found and called that are not in the list? |
//! | `call` | how does a call go in and its answer out? |
//! | `rounds`, `parked` | how is a call answered by a question, and gone on with when it is repeated (stateless era)? |
//! | `progress` | what does the client hear of a call under way, and while it waits for a hook, a reviewer or a person? |
//! | `relay` | how does a server's question get to the client whose call it belongs to? |
//! | `notices` | what is it told unasked? |
//! | `way` | does a question go out as a request, or as a result? |
//! | `elicit`, `question` | how is the person behind it asked? |
//! | `user_input` | and through a program that only shows choices? |
//!
//! Speaks the revisions with a handshake, 2024-11-05 to 2025-11-25, and the stateless 2026-07-28, where each request says who
//! asks. HTTP, `subscriptions/listen` and everything but tools are later work. Handles no signals: whoever calls [`serve`] turns them into [`ServeOptions::shutdown`].

pub mod elicit;
pub mod question;
pub mod user_input;

mod call;
mod door;
mod handler;
mod list;
mod notices;
mod parked;
mod progress;
mod relay;
mod rounds;
mod search;
mod way;

use std::sync::Arc;
use std::time::Duration;

use rmcp::service::{QuitReason, ServerInitializeError, ServiceExt as _};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use crate::adapters::mcp::transport::{Limits, LineEnd, LineTransport};
use crate::host::Host;
use crate::host::asking::Desk;
use crate::host::listing::Searching;
use crate::model::caller::Caller;
use crate::model::media::Modalities;
use crate::ports::reviewer::NobodyThere;
use door::Door;
use handler::Gate;

pub use list::PAGE;

/// How long calls may still run when the client has ended its input. Less than the five seconds for which rmcp waits.
pub const GRACE: Duration = Duration::from_secs(2);

/// How long cancelled calls are waited for at the end; each ends as soon as it sees that it is cancelled.
const CLEAN_UP: Duration = Duration::from_secs(5);

/// How a client is served.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Ends serving: open calls are cancelled at once.
    pub shutdown: CancellationToken,
    /// How long open calls may still run after the end of the input; [`GRACE`] by default, below 4 s.
    pub grace: Duration,
    /// The most tools of one page; [`PAGE`] by default.
    pub page: usize,
    /// Bounds of the connection.
    pub limits: Limits,
    /// Whether the client finds tools by search instead of having all of them in the list; [`Searching::Never`] by default.
    pub searching: Searching,
    /// What the model behind the client takes; everything by default.
    pub takes: Modalities,
    /// Where questions are asked besides: the queue that `approvals` answers. None by default.
    pub desk: Option<Desk>,
}

impl Default for ServeOptions {
    fn default() -> Self {
        let (shutdown, limits) = (CancellationToken::new(), Limits::default());
        let (searching, takes) = (Searching::Never, Modalities::ALL);
        Self { shutdown, grace: GRACE, page: PAGE, limits, searching, takes, desk: None }
    }
}

/// Why serving ended in an orderly way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// The client ended its input, stopped reading, or sent what cannot be read on; the text says which.
    Client(String),
    /// [`ServeOptions::shutdown`].
    Shutdown,
}

/// Why serving ended otherwise.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServeError {
    /// The handshake could not be answered.
    #[error("the handshake failed: {0}")]
    Handshake(String),
    /// A defect of ours.
    #[error("the connection to the client ended by a defect: {0}")]
    Defect(String),
}

/// Serves one client until it ends its input or `options.shutdown` comes, then ends the host.
///
/// # Errors
/// A [`ServeError`]. The host is shut down by then, too.
pub async fn serve<I, O>(
    host: Arc<Host>,
    caller: Caller,
    input: I,
    output: O,
    options: ServeOptions,
) -> Result<Ended, ServeError>
where
    I: AsyncRead + Send + Unpin + 'static,
    O: AsyncWrite + Send + Unpin + 'static,
{
    let lines = LineTransport::to_client(input, output, options.limits);
    let end = lines.end();
    let (stop, hung_up, quit) = (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
    let session = host.session(caller, Arc::new(NobodyThere));
    session.model_takes(options.takes);
    let mut gate = Gate::new(session, options.page, options.searching, stop.clone(), hung_up.clone());
    gate.desk.clone_from(&options.desk);
    let calls = gate.calls.clone();
    let lookout = tokio::spawn(look_out(options.clone(), end.clone(), stop.clone(), hung_up.clone(), quit.clone()));

    let served = match gate.serve_with_ct(Door::new(lines), quit).await {
        Ok(running) => running.waiting().await.map_err(|defect| ServeError::Defect(defect.to_string())),
        Err(error) => before_handshake(error),
    };
    stop.cancel();
    hung_up.cancel();
    lookout.abort();
    calls.close();
    if tokio::time::timeout(CLEAN_UP, calls.wait()).await.is_err() {
        tracing::error!(open = calls.len(), "calls did not end when they were cancelled");
    }
    host.shutdown(CLEAN_UP).await;
    match served? {
        QuitReason::JoinError(defect) => Err(ServeError::Defect(defect.to_string())),
        _ if options.shutdown.is_cancelled() => Ok(Ended::Shutdown),
        _ => Ok(Ended::Client(end.why().to_owned())),
    }
}

/// Turns the end of the client, or of everything, into the end of calls.
async fn look_out(
    options: ServeOptions,
    end: LineEnd,
    stop: CancellationToken,
    hung_up: CancellationToken,
    quit: CancellationToken,
) {
    tokio::select! {
        () = options.shutdown.cancelled() => {}
        () = end.wait() => {
            hung_up.cancel();
            let _grace = tokio::time::timeout(options.grace, options.shutdown.cancelled()).await;
        }
    }
    hung_up.cancel();
    stop.cancel();
    if options.shutdown.is_cancelled() {
        quit.cancel();
    }
}

fn before_handshake(error: ServerInitializeError) -> Result<QuitReason, ServeError> {
    match error {
        ServerInitializeError::Cancelled => Ok(QuitReason::Cancelled),
        ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::TransportError { .. } => {
            Ok(QuitReason::Closed)
        }
        // Its text would quote what the client sent.
        ServerInitializeError::ExpectedInitializeRequest(_) => {
            Err(ServeError::Handshake("the client began with something else than `initialize`".to_owned()))
        }
        other => Err(ServeError::Handshake(crate::model::text::shown(&other.to_string(), 512))),
    }
}
