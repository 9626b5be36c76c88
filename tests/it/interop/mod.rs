//! Behind one gateway every real server is what it is to a client that is connected to it: the same tools with the same
//! definitions, and to the same call the same answer, byte for byte.
//!
//! Every server is started twice with the same configuration and a state of its own, once behind `portcullis serve` and
//! once for a client that shares no code with it. What a model is given of them is in `specs.rs`, that their tools are found
//! in `finding.rs`. Needs what `.ci/run` installs ([`crate::support::installed`]).

mod calls;
mod finding;
mod servers;
mod specs;

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::process::{Child, Command};

use self::calls::{CALLS, NOT_CALLED, Varies, made_up, why_not};
use self::servers::{Launch, NEEDED, Over, Server};
use crate::support::installed::Installed;
use crate::support::raw_client::{Definition, RawClient, Reply};
use crate::support::{PATIENCE, eventually, family, runs};

/// What every client declares: just what the gateway declares to its servers, for what they list may depend on it.
fn declared() -> Value {
    json!({
        "roots": {}, "sampling": { "tools": {}, "context": {} }, "elicitation": { "form": {}, "url": {} },
    })
}

/// The folders of one run.
struct Place(tempfile::TempDir);

impl Place {
    fn path(&self, name: &str) -> PathBuf {
        // The servers tell their folders as the system sees them.
        self.0.path().canonicalize().unwrap().join(name)
    }

    /// A command that has `HOME` and `PATH` in its environment and nothing of whoever runs the test.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("HOME", self.path("home")).env("PATH", std::env::var_os("PATH").unwrap());
        command.current_dir(self.path("home"));
        command
    }

    fn server(&self, launch: &Launch) -> Command {
        let mut command = self.command(&launch.program);
        command.args(&launch.args).envs(&launch.env);
        command
    }
}

/// One server's direct side.
struct Direct {
    server: Server,
    client: RawClient,
    tools: Vec<Definition>,
    /// The folders of its state: the direct side's and the gateway's.
    folders: [PathBuf; 2],
    /// Where it listens, likewise, if it does.
    ports: [u16; 2],
    /// Servers over HTTP run by themselves.
    listening: Vec<Child>,
}

/// Starts the direct sides of these servers, and returns them with the gateway's tables of the same.
async fn start(place: &Place, installed: &Installed, servers: Vec<Server>) -> (Vec<Direct>, String) {
    fs::create_dir_all(place.path("home")).unwrap();
    let (mut directs, mut config) = (Vec::new(), String::new());
    for server in servers {
        let folders = ["direct", "gateway"].map(|side| place.path(side).join(server.name));
        let ports = [free_port(), free_port()];
        let launches = [0, 1].map(|side| server.prepare(installed, &folders[side], ports[side]));
        config.push_str(&table(server, &launches[1], ports[1]));
        let mut listening = Vec::new();
        let client = match server.over {
            Over::Stdio => RawClient::start(place.server(&launches[0])),
            Over::Http => {
                for (launch, port) in launches.iter().zip(ports) {
                    listening.push(listen(place.server(launch), port).await);
                }
                RawClient::http(url(ports[0]))
            }
        };
        directs.push(Direct { server, client, tools: Vec::new(), folders, ports, listening });
    }
    let greeted = directs.iter_mut().map(|direct| async { direct.client.initialize(&declared()).await });
    futures::future::join_all(greeted).await;
    (directs, config)
}

/// Starts the gateway with this configuration and returns its client.
async fn serve(place: &Place, config: &str) -> RawClient {
    let mut gateway = RawClient::start(configured(place, config, &["serve"]));
    gateway.initialize(&declared()).await;
    gateway
}

/// A command of ours with this configuration.
fn configured(place: &Place, config: &str, args: &[&str]) -> Command {
    let user = place.path("config/portcullis");
    fs::create_dir_all(&user).unwrap();
    let file = user.join("config.toml");
    fs::write(&file, config).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let mut command = place.command(env!("CARGO_BIN_EXE_portcullis"));
    command.args(args).env("XDG_CONFIG_HOME", place.path("config")).env("XDG_STATE_HOME", place.path("state"));
    command
}

/// A server's table in the configuration. Its calls run without anybody being asked, and whatever their arguments are: what
/// the server answers to wrong ones is compared, too.
fn table(server: Server, launch: &Launch, port: u16) -> String {
    // A JSON text is a TOML text, too.
    let text = |value: &str| Value::from(value).to_string();
    let how = match server.over {
        Over::Stdio => {
            let env: Vec<String> = launch.env.iter().map(|(name, value)| format!("{name} = {}", text(value))).collect();
            let (program, args) = (text(&launch.program), json!(launch.args));
            format!("command = {program}\nargs = {args}\nenv = {{ {} }}", env.join(", "))
        }
        // The direct side shakes hands, so the hop behind the gateway does, too.
        Over::Http => format!("url = {}\nlifecycle = \"legacy\"", text(&url(port))),
    };
    let rest = "startup_timeout_sec = 120\ndefault_tools_approval_mode = \"approve\"\ncheck_arguments = false";
    format!("[mcp_servers.{}]\n{how}\n{rest}\n\n", server.name)
}

fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}/mcp")
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// Starts a server that listens, and waits until it does.
async fn listen(mut command: Command, port: u16) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    eventually("the server listens", || std::net::TcpStream::connect(("127.0.0.1", port)).ok()).await;
    child
}

/// The name of a tool behind the gateway.
fn flat(server: Server, tool: &str) -> String {
    format!("{}__{}", server.name, tool.replace('-', "_"))
}

/// Lists on both sides until they agree on the names: some servers add tools after the handshake. Returns the gateway's.
async fn settled(directs: &mut [Direct], gateway: &mut RawClient) -> Vec<Definition> {
    let give_up = tokio::time::Instant::now() + PATIENCE * 2;
    loop {
        let mut wanted = BTreeSet::new();
        for direct in directs.iter_mut() {
            direct.tools = direct.client.tools().await;
            assert!(!direct.tools.is_empty(), "{} lists nothing", direct.server.name);
            wanted.extend(direct.tools.iter().map(|tool| flat(direct.server, &tool.name())));
        }
        let listed = gateway.tools().await;
        let names: BTreeSet<String> = listed.iter().map(Definition::name).collect();
        assert_eq!(names.len(), listed.len(), "a name is listed twice");
        if names == wanted {
            return listed;
        }
        let (missing, more): (Vec<_>, Vec<_>) =
            (wanted.difference(&names).collect(), names.difference(&wanted).collect());
        assert!(tokio::time::Instant::now() < give_up, "not listed: {missing:?}; listed besides: {more:?}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

/// How the gateway's definition differs from the server's own; only the name may.
fn differing(direct: &Definition, listed: &Definition) -> Vec<String> {
    let mut out = Vec::new();
    if direct.order != listed.order {
        out.push(format!("members in another order: {:?}, not {:?}", listed.order, direct.order));
    }
    for (member, text) in direct.members.iter().filter(|(member, _)| *member != "name") {
        match listed.members.get(member) {
            Some(other) if other == text => {}
            other => out.push(format!("{member}: {text}\n  gateway: {other:?}")),
        }
    }
    out
}

/// Makes one call on both sides and compares. Returns what differs.
async fn compare(
    direct: &mut Direct,
    gateway: &mut RawClient,
    tool: &str,
    arguments: &str,
    varies: &[Varies],
) -> Option<String> {
    let [ours, theirs] = [0, 1].map(|side| arguments.replace("{folder}", direct.folders[side].to_str().unwrap()));
    let name = flat(direct.server, tool);
    let (answer, through) = tokio::join!(direct.client.call(tool, &ours), gateway.call(&name, &theirs));
    let plain = |reply: &Reply, side: usize| {
        let text = reply.text().replace(direct.folders[side].to_str().unwrap(), "{folder}");
        // The one thing that two servers on one machine cannot share.
        if direct.server.over == Over::Http { text.replace(&direct.ports[side].to_string(), "{port}") } else { text }
    };
    let [mut answer_text, mut through_text] = [plain(&answer, 0), plain(&through, 1)];
    for varies in varies {
        let Some(text) = varies.taken_out(&through_text) else {
            return Some(format!("{name}: {varies:?} is not in the answer: {through_text}"));
        };
        through_text = text;
        if matches!(varies, Varies::Value { .. }) {
            answer_text = varies.taken_out(&answer_text).unwrap_or(answer_text);
        }
    }
    let same_kind = std::mem::discriminant(&answer) == std::mem::discriminant(&through);
    (!same_kind || answer_text != through_text)
        .then(|| format!("{name} {arguments}\n  direct:  {answer:?}\n  gateway: {through:?}"))
}

/// All calls of one server: the table's, then made-up ones for tools that it does not have, then every tool that needs
/// arguments without any. Returns how many there were and what differed.
async fn compare_all(direct: &mut Direct, gateway: &mut RawClient) -> (usize, Vec<String>) {
    let (server, tools) = (direct.server, direct.tools.clone());
    let called = |tool: &str| why_not(server, tool).is_none();
    let mut calls: Vec<(String, String, &[Varies])> = Vec::new();
    for call in CALLS.iter().filter(|call| call.kind == server.kind && called(call.tool)) {
        calls.push((call.tool.to_owned(), call.arguments.to_owned(), call.varies));
    }
    for tool in &tools {
        let (name, schema) = (tool.name(), tool.schema());
        if !called(&name) {
            continue;
        }
        if !calls.iter().any(|call| call.0 == name) {
            calls.push((name.clone(), made_up(&schema).to_string(), &[]));
        }
        if schema["required"].as_array().is_some_and(|required| !required.is_empty()) {
            calls.push((name, "{}".to_owned(), &[]));
        }
    }
    let mut wrong = Vec::new();
    for (tool, arguments, varies) in &calls {
        wrong.extend(compare(direct, gateway, tool, arguments, varies).await);
    }
    (calls.len(), wrong)
}

/// Entries of the tables that no server has a tool for.
fn left_over(directs: &[Direct]) -> Vec<String> {
    let listed: BTreeSet<(&str, String)> =
        directs.iter().flat_map(|direct| direct.tools.iter().map(|tool| (direct.server.kind, tool.name()))).collect();
    let entries =
        CALLS.iter().map(|call| (call.kind, call.tool)).chain(NOT_CALLED.iter().map(|entry| (entry.0, entry.1)));
    entries
        .filter(|(kind, tool)| !listed.contains(&(kind, (*tool).to_owned())))
        .map(|entry| format!("{entry:?}"))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_server_behind_the_gateway_is_byte_for_byte_what_it_is_directly() {
    let Some(installed) = Installed::with(&NEEDED) else { return };
    let place = Place(tempfile::tempdir().unwrap());
    let (mut directs, config) = start(&place, &installed, servers::all()).await;
    let mut gateway = serve(&place, &config).await;
    let listed = settled(&mut directs, &mut gateway).await;
    assert_eq!(left_over(&directs), Vec::<String>::new(), "these are in a table, and no server lists them");

    let (mut compared, mut wrong) = (0, Vec::new());
    for direct in &mut directs {
        let name = direct.server.name;
        for tool in &direct.tools {
            let flat = flat(direct.server, &tool.name());
            let through = listed.iter().find(|listed| listed.name() == flat).unwrap();
            wrong.extend(differing(tool, through).into_iter().map(|what| format!("{flat}: {what}")));
        }
        let (calls, differ) = compare_all(direct, &mut gateway).await;
        println!("{name}: {} tools, {calls} calls, {} differ", direct.tools.len(), differ.len());
        compared += calls;
        wrong.extend(differ);
    }
    println!("{} tools of {} servers, {compared} calls", listed.len(), directs.len());
    for direct in &directs {
        for tool in direct.tools.iter().map(Definition::name) {
            if let Some(why) = why_not(direct.server, &tool) {
                println!("not called: {}/{tool}, which {why}", direct.server.name);
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));

    let family = family(gateway.pid().unwrap());
    assert!(family.len() > directs.iter().filter(|direct| direct.server.over == Over::Stdio).count(), "{family:?}");
    let status = gateway.end().await.unwrap();
    assert!(status.success(), "{status}");
    eventually("every process of the gateway has ended", || (!family.iter().any(|pid| runs(*pid))).then_some(())).await;
    for direct in directs {
        for mut child in direct.listening {
            child.kill().await.unwrap();
        }
    }
}

/// A value without what only the stateless era says: who the server is, in every answer.
fn without_server(reply: &Reply) -> Value {
    let mut value: Value = serde_json::from_str(reply.text()).unwrap();
    if let Some(meta) = value["_meta"].as_object_mut() {
        assert!(meta.remove("portcullis/serverInfo").is_some(), "{reply:?}");
        if meta.is_empty() {
            value.as_object_mut().unwrap().remove("_meta");
        }
    }
    value
}

#[tokio::test(flavor = "multi_thread")]
async fn pitfall_1_a_stateless_hop_changes_no_value_of_an_answer() {
    let Some(installed) = Installed::with(&NEEDED) else { return };
    let place = Place(tempfile::tempdir().unwrap());
    fs::create_dir_all(place.path("home")).unwrap();
    let fast = Server { name: "fast", kind: "fast", over: Over::Http };
    let time = Server { name: "time", kind: "time", over: Over::Stdio };
    let port = free_port();
    let mut listening = listen(place.server(&fast.prepare(&installed, &place.path("fast"), port)), port).await;
    let mut config = String::new();
    for era in ["legacy", "modern"] {
        let (fast, time) = (fast_named(era, port), table(time, &time.prepare(&installed, &place.path("time"), 0), 0));
        config.push_str(&fast);
        config.push_str(&time.replacen(
            "[mcp_servers.time]",
            &format!("[mcp_servers.time_{era}]\nlifecycle = \"{era}\""),
            1,
        ));
    }
    let mut gateway = serve(&place, &config).await;
    let zones = r#"{"source_timezone":"UTC","time":"12:00","target_timezone":"Asia/Tokyo"}"#;
    let calls = [
        ("fast", "add", r#"{"a":1,"b":2}"#),
        ("fast", "weather", r#"{"place":"Oslo"}"#),
        ("fast", "picture", "{}"),
        ("fast", "fail", r#"{"why":"so"}"#),
        ("time", "convert_time", zones),
    ];
    for (server, tool, arguments) in calls {
        let old = gateway.call(&format!("{server}_legacy__{tool}"), arguments).await;
        let new = gateway.call(&format!("{server}_modern__{tool}"), arguments).await;
        let plain: Value = serde_json::from_str(old.text()).unwrap();
        assert_eq!(without_server(&new), plain, "{server}/{tool}");
        assert!(!new.text().contains("resultType"), "{new:?}");
    }
    gateway.end().await.unwrap();
    listening.kill().await.unwrap();
}

/// The table of the HTTP server in one era.
fn fast_named(era: &str, port: u16) -> String {
    let rest = "startup_timeout_sec = 120\ndefault_tools_approval_mode = \"approve\"";
    format!("[mcp_servers.fast_{era}]\nurl = \"{}\"\nlifecycle = \"{era}\"\n{rest}\n\n", url(port))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_of_this_test_sees_the_same_server_over_stdio_and_over_http() {
    let Some(installed) = Installed::with(&NEEDED) else { return };
    let place = Place(tempfile::tempdir().unwrap());
    fs::create_dir_all(place.path("home")).unwrap();
    for (kind, call, arguments) in
        [("everything", "get-sum", r#"{"a":1.50,"b":2}"#), ("fast", "weather", r#"{"place":"x"}"#)]
    {
        let [over_stdio, over_http] = [Over::Stdio, Over::Http].map(|over| Server { name: kind, kind, over });
        let port = free_port();
        let mut pipes = RawClient::start(place.server(&over_stdio.prepare(&installed, &place.path("stdio"), 0)));
        let mut server = listen(place.server(&over_http.prepare(&installed, &place.path("http"), port)), port).await;
        let mut http = RawClient::http(url(port));
        pipes.initialize(&declared()).await;
        http.initialize(&declared()).await;
        assert_eq!(pipes.call(call, arguments).await, http.call(call, arguments).await);
        let shared = |tools: Vec<Definition>| tools.into_iter().filter(|tool| tool.name() == call).collect::<Vec<_>>();
        let (listed, over_http) = (shared(pipes.tools().await), shared(http.tools().await));
        assert_eq!(listed.len(), 1);
        assert_eq!(listed, over_http);
        drop(pipes);
        server.kill().await.unwrap();
    }
}
