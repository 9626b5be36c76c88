//! Policy components in a WebAssembly sandbox.
//!
//! Promises: a component gets the facts of one call and nothing else (no clock, file, socket or randomness; no WASI is
//! linked); it ends within its time, fuel, memory, stack and answer size; nothing of one call is left for the next; whatever
//! it does, the host gets an answer or a typed fault, never a panic.
//!
//! The path of a component: `load` admits bytes (`inspect`: size, digest, validity, imports), has them compiled (`compile`,
//! unless their code is in the `cache`), starts them once and has them look at their settings (`described`); `decide` asks a component on the worker `pool`, `run` in a fresh store;
//! `state` is what it may ask back, `patterns` what it searches with; `answer` reads what it says, `fault` what
//! went wrong. `engine` holds what all components share. `hooks` is what a component of any version can be asked, and
//! `bindings` has a file for each version.
//!
//! Does not fold answers of several components (that is consent's) and does not choose which components are asked.

mod answer;
mod bindings;
pub mod builtin;
pub mod cache;
mod circuit;
pub mod compile;
mod decide;
mod described;
mod engine;
mod fault;
mod hooks;
mod inspect;
mod limits;
mod load;
mod patterns;
mod pool;
pub mod remember;
mod run;
mod settings;
mod state;
mod ticker;
mod turns;

pub use cache::Cache;
pub use compile::{Bounds, Compiling};
pub use decide::{Reused, WasmApproval, WasmConnector, WasmSanitiser};
pub use engine::{Engine, EngineError, Options};
pub use limits::{Class, Limits};
pub use load::{Admission, Admitted};
