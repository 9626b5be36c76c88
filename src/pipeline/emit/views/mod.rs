//! The forms in which one clean answer is shown.
//!
//! A view never changes the answer: all views render from the same one.

pub mod model;
pub mod stale;

pub use crate::model::truncate;
