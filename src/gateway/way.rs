//! How a question gets to a client: as a request of ours, or as the result of the call that it belongs to.

use std::time::Duration;

use rmcp::RoleServer;
use rmcp::service::Peer;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use super::parked::{Ask, Told};

/// The way to the client of one call.
#[derive(Clone)]
pub(super) enum Way {
    /// A client that shook hands is sent requests.
    Requests(Peer<RoleServer>),
    /// One of the stateless era gets the question as a result, and repeats its call.
    Results(mpsc::Sender<Ask>),
}

impl Way {
    /// Has a question told as a result, and waits for what comes of it; nothing if the call is over, or is not one in rounds.
    /// Dropping the future withdraws the question.
    pub(super) async fn park(&self, method: &'static str, params: Value, lasts: Duration) -> Option<Told> {
        let Self::Results(asks) = self else { return None };
        let (told, answer) = oneshot::channel();
        asks.send(Ask { method, params, lasts, told }).await.ok()?;
        answer.await.ok()
    }
}
