// error: E0451
//! A call that nobody approved.
use std::sync::Arc;

use portcullis::model::decision::Decision;
use portcullis::pipeline::bind::prepare::Prepared;
use portcullis::pipeline::consent::approve::Approved;
use portcullis::ports::approval::PolicySet;
use portcullis::ports::recorder::Consent;

fn forge(prepared: Prepared, decision: Decision, policies: Arc<PolicySet>) -> Approved {
    Approved { prepared, decision, policies, consent: Consent::Unasked, grant: None, observers: None, labels: Vec::new() }
}

fn main() {
    let _ = forge;
}
