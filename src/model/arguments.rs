//! The arguments of a call, parsed once; policies, people and the upstream all see this very value.

use std::sync::Arc;

use serde_json::{Map, Value};
use unicode_normalization::UnicodeNormalization as _;

use super::digest::Digest;
use super::json::{self, Json, JsonFault, Limits};
use super::tool::ToolDefinition;

/// The longest argument text, in bytes (R41). Beyond it a call is refused before any policy sees it.
pub const MAX_ARGUMENTS: usize = 8 * 1024 * 1024;

/// Why a text is not the arguments of a call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadArguments {
    /// Not JSON that we take.
    #[error("arguments are not usable JSON: {0}")]
    Json(JsonFault),
    /// JSON, but not an object.
    #[error("arguments must be a JSON object, got {0}")]
    NotAnObject(&'static str),
    /// A key that a careless server could take for a declared one (R26).
    #[error("the argument `{given}` differs from the declared `{declared}` only in case or Unicode form")]
    LookAlike {
        /// The key that was given.
        given: String,
        /// The property that the tool declares.
        declared: String,
    },
}

/// The arguments of one call: an object, or none. Immutable and cheap to clone.
#[derive(Debug, Clone)]
pub struct Arguments(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    object: Option<Map<String, Value>>,
    canonical: String,
    digest: Digest,
}

impl Arguments {
    /// No arguments: the request will have no `arguments` member.
    #[must_use]
    pub fn none() -> Self {
        Self::new(None)
    }

    /// Parses what a client or model wrote. Blank text is no arguments.
    ///
    /// # Errors
    /// [`BadArguments`] for text that is not strict JSON within the limits, and for JSON that is not an object.
    pub fn parse(text: &str) -> Result<Self, BadArguments> {
        if text.len() <= MAX_ARGUMENTS && text.trim().is_empty() {
            return Ok(Self::none());
        }
        let limits = Limits { bytes: MAX_ARGUMENTS, depth: json::MAX_DEPTH };
        let tree = Json::parse(text, limits).map_err(BadArguments::Json)?;
        match tree.into_value().map_err(BadArguments::Json)? {
            Value::Object(object) => Ok(Self::new(Some(object))),
            Value::Null => Err(BadArguments::NotAnObject("null")),
            Value::Bool(_) => Err(BadArguments::NotAnObject("a boolean")),
            Value::Number(_) => Err(BadArguments::NotAnObject("a number")),
            Value::String(_) => Err(BadArguments::NotAnObject("a string")),
            Value::Array(_) => Err(BadArguments::NotAnObject("an array")),
        }
    }

    fn new(object: Option<Map<String, Value>>) -> Self {
        let canonical =
            object.as_ref().map_or_else(|| "{}".to_owned(), |map| json::canonical(&Value::Object(map.clone())));
        let digest = Digest::of(canonical.as_bytes());
        Self(Arc::new(Inner { object, canonical, digest }))
    }

    /// Returns the object, or `None` when there are no arguments.
    #[must_use]
    pub fn object(&self) -> Option<&Map<String, Value>> {
        self.0.object.as_ref()
    }

    /// Returns all arguments as one JSON object with sorted keys; `{}` when there are none.
    #[must_use]
    pub fn canonical(&self) -> &str {
        &self.0.canonical
    }

    /// Returns the digest of the canonical text. None and `{}` have one digest: they mean the same call.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.0.digest
    }

    /// Returns the value at an RFC 6901 pointer. The empty pointer is the whole object.
    #[must_use]
    pub fn at(&self, pointer: &str) -> Option<&Value> {
        let object = self.0.object.as_ref()?;
        let (first, rest) = pointer.strip_prefix('/').map(|p| p.split_once('/').unwrap_or((p, "")))?;
        let value = object.get(&first.replace("~1", "/").replace("~0", "~"))?;
        if rest.is_empty() && !pointer[1..].contains('/') {
            Some(value)
        } else {
            value.pointer(&pointer[1 + first.len()..])
        }
    }

    /// Refuses keys that equal a declared property only up to case or NFKC (R26).
    ///
    /// Policies match on exact keys; a server that lowercases its keys would read `Path` where they saw no `path`.
    ///
    /// # Errors
    /// [`BadArguments::LookAlike`] with both spellings.
    pub fn check_against(&self, definition: &ToolDefinition) -> Result<(), BadArguments> {
        let Some(object) = self.object() else { return Ok(()) };
        let folded = |key: &str| key.nfkc().flat_map(char::to_lowercase).nfkc().collect::<String>();
        let declared: std::collections::HashMap<String, &str> =
            definition.declared_parameters().map(|name| (folded(name), name)).collect();
        let exact: std::collections::HashSet<&str> = definition.declared_parameters().collect();
        for key in object.keys().filter(|key| !exact.contains(key.as_str())) {
            if let Some(name) = declared.get(&folded(key)) {
                let shown = |text: &str| super::text::shown(text, 64);
                return Err(BadArguments::LookAlike { given: shown(key), declared: shown(name) });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a1_blank_text_is_no_arguments() {
        for blank in ["", "  \n"] {
            let arguments = Arguments::parse(blank).unwrap();
            assert!(arguments.object().is_none());
            assert_eq!(arguments.canonical(), "{}");
        }
    }

    #[test]
    fn a3_a4_what_is_not_an_object_is_refused_by_its_type() {
        assert_eq!(Arguments::parse("[1]").unwrap_err(), BadArguments::NotAnObject("an array"));
        assert_eq!(Arguments::parse("null").unwrap_err(), BadArguments::NotAnObject("null"));
        assert!(matches!(Arguments::parse("{bad").unwrap_err(), BadArguments::Json(JsonFault::Syntax { .. })));
    }

    #[test]
    fn r41_arguments_over_eight_mebibytes_are_refused() {
        let text = format!("{{\"a\":\"{}\"}}", "x".repeat(MAX_ARGUMENTS));
        assert!(matches!(Arguments::parse(&text).unwrap_err(), BadArguments::Json(JsonFault::TooLarge { .. })));
        let blank = " ".repeat(MAX_ARGUMENTS + 1);
        assert!(Arguments::parse(&blank).is_err());
    }

    #[test]
    fn a_pointer_finds_what_it_names() {
        let arguments = Arguments::parse(r#"{"a":{"b/c":[1,{"":2}]},"x~y":3,"":{"z":4}}"#).unwrap();
        let at = |pointer| arguments.at(pointer).map(ToString::to_string);
        assert_eq!(at("/a/b~1c/0").as_deref(), Some("1"));
        assert_eq!(at("/a/b~1c/1/").as_deref(), Some("2"));
        assert_eq!(at("/x~0y").as_deref(), Some("3"));
        assert_eq!(at("//z").as_deref(), Some("4"));
        assert_eq!(at("/").as_deref(), Some(r#"{"z":4}"#));
        assert_eq!(at("/missing"), None);
        assert_eq!(at("a"), None);
    }

    #[test]
    fn r26_a_key_that_only_looks_like_a_declared_one_is_refused() {
        let definition =
            ToolDefinition::parse(r#"{"name":"t","inputSchema":{"type":"object","properties":{"path":{},"Mode":{}}}}"#)
                .unwrap();
        let check = |text: &str| Arguments::parse(text).unwrap().check_against(&definition);
        assert_eq!(check(r#"{"path":"a","Mode":1,"other":2}"#), Ok(()));
        for bad in [r#"{"Path":"a"}"#, r#"{"path":"a","PATH":"b"}"#, r#"{"ｐath":"a"}"#, r#"{"mode":1}"#] {
            assert!(matches!(check(bad), Err(BadArguments::LookAlike { .. })), "{bad} passed");
        }
    }
}
