//! The list of steps, and what each failure becomes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::admit::catalog::{Catalog, LeaseRefusal};
use super::admit::gate::Inside;
use super::admit::slots::{Slot, Slots};
use super::bind::noted::{Noted, Stated};
use super::bind::{self, await_ready, prepare};
use super::consent::approve::{self, Agreed, Approved, Approvers};
use super::consent::observe::Observatory;
use super::consent::settle::{Answered, Settled, Standing, refused, settle};
use super::consent::{ask, connector, decide, remember};
use super::dispatch::memory::Marking;
use super::dispatch::questions::Desk;
use super::dispatch::record::Deciding;
use super::dispatch::{barrier, call, files, record};
use super::drift::{Accepted, Drift};
use super::emit::finish::Finishing;
use super::emit::sanitise::{Clean, Unshown};
use super::emit::views::stale;
use super::eyes::Eyes;
use super::follow::lifecycle::Started;
use super::follow::pending::PendingCalls;
use super::request::{CallRequest, Explanation, Finished, Payload, Would};
use crate::model::arguments::Arguments;
use crate::model::decision::Decision;
use crate::model::digest::Digest;
use crate::model::item::CallInfo;
use crate::model::name::ToolRef;
use crate::model::outcome::{Code, Failure, Stage};
use crate::model::verdict::Refusal;
use crate::ports::approval::PolicySet;
use crate::ports::clock::Clock;
use crate::ports::grants::Grants;
use crate::ports::recorder::{Consent, DecisionRecord, Recorder};
use crate::ports::state::{Effects, PolicyState};
use crate::ports::upstream::Fleet;

/// What the pipeline works with.
pub struct Pipeline {
    /// The catalog.
    pub catalog: Arc<Catalog>,
    /// The servers.
    pub fleet: Arc<dyn Fleet>,
    /// Remembered agreements.
    pub grants: Arc<dyn Grants>,
    /// Items and decisions.
    pub recorder: Arc<dyn Recorder>,
    /// Labels, history, counters.
    pub state: Arc<dyn PolicyState>,
    /// The time of day.
    pub clock: Arc<dyn Clock>,
    /// The definitions that are known to be accepted.
    pub accepted: Accepted,
    /// The open calls.
    pub pending: Arc<PendingCalls>,
    /// Where observed components run.
    pub observatory: Arc<Observatory>,
    /// How long an answer of a person is waited for.
    pub ask_deadline: Duration,
}

impl Pipeline {
    /// Runs one call. Gives exactly one completed item for each started one, whatever happens; dropping the future counts
    /// as cancelling.
    pub async fn run(&self, request: CallRequest) -> Finished {
        let cancel = request.cancel.clone();
        let mut call = Call::new(self, request);
        let ended = tokio::select! {
            // An answer that is there wins over a cancellation that came with it.
            biased;
            ended = call.steps() => ended,
            () = cancel.cancelled() => Err(call.cancelled()),
        };
        call.finish(ended)
    }

    /// Says what a call would come to, by the same steps up to the barrier. Asks nobody, sends no item, keeps nothing (R38).
    pub async fn explain(&self, request: CallRequest) -> Explanation {
        let mut call = Call::new(self, request);
        match call.would().await {
            Ok(would) => Explanation { decision: call.decision, changes: call.drift.lines, would },
            Err(failure) => {
                Explanation { decision: call.decision, changes: call.drift.lines, would: Would::Fail(*failure) }
            }
        }
    }
}

/// One call on its way. The guard lives here, outside of the steps, so that it completes a call whose steps were dropped.
struct Call<'p> {
    pipeline: &'p Pipeline,
    request: CallRequest,
    begun: Instant,
    arguments: Option<Arguments>,
    started: Option<Started>,
    noted: Option<Noted>,
    decision: Option<Decision>,
    shown: Option<Digest>,
    drift: Drift,
    inside: Option<Inside>,
    slots: Vec<Slot>,
}

impl<'p> Call<'p> {
    fn new(pipeline: &'p Pipeline, request: CallRequest) -> Self {
        let begun = Instant::now();
        Self {
            pipeline,
            request,
            begun,
            arguments: None,
            started: None,
            noted: None,
            decision: None,
            shown: None,
            drift: Drift::default(),
            inside: None,
            slots: Vec::new(),
        }
    }

    /// The steps, in the order of the design's page 3.
    async fn steps(&mut self) -> Result<Clean, Box<Failure>> {
        let pipeline = self.pipeline;
        let session = self.request.caller.session.clone();
        let _pending = pipeline.pending.open(&session, &self.request.id, &self.request.target).ok_or_else(|| {
            Failure::new(Stage::Payload, Code::DuplicateId, "a call with this id is already running in this session")
        })?;
        let arguments = self.arguments()?;
        self.arguments = Some(arguments.clone());
        let prepared = self.bind(arguments.clone()).await?;
        self.request.reviewer =
            Eyes::of(self.pipeline, &self.request).titling(prepared.tool(), Arc::clone(&self.request.reviewer));
        let info = self.info(arguments).with_tool(prepared.tool());
        let (recorder, clock) = (Arc::clone(&pipeline.recorder), Arc::clone(&pipeline.clock));
        self.started = Some(Started::open(recorder, clock, info, self.begun));

        let stated = self.stated(&prepared);
        self.noted = Some(Noted::open(stated.clone()));
        let prepared = self.open_files(prepared).await?;

        let lease = self.consent(prepared, &stated).await?;

        let input = lease.uploads().tool_input(lease.approved().prepared());
        let record = self.record(lease.approved(), lease.approved().consent().clone());
        let server = lease.approved().prepared().reference().server;
        let connection = Arc::clone(&lease.approved().prepared().server().connection);
        let (tool, kind) = (Arc::clone(lease.approved().prepared().tool()), lease.approved().prepared().kind());
        let arguments = record.arguments;
        let progress = self.request.progress.take();
        let desk = self.desk(lease.approved().prepared());
        let (grants, recorder) = (&*pipeline.grants, &*pipeline.recorder);
        let observed = lease.approved().observers().map(|observers| (record.clone(), observers));
        let request = &self.request;
        let (id, caller, turn) = (&request.id, &request.caller, &request.turn);
        let noted = self.noted.get_or_insert_with(|| Noted::open(stated.clone()));
        let accepts = Arc::clone(&self.drift.accepts);
        let started = &mut self.started;
        let mut polluted = || started.iter_mut().for_each(Started::polluted);
        let memory = request.memory.as_deref().map(|memory| Marking { memory, noted: &mut polluted });
        let with = call::With { id, caller, noted, turn, accepts: Arc::clone(&accepts), memory, progress, desk };
        let handed = call::hand_over(lease, with, grants, recorder, record);
        let handed = handed.await;
        if let Some((record, observers)) = observed {
            pipeline.observatory.start(&record, Some(observers));
        }
        let answered = match handed {
            Ok(sent) => {
                if let Some(started) = &mut self.started {
                    started.sent(sent.at());
                    started.rewritten(input);
                }
                pipeline.accepted.note(&caller.tenant, &accepts);
                sent.wait().await
            }
            Err(failure) => Err(failure),
        };
        if let (Some(noted), Err(failure)) = (&mut self.noted, &answered)
            && failure.code == Code::NotSent
        {
            noted.set_sent(false);
        }
        // A transport that is open but takes nothing right now serves other calls: no reason to end them all.
        if let Err(failure) = &answered
            && matches!(failure.code, Code::NotSent | Code::Ambiguous)
            && !connection.is_open()
        {
            pipeline.fleet.mark_dirty(&server, connection.id());
        }
        let raw = answered?;
        let (catalog, observatory) = (&*pipeline.catalog, &*pipeline.observatory);
        let finishing =
            Finishing { catalog, observatory, stated: &stated, call: &self.request.id, tool: &tool, kind, arguments };
        let (clean, voices) = finishing.clean(raw).await;
        if let Some(started) = &mut self.started {
            started.sanitised(voices);
        }
        Ok(clean)
    }

    /// Steps 1 to 3: the payload's kind, and the arguments parsed once. PreToolUse hooks are later work.
    fn arguments(&self) -> Result<Arguments, Box<Failure>> {
        let Payload::Function(text) = &self.request.payload else {
            let message = "mcp handler received unsupported payload";
            return Err(Box::new(Failure::new(Stage::Payload, Code::UnsupportedPayload, message)));
        };
        Arguments::parse(text)
            .map_err(|bad| Box::new(Failure::new(Stage::Arguments, Code::InvalidArguments, format!("err: {bad}"))))
    }

    /// Steps 4 and 5: the server is ready or will not be, and the call is fixed.
    async fn bind(&mut self, arguments: Arguments) -> Result<prepare::Prepared, Box<Failure>> {
        let target = &self.request.target;
        // R8: while a layer cannot be read nobody knows which tools there are; the refusal comes before "not available".
        let refusals: BTreeSet<Refusal> = self.pipeline.catalog.current().policies().refusals.iter().cloned().collect();
        if !refusals.is_empty() {
            return Err(Box::new(refused(target, &refusals)));
        }
        let reference = target.resolved().ok_or_else(|| Failure::not_available(target))?;
        await_ready::await_ready(&*self.pipeline.fleet, &reference.server, &self.request.caller).await;
        // R25, as for connectors: before anything else is said about the call.
        let snapshot = self.pipeline.catalog.current();
        let listed = snapshot.find(&reference);
        let known = &self.request.definitions;
        if let Some(unshown) = listed.and_then(|listed| known.hidden(listed.tool(), snapshot.policies())) {
            return Err(self.hidden(unshown));
        }
        match prepare::prepare(&self.pipeline.catalog, &reference, arguments, self.request.seen).await {
            Ok(prepared) => Ok(prepared),
            Err(unprepared) => Err(match self.disabled(&reference).await {
                Some(disabled) => disabled,
                None => self.unprepared(unprepared).await,
            }),
        }
    }

    /// R27: opened before anybody decides, but nothing is said about a file of a call whose tool is hidden (R25).
    async fn open_files(&self, prepared: prepare::Prepared) -> Result<prepare::Prepared, Box<Failure>> {
        let reference = prepared.reference();
        match bind::files::open(prepared).await {
            Ok(prepared) => Ok(prepared),
            Err(failure) => Err(self.disabled(&reference).await.unwrap_or(failure)),
        }
    }

    /// R25: what else is wrong with the call of a hidden tool is not said, or it would tell that the tool is there.
    async fn disabled(&self, reference: &ToolRef) -> Option<Box<Failure>> {
        let snapshot = self.pipeline.catalog.current();
        let listed = snapshot.find(reference)?;
        let now_ms = u64::try_from(self.pipeline.clock.now().as_millisecond()).unwrap_or(0);
        let judged = connector::judge(snapshot.policies(), listed.tool(), &self.request.caller, now_ms).await;
        let by = judged.folded.disabled;
        (!by.is_empty()).then(|| Box::new(connector::disabled(&self.request.target, &by)))
    }

    /// Steps 6, 8 and 9: decided, agreed to where it must be, and leased. Decided again when only the policies changed.
    async fn consent(
        &mut self,
        mut prepared: prepare::Prepared,
        stated: &Stated,
    ) -> Result<barrier::Lease, Box<Failure>> {
        let pipeline = self.pipeline;
        self.compare(&prepared, stated).await?;
        let reviewer = self.drift.telling(Arc::clone(&self.request.reviewer));
        let changed = self.drift.reason.clone();
        let who = Approvers {
            catalog: &pipeline.catalog,
            grants: &*pipeline.grants,
            reviewer: &*reviewer,
            clock: &*pipeline.clock,
            stated,
            changed: changed.as_ref(),
            deadline: pipeline.ask_deadline,
        };
        let (mut agreed, mut sofar) = (Agreed::default(), files::Sofar::default());
        loop {
            let (id, caller) = (&self.request.id, &self.request.caller);
            let approved = match approve::approve(&who, id, caller, prepared, &mut agreed).await {
                Ok(approved) => approved,
                Err(refused) => {
                    let policies = Arc::clone(&refused.policies);
                    let decision = refused.decision.clone();
                    let record = self.record_of(&refused.prepared, policies, decision, Consent::Refused);
                    if let Err(error) = pipeline.recorder.decision(&record) {
                        tracing::warn!(%error, "the record of a refusal was lost");
                    }
                    pipeline.observatory.start(&record, refused.observers);
                    self.decision = Some(refused.decision);
                    return Err(refused.failure);
                }
            };
            self.decision = Some(approved.decision().clone());
            self.take_turn(approved.prepared()).await;
            let barrier::NotLeased { refusal, approved } = match self.lease(approved, &mut sofar).await? {
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
        match files::upload(catalog, &approved, sofar, turn, progress).await {
            Ok(uploads) => Ok(barrier::lease(catalog, approved, uploads)),
            Err(files::NotUploaded::Refused(refusal)) => refuse(refusal, approved),
            Err(files::NotUploaded::Failed(failure)) => Err(failure),
        }
    }

    /// The dry run: the same steps up to the barrier.
    async fn would(&mut self) -> Result<Would, Box<Failure>> {
        let prepared = self.bind(self.arguments()?).await?;
        let prepared = self.open_files(prepared).await?;
        let catalog = &self.pipeline.catalog;
        let policies = Arc::clone(catalog.current().policies());
        let now_ms = u64::try_from(self.pipeline.clock.now().as_millisecond()).unwrap_or(0);
        let stated = self.stated(&prepared);
        self.compare(&prepared, &stated).await?;
        let moments = stated.moments(now_ms, Effects::None, true).await;
        let moments = moments.map_err(|error| Failure::state_failed(Stage::Approval, error))?;
        let mut decided =
            decide::decide(&policies, &prepared, &self.request.caller, now_ms, &moments, self.drift.reason.as_ref())
                .await;
        if let Some(observers) = &decided.observers {
            let observed = observers.watch().await;
            decided.decision.voices.extend(observed.voices);
            decided.decision.connectors.extend(observed.connectors);
        }
        self.decision = Some(decided.decision.clone());
        let standing = Standing {
            target: &self.request.target,
            subject: &remember::subject(&prepared, &self.request.caller),
            arguments: prepared.bound(),
            answered: &Answered::default(),
            now_ms,
            reviewer: policies.postures.reviewer(),
            widest: &|asks| ask::widest(&prepared, asks),
        };
        Ok(match settle(&decided, &*self.pipeline.grants, &standing) {
            Settled::Run { grant } => Would::Run { grant: grant.map(|grant| grant.id) },
            Settled::Ask { options, .. } => Would::Ask { options },
            Settled::Refuse(failure) => Would::Fail(*failure),
        })
    }

    /// R24: is the definition the one that was accepted?
    async fn compare(&mut self, prepared: &prepare::Prepared, stated: &Stated) -> Result<(), Box<Failure>> {
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

    fn stated(&self, prepared: &prepare::Prepared) -> Stated {
        let pipeline = self.pipeline;
        Stated::of(&pipeline.state, &pipeline.clock, &self.request.id, &self.request.caller, prepared)
    }

    /// What the failure shows of a definition that changed is cleaned first. One that is withheld is that of a hidden tool.
    async fn unprepared(&mut self, unprepared: prepare::Unprepared) -> Box<Failure> {
        let prepare::Unprepared { mut failure, changed } = unprepared;
        let Some(tool) = changed else { return failure };
        match Eyes::of(self.pipeline, &self.request).serve(&tool).await {
            Ok(definition) => {
                // What was seen is told by what is called: the server's own definition.
                self.shown = stale::show(&mut failure, &definition).then(|| tool.definition.digest());
                failure
            }
            Err(unshown) => self.hidden(unshown),
        }
    }

    fn hidden(&self, unshown: Unshown) -> Box<Failure> {
        Box::new(Failure::hidden(&self.request.target, unshown.origin, &unshown.why))
    }

    fn info(&self, arguments: Arguments) -> CallInfo {
        let request = &self.request;
        CallInfo::unknown(request.id.clone(), request.target.clone(), request.caller.clone(), arguments)
    }

    fn record(&self, approved: &Approved, consent: Consent) -> DecisionRecord {
        self.record_of(approved.prepared(), Arc::clone(approved.policies()), approved.decision().clone(), consent)
    }

    fn record_of(
        &self,
        prepared: &prepare::Prepared,
        policies: Arc<PolicySet>,
        decision: Decision,
        consent: Consent,
    ) -> DecisionRecord {
        let deciding = Deciding { policies, decision, consent };
        record::of(&*self.pipeline.clock, &self.request.id, &self.request.caller, prepared, deciding)
    }

    /// Where what the server asks meanwhile arrives, if this caller's client can be asked at all.
    fn desk(&mut self, prepared: &prepare::Prepared) -> Option<Arc<Desk>> {
        let client = self.request.questions.take()?;
        let pipeline = self.pipeline;
        Some(Arc::new(Desk {
            client,
            reviewer: Arc::clone(&self.request.reviewer),
            catalog: Arc::clone(&pipeline.catalog),
            recorder: Arc::clone(&pipeline.recorder),
            clock: Arc::clone(&pipeline.clock),
            state: Arc::clone(&pipeline.state),
            observatory: Arc::clone(&pipeline.observatory),
            call: self.request.id.clone(),
            caller: self.request.caller.clone(),
            prepared: prepared.reply(Arguments::none()),
            deadline: pipeline.ask_deadline,
            open: Arc::new(watch::Sender::new(0)),
            asked: AtomicUsize::new(0),
            spent: Mutex::default(),
            passage: self.inside.as_ref().map(Inside::passage),
        }))
    }

    fn cancelled(&self) -> Box<Failure> {
        let sent = self.started.as_ref().is_some_and(Started::is_sent);
        let message =
            if sent { "the call was cancelled after it was sent; it may have run" } else { "the call was cancelled" };
        let stage = match &self.started {
            Some(_) if sent => Stage::Call,
            Some(_) => Stage::Approval,
            None => Stage::Prepare,
        };
        Box::new(Failure::new(stage, Code::Cancelled, message))
    }

    /// Completes the call. One that failed before it could start gets its pair here (R40).
    fn finish(mut self, ended: Result<Clean, Box<Failure>>) -> Finished {
        let clean = ended.unwrap_or_else(|failure| Clean::of_failure(*failure));
        // The next call of whoever reads the item finds this one ended.
        drop(self.noted.take());
        let started = match self.started {
            Some(started) => started,
            None => {
                let (recorder, clock) = (Arc::clone(&self.pipeline.recorder), Arc::clone(&self.pipeline.clock));
                let request = self.request;
                let arguments = self.arguments.unwrap_or_else(Arguments::none);
                let info = CallInfo::unknown(request.id, request.target, request.caller, arguments);
                Started::open(recorder, clock, info, self.begun)
            }
        };
        let item = started.complete(clean.outcome().clone());
        Finished { clean, item, decision: self.decision, shown: self.shown }
    }
}
