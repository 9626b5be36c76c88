//! A logout: the tokens are gone from here for certain, and from the authorisation server if it lets itself be told.

use std::time::Duration;

use tokio::time::timeout;
use url::Url;

use super::http::{HttpError, Talk};
use super::record::Record;
use super::store::StoreError;
use super::target::Target;
use super::{Logins, files};
use crate::config::open::explained;
use crate::model::secret::Secret;

/// How long telling the authorisation server may take.
const REVOKE: Duration = Duration::from_secs(15);

/// What a logout came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoggedOut {
    /// There was no login.
    WasNot,
    /// The tokens are gone from here.
    Gone(Revoked),
}

/// Whether the authorisation server took the tokens back too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Revoked {
    /// It said so.
    Yes,
    /// It has no place for it; the tokens hold until they end.
    NotOffered,
    /// It did not, and why.
    Failed(String),
}

/// Removes a login, and revokes its tokens (RFC 7009) if that can be done soon.
///
/// # Errors
/// The login is still there.
pub async fn logout(logins: &Logins, target: &Target) -> Result<LoggedOut, StoreError> {
    let slot = logins.slot(target);
    if !slot.exists() {
        return Ok(LoggedOut::WasNot);
    }
    // A renewal that is under way would write the login anew.
    let held = slot.lock().await?;
    let record = {
        let slot = slot.clone();
        files(move || Ok(slot.read())).await?
    };
    // First what must not fail: whoever ends us while the server is told has logged out all the same.
    if !files(move || slot.remove(&held)).await? {
        return Ok(LoggedOut::WasNot);
    }
    Ok(LoggedOut::Gone(match record {
        Ok(Some(record)) => revoke(logins, target, &record).await,
        Ok(None) => Revoked::NotOffered,
        Err(error) => Revoked::Failed(explained(&error)),
    }))
}

async fn revoke(logins: &Logins, target: &Target, record: &Record) -> Revoked {
    let Some(endpoint) = &record.issuer.revocation_endpoint else { return Revoked::NotOffered };
    let Ok(endpoint) = Url::parse(endpoint) else { return Revoked::NotOffered };
    let talk = Talk::new(&logins.http, target.is_local());
    let both = async {
        let refresh = record.tokens.refresh.as_ref().map(|token| (token, "refresh_token"));
        // The longer-lived first.
        for (token, kind) in refresh.into_iter().chain([(&record.tokens.access, "access_token")]) {
            if !one(&talk, &endpoint, record, token, kind).await? {
                return Ok(Revoked::Failed("the authorisation server refused".to_owned()));
            }
        }
        Ok::<_, HttpError>(Revoked::Yes)
    };
    match timeout(REVOKE, both).await {
        Ok(Ok(revoked)) => revoked,
        Ok(Err(error)) => Revoked::Failed(error.to_string()),
        Err(_) => Revoked::Failed("the authorisation server did not answer in time".to_owned()),
    }
}

async fn one(talk: &Talk, url: &Url, record: &Record, token: &Secret, kind: &str) -> Result<bool, HttpError> {
    let mut form = vec![("token", token.expose()), ("token_type_hint", kind)];
    let (id, secret) = (record.client.id.as_str(), record.client.secret.as_ref().map(Secret::expose));
    let basic = secret.filter(|_| !record.issuer.secret_in_body).map(|secret| (id, secret));
    if basic.is_none() {
        form.push(("client_id", id));
        form.extend(secret.map(|secret| ("client_secret", secret)));
    }
    talk.post(url, &form, basic).await
}
