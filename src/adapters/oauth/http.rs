//! Every request of OAuth goes through here: where to, how long, how much.
//!
//! Promises: nothing goes over plain http except within this machine, and nothing of a server elsewhere leads to this
//! machine; a request ends within [`EXCHANGE`]; an answer has at most [`MAX_BODY`] bytes; redirects are never followed
//! (the protocol library follows those of discovery itself, within one origin); a login makes at most [`MAX_EXCHANGES`].
//! The resource of a token request is the one that was decided on. No error holds what was sent or the query of a URL.
//!
//! Does not look at the addresses that names resolve to: the certificate of an https host is what vouches for it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::redirect::Policy;
use rmcp::transport::auth::{OAuthHttpClient, OAuthHttpClientError, OAuthHttpClientFuture, OAuthHttpRequest};
use serde::Deserialize;
use url::{Url, form_urlencoded};

use super::target::place;
use crate::model::here::{is_private, may_be_here};
use crate::model::text::{seconds, shown};

/// How long one exchange may take, from connecting to the last byte.
const EXCHANGE: Duration = Duration::from_secs(20);
/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(10);
/// The largest answer, in bytes. Metadata of large providers has some 10 KiB.
const MAX_BODY: usize = 256 * 1024;
/// The most exchanges of one login or renewal: metadata may name many places to look.
const MAX_EXCHANGES: u32 = 48;
/// A secret that is shorter would be found in any text by chance.
const MIN_SECRET: usize = 6;

/// Why an exchange came to nothing.
#[derive(Debug, Clone, thiserror::Error)]
pub enum HttpError {
    /// There is no client, for example because the system has no certificates.
    #[error("there is no HTTP client: {0}")]
    Client(String),
    /// The URL is not one that is talked to.
    #[error("`{0}` is refused: it must be https, or http on this machine for a server on this machine")]
    Refused(String),
    /// It could not be reached, or broke off.
    #[error("`{place}` cannot be reached: {why}")]
    Unreachable {
        /// Where.
        place: String,
        /// Why.
        why: String,
    },
    /// It took too long.
    #[error("`{place}` did not answer within {}", seconds(EXCHANGE))]
    Slow {
        /// Where.
        place: String,
    },
    /// It is too much.
    #[error("the answer of `{0}` has more than {MAX_BODY} bytes")]
    TooLarge(String),
    /// There are too many.
    #[error("it takes more than {MAX_EXCHANGES} requests")]
    TooMany,
}

/// The clients that all logins share.
#[derive(Clone)]
pub struct Http(Arc<Clients>);

struct Clients {
    builder: Box<dyn Fn() -> reqwest::ClientBuilder + Send + Sync>,
    plain: OnceLock<Result<reqwest::Client, String>>,
    secure: OnceLock<Result<reqwest::Client, String>>,
}

impl std::fmt::Debug for Http {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Http")
    }
}

impl Http {
    /// Makes clients from what the caller builds: it brings TLS and its roots; bounds and redirects are set here.
    #[must_use]
    pub fn new(builder: impl Fn() -> reqwest::ClientBuilder + Send + Sync + 'static) -> Self {
        Self(Arc::new(Clients { builder: Box::new(builder), plain: OnceLock::new(), secure: OnceLock::new() }))
    }

    /// Made at the first use: a machine without certificates can still talk to itself.
    fn client(&self, url: &Url) -> Result<&reqwest::Client, HttpError> {
        let bounded = || {
            let agent = concat!("portcullis/", env!("CARGO_PKG_VERSION"));
            let builder = (self.0.builder)().redirect(Policy::none()).referer(false).user_agent(agent);
            builder.connect_timeout(CONNECT).timeout(EXCHANGE)
        };
        let built = |builder: reqwest::ClientBuilder| builder.build().map_err(|error| cause(&error));
        let client = if url.scheme() == "http" {
            // A proxy is no part of this machine.
            self.0.plain.get_or_init(|| built(bounded().no_proxy().tls_certs_only([])))
        } else {
            self.0.secure.get_or_init(|| built(bounded().https_only(true)))
        };
        client.as_ref().map_err(|why| HttpError::Client(why.clone()))
    }
}

/// What an authorisation server said no with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the authorisation server refused: {text}")]
pub struct Refusal {
    /// The code of RFC 6749, or empty.
    pub(super) code: String,
    text: String,
}

impl Refusal {
    /// What a redirect or an answer says, made fit to be shown.
    pub(super) fn new(code: &str, description: Option<&str>) -> Self {
        let code = shown(code, 64);
        let description = description.map(|text| format!(" ({})", shown(text, 300)));
        Self { text: format!("{code}{}", description.unwrap_or_default()), code }
    }

    /// What an answer with an error status says. A description that repeats what was sent is left out.
    fn of(status: u16, body: &[u8], sent: &[(String, String)]) -> Self {
        #[derive(Deserialize)]
        struct Body {
            error: String,
            #[serde(default)]
            error_description: Option<String>,
        }
        let Ok(body) = serde_json::from_slice::<Body>(body) else {
            return Self { code: String::new(), text: format!("HTTP status {status}") };
        };
        let repeats = |text: &str| sent.iter().any(|(_, value)| value.len() >= MIN_SECRET && text.contains(&**value));
        let description = body.error_description.as_deref().filter(|text| !repeats(text));
        if repeats(&body.error) {
            return Self { code: String::new(), text: format!("HTTP status {status}") };
        }
        Self::new(&body.error, description)
    }
}

/// How a request with a body failed.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    Refused(Refusal),
    Http(HttpError),
}

/// The exchanges of one login, renewal or logout.
pub(super) struct Talk {
    http: Http,
    /// Whether the server that it is all about is on this machine.
    local: bool,
    /// What `resource` is in requests for tokens; until it is known, whatever the library says.
    resource: Mutex<Option<String>>,
    left: AtomicU32,
    /// How the last request with a body failed: the library's own errors keep no more than a text.
    failure: Mutex<Option<Failure>>,
}

/// An answer, whole.
struct Answer {
    status: reqwest::StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Talk {
    pub(super) fn new(http: &Http, local: bool) -> Arc<Self> {
        Arc::new(Self {
            http: http.clone(),
            local,
            resource: Mutex::new(None),
            left: AtomicU32::new(MAX_EXCHANGES),
            failure: Mutex::new(None),
        })
    }

    pub(super) fn set_resource(&self, resource: &str) {
        *self.resource.lock() = Some(resource.to_owned());
    }

    /// Returns how the last request with a body failed, if it did.
    pub(super) fn failure(&self) -> Option<Failure> {
        self.failure.lock().clone()
    }

    /// Whether this URL is talked to at all.
    pub(super) fn allows(&self, url: &Url) -> bool {
        is_private(url) && (self.local || !may_be_here(url))
    }

    /// Posts a form, with the client's id and secret if it has one; returns whether the answer was a success. For what the
    /// library has no request for.
    pub(super) async fn post(
        &self,
        url: &Url,
        form: &[(&str, &str)],
        client: Option<(&str, &str)>,
    ) -> Result<bool, HttpError> {
        let encoded = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(form).finish();
        let mut request = reqwest::Request::new(Method::POST, url.clone());
        let kind = HeaderValue::from_static("application/x-www-form-urlencoded");
        request.headers_mut().insert(CONTENT_TYPE, kind);
        *request.body_mut() = Some(body.into());
        if let Some((id, secret)) = client {
            // RFC 6749, 2.3.1: each is encoded before they are joined.
            let client = self.http.client(url)?.post(url.clone());
            let basic = client.basic_auth(encoded(id), Some(encoded(secret))).build();
            let basic = basic.map_err(|error| HttpError::Client(cause(&error)))?;
            request.headers_mut().extend(basic.headers().clone());
        }
        Ok(self.exchange(request).await?.status.is_success())
    }

    async fn exchange(&self, mut request: reqwest::Request) -> Result<Answer, HttpError> {
        let (url, at) = (request.url().clone(), place(request.url()));
        if !self.allows(&url) {
            return Err(HttpError::Refused(at));
        }
        let spent = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        spent.map_err(|_| HttpError::TooMany)?;
        let sent = self.form(&mut request);
        let failed = |error: reqwest::Error| match error.is_timeout() {
            true => HttpError::Slow { place: at.clone() },
            false => HttpError::Unreachable { place: at.clone(), why: cause(&error.without_url()) },
        };
        let mut response = self.http.client(&url)?.execute(request).await.map_err(failed)?;
        let (status, headers) = (response.status(), response.headers().clone());
        let mut body = Vec::new();
        // A stream of events has no end, and nothing in it is wanted.
        let events = headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        while !events && let Some(chunk) = response.chunk().await.map_err(failed)? {
            if chunk.len() > MAX_BODY - body.len() {
                return Err(HttpError::TooLarge(at));
            }
            body.extend_from_slice(&chunk);
        }
        if let Some(sent) = sent.filter(|_| !status.is_success()) {
            *self.failure.lock() = Some(Failure::Refused(Refusal::of(status.as_u16(), &body, &sent)));
        }
        Ok(Answer { status, headers, body })
    }

    /// Puts the resource into a form; returns what is in a request with a body.
    fn form(&self, request: &mut reqwest::Request) -> Option<Vec<(String, String)>> {
        let body = request.body().and_then(reqwest::Body::as_bytes).filter(|body| !body.is_empty())?.to_vec();
        let kind = request.headers().get(CONTENT_TYPE);
        if !kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/x-www-form-urlencoded")) {
            return Some(Vec::new());
        }
        let mut pairs: Vec<(String, String)> = form_urlencoded::parse(&body).into_owned().collect();
        if let Some(resource) = self.resource.lock().clone() {
            pairs.iter_mut().filter(|(key, _)| key == "resource").for_each(|(_, value)| value.clone_from(&resource));
            let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(&pairs).finish();
            *request.body_mut() = Some(body.into());
        }
        // What everybody knows is no secret that an answer could repeat.
        pairs.retain(|(key, _)| !matches!(&**key, "resource" | "redirect_uri" | "grant_type" | "client_id" | "scope"));
        Some(pairs)
    }
}

impl OAuthHttpClient for Talk {
    fn execute(&self, request: OAuthHttpRequest) -> OAuthHttpClientFuture<'_> {
        Box::pin(async move {
            let has_body = !request.request.body().is_empty();
            *self.failure.lock() = None;
            let request = reqwest::Request::try_from(request.request)?;
            let answer = self.exchange(request).await.map_err(|error| {
                if has_body {
                    *self.failure.lock() = Some(Failure::Http(error.clone()));
                }
                OAuthHttpClientError::from(error)
            })?;
            let mut response = http::Response::new(answer.body);
            *response.status_mut() = answer.status;
            *response.headers_mut() = answer.headers;
            Ok(response)
        })
    }
}

/// The innermost cause: the others only say that something failed.
fn cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut inner = error;
    while let Some(next) = inner.source() {
        inner = next;
    }
    shown(&inner.to_string(), 200)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_that_repeats_what_was_sent_is_left_out() {
        let sent = [("code".to_owned(), "hush-hush".to_owned())];
        let text = |body: &str| Refusal::of(400, body.as_bytes(), &sent).to_string();
        let body = r#"{"error":"invalid_grant","error_description":"the code is old"}"#;
        assert!(text(body).ends_with("refused: invalid_grant (the code is old)"));
        let body = r#"{"error":"invalid_grant","error_description":"no such code: hush-hush"}"#;
        assert!(text(body).ends_with("refused: invalid_grant"));
        assert!(text(r#"{"error":"hush-hush"}"#).ends_with("HTTP status 400"));
        assert!(text("hush-hush").ends_with("HTTP status 400"));
    }

    #[test]
    fn a_server_elsewhere_leads_nowhere_on_this_machine() {
        let http = Http::new(reqwest::Client::builder);
        let allows = |local, url: &str| Talk::new(&http, local).allows(&Url::parse(url).unwrap());
        assert!(allows(false, "https://a.example/x") && allows(true, "https://a.example/x"));
        assert!(allows(true, "http://127.0.0.1:1/x") && !allows(false, "http://127.0.0.1:1/x"));
        assert!(!allows(false, "https://localhost/x"));
        assert!(!allows(false, "https://a.localhost/x") && !allows(false, "https://0.0.0.0/x"));
        assert!(!allows(true, "http://a.example/x") && !allows(true, "ftp://127.0.0.1/x"));
    }
}
