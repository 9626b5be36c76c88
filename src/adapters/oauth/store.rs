//! Where logins are kept: one file for each tenant, principal and server, which only the user can read.
//!
//! Promises: a file is written whole or not at all (a temporary file, then a rename), with mode 600 in a folder of mode
//! 700; one that others can read, that somebody else owns, that is a link or is too large is refused, through the handle
//! that is then read. A lock beside it keeps two processes from renewing one token at once.
//!
//! Does not hide tokens from programs of the same user: that would need another keeper than a file.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::record::Record;
use super::target::Target;
use crate::config::open::{OpenError, check_owner, check_regular, read_bounded};
use crate::model::caller::{Principal, TenantId};
use crate::model::digest::Digest;
use crate::model::text::shown;

/// The largest file of a login, in bytes: three secrets of 16 KiB, and what goes with them.
const MAX_FILE: u64 = 256 * 1024;
/// Readable or writable by group or others.
const SHARED: u32 = 0o077;
/// How long another process's renewal is waited for: longer than an exchange may take.
const LOCK_WAIT: Duration = Duration::from_secs(45);
/// How often a lock is tried: the system tells nobody when it becomes free.
const LOCK_TRY: Duration = Duration::from_millis(25);

/// Why a login cannot be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file or folder cannot be used.
    #[error("a file of the login cannot be used")]
    Open(#[from] OpenError),
    /// Others can read the file, so the token counts as lost.
    #[error("`{}` is readable by others (mode {mode:03o}); log out, log in again and see who has read it",
        shown(&path.display().to_string(), 300))]
    Shared {
        /// The file.
        path: PathBuf,
        /// The permission bits.
        mode: u32,
    },
    /// The file or folder is somebody else's.
    #[error("`{}` is owned by user {owner}, not by you", shown(&path.display().to_string(), 300))]
    Owner {
        /// The file or folder.
        path: PathBuf,
        /// The owner's id.
        owner: u32,
    },
    /// The file is not what we write.
    #[error("`{}` is damaged: {why}; log in again", shown(&path.display().to_string(), 300))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong, by its place.
        why: String,
    },
    /// It cannot be written or removed.
    #[error("`{}` cannot be written", shown(&path.display().to_string(), 300))]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The process is ending.
    #[error("reading or writing a login was broken off")]
    Interrupted,
    /// Another process holds the lock.
    #[error("another process holds `{}`", shown(&.0.display().to_string(), 300))]
    Locked(PathBuf),
}

/// The place of one login.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    folder: PathBuf,
    file: PathBuf,
    user: u32,
}

/// Held while a login is changed.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Slot {
    /// The place in the user's state folder. `user` is whose files they must be.
    pub(super) fn new(state: &Path, user: u32, tenant: &TenantId, principal: &Principal, target: &Target) -> Self {
        let key = json!([tenant, principal, target.server, target.identity]).to_string();
        let folder = state.join("oauth");
        let digest = hex::encode(Digest::of(key.as_bytes()).as_bytes());
        Self { file: folder.join(format!("{digest}.json")), folder, user }
    }

    /// Reads the login; `None`: there is none.
    pub(super) fn read(&self) -> Result<Option<Record>, StoreError> {
        let Some(file) = self.open()? else { return Ok(None) };
        let stat = check_regular(&file, &self.file)?;
        let mode = stat.st_mode & 0o777;
        if stat.st_uid != self.user {
            return Err(StoreError::Owner { path: self.file.clone(), owner: stat.st_uid });
        }
        if mode & SHARED != 0 {
            return Err(StoreError::Shared { path: self.file.clone(), mode });
        }
        self.check_folder()?;
        let bytes = read_bounded(file, &self.file, MAX_FILE)?;
        let damaged = |why| StoreError::Damaged { path: self.file.clone(), why };
        Record::parse(&bytes).map(Some).map_err(damaged)
    }

    /// Opens without following a link or waiting for a pipe.
    fn open(&self) -> Result<Option<File>, StoreError> {
        match private(OpenOptions::new().read(true)).open(&self.file) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(OpenError::Io(self.file.clone(), error).into()),
        }
    }

    fn check_folder(&self) -> Result<(), StoreError> {
        let stat = rustix::fs::lstat(&self.folder).map_err(|e| OpenError::Io(self.folder.clone(), e.into()))?;
        if stat.st_uid != self.user {
            return Err(StoreError::Owner { path: self.folder.clone(), owner: stat.st_uid });
        }
        Ok(check_owner(&stat, self.user, &self.folder, false)?)
    }

    /// Replaces the login whole.
    pub(super) fn write(&self, record: &Record, _held: &Lock) -> Result<(), StoreError> {
        let fresh = self.fresh();
        let written = (|| {
            let bytes = record.to_bytes()?;
            // Whoever left it there did not live to rename it: the lock is ours.
            remove(&fresh)?;
            let mut file = private(OpenOptions::new().write(true).create_new(true)).open(&fresh)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            std::fs::rename(&fresh, &self.file)
        })();
        written.map_err(|source| {
            // The error that counts is the first.
            let _ = remove(&fresh);
            StoreError::Write { path: self.file.clone(), source }
        })
    }

    /// Removes the login, whatever is in it; returns whether there was one.
    pub(super) fn remove(&self, _held: &Lock) -> Result<bool, StoreError> {
        let removed = remove(&self.fresh()).and_then(|_| remove(&self.file));
        removed.map_err(|source| StoreError::Write { path: self.file.clone(), source })
    }

    /// Where a login is written before it is in force.
    fn fresh(&self) -> PathBuf {
        self.file.with_extension("new")
    }

    /// Whether there is a login, readable or not.
    pub(super) fn exists(&self) -> bool {
        self.file.symlink_metadata().is_ok()
    }

    /// Waits for the right to change the login, makes the folder if needed, and checks it.
    pub(super) async fn lock(&self) -> Result<Lock, StoreError> {
        let path = self.file.with_extension("lock");
        let failed = |source| StoreError::Write { path: path.clone(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder).map_err(failed)?;
        self.check_folder()?;
        // Stays when the login goes: removing it would let two processes hold two locks.
        let file = private(OpenOptions::new().write(true).create(true).truncate(false)).open(&path).map_err(failed)?;
        let give_up = Instant::now() + LOCK_WAIT;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Lock { _file: file }),
                Err(TryLockError::WouldBlock) if Instant::now() < give_up => sleep(LOCK_TRY).await,
                Err(TryLockError::WouldBlock) => return Err(StoreError::Locked(path)),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
    }
}

/// Removes a file; returns whether it existed.
fn remove(path: &Path) -> io::Result<bool> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// A file that is made for its owner alone and never reached through a link.
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    options.mode(0o600).custom_flags(flags.bits().cast_signed())
}
