//! Dispatch: run it.
//!
//! A lease is taken, everything that must happen just before the hand-over happens under it, the request goes to the
//! transport, the lease ends. The wait for the answer holds nothing. File arguments, a step of later work, go between
//! `barrier` and `meta`.

pub mod barrier;
pub mod call;
pub mod meta;
pub mod questions;
pub mod record;
