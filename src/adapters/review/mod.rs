//! Auto reviewers: a program (`command`), a model over HTTP (`http`), the model of the session's own client (`sampling`).
//!
//! Each asks once and returns the whole answer as text; whether it is one that can be read, and who may rely on it, is decided
//! in `pipeline/consent/review.rs`. What is asked is the host's instructions and one action, and nothing else.

mod command;
mod http;
mod sampling;
mod within;

pub use command::{CommandReviewer, Program};
pub use http::{Endpoint, HttpReviewer};
pub use sampling::SamplingReviewer;
pub use within::Within;

/// Takes the key out of what a reviewer said: a rationale goes to people and records.
fn without_key(said: String, key: Option<&str>) -> String {
    match key.filter(|key| !key.is_empty()) {
        Some(key) if said.contains(key) => said.replace(key, "<key>"),
        _ => said,
    }
}
