//! The approver key: whoever has it may allow without a terminal (R20).
//!
//! The user's state holds its SHA-256 and the roles that it carries, in a file that only the user reads. The key itself is in the environment of
//! whoever approves. No server gets it from us: a configuration that names the variable finds that it is not set, and no
//! child inherits the environment.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::config::Places;
use crate::config::open::{OpenError, read_owned};
use crate::model::digest::Digest;
use crate::model::role::{MAX_ROLE, MAX_ROLES, Role};
use crate::model::text::shown;

/// The variable that the key is in.
pub const VARIABLE: &str = "PORTCULLIS_APPROVER_KEY";
/// The file's name.
const FILE: &str = "approver.key";
/// The largest file that is read, in bytes: a digest, and the roles at four bytes a character.
const MAX_FILE: u64 = 128 + (MAX_ROLES * (4 * MAX_ROLE + 1)) as u64;

/// Returns a variable of the environment, for what a configuration names. The approver key counts as not set.
#[must_use]
pub fn variable(name: &str) -> Option<String> {
    (name != VARIABLE).then(|| std::env::var(name).ok()).flatten()
}

/// Why the approver key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("the approver key cannot be read")]
    Open(#[from] OpenError),
    /// The file cannot be written or removed.
    #[error("the approver key `{}` cannot be changed", path(.0))]
    Io(PathBuf, #[source] io::Error),
    /// The file is not what is written here.
    #[error("the approver key `{}` is damaged; run `portcullis approvals key set`", path(.0))]
    Damaged(PathBuf),
    /// Others may read or write it.
    #[error("the approver key `{}` is open to others; see who has changed it, then `portcullis approvals key set`", path(.0))]
    Shared(PathBuf),
    /// It shall carry more roles than it can.
    #[error("an approver key carries at most {MAX_ROLES} roles")]
    Roles,
    /// The system has no random numbers.
    #[error("the system gives no random numbers")]
    Random,
}

fn path(path: &Path) -> String {
    shown(&path.display().to_string(), 300)
}

/// What a text is to the key that is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    /// No key is set.
    NoKey,
    /// It is another one.
    Other,
    /// It is the key, and carries these roles (R20).
    Key(BTreeSet<Role>),
}

/// Where the key's digest is kept.
#[derive(Debug, Clone)]
pub struct ApproverKey {
    file: PathBuf,
    user: u32,
}

impl ApproverKey {
    /// Returns the user's; none without a place for the user's state.
    #[must_use]
    pub fn of(places: &Places) -> Option<Self> {
        let file = places.state.as_ref()?.join(FILE);
        Some(Self { file, user: places.user })
    }

    /// Makes a key that carries these roles, keeps its digest, and returns the key. The state's folder must be there.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn set(&self, roles: &BTreeSet<Role>) -> Result<String, KeyError> {
        if roles.len() > MAX_ROLES {
            return Err(KeyError::Roles);
        }
        let mut random = [0; 32];
        getrandom::fill(&mut random).map_err(|_| KeyError::Random)?;
        let key = hex::encode(random);
        let failed = |error| KeyError::Io(self.file.clone(), error);
        let new = self.file.with_extension("new");
        // What is left of one that was killed; a link that somebody has put there is not followed.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            Ok(()) | Err(_) => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).map_err(failed)?;
        let mut text = format!("{}\n", Digest::of(key.as_bytes()));
        roles.iter().for_each(|role| text.extend([role.as_str(), "\n"]));
        file.write_all(text.as_bytes()).map_err(failed)?;
        file.sync_all().and_then(|()| fs::rename(&new, &self.file)).map_err(failed)?;
        Ok(key)
    }

    /// Removes the key; false: there was none.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn remove(&self) -> Result<bool, KeyError> {
        match fs::remove_file(&self.file) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(KeyError::Io(self.file.clone(), error)),
        }
    }

    /// Says whether this is the key, and what it carries then.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn look_at(&self, given: &str) -> Result<Shown, KeyError> {
        let Some(bytes) = read_owned(&self.file, self.user, MAX_FILE)? else { return Ok(Shown::NoKey) };
        let found = self.file.symlink_metadata().map_err(|error| KeyError::Io(self.file.clone(), error))?;
        if found.mode() & 0o077 != 0 || found.uid() != self.user {
            return Err(KeyError::Shared(self.file.clone()));
        }
        let kept = std::str::from_utf8(&bytes).ok().and_then(kept);
        let (kept, roles) = kept.ok_or_else(|| KeyError::Damaged(self.file.clone()))?;
        // Takes the same time whatever is different.
        let given = Digest::of(given.as_bytes());
        let pairs = kept.as_bytes().iter().zip(given.as_bytes());
        let is_key = pairs.fold(0, |all, (a, b)| std::hint::black_box(all | (a ^ b))) == 0;
        Ok(if is_key { Shown::Key(roles) } else { Shown::Other })
    }
}

/// Reads what is kept: the digest, then a role on each line.
fn kept(text: &str) -> Option<(Digest, BTreeSet<Role>)> {
    let mut lines = text.lines();
    let digest = Digest::parse(lines.next()?).ok()?;
    let roles: BTreeSet<Role> = lines.map(|line| Role::parse(line).ok()).collect::<Option<_>>()?;
    (roles.len() <= MAX_ROLES).then_some((digest, roles))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn r20_only_the_key_that_was_made_is_the_key_and_a_new_one_replaces_it() {
        let dir = tempfile::tempdir().unwrap();
        let key = ApproverKey { file: dir.path().join(FILE), user: rustix::process::getuid().as_raw() };
        let none = BTreeSet::new();
        assert_eq!(key.look_at("x").unwrap(), Shown::NoKey);
        let first = key.set(&none).unwrap();
        assert_eq!(key.file.metadata().unwrap().mode() & 0o777, 0o600);
        assert!(!fs::read_to_string(&key.file).unwrap().contains(&first), "the key itself is kept");
        assert_eq!((key.look_at(&first).unwrap(), key.look_at("").unwrap()), (Shown::Key(none.clone()), Shown::Other));
        let second = key.set(&none).unwrap();
        assert_eq!((key.look_at(&first).unwrap(), key.look_at(&second).unwrap()), (Shown::Other, Shown::Key(none)));
        fs::set_permissions(&key.file, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(key.look_at(&second), Err(KeyError::Shared(_))));
        assert!(key.remove().unwrap() && !key.remove().unwrap());
        assert_eq!(key.look_at(&second).unwrap(), Shown::NoKey);
    }

    #[test]
    fn r20_a_key_carries_the_roles_that_it_was_made_with_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let key = ApproverKey { file: dir.path().join(FILE), user: rustix::process::getuid().as_raw() };
        let long: Vec<String> = (0..MAX_ROLES).map(|n| format!("{n:02}{}", "é".repeat(MAX_ROLE - 2))).collect();
        for roles in [vec!["security", "on call"], long.iter().map(String::as_str).collect()] {
            let roles = Role::of_groups(roles);
            let made = key.set(&roles).unwrap();
            assert_eq!(key.look_at(&made).unwrap(), Shown::Key(roles));
        }
        let made = key.set(&BTreeSet::new()).unwrap();
        for (damage, line) in [("a role with white space", " ops\n"), ("an empty line", "\n"), ("bytes", "a\u{7}\n")] {
            fs::write(&key.file, format!("{}\n{line}", Digest::of(made.as_bytes()))).unwrap();
            assert!(matches!(key.look_at(&made), Err(KeyError::Damaged(_))), "{damage}");
        }
        let many: Vec<String> = (0..=MAX_ROLES).map(|n| n.to_string()).collect();
        assert!(matches!(key.set(&Role::of_groups(many.iter().map(String::as_str))), Err(KeyError::Roles)));
    }

    #[test]
    fn r20_a_configuration_does_not_find_the_approver_key() {
        assert_eq!(variable(VARIABLE), None);
        assert_eq!(variable("PATH"), std::env::var("PATH").ok());
    }
}
