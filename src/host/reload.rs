//! Reading the configuration, at start and again when it changed (R8, R19).
//!
//! Every reading takes all layers anew and loads what they name. A layer of which anything cannot be used stays as it was when
//! all of it last could, its components and data included; the other layers' changes are in force all the same. Of a hook its
//! entry is kept, and its program is whatever is there. A layer that
//! has been kept for [`MAX_KEPT`] counts as it is: what is wrong with it fails closed. At start there is nothing to keep, so
//! that a bad entry fails alone.
//!
//! Projects are never kept: trust says what counts of one that changed (R7). Does not watch: that is [`super::watch`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::entries::{Files, policies_of};
use super::wire::places_of_calls;
use crate::adapters::wasm::Engine;
use crate::config::{Found, Places, Resolved, SessionSources, resolve};
use crate::model::layer::LayerRef;
use crate::model::verdict::Fault;
use crate::pipeline::admit::slots::Slots;
use crate::ports::approval::{Bound, PolicySet};

/// How long a layer that cannot be used is kept as it was.
pub const MAX_KEPT: Duration = Duration::from_secs(60 * 60);

/// Reads the configuration again and again, and knows what of it could last be used.
pub struct Reloader {
    places: Places,
    session: SessionSources,
    engine: Engine,
    good: BTreeMap<LayerRef, Good>,
    kept: BTreeMap<LayerRef, Kept>,
    read_from: BTreeSet<PathBuf>,
    fixed: Option<String>,
    calls: Option<Slots>,
}

/// The files of every policy, by layer and key.
type ReadFiles = BTreeMap<(LayerRef, String), Files>;

/// A layer when all of it could be used.
struct Good {
    text: Found,
    files: BTreeMap<String, Files>,
}

/// A layer that cannot be used as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The layer.
    pub layer: LayerRef,
    /// What is wrong with it.
    pub why: String,
    /// Since when.
    pub since: Instant,
    /// Whether it was kept for too long: then it counts as it is, and what is wrong with it fails closed.
    pub expired: bool,
}

/// What one reading came to.
#[derive(Debug)]
pub struct Loaded {
    /// The configuration in force.
    pub resolved: Resolved,
    /// What decides by it.
    pub policies: PolicySet,
    /// The layers that are kept as they were, and those that were for too long.
    pub kept: Vec<Kept>,
    /// Whether something changed that a running host does not take up: how tools are named, bounds on all calls, and where records go.
    pub needs_restart: bool,
    /// The places of all calls together: those of the first reading.
    pub calls: Slots,
}

impl Reloader {
    /// Makes one that has read nothing yet. `engine` compiles; what it keeps, it keeps for every reading.
    #[must_use]
    pub fn new(places: Places, session: SessionSources, engine: Engine) -> Self {
        Self {
            places,
            session,
            engine,
            good: BTreeMap::new(),
            kept: BTreeMap::new(),
            read_from: BTreeSet::new(),
            fixed: None,
            calls: None,
        }
    }

    /// Reads all layers and loads what they name, as of `now`. Blocks while it compiles: call it off the reactor. Never fails:
    /// what is wrong is in what is returned, and refuses what it must.
    pub fn load(&mut self, now: Instant) -> Loaded {
        let mut found = Found::read(&self.places, &self.session);
        let layers: Vec<LayerRef> = found.layers().cloned().collect();
        let mut bad: BTreeMap<LayerRef, String> = BTreeMap::new();
        bad.extend(layers.iter().filter_map(|layer| Some((layer.clone(), found.fault(layer)?))));
        // Each round keeps one more layer, so the rounds end.
        let (resolved, policies, files) = loop {
            for layer in bad.keys().filter(|layer| self.may_keep(layer, now)) {
                if let Some(good) = self.good.get(layer) {
                    found.keep(layer, &good.text);
                }
            }
            let (resolved, policies, files) = self.assemble(&found, &bad, now);
            let failed = failing(&policies).filter(|(layer, _)| !bad.contains_key(layer) && layers.contains(layer));
            let failed: BTreeMap<_, _> = failed.collect();
            let again = failed.keys().any(|layer| self.may_keep(layer, now));
            bad.extend(failed);
            if !again {
                break (resolved, policies, files);
            }
        };
        self.read_from = read_from(&self.places, &resolved, &files);
        self.note(&layers, &found, &bad, files, now);
        let (takes, telemetry) = (resolved.output.input_modalities.value, &resolved.telemetry);
        let records = (&resolved.records, takes, telemetry);
        let fixed = format!("{:?} {:?} {records:?}", resolved.gateway, resolved.limits);
        let needs_restart = self.fixed.replace(fixed.clone()).is_some_and(|before| before != fixed);
        let calls = self.calls.get_or_insert_with(|| places_of_calls(&resolved)).clone();
        Loaded { resolved, policies, kept: self.kept.values().cloned().collect(), needs_restart, calls }
    }

    /// Returns the files and folders that the last reading was from, and those where something might appear.
    #[must_use]
    pub fn read_from(&self) -> &BTreeSet<PathBuf> {
        &self.read_from
    }

    /// Whether there is something to keep of a layer, and it may be kept still.
    fn may_keep(&self, layer: &LayerRef, now: Instant) -> bool {
        let since = self.kept.get(layer).map_or(now, |kept| kept.since);
        self.good.contains_key(layer) && now.saturating_duration_since(since) < MAX_KEPT
    }

    fn assemble(
        &self,
        found: &Found,
        bad: &BTreeMap<LayerRef, String>,
        now: Instant,
    ) -> (Resolved, PolicySet, ReadFiles) {
        let resolved = resolve(&self.places, found);
        let mut files = BTreeMap::new();
        let policies = policies_of(&resolved, &self.engine, |entry| {
            let kept = bad.contains_key(&entry.layer) && self.may_keep(&entry.layer, now);
            let earlier = self.good.get(&entry.layer).filter(|_| kept).and_then(|good| good.files.get(&entry.key));
            // What was kept is held to what more trusted layers demand by now.
            let read = earlier.map_or_else(|| Files::read(entry, self.places.user), |files| files.under(entry));
            files.insert((entry.layer.clone(), entry.key.clone()), read.clone());
            read
        });
        (resolved, policies, files)
    }

    /// Remembers what could be used, and since when the rest cannot.
    fn note(
        &mut self,
        layers: &[LayerRef],
        found: &Found,
        bad: &BTreeMap<LayerRef, String>,
        files: ReadFiles,
        now: Instant,
    ) {
        let mut by_layer: BTreeMap<LayerRef, BTreeMap<String, Files>> = BTreeMap::new();
        for ((layer, key), read) in files {
            by_layer.entry(layer).or_default().insert(key, read);
        }
        for layer in layers {
            let Some(why) = bad.get(layer) else {
                if self.kept.remove(layer).is_some() {
                    tracing::info!(?layer, "the layer is in order again");
                }
                let files = by_layer.remove(layer).unwrap_or_default();
                if found.is_absent(layer) {
                    self.good.remove(layer);
                    continue;
                }
                self.good.insert(layer.clone(), Good { text: found.only(layer), files });
                continue;
            };
            // Without anything to go back to it is not kept: it counts as it is, from the start.
            if !self.good.contains_key(layer) {
                continue;
            }
            let expired = !self.may_keep(layer, now);
            let before = self.kept.get(layer);
            if before.is_none_or(|before| before.expired != expired || before.why != *why) {
                let minutes = MAX_KEPT.as_secs() / 60;
                match expired {
                    false => tracing::warn!(
                        ?layer,
                        why,
                        "the layer cannot be used as it is now; it stays as it was, for at most {minutes} minutes"
                    ),
                    true => tracing::error!(
                        ?layer,
                        why,
                        "the layer could not be used for {minutes} minutes; it counts as it is, and what is wrong refuses"
                    ),
                }
            }
            let since = before.map_or(now, |before| before.since);
            let kept = Kept { layer: layer.clone(), why: why.clone(), since, expired };
            self.kept.insert(layer.clone(), kept);
        }
    }
}

/// Every layer of which a component or a hook cannot be used, and why.
fn failing(policies: &PolicySet) -> impl Iterator<Item = (LayerRef, String)> + '_ {
    fn of<C: ?Sized>(bound: &Bound<C>) -> Option<(LayerRef, String)> {
        let fault: &Fault = bound.component.as_ref().err()?;
        Some((bound.source.layer.clone(), format!("`{}`: {fault}", bound.source.component)))
    }
    // A component that cannot be loaded stands at every decision point.
    let reviewers = policies.reviewers.iter().filter_map(|bound| {
        let fault = bound.reviewer.as_ref().err()?;
        Some((bound.source.layer.clone(), format!("`{}`: {fault}", bound.source.component)))
    });
    let hooks = policies.hooks.iter().filter_map(|hook| {
        let fault = hook.program.as_ref().err()?;
        Some((hook.source.layer.clone(), format!("`{}`: {fault}", hook.source.component)))
    });
    policies.components.iter().filter_map(of).chain(reviewers).chain(hooks)
}

/// What a reading depends on: a change of it is a reason for the next one.
fn read_from(places: &Places, resolved: &Resolved, files: &ReadFiles) -> BTreeSet<PathBuf> {
    let layers = resolved.layers.iter().filter_map(|status| status.layer.file());
    let mut all: BTreeSet<PathBuf> = layers.map(PathBuf::from).collect();
    all.extend(places.trust_store());
    all.extend(resolved.hooks.iter().flat_map(|hook| hook.files()).map(PathBuf::from));
    all.extend(resolved.reviewers.iter().flat_map(|reviewer| reviewer.files()).map(PathBuf::from));
    for entry in &resolved.policies {
        if entry.builtin.is_none() {
            all.insert(entry.component_path());
        }
        // A folder that cannot be read may be anything, the whole disk included.
        let read = files.get(&(entry.layer.clone(), entry.key.clone()));
        if read.is_some_and(|read| matches!(read.data, Ok(Some(_)))) {
            all.extend(entry.data.as_ref().map(|data| entry.folder.join(data)));
        }
    }
    all
}
