//! Tool definitions as they are shown: cleaned, or not shown at all (R31).
//!
//! What is called stays the server's own definition: R24's digest and the check of arguments never see what is made here.
//! Labels and counters of a sanitiser are thrown away (R33: never by listing), observed ones are not asked.

use std::collections::HashMap;
use std::sync::Arc;

use futures::future::join_all;
use parking_lot::Mutex;
use serde_json::{Map, Value};

use super::aside;
use super::sweep::{self, About, Withheld};
use crate::model::caller::Caller;
use crate::model::digest::Digest;
use crate::model::name::{CallId, ToolRef};
use crate::model::outcome::Origin;
use crate::model::revision::PolicySetDigest;
use crate::model::schema;
use crate::model::text;
use crate::model::tool::{CatalogTool, ServerIdentity, ToolDefinition};
use crate::model::verdict::{Label, MAX_REASON};
use crate::ports::approval::{Kind, PolicySet};
use crate::ports::state::{Effects, PolicyState, StatedCall};

/// How many definitions of a list are looked at at once: a list must not fill the queue that calls stand in.
const TOOLS_AT_ONCE: usize = 8;

/// Words of a schema that say what may be called, not what it means: edited, the model would read another tool.
const BONES: [&str; 5] = ["required", "$ref", "type", "$schema", "dependentRequired"];

/// A definition that may be shown. Made by [`Definitions`] alone.
#[derive(Debug, Clone)]
pub struct ShownDefinition(Arc<ToolDefinition>);

impl ShownDefinition {
    /// Returns the text, on one line, under the raw name: the server's own, byte for byte, if nothing was removed.
    #[must_use]
    pub fn text(&self) -> &Arc<str> {
        self.0.verbatim()
    }

    /// Returns the definition as a value; the name in it is the raw one.
    #[must_use]
    pub fn value(&self) -> &Map<String, Value> {
        self.0.value()
    }

    /// Appends the text under another name to `out`.
    pub fn write_renamed(&self, name: &str, out: &mut String) {
        self.0.write_renamed(name, out);
    }

    /// Returns the title, if there is one.
    #[must_use]
    pub fn title(&self) -> Option<&str> {
        self.0.title()
    }

    /// Returns the description, if there is one.
    #[must_use]
    pub fn description(&self) -> Option<&str> {
        self.0.description()
    }

    /// Returns the digest of what is shown. Not that of R24, which is of what is called.
    #[must_use]
    pub fn shown_digest(&self) -> Digest {
        self.0.digest()
    }
}

/// Why a definition is not shown: its tool is hidden.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unshown {
    /// Who withheld it; `host` where it is beyond a limit, cannot be looked at, or is no definition after its edits.
    pub origin: Origin,
    /// For people and records only; at most [`MAX_REASON`] characters.
    pub why: String,
    /// Whether it may be otherwise the next time, so that it is looked at again.
    passing: bool,
}

impl Unshown {
    fn by_host(why: &str, passing: bool) -> Self {
        let layer = crate::model::layer::LayerRef::new(crate::model::layer::LayerKind::Builtin);
        Self { origin: Origin { layer, component: "host".to_owned(), rule: None }, why: why.to_owned(), passing }
    }
}

impl From<Withheld> for Unshown {
    fn from(withheld: Withheld) -> Self {
        Self { origin: withheld.origin, why: text::shown(&withheld.why, MAX_REASON), passing: withheld.fault }
    }
}

/// Everything that an outcome hangs on but the caller, whose memory this is, and the time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    tool: ToolRef,
    identity: ServerIdentity,
    /// Of what was looked at.
    definition: Digest,
    /// Of what is called: the same tool is looked at without its annotations while its server is starting.
    raw: Digest,
    policies: PolicySetDigest,
}

type Looked = Result<ShownDefinition, Unshown>;

/// What came of looking at definitions, for one session of one caller: each is looked at once for each policy set and each set of
/// labels. Holds what the last list held, and what stale answers have shown since; a catalog is bounded, so this is.
///
/// A failure of a component is not kept: it is hidden now, and looked at again at the next list.
#[derive(Default)]
pub struct Definitions(Mutex<Known>);

/// What came of each definition, and the labels under which it was looked at.
type Known = HashMap<Key, (Arc<[Label]>, Looked)>;

impl Definitions {
    /// Looks at all these definitions, a few at once, and forgets all others.
    pub async fn list(
        &self,
        tools: &[Arc<CatalogTool>],
        policies: &PolicySet,
        who: &Viewer<'_>,
    ) -> HashMap<ToolRef, Looked> {
        let labels = match tools.iter().find(|tool| looked_at(policies, tool)) {
            Some(tool) => who.labels(&tool.reference()).await,
            None => Some(Arc::default()),
        };
        let mut all: Vec<(Key, Looked)> = Vec::with_capacity(tools.len());
        for some in tools.chunks(TOOLS_AT_ONCE) {
            let looked = join_all(some.iter().map(|tool| self.one(tool, policies, who, labels.as_ref()))).await;
            all.extend(some.iter().map(|tool| key(tool, policies)).zip(looked));
        }
        let kept = |(key, looked): &(Key, Looked)| Some((key.clone(), (labels.clone()?, looked.clone())));
        *self.0.lock() = all.iter().filter_map(kept).collect();
        all.into_iter().map(|(key, looked)| (key.tool, looked)).collect()
    }

    /// Looks at one definition of which only a part is shown. The session was not shown the tool by that, nor kept from it.
    pub async fn look_at(&self, tool: &CatalogTool, policies: &PolicySet, who: &Viewer<'_>) -> Looked {
        let labels = labels_for(tool, policies, who).await;
        self.one(tool, policies, who, labels.as_ref()).await
    }

    /// Looks at one definition, and remembers it besides the others.
    pub async fn show(&self, tool: &CatalogTool, policies: &PolicySet, who: &Viewer<'_>) -> Looked {
        let labels = labels_for(tool, policies, who).await;
        let looked = self.one(tool, policies, who, labels.as_ref()).await;
        if let Some(labels) = labels {
            let mut known = self.0.lock();
            let reference = tool.reference();
            known.retain(|key, _| key.tool != reference);
            known.insert(key(tool, policies), (labels, looked.clone()));
        }
        looked
    }

    /// Returns why this session was last shown the list without this tool, as it is defined now and under these policies.
    #[must_use]
    pub fn hidden(&self, tool: &CatalogTool, policies: &PolicySet) -> Option<Unshown> {
        let (known, own) = (self.0.lock(), key(tool, policies));
        let exact = known.get(&own);
        // Called right after its server has started, and not looked at as it is since.
        let before = || {
            let same = |key: &Key| (&key.tool, key.identity, key.raw) == (&own.tool, own.identity, own.raw);
            known.iter().find(|(key, _)| same(key) && key.policies == own.policies).map(|(_, found)| found)
        };
        exact.or_else(before).and_then(|(_, looked)| looked.as_ref().err().cloned())
    }

    async fn one(
        &self,
        tool: &CatalogTool,
        policies: &PolicySet,
        who: &Viewer<'_>,
        labels: Option<&Arc<[Label]>>,
    ) -> Looked {
        let Some(labels) = labels else {
            return Err(Unshown::by_host("the labels of the caller could not be read", true));
        };
        let known = self.0.lock().get(&key(tool, policies)).cloned();
        if let Some((under, looked)) = known
            && under == *labels
            && !looked.as_ref().is_err_and(|unshown| unshown.passing)
        {
            return looked;
        }
        let looked = look(tool, policies, who, labels).await;
        if let Err(unshown) = &looked {
            let Origin { layer, component, rule } = &unshown.origin;
            let rule = rule.as_ref().map(ToString::to_string);
            let tool = tool.reference();
            tracing::warn!(%tool, %layer, component, rule, why = unshown.why, "a tool is hidden: its definition was withheld");
        }
        looked
    }
}

/// Who is shown a definition, and what must be known of them.
pub struct Viewer<'a> {
    /// The caller.
    pub caller: &'a Caller,
    /// Where their labels are.
    pub state: &'a Arc<dyn PolicyState>,
    /// Milliseconds since the Unix epoch.
    pub now_ms: u64,
}

impl Viewer<'_> {
    /// The labels of the caller's principal, read off the reactor; none if they cannot be read.
    pub(in crate::pipeline) async fn labels(&self, tool: &ToolRef) -> Option<Arc<[Label]>> {
        let (state, caller, tool, now_ms) = (Arc::clone(self.state), self.caller.clone(), tool.clone(), self.now_ms);
        let read = tokio::task::spawn_blocking(move || {
            let id = CallId::new("listing")?;
            let call = StatedCall { id: &id, caller: &caller, kind: Kind::Tool, tool: &tool };
            let read = state.moment(call, now_ms, Effects::None);
            read.inspect_err(|error| tracing::warn!(%error, "definitions of tools are not shown")).ok()
        });
        Some(read.await.ok()??.labels)
    }
}

fn key(tool: &CatalogTool, policies: &PolicySet) -> Key {
    Key {
        tool: tool.reference(),
        identity: tool.identity,
        definition: tool.model_facing().digest(),
        raw: tool.definition.digest(),
        policies: policies.digest,
    }
}

/// The labels, read only where anybody will be asked.
async fn labels_for(tool: &CatalogTool, policies: &PolicySet, who: &Viewer<'_>) -> Option<Arc<[Label]>> {
    if looked_at(policies, tool) { who.labels(&tool.reference()).await } else { Some(Arc::default()) }
}

/// Whether anybody will be asked.
fn looked_at(policies: &PolicySet, tool: &CatalogTool) -> bool {
    let reference = tool.reference();
    let matches = |of: &&sweep::Sanitiser| of.matches.matches(Kind::Tool, &reference, tool.identity);
    policies.sanitisers.iter().filter(|sanitiser| !sanitiser.observe).any(|sanitiser| matches(&sanitiser))
}

async fn look(tool: &CatalogTool, policies: &PolicySet, who: &Viewer<'_>, labels: &Arc<[Label]>) -> Looked {
    let about = About {
        kind: Kind::Tool,
        tool: tool.reference(),
        identity: tool.identity,
        caller: who.caller.clone(),
        labels: Arc::clone(labels),
        now_ms: who.now_ms,
    };
    let raw = tool.model_facing();
    let Some(edited) = aside::definition(policies, &about, raw.value(), raw.verbatim()).await? else {
        return Ok(ShownDefinition(Arc::clone(raw)));
    };
    let raw = Arc::clone(raw);
    // Compiling a schema takes its time, and a panic of the library is a no.
    let checked = tokio::task::spawn_blocking(move || still_one(&raw, &edited));
    match checked.await.ok().flatten() {
        Some(definition) => Ok(ShownDefinition(Arc::new(definition))),
        None => Err(Unshown::by_host("its edits leave no definition of the same tool", false)),
    }
}

/// Returns what is left, if it still defines the same tool: its name, and schemas of the same bones that are no worse than before.
fn still_one(raw: &ToolDefinition, edited: &Map<String, Value>) -> Option<ToolDefinition> {
    let definition = ToolDefinition::parse_shared(Value::Object(edited.clone()).to_string().into()).ok()?;
    let holds = |key: &str| match (raw.value().get(key), definition.value().get(key)) {
        (None, None) => true,
        (Some(before), Some(after)) => {
            same_bones(before, after) && (schema::compile(before).is_err() || schema::compile(after).is_ok())
        }
        (Some(_), None) | (None, Some(_)) => false,
    };
    (definition.name() == raw.name() && holds("inputSchema") && holds("outputSchema")).then_some(definition)
}

/// Whether all values of [`BONES`] are what they were. Edits keep the shape of a value, or put a text in its place.
fn same_bones(before: &Value, after: &Value) -> bool {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            before.len() == after.len()
                && before.iter().all(|(key, value)| {
                    // A property may be called `type`; its schema is an object, and is looked into.
                    let bone = BONES.contains(&key.as_str()) && !(value.is_object() && key != "dependentRequired");
                    after.get(key).is_some_and(|now| if bone { now == value } else { same_bones(value, now) })
                })
        }
        (Value::Array(before), Value::Array(after)) => {
            before.len() == after.len() && before.iter().zip(after).all(|(before, after)| same_bones(before, after))
        }
        (Value::Object(_) | Value::Array(_), _) => false,
        (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_), _) => true,
    }
}
