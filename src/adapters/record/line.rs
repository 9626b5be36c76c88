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
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::item::ItemError;
    use crate::model::name::ToolRef;
    use crate::model::outcome::{Failure, Stage};
    use crate::model::verdict::FaultCode;

    fn parse(line: &[u8]) -> Value {
        let text = std::str::from_utf8(line).unwrap();
        assert!(text.ends_with('\n') && text.matches('\n').count() == 1, "not one line: {text:?}");
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_line_says_what_happened_to_which_call_and_holds_no_arguments() {
        let line = item(&samples::completed(), false, MAX_LINE).unwrap();
        assert!(!String::from_utf8_lossy(&line).contains("hunter2"));
        let value = parse(&line);
        assert_eq!(value["type"], "completed");
        assert_eq!(value["time"], "1970-01-01T00:00:00Z");
        assert_eq!(
            (&value["call"], &value["server"], &value["tool"]),
            (&"call_1".into(), &"files".into(), &"write".into())
        );
        assert_eq!(value["status"], "failed");
        assert_eq!(value["outcome"]["failed"]["code"], "denied");
        assert_eq!((value["wall_ms"].as_f64(), value["call_ms"].as_f64()), (Some(12.345), Some(0.0)));
        assert!(value.get("arguments").is_none() && value.get("cut").is_none());
    }

    #[test]
    fn an_answer_is_in_no_line() {
        let Item::Completed(mut item) = samples::completed() else { panic!() };
        let result = serde_json::json!({ "content": [{ "type": "text", "text": "hunter3" }] });
        item.result = Some(Arc::new(result.as_object().unwrap().clone()));
        item.error = Some(ItemError { message: "hunter3".to_owned() });
        for include_arguments in [false, true] {
            let line = super::item(&Item::Completed(item.clone()), include_arguments, MAX_LINE).unwrap();
            assert!(!String::from_utf8_lossy(&line).contains("hunter3"));
        }
    }

    #[test]
    fn arguments_are_there_when_asked_for() {
        let value = parse(&item(&samples::started(), true, MAX_LINE).unwrap());
        assert_eq!(value["arguments"]["token"], "hunter2");
        assert_eq!((&value["type"], &value["status"]), (&"started".into(), &"inProgress".into()));
        assert!(value.get("outcome").is_none());
    }

    #[test]
    fn a_call_that_pollutes_memory_says_so_and_another_says_nothing() {
        let Item::Completed(mut item) = samples::completed() else { panic!() };
        assert!(parse(&super::item(&samples::completed(), true, MAX_LINE).unwrap()).get("pollutes_memory").is_none());
        item.pollutes_memory = true;
        assert_eq!(parse(&super::item(&Item::Completed(item), false, MAX_LINE).unwrap())["pollutes_memory"], true);
    }

    #[test]
    fn references_to_files_are_there_when_arguments_are_asked_for_and_only_then() {
        let Item::Completed(mut item) = samples::completed() else { panic!() };
        item.tool_input = serde_json::json!({ "file": { "download_url": "hush" } }).as_object().cloned().map(Arc::new);
        let item = Item::Completed(item);
        let value = parse(&super::item(&item, true, MAX_LINE).unwrap());
        assert_eq!(value["tool_input"]["file"]["download_url"], "hush");
        assert!(parse(&super::item(&item, false, MAX_LINE).unwrap()).get("tool_input").is_none());
    }

    #[test]
    fn a_line_that_is_too_long_loses_its_arguments_first_and_says_so() {
        let whole = item(&samples::started(), true, MAX_LINE).unwrap();
        let value = parse(&item(&samples::started(), true, whole.len() - 1).unwrap());
        assert!(value.get("arguments").is_none());
        assert_eq!(value["cut"], true);
        assert_eq!(value["caller"]["principal"], "me");
    }

    #[test]
    fn a_huge_failure_leaves_its_code() {
        let failure = Failure::new(Stage::Call, Code::Timeout, "x".repeat(2 * MAX_LINE));
        let line = item(&samples::failed(failure), false, MAX_LINE).unwrap();
        let value = parse(&line);
        assert!(line.len() < 1024);
        assert_eq!((&value["outcome"]["failed"], &value["cut"]), (&"timeout".into(), &true.into()));
    }

    #[test]
    fn the_words_of_a_protocol_error_are_an_answer() {
        let failure = Failure::new(Stage::Call, Code::ProtocolError, "hush").detail("hush");
        let failed = samples::failed(failure);
        let line = parse(&item(&failed, false, MAX_LINE).unwrap());
        assert!(!line.to_string().contains("hush") && line["outcome"]["failed"]["code"] == "protocol-error", "{line}");
        assert!(parse(&item(&failed, true, MAX_LINE).unwrap()).to_string().contains("hush"));
    }

    #[test]
    fn a_decision_says_who_spoke_and_holds_digests_only() {
        let value = parse(&decision(&samples::decision(), MAX_LINE).unwrap());
        assert_eq!((&value["type"], &value["call"]), (&"decision".into(), &"call_1".into()));
        assert_eq!(value["voices"][0]["source"]["layer"], "managed");
        assert_eq!(value["voices"][0]["verdict"]["deny"]["rule"], "no-writes");
        assert_eq!(value["arguments_digest"], Digest::of(b"arguments").to_string());
        assert_eq!(value["consent"]["by"], "refused");
    }

    #[test]
    fn the_page_about_records_names_every_field() {
        let page = include_str!("../../../docs/records.md");
        let lines = [
            decision(&samples::decision(), MAX_LINE).unwrap(),
            item(&samples::started(), true, MAX_LINE).unwrap(),
            item(&samples::completed(), true, MAX_LINE).unwrap(),
        ];
        for line in lines {
            let value = parse(&line);
            let voice = value["voices"][0].as_object().into_iter().flatten();
            for (key, _) in value.as_object().unwrap().iter().chain(voice) {
                assert!(page.contains(&format!("`{key}`")), "`{key}` is not explained");
            }
        }
        for code in [FaultCode::Trap, FaultCode::InputTooLarge, FaultCode::Circuit, FaultCode::Signature] {
            assert!(page.contains(&format!("`{code}`")), "`{code}` is not explained");
        }
    }

    #[test]
    fn r34_a_decision_too_long_loses_its_steps_and_beyond_that_is_refused() {
        let mut record = samples::decision();
        record.decision.steps = vec!["x".repeat(MAX_LINE)];
        let value = parse(&decision(&record, MAX_LINE).unwrap());
        assert_eq!((value.get("steps"), &value["cut"]), (None, &true.into()));
        record.caller.groups = vec!["x".repeat(MAX_LINE)];
        assert!(decision(&record, MAX_LINE).is_err());
    }

    #[test]
    fn the_longest_names_still_give_a_line() {
        let mut sample = samples::started();
        if let Item::Started(started) = &mut sample {
            started.call.tool =
                ToolRef::parse(&format!("{}/{}", "s".repeat(128), "\u{1}".repeat(1024))).unwrap().into();
            started.call.id = CallId::new(&"\u{1}".repeat(256)).unwrap();
            started.call.caller.groups = vec!["x".repeat(MAX_LINE)];
        }
        assert!(item(&sample, true, MAX_LINE).unwrap().len() < 16 * 1024);
    }
}
