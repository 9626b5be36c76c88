//! What a component may ask of its host, and what the host answers.
//!
//! Every answer comes from values that were captured before the decision. A single read is at most 1 MiB (R41). The work of
//! the host counts: each call and each byte, against an allowance of the size of the component's fuel. What needs a grant
//! that nobody gave is a fault when it is called, never an empty answer.

use std::sync::Arc;

use globset::GlobBuilder;
use serde_json::Value;
use wasmtime::Error;
use wasmtime::component::{HasSelf, Linker, Resource};

use super::bindings::v0_1::{AppTool, ApprovalPolicy, Call, Output, host, types};
use super::limits::{Caps, Limits, MAX_READ};
use super::settings::{Settings, sorted_json};
use crate::model::json::push_pointer;
use crate::model::posture::{ApprovalMode, ApprovalPolicy as AskPolicy, Profile};
use crate::model::text::shown;
use crate::model::verdict::{Fault, FaultCode};
use crate::ports::approval::{CallFacts, Kind, LogLine};

/// Lines kept of one evaluation.
const MAX_LOG_LINES: usize = 32;
/// Characters kept of one line.
const MAX_LOG_LINE: usize = 1024;
/// What a call of the host costs by itself, in fuel.
const CALL_COST: u64 = 100;
/// The longest glob, in bytes.
const MAX_GLOB: usize = 256;
/// The most texts that one glob may find: lists of small records are the dear shape.
const MAX_TEXTS: usize = 10_000;

/// What one evaluation knows and has used. Lives as long as its store: for one call.
pub(super) struct State {
    facts: Option<Arc<CallFacts>>,
    settings: Arc<Settings>,
    pub(super) caps: Caps,
    pub(super) log: Vec<LogLine>,
    allowance: u64,
    pub(super) spent: u64,
}

/// Links what track 0.1 offers. No WASI, nothing else.
pub(super) fn build(engine: &wasmtime::Engine) -> wasmtime::Result<Linker<State>> {
    let mut linker = Linker::new(engine);
    ApprovalPolicy::add_to_linker::<State, HasSelf<State>>(&mut linker, |state| state)?;
    Ok(linker)
}

impl State {
    /// `facts` are none in a dry run, which has no call.
    pub(super) fn new(facts: Option<Arc<CallFacts>>, settings: Arc<Settings>, limits: &Limits) -> Self {
        Self { facts, settings, caps: Caps::new(limits), log: Vec::new(), allowance: limits.fuel, spent: 0 }
    }

    fn facts(&mut self) -> wasmtime::Result<Arc<CallFacts>> {
        self.charge(0)?;
        self.facts.clone().ok_or_else(|| fault(FaultCode::Trap, "it asked about a call where there is none"))
    }

    fn charge(&mut self, bytes: usize) -> wasmtime::Result<()> {
        self.spent = self.spent.saturating_add(CALL_COST).saturating_add(bytes as u64);
        if self.spent > self.allowance {
            return Err(fault(FaultCode::Fuel, "it used up what the host does for it"));
        }
        Ok(())
    }

    /// Hands a text over, if it is not too long.
    fn give(&mut self, function: &str, text: String) -> wasmtime::Result<String> {
        if text.len() > MAX_READ {
            return Err(too_large(function));
        }
        self.charge(text.len())?;
        Ok(text)
    }

    fn json(&mut self, function: &str, value: &Value) -> wasmtime::Result<String> {
        let text = sorted_json(value).ok_or_else(|| too_large(function))?;
        self.give(function, text)
    }

    fn collect(&mut self, at: &mut String, value: &Value, search: &mut Search) -> wasmtime::Result<()> {
        // For every value: the glob reads the whole pointer, and no epoch interrupts the host.
        self.charge(at.len())?;
        match value {
            Value::String(text) if search.glob.is_match(&*at) => search.found(at, text),
            Value::Array(items) => items.iter().enumerate().try_for_each(|(i, item)| {
                let length = at.len();
                push_pointer(at, &i.to_string());
                self.collect(at, item, search)?;
                at.truncate(length);
                Ok(())
            }),
            Value::Object(members) => members.iter().try_for_each(|(key, member)| {
                let length = at.len();
                push_pointer(at, key);
                self.collect(at, member, search)?;
                at.truncate(length);
                Ok(())
            }),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
        }
    }
}

fn fault(code: FaultCode, detail: &str) -> Error {
    Error::new(Fault::new(code, detail))
}

fn too_large(function: &str) -> Error {
    fault(FaultCode::InputTooLarge, &format!("`{function}` would give it more than {MAX_READ} bytes at once"))
}

fn not_granted(function: &str) -> Error {
    fault(FaultCode::MissingImport, &format!("it called `{function}`, which is not granted"))
}

struct Search {
    glob: globset::GlobMatcher,
    texts: Vec<types::LocatedText>,
    bytes: usize,
}

impl Search {
    fn new(glob: &str) -> wasmtime::Result<Self> {
        let built = GlobBuilder::new(glob).literal_separator(true).build().ok().filter(|_| glob.len() <= MAX_GLOB);
        let Some(built) = built else {
            let detail = format!("it passed `{}` to `call.argument-texts`, which is no glob", shown(glob, 64));
            return Err(fault(FaultCode::OutputInvalid, &detail));
        };
        Ok(Self { glob: built.compile_matcher(), texts: Vec::new(), bytes: 0 })
    }

    fn found(&mut self, pointer: &str, text: &str) -> wasmtime::Result<()> {
        self.bytes = self.bytes.saturating_add(pointer.len() + text.len());
        if self.bytes > MAX_READ || self.texts.len() >= MAX_TEXTS {
            return Err(too_large("call.argument-texts"));
        }
        self.texts.push(types::LocatedText { pointer: pointer.to_owned(), text: text.to_owned() });
        Ok(())
    }
}

impl host::Host for State {
    fn log(&mut self, level: host::Level, message: String) -> wasmtime::Result<()> {
        self.charge(message.len())?;
        let level = match level {
            host::Level::Debug => "debug",
            host::Level::Info => "info",
            host::Level::Warn => "warn",
        };
        match self.log.len() {
            kept if kept < MAX_LOG_LINES => self.log.push(LogLine { level, text: shown(&message, MAX_LOG_LINE) }),
            MAX_LOG_LINES => {
                self.log.push(LogLine { level: "warn", text: "further lines were left out".to_owned() });
            }
            _ => {}
        }
        Ok(())
    }

    fn settings(&mut self) -> wasmtime::Result<String> {
        let settings = Arc::clone(&self.settings);
        self.give("host.settings", settings.text().to_owned())
    }

    fn setting(&mut self, pointer: String) -> wasmtime::Result<Option<String>> {
        self.charge(pointer.len())?;
        let found = self.settings.at(&pointer);
        found.map(|text| self.give("host.setting", text)).transpose()
    }

    fn now_ms(&mut self) -> wasmtime::Result<u64> {
        // A start function of the dry run has no call and no time.
        Ok(self.facts.as_ref().map_or(0, |facts| facts.now_ms))
    }

    fn data(&mut self, _: String) -> wasmtime::Result<Result<Vec<u8>, String>> {
        Err(not_granted("host.data"))
    }

    fn count(&mut self, _: String, _: u64) -> wasmtime::Result<u64> {
        Err(not_granted("host.count"))
    }
}

impl types::Host for State {}

impl types::HostCall for State {
    fn kind(&mut self, _: Resource<Call>) -> wasmtime::Result<types::Kind> {
        Ok(match self.facts()?.kind {
            Kind::Tool => types::Kind::Tool,
            Kind::Read => types::Kind::Read,
            Kind::Prompt => types::Kind::Prompt,
            Kind::Completion => types::Kind::Completion,
            Kind::Reply => types::Kind::Reply,
        })
    }

    fn server(&mut self, _: Resource<Call>) -> wasmtime::Result<String> {
        let facts = self.facts()?;
        self.give("call.server", facts.tool.server.as_str().to_owned())
    }

    fn identity(&mut self, _: Resource<Call>) -> wasmtime::Result<String> {
        Ok(self.facts()?.identity.0.to_string())
    }

    fn name(&mut self, _: Resource<Call>) -> wasmtime::Result<String> {
        let facts = self.facts()?;
        self.give("call.name", facts.tool.tool.as_str().to_owned())
    }

    fn definition(&mut self, _: Resource<Call>) -> wasmtime::Result<String> {
        Ok(self.facts()?.definition.to_string())
    }

    fn hints(&mut self, _: Resource<Call>) -> wasmtime::Result<types::Hints> {
        let hints = self.facts()?.hints;
        Ok(types::Hints {
            read_only: hints.read_only,
            destructive: hints.destructive,
            idempotent: hints.idempotent,
            open_world: hints.open_world,
        })
    }

    fn caller(&mut self, _: Resource<Call>) -> wasmtime::Result<types::Caller> {
        let facts = self.facts()?;
        let caller = &facts.caller;
        let groups: usize = caller.groups.iter().map(String::len).sum();
        if groups > MAX_READ {
            return Err(too_large("call.caller"));
        }
        self.charge(groups)?;
        Ok(types::Caller {
            tenant: caller.tenant.as_str().to_owned(),
            principal: Some(caller.principal.as_str().to_owned()),
            groups: caller.groups.clone(),
            session: caller.session.as_str().to_owned(),
        })
    }

    fn connector(&mut self, _: Resource<Call>) -> wasmtime::Result<Option<types::Connector>> {
        let facts = self.facts()?;
        let Some(connector) = &facts.connector else { return Ok(None) };
        Ok(Some(types::Connector {
            id: self.give("call.connector", connector.id.clone())?,
            name: connector.name.clone().map(|name| self.give("call.connector", name)).transpose()?,
            account: connector.account.clone().map(|account| self.give("call.connector", account)).transpose()?,
        }))
    }

    fn posture(&mut self, _: Resource<Call>) -> wasmtime::Result<types::Posture> {
        let posture = self.facts()?.posture;
        let mode = match posture.mode {
            ApprovalMode::Approve => types::Mode::Approve,
            ApprovalMode::Auto => types::Mode::Auto,
            ApprovalMode::Writes => types::Mode::Writes,
            ApprovalMode::Prompt => types::Mode::Prompt,
        };
        let approval_policy = match posture.policy {
            AskPolicy::Untrusted => "untrusted",
            AskPolicy::OnRequest => "on-request",
            AskPolicy::Granular => "granular",
            AskPolicy::Never => "never",
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
        if pointer.is_empty() {
            return self.all_arguments("call.argument").map(Some);
        }
        let facts = self.facts()?;
        facts.arguments.at(&pointer).map(|value| self.json("call.argument", value)).transpose()
    }

    fn argument_text(&mut self, _: Resource<Call>, pointer: String) -> wasmtime::Result<Option<String>> {
        let facts = self.facts()?;
        let Some(Value::String(text)) = facts.arguments.at(&pointer) else { return Ok(None) };
        if text.len() > MAX_READ {
            return Err(too_large("call.argument-text"));
        }
        self.give("call.argument-text", text.clone()).map(Some)
    }

    fn argument_texts(&mut self, _: Resource<Call>, glob: String) -> wasmtime::Result<Vec<types::LocatedText>> {
        let facts = self.facts()?;
        let mut search = Search::new(&glob)?;
        let mut at = String::new();
        for (key, value) in facts.arguments.object().into_iter().flatten() {
            at.clear();
            push_pointer(&mut at, key);
            self.collect(&mut at, value, &mut search)?;
        }
        self.charge(search.bytes)?;
        Ok(search.texts)
    }

    fn arguments(&mut self, _: Resource<Call>) -> wasmtime::Result<String> {
        self.all_arguments("call.arguments")
    }

    fn history(&mut self, _: Resource<Call>, _: u32) -> wasmtime::Result<Vec<types::PastCall>> {
        Err(not_granted("call.history"))
    }

    fn labels(&mut self, _: Resource<Call>) -> wasmtime::Result<Vec<types::Label>> {
        Err(not_granted("call.labels"))
    }

    fn drop(&mut self, _: Resource<Call>) -> wasmtime::Result<()> {
        Ok(())
    }
}

impl State {
    fn all_arguments(&mut self, function: &str) -> wasmtime::Result<String> {
        let facts = self.facts()?;
        // `Value` is rebuilt around the object: the text of none is that of an empty object.
        let Some(object) = facts.arguments.object() else { return Ok("{}".to_owned()) };
        if facts.arguments.canonical().len() > 2 * MAX_READ {
            return Err(too_large(function));
        }
        self.json(function, &Value::Object(object.clone()))
    }
}

/// Functions of resources that an approval component can name but never holds.
macro_rules! never_held {
    ($trait:ident, $resource:ident { $($function:ident($($argument:ty),*) -> $result:ty;)* }) => {
        impl types::$trait for State {
            $(fn $function(&mut self, _: Resource<$resource> $(, _: $argument)*) -> wasmtime::Result<$result> {
                Err(not_granted(concat!(stringify!($resource), ".", stringify!($function))))
            })*

            fn drop(&mut self, _: Resource<$resource>) -> wasmtime::Result<()> {
                Ok(())
            }
        }
    };
}

never_held!(HostAppTool, AppTool {
    connector() -> Option<types::Connector>;
    name() -> String;
    title() -> Option<String>;
    hints() -> types::Hints;
    caller() -> types::Caller;
});

never_held!(HostOutput, Output {
    kind() -> types::Kind;
    server() -> String;
    name() -> String;
    caller() -> types::Caller;
    is_error() -> bool;
    targets() -> u32;
    target(u32) -> Option<types::Target>;
    text(u32) -> Option<String>;
    find(u32, Vec<String>) -> Vec<types::Span>;
    labels() -> Vec<types::Label>;
});
