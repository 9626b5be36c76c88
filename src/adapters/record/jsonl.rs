//! A record as a file of JSON lines.
//!
//! Promises: a new file is readable by its owner alone; each line is handed to the operating system in one write,
//! before the call that it belongs to goes on (R34); lines of several processes that append to one file do not mix,
//! as far as the file system keeps appends whole. A line that was cut off by a full disk or a crash stays a line of its
//! own, so that it spoils no other.
//!
//! Does not sync to the disk, rotate or chain. A named pipe whose reader stops reading blocks the calls: a record that
//! nobody reads is no record.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::line;
use crate::model::item::Item;
use crate::ports::recorder::{DecisionRecord, ObservedRecord, RecordFailed, Recorder};

/// The log file could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the log file `{}`", path.display())]
pub struct OpenFailed {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// Writes items and decisions to a file, a line each.
pub struct JsonLines {
    out: Mutex<Out>,
    include_arguments: bool,
    lost: AtomicU64,
}

struct Out {
    to: Box<dyn Write + Send>,
    /// Whether the last line may lack its end.
    torn: bool,
}

impl std::fmt::Debug for JsonLines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JsonLines").field("include_arguments", &self.include_arguments).finish_non_exhaustive()
    }
}

impl JsonLines {
    /// Opens `path` to append to it; makes it, readable by its owner alone, if it is not there.
    ///
    /// `include_arguments` keeps the arguments of calls too. They may hold secrets.
    ///
    /// # Errors
    /// [`OpenFailed`] with the path and the cause.
    pub fn open(path: &Path, include_arguments: bool) -> Result<Self, OpenFailed> {
        let failed = |source| OpenFailed { path: path.to_owned(), source };
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path).map_err(failed)?;
        let torn = ends_torn(path, &file);
        Ok(Self::over(Box::new(file), torn, include_arguments))
    }

    fn over(to: Box<dyn Write + Send>, torn: bool, include_arguments: bool) -> Self {
        Self { out: Mutex::new(Out { to, torn }), include_arguments, lost: AtomicU64::new(0) }
    }

    /// Returns how many items could not be written.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    fn write(&self, line: io::Result<Vec<u8>>) -> io::Result<()> {
        let mut line = line?;
        let mut out = self.out.lock();
        if out.torn {
            line.insert(0, b'\n');
        }
        let written = out.to.write_all(&line);
        out.torn = written.is_err();
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

impl JsonLines {
    /// Writes a line that no call waits for.
    fn write_or_count(&self, line: io::Result<Vec<u8>>) {
        // The first one is reported and all are counted: a full disk must not fill the other log as well.
        if let Err(error) = self.write(line)
            && self.lost.fetch_add(1, Ordering::Relaxed) == 0
        {
            tracing::error!(%error, "a line could not be written to the log; further ones are only counted");
        }
    }
}

impl Recorder for JsonLines {
    fn item(&self, item: &Item) {
        self.write_or_count(line::item(item, self.include_arguments, line::MAX_LINE));
    }

    fn decision(&self, record: &DecisionRecord) -> Result<(), RecordFailed> {
        self.write(line::decision(record, line::MAX_LINE)).map_err(RecordFailed)
    }

    fn observed(&self, record: &ObservedRecord) {
        self.write_or_count(line::observed(record, line::MAX_LINE));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::Arc;

    use super::*;
    use crate::adapters::record::line::samples;

    fn lines(path: &Path) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn lines_are_in_the_file_when_the_call_returns_and_only_the_owner_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        let log = JsonLines::open(&path, false).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        log.decision(&samples::decision()).unwrap();
        assert_eq!(lines(&path).len(), 1);
        log.item(&samples::completed());
        assert_eq!(lines(&path)[1]["type"], "completed");
    }

    #[test]
    fn an_existing_log_is_continued_and_a_torn_line_spoils_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        std::fs::write(&path, "{\"type\":\"star").unwrap();
        JsonLines::open(&path, false).unwrap().item(&samples::started());
        JsonLines::open(&path, false).unwrap().item(&samples::started());
        let text = std::fs::read_to_string(&path).unwrap();
        let good = text.lines().filter(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()).count();
        assert_eq!((text.lines().count(), good), (3, 2));
    }

    #[test]
    fn r34_a_decision_on_a_full_disk_is_an_error_with_its_cause() {
        let log = JsonLines::open(Path::new("/dev/full"), false).unwrap();
        let RecordFailed(cause) = log.decision(&samples::decision()).unwrap_err();
        assert_eq!(cause.kind(), io::ErrorKind::StorageFull);
        assert_eq!(log.lost(), 0);
    }

    #[test]
    fn items_lost_on_a_full_disk_are_counted() {
        let log = JsonLines::open(Path::new("/dev/full"), false).unwrap();
        log.item(&samples::started());
        log.item(&samples::completed());
        assert_eq!(log.lost(), 2);
    }

    /// Takes a few bytes of the first write, then fails it; later writes work.
    struct Tearing {
        kept: Arc<Mutex<Vec<u8>>>,
        writes: usize,
    }

    impl Write for Tearing {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.writes += 1;
            let taken = match self.writes {
                1 => &bytes[..5],
                2 => return Err(io::Error::from(io::ErrorKind::StorageFull)),
                _ => bytes,
            };
            self.kept.lock().extend_from_slice(taken);
            Ok(taken.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_after_a_torn_one_begins_anew() {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let log = JsonLines::over(Box::new(Tearing { kept: Arc::clone(&kept), writes: 0 }), false, false);
        assert!(log.decision(&samples::decision()).is_err());
        log.decision(&samples::decision()).unwrap();
        let text = String::from_utf8(kept.lock().clone()).unwrap();
        let whole = text.lines().nth(1).unwrap();
        assert!(serde_json::from_str::<serde_json::Value>(whole).is_ok(), "{text}");
    }

    #[test]
    fn a_log_that_cannot_be_opened_is_named() {
        let error = JsonLines::open(Path::new("/nowhere/log.jsonl"), false).unwrap_err();
        assert_eq!(error.to_string(), "cannot open the log file `/nowhere/log.jsonl`");
    }

    #[test]
    fn lines_written_at_once_do_not_mix() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        let log = JsonLines::open(&path, true).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..50).for_each(|_| log.item(&samples::started())));
            }
        });
        assert_eq!(lines(&path).len(), 400);
    }
}
