//! Questions of a server, on their way to the client whose call they belong to; and those of the host itself, which go the same
//! way and name no server.
//!
//! What the server asks is passed on as it is, but for what belongs to its hop; who asks is added, because to the client
//! every question comes from us. Of a text that a person reads, control characters become visible and the length is
//! bounded. A question whose call ends is withdrawn.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rmcp::RoleServer;
use rmcp::service::{Peer, PeerRequestOptions, RequestHandle, ServiceError};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::parked::Told;
use super::way::Way;
use crate::adapters::mcp::asked::{Asked, ClientAnswer};
use crate::model::answerable::{Answerable, QuestionKind};
use crate::model::here::{is_private, may_be_here};
use crate::model::name::ServerName;
use crate::model::text;
use crate::ports::questions::{AskedBy, NoAnswer, Questions, ServerQuestion};

/// The most lines of a message that are shown.
const MAX_LINES: usize = 100;
/// The most characters of a line that are shown.
const MAX_LINE: usize = 1000;
/// How long a client of the stateless era may take to come back with an answer; the call's own time usually ends before.
const MAX_OPEN: Duration = Duration::from_secs(3600);
/// How deep a form may be nested.
const MAX_DEPTH: usize = 16;
/// Codes of a client's error that are passed on; any other becomes an internal error.
const PASSED_ON: [i64; 5] = [-1, -32600, -32601, -32602, -32603];

/// The server that asks.
pub(super) struct Asking {
    pub(super) server: ServerName,
    /// Whether it runs on this machine.
    pub(super) local: bool,
}

/// Asks one client what one server wants to know.
pub(super) struct ClientQuestions {
    way: Way,
    asking: Asking,
    answerable: Answerable,
    hung_up: CancellationToken,
}

impl ClientQuestions {
    /// Makes the way to the client. After `hung_up` nobody answers any more.
    pub(super) fn new(way: Way, asking: Asking, answerable: Answerable, hung_up: CancellationToken) -> Self {
        Self { way, asking, answerable, hung_up }
    }

    async fn exchange(&self, question: &ServerQuestion) -> Result<Arc<str>, NoAnswer> {
        let (method, params) = (question.kind.method(), self.params(question)?);
        let peer = match &self.way {
            Way::Requests(peer) => peer,
            Way::Results(_) => {
                return match self.way.park(method, params, MAX_OPEN).await {
                    Some(Told::Result(text)) if text.starts_with('{') => Ok(text),
                    Some(Told::Result(_)) => Err(NoAnswer::failed("the client's answer is no object")),
                    Some(Told::Missing) | None => Err(NoAnswer::failed("the client gave no answer")),
                    Some(Told::NoRoom) => Err(NoAnswer::not_offered("too many calls wait for the client")),
                };
            }
        };
        ask(peer, method, params.to_string()).await
    }

    /// The parameters as the client gets them.
    fn params(&self, question: &ServerQuestion) -> Result<Value, NoAnswer> {
        let Value::Object(mut params) = question.value() else {
            return Err(NoAnswer::failed("the question cannot be read"));
        };
        // A task of the client's is not a thing that we relay.
        params.shift_remove("task");
        let mut meta = match params.shift_remove("_meta") {
            Some(Value::Object(meta)) => meta,
            _ => Map::new(),
        };
        // Clients know our own questions by bare keys, and what belongs to a hop by the protocol's.
        const RESERVED: [&str; 3] = ["io.modelcontextprotocol/", "portcullis/", "codex/"];
        meta.retain(|key, _| key.contains('/') && !RESERVED.iter().any(|prefix| key.starts_with(prefix)));
        if question.by == AskedBy::Server {
            meta.insert("portcullis/server".to_owned(), Value::from(self.asking.server.as_str()));
        }
        if !meta.is_empty() {
            params.insert("_meta".to_owned(), Value::Object(meta));
        }
        if question.kind == QuestionKind::Sampling {
            // To the client every server is this one, so it would get the context of all of them.
            params.shift_remove("includeContext");
        }
        if question.kind == QuestionKind::Elicitation {
            if let Some(schema) = params.get_mut("requestedSchema") {
                readable(schema, 0)?;
            }
            let message = params.get("message").and_then(Value::as_str).unwrap_or_default();
            let message = format!("The server `{}` asks:\n{}", self.asking.server, lines(message));
            params.insert("message".to_owned(), Value::from(message));
            if let Some(url) = params.get("url") {
                address(url, self.asking.local)?;
            }
        }
        Ok(Value::Object(params))
    }
}

/// Asks in a request of our own.
async fn ask(peer: &Peer<RoleServer>, method: &'static str, params: String) -> Result<Arc<str>, NoAnswer> {
    let asked = Asked::new(method, params);
    let sent = peer.send_cancellable_request(asked.request(), PeerRequestOptions::no_options()).await;
    let handle = sent.map_err(|error| gone(&error))?;
    let mut out = Out(Some(handle));
    let told = out.answer().await;
    match asked.take() {
        Some(ClientAnswer::Result(text)) => Ok(text),
        Some(ClientAnswer::Error(text)) => Err(refused(&text)),
        None => Err(told.err().map_or_else(|| NoAnswer::failed("the client gave no answer"), |error| gone(&error))),
    }
}

#[async_trait]
impl Questions for ClientQuestions {
    fn answerable(&self) -> Answerable {
        self.answerable
    }

    async fn ask(&self, question: ServerQuestion) -> Result<Arc<str>, NoAnswer> {
        let exchange = self.hung_up.run_until_cancelled(self.exchange(&question));
        exchange.await.unwrap_or_else(|| Err(NoAnswer::failed("the client is gone")))
    }
}

/// A person is sent to no address but of the web, over an encrypted connection. To this machine only a server sends that
/// runs on it: a browser carries anybody's request past the walls around it.
fn address(url: &Value, local: bool) -> Result<(), NoAnswer> {
    let bad = || {
        NoAnswer::not_offered(if local {
            "the address must be `https`, or `http` on this machine"
        } else {
            "the address must be `https`, and of another machine than this one"
        })
    };
    let url = url.as_str().and_then(|url| url::Url::parse(url).ok()).ok_or_else(bad)?;
    let fine = is_private(&url) && (local || !may_be_here(&url));
    if fine && url.username().is_empty() && url.password().is_none() { Ok(()) } else { Err(bad()) }
}

/// Makes what a person reads of a form fit to be read. What goes back as it is, keys and values, must be so already.
fn readable(schema: &mut Value, depth: usize) -> Result<(), NoAnswer> {
    let odd = |text: &str| text.chars().any(char::is_control) || text.len() > MAX_LINE;
    let refuse = || Err(NoAnswer::not_offered("the form holds what nobody can read"));
    if depth > MAX_DEPTH {
        return refuse();
    }
    match schema {
        Value::Object(members) => {
            for (key, value) in members.iter_mut() {
                match (key.as_str(), value) {
                    ("title" | "description", Value::String(text)) => *text = lines(text),
                    ("enumNames", Value::Array(names)) => {
                        for name in names {
                            if let Value::String(name) = name {
                                *name = text::shown(name, MAX_LINE);
                            }
                        }
                    }
                    (key, _) if odd(key) => return refuse(),
                    (_, value) => readable(value, depth + 1)?,
                }
            }
            Ok(())
        }
        Value::Array(items) => items.iter_mut().try_for_each(|item| readable(item, depth + 1)),
        Value::String(text) if odd(text) => refuse(),
        _ => Ok(()),
    }
}

fn lines(message: &str) -> String {
    let mut shown: Vec<String> = message.lines().take(MAX_LINES).map(|line| text::shown(line, MAX_LINE)).collect();
    if message.lines().nth(MAX_LINES).is_some() {
        shown.push("… (cut)".to_owned());
    }
    shown.join("\n")
}

fn gone(error: &ServiceError) -> NoAnswer {
    tracing::debug!(%error, "a server's question was not answered");
    NoAnswer::failed("the client did not answer")
}

/// What the server is told of a client's error: that there was one. The client's own words have passed no policy (R23).
fn refused(error: &str) -> NoAnswer {
    #[derive(Deserialize)]
    struct Wire {
        code: i64,
    }
    let code = serde_json::from_str::<Wire>(error).ok().map(|wire| wire.code).filter(|code| PASSED_ON.contains(code));
    NoAnswer { code: code.unwrap_or(-32603), message: "the client answered with an error".to_owned() }
}

/// A question that is out. Dropping it before its answer withdraws it.
struct Out(Option<RequestHandle<RoleServer>>);

impl Out {
    async fn answer(&mut self) -> Result<(), ServiceError> {
        let Some(handle) = &mut self.0 else { return Err(ServiceError::TransportClosed) };
        let answer = (&mut handle.rx).await;
        self.0 = None;
        answer.unwrap_or(Err(ServiceError::TransportClosed)).map(drop)
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        if let (Some(handle), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(handle.cancel(Some("the question is withdrawn".to_owned())));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_person_is_sent_to_the_encrypted_web_or_this_machine_only() {
        for good in ["https://example.com/a?b", "http://localhost:1/x", "http://127.0.0.1/", "http://[::1]:9/"] {
            assert_eq!(address(&json!(good), true), Ok(()), "{good}");
        }
        for bad in ["http://example.com/", "javascript:alert(1)", "file:///x", "https://a:b@example.com/", "x", ""] {
            assert!(address(&json!(bad), true).is_err() && address(&json!(bad), false).is_err(), "{bad}");
        }
        assert!(address(&json!(7), true).is_err());
    }

    #[test]
    fn a_server_elsewhere_sends_nobody_to_this_machine() {
        assert_eq!(address(&json!("https://example.com/a?b"), false), Ok(()));
        for here in [
            "http://127.0.0.1:1/x",
            "http://localhost/",
            "http://[::1]/",
            "https://127.0.0.1/",
            "https://a.localhost/",
            "https://0.0.0.0/",
            "https://[::ffff:127.0.0.1]/",
        ] {
            assert!(address(&json!(here), false).is_err(), "{here}");
        }
    }

    #[test]
    fn what_a_person_reads_is_bounded_and_shows_control_characters() {
        assert_eq!(lines("a\nb\u{1b}[2J"), "a\nb\\u{1b}[2J");
        assert_eq!(lines(&"x\n".repeat(1000)).lines().count(), MAX_LINES + 1);
    }

    #[test]
    fn r23_of_an_error_of_the_client_only_a_known_code_is_passed_on() {
        let error = refused(r#"{"code":-32602,"message":"the secret","data":{"a":1}}"#);
        assert_eq!((error.code, error.message.as_str()), (-32602, "the client answered with an error"));
        assert_eq!(refused(r#"{"code":1234567890123,"message":"x"}"#).code, -32603);
        assert_eq!(refused("7").code, -32603);
    }

    #[test]
    fn a_review_by_the_clients_model_does_not_bear_the_judged_servers_name() {
        let (asks, _out) = tokio::sync::mpsc::channel(1);
        let asking = Asking { server: ServerName::parse("files").unwrap(), local: true };
        let questions =
            ClientQuestions::new(Way::Results(asks), asking, Answerable::default(), CancellationToken::new());
        let meta = |by| {
            let question = ServerQuestion { by, kind: QuestionKind::Sampling, params: r#"{"messages":[]}"#.into() };
            questions.params(&question).unwrap().get("_meta").cloned()
        };
        assert_eq!(meta(AskedBy::Server), Some(json!({ "portcullis/server": "files" })));
        assert_eq!(meta(AskedBy::Host), None);
    }

    #[test]
    fn a_form_is_readable_or_refused() {
        let mut form =
            json!({ "properties": { "a": { "title": "x\u{1b}[2J", "enumNames": ["\u{7}b"], "enum": ["c"] } } });
        readable(&mut form, 0).unwrap();
        assert_eq!(form["properties"]["a"]["title"], "x\\u{1b}[2J");
        assert_eq!(form["properties"]["a"]["enumNames"][0], "\\u{7}b");
        for bad in [json!({ "enum": ["a\u{1b}"] }), json!({ "a\u{7}": 1 }), json!({ "default": "x".repeat(2000) })] {
            assert!(readable(&mut bad.clone(), 0).is_err(), "{bad}");
        }
    }
}
