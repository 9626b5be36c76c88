//! Fixes a call to what the model saw: client, configuration, definition and revision, captured together.

use std::sync::Arc;

use super::files::BoundFiles;
use crate::model::arguments::Arguments;
use crate::model::digest::Digest;
use crate::model::name::{Target, ToolRef};
use crate::model::outcome::{Code, Failure, Stage};
use crate::model::revision::Revision;
use crate::model::tool::{CatalogTool, ToolDefinition};
use crate::pipeline::admit::catalog::{Catalog, Listed, ServerEntry};
use crate::ports::approval::{Kind, PolicySet};

/// Proof that a call is fixed: these arguments, to this tool as it is defined now, over this connection.
///
/// Never re-routed: when any of it changes before the hand-over, the call is stale.
pub struct Prepared {
    listed: Listed,
    kind: Kind,
    arguments: Arguments,
    files: Option<Arc<BoundFiles>>,
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared").field("tool", &self.reference()).finish_non_exhaustive()
    }
}

/// A call that could not be fixed, or is not what it was fixed to any more.
#[derive(Debug)]
pub struct Unprepared {
    /// Why.
    pub failure: Box<Failure>,
    /// The tool as it is defined now, if that is what changed: the answer shows it, cleaned (R24).
    pub changed: Option<Arc<CatalogTool>>,
}

impl From<Failure> for Unprepared {
    fn from(failure: Failure) -> Self {
        Self { failure: Box::new(failure), changed: None }
    }
}

/// Looks the tool up in the current snapshot and fixes the call to it.
///
/// `seen` is the digest of the definition that this caller was last shown, if it was shown one: what was seen is what is
/// called (R24).
///
/// # Errors
/// `not-available` for a tool that is not in the catalog; `stale` when the definition is not the one that was seen;
/// `invalid-arguments` when a key only looks like a declared one (R26), or when the arguments do not fit the tool's input
/// schema, unless the server's configuration says `check_arguments = false`.
pub async fn prepare(
    catalog: &Catalog,
    reference: &ToolRef,
    arguments: Arguments,
    seen: Option<Digest>,
) -> Result<Prepared, Unprepared> {
    let target = Target::from(reference.clone());
    let Some(listed) = catalog.current().find(reference) else {
        return Err(Failure::not_available(&target).into());
    };
    if seen.is_some_and(|seen| seen != listed.tool().definition.digest()) {
        return Err(changed(&target, listed.tool()));
    }
    let unfit = |why: String| Failure::new(Stage::Arguments, Code::InvalidArguments, format!("err: {why}"));
    arguments.check_against(&listed.tool().definition).map_err(|bad| unfit(bad.to_string()))?;
    if listed.server().view.check_arguments {
        check(listed.tool(), &arguments).await.map_err(unfit)?;
    }
    Ok(Prepared { listed, kind: Kind::Tool, arguments, files: None })
}

/// Arguments fit what the model was shown. Where that has paths in the place of files, they may be what the server itself
/// takes as well: those are passed on as they are (catalog-dispatch 5.2 rule 10).
async fn check(tool: &CatalogTool, arguments: &Arguments) -> Result<(), String> {
    let (facing, own) = (tool.model_facing(), &tool.definition);
    let Err(unfit) = fits(facing, arguments).await else { return Ok(()) };
    if Arc::ptr_eq(facing, own) || fits(own, arguments).await.is_err() { Err(unfit) } else { Ok(()) }
}

/// Large ones are checked aside: other calls go on meanwhile.
async fn fits(definition: &Arc<ToolDefinition>, arguments: &Arguments) -> Result<(), String> {
    if !definition.is_heavy_to_check(arguments) {
        return definition.check(arguments).map_err(|unfit| unfit.to_string());
    }
    let (definition, arguments) = (Arc::clone(definition), arguments.clone());
    match tokio::task::spawn_blocking(move || definition.check(&arguments)).await {
        Ok(checked) => checked.map_err(|unfit| unfit.to_string()),
        Err(defect) => Err(format!("the check against the input schema ended by a defect: {defect}")),
    }
}

/// Says why a prepared call was not leased: its connection, its server's configuration or its definition is not the one that
/// it was fixed to.
#[must_use]
pub fn stale(catalog: &Catalog, prepared: &Prepared) -> Unprepared {
    let reference = prepared.reference();
    let target = Target::from(reference.clone());
    match catalog.current().find(&reference) {
        Some(now) if now.tool().definition.digest() != prepared.tool().definition.digest() => {
            changed(&target, now.tool())
        }
        _ => Failure::stale(&target).into(),
    }
}

fn changed(target: &Target, tool: &Arc<CatalogTool>) -> Unprepared {
    Unprepared { failure: Box::new(Failure::stale(target)), changed: Some(Arc::clone(tool)) }
}

impl Prepared {
    /// Returns the raw identity.
    #[must_use]
    pub fn reference(&self) -> ToolRef {
        self.tool().reference()
    }

    /// Returns the tool as it was when the call was prepared.
    #[must_use]
    pub fn tool(&self) -> &Arc<CatalogTool> {
        self.listed.tool()
    }

    /// Returns the server as it was when the call was prepared.
    #[must_use]
    pub fn server(&self) -> &ServerEntry {
        self.listed.server()
    }

    /// Returns what would be sent.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Fixes an answer to what the server of this call asks: the same tool over the same connection, with this content.
    #[must_use]
    pub fn reply(&self, content: Arguments) -> Self {
        Self { listed: self.listed.clone(), kind: Kind::Reply, arguments: content, files: None }
    }

    /// Returns the arguments.
    #[must_use]
    pub fn arguments(&self) -> &Arguments {
        &self.arguments
    }

    /// Fixes the files that the arguments name.
    pub(super) fn with_files(self, files: BoundFiles) -> Self {
        Self { files: Some(Arc::new(files)), ..self }
    }

    /// Returns the files that the arguments name, if they name any: open, with the digests that were read.
    #[must_use]
    pub fn files(&self) -> Option<&Arc<BoundFiles>> {
        self.files.as_ref()
    }

    /// Returns the digest of all that is agreed to: the arguments, and the bytes of the files that they name (R27).
    #[must_use]
    pub fn bound(&self) -> Digest {
        self.files.as_ref().map_or_else(|| self.arguments.digest(), |files| files.digest(self.arguments.digest()))
    }

    /// Returns the revision that the call was prepared from.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.listed.snapshot().revision()
    }

    /// Returns the policies that were in force when the call was prepared.
    #[must_use]
    pub fn policies(&self) -> &Arc<PolicySet> {
        self.listed.snapshot().policies()
    }
}
