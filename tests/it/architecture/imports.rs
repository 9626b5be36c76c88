//! Which part may use which: the table of ARCHITECTURE.md.

use super::source::{self, Source};

/// The phases of a call. Their order is the order of the call, and of the alphabet.
const PHASES: [&str; 6] = ["admit", "bind", "consent", "dispatch", "emit", "follow"];

/// The one adapter's folder or file that all adapters may use: how a process is started with nothing of ours. It uses nothing.
const SHARED: &str = "children";

/// A part of the crate, as the table knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Model,
    Ports,
    Config,
    /// `pipeline/mod.rs` and what is beside the phases.
    Pipeline,
    Phase(usize),
    /// `adapters/mod.rs`.
    Adapters,
    Adapter(String),
    Host,
    Gateway,
    /// `main.rs` and `cli/`: a crate of their own, which sees what `portcullis::` offers.
    Cli,
    /// `lib.rs`, and what only it offers.
    Root,
    Unknown(String),
}

impl Part {
    /// The part that a path from the crate's root leads to.
    fn of(path: &[String]) -> Self {
        let second = path.get(1).map(String::as_str);
        match path.first().map_or("", String::as_str) {
            "model" => Self::Model,
            "ports" => Self::Ports,
            "config" => Self::Config,
            "pipeline" => {
                let phase = second.and_then(|name| PHASES.iter().position(|phase| *phase == name));
                phase.map_or(Self::Pipeline, Self::Phase)
            }
            "adapters" => second.map_or(Self::Adapters, |name| Self::Adapter(name.to_owned())),
            "host" => Self::Host,
            "gateway" => Self::Gateway,
            "cli" => Self::Cli,
            "" => Self::Root,
            // A name that is no module: an item or a glob of the root.
            name if path.len() == 1 && !name.starts_with(char::is_lowercase) => Self::Root,
            name => Self::Unknown(name.to_owned()),
        }
    }

    fn may_use(&self, other: &Self) -> bool {
        use Part::{Adapter, Adapters, Cli, Config, Gateway, Host, Model, Phase, Pipeline, Ports, Root, Unknown};
        if self == other {
            return !matches!(self, Unknown(_));
        }
        match self {
            Model | Cli | Unknown(_) => false,
            Ports | Config => *other == Model,
            Phase(mine) => matches!(other, Model | Ports) || matches!(other, Phase(theirs) if theirs < mine),
            Pipeline => matches!(other, Model | Ports | Phase(_)),
            Adapters => matches!(other, Adapter(_)),
            Adapter(name) if name == SHARED => false,
            Adapter(_) => {
                matches!(other, Model | Ports | Config) || matches!(other, Adapter(shared) if shared == SHARED)
            }
            Host => matches!(other, Model | Ports | Config | Pipeline | Phase(_) | Adapters | Adapter(_)),
            Gateway => matches!(other, Model | Ports | Config | Pipeline | Phase(_) | Adapters | Adapter(_) | Host),
            Root => !matches!(other, Cli | Unknown(_)),
        }
    }

    /// Whether code of this part may name a crate that belongs to an edge.
    fn may_name(&self, krate: &str) -> bool {
        match krate {
            "wasmtime" => matches!(self, Self::Adapter(name) if name == "wasm"),
            "opentelemetry" | "opentelemetry_sdk" | "opentelemetry_proto" | "tracing_opentelemetry" => {
                matches!(self, Self::Adapter(name) if name == "telemetry")
            }
            "rmcp" => !matches!(self, Self::Model | Self::Ports | Self::Config | Self::Pipeline | Self::Phase(_)),
            "tokio" | "std::process" => *self != Self::Model,
            _ => true,
        }
    }
}

/// What in `text` breaks the table; `file` is its path below `src`, with `/` between folders.
pub(super) fn violations(file: &str, text: &str) -> Vec<String> {
    let binary = file == "main.rs" || file.starts_with("cli/");
    let module = module_of(file);
    let part = if binary { Part::Cli } else { Part::of(&module) };
    let source = Source::read(text);
    let code = source.without_tests();
    let mut out = Vec::new();
    if let Part::Unknown(name) = &part {
        out.push(format!("{file}: `{name}` has no place in the table"));
    }

    let mut paths = source::paths(&code, &module);
    for (line, literal) in &source.literals {
        // serde and clap take paths as texts.
        if literal.starts_with("crate::") || literal.starts_with("super::") {
            paths.extend(source::paths(literal, &module).into_iter().map(|(_, path)| (*line, path)));
        }
    }
    for (line, path) in paths {
        let target = match Part::of(&path) {
            Part::Root if binary => Part::Cli,
            target => target,
        };
        if !part.may_use(&target) {
            out.push(format!("{file}:{line}: {part:?} uses `{}` ({target:?})", path.join("::")));
        }
    }
    // The demo brings real MCP servers of its own.
    let is_demo_server = |krate: &str| krate == "rmcp" && file == "cli/demo/servers.rs";
    for (line, krate) in source::crates(&code) {
        if !part.may_name(&krate) && !is_demo_server(&krate) {
            out.push(format!("{file}:{line}: {part:?} names the crate `{krate}`"));
        }
    }
    // Ways around the file's place in the tree.
    for (word, next) in [("path", "#[path"), ("include", "include!("), ("extern", "extern crate")] {
        for line in source::lines_with(&code, word) {
            let text: String = code.lines().nth(line - 1).unwrap_or_default().split_whitespace().collect();
            if text.contains(&next.replace(' ', "")) {
                out.push(format!("{file}:{line}: `{next}` hides what belongs where"));
            }
        }
    }
    out
}

fn module_of(file: &str) -> Vec<String> {
    let mut module: Vec<String> = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    module.pop_if(|last| matches!(last.as_str(), "mod" | "lib" | "main"));
    module
}
