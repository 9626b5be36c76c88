//! The files that a call's arguments name: opened and read once, before anybody decides about the call (R27).
//!
//! All are opened before the first is uploaded, so that a call with one bad path uploads nothing. What is agreed to are the bytes
//! that were read here; what is uploaded later comes from the same descriptors, and must be those bytes.

use super::prepare::Prepared;
use crate::model::digest::Digest;
use crate::model::file_params::{Accepts, FileArgument};
use crate::model::outcome::{Code, Failure, Stage};
use crate::model::text::shown;
use crate::ports::files::{FileAccess, FileFacts, OpenFile};
use crate::ports::recorder::RecordedFile;

/// The most files of one call.
pub const MAX_FILES: usize = 64;
/// The most characters of a path or an argument's name in a failure.
const SHOWN: usize = 256;

/// The files of a call; at least one. Made by [`open`] alone.
#[derive(Debug)]
pub struct BoundFiles {
    access: FileAccess,
    files: Vec<BoundFile>,
}

/// One of them.
#[derive(Debug)]
pub struct BoundFile {
    name: String,
    index: Option<usize>,
    path: String,
    accepts: Accepts,
    open: OpenFile,
}

/// Opens every file that the arguments of a prepared call name.
///
/// # Errors
/// `upload-failed`, with the path and the argument of the first file that cannot be had.
pub async fn open(prepared: Prepared) -> Result<Prepared, Box<Failure>> {
    let Some(params) = prepared.tool().files.clone() else { return Ok(prepared) };
    let named = params.in_arguments(prepared.arguments());
    let Some(first) = named.first() else { return Ok(prepared) };
    let refuse = |file: &FileArgument<'_>, why: &dyn std::fmt::Display| {
        Box::new(failure(file.path, &field(&file.param.name, file.index), why))
    };
    let Some(access) = prepared.server().view.files.clone() else {
        return Err(refuse(first, &"there is nowhere to upload files to; set `[files]` in the configuration"));
    };
    if let Some(beyond) = named.get(MAX_FILES) {
        return Err(refuse(beyond, &format!("a call may name at most {MAX_FILES} files")));
    }
    let mut files = Vec::with_capacity(named.len());
    for file in &named {
        let open = access.roots.open(file.path).await.map_err(|why| refuse(file, &why))?;
        files.push(BoundFile {
            name: file.param.name.clone(),
            index: file.index,
            path: file.path.to_owned(),
            accepts: file.param.accepts,
            open,
        });
    }
    drop(named);
    Ok(prepared.with_files(BoundFiles { access, files }))
}

/// What the model reads of a file that was not uploaded.
pub(in crate::pipeline) fn failure(path: &str, field: &str, why: &dyn std::fmt::Display) -> Failure {
    let (path, field) = (shown(path, SHOWN), shown(field, SHOWN));
    let message = format!("failed to upload `{path}` for `{field}`: {why}");
    Failure::new(Stage::Files, Code::UploadFailed, message)
}

/// An argument, or one of its values.
fn field(name: &str, index: Option<usize>) -> String {
    index.map_or_else(|| name.to_owned(), |index| format!("{name}[{index}]"))
}

impl BoundFiles {
    /// Returns where they come from and go to.
    #[must_use]
    pub fn access(&self) -> &FileAccess {
        &self.access
    }

    /// Returns the files, in the order in which they are uploaded.
    pub fn iter(&self) -> std::slice::Iter<'_, BoundFile> {
        self.files.iter()
    }

    /// Returns the digest of arguments with this digest, and of the bytes of these files.
    #[must_use]
    pub fn digest(&self, arguments: Digest) -> Digest {
        let mut parts = Digest::by_parts();
        parts.add(arguments.as_bytes());
        for file in &self.files {
            parts.add(file.field().as_bytes());
            parts.add(file.facts().sha256.as_bytes());
        }
        parts.finish()
    }

    /// Returns what is recorded of them.
    #[must_use]
    pub fn recorded(&self) -> Vec<RecordedFile> {
        let recorded = self.files.iter().map(|file| RecordedFile {
            argument: shown(&file.field(), SHOWN),
            length: file.facts().length,
            sha256: file.facts().sha256,
        });
        recorded.collect()
    }
}

impl BoundFile {
    /// Returns the argument that names it: `file`, `files[1]`.
    #[must_use]
    pub fn field(&self) -> String {
        field(&self.name, self.index)
    }

    /// Returns the argument's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns which of the argument's values it is.
    #[must_use]
    pub fn index(&self) -> Option<usize> {
        self.index
    }

    /// Returns the path as the call has it.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns what may go with the reference.
    #[must_use]
    pub fn accepts(&self) -> Accepts {
        self.accepts
    }

    /// Returns what the file was when it was opened.
    #[must_use]
    pub fn facts(&self) -> &FileFacts {
        &self.open.facts
    }

    /// Returns the open file.
    #[must_use]
    pub fn open(&self) -> &OpenFile {
        &self.open
    }
}
