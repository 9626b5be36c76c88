//! Where a message ends: bounded reading of newline-delimited text.
//!
//! A line that is longer than the limit is dropped while it is read; only its first and last bytes are kept, because
//! they may hold the request id that has to be answered. Reading is cancel-safe: rmcp drops a read whenever it has
//! something to send, and a partial line has to survive that.

use std::io;

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

/// How much of the beginning of an oversized line is kept.
pub(super) const HEAD: usize = 4096;
/// How much of its end is kept.
pub(super) const TAIL: usize = 512;
/// An oversized line may have this many times the limit before the reader gives up on the stream.
const PATIENCE: usize = 4;

/// What was read.
#[derive(Debug)]
pub(super) enum Read {
    /// A whole line is in [`LineReader::line`], without its line feed.
    Line,
    /// A line has just become longer than the limit. Its beginning is in [`LineReader::line`]; the rest is skipped.
    Oversized,
    /// The oversized line ended; its last bytes are in [`LineReader::line`].
    OversizedEnd,
    /// The oversized line does not end.
    Endless,
    /// The stream ended. What came after the last line feed is in [`LineReader::line`].
    End,
    /// The stream failed.
    Failed(io::Error),
}

/// Reads lines.
#[derive(Debug)]
pub(super) struct LineReader<I> {
    input: BufReader<I>,
    line: Vec<u8>,
    limit: usize,
    /// Bytes of the oversized line that is being skipped.
    skipped: Option<usize>,
    fresh: bool,
}

enum Step {
    More,
    Done(Read),
}

impl<I: AsyncRead + Unpin> LineReader<I> {
    pub(super) fn new(input: I, limit: usize) -> Self {
        Self { input: BufReader::with_capacity(64 * 1024, input), line: Vec::new(), limit, skipped: None, fresh: true }
    }

    /// Returns the bytes that the last [`Read`] speaks of.
    pub(super) fn line(&self) -> &[u8] {
        &self.line
    }

    /// Reads until there is something to tell. Cancel-safe.
    pub(super) async fn next(&mut self) -> Read {
        if self.fresh {
            // The line that was told last time is over.
            self.line.clear();
            // One large answer must not hold its memory for ever.
            self.line.shrink_to(1024 * 1024);
            self.fresh = false;
        }
        loop {
            let step = {
                let available = match self.input.fill_buf().await {
                    Ok(available) => available,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => return self.tell(Read::Failed(error)),
                };
                if available.is_empty() {
                    if self.skipped.take().is_some() {
                        self.line.clear();
                    }
                    return self.tell(Read::End);
                }
                let end = available.iter().position(|byte| *byte == b'\n');
                let (piece, _) = available.split_at(end.unwrap_or(available.len()));
                let used = piece.len() + usize::from(end.is_some());
                let step = take(&mut self.line, &mut self.skipped, piece, end.is_some(), self.limit);
                self.input.consume(used);
                step
            };
            if let Step::Done(read) = step {
                return self.tell(read);
            }
        }
    }

    fn tell(&mut self, read: Read) -> Read {
        self.fresh = true;
        read
    }
}

/// Adds a piece of a line. No await between here and the matching `consume`, so nothing is lost or taken twice.
fn take(line: &mut Vec<u8>, skipped: &mut Option<usize>, piece: &[u8], ends: bool, limit: usize) -> Step {
    if let Some(count) = skipped {
        *count = count.saturating_add(piece.len());
        keep_tail(line, piece);
        return if ends {
            *skipped = None;
            Step::Done(Read::OversizedEnd)
        } else if *count > limit.saturating_mul(PATIENCE) {
            Step::Done(Read::Endless)
        } else {
            Step::More
        };
    }
    line.extend_from_slice(piece);
    if line.len() <= limit {
        return if ends { Step::Done(Read::Line) } else { Step::More };
    }
    if ends {
        // Head and tail are both here; the caller is told once.
        let tail = line.split_off(line.len().saturating_sub(TAIL));
        line.truncate(HEAD);
        line.push(b'\n');
        line.extend_from_slice(&tail);
        return Step::Done(Read::OversizedEnd);
    }
    *skipped = Some(line.len());
    line.truncate(HEAD);
    Step::Done(Read::Oversized)
}

fn keep_tail(line: &mut Vec<u8>, piece: &[u8]) {
    line.extend_from_slice(piece.get(piece.len().saturating_sub(TAIL)..).unwrap_or(piece));
    let surplus = line.len().saturating_sub(TAIL);
    line.drain(..surplus);
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn told(input: &'static [u8], limit: usize) -> Vec<(String, String)> {
        let mut reader = LineReader::new(input, limit);
        let mut out = Vec::new();
        loop {
            let read = reader.next().await;
            let name = format!("{read:?}");
            out.push((name.clone(), String::from_utf8_lossy(reader.line()).into_owned()));
            if matches!(read, Read::End | Read::Endless | Read::Failed(_)) {
                return out;
            }
        }
    }

    #[tokio::test]
    async fn lines_are_told_one_by_one_and_the_rest_comes_with_the_end() {
        let told = told(b"a\n\nbc\nrest", 10).await;
        let expected = [("Line", "a"), ("Line", ""), ("Line", "bc"), ("End", "rest")];
        assert_eq!(told, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
    }

    #[tokio::test]
    async fn a_line_of_exactly_the_limit_passes_and_one_more_byte_does_not() {
        assert_eq!(told(b"abcd\n", 4).await[0].0, "Line");
        assert_eq!(told(b"abcde\nx\n", 4).await[0].0, "OversizedEnd");
        assert_eq!(told(b"abcde\nx\n", 4).await[1], ("Line".to_owned(), "x".to_owned()));
    }

    #[tokio::test]
    async fn an_endless_line_is_given_up_in_bounded_memory() {
        let mut reader = LineReader::new(tokio::io::repeat(b'x'), 10_000);
        assert!(matches!(reader.next().await, Read::Oversized));
        assert_eq!(reader.line().len(), HEAD);
        assert!(matches!(reader.next().await, Read::Endless));
        assert!(reader.line().len() <= TAIL && reader.line.capacity() < 2 * 1024 * 1024);
    }

    #[tokio::test]
    async fn after_an_oversized_line_the_next_one_is_read_as_usual() {
        use tokio::io::AsyncWriteExt as _;
        let (mut far, near) = tokio::io::duplex(16 * 1024);
        let write = tokio::spawn(async move {
            far.write_all(b"HEAD").await.unwrap();
            far.write_all(&[b'x'; 200_000]).await.unwrap();
            far.write_all(b"TAIL\nnext\n").await.unwrap();
        });
        let mut reader = LineReader::new(near, 100_000);
        assert!(matches!(reader.next().await, Read::Oversized));
        assert!(reader.line().starts_with(b"HEAD"));
        assert!(matches!(reader.next().await, Read::OversizedEnd));
        assert!(reader.line().ends_with(b"TAIL"));
        assert!(matches!(reader.next().await, Read::Line));
        assert_eq!(reader.line(), b"next");
        write.await.unwrap();
    }

    #[tokio::test]
    async fn a_read_that_is_dropped_half_way_loses_nothing() {
        use tokio::io::AsyncWriteExt as _;
        let (mut far, near) = tokio::io::duplex(64);
        let mut reader = LineReader::new(near, 100);
        far.write_all(b"half").await.unwrap();
        assert!(futures::poll!(std::pin::pin!(reader.next())).is_pending());
        far.write_all(b" line\n").await.unwrap();
        assert!(matches!(reader.next().await, Read::Line));
        assert_eq!(reader.line(), b"half line");
    }
}
