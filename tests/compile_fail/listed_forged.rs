// error: E0451
//! A tool that no catalog listed.
use std::sync::Arc;

use portcullis::model::tool::CatalogTool;
use portcullis::pipeline::admit::catalog::{Listed, ServerEntry, Snapshot};

fn forge(tool: Arc<CatalogTool>, server: ServerEntry, snapshot: Arc<Snapshot>) -> Listed {
    Listed { tool, server, snapshot }
}

fn main() {
    let _ = forge;
}
