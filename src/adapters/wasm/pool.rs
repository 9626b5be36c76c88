//! The workers that run components: a thread a core, a bounded queue, a bounded wait.
//!
//! Components never run on the async runtime's threads: a looping one would hold up every connection until its deadline.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::model::text;
use crate::model::verdict::{Fault, FaultCode};

/// How many evaluations may wait for each worker.
const QUEUE_PER_WORKER: usize = 64;
/// How long an evaluation waits for a place in the queue.
const MAX_WAIT: Duration = Duration::from_secs(2);

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    state: Mutex<Jobs>,
    wake: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    closed: bool,
}

/// The workers; they end with it, after the job they are at.
pub(super) struct Pool {
    queue: Arc<Queue>,
    places: Arc<Semaphore>,
}

impl Pool {
    /// Starts `workers` threads.
    pub(super) fn start(workers: usize) -> std::io::Result<Self> {
        let queue = Arc::new(Queue::default());
        // Made first: if a thread cannot start, dropping it ends those that did.
        let pool =
            Self { queue: Arc::clone(&queue), places: Arc::new(Semaphore::new(workers * (QUEUE_PER_WORKER + 1))) };
        for number in 0..workers {
            let queue = Arc::clone(&queue);
            std::thread::Builder::new().name(format!("policy-{number}")).spawn(move || {
                while let Some(job) = queue.next() {
                    job();
                }
            })?;
        }
        Ok(pool)
    }

    /// Runs `work` on a worker and returns what it returns.
    ///
    /// Dropping the future abandons the work: before it starts it is skipped, after that it runs to its own limits and its
    /// result is thrown away.
    ///
    /// # Errors
    /// A `budget` fault if no place became free in time, or if the work panicked.
    pub(super) async fn run<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> Result<R, Fault> {
        let (answer, result) = oneshot::channel();
        let place = self.place().await?;
        self.queue.push(Box::new(move || {
            if !answer.is_closed() {
                // A panic of the host in here is a bug; it costs this one evaluation, not a worker.
                if let Ok(value) = catch_unwind(AssertUnwindSafe(work)) {
                    // Nobody waits any more: the caller has gone.
                    let _ = answer.send(value);
                }
            }
            drop(place);
        }));
        result.await.map_err(|_| Fault::new(FaultCode::Budget, "the worker ended without an answer"))
    }

    async fn place(&self) -> Result<OwnedSemaphorePermit, Fault> {
        let acquired = tokio::time::timeout(MAX_WAIT, Arc::clone(&self.places).acquire_owned()).await;
        acquired.ok().and_then(Result::ok).ok_or_else(|| {
            let wait = text::seconds(MAX_WAIT);
            Fault::new(FaultCode::Budget, format!("no worker became free within {wait}"))
        })
    }
}

impl Queue {
    fn push(&self, job: Job) {
        self.state.lock().waiting.push_back(job);
        self.wake.notify_one();
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(job) = state.waiting.pop_front() {
                return Some(job);
            }
            self.wake.wait(&mut state);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.queue.state.lock();
            state.closed = true;
            std::mem::take(&mut state.waiting)
        };
        self.queue.wake.notify_all();
        // Outside the lock: a job may own what holds this pool.
        drop(waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn r14_a_full_pool_is_a_budget_fault() {
        let pool = Pool::start(1).unwrap();
        let all = u32::try_from(QUEUE_PER_WORKER + 1).unwrap();
        let _taken = Arc::clone(&pool.places).acquire_many_owned(all).await.unwrap();
        let fault = pool.run(|| ()).await.unwrap_err();
        assert_eq!(fault.code, FaultCode::Budget);
    }

    #[tokio::test]
    async fn a_panic_in_the_host_costs_one_evaluation() {
        let pool = Pool::start(1).unwrap();
        let fault = pool.run(|| panic!("a bug")).await.unwrap_err();
        assert_eq!(fault.code, FaultCode::Budget);
        assert_eq!(pool.run(|| 7).await, Ok(7));
    }

    #[tokio::test]
    async fn abandoned_work_that_has_not_started_is_skipped() {
        let pool = Pool::start(1).unwrap();
        let (open, gate) = std::sync::mpsc::channel::<()>();
        let ran = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let mark = Arc::clone(&ran);
        let first = pool.run(move || gate.recv().is_ok());
        let second = pool.run(move || mark.store(true, std::sync::atomic::Ordering::SeqCst));
        tokio::pin!(first);
        {
            tokio::pin!(second);
            // Both are queued, then the second caller goes away.
            assert!(futures::poll!(&mut first).is_pending());
            assert!(futures::poll!(&mut second).is_pending());
        }
        open.send(()).unwrap();
        assert_eq!(first.await, Ok(true));
        assert_eq!(pool.run(|| ()).await, Ok(()));
        assert!(!ran.load(std::sync::atomic::Ordering::SeqCst));
    }
}
