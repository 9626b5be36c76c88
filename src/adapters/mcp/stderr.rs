//! What a server writes to stderr: log lines, and the last of them for error texts.
//!
//! Bounded: a line is cut at 8 KiB, 50 lines are kept, and in ten seconds at most 100 are logged.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::model::text;

const MAX_LINE: usize = 8 * 1024;
const KEPT: usize = 50;
const LOGGED: u32 = 100;
const WINDOW: Duration = Duration::from_secs(10);
/// The longest tail in an error text, in characters a line and lines.
const SHOWN: (usize, usize) = (300, 8);

/// The task that reads a child's stderr.
#[derive(Debug)]
pub(super) struct Stderr {
    tail: Arc<Mutex<VecDeque<String>>>,
    task: JoinHandle<()>,
}

impl Stderr {
    pub(super) fn read<I: AsyncRead + Send + Unpin + 'static>(server: Arc<str>, input: I) -> Self {
        let tail = Arc::new(Mutex::new(VecDeque::new()));
        let task = tokio::spawn(read(server, input, tail.clone()));
        Self { tail, task }
    }

    /// Waits until the stream has ended, but not longer than `limit`: a grandchild may keep it open.
    pub(super) async fn finished(&mut self, limit: Duration) {
        if !self.task.is_finished() {
            let _ = tokio::time::timeout(limit, &mut self.task).await;
        }
    }

    /// Returns the last lines, made fit to be shown, or `None` if nothing was written.
    pub(super) fn tail(&self) -> Option<String> {
        let tail = self.tail.lock();
        let from = tail.len().saturating_sub(SHOWN.1);
        let lines: Vec<String> = tail.iter().skip(from).map(|line| text::shown(line, SHOWN.0)).collect();
        if lines.is_empty() { None } else { Some(lines.join("; ")) }
    }
}

impl Drop for Stderr {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn read<I: AsyncRead + Unpin>(server: Arc<str>, input: I, tail: Arc<Mutex<VecDeque<String>>>) {
    let mut input = BufReader::new(input);
    let mut line = Vec::new();
    let mut log = Log { server, since: Instant::now(), count: 0, dropped: 0 };
    loop {
        let (used, ended) = match input.fill_buf().await {
            Ok([]) | Err(_) => break,
            Ok(bytes) => {
                let end = bytes.iter().position(|byte| *byte == b'\n');
                let (piece, _) = bytes.split_at(end.unwrap_or(bytes.len()));
                let room = MAX_LINE.saturating_sub(line.len());
                line.extend_from_slice(piece.get(..room).unwrap_or(piece));
                (piece.len() + usize::from(end.is_some()), end.is_some())
            }
        };
        input.consume(used);
        if ended {
            keep(&line, &tail, &mut log);
            line.clear();
        }
    }
    keep(&line, &tail, &mut log);
    log.report();
}

fn keep(line: &[u8], tail: &Mutex<VecDeque<String>>, log: &mut Log) {
    let text = String::from_utf8_lossy(line);
    let text = text.trim_end();
    if text.is_empty() {
        return;
    }
    log.line(text);
    let mut tail = tail.lock();
    if tail.len() >= KEPT {
        tail.pop_front();
    }
    tail.push_back(text.to_owned());
}

struct Log {
    server: Arc<str>,
    since: Instant,
    count: u32,
    dropped: u64,
}

impl Log {
    fn line(&mut self, text: &str) {
        if self.since.elapsed() >= WINDOW {
            self.report();
            self.since = Instant::now();
            self.count = 0;
        }
        if self.count < LOGGED {
            self.count += 1;
            tracing::info!(target: "portcullis::upstream", server = %self.server, "{}", text::shown(text, MAX_LINE));
        } else {
            self.dropped += 1;
        }
    }

    fn report(&mut self) {
        if self.dropped > 0 {
            let dropped = std::mem::take(&mut self.dropped);
            tracing::info!(target: "portcullis::upstream", server = %self.server, "{dropped} lines were not logged");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_tail_is_bounded_in_lines_and_bytes_and_fit_to_be_shown() {
        let mut input = vec![b'x'; 100_000];
        input.push(b'\n');
        for i in 0..60 {
            input.extend_from_slice(format!("line {i}\x1b[2J\n").as_bytes());
        }
        let mut stderr = Stderr::read("s".into(), std::io::Cursor::new(input));
        stderr.finished(Duration::from_secs(5)).await;
        assert_eq!(stderr.tail.lock().len(), KEPT);
        let tail = stderr.tail().unwrap();
        assert!(tail.ends_with("line 59\\u{1b}[2J") && !tail.contains("line 51"), "{tail}");
    }
}
