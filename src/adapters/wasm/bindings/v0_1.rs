//! Track 0.1 of `portcullis:policy`: generated types and traits, and what lifts them to our own.
//!
//! Nothing is decided here. What a guest may learn is in `state` and `told`, what an answer means in `answer`.

use wasmtime::component::{HasSelf, InstancePre, Linker, Resource};
use wasmtime::{Error, Store};

use self::policy::exports::portcullis::policy::approval;
use self::policy::portcullis::policy::{host, types};
use self::sanitiser::exports::portcullis::policy::sanitiser as sanitising;
use super::Track;
use crate::adapters::wasm::hooks::{
    Exports, Hooks, RawApproval, RawConnector, RawOutcome, RawReason, RawSanitised, RawVerdict, Reusable,
};
use crate::adapters::wasm::state::State;
use crate::model::caller::Caller as OurCaller;
use crate::model::posture::{ApprovalMode, ApprovalPolicy, Profile};
use crate::model::tool;
use crate::model::verdict::{Label, Remember, Reviewers};
use crate::ports::approval::{Kind, PastState};
use crate::ports::sanitiser::{Class, Edit, Place};

/// The call that a component was asked about. A component holds a borrowed handle to it; the facts are in the store.
#[allow(unreachable_pub, reason = "generated code re-exports it; the module is private")]
pub struct Call;

/// A tool of an App connector that a component was asked about.
#[allow(unreachable_pub, reason = "generated code re-exports it; the module is private")]
pub struct AppTool;

/// An answer of an upstream that a component was asked about.
#[allow(unreachable_pub, reason = "generated code re-exports it; the module is private")]
pub struct Output;

#[allow(missing_docs, unreachable_pub, dead_code, unused_qualifications, reason = "generated code")]
#[allow(clippy::all, clippy::allow_attributes_without_reason, reason = "generated code")]
mod policy {
    wasmtime::component::bindgen!({
        path: "wit/v0.1",
        world: "approval-policy",
        imports: { default: trappable },
        with: {
            "portcullis:policy/types.call": super::Call,
            "portcullis:policy/types.app-tool": super::AppTool,
            "portcullis:policy/types.output": super::Output,
        },
    });
}

#[allow(missing_docs, unreachable_pub, dead_code, unused_qualifications, reason = "generated code")]
#[allow(clippy::all, clippy::allow_attributes_without_reason, reason = "generated code")]
mod connector {
    wasmtime::component::bindgen!({
        path: "wit/v0.1",
        world: "connector-policy",
        imports: { default: trappable },
        with: {
            "portcullis:policy/types": super::policy::portcullis::policy::types,
            "portcullis:policy/host": super::policy::portcullis::policy::host,
        },
    });
}

#[allow(missing_docs, unreachable_pub, dead_code, unused_qualifications, reason = "generated code")]
#[allow(clippy::all, clippy::allow_attributes_without_reason, reason = "generated code")]
mod sanitiser {
    wasmtime::component::bindgen!({
        path: "wit/v0.1",
        world: "output-sanitiser",
        imports: { default: trappable },
        with: {
            "portcullis:policy/types": super::policy::portcullis::policy::types,
            "portcullis:policy/host": super::policy::portcullis::policy::host,
        },
    });
}

#[allow(missing_docs, unreachable_pub, dead_code, unused_qualifications, reason = "generated code")]
#[allow(clippy::all, clippy::allow_attributes_without_reason, reason = "generated code")]
mod settings {
    wasmtime::component::bindgen!({
        path: "wit/v0.1",
        world: "with-settings",
        imports: { default: trappable },
        with: {
            "portcullis:policy/host": super::policy::portcullis::policy::host,
        },
    });
}

/// The track.
pub(super) const TRACK: Track = Track { name: "0.1", patch: 0, offered: &["host", "types"], link, hooks };

fn link(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    types::add_to_linker::<State, HasSelf<State>>(linker, |state| state)?;
    host::add_to_linker::<State, HasSelf<State>>(linker, |state| state)
}

/// A component of this track: a typed way in for each decision point that it exports.
struct Component {
    linked: InstancePre<State>,
    approval: Option<policy::ApprovalPolicyPre<State>>,
    connector: Option<connector::ConnectorPolicyPre<State>>,
    sanitiser: Option<sanitiser::OutputSanitiserPre<State>>,
    settings: Option<settings::WithSettingsPre<State>>,
}

fn hooks(linked: &InstancePre<State>, exports: Exports) -> wasmtime::Result<Box<dyn Hooks>> {
    let pre = || linked.clone();
    Ok(Box::new(Component {
        approval: exports.approval.then(|| policy::ApprovalPolicyPre::new(pre())).transpose()?,
        connector: exports.connector.then(|| connector::ConnectorPolicyPre::new(pre())).transpose()?,
        sanitiser: exports.sanitiser.then(|| sanitiser::OutputSanitiserPre::new(pre())).transpose()?,
        settings: exports.settings.then(|| settings::WithSettingsPre::new(pre())).transpose()?,
        linked: pre(),
    }))
}

fn not_exported(what: &str) -> Error {
    Error::msg(format!("it does not export `{what}`"))
}

impl Hooks for Component {
    fn exports(&self) -> Exports {
        Exports {
            approval: self.approval.is_some(),
            connector: self.connector.is_some(),
            sanitiser: self.sanitiser.is_some(),
            settings: self.settings.is_some(),
        }
    }

    fn start(&self, store: &mut Store<State>) -> wasmtime::Result<()> {
        self.linked.instantiate(store).map(drop)
    }

    fn approve(&self, store: &mut Store<State>) -> wasmtime::Result<RawApproval> {
        let policy = self.approval.as_ref().ok_or_else(|| not_exported("approval"))?.instantiate(&mut *store)?;
        let decision = policy.portcullis_policy_approval().call_evaluate(&mut *store, Resource::new_borrow(0))?;
        Ok(approval_of(decision))
    }

    fn connect(&self, store: &mut Store<State>) -> wasmtime::Result<RawConnector> {
        let policy = self.connector.as_ref().ok_or_else(|| not_exported("connector"))?.instantiate(&mut *store)?;
        let said = policy.portcullis_policy_connector().call_evaluate(&mut *store, Resource::new_borrow(0))?;
        Ok(RawConnector { rule: said.rule, enabled: said.enabled, mode: said.mode.map(mode_of) })
    }

    fn sanitise(&self, store: &mut Store<State>) -> wasmtime::Result<RawSanitised> {
        let policy = self.sanitiser.as_ref().ok_or_else(|| not_exported("sanitiser"))?.instantiate(&mut *store)?;
        let said = policy.portcullis_policy_sanitiser().call_sanitise(&mut *store, Resource::new_borrow(0))?;
        let outcome = match said.outcome {
            sanitising::Outcome::Pass => RawOutcome::Pass,
            sanitising::Outcome::Edit(edits) => RawOutcome::Edit(edits.into_iter().map(edit_of).collect()),
            sanitising::Outcome::Withhold(text) => RawOutcome::Withhold(text),
        };
        Ok(RawSanitised { rule: said.rule, outcome, labels: said.labels })
    }

    fn schema(&self, store: &mut Store<State>) -> wasmtime::Result<String> {
        let described = self.settings.as_ref().ok_or_else(|| not_exported("settings"))?.instantiate(&mut *store)?;
        described.portcullis_policy_settings().call_schema(&mut *store)
    }

    fn validate(&self, store: &mut Store<State>, text: &str) -> wasmtime::Result<Vec<(String, String)>> {
        let described = self.settings.as_ref().ok_or_else(|| not_exported("settings"))?.instantiate(&mut *store)?;
        let problems = described.portcullis_policy_settings().call_validate(&mut *store, text)?;
        Ok(problems.into_iter().map(|problem| (problem.pointer, problem.message)).collect())
    }

    fn reusable(&self, store: &mut Store<State>) -> wasmtime::Result<Box<dyn Reusable>> {
        let policy = self.approval.as_ref().ok_or_else(|| not_exported("approval"))?.instantiate(store)?;
        Ok(Box::new(policy))
    }
}

impl Reusable for policy::ApprovalPolicy {
    fn approve(&self, store: &mut Store<State>) -> wasmtime::Result<RawApproval> {
        self.portcullis_policy_approval().call_evaluate(store, Resource::new_borrow(0)).map(approval_of)
    }
}

fn approval_of(decision: approval::Decision) -> RawApproval {
    let verdict = match decision.verdict {
        approval::Verdict::Abstain => RawVerdict::Abstain,
        approval::Verdict::Allow(why) => RawVerdict::Allow(reason_of(why)),
        approval::Verdict::Deny(why) => RawVerdict::Deny(reason_of(why)),
        approval::Verdict::Ask(question) => RawVerdict::Ask {
            reason: reason_of(question.reason),
            remember: match question.remember {
                approval::Remember::Never => Remember::Never,
                approval::Remember::Session => Remember::Session,
                approval::Remember::Always => Remember::Always,
            },
            bind_arguments: question.bind_arguments,
            reviewers: Reviewers { person: question.reviewers.person, auto: question.reviewers.auto },
        },
    };
    RawApproval { verdict, labels: decision.labels }
}

fn reason_of(reason: approval::Reason) -> RawReason {
    RawReason { rule: reason.rule, text: reason.text }
}

fn edit_of(edit: sanitising::Edit) -> Edit {
    match edit {
        sanitising::Edit::Replace(span) => Edit::Replace {
            target: span.target,
            start: span.start,
            end: span.end,
            class: match span.class {
                sanitising::Class::Secret => Class::Secret,
                sanitising::Class::Personal => Class::Personal,
                sanitising::Class::Instruction => Class::Instruction,
                sanitising::Class::Address => Class::Address,
                sanitising::Class::Other => Class::Other,
            },
        },
        sanitising::Edit::Drop(target) => Edit::Drop { target },
        sanitising::Edit::Truncate((target, keep)) => Edit::Truncate { target, keep },
    }
}

fn mode_of(mode: types::Mode) -> ApprovalMode {
    match mode {
        types::Mode::Approve => ApprovalMode::Approve,
        types::Mode::Auto => ApprovalMode::Auto,
        types::Mode::Writes => ApprovalMode::Writes,
        types::Mode::Prompt => ApprovalMode::Prompt,
    }
}

fn kind(kind: Kind) -> types::Kind {
    match kind {
        Kind::Tool => types::Kind::Tool,
        Kind::Read => types::Kind::Read,
        Kind::Prompt => types::Kind::Prompt,
        Kind::Completion => types::Kind::Completion,
        Kind::Reply => types::Kind::Reply,
    }
}

fn hints(hints: tool::Hints) -> types::Hints {
    types::Hints {
        read_only: hints.read_only,
        destructive: hints.destructive,
        idempotent: hints.idempotent,
        open_world: hints.open_world,
    }
}

fn caller(caller: OurCaller) -> types::Caller {
    types::Caller {
        tenant: caller.tenant.as_str().to_owned(),
        principal: Some(caller.principal.as_str().to_owned()),
        groups: caller.groups,
        session: caller.session.as_str().to_owned(),
    }
}

fn connector(connector: tool::Connector) -> types::Connector {
    types::Connector { id: connector.id, name: connector.name, account: connector.account }
}

fn labels(labels: Vec<Label>) -> Vec<types::Label> {
    let label = |label: Label| types::Label {
        name: label.name,
        layer: label.source.layer.to_string(),
        component: label.source.component.to_string(),
    };
    labels.into_iter().map(label).collect()
}

impl host::Host for State {
    fn log(&mut self, level: host::Level, message: String) -> wasmtime::Result<()> {
        let level = match level {
            host::Level::Debug => "debug",
            host::Level::Info => "info",
            host::Level::Warn => "warn",
        };
        self.host_log(level, &message)
    }

    fn settings(&mut self) -> wasmtime::Result<String> {
        self.host_settings()
    }

    fn setting(&mut self, pointer: String) -> wasmtime::Result<Option<String>> {
        self.host_setting(&pointer)
    }

    fn now_ms(&mut self) -> wasmtime::Result<u64> {
        self.host_now_ms()
    }

    fn data(&mut self, path: String) -> wasmtime::Result<Result<Vec<u8>, String>> {
        self.host_data(&path)
    }

    fn count(&mut self, key: String, window_ms: u64) -> wasmtime::Result<u64> {
        self.host_count(&key, window_ms)
    }
}

impl types::Host for State {}

impl types::HostCall for State {
    fn kind(&mut self, _: Resource<Call>) -> wasmtime::Result<types::Kind> {
        self.call_kind().map(kind)
    }

    fn server(&mut self, _: Resource<Call>) -> wasmtime::Result<String> {
        self.call_server()
    }

    fn identity(&mut self, _: Resource<Call>) -> wasmtime::Result<String> {
        self.call_identity()
    }

    fn name(&mut self, _: Resource<Call>) -> wasmtime::Result<String> {
        self.call_name()
    }

    fn definition(&mut self, _: Resource<Call>) -> wasmtime::Result<String> {
        self.call_definition()
    }

    fn hints(&mut self, _: Resource<Call>) -> wasmtime::Result<types::Hints> {
        self.call_hints().map(hints)
    }

    fn caller(&mut self, _: Resource<Call>) -> wasmtime::Result<types::Caller> {
        self.call_caller().map(caller)
    }

    fn connector(&mut self, _: Resource<Call>) -> wasmtime::Result<Option<types::Connector>> {
        Ok(self.call_connector()?.map(connector))
    }

    fn posture(&mut self, _: Resource<Call>) -> wasmtime::Result<types::Posture> {
        let posture = self.call_posture()?;
        let mode = match posture.mode {
            ApprovalMode::Approve => types::Mode::Approve,
            ApprovalMode::Auto => types::Mode::Auto,
            ApprovalMode::Writes => types::Mode::Writes,
            ApprovalMode::Prompt => types::Mode::Prompt,
        };
        let approval_policy = match posture.policy {
            ApprovalPolicy::Untrusted => "untrusted",
            ApprovalPolicy::OnRequest => "on-request",
            ApprovalPolicy::Granular => "granular",
            ApprovalPolicy::Never => "never",
        };
        let profile = match posture.profile {
            Profile::ReadOnly => "read-only",
            Profile::Workspace => "workspace",
            Profile::Full => "full",
        };
        Ok(types::Posture {
            mode,
            approval_policy: approval_policy.to_owned(),
            profile: profile.to_owned(),
            full_write: posture.profile.is_full_write(),
            strict_review: posture.strict_review,
        })
    }

    fn argument(&mut self, _: Resource<Call>, pointer: String) -> wasmtime::Result<Option<String>> {
        self.call_argument(&pointer)
    }

    fn argument_text(&mut self, _: Resource<Call>, pointer: String) -> wasmtime::Result<Option<String>> {
        self.call_argument_text(&pointer)
    }

    fn argument_texts(&mut self, _: Resource<Call>, glob: String) -> wasmtime::Result<Vec<types::LocatedText>> {
        let found = self.call_argument_texts(&glob)?;
        Ok(found.into_iter().map(|at| types::LocatedText { pointer: at.pointer, text: at.text }).collect())
    }

    fn arguments(&mut self, _: Resource<Call>) -> wasmtime::Result<String> {
        self.call_arguments()
    }

    fn history(&mut self, _: Resource<Call>, limit: u32) -> wasmtime::Result<Vec<types::PastCall>> {
        let past = self.call_history(limit)?.into_iter().map(|call| types::PastCall {
            kind: kind(call.kind),
            server: call.tool.server.as_str().to_owned(),
            name: call.tool.tool.as_str().to_owned(),
            state: match call.state {
                PastState::Open => types::CallState::Open,
                PastState::Ran => types::CallState::Ran,
                PastState::Refused => types::CallState::Refused,
            },
        });
        Ok(past.collect())
    }

    fn labels(&mut self, _: Resource<Call>) -> wasmtime::Result<Vec<types::Label>> {
        self.call_labels().map(labels)
    }

    fn drop(&mut self, _: Resource<Call>) -> wasmtime::Result<()> {
        Ok(())
    }
}

impl types::HostAppTool for State {
    fn connector(&mut self, _: Resource<AppTool>) -> wasmtime::Result<Option<types::Connector>> {
        Ok(self.tool_connector()?.map(connector))
    }

    fn name(&mut self, _: Resource<AppTool>) -> wasmtime::Result<String> {
        self.tool_name()
    }

    fn title(&mut self, _: Resource<AppTool>) -> wasmtime::Result<Option<String>> {
        self.tool_title()
    }

    fn hints(&mut self, _: Resource<AppTool>) -> wasmtime::Result<types::Hints> {
        self.tool_hints().map(hints)
    }

    fn caller(&mut self, _: Resource<AppTool>) -> wasmtime::Result<types::Caller> {
        self.tool_caller().map(caller)
    }

    fn drop(&mut self, _: Resource<AppTool>) -> wasmtime::Result<()> {
        Ok(())
    }
}

impl types::HostOutput for State {
    fn kind(&mut self, _: Resource<Output>) -> wasmtime::Result<types::Kind> {
        self.output_kind().map(kind)
    }

    fn server(&mut self, _: Resource<Output>) -> wasmtime::Result<String> {
        Ok(self.output_tool()?.server.as_str().to_owned())
    }

    fn name(&mut self, _: Resource<Output>) -> wasmtime::Result<String> {
        Ok(self.output_tool()?.tool.as_str().to_owned())
    }

    fn caller(&mut self, _: Resource<Output>) -> wasmtime::Result<types::Caller> {
        self.output_caller().map(caller)
    }

    fn is_error(&mut self, _: Resource<Output>) -> wasmtime::Result<bool> {
        self.output_is_error()
    }

    fn targets(&mut self, _: Resource<Output>) -> wasmtime::Result<u32> {
        self.output_targets()
    }

    fn target(&mut self, _: Resource<Output>, index: u32) -> wasmtime::Result<Option<types::Target>> {
        Ok(self.output_target(index)?.map(|target| types::Target {
            place: match target.place {
                Place::Text => types::Place::Text,
                Place::Structured => types::Place::Structured,
                Place::Embedded => types::Place::Embedded,
                Place::Link => types::Place::Link,
                Place::Error => types::Place::Error,
                Place::Metadata => types::Place::Metadata,
                Place::Progress => types::Place::Progress,
                Place::Log => types::Place::Log,
                Place::Description => types::Place::Description,
            },
            bytes: u32::try_from(target.text.len()).unwrap_or(u32::MAX),
            pointer: target.pointer,
        }))
    }

    fn text(&mut self, _: Resource<Output>, index: u32) -> wasmtime::Result<Option<String>> {
        self.output_text(index)
    }

    fn find(&mut self, _: Resource<Output>, index: u32, patterns: Vec<String>) -> wasmtime::Result<Vec<types::Span>> {
        let spans = self.output_find(index, &patterns)?.into_iter();
        Ok(spans.map(|span| types::Span { pattern: span.pattern, start: span.start, end: span.end }).collect())
    }

    fn labels(&mut self, _: Resource<Output>) -> wasmtime::Result<Vec<types::Label>> {
        self.output_labels().map(labels)
    }

    fn drop(&mut self, _: Resource<Output>) -> wasmtime::Result<()> {
        Ok(())
    }
}
