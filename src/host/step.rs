//! One step of an agent: the tools that its model is given, and what becomes of the model's function calls.
//!
//! ```text
//! Session::step -> Step::tools -> (the model) -> Session::dispatch -> Dispatched -> (the model)
//! ```
//!
//! A step is a frozen view: names lead to the tools that they stood for when it was taken, and a tool that is defined
//! otherwise by the time of its call is answered with its new definition (R24).

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::listing::Listing;
use super::session::{Session, SessionCall};
use crate::model::caller::CallSource;
use crate::model::exposure::Exposure;
use crate::model::media::Modalities;
use crate::model::name::{CallId, Target, ToolRef};
use crate::model::outcome::{Code, Outcome};
use crate::model::sandbox::SandboxState;
use crate::model::text::shown;
use crate::pipeline::Finished;
use crate::pipeline::admit::exposure::{Collision, Exposed, Reason};
use crate::pipeline::admit::handlers::Handler;
use crate::pipeline::admit::schema::Unconvertible;
use crate::pipeline::admit::search::{BadSearch, SearchIndex, TOOL_SEARCH};
use crate::pipeline::admit::spec::{Deferred, NamespaceSpec, ScriptSpec, merge};
use crate::pipeline::dispatch::meta::TraceId;
use crate::pipeline::emit::views::model::{ModelView, ModelViewOptions};

/// A tool at one step.
#[derive(Debug, Clone)]
pub struct Offer {
    /// What the model is given.
    pub handler: Arc<Handler>,
    /// Which way it is reached.
    pub exposure: Exposure,
    /// Why.
    pub reason: Reason,
}

/// The tools of one step. Immutable.
#[derive(Debug)]
pub struct Step {
    listing: Listing,
    offers: Vec<Offer>,
    by_name: HashMap<(String, String), usize>,
    by_tool: HashMap<ToolRef, usize>,
    left_out: Vec<(ToolRef, Unconvertible)>,
    index: Arc<SearchIndex>,
}

impl Step {
    /// Returns every tool that a call can lead to: ordinary ones first, then those of Apps (catalog-dispatch 3.2 rule 9).
    #[must_use]
    pub fn offers(&self) -> &[Offer] {
        &self.offers
    }

    /// Returns a tool by its raw identity; none for one that no call can lead to.
    #[must_use]
    pub fn offer(&self, tool: &ToolRef) -> Option<&Offer> {
        self.by_tool.get(tool).and_then(|at| self.offers.get(*at))
    }

    /// Returns the tools whose schema no model can be given, each with what is wrong; others of their servers stay.
    #[must_use]
    pub fn left_out(&self) -> &[(ToolRef, Unconvertible)] {
        &self.left_out
    }

    /// Returns what the step was taken from, hidden and absent tools included.
    #[must_use]
    pub fn listing(&self) -> &Listing {
        &self.listing
    }

    /// Returns the namespaces of the tools in the list, merged by name, as the Responses API takes them.
    #[must_use]
    pub fn namespaces(&self) -> Vec<NamespaceSpec> {
        let listed = self.offers.iter().filter(|offer| offer.exposure.is_listed());
        merge(listed.map(|offer| &*offer.handler.spec().namespace))
    }

    /// Returns the specification of the search tool; none where nothing is found by search.
    #[must_use]
    pub fn search_tool(&self) -> Option<Value> {
        (!self.index.is_empty()).then(|| self.index.spec())
    }

    /// Returns what the search tool searches. The same object as that of the step before, if it is of just the same tools.
    #[must_use]
    pub fn index(&self) -> &SearchIndex {
        &self.index
    }

    /// Returns the member `tools` of a request to the Responses API: the namespaces, then the search tool.
    #[must_use]
    pub fn tools(&self) -> Vec<Value> {
        let namespaces = self.namespaces().into_iter().filter_map(|namespace| serde_json::to_value(namespace).ok());
        namespaces.chain(self.search_tool()).collect()
    }

    /// Returns what a script is told, in the order of the tools. Built at the first demand and shared by all steps of a
    /// binding.
    pub fn scripts(&self) -> impl Iterator<Item = &Arc<ScriptSpec>> {
        let for_scripts = self.offers.iter().filter(|offer| offer.exposure.is_for_scripts());
        for_scripts.map(|offer| offer.handler.spec().script())
    }

    /// Returns the tool that a model's function call names, shown or hidden; none for a name that is not there.
    #[must_use]
    pub fn resolve(&self, namespace: Option<&str>, name: &str) -> Option<&Offer> {
        let key = (namespace.unwrap_or_default().to_owned(), name.to_owned());
        self.by_name.get(&key).and_then(|at| self.offers.get(*at))
    }
}

/// A function call that a model made.
#[derive(Debug, Clone)]
pub struct FunctionCall {
    /// The call's id, unique among the open calls of the session; a fresh one when there is none.
    pub id: Option<CallId>,
    /// The namespace; none for a tool in the default one.
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
    /// The arguments as the model spelled them.
    pub arguments: String,
    /// The turn's metadata, for upstreams that read it.
    pub turn_metadata: Option<serde_json::Map<String, Value>>,
    /// What makes it: the model, or a script of the model's.
    pub source: CallSource,
    /// The sandbox, for servers that ask for it; none: no server is told.
    pub sandbox: Option<Arc<SandboxState>>,
    /// What the model of this turn takes; none: what the session's does ([`Session::model_takes`]).
    pub takes: Option<Modalities>,
    /// The trace that it belongs to; none: no server is told of any.
    pub trace: Option<TraceId>,
    /// Ends the call.
    pub cancel: CancellationToken,
}

impl FunctionCall {
    /// A call with nothing else.
    #[must_use]
    pub fn new(namespace: Option<&str>, name: impl Into<String>, arguments: impl Into<String>) -> Self {
        Self {
            id: None,
            namespace: namespace.map(str::to_owned),
            name: name.into(),
            arguments: arguments.into(),
            turn_metadata: None,
            source: CallSource::Direct,
            sandbox: None,
            takes: None,
            trace: None,
            cancel: CancellationToken::new(),
        }
    }
}

/// Tools that a search has found, for the model: namespaces merged by name, each function with `defer_loading`
/// (catalog-dispatch 3.3 rule 18). Serialises as `{"tools": [...]}`.
#[derive(Debug, Clone)]
pub struct FoundTools {
    /// The tools, the best first.
    pub offers: Vec<Offer>,
    /// Their namespaces, in the order of each one's best tool.
    pub namespaces: Vec<NamespaceSpec>,
}

impl Serialize for FoundTools {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Form<'a> {
            tools: Vec<Deferred<'a>>,
        }
        Form { tools: self.namespaces.iter().map(Deferred).collect() }.serialize(serializer)
    }
}

/// What became of a function call.
#[derive(Debug)]
pub enum Dispatched {
    /// A tool was called.
    Called(Box<Finished>),
    /// Tools were searched for.
    Found(FoundTools),
    /// Nothing was called. The text is for the model.
    Refused(String),
}

impl Dispatched {
    /// Returns the member `output` of the model's `function_call_output`: a text, or a list of content items.
    pub async fn output(&self, options: &ModelViewOptions) -> Value {
        match self {
            Self::Called(finished) if is_cancelled(finished) => {
                // The reference's words (catalog-dispatch 4.1 rule 11).
                let seconds = finished.item.durations.wall.as_secs_f64().max(0.1);
                Value::from(format!("aborted by user after {seconds:.1}s"))
            }
            Self::Called(finished) => {
                let view = ModelView::of(&finished.clean, finished.item.durations.wall, options).await;
                serde_json::to_value(&view.answer().body).unwrap_or_default()
            }
            Self::Found(found) => Value::from(json!(found).to_string()),
            Self::Refused(why) => Value::from(why.as_str()),
        }
    }

    /// Tells whether the model is answered with something else than a tool's success.
    #[must_use]
    pub fn is_error(&self) -> bool {
        match self {
            Self::Called(finished) => *finished.clean.outcome() != Outcome::Answered,
            Self::Found(_) => false,
            Self::Refused(_) => true,
        }
    }
}

fn is_cancelled(finished: &Finished) -> bool {
    matches!(&finished.item.outcome, Outcome::Failed(failure) if failure.code == Code::Cancelled)
}

impl Session {
    /// Takes a step: decides afresh what is shown, and notes that this session has been shown it (R24). Handlers are those
    /// of the step before, as long as the catalog is.
    ///
    /// # Errors
    /// The [`Collision`], where [`Exposing::collisions_fail`](crate::pipeline::admit::exposure::Exposing::collisions_fail)
    /// and a name is taken: there is no step then. Nothing counts as shown.
    pub async fn step(&self) -> Result<Step, Collision> {
        let listing = self.catalog().await;
        if let Some(collision) = listing.collision().filter(|_| listing.how().collisions_fail) {
            return Err(collision.clone());
        }
        let callable = listing.exposed().filter(|exposed| exposed.exposure.is_callable());
        let (callable, tools): (Vec<&Exposed>, Vec<_>) =
            callable.filter_map(|exposed| Some((exposed, listing.shown_tool(&exposed.tool)?))).unzip();
        let made = self.handlers().lock().of(listing.snapshot(), tools.iter().copied());
        let (mut offers, mut left_out, mut searched) = (Vec::new(), Vec::new(), Vec::new());
        for ((exposed, tool), made) in callable.into_iter().zip(tools).zip(made) {
            match made {
                Ok(handler) => {
                    let (exposure, reason) = (exposed.exposure, exposed.reason.clone());
                    if exposure.is_searched() {
                        searched.push(tool);
                    }
                    offers.push(Offer { handler, exposure, reason });
                }
                Err(why) => left_out.push((exposed.tool.reference(), why)),
            }
        }
        let index = self.index_of(&searched);
        drop(searched);
        let name = |(at, offer): (usize, &Offer)| {
            let tool = offer.handler.tool();
            ((tool.namespace.as_str().to_owned(), tool.callable.as_str().to_owned()), at)
        };
        let by_name = offers.iter().enumerate().map(name).collect();
        let by_tool = offers.iter().enumerate().map(|(at, offer)| (offer.handler.tool().reference(), at)).collect();
        let given = |offer: &&Offer| offer.exposure.is_listed() || offer.exposure.is_for_scripts();
        self.note_shown(offers.iter().filter(given).map(|offer| offer.handler.tool()));
        Ok(Step { listing, offers, by_name, by_tool, left_out, index })
    }

    /// Finds tools of a step that are not in the list, and notes that this session has been shown them (R24). At most
    /// `limit`; none: [`DEFAULT_LIMIT`](crate::pipeline::admit::search::DEFAULT_LIMIT).
    ///
    /// # Errors
    /// [`BadSearch`], with a text for the model.
    pub fn find(&self, step: &Step, query: &str, limit: Option<usize>) -> Result<FoundTools, BadSearch> {
        let found = step.index.search(query, limit)?;
        let offers: Vec<Offer> =
            found.iter().filter_map(|found| step.offer(&found.tool.reference()).cloned()).collect();
        self.note_shown(offers.iter().map(|offer| offer.handler.tool()));
        let namespaces = merge(offers.iter().map(|offer| &*offer.handler.spec().namespace));
        Ok(FoundTools { offers, namespaces })
    }

    /// Runs a model's function call: a tool of the step by its namespace and name, or the search tool.
    ///
    /// A name that the step has not ends here, without an item: the model is told so.
    pub async fn dispatch(&self, step: &Step, call: FunctionCall) -> Dispatched {
        let namespace = call.namespace.as_deref().filter(|namespace| !namespace.is_empty());
        if namespace.is_none() && call.name == TOOL_SEARCH && !step.index.is_empty() {
            return match wanted(&call.arguments) {
                Ok((query, limit)) => match self.find(step, &query, limit) {
                    Ok(found) => Dispatched::Found(found),
                    Err(bad) => Dispatched::Refused(bad.to_string()),
                },
                Err(why) => Dispatched::Refused(why),
            };
        }
        let Some(offer) = step.resolve(namespace, &call.name) else {
            let name = namespace.map_or_else(|| call.name.clone(), |namespace| format!("{namespace}/{}", call.name));
            return Dispatched::Refused(format!("unsupported call: {}", shown(&name, 256)));
        };
        let tool = offer.handler.tool();
        let mut made = SessionCall::new(Target::from(tool.reference()), call.arguments);
        (made.id, made.turn_metadata, made.cancel) = (call.id, call.turn_metadata, call.cancel);
        (made.sandbox, made.source, made.takes) = (call.sandbox, call.source, call.takes);
        made.trace = call.trace;
        // What the model of this step was shown, whatever was shown since.
        made.seen = Some(tool.definition.digest());
        Dispatched::Called(Box::new(self.call(made).await))
    }
}

/// Reads the arguments of the search tool.
fn wanted(arguments: &str) -> Result<(String, Option<usize>), String> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Wanted {
        query: String,
        limit: Option<usize>,
    }
    crate::model::arguments::Arguments::parse(arguments).map_err(|bad| format!("err: {bad}"))?;
    let wanted: Result<Wanted, _> = serde_json::from_str(arguments);
    let Wanted { query, limit } = wanted.map_err(|error| {
        let why = shown(&error.to_string(), 256);
        format!("err: arguments of `{TOOL_SEARCH}` do not fit its parameters: {why}")
    })?;
    Ok((query, limit))
}
