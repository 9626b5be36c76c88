// error: E0308
//! A call that is handed over without a lease.
use portcullis::pipeline::consent::approve::Approved;
use portcullis::pipeline::dispatch::call;
use portcullis::ports::grants::Grants;
use portcullis::ports::recorder::{DecisionRecord, Recorder};

async fn send(
    approved: Approved,
    with: call::With<'_>,
    grants: &dyn Grants,
    recorder: &dyn Recorder,
    record: DecisionRecord,
) {
    let _ = call::hand_over(approved, with, grants, recorder, record).await;
}

fn main() {
    let _ = send;
}
