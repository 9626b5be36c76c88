//! Sanitisers: what of an answer may pass?
//!
//! A sanitiser removes and never writes: it names byte ranges, and the host puts its own placeholders there.

use alloc::string::String;
use alloc::vec::Vec;

pub use crate::bindings::portcullis::policy::types::{Label, Output, Place, Span, Target};
pub use crate::sanitiser_bindings::exports::portcullis::policy::sanitiser::{
    Class, Decision, Edit, Guest as Sanitiser, Outcome, Replacement,
};

/// Everything may pass.
#[must_use]
pub fn pass() -> Decision {
    Decision { rule: None, outcome: Outcome::Pass, labels: Vec::new() }
}

/// These edits, and the rest may pass. No edits are a pass.
///
/// `rule` is `[a-z0-9._-]`, at most 64 characters; anything else makes the host discard the answer as a fault.
#[must_use]
pub fn edit(rule: &str, edits: Vec<Edit>) -> Decision {
    if edits.is_empty() {
        return pass();
    }
    Decision { rule: Some(String::from(rule)), outcome: Outcome::Edit(edits), labels: Vec::new() }
}

/// Nothing of the answer may pass; `text` is for people and records.
#[must_use]
pub fn withhold(rule: &str, text: &str) -> Decision {
    Decision { rule: Some(String::from(rule)), outcome: Outcome::Withhold(String::from(text)), labels: Vec::new() }
}

/// The bytes from `start` to `end` of a target become a placeholder.
#[must_use]
pub fn replace(target: u32, start: u32, end: u32, class: Class) -> Edit {
    Edit::Replace(Replacement { target, start, end, class })
}
