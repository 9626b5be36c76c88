//! Who calls: tenant, principal, session. Types from the start, so that one process can later serve many.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::role::Role;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Wraps an id that this host or its authentication has made.
            #[must_use]
            pub fn new(text: impl Into<Arc<str>>) -> Self {
                Self(text.into())
            }

            /// Returns the text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

id! {
    /// An isolated customer of one process; `local` outside hosted mode.
    TenantId
}
id! {
    /// The authenticated person or service; the operating system's user outside hosted mode.
    Principal
}
id! {
    /// One session; the process for stdio.
    SessionId
}

/// The caller of a call. Grants, labels and served definitions belong to one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Caller {
    /// The tenant.
    pub tenant: TenantId,
    /// The principal.
    pub principal: Principal,
    /// Groups that the authentication vouches for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// The session.
    pub session: SessionId,
}

impl Caller {
    /// The caller of a local process: tenant `local`, the operating system's user, a fresh session.
    #[must_use]
    pub fn local(user: &str) -> Self {
        Self {
            tenant: TenantId::new("local"),
            principal: Principal::new(user),
            groups: Vec::new(),
            session: SessionId::new(format!("session_{}", uuid::Uuid::now_v7().simple())),
        }
    }

    /// Returns the roles of whoever answers through this caller's own client: the groups that the authentication vouches for.
    /// A local process has none, whoever its user is: nobody vouches for who is behind its client (decision 22).
    #[must_use]
    pub fn roles(&self) -> BTreeSet<Role> {
        Role::of_groups(self.groups.iter().map(String::as_str))
    }
}

/// What made a call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum CallSource {
    /// The model itself, or a client of which nobody knows more.
    #[default]
    Direct,
    /// A script that the model wrote (Code Mode): the answer goes to the script, and no model need see it.
    Script {
        /// The cell that runs, in the embedder's terms.
        cell: Arc<str>,
    },
}

/// Those whom something concerns: one session, or all sessions of one principal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Audience {
    /// The tenant.
    pub tenant: TenantId,
    /// The principal.
    pub principal: Principal,
    /// The session; none: all sessions of the principal.
    pub session: Option<SessionId>,
}

impl Audience {
    /// The session of one caller.
    #[must_use]
    pub fn of(caller: &Caller) -> Self {
        let (tenant, principal) = (caller.tenant.clone(), caller.principal.clone());
        Self { tenant, principal, session: Some(caller.session.clone()) }
    }

    /// Whether a caller is one of them.
    #[must_use]
    pub fn includes(&self, caller: &Caller) -> bool {
        self.tenant == caller.tenant
            && self.principal == caller.principal
            && self.session.as_ref().is_none_or(|session| *session == caller.session)
    }
}
