//! What one evaluation knows, has used and was told; what any component may ask. Alike for all versions of the interface.
//!
//! Every answer comes from values that were captured before the decision (R33). A single read is at most 1 MiB (R41). The
//! work of the host counts: each call and each byte, against an allowance of the size of the component's fuel. What needs
//! a grant that nobody gave is a fault when it is called, never an empty answer. Everything that is told is digested, in
//! order, so that a record can say what a component knew.
//!
//! This is the one way to the facts: what is here is private to this module and to `told`, so that a version's adapter can ask
//! nothing but the functions that a guest can, and can neither see facts that were not charged nor change what was counted.

mod told;

use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;
use wasmtime::{Error, ResourceLimiter};

use super::limits::{Budget, Caps, MAX_READ};
use super::patterns::PatternSets;
use super::run::Component;
use super::settings::sorted_json;
use crate::model::caller::Caller;
use crate::model::digest::{Digest, Parts};
use crate::model::text::shown;
use crate::model::tool::{Connector, Hints};
use crate::model::verdict::{Fault, FaultCode, Label};
use crate::ports::approval::{CallFacts, LogLine};
use crate::ports::connector::AppToolFacts;
use crate::ports::sanitiser::OutputFacts;
use crate::ports::state::{MAX_COUNTER_KEY, MAX_COUNTER_WINDOW_MS};

/// Lines kept of one evaluation.
const MAX_LOG_LINES: usize = 32;
/// Characters kept of one line.
const MAX_LOG_LINE: usize = 1024;
/// What a call of the host costs by itself, in fuel.
const CALL_COST: u64 = 100;

/// What a component is asked about.
pub(super) enum Subject {
    /// Nothing: it is only started, or asked about its settings.
    Nothing,
    /// A call.
    Call(Arc<CallFacts>),
    /// A tool of an App connector.
    Tool(Arc<AppToolFacts>),
    /// An answer.
    Output(Arc<OutputFacts>),
}

/// What one evaluation knows and has used. Lives as long as its store: for one call.
pub(super) struct State {
    subject: Subject,
    component: Arc<Component>,
    patterns: Arc<PatternSets>,
    until: Instant,
    caps: Caps,
    log: Vec<LogLine>,
    allowance: u64,
    spent: u64,
    heard: Parts,
    told_time: bool,
}

impl State {
    pub(super) fn new(
        subject: Subject,
        component: Arc<Component>,
        patterns: Arc<PatternSets>,
        budget: &Budget,
    ) -> Self {
        Self {
            subject,
            patterns,
            until: Instant::now() + budget.time,
            caps: Caps::new(budget.memory),
            component,
            log: Vec::new(),
            allowance: budget.fuel,
            spent: 0,
            heard: Digest::by_parts(),
            told_time: false,
        }
    }

    /// What refuses it more memory and tables than it may have.
    pub(super) fn limiter(&mut self) -> &mut dyn ResourceLimiter {
        &mut self.caps
    }

    /// Returns what it logged, what the host did for it, the digest of what it was told, and whether the time was part of that.
    pub(super) fn into_report(self) -> (Vec<LogLine>, u64, Digest, bool) {
        (self.log, self.spent, self.heard.finish(), self.told_time)
    }

    fn charge(&mut self, bytes: usize) -> wasmtime::Result<()> {
        self.spent = self.spent.saturating_add(CALL_COST).saturating_add(bytes as u64);
        if self.spent > self.allowance {
            return Err(fault(FaultCode::Fuel, "it used up what the host does for it"));
        }
        Ok(())
    }

    /// Notes what is told, for the record.
    fn tell(&mut self, function: &str, said: &[u8]) {
        self.heard.add(function.as_bytes());
        self.heard.add(said);
    }

    /// Hands a text over, if it is not too long.
    fn give(&mut self, function: &str, text: &str) -> wasmtime::Result<String> {
        if text.len() > MAX_READ {
            return Err(too_large(function));
        }
        self.charge(text.len())?;
        self.tell(function, text.as_bytes());
        Ok(text.to_owned())
    }

    fn json(&mut self, function: &str, value: &Value) -> wasmtime::Result<String> {
        let text = sorted_json(value).ok_or_else(|| too_large(function))?;
        self.give(function, &text)
    }

    fn nothing(&mut self, function: &str) {
        self.tell(function, b"");
    }

    fn call(&mut self) -> wasmtime::Result<Arc<CallFacts>> {
        self.charge(0)?;
        match &self.subject {
            Subject::Call(facts) => Ok(Arc::clone(facts)),
            Subject::Nothing | Subject::Tool(_) | Subject::Output(_) => Err(none_there("a call")),
        }
    }

    fn tool(&mut self) -> wasmtime::Result<Arc<AppToolFacts>> {
        self.charge(0)?;
        match &self.subject {
            Subject::Tool(facts) => Ok(Arc::clone(facts)),
            Subject::Nothing | Subject::Call(_) | Subject::Output(_) => Err(none_there("a connector's tool")),
        }
    }

    fn output(&mut self) -> wasmtime::Result<Arc<OutputFacts>> {
        self.charge(0)?;
        match &self.subject {
            Subject::Output(facts) => Ok(Arc::clone(facts)),
            Subject::Nothing | Subject::Call(_) | Subject::Tool(_) => Err(none_there("an answer")),
        }
    }

    fn caller(&mut self, function: &str, caller: &Caller) -> wasmtime::Result<Caller> {
        let groups: usize = caller.groups.iter().map(String::len).sum();
        if groups > MAX_READ {
            return Err(too_large(function));
        }
        self.charge(groups)?;
        for part in [caller.tenant.as_str(), caller.principal.as_str(), caller.session.as_str()] {
            self.tell(function, part.as_bytes());
        }
        caller.groups.iter().for_each(|group| self.tell(function, group.as_bytes()));
        Ok(caller.clone())
    }

    fn connector(&mut self, function: &str, connector: Option<&Connector>) -> wasmtime::Result<Option<Connector>> {
        let Some(connector) = connector else {
            self.nothing(function);
            return Ok(None);
        };
        self.give(function, &connector.id)?;
        for text in connector.name.iter().chain(&connector.account) {
            self.give(function, text)?;
        }
        Ok(Some(connector.clone()))
    }

    fn labels_of(&mut self, function: &str, labels: &[Label]) -> wasmtime::Result<Vec<Label>> {
        let bytes: usize = labels.iter().map(|label| label.name.len() + label.source.component.len() + 16).sum();
        if bytes > MAX_READ {
            return Err(too_large(function));
        }
        self.charge(bytes)?;
        for label in labels {
            self.tell(function, format!("{} {}", label.name, label.source).as_bytes());
        }
        Ok(labels.to_vec())
    }

    fn hints_of(&mut self, function: &str, hints: Hints) -> Hints {
        self.tell(function, format!("{hints:?}").as_bytes());
        hints
    }
}

/// What any component may ask.
impl State {
    pub(super) fn host_log(&mut self, level: &'static str, message: &str) -> wasmtime::Result<()> {
        self.charge(message.len())?;
        match self.log.len() {
            kept if kept < MAX_LOG_LINES => self.log.push(LogLine { level, text: shown(message, MAX_LOG_LINE) }),
            MAX_LOG_LINES => {
                self.log.push(LogLine { level: "warn", text: "further lines were left out".to_owned() });
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn host_settings(&mut self) -> wasmtime::Result<String> {
        let component = Arc::clone(&self.component);
        self.give("host.settings", component.settings.text())
    }

    pub(super) fn host_setting(&mut self, pointer: &str) -> wasmtime::Result<Option<String>> {
        self.charge(pointer.len())?;
        match self.component.settings.at(pointer) {
            Some(text) => self.give("host.setting", &text).map(Some),
            None => {
                self.nothing("host.setting");
                Ok(None)
            }
        }
    }

    pub(super) fn host_now_ms(&mut self) -> wasmtime::Result<u64> {
        self.charge(0)?;
        let now = match &self.subject {
            // Where nothing is decided there is no time.
            Subject::Nothing => 0,
            Subject::Call(facts) => facts.now_ms,
            Subject::Tool(facts) => facts.now_ms,
            Subject::Output(facts) => facts.now_ms,
        };
        self.told_time = true;
        self.tell("host.now-ms", &now.to_be_bytes());
        Ok(now)
    }

    /// A file of the layer's folder as it was when the layer was loaded; never anything else.
    pub(super) fn host_data(&mut self, path: &str) -> wasmtime::Result<Result<Vec<u8>, String>> {
        self.charge(path.len())?;
        let component = Arc::clone(&self.component);
        let Some(data) = &component.data else { return Err(not_granted("host.data")) };
        let Some(bytes) = data.get(path) else {
            self.nothing("host.data");
            return Ok(Err(format!("there is no file `{}`", shown(path, 256))));
        };
        if bytes.len() > MAX_READ {
            return Err(too_large("host.data"));
        }
        self.charge(bytes.len())?;
        self.tell("host.data", bytes);
        Ok(Ok(bytes.to_vec()))
    }

    /// Only a call is counted: what is listed or shown happens as often as anybody looks.
    pub(super) fn host_count(&mut self, key: &str, window_ms: u64) -> wasmtime::Result<u64> {
        self.charge(key.len())?;
        if key.is_empty() || key.len() > MAX_COUNTER_KEY || window_ms == 0 || window_ms > MAX_COUNTER_WINDOW_MS {
            let detail = format!(
                "its counter needs a key of 1 to {MAX_COUNTER_KEY} bytes and a window of 1 to {MAX_COUNTER_WINDOW_MS} ms"
            );
            return Err(fault(FaultCode::OutputInvalid, &detail));
        }
        let Subject::Call(facts) = &self.subject else { return Err(not_granted("host.count")) };
        let counted = facts.moment.counters.count(&self.component.source, key, window_ms);
        let sum = counted.map_err(|failed| fault(FaultCode::Missing, &failed.to_string()))?;
        self.tell("host.count", &sum.to_be_bytes());
        Ok(sum)
    }
}

fn fault(code: FaultCode, detail: &str) -> Error {
    Error::new(Fault::new(code, detail))
}

fn none_there(what: &str) -> Error {
    fault(FaultCode::Trap, &format!("it asked about {what} where there is none"))
}

fn too_large(function: &str) -> Error {
    fault(FaultCode::InputTooLarge, &format!("`{function}` would give it more than {MAX_READ} bytes at once"))
}

fn not_granted(function: &str) -> Error {
    fault(FaultCode::MissingImport, &format!("it called `{function}`, which is not granted"))
}
