//! Reading an open file by position, within bounds, and noticing that it is not what it was.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Weak};

use bytes::Bytes;

use crate::model::digest::{Digest, Running};
use crate::ports::files::{FileError, OpenFile};

/// How much is read at once, in bytes.
pub(super) const CHUNK: usize = 256 * 1024;

/// Held by whoever waits for a file to be read.
pub(super) struct Alive(#[expect(dead_code, reason = "what it points to is alive as long as this")] Arc<()>);
/// Tells the thread that reads whether anybody still waits.
pub(super) struct Gone(Weak<()>);

/// A thread that reads cannot be dropped; this is how it learns that it should end.
pub(super) fn leash() -> (Alive, Gone) {
    let held = Arc::new(());
    let gone = Gone(Arc::downgrade(&held));
    (Alive(held), gone)
}

fn unreadable(error: &io::Error) -> FileError {
    FileError::Unreadable(error.kind().to_string())
}

/// Returns the length of a regular file.
pub(super) fn length(file: &File) -> Result<u64, FileError> {
    let metadata = file.metadata().map_err(|error| unreadable(&error))?;
    if metadata.is_file() { Ok(metadata.len()) } else { Err(FileError::NotAFile) }
}

/// Reads a file of this length once; one that has more or fewer bytes by now has changed.
pub(super) fn digest(file: &File, length: u64, gone: &Gone) -> Result<Digest, FileError> {
    let mut buffer = vec![0; CHUNK];
    let (mut at, mut running) = (0, Digest::running());
    while gone.0.strong_count() > 0 {
        let read = read_at(file, &mut buffer, at)?;
        if read.is_empty() {
            return if at == length { Ok(running.finish()) } else { Err(FileError::Changed) };
        }
        at += read.len() as u64;
        if at > length {
            return Err(FileError::Changed);
        }
        running.add(read);
    }
    Err(FileError::Unreadable("nobody waits for it any more".to_owned()))
}

fn read_at<'a>(file: &File, buffer: &'a mut [u8], at: u64) -> Result<&'a [u8], FileError> {
    loop {
        match file.read_at(buffer, at) {
            Ok(read) => return Ok(buffer.get(..read).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(unreadable(&error)),
        }
    }
}

/// The bytes of a file that was opened before, chunk by chunk. The last chunk is only given when all of them are those that were
/// bound then: what differs never arrives whole.
pub(super) struct Chunks {
    file: OpenFile,
    at: u64,
    running: Option<Running>,
}

impl Chunks {
    pub(super) fn of(file: OpenFile) -> Self {
        Self { file, at: 0, running: Some(Digest::running()) }
    }

    /// Reads the next chunk. `None` once all of the file was given. Blocks.
    ///
    /// # Errors
    /// [`FileError::Changed`], or it cannot be read. There is no next chunk after an error.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, FileError> {
        let Some(mut running) = self.running.take() else { return Ok(None) };
        let length = self.file.facts.length;
        let mut buffer = vec![0; CHUNK];
        let read = read_at(&self.file.handle, &mut buffer, self.at)?.len();
        buffer.truncate(read);
        running.add(&buffer);
        self.at += read as u64;
        if read == 0 && self.at < length || self.at > length {
            return Err(FileError::Changed);
        }
        if self.at < length {
            self.running = Some(running);
        } else if running.finish() != self.file.facts.sha256
            || !read_at(&self.file.handle, &mut [0], length)?.is_empty()
        {
            return Err(FileError::Changed);
        }
        Ok((read > 0).then(|| buffer.into()))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::ports::files::FileFacts;

    fn open(file: &File, bytes: &[u8]) -> OpenFile {
        let facts = FileFacts { name: "f".to_owned(), length: bytes.len() as u64, sha256: Digest::of(bytes) };
        OpenFile { facts, handle: Arc::new(file.try_clone().unwrap()) }
    }

    fn all(file: OpenFile) -> (Vec<u8>, Result<(), FileError>) {
        let (mut chunks, mut out) = (Chunks::of(file), Vec::new());
        loop {
            match chunks.next() {
                Ok(Some(chunk)) => out.extend_from_slice(&chunk),
                Ok(None) => return (out, Ok(())),
                Err(error) => return (out, Err(error)),
            }
        }
    }

    #[test]
    fn a_file_is_given_as_it_is_whatever_its_length() {
        for length in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK] {
            let bytes: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&bytes).unwrap();
            assert_eq!(super::length(&file), Ok(length as u64));
            let (_alive, gone) = leash();
            assert_eq!(digest(&file, length as u64, &gone), Ok(Digest::of(&bytes)));
            assert!(all(open(&file, &bytes)) == (bytes, Ok(())), "{length}");
        }
    }

    #[test]
    fn r27_a_file_that_grew_shrank_or_changed_is_never_given_whole() {
        let bytes = vec![7; 2 * CHUNK];
        let changes: [fn(&File); 3] = [
            |file| file.set_len(2 * CHUNK as u64 + 1).unwrap(),
            |file| file.set_len(2 * CHUNK as u64 - 1).unwrap(),
            |file| file.write_all_at(b"x", 5).unwrap(),
        ];
        for change in changes {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&bytes).unwrap();
            let opened = open(&file, &bytes);
            change(&file);
            let (given, ended) = all(opened);
            assert_eq!(ended, Err(FileError::Changed));
            assert!(given.len() < bytes.len(), "all of it was given");
        }
        let empty = tempfile::tempfile().unwrap();
        let opened = open(&empty, b"");
        empty.set_len(1).unwrap();
        assert_eq!(all(opened).1, Err(FileError::Changed));
    }

    #[test]
    fn nobody_reads_on_for_a_call_that_is_gone() {
        let file = tempfile::tempfile().unwrap();
        let (alive, gone) = leash();
        drop(alive);
        assert!(digest(&file, 0, &gone).is_err());
    }
}
