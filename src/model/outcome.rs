//! How a call can end, in terms that the model, the item, the record and the exit code share.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::layer::LayerRef;
use super::name::Target;
use super::text;
use super::verdict::{RuleId, Source};

/// The step of a call that a failure belongs to (design page 3, "Order").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// The payload's kind.
    Payload,
    /// PreToolUse hooks.
    Hook,
    /// Parsing the arguments.
    Arguments,
    /// Waiting for the server and fixing the call.
    Prepare,
    /// The connector policy.
    Connector,
    /// Opening and uploading the files that its arguments name.
    Files,
    /// Deciding whether it may run.
    Approval,
    /// The revision check and the hand-over.
    Lease,
    /// The call itself.
    Call,
    /// Cleaning the answer.
    Sanitise,
    /// Writing the record.
    Record,
}

impl Stage {
    /// Returns the word as it is written everywhere.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Payload => "payload",
            Self::Hook => "hook",
            Self::Arguments => "arguments",
            Self::Prepare => "prepare",
            Self::Connector => "connector",
            Self::Files => "files",
            Self::Approval => "approval",
            Self::Lease => "lease",
            Self::Call => "call",
            Self::Sanitise => "sanitise",
            Self::Record => "record",
        }
    }
}

/// The stable code of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// Not a function call.
    UnsupportedPayload,
    /// A call with this id is open in the session.
    DuplicateId,
    /// The arguments are not an object of strict JSON within the limits.
    InvalidArguments,
    /// Unknown, hidden, or its server is not there.
    NotAvailable,
    /// The connector policy disabled it.
    Disabled,
    /// A component, the host's rules or a limit refused.
    Denied,
    /// A component failed, and its layer wants a refusal.
    ComponentFailed,
    /// `never` is set and somebody would have to agree.
    NeverAsks,
    /// Somebody would have to agree, and nobody could be asked.
    NobodyToAsk,
    /// Whoever was asked said no.
    Declined,
    /// A file that the arguments name could not be opened or uploaded; nothing was sent.
    UploadFailed,
    /// A `PreToolUse` hook blocked the call, or a `PostToolUse` hook its answer.
    HookBlocked,
    /// A `PermissionRequest` hook said no.
    HookDenied,
    /// A `PreToolUse` hook failed, and its layer wants a refusal; or two hooks contradict each other.
    HookFailed,
    /// The auto reviewer said no.
    ReviewDenied,
    /// The auto reviewer did not answer in time.
    ReviewTimedOut,
    /// The auto reviewer gave no answer that can be read, or the action could not be put to it whole.
    ReviewFailed,
    /// The auto reviewer has denied so much that the session's turn is over.
    Interrupted,
    /// The agreement was for one call, and another call has used it.
    GrantSpent,
    /// Nobody answered in time.
    AskExpired,
    /// The asking was cancelled by whoever was asked.
    AskCancelled,
    /// The catalog changed after the call was prepared.
    Stale,
    /// The policies kept changing while the call was decided.
    PoliciesUnstable,
    /// The decision could not be recorded.
    RecordFailed,
    /// What is kept between calls could not be read or written.
    StateFailed,
    /// The upstream answered with a protocol error.
    ProtocolError,
    /// The upstream did not answer in time.
    Timeout,
    /// The connection was lost after the hand-over: the call may have run.
    Ambiguous,
    /// The request could not be handed over; it was not sent.
    NotSent,
    /// The server asked what nobody may or can answer.
    QuestionRefused,
    /// The caller cancelled.
    Cancelled,
    /// The answer was withheld.
    Withheld,
    /// The tool says that it failed.
    ToolError,
    /// A defect of ours; the task that ran the call panicked.
    Internal,
}

impl Code {
    /// Returns the code as it is written everywhere.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnsupportedPayload => "unsupported-payload",
            Self::DuplicateId => "duplicate-id",
            Self::InvalidArguments => "invalid-arguments",
            Self::NotAvailable => "not-available",
            Self::Disabled => "disabled",
            Self::Denied => "denied",
            Self::ComponentFailed => "component-failed",
            Self::NeverAsks => "never-asks",
            Self::NobodyToAsk => "nobody-to-ask",
            Self::Declined => "declined",
            Self::UploadFailed => "upload-failed",
            Self::HookBlocked => "hook-blocked",
            Self::HookDenied => "hook-denied",
            Self::HookFailed => "hook-failed",
            Self::ReviewDenied => "review-denied",
            Self::ReviewTimedOut => "review-timed-out",
            Self::ReviewFailed => "review-failed",
            Self::Interrupted => "interrupted",
            Self::GrantSpent => "grant-spent",
            Self::AskExpired => "ask-expired",
            Self::AskCancelled => "ask-cancelled",
            Self::Stale => "stale",
            Self::PoliciesUnstable => "policies-unstable",
            Self::RecordFailed => "record-failed",
            Self::StateFailed => "state-failed",
            Self::ProtocolError => "protocol-error",
            Self::Timeout => "timeout",
            Self::Ambiguous => "ambiguous",
            Self::NotSent => "not-sent",
            Self::QuestionRefused => "question-refused",
            Self::Cancelled => "cancelled",
            Self::Withheld => "withheld",
            Self::ToolError => "tool-error",
            Self::Internal => "internal",
        }
    }
}

/// Who is behind a refusal: enough to find the rule, nothing that a guest wrote freely.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Origin {
    /// The layer.
    pub layer: LayerRef,
    /// The component; `host` for a rule of the host's own.
    pub component: String,
    /// The rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<RuleId>,
}

impl Origin {
    /// The origin of what a component, a hook or a reviewer said.
    #[must_use]
    pub fn of(source: &Source, rule: Option<RuleId>) -> Self {
        Self { layer: source.layer.clone(), component: source.component.to_string(), rule }
    }
}

/// Why a call gave no answer of its tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The step.
    pub stage: Stage,
    /// The stable code.
    pub code: Code,
    /// Who refused, for refusals: the first origin in order of trust.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// The sentence that the model reads. Holds no text of a component.
    pub message: String,
    /// What only people and records see: reasons, causes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

impl Failure {
    /// Makes a failure without origin and detail.
    #[must_use]
    pub fn new(stage: Stage, code: Code, message: impl Into<String>) -> Self {
        Self { stage, code, origin: None, message: message.into(), detail: None }
    }

    /// Adds the origin.
    #[must_use]
    pub fn by(mut self, origin: Origin) -> Self {
        self.origin = Some(origin);
        self
    }

    /// Adds the detail for people and records.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// The tool is unknown, hidden, or its server is not there: one text for all three (R25).
    #[must_use]
    pub fn not_available(tool: &Target) -> Self {
        let message = format!("MCP tool `{}` is not available to the model", text::shown(&tool.to_string(), 256));
        Self::new(Stage::Prepare, Code::NotAvailable, message)
    }

    /// The connector policy disabled the tool: the text for an unknown one (R25). `origin` and `why` say more to people,
    /// items and records; an answer does not have them ([`Failure::meta`]).
    #[must_use]
    pub fn disabled(tool: &Target, origin: Option<Origin>, why: &str) -> Self {
        let detail = format!("blocked by app configuration: {why}");
        let failure = Self { stage: Stage::Connector, code: Code::Disabled, origin, ..Self::not_available(tool) };
        failure.detail(detail)
    }

    /// The tool's definition was withheld, so this caller's list is without it. As with [`Failure::disabled`], the message and
    /// the answer's metadata are those of an unknown tool (R25), `why` is for people and records.
    #[must_use]
    pub fn hidden(tool: &Target, origin: Origin, why: &str) -> Self {
        let failure =
            Self { stage: Stage::Sanitise, code: Code::Disabled, origin: Some(origin), ..Self::not_available(tool) };
        failure.detail(format!("the tool's definition was withheld: {why}"))
    }

    /// The catalog changed between prepare and lease.
    #[must_use]
    pub fn stale(tool: &Target) -> Self {
        let tool = text::shown(&tool.to_string(), 256);
        let message = format!("tool call rejected because the catalog changed after {tool} was prepared");
        Self::new(Stage::Lease, Code::Stale, message)
    }

    /// Labels, history and counters could not be read or written. `why` is for people and records.
    #[must_use]
    pub fn state_failed(stage: Stage, why: impl std::fmt::Display) -> Self {
        let message = "what is kept between calls could not be read or written, so the call was refused";
        Self::new(stage, Code::StateFailed, message).detail(why.to_string())
    }

    /// Returns the `_meta` of the answer that stands for this failure: `portcullis/refusal` with stage, code, layer,
    /// component and rule. That of a disabled tool is that of an unknown one (R25).
    #[must_use]
    pub fn meta(&self) -> Map<String, Value> {
        let hidden = self.code == Code::Disabled;
        let (stage, code) = if hidden { (Stage::Prepare, Code::NotAvailable) } else { (self.stage, self.code) };
        let mut refusal = json!({ "stage": stage, "code": code });
        if hidden {
            return Map::from_iter([("portcullis/refusal".to_owned(), refusal)]);
        }
        if let (Some(origin), Value::Object(map)) = (&self.origin, &mut refusal) {
            map.insert("layer".to_owned(), json!(origin.layer));
            map.insert("component".to_owned(), json!(origin.component));
            map.insert("rule".to_owned(), json!(origin.rule));
        }
        Map::from_iter([("portcullis/refusal".to_owned(), refusal)])
    }
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The tool answered.
    Answered,
    /// The tool answered that it failed.
    ToolError,
    /// There is no answer of the tool.
    Failed(Failure),
}

/// The durations of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Durations {
    /// From the start of the pipeline to its end, people's time included.
    pub wall: Duration,
    /// From the hand-over to the end, people's time included; zero when nothing was handed over.
    pub call: Duration,
    /// How much of `wall` people took: who was asked whether it may run, and who filled in what its server asked. Several at
    /// once count once.
    pub people: Duration,
    /// How much of `call` people took.
    pub people_in_call: Duration,
}

impl Durations {
    /// Returns how long it took without people's time.
    #[must_use]
    pub fn wall_alone(&self) -> Duration {
        self.wall.saturating_sub(self.people)
    }

    /// Returns how long it took from the hand-over on, without people's time.
    #[must_use]
    pub fn call_alone(&self) -> Duration {
        self.call.saturating_sub(self.people_in_call)
    }
}
