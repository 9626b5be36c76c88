//! Where grants are kept, and what components know of earlier calls.
//!
//! [`state`] is the one implementation of [`PolicyState`](crate::ports::state::PolicyState): open calls and what their counters
//! reserved are in memory, everything else is in a backing, which is either [`memory_state`] or [`sqlite`].

mod backing;
pub mod memory;
pub mod memory_state;
pub mod sqlite;
pub mod state;

#[cfg(test)]
mod contract_tests;
#[cfg(test)]
mod reference_tests;
