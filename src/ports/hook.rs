//! Hooks as the pipeline knows them: a program that is given a JSON object and says something.

use std::sync::Arc;

use async_trait::async_trait;

use crate::model::hook::{HookEvent, HookExit, HookFailureMeans, HookFault};
use crate::model::verdict::Source;

/// The longest text of either output of a hook, in bytes.
pub const MAX_HOOK_OUTPUT: usize = 1024 * 1024;

/// A command that can be run.
///
/// Contract: ends within its timeout, with everything that it started; gives at most [`MAX_HOOK_OUTPUT`] of each output, and
/// fails if there is more; dropping the future ends the command. Never panics.
#[async_trait]
pub trait HookProgram: Send + Sync {
    /// Runs it once, with `input` on its stdin.
    ///
    /// # Errors
    /// [`HookFault`]: it could not be started, was stopped, or printed too much.
    async fn run(&self, input: Arc<str>) -> Result<HookExit, HookFault>;
}

/// Which tools a hook is run for, by hook name.
pub trait HookMatches: Send + Sync + std::fmt::Debug {
    /// Whether the hook is for the tool of this hook name, such as `mcp__files__write`.
    fn matches(&self, hook_name: &str) -> bool;
}

/// A hook as one layer configured it.
#[derive(Clone)]
pub struct BoundHook {
    /// Layer and name; the digest is that of its program, where it has one.
    pub source: Source,
    /// Whether an allow of it counts (R3, R18).
    pub may_allow: bool,
    /// When it is run.
    pub event: HookEvent,
    /// For which tools. A matcher that cannot be read matches everything, and the program is a fault.
    pub matches: Arc<dyn HookMatches>,
    /// What a failure of it means at `PreToolUse`.
    pub on_failure: HookFailureMeans,
    /// The program, or why there is none: an error, never an absence.
    pub program: Result<Arc<dyn HookProgram>, HookFault>,
}

impl std::fmt::Debug for BoundHook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BoundHook")
            .field("source", &self.source)
            .field("event", &self.event)
            .field("usable", &self.program.is_ok())
            .finish_non_exhaustive()
    }
}
