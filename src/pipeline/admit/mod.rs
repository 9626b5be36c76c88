//! Admit: which tools exist and may be seen.

pub mod catalog;
pub mod exposure;
pub mod leases;
pub mod naming;
pub mod search;
pub mod slots;

mod words;
