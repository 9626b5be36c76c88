//! From bytes to a component that can be asked.
//!
//! Order: limits, size, digest, pin, what the bytes are, compile, link, dry run. Blocking: compiling takes up to seconds, so
//! callers load on a thread of their own, never for a call that waits.

use std::sync::Arc;

use serde_json::Value;
use wasmtime::component::Component;

use super::bindings::v0_1::ApprovalPolicyPre;
use super::decide::{self, WasmApproval};
use super::engine::Engine;
use super::limits::Limits;
use super::linker::State;
use super::settings::Settings;
use super::{fault, inspect};
use crate::model::digest::Digest;
use crate::model::verdict::{Fault, FaultCode, Source};

/// Compiled and linked code. Immutable, shared by all who load the same bytes.
pub(super) struct Compiled {
    pub(super) policy: ApprovalPolicyPre<State>,
}

impl Engine {
    /// Admits `bytes` as an approval component. Blocks while it compiles.
    ///
    /// `pin` is the digest that the layer wrote down, if it did. `source` says who the component is in labels and records;
    /// its digest is set here. The code of equal bytes is compiled once for all.
    ///
    /// # Errors
    /// A [`Fault`]: `settings` (limits or settings), `missing` (too large, or no component of ours), `digest`,
    /// `missing-import`, `wrong-version`, `memory`, or what the dry run ended with.
    pub fn load(
        &self,
        bytes: &[u8],
        pin: Option<Digest>,
        settings: Value,
        limits: Limits,
        source: Source,
    ) -> Result<Arc<WasmApproval>, Fault> {
        limits.check()?;
        let settings = Arc::new(Settings::new(settings)?);
        let cap = limits.class.max_component();
        if bytes.len() > cap {
            let size = bytes.len();
            return Err(Fault::new(FaultCode::Missing, format!("it has {size} bytes, more than the cap of {cap}")));
        }
        let digest = Digest::of(bytes);
        if let Some(pin) = pin.filter(|pin| *pin != digest) {
            return Err(Fault::new(FaultCode::Digest, format!("its digest is {digest}, the pinned one is {pin}")));
        }
        let compiled = self.compiled(bytes, digest)?;
        decide::dry_run(&self.0, &compiled, &settings, &limits)?;
        let source = Source { digest: Some(digest), ..source };
        Ok(Arc::new(WasmApproval::new(Arc::clone(&self.0), compiled, digest, settings, limits, source)))
    }

    fn compiled(&self, bytes: &[u8], digest: Digest) -> Result<Arc<Compiled>, Fault> {
        let mut known = self.0.compiled.lock();
        if let Some(compiled) = known.get(&digest).and_then(std::sync::Weak::upgrade) {
            return Ok(compiled);
        }
        let compiled = Arc::new(self.compile(bytes)?);
        known.retain(|_, entry| entry.strong_count() > 0);
        known.insert(digest, Arc::downgrade(&compiled));
        Ok(compiled)
    }

    fn compile(&self, bytes: &[u8]) -> Result<Compiled, Fault> {
        inspect::check(bytes)?;
        let failed = |code, what: &str, error: &wasmtime::Error| {
            tracing::debug!(error = ?error, "a component was not admitted");
            Fault::new(code, format!("{what}: {}", fault::chain(error)))
        };
        let component = Component::new(&self.0.engine, bytes)
            .map_err(|e| failed(FaultCode::Missing, "it cannot be compiled", &e))?;
        let linked = self.0.linker.instantiate_pre(&component);
        let linked = linked.map_err(|e| failed(FaultCode::MissingImport, "it cannot be linked", &e))?;
        let policy = ApprovalPolicyPre::new(linked);
        let policy =
            policy.map_err(|e| failed(FaultCode::WrongVersion, "its `approval` differs from version 0.1", &e))?;
        Ok(Compiled { policy })
    }
}

#[cfg(test)]
mod tests {
    use super::super::builtin;
    use super::*;

    #[test]
    fn equal_bytes_are_compiled_once() {
        let engine = Engine::new().unwrap();
        let compiled = || engine.compiled(builtin::DEMO_MANAGED, Digest::of(builtin::DEMO_MANAGED)).unwrap();
        let (first, second) = (compiled(), compiled());
        assert!(Arc::ptr_eq(&first, &second));
        drop((first, second));
        let dead = engine.0.compiled.lock().values().filter(|entry| entry.strong_count() == 0).count();
        assert_eq!(dead, 1, "code that nobody uses is kept alive");
    }
}
