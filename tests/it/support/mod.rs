//! What several promises need.

pub(crate) mod policy;
