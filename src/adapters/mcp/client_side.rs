//! What is taken out of the stream of a client in front of us (we are its server), for the gateway.
//!
//! Every request carries an [`Incoming`] in its extensions (rmcp hands it to the handler in
//! `RequestContext::extensions`): the parameters as the client spelled them, and a place for an answer that is already
//! JSON text. So arguments are parsed strictly (R26), and answers pass byte by byte.
//!
//! - Of a `tools/call` rmcp gets only the name and `_meta`; the arguments are in [`Incoming::arguments`] alone, so
//!   deep nesting and odd numbers never meet rmcp's parser.
//! - Ids are renumbered: a client that uses one id for everything gets each of its answers.
//! - A request of the stateless era has an answer that says what kind of result it is; rmcp knows nothing of our text.
//! - Parameters of the wrong shape are answered here with `-32602` and a text that names the member.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use rmcp::RoleServer;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CancelledNotificationParam, ClientNotification, ClientRequest,
    ClientResult, ErrorCode, ErrorData, GetExtensions as _, GetMeta as _, JsonRpcMessage, NumberOrString,
    ProtocolVersion, RequestId, RequestMetaObject,
};
use rmcp::service::TxJsonRpcMessage;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::io::{AsyncRead, AsyncWrite};

use super::asked::{Asked, AskedOfClient};
use super::envelope::{BATCH, Envelope, Id, Salvage};
use super::era;
use super::transport::{
    Arrival, Inbound, Limits, LineRole, LineTransport, TransportFault, answer_line, error_line, parse_message,
};

/// How many requests of one client may be in flight.
const MAX_IN_FLIGHT: usize = 1024;
const INVALID_REQUEST: i64 = -32600;
const INVALID_PARAMS: i64 = -32602;

/// Requests whose parameters rmcp knows. In another shape they would reach the handler as an unknown method.
const KNOWN: [&str; 13] = [
    "initialize",
    "server/discover",
    "ping",
    "tools/list",
    "logging/setLevel",
    "completion/complete",
    "prompts/list",
    "prompts/get",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
];

/// A request as the client spelled it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Incoming(Arc<Request>);

#[derive(Debug)]
struct Request {
    id: RequestId,
    params: Option<Box<str>>,
    arguments: Option<Range<usize>>,
    modern: bool,
    reply: Mutex<Option<Reply>>,
}

#[derive(Debug)]
enum Reply {
    Result(String),
    Error(String),
}

/// A text that was to be sent is not one JSON object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the text is no JSON object")]
pub struct NoObject;

impl Incoming {
    fn new(
        id: RequestId,
        params: Option<&RawValue>,
        arguments: Option<Range<usize>>,
        version: Option<&ProtocolVersion>,
    ) -> Self {
        let params = params.map(|raw| raw.get().into());
        // Only a request of the stateless era has to say its version.
        let modern = version.is_some_and(|version| !version.has_initialize());
        Self(Arc::new(Request { id, params, arguments, modern, reply: Mutex::default() }))
    }

    /// Tells whether the request is one of the stateless era.
    #[must_use]
    pub fn is_modern(&self) -> bool {
        self.0.modern
    }

    /// Returns the id that the client gave. Not unique: some clients use one id for everything.
    #[must_use]
    pub fn client_id(&self) -> &RequestId {
        &self.0.id
    }

    /// Returns the text of `params`, as it came.
    #[must_use]
    pub fn params(&self) -> Option<&str> {
        self.0.params.as_deref()
    }

    /// Returns the text of `arguments` of a `tools/call`, as it came: any JSON, `null` included. `None`: absent.
    #[must_use]
    pub fn arguments(&self) -> Option<&str> {
        self.params()?.get(self.0.arguments.clone()?)
    }

    /// Answers with this text as `result`, instead of what the handler returns.
    ///
    /// The text is sent byte by byte, but for line feeds between its tokens, which become spaces, and for `resultType`,
    /// which is `complete` towards the stateless era.
    ///
    /// # Errors
    /// [`NoObject`]; the handler's own answer stands then.
    pub fn respond(&self, result: &str) -> Result<(), NoObject> {
        let text = one_line(result)?;
        let text = if self.0.modern { era::complete(&text).ok_or(NoObject)? } else { text };
        *self.0.reply.lock() = Some(Reply::Result(text));
        Ok(())
    }

    /// Answers with this text as `result`, which says itself what kind of result it is: a question (`input_required`).
    ///
    /// # Errors
    /// [`NoObject`]; the handler's own answer stands then. So it is for a request that is not of the stateless era, which
    /// has no such answer.
    pub fn ask(&self, result: &str) -> Result<(), NoObject> {
        if !self.0.modern {
            return Err(NoObject);
        }
        *self.0.reply.lock() = Some(Reply::Result(one_line(result)?));
        Ok(())
    }

    /// Answers with this text as `error`, instead of what the handler returns; like [`Incoming::respond`].
    ///
    /// # Errors
    /// [`NoObject`]; the handler's own answer stands then.
    pub fn respond_error_text(&self, error: &str) -> Result<(), NoObject> {
        let text = one_line(error)?;
        *self.0.reply.lock() = Some(Reply::Error(text));
        Ok(())
    }

    /// Answers with a JSON-RPC error, instead of what the handler returns: any code, data as it is.
    pub fn respond_error(&self, code: i64, message: &str, data: Option<&Value>) {
        let mut error = Map::new();
        error.insert("code".to_owned(), code.into());
        error.insert("message".to_owned(), message.into());
        if let Some(data) = data {
            error.insert("data".to_owned(), data.clone());
        }
        *self.0.reply.lock() = Some(Reply::Error(Value::Object(error).to_string()));
    }
}

/// Line feeds can only stand between tokens: inside of a JSON string they are escaped.
fn one_line(text: &str) -> Result<String, NoObject> {
    let raw: &RawValue = serde_json::from_str(text).map_err(|_| NoObject)?;
    if !raw.get().starts_with('{') {
        return Err(NoObject);
    }
    Ok(raw.get().replace(['\n', '\r'], " "))
}

/// What this side remembers: requests without an answer, by our number.
#[derive(Debug, Default)]
pub struct ClientSide {
    open: Mutex<Open>,
    asked: AskedOfClient,
}

#[derive(Debug, Default)]
struct Open {
    next: i64,
    requests: BTreeMap<i64, Incoming>,
}

impl ClientSide {
    fn open(&self, incoming: Incoming) -> Option<RequestId> {
        let mut open = self.open.lock();
        if open.requests.len() >= MAX_IN_FLIGHT {
            return None;
        }
        open.next += 1;
        let number = open.next;
        open.requests.insert(number, incoming);
        Some(NumberOrString::Number(number))
    }

    fn close(&self, id: &RequestId) -> Option<Incoming> {
        let NumberOrString::Number(number) = id else { return None };
        self.open.lock().requests.remove(number)
    }

    /// Forgets the requests with this id of the client, and returns our ids of them.
    fn cancel(&self, client_id: &RequestId) -> Vec<RequestId> {
        let mut cancelled = Vec::new();
        self.open.lock().requests.retain(|number, incoming| {
            let hit = incoming.client_id() == client_id;
            if hit {
                cancelled.push(NumberOrString::Number(*number));
            }
            !hit
        });
        cancelled
    }
}

impl<I: AsyncRead + Send + Unpin> LineTransport<RoleServer, I> {
    /// Makes the transport of a server whose client writes to `input` and reads from `output`. Needs a running tokio.
    ///
    /// The end of `input` ends the session, but answers that are under way are still written.
    pub fn to_client<W>(input: I, output: W, limits: Limits) -> Self
    where
        W: AsyncWrite + Send + Unpin + 'static,
    {
        Self::with_side("client", input, output, limits, Arc::default())
    }
}

impl LineRole for RoleServer {
    type Side = ClientSide;
    const WRITES_AFTER_END: bool = true;

    fn outgoing(side: &ClientSide, message: TxJsonRpcMessage<Self>) -> Result<Option<String>, TransportFault> {
        let text = |message: &TxJsonRpcMessage<Self>| {
            serde_json::to_string(message).map_err(|error| TransportFault::Message(error.to_string()))
        };
        if let JsonRpcMessage::Request(request) = &message
            && let Some(asked) = Asked::of(&request.request)
        {
            return Ok(side.asked.line(&request.id, asked));
        }
        let ours = match &message {
            JsonRpcMessage::Response(response) => response.id.clone(),
            JsonRpcMessage::Error(error) => match &error.id {
                Some(id) => id.clone(),
                None => return text(&message).map(Some),
            },
            _ => return text(&message).map(Some),
        };
        // Cancelled meanwhile: no answer follows.
        let Some(incoming) = side.close(&ours) else { return Ok(None) };
        let id = incoming.client_id().clone();
        let reply = incoming.0.reply.lock().take();
        match (reply, message) {
            (Some(Reply::Result(body)), _) => Ok(Some(answer_line(&id, "result", &body))),
            (Some(Reply::Error(body)), _) => Ok(Some(answer_line(&id, "error", &body))),
            (None, JsonRpcMessage::Response(mut response)) => {
                response.id = id;
                text(&JsonRpcMessage::Response(response)).map(Some)
            }
            (None, JsonRpcMessage::Error(mut error)) => {
                error.id = Some(id);
                text(&JsonRpcMessage::Error(error)).map(Some)
            }
            (None, other) => text(&other).map(Some),
        }
    }

    fn incoming(side: &Arc<ClientSide>, line: &str, arrival: &Arrival) -> Inbound<Self> {
        let envelope = match Envelope::parse(line) {
            Ok(envelope) => envelope,
            Err(what) => {
                // Whoever sends a batch waits for answers to what is in it.
                if what == BATCH {
                    arrival.reply(error_line(None, INVALID_REQUEST, &format!("the message is {what}")));
                }
                // A text that can at least be attributed gets an answer; others would only feed an echo.
                if let Salvage { id: Some(id), answers: Some(false) } = Salvage::head(line.as_bytes()) {
                    arrival.reply(error_line(Some(&id), -32700, &format!("the message is {what}")));
                }
                return Inbound::Rubbish(what);
            }
        };
        match (envelope.method.as_deref(), envelope.id()) {
            (Some("tools/call"), Id::Good(id)) => call(side, &envelope, id, arrival),
            (Some(method), Id::Good(id)) => request(side, line, &envelope, method, id, arrival),
            (Some("notifications/cancelled"), Id::Absent) => cancelled(side, &envelope),
            (Some(_), Id::Absent) => parse_message::<Self>(line).map_or(Inbound::Consumed, Inbound::one),
            (Some(_), Id::Bad) => {
                arrival.reply(error_line(None, INVALID_REQUEST, "the `id` is neither a string nor a whole number"));
                Inbound::Consumed
            }
            (None, Id::Good(id)) if side.asked.answered(&id, &envelope) => {
                Inbound::one(JsonRpcMessage::response(ClientResult::empty(()), id))
            }
            (None, Id::Good(id)) => Inbound::one(parse_message::<Self>(line).unwrap_or_else(|error| {
                JsonRpcMessage::error(ErrorData::new(ErrorCode::INTERNAL_ERROR, error, None), Some(id))
            })),
            (None, _) => Inbound::Rubbish("an answer without a usable id"),
        }
    }

    fn oversized(
        _side: &Arc<ClientSide>,
        id: RequestId,
        answers: bool,
        limit: usize,
        arrival: &Arrival,
    ) -> Inbound<Self> {
        let why = format!("the message has more than {limit} bytes");
        if answers {
            let error = ErrorData::new(ErrorCode::INTERNAL_ERROR, why, None);
            return Inbound::one(JsonRpcMessage::error(error, Some(id)));
        }
        arrival.reply(error_line(Some(&id), INVALID_REQUEST, &why));
        Inbound::Consumed
    }
}

/// Refuses a request on the spot.
fn refuse(arrival: &Arrival, id: &RequestId, code: i64, why: &str) -> Inbound<RoleServer> {
    arrival.reply(error_line(Some(id), code, why));
    Inbound::Consumed
}

fn too_many(arrival: &Arrival, id: &RequestId) -> Inbound<RoleServer> {
    refuse(arrival, id, -32000, &format!("more than {MAX_IN_FLIGHT} requests are in flight"))
}

fn call(side: &ClientSide, envelope: &Envelope<'_>, id: RequestId, arrival: &Arrival) -> Inbound<RoleServer> {
    #[derive(Deserialize)]
    struct Params<'a> {
        name: String,
        #[serde(borrow, default, deserialize_with = "present")]
        arguments: Option<&'a RawValue>,
        #[serde(rename = "_meta", default)]
        meta: Option<Map<String, Value>>,
    }
    fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
        <&RawValue>::deserialize(deserializer).map(Some)
    }

    let Some(raw) = envelope.params.filter(|raw| raw.get().starts_with('{')) else {
        return refuse(arrival, &id, INVALID_PARAMS, "invalid params: `params` is not an object");
    };
    let params: Params<'_> = match serde_json::from_str(raw.get()) {
        Ok(params) => params,
        Err(error) => return refuse(arrival, &id, INVALID_PARAMS, &format!("invalid params: {error}")),
    };
    let arguments = params.arguments.map(|arguments| {
        // A `RawValue` that was borrowed from the text is a part of it.
        let start = (arguments.get().as_ptr() as usize).saturating_sub(raw.get().as_ptr() as usize);
        start..start + arguments.get().len()
    });
    let meta = params.meta.map(RequestMetaObject::from);
    let version = meta.as_ref().and_then(RequestMetaObject::protocol_version);
    let incoming = Incoming::new(id.clone(), Some(raw), arguments, version.as_ref());
    let Some(ours) = side.open(incoming.clone()) else { return too_many(arrival, &id) };
    let mut call = CallToolRequest::new(CallToolRequestParams::new(params.name));
    if let Some(meta) = meta {
        call.extensions.insert(meta);
    }
    call.extensions.insert(incoming);
    Inbound::one(JsonRpcMessage::request(ClientRequest::CallToolRequest(call), ours))
}

fn request(
    side: &ClientSide,
    line: &str,
    envelope: &Envelope<'_>,
    method: &str,
    id: RequestId,
    arrival: &Arrival,
) -> Inbound<RoleServer> {
    let mut request = match parse_message::<RoleServer>(line) {
        Ok(JsonRpcMessage::Request(request)) => request,
        Ok(_) => return refuse(arrival, &id, INVALID_REQUEST, "invalid request"),
        Err(error) => return refuse(arrival, &id, INVALID_REQUEST, &format!("invalid request: {error}")),
    };
    if matches!(request.request, ClientRequest::CustomRequest(_)) && KNOWN.contains(&method) {
        let why = format!("invalid params: not what `{method}` takes");
        return refuse(arrival, &id, INVALID_PARAMS, &why);
    }
    let version = request.request.get_meta().protocol_version();
    let incoming = Incoming::new(id.clone(), envelope.params, None, version.as_ref());
    let Some(ours) = side.open(incoming.clone()) else { return too_many(arrival, &id) };
    request.request.extensions_mut().insert(incoming);
    request.id = ours;
    Inbound::one(JsonRpcMessage::Request(request))
}

fn cancelled(side: &ClientSide, envelope: &Envelope<'_>) -> Inbound<RoleServer> {
    let params = envelope.params.map_or("null", |raw| raw.get());
    let Ok(params) = serde_json::from_str::<CancelledNotificationParam>(params) else { return Inbound::Consumed };
    let Some(client_id) = params.request_id.clone() else { return Inbound::Consumed };
    let messages = side.cancel(&client_id).into_iter().map(|ours| {
        let mut params = params.clone();
        params.request_id = Some(ours);
        let cancelled = rmcp::model::CancelledNotification::new(params);
        JsonRpcMessage::notification(ClientNotification::CancelledNotification(cancelled))
    });
    Inbound::Messages(messages.collect())
}
