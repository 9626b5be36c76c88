//! Decision point 2: may an App connector's tool be seen and called, and in which mode?
//!
//! Asked when tools are listed and again when one is called. What a component that fails means is fixed: disabled.

use std::sync::Arc;

use async_trait::async_trait;

use super::approval::{LogLine, Usage};
use crate::model::caller::Caller;
use crate::model::name::ToolRef;
use crate::model::tool::{Connector, Hints, ServerIdentity};
use crate::model::verdict::Fault;

pub use crate::model::verdict::ConnectorAnswer;

/// What a component may know of an App tool.
#[derive(Debug, Clone)]
pub struct AppToolFacts {
    /// The connector; none for a tool of the Apps server that names none.
    pub connector: Option<Connector>,
    /// Raw server and tool.
    pub tool: ToolRef,
    /// What the server is; for matching, components do not see it.
    pub identity: ServerIdentity,
    /// The title that the definition gives.
    pub title: Option<String>,
    /// The hints that count.
    pub hints: Hints,
    /// Who asks for the list or calls.
    pub caller: Caller,
    /// Milliseconds since the Unix epoch; one value for the whole decision.
    pub now_ms: u64,
}

/// A component's answer, with what it cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectorEvaluation {
    /// The answer, or the failure.
    pub result: Result<ConnectorAnswer, Fault>,
    /// What it logged.
    pub log: Vec<LogLine>,
    /// What it used.
    pub usage: Usage,
}

impl ConnectorEvaluation {
    /// The evaluation of a component that failed before it could run.
    #[must_use]
    pub fn failed(fault: Fault) -> Self {
        Self { result: Err(fault), log: Vec::new(), usage: Usage::default() }
    }
}

/// One connector component, ready to be asked. The contract is that of
/// [`ApprovalComponent`](super::approval::ApprovalComponent).
#[async_trait]
pub trait ConnectorComponent: Send + Sync {
    /// Answers for one tool.
    async fn evaluate(&self, facts: Arc<AppToolFacts>) -> ConnectorEvaluation;
}
