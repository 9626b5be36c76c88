// error: E0423
//! What a script reads, made of an answer that nobody cleaned.
use std::sync::Arc;

use portcullis::model::answer::ToolResult;
use portcullis::pipeline::emit::views::script::ScriptView;

fn forge(result: &ToolResult) -> ScriptView {
    ScriptView(result.shared())
}

fn main() {
    let _ = forge;
}
