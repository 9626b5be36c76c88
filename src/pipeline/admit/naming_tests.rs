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
