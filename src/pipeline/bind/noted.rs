//! A call as the state follows it: noted as open, then as run or refused, on every path.
//!
//! The note is made when the call is bound. Whatever drops it, a cancelled task included, ends it: a call that was not sent
//! counts as refused, and what its counters reserved or committed is released (R33).
//!
//! Reading and committing happen off the reactor; what drops a note waits for one short write.

use std::sync::Arc;

use jiff::Timestamp;

use crate::model::caller::Caller;
use crate::model::name::{CallId, ToolRef};
use crate::model::verdict::Label;
use crate::pipeline::bind::prepare::Prepared;
use crate::ports::approval::{Kind, PastState};
use crate::ports::clock::Clock;
use crate::ports::state::{Effects, Moment, Pin, PolicyState, StateFailed, StatedCall};

/// A call and where its state is kept.
#[derive(Clone)]
pub struct Stated {
    state: Arc<dyn PolicyState>,
    clock: Arc<dyn Clock>,
    call: Arc<(CallId, Caller, Kind, ToolRef)>,
}

/// What components of one decision know of what was before.
#[derive(Debug, Clone)]
pub struct Moments {
    /// What those see that count.
    pub asked: Moment,
    /// What observed ones see: nothing of theirs is kept (R16).
    pub observed: Moment,
}

impl Stated {
    /// The state of this prepared call. An answer to a server's question is a call of its own here.
    #[must_use]
    pub fn of(
        state: &Arc<dyn PolicyState>,
        clock: &Arc<dyn Clock>,
        id: &CallId,
        caller: &Caller,
        prepared: &Prepared,
    ) -> Self {
        let id = if prepared.kind() == Kind::Reply { CallId::fresh() } else { id.clone() };
        let call = Arc::new((id, caller.clone(), prepared.kind(), prepared.reference()));
        Self { state: Arc::clone(state), clock: Arc::clone(clock), call }
    }

    /// Returns the moments for one decision; `observing`: some component is only observed.
    ///
    /// # Errors
    /// [`StateFailed`]; the call is refused then.
    pub async fn moments(&self, now_ms: u64, effects: Effects, observing: bool) -> Result<Moments, StateFailed> {
        self.off_reactor(move |state, call| {
            let asked = state.moment(call, now_ms, effects)?;
            let observed = match effects {
                Effects::None => asked.clone(),
                Effects::Reserve if !observing => Moment::empty(),
                Effects::Reserve => {
                    let counters = state.moment(call, now_ms, Effects::None)?.counters;
                    Moment { counters, ..asked.clone() }
                }
            };
            Ok(Moments { asked, observed })
        })
        .await
    }

    async fn off_reactor<T: Send + 'static>(
        &self,
        step: impl FnOnce(&dyn PolicyState, StatedCall<'_>) -> Result<T, StateFailed> + Send + 'static,
    ) -> Result<T, StateFailed> {
        let this = self.clone();
        let done = tokio::task::spawn_blocking(move || step(&*this.state, this.call()));
        done.await.unwrap_or_else(|_ended| Err(StateFailed("the step was broken off".to_owned())))
    }

    fn call(&self) -> StatedCall<'_> {
        let (id, caller, kind, tool) = &*self.call;
        StatedCall { id, caller, kind: *kind, tool }
    }

    /// Returns what the caller's tenant has accepted of these tools' definitions, in their order (R24).
    ///
    /// # Errors
    /// [`StateFailed`]; the call is refused then.
    pub async fn pinned(&self, tools: Vec<ToolRef>) -> Result<Vec<Option<Pin>>, StateFailed> {
        if tools.is_empty() {
            return Ok(Vec::new());
        }
        let read = move |state: &dyn PolicyState, call: StatedCall<'_>| {
            tools.iter().map(|tool| state.pinned(&call.caller.tenant, tool)).collect()
        };
        self.off_reactor(read).await
    }

    /// Keeps what the caller's tenant has accepted.
    ///
    /// # Errors
    /// [`StateFailed`]; the call is refused then.
    pub async fn pin(&self, pins: Arc<[(ToolRef, Pin)]>) -> Result<(), StateFailed> {
        if pins.is_empty() {
            return Ok(());
        }
        let write = move |state: &dyn PolicyState, call: StatedCall<'_>| {
            pins.iter().try_for_each(|(tool, pin)| state.pin(&call.caller.tenant, tool, pin))
        };
        self.off_reactor(write).await
    }

    /// Returns the labels of the caller's principal.
    ///
    /// # Errors
    /// [`StateFailed`]; the answer is withheld then.
    pub async fn labels(&self) -> Result<Arc<[Label]>, StateFailed> {
        let now_ms = self.now_ms();
        self.off_reactor(move |state, call| state.moment(call, now_ms, Effects::None).map(|moment| moment.labels)).await
    }

    /// Sets labels of sanitisers, before the answer is shown.
    ///
    /// # Errors
    /// [`StateFailed`]; the answer is withheld then.
    pub async fn label(&self, labels: Vec<Label>) -> Result<(), StateFailed> {
        let now_ms = self.now_ms();
        self.off_reactor(move |state, call| state.label(call.caller, now_ms, &labels)).await
    }

    /// Returns who calls.
    #[must_use]
    pub fn caller(&self) -> &Caller {
        &self.call.1
    }

    /// Returns the time of day.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns the time of day in milliseconds since the Unix epoch.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.clock.now().as_millisecond()).unwrap_or(0)
    }
}

/// A call that is noted as open.
pub struct Noted {
    stated: Stated,
    sent: bool,
}

impl Noted {
    /// Notes the call as open.
    #[must_use]
    pub fn open(stated: Stated) -> Self {
        stated.state.note(stated.call(), stated.now_ms(), PastState::Open);
        Self { stated, sent: false }
    }

    /// Returns the call's state.
    #[must_use]
    pub fn stated(&self) -> &Stated {
        &self.stated
    }

    /// Keeps the effects of the decision, right before the hand-over.
    ///
    /// # Errors
    /// [`StateFailed`]; the call is refused then.
    pub async fn commit(&self, labels: Vec<Label>) -> Result<(), StateFailed> {
        let now_ms = self.stated.now_ms();
        self.stated.off_reactor(move |state, call| state.commit(call, now_ms, &labels)).await
    }

    /// Says whether the call was sent.
    pub fn set_sent(&mut self, sent: bool) {
        self.sent = sent;
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        let how = if self.sent { PastState::Ran } else { PastState::Refused };
        self.stated.state.note(self.stated.call(), self.stated.now_ms(), how);
    }
}
