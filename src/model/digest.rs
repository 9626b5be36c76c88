//! SHA-256 digests, the only way in which definitions, components and arguments are compared.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// A SHA-256 digest; shown as 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

/// A text is not 64 hex digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a SHA-256 digest (64 hex digits)")]
pub struct BadDigest(String);

impl Digest {
    /// Returns the digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Returns the digest of a sequence of parts, each preceded by its length, so that parts cannot run together.
    #[must_use]
    pub fn of_parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut all = Self::by_parts();
        parts.into_iter().for_each(|part| all.add(part));
        all.finish()
    }

    /// Starts a digest of parts that come one by one; it ends as [`Digest::of_parts`] of them all.
    #[must_use]
    pub fn by_parts() -> Parts {
        Parts(Sha256::new())
    }

    /// Starts a digest of bytes that come one after the other; it ends as [`Digest::of`] of them all.
    #[must_use]
    pub fn running() -> Running {
        Running(Sha256::new())
    }

    /// Parses 64 hex digits.
    ///
    /// # Errors
    /// [`BadDigest`] for anything else.
    pub fn parse(text: &str) -> Result<Self, BadDigest> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| BadDigest(super::text::shown(text, 80)))?;
        Ok(Self(bytes))
    }

    /// Takes 32 bytes that are a digest already.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the 32 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the first 12 hex digits, for people.
    #[must_use]
    pub fn short(&self) -> String {
        hex::encode(&self.0[..6])
    }
}

/// A digest of parts that come one by one.
#[derive(Debug, Clone)]
pub struct Parts(Sha256);

impl Parts {
    /// Adds a part.
    pub fn add(&mut self, part: &[u8]) {
        self.0.update((part.len() as u64).to_be_bytes());
        self.0.update(part);
    }

    /// Returns the digest of all parts.
    #[must_use]
    pub fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

/// A digest of bytes that come one after the other.
#[derive(Debug, Clone)]
pub struct Running(Sha256);

impl Running {
    /// Adds bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the digest of all bytes.
    #[must_use]
    pub fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{self}")
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cannot_run_together() {
        let a = Digest::of_parts([b"ab".as_slice(), b"c"]);
        let b = Digest::of_parts([b"a".as_slice(), b"bc"]);
        assert_ne!(a, b);
    }

    #[test]
    fn bytes_that_come_one_after_the_other_have_the_digest_of_them_all() {
        let mut running = Digest::running();
        running.add(b"ab");
        running.add(b"c");
        assert_eq!(running.finish(), Digest::of(b"abc"));
    }

    #[test]
    fn a_digest_reads_what_it_prints() {
        let digest = Digest::of(b"x");
        assert_eq!(Digest::parse(&digest.to_string()), Ok(digest));
        assert!(Digest::parse("12").is_err());
    }
}
