// error: E0308
//! A call that is handed over without a lease.
use portcullis::model::name::CallId;
use portcullis::pipeline::consent::approve::Approved;
use portcullis::pipeline::dispatch::call;
use portcullis::pipeline::dispatch::meta::TurnInfo;
use portcullis::ports::grants::Grants;
use portcullis::ports::recorder::{DecisionRecord, Recorder};

async fn send(
    approved: Approved,
    id: &CallId,
    turn: &TurnInfo,
    grants: &dyn Grants,
    recorder: &dyn Recorder,
    record: DecisionRecord,
) {
    let _ = call::hand_over(approved, id, turn, None, grants, recorder, record).await;
}

fn main() {
    let _ = send;
}
