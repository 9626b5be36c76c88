// error: E0451
//! A call that nobody approved.
use std::sync::Arc;

use portcullis::model::decision::Decision;
use portcullis::pipeline::bind::prepare::Prepared;
use portcullis::pipeline::consent::agree::Said;
use portcullis::pipeline::consent::approve::Approved;
use portcullis::ports::approval::PolicySet;
use portcullis::ports::inputs::DecisionInputs;
use portcullis::ports::recorder::Consent;

fn forge(prepared: Prepared, decision: Decision, policies: Arc<PolicySet>, inputs: Arc<DecisionInputs>) -> Approved {
    let (said, labels) = (Said::default(), Vec::new());
    let consent = Consent::Unasked;
    Approved { prepared, decision, policies, consent, grant: None, spends: None, said, observers: None, labels, inputs }
}

fn main() {
    let _ = forge;
}
