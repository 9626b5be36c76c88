//! Runs hooks, and asks those of `PreToolUse` whether a call may come in at all, and with which arguments.
//!
//! All hooks of an event that are for the tool run side by side, each with the same input; what they say is folded in the
//! order of trust. A hook that fails blocks here, unless its layer says that the call goes on without it, and then the
//! record says so. Where two hooks want different arguments nobody knows which are meant, so the call is blocked.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use serde_json::{Map, Value};
use tokio::time::Instant;
use tracing::Instrument as _;

use crate::model::caller::Caller;
use crate::model::hook::{HookEvent, HookExit, HookFailureMeans, HookFault, HookSaid, HookVoice};
use crate::model::hook_output::{Before, before, hook_name, plain_hook_name};
use crate::model::name::{CallId, ToolRef};
use crate::model::outcome::{Code, Failure, Origin, Stage};
use crate::model::text;
use crate::model::tool::CatalogTool;
use crate::model::verdict::Source;
use crate::ports::hook::BoundHook;
use crate::ports::telemetry::{self, About};

/// What every hook is told of a call.
#[derive(Debug, Clone)]
pub struct HookFacts {
    hook_name: Arc<str>,
    plain_name: Arc<str>,
    is_clear: bool,
    reference: ToolRef,
    common: Map<String, Value>,
    id: CallId,
}

/// What hooks want to be told to the model: context, and who adds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookText {
    /// The hook.
    pub source: Source,
    /// Its words: bounded, not looked at by sanitisers yet.
    pub text: String,
}

/// What `PreToolUse` hooks have made of a call.
#[derive(Debug, Default)]
pub struct Ahead {
    /// Other arguments, as the text of a JSON object.
    pub arguments: Option<String>,
    /// What they add for the model.
    pub context: Vec<HookText>,
    /// What each said.
    pub voices: Vec<HookVoice>,
}

/// A call that a hook blocks.
#[derive(Debug)]
pub struct Blocked {
    /// Why; the hook's own words are not in it.
    pub failure: Box<Failure>,
    /// The hook's words, if it said any.
    pub said: Option<HookText>,
    /// What each said.
    pub voices: Vec<HookVoice>,
}

/// What came of one hook.
pub struct Ran<'h> {
    /// The hook.
    pub hook: &'h BoundHook,
    /// How its program ended.
    pub ended: Result<HookExit, HookFault>,
    /// How long it ran.
    pub time: Duration,
}

impl HookFacts {
    /// Collects them. `thread` is the thread, in the gateway the session; `turn` and `model` are what the turn's metadata
    /// says; `never` whether the approval policy of some layer is `never`; `is_clear` whether no other tool has the same hook
    /// name.
    #[must_use]
    pub fn of(
        id: &CallId,
        caller: &Caller,
        tool: &CatalogTool,
        (thread, turn, model): (&str, Option<&str>, Option<&str>),
        (never, is_clear): (bool, bool),
    ) -> Self {
        let reference = tool.reference();
        let name = hook_name(Some(tool.namespace.as_str()), tool.callable.as_str());
        let common = [
            ("session_id", thread.into()),
            ("turn_id", turn.into()),
            ("transcript_path", Value::Null),
            ("model", model.into()),
            ("permission_mode", if never { "bypassPermissions" } else { "default" }.into()),
            ("tool_name", name.as_str().into()),
            // The name is not injective (catalog-dispatch H7, H8): these two are.
            ("mcp_server", reference.server.as_str().into()),
            ("mcp_tool", reference.tool.as_str().into()),
            ("tenant", caller.tenant.as_str().into()),
            ("principal", caller.principal.as_str().into()),
        ];
        let common = common.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let plain_name = plain_hook_name(reference.server.as_str(), reference.tool.as_str()).into();
        Self { hook_name: name.into(), plain_name, is_clear, reference, common, id: id.clone() }
    }

    /// Returns the hooks of an event that are for this tool, most trusted layer first: by its name, or by the one that it has
    /// whatever else is there, so that no server which comes beside it takes it away from a hook (R15).
    pub fn matching<'h>(&self, hooks: &'h [BoundHook], event: HookEvent) -> Vec<&'h BoundHook> {
        let is_for =
            |hook: &&BoundHook| hook.matches.matches(&self.hook_name) || hook.matches.matches(&self.plain_name);
        hooks.iter().filter(|hook| hook.event == event).filter(is_for).collect()
    }

    /// Whether a hook that allows means this very tool: it is for the tool's own name, and no other tool has that (H7).
    #[must_use]
    pub fn is_meant_by(&self, hook: &BoundHook) -> bool {
        self.is_clear && hook.matches.matches(&self.hook_name)
    }

    /// Returns the tool.
    #[must_use]
    pub fn tool(&self) -> &ToolRef {
        &self.reference
    }

    /// Runs the hooks of an event side by side. `more` is what this event has beside the rest.
    pub async fn run<'h>(
        &self,
        hooks: &'h [BoundHook],
        event: HookEvent,
        more: impl IntoIterator<Item = (&'static str, Value)>,
    ) -> Vec<Ran<'h>> {
        let matching = self.matching(hooks, event);
        if matching.is_empty() {
            return Vec::new();
        }
        let mut input = self.common.clone();
        input.insert("hook_event_name".to_owned(), event.as_str().into());
        if event != HookEvent::PermissionRequest {
            input.insert("tool_use_id".to_owned(), self.id.as_str().into());
        }
        input.extend(more.into_iter().map(|(key, value)| (key.to_owned(), value)));
        let input: Arc<str> = Value::Object(input).to_string().into();
        let span = telemetry::hooks(About::tool(&self.id, &self.reference), event);
        join_all(matching.into_iter().map(|hook| run_one(hook, Arc::clone(&input)))).instrument(span).await
    }
}

async fn run_one(hook: &BoundHook, input: Arc<str>) -> Ran<'_> {
    let begun = Instant::now();
    let ended = match &hook.program {
        Ok(program) => program.run(input).await,
        Err(fault) => Err(fault.clone()),
    };
    if let Err(fault) = &ended {
        tracing::warn!(hook = %hook.source, event = hook.event.as_str(), %fault, "a hook failed");
    }
    Ran { hook, ended, time: begun.elapsed() }
}

impl Ran<'_> {
    /// Says what is recorded of it.
    #[must_use]
    pub fn voice(&self, said: HookSaid) -> HookVoice {
        HookVoice { source: self.hook.source.clone(), event: self.hook.event, said, time: self.time }
    }

    /// Who it is, for a failure.
    #[must_use]
    pub fn origin(&self) -> Origin {
        Origin::of(&self.hook.source, None)
    }
}

/// Asks the `PreToolUse` hooks about a call with this input.
///
/// # Errors
/// [`Blocked`]: a hook says so, failed, or two want different arguments.
pub async fn ahead(facts: &HookFacts, hooks: &[BoundHook], input: Value) -> Result<Ahead, Box<Blocked>> {
    let ran = facts.run(hooks, HookEvent::PreToolUse, [("tool_input", input)]).await;
    let mut ahead = Ahead::default();
    // The hook that blocks, with its words; the first one counts. Then whoever replaces the arguments, with what.
    let mut blocked: Option<(&Ran<'_>, Code, &'static str, Option<String>)> = None;
    let mut replaced: Option<(&Ran<'_>, Map<String, Value>)> = None;
    for one in &ran {
        let said = match one.ended.clone().and_then(|exit| before(&exit)) {
            Err(fault) => {
                if one.hook.on_failure == HookFailureMeans::Block && blocked.is_none() {
                    blocked = Some((one, Code::HookFailed, "because a hook failed", None));
                }
                HookSaid::Failed(fault)
            }
            Ok(Before { block: Some(reason), .. }) => {
                if blocked.is_none() {
                    blocked = Some((one, Code::HookBlocked, "by a hook", Some(reason.clone())));
                }
                HookSaid::Block { reason }
            }
            Ok(Before { block: None, arguments: None, context: None }) => HookSaid::Nothing,
            Ok(Before { block: None, arguments, context }) => {
                let said = HookSaid::Change { replaced: arguments.is_some(), context: context.is_some() };
                let source = &one.hook.source;
                ahead.context.extend(context.map(|text| HookText { source: source.clone(), text }));
                match (arguments, &replaced) {
                    (Some(other), Some((_, arguments))) if other != *arguments && blocked.is_none() => {
                        blocked = Some((one, Code::HookFailed, "because two hooks want different arguments", None));
                    }
                    (Some(arguments), None) => replaced = Some((one, arguments)),
                    _ => {}
                }
                said
            }
        };
        ahead.voices.push(one.voice(said));
    }
    if let Some((by, code, why, reason)) = blocked {
        let failure = Box::new(refused(facts.tool(), code, why, by.origin()));
        let source = by.hook.source.clone();
        let said = reason.map(|text| HookText { source, text });
        return Err(Box::new(Blocked { failure, said, voices: ahead.voices }));
    }
    ahead.arguments = replaced.map(|(_, arguments)| Value::Object(arguments).to_string());
    Ok(ahead)
}

/// One sentence for the model, in the host's words.
fn refused(tool: &ToolRef, code: Code, why: &str, origin: Origin) -> Failure {
    let tool = text::shown(&tool.to_string(), 256);
    let message = format!("MCP tool call `{tool}` was blocked {why} ({}/{})", origin.layer, origin.component);
    Failure::new(Stage::Hook, code, message).by(origin)
}
