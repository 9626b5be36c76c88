//! Raw identities become unique names that a model can send back.
//!
//! Promises, for any input: names are unique, hold only ASCII `[A-Za-z0-9_]`, stay within the limit, do not depend on
//! the order of the input, and leave raw server and raw tool as they are. Rules: catalog-dispatch 1.2 with SHA-256
//! (first 12 hex digits), and R39 for the gateway's flat names.
//!
//! Nothing is persisted under a name made here, and no name is ever split to route: a map leads back to the raw
//! identity, so two servers whose long namespaces are cut to one text still cannot be confused.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::model::digest::Digest;
use crate::model::name::{CallableName, FlatName, Namespace, RawToolName, ServerName};

/// Between namespace and name wherever the two are written as one text.
const DELIMITER: &str = "__";
/// What a namespace begins with unless its server is exempt.
const PREFIX: &str = "mcp__";
/// `_` and 12 hex digits.
const SUFFIX: usize = 13;

/// What is named: a raw identity, and what it would like to be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nameable {
    /// The upstream.
    pub server: ServerName,
    /// The wished namespace; the server's name unless an App connector gives another.
    pub namespace: String,
    /// The wished name; the raw tool name unless an App connector gives another.
    pub callable: String,
    /// The raw tool name.
    pub tool: RawToolName,
    /// The App connector: it sets two equal namespaces of one server apart.
    pub connector_id: Option<String>,
}

impl Nameable {
    /// An ordinary server's tool: called as the server spells it.
    #[must_use]
    pub fn ordinary(server: ServerName, tool: RawToolName) -> Self {
        let (namespace, callable) = (server.as_str().to_owned(), tool.as_str().to_owned());
        Self { server, namespace, callable, tool, connector_id: None }
    }
}

/// The longest that namespace, `__` and name may be together, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameLimit(usize);

/// A limit that leaves no room for names, or that no client takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a name limit of `{0}` is outside {min} to {max}", min = NameLimit::MIN, max = NameLimit::MAX)]
pub struct BadLimit(usize);

impl NameLimit {
    /// The smallest limit: `mcp__`, a few letters, the delimiter and a suffix.
    pub const MIN: usize = 24;
    /// The largest limit; MCP recommends no longer tool names.
    pub const MAX: usize = 128;
    /// What model providers take: 64.
    pub const LIBRARY: Self = Self(64);
    /// What leaves a client room to put its own prefix before it and stay within 64: 46 (R39).
    pub const GATEWAY: Self = Self(46);

    /// Takes a limit between [`NameLimit::MIN`] and [`NameLimit::MAX`].
    ///
    /// # Errors
    /// [`BadLimit`] with the number.
    pub fn new(limit: usize) -> Result<Self, BadLimit> {
        if (Self::MIN..=Self::MAX).contains(&limit) { Ok(Self(limit)) } else { Err(BadLimit(limit)) }
    }

    /// Returns the number.
    #[must_use]
    pub fn get(self) -> usize {
        self.0
    }
}

/// How the library's names are made.
#[derive(Debug, Clone)]
pub struct NamingOptions {
    /// Whether namespaces begin with `mcp__`. Default: yes.
    pub prefix: bool,
    /// The servers whose namespaces do not, by raw name.
    pub exempt: BTreeSet<ServerName>,
    /// The limit. Default: [`NameLimit::LIBRARY`].
    pub limit: NameLimit,
}

impl Default for NamingOptions {
    fn default() -> Self {
        Self { prefix: true, exempt: BTreeSet::new(), limit: NameLimit::LIBRARY }
    }
}

/// How the gateway's names look (R39).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlatStyle {
    /// `<namespace>__<name>`, always.
    #[default]
    Namespaced,
    /// `<name>`; the namespace comes before it only where two tools would have one name.
    Bare,
}

/// The library's name of one tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// Which of the input.
    pub index: usize,
    /// The namespace.
    pub namespace: Namespace,
    /// The name in it.
    pub callable: CallableName,
}

/// The gateway's name of one tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlatNamed {
    /// Which of the input.
    pub index: usize,
    /// The name.
    pub flat: FlatName,
}

/// All names, sorted by raw identity, and what got none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Naming<N> {
    /// The names.
    pub named: Vec<N>,
    /// Indices of input whose identity came before; the first one wins, these are to be reported.
    pub duplicates: Vec<usize>,
}

/// Makes the library's names.
#[must_use]
pub fn names(tools: &[Nameable], options: &NamingOptions) -> Naming<Named> {
    let wishes = tools.iter().map(|tool| Wish::of(tool, options.prefix && !options.exempt.contains(&tool.server)));
    let (candidates, duplicates) = candidates(wishes.collect());
    let mut used = Used::default();
    let named = candidates.into_iter().map(|candidate| {
        let (namespace, name) = used.place(&candidate, options.limit);
        Named {
            index: candidate.index,
            namespace: Namespace::from_naming(namespace),
            callable: CallableName::from_naming(name),
        }
    });
    Naming { named: named.collect(), duplicates }
}

/// Makes the gateway's names: never prefixed, since clients add a prefix of their own.
#[must_use]
pub fn flat_names(tools: &[Nameable], style: FlatStyle, limit: NameLimit) -> Naming<FlatNamed> {
    let (candidates, duplicates) = candidates(tools.iter().map(|tool| Wish::of(tool, false)).collect());
    let mut used = Used { joined: true, ..Used::default() };
    let mut flat: Vec<Option<String>> = vec![None; candidates.len()];
    if style == FlatStyle::Bare {
        let mut holders = BTreeMap::<&str, usize>::new();
        for candidate in &candidates {
            *holders.entry(&candidate.name).or_default() += 1;
        }
        let alone = |candidate: &Candidate<'_>| holders.get(candidate.name.as_str()) == Some(&1);
        // Names that can stay as they are come first, so that a cut or joined one can never take one from its owner.
        for fits in [true, false] {
            for (slot, candidate) in flat.iter_mut().zip(&candidates) {
                if alone(candidate) && (candidate.name.len() <= limit.0) == fits {
                    *slot = Some(used.place_bare(candidate, limit));
                }
            }
        }
    }
    let named = candidates.into_iter().zip(flat).map(|(candidate, bare)| {
        let text = bare.unwrap_or_else(|| {
            let (namespace, name) = used.place(&candidate, limit);
            format!("{namespace}{DELIMITER}{name}")
        });
        FlatNamed { index: candidate.index, flat: FlatName::from_naming(text) }
    });
    Naming { named: named.collect(), duplicates }
}

/// What a namespace stands for: server, wished namespace, connector.
type NamespaceIdentity<'a> = (&'a str, &'a str, &'a str);

/// One input, borrowed. The order is the order of the output: by raw identity.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Identity<'a> {
    namespace: NamespaceIdentity<'a>,
    callable: &'a str,
    tool: &'a str,
}

impl Identity<'_> {
    fn suffix(&self, attempt: usize) -> String {
        let (server, namespace, connector) = self.namespace;
        let attempt = if attempt == 0 { String::new() } else { format!("\0{attempt}") };
        suffix(&format!("{server}\0{namespace}\0{connector}\0{}\0{}{attempt}", self.callable, self.tool))
    }
}

struct Wish<'a> {
    identity: Identity<'a>,
    prefixed: bool,
}

impl<'a> Wish<'a> {
    fn of(tool: &'a Nameable, prefixed: bool) -> Self {
        let connector = tool.connector_id.as_deref().unwrap_or_default();
        let namespace = (tool.server.as_str(), tool.namespace.as_str(), connector);
        Self { identity: Identity { namespace, callable: &tool.callable, tool: tool.tool.as_str() }, prefixed }
    }
}

/// An input with its namespace and name after rules 1 to 7: distinct within its group, not yet within the limit.
struct Candidate<'a> {
    index: usize,
    identity: Identity<'a>,
    namespace: String,
    name: String,
}

/// Rules 1 to 7: drop repeated identities, sanitise, prefix, set collisions apart, sort.
///
/// Identities are compared part by part. Joined texts would let a NUL inside a tool's name make two tools one.
fn candidates(wishes: Vec<Wish<'_>>) -> (Vec<Candidate<'_>>, Vec<usize>) {
    let mut seen = HashSet::new();
    let mut duplicates = Vec::new();
    let mut candidates = Vec::with_capacity(wishes.len());
    for (index, Wish { identity, prefixed }) in wishes.into_iter().enumerate() {
        let parts = (identity.namespace, identity.callable, identity.tool);
        if !seen.insert(parts) {
            duplicates.push(index);
            continue;
        }
        let mut namespace = sanitise(identity.namespace.1);
        if prefixed && !namespace.starts_with(PREFIX) {
            namespace.insert_str(0, PREFIX);
        }
        candidates.push(Candidate { index, identity, namespace, name: sanitise(identity.callable) });
    }

    let mut claims = BTreeMap::<String, BTreeSet<NamespaceIdentity<'_>>>::new();
    for candidate in &candidates {
        claims.entry(candidate.namespace.clone()).or_default().insert(candidate.identity.namespace);
    }
    for candidate in &mut candidates {
        if claims.get(&candidate.namespace).is_some_and(|claimants| claimants.len() > 1) {
            let (server, namespace, connector) = candidate.identity.namespace;
            let suffix = suffix(&format!("{server}\0{namespace}\0{connector}"));
            let ending = if candidate.namespace.ends_with(DELIMITER) { DELIMITER } else { "" };
            candidate.namespace.truncate(candidate.namespace.len() - ending.len());
            candidate.namespace.push_str(&suffix);
            candidate.namespace.push_str(ending);
        }
    }

    // Every identity is there once, so a pair that occurs twice belongs to two of them.
    let mut holders = BTreeMap::<(String, String), usize>::new();
    for candidate in &candidates {
        *holders.entry((candidate.namespace.clone(), candidate.name.clone())).or_default() += 1;
    }
    for candidate in &mut candidates {
        let pair = (candidate.namespace.clone(), candidate.name.clone());
        if holders.get(&pair).is_some_and(|count| *count > 1) {
            candidate.name.push_str(&candidate.identity.suffix(0));
        }
    }
    candidates.sort_by_key(|candidate| candidate.identity);
    (candidates, duplicates)
}

/// The texts that are taken (rule 8).
#[derive(Default)]
struct Used {
    taken: HashSet<String>,
    /// Whether the joined form counts too (R39).
    joined: bool,
}

impl Used {
    /// Returns the first namespace and name that fit and are free, and takes them.
    fn place(&mut self, candidate: &Candidate<'_>, limit: NameLimit) -> (String, String) {
        let Candidate { namespace, name, .. } = candidate;
        if namespace.len() + name.len() + DELIMITER.len() <= limit.0 && self.take(namespace, name) {
            return (namespace.clone(), name.clone());
        }
        // Both are ASCII, so any cut is at a character's border.
        let room = limit.0.saturating_sub(namespace.len() + DELIMITER.len());
        let mut attempt = 0;
        loop {
            let suffix = candidate.identity.suffix(attempt);
            let (namespace, name) = if room >= SUFFIX {
                (namespace.clone(), cut(name, room - SUFFIX) + &suffix)
            } else {
                (cut(namespace, limit.0 - SUFFIX - DELIMITER.len()), suffix)
            };
            if self.take(&namespace, &name) {
                return (namespace, name);
            }
            attempt += 1;
        }
    }

    /// The same for a name that stands alone.
    fn place_bare(&mut self, candidate: &Candidate<'_>, limit: NameLimit) -> String {
        let name = &candidate.name;
        if name.len() <= limit.0 && self.taken.insert(name.clone()) {
            return name.clone();
        }
        let mut attempt = 0;
        loop {
            let name = cut(name, limit.0 - SUFFIX) + &candidate.identity.suffix(attempt);
            if self.taken.insert(name.clone()) {
                return name;
            }
            attempt += 1;
        }
    }

    fn take(&mut self, namespace: &str, name: &str) -> bool {
        let concatenated = format!("{namespace}{name}");
        let joined = self.joined.then(|| format!("{namespace}{DELIMITER}{name}"));
        if self.taken.contains(&concatenated) || joined.as_ref().is_some_and(|text| self.taken.contains(text)) {
            return false;
        }
        self.taken.insert(concatenated);
        self.taken.extend(joined);
        true
    }
}

/// Replaces each character that is not ASCII alphanumeric or `_` by one `_`; nothing becomes `_`.
fn sanitise(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' };
    let text: String = text.chars().map(plain).collect();
    if text.is_empty() { "_".to_owned() } else { text }
}

fn suffix(identity: &str) -> String {
    format!("_{}", Digest::of(identity.as_bytes()).short())
}

fn cut(text: &str, max: usize) -> String {
    crate::model::text::prefix(text, max).to_owned()
}

#[cfg(test)]
#[path = "naming_tests.rs"]
mod tests;
