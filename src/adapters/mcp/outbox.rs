//! In which order messages are written: one queue, one task, one line at a time.
//!
//! rmcp runs its sends side by side; a queue that is filled in the order of the calls keeps a cancellation behind its
//! request. The queue is bounded in bytes: a peer that does not read must not fill our memory. An answer can wait for
//! room, for as long as the peer goes on reading.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::transport::{LineEnd, TransportFault};

/// How long a peer may read nothing while an answer waits for room.
const STALL: Duration = Duration::from_secs(30);
/// How many bytes of short messages of the transport itself may wait, apart from the limit.
const MAX_SHORT: usize = 1024 * 1024;
/// How many bytes are written before the room that they leave is told.
const STEP: usize = 64 * 1024;

struct Item {
    line: String,
    /// It is counted among the short ones.
    short: bool,
    written: oneshot::Sender<()>,
}

/// The queue's entrance. Cheap to clone; the writing task ends when the last one is gone.
#[derive(Debug, Clone)]
pub(super) struct Outbox {
    queue: mpsc::UnboundedSender<Item>,
    /// How many bytes wait; whoever waits for room is told what was written.
    waiting: Arc<watch::Sender<usize>>,
    short: Arc<AtomicUsize>,
    limit: usize,
}

/// The task that writes.
#[derive(Debug)]
pub(super) struct Writing {
    task: JoinHandle<()>,
    stop: CancellationToken,
}

impl Outbox {
    /// Starts the task. `limit`: how many bytes may wait.
    pub(super) fn start<W>(output: W, limit: usize, end: LineEnd) -> (Self, Writing)
    where
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let (queue, items) = mpsc::unbounded_channel();
        let waiting = Arc::new(watch::Sender::new(0));
        let short = Arc::new(AtomicUsize::new(0));
        let stop = CancellationToken::new();
        let task = tokio::spawn({
            let (waiting, short, stop) = (waiting.clone(), short.clone(), stop.clone());
            async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    result = write_all(output, items, &waiting, &short) => {
                        if let Err(error) = result {
                            end.set(&format!("the other side does not read any more ({error})"));
                        }
                    }
                }
            }
        });
        (Self { queue, waiting, short, limit }, Writing { task, stop })
    }

    /// Whether there is room for another message.
    pub(super) fn has_room(&self) -> bool {
        *self.waiting.borrow() <= self.limit
    }

    /// Puts a message, without its line feed, at the end of the queue. The receiver tells when it has been written.
    ///
    /// # Errors
    /// The queue is full, or the task has ended.
    pub(super) fn push(&self, line: String) -> Result<oneshot::Receiver<()>, TransportFault> {
        self.push_within(line, self.limit)
    }

    /// The same for a message that has waited for [`Outbox::room`]: others may have taken the room meanwhile.
    ///
    /// # Errors
    /// The task has ended.
    pub(super) fn push_anyway(&self, line: String) -> Result<oneshot::Receiver<()>, TransportFault> {
        self.push_within(line, usize::MAX)
    }

    /// Puts a short message of the transport itself at the end of the queue, which may be full.
    ///
    /// # Errors
    /// Too many of these wait, or the task has ended.
    pub(super) fn push_short(&self, line: String) -> Result<(), TransportFault> {
        if self.short.load(Ordering::Relaxed) > MAX_SHORT {
            return Err(TransportFault::Full);
        }
        self.short.fetch_add(line.len() + 1, Ordering::Relaxed);
        self.queue(line, true).map(drop)
    }

    /// Waits until there is room for another message.
    ///
    /// # Errors
    /// The peer read nothing for [`STALL`], or the task has ended.
    pub(super) async fn room(&self) -> Result<(), TransportFault> {
        let mut waiting = self.waiting.subscribe();
        while !self.has_room() {
            let changed = tokio::select! {
                biased;
                () = self.queue.closed() => return Err(TransportFault::Closed),
                changed = timeout(STALL, waiting.changed()) => changed,
            };
            match changed {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(TransportFault::Closed),
                Err(_) => return Err(TransportFault::Full),
            }
        }
        Ok(())
    }

    fn push_within(&self, line: String, limit: usize) -> Result<oneshot::Receiver<()>, TransportFault> {
        // Looked at and taken in one step, and told to nobody: only what is written makes room.
        let mut taken = false;
        self.waiting.send_if_modified(|waiting| {
            taken = *waiting <= limit;
            if taken {
                *waiting = waiting.saturating_add(line.len() + 1);
            }
            false
        });
        if taken { self.queue(line, false) } else { Err(TransportFault::Full) }
    }

    fn queue(&self, mut line: String, short: bool) -> Result<oneshot::Receiver<()>, TransportFault> {
        line.push('\n');
        let (written, receiver) = oneshot::channel();
        self.queue.send(Item { line, short, written }).map_err(|_| TransportFault::Closed)?;
        Ok(receiver)
    }
}

impl Writing {
    /// Stops at once; the peer sees the end of its input.
    pub(super) fn stop(&self) {
        self.stop.cancel();
    }

    /// Waits until the task has ended.
    pub(super) async fn finished(&mut self) {
        let _ = (&mut self.task).await;
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn write_all<W>(
    mut output: W,
    mut items: mpsc::UnboundedReceiver<Item>,
    waiting: &watch::Sender<usize>,
    short: &AtomicUsize,
) -> io::Result<()>
where
    W: AsyncWrite + Unpin,
{
    while let Some(Item { line, short: is_short, written }) = items.recv().await {
        for step in line.as_bytes().chunks(STEP) {
            output.write_all(step).await?;
            if is_short {
                short.fetch_sub(step.len(), Ordering::Relaxed);
            } else {
                waiting.send_modify(|waiting| *waiting = waiting.saturating_sub(step.len()));
            }
        }
        output.flush().await?;
        // Nobody may be waiting for it.
        let _ = written.send(());
    }
    output.shutdown().await
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn room_comes_with_a_peer_that_reads_and_not_with_one_that_does_not() {
        let (near, mut far) = tokio::io::duplex(64);
        let (outbox, _writing) = Outbox::start(near, 1000, LineEnd::default());
        outbox.push("x".repeat(10_000)).unwrap();
        assert_eq!(outbox.push("y".to_owned()).unwrap_err(), TransportFault::Full);
        outbox.push_short("z".to_owned()).unwrap();
        assert_eq!(outbox.room().await, Err(TransportFault::Full), "nobody reads");
        let (room, read) = tokio::join!(outbox.room(), async {
            let mut line = vec![0; 10_001];
            far.read_exact(&mut line).await
        });
        assert_eq!((room, read.unwrap()), (Ok(()), 10_001));
        outbox.push("y".to_owned()).unwrap();
    }
}
