//! How a server's process lives and ends.
//!
//! A child gets a process group of its own, the environment of its [`Launch`] and nothing else, and pipes for its three
//! streams. It ends with its connection: input closed, a second of grace, `SIGTERM` to the group, two more seconds,
//! `SIGKILL` to the group; what remains of the group when its leader has ended goes the same way. Whoever drops a
//! `Process` kills the group at once. When we end, however we end, the group ends with us: on Linux the leader by its
//! parent-death signal, all of it by the guard (both in `adapters::children`).
//!
//! A process that leaves its group (`setsid`) is beyond this.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::process::{ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::stderr::Stderr;
use crate::adapters::children::spawn::{self, Leader};
use crate::model::text;

/// How long a child may take to end once its input is closed.
const GRACE: Duration = Duration::from_secs(1);
/// How long it may take after `SIGTERM`.
const TERM: Duration = Duration::from_secs(2);
/// How long an end by `SIGKILL` is waited for; only a process that hangs in the kernel takes longer.
const KILL: Duration = Duration::from_secs(5);
/// How long the rest of stderr is waited for.
const LAST_WORDS: Duration = Duration::from_millis(250);
/// How often the rest of a group is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// How a server is started. The caller decides everything: nothing is inherited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// The program; without a slash it is searched in the `PATH` of [`Launch::env`].
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// The working directory; ours if there is none.
    pub cwd: Option<PathBuf>,
    /// The whole environment. Usually the caller puts `PATH`, `HOME`, `LANG` and the like here, and what the server's
    /// configuration names; variables that are not here do not exist for the child.
    pub env: Vec<(String, String)>,
}

/// The child's input and output.
pub(super) struct Pipes {
    pub(super) input: ChildStdin,
    pub(super) output: ChildStdout,
}

/// A running child and its group. Dropping it kills the group.
#[derive(Debug)]
pub(super) struct Process {
    leader: Leader,
    stderr: Stderr,
}

impl Process {
    /// Starts a child.
    ///
    /// # Errors
    /// A text that names the command and says what is wrong with it.
    pub(super) async fn start(server: &Arc<str>, launch: &Launch) -> Result<(Self, Pipes), String> {
        if let Some(cwd) = &launch.cwd
            && !cwd.is_dir()
        {
            let cwd = text::shown(&cwd.display().to_string(), 256);
            return Err(format!("the working directory `{cwd}` does not exist"));
        }
        let failed = |why: &str| format!("command `{}`: {why}", text::shown(&launch.program, 256));
        let started = spawn::start(command(launch)).await.map_err(|error| failed(&error))?;
        let adopted = started.and_then(|leader| Self::adopt(server.clone(), leader));
        adopted.map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => failed("no such program"),
            std::io::ErrorKind::PermissionDenied => failed("not executable"),
            _ => failed(&error.to_string()),
        })
    }

    fn adopt(server: Arc<str>, mut leader: Leader) -> std::io::Result<(Self, Pipes)> {
        let pipes = leader.pipes().ok_or_else(|| std::io::Error::other("the child has no pipes"))?;
        let (input, output, errors) = pipes;
        Ok((Self { leader, stderr: Stderr::read(server, errors) }, Pipes { input, output }))
    }

    /// Waits until the leader has ended, and reaps it. Cancel-safe.
    pub(super) async fn exited(&mut self) -> Option<ExitStatus> {
        self.leader.exited().await
    }

    /// Returns the end of what it wrote to stderr, after a short wait for the rest.
    pub(super) async fn last_words(&mut self) -> Option<String> {
        self.stderr.finished(LAST_WORDS).await;
        self.stderr.tail()
    }

    /// Adds the end of what it wrote to stderr to a reason.
    pub(super) async fn with_last_words(&mut self, why: String) -> String {
        match self.last_words().await {
            Some(words) => format!("{why}; stderr: {words}"),
            None => format!("{why}; nothing on stderr"),
        }
    }

    /// Ends the group gently, then firmly; returns the leader's status. The child's input is closed by then.
    pub(super) async fn shut_down(&mut self) -> Option<ExitStatus> {
        let status = match timeout(GRACE, self.exited()).await {
            Ok(status) => status,
            Err(_) => {
                self.leader.signal(Signal::TERM);
                match timeout(TERM, self.exited()).await {
                    Ok(status) => status,
                    Err(_) => return self.kill().await,
                }
            }
        };
        self.end_rest().await;
        self.leader.is_over();
        status
    }

    /// Kills the group and reaps the leader.
    pub(super) async fn kill(&mut self) -> Option<ExitStatus> {
        self.leader.signal(Signal::KILL);
        let status = timeout(KILL, self.exited()).await.ok().flatten();
        // Members that were being forked while the signal went round.
        self.leader.signal(Signal::KILL);
        self.leader.is_over();
        status
    }

    /// Ends what remains of the group when its leader has ended.
    async fn end_rest(&mut self) {
        if !self.leader.group_exists() {
            return;
        }
        self.leader.signal(Signal::TERM);
        let gone = async {
            while self.leader.group_exists() {
                tokio::time::sleep(LOOK).await;
            }
        };
        if timeout(GRACE, gone).await.is_err() {
            self.leader.signal(Signal::KILL);
        }
    }
}

fn command(launch: &Launch) -> Command {
    let mut command = Command::new(&launch.program);
    command
        .args(&launch.args)
        .env_clear()
        .envs(launch.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if let Some(cwd) = &launch.cwd {
        command.current_dir(cwd);
    }
    command
}
