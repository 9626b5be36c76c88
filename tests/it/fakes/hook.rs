//! Hooks that answer by a script.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use portcullis::model::hook::{HookEvent, HookExit, HookFailureMeans, HookFault};
use portcullis::model::layer::LayerKind;
use portcullis::ports::hook::{BoundHook, HookMatches, HookProgram};
use serde_json::Value;

use super::policy::source;

/// A program that ends the same way each time, and keeps what it was told.
pub(crate) struct ScriptedHook {
    ends: Result<HookExit, HookFault>,
    told: Mutex<Vec<Value>>,
}

impl ScriptedHook {
    /// Exit code 0 with this on stdout.
    pub(crate) fn prints(stdout: impl ToString) -> Arc<Self> {
        Self::ends(Ok(HookExit { code: 0, stdout: stdout.to_string(), stderr: String::new() }))
    }

    /// Exit code 2 with this on stderr.
    pub(crate) fn blocks(stderr: &str) -> Arc<Self> {
        Self::ends(Ok(HookExit { code: 2, stdout: String::new(), stderr: stderr.to_owned() }))
    }

    pub(crate) fn ends(ends: Result<HookExit, HookFault>) -> Arc<Self> {
        Arc::new(Self { ends, told: Mutex::default() })
    }

    /// What it was told, each time.
    pub(crate) fn told(&self) -> Vec<Value> {
        self.told.lock().clone()
    }
}

#[async_trait]
impl HookProgram for ScriptedHook {
    async fn run(&self, input: Arc<str>) -> Result<HookExit, HookFault> {
        self.told.lock().push(serde_json::from_str(&input).unwrap());
        self.ends.clone()
    }
}

#[derive(Debug)]
struct Everything;

impl HookMatches for Everything {
    fn matches(&self, _hook_name: &str) -> bool {
        true
    }
}

/// A hook for every tool, named `hook`.
pub(crate) fn hook(layer: LayerKind, event: HookEvent, program: &Arc<ScriptedHook>) -> BoundHook {
    BoundHook {
        source: source(layer, "hook"),
        may_allow: layer.may_allow_by_default(),
        event,
        matches: Arc::new(Everything),
        on_failure: HookFailureMeans::Block,
        program: Ok(Arc::clone(program) as _),
    }
}
