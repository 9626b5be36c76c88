// error: E0423
//! A definition that claims to be cleaned.
use std::sync::Arc;

use portcullis::model::tool::ToolDefinition;
use portcullis::pipeline::emit::sanitise::ShownDefinition;

fn forge(raw: Arc<ToolDefinition>) -> ShownDefinition {
    ShownDefinition(raw)
}

fn main() {
    let _ = forge;
}
