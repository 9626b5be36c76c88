// error: E0624
//! An answer that is looked at before it is cleaned.
use portcullis::pipeline::dispatch::call::Raw;

fn peek(raw: Raw) {
    let _ = raw.into_parts();
}

fn main() {
    let _ = peek;
}
