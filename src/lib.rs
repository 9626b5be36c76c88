//! Portcullis: a WebAssembly-extensible policy host for MCP tool calls.

pub mod adapters;
pub mod model;
pub mod ports;
