//! Asking somebody whether a call may run.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;

use super::approval::Kind;
use super::grants::GrantSubject;
use crate::model::digest::Digest;
use crate::model::name::{CallId, ToolRef};
use crate::model::posture::Channel;
use crate::model::role::{LayerRoles, Role};
use crate::model::text::shown;
use crate::model::verdict::{AskKey, Remember, Reviewers, StandingAsk};

/// A question for a person: everything that is needed to decide, made fit to be shown.
#[derive(Debug, Clone, Serialize)]
pub struct Question {
    /// The question's own id; concurrent questions are independent.
    pub id: String,
    /// The call.
    pub call: CallId,
    /// What would be sent: a call, or an answer to what the tool's server asked.
    pub kind: Kind,
    /// Raw server and tool.
    pub tool: ToolRef,
    /// The tool's title as the sanitisers leave it, bounded, control characters visible.
    pub title: Option<String>,
    /// The tool's description in the same way.
    pub description: Option<String>,
    /// The App connector that the tool belongs to, its words in the same way.
    pub connector: Option<AskedConnector>,
    /// The arguments as sorted JSON, bounded, control characters visible.
    pub arguments: String,
    /// The files that the arguments name, as they were opened; at most 16.
    pub files: Vec<AskedFile>,
    /// What changed of the tool's definition, and of other tools of its server, since they were accepted: lines of a
    /// difference, bounded, control characters visible (R24).
    pub changes: Arc<[String]>,
    /// Whether the arguments or the files were cut. Then nothing is remembered (R22).
    pub cut: bool,
    /// What an agreement binds, for a channel that keeps the question.
    pub agreement: Arc<Agreement>,
    /// The auto reviewer's denial that is appealed, in its words: bounded, control characters visible.
    pub denial: Option<String>,
    /// Who asks and why, in order of trust.
    pub asks: Vec<StandingAsk>,
    /// Who must agree.
    pub reviewers: Reviewers,
    /// What may be chosen besides refusing; [`Remember::Never`] means "allow this call". Never empty.
    pub options: Vec<Remember>,
    /// Which channels may answer (R20). Never all of those that are there, if a layer names others.
    pub channels: BTreeSet<Channel>,
    /// What whoever allows must be: one of the roles of each (R20). Refusing needs none.
    pub roles: Vec<LayerRoles>,
    /// How long an answer is waited for.
    pub deadline: Duration,
}

impl Question {
    /// Whether an answer by this channel counts. A channel that may not answer does not ask, and says [`Reply::Nobody`].
    #[must_use]
    pub fn may_be_answered_by(&self, channel: Channel) -> bool {
        self.channels.contains(&channel)
    }

    /// Says why an allow of somebody with these roles does not count, with layer, component and rule; none if it does (R20).
    /// A channel to such a person does not ask, and says [`Reply::Nobody`].
    #[must_use]
    pub fn wants_other_than(&self, roles: &BTreeSet<Role>) -> Option<String> {
        let wanted = self.roles.iter().find(|wanted| !wanted.are_met_by(roles))?;
        Some(wants(wanted, &self.asks))
    }

    /// Returns the words for the record by which somebody with these roles answers: the name, and the roles that count here.
    #[must_use]
    pub fn named(&self, approver: &str, roles: &BTreeSet<Role>) -> String {
        let all: BTreeSet<&Role> = self.roles.iter().flat_map(|wanted| wanted.roles.intersection(roles)).collect();
        match all.is_empty() {
            true => approver.to_owned(),
            false => {
                let words: Vec<String> = all.into_iter().map(|role| shown(role.as_str(), SHOWN_ROLE)).collect();
                format!("{approver} as {}", words.join(", "))
            }
        }
    }
}

/// Says which asks are for which roles: the first of the layer that wants them, by layer, component and rule.
#[must_use]
pub fn wants<'a>(wanted: &LayerRoles, asks: impl IntoIterator<Item = &'a StandingAsk>) -> String {
    let ask = asks.into_iter().find(|ask| ask.key.source.layer == wanted.layer);
    let who = ask.map_or_else(|| wanted.layer.to_string(), |ask| ask.key.source.to_string());
    let rule = ask.and_then(|ask| ask.key.rule.as_ref()).map_or_else(String::new, |rule| format!(", rule {rule}"));
    format!("what {who}{rule} asks is allowed by the role {} alone (`approvals.roles`)", wanted.words())
}

/// The most characters of a role in a record.
const SHOWN_ROLE: usize = 64;

/// An App connector, as far as the sanitisers leave its words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AskedConnector {
    /// Its id.
    pub id: String,
    /// Its name for people.
    pub name: Option<String>,
    /// What it is for.
    pub description: Option<String>,
}

/// What an agreement to a question is an agreement to: enough to make a grant of it, and nothing of the arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Agreement {
    /// Caller, tool, server, definition, connector.
    pub subject: GrantSubject,
    /// The asks that it answers.
    pub answered: BTreeSet<AskKey>,
    /// The digest of the arguments and of the files that they name.
    pub arguments: Digest,
    /// Whether a grant for longer than this call holds for these very arguments only.
    pub bind_arguments: bool,
    /// Whether an answer that comes after the call's end may become a grant for one call: not where a failure asks, or
    /// strict review (R12, R14).
    pub lasts: bool,
}

impl Agreement {
    /// An agreement to nothing, for tests of channels.
    #[cfg(test)]
    pub(crate) fn to_nothing(tool: &ToolRef) -> Arc<Self> {
        let digest = Digest::of(b"");
        let subject = GrantSubject {
            caller: crate::model::caller::Caller::local("me"),
            tool: tool.clone(),
            identity: crate::model::tool::ServerIdentity(digest),
            definition: digest,
            connector: None,
        };
        let answered = BTreeSet::new();
        Arc::new(Self { subject, answered, arguments: digest, bind_arguments: false, lasts: true })
    }
}

/// A file that would be uploaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AskedFile {
    /// The argument, bounded, control characters visible.
    pub argument: String,
    /// The path as the call has it, bounded, control characters visible.
    pub path: String,
    /// How many bytes it has.
    pub length: u64,
    /// Their digest.
    pub sha256: Digest,
}

/// What came of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// One of the offered options was chosen.
    Allowed {
        /// Which.
        remember: Remember,
        /// Who chose, in the channel's own terms.
        approver: String,
        /// Where they chose.
        channel: Channel,
        /// What they are, as far as somebody vouches for it (R20).
        roles: Roles,
    },
    /// Refused, or an answer that chose nothing that was offered (R20).
    Declined,
    /// The asking was called off by whoever was asked.
    Cancelled,
    /// Nobody answered in time.
    Expired,
    /// There is nobody to ask, or this channel cannot ask.
    Nobody,
}

/// What vouches for the roles of whoever answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Roles {
    /// They have these; none is what nobody vouches for.
    Of(BTreeSet<Role>),
    /// The queue compared them with the question when it took the answer, and keeps the answer alone.
    Compared,
}

impl Roles {
    /// Nobody vouches for any.
    #[must_use]
    pub fn none() -> Self {
        Self::Of(BTreeSet::new())
    }
}

/// A channel to a person. Contract: answers within the question's deadline; dropping the future withdraws the question.
#[async_trait]
pub trait Reviewer: Send + Sync {
    /// Asks and waits.
    async fn ask(&self, question: &Question) -> Reply;

    /// Returns how long an agreement by this channel may be remembered at most. A channel that cannot show what "always"
    /// would mean offers the session at most.
    fn widest(&self) -> Remember {
        Remember::Always
    }
}

/// The channel of a process that has none.
#[derive(Debug, Clone, Copy, Default)]
pub struct NobodyThere;

#[async_trait]
impl Reviewer for NobodyThere {
    async fn ask(&self, _question: &Question) -> Reply {
        Reply::Nobody
    }
}
