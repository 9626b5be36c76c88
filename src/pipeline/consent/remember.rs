//! What an earlier agreement covers.
//!
//! A grant keeps the set of asks that it answered, the baseline's included. It satisfies an ask only if today's set is a
//! subset of that, today's remember limit allows its scope, and the arguments are those it bound (R17). Asks that come from
//! a fault and strict asks are satisfied by no grant (R12, R14).

use std::collections::BTreeSet;

use serde::Serialize;

use crate::model::caller::Caller;
use crate::model::digest::Digest;
use crate::model::verdict::{AskKey, Remember, StandingAsk};
use crate::pipeline::bind::prepare::Prepared;
use crate::ports::grants::{ALWAYS_GRANT_MS, Grant, GrantSubject, Grants, SESSION_GRANT_MS};
use crate::ports::reviewer::Agreement;

/// Returns what a grant for this call binds.
#[must_use]
pub fn subject(prepared: &Prepared, caller: &Caller) -> GrantSubject {
    GrantSubject {
        caller: caller.clone(),
        tool: prepared.reference(),
        identity: prepared.tool().identity,
        definition: prepared.tool().definition.digest(),
        connector: prepared.tool().connector.clone(),
    }
}

/// Returns a remembered grant that covers all of `asks`, if there is one.
#[must_use]
pub fn covering(
    grants: &dyn Grants,
    subject: &GrantSubject,
    asks: &BTreeSet<StandingAsk>,
    arguments: Digest,
    now_ms: u64,
) -> Option<Grant> {
    grants.find(subject, now_ms).into_iter().find(|grant| covers(grant, asks, arguments))
}

fn covers(grant: &Grant, asks: &BTreeSet<StandingAsk>, arguments: Digest) -> bool {
    let bound = grant.arguments.is_some() || asks.iter().any(|ask| ask.ask.bind_arguments);
    asks.iter().all(|ask| !ask.needs_a_fresh_answer() && grant.answered.contains(&ask.key))
        && grant.scope <= limit(asks)
        && (!bound || grant.arguments == Some(arguments))
}

/// A grant that is about the tool, as `explain` tells of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RelatedGrant {
    /// Its id.
    pub id: String,
    /// How long it holds.
    pub scope: Remember,
    /// Who gave it.
    pub approver: String,
    /// Why it does not cover today's asks, everything that is so; empty: it does.
    pub why_not: Vec<&'static str>,
}

/// Compares a grant with what would be asked now.
#[must_use]
pub fn compare(
    grant: &Grant,
    subject: &GrantSubject,
    asks: &BTreeSet<StandingAsk>,
    arguments: Digest,
    now_ms: u64,
) -> RelatedGrant {
    let bound = grant.arguments.is_some() || asks.iter().any(|ask| ask.ask.bind_arguments);
    let (own, today) = (&grant.subject, subject);
    let same_person = (&own.caller.tenant, &own.caller.principal, &own.caller.groups)
        == (&today.caller.tenant, &today.caller.principal, &today.caller.groups);
    let reasons = [
        (grant.expires_ms <= now_ms, "it has ended"),
        (!same_person, "it was given to another caller, or to one with other groups"),
        (
            grant.scope == Remember::Session && own.caller.session != today.caller.session,
            "it was given for another session",
        ),
        (own.identity != today.identity, "the server is another program or URL now"),
        (own.definition != today.definition, "the tool's definition has changed"),
        (own.connector != today.connector, "the tool's connector or account is another one"),
        (
            asks.iter().any(|ask| !grant.answered.contains(&ask.key)),
            "somebody asks now who was not asked then, or by another rule or as another component",
        ),
        (asks.iter().any(|ask| ask.fault.is_some()), "a component fails, which only a fresh answer settles"),
        (asks.iter().any(|ask| ask.strict), "every call is to be reviewed"),
        (grant.scope > limit(asks), "today nobody may agree for as long"),
        (bound && grant.arguments != Some(arguments), "the arguments are others, or were not bound then"),
    ];
    let why_not = reasons.into_iter().filter(|(so, _)| *so).map(|(_, why)| why).collect();
    RelatedGrant { id: grant.id.clone(), scope: grant.scope, approver: grant.approver.clone(), why_not }
}

/// Returns how long an agreement to `asks` may be remembered: the narrowest of their limits.
#[must_use]
pub fn limit(asks: &BTreeSet<StandingAsk>) -> Remember {
    asks.iter().map(|ask| ask.ask.remember).min().unwrap_or(Remember::Never)
}

/// Returns how long an agreement to calls of this tool may be remembered at most, whoever asks (approval-results 4): "always"
/// is not for servers that a plugin provides, and nothing is remembered for an App whose connector nobody knows.
#[must_use]
pub fn widest(prepared: &Prepared) -> Remember {
    let tool = prepared.tool();
    if prepared.server().apps && tool.connector.is_none() {
        Remember::Never
    } else if tool.plugin.is_some() {
        Remember::Session
    } else {
        Remember::Always
    }
}

/// Says what an agreement to `asks` is an agreement to.
#[must_use]
pub fn agreement(subject: GrantSubject, asks: &BTreeSet<StandingAsk>, arguments: Digest) -> Agreement {
    Agreement {
        subject,
        answered: asks.iter().map(|ask| ask.key.clone()).collect::<BTreeSet<AskKey>>(),
        arguments,
        bind_arguments: asks.iter().any(|ask| ask.ask.bind_arguments),
        lasts: asks.iter().all(|ask| !ask.needs_a_fresh_answer() && !ask.ask.reviewers.auto),
    }
}

/// Makes the grant that an agreement becomes at `now_ms`; none for an agreement that is not to be remembered.
#[must_use]
pub fn grant(agreement: &Agreement, scope: Remember, approver: &str, now_ms: u64) -> Option<Grant> {
    let lives_ms = match scope {
        Remember::Never => return None,
        Remember::Session => SESSION_GRANT_MS,
        Remember::Always => ALWAYS_GRANT_MS,
    };
    Some(Grant {
        id: format!("grant_{}", uuid::Uuid::now_v7().simple()),
        subject: agreement.subject.clone(),
        answered: agreement.answered.clone(),
        arguments: agreement.bind_arguments.then_some(agreement.arguments),
        scope,
        expires_ms: now_ms.saturating_add(lives_ms),
        approver: approver.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::layer::{LayerKind, LayerRef};
    use crate::model::name::ToolRef;
    use crate::model::tool::ServerIdentity;
    use crate::model::verdict::{Ask, Fault, FaultCode, Reason, Reviewers, RuleId, Source};

    fn asked(component: &str, remember: Remember, bind_arguments: bool) -> StandingAsk {
        let source = Source { layer: LayerRef::new(LayerKind::User), component: component.into(), digest: None };
        let reason = Reason { rule: RuleId::parse("r"), text: String::new() };
        let key = AskKey { source, rule: reason.rule.clone() };
        let ask = Ask { reason, remember, bind_arguments, reviewers: Reviewers::default() };
        StandingAsk { key, ask, fault: None, strict: false }
    }

    fn agreed(asks: &BTreeSet<StandingAsk>, scope: Remember) -> Grant {
        let subject = GrantSubject {
            caller: Caller::local("me"),
            tool: ToolRef::parse("s/t").unwrap(),
            identity: ServerIdentity(Digest::of(b"s")),
            definition: Digest::of(b"t"),
            connector: None,
        };
        grant(&agreement(subject, asks, Digest::of(b"args")), scope, "me", 0).unwrap()
    }

    fn covers_with(grant: &Grant, asks: &BTreeSet<StandingAsk>) -> bool {
        covers(grant, asks, Digest::of(b"args"))
    }

    #[test]
    fn r17_a_grant_covers_a_subset_of_what_it_answered_and_nothing_more() {
        let (a, b) = (asked("a", Remember::Session, false), asked("b", Remember::Session, false));
        let both = BTreeSet::from([a.clone(), b.clone()]);
        let grant = agreed(&both, Remember::Session);
        assert!(covers_with(&grant, &BTreeSet::from([a.clone()])));
        assert!(covers_with(&grant, &both));
        let narrow = agreed(&BTreeSet::from([a]), Remember::Session);
        assert!(!covers_with(&narrow, &both));
    }

    #[test]
    fn r17_todays_limit_must_allow_the_grants_scope() {
        let grant = agreed(&BTreeSet::from([asked("a", Remember::Always, false)]), Remember::Always);
        assert!(!covers_with(&grant, &BTreeSet::from([asked("a", Remember::Session, false)])));
    }

    #[test]
    fn r17_bound_arguments_must_be_equal() {
        let grant = agreed(&BTreeSet::from([asked("a", Remember::Session, true)]), Remember::Session);
        let asks = BTreeSet::from([asked("a", Remember::Session, true)]);
        assert!(covers(&grant, &asks, Digest::of(b"args")));
        assert!(!covers(&grant, &asks, Digest::of(b"other")));
        let unbound = agreed(&BTreeSet::from([asked("a", Remember::Session, false)]), Remember::Session);
        assert!(!covers_with(&unbound, &asks), "a grant that bound nothing covers an ask that binds");
    }

    #[test]
    fn r12_r14_fault_asks_and_strict_asks_are_covered_by_no_grant() {
        let plain = asked("a", Remember::Session, false);
        let grant = agreed(&BTreeSet::from([plain.clone()]), Remember::Session);
        let fault = StandingAsk { fault: Some(Fault::new(FaultCode::Trap, "x")), ..plain.clone() };
        assert!(!covers_with(&grant, &BTreeSet::from([fault])));
        assert!(!covers_with(&grant, &BTreeSet::from([StandingAsk { strict: true, ..plain }])));
    }

    #[test]
    fn an_agreement_for_one_call_leaves_no_grant() {
        let asks = BTreeSet::from([asked("a", Remember::Session, false)]);
        let subject = agreed(&asks, Remember::Session).subject;
        assert!(grant(&agreement(subject, &asks, Digest::of(b"x")), Remember::Never, "me", 0).is_none());
    }
}
