//! One tool call, front to back. The folders sort in call order: admit, bind, consent, dispatch, emit, follow.
//!
//! [`Pipeline::run`] is the one door to an upstream: the gateway, `call`, the library and the dry run of `explain` go
//! through it.
//!
//! ```text
//! Listed -> Prepared -> Approved -> Lease -> Raw -> Fitted -> Clean -> View
//! ```
//!
//! Each of these has private fields, is made in one function and taken by value by the next, so that sending an unapproved
//! call, sending another call than the approved one, or showing an uncleaned answer does not compile.

/// Which tools exist and may be seen.
pub mod admit;

/// This call gets its server.
pub mod bind;

/// May it run?
pub mod consent;

/// Run it.
pub mod dispatch;

/// Show it.
pub mod emit;

/// Watch it from start to end.
pub mod follow;

pub mod drift;
mod eyes;
mod request;
mod run;

pub use request::{CallRequest, Explanation, Finished, Payload, Would};
pub use run::Pipeline;
