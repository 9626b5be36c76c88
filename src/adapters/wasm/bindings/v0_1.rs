//! Track 0.1 of `portcullis:policy`: generated types and traits, mapped to our own resource types.
//!
//! The generated code is the only thing here. What a host function answers is in `linker`, what an answer means in `decide`.

/// The call that a component was asked about. A component holds a borrowed handle to it; the facts are in the store.
#[allow(unreachable_pub, reason = "generated code re-exports it; the module is private")]
pub struct Call;

/// A tool of an App connector. Declared by the interface, never handed out by this host.
#[allow(unreachable_pub, reason = "generated code re-exports it; the module is private")]
pub enum AppTool {}

/// An answer of an upstream. Declared by the interface, never handed out by this host.
#[allow(unreachable_pub, reason = "generated code re-exports it; the module is private")]
pub enum Output {}

#[allow(missing_docs, unreachable_pub, dead_code, unused_qualifications, reason = "generated code")]
#[allow(clippy::all, clippy::allow_attributes_without_reason, reason = "generated code")]
mod generated {
    wasmtime::component::bindgen!({
        path: "wit/v0.1",
        world: "approval-policy",
        imports: { default: trappable },
        with: {
            "portcullis:policy/types.call": super::Call,
            "portcullis:policy/types.app-tool": super::AppTool,
            "portcullis:policy/types.output": super::Output,
        },
    });
}

pub(crate) use generated::exports::portcullis::policy::approval;
pub(crate) use generated::portcullis::policy::{host, types};
pub(crate) use generated::{ApprovalPolicy, ApprovalPolicyPre};
