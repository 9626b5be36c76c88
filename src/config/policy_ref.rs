//! One policy of one layer, and the bytes of its component.
//!
//! A component is opened once, through a capability of its layer's folder: no `..`, link or absolute path leads out of
//! it. What was read is what was checked: the pin holds for the very buffer that is returned.
//!
//! An entry that cannot be read is still an entry: it denies what it matches ([`PolicyEntry::broken`], R8).

use std::path::{Path, PathBuf};

use cap_std::ambient_authority;
use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt as _};
use rustix::fs::OFlags;
use serde_json::Value;

use super::builtin::Builtin;
use super::lock::Locked;
use super::matcher::Matcher;
use super::open::{OpenError, check_owner, check_regular, read_bounded};
use super::parse::PolicyItem;
use super::policy_keys::{MatchTable, Mode, PolicyLimitsTable, to_json};
use super::problem::{Problem, place};
use super::requirements::{Floor, Unmet};
use super::signature::MAX_TEXT;
use super::stack::Layer;
use crate::model::digest::Digest;
use crate::model::layer::{LayerKind, LayerRef};
use crate::model::text::shown;
use crate::model::verdict::OnFailure;

/// The largest component, in bytes.
pub const MAX_COMPONENT: u64 = 32 * 1024 * 1024;

/// One policy, as its layer configured it.
#[derive(Debug, Clone)]
pub struct PolicyEntry {
    /// Its name, unique in its layer.
    pub name: String,
    /// The layer.
    pub layer: LayerRef,
    /// The entry's key path in its file, for messages.
    pub key: String,
    /// The entry's line in its file, counted from one.
    pub line: Option<usize>,
    /// The folder that `component` and `data` are relative to.
    pub folder: PathBuf,
    /// The component's file, relative to `folder`; or how one that comes with the program is called.
    pub component: PathBuf,
    /// The component that comes with the program, if it is one; then there is no file.
    pub builtin: Option<Builtin>,
    /// The digest that the component must have: the pin, or what the user's trust bound (R7).
    pub sha256: Option<Digest>,
    /// Which calls it is asked about.
    pub matcher: Matcher,
    /// Whether it is only observed (R16).
    pub observe: bool,
    /// What a failure of it means.
    pub on_failure: OnFailure,
    /// Its bounds; unset ones are the engine's defaults.
    pub limits: PolicyLimitsTable,
    /// The most that requirements permit, whatever `limits` and the defaults say; `class` is never set.
    pub most: PolicyLimitsTable,
    /// What requirements say about its bytes.
    pub(crate) floor: Floor,
    /// What the lock beside its layer file wants of it.
    pub(crate) locked: Locked,
    /// What it matches, as written; everything if that cannot be read.
    pub matches: MatchTable,
    /// The folder that it may read, relative to `folder`.
    pub data: Option<PathBuf>,
    /// Its settings; an object.
    pub settings: Value,
    /// Whether an allow of it may lift the baseline's ask (R3).
    pub may_allow: bool,
    /// Why the entry cannot be read; then it denies what it matches, whatever else it says.
    pub broken: Option<String>,
}

/// Why a component's bytes are not there. Each is a fault that denies.
#[derive(Debug, thiserror::Error)]
pub enum ComponentError {
    /// The entry cannot be read.
    #[error("{0}")]
    Broken(String),
    /// There is no such file.
    #[error("the component `{}` does not exist", shown(&.0.display().to_string(), 300))]
    Missing(PathBuf),
    /// The file is not one that may be used.
    #[error("the component cannot be used")]
    Unusable(#[source] OpenError),
    /// It is another file than the one that was pinned.
    #[error("the component `{}` has the SHA-256 {found}, not the {wanted} that its entry names",
        shown(&path.display().to_string(), 300))]
    Digest {
        /// The file.
        path: PathBuf,
        /// The pin.
        wanted: Digest,
        /// What was found.
        found: Digest,
    },
    /// The lock beside its layer file cannot be used, or records something else.
    #[error("{0}; if that is meant, run `portcullis policy lock`")]
    Locked(String),
    /// A requirement refuses it.
    #[error("the component `{}` is {unmet}", shown(&path.display().to_string(), 300))]
    Unmet {
        /// The file.
        path: PathBuf,
        /// The requirement.
        unmet: Unmet,
    },
}

/// A component's bytes and their digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComponentBytes {
    /// The file's content.
    pub bytes: Vec<u8>,
    /// Its SHA-256.
    pub digest: Digest,
    /// The text beside it that signs it, where a requirement asks for one and there is one.
    pub signature: Option<Vec<u8>>,
}

impl PolicyEntry {
    pub(crate) fn new(item: &PolicyItem, layer: &Layer, matcher: Matcher, floor: Floor) -> Self {
        let table = item.entry.as_ref().ok();
        let path = |path: &String| PathBuf::from(path);
        let component = table.map(|table| path(&table.component)).unwrap_or_default();
        let builtin = table.and_then(|table| Builtin::named(&table.component));
        let pinned = table.and_then(|table| table.sha256.as_ref()).and_then(|text| Digest::parse(text).ok());
        let bound = layer.pins.as_ref().and_then(|pins| pins.get(&layer.folder.join(&component)).copied().flatten());
        let broken = match &item.entry {
            Err(problem) => Some(problem.to_string()),
            // R7: what was not there to be trusted is not trusted when it comes.
            Ok(_) if layer.pins.is_some() && bound.is_none() && builtin.is_none() => {
                let why = "its component did not exist when the project was trusted";
                Some(
                    Problem::at(&layer.reference, layer.file.lines.get(&item.key).copied(), &item.key, why).to_string(),
                )
            }
            Ok(_) => None,
        };
        Self {
            name: item.name.clone(),
            layer: layer.reference.clone(),
            key: item.key.clone(),
            line: layer.file.lines.get(&item.key).copied(),
            locked: if builtin.is_some() { Locked::Free } else { layer.lock.of(&item.name) },
            folder: layer.folder.clone(),
            sha256: pinned.or(bound),
            matcher,
            observe: table.is_some_and(|table| table.mode == Some(Mode::Observe)),
            on_failure: floor.on_failure(table.and_then(|table| table.on_failure).unwrap_or_default()),
            limits: table.and_then(|table| table.limits).unwrap_or_default(),
            data: table.and_then(|table| table.data.as_ref()).map(path),
            settings: table
                .and_then(|table| to_json(table.settings.as_ref()?).ok())
                .unwrap_or_else(|| Value::Object(serde_json::Map::new())),
            may_allow: layer.may_allow,
            most: floor.most,
            floor,
            matches: item.matches.clone(),
            broken,
            builtin,
            component,
        }
    }

    /// Says where the entry is and what it is: file, line, layer, name and component.
    #[must_use]
    pub fn place(&self) -> String {
        let component = shown(&self.component.display().to_string(), 100);
        format!("{}: policy `{}`, component `{component}`", place(&self.layer, self.line), self.name)
    }

    /// Checks the bytes of the component that comes with the program against the entry.
    ///
    /// # Errors
    /// [`ComponentError::Broken`], or [`ComponentError::Digest`] for a pin of another version.
    pub fn check_builtin(&self, found: Digest) -> Result<(), ComponentError> {
        if let Some(broken) = &self.broken {
            return Err(ComponentError::Broken(broken.clone()));
        }
        match self.sha256.filter(|wanted| *wanted != found) {
            Some(wanted) => Err(ComponentError::Digest { path: self.component.clone(), wanted, found }),
            None => Ok(()),
        }
    }

    /// Returns the component's whole path, for messages.
    #[must_use]
    pub fn component_path(&self) -> PathBuf {
        self.folder.join(&self.component)
    }

    /// Checks what was read before against what the entry and the requirements say now.
    ///
    /// # Errors
    /// [`ComponentError::Broken`], [`ComponentError::Digest`] or [`ComponentError::Unmet`].
    pub fn check(&self, read: &ComponentBytes) -> Result<(), ComponentError> {
        if let Some(broken) = &self.broken {
            return Err(ComponentError::Broken(broken.clone()));
        }
        let (path, found) = (self.component_path(), read.digest);
        if let Some(wanted) = self.sha256.filter(|wanted| *wanted != found) {
            return Err(ComponentError::Digest { path, wanted, found });
        }
        self.floor.check(found, read.signature.as_deref()).map_err(|unmet| ComponentError::Unmet { path, unmet })
    }
}

/// Reads a policy's component once, at most [`MAX_COMPONENT`] bytes. Checks the pin, and ownership where the layer's own
/// file is the user's or the machine's (R6).
///
/// # Errors
/// A [`ComponentError`] that names the file.
pub fn read_component(entry: &PolicyEntry, user: u32) -> Result<ComponentBytes, ComponentError> {
    if let Some(broken) = &entry.broken {
        return Err(ComponentError::Broken(broken.clone()));
    }
    if let Locked::Refused(why) = &entry.locked {
        return Err(ComponentError::Locked(why.clone()));
    }
    let path = entry.component_path();
    let read = |file: &Path, max| {
        read_inside(&entry.folder, file, owner(&entry.layer, user), max).map_err(ComponentError::Unusable)
    };
    let Some(bytes) = read(&entry.component, MAX_COMPONENT)? else { return Err(ComponentError::Missing(path)) };
    if let Locked::To(policy) = &entry.locked
        && let Some(why) = policy.differs(&entry.component, Digest::of(&bytes))
    {
        return Err(ComponentError::Locked(why));
    }
    let signature = match entry.floor.needs_signature() {
        true => read(&signature_file(&entry.component), MAX_TEXT)?,
        false => None,
    };
    let read = ComponentBytes { digest: Digest::of(&bytes), bytes, signature };
    entry.check(&read)?;
    Ok(read)
}

/// Reads a file inside its own folder once, at most [`MAX_COMPONENT`] bytes. `None`: it does not exist.
///
/// # Errors
/// It cannot be read, is no regular file, is too large, or is a link out of its folder.
pub fn read_file(path: &Path) -> Result<Option<Vec<u8>>, OpenError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    read_inside(folder, Path::new(path.file_name().unwrap_or_default()), None, MAX_COMPONENT)
}

/// Returns where a component's signature is: beside it, with `.sig` appended.
#[must_use]
pub fn signature_file(component: &Path) -> PathBuf {
    let mut name = component.as_os_str().to_owned();
    name.push(".sig");
    name.into()
}

/// Who must own a layer's components: nobody in particular for what only the session or the project vouches for.
pub(super) fn owner(layer: &LayerRef, user: u32) -> Option<u32> {
    match layer.kind() {
        LayerKind::Managed | LayerKind::System | LayerKind::Organisation | LayerKind::User => Some(user),
        LayerKind::Session | LayerKind::Project | LayerKind::Builtin => None,
    }
}

/// Reads a file inside a folder; `None` if it does not exist.
pub(crate) fn read_inside(
    folder: &Path,
    file: &Path,
    owner: Option<u32>,
    max: u64,
) -> Result<Option<Vec<u8>>, OpenError> {
    let path = folder.join(file);
    let io = |error| OpenError::Io(path.clone(), error);
    let folder = match Dir::open_ambient_dir(folder, ambient_authority()) {
        Ok(folder) => folder,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    };
    let mut options = OpenOptions::new();
    // A pipe in its place must not hold us up.
    options.read(true).custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed());
    let handle = match folder.open_with(file, &options) {
        Ok(handle) => handle.into_std(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    };
    let stat = check_regular(&handle, &path)?;
    if let Some(user) = owner {
        check_owner(&stat, user, &path, false)?;
    }
    read_bounded(handle, &path, max).map(Some)
}
