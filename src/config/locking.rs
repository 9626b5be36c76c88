//! Making `policies.lock`, and comparing one with what is there (`portcullis policy lock`).
//!
//! Works on the layer files themselves, before trust and requirements: a project is locked first and trusted then, since trust
//! binds its lock (R7). A layer of which something cannot be read keeps the entries that it has: nothing is ever locked half.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::builtin::Builtin;
use super::data::read_folder;
use super::discover::{Candidate, Content, Places, SessionSources, discover};
use super::lock::{FILE, Lock, LockError, LockedPolicy, layer_name, stale_entry};
use super::open::explained;
use super::parse::{PolicyItem, parse};
use super::policy_keys::PolicyTable;
use super::policy_ref::{MAX_COMPONENT, owner, read_inside, signature_file};
use super::problem::Problem;
use super::signature::{MAX_TEXT, PublicKey, Signature};
use crate::model::digest::Digest;
use crate::model::layer::{LayerKind, LayerRef};
use crate::model::text::shown;

/// Which layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// All that are found and have policies.
    All,
    /// Those of one kind.
    Kind(LayerKind),
    /// One layer file, found or not; if it is not, this is its kind.
    File(PathBuf, Option<LayerKind>),
}

/// What became of a layer's entries in its lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// The lock was written with this many entries of the layer.
    Written(usize),
    /// The lock says what is there: this many entries.
    Unchanged(usize),
    /// Only compared: this disagrees, or cannot be read.
    Differs(Vec<Problem>),
    /// Something cannot be read, so that its entries stay as they are.
    Refused(Vec<Problem>),
    /// The lock cannot be written.
    NotWritten(String),
}

/// One layer, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The layer.
    pub layer: LayerRef,
    /// Its lock.
    pub lock: PathBuf,
    /// What became of it.
    pub state: State,
}

/// A layer file with its policies, or why it cannot be read.
struct Sheet {
    layer: LayerRef,
    name: String,
    chosen: bool,
    policies: Result<Vec<(PolicyItem, Option<usize>)>, Vec<Problem>>,
}

/// Writes the locks of the chosen layers, or only compares them. `keys` are those whose signatures count.
#[must_use]
pub fn lock(
    places: &Places,
    session: &SessionSources,
    choice: &Choice,
    keys: &[PublicKey],
    write: bool,
) -> Vec<Report> {
    let mut folders: BTreeMap<PathBuf, Vec<Sheet>> = BTreeMap::new();
    for (candidate, chosen) in candidates(places, session, choice) {
        let Some(file) = candidate.layer.file().map(Path::to_owned) else { continue };
        let folder = std::path::absolute(&candidate.folder).unwrap_or(candidate.folder);
        let policies = match candidate.content {
            Content::Absent => continue,
            Content::Broken(why) => Err(vec![Problem::of_layer(&candidate.layer, why)]),
            Content::Text(text, _) => parse(text.as_str(), &candidate.layer).map(|layer| {
                let line = |item: &PolicyItem| layer.lines.get(&item.key).copied();
                layer.policies.iter().map(|item| (item.clone(), line(item))).collect()
            }),
        };
        let sheets = folders.entry(folder).or_default();
        // One file may be two layers: it has one place in the lock.
        if let Some(same) = sheets.iter_mut().find(|sheet| sheet.name == layer_name(&file)) {
            same.chosen |= chosen;
        } else {
            sheets.push(Sheet { layer: candidate.layer, name: layer_name(&file), chosen, policies });
        }
    }
    let making = Making { user: places.user, keys, write };
    folders
        .iter()
        .filter(|(_, sheets)| sheets.iter().any(|s| s.chosen))
        .flat_map(|(f, s)| making.folder(f, s))
        .collect()
}

fn candidates(places: &Places, session: &SessionSources, choice: &Choice) -> Vec<(Candidate, bool)> {
    let mut found: Vec<_> = discover(places, session).into_iter().map(|candidate| (candidate, false)).collect();
    match choice {
        Choice::All => found.iter_mut().for_each(|(_, chosen)| *chosen = true),
        Choice::Kind(kind) => {
            found.iter_mut().for_each(|(candidate, chosen)| *chosen = candidate.layer.kind() == *kind)
        }
        Choice::File(file, kind) => {
            let file = places.cwd.as_ref().map_or_else(|| file.clone(), |cwd| cwd.join(file));
            let real = file.canonicalize().unwrap_or_else(|_| file.clone());
            let mut known = false;
            for (candidate, chosen) in &mut found {
                *chosen = candidate
                    .layer
                    .file()
                    .is_some_and(|own| own == file || own.canonicalize().is_ok_and(|own| own == real));
                known |= *chosen;
            }
            if !known {
                let kind = kind.unwrap_or_else(|| kind_of(&file));
                found.push((Candidate::named(kind, &file, places), true));
            }
        }
    }
    found
}

/// What a layer file that lies elsewhere is likely to become.
fn kind_of(file: &Path) -> LayerKind {
    let folder = file.parent().and_then(Path::file_name);
    match file.file_name().and_then(|name| name.to_str()) {
        Some("managed.toml") => LayerKind::Managed,
        Some("organisation.toml") => LayerKind::Organisation,
        Some("config.toml") if folder.is_some_and(|folder| folder == ".portcullis") => LayerKind::Project,
        Some(_) | None => LayerKind::Session,
    }
}

struct Making<'a> {
    user: u32,
    keys: &'a [PublicKey],
    write: bool,
}

impl Making<'_> {
    fn folder(&self, folder: &Path, sheets: &[Sheet]) -> Vec<Report> {
        let path = folder.join(FILE);
        let report = |sheet: &Sheet, state| Report { layer: sheet.layer.clone(), lock: path.clone(), state };
        let every = |state: &dyn Fn(&Sheet) -> State| {
            let has =
                |sheet: &&Sheet| sheet.chosen && sheet.policies.as_ref().is_ok_and(|policies| !policies.is_empty());
            sheets.iter().filter(has).map(|sheet| report(sheet, state(sheet))).collect::<Vec<_>>()
        };
        // A lock that can be read and is none is made anew, for all files of the folder.
        let (old, anew) = match Lock::read(folder, self.user) {
            Ok(old) => (old, false),
            Err(LockError::Form { .. }) if self.write => (None, true),
            Err(error @ (LockError::Open(_) | LockError::Newer { .. })) if self.write => {
                return every(&|sheet| State::Refused(vec![Problem::of_layer(&sheet.layer, error.to_string())]));
            }
            Err(error) => {
                return every(&|sheet| State::Differs(vec![Problem::of_layer(&sheet.layer, error.to_string())]));
            }
        };
        let recorded = old.clone().unwrap_or_default();
        let mut next = Vec::new();
        let mut reports = Vec::new();
        for sheet in sheets {
            let then = recorded.of(&sheet.name);
            let kept = || then.values().map(|(policy, _)| policy.clone());
            // A lock counts for every file beside it: one that it does not know would fail from now on.
            let meant = sheet.chosen || anew || self.write && then.is_empty();
            let empty = sheet.policies.as_ref().is_ok_and(Vec::is_empty) && then.is_empty();
            if !meant || empty {
                next.extend(kept());
                continue;
            }
            match self.sheet(folder, sheet) {
                Ok(now) if self.write => {
                    let same = old.is_some() && now.len() == then.len() && kept().eq(now.values().cloned());
                    let state = if same { State::Unchanged(now.len()) } else { State::Written(now.len()) };
                    next.extend(now.into_values());
                    reports.push(report(sheet, state));
                }
                Ok(now) => {
                    let found = match &old {
                        None => vec![Problem::of_layer(&sheet.layer, format!("there is no `{FILE}` beside it"))],
                        Some(_) => differences(folder, sheet, &then, &now),
                    };
                    let same = found.is_empty();
                    reports.push(report(sheet, if same { State::Unchanged(now.len()) } else { State::Differs(found) }));
                }
                Err(problems) => {
                    next.extend(kept());
                    let state = if self.write { State::Refused(problems) } else { State::Differs(problems) };
                    reports.push(report(sheet, state));
                }
            }
        }
        let changed = reports.iter().any(|report| matches!(report.state, State::Written(_)));
        if !self.write || !changed {
            return reports;
        }
        next.extend(others(folder, sheets, &recorded));
        // A first lock would refuse the sound policies, too, of a file that could not be locked.
        let refused = reports.iter().find(|report| matches!(report.state, State::Refused(_)));
        let written = match refused.filter(|_| old.is_none()) {
            Some(other) => {
                Err(format!("the {} layer beside it cannot be locked, and a lock counts for both", other.layer))
            }
            None => Lock::new(next).text().map_err(|error| error.to_string()).and_then(|text| {
                let name = shown(&path.display().to_string(), 300);
                write(&path, &text).map_err(|error| format!("`{name}` cannot be written: {error}"))
            }),
        };
        if let Err(why) = written {
            for report in reports.iter_mut().filter(|report| matches!(report.state, State::Written(_))) {
                report.state = State::NotWritten(why.clone());
            }
        }
        reports
    }

    /// What is there for one layer file, by the policies' names.
    fn sheet(&self, folder: &Path, sheet: &Sheet) -> Result<BTreeMap<String, LockedPolicy>, Vec<Problem>> {
        let policies = sheet.policies.as_ref().map_err(Clone::clone)?;
        let (mut made, mut problems) = (BTreeMap::new(), Vec::new());
        for (item, line) in policies {
            match &item.entry {
                Err(problem) => problems.push(problem.clone()),
                Ok(table) if Builtin::named(&table.component).is_some() => {}
                Ok(table) => match self.policy(folder, sheet, item, table) {
                    Ok(policy) => _ = made.insert(item.name.clone(), policy),
                    Err(why) => {
                        let message = format!("of the policy `{}`: {why}", item.name);
                        problems.push(Problem::at(&sheet.layer, *line, &item.key, message));
                    }
                },
            }
        }
        if problems.is_empty() { Ok(made) } else { Err(problems) }
    }

    fn policy(
        &self,
        folder: &Path,
        sheet: &Sheet,
        item: &PolicyItem,
        table: &PolicyTable,
    ) -> Result<LockedPolicy, String> {
        let owner = owner(&sheet.layer, self.user);
        let read = |file: &Path, max| read_inside(folder, file, owner, max).map_err(|error| explained(&error));
        let component = Path::new(&table.component);
        let missing =
            || format!("the component `{}` does not exist", shown(&folder.join(component).display().to_string(), 300));
        let bytes = read(component, MAX_COMPONENT)?.ok_or_else(missing)?;
        let sha256 = Digest::of(&bytes);
        if let Some(pin) = table.sha256.as_ref().and_then(|text| Digest::parse(text).ok())
            && pin != sha256
        {
            return Err(format!("the component has the SHA-256 {sha256}, not the {pin} that its entry names"));
        }
        let signer = match self.keys.is_empty() {
            true => None,
            false => read(&signature_file(component), MAX_TEXT)?.and_then(|text| self.signer(sha256, &text)),
        };
        let data = match &table.data {
            None => None,
            Some(data) => {
                let files = read_folder(folder, Path::new(data), owner).map_err(|error| explained(&error))?;
                Some(files.digest())
            }
        };
        Ok(LockedPolicy {
            layer: sheet.name.clone(),
            name: item.name.clone(),
            component: table.component.clone(),
            sha256,
            size: bytes.len() as u64,
            signer,
            data,
        })
    }

    /// The id of the known key that signed the component.
    fn signer(&self, component: Digest, text: &[u8]) -> Option<String> {
        let signature = Signature::parse(text).ok()?;
        let signed = |key: &&PublicKey| signature.verify(component, std::slice::from_ref(*key)).is_ok();
        self.keys.iter().find(signed).map(PublicKey::id)
    }
}

/// The recorded policies of layer files that were not looked for and are still there.
fn others(folder: &Path, sheets: &[Sheet], recorded: &Lock) -> Vec<LockedPolicy> {
    let known: BTreeSet<_> = sheets.iter().map(|sheet| sheet.name.clone()).collect();
    let left = recorded.layers().into_iter().filter(|name| !known.contains(name));
    let there = left.filter(|name| folder.join(name).symlink_metadata().is_ok());
    there.flat_map(|name| recorded.of(&name).into_values().map(|(policy, _)| policy)).collect()
}

/// Everything that a layer's entries in the lock and what is there disagree about.
fn differences(
    folder: &Path,
    sheet: &Sheet,
    then: &BTreeMap<String, (LockedPolicy, Option<usize>)>,
    now: &BTreeMap<String, LockedPolicy>,
) -> Vec<Problem> {
    let mut found = Vec::new();
    for (item, line) in sheet.policies.iter().flatten() {
        let Some(now) = now.get(&item.name) else { continue };
        let mut say = |what: String| {
            let message = format!("of the policy `{}`: {what}", item.name);
            found.push(Problem::at(&sheet.layer, *line, &item.key, message));
        };
        let Some((then, _)) = then.get(&item.name) else {
            say(format!("`{FILE}` has no entry for it"));
            continue;
        };
        let bytes = then.differs(Path::new(&now.component), now.sha256);
        bytes.into_iter().chain(then.data_differs(now.data)).for_each(&mut say);
        if then.size != now.size {
            say(format!("`{FILE}` records {} bytes, the component has {}", then.size, now.size));
        }
        if then.signer != now.signer {
            let said = |key: &Option<String>| key.clone().map_or_else(|| "nobody".to_owned(), |key| shown(&key, 64));
            say(format!("`{FILE}` records {} as its signer, it is {}", said(&then.signer), said(&now.signer)));
        }
    }
    let gone = then.iter().filter(|(name, _)| !now.contains_key(*name));
    found.extend(gone.map(|(name, (_, line))| stale_entry(&sheet.layer, folder, name, *line)));
    found
}

/// Whole or not at all: a reader never sees half of a lock.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let fresh = path.with_file_name(format!(".{}.lock", uuid::Uuid::new_v4()));
    let mut options = std::fs::OpenOptions::new();
    let written = options.write(true).create_new(true).mode(0o644).open(&fresh).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&fresh, path)
    });
    if written.is_err() {
        // It may not even be there.
        let _ = std::fs::remove_file(&fresh);
    }
    written
}
