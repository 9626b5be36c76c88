//! The two streams to the client.
//!
//! Tokio reads and writes the standard streams on threads of its own, which costs a call four changes of thread. A pipe is
//! therefore opened anew through the system's table of open files and polled like any other: what is set on the new
//! description does not change the one that we share with whoever started us. Where there is no such table, and for
//! everything that is no pipe, it is Tokio's way.

use std::os::unix::fs::FileTypeExt as _;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::unix::pipe::OpenOptions;

const STDIN: &str = "/proc/self/fd/0";
const STDOUT: &str = "/proc/self/fd/1";

/// Returns the standard input. Needs a running tokio.
pub(crate) fn input() -> Box<dyn AsyncRead + Send + Unpin> {
    match is_pipe(STDIN).then(|| OpenOptions::new().open_receiver(STDIN)) {
        Some(Ok(pipe)) => Box::new(pipe),
        Some(Err(_)) | None => Box::new(tokio::io::stdin()),
    }
}

/// Returns the standard output. Needs a running tokio.
pub(crate) fn output() -> Box<dyn AsyncWrite + Send + Unpin> {
    match is_pipe(STDOUT).then(|| OpenOptions::new().open_sender(STDOUT)) {
        Some(Ok(pipe)) => Box::new(pipe),
        Some(Err(_)) | None => Box::new(tokio::io::stdout()),
    }
}

/// Looked at before it is opened: opening a terminal could make it ours.
fn is_pipe(path: &str) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo())
}
