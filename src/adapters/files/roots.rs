//! The allowed folders, as capabilities: what a path leads to is found from an open folder, never from the system's root.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use cap_std::ambient_authority;
use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt as _};
use rustix::fs::OFlags;
use tokio::sync::Semaphore;

use super::reading;
use crate::model::text::shown;
use crate::ports::files::{FileError, FileFacts, FileRoots, MAX_FILE, OpenFile};

/// The longest path, in bytes.
const MAX_PATH: usize = 4096;
/// How many files are read for their digests at once: more would only compete for the disk.
const READ_AT_ONCE: usize = 4;

/// The folders whose files calls may name.
#[derive(Debug, Clone)]
pub struct Roots {
    folders: Arc<[Folder]>,
    reading: Arc<Semaphore>,
}

#[derive(Debug)]
struct Folder {
    path: PathBuf,
    open: OnceLock<Open>,
}

/// A folder that is open, under every name that it has: as it is configured, and with its links resolved.
#[derive(Debug)]
struct Open {
    names: Vec<PathBuf>,
    dir: Dir,
}

impl Folder {
    /// Opened once; one that is not there yet is looked for again.
    fn open(&self) -> Result<&Open, FileError> {
        if let Some(open) = self.open.get() {
            return Ok(open);
        }
        let dir = Dir::open_ambient_dir(&self.path, ambient_authority()).map_err(|error| {
            let shown = shown(&self.path.display().to_string(), 256);
            FileError::Unreadable(format!("the allowed folder `{shown}` cannot be opened: {}", error.kind()))
        })?;
        let resolved = self.path.canonicalize().ok().filter(|resolved| *resolved != self.path);
        let open = Open { names: std::iter::once(self.path.clone()).chain(resolved).collect(), dir };
        Ok(self.open.get_or_init(|| open))
    }
}

impl Roots {
    /// Takes the folders. Each is opened at its first use and stays open: whoever puts another one in its place changes nothing.
    #[must_use]
    pub fn new(folders: &[PathBuf]) -> Self {
        let folder = |path: &PathBuf| Folder { path: path.clone(), open: OnceLock::new() };
        let folders: Vec<Folder> = folders.iter().map(folder).collect();
        Self { folders: folders.into(), reading: Arc::new(Semaphore::new(READ_AT_ONCE)) }
    }

    /// The folder that a path lies in, and its way from there. Of nested folders the innermost.
    fn place<'a>(&self, path: &'a Path) -> Result<(&Open, &'a Path), FileError> {
        let first = self.folders.first().ok_or(FileError::NoRoots)?;
        if path.is_relative() {
            return Ok((first.open()?, path));
        }
        let (mut found, mut closed) = (None::<(&Open, &Path)>, None);
        for folder in self.folders.iter() {
            let open = match folder.open() {
                Ok(open) => open,
                // Whether the path lies in it cannot be told for sure.
                Err(why) => {
                    closed = Some(why);
                    continue;
                }
            };
            for rest in open.names.iter().filter_map(|name| path.strip_prefix(name).ok()) {
                if found.is_none_or(|(_, shortest)| rest.components().count() < shortest.components().count()) {
                    found = Some((open, rest));
                }
            }
        }
        found.ok_or_else(|| closed.unwrap_or(FileError::Outside))
    }

    fn find(&self, path: &str) -> Result<File, FileError> {
        if path.is_empty() || path.len() > MAX_PATH || path.contains('\0') {
            return Err(FileError::NoPath);
        }
        let (folder, rest) = self.place(Path::new(path))?;
        let mut options = OpenOptions::new();
        // Opening a pipe would wait for somebody to write into it.
        options.read(true).custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed());
        let rest = if rest.as_os_str().is_empty() { Path::new(".") } else { rest };
        let file = folder.dir.open_with(rest, &options).map_err(|error| unopened(&error))?;
        Ok(file.into_std())
    }
}

#[async_trait]
impl FileRoots for Roots {
    async fn open(&self, path: &str) -> Result<OpenFile, FileError> {
        let broken = || FileError::Unreadable("reading it was broken off".to_owned());
        let permit = Arc::clone(&self.reading).acquire_owned().await.map_err(|_| broken())?;
        let (roots, path) = (self.clone(), path.to_owned());
        let (alive, gone) = reading::leash();
        let opened = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let file = roots.find(&path)?;
            opened(file, &path, &gone)
        });
        let opened = opened.await.map_err(|_| broken())?;
        drop(alive);
        opened
    }
}

/// Looks at what was opened, and reads it once.
fn opened(file: File, path: &str, gone: &reading::Gone) -> Result<OpenFile, FileError> {
    let length = reading::length(&file)?;
    if length > MAX_FILE {
        return Err(FileError::TooLarge(length));
    }
    let sha256 = reading::digest(&file, length, gone)?;
    let name = Path::new(path).file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(OpenFile { facts: FileFacts { name, length, sha256 }, handle: Arc::new(file) })
}

/// A way that leads out is refused by the capability itself, without an error of the system.
fn unopened(error: &io::Error) -> FileError {
    match error.kind() {
        io::ErrorKind::PermissionDenied if error.raw_os_error().is_none() => FileError::Outside,
        io::ErrorKind::NotFound => FileError::Unreadable("there is no such file".to_owned()),
        _ => FileError::Unreadable(error.kind().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::model::digest::Digest;

    async fn open(roots: &[&Path], path: &str) -> Result<OpenFile, FileError> {
        let roots: Vec<PathBuf> = roots.iter().map(|root| (*root).to_owned()).collect();
        Roots::new(&roots).open(path).await
    }

    /// A folder with a file and a folder in it, beside something that is nobody's business.
    fn folders() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("below")).unwrap();
        std::fs::write(root.join("a.csv"), "abc").unwrap();
        std::fs::write(root.join("below/b.csv"), "").unwrap();
        std::fs::write(dir.path().join("secret"), "hush").unwrap();
        (dir, root)
    }

    #[tokio::test]
    async fn a_file_is_found_by_a_path_inside_of_a_root_and_known_by_its_digest() {
        let (dir, root) = folders();
        let facts = FileFacts { name: "a.csv".to_owned(), length: 3, sha256: Digest::of(b"abc") };
        let absolute = root.join("a.csv").display().to_string();
        let round = root.join("below/../a.csv").display().to_string();
        for path in ["a.csv", "./a.csv", "below/../a.csv", &absolute, &round] {
            assert_eq!(open(&[&root], path).await.unwrap().facts, facts, "{path}");
        }
        assert_eq!(open(&[dir.path(), &root.join("below")], "root/a.csv").await.unwrap().facts, facts);
        let second = root.join("below/b.csv").display().to_string();
        assert_eq!(open(&[&root.join("below"), &root], &second).await.unwrap().facts.length, 0);
        symlink(&root, dir.path().join("link")).unwrap();
        let (link, resolved) = (dir.path().join("link"), root.canonicalize().unwrap().join("a.csv"));
        assert_eq!(open(&[&link], resolved.to_str().unwrap()).await.unwrap().facts, facts, "a root that is a link");
        symlink("../a.csv", root.join("below/inside")).unwrap();
        assert_eq!(open(&[&root], "below/inside").await.unwrap().facts.length, 3, "a link that stays inside");
    }

    #[tokio::test]
    async fn r27_no_way_leads_out_of_the_roots() {
        let (dir, root) = folders();
        let secret = dir.path().join("secret").display().to_string();
        symlink(&secret, root.join("absolute")).unwrap();
        symlink("../secret", root.join("relative")).unwrap();
        symlink("..", root.join("folder")).unwrap();
        let out = root.join("../secret").display().to_string();
        let beside = format!("{}x/a.csv", root.display());
        for path in ["../secret", "below/../../secret", "absolute", "relative", "folder/secret", &secret, &out, &beside]
        {
            assert_eq!(open(&[&root], path).await.unwrap_err(), FileError::Outside, "{path}");
        }
        assert_eq!(open(&[], "a.csv").await.unwrap_err(), FileError::NoRoots);
    }

    #[tokio::test]
    async fn what_is_no_regular_file_is_refused_and_a_pipe_holds_nobody_up() {
        let (_dir, root) = folders();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            root.join("pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        for path in ["pipe", "below", ".", root.to_str().unwrap()] {
            assert_eq!(open(&[&root], path).await.unwrap_err(), FileError::NotAFile, "{path}");
        }
        for path in ["", "a\0b", &"a/".repeat(3000)] {
            assert_eq!(open(&[&root], path).await.unwrap_err(), FileError::NoPath, "{path}");
        }
        assert!(matches!(open(&[&root], "none").await, Err(FileError::Unreadable(_))));
        assert!(matches!(open(&[&root.join("none")], "a").await, Err(FileError::Unreadable(_))));
    }

    #[tokio::test]
    async fn u6_a_file_of_512_mib_and_a_byte_is_too_large_before_it_is_read() {
        let (_dir, root) = folders();
        let sparse = File::create(root.join("large")).unwrap();
        sparse.set_len(MAX_FILE + 1).unwrap();
        assert_eq!(open(&[&root], "large").await.unwrap_err(), FileError::TooLarge(MAX_FILE + 1));
    }
}
