//! A configured HTTP server, and whose login its connections use.
//!
//! Promises: what its address, headers and token are is found out at each connection, and never printed. A login is one
//! principal's: a connection of a caller's own uses that caller's, and over the one that everybody shares nobody calls with
//! another's.
//!
//! A token that the configuration brings is no login: it is whose the configuration is, for everybody.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::adapters::mcp::http::endpoint::HttpEndpoint;
use crate::adapters::mcp::http::upstream::{HttpSettings, HttpUpstream};
use crate::adapters::oauth::{Logins, Target};
use crate::config::server::{HttpTarget, ResolvedServer};
use crate::config::template::MissingVariable;
use crate::model::caller::{Audience, Caller, SessionId};
use crate::model::name::ServerName;
use crate::model::revision::ConnectionId;
use crate::ports::credentials::Credentials;
use crate::ports::upstream::{
    Connection, InFlight, ListFailure, Listing, NotSent, OutgoingCall, StartFailure, Traffic, Upstream, UpstreamEvents,
};

/// The logins to one server, and the one that the shared connection uses.
#[derive(Clone)]
pub(super) struct Login {
    logins: Logins,
    target: Target,
    shared: Arc<dyn Credentials>,
}

impl Login {
    /// `None`: requests go without tokens of ours, because another token is configured or the URL is no place to send one
    /// to. `lookup` resolves the variables of the URL.
    pub(super) fn of(
        logins: &Logins,
        server: &ResolvedServer,
        lookup: &dyn Fn(&str) -> Option<String>,
    ) -> Option<Self> {
        let target = Target::of(server, lookup).ok()?;
        let shared = Arc::new(logins.credentials(target.clone()));
        Some(Self { logins: logins.clone(), target, shared })
    }

    /// The tokens of one principal.
    fn of_audience(&self, audience: &Audience) -> Arc<dyn Credentials> {
        let (tenant, principal) = (&audience.tenant, &audience.principal);
        if self.logins.are_of(tenant, principal) {
            return Arc::clone(&self.shared);
        }
        Arc::new(self.logins.of(tenant, principal).credentials(self.target.clone()))
    }
}

/// A configured HTTP server.
pub(super) struct ConfiguredHttp {
    server: ServerName,
    target: HttpTarget,
    settings: HttpSettings,
    /// Where there can be one.
    login: Option<Login>,
}

impl ConfiguredHttp {
    pub(super) fn new(server: ServerName, target: HttpTarget, settings: HttpSettings, login: Option<Login>) -> Self {
        Self { server, target, settings, login }
    }

    fn endpoint(&self, lookup: &dyn Fn(&str) -> Option<String>) -> Result<HttpEndpoint, MissingVariable> {
        Ok(HttpEndpoint {
            url: self.target.url.resolve(lookup)?,
            headers: self.target.all_headers(lookup)?,
            bearer: self.target.bearer(lookup)?,
        })
    }

    fn upstream(&self, login: Option<Arc<dyn Credentials>>) -> Result<HttpUpstream, StartFailure> {
        // A variable that is not Unicode counts as not set, and its name is in the message.
        let endpoint = self.endpoint(&super::approver::variable);
        let endpoint = endpoint.map_err(|missing| StartFailure::Spawn(missing.to_string()))?;
        Ok(HttpUpstream::new(self.server.clone(), endpoint, login, self.settings))
    }
}

#[async_trait]
impl Upstream for ConfiguredHttp {
    async fn connect(
        &self,
        deadline: Instant,
        events: Arc<dyn UpstreamEvents>,
    ) -> Result<Arc<dyn Connection>, StartFailure> {
        let upstream = self.upstream(self.login.as_ref().map(|login| Arc::clone(&login.shared)))?;
        let connection = upstream.connect(deadline, events).await?;
        Ok(match &self.login {
            Some(login) => Arc::new(Shared { connection, server: self.server.clone(), login: login.clone() }),
            None => connection,
        })
    }

    async fn connect_for(
        &self,
        audience: &Audience,
        deadline: Instant,
        events: Arc<dyn UpstreamEvents>,
    ) -> Result<Arc<dyn Connection>, StartFailure> {
        let login = self.login.as_ref().map(|login| login.of_audience(audience));
        self.upstream(login)?.connect(deadline, events).await
    }
}

/// A connection that anybody's calls may go over, with one principal's login.
struct Shared {
    connection: Arc<dyn Connection>,
    server: ServerName,
    login: Login,
}

#[async_trait]
impl Connection for Shared {
    fn id(&self) -> ConnectionId {
        self.connection.id()
    }

    fn is_open(&self) -> bool {
        self.connection.is_open()
    }

    fn traffic(&self) -> Traffic {
        self.connection.traffic()
    }

    async fn list(&self, deadline: Instant) -> Result<Listing, ListFailure> {
        self.connection.list(deadline).await
    }

    async fn ready_for(&self, caller: &Caller, deadline: Instant) -> Result<(), StartFailure> {
        self.connection.ready_for(caller, deadline).await
    }

    fn session_ended(&self, session: &SessionId) {
        self.connection.session_ended(session);
    }

    async fn hand_over(&self, call: OutgoingCall) -> Result<Box<dyn InFlight>, NotSent> {
        let own = self.login.logins.are_of(&call.caller.tenant, &call.caller.principal);
        // Asked at each call: somebody may have logged in or out meanwhile.
        if !own && self.login.shared.are_there().await {
            return Err(NotSent(format!(
                "the login of server `{}` is another principal's; `sharing = \"principal\"` gives each their own",
                self.server
            )));
        }
        self.connection.hand_over(call).await
    }

    async fn close(&self) {
        self.connection.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapters::mcp::transport::Limits;
    use crate::config::server::Transport;
    use crate::config::{EmbeddedLayer, Places, SessionSources, load};
    use crate::model::layer::LayerKind;

    #[test]
    fn r4_what_an_http_server_gets_is_found_out_when_it_is_connected() {
        let text = "[mcp_servers.s]\nurl = \"https://example.org/${TENANT}\"\nbearer_token_env_var = \"TOKEN\"\n\
                    http_headers = { A = \"x-${A}\" }\nenv_http_headers = { B = \"VAR\" }\n";
        let layer = EmbeddedLayer { kind: LayerKind::User, text: text.to_owned(), folder: std::env::temp_dir() };
        let session = SessionSources { embedded: vec![layer], ..SessionSources::default() };
        let resolved = load(&Places::nowhere(), &session);
        let server = &resolved.servers[&ServerName::parse("s").unwrap()];
        let Transport::Http(target) = &server.transport else { panic!() };
        let settings = HttpSettings { limits: Limits::default(), lifecycle: server.lifecycle, concurrency: 1 };
        let configured = ConfiguredHttp::new(server.name.clone(), target.clone(), settings, None);
        let endpoint = configured.endpoint(&|name| Some(format!("the-{name}"))).unwrap();
        assert_eq!(endpoint.url, "https://example.org/the-TENANT");
        let headers: Vec<_> = endpoint.headers.iter().map(|(name, value)| (name.as_str(), value.expose())).collect();
        assert_eq!(headers, [("A", "x-the-A"), ("B", "the-VAR")]);
        assert_eq!(endpoint.bearer.unwrap().expose(), "the-TOKEN");
        for missing in ["TENANT", "TOKEN", "A", "VAR"] {
            let error = configured.endpoint(&|name| (name != missing).then(|| "set".to_owned())).unwrap_err();
            assert_eq!(error, MissingVariable(missing.to_owned()));
        }
    }
}
