// error: E0451
//! An answer that claims to be clean.
use portcullis::model::answer::ToolResult;
use portcullis::model::outcome::Outcome;
use portcullis::pipeline::emit::sanitise::{Clean, CleanAnswer};

fn forge(result: ToolResult) -> Clean {
    let answer = CleanAnswer::Result(result.clone());
    Clean { answer, result, outcome: Outcome::Answered, replaced: None, context: Vec::new() }
}

fn main() {
    let _ = forge;
}
