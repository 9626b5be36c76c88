//! Configuration layers: where a value came from, and how much its origin is trusted.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The kind of a layer. **The order of the variants is the order of trust, least first** (design page 5):
/// managed > system > organisation > user > session > project > builtin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LayerKind {
    /// Compiled in. Has defaults, but no say of its own (R11).
    Builtin,
    /// A `.portcullis/config.toml` in or above the working directory. Written by whoever wrote the project.
    Project,
    /// Flags, `--config`, the embedding API.
    Session,
    /// The user's own file.
    User,
    /// The organisation's file, or a tenant's.
    Organisation,
    /// The machine's file.
    System,
    /// The file that management tooling writes.
    Managed,
}

impl LayerKind {
    /// Whether an allow of this layer counts unless somebody more trusted says otherwise (R3).
    #[must_use]
    pub fn may_allow_by_default(self) -> bool {
        match self {
            Self::Managed | Self::System | Self::Organisation | Self::User => true,
            Self::Session | Self::Project | Self::Builtin => false,
        }
    }

    /// Returns the glossary's word for this kind.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Builtin => "builtin",
            Self::Project => "project",
            Self::Session => "session",
            Self::User => "user",
            Self::Organisation => "organisation",
            Self::System => "system",
            Self::Managed => "managed",
        }
    }
}

/// One layer: its kind, and the file it was read from if it was read from one.
///
/// Cheap to clone. Two layers are the same only if kind and origin are: two nested project folders are two layers.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LayerRef {
    kind: LayerKind,
    origin: Option<Arc<PathBuf>>,
}

impl LayerRef {
    /// A layer without a file: builtin, or what the command line or the embedder gave.
    #[must_use]
    pub fn new(kind: LayerKind) -> Self {
        Self { kind, origin: None }
    }

    /// A layer read from `file`.
    #[must_use]
    pub fn from_file(kind: LayerKind, file: PathBuf) -> Self {
        Self { kind, origin: Some(Arc::new(file)) }
    }

    /// Returns the kind, which is also the rank of trust.
    #[must_use]
    pub fn kind(&self) -> LayerKind {
        self.kind
    }

    /// Returns the file that the layer was read from.
    #[must_use]
    pub fn file(&self) -> Option<&std::path::Path> {
        self.origin.as_deref().map(PathBuf::as_path)
    }

    /// Whether this layer is at least as trusted as `other`; two layers of one kind trust each other.
    #[must_use]
    pub fn is_at_least_as_trusted_as(&self, other: &Self) -> bool {
        self.kind >= other.kind
    }
}

impl fmt::Display for LayerRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.as_str())
    }
}

impl fmt::Debug for LayerRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.file() {
            Some(file) => write!(f, "{}({})", self.kind.as_str(), file.display()),
            None => f.write_str(self.kind.as_str()),
        }
    }
}

/// Serialises as the kind alone: a record or a refusal names the layer, not a path on the machine.
impl Serialize for LayerRef {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.kind.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trust_runs_from_managed_down_to_builtin() {
        use LayerKind::{Builtin, Managed, Organisation, Project, Session, System, User};
        let order = [Managed, System, Organisation, User, Session, Project, Builtin];
        assert!(order.windows(2).all(|pair| pair[0] > pair[1]));
    }

    #[test]
    fn r3_session_and_project_may_not_allow() {
        assert!(LayerKind::User.may_allow_by_default());
        assert!(!LayerKind::Session.may_allow_by_default());
        assert!(!LayerKind::Project.may_allow_by_default());
    }
}
