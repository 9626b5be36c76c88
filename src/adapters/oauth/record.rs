//! One login as it is kept: the tokens, what they are bound to, and what renewing them needs.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::target::Target;
use crate::model::digest::Digest;
use crate::model::name::ServerName;
use crate::model::secret::Secret;

/// The longest token or client secret, in bytes: it must fit into a request's header.
const MAX_TOKEN: usize = 16 * 1024;
/// The version of the file's form.
const VERSION: u32 = 1;
/// A token is renewed this long before it expires, or when half of a shorter life is over.
const MARGIN: SignedDuration = SignedDuration::from_secs(30);
/// Longer lives are cut: ten years.
const MAX_LIFE: u64 = 10 * 365 * 24 * 3600;
/// The most scopes that are kept.
const MAX_SCOPES: usize = 256;

/// A login. `Debug` shows no secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    version: u32,
    /// For people who look into the folder.
    pub(super) server: ServerName,
    /// The URL that it was got for.
    url: Digest,
    /// The resource that the tokens are for (RFC 8707).
    pub(super) resource: String,
    pub(super) client: Client,
    pub(super) issuer: Issuer,
    pub(super) tokens: Tokens,
}

/// Who we are to the authorisation server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Client {
    pub(super) id: String,
    /// Some servers give one although none was asked for.
    #[serde(with = "optional_secret", default, skip_serializing_if = "Option::is_none")]
    pub(super) secret: Option<Secret>,
}

/// Where tokens are renewed and revoked. Every URL was checked before it was kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Issuer {
    pub(super) issuer: String,
    pub(super) token_endpoint: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) revocation_endpoint: Option<String>,
    /// Whether a client secret goes into the body because the server takes it nowhere else.
    pub(super) secret_in_body: bool,
}

/// What the authorisation server gave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tokens {
    #[serde(with = "secret")]
    pub(super) access: Secret,
    #[serde(with = "optional_secret", default, skip_serializing_if = "Option::is_none")]
    pub(super) refresh: Option<Secret>,
    pub(super) received: Timestamp,
    /// None: the server did not say; it holds until it is rejected.
    pub(super) expires: Option<Timestamp>,
    pub(super) scopes: Vec<String>,
}

/// Why an answer of a token endpoint is of no use. Holds nothing of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the answer with the token {0}")]
pub struct BadToken(&'static str);

/// The answer of a token endpoint (RFC 6749, 5.1).
#[derive(Deserialize)]
struct Answer {
    access_token: String,
    token_type: String,
    #[serde(default)]
    expires_in: Option<u64>,
    #[serde(default)]
    refresh_token: Option<String>,
    #[serde(default)]
    scope: Option<String>,
}

impl Tokens {
    /// Parses an answer. `asked` are the scopes that hold where the answer names none (RFC 6749, 5.1).
    pub(super) fn parse(answer: serde_json::Value, asked: &[String], now: Timestamp) -> Result<Self, BadToken> {
        // The parser's own error might quote what it found.
        let answer: Answer = serde_json::from_value(answer).map_err(|_| BadToken("is not of the form of RFC 6749"))?;
        if !answer.token_type.eq_ignore_ascii_case("bearer") {
            return Err(BadToken("has another type of token than `Bearer`"));
        }
        let granted = answer.scope.map(|text| text.split_whitespace().map(str::to_owned).collect());
        let mut scopes: Vec<String> = granted.unwrap_or_else(|| asked.to_vec());
        scopes.retain(|scope| is_scope(scope));
        scopes.truncate(MAX_SCOPES);
        let life = answer.expires_in.map(|life| life.min(MAX_LIFE));
        let life = life.map(|life| SignedDuration::from_secs(i64::try_from(life).unwrap_or(i64::MAX)));
        Ok(Self {
            access: token(answer.access_token)?,
            refresh: answer.refresh_token.map(token).transpose()?,
            received: now,
            expires: life.and_then(|life| now.checked_add(life).ok()),
            scopes,
        })
    }

    /// Whether the token holds beyond the next moments.
    pub(super) fn is_fresh(&self, now: Timestamp) -> bool {
        self.expires.is_none_or(|expires| {
            let life = expires.duration_since(self.received);
            expires.duration_since(now) > MARGIN.min(life / 2)
        })
    }
}

/// What a header takes as a token (RFC 6750, 2.1), and no more than fits.
fn token(text: String) -> Result<Secret, BadToken> {
    match text.len() {
        0 => Err(BadToken("has an empty token")),
        n if n > MAX_TOKEN => Err(BadToken("has a token that is too long")),
        _ if !text.bytes().all(|byte| byte.is_ascii_graphic()) => Err(BadToken("has a token that no header takes")),
        _ => Ok(Secret::new(text)),
    }
}

/// A client secret, with the same bounds as a token.
pub(super) fn client_secret(text: String) -> Result<Secret, BadToken> {
    token(text)
}

/// Whether a text is one scope (RFC 6749, 3.3), of a length to be shown.
pub(super) fn is_scope(text: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
    !text.is_empty() && text.len() <= 256 && text.bytes().all(legal)
}

impl Record {
    pub(super) fn new(target: &Target, resource: String, client: Client, issuer: Issuer, tokens: Tokens) -> Self {
        let (server, url) = (target.server.clone(), target.url_digest());
        Self { version: VERSION, server, url, resource, client, issuer, tokens }
    }

    /// Parses a file. The error says where, never what.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let record: Self = serde_json::from_slice(bytes)
            .map_err(|error| format!("line {}, column {} is not as expected", error.line(), error.column()))?;
        if record.version != VERSION {
            return Err(format!("its version {} is not {VERSION}", record.version));
        }
        Ok(record)
    }

    pub(super) fn to_bytes(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec_pretty(self)
    }

    /// Whether these tokens are for the server as it is configured now; if not, why.
    pub(super) fn fits(&self, target: &Target) -> Result<(), &'static str> {
        if self.server != target.server || self.url != target.url_digest() {
            return Err("the login is for another URL than the configured one");
        }
        if target.resource.as_ref().is_some_and(|resource| *resource != self.resource) {
            return Err("the login is for another resource than `oauth_resource`");
        }
        if target.client_id.as_ref().is_some_and(|id| *id != self.client.id) {
            return Err("the login is of another client than `oauth.client_id`");
        }
        Ok(())
    }
}

mod secret {
    use super::{Deserialize, Deserializer, Secret, Serializer};

    pub(super) fn serialize<S: Serializer>(secret: &Secret, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(secret.expose())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Secret, D::Error> {
        super::token(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

mod optional_secret {
    use super::{Deserialize, Deserializer, Secret, Serializer};

    pub(super) fn serialize<S: Serializer>(secret: &Option<Secret>, serializer: S) -> Result<S::Ok, S::Error> {
        match secret {
            Some(secret) => serializer.serialize_some(secret.expose()),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Secret>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(super::token).transpose().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn tokens(life: Option<u64>) -> Tokens {
        let answer =
            json!({ "access_token": "hush", "token_type": "bearer", "expires_in": life, "refresh_token": "hush2" });
        Tokens::parse(answer, &["a".to_owned()], at(1000)).unwrap()
    }

    #[test]
    fn a_token_is_renewed_30_s_before_its_end_or_after_half_of_a_short_life() {
        let fresh = |life, now| tokens(life).is_fresh(at(now));
        assert!(fresh(Some(3600), 1000 + 3569) && !fresh(Some(3600), 1000 + 3570));
        assert!(fresh(Some(20), 1009) && !fresh(Some(20), 1010));
        assert!(!fresh(Some(0), 1000));
        assert!(fresh(None, 1_000_000_000));
        assert!(tokens(Some(u64::MAX)).expires.is_some());
    }

    #[test]
    fn what_is_no_bearer_token_is_refused_without_being_quoted() {
        for answer in [
            json!({ "access_token": 7, "token_type": "bearer", "expires_in": "hush" }),
            json!({ "access_token": "hush", "token_type": "bearer", "expires_in": "hush" }),
            json!({ "access_token": "hush", "token_type": "mac" }),
            json!({ "access_token": "hush\r\nX: y", "token_type": "bearer" }),
            json!({ "access_token": "", "token_type": "bearer" }),
            json!({ "access_token": "h".repeat(MAX_TOKEN + 1), "token_type": "bearer" }),
            json!({ "access_token": "hush", "token_type": "bearer", "refresh_token": "hu sh" }),
        ] {
            let error = Tokens::parse(answer, &[], at(0)).unwrap_err();
            assert!(!format!("{error:?}{error}").contains("hu"), "{error}");
        }
    }

    #[test]
    fn scopes_are_those_granted_else_those_asked_for() {
        assert_eq!(tokens(None).scopes, ["a"]);
        let answer = json!({ "access_token": "t", "token_type": "Bearer", "scope": "b \u{7} c" });
        assert_eq!(Tokens::parse(answer, &["a".to_owned()], at(0)).unwrap().scopes, ["b", "c"]);
    }

    #[test]
    fn a_damaged_file_is_told_by_its_place_and_never_quoted() {
        for text in ["{\"version\":1,\"tokens\":\"hush\"}", "hush", "{\"version\":\"hush\"}"] {
            let error = Record::parse(text.as_bytes()).unwrap_err();
            assert!(!error.contains("hush") && error.contains("line 1"), "{error}");
        }
        assert!(!format!("{:?}", tokens(None)).contains("hush"));
    }
}
