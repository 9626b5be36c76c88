//! Asks a person through a program that can show a question with a few choices, and nothing else: the channel of hosts without
//! elicitation (approval-results 5.1 and Q06, Q07, Q14, Q15).
//!
//! Such a channel cannot show what "always" would mean, so it offers the session at most. Questions are told apart by their id,
//! so several can be open at once. What was not offered chooses nothing, and "Cancel" beside another label cancels.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;

use super::question::{Choice, question_text};
use crate::model::posture::Channel;
use crate::model::role::Role;
use crate::model::verdict::Remember;
use crate::ports::reviewer::{Question, Reply, Reviewer, Roles};

/// Runs this call.
const ALLOW: &str = "Allow";
/// Runs it, and is remembered for the session.
const FOR_SESSION: &str = "Allow for this session";
/// Runs nothing.
const CANCEL: &str = "Cancel";

/// A question with choices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserInputRequest {
    /// The question's own id, `mcp_tool_call_approval_<call id>_<question id>`: one call may ask more than once.
    pub id: String,
    /// A heading.
    pub header: String,
    /// Several lines of text, bounded, control characters visible.
    pub question: String,
    /// What may be chosen; one of them cancels.
    pub options: Vec<UserInputOption>,
}

/// A choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserInputOption {
    /// What is shown, and what is returned if it is chosen.
    pub label: String,
    /// What choosing it means.
    pub description: String,
}

/// Whoever shows questions to a person.
///
/// Contract: questions are independent of each other; dropping the future withdraws the question. The call's ask has a deadline
/// of its own, so an implementation needs none.
#[async_trait]
pub trait UserInput: Send + Sync {
    /// Shows a question, waits, and returns the labels that were chosen; nothing if the person chose none or is gone.
    async fn ask(&self, request: UserInputRequest) -> Option<Vec<String>>;
}

/// A channel to the person behind a [`UserInput`].
pub struct FallbackReviewer {
    input: Arc<dyn UserInput>,
    approver: String,
    roles: BTreeSet<Role>,
}

impl FallbackReviewer {
    /// Makes the channel; `approver` names whoever answers, for the record.
    #[must_use]
    pub fn new(input: Arc<dyn UserInput>, approver: impl Into<String>) -> Self {
        Self { input, approver: approver.into(), roles: BTreeSet::new() }
    }

    /// The same for a person of whom the program knows that they have these roles (R20).
    #[must_use]
    pub fn with_roles(self, roles: BTreeSet<Role>) -> Self {
        Self { roles, ..self }
    }
}

#[async_trait]
impl Reviewer for FallbackReviewer {
    async fn ask(&self, question: &Question) -> Reply {
        if !question.may_be_answered_by(Channel::Program) || question.wants_other_than(&self.roles).is_some() {
            return Reply::Nobody;
        }
        // A channel that is asked for more than it can show offers what it can.
        let mut question = question.clone();
        question.options.retain(|option| label(*option).is_some());
        let chosen = self.input.ask(request(&question)).await.unwrap_or_default();
        let cancels = chosen.iter().any(|chosen| chosen == CANCEL);
        let picked = question
            .options
            .iter()
            .copied()
            .filter(|option| label(*option).is_some_and(|label| chosen.iter().any(|chosen| chosen == label)));
        match picked.max() {
            Some(remember) if !cancels => {
                let roles = Roles::Of(self.roles.clone());
                let approver = question.named(&self.approver, &self.roles);
                Reply::Allowed { remember, approver, channel: Channel::Program, roles }
            }
            _ => Reply::Cancelled,
        }
    }

    fn widest(&self) -> Remember {
        Remember::Session
    }
}

fn label(option: Remember) -> Option<&'static str> {
    match option {
        Remember::Never => Some(ALLOW),
        Remember::Session => Some(FOR_SESSION),
        Remember::Always => None,
    }
}

fn request(question: &Question) -> UserInputRequest {
    let option = |label: &str, choice: Choice| UserInputOption {
        label: label.to_owned(),
        description: choice.meaning(question),
    };
    let allows = question.options.iter().filter_map(|it| Some(option(label(*it)?, Choice::Allow(*it))));
    UserInputRequest {
        id: format!("mcp_tool_call_approval_{}_{}", question.call, question.id),
        header: "Approve app tool call?".to_owned(),
        question: question_text(question),
        options: allows.chain([option(CANCEL, Choice::Decline)]).collect(),
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::gateway::question::tests::question;

    #[derive(Default)]
    struct Person {
        labels: Option<Vec<String>>,
        asked: Mutex<Vec<UserInputRequest>>,
    }

    #[async_trait]
    impl UserInput for Person {
        async fn ask(&self, request: UserInputRequest) -> Option<Vec<String>> {
            self.asked.lock().push(request);
            self.labels.clone()
        }
    }

    /// What it is, the labels that are chosen, what is offered, what comes of it.
    type Row<'a> = (&'a str, Option<&'a [&'a str]>, &'a [Remember], Option<Remember>);

    fn answered(labels: Option<&[&str]>, offered: &[Remember]) -> (Reply, UserInputRequest) {
        let labels = labels.map(|labels| labels.iter().map(|label| (*label).to_owned()).collect());
        let person = Arc::new(Person { labels, asked: Mutex::default() });
        let reviewer = FallbackReviewer::new(Arc::clone(&person) as _, "me");
        let reply = futures::executor::block_on(reviewer.ask(&question(offered)));
        let asked = person.asked.lock().remove(0);
        (reply, asked)
    }

    #[test]
    fn d53_d58_what_such_a_channel_offers_ends_with_the_session() {
        let (_, asked) = answered(None, &[Remember::Never, Remember::Session, Remember::Always]);
        let labels: Vec<&str> = asked.options.iter().map(|option| option.label.as_str()).collect();
        assert_eq!(labels, ["Allow", "Allow for this session", "Cancel"]);
        assert_eq!(asked.header, "Approve app tool call?");
        assert!(asked.id.starts_with("mcp_tool_call_approval_call_"), "{}", asked.id);
        assert!(!asked.question.contains("always-allow"), "{}", asked.question);
        let (_, asked) = answered(None, &[Remember::Never]);
        assert_eq!(asked.options.len(), 2);
        let person = Arc::new(Person::default());
        assert_eq!(FallbackReviewer::new(person, "me").widest(), Remember::Session);
    }

    #[test]
    fn q06_q07_q14_q15_only_offered_labels_choose() {
        use Remember::{Never, Session};
        let both: &[Remember] = &[Never, Session];
        let rows: [Row<'_>; 11] = [
            ("one", Some(&["Allow"]), both, Some(Never)),
            ("Q06", Some(&["Allow for this session"]), both, Some(Session)),
            ("Q07: such a channel has no always", Some(&["Allow and don't ask me again"]), both, None),
            ("Q14 none", None, both, None),
            ("Q14 empty", Some(&[]), both, None),
            ("Q14 unknown", Some(&["allow", "Yes"]), both, None),
            ("Q15", Some(&["Allow", "Allow for this session"]), both, Some(Session)),
            ("Q15 with an unknown one", Some(&["Yes", "Allow"]), both, Some(Never)),
            ("Q15 ours: a cancel among them cancels", Some(&["Allow", "Cancel"]), both, None),
            ("cancel", Some(&["Cancel"]), both, None),
            ("not offered", Some(&["Allow for this session"]), &[Never], None),
        ];
        for (row, labels, offered, expected) in rows {
            let expected = expected.map_or(Reply::Cancelled, |remember| Reply::Allowed {
                remember,
                approver: "me".to_owned(),
                channel: Channel::Program,
                roles: Roles::none(),
            });
            assert_eq!(answered(labels, offered).0, expected, "{row}");
        }
    }
}
