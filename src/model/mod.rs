//! Plain values of the domain: names, definitions, verdicts, answers, items.
//!
//! No input or output, no async, no wasmtime and no rmcp; nothing here uses another part of this crate.

pub mod answer;
pub mod answerable;
pub mod app;
pub mod arguments;
pub mod caller;
pub mod chain;
pub mod check;
pub mod cleaning;
pub mod decision;
pub mod digest;
pub mod evidence;
pub mod exposure;
pub mod file_params;
pub mod here;
pub mod hook;
pub mod hook_output;
pub mod item;
pub mod json;
pub mod layer;
pub mod media;
pub mod name;
pub mod outcome;
pub mod posture;
pub mod review;
pub mod revision;
pub mod role;
pub mod sandbox;
pub mod schema;
pub mod secret;
pub mod text;
pub mod tool;
pub mod truncate;
pub mod verdict;
pub mod waiting;

mod spelled;
mod weight;
