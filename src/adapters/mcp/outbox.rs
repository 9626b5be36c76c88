//! In which order messages are written: one queue, one task, one line at a time.
//!
//! rmcp runs its sends side by side; a queue that is filled in the order of the calls keeps a cancellation behind its
//! request. The queue is bounded in bytes: a peer that does not read must not fill our memory.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::transport::{LineEnd, TransportFault};

struct Item {
    line: String,
    written: oneshot::Sender<()>,
}

/// The queue's entrance. Cheap to clone; the writing task ends when the last one is gone.
#[derive(Debug, Clone)]
pub(super) struct Outbox {
    queue: mpsc::UnboundedSender<Item>,
    waiting: Arc<AtomicUsize>,
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
        let waiting = Arc::new(AtomicUsize::new(0));
        let stop = CancellationToken::new();
        let task = tokio::spawn({
            let (waiting, stop) = (waiting.clone(), stop.clone());
            async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    result = write_all(output, items, &waiting) => {
                        if let Err(error) = result {
                            end.set(&format!("the other side does not read any more ({error})"));
                        }
                    }
                }
            }
        });
        (Self { queue, waiting, limit }, Writing { task, stop })
    }

    /// Whether there is room for another message.
    pub(super) fn has_room(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) <= self.limit
    }

    /// Puts a message, without its line feed, at the end of the queue. The receiver tells when it has been written.
    ///
    /// # Errors
    /// The queue is full, or the task has ended.
    pub(super) fn push(&self, mut line: String) -> Result<oneshot::Receiver<()>, TransportFault> {
        if !self.has_room() {
            return Err(TransportFault::Full);
        }
        line.push('\n');
        self.waiting.fetch_add(line.len(), Ordering::Relaxed);
        let (written, receiver) = oneshot::channel();
        self.queue.send(Item { line, written }).map_err(|_| TransportFault::Closed)?;
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

async fn write_all<W>(mut output: W, mut items: mpsc::UnboundedReceiver<Item>, waiting: &AtomicUsize) -> io::Result<()>
where
    W: AsyncWrite + Unpin,
{
    while let Some(Item { line, written }) = items.recv().await {
        output.write_all(line.as_bytes()).await?;
        output.flush().await?;
        waiting.fetch_sub(line.len(), Ordering::Relaxed);
        // Nobody may be waiting for it.
        let _ = written.send(());
    }
    output.shutdown().await
}
