//! What a login is for: one HTTP server, as it is configured.

use url::Url;

use crate::config::server::{HttpTarget, ResolvedServer, Transport};
use crate::config::server_keys::Auth;
use crate::config::template::MissingVariable;
use crate::model::digest::Digest;
use crate::model::here::{is_loopback, is_private};
use crate::model::name::ServerName;
use crate::model::text::shown;
use crate::model::tool::ServerIdentity;

/// Why there is no OAuth for a server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoOauth {
    /// It is a program, or its table cannot be read.
    #[error("server `{0}` has no `url`: only HTTP servers are logged in to")]
    NotHttp(ServerName),
    /// The configuration brings the token.
    #[error("server `{server}` gets its token from `{key}`, which wins over a login")]
    OwnToken {
        /// The server.
        server: ServerName,
        /// The key that wins.
        key: String,
    },
    /// It is logged in to in another way.
    #[error("server `{0}` has `auth = \"chatgpt\"`, which is no OAuth of its own")]
    OtherAuth(ServerName),
    /// The URL names a variable that is not set.
    #[error("the `url` of server `{server}` cannot be resolved")]
    Variable {
        /// The server.
        server: ServerName,
        /// Which variable.
        #[source]
        source: MissingVariable,
    },
    /// Tokens are not sent there.
    #[error("the `url` of server `{server}` {why}")]
    Url {
        /// The server.
        server: ServerName,
        /// What is wrong with it; never the URL, which may hold a secret.
        why: &'static str,
    },
}

/// An HTTP server that may be logged in to: its URL is https, or http on this machine, and nothing else brings a token.
#[derive(Debug, Clone)]
pub struct Target {
    pub(super) server: ServerName,
    pub(super) identity: ServerIdentity,
    pub(super) url: Url,
    /// The configured resource indicator.
    pub(super) resource: Option<String>,
    /// The registered client.
    pub(super) client_id: Option<String>,
    /// The configured scopes; an empty list asks for none.
    pub(super) scopes: Option<Vec<String>>,
}

impl Target {
    /// Checks a server. `lookup` resolves the variables of its URL.
    ///
    /// # Errors
    /// [`NoOauth`]: its requests are none of this adapter's.
    pub fn of(server: &ResolvedServer, lookup: &dyn Fn(&str) -> Option<String>) -> Result<Self, NoOauth> {
        let name = || server.name.clone();
        if let Transport::Http(http) = &server.transport {
            if let Some(key) = own_token(http) {
                return Err(NoOauth::OwnToken { server: name(), key });
            }
            match http.auth {
                Auth::Oauth => {}
                Auth::Chatgpt => return Err(NoOauth::OtherAuth(name())),
            }
        }
        Self::to_forget(server, lookup)
    }

    /// Checks a server that is only to be logged out of: what else the configuration says by now does not matter.
    ///
    /// # Errors
    /// [`NoOauth`]: there can be no login.
    pub fn to_forget(server: &ResolvedServer, lookup: &dyn Fn(&str) -> Option<String>) -> Result<Self, NoOauth> {
        let name = || server.name.clone();
        let Transport::Http(http) = &server.transport else { return Err(NoOauth::NotHttp(name())) };
        let text = http.url.resolve(lookup).map_err(|source| NoOauth::Variable { server: name(), source })?;
        let bad = |why| NoOauth::Url { server: name(), why };
        let mut url = Url::parse(&text).map_err(|_| bad("is no URL"))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(bad("holds a name or password, which are not used with OAuth"));
        }
        if !is_private(&url) {
            return Err(bad(
                "must begin with https:// (or http:// on this machine), or a token could be read on its way",
            ));
        }
        url.set_fragment(None);
        Ok(Self {
            server: name(),
            identity: server.identity,
            url,
            resource: http.resource.clone(),
            client_id: http.client_id.clone(),
            scopes: http.scopes.clone(),
        })
    }

    /// Returns the server's name.
    #[must_use]
    pub fn server(&self) -> &ServerName {
        &self.server
    }

    /// What binds a token to the URL that it was got for. A digest, since a query may hold a secret.
    pub(super) fn url_digest(&self) -> Digest {
        Digest::of(self.url.as_str().as_bytes())
    }

    /// Whether the server is on this machine, so that its authorisation server may be too.
    pub(super) fn is_local(&self) -> bool {
        is_loopback(&self.url)
    }
}

/// The key of the configuration that already sets the `Authorization` header.
fn own_token(http: &HttpTarget) -> Option<String> {
    let names_it = |name: &&String| name.eq_ignore_ascii_case("authorization");
    if http.bearer_token_env_var.is_some() {
        return Some("bearer_token_env_var".to_owned());
    }
    let fixed = http.headers.keys().find(names_it).map(|name| format!("http_headers.{name}"));
    fixed.or_else(|| http.env_headers.keys().find(names_it).map(|name| format!("env_http_headers.{name}")))
}

/// A URL for people: without its query, which may hold a secret.
pub(super) fn place(url: &Url) -> String {
    shown(&format!("{}{}", url.origin().ascii_serialization(), url.path()), 200)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{EmbeddedLayer, Places, SessionSources, load};
    use crate::model::layer::LayerKind;

    fn target(keys: &str) -> Result<Target, NoOauth> {
        target_with(keys, "a.example")
    }

    /// With `${HOST}` in the environment.
    fn target_with(keys: &str, host: &str) -> Result<Target, NoOauth> {
        let text = format!("[mcp_servers.s]\n{keys}\n");
        let layer = EmbeddedLayer { kind: LayerKind::User, text, folder: std::env::temp_dir() };
        let session = SessionSources { embedded: vec![layer], ..SessionSources::default() };
        let resolved = load(&Places::nowhere(), &session);
        let server = &resolved.servers[&ServerName::parse("s").unwrap()];
        Target::of(server, &|name| (name == "HOST").then(|| host.to_owned()))
    }

    #[test]
    fn tokens_go_over_https_or_stay_on_this_machine() {
        for good in
            ["https://a.example/mcp", "http://127.0.0.1:1/mcp", "http://localhost", "http://[::1]/", "https://${HOST}"]
        {
            assert!(target(&format!("url = {good:?}")).is_ok(), "{good}");
        }
        for bad in
            ["http://a.example", "http://127.0.0.1.evil.example", "ftp://localhost", "https://u:p@a.example", "a"]
        {
            // What is written out is judged when the configuration is read; what a variable holds is judged here.
            assert!(matches!(target_with("url = \"${HOST}\"", bad), Err(NoOauth::Url { .. })), "{bad}");
        }
    }

    #[test]
    fn what_is_no_url_is_not_repeated_since_it_may_hold_a_secret() {
        assert!(!target("url = \"http://a.example/?key=hush\"").unwrap_err().to_string().contains("hush"));
        let place = place(&Url::parse("https://u:hush@a.example/b?key=hush#hush").unwrap());
        assert_eq!(place, "https://a.example/b");
    }

    #[test]
    fn a_token_of_the_configuration_wins_and_is_named() {
        for (keys, key) in [
            ("bearer_token_env_var = \"T\"", "bearer_token_env_var"),
            ("http_headers = { authorization = \"x\" }", "http_headers.authorization"),
            ("env_http_headers = { Authorization = \"T\" }", "env_http_headers.Authorization"),
        ] {
            let text = target(&format!("url = \"https://a.example\"\n{keys}")).unwrap_err().to_string();
            assert!(text.contains(&format!("`{key}`, which wins")), "{text}");
        }
    }

    #[test]
    fn a_program_is_not_logged_in_to() {
        assert!(matches!(target("command = \"sh\""), Err(NoOauth::NotHttp(_))));
        assert!(matches!(target("url = \"https://a.example\"\nauth = \"chatgpt\""), Err(NoOauth::OtherAuth(_))));
        assert!(matches!(target("url = \"https://${NONE}\""), Err(NoOauth::Variable { .. })));
    }
}
