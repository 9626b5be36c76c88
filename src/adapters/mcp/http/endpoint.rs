//! Where a server is and what goes with every request to it, checked once when it is connected.
//!
//! What an address and headers may be is the configuration's rule; here it meets what the variables made of them. Header
//! values may be secrets: they are marked so, and no text here holds one.

use std::sync::Arc;

use http::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use url::Url;

use crate::config::endpoint::{BadEndpoint, address, header_name, header_value, may_send};
use crate::model::here::is_private;
use crate::model::secret::Secret;
use crate::ports::credentials::Credentials;

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
            let name = header_name(name)?;
            let value = header_value(&name, value.expose())?;
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
        may_send(&url, !headers.is_empty() || matches!(proof, Proof::Fixed(_)))?;
        Ok(Self { url, headers, proof })
    }

    /// Whether a token may be sent there.
    pub(super) fn is_private(&self) -> bool {
        is_private(&self.url)
    }
}

/// Returns the header value of a token; `None`: it has characters that no header may have.
pub(super) fn bearer(token: &Secret) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose())).ok()?;
    value.set_sensitive(true);
    Some(value)
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
