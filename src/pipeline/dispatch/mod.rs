//! Dispatch: run it.
//!
//! A lease is taken, everything that must happen just before the hand-over happens under it, the request goes to the
//! transport, the lease ends. The wait for the answer holds nothing. Files are uploaded outside of any lease, between two checks.

pub mod barrier;
pub mod call;
pub mod files;
pub mod memory;
pub mod meta;
pub mod questions;
pub mod record;
