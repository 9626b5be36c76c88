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
//! It does not parse JSON: ask the host for the argument that matters, by its pointer.
#![no_std]

extern crate alloc;

mod answer;
#[cfg(target_arch = "wasm32")]
mod arena;

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

#[cfg(target_arch = "wasm32")]
#[panic_handler]
fn trap(_: &core::panic::PanicInfo<'_>) -> ! {
    // Formatting the message would cost kilobytes of guest; the host reports the trap.
    core::arch::wasm32::unreachable()
}
