//! What an HTTP server's address and headers may be: the one rule, for a table as it is read and for what its variables made
//! of it.
//!
//! Whatever a table says literally is judged when it is read, so that the server is disabled with the reason; the rest when
//! it is connected. Holds and quotes no value of a header, and nothing of an address but its host.

use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use url::Url;

use super::parse::join;
use super::server_keys::ServerTable;
use crate::model::here::is_private;
use crate::model::text::shown;

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

/// Why an endpoint cannot be used. Holds no value of a header and nothing of an address but its host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadEndpoint {
    /// No address.
    #[error("its `url` is no address: {0}; write one like `https://host/path`")]
    Url(String),
    /// Neither `http` nor `https`.
    #[error("its `url` must begin with `https://` or `http://`")]
    Scheme,
    /// A password in an address ends up in logs.
    #[error("its `url` must not hold a user or a password; use `bearer_token_env_var` or `env_http_headers`")]
    User,
    /// No name of a header.
    #[error("`{0}` is no name of an HTTP header; use letters, digits and `-`")]
    HeaderName(String),
    /// A header that is ours.
    #[error("the header `{0}` is set by the protocol and cannot be configured; remove it")]
    Reserved(String),
    /// A value with characters that no header may have.
    #[error("the value of the header `{0}` has characters that a header cannot hold")]
    HeaderValue(String),
    /// The token has such characters.
    #[error("the bearer token has characters that a header cannot hold, or is empty")]
    Token,
    /// Two of them.
    #[error("it has both a bearer token and an `Authorization` header; remove one")]
    TwoTokens,
    /// Secrets in the clear.
    #[error("headers and tokens are not sent to `{0}` over plain `http`; use `https`")]
    Plain(String),
}

/// Parses the address of a server, without its fragment.
///
/// # Errors
/// [`BadEndpoint`]: too long, no address, another scheme, or it holds a user or a password.
pub fn address(text: &str) -> Result<Url, BadEndpoint> {
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

/// Parses the name of a header that goes with every request.
///
/// # Errors
/// [`BadEndpoint`]: it is no name, or the header is the protocol's own.
pub fn header_name(name: &str) -> Result<HeaderName, BadEndpoint> {
    let parsed: HeaderName = name.parse().map_err(|_| BadEndpoint::HeaderName(shown(name, 64)))?;
    if OURS.contains(&parsed.as_str()) || parsed.as_str().starts_with("mcp-") {
        return Err(BadEndpoint::Reserved(shown(name, 64)));
    }
    Ok(parsed)
}

/// Parses the value of a header, marked as sensitive.
///
/// # Errors
/// [`BadEndpoint`]: it has characters that no header may have. It is not quoted.
pub fn header_value(name: &HeaderName, value: &str) -> Result<HeaderValue, BadEndpoint> {
    let mut value = HeaderValue::from_str(value).map_err(|_| BadEndpoint::HeaderValue(shown(name.as_str(), 64)))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Whether what is configured may be sent to an address.
///
/// # Errors
/// [`BadEndpoint`]: it may be a secret, and anybody on its way could read it.
pub fn may_send(url: &Url, has_headers_or_token: bool) -> Result<(), BadEndpoint> {
    if has_headers_or_token && !is_private(url) { Err(BadEndpoint::Plain(host(url))) } else { Ok(()) }
}

/// Returns the host of an address, for people.
#[must_use]
pub fn host(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let text = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
    shown(&text, 256)
}

/// Returns what is wrong with what a table of an HTTP server says literally: key below the table, and message.
pub(super) fn faults(table: &ServerTable) -> Vec<(String, String)> {
    // Without a `url` it is no such server, and beside a `command` the keys are refused altogether.
    let (None, Some(url)) = (&table.command, &table.url) else { return Vec::new() };
    let mut faults: Vec<(String, BadEndpoint)> = Vec::new();
    let (mut headers, mut authorization) = (false, false);
    let fixed = table.http_headers.iter().flatten().map(|(name, value)| ("http_headers", name, value.literal()));
    let named = table.env_http_headers.iter().flatten().map(|(name, _)| ("env_http_headers", name, None));
    for (key, name, value) in fixed.chain(named) {
        headers = true;
        let checked = header_name(name).and_then(|name| {
            authorization |= name == AUTHORIZATION;
            value.map_or(Ok(()), |value| header_value(&name, &value).map(drop))
        });
        faults.extend(checked.err().map(|why| (join(key, name), why)));
    }
    let token = table.bearer_token_env_var.is_some();
    if token && authorization {
        faults.push(("bearer_token_env_var".to_owned(), BadEndpoint::TwoTokens));
    }
    if let Some(url) = url.literal() {
        let checked = address(&url).and_then(|url| may_send(&url, headers || token));
        faults.extend(checked.err().map(|why| ("url".to_owned(), why)));
    }
    faults.into_iter().map(|(key, why)| (key, why.to_string())).collect()
}
