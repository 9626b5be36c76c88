//! What a decision is taken on, by value (R35): whoever has all of it can take the decision again.

use std::sync::Arc;

use super::approval::{Kind, PastCall};
use crate::model::arguments::Arguments;
use crate::model::caller::Caller;
use crate::model::digest::Digest;
use crate::model::layer::LayerKind;
use crate::model::name::ToolRef;
use crate::model::tool::{Connector, Hints, ServerIdentity};
use crate::model::verdict::{Label, Reason};

/// What is decided about.
#[derive(Debug, Clone)]
pub struct Case {
    /// What would go to the upstream.
    pub kind: Kind,
    /// Raw server and tool.
    pub tool: ToolRef,
    /// What the server is.
    pub identity: ServerIdentity,
    /// The digest of the definition that was served.
    pub definition: Digest,
    /// The title that the definition gives.
    pub title: Option<String>,
    /// The hints that count.
    pub hints: Hints,
    /// The App connector.
    pub connector: Option<Connector>,
    /// Who calls.
    pub caller: Caller,
    /// The final arguments.
    pub arguments: Arguments,
    /// Milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// Why the host itself asks a person, where it does (R24).
    pub changed: Option<Reason>,
}

/// What a counter answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Count {
    /// The layer of the component that counted.
    pub layer: LayerKind,
    /// The component.
    pub component: Arc<str>,
    /// The counter's key.
    pub key: String,
    /// Its window, in milliseconds.
    pub window_ms: u64,
    /// The sum.
    pub sum: u64,
}

/// All that a decision was taken on: what it is about, and what the host answered to components.
#[derive(Debug, Clone)]
pub struct DecisionInputs {
    /// What was decided about.
    pub case: Case,
    /// The labels of the caller's principal.
    pub labels: Arc<[Label]>,
    /// Earlier and open calls of the session, newest first.
    pub history: Arc<[PastCall]>,
    /// What counters answered to components that count.
    pub counts: Vec<Count>,
    /// Whether something of it was masked: the decision cannot be taken again.
    pub masked: bool,
}

impl DecisionInputs {
    /// Returns the same without the tool's title, which the sanitisers do not let be shown (R31).
    #[must_use]
    pub fn masking_title(&self) -> Self {
        Self { case: Case { title: None, ..self.case.clone() }, masked: true, ..self.clone() }
    }
}
