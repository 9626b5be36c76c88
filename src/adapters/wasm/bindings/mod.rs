//! The host's side of each released version of the interface, one file a track.

pub(super) mod v0_1;
