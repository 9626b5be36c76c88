//! The commands and flags, with their help.

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};

use super::approval_args::Approvals;
use super::record_args::{Audit, Diff, Replay};

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed
  2  usage or configuration
  3  refused by policy
  4  stale or unavailable
  5  the tool answered with an error";

/// A policy host for MCP tool calls.
///
/// Portcullis stands between an agent and its MCP servers. Every call is decided by policy components in a WebAssembly
/// sandbox, one set for each configuration layer; a layer can tighten what others allow, and a component that fails
/// refuses.
#[derive(Debug, Parser)]
#[command(name = "portcullis", version, max_term_width = 100, after_help = EXIT_CODES, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Flags of all commands.
    #[command(flatten)]
    pub global: Global,
}

/// Flags of all commands.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// How data is printed
    #[arg(long, global = true, value_enum, default_value_t = Format::Human, value_name = "FORMAT")]
    pub format: Format,
    /// When to colour; `auto` honours NO_COLOR and terminals
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto, value_name = "WHEN")]
    pub color: Color,
    /// Read another configuration file as a session layer; may be given several times
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Vec<PathBuf>,
    /// Set one configuration key for this session, as in TOML; may be given several times
    #[arg(short = 'c', global = true, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Add the restrictions of another managed file
    #[arg(long, global = true, value_name = "FILE")]
    pub managed: Option<PathBuf>,
    /// Append items and decisions to a file as JSON lines
    #[arg(long, global = true, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Keep the calls' arguments in the log file too; they may hold secrets
    #[arg(long, global = true)]
    pub log_arguments: bool,
    /// Say more on stderr; twice for debugging. PORTCULLIS_LOG takes a filter instead
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
    /// Say only errors on stderr
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
}

/// How data is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Human,
    /// One JSON value, or one a line.
    Json,
}

/// When to colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On terminals, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve all configured servers as one MCP server on stdin and stdout
    ///
    /// An MCP client starts this as its only server. Ends, with every server that it started, at the end of its input or
    /// at SIGTERM, SIGINT or SIGHUP.
    #[command(after_long_help = "\
Example, in a client's configuration:
  { \"mcpServers\": { \"portcullis\": { \"command\": \"portcullis\", \"args\": [\"serve\"] } } }")]
    Serve,
    /// Make one call through the pipeline
    ///
    /// Prints what a model would read. If somebody must agree, the terminal is asked; without one, the call is refused.
    #[command(after_long_help = "\
Examples:
  portcullis call files/read_file '{\"path\":\"notes.txt\"}'
  echo '{\"path\":\"notes.txt\"}' | portcullis call files/read_file -
  portcullis call files/write_file @arguments.json --format json")]
    Call(Target),
    /// List the tools: raw and visible names, exposure and its reason
    ///
    /// Starts every enabled server and waits until it is ready or has failed. What cannot be used is listed too, with the
    /// reason.
    #[command(after_long_help = "\
Examples:
  portcullis tools
  portcullis tools --for responses --format json
  portcullis tools --for responses --no-namespaces
  portcullis tools --search")]
    Tools {
        /// Whose names to show: those of the gateway's clients, or namespaces and names for a Responses model
        #[arg(long = "for", value_enum, default_value_t = Audience::Mcp, value_name = "AUDIENCE")]
        audience: Audience,
        /// As if tools were found by search, whatever the configuration and the number of tools say
        #[arg(long)]
        search: bool,
        /// With `--for responses`: as for a model whose provider takes no namespaces, and so none of these tools
        #[arg(long)]
        no_namespaces: bool,
    },
    /// Say what a call would come to, and why, without making it
    ///
    /// Every layer's verdict, the fold step by step, and what would happen. The same code as `call`, up to the point where
    /// somebody is asked or the call is sent. Exits 0 if the call would run or somebody would be asked, 3 if it would be
    /// refused, 4 if its tool is unavailable.
    #[command(after_long_help = "\
Example:
  portcullis explain files/write_file '{\"path\":\"notes.txt\",\"text\":\"hello\"}'")]
    Explain(Target),
    /// Show the main job on embedded defaults, with nothing to install
    ///
    /// Starts small MCP servers inside of this process and makes calls that are allowed, asked about, denied, failed
    /// closed, stale and unavailable. Exits 0 only if every call went as its story says.
    #[command(after_long_help = "\
Examples:
  portcullis demo
  portcullis demo --format json")]
    Demo,
    /// Show or check the configuration
    #[command(subcommand)]
    Config(Config),
    /// Sign, verify and lock policy components, and take recorded decisions again
    #[command(subcommand)]
    Policy(Policy),
    /// Answer questions that wait, and see what is remembered
    ///
    /// A call that needs a person waits in a queue, too, and can be answered from any terminal of yours. Allowing needs a
    /// terminal, and a code that is shown only there, or the approver key in PORTCULLIS_APPROVER_KEY. Refusing and
    /// forgetting need neither. If whoever asked has gone, an allow holds for the same call once, for a day.
    #[command(subcommand)]
    Approvals(Approvals),
    /// Read the record of calls, and verify it
    ///
    /// The record is the folder that `[records]` keeps, or the files of `--log`.
    #[command(subcommand)]
    Audit(Audit),
    /// Log in to an HTTP server by OAuth, in the browser
    ///
    /// Finds the server's authorisation server, prints where to go, waits for the browser to come back to this machine, and
    /// keeps the tokens in a file that only you can read. They are renewed by themselves for as long as the authorisation
    /// server allows it.
    #[command(after_long_help = "\
Examples:
  portcullis login tracker
  portcullis login tracker --no-browser --scope issues:read --format json")]
    Login(Login),
    /// Forget the login to an HTTP server
    ///
    /// Removes the tokens from this machine, and has the authorisation server revoke them if it can be told so.
    #[command(after_long_help = "\
Example:
  portcullis logout tracker")]
    Logout {
        /// The server, by its name in the configuration
        #[arg(value_name = "SERVER")]
        server: String,
    },
    /// Be the child that compiles one component, from stdin to stdout
    #[command(name = portcullis::adapters::wasm::compile::COMMAND, hide = true)]
    Compile {
        /// The engine: with a memory pool, or without
        engine: String,
        /// The component's class
        class: String,
        /// Processor time, in seconds
        seconds: u64,
        /// Memory, in MiB
        mebibytes: u64,
    },
    /// Trust a project folder's configuration layer
    ///
    /// A project's `.portcullis/config.toml` is ignored until you trust its folder, as it is now: any change of what it
    /// makes us load or run needs your trust again. Needs a terminal, and a code that is shown only there, so that no
    /// program can do it in your place.
    #[command(after_long_help = "\
Examples:
  portcullis trust
  portcullis trust --list
  portcullis trust --remove old/project")]
    Trust(Trust),
}

/// A tool and its arguments.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// The tool, by its raw names
    #[arg(value_name = "SERVER/TOOL")]
    pub tool: String,
    /// Its arguments: a JSON object, `-` for stdin, or `@FILE`. Default: none
    #[arg(value_name = "ARGS", allow_hyphen_values = true)]
    pub arguments: Option<String>,
}

/// Whose names to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Audience {
    /// Flat names, as MCP clients see them.
    Mcp,
    /// Namespaces and names, as a Responses model sees them.
    Responses,
}

/// What to do with the configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Print every effective value with its origin
    #[command(after_long_help = "\
Example:
  portcullis config show -c approval_policy=never")]
    Show,
    /// Report what is wrong; exits 2 if anything is
    #[command(after_long_help = "\
Example:
  portcullis config check --config candidate.toml")]
    Check,
}

/// What to do with a policy component.
#[derive(Debug, Subcommand)]
pub(crate) enum Policy {
    /// Sign a component with an Ed25519 key
    ///
    /// Writes the signature beside the component, with `.sig` appended, and prints the public key, which
    /// `[requirements.components]` lists under `signers`. The private key is read from a file that only you may read.
    #[command(after_long_help = "\
Examples:
  portcullis policy sign paths.wasm --new-key release.key
  portcullis policy sign paths.wasm --key release.key --format json")]
    Sign(Sign),
    /// Verify the signature beside a component; exits 3 if it does not hold
    ///
    /// Without `--pub`, a signature of any key that the configuration's requirements list counts.
    #[command(after_long_help = "\
Examples:
  portcullis policy verify paths.wasm
  portcullis policy verify paths.wasm --pub \"$RELEASE_KEY\"")]
    Verify(Verify),
    /// Record what the components and data of layers are, in `policies.lock` beside their files
    ///
    /// Where a folder has a lock, a policy that is not in it or is not what it records refuses what it matches. Says for each
    /// layer what became of it; exits 1 if something was refused. With `--check` writes nothing, prints every disagreement,
    /// and exits 3 if there is any. Lock a project before `portcullis trust`: trust binds its lock.
    #[command(after_long_help = "\
Examples:
  portcullis policy lock
  portcullis policy lock --layer project
  portcullis policy lock build/organisation.toml
  portcullis policy lock --check --format json")]
    Lock(Lock),
    /// Take recorded decisions again by the policies in force; exits 3 if one comes to something else
    ///
    /// Needs records whose inputs were kept (`[records]` `inputs = true`). What cannot be taken again is told with the reason.
    #[command(after_long_help = "\
Examples:
  portcullis policy replay
  portcullis policy replay calls.jsonl --format json")]
    Replay(Replay),
    /// Say which recorded decisions would change with another layer file, and why; exits 3 if one would
    ///
    /// The file takes the place of the layer of its kind; its components and data are relative to it. No server is started and
    /// nothing is kept.
    #[command(after_long_help = "\
Examples:
  portcullis policy diff --candidate new.toml --records calls.jsonl
  portcullis policy diff --candidate managed.toml --layer managed --format json")]
    Diff(Diff),
}

/// Which layers to lock, or only to compare.
#[derive(Debug, Args)]
pub(crate) struct Lock {
    /// A layer file. Default: every layer found that has policies
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Only layers of this kind; with FILE, what it is if it is none of the layers found
    #[arg(long, value_enum, value_name = "LAYER")]
    pub layer: Option<LayerWord>,
    /// Write nothing; exit 3 if a lock is not what is there
    #[arg(long)]
    pub check: bool,
}

/// A kind of layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LayerWord {
    /// The machine's managed file.
    Managed,
    /// The machine's.
    System,
    /// The organisation's.
    Organisation,
    /// The user's.
    User,
    /// Those of `--config`.
    Session,
    /// Projects'.
    Project,
}

/// What to sign, and with which key.
#[derive(Debug, Args)]
pub(crate) struct Sign {
    /// The component
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The file with the private key
    #[arg(long, value_name = "KEYFILE", required_unless_present = "new_key")]
    pub key: Option<PathBuf>,
    /// Make a key, and keep it in this file, which must not exist
    #[arg(long, value_name = "KEYFILE", conflicts_with = "key")]
    pub new_key: Option<PathBuf>,
}

/// Which component, and whose signature.
#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// The component
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The public key, in base64
    #[arg(long = "pub", value_name = "KEY")]
    pub public: Option<String>,
}

/// Which server, and how.
#[derive(Debug, Args)]
pub(crate) struct Login {
    /// The server, by its name in the configuration
    #[arg(value_name = "SERVER")]
    pub server: String,
    /// Print where to go, and start no browser
    #[arg(long)]
    pub no_browser: bool,
    /// How long to wait for you, 1 to 3,600 seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub timeout: u64,
    /// Ask for this scope instead of those of the configuration; may be given several times
    #[arg(long = "scope", value_name = "SCOPE")]
    pub scopes: Vec<String>,
    /// The issuer that you expect: any other is refused, and the endpoints of this one may be on other hosts
    #[arg(long, value_name = "URL")]
    pub issuer: Option<url::Url>,
}

/// Which folder, and what about it.
#[derive(Debug, Args)]
pub(crate) struct Trust {
    /// The project folder
    #[arg(value_name = "DIR", default_value = ".", conflicts_with = "list")]
    pub dir: PathBuf,
    /// List the trusted folders
    #[arg(long, conflicts_with = "remove")]
    pub list: bool,
    /// Take the trust back
    #[arg(long)]
    pub remove: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_commands_are_consistent() {
        Cli::command().debug_assert();
    }
}
