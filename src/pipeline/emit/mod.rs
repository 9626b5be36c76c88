//! Emit: show it.
//!
//! What a model cannot take becomes text (`media`), the layers' sanitisers edit what is left, and the result is the one
//! answer that every view is rendered from.

pub mod finish;
pub mod media;
pub mod sanitise;
pub mod views;
