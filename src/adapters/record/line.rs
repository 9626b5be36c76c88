//! Items and decisions as one line of JSON each.
//!
//! Every line has `type` (`started`, `completed`, `decision`, `observed`), `time`, `call`, `server` and `tool`, so that all lines of
//! one call are found by its id. Lines are bounded: what does not fit is left out and the line says `"cut":true`.
//! Arguments are left out unless asked for: they hold what users type and what tools are given, secrets included.

use std::borrow::Cow;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::model::app::ToolFacts;
use crate::model::arguments::Arguments;
use crate::model::caller::Caller;
use crate::model::cleaning::SanitiserVoice;
use crate::model::decision::{ConnectorVoice, Voice};
use crate::model::digest::Digest;
use crate::model::hook::HookVoice;
use crate::model::item::{CallInfo, Item, Status};
use crate::model::name::{CallId, RawToolName, ServerName};
use crate::model::outcome::{Code, Durations, Failure, Outcome};
use crate::model::review::ReviewVoice;
use crate::model::revision::{PolicySetDigest, Revision};
use crate::model::verdict::Folded;
use crate::ports::approval::Kind;
use crate::ports::recorder::{Consent, DecisionRecord, ObservedRecord, RecordedFile};

/// The longest line, its newline included, in bytes.
pub(super) const MAX_LINE: usize = 1024 * 1024;

/// What begins every line.
#[derive(Serialize)]
struct Head<'a> {
    r#type: &'static str,
    time: Timestamp,
    call: &'a CallId,
    /// None: the caller used a name that leads to no server.
    server: Option<&'a ServerName>,
    tool: &'a RawToolName,
}

#[derive(Serialize)]
struct ItemLine<'a> {
    #[serde(flatten)]
    head: Head<'a>,
    status: Status,
    #[serde(flatten)]
    end: Option<End<'a>>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    sanitisers: &'a [SanitiserVoice],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    hooks: &'a [HookVoice],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    reviews: &'a [ReviewVoice],
    #[serde(skip_serializing_if = "Option::is_none")]
    caller: Option<&'a Caller>,
    #[serde(flatten)]
    facts: Option<&'a ToolFacts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<Option<&'a Map<String, Value>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_input: Option<&'a Map<String, Value>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pollutes_memory: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cut: bool,
}

/// How a call ended.
#[derive(Serialize)]
struct End<'a> {
    outcome: Ending<'a>,
    wall_ms: f64,
    call_ms: f64,
    people_ms: f64,
    people_in_call_ms: f64,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Ending<'a> {
    Whole(&'a Outcome),
    /// Of a line that had to be cut: the code alone.
    Code {
        failed: Code,
    },
}

#[derive(Serialize)]
struct ObservedLine<'a> {
    #[serde(flatten)]
    head: Head<'a>,
    kind: Kind,
    policy_set: PolicySetDigest,
    arguments_digest: Digest,
    voices: &'a [Voice],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    connectors: &'a [ConnectorVoice],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    sanitisers: &'a [SanitiserVoice],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    hooks: &'a [HookVoice],
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cut: bool,
}

#[derive(Serialize)]
struct DecisionLine<'a> {
    #[serde(flatten)]
    head: Head<'a>,
    kind: Kind,
    caller: &'a Caller,
    revision: Revision,
    policy_set: PolicySetDigest,
    engine: Digest,
    definition: Digest,
    arguments_digest: Digest,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    files: &'a [RecordedFile],
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    uploading: bool,
    now_ms: u64,
    folded: &'a Folded,
    consent: &'a Consent,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    hooks: &'a [HookVoice],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    reviews: &'a [ReviewVoice],
    voices: &'a [Voice],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    connectors: &'a [ConnectorVoice],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    steps: &'a [String],
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cut: bool,
}

/// Returns the line of an item, its newline included.
///
/// # Errors
/// When there is no line within the limit, which bounded names and ids exclude.
pub(super) fn item(item: &Item, include_arguments: bool, max: usize) -> std::io::Result<Vec<u8>> {
    let (r#type, info, status, time, end) = match item {
        Item::Started(started) => ("started", &started.call, started.status, started.started_at, None),
        Item::Completed(completed) => {
            let end = (told(&completed.outcome, include_arguments), completed.durations);
            ("completed", &completed.call, completed.status, completed.completed_at, Some(end))
        }
    };
    let (sanitisers, hooks, reviews, tool_input) = match item {
        Item::Started(_) => (&[][..], &[][..], &[][..], None),
        Item::Completed(completed) => {
            let (hooks, reviews) = (completed.hooks.as_slice(), completed.reviews.as_slice());
            (completed.sanitisers.as_slice(), hooks, reviews, completed.tool_input.as_deref())
        }
    };
    // Named one by one: a field that is added must be decided on here, not leak into logs.
    let CallInfo { id, tool, caller, arguments, facts } = info;
    let line = |arguments: Option<&'_ Arguments>, cut: bool, bare: bool| {
        let line = ItemLine {
            head: Head { r#type, time, call: id, server: tool.server.as_ref(), tool: &tool.tool },
            status,
            end: end.as_ref().map(|(outcome, durations)| End::of(outcome, *durations, bare)),
            sanitisers: if bare { &[] } else { sanitisers },
            hooks: if bare { &[] } else { hooks },
            reviews: if bare { &[] } else { reviews },
            caller: (!bare).then_some(caller),
            facts: (!bare).then_some(facts),
            arguments: arguments.map(Arguments::object),
            tool_input: arguments.and(tool_input),
            pollutes_memory: matches!(item, Item::Completed(completed) if completed.pollutes_memory),
            cut,
        };
        encode(&line, max)
    };
    if include_arguments && let Some(whole) = line(Some(arguments), false, false)? {
        return Ok(whole);
    }
    match line(None, include_arguments, false)? {
        Some(without_arguments) => Ok(without_arguments),
        None => line(None, true, true)?.ok_or_else(too_long),
    }
}

/// Returns how a call ended without the words of its server: they are an answer.
fn told(outcome: &Outcome, include_answers: bool) -> Cow<'_, Outcome> {
    match outcome {
        Outcome::Failed(failure) if failure.code == Code::ProtocolError && !include_answers => {
            let message = "the server answered with a protocol error; its words are not recorded".to_owned();
            Cow::Owned(Outcome::Failed(Failure { message, detail: None, ..failure.clone() }))
        }
        Outcome::Failed(_) | Outcome::Answered | Outcome::ToolError => Cow::Borrowed(outcome),
    }
}

/// Returns the line of a decision, its newline included. Too long, it goes without the fold's steps, which say in
/// sentences what the rest says in values.
///
/// # Errors
/// When it is too long even so: a decision is kept whole or refused.
pub(super) fn decision(record: &DecisionRecord, max: usize) -> std::io::Result<Vec<u8>> {
    let line = |steps, cut| {
        let line = DecisionLine {
            head: Head {
                r#type: "decision",
                time: record.at,
                call: &record.call,
                server: Some(&record.tool.server),
                tool: &record.tool.tool,
            },
            kind: record.kind,
            caller: &record.caller,
            revision: record.revision,
            policy_set: record.policy_set,
            engine: record.engine,
            definition: record.definition,
            arguments_digest: record.arguments,
            files: &record.files,
            uploading: record.uploading,
            now_ms: record.decision.now_ms,
            folded: &record.decision.folded,
            consent: &record.consent,
            hooks: &record.hooks,
            reviews: &record.reviews,
            voices: &record.decision.voices,
            connectors: &record.decision.connectors,
            steps,
            cut,
        };
        encode(&line, max)
    };
    match line(&record.decision.steps, false)? {
        Some(whole) => Ok(whole),
        None => line(&[], true)?.ok_or_else(too_long),
    }
}

/// Returns the line of what observed components said, its newline included. Too long, it says so and names nobody.
///
/// # Errors
/// When there is no line within the limit, which bounded names and ids exclude.
pub(super) fn observed(record: &ObservedRecord, max: usize) -> std::io::Result<Vec<u8>> {
    let line = |voices, connectors, sanitisers, cut| {
        let line = ObservedLine {
            head: Head {
                r#type: "observed",
                time: record.at,
                call: &record.call,
                server: Some(&record.tool.server),
                tool: &record.tool.tool,
            },
            kind: record.kind,
            policy_set: record.policy_set,
            arguments_digest: record.arguments,
            voices,
            connectors,
            sanitisers,
            hooks: &record.hooks,
            cut,
        };
        encode(&line, max)
    };
    match line(&record.voices, &record.connectors, &record.sanitisers, false)? {
        Some(whole) => Ok(whole),
        None => line(&[], &[], &[], true)?.ok_or_else(too_long),
    }
}

impl<'a> End<'a> {
    fn of(outcome: &'a Outcome, durations: Durations, bare: bool) -> Self {
        let outcome = match outcome {
            Outcome::Failed(failure) if bare => Ending::Code { failed: failure.code },
            Outcome::Failed(_) | Outcome::Answered | Outcome::ToolError => Ending::Whole(outcome),
        };
        let Durations { wall, call, people, people_in_call } = durations;
        let [wall_ms, call_ms, people_ms, people_in_call_ms] = [wall, call, people, people_in_call].map(milliseconds);
        Self { outcome, wall_ms, call_ms, people_ms, people_in_call_ms }
    }
}

/// Milliseconds with three decimals.
fn milliseconds(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1000.0
}

/// Returns the line, or `None` when it is longer than `max`.
fn encode(line: &impl Serialize, max: usize) -> std::io::Result<Option<Vec<u8>>> {
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
    Ok((bytes.len() <= max).then_some(bytes))
}

fn too_long() -> std::io::Error {
    std::io::Error::other("the line is longer than the limit")
}

/// Values that the tests of this folder share.
#[cfg(test)]
pub(super) mod samples {
    use super::*;
    use crate::model::decision::{Decision, Spoken};
    use crate::model::item::{CompletedItem, StartedItem};
    use crate::model::layer::{LayerKind, LayerRef};
    use crate::model::name::ToolRef;
    use crate::model::outcome::{Failure, Stage};
    use crate::model::verdict::{Reason, RuleId, Source, Verdict};

    fn info() -> CallInfo {
        let tool = ToolRef::parse("files/write").unwrap();
        let arguments = Arguments::parse(r#"{"path":"a","token":"hunter2"}"#).unwrap();
        CallInfo::unknown(CallId::new("call_1").unwrap(), tool.into(), Caller::local("me"), arguments)
    }

    pub(in crate::adapters::record) fn started() -> Item {
        Item::Started(StartedItem { call: info(), status: Status::InProgress, started_at: Timestamp::UNIX_EPOCH })
    }

    pub(in crate::adapters::record) fn completed() -> Item {
        failed(Failure::new(Stage::Approval, Code::Denied, "the call was refused"))
    }

    pub(in crate::adapters::record) fn failed(failure: Failure) -> Item {
        let outcome = Outcome::Failed(failure);
        Item::Completed(CompletedItem {
            call: info(),
            status: CompletedItem::status_of(&outcome),
            outcome,
            completed_at: Timestamp::UNIX_EPOCH,
            durations: Durations { wall: Duration::from_micros(12_345), ..Durations::default() },
            tool_input: None,
            result: None,
            error: None,
            sanitisers: Vec::new(),
            reviews: Vec::new(),
            hooks: Vec::new(),
            pollutes_memory: false,
        })
    }

    pub(in crate::adapters::record) fn decision() -> DecisionRecord {
        let reason = Reason { rule: RuleId::parse("no-writes"), text: "writes are off".to_owned() };
        let source = Source { layer: LayerRef::new(LayerKind::Managed), component: "guard".into(), digest: None };
        let voice = Voice {
            source,
            spoken: Spoken::Verdict(Verdict::Deny(reason)),
            posture: None,
            observed: false,
            fuel: 7,
            time: Duration::ZERO,
            heard: None,
        };
        DecisionRecord {
            at: Timestamp::UNIX_EPOCH,
            call: CallId::new("call_1").unwrap(),
            kind: Kind::Tool,
            tool: ToolRef::parse("files/write").unwrap(),
            caller: Caller::local("me"),
            revision: Revision::FIRST.next(),
            policy_set: PolicySetDigest(Digest::of(b"set")),
            engine: Digest::of(b"engine"),
            definition: Digest::of(b"definition"),
            arguments: Digest::of(b"arguments"),
            files: Vec::new(),
            uploading: false,
            decision: Decision {
                connectors: Vec::new(),
                voices: vec![voice],
                folded: Folded::Run { lifted_by: None },
                steps: vec!["managed/guard refuses".to_owned()],
                now_ms: 0,
            },
            consent: Consent::Refused,
            hooks: Vec::new(),
            reviews: Vec::new(),
            inputs: None,
        }
    }
}

#[cfg(test)]
#[path = "line_tests.rs"]
mod tests;
