//! Asks whoever must agree, and waits for the answer, at most the deadline.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::model::name::CallId;
use crate::model::posture::Channel;
use crate::model::role::LayerRoles;
use crate::model::text;
use crate::model::verdict::{Remember, Reviewers, StandingAsk};
use crate::pipeline::bind::prepare::Prepared;
use crate::ports::reviewer::{Agreement, AskedFile, Question, Reply, Reviewer, Roles};

/// How long an answer is waited for by default.
pub const DEADLINE: Duration = Duration::from_secs(600);
/// The most asks that a question shows.
pub const SHOWN_ASKS: usize = 16;
/// The most characters of arguments that a question shows.
pub const SHOWN_ARGUMENTS: usize = 4096;

/// The most files that a question shows.
pub const SHOWN_FILES: usize = 16;
/// The most characters of a path, or of an argument's name, that a question shows beside the arguments.
const SHOWN_PATH: usize = 256;

/// Asks, and returns what came of it.
///
/// An answer that was not offered, or that comes by a channel which may not answer, is a refusal (R20). An allow of somebody
/// without the roles that the question wants is none: it is as if nobody had been there.
pub async fn ask(reviewer: &dyn Reviewer, question: &Question) -> Reply {
    let reply = tokio::time::timeout(question.deadline, reviewer.ask(question)).await.unwrap_or(Reply::Expired);
    match reply {
        Reply::Allowed { remember, channel, .. }
            if !question.options.contains(&remember) || !question.may_be_answered_by(channel) =>
        {
            Reply::Declined
        }
        Reply::Allowed { roles: Roles::Of(roles), .. } if question.wants_other_than(&roles).is_some() => Reply::Nobody,
        reply => reply,
    }
}

/// Makes the question: everything that is needed to decide, fit to be shown.
#[must_use]
pub fn question(
    call: &CallId,
    prepared: &Prepared,
    agreement: &Arc<Agreement>,
    asks: &BTreeSet<StandingAsk>,
    options: &[Remember],
    (channels, roles): (BTreeSet<Channel>, Vec<LayerRoles>),
    deadline: Duration,
) -> Question {
    let all = readable(prepared);
    let mut asks: Vec<StandingAsk> = asks.iter().cloned().collect();
    asks.sort_by(|a, b| b.key.source.layer.cmp(&a.key.source.layer).then_with(|| a.cmp(b)));
    Question {
        id: format!("ask_{}", uuid::Uuid::now_v7().simple()),
        call: call.clone(),
        kind: prepared.kind(),
        tool: prepared.reference(),
        // The server's words: whoever may look at them adds them.
        title: None,
        description: None,
        connector: None,
        arguments: text::shown(&all, SHOWN_ARGUMENTS),
        files: files(prepared),
        // The servers' words, too.
        changes: [].into(),
        agreement: Arc::clone(agreement),
        denial: None,
        cut: is_long(&all) || asks.len() > SHOWN_ASKS || has_many_files(prepared),
        asks,
        reviewers: Reviewers::PERSON,
        options: options.to_vec(),
        channels,
        roles,
        deadline,
    }
}

/// Returns how long an agreement may be remembered at most, as far as the question decides: a text that was cut offers no
/// remembering (R22).
#[must_use]
pub fn widest(prepared: &Prepared, asks: &BTreeSet<StandingAsk>) -> Remember {
    if asks.len() > SHOWN_ASKS || has_many_files(prepared) || is_long(&readable(prepared)) {
        Remember::Never
    } else {
        Remember::Always
    }
}

fn files(prepared: &Prepared) -> Vec<AskedFile> {
    let files = prepared.files().into_iter().flat_map(|files| files.iter()).take(SHOWN_FILES);
    let asked = files.map(|file| AskedFile {
        argument: text::shown(&file.field(), SHOWN_PATH),
        path: text::shown(file.path(), SHOWN_PATH),
        length: file.facts().length,
        sha256: file.facts().sha256,
    });
    asked.collect()
}

fn has_many_files(prepared: &Prepared) -> bool {
    prepared.files().is_some_and(|files| files.iter().len() > SHOWN_FILES)
}

fn is_long(arguments: &str) -> bool {
    arguments.chars().count() > SHOWN_ARGUMENTS
}

/// The arguments with sorted keys and numbers as they were written. The canonical text is for digests: it says `12e2` for
/// 1200, which nobody should have to approve.
fn readable(prepared: &Prepared) -> String {
    let Some(object) = prepared.arguments().object() else { return "{}".to_owned() };
    let mut value = Value::Object(object.clone());
    value.sort_all_objects();
    value.to_string()
}
