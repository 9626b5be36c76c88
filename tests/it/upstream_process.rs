//! No process of a server outlives its connection, and one that cannot start says why.

use std::sync::Arc;
use std::time::Duration;

use portcullis::adapters::mcp::child::Launch;
use portcullis::adapters::mcp::client::{Settings, StdioUpstream};
use portcullis::model::answer::Answer;
use portcullis::model::caller::Caller;
use portcullis::model::name::{RawToolName, ServerName};
use portcullis::ports::upstream::{Connection, OutgoingCall, StartFailure, Upstream};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::support::served::Served;
use crate::support::{Heard, PATIENCE, eventually, gone, runs, scripted, scripted_server};

fn upstream(launch: Launch) -> StdioUpstream {
    StdioUpstream::new(ServerName::parse("scripted").unwrap(), launch, Settings::default())
}

/// Runs the scripted server as a child of a shell that prepares something first.
fn shell(before: &str, flags: &str) -> Launch {
    let script = format!("{before}\nexec '{}' {flags}", scripted_server().display());
    Launch { program: "/bin/sh".to_owned(), args: vec!["-c".to_owned(), script], ..scripted(&[]) }
}

async fn connect(launch: Launch) -> (Arc<dyn Connection>, Arc<Heard>) {
    let heard = Heard::new();
    let connection = upstream(launch).connect(Instant::now() + PATIENCE, heard.clone()).await.unwrap();
    (connection, heard)
}

async fn refused(launch: Launch) -> StartFailure {
    upstream(launch).connect(Instant::now() + PATIENCE, Heard::new()).await.err().unwrap()
}

fn outgoing(tool: &str, arguments: Value) -> OutgoingCall {
    let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
    let tool = RawToolName::parse(tool).unwrap();
    let caller = Caller::local("test");
    OutgoingCall { caller, tool, arguments: Some(arguments), meta: Map::new(), progress: None, questions: None }
}

async fn text(connection: &Arc<dyn Connection>, tool: &str) -> String {
    let answer = connection.hand_over(outgoing(tool, json!({}))).await.unwrap().answer().await.unwrap();
    let Answer::Result(result) = answer else { panic!("{answer:?}") };
    result.content()[0]["text"].as_str().unwrap().to_owned()
}

async fn pid(connection: &Arc<dyn Connection>, tool: &str) -> u32 {
    let pid = text(connection, tool).await.parse().unwrap();
    assert!(runs(pid));
    pid
}

#[tokio::test]
async fn a_child_sees_the_environment_of_its_launch_and_nothing_else() {
    let mut launch = scripted(&[]);
    launch.env = vec![("ONLY".to_owned(), "this".to_owned())];
    let (connection, _) = connect(launch).await;
    assert_eq!(text(&connection, "env").await, "ONLY");
}

#[tokio::test]
async fn a_closed_connection_leaves_no_process_and_tells_so_once() {
    let (connection, heard) = connect(scripted(&[])).await;
    let pids = [pid(&connection, "pid").await, pid(&connection, "spawn").await];
    connection.close().await;
    gone(&pids).await;
    assert!(!connection.is_open());
    assert_eq!(heard.closed(), [(connection.id(), "closed".to_owned())]);
    let not_sent = connection.hand_over(outgoing("add", json!({}))).await.err().unwrap();
    assert_eq!(not_sent.to_string(), "nothing was handed over: closed");
}

#[tokio::test]
async fn a_server_that_ignores_the_end_of_its_input_and_sigterm_is_killed() {
    let (connection, _) = connect(shell("trap '' TERM", "--stubborn")).await;
    let pids = [pid(&connection, "pid").await, pid(&connection, "spawn").await];
    connection.close().await;
    gone(&pids).await;
}

#[tokio::test]
async fn dropping_a_connection_ends_its_server() {
    let (connection, heard) = connect(scripted(&[])).await;
    let pids = [pid(&connection, "pid").await, pid(&connection, "spawn").await];
    drop(connection);
    gone(&pids).await;
    eventually("closed", || heard.closed().pop()).await;
}

#[tokio::test]
async fn dropping_the_future_of_a_connect_ends_what_it_started() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let before = format!("sleep 1000 & echo $$ $! > '{}'", file.path().display());
    let upstream = upstream(shell(&before, "--silent --stubborn"));
    let mut connecting = Box::pin(upstream.connect(Instant::now() + PATIENCE, Heard::new()));
    let mut pids = Vec::new();
    while pids.len() < 2 {
        let waited = tokio::time::timeout(Duration::from_millis(10), &mut connecting).await;
        assert!(waited.is_err(), "a silent server cannot have connected");
        let written = std::fs::read_to_string(file.path()).unwrap();
        pids = written.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    }
    drop(connecting);
    gone(&pids).await;
}

#[tokio::test]
async fn a_server_that_never_initialises_times_out_and_is_gone_by_then() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let before = format!("trap '' TERM; echo $$ > '{}'", file.path().display());
    let upstream = upstream(shell(&before, "--silent --stubborn"));
    let failure = loop {
        // A loaded machine may need longer than this until the shell has written its number.
        let failure = upstream.connect(Instant::now() + Duration::from_millis(500), Heard::new()).await.err().unwrap();
        if !std::fs::read_to_string(file.path()).unwrap().is_empty() {
            break failure;
        }
    };
    let StartFailure::Timeout(_) = failure else { panic!("{failure:?}") };
    assert!(failure.to_string().contains("startup_timeout_sec"));
    let pid: u32 = std::fs::read_to_string(file.path()).unwrap().trim().parse().unwrap();
    assert!(!runs(pid));
}

#[tokio::test]
async fn a_server_that_exits_at_once_is_told_with_its_status_and_its_last_words() {
    let failure = refused(scripted(&["--exit", "3", "--stderr", "no key \u{1b}[31mgiven"])).await;
    assert_eq!(failure.to_string(), "ended during start-up: exit status: 3; stderr: no key \\u{1b}[31mgiven");
    // Also when a grandchild keeps the pipes open.
    let failure = refused(shell("sleep 1000 & ", "--exit 4")).await;
    let StartFailure::Exited(why) = failure else { panic!("{failure:?}") };
    assert!(why.contains("exit status: 4"), "{why}");
}

#[tokio::test]
async fn a_command_that_cannot_run_is_named() {
    let missing = Launch { program: "no-such-program-here".to_owned(), ..scripted(&[]) };
    assert_eq!(refused(missing).await.to_string(), "could not start: command `no-such-program-here`: no such program");
    let folder = tempfile::tempdir().unwrap();
    let not_executable = Launch { program: folder.path().display().to_string(), ..scripted(&[]) };
    assert!(refused(not_executable).await.to_string().ends_with("not executable"));
    let nowhere = Launch { cwd: Some(folder.path().join("nowhere")), ..scripted(&[]) };
    assert!(refused(nowhere).await.to_string().contains("the working directory"));
    let null = Launch { args: vec!["a\0b".to_owned()], ..scripted(&[]) };
    assert!(matches!(refused(null).await, StartFailure::Spawn(_)));
}

#[tokio::test]
async fn a_server_that_dies_in_the_middle_fails_all_its_calls_at_once_and_tells_its_status() {
    let (connection, heard) = connect(scripted(&["--stderr", "about to go"])).await;
    let grandchild = pid(&connection, "spawn").await;
    let mut hanging = connection.hand_over(outgoing("hang", json!({}))).await.unwrap();
    let mut dying = connection.hand_over(outgoing("die", json!({ "code": 9 }))).await.unwrap();
    assert!(tokio::time::timeout(PATIENCE, dying.answer()).await.unwrap().is_err());
    assert!(tokio::time::timeout(PATIENCE, hanging.answer()).await.unwrap().is_err());
    assert!(!connection.is_open());
    let (id, why) = eventually("closed", || heard.closed().pop()).await;
    assert_eq!(id, connection.id());
    assert!(why.contains("exit status: 9") && why.contains("about to go"), "{why}");
    gone(&[grandchild]).await;
    connection.close().await;
    assert_eq!(heard.closed().len(), 1);
    assert!(connection.hand_over(outgoing("add", json!({}))).await.is_err());
}

#[tokio::test]
async fn a_runtime_that_ends_takes_its_servers_along() {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let pids = runtime.block_on(async {
            let (connection, _) = connect(scripted(&["--stubborn"])).await;
            let pids = vec![pid(&connection, "pid").await, pid(&connection, "spawn").await];
            std::mem::forget(connection);
            pids
        });
        drop(runtime);
        sender.send(pids).unwrap();
    });
    gone(&receiver.await.unwrap()).await;
}

/// Runs itself as another process, which starts a server that never ends by itself and is then killed.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_server_dies_with_us_however_we_end() {
    use std::io::{BufRead as _, BufReader, Write as _};
    const INNER: &str = "PORTCULLIS_TEST_PARENT";
    if std::env::var_os(INNER).is_some() {
        let (connection, _) = connect(scripted(&["--stubborn"])).await;
        let pid = pid(&connection, "pid").await;
        writeln!(std::io::stderr(), "\nSERVER {pid}").unwrap();
        std::future::pending::<()>().await;
    }
    let mut us = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "upstream_process::a_server_dies_with_us_however_we_end"])
        .env(INNER, "1")
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(us.stderr.take().unwrap()).lines();
    let server = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("SERVER ")?.parse().ok());
    us.kill().unwrap();
    us.wait().unwrap();
    gone(&[server.unwrap()]).await;
}

/// A configuration whose server `s` is a wrapper: its children ignore the end of their input, and `SIGTERM` too. The
/// numbers of all three are written to `$PLACE/pids`, in one piece.
fn wrapper() -> String {
    let stubborn = "(trap '' TERM HUP INT; exec sleep 1000 <&-) &";
    let numbers = "echo \"$$ $! $server\" > $PLACE/new && mv $PLACE/new $PLACE/pids";
    let server = scripted_server();
    // A shell takes the input away from what it starts in the background.
    let script = format!(
        "exec 3<&0\n'{}' --stubborn <&3 3<&- &\nserver=$!\n{stubborn}\n{numbers}\nexec 3<&-\nwait",
        server.display()
    );
    let approve = "default_tools_approval_mode = \"approve\"";
    format!("[mcp_servers.s]\ncommand = \"/bin/sh\"\nargs = [\"-c\", '''{script}''']\n{approve}\n")
}

/// The numbers that a wrapper has written, if they are others than `before`.
async fn wrapped(served: &Served, before: &[u32]) -> Vec<u32> {
    let file = served.path("pids");
    eventually("the wrapper has started", || {
        let text = std::fs::read_to_string(&file).ok()?;
        let pids: Vec<u32> = text.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
        (pids != before).then_some(pids)
    })
    .await
}

/// The guard of a host: a child of it by that name.
async fn guard_of(host: u32) -> u32 {
    let find = || {
        let parent = host.to_string();
        let found =
            std::process::Command::new("pgrep").args(["-P", &parent, "-f", "portcullis-guard"]).output().unwrap();
        let text = String::from_utf8(found.stdout).unwrap();
        let pids: Vec<u32> = text.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
        assert!(pids.len() <= 1, "more than one guard");
        pids.first().copied()
    };
    eventually("there is a guard", find).await
}

fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

#[tokio::test]
async fn pitfall_9_a_host_that_is_killed_leaves_no_process_behind_whatever_its_servers_ignore() {
    use rustix::process::Signal;
    let mut served = Served::greeted(&wrapper(), &[]).await;
    let pids = wrapped(&served, &[]).await;
    assert_eq!(served.call("s__add", &json!({ "a": 2, "b": 3 })).await["result"]["content"][0]["text"], "5");
    let guard = guard_of(served.pid()).await;
    // What a terminal would send does not end it.
    for deaf_to in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        signal(guard, deaf_to);
    }
    assert!(pids.iter().chain([&guard]).all(|pid| runs(*pid)));
    served.child.start_kill().unwrap();
    served.child.wait().await.unwrap();
    gone(&pids).await;
    gone(&[guard]).await;
}

#[tokio::test]
async fn a_host_that_ends_leaves_neither_servers_nor_guard() {
    let mut served = Served::greeted(&wrapper(), &[]).await;
    let pids = wrapped(&served, &[]).await;
    let guard = guard_of(served.pid()).await;
    assert!(served.finish().await.success(), "{}", served.stderr());
    gone(&pids).await;
    gone(&[guard]).await;
}

#[tokio::test]
async fn a_server_whose_wrapper_is_killed_ends_wholly_and_is_started_again_under_the_same_guard() {
    let mut served = Served::greeted(&wrapper(), &[]).await;
    let first = wrapped(&served, &[]).await;
    let guard = guard_of(served.pid()).await;
    assert!(served.call("s__add", &json!({})).await["result"].is_object());
    signal(first[0], rustix::process::Signal::KILL);
    let second = wrapped(&served, &first).await;
    gone(&first).await;
    assert_eq!(served.call("s__add", &json!({ "a": 1 })).await["result"]["content"][0]["text"], "1");
    assert_eq!(guard_of(served.pid()).await, guard);
    served.child.start_kill().unwrap();
    gone(&second).await;
    gone(&[guard]).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn guard_and_servers_hold_no_descriptor_of_ours_and_the_guard_has_no_environment() {
    let mut served = Served::greeted(&wrapper(), &[]).await;
    let pids = wrapped(&served, &[]).await;
    assert!(served.call("s__add", &json!({})).await["result"].is_object());
    let guard = guard_of(served.pid()).await;
    let held = |pid: u32| {
        let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        let mut held: Vec<(u32, String)> = entries
            .map(|entry| entry.unwrap().path())
            .map(|path| (path.file_name().unwrap().to_str().unwrap().parse().unwrap(), path))
            .map(|(number, path)| (number, std::fs::read_link(path).unwrap().display().to_string()))
            .collect();
        held.sort();
        held
    };
    let ours = held(served.pid());
    assert!(ours.iter().any(|(number, what)| (*number, what.as_str()) == (7, "/dev/zero")), "{ours:?}");
    let of_guard = held(guard);
    let [(0, input), (1, output), (2, errors)] = &of_guard[..] else { panic!("{of_guard:?}") };
    assert!(input.starts_with("pipe:"), "{input}");
    assert_eq!((output.as_str(), errors.as_str()), ("/dev/null", "/dev/null"));
    let of_wrapper = held(pids[0]);
    assert!(of_wrapper.iter().all(|(number, what)| *number <= 2 && what.starts_with("pipe:")), "{of_wrapper:?}");
    assert_eq!(std::fs::read(format!("/proc/{guard}/environ")).unwrap(), b"");
    let group = rustix::process::getpgid(rustix::process::Pid::from_raw(guard.cast_signed())).unwrap();
    assert_eq!(group.as_raw_pid(), guard.cast_signed(), "a group of its own");
}
