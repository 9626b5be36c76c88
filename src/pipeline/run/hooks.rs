//! The hooks before and after a call, and their words as the model may read them (R31).

use std::sync::Arc;

use serde_json::{Map, Value};

use super::Call;
use crate::model::arguments::Arguments;
use crate::model::hook::{HookEvent, HookSaid, HookVoice};
use crate::model::hook_output::{After, after, hook_input, hook_name};
use crate::model::name::Target;
use crate::model::outcome::{Code, Failure, Stage};
use crate::model::posture::ApprovalPolicy;
use crate::model::text;
use crate::model::tool::CatalogTool;
use crate::pipeline::admit::catalog::Snapshot;
use crate::pipeline::bind::hooks::{self as running, Ahead, HookFacts, HookText};
use crate::pipeline::bind::waiting::telling;
use crate::pipeline::emit::sanitise::Clean;
use crate::pipeline::emit::views::hook::HookView;
use crate::pipeline::eyes::Eyes;
use crate::pipeline::request::CallRequest;
use crate::ports::approval::{Kind, PolicySet};
use crate::ports::clock::Clock;
use crate::ports::recorder::{ObservedRecord, Recorder};
use crate::ports::upstream::{ProgressSink, WaitsFor};

/// The longest arguments that hooks are told as they were given, in bytes; longer ones are refused before any hook runs.
const MAX_TOLD: usize = crate::model::arguments::MAX_ARGUMENTS;

/// What hooks are told of a call of this tool.
pub(super) fn facts(request: &CallRequest, snapshot: &Snapshot, tool: &CatalogTool) -> HookFacts {
    let turn = |key: &str| request.turn.metadata.as_ref().and_then(|turn| turn.get(key)).and_then(Value::as_str);
    let postures = snapshot.policies().postures.for_tool(&tool.reference());
    let never = postures.iter().any(|(_, posture)| posture.policy == ApprovalPolicy::Never);
    let about = (request.turn.thread_id.as_str(), turn("turn_id"), turn("model"));
    let name = |tool: &CatalogTool| hook_name(Some(tool.namespace.as_str()), tool.callable.as_str());
    let mut asked = snapshot.policies().hooks.iter().filter(|hook| hook.event == HookEvent::PermissionRequest);
    let is_clear = asked.next().is_none() || {
        let own = name(tool);
        snapshot.tools().iter().filter(|other| name(other) == own).nth(1).is_none()
    };
    HookFacts::of(&request.id, &request.caller, tool, about, (never, is_clear))
}

/// The answer of a call that was cancelled before its hooks were heard.
pub(super) fn unheard(target: &Target) -> Failure {
    let target = text::shown(&target.to_string(), 256);
    let message = format!("the call of `{target}` was cancelled before its hooks were heard; it has run");
    Failure::new(Stage::Hook, Code::Cancelled, message)
}

/// What is left to be heard of a call that has its completed item.
pub(super) struct Behind {
    facts: HookFacts,
    policies: Arc<PolicySet>,
    input: Map<String, Value>,
    context: Vec<HookText>,
    tool: Arc<CatalogTool>,
    eyes: Eyes,
    recorder: Arc<dyn Recorder>,
    clock: Arc<dyn Clock>,
    record: ObservedRecord,
    progress: Option<Arc<dyn ProgressSink>>,
}

impl Call<'_> {
    /// Step 2. Returns the arguments that a hook put in the place of the given ones.
    ///
    /// A tool that is hidden is not told of by what its hooks say (R25).
    pub(super) async fn hooks_ahead(&mut self, text: &str) -> Result<Option<String>, Box<Failure>> {
        let Some((facts, _)) = &self.facts else { return Ok(None) };
        let policies = Arc::clone(self.pipeline.catalog.current().policies());
        if facts.matching(&policies.hooks, HookEvent::PreToolUse).is_empty() {
            return Ok(None);
        }
        if text.len() > MAX_TOLD {
            return super::parse(text).map(|_| None);
        }
        let asked = running::ahead(facts, &policies.hooks, hook_input(text));
        match telling(self.request.progress.as_ref(), WaitsFor::Hooks, asked).await {
            Ok(Ahead { arguments, context, voices }) => {
                self.said.hooks.extend(voices);
                self.context = context;
                Ok(arguments)
            }
            Err(blocked) => {
                let reference = facts.tool().clone();
                self.said.hooks.extend(blocked.voices);
                if let Some(disabled) = self.disabled(&reference).await {
                    return Err(disabled);
                }
                let said = blocked.said.map(|said| {
                    let detail = format!("{}: {}", said.source, said.text);
                    self.words = Some(said);
                    detail
                });
                Err(Box::new(match said {
                    Some(detail) => blocked.failure.detail(detail),
                    None => *blocked.failure,
                }))
            }
        }
    }

    /// Adds what a hook said to the sentence of its refusal, as far as the sanitisers let it be read.
    pub(super) async fn quote(&mut self, failure: &mut Failure) {
        let Some(words) = self.words.take() else { return };
        if !matches!(failure.code, Code::HookBlocked | Code::HookDenied) {
            return;
        }
        let snapshot = self.pipeline.catalog.current();
        let Some((_, tool)) = &self.facts else { return };
        let eyes = Eyes::of(self.pipeline, &self.request);
        if let Some(text) = clean(&eyes, snapshot.policies(), tool, &words).await {
            failure.message.push_str(": ");
            failure.message.push_str(&text);
        }
    }

    /// What is left to be heard of the call; none where no hook is for it and none has added anything.
    pub(super) fn behind(&mut self, clean: &Clean) -> Option<Behind> {
        let (facts, tool) = self.facts.take()?;
        // A call that came to no answer has nothing for hooks to add to; least of all a tool that answers like an unknown one
        // (R25).
        if clean.failure().is_some() {
            return None;
        }
        let policies = Arc::clone(self.pipeline.catalog.current().policies());
        let heard =
            HookView::of(clean).is_some() && !facts.matching(&policies.hooks, HookEvent::PostToolUse).is_empty();
        if !heard && self.context.is_empty() {
            return None;
        }
        let sent = self.started.as_ref().and_then(|started| started.tool_input().cloned());
        let given = || self.arguments.as_ref().and_then(|arguments| arguments.object().cloned());
        let record = ObservedRecord {
            at: self.pipeline.clock.now(),
            call: self.request.id.clone(),
            kind: Kind::Tool,
            tool: facts.tool().clone(),
            tenant: self.request.caller.tenant.clone(),
            policy_set: policies.digest,
            arguments: self.arguments.as_ref().map_or_else(|| Arguments::none().digest(), Arguments::digest),
            voices: Vec::new(),
            connectors: Vec::new(),
            sanitisers: Vec::new(),
            hooks: Vec::new(),
        };
        Some(Behind {
            policies,
            input: sent.or_else(given).unwrap_or_default(),
            context: std::mem::take(&mut self.context),
            tool,
            eyes: Eyes::of(self.pipeline, &self.request),
            recorder: Arc::clone(&self.pipeline.recorder),
            clock: Arc::clone(&self.pipeline.clock),
            record,
            facts,
            progress: self.request.progress.take(),
        })
    }
}

impl Behind {
    /// Asks the `PostToolUse` hooks, and returns the answer as they leave it. The item is out by now: whatever they say, the
    /// call has run (L19).
    pub(super) async fn hooks(mut self, answer: Clean) -> Clean {
        let (mut blocked, mut feedback) = (None, Vec::new());
        if let Some(view) = HookView::of(&answer) {
            let input = Value::Object(std::mem::take(&mut self.input));
            let more = [("tool_input", input), ("tool_response", view.into_response())];
            let running = self.facts.run(&self.policies.hooks, HookEvent::PostToolUse, more);
            let ran = telling(self.progress.as_ref(), WaitsFor::Hooks, running).await;
            let mut voices: Vec<HookVoice> = Vec::new();
            for one in &ran {
                let text = |text: String| HookText { source: one.hook.source.clone(), text };
                let said = match one.ended.clone().and_then(|exit| after(&exit)) {
                    // It has run, and the hook is no sanitiser: the record says that it failed.
                    Err(fault) => HookSaid::Failed(fault),
                    Ok(After { block: None, feedback: None, context: None }) => HookSaid::Nothing,
                    Ok(After { block, feedback: instead, context }) => {
                        let change = HookSaid::Change { replaced: instead.is_some(), context: context.is_some() };
                        self.context.extend(context.map(text));
                        feedback.extend(instead.map(text));
                        match block {
                            Some(reason) => {
                                blocked.get_or_insert_with(|| (one.origin(), text(reason.clone())));
                                HookSaid::Block { reason }
                            }
                            None => change,
                        }
                    }
                };
                voices.push(one.voice(said));
            }
            if !voices.is_empty() {
                self.recorder.observed(&ObservedRecord { at: self.clock.now(), hooks: voices, ..self.record.clone() });
            }
        }
        let answer = match blocked {
            Some((origin, words)) => {
                let tool = text::shown(&self.facts.tool().to_string(), 256);
                let by = format!("{}/{}", origin.layer, origin.component);
                let mut message = format!("the answer of `{tool}` was blocked by a hook ({by}); the call has run");
                if let Some(words) = self.clean(&words).await {
                    message.push_str(": ");
                    message.push_str(&words);
                }
                answer.withhold(Failure::new(Stage::Hook, Code::HookBlocked, message).by(origin))
            }
            None if feedback.is_empty() => answer,
            None => {
                let texts = self.clean_all(&feedback).await;
                answer.instead(&texts)
            }
        };
        let context = self.clean_all(&self.context).await;
        if context.is_empty() { answer } else { answer.with_context(&context) }
    }

    async fn clean_all(&self, texts: &[HookText]) -> Vec<String> {
        let mut clean = Vec::new();
        for text in texts {
            clean.extend(self.clean(text).await);
        }
        clean
    }

    async fn clean(&self, words: &HookText) -> Option<String> {
        clean(&self.eyes, &self.policies, &self.tool, words).await
    }
}

/// What the sanitisers leave of a hook's words; none: nothing.
async fn clean(eyes: &Eyes, policies: &PolicySet, tool: &CatalogTool, words: &HookText) -> Option<String> {
    eyes.clean(policies, tool, (&words.source, &words.text)).await
}
