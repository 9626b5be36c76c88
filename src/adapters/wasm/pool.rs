//! The workers that run components: a thread a core, bounded queues, a bounded wait.
//!
//! Components never run on the async runtime's threads: a looping one would hold up every connection until its deadline.
//! Workers go round among tenants, and among the components of each, so that every component has its share however much
//! another is asked (R14). What is only observed runs when nothing else waits (R16).

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::turns::{Turns, Waiting as _};
use crate::model::caller::TenantId;
use crate::model::text;
use crate::model::verdict::{Fault, FaultCode};

/// How many evaluations of one component may wait for one tenant. What waits shares its call's facts.
const QUEUE: usize = 1024;
/// How long an evaluation may wait for a worker.
const MAX_WAIT: Duration = Duration::from_secs(2);

type Job = Box<dyn FnOnce() + Send>;
type Lane = Turns<TenantId, Turns<u64, VecDeque<Job>>>;

/// Whose turn an evaluation takes.
#[derive(Debug, Clone)]
pub(super) struct Share {
    pub(super) tenant: TenantId,
    /// The component's number in its engine.
    pub(super) component: u64,
    /// Whether nothing waits for the answer (R16).
    pub(super) observed: bool,
}

#[derive(Default)]
struct Queue {
    state: Mutex<Jobs>,
    wake: Condvar,
}

#[derive(Default)]
struct Jobs {
    deciding: Lane,
    observed: Lane,
    closed: bool,
}

/// The workers; they end with it, after the job they are at.
pub(super) struct Pool {
    queue: Arc<Queue>,
    max_wait: Duration,
}

impl Pool {
    /// Starts `workers` threads.
    pub(super) fn start(workers: usize) -> std::io::Result<Self> {
        let queue = Arc::new(Queue::default());
        // Made first: if a thread cannot start, dropping it ends those that did.
        let pool = Self { queue: Arc::clone(&queue), max_wait: MAX_WAIT };
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
    /// A `budget` fault if too much of this share waits already, if no worker became free in time, or if the work panicked.
    pub(super) async fn run<R: Send + 'static>(
        &self,
        share: &Share,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, Fault> {
        let (answer, result) = oneshot::channel();
        let (queued, max_wait) = (Instant::now(), self.max_wait);
        self.queue.push(
            share,
            Box::new(move || {
                if answer.is_closed() {
                    return;
                }
                if queued.elapsed() > max_wait {
                    let wait = text::seconds(max_wait);
                    let late = Fault::new(FaultCode::Budget, format!("no worker became free within {wait}"));
                    let _gone = answer.send(Err(late));
                    return;
                }
                // A panic of the host in here is a bug; it costs this one evaluation, not a worker.
                if let Ok(value) = catch_unwind(AssertUnwindSafe(work)) {
                    let _gone = answer.send(Ok(value));
                }
            }),
        )?;
        result.await.unwrap_or_else(|_| Err(Fault::new(FaultCode::Budget, "the worker ended without an answer")))
    }
}

impl Queue {
    fn push(&self, share: &Share, job: Job) -> Result<(), Fault> {
        let mut state = self.state.lock();
        let lane = if share.observed { &mut state.observed } else { &mut state.deciding };
        let waiting = lane.of(&share.tenant).of(&share.component);
        if waiting.len() >= QUEUE {
            return Err(Fault::new(FaultCode::Budget, format!("{QUEUE} evaluations of it wait already")));
        }
        waiting.push_back(job);
        drop(state);
        self.wake.notify_one();
        Ok(())
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(job) = state.deciding.take().or_else(|| state.observed.take()) {
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
            (std::mem::take(&mut state.deciding), std::mem::take(&mut state.observed))
        };
        self.queue.wake.notify_all();
        // Outside the lock: a job may own what holds this pool.
        drop(waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(component: u64) -> Share {
        Share { tenant: TenantId::new("t"), component, observed: false }
    }

    /// A pool of one worker, which does nothing until the sender is used or dropped.
    fn held() -> (Pool, std::sync::mpsc::Sender<()>) {
        let pool = Pool::start(1).unwrap();
        let (open, gate) = std::sync::mpsc::channel::<()>();
        let (begun, has_begun) = std::sync::mpsc::channel();
        let hold: Job = Box::new(move || {
            let _told = begun.send(());
            let _opened = gate.recv();
        });
        pool.queue.push(&share(0), hold).unwrap();
        has_begun.recv().unwrap();
        (pool, open)
    }

    #[tokio::test]
    async fn r14_a_full_queue_is_a_budget_fault_of_that_component_alone() {
        let (pool, open) = held();
        for _ in 0..QUEUE {
            pool.queue.push(&share(1), Box::new(|| {})).unwrap();
        }
        let fault = pool.run(&share(1), || ()).await.unwrap_err();
        assert_eq!(fault.code, FaultCode::Budget);
        drop(open);
        assert_eq!(pool.run(&share(2), || 7).await, Ok(7));
    }

    #[tokio::test]
    async fn r14_what_waited_too_long_is_a_budget_fault_and_never_runs() {
        let (mut pool, open) = held();
        pool.max_wait = Duration::ZERO;
        let late = share(1);
        let late = pool.run(&late, || panic!("it ran"));
        tokio::pin!(late);
        assert!(futures::poll!(&mut late).is_pending());
        drop(open);
        let fault: Fault = late.await.unwrap_err();
        assert!(fault.detail.contains("no worker became free"), "{fault}");
    }

    #[test]
    fn r14_r16_a_noisy_component_does_not_starve_another_and_observers_come_last() {
        let (pool, open) = held();
        let (say, said) = std::sync::mpsc::channel();
        let queue = |share: &Share, name: &'static str| {
            let say = say.clone();
            pool.queue.push(share, Box::new(move || say.send(name).unwrap())).unwrap();
        };
        queue(&Share { observed: true, ..share(9) }, "observed");
        (0..3).for_each(|_| queue(&share(1), "noisy"));
        queue(&share(2), "deny");
        queue(&Share { tenant: TenantId::new("neighbour"), ..share(1) }, "neighbour");
        drop((say, open));
        assert_eq!(said.iter().collect::<Vec<_>>(), ["noisy", "neighbour", "deny", "noisy", "noisy", "observed"]);
    }

    #[tokio::test]
    async fn a_panic_in_the_host_costs_one_evaluation() {
        let pool = Pool::start(1).unwrap();
        let fault = pool.run(&share(1), || panic!("a bug")).await.unwrap_err();
        assert_eq!(fault.code, FaultCode::Budget);
        assert_eq!(pool.run(&share(1), || 7).await, Ok(7));
    }

    #[tokio::test]
    async fn abandoned_work_that_has_not_started_is_skipped() {
        let (pool, open) = held();
        let ran = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let mark = Arc::clone(&ran);
        {
            let abandoned = share(1);
            let abandoned = pool.run(&abandoned, move || mark.store(true, std::sync::atomic::Ordering::SeqCst));
            tokio::pin!(abandoned);
            assert!(futures::poll!(&mut abandoned).is_pending());
        }
        drop(open);
        assert_eq!(pool.run(&share(1), || ()).await, Ok(()));
        assert!(!ran.load(std::sync::atomic::Ordering::SeqCst));
    }
}
