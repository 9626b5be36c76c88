//! One file for each version of the interface, and the list of those that this host offers.

mod v0_1;

/// A made-up older version, to show that an adapter can get around no check.
#[cfg(test)]
mod v0_0;

use wasmtime::component::{InstancePre, Linker};

use super::hooks::{Exports, Hooks};
use super::state::State;

/// What takes a linked component that exports these interfaces.
///
/// # Errors
/// If one of them differs from the track's.
type Take = fn(&InstancePre<State>, Exports) -> wasmtime::Result<Box<dyn Hooks>>;

/// A version track that this host offers.
pub(super) struct Track {
    /// Its name: the version without its patch.
    pub(super) name: &'static str,
    /// The patch that it is offered at.
    patch: u32,
    /// The interfaces that a component may import.
    pub(super) offered: &'static [&'static str],
    /// Links what it offers. No WASI, nothing else.
    pub(super) link: fn(&mut Linker<State>) -> wasmtime::Result<()>,
    pub(super) hooks: Take,
}

impl Track {
    /// The version that components are told of.
    pub(super) fn version(&self) -> String {
        format!("{}.{}", self.name, self.patch)
    }

    /// Whether a version is a release of this track.
    pub(super) fn has(&self, version: &str) -> bool {
        let patch = version.strip_prefix(self.name).and_then(|rest| rest.strip_prefix('.'));
        patch.is_some_and(|patch| !patch.is_empty() && patch.bytes().all(|c| c.is_ascii_digit()))
    }
}

/// The track that a component should be made for.
pub(super) const CURRENT: &Track = &v0_1::TRACK;

/// All tracks, the newest first: a component that exports several is asked by the first of them.
pub(super) const TRACKS: &[&Track] = &[
    CURRENT,
    #[cfg(test)]
    &v0_0::TRACK,
];
