//! Hands the request over, waits for the answer, and gives up after the tool's timeout.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::barrier::Lease;
use super::memory::Marking;
use super::meta::{TurnInfo, request_meta};
use super::questions::{Desk, time_is_over};
use crate::model::answer::Answer;
use crate::model::caller::Caller;
use crate::model::name::{CallId, Target, ToolRef};
use crate::model::outcome::{Code, Failure, Stage};
use crate::model::text;
use crate::pipeline::bind::noted::Noted;
use crate::ports::grants::{Grant, Grants, NotRemembered};
use crate::ports::questions::Questions;
use crate::ports::recorder::{Consent, DecisionRecord, RecordFailed, Recorder};
use crate::ports::state::Pin;
use crate::ports::upstream::{InFlight, OutgoingCall, ProgressSink, Unanswered};

/// A request that was handed over. Dropping it tells the upstream that it is cancelled.
pub struct Sent {
    in_flight: Box<dyn InFlight>,
    target: Target,
    timeout: Duration,
    at: Instant,
    open: Option<watch::Receiver<usize>>,
}

/// The upstream's answer, not yet cleaned: nothing but `emit::media` may look at it.
#[derive(Debug)]
pub struct Raw {
    answer: Answer,
    target: Target,
}

/// What belongs to a call besides what was approved.
pub struct With<'a> {
    /// Its id.
    pub id: &'a CallId,
    /// Who calls.
    pub caller: &'a Caller,
    /// What the state knows of it.
    pub noted: &'a mut Noted,
    /// Its turn.
    pub turn: &'a TurnInfo,
    /// The definitions that its hand-over accepts (R24).
    pub accepts: Arc<[(ToolRef, Pin)]>,
    /// The memory of its thread, where somebody wants to know that it is polluted.
    pub memory: Option<Marking<'a>>,
    /// Where progress goes, if it is wanted.
    pub progress: Option<Arc<dyn ProgressSink>>,
    /// Who answers what the server asks meanwhile.
    pub desk: Option<Arc<Desk>>,
}

/// Everything that happens under the lease, and the hand-over.
///
/// In this order: metadata, the grant is kept, the decision is recorded, labels and counters are committed, the lease is
/// spent, the thread's memory is marked as polluted, the request goes to the transport. A grant of a call that is then not sent is forgotten again; its labels and
/// counters are taken back when the call ends.
///
/// # Errors
/// A [`Failure`]: stale, not recorded, not committed, or not sent. Nothing has reached the upstream.
pub async fn hand_over(
    lease: Lease,
    with: With<'_>,
    grants: &dyn Grants,
    recorder: &dyn Recorder,
    mut record: DecisionRecord,
) -> Result<Sent, Box<Failure>> {
    let approved = lease.approved();
    let prepared = approved.prepared();
    let target = Target::from(prepared.reference());
    let outgoing = OutgoingCall {
        tool: prepared.tool().definition.name().clone(),
        arguments: lease.uploads().rewritten(prepared)?,
        meta: request_meta(with.id, prepared, with.turn),
        progress: with.progress,
        caller: with.caller.clone(),
        questions: with.desk.clone().map(|desk| desk as Arc<dyn Questions>),
    };
    let open = with.desk.as_ref().map(|desk| desk.open.subscribe());
    let (kept, not_kept) = Kept::keep(grants, approved.grant());
    if let (Some(error), Consent::Agreed { not_remembered, .. }) = (not_kept, &mut record.consent) {
        tracing::warn!(%error, "approval not remembered");
        *not_remembered = true;
    }
    recorder.decision(&record).map_err(unrecorded)?;
    if let Err(error) = with.noted.commit(approved.labels().to_vec()).await {
        return Err(Box::new(Failure::state_failed(Stage::Lease, error)));
    }
    if let Err(error) = with.noted.stated().pin(with.accepts).await {
        return Err(Box::new(Failure::state_failed(Stage::Lease, error)));
    }
    let spent = Spent::take(grants, approved.spends(), &target)?;
    if !lease.begin_hand_over() {
        return Err(Box::new(Failure::stale(&target)));
    }
    // Only now is it certain that the call is not stale; before its answer can be read.
    if let Some(marking) = with.memory.filter(|_| prepared.server().view.pollutes_memory) {
        marking.mark();
    }
    let connection = Arc::clone(&prepared.server().connection);
    let timeout = prepared.server().view.tool_timeout;
    let at = Instant::now();
    let why = match tokio::time::timeout_at(at + timeout, connection.hand_over(outgoing)).await {
        Ok(Ok(in_flight)) => {
            kept.confirm();
            spent.confirm();
            with.noted.set_sent(true);
            return Ok(Sent { in_flight, target, timeout, at, open });
        }
        Ok(Err(not_sent)) => not_sent.to_string(),
        // Dropping a hand-over that is not through hands nothing over.
        Err(_elapsed) => format!("the transport took nothing within {}", text::seconds(timeout)),
    };
    let message = format!("tool call error: tool call failed for `{}`: it was not sent", shown(&target));
    Err(Box::new(Failure::new(Stage::Call, Code::NotSent, message).detail(why)))
}

/// R34: without a record nothing leaves the host.
pub(in crate::pipeline) fn unrecorded(error: RecordFailed) -> Box<Failure> {
    let message = "the decision could not be recorded, so the call was refused";
    let failure = Failure::new(Stage::Record, Code::RecordFailed, message);
    Box::new(failure.detail(format!("{error}: {}", error.0)))
}

/// A grant that was kept for a call which is not sent yet. Dropped before it is confirmed, it is forgotten again: whatever
/// ends the hand-over, a cancelled task included, leaves no grant of a call that was not sent.
struct Kept<'a> {
    grants: &'a dyn Grants,
    id: Option<String>,
}

impl<'a> Kept<'a> {
    fn keep(grants: &'a dyn Grants, grant: Option<&Grant>) -> (Self, Option<NotRemembered>) {
        let Some(grant) = grant else { return (Self { grants, id: None }, None) };
        match grants.store(grant.clone()) {
            Ok(()) => (Self { grants, id: Some(grant.id.clone()) }, None),
            Err(error) => (Self { grants, id: None }, Some(error)),
        }
    }

    fn confirm(mut self) {
        self.id = None;
    }
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        if let Some(id) = &self.id {
            self.grants.forget(id);
        }
    }
}

/// A grant for one call that this call uses up (R17). Dropped before it is confirmed, it is put back: the call was not sent.
struct Spent<'a> {
    grants: &'a dyn Grants,
    grant: Option<Grant>,
}

impl<'a> Spent<'a> {
    fn take(grants: &'a dyn Grants, grant: Option<&Grant>, target: &Target) -> Result<Self, Box<Failure>> {
        let Some(grant) = grant else { return Ok(Self { grants, grant: None }) };
        match grants.take(&grant.id) {
            Ok(true) => Ok(Self { grants, grant: Some(grant.clone()) }),
            Ok(false) => {
                let message = format!(
                    "MCP tool call `{}` was refused because the approval for it was for one call, and another call has used \
                     it; make the call again to be asked",
                    shown(target)
                );
                Err(Box::new(Failure::new(Stage::Lease, Code::GrantSpent, message)))
            }
            Err(error) => Err(Box::new(Failure::state_failed(Stage::Lease, error))),
        }
    }

    fn confirm(mut self) {
        self.grant = None;
    }
}

impl Drop for Spent<'_> {
    fn drop(&mut self) {
        if let Some(grant) = self.grant.take()
            && let Err(error) = self.grants.store(grant)
        {
            tracing::warn!(%error, "an approval for one call is lost, although the call was not sent");
        }
    }
}

impl Sent {
    /// Returns when the request was handed over.
    #[must_use]
    pub fn at(&self) -> Instant {
        self.at
    }

    /// Waits for the answer, at most the tool's timeout, in which open questions of the server do not count. Dropping the future cancels the request.
    ///
    /// # Errors
    /// A [`Failure`]: timeout (the upstream is told), or connection lost, which is ambiguous: the call may have run.
    pub async fn wait(mut self) -> Result<Raw, Box<Failure>> {
        let left = self.timeout.saturating_sub(self.at.elapsed());
        let answered = tokio::select! {
            biased;
            answered = self.in_flight.answer() => Some(answered),
            () = time_is_over(left, self.open.take()) => None,
        };
        match answered {
            Some(Ok(answer)) => Ok(Raw { answer, target: self.target }),
            Some(Err(unanswered)) => Err(Box::new(failure(&self.target, &unanswered))),
            None => {
                let message = format!(
                    "tool call error: tool call failed for `{}`: timed out awaiting tools/call after {}; the call may have run",
                    shown(&self.target),
                    text::seconds(self.timeout)
                );
                self.in_flight.cancel("the tool timeout is over").await;
                Err(Box::new(Failure::new(Stage::Call, Code::Timeout, message)))
            }
        }
    }
}

/// What a call without an answer has come to.
fn failure(target: &Target, unanswered: &Unanswered) -> Failure {
    let (code, what) = match unanswered {
        Unanswered::Lost(_) => (Code::Ambiguous, "the connection was lost; the call may have run"),
        Unanswered::NotSent(_) => (Code::NotSent, "it was not sent"),
        Unanswered::Question(_) => {
            (Code::QuestionRefused, "the server asked what could not be answered; it may have run in part")
        }
    };
    let message = format!("tool call error: tool call failed for `{}`: {what}", shown(target));
    Failure::new(Stage::Call, code, message).detail(unanswered.to_string())
}

impl Raw {
    /// Gives the answer to whoever fits it to the model.
    pub(in crate::pipeline) fn into_parts(self) -> (Answer, Target) {
        (self.answer, self.target)
    }
}

fn shown(target: &Target) -> String {
    text::shown(&target.to_string(), 256)
}
