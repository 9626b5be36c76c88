//! Progress of one call, on its way to the client that asked for it.
//!
//! In order, rising, and always before the answer. A client that reads slowly misses steps, never the latest ones before
//! them out of order; nothing waits for it. While a hook, an auto reviewer or a person is waited for, there are steps of our own (R21): each rises by so little
//! that the upstream's steps still follow, and one of the upstream's that does not is moved behind ours. Of ours only the latest
//! waits to be sent: a call may be parked for hours with no request to tell it by.

use std::sync::Arc;

use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::Peer;
use tokio::sync::{mpsc, watch};

use crate::host::session::Session;
use crate::model::name::Target;
use crate::model::text;
use crate::ports::upstream::{Progress, ProgressSink, WaitsFor};

/// How many steps of one call may wait for the client; a burst of some hundred is usual.
const WAITING: usize = 256;
/// The longest message of a step, in bytes. A server writes it.
const MAX_MESSAGE: usize = 4096;

/// By how much a step of our own rises.
const OURS: f64 = 1e-6;

/// What it says.
fn words(waits_for: WaitsFor) -> &'static str {
    match waits_for {
        WaitsFor::Hooks => "waiting for hooks",
        WaitsFor::AutoReviewer => "waiting for the auto reviewer",
        WaitsFor::Person => "waiting for approval",
    }
}

/// What is told to the client.
enum Step {
    Upstream(Progress),
    /// It is waited for somebody.
    Waiting(WaitsFor),
}

/// Where steps go in.
pub(super) struct Sink {
    steps: mpsc::Sender<Progress>,
    waits: watch::Sender<WaitsFor>,
}

impl ProgressSink for Sink {
    fn progress(&self, progress: Progress) {
        // Full: the step is dropped. Closed: the call has its answer, and late steps are of no use.
        let _ = self.steps.try_send(progress);
    }

    fn waiting(&self, waits_for: WaitsFor) {
        self.waits.send_replace(waits_for);
    }
}

/// Where they come out.
pub(super) struct Steps {
    queue: mpsc::Receiver<Progress>,
    waits: watch::Receiver<WaitsFor>,
    /// The step that is being sent: cleaning takes a while, and whoever waits for it may stop waiting.
    held: Option<Step>,
    /// The upstream's latest.
    latest: f64,
    /// The latest that was sent.
    sent: f64,
    token: ProgressToken,
    peer: Peer<RoleServer>,
    session: Arc<Session>,
    target: Target,
}

/// Makes both ends, for a call of `target` in `session`.
pub(super) fn channel(
    token: ProgressToken,
    peer: Peer<RoleServer>,
    session: Arc<Session>,
    target: Target,
) -> (Sink, Steps) {
    let ((steps, queue), (tell, waits)) = (mpsc::channel(WAITING), watch::channel(WaitsFor::Person));
    let none = f64::NEG_INFINITY;
    (
        Sink { steps, waits: tell },
        Steps { queue, waits, held: None, latest: none, sent: none, token, peer, session, target },
    )
}

impl Steps {
    /// Sends steps as they come; ends when no more can come. Dropping the future loses none but one that the client has
    /// half got.
    pub(super) async fn forward(&mut self) {
        loop {
            self.send().await;
            self.held = tokio::select! {
                biased;
                step = self.queue.recv() => match step {
                    Some(step) => Some(Step::Upstream(step)),
                    None => return,
                },
                Ok(()) = self.waits.changed() => Some(Step::Waiting(*self.waits.borrow_and_update())),
            };
        }
    }

    /// Sends the steps that are there already.
    pub(super) async fn flush(&mut self) {
        loop {
            self.send().await;
            self.held = match (self.queue.try_recv(), self.waits.has_changed()) {
                (Ok(step), _) => Some(Step::Upstream(step)),
                (Err(_empty), Ok(true)) => Some(Step::Waiting(*self.waits.borrow_and_update())),
                (Err(_empty), _) => return,
            };
        }
    }

    async fn send(&mut self) {
        let (progress, total, message) = match &self.held {
            None => return,
            Some(Step::Waiting(waits_for)) => {
                let progress = if self.sent.is_finite() { above(self.sent) } else { 0.0 };
                (progress, None, Some(words(*waits_for).to_owned()))
            }
            Some(Step::Upstream(step)) if step.progress.is_finite() && step.progress > self.latest => {
                let (progress, total) = (step.progress, step.total.filter(|total| total.is_finite()));
                let mut left = None;
                if let Some(message) = &step.message {
                    // Cut last: a secret that is cut in two is none that a sanitiser knows.
                    left = self.session.clean_progress(&self.target, message).await;
                }
                self.latest = progress;
                let progress = if progress > self.sent { progress } else { above(self.sent) };
                (progress, total, left.map(|left| text::prefix(&left, MAX_MESSAGE).to_owned()))
            }
            Some(Step::Upstream(_)) => {
                self.held = None;
                return;
            }
        };
        (self.held, self.sent) = (None, progress);
        let mut params = ProgressNotificationParam::new(self.token.clone(), progress);
        (params.total, params.message) = (total, message);
        if let Err(error) = self.peer.notify_progress(params).await {
            tracing::debug!(%error, "progress was not sent");
        }
    }

    /// The same steps for another request of the same call.
    pub(super) fn on(mut self, token: ProgressToken, peer: Peer<RoleServer>) -> Self {
        (self.token, self.peer) = (token, peer);
        self
    }
}

/// The next higher value of our own.
fn above(sent: f64) -> f64 {
    let next = sent + OURS;
    // Beside a very large number so little is nothing.
    if next > sent { next } else { sent.next_up() }
}
