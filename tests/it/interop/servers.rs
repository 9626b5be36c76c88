//! The servers, and how each is started with a state of its own.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::installed::Installed;
use crate::support::scripted_server;

/// What the folder must hold.
pub(super) const NEEDED: [&str; 9] = [
    "npm/node_modules/.bin/node",
    "npm/node_modules/@modelcontextprotocol/server-everything/dist/index.js",
    "npm/node_modules/@modelcontextprotocol/server-filesystem/dist/index.js",
    "npm/node_modules/@modelcontextprotocol/server-memory/dist/index.js",
    "npm/node_modules/@modelcontextprotocol/server-sequential-thinking/dist/index.js",
    "venv/bin/mcp-server-time",
    "venv/bin/mcp-server-git",
    "venv/bin/mcp-server-fetch",
    "venv/bin/fastmcp",
];

/// How a server is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    Stdio,
    Http,
}

/// A server of the test.
#[derive(Debug, Clone, Copy)]
pub(super) struct Server {
    /// Its name in the configuration.
    pub(super) name: &'static str,
    /// Which calls of the table are its.
    pub(super) kind: &'static str,
    pub(super) over: Over,
}

/// All of them.
pub(super) fn all() -> Vec<Server> {
    let stdio = |kind| Server { name: kind, kind, over: Over::Stdio };
    let kinds = ["everything", "filesystem", "memory", "thinking", "time", "git", "fetch", "fast", "ours", "odd"];
    let http = [("web", "everything"), ("fastweb", "fast")];
    let http = http.map(|(name, kind)| Server { name, kind, over: Over::Http });
    kinds.map(stdio).into_iter().chain(http).collect()
}

/// Those that others wrote: all but the scripted ones.
pub(super) fn real() -> Vec<Server> {
    all().into_iter().filter(|server| !["ours", "odd"].contains(&server.kind)).collect()
}

/// A server's process: program, arguments, and what is in its environment beside `HOME` and `PATH`.
#[derive(Debug, Clone, Default)]
pub(super) struct Launch {
    pub(super) program: String,
    pub(super) args: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
}

impl Server {
    /// Prepares `folder` as this server's state and says how it is started there. Over HTTP it listens on `port`.
    pub(super) fn prepare(self, installed: &Installed, folder: &Path, port: u16) -> Launch {
        fs::create_dir_all(folder).unwrap();
        let at = folder.to_str().unwrap();
        let node = |package: &str, args: &[&str]| {
            let script =
                installed.file(&format!("npm/node_modules/@modelcontextprotocol/server-{package}/dist/index.js"));
            Launch::new(&installed.file("npm/node_modules/.bin/node"), &[&[script.as_str()], args].concat())
        };
        let python = |program: &str, args: &[&str]| Launch::new(&installed.file(&format!("venv/bin/{program}")), args);
        let ours = |args: &[&str]| Launch::new(&scripted_server().display().to_string(), args);
        match self.kind {
            "everything" if self.over == Over::Http => {
                node("everything", &["streamableHttp"]).with("PORT", &port.to_string())
            }
            "everything" => node("everything", &["stdio"]),
            "filesystem" => {
                files(folder);
                node("filesystem", &[at])
            }
            "memory" => node("memory", &[]).with("MEMORY_FILE_PATH", &format!("{at}/memory.jsonl")),
            "thinking" => node("sequential-thinking", &[]),
            "time" => python("mcp-server-time", &["--local-timezone", "UTC"]),
            "git" => {
                repository(folder);
                let mut launch = python("mcp-server-git", &["--repository", at]);
                launch.env.extend(author());
                launch
            }
            "fetch" => python("mcp-server-fetch", &[]),
            "fast" => {
                let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/fastmcp_server.py");
                let port = port.to_string();
                let args =
                    if self.over == Over::Http { vec!["-B", script, "--port", &port] } else { vec!["-B", script] };
                python("python", &args).with("FASTMCP_CHECK_FOR_UPDATES", "off")
            }
            "ours" => ours(&[]),
            "odd" => ours(&["--rubbish", "--list", "odd"]),
            other => panic!("nobody knows how to start `{other}`"),
        }
    }
}

impl Launch {
    fn new(program: &str, args: &[&str]) -> Self {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Self { program: program.to_owned(), args, env: BTreeMap::new() }
    }

    fn with(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }
}

/// What the file server serves.
fn files(folder: &Path) {
    fs::create_dir_all(folder.join("sub/deep")).unwrap();
    fs::write(folder.join("lines.txt"), "one\ntwo\nthree\ngrüße\n").unwrap();
    fs::write(folder.join("sub/inner.txt"), "inner\n").unwrap();
    fs::write(folder.join("sub/deep/leaf.md"), "# leaf\n").unwrap();
    fs::write(folder.join("pixel.gif"), b"GIF89a\x01\0\x01\0\0\0\0;").unwrap();
}

/// Who commits, and when, so that two repositories have the same commits.
fn author() -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    for role in ["AUTHOR", "COMMITTER"] {
        env.insert(format!("GIT_{role}_NAME"), "Nobody".to_owned());
        env.insert(format!("GIT_{role}_EMAIL"), "nobody@example.org".to_owned());
        env.insert(format!("GIT_{role}_DATE"), "2026-01-02T03:04:05+0000".to_owned());
    }
    env
}

/// Makes a repository with two commits, a file that was changed since, and one that is not tracked.
fn repository(folder: &Path) {
    let git = |args: &[&str]| {
        let mut command = Command::new("git");
        command.args(args).current_dir(folder).envs(author());
        // Nobody's settings but these.
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        let output = command.output().expect("git is needed");
        assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    git(&["-c", "init.defaultBranch=main", "init", "--quiet"]);
    for (content, message) in [("one\n", "first"), ("one\ntwo\n", "second")] {
        fs::write(folder.join("tracked.txt"), content).unwrap();
        git(&["add", "tracked.txt"]);
        git(&["commit", "--quiet", "-m", message]);
    }
    fs::write(folder.join("tracked.txt"), "one\ntwo\nthree\n").unwrap();
    fs::write(folder.join("new.txt"), "new\n").unwrap();
}
