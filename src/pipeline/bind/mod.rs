//! Bind: this call gets its server.

pub mod await_ready;
pub mod files;
pub mod hooks;
pub mod noted;
pub mod people;
pub mod prepare;
pub mod waiting;
