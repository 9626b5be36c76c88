//! What the pipeline needs from outside, as traits with their contracts.
//!
//! Adapters implement them, `host` wires them, tests replace them. A port uses `model` and nothing else of ours.

pub mod approval;
pub mod asks;
pub mod chains;
pub mod clock;
pub mod connector;
pub mod credentials;
pub mod files;
pub mod grants;
pub mod hook;
pub mod inputs;
pub mod memory;
pub mod questions;
pub mod recorder;
pub mod review;
pub mod reviewer;
pub mod sanitiser;
pub mod state;
pub mod telemetry;
pub mod upstream;
