//! A JSON object as its author spelled it: where its members stand, so that one is replaced and all else stays.
//!
//! Key order, spelling of numbers, escapes and spaces are told by no parsed value. Where a text has been parsed strictly
//! (see [`super::json`]), its members are found here again, as ranges of that text.
//!
//! Does not judge: duplicate keys and the like were refused before.

use std::fmt;
use std::ops::Range;

use serde::Deserializer as _;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;

/// One member of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    /// Its key, escapes resolved.
    pub(super) key: String,
    /// Where it stands, from the first quote of the key to the end of the value.
    pub(super) whole: Range<usize>,
    /// Where its value stands.
    pub(super) value: Range<usize>,
}

/// Returns the members of the object that `text` spells, in order; values are not looked into.
///
/// # Errors
/// The text is no JSON object.
pub(super) fn members(text: &str) -> serde_json::Result<Vec<Member>> {
    struct Members<'a>(&'a str);

    impl<'de> Visitor<'de> for Members<'de> {
        type Value = Vec<Member>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<Member>, A::Error> {
            let mut out = Vec::new();
            while let Some((key, value)) = map.next_entry::<&RawValue, &RawValue>()? {
                let (at, value) = (range_in(self.0, key.get()), range_in(self.0, value.get()));
                let key = serde_json::from_str(key.get()).map_err(serde::de::Error::custom)?;
                out.push(Member { key, whole: at.start..value.end, value });
            }
            Ok(out)
        }
    }

    let mut tokens = serde_json::Deserializer::from_str(text);
    let members = tokens.deserialize_map(Members(text))?;
    tokens.end()?;
    Ok(members)
}

/// Returns the object that `text` spells without the members named; `None` if it has none of them, or is no object.
///
/// What stands between the members that stay is a comma then; they themselves are untouched.
pub(super) fn without(text: &str, names: &[&str]) -> Option<String> {
    let members = members(text).ok()?;
    let stays = |member: &&Member| !names.contains(&member.key.as_str());
    if members.iter().all(|member| stays(&member)) {
        return None;
    }
    let kept: Vec<&str> = members.iter().filter(stays).filter_map(|member| text.get(member.whole.clone())).collect();
    Some(format!("{{{}}}", kept.join(",")))
}

/// Line feeds can stand between tokens only: inside of a JSON string they are escaped. A message is one line.
pub(super) fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// Where a part of a text, borrowed from it, stands in it.
fn range_in(text: &str, part: &str) -> Range<usize> {
    let start = (part.as_ptr() as usize).saturating_sub(text.as_ptr() as usize);
    start..start + part.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_where_they_stand() {
        let text = " { \"a\\u0062\" : [1, {\"x\":2}] ,\"c\":1.50}";
        let found = members(text).unwrap();
        let parts = |member: &Member| (member.key.clone(), &text[member.whole.clone()], &text[member.value.clone()]);
        let wanted = [
            ("ab".to_owned(), "\"a\\u0062\" : [1, {\"x\":2}]", "[1, {\"x\":2}]"),
            ("c".to_owned(), "\"c\":1.50", "1.50"),
        ];
        assert_eq!(found.iter().map(parts).collect::<Vec<_>>(), wanted);
        for bad in ["[]", "7", "{} x", "{\"a\"}", "{"] {
            assert!(members(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn members_are_taken_out_and_the_others_stay_as_they_are() {
        assert_eq!(without(r#"{ "a" :1.0, "b":2,"c": {"b":3} }"#, &["b"]).unwrap(), r#"{"a" :1.0,"c": {"b":3}}"#);
        assert_eq!(without(r#"{"b":2}"#, &["b", "x"]).unwrap(), "{}");
        assert_eq!(without(r#"{"a":1}"#, &["b"]), None);
        assert_eq!(without("null", &["b"]), None);
    }
}
