//! How a server over Streamable HTTP is connected.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use tokio::time::{Instant, timeout_at};

use super::carrier::Carrier;
use super::client::HttpClient;
use super::endpoint::{Endpoint, HttpEndpoint};
use super::transport::HttpTransport;
use crate::adapters::mcp::handshake::{Opening, fresh_id};
use crate::adapters::mcp::transport::{Limits, TransportFault};
use crate::adapters::mcp::upstream_side::UpstreamSide;
use crate::config::server_keys::Lifecycle;
use crate::model::name::ServerName;
use crate::ports::credentials::Credentials;
use crate::ports::upstream::{Connection, StartFailure, Upstream, UpstreamEvents};

/// Settings of one server's connections.
#[derive(Debug, Clone, Copy)]
pub struct HttpSettings {
    /// Bounds of messages.
    pub limits: Limits,
    /// The protocol era that is spoken.
    pub lifecycle: Lifecycle,
    /// How many requests are made side by side; streams that stay open do not count.
    pub concurrency: usize,
}

/// A server over Streamable HTTP.
#[derive(Clone)]
pub struct HttpUpstream {
    server: ServerName,
    endpoint: HttpEndpoint,
    login: Option<Arc<dyn Credentials>>,
    settings: HttpSettings,
}

impl HttpUpstream {
    /// Describes a server. `login` gives the tokens of a login; a configured token or `Authorization` header wins over it.
    /// Nothing is sent before [`Upstream::connect`].
    #[must_use]
    pub fn new(
        server: ServerName,
        endpoint: HttpEndpoint,
        login: Option<Arc<dyn Credentials>>,
        settings: HttpSettings,
    ) -> Self {
        Self { server, endpoint, login, settings }
    }

    async fn opening(&self, events: Arc<dyn UpstreamEvents>) -> Result<Opening<HttpTransport>, StartFailure> {
        let endpoint = Endpoint::check(&self.endpoint, self.login.clone())
            .map_err(|error| StartFailure::Unsupported(error.to_string()))?;
        let id = fresh_id();
        let side = Arc::new(UpstreamSide::new(self.server.as_str(), id, events.clone()));
        let (server, traffic) = (self.server.clone(), side.traffic().clone());
        // Reading the roots of trust blocks.
        let building = tokio::task::spawn_blocking(move || HttpClient::build(server, endpoint, traffic));
        let client = match building.await {
            Ok(built) => built.map_err(StartFailure::Handshake)?,
            Err(_) => return Err(StartFailure::Handshake("making its HTTP client was broken off".to_owned())),
        };
        let HttpSettings { limits, lifecycle, concurrency } = self.settings;
        let (carrier, inbox) = Carrier::new(client, side.clone(), limits.line, concurrency);
        let (end, waiting) = (carrier.end.clone(), carrier.waiting());
        let room = Arc::new(move || {
            let full = waiting.load(Ordering::Relaxed) >= limits.waiting;
            if full { Err(TransportFault::Full.to_string()) } else { Ok(()) }
        });
        let transport = HttpTransport::new(carrier, inbox);
        Ok(Opening { transport, id, side, end, room, events, lifecycle })
    }
}

#[async_trait]
impl Upstream for HttpUpstream {
    async fn connect(
        &self,
        deadline: Instant,
        events: Arc<dyn UpstreamEvents>,
    ) -> Result<Arc<dyn Connection>, StartFailure> {
        let patience = deadline.saturating_duration_since(Instant::now());
        let connecting = async { Ok(self.opening(events).await?.shake_hands().await) };
        match timeout_at(deadline, connecting).await {
            Ok(Ok(Ok(opened))) => Ok(opened.supervise(None)),
            Ok(Ok(Err(failure))) => Err(StartFailure::Handshake(failure.why)),
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(StartFailure::Timeout(patience)),
        }
    }
}
