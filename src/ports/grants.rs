//! Remembered approvals: what they bind, and where they are kept.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::model::caller::Caller;
use crate::model::digest::Digest;
use crate::model::name::ToolRef;
use crate::model::tool::{Connector, ServerIdentity};
use crate::model::verdict::{AskKey, Remember};

/// What a grant binds. Any change of it voids the grant.
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
    /// How long it holds: session, or always.
    pub scope: Remember,
    /// Who agreed.
    pub approver: String,
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

    fn find(&self, _subject: &GrantSubject) -> Vec<Grant> {
        Vec::new()
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

    /// Returns the grants for this very subject.
    fn find(&self, subject: &GrantSubject) -> Vec<Grant>;

    /// Keeps a grant.
    ///
    /// # Errors
    /// [`NotRemembered`].
    fn store(&self, grant: Grant) -> Result<(), NotRemembered>;

    /// Drops a grant, because the call that it was given for was not sent after all. Unknown ids are ignored.
    fn forget(&self, id: &str);
}
