//! Which projects the user trusts, and as what (R7).
//!
//! Trusting a project's layer binds its bytes and the bytes of everything that it makes us load, read or run: components,
//! data, their lock, and every file that a hook's command or a server's command, arguments or environment names, wherever it lies. When any of them changes, appears or goes, the project
//! is untrusted again, and the message names the file; its last trusted copy keeps restricting, but defines nothing.
//! Each nested project folder is trusted by itself. A project's allow and its `${VAR}` references count only as
//! far as the user granted them (R3, R4).
//!
//! A folder that a server is given is not bound, nor the system's own programs, nor what a bound script loads in turn (and
//! a module that is named without its path): [`Description::unbound`] lists the first two for the person who decides. Confirming that person is the command line's matter (R20).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::builtin::Builtin;
use super::discover::{Candidate, Content, LayerText, Places, SessionSources, discover};
use super::hooks::HookItem;
use super::open::{OpenError, check_regular, explained};
use super::parse::{LayerFile, parse};
use super::problem::Problem;
use super::reviewer::ReviewerTable;
use super::server::references;
use super::server_keys::ServerTable;
use crate::model::digest::Digest;
use crate::model::layer::{LayerKind, LayerRef};
use crate::model::name::ServerName;
use crate::model::text::shown;

pub use super::trust_store::{Grant, TrustError, TrustStore, TrustedProject};

/// The most files that one layer binds.
const MAX_FILES: usize = 4096;
/// The largest file that trust binds, in bytes.
pub(super) const MAX_BOUND: u64 = 64 * 1024 * 1024;
/// The most texts in a layer's command lines and environments that are looked at as paths.
const MAX_WORDS: usize = 65_536;
/// Where the system's own programs lie; what root keeps there is not bound, so that an update needs no new trust.
const SYSTEM_FOLDERS: [&str; 6] = ["/bin", "/lib", "/nix/store", "/opt", "/sbin", "/usr"];
/// How deep a data folder may nest.
const MAX_DEPTH: usize = 16;

/// A file that trust binds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BoundFile {
    /// The file, absolute.
    pub path: PathBuf,
    /// Its digest; none: it did not exist, and appearing would be a change.
    pub digest: Option<Digest>,
}

/// What trusting a project would mean, for the person who decides.
#[derive(Debug, Clone)]
pub struct Description {
    /// The layer.
    pub layer: LayerRef,
    /// The layer's file.
    pub file: PathBuf,
    /// The digest of the layer's file.
    pub digest: Digest,
    /// What the layer makes us load, read or run.
    pub files: Vec<BoundFile>,
    /// The servers that it defines, with their command lines.
    pub servers: Vec<(ServerName, String)>,
    /// Its policies' names.
    pub policies: Vec<String>,
    /// The command line of its auto reviewer, if that is a program.
    pub reviewer: Option<String>,
    /// Its hooks, by name, with their command lines.
    pub hooks: Vec<(String, String)>,
    /// Variables of the environment that its servers and its reviewer name; each needs a grant.
    pub variables: BTreeSet<String>,
    /// Folders that its servers and hooks are started with (what lies in them is not bound), and files outside of the project that
    /// are not bound: root's own programs, and what is no regular file or too large.
    pub unbound: Vec<PathBuf>,
    /// What is wrong with the layer.
    pub problems: Vec<Problem>,
    pub(super) text: LayerText,
}

/// What a project's layer is worth now.
#[derive(Debug, Clone)]
pub(crate) enum Standing {
    /// It is what the user trusted.
    Trusted(TrustedProject),
    /// The user never trusted it.
    Untrusted,
    /// Something of it changed since.
    Changed { what: String, record: TrustedProject },
    /// It cannot be told.
    Unknown(String),
}

/// Describes what trusting a project's layer would mean: `path` is the project's folder, or the layer's file (which a user's
/// file inside the project is too, R6). Trust nothing but what this returned: it is bound to the bytes that were shown.
///
/// # Errors
/// There is no such layer, it cannot be read or parsed, or it binds too much.
pub fn describe(places: &Places, path: &Path) -> Result<Description, TrustError> {
    let path = path.canonicalize().map_err(|error| TrustError::Open(OpenError::Io(path.to_owned(), error)))?;
    let (file, cwd) =
        if path.is_dir() { (path.join(".portcullis/config.toml"), Some(path)) } else { (path, places.cwd.clone()) };
    let places = Places { cwd, ..places.clone() };
    let is_meant = |candidate: &Candidate| {
        let same = |own: &Path| own == file || own.canonicalize().is_ok_and(|own| own == file);
        candidate.layer.kind() == LayerKind::Project && candidate.layer.file().is_some_and(same)
    };
    let found = discover(&places, &SessionSources::default()).into_iter().find(is_meant);
    let Some((candidate, project)) = found.and_then(|c| c.project.clone().map(|project| (c, project))) else {
        return Err(TrustError::NoLayer(file));
    };
    let file = candidate.layer.file().map_or(file, Path::to_owned);
    let (text, digest) = match candidate.content {
        Content::Absent => return Err(TrustError::NoLayer(file)),
        Content::Broken(why) => return Err(TrustError::Broken(why)),
        Content::Text(text, digest) => (text, digest),
    };
    let parsed = parse(text.as_str(), &candidate.layer)
        .map_err(|problems| TrustError::Broken(problems.first().map(ToString::to_string).unwrap_or_default()))?;
    let (files, unbound) = bound_files(&parsed, &candidate.folder, &project)?;
    Ok(Description {
        servers: parsed.tables().filter(|(_, t)| t.defines()).map(|(n, t)| (n.clone(), command_line(t))).collect(),
        policies: parsed.policies.iter().map(|policy| policy.name.clone()).collect(),
        hooks: hook_words(&parsed).map(|(name, words)| (name.to_owned(), shown(&words.join(" "), 500))).collect(),
        variables: {
            let key = parsed.settings.reviewer.as_ref().and_then(|reviewer| reviewer.key_env.as_deref());
            parsed.tables().flat_map(|(_, table)| references(table)).chain(key).map(str::to_owned).collect()
        },
        reviewer: Some(shown(&reviewer_words(&parsed).join(" "), 500)).filter(|line| !line.is_empty()),
        problems: parsed.problems,
        layer: candidate.layer,
        file,
        digest,
        files,
        unbound,
        text,
    })
}

fn reviewer_words(file: &LayerFile) -> Vec<String> {
    file.settings.reviewer.as_ref().map(ReviewerTable::words).unwrap_or_default()
}

fn command_line(table: &ServerTable) -> String {
    let first = table.command.as_deref().or(table.url.as_ref().map(|url| url.as_written())).unwrap_or_default();
    let args = table.args.iter().flatten().map(|arg| arg.as_written());
    shown(&std::iter::once(first).chain(args).collect::<Vec<_>>().join(" "), 500)
}

/// The hooks that can be read, with their words.
fn hook_words(file: &LayerFile) -> impl Iterator<Item = (&str, Vec<String>)> {
    let words = |item: &'_ HookItem| item.entry.as_ref().ok().and_then(|entry| entry.command.words().ok());
    file.hooks.iter().filter_map(move |item| Some((item.name.as_str(), words(item)?)))
}

impl TrustStore {
    /// Compares a project's layer with what the user trusted.
    pub(crate) fn check(&self, candidate: &Candidate, text: &str, digest: Digest) -> Standing {
        let (Some(file), Some(project)) = (candidate.layer.file(), &candidate.project) else {
            return Standing::Untrusted;
        };
        let Some(record) = self.get(file) else { return Standing::Untrusted };
        let changed = |what: String| Standing::Changed { what, record: record.clone() };
        if record.digest != digest {
            return changed(format!("`{}` changed", shown(&file.display().to_string(), 300)));
        }
        let Ok(parsed) = parse(text, &candidate.layer) else {
            return Standing::Unknown("its layer cannot be read any more".to_owned());
        };
        match bound_files(&parsed, &candidate.folder, project) {
            Ok((now, _)) => match first_difference(&record.files, &now) {
                Some(what) => changed(what),
                None => Standing::Trusted(record.clone()),
            },
            Err(error) => changed(explained(&error)),
        }
    }
}

/// R7: reads what trust bound once more, as just before something of it is run. Returns the first file, by path, that is
/// not what it was, with the reason. Reads at most 64 MiB of each file; blocks.
#[must_use]
pub fn first_changed(bound: &BTreeMap<PathBuf, Option<Digest>>) -> Option<String> {
    bound.iter().find_map(|(path, then)| {
        let name = || shown(&path.display().to_string(), 300);
        match digest_of(path) {
            Ok(now) if now == *then => None,
            Ok(_) => Some(format!("`{}` changed since it was trusted", name())),
            Err(error) => Some(format!("`{}` cannot be compared with what was trusted: {}", name(), explained(&error))),
        }
    })
}

fn first_difference(then: &[BoundFile], now: &[BoundFile]) -> Option<String> {
    let then: BTreeMap<_, _> = then.iter().map(|file| (&file.path, file.digest)).collect();
    let now: BTreeMap<_, _> = now.iter().map(|file| (&file.path, file.digest)).collect();
    let names: BTreeSet<_> = then.keys().chain(now.keys()).collect();
    names.into_iter().find_map(|path| {
        let name = shown(&path.display().to_string(), 300);
        match (then.get(*path).copied().flatten(), now.get(*path).copied().flatten()) {
            (Some(a), Some(b)) if a == b => None,
            (None, None) => None,
            (None, Some(_)) => Some(format!("`{name}` appeared")),
            (Some(_), None) => Some(format!("`{name}` went away")),
            (Some(_), Some(_)) => Some(format!("`{name}` changed")),
        }
    })
}

/// Returns the files that a layer makes us load, read or run, and the folders that cannot be bound.
fn bound_files(file: &LayerFile, folder: &Path, project: &Path) -> Result<(Vec<BoundFile>, Vec<PathBuf>), TrustError> {
    let (mut paths, mut unbound) = (BTreeSet::new(), BTreeSet::new());
    for policy in file.policies.iter().filter_map(|policy| policy.entry.as_ref().ok()) {
        if Builtin::named(&policy.component).is_none() {
            paths.insert(folder.join(&policy.component));
        }
        if let Some(data) = &policy.data {
            walk(&folder.join(data), MAX_DEPTH, &mut paths)?;
        }
    }
    // Where there is a lock it decides what is refused; one that comes later is a change, too.
    let lock = folder.join(super::lock::FILE);
    if !file.policies.is_empty() && lock.symlink_metadata().is_ok() {
        paths.insert(lock);
    }
    let servers = file.tables().map(|(_, table)| {
        let cwd = table.cwd.as_ref().map_or_else(|| project.to_owned(), |cwd| project.join(cwd));
        let command = table.command.iter().filter(|command| command.contains('/')).map(String::as_str);
        let args = table.args.iter().flatten().map(|arg| arg.as_written());
        let env = table.env.iter().flatten().map(|(_, value)| value.as_written());
        (cwd, command.chain(args).chain(env).collect::<Vec<&str>>())
    });
    let reviewer = reviewer_words(file);
    let reviewed = reviewer.iter().enumerate().filter(|(at, word)| *at > 0 || word.contains('/'));
    let reviewed = (folder.to_owned(), reviewed.map(|(_, word)| word.as_str()).collect());
    // A hook's program is named from its layer's folder, and runs in the project's.
    let hooks: Vec<Vec<String>> = hook_words(file).map(|(_, words)| words).collect();
    let programs = hooks.iter().filter_map(|words| words.first()).filter(|program| program.contains('/'));
    let programs = (folder.to_owned(), programs.map(String::as_str).collect());
    let args = (project.to_owned(), hooks.iter().flat_map(|words| words.iter().skip(1)).map(String::as_str).collect());
    for (cwd, texts) in servers.chain([programs, args, reviewed]) {
        let inside = |path: &Path| path.starts_with(project);
        let is_inside = |path: &Path| inside(path) || path.canonicalize().is_ok_and(|real| inside(&real));
        if !texts.is_empty() && !is_inside(&lexical(&cwd)) {
            unbound.insert(lexical(&cwd));
        }
        let words: BTreeSet<&str> = texts.into_iter().flat_map(words).take(MAX_WORDS + 1).collect();
        if words.len() > MAX_WORDS {
            return Err(TrustError::TooMany(MAX_FILES));
        }
        for word in words {
            let path = lexical(&cwd.join(word));
            match path.metadata() {
                Ok(meta) if meta.is_dir() => _ = unbound.insert(path),
                Ok(meta) if !is_inside(&path) && !can_bind(&path, &meta) => _ = unbound.insert(path),
                Ok(_) => _ = paths.insert(path),
                Err(_) => {}
            }
        }
    }
    if paths.len() > MAX_FILES {
        return Err(TrustError::TooMany(MAX_FILES));
    }
    let files = paths.into_iter().map(|path| Ok(BoundFile { digest: digest_of(&path)?, path }));
    Ok((files.collect::<Result<_, TrustError>>()?, unbound.into_iter().collect()))
}

/// Returns what of an argument or a variable's value may name a file: the whole, its parts (`--require ./hook.js`,
/// `./a:./b`, a line for a shell), and of each part what stands behind `=` or a glued flag (`--config=file`, `-r./hook.js`).
fn words(text: &str) -> impl Iterator<Item = &str> {
    let apart = |c: char| c.is_whitespace() || matches!(c, ':' | ';' | ',' | '|' | '&' | '<' | '>' | '(' | ')' | '`');
    let parts = std::iter::once(text).chain(text.split(apart));
    let forms = |part| {
        let part: &str = part;
        let glued = part.strip_prefix('-').and_then(|rest| {
            let mut rest = rest.chars();
            rest.next().map(|_| rest.as_str())
        });
        [Some(part), part.split_once('=').map(|(_, value)| value), glued]
    };
    let bare = |word: &str| !word.is_empty();
    parts.flat_map(forms).flatten().map(|word| word.trim_matches(['\'', '"'])).filter(move |word| bare(word))
}

/// Returns the files that these arguments may name, whether there are such or not.
pub(super) fn named_files<'a>(args: impl Iterator<Item = &'a str>, cwd: &Path) -> impl Iterator<Item = PathBuf> {
    args.flat_map(words).take(MAX_WORDS).map(|word| lexical(&cwd.join(word)))
}

/// Whether a file outside of the project is bound.
fn can_bind(path: &Path, meta: &std::fs::Metadata) -> bool {
    meta.is_file() && meta.len() <= MAX_BOUND && !is_roots_own(path, meta)
}

/// Whether a file is one of the system's own that root keeps.
pub(super) fn is_roots_own(path: &Path, meta: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let systems = SYSTEM_FOLDERS.iter().any(|folder| real.starts_with(folder));
    systems && meta.uid() == 0 && meta.mode() & 0o022 == 0
}

/// Collects the files below a folder; links are followed no further than the file they lead to.
fn walk(folder: &Path, depth: usize, paths: &mut BTreeSet<PathBuf>) -> Result<(), TrustError> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(TrustError::Open(OpenError::Io(folder.to_owned(), error))),
    };
    for entry in entries {
        let entry = entry.map_err(|error| TrustError::Open(OpenError::Io(folder.to_owned(), error)))?;
        let path = entry.path();
        if path.is_dir() {
            let below = depth.checked_sub(1).ok_or(TrustError::TooMany(MAX_FILES))?;
            walk(&path, below, paths)?;
        } else {
            paths.insert(path);
        }
        if paths.len() > MAX_FILES {
            return Err(TrustError::TooMany(MAX_FILES));
        }
    }
    Ok(())
}

pub(super) fn digest_of(path: &Path) -> Result<Option<Digest>, TrustError> {
    use rustix::fs::{Mode, OFlags, open};
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = match open(path, flags, Mode::empty()) {
        Ok(handle) => std::fs::File::from(handle),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(error) => return Err(TrustError::Open(OpenError::Io(path.to_owned(), error.into()))),
    };
    check_regular(&file, path).map_err(TrustError::Open)?;
    let bytes = super::open::read_bounded(file, path, MAX_BOUND).map_err(TrustError::Open)?;
    Ok(Some(Digest::of(&bytes)))
}

/// Removes `.` and `..` by spelling.
pub(super) fn lexical(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => _ = out.pop(),
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => out.push(part),
        }
    }
    out
}
