//! Components that are only observed (R16): asked when the decision is settled, on a budget of their own, and never applied.
//!
//! A call does not wait for them. What they say is a record of its own, under the call's id. `explain`, which has no
//! hand-over, waits for them instead.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::decide::{ask, voice};
use crate::model::decision::Voice;
use crate::model::verdict::{Fault, FaultCode};
use crate::ports::approval::{Bound, BoundComponent, CallFacts, Evaluation};
use crate::ports::clock::Clock;
use crate::ports::recorder::{DecisionRecord, ObservedRecord, Recorder};
use crate::ports::sanitiser::{OutputFacts, Sanitised, SanitiserComponent};

/// How long all observed components of one decision may take together.
const OBSERVING: Duration = Duration::from_secs(1);
/// How many decisions may be observed at once. Beyond that an observation is given up, and its record says so.
const MAX_OBSERVED: usize = 64;

/// The observed components that match one call, with the facts that the decision was taken on.
#[derive(Debug, Clone)]
pub struct Observers {
    components: Vec<BoundComponent>,
    facts: Arc<CallFacts>,
}

impl Observers {
    /// Of components that match the call; none where nothing is observed.
    pub(super) fn new(components: Vec<BoundComponent>, facts: Arc<CallFacts>) -> Option<Self> {
        (!components.is_empty()).then_some(Self { components, facts })
    }

    /// Asks them all, side by side, and returns what they say in time.
    pub async fn watch(&self) -> Vec<Voice> {
        let until = Instant::now() + OBSERVING;
        let said = join_all(self.components.iter().map(|component| async move {
            let asked = tokio::time::timeout_at(until, ask(component, Arc::clone(&self.facts))).await;
            asked.unwrap_or_else(|_elapsed| over_budget("the time for observed components was over"))
        }));
        self.voices(said.await)
    }

    fn given_up(&self) -> Vec<Voice> {
        let why = "too many decisions were being observed";
        self.voices(self.components.iter().map(|_| over_budget(why)).collect())
    }

    fn voices(&self, said: Vec<Evaluation>) -> Vec<Voice> {
        self.components.iter().zip(said).map(|(component, said)| voice(component, None, said)).collect()
    }
}

fn over_budget(why: &str) -> Evaluation {
    Evaluation::failed(Fault::new(FaultCode::Budget, why))
}

/// Runs observers in the background and records what they say.
pub struct Observatory {
    tasks: TaskTracker,
    places: Arc<Semaphore>,
    recorder: Arc<dyn Recorder>,
    clock: Arc<dyn Clock>,
}

impl Observatory {
    /// Makes one that observes nothing yet.
    #[must_use]
    pub fn new(recorder: Arc<dyn Recorder>, clock: Arc<dyn Clock>) -> Self {
        let places = Arc::new(Semaphore::new(MAX_OBSERVED));
        Self { tasks: TaskTracker::new(), places, recorder, clock }
    }

    /// Starts to observe the decision of a record that is already kept. Returns at once.
    pub fn start(&self, record: &DecisionRecord, observers: Option<Observers>) {
        let Some(observers) = observers else { return };
        let (call, kind, tool) = (record.call.clone(), record.kind, record.tool.clone());
        let (policy_set, arguments) = (record.policy_set, record.arguments);
        let (recorder, clock) = (Arc::clone(&self.recorder), Arc::clone(&self.clock));
        let place = Arc::clone(&self.places).try_acquire_owned();
        self.tasks.spawn(async move {
            let voices = match place {
                Ok(_place) => observers.watch().await,
                Err(_full) => observers.given_up(),
            };
            let (at, sanitisers) = (clock.now(), Vec::new());
            recorder.observed(&ObservedRecord { at, call, kind, tool, policy_set, arguments, voices, sanitisers });
        });
    }

    /// Starts to observe an answer by sanitisers, each with what it would have seen. Returns at once. `record` says whose
    /// answer it is; time and voices are filled in.
    pub fn start_answer(&self, record: ObservedRecord, observers: Vec<(Bound<dyn SanitiserComponent>, Arc<OutputFacts>)>) {
        if observers.is_empty() {
            return;
        }
        let (recorder, clock) = (Arc::clone(&self.recorder), Arc::clone(&self.clock));
        let place = Arc::clone(&self.places).try_acquire_owned();
        self.tasks.spawn(async move {
            let until = Instant::now() + OBSERVING;
            let full = place.is_err();
            let said = join_all(observers.iter().map(|(bound, facts)| async move {
                let said = match &bound.component {
                    _ if full => Sanitised::failed(Fault::new(FaultCode::Budget, "too many answers were being observed")),
                    Err(fault) => Sanitised::failed(fault.clone()),
                    Ok(loaded) => {
                        let asked = tokio::time::timeout_at(until, loaded.sanitise(Arc::clone(facts))).await;
                        asked.unwrap_or_else(|_elapsed| {
                            let why = "the time for observed components was over";
                            Sanitised::failed(Fault::new(FaultCode::Budget, why))
                        })
                    }
                };
                said.voice(&bound.source, true)
            }));
            let sanitisers = said.await;
            recorder.observed(&ObservedRecord { at: clock.now(), sanitisers, ..record });
        });
    }

    /// Waits until nothing is being observed.
    pub async fn idle(&self) {
        // The tracker only tells that it is empty once it is closed; it can be opened again.
        self.tasks.close();
        self.tasks.wait().await;
        self.tasks.reopen();
    }
}

impl std::fmt::Debug for Observatory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Observatory").field("observing", &self.tasks.len()).finish_non_exhaustive()
    }
}
