//! A login is one principal's: no call goes out with another's, however a server is shared.

use std::sync::Arc;

use portcullis::adapters::clock::SystemClock;
use portcullis::adapters::oauth::{Http, Login, Logins, Target};
use portcullis::adapters::record::fanout::Fanout;
use portcullis::adapters::store::memory_state::in_memory;
use portcullis::adapters::wasm::Engine;
use portcullis::config::{EmbeddedLayer, Places, Resolved, SessionSources, load};
use portcullis::host::{entries, network, wire};
use portcullis::model::caller::Caller;
use portcullis::model::layer::LayerKind;
use portcullis::model::name::{RawToolName, ServerName};
use portcullis::model::revision::ConnectionId;
use portcullis::pipeline::admit::slots::Slots;
use portcullis::ports::upstream::{Connection, NotSent, OutgoingCall, UpstreamEvents, UpstreamLog};
use serde_json::{Map, json};
use tokio::time::Instant;

use crate::support::PATIENCE;
use crate::support::auth_server::{AuthServer, Quirks};
use crate::support::http_server::{self, HttpServer, status};

struct Deaf;

impl UpstreamEvents for Deaf {
    fn tools_changed(&self, _connection: ConnectionId) {}

    fn log(&self, _message: UpstreamLog) {}

    fn closed(&self, _connection: ConnectionId, _why: &str) {}
}

/// A server that anybody may use, where to log in to it, and the logins of this process's user, `ada`.
struct Bench {
    auth: AuthServer,
    server: HttpServer,
    resolved: Arc<Resolved>,
    logins: Logins,
    _dir: tempfile::TempDir,
}

impl Bench {
    async fn new(keys: &str) -> Self {
        let auth = AuthServer::start(Quirks::default()).await;
        let by = auth.origin().to_owned();
        let server = HttpServer::start(move |asked| {
            let by = by.clone();
            async move {
                let resource = format!("http://{}/mcp", asked.header("host")?);
                match asked.path.as_str() {
                    "/.well-known/oauth-protected-resource/mcp" => {
                        Some(http_server::json(&json!({ "resource": resource, "authorization_servers": [by] })))
                    }
                    "/mcp" => None,
                    _ => Some(status(404)),
                }
            }
        });
        let text = format!("[mcp_servers.web]\nurl = {:?}\n{keys}\n", server.url());
        let layer = EmbeddedLayer { kind: LayerKind::User, text, folder: std::env::temp_dir() };
        let session = SessionSources { embedded: vec![layer], ..SessionSources::default() };
        let resolved = Arc::new(load(&Places::nowhere(), &session));
        let dir = tempfile::tempdir().unwrap();
        let user = rustix::process::getuid().as_raw();
        let http = Http::new(network::client_builder);
        let logins = Logins::new(dir.path(), user, &Caller::local("ada"), http, Arc::new(SystemClock));
        Self { auth, server, resolved, logins, _dir: dir }
    }

    /// Logs a principal in, and returns the header of the token.
    async fn log_in(&self, who: &Caller) -> Option<String> {
        let web = &self.resolved.servers[&ServerName::parse("web").unwrap()];
        let target = Target::of(web, &|_| None).unwrap();
        let logins = self.logins.of(&who.tenant, &who.principal);
        let login = Login::begin(&logins, &target, &[], None).await.unwrap();
        let browser = network::client_builder().no_proxy().build().unwrap();
        let went = browser.get(login.url().clone()).send();
        let (granted, _) = tokio::join!(login.finish(PATIENCE), went);
        granted.unwrap();
        Some(format!("Bearer {}", self.auth.access()))
    }

    /// The connection that a host makes, as it is configured.
    async fn connect(&self) -> Arc<dyn Connection> {
        let policies =
            entries::policies(&self.resolved, rustix::process::getuid().as_raw(), &Engine::on_demand().unwrap());
        let (recorder, state) = (Arc::new(Fanout::new(Vec::new())), Arc::new(in_memory()));
        let parts = wire::host_parts(&self.resolved, policies, &Slots::new(8), recorder, Some(&self.logins), state);
        let upstream = Arc::clone(&parts.servers[&ServerName::parse("web").unwrap()].upstream);
        let connection = upstream.connect(Instant::now() + PATIENCE, Arc::new(Deaf)).await.unwrap();
        connection.list(Instant::now() + PATIENCE).await.unwrap();
        connection
    }

    /// Calls as somebody, and returns what the server got to know of who it is.
    async fn call(&self, connection: &Arc<dyn Connection>, who: &Caller) -> Result<Option<String>, NotSent> {
        connection.ready_for(who, Instant::now() + PATIENCE).await.unwrap();
        let call = OutgoingCall {
            caller: who.clone(),
            tool: RawToolName::parse("t").unwrap(),
            arguments: Some(Map::new()),
            meta: Map::new(),
            progress: None,
            questions: None,
        };
        let mut in_flight = connection.hand_over(call).await?;
        tokio::time::timeout(PATIENCE, in_flight.answer()).await.unwrap().unwrap();
        let asked = self.server.asked();
        let last = asked.iter().rfind(|asked| asked.tool().is_some()).unwrap();
        Ok(last.header("authorization").map(str::to_owned))
    }
}

#[tokio::test]
async fn a_connection_of_a_principals_own_uses_that_principals_login_and_no_other() {
    let bench = Bench::new("sharing = \"principal\"").await;
    let [ada, bob, eve] = ["ada", "bob", "eve"].map(Caller::local);
    let (adas, bobs) = (bench.log_in(&ada).await, bench.log_in(&bob).await);
    assert_ne!(adas, bobs);
    let connection = bench.connect().await;
    assert_eq!(bench.call(&connection, &bob).await.unwrap(), bobs);
    assert_eq!(bench.call(&connection, &ada).await.unwrap(), adas);
    assert_eq!(bench.call(&connection, &eve).await.unwrap(), None);
    // Another tenant's of the same name is somebody else.
    let other = Caller { tenant: portcullis::model::caller::TenantId::new("other"), ..ada };
    assert_eq!(bench.call(&connection, &other).await.unwrap(), None);
    let listed = bench.server.asked().into_iter().find(|asked| asked.method() == "tools/list").unwrap();
    assert_eq!(listed.header("authorization").map(str::to_owned), adas);
}

#[tokio::test]
async fn over_a_shared_connection_nobody_calls_with_anothers_login() {
    let bench = Bench::new("").await;
    let [ada, bob] = ["ada", "bob"].map(Caller::local);
    let connection = bench.connect().await;
    // Nobody has logged in: there is nothing to lend.
    assert_eq!(bench.call(&connection, &bob).await.unwrap(), None);
    let (adas, _bobs) = (bench.log_in(&ada).await, bench.log_in(&bob).await);
    let refused = bench.call(&connection, &bob).await.unwrap_err();
    assert_eq!(
        refused.0,
        "the login of server `web` is another principal's; `sharing = \"principal\"` gives each their own"
    );
    assert_eq!(bench.server.count("tools/call"), 1);
    assert_eq!(bench.call(&connection, &ada).await.unwrap(), adas);
    let traffic = connection.traffic();
    assert!(traffic.sent > 0 && traffic.received > 0, "{traffic:?}");
}
