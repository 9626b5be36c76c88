//! Portcullis: a WebAssembly-extensible policy host for MCP tool calls.

pub mod adapters;
pub mod config;
pub mod gateway;
pub mod host;
pub mod model;
pub mod pipeline;
pub mod ports;
