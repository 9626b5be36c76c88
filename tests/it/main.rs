//! The one integration binary: a file is a promise.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod client_wire;
mod gateway;
mod gateway_asks;
mod support;
mod upstream;
mod upstream_process;
