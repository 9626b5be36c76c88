//! Implementations of ports. None sees the pipeline or a sibling.

pub mod wasm;
