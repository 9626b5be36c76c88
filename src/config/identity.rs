//! What a server is, whatever it is called (R5).
//!
//! [`ServerIdentity`] is exact: transport, resolved executable, all arguments, directory, names of the environment; or
//! the URL. Names only: a digest over a secret would let it be guessed (amendment to R5). A restriction by name in
//! managed or organisation must not be evaded by one more argument, so it widens by [`Likeness`]: executable and
//! script, or URL. Likeness errs towards covering too much; it never grants anything.
//!
//! A program that starts another one (`sh -c "…"`, a copy of an interpreter) is beyond what names and paths can tell.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::policy_keys::IdentityTable;
use super::server::{HttpTarget, StdioLaunch, Transport};
use crate::model::digest::Digest;
use crate::model::name::ServerName;
use crate::model::text::shown;
use crate::model::tool::ServerIdentity;

/// Finds the program of a command: a name on `path`, a path relative to `cwd`.
///
/// # Errors
/// A message that names the command.
pub(crate) fn find_executable(command: &str, cwd: &Path, path: Option<&OsStr>) -> Result<PathBuf, String> {
    let runs = |file: &Path| file.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    let named = shown(command, 200);
    if command.contains('/') {
        let file = cwd.join(command);
        return if runs(&file) { Ok(file) } else { Err(format!("the command `{named}` is not an executable file")) };
    }
    // A relative entry of PATH would let the working directory decide what runs.
    let folders = std::env::split_paths(path.unwrap_or_default()).filter(|folder| folder.is_absolute());
    let mut files = folders.map(|folder| folder.join(command));
    files.find(|file| runs(file)).ok_or_else(|| format!("the command `{named}` is not on PATH"))
}

/// Returns the identity of a server. One that cannot be read is identified by its name.
pub(crate) fn identify(name: &ServerName, transport: &Transport) -> ServerIdentity {
    let value = match transport {
        Transport::Stdio(launch) => {
            let executable = real_executable(launch);
            let args: Vec<_> = launch.args.iter().map(super::template::Template::as_written).collect();
            let names: Vec<_> = launch.env.keys().chain(&launch.inherit).collect();
            let path = |path: &Path| hex::encode(path.as_os_str().as_bytes());
            json!(["stdio", path(&executable), args, path(&launch.cwd), names, launch.base_environment])
        }
        Transport::Http(target) => json!(["http", normal_url(target.url.as_written())]),
        Transport::Unreadable => json!(["unreadable", name]),
    };
    ServerIdentity(Digest::of(value.to_string().as_bytes()))
}

/// The program behind links, or the command as written if there is none.
fn real_executable(launch: &StdioLaunch) -> PathBuf {
    match &launch.executable {
        Ok(file) => file.canonicalize().unwrap_or_else(|_| file.clone()),
        Err(_) => PathBuf::from(&launch.command),
    }
}

/// What two servers must share for a restriction of one to hold for the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Likeness {
    /// A program: its path behind links, its file name, its arguments that are no flags.
    Program { real: PathBuf, name: String, words: Vec<String> },
    /// A URL, normalised.
    Url(String),
    /// Nothing is known.
    Unknown,
}

impl Likeness {
    /// Returns what a server's transport says.
    pub(crate) fn of(transport: &Transport) -> Self {
        match transport {
            Transport::Stdio(launch) => {
                // Of `--package=NAME` the value is what is run.
                let word = |arg: &'_ str| match arg.strip_prefix('-') {
                    None => Some(arg.to_owned()),
                    Some(flag) => flag.split_once('=').map(|(_, value)| value.to_owned()),
                };
                let words = launch.args.iter().filter_map(|arg| word(arg.as_written()));
                let name = file_name(&launch.command);
                Self::Program { real: real_executable(launch), name, words: words.collect() }
            }
            Transport::Http(HttpTarget { url, .. }) => Self::Url(normal_url(url.as_written())),
            Transport::Unreadable => Self::Unknown,
        }
    }

    /// Whether a restriction of one server holds for the other: the same program, or the same URL. A program that runs what
    /// its arguments name is the same only with the other's script among them.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Program { real, name, words }, Self::Program { real: real2, name: name2, words: words2 }) => {
                let script = |words: &[String], others: &[String]| match words.first() {
                    Some(script) => others.iter().any(|word| same_script(script, word)),
                    None => others.is_empty(),
                };
                let same = real == real2 || name == name2;
                same && (!is_runner(name) || script(words, words2) || script(words2, words))
            }
            (Self::Url(url), Self::Url(other)) => url == other,
            _ => false,
        }
    }

    /// Whether an `identities` entry of a match means this server.
    pub(crate) fn is_meant_by(&self, table: &IdentityTable) -> bool {
        match self {
            Self::Program { real, name, words } => {
                let program = |wanted: &String| {
                    if wanted.contains('/') {
                        real == Path::new(wanted)
                    } else {
                        name == wanted || file_name_of(real) == *wanted
                    }
                };
                let script = |wanted: &String| words.iter().any(|word| same_script(wanted, word));
                let stdio = table.executable.is_some() || table.script.is_some();
                stdio && table.executable.as_ref().is_none_or(program) && table.script.as_ref().is_none_or(script)
            }
            Self::Url(url) => table.url.as_ref().is_some_and(|prefix| url_is_below(url, &normal_url(prefix))),
            Self::Unknown => false,
        }
    }
}

/// Whether a program is known to run what its arguments name: then it says nothing about what the server is.
pub(crate) fn is_runner(name: &str) -> bool {
    const RUNNERS: [&str; 23] = [
        "npx", "npm", "pnpm", "yarn", "bun", "bunx", "deno", "node", "uv", "uvx", "pipx", "ruby", "perl", "php",
        "java", "dotnet", "docker", "podman", "sh", "bash", "zsh", "env", "cargo",
    ];
    RUNNERS.contains(&name) || name.starts_with("python")
}

fn file_name(path: &str) -> String {
    file_name_of(Path::new(path))
}

fn file_name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The same package whatever its version, or the same file whatever its folder.
fn same_script(a: &str, b: &str) -> bool {
    let package = |text: &str| {
        let text = text.to_owned();
        // `@scope/name@1.2`, `name@1.2`, `name==1.2`
        let cut = text.char_indices().skip(1).find(|(_, c)| matches!(c, '@' | '=')).map_or(text.len(), |(at, _)| at);
        text.get(..cut).unwrap_or_default().to_owned()
    };
    let (a, b) = (package(a), package(b));
    let looks_like_file = |text: &str| Path::new(text).extension().is_some() && !text.starts_with('@');
    a == b || (looks_like_file(&a) && looks_like_file(&b) && file_name(&a) == file_name(&b))
}

/// Lower-case scheme and host, no default port, no trailing slash. Anything else stays as written.
fn normal_url(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let scheme = scheme.to_ascii_lowercase();
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (host, path) = rest.split_at(end);
    let host = host.to_ascii_lowercase();
    let default_port = match scheme.as_str() {
        "https" => ":443",
        "http" => ":80",
        _ => "",
    };
    let host = if default_port.is_empty() { host.as_str() } else { host.strip_suffix(default_port).unwrap_or(&host) };
    format!("{scheme}://{host}{}", path.trim_end_matches('/'))
}

/// An address as a client would take it, `..` and escapes of the host resolved. `None`: it is none for a client of ours.
pub(crate) fn parsed_url(url: &str) -> Option<String> {
    let url = url::Url::parse(url).ok()?;
    let plain = url.has_host() && url.username().is_empty() && url.password().is_none();
    plain.then(|| normal_url(url.as_str()))
}

/// A prefix ends at a border of a path segment or the host (R5).
pub(crate) fn url_is_below(url: &str, prefix: &str) -> bool {
    url.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?', '#']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(name: &str, words: &[&str]) -> Likeness {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        Likeness::Program { real: format!("/usr/bin/{name}").into(), name: name.to_owned(), words }
    }

    #[test]
    fn r5_one_more_argument_or_another_version_does_not_make_another_server() {
        let managed = program("npx", &["@mcp/github"]);
        assert!(managed.is_like(&program("npx", &["@mcp/github@1.2", "extra"])));
        assert!(managed.is_like(&program("npx", &["warn", "@mcp/github"])));
        assert!(!managed.is_like(&program("npx", &["@mcp/files"])));
        assert!(!managed.is_like(&program("uvx", &["@mcp/github"])));
    }

    #[test]
    fn r5_a_bare_runner_is_no_identity() {
        assert!(!program("npx", &[]).is_like(&program("npx", &["@mcp/github"])));
    }

    #[test]
    fn r5_a_url_prefix_ends_at_a_border() {
        let server = |url: &str| Likeness::Url(normal_url(url));
        let table = IdentityTable { url: Some("https://a.example/mcp/".into()), ..IdentityTable::default() };
        assert!(server("HTTPS://A.example:443/mcp/v1").is_meant_by(&table));
        assert!(server("https://a.example/mcp?x").is_meant_by(&table));
        assert!(!server("https://a.example/mcpx").is_meant_by(&table));
        assert!(!server("https://a.example.evil/mcp").is_meant_by(&table));
    }

    #[test]
    fn an_identity_entry_means_a_program_by_name_or_path_and_script() {
        let table = |executable: Option<&str>, script: Option<&str>| IdentityTable {
            executable: executable.map(str::to_owned),
            script: script.map(str::to_owned),
            url: None,
        };
        let server = program("node", &["build/server.js"]);
        assert!(server.is_meant_by(&table(Some("node"), Some("server.js"))));
        assert!(server.is_meant_by(&table(Some("/usr/bin/node"), None)));
        assert!(!server.is_meant_by(&table(Some("/opt/node"), None)));
        assert!(!server.is_meant_by(&table(None, Some("other.js"))));
        assert!(!server.is_meant_by(&IdentityTable::default()));
    }
}
