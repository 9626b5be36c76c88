//! What kind of message goes out, and which headers it wants.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use rmcp::model::{JsonRpcMessage, NumberOrString, ProtocolVersion, RequestId};
use rmcp::service::{RoleClient, TxJsonRpcMessage};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::params::{ParamHeaders, header_value};
use crate::adapters::mcp::envelope::our_number;
use crate::adapters::mcp::era::Era;

/// Names the protocol version.
pub(super) const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// Names the session.
pub(super) const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
/// Names the last event that was seen of a stream.
pub(super) const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
/// A stream of events.
pub(super) const EVENT_STREAM: &str = "text/event-stream";
/// One message.
pub(super) const JSON: &str = "application/json";

/// What kind of message it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Asks which versions there are; a server of the older era may not know it.
    Discover,
    /// Opens a session.
    Initialize,
    /// Says that the session is open.
    Initialized,
    /// A request whose answer is a stream without end.
    Listen,
    /// Asks for the tools.
    List,
    /// Any other request.
    Request,
    /// A notification, or an answer of ours.
    Other,
}

impl Kind {
    fn of(method: &str) -> Self {
        match method {
            "server/discover" => Self::Discover,
            "initialize" => Self::Initialize,
            "subscriptions/listen" => Self::Listen,
            "tools/list" => Self::List,
            _ => Self::Request,
        }
    }

    /// Whether it belongs to shaking hands: then its failure is that of the connection.
    pub(super) fn shakes_hands(self) -> bool {
        matches!(self, Self::Discover | Self::Initialize | Self::Initialized)
    }

    /// Whether it takes one of the places of calls. The tools can be listed while every place is taken.
    pub(super) fn takes_a_place(self) -> bool {
        self == Self::Request
    }
}

/// A message that goes out.
#[derive(Debug, Clone)]
pub(super) struct Order {
    pub(super) text: Bytes,
    pub(super) kind: Kind,
    /// Of a request.
    pub(super) id: Option<RequestId>,
    pub(super) era: Era,
    /// What the stateless era wants; nothing in the older one.
    headers: HeaderMap,
}

#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Named<'a> {
    #[serde(borrow, default)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
}

impl Order {
    /// Describes a message of ours that is no request.
    pub(super) fn other(text: String, era: Era) -> Self {
        Self { text: text.into(), kind: Kind::Other, id: None, era, headers: HeaderMap::new() }
    }

    /// Describes a message; `id` is that of a request. `era`: what hands were shaken on.
    pub(super) fn new(text: String, id: Option<RequestId>, era: Era, params: &ParamHeaders) -> Self {
        let wire = serde_json::from_str(&text).unwrap_or(Wire { method: None, params: None });
        let method = wire.method.unwrap_or_default();
        let kind = match &id {
            Some(_) => Kind::of(&method),
            None if method == "notifications/initialized" => Kind::Initialized,
            None => Kind::Other,
        };
        let era = match kind {
            Kind::Discover => Era::Modern,
            Kind::Initialize | Kind::Initialized => Era::Legacy,
            Kind::Listen | Kind::List | Kind::Request | Kind::Other => era,
        };
        let mut headers = HeaderMap::new();
        if era == Era::Modern {
            headers.insert(VERSION, HeaderValue::from_static(ProtocolVersion::NO_INITIALIZE.as_str()));
            if let Some(value) = header_value(&method) {
                headers.insert(METHOD, value);
            }
            if method == "tools/call"
                && let Some(Ok(named)) = wire.params.map(|raw| serde_json::from_str::<Named<'_>>(raw.get()))
                && let Some(name) = named.name
            {
                if let Some(value) = header_value(&name) {
                    headers.insert(NAME, value);
                }
                params.add(&name, named.arguments.map(RawValue::get), &mut headers);
            }
        }
        Self { text: text.into(), kind, id, era, headers }
    }

    /// Our number of the request.
    pub(super) fn number(&self) -> Option<i64> {
        self.id.as_ref().and_then(our_number)
    }

    /// The headers, with those of the session.
    pub(super) fn headers(&self, session: &HeaderMap) -> HeaderMap {
        let mut headers = self.headers.clone();
        if self.era == Era::Legacy && self.kind != Kind::Initialize {
            headers.extend(session.clone());
        }
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
        headers
    }
}

/// The id of a request that is about to be sent.
pub(super) fn request_id(message: &TxJsonRpcMessage<RoleClient>) -> Option<RequestId> {
    match message {
        JsonRpcMessage::Request(request) => Some(request.id.clone()),
        JsonRpcMessage::Notification(_) | JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => None,
    }
}

/// Whether two ids are the same request of ours.
pub(super) fn same(ours: &RequestId, theirs: &RequestId) -> bool {
    ours == theirs || matches!(ours, NumberOrString::Number(number) if our_number(theirs) == Some(*number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(text: &str, era: Era) -> Order {
        Order::new(text.to_owned(), Some(NumberOrString::Number(7)), era, &ParamHeaders::default())
    }

    #[test]
    fn a_request_of_the_stateless_era_names_its_method_and_its_tool() {
        let call = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"caf\u00e9","arguments":{}}}"#;
        let mut session = HeaderMap::new();
        session.insert(SESSION, HeaderValue::from_static("s"));
        let headers = order(call, Era::Modern).headers(&session);
        assert_eq!(headers[METHOD], "tools/call");
        assert_eq!(headers[NAME], "=?base64?Y2Fmw6k=?=");
        assert_eq!(headers[VERSION], "2026-07-28");
        assert!(!headers.contains_key(SESSION), "there are no sessions");
        let legacy = order(call, Era::Legacy).headers(&session);
        assert_eq!(legacy[SESSION], "s");
        assert!(!legacy.contains_key(METHOD));
    }

    #[test]
    fn the_handshake_of_the_older_era_has_no_session_yet() {
        let mut session = HeaderMap::new();
        session.insert(SESSION, HeaderValue::from_static("s"));
        let order = order(r#"{"jsonrpc":"2.0","id":7,"method":"initialize","params":{}}"#, Era::Legacy);
        assert_eq!(order.kind, Kind::Initialize);
        assert!(!order.headers(&session).contains_key(SESSION));
    }
}
