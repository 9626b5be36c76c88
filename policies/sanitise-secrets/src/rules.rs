//! What secrets look like: the prefixes of tokens, the names of what holds a secret.

/// A kind of secret that can be switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Keys of cloud accounts.
    CloudKey,
    /// Tokens of services, JSON web tokens, authorization headers.
    Token,
    /// PEM blocks and `PuTTY` files.
    PrivateKey,
    /// The password of `scheme://user:password@host`.
    UrlPassword,
    /// The value of `password = ...` and the like.
    Password,
}

pub(super) type Charset = fn(u8) -> bool;

pub(super) fn word(b: u8) -> bool {
    b.is_ascii_alphanumeric()
}
pub(super) fn name(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-')
}
fn upper(b: u8) -> bool {
    b.is_ascii_uppercase() || b.is_ascii_digit()
}
fn hex(b: u8) -> bool {
    b.is_ascii_digit() || matches!(b, b'a'..=b'f')
}
pub(super) fn base64(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'=' | b'_' | b'-' | b'.')
}

/// A token that begins with words of its own: prefix, what follows, how many of them at least and at most.
pub(super) struct Prefixed(
    pub(super) &'static [u8],
    pub(super) Charset,
    pub(super) usize,
    pub(super) usize,
    pub(super) Kind,
);

impl Prefixed {
    /// Which byte of the prefix tells of it: the last one, which is seldom a small letter; of `AIza` the `I`.
    pub(super) const fn told_by(&self) -> usize {
        match self.0 {
            b"AIza" => 1,
            prefix => prefix.len() - 1,
        }
    }

    /// Whether a word must begin with it: these stand inside of other words by chance.
    pub(super) fn needs_word(&self) -> bool {
        matches!(self.0, b"sk-" | b"SK" | b"SG." | b"hf_" | b"npm_")
    }

    pub(super) const fn tell(&self) -> u8 {
        self.0[self.told_by()]
    }
}

pub(super) const PREFIXED: &[Prefixed] = &[
    Prefixed(b"AKIA", upper, 16, 16, Kind::CloudKey),
    Prefixed(b"ASIA", upper, 16, 16, Kind::CloudKey),
    Prefixed(b"AIza", name, 35, 35, Kind::CloudKey),
    Prefixed(b"ghp_", word, 36, 255, Kind::Token),
    Prefixed(b"gho_", word, 36, 255, Kind::Token),
    Prefixed(b"ghu_", word, 36, 255, Kind::Token),
    Prefixed(b"ghs_", word, 36, 255, Kind::Token),
    Prefixed(b"ghr_", word, 36, 255, Kind::Token),
    Prefixed(b"github_pat_", name, 60, 255, Kind::Token),
    Prefixed(b"glpat-", name, 20, 255, Kind::Token),
    Prefixed(b"gldt-", name, 20, 255, Kind::Token),
    Prefixed(b"glrt-", name, 20, 255, Kind::Token),
    Prefixed(b"glcbt-", name, 20, 255, Kind::Token),
    Prefixed(b"xoxb-", name, 20, 255, Kind::Token),
    Prefixed(b"xoxp-", name, 20, 255, Kind::Token),
    Prefixed(b"xoxa-", name, 20, 255, Kind::Token),
    Prefixed(b"xoxr-", name, 20, 255, Kind::Token),
    Prefixed(b"xoxs-", name, 20, 255, Kind::Token),
    Prefixed(b"xapp-", name, 20, 255, Kind::Token),
    Prefixed(b"sk_live_", word, 24, 255, Kind::Token),
    Prefixed(b"sk_test_", word, 24, 255, Kind::Token),
    Prefixed(b"rk_live_", word, 24, 255, Kind::Token),
    Prefixed(b"rk_test_", word, 24, 255, Kind::Token),
    Prefixed(b"whsec_", base64, 32, 255, Kind::Token),
    Prefixed(b"npm_", word, 36, 36, Kind::Token),
    Prefixed(b"pypi-", name, 60, 512, Kind::Token),
    Prefixed(b"sk-", name, 32, 255, Kind::Token),
    Prefixed(b"hf_", word, 34, 64, Kind::Token),
    Prefixed(b"SG.", base64, 60, 80, Kind::Token),
    Prefixed(b"SK", hex, 32, 32, Kind::Token),
    Prefixed(b"ya29.", name, 30, 2048, Kind::Token),
    Prefixed(b"GOCSPX-", name, 28, 28, Kind::Token),
    Prefixed(b"eyJ", base64, 40, 16384, Kind::Token),
];

/// The last words of names whose values are secrets, in small letters without `_`, `-`.
pub(super) const SECRET_NAMES: &[(&[u8], Kind)] = &[
    (b"password", Kind::Password),
    (b"passwd", Kind::Password),
    (b"passphrase", Kind::Password),
    (b"pwd", Kind::Password),
    (b"clientsecret", Kind::Password),
    (b"secretkey", Kind::Password),
    (b"apikey", Kind::Token),
    (b"authtoken", Kind::Token),
    (b"accesstoken", Kind::Token),
    (b"refreshtoken", Kind::Token),
    (b"secretaccesskey", Kind::CloudKey),
    (b"accountkey", Kind::CloudKey),
    (b"sharedaccesskey", Kind::CloudKey),
];
