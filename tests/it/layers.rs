//! Configuration layers: where they come from, what they may do to each other, and what happens when one is broken.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use portcullis::config::policy_keys::KindName;
use portcullis::config::policy_ref::{ComponentError, PolicyEntry, read_component};
use portcullis::config::server::{ResolvedServer, Transport};
use portcullis::config::server_keys::Lifecycle;
use portcullis::config::trust::{Grant, TrustStore, describe, first_changed};
use portcullis::config::{LayerState, Places, Resolved, SessionSources, load, show};
use portcullis::model::digest::Digest;
use portcullis::model::layer::LayerKind;
use portcullis::model::name::{RawToolName, ServerName, ToolRef};
use portcullis::model::posture::{ApprovalMode, ApprovalPolicy};
use proptest::prelude::*;
use tempfile::TempDir;

use crate::support::write_owned;

/// A machine of its own in a temporary folder.
pub(crate) struct Machine {
    dir: TempDir,
    pub(crate) places: Places,
    pub(crate) session: SessionSources,
}

pub(crate) const SYSTEM: &str = "etc/config.toml";
pub(crate) const ORGANISATION: &str = "etc/organisation.toml";
pub(crate) const MANAGED: &str = "etc/managed.toml";
pub(crate) const USER: &str = "home/.config/portcullis/config.toml";
pub(crate) const PROJECT: &str = "home/repo/.portcullis/config.toml";
pub(crate) const NESTED: &str = "home/repo/sub/.portcullis/config.toml";

impl Machine {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let places = Places {
            etc: Some(root.join("etc")),
            user_config: Some(root.join("home/.config/portcullis")),
            state: Some(root.join("home/.local/state/portcullis")),
            home: Some(root.join("home")),
            cwd: Some(root.join("home/repo/sub")),
            path: Some(root.join("bin").into_os_string()),
            ..Places::nowhere()
        };
        let machine = Self { dir, places, session: SessionSources::default() };
        std::fs::create_dir_all(machine.path("home/repo/sub")).unwrap();
        std::fs::create_dir_all(machine.path("home/repo/.git")).unwrap();
        for program in ["npx", "node"] {
            machine.write(&format!("bin/{program}"), "#!/bin/sh\n");
            machine.mode(&format!("bin/{program}"), 0o755);
        }
        machine
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(path)
    }

    pub(crate) fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        write_owned(&self.path(path), text);
    }

    pub(crate) fn mode(&self, path: &str, mode: u32) {
        std::fs::set_permissions(self.path(path), PermissionsExt::from_mode(mode)).unwrap();
    }

    pub(crate) fn with(self, path: &str, text: &str) -> Self {
        self.write(path, text);
        self
    }

    pub(crate) fn flag(mut self, flag: &str) -> Self {
        self.session.overrides.push(flag.to_owned());
        self
    }

    pub(crate) fn load(&self) -> Resolved {
        load(&self.places, &self.session)
    }

    pub(crate) fn trust(&self, layer: &str, grant: Grant) {
        let folder = self.path(layer);
        let description = describe(&self.places, folder.parent().unwrap().parent().unwrap()).unwrap();
        let mut store = self.store();
        store.trust(&description, grant).unwrap();
        store.save().unwrap();
    }

    pub(crate) fn store(&self) -> TrustStore {
        TrustStore::open(&self.places.trust_store().unwrap(), self.places.user).unwrap()
    }

    pub(crate) fn state(&self, layer: &str) -> LayerState {
        let file = self.path(layer);
        self.load().layers.iter().find(|s| s.layer.file() == Some(&file)).unwrap().state.clone()
    }
}

fn name(text: &str) -> ServerName {
    ServerName::parse(text).unwrap()
}

fn tool(text: &str) -> RawToolName {
    RawToolName::parse(text).unwrap()
}

fn files(resolved: &Resolved) -> &ResolvedServer {
    &resolved.servers[&name("files")]
}

fn all_problems(resolved: &Resolved) -> String {
    resolved.problems.iter().map(|problem| format!("{problem}\n")).collect()
}

const FILES: &str = "[mcp_servers.files]\ncommand = 'npx'\nargs = ['-y', '@mcp/files', '.']\n";

#[test]
fn every_layer_is_found_and_in_order() {
    let machine = Machine::new().with(SYSTEM, "").with(ORGANISATION, "").with(USER, "").with(MANAGED, "");
    let mut machine = machine
        .with(PROJECT, "")
        .with(NESTED, "")
        .with("extra.toml", "")
        .with("more.toml", "")
        .flag("gateway.name_limit=40");
    machine.session.files.push(machine.path("extra.toml"));
    machine.session.managed.push(machine.path("more.toml"));
    let resolved = machine.load();
    let found: Vec<_> = resolved.layers.iter().map(|status| (status.layer.kind(), status.state.clone())).collect();
    use LayerKind::{Managed, Organisation, Project, Session, System, User};
    use LayerState::{Applied, Untrusted};
    let want = [
        (System, Applied),
        (Organisation, Applied),
        (User, Applied),
        (Project, Untrusted),
        (Project, Untrusted),
        (Session, Applied),
        (Session, Applied),
        (Managed, Applied),
        (Managed, Applied),
    ];
    assert_eq!(found, want);
    assert!(resolved.refusals.is_empty(), "{:?}", resolved.refusals);
}

#[test]
fn an_ordinary_value_is_the_later_layers_and_names_its_origin() {
    let machine =
        Machine::new().with(SYSTEM, "[gateway]\nname_limit = 50\n").with(USER, "\n[gateway]\nname_limit = 60\n");
    let resolved = machine.load();
    assert_eq!(resolved.gateway.name_limit.value, 60);
    let shown = show::effective(&resolved);
    let limit = shown.iter().find(|shown| shown.key == "gateway.name_limit").unwrap();
    assert_eq!((limit.layer.kind(), limit.line), (LayerKind::User, Some(3)));
    assert_eq!(limit.file.as_deref(), Some(&*machine.path(USER)));
}

#[test]
fn r1_policies_of_all_layers_stand_side_by_side_most_trusted_first() {
    let policy = "[[policies]]\nname = 'p'\ncomponent = 'p.wasm'\n";
    let pinned = format!("{policy}sha256 = '{}'\n", Digest::of(b"x"));
    let machine = Machine::new().with(USER, policy).with(MANAGED, &pinned).with(SYSTEM, policy);
    let machine = machine.with(ORGANISATION, &pinned).flag("policies=[{name='p',component='p.wasm'}]");
    let kinds: Vec<_> = machine.load().policies.iter().map(|policy| policy.layer.kind()).collect();
    use LayerKind::{Managed, Organisation, Session, System, User};
    assert_eq!(kinds, [Managed, System, Organisation, User, Session]);
}

#[test]
fn r2_a_less_trusted_layer_tightens_a_server_and_never_loosens_it() {
    let user = format!("{FILES}enabled_tools = ['a', 'b']\ntool_timeout_sec = 10\nconcurrency = 4\n");
    let machine = Machine::new().with(USER, &user).flag("mcp_servers.files.enabled_tools=['b','c']");
    let machine = machine.flag("mcp_servers.files.tool_timeout_sec=20").flag("mcp_servers.files.concurrency=2");
    let machine = machine.flag("mcp_servers.files.disabled_tools=['z']").flag("mcp_servers.files.enabled=true");
    let resolved = machine.load();
    let files = files(&resolved);
    assert_eq!(["a", "b", "c", "z"].map(|t| files.filter.allows(&tool(t))), [false, true, false, false]);
    assert_eq!((files.tool_timeout, files.concurrency), (Duration::from_secs(10), 2));
    assert_eq!(files.origins["concurrency"].kind(), LayerKind::Session);
    let resolved = machine.flag("mcp_servers.files.enabled=false").load();
    assert_eq!(resolved.servers[&name("files")].enabled, Err("disabled by the session layer".to_owned()));
}

#[test]
fn r2_approval_settings_are_kept_for_each_layer() {
    let user = format!("approval_policy = 'never'\n{FILES}default_tools_approval_mode = 'approve'\n");
    let machine = Machine::new().with(USER, &user).flag("mcp_servers.files.tools.write.approval_mode='prompt'");
    let postures = machine.load().postures.for_tool(&ToolRef { server: name("files"), tool: tool("write") });
    let seen: Vec<_> = postures.iter().map(|(layer, p)| (layer.kind(), p.mode, p.policy)).collect();
    let want = [
        (LayerKind::User, ApprovalMode::Approve, ApprovalPolicy::Never),
        (LayerKind::Session, ApprovalMode::Prompt, ApprovalPolicy::Never),
    ];
    assert_eq!(seen, want);
}

#[test]
fn r2_a_limit_is_raised_above_the_builtin_only_by_who_may_allow() {
    let machine = Machine::new().flag("limits.concurrent_calls=1000");
    assert_eq!(machine.load().limits.concurrent_calls.value, 256);
    let machine = machine.with(SYSTEM, "[limits]\nconcurrent_calls = 500\n");
    assert_eq!(machine.load().limits.concurrent_calls.value, 500);
}

#[test]
fn r3_session_and_managed_flag_may_not_allow() {
    let policy = "[[policies]]\nname = 'p'\ncomponent = 'p.wasm'\n";
    let pinned = format!("{policy}sha256 = '{}'\n", Digest::of(b"x"));
    let mut machine = Machine::new().with(USER, policy).with("more.toml", &pinned);
    machine.session.managed.push(machine.path("more.toml"));
    let rights: Vec<_> = machine.load().policies.iter().map(|p| (p.layer.kind(), p.may_allow)).collect();
    assert_eq!(rights, [(LayerKind::Managed, false), (LayerKind::User, true)]);
}

#[test]
fn r4_a_launch_key_from_another_layer_is_reported_and_has_no_effect() {
    let machine = Machine::new().with(USER, FILES).flag("mcp_servers.files.args=['evil']");
    let machine = machine.flag("mcp_servers.files.env={ X = 'evil' }").flag("mcp_servers.files.tool_timeout_sec=5");
    let resolved = machine.load();
    let files = files(&resolved);
    let Transport::Stdio(launch) = &files.transport else { panic!("{:?}", files.transport) };
    assert_eq!(launch.args[1].as_written(), "@mcp/files");
    assert!(launch.env.is_empty());
    assert_eq!((files.tool_timeout, &files.enabled), (Duration::from_secs(5), &Ok(())));
    let problems = all_problems(&resolved);
    assert!(problems.contains("session layer:1: `mcp_servers.files.args`: has no effect"), "{problems}");
    assert!(problems.contains("`mcp_servers.files.env`: has no effect"), "{problems}");
}

#[test]
fn r4_of_two_definitions_the_more_trusted_wins_and_the_other_is_reported() {
    let machine = Machine::new().with(SYSTEM, FILES).with(USER, "[mcp_servers.files]\nurl = 'https://evil'\n");
    let resolved = machine.load();
    assert_eq!(files(&resolved).layer.kind(), LayerKind::System);
    assert!(matches!(files(&resolved).transport, Transport::Stdio(_)));
    assert!(all_problems(&resolved).contains("`mcp_servers.files.url`: has no effect"));
}

#[test]
fn r6_the_managed_flag_restricts_but_does_not_define_over_others() {
    let mut machine = Machine::new()
        .with(MANAGED, FILES)
        .with("more.toml", "[mcp_servers.files]\ncommand = 'node'\nenabled = false\n");
    machine.session.managed.push(machine.path("more.toml"));
    let resolved = machine.load();
    let Transport::Stdio(launch) = &files(&resolved).transport else { panic!() };
    assert_eq!(launch.command, "npx");
    assert!(files(&resolved).enabled.is_err());
}

fn asked(policy: &PolicyEntry, server: &ResolvedServer) -> bool {
    policy.matcher.matches(KindName::Tool, &server.name, &tool("x"), server.identity)
}

#[test]
fn r5_a_managed_match_by_name_covers_the_same_program_under_another_name() {
    let policy = format!(
        "[[policies]]\nname = 'p'\ncomponent = 'p.wasm'\nsha256 = '{}'\nmatch = {{ servers = ['files'] }}\n",
        Digest::of(b"x")
    );
    let alias = "[mcp_servers.other]\ncommand = 'npx'\nargs = ['@mcp/files@2.0', '/']\n";
    let stranger = "[mcp_servers.stranger]\ncommand = 'node'\nargs = ['x.js']\n";
    let machine = Machine::new().with(MANAGED, &policy).with(USER, &format!("{FILES}{alias}{stranger}{policy}"));
    let resolved = machine.load();
    let of = |kind| resolved.policies.iter().find(|p| p.layer.kind() == kind).unwrap();
    let servers = ["files", "other", "stranger"].map(|n| &resolved.servers[&name(n)]);
    assert_eq!(servers.map(|s| asked(of(LayerKind::Managed), s)), [true, true, false]);
    assert_eq!(servers.map(|s| asked(of(LayerKind::User), s)), [true, false, false]);
}

#[test]
fn r5_another_argument_is_no_way_out_of_a_managed_match() {
    let policy = format!(
        "[[policies]]\nname = 'p'\ncomponent = 'p.wasm'\nsha256 = '{}'\nmatch = {{ servers = ['files', 'own'] }}\n",
        Digest::of(b"x")
    );
    let own =
        "[mcp_servers.own]\ncommand = 'own-server'\n[mcp_servers.own2]\ncommand = 'own-server'\nargs = ['stdio']\n";
    let flag = "[mcp_servers.other]\ncommand = 'npx'\nargs = ['--package=@mcp/files', 'x']\n";
    let machine = Machine::new().with(MANAGED, &policy).with(USER, &format!("{FILES}{own}{flag}"));
    let resolved = machine.load();
    let servers = ["own", "own2", "other"].map(|n| &resolved.servers[&name(n)]);
    assert_eq!(servers.map(|s| asked(&resolved.policies[0], s)), [true, true, true]);
}

#[test]
fn r5_identity_holds_what_is_run_and_names_of_the_environment_but_no_values() {
    let server = |body: &str| files(&Machine::new().with(USER, body).load()).clone();
    let (dir, path) = ("cwd = '/'\n", "command = '/bin/sh'\n");
    let make = |rest: &str| server(&format!("[mcp_servers.files]\n{path}{dir}{rest}")).identity;
    let plain = make("env = { TOKEN = 'a' }\n");
    assert_eq!(plain, make("env = { TOKEN = 'b' }\ntool_timeout_sec = 3\n"));
    assert_ne!(plain, make("env = { OTHER = 'a' }\n"));
    assert_ne!(plain, make("args = ['x']\nenv = { TOKEN = 'a' }\n"));
}

#[test]
fn r5_a_match_by_identity_needs_no_name() {
    let policy = "[[policies]]\nname = 'p'\ncomponent = 'p.wasm'\nmatch = { identities = [{ executable = 'npx', script = '@mcp/files' }] }\n";
    let other = "[mcp_servers.other]\ncommand = 'npx'\nargs = ['@mcp/mail']\n";
    let resolved = Machine::new().with(USER, &format!("{FILES}{other}{policy}")).load();
    let hits = ["files", "other"].map(|n| asked(&resolved.policies[0], &resolved.servers[&name(n)]));
    assert_eq!(hits, [true, false]);
}

#[test]
fn r6_a_layer_that_others_may_write_refuses_all_calls() {
    let machine = Machine::new().with(USER, "");
    machine.mode(USER, 0o666);
    let resolved = machine.load();
    assert_eq!(resolved.refusals.len(), 1);
    assert!(resolved.refusals[0].text.starts_with("all calls are refused, because the user layer cannot be read"));
    assert!(resolved.refusals[0].text.contains("mode 666"), "{:?}", resolved.refusals);
}

#[test]
fn r6_a_user_layer_inside_the_project_is_a_project_layer() {
    let mut machine = Machine::new().with("home/repo/conf/config.toml", FILES);
    machine.places.user_config = Some(machine.path("home/repo/conf"));
    let resolved = machine.load();
    assert!(resolved.servers.is_empty());
    assert_eq!(machine.state("home/repo/conf/config.toml"), LayerState::Untrusted);
    let file = machine.path("home/repo/conf/config.toml");
    let mut store = machine.store();
    store.trust(&describe(&machine.places, &file).unwrap(), Grant::default()).unwrap();
    store.save().unwrap();
    assert_eq!(machine.state("home/repo/conf/config.toml"), LayerState::Applied);
}

#[test]
fn r6_the_users_restrictions_stand_in_a_project_that_is_not_trusted() {
    let user = "require_managed = true\napproval_policy = 'never'\n";
    let mut machine = Machine::new().with("home/repo/conf/config.toml", user);
    machine.places.user_config = Some(machine.path("home/repo/conf"));
    let resolved = machine.load();
    assert!(
        resolved.refusals.iter().any(|refusal| refusal.text.contains("require_managed")),
        "{:?}",
        resolved.refusals
    );
    let layers = resolved.postures.layers();
    assert!(layers.iter().any(|layer| layer.policy.is_some() && !layer.may_allow), "{layers:?}");
}

#[test]
fn r8_the_users_unreadable_layer_refuses_every_call_inside_a_project_too() {
    let mut machine = Machine::new().with("home/repo/conf/config.toml", "nonsense = 1\n");
    machine.places.user_config = Some(machine.path("home/repo/conf"));
    assert_eq!(machine.load().refusals.len(), 1);
}

#[test]
fn r7_an_untrusted_project_has_no_effect_and_is_reported() {
    let machine = Machine::new().with(PROJECT, &format!("{FILES}[nonsense]\n"));
    let resolved = machine.load();
    assert!(resolved.servers.is_empty() && resolved.policies.is_empty() && resolved.refusals.is_empty());
    assert!(all_problems(&resolved).contains("is ignored until this project is trusted"));
}

const TRUSTABLE: &str = "approval_policy = 'untrusted'\n\
    [mcp_servers.local]\ncommand = 'node'\nargs = ['server.js', '--config=settings.json']\n\
    [[policies]]\nname = 'p'\ncomponent = 'p.wasm'\ndata = 'lists'\n";

fn trusted_machine() -> Machine {
    let machine =
        Machine::new().with(PROJECT, TRUSTABLE).with("home/repo/server.js", "1").with("home/repo/settings.json", "1");
    let machine = machine.with("home/repo/.portcullis/p.wasm", "p").with("home/repo/.portcullis/lists/a", "a");
    machine.trust(PROJECT, Grant::default());
    machine
}

#[test]
fn r7_trust_binds_every_file_that_the_layer_makes_us_use() {
    assert_eq!(trusted_machine().state(PROJECT), LayerState::Applied);
    let used = ["server.js", "settings.json", ".portcullis/p.wasm", ".portcullis/lists/a", ".portcullis/config.toml"];
    for file in used {
        let machine = trusted_machine();
        machine.write(&format!("home/repo/{file}"), format!("{TRUSTABLE}# changed"));
        let LayerState::Changed(what) = machine.state(PROJECT) else { panic!("{file} is not bound") };
        assert!(what.contains(file) && what.contains("changed"), "{what}");
    }
    let machine = trusted_machine().with("home/repo/.portcullis/lists/b", "new");
    assert!(matches!(machine.state(PROJECT), LayerState::Changed(what) if what.contains("lists/b` appeared")));
    std::fs::remove_file(machine.path("home/repo/.portcullis/lists/b")).unwrap();
    // A lock decides what is refused, so that it is bound, too: when it comes, changes and goes.
    let lock = "home/repo/.portcullis/policies.lock";
    machine.write(lock, "version = 1\n");
    assert!(matches!(machine.state(PROJECT), LayerState::Changed(what) if what.contains("policies.lock` appeared")));
    machine.trust(PROJECT, Grant::default());
    assert_eq!(machine.state(PROJECT), LayerState::Applied);
    machine.write(lock, "version = 1\n# changed\n");
    assert!(matches!(machine.state(PROJECT), LayerState::Changed(what) if what.contains("policies.lock` changed")));
    std::fs::remove_file(machine.path(lock)).unwrap();
    assert!(matches!(machine.state(PROJECT), LayerState::Changed(what) if what.contains("policies.lock` went away")));
    machine.trust(PROJECT, Grant::default());
    std::fs::remove_file(machine.path("home/repo/server.js")).unwrap();
    assert!(matches!(machine.state(PROJECT), LayerState::Changed(what) if what.contains("server.js` went away")));
}

#[test]
fn r7_trust_binds_files_of_the_environment_of_glued_flags_and_outside_of_the_project() {
    let server = |body: &str| format!("[mcp_servers.local]\n{body}\n");
    let cases = [
        ("home/repo/hook.js", server("command = 'node'\nenv = { NODE_OPTIONS = '--require ./hook.js' }")),
        ("home/repo/b.py", server("command = 'node'\nenv = { X = 'a.py:b.py' }")),
        ("home/repo/hook.js", server("command = 'node'\nargs = ['-r./hook.js', 'x']")),
        ("home/repo/hook.js", server("command = 'sh'\nargs = ['-c', 'exec node \"./hook.js\"']")),
        ("home/sibling.js", server("command = 'node'\nargs = ['../sibling.js']")),
        ("out/run", server(&format!("command = './run'\ncwd = '{}'", "OUT"))),
    ];
    for (file, text) in cases {
        let machine = Machine::new().with(file, "1");
        machine.write(PROJECT, text.replace("OUT", &machine.path("out").display().to_string()));
        machine.trust(PROJECT, Grant::default());
        assert_eq!(machine.state(PROJECT), LayerState::Applied, "{text}");
        machine.write(file, "2");
        assert!(matches!(machine.state(PROJECT), LayerState::Changed(what) if what.contains(file)), "{text}");
    }
}

#[test]
fn r7_what_trust_cannot_bind_is_listed() {
    let text = "[mcp_servers.local]\ncommand = '/bin/sh'\ncwd = '../out'\nargs = ['/dev/null']\n\
        env = { PYTHONPATH = '../lib:/nowhere' }\n";
    let machine = Machine::new().with(PROJECT, text).with("home/out/a", "").with("home/lib/a", "");
    let unbound = describe(&machine.places, &machine.path("home/repo")).unwrap().unbound;
    let want =
        [PathBuf::from("/bin/sh"), PathBuf::from("/dev/null"), machine.path("home/lib"), machine.path("home/out")];
    for path in &want {
        assert!(unbound.contains(path), "{path:?} is not in {unbound:?}");
    }
}

#[test]
fn r7_the_launch_of_a_trusted_projects_server_carries_what_was_trusted() {
    let machine = trusted_machine();
    let launch = |machine: &Machine| match &machine.load().servers[&name("local")].transport {
        Transport::Stdio(launch) => launch.clone(),
        other => panic!("{other:?}"),
    };
    let before = machine.load().servers[&name("local")].launch_digest;
    let bound = launch(&machine).bound;
    assert_eq!(bound[&machine.path("home/repo/server.js")], Some(Digest::of(b"1")));
    assert_eq!(first_changed(&bound), None);
    machine.write("home/repo/server.js", "2");
    assert!(first_changed(&bound).unwrap().contains("server.js` changed since it was trusted"));
    machine.trust(PROJECT, Grant::default());
    assert_eq!(first_changed(&launch(&machine).bound), None);
    assert_ne!(before, machine.load().servers[&name("local")].launch_digest, "trusting anew does not reach the server");
}

#[test]
fn r4_r7_trust_binds_and_shows_what_a_projects_plugins_would_run_and_read() {
    let machine = trusted_machine();
    let text = "[plugins.p.mcp_servers.docs]\ncommand = './docs.sh'\nenv = { TOKEN = '${DOCS_TOKEN}' }\n";
    machine.write(PROJECT, text);
    machine.write("home/repo/docs.sh", "1");
    let description = describe(&machine.places, &machine.path("home/repo")).unwrap();
    assert!(description.servers.iter().any(|(server, command)| server.as_str() == "docs" && command == "./docs.sh"));
    assert!(description.variables.contains("DOCS_TOKEN"));
    assert!(description.files.iter().any(|file| file.path == machine.path("home/repo/docs.sh")));
    machine.trust(PROJECT, Grant::default());
    let why = machine.load().servers[&name("docs")].enabled.clone().unwrap_err();
    assert!(why.contains("`DOCS_TOKEN`, which the trust in its project does not grant"), "{why}");
}

#[test]
fn r7_after_a_change_the_trusted_copy_restricts_and_defines_nothing() {
    let machine = trusted_machine();
    assert!(machine.load().servers[&name("local")].enabled.is_ok());
    machine.write(PROJECT, "approval_policy = 'never'\n");
    let resolved = machine.load();
    assert!(resolved.servers.is_empty());
    assert_eq!(resolved.policies.len(), 1);
    let project = resolved.postures.layers().iter().find(|p| p.layer.kind() == LayerKind::Project).unwrap();
    assert_eq!(project.policy, Some(ApprovalPolicy::Untrusted));
    std::fs::remove_file(machine.path(PROJECT)).unwrap();
    assert_eq!(machine.load().policies.len(), 1, "removing the file lifted its restrictions");
    let mut store = machine.store();
    assert!(store.distrust(&machine.path(PROJECT)));
    store.save().unwrap();
    assert!(machine.load().policies.is_empty());
}

#[test]
fn r7_a_trusted_component_is_pinned_to_what_was_trusted() {
    let machine = trusted_machine();
    let resolved = machine.load();
    assert_eq!(read_component(&resolved.policies[0], machine.places.user).unwrap().bytes, b"p");
    machine.write("home/repo/.portcullis/p.wasm", "swapped");
    let error = read_component(&resolved.policies[0], machine.places.user).unwrap_err();
    assert!(matches!(error, ComponentError::Digest { .. }), "{error}");
}

#[test]
fn r7_each_nested_project_is_trusted_by_itself() {
    let machine = Machine::new().with(PROJECT, "").with(NESTED, "");
    machine.trust(PROJECT, Grant::default());
    assert_eq!((machine.state(PROJECT), machine.state(NESTED)), (LayerState::Applied, LayerState::Untrusted));
}

#[test]
fn r7_the_trust_store_is_the_users_alone() {
    let machine = trusted_machine();
    let store = machine.places.trust_store().unwrap();
    assert_eq!(store.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::set_permissions(&store, PermissionsExt::from_mode(0o666)).unwrap();
    // R8: what it trusted may restrict, so nothing runs until it can be read.
    assert!(matches!(machine.state(PROJECT), LayerState::Broken(_)));
    let refusals = machine.load().refusals;
    assert!(
        refusals.iter().any(|refusal| refusal.text.contains("whether the project layer is trusted")),
        "{refusals:?}"
    );
}

#[test]
fn r8_without_the_trust_store_a_project_that_went_away_or_bad_may_have_restricted() {
    let refused = |change: fn(&Machine)| {
        let machine = trusted_machine();
        change(&machine);
        std::fs::write(machine.places.trust_store().unwrap(), "damaged").unwrap();
        let refusals = machine.load().refusals;
        assert_eq!(refusals.len(), 1, "said once, whatever the number of folders: {refusals:?}");
        assert!(refusals[0].text.contains("whether the project layer is trusted"), "{refusals:?}");
    };
    refused(|machine| std::fs::remove_file(machine.path(PROJECT)).unwrap());
    refused(|machine| machine.write(PROJECT, b"\xff"));
}

#[test]
fn r8_a_trusted_copy_that_cannot_be_read_any_more_refuses_until_the_project_is_trusted_again() {
    let machine = trusted_machine();
    let store = machine.places.trust_store().unwrap();
    let text = std::fs::read_to_string(&store).unwrap();
    let older = text.replace("approval_policy", "approval_custom");
    assert_ne!(text, older);
    std::fs::write(&store, older).unwrap();
    machine.write(PROJECT, "");
    let refusals = machine.load().refusals;
    assert!(
        refusals[0].text.contains("approval_custom") && refusals[0].text.contains("`portcullis trust`"),
        "{refusals:?}"
    );
    machine.trust(PROJECT, Grant::default());
    assert!(machine.load().refusals.is_empty());
}

#[test]
fn r3_a_project_may_allow_only_if_the_users_trust_says_so() {
    let machine = trusted_machine();
    assert!(!machine.load().policies[0].may_allow);
    machine.trust(PROJECT, Grant { may_allow: true, ..Grant::default() });
    assert!(machine.load().policies[0].may_allow);
}

#[test]
fn r4_a_projects_references_need_a_grant() {
    let text = "[mcp_servers.local]\ncommand = 'node'\nenv = { T = '${SECRET}' }\n";
    let machine = Machine::new().with(PROJECT, text);
    machine.trust(PROJECT, Grant::default());
    let why = machine.load().servers[&name("local")].enabled.clone().unwrap_err();
    assert!(why.contains("`SECRET`"), "{why}");
    machine.trust(PROJECT, Grant { variables: ["SECRET".to_owned()].into(), may_allow: false });
    assert_eq!(machine.load().servers[&name("local")].enabled, Ok(()));
}

#[test]
fn r8_an_absent_layer_is_no_failure_and_any_other_failure_refuses_all_calls() {
    assert!(Machine::new().load().refusals.is_empty());
    for layer in [SYSTEM, ORGANISATION, USER, MANAGED] {
        let resolved = Machine::new().with(layer, "not toml").load();
        assert_eq!(resolved.refusals.len(), 1, "{layer}");
        assert!(
            resolved.refusals[0].text.contains(".toml:1 (")
                && resolved.refusals[0].text.contains(" layer): is not TOML"),
            "{:?}",
            resolved.refusals
        );
        let machine = Machine::new();
        std::fs::create_dir_all(machine.path(layer)).unwrap();
        assert!(machine.load().refusals[0].text.contains("is not a regular file"));
    }
    let machine = Machine::new().with("etc", "a file where a folder should be");
    assert_eq!(machine.load().refusals.len(), 3);
    assert!(Machine::new().flag("nonsense=1").load().refusals[0].text.contains("session layer"));
}

#[test]
fn r8_a_file_that_was_named_must_exist() {
    let mut machine = Machine::new();
    machine.session.files.push("none.toml".into());
    machine.session.managed.push("none.toml".into());
    assert_eq!(machine.load().refusals.len(), 2);
}

#[test]
fn r8_require_managed_makes_absence_a_refusal() {
    let mut machine = Machine::new().with(USER, "require_managed = true\n").with("more.toml", "");
    machine.session.managed.push(machine.path("more.toml"));
    assert!(machine.load().refusals[0].text.contains("require_managed"), "a flag replaced the managed file");
    assert!(machine.with(MANAGED, "").load().refusals.is_empty());
}

#[test]
fn r8_one_bad_entry_fails_by_itself() {
    let text = format!("{FILES}[mcp_servers.bad]\ncomand = 'x'\n[[policies]]\nname = 'p'\n");
    let resolved = Machine::new().with(USER, &text).load();
    assert!(resolved.refusals.is_empty());
    assert_eq!(files(&resolved).enabled, Ok(()));
    let why = resolved.servers[&name("bad")].enabled.clone().unwrap_err();
    assert!(why.contains("did you mean `command`?"), "{why}");
    let broken = resolved.policies[0].broken.clone().unwrap();
    assert!(broken.contains("missing field `component`"), "{broken}");
    assert!(asked(&resolved.policies[0], files(&resolved)));
}

#[test]
fn l1_an_absent_allow_list_allows_all_and_an_empty_one_nothing() {
    let resolved = Machine::new().with(USER, FILES).load();
    assert!(files(&resolved).filter.allows(&tool("any")));
    let resolved = Machine::new().with(USER, &format!("{FILES}enabled_tools = []\n")).load();
    assert!(!files(&resolved).filter.allows(&tool("any")));
}

#[test]
fn l7_command_and_url_together_disable_the_server_with_the_reason() {
    let resolved = Machine::new().with(USER, &format!("{FILES}url = 'https://x'\n")).load();
    let why = files(&resolved).enabled.clone().unwrap_err();
    assert!(why.contains("url is not supported for stdio"), "{why}");
}

#[test]
fn an_http_server_is_asked_which_era_it_speaks_and_an_unknown_login_disables_it() {
    let text = "[mcp_servers.files]\nurl = 'https://x/mcp'\nhttp_headers = { A = 'hunter2' }\n";
    let server = |more: &str| files(&Machine::new().with(USER, &format!("{text}{more}")).load()).clone();
    assert_eq!((server("").enabled, server("").lifecycle), (Ok(()), Lifecycle::Auto));
    assert_eq!(server("lifecycle = 'legacy'\n").lifecycle, Lifecycle::Legacy);
    assert_ne!(server("lifecycle = 'legacy'\n").launch_digest, server("").launch_digest);
    assert_eq!(files(&Machine::new().with(USER, FILES).load()).lifecycle, Lifecycle::Legacy);
    let why = server("auth = 'chatgpt'\n").enabled.unwrap_err();
    assert!(why.contains("no `auth = \"chatgpt\"`"), "{why}");
}

#[test]
fn an_http_server_whose_table_cannot_work_is_disabled_alone_and_says_which_key_and_why() {
    let cases = [
        ("url = 'swordfish'", "url", "is no address"),
        ("url = 'ftp://x/swordfish'", "url", "must begin with `https://` or `http://`"),
        ("url = 'https://u:swordfish@x/'", "url", "must not hold a user or a password"),
        ("url = 'http://x/'\nbearer_token_env_var = 'T'", "url", "to `x` over plain `http`; use `https`"),
        ("url = 'http://x/'\nenv_http_headers = { A = 'T' }", "url", "to `x` over plain `http`; use `https`"),
        ("url = 'http://x/'\nhttp_headers = { A = 'swordfish' }", "url", "to `x` over plain `http`; use `https`"),
        ("url = '${U}'\nhttp_headers = { Accept = '${T}' }", "http_headers.Accept", "set by the protocol"),
        ("url = 'https://x/'\nenv_http_headers = { mcp-x = 'T' }", "env_http_headers.mcp-x", "remove it"),
        ("url = 'https://x/'\nhttp_headers = { 'a b' = '1' }", "http_headers.\"a b\"", "is no name of an HTTP header"),
        ("url = 'https://x/'\nhttp_headers = { A = \"swordfish\\n\" }", "http_headers.A", "cannot hold"),
        (
            "url = 'https://x/'\nbearer_token_env_var = 'T'\nhttp_headers = { authorization = '${T}' }",
            "bearer_token_env_var",
            "both a bearer token and an `Authorization` header; remove one",
        ),
    ];
    for (keys, key, part) in cases {
        let text = format!("[mcp_servers.good]\nurl = 'https://x/'\n[mcp_servers.files]\n{keys}\n");
        let resolved = Machine::new().with(USER, &text).load();
        let [problem] = resolved.problems.as_slice() else { panic!("{keys}: {}", all_problems(&resolved)) };
        assert_eq!(problem.key, format!("mcp_servers.files.{key}"));
        assert!(problem.line.is_some_and(|at| at > 3) && problem.message.contains(part), "{problem}");
        let why = files(&resolved).enabled.clone().unwrap_err();
        assert!(why.contains(part) && !format!("{why}{problem}").contains("swordfish"), "{why}");
        assert_eq!(resolved.servers[&name("good")].enabled, Ok(()), "{keys}");
    }
}

#[test]
fn what_only_the_environment_can_tell_of_an_http_server_is_no_mistake_of_its_table() {
    for keys in [
        "url = 'http://x/'",
        "url = '${U}://x/'\nbearer_token_env_var = 'T'",
        "url = 'http://${HOST}/'\nhttp_headers = { A = 'b' }",
        "url = 'http://127.0.0.1:1/'\nbearer_token_env_var = 'T'\nhttp_headers = { A = \"${X}\\n\" }",
    ] {
        let resolved = Machine::new().with(USER, &format!("[mcp_servers.files]\n{keys}\n")).load();
        assert_eq!((files(&resolved).enabled.clone(), all_problems(&resolved).as_str()), (Ok(()), ""), "{keys}");
    }
}

#[test]
fn r9_hints_relax_only_for_servers_of_layers_that_may_allow() {
    assert!(files(&Machine::new().with(USER, FILES).load()).may_relax);
    let machine = Machine::new().with(USER, FILES).flag("mcp_servers.files.trust_annotations=false");
    assert!(!files(&machine.load()).may_relax);
    let session =
        Machine::new().flag("mcp_servers.files.command='npx'").flag("mcp_servers.files.trust_annotations=true");
    assert!(!files(&session.load()).may_relax);
}

#[test]
fn r3_a_servers_tools_may_take_files_only_where_its_layer_may_allow() {
    let text = "[mcp_servers.files]\ncommand = 'npx'\nfile_parameters = true\n";
    assert!(files(&Machine::new().with(USER, text).load()).file_parameters);
    let session = Machine::new().flag("mcp_servers.files.command='npx'").flag("mcp_servers.files.file_parameters=true");
    assert!(!files(&session.load()).file_parameters);
    let project = Machine::new().with(PROJECT, text);
    project.trust(PROJECT, Grant::default());
    assert!(!files(&project.load()).file_parameters);
    project.trust(PROJECT, Grant { may_allow: true, ..Grant::default() });
    assert!(files(&project.load()).file_parameters);
    let other = Machine::new().with(USER, FILES).flag("mcp_servers.files.file_parameters=true");
    assert!(!files(&other.load()).file_parameters, "a less trusted layer widens");
}

#[test]
fn r3_what_a_server_answers_pollutes_memory_unless_a_layer_that_may_allow_says_otherwise() {
    let text = "[mcp_servers.files]\ncommand = 'npx'\npollutes_memory = false\n";
    assert!(files(&Machine::new().with(USER, FILES).load()).pollutes_memory, "by default");
    assert!(!files(&Machine::new().with(USER, text).load()).pollutes_memory);
    let session =
        Machine::new().flag("mcp_servers.files.command='npx'").flag("mcp_servers.files.pollutes_memory=false");
    assert!(files(&session.load()).pollutes_memory);
    let other = Machine::new().with(USER, FILES).flag("mcp_servers.files.pollutes_memory=false");
    assert!(files(&other.load()).pollutes_memory, "a less trusted layer widens");
    let stricter = Machine::new().with(USER, text).flag("mcp_servers.files.pollutes_memory=true");
    assert!(files(&stricter.load()).pollutes_memory, "any layer tightens");
}

#[test]
fn secrets_are_in_no_output() {
    let text = "[mcp_servers.files]\ncommand = 'npx'\nenv = { TOKEN = 'hunter2' }\n[mcp_servers.web]\nurl = 'https://x'\nhttp_headers = { K = 'hunter2' }\n";
    let machine = Machine::new().with(USER, text).with(PROJECT, text);
    let resolved = machine.load();
    let shown = show::effective(&resolved);
    assert!(shown.iter().any(|s| s.key == "mcp_servers.files.env.TOKEN" && s.value == "<set>" && s.line == Some(3)));
    let description = describe(&machine.places, &machine.path("home/repo")).unwrap();
    let said = format!("{resolved:?}{shown:?}{}{description:?}", all_problems(&resolved));
    assert!(!said.contains("hunter2"));
}

#[test]
fn the_childs_environment_is_what_is_configured_and_nothing_else() {
    let text =
        "[mcp_servers.files]\ncommand = 'npx'\nargs = ['${A}']\nenv = { T = 'x${A}' }\nenv_vars = ['B', 'UNSET']\n";
    let lookup = |name: &str| ["A", "B", "HOME", "OTHER"].contains(&name).then(|| name.to_lowercase());
    let resolved = Machine::new().with(USER, text).load();
    let Transport::Stdio(launch) = &files(&resolved).transport else { panic!() };
    let environment: Vec<_> = launch.environment(&lookup).unwrap().into_iter().collect();
    let want = [("B", "b"), ("HOME", "home"), ("T", "xa")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    assert_eq!(environment, want);
    assert_eq!(launch.arguments(&lookup).unwrap(), ["a"]);
    assert!(launch.arguments(&|_| None).is_err());
}

#[test]
fn a_missing_command_is_named_and_disables_nothing_else() {
    let resolved = Machine::new().with(USER, &format!("{FILES}[mcp_servers.gone]\ncommand = 'no-such'\n")).load();
    let Transport::Stdio(launch) = &resolved.servers[&name("gone")].transport else { panic!() };
    assert_eq!(launch.executable, Err("the command `no-such` is not on PATH".to_owned()));
    assert!(matches!(&files(&resolved).transport, Transport::Stdio(l) if l.executable.is_ok()));
}

fn component_error(prepare: impl Fn(&Path)) -> String {
    let machine = Machine::new().with(USER, "[[policies]]\nname = 'p'\ncomponent = 'sub/p.wasm'\n");
    let folder = machine.path("home/.config/portcullis/sub");
    std::fs::create_dir_all(&folder).unwrap();
    prepare(&folder);
    let error = read_component(&machine.load().policies[0], machine.places.user).unwrap_err();
    format!("{error}: {:?}", std::error::Error::source(&error).map(ToString::to_string))
}

#[test]
fn a_component_is_a_regular_file_inside_its_layers_folder_that_others_cannot_write() {
    assert!(component_error(|_| {}).contains("does not exist"));
    let outside = component_error(|folder| std::os::unix::fs::symlink("/etc/hostname", folder.join("p.wasm")).unwrap());
    assert!(outside.contains("cannot be read"), "{outside}");
    let folder = component_error(|folder| std::fs::create_dir(folder.join("p.wasm")).unwrap());
    assert!(folder.contains("not a regular file"), "{folder}");
    let writable = component_error(|folder| {
        std::fs::write(folder.join("p.wasm"), "x").unwrap();
        std::fs::set_permissions(folder.join("p.wasm"), PermissionsExt::from_mode(0o666)).unwrap();
    });
    assert!(writable.contains("R6"), "{writable}");
}

#[test]
fn a_component_with_another_digest_is_refused_with_both() {
    let text = format!("[[policies]]\nname = 'p'\ncomponent = 'p.wasm'\nsha256 = '{}'\n", Digest::of(b"good"));
    let machine = Machine::new().with(USER, &text).with("home/.config/portcullis/p.wasm", "bad");
    let error = read_component(&machine.load().policies[0], machine.places.user).unwrap_err().to_string();
    assert!(error.contains(&Digest::of(b"bad").to_string()) && error.contains(&Digest::of(b"good").to_string()));
}

#[test]
fn the_digest_of_the_view_changes_with_any_layer() {
    let machine = Machine::new().with(USER, FILES);
    let before = machine.load();
    assert_eq!(before.digest, machine.load().digest);
    let after = machine.with(SYSTEM, "").load();
    assert_ne!(before.digest, after.digest);
    assert_eq!(files(&before).digest, files(&after).digest);
}

/// A table that a layer may have for a server it does not define.
fn partial() -> impl Strategy<Value = String> {
    let tools = || prop::option::of(prop::collection::vec(prop::sample::select(vec!["a", "b", "c"]), 0..3));
    let number = || prop::option::of(1u32..100);
    (prop::option::of(any::<bool>()), tools(), tools(), number(), number(), prop::option::of(any::<bool>())).prop_map(
        |(enabled, allow, deny, timeout, concurrency, trust)| {
            let mut text = "[mcp_servers.files]\n".to_owned();
            let mut put = |key: &str, value: Option<String>| {
                if let Some(value) = value {
                    text.push_str(&format!("{key} = {value}\n"));
                }
            };
            put("enabled", enabled.map(|v| v.to_string()));
            put("enabled_tools", allow.map(|v| format!("{v:?}")));
            put("disabled_tools", deny.map(|v| format!("{v:?}")));
            put("tool_timeout_sec", timeout.map(|v| v.to_string()));
            put("concurrency", concurrency.map(|v| v.to_string()));
            put("trust_annotations", trust.map(|v| v.to_string()));
            put("args", Some("['evil']".to_owned()));
            text
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn r2_adding_a_less_trusted_layer_never_loosens_a_server(first in partial(), second in partial()) {
        let mut machine = Machine::new().with(SYSTEM, FILES).with(USER, &first).with("extra.toml", &second);
        let before = files(&machine.load()).clone();
        machine.session.files.push(machine.path("extra.toml"));
        let after = files(&machine.load()).clone();
        prop_assert_eq!(&before.transport, &after.transport);
        prop_assert!(before.enabled.is_ok() || after.enabled.is_err());
        prop_assert!(after.tool_timeout <= before.tool_timeout && after.concurrency <= before.concurrency);
        prop_assert!(before.may_relax || !after.may_relax);
        for name in ["a", "b", "c", "d"].map(tool) {
            prop_assert!(before.filter.allows(&name) || !after.filter.allows(&name));
        }
    }
}
