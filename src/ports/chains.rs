//! Where the heads of record chains and the keys of records are kept (R34).
//!
//! What is kept here is what a file of records is compared with: it must not be in the same file. All of it is shared by the
//! processes of one user; each of them begins chains of its own.

use crate::model::chain::{ChainId, Head, Key, RootKey};

/// How many heads are kept; beyond, the oldest are forgotten.
pub const MAX_HEADS: usize = 100_000;

/// What was kept could not be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the heads of the records could not be read or written: {0}")]
pub struct ChainsFailed(pub String);

/// What a chain begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begun {
    /// What the root is called that its key follows from.
    pub root: String,
    /// How many steps after that root.
    pub step: u64,
    /// Its first key.
    pub key: Key,
    /// The head of the chain that was last begun in the same place, if there was one.
    pub after: Option<Head>,
}

/// What is known of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Anchor {
    /// How far it has come at least.
    pub head: Head,
    /// The file that its last line is in, absolute.
    pub file: String,
}

/// Keeps heads and keys.
pub trait Chains: Send + Sync {
    /// Begins a chain of a place: takes its key from the root, and moves the root on, in one step that no other process
    /// shares. A root that is not there yet is made of randomness, and nobody has its first key.
    ///
    /// # Errors
    /// [`ChainsFailed`]; then there is no chain.
    fn begin(&self, chain: &ChainId, place: &str) -> Result<Begun, ChainsFailed>;

    /// Notes how far a chain of a place has come. Never goes back.
    ///
    /// # Errors
    /// [`ChainsFailed`]; the lines are as good as before, but nothing can tell that they were there.
    fn anchor(&self, head: &Head, place: &str, file: &str) -> Result<(), ChainsFailed>;

    /// Returns what is known of a chain.
    ///
    /// # Errors
    /// [`ChainsFailed`].
    fn anchored(&self, chain: &ChainId) -> Result<Option<Anchor>, ChainsFailed>;

    /// Returns all that is known of the chains of a place, oldest first.
    ///
    /// # Errors
    /// [`ChainsFailed`].
    fn of_place(&self, place: &str) -> Result<Vec<Anchor>, ChainsFailed>;

    /// Replaces the root by a fresh one and returns it: whoever keeps it can check the marks of all chains that begin from
    /// now on, until it is replaced again.
    ///
    /// # Errors
    /// [`ChainsFailed`].
    fn renew(&self) -> Result<RootKey, ChainsFailed>;

    /// Returns the key that the tenants' digests of inputs are made under. It stays the same, so that equal inputs have
    /// equal digests.
    ///
    /// # Errors
    /// [`ChainsFailed`].
    fn inputs_key(&self) -> Result<Key, ChainsFailed>;
}
