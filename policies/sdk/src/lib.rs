//! The kit for writing Portcullis policy components in Rust.
//!
//! A policy is a type with one function, and one line that exports it:
//!
//! ```ignore
//! #![cfg_attr(target_arch = "wasm32", no_std)]
//! use portcullis_policy::{Call, Decision, Policy, abstain, deny, policy};
//!
//! struct NoDeletes;
//!
//! impl Policy for NoDeletes {
//!     fn evaluate(call: &Call) -> Decision {
//!         if call.name().starts_with("delete") { deny("no-deletes", "nothing is deleted here") } else { abstain() }
//!     }
//! }
//!
//! policy!(NoDeletes);
//! ```
//!
//! In a component the kit also brings what a `no_std` guest needs: an allocator that serves an ordinary decision from a
//! static arena (growing memory is the one thing in a sandbox that does not scale over cores) and a panic handler that
//! traps. The host treats a trap as a failure of the policy, so a panic never lets a call pass.
//!
//! A component that decides about App connectors' tools has the line `connector!(Type);`, one that decides what of an answer
//! may pass `sanitiser!(Type);`, and one that describes and checks its settings `settings!(Type);` besides. A component may
//! have several of them.
//!
//! It does not parse JSON: ask the host for the argument that matters, by its pointer.
#![no_std]

extern crate alloc;

mod answer;
#[cfg(target_arch = "wasm32")]
mod arena;
pub mod connector;
pub mod sanitiser;
pub mod settings;

#[allow(unsafe_code, missing_docs, unreachable_pub, unused_qualifications, reason = "generated code")]
#[allow(clippy::all, clippy::allow_attributes_without_reason, reason = "generated code")]
#[doc(hidden)]
pub mod bindings {
    wit_bindgen::generate!({
        path: "../../wit/v0.1",
        world: "approval-policy",
        pub_export_macro: true,
        default_bindings_module: "portcullis_policy::bindings",
    });
}

/// The same interface for a component that decides about the tools of App connectors.
#[allow(unsafe_code, missing_docs, unreachable_pub, unused_qualifications, reason = "generated code")]
#[allow(clippy::all, clippy::allow_attributes_without_reason, reason = "generated code")]
#[doc(hidden)]
pub mod connector_bindings {
    wit_bindgen::generate!({
        path: "../../wit/v0.1",
        world: "connector-policy",
        pub_export_macro: true,
        default_bindings_module: "portcullis_policy::connector_bindings",
        with: {
            "portcullis:policy/types@0.1.0": crate::bindings::portcullis::policy::types,
            "portcullis:policy/host@0.1.0": crate::bindings::portcullis::policy::host,
        },
    });
}

/// The same interface for a component that decides what of an answer may pass.
#[allow(unsafe_code, missing_docs, unreachable_pub, unused_qualifications, reason = "generated code")]
#[allow(clippy::all, clippy::allow_attributes_without_reason, reason = "generated code")]
#[doc(hidden)]
pub mod sanitiser_bindings {
    wit_bindgen::generate!({
        path: "../../wit/v0.1",
        world: "output-sanitiser",
        pub_export_macro: true,
        default_bindings_module: "portcullis_policy::sanitiser_bindings",
        with: {
            "portcullis:policy/types@0.1.0": crate::bindings::portcullis::policy::types,
            "portcullis:policy/host@0.1.0": crate::bindings::portcullis::policy::host,
        },
    });
}

/// The optional part of a component that takes settings: it describes and checks them.
#[allow(unsafe_code, missing_docs, unreachable_pub, unused_qualifications, reason = "generated code")]
#[allow(clippy::all, clippy::allow_attributes_without_reason, reason = "generated code")]
#[doc(hidden)]
pub mod settings_bindings {
    wit_bindgen::generate!({
        path: "../../wit/v0.1",
        world: "with-settings",
        pub_export_macro: true,
        default_bindings_module: "portcullis_policy::settings_bindings",
        with: {
            "portcullis:policy/host@0.1.0": crate::bindings::portcullis::policy::host,
        },
    });
}

pub use alloc::{format, string::String, vec, vec::Vec};

pub use answer::{abstain, allow, ask, deny};
pub use bindings::exports::portcullis::policy::approval::{
    Decision, Guest as Policy, Question, Reason, Remember, Reviewers, Verdict,
};
pub use bindings::portcullis::policy::host;
pub use bindings::portcullis::policy::types::{Call, Caller, Connector, Hints, Kind, Mode, Posture};

/// Exports a type that implements [`Policy`] as this component's approval policy.
#[macro_export]
macro_rules! policy {
    ($policy:ident) => {
        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code, reason = "the generated export glue reads the call's raw handle")]
        mod export {
            use super::$policy;
            $crate::bindings::export!($policy with_types_in $crate::bindings);
        }
        // On other targets there is nothing to export to, but the policy is still checked and linted.
        #[cfg(not(target_arch = "wasm32"))]
        const _: fn(&$crate::Call) -> $crate::Decision = <$policy as $crate::Policy>::evaluate;
    };
}

/// Exports a type that implements [`connector::ConnectorPolicy`] as this component's connector policy.
#[macro_export]
macro_rules! connector {
    ($policy:ident) => {
        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code, reason = "the generated export glue reads the tool's raw handle")]
        mod export_connector {
            use super::$policy;
            $crate::connector_bindings::export!($policy with_types_in $crate::connector_bindings);
        }
        #[cfg(not(target_arch = "wasm32"))]
        const _: fn(&$crate::connector::AppTool) -> $crate::connector::Decision =
            <$policy as $crate::connector::ConnectorPolicy>::evaluate;
    };
}

/// Exports a type that implements [`sanitiser::Sanitiser`] as this component's sanitiser.
#[macro_export]
macro_rules! sanitiser {
    ($policy:ident) => {
        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code, reason = "the generated export glue reads the answer's raw handle")]
        mod export_sanitiser {
            use super::$policy;
            $crate::sanitiser_bindings::export!($policy with_types_in $crate::sanitiser_bindings);
        }
        #[cfg(not(target_arch = "wasm32"))]
        const _: fn(&$crate::sanitiser::Output) -> $crate::sanitiser::Decision =
            <$policy as $crate::sanitiser::Sanitiser>::sanitise;
    };
}

/// Exports a type that implements [`settings::Settings`]: what this component's settings are, and whether given ones are right.
#[macro_export]
macro_rules! settings {
    ($settings:ident) => {
        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code, reason = "the generated export glue passes texts over the border")]
        mod export_settings {
            use super::$settings;
            $crate::settings_bindings::export!($settings with_types_in $crate::settings_bindings);
        }
        #[cfg(not(target_arch = "wasm32"))]
        const _: fn() -> $crate::String = <$settings as $crate::settings::Settings>::schema;
    };
}

#[cfg(target_arch = "wasm32")]
#[panic_handler]
fn trap(_: &core::panic::PanicInfo<'_>) -> ! {
    // Formatting the message would cost kilobytes of guest; the host reports the trap.
    core::arch::wasm32::unreachable()
}
