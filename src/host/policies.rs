//! Components as layers want them -> the set that decides.
//!
//! Promises: every component that a layer names is in the set, most trusted layer first, whether it could be loaded or not
//! (R1); one that could not stays as its fault, which refuses (R8, R14); the baseline comes from embedded bytes and cannot be
//! replaced. The digest covers layers, components, settings and postures, so that any change makes a call be decided again.

use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::Value;

use crate::adapters::wasm::remember::Remembering;
use crate::adapters::wasm::{Admission, Engine, Limits, builtin};
use crate::config::data::DataFiles;
use crate::model::digest::Digest;
use crate::model::json;
use crate::model::layer::{LayerKind, LayerRef};
use crate::model::name::ToolRef;
use crate::model::posture::PostureLayers;
use crate::model::revision::PolicySetDigest;
use crate::model::tool::ServerIdentity;
use crate::model::verdict::{Fault, FaultCode, OnFailure, Refusal, Source};
use crate::ports::approval::{ApprovalComponent, Bound, BoundComponent, Kind, Matches, PolicySet};
use crate::ports::connector::ConnectorComponent;
use crate::ports::sanitiser::SanitiserComponent;

/// The baseline's name as a component.
pub const BASELINE: &str = "approval-baseline";
/// The name of the built-in connector policy.
pub const CONNECTOR_BASELINE: &str = "connector-baseline";

/// One component of a layer, before it is loaded.
pub struct ComponentSpec {
    /// The layer.
    pub layer: LayerRef,
    /// The component's name in that layer.
    pub name: String,
    /// Where its layer names it, for what is wrong with it; none: nobody wrote it.
    pub place: Option<String>,
    /// Its bytes, or why there are none.
    pub bytes: Result<Vec<u8>, Fault>,
    /// The digest that the layer wrote down.
    pub pin: Option<Digest>,
    /// Its settings: an object, or null for none.
    pub settings: Value,
    /// Its limits.
    pub limits: Limits,
    /// The files that it may read, or why they cannot be had; none: it has no folder.
    pub data: Result<Option<Arc<DataFiles>>, Fault>,
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
/// `specs` may be in any order; those of equally trusted layers keep theirs. `apps` are the built-in connector policies, most
/// trusted layer first. `configuration` is the digest of whatever they
/// were made from: what a component is asked about has no digest of its own. Hooks are added later.
#[must_use]
pub fn policy_set(
    engine: &Engine,
    mut specs: Vec<ComponentSpec>,
    apps: Vec<ComponentSpec>,
    postures: PostureLayers,
    refusals: Vec<Refusal>,
    configuration: Digest,
) -> PolicySet {
    specs.sort_by_key(|spec| std::cmp::Reverse(spec.layer.kind()));
    let mut about = format!("{configuration}\n");
    let baseline = approval_baseline(engine, &mut about);
    let (mut components, mut connectors, mut sanitisers) = (Vec::new(), Vec::new(), Vec::new());
    for spec in specs {
        let parts = bind(engine, spec, &mut about);
        components.extend(parts.approval);
        connectors.extend(parts.connector);
        sanitisers.extend(parts.sanitiser);
    }
    // The built-in answers come last: of equal ones, a layer's own component is named.
    for spec in apps {
        connectors.extend(bind(engine, spec, &mut about).connector);
    }
    describe(&mut about, &postures, &refusals);
    PolicySet {
        digest: PolicySetDigest(Digest::of(about.as_bytes())),
        baseline,
        components,
        connectors,
        sanitisers,
        hooks: Vec::new(),
        reviewers: Vec::new(),
        postures,
        refusals,
        engine: engine.fingerprint(),
    }
}

/// The baseline, or its failure: an error in the fold, never an absence (R10).
fn approval_baseline(engine: &Engine, about: &mut String) -> BoundComponent {
    let spec = baseline_spec();
    let source = Source { layer: spec.layer.clone(), component: spec.name.as_str().into(), digest: None };
    let matches = Arc::clone(&spec.matches);
    bind(engine, spec, about).approval.unwrap_or_else(|| {
        let common = Common { source, may_allow: false, on_failure: OnFailure::Deny, observe: false, matches };
        common.bound(Err(unreadable("the built-in baseline decides nothing")))
    })
}

/// The built-in answer about tools of Apps for one layer; its settings are the layer's.
#[must_use]
pub fn connector_spec(layer: LayerRef) -> ComponentSpec {
    let bytes = Ok(builtin::CONNECTOR_BASELINE.to_vec());
    ComponentSpec { layer, name: CONNECTOR_BASELINE.to_owned(), bytes, ..baseline_spec() }
}

fn baseline_spec() -> ComponentSpec {
    ComponentSpec {
        layer: LayerRef::new(LayerKind::Builtin),
        name: BASELINE.to_owned(),
        place: None,
        bytes: Ok(builtin::APPROVAL_BASELINE.to_vec()),
        pin: None,
        settings: Value::Null,
        limits: Limits::default(),
        data: Ok(None),
        // The baseline has no say of its own: an allow of it lifts nothing (R11).
        may_allow: false,
        on_failure: OnFailure::Deny,
        observe: false,
        matches: Arc::new(EveryCall),
    }
}

/// One component at each decision point that it answers at.
struct Parts {
    approval: Option<BoundComponent>,
    connector: Option<Bound<dyn ConnectorComponent>>,
    sanitiser: Option<Bound<dyn SanitiserComponent>>,
}

/// Loads one component, and writes down what it is for the set's digest.
///
/// Nobody knows at which points a component that cannot be loaded would answer, so it fails at all of them: it denies,
/// disables and withholds (R8, R14).
fn bind(engine: &Engine, spec: ComponentSpec, about: &mut String) -> Parts {
    let origin = format!("{:?}", spec.layer);
    let rest = (spec.may_allow, spec.on_failure, spec.observe, spec.limits);
    let settings = json::canonical(&spec.settings);
    let data = spec.data.as_ref().map(|data| data.as_ref().map(|files| files.digest()));
    let data = format!("{data:?}");
    let source = Source { layer: spec.layer, component: spec.name.into(), digest: None };
    let (pin, limits, observed) = (spec.pin, spec.limits, spec.observe);
    let admission = |data| Admission { pin, settings: spec.settings, limits, data, source: source.clone(), observed };
    let loaded = spec
        .bytes
        .and_then(|bytes| {
            let (data, place) = (spec.data?, spec.place);
            engine.admit(&bytes, admission(data)).map_err(|fault| match place {
                Some(place) => Fault::new(fault.code, format!("{place}: {}", fault.detail)),
                None => fault,
            })
        })
        .inspect_err(|fault| tracing::warn!(component = %source, %fault, "a component cannot be used; it refuses"));
    let (source, state) = match &loaded {
        Ok(admitted) => (admitted.source.clone(), admitted.digest.to_string()),
        Err(fault) => (source, fault.to_string()),
    };
    // Debug text of our own types, each on a line: no two different sets read alike.
    let _ = writeln!(about, "{origin:?} {:?} {state:?} {rest:?} {settings:?} {data:?}", source.component);
    let rest = Common {
        source,
        may_allow: spec.may_allow,
        on_failure: spec.on_failure,
        observe: spec.observe,
        matches: spec.matches,
    };
    match loaded {
        Ok(admitted) => Parts {
            approval: admitted.approval.map(|component| rest.bound(Ok(component as Arc<dyn ApprovalComponent>))),
            connector: admitted
                .connector
                .map(|component| rest.bound(Ok(Remembering::new(component) as Arc<dyn ConnectorComponent>))),
            sanitiser: admitted.sanitiser.map(|component| rest.bound(Ok(component as Arc<dyn SanitiserComponent>))),
        },
        Err(fault) => Parts {
            approval: Some(rest.bound(Err(fault.clone()))),
            connector: Some(rest.bound(Err(fault.clone()))),
            sanitiser: Some(rest.bound(Err(fault))),
        },
    }
}

/// What all parts of a component have in common.
struct Common {
    source: Source,
    may_allow: bool,
    on_failure: OnFailure,
    observe: bool,
    matches: Arc<dyn Matches>,
}

impl Common {
    fn bound<C: ?Sized>(&self, component: Result<Arc<C>, Fault>) -> Bound<C> {
        Bound {
            source: self.source.clone(),
            may_allow: self.may_allow,
            on_failure: self.on_failure,
            observe: self.observe,
            matches: Arc::clone(&self.matches),
            component,
        }
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
        policy_set(&engine, specs, Vec::new(), PostureLayers::default(), Vec::new(), Digest::of(b""))
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
