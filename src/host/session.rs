//! One session of one caller: what it was shown, and the calls it makes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::Host;
use crate::model::caller::Caller;
use crate::model::digest::Digest;
use crate::model::name::{BadName, CallId, FlatName, RawToolName, Target, ToolRef};
use crate::model::outcome::{Code, Outcome};
use crate::model::tool::CatalogTool;
use crate::model::verdict::Refusal;
use crate::pipeline::admit::catalog::Snapshot;
use crate::pipeline::consent::connector;
use crate::pipeline::dispatch::meta::TurnInfo;
use crate::pipeline::emit::sanitise::{Definitions, ShownDefinition, Unshown, Viewer};
use crate::pipeline::{CallRequest, Explanation, Finished, Payload};
use crate::ports::questions::Questions;
use crate::ports::reviewer::Reviewer;
use crate::ports::upstream::{Fleet as _, ProgressSink};

/// How many tools a session remembers to have shown; a server that lists ever new ones must not fill the memory.
const MAX_SERVED: usize = 65_536;

/// A session. Cheap to share; dropping it forgets what was shown.
pub struct Session {
    host: Arc<Host>,
    caller: Caller,
    reviewer: Arc<dyn Reviewer>,
    served: Mutex<Served>,
    definitions: Arc<Definitions>,
}

/// What a session was shown last.
#[derive(Default)]
struct Served {
    digests: HashMap<ToolRef, Digest>,
    names: HashMap<FlatName, ToolRef>,
}

/// What a session may see of the catalog at one moment.
#[derive(Debug)]
pub struct Listing {
    snapshot: Arc<Snapshot>,
    tools: Vec<Arc<CatalogTool>>,
    hidden: BTreeMap<ToolRef, BTreeSet<Refusal>>,
    shown: HashMap<ToolRef, ShownDefinition>,
    withheld: BTreeMap<ToolRef, Unshown>,
}

impl Listing {
    /// Returns the tools to show, sorted by raw identity.
    #[must_use]
    pub fn tools(&self) -> &[Arc<CatalogTool>] {
        &self.tools
    }

    /// Returns the whole catalog that this is a part of, hidden tools included.
    #[must_use]
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// Returns the tools that the connector policy hides, each with whoever disables it.
    #[must_use]
    pub fn hidden(&self) -> &BTreeMap<ToolRef, BTreeSet<Refusal>> {
        &self.hidden
    }

    /// Returns the definition of a tool as it may be shown; none for a tool that is not among [`Listing::tools`].
    #[must_use]
    pub fn shown(&self, tool: &ToolRef) -> Option<&ShownDefinition> {
        self.shown.get(tool)
    }

    /// Returns the tools that are hidden because their definitions were withheld, each with the reason (R31).
    #[must_use]
    pub fn withheld(&self) -> &BTreeMap<ToolRef, Unshown> {
        &self.withheld
    }
}

/// One call of a session.
pub struct SessionCall {
    /// Its id; a fresh one when there is none.
    pub id: Option<CallId>,
    /// What is called.
    pub target: Target,
    /// With what.
    pub payload: Payload,
    /// `_meta` of the client's request.
    pub client_meta: serde_json::Map<String, serde_json::Value>,
    /// The turn's metadata, for upstreams that read it.
    pub turn_metadata: Option<serde_json::Map<String, serde_json::Value>>,
    /// Where progress goes, if it is wanted.
    pub progress: Option<Arc<dyn ProgressSink>>,
    /// Who answers what the server asks meanwhile; none: nobody.
    pub questions: Option<Arc<dyn Questions>>,
    /// Whoever can be asked about this call; none: the session's.
    pub reviewer: Option<Arc<dyn Reviewer>>,
    /// Ends the call.
    pub cancel: CancellationToken,
}

impl SessionCall {
    /// A call with arguments as text and nothing else.
    #[must_use]
    pub fn new(target: Target, arguments: impl Into<String>) -> Self {
        Self {
            id: None,
            target,
            payload: Payload::Function(arguments.into()),
            client_meta: serde_json::Map::new(),
            turn_metadata: None,
            progress: None,
            questions: None,
            reviewer: None,
            cancel: CancellationToken::new(),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.host.fleet().session_ended(&self.caller.session);
    }
}

impl Session {
    pub(super) fn new(host: Arc<Host>, caller: Caller, reviewer: Arc<dyn Reviewer>) -> Self {
        Self { host, caller, reviewer, served: Mutex::default(), definitions: Arc::default() }
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
        let mut tools: Vec<Arc<CatalogTool>> = visible.cloned().collect();
        let who = Viewer { caller: &self.caller, state: &self.host.pipeline().state, now_ms };
        let (mut shown, mut withheld) = (HashMap::new(), BTreeMap::new());
        for (tool, looked) in self.definitions.list(&tools, snapshot.policies(), &who).await {
            match looked {
                Ok(definition) => _ = shown.insert(tool, definition),
                Err(unshown) => _ = withheld.insert(tool, unshown),
            }
        }
        tools.retain(|tool| shown.contains_key(&tool.reference()));
        Listing { tools, hidden, snapshot, shown, withheld }
    }

    /// Notes that this session has been shown these tools, and no others.
    pub fn note_shown(&self, tools: &[Arc<CatalogTool>]) {
        let mut served = self.served.lock();
        // What is not listed any more was shown all the same: a tool that comes back as another one is not what was seen.
        if served.digests.len() > MAX_SERVED {
            *served = Served::default();
        }
        for tool in tools {
            served.digests.insert(tool.reference(), tool.definition.digest());
            served.names.insert(tool.flat.clone(), tool.reference());
        }
    }

    /// Resolves a name that a client used; a name that leads nowhere stays unresolved, and its call fails like any other
    /// unknown tool's. One that is not known yet waits for servers that are still starting, like the first list.
    ///
    /// # Errors
    /// [`BadName`] for a text that cannot be a tool's name at all.
    pub async fn resolve(&self, name: &str) -> Result<Target, BadName> {
        // A name stays with the tool that it was shown for, even if that is gone and the name is another tool's by now.
        if let Some(reference) = self.served.lock().names.get(name) {
            return Ok(Target::from(reference.clone()));
        }
        let unresolved = Target { server: None, tool: RawToolName::parse(name)? };
        let find = || self.host.catalog().current().by_flat_name(name).map(|tool| Target::from(tool.reference()));
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
        Ok(find().unwrap_or(unresolved))
    }

    /// Runs a call.
    pub async fn call(&self, call: SessionCall) -> Finished {
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
            self.served.lock().digests.insert(reference, digest);
        }
        finished
    }

    /// Says what a call would come to, without making it.
    pub async fn explain(&self, call: SessionCall) -> Explanation {
        self.host.pipeline().explain(self.request(call)).await
    }

    fn request(&self, call: SessionCall) -> CallRequest {
        let seen = call.target.resolved().and_then(|reference| self.served.lock().digests.get(&reference).copied());
        CallRequest {
            id: call.id.unwrap_or_else(CallId::fresh),
            caller: self.caller.clone(),
            target: call.target,
            payload: call.payload,
            seen,
            definitions: Arc::clone(&self.definitions),
            turn: TurnInfo {
                // The thread of a gateway's call is its session (R40).
                thread_id: self.caller.session.as_str().to_owned(),
                metadata: call.turn_metadata,
                client_meta: call.client_meta,
            },
            progress: call.progress,
            questions: call.questions,
            reviewer: call.reviewer.unwrap_or_else(|| Arc::clone(&self.reviewer)),
            cancel: call.cancel,
        }
    }
}
