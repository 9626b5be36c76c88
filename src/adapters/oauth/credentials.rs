//! Tokens for a transport: read, and renewed when they end or are rejected.
//!
//! One renewal for all that wait: within this process by a gate whose outcome the waiting share, across processes by the
//! lock of the file, after which the file is read again. A renewal runs to its end even if whoever asked for it goes away,
//! because the authorisation server may already have replaced the refresh token.

use std::sync::Arc;

use async_trait::async_trait;
use rmcp::transport::auth::{
    AuthError, AuthorizationManager, AuthorizationMetadata, CredentialStore as _, InMemoryCredentialStore,
    OAuthClientConfig, OAuthTokenResponse, StoredCredentials, WWWAuthenticateParams,
};
use serde_json::json;
use tokio::sync::Mutex;

use super::http::{Failure, Talk};
use super::record::{Record, Tokens, is_scope};
use super::store::{Lock, Slot, StoreError};
use super::target::Target;
use super::{Logins, files};
use crate::config::open::explained;
use crate::model::secret::Secret;
use crate::ports::credentials::{Credentials, NoCredential};

/// A redirect that is never used: the library wants one for every client.
const NO_REDIRECT: &str = "http://127.0.0.1/callback";
/// What an authorisation server says when only a person can help.
const FINAL: [&str; 3] = ["invalid_grant", "invalid_client", "unauthorized_client"];

/// The tokens of one server. Clones share one gate.
#[derive(Clone)]
pub struct OauthCredentials(Arc<Inner>);

struct Inner {
    logins: Logins,
    target: Target,
    slot: Slot,
    renewals: Mutex<Renewals>,
    /// How many renewals have ended, readable while one is under way.
    ended: std::sync::atomic::AtomicU64,
}

/// What became of the last renewal.
#[derive(Default)]
struct Renewals {
    last: Option<Result<(), NoCredential>>,
}

impl OauthCredentials {
    /// The tokens of a server.
    #[must_use]
    pub fn new(logins: Logins, target: Target) -> Self {
        let (slot, renewals) = (logins.slot(&target), Mutex::default());
        Self(Arc::new(Inner { logins, target, slot, renewals, ended: 0.into() }))
    }

    /// Renews unless the stored token is another one than `old` and fresh. Runs to its end by itself.
    async fn renewed(&self, old: &Secret) -> Result<Option<Secret>, NoCredential> {
        let (inner, old) = (Arc::clone(&self.0), old.clone());
        let before = inner.ended();
        let renewal = tokio::spawn(async move { inner.renew(&old, before).await });
        renewal.await.unwrap_or_else(|_| Err(self.0.unavailable("the renewal was broken off")))
    }
}

#[async_trait]
impl Credentials for OauthCredentials {
    async fn bearer(&self) -> Result<Option<Secret>, NoCredential> {
        match self.0.read().await? {
            None => Ok(None),
            Some(record) if self.0.is_fresh(&record) => Ok(Some(record.tokens.access)),
            Some(record) => self.renewed(&record.tokens.access).await,
        }
    }

    /// Renews nothing: whoever asks may not use the token.
    async fn are_there(&self) -> bool {
        !matches!(self.0.read().await, Ok(None))
    }

    async fn rejected(&self, token: &Secret, challenge: Option<&str>) -> Result<Option<Secret>, NoCredential> {
        let challenge = challenge.map(|text| WWWAuthenticateParams::parse(text, &self.0.target.url));
        if let Some(challenge) = challenge.filter(WWWAuthenticateParams::is_insufficient_scope) {
            let scopes = challenge.scope.unwrap_or_default();
            let scopes: Vec<&str> = scopes.split_whitespace().filter(|scope| is_scope(scope)).take(16).collect();
            return Err(self.0.login_needed(format!("the server wants the scopes `{}`", scopes.join(" "))));
        }
        self.renewed(token).await
    }
}

impl Inner {
    fn ended(&self) -> u64 {
        self.ended.load(std::sync::atomic::Ordering::Acquire)
    }

    fn is_fresh(&self, record: &Record) -> bool {
        record.tokens.is_fresh(self.logins.clock.now())
    }

    fn unavailable(&self, why: impl Into<String>) -> NoCredential {
        NoCredential::Unavailable { server: self.target.server.clone(), why: why.into() }
    }

    fn login_needed(&self, why: impl Into<String>) -> NoCredential {
        NoCredential::LoginNeeded { server: self.target.server.clone(), why: why.into() }
    }

    fn stored(&self, error: &StoreError) -> NoCredential {
        match error {
            StoreError::Damaged { .. } => self.login_needed("what is kept of the login is damaged"),
            other => self.unavailable(explained(other)),
        }
    }

    /// Reads what is kept; a login for something else is none.
    async fn read(&self) -> Result<Option<Record>, NoCredential> {
        let slot = self.slot.clone();
        let record = files(move || slot.read()).await.map_err(|error| self.stored(&error))?;
        if let Some(record) = &record {
            record.fits(&self.target).map_err(|why| self.login_needed(why))?;
        }
        Ok(record)
    }

    /// `before`: how many renewals had ended when the token was found wanting.
    async fn renew(&self, old: &Secret, before: u64) -> Result<Option<Secret>, NoCredential> {
        let mut renewals = self.renewals.lock().await;
        // One that failed while this one waited would fail again; if it went well, the file says so.
        if self.ended() > before
            && let Some(Err(error)) = &renewals.last
        {
            return Err(error.clone());
        }
        let outcome = self.renew_alone(old).await;
        renewals.last = Some(outcome.as_ref().map(|_| ()).map_err(Clone::clone));
        self.ended.fetch_add(1, std::sync::atomic::Ordering::Release);
        outcome
    }

    async fn renew_alone(&self, old: &Secret) -> Result<Option<Secret>, NoCredential> {
        let held = self.slot.lock().await.map_err(|error| self.stored(&error))?;
        let Some(mut record) = self.read().await? else { return Ok(None) };
        if record.tokens.access != *old && self.is_fresh(&record) {
            return Ok(Some(record.tokens.access));
        }
        let Some(refresh) = record.tokens.refresh.clone() else {
            return Err(self.login_needed("the token has ended and cannot be renewed"));
        };
        let tokens = match self.ask(&record, &refresh).await {
            Ok(tokens) => tokens,
            Err(Refused::ForEver(why)) => {
                // Nobody else has to try this token.
                record.tokens.refresh = None;
                self.keep(record, held).await?;
                return Err(self.login_needed(why));
            }
            Err(Refused::Final(why)) => return Err(self.login_needed(why)),
            Err(Refused::ForNow(why)) => return Err(self.unavailable(why)),
        };
        // A server that replaces nothing leaves the old one in force (RFC 6749, 6).
        record.tokens = Tokens { refresh: tokens.refresh.or(Some(refresh)), ..tokens };
        let access = record.tokens.access.clone();
        self.keep(record, held).await?;
        tracing::debug!(server = %self.target.server, "the token is renewed");
        Ok(Some(access))
    }

    async fn keep(&self, record: Record, held: Lock) -> Result<(), NoCredential> {
        let slot = self.slot.clone();
        files(move || slot.write(&record, &held)).await.map_err(|error| self.stored(&error))
    }

    /// Asks for new tokens.
    async fn ask(&self, record: &Record, refresh: &Secret) -> Result<Tokens, Refused> {
        let talk = Talk::new(&self.logins.http, self.target.is_local());
        talk.set_resource(&record.resource);
        let renewed = async {
            let url = self.target.url.clone();
            let mut manager = AuthorizationManager::new_with_oauth_http_client(url, Arc::clone(&talk) as _).await?;
            manager.set_metadata(metadata(record));
            let config = OAuthClientConfig::new(&record.client.id, NO_REDIRECT);
            manager.configure_client(match &record.client.secret {
                Some(secret) => config.with_client_secret(secret.expose()),
                None => config,
            })?;
            // The library's store is only the way in: what is kept is written here, with what it is bound to.
            let store = InMemoryCredentialStore::new();
            store.save(credentials(record, refresh)?).await?;
            manager.set_credential_store(store);
            manager.refresh_token().await
        };
        let answer = Box::pin(renewed).await.map_err(|error| match (talk.failure(), error) {
            (Some(Failure::Refused(refusal)), AuthError::TokenRefreshRejected(_)) => {
                Refused::ForEver(refusal.to_string())
            }
            (Some(Failure::Refused(refusal)), _) if FINAL.contains(&&*refusal.code) => {
                Refused::Final(refusal.to_string())
            }
            (Some(Failure::Refused(refusal)), _) => Refused::ForNow(refusal.to_string()),
            (Some(Failure::Http(error)), _) => Refused::ForNow(error.to_string()),
            (None, _) => Refused::ForNow("the answer of the authorisation server is of no use".to_owned()),
        })?;
        let answer = serde_json::to_value(&answer).unwrap_or_default();
        Tokens::parse(answer, &record.tokens.scopes, self.logins.clock.now())
            .map_err(|error| Refused::ForNow(error.to_string()))
    }
}

/// Why there are no new tokens.
enum Refused {
    /// The refresh token is dead.
    ForEver(String),
    /// Only a new login helps.
    Final(String),
    /// It may work later.
    ForNow(String),
}

fn metadata(record: &Record) -> AuthorizationMetadata {
    let mut metadata = AuthorizationMetadata::default();
    metadata.token_endpoint.clone_from(&record.issuer.token_endpoint);
    // Not used to renew; the library parses it.
    metadata.authorization_endpoint.clone_from(&record.issuer.token_endpoint);
    metadata.issuer = Some(record.issuer.issuer.clone());
    let method = if record.issuer.secret_in_body { "client_secret_post" } else { "client_secret_basic" };
    metadata.additional_fields.insert("token_endpoint_auth_methods_supported".to_owned(), json!([method]));
    metadata
}

fn credentials(record: &Record, refresh: &Secret) -> Result<StoredCredentials, AuthError> {
    let tokens = json!({
        "access_token": record.tokens.access.expose(), "token_type": "bearer", "refresh_token": refresh.expose(),
    });
    let tokens: OAuthTokenResponse = serde_json::from_value(tokens)
        .map_err(|_| AuthError::InternalError("the stored tokens have no form".to_owned()))?;
    Ok(StoredCredentials::new(record.client.id.clone(), Some(tokens), record.tokens.scopes.clone(), None))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::super::http::Http;
    use super::super::record::{Client, Issuer};
    use super::*;
    use crate::model::caller::Caller;
    use crate::model::name::ServerName;
    use crate::model::tool::ServerIdentity;
    use crate::ports::clock::Clock;

    struct Now;

    impl Clock for Now {
        fn now(&self) -> Timestamp {
            Timestamp::UNIX_EPOCH
        }
    }

    /// A client that fails before anything is sent: what is tested here is who asks.
    fn broken() -> reqwest::ClientBuilder {
        let _ = rustls::crypto::ring::default_provider().install_default();
        reqwest::Client::builder().local_address(std::net::IpAddr::from([192, 0, 2, 1]))
    }

    fn record(target: &Target, access: &str, life: u64) -> Record {
        let answer =
            json!({ "access_token": access, "token_type": "bearer", "expires_in": life, "refresh_token": "r" });
        let tokens = Tokens::parse(answer, &[], Timestamp::UNIX_EPOCH).unwrap();
        let token_endpoint = "http://127.0.0.1:9/token".to_owned();
        let issuer = Issuer { issuer: "i".into(), token_endpoint, revocation_endpoint: None, secret_in_body: false };
        Record::new(target, "r".to_owned(), Client { id: "c".to_owned(), secret: None }, issuer, tokens)
    }

    #[tokio::test]
    async fn who_waited_for_a_renewal_that_failed_shares_its_failure() {
        let dir = tempfile::tempdir().unwrap();
        let target = Target {
            server: ServerName::parse("s").unwrap(),
            identity: ServerIdentity(crate::model::digest::Digest::of(b"")),
            url: url::Url::parse("http://127.0.0.1:9/").unwrap(),
            resource: None,
            client_id: None,
            scopes: None,
        };
        let user = rustix::process::getuid().as_raw();
        let logins = Logins::new(dir.path(), user, &Caller::local("ada"), Http::new(broken), Arc::new(Now));
        let credentials = OauthCredentials::new(logins, target.clone());
        let inner = &credentials.0;
        let keep = async |record| inner.keep(record, inner.slot.lock().await.unwrap()).await.unwrap();
        keep(record(&target, "old", 0)).await;
        let old = Secret::new("old");
        let failed = inner.renew(&old, 0).await.unwrap_err();
        assert!(matches!(failed, NoCredential::Unavailable { .. }), "{failed}");
        // By now a renewal would go well; who began before the failure does not ask, who came after it does.
        keep(record(&target, "new", 3600)).await;
        assert_eq!(inner.renew(&old, 0).await.unwrap_err(), failed);
        assert_eq!(inner.renew(&old, 1).await.unwrap().unwrap().expose(), "new");
    }
}
