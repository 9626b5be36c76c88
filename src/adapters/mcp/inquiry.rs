//! Whose question is it? What a server asks in the middle of a call, on its way to the one client that may answer.
//!
//! A question must never go to somebody whom it does not concern. Over HTTP the stream of a request names its call; over
//! lines nothing does. So a question is relayed only if it can be of one call:
//!
//! - the call on whose stream it came, or else the only call in flight. Several calls of one session to one tool count as
//!   one, because the question goes to the same person under the same policies;
//! - and no call of another session was given up without an answer on this connection: the server may still be busy with it.
//!
//! Everything else is refused with an error that says what would help. A question ends with its call.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rmcp::model::RequestId;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::transport::{Arrival, WayBack, answer_line, error_line};
use crate::model::answerable::QuestionKind;
use crate::model::caller::Caller;
use crate::model::name::RawToolName;
use crate::ports::questions::{MAX_QUESTION, NoAnswer, Questions, ServerQuestion};

/// How many questions of one connection may be open.
const MAX_OPEN: usize = 16;
/// How many calls that were given up are remembered; beyond that nobody's question can be told apart.
const MAX_GIVEN_UP: usize = 256;

/// What a question needs to know of a call in flight.
#[derive(Clone)]
pub(super) struct Asker {
    /// Who calls.
    pub(super) caller: Caller,
    /// What is called.
    pub(super) tool: RawToolName,
    /// Who answers.
    pub(super) questions: Option<Arc<dyn Questions>>,
    /// Ends with the call.
    pub(super) over: CancellationToken,
}

/// The questions of one connection.
#[derive(Default)]
pub(super) struct Inquiries {
    /// The open ones, by the server's id.
    open: Mutex<HashMap<RequestId, CancellationToken>>,
    given_up: Mutex<GivenUp>,
}

/// Calls without an answer that nobody waits for any more.
#[derive(Default)]
struct GivenUp {
    calls: HashMap<i64, Caller>,
    too_many: bool,
}

impl Inquiries {
    /// A call was given up; its server may still be busy with it.
    pub(super) fn gave_up(&self, number: i64, caller: Caller) {
        let mut given_up = self.given_up.lock();
        if given_up.calls.len() < MAX_GIVEN_UP {
            given_up.calls.insert(number, caller);
        } else {
            given_up.too_many = true;
        }
    }

    /// The answer of a call that was given up came after all.
    pub(super) fn came_late(&self, number: i64) -> bool {
        self.given_up.lock().calls.remove(&number).is_some()
    }

    /// The server withdraws a question.
    pub(super) fn withdrawn(&self, id: &RequestId) {
        if let Some(open) = self.open.lock().remove(id) {
            open.cancel();
        }
    }

    /// Finds the call that a question belongs to.
    ///
    /// `named`: the call on whose stream it came, if it came on one; `None` inside: that call is over. `in_flight`: all calls.
    pub(super) fn attribute(&self, named: Option<Option<Asker>>, in_flight: &[Asker]) -> Result<Asker, String> {
        if let Some(named) = named {
            return named.ok_or_else(|| "the call that the question belongs to is over".to_owned());
        }
        let Some(first) = in_flight.first() else { return Err("the question belongs to no call".to_owned()) };
        let same = |other: &Asker| other.caller == first.caller && other.tool == first.tool;
        if !in_flight.iter().all(same) {
            return Err(format!(
                "{} calls are in flight, so nobody can tell whose question it is; `sharing = \"session\"` keeps clients apart",
                in_flight.len()
            ));
        }
        let given_up = self.given_up.lock();
        if given_up.too_many || given_up.calls.values().any(|caller| *caller != first.caller) {
            return Err(
                "it may belong to another client's call that was given up; `sharing = \"session\"` keeps clients apart"
                    .to_owned(),
            );
        }
        Ok(first.clone())
    }

    /// Has a question answered; the answer goes back by itself.
    ///
    /// # Errors
    /// Why it is not asked; the answer has gone back already.
    pub(super) fn ask(
        self: &Arc<Self>,
        kind: QuestionKind,
        params: &str,
        id: RequestId,
        asker: Result<Asker, String>,
        arrival: &Arrival,
    ) -> Result<(), String> {
        let refuse = |why: String| {
            let shown = format!("`{}` is refused: {why}", kind.method());
            arrival.reply(error_line(Some(&id), NoAnswer::not_offered("").code, &shown));
            Err(why)
        };
        let (questions, over) = match asker {
            Ok(Asker { questions: Some(questions), over, .. }) => (questions, over),
            Ok(_) => return refuse("nobody can be asked".to_owned()),
            Err(why) => return refuse(why),
        };
        let question = match question(kind, params) {
            Ok(question) => question,
            Err(why) => return refuse(why),
        };
        if let Some(lacks) = questions.answerable().lacks(kind, &question.value()) {
            return refuse(format!("the client has not declared `{lacks}`"));
        }
        // The call's end withdraws it, and so does the server.
        let until = over.child_token();
        {
            let mut open = self.open.lock();
            if open.len() >= MAX_OPEN {
                drop(open);
                return refuse(format!("{MAX_OPEN} questions are open"));
            }
            if open.contains_key(&id) {
                drop(open);
                return refuse("a question with this id is open".to_owned());
            }
            open.insert(id.clone(), until.clone());
        }
        let (inquiries, way_back) = (Arc::clone(self), arrival.way_back());
        tokio::spawn(async move {
            let answered = until.run_until_cancelled(questions.ask(question)).await;
            inquiries.open.lock().remove(&id);
            if let Some(answered) = answered {
                send(&way_back, &id, answered);
            }
        });
        Ok(())
    }
}

/// Checks the parameters of a question.
pub(super) fn question(kind: QuestionKind, params: &str) -> Result<ServerQuestion, String> {
    if params.len() > MAX_QUESTION {
        return Err(format!("its parameters have {} bytes, more than {MAX_QUESTION}", params.len()));
    }
    match serde_json::from_str::<Value>(params) {
        Ok(Value::Object(_)) => Ok(ServerQuestion { kind, params: params.into() }),
        Ok(Value::Null) => Ok(ServerQuestion { kind, params: "{}".into() }),
        _ => Err("its parameters are no object".to_owned()),
    }
}

fn send(way_back: &WayBack, id: &RequestId, answered: Result<Arc<str>, NoAnswer>) {
    way_back.send(match answered {
        Ok(result) => answer_line(id, "result", &result),
        Err(NoAnswer { code, message, data }) => {
            let mut error = serde_json::json!({ "code": code, "message": message });
            if let (Some(data), Value::Object(error)) = (data, &mut error) {
                error.insert("data".to_owned(), data);
            }
            answer_line(id, "error", &error.to_string())
        }
    });
}
