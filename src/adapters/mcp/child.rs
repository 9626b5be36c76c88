//! How a server's process lives and ends.
//!
//! A child gets a process group of its own, the environment of its [`Launch`] and nothing else, and pipes for its three
//! streams. It ends with its connection: input closed, a second of grace, `SIGTERM` to the group, two more seconds,
//! `SIGKILL` to the group; what remains of the group when its leader has ended goes the same way. Whoever drops a
//! `Process` kills the group at once. On Linux the leader also dies with us, however we end: the parent-death signal
//! belongs to the *thread* that forked, so all forks happen on one thread that lives as long as the process.
//!
//! A process that leaves its group (`setsid`) is beyond this; so are grandchildren when we are killed with `SIGKILL`,
//! unless they end with their input.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::stderr::Stderr;
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

/// A running child and its group.
#[derive(Debug)]
pub(super) struct Process {
    child: Option<Child>,
    group: Pid,
    stderr: Stderr,
    runtime: Handle,
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
        let spawned = spawn(server.clone(), launch.clone()).await.map_err(|error| failed(&error))?;
        spawned.map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => failed("no such program"),
            std::io::ErrorKind::PermissionDenied => failed("not executable"),
            _ => failed(&error.to_string()),
        })
    }

    fn adopt(server: Arc<str>, mut child: Child, runtime: Handle) -> std::io::Result<(Self, Pipes)> {
        let missing = || std::io::Error::other("the child has no pipes");
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed())).ok_or_else(missing)?;
        let input = child.stdin.take().ok_or_else(missing)?;
        let output = child.stdout.take().ok_or_else(missing)?;
        let stderr = Stderr::read(server, child.stderr.take().ok_or_else(missing)?);
        Ok((Self { child: Some(child), group, stderr, runtime }, Pipes { input, output }))
    }

    /// Waits until the leader has ended, and reaps it. Cancel-safe.
    pub(super) async fn exited(&mut self) -> Option<ExitStatus> {
        self.child.as_mut()?.wait().await.ok()
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
                self.signal(Signal::TERM);
                match timeout(TERM, self.exited()).await {
                    Ok(status) => status,
                    Err(_) => return self.kill().await,
                }
            }
        };
        self.end_rest().await;
        self.child = None;
        status
    }

    /// Kills the group and reaps the leader.
    pub(super) async fn kill(&mut self) -> Option<ExitStatus> {
        self.signal(Signal::KILL);
        let status = timeout(KILL, self.exited()).await.ok().flatten();
        // Members that were being forked while the signal went round.
        self.signal(Signal::KILL);
        self.child = None;
        status
    }

    /// Ends what remains of the group when its leader has ended.
    async fn end_rest(&mut self) {
        if !self.exists() {
            return;
        }
        self.signal(Signal::TERM);
        let gone = async {
            while self.exists() {
                tokio::time::sleep(LOOK).await;
            }
        };
        if timeout(GRACE, gone).await.is_err() {
            self.signal(Signal::KILL);
        }
    }

    fn exists(&self) -> bool {
        rustix::process::test_kill_process_group(self.group).is_ok()
    }

    /// A group that is gone is no error. Its number is not given away while a member lives, and is used at once after
    /// the leader was reaped.
    fn signal(&self, signal: Signal) {
        let _ = rustix::process::kill_process_group(self.group, signal);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        self.signal(Signal::KILL);
        self.runtime.spawn(async move {
            let _ = child.wait().await;
        });
    }
}

type Spawned = std::io::Result<(Process, Pipes)>;

struct Order {
    server: Arc<str>,
    launch: Launch,
    runtime: Handle,
    done: oneshot::Sender<Spawned>,
}

/// Forks on the one thread that may.
async fn spawn(server: Arc<str>, launch: Launch) -> Result<Spawned, String> {
    static THREAD: OnceLock<Result<mpsc::Sender<Order>, String>> = OnceLock::new();
    let thread = THREAD.get_or_init(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        let run = move || {
            for Order { server, launch, runtime, done } in inbox {
                let _guard = runtime.enter();
                let spawned = command(&launch).spawn().and_then(|child| Process::adopt(server, child, runtime.clone()));
                // Nobody waits any more: the process is dropped with its group.
                let _ = done.send(spawned);
            }
        };
        let thread = std::thread::Builder::new().name("portcullis-spawn".to_owned()).spawn(run);
        thread.map(|_| orders).map_err(|error| format!("no thread to start it: {error}"))
    });
    let (done, spawned) = oneshot::channel();
    let order = Order { server, launch, runtime: Handle::current(), done };
    thread.as_ref()?.send(order).map_err(|_| "the thread that starts processes has ended".to_owned())?;
    spawned.await.map_err(|_| "the thread that starts processes has ended".to_owned())
}

fn command(launch: &Launch) -> Command {
    let mut command = Command::new(&launch.program);
    command
        .args(&launch.args)
        .env_clear()
        .envs(launch.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    if let Some(cwd) = &launch.cwd {
        command.current_dir(cwd);
    }
    die_with_us(&mut command);
    command
}

/// Lets the child be killed when we end. Between the fork and the call we may have ended already: then it does not run.
#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "`pre_exec`: the closure makes two system calls and neither allocates nor locks")]
fn die_with_us(command: &mut Command) {
    let us = rustix::process::getpid();
    let prepare = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        if rustix::process::getppid() == Some(us) { Ok(()) } else { Err(rustix::io::Errno::SRCH.into()) }
    };
    // SAFETY: see the reason above; between fork and exec only async-signal-safe calls are allowed, and these are.
    unsafe {
        command.pre_exec(prepare);
    }
}

#[cfg(not(target_os = "linux"))]
fn die_with_us(_command: &mut Command) {}
