//! The list of steps, and what each failure becomes.

mod consent;
mod hooks;
mod send;
mod would;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{Instrument as _, Span};

use self::hooks::Behind;
use super::admit::catalog::Catalog;
use super::admit::gate::Inside;
use super::admit::slots::Slot;
use super::bind::hooks::{HookFacts, HookText};
use super::bind::noted::Noted;
use super::bind::people::People;
use super::bind::{self, await_ready, prepare};
use super::consent::agree::Said;
use super::consent::connector;
use super::consent::observe::Observatory;
use super::consent::remember::RelatedGrant;
use super::consent::review;
use super::consent::settle::refused;
use super::drift::{Accepted, Drift};
use super::emit::sanitise::{Clean, ShownDefinition, Unshown};
use super::emit::views::event::EventView;
use super::emit::views::stale;
use super::eyes::Eyes;
use super::follow::lifecycle::Started;
use super::follow::pending::PendingCalls;
use super::request::{CallRequest, Explanation, Finished, Payload, Would};
use crate::model::app::ToolFacts;
use crate::model::arguments::Arguments;
use crate::model::decision::Decision;
use crate::model::digest::Digest;
use crate::model::item::CallInfo;
use crate::model::name::ToolRef;
use crate::model::outcome::{Code, Failure, Stage};
use crate::model::tool::CatalogTool;
use crate::model::verdict::Refusal;
use crate::ports::clock::Clock;
use crate::ports::grants::Grants;
use crate::ports::recorder::Recorder;
use crate::ports::state::PolicyState;
use crate::ports::telemetry::{self, About, Phase};
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
        let span = telemetry::call(About::target(&request.id, &request.target));
        // Boxed: the whole of a call, with all that its phases hold, is no size for a caller's stack.
        Box::pin(self.watched(request, span.clone())).instrument(span).await
    }

    async fn watched(&self, request: CallRequest, span: Span) -> Finished {
        let cancel = request.cancel.clone();
        let (source, evidence) = (request.source.clone(), request.evidence.clone());
        let mut call = Call::new(self, request, span);
        let mut ended = tokio::select! {
            // An answer that is there wins over a cancellation that came with it.
            biased;
            ended = call.steps() => ended,
            () = cancel.cancelled() => Err(call.cancelled()),
        };
        if let Err(failure) = &mut ended {
            call.quote(failure).await;
        }
        let (mut finished, behind) = call.finish(ended);
        if let Some(behind) = behind {
            let clean = finished.clean.clone();
            finished.clean = tokio::select! {
                biased;
                clean = behind.hooks(clean) => clean,
                () = cancel.cancelled() => finished.clean.withhold(hooks::unheard(&finished.item.call.tool)),
            };
        }
        if let (Some(evidence), Some(tool)) = (evidence, finished.item.call.tool.resolved()) {
            let id = &finished.item.call.id;
            evidence.accept(&source, (&tool, id), &finished.clean, &cancel).await;
        }
        finished
    }

    /// Says what a call would come to, by the same steps up to the barrier. Asks nobody, sends no item, keeps nothing (R38).
    pub async fn explain(&self, request: CallRequest) -> Explanation {
        let mut call = Call::new(self, request, Span::none());
        match call.would().await {
            Ok(would) => call.explanation(would),
            Err(failure) => call.explanation(Would::Fail(*failure)),
        }
    }
}

/// One call on its way. The guard lives here, outside of the steps, so that it completes a call whose steps were dropped.
struct Call<'p> {
    pipeline: &'p Pipeline,
    request: CallRequest,
    people: Arc<People>,
    span: Span,
    arguments: Option<Arguments>,
    started: Option<Started>,
    noted: Option<Noted>,
    decision: Option<Decision>,
    shown: Option<Digest>,
    drift: Drift,
    inside: Option<Inside>,
    slots: Vec<Slot>,
    /// What hooks are told of the call, and its tool as it was found.
    facts: Option<(HookFacts, Arc<CatalogTool>)>,
    said: Said,
    words: Option<HookText>,
    interrupts: bool,
    /// Whether the tool's title is one that the sanitisers do not let be shown.
    title_hidden: bool,
    context: Vec<HookText>,
    related: Vec<RelatedGrant>,
}

impl<'p> Call<'p> {
    fn new(pipeline: &'p Pipeline, request: CallRequest, span: Span) -> Self {
        Self {
            pipeline,
            request,
            people: Arc::new(People::since(Instant::now())),
            span,
            arguments: None,
            started: None,
            noted: None,
            decision: None,
            shown: None,
            drift: Drift::default(),
            inside: None,
            slots: Vec::new(),
            facts: None,
            said: Said::default(),
            words: None,
            interrupts: false,
            title_hidden: false,
            context: Vec::new(),
            related: Vec::new(),
        }
    }

    /// The steps, in the order of the design's page 3.
    async fn steps(&mut self) -> Result<Clean, Box<Failure>> {
        let pipeline = self.pipeline;
        let session = self.request.caller.session.clone();
        let _pending = pipeline.pending.open(&session, &self.request.id, &self.request.target).ok_or_else(|| {
            Failure::new(Stage::Payload, Code::DuplicateId, "a call with this id is already running in this session")
        })?;
        let arguments = self.come_in().await?;
        self.arguments = Some(arguments.clone());
        let prepared = self.bind(arguments.clone()).await?;
        self.request.reviewer =
            Eyes::of(self.pipeline, &self.request).introducing(prepared.tool(), Arc::clone(&self.request.reviewer));
        let facts = self.known_of(prepared.tool()).await;
        let info = self.info(arguments).with_facts(facts);
        let (recorder, clock) = (Arc::clone(&pipeline.recorder), Arc::clone(&pipeline.clock));
        let (people, span) = (Arc::clone(&self.people), self.span.clone());
        self.started = Some(Started::open(recorder, clock, info, people, span));

        let stated = self.stated(&prepared);
        self.noted = Some(Noted::open(stated.clone()));
        let prepared = self.open_files(prepared).await?;

        let lease = self.consent(prepared, &stated).await?;

        self.send(lease, &stated).await
    }

    /// Steps 1 to 4: the payload's kind, the server, the `PreToolUse` hooks, and the arguments parsed once. What is wrong with
    /// the arguments is said before anything else about the tool.
    async fn come_in(&mut self) -> Result<Arguments, Box<Failure>> {
        let Payload::Function(text) = &self.request.payload else {
            return Err(unsupported());
        };
        let text = text.clone();
        if let Err(failure) = self.locate().await {
            return Err(parse(&text).err().unwrap_or(failure));
        }
        let replaced = self.hooks_ahead(&text).await?;
        self.phase(Phase::Arguments).in_scope(|| parse(replaced.as_deref().unwrap_or(&text)))
    }

    /// The span of a phase of this call.
    fn phase(&self, phase: Phase) -> Span {
        telemetry::phase(phase, About::target(&self.request.id, &self.request.target))
    }

    /// Step 4: the server is ready, or will not be.
    async fn locate(&mut self) -> Result<(), Box<Failure>> {
        let target = &self.request.target;
        // R8: while a layer cannot be read nobody knows which tools there are; the refusal comes before "not available".
        let refusals: BTreeSet<Refusal> = self.pipeline.catalog.current().policies().refusals.iter().cloned().collect();
        if !refusals.is_empty() {
            return Err(Box::new(refused(target, &refusals)));
        }
        self.uninterrupted()?;
        let reference = target.resolved().ok_or_else(|| Failure::not_available(target))?;
        let ready = await_ready::await_ready(&*self.pipeline.fleet, &reference.server, &self.request.caller);
        ready.instrument(self.phase(Phase::Ready)).await;
        // R25, as for connectors: before anything else is said about the call.
        let snapshot = self.pipeline.catalog.current();
        let Some(listed) = snapshot.find(&reference) else { return Ok(()) };
        match self.request.definitions.hidden(listed.tool(), snapshot.policies()) {
            Some(unshown) => Err(self.hidden(unshown)),
            None => {
                let facts = hooks::facts(&self.request, &snapshot, listed.tool());
                self.facts = Some((facts, Arc::clone(listed.tool())));
                Ok(())
            }
        }
    }

    /// Step 5: the call is fixed.
    async fn bind(&mut self, arguments: Arguments) -> Result<prepare::Prepared, Box<Failure>> {
        let reference = self.request.target.resolved().ok_or_else(|| Failure::not_available(&self.request.target))?;
        let prepared = prepare::prepare(&self.pipeline.catalog, &reference, arguments, self.request.seen);
        match prepared.instrument(self.phase(Phase::Prepare)).await {
            // It has come since its hooks would have been asked: the next call finds it.
            Ok(_) if self.facts.is_none() => Err(Box::new(Failure::not_available(&self.request.target))),
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
        match bind::files::open(prepared).instrument(self.phase(Phase::Files)).await {
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

    /// R40: where the session is the turn, nothing is sent any more once the auto reviewer has denied too much, whoever agrees.
    fn uninterrupted(&self) -> Result<(), Box<Failure>> {
        if self.request.breaker.holds() {
            return Err(Box::new(Failure::new(Stage::Approval, Code::Interrupted, review::INTERRUPTED)));
        }
        Ok(())
    }

    /// What items say of the tool: its definition's own words as the sanitisers leave them.
    async fn known_of(&mut self, tool: &CatalogTool) -> ToolFacts {
        let (meta, title) = (tool.definition.meta(), tool.definition.title());
        let shown = match (meta, title) {
            (None, None) => None,
            _ => Eyes::of(self.pipeline, &self.request).look_at(tool).await.ok(),
        };
        self.title_hidden = title.is_some() && shown.as_ref().and_then(ShownDefinition::title) != title;
        let meta = shown.as_ref().and_then(|shown| shown.value().get("_meta")?.as_object());
        ToolFacts::of(tool, meta)
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

    /// Completes the call. One that failed before it could start gets its pair here (R40). Also returns what is left to be
    /// heard of it: the `PostToolUse` hooks, and what hooks said for the model.
    fn finish(mut self, ended: Result<Clean, Box<Failure>>) -> (Finished, Option<Behind>) {
        let clean = ended.unwrap_or_else(|failure| Clean::of_failure(*failure));
        let complete = self.phase(Phase::Complete);
        // The next call of whoever reads the item finds this one ended.
        drop(self.noted.take());
        let behind = self.behind(&clean);
        let mut started = match self.started {
            Some(started) => started,
            None => {
                let (recorder, clock) = (Arc::clone(&self.pipeline.recorder), Arc::clone(&self.pipeline.clock));
                let request = self.request;
                let arguments = self.arguments.unwrap_or_else(Arguments::none);
                let info = CallInfo::unknown(request.id, request.target, request.caller, arguments);
                Started::open(recorder, clock, info, self.people, self.span)
            }
        };
        started.said(self.said.hooks, self.said.reviews);
        let item = complete.in_scope(|| started.complete(clean.outcome().clone(), EventView::of(&clean)));
        let (decision, shown, interrupts) = (self.decision, self.shown, self.interrupts);
        (Finished { clean, item, decision, shown, interrupts }, behind)
    }
}

fn unsupported() -> Box<Failure> {
    let message = "mcp handler received unsupported payload";
    Box::new(Failure::new(Stage::Payload, Code::UnsupportedPayload, message))
}

fn parse(text: &str) -> Result<Arguments, Box<Failure>> {
    Arguments::parse(text)
        .map_err(|bad| Box::new(Failure::new(Stage::Arguments, Code::InvalidArguments, format!("err: {bad}"))))
}
