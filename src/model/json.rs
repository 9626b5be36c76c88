//! Strict JSON for untrusted text: bounded, duplicate keys found, numbers kept as they were spelled (R26).
//!
//! `serde_json` decides silently what R26 must see: the last of two equal keys wins, a number becomes the nearest
//! `f64`. So untrusted text is parsed once, here, into [`Json`]; the rest of the crate uses [`serde_json::Value`], whose
//! objects keep insertion order. Tokens come from `jiter`; only the tree and the rules are ours.

use std::collections::HashSet;
use std::fmt::Write as _;

use jiter::{Jiter, JiterError, JsonErrorType, Peek};
use serde_json::{Map, Number, Value};

/// The deepest nesting of arrays and objects.
pub const MAX_DEPTH: usize = 128;

/// The most of a pointer that an error shows, in characters.
const MAX_POINTER: usize = 256;

/// Bounds of one parse.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The longest text, in bytes.
    pub bytes: usize,
    /// The deepest nesting.
    pub depth: usize,
}

/// Why a text is not JSON that we take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JsonFault {
    /// Longer than the limit.
    #[error("{bytes} bytes are more than the limit of {limit}")]
    TooLarge {
        /// The text's length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// Nested deeper than the limit.
    #[error("nested deeper than {limit} levels")]
    TooDeep {
        /// The limit.
        limit: usize,
    },
    /// Not JSON.
    #[error("{message} at line {line} column {column}")]
    Syntax {
        /// What the parser says.
        message: String,
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
    },
    /// An object has a key twice.
    #[error("the key `{key}` occurs twice in the object at `{pointer}`")]
    DuplicateKey {
        /// JSON Pointer (RFC 6901) of the object.
        pointer: String,
        /// The key.
        key: String,
    },
    /// A number would change its value on the way.
    #[error("the number at `{pointer}` cannot be carried without changing its value")]
    InexactNumber {
        /// JSON Pointer of the number.
        pointer: String,
    },
}

/// A JSON value with its numbers as spelled and its keys in order, without duplicates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Json {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, as spelled.
    Number(String),
    /// A string.
    String(String),
    /// An array.
    Array(Vec<Json>),
    /// An object; keys are unique.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Parses `text`.
    ///
    /// # Errors
    /// A [`JsonFault`]; lone surrogates are syntax errors.
    pub fn parse(text: &str, limits: Limits) -> Result<Self, JsonFault> {
        if text.len() > limits.bytes {
            return Err(JsonFault::TooLarge { bytes: text.len(), limit: limits.bytes });
        }
        let mut parser = Parser { tokens: Jiter::new(text.as_bytes()), path: Vec::new(), limits };
        let first = parser.tokens.peek().map_err(|e| parser.syntax(&e))?;
        let value = parser.value(first)?;
        parser.tokens.finish().map_err(|e| parser.syntax(&e))?;
        Ok(value)
    }

    /// Returns the canonical text: sorted keys, no white space, numbers as normalised exact decimals.
    ///
    /// `1`, `1.0` and `10e-1` have one canonical form; numbers that differ in any digit have two.
    #[must_use]
    pub fn canonical(&self) -> String {
        let mut out = String::new();
        self.write_canonical(&mut out);
        out
    }

    fn write_canonical(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Self::Number(text) => out.push_str(&exact_decimal(text)),
            Self::String(text) => write_string(text, out),
            Self::Array(items) => {
                out.push('[');
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    item.write_canonical(out);
                }
                out.push(']');
            }
            Self::Object(members) => {
                let mut sorted: Vec<_> = members.iter().collect();
                sorted.sort_by(|a, b| a.0.cmp(&b.0));
                out.push('{');
                for (i, (key, value)) in sorted.into_iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    write_string(key, out);
                    out.push(':');
                    value.write_canonical(out);
                }
                out.push('}');
            }
        }
    }

    /// Returns the value, refusing numbers whose exact decimal value would change.
    ///
    /// # Errors
    /// [`JsonFault::InexactNumber`] with the number's place.
    pub fn into_value(self) -> Result<Value, JsonFault> {
        let mut inexact = None;
        let value = self.convert(&mut Vec::new(), &mut inexact);
        inexact.map_or(Ok(value), |pointer| Err(JsonFault::InexactNumber { pointer }))
    }

    /// Returns the value, with numbers rounded where they must be; for texts whose digest was taken before.
    #[must_use]
    pub fn into_value_lossy(self) -> Value {
        self.convert(&mut Vec::new(), &mut None)
    }

    fn convert(self, path: &mut Vec<String>, inexact: &mut Option<String>) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(value),
            Self::String(text) => Value::String(text),
            Self::Number(text) => match carry(&text) {
                (number, true) => Value::Number(number),
                (number, false) => {
                    inexact.get_or_insert_with(|| pointer(path));
                    Value::Number(number)
                }
            },
            Self::Array(items) => {
                let mut out = Vec::with_capacity(items.len());
                for (i, item) in items.into_iter().enumerate() {
                    path.push(i.to_string());
                    out.push(item.convert(path, inexact));
                    path.pop();
                }
                Value::Array(out)
            }
            Self::Object(members) => {
                let mut out = Map::with_capacity(members.len());
                for (key, value) in members {
                    path.push(key);
                    let value = value.convert(path, inexact);
                    out.insert(path.pop().unwrap_or_default(), value);
                }
                Value::Object(out)
            }
        }
    }

    /// Removes `names` from the object that `path` leads to, if there is one.
    pub(crate) fn remove_members(&mut self, path: &[&str], names: &[&str]) {
        let Self::Object(members) = self else { return };
        match path {
            [] => members.retain(|(key, _)| !names.contains(&key.as_str())),
            [first, rest @ ..] => {
                for (_, value) in members.iter_mut().filter(|(key, _)| key == first) {
                    value.remove_members(rest, names);
                }
            }
        }
    }
}

/// Returns the canonical text of a value that was parsed strictly.
#[must_use]
pub fn canonical(value: &Value) -> String {
    let mut out = String::new();
    write_value(value, &mut out);
    out
}

fn write_value(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Number(number) => out.push_str(&exact_decimal(&number.to_string())),
        Value::String(text) => write_string(text, out),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_value(item, out);
            }
            out.push(']');
        }
        Value::Object(members) => {
            let mut sorted: Vec<_> = members.iter().collect();
            sorted.sort_by(|a, b| a.0.cmp(b.0));
            out.push('{');
            for (i, (key, value)) in sorted.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_string(key, out);
                out.push(':');
                write_value(value, out);
            }
            out.push('}');
        }
    }
}

fn write_string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Appends one segment to a JSON Pointer, escaped by RFC 6901.
pub fn push_pointer(pointer: &mut String, segment: &str) {
    pointer.push('/');
    pointer.push_str(&segment.replace('~', "~0").replace('/', "~1"));
}

fn pointer(path: &[String]) -> String {
    let mut out = String::new();
    for segment in path {
        push_pointer(&mut out, segment);
    }
    // Keys are untrusted, and the pointer goes into error texts.
    super::text::shown(&out, MAX_POINTER)
}

/// Returns the number as `serde_json` will print it, and whether that is the same decimal value.
fn carry(text: &str) -> (Number, bool) {
    match serde_json::from_str::<Number>(text) {
        Ok(number) => {
            let exact = exact_decimal(&number.to_string()) == exact_decimal(text);
            (number, exact)
        }
        // Beyond the range of a double.
        Err(_) => (Number::from(0), false),
    }
}

/// Normalises a JSON number to `[-]DIGITSeEXPONENT` without leading or trailing zeros; zero is `0`.
///
/// Nothing is computed but the exponent, which saturates: no spelling is expanded, so `1e999999999` costs nothing.
fn exact_decimal(text: &str) -> String {
    let (sign, unsigned) = text.strip_prefix('-').map_or(("", text), |rest| ("-", rest));
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mut exponent: i64 =
        exponent.parse().unwrap_or(if exponent.starts_with('-') { i64::MIN / 2 } else { i64::MAX / 2 });
    exponent = exponent.saturating_sub(fraction.len() as i64);
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    let stripped = digits.trim_end_matches('0');
    if stripped.is_empty() {
        return "0".to_owned();
    }
    exponent = exponent.saturating_add((digits.len() - stripped.len()) as i64);
    if exponent == 0 { format!("{sign}{stripped}") } else { format!("{sign}{stripped}e{exponent}") }
}

struct Parser<'j> {
    tokens: Jiter<'j>,
    path: Vec<String>,
    limits: Limits,
}

impl Parser<'_> {
    fn value(&mut self, peek: Peek) -> Result<Json, JsonFault> {
        match peek {
            Peek::Null => self.tokens.known_null().map(|()| Json::Null).map_err(|e| self.syntax(&e)),
            Peek::True | Peek::False => self.tokens.known_bool(peek).map(Json::Bool).map_err(|e| self.syntax(&e)),
            Peek::String => {
                let text = self.tokens.known_str().map(str::to_owned);
                text.map(Json::String).map_err(|e| self.syntax(&e))
            }
            Peek::Array => self.array(),
            Peek::Object => self.object(),
            _ => self.number(),
        }
    }

    fn number(&mut self) -> Result<Json, JsonFault> {
        let bytes = self.tokens.next_number_bytes().map(<[u8]>::to_vec);
        let bytes = bytes.map_err(|e| self.syntax(&e))?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        // The tokenizer also knows NaN and Infinity, which are not JSON.
        if serde_json::from_str::<&serde_json::value::RawValue>(&text).is_err() {
            let position = self.tokens.current_position();
            let message = format!("`{}` is not a JSON number", super::text::shown(&text, 32));
            return Err(JsonFault::Syntax { message, line: position.line, column: position.column });
        }
        Ok(Json::Number(text))
    }

    fn array(&mut self) -> Result<Json, JsonFault> {
        let mut items = Vec::new();
        let mut next = self.tokens.known_array().map_err(|e| self.syntax(&e))?;
        while let Some(peek) = next {
            self.enter(items.len().to_string())?;
            items.push(self.value(peek)?);
            self.path.pop();
            next = self.tokens.array_step().map_err(|e| self.syntax(&e))?;
        }
        Ok(Json::Array(items))
    }

    fn object(&mut self) -> Result<Json, JsonFault> {
        let mut members = Vec::new();
        let mut seen = HashSet::new();
        let mut next = self.tokens.known_object().map(|key| key.map(str::to_owned)).map_err(|e| self.syntax(&e))?;
        while let Some(key) = next {
            if !seen.insert(key.clone()) {
                return Err(JsonFault::DuplicateKey {
                    pointer: pointer(&self.path),
                    key: super::text::shown(&key, 64),
                });
            }
            self.enter(key.clone())?;
            let peek = self.tokens.peek().map_err(|e| self.syntax(&e))?;
            let value = self.value(peek)?;
            self.path.pop();
            members.push((key, value));
            next = self.tokens.next_key().map(|key| key.map(str::to_owned)).map_err(|e| self.syntax(&e))?;
        }
        Ok(Json::Object(members))
    }

    fn enter(&mut self, segment: String) -> Result<(), JsonFault> {
        if self.path.len() >= self.limits.depth {
            return Err(JsonFault::TooDeep { limit: self.limits.depth });
        }
        self.path.push(segment);
        Ok(())
    }

    fn syntax(&self, error: &JiterError) -> JsonFault {
        use jiter::JiterErrorType;
        if matches!(error.error_type, JiterErrorType::JsonError(JsonErrorType::RecursionLimitExceeded)) {
            return JsonFault::TooDeep { limit: self.limits.depth };
        }
        let position = self.tokens.error_position(error.index);
        JsonFault::Syntax { message: error.error_type.to_string(), line: position.line, column: position.column }
    }
}

#[cfg(test)]
#[path = "json_tests.rs"]
mod tests;
