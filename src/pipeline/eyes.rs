//! Definitions as a call's caller may see them, where they are no list: in a stale answer, and in a question to a person (R31).

use std::sync::Arc;

use async_trait::async_trait;
use futures::future::BoxFuture;

use super::admit::catalog::Catalog;
use super::consent::agree::Told;
use super::consent::connector;
use super::emit::sanitise::{self, About, Aside, Definitions, ShownDefinition, Unshown, Viewer};
use super::{CallRequest, Pipeline};
use crate::model::caller::Caller;
use crate::model::text;
use crate::model::tool::CatalogTool;
use crate::model::verdict::Remember;
use crate::ports::approval::{Kind, PolicySet};
use crate::ports::clock::Clock;
use crate::ports::reviewer::{AskedConnector, Question, Reply, Reviewer};
use crate::ports::state::PolicyState;

/// The longest title in a question, in characters.
const MAX_TITLE: usize = 128;
/// The longest description in a question, of the tool or of its connector, in characters.
const MAX_DESCRIPTION: usize = 2048;

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

    /// A reviewer whose questions about this tool tell of it what the sanitisers leave: title, description and connector. They
    /// are the server's own words, and a question goes to the client.
    pub(super) fn introducing(self, tool: &Arc<CatalogTool>, inner: Arc<dyn Reviewer>) -> Arc<dyn Reviewer> {
        Arc::new(Introduced { eyes: self, tool: Arc::clone(tool), inner })
    }

    /// What the sanitisers leave of words about a tool that are no definition and no answer; none: nothing. `whose` they are, is
    /// for the log.
    pub(super) async fn clean(
        &self,
        policies: &PolicySet,
        tool: &CatalogTool,
        (whose, text): (&(dyn std::fmt::Display + Sync), &str),
    ) -> Option<String> {
        if policies.sanitisers.is_empty() {
            return Some(text.to_owned());
        }
        let about = self.about(tool).await?;
        match sanitise::words(policies, &about, text).await {
            Aside::Whole => Some(text.to_owned()),
            Aside::Edited(left) => Some(left),
            Aside::Withheld(why) => {
                tracing::warn!(%whose, %why, "what it said is not shown");
                None
            }
        }
    }

    /// The connector of a tool as a question tells of it.
    async fn connector(&self, policies: &PolicySet, tool: &CatalogTool) -> Option<AskedConnector> {
        let own = tool.connector.as_ref()?;
        let left = async |text: Option<&String>, most: usize| {
            let left = self.clean(policies, tool, (&"a connector", text?)).await?;
            Some(text::shown(&left, most))
        };
        let (name, description) =
            (left(own.name.as_ref(), MAX_TITLE).await, left(own.description.as_ref(), MAX_DESCRIPTION).await);
        Some(AskedConnector { id: text::shown(&own.id, MAX_TITLE), name, description })
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

struct Introduced {
    eyes: Eyes,
    tool: Arc<CatalogTool>,
    inner: Arc<dyn Reviewer>,
}

#[async_trait]
impl Reviewer for Introduced {
    async fn ask(&self, question: &Question) -> Reply {
        let (eyes, snapshot) = (&self.eyes, self.eyes.catalog.current());
        let looked = eyes.definitions.look_at(&self.tool, snapshot.policies(), &eyes.viewer()).await;
        // One that is withheld has no title for anybody; the raw name is enough to decide by.
        let shown = looked.ok();
        let title = shown.as_ref().and_then(ShownDefinition::title).map(|title| self.tool.own_title(title));
        let title = title.map(|title| text::shown(title, MAX_TITLE));
        let description = shown.as_ref().and_then(ShownDefinition::description);
        let description = description.map(|text| text::shown(text, MAX_DESCRIPTION));
        let connector = eyes.connector(snapshot.policies(), &self.tool).await;
        self.inner.ask(&Question { title, description, connector, ..question.clone() }).await
    }

    fn widest(&self) -> Remember {
        self.inner.widest()
    }
}
