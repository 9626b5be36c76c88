//! What the pipeline tells of a call while it runs: a span for the call, one below it for each phase, and an event for each
//! answer that was cut. Spans are those of `tracing`; whoever listens measures, counts and exports them.
//!
//! Contract: everything has the target [`TARGET`], and nothing else has it. A field is a name, an id or a word of ours:
//! never an argument, never the text of an answer, of a reason or of a person. Names and ids are bounded, control characters
//! visible. A span lives as long as its phase, however that ends; it is closed when a call is dropped, too.

use tracing::field::Empty;
use tracing::{Span, debug_span, info_span, trace};

use crate::model::answerable::QuestionKind;
use crate::model::hook::HookEvent;
use crate::model::name::{CallId, ServerName, Target, ToolRef};
use crate::model::outcome::{Failure, Outcome};
use crate::model::posture::Channel;
use crate::model::text::shown;
use crate::model::verdict::{Folded, HOST, Remember};
use crate::ports::reviewer::Reply;

/// The target of everything that is told here.
pub const TARGET: &str = "portcullis::call";
/// The name of a call's span.
pub const CALL: &str = "call";
/// The name of a phase's span; its field `phase` says which.
pub const PHASE: &str = "phase";
/// The name of the event that a view was cut; its field `view` says which.
pub const CUT: &str = "cut";

/// The most characters of a name or an id.
const MAX_NAME: usize = 256;

/// A phase of a call, in the order in which they come (design page 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Its server is waited for.
    Ready,
    /// The hooks of one event run: before the call, when somebody would be asked, or after a success.
    Hooks,
    /// Its arguments are parsed.
    Arguments,
    /// It is fixed to a connection and a definition.
    Prepare,
    /// The files that it names are opened.
    Files,
    /// All that leads to its approval: decided, asked, decided again.
    Approval,
    /// The components of all layers are asked, and their answers folded.
    Decide,
    /// The auto reviewers are asked.
    Review,
    /// A person is asked.
    Ask,
    /// It waits for its turn among the calls that run.
    Turn,
    /// Checked, uploaded, leased.
    Lease,
    /// Its files are uploaded.
    Upload,
    /// Recorded, committed and handed to the transport.
    HandOver,
    /// Its answer is waited for.
    Answer,
    /// The server asks something meanwhile.
    Question,
    /// Its answer is cleaned.
    Sanitise,
    /// Its completed item goes out.
    Complete,
}

impl Phase {
    /// All of them, in their order.
    pub const ALL: [Self; 17] = [
        Self::Ready,
        Self::Hooks,
        Self::Arguments,
        Self::Prepare,
        Self::Files,
        Self::Approval,
        Self::Decide,
        Self::Review,
        Self::Ask,
        Self::Turn,
        Self::Lease,
        Self::Upload,
        Self::HandOver,
        Self::Answer,
        Self::Question,
        Self::Sanitise,
        Self::Complete,
    ];

    /// Returns its name as it is told.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Hooks => "hooks",
            Self::Arguments => "arguments",
            Self::Prepare => "prepare",
            Self::Files => "files",
            Self::Approval => "approval",
            Self::Decide => "decide",
            Self::Review => "review",
            Self::Ask => "ask",
            Self::Turn => "turn",
            Self::Lease => "lease",
            Self::Upload => "upload",
            Self::HandOver => "hand-over",
            Self::Answer => "answer",
            Self::Question => "question",
            Self::Sanitise => "sanitise",
            Self::Complete => "complete",
        }
    }
}

/// Which call a span belongs to.
#[derive(Debug, Clone, Copy)]
pub struct About<'a> {
    call: &'a CallId,
    server: Option<&'a ServerName>,
    tool: &'a str,
}

impl<'a> About<'a> {
    /// A call of what its caller named.
    #[must_use]
    pub fn target(call: &'a CallId, target: &'a Target) -> Self {
        Self { call, server: target.server.as_ref(), tool: target.tool.as_str() }
    }

    /// A call of a known tool.
    #[must_use]
    pub fn tool(call: &'a CallId, tool: &'a ToolRef) -> Self {
        Self { call, server: Some(&tool.server), tool: tool.tool.as_str() }
    }

    fn server(&self) -> &str {
        self.server.map_or("", ServerName::as_str)
    }
}

/// The span of a call. Its `outcome` is added by [`ended`].
#[must_use]
pub fn call(about: About<'_>) -> Span {
    info_span!(
        target: TARGET,
        CALL,
        call = %shown(about.call.as_str(), MAX_NAME),
        server = about.server(),
        tool = %shown(about.tool, MAX_NAME),
        outcome = Empty,
        stage = Empty,
        layer = Empty,
        otel.status_code = Empty,
    )
}

/// The span of a phase. What came of it is added by the functions below.
#[must_use]
pub fn phase(phase: Phase, about: About<'_>) -> Span {
    open(phase, about, None, None)
}

/// The span of [`Phase::Hooks`], for one event.
#[must_use]
pub fn hooks(about: About<'_>, event: HookEvent) -> Span {
    open(Phase::Hooks, about, Some(event.as_str()), None)
}

/// The span of [`Phase::Question`], for a question of one kind.
#[must_use]
pub fn question(about: About<'_>, kind: QuestionKind) -> Span {
    open(Phase::Question, about, None, Some(kind.method()))
}

fn open(phase: Phase, about: About<'_>, event: Option<&str>, question: Option<&str>) -> Span {
    debug_span!(
        target: TARGET,
        PHASE,
        otel.name = phase.as_str(),
        phase = phase.as_str(),
        call = %shown(about.call.as_str(), MAX_NAME),
        server = about.server(),
        tool = %shown(about.tool, MAX_NAME),
        layer = Empty,
        verdict = Empty,
        channel = Empty,
        outcome = Empty,
        grant = Empty,
        event,
        question,
    )
}

/// Adds to a call's span how it ended: `answered`, `tool-error`, or the code of its failure with its stage and layer.
pub fn ended(span: &Span, outcome: &Outcome) {
    span.record("outcome", outcome_word(outcome));
    if let Outcome::Failed(failure) = outcome {
        span.record("stage", failure.stage.as_str());
        span.record("otel.status_code", "ERROR");
        if let Some(layer) = layer(failure) {
            span.record("layer", layer);
        }
    }
}

/// Returns the word for how a call ended.
#[must_use]
pub fn outcome_word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Answered => "answered",
        Outcome::ToolError => "tool-error",
        Outcome::Failed(failure) => failure.code.as_str(),
    }
}

fn layer(failure: &Failure) -> Option<&'static str> {
    failure.origin.as_ref().map(|origin| origin.layer.kind().as_str())
}

/// Adds to the span of [`Phase::Decide`] what all layers together say, and the most trusted layer that says so; none where
/// the host itself does, or nobody had anything to say.
pub fn decided(span: &Span, folded: &Folded) {
    let (verdict, source) = match folded {
        Folded::Run { lifted_by } => ("run", lifted_by.as_ref()),
        Folded::Ask(asks) => ("ask", asks.iter().map(|ask| &ask.key.source).max_by_key(|source| source.layer.kind())),
        Folded::Deny(refusals) => {
            ("deny", refusals.iter().map(|refusal| &refusal.source).max_by_key(|source| source.layer.kind()))
        }
    };
    span.record("verdict", verdict);
    if let Some(source) = source.filter(|source| *source.component != *HOST) {
        span.record("layer", source.layer.kind().as_str());
    }
}

/// What can come of [`Phase::Ask`], if its call does not end before.
pub const ASKED: [&str; 5] = ["allowed", "declined", "cancelled", "expired", "nobody"];

/// Adds to the span of [`Phase::Ask`] what came of it, a word of [`ASKED`]; the channel where the answer came by one.
pub fn replied(span: &Span, reply: &Reply) {
    let outcome = match reply {
        Reply::Allowed { channel, .. } => {
            span.record("channel", Channel::as_str(*channel));
            "allowed"
        }
        Reply::Declined => "declined",
        Reply::Cancelled => "cancelled",
        Reply::Expired => "expired",
        Reply::Nobody => "nobody",
    };
    span.record("outcome", outcome);
}

/// Adds to the span of [`Phase::Approval`] that a remembered agreement covers the call, and how long it holds.
pub fn found(span: &Span, scope: Remember) {
    span.record("grant", scope_word(scope));
}

/// Returns the word for how long an agreement holds.
#[must_use]
pub fn scope_word(scope: Remember) -> &'static str {
    match scope {
        Remember::Never => "once",
        Remember::Session => "session",
        Remember::Always => "always",
    }
}

/// A form in which an answer is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum View {
    /// What a model reads.
    Model,
    /// What a completed item shows.
    Event,
}

impl View {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Model, Self::Event];

    /// Returns its name as it is told.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Event => "event",
        }
    }
}

/// Tells that a view was cut to its bound.
pub fn cut(view: View) {
    trace!(name: CUT, target: TARGET, view = view.as_str());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_have_names_of_their_own() {
        let names: std::collections::BTreeSet<_> = Phase::ALL.iter().map(|phase| phase.as_str()).collect();
        assert_eq!(names.len(), Phase::ALL.len());
        assert!(Phase::ALL.is_sorted());
    }
}
