// compiles
//! The control: what the other files break works here.
use std::time::Duration;

use portcullis::pipeline::Finished;
use portcullis::pipeline::emit::views::model::{ModelView, ModelViewOptions};

async fn show(finished: &Finished) -> ModelView {
    ModelView::of(&finished.clean, Duration::ZERO, &ModelViewOptions::default()).await
}

fn main() {
    let _ = show;
}
