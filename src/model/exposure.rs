//! How a model reaches a tool.

use serde::{Deserialize, Serialize};

/// A way for a tool to be reached. `omit_tools_from` takes some away from a server's tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// In the tool list.
    Direct,
    /// Found by search.
    Deferred,
    /// Called from scripts.
    CodeMode,
}

impl Way {
    /// Returns the word as configuration spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Deferred => "deferred",
            Self::CodeMode => "code_mode",
        }
    }
}

/// What became of one tool in one session (catalog-dispatch 3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exposure {
    /// In the tool list, and for scripts.
    Direct,
    /// Found by search, and for scripts.
    Deferred,
    /// In the tool list, not for scripts.
    DirectModelOnly,
    /// Found by search, not for scripts.
    DeferredModelOnly,
    /// For scripts only.
    CodeModeOnly,
    /// Neither shown nor found; a call that names it runs as any other.
    Hidden,
    /// Not there: a call that names it is answered like one of an unknown tool (R25).
    Absent,
}

impl Exposure {
    /// Returns the word for people and records.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Deferred => "deferred",
            Self::DirectModelOnly => "direct-model-only",
            Self::DeferredModelOnly => "deferred-model-only",
            Self::CodeModeOnly => "code-mode-only",
            Self::Hidden => "hidden",
            Self::Absent => "absent",
        }
    }

    /// Tells whether the tool stands in the list that a model reads.
    #[must_use]
    pub fn is_listed(self) -> bool {
        matches!(self, Self::Direct | Self::DirectModelOnly)
    }

    /// Tells whether the tool is found by search.
    #[must_use]
    pub fn is_searched(self) -> bool {
        matches!(self, Self::Deferred | Self::DeferredModelOnly)
    }

    /// Tells whether scripts get the tool.
    #[must_use]
    pub fn is_for_scripts(self) -> bool {
        matches!(self, Self::Direct | Self::Deferred | Self::CodeModeOnly)
    }

    /// Tells whether a call that names the tool leads to it, shown or not.
    #[must_use]
    pub fn is_callable(self) -> bool {
        self != Self::Absent
    }
}

impl std::fmt::Display for Exposure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_spelled_as_they_are_serialised() {
        for way in [Way::Direct, Way::Deferred, Way::CodeMode] {
            assert_eq!(serde_json::to_value(way).unwrap(), way.as_str());
        }
        use Exposure as E;
        for exposure in
            [E::Direct, E::Deferred, E::DirectModelOnly, E::DeferredModelOnly, E::CodeModeOnly, E::Hidden, E::Absent]
        {
            assert_eq!(serde_json::to_value(exposure).unwrap(), exposure.as_str());
        }
    }
}
