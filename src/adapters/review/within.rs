//! A bound on one attempt, where a reviewer's table sets one.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::model::text;
use crate::ports::review::{AutoReviewer, NoReview, ReviewRequest};

/// A reviewer whose every attempt ends after a while: that may be better the next time.
pub struct Within {
    inner: Arc<dyn AutoReviewer>,
    limit: Duration,
}

impl Within {
    /// Bounds the attempts of a reviewer.
    #[must_use]
    pub fn new(inner: Arc<dyn AutoReviewer>, limit: Duration) -> Self {
        Self { inner, limit }
    }
}

#[async_trait]
impl AutoReviewer for Within {
    async fn review(&self, request: &ReviewRequest) -> Result<String, NoReview> {
        match tokio::time::timeout(self.limit, self.inner.review(request)).await {
            Ok(answer) => answer,
            Err(_) => Err(NoReview::Transient(format!("there was no answer within {}", text::seconds(self.limit)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::evidence::Evidence;

    struct Never;

    #[async_trait]
    impl AutoReviewer for Never {
        async fn review(&self, _request: &ReviewRequest) -> Result<String, NoReview> {
            std::future::pending().await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_takes_too_long_may_be_better_the_next_time() {
        let request =
            ReviewRequest { instructions: "".into(), action: "{}".into(), evidence: Evidence::default(), client: None };
        let answer = Within::new(Arc::new(Never), Duration::from_secs(5)).review(&request).await;
        assert_eq!(answer, Err(NoReview::Transient("there was no answer within 5 s".to_owned())));
    }
}
