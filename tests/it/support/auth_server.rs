//! A protected MCP server and its authorisation server on 127.0.0.1, strict about what a client must do, with quirks.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Form, Query, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use parking_lot::Mutex;
use portcullis::model::digest::Digest;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::http_server::{Asked, legacy};

/// What this server does otherwise than it should or than usual.
#[derive(Clone, Default)]
pub(crate) struct Quirks {
    /// Keys of the authorisation server's metadata that are replaced, or left out with `null`.
    pub metadata: Value,
    /// Who the resource says gives tokens.
    pub authorization_server: Option<String>,
    /// The resource says nothing about itself; its origin is the authorisation server.
    pub silent_resource: bool,
    /// A GET of the resource is answered with a stream of events that never ends.
    pub streams: bool,
    /// The `iss` of the redirect.
    pub iss: Option<&'static str>,
    /// The error of the redirect.
    pub denies: bool,
    /// A registered client gets a secret, and must show it.
    pub client_secret: bool,
    /// What a renewal is refused with.
    pub refuses_renewal: Option<&'static str>,
    /// A renewal is carried out, and its answer is held until there is a permit.
    pub holds_renewal: Option<Arc<Semaphore>>,
}

/// What it has seen and given.
#[derive(Default)]
struct Seen {
    quirks: Quirks,
    /// Every code, token, verifier and client secret that was ever on the way.
    secrets: Vec<String>,
    /// Codes that can be changed, with the parameters of their request.
    codes: BTreeMap<String, BTreeMap<String, String>>,
    access: Option<String>,
    refresh: Option<String>,
    renewals: usize,
    calls: usize,
    revoked: Vec<String>,
    resources: Vec<String>,
    scopes: Vec<String>,
}

type Shared = Arc<(String, Mutex<Seen>)>;
type Fields = BTreeMap<String, String>;

/// A running server. Ends when dropped.
pub(crate) struct AuthServer {
    shared: Shared,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for AuthServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl AuthServer {
    pub(crate) async fn start(quirks: Quirks) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let (shared, router) = router(origin, quirks);
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { shared, task }
    }

    /// The same over TLS, and the certificate that vouches for it.
    pub(crate) async fn start_secure(quirks: Quirks) -> (Self, reqwest::Certificate) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("https://localhost:{}", listener.local_addr().unwrap().port());
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let root = reqwest::Certificate::from_der(made.cert.der()).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.unwrap().with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key);
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config.unwrap()));
        let (shared, router) = router(origin, quirks);
        let task = tokio::spawn(async move { axum::serve(Secure { listener, acceptor }, router).await.unwrap() });
        (Self { shared, task }, root)
    }

    pub(crate) fn url(&self) -> String {
        format!("{}/mcp", self.shared.0)
    }

    pub(crate) fn origin(&self) -> &str {
        &self.shared.0
    }

    fn seen(&self) -> parking_lot::MutexGuard<'_, Seen> {
        self.shared.1.lock()
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut Quirks)) {
        change(&mut self.seen().quirks);
    }

    pub(crate) fn secrets(&self) -> Vec<String> {
        self.seen().secrets.clone()
    }

    /// From now on the access token that was given is refused. It can be renewed.
    pub(crate) fn expire(&self) {
        self.seen().access = None;
    }

    /// How many tool calls came with a good token.
    pub(crate) fn calls(&self) -> usize {
        self.seen().calls
    }

    /// The one access token that is good.
    pub(crate) fn access(&self) -> String {
        self.seen().access.clone().unwrap()
    }

    pub(crate) fn refresh(&self) -> String {
        self.seen().refresh.clone().unwrap()
    }

    pub(crate) fn renewals(&self) -> usize {
        self.seen().renewals
    }

    pub(crate) fn revoked(&self) -> Vec<String> {
        self.seen().revoked.clone()
    }

    /// The resource of every request that named one.
    pub(crate) fn resources(&self) -> Vec<String> {
        self.seen().resources.clone()
    }

    /// The scopes of every login.
    pub(crate) fn scopes(&self) -> Vec<String> {
        self.seen().scopes.clone()
    }
}

/// Accepts over TLS; who does not speak it is turned away.
struct Secure {
    listener: tokio::net::TcpListener,
    acceptor: tokio_rustls::TlsAcceptor,
}

impl axum::serve::Listener for Secure {
    type Io = tokio_rustls::server::TlsStream<tokio::net::TcpStream>;
    type Addr = std::net::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = self.listener.accept().await.unwrap();
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

fn router(origin: String, quirks: Quirks) -> (Shared, Router) {
    let shared: Shared = Arc::new((origin, Mutex::new(Seen { quirks, ..Seen::default() })));
    let router = Router::new()
        .route("/mcp", any(resource))
        .route("/.well-known/oauth-protected-resource/mcp", get(resource_metadata))
        .route("/.well-known/oauth-authorization-server", get(metadata))
        .route("/register", post(register))
        .route("/authorize", get(authorize))
        .route("/token", post(token))
        .route("/revoke", post(revoke))
        .with_state(Arc::clone(&shared));
    (shared, router)
}

async fn resource(State(shared): State<Shared>, verb: Method, headers: HeaderMap, body: bytes::Bytes) -> Response {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let good = shared.1.lock().access.as_ref().map(|token| format!("Bearer {token}"));
    if good.is_some() && given == good.as_deref() {
        let body = serde_json::from_slice(&body).unwrap_or_default();
        let asked = Asked { verb, path: "/mcp".to_owned(), headers, body };
        shared.1.lock().calls += usize::from(asked.tool().is_some());
        return legacy(&asked);
    }
    if shared.1.lock().quirks.streams {
        let body = axum::body::Body::from_stream(futures::stream::pending::<Result<bytes::Bytes, std::io::Error>>());
        return ([(header::CONTENT_TYPE, "text/event-stream")], body).into_response();
    }
    if shared.1.lock().quirks.silent_resource {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let challenge = format!(
        "Bearer resource_metadata=\"{}/.well-known/oauth-protected-resource/mcp\", scope=\"tools:call\"",
        shared.0
    );
    (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, challenge)]).into_response()
}

async fn resource_metadata(State(shared): State<Shared>) -> Response {
    let quirks = shared.1.lock().quirks.clone();
    if quirks.silent_resource {
        return StatusCode::NOT_FOUND.into_response();
    }
    let by = quirks.authorization_server.unwrap_or_else(|| shared.0.clone());
    let metadata = json!({
        "resource": format!("{}/mcp", shared.0),
        "authorization_servers": [by],
        "scopes_supported": ["tools:call", "tools:admin"],
    });
    Json(metadata).into_response()
}

async fn metadata(State(shared): State<Shared>) -> Json<Value> {
    let at = |path: &str| format!("{}{path}", shared.0);
    let mut metadata = json!({
        "issuer": shared.0,
        "authorization_endpoint": at("/authorize"),
        "token_endpoint": at("/token"),
        "registration_endpoint": at("/register"),
        "revocation_endpoint": at("/revoke"),
        "response_types_supported": ["code"],
        "code_challenge_methods_supported": ["S256"],
    });
    let changes = shared.1.lock().quirks.metadata.clone();
    for (key, value) in changes.as_object().into_iter().flatten() {
        match value {
            Value::Null => _ = metadata.as_object_mut().unwrap().remove(key),
            value => metadata[key] = value.clone(),
        }
    }
    Json(metadata)
}

async fn register(State(shared): State<Shared>, Json(asked): Json<Value>) -> Json<Value> {
    assert_eq!(asked["token_endpoint_auth_method"], "none");
    let mut answer = json!({ "client_id": "client-1", "redirect_uris": asked["redirect_uris"] });
    let mut seen = shared.1.lock();
    if seen.quirks.client_secret {
        answer["client_secret"] = "secret-of-client".into();
        seen.secrets.push("secret-of-client".to_owned());
    }
    Json(answer)
}

async fn authorize(State(shared): State<Shared>, Query(asked): Query<Fields>) -> Response {
    let mut seen = shared.1.lock();
    assert_eq!((&*asked["response_type"], &*asked["code_challenge_method"]), ("code", "S256"));
    seen.resources.push(asked["resource"].clone());
    seen.scopes.push(asked.get("scope").cloned().unwrap_or_default());
    let mut to = url::Url::parse(&asked["redirect_uri"]).unwrap();
    to.query_pairs_mut().append_pair("state", &asked["state"]);
    if seen.quirks.denies {
        to.query_pairs_mut().append_pair("error", "access_denied").append_pair("error_description", "not today");
        return Redirect::to(to.as_str()).into_response();
    }
    let code = fresh(&mut seen, "code");
    to.query_pairs_mut().append_pair("code", &code);
    if let Some(iss) = seen.quirks.iss {
        to.query_pairs_mut().append_pair("iss", iss);
    }
    seen.codes.insert(code, asked);
    Redirect::to(to.as_str()).into_response()
}

async fn token(State(shared): State<Shared>, headers: HeaderMap, Form(asked): Form<Fields>) -> Response {
    let (answer, hold) = {
        let mut seen = shared.1.lock();
        seen.secrets.extend(asked.get("code_verifier").cloned());
        seen.resources.push(asked.get("resource").cloned().unwrap_or_default());
        if seen.quirks.client_secret && !shows_secret(&headers) {
            return refused("invalid_client");
        }
        match &*asked["grant_type"] {
            "authorization_code" => {
                let Some(request) = seen.codes.remove(&asked["code"]) else { return refused("invalid_grant") };
                let same = |key: &str| request[key] == asked[key];
                let proved = challenge_of(&asked["code_verifier"]) == request["code_challenge"];
                if !(proved && same("redirect_uri") && same("resource")) {
                    return refused("invalid_grant");
                }
                (issue(&mut seen, request.get("scope")), None)
            }
            "refresh_token" => {
                seen.renewals += 1;
                if let Some(error) = seen.quirks.refuses_renewal {
                    return refused(error);
                }
                if seen.refresh.as_ref() != asked.get("refresh_token") {
                    return refused("invalid_grant");
                }
                let hold = seen.quirks.holds_renewal.clone();
                (issue(&mut seen, None), hold)
            }
            _ => return refused("unsupported_grant_type"),
        }
    };
    if let Some(hold) = hold {
        hold.acquire().await.unwrap().forget();
    }
    Json(answer).into_response()
}

/// New tokens; the ones before are no longer good.
fn issue(seen: &mut Seen, scope: Option<&String>) -> Value {
    let (access, refresh) = (fresh(seen, "access"), fresh(seen, "refresh"));
    (seen.access, seen.refresh) = (Some(access.clone()), Some(refresh.clone()));
    let mut answer =
        json!({ "access_token": access, "token_type": "Bearer", "expires_in": 3600, "refresh_token": refresh });
    if let Some(scope) = scope {
        answer["scope"] = scope.as_str().into();
    }
    answer
}

async fn revoke(State(shared): State<Shared>, headers: HeaderMap, Form(asked): Form<Fields>) -> StatusCode {
    let mut seen = shared.1.lock();
    let known = if seen.quirks.client_secret { shows_secret(&headers) } else { asked["client_id"] == "client-1" };
    if !known {
        return StatusCode::UNAUTHORIZED;
    }
    seen.revoked.push(asked["token"].clone());
    StatusCode::OK
}

/// An error that repeats nothing but its code, like most; `500` and the like are a status instead.
fn refused(error: &str) -> Response {
    match error.parse::<u16>() {
        Ok(status) => StatusCode::from_u16(status).unwrap().into_response(),
        Err(_) => (StatusCode::BAD_REQUEST, Json(json!({ "error": error }))).into_response(),
    }
}

fn fresh(seen: &mut Seen, kind: &str) -> String {
    let text = format!("{kind}-{}", uuid::Uuid::new_v4().simple());
    seen.secrets.push(text.clone());
    text
}

fn shows_secret(headers: &HeaderMap) -> bool {
    let basic = format!("Basic {}", base64(b"client-1:secret-of-client", b"+/", true));
    headers.get(header::AUTHORIZATION).is_some_and(|value| value == basic.as_str())
}

/// RFC 7636, 4.2.
fn challenge_of(verifier: &str) -> String {
    base64(Digest::of(verifier.as_bytes()).as_bytes(), b"-_", false)
}

fn base64(bytes: &[u8], last: &[u8; 2], pad: bool) -> String {
    let alphabet = [&(b'A'..=b'Z').chain(b'a'..=b'z').chain(b'0'..=b'9').collect::<Vec<u8>>()[..], last].concat();
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        let digits = (0..=chunk.len()).map(|i| char::from(alphabet[(word >> (18 - 6 * i) & 63) as usize]));
        out.extend(digits);
        out.push_str(if pad { &"=="[..3 - chunk.len()] } else { "" });
    }
    out
}
