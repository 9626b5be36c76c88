use proptest::prelude::*;

use super::*;
use crate::model::digest::Digest;
use crate::model::name::{CallableName, FlatName, Namespace, ServerName};
use crate::model::tool::{Connector, ServerIdentity, ToolDefinition};

/// One tool of a case, as text: what is not said is ordinary.
#[derive(Clone)]
struct Row {
    tool: Arc<CatalogTool>,
    spec_bytes: usize,
    agent_plugin: bool,
    omitted: BTreeSet<Way>,
    app: Option<ConnectorSays>,
}

fn catalog_tool(server: &str, name: &str, meta: &str, connector: Option<&str>) -> CatalogTool {
    let text = format!(r#"{{"name":"{name}","inputSchema":{{}}{meta}}}"#);
    let definition = ToolDefinition::parse(&text).unwrap();
    CatalogTool {
        server: ServerName::parse(server).unwrap(),
        identity: ServerIdentity(Digest::of(b"")),
        hints: definition.hints(),
        definition: Arc::new(definition),
        namespace: Namespace::from_naming(format!("mcp__{server}")),
        callable: CallableName::from_naming(name.to_owned()),
        flat: FlatName::from_naming(format!("{server}__{name}")),
        namespace_description: None,
        connector: connector.map(|id| Connector { id: id.to_owned(), name: None, account: None, description: None }),
        plugin: None,
        files: None,
        unvouched: None,
    }
}

impl Row {
    fn of(tool: CatalogTool) -> Self {
        Self { tool: Arc::new(tool), spec_bytes: 500, agent_plugin: false, omitted: BTreeSet::new(), app: None }
    }

    fn ordinary(name: &str) -> Self {
        Self::of(catalog_tool("files", name, "", None))
    }

    fn app(name: &str) -> Self {
        Self { app: Some(ConnectorSays::Enabled), ..Self::of(catalog_tool("codex_apps", name, "", Some("c1"))) }
    }

    fn plugin(name: &str, spec_bytes: usize) -> Self {
        Self { spec_bytes, agent_plugin: true, ..Self::of(catalog_tool("plugged", name, "", None)) }
    }

    fn seen_by(name: &str, visibility: &str) -> Self {
        let meta = format!(r#","_meta":{{"ui":{{{visibility}}}}}"#);
        Self::of(catalog_tool("files", name, &meta, None))
    }

    fn disabled(self) -> Self {
        Self { app: Some(ConnectorSays::Disabled), ..self }
    }

    fn without(self, ways: &[Way]) -> Self {
        Self { omitted: ways.iter().copied().collect(), ..self }
    }
}

fn run(rows: &[Row], how: &Exposing) -> Result<Exposures, Collision> {
    let candidates: Vec<_> = rows
        .iter()
        .map(|row| Candidate {
            tool: &row.tool,
            spec_bytes: row.spec_bytes,
            agent_plugin: row.agent_plugin,
            omitted: &row.omitted,
            app: row.app,
        })
        .collect();
    expose(&candidates, how)
}

/// `name exposure: reason`, a line for each tool.
fn lines(rows: &[Row], how: &Exposing) -> Vec<String> {
    let exposures = run(rows, how).unwrap();
    exposures.tools.iter().map(|tool| format!("{} {tool}", tool.tool.definition.name())).collect()
}

fn searching() -> Exposing {
    Exposing { search: true, ..Exposing::library() }
}

/// The vectors of catalog-dispatch 8.4. E9, and that E4 keeps one handler object, are about the identity of handlers,
/// which this decision has none of. E8 and E10 are below.
#[test]
fn every_exposure_vector_gives_its_decision_and_says_why() {
    use Way::{CodeMode, Deferred, Direct};
    let library = Exposing::library;
    let two = || vec![Row::ordinary("a"), Row::ordinary("b")];
    let one = || Row::ordinary("a");
    let plugins: Vec<_> = (0..40).map(|i| Row::plugin(&format!("p{i}"), 2_100)).collect();
    let cases: Vec<(&str, Vec<Row>, Exposing, Vec<&str>)> = vec![
        ("E1", two(), library(), vec!["a direct: tool search is off", "b direct: tool search is off"]),
        ("E1", two(), searching(), vec!["a deferred: tool search is on", "b deferred: tool search is on"]),
        (
            "E2",
            vec![
                Row::seen_by("app", r#""visibility":["app"]"#),
                Row::seen_by("none", r#""visibility":[]"#),
                Row::seen_by("both", r#""visibility":["app","model"]"#),
                Row::seen_by("silent", ""),
                Row::seen_by("text", r#""visibility":"model""#),
            ],
            library(),
            vec![
                "app absent: `_meta.ui.visibility` does not name `model`",
                "none absent: `_meta.ui.visibility` does not name `model`",
                "both direct: tool search is off",
                "silent direct: tool search is off",
                "text direct: tool search is off",
            ],
        ),
        (
            "E3",
            vec![Row { app: Some(ConnectorSays::Enabled), ..Row::of(catalog_tool("codex_apps", "a", "", None)) }],
            library(),
            vec!["a absent: the Apps server gives it no connector id"],
        ),
        ("E4", vec![Row::app("a")], library(), vec!["a direct: tool search is off"]),
        ("E4", vec![Row::app("a")], Exposing { apps: false, ..library() }, vec!["a absent: Apps are off"]),
        ("E4", vec![Row::app("a").disabled()], library(), vec!["a absent: a connector policy disables it"]),
        ("E4", vec![Row::app("a")], searching(), vec!["a deferred: tool search is on"]),
        (
            "E5",
            vec![Row::app("x"), Row::app("b"), Row::ordinary("z")],
            library(),
            vec!["z direct: tool search is off", "x direct: tool search is off", "b direct: tool search is off"],
        ),
        (
            "E6",
            vec![Row::app("a").disabled(), Row::app("b"), Row::app("c").disabled()],
            library(),
            vec![
                "a absent: a connector policy disables it",
                "b direct: tool search is off",
                "c absent: a connector policy disables it",
            ],
        ),
        (
            "E7",
            vec![Row::plugin("long", 8_400), Row { agent_plugin: false, ..Row::plugin("legacy", 8_400) }],
            library(),
            vec![
                "long hidden: its spec of 8,400 bytes is larger than the 8,000 that a plugin's tool may have",
                "legacy direct: tool search is off",
            ],
        ),
        ("E11", vec![one().without(&[Deferred])], searching(), vec!["a direct: `omit_tools_from` names `deferred`"]),
        ("E12", vec![one().without(&[Direct])], searching(), vec!["a deferred: tool search is on"]),
        (
            "E13",
            vec![one().without(&[Direct])],
            library(),
            vec!["a code-mode-only: `omit_tools_from` names `direct`, and tool search is off"],
        ),
        (
            "E14",
            vec![one().without(&[CodeMode])],
            searching(),
            vec!["a deferred-model-only: tool search is on; not for scripts: `omit_tools_from` names `code_mode`"],
        ),
        (
            "E14",
            vec![one().without(&[CodeMode])],
            Exposing { code_only: true, ..searching() },
            vec![
                "a direct-model-only: calls come from scripts only, and search would not lead to one; \
                 not for scripts: `omit_tools_from` names `code_mode`",
            ],
        ),
        (
            "E15",
            vec![one().without(&[Direct, Deferred, CodeMode])],
            searching(),
            vec!["a hidden: `omit_tools_from` names `direct`, `deferred` and `code_mode`"],
        ),
    ];
    for (id, rows, how, expected) in cases {
        assert_eq!(lines(&rows, &how), expected, "{id}");
    }
    let exposures = run(&plugins, &Exposing::library()).unwrap();
    let direct = exposures.tools.iter().filter(|tool| tool.exposure == Exposure::Direct).count();
    assert_eq!(direct, 64_000 / 2_100, "E7: some of forty are direct, the others hidden");
    assert!(exposures.tools[direct..].iter().all(|tool| tool.exposure == Exposure::Hidden), "E7");
}

#[test]
fn e8_a_smaller_spec_still_fits_after_one_that_does_not() {
    let mut rows: Vec<_> = (0..9).map(|i| Row::plugin(&format!("p{i}"), 7_000)).collect();
    rows.extend([Row::plugin("large", 2_000), Row::plugin("small", 900), Row::plugin("rest", 100)]);
    rows.push(Row::plugin("over", 1));
    let lines = lines(&rows, &Exposing::library());
    assert_eq!(
        lines[9..],
        [
            "large hidden: its spec of 2,000 bytes comes after 63,000 of other plugins' tools, and all may have 64,000 \
             together",
            "small direct: tool search is off",
            "rest direct: tool search is off",
            "over hidden: its spec of 1 bytes comes after 64,000 of other plugins' tools, and all may have 64,000 \
             together",
        ]
    );
}

#[test]
fn a_spec_of_exactly_the_largest_size_is_shown() {
    let rows = [Row::plugin("exact", 8_000), Row::plugin("beyond", 8_001)];
    let exposures = run(&rows, &Exposing::library()).unwrap();
    assert_eq!(exposures.tools[0].exposure, Exposure::Direct);
    assert_eq!(exposures.tools[1].reason, Reason::LargeSpec { bytes: 8_001 });
}

#[test]
fn e10_whoever_comes_second_to_a_name_is_absent_and_takes_no_budget() {
    let rows = [Row::plugin("a", 100), Row::plugin("a", 8_000), Row::plugin("a", 8_000), Row::plugin("b", 100)];
    let exposures = run(&rows, &Exposing::library()).unwrap();
    let kinds: Vec<_> = exposures.tools.iter().map(|tool| tool.exposure).collect();
    assert_eq!(kinds, [Exposure::Direct, Exposure::Absent, Exposure::Absent, Exposure::Direct]);
    assert_eq!(exposures.tools[1].to_string(), "absent: the name `mcp__plugged/a` is that of plugged/a");
    let first = exposures.first_collision.unwrap();
    assert_eq!(first.to_string(), "plugged/a is left out: the name `mcp__plugged/a` is that of plugged/a");
    let strict = Exposing { collisions_fail: true, ..Exposing::library() };
    assert_eq!(run(&rows, &strict).unwrap_err(), first);
    assert!(run(&rows[..1], &strict).is_ok());
}

#[test]
fn e10_the_first_collision_is_the_one_that_is_reported() {
    let rows = [Row::app("x"), Row::app("x"), Row::ordinary("a"), Row::ordinary("a")];
    let first = run(&rows, &Exposing::library()).unwrap().first_collision.unwrap();
    assert_eq!(first.tool.to_string(), "files/a", "ordinary tools come before Apps");
}

#[test]
fn a_tool_that_is_hidden_keeps_its_name_and_one_that_is_absent_has_none() {
    let rows = [Row::plugin("a", 9_000), Row::plugin("a", 100), Row::app("b").disabled(), Row::app("b")];
    let kinds: Vec<_> = run(&rows, &Exposing::library()).unwrap().tools.iter().map(|tool| tool.exposure).collect();
    assert_eq!(kinds, [Exposure::Hidden, Exposure::Absent, Exposure::Absent, Exposure::Direct]);
}

#[test]
fn a_reserved_name_is_nobodys() {
    let bare = |name: &str| {
        let tool = catalog_tool("files", name, "", None);
        Row::of(CatalogTool { flat: FlatName::from_naming(name.to_owned()), ..tool })
    };
    let rows = ["shell_command", "search_tools", "call_tool", "other"].map(bare);
    let taken = |how: &Exposing| {
        let lines = lines(&rows, how);
        lines.into_iter().filter(|line| line.ends_with("is reserved")).collect::<Vec<_>>()
    };
    assert_eq!(
        taken(&Exposing::gateway(true)),
        [
            "shell_command absent: the name `shell_command` is reserved",
            "search_tools absent: the name `search_tools` is reserved",
            "call_tool absent: the name `call_tool` is reserved",
        ]
    );
    assert_eq!(taken(&Exposing::gateway(false)).len(), 1);
    assert!(taken(&Exposing::library()).is_empty(), "in a namespace of its own the name is free");
}

#[test]
fn a_direct_only_namespace_is_listed_even_where_there_is_search() {
    let direct_only = Exposing { direct_only: ["mcp__files".to_owned()].into(), ..searching() };
    assert_eq!(
        lines(&[Row::ordinary("a"), Row::app("b")], &direct_only),
        [
            "a direct-model-only: its namespace is among `code_mode.direct_only_tool_namespaces`",
            "b deferred: tool search is on",
        ]
    );
    let omitted = Row::ordinary("a").without(&[Way::Direct]);
    assert_eq!(
        lines(&[omitted], &direct_only),
        ["a hidden: `omit_tools_from` names `direct`, and its namespace is among \
         `code_mode.direct_only_tool_namespaces`",]
    );
}

/// 1.4 rule 15 and 3.2 rule 11, which the reference gives no vectors for.
#[test]
fn a_provider_without_namespaces_is_given_no_tool_and_says_so() {
    use Way::{CodeMode, Deferred, Direct};
    const NONE: &str = "the model's provider takes no namespaces, and the tool stands in one";
    let without = |how: Exposing| Exposing { namespaces: false, ..how };
    let one = || Row::ordinary("a");
    let cases = [
        ("listed otherwise", one(), without(Exposing::library()), format!("a code-mode-only: {NONE}")),
        ("found by search otherwise", one(), without(searching()), format!("a code-mode-only: {NONE}")),
        ("an App's", Row::app("a"), without(searching()), format!("a code-mode-only: {NONE}")),
        (
            "not for scripts",
            one().without(&[CodeMode]),
            without(Exposing::library()),
            format!("a hidden: `omit_tools_from` names `code_mode`, and {NONE}"),
        ),
        (
            "for scripts alone",
            one().without(&[Direct, Deferred]),
            without(Exposing::library()),
            format!("a code-mode-only: `omit_tools_from` names `direct` and `deferred`, and {NONE}"),
        ),
        (
            "in a direct-only namespace",
            one(),
            without(Exposing { direct_only: ["mcp__files".to_owned()].into(), ..searching() }),
            format!("a hidden: {NONE}, and {DIRECT_ONLY}"),
        ),
        (
            "absent",
            Row::app("a").disabled(),
            without(Exposing::library()),
            "a absent: a connector policy disables it".to_owned(),
        ),
    ];
    for (what, row, how, expected) in cases {
        assert_eq!(lines(&[row], &how), [expected], "{what}");
    }
}

/// Rules 11 and 14 of 3.2 and rule 15 of 1.4 word by word, as sets.
fn rule_14(left: &Left) -> Exposure {
    let Left { omitted, direct_only, search, namespaces, code_only } = left;
    let mut ways: BTreeSet<_> = [Way::Direct, Way::Deferred, Way::CodeMode].into();
    ways.retain(|way| !omitted.contains(way));
    if *direct_only {
        ways.remove(&Way::Deferred);
        ways.remove(&Way::CodeMode);
    }
    let available = *search && *namespaces;
    if available && ways.contains(&Way::Deferred) && (!code_only || ways.contains(&Way::CodeMode)) {
        ways.remove(&Way::Direct);
    } else {
        ways.remove(&Way::Deferred);
    }
    if !namespaces {
        ways.remove(&Way::Direct);
    }
    match ways.into_iter().collect::<Vec<_>>().as_slice() {
        [] => Exposure::Hidden,
        [Way::CodeMode] => Exposure::CodeModeOnly,
        [Way::Direct] => Exposure::DirectModelOnly,
        [Way::Direct, Way::CodeMode] => Exposure::Direct,
        [Way::Deferred] => Exposure::DeferredModelOnly,
        [Way::Deferred, Way::CodeMode] => Exposure::Deferred,
        other => panic!("{other:?} is both listed and searched"),
    }
}

#[test]
fn all_128_cases_of_rule_14_are_as_it_says_and_have_a_reason() {
    for bits in 0_u8..128 {
        let bit = |n: u8| bits & (1 << n) != 0;
        let ways = [Way::Direct, Way::Deferred, Way::CodeMode];
        let omitted: BTreeSet<_> = (0..3).filter(|n| bit(*n)).map(|n| ways[usize::from(n)]).collect();
        let (direct_only, search, code_only) = (bit(3), bit(4), bit(5));
        let left = Left { omitted, direct_only, search, namespaces: bit(6), code_only };
        assert_eq!(left.exposure(), rule_14(&left), "{left:?}");
        let reason = left.to_string();
        assert!(reason.len() > 10 && !reason.starts_with(", ") && !reason.contains(", and ,"), "{left:?}: {reason:?}");
    }
}

proptest! {
    #[test]
    fn every_candidate_gets_one_decision_and_plugins_never_pass_their_total(
        specs in proptest::collection::vec((0_usize..10_000, any::<bool>(), any::<bool>(), 0_u8..20), 0..60),
    ) {
        let rows: Vec<_> = specs
            .iter()
            .map(|(bytes, plugin, app, name)| {
                let row = if *app { Row::app(&format!("t{name}")) } else { Row::ordinary(&format!("t{name}")) };
                Row { spec_bytes: *bytes, agent_plugin: *plugin, ..row }
            })
            .collect();
        let exposures = run(&rows, &Exposing::library()).unwrap().tools;
        prop_assert_eq!(exposures.len(), rows.len());
        let row_of = |exposed: &Exposed| rows.iter().find(|row| Arc::ptr_eq(&row.tool, &exposed.tool)).unwrap();
        let shown = exposures.iter().filter(|tool| tool.exposure == Exposure::Direct);
        let plugins: Vec<_> = shown.map(row_of).filter(|row| row.agent_plugin).map(|row| row.spec_bytes).collect();
        prop_assert!(plugins.iter().all(|bytes| *bytes <= MAX_PLUGIN_SPEC));
        prop_assert!(plugins.iter().sum::<usize>() <= MAX_PLUGIN_TOTAL);
        let mut names: Vec<_> = exposures.iter().filter(|tool| tool.exposure.is_callable())
            .map(|tool| Registry::Namespaced.name_of(&tool.tool)).collect();
        names.sort();
        let all = names.len();
        names.dedup();
        prop_assert_eq!(names.len(), all);
    }
}
