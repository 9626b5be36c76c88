//! Emit: show it.
//!
//! What a model cannot take becomes text (`media`, a step of later work), the layers' sanitisers edit what is left, and the
//! result is the one answer that every view is rendered from.

pub mod finish;
pub mod sanitise;
pub mod views;
