//! Decision point 1: may this call run?
//!
//! A component gets the facts of a call and answers a verdict, or fails with a typed fault. It never sees more than
//! [`CallFacts`], and all facts are captured before the decision, so that every component of every layer decides on the
//! same values.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::connector::ConnectorComponent;
use super::hook::BoundHook;
use super::review::BoundReviewer;
use super::sanitiser::SanitiserComponent;
use super::state::Moment;
use crate::model::arguments::Arguments;
use crate::model::caller::Caller;
use crate::model::digest::Digest;
use crate::model::name::ToolRef;
use crate::model::posture::{Posture, PostureLayers};
use crate::model::revision::PolicySetDigest;
use crate::model::tool::{Connector, Hints, ServerIdentity};
use crate::model::verdict::{Fault, Label, OnFailure, Refusal, Source, Verdict};

/// What would go to the upstream (R23).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A tool call.
    Tool,
    /// A resource read.
    Read,
    /// A prompt.
    Prompt,
    /// An argument completion.
    Completion,
    /// A reply to an upstream's question.
    Reply,
}

/// The state of an earlier call of the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PastState {
    /// Not ended yet.
    Open,
    /// It was sent.
    Ran,
    /// It was refused.
    Refused,
}

/// An earlier call of the session, as components may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastCall {
    /// What it was.
    pub kind: Kind,
    /// Raw server and tool.
    pub tool: ToolRef,
    /// What became of it.
    pub state: PastState,
}

/// What a component may know of a call.
#[derive(Debug, Clone)]
pub struct CallFacts {
    /// What would go to the upstream.
    pub kind: Kind,
    /// Raw server and tool.
    pub tool: ToolRef,
    /// What the server is.
    pub identity: ServerIdentity,
    /// The digest of the definition that was served.
    pub definition: Digest,
    /// The hints that count.
    pub hints: Hints,
    /// Who calls.
    pub caller: Caller,
    /// The App connector.
    pub connector: Option<Connector>,
    /// What the configuration says about calls like this one.
    pub posture: Posture,
    /// The final arguments.
    pub arguments: Arguments,
    /// Milliseconds since the Unix epoch; one value for the whole decision.
    pub now_ms: u64,
    /// What was before: labels, history, counters (R33).
    pub moment: Moment,
}

/// A line that a component logged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LogLine {
    /// `debug`, `info` or `warn`.
    pub level: &'static str,
    /// The text: bounded, control characters visible.
    pub text: String,
}

/// What one evaluation used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Fuel.
    pub fuel: u64,
    /// Time in the sandbox.
    pub time: Duration,
    /// The digest of all that the host told it, in order; none where nothing ran.
    pub heard: Option<Digest>,
    /// Whether it was not told the time, so that the same facts at another time lead to the same answer. `false` where
    /// nobody knows.
    pub timeless: bool,
}

/// A component's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evaluation {
    /// The verdict, or the failure.
    pub result: Result<Verdict, Fault>,
    /// Labels that the session carries once this call has run.
    pub labels: Vec<Label>,
    /// What it logged.
    pub log: Vec<LogLine>,
    /// What it used.
    pub usage: Usage,
}

impl Evaluation {
    /// The evaluation of a component that failed before it could run.
    #[must_use]
    pub fn failed(fault: Fault) -> Self {
        Self { result: Err(fault), labels: Vec::new(), log: Vec::new(), usage: Usage::default() }
    }
}

/// One approval component, ready to be asked.
///
/// Contract: an evaluation ends within the component's limits, never panics, keeps no state between calls, and is the
/// same for the same facts. Whatever goes wrong is a [`Fault`] in the evaluation.
#[async_trait]
pub trait ApprovalComponent: Send + Sync {
    /// Answers for one call.
    async fn evaluate(&self, facts: Arc<CallFacts>) -> Evaluation;
}

/// Which calls a component is asked about. Default: all.
pub trait Matches: Send + Sync + std::fmt::Debug {
    /// Whether the component is asked about this call.
    fn matches(&self, kind: Kind, tool: &ToolRef, identity: ServerIdentity) -> bool;
}

/// A component as one layer configured it, for one decision point.
pub struct Bound<C: ?Sized> {
    /// Layer, name and digest.
    pub source: Source,
    /// Whether an allow of it may lift the baseline's ask (R3).
    pub may_allow: bool,
    /// What a failure of it means; for connector policies and sanitisers that is fixed (disabled, withheld).
    pub on_failure: OnFailure,
    /// Whether it is only observed (R16).
    pub observe: bool,
    /// Which calls it is asked about.
    pub matches: Arc<dyn Matches>,
    /// The component, or why it could not be loaded: an error, never an absence.
    pub component: Result<Arc<C>, Fault>,
}

/// An approval component as one layer configured it.
pub type BoundComponent = Bound<dyn ApprovalComponent>;

impl<C: ?Sized> Clone for Bound<C> {
    fn clone(&self) -> Self {
        Self {
            source: self.source.clone(),
            may_allow: self.may_allow,
            on_failure: self.on_failure,
            observe: self.observe,
            matches: Arc::clone(&self.matches),
            component: self.component.clone(),
        }
    }
}

impl<C: ?Sized> std::fmt::Debug for Bound<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bound")
            .field("source", &self.source)
            .field("observe", &self.observe)
            .field("loaded", &self.component.is_ok())
            .finish_non_exhaustive()
    }
}

/// Everything that decides about calls at one moment: all layers' components and postures. Immutable.
#[derive(Debug, Clone)]
pub struct PolicySet {
    /// Digest of layers, components and settings.
    pub digest: PolicySetDigest,
    /// The built-in component; asked with every layer's posture.
    pub baseline: BoundComponent,
    /// All layers' approval components, most trusted layer first (R1).
    pub components: Vec<BoundComponent>,
    /// All layers' connector policies, most trusted layer first, the baseline last.
    pub connectors: Vec<Bound<dyn ConnectorComponent>>,
    /// All layers' sanitisers, most trusted layer first: none sees what one before it removed.
    pub sanitisers: Vec<Bound<dyn SanitiserComponent>>,
    /// All layers' hooks, most trusted layer first, in each file's order (R1).
    pub hooks: Vec<BoundHook>,
    /// All layers' auto reviewers, most trusted layer first (R1).
    pub reviewers: Vec<BoundReviewer>,
    /// What the layers say about approval.
    pub postures: PostureLayers,
    /// Why every call is refused: layers that could not be read (R8).
    pub refusals: Vec<Refusal>,
    /// What runs the components: equal fuel is promised under an equal one only (R35).
    pub engine: Digest,
}
