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
use std::error::Error;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::time::Instant;

use super::HostParts;
use super::fleet::{BackOff, ServerSpec};
use super::http_server::{ConfiguredHttp, Login};
use super::policies::{ComponentSpec, connector_spec, policy_set, unreadable};
use crate::adapters::clock::SystemClock;
use crate::adapters::mcp::child::Launch;
use crate::adapters::mcp::client::{Settings, StdioUpstream};
use crate::adapters::mcp::http::upstream::HttpSettings;
use crate::adapters::mcp::lanes::Lanes;
use crate::adapters::mcp::transport;
use crate::adapters::oauth::Logins;
use crate::adapters::store::memory::MemoryGrants;
use crate::adapters::store::sqlite::{self, OpenStateError};
use crate::adapters::wasm::{Class, Engine, Limits, builtin};
use crate::config::apps::AppSettings;
use crate::config::builtin::Builtin;
use crate::config::data::{DataError, DataFiles, read_data};
use crate::config::file::Names as NameStyle;
use crate::config::matcher::Matcher;
use crate::config::policy_keys::{KindName, LimitsClass, PolicyLimitsTable};
use crate::config::policy_ref::{ComponentBytes, ComponentError, PolicyEntry, read_component};
use crate::config::requirements::Unmet;
use crate::config::server::{ResolvedServer, StdioLaunch, Transport};
use crate::config::server_keys::{Exposure, RestartWhen};
use crate::config::stack::LayerState;
use crate::config::template::MissingVariable;
use crate::config::trust::first_changed;
use crate::config::{Places, Resolved};
use crate::model::digest::Digest;
use crate::model::here::is_loopback;
use crate::model::layer::{LayerKind, LayerRef};
use crate::model::name::{RawToolName, ServerName, ToolRef};
use crate::model::tool::ServerIdentity;
use crate::model::verdict::{Fault, FaultCode, Reason, Refusal, RuleId, Source};
use crate::pipeline::admit::catalog::{Names, ServerView};
use crate::pipeline::admit::naming::{FlatStyle, NameLimit, NamingOptions};
use crate::pipeline::admit::slots::Slots;
use crate::pipeline::emit::views::model::ModelViewOptions;
use crate::pipeline::emit::views::truncate::Policy;
use crate::ports::approval::{Kind, Matches, PolicySet};
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
pub fn open_state(places: &Places) -> Result<Arc<dyn PolicyState>, NoState> {
    let folder = places.state.as_ref().ok_or(NoState::NoPlace)?;
    Ok(Arc::new(sqlite::open(folder, places.user)?))
}

/// Describes a host: its servers, and what decides about their calls. `logins` gives tokens to HTTP servers; `state` keeps what
/// components know of earlier calls. What is wrong with single entries is in the parts.
#[must_use]
pub fn host_parts(
    resolved: &Resolved,
    policies: PolicySet,
    recorder: Arc<dyn Recorder>,
    logins: Option<&Logins>,
    state: Arc<dyn PolicyState>,
) -> HostParts {
    let (servers, disabled) = servers(resolved, logins);
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
    policy_set(engine, specs, apps, resolved.postures.clone(), refusals(resolved), resolved.digest)
}

/// What one layer says about Apps, as the built-in connector policy answers it.
fn connector_baseline(apps: &AppSettings) -> ComponentSpec {
    ComponentSpec { settings: apps.settings.clone(), may_allow: apps.may_allow, ..connector_spec(apps.layer.clone()) }
}

/// How a tool's answer is shown to a model: the configuration's limits for its text.
#[must_use]
pub fn model_view(resolved: &Resolved, tool: &ToolRef) -> ModelViewOptions {
    let own = resolved.servers.get(&tool.server).and_then(|server| server.output_token_limits.get(&tool.tool));
    let limit = own.copied().into_iter().chain(resolved.output.tool_output_token_limit.value).min();
    let truncation =
        limit.map_or_else(Policy::default, |limit| Policy::Tokens(usize::try_from(limit).unwrap_or(usize::MAX)));
    ModelViewOptions { truncation, ..ModelViewOptions::default() }
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
    let refusal = |text: &String| {
        let broken = resolved.layers.iter().find(|status| match &status.state {
            LayerState::Broken(why) => text.contains(why.as_str()),
            LayerState::Applied
            | LayerState::Absent
            | LayerState::Untrusted
            | LayerState::Refused(_)
            | LayerState::Changed(_) => false,
        });
        let (layer, rule) = match broken {
            Some(status) => (status.layer.clone(), "layer-unreadable"),
            None if !text.contains("`require_managed`") => (LayerRef::new(LayerKind::Builtin), "layer-unreadable"),
            // What is missing is the managed layer itself.
            None => (LayerRef::new(LayerKind::Managed), "managed-required"),
        };
        let reason = Reason { rule: RuleId::parse(rule), text: text.clone() };
        Refusal { source: Source { layer, component: "host".into(), digest: None }, reason, fault: None }
    };
    resolved.refusals.iter().map(refusal).collect()
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
) -> (BTreeMap<ServerName, ServerSpec>, BTreeMap<ServerName, String>) {
    let (mut run, mut disabled) = (BTreeMap::new(), BTreeMap::new());
    let all = Slots::new(usize::try_from(resolved.limits.concurrent_calls.value).unwrap_or(usize::MAX));
    for (name, server) in &resolved.servers {
        match &server.enabled {
            Ok(()) => _ = run.insert(name.clone(), spec(server, &all, logins)),
            // What the host must not start without counts as failed, unless somebody switched it off on purpose.
            Err(why) if server.required && !server.is_switched_off() => {
                let upstream = Arc::new(Unsupported(why.clone()));
                _ = run.insert(name.clone(), ServerSpec { upstream, ..spec(server, &all, logins) });
            }
            Err(why) => _ = disabled.insert(name.clone(), why.clone()),
        }
    }
    (run, disabled)
}

fn spec(server: &ResolvedServer, all: &Slots, logins: Option<&Logins>) -> ServerSpec {
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
            let login = logins.and_then(|logins| Login::of(logins, server, &|name| std::env::var(name).ok()));
            Arc::new(ConfiguredHttp::new(server.name.clone(), target.clone(), settings, login))
        }
        Transport::Unreadable => Arc::new(Unsupported("its table cannot be read".to_owned())),
    };
    let upstream = Lanes::of(upstream, server.sharing, server.restart.when == RestartWhen::OnExit);
    let filter = server.filter.clone();
    // Without search and scripts a tool is shown directly or not at all.
    let shown = !server.omit_tools_from.contains(&Exposure::Direct);
    ServerSpec {
        upstream,
        identity: server.identity,
        config: server.digest,
        view: ServerView {
            tool_timeout: server.tool_timeout,
            may_relax: server.may_relax,
            parallel: server.parallel,
            local: is_local(&server.transport),
            plugin: server.plugin.clone(),
            slots: vec![Slots::new(usize::try_from(server.concurrency).unwrap_or(usize::MAX)), all.clone()],
        },
        connectors: BTreeMap::new(),
        filter: Arc::new(move |tool: &RawToolName| shown && filter.allows(tool)),
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

/// Whether a server runs on this machine: a child does, and whatever is at an address that cannot be elsewhere.
fn is_local(transport: &Transport) -> bool {
    match transport {
        Transport::Stdio(_) => true,
        Transport::Http(target) => {
            let url = target.url.resolve(&|name| std::env::var(name).ok()).ok();
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
        let lookup = |name: &str| std::env::var(name).ok();
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
    use crate::config::{EmbeddedLayer, Places, SessionSources, load};

    fn resolved(layers: &[(LayerKind, &str)]) -> Resolved {
        let embedded = layers.iter().map(|(kind, text)| EmbeddedLayer {
            kind: *kind,
            text: (*text).to_owned(),
            folder: std::env::temp_dir(),
        });
        let session = SessionSources { embedded: embedded.collect(), ..SessionSources::default() };
        load(&Places::nowhere(), &session)
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

    #[test]
    fn a_servers_table_reaches_its_spec() {
        let text = "[mcp_servers.s]\ncommand = \"sh\"\nrequired = true\ntool_timeout_sec = 1.5\nmessage_limit = 2048\n\
                    disabled_tools = [\"x\"]\n[mcp_servers.s.restart]\nwhen = \"never\"\nfirst_delay_ms = 20\n\
                    [mcp_servers.off]\ncommand = \"sh\"\nenabled = false\n";
        let (run, disabled) = servers(&resolved(&[(LayerKind::User, text)]), None);
        let spec = &run[&ServerName::parse("s").unwrap()];
        assert!(spec.required && !spec.back_off.restarts);
        assert_eq!(spec.back_off.first.as_millis(), 20);
        assert_eq!(spec.view.tool_timeout.as_millis(), 1500);
        assert!(!(spec.filter)(&RawToolName::parse("x").unwrap()) && (spec.filter)(&RawToolName::parse("y").unwrap()));
        assert_eq!(disabled.keys().map(ServerName::as_str).collect::<Vec<_>>(), ["off"]);
    }

    #[test]
    fn only_a_child_and_what_is_at_a_loopback_address_runs_on_this_machine() {
        let text = "[mcp_servers.child]\ncommand = \"sh\"\n[mcp_servers.here]\nurl = \"http://127.0.0.1:1/\"\n\
                    [mcp_servers.web]\nurl = \"https://a.example/\"\n\
                    [mcp_servers.near]\nurl = \"https://a.localhost/\"\n";
        let (run, _) = servers(&resolved(&[(LayerKind::User, text)]), None);
        let local: Vec<_> = run.iter().map(|(name, spec)| (name.as_str(), spec.view.local)).collect();
        assert_eq!(local, [("child", true), ("here", true), ("near", false), ("web", false)]);
    }

    #[test]
    fn the_smaller_limit_of_a_models_text_counts() {
        let text = "tool_output_token_limit = 100\n[mcp_servers.s]\ncommand = \"sh\"\n\
                    [mcp_servers.s.tools.t]\noutput_token_limit = 7\n";
        let resolved = resolved(&[(LayerKind::User, text)]);
        let limit = |tool| model_view(&resolved, &ToolRef::parse(tool).unwrap()).truncation;
        assert_eq!(limit("s/t"), Policy::Tokens(7));
        assert_eq!(limit("s/other"), Policy::Tokens(100));
    }
}
