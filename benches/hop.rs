//! What a hop through the gateway costs: the same call of a trivial server, direct, through a bare relay and through `serve`.
//!
//! ```sh
//! cargo bench --bench hop              # a few minutes at most, mostly building
//! cargo bench --bench hop -- --quick   # a few calls: does it still run?
//! ```
//!
//! Everything is over stdio, one and 32 calls at a time. All paths are open during the whole run and are measured in turns,
//! so that whatever else the machine does hits all alike. What is compared is added time against added time; absolute times
//! say more about the machine than about us, and nothing is asserted but that every answer is the right one.
//!
//! The server and the relay are this program itself, with `--server` and `--relay`. The relay is what rmcp does without us:
//! a typed request in, a typed request out, nothing looked at. The aim for `serve`: its added p50 is at most that of the
//! relay and one decision for each component and for the baseline, and a fifth of that besides.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a bench that cannot run shall say so")]

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis::adapters::wasm::{Admission, Engine, WasmApproval, builtin};
use portcullis::model::arguments::Arguments;
use portcullis::model::caller::Caller;
use portcullis::model::digest::Digest;
use portcullis::model::layer::{LayerKind, LayerRef};
use portcullis::model::name::ToolRef;
use portcullis::model::posture::Posture;
use portcullis::model::tool::{Hints, ServerIdentity};
use portcullis::model::verdict::Source;
use portcullis::ports::approval::{ApprovalComponent as _, CallFacts, Kind};
use portcullis::ports::state::Moment;
use serde_json::{Value, json};

/// The components of the last path, and their bytes.
const COMPONENTS: [(&str, &[u8]); 2] =
    [("demo-managed", builtin::DEMO_MANAGED), ("demo-organisation", builtin::DEMO_ORGANISATION)];
/// How many calls are outstanding in the second half.
const AT_ONCE: usize = 32;
/// How far above the sum of its parts `serve` may be.
const ALLOWANCE: f64 = 1.2;
/// The longest that one answer is waited for; only a hang is that slow.
const PATIENCE: Duration = Duration::from_secs(60);

/// How much is measured.
struct Extent {
    warm_up: usize,
    calls: usize,
    rounds: usize,
}

fn main() {
    let flag = |name: &str| std::env::args().any(|argument| argument == name);
    if flag("--server") {
        server();
    } else if flag("--relay") {
        relay::run();
    } else if flag("--quick") {
        measure(&Extent { warm_up: 20, calls: 100, rounds: 2 });
    } else {
        measure(&Extent { warm_up: 200, calls: 3_000, rounds: 10 });
    }
}

/// The server: one tool that says again what it is told, in the standard library alone.
fn server() {
    let answer = |id: &Value, result: &Value| {
        let line = json!({ "jsonrpc": "2.0", "id": id, "result": result });
        // One write a message; the end of the input comes after the end of whoever reads this.
        let _ = std::io::stdout().lock().write_all(format!("{line}\n").as_bytes());
        let _ = std::io::stdout().flush();
    };
    for line in std::io::stdin().lock().lines() {
        let message: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let id = &message["id"];
        match message["method"].as_str() {
            Some("initialize") => answer(
                id,
                &json!({
                    "protocolVersion": message["params"]["protocolVersion"], "capabilities": { "tools": {} },
                    "serverInfo": { "name": "trivial", "version": "1" },
                }),
            ),
            Some("tools/list") => {
                let schema = json!({ "type": "object", "properties": { "text": { "type": "string" } } });
                answer(id, &json!({ "tools": [{ "name": "echo", "inputSchema": schema }] }));
            }
            Some("tools/call") => {
                let text = &message["params"]["arguments"]["text"];
                answer(id, &json!({ "content": [{ "type": "text", "text": text }] }));
            }
            _ if !id.is_null() => answer(id, &json!({})),
            _ => {}
        }
    }
}

/// The bare relay.
mod relay {
    use std::process::Stdio;

    use rmcp::model::{
        CallToolRequestParams, CallToolResponse, ErrorData, ListToolsResult, PaginatedRequestParams,
        ServerCapabilities, ServerConfig,
    };
    use rmcp::service::{Peer, RequestContext, ServiceError};
    use rmcp::{RoleClient, RoleServer, ServerHandler, ServiceExt as _};
    use tokio::process::Command;

    struct Relay(Peer<RoleClient>);

    fn failed(error: ServiceError) -> ErrorData {
        match error {
            ServiceError::McpError(error) => error,
            other => ErrorData::internal_error(other.to_string(), None),
        }
    }

    impl ServerHandler for Relay {
        fn get_info(&self) -> ServerConfig {
            ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
        }

        async fn list_tools(
            &self,
            request: Option<PaginatedRequestParams>,
            _context: RequestContext<RoleServer>,
        ) -> Result<ListToolsResult, ErrorData> {
            self.0.list_tools(request).await.map_err(failed)
        }

        async fn call_tool(
            &self,
            request: CallToolRequestParams,
            _context: RequestContext<RoleServer>,
        ) -> Result<CallToolResponse, ErrorData> {
            self.0.call_tool_once(request).await.map_err(failed)
        }
    }

    #[tokio::main]
    pub(super) async fn run() {
        let mut server = Command::new(std::env::current_exe().unwrap());
        server.arg("--server").stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut server = server.spawn().unwrap();
        let pipes = (server.stdout.take().unwrap(), server.stdin.take().unwrap());
        let upstream = Box::pin(().serve(pipes)).await.unwrap();
        let front = Relay(upstream.peer().clone());
        let front = Box::pin(front.serve((tokio::io::stdin(), tokio::io::stdout()))).await.unwrap();
        front.waiting().await.unwrap();
    }
}

/// One way to the server, and the client in front of it.
struct Hop {
    name: &'static str,
    tool: &'static str,
    child: Child,
    input: ChildStdin,
    lines: BufReader<ChildStdout>,
    next: u64,
    /// The times of all measured calls, one and many at a time.
    times: [Vec<Duration>; 2],
    /// How long all measured calls together took.
    whole: [Duration; 2],
}

impl Hop {
    fn open(name: &'static str, tool: &'static str, mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let lines = BufReader::new(output);
        let mut hop =
            Self { name, tool, child, input, lines, next: 0, times: Default::default(), whole: Default::default() };
        let info = json!({ "name": "bench", "version": "1" });
        let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info });
        hop.send("initialize", &params);
        hop.receive();
        hop.input.write_all(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n").unwrap();
        hop.send("tools/list", &json!({}));
        let (_, list) = hop.receive();
        assert_eq!(list["result"]["tools"][0]["name"], tool, "{name}: {list}");
        hop
    }

    fn send(&mut self, method: &str, params: &Value) -> u64 {
        self.next += 1;
        let line = json!({ "jsonrpc": "2.0", "id": self.next, "method": method, "params": params });
        self.input.write_all(format!("{line}\n").as_bytes()).unwrap();
        self.next
    }

    fn call(&mut self) -> u64 {
        let id = self.next + 1;
        self.send("tools/call", &json!({ "name": self.tool, "arguments": { "text": format!("call {id}") } }))
    }

    /// Reads the next answer.
    fn receive(&mut self) -> (u64, Value) {
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "{} has ended", self.name);
            let message: Value = serde_json::from_str(&line).unwrap();
            if let Some(id) = message["id"].as_u64().filter(|_| message["method"].is_null()) {
                return (id, message);
            }
        }
    }

    /// Makes so many calls, `at_once` of them outstanding; every answer must be that of its call.
    fn run(&mut self, calls: usize, at_once: usize) -> (Vec<Duration>, Duration) {
        let begun = Instant::now();
        let (mut open, mut times, mut sent) = (HashMap::new(), Vec::with_capacity(calls), 0);
        while times.len() < calls {
            while sent < calls && open.len() < at_once {
                let at = Instant::now();
                open.insert(self.call(), at);
                sent += 1;
            }
            let (id, answer) = self.receive();
            times.push(open.remove(&id).expect("an answer to a call that was made").elapsed());
            assert_eq!(answer["result"]["content"][0]["text"], format!("call {id}"), "{}: {answer}", self.name);
        }
        (times, begun.elapsed())
    }

    fn measure(&mut self, mode: usize, calls: usize) {
        let (times, whole) = self.run(calls, [1, AT_ONCE][mode]);
        self.times[mode].extend(times);
        self.whole[mode] += whole;
    }

    fn close(mut self) {
        drop(self.input);
        assert!(self.child.wait().unwrap().success(), "{} did not end well", self.name);
    }
}

/// Measures all paths and says whether the aim is met.
fn measure(extent: &Extent) {
    // A hang must end; every child ends with its input, and that with this process.
    std::thread::spawn(|| {
        std::thread::sleep(PATIENCE * 10);
        eprintln!("the bench takes too long");
        std::process::exit(1);
    });
    let folder = tempfile::tempdir().unwrap();
    let ours = |mode: &str| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg(mode);
        command
    };
    let mut hops = [
        Hop::open("direct", "echo", ours("--server")),
        Hop::open("bare relay", "echo", ours("--relay")),
        Hop::open("serve", "s__echo", serve(&folder.path().join("plain"), &[])),
        Hop::open("serve, 2 components", "s__echo", serve(&folder.path().join("policies"), &COMPONENTS)),
    ];
    for hop in &mut hops {
        hop.run(extent.warm_up, 1);
        hop.run(extent.warm_up, AT_ONCE);
    }
    let mut decisions = Decisions::new();
    for mode in [0, 1] {
        for _ in 0..extent.rounds {
            for hop in &mut hops {
                hop.measure(mode, extent.calls / extent.rounds);
            }
            decisions.measure(mode, extent.calls / extent.rounds);
        }
    }
    for mode in [0, 1] {
        report(mode, &mut hops, &mut decisions);
    }
    for hop in hops {
        hop.close();
    }
}

/// The gateway, with the server `s` behind it and these components in the user's layer.
fn serve(home: &Path, components: &[(&str, &[u8])]) -> Command {
    let config = home.join("config/portcullis");
    fs::create_dir_all(&config).unwrap();
    let program = json!(std::env::current_exe().unwrap());
    let mut text = format!(
        "[mcp_servers.s]\ncommand = {program}\nargs = [\"--server\"]\nrequired = true\n\
         default_tools_approval_mode = \"approve\"\n"
    );
    for (name, bytes) in components {
        text += &format!("[[policies]]\nname = \"{name}\"\ncomponent = \"{name}.wasm\"\n");
        write(&config.join(format!("{name}.wasm")), bytes);
    }
    write(&config.join("config.toml"), text.as_bytes());
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.arg("serve").current_dir(home).env("HOME", home);
    command.env("XDG_CONFIG_HOME", home.join("config")).env("XDG_STATE_HOME", home.join("state"));
    command
}

/// Writes a file that nobody else may write, as layers must be (R6).
fn write(file: &Path, bytes: &[u8]) {
    fs::write(file, bytes).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
}

/// One component asked about the same call, in this process.
struct Decisions {
    runtime: tokio::runtime::Runtime,
    component: Arc<WasmApproval>,
    facts: Arc<CallFacts>,
    times: [Vec<Duration>; 2],
}

impl Decisions {
    fn new() -> Self {
        let source = Source { layer: LayerRef::new(LayerKind::Builtin), component: "baseline".into(), digest: None };
        let engine = Engine::new().unwrap();
        let component = engine.admit(builtin::APPROVAL_BASELINE, Admission::plain(source)).unwrap().approval.unwrap();
        let facts = CallFacts {
            kind: Kind::Tool,
            tool: ToolRef::parse("s/echo").unwrap(),
            identity: ServerIdentity(Digest::of(b"identity")),
            definition: Digest::of(b"definition"),
            hints: Hints::default(),
            caller: Caller::local("bench"),
            connector: None,
            posture: Posture::default(),
            arguments: Arguments::parse(r#"{"text":"call 1000"}"#).unwrap(),
            now_ms: 1_700_000_000_000,
            moment: Moment::empty(),
        };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        Self { runtime, component, facts: Arc::new(facts), times: Default::default() }
    }

    fn measure(&mut self, mode: usize, calls: usize) {
        let at_once = [1, AT_ONCE][mode];
        let one = |component: Arc<WasmApproval>, facts: Arc<CallFacts>| async move {
            let begun = Instant::now();
            component.evaluate(facts).await.result.unwrap();
            begun.elapsed()
        };
        let tasks = self.runtime.block_on(async {
            let worker = async |_| {
                let mut times = Vec::new();
                for _ in 0..calls.div_ceil(at_once) {
                    times.push(one(Arc::clone(&self.component), Arc::clone(&self.facts)).await);
                }
                times
            };
            futures::future::join_all((0..at_once).map(worker)).await
        });
        self.times[mode].extend(tasks.into_iter().flatten());
    }
}

/// The value that so many of the hundred are not above, in microseconds.
fn percentile(times: &mut [Duration], percent: usize) -> f64 {
    times.sort_unstable();
    times[(times.len() * percent / 100).min(times.len() - 1)].as_secs_f64() * 1e6
}

fn report(mode: usize, hops: &mut [Hop], decisions: &mut Decisions) {
    let decision = percentile(&mut decisions.times[mode], 50);
    println!("\n{} at a time, {} calls each; times in microseconds", [1, AT_ONCE][mode], hops[0].times[mode].len());
    println!("{:<22} {:>9} {:>9} {:>9} {:>11}", "path", "p50", "p99", "calls/s", "added p50");
    let mut medians = Vec::new();
    for hop in hops.iter_mut() {
        let (p50, p99) = (percentile(&mut hop.times[mode], 50), percentile(&mut hop.times[mode], 99));
        let rate = hop.times[mode].len() as f64 / hop.whole[mode].as_secs_f64();
        medians.push(p50);
        println!("{:<22} {p50:>9.0} {p99:>9.0} {rate:>9.0} {:>11.0}", hop.name, p50 - medians[0]);
    }
    println!("{:<22} {decision:>9.0} {:>9.0}", "one decision", percentile(&mut decisions.times[mode], 99));
    let bare = medians[1] - medians[0];
    for (at, components) in [(2, 0), (3, COMPONENTS.len())] {
        let (added, parts) = (medians[at] - medians[0], bare + (components + 1) as f64 * decision);
        let aim = parts * ALLOWANCE;
        let met = if added <= aim { "met" } else { "not met" };
        println!(
            "{}: added p50 {added:.0} <= (relay {bare:.0} + {} x decision {decision:.0}) + 20 % = {aim:.0}: {met}",
            hops[at].name,
            components + 1
        );
    }
}
