//! The rmcp transport over HTTP.
//!
//! A request returns at once, and is carried by a task of its own; a notification returns when the server has taken it, so
//! that what follows cannot overtake it. Dropping the transport ends every task.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{ClientNotification, JsonRpcMessage};
use rmcp::service::{RoleClient, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::carrier::{Carrier, Incoming};
use super::order::{Order, request_id};
use crate::adapters::mcp::envelope::our_number;
use crate::adapters::mcp::era::Era;
use crate::adapters::mcp::transport::{LineRole as _, TransportFault};

/// How long the end of a session may take.
const GOODBYE: Duration = Duration::from_secs(2);

/// The transport.
pub(super) struct HttpTransport {
    carrier: Arc<Carrier>,
    inbox: mpsc::Receiver<Incoming>,
}

/// What is left to do for a message.
enum Sending {
    Done(Result<(), TransportFault>),
    Tell(Arc<Carrier>, Order),
}

impl HttpTransport {
    pub(super) fn new(carrier: Arc<Carrier>, inbox: mpsc::Receiver<Incoming>) -> Self {
        Self { carrier, inbox }
    }

    fn begin(&self, item: TxJsonRpcMessage<RoleClient>) -> Result<Sending, TransportFault> {
        let carrier = &self.carrier;
        if carrier.end.is_set() {
            return Err(TransportFault::Closed);
        }
        let (id, cancels) = (request_id(&item), cancels(&item));
        let answers = matches!(item, JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_));
        let Some(text) = RoleClient::outgoing(&carrier.side, item)? else { return Ok(Sending::Done(Ok(()))) };
        let order = Order::new(text, id, carrier.side.era(), &carrier.params);
        if order.id.is_some() {
            carrier.start(order);
            return Ok(Sending::Done(Ok(())));
        }
        if answers {
            carrier.reply(order);
            return Ok(Sending::Done(Ok(())));
        }
        // Without a session the end of the stream is the cancellation.
        let silent = cancels.is_some_and(|number| !carrier.give_up(number) || order.era == Era::Modern);
        Ok(if silent { Sending::Done(Ok(())) } else { Sending::Tell(Arc::clone(carrier), order) })
    }
}

/// Our number of the request that a message cancels.
fn cancels(message: &TxJsonRpcMessage<RoleClient>) -> Option<i64> {
    match message {
        JsonRpcMessage::Notification(notification) => match &notification.notification {
            ClientNotification::CancelledNotification(cancelled) => {
                cancelled.params.request_id.as_ref().and_then(our_number)
            }
            _ => None,
        },
        JsonRpcMessage::Request(_) | JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => None,
    }
}

impl Transport<RoleClient> for HttpTransport {
    type Error = TransportFault;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), TransportFault>> + Send + 'static {
        // Begun before the future is first polled: rmcp polls its sends side by side.
        let begun = self.begin(item);
        async move {
            match begun? {
                Sending::Done(done) => done,
                Sending::Tell(carrier, order) => {
                    let dying = carrier.dying.clone();
                    let told = dying.run_until_cancelled(carrier.tell(&order)).await;
                    told.unwrap_or(Err(TransportFault::Closed))
                }
            }
        }
    }

    async fn receive(&mut self) -> Option<Incoming> {
        let end = self.carrier.end.clone();
        tokio::select! {
            biased;
            message = self.inbox.recv() => message,
            () = end.wait() => None,
        }
    }

    async fn close(&mut self) -> Result<(), TransportFault> {
        self.carrier.end.set("closed");
        self.carrier.dying.cancel();
        // Best effort: a server that does not answer must not hold anybody up.
        let _ = timeout(GOODBYE, self.carrier.leave()).await;
        Ok(())
    }
}

impl Drop for HttpTransport {
    fn drop(&mut self) {
        self.carrier.end.set("the connection was dropped");
        self.carrier.dying.cancel();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let carrier = Arc::clone(&self.carrier);
            runtime.spawn(async move { timeout(GOODBYE, carrier.leave()).await });
        }
    }
}
