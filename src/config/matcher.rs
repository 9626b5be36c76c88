//! Which calls a policy is asked about.
//!
//! `servers` and `identities` widen each other, `tools` and `kinds` narrow; what is absent covers all (R23). In managed and
//! organisation a server's name covers every server like it, under whatever name (R5): that is settled here, once, into
//! a set of identities. The host adapts a [`Matcher`] to the port that the fold asks.

use std::collections::{BTreeMap, BTreeSet};

use globset::{Glob, GlobSet, GlobSetBuilder};

use super::identity::Likeness;
use super::policy_keys::{KindName, MatchTable};
use super::problem::Problem;
use super::server::ResolvedServer;
use super::stack::Layer;
use super::unknown::closest;
use crate::model::layer::LayerKind;
use crate::model::name::{RawToolName, ServerName};
use crate::model::tool::ServerIdentity;

/// A policy's `match`, ready to be asked.
#[derive(Debug, Clone, Default)]
pub struct Matcher {
    servers: Option<GlobSet>,
    identities: Option<BTreeSet<ServerIdentity>>,
    tools: Option<GlobSet>,
    kinds: Option<BTreeSet<KindName>>,
}

impl Matcher {
    /// A matcher of every call.
    #[must_use]
    pub fn everything() -> Self {
        Self::default()
    }

    /// Builds the matcher of a policy of a layer of this kind. A pattern that is none makes it match everything.
    pub(crate) fn new(table: &MatchTable, kind: LayerKind, servers: &BTreeMap<ServerName, ResolvedServer>) -> Self {
        let globs = |patterns: &Option<Vec<String>>| patterns.as_ref().map(|patterns| glob_set(patterns)).transpose();
        let (Ok(names), Ok(tools)) = (globs(&table.servers), globs(&table.tools)) else { return Self::everything() };
        let by_identity = |server: &ResolvedServer| {
            let likeness = Likeness::of(&server.transport);
            table.identities.iter().flatten().any(|wanted| likeness.is_meant_by(wanted))
        };
        let mut meant: BTreeSet<_> = servers.values().filter(|s| by_identity(s)).map(|s| s.identity).collect();
        if let Some(names) = &names
            && matches!(kind, LayerKind::Managed | LayerKind::Organisation)
        {
            let named = servers.values().filter(|server| names.is_match(server.name.as_str()));
            let named: Vec<_> = named.map(|server| (server.identity, Likeness::of(&server.transport))).collect();
            let like = |server: &&ResolvedServer| {
                let own = Likeness::of(&server.transport);
                named.iter().any(|(identity, likeness)| *identity == server.identity || likeness.is_like(&own))
            };
            meant.extend(servers.values().filter(like).map(|server| server.identity));
        }
        let constrained = table.identities.is_some() || !meant.is_empty();
        Self {
            servers: names,
            identities: constrained.then_some(meant),
            tools,
            kinds: table.kinds.as_ref().map(|kinds| kinds.iter().copied().collect()),
        }
    }

    /// Whether the policy is asked about a call.
    #[must_use]
    pub fn matches(&self, kind: KindName, server: &ServerName, tool: &RawToolName, identity: ServerIdentity) -> bool {
        let server = match (&self.servers, &self.identities) {
            (None, None) => true,
            (names, identities) => {
                names.as_ref().is_some_and(|names| names.is_match(server.as_str()))
                    || identities.as_ref().is_some_and(|identities| identities.contains(&identity))
            }
        };
        server
            && self.tools.as_ref().is_none_or(|tools| tools.is_match(tool.as_str()))
            && self.kinds.as_ref().is_none_or(|kinds| kinds.contains(&kind))
    }
}

/// Warns of every pattern of a policy's `match.servers` that no configured server's name fits, with the nearest name.
pub(crate) fn unmatched_servers(layers: &[Layer], servers: &BTreeMap<ServerName, ResolvedServer>) -> Vec<Problem> {
    let mut found = Vec::new();
    for layer in layers {
        let readable = layer.file.policies.iter().filter(|item| item.entry.is_ok());
        for (item, pattern) in readable.flat_map(|i| i.matches.servers.iter().flatten().map(move |p| (i, p))) {
            let Ok(glob) = Glob::new(pattern) else { continue };
            let glob = glob.compile_matcher();
            if servers.keys().any(|name| glob.is_match(name.as_str())) {
                continue;
            }
            let key = format!("{}.match.servers", item.key);
            let line = layer.file.lines.get(&key).copied();
            let message = format!("of the policy `{}`: no configured server is called `{pattern}`", item.name);
            let suggestion = closest(pattern, servers.keys().map(ServerName::as_str));
            found.push(Problem { suggestion, ..Problem::at(&layer.reference, line, &key, message) });
        }
    }
    found
}

fn glob_set(patterns: &[String]) -> Result<GlobSet, globset::Error> {
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        set.add(Glob::new(pattern)?);
    }
    set.build()
}
