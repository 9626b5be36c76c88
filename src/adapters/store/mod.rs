//! Where grants are kept, and what components know of earlier calls.
//!
//! [`state`] is the one implementation of [`PolicyState`](crate::ports::state::PolicyState): open calls and what their counters
//! reserved are in memory, everything else is in a backing, which is either [`memory_state`] or [`sqlite`]. [`asks`] is the one
//! implementation of [`Asks`](crate::ports::asks::Asks), over [`memory_asks`] or [`sqlite`] in the same way. Heads and keys of
//! records are in [`memory_chains`] or [`sqlite`].

pub mod asks;
mod backing;
mod form;
pub mod memory;
pub mod memory_asks;
pub mod memory_chains;
pub mod memory_state;
pub mod sqlite;
pub mod state;

#[cfg(test)]
mod asks_tests;
#[cfg(test)]
mod chains_tests;
#[cfg(test)]
mod contract_tests;
#[cfg(test)]
mod grants_tests;
#[cfg(test)]
mod reference_tests;
