//! Where grants are kept.

pub mod memory;
