//! Ed25519 signatures of components, detached: `FILE.wasm.sig` beside `FILE.wasm`.
//!
//! What is signed is a text that says what it is, and the SHA-256 of the component: a signature for another purpose is none
//! here. The file is one line: `portcullis-signature-v1 KEYID BASE64`. The key id only says which key was used; a signature
//! counts if a key that the requirements list verifies it.
//!
//! A private key is in a file of its own, which only its owner may read; it is never printed, logged or given as an argument.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};

use super::open::{OpenError, check_owner, check_regular, open, read_bounded};
use crate::model::digest::Digest;
use crate::model::secret::Secret;
use crate::model::text::shown;

/// The largest signature or key file, in bytes.
pub const MAX_TEXT: u64 = 1024;
const SIGNATURE: &str = "portcullis-signature-v1";
const PRIVATE: &str = "portcullis-private-key-v1";
const PURPOSE: &[u8] = b"portcullis component signature v1\n";

/// Why a key or signature is none, or does not count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// Not an Ed25519 public key in base64.
    #[error("the public key is not 32 bytes in base64")]
    PublicKey,
    /// Not a private key file of ours.
    #[error("the file is no private key of `policy sign --new-key`")]
    PrivateKey,
    /// Not a signature file of ours.
    #[error("the signature file is not `{SIGNATURE} KEYID BASE64`")]
    Form,
    /// Signed by a key that is not listed.
    #[error("the signature is by the unknown key {}", shown(.0, 64))]
    UnknownKey(String),
    /// Signed by a listed key, over other bytes.
    #[error("the signature by the key {} does not hold for these bytes", shown(.0, 64))]
    Wrong(String),
    /// The system has no randomness.
    #[error("no key could be made: the system gives no randomness")]
    Random,
}

/// Keeps a new private key in a file that must not exist; only its owner may read it.
///
/// # Errors
/// The file exists or cannot be written.
pub fn keep_key(path: &Path, text: &Secret) -> Result<(), OpenError> {
    let failed = |error| OpenError::Io(path.to_owned(), error);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    file.write_all(text.expose().as_bytes()).and_then(|()| file.sync_all()).map_err(failed)
}

/// Reads a private key's file, which nobody but its owner may read. `Ok(None)`: there is none.
///
/// # Errors
/// Others may read or write it, somebody else owns it, or it is none of ours.
pub fn read_key(path: &Path, user: u32) -> Result<Option<PrivateKey>, KeyError> {
    let Some(file) = open(path)? else { return Ok(None) };
    let stat = check_regular(&file, path)?;
    check_owner(&stat, user, path, false)?;
    if stat.st_mode & 0o077 != 0 {
        return Err(KeyError::Readable(path.to_owned()));
    }
    Ok(Some(PrivateKey::parse(&read_bounded(file, path, MAX_TEXT)?)?))
}

/// Why a private key's file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// Others may read it.
    #[error("`{}` can be read by others; `chmod 600` it, and think of a new key", shown(&.0.display().to_string(), 300))]
    Readable(PathBuf),
    /// It cannot be opened or read.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It is no key.
    #[error(transparent)]
    Form(#[from] SignatureError),
}

/// Who may sign.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// Parses 32 bytes in base64.
    ///
    /// # Errors
    /// [`SignatureError::PublicKey`].
    pub fn parse(text: &str) -> Result<Self, SignatureError> {
        let bytes = STANDARD.decode(text.trim()).map_err(|_| SignatureError::PublicKey)?;
        bytes.try_into().map(Self).map_err(|_| SignatureError::PublicKey)
    }

    /// Returns the first 16 hex digits of the key's SHA-256.
    #[must_use]
    pub fn id(&self) -> String {
        Digest::of(&self.0).to_string().chars().take(16).collect()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({})", self.id())
    }
}

/// Who signs. `Debug` shows the public half only.
pub struct PrivateKey(Ed25519KeyPair);

impl PrivateKey {
    /// Makes a key; returns it with the text of its file.
    ///
    /// # Errors
    /// [`SignatureError::Random`].
    pub fn generate() -> Result<(Self, Secret), SignatureError> {
        let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| SignatureError::Random)?;
        let text = format!("{PRIVATE} {}\n", STANDARD.encode(made.as_ref()));
        Ok((Self::parse(text.as_bytes())?, Secret::new(text)))
    }

    /// Reads the text of a key's file.
    ///
    /// # Errors
    /// [`SignatureError::PrivateKey`].
    pub fn parse(text: &[u8]) -> Result<Self, SignatureError> {
        let text = std::str::from_utf8(text).ok().and_then(|text| text.trim().strip_prefix(PRIVATE));
        let bytes = text.and_then(|text| STANDARD.decode(text.trim()).ok()).ok_or(SignatureError::PrivateKey)?;
        Ed25519KeyPair::from_pkcs8(&bytes).map(Self).map_err(|_| SignatureError::PrivateKey)
    }

    /// Returns the public half.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        let bytes: Result<[u8; 32], _> = self.0.public_key().as_ref().try_into();
        PublicKey(bytes.unwrap_or_default())
    }

    /// Signs a component by its digest; returns the text of the signature's file.
    #[must_use]
    pub fn sign(&self, component: Digest) -> String {
        let bytes = self.0.sign(&message(component));
        format!("{SIGNATURE} {} {}\n", self.public().id(), STANDARD.encode(bytes.as_ref()))
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateKey({})", self.public().id())
    }
}

/// A signature file, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    key: String,
    bytes: Vec<u8>,
}

impl Signature {
    /// Reads the text of a signature's file.
    ///
    /// # Errors
    /// [`SignatureError::Form`].
    pub fn parse(text: &[u8]) -> Result<Self, SignatureError> {
        let words: Vec<&str> =
            std::str::from_utf8(text).map_err(|_| SignatureError::Form)?.split_whitespace().collect();
        let [SIGNATURE, key, signature] = words.as_slice() else { return Err(SignatureError::Form) };
        let bytes = STANDARD.decode(signature).map_err(|_| SignatureError::Form)?;
        Ok(Self { key: (*key).to_owned(), bytes })
    }

    /// Checks that one of the keys signed the component.
    ///
    /// # Errors
    /// [`SignatureError::UnknownKey`] or [`SignatureError::Wrong`].
    pub fn verify(&self, component: Digest, keys: &[PublicKey]) -> Result<(), SignatureError> {
        let holds =
            |key: &PublicKey| UnparsedPublicKey::new(&ED25519, key.0).verify(&message(component), &self.bytes).is_ok();
        if keys.iter().any(holds) {
            return Ok(());
        }
        let key = self.key.clone();
        let known = keys.iter().any(|own| own.id() == key);
        Err(if known { SignatureError::Wrong(key) } else { SignatureError::UnknownKey(key) })
    }
}

fn message(component: Digest) -> Vec<u8> {
    [PURPOSE, component.as_bytes().as_slice()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_holds_for_its_bytes_and_its_key_alone() {
        let (key, text) = PrivateKey::generate().unwrap();
        let (other, _) = PrivateKey::generate().unwrap();
        let again = PrivateKey::parse(text.expose().as_bytes()).unwrap();
        assert_eq!(again.public(), key.public());
        let signature = Signature::parse(again.sign(Digest::of(b"a")).as_bytes()).unwrap();
        let keys = [key.public()];
        assert_eq!(signature.verify(Digest::of(b"a"), &keys), Ok(()));
        assert_eq!(signature.verify(Digest::of(b"b"), &keys), Err(SignatureError::Wrong(key.public().id())));
        let unknown = SignatureError::UnknownKey(key.public().id());
        assert_eq!(signature.verify(Digest::of(b"a"), &[other.public()]), Err(unknown.clone()));
        assert_eq!(signature.verify(Digest::of(b"a"), &[]), Err(unknown));
        assert_eq!(PublicKey::parse(&key.public().to_string()), Ok(key.public()));
        assert!(!format!("{key:?}").contains(text.expose().split_whitespace().nth(1).unwrap()));
    }

    #[test]
    fn what_is_no_signature_is_an_error() {
        for text in ["", "portcullis-signature-v1 a", "portcullis-signature-v1 a !", "other a AA==", "\u{0}"] {
            assert_eq!(Signature::parse(text.as_bytes()), Err(SignatureError::Form), "{text}");
        }
        assert!(PublicKey::parse("AA==").is_err() && PrivateKey::parse(b"x").is_err());
    }
}
