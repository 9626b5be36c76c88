//! A scripted HTTP server: each test says what is answered, and looks at what was asked.
//!
//! It runs on a runtime of its own, so that it can die in the middle of everything.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::response::Response;
use axum::serve::Listener;
use http::{HeaderMap, Method, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

/// What was asked.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) verb: Method,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    /// The message; `null` where there was none.
    pub(crate) body: Value,
}

impl Asked {
    /// The method of the message, or the verb where there is no message.
    pub(crate) fn method(&self) -> &str {
        self.body["method"].as_str().unwrap_or(self.verb.as_str())
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// The tool that is called.
    pub(crate) fn tool(&self) -> Option<&str> {
        (self.method() == "tools/call").then(|| self.body["params"]["name"].as_str().unwrap())
    }

    /// The answer to this with a result.
    pub(crate) fn result(&self, result: &Value) -> Value {
        json!({ "jsonrpc": "2.0", "id": self.body["id"], "result": result })
    }

    /// The answer of a tool that says a text.
    pub(crate) fn says(&self, text: &str) -> Value {
        self.result(&json!({ "content": [{ "type": "text", "text": text }], "resultType": "complete" }))
    }
}

/// One answer as JSON.
pub(crate) fn json(message: &Value) -> Response {
    typed("application/json", message.to_string())
}

pub(crate) fn typed(kind: &str, body: impl Into<Body>) -> Response {
    Response::builder().header("content-type", kind).body(body.into()).unwrap()
}

pub(crate) fn status(status: u16) -> Response {
    Response::builder().status(status).body(Body::empty()).unwrap()
}

/// An HTTP error with a message in it.
pub(crate) fn refused(code: u16, message: &Value) -> Response {
    let mut response = json(message);
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    response
}

/// A whole stream of events, in these pieces.
pub(crate) fn stream(pieces: &[&str]) -> Response {
    let pieces: Vec<Result<Bytes, io::Error>> =
        pieces.iter().map(|piece| Ok(Bytes::copy_from_slice(piece.as_bytes()))).collect();
    typed("text/event-stream", Body::from_stream(futures::stream::iter(pieces)))
}

/// One event.
pub(crate) fn event(message: &Value) -> String {
    format!("event: message\ndata: {message}\n\n")
}

/// Feeds a body piece by piece. Dropped, the body ends; an error breaks it off.
pub(crate) type Feed = mpsc::UnboundedSender<Result<Bytes, io::Error>>;

/// A body that a test feeds.
pub(crate) fn fed(kind: &str) -> (Feed, Response) {
    let (feed, pieces) = mpsc::unbounded_channel();
    let pieces = futures::stream::unfold(pieces, |mut pieces| async { Some((pieces.recv().await?, pieces)) });
    (feed, typed(kind, Body::from_stream(pieces)))
}

pub(crate) fn piece(text: &str) -> Result<Bytes, io::Error> {
    Ok(Bytes::copy_from_slice(text.as_bytes()))
}

/// What a server of the older era answers, unless a test says otherwise.
pub(crate) fn legacy(asked: &Asked) -> Response {
    match asked.method() {
        "initialize" => {
            let mut response = json(
                &asked.result(&json!({ "protocolVersion": "2025-11-25",
                "capabilities": { "tools": { "listChanged": true } }, "serverInfo": { "name": "s", "version": "1" } })),
            );
            response.headers_mut().insert("mcp-session-id", "session-1".parse().unwrap());
            response
        }
        "tools/list" => {
            json(&asked.result(&json!({ "tools": [{ "name": "t", "inputSchema": { "type": "object" } }] })))
        }
        "tools/call" => json(&asked.says(asked.tool().unwrap())),
        "DELETE" => status(200),
        "GET" => status(405),
        "server/discover" => status(404),
        _ => status(202),
    }
}

/// What a server of the stateless era answers, unless a test says otherwise.
pub(crate) fn modern(asked: &Asked) -> Response {
    match asked.method() {
        "server/discover" => {
            json(&asked.result(&json!({ "resultType": "complete", "supportedVersions": ["2026-07-28"],
            "capabilities": { "tools": {} }, "ttlMs": 0, "cacheScope": "private",
            "_meta": { "io.modelcontextprotocol/serverInfo": { "name": "s", "version": "1" } } })))
        }
        "tools/list" | "tools/call" => legacy(asked),
        _ => status(404),
    }
}

/// A running server.
pub(crate) struct HttpServer {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    /// Connections that are open now.
    open: Arc<AtomicUsize>,
    scheme: &'static str,
    runtime: Option<Runtime>,
}

impl HttpServer {
    /// Starts a server with this script; what it says nothing to is answered like [`legacy`].
    pub(crate) fn start<F>(script: impl Fn(Asked) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Option<Response>> + Send + 'static,
    {
        Self::start_with(None, None, legacy, script)
    }

    /// The same, in the stateless era.
    pub(crate) fn start_modern<F>(script: impl Fn(Asked) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Option<Response>> + Send + 'static,
    {
        Self::start_with(None, None, modern, script)
    }

    /// Starts a server at this address, with TLS if there is an acceptor.
    pub(crate) fn start_with<F>(
        address: Option<SocketAddr>,
        tls: Option<TlsAcceptor>,
        otherwise: fn(&Asked) -> Response,
        script: impl Fn(Asked) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Option<Response>> + Send + 'static,
    {
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (noted, script) = (asked.clone(), Arc::new(script));
        let handler = move |request: Request| {
            let (noted, script) = (noted.clone(), script.clone());
            async move {
                let (parts, body) = request.into_parts();
                let body = axum::body::to_bytes(body, usize::MAX).await.unwrap_or_default();
                let path = parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
                let body = serde_json::from_slice(&body).unwrap_or_default();
                let asked = Asked { verb: parts.method, path, headers: parts.headers, body };
                noted.lock().push(asked.clone());
                script(asked.clone()).await.unwrap_or_else(|| otherwise(&asked))
            }
        };
        let scheme = if tls.is_some() { "https" } else { "http" };
        let (address, open, runtime) = serve(address, tls, Router::new().fallback(handler));
        Self { address, asked, open, scheme, runtime: Some(runtime) }
    }

    /// Serves something else, such as a server made with rmcp.
    pub(crate) fn start_router(router: Router) -> Self {
        let (address, open, runtime) = serve(None, None, router);
        Self { address, asked: Arc::default(), open, scheme: "http", runtime: Some(runtime) }
    }

    pub(crate) fn url(&self) -> String {
        format!("{}://{}/mcp", self.scheme, self.address)
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().clone()
    }

    /// The methods of what was asked, in order.
    pub(crate) fn methods(&self) -> Vec<String> {
        self.asked.lock().iter().map(|asked| asked.method().to_owned()).collect()
    }

    pub(crate) fn count(&self, method: &str) -> usize {
        self.asked.lock().iter().filter(|asked| asked.method() == method).count()
    }

    /// How many connections are open.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// Ends the server with everything in flight.
    pub(crate) fn die(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Waits until nothing of it runs: then its port is free and refuses.
            std::thread::spawn(move || runtime.shutdown_timeout(super::PATIENCE)).join().unwrap();
        }
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn serve(
    address: Option<SocketAddr>,
    tls: Option<TlsAcceptor>,
    router: Router,
) -> (SocketAddr, Arc<AtomicUsize>, Runtime) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let socket = std::net::TcpListener::bind(address.unwrap_or_else(|| ([127, 0, 0, 1], 0).into())).unwrap();
    socket.set_nonblocking(true).unwrap();
    let address = socket.local_addr().unwrap();
    let open = Arc::new(AtomicUsize::new(0));
    let counted = open.clone();
    runtime.spawn(async move {
        let listener = Counting { listener: TcpListener::from_std(socket).unwrap(), tls, open: counted };
        axum::serve(listener, router).await.unwrap();
    });
    (address, open, runtime)
}

struct Counting {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    open: Arc<AtomicUsize>,
}

impl Listener for Counting {
    type Io = Counted;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Counted, SocketAddr) {
        loop {
            let (stream, address) = self.listener.accept().await.unwrap();
            self.open.fetch_add(1, Ordering::SeqCst);
            let open = Open(self.open.clone());
            let io: Box<dyn Io> = match &self.tls {
                None => Box::new(stream),
                Some(tls) => match tls.accept(stream).await {
                    Ok(stream) => Box::new(stream),
                    Err(_) => continue,
                },
            };
            return (Counted { io, _open: open }, address);
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl Io for TcpStream {}
impl Io for tokio_rustls::server::TlsStream<TcpStream> {}

struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A connection that counts while it is open.
pub(crate) struct Counted {
    io: Box<dyn Io>,
    _open: Open,
}

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
