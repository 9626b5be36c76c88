//! The chain over recorded lines: its keys, its links, its heads (R34).
//!
//! Keys only move forward. A root makes the first key of each chain and is replaced by what follows from it; a chain's key
//! marks one line and is replaced in the same way. So whoever takes what a host holds now can mark no line of before, and
//! whoever kept the root that was there first can check every mark. Decision 23 says why.

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use super::digest::Digest;

/// The most steps that are taken from a root to a chain's key: a bound on what a file can make us do.
pub const MAX_STEPS: u64 = 100_000_000;

/// One chain: one writer's lines. 32 lower-case hex digits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ChainId(String);

/// A text is no chain's id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the id of a chain (32 hex digits)")]
pub struct BadChainId(String);

impl ChainId {
    /// Makes a fresh id; later ones sort after earlier ones.
    #[must_use]
    pub fn fresh() -> Self {
        Self(uuid::Uuid::now_v7().simple().to_string())
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ChainId {
    type Error = BadChainId;

    fn try_from(text: String) -> Result<Self, BadChainId> {
        let fits = text.len() == 32 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if fits { Ok(Self(text)) } else { Err(BadChainId(super::text::shown(&text, 64))) }
    }
}

impl From<ChainId> for String {
    fn from(id: ChainId) -> Self {
        id.0
    }
}

impl fmt::Display for ChainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How far a chain had come: how many lines it had, and the digest of the last of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// The chain.
    pub chain: ChainId,
    /// How many lines it had, 1 at least.
    pub lines: u64,
    /// The digest of the last one, without its newline.
    pub last: Digest,
}

/// A text is no head.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no head of a chain; one is written CHAIN:LINES:DIGEST, as `portcullis audit verify` prints it")]
pub struct BadHead(String);

impl std::str::FromStr for Head {
    type Err = BadHead;

    fn from_str(text: &str) -> Result<Self, BadHead> {
        let bad = || BadHead(super::text::shown(text, 128));
        let mut parts = text.split(':');
        let (Some(chain), Some(lines), Some(last), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(bad());
        };
        let chain = ChainId::try_from(chain.to_owned()).map_err(|_| bad())?;
        let lines = lines.parse().ok().filter(|lines| *lines > 0).ok_or_else(bad)?;
        Ok(Self { chain, lines, last: Digest::parse(last).map_err(|_| bad())? })
    }
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.chain, self.lines, self.last)
    }
}

/// A key that moves forward: stepping replaces it. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl Key {
    /// Wraps 32 bytes that are secret.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes, for whoever keeps the key.
    #[must_use]
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns what a key may be called by: it says nothing about the key.
    #[must_use]
    pub fn id(&self) -> String {
        Digest::of_parts([b"portcullis key id".as_slice(), &self.0]).to_string()[..16].to_owned()
    }

    /// Replaces the key by its successor, from which nobody gets back.
    pub fn step(&mut self) {
        self.0 = *Digest::of_parts([b"portcullis next key".as_slice(), &self.0]).as_bytes();
    }

    /// Returns the first key of a chain under this root.
    #[must_use]
    pub fn of_chain(&self, chain: &ChainId) -> Self {
        self.derived(&[b"portcullis chain", chain.as_str().as_bytes()])
    }

    /// Returns the key that a tenant's digests are made under, where this is the key of all of them (R34).
    #[must_use]
    pub fn of_tenant(&self, tenant: &str) -> Self {
        self.derived(&[b"portcullis tenant", tenant.as_bytes()])
    }

    fn derived(&self, parts: &[&[u8]]) -> Self {
        let all = Digest::of_parts(parts.iter().copied());
        Self(*self.mark(all.as_bytes()).as_bytes())
    }

    /// Returns the mark of `bytes` under this key: HMAC-SHA-256.
    #[must_use]
    #[expect(clippy::expect_used, reason = "INVARIANT: HMAC takes keys of every length")]
    pub fn mark(&self, bytes: &[u8]) -> Digest {
        let mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of every length");
        Digest::from_bytes(mac.chain_update(bytes).finalize().into_bytes().into())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.id())
    }
}

/// A root as its owner keeps it, far from the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootKey(pub Key);

/// A text is no root key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this is no key for records; `portcullis audit key FILE` makes one")]
pub struct BadRootKey;

/// What a written root key begins with.
const PREFIX: &str = "portcullis-records-1:";

impl RootKey {
    /// Parses what [`RootKey::text`] wrote.
    ///
    /// # Errors
    /// [`BadRootKey`] for anything else.
    pub fn parse(text: &str) -> Result<Self, BadRootKey> {
        let digits = text.trim().strip_prefix(PREFIX).ok_or(BadRootKey)?;
        Ok(Self(Key::new(*Digest::parse(digits).map_err(|_| BadRootKey)?.as_bytes())))
    }

    /// Returns the text to keep, a line.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{PREFIX}{}\n", hex::encode(self.0.expose()))
    }

    /// Returns the first key of a chain that was begun `step` steps after this root.
    #[must_use]
    pub fn of_chain(&self, chain: &ChainId, step: u64) -> Key {
        let mut key = self.0.clone();
        (0..step.min(MAX_STEPS)).for_each(|_| key.step());
        key.of_chain(chain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r34_a_key_that_has_moved_on_marks_nothing_of_before() {
        let first = Key::new([7; 32]);
        let mut key = first.clone();
        let before = key.mark(b"line");
        key.step();
        assert_ne!(key.mark(b"line"), before);
        assert_ne!(key, first);
        assert_eq!(first.mark(b"line"), before);
    }

    #[test]
    fn r34_whoever_kept_the_root_finds_the_key_of_every_chain_and_no_two_chains_share_one() {
        let (one, other) = (ChainId::fresh(), ChainId::fresh());
        let mut held = Key::new([1; 32]);
        let root = RootKey::parse(&RootKey(held.clone()).text()).unwrap();
        (0..3).for_each(|_| held.step());
        assert_eq!(root.of_chain(&one, 3), held.of_chain(&one));
        assert_ne!(root.of_chain(&one, 3), root.of_chain(&other, 3));
        assert_ne!(root.of_chain(&one, 3), root.of_chain(&one, 2));
    }

    #[test]
    fn no_key_is_printed() {
        let key = Key::new([0x5a; 32]);
        assert!(!format!("{key:?} {:?}", RootKey(key.clone())).contains("5a5a5a"));
    }

    #[test]
    fn a_head_reads_what_it_prints_and_nothing_else() {
        let head = Head { chain: ChainId::fresh(), lines: 3, last: Digest::of(b"x") };
        assert_eq!(head.to_string().parse(), Ok(head));
        for bad in ["", "a:1:b", "00000000000000000000000000000000:0:00"] {
            assert!(bad.parse::<Head>().is_err(), "{bad}");
        }
    }
}
