//! Opens a file that decides something, and reads it once.
//!
//! The file is checked through the handle that is then read, so that what was checked is what is used (R6): a regular
//! file, owned by root or the user, writable by its owner alone, in a folder nobody else can replace it in. Reads are
//! bounded, and opening never blocks on a pipe.
//!
//! Only "does not exist" is absence (R8); a link that leads nowhere exists and is an error.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat};

use crate::model::text::shown;

/// The largest layer file, in bytes.
pub const MAX_LAYER: u64 = 1024 * 1024;
/// Writable by group or others.
const SHARED_WRITE: u32 = 0o022;
/// Only the owner of a file in such a folder may replace it (`/tmp`).
const STICKY: u32 = 0o1000;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It exists, but cannot be opened or read.
    #[error("`{}` cannot be read", shown(&.0.display().to_string(), 300))]
    Io(PathBuf, #[source] io::Error),
    /// It is a link to something that does not exist.
    #[error("`{}` is a link that leads nowhere", shown(&.0.display().to_string(), 300))]
    Dangling(PathBuf),
    /// It is a folder, a pipe or a device.
    #[error("`{}` is not a regular file", shown(&.0.display().to_string(), 300))]
    NotAFile(PathBuf),
    /// It is larger than what it may have.
    #[error("`{}` has more than {max} bytes", shown(&path.display().to_string(), 300))]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The bound.
        max: u64,
    },
    /// Somebody else owns it (R6).
    #[error("`{}` is owned by user {owner}, neither root nor you (R6)", shown(&path.display().to_string(), 300))]
    Owner {
        /// The file or its folder.
        path: PathBuf,
        /// The owner's id.
        owner: u32,
    },
    /// Somebody else may write it (R6).
    #[error("`{}` is writable by group or others (mode {mode:03o}); it must be its owner's alone (R6)",
        shown(&path.display().to_string(), 300))]
    Writable {
        /// The file or its folder.
        path: PathBuf,
        /// The permission bits.
        mode: u32,
    },
}

/// Says the error with its cause, for a message that has no chain.
pub(crate) fn explained(error: &(dyn std::error::Error + 'static)) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// Reads a whole file of at most `max` bytes that root or `user` owns. `None`: it does not exist.
///
/// # Errors
/// An [`OpenError`] that names the file; anything but "does not exist" is one (R8).
pub fn read_owned(path: &Path, user: u32, max: u64) -> Result<Option<Vec<u8>>, OpenError> {
    let Some(file) = open(path)? else { return Ok(None) };
    let stat = check_regular(&file, path)?;
    check_owner(&stat, user, path, false)?;
    if let Some(folder) = path.parent() {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let stat = rustix::fs::stat(folder).map_err(|e| OpenError::Io(folder.to_owned(), e.into()))?;
        check_owner(&stat, user, folder, true)?;
    }
    read_bounded(file, path, max).map(Some)
}

/// Opens for reading without blocking. `None`: it does not exist. What it is must be checked through the handle.
pub(crate) fn open(path: &Path) -> Result<Option<File>, OpenError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(handle) => Ok(Some(File::from(handle))),
        Err(rustix::io::Errno::NOENT) => match std::fs::symlink_metadata(path) {
            Ok(_) => Err(OpenError::Dangling(path.to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(OpenError::Io(path.to_owned(), error)),
        },
        Err(error) => Err(OpenError::Io(path.to_owned(), error.into())),
    }
}

/// Returns what the handle leads to, if it is a regular file.
pub(crate) fn check_regular(file: &File, path: &Path) -> Result<Stat, OpenError> {
    let stat = rustix::fs::fstat(file).map_err(|e| OpenError::Io(path.to_owned(), e.into()))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(stat),
        _ => Err(OpenError::NotAFile(path.to_owned())),
    }
}

/// R6: owned by root or the user; writable by nobody else, except a sticky folder.
pub(crate) fn check_owner(stat: &Stat, user: u32, path: &Path, folder: bool) -> Result<(), OpenError> {
    let mode = stat.st_mode & 0o7777;
    if stat.st_uid != 0 && stat.st_uid != user {
        return Err(OpenError::Owner { path: path.to_owned(), owner: stat.st_uid });
    }
    if mode & SHARED_WRITE != 0 && !(folder && mode & STICKY != 0) {
        return Err(OpenError::Writable { path: path.to_owned(), mode: mode & 0o777 });
    }
    Ok(())
}

/// Reads to the end, or fails at the first byte beyond `max`.
pub(crate) fn read_bounded(file: File, path: &Path, max: u64) -> Result<Vec<u8>, OpenError> {
    let mut bytes = Vec::new();
    file.take(max + 1).read_to_end(&mut bytes).map_err(|e| OpenError::Io(path.to_owned(), e))?;
    if bytes.len() as u64 > max {
        return Err(OpenError::TooLarge { path: path.to_owned(), max });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn me() -> u32 {
        rustix::process::getuid().as_raw()
    }

    #[test]
    fn r8_only_a_missing_file_is_absence() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read_owned(&dir.path().join("none"), me(), 10).unwrap().is_none());
        assert!(read_owned(&dir.path().join("no/folder"), me(), 10).unwrap().is_none());
        std::fs::write(dir.path().join("file"), "x").unwrap();
        assert!(matches!(read_owned(&dir.path().join("file/below"), me(), 10), Err(OpenError::Io(..))));
        assert!(matches!(read_owned(dir.path(), me(), 10), Err(OpenError::NotAFile(_))));
        std::os::unix::fs::symlink("nowhere", dir.path().join("link")).unwrap();
        assert!(matches!(read_owned(&dir.path().join("link"), me(), 10), Err(OpenError::Dangling(_))));
    }

    #[test]
    fn r6_a_file_or_folder_that_others_may_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.toml");
        std::fs::write(&file, "x").unwrap();
        let mode = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        mode(&file, 0o664);
        assert!(matches!(read_owned(&file, me(), 10), Err(OpenError::Writable { mode: 0o664, .. })));
        mode(&file, 0o644);
        assert!(read_owned(&file, me(), 10).unwrap().is_some());
        mode(dir.path(), 0o777);
        assert!(matches!(read_owned(&file, me(), 10), Err(OpenError::Writable { .. })));
    }

    #[test]
    fn a_file_beyond_its_bound_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), "12345").unwrap();
        assert!(read_owned(&dir.path().join("f"), me(), 5).is_ok());
        assert!(matches!(read_owned(&dir.path().join("f"), me(), 4), Err(OpenError::TooLarge { max: 4, .. })));
    }
}
