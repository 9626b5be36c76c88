//! Steps 6, 8 and 9: decided, agreed to, uploaded, leased.

use std::sync::Arc;

use tracing::{Instrument as _, Span};

use super::Call;
use crate::model::hook::HookEvent;
use crate::model::outcome::{Code, Failure, Origin, Stage};
use crate::model::verdict::Source;
use crate::pipeline::admit::catalog::LeaseRefusal;
use crate::pipeline::admit::slots::Slots;
use crate::pipeline::bind::noted::Stated;
use crate::pipeline::bind::prepare;
use crate::pipeline::consent::agree::{Agreed, Askable};
use crate::pipeline::consent::approve::{self, Approved, Approvers};
use crate::pipeline::dispatch::record::Deciding;
use crate::pipeline::dispatch::{barrier, call, files, record};
use crate::pipeline::drift::Drift;
use crate::pipeline::eyes::Eyes;
use crate::ports::approval::PolicySet;
use crate::ports::recorder::{Consent, DecisionRecord};
use crate::ports::telemetry::Phase;

impl Call<'_> {
    /// Steps 6, 8 and 9: decided, agreed to where it must be, and leased. Decided again when only the policies changed.
    pub(super) async fn consent(
        &mut self,
        mut prepared: prepare::Prepared,
        stated: &Stated,
    ) -> Result<barrier::Lease, Box<Failure>> {
        let pipeline = self.pipeline;
        self.compare(&prepared, stated).await?;
        let reviewer = self.drift.telling(Arc::clone(&self.request.reviewer));
        let changed = self.drift.reason.clone();
        let told = Eyes::of(pipeline, &self.request).telling(prepared.tool());
        let facts = self.facts.as_ref().map(|(facts, _)| facts.clone());
        let (breaker, progress) = (Arc::clone(&self.request.breaker), self.request.progress.clone());
        let people = Arc::clone(&self.people);
        let who = Approvers {
            catalog: &pipeline.catalog,
            grants: &*pipeline.grants,
            askable: Askable {
                hooks: facts.as_ref(),
                progress: progress.as_ref(),
                breaker: &breaker,
                client: self.request.questions.clone(),
                evidence: self.request.evidence.as_ref().map(|store| store.evidence()).unwrap_or_default(),
                told: &told,
                reviewer: &*reviewer,
                deadline: pipeline.ask_deadline,
                people: &people,
            },
            clock: &*pipeline.clock,
            stated,
            changed: changed.as_ref(),
        };
        let (mut agreed, mut sofar) = (Agreed::saying(self.said.clone()), files::Sofar::default());
        loop {
            let (id, caller) = (&self.request.id, &self.request.caller);
            let approved = approve::approve(&who, id, caller, prepared, &mut agreed);
            let approved = approved.instrument(self.phase(Phase::Approval)).await;
            (self.said, self.interrupts) = (agreed.said.clone(), agreed.interrupts);
            let approved = match approved {
                Ok(approved) => approved,
                Err(refused) => {
                    self.words = agreed.words;
                    let policies = Arc::clone(&refused.policies);
                    let decision = refused.decision.clone();
                    let (inputs, said) = (refused.inputs.clone(), self.said.clone());
                    let deciding = Deciding {
                        policies,
                        decision,
                        consent: Consent::Refused,
                        said,
                        inputs,
                        title_hidden: self.title_hidden,
                    };
                    let record = self.record_of(&refused.prepared, deciding);
                    if let Err(error) = pipeline.recorder.decision(&record) {
                        tracing::warn!(%error, "the record of a refusal was lost");
                    }
                    pipeline.observatory.start(&record, refused.observers);
                    self.decision = Some(refused.decision);
                    return Err(refused.failure);
                }
            };
            self.decision = Some(approved.decision().clone());
            // It may have come while this call was decided.
            self.uninterrupted()?;
            if let Some(unheard) = self.unheard(approved.policies()) {
                return Err(unheard);
            }
            let turn = self.phase(Phase::Turn);
            self.take_turn(approved.prepared()).instrument(turn).await;
            let leased = self.lease(approved, &mut sofar).instrument(self.phase(Phase::Lease));
            let barrier::NotLeased { refusal, approved } = match leased.await? {
                Ok(lease) => return Ok(lease),
                Err(refused) => *refused,
            };
            prepared = approved.withdraw();
            // Somebody may be asked again.
            (self.inside, self.slots) = (None, Vec::new());
            match refusal {
                LeaseRefusal::PoliciesChanged if agreed.decide_again() => {}
                LeaseRefusal::PoliciesChanged => {
                    let message = "the policies kept changing while the call was decided";
                    return Err(Box::new(Failure::new(Stage::Lease, Code::PoliciesUnstable, message)));
                }
                LeaseRefusal::Stale => {
                    return Err(self.unprepared(prepare::stale(&pipeline.catalog, &prepared)).await);
                }
            }
        }
    }

    /// R19: a `PreToolUse` hook that has come while the call was decided must hear of it first, and that is over.
    fn unheard(&self, policies: &PolicySet) -> Option<Box<Failure>> {
        let (facts, _) = self.facts.as_ref()?;
        let heard = |source: &Source| self.said.hooks.iter().any(|voice| voice.source == *source);
        let all = facts.matching(&policies.hooks, HookEvent::PreToolUse);
        let new = all.into_iter().find(|hook| !heard(&hook.source))?;
        let message = "a hook that is run before calls has come while this one was decided; make the call again";
        let failure = Failure::new(Stage::Hook, Code::PoliciesUnstable, message);
        Some(Box::new(failure.by(Origin::of(&new.source, None))))
    }

    /// Step 9: check, upload, check, lease. What is uploaded is in `sofar`, for when the call has to be decided again.
    async fn lease(
        &self,
        approved: Approved,
        sofar: &mut files::Sofar,
    ) -> Result<Result<barrier::Lease, Box<barrier::NotLeased>>, Box<Failure>> {
        let catalog = &self.pipeline.catalog;
        let refuse = |refusal, approved| Ok(Err(Box::new(barrier::NotLeased { refusal, approved })));
        if sofar.lacks(&approved) {
            if let Err(refusal) = barrier::check(catalog, &approved) {
                return refuse(refusal, approved);
            }
            // R34: the files of a call whose decision cannot be recorded stay where they are.
            let record = self.record(&approved, approved.consent().clone());
            let record = DecisionRecord { uploading: true, ..record };
            self.pipeline.recorder.decision(&record).map_err(call::unrecorded)?;
        }
        let (turn, progress) = (&self.request.turn, self.request.progress.as_ref());
        let upload = if sofar.lacks(&approved) { self.phase(Phase::Upload) } else { Span::none() };
        match files::upload(catalog, &approved, sofar, turn, progress).instrument(upload).await {
            Ok(uploads) => Ok(barrier::lease(catalog, approved, uploads)),
            Err(files::NotUploaded::Refused(refusal)) => refuse(refusal, approved),
            Err(files::NotUploaded::Failed(failure)) => Err(failure),
        }
    }

    /// R24: is the definition the one that was accepted?
    pub(super) async fn compare(&mut self, prepared: &prepare::Prepared, stated: &Stated) -> Result<(), Box<Failure>> {
        let eyes = Eyes::of(self.pipeline, &self.request);
        let drift = Drift::of(&self.pipeline.accepted, &eyes, stated, prepared).await;
        self.drift = drift.map_err(|error| Failure::state_failed(Stage::Approval, error))?;
        Ok(())
    }

    /// Waits until the call may run beside those that do. The gate first: whoever has a place holds up nobody by waiting.
    async fn take_turn(&mut self, prepared: &prepare::Prepared) {
        let server = prepared.server();
        if let Some(gate) = &self.request.gate {
            self.inside = Some(gate.enter(server.view.may_run_parallel(prepared.tool())).await);
        }
        self.slots = Slots::take(&server.view.slots).await;
    }

    pub(super) fn stated(&self, prepared: &prepare::Prepared) -> Stated {
        let pipeline = self.pipeline;
        Stated::of(&pipeline.state, &pipeline.clock, &self.request.id, &self.request.caller, prepared)
    }

    pub(super) fn record(&self, approved: &Approved, consent: Consent) -> DecisionRecord {
        let (policies, decision) = (Arc::clone(approved.policies()), approved.decision().clone());
        let (said, inputs) = (self.said.clone(), Some(Arc::clone(approved.inputs())));
        let title_hidden = self.title_hidden;
        self.record_of(approved.prepared(), Deciding { policies, decision, consent, said, inputs, title_hidden })
    }

    fn record_of(&self, prepared: &prepare::Prepared, deciding: Deciding) -> DecisionRecord {
        record::of(&*self.pipeline.clock, &self.request.id, &self.request.caller, prepared, deciding)
    }
}
