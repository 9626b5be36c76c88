//! Implementations of the ports. None sees the pipeline or a sibling; they share `children`.

mod children;
pub mod clock;
pub mod files;
pub mod hooks;
pub mod mcp;
pub mod oauth;
pub mod record;
pub mod review;
pub mod store;
pub mod telemetry;
pub mod wasm;
