// error: E0423
//! A view that was rendered from nothing.
use portcullis::pipeline::emit::views::model::{ModelAnswer, ModelView};

fn forge(answer: ModelAnswer) -> ModelView {
    ModelView(answer)
}

fn main() {
    let _ = forge;
}
