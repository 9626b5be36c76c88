//! Lines of a file, one after the other, each bounded.

use std::io::{self, BufRead, Read as _};

/// A line that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// There is none any more.
    End,
    /// One with its newline, which is not in the buffer.
    Whole,
    /// The last one, without a newline.
    Torn,
    /// One that is longer than any of ours; the buffer has its beginning.
    TooLong,
}

/// Reads lines of at most `max` bytes.
#[derive(Debug)]
pub struct Lines<R> {
    from: R,
    max: usize,
}

impl<R: BufRead> Lines<R> {
    /// Reads from the beginning.
    pub fn new(from: R, max: usize) -> Self {
        Self { from, max }
    }

    /// Reads the next line into `buffer`, whatever was in it.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn next(&mut self, buffer: &mut Vec<u8>) -> io::Result<Line> {
        buffer.clear();
        let most = u64::try_from(self.max).unwrap_or(u64::MAX).saturating_add(1);
        let read = self.from.by_ref().take(most).read_until(b'\n', buffer)?;
        if buffer.last() == Some(&b'\n') {
            buffer.pop();
            return Ok(Line::Whole);
        }
        if read == 0 {
            return Ok(Line::End);
        }
        if buffer.len() <= self.max {
            return Ok(Line::Torn);
        }
        buffer.truncate(self.max);
        self.skip()?;
        Ok(Line::TooLong)
    }

    /// Goes on to behind the next newline.
    fn skip(&mut self) -> io::Result<()> {
        loop {
            let some = self.from.fill_buf()?;
            let end = some.iter().position(|byte| *byte == b'\n');
            let used = end.map_or(some.len(), |end| end + 1);
            let over = end.is_some() || some.is_empty();
            self.from.consume(used);
            if over {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded_and_the_last_one_may_be_torn() {
        let mut lines = Lines::new(io::BufReader::with_capacity(3, &b"ab\n\nabcdefg\nxy"[..]), 5);
        let mut buffer = Vec::new();
        let mut next = || {
            let read = lines.next(&mut buffer).unwrap();
            (read, String::from_utf8(buffer.clone()).unwrap())
        };
        assert_eq!(next(), (Line::Whole, "ab".to_owned()));
        assert_eq!(next(), (Line::Whole, String::new()));
        assert_eq!(next(), (Line::TooLong, "abcde".to_owned()));
        assert_eq!(next(), (Line::Torn, "xy".to_owned()));
        assert_eq!(next().0, Line::End);
    }
}
