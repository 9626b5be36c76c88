//! The bearer token that goes with a request to one HTTP server.

use async_trait::async_trait;

use crate::model::name::ServerName;
use crate::model::secret::Secret;

/// Why there is no token although there should be one. Both texts are fit to be shown and hold no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoCredential {
    /// Only a new login helps.
    #[error("{why}; log in again: `portcullis login {server}`")]
    LoginNeeded {
        /// The server.
        server: ServerName,
        /// Why what is stored does not do.
        why: String,
    },
    /// It may work later, or once something is mended on this machine.
    #[error("the login of server `{server}` cannot be used: {why}")]
    Unavailable {
        /// The server.
        server: ServerName,
        /// What went wrong.
        why: String,
    },
}

/// Tokens for one server and one principal.
///
/// Contract: each method ends within a bounded time, may be called from many tasks at once, and makes at most one
/// refresh for all that wait. `Ok(None)` means that nobody has logged in: the request goes without a token.
#[async_trait]
pub trait Credentials: Send + Sync {
    /// Returns a token that does not expire within the next moments.
    ///
    /// # Errors
    /// [`NoCredential`]; the request is not sent then.
    async fn bearer(&self) -> Result<Option<Secret>, NoCredential>;

    /// Whether somebody has logged in, or it cannot be told: requests then go with a token, or not at all.
    async fn are_there(&self) -> bool {
        !matches!(self.bearer().await, Ok(None))
    }

    /// Takes that the server answered 401 to this token, with its `WWW-Authenticate` header if it had one, and returns
    /// another token to try once more with.
    ///
    /// # Errors
    /// [`NoCredential`]: there is no other token.
    async fn rejected(&self, token: &Secret, challenge: Option<&str>) -> Result<Option<Secret>, NoCredential>;
}
