//! What kind of message a text is, and whose: the outermost members of a JSON-RPC message, everything below untouched.
//!
//! The scan is iterative, so nesting costs neither stack nor time. What an oversized line has left of itself is read
//! by hand: official SDKs write the id first or last, and either is found.

use std::borrow::Cow;

use rmcp::model::{NumberOrString, RequestId};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// What a batch is instead of a message.
pub(super) const BATCH: &str = "a JSON-RPC batch, which MCP does not have";
/// The longest id that is taken, in bytes of JSON.
const MAX_ID: usize = 512;

/// The members of a message. A member that is `null` is present.
#[derive(Debug, Deserialize)]
pub(super) struct Envelope<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) method: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) error: Option<&'a RawValue>,
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// The id of a message.
#[derive(Debug, PartialEq)]
pub(super) enum Id {
    /// There is none: a notification.
    Absent,
    /// Neither a string nor a whole number.
    Bad,
    /// A string or a whole number.
    Good(RequestId),
}

impl<'a> Envelope<'a> {
    /// Parses the outermost level.
    ///
    /// # Errors
    /// What it is instead of a message, for the log; never quotes the text.
    pub(super) fn parse(text: &'a str) -> Result<Self, &'static str> {
        match text.trim_start().as_bytes().first() {
            Some(b'{') => {}
            Some(b'[') => return Err(BATCH),
            _ => return Err("no JSON object"),
        }
        let envelope: Self = serde_json::from_str(text).map_err(|error| match error.classify() {
            serde_json::error::Category::Data => "JSON, but no JSON-RPC message",
            _ => "no JSON",
        })?;
        if envelope.method.is_none() && envelope.id.is_none() && envelope.error.is_none() {
            return Err("JSON, but no JSON-RPC message");
        }
        Ok(envelope)
    }

    pub(super) fn id(&self) -> Id {
        match self.id {
            None => Id::Absent,
            Some(raw) => parse_id(raw.get()).map_or(Id::Bad, Id::Good),
        }
    }

    /// Returns the error, unless it is absent or `null`.
    pub(super) fn failure(&self) -> Option<&'a RawValue> {
        self.error.filter(|raw| raw.get() != "null")
    }
}

/// Returns the id that `text` spells, if it is a string or a whole number of bounded length.
pub(super) fn parse_id(text: &str) -> Option<RequestId> {
    if text.len() > MAX_ID {
        return None;
    }
    if text.starts_with('"') {
        return serde_json::from_str::<String>(text).ok().map(|id| NumberOrString::String(id.into()));
    }
    serde_json::from_str::<i64>(text).ok().map(NumberOrString::Number)
}

/// Returns the number of an id of ours, also if the peer sent it back as a string.
pub(super) fn our_number(id: &RequestId) -> Option<i64> {
    match id {
        NumberOrString::Number(number) => Some(*number),
        NumberOrString::String(text) => text.parse().ok(),
    }
}

/// What the beginning of a message tells about it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Salvage {
    /// Whose it is.
    pub(super) id: Option<RequestId>,
    /// Whether it answers something (`result`, `error`) or asks something (`method`, `params`).
    pub(super) answers: Option<bool>,
}

impl Salvage {
    /// Reads the outermost members at the beginning of a message that was cut off.
    pub(super) fn head(bytes: &[u8]) -> Self {
        let mut salvage = Self::default();
        let mut scan = Scan { bytes, at: 0 };
        let _ = scan.members(&mut salvage);
        salvage
    }

    /// Reads the id at the end of a message, if the outermost object ends with it and perhaps `jsonrpc`.
    pub(super) fn tail(bytes: &[u8]) -> Option<RequestId> {
        let text = String::from_utf8_lossy(bytes);
        let body = text.trim_end().strip_suffix('}')?.trim_end();
        let body = match body.rfind(r#""jsonrpc""#) {
            Some(at) if is_last_member(body.get(at..)?) => body.get(..at)?.trim_end().strip_suffix(',')?.trim_end(),
            _ => body,
        };
        let at = body.rfind(r#""id""#)?;
        let before = body.get(..at)?.trim_end();
        let value = body.get(at + 4..)?.trim_start().strip_prefix(':')?.trim();
        // A `"id"` inside of a string or of a deeper object is not followed by one value and the last brace.
        if before.ends_with(',') { parse_id(value) } else { None }
    }
}

/// Whether the text is one member `"jsonrpc": "2.0"` and nothing else.
fn is_last_member(text: &str) -> bool {
    let value = text.strip_prefix(r#""jsonrpc""#).and_then(|rest| rest.trim_start().strip_prefix(':'));
    value.is_some_and(|value| value.trim() == r#""2.0""#)
}

struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Scan<'_> {
    /// Walks the members until the text ends. `None`: it ended.
    fn members(&mut self, salvage: &mut Salvage) -> Option<()> {
        self.expect(b'{')?;
        loop {
            let key = self.string()?;
            self.expect(b':')?;
            match key.as_slice() {
                b"result" | b"error" => salvage.answers = Some(true),
                b"method" | b"params" => salvage.answers = Some(false),
                _ => {}
            }
            let value = self.value()?;
            if key == b"id" {
                salvage.id = std::str::from_utf8(&value).ok().and_then(parse_id);
            }
            self.expect(b',')?;
        }
    }

    fn peek(&mut self) -> Option<u8> {
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.bytes.get(self.at).copied()
    }

    fn expect(&mut self, wanted: u8) -> Option<()> {
        if self.peek()? != wanted {
            return None;
        }
        self.at += 1;
        Some(())
    }

    /// Returns what is between the quotes, escapes untouched.
    fn string(&mut self) -> Option<Vec<u8>> {
        self.expect(b'"')?;
        let start = self.at;
        loop {
            match *self.bytes.get(self.at)? {
                b'"' => break,
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        let text = self.bytes.get(start..self.at)?.to_vec();
        self.at += 1;
        Some(text)
    }

    /// Skips a value and returns its text.
    fn value(&mut self) -> Option<Vec<u8>> {
        self.peek()?;
        let start = self.at;
        let mut depth = 0_usize;
        loop {
            match *self.bytes.get(self.at)? {
                b'"' => {
                    self.string()?;
                    if depth == 0 {
                        break;
                    }
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' if depth == 0 => break,
                b'}' | b']' => {
                    depth -= 1;
                    if depth == 0 {
                        self.at += 1;
                        break;
                    }
                }
                b',' if depth == 0 => break,
                _ => {}
            }
            self.at += 1;
        }
        self.bytes.get(start..self.at).map(<[u8]>::trim_ascii).map(<[u8]>::to_vec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(id: i64) -> Option<RequestId> {
        Some(NumberOrString::Number(id))
    }

    #[test]
    fn a_message_is_read_without_touching_what_is_below() {
        let deep = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
        let envelope = Envelope::parse(&deep).unwrap();
        assert_eq!(envelope.id(), Id::Good(NumberOrString::Number(1)));
        assert_eq!(envelope.result.unwrap().get().len(), 200_000);
    }

    #[test]
    fn what_is_no_message_is_named() {
        assert!(Envelope::parse("[]").unwrap_err().contains("batch"));
        assert_eq!(Envelope::parse("Listening on stdio").unwrap_err(), "no JSON object");
        assert_eq!(Envelope::parse("{oops").unwrap_err(), "no JSON");
        assert!(Envelope::parse(r#"{"level":"info"}"#).is_err());
        assert!(Envelope::parse(r#"{"id":1,"id":2,"result":{}}"#).is_err(), "whose answer would it be?");
        assert!(Envelope::parse(r#"{"method":7}"#).is_err());
    }

    #[test]
    fn null_members_are_present() {
        let envelope = Envelope::parse(r#"{"id":1,"result":null,"error":null}"#).unwrap();
        assert!(envelope.result.is_some() && envelope.failure().is_none());
        assert_eq!(Envelope::parse(r#"{"id":null,"error":{}}"#).unwrap().id(), Id::Bad);
        assert_eq!(Envelope::parse(r#"{"id":1.5,"result":{}}"#).unwrap().id(), Id::Bad);
    }

    #[test]
    fn the_beginning_of_an_oversized_message_tells_whose_it_is() {
        let head = Salvage::head(br#"{"jsonrpc":"2.0", "id" : 17 ,"result":{"content":[{"id":3,"#);
        assert_eq!(head, Salvage { id: number(17), answers: Some(true) });
        let head = Salvage::head(br#"{"meta":{"id":[9,"}"]},"id":"a\"b","method":"x","params":{"#);
        assert_eq!(head, Salvage { id: Some(NumberOrString::String("a\"b".into())), answers: Some(false) });
        assert_eq!(Salvage::head(br#"{"jsonrpc":"2.0","id":12"#).id, None, "the number may go on");
        assert_eq!(Salvage::head(br#"{"result":{"id":5,"#), Salvage { id: None, answers: Some(true) });
        assert_eq!(Salvage::head(b"xxxxxxx"), Salvage::default());
        assert_eq!(Salvage::head(br#"{"a\"#), Salvage::default());
    }

    #[test]
    fn the_end_of_an_oversized_message_tells_whose_it_is() {
        assert_eq!(Salvage::tail(br#"xx"}]},"jsonrpc":"2.0","id":21}"#), number(21));
        assert_eq!(Salvage::tail(br#"xx"}]}, "id": 21, "jsonrpc": "2.0" }"#), number(21));
        assert_eq!(Salvage::tail(br#"xx","id":7}}"#), None, "the id of a deeper object");
        assert_eq!(Salvage::tail(br#"xx","id":7}]}"#), None);
        assert_eq!(Salvage::tail(br#"xxxx"#), None);
    }
}
