//! How a line is bound to the one before it, and marked (R34).
//!
//! Every line ends with one more member, `"chain"`. Its mark covers all bytes of the line before `,"mac":`; the next line has the
//! digest of the whole line, its mark included.

use serde::{Deserialize, Serialize};

use crate::model::chain::{ChainId, Key};
use crate::model::digest::Digest;

/// What begins the last member.
const BEGIN: &[u8] = b",\"chain\":";
/// What begins the mark.
const MAC: &[u8] = b",\"mac\":\"";
/// What the member takes at most, in bytes: numbers of twenty digits, three digests, an id.
pub(super) const MAX_LINK: usize = 512;

/// A line's place in its chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// The chain.
    pub id: ChainId,
    /// The line's number in it, from 0.
    pub seq: u64,
    /// The digest of the line before it, without its newline; of a first line, that of the last known line of the chain before
    /// it, or zeros.
    pub prev: Digest,
    /// How many lines could not be written since the one before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost: u64,
    /// How many of those were decisions whose calls went on all the same (`records.on_failure = "continue"`).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unrecorded: u64,
    /// Whether what stands between this line and the whole one before it in the file is the beginning of one that was cut off.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub torn: bool,
    /// The digest of the line with the inputs of this decision, in the file beside this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<Digest>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's form")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// A line that was read, without its newline.
#[derive(Debug)]
pub struct Linked<'a> {
    /// Its place.
    pub link: Link,
    /// Its mark.
    pub mac: Digest,
    /// What the mark covers.
    pub marked: &'a [u8],
    /// The line's own members, from `{` on, without the closing `}`.
    pub body: &'a [u8],
}

/// Returns the whole line, its newline included. `body` is an object as text, with or without a newline.
///
/// # Errors
/// When `body` is no object, which no line of ours is.
pub(super) fn seal(body: &[u8], link: &Link, key: &Key) -> std::io::Result<Vec<u8>> {
    let open = body.strip_suffix(b"\n").unwrap_or(body).strip_suffix(b"}");
    let open = open.ok_or_else(|| std::io::Error::other("the line is no JSON object"))?;
    let mut line = Vec::with_capacity(open.len() + MAX_LINK);
    line.extend_from_slice(open);
    line.extend_from_slice(BEGIN);
    serde_json::to_writer(&mut line, link)?;
    // The link's own `}` follows the mark.
    line.pop();
    let mac = key.mark(&line);
    line.extend_from_slice(MAC);
    line.extend_from_slice(mac.to_string().as_bytes());
    line.extend_from_slice(b"\"}}\n");
    Ok(line)
}

/// Reads the place of a line, given without its newline. `None`: it is no line of a chain.
#[must_use]
pub fn parse(line: &[u8]) -> Option<Linked<'_>> {
    #[derive(Deserialize)]
    struct Marked {
        mac: Digest,
        #[serde(flatten)]
        rest: serde_json::Map<String, serde_json::Value>,
    }

    let mac = line.len().checked_sub(MAC.len() + 64 + 3)?;
    if !line[mac..].starts_with(MAC) {
        return None;
    }
    // The member holds no object, so that it begins with the line's last `{`; within strings of what a stranger wrote a quote is
    // escaped, so that none of them can end with what stands before it.
    let near = line.len().saturating_sub(MAX_LINK);
    let open = near + line[near..].iter().rposition(|byte| *byte == b'{')?;
    let begin = open.checked_sub(BEGIN.len())?;
    if !line[begin..].starts_with(BEGIN) {
        return None;
    }
    let member = line[open..].strip_suffix(b"}")?;
    let Marked { mac: found, rest } = serde_json::from_slice(member).ok()?;
    let link = serde_json::from_value(serde_json::Value::Object(rest)).ok()?;
    Some(Linked { link, mac: found, marked: &line[..mac], body: &line[..begin] })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link() -> Link {
        Link {
            id: ChainId::fresh(),
            seq: u64::MAX,
            prev: Digest::of(b"p"),
            lost: u64::MAX,
            unrecorded: u64::MAX,
            torn: true,
            inputs: Some(Digest::of(b"i")),
        }
    }

    #[test]
    fn r34_a_line_reads_as_it_was_sealed_and_is_json() {
        let key = Key::new([1; 32]);
        let body = br#"{"type":"x","evil":",\"chain\":{\"id\":1},\"mac\":\""}"#;
        for link in [link(), Link { lost: 0, unrecorded: 0, torn: false, inputs: None, seq: 0, ..link() }] {
            let line = seal(body, &link, &key).unwrap();
            assert!(serde_json::from_slice::<serde_json::Value>(&line).unwrap().is_object());
            let line = line.strip_suffix(b"\n").unwrap();
            let read = parse(line).unwrap();
            assert_eq!(read.link, link);
            assert_eq!(read.mac, key.mark(read.marked));
            assert_eq!([read.body, b"}"].concat(), body);
            assert!(line.len() - read.body.len() <= MAX_LINK, "{}", line.len() - read.body.len());
        }
    }

    #[test]
    fn what_has_no_place_or_more_than_one_is_no_line() {
        let line = seal(b"{\"a\":1}\n", &link(), &Key::new([1; 32])).unwrap();
        let text = String::from_utf8(line).unwrap();
        let text = text.trim_end();
        for bad in
            ["", "{}", "{\"a\":1}", &text[..text.len() - 1], &text.replace("\"seq\"", "\"sec\""), &format!("{text}}}")]
        {
            assert!(parse(bad.as_bytes()).is_none(), "{bad}");
        }
    }
}
