//! Where items and decisions are kept.

mod line;

pub mod fanout;
pub mod jsonl;
pub mod memory;
