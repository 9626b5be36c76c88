//! From an answer to the list of its texts: every string, key and number is one (R28), and what only shows in another
//! reading is one besides (R31): the texts of all blocks joined, and strings inside JSON inside a string.
//!
//! The pointers are those of [`Target`]. A list that would be too long, too large or too deep is none: the answer is withheld.

use std::ops::Range;
use std::sync::Arc;

use serde::Deserialize as _;
use serde_json::{Map, Value};

use super::literals::{self, Literal};
use crate::model::json::push_pointer;
use crate::ports::sanitiser::{Place, Target};

/// The most targets of one answer.
pub(super) const MAX_TARGETS: usize = 262_144;
/// The most bytes of all targets together. An answer as it comes has less; readings of the same text count again.
pub(super) const MAX_BYTES: usize = 64 * 1024 * 1024;
/// The deepest nesting of an answer.
pub(super) const MAX_DEPTH: usize = 128;
/// How deep JSON inside strings inside JSON is read.
pub(super) const MAX_DECODED: usize = 4;

/// The answer has more than is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Beyond {
    /// [`MAX_TARGETS`].
    #[error("more than {MAX_TARGETS} strings, keys and numbers")]
    Targets,
    /// [`MAX_BYTES`].
    #[error("more than {MAX_BYTES} bytes of text")]
    Bytes,
    /// [`MAX_DEPTH`].
    #[error("nested deeper than {MAX_DEPTH} levels")]
    Depth,
    /// [`MAX_DECODED`].
    #[error("JSON inside strings is nested deeper than {MAX_DECODED} levels")]
    Decoded,
    /// Value and text are not the same answer.
    #[error("the text has other numbers than its value")]
    Spelled,
}

/// What is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// The result of a call.
    Result,
    /// A protocol error: `code`, `message`, `data`.
    Error,
    /// A progress message: `message`.
    Progress,
    /// A log message: `logger`, `data`.
    Log,
    /// A tool's definition.
    Definition,
}

/// What a target is in the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// A string value.
    Text,
    /// A number.
    Number,
    /// The key of a member.
    Key,
    /// All text blocks: where in the joined text the target of which index stands.
    Joined(Vec<(Range<usize>, usize)>),
    /// A string inside JSON inside the target `of`: the bytes of its literal there, without the quotes.
    Decoded { of: usize, at: Range<usize> },
}

/// The targets, each with its origin.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) targets: Vec<Target>,
    pub(super) origins: Vec<Origin>,
}

/// Returns all targets of `root`. `spelled` is the text that it was parsed from, if that is what would be shown: numbers are
/// looked at as they are spelled there, to the last digit.
pub(super) fn find(root: &Map<String, Value>, shape: Shape, spelled: Option<&str>) -> Result<Found, Beyond> {
    let numbers = spelled.map(literals::numbers).unwrap_or_default();
    let mut walk =
        Walk { found: Found::default(), at: String::new(), numbers, number: 0, blocks: Vec::new(), bytes: 0 };
    walk.object(root, Part::Root(shape), 0)?;
    if spelled.is_some() && walk.number != walk.numbers.len() {
        return Err(Beyond::Spelled);
    }
    walk.join()?;
    walk.decode()?;
    Ok(walk.found)
}

/// Which part of an answer a value is: says what its members are, and which of their keys are the protocol's own.
#[derive(Debug, Clone, Copy)]
enum Part {
    Root(Shape),
    Blocks,
    Block,
    Resource,
    /// Anything below: the same place all the way down.
    Plain(Place),
}

/// The kinds of content blocks that the protocol knows.
const KINDS: [&str; 5] = ["text", "image", "audio", "resource", "resource_link"];

impl Part {
    /// Returns what the member is, and whether its key is the protocol's own.
    fn member(self, parent: &Map<String, Value>, key: &str) -> (Self, bool) {
        use Place::{Description, Embedded, Error, Link, Log, Metadata, Progress, Structured, Text};
        match self {
            Self::Root(Shape::Result) => match key {
                "content" => (Self::Blocks, true),
                "structuredContent" => (Self::Plain(Structured), true),
                "_meta" | "isError" => (Self::Plain(Metadata), true),
                _ => (Self::Plain(Metadata), false),
            },
            Self::Root(Shape::Error) => (Self::Plain(Error), matches!(key, "code" | "message" | "data")),
            Self::Root(Shape::Progress) => (Self::Plain(Progress), key == "message"),
            Self::Root(Shape::Log) => (Self::Plain(Log), matches!(key, "logger" | "data")),
            Self::Root(Shape::Definition) => {
                let own = ["name", "title", "description", "inputSchema", "outputSchema", "annotations", "_meta"];
                (Self::Plain(Description), own.contains(&key))
            }
            Self::Block => {
                let kind = parent.get("type").and_then(Value::as_str).unwrap_or_default();
                match (kind, key) {
                    (_, "type" | "annotations" | "_meta") => (Self::Plain(Metadata), true),
                    ("text", "text") => (Self::Plain(Text), true),
                    ("resource", "resource") => (Self::Resource, true),
                    ("image" | "audio", "data" | "mimeType") => (Self::Plain(Metadata), true),
                    ("resource_link", "uri" | "name" | "title" | "description" | "mimeType" | "size") => {
                        (Self::Plain(Link), true)
                    }
                    ("resource_link", _) => (Self::Plain(Link), false),
                    _ => (Self::Plain(Metadata), false),
                }
            }
            Self::Resource => match key {
                "uri" | "mimeType" | "text" | "blob" => (Self::Plain(Embedded), true),
                "_meta" | "annotations" => (Self::Plain(Metadata), true),
                _ => (Self::Plain(Embedded), false),
            },
            Self::Blocks => (Self::Plain(Metadata), false),
            Self::Plain(place) => (Self::Plain(place), false),
        }
    }

    /// The place of a string or number that stands here.
    fn place(self) -> Place {
        match self {
            Self::Plain(place) => place,
            Self::Resource => Place::Embedded,
            Self::Root(_) | Self::Blocks | Self::Block => Place::Metadata,
        }
    }
}

struct Walk<'a> {
    found: Found,
    /// The pointer of where it is.
    at: String,
    /// The numbers of the whole text as spelled, in order.
    numbers: Vec<&'a str>,
    /// How many numbers have passed.
    number: usize,
    /// The targets that are texts of text blocks.
    blocks: Vec<usize>,
    bytes: usize,
}

impl Walk<'_> {
    fn object(&mut self, members: &Map<String, Value>, part: Part, depth: usize) -> Result<(), Beyond> {
        if depth > MAX_DEPTH {
            return Err(Beyond::Depth);
        }
        for (key, value) in members {
            let back = self.at.len();
            push_pointer(&mut self.at, key);
            let (member, own) = part.member(members, key);
            if !own {
                let pointer = format!("key:{}", self.at);
                // A key belongs to the object that it stands in.
                let place = if matches!(member, Part::Plain(_)) { member.place() } else { part.place() };
                self.push(place, pointer, key, Origin::Key)?;
            }
            let known =
                matches!(part, Part::Block) && key == "type" && value.as_str().is_some_and(|k| KINDS.contains(&k));
            if !known {
                let text_block = matches!((part, member), (Part::Block, Part::Plain(Place::Text)));
                let next = self.found.targets.len();
                self.value(value, member, depth + 1)?;
                if text_block && value.is_string() {
                    self.blocks.push(next);
                }
            }
            self.at.truncate(back);
        }
        Ok(())
    }

    fn value(&mut self, value: &Value, part: Part, depth: usize) -> Result<(), Beyond> {
        if depth > MAX_DEPTH {
            return Err(Beyond::Depth);
        }
        match value {
            Value::Null | Value::Bool(_) => Ok(()),
            Value::String(text) => self.push(part.place(), self.at.clone(), text, Origin::Text),
            Value::Number(number) => {
                let ours = number.to_string();
                let text = self.numbers.get(self.number).map_or(ours.as_str(), |spelled| *spelled).to_owned();
                self.number += 1;
                self.push(part.place(), self.at.clone(), &text, Origin::Number)
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    let back = self.at.len();
                    push_pointer(&mut self.at, &index.to_string());
                    let part = if matches!(part, Part::Blocks) { Part::Block } else { part };
                    self.value(item, part, depth + 1)?;
                    self.at.truncate(back);
                }
                Ok(())
            }
            Value::Object(members) => self.object(members, part, depth),
        }
    }

    fn push(&mut self, place: Place, pointer: String, text: &str, origin: Origin) -> Result<(), Beyond> {
        self.bytes = self.bytes.saturating_add(text.len());
        if self.found.targets.len() >= MAX_TARGETS {
            return Err(Beyond::Targets);
        }
        if self.bytes > MAX_BYTES {
            return Err(Beyond::Bytes);
        }
        self.found.targets.push(Target { place, pointer, text: text.into() });
        self.found.origins.push(origin);
        Ok(())
    }

    /// A secret that is split over blocks is whole again for whoever reads them one after the other.
    fn join(&mut self) -> Result<(), Beyond> {
        if self.blocks.len() < 2 {
            return Ok(());
        }
        let mut text = String::new();
        let mut segments = Vec::with_capacity(self.blocks.len());
        for index in std::mem::take(&mut self.blocks) {
            let Some(target) = self.found.targets.get(index) else { continue };
            let start = text.len();
            text.push_str(&target.text);
            segments.push((start..text.len(), index));
        }
        self.push(Place::Text, "joined:/content".to_owned(), &text, Origin::Joined(segments))
    }

    /// Strings that escapes hide from whoever reads the text around them. What has no escape is plain to see there.
    fn decode(&mut self) -> Result<(), Beyond> {
        let whole = self.found.targets.len();
        for of in 0..whole {
            let (Some(target), Some(Origin::Text)) = (self.found.targets.get(of), self.found.origins.get(of)) else {
                continue;
            };
            if !target.text.contains('\\') {
                continue;
            }
            let (place, outer) = (target.place, target.pointer.clone());
            let mut open = vec![(Arc::clone(&target.text), None, 1_usize)];
            while let Some((text, within, level)) = open.pop() {
                if !text.contains('\\') || !is_json(&text) {
                    continue;
                }
                for Literal { at, text } in literals::escaped_strings(&text) {
                    if level > MAX_DECODED {
                        return Err(Beyond::Decoded);
                    }
                    // What stands in a deeper string has no place of its own in the outermost one: its whole string is it.
                    let at: Range<usize> = within.clone().unwrap_or(at);
                    let pointer = format!("json:{outer}@{}", at.start);
                    self.push(place, pointer, &text, Origin::Decoded { of, at: at.clone() })?;
                    open.push((text.into(), Some(at), level + 1));
                }
            }
        }
        Ok(())
    }
}

/// Whether a text is an object or an array as JSON, or several of them one after the other.
fn is_json(text: &str) -> bool {
    if !text.trim_start().starts_with(['{', '[']) {
        return false;
    }
    let mut values = serde_json::Deserializer::from_str(text);
    loop {
        match serde::de::IgnoredAny::deserialize(&mut values) {
            Ok(_) if values.end().is_ok() => return true,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
}
