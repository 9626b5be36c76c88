//! Decides, asks where it must, and returns the proof that a call may run.

use std::sync::Arc;

use tracing::{Instrument as _, Span};

use super::agree::{Agreed, Askable, Said, Step};
use super::observe::Observers;
use super::settle::{Settled, Standing, settle};
use super::{ask, decide, remember};
use crate::model::caller::Caller;
use crate::model::decision::Decision;
use crate::model::layer::{LayerKind, LayerRef};
use crate::model::name::{CallId, Target};
use crate::model::outcome::{Failure, Stage};
use crate::model::verdict::{Folded, HOST, Label, Reason, Refusal, Remember, RuleId, Source};
use crate::pipeline::admit::catalog::Catalog;
use crate::pipeline::bind::noted::Stated;
use crate::pipeline::bind::prepare::Prepared;
use crate::ports::approval::PolicySet;
use crate::ports::clock::Clock;
use crate::ports::grants::{Grant, Grants};
use crate::ports::inputs::DecisionInputs;
use crate::ports::recorder::Consent;
use crate::ports::state::{Effects, StateFailed};
use crate::ports::telemetry::{self, About, Phase};

/// Who is needed to approve a call.
pub struct Approvers<'a> {
    /// The catalog, for the policies in force.
    pub catalog: &'a Catalog,
    /// Remembered agreements.
    pub grants: &'a dyn Grants,
    /// Whoever can be asked.
    pub askable: Askable<'a>,
    /// The time of day.
    pub clock: &'a dyn Clock,
    /// What was before, and what this call counts.
    pub stated: &'a Stated,
    /// Why a person must agree because of what the tool's definition has become (R24).
    pub changed: Option<&'a Reason>,
}

/// Proof that a call may run: the prepared call, and what it was approved by.
#[derive(Debug)]
pub struct Approved {
    prepared: Prepared,
    decision: Decision,
    policies: Arc<PolicySet>,
    consent: Consent,
    grant: Option<Grant>,
    spends: Option<Grant>,
    said: Said,
    observers: Option<Observers>,
    labels: Vec<Label>,
    inputs: Arc<DecisionInputs>,
}

/// A call that may not run, with the decision if there was one.
#[derive(Debug)]
pub struct Refused {
    /// Why.
    pub failure: Box<Failure>,
    /// The call, for the record.
    pub prepared: Prepared,
    /// The last decision.
    pub decision: Decision,
    /// The policies that decided.
    pub policies: Arc<PolicySet>,
    /// The observed components that match the call.
    pub observers: Option<Observers>,
    /// All that the decision was taken on; none where nobody was asked.
    pub inputs: Option<Arc<DecisionInputs>>,
}

impl Approved {
    /// Returns the call.
    #[must_use]
    pub fn prepared(&self) -> &Prepared {
        &self.prepared
    }

    /// Returns the decision.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Returns how the asks were settled.
    #[must_use]
    pub fn consent(&self) -> &Consent {
        &self.consent
    }

    /// Returns the policies that decided.
    #[must_use]
    pub fn policies(&self) -> &Arc<PolicySet> {
        &self.policies
    }

    /// Returns the grant to keep at the hand-over.
    #[must_use]
    pub fn grant(&self) -> Option<&Grant> {
        self.grant.as_ref()
    }

    /// Returns the grant for one call that this call uses up at the hand-over (R17).
    #[must_use]
    pub fn spends(&self) -> Option<&Grant> {
        self.spends.as_ref()
    }

    /// Returns what hooks and reviewers said.
    #[must_use]
    pub fn said(&self) -> &Said {
        &self.said
    }

    /// Returns the observed components that match the call, for once its record is kept.
    #[must_use]
    pub fn observers(&self) -> Option<Observers> {
        self.observers.clone()
    }

    /// Returns all that the decision was taken on.
    #[must_use]
    pub fn inputs(&self) -> &Arc<DecisionInputs> {
        &self.inputs
    }

    /// Returns the labels to keep at the hand-over.
    #[must_use]
    pub fn labels(&self) -> &[Label] {
        &self.labels
    }

    /// Takes the approval back: the policies changed before the lease, and the call must be decided again.
    #[must_use]
    pub fn withdraw(self) -> Prepared {
        self.prepared
    }
}

/// Decides a prepared call under the policies in force now, and asks whoever must agree.
///
/// After an answer the call is always evaluated again, with the policies in force by then; the answer stands if today's asks
/// are a subset of those that were answered (R19).
///
/// # Errors
/// [`Refused`], with a failure that names layer, component and rule.
pub async fn approve(
    who: &Approvers<'_>,
    call: &CallId,
    caller: &Caller,
    prepared: Prepared,
    agreed: &mut Agreed,
) -> Result<Approved, Box<Refused>> {
    let target = Target::from(prepared.reference());
    let subject = remember::subject(&prepared, caller);
    loop {
        let policies = Arc::clone(who.catalog.current().policies());
        let now_ms = u64::try_from(who.clock.now().as_millisecond()).unwrap_or(0);
        let observing = policies.components.iter().any(|component| component.observe);
        let moments = match who.stated.moments(now_ms, Effects::Reserve, observing).await {
            Ok(moments) => moments,
            Err(error) => return Err(Box::new(without_state(prepared, policies, now_ms, &error))),
        };
        let span = telemetry::phase(Phase::Decide, About::target(call, &target));
        let decided = decide::decide(&policies, &prepared, caller, now_ms, &moments, who.changed);
        let decided = decided.instrument(span.clone()).await;
        telemetry::decided(&span, &decided.decision.folded);
        drop(span);
        let standing = Standing {
            target: &target,
            subject: &subject,
            arguments: prepared.bound(),
            answered: &agreed.answered,
            now_ms,
            reviewer: policies.postures.reviewer(prepared.tool().connector.as_ref().map(|own| own.id.as_str())),
            widest: &|asks| {
                let channel = who.askable.reviewer.widest();
                ask::widest(&prepared, asks).min(remember::widest(&prepared)).min(channel)
            },
        };
        let settled = settle(&decided, who.grants, &standing);
        let failure = match settled {
            Settled::Refuse(failure) => failure,
            Settled::Run { grant } => {
                if let Some(grant) = &grant {
                    telemetry::found(&Span::current(), grant.scope);
                }
                let by_grant = grant.as_ref().map(|grant| Consent::Grant { id: grant.id.clone() });
                let consent = by_grant.or_else(|| agreed.consent.clone()).unwrap_or(Consent::Unasked);
                return Ok(Approved {
                    prepared,
                    decision: decided.decision,
                    policies,
                    consent,
                    grant: agreed.grant.clone(),
                    spends: grant.map(|grant| *grant).filter(|grant| grant.scope == Remember::Never),
                    said: agreed.said.clone(),
                    observers: decided.observers,
                    labels: decided.labels,
                    inputs: decided.inputs,
                });
            }
            Settled::Ask(open) => {
                let (target, subject, policies) = (&target, &subject, &*policies);
                let step = Step { call, target, subject, prepared: &prepared, policies, now_ms };
                match agreed.step(&who.askable, &step, &open).await {
                    Ok(()) => continue,
                    Err(failure) => failure,
                }
            }
        };
        return Err(Box::new(Refused {
            failure,
            prepared,
            decision: decided.decision,
            policies,
            observers: decided.observers,
            inputs: Some(decided.inputs),
        }));
    }
}

/// Nobody was asked: without what was before, no component can be.
fn without_state(prepared: Prepared, policies: Arc<PolicySet>, now_ms: u64, error: &StateFailed) -> Refused {
    let source = Source { layer: LayerRef::new(LayerKind::Builtin), component: HOST.into(), digest: None };
    let reason = Reason { rule: RuleId::parse("state-failed"), text: error.to_string() };
    let folded = Folded::Deny([Refusal { source, reason, fault: None }].into());
    let steps = vec!["what is kept between calls could not be read: deny".to_owned()];
    let failure = Box::new(Failure::state_failed(Stage::Approval, error));
    Refused {
        failure,
        prepared,
        decision: Decision { connectors: Vec::new(), voices: Vec::new(), folded, steps, now_ms },
        policies,
        observers: None,
        inputs: None,
    }
}
