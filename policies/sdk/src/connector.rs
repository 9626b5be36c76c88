//! Policies about the tools of App connectors: may one be seen and called, and in which mode?

use alloc::string::String;

pub use crate::bindings::portcullis::policy::types::{AppTool, Connector, Hints, Mode};
pub use crate::connector_bindings::exports::portcullis::policy::connector::{Decision, Guest as ConnectorPolicy};

/// No opinion: what other layers say decides.
#[must_use]
pub fn no_opinion() -> Decision {
    Decision { rule: None, enabled: None, mode: None }
}

/// The tool may not be seen or called. Nothing enables it again.
///
/// `rule` is `[a-z0-9._-]`, at most 64 characters; anything else makes the host discard the answer as a fault.
#[must_use]
pub fn disabled(rule: &str) -> Decision {
    Decision { rule: Some(String::from(rule)), enabled: Some(false), mode: None }
}

/// The tool may be seen and called, and `mode` says how its calls are approved.
#[must_use]
pub fn enabled(rule: &str, mode: Mode) -> Decision {
    Decision { rule: Some(String::from(rule)), enabled: Some(true), mode: Some(mode) }
}
