//! A call in rounds, for a client of the stateless era: each round is a request of its own, the run behind them is one.
//!
//! The run is in its own task, so that it lives on between two rounds; whoever holds its [`Run`] holds it alive. Between rounds
//! that is the table of parked calls. A round ends with the call's answer, or with a question and the run parked (R21).

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt as _;
use rmcp::RoleServer;
use rmcp::service::RequestContext;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::call::relay;
use super::handler::Gate;
use super::parked::{Ask, BadState, Retry};
use super::progress::Steps;
use crate::adapters::mcp::client_side::Incoming;
use crate::host::session::SessionCall;
use crate::model::digest::Digest;
use crate::pipeline::Finished;

/// How many questions of one call may wait to be told to the client.
const WAITING: usize = 8;

/// How a call ended: finished, or by a panic.
pub(super) type Ended = Result<Finished, Box<dyn Any + Send>>;

/// A call under way. Dropping it cancels the call.
pub(super) struct Run {
    number: u64,
    asks: mpsc::Receiver<Ask>,
    ended: oneshot::Receiver<Ended>,
    steps: Option<Steps>,
    cancel: CancellationToken,
    _guard: DropGuard,
}

/// Makes the way from a call to its rounds.
pub(super) fn questions() -> (mpsc::Sender<Ask>, mpsc::Receiver<Ask>) {
    mpsc::channel(WAITING)
}

impl Run {
    /// Starts a call whose questions come out of `asks`.
    pub(super) fn start(gate: &Gate, call: SessionCall, asks: mpsc::Receiver<Ask>, steps: Option<Steps>) -> Box<Self> {
        let (cancel, number) = (call.cancel.clone(), gate.parked.number());
        let (tell, ended) = oneshot::channel();
        let session = Arc::clone(&gate.session);
        let (parked, stop, stopping) = (Arc::clone(&gate.parked), gate.stop.clone(), cancel.clone());
        gate.calls.spawn(async move {
            let mut running = Box::pin(AssertUnwindSafe(async move { session.call(call).await }).catch_unwind());
            let ended = tokio::select! {
                biased;
                ended = &mut running => ended,
                () = stop.cancelled() => {
                    stopping.cancel();
                    running.await
                }
            };
            let _ = tell.send(ended);
            // Parked, its client may come back for what came of it, or never.
            if let Some(until) = parked.until(number) {
                tokio::spawn(async move {
                    let _over = stop.run_until_cancelled(tokio::time::sleep_until(until)).await;
                    parked.forget(number);
                });
            }
        });
        Box::new(Self { number, asks, ended, steps, _guard: cancel.clone().drop_guard(), cancel })
    }

    /// Takes the run of a repeated call.
    ///
    /// # Errors
    /// [`BadState`]; nothing was touched.
    pub(super) fn again(
        gate: &Gate,
        retry: Retry,
        binding: Digest,
        context: &RequestContext<RoleServer>,
    ) -> Result<Box<Self>, BadState> {
        let mut run = gate.parked.take(retry, binding)?;
        // Progress belongs to a request, and this one is another.
        run.steps = run.steps.take().and_then(|steps| {
            let token = context.meta.get_progress_token()?;
            Some(steps.on(token, context.peer.clone()))
        });
        Ok(run)
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Waits until the call has ended, or until it asks: then the question is in `incoming` as the result, and the run is parked.
    pub(super) async fn round(
        mut self: Box<Self>,
        gate: &Gate,
        binding: Digest,
        incoming: &Incoming,
        context: &RequestContext<RoleServer>,
    ) -> Option<Ended> {
        loop {
            let first = tokio::select! {
                biased;
                ended = &mut self.ended => {
                    if let Some(steps) = &mut self.steps {
                        let _sent = gate.hung_up.run_until_cancelled(steps.flush()).await;
                    }
                    // Without a word: its task was dropped, with everything else.
                    return Some(ended.unwrap_or_else(|gone| Err(Box::new(gone))));
                }
                () = context.ct.cancelled(), if !self.cancel.is_cancelled() => {
                    self.cancel.cancel();
                    continue;
                }
                Some(ask) = self.asks.recv() => ask,
                () = relay(gate, &mut self.steps) => continue,
            };
            if self.cancel.is_cancelled() {
                continue;
            }
            if let Some(steps) = &mut self.steps {
                let _sent = gate.hung_up.run_until_cancelled(steps.flush()).await;
            }
            let mut asks = vec![first];
            while let Ok(more) = self.asks.try_recv() {
                asks.push(more);
            }
            match gate.parked.park(self, asks, binding) {
                Ok(result) => {
                    if incoming.ask(&result).is_err() {
                        incoming.respond_error(-32603, "the question could not be written", None);
                    }
                    return None;
                }
                Err(run) => self = run,
            }
        }
    }
}
