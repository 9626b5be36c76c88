//! What tests share: a scripted MCP server behind us, and a memory for what it tells.

pub(crate) mod auth_server;
pub(crate) mod collector;
pub(crate) mod far_end;
pub(crate) mod faulty;
pub(crate) mod gate;
pub(crate) mod http_server;
pub(crate) mod installed;
pub(crate) mod policy;
pub(crate) mod raw_client;
pub(crate) mod served;
pub(crate) mod upload_server;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use portcullis::adapters::mcp::child::Launch;
use portcullis::model::revision::ConnectionId;
use portcullis::ports::upstream::{Progress, ProgressSink, UpstreamEvents, UpstreamLog};

/// The longest that a test waits for anything. Far longer than needed, so that a loaded machine is no failure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the path of the scripted server.
pub(crate) fn scripted_server() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| example("scripted-server", "tests/it/support/scripted_server.rs")).clone()
}

/// Returns the path of an example, building it if a filtered test run has not or it is older than its source.
pub(crate) fn example(name: &str, source: &str) -> PathBuf {
    // target/PROFILE/deps/it-HASH -> target/PROFILE
    let profile = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_path_buf();
    let path = profile.join("examples").join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let changed = |path: &Path| path.metadata().and_then(|data| data.modified()).ok();
    if changed(&path) < changed(&source) {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let mut build = Command::new(cargo);
        build.args(["build", "--example", name]).current_dir(env!("CARGO_MANIFEST_DIR"));
        if profile.file_name().is_some_and(|name| name == "release") {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success(), "the example `{name}` could not be built");
    }
    assert!(path.exists(), "there is no example at {}", path.display());
    path
}

/// Returns how the scripted server is started with these flags.
pub(crate) fn scripted(flags: &[&str]) -> Launch {
    Launch {
        program: scripted_server().display().to_string(),
        args: flags.iter().map(|flag| (*flag).to_owned()).collect(),
        cwd: None,
        env: vec![("PATH".to_owned(), std::env::var("PATH").unwrap_or_default())],
    }
}

/// Writes a file that is its owner's to change, as layers must be (R6), and makes the folders on the way.
pub(crate) fn write_owned(path: &Path, text: impl AsRef<[u8]>) {
    let folder = path.parent().unwrap();
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o644)).unwrap();
    std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755)).unwrap();
}

/// Waits until `probe` returns something, and panics with `what` if it never does.
pub(crate) async fn eventually<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let give_up = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(tokio::time::Instant::now() < give_up, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Whether a process runs. A zombie, which only its new parent can reap, does not.
pub(crate) fn runs(pid: u32) -> bool {
    let output = Command::new("ps").args(["-o", "stat=", "-p", &pid.to_string()]).output().unwrap();
    let state = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    !state.is_empty() && !state.starts_with(['Z', 'X'])
}

/// Waits until none of these processes runs.
pub(crate) async fn gone(pids: &[u32]) {
    for pid in pids {
        eventually("the process is gone", || (!runs(*pid)).then_some(())).await;
    }
}

/// Waits until a file has a whole line, and returns it.
pub(crate) async fn written(file: &Path) -> String {
    let line = || std::fs::read_to_string(file).ok().filter(|text| text.ends_with('\n'));
    eventually("the file is written", line).await
}

/// A process and everything that it started and that still runs.
pub(crate) fn family(pid: u32) -> Vec<u32> {
    let output = Command::new("ps").args(["-A", "-o", "pid=,ppid="]).output().unwrap();
    let listing = String::from_utf8(output.stdout).unwrap();
    let pair = |line: &str| {
        let mut words = line.split_whitespace().map(|word| word.parse::<u32>().unwrap());
        (words.next().unwrap(), words.next().unwrap())
    };
    let all: Vec<(u32, u32)> = listing.lines().map(pair).collect();
    let mut family = vec![pid];
    let mut next = 0;
    while let Some(parent) = family.get(next).copied() {
        family.extend(all.iter().filter(|(_, of)| *of == parent).map(|(child, _)| child));
        next += 1;
    }
    family
}

/// Keeps what a connection tells.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    changes: Mutex<usize>,
    logs: Mutex<Vec<UpstreamLog>>,
    closed: Mutex<Vec<(ConnectionId, String)>>,
}

impl Heard {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn changes(&self) -> usize {
        *self.changes.lock()
    }

    pub(crate) fn logs(&self) -> Vec<UpstreamLog> {
        self.logs.lock().clone()
    }

    pub(crate) fn closed(&self) -> Vec<(ConnectionId, String)> {
        self.closed.lock().clone()
    }
}

impl UpstreamEvents for Heard {
    fn tools_changed(&self, _connection: ConnectionId) {
        *self.changes.lock() += 1;
    }

    fn log(&self, message: UpstreamLog) {
        self.logs.lock().push(message);
    }

    fn closed(&self, connection: ConnectionId, why: &str) {
        self.closed.lock().push((connection, why.to_owned()));
    }
}

/// Keeps progress.
#[derive(Debug, Default)]
pub(crate) struct Seen(Mutex<Vec<Progress>>);

impl Seen {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn all(&self) -> Vec<Progress> {
        self.0.lock().clone()
    }
}

impl ProgressSink for Seen {
    fn progress(&self, progress: Progress) {
        self.0.lock().push(progress);
    }
}
