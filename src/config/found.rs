//! What was found where layers are looked for: one reading of all of them, of which any may be put in the place of another's.
//!
//! So whoever reads again can keep a layer as it was while it cannot be used (R8). Projects are never kept: trust says what
//! counts of one that changed (R7).

use std::path::Path;

use super::discover::{Candidate, Content, Places, SessionSources, discover, precedence};
use super::parse::parse;
use crate::model::layer::{LayerKind, LayerRef};

/// Every layer as it was read once, each place of it, weak to strong. Not interpreted: that is
/// [`resolve`](super::stack::resolve).
#[derive(Debug, Clone)]
pub struct Found(Vec<Candidate>);

impl Found {
    /// Reads every layer. Never fails: what cannot be read is found as that.
    #[must_use]
    pub fn read(places: &Places, session: &SessionSources) -> Self {
        Self(discover(places, session))
    }

    /// Returns the layers that can change and be kept: those with a file, projects aside.
    pub fn layers(&self) -> impl Iterator<Item = &LayerRef> {
        self.0.iter().map(|candidate| &candidate.layer).filter(|layer| is_kept(layer))
    }

    /// Says what is wrong with a layer's own text: it cannot be read, it is no layer, or an entry of it cannot be read. `None`
    /// for one that is not there.
    #[must_use]
    pub fn fault(&self, layer: &LayerRef) -> Option<String> {
        let candidate = self.0.iter().find(|candidate| candidate.layer == *layer)?;
        match &candidate.content {
            Content::Absent => None,
            Content::Broken(why) => Some(why.clone()),
            Content::Text(text, _digest) => {
                let problems = match parse(text.as_str(), layer) {
                    Ok(file) => file.problems,
                    Err(problems) => problems,
                };
                problems.first().map(ToString::to_string)
            }
        }
    }

    /// Whether there is no such layer: only that is absence (R8).
    #[must_use]
    pub fn is_absent(&self, layer: &LayerRef) -> bool {
        let is_there = |candidate: &Candidate| !matches!(candidate.content, Content::Absent);
        !self.0.iter().any(|candidate| candidate.layer == *layer && is_there(candidate))
    }

    /// Puts a layer as another reading found it in the place of what this one found.
    pub fn keep(&mut self, layer: &LayerRef, earlier: &Self) {
        let kept = earlier.0.iter().find(|candidate| candidate.layer == *layer);
        if let (Some(place), Some(kept)) = (self.0.iter_mut().find(|candidate| candidate.layer == *layer), kept) {
            place.content = kept.content.clone();
        }
    }

    /// Puts a file in the place of all layers of a kind: what the layers would be with it. Its absence is a failure.
    pub fn stand_in(&mut self, kind: LayerKind, file: &Path, places: &Places) {
        self.0.retain(|candidate| candidate.layer.kind() != kind);
        self.0.push(Candidate::named(kind, file, places));
        self.0.sort_by_key(|candidate| precedence(candidate.layer.kind()));
    }

    /// Returns one layer alone.
    #[must_use]
    pub fn only(&self, layer: &LayerRef) -> Self {
        Self(self.0.iter().filter(|candidate| candidate.layer == *layer).cloned().collect())
    }

    pub(super) fn candidates(&self) -> &[Candidate] {
        &self.0
    }
}

fn is_kept(layer: &LayerRef) -> bool {
    layer.file().is_some() && layer.kind() != LayerKind::Project
}
