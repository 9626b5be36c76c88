//! Asks the `PermissionRequest` hooks about a call that somebody must agree to, and says what their answers settle.
//!
//! The first deny wins; else an allow counts if its layer may allow and is at least as trusted as every layer that asked
//! (R18). It settles no ask that comes from a failure, and no strict one. A hook that fails has no opinion: somebody else
//! still has to agree.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::fold::may_lift;
use crate::model::hook::{HookEvent, HookSaid, HookVoice};
use crate::model::hook_output::{Permission, permission};
use crate::model::layer::LayerRef;
use crate::model::verdict::{Source, StandingAsk};
use crate::pipeline::bind::hooks::{HookFacts, HookText};
use crate::pipeline::bind::prepare::Prepared;
use crate::ports::hook::BoundHook;

/// What the hooks said.
#[derive(Debug, Clone, Default)]
pub struct Heard {
    /// Who said no, first in the order of trust, with its words.
    pub denied: Option<HookText>,
    /// Whose yes counts as far as their layer goes.
    pub allowing: Vec<Source>,
    /// What each said.
    pub voices: Vec<HookVoice>,
}

/// Asks all that are for the tool, side by side. `asks` are those that are open.
pub async fn hear(facts: &HookFacts, hooks: &[BoundHook], prepared: &Prepared, asks: &BTreeSet<StandingAsk>) -> Heard {
    let input = Value::Object(prepared.arguments().object().cloned().unwrap_or_else(Map::new));
    let mut heard = Heard::default();
    for one in facts.run(hooks, HookEvent::PermissionRequest, [("tool_input", input)]).await {
        let said = match one.ended.clone().and_then(|exit| permission(&exit)) {
            Err(fault) => HookSaid::Failed(fault),
            Ok(None) => HookSaid::Nothing,
            Ok(Some(Permission::Allow)) => {
                let counts = one.hook.may_allow && facts.is_meant_by(one.hook) && reaches(&one.hook.source.layer, asks);
                if counts {
                    heard.allowing.push(one.hook.source.clone());
                }
                HookSaid::Allow { counts }
            }
            Ok(Some(Permission::Deny(reason))) => {
                let source = one.hook.source.clone();
                heard.denied.get_or_insert_with(|| HookText { source, text: reason.clone() });
                HookSaid::Deny { reason }
            }
        };
        heard.voices.push(one.voice(said));
    }
    heard
}

/// R18: whether an allow of `layer` is strong enough for all of `asks`; the defaulted baseline's ask counts lowest.
fn reaches(layer: &LayerRef, asks: &BTreeSet<StandingAsk>) -> bool {
    asks.iter().all(|ask| may_lift(layer, &ask.key.source.layer))
}

impl Heard {
    /// Returns the asks that an allow settles, with the hook that does.
    #[must_use]
    pub fn settled(&self, asks: &BTreeSet<StandingAsk>) -> Option<(Source, BTreeSet<StandingAsk>)> {
        let by = self.allowing.iter().find(|source| reaches(&source.layer, asks))?;
        let settled: BTreeSet<_> = asks.iter().filter(|ask| !ask.needs_a_fresh_answer()).cloned().collect();
        (!settled.is_empty()).then(|| (by.clone(), settled))
    }
}
