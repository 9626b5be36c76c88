//! Hooks that are commands: a program of a layer, run once for each time that it is asked.
//!
//! Promises: no shell; a process group of its own that ends with the run, however that ends; our base environment and nothing
//! else of ours; at most [`MAX_HOOK_OUTPUT`] bytes of each output; never longer than its timeout; the files that were bound
//! are compared again before each start (R7).
//!
//! Does not read what it prints: that is `model::hook_output`. A program that leaves its group (`setsid`) is beyond this; it
//! is not waited for.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::process::Command;
use tokio::time::timeout;

use super::children::once::{self, NotEnded};
use crate::config::transport::BASE_ENVIRONMENT;
use crate::config::trust::first_changed;
use crate::model::digest::Digest;
use crate::model::hook::{HookExit, HookFault, HookFaultCode};
use crate::model::text::{seconds, shown};
use crate::ports::hook::{HookProgram, MAX_HOOK_OUTPUT};

/// How a hook's program is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookLaunch {
    /// The program, absolute.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its working directory; it is told of it as `cwd`.
    pub cwd: PathBuf,
    /// How long it may run.
    pub timeout: Duration,
    /// The files that it was bound to: each must still be this. None: the file did not exist.
    pub bound: BTreeMap<PathBuf, Option<Digest>>,
}

/// A hook that is a command.
#[derive(Debug, Clone)]
pub struct HookCommand {
    launch: Arc<HookLaunch>,
}

impl HookCommand {
    /// Makes one; nothing is started before it is asked.
    #[must_use]
    pub fn new(launch: HookLaunch) -> Self {
        Self { launch: Arc::new(launch) }
    }

    fn fault(&self, code: HookFaultCode, why: &str) -> HookFault {
        HookFault::new(code, format!("`{}` {why}", shown(&self.launch.program.display().to_string(), 256)))
    }

    /// R7: what was bound may have changed since the configuration was read.
    async fn check(&self) -> Result<(), HookFault> {
        if self.launch.bound.is_empty() {
            return Ok(());
        }
        let launch = Arc::clone(&self.launch);
        let missing = |why: String| HookFault::new(HookFaultCode::Missing, why);
        match tokio::task::spawn_blocking(move || first_changed(&launch.bound)).await {
            Ok(None) => Ok(()),
            Ok(Some(what)) => Err(missing(format!("{what}; load the configuration anew, or trust the project again"))),
            Err(_) => Err(missing("comparing its files with what was bound was broken off".to_owned())),
        }
    }

    fn command(&self) -> Command {
        let launch = &self.launch;
        let base = BASE_ENVIRONMENT.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
        let mut command = Command::new(&launch.program);
        command.args(&launch.args).env_clear().envs(base).current_dir(&launch.cwd);
        command
    }

    /// The object that it is told, with the folder in which it runs.
    fn input(&self, input: &str) -> String {
        let cwd = serde_json::Value::from(self.launch.cwd.display().to_string());
        match input.strip_prefix('{') {
            Some("}") | None => input.to_owned(),
            Some(rest) => format!("{{\"cwd\":{cwd},{rest}"),
        }
    }
}

#[async_trait]
impl HookProgram for HookCommand {
    async fn run(&self, input: Arc<str>) -> Result<HookExit, HookFault> {
        self.check().await?;
        let run = once::run(self.command(), self.input(&input), (MAX_HOOK_OUTPUT, MAX_HOOK_OUTPUT));
        let Ok(ended) = timeout(self.launch.timeout, run).await else {
            let why = format!("ran for longer than {}", seconds(self.launch.timeout));
            return Err(self.fault(HookFaultCode::Timeout, &why));
        };
        let ended = ended.map_err(|why| {
            let code = match why {
                NotEnded::Start(_) | NotEnded::Thread(_) | NotEnded::Lost => HookFaultCode::Spawn,
                NotEnded::Flooded(_) => HookFaultCode::OutputTooLarge,
            };
            self.fault(code, &why.to_string())
        })?;
        let Some(code) = ended.status.code() else {
            return Err(self.fault(HookFaultCode::Signal, &format!("ended by a signal ({})", ended.status)));
        };
        let stdout = String::from_utf8(ended.stdout)
            .map_err(|_| self.fault(HookFaultCode::OutputInvalid, "printed what is no UTF-8"))?;
        Ok(HookExit { code, stdout, stderr: String::from_utf8_lossy(&ended.stderr).into_owned() })
    }
}
