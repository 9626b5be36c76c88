//! Portcullis: a WebAssembly-extensible policy host for MCP tool calls.

pub mod config;
pub mod model;
pub mod ports;
