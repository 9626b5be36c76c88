//! A program that is run once: it gets its input, and ends with all that it started.
//!
//! Promises: at most so many bytes of each output are kept, and one that prints more is ended; what it leaves running is not
//! waited for and is ended with it; dropping the run ends it. A program that leaves its group (`setsid`) is beyond this.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{ChildStdin, Command};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until};

use super::spawn::{self, Leader};

/// How long the ends of its outputs are waited for once the program has ended: what it left running may hold them open.
const LAST_WORDS: Duration = Duration::from_millis(250);
/// How much is read at once, in bytes.
const PIECE: usize = 16 * 1024;

/// A program that has ended by itself.
#[derive(Debug)]
pub(in crate::adapters) struct Ended {
    pub(in crate::adapters) status: ExitStatus,
    pub(in crate::adapters) stdout: Vec<u8>,
    pub(in crate::adapters) stderr: Vec<u8>,
}

/// Why there is no end to tell of.
#[derive(Debug, thiserror::Error)]
pub(in crate::adapters) enum NotEnded {
    /// It could not be started.
    #[error("cannot be started: {}", why(.0))]
    Start(io::Error),
    /// We could not get as far as starting it.
    #[error("cannot be started: {0}")]
    Thread(Arc<str>),
    /// It printed more than it may, and was ended.
    #[error("printed more than {0} bytes")]
    Flooded(usize),
    /// Nobody can tell how it ended.
    #[error("ended, and nobody can tell how")]
    Lost,
}

fn why(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such program or folder".to_owned(),
        io::ErrorKind::PermissionDenied => "not executable".to_owned(),
        _ => error.to_string(),
    }
}

/// How many programs are run at once, all tenants together; more wait for their turn.
const AT_ONCE: usize = 64;
static TURNS: Semaphore = Semaphore::const_new(AT_ONCE);

/// Runs a program to its end. `most` bytes of stdout and of stderr are kept.
///
/// # Errors
/// [`NotEnded`].
pub(in crate::adapters) async fn run(
    mut command: Command,
    input: String,
    most: (usize, usize),
) -> Result<Ended, NotEnded> {
    // It is never closed; without a turn it would be run all the same.
    let _turn = TURNS.acquire().await;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut leader = spawn::start(command).await.map_err(NotEnded::Thread)?.map_err(NotEnded::Start)?;
    let Some((stdin, stdout, stderr)) = leader.pipes() else { return Err(NotEnded::Lost) };
    let (mut out, mut err) = (Output::of(stdout, most.0), Output::of(stderr, most.1));
    let ended = to_its_end(&mut leader, tell(stdin, input), &mut out, &mut err).await;
    // Whatever is left of the group ends now, and not when its number may be another's.
    leader.signal(Signal::KILL);
    let status = ended?;
    leader.is_over();
    Ok(Ended { status, stdout: out.bytes, stderr: err.bytes })
}

/// Gives it its input. One that does not read all of it may know enough.
async fn tell(mut stdin: ChildStdin, input: String) {
    let _ = stdin.write_all(input.as_bytes()).await;
    let _ = stdin.shutdown().await;
}

/// Reads until the program has ended and its outputs have, or for a moment longer.
async fn to_its_end(
    leader: &mut Leader,
    tell: impl Future<Output = ()>,
    out: &mut Output,
    err: &mut Output,
) -> Result<ExitStatus, NotEnded> {
    let mut tell = std::pin::pin!(tell);
    let (mut told, mut status, mut over) = (false, None, Instant::now());
    loop {
        if let Some(status) = status
            && out.is_over()
            && err.is_over()
        {
            return Ok(status);
        }
        tokio::select! {
            () = &mut tell, if !told => told = true,
            fits = out.more(), if !out.is_over() => if !fits { return Err(NotEnded::Flooded(out.most)) },
            fits = err.more(), if !err.is_over() => if !fits { return Err(NotEnded::Flooded(err.most)) },
            ended = leader.exited(), if status.is_none() => {
                status = Some(ended.ok_or(NotEnded::Lost)?);
                over = Instant::now() + LAST_WORDS;
            }
            () = sleep_until(over), if status.is_some() => return status.ok_or(NotEnded::Lost),
        }
    }
}

/// One output, read into a bounded buffer.
struct Output {
    stream: Option<Box<dyn AsyncRead + Send + Unpin>>,
    bytes: Vec<u8>,
    most: usize,
}

impl Output {
    fn of(stream: impl AsyncRead + Send + Unpin + 'static, most: usize) -> Self {
        Self { stream: Some(Box::new(stream)), bytes: Vec::new(), most }
    }

    /// Whether its end was read.
    fn is_over(&self) -> bool {
        self.stream.is_none()
    }

    /// Reads what comes next: false if there is more than is kept. Cancel-safe.
    async fn more(&mut self) -> bool {
        let Some(stream) = &mut self.stream else { return true };
        self.bytes.reserve(PIECE);
        // An output that cannot be read has ended.
        if !matches!(stream.read_buf(&mut self.bytes).await, Ok(1..)) {
            self.stream = None;
        }
        self.bytes.len() <= self.most
    }
}
