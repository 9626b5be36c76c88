//! The names a tool has, each a type of its own, so that a visible name can never be used to route.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The longest server name, in bytes.
pub const MAX_SERVER_NAME: usize = 128;
/// The longest raw tool name, in bytes. A server writes it, so it needs a bound.
pub const MAX_TOOL_NAME: usize = 1024;

/// Why a text is not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    /// Server names are restricted to what every configuration format and file system takes.
    #[error("server name `{0}` must match ^[a-zA-Z0-9_-]+$ and have at most {MAX_SERVER_NAME} characters")]
    Server(String),
    /// The raw name is empty.
    #[error("a tool name is empty")]
    EmptyTool,
    /// The raw name is longer than [`MAX_TOOL_NAME`].
    #[error("a tool name has {0} bytes, more than {MAX_TOOL_NAME}")]
    LongTool(usize),
    /// A `server/tool` pair has no slash.
    #[error("`{0}` is not of the form SERVER/TOOL")]
    Pair(String),
}

macro_rules! text_newtype {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Returns the text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
    };
}

text_newtype! {
    /// An upstream's name in the configuration: `^[a-zA-Z0-9_-]+$`. Routing and policy identity.
    ServerName
}

impl ServerName {
    /// Parses a server name.
    ///
    /// # Errors
    /// [`BadName::Server`] when the text has another character, is empty or too long.
    pub fn parse(text: &str) -> Result<Self, BadName> {
        let legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if text.is_empty() || text.len() > MAX_SERVER_NAME || !text.chars().all(legal) {
            return Err(BadName::Server(super::text::shown(text, 64)));
        }
        Ok(Self(text.into()))
    }
}

impl<'de> Deserialize<'de> for ServerName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

text_newtype! {
    /// A tool's name as its upstream spells it: any text of 1 to 1,024 bytes. Goes on the wire as it is.
    RawToolName
}

impl RawToolName {
    /// Parses a raw tool name.
    ///
    /// # Errors
    /// [`BadName::EmptyTool`] or [`BadName::LongTool`].
    pub fn parse(text: &str) -> Result<Self, BadName> {
        match text.len() {
            0 => Err(BadName::EmptyTool),
            n if n > MAX_TOOL_NAME => Err(BadName::LongTool(n)),
            _ => Ok(Self(text.into())),
        }
    }
}

text_newtype! {
    /// The model-visible group of a tool: ASCII `[A-Za-z0-9_]`. Made by `pipeline::admit::naming`, never persisted.
    Namespace
}

text_newtype! {
    /// The model-visible name inside a namespace: ASCII `[A-Za-z0-9_]`. Made by `pipeline::admit::naming`.
    CallableName
}

text_newtype! {
    /// The one name a tool has in the gateway. Made by `pipeline::admit::naming`.
    FlatName
}

impl Namespace {
    /// Wraps a text that naming has made; anything else has no business here.
    pub(crate) fn from_naming(text: String) -> Self {
        Self(text.into())
    }
}

impl CallableName {
    /// Wraps a text that naming has made.
    pub(crate) fn from_naming(text: String) -> Self {
        Self(text.into())
    }
}

impl FlatName {
    /// Wraps a text that naming has made.
    pub(crate) fn from_naming(text: String) -> Self {
        Self(text.into())
    }
}

/// Raw server and raw tool: the only identity that is routed by, decided on and remembered.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct ToolRef {
    /// The upstream.
    pub server: ServerName,
    /// The tool's raw name.
    pub tool: RawToolName,
}

impl ToolRef {
    /// Parses `SERVER/TOOL`; the tool's name may contain further slashes.
    ///
    /// # Errors
    /// A [`BadName`] that says which part is wrong.
    pub fn parse(text: &str) -> Result<Self, BadName> {
        let (server, tool) = text.split_once('/').ok_or_else(|| BadName::Pair(super::text::shown(text, 128)))?;
        Ok(Self { server: ServerName::parse(server)?, tool: RawToolName::parse(tool)? })
    }
}

impl fmt::Display for ToolRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.server, self.tool)
    }
}

/// What a call names: a known tool by its raw identity, or a name that leads nowhere.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Target {
    /// The upstream; none when the caller's name could not be resolved.
    pub server: Option<ServerName>,
    /// The raw tool name, or the name that the caller used.
    pub tool: RawToolName,
}

impl From<ToolRef> for Target {
    fn from(tool: ToolRef) -> Self {
        Self { server: Some(tool.server), tool: tool.tool }
    }
}

impl Target {
    /// Returns the raw identity, if the name was resolved.
    #[must_use]
    pub fn resolved(&self) -> Option<ToolRef> {
        Some(ToolRef { server: self.server.clone()?, tool: self.tool.clone() })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.server {
            Some(server) => write!(f, "{server}/{}", self.tool),
            None => write!(f, "{}", self.tool),
        }
    }
}

text_newtype! {
    /// The id of one call, unique within its session; the caller's or one of ours.
    CallId
}

impl CallId {
    /// The longest call id, in bytes.
    pub const MAX: usize = 256;

    /// Takes a caller's id; `None` when it is empty or longer than [`CallId::MAX`].
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        (!text.is_empty() && text.len() <= Self::MAX).then(|| Self(text.into()))
    }

    /// Makes a fresh id.
    #[must_use]
    pub fn fresh() -> Self {
        Self(format!("call_{}", uuid::Uuid::now_v7().simple()).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_name_has_only_letters_digits_underscore_and_hyphen() {
        assert!(ServerName::parse("my-server_1").is_ok());
        for bad in ["", "a.b", "a b", "größe", "a/b", &"x".repeat(129)] {
            assert!(ServerName::parse(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn a_pair_is_split_at_its_first_slash_only() {
        let pair = ToolRef::parse("files/a/b").unwrap();
        assert_eq!((pair.server.as_str(), pair.tool.as_str()), ("files", "a/b"));
        assert_eq!(ToolRef::parse("files"), Err(BadName::Pair("files".into())));
        assert_eq!(ToolRef::parse("files/"), Err(BadName::EmptyTool));
    }
}
