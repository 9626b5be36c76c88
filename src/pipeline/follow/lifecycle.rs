//! A guard that gives exactly one completed item for each started one, on every path.
//!
//! The guard is made with the started item and spent with the completed one. If it is dropped instead, because the task was
//! cancelled, shut down or panicked, it completes the call as cancelled or internal: a started item is never left alone.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::time::Instant;
use tracing::Span;

use crate::model::cleaning::SanitiserVoice;
use crate::model::hook::HookVoice;
use crate::model::item::{CallInfo, CompletedItem, Item, StartedItem, Status};
use crate::model::outcome::{Code, Durations, Failure, Outcome, Stage};
use crate::model::review::ReviewVoice;
use crate::pipeline::bind::people::People;
use crate::pipeline::emit::views::event::EventView;
use crate::ports::clock::Clock;
use crate::ports::recorder::Recorder;
use crate::ports::telemetry;

/// A call that has started and not ended.
pub struct Started {
    recorder: Arc<dyn Recorder>,
    clock: Arc<dyn Clock>,
    call: CallInfo,
    people: Arc<People>,
    span: Span,
    /// When the request was handed over, and how long people had been waited for by then.
    sent: Option<(Instant, Duration)>,
    sanitisers: Vec<SanitiserVoice>,
    tool_input: Option<Arc<Map<String, Value>>>,
    polluted: bool,
    hooks: Vec<HookVoice>,
    reviews: Vec<ReviewVoice>,
    spent: bool,
}

impl Started {
    /// Sends the started item. The call's wall time counts from when `people` begins; `span` is told how the call ends.
    #[must_use]
    pub fn open(
        recorder: Arc<dyn Recorder>,
        clock: Arc<dyn Clock>,
        call: CallInfo,
        people: Arc<People>,
        span: Span,
    ) -> Self {
        let item = StartedItem { call: call.clone(), status: Status::InProgress, started_at: clock.now() };
        recorder.item(&Item::Started(item));
        let (sent, sanitisers, tool_input) = (None, Vec::new(), None);
        let (polluted, hooks, reviews, spent) = (false, Vec::new(), Vec::new(), false);
        Self { recorder, clock, call, people, span, sent, sanitisers, tool_input, polluted, hooks, reviews, spent }
    }

    /// Notes that the request was handed over; the call's own duration counts from there.
    pub fn sent(&mut self, at: Instant) {
        self.sent = Some((at, self.people.took()));
    }

    /// Notes what was sent in the place of the arguments (catalog-dispatch 5, step 10d).
    pub fn rewritten(&mut self, input: Option<Map<String, Value>>) {
        self.tool_input = input.map(Arc::new);
    }

    /// Notes that the call pollutes its thread's memory (step 10c).
    pub fn polluted(&mut self) {
        self.polluted = true;
    }

    /// Notes what sanitisers said of the answer.
    pub fn sanitised(&mut self, voices: Vec<SanitiserVoice>) {
        self.sanitisers = voices;
    }

    /// Notes what hooks and the auto reviewer said of the call.
    pub fn said(&mut self, hooks: Vec<HookVoice>, reviews: Vec<ReviewVoice>) {
        (self.hooks, self.reviews) = (hooks, reviews);
    }

    /// Returns what was sent in the place of the arguments, if that is something else.
    #[must_use]
    pub fn tool_input(&self) -> Option<&Map<String, Value>> {
        self.tool_input.as_deref()
    }

    /// Whether the request was handed over.
    #[must_use]
    pub fn is_sent(&self) -> bool {
        self.sent.is_some()
    }

    /// Sends the completed item, and returns it. `view` is what it shows of the answer.
    #[must_use]
    pub fn complete(mut self, outcome: Outcome, view: EventView) -> CompletedItem {
        self.spent = true;
        self.emit(outcome, view)
    }

    fn emit(&self, outcome: Outcome, view: EventView) -> CompletedItem {
        telemetry::ended(&self.span, &outcome);
        let (result, error) = view.into_parts();
        let item = CompletedItem {
            call: self.call.clone(),
            status: CompletedItem::status_of(&outcome),
            outcome,
            completed_at: self.clock.now(),
            durations: self.durations(),
            tool_input: self.tool_input.clone(),
            result,
            error,
            sanitisers: self.sanitisers.clone(),
            pollutes_memory: self.polluted,
            hooks: self.hooks.clone(),
            reviews: self.reviews.clone(),
        };
        self.recorder.item(&Item::Completed(item.clone()));
        item
    }

    fn durations(&self) -> Durations {
        let (wall, people) = (self.people.begun().elapsed(), self.people.took());
        let (call, before) = self.sent.map_or((Duration::ZERO, people), |(sent, before)| (sent.elapsed(), before));
        Durations { wall, call, people, people_in_call: people.saturating_sub(before) }
    }

    /// The failure of a call that ends without anybody saying how.
    fn abandoned(&self) -> Failure {
        let stage = if self.sent.is_some() { Stage::Call } else { Stage::Approval };
        let (code, what) = if std::thread::panicking() {
            (Code::Internal, "the call ended by a defect of the host")
        } else {
            (Code::Cancelled, "the call was cancelled")
        };
        let after = if self.sent.is_some() { "; it was sent and may have run" } else { " before it was sent" };
        Failure::new(stage, code, format!("{what}{after}"))
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if !self.spent {
            let failure = self.abandoned();
            let view = EventView::of_failure(&failure);
            let _completed = self.emit(Outcome::Failed(failure), view);
        }
    }
}
