use proptest::prelude::*;
use serde::Deserialize;

use super::*;
use crate::model::name::{CallableName, FlatName, Namespace, ServerName};
use crate::model::tool::{Plugin, ServerIdentity, ToolDefinition};

fn tool(server: &str, name: &str, description: &str, properties: &[&str]) -> Arc<CatalogTool> {
    let properties: Map<String, Value> =
        properties.iter().map(|name| ((*name).to_owned(), json!({"type": "string"}))).collect();
    let definition =
        json!({"name": name, "description": description, "inputSchema": {"type": "object", "properties": properties}});
    let definition = ToolDefinition::parse(&definition.to_string()).unwrap();
    let callable: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    Arc::new(CatalogTool {
        server: ServerName::parse(server).unwrap(),
        identity: ServerIdentity(Digest::of(b"")),
        hints: definition.hints(),
        definition: Arc::new(definition),
        namespace: Namespace::from_naming(format!("mcp__{server}")),
        flat: FlatName::from_naming(format!("{server}__{callable}")),
        callable: CallableName::from_naming(callable),
        namespace_description: None,
        connector: None,
        plugin: None,
        files: None,
        unvouched: None,
    })
}

fn shown_tool(tool: &Arc<CatalogTool>) -> ShownTool<'_> {
    let definition = &tool.definition;
    ShownTool { tool, shown: definition.value(), shown_digest: definition.digest(), namespace_description: None }
}

fn index(tools: &[Arc<CatalogTool>]) -> Arc<SearchIndex> {
    SearchIndex::of(&tools.iter().map(shown_tool).collect::<Vec<_>>(), None)
}

fn names(found: &[Found]) -> Vec<String> {
    found.iter().map(|found| found.tool.reference().to_string()).collect()
}

#[derive(Deserialize)]
struct Corpus {
    server: Vec<Server>,
    question: Vec<Question>,
}

#[derive(Deserialize)]
struct Server {
    name: String,
    tools: Vec<Tool>,
}

#[derive(Deserialize)]
struct Tool {
    name: String,
    description: String,
    properties: Vec<String>,
}

#[derive(Deserialize)]
struct Question {
    asks: String,
    wants: String,
}

fn corpus() -> (Vec<Arc<CatalogTool>>, Vec<Question>) {
    let corpus: Corpus = toml::from_str(include_str!("../../../tests/it/corpus/search.toml")).unwrap();
    let mut tools = Vec::new();
    for server in &corpus.server {
        for row in &server.tools {
            let properties: Vec<_> = row.properties.iter().map(String::as_str).collect();
            tools.push(tool(&server.name, &row.name, &row.description, &properties));
        }
    }
    (tools, corpus.question)
}

#[test]
fn eighteen_of_twenty_questions_have_their_tool_among_the_first_three() {
    let (tools, questions) = corpus();
    let index = index(&tools);
    assert!(tools.len() >= 60, "{} tools", tools.len());
    assert_eq!(questions.len(), 20);
    let mut missed = Vec::new();
    for Question { asks, wants } in &questions {
        assert!(tools.iter().any(|tool| tool.reference().to_string() == *wants), "{wants} is no tool");
        let found = names(&index.search(asks, Some(3)).unwrap());
        if !found.contains(wants) {
            missed.push(format!("{asks}: not {wants} but {found:?}"));
        }
    }
    assert!(missed.len() <= 2, "{missed:#?}");
}

#[test]
fn every_tool_of_the_corpus_is_first_for_its_own_name_on_its_server() {
    let (tools, _) = corpus();
    let index = index(&tools);
    for tool in &tools {
        let found = index.search(tool.flat.as_str(), Some(1)).unwrap();
        assert_eq!(names(&found), [tool.reference().to_string()]);
    }
}

#[test]
fn identifiers_are_found_by_their_words_however_they_are_joined() {
    for name in ["create_issue", "createIssue", "create-issue", "CreateIssue", "create.issue", "issues/create"] {
        let tools = [tool("x", "other", "", &[]), tool("y", name, "", &[]), tool("z", "update", "", &[])];
        let index = index(&tools);
        for query in ["create issue", "Creating issues", "create_issue", "createIssue"] {
            let found = index.search(query, None).unwrap();
            assert_eq!(names(&found), [format!("y/{name}")], "{query} for {name}");
        }
    }
}

#[test]
fn each_text_of_rule_17_leads_to_its_tool() {
    let mut found_by = (*tool("server1", "raw-alpha", "does bravo", &["charlie"])).clone();
    found_by.callable = CallableName::from_naming("delta".to_owned());
    found_by.plugin = Some(Plugin { id: "plugged".to_owned(), name: "echoes".to_owned() });
    found_by.connector = Some(crate::model::tool::Connector {
        id: "hidden".to_owned(),
        name: Some("foxtrot".to_owned()),
        account: Some("hidden".to_owned()),
        description: None,
    });
    let (found_by, instructions) = (Arc::new(found_by), Arc::<str>::from("about golf"));
    let others: Vec<_> = (0..3).map(|i| tool("others", &format!("t{i}"), "nothing", &[])).collect();
    let shown = json!({"name": "raw-alpha", "title": "hotel", "description": "does bravo",
        "inputSchema": {"properties": {"charlie": {"description": "hidden"}}}});
    let mut all: Vec<_> = others.iter().map(shown_tool).collect();
    all.push(ShownTool {
        shown: shown.as_object().unwrap(),
        namespace_description: Some(&instructions),
        ..shown_tool(&found_by)
    });
    let index = SearchIndex::of(&all, None);
    for query in
        ["server1", "alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "mcp__server1delta"]
    {
        assert_eq!(names(&index.search(query, None).unwrap()), ["server1/raw-alpha"], "{query}");
    }
    assert!(index.search("hidden", None).unwrap().is_empty());
}

#[test]
fn r31_what_is_not_shown_is_not_searched() {
    let tool = tool("s", "plain", "the password is hunter2", &[]);
    let shown = json!({"name": "plain", "description": "the password is [removed]"});
    let cleaned =
        ShownTool { shown: shown.as_object().unwrap(), shown_digest: Digest::of(b"cleaned"), ..shown_tool(&tool) };
    let index = SearchIndex::of(&[cleaned], None);
    assert!(index.search("hunter2", None).unwrap().is_empty());
    assert_eq!(index.search("removed", None).unwrap().len(), 1);
    let before = SearchIndex::of(&[shown_tool(&tool)], None);
    assert!(!Arc::ptr_eq(&SearchIndex::of(&[cleaned], Some(&before)), &before), "another text needs another index");
}

#[test]
fn an_index_is_reused_for_the_same_tools_in_the_same_order_alone() {
    let tools: Vec<_> = ["a", "b"].map(|name| tool("s", name, "text", &[])).into();
    let first = index(&tools);
    let again =
        |tools: &[Arc<CatalogTool>]| SearchIndex::of(&tools.iter().map(shown_tool).collect::<Vec<_>>(), Some(&first));
    assert!(Arc::ptr_eq(&again(&tools), &first));
    let swapped: Vec<_> = tools.iter().rev().cloned().collect();
    assert!(!Arc::ptr_eq(&again(&swapped), &first));
    assert!(!Arc::ptr_eq(&again(&tools[..1]), &first));
    let equal = vec![Arc::new((*tools[0]).clone()), Arc::clone(&tools[1])];
    assert!(!Arc::ptr_eq(&again(&equal), &first), "an equal tool is not the same one");
    let instructions = Arc::<str>::from("more");
    let described: Vec<_> =
        tools.iter().map(|tool| ShownTool { namespace_description: Some(&instructions), ..shown_tool(tool) }).collect();
    let with = SearchIndex::of(&described, Some(&first));
    assert!(!Arc::ptr_eq(&with, &first));
    assert!(Arc::ptr_eq(&SearchIndex::of(&described, Some(&with)), &with));
}

#[test]
fn queries_and_limits_beyond_their_bounds_are_errors() {
    let index = index(&[tool("s", "a", "text", &[])]);
    let error = |query: &str, limit| index.search(query, limit).unwrap_err().to_string();
    assert_eq!(error("", None), "query must not be empty");
    assert_eq!(error(" \n\t", Some(0)), "query must not be empty");
    assert_eq!(error("a", Some(0)), "limit must be greater than zero");
    assert_eq!(error("a", Some(101)), "limit must be at most 100, not 101");
    assert_eq!(error(&"x".repeat(2049), None), "query has 2049 bytes; it may have at most 2048");
    let many: Vec<_> = (0..65).map(|i| format!("w{i}")).collect();
    assert_eq!(error(&many.join(" "), None), "query has 65 different words; it may have at most 64");
    assert!(index.search(&many[1..].join(" "), Some(100)).unwrap().is_empty());
    assert!(index.search(&"text ".repeat(400), None).is_ok_and(|found| found.len() == 1));
}

#[test]
fn eight_are_found_by_default_and_equal_ones_in_the_order_of_the_catalog() {
    let tools: Vec<_> = (10..40).map(|i| tool("s", &format!("t{i}"), "same words", &[])).collect();
    let expected: Vec<_> = tools.iter().map(|tool| tool.reference().to_string()).collect();
    for _ in 0..20 {
        let index = index(&tools);
        assert_eq!(names(&index.search("same", None).unwrap()), expected[..8]);
        assert_eq!(names(&index.search("words same", Some(100)).unwrap()), expected);
    }
}

#[test]
fn a_text_that_is_too_long_is_searched_in_part_and_the_index_says_so() {
    let long = format!("{} zebra", "word ".repeat(MAX_TEXT / 5 + 1));
    let fits = format!("{}zebra", " ".repeat(MAX_TEXT - 5));
    let tools = [tool("s", "long", &long, &[]), tool("s", "fits", &fits, &[])];
    let index = index(&tools);
    assert_eq!(index.in_part(), [tools[0].reference()]);
    assert_eq!(names(&index.search("zebra", None).unwrap()), ["s/fits"]);
}

#[test]
fn work_grows_with_the_number_of_tools() {
    // What a search looks at is words kept: each tool's are kept once, whatever their number in the text.
    let kept = |n: usize| {
        let tools: Vec<_> =
            (0..n).map(|i| tool("s", &format!("tool_{i}"), &"again and again ".repeat(50), &[])).collect();
        let index = index(&tools);
        let embed = |tool: &Arc<CatalogTool>| {
            let words = words(&text_of(&shown_tool(tool)).0).join(" ");
            distinct(index.embedder.embed(&words)).0.len()
        };
        tools.iter().map(embed).sum::<usize>()
    };
    let (few, many) = (kept(100), kept(1000));
    assert!(many <= few * 11, "{few} for 100 tools and {many} for 1000");
    assert!(many < 20 * 1000, "{many}");
}

#[test]
fn an_empty_index_finds_nothing() {
    let index = index(&[]);
    assert!(index.is_empty() && index.search("anything", None).unwrap().is_empty());
}

#[test]
fn the_spec_names_where_tools_can_be_found_and_nothing_that_a_server_wrote() {
    let (tools, _) = corpus();
    let spec = index(&tools).spec();
    assert_eq!(spec["name"], "tool_search");
    assert_eq!(spec["parameters"]["required"], json!(["query"]));
    let description = spec["description"].as_str().unwrap();
    assert!(description.contains("\n- mcp__fetch (server fetch): 1 tool\n"), "{description}");
    assert!(description.contains("\n- mcp__time (server time): 2 tools"), "{description}");
    assert!(!description.contains("issue") && !description.contains("more"), "{description}");
    let many: Vec<_> = (0..MAX_NAMED + 3).map(|i| tool(&format!("s{i}"), "t", "", &[])).collect();
    assert!(index(&many).spec()["description"].as_str().unwrap().ends_with("\n- 3 more"));
}

proptest! {
    #[test]
    fn a_tool_is_first_for_the_words_of_its_own_name(
        all in proptest::collection::btree_set(("[b-z]{4,9}", "[b-z]{4,9}"), 2..40),
        pick in any::<proptest::sample::Index>(),
        joint in "[_-]",
    ) {
        let all: Vec<_> = all.into_iter().collect();
        let tools: Vec<_> = all
            .iter()
            .map(|(verb, noun)| tool("server", &format!("{verb}{joint}{noun}"), "one of several", &["path"]))
            .collect();
        let (verb, noun) = pick.get(&all);
        let found = index(&tools).search(&format!("{verb} {noun}"), Some(100)).unwrap();
        let own = found.iter().find(|found| found.tool.definition.name().as_str() == format!("{verb}{joint}{noun}"));
        // Another one may score the same if both of its words have these stems.
        prop_assert_eq!(own.map(|own| own.score), found.first().map(|first| first.score));
    }

    #[test]
    fn searches_are_deterministic_ordered_and_bounded(
        query in "((file|create|list|page|repository|read|issue|branch|time|\\PC{1,9}) ?){1,8}",
        limit in 1_usize..=100,
    ) {
        let (mut tools, _) = corpus();
        // Twice the same texts: each tool has one of the same score.
        tools.extend(tools.clone());
        let (one, two) = (index(&tools), index(&tools));
        let rows = |index: &SearchIndex| {
            index.search(&query, Some(limit)).map(|found| {
                found.into_iter().map(|found| (found.tool.reference(), found.score.to_bits())).collect::<Vec<_>>()
            })
        };
        let found = rows(&one);
        prop_assert_eq!(&found, &rows(&two));
        if let Ok(found) = found {
            prop_assert!(found.len() <= limit);
            prop_assert!(found.is_sorted_by(|a, b| f32::from_bits(a.1) >= f32::from_bits(b.1)));
        }
    }
}
