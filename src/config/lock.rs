//! `policies.lock`: what the components and data of a folder's layer files were when somebody last locked them.
//!
//! One lock lies beside the layer files of one folder and holds an entry for each of their policies. Where there is one, it
//! counts: an entry of a layer file that is not in it, or is not what it records, is a fault of that entry alone, and a lock
//! that cannot be read is one of every entry beside it. Only "does not exist" is no lock (R8). It is read with the bounds and
//! the ownership of a layer file (R6). Making one is `locking`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::open::{OpenError, explained, read_owned};
use super::problem::Problem;
use super::stack::Layer;
use crate::model::digest::Digest;
use crate::model::layer::LayerRef;
use crate::model::text::shown;

/// The lock's name.
pub const FILE: &str = "policies.lock";
/// The largest lock, in bytes: seven layer files of 512 policies fit.
const MAX_LOCK: u64 = 4 * 1024 * 1024;
/// The version of the form.
const VERSION: i64 = 1;
const COMMENT: &str = "# Made by `portcullis policy lock`, which also renews it; do not edit.\n";

/// What one policy of one layer file was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockedPolicy {
    /// The layer file's name in the folder.
    pub layer: String,
    /// The policy's name.
    pub name: String,
    /// The component's file, as the entry has it.
    pub component: String,
    /// The component's SHA-256.
    pub sha256: Digest,
    /// The component's size, in bytes.
    pub size: u64,
    /// The id of the key that signed it, if that is one that requirements list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signer: Option<String>,
    /// The digest of the data folder, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Digest>,
}

impl LockedPolicy {
    fn key(&self) -> (String, String) {
        (self.layer.clone(), self.name.clone())
    }

    /// Returns what of the bytes is not as recorded.
    pub(crate) fn differs(&self, component: &Path, found: Digest) -> Option<String> {
        if Path::new(&self.component) != component {
            return Some(format!("`{FILE}` records another component, `{}`", shown(&self.component, 100)));
        }
        let differs = self.sha256 != found;
        differs.then(|| format!("`{FILE}` records {}, the component is {}", self.sha256.short(), found.short()))
    }

    /// Returns what of the data folder is not as recorded.
    pub(crate) fn data_differs(&self, found: Option<Digest>) -> Option<String> {
        let said = |digest: Option<Digest>| digest.map_or_else(|| "none".to_owned(), |digest| digest.short());
        let differs = self.data != found;
        differs.then(|| format!("`{FILE}` records the data {}, the data folder is {}", said(self.data), said(found)))
    }
}

/// Why a lock cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// It cannot be opened or read, or others could have written it (R6).
    #[error("the lock cannot be used: {}", explained(.0))]
    Open(OpenError),
    /// A newer version made it.
    #[error("{}:{line}: the lock has the version {version}, and this program knows {VERSION}: use a newer one", shown(&path.display().to_string(), 200))]
    Newer {
        /// The lock.
        path: PathBuf,
        /// Where it says so.
        line: usize,
        /// The version.
        version: i64,
    },
    /// It is no lock.
    #[error("{}:{line}: {what}", shown(&path.display().to_string(), 200))]
    Form {
        /// The lock.
        path: PathBuf,
        /// The line, counted from one.
        line: usize,
        /// What is wrong.
        what: String,
    },
}

#[derive(Deserialize)]
struct Head {
    version: Spanned<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(rename = "version")]
    _version: i64,
    #[serde(default, rename = "policy")]
    policies: Vec<Spanned<LockedPolicy>>,
}

#[derive(Serialize)]
struct Written<'a> {
    version: i64,
    policy: Vec<&'a LockedPolicy>,
}

/// A lock, read or to be written: its policies by layer file and name, with their lines if it was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lock {
    policies: BTreeMap<(String, String), (LockedPolicy, Option<usize>)>,
}

impl Lock {
    /// Takes policies in any order; of two of one name in one file the later counts.
    #[must_use]
    pub fn new(policies: impl IntoIterator<Item = LockedPolicy>) -> Self {
        Self { policies: policies.into_iter().map(|policy| (policy.key(), (policy, None))).collect() }
    }

    /// Reads the lock of a folder. `None`: it has none.
    ///
    /// # Errors
    /// It cannot be read, others than root and `user` could have written it, or it is none.
    pub fn read(folder: &Path, user: u32) -> Result<Option<Self>, LockError> {
        let path = folder.join(FILE);
        let Some(bytes) = read_owned(&path, user, MAX_LOCK).map_err(LockError::Open)? else { return Ok(None) };
        match String::from_utf8(bytes) {
            Ok(text) => Self::parse(&text, &path).map(Some),
            Err(_) => Err(LockError::Form { path, line: 1, what: "the lock is not UTF-8".to_owned() }),
        }
    }

    /// Parses a lock's text; `path` is for messages.
    ///
    /// # Errors
    /// [`LockError::Newer`] or [`LockError::Form`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, LockError> {
        let line = |offset: usize| text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1;
        let bad = |at: usize, what: String| LockError::Form { path: path.to_owned(), line: line(at), what };
        let read = |error: &toml::de::Error| {
            let start = error.span().map_or(0, |span| span.start);
            bad(start, format!("the lock cannot be read: {}", shown(error.message(), 200)))
        };
        let head: Head = toml::from_str(text).map_err(|error| read(&error))?;
        let (version, at) = (*head.version.get_ref(), head.version.span().start);
        if version > VERSION {
            return Err(LockError::Newer { path: path.to_owned(), line: line(at), version });
        }
        if version != VERSION {
            return Err(bad(at, format!("there is no version {version} of a lock")));
        }
        let table: Table = toml::from_str(text).map_err(|error| read(&error))?;
        let mut policies = BTreeMap::new();
        for policy in table.policies {
            let start = policy.span().start;
            let policy = policy.into_inner();
            let (layer, name) = policy.key();
            if policies.insert(policy.key(), (policy, Some(line(start)))).is_some() {
                let what = format!("the policy `{}` of `{}` is in the lock twice", shown(&name, 64), shown(&layer, 64));
                return Err(bad(start, what));
            }
        }
        Ok(Self { policies })
    }

    /// Returns the lock's text: the same for the same policies.
    ///
    /// # Errors
    /// A size is beyond what TOML can write.
    pub fn text(&self) -> Result<String, toml::ser::Error> {
        let written = Written { version: VERSION, policy: self.policies.values().map(|(policy, _)| policy).collect() };
        Ok(format!("{COMMENT}{}", toml::to_string(&written)?))
    }

    /// Returns a layer file's policies by name, each with its line in the lock.
    pub(crate) fn of(&self, layer: &str) -> BTreeMap<String, (LockedPolicy, Option<usize>)> {
        let own = self.policies.iter().filter(|((file, _), _)| file == layer);
        own.map(|((_, name), policy)| (name.clone(), policy.clone())).collect()
    }

    /// Returns the names of the layer files that it has policies of.
    pub(crate) fn layers(&self) -> std::collections::BTreeSet<String> {
        self.policies.keys().map(|(layer, _)| layer.clone()).collect()
    }
}

/// What the lock beside a layer file says about that file.
#[derive(Debug, Clone, Default)]
pub(crate) enum LayerLock {
    /// There is no lock.
    #[default]
    None,
    /// There is one that cannot be used, and why.
    Unusable(String),
    /// What it records, by the policies' names, with lines.
    Records(BTreeMap<String, (LockedPolicy, Option<usize>)>),
}

impl LayerLock {
    /// Takes what reading the folder's lock gave.
    pub(crate) fn new(lock: &Result<Option<Lock>, String>, file: &Path) -> Self {
        match lock {
            Ok(None) => Self::None,
            Err(why) => Self::Unusable(why.clone()),
            Ok(Some(lock)) => Self::Records(lock.of(&layer_name(file))),
        }
    }

    /// Returns what holds for one policy.
    pub(crate) fn of(&self, name: &str) -> Locked {
        match self {
            Self::None => Locked::Free,
            Self::Unusable(why) => Locked::Refused(why.clone()),
            Self::Records(policies) => match policies.get(name) {
                Some((policy, _)) => Locked::To(Box::new(policy.clone())),
                None => Locked::Refused(format!("`{FILE}` has no entry for it")),
            },
        }
    }
}

/// What the lock wants of one policy.
#[derive(Debug, Clone, Default)]
pub(crate) enum Locked {
    /// Nothing: there is no lock.
    #[default]
    Free,
    /// That it is as recorded.
    To(Box<LockedPolicy>),
    /// It cannot be used, and why.
    Refused(String),
}

/// The name that a lock knows a layer file by.
pub(crate) fn layer_name(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Warns of every entry of a lock that its layer file has no policy for any more.
pub(crate) fn stale(layers: &[Layer]) -> Vec<Problem> {
    let mut found = Vec::new();
    for layer in layers {
        let LayerLock::Records(policies) = &layer.lock else { continue };
        let known = |name: &str| layer.file.policies.iter().any(|item| item.name == name);
        for (name, (_, line)) in policies.iter().filter(|(name, _)| !known(name)) {
            found.push(stale_entry(&layer.reference, &layer.folder, name, *line));
        }
    }
    found
}

/// The warning for one such entry.
pub(crate) fn stale_entry(layer: &LayerRef, folder: &Path, name: &str, line: Option<usize>) -> Problem {
    let message =
        format!("the policy `{}` is in the lock, but not in its layer; run `portcullis policy lock`", shown(name, 64));
    Problem { file: Some(folder.join(FILE)), ..Problem::at(layer, line, "", message) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(layer: &str, name: &str) -> LockedPolicy {
        LockedPolicy {
            layer: layer.to_owned(),
            name: name.to_owned(),
            component: format!("{name}.wasm"),
            sha256: Digest::of(name.as_bytes()),
            size: 1,
            signer: None,
            data: None,
        }
    }

    fn parse(text: &str) -> Result<Lock, String> {
        Lock::parse(text, Path::new("/x/policies.lock")).map_err(|error| error.to_string())
    }

    #[test]
    fn a_lock_is_the_same_text_for_the_same_policies_in_any_order_and_reads_back() {
        let policies = [policy("b.toml", "q"), policy("a.toml", "p"), policy("b.toml", "p")];
        let text = Lock::new(policies.clone()).text().unwrap();
        assert_eq!(text, Lock::new(policies.into_iter().rev()).text().unwrap());
        assert!(text.starts_with("# Made by `portcullis policy lock`"), "{text}");
        let read = parse(&text).unwrap();
        assert_eq!(read.text().unwrap(), text);
        assert_eq!(read.layers().into_iter().collect::<Vec<_>>(), ["a.toml", "b.toml"]);
        assert_eq!(read.of("b.toml").keys().collect::<Vec<_>>(), ["p", "q"]);
        assert_eq!(parse(&Lock::default().text().unwrap()).unwrap(), Lock::default());
    }

    #[test]
    fn a_lock_that_is_none_is_an_error_with_file_and_line() {
        let one = Lock::new([policy("a.toml", "p")]).text().unwrap();
        let (_, entry) = one.split_once("[[policy]]").unwrap();
        let cases = [
            ("rubbish".to_owned(), ":1: "),
            ("\n\nversion = 2\nnew = 1\n".to_owned(), ":3: the lock has the version 2"),
            ("version = 0\n".to_owned(), ":1: there is no version 0"),
            ("version = 1\nmore = 2\n".to_owned(), "unknown field `more`"),
            (format!("{one}\n[[policy]]{entry}"), "is in the lock twice"),
            (one.replace("sha256 = \"", "sha256 = \"zz"), "is not a SHA-256 digest"),
        ];
        for (text, wanted) in cases {
            let error = parse(&text).unwrap_err();
            assert!(error.starts_with("/x/policies.lock:") && error.contains(wanted), "{error}");
        }
    }
}
