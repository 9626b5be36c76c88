//! Files -> layers -> one resolved view that knows the origin of every value.
//!
//! [`load`] finds every layer (`discover`), reads each file once with its ownership checked (`open`), parses it with errors
//! that name file, line and key (`parse`, `unknown`), and merges what it found (`stack`, `server`, `policy_ref`): ordinary
//! values replace each other, what restricts never does. Projects count only as far as the user trusts them (`trust`).
//! A lock beside a layer file says what its components were (`lock`); `locking` makes it.
//!
//! Requirements of more trusted layers restrict the choices of less trusted ones before anything is merged (`requirements`).
//!
//! Fails closed and never half: an entry that cannot be read denies or is disabled, a layer that cannot be read refuses every
//! call, and [`Resolved`] says so. Prints nothing, starts nothing, resolves no secret; watching for changes is the host's.

pub mod apps;
pub mod builtin;
pub mod data;
mod delegate;
pub mod discover;
pub mod docs;
pub mod endpoint;
pub mod file;
pub mod files;
pub mod found;
pub mod hook_keys;
pub mod hooks;
mod identity;
pub mod lock;
pub mod locking;
pub mod matcher;
pub mod open;
pub mod parse;
pub mod plugins;
pub mod policy_keys;
pub mod policy_ref;
pub mod problem;
mod reading;
pub mod records;
pub mod requirements;
pub mod requirements_keys;
pub mod reviewer;
pub mod server;
pub mod server_keys;
pub mod show;
pub mod signature;
pub mod stack;
pub mod telemetry;
pub mod template;
pub mod transport;
pub mod trust;
mod trust_store;
mod unknown;

pub use discover::{EmbeddedLayer, Places, SessionSources};
pub use found::Found;
pub use problem::Problem;
pub use stack::{EveryCall, LayerState, LayerStatus, Resolved, load, resolve};
