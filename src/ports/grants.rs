//! Remembered approvals: what they bind, and where they are kept.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::model::caller::Caller;
use crate::model::digest::Digest;
use crate::model::name::ToolRef;
use crate::model::tool::{Connector, ServerIdentity};
use crate::model::verdict::{AskKey, Remember};

/// The most grants that [`Grants::related`] returns.
pub const MAX_RELATED: usize = 64;
/// How long a grant for the session holds at most.
pub const SESSION_GRANT_MS: u64 = 7 * 24 * 60 * 60 * 1000;
/// How long a grant holds that is not bound to a session.
pub const ALWAYS_GRANT_MS: u64 = 90 * 24 * 60 * 60 * 1000;

/// What a grant binds. Any change of it voids the grant; the session counts for session grants alone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct GrantSubject {
    /// Tenant, principal and session.
    pub caller: Caller,
    /// Raw server and tool.
    pub tool: ToolRef,
    /// What the server is.
    pub identity: ServerIdentity,
    /// The tool's definition.
    pub definition: Digest,
    /// The connector and its account.
    pub connector: Option<Connector>,
}

/// A remembered approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Grant {
    /// Its id; never reaches a model.
    pub id: String,
    /// What it binds.
    pub subject: GrantSubject,
    /// The asks that it answered, the baseline's included (R17).
    pub answered: BTreeSet<AskKey>,
    /// The arguments' digest, if an ask bound them.
    pub arguments: Option<Digest>,
    /// How long it holds: session, always, or [`Remember::Never`] for one call alone. A grant for one call binds its
    /// arguments, and is taken once ([`Grants::take`]).
    pub scope: Remember,
    /// When it ends, in milliseconds since the Unix epoch.
    pub expires_ms: u64,
    /// Who agreed.
    pub approver: String,
}

impl Grant {
    /// Whether it was given for `subject`. The session counts only for a grant that holds for the session: one for a single
    /// call may be given after the session that asked has ended (R21).
    #[must_use]
    pub fn binds(&self, subject: &GrantSubject) -> bool {
        if self.scope == Remember::Session {
            return self.subject == *subject;
        }
        let (own, other) = (&self.subject, subject);
        let same_caller = own.caller.tenant == other.caller.tenant
            && own.caller.principal == other.caller.principal
            && own.caller.groups == other.caller.groups;
        same_caller
            && (&own.tool, own.identity, own.definition, &own.connector)
                == (&other.tool, other.identity, other.definition, &other.connector)
    }
}

/// A grant could not be kept. The call runs once, and its record says "not remembered".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the approval could not be remembered: {0}")]
pub struct NotRemembered(pub String);

/// Keeps nothing: for what is never remembered.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoGrants;

impl Grants for NoGrants {
    fn widest(&self) -> Remember {
        Remember::Never
    }

    fn find(&self, _subject: &GrantSubject, _now_ms: u64) -> Vec<Grant> {
        Vec::new()
    }

    fn related(&self, _caller: &Caller, _tool: &ToolRef) -> Vec<Grant> {
        Vec::new()
    }

    fn take(&self, _id: &str) -> Result<bool, NotRemembered> {
        Ok(false)
    }

    fn store(&self, _grant: Grant) -> Result<(), NotRemembered> {
        Err(NotRemembered("nothing is remembered here".to_owned()))
    }

    fn forget(&self, _id: &str) {}
}

/// Keeps grants. Whether one satisfies an ask is decided in `pipeline::consent::remember`, not here.
pub trait Grants: Send + Sync {
    /// Returns the widest scope that this store can keep; nothing wider is offered to a person.
    fn widest(&self) -> Remember;

    /// Returns the grants for this very subject that have not ended. Those that hold "always" are found from every session.
    fn find(&self, subject: &GrantSubject, now_ms: u64) -> Vec<Grant>;

    /// Returns the grants of this tenant and principal for a tool, whatever else they bind, the newest first and at most
    /// [`MAX_RELATED`]; ended ones too. For `explain`, which says why they do not match.
    fn related(&self, caller: &Caller, tool: &ToolRef) -> Vec<Grant>;

    /// Takes a grant for one call: true for whoever is first, and the grant is gone. Unknown ids are not there.
    ///
    /// # Errors
    /// [`NotRemembered`]: it cannot be told whether it was there.
    fn take(&self, id: &str) -> Result<bool, NotRemembered>;

    /// Keeps a grant.
    ///
    /// # Errors
    /// [`NotRemembered`].
    fn store(&self, grant: Grant) -> Result<(), NotRemembered>;

    /// Drops a grant, because the call that it was given for was not sent after all. Unknown ids are ignored.
    fn forget(&self, id: &str);
}
