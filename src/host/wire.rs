//! Configuration -> what a host is made of.
//!
//! Promises: every server and every policy of the configuration is there, whatever is wrong with it: a server that cannot
//! run says why, a policy that cannot be loaded refuses what it matches, a layer that cannot be read refuses every call
//! (R8). A trusted project's files are compared with what was trusted each time its server is started (R7). The environment is read when a server starts, never before and never printed (R4). Compiling
//! blocks: call it off the reactor.
//!
//! Does not watch the configuration: that is [`super::reload`]; does not start anything: that is
//! [`Host::start`](super::Host::start).

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::time::Instant;

use super::HostParts;
use super::approver::variable;
use super::fleet::{BackOff, ServerSpec};
use super::http_server::{ConfiguredHttp, Login};
use crate::adapters::clock::SystemClock;
use crate::adapters::files::{HttpUploads, Roots};
use crate::adapters::mcp::child::Launch;
use crate::adapters::mcp::client::{Settings, StdioUpstream};
use crate::adapters::mcp::http::upstream::HttpSettings;
use crate::adapters::mcp::lanes::Lanes;
use crate::adapters::mcp::transport;
use crate::adapters::oauth::Logins;
use crate::adapters::store::memory::MemoryGrants;
use crate::adapters::store::sqlite::{self, OpenStateError, Opened, SqliteGrants};
use crate::config::file::Names as NameStyle;
use crate::config::files::Files;
use crate::config::server::{ResolvedServer, StdioLaunch, Transport};
use crate::config::server_keys::RestartWhen;
use crate::config::template::MissingVariable;
use crate::config::trust::first_changed;
use crate::config::{Places, Resolved};
use crate::model::digest::Digest;
use crate::model::here::is_loopback;
use crate::model::name::{RawToolName, ServerName, ToolRef};
use crate::model::sandbox::LOCAL;
use crate::model::tool::Plugin;
use crate::pipeline::admit::catalog::{Names, ServerView};
use crate::pipeline::admit::naming::{FlatStyle, NameLimit, NamingOptions};
use crate::pipeline::admit::slots::Slots;
use crate::pipeline::emit::views::model::ModelViewOptions;
use crate::ports::approval::PolicySet;
use crate::ports::asks::Asks;
use crate::ports::files::FileAccess;
use crate::ports::recorder::Recorder;
use crate::ports::state::PolicyState;
use crate::ports::upstream::{Connection, StartFailure, Upstream, UpstreamEvents};

/// Why there is no state, and so no host.
#[derive(Debug, thiserror::Error)]
pub enum NoState {
    /// The environment names no place for it.
    #[error("there is no place to keep labels, history and counters; set XDG_STATE_HOME or HOME to an absolute path")]
    NoPlace,
    /// It cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenStateError),
}

/// Opens the user's state file. Blocks while it is checked.
///
/// # Errors
/// [`NoState`], which says what to do: without it counters and labels would start anew with every process.
pub fn open_state(places: &Places) -> Result<Stored, NoState> {
    let folder = places.state.as_ref().ok_or(NoState::NoPlace)?;
    let Opened { state, grants, asks } = sqlite::open(folder, places.user)?;
    Ok(Stored { state: Arc::new(state), grants: Arc::new(grants), asks: Arc::new(asks) })
}

/// What is kept between calls.
#[derive(Clone)]
pub struct Stored {
    /// Labels, history, counters and pins.
    pub state: Arc<dyn PolicyState>,
    /// Agreements.
    pub grants: Arc<SqliteGrants>,
    /// Open questions.
    pub asks: Arc<dyn Asks>,
}

/// Describes a host: its servers, and what decides about their calls. `calls` are the places of all calls together; `logins` gives tokens to HTTP servers; `state` keeps what
/// components know of earlier calls. What is wrong with single entries is in the parts.
#[must_use]
pub fn host_parts(
    resolved: &Resolved,
    policies: PolicySet,
    calls: &Slots,
    recorder: Arc<dyn Recorder>,
    logins: Option<&Logins>,
    state: Arc<dyn PolicyState>,
) -> HostParts {
    let (servers, disabled) = servers(resolved, logins, calls);
    HostParts {
        policies,
        names: names(resolved),
        servers,
        disabled,
        recorder,
        grants: Arc::new(MemoryGrants::default()),
        state,
        clock: Arc::new(SystemClock),
        ask_deadline: Some(resolved.limits.ask_timeout.value),
    }
}

/// The places of all calls together; one lot for a host's whole life.
#[must_use]
pub fn places_of_calls(resolved: &Resolved) -> Slots {
    Slots::new(usize::try_from(resolved.limits.concurrent_calls.value).unwrap_or(usize::MAX))
}

/// How a tool's answer is shown to a model: `model` is what that takes by itself, and the least limit that the configuration
/// sets for the tool, its server or all tools replaces its limit, in the model's own unit (approval-results 8.2). The answer
/// is cut once, to the result.
#[must_use]
pub fn model_view(resolved: &Resolved, tool: &ToolRef, model: ModelViewOptions) -> ModelViewOptions {
    let server = resolved.servers.get(&tool.server);
    let of_tool = server.and_then(|server| server.output_token_limits.get(&tool.tool).copied());
    let of_server = server.and_then(|server| server.output_token_limit);
    let set = [of_tool, of_server, resolved.output.tool_output_token_limit.value];
    let Some(limit) = set.into_iter().flatten().min() else { return model };
    let truncation = model.truncation.of_tokens(usize::try_from(limit).unwrap_or(usize::MAX));
    ModelViewOptions { truncation, ..model }
}

fn names(resolved: &Resolved) -> Names {
    let limit = NameLimit::new(resolved.gateway.name_limit.value.into()).unwrap_or(NameLimit::GATEWAY);
    let flat = match resolved.gateway.names.value {
        NameStyle::Namespaced => FlatStyle::Namespaced,
        NameStyle::Bare => FlatStyle::Bare,
    };
    Names { model: NamingOptions::default(), flat, flat_limit: limit }
}

/// The servers to run, and why the others are not.
pub(super) fn servers(
    resolved: &Resolved,
    logins: Option<&Logins>,
    all: &Slots,
) -> (BTreeMap<ServerName, ServerSpec>, BTreeMap<ServerName, String>) {
    let (mut run, mut disabled) = (BTreeMap::new(), BTreeMap::new());
    let files = resolved.files.as_ref().map(file_access);
    let spec = |server| spec(server, all, logins, files.as_ref());
    for (name, server) in &resolved.servers {
        match &server.enabled {
            Ok(()) => _ = run.insert(name.clone(), spec(server)),
            // What the host must not start without counts as failed, unless somebody switched it off on purpose.
            Err(why) if server.required && !server.is_switched_off() => {
                let upstream = Arc::new(Unsupported(why.clone()));
                let launch = Digest::of_parts([server.launch_digest.as_bytes().as_slice(), why.as_bytes()]);
                _ = run.insert(name.clone(), ServerSpec { upstream, launch, ..spec(server) });
            }
            Err(why) => _ = disabled.insert(name.clone(), why.clone()),
        }
    }
    (run, disabled)
}

fn spec(server: &ResolvedServer, all: &Slots, logins: Option<&Logins>, files: Option<&FileAccess>) -> ServerSpec {
    let upstream: Arc<dyn Upstream> = match &server.transport {
        Transport::Stdio(launch) => Arc::new(Configured {
            server: server.name.clone(),
            launch: launch.clone(),
            settings: Settings { limits: message_limits(server.message_limit), lifecycle: server.lifecycle },
        }),
        Transport::Http(target) => {
            let settings = HttpSettings {
                limits: message_limits(server.message_limit),
                lifecycle: server.lifecycle,
                concurrency: usize::try_from(server.concurrency).unwrap_or(usize::MAX),
            };
            let login = logins.and_then(|logins| Login::of(logins, server, &variable));
            Arc::new(ConfiguredHttp::new(server.name.clone(), target.clone(), settings, login))
        }
        Transport::Unreadable => Arc::new(Unsupported("its table cannot be read".to_owned())),
    };
    let files = files.filter(|_| server.file_parameters);
    let upstream = Lanes::of(upstream, server.sharing, server.restart.when == RestartWhen::OnExit);
    let filter = server.filter.clone();
    ServerSpec {
        upstream,
        identity: server.identity,
        launch: server.launch_digest,
        // Where files go is part of what a call was prepared with.
        config: files.map_or(server.digest, |files| {
            Digest::of_parts([server.digest.as_bytes().as_slice(), files.digest.as_bytes()])
        }),
        view: ServerView {
            tool_timeout: server.tool_timeout,
            may_relax: server.may_relax,
            check_arguments: server.check_arguments,
            omitted: server.omit_tools_from.clone(),
            parallel: server.parallel,
            local: is_local(&server.transport),
            plugin: server
                .plugin
                .as_ref()
                .map(|id| Plugin { id: id.clone(), name: server.plugin_name.as_ref().unwrap_or(id).clone() }),
            pollutes_memory: server.pollutes_memory,
            environment: LOCAL.to_owned(),
            slots: vec![Slots::new(usize::try_from(server.concurrency).unwrap_or(usize::MAX)), all.clone()],
            file_parameters: server.file_parameters,
            files: files.cloned(),
        },
        connectors: BTreeMap::new(),
        filter: Arc::new(move |tool: &RawToolName| filter.filtered_by(tool).cloned()),
        required: server.required,
        startup_timeout: server.startup_timeout,
        back_off: BackOff {
            first: server.restart.first_delay,
            longest: server.restart.max_delay,
            attempts: server.restart.attempts,
            restarts: server.restart.when == RestartWhen::OnExit,
        },
    }
}

/// Where files of calls come from and go to. Nothing is opened before the first call that names a file.
fn file_access(files: &Files) -> FileAccess {
    let told = format!("{:?}", (files.upload_url.as_str(), &files.bearer_token_env_var, &files.roots));
    let (url, token) = (files.upload_url.clone(), files.bearer_token_env_var.clone());
    let uploader = HttpUploads::new(url, token, super::network::client_builder, variable);
    FileAccess {
        roots: Arc::new(Roots::new(&files.roots)),
        uploader: Arc::new(uploader),
        // Debug text of our own types: no two configurations read alike.
        digest: Digest::of(told.as_bytes()),
    }
}

/// Whether a server runs on this machine: a child does, and whatever is at an address that cannot be elsewhere.
fn is_local(transport: &Transport) -> bool {
    match transport {
        Transport::Stdio(_) => true,
        Transport::Http(target) => {
            let url = target.url.resolve(&variable).ok();
            url.and_then(|url| url::Url::parse(&url).ok()).is_some_and(|url| is_loopback(&url))
        }
        Transport::Unreadable => false,
    }
}

fn message_limits(bytes: u64) -> transport::Limits {
    let line = usize::try_from(bytes).unwrap_or(transport::DEFAULT_LINE);
    transport::Limits { line, waiting: line.saturating_mul(2) }
}

/// A configured child process. What its arguments and environment are is found out at each start.
struct Configured {
    server: ServerName,
    launch: StdioLaunch,
    settings: Settings,
}

impl Configured {
    /// R7: what was trusted may have changed since the configuration was read, and a restart runs what is there now.
    async fn check_trusted(&self) -> Result<(), StartFailure> {
        if self.launch.bound.is_empty() {
            return Ok(());
        }
        let bound = self.launch.bound.clone();
        match tokio::task::spawn_blocking(move || first_changed(&bound)).await {
            Ok(None) => Ok(()),
            Ok(Some(what)) => Err(StartFailure::Spawn(format!("{what}; run `portcullis trust`"))),
            Err(_) => Err(StartFailure::Spawn("comparing its files with what was trusted was broken off".to_owned())),
        }
    }

    fn launch(&self) -> Result<Launch, StartFailure> {
        let program = self.launch.executable.as_ref().map_err(|why| StartFailure::Spawn(why.clone()))?;
        // A variable that is not Unicode counts as not set, and its name is in the message.
        let lookup = variable;
        let missing = |error: MissingVariable| StartFailure::Spawn(error.to_string());
        let program = program.to_str().ok_or_else(|| {
            let shown = crate::model::text::shown(&program.display().to_string(), 256);
            StartFailure::Spawn(format!("the path `{shown}` is not Unicode"))
        })?;
        Ok(Launch {
            program: program.to_owned(),
            args: self.launch.arguments(&lookup).map_err(missing)?,
            cwd: (!self.launch.cwd.as_os_str().is_empty()).then(|| self.launch.cwd.clone()),
            env: self.launch.environment(&lookup).map_err(missing)?.into_iter().collect(),
        })
    }
}

#[async_trait]
impl Upstream for Configured {
    async fn connect(
        &self,
        deadline: Instant,
        events: Arc<dyn UpstreamEvents>,
    ) -> Result<Arc<dyn Connection>, StartFailure> {
        let launch = self.launch()?;
        self.check_trusted().await?;
        StdioUpstream::new(self.server.clone(), launch, self.settings).connect(deadline, events).await
    }

    fn may_be_remembered(&self) -> bool {
        true
    }
}

/// A server that this version cannot reach: it fails like one that is down, so that `required` still counts.
struct Unsupported(String);

#[async_trait]
impl Upstream for Unsupported {
    async fn connect(
        &self,
        _deadline: Instant,
        _events: Arc<dyn UpstreamEvents>,
    ) -> Result<Arc<dyn Connection>, StartFailure> {
        Err(StartFailure::Unsupported(self.0.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Places, SessionSources, load};
    use crate::model::layer::LayerKind;
    use crate::pipeline::emit::views::truncate::Policy;

    fn resolved(layers: &[(LayerKind, &str)]) -> Resolved {
        load(&Places::nowhere(), &SessionSources::of_texts(layers, &std::env::temp_dir()))
    }

    #[tokio::test]
    async fn r7_a_trusted_file_is_compared_again_at_every_start() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("server.js");
        std::fs::write(&script, "evil").unwrap();
        let resolved = resolved(&[(LayerKind::User, "[mcp_servers.s]\ncommand = \"sh\"\n")]);
        let server = &resolved.servers[&ServerName::parse("s").unwrap()];
        let Transport::Stdio(launch) = &server.transport else { panic!() };
        let executable = Ok(std::path::PathBuf::from("/bin/sh"));
        let start = async |digest| {
            let bound = [(script.clone(), digest)].into();
            let launch = StdioLaunch { bound, executable: executable.clone(), ..launch.clone() };
            let settings = Settings { limits: message_limits(1024), ..Settings::default() };
            Configured { server: server.name.clone(), launch, settings }.check_trusted().await
        };
        let digest = Digest::of(b"trusted");
        for then in [Some(digest), None] {
            let Err(StartFailure::Spawn(why)) = start(then).await else { panic!("a changed file was run") };
            assert!(why.ends_with("server.js` changed since it was trusted; run `portcullis trust`"), "{why}");
        }
        assert!(start(Some(Digest::of(b"evil"))).await.is_ok());
    }

    #[test]
    fn a_servers_table_reaches_its_spec() {
        let text = "[mcp_servers.s]\ncommand = \"sh\"\nrequired = true\ntool_timeout_sec = 1.5\nmessage_limit = 2048\n\
                    disabled_tools = [\"x\"]\n[mcp_servers.s.restart]\nwhen = \"never\"\nfirst_delay_ms = 20\n\
                    [mcp_servers.off]\ncommand = \"sh\"\nenabled = false\n";
        let (run, disabled) = servers(&resolved(&[(LayerKind::User, text)]), None, &Slots::new(1));
        let spec = &run[&ServerName::parse("s").unwrap()];
        assert!(spec.required && !spec.back_off.restarts);
        assert_eq!(spec.back_off.first.as_millis(), 20);
        assert_eq!(spec.view.tool_timeout.as_millis(), 1500);
        let left_out = |tool| (spec.filter)(&RawToolName::parse(tool).unwrap()).map(|layer| layer.kind());
        assert_eq!((left_out("x"), left_out("y")), (Some(LayerKind::User), None));
        assert_eq!(disabled.keys().map(ServerName::as_str).collect::<Vec<_>>(), ["off"]);
    }

    #[test]
    fn b10_b11_only_what_a_connection_is_made_of_asks_for_another_one() {
        let stdio = "[mcp_servers.s]\ncommand = \"sh\"\n";
        let http = "[mcp_servers.s]\nurl = \"https://a.example/\"\n";
        let restart = "[mcp_servers.s.restart]\nwhen = \"never\"\n";
        let shared = "sharing = \"principal\"\n";
        let laned = format!("{stdio}{shared}");
        let spec = |text: &str| {
            let (mut run, _) = servers(&resolved(&[(LayerKind::User, text)]), None, &Slots::new(1));
            run.remove(&ServerName::parse("s").unwrap()).unwrap()
        };
        // What is added to a table, and whether that makes another connection.
        let rows = [
            (stdio, "enabled_tools = [\"a\"]\n", false),
            (stdio, "disabled_tools = [\"a\"]\n", false),
            (stdio, "tool_timeout_sec = 1\n", false),
            (stdio, "startup_timeout_sec = 1\n", false),
            (stdio, "supports_parallel_tool_calls = true\n", false),
            (stdio, "trust_annotations = false\n", false),
            (stdio, "check_arguments = false\n", false),
            (stdio, "file_parameters = true\n", false),
            (stdio, "omit_tools_from = [\"direct\"]\n", false),
            (stdio, "required = true\n", false),
            (stdio, "concurrency = 1\n", false),
            (stdio, restart, false),
            (stdio, "args = [\"x\"]\n", true),
            (stdio, "env = { A = \"1\" }\n", true),
            (stdio, "env_vars = [\"A\"]\n", true),
            (stdio, "cwd = \"elsewhere\"\n", true),
            (stdio, "base_environment = false\n", true),
            (stdio, "lifecycle = \"auto\"\n", true),
            (stdio, "message_limit = 2048\n", true),
            (stdio, shared, true),
            (&laned, restart, true),
            (http, "tool_timeout_sec = 1\n", false),
            (http, "concurrency = 1\n", true),
            (http, "bearer_token_env_var = \"T\"\n", true),
            (http, "http_headers = { A = \"1\" }\n", true),
            (http, "scopes = [\"a\"]\n", true),
        ];
        for (table, added, another) in rows {
            let (before, after) = (spec(table), spec(&format!("{table}{added}")));
            assert_ne!(before.config, after.config, "{added}: calls that were prepared before are not stale");
            assert_eq!(before.launch != after.launch, another, "{table}{added}");
        }
        assert_ne!(spec(http).launch, spec("[mcp_servers.s]\nurl = \"https://b.example/\"\n").launch, "B11");
    }

    #[test]
    fn r27_a_server_that_may_have_files_has_them_and_another_place_for_uploads_makes_its_calls_stale() {
        let files = |url: &str| format!("[files]\nupload_url = \"{url}\"\nroots = [\"/data\"]\n");
        let text = "[mcp_servers.s]\ncommand = \"sh\"\nfile_parameters = true\n[mcp_servers.plain]\ncommand = \"sh\"\n";
        let spec = |layers: &[(LayerKind, &str)], name: &str| {
            let (mut run, _) = servers(&resolved(layers), None, &Slots::new(1));
            run.remove(&ServerName::parse(name).unwrap()).unwrap()
        };
        let (one, other) = (files("https://a.example/") + text, files("https://b.example/") + text);
        let with = spec(&[(LayerKind::User, &one)], "s");
        assert!(with.view.file_parameters && with.view.files.is_some());
        assert_ne!(with.config, spec(&[(LayerKind::User, &other)], "s").config);
        assert_eq!(with.config, spec(&[(LayerKind::User, &one)], "s").config);
        let plain = spec(&[(LayerKind::User, &one)], "plain");
        assert!(!plain.view.file_parameters && plain.view.files.is_none());
        assert_eq!(plain.config, spec(&[(LayerKind::User, &other)], "plain").config);
        let off = "[mcp_servers.s]\nfile_parameters = false\n";
        assert!(!spec(&[(LayerKind::User, &one), (LayerKind::Session, off)], "s").view.file_parameters);
        let none = spec(&[(LayerKind::User, text)], "s");
        assert!(none.view.file_parameters && none.view.files.is_none());
    }

    #[test]
    fn only_a_child_and_what_is_at_a_loopback_address_runs_on_this_machine() {
        let text = "[mcp_servers.child]\ncommand = \"sh\"\n[mcp_servers.here]\nurl = \"http://127.0.0.1:1/\"\n\
                    [mcp_servers.web]\nurl = \"https://a.example/\"\n\
                    [mcp_servers.near]\nurl = \"https://a.localhost/\"\n";
        let (run, _) = servers(&resolved(&[(LayerKind::User, text)]), None, &Slots::new(1));
        let local: Vec<_> = run.iter().map(|(name, spec)| (name.as_str(), spec.view.local)).collect();
        assert_eq!(local, [("child", true), ("here", true), ("near", false), ("web", false)]);
    }

    #[test]
    fn the_smaller_limit_of_a_models_text_counts() {
        let text = "tool_output_token_limit = 100\n[mcp_servers.s]\ncommand = \"sh\"\n\
                    [mcp_servers.s.tools.t]\noutput_token_limit = 7\n\
                    [mcp_servers.small]\ncommand = \"sh\"\noutput_token_limit = 20\n\
                    [mcp_servers.small.tools.t]\noutput_token_limit = 30\n\
                    [mcp_servers.large]\ncommand = \"sh\"\noutput_token_limit = 500\n";
        let resolved = resolved(&[(LayerKind::User, text)]);
        let limit = |tool| {
            let (tool, model) = (ToolRef::parse(tool).unwrap(), ModelViewOptions::default());
            let bytes = ModelViewOptions { truncation: Policy::Bytes(10_000), ..model };
            (model_view(&resolved, &tool, model).truncation, model_view(&resolved, &tool, bytes).truncation)
        };
        assert_eq!(limit("s/t"), (Policy::Tokens(7), Policy::Bytes(28)));
        assert_eq!(limit("s/other"), (Policy::Tokens(100), Policy::Bytes(400)));
        assert_eq!(limit("small/t").0, Policy::Tokens(20));
        assert_eq!(limit("small/other").0, Policy::Tokens(20));
        assert_eq!(limit("large/t").0, Policy::Tokens(100));
    }

    #[test]
    fn r2_layers_only_take_modalities_away() {
        use crate::model::media::{Modalities, Modality};
        let takes = |layers: &[(LayerKind, &str)]| resolved(layers).output.input_modalities.value;
        let images = "input_modalities = [\"text\", \"image\"]\n";
        let all = "input_modalities = [\"image\", \"audio\"]\n";
        assert_eq!(takes(&[]), Modalities::ALL);
        assert_eq!(takes(&[(LayerKind::User, all)]), Modalities::ALL);
        for layers in [[LayerKind::Organisation, LayerKind::User], [LayerKind::User, LayerKind::Organisation]] {
            assert_eq!(takes(&[(layers[0], images), (layers[1], all)]), Modalities::of([Modality::Image]));
        }
        assert_eq!(takes(&[(LayerKind::User, "input_modalities = []\n")]), Modalities::TEXT);
    }

    #[test]
    fn a_servers_limit_takes_the_place_of_the_models_own_where_no_layer_limits_all_tools() {
        let text = "[mcp_servers.s]\ncommand = \"sh\"\noutput_token_limit = 50_000\n";
        let organisation = "[mcp_servers.s]\noutput_token_limit = 40_000\n";
        let limit = |resolved: &Resolved, tool| {
            model_view(resolved, &ToolRef::parse(tool).unwrap(), ModelViewOptions::default()).truncation
        };
        let user = resolved(&[(LayerKind::User, text)]);
        assert_eq!(limit(&user, "s/t"), Policy::Tokens(50_000));
        assert_eq!(limit(&user, "other/t"), Policy::default());
        // R2: the smallest of all layers counts.
        let both = resolved(&[(LayerKind::User, text), (LayerKind::Organisation, organisation)]);
        assert_eq!(limit(&both, "s/t"), Policy::Tokens(40_000));
    }
}
