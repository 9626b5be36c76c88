//! Components as layers want them -> the set that decides.
//!
//! Promises: every component that a layer names is in the set, most trusted layer first, whether it could be loaded or not
//! (R1); one that could not stays as its fault, which refuses (R8, R14); the baseline comes from embedded bytes and cannot be
//! replaced. The digest covers layers, components, settings and postures, so that any change makes a call be decided again.

use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::Value;

use crate::adapters::wasm::{Engine, Limits, builtin};
use crate::model::digest::Digest;
use crate::model::json;
use crate::model::layer::{LayerKind, LayerRef};
use crate::model::name::ToolRef;
use crate::model::posture::PostureLayers;
use crate::model::revision::PolicySetDigest;
use crate::model::tool::ServerIdentity;
use crate::model::verdict::{Fault, FaultCode, OnFailure, Refusal, Source};
use crate::ports::approval::{ApprovalComponent, BoundComponent, Kind, Matches, PolicySet};

/// The baseline's name as a component.
pub const BASELINE: &str = "approval-baseline";

/// One component of a layer, before it is loaded.
pub struct ComponentSpec {
    /// The layer.
    pub layer: LayerRef,
    /// The component's name in that layer.
    pub name: String,
    /// Its bytes, or why there are none.
    pub bytes: Result<Vec<u8>, Fault>,
    /// The digest that the layer wrote down.
    pub pin: Option<Digest>,
    /// Its settings: an object, or null for none.
    pub settings: Value,
    /// Its limits.
    pub limits: Limits,
    /// Whether an allow of it counts (R3).
    pub may_allow: bool,
    /// What a failure of it means.
    pub on_failure: OnFailure,
    /// Whether it is only observed (R16).
    pub observe: bool,
    /// Which calls it is asked about.
    pub matches: Arc<dyn Matches>,
}

/// Matches every call.
#[derive(Debug, Clone, Copy)]
pub struct EveryCall;

impl Matches for EveryCall {
    fn matches(&self, _kind: Kind, _tool: &ToolRef, _identity: ServerIdentity) -> bool {
        true
    }
}

/// Matches the calls of one tool, of any kind.
#[derive(Debug, Clone)]
pub struct OneTool(pub ToolRef);

impl Matches for OneTool {
    fn matches(&self, _kind: Kind, tool: &ToolRef, _identity: ServerIdentity) -> bool {
        *tool == self.0
    }
}

/// Loads all components and makes the set. Blocks while it compiles: call it off the reactor.
///
/// `specs` may be in any order; those of equally trusted layers keep theirs. `configuration` is the digest of whatever they
/// were made from: what a component is asked about has no digest of its own.
#[must_use]
pub fn policy_set(
    engine: &Engine,
    mut specs: Vec<ComponentSpec>,
    postures: PostureLayers,
    refusals: Vec<Refusal>,
    configuration: Digest,
) -> PolicySet {
    specs.sort_by_key(|spec| std::cmp::Reverse(spec.layer.kind()));
    let mut about = format!("{configuration}\n");
    let baseline = bind(engine, baseline_spec(), &mut about);
    let components = specs.into_iter().map(|spec| bind(engine, spec, &mut about)).collect();
    describe(&mut about, &postures, &refusals);
    PolicySet {
        digest: PolicySetDigest(Digest::of(about.as_bytes())),
        baseline,
        components,
        connectors: Vec::new(),
        sanitisers: Vec::new(),
        postures,
        refusals,
        engine: engine.fingerprint(),
    }
}

fn baseline_spec() -> ComponentSpec {
    ComponentSpec {
        layer: LayerRef::new(LayerKind::Builtin),
        name: BASELINE.to_owned(),
        bytes: Ok(builtin::APPROVAL_BASELINE.to_vec()),
        pin: None,
        settings: Value::Null,
        limits: Limits::default(),
        // The baseline has no say of its own: an allow of it lifts nothing (R11).
        may_allow: false,
        on_failure: OnFailure::Deny,
        observe: false,
        matches: Arc::new(EveryCall),
    }
}

/// Loads one component, and writes down what it is for the set's digest.
fn bind(engine: &Engine, spec: ComponentSpec, about: &mut String) -> BoundComponent {
    let origin = format!("{:?}", spec.layer);
    let rest = (spec.may_allow, spec.on_failure, spec.observe, spec.limits);
    let settings = json::canonical(&spec.settings);
    let source = Source { layer: spec.layer, component: spec.name.into(), digest: None };
    let loaded = spec
        .bytes
        .and_then(|bytes| engine.load(&bytes, spec.pin, spec.settings, spec.limits, source.clone()))
        .inspect_err(|fault| tracing::warn!(component = %source, %fault, "a component cannot be used; it refuses"));
    let source = match &loaded {
        Ok(component) => component.source().clone(),
        Err(_) => source,
    };
    let state = match &loaded {
        Ok(component) => component.digest().to_string(),
        Err(fault) => fault.to_string(),
    };
    // Debug text of our own types, each on a line: no two different sets read alike.
    let _ = writeln!(about, "{origin:?} {:?} {state:?} {rest:?} {settings:?}", source.component);
    BoundComponent {
        source,
        may_allow: spec.may_allow,
        on_failure: spec.on_failure,
        observe: spec.observe,
        matches: spec.matches,
        component: loaded.map(|component| component as Arc<dyn ApprovalComponent>),
    }
}

fn describe(about: &mut String, postures: &PostureLayers, refusals: &[Refusal]) {
    let _ = writeln!(about, "{postures:?}");
    for refusal in refusals {
        let _ = writeln!(about, "{refusal:?}");
    }
}

/// The fault of a component whose bytes cannot be had.
#[must_use]
pub fn unreadable(why: impl AsRef<str>) -> Fault {
    Fault::new(FaultCode::Missing, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(kind: LayerKind, name: &str, bytes: Result<Vec<u8>, Fault>) -> ComponentSpec {
        ComponentSpec { layer: LayerRef::new(kind), name: name.to_owned(), bytes, ..baseline_spec() }
    }

    fn set(specs: Vec<ComponentSpec>) -> PolicySet {
        let engine = Engine::on_demand().unwrap();
        policy_set(&engine, specs, PostureLayers::default(), Vec::new(), Digest::of(b""))
    }

    #[test]
    fn r1_every_component_is_in_the_set_most_trusted_layer_first() {
        let broken = || Err(unreadable("no such file"));
        let specs = vec![
            spec(LayerKind::Project, "p", broken()),
            spec(LayerKind::Managed, "m", Ok(builtin::DEMO_MANAGED.to_vec())),
            spec(LayerKind::User, "u", Ok(b"rubbish".to_vec())),
        ];
        let set = set(specs);
        let names: Vec<&str> = set.components.iter().map(|c| &*c.source.component).collect();
        assert_eq!(names, ["m", "u", "p"]);
        assert!(set.components[0].component.is_ok() && set.components[0].source.digest.is_some());
        assert!(set.components[1..].iter().all(|c| c.component.is_err()));
        assert!(set.baseline.component.is_ok());
    }

    #[test]
    fn r19_any_change_of_a_component_changes_the_sets_digest() {
        let one = |change: fn(&mut ComponentSpec)| {
            let mut spec = spec(LayerKind::User, "u", Err(unreadable("gone")));
            change(&mut spec);
            set(vec![spec]).digest
        };
        let plain = one(|_| {});
        assert_eq!(plain, one(|_| {}));
        let changes: [fn(&mut ComponentSpec); 5] = [
            |spec| spec.observe = true,
            |spec| spec.may_allow = true,
            |spec| spec.on_failure = OnFailure::Ask,
            |spec| spec.settings = serde_json::json!({ "a": 1 }),
            |spec| spec.layer = LayerRef::from_file(LayerKind::User, "other.toml".into()),
        ];
        for change in changes {
            assert_ne!(plain, one(change));
        }
    }
}
