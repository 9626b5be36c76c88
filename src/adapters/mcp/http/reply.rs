//! What kind of answer an HTTP response is. Bodies are bounded while they are read, and never quoted.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use rmcp::model::RequestId;

use super::client::{Failure, HttpClient, causes, status_text};
use super::order::{EVENT_STREAM, JSON};
use crate::adapters::mcp::envelope::{Envelope, Id};
use crate::model::text;

/// The longest body of a refusal that is read, in bytes.
const MAX_REFUSAL: usize = 1024 * 1024;

/// JSON-RPC: the server does not know the method.
pub(super) const METHOD_NOT_FOUND: i64 = -32601;

/// An answer.
pub(super) enum Reply {
    /// The server took it, and says nothing.
    Accepted,
    /// One message.
    Json(String),
    /// A message that is larger than allowed.
    TooLarge,
    /// Messages to come.
    Stream(reqwest::Response),
    /// An HTTP error.
    Refused(Refusal),
}

/// An HTTP error.
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    /// What status and type of content say.
    shown: String,
    /// The body, if it may be a message.
    body: Option<String>,
}

impl Reply {
    /// Finds out what a response is; reads the body of everything but a stream. A message may have `limit` bytes.
    ///
    /// # Errors
    /// A [`Failure`]: the body broke off or is nothing that the protocol knows.
    pub(super) async fn read(client: &HttpClient, response: reqwest::Response, limit: usize) -> Result<Self, Failure> {
        let status = response.status();
        let kind = content_type(response.headers());
        if !status.is_success() {
            let shown = format!("{}{}", status_text(status, response.headers()), typed(kind.as_deref()));
            let body = match kind.as_deref() {
                // Why it broke off does not matter: the status has told enough.
                Some(JSON) => body(client, response, limit.min(MAX_REFUSAL)).await.ok(),
                _ => None,
            };
            let body = body.and_then(|body| String::from_utf8(body?).ok());
            return Ok(Self::Refused(Refusal { status, shown, body }));
        }
        let unusable = |what: &str| {
            Failure::Unusable(format!("the server answered {status}{}, which is {what}", typed(kind.as_deref())))
        };
        match kind.as_deref() {
            Some(EVENT_STREAM) => Ok(Self::Stream(response)),
            _ if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) => Ok(Self::Accepted),
            Some(JSON) => match body(client, response, limit).await? {
                None => Ok(Self::TooLarge),
                Some(body) if body.trim_ascii().is_empty() => Ok(Self::Accepted),
                Some(body) => String::from_utf8(body).map(Self::Json).map_err(|_| unusable("not UTF-8")),
            },
            None if response.content_length() == Some(0) => Ok(Self::Accepted),
            _ => Err(unusable("neither JSON nor a stream of events")),
        }
    }
}

impl Refusal {
    /// Returns the error of a JSON-RPC answer to this request; the body of a response to it can be no other's.
    pub(super) fn error(&self, id: &RequestId) -> Option<&str> {
        let envelope = Envelope::parse(self.body.as_deref()?).ok()?;
        let error = envelope.failure().filter(|_| envelope.method.is_none())?;
        let ours = match envelope.id() {
            Id::Absent | Id::Bad => true,
            Id::Good(theirs) => super::order::same(id, &theirs),
        };
        ours.then(|| error.get())
    }

    /// Whether it says that the server does not know the session.
    pub(super) fn forgets_session(&self, id: Option<&RequestId>) -> bool {
        match self.status {
            // The method is what is unknown.
            StatusCode::NOT_FOUND => {
                id.and_then(|id| self.error(id)).is_none_or(|error| code(error) != Some(METHOD_NOT_FOUND))
            }
            StatusCode::BAD_REQUEST => self.body.as_deref().is_some_and(|body| {
                let envelope = Envelope::parse(body).ok();
                let message =
                    envelope.as_ref().and_then(|envelope| envelope.failure()).and_then(|raw| message(raw.get()));
                message.is_some_and(|message| message.to_ascii_lowercase().contains("session"))
            }),
            _ => false,
        }
    }

    /// Whether a server of the older era may say so to a method that it has never heard of.
    pub(super) fn knows_no_discovery(&self) -> bool {
        let status = self.status;
        let asks_for_something_else = matches!(
            status,
            StatusCode::UNAUTHORIZED
                | StatusCode::FORBIDDEN
                | StatusCode::PROXY_AUTHENTICATION_REQUIRED
                | StatusCode::REQUEST_TIMEOUT
                | StatusCode::TOO_MANY_REQUESTS
        );
        (status.is_client_error() && !asks_for_something_else)
            || matches!(status, StatusCode::INTERNAL_SERVER_ERROR | StatusCode::NOT_IMPLEMENTED)
    }

    /// Returns the failure that it is.
    pub(super) fn failure(&self) -> Failure {
        let why = format!("the server answered {}", self.shown);
        match self.status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::FORBIDDEN => Failure::NotSent(why),
            // A server that failed, or one in between, does not say how far it came.
            status if status.is_server_error() => Failure::Lost(why),
            _ => Failure::Unusable(why),
        }
    }
}

fn message(error: &str) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Error {
        message: String,
    }
    serde_json::from_str::<Error>(error).ok().map(|error| error.message)
}

fn code(error: &str) -> Option<i64> {
    #[derive(serde::Deserialize)]
    struct Error {
        code: i64,
    }
    serde_json::from_str::<Error>(error).ok().map(|error| error.code)
}

/// Returns the type of content, without parameters.
pub(super) fn content_type(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    let kind = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    (!kind.is_empty()).then_some(kind)
}

fn typed(kind: Option<&str>) -> String {
    kind.map_or_else(|| " without a type".to_owned(), |kind| format!(" (`{}`)", text::shown(kind, 64)))
}

/// Reads a body; `None`: it has more than `limit` bytes.
async fn body(client: &HttpClient, mut response: reqwest::Response, limit: usize) -> Result<Option<Vec<u8>>, Failure> {
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(piece)) => {
                client.received(piece.len());
                if body.len() + piece.len() > limit {
                    return Ok(None);
                }
                body.extend_from_slice(&piece);
            }
            Ok(None) => return Ok(Some(body)),
            Err(error) => {
                return Err(Failure::Lost(format!("the answer broke off: {}", text::shown(&causes(error), 200))));
            }
        }
    }
}
