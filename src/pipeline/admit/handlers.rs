//! One handler for a tool, reused while its binding lives (catalog-dispatch 3.2 rules 7 and 8).
//!
//! A binding is one snapshot of the catalog, by identity. Whether a tool is shown is decided afresh at every step; what it
//! would be shown as stays the same object for as long as the binding and the texts that may be shown of it do.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::catalog::Snapshot;
use super::schema::Unconvertible;
use super::search::Searchable;
use super::spec::ToolSpec;
use crate::model::digest::Digest;
use crate::model::name::ToolRef;
use crate::model::tool::CatalogTool;

/// One tool as a model is given it. Immutable.
#[derive(Debug)]
pub struct Handler {
    tool: Arc<CatalogTool>,
    spec: ToolSpec,
    shown: Digest,
    namespace_description: Option<Arc<str>>,
}

impl Handler {
    fn new(of: &Searchable<'_>) -> Result<Self, Unconvertible> {
        let described = of.namespace_description;
        let spec = ToolSpec::new(of.tool, of.shown, described.map(AsRef::as_ref))?;
        let (tool, namespace_description) = (Arc::clone(of.tool), described.cloned());
        Ok(Self { tool, spec, shown: of.shown_digest, namespace_description })
    }

    fn is_of(&self, of: &Searchable<'_>) -> bool {
        Arc::ptr_eq(&self.tool, of.tool)
            && self.shown == of.shown_digest
            && self.namespace_description.as_ref() == of.namespace_description
    }

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

/// The handlers of one session's binding.
#[derive(Debug, Default)]
pub struct Handlers {
    binding: Weak<Snapshot>,
    of: HashMap<ToolRef, Arc<Handler>>,
}

impl Handlers {
    /// Returns the handler of each tool, in order; an error for one whose schema no model can be given. With another binding
    /// than the last time all are new.
    pub fn of<'a>(
        &mut self,
        binding: &Arc<Snapshot>,
        tools: impl IntoIterator<Item = Searchable<'a>>,
    ) -> Vec<Result<Arc<Handler>, (ToolRef, Unconvertible)>> {
        if !std::ptr::eq(self.binding.as_ptr(), Arc::as_ptr(binding)) {
            *self = Self { binding: Arc::downgrade(binding), of: HashMap::new() };
        }
        let one = |tool: Searchable<'_>| {
            let reference = tool.tool.reference();
            if let Some(handler) = self.of.get(&reference).filter(|handler| handler.is_of(&tool)) {
                return Ok(Arc::clone(handler));
            }
            match Handler::new(&tool) {
                Ok(handler) => {
                    let handler = Arc::new(handler);
                    self.of.insert(reference, Arc::clone(&handler));
                    Ok(handler)
                }
                Err(unconvertible) => Err((reference, unconvertible)),
            }
        };
        tools.into_iter().map(one).collect()
    }
}
