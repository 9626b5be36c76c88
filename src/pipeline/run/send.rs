//! Step 10 and after: handed over, answered, cleaned.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use parking_lot::Mutex;
use tokio::sync::watch;
use tracing::Instrument as _;

use super::Call;
use crate::model::arguments::Arguments;
use crate::model::outcome::{Code, Failure};
use crate::pipeline::admit::gate::Inside;
use crate::pipeline::bind::noted::{Noted, Stated};
use crate::pipeline::bind::prepare;
use crate::pipeline::dispatch::memory::Marking;
use crate::pipeline::dispatch::questions::Desk;
use crate::pipeline::dispatch::{barrier, call};
use crate::pipeline::emit::finish::Finishing;
use crate::pipeline::emit::sanitise::Clean;
use crate::pipeline::follow::lifecycle::Started;
use crate::ports::telemetry::Phase;

impl Call<'_> {
    /// Hands a leased call over, and waits for its answer.
    pub(super) async fn send(&mut self, lease: barrier::Lease, stated: &Stated) -> Result<Clean, Box<Failure>> {
        let pipeline = self.pipeline;
        let input = lease.uploads().tool_input(lease.approved().prepared());
        let record = self.record(lease.approved(), lease.approved().consent().clone());
        let server = lease.approved().prepared().reference().server;
        let connection = Arc::clone(&lease.approved().prepared().server().connection);
        let (tool, kind) = (Arc::clone(lease.approved().prepared().tool()), lease.approved().prepared().kind());
        let arguments = record.arguments;
        let progress = self.request.progress.clone();
        let desk = self.desk(lease.approved().prepared());
        let (grants, recorder) = (&*pipeline.grants, &*pipeline.recorder);
        let handing = self.phase(Phase::HandOver);
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
        let handed = handed.instrument(handing).await;
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
                sent.wait().instrument(self.phase(Phase::Answer)).await
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
        let (call, takes) = (&self.request.id, self.request.takes);
        let finishing = Finishing { catalog, observatory, stated, call, tool: &tool, kind, arguments, takes };
        let (clean, voices) = finishing.clean(raw).instrument(self.phase(Phase::Sanitise)).await;
        if let Some(started) = &mut self.started {
            started.sanitised(voices);
        }
        Ok(clean)
    }

    /// Where what the server asks meanwhile arrives, if this caller's client can be asked at all.
    fn desk(&mut self, prepared: &prepare::Prepared) -> Option<Arc<Desk>> {
        let client = self.request.questions.take()?;
        let pipeline = self.pipeline;
        Some(Arc::new(Desk {
            client,
            reviewer: Arc::clone(&self.request.reviewer),
            progress: self.request.progress.clone(),
            breaker: Arc::clone(&self.request.breaker),
            title_hidden: self.title_hidden,
            evidence: self.request.evidence.as_ref().map(|store| store.evidence()).unwrap_or_default(),
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
            people: Arc::clone(&self.people),
            span: self.span.clone(),
            passage: self.inside.as_ref().map(Inside::passage),
        }))
    }
}
