//! What was found -> the layers in force, and what became of the others.
//!
//! A layer that is there but cannot be read refuses every call (R8), except a project's, which counts only as far as the user
//! trusts it (R7).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::discover::{Candidate, Content, Places};
use super::found::Found;
use super::lock::{LayerLock, Lock};
use super::parse::{LayerFile, parse};
use super::problem::Problem;
use super::requirements;
use super::stack::{EveryCall, Layer, LayerState, LayerStatus};
use super::trust::{Standing, TrustStore, TrustedProject};
use crate::model::digest::Digest;
use crate::model::layer::{LayerKind, LayerRef};

/// The layers that have been read so far, and what became of the others.
pub(super) struct Reading<'a> {
    places: &'a Places,
    /// Read when the first project asks for it.
    store: Option<Result<TrustStore, String>>,
    /// The lock of each folder, read once for all layers in it.
    locks: BTreeMap<PathBuf, Result<Option<Lock>, String>>,
    pub(super) layers: Vec<Layer>,
    pub(super) statuses: Vec<LayerStatus>,
    pub(super) refusals: Vec<EveryCall>,
    pub(super) problems: Vec<Problem>,
}

impl<'a> Reading<'a> {
    /// Reads all layers that were found.
    pub(super) fn of(places: &'a Places, found: &Found) -> Self {
        let mut reading = Self {
            places,
            store: None,
            locks: BTreeMap::new(),
            layers: vec![],
            statuses: vec![],
            refusals: vec![],
            problems: vec![],
        };
        let refused = requirements::refuses_projects(found.candidates());
        for candidate in found.candidates() {
            match &refused {
                Some(by) if candidate.layer.kind() == LayerKind::Project => reading.not_read(candidate, by),
                _ => reading.read(candidate),
            }
        }
        reading.check_managed();
        reading
    }

    fn read(&mut self, candidate: &Candidate) {
        match &candidate.content {
            // R7: what a project no longer says still holds if the user trusted it.
            Content::Absent => match self.record(candidate) {
                Ok(Some(record)) => self.changed(candidate, None, "its file went away".to_owned(), record),
                Ok(None) => self.status(candidate, None, LayerState::Absent),
                Err(why) => self.unknown(candidate, None, why),
            },
            Content::Broken(why) => match self.record(candidate) {
                Ok(Some(record)) => self.changed(candidate, None, format!("its file cannot be read ({why})"), record),
                Ok(None) => self.broken(candidate, None, why.clone(), vec![]),
                Err(why) => self.unknown(candidate, None, why),
            },
            Content::Text(text, digest) => {
                let (text, digest) = (text.as_str(), *digest);
                if candidate.layer.kind() == LayerKind::Project {
                    self.project(candidate, text, digest);
                } else {
                    self.apply(candidate, text, digest, None);
                }
            }
        }
    }

    /// `projects = false` of a requirement. The user's own file that lies in a project still restricts (R6).
    fn not_read(&mut self, candidate: &Candidate, by: &LayerRef) {
        let why = format!("`requirements.projects` of the {by} layer");
        match &candidate.content {
            Content::Text(text, digest) if candidate.users => self.restrict(candidate, text.as_str(), *digest),
            Content::Broken(why) if candidate.users => self.broken(candidate, None, why.clone(), vec![]),
            Content::Absent => self.status(candidate, None, LayerState::Absent),
            Content::Text(..) | Content::Broken(_) => {
                self.problems.push(Problem::of_layer(&candidate.layer, format!("is not read: refused by {why}")));
                self.status(candidate, None, LayerState::Refused(why));
            }
        }
    }

    /// A project's layer counts only as far as the user trusts what it is now (R7).
    fn project(&mut self, candidate: &Candidate, text: &str, digest: Digest) {
        let standing = match self.store() {
            _ if candidate.layer.file().is_none() => return self.apply(candidate, text, digest, None),
            Ok(store) => store.check(candidate, text, digest),
            Err(why) => Standing::Unknown(why),
        };
        match standing {
            Standing::Trusted(trusted) => self.apply(candidate, text, digest, Some(trusted)),
            Standing::Untrusted | Standing::Unknown(_) if candidate.users => self.restrict(candidate, text, digest),
            Standing::Untrusted => {
                let message = "is ignored until this project is trusted; `portcullis trust` shows what that would mean";
                self.problems.push(Problem::of_layer(&candidate.layer, message));
                self.status(candidate, Some(digest), LayerState::Untrusted);
            }
            Standing::Unknown(why) => self.unknown(candidate, Some(digest), why),
            Standing::Changed { what, record } => self.changed(candidate, Some(digest), what, record),
        }
    }

    /// What the user trusted may restrict: without the record nobody knows, so nothing runs (R8).
    fn unknown(&mut self, candidate: &Candidate, digest: Option<Digest>, why: String) {
        let refusal = "all calls are refused, because it cannot be told whether the project layer is trusted";
        self.refuse(&candidate.layer, "layer-unreadable", format!("{refusal}: {why}"));
        self.status(candidate, digest, LayerState::Broken(why));
    }

    /// Notes a reason to refuse every call, once: several layers may have the same.
    fn refuse(&mut self, layer: &LayerRef, rule: &'static str, text: String) {
        if !self.refusals.iter().any(|known| known.text == text) {
            self.refusals.push(EveryCall { layer: layer.clone(), rule, text });
        }
    }

    /// R6: the user's own layer that lies in a project restricts, trusted or not; it defines nothing and vouches for nothing.
    fn restrict(&mut self, candidate: &Candidate, text: &str, digest: Digest) {
        match parse(text, &candidate.layer) {
            Ok(file) => {
                let message = "lies inside this project and is not trusted: until `portcullis trust` it only restricts";
                self.problems.push(Problem::of_layer(&candidate.layer, message));
                self.problems.extend(file.problems.iter().cloned());
                let layer = self.layer(candidate, file, None);
                self.layers.push(Layer { defines: false, may_allow: false, ..layer });
                self.status(candidate, Some(digest), LayerState::Untrusted);
            }
            Err(found) => {
                let why = found.first().map(ToString::to_string).unwrap_or_default();
                self.broken(candidate, Some(digest), why, found);
            }
        }
    }

    /// R7: the last trusted copy keeps restricting; it defines nothing and vouches for nothing.
    fn changed(&mut self, candidate: &Candidate, digest: Option<Digest>, what: String, record: TrustedProject) {
        let message = format!("{what} since this project was trusted; until it is trusted again it only restricts");
        self.problems.push(Problem::of_layer(&candidate.layer, &message));
        match parse(record.text(), &candidate.layer) {
            Ok(file) => {
                let layer = self.layer(candidate, file, Some(record));
                self.layers.push(Layer { defines: false, may_allow: false, ..layer });
            }
            // An older version took it: what it restricts is not known any more, so nothing runs (R8).
            Err(found) => {
                let why = found.first().map(ToString::to_string).unwrap_or_default();
                let refusal = "all calls are refused, because what was trusted of the project layer cannot be read";
                let text = format!("{refusal}: {why}; trust the project again by `portcullis trust`");
                self.refuse(&candidate.layer, "layer-unreadable", text);
            }
        }
        self.status(candidate, digest, LayerState::Changed(what));
    }

    fn record(&mut self, candidate: &Candidate) -> Result<Option<TrustedProject>, String> {
        let file = candidate.layer.file().filter(|_| candidate.layer.kind() == LayerKind::Project);
        let Some(file) = file.map(ToOwned::to_owned) else { return Ok(None) };
        Ok(self.store()?.get(&file).cloned())
    }

    fn store(&mut self) -> Result<TrustStore, String> {
        let open = || match self.places.trust_store() {
            Some(path) => TrustStore::open(&path, self.places.user).map_err(|error| super::open::explained(&error)),
            None => Ok(TrustStore::empty()),
        };
        self.store.get_or_insert_with(open).clone()
    }

    fn apply(&mut self, candidate: &Candidate, text: &str, digest: Digest, trusted: Option<TrustedProject>) {
        match parse(text, &candidate.layer) {
            Ok(file) => {
                self.problems.extend(file.problems.iter().cloned());
                let lines = Arc::new(file.lines.clone());
                let layer = self.layer(candidate, file, trusted);
                self.layers.push(layer);
                let layer = candidate.layer.clone();
                self.statuses.push(LayerStatus { layer, digest: Some(digest), state: LayerState::Applied, lines });
            }
            Err(found) => {
                let why = found.first().map(ToString::to_string).unwrap_or_default();
                self.broken(candidate, Some(digest), why, found);
            }
        }
    }

    fn layer(&mut self, candidate: &Candidate, file: LayerFile, trusted: Option<TrustedProject>) -> Layer {
        let (kind, user) = (candidate.definer.kind(), self.places.user);
        let lock = candidate.layer.file().map(|path| {
            let read = || Lock::read(&candidate.folder, user).map_err(|error| error.to_string());
            LayerLock::new(self.locks.entry(candidate.folder.clone()).or_insert_with(read), path)
        });
        let home = self.places.cwd.clone().unwrap_or_default();
        Layer {
            reference: candidate.layer.clone(),
            definer: candidate.definer.clone(),
            may_allow: kind.may_allow_by_default() || trusted.as_ref().is_some_and(|t| t.may_allow),
            defines: true,
            users: candidate.users,
            folder: candidate.folder.clone(),
            cwd: candidate.project.clone().unwrap_or(home),
            variables: (kind == LayerKind::Project)
                .then(|| trusted.as_ref().map(|t| t.variables.clone()).unwrap_or_default()),
            pins: trusted.map(|t| t.pins()),
            lock: lock.unwrap_or_default(),
            file,
        }
    }

    /// R8: whatever is there and cannot be read refuses every call, unless a project wrote it.
    fn broken(&mut self, candidate: &Candidate, digest: Option<Digest>, why: String, found: Vec<Problem>) {
        if candidate.layer.kind() != LayerKind::Project || candidate.users {
            let kind = candidate.layer.kind().as_str();
            let text = format!("all calls are refused, because the {kind} layer cannot be read: {why}");
            self.refuse(&candidate.layer, "layer-unreadable", text);
        }
        if found.is_empty() {
            self.problems.push(Problem::of_layer(&candidate.layer, &why));
        }
        self.problems.extend(found);
        self.status(candidate, digest, LayerState::Broken(why));
    }

    fn status(&mut self, candidate: &Candidate, digest: Option<Digest>, state: LayerState) {
        self.statuses.push(LayerStatus { layer: candidate.layer.clone(), digest, state, lines: Arc::default() });
    }

    /// R8: `require_managed` makes the absence of the machine's managed file a refusal; `--managed FILE` is no substitute.
    fn check_managed(&mut self) {
        let asks = |layer: &&Layer| {
            (layer.reference.kind() != LayerKind::Project || layer.users)
                && layer.file.settings.require_managed == Some(true)
        };
        let managed = |layer: &Layer| layer.definer.kind() == LayerKind::Managed;
        if let Some(layer) = self.layers.iter().find(asks)
            && !self.layers.iter().any(managed)
        {
            let by = layer.reference.kind().as_str();
            let message = "all calls are refused, because there is no managed layer in force and the";
            // What is missing is the managed layer itself.
            let text = format!("{message} {by} layer sets `require_managed`");
            self.refuse(&LayerRef::new(LayerKind::Managed), "managed-required", text);
        }
    }
}
