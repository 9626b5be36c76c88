//! What a component may ask about a call, a connector's tool or an answer, and what it gets: for all versions alike.

use std::time::Instant;

use globset::GlobBuilder;
use serde_json::Value;
use wasmtime::Error;

use super::{State, fault, too_large};
use crate::adapters::wasm::limits::MAX_READ;
use crate::adapters::wasm::settings::sorted_object;
use crate::model::caller::Caller;
use crate::model::json::push_pointer;
use crate::model::name::ToolRef;
use crate::model::posture::Posture;
use crate::model::text::shown;
use crate::model::tool::{Connector, Hints};
use crate::model::verdict::{Fault, FaultCode, Label};
use crate::ports::approval::{Kind, PastCall};
use crate::ports::sanitiser::{OutputFacts, Span, Target};

/// The longest glob, in bytes.
const MAX_GLOB: usize = 256;
/// The most texts that one glob may find: lists of small records are the dear shape.
const MAX_TEXTS: usize = 10_000;
/// What a byte of a pattern costs to compile, in fuel.
const PATTERN_COST: usize = 1000;

/// A string inside arguments, with its pointer.
pub(in crate::adapters::wasm) struct Located {
    pub(in crate::adapters::wasm) pointer: String,
    pub(in crate::adapters::wasm) text: String,
}

/// What a component may ask about a call.
impl State {
    pub(in crate::adapters::wasm) fn call_kind(&mut self) -> wasmtime::Result<Kind> {
        let kind = self.call()?.kind;
        self.tell("call.kind", format!("{kind:?}").as_bytes());
        Ok(kind)
    }

    pub(in crate::adapters::wasm) fn call_server(&mut self) -> wasmtime::Result<String> {
        let facts = self.call()?;
        self.give("call.server", facts.tool.server.as_str())
    }

    pub(in crate::adapters::wasm) fn call_identity(&mut self) -> wasmtime::Result<String> {
        let facts = self.call()?;
        self.give("call.identity", &facts.identity.0.to_string())
    }

    pub(in crate::adapters::wasm) fn call_name(&mut self) -> wasmtime::Result<String> {
        let facts = self.call()?;
        self.give("call.name", facts.tool.tool.as_str())
    }

    pub(in crate::adapters::wasm) fn call_definition(&mut self) -> wasmtime::Result<String> {
        let facts = self.call()?;
        self.give("call.definition", &facts.definition.to_string())
    }

    pub(in crate::adapters::wasm) fn call_hints(&mut self) -> wasmtime::Result<Hints> {
        let hints = self.call()?.hints;
        Ok(self.hints_of("call.hints", hints))
    }

    pub(in crate::adapters::wasm) fn call_caller(&mut self) -> wasmtime::Result<Caller> {
        let facts = self.call()?;
        self.caller("call.caller", &facts.caller)
    }

    pub(in crate::adapters::wasm) fn call_connector(&mut self) -> wasmtime::Result<Option<Connector>> {
        let facts = self.call()?;
        self.connector("call.connector", facts.connector.as_ref())
    }

    pub(in crate::adapters::wasm) fn call_posture(&mut self) -> wasmtime::Result<Posture> {
        let posture = self.call()?.posture;
        self.tell("call.posture", format!("{posture:?}").as_bytes());
        Ok(posture)
    }

    pub(in crate::adapters::wasm) fn call_argument(&mut self, pointer: &str) -> wasmtime::Result<Option<String>> {
        if pointer.is_empty() {
            return self.call_arguments().map(Some);
        }
        let facts = self.call()?;
        match facts.arguments.at(pointer) {
            Some(value) => self.json("call.argument", value).map(Some),
            None => {
                self.nothing("call.argument");
                Ok(None)
            }
        }
    }

    pub(in crate::adapters::wasm) fn call_argument_text(&mut self, pointer: &str) -> wasmtime::Result<Option<String>> {
        let facts = self.call()?;
        let Some(Value::String(text)) = facts.arguments.at(pointer) else {
            self.nothing("call.argument-text");
            return Ok(None);
        };
        self.give("call.argument-text", text).map(Some)
    }

    pub(in crate::adapters::wasm) fn call_argument_texts(&mut self, glob: &str) -> wasmtime::Result<Vec<Located>> {
        let facts = self.call()?;
        let mut search = Search::new(glob)?;
        let mut at = String::new();
        for (key, value) in facts.arguments.object().into_iter().flatten() {
            at.clear();
            push_pointer(&mut at, key);
            self.collect(&mut at, value, &mut search)?;
        }
        self.charge(search.bytes)?;
        for found in &search.texts {
            self.tell("call.argument-texts", found.pointer.as_bytes());
            self.tell("call.argument-texts", found.text.as_bytes());
        }
        Ok(search.texts)
    }

    pub(in crate::adapters::wasm) fn call_arguments(&mut self) -> wasmtime::Result<String> {
        let facts = self.call()?;
        match facts.arguments.object() {
            Some(object) => {
                let text = sorted_object(object).ok_or_else(|| too_large("call.arguments"))?;
                self.give("call.arguments", &text)
            }
            None => self.give("call.arguments", "{}"),
        }
    }

    pub(in crate::adapters::wasm) fn call_history(&mut self, limit: u32) -> wasmtime::Result<Vec<PastCall>> {
        let facts = self.call()?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let past: Vec<PastCall> = facts.moment.history.iter().take(limit).cloned().collect();
        let bytes: usize =
            past.iter().map(|past| past.tool.server.as_str().len() + past.tool.tool.as_str().len()).sum();
        if bytes > MAX_READ {
            return Err(too_large("call.history"));
        }
        self.charge(bytes)?;
        for call in &past {
            self.tell("call.history", format!("{:?} {} {:?}", call.kind, call.tool, call.state).as_bytes());
        }
        Ok(past)
    }

    pub(in crate::adapters::wasm) fn call_labels(&mut self) -> wasmtime::Result<Vec<Label>> {
        let facts = self.call()?;
        self.labels_of("call.labels", &facts.moment.labels)
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

/// What a component may ask about a tool of an App connector.
impl State {
    pub(in crate::adapters::wasm) fn tool_connector(&mut self) -> wasmtime::Result<Option<Connector>> {
        let facts = self.tool()?;
        self.connector("app-tool.connector", facts.connector.as_ref())
    }

    pub(in crate::adapters::wasm) fn tool_name(&mut self) -> wasmtime::Result<String> {
        let facts = self.tool()?;
        self.give("app-tool.name", facts.tool.tool.as_str())
    }

    pub(in crate::adapters::wasm) fn tool_title(&mut self) -> wasmtime::Result<Option<String>> {
        let facts = self.tool()?;
        match &facts.title {
            Some(title) => self.give("app-tool.title", title).map(Some),
            None => {
                self.nothing("app-tool.title");
                Ok(None)
            }
        }
    }

    pub(in crate::adapters::wasm) fn tool_hints(&mut self) -> wasmtime::Result<Hints> {
        let hints = self.tool()?.hints;
        Ok(self.hints_of("app-tool.hints", hints))
    }

    pub(in crate::adapters::wasm) fn tool_caller(&mut self) -> wasmtime::Result<Caller> {
        let facts = self.tool()?;
        self.caller("app-tool.caller", &facts.caller)
    }
}

/// What a component may ask about an answer.
impl State {
    pub(in crate::adapters::wasm) fn output_kind(&mut self) -> wasmtime::Result<Kind> {
        let kind = self.output()?.kind;
        self.tell("output.kind", format!("{kind:?}").as_bytes());
        Ok(kind)
    }

    pub(in crate::adapters::wasm) fn output_tool(&mut self) -> wasmtime::Result<ToolRef> {
        let facts = self.output()?;
        self.give("output.tool", &facts.tool.to_string())?;
        Ok(facts.tool.clone())
    }

    pub(in crate::adapters::wasm) fn output_caller(&mut self) -> wasmtime::Result<Caller> {
        let facts = self.output()?;
        self.caller("output.caller", &facts.caller)
    }

    pub(in crate::adapters::wasm) fn output_is_error(&mut self) -> wasmtime::Result<bool> {
        let is_error = self.output()?.is_error;
        self.tell("output.is-error", &[u8::from(is_error)]);
        Ok(is_error)
    }

    pub(in crate::adapters::wasm) fn output_targets(&mut self) -> wasmtime::Result<u32> {
        let count = u32::try_from(self.output()?.targets.len()).unwrap_or(u32::MAX);
        self.tell("output.targets", &count.to_be_bytes());
        Ok(count)
    }

    /// A target without its text: what it is and how long.
    pub(in crate::adapters::wasm) fn output_target(&mut self, index: u32) -> wasmtime::Result<Option<Target>> {
        let facts = self.output()?;
        let Some(target) = at(&facts, index) else {
            self.nothing("output.target");
            return Ok(None);
        };
        self.give("output.target", &target.pointer)?;
        Ok(Some(target.clone()))
    }

    pub(in crate::adapters::wasm) fn output_text(&mut self, index: u32) -> wasmtime::Result<Option<String>> {
        let facts = self.output()?;
        match at(&facts, index) {
            Some(target) => self.give("output.text", &target.text).map(Some),
            None => {
                self.nothing("output.text");
                Ok(None)
            }
        }
    }

    pub(in crate::adapters::wasm) fn output_find(
        &mut self,
        index: u32,
        patterns: &[String],
    ) -> wasmtime::Result<Vec<Span>> {
        let facts = self.output()?;
        let Some(target) = at(&facts, index) else {
            self.nothing("output.find");
            return Ok(Vec::new());
        };
        // Beforehand, as if each pattern were looked for alone: the host does the work whether or not it is paid.
        let compiling = patterns.iter().map(|pattern| pattern.len() + 1).sum::<usize>().saturating_mul(PATTERN_COST);
        self.charge(compiling)?;
        self.charge(target.text.len().saturating_mul(patterns.len()))?;
        let compiled = self.patterns.get(&facts.caller.tenant, patterns).map_err(Error::new)?;
        // No epoch interrupts the host, so it looks at the time itself.
        let until = self.until;
        let found = compiled.find(&target.text, || {
            if Instant::now() < until { Ok(()) } else { Err(Fault::new(FaultCode::Deadline, "it used up its time")) }
        });
        let spans = found.map_err(Error::new)?;
        self.charge(spans.len().saturating_mul(16))?;
        for span in &spans {
            self.tell("output.find", format!("{} {} {}", span.pattern, span.start, span.end).as_bytes());
        }
        Ok(spans)
    }

    pub(in crate::adapters::wasm) fn output_labels(&mut self) -> wasmtime::Result<Vec<Label>> {
        let facts = self.output()?;
        self.labels_of("output.labels", &facts.labels)
    }
}

fn at(facts: &OutputFacts, index: u32) -> Option<&Target> {
    facts.targets.get(usize::try_from(index).ok()?)
}

struct Search {
    glob: globset::GlobMatcher,
    texts: Vec<Located>,
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
        self.texts.push(Located { pointer: pointer.to_owned(), text: text.to_owned() });
        Ok(())
    }
}
