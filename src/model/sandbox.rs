//! What a server that asks for it is told of the sandbox that its caller works in (catalog-dispatch 5.1, M6, M7).

use std::collections::BTreeMap;
use std::path::{Component, Path};

use serde_json::{Value, json};
use url::Url;

/// The key of the state in a request's `_meta`, and the experimental capability by which a server asks for it.
pub const SANDBOX_STATE: &str = "codex/sandbox-state-meta";

/// The environment of servers that name none.
pub const LOCAL: &str = "local";

/// A directory as servers are told of it: a `file` URI without a slash at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryUri(Url);

/// A path is none that a server can be told of: relative, or with `..`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the directory of a sandbox must be an absolute path without `..`")]
pub struct BadDirectory;

impl DirectoryUri {
    /// Makes one of a path. Nothing is looked up.
    ///
    /// # Errors
    /// [`BadDirectory`]: what `..` leads to depends on who reads it.
    pub fn of(path: &Path) -> Result<Self, BadDirectory> {
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(BadDirectory);
        }
        Url::from_file_path(path).map(Self).map_err(|()| BadDirectory)
    }

    /// Returns the URI.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

/// The sandbox of a turn, as the program says that embeds the host. Clients of a gateway cannot say any.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SandboxState {
    /// What may be done, in the program's own form; passed on as it is.
    pub permission_profile: Value,
    /// The helper that sets up a sandbox on Linux, if there is one: an absolute path.
    pub linux_sandbox_exe: Option<String>,
    /// The directory of each environment, by its id.
    pub directories: BTreeMap<String, DirectoryUri>,
    /// The directory of the turn: that of [`LOCAL`] where `directories` has none for it.
    pub directory: Option<DirectoryUri>,
    /// Whether the helper uses the older Landlock rules.
    pub use_legacy_landlock: bool,
}

impl SandboxState {
    /// Returns what a server of this environment is told; none where its directory is not known.
    #[must_use]
    pub fn of_environment(&self, environment: &str) -> Option<Value> {
        let turns = || self.directory.as_ref().filter(|_| environment == LOCAL);
        let directory = self.directories.get(environment).or_else(turns)?;
        Some(json!({
            "permissionProfile": self.permission_profile,
            "codexLinuxSandboxExe": self.linux_sandbox_exe,
            "sandboxCwd": directory.as_str(),
            "useLegacyLandlock": self.use_legacy_landlock,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(path: &str) -> DirectoryUri {
        DirectoryUri::of(Path::new(path)).unwrap()
    }

    fn cwd(state: &SandboxState, environment: &str) -> Option<String> {
        Some(state.of_environment(environment)?["sandboxCwd"].as_str().unwrap().to_owned())
    }

    #[test]
    fn a_directory_is_told_as_a_file_uri_and_one_that_depends_on_its_reader_is_none() {
        assert_eq!(uri("/place/a b/ä#?%/").as_str(), "file:///place/a%20b/%C3%A4%23%3F%25");
        for bad in ["", "work", "./work", "/place/../etc"] {
            assert_eq!(DirectoryUri::of(Path::new(bad)), Err(BadDirectory), "{bad}");
        }
    }

    #[test]
    fn rule_7_the_environments_own_directory_comes_first_and_the_turns_is_for_local_alone() {
        let far = BTreeMap::from([("far".to_owned(), uri("/far"))]);
        let state = SandboxState { directories: far, directory: Some(uri("/turn")), ..SandboxState::default() };
        assert_eq!(cwd(&state, "far").as_deref(), Some("file:///far"));
        assert_eq!(cwd(&state, LOCAL).as_deref(), Some("file:///turn"));
        assert_eq!(cwd(&state, "elsewhere"), None);
        let own = BTreeMap::from([(LOCAL.to_owned(), uri("/own"))]);
        let state = SandboxState { directories: own, ..state };
        assert_eq!(cwd(&state, LOCAL).as_deref(), Some("file:///own"));
        assert_eq!(cwd(&SandboxState::default(), LOCAL), None);
    }
}
