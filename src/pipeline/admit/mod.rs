//! Admit: which tools exist and may be seen.

pub mod catalog;
pub mod leases;
pub mod naming;
pub mod slots;
