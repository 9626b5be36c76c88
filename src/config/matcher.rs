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
use super::stack::{Layer, Resolved};
use super::unknown::closest;
use crate::model::layer::LayerKind;
use crate::model::name::{RawToolName, ServerName};
use crate::model::text::shown;
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
        self.covers(server, identity)
            && self.tools.as_ref().is_none_or(|tools| tools.is_match(tool.as_str()))
            && self.is_about(kind)
    }

    /// Whether the policy is asked about calls to a server.
    pub(crate) fn covers(&self, server: &ServerName, identity: ServerIdentity) -> bool {
        match (&self.servers, &self.identities) {
            (None, None) => true,
            (names, identities) => {
                names.as_ref().is_some_and(|names| names.is_match(server.as_str()))
                    || identities.as_ref().is_some_and(|identities| identities.contains(&identity))
            }
        }
    }

    /// Whether the policy is asked about calls of a kind.
    pub(crate) fn is_about(&self, kind: KindName) -> bool {
        self.kinds.as_ref().is_none_or(|kinds| kinds.contains(&kind))
    }
}

/// The tools of each server that has told them, by raw name. What a server that is not in it has is not known.
pub type KnownTools = BTreeMap<ServerName, BTreeSet<RawToolName>>;

/// Warns of every pattern of a policy's `match.tools` that fits no tool of any server that the policy is asked about, with the
/// nearest name. Says nothing of a policy while the tools of one of its servers are not known, nor of a pattern for everything.
#[must_use]
pub fn unmatched_tools(resolved: &Resolved, known: &KnownTools) -> Vec<Problem> {
    let mut found = Vec::new();
    for entry in
        resolved.policies.iter().filter(|entry| entry.broken.is_none() && entry.matcher.is_about(KindName::Tool))
    {
        let covered = resolved.servers.values().filter(|server| entry.matcher.covers(&server.name, server.identity));
        let Some(tools) = covered.map(|server| known.get(&server.name)).collect::<Option<Vec<_>>>() else { continue };
        if tools.is_empty() {
            // Its servers are what is wrong, and that is said already.
            continue;
        }
        let names = || tools.iter().copied().flatten().map(RawToolName::as_str);
        for pattern in entry.matches.tools.iter().flatten().filter(|pattern| pattern.chars().any(|c| c != '*')) {
            let Ok(glob) = Glob::new(pattern) else { continue };
            let glob = glob.compile_matcher();
            if names().any(|name| glob.is_match(name)) {
                continue;
            }
            let key = format!("{}.match.tools", entry.key);
            let status = resolved.layers.iter().find(|status| status.layer == entry.layer);
            let line = status.and_then(|status| status.lines.get(&key).copied()).or(entry.line);
            let component = shown(&entry.component.display().to_string(), 100);
            let message = format!(
                "of the policy `{}`, component `{component}`: no tool of its servers is called `{}`",
                entry.name,
                shown(pattern, 100)
            );
            let suggestion = closest(pattern, names());
            found.push(Problem { suggestion, ..Problem::at(&entry.layer, line, &key, message) });
        }
    }
    found
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::stack::load;
    use crate::config::{EmbeddedLayer, Places, SessionSources};

    /// What is said of a policy with this `match`, where the servers `a` and `b` are configured and `known` is known.
    fn warnings(matches: &str, known: &[(&str, &[&str])]) -> Vec<String> {
        let text = format!(
            "[mcp_servers.a]\ncommand = 'one'\n[mcp_servers.b]\ncommand = 'two'\n\
             [[policies]]\nname = 'p'\ncomponent = 'c.wasm'\nmatch = {{ {matches} }}\n"
        );
        let embedded = vec![EmbeddedLayer { kind: LayerKind::User, text, folder: std::env::temp_dir() }];
        let resolved = load(&Places::nowhere(), &SessionSources { embedded, ..SessionSources::default() });
        assert!(resolved.problems.is_empty(), "{:?}", resolved.problems);
        let tools = |tools: &[&str]| tools.iter().map(|tool| RawToolName::parse(tool).unwrap()).collect();
        let known = known.iter().map(|(server, own)| (ServerName::parse(server).unwrap(), tools(own))).collect();
        unmatched_tools(&resolved, &known).iter().map(ToString::to_string).collect()
    }

    const BOTH: &[(&str, &[&str])] = &[("a", &["read_file"]), ("b", &["write_file", "list"])];

    #[test]
    fn a_pattern_that_fits_no_tool_is_a_warning_with_line_component_and_the_nearest_name() {
        let wanted = "user layer:8: `policies[0].match.tools`: of the policy `p`, component `c.wasm`: no tool of its servers is \
                      called `write_fiel` (did you mean `write_file`?)";
        assert_eq!(warnings("tools = ['read_*', 'write_fiel']", BOTH), [wanted]);
        assert_eq!(warnings("tools = ['nowhere*']", BOTH).len(), 1);
    }

    #[test]
    fn what_fits_a_tool_of_one_of_its_servers_is_no_mistake_and_another_servers_tool_is_none_of_its() {
        assert!(warnings("tools = ['read_*', 'list']", BOTH).is_empty());
        assert!(warnings("servers = ['b'], tools = ['write_file']", BOTH).is_empty());
        assert_eq!(warnings("servers = ['b'], tools = ['read_file']", BOTH).len(), 1);
    }

    #[test]
    fn nothing_is_said_of_tools_that_are_not_known_nor_of_patterns_for_everything() {
        assert!(warnings("tools = ['nothing']", &BOTH[..1]).is_empty());
        assert_eq!(warnings("servers = ['a'], tools = ['nothing']", &BOTH[..1]).len(), 1);
        assert!(warnings("tools = ['*', '**']", &[("a", &[]), ("b", &[])]).is_empty());
        assert!(warnings("kinds = ['read'], tools = ['nothing']", BOTH).is_empty());
        assert!(warnings("servers = ['none'], tools = ['nothing']", BOTH).is_empty());
    }
}
