//! The record of a decision: what is kept of it before anything is sent (R34).

use std::sync::Arc;

use crate::model::caller::Caller;
use crate::model::decision::Decision;
use crate::model::name::CallId;
use crate::pipeline::bind::prepare::Prepared;
use crate::pipeline::consent::agree::Said;
use crate::ports::approval::PolicySet;
use crate::ports::clock::Clock;
use crate::ports::inputs::DecisionInputs;
use crate::ports::recorder::{Consent, DecisionRecord};

/// What was decided, by what, and how it was settled.
pub struct Deciding {
    /// The policies that decided.
    pub policies: Arc<PolicySet>,
    /// The decision.
    pub decision: Decision,
    /// How it was settled.
    pub consent: Consent,
    /// What hooks and reviewers said.
    pub said: Said,
    /// All that the decision was taken on; none where nobody was asked.
    pub inputs: Option<Arc<DecisionInputs>>,
    /// Whether the tool's title is one that the sanitisers do not let be shown: records have none then (R31).
    pub title_hidden: bool,
}

/// Makes the record.
#[must_use]
pub fn of(
    clock: &dyn Clock,
    call: &CallId,
    caller: &Caller,
    prepared: &Prepared,
    deciding: Deciding,
) -> DecisionRecord {
    DecisionRecord {
        at: clock.now(),
        call: call.clone(),
        kind: prepared.kind(),
        tool: prepared.reference(),
        caller: caller.clone(),
        revision: prepared.revision(),
        policy_set: deciding.policies.digest,
        engine: deciding.policies.engine,
        definition: prepared.tool().definition.digest(),
        arguments: prepared.arguments().digest(),
        files: prepared.files().map(|files| files.recorded()).unwrap_or_default(),
        uploading: false,
        decision: deciding.decision,
        consent: deciding.consent,
        hooks: deciding.said.hooks,
        reviews: deciding.said.reviews,
        inputs: match deciding.inputs {
            Some(inputs) if deciding.title_hidden => Some(Arc::new(inputs.masking_title())),
            inputs => inputs,
        },
    }
}
