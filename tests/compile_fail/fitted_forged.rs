// error: E0451
//! An answer that claims to hold nothing that its model cannot take.
use portcullis::model::answer::Answer;
use portcullis::model::name::Target;
use portcullis::pipeline::emit::media::Fitted;

fn forge(answer: Answer, target: Target) -> Fitted {
    Fitted { answer, target }
}

fn main() {
    let _ = forge;
}
