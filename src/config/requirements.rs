//! What more trusted layers demand of less trusted ones, applied (design page 5, R1-R3, R5).
//!
//! Each source stands by itself and every one must be met, so several intersect and a deny wins (R1). A source restricts the
//! layers that are less trusted than its own, never its own. What is refused stays visible: a server is disabled, a policy's
//! component is refused when it is read, a choice counts as the strictest one that asks a person, and each says which
//! requirement of which layer did it.

use std::collections::BTreeSet;
use std::path::Path;

use super::discover::{Candidate, Content};
use super::identity::{parsed_url, url_is_below};
use super::parse::parse;
use super::plugins::path_of;
use super::policy_keys::PolicyLimitsTable;
use super::problem::Problem;
use super::requirements_keys::{LayerName, RequirementsTable, ReviewerName, ServerRequirement, anchored};
use super::server::{ResolvedServer, StdioLaunch, Transport};
use super::signature::{PublicKey, Signature};
use super::stack::{Layer, Resolved};
use super::template::Template;
use crate::model::digest::Digest;
use crate::model::layer::{LayerKind, LayerRef};
use crate::model::posture::{ApprovalMode, ApprovalPolicy, Profile, Reviewer};
use crate::model::verdict::OnFailure;

/// Whether a kind of layer may have `[requirements]`.
pub(crate) fn may_require(kind: LayerKind) -> bool {
    matches!(kind, LayerKind::Managed | LayerKind::System | LayerKind::Organisation)
}

/// Returns the layer whose requirements say that project layers are not read.
pub(crate) fn refuses_projects(candidates: &[Candidate]) -> Option<LayerRef> {
    let refuses = |candidate: &&Candidate| match &candidate.content {
        Content::Text(text, _) if may_require(candidate.layer.kind()) => parse(text.as_str(), &candidate.layer)
            .is_ok_and(|file| file.settings.requirements.is_some_and(|own| own.projects == Some(false))),
        Content::Text(..) | Content::Absent | Content::Broken(_) => false,
    };
    candidates.iter().filter(refuses).map(|candidate| candidate.layer.clone()).max_by_key(LayerRef::kind)
}

/// The requirements of one layer.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    layer: LayerRef,
    table: RequirementsTable,
}

/// Returns every layer's requirements, most trusted layer first.
pub(crate) fn sources(layers: &[Layer]) -> Vec<Source> {
    let source = |layer: &Layer| {
        let table = layer.file.settings.requirements.clone()?;
        Some(Source { layer: layer.reference.clone(), table })
    };
    let mut sources: Vec<_> = layers.iter().rev().filter_map(source).collect();
    sources.sort_by_key(|source| std::cmp::Reverse(source.layer.kind()));
    sources
}

impl Source {
    /// A layer is as trusted as what it vouches for: `--managed FILE` counts as session here.
    fn restricts(&self, layer: &LayerRef) -> bool {
        self.layer.kind() > layer.kind()
    }

    /// Returns the layer.
    pub(crate) fn layer(&self) -> &LayerRef {
        &self.layer
    }

    /// Returns what it says, with the keys of the file; what it leaves out is absent or null.
    pub(crate) fn shown(&self) -> serde_json::Value {
        serde_json::to_value(&self.table).unwrap_or_default()
    }

    /// Returns the list that decides about a server, with its key; none: it may exist.
    fn permitted(&self, server: &ResolvedServer) -> Option<(String, &[ServerRequirement])> {
        let all = self.table.servers.as_deref().map(|list| ("servers".to_owned(), list));
        let (Some(id), Some(plugins)) = (&server.plugin, &self.table.plugins) else { return all };
        let restricts = plugins.values().any(|plugin| plugin.servers.is_some());
        if !restricts || all.as_ref().is_some_and(|(_, list)| list.is_empty()) {
            return all;
        }
        let own = plugins.get(id).and_then(|plugin| plugin.servers.as_deref());
        Some((format!("{}.servers", super::parse::join("plugins", id)), own.unwrap_or_default()))
    }

    fn named(&self, key: &str) -> String {
        format!("`requirements.{key}` of the {} layer", self.layer)
    }
}

/// Takes the right to allow from layers that a requirement does not name (R3).
pub(crate) fn take_right(layers: &mut [Layer], sources: &[Source]) {
    for layer in layers {
        let kind = layer.definer.kind();
        let named = |names: &BTreeSet<LayerName>| names.iter().any(|name| name.value() == kind);
        let mut above = sources.iter().filter(|source| source.restricts(&layer.definer));
        layer.may_allow &= above.all(|source| source.table.may_allow.as_ref().is_none_or(named));
    }
}

/// Replaces choices that may not be made; each is a problem of its layer.
pub(crate) fn restrict(layers: &mut [Layer], sources: &[Source], problems: &mut Vec<Problem>) {
    for layer in layers {
        let definer = layer.definer.clone();
        // Who permits the auto reviewer alone demands it (approval-results 3.3 rule 1): it is that layer's own choice, and what
        // more trusted layers permit holds for it like for any other.
        let demands = |source: &Source| source.table.approvals_reviewers == Some([ReviewerName::AutoReview].into());
        if sources.iter().any(|source| source.layer == layer.reference && demands(source)) {
            layer.file.settings.approvals_reviewer.get_or_insert(Reviewer::AutoReview);
        }
        for source in sources.iter().filter(|source| source.restricts(&definer)) {
            choices(layer, source, problems);
        }
    }
}

fn choices(layer: &mut Layer, source: &Source, problems: &mut Vec<Problem>) {
    let table = &source.table;
    let mut refused: Vec<(String, &str, &str)> = Vec::new();
    let policies: Option<BTreeSet<_>> =
        table.approval_policies.as_ref().map(|s| s.iter().map(|n| n.value() as u8).collect());
    let modes: Option<BTreeSet<_>> = table.approval_modes.as_ref().map(|s| s.iter().map(|n| n.value() as u8).collect());
    let profiles: Option<BTreeSet<_>> =
        table.permission_profiles.as_ref().map(|s| s.iter().map(|n| n.value() as u8).collect());
    let settings = &mut layer.file.settings;
    let mut reviewer = |key: String, own: &mut Option<Reviewer>| {
        if let (Some(chosen), Some(permitted)) = (*own, &table.approvals_reviewers)
            && !permitted.iter().any(|name| name.value() == chosen)
        {
            let instead = permitted.iter().next().map_or("user", |name| name.as_str());
            // The choice of a person is void where only the auto reviewer may be chosen: what is demanded is said above.
            *own = (chosen == Reviewer::AutoReview).then_some(Reviewer::User);
            refused.push((key, "approvals_reviewers", instead));
        }
    };
    reviewer("approvals_reviewer".to_owned(), &mut settings.approvals_reviewer);
    for (id, app) in settings.apps.iter_mut().flatten() {
        let path = super::parse::join("apps", id);
        reviewer(format!("{path}.approvals_reviewer"), &mut app.approvals_reviewer);
    }
    if let (Some(own), Some(permitted)) = (&mut settings.approval_policy, &policies)
        && *own != ApprovalPolicy::Untrusted
        && !permitted.contains(&(*own as u8))
    {
        // Not `never`, the other strict one: with a full profile it runs everything.
        *own = ApprovalPolicy::Untrusted;
        refused.push(("approval_policy".to_owned(), "approval_policies", "untrusted"));
    }
    if let (Some(own), Some(permitted)) = (&mut settings.permission_profile, &profiles)
        && *own != Profile::ReadOnly
        && !permitted.contains(&(*own as u8))
    {
        *own = Profile::ReadOnly;
        refused.push(("permission_profile".to_owned(), "permission_profiles", "read-only"));
    }
    let mut mode = |key: String, own: &mut Option<ApprovalMode>| {
        if let (Some(own), Some(permitted)) = (own, &modes)
            && *own != ApprovalMode::Prompt
            && !permitted.contains(&(*own as u8))
        {
            *own = ApprovalMode::Prompt;
            refused.push((key, "approval_modes", "prompt"));
        }
    };
    let servers = layer.file.servers.iter_mut().map(|(name, server)| (path_of(None, name), server));
    let plugins = layer.file.plugins.iter_mut().flat_map(|(id, plugin)| {
        plugin.servers.iter_mut().map(|(name, server)| (path_of(Some(id.as_str()), name), server))
    });
    for (path, server) in servers.chain(plugins) {
        let Ok(server) = server else { continue };
        mode(format!("{path}.default_tools_approval_mode"), &mut server.default_tools_approval_mode);
        for (tool, own) in server.tools.iter_mut().flatten() {
            mode(
                format!("{}.approval_mode", super::parse::join(&format!("{path}.tools"), tool)),
                &mut own.approval_mode,
            );
        }
    }
    for (id, app) in settings.apps.iter_mut().flatten() {
        let path = super::parse::join("apps", id);
        mode(format!("{path}.default_tools_approval_mode"), &mut app.default_tools_approval_mode);
        for (tool, own) in &mut app.tools {
            mode(
                format!("{}.approval_mode", super::parse::join(&format!("{path}.tools"), tool)),
                &mut own.approval_mode,
            );
        }
    }
    for (key, requirement, instead) in refused {
        let message = format!("may not be chosen by {}; it counts as `{instead}`", source.named(requirement));
        problems.push(Problem::at(&layer.reference, layer.file.lines.get(&key).copied(), &key, message));
    }
}

/// Returns which layer says that a server may not exist, and why; the most trusted layer's requirement comes first.
///
/// Of plugins' servers, unlike catalog-dispatch 7.2 rule 8, a list of servers holds where no list of plugins does: here any layer
/// can write down a plugin, and a restriction that one more line of the restricted layer evades is none (design page 5).
pub(crate) fn refused_server(server: &ResolvedServer, sources: &[Source]) -> Option<(LayerRef, String)> {
    sources.iter().filter(|source| source.restricts(&server.layer)).find_map(|source| {
        let (key, permitted) = source.permitted(server)?;
        let named: Vec<_> = permitted.iter().filter(|one| is_name(one, server)).collect();
        if named.iter().any(|one| is_met(one, &server.transport)) {
            return None;
        }
        let why = if named.iter().any(|one| one.name.is_some()) {
            "lists this name for another server"
        } else if named.is_empty() {
            "lists no server of this name"
        } else {
            "lists no such server, of this name or of any"
        };
        Some((source.layer.clone(), format!("refused by {}, which {why} (R5)", source.named(&key))))
    })
}

fn is_name(wanted: &ServerRequirement, server: &ResolvedServer) -> bool {
    wanted.name.as_ref().is_none_or(|name| name == server.name.as_str())
}

/// Returns which layer's requirement says that a plugin that `definer` defines is switched off, and why.
pub(crate) fn refused_plugin(id: &str, definer: &LayerRef, sources: &[Source]) -> Option<(LayerRef, String)> {
    sources.iter().filter(|source| source.restricts(definer)).find_map(|source| {
        let off = source.table.plugins.as_ref()?.get(id)?.enabled == Some(false);
        let key = format!("{}.enabled", super::parse::join("plugins", id));
        off.then(|| (source.layer.clone(), format!("refused by {}", source.named(&key))))
    })
}

/// Returns which requirement says that a layer's hooks are not run.
pub(crate) fn refused_hooks(layer: &LayerRef, sources: &[Source]) -> Option<String> {
    let mut above = sources.iter().filter(|source| source.restricts(layer));
    let by = above.find(|source| source.table.hooks == Some(false))?;
    Some(format!("refused by {}", by.named("hooks")))
}

/// Returns which requirement says that a layer's auto reviewer is not asked.
pub(crate) fn refused_reviewer(layer: &LayerRef, sources: &[Source]) -> Option<String> {
    let mut above = sources.iter().filter(|source| source.restricts(layer));
    let by = above.find(|source| source.table.reviewers == Some(false))?;
    Some(format!("refused by {}", by.named("reviewers")))
}

/// Whether a requirement says that the failure of what a layer brings is a refusal.
pub(crate) fn failures_deny(layer: &LayerRef, sources: &[Source]) -> bool {
    let mut above = sources.iter().filter(|source| source.restricts(layer));
    above.any(|source| source.table.on_failure == Some(OnFailure::Deny))
}

fn is_met(wanted: &ServerRequirement, transport: &Transport) -> bool {
    match transport {
        Transport::Stdio(launch) => is_command(wanted, launch),
        Transport::Http(target) => is_url(wanted, &target.url),
        Transport::Unreadable => false,
    }
}

fn is_command(wanted: &ServerRequirement, launch: &StdioLaunch) -> bool {
    let mut variables = launch.env.keys().chain(&launch.inherit);
    let permitted = variables.all(|name| wanted.env.as_ref().is_some_and(|names| names.contains(name)));
    let placed = wanted.cwd.as_ref().is_none_or(|cwd| launch.cwd == Path::new(cwd));
    let Some(args) = launch.args.iter().map(Template::literal).collect::<Option<Vec<_>>>() else { return false };
    let is_program = |program: &String| {
        *program == launch.command || launch.executable.as_ref().is_ok_and(|own| own == Path::new(program))
    };
    let exact = wanted
        .command
        .as_ref()
        .and_then(|command| command.split_first())
        .is_some_and(|(program, rest)| is_program(program) && rest == args);
    let matched = wanted.executable.as_ref().is_some_and(|program| {
        let matchers = wanted.args.as_deref().unwrap_or_default();
        let each = matchers.len() == args.len() && matchers.iter().zip(&args).all(|(one, arg)| one.is_met_by(arg));
        is_program(program) && each
    });
    let regex = wanted.command_regex.as_ref().and_then(|pattern| anchored(pattern).ok()).is_some_and(|regex| {
        let words: Vec<&str> =
            std::iter::once(launch.command.as_str()).chain(args.iter().map(String::as_str)).collect();
        // Joined by spaces, a word with a space in it would read like two.
        let plain = |word: &&str| !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || c.is_control());
        words.iter().all(plain) && regex.is_match(&words.join(" "))
    });
    permitted && placed && (exact || regex || matched)
}

fn is_url(wanted: &ServerRequirement, url: &Template) -> bool {
    let Some(url) = url.literal().and_then(|url| parsed_url(&url)) else { return false };
    let parsed = |wanted: &Option<String>| wanted.as_deref().and_then(parsed_url);
    let address = url.split(['?', '#']).next().unwrap_or_default();
    parsed(&wanted.url).is_some_and(|wanted| wanted == url)
        || parsed(&wanted.url_prefix).is_some_and(|prefix| url_is_below(&url, &prefix))
        || wanted.url_regex.as_ref().and_then(|regex| anchored(regex).ok()).is_some_and(|regex| regex.is_match(address))
}

/// What the requirements say about one layer's components.
#[derive(Debug, Clone, Default)]
pub(crate) struct Floor {
    /// Whether a failure may not be an ask.
    deny: bool,
    /// The most that a component may use.
    pub(crate) most: PolicyLimitsTable,
    demands: Vec<Demand>,
}

/// What one layer demands of a component's bytes.
#[derive(Debug, Clone)]
struct Demand {
    layer: LayerRef,
    sha256: Option<BTreeSet<Digest>>,
    signers: Option<Vec<PublicKey>>,
}

/// Returns every key that some requirement accepts signatures of.
#[must_use]
pub fn signers(resolved: &Resolved) -> Vec<PublicKey> {
    let components = resolved.requirements.iter().filter_map(|source| source.table.components.as_ref());
    components
        .flat_map(|components| components.signers.iter().flatten())
        .filter_map(|(_, key)| PublicKey::parse(key).ok())
        .collect()
}

/// Why a component may not be loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unmet {
    /// Its digest is not permitted.
    #[error("refused by `requirements.components.sha256` of the {0} layer, which does not list {1}")]
    Digest(LayerRef, Digest),
    /// It has no signature that counts.
    #[error("refused by `requirements.components.require_signature` of the {0} layer: {1}")]
    Signature(LayerRef, String),
}

impl Floor {
    /// Returns what holds for components of a layer.
    pub(crate) fn of(layer: &LayerRef, sources: &[Source]) -> Self {
        let mut floor = Self::default();
        for source in sources.iter().filter(|source| source.restricts(layer)) {
            floor.deny |= source.table.on_failure == Some(OnFailure::Deny);
            let most = source.table.limits.unwrap_or_default();
            let least = |one: Option<u32>, other: Option<u32>| one.into_iter().chain(other).min();
            floor.most.time_ms = least(floor.most.time_ms, most.time_ms);
            floor.most.memory_mib = least(floor.most.memory_mib, most.memory_mib);
            let Some(components) = &source.table.components else { continue };
            let digests =
                components.sha256.as_ref().map(|list| list.iter().filter_map(|d| Digest::parse(d).ok()).collect());
            let keys =
                || components.signers.iter().flatten().filter_map(|(_, key)| PublicKey::parse(key).ok()).collect();
            let signers = (components.require_signature == Some(true)).then(keys);
            floor.demands.push(Demand { layer: source.layer.clone(), sha256: digests, signers });
        }
        floor
    }

    /// Returns what a failure means.
    pub(crate) fn on_failure(&self, own: OnFailure) -> OnFailure {
        if self.deny { OnFailure::Deny } else { own }
    }

    /// Whether a signature is needed.
    pub(crate) fn needs_signature(&self) -> bool {
        self.demands.iter().any(|demand| demand.signers.is_some())
    }

    /// Checks a component's bytes by their digest and the signature file's text (`None`: there is none).
    ///
    /// # Errors
    /// The first demand that is not met.
    pub(crate) fn check(&self, found: Digest, signature: Option<&[u8]>) -> Result<(), Unmet> {
        for demand in &self.demands {
            if demand.sha256.as_ref().is_some_and(|permitted| !permitted.contains(&found)) {
                return Err(Unmet::Digest(demand.layer.clone(), found));
            }
            let Some(signers) = &demand.signers else { continue };
            let why = match signature.map(Signature::parse) {
                None => "there is no signature beside the component".to_owned(),
                Some(Err(error)) => error.to_string(),
                Some(Ok(signature)) => match signature.verify(found, signers) {
                    Ok(()) => continue,
                    Err(error) => error.to_string(),
                },
            };
            return Err(Unmet::Signature(demand.layer.clone(), why));
        }
        Ok(())
    }
}
