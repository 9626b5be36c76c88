//! The requests of a client, one method each.
//!
//! Answers are put into the transport as text; what a method returns only tells rmcp that it is done. What is not here is
//! answered by rmcp with "method not found": the gateway declares tools, and logging where there is a handshake, and nothing else.
//! The era is that of the request.

#![expect(deprecated, reason = "the newest revision drops logging; the clients served here have it")]

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities, DiscoverResult, ErrorData,
    Implementation, InitializeRequestParams, InitializeResult, ListToolsResult, LoggingLevel, PaginatedRequestParams,
    ProtocolVersion, ServerCapabilities, ServerConfig, SetLevelRequestMethod, SetLevelRequestParams,
};
use rmcp::service::{NotificationContext, RequestContext};
use rmcp::{RoleServer, ServerHandler};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::notices::{self, Shown};
use super::parked::Parked;
use super::{call, list, search};
use crate::adapters::mcp::client_side::Incoming;
use crate::host::asking::Desk;
use crate::host::listing::{Searching, Surface};
use crate::host::session::Session;
use crate::model::name::ServerName;
use crate::ports::upstream::UpstreamLog;

/// The name that clients see.
const NAME: &str = "portcullis";

/// The extension of clients that show MCP Apps.
const APPS: &str = "io.modelcontextprotocol/ui";

/// One client's side of the gateway.
pub(super) struct Gate {
    pub(super) session: Arc<Session>,
    /// The open calls.
    pub(super) calls: TaskTracker,
    /// Ends all calls.
    pub(super) stop: CancellationToken,
    /// The client says nothing any more, and takes nothing but answers.
    pub(super) hung_up: CancellationToken,
    pub(super) page: usize,
    searching: Searching,
    /// Where questions are asked besides.
    pub(super) desk: Option<Desk>,
    shown: Arc<Shown>,
    level: Arc<Mutex<LoggingLevel>>,
    logs: Mutex<Option<broadcast::Receiver<(ServerName, UpstreamLog)>>>,
    initialized: AtomicBool,
    /// Calls of a client of the stateless era that wait for its answers.
    pub(super) parked: Arc<Parked>,
}

impl Gate {
    pub(super) fn new(
        session: Arc<Session>,
        page: usize,
        searching: Searching,
        stop: CancellationToken,
        hung_up: CancellationToken,
    ) -> Self {
        session.show_on(Surface::Gateway { searching, app_surface: false });
        session.is_one_turn();
        let logs = session.host().fleet().logs();
        Self {
            session,
            calls: TaskTracker::new(),
            stop,
            hung_up,
            page,
            searching,
            desk: None,
            shown: Arc::default(),
            level: Arc::new(Mutex::new(LoggingLevel::Info)),
            logs: Mutex::new(Some(logs)),
            initialized: AtomicBool::new(false),
            parked: Arc::new(Parked::new()),
        }
    }
}

impl Gate {
    /// A client that shows Apps keeps from its model what is for them alone.
    fn show_to(&self, capabilities: &ClientCapabilities) {
        let app_surface = capabilities.extensions.as_ref().is_some_and(|known| known.contains_key(APPS));
        self.session.show_on(Surface::Gateway { searching: self.searching, app_surface });
    }
}

/// Our transport attaches this to every request.
fn incoming(context: &RequestContext<RoleServer>) -> Result<Incoming, ErrorData> {
    // Without it R26 could not hold.
    let incoming = context.extensions.get::<Incoming>().cloned();
    incoming.ok_or_else(|| ErrorData::internal_error("the request came without its text", None))
}

impl ServerHandler for Gate {
    fn get_info(&self) -> ServerConfig {
        let capabilities =
            ServerCapabilities::builder().enable_logging().enable_tools().enable_tool_list_changed().build();
        let ours = Implementation::new(NAME, env!("CARGO_PKG_VERSION")).with_title("Portcullis");
        ServerConfig::new(capabilities)
            .with_server_info(ours)
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(ProtocolVersion::KNOWN_VERSIONS)
    }

    async fn discover(&self, _context: RequestContext<RoleServer>) -> Result<DiscoverResult, ErrorData> {
        let mut info = self.get_info();
        // Without a handshake nothing is told unasked.
        info.capabilities = ServerCapabilities::builder().enable_tools().build();
        Ok(DiscoverResult::from_server_info(self.supported_protocol_versions().into_owned(), info))
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        if context.peer.peer_info().is_none() {
            // Its first request was one of the stateless era, and rmcp holds each further one to that.
            let stateless = [ProtocolVersion::NO_INITIALIZE];
            return Err(ErrorData::unsupported_protocol_version(request.protocol_version, &stateless));
        }
        if self.initialized.swap(true, Ordering::AcqRel) {
            return Err(ErrorData::invalid_request("the session is initialized already", None));
        }
        self.show_to(&request.capabilities);
        self.negotiate_initialize(&request)
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        // One of the stateless era has no business to say it, and is told nothing unasked.
        if context.peer.peer_info().is_none() {
            return;
        }
        // A client may say it twice.
        let Some(logs) = self.logs.lock().take() else { return };
        let changes =
            notices::list_changes(Arc::downgrade(&self.session), Arc::clone(&self.shown), context.peer.clone());
        let logs = notices::logs(logs, Arc::downgrade(&self.session), Arc::clone(&self.level), context.peer);
        let hung_up = self.hung_up.clone();
        tokio::spawn(async move { hung_up.run_until_cancelled(futures::future::join(changes, logs)).await });
    }

    async fn set_level(
        &self,
        request: SetLevelRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if incoming(&context)?.is_modern() {
            return Err(ErrorData::method_not_found::<SetLevelRequestMethod>());
        }
        *self.level.lock() = request.level;
        Ok(())
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let incoming = incoming(&context)?;
        let invalid = |bad: list::BadCursor| ErrorData::invalid_params(bad.to_string(), None);
        let cursor = list::cursor(incoming.params()).map_err(invalid)?;
        if incoming.is_modern()
            && let Some(capabilities) = context.client_capabilities()
        {
            self.show_to(&capabilities);
        }
        let listing = self.session.catalog().await;
        let ours = search::ours(&self.session, &listing);
        let mut page = list::page(&listing, &ours, cursor.as_deref(), self.page).map_err(invalid)?;
        if incoming.is_modern() {
            page.forbid_caching();
        }
        self.shown.set(list::visible(&listing, &ours));
        self.session.note_shown(&page.shown);
        incoming.respond(&page.text).map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        Ok(ListToolsResult::default())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let incoming = incoming(&context)?;
        let searches = self.session.searches().await;
        match request.name.as_ref() {
            search::SEARCH if searches => search::find(self, &incoming).await,
            search::CALL if searches => match search::callee(&self.session, incoming.arguments()) {
                Ok(callee) => Box::pin(call::run(self, callee, &incoming, context)).await?,
                Err(bad) => search::refuse(&incoming, &bad),
            },
            name => {
                let target = self.session.resolve(name).await;
                let target = target.map_err(|bad| ErrorData::invalid_params(bad.to_string(), None))?;
                let arguments = incoming.arguments().unwrap_or_default();
                let callee = call::Callee { name, target, arguments };
                Box::pin(call::run(self, callee, &incoming, context)).await?;
            }
        }
        Ok(CallToolResponse::Complete(CallToolResult::success(Vec::new())))
    }
}
