//! Implementations of the ports. None sees the pipeline or a sibling.

pub mod wasm;
