//! What the commands share: the configuration, a host wired from it, a target, and the signals that end a command.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis::adapters::oauth::Logins;
use portcullis::adapters::record::fanout::Fanout;
use portcullis::adapters::telemetry::Telemetry;
use portcullis::adapters::wasm::{Engine, EngineError, Options};
use portcullis::config::{Places, Problem, Resolved, SessionSources, load};
use portcullis::host::asking::Desk;
use portcullis::host::reload::{Loaded, Reloader};
use portcullis::host::user::{local_logins, sandbox};
use portcullis::host::{HostParts, records, telemetry, wire};
use portcullis::model::arguments::MAX_ARGUMENTS;
use portcullis::model::name::{Target, ToolRef};
use portcullis::model::text;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::args::{self, Global};
use super::exit::{Exit, Trouble};
use super::{logs, render};

/// Where layers are looked for.
pub(crate) fn places() -> Result<Places, Trouble> {
    Places::from_environment()
        .map_err(|error| Trouble::caused(Exit::Failed, "cannot tell the working directory", &error))
}

/// Reads the configuration. Never fails for what is in it: that is in the view.
pub(crate) fn resolve(global: &Global, places: &Places) -> Resolved {
    load(places, &session(global))
}

/// What the command line adds to the layers.
pub(crate) fn session(global: &Global) -> SessionSources {
    SessionSources {
        files: global.config.clone(),
        overrides: global.set.clone(),
        managed: global.managed.iter().cloned().collect(),
        embedded: Vec::new(),
    }
}

/// The configuration and the parts of a host.
pub(crate) struct Wired {
    /// The configuration.
    pub resolved: Arc<Resolved>,
    /// The parts.
    pub parts: HostParts,
    /// What read the configuration, for reading it again.
    pub reloader: Reloader,
    /// The user's logins.
    pub logins: Option<Logins>,
    /// The queue of questions.
    pub desk: Desk,
}

/// Reads the configuration, says what is wrong with it, and wires a host.
pub(crate) async fn wire(global: &Global) -> Result<Wired, Trouble> {
    let places = places()?;
    let (sandbox, session) = (options(&places)?, session(global));
    let loading = {
        let places = places.clone();
        tokio::task::spawn_blocking(move || {
            let mut reloader = Reloader::new(places, session, Engine::with_options(sandbox)?);
            let loaded = reloader.load(Instant::now());
            Ok::<_, EngineError>((reloader, loaded))
        })
    };
    let loaded = loading.await.map_err(|error| Trouble::caused(Exit::Failed, "loading was broken off", &error))?;
    let (reloader, Loaded { resolved, policies, calls, .. }) =
        loaded.map_err(|error| Trouble::caused(Exit::Failed, "the policy sandbox cannot start", &error))?;
    let told = |problem: &&Problem| resolved.refusals.iter().any(|refusal| refusal.text.contains(&problem.message));
    for problem in resolved.problems.iter().filter(|problem| !told(problem)).chain(&resolved.warnings) {
        render::talk(&format!("{}: {problem}", render::styled(render::WARN, "warning")));
    }
    for refusal in &resolved.refusals {
        render::talk(&format!("{}: {}", render::styled(render::BAD, "refusal"), text::shown(&refusal.text, 1000)));
    }
    let stored = wire::open_state(&places).map_err(|error| Trouble::from_error(Exit::Usage, &error))?;
    let recorder = records::open(&resolved, &places, global.log.clone(), global.log_arguments);
    let recorder = recorder.map_err(|error| Trouble::from_error(Exit::Usage, &error))?;
    let logins = local_logins(&places);
    let mut parts = wire::host_parts(&resolved, policies, &calls, recorder, logins.as_ref(), stored.state);
    parts.grants = stored.grants;
    let desk = Desk::new(stored.asks, Arc::clone(&parts.clock));
    Ok(Wired { resolved: Arc::new(resolved), parts, reloader, logins, desk })
}

/// How long what is left of telemetry may take to go out at the end.
const LAST_TELEMETRY: Duration = Duration::from_secs(2);

/// Telemetry, if the configuration wants any and it could begin.
pub(crate) struct Sending(Option<Telemetry>);

impl Sending {
    /// Begins to send what calls tell of themselves; why it cannot is a warning.
    pub(crate) fn start(resolved: &Resolved, parts: &mut HostParts) -> Self {
        let variable = |name: &str| std::env::var(name).ok();
        let started = telemetry::start(resolved, &variable).unwrap_or_else(|error| {
            let trouble = Trouble::from_error(Exit::Usage, &error);
            let why = trouble.why.iter().map(|why| format!(": {why}")).collect::<String>();
            render::talk(&format!("{}: {}{why}", render::styled(render::WARN, "warning"), trouble.what));
            None
        });
        if let Some(telemetry) = &started {
            logs::listen(telemetry.layer());
            let both = telemetry.recorder().into_iter().chain([Arc::clone(&parts.recorder)]);
            parts.recorder = Arc::new(Fanout::new(both.collect()));
        }
        Self(started)
    }

    /// Sends what is left, within a bound.
    pub(crate) async fn finish(self) {
        if let Some(telemetry) = self.0 {
            telemetry.shutdown(LAST_TELEMETRY).await;
        }
    }
}

/// How this program gets at compiled code.
pub(crate) fn options(places: &Places) -> Result<Options, Trouble> {
    sandbox(places).map_err(|error| Trouble::caused(Exit::Failed, "cannot tell which program this is", &error))
}

/// Parses SERVER/TOOL.
pub(crate) fn target(text: &str) -> Result<ToolRef, Trouble> {
    ToolRef::parse(text).map_err(|error| {
        Trouble::from_error(Exit::Usage, &error).hint("`portcullis tools` lists servers and tools by their raw names")
    })
}

/// Reads ARGS: the text itself, `-` for stdin, or `@FILE`. At most [`MAX_ARGUMENTS`] bytes and one more, so that what is too
/// long is refused as such.
pub(crate) fn arguments(given: &args::Target) -> Result<String, Trouble> {
    match given.arguments.as_deref() {
        None => Ok(String::new()),
        Some("-") => read(std::io::stdin().lock(), "stdin"),
        Some(other) => match other.strip_prefix('@') {
            Some(path) => {
                let name = format!("`{}`", text::shown(path, 256));
                let file = std::fs::File::open(Path::new(path));
                let unreadable = |error| Trouble::caused(Exit::Usage, format!("cannot read {name}"), &error);
                read(file.map_err(unreadable)?, &name)
            }
            None => Ok(other.to_owned()),
        },
    }
}

fn read(from: impl std::io::Read, name: &str) -> Result<String, Trouble> {
    let mut text = String::new();
    let most = u64::try_from(MAX_ARGUMENTS).unwrap_or(u64::MAX).saturating_add(1);
    from.take(most)
        .read_to_string(&mut text)
        .map_err(|error| Trouble::caused(Exit::Usage, format!("cannot read the arguments from {name}"), &error))?;
    Ok(text)
}

/// A call needs one server: the others stay away.
pub(crate) fn only(parts: &mut HostParts, target: &ToolRef) {
    parts.servers.retain(|name, _| *name == target.server);
}

/// Says what is known about a target that is not available.
pub(crate) fn not_available(host: &portcullis::host::Host, target: &Target) -> String {
    use portcullis::host::fleet::ServerState;

    let server = target.server.as_ref();
    let status = host.status().into_iter().find(|status| Some(&status.server) == server);
    match status.map(|status| status.state) {
        None => "no such server is configured".to_owned(),
        Some(ServerState::Disabled { text }) => format!("the server is disabled: {text}"),
        Some(ServerState::Failed { why, .. }) => format!("the server failed: {why}"),
        Some(ServerState::Starting | ServerState::Ready | ServerState::Stopped) => {
            "the server lists no such tool, or it is filtered".to_owned()
        }
    }
}

/// Returns a token that the first SIGINT, SIGTERM or SIGHUP cancels. A second one ends the process at once.
pub(crate) fn stop_on_signals() -> Result<CancellationToken, Trouble> {
    let listen = |kind| signal(kind).map_err(|error| Trouble::caused(Exit::Failed, "cannot listen to signals", &error));
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hang_up = listen(SignalKind::hangup())?;
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    tokio::spawn(async move {
        loop {
            let name = tokio::select! {
                _ = interrupt.recv() => "SIGINT",
                _ = terminate.recv() => "SIGTERM",
                _ = hang_up.recv() => "SIGHUP",
            };
            if stopping.is_cancelled() {
                // The children die with us, or with their input.
                std::process::exit(Exit::Failed as i32);
            }
            tracing::info!(signal = name, "ending");
            stopping.cancel();
        }
    });
    Ok(stop)
}

/// A path for people.
pub(crate) fn shown(path: &Path) -> String {
    text::shown(&path.display().to_string(), 300)
}

/// A path that is absolute, if the working directory is known.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
