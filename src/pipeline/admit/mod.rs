//! Admit: which tools exist and may be seen.

pub mod apps;
pub mod catalog;
pub mod exposure;
pub mod gate;
pub mod handlers;
pub mod leases;
pub mod naming;
pub mod remembered;
pub mod schema;
pub mod search;
pub mod slots;
pub mod spec;

mod words;
