//! What is shown of an answer, and to whom.

pub mod views;
