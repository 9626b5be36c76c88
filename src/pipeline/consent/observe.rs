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

use super::connector::{self, BoundConnector};
use super::decide::{ask, voice};
use crate::model::decision::{ConnectorVoice, Voice};
use crate::model::verdict::{Fault, FaultCode};
use crate::ports::approval::{Bound, BoundComponent, CallFacts, Evaluation};
use crate::ports::clock::Clock;
use crate::ports::connector::{AppToolFacts, ConnectorEvaluation};
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
    apps: Option<(Vec<BoundConnector>, Arc<AppToolFacts>)>,
}

/// What observed components said.
#[derive(Debug, Clone)]
pub struct Observed {
    /// Those that decide about calls.
    pub voices: Vec<Voice>,
    /// Those that decide about tools of Apps.
    pub connectors: Vec<ConnectorVoice>,
}

impl Observers {
    /// Of components that match the call, and for an App tool of connector components that match it; none where nothing is
    /// observed.
    pub(super) fn new(
        components: Vec<BoundComponent>,
        facts: Arc<CallFacts>,
        apps: Option<(Vec<BoundConnector>, Arc<AppToolFacts>)>,
    ) -> Option<Self> {
        let apps = apps.filter(|(connectors, _)| !connectors.is_empty());
        (!components.is_empty() || apps.is_some()).then_some(Self { components, facts, apps })
    }

    /// Asks them all, side by side, and returns what they say in time.
    pub async fn watch(&self) -> Observed {
        const LATE: &str = "the time for observed components was over";
        let until = Instant::now() + OBSERVING;
        let said = join_all(self.components.iter().map(|component| async move {
            let asked = tokio::time::timeout_at(until, ask(component, Arc::clone(&self.facts))).await;
            asked.unwrap_or_else(|_elapsed| Evaluation::failed(over_budget(LATE)))
        }));
        let apps = join_all(self.apps().map(|(component, facts)| async move {
            let asked = tokio::time::timeout_at(until, connector::ask(component, Arc::clone(facts))).await;
            asked.unwrap_or_else(|_elapsed| ConnectorEvaluation::failed(over_budget(LATE)))
        }));
        let (said, apps) = futures::future::join(said, apps).await;
        self.observed(said, apps)
    }

    fn given_up(&self) -> Observed {
        let fault = || over_budget("too many decisions were being observed");
        let said = self.components.iter().map(|_| Evaluation::failed(fault())).collect();
        self.observed(said, self.apps().map(|_| ConnectorEvaluation::failed(fault())).collect())
    }

    fn apps(&self) -> impl Iterator<Item = (&BoundConnector, &Arc<AppToolFacts>)> {
        self.apps.iter().flat_map(|(connectors, facts)| connectors.iter().map(move |component| (component, facts)))
    }

    fn observed(&self, said: Vec<Evaluation>, apps: Vec<ConnectorEvaluation>) -> Observed {
        Observed {
            voices: self.components.iter().zip(said).map(|(component, said)| voice(component, None, said)).collect(),
            connectors: self.apps().zip(apps).map(|((component, _), said)| connector::voice(component, said)).collect(),
        }
    }
}

fn over_budget(why: &str) -> Fault {
    Fault::new(FaultCode::Budget, why)
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
        let tenant = record.caller.tenant.clone();
        let (recorder, clock) = (Arc::clone(&self.recorder), Arc::clone(&self.clock));
        let place = Arc::clone(&self.places).try_acquire_owned();
        self.tasks.spawn(async move {
            let Observed { voices, connectors } = match place {
                Ok(_place) => observers.watch().await,
                Err(_full) => observers.given_up(),
            };
            let (at, sanitisers) = (clock.now(), Vec::new());
            let hooks = Vec::new();
            let record = ObservedRecord {
                at,
                call,
                kind,
                tool,
                tenant,
                policy_set,
                arguments,
                voices,
                connectors,
                sanitisers,
                hooks,
            };
            recorder.observed(&record);
        });
    }

    /// Starts to observe an answer by sanitisers, each with what it would have seen. Returns at once. `record` says whose
    /// answer it is; time and voices are filled in.
    pub fn start_answer(
        &self,
        record: ObservedRecord,
        observers: Vec<(Bound<dyn SanitiserComponent>, Arc<OutputFacts>)>,
    ) {
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
                    _ if full => {
                        Sanitised::failed(Fault::new(FaultCode::Budget, "too many answers were being observed"))
                    }
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
