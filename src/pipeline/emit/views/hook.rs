//! What `PostToolUse` hooks are told of an answer: the whole result, its `_meta` included.
//!
//! Rules: approval-results 10 rules 2 and 5. They hear of successes alone, and of nothing that was withheld.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::model::outcome::Outcome;
use crate::pipeline::emit::sanitise::Clean;

/// Proof that what a hook is told was rendered from a clean answer, and that the call succeeded.
#[derive(Debug, Clone, PartialEq)]
pub struct HookView(Arc<Map<String, Value>>);

impl HookView {
    /// Renders a clean answer; none: it is nothing that hooks hear of.
    #[must_use]
    pub fn of(clean: &Clean) -> Option<Self> {
        let succeeded = *clean.outcome() == Outcome::Answered && clean.failure().is_none();
        succeeded.then(|| Self(clean.for_scripts().shared()))
    }

    /// Returns the member `tool_response` of a hook's input.
    #[must_use]
    pub fn into_response(self) -> Value {
        Value::Object(Arc::unwrap_or_clone(self.0))
    }
}
