//! Hooks in layers: whose they are, what they run, and what becomes of one that cannot be read or run.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use portcullis::adapters::wasm::Engine;
use portcullis::config::hooks::HookEntry;
use portcullis::config::trust::{Grant, describe};
use portcullis::config::{LayerState, Places, Resolved, SessionSources, load, show};
use portcullis::host::entries;
use portcullis::host::reload::Reloader;
use portcullis::model::digest::Digest;
use portcullis::model::hook::{HookEvent, HookExit, HookFailureMeans, HookFaultCode};
use portcullis::model::hook_output::{Before, Permission, after, before, permission};
use portcullis::model::item::Status;
use portcullis::model::layer::LayerKind;
use portcullis::model::outcome::Code;
use portcullis::ports::approval::PolicySet;
use portcullis::ports::hook::BoundHook;

use crate::fakes::bench::{Bench, failure};
use crate::fakes::policy::Policies;
use crate::layers::{MANAGED, Machine, ORGANISATION, PROJECT, SYSTEM, USER};

const BIN: &str = "bin/node";

/// A `PreToolUse` hook with this command, and more keys of it.
fn pre(command: &str, more: &str) -> String {
    hook("PreToolUse", command, more)
}

fn hook(event: &str, command: &str, more: &str) -> String {
    format!("[[hooks.{event}]]\n[[hooks.{event}.hooks]]\ntype = 'command'\ncommand = '{command}'\n{more}\n")
}

impl Machine {
    fn program(&self, path: &str, text: &str) {
        self.write(path, text);
        self.mode(path, 0o755);
    }

    fn user(text: &str) -> Self {
        Self::new().with(USER, text)
    }

    fn set(&self) -> PolicySet {
        set(&self.load())
    }
}

fn set(resolved: &Resolved) -> PolicySet {
    entries::policies(resolved, rustix::process::getuid().as_raw(), &Engine::on_demand().unwrap())
}

fn named(resolved: &Resolved) -> Vec<String> {
    resolved.hooks.iter().map(|hook| format!("{}/{}", hook.layer, hook.name)).collect()
}

/// The only hook.
fn only(resolved: &Resolved) -> &HookEntry {
    let [hook] = resolved.hooks.as_slice() else { panic!("{:?}", resolved.hooks) };
    hook
}

fn why(hook: &HookEntry) -> &str {
    hook.program.as_ref().err().map_or("it can be run", String::as_str)
}

fn problems(resolved: &Resolved) -> String {
    resolved.problems.iter().map(|problem| format!("{problem}\n")).collect()
}

/// What a call of `files/write` comes to under the hooks of this set.
async fn call(set: PolicySet) -> portcullis::pipeline::Finished {
    let policies = set.hooks.into_iter().fold(Policies::open(&["files"]), Policies::hook);
    Bench::new(&policies).await.write().await
}

#[test]
fn r1_hooks_of_all_layers_stand_side_by_side_most_trusted_first_and_in_file_order() {
    let two = format!("{}{}", pre("node a", ""), pre("node b", "name = 'second'"));
    let machine = Machine::user(&two)
        .with(MANAGED, &pre("node m", ""))
        .with(ORGANISATION, &pre("node o", ""))
        .flag("hooks.PreToolUse=[{hooks=[{type='command',command='node s'}]}]");
    let want = [
        "managed/PreToolUse.1.1",
        "organisation/PreToolUse.1.1",
        "user/PreToolUse.1.1",
        "user/second",
        "session/PreToolUse.1.1",
    ];
    let resolved = machine.load();
    assert_eq!(named(&resolved), want, "{}", problems(&resolved));
    let set = set(&resolved);
    assert_eq!(set.hooks.iter().map(|hook| hook.source.to_string()).collect::<Vec<_>>(), want);
    assert!(set.hooks.iter().all(|hook| hook.program.is_ok() && hook.source.digest.is_some()));
}

#[test]
fn r3_an_allow_counts_where_its_layer_may_allow() {
    let text = hook("PermissionRequest", "node", "");
    let machine = Machine::user(&text)
        .with(MANAGED, &text)
        .with(ORGANISATION, &text)
        .with(SYSTEM, &text)
        .with(PROJECT, &text)
        .flag("hooks.PermissionRequest=[{hooks=[{type='command',command='node'}]}]");
    let may = |machine: &Machine| -> Vec<_> {
        machine.set().hooks.iter().map(|hook| (hook.source.layer.kind(), hook.may_allow)).collect()
    };
    use LayerKind::{Managed, Organisation, Project, Session, System, User};
    let trusted = [(Managed, true), (System, true), (Organisation, true), (User, true), (Session, false)];
    assert_eq!(may(&machine), trusted);
    machine.trust(PROJECT, Grant::default());
    assert_eq!(may(&machine).last(), Some(&(Project, false)));
    machine.trust(PROJECT, Grant { may_allow: true, ..Grant::default() });
    assert_eq!(may(&machine).last(), Some(&(Project, true)));
    machine.write(MANAGED, format!("requirements.may_allow = ['managed', 'system']\n{text}"));
    let counts: Vec<_> = may(&machine).into_iter().filter(|(_, may)| *may).map(|(kind, _)| kind).collect();
    assert_eq!(counts, [Managed, System]);
}

fn project() -> Machine {
    let machine = Machine::new().with(PROJECT, &pre("hooks/run checks/rules.js --deep", ""));
    machine.program("home/repo/.portcullis/hooks/run", "#!/bin/sh\n");
    machine.write("home/repo/checks/rules.js", "rules");
    machine
}

#[test]
fn r7_a_project_has_hooks_once_it_is_trusted_with_what_they_run() {
    let machine = project();
    assert!(machine.load().hooks.is_empty());
    let description = describe(&machine.places, &machine.path("home/repo")).unwrap();
    assert_eq!(
        description.hooks,
        [("PreToolUse.1.1".to_owned(), "hooks/run checks/rules.js --deep".to_owned())],
        "the person sees what would run"
    );
    let files: Vec<PathBuf> = description.files.iter().map(|file| file.path.clone()).collect();
    let program = machine.path("home/repo/.portcullis/hooks/run");
    let script = machine.path("home/repo/checks/rules.js");
    assert_eq!(files, [program.clone(), script.clone()]);
    machine.trust(PROJECT, Grant::default());
    let resolved = machine.load();
    let hook = only(&resolved);
    let file = hook.program.as_ref().unwrap();
    assert_eq!((&file.path, file.digest), (&program, Some(Digest::of(b"#!/bin/sh\n"))));
    assert_eq!(file.bound[&script], Some(Digest::of(b"rules")), "compared again before each run");
    assert_eq!(hook.cwd, machine.path("home/repo"), "where its arguments are what was bound");
}

#[tokio::test]
async fn r7_the_hooks_of_a_changed_project_stop_and_still_block() {
    for changed in ["home/repo/checks/rules.js", "home/repo/.portcullis/hooks/run", PROJECT] {
        let machine = project();
        machine.trust(PROJECT, Grant { may_allow: true, ..Grant::default() });
        machine.program(changed, "# other");
        assert!(matches!(machine.state(PROJECT), LayerState::Changed(_)), "{changed}");
        let resolved = machine.load();
        let hook = only(&resolved);
        assert!(why(hook).contains("portcullis trust"), "{}", why(hook));
        assert!(!hook.may_allow);
        assert!(problems(&resolved).contains("hooks.PreToolUse[0].hooks[0]"), "{}", problems(&resolved));
        assert_eq!(failure(&call(set(&resolved)).await).code, Code::HookFailed);
    }
}

#[test]
fn r7_a_name_on_path_that_leads_into_the_project_is_bound_by_nobody() {
    let mut machine = Machine::new().with(PROJECT, &pre("check", ""));
    machine.program("home/repo/bin/check", "#!/bin/sh\n");
    machine.places.path = Some(machine.path("home/repo/bin").into_os_string());
    machine.trust(PROJECT, Grant::default());
    let resolved = machine.load();
    assert!(why(only(&resolved)).contains("not bound by its trust"), "{}", why(only(&resolved)));
}

#[test]
fn r7_a_program_is_relative_to_its_layers_folder_or_on_path_or_whole() {
    let machine = Machine::user("");
    machine.program("home/.config/portcullis/hooks/own", "#!/bin/sh\n");
    machine.program("elsewhere/tool", "#!/bin/sh\n");
    let whole = machine.path("elsewhere/tool").display().to_string();
    for (command, program) in [
        ("hooks/own a", "home/.config/portcullis/hooks/own"),
        ("./hooks/../hooks/own", "home/.config/portcullis/hooks/own"),
        ("node a", BIN),
        (whole.as_str(), "elsewhere/tool"),
    ] {
        machine.write(USER, pre(command, ""));
        let resolved = machine.load();
        let hook = only(&resolved);
        let file = hook.program.as_ref().unwrap_or_else(|why| panic!("{command}: {why}"));
        assert_eq!(file.path, machine.path(program), "{command}");
        assert_eq!(file.bound.keys().collect::<Vec<_>>(), [&file.path], "compared again before each run");
        assert_eq!(hook.cwd, machine.path("home/repo/sub"), "ours");
    }
}

/// What is wrong with a file, the key that is named, and a part of the message.
const BROKEN: [(&str, &str, &str); 14] = [
    ("command = \"check 'a\"", "hooks[0].command", "nothing closes"),
    ("command = 'check | tee'", "hooks[0].command", "no shell"),
    ("command = ''", "hooks[0].command", "names no program"),
    ("command = 7", "hooks[0].command", "a text or a list of words"),
    ("command = 'no-such-program'", "hooks[0].command", "is not on PATH"),
    ("command = './nowhere'", "hooks[0].command", "is not an executable file"),
    ("timout = 3\ncommand = 'node'", "hooks[0].timout", "did you mean `timeout`?"),
    ("timeout = 0\ncommand = 'node'", "hooks[0].timeout", "between 1 and 3600"),
    ("timeout = 3601\ncommand = 'node'", "hooks[0].timeout", "between 1 and 3600"),
    ("name = 'a b'\ncommand = 'node'", "hooks[0].name", "must have 1 to 64"),
    ("on_failure = 'ask'\ncommand = 'node'", "hooks[0].on_failure", "unknown variant"),
    ("name = 'a'", "hooks[0]", "missing field `command`"),
    ("command = ['node', \"a\\u0000b\"]", "hooks[0].command", "NUL"),
    ("command = []", "hooks[0].command", "names no program"),
];

#[tokio::test]
async fn r8_a_broken_hook_blocks_by_itself_and_says_where() {
    for (text, key, message) in BROKEN {
        let entry =
            format!("[[hooks.PreToolUse]]\nmatcher = 'mcp__files__write'\n[[hooks.PreToolUse.hooks]]\n{text}\n");
        let entry = entry.replacen(".hooks]]\n", ".hooks]]\ntype = 'command'\n", 1);
        let machine = Machine::user(&format!("gateway.name_limit = 40\n{entry}{}", pre("node", "name = 'other'")));
        let resolved = machine.load();
        assert!(resolved.refusals.is_empty(), "{text}: {:?}", resolved.refusals);
        assert_eq!(resolved.gateway.name_limit.value, 40, "{text}: the rest of the layer stands");
        let [problem] = resolved.problems.as_slice() else { panic!("{text}: {}", problems(&resolved)) };
        assert_eq!(problem.key, format!("hooks.PreToolUse[0].{key}"), "{text}");
        assert!(problem.line.is_some_and(|line| line >= 4), "{text}: {problem}");
        assert_eq!(problem.file, Some(machine.path(USER)), "{text}");
        assert!(problem.to_string().contains(message), "{text}: {problem}");
        let set = set(&resolved);
        let [broken, other] = set.hooks.as_slice() else { panic!("{text}: {:?}", set.hooks) };
        let fault = broken.program.as_ref().err().unwrap();
        assert_eq!(fault.code, HookFaultCode::Missing);
        assert!(fault.detail.contains(&problem.key), "{text}: {fault}");
        assert!(broken.matches.matches("mcp__files__write") && !broken.matches.matches("mcp__mail__send"), "{text}");
        assert!(other.program.is_ok(), "{text}");
        let alone = PolicySet { hooks: vec![broken.clone()], ..set.clone() };
        let finished = call(alone).await;
        assert_eq!(failure(&finished).code, Code::HookFailed, "{text}");
        assert_eq!(failure(&finished).origin.as_ref().map(|origin| origin.layer.kind()), Some(LayerKind::User));
    }
}

#[tokio::test]
async fn r8_a_matcher_that_cannot_be_read_matches_everything() {
    for matcher in ["'mcp__('", "7", "'(\\w{1000}){1000}'"] {
        let text = pre("node", "").replacen("]]\n", &format!("]]\nmatcher = {matcher}\n"), 1);
        let resolved = Machine::user(&text).load();
        assert!(problems(&resolved).contains("hooks.PreToolUse[0].matcher"), "{}", problems(&resolved));
        let set = set(&resolved);
        assert!(set.hooks[0].matches.matches("mcp__any__thing"), "{matcher}");
        assert_eq!(failure(&call(set).await).code, Code::HookFailed, "{matcher}");
    }
}

#[test]
fn r8_a_mistake_in_a_group_is_one_of_each_of_its_hooks() {
    let two = "[[hooks.PreToolUse.hooks]]\ntype = 'command'\ncommand = 'node'\n";
    let group = format!("[[hooks.PreToolUse]]\nmatchr = 'a'\n{two}{two}");
    let machine = Machine::user(&format!("{group}{}", pre("node", "")));
    let resolved = machine.load();
    assert!(problems(&resolved).contains("did you mean `matcher`?"), "{}", problems(&resolved));
    let broken: Vec<bool> = resolved.hooks.iter().map(|hook| hook.program.is_err()).collect();
    assert_eq!(broken, [true, true, false]);
    for empty in ["[[hooks.PreToolUse]]\n", "[[hooks.PreToolUse]]\nhooks = []\n", "hooks.PreToolUse = [7]\n"] {
        machine.write(USER, empty);
        let resolved = machine.load();
        assert!(resolved.refusals.is_empty(), "{:?}", resolved.refusals);
        let hook = only(&resolved);
        assert_eq!((hook.name.as_str(), hook.program.is_err()), ("PreToolUse.1", true), "{empty}");
    }
}

#[test]
fn r8_an_event_that_nobody_knows_is_a_mistake_of_the_whole_layer() {
    for (text, message) in [
        (pre("node", "").replace("PreToolUse", "PreToolUsed"), "did you mean `PreToolUse`?"),
        ("[hooks.PreToolUse]\nmatcher = 'a'\n".to_owned(), "[[hooks.PreToolUse]]"),
        ("hooks = 7\n".to_owned(), "[[hooks.PreToolUse]]"),
        ("hook = 7\n".to_owned(), "did you mean `hooks`?"),
    ] {
        let resolved = Machine::user(&text).load();
        assert_eq!(resolved.refusals.len(), 1, "{text}");
        assert!(problems(&resolved).contains(message), "{text}: {}", problems(&resolved));
    }
}

#[tokio::test]
async fn a_failure_may_mean_that_the_call_goes_on_and_only_before_a_call() {
    let missing = || pre("no-such-program", "on_failure = 'continue'");
    let finished = call(Machine::user(&missing()).set()).await;
    assert_eq!(finished.item.status, Status::Completed);
    // What cannot be read does not say so.
    let broken = pre("node", "on_failure = 'continue'\ntimeout = 0");
    assert_eq!(failure(&call(Machine::user(&broken).set()).await).code, Code::HookFailed);
    for event in ["PermissionRequest", "PostToolUse"] {
        let resolved = Machine::user(&hook(event, "node", "on_failure = 'continue'")).load();
        assert!(problems(&resolved).contains("is for PreToolUse"), "{}", problems(&resolved));
        assert!(only(&resolved).program.is_err());
    }
    // A requirement can take it back.
    let machine = Machine::user(&missing()).with(ORGANISATION, "requirements.on_failure = 'deny'\n");
    assert_eq!(only(&machine.load()).on_failure, HookFailureMeans::Block);
}

#[test]
fn r1_hooks_that_a_requirement_forbids_stay_in_their_places() {
    let machine =
        Machine::user(&pre("node", "")).with(ORGANISATION, &format!("requirements.hooks = false\n{}", pre("node", "")));
    let resolved = machine.load();
    let [organisations, users] = resolved.hooks.as_slice() else { panic!("{:?}", resolved.hooks) };
    assert!(organisations.program.is_ok(), "its own are not less trusted");
    assert!(why(users).contains("`requirements.hooks` of the organisation layer"), "{}", why(users));
    assert!(problems(&resolved).contains("hooks.PreToolUse[0].hooks[0]"));
}

#[test]
fn a_hook_is_named_by_its_layer_or_by_its_place_and_no_name_stands_twice() {
    let text = format!("{}{}{}", pre("node", ""), pre("node", "name = 'guard'"), hook("PostToolUse", "node", ""));
    let resolved = Machine::user(&text).load();
    assert_eq!(named(&resolved), ["user/PreToolUse.1.1", "user/guard", "user/PostToolUse.1.1"]);
    let twice = format!("{}{}", pre("node", "name = 'guard'"), hook("PostToolUse", "node", "name = 'guard'"));
    let resolved = Machine::user(&twice).load();
    let [first, second] = resolved.hooks.as_slice() else { panic!("{:?}", resolved.hooks) };
    assert!(first.program.is_ok() && second.program.is_err());
    assert_ne!(first.name, second.name);
    assert!(why(second).contains("used twice"), "{}", why(second));
}

#[test]
fn what_a_hook_says_of_itself_is_taken_over() {
    let text = "[[hooks.PermissionRequest]]\nmatcher = 'mcp__a|mcp__b'\n[[hooks.PermissionRequest.hooks]]\n\
                type = 'command'\ncommand = ['node', 'a b', '|']\ntimeout = 5\n";
    let resolved = Machine::user(text).load();
    let hook = only(&resolved);
    assert_eq!((hook.event, hook.timeout), (HookEvent::PermissionRequest, Duration::from_secs(5)));
    assert_eq!(hook.command, ["node", "a b", "|"]);
    assert!(hook.matches.matches("mcp__b") && !hook.matches.matches("mcp__bc"));
    let plain = Machine::user(&pre("node", "")).load();
    assert_eq!(only(&plain).timeout, Duration::from_secs(600));
    let shown = show::effective(&resolved);
    let line = |key: &str| {
        let key = format!("hooks.PermissionRequest.PermissionRequest.1.1.{key}");
        let found = shown.iter().find(|value| value.key == key).unwrap_or_else(|| panic!("{key}: {shown:?}"));
        (found.value.clone(), found.line)
    };
    assert_eq!(line("matcher"), ("\"mcp__a|mcp__b\"".to_owned(), Some(2)));
    assert_eq!(line("timeout"), ("5".to_owned(), Some(6)));
    assert!(line("program").0.contains("bin/node"));
    assert_eq!(line("may_allow").0, "true");
}

#[test]
fn an_embedders_layer_has_hooks_too() {
    let folder = tempfile::tempdir().unwrap();
    let text = pre("./check", "");
    let sources = SessionSources::of_texts(&[(LayerKind::Managed, text.as_str())], folder.path());
    let resolved = load(&Places::nowhere(), &sources);
    assert!(why(only(&resolved)).contains("not an executable file"), "{}", why(only(&resolved)));
    assert_eq!(set(&resolved).hooks.len(), 1);
}

fn reloader(machine: &Machine) -> Reloader {
    Reloader::new(machine.places.clone(), SessionSources::default(), Engine::on_demand().unwrap())
}

fn programs(hooks: &[BoundHook]) -> Vec<bool> {
    hooks.iter().map(|hook| hook.program.is_ok()).collect()
}

#[test]
fn r8_a_layer_whose_hook_goes_bad_stays_as_it_was() {
    let machine = Machine::user(&pre("node", ""));
    let mut reloader = reloader(&machine);
    let now = Instant::now();
    assert!(reloader.load(now).kept.is_empty());
    for bad in [pre("node 'a", "").replace("'a'", "\"a\""), pre("no-such-program", "")] {
        machine.write(USER, bad);
        let loaded = reloader.load(now);
        assert_eq!(loaded.kept.len(), 1);
        assert_eq!(programs(&loaded.policies.hooks), [true], "{:?}", loaded.kept);
    }
    machine.write(USER, format!("{}{}", pre("node", ""), pre("node", "")));
    let loaded = reloader.load(now);
    assert_eq!((programs(&loaded.policies.hooks), loaded.kept.len()), (vec![true, true], 0));
}

#[test]
fn r19_a_program_that_changes_makes_another_policy_set_and_is_watched() {
    let machine = Machine::user(&pre("node", ""));
    let mut reloader = reloader(&machine);
    let first = reloader.load(Instant::now());
    assert!(reloader.read_from().contains(&machine.path(BIN)));
    assert_eq!(reloader.load(Instant::now()).policies.digest, first.policies.digest);
    machine.program(BIN, "#!/bin/sh\n# another\n");
    let second = reloader.load(Instant::now());
    assert_ne!(second.policies.digest, first.policies.digest);
    assert_ne!(second.policies.hooks[0].source.digest, first.policies.hooks[0].source.digest);
    // What is not there yet may come.
    machine.write(USER, pre("./later", ""));
    reloader.load(Instant::now());
    let now = reloader.load(Instant::now() + Duration::from_secs(2 * 60 * 60));
    assert_eq!(programs(&now.policies.hooks), [false]);
    assert!(reloader.read_from().contains(&machine.path("home/.config/portcullis/later")));
}

#[tokio::test]
async fn a_hook_of_a_layer_is_run_with_its_arguments_and_is_heard() {
    let machine = Machine::user(&pre("./guard \"not now\"", ""));
    machine.program("home/.config/portcullis/guard", "#!/bin/sh\ncat > /dev/null\necho \"$1\" >&2\nexit 2\n");
    let finished = call(machine.set()).await;
    let failed = failure(&finished);
    assert_eq!(failed.code, Code::HookBlocked);
    assert!(failed.message.contains("not now"), "{}", failed.message);
    // R7: another file than the one that was read is not run.
    let set = machine.set();
    machine.program("home/.config/portcullis/guard", "#!/bin/sh\nexit 0\n");
    let ended = set.hooks[0].program.as_ref().unwrap().run("{}".into()).await;
    assert_eq!(ended.unwrap_err().code, HookFaultCode::Missing);
    assert_eq!(failure(&call(set).await).code, Code::HookFailed);
}

/// The blocks of a page that are written in a language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    page.split(&fence).skip(1).filter_map(|rest| Some(rest.split_once("```")?.0.to_owned())).collect()
}

#[test]
fn the_page_about_hooks_shows_what_works() {
    let page = include_str!("../../docs/hooks.md");
    let machine = Machine::user(&blocks(page, "toml").concat());
    machine.program("home/.config/portcullis/hooks/no-secrets", "#!/bin/sh\n");
    let resolved = machine.load();
    assert_eq!(problems(&resolved), "");
    assert!(only(&resolved).program.is_ok() && only(&resolved).matches.matches("mcp__files__write_file"));
    let run = |script: &String, day: &str| {
        // The first example asks for the day.
        machine.program("examples/date", &format!("#!/bin/sh\necho {day}\n"));
        machine.program("examples/hook", script);
        let path = format!("{}:/usr/bin:/bin", machine.path("examples").display());
        let ended =
            Command::new(machine.path("examples/hook")).env("PATH", path).stdin(Stdio::null()).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        HookExit { code: ended.status.code().unwrap(), stdout: text(&ended.stdout), stderr: text(&ended.stderr) }
    };
    let scripts = blocks(page, "sh");
    let [pre, permit, post] = scripts.as_slice() else { panic!("{scripts:?}") };
    assert_eq!(before(&run(pre, "5")).unwrap().block.as_deref(), Some("no deploys on Fridays"));
    assert_eq!(before(&run(pre, "4")).unwrap(), Before::default());
    assert_eq!(permission(&run(permit, "5")).unwrap(), Some(Permission::Allow));
    assert_eq!(after(&run(post, "5")).unwrap().context.as_deref(), Some("A formatter ran; read the file again."));
}
