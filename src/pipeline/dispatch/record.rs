//! The record of a decision: what is kept of it before anything is sent (R34).

use crate::model::caller::Caller;
use crate::model::decision::Decision;
use crate::model::name::CallId;
use crate::model::revision::PolicySetDigest;
use crate::pipeline::bind::prepare::Prepared;
use crate::ports::clock::Clock;
use crate::ports::recorder::{Consent, DecisionRecord};

/// What was decided, by what, and how it was settled.
pub struct Deciding {
    /// The policies that decided.
    pub policies: PolicySetDigest,
    /// The decision.
    pub decision: Decision,
    /// How it was settled.
    pub consent: Consent,
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
        policy_set: deciding.policies,
        definition: prepared.tool().definition.digest(),
        arguments: prepared.arguments().digest(),
        decision: deciding.decision,
        consent: deciding.consent,
    }
}
