//! A reviewer that asks the model of the session's own client, by MCP sampling.
//!
//! That client runs the agent that is judged, so such a reviewer satisfies few asks (R22); `BoundReviewer::asks_own_client`
//! says so, and the decision knows.

use async_trait::async_trait;
use serde_json::{Value, json};

use crate::model::answerable::QuestionKind;
use crate::model::json::{Json, Limits};
use crate::model::text::shown;
use crate::ports::questions::{AskedBy, MAX_QUESTION, NoAnswer, ServerQuestion};
use crate::ports::review::{AutoReviewer, MAX_REVIEW, NoReview, ReviewRequest};

/// The most tokens that the client's model may answer with.
const MAX_TOKENS: u32 = 1024;
/// The largest result, with what is around the text.
const MAX_RESULT: usize = 1024 * 1024;

/// A reviewer that asks the client's model.
#[derive(Debug, Clone, Copy, Default)]
pub struct SamplingReviewer;

#[async_trait]
impl AutoReviewer for SamplingReviewer {
    async fn review(&self, request: &ReviewRequest) -> Result<String, NoReview> {
        let params = json!({
            "messages": messages(request),
            "systemPrompt": &*request.instructions,
            "includeContext": "none",
            "maxTokens": MAX_TOKENS,
        });
        let nobody = || NoReview::Nobody("the client offers no sampling".to_owned());
        let client = request.client.as_ref().ok_or_else(nobody)?;
        if client.answerable().lacks(QuestionKind::Sampling, &params).is_some() {
            return Err(nobody());
        }
        let params = params.to_string();
        if params.len() > MAX_QUESTION {
            return Err(NoReview::Failed("the action is too long to be put to the client's model".to_owned()));
        }
        let question = ServerQuestion { by: AskedBy::Host, kind: QuestionKind::Sampling, params: params.into() };
        match client.ask(question).await {
            Ok(result) => text_of(&result),
            Err(NoAnswer { code: -32601, .. }) => Err(nobody()),
            Err(error) => Err(NoReview::Failed(format!("the client did not sample: {}", shown(&error.message, 200)))),
        }
    }
}

/// Evidence first: texts alone, for a client's model need not take images. The action has the last word.
fn messages(request: &ReviewRequest) -> Vec<Value> {
    let message = |text: &str| json!({ "role": "user", "content": { "type": "text", "text": text } });
    let evidence = request.evidence.after(0).map(|evidence| message(&evidence.text));
    evidence.into_iter().chain([message(&request.action)]).collect()
}

/// Returns the text of a result: one text, as content or as its only part.
fn text_of(result: &str) -> Result<String, NoReview> {
    let unlike = || NoReview::Transient("the client's model did not answer with one text".to_owned());
    let json = Json::parse(result, Limits { bytes: MAX_RESULT, depth: 64 }).map_err(|_| unlike())?;
    let result = json.into_value_lossy();
    let content = match result.get("content") {
        Some(Value::Array(parts)) => parts.first().filter(|_| parts.len() == 1),
        other => other,
    };
    let content = content.filter(|content| content.get("type").is_some_and(|kind| kind == "text"));
    let text = content.and_then(|content| content.get("text")).and_then(Value::as_str).ok_or_else(unlike)?;
    match text.len() <= MAX_REVIEW {
        true => Ok(text.to_owned()),
        false => Err(NoReview::Failed(format!("the client's model said more than {MAX_REVIEW} bytes"))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::model::answerable::Answerable;
    use crate::model::evidence::Evidence;
    use crate::ports::questions::Questions;

    struct Client {
        sampling: bool,
        answer: Result<&'static str, NoAnswer>,
        asked: Mutex<Vec<ServerQuestion>>,
    }

    #[async_trait]
    impl Questions for Client {
        fn answerable(&self) -> Answerable {
            Answerable { sampling: self.sampling, ..Answerable::default() }
        }

        async fn ask(&self, question: ServerQuestion) -> Result<Arc<str>, NoAnswer> {
            self.asked.lock().push(question);
            self.answer.clone().map(Arc::from)
        }
    }

    async fn ask(
        sampling: bool,
        answer: Result<&'static str, NoAnswer>,
    ) -> (Result<String, NoReview>, Vec<ServerQuestion>) {
        let client = Arc::new(Client { sampling, answer, asked: Mutex::default() });
        let request = ReviewRequest {
            instructions: "judge".into(),
            action: r#"{"server":"s"}"#.into(),
            evidence: Evidence::default(),
            client: Some(Arc::clone(&client) as Arc<dyn Questions>),
        };
        let answer = SamplingReviewer.review(&request).await;
        let asked = client.asked.lock().clone();
        (answer, asked)
    }

    #[tokio::test]
    async fn the_clients_model_gets_instructions_and_action_and_no_context() {
        let (answer, asked) =
            ask(true, Ok(r#"{"role":"assistant","model":"m","content":{"type":"text","text":"{}"}}"#)).await;
        assert_eq!(answer, Ok("{}".to_owned()));
        let [question] = asked.as_slice() else { panic!("{asked:?}") };
        assert_eq!((question.by, question.kind), (AskedBy::Host, QuestionKind::Sampling));
        let wanted = json!({ "messages": [{ "role": "user", "content": { "type": "text", "text": "{\"server\":\"s\"}" } }],
            "systemPrompt": "judge", "includeContext": "none", "maxTokens": 1024 });
        assert_eq!(question.value(), wanted);
        let (answer, _) = ask(true, Ok(r#"{"content":[{"type":"text","text":"{}"}]}"#)).await;
        assert_eq!(answer, Ok("{}".to_owned()));
    }

    #[tokio::test]
    async fn a_client_that_does_not_sample_is_nobody_and_one_that_fails_failed() {
        let (answer, asked) = ask(false, Ok("{}")).await;
        assert!(matches!(answer, Err(NoReview::Nobody(_))) && asked.is_empty());
        assert!(matches!(ask(true, Err(NoAnswer::not_offered("no"))).await.0, Err(NoReview::Nobody(_))));
        assert!(matches!(ask(true, Err(NoAnswer::failed("rejected"))).await.0, Err(NoReview::Failed(_))));
        let alone =
            ReviewRequest { instructions: "".into(), action: "{}".into(), evidence: Evidence::default(), client: None };
        assert!(matches!(SamplingReviewer.review(&alone).await, Err(NoReview::Nobody(_))));
    }

    #[tokio::test]
    async fn what_is_not_one_text_may_be_better_the_next_time() {
        for bad in [
            "essay",
            "{}",
            r#"{"content":{"type":"image","data":"a"}}"#,
            r#"{"content":[]}"#,
            r#"{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}"#,
        ] {
            assert!(matches!(ask(true, Ok(bad)).await.0, Err(NoReview::Transient(_))), "{bad}");
        }
    }
}
