//! The commands as a script and a person see them: help, exit codes, what goes to which stream, and the demo's story.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::Value;

use crate::support::{PATIENCE, scripted_server};

/// A home, a working directory, and nothing of this machine's user.
pub(crate) struct Place(tempfile::TempDir);

/// What a command printed, and its exit code.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        for folder in ["work", "home", "config/portcullis", "state"] {
            fs::create_dir_all(place.path(folder)).unwrap();
        }
        place
    }

    /// A place whose user has the scripted server `s`, with these keys in its table, and these lines before it.
    pub(crate) fn with_server(keys: &str, before: &str) -> Self {
        let place = Self::new();
        let server = scripted_server();
        place.user(&format!("{before}\n[mcp_servers.s]\ncommand = {server:?}\n{keys}\n"));
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn user(&self, text: &str) {
        self.write("config/portcullis/config.toml", text);
    }

    /// Writes a file that only its owner may write, whatever the umask.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    fn command(&self, args: &[&str]) -> Command {
        // A session of its own: a developer's terminal is nobody to ask.
        let mut command = Command::new("setsid");
        command.arg("--wait").arg(env!("CARGO_BIN_EXE_portcullis")).args(args).current_dir(self.path("work"));
        for name in ["COLUMNS", "PORTCULLIS_LOG", "NO_COLOR", "CLICOLOR_FORCE"] {
            command.env_remove(name);
        }
        for (name, folder) in [("HOME", "home"), ("XDG_CONFIG_HOME", "config"), ("XDG_STATE_HOME", "state")] {
            command.env(name, self.path(folder));
        }
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        ran(&mut self.command(args))
    }
}

fn ran(command: &mut Command) -> Ran {
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

const APPROVE: &str = "default_tools_approval_mode = \"approve\"";

#[test]
fn every_command_has_a_help_with_an_example() {
    let place = Place::new();
    let commands: [&[&str]; 19] = [
        &["serve"],
        &["call"],
        &["tools"],
        &["explain"],
        &["demo"],
        &["login"],
        &["logout"],
        &["config", "show"],
        &["config", "check"],
        &["policy", "sign"],
        &["policy", "verify"],
        &["policy", "replay"],
        &["policy", "diff"],
        &["audit", "tail"],
        &["audit", "show"],
        &["audit", "verify"],
        &["audit", "key"],
        &["trust"],
        &[],
    ];
    let mut all = String::new();
    for command in commands {
        let ran = place.run(&[command, &["--help"]].concat());
        assert_eq!(ran.code, 0, "{command:?}: {}", ran.err);
        assert!(command.is_empty() || ran.out.contains("Example"), "no example in {}", ran.out);
        // The global options are the same everywhere: shown once, with the whole.
        let own = match ran.out.split_once("\nGlobal options:") {
            Some((own, global)) if !command.is_empty() => {
                let example = global.find("\nExample").map_or("", |at| &global[at..]);
                format!("{own}{example}")
            }
            _ => ran.out.clone(),
        };
        all.push_str(&format!("$ portcullis {} --help\n{own}\n", command.join(" ")));
    }
    insta::assert_snapshot!("help", all);
}

#[test]
fn usage_exits_2() {
    let place = Place::new();
    let cases: [&[&str]; 6] = [
        &["nonsense"],
        &["call"],
        &["call", "no-slash"],
        &["call", "s/x", "@no-such-file"],
        &["demo", "--log-arguments"],
        &["tools", "-q", "-v"],
    ];
    for args in cases {
        let ran = place.run(args);
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.err);
        assert!(ran.out.is_empty() && ran.err.contains("error"), "{args:?}: {}{}", ran.out, ran.err);
    }
}

#[test]
fn trouble_says_what_why_and_what_to_do() {
    let ran = Place::new().run(&["call", "no-slash"]);
    insta::assert_snapshot!(ran.err, @r"
    error: `no-slash` is not of the form SERVER/TOOL
      hint: `portcullis tools` lists servers and tools by their raw names
    ");
    let ran = Place::new().run(&["call", "s/x", "@no-such-file"]);
    insta::assert_snapshot!(ran.err, @r"
    error: cannot read `no-such-file`
      because: No such file or directory (os error 2)
    ");
    let ran = Place::new().run(&["call", "no-slash", "--format", "json"]);
    assert_eq!(json(&ran.err)["exit"], 2);
}

#[test]
fn a_call_that_is_answered_exits_0_and_prints_what_a_model_reads() {
    let place = Place::with_server(APPROVE, "");
    let ran = place.run(&["call", "s/add", r#"{"a":2,"b":3}"#]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let (header, body) = ran.out.split_once("Output:\n").unwrap();
    assert!(header.starts_with("Wall time: "), "{header}");
    assert_eq!(body, "[{\"text\":\"5\",\"type\":\"text\"}]\n");
}

#[test]
fn arguments_come_from_stdin_or_a_file_too() {
    let place = Place::with_server(APPROVE, "");
    let ran1 = ran(place.command(&["call", "s/add", "-"]).write_stdin(r#"{"a":20,"b":3}"#));
    assert!(ran1.out.contains(r#""23""#), "{}{}", ran1.out, ran1.err);
    let file = place.write("arguments.json", r#"{"a":30,"b":3}"#);
    let ran2 = place.run(&["call", "s/add", &format!("@{}", file.display())]);
    assert!(ran2.out.contains(r#""33""#), "{}{}", ran2.out, ran2.err);
}

#[test]
fn bad_arguments_exit_2_and_are_named() {
    let place = Place::with_server(APPROVE, "");
    for (arguments, why) in [
        ("[1]", "must be a JSON object, got an array"),
        ("{\"a\":1,\"a\":2}", "occurs twice"),
        ("{", "not usable JSON"),
    ] {
        let ran = place.run(&["call", "s/add", arguments]);
        assert_eq!(ran.code, 2, "{arguments}: {}", ran.out);
        assert!(ran.out.contains(why), "{arguments}: {}", ran.out);
    }
}

#[test]
fn r20_without_a_terminal_an_ask_is_refused_with_exit_3_and_says_that_nobody_could_be_asked() {
    let place = Place::with_server("", "");
    let ran = place.run(&["call", "s/write"]);
    assert_eq!(ran.code, 3);
    assert!(ran.out.contains("needs approval and nobody could be asked"), "{}", ran.out);
    insta::assert_snapshot!(ran.err, @r"
    nobody-to-ask: stopped at approval by builtin/approval-baseline, rule may-destroy-or-reach-out
      because: builtin/approval-baseline: the tool says that it may destroy something
      hint: run it in a terminal, or let a layer allow it
    ");
}

#[test]
fn what_is_not_there_exits_4_and_says_why() {
    let server = "[mcp_servers.gone]\ncommand = \"no-such-program-here\"\n[mcp_servers.off]\ncommand = \"true\"\nenabled = false";
    let place = Place::new();
    place.user(server);
    for (tool, why) in [
        ("gone/x", "the server failed: could not start: the command `no-such-program-here` is not on PATH"),
        ("off/x", "the server is disabled: disabled by the user layer"),
        ("nosuch/x", "no such server is configured"),
    ] {
        let ran = place.run(&["call", tool]);
        assert_eq!(ran.code, 4, "{tool}: {}", ran.err);
        assert!(ran.err.contains(why), "{tool}: {}", ran.err);
        assert_eq!(place.run(&["explain", tool]).code, 4);
    }
}

#[test]
fn a_tools_own_error_exits_5_and_a_lost_call_1() {
    let place = Place::with_server(APPROVE, "");
    assert_eq!(place.run(&["call", "s/fail"]).code, 5);
    let lost = place.run(&["call", "s/die"]);
    assert_eq!(lost.code, 1);
    assert!(lost.err.contains("may have run"), "{}", lost.err);
}

#[test]
fn r40_an_interrupted_call_is_cancelled_completes_its_item_and_ends_its_server() {
    let place = Place::with_server(&format!("args = [\"--tag-of-an-interrupted-call\"]\n{APPROVE}"), "");
    let log = place.path("log.jsonl");
    let logged = || fs::read_to_string(&log).unwrap_or_default();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.args(["call", "s/hang", "--log"]).arg(&log).current_dir(place.path("work"));
    command.env("HOME", place.path("home")).env("XDG_CONFIG_HOME", place.path("config"));
    command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped());
    let child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let give_up = std::time::Instant::now() + PATIENCE;
    while !logged().contains("\"decision\"") {
        assert!(std::time::Instant::now() < give_up, "the call never started");
        std::thread::yield_now();
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let logged = logged();
    let last = json(logged.lines().rfind(|line| !line.contains("chain-close")).unwrap());
    assert_eq!((&last["type"], &last["outcome"]["failed"]["code"]), (&"completed".into(), &"cancelled".into()));
    let left = std::process::Command::new("pgrep").args(["-f", "tag-of-an-interrupted-call"]).output().unwrap();
    assert!(left.stdout.is_empty(), "its server still runs");
}

#[test]
fn a_state_that_cannot_be_used_ends_the_command_with_the_way_out_and_is_left_as_it_is() {
    let place = Place::with_server(APPROVE, "");
    assert_eq!(place.run(&["call", "s/add", r#"{"a":1}"#]).code, 0);
    let file = place.path("state/portcullis/state.db");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let rubbish = "no database at all".repeat(1000);
    fs::write(&file, &rubbish).unwrap();
    for command in [&["call", "s/add", "{}"][..], &["explain", "s/add", "{}"], &["tools"], &["serve"]] {
        let ran = place.run(command);
        assert_eq!(ran.code, 2, "{command:?}: {}", ran.err);
        assert!(ran.err.contains("state.db` is damaged: ") && ran.err.contains("move it away"), "{}", ran.err);
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), rubbish);
    fs::remove_file(&file).unwrap();
    assert_eq!(place.run(&["call", "s/add", r#"{"a":1}"#]).code, 0);
}

#[test]
fn a_call_in_json_has_outcome_result_item_and_decision() {
    let place = Place::with_server(APPROVE, "");
    let call = json(&place.run(&["call", "s/add", r#"{"a":1}"#, "--format", "json"]).out);
    assert_eq!(call["outcome"], "answered");
    assert_eq!(call["result"]["content"][0]["text"], "1");
    assert_eq!(call["item"]["status"], "completed");
    assert_eq!(call["decision"]["voices"][0]["verdict"]["allow"]["rule"], "mode-approve");
}

#[test]
fn the_log_file_has_items_and_decision_without_arguments_unless_asked() {
    let place = Place::with_server(APPROVE, "");
    let log = place.path("log.jsonl");
    let lines = |extra: &[&str]| {
        let call = ["call", "s/add", r#"{"a":4711}"#, "--log", log.to_str().unwrap()];
        assert_eq!(place.run(&[&call, extra].concat()).code, 0);
        let text = fs::read_to_string(&log).unwrap();
        fs::remove_file(&log).unwrap();
        text
    };
    let plain = lines(&[]);
    let types: Vec<String> = plain.lines().map(|line| json(line)["type"].to_string()).collect();
    let expected = ["chain-start", "started", "decision", "completed", "chain-close"];
    assert_eq!(types, expected.map(|name| format!("{name:?}")));
    assert!(!plain.contains("4711"), "{plain}");
    assert!(lines(&["--log-arguments"]).contains("4711"));
}

#[test]
fn r8_a_layer_that_cannot_be_read_refuses_calls_by_name() {
    let place = Place::with_server(APPROVE, "");
    let managed = place.write("managed.toml", "approval_policy = \"never");
    let ran = place.run(&["call", "s/add", "--managed", managed.to_str().unwrap()]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    assert!(ran.out.contains("refused by policy (managed/host, rule layer-unreadable)"), "{}", ran.out);
    assert!(ran.err.contains("the managed layer cannot be read") && ran.err.contains("managed.toml"), "{}", ran.err);
}

#[test]
fn r8_a_policy_that_cannot_be_loaded_refuses_what_it_matches_and_nothing_else() {
    let policy = "[[policies]]\nname = \"p\"\ncomponent = \"none.wasm\"\nmatch = { tools = [\"add\"] }";
    let place = Place::with_server(APPROVE, policy);
    let refused = place.run(&["call", "s/add"]);
    assert_eq!(refused.code, 3);
    assert!(refused.err.contains("component-failed: stopped at approval by user/p"), "{}", refused.err);
    assert_eq!(place.run(&["call", "s/echo"]).code, 0);
}

#[test]
fn an_unknown_key_is_named_with_the_one_that_was_meant() {
    let place = Place::new();
    let file = place.write("bad.toml", "\naproval_policy = \"never\"\n");
    let ran = place.run(&["config", "check", "--config", file.to_str().unwrap()]);
    assert_eq!(ran.code, 2);
    let flat = ran.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains("bad.toml:2 (session layer): `aproval_policy`"), "{flat}");
    assert!(flat.contains("did you mean `approval_policy`?"), "{flat}");
    assert_eq!(place.run(&["config", "check"]).code, 0);
}

#[test]
fn config_show_names_the_layer_and_the_file_of_every_value() {
    let place = Place::new();
    place.user("approval_policy = \"untrusted\"\n");
    let ran = place.run(&["config", "show", "-c", "approvals_reviewer=user"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let user = place.path("config/portcullis/config.toml");
    assert!(ran.out.contains(&format!("approval_policy = \"untrusted\"  # user {}:1", user.display())), "{}", ran.out);
    assert!(ran.out.contains("approvals_reviewer = \"user\"  # session"), "{}", ran.out);
    let shown = json(&place.run(&["config", "show", "--format", "json"]).out);
    assert!(shown["values"].as_array().unwrap().iter().any(|value| value["layer"] == "user"));
}

#[test]
fn r38_explain_says_who_decides_what_and_how_the_answers_fold() {
    let place = Place::with_server("", "");
    let ran = place.run(&["explain", "s/write"]);
    assert_eq!(ran.code, 0);
    let (costs, rest): (Vec<&str>, Vec<&str>) = ran.out.lines().partition(|line| line.starts_with("    cost"));
    let [cost] = costs.as_slice() else { panic!("{}", ran.out) };
    assert!(cost.contains(" fuel, ") && cost.ends_with(" µs") && !cost.contains(" 0 fuel"), "{cost}");
    let digest = portcullis::model::digest::Digest::of(portcullis::adapters::wasm::builtin::APPROVAL_BASELINE);
    let rest = rest.join("\n").replace(&digest.to_string(), "DIGEST");
    insta::assert_snapshot!(rest, @r"
    s/write would be asked about
    verdicts
      builtin/approval-baseline: ask, rule may-destroy-or-reach-out: the tool says
                                 that it may destroy something (may be remembered)
                                 (posture of builtin: mode auto, policy on-request,
                                 profile workspace)
        digest DIGEST
    fold
      1. baseline for the posture of builtin: ask by rule `may-destroy-or-reach-out`
      2. result: ask (1 standing)
    result
      Somebody would be asked, and could allow it once, for the session, until
      something changes.
      A reviewer could change the result: without an agreement the call would be
      refused.
    ");
    let never = place.run(&["explain", "s/write", "-c", "approval_policy=never", "--format", "json"]);
    assert_eq!(never.code, 3, "{}", never.out);
    assert_eq!(json(&never.out)["would"]["fail"]["code"], "never-asks");
    assert_eq!(json(&never.out)["reviewer_could_change"], false);
}

#[test]
fn tools_lists_what_is_there_and_what_is_not_and_why() {
    let place = Place::new();
    let server = scripted_server();
    place.user(&format!(
        "[mcp_servers.good]\ncommand = {server:?}\nenabled_tools = [\"echo\"]\n\
         [mcp_servers.bad]\ncommand = {server:?}\nargs = [\"--list\", \"bad-schema\"]\n\
         [mcp_servers.twice]\ncommand = {server:?}\nargs = [\"--list\", \"duplicate\"]\nenabled_tools = [\"none\"]\n\
         [mcp_servers.dead]\ncommand = {server:?}\nargs = [\"--exit\", \"3\", \"--stderr\", \"no licence\"]\n\
         [mcp_servers.off]\ncommand = \"true\"\nenabled = false\n"
    ));
    let ran = place.run(&["tools"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    insta::assert_snapshot!(ran.out, @r"
    bad ready
      good: bad__good (direct)
        because tool search is off
      unusable the `inputSchema` of tool `bad` is not an object
    dead failed
      because ended during start-up: exit status: 3; stderr: no licence
    good ready
      echo: good__echo (direct)
        because tool search is off
      add: absent: filtered by the user layer
      fail: absent: filtered by the user layer
      slow: absent: filtered by the user layer
      hang: absent: filtered by the user layer
      die: absent: filtered by the user layer
      write: absent: filtered by the user layer
    off disabled
      because disabled by the user layer
    twice ready
      twin: absent: filtered by the user layer
      other: absent: filtered by the user layer
    ");
    let responses = json(&place.run(&["tools", "--for", "responses", "--format", "json"]).out);
    let status = |name: &str| {
        let servers = responses["servers"].as_array().unwrap();
        servers.iter().find(|status| status["server"] == name).unwrap().clone()
    };
    let filtered = &status("good")["filtered"][0];
    let reason = "filtered by the user layer";
    let row = serde_json::json!({ "tool": "add", "exposure": "absent", "reason": reason, "layer": "user" });
    assert_eq!(*filtered, row);
    let traffic = |name: &str| status(name)["traffic"].clone();
    assert!(traffic("good")["received"].as_u64() > Some(100) && traffic("good")["sent"].as_u64() > Some(100));
    assert!(traffic("off").is_null(), "nothing was connected");
    let names = |tool: &Value| (tool["namespace"].to_string(), tool["name"].to_string(), tool["exposure"].to_string());
    let tools: Vec<_> = responses["tools"].as_array().unwrap().iter().map(names).collect();
    let row = |a: &str, b: &str| (format!("\"{a}\""), format!("\"{b}\""), "\"direct\"".to_owned());
    assert_eq!(tools, [row("mcp__bad", "good"), row("mcp__good", "echo")]);

    // A provider that takes no namespaces is given none of them (catalog-dispatch 1.4 rule 15).
    let flags = ["tools", "--for", "responses", "--no-namespaces", "--search", "--format", "json"];
    let without = json(&place.run(&flags).out);
    assert_eq!(without["request"]["tools"], serde_json::json!([]));
    let exposures: Vec<_> = without["tools"].as_array().unwrap().iter().map(|tool| &tool["exposure"]).collect();
    assert_eq!(exposures, ["code-mode-only", "code-mode-only"]);
    assert!(without["tools"][0]["reason"].as_str().unwrap().contains("takes no namespaces"));
    assert_eq!(place.run(&["tools", "--no-namespaces"]).code, 2);
}

#[test]
fn r20_trust_refuses_without_a_terminal_and_changes_nothing() {
    let place = Place::new();
    place.write("work/.portcullis/config.toml", "approval_policy = \"untrusted\"\n");
    let ran = place.run(&["trust"]);
    assert_eq!(ran.code, 3);
    assert!(ran.err.contains("needs a person at a terminal"), "{}", ran.err);
    assert_eq!(place.run(&["trust", "--list"]).out, "No project is trusted.\n");
    assert_eq!(place.run(&["trust", "--remove"]).code, 1);
}

#[test]
fn a_required_server_that_fails_ends_serve_with_exit_1() {
    let place = Place::new();
    place.user("[mcp_servers.x]\ncommand = \"no-such-program-here\"\nrequired = true\n");
    let ran = place.run(&["serve", "-q"]);
    assert_eq!(ran.code, 1);
    assert!(ran.out.is_empty());
    assert!(ran.err.contains("required MCP servers failed to initialize: x: could not start"), "{}", ran.err);
}

#[test]
fn serve_answers_on_stdout_alone_and_ends_with_its_input() {
    let place = Place::with_server(APPROVE, "");
    let input = concat!(
        r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#,
        "\n",
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        "\n",
        r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#,
        "\n",
    );
    let ran = ran(place.command(&["serve"]).write_stdin(input));
    assert_eq!(ran.code, 0, "{}", ran.err);
    let answers: Vec<Value> = ran.out.lines().map(json).filter(|message| message.get("id").is_some()).collect();
    assert_eq!(answers.len(), 2, "{}", ran.out);
    assert!(answers[1]["result"]["tools"].as_array().unwrap().iter().any(|tool| tool["name"] == "s__echo"));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let place = Place::new();
    let binary = env!("CARGO_BIN_EXE_portcullis");
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("{{ {binary} demo; echo $? >&2; }} | head -n 1")).current_dir(place.path("work"));
    let ran = ran(&mut command);
    assert_eq!((ran.out.lines().count(), ran.err.trim()), (1, "0"));
}

#[test]
fn colour_is_there_only_when_it_is_wanted() {
    let place = Place::new();
    let has_colour = |args: &[&str]| place.run(args).out.contains('\u{1b}');
    assert!(!has_colour(&["config", "show"]));
    assert!(has_colour(&["config", "show", "--color", "always"]));
    assert!(!ran(place.command(&["config", "show"]).env("NO_COLOR", "1")).out.contains('\u{1b}'));
}

fn redacted(text: &str) -> String {
    let line = |line: &str| match line.trim_start().strip_prefix("took") {
        Some(_) => "   took    [time]".to_owned(),
        None => line.to_owned(),
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_demo_tells_its_story_and_leaves_nothing_behind() {
    let place = Place::new();
    let temporary = place.path("tmp");
    fs::create_dir(&temporary).unwrap();
    let ran = ran(place.command(&["demo"]).env("TMPDIR", &temporary));
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert!(is_empty(&temporary), "the demo's folder is still there");
    insta::assert_snapshot!("demo", redacted(&ran.out));
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

#[test]
fn the_demo_in_json_is_a_line_a_call() {
    let ran = Place::new().run(&["demo", "--format", "json"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let calls: Vec<Value> = ran.out.lines().map(json).collect();
    let told = |call: &Value| {
        let text = |key: &str| call[key].as_str().unwrap_or("-").to_owned();
        format!("{} {} {} asked={} {}", text("tool"), text("verdict"), text("by"), call["asked"], text("outcome"))
    };
    assert!(calls.iter().all(|call| call["as_told"] == true), "{}", ran.out);
    insta::assert_snapshot!(calls.iter().map(told).collect::<Vec<_>>().join("\n"), @r"
    files/list_files allow builtin/approval-baseline read-only-hint asked=0 answered
    files/read_file allow organisation/office file-store-is-open asked=0 answered
    files/write_file ask builtin/approval-baseline may-destroy-or-reach-out asked=1 answered
    mail/send_mail ask organisation/office mail-needs-consent asked=1 answered
    mail/send_mail ask organisation/office mail-needs-consent asked=0 answered
    mail/send_mail deny managed/house-rules mail-stays-inside asked=0 denied
    vault/read_secret deny managed/house-rules root-key-is-sealed asked=0 denied
    vault/read_secret ask builtin/approval-baseline may-destroy-or-reach-out asked=1 declined
    files/delete_file deny organisation/broken asked=0 component-failed
    files/write_file not decided - asked=0 stale
    calendar/list_events not decided - asked=0 not-available
    files/read_file not decided - asked=0 invalid-arguments
    files/read_file allow organisation/office file-store-is-open asked=0 tool-error
    ");
}

#[test]
fn config_check_finds_components_and_commands_that_cannot_be_had() {
    let place = Place::new();
    place.write("config/portcullis/rubbish.wasm", "no component");
    place.user(
        "[[policies]]\nname = \"gone\"\ncomponent = \"gone.wasm\"\n\
         [[policies]]\nname = \"rubbish\"\ncomponent = \"rubbish.wasm\"\n\
         [mcp_servers.a]\ncommand = \"no-such-command-anywhere\"\n",
    );
    let ran = place.run(&["config", "check", "--format", "json"]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    let problems = json(&ran.out)["problems"].as_array().unwrap().clone();
    let keys: Vec<&str> = problems.iter().map(|problem| problem["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["policies.gone", "policies.rubbish", "mcp_servers.a"]);
    assert!(problems[2]["message"].as_str().unwrap().contains("no-such-command-anywhere"));
}

#[test]
fn config_check_and_tools_say_why_an_http_server_cannot_work() {
    let place = Place::new();
    place.user("[mcp_servers.web]\nurl = \"https://a.example/\"\nhttp_headers = { Host = \"b\" }\n");
    let ran = place.run(&["config", "check"]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    let tools = place.run(&["tools"]);
    for said in [ran.out + &ran.err, tools.out + &tools.err] {
        // Long lines are broken for people.
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains("the header `Host` is set by the protocol and cannot be configured"), "{said}");
        assert!(said.contains("mcp_servers.web.http_headers.Host"), "{said}");
    }
}

#[test]
fn tools_says_when_a_layer_cannot_be_read() {
    let place = Place::new();
    place.user("approval_polic = \"never\"\n");
    let ran = place.run(&["tools"]);
    assert_eq!(ran.code, 2, "{}", ran.out);
    assert!(ran.err.contains("approval_polic") && ran.out.is_empty(), "{}", ran.err);
}

#[test]
fn explain_and_call_agree_where_the_auto_reviewer_must() {
    let place = Place::with_server("trust_annotations = false", "approvals_reviewer = \"auto_review\"");
    let explained = place.run(&["explain", "s/echo", "{}", "--format", "json"]);
    let called = place.run(&["call", "s/echo", "{}", "--format", "json"]);
    assert_eq!((explained.code, called.code), (3, 3), "{}", explained.out);
    assert!(explained.out.contains("nobody-to-ask") && called.out.contains("nobody-to-ask"));
}

#[test]
fn a_required_server_that_cannot_be_served_counts_as_failed() {
    let place = Place::new();
    place.user("[mcp_servers.web]\nurl = \"https://example.org/mcp\"\nrequired = true\nauth = \"chatgpt\"\n");
    let ran = place.run(&["serve"]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.contains("web") && ran.err.contains("no `auth = \"chatgpt\"`"), "{}", ran.err);
}
