//! One HTTP request: its token, its redirects, and what became of it.
//!
//! A redirect is followed within the same origin only, and only if it keeps the message (307, 308). A token that the server
//! refuses is asked for once more: a request that was answered with 401 was not carried out. Every failure says whether the
//! server may have got the request, and names an origin, never a whole address.

use std::error::Error;
use std::sync::{Arc, Once};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, HeaderMap, LOCATION, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Method, StatusCode};
use reqwest::redirect::Policy;
use url::Url;

use super::endpoint::{Endpoint, Proof, bearer};
use crate::adapters::mcp::traffic::Counter;
use crate::adapters::mcp::upstream_side::RawAnswer;
use crate::config::endpoint::host;
use crate::model::here::is_loopback;
use crate::model::name::ServerName;
use crate::model::secret::Secret;
use crate::model::text;

/// How long a connection may take to be made, TLS included.
const CONNECT: Duration = Duration::from_secs(10);
/// How long an idle connection is kept: less than the five seconds after which common servers close theirs, because a
/// request on a connection that is being closed may have been carried out or not.
const IDLE: Duration = Duration::from_secs(4);
/// How many redirects of one request are followed.
const MAX_REDIRECTS: usize = 3;
/// The longest text of a failure, in characters.
const MAX_WHY: usize = 300;
/// How errors begin that say nothing by themselves.
const WRAPPERS: [&str; 4] =
    ["error sending request", "client error (", "builder error", "error decoding response body"];
/// The longest pause that is worth telling, in seconds.
const MAX_PAUSE: u64 = 3600;

/// Why there is no usable answer. The texts hold no secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// The server cannot have carried it out.
    NotSent(String),
    /// The server may have.
    Lost(String),
    /// It answered, but not with what the protocol says.
    Unusable(String),
}

impl Failure {
    pub(super) fn why(&self) -> &str {
        match self {
            Self::NotSent(why) | Self::Lost(why) | Self::Unusable(why) => why,
        }
    }
}

impl From<Failure> for RawAnswer {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotSent(why) => Self::NotSent(why),
            Failure::Lost(why) => Self::Lost(why),
            Failure::Unusable(why) => Self::Unusable(why),
        }
    }
}

/// Makes requests to one endpoint.
pub(super) struct HttpClient {
    server: ServerName,
    client: reqwest::Client,
    endpoint: Endpoint,
    /// Counts the bytes of bodies.
    traffic: Arc<Counter>,
}

impl HttpClient {
    /// Builds a client. Blocks while the roots of trust are read.
    ///
    /// # Errors
    /// Why there is none, for people.
    pub(super) fn build(server: ServerName, endpoint: Endpoint, traffic: Arc<Counter>) -> Result<Self, String> {
        install_ring();
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("portcullis/", env!("CARGO_PKG_VERSION")))
            .redirect(Policy::none())
            .referer(false)
            .connect_timeout(CONNECT)
            .pool_idle_timeout(IDLE);
        if is_loopback(&endpoint.url) {
            builder = builder.no_proxy();
        }
        if endpoint.url.scheme() == "http" {
            // No roots are needed, and there may be none on this machine.
            builder = builder.tls_certs_only([]);
        }
        let client = builder.build().map_err(|error| format!("no HTTP client: {}", causes(error)))?;
        Ok(Self { server, client, endpoint, traffic })
    }

    /// Notes that so many bytes came.
    pub(super) fn received(&self, bytes: usize) {
        self.traffic.received(bytes);
    }

    /// Makes a request and returns the response as soon as its headers are there.
    ///
    /// # Errors
    /// A [`Failure`]: nobody answered, or with a redirect or a refusal of who we are.
    pub(super) async fn send(
        &self,
        method: &Method,
        headers: &HeaderMap,
        body: Option<&Bytes>,
    ) -> Result<reqwest::Response, Failure> {
        let token = self.token().await?;
        let response = self.follow(method, headers, body, token.as_ref()).await?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return self.unless_forbidden(response);
        }
        let challenge = response.headers().get(WWW_AUTHENTICATE).and_then(|value| value.to_str().ok());
        let other = self.other_token(token.as_ref(), challenge).await?;
        let response = self.follow(method, headers, body, Some(&other)).await?;
        if response.status() == StatusCode::UNAUTHORIZED {
            return Err(self.wants_login());
        }
        self.unless_forbidden(response)
    }

    async fn token(&self) -> Result<Option<Secret>, Failure> {
        match &self.endpoint.proof {
            Proof::Nothing => Ok(None),
            Proof::Fixed(token) => Ok(Some(token.clone())),
            Proof::Login(login) => {
                let token = login.bearer().await.map_err(|error| Failure::NotSent(error.to_string()))?;
                if token.is_some() && !self.endpoint.is_private() {
                    let host = host(&self.endpoint.url);
                    return Err(Failure::NotSent(format!(
                        "a token is not sent to `{host}` over plain `http`; use `https`"
                    )));
                }
                Ok(token)
            }
        }
    }

    /// Returns another token than the refused one.
    async fn other_token(&self, refused: Option<&Secret>, challenge: Option<&str>) -> Result<Secret, Failure> {
        match (&self.endpoint.proof, refused) {
            (Proof::Login(login), Some(refused)) => {
                let other = login.rejected(refused, challenge).await;
                other.map_err(|error| Failure::NotSent(error.to_string()))?.ok_or_else(|| self.wants_login())
            }
            (Proof::Fixed(_), _) => Err(Failure::NotSent("the server refused the configured bearer token".to_owned())),
            (Proof::Nothing, _) if self.endpoint.headers.contains_key(AUTHORIZATION) => {
                Err(Failure::NotSent("the server refused the configured `Authorization` header".to_owned()))
            }
            (Proof::Login(_) | Proof::Nothing, _) => Err(self.wants_login()),
        }
    }

    fn wants_login(&self) -> Failure {
        Failure::NotSent(format!("the server wants a login: run `portcullis login {}`", self.server))
    }

    fn unless_forbidden(&self, response: reqwest::Response) -> Result<reqwest::Response, Failure> {
        if response.status() != StatusCode::FORBIDDEN {
            return Ok(response);
        }
        let challenge = response.headers().get(WWW_AUTHENTICATE).and_then(|value| value.to_str().ok());
        match challenge.filter(|challenge| challenge.contains("insufficient_scope")) {
            None => Ok(response),
            Some(challenge) => {
                let scope = parameter(challenge, "scope").map(|scope| text::shown(scope, 200));
                let wants = scope.map_or_else(|| "more rights".to_owned(), |scope| format!("the scope `{scope}`"));
                Err(Failure::NotSent(format!("the server wants {wants}, which the token for `{}` lacks", self.server)))
            }
        }
    }

    async fn follow(
        &self,
        method: &Method,
        headers: &HeaderMap,
        body: Option<&Bytes>,
        token: Option<&Secret>,
    ) -> Result<reqwest::Response, Failure> {
        let mut url = self.endpoint.url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let response = self.once(&url, method, headers, body, token).await?;
            if !response.status().is_redirection() {
                return Ok(response);
            }
            url = redirected(&url, &response)?;
        }
        Err(Failure::NotSent(format!("the server redirects more than {MAX_REDIRECTS} times")))
    }

    async fn once(
        &self,
        url: &Url,
        method: &Method,
        headers: &HeaderMap,
        body: Option<&Bytes>,
        token: Option<&Secret>,
    ) -> Result<reqwest::Response, Failure> {
        let mut request = self.client.request(method.clone(), url.clone()).headers(self.endpoint.headers.clone());
        if let Some(token) = token {
            let value = bearer(token)
                .ok_or_else(|| Failure::NotSent("the token has characters that a header cannot hold".to_owned()))?;
            request = request.header(AUTHORIZATION, value);
        }
        request = request.headers(headers.clone());
        if let Some(body) = body {
            self.traffic.sent(body.len());
            request = request.body(body.clone());
        }
        request.send().await.map_err(|error| {
            let (connecting, host) = (error.is_connect() || error.is_builder(), host(url));
            let why = text::shown(&causes(error), MAX_WHY);
            if connecting {
                Failure::NotSent(format!("cannot connect to `{host}`: {why}"))
            } else {
                Failure::Lost(format!("the connection to `{host}` was lost: {why}"))
            }
        })
    }
}

/// Returns where a redirect within the same origin leads.
fn redirected(from: &Url, response: &reqwest::Response) -> Result<Url, Failure> {
    let status = response.status();
    let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
    let to = location.and_then(|location| from.join(location).ok());
    if !matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT) {
        return Err(Failure::Unusable(format!(
            "the server answered {status}: such a redirect does not carry a message; configure the address that it leads to"
        )));
    }
    let Some(to) = to else {
        return Err(Failure::NotSent(format!("the server answered {status} and names no address")));
    };
    if to.origin() != from.origin() {
        return Err(Failure::NotSent(format!(
            "the server redirects to `{}`, another origin, which is not followed",
            host(&to)
        )));
    }
    if !to.username().is_empty() || to.password().is_some() {
        return Err(Failure::NotSent("the server redirects to an address with a user or a password".to_owned()));
    }
    Ok(to)
}

/// Says what went wrong, without the address.
pub(super) fn causes(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut said: Vec<String> = Vec::new();
    let mut cause: Option<&(dyn Error + 'static)> = Some(&error);
    while let Some(error) = cause {
        // The causes of this one are a dump of its fields, and the layers above say nothing more.
        if let Some(rustls::Error::InvalidCertificate(why)) = error.downcast_ref() {
            return certificate(why);
        }
        let text = error.to_string();
        // Wrappers say that there was a request, or repeat what they wrap.
        let wraps = error.source().is_some() && WRAPPERS.iter().any(|wrapper| text.starts_with(wrapper));
        if !wraps && !said.iter().any(|said| said.contains(&text)) {
            said.push(text);
        }
        cause = error.source();
    }
    said.join(": ")
}

/// Says why a certificate is not trusted, and what can be done about it.
fn certificate(why: &rustls::CertificateError) -> String {
    use rustls::CertificateError as Why;

    let advice = "add its authority to the roots of the system, or name it with `SSL_CERT_FILE`";
    match why {
        Why::Expired | Why::ExpiredContext { .. } => "the certificate of the server has expired".to_owned(),
        Why::NotValidYet | Why::NotValidYetContext { .. } => {
            "the certificate of the server is not valid yet; is the clock of this machine right?".to_owned()
        }
        Why::Revoked => "the certificate of the server was revoked".to_owned(),
        Why::NotValidForName | Why::NotValidForNameContext { .. } => {
            "the certificate of the server is for another name than that of the `url`".to_owned()
        }
        Why::UnknownIssuer => format!("the certificate of the server is of an authority that is not trusted; {advice}"),
        _ => format!("the certificate of the server does not verify; {advice}"),
    }
}

/// Returns a parameter of a challenge.
fn parameter<'a>(challenge: &'a str, name: &str) -> Option<&'a str> {
    let at = challenge.match_indices(name).map(|(at, _)| at).find(|at| {
        let before = challenge.get(..*at).and_then(|text| text.chars().next_back());
        before.is_none_or(|c| matches!(c, ' ' | ',' | '\t'))
            && challenge.get(at + name.len()..).is_some_and(|rest| rest.starts_with('='))
    })?;
    let value = challenge.get(at + name.len() + 1..)?;
    match value.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next(),
        None => value.split([',', ' ', ';']).next(),
    }
}

/// Says what a status means, and when to try again where the server tells.
pub(super) fn status_text(status: StatusCode, headers: &HeaderMap) -> String {
    let busy = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    let pause =
        headers.get(RETRY_AFTER).map(HeaderValue::to_str).and_then(|text| text.ok()?.trim().parse::<u64>().ok());
    match pause.filter(|pause| busy && *pause <= MAX_PAUSE) {
        Some(pause) => format!("{status} (try again in {pause} s)"),
        None => status.to_string(),
    }
}

fn install_ring() {
    static ONCE: Once = Once::new();
    // Whoever embeds this may have installed a provider of their own.
    ONCE.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scope_of_a_challenge_is_found() {
        let challenge = r#"Bearer error="insufficient_scope", scope="files:read files:write", x_scope="no""#;
        assert_eq!(parameter(challenge, "scope"), Some("files:read files:write"));
        assert_eq!(parameter("Bearer x_scope=no, scope=a", "scope"), Some("a"));
        assert_eq!(parameter("Bearer error=x", "scope"), None);
    }

    #[test]
    fn only_a_short_pause_of_a_busy_server_is_told() {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, HeaderValue::from_static("7"));
        assert!(status_text(StatusCode::TOO_MANY_REQUESTS, &headers).contains("in 7 s"));
        assert!(!status_text(StatusCode::NOT_FOUND, &headers).contains("7 s"));
        headers.insert(RETRY_AFTER, HeaderValue::from_static("99999"));
        assert!(!status_text(StatusCode::SERVICE_UNAVAILABLE, &headers).contains("99999"));
    }
}
