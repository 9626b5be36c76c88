//! The command line: parses, wires a host from the configuration, prints. One file a command.
//!
//! Data goes to stdout, talk to stderr; everything is meaningful without colour. Sees only what `portcullis::` offers.

pub(crate) mod args;
pub(crate) mod exit;
pub(crate) mod render;

mod approval_args;
mod approvals;
mod audit;
mod call;
mod compile;
mod config;
mod decision;
mod demo;
mod explain;
mod lock;
mod login;
mod logout;
mod logs;
mod policy;
mod record_args;
mod replay;
mod serve;
mod setup;
mod stdio;
mod terminal;
mod tools;
mod trust;

use portcullis::adapters::wasm::compile::Bounds;
use std::time::Duration;

use args::{Cli, Command, Global};
use exit::{Exit, Trouble};

/// How long tasks that cannot be interrupted are waited for at the end.
const LAST_MOMENT: Duration = Duration::from_millis(200);

/// Runs a command to its end.
pub(crate) fn run(cli: Cli) -> Result<Exit, Trouble> {
    let Cli { command, global } = cli;
    // Before anything else: it has no environment, says nothing, and its whole process is bounded.
    if let Command::Compile { engine, class, seconds, mebibytes } = &command {
        return compile::run(engine, class, Bounds { seconds: *seconds, mebibytes: *mebibytes });
    }
    // `tools` lists what failed by itself, and the demo's calendar is down on purpose.
    let quiet = matches!(command, Command::Demo | Command::Tools { .. });
    logs::start(&global, if quiet { "error" } else { "warn" })?;
    if global.log_arguments && global.log.is_none() {
        return Err(Trouble::new(Exit::Usage, "`--log-arguments` needs `--log FILE`"));
    }
    match command {
        Command::Config(args::Config::Show) => config::show(&global),
        Command::Config(args::Config::Check) => config::check(&global),
        Command::Policy(args::Policy::Sign(sign)) => policy::sign(&global, &sign),
        Command::Policy(args::Policy::Verify(verify)) => policy::verify(&global, &verify),
        Command::Policy(args::Policy::Lock(wanted)) => lock::run(&global, &wanted),
        Command::Trust(trust) => trust::run(&global, &trust),
        Command::Approvals(wanted) => approvals::run(&global, &wanted),
        Command::Audit(wanted) => audit::run(&global, &wanted),
        other => on_runtime(other, &global),
    }
}

fn on_runtime(command: Command, global: &Global) -> Result<Exit, Trouble> {
    let built = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = built.map_err(|error| Trouble::caused(Exit::Failed, "cannot start the runtime", &error))?;
    let ended = runtime.block_on(async {
        match command {
            Command::Serve => Box::pin(serve::run(global)).await,
            Command::Call(target) => Box::pin(call::run(global, target)).await,
            Command::Tools { audience, search, no_namespaces } => {
                Box::pin(tools::run(global, audience, tools::Model { search, namespaces: !no_namespaces })).await
            }
            Command::Explain(target) => Box::pin(explain::run(global, target)).await,
            Command::Demo => Box::pin(demo::run(global)).await,
            Command::Login(login) => Box::pin(login::run(global, &login)).await,
            Command::Logout { server } => Box::pin(logout::run(global, &server)).await,
            Command::Policy(args::Policy::Replay(wanted)) => Box::pin(replay::replay(global, &wanted)).await,
            Command::Policy(args::Policy::Diff(wanted)) => Box::pin(replay::diff(global, &wanted)).await,
            Command::Config(_)
            | Command::Policy(_)
            | Command::Audit(_)
            | Command::Trust(_)
            | Command::Approvals(_)
            | Command::Compile { .. } => Ok(Exit::Done),
        }
    });
    // A thread that reads a terminal or stdin cannot be interrupted.
    runtime.shutdown_timeout(LAST_MOMENT);
    ended
}
