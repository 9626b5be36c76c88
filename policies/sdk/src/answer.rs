//! Short ways to write an answer.

use alloc::string::String;
use alloc::vec::Vec;

use crate::{Decision, Question, Reason, Remember, Reviewers, Verdict};

fn reason(rule: &str, text: &str) -> Reason {
    Reason { rule: Some(String::from(rule)), text: String::from(text) }
}

fn decision(verdict: Verdict) -> Decision {
    Decision { verdict, labels: Vec::new() }
}

/// No opinion: the other components and the baseline decide.
#[must_use]
pub fn abstain() -> Decision {
    decision(Verdict::Abstain)
}

/// Agrees. It lifts only the baseline's ask, and only if the component's layer may allow.
///
/// `rule` is `[a-z0-9._-]`, at most 64 characters; anything else makes the host discard the answer as a fault.
#[must_use]
pub fn allow(rule: &str, text: &str) -> Decision {
    decision(Verdict::Allow(reason(rule, text)))
}

/// Demands that somebody agrees; `remember` is the longest that an agreement may be kept.
#[must_use]
pub fn ask(rule: &str, text: &str, remember: Remember) -> Decision {
    decision(Verdict::Ask(Question {
        reason: reason(rule, text),
        remember,
        bind_arguments: false,
        reviewers: Reviewers { person: false, auto: false },
    }))
}

/// Refuses. Nothing lifts it.
#[must_use]
pub fn deny(rule: &str, text: &str) -> Decision {
    decision(Verdict::Deny(reason(rule, text)))
}
