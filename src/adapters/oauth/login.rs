//! A login: find the authorisation server, become a client of it, send the person there, change the code for tokens.
//!
//! The protocol is the library's (RFC 9728, 8414, OpenID discovery, 7591, 7636, 8707, 9207). Added here: PKCE with S256
//! must be announced, every endpoint must be https (or http within this machine) and belong to the issuer, the resource is the
//! configured one, each step ends in time, and errors are ours, since those of the library quote what the server sent.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rmcp::transport::auth::{
    AuthError, AuthorizationManager, AuthorizationMetadata, AuthorizationMetadataSource, OAuthClientConfig,
};
use tokio::time::{Instant, timeout, timeout_at};
use url::Url;

use super::callback::{Callback, Listener};
use super::http::{Failure, HttpError, Refusal, Talk};
use super::parties::Parties;
use super::record::{BadToken, Client, Issuer, Record, Tokens, client_secret, is_scope};
use super::store::StoreError;
use super::target::{Target, place};
use super::{Logins, files};
use crate::model::secret::Secret;
use crate::model::text::{seconds, shown};

/// How long finding the authorisation server and registering may take.
const PREPARE: Duration = Duration::from_secs(90);
/// How long changing the code for tokens may take.
const FINISH: Duration = Duration::from_secs(30);
/// Our name at the authorisation server, which shows it to the person.
const CLIENT_NAME: &str = "Portcullis";
/// The longest client id, in bytes.
const MAX_CLIENT_ID: usize = 2048;

/// Why a login came to nothing. No text holds a secret.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    /// The port for the browser's answer cannot be opened.
    #[error("no port on 127.0.0.1 can be opened for the browser to come back to")]
    Listen(#[source] std::io::Error),
    /// The server says nowhere who gives tokens for it.
    #[error("the server names no authorisation server and publishes no OAuth metadata: it may need no login")]
    NoMetadata,
    /// What it says cannot be had or used.
    #[error("the authorisation server cannot be found: {0}")]
    Discovery(String),
    /// An exchange failed.
    #[error("the authorisation server cannot be talked to")]
    Http(#[from] HttpError),
    /// Somebody speaks in another's name.
    #[error("the authorisation server says that it is `{received}`, where `{expected}` was asked")]
    Issuer {
        /// Who was asked.
        expected: String,
        /// Who answered.
        received: String,
    },
    /// An endpoint that would show what is sent to it.
    #[error("the `{key}` of the authorisation server, `{url}`, must be https (or http on this machine)")]
    Endpoint {
        /// Its key in the metadata.
        key: &'static str,
        /// The URL, without its query.
        url: String,
    },
    /// The person or the code would go to somebody else than the issuer.
    #[error(
        "the `{key}` of the authorisation server is at `{host}`, another origin than its issuer `{issuer}`, and it does \
         not promise to say who answers: a login could end up in other hands"
    )]
    Apart {
        /// The endpoint's key in the metadata.
        key: &'static str,
        /// Where it is.
        host: String,
        /// Whose it should be.
        issuer: String,
    },
    /// Not the one that the person named.
    #[error("the authorisation server is `{received}`, not `{expected}` as expected")]
    Unexpected {
        /// Whom the person named.
        expected: String,
        /// Who it is.
        received: String,
    },
    /// The browser came back from nobody knows whom.
    #[error("the browser's answer does not name its issuer, as `{0}` promised: it may be another's")]
    Nameless(String),
    /// A code that is overheard could be used by others.
    #[error("the authorisation server does not announce PKCE with S256, without which a code can be stolen")]
    NoPkce,
    /// There is no client.
    #[error("the authorisation server registers no clients by itself; register one there and set `oauth.client_id`")]
    NoRegistration,
    /// A scope that cannot be asked for.
    #[error("`{}` is no scope", shown(.0, 64))]
    Scope(String),
    /// A step was refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The tokens are of no use.
    #[error(transparent)]
    Token(#[from] BadToken),
    /// Something else that the library found.
    #[error("the {0} failed: the authorisation server's answer is not as it should be")]
    Answer(&'static str),
    /// Nobody came back.
    #[error("nobody came back from the browser within {}", seconds(*.0))]
    Expired(Duration),
    /// A step took too long.
    #[error("the {step} took more than {}", seconds(*.after))]
    Slow {
        /// Which.
        step: &'static str,
        /// How long it was waited for.
        after: Duration,
    },
    /// The login cannot be kept.
    #[error("the login cannot be kept")]
    Store(#[from] StoreError),
}

/// What a login brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Granted {
    /// Who gave the tokens.
    pub issuer: String,
    /// What they are for.
    pub resource: String,
    /// The scopes that were granted.
    pub scopes: Vec<String>,
    /// When the token ends; `None`: the server did not say.
    pub expires: Option<Timestamp>,
    /// Whether it is renewed without a person.
    pub renewable: bool,
}

/// A login that waits for a person.
pub struct Login {
    logins: Logins,
    target: Target,
    talk: Arc<Talk>,
    manager: AuthorizationManager,
    metadata: AuthorizationMetadata,
    parties: Parties,
    listener: Listener,
    client: Client,
    url: Url,
    state: String,
    resource: String,
    scopes: Vec<String>,
}

impl Login {
    /// Finds the authorisation server and becomes its client. `scopes`: instead of those of the configuration. `issuer`: the
    /// one that the person expects; then its endpoints may be of other hosts.
    ///
    /// # Errors
    /// [`LoginError`].
    pub async fn begin(
        logins: &Logins,
        target: &Target,
        scopes: &[String],
        issuer: Option<&Url>,
    ) -> Result<Self, LoginError> {
        let slow = |_| LoginError::Slow { step: "search for the authorisation server", after: PREPARE };
        timeout(PREPARE, Box::pin(Self::prepare(logins, target, scopes, issuer))).await.map_err(slow)?
    }

    async fn prepare(
        logins: &Logins,
        target: &Target,
        scopes: &[String],
        issuer: Option<&Url>,
    ) -> Result<Self, LoginError> {
        let listener = Listener::open().await.map_err(LoginError::Listen)?;
        let talk = Talk::new(&logins.http, target.is_local());
        const SEARCH: &str = "search for the authorisation server";
        let mut manager = AuthorizationManager::new_with_oauth_http_client(target.url.clone(), Arc::clone(&talk) as _)
            .await
            .map_err(|error| told(error, SEARCH))?;
        let found = manager.resolve_metadata().await.map_err(|error| told(error, SEARCH))?;
        if found.source == AuthorizationMetadataSource::LegacyEndpointFallback {
            return Err(LoginError::NoMetadata);
        }
        let metadata = found.metadata;
        let parties = check(&metadata, &talk, issuer)?;
        manager.set_metadata(metadata.clone());
        let scopes = match (scopes, &target.scopes) {
            ([], Some(configured)) => configured.clone(),
            ([], None) => manager.select_initial_scopes(&[]).await,
            (wanted, _) => wanted.to_vec(),
        };
        if let Some(bad) = scopes.iter().find(|scope| !is_scope(scope)) {
            return Err(LoginError::Scope(bad.clone()));
        }
        let asked: Vec<&str> = scopes.iter().map(String::as_str).collect();
        let client = client(&mut manager, &metadata, &talk, target, listener.redirect_uri(), &asked).await?;
        let url = manager.get_authorization_url(&asked).await.map_err(|error| told(error, "request"))?;
        let mut url = Url::parse(&url).map_err(|_| LoginError::Answer("request"))?;
        let state = param(&url, "state").ok_or(LoginError::Answer("request"))?;
        let resource = resource(target, param(&url, "resource"));
        set_param(&mut url, "resource", &resource);
        talk.set_resource(&resource);
        let (logins, target) = (logins.clone(), target.clone());
        Ok(Self { logins, target, talk, manager, metadata, parties, listener, client, url, state, resource, scopes })
    }

    /// Returns where the person has to go. Holds the state and the challenge, which are no secrets from this user.
    #[must_use]
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Returns who takes part. A person is told before they go there.
    #[must_use]
    pub fn parties(&self) -> &Parties {
        &self.parties
    }

    /// Waits until the browser comes back, at most `patience`, and keeps the tokens.
    ///
    /// # Errors
    /// [`LoginError`].
    pub async fn finish(self, patience: Duration) -> Result<Granted, LoginError> {
        let deadline = Instant::now() + patience;
        let answered = timeout_at(deadline, self.listener.wait(&self.state)).await;
        let (code, issuer) = match answered.map_err(|_| LoginError::Expired(patience))? {
            Callback::Code { code, issuer } => (code, issuer),
            Callback::Refused(refusal) => return Err(refusal.into()),
        };
        let exchange = exchange(&self.manager, &self.talk, &code, &self.state, issuer.as_deref());
        let slow = |_| LoginError::Slow { step: "exchange of the code", after: FINISH };
        let answer = timeout(FINISH, exchange).await.map_err(slow)??;
        let tokens = Tokens::parse(answer, &self.scopes, self.logins.clock.now())?;
        let issuer = issuer_of(&self.metadata);
        let granted = Granted {
            issuer: shown(&issuer.issuer, 200),
            resource: shown(&self.resource, 200),
            scopes: tokens.scopes.clone(),
            expires: tokens.expires,
            renewable: tokens.refresh.is_some(),
        };
        let record = Record::new(&self.target, self.resource, self.client, issuer, tokens);
        let slot = self.logins.slot(&self.target);
        let held = slot.lock().await?;
        files(move || slot.write(&record, &held)).await?;
        Ok(granted)
    }
}

/// Changes the code for tokens; the answer as JSON.
async fn exchange(
    manager: &AuthorizationManager,
    talk: &Talk,
    code: &Secret,
    state: &str,
    issuer: Option<&str>,
) -> Result<serde_json::Value, LoginError> {
    let answer = manager.exchange_code_for_token_with_issuer(code.expose(), state, issuer).await;
    let answer = answer.map_err(|error| match error {
        AuthError::AuthorizationServerMissingIssuer { expected_issuer } => {
            LoginError::Nameless(shown(&expected_issuer, 200))
        }
        error => failed(talk, error, "exchange of the code"),
    })?;
    serde_json::to_value(&answer).map_err(|_| LoginError::Answer("exchange of the code"))
}

/// Becomes a client: the configured one, else a new one (RFC 7591).
async fn client(
    manager: &mut AuthorizationManager,
    metadata: &AuthorizationMetadata,
    talk: &Talk,
    target: &Target,
    redirect_uri: &str,
    scopes: &[&str],
) -> Result<Client, LoginError> {
    const STEP: &str = "registration of a client";
    if let Some(id) = &target.client_id {
        let config = OAuthClientConfig::new(id, redirect_uri);
        manager.configure_client(config).map_err(|error| told(error, "request"))?;
        return Ok(Client { id: id.clone(), secret: None });
    }
    if metadata.registration_endpoint.is_none() {
        return Err(LoginError::NoRegistration);
    }
    let registered = manager.register_client(CLIENT_NAME, redirect_uri, scopes).await;
    let config = registered.map_err(|error| failed(talk, error, STEP))?;
    if config.client_id.is_empty() || config.client_id.len() > MAX_CLIENT_ID {
        return Err(LoginError::Answer(STEP));
    }
    Ok(Client { id: config.client_id, secret: config.client_secret.map(client_secret).transpose()? })
}

/// What must hold of metadata before anything is sent on its word.
fn check(metadata: &AuthorizationMetadata, talk: &Talk, expected: Option<&Url>) -> Result<Parties, LoginError> {
    let texts = [
        ("authorization_endpoint", Some(metadata.authorization_endpoint.as_str())),
        ("token_endpoint", Some(metadata.token_endpoint.as_str())),
        ("registration_endpoint", metadata.registration_endpoint.as_deref()),
        ("revocation_endpoint", text(metadata, "revocation_endpoint")),
    ];
    let mut endpoints = Vec::new();
    for (key, text) in texts.into_iter().filter_map(|(key, text)| text.map(|text| (key, text))) {
        match Url::parse(text) {
            Ok(url) if talk.allows(&url) => endpoints.push((key, url)),
            Ok(url) => return Err(LoginError::Endpoint { key, url: place(&url) }),
            Err(_) => return Err(LoginError::Endpoint { key, url: "no URL".to_owned() }),
        }
    }
    let parties = Parties::of(metadata, &endpoints, expected)?;
    let methods = metadata.code_challenge_methods_supported.as_deref().unwrap_or_default();
    if methods.iter().any(|method| method == "S256") { Ok(parties) } else { Err(LoginError::NoPkce) }
}

fn issuer_of(metadata: &AuthorizationMetadata) -> Issuer {
    let methods = metadata.additional_fields.get("token_endpoint_auth_methods_supported");
    let takes = |name: &str| {
        methods.and_then(serde_json::Value::as_array).is_some_and(|all| all.iter().any(|method| method == name))
    };
    Issuer {
        issuer: metadata.issuer.clone().unwrap_or_default(),
        token_endpoint: metadata.token_endpoint.clone(),
        revocation_endpoint: text(metadata, "revocation_endpoint").map(str::to_owned),
        secret_in_body: takes("client_secret_post") && !takes("client_secret_basic"),
    }
}

fn text<'a>(metadata: &'a AuthorizationMetadata, key: &str) -> Option<&'a str> {
    metadata.additional_fields.get(key).and_then(serde_json::Value::as_str)
}

/// RFC 8707: the configured resource, else the one that the server names, else its URL, whose query is nobody's business.
fn resource(target: &Target, named: Option<String>) -> String {
    if let Some(configured) = &target.resource {
        return configured.clone();
    }
    let named = named.filter(|named| *named != target.url.as_str() && !named.is_empty());
    named.unwrap_or_else(|| {
        let mut url = target.url.clone();
        url.set_query(None);
        url.to_string()
    })
}

fn param(url: &Url, name: &str) -> Option<String> {
    url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
}

fn set_param(url: &mut Url, name: &str, value: &str) {
    let others: Vec<(String, String)> = url.query_pairs().into_owned().filter(|(key, _)| key != name).collect();
    url.query_pairs_mut().clear().extend_pairs(others).append_pair(name, value);
}

/// How a request with a body failed: by what was seen of it, else by what the library says.
fn failed(talk: &Talk, error: AuthError, step: &'static str) -> LoginError {
    match talk.failure() {
        Some(Failure::Refused(refusal)) => refusal.into(),
        Some(Failure::Http(error)) => error.into(),
        None => told(error, step),
    }
}

/// Our word for an error of the library, whose own text may quote an answer.
fn told(error: AuthError, step: &'static str) -> LoginError {
    match error {
        AuthError::DiscoveryRequestFailed { url, source } => match source.downcast::<HttpError>() {
            Ok(error) => LoginError::Http(*error),
            Err(_) => LoginError::Discovery(format!("`{}` answers with an error or leads elsewhere", place(&url))),
        },
        AuthError::AuthorizationServerMismatch { expected_issuer, received_issuer } => {
            LoginError::Issuer { expected: shown(&expected_issuer, 200), received: shown(&received_issuer, 200) }
        }
        AuthError::AuthorizationServerMissingIssuer { expected_issuer } => {
            LoginError::Discovery(format!("the metadata of `{}` names no issuer", shown(&expected_issuer, 200)))
        }
        AuthError::AuthorizationServersUnavailable { authorization_servers, .. } => {
            let named = shown(&authorization_servers.join(", "), 200);
            LoginError::Discovery(format!("the server names `{named}`, which publishes no usable metadata"))
        }
        AuthError::ProtectedResourceMetadataInvalid { url, .. } => {
            LoginError::Discovery(format!("`{}` is not the metadata of this server", place(&url)))
        }
        AuthError::PkceUnsupported => LoginError::NoPkce,
        _ => LoginError::Answer(step),
    }
}
