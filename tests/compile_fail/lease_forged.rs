// error: E0451
//! A lease that no barrier gave. Its other half is no public type at all, so the approval alone is tried.
use portcullis::pipeline::consent::approve::Approved;
use portcullis::pipeline::dispatch::barrier::Lease;

fn forge(approved: Approved, given: Lease) -> Lease {
    Lease { approved, ..given }
}

fn main() {
    let _ = forge;
}
