//! Implementations of the ports. None sees the pipeline or another adapter.

pub mod mcp;
