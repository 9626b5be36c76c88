//! Which tools exist and may be seen.

pub mod naming;
