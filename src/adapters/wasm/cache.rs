//! Compiled code that is kept, so that a start does not compile again what it has compiled before (R36).
//!
//! Promises: a file is used only if its mark holds: an HMAC-SHA256 under a key of this installation, over what the code was
//! made from (source digest, engine, target, host version) and over the very bytes that are then loaded. A file is read
//! once, into memory, and never mapped. Whatever does not hold is a miss. The folder is bounded; what was used longest ago
//! goes first. Nothing that goes wrong here is more than a warning: the component is compiled.
//!
//! Does not protect from programs of the same user that read the key; those could as well replace the host.

use std::fs::DirBuilder;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use cap_std::ambient_authority;
use cap_std::fs::{Dir, MetadataExt as _, OpenOptions, OpenOptionsExt as _};
use hmac::{Hmac, KeyInit as _, Mac as _};
use rustix::fs::OFlags;
use sha2::Sha256;

use super::compile::MAX_ARTIFACT;
use crate::config::open::check_regular;
use crate::model::digest::Digest;
use crate::model::text::shown;

/// What all files may have together, in bytes.
const MAX_BYTES: u64 = 512 << 20;
/// The length of the key and of a mark, in bytes.
const MARK: usize = 32;
/// The end of a file's name.
const ENDING: &str = ".code";
/// Readable or writable by group or others.
const SHARED: u32 = 0o077;
/// Writable by group or others.
const SHARED_WRITE: u32 = 0o022;

/// Why there is no cache. The host works without one.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The folder or key cannot be made or read.
    #[error("`{}` cannot be used", shown(&.0.display().to_string(), 300))]
    Io(PathBuf, #[source] io::Error),
    /// Others can get at it.
    #[error("`{}` is not its owner's alone (user {owner}, mode {mode:03o})", shown(&path.display().to_string(), 300))]
    Shared {
        /// The folder or key.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// The key's file holds something else.
    #[error("`{}` is no key of {MARK} bytes; remove it, and a new one is made", shown(&.0.display().to_string(), 300))]
    Key(PathBuf),
}

/// Where compiled code is kept. Cheap to clone.
#[derive(Clone)]
pub struct Cache(Arc<Inner>);

struct Inner {
    folder: Dir,
    key: [u8; MARK],
    user: u32,
    bound: u64,
    written: AtomicU64,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("bound", &self.0.bound).finish_non_exhaustive()
    }
}

/// The cache of one engine.
#[derive(Debug, Clone)]
pub(super) struct Fitted {
    cache: Cache,
    engine: Digest,
}

impl Cache {
    /// Opens the cache in `folder`, with its key in the file `key`; makes what is missing. `user` is whose both must be.
    ///
    /// # Errors
    /// A [`CacheError`]: there is no cache then.
    pub fn open(folder: &Path, key: &Path, user: u32) -> Result<Self, CacheError> {
        Self::bounded(folder, key, user, MAX_BYTES)
    }

    fn bounded(folder: &Path, key: &Path, user: u32, bound: u64) -> Result<Self, CacheError> {
        let dir = folder_of(user, folder, SHARED)?;
        let (state, name) = match (key.parent(), key.file_name()) {
            (Some(state), Some(name)) => (folder_of(user, state, SHARED_WRITE)?, name),
            _ => return Err(CacheError::Key(key.to_owned())),
        };
        let bytes = read_or_make_key(&state, Path::new(name), key, user)?;
        Ok(Self(Arc::new(Inner { folder: dir, key: bytes, user, bound, written: AtomicU64::new(0) })))
    }

    /// The cache as one engine uses it: `engine` is its fingerprint, the host's version included.
    pub(super) fn fitted(self, engine: Digest) -> Fitted {
        Fitted { cache: self, engine }
    }
}

/// Opens a folder of the user's, in which others may not do what `forbidden` says; makes it if there is none.
fn folder_of(user: u32, path: &Path, forbidden: u32) -> Result<Dir, CacheError> {
    let failed = |error| CacheError::Io(path.to_owned(), error);
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    let folder = Dir::open_ambient_dir(path, ambient_authority()).map_err(failed)?;
    let stat = folder.dir_metadata().map_err(failed)?;
    allowed(path, stat.uid(), stat.mode(), user, forbidden).map(|()| folder)
}

fn private(path: &Path, owner: u32, mode: u32, user: u32) -> Result<(), CacheError> {
    allowed(path, owner, mode, user, SHARED)
}

fn allowed(path: &Path, owner: u32, mode: u32, user: u32, forbidden: u32) -> Result<(), CacheError> {
    let mode = mode & 0o777;
    if owner != user || mode & forbidden != 0 {
        return Err(CacheError::Shared { path: path.to_owned(), owner, mode });
    }
    Ok(())
}

/// Reads the key, or makes one. Of two processes that make one at once, both use the one that came first.
fn read_or_make_key(state: &Dir, name: &Path, path: &Path, user: u32) -> Result<[u8; MARK], CacheError> {
    let failed = |error| CacheError::Io(path.to_owned(), error);
    if let Some(key) = read_key(state, name, path, user)? {
        return Ok(key);
    }
    let mut fresh = [0; MARK];
    getrandom::fill(&mut fresh).map_err(|error| failed(io::Error::other(error)))?;
    let temporary = temporary(0);
    write(state, &temporary, &[&fresh]).map_err(failed)?;
    // Linking fails where the key exists by now; renaming would replace it.
    let linked = state.hard_link(&temporary, state, name);
    let _ = state.remove_file(&temporary);
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        Ok(()) | Err(_) => {}
    }
    read_key(state, name, path, user)?.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))
}

fn read_key(state: &Dir, name: &Path, path: &Path, user: u32) -> Result<Option<[u8; MARK]>, CacheError> {
    let failed = |error| CacheError::Io(path.to_owned(), error);
    let file = match state.open_with(name, reading()) {
        Ok(file) => file.into_std(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let stat = check_regular(&file, path).map_err(|error| failed(io::Error::other(error)))?;
    private(path, stat.st_uid, stat.st_mode, user)?;
    let mut bytes = Vec::new();
    file.take(MARK as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    bytes.try_into().map(Some).map_err(|_| CacheError::Key(path.to_owned()))
}

/// For files that nobody replaced by a link or a pipe.
fn reading() -> &'static OpenOptions {
    static OPTIONS: std::sync::LazyLock<OpenOptions> = std::sync::LazyLock::new(|| {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(flags.bits().cast_signed());
        options
    });
    &OPTIONS
}

/// The name of a file that is not whole yet; of this process alone.
fn temporary(number: u64) -> PathBuf {
    PathBuf::from(format!(".{}-{}-{number}.new", rustix::process::getpid().as_raw_nonzero(), uuid::Uuid::new_v4()))
}

fn write(folder: &Dir, name: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let written = folder.open_with(name, &options).and_then(|mut file| {
        parts.iter().try_for_each(|part| file.write_all(part))?;
        file.sync_all()
    });
    written.inspect_err(|_| {
        let _ = folder.remove_file(name);
    })
}

impl Fitted {
    /// Returns the code of the component with this digest, if it is kept and is what we put there.
    pub(super) fn get(&self, source: Digest) -> Option<Vec<u8>> {
        let name = self.name(source);
        match self.read(&name, source) {
            Ok(found) => found,
            Err(why) => {
                tracing::warn!(component = %source, %why, "kept code is not used");
                None
            }
        }
    }

    fn read(&self, name: &str, source: Digest) -> Result<Option<Vec<u8>>, String> {
        let inner = &*self.cache.0;
        let mut file = match inner.folder.open_with(name, reading()) {
            Ok(file) => file.into_std(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let stat = check_regular(&file, Path::new(name)).map_err(|error| error.to_string())?;
        private(Path::new(name), stat.st_uid, stat.st_mode, inner.user).map_err(|error| error.to_string())?;
        let most = MAX_ARTIFACT + MARK;
        let mut bytes = Vec::new();
        let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
        (&mut file).take(limit).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        if bytes.len() > most {
            return Err("it is too large".to_owned());
        }
        let Some((mark, artifact)) = bytes.split_first_chunk::<MARK>() else { return Err("it is cut off".to_owned()) };
        // Compared in constant time.
        self.mark(source, artifact).verify_slice(mark).map_err(|_| "its mark does not hold".to_owned())?;
        // What was used last goes last; a file system that keeps no times forgets by age alone.
        let _ = file.set_modified(SystemTime::now());
        bytes.drain(..MARK);
        Ok(Some(bytes))
    }

    /// Keeps code.
    pub(super) fn put(&self, source: Digest, artifact: &[u8]) {
        if artifact.len() as u64 > self.cache.0.bound || artifact.len() > MAX_ARTIFACT {
            return;
        }
        if let Err(error) = self.write(source, artifact) {
            tracing::warn!(component = %source, %error, "compiled code cannot be kept");
        }
    }

    fn write(&self, source: Digest, artifact: &[u8]) -> io::Result<()> {
        let inner = &*self.cache.0;
        let temporary = temporary(inner.written.fetch_add(1, Ordering::Relaxed));
        let mark = self.mark(source, artifact).finalize().into_bytes();
        write(&inner.folder, &temporary, &[&mark, artifact])?;
        inner.folder.rename(&temporary, &inner.folder, self.name(source)).inspect_err(|_| {
            let _ = inner.folder.remove_file(&temporary);
        })?;
        inner.trim()
    }

    /// The MAC over what the code was made from and the code; each part preceded by its length.
    fn mark(&self, source: Digest, artifact: &[u8]) -> Hmac<Sha256> {
        // A key shorter than a block is filled up with zeros, by the definition of HMAC.
        let mut block = [0; 64];
        let (start, _) = block.split_at_mut(MARK);
        start.copy_from_slice(&self.cache.0.key);
        let mut mac = Hmac::<Sha256>::new(&block.into());
        for part in self.about(source) {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(&part);
        }
        mac.update(artifact);
        mac
    }

    fn about(&self, source: Digest) -> [Vec<u8>; 5] {
        [
            b"portcullis compiled code 1".to_vec(),
            source.as_bytes().to_vec(),
            self.engine.as_bytes().to_vec(),
            format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS).into_bytes(),
            env!("CARGO_PKG_VERSION").as_bytes().to_vec(),
        ]
    }

    fn name(&self, source: Digest) -> String {
        format!("{}{ENDING}", Digest::of_parts(self.about(source).iter().map(Vec::as_slice)))
    }
}

impl Inner {
    /// Removes what was used longest ago until all fits.
    fn trim(&self) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in self.folder.entries()? {
            let entry = entry?;
            let (name, stat) = (entry.file_name(), entry.metadata()?);
            files.push((stat.mtime(), stat.mtime_nsec(), stat.len(), name));
        }
        files.sort();
        let mut total: u64 = files.iter().map(|(.., length, _)| length).sum();
        for (.., length, name) in files {
            if total <= self.bound {
                break;
            }
            // Another process may have been faster.
            let _ = self.folder.remove_file(name);
            total = total.saturating_sub(length);
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
