//! Auto reviewers that answer by a script.

use std::collections::VecDeque;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use portcullis::model::evidence::RenderedEvidence;
use portcullis::model::layer::LayerKind;
use portcullis::ports::review::{AutoReviewer, BoundReviewer, NoReview, ReviewRequest};
use serde_json::Value;

use super::policy::source;

/// A reviewer that gives these answers in turn, the last one again and again, and keeps the actions.
pub(crate) struct Judge {
    answers: Mutex<VecDeque<Result<String, NoReview>>>,
    actions: Mutex<Vec<Value>>,
    evidence: Mutex<Vec<Option<RenderedEvidence>>>,
}

pub(crate) const ALLOW: &str = r#"{"outcome":"allow"}"#;
pub(crate) const DENY: &str = r#"{"outcome":"deny","rationale":"SECRET reasons"}"#;

impl Judge {
    pub(crate) fn says(answer: &str) -> Arc<Self> {
        Self::answers([Ok(answer.to_owned())])
    }

    pub(crate) fn answers(answers: impl IntoIterator<Item = Result<String, NoReview>>) -> Arc<Self> {
        Arc::new(Self {
            answers: Mutex::new(answers.into_iter().collect()),
            actions: Mutex::default(),
            evidence: Mutex::default(),
        })
    }

    pub(crate) fn actions(&self) -> Vec<Value> {
        self.actions.lock().clone()
    }

    /// The evidence that it was given, each time.
    pub(crate) fn evidence(&self) -> Vec<Option<RenderedEvidence>> {
        self.evidence.lock().clone()
    }
}

#[async_trait]
impl AutoReviewer for Judge {
    async fn review(&self, request: &ReviewRequest) -> Result<String, NoReview> {
        self.evidence.lock().push(request.evidence.after(0));
        self.actions.lock().push(serde_json::from_str(&request.action).unwrap());
        let mut answers = self.answers.lock();
        if answers.len() > 1 { answers.pop_front().unwrap() } else { answers.front().unwrap().clone() }
    }
}

/// The reviewer of a layer; its denials cannot be appealed.
pub(crate) fn judging(layer: LayerKind, judge: &Arc<Judge>) -> BoundReviewer {
    BoundReviewer {
        source: source(layer, "judge"),
        may_allow: layer.may_allow_by_default(),
        asks_own_client: false,
        appeal: false,
        reviewer: Ok(Arc::clone(judge) as _),
    }
}
