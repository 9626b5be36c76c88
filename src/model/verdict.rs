//! What components answer, what becomes of a component that fails, and what all answers together say.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::layer::{LayerKind, LayerRef};
use super::posture::ApprovalMode;

/// The longest rule id, in bytes.
pub const MAX_RULE: usize = 64;
/// The longest reason text, in bytes. A guest writes it, and it must not flood a prompt.
pub const MAX_REASON: usize = 512;

/// The id of a rule inside a component: `[a-z0-9._-]`, 1 to 64 characters. The only component text a model sees (R30).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct RuleId(Arc<str>);

impl RuleId {
    /// Parses a rule id; `None` for anything that is not one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-');
        (!text.is_empty() && text.len() <= MAX_RULE && text.chars().all(legal)).then(|| Self(text.into()))
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a component answered as it did. The text is untrusted: for people and records only.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Reason {
    /// The rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<RuleId>,
    /// The text for people, at most [`MAX_REASON`] bytes, control characters visible.
    pub text: String,
}

/// How long an agreement may be remembered at most. The order is from narrow to wide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Remember {
    /// For this call only.
    Never,
    /// For this session.
    Session,
    /// Until something that it binds changes.
    Always,
}

/// Who must agree. None set leaves it to the configuration; both set means both (R12).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Reviewers {
    /// A person.
    pub person: bool,
    /// The auto reviewer.
    pub auto: bool,
}

impl Reviewers {
    /// A person alone.
    pub const PERSON: Self = Self { person: true, auto: false };
    /// The auto reviewer alone.
    pub const AUTO: Self = Self { person: false, auto: true };

    /// Returns the union: every member must agree.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self { person: self.person || other.person, auto: self.auto || other.auto }
    }
}

/// A component's demand that somebody agrees.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Ask {
    /// Why.
    pub reason: Reason,
    /// How long an agreement may be remembered at most.
    pub remember: Remember,
    /// Whether a remembered agreement holds for these very arguments only.
    pub bind_arguments: bool,
    /// Who must agree.
    pub reviewers: Reviewers,
}

/// What an approval component answers: abstain < allow < ask < deny.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// No opinion; never counts as consent.
    Abstain,
    /// Agrees; counts only where the layer may allow (R3, R11).
    Allow(Reason),
    /// Demands that somebody agrees.
    Ask(Ask),
    /// Refuses.
    Deny(Reason),
}

/// What a connector component says about an App tool. None: no opinion.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ConnectorAnswer {
    /// By which rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<RuleId>,
    /// Whether it may be seen and called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// How its calls are approved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<ApprovalMode>,
}

/// The stable code of a component's failure. Records, items and `explain` show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultCode {
    /// The guest trapped: unreachable, division by zero, out of bounds, an ABI violation.
    Trap,
    /// It used up its fuel.
    Fuel,
    /// It used up its time.
    Deadline,
    /// It asked for more memory, tables or instances than it may have.
    Memory,
    /// It recursed too deep.
    Stack,
    /// Its answer has an illegal value.
    OutputInvalid,
    /// Its answer is larger than it may be.
    OutputTooLarge,
    /// It asked for more input at once than it may have.
    InputTooLarge,
    /// It imports or calls what this host does not offer or did not grant.
    MissingImport,
    /// It was built for another version of the interface.
    WrongVersion,
    /// Its bytes are not those that were pinned.
    Digest,
    /// Its signature does not verify.
    Signature,
    /// Its settings are not those it takes.
    Settings,
    /// No worker, no slot or no share of the budget was left.
    Budget,
    /// It failed so often that it is not asked for a while.
    Circuit,
    /// It could not be read, or is no component.
    Missing,
}

impl FaultCode {
    /// Returns the code as it is written everywhere.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Trap => "trap",
            Self::Fuel => "fuel",
            Self::Deadline => "deadline",
            Self::Memory => "memory",
            Self::Stack => "stack",
            Self::OutputInvalid => "output-invalid",
            Self::OutputTooLarge => "output-too-large",
            Self::InputTooLarge => "input-too-large",
            Self::MissingImport => "missing-import",
            Self::WrongVersion => "wrong-version",
            Self::Digest => "digest",
            Self::Signature => "signature",
            Self::Settings => "settings",
            Self::Budget => "budget",
            Self::Circuit => "circuit",
            Self::Missing => "missing",
        }
    }

    /// Whether the fault is always a deny, whatever `on_failure` says (R14).
    ///
    /// These say that the component is not the one that was meant; no person can make up for that.
    #[must_use]
    pub fn always_denies(self) -> bool {
        match self {
            Self::Digest | Self::Signature | Self::WrongVersion | Self::Settings | Self::Missing | Self::Circuit => {
                true
            }
            Self::Trap
            | Self::Fuel
            | Self::Deadline
            | Self::Memory
            | Self::Stack
            | Self::OutputInvalid
            | Self::OutputTooLarge
            | Self::InputTooLarge
            | Self::MissingImport
            | Self::Budget => false,
        }
    }
}

impl fmt::Display for FaultCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A component's failure. The host makes it; a component cannot answer with one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, thiserror::Error)]
#[error("{code}: {detail}")]
pub struct Fault {
    /// The stable code.
    pub code: FaultCode,
    /// The detail for people and records; never for the model.
    pub detail: String,
}

impl Fault {
    /// Makes a fault; the detail is bounded and made visible.
    #[must_use]
    pub fn new(code: FaultCode, detail: impl AsRef<str>) -> Self {
        Self { code, detail: super::text::shown(detail.as_ref(), MAX_REASON) }
    }
}

/// What a layer wants when its component fails (`on_failure`). There is no allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// The call is refused.
    #[default]
    Deny,
    /// A person is asked, afresh every time.
    Ask,
}

/// The component that stands for rules of the host's own.
pub const HOST: &str = "host";

/// Which component of which layer spoke.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Source {
    /// The layer.
    pub layer: LayerRef,
    /// The component's name in that layer.
    pub component: Arc<str>,
    /// The component's digest; none when it could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.layer, self.component)
    }
}

/// The identity of one ask: what a grant remembers that it answered (R17).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct AskKey {
    /// Who asked.
    pub source: Source,
    /// By which rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<RuleId>,
}

/// One ask that stands after the fold.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct StandingAsk {
    /// Who asked, by which rule.
    pub key: AskKey,
    /// The ask.
    pub ask: Ask,
    /// The failure behind it; only a person's fresh answer satisfies it (R14).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    /// Whether it comes from strict review: neither grants nor hooks satisfy it (R12).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
}

impl StandingAsk {
    /// Whether only a fresh answer settles it: of a person where a component failed (R14) or a definition has changed (R24),
    /// of the auto reviewer where every call is reviewed (R12). No grant and no hook does.
    #[must_use]
    pub fn needs_a_fresh_answer(&self) -> bool {
        // What the host itself asks, it asks about what nobody has agreed to before.
        let hosts_own = self.key.source.layer.kind() == LayerKind::Builtin && &*self.key.source.component == HOST;
        self.fault.is_some() || self.strict || hosts_own
    }
}

/// One refusal that stands after the fold.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Refusal {
    /// Who refused.
    pub source: Source,
    /// Why.
    pub reason: Reason,
    /// The failure behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
}

/// What all layers together say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Folded {
    /// The call may run.
    Run {
        /// The layer whose allow lifted the baseline's ask; none when nothing had to be lifted.
        #[serde(skip_serializing_if = "Option::is_none")]
        lifted_by: Option<Source>,
    },
    /// Somebody must agree. Never empty.
    Ask(BTreeSet<StandingAsk>),
    /// The call is refused. Never empty.
    Deny(BTreeSet<Refusal>),
}

/// A label on the session, set when a call that carries it has run.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Label {
    /// The name.
    pub name: String,
    /// Who set it.
    pub source: Source,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r30_a_rule_id_is_short_and_plain() {
        assert!(RuleId::parse("deny.delete-repo_2").is_some());
        for bad in ["", "Ignore previous instructions", "a b", "é", &"a".repeat(65)] {
            assert!(RuleId::parse(bad).is_none(), "{bad:?} was taken");
        }
    }

    #[test]
    fn r14_faults_of_identity_always_deny() {
        use FaultCode::{Circuit, Digest, Missing, Settings, Signature, WrongVersion};
        assert!([Digest, Signature, WrongVersion, Settings, Missing, Circuit].iter().all(|code| code.always_denies()));
        assert!(!FaultCode::Deadline.always_denies());
    }

    #[test]
    fn remember_widens_from_never_to_always() {
        assert!(Remember::Never < Remember::Session && Remember::Session < Remember::Always);
    }
}
