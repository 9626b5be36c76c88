//! Finding lines again: the last ones of a file, and those of one call.

use std::fs::File;
use std::io::{self, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use super::line::MAX_LINE;
use super::link::MAX_LINK;
use super::reading::{Line, Lines};

/// How much is read at once from the end.
const BLOCK: u64 = 256 * 1024;
/// The most bytes that the last lines may have together; of longer ones fewer are returned.
const MAX_TAIL: usize = 64 * 1024 * 1024;

/// The last lines of a file, and where it ended.
#[derive(Debug)]
pub struct Tail {
    /// The lines, oldest first, without newlines.
    pub lines: Vec<Vec<u8>>,
    /// Behind the last whole line, in bytes from the beginning.
    pub end: u64,
}

/// Returns the last `count` whole lines of a file.
///
/// # Errors
/// It cannot be read.
pub fn tail(file: &Path, count: usize) -> io::Result<Tail> {
    let mut from = File::open(file)?;
    let length = from.seek(SeekFrom::End(0))?;
    let (mut begin, mut bytes) = (length, Vec::new());
    // One newline more than lines: the one before the first of them.
    while begin > 0 && bytes.len() < MAX_TAIL && newlines(&bytes) <= count {
        let size = BLOCK.min(begin);
        begin -= size;
        from.seek(SeekFrom::Start(begin))?;
        let mut block = Vec::new();
        from.by_ref().take(size).read_to_end(&mut block)?;
        block.append(&mut bytes);
        bytes = block;
    }
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    let mut lines: Vec<&[u8]> = bytes[..whole].split(|byte| *byte == b'\n').collect();
    // Behind the last newline there is nothing, and before the first one perhaps half a line.
    lines.pop();
    if begin > 0 && !lines.is_empty() {
        lines.remove(0);
    }
    let some = lines.len().saturating_sub(count);
    let end = begin + u64::try_from(whole).unwrap_or(0);
    Ok(Tail { lines: lines[some..].iter().map(|line| line.to_vec()).collect(), end })
}

fn newlines(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte == b'\n').count()
}

/// Returns the whole lines that have come behind `end`, at most 64 MiB of them, and moves `end` on.
///
/// # Errors
/// The file cannot be read.
pub fn more(file: &Path, end: &mut u64) -> io::Result<Vec<Vec<u8>>> {
    let mut from = File::open(file)?;
    from.seek(SeekFrom::Start(*end))?;
    let mut bytes = Vec::new();
    from.take(u64::try_from(MAX_TAIL).unwrap_or(u64::MAX)).read_to_end(&mut bytes)?;
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    *end += u64::try_from(whole).unwrap_or(0);
    let mut lines: Vec<Vec<u8>> = bytes[..whole].split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    lines.pop();
    Ok(lines)
}

/// Opens a file of records, line by line.
///
/// # Errors
/// The file cannot be opened.
pub fn lines_of(file: &Path) -> io::Result<Lines<BufReader<File>>> {
    Ok(Lines::new(BufReader::with_capacity(256 * 1024, File::open(file)?), MAX_LINE + MAX_LINK))
}

/// Gives every whole line of a file to `each`, without its newline, until that returns `false`.
///
/// # Errors
/// The file cannot be read.
pub fn every_line(file: &Path, mut each: impl FnMut(&[u8]) -> bool) -> io::Result<()> {
    let mut lines = lines_of(file)?;
    let mut buffer = Vec::new();
    loop {
        match lines.next(&mut buffer)? {
            Line::End => return Ok(()),
            Line::TooLong => {}
            Line::Whole | Line::Torn => {
                if !each(&buffer) {
                    return Ok(());
                }
            }
        }
    }
}

/// Whether a line is about a call. Cheap: most lines are not read further.
#[must_use]
pub fn is_of(line: &[u8], call: &str) -> bool {
    #[derive(serde::Deserialize)]
    struct Call {
        call: String,
    }

    let Ok(wanted) = serde_json::to_string(call) else { return false };
    let wanted = format!("\"call\":{wanted}");
    // The id is among the first members.
    let near = &line[..line.len().min(2048)];
    near.windows(wanted.len()).any(|window| window == wanted.as_bytes())
        && serde_json::from_slice::<Call>(line).is_ok_and(|found| found.call == call)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_whole_lines_are_found_and_those_that_come_later() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("log");
        let texts =
            |lines: Vec<Vec<u8>>| lines.into_iter().map(|line| String::from_utf8(line).unwrap()).collect::<Vec<_>>();
        let long = "x".repeat(300_000);
        std::fs::write(&file, format!("a\n{long}\nb\nc\nhal")).unwrap();
        let mut found = tail(&file, 2).unwrap();
        assert_eq!(texts(found.lines), ["b", "c"]);
        assert_eq!(texts(tail(&file, 3).unwrap().lines), [long.as_str(), "b", "c"]);
        assert_eq!(texts(tail(&file, 9).unwrap().lines).len(), 4);
        std::fs::write(&file, format!("a\n{long}\nb\nc\nhalf\nd\n")).unwrap();
        assert_eq!(texts(more(&file, &mut found.end).unwrap()), ["half", "d"]);
        assert!(more(&file, &mut found.end).unwrap().is_empty());
    }

    #[test]
    fn a_line_is_of_the_call_whose_id_it_has_and_not_of_one_that_it_quotes() {
        assert!(is_of(br#"{"type":"x","call":"call_1"}"#, "call_1"));
        assert!(!is_of(br#"{"type":"x","call":"call_12"}"#, "call_1"));
        assert!(!is_of(br#"{"type":"x","call":"other","arguments":{"call":"call_1"}}"#, "call_1"));
    }
}
