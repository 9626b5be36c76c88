// error: E0451
//! A prepared call with arguments that were never bound to it.
use portcullis::model::arguments::Arguments;
use portcullis::pipeline::admit::catalog::Listed;
use portcullis::pipeline::bind::prepare::Prepared;
use portcullis::ports::approval::Kind;

fn forge(listed: Listed, arguments: Arguments) -> Prepared {
    Prepared { listed, kind: Kind::Tool, arguments, files: None }
}

fn main() {
    let _ = forge;
}
