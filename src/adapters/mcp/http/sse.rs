//! Where an event ends: bounded, incremental reading of `text/event-stream`.
//!
//! Lines end with CR, LF or both, wherever the pieces are cut. Of an event its data, its id and the server's wish for a
//! pause are kept; events of another type than `message` have no data for us. An event that is longer than the limit ends
//! the stream: what follows could belong to it.

use std::time::Duration;

use bytes::{Buf as _, Bytes};

/// The longest event id that can be sent back, in bytes.
const MAX_ID: usize = 1024;
/// The longest pause that a server can ask for.
const MAX_RETRY: Duration = Duration::from_secs(60);
/// What remains allocated after a large event.
const KEPT: usize = 64 * 1024;
/// Some servers begin with it.
const BOM: &[u8] = b"\xEF\xBB\xBF";

/// An event that ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Event {
    /// Its data; `None`: it is of another type, or has none.
    pub(super) data: Option<Vec<u8>>,
    /// The last id of the stream, as the event left it.
    pub(super) id: Option<String>,
    /// The pause before the stream is opened again, if this event named one.
    pub(super) retry: Option<Duration>,
}

/// An event has more bytes than allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooLarge;

/// Reads events out of pieces.
#[derive(Debug)]
pub(super) struct Parser {
    limit: usize,
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    other_type: bool,
    id: Option<String>,
    retry: Option<Duration>,
    /// The last piece ended with CR: a LF that follows belongs to it.
    after_cr: bool,
    begun: bool,
}

impl Parser {
    /// Makes a parser; an event may have `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            line: Vec::new(),
            data: Vec::new(),
            has_data: false,
            other_type: false,
            id: None,
            retry: None,
            after_cr: false,
            begun: false,
        }
    }

    /// Takes from `piece` until an event ends; `None`: the piece is used up.
    ///
    /// # Errors
    /// [`TooLarge`]; the stream cannot be read any further.
    pub(super) fn next(&mut self, piece: &mut Bytes) -> Result<Option<Event>, TooLarge> {
        while let Some(first) = piece.first() {
            if std::mem::take(&mut self.after_cr) && *first == b'\n' {
                piece.advance(1);
                continue;
            }
            let end = piece.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
            let part = end.unwrap_or(piece.len());
            if self.line.len() + self.data.len() + part > self.limit {
                return Err(TooLarge);
            }
            self.line.extend_from_slice(piece.get(..part).unwrap_or_default());
            let Some(end) = end else {
                piece.advance(part);
                return Ok(None);
            };
            self.after_cr = piece.get(end) == Some(&b'\r');
            piece.advance(end + 1);
            if let Some(event) = self.line_ended() {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    fn line_ended(&mut self) -> Option<Event> {
        let mut line = std::mem::take(&mut self.line);
        let mut text = line.as_slice();
        if !std::mem::replace(&mut self.begun, true) {
            text = text.strip_prefix(BOM).unwrap_or(text);
        }
        if text.is_empty() {
            return self.event_ended();
        }
        let colon = text.iter().position(|byte| *byte == b':');
        let (name, value) = match colon {
            Some(at) => (text.get(..at).unwrap_or_default(), text.get(at + 1..).unwrap_or_default()),
            None => (text, &[][..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(value);
            }
            b"event" => self.other_type = !value.is_empty() && value != b"message",
            b"id" => self.identified(value),
            b"retry" => {
                let millis = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                self.retry = millis.map(|millis| Duration::from_millis(millis).min(MAX_RETRY)).or(self.retry);
            }
            // A comment, or something newer than this.
            _ => {}
        }
        line.clear();
        line.shrink_to(KEPT);
        self.line = line;
        None
    }

    /// An id that cannot be sent back is none at all.
    fn identified(&mut self, value: &[u8]) {
        if value.contains(&0) {
            return;
        }
        let id = std::str::from_utf8(value).ok().filter(|id| !id.is_empty() && id.len() <= MAX_ID);
        self.id = id.filter(|id| http::HeaderValue::from_str(id).is_ok()).map(str::to_owned);
    }

    fn event_ended(&mut self) -> Option<Event> {
        let data = std::mem::take(&mut self.data);
        let has_data = std::mem::take(&mut self.has_data) && !data.is_empty();
        let other_type = std::mem::take(&mut self.other_type);
        let retry = self.retry.take();
        let event = Event { data: (has_data && !other_type).then_some(data), id: self.id.clone(), retry };
        (event.data.is_some() || event.id.is_some() || event.retry.is_some()).then_some(event)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(pieces: &[&[u8]], limit: usize) -> Result<Vec<Event>, TooLarge> {
        let mut parser = Parser::new(limit);
        let mut events = Vec::new();
        for piece in pieces {
            let mut piece = Bytes::copy_from_slice(piece);
            while let Some(event) = parser.next(&mut piece)? {
                events.push(event);
            }
        }
        Ok(events)
    }

    fn texts(input: &str) -> Vec<String> {
        let events = read(&[input.as_bytes()], 1000).unwrap();
        events.into_iter().filter_map(|event| event.data).map(|data| String::from_utf8(data).unwrap()).collect()
    }

    #[test]
    fn data_lines_are_joined_and_comments_and_other_types_are_skipped() {
        assert_eq!(texts("data: a\ndata:b\ndata\n\n"), ["a\nb\n"]);
        assert_eq!(texts(": hello\n\nevent: message\ndata: x\n\nevent: ping\ndata: y\n\ndata: z\n\n"), ["x", "z"]);
        assert_eq!(texts("data: never ended\n"), [""; 0]);
        assert_eq!(texts("data:  two spaces\n\n"), [" two spaces"]);
    }

    #[test]
    fn every_line_ending_ends_a_line_and_a_byte_order_mark_is_skipped() {
        for end in ["\n", "\r", "\r\n"] {
            assert_eq!(texts(&format!("\u{feff}data: a{end}data: b{end}{end}data: c{end}{end}")), ["a\nb", "c"]);
        }
    }

    #[test]
    fn an_id_stays_until_another_comes_and_a_bad_one_is_none() {
        let ids = |input: &str| -> Vec<Option<String>> {
            read(&[input.as_bytes()], 5000).unwrap().into_iter().map(|event| event.id).collect()
        };
        assert_eq!(ids("id: 1\ndata\n\ndata: x\n\nid\ndata: y\n\n"), [Some("1".into()), Some("1".into()), None]);
        assert_eq!(ids("id: a\0b\ndata: x\n\n"), [None]);
        assert_eq!(ids(&format!("id: {}\ndata: x\n\n", "i".repeat(MAX_ID + 1))), [None]);
        assert_eq!(ids("id: caf\u{7f}\ndata: x\n\n"), [None], "what no header can hold");
    }

    #[test]
    fn the_wish_for_a_pause_is_bounded() {
        let pause = |input: &str| read(&[input.as_bytes()], 1000).unwrap().first().and_then(|event| event.retry);
        assert_eq!(pause("retry: 250\n\n"), Some(Duration::from_millis(250)));
        assert_eq!(pause("retry: 99999999999\n\n"), Some(MAX_RETRY));
        assert_eq!(pause("retry: soon\ndata: x\n\n"), None);
    }

    #[test]
    fn an_event_of_exactly_the_limit_passes_and_one_more_byte_does_not() {
        assert_eq!(read(&[b"data: abc\n\n"], 9).unwrap().len(), 1);
        assert_eq!(read(&[b"data: abcd\n\n"], 9), Err(TooLarge));
        assert_eq!(read(&[b"data: abc", b"d", b"\n\n"], 9), Err(TooLarge));
        let lines: Vec<&[u8]> = vec![b"data: ab\n"; 10];
        assert_eq!(read(&lines, 20), Err(TooLarge), "many lines are one event");
        let comments: Vec<&[u8]> = vec![b": comment\n"; 100];
        assert_eq!(read(&comments, 20).unwrap(), []);
    }

    proptest! {
        #[test]
        fn where_the_pieces_are_cut_makes_no_difference(
            words in prop::collection::vec(
                prop::sample::select(vec!["data: x", "data", "id: 7", "id", ":c", "retry: 3", "event: e", "é", "\n", "\r", "\r\n", "\u{feff}", " "]),
                0..40,
            ),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let text = words.concat();
            let whole = read(&[text.as_bytes()], 64);
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
            at.extend([0, text.len()]);
            at.sort_unstable();
            let pieces: Vec<&[u8]> = at.windows(2).map(|pair| &text.as_bytes()[pair[0]..pair[1]]).collect();
            prop_assert_eq!(read(&pieces, 64), whole);
        }
    }
}
