//! Where a server is and what goes with every request to it, checked once when it is connected.
//!
//! Header values may be secrets: they are marked so, and no text here holds one.

use std::sync::Arc;

use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use url::Url;

use crate::model::here::is_private;
use crate::model::secret::Secret;
use crate::model::text;
use crate::ports::credentials::Credentials;

/// Headers that are ours to set. Everything that begins with `mcp-` is, too.
const OURS: [&str; 18] = [
    "accept",
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "last-event-id",
    "proxy-authorization",
    "proxy-connection",
    "range",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// The longest address, in bytes.
const MAX_URL: usize = 8 * 1024;

/// An HTTP server as it is configured, with everything from the environment put in.
#[derive(Debug, Clone)]
pub struct HttpEndpoint {
    /// The address.
    pub url: String,
    /// Headers of every request.
    pub headers: Vec<(String, Secret)>,
    /// A fixed bearer token.
    pub bearer: Option<Secret>,
}

/// Why an endpoint cannot be used. Holds no value of a header and nothing of an address but its host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadEndpoint {
    /// No address.
    #[error("its `url` is no address: {0}")]
    Url(String),
    /// Neither `http` nor `https`.
    #[error("its `url` must begin with `https://` or `http://`")]
    Scheme,
    /// A password in an address ends up in logs.
    #[error("its `url` must not hold a user or a password; use `bearer_token_env_var` or `env_http_headers`")]
    User,
    /// No name of a header.
    #[error("`{0}` is no name of an HTTP header")]
    HeaderName(String),
    /// A header that is ours.
    #[error("the header `{0}` is set by the protocol and cannot be configured")]
    Reserved(String),
    /// A value with characters that no header may have.
    #[error("the value of the header `{0}` has characters that a header cannot hold")]
    HeaderValue(String),
    /// The token has such characters.
    #[error("the bearer token has characters that a header cannot hold, or is empty")]
    Token,
    /// Two of them.
    #[error("it has both a bearer token and an `Authorization` header")]
    TwoTokens,
    /// Secrets in the clear.
    #[error("headers and tokens are not sent to `{0}` over plain `http`; use `https`")]
    Plain(String),
}

/// What proves to the server who we are.
#[derive(Clone)]
pub(super) enum Proof {
    /// Nothing, or a configured header.
    Nothing,
    /// A configured token.
    Fixed(Secret),
    /// The token of a login, if there is one.
    Login(Arc<dyn Credentials>),
}

/// A checked endpoint.
pub(super) struct Endpoint {
    pub(super) url: Url,
    /// Configured ones, marked as sensitive.
    pub(super) headers: HeaderMap,
    pub(super) proof: Proof,
}

impl Endpoint {
    /// Checks an endpoint.
    ///
    /// # Errors
    /// A [`BadEndpoint`].
    pub(super) fn check(given: &HttpEndpoint, login: Option<Arc<dyn Credentials>>) -> Result<Self, BadEndpoint> {
        let url = address(&given.url)?;
        let mut headers = HeaderMap::new();
        for (name, value) in &given.headers {
            let (name, value) = header(name, value)?;
            headers.append(name, value);
        }
        let configured = headers.contains_key(AUTHORIZATION);
        let proof = match (&given.bearer, login) {
            (Some(_), _) if configured => return Err(BadEndpoint::TwoTokens),
            (Some(token), _) => {
                bearer(token).filter(|_| !token.expose().is_empty()).ok_or(BadEndpoint::Token)?;
                Proof::Fixed(token.clone())
            }
            (None, Some(login)) if !configured => Proof::Login(login),
            (None, _) => Proof::Nothing,
        };
        if !is_private(&url) && (!headers.is_empty() || matches!(proof, Proof::Fixed(_))) {
            return Err(BadEndpoint::Plain(host(&url)));
        }
        Ok(Self { url, headers, proof })
    }

    /// Whether a token may be sent there.
    pub(super) fn is_private(&self) -> bool {
        is_private(&self.url)
    }
}

fn address(text: &str) -> Result<Url, BadEndpoint> {
    if text.len() > MAX_URL {
        return Err(BadEndpoint::Url(format!("it has more than {MAX_URL} bytes")));
    }
    let mut url = Url::parse(text).map_err(|error| BadEndpoint::Url(error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
        return Err(BadEndpoint::Scheme);
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(BadEndpoint::User);
    }
    url.set_fragment(None);
    Ok(url)
}

fn header(name: &str, value: &Secret) -> Result<(HeaderName, HeaderValue), BadEndpoint> {
    let shown = || text::shown(name, 64);
    let parsed: HeaderName = name.parse().map_err(|_| BadEndpoint::HeaderName(shown()))?;
    if OURS.contains(&parsed.as_str()) || parsed.as_str().starts_with("mcp-") {
        return Err(BadEndpoint::Reserved(shown()));
    }
    let mut value = HeaderValue::from_str(value.expose()).map_err(|_| BadEndpoint::HeaderValue(shown()))?;
    value.set_sensitive(true);
    Ok((parsed, value))
}

/// Returns the header value of a token; `None`: it has characters that no header may have.
pub(super) fn bearer(token: &Secret) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose())).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Returns the host of an address, for people.
pub(super) fn host(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let shown = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
    text::shown(&shown, 256)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(url: &str, headers: &[(&str, &str)], bearer: Option<&str>) -> HttpEndpoint {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), Secret::new(*value))).collect();
        HttpEndpoint { url: url.to_owned(), headers, bearer: bearer.map(Secret::new) }
    }

    fn why(given: &HttpEndpoint) -> String {
        let why = Endpoint::check(given, None).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(!why.contains("hush"), "{why}");
        why
    }

    #[test]
    fn an_address_with_a_password_and_what_is_no_address_are_refused_without_being_quoted() {
        assert!(why(&given("https://u:hush@example.test/", &[], None)).contains("user or a password"));
        assert!(why(&given("https://hush@example.test/", &[], None)).contains("user or a password"));
        assert!(why(&given("hush", &[], None)).contains("no address"));
        assert!(why(&given("file:///hush", &[], None)).contains("must begin with"));
        assert!(Endpoint::check(&given("https://example.test/mcp?x=1#y", &[], Some("t")), None).is_ok());
    }

    #[test]
    fn headers_of_the_protocol_cannot_be_configured() {
        for name in ["Accept", "content-type", "Host", "Content-Length", "Connection", "Mcp-Session-Id", "MCP-Param-X"]
        {
            assert!(why(&given("https://example.test/", &[(name, "hush")], None)).contains("set by the protocol"));
        }
        assert!(why(&given("https://example.test/", &[("a b", "hush")], None)).contains("no name"));
        assert!(why(&given("https://example.test/", &[("X-Key", "hush\n")], None)).contains("cannot hold"));
        assert!(why(&given("https://example.test/", &[("authorization", "hush")], Some("hush"))).contains("both"));
        assert!(why(&given("https://example.test/", &[], Some("hush\n"))).contains("bearer token"));
    }

    #[test]
    fn nothing_that_may_be_secret_goes_over_plain_http_to_another_machine() {
        assert!(why(&given("http://example.test/", &[("X-Key", "hush")], None)).contains("plain `http`"));
        assert!(why(&given("http://example.test/", &[], Some("hush"))).contains("plain `http`"));
        assert_eq!(why(&given("http://example.test/", &[], None)), "");
        for ours in ["http://127.0.0.1:1/", "http://[::1]/", "http://localhost/"] {
            assert_eq!(why(&given(ours, &[], Some("hush"))), "", "{ours}");
        }
        // A name that a resolver may ask the network for.
        for theirs in ["http://localhost.example.test/", "http://a.localhost/", "http://localhost./"] {
            assert!(why(&given(theirs, &[], Some("hush"))).contains("plain `http`"), "{theirs}");
        }
    }

    #[test]
    fn what_is_configured_is_marked_as_sensitive() {
        let endpoint =
            Endpoint::check(&given("https://example.test/", &[("X-Key", "hush")], Some("hush")), None).unwrap();
        let Proof::Fixed(token) = &endpoint.proof else { panic!("no token") };
        assert!(bearer(token).unwrap().is_sensitive());
        assert!(!format!("{:?}{:?}", endpoint.headers, bearer(token)).contains("hush"));
    }
}
