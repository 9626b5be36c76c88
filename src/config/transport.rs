//! How one server is reached: what its process or its connection is made of.
//!
//! What names variables is resolved as late as possible, by whoever starts the server, and never printed resolved (R4).

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::server_keys::Auth;
use super::template::{MissingVariable, Template};
use crate::model::digest::Digest;
use crate::model::secret::Secret;

/// The variables that a child gets unless `base_environment = false`: what a program needs to find itself and speak a
/// language, and no secret by custom.
pub const BASE_ENVIRONMENT: [&str; 10] =
    ["HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"];

/// How a server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transport {
    /// A child process.
    Stdio(StdioLaunch),
    /// Streamable HTTP.
    Http(HttpTarget),
    /// Its table cannot be read; such a server is always disabled.
    Unreadable,
}

/// How a child process is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StdioLaunch {
    /// The command as written.
    pub command: String,
    /// The program, absolute; or why there is none, which is why the server does not start.
    pub executable: Result<PathBuf, String>,
    /// The arguments.
    pub args: Vec<Template>,
    /// The working directory, absolute where ours is known.
    pub cwd: PathBuf,
    /// Configured variables. Values may be secrets.
    pub env: BTreeMap<String, Template>,
    /// Variables handed on from our environment.
    pub inherit: Vec<String>,
    /// Whether [`BASE_ENVIRONMENT`] is handed on as well.
    pub base_environment: bool,
    /// What trust bound, of a trusted project's server: every file must still be this when it is started (R7). None: the
    /// file did not exist.
    pub bound: BTreeMap<PathBuf, Option<Digest>>,
}

impl StdioLaunch {
    /// Returns the arguments with variables put in.
    ///
    /// # Errors
    /// The first variable that `lookup` does not know.
    pub fn arguments(&self, lookup: &dyn Fn(&str) -> Option<String>) -> Result<Vec<String>, MissingVariable> {
        self.args.iter().map(|arg| arg.resolve(lookup)).collect()
    }

    /// Returns the child's whole environment; nothing else may be in it. Inherited variables that are not set stay unset.
    ///
    /// # Errors
    /// The first variable that a configured value names and `lookup` does not know.
    pub fn environment(
        &self,
        lookup: &dyn Fn(&str) -> Option<String>,
    ) -> Result<BTreeMap<String, String>, MissingVariable> {
        let base = BASE_ENVIRONMENT.into_iter().filter(|_| self.base_environment);
        let names = base.chain(self.inherit.iter().map(String::as_str));
        let mut environment: BTreeMap<_, _> =
            names.filter_map(|name| lookup(name).map(|value| (name.to_owned(), value))).collect();
        for (name, value) in &self.env {
            environment.insert(name.clone(), value.resolve(lookup)?);
        }
        Ok(environment)
    }
}

/// An HTTP server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpTarget {
    /// The endpoint.
    pub url: Template,
    /// The variable that holds the bearer token.
    pub bearer_token_env_var: Option<String>,
    /// Fixed headers. Values may be secrets.
    pub headers: BTreeMap<String, Template>,
    /// Headers by variable.
    pub env_headers: BTreeMap<String, String>,
    /// How it is authenticated to.
    pub auth: Auth,
    /// The registered OAuth client.
    pub client_id: Option<String>,
    /// The OAuth resource.
    pub resource: Option<String>,
    /// Scopes that a login asks for.
    pub scopes: Option<Vec<String>>,
}

impl HttpTarget {
    /// Returns the headers of every request with variables put in. Values may be secrets.
    ///
    /// # Errors
    /// The first variable that is named and `lookup` does not know.
    pub fn all_headers(
        &self,
        lookup: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Vec<(String, Secret)>, MissingVariable> {
        let fixed = self.headers.iter().map(|(name, value)| Ok((name.clone(), Secret::new(value.resolve(lookup)?))));
        let named = self.env_headers.iter().map(|(name, variable)| Ok((name.clone(), variable_of(variable, lookup)?)));
        fixed.chain(named).collect()
    }

    /// Returns the bearer token, if one is configured.
    ///
    /// # Errors
    /// Its variable is not set.
    pub fn bearer(&self, lookup: &dyn Fn(&str) -> Option<String>) -> Result<Option<Secret>, MissingVariable> {
        self.bearer_token_env_var.as_ref().map(|variable| variable_of(variable, lookup)).transpose()
    }
}

fn variable_of(name: &str, lookup: &dyn Fn(&str) -> Option<String>) -> Result<Secret, MissingVariable> {
    lookup(name).map(Secret::new).ok_or_else(|| MissingVariable(name.to_owned()))
}
