//! Finds the layers of design page 5 and reads each once, weak to strong.
//!
//! Where a layer was found decides what it is, never what it says. A file that lies inside the project is a project
//! layer even if it was found as the user's (R6). `--managed FILE` restricts like managed and is trusted like session.
//! All roots are given, so that nothing here depends on the machine it runs on.
//!
//! Does not interpret what it reads: that is `stack`.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toml::de::DeTable;

use super::open::{MAX_LAYER, explained, read_owned};
use crate::model::digest::Digest;
use crate::model::layer::{LayerKind, LayerRef};
use crate::model::text::shown;

/// The most `-c` flags.
const MAX_OVERRIDES: usize = 256;
/// How many folders lie between a repository's root and the working directory at most.
const MAX_NESTING: usize = 64;

/// Where layers are looked for.
#[derive(Debug, Clone)]
pub struct Places {
    /// The machine's folder: `/etc/portcullis`. None: no system, organisation and managed layers.
    pub etc: Option<PathBuf>,
    /// The user's folder: `$XDG_CONFIG_HOME/portcullis`.
    pub user_config: Option<PathBuf>,
    /// The user's state: `$XDG_STATE_HOME/portcullis`. None: no project can be trusted.
    pub state: Option<PathBuf>,
    /// The user's cache: `$XDG_CACHE_HOME/portcullis`. None: nothing is cached.
    pub cache: Option<PathBuf>,
    /// The user's home; a working directory in or above it is no project root by itself.
    pub home: Option<PathBuf>,
    /// The working directory, absolute. None: no project layers.
    pub cwd: Option<PathBuf>,
    /// `PATH`, for servers' commands.
    pub path: Option<OsString>,
    /// The user's id, for ownership (R6).
    pub user: u32,
}

impl Places {
    /// The places of this process: its environment, its working directory, its user.
    ///
    /// # Errors
    /// The working directory is gone or cannot be read.
    pub fn from_environment() -> io::Result<Self> {
        let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = absolute("HOME");
        let below_home = |below: &str| home.as_ref().map(|home| home.join(below));
        let config = absolute("XDG_CONFIG_HOME").or_else(|| below_home(".config"));
        let state = absolute("XDG_STATE_HOME").or_else(|| below_home(".local/state"));
        let cache = absolute("XDG_CACHE_HOME").or_else(|| below_home(".cache"));
        Ok(Self {
            etc: Some(PathBuf::from("/etc/portcullis")),
            user_config: config.map(|config| config.join("portcullis")),
            state: state.map(|state| state.join("portcullis")),
            cache: cache.map(|cache| cache.join("portcullis")),
            home,
            cwd: Some(std::env::current_dir()?),
            path: std::env::var_os("PATH"),
            user: rustix::process::getuid().as_raw(),
        })
    }

    /// No places at all: what is not given in the session does not exist.
    #[must_use]
    pub fn nowhere() -> Self {
        let user = rustix::process::getuid().as_raw();
        Self { etc: None, user_config: None, state: None, cache: None, home: None, cwd: None, path: None, user }
    }

    /// Returns the file that keeps which projects are trusted.
    #[must_use]
    pub fn trust_store(&self) -> Option<PathBuf> {
        self.state.as_ref().map(|state| state.join("trust.json"))
    }
}

/// What the command line and the embedder add.
#[derive(Debug, Clone, Default)]
pub struct SessionSources {
    /// `--config FILE`, in order.
    pub files: Vec<PathBuf>,
    /// `-c key=value`, in order; of two for one key the later counts.
    pub overrides: Vec<String>,
    /// `--managed FILE`: adds restrictions, replaces nothing (R6).
    pub managed: Vec<PathBuf>,
    /// Layers that an embedder brings; it states each one's kind.
    pub embedded: Vec<EmbeddedLayer>,
}

impl SessionSources {
    /// Layers without files of their own, as TOML texts, weak or strong in any order. What they name is relative to `folder`.
    #[must_use]
    pub fn of_texts(layers: &[(LayerKind, &str)], folder: &Path) -> Self {
        let layer = |(kind, text): &(LayerKind, &str)| EmbeddedLayer {
            kind: *kind,
            text: (*text).to_owned(),
            folder: folder.to_owned(),
        };
        Self { embedded: layers.iter().map(layer).collect(), ..Self::default() }
    }
}

/// A layer without a file of its own. A project's is in force without trust, since the embedder put it there, and is
/// granted nothing.
#[derive(Clone)]
pub struct EmbeddedLayer {
    /// The kind; the embedder vouches for it.
    pub kind: LayerKind,
    /// The TOML text.
    pub text: String,
    /// The folder that components and data are relative to.
    pub folder: PathBuf,
}

impl std::fmt::Debug for EmbeddedLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddedLayer").field("kind", &self.kind).field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// A place where a layer was looked for, and what was there.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    /// The layer as it restricts.
    pub(crate) layer: LayerRef,
    /// The layer as it defines and vouches: session for `--managed FILE`, else the same.
    pub(crate) definer: LayerRef,
    /// What its relative paths are relative to.
    pub(crate) folder: PathBuf,
    /// The folder of the project, for a project layer.
    pub(crate) project: Option<PathBuf>,
    /// Whether it is the user's own layer, which lies in a project (R6): it may not vouch, but its restrictions stand.
    pub(crate) users: bool,
    /// What was there.
    pub(crate) content: Content,
}

/// What was found.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    /// Nothing.
    Absent,
    /// Something that cannot be used, and why.
    Broken(String),
    /// The text and the digest of its bytes.
    Text(LayerText, Digest),
}

/// The text of a layer. `Debug` hides it: it may hold secrets.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct LayerText(String);

impl LayerText {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for LayerText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "<{} bytes>", self.0.len())
    }
}

impl Candidate {
    fn file(kind: LayerKind, file: PathBuf, user: u32) -> Self {
        let layer = LayerRef::from_file(kind, file.clone());
        let folder = file.parent().map(Path::to_owned).unwrap_or_default();
        Self { definer: layer.clone(), layer, folder, project: None, users: false, content: read(&file, user) }
    }

    /// A file that somebody named: its absence is a failure (R8).
    pub(crate) fn named(kind: LayerKind, file: &Path, places: &Places) -> Self {
        let file = places.cwd.as_ref().map_or_else(|| file.to_owned(), |cwd| cwd.join(file));
        let mut candidate = Self::file(kind, file, places.user);
        if matches!(candidate.content, Content::Absent) {
            let name = candidate.layer.file().map(|file| shown(&file.display().to_string(), 300)).unwrap_or_default();
            candidate.content = Content::Broken(format!("`{name}` was named on the command line and does not exist"));
        }
        candidate
    }

    pub(crate) fn project(folder: &Path, user: u32) -> Self {
        let file = folder.join(".portcullis/config.toml");
        Self { project: Some(folder.to_owned()), ..Self::file(LayerKind::Project, file, user) }
    }

    fn text(kind: LayerKind, text: String, folder: PathBuf) -> Self {
        let layer = LayerRef::new(kind);
        let digest = Digest::of(text.as_bytes());
        Self {
            definer: layer.clone(),
            layer,
            folder,
            project: None,
            users: false,
            content: Content::Text(LayerText(text), digest),
        }
    }
}

/// Reads every layer, from the weakest to the strongest for ordinary values.
pub(crate) fn discover(places: &Places, session: &SessionSources) -> Vec<Candidate> {
    let mut found = Vec::new();
    let etc = |kind, name: &str| places.etc.as_ref().map(|etc| Candidate::file(kind, etc.join(name), places.user));
    found.extend(etc(LayerKind::System, "config.toml"));
    found.extend(etc(LayerKind::Organisation, "organisation.toml"));
    let projects = project_folders(places);
    if let Some(folder) = &places.user_config {
        found.push(user_layer(&folder.join("config.toml"), projects.first(), places));
    }
    found.extend(projects.iter().map(|folder| Candidate::project(folder, places.user)));
    found.extend(session.files.iter().map(|file| Candidate::named(LayerKind::Session, file, places)));
    if !session.overrides.is_empty() {
        found.push(overrides(&session.overrides, places));
    }
    for file in &session.managed {
        let managed = Candidate::named(LayerKind::Managed, file, places);
        let definer = LayerRef::from_file(LayerKind::Session, managed.layer.file().unwrap_or(file).to_owned());
        found.push(Candidate { definer, ..managed });
    }
    for layer in &session.embedded {
        let embedded = Candidate::text(layer.kind, layer.text.clone(), layer.folder.clone());
        let project = (layer.kind == LayerKind::Project).then(|| layer.folder.clone());
        found.push(Candidate { project, ..embedded });
    }
    found.extend(etc(LayerKind::Managed, "managed.toml"));
    // Stable: what was found later stays later among layers of one kind.
    found.sort_by_key(|candidate| precedence(candidate.layer.kind()));
    found
}

/// Ordinary values: which kind replaces which (design page 5); not the order of trust.
pub(super) fn precedence(kind: LayerKind) -> u8 {
    match kind {
        LayerKind::Builtin => 0,
        LayerKind::System => 1,
        LayerKind::Organisation => 2,
        LayerKind::User => 3,
        LayerKind::Project => 4,
        LayerKind::Session => 5,
        LayerKind::Managed => 6,
    }
}

/// R6: the user's file is a project layer if it lies inside the project.
fn user_layer(file: &Path, root: Option<&PathBuf>, places: &Places) -> Candidate {
    let real = file.canonicalize().ok();
    let inside = root.filter(|root| real.as_ref().is_some_and(|real| real.starts_with(root)));
    let kind = if inside.is_some() { LayerKind::Project } else { LayerKind::User };
    Candidate {
        users: inside.is_some(),
        project: inside.cloned(),
        ..Candidate::file(kind, file.to_owned(), places.user)
    }
}

/// Returns the folders from the repository's root down to the working directory; without a repository only the latter.
fn project_folders(places: &Places) -> Vec<PathBuf> {
    let Some(cwd) = &places.cwd else { return Vec::new() };
    let cwd = cwd.canonicalize().unwrap_or_else(|_| cwd.clone());
    let mut folders: Vec<PathBuf> = Vec::new();
    for folder in cwd.ancestors().take(MAX_NESTING) {
        folders.push(folder.to_owned());
        if folder.join(".git").symlink_metadata().is_ok() {
            folders.reverse();
            return folders;
        }
    }
    // The home folder holds the user's own layer; working there does not make it the project's.
    let home = places.home.as_ref().and_then(|home| home.canonicalize().ok());
    if home.is_some_and(|home| home.starts_with(&cwd)) { Vec::new() } else { vec![cwd] }
}

fn read(file: &Path, user: u32) -> Content {
    match read_owned(file, user, MAX_LAYER) {
        Ok(None) => Content::Absent,
        Ok(Some(bytes)) => {
            let digest = Digest::of(&bytes);
            match String::from_utf8(bytes) {
                Ok(text) => Content::Text(LayerText(text), digest),
                Err(_) => Content::Broken(format!("`{}` is not UTF-8", shown(&file.display().to_string(), 300))),
            }
        }
        Err(error) => Content::Broken(explained(&error)),
    }
}

/// Joins the `-c` flags to one text with a line for each.
fn overrides(flags: &[String], places: &Places) -> Candidate {
    let folder = places.cwd.clone().unwrap_or_default();
    let candidate = Candidate::text(LayerKind::Session, String::new(), folder);
    match overrides_text(flags) {
        Ok(text) => {
            let digest = Digest::of(text.as_bytes());
            Candidate { content: Content::Text(LayerText(text), digest), ..candidate }
        }
        Err(message) => Candidate { content: Content::Broken(message), ..candidate },
    }
}

fn overrides_text(flags: &[String]) -> Result<String, String> {
    if flags.len() > MAX_OVERRIDES {
        return Err(format!("there are more than {MAX_OVERRIDES} `-c` flags"));
    }
    let mut lines: Vec<(String, String)> = Vec::new();
    for flag in flags {
        let bad = |why: &str| format!("`-c {}`: {why}", shown(flag.split('=').next().unwrap_or_default(), 64));
        let (key, value) = flag.split_once('=').ok_or_else(|| bad("is not of the form KEY=VALUE"))?;
        let (key, value) = (key.trim(), value.trim());
        if flag.contains(['\n', '\r']) || key.starts_with('[') {
            return Err(bad("must be one line with one key"));
        }
        // What is no TOML value is a text, so that shells need no second pair of quotes.
        let line = format!("{key} = {value}");
        let quoted = || format!("{key} = {}", toml::Value::from(value));
        let line = if DeTable::parse(&line).is_ok() { line } else { quoted() };
        DeTable::parse(&line).map_err(|error| bad(error.message()))?;
        // Later flags win, and each keeps its line so that a message names the flag.
        if let Some(earlier) = lines.iter_mut().find(|(other, _)| other == key) {
            earlier.1 = String::new();
        }
        lines.push((key.to_owned(), line));
    }
    Ok(lines.into_iter().map(|(_, line)| line + "\n").collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(flags: &[&str]) -> Result<String, String> {
        overrides_text(&flags.iter().map(|flag| (*flag).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_flag_holds_a_value_or_else_a_text() {
        assert_eq!(text(&["a.b=1", "c=on request"]).unwrap(), "a.b = 1\nc = \"on request\"\n");
    }

    #[test]
    fn of_two_flags_for_one_key_the_later_counts() {
        assert_eq!(text(&["a=1", "b=2", "a=3"]).unwrap(), "\nb = 2\na = 3\n");
    }

    #[test]
    fn a_flag_cannot_bring_a_second_key() {
        assert!(text(&["a=1\n[mcp_servers.x]"]).is_err());
        assert!(text(&["[a]=1"]).is_err());
        assert!(text(&["nothing"]).unwrap_err().contains("KEY=VALUE"));
    }
}
