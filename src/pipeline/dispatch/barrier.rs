//! The revision barrier: is everything that this call depends on still the same?

use super::files::Uploads;
use crate::pipeline::admit::catalog::{Catalog, LeaseRefusal};
use crate::pipeline::admit::leases::OpenLease;
use crate::pipeline::consent::approve::Approved;
use crate::ports::approval::Kind;

/// The right to hand over one approved call. Short: no lease is held while an answer is waited for.
#[derive(Debug)]
pub struct Lease {
    approved: Approved,
    uploads: Uploads,
    open: OpenLease,
}

/// A lease that was not given, with the approval so that the call can be decided again.
#[derive(Debug)]
pub struct NotLeased {
    /// Why.
    pub refusal: LeaseRefusal,
    /// The approval.
    pub approved: Approved,
}

/// Tells whether an approved call could be leased now. Asked before its files are uploaded: those of a call that will not be
/// sent stay where they are.
///
/// # Errors
/// [`LeaseRefusal`].
pub fn check(catalog: &Catalog, approved: &Approved) -> Result<(), LeaseRefusal> {
    let prepared = approved.prepared();
    let definition = prepared.tool().definition.digest();
    catalog.check(&prepared.reference(), &prepared.server().fingerprint, definition, approved.policies())
}

/// Takes a lease for an approved call whose files are uploaded.
///
/// # Errors
/// [`NotLeased`]: stale, or the policies changed.
pub fn lease(catalog: &Catalog, approved: Approved, uploads: Uploads) -> Result<Lease, Box<NotLeased>> {
    let prepared = approved.prepared();
    // An answer to a question goes back to it, and nowhere else.
    if prepared.kind() == Kind::Reply {
        return Err(Box::new(NotLeased { refusal: LeaseRefusal::Stale, approved }));
    }
    let opened = catalog.lease(
        &prepared.reference(),
        &prepared.server().fingerprint,
        prepared.tool().definition.digest(),
        approved.policies(),
    );
    match opened {
        Ok(open) => Ok(Lease { approved, uploads, open }),
        Err(refusal) => Err(Box::new(NotLeased { refusal, approved })),
    }
}

impl Lease {
    /// Returns the approved call.
    #[must_use]
    pub fn approved(&self) -> &Approved {
        &self.approved
    }

    /// Returns what was uploaded for the call.
    #[must_use]
    pub fn uploads(&self) -> &Uploads {
        &self.uploads
    }

    /// Spends the lease: true when the call may be handed over right now, false when a publication revoked it (R27).
    pub(super) fn begin_hand_over(&self) -> bool {
        self.open.begin_hand_over()
    }
}
