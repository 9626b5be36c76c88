//! Admitted components, each behind the port of its decision point.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use wasmtime::Store;

use super::answer;
use super::engine::Shared;
use super::hooks::Reusable;
use super::limits::{Budget, Limits};
use super::run::{Answer, Component, Run, arm};
use super::state::{State, Subject};
use crate::model::digest::Digest;
use crate::model::verdict::{Fault, FaultCode, Source};
use crate::ports::approval::{ApprovalComponent, CallFacts, Evaluation, Usage};
use crate::ports::connector::{AppToolFacts, ConnectorComponent, ConnectorEvaluation};
use crate::ports::sanitiser::{OutputFacts, Sanitised, SanitiserComponent};

macro_rules! component {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        pub struct $name {
            shared: Arc<Shared>,
            component: Arc<Component>,
            digest: Digest,
        }

        impl $name {
            pub(super) fn new(shared: Arc<Shared>, component: Arc<Component>, digest: Digest) -> Self {
                Self { shared, component, digest }
            }

            /// Returns the digest of the component's bytes.
            #[must_use]
            pub fn digest(&self) -> Digest {
                self.digest
            }

            /// Returns who the component is, its digest included.
            #[must_use]
            pub fn source(&self) -> &Source {
                &self.component.source
            }

            /// Returns its limits.
            #[must_use]
            pub fn limits(&self) -> Limits {
                self.component.limits
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).field("source", &self.component.source).finish_non_exhaustive()
            }
        }
    };
}

component! {
    /// An admitted approval component.
    WasmApproval
}
component! {
    /// An admitted connector policy.
    WasmConnector
}
component! {
    /// An admitted sanitiser.
    WasmSanitiser
}

macro_rules! answer {
    ($name:ident) => {
        impl Answer for $name {
            fn fault(&self) -> Option<FaultCode> {
                self.result.as_ref().err().map(|fault| fault.code)
            }

            fn failed(fault: Fault) -> Self {
                $name::failed(fault)
            }
        }
    };
}

answer!(Evaluation);
answer!(ConnectorEvaluation);
answer!(Sanitised);

#[async_trait]
impl ApprovalComponent for WasmApproval {
    async fn evaluate(&self, facts: Arc<CallFacts>) -> Evaluation {
        let tenant = facts.caller.tenant.clone();
        self.component.in_turn(&self.shared, &tenant, move |shared, component| approve(shared, component, &facts)).await
    }
}

#[async_trait]
impl ConnectorComponent for WasmConnector {
    async fn evaluate(&self, facts: Arc<AppToolFacts>) -> ConnectorEvaluation {
        let tenant = facts.caller.tenant.clone();
        self.component.in_turn(&self.shared, &tenant, move |shared, component| connect(shared, component, &facts)).await
    }
}

#[async_trait]
impl SanitiserComponent for WasmSanitiser {
    async fn sanitise(&self, facts: Arc<OutputFacts>) -> Sanitised {
        let tenant = facts.caller.tenant.clone();
        self.component
            .in_turn(&self.shared, &tenant, move |shared, component| sanitise(shared, component, &facts))
            .await
    }
}

fn approve(shared: &Shared, component: &Arc<Component>, facts: &Arc<CallFacts>) -> Evaluation {
    let budget = Budget::deciding(&component.limits);
    let subject = || Subject::Call(Arc::clone(facts));
    let Run { result, log, usage } = component.run(shared, &budget, subject, |hooks, store| hooks.approve(store));
    match result.and_then(|raw| answer::approval(raw, &component.source)) {
        Ok((verdict, labels)) => Evaluation { result: Ok(verdict), labels, log, usage },
        Err(fault) => Evaluation { result: Err(fault), labels: Vec::new(), log, usage },
    }
}

fn connect(shared: &Shared, component: &Arc<Component>, facts: &Arc<AppToolFacts>) -> ConnectorEvaluation {
    let budget = Budget::deciding(&component.limits);
    let subject = || Subject::Tool(Arc::clone(facts));
    let Run { result, log, usage } = component.run(shared, &budget, subject, |hooks, store| hooks.connect(store));
    ConnectorEvaluation { result: result.and_then(answer::connector), log, usage }
}

fn sanitise(shared: &Shared, component: &Arc<Component>, facts: &Arc<OutputFacts>) -> Sanitised {
    let budget = Budget::sanitising(&component.limits, facts.bytes());
    let subject = || Subject::Output(Arc::clone(facts));
    let Run { result, log, usage } = component.run(shared, &budget, subject, |hooks, store| hooks.sanitise(store));
    match result.and_then(|raw| answer::sanitised(raw, &component.source)) {
        Ok((said, labels)) => Sanitised { result: Ok(said), labels, log, usage },
        Err(fault) => Sanitised { result: Err(fault), labels: Vec::new(), log, usage },
    }
}

impl WasmApproval {
    /// Answers on the calling thread, which it blocks for as long as the limits allow: for benches and tools. A host asks
    /// through the port, on the workers.
    #[must_use]
    pub fn evaluate_here(&self, facts: &Arc<CallFacts>) -> Evaluation {
        approve(&self.shared, &self.component, facts)
    }

    /// Keeps one instance and asks it again and again: what a fresh one costs is measured against it. Never for decisions,
    /// since a guest can keep state between calls.
    ///
    /// # Errors
    /// What the instantiation ended with.
    pub fn reusable(&self, facts: &Arc<CallFacts>) -> Result<Reused<'_>, Fault> {
        // Armed once for all calls: what is measured is the call alone.
        let limits = self.component.limits;
        let budget = Budget { time: Duration::from_secs(3600), fuel: u64::MAX / 2, ..Budget::deciding(&limits) };
        let mut store = self.component.store(&self.shared, &budget, Subject::Call(Arc::clone(facts)));
        let instance = arm(&self.shared, &budget, &mut store, |store| self.component.compiled.hooks.reusable(store));
        let instance = instance.map_err(|error| super::fault::of(&error))?;
        Ok(Reused { component: self, store, instance })
    }
}

impl WasmSanitiser {
    /// Answers on the calling thread, as [`WasmApproval::evaluate_here`] does.
    #[must_use]
    pub fn sanitise_here(&self, facts: &Arc<OutputFacts>) -> Sanitised {
        sanitise(&self.shared, &self.component, facts)
    }
}

/// One instance that is asked about one call again and again.
pub struct Reused<'c> {
    component: &'c WasmApproval,
    store: Store<State>,
    instance: Box<dyn Reusable>,
}

impl Reused<'_> {
    /// Asks once more.
    #[must_use]
    pub fn evaluate(&mut self) -> Evaluation {
        let said = self.instance.approve(&mut self.store).map_err(|error| super::fault::of(&error));
        match said.and_then(|raw| answer::approval(raw, self.component.source())) {
            Ok((verdict, labels)) => {
                Evaluation { result: Ok(verdict), labels, log: Vec::new(), usage: Usage::default() }
            }
            Err(fault) => Evaluation::failed(fault),
        }
    }
}
