//! The one integration binary: a file is a promise.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(unreachable_pub, reason = "nothing of a test binary is reachable")]

mod fakes;
mod support;

mod agent;
mod apps;
mod architecture;
mod bad_policies;
mod bad_tools;
mod barrier;
mod baseline;
mod cli;
mod client_wire;
mod clients;
mod compile_fail;
mod compiling;
mod config;
mod connectors;
mod consent;
mod explain;
mod faults;
mod files;
mod fleet;
mod gateway;
mod gateway_asks;
mod golden;
mod http;
mod inspector;
mod interop;
mod isolation;
mod layers;
mod lifecycle;
mod memory;
mod oauth;
mod order;
mod pins;
mod plugins;
mod principals;
mod questions;
mod relay;
mod reload;
mod requirements;
mod sanitise;
mod search;
mod secrets;
mod seen;
mod shown;
mod state;
mod stdio;
mod steps;
mod streams;
mod supply;
mod upstream;
mod upstream_process;
mod vectors;
