//! One call in flight, with the questions that a stateless server puts into its answers.
//!
//! Such a server does not ask in the middle of a call: its answer is a list of questions and a state of its own, and the
//! call is made again with the answers and that state (MRTR). Here the rounds become one call. Each round is a request of
//! its own, with an id, a progress and a cancellation of its own.

use std::sync::Arc;

use async_trait::async_trait;
use futures::future::try_join_all;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::answer;
use super::era::ResultType;
use super::inquiry::{self, Asker};
use super::link::{Link, Order, Pending};
use super::upstream_side::RawAnswer;
use crate::model::answer::Answer;
use crate::model::answerable::{Answerable, QuestionKind};
use crate::model::text;
use crate::ports::questions::ServerQuestion;
use crate::ports::upstream::{ConnectionEvent, InFlight, NotSent, OutgoingCall, Unanswered};

/// How often one call may be made again.
const MAX_ROUNDS: usize = 10;
/// How many questions one answer may hold.
const MAX_QUESTIONS: usize = 16;
/// The longest state of the server, in bytes.
const MAX_STATE: usize = 1024 * 1024;

/// A call that was handed over.
pub(super) struct CallInFlight {
    link: Arc<Link>,
    call: OutgoingCall,
    pending: Option<Pending>,
}

impl CallInFlight {
    /// Sends a call.
    ///
    /// # Errors
    /// [`NotSent`].
    pub(super) async fn send(link: Arc<Link>, call: OutgoingCall) -> Result<Self, NotSent> {
        let mut in_flight = Self { link, call, pending: None };
        in_flight.round(Map::new()).await?;
        Ok(in_flight)
    }

    /// Sends the request, with what a former round adds.
    async fn round(&mut self, added: Map<String, Value>) -> Result<(), NotSent> {
        let call = &self.call;
        let mut params = Map::new();
        params.insert("name".to_owned(), call.tool.as_str().into());
        if let Some(arguments) = &call.arguments {
            params.insert("arguments".to_owned(), Value::Object(arguments.clone()));
        }
        params.extend(added);
        let mut meta = call.meta.clone();
        // A token belongs to one hop; ours is added where the request is written.
        meta.shift_remove("progressToken");
        let answerable = call.questions.as_ref().map_or_else(Answerable::default, |questions| questions.answerable());
        self.link.side.era().stamp(&mut meta, answerable);
        if !meta.is_empty() {
            params.insert("_meta".to_owned(), Value::Object(meta));
        }
        let asker = Asker {
            caller: call.caller.clone(),
            tool: call.tool.clone(),
            questions: call.questions.clone(),
            over: CancellationToken::new(),
        };
        let order = Order { method: "tools/call", params, progress: call.progress.clone(), asker: Some(asker) };
        self.pending = Some(self.link.send(order).await?);
        Ok(())
    }

    /// Has the questions of an answer answered, and returns what the next round adds.
    async fn answers(&self, text: &str) -> Result<Map<String, Value>, String> {
        let required = Required::read(text)?;
        let mut added = Map::new();
        if let Some(state) = required.state {
            added.insert("requestState".to_owned(), Value::from(state));
        }
        // Nobody fills in a form whose neighbour cannot be asked.
        required.questions.iter().try_for_each(|(_, question)| self.may_ask(question))?;
        let asked = required.questions.into_iter().map(|(key, question)| self.answer_one(key, question));
        let responses: Map<String, Value> = try_join_all(asked).await?.into_iter().collect();
        if !responses.is_empty() {
            added.insert("inputResponses".to_owned(), Value::Object(responses));
        }
        Ok(added)
    }

    fn may_ask(&self, question: &ServerQuestion) -> Result<(), String> {
        let method = question.kind.method();
        let answerable = self.call.questions.as_ref().map_or_else(Answerable::default, |q| q.answerable());
        match answerable.lacks(question.kind, &question.value()) {
            Some(lacks) => Err(format!("the server asks `{method}`, and the client has not declared `{lacks}`")),
            None => Ok(()),
        }
    }

    async fn answer_one(&self, key: String, question: ServerQuestion) -> Result<(String, Value), String> {
        let method = question.kind.method();
        let Some(questions) = &self.call.questions else {
            return Err(format!("the server asks `{method}`, and nobody can be asked"));
        };
        let failed = |why: &str| format!("the server asks `{method}`: {}", text::shown(why, 400));
        let answered = questions.ask(question).await.map_err(|error| failed(&error.message))?;
        let response = serde_json::from_str(&answered).map_err(|error| failed(&error.to_string()))?;
        Ok((key, response))
    }
}

#[async_trait]
impl InFlight for CallInFlight {
    async fn answer(&mut self) -> Result<Answer, Unanswered> {
        for _ in 0..=MAX_ROUNDS {
            let Some(pending) = &mut self.pending else {
                return Err(Unanswered::Lost("the request is over".to_owned()));
            };
            let raw = pending.raw().await?;
            self.pending = None;
            let era = self.link.side.era();
            let RawAnswer::Result(text) = &raw else { return Ok(answer::read(raw, era)) };
            match era.result_type(text) {
                ResultType::Complete => return Ok(answer::read(raw, era)),
                ResultType::InputRequired => {}
                ResultType::Other(kind) => {
                    let kind = text::shown(&kind, 64);
                    let why = format!("the server answered with a result of type `{kind}`, which was not asked for");
                    return Ok(answer::read(RawAnswer::Unusable(why), era));
                }
            }
            let added = self.answers(text).await.map_err(|why| {
                self.link.side.event(ConnectionEvent::QuestionRefused);
                Unanswered::Question(why)
            })?;
            // The server has seen the call, and waits for this round.
            self.round(added).await.map_err(|not_sent| Unanswered::Lost(not_sent.0))?;
        }
        Err(Unanswered::Question(format!("the server asked more than {MAX_ROUNDS} times")))
    }

    async fn cancel(mut self: Box<Self>, reason: &str) {
        if let Some(pending) = self.pending.take() {
            pending.cancel(reason).await;
        }
    }
}

/// What an answer that asks says.
struct Required {
    state: Option<String>,
    questions: Vec<(String, ServerQuestion)>,
}

impl Required {
    fn read(text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Wire<'a> {
            #[serde(default)]
            request_state: Option<String>,
            #[serde(borrow, default)]
            input_requests: std::collections::BTreeMap<String, &'a RawValue>,
        }
        #[derive(Deserialize)]
        struct Request<'a> {
            method: String,
            #[serde(borrow, default)]
            params: Option<&'a RawValue>,
        }
        let unreadable = |error: serde_json::Error| format!("the server's questions cannot be read: {error}");
        let wire: Wire<'_> = serde_json::from_str(text).map_err(unreadable)?;
        if wire.request_state.as_ref().is_some_and(|state| state.len() > MAX_STATE) {
            return Err(format!("the server's state has more than {MAX_STATE} bytes"));
        }
        if wire.input_requests.len() > MAX_QUESTIONS {
            return Err(format!("the server asks more than {MAX_QUESTIONS} questions at once"));
        }
        if wire.input_requests.is_empty() && wire.request_state.is_none() {
            return Err("the server wants input and says not which".to_owned());
        }
        let mut questions = Vec::new();
        for (key, raw) in wire.input_requests {
            let request: Request<'_> = serde_json::from_str(raw.get()).map_err(unreadable)?;
            let Some(kind) = QuestionKind::of_method(&request.method) else {
                let method = text::shown(&request.method, 64);
                return Err(format!("the server asks `{method}`, which nobody can be asked"));
            };
            let params = request.params.map_or("null", RawValue::get);
            questions.push((key, inquiry::question(kind, params)?));
        }
        Ok(Self { state: wire.request_state, questions })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_questions_of_an_answer_are_read_within_bounds() {
        let text = r#"{"resultType":"input_required","requestState":"s","inputRequests":{"a":{"method":"roots/list"},
            "b":{"method":"elicitation/create","params":{"message":"m","zz":1.50}}}}"#;
        let required = Required::read(text).unwrap();
        assert_eq!(required.state.as_deref(), Some("s"));
        let kinds: Vec<_> = required.questions.iter().map(|(key, question)| (key.as_str(), question.kind)).collect();
        assert_eq!(kinds, [("a", QuestionKind::Roots), ("b", QuestionKind::Elicitation)]);
        assert!(required.questions[1].1.params.contains("1.50"));
    }

    #[test]
    fn an_answer_that_asks_nothing_or_too_much_is_refused() {
        let read = |text: &str| Required::read(text).err().unwrap_or_default();
        assert!(read(r#"{"resultType":"input_required"}"#).contains("says not which"));
        assert!(read(r#"{"inputRequests":{"a":{"method":"tools/call"}}}"#).contains("nobody can be asked"));
        assert!(read(r#"{"inputRequests":[]}"#).contains("cannot be read"));
        let many: Vec<String> = (0..17).map(|n| format!(r#""{n}":{{"method":"roots/list"}}"#)).collect();
        assert!(read(&format!(r#"{{"inputRequests":{{{}}}}}"#, many.join(","))).contains("more than 16"));
        let state = "s".repeat(MAX_STATE + 1);
        assert!(read(&format!(r#"{{"requestState":"{state}"}}"#)).contains("state has more than"));
    }
}
