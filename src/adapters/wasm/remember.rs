//! A connector policy is asked anew only where something is new to it.
//!
//! What a component answers follows from its bytes, its settings, the files of its layer and the facts that it is told (R33). The
//! first three are fixed for the life of one bound component; an answer is kept by the digest of the facts, the time left
//! out. Answers of a component that read the clock are not kept, and neither are failures. What is kept is bounded for each
//! tenant by itself (R37).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::model::caller::TenantId;
use crate::model::digest::Digest;
use crate::ports::connector::{AppToolFacts, ConnectorComponent, ConnectorEvaluation};

/// How many answers are kept of one tenant; then its own are forgotten.
const MAX_ANSWERS: usize = 4_096;
/// How many tenants have answers kept; beyond, one loses its own.
const MAX_TENANTS: usize = 256;

type Answers = HashMap<TenantId, HashMap<Digest, ConnectorEvaluation>>;

/// A connector component whose answers are kept.
pub struct Remembering {
    component: Arc<dyn ConnectorComponent>,
    answers: Mutex<Answers>,
}

impl Remembering {
    /// Keeps the answers of a component, whose settings never change.
    #[must_use]
    pub fn new(component: Arc<dyn ConnectorComponent>) -> Arc<Self> {
        Arc::new(Self { component, answers: Mutex::default() })
    }
}

impl std::fmt::Debug for Remembering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remembering").field("tenants", &self.answers.lock().len()).finish_non_exhaustive()
    }
}

#[async_trait]
impl ConnectorComponent for Remembering {
    async fn evaluate(&self, facts: Arc<AppToolFacts>) -> ConnectorEvaluation {
        let (tenant, digest) = (facts.caller.tenant.clone(), timeless_digest(&facts));
        let kept = self.answers.lock().get(&tenant).and_then(|own| own.get(&digest)).cloned();
        if let Some(kept) = kept {
            return kept;
        }
        let evaluation = self.component.evaluate(facts).await;
        if evaluation.result.is_ok() && evaluation.usage.timeless {
            let mut kept = evaluation.clone();
            // Whoever gets it has not waited for it, and what was logged is logged.
            kept.usage.time = Duration::ZERO;
            kept.log.clear();
            keep(&mut self.answers.lock(), tenant, digest, kept);
        }
        evaluation
    }
}

fn keep(answers: &mut Answers, tenant: TenantId, digest: Digest, evaluation: ConnectorEvaluation) {
    if answers.len() >= MAX_TENANTS
        && !answers.contains_key(&tenant)
        && let Some(other) = answers.keys().next().cloned()
    {
        answers.remove(&other);
    }
    let own = answers.entry(tenant).or_default();
    if own.len() >= MAX_ANSWERS {
        own.clear();
    }
    own.insert(digest, evaluation);
}

/// The digest of all that a component may be told of a tool, the time left out.
fn timeless_digest(facts: &AppToolFacts) -> Digest {
    let AppToolFacts { connector, tool, identity, title, hints, caller, now_ms: _ } = facts;
    // Debug text of our own types: no two different values read alike.
    let parts = [
        format!("{connector:?}"),
        format!("{tool:?}"),
        format!("{identity:?}"),
        format!("{title:?}"),
        format!("{hints:?}"),
        format!("{caller:?}"),
    ];
    Digest::of_parts(parts.iter().map(String::as_bytes))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::model::caller::Caller;
    use crate::model::name::ToolRef;
    use crate::model::tool::{Connector, Hints, ServerIdentity};
    use crate::model::verdict::{Fault, FaultCode};
    use crate::ports::approval::Usage;
    use crate::ports::connector::ConnectorAnswer;

    /// Counts how often it is asked.
    struct Counts {
        asked: AtomicUsize,
        timeless: bool,
        fails: bool,
    }

    #[async_trait]
    impl ConnectorComponent for Counts {
        async fn evaluate(&self, _facts: Arc<AppToolFacts>) -> ConnectorEvaluation {
            self.asked.fetch_add(1, Ordering::SeqCst);
            let answer = ConnectorAnswer { enabled: Some(false), mode: None, rule: None };
            let result = if self.fails { Err(Fault::new(FaultCode::Trap, "broken")) } else { Ok(answer) };
            ConnectorEvaluation {
                result,
                log: Vec::new(),
                usage: Usage { timeless: self.timeless, ..Usage::default() },
            }
        }
    }

    fn facts(title: &str, who: &str, now_ms: u64) -> Arc<AppToolFacts> {
        Arc::new(AppToolFacts {
            connector: Some(Connector { id: "calendar".to_owned(), name: None, account: None, description: None }),
            tool: ToolRef::parse("apps/events").unwrap(),
            identity: ServerIdentity(Digest::of(b"apps")),
            title: Some(title.to_owned()),
            hints: Hints::default(),
            caller: Caller::local(who),
            now_ms,
        })
    }

    async fn asked(timeless: bool, fails: bool) -> usize {
        let counts = Arc::new(Counts { asked: AtomicUsize::new(0), timeless, fails });
        let remembering = Remembering::new(Arc::clone(&counts) as _);
        let first = facts("a", "ann", 1);
        let later = Arc::new(AppToolFacts { now_ms: 2, ..(*first).clone() });
        let one = remembering.evaluate(first).await;
        assert_eq!(remembering.evaluate(later).await.result, one.result);
        counts.asked.load(Ordering::SeqCst)
    }

    #[tokio::test]
    async fn r33_who_did_not_read_the_clock_is_not_asked_again_about_the_same_facts_at_another_time() {
        assert_eq!(asked(true, false).await, 1);
    }

    #[tokio::test]
    async fn r33_who_read_the_clock_or_failed_is_asked_every_time() {
        assert_eq!(asked(false, false).await, 2);
        assert_eq!(asked(true, true).await, 2);
    }

    #[tokio::test]
    async fn r33_another_title_or_caller_is_another_question() {
        let counts = Arc::new(Counts { asked: AtomicUsize::new(0), timeless: true, fails: false });
        let remembering = Remembering::new(Arc::clone(&counts) as _);
        for facts in [facts("a", "ann", 1), facts("b", "ann", 1), facts("a", "bob", 1)] {
            remembering.evaluate(facts).await;
        }
        assert_eq!(counts.asked.load(Ordering::SeqCst), 3);
    }

    #[test]
    fn r37_what_is_kept_is_bounded_for_each_tenant_by_itself() {
        let mut answers = Answers::new();
        let other = || TenantId::new("other");
        let answer = || ConnectorEvaluation::failed(Fault::new(FaultCode::Trap, "any"));
        keep(&mut answers, other(), Digest::of(b"one"), answer());
        let flooding = Caller::local("ann").tenant;
        for n in 0..=MAX_ANSWERS {
            keep(&mut answers, flooding.clone(), Digest::of(&n.to_be_bytes()), answer());
        }
        assert!(answers[&flooding].len() <= MAX_ANSWERS);
        assert_eq!(answers[&other()].len(), 1);
        for n in 0..=MAX_TENANTS {
            keep(&mut answers, TenantId::new(format!("t{n}")), Digest::of(b"one"), answer());
        }
        assert_eq!(answers.len(), MAX_TENANTS);
    }
}
