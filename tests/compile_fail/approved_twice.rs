// error: E0382
//! One approval for two calls.
use portcullis::pipeline::admit::catalog::Catalog;
use portcullis::pipeline::consent::approve::Approved;
use portcullis::pipeline::dispatch::barrier;
use portcullis::pipeline::dispatch::files::Uploads;

fn twice(catalog: &Catalog, approved: Approved, uploads: Uploads) {
    let _ = barrier::lease(catalog, approved, uploads.clone());
    let _ = barrier::lease(catalog, approved, uploads);
}

fn main() {
    let _ = twice;
}
