//! OAuth for HTTP servers: logging in, keeping the tokens, renewing them, logging out.
//!
//! Promises: a token goes only to the server that it was got for; only the user can read where it is kept; however many
//! calls need a new one at once, one renewal is made, also across processes; nothing secret is in an error, a log or a
//! process's arguments.
//!
//! [`Logins`] is what is wired once; [`Target`] is a server that may be logged in to; [`OauthCredentials`] gives its tokens
//! to a transport. Does not talk MCP and opens no browser.

mod callback;
mod credentials;
mod http;
mod login;
mod logout;
mod parties;
mod record;
mod store;
mod target;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use credentials::OauthCredentials;
pub use http::{Http, HttpError, Refusal};
pub use login::{Granted, Login, LoginError};
pub use logout::{LoggedOut, Revoked, logout};
pub use parties::Parties;
pub use record::BadToken;
use store::Slot;
pub use store::StoreError;
pub use target::{NoOauth, Target};

use crate::model::caller::{Caller, Principal, TenantId};
use crate::ports::clock::Clock;

/// The logins of one principal: where they are kept, and how authorisation servers are talked to.
#[derive(Clone)]
pub struct Logins {
    state: PathBuf,
    user: u32,
    tenant: TenantId,
    principal: Principal,
    http: Http,
    clock: Arc<dyn Clock>,
}

impl Logins {
    /// The caller's logins below the state folder. `user` is whose files they must be.
    #[must_use]
    pub fn new(state: &Path, user: u32, caller: &Caller, http: Http, clock: Arc<dyn Clock>) -> Self {
        let (tenant, principal) = (caller.tenant.clone(), caller.principal.clone());
        Self { state: state.to_owned(), user, tenant, principal, http, clock }
    }

    /// Returns the logins of another principal, kept in the same place.
    #[must_use]
    pub fn of(&self, tenant: &TenantId, principal: &Principal) -> Self {
        Self { tenant: tenant.clone(), principal: principal.clone(), ..self.clone() }
    }

    /// Whether they are this tenant's and principal's.
    #[must_use]
    pub fn are_of(&self, tenant: &TenantId, principal: &Principal) -> bool {
        self.tenant == *tenant && self.principal == *principal
    }

    /// Returns what gives tokens to the server's transport.
    #[must_use]
    pub fn credentials(&self, target: Target) -> OauthCredentials {
        OauthCredentials::new(self.clone(), target)
    }

    fn slot(&self, target: &Target) -> Slot {
        Slot::new(&self.state, self.user, &self.tenant, &self.principal, target)
    }
}

/// Reads or writes a file off the reactor.
async fn files<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(_) => Err(StoreError::Interrupted),
    }
}
