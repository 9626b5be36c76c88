// error: E0308
//! An answer that is shown uncleaned.
use std::time::Duration;

use portcullis::pipeline::dispatch::call::Raw;
use portcullis::pipeline::emit::views::model::{ModelView, ModelViewOptions};

async fn show(raw: &Raw) -> ModelView {
    ModelView::of(raw, Duration::ZERO, &ModelViewOptions::default()).await
}

fn main() {
    let _ = show;
}
