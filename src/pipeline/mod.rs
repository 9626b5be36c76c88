//! The path of a call. The folders are its phases; their alphabetical order is the order of the call.

pub mod admit;
pub mod emit;
