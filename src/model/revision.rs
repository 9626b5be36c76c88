//! Revisions of the catalog, and the fingerprints that say which part of it changed.

use serde::Serialize;

use super::digest::Digest;

/// The number of a published catalog; rises when a publication changes anything a call depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Revision(u64);

impl Revision {
    /// The revision of an empty catalog, before the first publication.
    pub const FIRST: Self = Self(0);

    /// Returns the following revision.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Returns the number.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

/// One connection to an upstream; a restart makes another one. Unique within the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct ConnectionId(pub u64);

/// What of one server a prepared call depends on. Differs: the call is stale.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServerFingerprint {
    /// The connection.
    pub connection: ConnectionId,
    /// Digest of the server's effective configuration.
    pub config: Digest,
}

/// What of the policies a decision depends on. Differs: the call is decided again (R19).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct PolicySetDigest(pub Digest);
