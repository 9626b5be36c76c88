//! What the configuration says about approval: policy, profile, mode, reviewer. The baseline decides on these.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::layer::{LayerKind, LayerRef};
use super::name::{RawToolName, ServerName, ToolRef};
use super::role::{LayerRoles, Role};

/// When approval is asked for at all (`approval_policy`). Source: approval-results 1.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ApprovalPolicy {
    /// Asks people; never the auto reviewer.
    Untrusted,
    /// Asks when a call needs it.
    #[default]
    #[serde(alias = "on-failure")]
    OnRequest,
    /// Like `on-request`, with switches of its own for other kinds of questions.
    Granular,
    /// Never asks: what would need asking is refused.
    Never,
}

/// How a tool's calls are approved (`default_tools_approval_mode`, `tools.<name>.approval_mode`).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum ApprovalMode {
    /// Never asks.
    Approve,
    /// Asks by the tool's hints.
    #[default]
    Auto,
    /// Asks unless the tool says that it only reads.
    Writes,
    /// Always asks.
    Prompt,
}

impl ApprovalMode {
    /// Returns the word as configuration spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Approve => "approve",
            Self::Auto => "auto",
            Self::Writes => "writes",
            Self::Prompt => "prompt",
        }
    }
}

/// What the agent's surroundings permit (`permission_profile`). Comes from configuration, never from a client (R2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// Reads only.
    ReadOnly,
    /// Writes in the workspace.
    #[default]
    Workspace,
    /// Writes anywhere.
    Full,
}

impl Profile {
    /// Whether the profile permits writing anywhere.
    #[must_use]
    pub fn is_full_write(self) -> bool {
        matches!(self, Self::Full)
    }
}

/// Who answers an ask by default (`approvals_reviewer`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reviewer {
    /// A person.
    #[default]
    User,
    /// The auto reviewer.
    #[serde(alias = "guardian_subagent")]
    AutoReview,
}

/// Where a person's answer comes from (`approvals.channels`, R20).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Channel {
    /// The client of the session, by MCP elicitation.
    Elicitation,
    /// The terminal of the process that makes the call.
    Terminal,
    /// Another terminal, by `portcullis approvals`.
    Queue,
    /// The program that embeds the host.
    Program,
}

impl Channel {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Elicitation, Self::Terminal, Self::Queue, Self::Program];

    /// Returns the word as configuration spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Elicitation => "elicitation",
            Self::Terminal => "terminal",
            Self::Queue => "queue",
            Self::Program => "program",
        }
    }
}

/// One layer's view of a call: what the baseline is asked with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
pub struct Posture {
    /// The approval policy.
    pub policy: ApprovalPolicy,
    /// The permission profile.
    pub profile: Profile,
    /// The tool's approval mode.
    pub mode: ApprovalMode,
    /// Whether every call of this turn goes to the auto reviewer.
    pub strict_review: bool,
}

/// The approval modes that one layer sets for one server.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ServerModes {
    /// `default_tools_approval_mode`.
    pub default: Option<ApprovalMode>,
    /// `tools.<raw tool>.approval_mode`.
    pub tools: BTreeMap<RawToolName, ApprovalMode>,
}

/// What one layer says about approval. Unset means that the layer leaves the key to others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LayerPosture {
    /// The layer.
    pub layer: LayerRef,
    /// Whether the layer may loosen the builtin posture (R3).
    pub may_allow: bool,
    /// `approval_policy`.
    pub policy: Option<ApprovalPolicy>,
    /// `permission_profile`.
    pub profile: Option<Profile>,
    /// `strict_auto_review`.
    pub strict_review: Option<bool>,
    /// `approvals_reviewer`.
    pub reviewer: Option<Reviewer>,
    /// `apps.NAME.approvals_reviewer`, by connector, `_default` included.
    pub app_reviewers: BTreeMap<String, Reviewer>,
    /// `approvals.channels`: where what this layer asks may be answered; unset: everywhere.
    pub channels: Option<BTreeSet<Channel>>,
    /// `approvals.roles`: who may answer what this layer asks; unset: everybody.
    pub roles: Option<BTreeSet<Role>>,
    /// The modes for each server.
    pub modes: BTreeMap<ServerName, ServerModes>,
}

impl LayerPosture {
    /// A layer that says nothing yet.
    #[must_use]
    pub fn silent(layer: LayerRef, may_allow: bool) -> Self {
        Self {
            layer,
            may_allow,
            policy: None,
            profile: None,
            strict_review: None,
            reviewer: None,
            app_reviewers: BTreeMap::new(),
            channels: None,
            roles: None,
            modes: BTreeMap::new(),
        }
    }

    fn mode(&self, tool: &ToolRef) -> Option<ApprovalMode> {
        let modes = self.modes.get(&tool.server)?;
        modes.tools.get(&tool.tool).copied().or(modes.default)
    }

    fn speaks_about(&self, tool: &ToolRef) -> bool {
        self.policy.is_some() || self.profile.is_some() || self.strict_review.is_some() || self.mode(tool).is_some()
    }
}

/// Every layer's posture, side by side (R2 as amended): the baseline is asked with each, and the strictest outcome counts.
///
/// A key that a layer leaves unset is taken from the most trusted layer that may allow and sets it, else it is builtin. So a
/// layer that may not allow never loosens anything, not even by being the only one that speaks.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct PostureLayers {
    layers: Vec<LayerPosture>,
}

impl PostureLayers {
    /// Takes the layers in any order.
    #[must_use]
    pub fn new(mut layers: Vec<LayerPosture>) -> Self {
        layers.sort_by(|a, b| b.layer.cmp(&a.layer));
        Self { layers }
    }

    /// Returns what each layer says, most trusted layer first.
    #[must_use]
    pub fn layers(&self) -> &[LayerPosture] {
        &self.layers
    }

    /// Returns the postures to evaluate for a tool, most trusted layer first. Never empty: where no layer that may allow
    /// speaks, the builtin posture is among them.
    #[must_use]
    pub fn for_tool(&self, tool: &ToolRef) -> Vec<(LayerRef, Posture)> {
        let speaking = self.layers.iter().filter(|layer| layer.speaks_about(tool));
        let mut postures: Vec<_> = speaking.clone().map(|own| (own.layer.clone(), self.complete(own, tool))).collect();
        if !speaking.clone().any(|layer| layer.may_allow) {
            postures.push((LayerRef::new(LayerKind::Builtin), Posture::default()));
        }
        postures
    }

    /// Returns the modes that layers set for a tool's server or for the tool, most trusted layer first; what is not set is not
    /// there.
    #[must_use]
    pub fn modes_for(&self, tool: &ToolRef) -> Vec<(LayerRef, ApprovalMode)> {
        self.layers.iter().filter_map(|layer| Some((layer.layer.clone(), layer.mode(tool)?))).collect()
    }

    fn complete(&self, own: &LayerPosture, tool: &ToolRef) -> Posture {
        let loosening = || self.layers.iter().filter(|layer| layer.may_allow);
        Posture {
            policy: own.policy.or_else(|| loosening().find_map(|l| l.policy)).unwrap_or_default(),
            profile: own.profile.or_else(|| loosening().find_map(|l| l.profile)).unwrap_or_default(),
            mode: own.mode(tool).or_else(|| loosening().find_map(|l| l.mode(tool))).unwrap_or_default(),
            strict_review: self.layers.iter().any(|l| l.strict_review == Some(true)),
        }
    }

    /// Returns whether every call goes to the auto reviewer, and which layer wants it.
    #[must_use]
    pub fn strict_review(&self) -> Option<&LayerRef> {
        self.layers.iter().find(|layer| layer.strict_review == Some(true)).map(|layer| &layer.layer)
    }

    /// Returns the channels that may answer a question in which all of these layers ask: those that every one of them names
    /// (R20).
    #[must_use]
    pub fn channels<'a>(&self, asking: impl IntoIterator<Item = &'a LayerRef>) -> BTreeSet<Channel> {
        let mut channels = BTreeSet::from(Channel::ALL);
        for layer in asking {
            let own = self.layers.iter().filter(|own| own.layer == *layer).filter_map(|own| own.channels.as_ref());
            own.for_each(|named| channels.retain(|channel| named.contains(channel)));
        }
        channels
    }

    /// Returns what whoever answers a question has to be in which all of these layers ask, the most trusted layer first: one of
    /// the roles of each layer that names some (R20).
    #[must_use]
    pub fn roles<'a>(&self, asking: impl IntoIterator<Item = &'a LayerRef>) -> Vec<LayerRoles> {
        let asking: BTreeSet<&LayerRef> = asking.into_iter().collect();
        let naming = self.layers.iter().filter(|own| asking.contains(&own.layer));
        let wanted = |own: &LayerPosture| Some(LayerRoles { layer: own.layer.clone(), roles: own.roles.clone()? });
        naming.filter_map(wanted).collect()
    }

    /// Returns who answers an ask that names nobody, about a tool of this connector if it is an App's: what the most trusted
    /// layer says of the connector, else of Apps in general, else of everything; else a person (approval-results 3.3).
    ///
    /// That the auto reviewer answers in a person's place loosens, so only layers that may allow can say it (R2, R3).
    #[must_use]
    pub fn reviewer(&self, connector: Option<&str>) -> Reviewer {
        let first = |said: &dyn Fn(&LayerPosture) -> Option<Reviewer>| {
            let counts = |layer: &LayerPosture, said: Reviewer| said == Reviewer::User || layer.may_allow;
            self.layers.iter().find_map(|layer| said(layer).filter(|said| counts(layer, *said)))
        };
        let of_app = |name: &str| first(&|layer| layer.app_reviewers.get(name).copied());
        let of_apps = connector.and_then(|connector| of_app(connector).or_else(|| of_app("_default")));
        of_apps.or_else(|| first(&|layer| layer.reviewer)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool() -> ToolRef {
        ToolRef::parse("files/write").unwrap()
    }

    fn layer(kind: LayerKind) -> LayerPosture {
        LayerPosture::silent(LayerRef::new(kind), kind.may_allow_by_default())
    }

    fn with_mode(kind: LayerKind, mode: ApprovalMode) -> LayerPosture {
        let modes = ServerModes { default: Some(mode), tools: BTreeMap::new() };
        LayerPosture { modes: BTreeMap::from([(tool().server, modes)]), ..layer(kind) }
    }

    fn kinds(postures: &[(LayerRef, Posture)]) -> Vec<(LayerKind, ApprovalMode)> {
        postures.iter().map(|(layer, posture)| (layer.kind(), posture.mode)).collect()
    }

    #[test]
    fn r3_only_a_layer_that_may_allow_puts_the_auto_reviewer_in_a_persons_place() {
        let says = |kind, reviewer| LayerPosture { reviewer: Some(reviewer), ..layer(kind) };
        let of = |layers: Vec<LayerPosture>| PostureLayers::new(layers).reviewer(None);
        assert_eq!(of(vec![says(LayerKind::Project, Reviewer::AutoReview)]), Reviewer::User);
        assert_eq!(of(vec![says(LayerKind::User, Reviewer::AutoReview)]), Reviewer::AutoReview);
        let both = vec![says(LayerKind::Managed, Reviewer::User), says(LayerKind::User, Reviewer::AutoReview)];
        assert_eq!(of(both), Reviewer::User);
    }

    #[test]
    fn an_apps_own_reviewer_comes_before_that_of_apps_in_general_and_of_everything() {
        let apps = [("_default", Reviewer::AutoReview), ("bank", Reviewer::User)];
        let user = LayerPosture {
            app_reviewers: apps.map(|(name, reviewer)| (name.to_owned(), reviewer)).into(),
            ..layer(LayerKind::User)
        };
        let layers = PostureLayers::new(vec![user]);
        let of = |connector| layers.reviewer(connector);
        assert_eq!((of(Some("bank")), of(Some("calendar"))), (Reviewer::User, Reviewer::AutoReview));
        assert_eq!(of(None), Reviewer::User);
    }

    #[test]
    fn r20_only_channels_that_every_asking_layer_names_may_answer() {
        let naming = |kind, channels: &[Channel]| LayerPosture {
            channels: Some(channels.iter().copied().collect()),
            ..layer(kind)
        };
        let managed = naming(LayerKind::Managed, &[Channel::Queue, Channel::Terminal]);
        let user = naming(LayerKind::User, &[Channel::Queue, Channel::Elicitation]);
        let layers = PostureLayers::new(vec![managed, user, layer(LayerKind::Project)]);
        let of = |kinds: &[LayerKind]| {
            let asking: Vec<LayerRef> = kinds.iter().map(|kind| LayerRef::new(*kind)).collect();
            layers.channels(&asking).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(of(&[LayerKind::Project]), Channel::ALL);
        assert_eq!(of(&[LayerKind::Managed]), [Channel::Terminal, Channel::Queue]);
        assert_eq!(of(&[LayerKind::Managed, LayerKind::User]), [Channel::Queue]);
    }

    #[test]
    fn r20_every_asking_layer_that_names_roles_wants_one_of_its_own() {
        let naming =
            |kind, roles: &[&str]| LayerPosture { roles: Some(Role::of_groups(roles.iter().copied())), ..layer(kind) };
        let layers = PostureLayers::new(vec![
            naming(LayerKind::User, &["ops"]),
            naming(LayerKind::Managed, &["security", "audit"]),
            layer(LayerKind::Project),
        ]);
        let of = |kinds: &[LayerKind]| {
            let asking: Vec<LayerRef> = kinds.iter().map(|kind| LayerRef::new(*kind)).collect();
            let wanted = layers.roles(&asking);
            wanted.iter().map(|wanted| format!("{}: {}", wanted.layer, wanted.words())).collect::<Vec<_>>()
        };
        assert!(of(&[LayerKind::Project]).is_empty());
        assert_eq!(of(&[LayerKind::User]), ["user: `ops`"]);
        assert_eq!(of(&[LayerKind::User, LayerKind::Managed]), ["managed: `audit` or `security`", "user: `ops`"]);
    }

    #[test]
    fn r2_without_any_layer_the_builtin_posture_counts() {
        let postures = PostureLayers::default().for_tool(&tool());
        assert_eq!(kinds(&postures), [(LayerKind::Builtin, ApprovalMode::Auto)]);
    }

    #[test]
    fn r2_a_layer_that_may_not_allow_stands_beside_the_builtin_posture() {
        let layers = PostureLayers::new(vec![with_mode(LayerKind::Project, ApprovalMode::Approve)]);
        let want = [(LayerKind::Project, ApprovalMode::Approve), (LayerKind::Builtin, ApprovalMode::Auto)];
        assert_eq!(kinds(&layers.for_tool(&tool())), want);
    }

    #[test]
    fn r2_a_layer_that_may_allow_replaces_the_builtin_posture() {
        let layers = PostureLayers::new(vec![with_mode(LayerKind::User, ApprovalMode::Approve)]);
        assert_eq!(kinds(&layers.for_tool(&tool())), [(LayerKind::User, ApprovalMode::Approve)]);
    }

    #[test]
    fn r2_an_unset_key_is_never_filled_by_a_layer_that_may_not_allow() {
        let user = LayerPosture { policy: Some(ApprovalPolicy::Never), ..layer(LayerKind::User) };
        let project = LayerPosture { profile: Some(Profile::Full), ..layer(LayerKind::Project) };
        let postures = PostureLayers::new(vec![project, user]).for_tool(&tool());
        assert_eq!(postures[0].1.profile, Profile::Workspace, "the user's posture took the project's profile");
        assert_eq!(postures[1].1.policy, ApprovalPolicy::Never, "the project's posture lost the user's policy");
    }

    #[test]
    fn a_tools_own_mode_wins_over_its_servers_default_within_a_layer() {
        let mut layer = with_mode(LayerKind::User, ApprovalMode::Approve);
        let modes = layer.modes.get_mut(&tool().server).unwrap();
        modes.tools.insert(tool().tool, ApprovalMode::Prompt);
        let layers = PostureLayers::new(vec![layer]);
        assert_eq!(kinds(&layers.for_tool(&tool())), [(LayerKind::User, ApprovalMode::Prompt)]);
    }

    #[test]
    fn strict_review_of_any_layer_holds_for_all() {
        let project = LayerPosture { strict_review: Some(true), ..layer(LayerKind::Project) };
        let layers = PostureLayers::new(vec![with_mode(LayerKind::User, ApprovalMode::Approve), project]);
        assert!(layers.for_tool(&tool()).iter().all(|(_, posture)| posture.strict_review));
        assert_eq!(layers.strict_review().map(LayerRef::kind), Some(LayerKind::Project));
    }
}
