//! What the server of a call asks, and what goes back to it (R23).
//!
//! The client answers; what it answered is then decided about like a call, with the kind `reply`: every component that
//! matches is asked, somebody may have to agree, and the decision is recorded before anything is sent. The baseline is not
//! asked: the call was approved, and the answer was given for it (decision 10).
//! An agreement to a reply is never remembered. What is sent is the serialisation of the value that the policies saw (R26).
//!
//! Time in which a question is open does not count as the tool's; all questions of one call together have as long as an ask.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{Instrument as _, Span};

use super::record::{self, Deciding};
use crate::model::answerable::{Answerable, QuestionKind};
use crate::model::arguments::Arguments;
use crate::model::caller::Caller;
use crate::model::evidence::Evidence;
use crate::model::name::CallId;
use crate::pipeline::admit::catalog::Catalog;
use crate::pipeline::admit::gate::Passage;
use crate::pipeline::bind::noted::{Noted, Stated};
use crate::pipeline::bind::people::People;
use crate::pipeline::bind::prepare::Prepared;
use crate::pipeline::consent::agree::{Agreed, Askable};
use crate::pipeline::consent::approve::{self, Approvers};
use crate::pipeline::consent::observe::Observatory;
use crate::pipeline::consent::review::Breaker;
use crate::ports::clock::Clock;
use crate::ports::grants::NoGrants;
use crate::ports::questions::{NoAnswer, Questions, ServerQuestion};
use crate::ports::recorder::{Consent, Recorder};
use crate::ports::reviewer::Reviewer;
use crate::ports::state::PolicyState;
use crate::ports::telemetry::{self, About};
use crate::ports::upstream::ProgressSink;

/// How many questions the server of one call may ask.
pub const MAX_ASKED: usize = 32;

/// The desk at which the questions of one call arrive.
pub struct Desk {
    /// The client.
    pub(in crate::pipeline) client: Arc<dyn Questions>,
    /// Whoever can be asked about an answer.
    pub(in crate::pipeline) reviewer: Arc<dyn Reviewer>,
    /// Hears that an answer is waited for.
    pub(in crate::pipeline) progress: Option<Arc<dyn ProgressSink>>,
    /// Counts what the auto reviewer denies in the session.
    pub(in crate::pipeline) breaker: Arc<Breaker>,
    /// Whether the tool's title is one that the sanitisers do not let be shown.
    pub(in crate::pipeline) title_hidden: bool,
    pub(in crate::pipeline) evidence: Evidence,
    /// The catalog, for the policies in force.
    pub(in crate::pipeline) catalog: Arc<Catalog>,
    /// Takes the decisions.
    pub(in crate::pipeline) recorder: Arc<dyn Recorder>,
    /// The time of day.
    pub(in crate::pipeline) clock: Arc<dyn Clock>,
    /// Labels, history, counters.
    pub(in crate::pipeline) state: Arc<dyn PolicyState>,
    /// Where observed components run.
    pub(in crate::pipeline) observatory: Arc<Observatory>,
    /// The call.
    pub(in crate::pipeline) call: CallId,
    /// Who made it.
    pub(in crate::pipeline) caller: Caller,
    /// What the answers belong to.
    pub(in crate::pipeline) prepared: Prepared,
    /// How long answers are waited for, all questions of the call together.
    pub(in crate::pipeline) deadline: Duration,
    /// How many questions are open.
    pub(in crate::pipeline) open: Arc<watch::Sender<usize>>,
    /// How many were asked.
    pub(in crate::pipeline) asked: AtomicUsize,
    /// How long they were open so far.
    pub(in crate::pipeline) spent: Mutex<Duration>,
    /// How much of the call's time people took.
    pub(in crate::pipeline) people: Arc<People>,
    /// The call's span: questions may arrive in tasks of the connection.
    pub(in crate::pipeline) span: Span,
    /// The call's way through its session's gate.
    pub(in crate::pipeline) passage: Option<Arc<Passage>>,
}

/// Counts a question as open.
struct Open(Arc<watch::Sender<usize>>);

impl Open {
    fn count(open: &Arc<watch::Sender<usize>>) -> Self {
        open.send_modify(|open| *open += 1);
        Self(Arc::clone(open))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open = open.saturating_sub(1));
    }
}

impl Desk {
    /// Puts a question to the client. A form is filled in by a person; its model and its folders are the client's own to tell.
    async fn put(&self, question: ServerQuestion) -> Result<Arc<str>, NoAnswer> {
        let reference = self.prepared.reference();
        let span = telemetry::question(About::tool(&self.call, &reference), question.kind);
        let _waited = (question.kind == QuestionKind::Elicitation).then(|| self.people.wait());
        self.client.ask(question).instrument(span).await
    }

    /// Decides about an answer, and returns it as it is sent.
    async fn decide(&self, answer: &str, deadline: Duration) -> Result<Arc<str>, NoAnswer> {
        let arguments = Arguments::parse(answer)
            .map_err(|bad| NoAnswer::failed(format!("the client's answer cannot be passed on: {bad}")))?;
        let Some(object) = arguments.object().cloned() else {
            return Err(NoAnswer::failed("the client's answer is empty"));
        };
        let reply = self.prepared.reply(arguments);
        let mut noted = Noted::open(Stated::of(&self.state, &self.clock, &self.call, &self.caller, &reply));
        let who = Approvers {
            catalog: &self.catalog,
            grants: &NoGrants,
            askable: Askable {
                // Hooks are about calls; this is a part of one that they have let pass.
                hooks: None,
                progress: self.progress.as_ref(),
                breaker: &self.breaker,
                client: Some(Arc::clone(&self.client)),
                evidence: self.evidence.clone(),
                told: &|| Box::pin(async { (None, None) }),
                reviewer: &*self.reviewer,
                deadline,
                people: &self.people,
            },
            clock: &*self.clock,
            stated: &noted.stated().clone(),
            // The call that it answers for has been agreed to.
            changed: None,
        };
        let mut agreed = Agreed::default();
        let decided = approve::approve(&who, &self.call, &self.caller, reply, &mut agreed).await;
        let approved = match decided {
            Ok(approved) => approved,
            Err(refused) => {
                let policies = Arc::clone(&refused.policies);
                let deciding = Deciding {
                    policies,
                    decision: refused.decision.clone(),
                    consent: Consent::Refused,
                    said: agreed.said,
                    inputs: refused.inputs,
                    title_hidden: self.title_hidden,
                };
                let record = record::of(&*self.clock, &self.call, &self.caller, &refused.prepared, deciding);
                if let Err(error) = self.recorder.decision(&record) {
                    tracing::warn!(%error, "the record of a refusal was lost");
                }
                self.observatory.start(&record, refused.observers);
                return Err(NoAnswer::failed(format!("the answer is not passed on: {}", refused.failure.message)));
            }
        };
        let (decision, consent) = (approved.decision().clone(), approved.consent().clone());
        let (policies, inputs) = (Arc::clone(approved.policies()), Some(Arc::clone(approved.inputs())));
        let (said, title_hidden) = (agreed.said, self.title_hidden);
        let deciding = Deciding { policies, decision, consent, said, inputs, title_hidden };
        let record = record::of(&*self.clock, &self.call, &self.caller, approved.prepared(), deciding);
        if self.recorder.decision(&record).is_err() {
            return Err(NoAnswer::failed("the decision could not be recorded, so the answer is not passed on"));
        }
        if let Err(error) = noted.commit(approved.labels().to_vec()).await {
            tracing::warn!(%error, "an answer is not passed on");
            return Err(NoAnswer::failed(
                "what is kept between calls could not be written, so the answer is not passed on",
            ));
        }
        noted.set_sent(true);
        self.observatory.start(&record, approved.observers());
        Ok(serde_json::Value::Object(object).to_string().into())
    }
}

#[async_trait]
impl Questions for Desk {
    fn answerable(&self) -> Answerable {
        self.client.answerable()
    }

    async fn ask(&self, question: ServerQuestion) -> Result<Arc<str>, NoAnswer> {
        if self.asked.fetch_add(1, Ordering::Relaxed) >= MAX_ASKED {
            return Err(NoAnswer::not_offered(format!("one call may ask {MAX_ASKED} times")));
        }
        let _open = Open::count(&self.open);
        let out = self.passage.as_ref().map(Passage::step_out);
        let begun = Instant::now();
        let left = self.deadline.saturating_sub(*self.spent.lock());
        let exchange = async {
            let answer = self.put(question).await?;
            self.decide(&answer, left.saturating_sub(begun.elapsed())).await
        };
        let answered = tokio::time::timeout(left, exchange.instrument(self.span.clone())).await;
        *self.spent.lock() += begun.elapsed();
        if let Some(out) = out {
            out.back().await;
        }
        answered.unwrap_or_else(|_elapsed| Err(NoAnswer::failed("nobody answered in time")))
    }

    fn waits(&self) -> Box<dyn Send + Sync> {
        Box::new(Open::count(&self.open))
    }
}

/// Waits until a tool's time is over, not counting the time in which a question is open.
pub(super) async fn time_is_over(mut left: Duration, open: Option<watch::Receiver<usize>>) {
    let Some(mut open) = open else { return tokio::time::sleep(left).await };
    loop {
        if open.wait_for(|open| *open == 0).await.is_err() {
            break;
        }
        let since = Instant::now();
        tokio::select! {
            biased;
            asked = open.wait_for(|open| *open > 0) => {
                left = left.saturating_sub(since.elapsed());
                if asked.is_err() {
                    break;
                }
            }
            () = tokio::time::sleep(left) => return,
        }
    }
    tokio::time::sleep(left).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_time_of_a_question_is_not_the_tools() {
        let open = Arc::new(watch::Sender::new(0));
        let begun = Instant::now();
        let over = tokio::spawn(time_is_over(Duration::from_secs(10), Some(open.subscribe())));
        tokio::time::sleep(Duration::from_secs(4)).await;
        let question = Open::count(&open);
        tokio::time::sleep(Duration::from_secs(500)).await;
        assert!(!over.is_finished());
        drop(question);
        over.await.unwrap();
        assert_eq!(begun.elapsed().as_secs(), 510);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_question_the_time_runs_on() {
        let begun = Instant::now();
        time_is_over(Duration::from_secs(10), None).await;
        let open = Arc::new(watch::Sender::new(0));
        let over = time_is_over(Duration::from_secs(10), Some(open.subscribe()));
        drop(open);
        over.await;
        assert_eq!(begun.elapsed().as_secs(), 20);
    }
}
