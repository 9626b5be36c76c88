//! Whose question is it? What a server asks in the middle of a call, on its way to the one client that may answer.
//!
//! A question must never go to somebody whom it does not concern. Over HTTP the stream of a request names its call; over
//! lines nothing does. So a question is relayed only if it can be of one call:
//!
//! - the call on whose stream it came, or else the only call in flight. Several calls of one session to one tool count as
//!   one, because the question goes to the same person under the same policies;
//! - and, where no stream names the call, no call of another session was given up without an answer on this connection
//!   not long ago: the server may still be busy with it.
//!
//! Everything else is refused with an error that says what would help. A question ends with the last of the calls that it
//! may be of, and its server is told.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use rmcp::model::RequestId;
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::transport::{Arrival, WayBack, answer_line, error_line};
use crate::model::answerable::QuestionKind;
use crate::model::caller::Caller;
use crate::model::name::RawToolName;
use crate::ports::questions::{AskedBy, MAX_QUESTION, NoAnswer, Questions, ServerQuestion};

/// How many questions of one connection may be open.
const MAX_OPEN: usize = 16;
/// How many callers whose calls were given up are told apart; beyond that nobody's question can be.
const MAX_GIVEN_UP: usize = 256;
/// How long a server may be busy with a call that was given up. A server does not answer what was cancelled, so nothing
/// else ends it.
const BUSY: Duration = Duration::from_secs(3600);

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

/// Calls without an answer that nobody waits for any more, by caller: when the last one was given up, and those that the
/// server may still answer.
#[derive(Default)]
struct GivenUp {
    callers: HashMap<Caller, (Instant, Vec<i64>)>,
    too_many: Option<Instant>,
}

impl GivenUp {
    fn note(&mut self, number: i64, caller: Caller) {
        let now = Instant::now();
        self.callers.retain(|_, (since, _)| since.elapsed() < BUSY);
        if self.callers.len() >= MAX_GIVEN_UP && !self.callers.contains_key(&caller) {
            self.too_many = Some(now);
            return;
        }
        let (since, numbers) = self.callers.entry(caller).or_insert((now, Vec::new()));
        *since = now;
        // Beyond this the time alone tells.
        if numbers.len() < MAX_GIVEN_UP {
            numbers.push(number);
        }
    }

    fn came_late(&mut self, number: i64) -> bool {
        let found = self.callers.iter_mut().find(|(_, (_, numbers))| numbers.contains(&number));
        let Some((caller, (_, numbers))) = found else { return false };
        numbers.retain(|other| *other != number);
        if numbers.is_empty() {
            let caller = caller.clone();
            self.callers.remove(&caller);
        }
        true
    }

    /// Whether a question may belong to a call of somebody else.
    fn of_others(&self, caller: &Caller) -> bool {
        self.too_many.is_some_and(|since| since.elapsed() < BUSY)
            || self.callers.iter().any(|(other, (since, _))| other != caller && since.elapsed() < BUSY)
    }
}

impl Inquiries {
    /// A call was given up; its server may still be busy with it. Told before anybody can see that it is not in flight.
    pub(super) fn gave_up(&self, number: i64, caller: Caller) {
        self.given_up.lock().note(number, caller);
    }

    /// The answer of a call that was given up came after all.
    pub(super) fn came_late(&self, number: i64) -> bool {
        self.given_up.lock().came_late(number)
    }

    /// The server withdraws a question.
    pub(super) fn withdrawn(&self, id: &RequestId) {
        if let Some(open) = self.open.lock().remove(id) {
            open.cancel();
        }
    }

    /// Finds the calls that a question may belong to: one, or several that count as one.
    ///
    /// `named`: the call on whose stream it came, if it came on one; `None` inside: that call is over. `in_flight`: all
    /// calls.
    pub(super) fn attribute(
        &self,
        named: Option<Option<Asker>>,
        in_flight: Vec<Asker>,
    ) -> Result<(Asker, Vec<Asker>), String> {
        if let Some(named) = named {
            let named = named.ok_or_else(|| "the call that the question belongs to is over".to_owned())?;
            return Ok((named, Vec::new()));
        }
        let count = in_flight.len();
        let mut calls = in_flight.into_iter();
        let Some(first) = calls.next() else { return Err("the question belongs to no call".to_owned()) };
        let others: Vec<Asker> = calls.collect();
        if !others.iter().all(|other| other.caller == first.caller && other.tool == first.tool) {
            return Err(format!(
                "{count} calls are in flight, so nobody can tell whose question it is; `sharing = \"session\"` keeps clients apart"
            ));
        }
        if self.given_up.lock().of_others(&first.caller) {
            return Err(
                "it may belong to another client's call that was given up; `sharing = \"session\"` keeps clients apart"
                    .to_owned(),
            );
        }
        Ok((first, others))
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
        askers: Result<(Asker, Vec<Asker>), String>,
        arrival: &Arrival,
    ) -> Result<(), String> {
        let refuse = |why: String| {
            let shown = format!("`{}` is refused: {why}", kind.method());
            arrival.reply(error_line(Some(&id), NoAnswer::not_offered("").code, &shown));
            Err(why)
        };
        let (questions, over, others) = match askers {
            Ok((Asker { questions: Some(questions), over, .. }, others)) => (questions, over, others),
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
        let withdrawn = CancellationToken::new();
        {
            let mut open = self.open.lock();
            if open.len() >= MAX_OPEN {
                drop(open);
                return refuse(format!("{MAX_OPEN} questions are open"));
            }
            // An id that was withdrawn is free again; its old task knows its token from this one.
            if open.contains_key(&id) {
                drop(open);
                return refuse("a question with this id is open".to_owned());
            }
            open.insert(id.clone(), withdrawn.clone());
        }
        let (inquiries, way_back) = (Arc::clone(self), arrival.way_back());
        tokio::spawn(async move {
            // While it may be of any of these calls, none of their time runs.
            let _waits: Vec<_> =
                others.iter().filter_map(|other| other.questions.as_ref()).map(|q| q.waits()).collect();
            let all_over = async {
                over.cancelled().await;
                join_all(others.iter().map(|other| other.over.cancelled())).await;
            };
            let answered = tokio::select! {
                biased;
                answered = questions.ask(question) => Some(answered),
                () = all_over => Some(Err(NoAnswer::failed("the call is over"))),
                // The server knows.
                () = withdrawn.cancelled() => None,
            };
            if !withdrawn.is_cancelled() {
                inquiries.open.lock().remove(&id);
            }
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
        Ok(Value::Object(_)) => Ok(ServerQuestion { by: AskedBy::Server, kind, params: params.into() }),
        Ok(Value::Null) => Ok(ServerQuestion { by: AskedBy::Server, kind, params: "{}".into() }),
        _ => Err("its parameters are no object".to_owned()),
    }
}

fn send(way_back: &WayBack, id: &RequestId, answered: Result<Arc<str>, NoAnswer>) {
    way_back.send(match answered {
        Ok(result) => answer_line(id, "result", &result),
        Err(NoAnswer { code, message }) => error_line(Some(id), code, &message),
    });
}
