//! Policy components in a WebAssembly sandbox.
//!
//! Promises: a component gets the facts of one call and nothing else (no clock, file, socket or randomness; no WASI is
//! linked); it ends within its time, fuel, memory, stack and answer size; nothing of one call is left for the next; whatever
//! it does, the host gets an answer or a typed fault, never a panic.
//!
//! The path of a component: `load` admits bytes (size, digest, validity, imports) and compiles them; `decide` asks the
//! component about one call on the worker `pool`, in a fresh store; `linker` is what it may ask back; `fault` says what
//! went wrong. `engine` holds what all components share.
//!
//! Does not fold answers of several components (that is consent's) and does not choose which components are asked.

mod bindings;

pub mod builtin;
mod decide;
mod engine;
mod fault;
mod inspect;
mod limits;
mod linker;
mod load;
mod pool;
mod settings;
mod ticker;

pub use decide::WasmApproval;
pub use engine::{Engine, EngineError};
pub use limits::{Class, Limits};
