//! Scripted approval components, a stand-in for the baseline, and policy sets in few lines.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use portcullis::model::digest::Digest;
use portcullis::model::layer::{LayerKind, LayerRef};
use portcullis::model::name::{ServerName, ToolRef};
use portcullis::model::posture::{
    ApprovalMode, ApprovalPolicy, LayerPosture, Posture, PostureLayers, Profile, ServerModes,
};
use portcullis::model::revision::PolicySetDigest;
use portcullis::model::tool::{Hints, ServerIdentity};
use portcullis::model::verdict::{
    Ask, Fault, FaultCode, Label, OnFailure, Reason, Refusal, Remember, Reviewers, RuleId, Source, Verdict,
};
use portcullis::pipeline::emit::sanitise::Sanitiser;
use portcullis::ports::approval::{
    ApprovalComponent, Bound, BoundComponent, CallFacts, Evaluation, Kind, Matches, PolicySet, Usage,
};
use portcullis::ports::connector::{AppToolFacts, ConnectorAnswer, ConnectorComponent, ConnectorEvaluation};
use portcullis::ports::hook::BoundHook;
use portcullis::ports::review::BoundReviewer;

use super::{Gate, Journal};
use crate::support::policy::load_connector;

type Script = dyn Fn(usize, &CallFacts) -> Result<Verdict, Fault> + Send + Sync;

/// A component that answers by a script. The script gets how often it has answered before, and the facts.
pub(crate) struct Scripted {
    script: Box<Script>,
    labels: Mutex<Vec<Label>>,
    gate: Mutex<Option<Arc<Gate>>>,
    journal: Mutex<Option<(Journal, String)>>,
    asked: AtomicUsize,
}

impl Scripted {
    pub(crate) fn by(
        script: impl Fn(usize, &CallFacts) -> Result<Verdict, Fault> + Send + Sync + 'static,
    ) -> Arc<Self> {
        let script: Box<Script> = Box::new(script);
        Arc::new(Self {
            script,
            labels: Mutex::default(),
            gate: Mutex::default(),
            journal: Mutex::default(),
            asked: AtomicUsize::new(0),
        })
    }

    pub(crate) fn says(verdict: Verdict) -> Arc<Self> {
        Self::by(move |_, _| Ok(verdict.clone()))
    }

    pub(crate) fn fails(code: FaultCode) -> Arc<Self> {
        Self::by(move |_, _| Err(Fault::new(code, "SECRET detail of the fault")))
    }

    /// Sets a label with every answer.
    pub(crate) fn labelling(self: Arc<Self>, name: &str, source: Source) -> Arc<Self> {
        self.labels.lock().push(Label { name: name.to_owned(), source });
        self
    }

    /// Answers only once the gate is open.
    pub(crate) fn at(self: Arc<Self>, gate: &Arc<Gate>) -> Arc<Self> {
        *self.gate.lock() = Some(Arc::clone(gate));
        self
    }

    /// Writes a line for every evaluation.
    pub(crate) fn noting(self: Arc<Self>, journal: &Journal, line: &str) -> Arc<Self> {
        *self.journal.lock() = Some((journal.clone(), line.to_owned()));
        self
    }

    /// How often it was asked.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl ApprovalComponent for Scripted {
    async fn evaluate(&self, facts: Arc<CallFacts>) -> Evaluation {
        let before = self.asked.fetch_add(1, Ordering::SeqCst);
        if let Some((journal, line)) = &*self.journal.lock() {
            journal.note(line.clone());
        }
        let gate = self.gate.lock().clone();
        if let Some(gate) = gate {
            gate.pass().await;
        }
        let result = (self.script)(before, &facts);
        Evaluation { result, labels: self.labels.lock().clone(), log: Vec::new(), usage: Usage::default() }
    }
}

pub(crate) fn reason(rule: &str) -> Reason {
    Reason { rule: RuleId::parse(rule), text: format!("SECRET words about {rule}") }
}

pub(crate) fn allow(rule: &str) -> Verdict {
    Verdict::Allow(reason(rule))
}

pub(crate) fn deny(rule: &str) -> Verdict {
    Verdict::Deny(reason(rule))
}

/// An ask of whoever the configuration names.
pub(crate) fn ask(rule: &str, remember: Remember) -> Verdict {
    let reviewers = Reviewers::default();
    Verdict::Ask(Ask { reason: reason(rule), remember, bind_arguments: false, reviewers })
}

/// The baseline again, written apart from the real one (approval-results 1.1 and 1.2, steps A1 and A2).
pub(crate) fn baseline() -> Arc<dyn ApprovalComponent> {
    Scripted::by(|_, facts| {
        let rule = if needs_asking(facts.posture, facts.hints) { "needs-asking" } else { "needs-no-asking" };
        let remember = match facts.posture.mode {
            ApprovalMode::Auto => Remember::Always,
            ApprovalMode::Prompt | ApprovalMode::Writes | ApprovalMode::Approve => Remember::Never,
        };
        Ok(if rule == "needs-asking" { ask(rule, remember) } else { allow(rule) })
    })
}

fn needs_asking(posture: Posture, hints: Hints) -> bool {
    let reads = hints.read_only == Some(true);
    let never_asked = posture.policy == ApprovalPolicy::Never && posture.profile == Profile::Full;
    match posture.mode {
        ApprovalMode::Approve => false,
        _ if never_asked => false,
        ApprovalMode::Prompt => true,
        ApprovalMode::Writes => !reads,
        ApprovalMode::Auto if hints.destructive == Some(true) => true,
        ApprovalMode::Auto if reads => false,
        ApprovalMode::Auto => hints.destructive != Some(false) || hints.open_world != Some(false),
    }
}

#[derive(Debug)]
pub(crate) struct Everything;

impl Matches for Everything {
    fn matches(&self, _kind: Kind, _tool: &ToolRef, _identity: ServerIdentity) -> bool {
        true
    }
}

/// A component as a layer binds it; named by the layer.
pub(crate) fn bound(layer: LayerKind, name: &str, component: Arc<dyn ApprovalComponent>) -> BoundComponent {
    BoundComponent {
        source: source(layer, name),
        may_allow: layer.may_allow_by_default(),
        on_failure: OnFailure::Deny,
        observe: false,
        matches: Arc::new(Everything),
        component: Ok(component),
    }
}

pub(crate) fn source(layer: LayerKind, name: &str) -> Source {
    Source { layer: LayerRef::new(layer), component: name.into(), digest: Some(Digest::of(name.as_bytes())) }
}

type AppScript = dyn Fn(&AppToolFacts) -> Result<ConnectorAnswer, Fault> + Send + Sync;

/// A connector component that answers by a script.
pub(crate) struct Apps {
    script: Box<AppScript>,
    asked: AtomicUsize,
}

impl Apps {
    pub(crate) fn by(
        script: impl Fn(&AppToolFacts) -> Result<ConnectorAnswer, Fault> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { script: Box::new(script), asked: AtomicUsize::new(0) })
    }

    pub(crate) fn says(rule: &str, enabled: Option<bool>, mode: Option<ApprovalMode>) -> Arc<Self> {
        let rule = RuleId::parse(rule);
        Self::by(move |_| Ok(ConnectorAnswer { rule: rule.clone(), enabled, mode }))
    }

    /// How often it was asked.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl ConnectorComponent for Apps {
    async fn evaluate(&self, facts: Arc<AppToolFacts>) -> ConnectorEvaluation {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let result = (self.script)(&facts);
        ConnectorEvaluation { result, log: Vec::new(), usage: Usage::default() }
    }
}

/// A connector component as a layer binds it.
pub(crate) fn bound_app(layer: LayerKind, name: &str, component: &Arc<Apps>) -> Bound<dyn ConnectorComponent> {
    Bound {
        source: source(layer, name),
        may_allow: layer.may_allow_by_default(),
        on_failure: OnFailure::Deny,
        observe: false,
        matches: Arc::new(Everything),
        component: Ok(Arc::clone(component) as _),
    }
}

/// The built-in connector policy of a layer, with these settings.
pub(crate) fn bound_connector_baseline(layer: LayerKind, settings: serde_json::Value) -> Bound<dyn ConnectorComponent> {
    let component: Arc<dyn ConnectorComponent> = load_connector(settings);
    let apps = Apps::says("unused", None, None);
    Bound { component: Ok(component), ..bound_app(layer, "connector-baseline", &apps) }
}

/// Policies in few lines. Every finished set has a digest of its own.
#[derive(Clone)]
pub(crate) struct Policies {
    baseline: Arc<dyn ApprovalComponent>,
    components: Vec<BoundComponent>,
    sanitisers: Vec<Sanitiser>,
    postures: Vec<LayerPosture>,
    refusals: Vec<Refusal>,
    connectors: Vec<Bound<dyn ConnectorComponent>>,
    hooks: Vec<BoundHook>,
    reviewers: Vec<BoundReviewer>,
}

impl Policies {
    /// The stand-in baseline with the builtin posture, and nothing else.
    pub(crate) fn new() -> Self {
        Self {
            baseline: baseline(),
            components: Vec::new(),
            connectors: Vec::new(),
            sanitisers: Vec::new(),
            postures: Vec::new(),
            hooks: Vec::new(),
            reviewers: Vec::new(),
            refusals: Vec::new(),
        }
    }

    /// Policies under which nothing is asked: the user's layer sets every mode of these servers to `approve`.
    pub(crate) fn open(servers: &[&str]) -> Self {
        servers.iter().fold(Self::new(), |set, server| set.mode(LayerKind::User, server, ApprovalMode::Approve))
    }

    pub(crate) fn baseline(mut self, baseline: Arc<dyn ApprovalComponent>) -> Self {
        self.baseline = baseline;
        self
    }

    pub(crate) fn with(self, layer: LayerKind, name: &str, component: &Arc<Scripted>) -> Self {
        let component: Arc<dyn ApprovalComponent> = Arc::clone(component) as _;
        self.and(bound(layer, name, component))
    }

    pub(crate) fn and(mut self, component: BoundComponent) -> Self {
        self.components.push(component);
        self.components.sort_by(|a, b| b.source.layer.cmp(&a.source.layer));
        self
    }

    /// A connector component of a layer.
    pub(crate) fn app(self, layer: LayerKind, name: &str, component: &Arc<Apps>) -> Self {
        self.and_app(bound_app(layer, name, component))
    }

    pub(crate) fn and_app(mut self, component: Bound<dyn ConnectorComponent>) -> Self {
        self.connectors.push(component);
        self.connectors.sort_by(|a, b| b.source.layer.cmp(&a.source.layer));
        self
    }

    /// A hook of a layer.
    pub(crate) fn hook(mut self, hook: BoundHook) -> Self {
        self.hooks.push(hook);
        self.hooks.sort_by(|a, b| b.source.layer.cmp(&a.source.layer));
        self
    }

    /// An auto reviewer of a layer.
    pub(crate) fn reviewer(mut self, reviewer: BoundReviewer) -> Self {
        self.reviewers.push(reviewer);
        self.reviewers.sort_by(|a, b| b.source.layer.cmp(&a.source.layer));
        self
    }

    /// Binds a sanitiser; see [`super::sanitiser::bound`].
    pub(crate) fn cleaning(mut self, sanitiser: Sanitiser) -> Self {
        self.sanitisers.push(sanitiser);
        self.sanitisers.sort_by(|a, b| b.source.layer.cmp(&a.source.layer));
        self
    }

    pub(crate) fn posture(mut self, layer: LayerKind, change: impl FnOnce(&mut LayerPosture)) -> Self {
        let at = self.postures.iter().position(|posture| posture.layer.kind() == layer).unwrap_or_else(|| {
            self.postures.push(LayerPosture::silent(LayerRef::new(layer), layer.may_allow_by_default()));
            self.postures.len() - 1
        });
        change(&mut self.postures[at]);
        self
    }

    pub(crate) fn mode(self, layer: LayerKind, server: &str, mode: ApprovalMode) -> Self {
        let server = ServerName::parse(server).unwrap();
        self.posture(layer, |posture| {
            posture.modes.insert(server, ServerModes { default: Some(mode), ..ServerModes::default() });
        })
    }

    pub(crate) fn refusing(mut self, refusal: Refusal) -> Self {
        self.refusals.push(refusal);
        self
    }

    pub(crate) fn finish(&self) -> PolicySet {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        PolicySet {
            digest: PolicySetDigest(Digest::of(&number.to_be_bytes())),
            baseline: BoundComponent {
                may_allow: false,
                ..bound(LayerKind::Builtin, "approval-baseline", Arc::clone(&self.baseline))
            },
            components: self.components.clone(),
            connectors: self.connectors.clone(),
            sanitisers: self.sanitisers.clone(),
            hooks: self.hooks.clone(),
            reviewers: self.reviewers.clone(),
            postures: PostureLayers::new(self.postures.clone()),
            refusals: self.refusals.clone(),
            engine: Digest::of(b"no engine"),
        }
    }
}
