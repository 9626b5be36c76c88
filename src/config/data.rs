//! The folder that a policy may read, as it was when its layer was loaded.
//!
//! Read once, through a capability of the layer's folder: no `..`, link or absolute path leads out of it, and a link inside of
//! it is an error rather than something to follow. What a component reads later is this copy, so that all decisions under
//! one policy set see the same files; the copy's digest is part of the set's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cap_std::ambient_authority;
use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt as _};
use rustix::fs::OFlags;

use super::lock::Locked;
use super::open::{OpenError, check_owner, check_regular, read_bounded};
use super::policy_ref::{PolicyEntry, owner};
use crate::model::digest::Digest;
use crate::model::text::shown;

/// The most files of one folder.
const MAX_FILES: usize = 1000;
/// The most bytes of all files together.
const MAX_BYTES: u64 = 16 * 1024 * 1024;
/// How deep folders may nest.
const MAX_DEPTH: usize = 16;

/// The files of a policy's data folder. Immutable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataFiles {
    files: BTreeMap<String, Vec<u8>>,
    digest: Digest,
}

/// Why a policy's data folder cannot be read. The policy then denies what it matches.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file or folder cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It is a link.
    #[error("`{}` is a link, and links in a data folder are not followed; put the file itself there", shown(&.0.display().to_string(), 300))]
    Link(PathBuf),
    /// Its name is not Unicode, so that no component could name it.
    #[error("`{}` has a name that is not Unicode", shown(&.0.display().to_string(), 300))]
    Name(PathBuf),
    /// It is more than a component may have.
    #[error("the data folder `{}` has more than {MAX_FILES} files, {MAX_BYTES} bytes or {MAX_DEPTH} levels", shown(&.0.display().to_string(), 300))]
    TooMuch(PathBuf),
    /// It is not what the lock beside its layer file records.
    #[error("{0}; if that is meant, run `portcullis policy lock`")]
    Locked(String),
}

impl DataFiles {
    /// Takes files by their path, which is relative and has `/` between its parts.
    #[must_use]
    pub fn new(files: BTreeMap<String, Vec<u8>>) -> Self {
        let parts = files.iter().flat_map(|(path, bytes)| [path.as_bytes(), bytes.as_slice()]);
        Self { digest: Digest::of_parts(parts), files }
    }

    /// Returns a file's bytes; none for a path that is not exactly that of a file.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<&[u8]> {
        self.files.get(path).map(Vec::as_slice)
    }

    /// Returns the digest of all paths and bytes.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }
}

/// Reads a policy's data folder. `None`: it has none. Ownership is checked where the layer's own file is the user's or the
/// machine's (R6).
///
/// # Errors
/// A [`DataError`] that names the file.
pub fn read_data(entry: &PolicyEntry, user: u32) -> Result<Option<DataFiles>, DataError> {
    let owner = owner(&entry.layer, user);
    let files = entry.data.as_ref().map(|data| read_folder(&entry.folder, data, owner)).transpose()?;
    match &entry.locked {
        Locked::Free => {}
        Locked::Refused(why) => return Err(DataError::Locked(why.clone())),
        Locked::To(policy) => {
            if let Some(why) = policy.data_differs(files.as_ref().map(DataFiles::digest)) {
                return Err(DataError::Locked(why));
            }
        }
    }
    Ok(files)
}

/// Reads a data folder inside the folder of its layer; `owner` is who must own the files, if anybody.
pub(crate) fn read_folder(base: &Path, data: &Path, owner: Option<u32>) -> Result<DataFiles, DataError> {
    let whole = base.join(data);
    let io = |error| OpenError::Io(whole.clone(), error);
    let folder = Dir::open_ambient_dir(base, ambient_authority()).map_err(io)?;
    // Each part of the way, not only the last: a link anywhere in it would make the folder another one.
    let mut way = PathBuf::new();
    for part in data {
        way.push(part);
        if folder.symlink_metadata(&way).map_err(io)?.is_symlink() {
            return Err(DataError::Link(base.join(&way)));
        }
    }
    let folder = folder.open_dir(data).map_err(io)?;
    let mut reading = Reading { files: BTreeMap::new(), bytes: 0, owner, whole: &whole };
    reading.folder(&folder, "", 0)?;
    Ok(DataFiles::new(reading.files))
}

struct Reading<'a> {
    files: BTreeMap<String, Vec<u8>>,
    bytes: u64,
    owner: Option<u32>,
    whole: &'a Path,
}

impl Reading<'_> {
    fn folder(&mut self, folder: &Dir, path: &str, depth: usize) -> Result<(), DataError> {
        let whole = self.whole.join(path);
        if depth > MAX_DEPTH {
            return Err(DataError::TooMuch(self.whole.to_owned()));
        }
        let io = |error| OpenError::Io(whole.clone(), error);
        for entry in folder.entries().map_err(io)? {
            let entry = entry.map_err(io)?;
            let name = entry.file_name();
            let place = whole.join(&name);
            let Some(name) = name.to_str() else { return Err(DataError::Name(place)) };
            let path = if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
            let kind = entry.file_type().map_err(|error| OpenError::Io(place.clone(), error))?;
            if kind.is_symlink() {
                return Err(DataError::Link(place));
            }
            if kind.is_dir() {
                let below = entry.open_dir().map_err(|error| OpenError::Io(place.clone(), error))?;
                self.folder(&below, &path, depth + 1)?;
            } else {
                self.file(folder, name, path, &place)?;
            }
        }
        Ok(())
    }

    fn file(&mut self, folder: &Dir, name: &str, path: String, place: &Path) -> Result<(), DataError> {
        if self.files.len() == MAX_FILES {
            return Err(DataError::TooMuch(self.whole.to_owned()));
        }
        let mut options = OpenOptions::new();
        // A pipe in its place must not hold us up, and what became a link since it was listed is not followed.
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
        options.read(true).custom_flags(flags.bits().cast_signed());
        let handle = folder.open_with(name, &options).map_err(|error| OpenError::Io(place.to_owned(), error))?;
        let handle = handle.into_std();
        let stat = check_regular(&handle, place)?;
        if let Some(user) = self.owner {
            check_owner(&stat, user, place, false)?;
        }
        let bytes = read_bounded(handle, place, MAX_BYTES)?;
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        if self.bytes > MAX_BYTES {
            return Err(DataError::TooMuch(self.whole.to_owned()));
        }
        self.files.insert(path, bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::config::stack::load;
    use crate::config::{Places, SessionSources};

    /// A user's layer with the policy `p`, whose data folder is `lists`; `make` fills the folder of the layer.
    fn read(make: impl FnOnce(&Path)) -> Result<Option<DataFiles>, DataError> {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().canonicalize().unwrap();
        make(&folder);
        let text = "[[policies]]\nname = 'p'\ncomponent = 'p.wasm'\ndata = 'lists'\n";
        fs::write(folder.join("config.toml"), text).unwrap();
        let user = rustix::process::getuid().as_raw();
        let session = SessionSources { files: vec![folder.join("config.toml")], ..SessionSources::default() };
        let resolved = load(&Places { user, ..Places::nowhere() }, &session);
        read_data(&resolved.policies[0], user)
    }

    #[test]
    fn files_are_read_with_their_paths_and_any_change_is_another_digest() {
        let with = |text: &'static str| {
            move |folder: &Path| {
                fs::create_dir_all(folder.join("lists/deep")).unwrap();
                fs::write(folder.join("lists/deep/a.txt"), text).unwrap();
            }
        };
        let files = read(with("one")).unwrap().unwrap();
        assert_eq!(files.get("deep/a.txt"), Some(b"one".as_slice()));
        for other in ["/deep/a.txt", "deep/../deep/a.txt", "deep", "", "../config.toml"] {
            assert_eq!(files.get(other), None, "{other}");
        }
        assert_eq!(files.digest(), read(with("one")).unwrap().unwrap().digest());
        assert_ne!(files.digest(), read(with("two")).unwrap().unwrap().digest());
    }

    #[test]
    fn a_folder_or_file_that_is_a_link_is_an_error_that_names_it() {
        let folder = read(|folder| {
            fs::create_dir(folder.join("real")).unwrap();
            symlink("real", folder.join("lists")).unwrap();
        });
        assert!(matches!(&folder, Err(DataError::Link(path)) if path.ends_with("lists")), "{folder:?}");
        let file = read(|folder| {
            fs::create_dir(folder.join("lists")).unwrap();
            symlink("/etc/passwd", folder.join("lists/users")).unwrap();
        });
        assert!(matches!(&file, Err(DataError::Link(path)) if path.ends_with("lists/users")), "{file:?}");
    }

    #[test]
    fn a_folder_that_is_missing_or_holds_too_much_is_an_error() {
        assert!(matches!(read(|_| {}), Err(DataError::Open(_))));
        let many = read(|folder| {
            fs::create_dir(folder.join("lists")).unwrap();
            (0..=MAX_FILES).for_each(|n| fs::write(folder.join(format!("lists/{n}")), "").unwrap());
        });
        assert!(matches!(many, Err(DataError::TooMuch(_))), "{many:?}");
    }
}
