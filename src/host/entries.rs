//! What the layers' policies and hooks say -> the set that decides.
//!
//! Promises: every entry is in the set, whatever is wrong with it: one that cannot be loaded refuses what it matches, and its
//! fault names file, line, layer, policy and component; a layer that cannot be read refuses every call (R8).

use std::error::Error;
use std::sync::Arc;

use super::hooks;
use super::policies::{ComponentSpec, connector_spec, policy_set, unreadable};
use super::reviewers;
use crate::adapters::wasm::{Class, Engine, Limits, builtin};
use crate::config::apps::AppSettings;
use crate::config::builtin::Builtin;
use crate::config::data::{DataError, DataFiles, read_data};
use crate::config::matcher::Matcher;
use crate::config::policy_keys::{KindName, LimitsClass, PolicyLimitsTable};
use crate::config::policy_ref::{ComponentBytes, ComponentError, PolicyEntry, read_component};
use crate::config::requirements::Unmet;
use crate::config::{EveryCall, Resolved};
use crate::model::digest::Digest;
use crate::model::name::ToolRef;
use crate::model::tool::ServerIdentity;
use crate::model::verdict::{Fault, FaultCode, Reason, Refusal, RuleId, Source};
use crate::ports::approval::{Kind, Matches, PolicySet};

/// What a policy's files held when they were read.
#[derive(Debug, Clone)]
pub(super) struct Files {
    pub(super) component: Result<Arc<ComponentBytes>, Fault>,
    pub(super) data: Result<Option<Arc<DataFiles>>, Fault>,
}

impl Files {
    /// Reads them, each once; `user` is whose they must be (R6).
    pub(super) fn read(entry: &PolicyEntry, user: u32) -> Self {
        let component = match entry.builtin {
            Some(builtin) => own(entry, builtin),
            None => read_component(entry, user),
        };
        Self {
            component: component.map(Arc::new).map_err(|error| fault(entry, &error)),
            data: read_data(entry, user).map(|files| files.map(Arc::new)).map_err(|error| data_fault(entry, &error)),
        }
    }

    /// The same files under an entry that may demand more of them by now.
    pub(super) fn under(&self, entry: &PolicyEntry) -> Self {
        let check = |read: &ComponentBytes| match entry.builtin {
            Some(_) => entry.check_builtin(read.digest),
            None => entry.check(read),
        };
        let checked =
            |read: &Arc<ComponentBytes>| check(read).map(|()| Arc::clone(read)).map_err(|error| fault(entry, &error));
        Self { component: self.component.as_ref().map_err(Clone::clone).and_then(checked), data: self.data.clone() }
    }
}

/// A component that comes with the program.
fn own(entry: &PolicyEntry, which: Builtin) -> Result<ComponentBytes, ComponentError> {
    let bytes = match which {
        Builtin::SanitiseSecrets => builtin::SANITISE_SECRETS.to_vec(),
    };
    let read = ComponentBytes { digest: Digest::of(&bytes), bytes, signature: None };
    entry.check_builtin(read.digest).map(|()| read)
}

/// Loads every policy of the configuration. Blocks while it compiles.
#[must_use]
pub fn policies(resolved: &Resolved, user: u32, engine: &Engine) -> PolicySet {
    policies_of(resolved, engine, |entry| Files::read(entry, user))
}

/// The same, from files that whoever calls has.
pub(super) fn policies_of(
    resolved: &Resolved,
    engine: &Engine,
    mut files: impl FnMut(&PolicyEntry) -> Files,
) -> PolicySet {
    let specs = resolved.policies.iter().map(|entry| component(entry, files(entry))).collect();
    let apps = resolved.apps.iter().map(connector_baseline).collect();
    let mut set = policy_set(engine, specs, apps, resolved.postures.clone(), refusals(resolved), resolved.digest);
    reviewers::add(&mut set, resolved);
    hooks::add(&mut set, resolved);
    set
}

/// What one layer says about Apps, as the built-in connector policy answers it.
fn connector_baseline(apps: &AppSettings) -> ComponentSpec {
    ComponentSpec { settings: apps.settings.clone(), may_allow: apps.may_allow, ..connector_spec(apps.layer.clone()) }
}

fn component(entry: &PolicyEntry, files: Files) -> ComponentSpec {
    ComponentSpec {
        layer: entry.layer.clone(),
        name: entry.name.clone(),
        place: Some(entry.place()),
        bytes: files.component.map(|read| read.bytes.clone()),
        pin: entry.sha256,
        settings: entry.settings.clone(),
        limits: limits(entry.limits, entry.most),
        data: files.data,
        may_allow: entry.may_allow,
        on_failure: entry.on_failure,
        observe: entry.observe,
        matches: Arc::new(Asked(entry.matcher.clone())),
    }
}

fn data_fault(entry: &PolicyEntry, error: &DataError) -> Fault {
    let code = match error {
        DataError::Locked(_) => FaultCode::Digest,
        DataError::Open(_) | DataError::Link(_) | DataError::Name(_) | DataError::TooMuch(_) => FaultCode::Missing,
    };
    Fault::new(code, format!("{}: {}", entry.place(), chain(error)))
}

fn fault(entry: &PolicyEntry, error: &ComponentError) -> Fault {
    let mut text = chain(error);
    // What is wrong with the entry itself names its own line already.
    if !matches!(error, ComponentError::Broken(_)) {
        text.insert_str(0, &format!("{}: ", entry.place()));
    }
    match error {
        ComponentError::Locked(_)
        | ComponentError::Digest { .. }
        | ComponentError::Unmet { unmet: Unmet::Digest(..), .. } => Fault::new(FaultCode::Digest, text),
        ComponentError::Unmet { unmet: Unmet::Signature(..), .. } => Fault::new(FaultCode::Signature, text),
        ComponentError::Broken(_) => Fault::new(FaultCode::Settings, text),
        ComponentError::Missing(_) | ComponentError::Unusable(_) => unreadable(text),
    }
}

/// Says an error and its causes.
fn chain(error: &(dyn Error + 'static)) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", chain(cause)),
        None => error.to_string(),
    }
}

fn limits(table: PolicyLimitsTable, most: PolicyLimitsTable) -> Limits {
    let defaults = Limits::of(match table.class.unwrap_or_default() {
        LimitsClass::Standard => Class::Native,
        LimitsClass::Script => Class::Script,
    });
    let mebibytes = |n: u32| usize::try_from(n).unwrap_or(usize::MAX).saturating_mul(1024 * 1024);
    let milliseconds = |ms: u32| std::time::Duration::from_millis(ms.into());
    let (time, memory) = (table.time_ms.map(milliseconds), table.memory_mib.map(mebibytes));
    let (time, memory) = (time.unwrap_or(defaults.time), memory.unwrap_or(defaults.memory));
    Limits {
        time: most.time_ms.map_or(time, |most| time.min(milliseconds(most))),
        memory: most.memory_mib.map_or(memory, |most| memory.min(mebibytes(most))),
        ..defaults
    }
}

/// The configuration's matcher, as the decision asks it.
#[derive(Debug)]
struct Asked(Matcher);

impl Matches for Asked {
    fn matches(&self, kind: Kind, tool: &ToolRef, identity: ServerIdentity) -> bool {
        let kind = match kind {
            Kind::Tool => KindName::Tool,
            Kind::Read => KindName::Read,
            Kind::Prompt => KindName::Prompt,
            Kind::Completion => KindName::Completion,
            Kind::Reply => KindName::Reply,
        };
        self.0.matches(kind, &tool.server, &tool.tool, identity)
    }
}

/// R8: each reason to refuse every call becomes a refusal of its layer.
fn refusals(resolved: &Resolved) -> Vec<Refusal> {
    let refusal = |every: &EveryCall| {
        let reason = Reason { rule: RuleId::parse(every.rule), text: every.text.clone() };
        Refusal {
            source: Source { layer: every.layer.clone(), component: "host".into(), digest: None },
            reason,
            fault: None,
        }
    };
    resolved.refusals.iter().map(refusal).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Places, SessionSources, load};
    use crate::model::layer::LayerKind;

    fn resolved(layers: &[(LayerKind, &str)]) -> Resolved {
        load(&Places::nowhere(), &SessionSources::of_texts(layers, &std::env::temp_dir()))
    }

    #[test]
    fn r8_a_layer_that_cannot_be_read_becomes_a_refusal_of_that_layer() {
        let refusals = refusals(&resolved(&[(LayerKind::Organisation, "nonsense = 1"), (LayerKind::User, "")]));
        let [refusal] = refusals.as_slice() else { panic!("{refusals:?}") };
        assert_eq!(refusal.source.to_string(), "organisation/host");
        assert_eq!(refusal.reason.rule.as_ref().map(RuleId::as_str), Some("layer-unreadable"));
        assert!(refusal.reason.text.contains("`nonsense`"), "{}", refusal.reason.text);
    }

    #[test]
    fn r8_a_managed_layer_that_is_required_and_absent_is_a_refusal_too() {
        let refusals = refusals(&resolved(&[(LayerKind::System, "require_managed = true")]));
        let [refusal] = refusals.as_slice() else { panic!("{refusals:?}") };
        assert_eq!(refusal.reason.rule.as_ref().map(RuleId::as_str), Some("managed-required"));
    }

    #[test]
    fn a_component_that_cannot_be_read_is_in_the_set_as_its_fault() {
        let text = "[[policies]]\nname = \"a\"\ncomponent = \"no-such-component.wasm\"\n\
                    [[policies]]\nname = \"b\"\ncomponent = 7\n";
        let resolved = resolved(&[(LayerKind::User, text)]);
        let engine = Engine::on_demand().unwrap();
        let set = policies(&resolved, rustix::process::getuid().as_raw(), &engine);
        let codes: Vec<_> =
            set.components.iter().map(|c| (&*c.source.component, c.component.as_ref().err().map(|f| f.code))).collect();
        assert_eq!(codes, [("a", Some(FaultCode::Missing)), ("b", Some(FaultCode::Settings))]);
    }
}
