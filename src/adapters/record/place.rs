//! The files that records are in.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::model::chain::ChainId;

/// How the files of a folder end.
pub const EXTENSION: &str = "jsonl";
/// What is appended to the name of a file for the inputs of its decisions.
pub const INPUTS: &str = ".inputs";

/// Where records go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// One file, which lines are appended to; never rotated. It may be a pipe.
    File(PathBuf),
    /// A folder that only its owner reads, with files of its own for each writer.
    Folder(PathBuf),
}

impl Place {
    /// Returns what the place is called in the store of heads.
    #[must_use]
    pub fn name(&self) -> String {
        let (Self::File(path) | Self::Folder(path)) = self;
        std::path::absolute(path).unwrap_or_else(|_| path.clone()).display().to_string()
    }

    /// Returns a new file's path: its name sorts by time and chain, then by number.
    pub(super) fn path(&self, begun: Timestamp, chain: &ChainId, number: u32) -> PathBuf {
        match self {
            Self::File(path) => path.clone(),
            Self::Folder(folder) => {
                let time = begun.strftime("%Y%m%dT%H%M%SZ");
                // An id begins with its time, so that chains of one second sort as well.
                folder.join(format!("{time}-{chain}-{number:04}.{EXTENSION}"))
            }
        }
    }

    /// Makes the folder, for its owner alone, and checks it.
    ///
    /// # Errors
    /// It cannot be made, or others may read or write it.
    pub fn prepare(&self) -> io::Result<()> {
        let Self::Folder(folder) = self else { return Ok(()) };
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let found = folder.metadata()?;
        if found.uid() != rustix::process::getuid().as_raw() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the folder is owned by another user"));
        }
        if found.mode() & 0o077 != 0 {
            let message = format!("the folder is open to others (mode {:03o}); `chmod 700` it", found.mode() & 0o777);
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        Ok(())
    }
}

/// Returns the files of a folder, oldest first, without those of inputs.
///
/// # Errors
/// The folder cannot be read.
pub fn files_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == EXTENSION) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Returns where the inputs of the decisions in `file` are.
#[must_use]
pub fn inputs_of(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(INPUTS);
    PathBuf::from(name)
}

/// What lines are written to.
pub(super) trait Sink: Write + Send {
    /// Waits until everything is on the disk, where there is one.
    fn sync(&mut self) -> io::Result<()>;
}

impl Sink for File {
    fn sync(&mut self) -> io::Result<()> {
        // A pipe or a terminal has no disk.
        if self.metadata()?.is_file() { self.sync_data() } else { Ok(()) }
    }
}

/// An open file.
pub(super) struct Out {
    pub(super) to: Box<dyn Sink>,
    pub(super) path: PathBuf,
    /// Whether the last line may lack its end.
    pub(super) torn: bool,
    /// How many bytes it has, about.
    pub(super) size: u64,
}

impl Out {
    /// Opens a file to append to it; makes it, readable by its owner alone, if it is not there. `fresh`: it must not be there.
    pub(super) fn open(path: &Path, fresh: bool) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let options = options.append(true).mode(0o600);
        let file = if fresh { options.create_new(true) } else { options.create(true) }.open(path)?;
        let size = file.metadata()?.len();
        let torn = !fresh && ends_torn(path, &file);
        Ok(Self { to: Box::new(file), path: path.to_owned(), torn, size })
    }

    /// The same for a file that nobody but its owner may read. One that is there must be so, and a file.
    pub(super) fn open_private(path: &Path) -> io::Result<Self> {
        let flags = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or_default();
        let file = OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(path)?;
        let found = file.metadata()?;
        let denied = |why: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        if !found.is_file() {
            return denied("it is no regular file".to_owned());
        }
        if found.uid() != rustix::process::getuid().as_raw() {
            return denied("it is owned by another user".to_owned());
        }
        if found.mode() & 0o077 != 0 {
            return denied(format!("it is open to others (mode {:03o}); `chmod 600` it", found.mode() & 0o777));
        }
        let (size, torn) = (found.len(), ends_torn(path, &file));
        Ok(Self { to: Box::new(file), path: path.to_owned(), torn, size })
    }

    /// Hands a line to the operating system in one write.
    pub(super) fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let written = if self.torn {
            // A write of its own would let another process in between.
            self.to.write_all(&[b"\n", line].concat())
        } else {
            self.to.write_all(line)
        };
        self.torn = written.is_err();
        self.size += u64::try_from(line.len()).unwrap_or(0);
        written
    }
}

/// Whether a file that is already there ends in the middle of a line. What cannot be read counts as whole.
fn ends_torn(path: &Path, file: &File) -> bool {
    // Asked of regular files only: opening a pipe to read would wait for a writer.
    let regular = file.metadata().is_ok_and(|data| data.is_file() && data.len() > 0);
    let last = || -> io::Result<u8> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::End(-1))?;
        let mut byte = [0];
        file.read_exact(&mut byte)?;
        Ok(byte[0])
    };
    regular && last().is_ok_and(|byte| byte != b'\n')
}
