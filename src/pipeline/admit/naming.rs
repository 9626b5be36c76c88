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
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    /// Names texts that no [`ServerName`] or [`RawToolName`] may hold: the vectors have empty and Unicode ones.
    fn name(wishes: Vec<Wish<'_>>, limit: NameLimit) -> Vec<(usize, String, String)> {
        let (candidates, _) = candidates(wishes);
        let mut used = Used::default();
        let place = |candidate: Candidate<'_>| {
            let (namespace, name) = used.place(&candidate, limit);
            (candidate.index, namespace, name)
        };
        candidates.into_iter().map(place).collect()
    }

    #[test]
    fn every_vector_gives_its_names() {
        let vectors: Value = serde_json::from_str(include_str!("../../../tests/vectors/names.json")).unwrap();
        let cases = vectors["cases"].as_array().unwrap();
        assert_eq!(cases.len(), 25);
        for case in cases {
            let options = &case["options"];
            let prefix = options.get("prefix").is_none_or(|prefix| prefix.as_bool().unwrap());
            let exempt: Vec<&str> =
                options["exempt"].as_array().into_iter().flatten().map(|name| name.as_str().unwrap()).collect();
            let limit = options.get("limit").map_or(64, |limit| limit.as_u64().unwrap() as usize);
            let tools = case["tools"].as_array().unwrap();
            let text = |tool: &'_ Value, key: &str| tool.get(key).map(|text| text.as_str().unwrap().to_owned());
            let raw: Vec<[String; 5]> = tools
                .iter()
                .map(|tool| {
                    let (server, raw) = (text(tool, "server").unwrap(), text(tool, "tool").unwrap());
                    let namespace = text(tool, "namespace").unwrap_or_else(|| server.clone());
                    let callable = text(tool, "name").unwrap_or_else(|| raw.clone());
                    [server, namespace, text(tool, "connector").unwrap_or_default(), callable, raw]
                })
                .collect();
            let wishes = raw.iter().map(|[server, namespace, connector, callable, tool]| Wish {
                identity: Identity { namespace: (server, namespace, connector), callable, tool },
                prefixed: prefix && !exempt.contains(&server.as_str()),
            });
            let got: Vec<Value> = name(wishes.collect(), NameLimit::new(limit).unwrap())
                .into_iter()
                .map(|(index, namespace, name)| {
                    let [server, .., tool] = &raw[index];
                    serde_json::json!({ "server": server, "tool": tool, "namespace": namespace, "name": name })
                })
                .collect();
            assert_eq!(Value::from(got), case["expected"], "{}", case["case"]);
        }
    }

    fn tool(server: &str, tool: &str) -> Nameable {
        Nameable::ordinary(ServerName::parse(server).unwrap(), RawToolName::parse(tool).unwrap())
    }

    fn flat(tools: &[Nameable], style: FlatStyle) -> Vec<String> {
        let naming = flat_names(tools, style, NameLimit::GATEWAY);
        naming.named.into_iter().map(|named| named.flat.to_string()).collect()
    }

    #[test]
    fn r39_a_joined_form_is_used_once_only() {
        let names = flat(&[tool("a", "b__c"), tool("a__b", "c")], FlatStyle::Namespaced);
        assert_eq!(names[0], "a__b__c");
        assert!(names[1].starts_with("a__b__c_"), "{names:?}");
    }

    #[test]
    fn r39_flat_names_have_no_prefix_and_leave_room_for_the_clients() {
        assert_eq!(flat(&[tool("files", "read")], FlatStyle::Namespaced), ["files__read"]);
        let names = flat(&[tool("files", &"x".repeat(80))], FlatStyle::Namespaced);
        assert_eq!(names[0].len(), 46);
    }

    #[test]
    fn r39_a_bare_name_gets_its_namespace_only_on_collision() {
        let tools = [tool("files", "read"), tool("mail", "read"), tool("mail", "send")];
        assert_eq!(flat(&tools, FlatStyle::Bare), ["files__read", "mail__read", "send"]);
    }

    #[test]
    fn r39_a_bare_name_is_not_lost_to_a_joined_one() {
        let tools = [tool("files", "read"), tool("mail", "read"), tool("zoo", "files__read")];
        let names = flat(&tools, FlatStyle::Bare);
        assert_eq!(names[2], "files__read");
        assert!(names[0].starts_with("files__read_"), "{names:?}");
    }

    #[test]
    fn two_tools_of_one_server_stay_bare_with_suffixes() {
        let names = flat(&[tool("s", "a-b"), tool("s", "a_b")], FlatStyle::Bare);
        assert!(names.iter().all(|name| name.starts_with("a_b_") && name.len() == 16), "{names:?}");
    }

    #[test]
    fn a_tool_listed_twice_is_reported_and_the_first_stays() {
        let naming = names(&[tool("s", "a"), tool("s", "b"), tool("s", "a")], &NamingOptions::default());
        assert_eq!(naming.named.iter().map(|named| named.index).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(naming.duplicates, [2]);
    }

    #[test]
    fn a_nul_in_a_name_does_not_make_two_tools_one() {
        let with = |callable: &str, raw: &str| Nameable { callable: callable.to_owned(), ..tool("s", raw) };
        let naming = names(&[with("a", "b\0c"), with("a\0b", "c")], &NamingOptions::default());
        assert_eq!((naming.named.len(), naming.duplicates.len()), (2, 0));
    }

    #[test]
    fn a_limit_out_of_range_is_refused_by_its_number() {
        assert_eq!(NameLimit::new(23).unwrap_err().to_string(), "a name limit of `23` is outside 24 to 128");
        assert!(NameLimit::new(129).is_err());
        assert!(NameLimit::new(24).is_ok() && NameLimit::new(128).is_ok());
    }

    /// Few short pieces, so that collisions are common; and arbitrary text.
    fn wished() -> impl Strategy<Value = String> {
        prop_oneof![
            "(a|-|_|b|__|mcp__){0,3}",
            prop::string::string_regex("[a_]{18,70}").unwrap(),
            any::<String>().prop_map(|text| text.chars().take(60).collect()),
        ]
    }

    fn nameable() -> impl Strategy<Value = Nameable> {
        let plain = (prop_oneof!["[ab_-]{1,3}", "[a-z]{30,60}"], wished()).prop_map(|(server, raw)| {
            let raw = if raw.is_empty() { "t".to_owned() } else { raw };
            tool(&server, &raw)
        });
        let app = ("[ab]", wished(), wished(), "[ab]", prop::option::of("[ab]")).prop_map(
            |(server, namespace, callable, raw, connector_id)| Nameable {
                namespace,
                callable,
                connector_id,
                ..tool(&server, &raw)
            },
        );
        prop_oneof![plain, app]
    }

    fn legal(text: &str) -> bool {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    }

    proptest! {
        #[test]
        fn library_names_keep_their_promises(
            tools in prop::collection::vec(nameable(), 0..24),
            prefix: bool,
            limit in NameLimit::MIN..=NameLimit::MAX,
            seed: u64,
        ) {
            let limit = NameLimit::new(limit).unwrap();
            let options = NamingOptions { prefix, limit, exempt: tools.iter().take(1).map(|t| t.server.clone()).collect() };
            let naming = names(&tools, &options);
            prop_assert_eq!(naming.named.len() + naming.duplicates.len(), tools.len());
            let mut pairs = HashSet::new();
            for named in &naming.named {
                let (namespace, callable) = (named.namespace.as_str(), named.callable.as_str());
                prop_assert!(legal(namespace) && legal(callable));
                prop_assert!(namespace.len() + DELIMITER.len() + callable.len() <= limit.get());
                prop_assert!(pairs.insert(format!("{namespace}{callable}")), "{namespace} {callable} twice");
            }
            // The raw identity is untouched and sorts the output: the index leads back to it.
            let key = |tool: &Nameable| Wish::of(tool, false).identity.namespace.0.to_owned();
            prop_assert!(naming.named.windows(2).all(|pair| key(&tools[pair[0].index]) <= key(&tools[pair[1].index])));

            let mixed = shuffled(&tools, seed);
            let by_tool = |input: &[Nameable], naming: &Naming<Named>| -> Vec<(Nameable, Namespace, CallableName)> {
                let named = naming.named.iter();
                named.map(|n| (input[n.index].clone(), n.namespace.clone(), n.callable.clone())).collect()
            };
            prop_assert_eq!(by_tool(&tools, &naming), by_tool(&mixed, &names(&mixed, &options)));
        }

        #[test]
        fn flat_names_keep_their_promises(
            tools in prop::collection::vec(nameable(), 0..24),
            bare: bool,
            limit in NameLimit::MIN..=NameLimit::MAX,
            seed: u64,
        ) {
            let style = if bare { FlatStyle::Bare } else { FlatStyle::Namespaced };
            let limit = NameLimit::new(limit).unwrap();
            let naming = flat_names(&tools, style, limit);
            prop_assert_eq!(naming.named.len() + naming.duplicates.len(), tools.len());
            let mut seen = HashSet::new();
            for named in &naming.named {
                prop_assert!(legal(named.flat.as_str()) && named.flat.as_str().len() <= limit.get());
                prop_assert!(seen.insert(named.flat.clone()), "{} twice", named.flat);
            }
            let mixed = shuffled(&tools, seed);
            let by_tool = |input: &[Nameable], naming: &Naming<FlatNamed>| -> Vec<(Nameable, FlatName)> {
                naming.named.iter().map(|n| (input[n.index].clone(), n.flat.clone())).collect()
            };
            prop_assert_eq!(by_tool(&tools, &naming), by_tool(&mixed, &flat_names(&mixed, style, limit)));
        }
    }

    fn shuffled(tools: &[Nameable], seed: u64) -> Vec<Nameable> {
        let mut keyed: Vec<_> = tools.iter().cloned().enumerate().collect();
        keyed.sort_by_key(|(index, _)| Digest::of(&[seed.to_le_bytes(), index.to_le_bytes()].concat()));
        keyed.into_iter().map(|(_, tool)| tool).collect()
    }
}
