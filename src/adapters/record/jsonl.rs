//! A record as files of JSON lines, chained.
//!
//! Promises: a new file is readable by its owner alone; each line is handed to the operating system in one write,
//! before the call that it belongs to goes on (R34); lines of several processes that append to one file do not mix,
//! as far as the file system keeps appends whole: each process has a chain of its own. A line that was cut off by a full disk
//! or a crash stays a line of its own, so that it spoils no other.
//!
//! Digests of what callers gave are marks under a key of their tenant: nobody who reads a record finds out by trying what was
//! given (R34). A named pipe whose reader stops reading blocks the calls: a record that nobody reads is no record.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::place::Place;
use super::writer::{Bounds, Inputs, Writer};
use super::{inputs, line};
use crate::config::records::{Fsync, OnFailure};
use crate::model::caller::TenantId;
use crate::model::chain::Key;
use crate::model::digest::Digest;
use crate::model::item::Item;
use crate::ports::chains::{Chains, ChainsFailed};
use crate::ports::recorder::{DecisionRecord, ObservedRecord, RecordFailed, Recorder};

/// There is no record to write to.
#[derive(Debug, thiserror::Error)]
pub enum OpenFailed {
    /// The file or folder cannot be opened.
    #[error("cannot open the log file `{}`", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The keys cannot be had.
    #[error(transparent)]
    Keys(#[from] ChainsFailed),
}

/// How a record is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Writing {
    /// Keeps the arguments of calls in items too. They may hold secrets.
    pub include_arguments: bool,
    /// Keeps what decisions were taken on in a file of its own, for replay. It holds the arguments of all calls.
    pub inputs: bool,
    /// What becomes of a call whose decision cannot be written.
    pub on_failure: OnFailure,
    /// When a decision is on the disk.
    pub fsync: Fsync,
    /// From how many bytes on a file of a folder gives way to the next.
    pub rotate_bytes: u64,
}

impl Default for Writing {
    fn default() -> Self {
        Self {
            include_arguments: false,
            inputs: false,
            on_failure: OnFailure::default(),
            fsync: Fsync::default(),
            rotate_bytes: u64::MAX,
        }
    }
}

/// Writes items and decisions, a line each.
pub struct JsonLines {
    writer: Mutex<Writer>,
    writing: Writing,
    inputs_key: Key,
    lost: AtomicU64,
    unrecorded: AtomicU64,
}

impl std::fmt::Debug for JsonLines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JsonLines").field("writing", &self.writing).finish_non_exhaustive()
    }
}

impl JsonLines {
    /// Opens a record. Its chain begins with its first line.
    ///
    /// # Errors
    /// [`OpenFailed`] with the path and the cause.
    pub fn open(place: Place, writing: Writing, chains: Arc<dyn Chains>) -> Result<Self, OpenFailed> {
        let inputs_key = chains.inputs_key()?;
        let (Place::File(path) | Place::Folder(path)) = &place;
        let path = path.clone();
        let writer = Writer::open(place, writing.bounds(), chains);
        let writer = writer.map_err(|source| OpenFailed::File { path, source })?;
        Ok(Self::over(writer, writing, inputs_key))
    }

    fn over(writer: Writer, writing: Writing, inputs_key: Key) -> Self {
        let (lost, unrecorded) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { writer: Mutex::new(writer), writing, inputs_key, lost, unrecorded }
    }

    /// Returns how many lines that no call waits for could not be written.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Returns how many calls went on although their decision is not recorded.
    #[must_use]
    pub fn unrecorded(&self) -> u64 {
        self.unrecorded.load(Ordering::Relaxed)
    }

    /// Writes a line that no call waits for.
    fn write_or_count(&self, line: io::Result<Vec<u8>>) {
        // The first one is reported and all are counted: a full disk must not fill the other log as well.
        if let Err(error) = line.and_then(|line| self.writer.lock().write(&line, None))
            && self.lost.fetch_add(1, Ordering::Relaxed) == 0
        {
            tracing::error!(%error, "a line could not be written to the log; further ones are only counted");
        }
    }

    fn write_decision(&self, record: &DecisionRecord) -> io::Result<()> {
        let inputs = record.inputs.as_ref().filter(|_| self.writing.inputs);
        let inputs = inputs.map(|inputs| inputs::line(&record.call, inputs)).transpose()?.flatten();
        let inputs = inputs.map(|line| Inputs::of(line, &self.tenant_key(&record.caller.tenant)));
        let line = line::decision(&self.keyed(record), line::MAX_LINE)?;
        let mut writer = self.writer.lock();
        writer.write(&line, inputs.as_ref())?;
        match self.writing.fsync {
            Fsync::Each => writer.sync(),
            Fsync::Never => Ok(()),
        }
    }

    /// The record with the tenant's marks in the place of digests of what the caller gave, and of what components heard of it.
    fn keyed(&self, record: &DecisionRecord) -> DecisionRecord {
        let mut record = record.clone();
        let key = self.tenant_key(&record.caller.tenant);
        record.arguments = marked(&key, record.arguments);
        record.files.iter_mut().for_each(|file| file.sha256 = marked(&key, file.sha256));
        record.decision.voices.iter_mut().for_each(|voice| voice.heard = voice.heard.map(|heard| marked(&key, heard)));
        record
    }

    fn tenant_key(&self, tenant: &TenantId) -> Key {
        self.inputs_key.of_tenant(tenant.as_str())
    }
}

impl Inputs {
    /// The line with its newline, and its mark without.
    fn of(line: Vec<u8>, key: &Key) -> Self {
        let mark = marked(key, Digest::of(line.strip_suffix(b"\n").unwrap_or(&line)));
        Self { line, mark }
    }
}

/// The mark that stands for a digest in records, under a tenant's key.
#[must_use]
pub fn marked(key: &Key, digest: Digest) -> Digest {
    key.mark(digest.as_bytes())
}

impl Writing {
    fn bounds(&self) -> Bounds {
        Bounds { rotate_bytes: self.rotate_bytes, sync: self.fsync == Fsync::Each }
    }
}

impl Recorder for JsonLines {
    fn item(&self, item: &Item) {
        self.write_or_count(line::item(item, self.writing.include_arguments, line::MAX_LINE));
    }

    fn decision(&self, record: &DecisionRecord) -> Result<(), RecordFailed> {
        let Err(error) = self.write_decision(record) else { return Ok(()) };
        match self.writing.on_failure {
            OnFailure::Refuse => Err(RecordFailed(error)),
            OnFailure::Continue => {
                // The next line that can be written says so, too.
                self.writer.lock().went_on();
                if self.unrecorded.fetch_add(1, Ordering::Relaxed) == 0 {
                    tracing::error!(%error, "a decision could not be recorded, and its call goes on; further ones are only counted");
                }
                Ok(())
            }
        }
    }

    fn observed(&self, record: &ObservedRecord) {
        let mut record = record.clone();
        let key = self.tenant_key(&record.tenant);
        record.arguments = marked(&key, record.arguments);
        record.voices.iter_mut().for_each(|voice| voice.heard = voice.heard.map(|heard| marked(&key, heard)));
        self.write_or_count(line::observed(&record, line::MAX_LINE));
    }
}

#[cfg(test)]
#[path = "jsonl_tests.rs"]
pub(super) mod tests;
