//! Who takes part in a login: who issues the tokens, where the person goes, where the code goes.
//!
//! A server may name an authorisation server of its own, whose metadata sends the person to an honest one and the code, with
//! what proves that it is ours, to itself (RFC 9700, 4.4: mix-up). So all endpoints must be of the issuer's origin, unless
//! the metadata promises that the browser's answer names its issuer (RFC 9207), which the library then insists on, or the
//! person has named the issuer.
//!
//! Cannot see where an authorisation page sends the browser on. Whether the issuer is the right one only the person knows:
//! it is told before they go there.

use rmcp::transport::auth::AuthorizationMetadata;
use serde_json::Value;
use url::Url;

use super::login::LoginError;
use crate::model::text::shown;

/// The key of RFC 9207.
const PROMISE: &str = "authorization_response_iss_parameter_supported";

/// Who takes part in a login. All texts are fit to be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parties {
    /// Who issues the tokens.
    pub issuer: String,
    /// The host, and the port if it is not the usual one, where the person logs in.
    pub authorization_host: String,
    /// The same of where the code is changed for tokens.
    pub token_host: String,
}

impl Parties {
    /// Checks that the endpoints belong to the issuer. `endpoints` are those of the metadata, by their keys; `expected` is
    /// the issuer that the person named.
    pub(super) fn of(
        metadata: &AuthorizationMetadata,
        endpoints: &[(&'static str, Url)],
        expected: Option<&Url>,
    ) -> Result<Self, LoginError> {
        let issuer = metadata.issuer.as_deref().unwrap_or_default();
        let named = || shown(issuer, 200);
        let url = Url::parse(issuer);
        let url = url.map_err(|_| LoginError::Discovery("its metadata names no issuer".to_owned()))?;
        match expected {
            Some(expected) if *expected == url => {}
            Some(expected) => {
                return Err(LoginError::Unexpected { expected: shown(expected.as_str(), 200), received: named() });
            }
            None if metadata.additional_fields.get(PROMISE) == Some(&Value::Bool(true)) => {}
            None => {
                if let Some((key, at)) = endpoints.iter().find(|(_, at)| at.origin() != url.origin()) {
                    return Err(LoginError::Apart { key, host: host(at), issuer: named() });
                }
            }
        }
        let host_of = |wanted| endpoints.iter().find(|(key, _)| *key == wanted).map(|(_, at)| host(at));
        Ok(Self {
            issuer: named(),
            authorization_host: host_of("authorization_endpoint").unwrap_or_default(),
            token_host: host_of("token_endpoint").unwrap_or_default(),
        })
    }
}

fn host(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    shown(&url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}")), 200)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HONEST: &str = "https://honest.example";
    const EVIL: &str = "https://evil.example";

    /// The parties of an issuer whose endpoints, in this order, are the person's, the code's and two more.
    fn parties(
        issuer: &str,
        [person, code, client, end]: [&str; 4],
        promise: Option<Value>,
        expected: Option<&str>,
    ) -> Result<Parties, LoginError> {
        let mut metadata = AuthorizationMetadata::default();
        metadata.issuer = Some(issuer.to_owned());
        metadata.additional_fields.extend(promise.map(|promise| (PROMISE.to_owned(), promise)));
        let endpoints = [
            ("authorization_endpoint", person),
            ("token_endpoint", code),
            ("registration_endpoint", client),
            ("revocation_endpoint", end),
        ];
        let endpoints = endpoints.map(|(key, origin)| (key, Url::parse(&format!("{origin}/x?k=hush")).unwrap()));
        Parties::of(&metadata, &endpoints, expected.map(|url| Url::parse(url).unwrap()).as_ref())
    }

    #[test]
    fn an_endpoint_of_another_origin_than_the_issuers_is_refused() {
        let same = parties(HONEST, [HONEST; 4], None, None).unwrap();
        assert_eq!((&*same.authorization_host, &*same.token_host), ("honest.example", "honest.example"));
        for at in 0..4 {
            for other in [EVIL, "https://honest.example:444", "http://honest.example", "https://a.honest.example"] {
                let mut origins = [HONEST; 4];
                origins[at] = other;
                let error = parties(HONEST, origins, None, None).unwrap_err();
                assert!(matches!(error, LoginError::Apart { .. }) && !error.to_string().contains("hush"), "{error}");
            }
        }
    }

    #[test]
    fn a_promise_to_name_the_issuer_in_the_answer_allows_other_hosts() {
        let split = [HONEST, "https://token.example:1", HONEST, HONEST];
        assert_eq!(parties(HONEST, split, Some(true.into()), None).unwrap().token_host, "token.example:1");
        for no in [Value::from(false), "true".into(), 1.into(), Value::Null] {
            assert!(parties(HONEST, split, Some(no), None).is_err());
        }
    }

    #[test]
    fn the_named_issuer_allows_other_hosts_and_no_other_issuer() {
        let split = [HONEST, "https://token.example", HONEST, HONEST];
        assert!(parties(HONEST, split, None, Some("https://honest.example/")).is_ok());
        for other in ["https://honest.example/tenant", "https://honest.example:444", "http://honest.example"] {
            assert!(matches!(parties(HONEST, split, None, Some(other)), Err(LoginError::Unexpected { .. })), "{other}");
        }
        // All of one origin, or a promise: it is not whom the person named.
        let error = parties(EVIL, [EVIL; 4], Some(true.into()), Some(HONEST)).unwrap_err().to_string();
        assert_eq!(
            error,
            "the authorisation server is `https://evil.example`, not `https://honest.example/` as expected"
        );
    }

    #[test]
    fn without_an_issuer_there_are_no_parties() {
        assert!(matches!(parties("", [HONEST; 4], None, None), Err(LoginError::Discovery(_))));
    }
}
