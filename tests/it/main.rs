//! The one integration binary: a file is a promise.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod fakes;
mod support;

mod barrier;
mod baseline;
mod consent;
mod fleet;
mod isolation;
mod lifecycle;
mod order;
mod vectors;
