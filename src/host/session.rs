//! One session of one caller: what it was shown, and the calls it makes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::Host;
use super::listing::{Descriptions, Listing, Seen, Surface};
use super::seal::{self, BadSeal, Seal};
use super::served::{self, Last};
pub use super::session_call::SessionCall;
use crate::model::caller::Caller;
use crate::model::digest::Digest;
use crate::model::evidence::Evidence;
use crate::model::media::Modalities;
use crate::model::name::{BadName, CallId, FlatName, RawToolName, ServerName, Target, ToolRef};
use crate::model::outcome::{Code, Outcome};
use crate::model::tool::CatalogTool;
use crate::pipeline::admit::catalog::Snapshot;
use crate::pipeline::admit::exposure::{Exposing, is_barred};
use crate::pipeline::admit::gate::ParallelGate;
use crate::pipeline::admit::handlers::{Handlers, Made};
use crate::pipeline::admit::search::{BadSearch, Found, SearchIndex, ShownTool};
use crate::pipeline::consent::connector;
use crate::pipeline::consent::review::Breaker;
use crate::pipeline::dispatch::memory::ThreadMemory;
use crate::pipeline::dispatch::meta::TurnInfo;
use crate::pipeline::emit::sanitise::{Definitions, ShownDefinition, Viewer};
use crate::pipeline::follow::evidence::{EvidenceOptions, EvidenceStore};
use crate::pipeline::{CallRequest, Explanation, Finished};
use crate::ports::memory::MemorySink;
use crate::ports::reviewer::Reviewer;
use crate::ports::upstream::Fleet as _;

/// How many tools a session remembers to have shown; a server that lists ever new ones must not fill the memory.
const MAX_SERVED: usize = 65_536;

/// A session. Cheap to share; dropping it forgets what was shown.
pub struct Session {
    host: Arc<Host>,
    caller: Caller,
    reviewer: Arc<dyn Reviewer>,
    served: Mutex<Served>,
    definitions: Arc<Definitions>,
    breaker: Arc<Breaker>,
    surface: Mutex<Surface>,
    /// By what the last listing was decided; none before the first on this surface.
    how: Mutex<Option<Exposing>>,
    index: Mutex<Option<Arc<SearchIndex>>>,
    handlers: Mutex<Handlers>,
    seal: Seal,
    gate: ParallelGate,
    memory: Mutex<Option<Arc<ThreadMemory>>>,
    evidence: Mutex<Option<Arc<EvidenceStore>>>,
    takes: Mutex<Modalities>,
}

/// A tool that a search has found.
#[derive(Debug, Clone)]
pub struct Hit {
    /// How the tool is called from now on: `call_tool` must bring this text, whole (R24).
    pub seal: String,
    /// The tool.
    pub tool: Arc<CatalogTool>,
    /// Its definition as it may be shown.
    pub definition: ShownDefinition,
    /// How well it fits; comparable within one search only.
    pub score: f32,
}

/// What a session was shown last.
#[derive(Default)]
struct Served {
    definitions: served::Definitions,
    names: HashMap<FlatName, ToolRef>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.host.fleet().session_ended(&self.caller.session);
    }
}

impl Session {
    pub(super) fn new(host: Arc<Host>, caller: Caller, reviewer: Arc<dyn Reviewer>) -> Self {
        let (surface, index, handlers) = (Mutex::new(Surface::plain()), Mutex::default(), Mutex::default());
        let (served, definitions) = (Mutex::default(), Arc::default());
        Self {
            host,
            caller,
            reviewer,
            served,
            definitions,
            breaker: Arc::default(),
            surface,
            how: Mutex::default(),
            index,
            handlers,
            seal: Seal::fresh(),
            gate: ParallelGate::default(),
            memory: Mutex::default(),
            evidence: Mutex::default(),
            takes: Mutex::default(),
        }
    }

    /// Returns who calls.
    #[must_use]
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Returns the host.
    #[must_use]
    pub fn host(&self) -> &Arc<Host> {
        &self.host
    }

    /// Waits for what a turn needs before its first step is taken: for each of these servers as long as it may take to start,
    /// and for the others as [`Session::catalog`] does (B2). A name that no server has, or a server that has failed, waits for
    /// nothing: what is there then is in the step, and [`Fleet::status`](super::fleet::Fleet::status) says why the rest is not.
    pub async fn await_servers(&self, needed: &BTreeSet<ServerName>) {
        self.host.fleet().settle_for(needed).await;
    }

    /// Returns what to show, and notes that this session has been shown all of it (R24).
    pub async fn list(&self) -> Listing {
        let listing = self.catalog().await;
        self.note_shown(listing.tools());
        listing
    }

    /// Returns what this session may see of the catalog. The first time waits for servers that are still starting, at most a
    /// second.
    ///
    /// Whoever shows a part of it says so by [`Session::note_shown`].
    pub async fn catalog(&self) -> Listing {
        self.host.fleet().settle().await;
        self.catalog_now().await
    }

    /// The same without waiting for servers. The connector policies are asked afresh every time, the
    /// sanitisers about definitions that they have not looked at yet under these policies.
    pub async fn catalog_now(&self) -> Listing {
        let snapshot = self.host.catalog().current();
        let now_ms = u64::try_from(self.host.pipeline().clock.now().as_millisecond()).unwrap_or(0);
        let hidden = connector::hidden(&snapshot, &self.caller, now_ms).await;
        let visible = snapshot.tools().iter().filter(|tool| !hidden.contains_key(&tool.reference()));
        let visible: Vec<Arc<CatalogTool>> = visible.cloned().collect();
        let who = Viewer { caller: &self.caller, state: &self.host.pipeline().state, now_ms };
        let (mut shown, mut withheld) = (HashMap::new(), BTreeMap::new());
        for (tool, looked) in self.definitions.list(&visible, snapshot.policies(), &who).await {
            match looked {
                Ok(definition) => _ = shown.insert(tool, definition),
                Err(unshown) => _ = withheld.insert(tool, unshown),
            }
        }
        let described = self.described(&visible).await;
        let spec_bytes = self.spec_bytes(&snapshot, &shown, &described);
        let seen = Seen { snapshot, hidden, shown, withheld, described, spec_bytes };
        let surface = self.surface.lock().clone();
        let listing = Listing::of(seen, &surface);
        *self.how.lock() = Some(listing.how().clone());
        listing
    }

    /// The bytes of what a model would be given of each plugin's tool; of its definition where it cannot be converted. Made
    /// once in a binding, like what the steps give it.
    fn spec_bytes(
        &self,
        snapshot: &Arc<Snapshot>,
        shown: &HashMap<ToolRef, ShownDefinition>,
        described: &Descriptions,
    ) -> HashMap<ToolRef, usize> {
        let of_plugins = snapshot.tools().iter().filter(|tool| tool.plugin.is_some());
        let tools: Vec<(ShownTool<'_>, &ShownDefinition)> = of_plugins
            .filter_map(|tool| {
                let definition = shown.get(&tool.reference())?;
                let text = tool.namespace_description.as_ref();
                let namespace_description =
                    text.and_then(|text| described.get(&(tool.server.clone(), Arc::clone(text))));
                let (shown, shown_digest) = (definition.value(), definition.shown_digest());
                Some((ShownTool { tool, shown, shown_digest, namespace_description }, definition))
            })
            .collect();
        let made = self.handlers.lock().of(snapshot, tools.iter().map(|(tool, _)| *tool));
        let bytes = |((tool, definition), made): (&(ShownTool<'_>, &ShownDefinition), Made)| {
            let bytes = made.map_or_else(|_| definition.text().len(), |handler| handler.spec().bytes());
            (tool.tool.reference(), bytes)
        };
        tools.iter().zip(made).map(bytes).collect()
    }

    /// What may be shown of the descriptions of these tools' namespaces.
    async fn described(&self, tools: &[Arc<CatalogTool>]) -> Descriptions {
        let mut described = Descriptions::new();
        for tool in tools {
            let Some(text) = &tool.namespace_description else { continue };
            let key = (tool.server.clone(), Arc::clone(text));
            if !described.contains_key(&key)
                && let Some(left) = self.clean_instructions(&tool.server, text).await
            {
                described.insert(key, left);
            }
        }
        described
    }

    /// Tells where the tools of this session are shown from now on; [`Surface::plain`] at first.
    pub fn show_on(&self, surface: Surface) {
        *self.surface.lock() = surface;
        *self.how.lock() = None;
    }

    /// Tells what the model behind this session takes. Media of other kinds is a text from now on, for everybody who sees an
    /// answer: sanitisers, hooks, items, records and every view (approval-results 9 rule 1). At first everything is taken.
    pub fn model_takes(&self, takes: Modalities) {
        *self.takes.lock() = takes;
    }

    /// Has the memory of this session's thread marked as polluted, just before the first call from now on is handed over to
    /// a server whose answers pollute it: `sink` is told, once (catalog-dispatch 5, step 10c). Without this nobody is.
    pub fn mark_memory(&self, sink: Arc<dyn MemorySink>) {
        *self.memory.lock() = Some(Arc::new(ThreadMemory::new(self.caller.session.as_str(), sink)));
    }

    /// Keeps what scripts are answered from now on, for the auto reviewers of this session's calls (approval-results 11). What was
    /// kept before is forgotten. Without this nothing is kept.
    pub fn keep_evidence(&self, options: EvidenceOptions) {
        *self.evidence.lock() = Some(Arc::new(EvidenceStore::new(options)));
    }

    /// Returns what is kept for auto reviewers.
    #[must_use]
    pub fn evidence(&self) -> Evidence {
        self.evidence.lock().as_ref().map(|store| store.evidence()).unwrap_or_default()
    }

    /// Says that nobody tells when a turn of this session begins or ends, so that the session is the turn (R40): once the auto
    /// reviewer has denied too much, every further call is refused. Without this, [`Finished::interrupts`] says once that the turn
    /// should end.
    pub fn is_one_turn(&self) {
        self.breaker.hold();
    }

    /// Tells whether the memory of this session's thread was marked as polluted.
    #[must_use]
    pub fn memory_polluted(&self) -> bool {
        self.memory.lock().as_ref().is_some_and(|memory| memory.is_polluted())
    }

    /// Tells whether tools were found by search when they were last listed.
    pub async fn searches(&self) -> bool {
        self.how().await.search
    }

    /// By what it was last decided what is shown; asks the policies only where that depends on what they hide.
    async fn how(&self) -> Exposing {
        let (last, surface) = (self.how.lock().clone(), self.surface.lock().clone());
        match (last, surface.at_once()) {
            (Some(how), _) | (None, Some(how)) => how,
            (None, None) => self.catalog_now().await.how().clone(),
        }
    }

    /// Finds tools that are not in the list, and notes that this session has been shown them (R24). At most `limit`, the best
    /// first; none: [`DEFAULT_LIMIT`](crate::pipeline::admit::search::DEFAULT_LIMIT).
    ///
    /// # Errors
    /// [`BadSearch`], with a text for the model.
    pub async fn search(&self, query: &str, limit: Option<usize>) -> Result<Vec<Hit>, BadSearch> {
        let listing = self.catalog().await;
        let index = self.index_of(&listing.searched());
        let found = index.search(query, limit)?;
        let hit = |found: Found| {
            let definition = listing.shown(&found.tool.reference())?.clone();
            Some(Hit { seal: self.seal.of(&found.tool), tool: found.tool, definition, score: found.score })
        };
        let hits: Vec<Hit> = found.into_iter().filter_map(hit).collect();
        self.note_shown(hits.iter().map(|hit| &hit.tool));
        Ok(hits)
    }

    /// Returns an index of these tools: the last one, if it is of just these (catalog-dispatch 3.3 rule 19).
    pub(super) fn index_of(&self, tools: &[ShownTool<'_>]) -> Arc<SearchIndex> {
        let mut last = self.index.lock();
        let index = SearchIndex::of(tools, last.as_ref());
        *last = Some(Arc::clone(&index));
        index
    }

    /// Returns what is searched, for a text about it.
    pub(crate) fn index(&self, listing: &Listing) -> Arc<SearchIndex> {
        self.index_of(&listing.searched())
    }

    pub(super) fn handlers(&self) -> &Mutex<Handlers> {
        &self.handlers
    }

    /// Returns the tool of a reference that [`Session::search`] gave in this session (R24).
    ///
    /// # Errors
    /// [`BadSeal`] for any other text, and for a tool that is defined otherwise by now.
    pub fn unseal(&self, reference: &str) -> Result<Target, BadSeal> {
        let name = seal::name_in(reference).ok_or(BadSeal::Foreign)?;
        let served = self.served.lock();
        let tool = served.names.get(name).ok_or(BadSeal::Foreign)?;
        let Last::Shown(digest) = served.definitions.last(tool) else { return Err(BadSeal::Foreign) };
        if self.seal.fits(reference, name, tool, digest) {
            Ok(Target::from(tool.clone()))
        } else {
            Err(BadSeal::Outdated)
        }
    }

    /// Notes that this session has been shown these tools, and no others.
    pub fn note_shown<'t>(&self, tools: impl IntoIterator<Item = &'t Arc<CatalogTool>>) {
        let tools: Vec<&Arc<CatalogTool>> = tools.into_iter().collect();
        self.note_definitions(tools.iter().map(|tool| (tool.reference(), tool.definition.digest())));
        let mut served = self.served.lock();
        served.names.extend(tools.iter().map(|tool| (tool.flat.clone(), tool.reference())));
        // A name that is forgotten may lead to another tool: what is known of that is no knowledge of what was called so.
        if served.names.len() > MAX_SERVED {
            served.names.clear();
            served.definitions.forget();
        }
    }

    fn note_definitions(&self, shown: impl Iterator<Item = (ToolRef, Digest)> + Clone) {
        let snapshot = self.host.catalog().current();
        // What is not listed any more was shown all the same: a tool that comes back as another one is not what was seen.
        let is_listed = |tool: &ToolRef| snapshot.tool(tool).is_some();
        self.host.served().note(&self.caller, shown.clone(), is_listed);
        self.served.lock().definitions.note(shown, is_listed, MAX_SERVED);
    }

    /// Resolves a name that a client used; a name that leads nowhere stays unresolved, and its call fails like any other
    /// unknown tool's. One that is not known yet waits for servers that are still starting, like the first list.
    ///
    /// # Errors
    /// [`BadName`] for a text that cannot be a tool's name at all.
    pub async fn resolve(&self, name: &str) -> Result<Target, BadName> {
        let how = self.how().await;
        // A name stays with the tool that it was shown for, even if that is gone and the name is another tool's by now.
        let known = self.served.lock().names.get(name).cloned();
        if let Some(reference) = known.filter(|reference| self.is_there(reference, &how)) {
            return Ok(Target::from(reference));
        }
        let unresolved = Target { server: None, tool: RawToolName::parse(name)? };
        // An absent one goes by the name that the client used, as an unknown one does (R25).
        let find = || {
            let reference = self.host.catalog().current().by_flat_name(name)?.reference();
            Some(if self.is_there(&reference, &how) { Target::from(reference) } else { unresolved.clone() })
        };
        if let Some(target) = find() {
            return Ok(target);
        }
        self.host.fleet().settle().await;
        if let Some(target) = find() {
            return Ok(target);
        }
        // Its server may be starting still, or be worth another start. Only waiting depends on the spelling, never routing.
        for server in self.host.fleet().absent() {
            if name.starts_with(&server.as_str().replace('-', "_")) {
                self.host.fleet().await_ready(&server, &self.caller).await;
            }
        }
        Ok(find().unwrap_or_else(|| unresolved.clone()))
    }

    /// Runs a call.
    pub async fn call(&self, mut call: SessionCall) -> Finished {
        call.target = self.visible(call.target, &call.cancel).await;
        let target = call.target.clone();
        let finished = self.host.pipeline().run(self.request(call)).await;
        if let Some(server) = &target.server {
            match finished.clean.outcome() {
                Outcome::Failed(failure) if matches!(failure.code, Code::NotSent | Code::Ambiguous) => {
                    self.host.fleet().call_ended(server, Some(failure.detail.as_deref().unwrap_or(&failure.message)));
                }
                Outcome::Answered | Outcome::ToolError => self.host.fleet().call_ended(server, None),
                // The others are no matter of the way, or are told elsewhere.
                Outcome::Failed(_) => {}
            }
        }
        if let (Some(digest), Some(reference)) = (finished.shown, target.resolved()) {
            // The stale answer has served the new definition.
            self.note_definitions(std::iter::once((reference, digest)));
        }
        finished
    }

    /// Says what a call would come to, without making it.
    pub async fn explain(&self, mut call: SessionCall) -> Explanation {
        call.target = self.visible(call.target, &call.cancel).await;
        self.host.pipeline().explain(self.request(call)).await
    }

    /// What is absent cannot be called either, and leads nowhere like an unknown tool (catalog-dispatch 3.1 rule 4 and 3.2
    /// rules 10 and 13, R25). The policies are asked by the call itself.
    async fn visible(&self, target: Target, cancel: &CancellationToken) -> Target {
        // A server that is still starting has no tool yet that could be called, whatever is listed of it.
        if let Some(server) =
            target.server.as_ref().filter(|server| self.host.catalog().current().server(server).is_none())
        {
            let _ready = cancel.run_until_cancelled(self.host.fleet().await_ready(server, &self.caller)).await;
        }
        let how = self.how().await;
        let there = target.resolved().is_none_or(|reference| self.is_there(&reference, &how));
        if there { target } else { Target { server: None, tool: target.tool } }
    }

    /// Whether a tool is not absent for a reason of its own; true for one that is not in the catalog.
    fn is_there(&self, tool: &ToolRef, how: &Exposing) -> bool {
        let snapshot = self.host.catalog().current();
        snapshot.tool(tool).is_none_or(|listed| !is_barred(listed, snapshot.is_apps(&listed.server), how))
    }

    fn request(&self, call: SessionCall) -> CallRequest {
        let last = |reference| {
            let here = self.served.lock().definitions.last(&reference);
            let last = if here == Last::Never { self.host.served().last(&self.caller, &reference) } else { here };
            last.seen()
        };
        let seen = call.seen.or_else(|| call.target.resolved().and_then(last));
        CallRequest {
            id: call.id.unwrap_or_else(CallId::fresh),
            caller: self.caller.clone(),
            target: call.target,
            payload: call.payload,
            seen,
            definitions: Arc::clone(&self.definitions),
            takes: call.takes.unwrap_or_else(|| *self.takes.lock()),
            turn: TurnInfo {
                // The thread of a gateway's call is its session (R40).
                thread_id: self.caller.session.as_str().to_owned(),
                metadata: call.turn_metadata,
                sandbox: call.sandbox,
                trace: call.trace,
                client_meta: call.client_meta,
            },
            memory: self.memory.lock().clone(),
            source: call.source,
            evidence: self.evidence.lock().clone(),
            progress: call.progress,
            questions: call.questions,
            reviewer: call.reviewer.unwrap_or_else(|| Arc::clone(&self.reviewer)),
            breaker: Arc::clone(&self.breaker),
            gate: self.surface.lock().is_library().then(|| self.gate.clone()),
            cancel: call.cancel,
        }
    }
}
