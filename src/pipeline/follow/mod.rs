//! Follow: watch it from start to end.
//!
//! Last in the tree, yet it watches from the middle: a call's guard is made when the call is bound and spent when its answer
//! is clean. Only `pipeline::run` touches both.

pub mod evidence;
pub mod lifecycle;
pub mod pending;
