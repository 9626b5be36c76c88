//! The file that keeps which projects are trusted: the user's alone (mode 600), replaced whole.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::discover::LayerText;
use super::open::{OpenError, read_owned};
use super::trust::{BoundFile, Description};
use crate::model::digest::Digest;
use crate::model::text::shown;

/// The largest trust store, in bytes: it holds a copy of each trusted layer.
const MAX_STORE: u64 = 64 * 1024 * 1024;
/// The version of the file's form.
const VERSION: u32 = 1;

/// Why something about trust did not work.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// There is nothing to trust.
    #[error("there is no `{}`", shown(&.0.display().to_string(), 300))]
    NoLayer(PathBuf),
    /// The layer cannot be read.
    #[error("the project's layer cannot be trusted: {0}")]
    Broken(String),
    /// A file cannot be used.
    #[error("a file that trust needs cannot be used")]
    Open(#[source] OpenError),
    /// The layer binds more than can be bound.
    #[error("the layer names more than {0} files, or folders nested too deep")]
    TooMany(usize),
    /// A variable is granted that the layer does not name.
    #[error("the layer does not name the variable `{0}`")]
    Variable(String),
    /// The store is not what we write.
    #[error("the trust store `{}` is damaged; remove it to trust projects anew", shown(&path.display().to_string(), 300))]
    Damaged {
        /// The store.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The store cannot be written.
    #[error("the trust store `{}` cannot be written", shown(&path.display().to_string(), 300))]
    Write {
        /// The store.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// One trusted project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrustedProject {
    /// The digest of the layer's file.
    pub digest: Digest,
    /// What the layer makes us load, read or run.
    pub files: Vec<BoundFile>,
    /// Variables of the environment that its servers may name (R4).
    pub variables: BTreeSet<String>,
    /// Whether its allows count (R3).
    pub may_allow: bool,
    /// The layer's text: what keeps restricting after a change.
    pub(super) text: LayerText,
}

impl TrustedProject {
    /// Returns the trusted text of the layer.
    #[must_use]
    pub fn text(&self) -> &str {
        self.text.as_str()
    }

    pub(crate) fn pins(&self) -> BTreeMap<PathBuf, Option<Digest>> {
        self.files.iter().map(|file| (file.path.clone(), file.digest)).collect()
    }
}

/// What the user grants a project beyond being read.
#[derive(Debug, Clone, Default)]
pub struct Grant {
    /// Variables that its servers may name.
    pub variables: BTreeSet<String>,
    /// Whether its allows count.
    pub may_allow: bool,
}

/// The trusted projects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustStore {
    path: Option<PathBuf>,
    projects: BTreeMap<PathBuf, TrustedProject>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form<P> {
    version: u32,
    projects: P,
}

impl TrustStore {
    /// A store that trusts nothing and cannot be saved.
    #[must_use]
    pub fn empty() -> Self {
        Self { path: None, projects: BTreeMap::new() }
    }

    /// Reads the store; a missing one is empty.
    ///
    /// # Errors
    /// It is not the user's alone to write (R6), cannot be read, or is damaged.
    pub fn open(path: &Path, user: u32) -> Result<Self, TrustError> {
        let bytes = read_owned(path, user, MAX_STORE).map_err(TrustError::Open)?;
        let Some(bytes) = bytes else { return Ok(Self { path: Some(path.to_owned()), projects: BTreeMap::new() }) };
        let damaged = |source| TrustError::Damaged { path: path.to_owned(), source };
        let form: Form<BTreeMap<PathBuf, TrustedProject>> =
            serde_json::from_slice(&bytes).map_err(|error| damaged(Box::new(error)))?;
        if form.version != VERSION {
            return Err(damaged(format!("version {} is not {VERSION}", form.version).into()));
        }
        Ok(Self { path: Some(path.to_owned()), projects: form.projects })
    }

    /// Returns what is trusted, by the layer's file.
    pub fn projects(&self) -> impl Iterator<Item = (&Path, &TrustedProject)> {
        self.projects.iter().map(|(path, project)| (path.as_path(), project))
    }

    /// Returns the record of a layer's file.
    #[must_use]
    pub fn get(&self, file: &Path) -> Option<&TrustedProject> {
        self.projects.get(file)
    }

    /// Trusts exactly what was described; a project that was trusted before is replaced. Takes effect when saved.
    ///
    /// # Errors
    /// A variable is granted that the layer does not name.
    pub fn trust(&mut self, description: &Description, grant: Grant) -> Result<(), TrustError> {
        if let Some(name) = grant.variables.iter().find(|name| !description.variables.contains(*name)) {
            return Err(TrustError::Variable(shown(name, 64)));
        }
        let record = TrustedProject {
            digest: description.digest,
            files: description.files.clone(),
            variables: grant.variables,
            may_allow: grant.may_allow,
            text: description.text.clone(),
        };
        self.projects.insert(description.file.clone(), record);
        Ok(())
    }

    /// Takes trust away; returns whether there was any. Takes effect when saved.
    pub fn distrust(&mut self, file: &Path) -> bool {
        self.projects.remove(file).is_some()
    }

    /// Writes the store: a new file that replaces the old one whole.
    ///
    /// # Errors
    /// There is no place for it, or it cannot be written.
    pub fn save(&self) -> Result<(), TrustError> {
        let path = self.path.clone().unwrap_or_default();
        self.write(&path).map_err(|source| TrustError::Write { path, source })
    }

    fn write(&self, path: &Path) -> std::io::Result<()> {
        let folder = path.parent().ok_or(std::io::ErrorKind::NotFound)?;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let text = serde_json::to_vec_pretty(&Form { version: VERSION, projects: &self.projects })?;
        // The process's id keeps two writers apart; the later rename wins.
        let fresh = path.with_extension(format!("{}.new", std::process::id()));
        let _ = std::fs::remove_file(&fresh);
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(&text)?;
        file.sync_all()?;
        std::fs::rename(&fresh, path)
    }
}
