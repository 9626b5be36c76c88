//! What a raw answer means.
//!
//! The value is parsed from the very text that is passed on. Where the two would differ, the text is made anew and
//! marked (R26): a client and a policy must not see different values of one answer. A text that cannot be read at all
//! becomes an error that says so.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

use super::connection::MAX_TOOLS;
use super::era::Era;
use super::upstream_side::RawAnswer;
use crate::model::answer::{Answer, ProtocolError, ToolResult};
use crate::model::json::{Json, Limits, MAX_DEPTH};

/// The key in `_meta` of an answer from which something was dropped.
pub(super) const DROPPED: &str = "portcullis/dropped";

/// The most values in one answer: a text of a bounded length could still become many times as much memory.
const MAX_VALUES: usize = 2_000_000;

/// The JSON-RPC code of answers that cannot be used.
const UNUSABLE: i64 = -32603;

pub(super) fn read(raw: RawAnswer, era: Era) -> Answer {
    match raw {
        RawAnswer::Result(text) => result(era.strip(&text).map_or(text, Arc::from)),
        RawAnswer::Error(text) => Answer::Error(error(text)),
        RawAnswer::Unusable(why) | RawAnswer::NotSent(why) | RawAnswer::Lost(why) => unusable(why),
    }
}

fn unusable(message: String) -> Answer {
    Answer::Error(ProtocolError { code: UNUSABLE, message, data: None, verbatim: None })
}

fn result(text: Arc<str>) -> Answer {
    match parse(&text) {
        Ok((Value::Object(value), false)) => Answer::Result(ToolResult::from_upstream(value, text)),
        Ok((Value::Object(value), true)) => {
            let value = marked(value);
            let verbatim = Value::Object(value.clone()).to_string();
            Answer::Result(ToolResult::from_upstream(value, verbatim.into()))
        }
        Ok(_) => unusable("the server answered with something that is no result object".to_owned()),
        Err(why) => unusable(format!("the server's answer cannot be read: {why}")),
    }
}

/// Says in `_meta` that duplicate keys or lone surrogates were dropped.
fn marked(mut value: Map<String, Value>) -> Map<String, Value> {
    let meta = value.entry("_meta").or_insert_with(|| Value::Object(Map::new()));
    if !meta.is_object() {
        *meta = Value::Object(Map::new());
    }
    if let Value::Object(meta) = meta {
        meta.insert(DROPPED.to_owned(), "duplicate keys or lone surrogates".into());
    }
    value
}

fn error(text: Arc<str>) -> ProtocolError {
    let (value, dropped) = parse(&text).unwrap_or_default();
    let code = value.get("code").and_then(Value::as_i64);
    let message = value.get("message").and_then(Value::as_str);
    let verbatim = (!dropped && code.is_some() && message.is_some()).then_some(text);
    let message = message.unwrap_or("the server answered with an error that has no message").to_owned();
    let data = value.get("data").filter(|data| !data.is_null()).cloned();
    ProtocolError { code: code.unwrap_or(UNUSABLE), message, data, verbatim }
}

/// Returns the value, and whether something had to be dropped from it.
fn parse(text: &str) -> Result<(Value, bool), String> {
    let mended = mend_surrogates(text);
    let notes = Notes { dropped: Cell::new(mended.is_some()), left: Cell::new(MAX_VALUES) };
    let text = mended.as_deref().unwrap_or(text);
    let mut tokens = serde_json::Deserializer::from_str(text);
    let parsed = Tree(&notes).deserialize(&mut tokens).and_then(|value| tokens.end().map(|()| value));
    match parsed {
        Ok(value) => Ok((value, notes.dropped.get())),
        Err(error) if notes.left.get() == 0 => Err(error.to_string()),
        // The other parser does not count: only where the text is too short for too many values, two bytes each.
        Err(error) if text.len() / 2 > MAX_VALUES => Err(error.to_string()),
        // A number beyond the range of a double; our own parser keeps what is around it.
        Err(error) => match Json::parse(text, Limits { bytes: text.len(), depth: MAX_DEPTH }) {
            Ok(tree) => Ok((tree.into_value_lossy(), notes.dropped.get())),
            Err(_) => Err(error.to_string()),
        },
    }
}

/// Replaces escapes of lone surrogates, if there are any, by that of the replacement character.
fn mend_surrogates(text: &str) -> Option<String> {
    // Most texts have none, and this search is fast.
    if !text.contains("\\ud") && !text.contains("\\uD") {
        return None;
    }
    let bytes = text.as_bytes();
    let mut out: Option<Vec<u8>> = None;
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        if *byte != b'\\' {
            at += 1;
            continue;
        }
        match unit(bytes, at) {
            Some(0xD800..=0xDBFF) if matches!(unit(bytes, at + 6), Some(0xDC00..=0xDFFF)) => at += 12,
            Some(0xD800..=0xDFFF) => {
                let target = out.get_or_insert_with(|| bytes.to_vec());
                if let Some(slice) = target.get_mut(at..at + 6) {
                    slice.copy_from_slice(b"\\ufffd");
                }
                at += 6;
            }
            _ => at += 2,
        }
    }
    out.and_then(|bytes| String::from_utf8(bytes).ok())
}

/// Returns the code unit of an escape at this place: `\u` and four hex digits.
fn unit(bytes: &[u8], at: usize) -> Option<u16> {
    let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Builds a value; of two equal keys the last one stays, and that is noted.
#[derive(Clone, Copy)]
struct Tree<'a>(&'a Notes);

/// What is noted while a value is built.
struct Notes {
    dropped: Cell<bool>,
    /// How many values may still come.
    left: Cell<usize>,
}

impl<'de> DeserializeSeed<'de> for Tree<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let Some(left) = self.0.left.get().checked_sub(1) else {
            return Err(serde::de::Error::custom(format!("it has more than {MAX_VALUES} values")));
        };
        self.0.left.set(left);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut out = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            out.push(item);
        }
        Ok(Value::Array(out))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut out = Map::new();
        while let Some(key) = members.next_key::<String>()? {
            let value = members.next_value_seed(self)?;
            if out.insert(key, value).is_some() {
                self.0.dropped.set(true);
            }
        }
        Ok(Value::Object(out))
    }
}

/// The definitions of one page as they are spelled: one more than may be listed, which is enough to see that there are too
/// many. What follows is read and not kept.
struct Tools<'a>(Vec<&'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Tools<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bounded<'a>(PhantomData<&'a ()>);

        impl<'de: 'a, 'a> Visitor<'de> for Bounded<'a> {
            type Value = Tools<'a>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an array")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Tools<'a>, A::Error> {
                let mut kept = Vec::new();
                while kept.len() <= MAX_TOOLS
                    && let Some(item) = items.next_element()?
                {
                    kept.push(item);
                }
                while items.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Tools(kept))
            }
        }

        deserializer.deserialize_seq(Bounded(PhantomData))
    }
}

/// One page of a `tools/list` answer.
pub(super) struct Page {
    pub(super) tools: Vec<Arc<str>>,
    pub(super) next: Option<String>,
}

impl Page {
    /// Reads the result object of a `tools/list`, its tools untouched.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Wire<'a> {
            #[serde(borrow)]
            tools: Tools<'a>,
            #[serde(default)]
            next_cursor: Option<String>,
        }
        if !text.trim_start().starts_with('{') {
            return Err("the server answered with something that is no result object".to_owned());
        }
        let wire: Wire<'_> = serde_json::from_str(text).map_err(|error| {
            // The error itself could quote what the server sent.
            let (line, column) = (error.line(), error.column());
            format!("the answer is no list of tools (line {line}, column {column})")
        })?;
        Ok(Self { tools: wire.tools.0.iter().map(|raw| raw.get().into()).collect(), next: wire.next_cursor })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_keeps_one_tool_more_than_may_be_listed_and_no_further_one() {
        let page =
            |tools: usize| Page::read(&format!("{{\"tools\":[{}0],\"nextCursor\":\"c\"}}", "0,".repeat(tools - 1)));
        assert_eq!(page(3).unwrap().tools.len(), 3);
        let many = page(100_000).unwrap();
        assert_eq!((many.tools.len(), many.next.as_deref()), (MAX_TOOLS + 1, Some("c")));
    }

    #[test]
    fn what_is_no_list_is_told_by_its_place_and_not_quoted() {
        for bad in [r#"{"tools":"secret"}"#, r#"{"tools":[],"nextCursor":{"secret":1}}"#, r#"{"tools":[]"secret"}"#] {
            let why = Page::read(bad).err().unwrap();
            assert!(why.contains("line 1") && !why.contains("secret"), "{why}");
        }
    }

    #[test]
    fn a_number_out_of_range_is_no_way_around_the_bound_on_values() {
        let many = format!("{{\"content\":[1e400,{}0]}}", "0,".repeat(MAX_VALUES));
        assert!(refused(RawAnswer::Result(many.into())).message.contains("cannot be read"));
        assert!(tool_result(r#"{"content":[],"x":1e400}"#).value().contains_key("content"));
    }

    #[test]
    fn an_answer_of_too_many_values_is_unusable_and_says_so() {
        let many = format!("{{\"content\":[{}0]}}", "0,".repeat(MAX_VALUES));
        assert!(refused(RawAnswer::Result(many.into())).message.contains("more than 2000000 values"));
    }

    fn tool_result(text: &str) -> ToolResult {
        match read(RawAnswer::Result(text.into()), Era::Legacy) {
            Answer::Result(result) => result,
            Answer::Error(error) => panic!("{error:?}"),
        }
    }

    fn refused(raw: RawAnswer) -> ProtocolError {
        match read(raw, Era::Legacy) {
            Answer::Error(error) => error,
            Answer::Result(result) => panic!("{result:?}"),
        }
    }

    #[test]
    fn a_result_keeps_its_text_letter_by_letter() {
        let text = r#"{ "zz":1.50, "content":[{"type":"new","x":123456789012345678901234567890}],"a":1e400 }"#;
        assert_eq!(tool_result(text).verbatim().unwrap().as_ref(), text);
    }

    #[test]
    fn r26_duplicate_keys_are_dropped_with_a_mark_from_value_and_text() {
        let result = tool_result(r#"{"content":[{"text":"shown","text":"hidden"}]}"#);
        let text = result.verbatim().unwrap();
        assert_eq!(text.as_ref(), Value::Object(result.value().clone()).to_string());
        assert!(!text.contains("shown") && text.contains(DROPPED));
    }

    #[test]
    fn r26_lone_surrogates_are_dropped_with_a_mark_and_pairs_stay() {
        let result = tool_result(r#"{"a":"x\ud800y","b":"\uD83D\uDE00","c":"\\ud800"}"#);
        assert_eq!(result.value()["a"], "x\u{fffd}y");
        assert_eq!(result.value()["b"], "\u{1f600}");
        assert_eq!(result.value()["c"], "\\ud800");
        assert!(result.verbatim().unwrap().contains(DROPPED));
        let untouched = r#"{"b":"\uD83D\uDE00"}"#;
        assert_eq!(tool_result(untouched).verbatim().unwrap().as_ref(), untouched);
    }

    #[test]
    fn what_is_no_result_object_is_an_error_that_says_so() {
        for text in ["null", "[]", "\"text\"", "7"] {
            assert!(refused(RawAnswer::Result(text.into())).message.contains("no result object"), "{text}");
        }
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(10_000), "]".repeat(10_000));
        assert!(refused(RawAnswer::Result(deep.into())).message.contains("cannot be read"));
    }

    #[test]
    fn an_error_keeps_code_message_and_data() {
        let text = r#"{"code":-99999999999,"message":"no","data":{"b":1,"a":[2]}}"#;
        let error = refused(RawAnswer::Error(text.into()));
        assert_eq!((error.code, error.message.as_str()), (-99_999_999_999, "no"));
        assert_eq!(error.data.unwrap().to_string(), r#"{"b":1,"a":[2]}"#);
        assert_eq!(error.verbatim.unwrap().as_ref(), text);
        assert_eq!(refused(RawAnswer::Error("7".into())).code, UNUSABLE);
        for changed in [r#"{"code":1,"message":"a","message":"b"}"#, r#"{"code":1}"#, r#"{"message":"a"}"#, "7"] {
            assert_eq!(refused(RawAnswer::Error(changed.into())).verbatim, None, "{changed}");
        }
    }
}
