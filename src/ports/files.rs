//! Files that a call names: finding them where the session may look, and giving them to whoever keeps them for the server.

use std::fmt;
use std::fs::File;
use std::sync::Arc;

use async_trait::async_trait;

use crate::model::digest::Digest;

/// The largest file, in bytes (catalog-dispatch 5.2, rule 11).
pub const MAX_FILE: u64 = 512 * 1024 * 1024;

/// What is known of a file since it was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileFacts {
    /// Its name: the last part of the path that was asked for.
    pub name: String,
    /// How many bytes it has.
    pub length: u64,
    /// The SHA-256 of all of them.
    pub sha256: Digest,
}

/// An open file. It is read from its descriptor alone, by position: no path is looked up a second time (R27).
#[derive(Debug, Clone)]
pub struct OpenFile {
    /// What it was when it was opened.
    pub facts: FileFacts,
    /// The descriptor.
    pub handle: Arc<File>,
}

/// Why a file is not uploaded. The texts go to the model: none has more of a path than the call itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// There is no such place in the allowed folders, or the way to it leads out of them.
    #[error("it is not inside the allowed folders")]
    Outside,
    /// There are none.
    #[error("no folder is allowed; name some in `[files] roots`")]
    NoRoots,
    /// The path is none.
    #[error("that is no path of a file: it is empty, longer than 4096 bytes, or has a NUL character")]
    NoPath,
    /// It is a folder, a pipe or a device.
    #[error("it is not a regular file")]
    NotAFile,
    /// It has more than [`MAX_FILE`] bytes.
    #[error("it has {0} bytes, which is more than the 536870912 that a file may have")]
    TooLarge(u64),
    /// It is not what it was when the call was prepared.
    #[error("it changed after the call was prepared")]
    Changed,
    /// It is not there, or cannot be opened or read.
    #[error("it cannot be read: {0}")]
    Unreadable(String),
}

/// Where a session's files are.
///
/// Contract: a path is absolute inside a root, or relative to the first. Nothing outside of the roots is ever opened, whatever
/// `..`, links and absolute paths say. Only regular files of at most [`MAX_FILE`] bytes are, the length checked before the
/// first byte is read, and opening never waits for anybody.
#[async_trait]
pub trait FileRoots: Send + Sync {
    /// Opens a file and reads it once, for its digest. Dropping the future lets go of the file.
    ///
    /// # Errors
    /// [`FileError`].
    async fn open(&self, path: &str) -> Result<OpenFile, FileError>;
}

/// A reference to a file that was uploaded. Every text is bounded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uploaded {
    /// Its id with whoever keeps it.
    pub file_id: String,
    /// Where the server gets it. May be a secret in itself.
    pub download_url: String,
    /// What it is, if that is known.
    pub mime_type: Option<String>,
    /// Its name.
    pub file_name: String,
}

/// Why an upload came to nothing. The texts go to the model: none holds a secret, or a word of whoever was uploaded to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UploadError {
    /// The file.
    #[error(transparent)]
    File(#[from] FileError),
    /// It cannot even begin: the configuration or the environment lack something.
    #[error("{0}")]
    Unusable(String),
    /// Nobody is there, or the connection broke off.
    #[error("the place for uploads cannot be reached: {0}")]
    Unreachable(String),
    /// Nothing moved for too long, or it took too long in all.
    #[error("the upload took too long")]
    Slow,
    /// It said no.
    #[error("the place for uploads answered with HTTP status {0}")]
    Refused(u16),
    /// It said what nobody understands.
    #[error("the place for uploads answered with no reference to a file: {0}")]
    BadAnswer(&'static str),
}

/// What a file of an App's call is uploaded for (catalog-dispatch 5.2 rule 13).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadFor {
    /// The App's connector.
    pub connector: String,
    /// Its action, by the server's word: untrusted, of any length.
    pub action: String,
    /// The model that made the call, where the turn says which.
    pub model: Option<String>,
}

/// Takes what an upload has come to. Must not block.
pub trait UploadProgress: Send + Sync {
    /// `sent` of `length` bytes are on their way.
    fn sent(&self, sent: u64, length: u64);
}

/// Keeps files for servers.
///
/// Contract: the bytes sent are those of the facts, or the upload fails: a file that grew, shrank or changed since is
/// [`FileError::Changed`], and never arrives whole. Ends within a bounded time. Dropping the future breaks the upload off.
#[async_trait]
pub trait Uploader: Send + Sync {
    /// Uploads one file; `purpose` is known where connector and action are.
    ///
    /// # Errors
    /// [`UploadError`].
    async fn upload(
        &self,
        file: &OpenFile,
        purpose: Option<&UploadFor>,
        progress: Arc<dyn UploadProgress>,
    ) -> Result<Uploaded, UploadError>;
}

/// Where the files of a server's calls come from and go to. Two are equal when what they were made of is.
#[derive(Clone)]
pub struct FileAccess {
    /// Where they are.
    pub roots: Arc<dyn FileRoots>,
    /// Who keeps them.
    pub uploader: Arc<dyn Uploader>,
    /// Digest over what both are made of.
    pub digest: Digest,
}

impl PartialEq for FileAccess {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Eq for FileAccess {}

impl fmt::Debug for FileAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileAccess").field("digest", &self.digest).finish_non_exhaustive()
    }
}
