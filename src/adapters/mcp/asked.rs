//! Requests of ours to a client whose answers are kept as they were spelled.
//!
//! rmcp's types would lose what they do not know. So a question of a server goes to the client as its text, and the text of
//! the answer comes back; rmcp gets an empty result in its place and only tells that it is there.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rmcp::model::{CustomRequest, GetExtensions as _, RequestId, ServerRequest};

use super::envelope::{Envelope, our_number};

/// How many requests are remembered before those that nobody waits for are cleared away.
const CLEAR_AT: usize = 64;

/// The answer of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientAnswer {
    /// The text of `result`.
    Result(Arc<str>),
    /// The text of `error`.
    Error(Arc<str>),
}

/// A request to a client. Cheap to clone; dropping the last one forgets it.
#[derive(Debug, Clone)]
pub struct Asked(Arc<Request>);

#[derive(Debug)]
struct Request {
    method: &'static str,
    params: Box<str>,
    answer: Mutex<Option<ClientAnswer>>,
}

impl Asked {
    /// Describes a request. `params` is the text of a JSON object without line feeds outside of its strings.
    #[must_use]
    pub fn new(method: &'static str, params: impl Into<Box<str>>) -> Self {
        Self(Arc::new(Request { method, params: params.into(), answer: Mutex::default() }))
    }

    /// Returns the request for rmcp; our transport writes the text instead.
    #[must_use]
    pub fn request(&self) -> ServerRequest {
        let mut request = CustomRequest::new(self.0.method, None);
        request.extensions_mut().insert(self.clone());
        ServerRequest::CustomRequest(request)
    }

    /// Takes the answer, if it has come.
    #[must_use]
    pub fn take(&self) -> Option<ClientAnswer> {
        self.0.answer.lock().take()
    }

    /// Returns the request that rmcp carries, if it is one of these.
    pub(super) fn of(request: &ServerRequest) -> Option<&Self> {
        match request {
            ServerRequest::CustomRequest(custom) => custom.extensions().get::<Self>(),
            _ => None,
        }
    }
}

/// The requests of one connection that have no answer, by our number.
#[derive(Debug, Default)]
pub(super) struct AskedOfClient(Mutex<HashMap<i64, Weak<Request>>>);

impl AskedOfClient {
    /// Notes a request and returns its line; `None` for an id that is not a number of ours.
    pub(super) fn line(&self, id: &RequestId, asked: &Asked) -> Option<String> {
        let number = our_number(id)?;
        let mut open = self.0.lock();
        if open.len() >= CLEAR_AT {
            open.retain(|_, request| request.strong_count() > 0);
        }
        open.insert(number, Arc::downgrade(&asked.0));
        let (method, params) = (asked.0.method, &asked.0.params);
        Some(format!(r#"{{"jsonrpc":"2.0","id":{number},"method":"{method}","params":{params}}}"#))
    }

    /// Takes an answer; false when it answers none of these.
    pub(super) fn answered(&self, id: &RequestId, envelope: &Envelope<'_>) -> bool {
        let request = our_number(id).and_then(|number| self.0.lock().remove(&number));
        let Some(request) = request.and_then(|request| request.upgrade()) else { return false };
        *request.answer.lock() = Some(match (envelope.failure(), envelope.result) {
            (Some(error), _) => ClientAnswer::Error(error.get().into()),
            (None, Some(result)) => ClientAnswer::Result(result.get().into()),
            (None, None) => ClientAnswer::Error(r#"{"code":-32603,"message":"neither a result nor an error"}"#.into()),
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::NumberOrString;

    use super::*;

    #[test]
    fn an_answer_is_kept_as_it_was_spelled() {
        let open = AskedOfClient::default();
        let asked = Asked::new("roots/list", r#"{"zz":1.50}"#);
        let id = NumberOrString::Number(7);
        let line = open.line(&id, &asked).unwrap();
        assert_eq!(line, r#"{"jsonrpc":"2.0","id":7,"method":"roots/list","params":{"zz":1.50}}"#);
        let answer = Envelope::parse(r#"{"id":7,"result":{ "roots" : [1.0] }}"#).unwrap();
        assert!(open.answered(&id, &answer));
        assert_eq!(asked.take(), Some(ClientAnswer::Result(r#"{ "roots" : [1.0] }"#.into())));
        assert!(!open.answered(&id, &answer), "an answer counts once");
    }

    #[test]
    fn a_request_that_nobody_waits_for_is_forgotten() {
        let open = AskedOfClient::default();
        for number in 0..1000 {
            let asked = Asked::new("roots/list", "{}");
            open.line(&NumberOrString::Number(number), &asked);
        }
        assert!(open.0.lock().len() <= CLEAR_AT);
    }
}
