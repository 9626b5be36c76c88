//! The dry run (R38).

use std::sync::Arc;

use super::Call;
use crate::model::evidence::Evidence;
use crate::model::hook::HookEvent;
use crate::model::outcome::{Code, Failure, Stage};
use crate::model::verdict::Folded;
use crate::pipeline::consent::review::Panel;
use crate::pipeline::consent::settle::{Answered, Open, Settled, Standing, not_agreed, settle};
use crate::pipeline::consent::{ask, decide, remember};
use crate::pipeline::request::{Explanation, Payload, Would};
use crate::ports::approval::PolicySet;
use crate::ports::state::Effects;

impl Call<'_> {
    /// The dry run: the same steps up to the barrier.
    pub(super) async fn would(&mut self) -> Result<Would, Box<Failure>> {
        // `PreToolUse` hooks are not run: what they would make of the call is theirs to say.
        let Payload::Function(text) = &self.request.payload else { return Err(super::unsupported()) };
        let text = text.clone();
        if let Err(failure) = self.locate().await {
            return Err(super::parse(&text).err().unwrap_or(failure));
        }
        let prepared = self.bind(super::parse(&text)?).await?;
        let prepared = self.open_files(prepared).await?;
        let catalog = &self.pipeline.catalog;
        let policies = Arc::clone(catalog.current().policies());
        let now_ms = u64::try_from(self.pipeline.clock.now().as_millisecond()).unwrap_or(0);
        let stated = self.stated(&prepared);
        self.compare(&prepared, &stated).await?;
        let moments = stated.moments(now_ms, Effects::None, true).await;
        let moments = moments.map_err(|error| Failure::state_failed(Stage::Approval, error))?;
        let mut decided =
            decide::decide(&policies, &prepared, &self.request.caller, now_ms, &moments, self.drift.reason.as_ref())
                .await;
        if let Some(observers) = &decided.observers {
            let observed = observers.watch().await;
            decided.decision.voices.extend(observed.voices);
            decided.decision.connectors.extend(observed.connectors);
        }
        self.decision = Some(decided.decision.clone());
        let subject = remember::subject(&prepared, &self.request.caller);
        let channel = self.request.reviewer.widest();
        let standing = Standing {
            target: &self.request.target,
            subject: &subject,
            arguments: prepared.bound(),
            answered: &Answered::default(),
            now_ms,
            reviewer: policies.postures.reviewer(prepared.tool().connector.as_ref().map(|own| own.id.as_str())),
            widest: &|asks| ask::widest(&prepared, asks).min(remember::widest(&prepared)).min(channel),
        };
        let grants = &*self.pipeline.grants;
        if let Folded::Ask(asks) = &decided.decision.folded {
            let related = grants.related(&self.request.caller, &prepared.reference());
            let bound = prepared.bound();
            self.related =
                related.iter().map(|grant| remember::compare(grant, &subject, asks, bound, now_ms)).collect();
        }
        Ok(match settle(&decided, grants, &standing) {
            Settled::Run { grant } => Would::Run { grant: grant.map(|grant| grant.id) },
            Settled::Ask(open) => match open.refused_by_never(&self.request.target) {
                Some(failure) => Would::Fail(*failure),
                None if self.lacks_reviewer(&policies, &open) => {
                    Would::Fail(not_agreed(&self.request.target, Code::NobodyToAsk, &open.automatic()))
                }
                None => Would::Ask { reviewers: open.missing(), options: open.options },
            },
            Settled::Refuse(failure) => Would::Fail(*failure),
        })
    }

    /// Whether the auto reviewer must agree, and none is there who could.
    fn lacks_reviewer(&self, policies: &PolicySet, open: &Open) -> bool {
        let asks = open.automatic();
        let client = self.request.questions.clone();
        let (breaker, evidence) = (&*self.request.breaker, Evidence::default());
        let panel = Panel { reviewers: &policies.reviewers, breaker, client, evidence };
        !asks.is_empty() && panel.lacks(&asks).is_some()
    }

    /// What is told of a dry run. Hooks are not run; those that are for the tool could change what comes of it.
    pub(super) fn explanation(self, would: Would) -> Explanation {
        let snapshot = self.pipeline.catalog.current();
        let events = [HookEvent::PreToolUse, HookEvent::PermissionRequest, HookEvent::PostToolUse];
        let of = |event| {
            let hooks = self.facts.iter().flat_map(|(facts, _)| facts.matching(&snapshot.policies().hooks, event));
            hooks.map(|hook| (event, hook.source.clone())).collect::<Vec<_>>()
        };
        let hooks = events.into_iter().flat_map(of).collect();
        Explanation { decision: self.decision, changes: self.drift.lines, grants: self.related, hooks, would }
    }
}
