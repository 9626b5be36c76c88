//! How a process is started: on one thread, and with nothing of ours but what it is given.
//!
//! The parent-death signal (Linux) belongs to the *thread* that forked, so all forks happen on one that lives as long as
//! the process. The same thread keeps the [`Guard`], which is told of every group before its first message is read.

use std::io;
use std::process::{Command, ExitStatus};
use std::sync::{Arc, OnceLock, mpsc};

use rustix::process::{Pid, Signal};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::guard::{Guard, LOOK};

/// A process that leads a group of its own; the guard knows the group. Dropping it kills the group.
#[derive(Debug)]
pub(in crate::adapters) struct Leader {
    /// Gone once it has been reaped and what is left of its group has been dealt with.
    child: Option<Child>,
    group: Pid,
    runtime: Handle,
    orders: mpsc::Sender<Order>,
}

impl Leader {
    /// Returns its input, output and error stream, once.
    pub(in crate::adapters) fn pipes(&mut self) -> Option<(ChildStdin, ChildStdout, ChildStderr)> {
        let child = self.child.as_mut()?;
        Some((child.stdin.take()?, child.stdout.take()?, child.stderr.take()?))
    }

    /// Waits until it has ended, and reaps it. Cancel-safe.
    pub(in crate::adapters) async fn exited(&mut self) -> Option<ExitStatus> {
        self.child.as_mut()?.wait().await.ok()
    }

    /// Whether there is a member of the group.
    pub(in crate::adapters) fn group_exists(&self) -> bool {
        rustix::process::test_kill_process_group(self.group).is_ok()
    }

    /// Signals the group. One that is gone is no error. Its number is not given away while a member lives, and is used at
    /// once after the leader was reaped.
    pub(in crate::adapters) fn signal(&self, signal: Signal) {
        let _ = rustix::process::kill_process_group(self.group, signal);
    }

    /// Nothing is left to be killed.
    pub(in crate::adapters) fn is_over(&mut self) {
        self.child = None;
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            self.signal(Signal::KILL);
            self.runtime.spawn(async move {
                let _ = child.wait().await;
            });
        }
        // The thread ends with the process only.
        let _ = self.orders.send(Order::Leaves(self.group));
    }
}

enum Order {
    Start(Box<Start>),
    Leaves(Pid),
}

struct Start {
    command: tokio::process::Command,
    runtime: Handle,
    done: oneshot::Sender<io::Result<Leader>>,
}

/// Starts a process as the leader of a group of its own. Needs a running tokio.
///
/// # Errors
/// Outer: we could not get as far as starting it. Inner: what starting it came to.
pub(in crate::adapters) async fn start(mut command: tokio::process::Command) -> Result<io::Result<Leader>, Arc<str>> {
    static THREAD: OnceLock<Result<mpsc::Sender<Order>, Arc<str>>> = OnceLock::new();
    let thread = THREAD.get_or_init(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        let own = orders.clone();
        let thread = std::thread::Builder::new().name("portcullis-spawn".to_owned()).spawn(move || run(&inbox, &own));
        thread.map(|_| orders).map_err(|error| format!("no thread to start it: {error}").into())
    });
    command.process_group(0).kill_on_drop(true);
    die_with_us(command.as_std_mut());
    super::keep_nothing(command.as_std_mut());
    let (done, started) = oneshot::channel();
    let order = Order::Start(Box::new(Start { command, runtime: Handle::current(), done }));
    let ended = || Arc::from("the thread that starts processes has ended");
    thread.as_ref().map_err(Arc::clone)?.send(order).map_err(|_| ended())?;
    started.await.map_err(|_| ended())
}

fn run(inbox: &mpsc::Receiver<Order>, orders: &mpsc::Sender<Order>) {
    let mut guard = Guard::default();
    loop {
        let order = if guard.watches() {
            inbox.recv_timeout(LOOK)
        } else {
            inbox.recv().map_err(|_| mpsc::RecvTimeoutError::Disconnected)
        };
        match order {
            Ok(Order::Start(start)) => {
                let Start { mut command, runtime, done } = *start;
                guard.stand_by();
                let _entered = runtime.enter();
                let started = command.spawn().and_then(|child| {
                    let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
                    let group = group.ok_or_else(|| io::Error::other("the child has no number"))?;
                    guard.joined(group);
                    Ok(Leader { child: Some(child), group, runtime: runtime.clone(), orders: orders.clone() })
                });
                // Nobody waits any more: the leader is dropped with its group.
                let _ = done.send(started);
            }
            Ok(Order::Leaves(group)) => guard.leaves(group),
            Err(mpsc::RecvTimeoutError::Timeout) => guard.look(),
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Lets the child be killed when we end. Between the fork and the call we may have ended already: then it does not run.
#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "`pre_exec`: the closure makes two system calls and neither allocates nor locks")]
fn die_with_us(command: &mut Command) {
    use std::os::unix::process::CommandExt as _;
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
