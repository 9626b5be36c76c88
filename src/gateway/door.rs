//! What may come through before the era is known: `initialize`, the requests that the protocol allows before it, and a request
//! of the stateless era, which says itself who asks.
//!
//! rmcp ends the connection at the first message that is not a request. Here, what comes too early is dropped, or answered if it
//! is a request, and the connection waits on. The first request of the stateless era decides that there is no handshake any more;
//! discovery decides nothing.

use rmcp::RoleServer;
use rmcp::model::{ClientRequest, ErrorData, GetMeta as _, JsonRpcMessage, ProtocolVersion};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::io::AsyncRead;

use crate::adapters::mcp::transport::{LineTransport, TransportFault};

/// The transport to the client, with the door in front of it.
pub(super) struct Door<I> {
    lines: LineTransport<RoleServer, I>,
    open: bool,
}

impl<I> Door<I> {
    pub(super) fn new(lines: LineTransport<RoleServer, I>) -> Self {
        Self { lines, open: false }
    }
}

impl<I: AsyncRead + Send + Unpin + 'static> Transport<RoleServer> for Door<I> {
    type Error = TransportFault;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), TransportFault>> + Send + 'static {
        self.lines.send(item)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            // Nothing is lost when this is dropped here: once open, it is the transport's own cancel-safe read.
            let Some(message) = self.lines.receive().await else {
                if !self.open {
                    // Without a handshake rmcp drops the transport unclosed, and with it what is still to be written.
                    let _ = self.lines.close().await;
                }
                return None;
            };
            if self.open {
                return Some(message);
            }
            let JsonRpcMessage::Request(request) = message else { continue };
            match &request.request {
                ClientRequest::InitializeRequest(_) => {
                    self.open = true;
                    return Some(JsonRpcMessage::Request(request));
                }
                ClientRequest::PingRequest(_) | ClientRequest::DiscoverRequest(_) => {
                    return Some(JsonRpcMessage::Request(request));
                }
                stateless if stateless.get_meta().protocol_version().is_some() => {
                    // rmcp refuses what is not whole or of an unknown version, and waits on.
                    let meta = stateless.get_meta();
                    let known = meta.protocol_version().is_some_and(|it| ProtocolVersion::KNOWN_VERSIONS.contains(&it));
                    self.open = known && meta.missing_required_keys(&ProtocolVersion::NO_INITIALIZE).is_empty();
                    return Some(JsonRpcMessage::Request(request));
                }
                _ => {
                    let error = ErrorData::invalid_request("the session has not been initialized", None);
                    // A client that does not read its answers ends the connection in the transport.
                    let _ = self.lines.send(JsonRpcMessage::error(error, Some(request.id))).await;
                }
            }
        }
    }

    async fn close(&mut self) -> Result<(), TransportFault> {
        self.lines.close().await
    }
}
