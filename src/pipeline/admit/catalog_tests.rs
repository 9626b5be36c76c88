use std::collections::BTreeMap;

use super::*;
use crate::model::name::{CallableName, Namespace};

fn view(parallel: bool) -> ServerView {
    ServerView { parallel, ..ServerView::embedded(Duration::from_secs(1), true) }
}

/// A tool as the catalog lists it, with the hints that count of those that it gives.
fn listed(annotations: &str, may_relax: bool) -> CatalogTool {
    let text = format!(r#"{{"name":"t","title":"Calendar_List","inputSchema":{{}},"annotations":{annotations}}}"#);
    let definition = Arc::new(ToolDefinition::parse(&text).unwrap());
    let hints = definition.hints();
    CatalogTool {
        server: ServerName::parse("s").unwrap(),
        identity: ServerIdentity(Digest::of(b"s")),
        hints: if may_relax { hints } else { hints.without_relaxing() },
        definition,
        namespace: Namespace::from_naming("mcp__s".to_owned()),
        callable: CallableName::from_naming("t".to_owned()),
        flat: FlatName::from_naming("s__t".to_owned()),
        namespace_description: None,
        connector: None,
        plugin: None,
        files: None,
        unvouched: None,
    }
}

#[test]
fn p1_a_tool_runs_in_parallel_if_it_only_reads_or_its_server_is_said_to_bear_it() {
    assert!(!view(false).may_run_parallel(&listed("{}", true)));
    assert!(!view(false).may_run_parallel(&listed(r#"{"readOnlyHint":false}"#, true)));
    assert!(view(false).may_run_parallel(&listed(r#"{"readOnlyHint":true}"#, true)));
    assert!(view(true).may_run_parallel(&listed("{}", true)));
    assert!(view(true).may_run_parallel(&listed(r#"{"readOnlyHint":false}"#, true)));
}

#[test]
fn p2_that_a_tool_may_destroy_says_nothing_about_running_in_parallel() {
    assert!(view(false).may_run_parallel(&listed(r#"{"readOnlyHint":true,"destructiveHint":true}"#, true)));
}

#[test]
fn r9_a_read_only_hint_that_does_not_count_runs_nothing_in_parallel() {
    assert!(!view(false).may_run_parallel(&listed(r#"{"readOnlyHint":true}"#, false)));
}

#[test]
fn a_title_loses_its_connectors_name_and_no_more() {
    let mut tool = listed("{}", true);
    assert_eq!(tool.title(), Some("Calendar_List"));
    let connector =
        |name: &str| Connector { id: "c".to_owned(), name: Some(name.to_owned()), account: None, description: None };
    let titles = [("Calendar", "List"), ("calendar", "Calendar_List"), ("Cal", "Calendar_List"), ("", "Calendar_List")];
    for (name, wanted) in titles {
        tool.connector = Some(connector(name));
        assert_eq!(tool.title(), Some(wanted), "{name}");
    }
}

#[test]
fn r9_an_apps_tool_has_its_connectors_namespace_and_any_other_server_keeps_its_own() {
    let calendar = Connector {
        id: "c1".to_owned(),
        name: Some("Calendar".to_owned()),
        account: None,
        description: Some("Your events.".to_owned()),
    };
    let own = RawToolName::parse("calendar_list").unwrap();
    let connectors = BTreeMap::from([(own, calendar)]);
    let wished = |connectors: &BTreeMap<RawToolName, Connector>, tool: &str| {
        wish(&ServerName::parse("codex_apps").unwrap(), &RawToolName::parse(tool).unwrap(), connectors)
    };
    let apps = wished(&connectors, "calendar_list");
    assert_eq!((apps.namespace.as_str(), apps.callable.as_str()), ("codex_apps__calendar", "_list"));
    assert_eq!(wished(&connectors, "Other").callable, "other");
    // A server that is only called so is no Apps server.
    assert_eq!(wished(&BTreeMap::new(), "Calendar_List").callable, "Calendar_List");
}
