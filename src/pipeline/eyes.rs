//! Definitions as a call's caller may see them, where they are no list: in a stale answer, and in a question to a person (R31).

use std::sync::Arc;

use async_trait::async_trait;
use futures::future::BoxFuture;

use super::admit::catalog::Catalog;
use super::consent::agree::Told;
use super::consent::connector;
use super::emit::sanitise::{About, Definitions, ShownDefinition, Unshown, Viewer};
use super::{CallRequest, Pipeline};
use crate::model::caller::Caller;
use crate::model::text;
use crate::model::tool::CatalogTool;
use crate::model::verdict::Remember;
use crate::ports::approval::Kind;
use crate::ports::clock::Clock;
use crate::ports::reviewer::{Question, Reply, Reviewer};
use crate::ports::state::PolicyState;

/// The longest title in a question, in characters.
const MAX_TITLE: usize = 128;

/// What is needed to look at a definition for one caller, under the policies in force.
pub(super) struct Eyes {
    definitions: Arc<Definitions>,
    catalog: Arc<Catalog>,
    state: Arc<dyn PolicyState>,
    clock: Arc<dyn Clock>,
    caller: Caller,
}

impl Eyes {
    /// Those of a call's caller.
    pub(super) fn of(pipeline: &Pipeline, request: &CallRequest) -> Self {
        Self {
            definitions: Arc::clone(&request.definitions),
            catalog: Arc::clone(&pipeline.catalog),
            state: Arc::clone(&pipeline.state),
            clock: Arc::clone(&pipeline.clock),
            caller: request.caller.clone(),
        }
    }

    /// Looks at a definition that an answer shows, and remembers that the session was shown it.
    pub(super) async fn serve(&self, tool: &CatalogTool) -> Result<ShownDefinition, Unshown> {
        self.definitions.show(tool, self.catalog.current().policies(), &self.viewer()).await
    }

    /// Looks at a definition of which a part is told.
    pub(super) async fn look_at(&self, tool: &CatalogTool) -> Result<ShownDefinition, Unshown> {
        self.definitions.look_at(tool, self.catalog.current().policies(), &self.viewer()).await
    }

    /// Returns the other tools of a tool's server that a model may see.
    pub(super) fn others(&self, tool: &CatalogTool) -> Vec<Arc<CatalogTool>> {
        let snapshot = self.catalog.current();
        let others = snapshot.tools().iter().filter(|other| {
            other.server == tool.server
                && other.definition.name() != tool.definition.name()
                && other.definition.is_visible_to_model()
        });
        others.cloned().collect()
    }

    /// Whether a connector policy hides a tool from the caller.
    pub(super) async fn hides(&self, tool: &CatalogTool) -> bool {
        let snapshot = self.catalog.current();
        let judged = connector::judge(snapshot.policies(), tool, &self.caller, self.viewer().now_ms).await;
        !judged.folded.disabled.is_empty()
    }

    /// A reviewer whose questions about this tool have its title, as far as the sanitisers leave one. The title is the
    /// server's own words, and a question goes to the client.
    pub(super) fn titling(self, tool: &Arc<CatalogTool>, inner: Arc<dyn Reviewer>) -> Arc<dyn Reviewer> {
        if tool.definition.title().is_none() {
            return inner;
        }
        Arc::new(Titled { eyes: self, tool: Arc::clone(tool), inner })
    }

    /// Tells an auto reviewer what the sanitisers leave of this tool's title and description.
    pub(super) fn telling(
        self,
        tool: &Arc<CatalogTool>,
    ) -> impl Fn() -> BoxFuture<'static, Told> + Send + Sync + use<> {
        let (eyes, tool) = (Arc::new(self), Arc::clone(tool));
        move || {
            let (eyes, tool) = (Arc::clone(&eyes), Arc::clone(&tool));
            Box::pin(async move {
                let Ok(shown) = eyes.look_at(&tool).await else { return (None, None) };
                let title = shown.title().map(|title| tool.own_title(title).to_owned());
                (title, shown.description().map(str::to_owned))
            })
        }
    }

    /// What words about a call of this tool are looked at by; none if the labels cannot be read.
    pub(super) async fn about(&self, tool: &CatalogTool) -> Option<About> {
        let viewer = self.viewer();
        let labels = viewer.labels(&tool.reference()).await?;
        let (caller, now_ms) = (self.caller.clone(), viewer.now_ms);
        Some(About { kind: Kind::Tool, tool: tool.reference(), identity: tool.identity, caller, labels, now_ms })
    }

    fn viewer(&self) -> Viewer<'_> {
        let now_ms = u64::try_from(self.clock.now().as_millisecond()).unwrap_or(0);
        Viewer { caller: &self.caller, state: &self.state, now_ms }
    }
}

struct Titled {
    eyes: Eyes,
    tool: Arc<CatalogTool>,
    inner: Arc<dyn Reviewer>,
}

#[async_trait]
impl Reviewer for Titled {
    async fn ask(&self, question: &Question) -> Reply {
        let (eyes, snapshot) = (&self.eyes, self.eyes.catalog.current());
        let looked = eyes.definitions.look_at(&self.tool, snapshot.policies(), &eyes.viewer()).await;
        // One that is withheld has no title for anybody; the raw name is enough to decide by.
        let shown = looked.ok();
        let title = shown.as_ref().and_then(ShownDefinition::title).map(|title| self.tool.own_title(title));
        let title = title.map(|title| text::shown(title, MAX_TITLE));
        self.inner.ask(&Question { title, ..question.clone() }).await
    }

    fn widest(&self) -> Remember {
        self.inner.widest()
    }
}
