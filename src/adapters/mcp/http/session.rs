//! Which session it is (older era only), and how it is renewed.
//!
//! A server that does not know our session did not carry out the request. The session is opened again with the very text
//! that opened it, once for all requests that find it gone.

use http::header::{HeaderMap, HeaderValue};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::watch;

use super::order::{Order, SESSION, VERSION};

/// The longest name of a session, in bytes.
const MAX_ID: usize = 4096;
/// The longest version, in bytes.
const MAX_VERSION: usize = 64;

/// The session as one request sees it.
#[derive(Debug, Clone)]
pub(super) struct Seat {
    /// Grows with each renewal.
    pub(super) generation: u64,
    /// Names session and version.
    pub(super) headers: HeaderMap,
}

impl Seat {
    /// Whether the server gave a session.
    pub(super) fn is_named(&self) -> bool {
        self.headers.contains_key(SESSION)
    }
}

/// The session of one connection.
pub(super) struct Session {
    now: Mutex<Now>,
    generation: watch::Sender<u64>,
    /// Held while it is renewed.
    pub(super) renewing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Now {
    headers: HeaderMap,
    initialize: Option<Order>,
    initialized: Option<Order>,
}

/// What an answer to `initialize` says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Opened {
    version: HeaderValue,
    id: Option<HeaderValue>,
}

impl Opened {
    /// Names session and version.
    pub(super) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(VERSION, self.version.clone());
        if let Some(id) = &self.id {
            headers.insert(SESSION, id.clone());
        }
        headers
    }

    /// Reads the answer; `None`: it is none that opens a session.
    pub(super) fn read(answer: &str, headers: &HeaderMap) -> Option<Self> {
        #[derive(Deserialize)]
        struct Answer {
            result: Result,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Result {
            protocol_version: String,
        }
        let answer: Answer = serde_json::from_str(answer).ok()?;
        let version = answer.result.protocol_version;
        let version = HeaderValue::from_str(&version).ok().filter(|_| version.len() <= MAX_VERSION)?;
        let id = headers.get(SESSION).filter(|id| !id.is_empty() && id.len() <= MAX_ID).cloned();
        let id = id.map(|mut id| {
            // Who knows it can speak in it.
            id.set_sensitive(true);
            id
        });
        Some(Self { version, id })
    }
}

impl Default for Session {
    fn default() -> Self {
        Self { now: Mutex::default(), generation: watch::Sender::new(0), renewing: tokio::sync::Mutex::default() }
    }
}

impl Session {
    /// Notes how the session is opened.
    pub(super) fn opens_with(&self, initialize: &Order) {
        self.now.lock().initialize = Some(initialize.clone());
    }

    /// Notes what follows the answer.
    pub(super) fn continues_with(&self, initialized: &Order) {
        self.now.lock().initialized = Some(initialized.clone());
    }

    /// Returns both texts; `None`: it was never opened.
    pub(super) fn texts(&self) -> Option<(Order, Order)> {
        let now = self.now.lock();
        Some((now.initialize.clone()?, now.initialized.clone()?))
    }

    /// Notes the session that the server gave.
    pub(super) fn opened(&self, opened: &Opened) {
        let mut now = self.now.lock();
        now.headers = opened.headers();
        self.generation.send_modify(|generation| *generation += 1);
    }

    /// Takes the session's names away, so that it is ended once; `None`: the server gave no session.
    pub(super) fn leave(&self) -> Option<HeaderMap> {
        let mut now = self.now.lock();
        now.headers.contains_key(SESSION).then(|| std::mem::take(&mut now.headers))
    }

    /// Whether a renewed session speaks the version of the former one.
    pub(super) fn speaks(&self, opened: &Opened) -> bool {
        self.now.lock().headers.get(VERSION) == Some(&opened.version)
    }

    /// Returns the session as it is now.
    pub(super) fn seat(&self) -> Seat {
        let now = self.now.lock();
        Seat { generation: *self.generation.borrow(), headers: now.headers.clone() }
    }

    /// Tells of each renewal.
    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_whose_name_is_too_long_has_none() {
        let answer = r#"{"id":1,"result":{"protocolVersion":"2025-11-25"}}"#;
        let mut headers = HeaderMap::new();
        headers.insert(SESSION, HeaderValue::from_static("s"));
        assert!(Opened::read(answer, &headers).unwrap().headers()[SESSION].is_sensitive());
        headers.insert(SESSION, HeaderValue::from_str(&"s".repeat(MAX_ID + 1)).unwrap());
        assert!(!Opened::read(answer, &headers).unwrap().headers().contains_key(SESSION));
        assert_eq!(Opened::read("{}", &headers), None);
    }
}
