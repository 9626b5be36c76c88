//! What every adapter that starts a process does before: the child gets its three streams, and nothing else that we hold.
//!
//! The one part that adapters share: `spawn` starts the leader of a group, `once` runs one to
//! its end, `guard` ends the groups that outlive us. It knows
//! no port, no configuration and none of them.

mod guard;
pub(in crate::adapters) mod once;
pub(in crate::adapters) mod spawn;

#[cfg(target_os = "linux")]
use std::io;
use std::process::Command;

/// Lets the child have no descriptors but its three streams: what we ourselves were given by whoever started us is not for
/// it. Where the system does not say which there are, that holds for what Rust itself opens.
#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "`pre_exec`: the function makes system calls on a buffer of its own, without allocating")]
pub(in crate::adapters) fn keep_nothing(command: &mut Command) {
    use std::os::unix::process::CommandExt as _;
    // SAFETY: see the reason above; between fork and exec only async-signal-safe calls are allowed, and these are.
    unsafe {
        command.pre_exec(close_at_exec);
    }
}

#[cfg(not(target_os = "linux"))]
pub(in crate::adapters) fn keep_nothing(_command: &mut Command) {}

/// Marks all descriptors but the first three to be closed by the exec, and not before: one of them tells the parent how the
/// exec went. Without `/proc` there is nothing to be done.
#[cfg(target_os = "linux")]
fn close_at_exec() -> io::Result<()> {
    use rustix::fs::{Mode, OFlags, RawDir};

    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(folder) = rustix::fs::open(c"/proc/self/fd", flags, Mode::empty()) else { return Ok(()) };
    let mut buffer = [std::mem::MaybeUninit::uninit(); 1024];
    let mut entries = RawDir::new(&folder, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        let number = entry.file_name().to_str().ok().and_then(|name| name.parse::<i32>().ok());
        if let Some(number) = number.filter(|number| *number > 2) {
            #[allow(unsafe_code, reason = "the number was just read from the list of the descriptors that are open")]
            // SAFETY: it is open, and between fork and exec nothing else runs in this process that could close it.
            let descriptor = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
            rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::CLOEXEC)?;
        }
    }
    Ok(())
}
