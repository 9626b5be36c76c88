//! From bytes to a component that can be asked.
//!
//! Order: limits, size, digest, pin, what the bytes are, compile, link, dry run, settings. Blocking: compiling takes up to
//! seconds, so callers load on a thread of their own, never for a call that waits.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use serde_json::Value;

use super::decide::{WasmApproval, WasmConnector, WasmSanitiser};
use super::engine::Engine;
use super::hooks::Hooks;
use super::limits::{Budget, Class, Limits};
use super::run::Component;
use super::settings::Settings;
use super::state::Subject;
use super::{described, fault, inspect};
use crate::config::data::DataFiles;
use crate::model::digest::Digest;
use crate::model::verdict::{Fault, FaultCode, Source};

/// Compiled and linked code. Immutable, shared by all who load the same bytes.
pub(super) struct Compiled {
    pub(super) hooks: Box<dyn Hooks>,
}

/// A component as a layer wants it.
#[derive(Debug, Clone)]
pub struct Admission {
    /// The digest that the layer wrote down, if it did.
    pub pin: Option<Digest>,
    /// Its settings: an object, or null for none.
    pub settings: Value,
    /// Its limits.
    pub limits: Limits,
    /// The files that it may read; none: it has no folder, and asking for a file is a fault.
    pub data: Option<Arc<DataFiles>>,
    /// Who it is in labels and records; the digest is set when it is admitted.
    pub source: Source,
    /// Whether it is only observed: then it runs when nothing else waits (R16).
    pub observed: bool,
}

impl Admission {
    /// A component without pin, settings and data, under the default limits.
    #[must_use]
    pub fn plain(source: Source) -> Self {
        Self { pin: None, settings: Value::Null, limits: Limits::default(), data: None, source, observed: false }
    }
}

/// An admitted component: what it can be asked at each decision point that it exports, at least one.
#[derive(Debug, Clone)]
pub struct Admitted {
    /// Who it is, its digest included.
    pub source: Source,
    /// The digest of its bytes.
    pub digest: Digest,
    /// May a call run?
    pub approval: Option<Arc<WasmApproval>>,
    /// May an App tool be seen and called?
    pub connector: Option<Arc<WasmConnector>>,
    /// What of an answer may pass?
    pub sanitiser: Option<Arc<WasmSanitiser>>,
}

impl Engine {
    /// Admits `bytes` as a component. Blocks while it compiles. The code of equal bytes is compiled once for all.
    ///
    /// # Errors
    /// A [`Fault`]: `settings` (limits, settings, or what the component itself says of them), `missing` (too large, or no
    /// component of ours), `digest`, `missing-import`, `wrong-version`, `memory`, or what the dry run ended with.
    pub fn admit(&self, bytes: &[u8], mut wanted: Admission) -> Result<Admitted, Fault> {
        wanted.limits.check()?;
        let settings = Arc::new(Settings::new(std::mem::take(&mut wanted.settings))?);
        let cap = wanted.limits.class.max_component();
        if bytes.len() > cap {
            let size = bytes.len();
            return Err(Fault::new(FaultCode::Missing, format!("it has {size} bytes, more than the cap of {cap}")));
        }
        let digest = Digest::of(bytes);
        if let Some(pin) = wanted.pin.filter(|pin| *pin != digest) {
            return Err(Fault::new(FaultCode::Digest, format!("its digest is {digest}, the pinned one is {pin}")));
        }
        let compiled = self.compiled(bytes, digest, wanted.limits.class)?;
        let exports = compiled.hooks.exports();
        let source = Source { digest: Some(digest), ..wanted.source.clone() };
        let key = same(digest, &settings, wanted.data.as_deref(), &source, wanted.limits, wanted.observed);
        let known = self.0.components.lock().get(&key).and_then(Weak::upgrade);
        let component = match known {
            // Another reading of the same configuration; its circuits go on (R14).
            Some(component) => component,
            None => self.component(wanted, compiled, settings, source.clone(), key)?,
        };
        let parts = || (Arc::clone(&self.0), Arc::clone(&component), digest);
        Ok(Admitted {
            source,
            digest,
            approval: exports.approval.then(parts).map(|(s, c, d)| Arc::new(WasmApproval::new(s, c, d))),
            connector: exports.connector.then(parts).map(|(s, c, d)| Arc::new(WasmConnector::new(s, c, d))),
            sanitiser: exports.sanitiser.then(parts).map(|(s, c, d)| Arc::new(WasmSanitiser::new(s, c, d))),
        })
    }

    fn component(
        &self,
        wanted: Admission,
        compiled: Arc<Compiled>,
        settings: Arc<Settings>,
        source: Source,
        key: Digest,
    ) -> Result<Arc<Component>, Fault> {
        let Admission { data, limits, observed, .. } = wanted;
        let (number, circuits) = (self.0.numbers.fetch_add(1, Ordering::Relaxed), Arc::default());
        let component = Arc::new(Component { compiled, settings, data, limits, source, number, observed, circuits });
        // A component that cannot even start is found when it is loaded.
        let budget = Budget::deciding(&limits);
        component.run(&self.0, &budget, || Subject::Nothing, |hooks, store| hooks.start(store)).result?;
        if component.compiled.hooks.exports().settings {
            described::check(&self.0, &component)?;
        }
        let mut known = self.0.components.lock();
        known.retain(|_, entry| entry.strong_count() > 0);
        known.insert(key, Arc::downgrade(&component));
        Ok(component)
    }

    fn compiled(&self, bytes: &[u8], digest: Digest, class: Class) -> Result<Arc<Compiled>, Fault> {
        let mut known = self.0.compiled.lock();
        if let Some(compiled) = known.get(&digest).and_then(Weak::upgrade) {
            return Ok(compiled);
        }
        let compiled = Arc::new(self.compile(bytes, digest, class)?);
        known.retain(|_, entry| entry.strong_count() > 0);
        known.insert(digest, Arc::downgrade(&compiled));
        Ok(compiled)
    }

    fn compile(&self, bytes: &[u8], digest: Digest, class: Class) -> Result<Compiled, Fault> {
        let (track, exports) = inspect::check(bytes)?;
        let failed = |code, what: &str, error: &wasmtime::Error| {
            tracing::debug!(error = ?error, "a component was not admitted");
            Fault::new(code, format!("{what}: {}", fault::chain(error)))
        };
        let code = self.0.compiler.component(&self.0.engine, bytes, digest, class)?;
        let linked = self.0.linker.instantiate_pre(&code);
        let linked = linked.map_err(|e| failed(FaultCode::MissingImport, "it cannot be linked", &e))?;
        let differs = format!("its exports differ from version {}", track.name);
        let hooks = (track.hooks)(&linked, exports).map_err(|e| failed(FaultCode::WrongVersion, &differs, &e))?;
        Ok(Compiled { hooks })
    }
}

/// What makes two components one: equal code, asked about equal things in the same place.
fn same(
    digest: Digest,
    settings: &Settings,
    data: Option<&DataFiles>,
    source: &Source,
    limits: Limits,
    observed: bool,
) -> Digest {
    let rest = format!("{digest} {:?} {source:?} {limits:?} {observed}", data.map(DataFiles::digest));
    Digest::of_parts([rest.as_bytes(), settings.text().as_bytes()])
}

#[cfg(test)]
mod tests {
    use super::super::builtin;
    use super::*;

    #[test]
    fn equal_bytes_are_compiled_once() {
        let engine = Engine::new().unwrap();
        let compiled =
            || engine.compiled(builtin::DEMO_MANAGED, Digest::of(builtin::DEMO_MANAGED), Class::Native).unwrap();
        let (first, second) = (compiled(), compiled());
        assert!(Arc::ptr_eq(&first, &second));
        drop((first, second));
        let dead = engine.0.compiled.lock().values().filter(|entry| entry.strong_count() == 0).count();
        assert_eq!(dead, 1, "code that nobody uses is kept alive");
    }
}
