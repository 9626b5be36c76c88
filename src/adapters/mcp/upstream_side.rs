//! What is taken out of the stream of a server behind us (we are its client).
//!
//! A request of ours carries an [`Outbound`] in its extensions, so the transport knows it before it is written: no
//! answer and no progress can come too early. Its answer is kept as raw text, and rmcp gets an empty result in its
//! place, so no shape of an answer can confuse rmcp's types. Progress, log messages and `tools/list_changed` are
//! delivered here, in the order in which they came; progress must grow, and what comes too late is dropped. Questions go
//! to [`super::inquiry`].

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rmcp::RoleClient;
use rmcp::model::{ClientRequest, ErrorCode, ErrorData, GetExtensions as _, JsonRpcMessage, RequestId, ServerResult};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::io::{AsyncRead, AsyncWrite};

use super::envelope::{Envelope, Id, our_number};
use super::era::{Era, wants_handshake};
use super::inquiry::{Asker, Inquiries};
use super::strays::{Stray, Strays};
use super::traffic::Counter;
use super::transport::{Arrival, Inbound, Limits, LineRole, LineTransport, TransportFault, error_line, parse_message};
use crate::model::answerable::QuestionKind;
use crate::model::caller::Audience;
use crate::model::revision::ConnectionId;
use crate::model::text;
use crate::ports::upstream::{ConnectionEvent, Progress, ProgressSink, UpstreamEvents, UpstreamLog};

/// The longest progress message that is passed on, in bytes.
const MAX_PROGRESS_MESSAGE: usize = 4096;
/// The longest `data` of a log message that is passed on whole, as JSON in bytes: many messages may wait for a reader.
const MAX_LOG_DATA: usize = 8 * 1024;
/// Ends a text from which something was left out.
const CUT: &str = "… (cut)";

/// An answer as it came.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum RawAnswer {
    /// The text of `result`.
    Result(Arc<str>),
    /// The text of `error`.
    Error(Arc<str>),
    /// There is an answer, but it cannot be used.
    Unusable(String),
    /// There will be none: the request never reached the server.
    NotSent(String),
    /// There will be none, and the server may have got the request.
    Lost(String),
}

/// Where an answer is put.
pub(super) type Slot = Arc<Mutex<Option<RawAnswer>>>;

/// A request as it is to be written; travels in the extensions of rmcp's request.
#[derive(Clone)]
pub(super) struct Outbound {
    /// The method.
    pub(super) method: &'static str,
    /// The parameters, without a progress token.
    pub(super) params: Arc<Map<String, Value>>,
    /// Where the answer goes.
    pub(super) slot: Slot,
    /// Where progress goes; without one the request asks for none.
    pub(super) progress: Option<Arc<dyn ProgressSink>>,
    /// Who is asked what the server wants to know meanwhile; none: this is no call.
    pub(super) asker: Option<Asker>,
}

struct Waiting {
    slot: Slot,
    progress: Option<Arc<dyn ProgressSink>>,
    last: f64,
    asker: Option<Asker>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // Questions end with their call.
        if let Some(asker) = &self.asker {
            asker.over.cancel();
        }
    }
}

/// What this side remembers: requests without an answer, by our number. The caller bounds how many there are.
#[allow(unreachable_pub, reason = "named by a public trait; nothing outside of the adapter can make one")]
pub struct UpstreamSide {
    waiting: Mutex<HashMap<i64, Waiting>>,
    inquiries: Arc<Inquiries>,
    strays: Strays,
    traffic: Arc<Counter>,
    /// Known once hands are shaken.
    era: OnceLock<Era>,
    server: Arc<str>,
    connection: ConnectionId,
    events: Arc<dyn UpstreamEvents>,
}

impl UpstreamSide {
    pub(super) fn new(server: &str, connection: ConnectionId, events: Arc<dyn UpstreamEvents>) -> Self {
        let (waiting, inquiries) = (Mutex::default(), Arc::default());
        let (strays, traffic) = (Strays::default(), Arc::default());
        Self { waiting, inquiries, strays, traffic, era: OnceLock::new(), server: server.into(), connection, events }
    }

    /// Notes what hands were shaken on. The first word stays.
    pub(super) fn shaken(&self, era: Era) {
        // A connection is of one era for all its life.
        let _ = self.era.set(era);
    }

    /// Returns the era; before hands are shaken the older one.
    pub(super) fn era(&self) -> Era {
        self.era.get().copied().unwrap_or_default()
    }

    /// Returns what counts the bytes.
    pub(super) fn traffic(&self) -> &Arc<Counter> {
        &self.traffic
    }

    /// Returns the name of the server.
    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// Tells that something happened.
    pub(super) fn event(&self, event: ConnectionEvent) {
        self.events.event(self.connection, event);
    }

    /// The tools may have changed without a word of the server.
    pub(super) fn tools_may_have_changed(&self) {
        self.events.tools_changed(self.connection);
    }

    /// Notes a request before it is written.
    fn expect(&self, number: i64, outbound: &Outbound) {
        let Outbound { slot, progress, asker, .. } = outbound.clone();
        self.strays.sent(number, false);
        self.waiting.lock().insert(number, Waiting { slot, progress, last: f64::NEG_INFINITY, asker });
    }

    /// Forgets a request; its answer and progress are dropped from now on.
    pub(super) fn forget(&self, id: &RequestId) {
        let Some(number) = our_number(id) else { return };
        if self.give_up(number).is_some() {
            self.strays.gave_up(number);
        }
    }

    /// Takes a request out without an answer. Nobody can see that its call is not in flight before it is known as given up.
    fn give_up(&self, number: i64) -> Option<Waiting> {
        let mut waiting = self.waiting.lock();
        if let Some(asker) = waiting.get(&number).and_then(|waiting| waiting.asker.as_ref()) {
            self.inquiries.gave_up(number, asker.caller.clone());
        }
        waiting.remove(&number)
    }

    /// Settles a request that will have no answer; false when nobody waits for it. A server that has got it may still be
    /// busy with it.
    pub(super) fn failed(&self, id: &RequestId, failure: RawAnswer) -> bool {
        let Some(number) = our_number(id) else { return false };
        let waiting = match &failure {
            RawAnswer::NotSent(_) => self.waiting.lock().remove(&number),
            _ => self.give_up(number),
        };
        let Some(waiting) = waiting else { return false };
        *waiting.slot.lock() = Some(failure);
        true
    }

    /// Settles a request with this answer; false when nobody waits for it.
    pub(super) fn answered(&self, id: &RequestId, answer: impl FnOnce() -> RawAnswer) -> bool {
        let waiting = our_number(id).and_then(|number| self.waiting.lock().remove(&number));
        let Some(waiting) = waiting else { return false };
        *waiting.slot.lock() = Some(answer());
        true
    }

    fn question(&self, kind: QuestionKind, envelope: &Envelope<'_>, id: RequestId, arrival: &Arrival) {
        let askers = {
            let waiting = self.waiting.lock();
            let named = arrival.of.map(|number| waiting.get(&number).and_then(|waiting| waiting.asker.clone()));
            let calls = waiting.values().filter_map(|waiting| waiting.asker.clone()).collect();
            self.inquiries.attribute(named, calls)
        };
        let params = envelope.params.map_or("null", |raw| raw.get());
        if let Err(why) = self.inquiries.ask(kind, params, id, askers, arrival) {
            tracing::info!(target: "portcullis::upstream", server = %self.server, why, "a question of the server was refused");
            self.event(ConnectionEvent::QuestionRefused);
        }
    }

    fn notification(&self, method: &str, envelope: &Envelope<'_>, arrival: &Arrival) -> bool {
        let params = envelope.params.map_or("null", |raw| raw.get());
        match method {
            "notifications/progress" => self.progress(params),
            "notifications/tools/list_changed" => self.events.tools_changed(self.connection),
            "notifications/message" => self.log(params, arrival),
            "notifications/cancelled" => self.withdrawn(params),
            _ => return false,
        }
        true
    }

    fn progress(&self, params: &str) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Params {
            progress_token: Value,
            progress: f64,
            total: Option<f64>,
            message: Option<String>,
        }
        let Ok(params) = serde_json::from_str::<Params>(params) else { return };
        let token = match &params.progress_token {
            Value::String(text) => text.parse().ok(),
            other => other.as_i64(),
        };
        let sink = {
            let mut waiting = self.waiting.lock();
            let Some(waiting) = token.and_then(|token| waiting.get_mut(&token)) else { return };
            if params.progress <= waiting.last {
                return;
            }
            waiting.last = params.progress;
            waiting.progress.clone()
        };
        if let Some(sink) = sink {
            let message = params.message.map(|message| cut(message, MAX_PROGRESS_MESSAGE));
            sink.progress(Progress { progress: params.progress, total: params.total, message });
        }
    }

    fn withdrawn(&self, params: &str) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Params {
            request_id: RequestId,
        }
        if let Ok(params) = serde_json::from_str::<Params>(params) {
            self.inquiries.withdrawn(&params.request_id);
        }
    }

    /// Whom a message may be shown to: those whose call it came with, or may have come with. `Err`: nobody can tell.
    fn audience(&self, arrival: &Arrival) -> Result<Option<Audience>, ()> {
        let waiting = self.waiting.lock();
        let of = |waiting: &Waiting| waiting.asker.as_ref().map(|asker| Audience::of(&asker.caller));
        if let Some(number) = arrival.of {
            // The stream of a listing is nobody's.
            return waiting.get(&number).map(of).ok_or(());
        }
        let mut audiences = waiting.values().filter_map(of);
        let first = audiences.next();
        if audiences.any(|other| Some(&other) != first.as_ref()) { Err(()) } else { Ok(first) }
    }

    fn log(&self, params: &str, arrival: &Arrival) {
        #[derive(Deserialize)]
        struct Params<'a> {
            level: String,
            #[serde(default)]
            logger: Option<String>,
            #[serde(borrow, default)]
            data: Option<&'a RawValue>,
        }
        let Ok(params) = serde_json::from_str::<Params<'_>>(params) else { return };
        // It may hold what one caller sent, and nobody can tell whose it is.
        let Ok(audience) = self.audience(arrival) else { return };
        self.events.log(UpstreamLog {
            level: text::prefix(&params.level, 32).to_owned(),
            logger: params.logger.map(|logger| text::prefix(&logger, 256).to_owned()),
            data: params.data.map_or(Value::Null, |raw| log_data(raw.get())),
            audience,
        });
    }
}

/// Returns `data` of a log message; one that is too long becomes the beginning of its text, marked.
fn log_data(raw: &str) -> Value {
    if raw.len() <= MAX_LOG_DATA {
        return serde_json::from_str(raw).unwrap_or_default();
    }
    // A text is read before it is cut; of anything else a tree would be many times as large as its JSON.
    let text = if raw.starts_with('"') { serde_json::from_str(raw).ok() } else { None };
    match text {
        Some(text) => Value::String(cut(text, MAX_LOG_DATA)),
        None => Value::String(format!("{}{CUT}", text::prefix(raw, MAX_LOG_DATA))),
    }
}

/// Returns the text, or its beginning with a mark.
fn cut(text: String, max: usize) -> String {
    if text.len() <= max { text } else { format!("{}{CUT}", text::prefix(&text, max)) }
}

impl<I: AsyncRead + Send + Unpin> LineTransport<RoleClient, I> {
    pub(super) fn to_upstream<W>(peer: &str, input: I, output: W, limits: Limits, side: Arc<UpstreamSide>) -> Self
    where
        W: AsyncWrite + Send + Unpin + 'static,
    {
        Self::with_side(peer, input, output, limits, side)
    }
}

/// An empty result in the place of an answer whose text is in its slot.
pub(super) fn stand_in(id: RequestId) -> RxJsonRpcMessage<RoleClient> {
    JsonRpcMessage::response(ServerResult::empty(()), id)
}

fn failure(id: RequestId, why: String) -> RxJsonRpcMessage<RoleClient> {
    JsonRpcMessage::error(ErrorData::new(ErrorCode::INTERNAL_ERROR, why, None), Some(id))
}

impl LineRole for RoleClient {
    type Side = UpstreamSide;
    const WRITES_AFTER_END: bool = false;

    fn outgoing(side: &UpstreamSide, message: TxJsonRpcMessage<Self>) -> Result<Option<String>, TransportFault> {
        if let JsonRpcMessage::Request(request) = &message
            && let ClientRequest::CustomRequest(custom) = &request.request
            && let Some(outbound) = custom.extensions().get::<Outbound>()
            && let Some(number) = our_number(&request.id)
        {
            let line = request_line(number, outbound)?;
            side.expect(number, outbound);
            return Ok(Some(line));
        }
        if let JsonRpcMessage::Request(request) = &message
            && let Some(number) = our_number(&request.id)
        {
            side.strays.sent(number, true);
        }
        serde_json::to_string(&message).map(Some).map_err(|error| TransportFault::Message(error.to_string()))
    }

    fn incoming(side: &Arc<UpstreamSide>, line: &str, arrival: &Arrival) -> Inbound<Self> {
        let envelope = match Envelope::parse(line) {
            Ok(envelope) => envelope,
            Err(what) => return Inbound::Rubbish(what),
        };
        let id = envelope.id();
        match (&envelope.method, id) {
            (Some(method), Id::Absent) => {
                if side.notification(method, &envelope, arrival) {
                    return Inbound::Consumed;
                }
                // Others mean nothing to us, so their shape does not either.
                parse_message::<Self>(line).map_or(Inbound::Consumed, Inbound::one)
            }
            (Some(method), Id::Good(id)) if let Some(kind) = QuestionKind::of_method(method) => {
                side.question(kind, &envelope, id, arrival);
                Inbound::Consumed
            }
            (Some(_), Id::Good(id)) => parse_message::<Self>(line).map_or_else(
                |error| {
                    arrival.reply(error_line(Some(&id), -32600, &format!("invalid request: {error}")));
                    Inbound::Consumed
                },
                Inbound::one,
            ),
            (Some(_), Id::Bad) => Inbound::Rubbish("a request without a usable id"),
            (None, Id::Good(id)) => answer(side, line, &envelope, id),
            (None, _) => Inbound::Rubbish("an answer without a usable id"),
        }
    }

    fn oversized(
        side: &Arc<UpstreamSide>,
        id: RequestId,
        answers: bool,
        limit: usize,
        arrival: &Arrival,
    ) -> Inbound<Self> {
        if !answers {
            arrival.reply(error_line(Some(&id), -32600, &format!("the request has more than {limit} bytes")));
            return Inbound::Consumed;
        }
        side.event(ConnectionEvent::Oversized);
        let why = format!("the server's answer has more than {limit} bytes");
        if side.answered(&id, || RawAnswer::Unusable(why.clone())) {
            return Inbound::one(stand_in(id));
        }
        match side.strays.came(&id) {
            Stray::Own => Inbound::one(failure(id, why)),
            Stray::Late => Inbound::Consumed,
            Stray::Mistake(what) => Inbound::Rubbish(what),
        }
    }
}

fn answer(side: &UpstreamSide, line: &str, envelope: &Envelope<'_>, id: RequestId) -> Inbound<RoleClient> {
    let raw = || match (envelope.failure(), envelope.result) {
        (Some(error), _) => RawAnswer::Error(error.get().into()),
        (None, Some(result)) => RawAnswer::Result(result.get().into()),
        (None, None) => RawAnswer::Unusable("the server answered with neither a result nor an error".to_owned()),
    };
    if side.answered(&id, raw) {
        return Inbound::one(stand_in(id));
    }
    let late = our_number(&id).is_some_and(|number| side.inquiries.came_late(number));
    match side.strays.came(&id) {
        // rmcp falls back where the method is unknown, and not where the versions do not meet.
        Stray::Own if side.era.get().is_none() && wants_handshake(line) => {
            let why = "the server speaks versions with a handshake only";
            Inbound::one(JsonRpcMessage::error(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, why, None), Some(id)))
        }
        // The handshake's answer.
        Stray::Own => Inbound::one(parse_message::<RoleClient>(line).unwrap_or_else(|error| failure(id, error))),
        Stray::Late => Inbound::Consumed,
        Stray::Mistake(_) if late => Inbound::Consumed,
        Stray::Mistake(what) => Inbound::Rubbish(what),
    }
}

fn request_line(number: i64, outbound: &Outbound) -> Result<String, TransportFault> {
    let text = if outbound.progress.is_some() {
        let mut params = (*outbound.params).clone();
        let meta = params.entry("_meta").or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(meta) = meta {
            meta.insert("progressToken".to_owned(), Value::from(number));
        }
        serde_json::to_string(&params)
    } else {
        serde_json::to_string(&*outbound.params)
    };
    let params = text.map_err(|error| TransportFault::Message(error.to_string()))?;
    let method = outbound.method;
    Ok(format!(r#"{{"jsonrpc":"2.0","id":{number},"method":"{method}","params":{params}}}"#))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_of_a_log_message_is_cut_and_says_so() {
        for raw in [format!("\"{}\"", "é".repeat(1 << 20)), format!("[{}0]", "0,".repeat(1 << 20))] {
            let Value::String(text) = log_data(&raw) else { panic!("no text") };
            assert!(text.len() <= MAX_LOG_DATA + CUT.len() && text.ends_with(CUT), "{} bytes", text.len());
        }
        assert_eq!(log_data(r#"{"i":1}"#), serde_json::json!({ "i": 1 }));
    }

    #[test]
    fn a_progress_message_is_cut_and_says_so() {
        assert_eq!(cut("short".to_owned(), MAX_PROGRESS_MESSAGE), "short");
        let long = cut("x".repeat(1 << 20), MAX_PROGRESS_MESSAGE);
        assert!(long.len() == MAX_PROGRESS_MESSAGE + CUT.len() && long.ends_with(CUT));
    }
}
