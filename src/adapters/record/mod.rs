//! Where items and decisions are kept, and how what was kept is read, checked and found again.

mod line;
mod writer;

pub mod fanout;
pub mod find;
pub mod inputs;
pub mod jsonl;
mod keys;
pub mod link;
pub mod memory;
pub mod place;
pub mod reading;
pub mod verify;
mod walk;
