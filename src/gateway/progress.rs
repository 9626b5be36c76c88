//! Progress of one call, on its way to the client that asked for it.
//!
//! In order, rising, and always before the answer. A client that reads slowly misses steps, never the latest ones before
//! them out of order; nothing waits for it.

use std::sync::Arc;

use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::Peer;
use tokio::sync::mpsc;

use crate::host::session::Session;
use crate::model::name::Target;
use crate::model::text;
use crate::ports::upstream::{Progress, ProgressSink};

/// How many steps of one call may wait for the client; a burst of some hundred is usual.
const WAITING: usize = 256;
/// The longest message of a step, in bytes. A server writes it.
const MAX_MESSAGE: usize = 4096;

/// Where the upstream's steps go in.
struct Sink(mpsc::Sender<Progress>);

impl ProgressSink for Sink {
    fn progress(&self, progress: Progress) {
        // Full: the step is dropped. Closed: the call has its answer, and late steps are of no use.
        let _ = self.0.try_send(progress);
    }
}

/// Where they come out.
pub(super) struct Steps {
    queue: mpsc::Receiver<Progress>,
    /// The step that is being sent: cleaning takes a while, and whoever waits for it may stop waiting.
    held: Option<Progress>,
    latest: f64,
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
) -> (impl ProgressSink + 'static, Steps) {
    let (sender, queue) = mpsc::channel(WAITING);
    (Sink(sender), Steps { queue, held: None, latest: f64::NEG_INFINITY, token, peer, session, target })
}

impl Steps {
    /// Sends steps as they come; ends when no more can come. Dropping the future loses none but one that the client has
    /// half got.
    pub(super) async fn forward(&mut self) {
        loop {
            self.send().await;
            match self.queue.recv().await {
                Some(step) => self.held = Some(step),
                None => return,
            }
        }
    }

    /// Sends the steps that are there already.
    pub(super) async fn flush(&mut self) {
        loop {
            self.send().await;
            match self.queue.try_recv() {
                Ok(step) => self.held = Some(step),
                Err(_empty) => return,
            }
        }
    }

    async fn send(&mut self) {
        let Some(step) = &self.held else { return };
        if !step.progress.is_finite() || step.progress <= self.latest {
            self.held = None;
            return;
        }
        let latest = step.progress;
        let mut params = ProgressNotificationParam::new(self.token.clone(), latest);
        params.total = step.total.filter(|total| total.is_finite());
        if let Some(message) = &step.message {
            // Cut last: a secret that is cut in two is none that a sanitiser knows.
            let left = self.session.clean_progress(&self.target, message).await;
            params.message = left.map(|left| text::prefix(&left, MAX_MESSAGE).to_owned());
        }
        (self.held, self.latest) = (None, latest);
        if let Err(error) = self.peer.notify_progress(params).await {
            tracing::debug!(%error, "progress was not sent");
        }
    }
}
