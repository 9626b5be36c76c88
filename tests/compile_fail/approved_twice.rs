// error: E0382
//! One approval for two calls.
use portcullis::pipeline::admit::catalog::Catalog;
use portcullis::pipeline::consent::approve::Approved;
use portcullis::pipeline::dispatch::barrier;

fn twice(catalog: &Catalog, approved: Approved) {
    let _ = barrier::lease(catalog, approved);
    let _ = barrier::lease(catalog, approved);
}

fn main() {
    let _ = twice;
}
