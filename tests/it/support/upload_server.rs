//! A place for uploads on 127.0.0.1: keeps what arrives whole, and answers as a test says.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use parking_lot::Mutex;
use url::Url;

use crate::fakes::Gate;

/// A file that arrived whole.
#[derive(Debug, Clone)]
pub(crate) struct Arrived {
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Bytes,
}

/// How an upload is answered: status, headers and body, with `{n}` for how many have arrived.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) location: Option<String>,
    pub(crate) body: String,
}

impl Reply {
    /// A reference to the file.
    pub(crate) fn usual() -> Self {
        let body = r#"{"file_id":"id-{n}","download_url":"https://files.example/{n}?sig=hush"}"#;
        Self { status: 200, location: None, body: body.to_owned() }
    }
}

struct Seen {
    arrived: Mutex<Vec<Arrived>>,
    reply: Mutex<Reply>,
    gate: Mutex<Option<Arc<Gate>>>,
}

/// A running server. Ends when dropped.
pub(crate) struct UploadServer {
    seen: Arc<Seen>,
    task: tokio::task::JoinHandle<()>,
    origin: String,
}

impl Drop for UploadServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl UploadServer {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let (arrived, gate) = (Mutex::default(), Mutex::default());
        let seen = Arc::new(Seen { arrived, reply: Mutex::new(Reply::usual()), gate });
        let limit = axum::extract::DefaultBodyLimit::disable();
        let router = Router::new().route("/up", post(take)).layer(limit).with_state(Arc::clone(&seen));
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { seen, task, origin }
    }

    pub(crate) fn url(&self) -> Url {
        format!("{}/up?key=hush", self.origin).parse().unwrap()
    }

    pub(crate) fn arrived(&self) -> Vec<Arrived> {
        self.seen.arrived.lock().clone()
    }

    pub(crate) fn replies(&self, reply: Reply) {
        *self.seen.reply.lock() = reply;
    }

    /// Answers only once the gate is open.
    pub(crate) fn at(&self, gate: &Arc<Gate>) {
        *self.seen.gate.lock() = Some(Arc::clone(gate));
    }
}

async fn take(State(seen): State<Arc<Seen>>, headers: HeaderMap, bytes: Bytes) -> Response {
    let number = {
        let mut arrived = seen.arrived.lock();
        arrived.push(Arrived { headers, bytes });
        arrived.len()
    };
    let gate = seen.gate.lock().clone();
    if let Some(gate) = gate {
        gate.pass().await;
    }
    let Reply { status, location, body } = seen.reply.lock().clone();
    let mut headers = HeaderMap::new();
    if let Some(location) = location {
        headers.insert("location", location.parse().unwrap());
    }
    (StatusCode::from_u16(status).unwrap(), headers, body.replace("{n}", &number.to_string())).into_response()
}
