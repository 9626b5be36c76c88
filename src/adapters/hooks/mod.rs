//! Hooks that are commands: a program of a layer, run once for each time that it is asked.
//!
//! Promises: no shell; a process group of its own that ends with the run, however that ends; our base environment and nothing
//! else of ours; at most [`MAX_HOOK_OUTPUT`] bytes of each output; never longer than its timeout; the files that were bound
//! are compared again before each start (R7).
//!
//! Does not read what it prints: that is `model::hook_output`. A program that leaves its group (`setsid`) is beyond this; it
//! is not waited for.

mod output;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rustix::process::Signal;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{ChildStdin, Command};
use tokio::time::{Instant, sleep_until, timeout};

use self::output::Output;
use super::children::spawn::{self, Leader};
use crate::config::transport::BASE_ENVIRONMENT;
use crate::config::trust::first_changed;
use crate::model::digest::Digest;
use crate::model::hook::{HookExit, HookFault, HookFaultCode};
use crate::model::text::{seconds, shown};
use crate::ports::hook::{HookProgram, MAX_HOOK_OUTPUT};

/// How long the ends of its outputs are waited for once the program has ended: what it left running may hold them open.
const LAST_WORDS: Duration = Duration::from_millis(250);

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
        command
            .args(&launch.args)
            .env_clear()
            .envs(base)
            .current_dir(&launch.cwd)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    async fn start(&self) -> Result<Leader, HookFault> {
        let failed = |why: &str| self.fault(HookFaultCode::Spawn, &format!("cannot be started: {why}"));
        let started = spawn::start(self.command()).await.map_err(|why| failed(&why))?;
        started.map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => failed("no such program or folder"),
            std::io::ErrorKind::PermissionDenied => failed("not executable"),
            _ => failed(&error.to_string()),
        })
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
        let mut leader = self.start().await?;
        let Some((stdin, stdout, stderr)) = leader.pipes() else {
            return Err(self.fault(HookFaultCode::Spawn, "was started without its pipes"));
        };
        let (mut out, mut err) = (Output::of(stdout), Output::of(stderr));
        let run = run(&mut leader, tell(stdin, self.input(&input)), &mut out, &mut err);
        let ended = timeout(self.launch.timeout, run).await;
        // Whatever is left of the group ends now, and not when its number may be another's.
        leader.signal(Signal::KILL);
        let status = match ended {
            Ok(Ended::Exited(status)) => status,
            Ok(Ended::Flooded) => {
                let why = format!("printed more than {MAX_HOOK_OUTPUT} bytes");
                return Err(self.fault(HookFaultCode::OutputTooLarge, &why));
            }
            Ok(Ended::Lost) => return Err(self.fault(HookFaultCode::Spawn, "ended, and nobody can tell how")),
            Err(_) => {
                let why = format!("ran for longer than {}", seconds(self.launch.timeout));
                return Err(self.fault(HookFaultCode::Timeout, &why));
            }
        };
        leader.is_over();
        let Some(code) = status.code() else {
            return Err(self.fault(HookFaultCode::Signal, &format!("ended by a signal ({status})")));
        };
        let stdout = out.text().ok_or_else(|| self.fault(HookFaultCode::OutputInvalid, "printed what is no UTF-8"))?;
        Ok(HookExit { code, stdout, stderr: err.lossy() })
    }
}

/// How a run ended within its time.
enum Ended {
    Exited(ExitStatus),
    Flooded,
    Lost,
}

/// Gives it its input. One that does not read all of it may know enough.
async fn tell(mut stdin: ChildStdin, input: String) {
    let _ = stdin.write_all(input.as_bytes()).await;
    let _ = stdin.shutdown().await;
}

/// Reads until the program has ended and its outputs have, or for a moment longer.
async fn run(leader: &mut Leader, tell: impl Future<Output = ()>, out: &mut Output, err: &mut Output) -> Ended {
    let mut tell = std::pin::pin!(tell);
    let (mut told, mut status, mut over) = (false, None, Instant::now());
    loop {
        if let Some(status) = status
            && out.is_over()
            && err.is_over()
        {
            return Ended::Exited(status);
        }
        tokio::select! {
            () = &mut tell, if !told => told = true,
            fits = out.more(), if !out.is_over() => if !fits { return Ended::Flooded },
            fits = err.more(), if !err.is_over() => if !fits { return Ended::Flooded },
            ended = leader.exited(), if status.is_none() => match ended {
                Some(ended) => (status, over) = (Some(ended), Instant::now() + LAST_WORDS),
                None => return Ended::Lost,
            },
            () = sleep_until(over), if status.is_some() => match status {
                Some(status) => return Ended::Exited(status),
                None => return Ended::Lost,
            },
        }
    }
}
