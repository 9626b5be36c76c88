// error: E0451
//! An answer that claims to be clean.
use portcullis::model::answer::ToolResult;
use portcullis::model::outcome::Outcome;
use portcullis::pipeline::emit::sanitise::{Clean, CleanAnswer};

fn forge(result: ToolResult) -> Clean {
    Clean { answer: CleanAnswer::Result(result.clone()), result, outcome: Outcome::Answered }
}

fn main() {
    let _ = forge;
}
