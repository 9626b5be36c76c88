//! One handler for a tool, reused while its binding lives (catalog-dispatch 3.2 rules 7 and 8).
//!
//! A binding is one snapshot of the catalog, by identity. Whether a tool is shown is decided afresh at every step; what it
//! would be shown as stays the same object for as long as the binding and the texts that may be shown of it do.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::catalog::Snapshot;
use super::schema::Unconvertible;
use super::search::ShownTool;
use super::spec::ToolSpec;
use crate::model::digest::Digest;
use crate::model::name::ToolRef;
use crate::model::text;
use crate::model::tool::CatalogTool;

/// One tool as a model is given it. Immutable.
#[derive(Debug)]
pub struct Handler {
    tool: Arc<CatalogTool>,
    spec: ToolSpec,
}

impl Handler {
    /// Returns the tool.
    #[must_use]
    pub fn tool(&self) -> &Arc<CatalogTool> {
        &self.tool
    }

    /// Returns its specification.
    #[must_use]
    pub fn spec(&self) -> &ToolSpec {
        &self.spec
    }
}

/// A handler, or why no model can be given the tool's schema.
pub type Made = Result<Arc<Handler>, Unconvertible>;

/// What was made of a tool, and of which texts.
#[derive(Debug)]
struct Kept {
    tool: Arc<CatalogTool>,
    shown: Digest,
    namespace_description: Option<Arc<str>>,
    made: Made,
}

impl Kept {
    fn new(of: &ShownTool<'_>) -> Self {
        let (tool, namespace_description) = (Arc::clone(of.tool), of.namespace_description.cloned());
        let spec = ToolSpec::new(&tool, of.shown, namespace_description.as_deref());
        if let Err(error) = &spec {
            let tool = text::shown(&tool.reference().to_string(), 160);
            tracing::warn!(tool, %error, "a tool is left out: no model can be given its schema");
        }
        let made = spec.map(|spec| Arc::new(Handler { tool: Arc::clone(&tool), spec }));
        Self { tool, shown: of.shown_digest, namespace_description, made }
    }

    fn is_of(&self, of: &ShownTool<'_>) -> bool {
        Arc::ptr_eq(&self.tool, of.tool)
            && self.shown == of.shown_digest
            && self.namespace_description.as_ref() == of.namespace_description
    }
}

/// The handlers of one session's binding.
#[derive(Debug, Default)]
pub struct Handlers {
    binding: Weak<Snapshot>,
    of: HashMap<ToolRef, Kept>,
}

impl Handlers {
    /// Returns what was made of each tool, in order. With another binding than the last time all are made anew.
    pub fn of<'a>(&mut self, binding: &Arc<Snapshot>, tools: impl IntoIterator<Item = ShownTool<'a>>) -> Vec<Made> {
        if !std::ptr::eq(self.binding.as_ptr(), Arc::as_ptr(binding)) {
            *self = Self { binding: Arc::downgrade(binding), of: HashMap::new() };
        }
        let one = |tool: ShownTool<'_>| {
            let reference = tool.tool.reference();
            if let Some(kept) = self.of.get(&reference).filter(|kept| kept.is_of(&tool)) {
                return kept.made.clone();
            }
            let kept = Kept::new(&tool);
            let made = kept.made.clone();
            self.of.insert(reference, kept);
            made
        };
        tools.into_iter().map(one).collect()
    }
}
