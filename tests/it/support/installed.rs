//! Servers and clients that a machine with rustup alone does not have: `.ci/run` installs them at pinned versions, and says
//! where with `PORTCULLIS_E2E`. Without that a test is left out and says so; with it, whatever is missing is a failure.

use std::path::{Path, PathBuf};

/// The folder that `.ci/run` installs into.
#[derive(Debug, Clone)]
pub(crate) struct Installed(PathBuf);

impl Installed {
    /// Returns the folder if it holds `needed`, or says in one line that the test is left out.
    pub(crate) fn with(needed: &[&str]) -> Option<Self> {
        let Some(folder) = std::env::var_os("PORTCULLIS_E2E").map(PathBuf::from) else {
            println!("left out: PORTCULLIS_E2E is not set; `bash .ci/run` installs the real servers and sets it");
            return None;
        };
        let missing = missing(&folder, needed);
        assert!(missing.is_empty(), "PORTCULLIS_E2E is set, but these are missing: {missing:?}");
        Some(Self(folder))
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }

    /// A file of the folder, as text.
    pub(crate) fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("the folder's path is Unicode").to_owned()
    }
}

/// Which of the files are not in the folder.
pub(crate) fn missing(folder: &Path, needed: &[&str]) -> Vec<PathBuf> {
    needed.iter().map(|file| folder.join(file)).filter(|file| !file.exists()).collect()
}
