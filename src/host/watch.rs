//! Watches what the configuration was read from, and puts what changed in force (R8, R19).
//!
//! Changes are gathered for a moment, so that a file that is being written is read when it is whole. What no watch can tell (a
//! folder that did not exist, a file system without notifications) is found by looking again now and then, as is a layer that
//! was kept for too long.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Host;
use super::reload::{Loaded, Reloader};
use super::wire;
use crate::adapters::oauth::Logins;
use crate::config::Resolved;

/// How long nothing may change before the configuration is read.
const QUIET: Duration = Duration::from_millis(200);
/// The longest that changes are gathered.
const GATHER: Duration = Duration::from_secs(2);
/// How often it is looked again without any notification.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// A host's configuration under watch.
pub struct Watch {
    host: Weak<Host>,
    reloader: Reloader,
    logins: Option<Logins>,
    /// What was wrong at the last reading: said once.
    said: BTreeSet<(Level, String)>,
}

impl Watch {
    /// Takes over the reloader that `host` was made with. What is wrong with `first`, the configuration that it read then, whoever
    /// made the host has said already.
    #[must_use]
    pub fn new(host: &Arc<Host>, reloader: Reloader, first: &Resolved, logins: Option<Logins>) -> Self {
        Self { host: Arc::downgrade(host), reloader, logins, said: said_of(first) }
    }

    /// Watches until the host is gone or `stop` is cancelled.
    pub async fn run(mut self, stop: CancellationToken) {
        let changed = Arc::new(Notify::new());
        let mut eyes = Eyes::new(Arc::clone(&changed));
        loop {
            eyes.look_at(self.reloader.read_from());
            tokio::select! {
                () = stop.cancelled() => return,
                () = gathered(&changed) => {}
                () = tokio::time::sleep(LOOK_AGAIN) => {}
            }
            match self.reload().await {
                Some(watch) => self = watch,
                None => return,
            }
        }
    }

    /// Reads the configuration again and puts it in force. None: the host is gone.
    async fn reload(mut self) -> Option<Self> {
        let reading = tokio::task::spawn_blocking(move || {
            let read = AssertUnwindSafe(|| self.reloader.load(std::time::Instant::now()));
            let loaded = catch_unwind(read).ok();
            (self, loaded)
        });
        // Broken off only with the runtime itself.
        let (mut watch, loaded) = reading.await.ok()?;
        let Some(loaded) = loaded else {
            // A defect of ours. Watching goes on: the next change may be read well, and must not be missed.
            tracing::error!("reading the changed configuration ended by a defect; what was in force stays in force");
            return Some(watch);
        };
        let host = watch.host.upgrade()?;
        let Loaded { resolved, policies, kept, needs_restart, calls } = loaded;
        if needs_restart {
            tracing::warn!(
                "`[gateway]`, `[limits]`, `[records]`, `[telemetry]` or `input_modalities` changed; that counts from the next start"
            );
        }
        let (servers, disabled) = wire::servers(&resolved, watch.logins.as_ref(), &calls);
        let before = host.catalog().current().policies().digest;
        let after = policies.digest;
        host.reconfigure(policies, servers, disabled, kept).await;
        if before != after {
            tracing::info!(policy_set = %after.0, "the configuration changed");
        }
        let said = said_of(&resolved);
        for (level, text) in said.difference(&watch.said) {
            match level {
                Level::Refusal => tracing::error!(text, "in the configuration: every call is refused"),
                Level::Problem => tracing::warn!(text, "in the configuration"),
            }
        }
        watch.said = said;
        Some(watch)
    }
}

/// How bad something is that the configuration says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Problem,
    Refusal,
}

fn said_of(resolved: &Resolved) -> BTreeSet<(Level, String)> {
    let problems =
        resolved.problems.iter().chain(&resolved.warnings).map(|problem| (Level::Problem, problem.to_string()));
    problems.chain(resolved.refusals.iter().map(|refusal| (Level::Refusal, refusal.text.clone()))).collect()
}

/// Waits for a change and then until nothing changes any more, at most [`GATHER`].
async fn gathered(changed: &Notify) {
    changed.notified().await;
    let latest = Instant::now() + GATHER;
    loop {
        let quiet = (Instant::now() + QUIET).min(latest);
        if tokio::time::timeout_at(quiet, changed.notified()).await.is_err() || Instant::now() >= latest {
            return;
        }
    }
}

/// The operating system's notifications, for folders: a file that is replaced is another file.
struct Eyes {
    watcher: Option<RecommendedWatcher>,
    folders: BTreeMap<PathBuf, Depth>,
}

/// How much of a folder is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Depth {
    Itself,
    AllBelow,
}

impl Eyes {
    fn new(changed: Arc<Notify>) -> Self {
        let told = move |event: notify::Result<notify::Event>| {
            // Reading is no change; it would be our own.
            if event.as_ref().map_or(true, |event| !event.kind.is_access()) {
                changed.notify_one();
            }
        };
        let watcher = notify::recommended_watcher(told).inspect_err(|error| {
            let seconds = LOOK_AGAIN.as_secs();
            tracing::warn!(%error, "no notifications of changed files; they are looked at every {seconds} s");
        });
        Self { watcher: watcher.ok(), folders: BTreeMap::new() }
    }

    /// Watches the folders that these are in, and those among them that are folders with all below.
    fn look_at(&mut self, read_from: &BTreeSet<PathBuf>) {
        let Some(watcher) = &mut self.watcher else { return };
        let mut folders = BTreeMap::new();
        for (folder, depth) in read_from.iter().flat_map(|path| watched(path)) {
            let known = folders.entry(folder).or_insert(depth);
            *known = depth.max(*known);
        }
        for gone in self.folders.iter().filter(|(folder, depth)| folders.get(*folder) != Some(depth)) {
            // That it is gone may be why it is not wanted any more.
            let _gone_already = watcher.unwatch(gone.0);
        }
        let before = std::mem::take(&mut self.folders);
        for (folder, depth) in folders {
            let mode = match depth {
                Depth::Itself => RecursiveMode::NonRecursive,
                Depth::AllBelow => RecursiveMode::Recursive,
            };
            match if before.get(&folder) == Some(&depth) { Ok(()) } else { watcher.watch(&folder, mode) } {
                Ok(()) => _ = self.folders.insert(folder, depth),
                Err(error) => tracing::debug!(folder = %folder.display(), %error, "a folder is not watched"),
            }
        }
    }
}

/// The folder that something is in, or the nearest above that exists; and a folder itself.
fn watched(path: &Path) -> impl Iterator<Item = (PathBuf, Depth)> {
    let above =
        path.ancestors().skip(1).find(|folder| folder.is_dir()).map(|folder| (folder.to_owned(), Depth::Itself));
    above.into_iter().chain(path.is_dir().then(|| (path.to_owned(), Depth::AllBelow)))
}
