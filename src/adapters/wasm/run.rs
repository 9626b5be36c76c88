//! One component, run once: a fresh store and instance, limits armed before anything of the guest runs.

use std::sync::Arc;
use std::time::Instant;

use wasmtime::Store;

use super::circuit::Circuits;
use super::engine::Shared;
use super::fault;
use super::hooks::Hooks;
use super::limits::{Budget, Limits, MAX_HANDLES};
use super::load::Compiled;
use super::pool::Share;
use super::settings::Settings;
use super::state::{State, Subject};
use super::ticker::TICK;
use crate::config::data::DataFiles;
use crate::model::caller::TenantId;
use crate::model::verdict::{Fault, FaultCode, Source};
use crate::ports::approval::{LogLine, Usage};

/// A component as one layer configured it. An evaluation on a worker may outlive its caller.
pub(super) struct Component {
    pub(super) compiled: Arc<Compiled>,
    pub(super) settings: Arc<Settings>,
    pub(super) data: Option<Arc<DataFiles>>,
    pub(super) limits: Limits,
    pub(super) source: Source,
    /// Its number in its engine: what turns are taken by.
    pub(super) number: u64,
    /// Whether nothing waits for its answers (R16).
    pub(super) observed: bool,
    pub(super) circuits: Arc<Circuits>,
}

/// What came of one evaluation.
pub(super) struct Run<R> {
    pub(super) result: Result<R, Fault>,
    pub(super) log: Vec<LogLine>,
    pub(super) usage: Usage,
}

/// What a component answers at one of the decision points.
pub(super) trait Answer: Send + 'static {
    /// The code of the failure, if it is one.
    fn fault(&self) -> Option<FaultCode>;

    /// The answer of a component that failed before it could run.
    fn failed(fault: Fault) -> Self;
}

impl Component {
    /// Runs `work` on a worker when it is this component's turn, if its circuit lets it.
    pub(super) async fn in_turn<R: Answer>(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        tenant: &TenantId,
        work: impl FnOnce(&Shared, &Arc<Self>) -> R + Send + 'static,
    ) -> R {
        let pass = match self.circuits.enter(tenant, Instant::now()) {
            Ok(pass) => pass,
            Err(open) => return R::failed(open),
        };
        let share = Share { tenant: tenant.clone(), component: self.number, observed: self.observed };
        let (own, component) = (Arc::clone(shared), Arc::clone(self));
        let settled = move || {
            let answer = work(&own, &component);
            // Here, not by the caller, who may have gone.
            pass.settle(answer.fault(), Instant::now());
            answer
        };
        shared.pool.run(&share, settled).await.unwrap_or_else(R::failed)
    }

    /// Runs `work` in a store of its own, and once more after a deadline.
    ///
    /// The machine was busy: a deadline says little about the component, and fuel still bounds it (R14).
    pub(super) fn run<R>(
        self: &Arc<Self>,
        shared: &Shared,
        budget: &Budget,
        subject: impl Fn() -> Subject,
        work: impl Fn(&dyn Hooks, &mut Store<State>) -> wasmtime::Result<R>,
    ) -> Run<R> {
        let first = self.attempt(shared, budget, subject(), &work);
        match first.result {
            Err(Fault { code: FaultCode::Deadline, .. }) => {
                let mut second = self.attempt(shared, budget, subject(), &work);
                second.usage.fuel = second.usage.fuel.saturating_add(first.usage.fuel);
                second.usage.time += first.usage.time;
                second
            }
            Ok(_) | Err(_) => first,
        }
    }

    /// All limits are armed before the first instruction; start functions loop too. The store is dropped whatever happened:
    /// after a trap the engine would not let anybody in again.
    fn attempt<R>(
        self: &Arc<Self>,
        shared: &Shared,
        budget: &Budget,
        subject: Subject,
        work: impl Fn(&dyn Hooks, &mut Store<State>) -> wasmtime::Result<R>,
    ) -> Run<R> {
        let started = Instant::now();
        let mut store = self.store(shared, budget, subject);
        let result = arm(shared, budget, &mut store, |store| work(&*self.compiled.hooks, store));
        let left = store.get_fuel().unwrap_or(0);
        let (log, spent, heard, told_time) = store.into_data().into_report();
        let fuel = budget.fuel.saturating_sub(left).saturating_add(spent);
        let usage = Usage { fuel, time: started.elapsed(), heard: Some(heard), timeless: !told_time };
        Run { result: result.map_err(|error| fault::of(&error)), log, usage }
    }

    /// A store in which nothing has run.
    pub(super) fn store(self: &Arc<Self>, shared: &Shared, budget: &Budget, subject: Subject) -> Store<State> {
        let state = State::new(subject, Arc::clone(self), Arc::clone(&shared.patterns), budget);
        let mut store = Store::new(&shared.engine, state);
        store.limiter(State::limiter);
        store.set_hostcall_fuel(budget.answer);
        store.set_max_component_handles(MAX_HANDLES);
        store
    }
}

/// Arms fuel and deadline, and runs `work`.
pub(super) fn arm<R>(
    shared: &Shared,
    budget: &Budget,
    store: &mut Store<State>,
    work: impl FnOnce(&mut Store<State>) -> wasmtime::Result<R>,
) -> wasmtime::Result<R> {
    let ticks = budget.time.as_millis().div_ceil(TICK.as_millis());
    store.set_fuel(budget.fuel)?;
    let _ticking = shared.ticker.tick();
    // The tick that is under way does not count.
    store.set_epoch_deadline(u64::try_from(ticks).unwrap_or(u64::MAX).saturating_add(1));
    store.epoch_deadline_trap();
    work(store)
}
