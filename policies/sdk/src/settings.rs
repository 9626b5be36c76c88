//! The settings of a component, described and checked by itself when it is loaded.

pub use crate::settings_bindings::exports::portcullis::policy::settings::{Guest as Settings, Problem};
