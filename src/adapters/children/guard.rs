//! What ends the processes that we started when we cannot: a small process of our own that outlives us for a moment.
//!
//! Nothing of us runs after a `SIGKILL`. The parent-death signal ends the leader of each group then, where there is one
//! (Linux), but a wrapper's grandchildren may ignore the end of their input. So there is one guard for the whole process,
//! started before the first server. It reads from a pipe which groups there are, and when the pipe ends, which it does
//! however we end, it kills those that are still there and ends itself.
//!
//! Promises: the guard is a constant script for `/bin/sh` (whoever embeds us has no program of ours to run) with an empty
//! environment, in a group of its own, deaf to the terminal's signals; it holds its pipe and `/dev/null`. A group is struck
//! off once all of it is gone, so a number that was given away again is not killed. A guard that ends or does not read is
//! replaced; without any, servers run all the same, and that is said once.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use rustix::process::Pid;

/// How often groups that are about to end are looked at.
pub(super) const LOOK: Duration = Duration::from_millis(20);
/// How many guards are started before we go on without.
const STARTS: u32 = 5;

/// Reads `+GROUP` and `-GROUP`, one a line, and at the end of its input kills what is left. Takes nothing but numbers from
/// 2 on; uses no program but the shell itself.
const SCRIPT: &str = r#"
trap '' HUP INT TERM QUIT
groups=
while IFS= read -r order; do
    number=${order#[+-]}
    case $number in '' | 0* | 1 | *[!0-9]*) continue ;; esac
    case $order in
    +*) groups="$groups $number" ;;
    -*)
        left=
        for group in $groups; do
            [ "$group" = "$number" ] || left="$left $group"
        done
        groups=$left
        ;;
    esac
done
for group in $groups; do
    kill -s KILL -- "-$group" 2>/dev/null
done
"#;

/// The guard, and what it knows. Belongs to the thread that starts processes.
#[derive(Debug, Default)]
pub(super) struct Guard {
    running: Option<Running>,
    starts: u32,
    groups: BTreeSet<i32>,
    leaving: BTreeSet<i32>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    pipe: ChildStdin,
}

impl Running {
    /// Tells it of all groups; `Err`: it is gone, and none of them was killed.
    fn briefed(mut self, groups: &BTreeSet<i32>) -> std::io::Result<Self> {
        let told = groups.iter().try_for_each(|number| self.pipe.write_all(format!("+{number}\n").as_bytes()));
        match told {
            Ok(()) => Ok(self),
            Err(error) => {
                self.dismiss();
                Err(error)
            }
        }
    }

    /// Kills it before its pipe ends, or it would kill every group that it knows.
    fn dismiss(mut self) {
        // It may have ended by itself already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        drop(self.pipe);
    }
}

impl Guard {
    /// Starts the guard if there is none yet: before the first server, so that no server is without one.
    pub(super) fn stand_by(&mut self) {
        if self.running.is_none() && self.starts == 0 {
            self.replace();
        }
    }

    /// A group has come.
    pub(super) fn joined(&mut self, group: Pid) {
        let number = group.as_raw_pid();
        self.leaving.remove(&number);
        self.groups.insert(number);
        self.tell(&format!("+{number}\n"));
    }

    /// A group is about to end, and nobody looks after it any more.
    pub(super) fn leaves(&mut self, group: Pid) {
        self.leaving.insert(group.as_raw_pid());
        self.look();
    }

    /// Whether [`Guard::look`] has something to do.
    pub(super) fn watches(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Strikes off the groups that are gone. A group's number is not given away while one of its members lives or has not
    /// been reaped.
    pub(super) fn look(&mut self) {
        let exists = |number: i32| {
            Pid::from_raw(number).is_some_and(|group| rustix::process::test_kill_process_group(group).is_ok())
        };
        let gone: Vec<i32> = self.leaving.iter().copied().filter(|number| !exists(*number)).collect();
        for number in gone {
            self.leaving.remove(&number);
            self.groups.remove(&number);
            self.tell(&format!("-{number}\n"));
        }
    }

    fn tell(&mut self, order: &str) {
        let Some(running) = &mut self.running else { return };
        // Shorter than what a pipe takes as one piece: all of it is written, or nothing.
        if running.pipe.write_all(order.as_bytes()).is_err() {
            self.replace();
        }
    }

    /// Starts a guard that knows all groups, in the place of the one that is there.
    fn replace(&mut self) {
        if let Some(running) = self.running.take() {
            running.dismiss();
        }
        if self.starts >= STARTS {
            return;
        }
        self.starts += 1;
        match start().and_then(|running| running.briefed(&self.groups)) {
            Ok(running) => self.running = Some(running),
            Err(error) => {
                self.starts = STARTS;
                tracing::warn!(%error, "no guard could be started: processes of servers may outlive a killed host");
            }
        }
    }
}

fn start() -> std::io::Result<Running> {
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", SCRIPT, "portcullis-guard"])
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    super::keep_nothing(&mut command);
    let mut child = command.spawn()?;
    let pipe = child.stdin.take().ok_or_else(|| std::io::Error::other("the guard has no pipe"))?;
    // A guard that is stopped must not stop us.
    rustix::io::ioctl_fionbio(&pipe, true)?;
    Ok(Running { child, pipe })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper() -> (Child, Pid) {
        let child = Command::new("sleep").arg("1000").process_group(0).spawn().unwrap();
        let group = Pid::from_child(&child);
        (child, group)
    }

    fn ended(mut child: Child) -> bool {
        let give_up = std::time::Instant::now() + Duration::from_secs(60);
        while std::time::Instant::now() < give_up {
            if child.try_wait().unwrap().is_some() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    #[test]
    fn at_the_end_of_its_pipe_the_guard_kills_what_is_left_and_nothing_else_and_ends() {
        let ((kept, group), (mut left, gone)) = (sleeper(), sleeper());
        let mut guard = Guard::default();
        guard.stand_by();
        for order in ["", "+", "+x", "+1", "+0", "+-1", "+2 3", "rubbish", "-7"] {
            guard.tell(&format!("{order}\n"));
        }
        guard.joined(group);
        guard.joined(gone);
        guard.tell(&format!("-{gone}\n", gone = gone.as_raw_pid()));
        let Running { child, pipe } = guard.running.take().unwrap();
        drop(pipe);
        assert!(ended(child) && ended(kept));
        assert!(left.try_wait().unwrap().is_none(), "it was struck off");
        left.kill().unwrap();
        left.wait().unwrap();
    }

    #[test]
    fn a_guard_that_ended_or_does_not_read_is_replaced_and_its_follower_knows_all_groups() {
        let (kept, group) = sleeper();
        let mut guard = Guard::default();
        guard.stand_by();
        guard.joined(group);
        let first = guard.running.as_ref().unwrap().child.id();
        rustix::process::kill_process(
            Pid::from_child(&guard.running.as_ref().unwrap().child),
            rustix::process::Signal::STOP,
        )
        .unwrap();
        while guard.running.as_ref().unwrap().child.id() == first {
            guard.tell("a line that is no order\n");
        }
        assert_eq!(guard.starts, 2);
        drop(guard.running.take().unwrap().pipe);
        assert!(ended(kept));
    }

    #[test]
    fn a_guard_that_cannot_be_told_of_all_groups_is_gone_and_kills_none_of_them() {
        let running = start().unwrap();
        let pid = Pid::from_child(&running.child);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        // More than a pipe holds; no system gives these numbers.
        let groups: BTreeSet<i32> = (2_000_000_000..2_000_200_000).collect();
        let error = running.briefed(&groups).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        assert!(rustix::process::test_kill_process(pid).is_err(), "it lives, and knows groups");
    }

    #[test]
    fn a_group_is_struck_off_once_all_of_it_is_gone() {
        let (mut child, group) = sleeper();
        let mut guard = Guard::default();
        guard.joined(group);
        guard.leaves(group);
        assert!(guard.watches() && guard.groups.len() == 1);
        child.kill().unwrap();
        child.wait().unwrap();
        guard.look();
        assert!(!guard.watches() && guard.groups.is_empty());
    }
}
