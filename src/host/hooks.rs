//! What the layers' hooks say -> the hooks of the set that decides.
//!
//! Promises: every hook of every layer in force is in the set, most trusted layer first, in its file's order (R1); one that
//! has no program stays as its fault (R8), which is among the configuration's problems. The set's digest covers what each hook is and the digest of what it runs.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use crate::adapters::hooks::{HookCommand, HookLaunch};
use crate::config::Resolved;
use crate::config::hook_keys::HookMatcher;
use crate::config::hooks::{HookEntry, HookFile};
use crate::model::digest::Digest;
use crate::model::hook::{HookFault, HookFaultCode};
use crate::model::revision::PolicySetDigest;
use crate::model::verdict::Source;
use crate::ports::approval::PolicySet;
use crate::ports::hook::{BoundHook, HookMatches, HookProgram};

/// The configuration's matcher, as the pipeline asks it.
#[derive(Debug)]
struct Asked(HookMatcher);

impl HookMatches for Asked {
    fn matches(&self, hook_name: &str) -> bool {
        self.0.matches(hook_name)
    }
}

/// Adds the hooks of the configuration to a set.
pub(super) fn add(set: &mut PolicySet, resolved: &Resolved) {
    if resolved.hooks.is_empty() {
        return;
    }
    let mut about = format!("{}\n", set.digest.0);
    for entry in &resolved.hooks {
        // Debug text of our own types, each on a line: no two different sets read alike.
        let _ = writeln!(about, "{entry:?}");
        set.hooks.push(bound(entry));
    }
    set.digest = PolicySetDigest(Digest::of(about.as_bytes()));
}

fn bound(entry: &HookEntry) -> BoundHook {
    let digest = entry.program.as_ref().ok().and_then(|program| program.digest);
    let source = Source { layer: entry.layer.clone(), component: entry.name.as_str().into(), digest };
    let program = match &entry.program {
        Ok(file) => here(entry).map(|cwd| command(entry, file, cwd)),
        Err(why) => Err(HookFault::new(HookFaultCode::Missing, why)),
    };
    BoundHook {
        source,
        may_allow: entry.may_allow,
        event: entry.event,
        matches: Arc::new(Asked(entry.matches.clone())),
        on_failure: entry.on_failure,
        program,
    }
}

fn command(entry: &HookEntry, file: &HookFile, cwd: PathBuf) -> Arc<dyn HookProgram> {
    Arc::new(HookCommand::new(HookLaunch {
        program: file.path.clone(),
        args: entry.command.iter().skip(1).cloned().collect(),
        cwd,
        timeout: entry.timeout,
        bound: file.bound.clone(),
    }))
}

/// Where a hook runs: where its entry says, else where this process does.
fn here(entry: &HookEntry) -> Result<PathBuf, HookFault> {
    if !entry.cwd.as_os_str().is_empty() {
        return Ok(entry.cwd.clone());
    }
    let why = |error| HookFault::new(HookFaultCode::Missing, format!("the working directory cannot be read: {error}"));
    std::env::current_dir().map_err(why)
}
