//! What tools of the Apps server are called: by their connector, not by the server (catalog-dispatch 1.1 rule 3).
//!
//! Only a server that whoever embeds the host gave connectors to is one (R9). What a connector is called is its own word, so a
//! name here is a wish like any other: [`super::naming`] sets apart two connectors that come to the same one.

use std::sync::Arc;

use super::naming::Nameable;
use crate::model::name::{RawToolName, ServerName};
use crate::model::tool::Connector;

/// The namespace of Apps, whatever the embedder calls their server.
pub const APPS: &str = "codex_apps";

/// Returns what a tool of the Apps server would like to be called: in `codex_apps__<slug of the connector's name>`, or in
/// `codex_apps` where there is none; its own name without the connector's in front, as a slug.
#[must_use]
pub fn nameable(server: ServerName, tool: RawToolName, connector: Option<&Connector>) -> Nameable {
    let name = connector.and_then(named);
    let namespace = name.map_or_else(|| APPS.to_owned(), |name| format!("{APPS}__{}", slug(name)));
    let leading = name.into_iter().chain(connector.map(|own| own.id.as_str()));
    let whole = slug(tool.as_str());
    let shorter = leading.filter_map(|text| whole.strip_prefix(&slug(text))).find(|rest| !rest.is_empty());
    let callable = shorter.map_or_else(|| whole.clone(), str::to_owned);
    Nameable { server, namespace, callable, tool, connector_id: connector.map(|own| own.id.clone()) }
}

/// Returns what a tool's namespace is described by: a connector's own description, and nothing else, where there is a connector.
pub(super) fn description(connector: Option<&Connector>, instructions: Option<&Arc<str>>) -> Option<Arc<str>> {
    match connector {
        Some(connector) => connector.description.as_deref().map(Arc::from),
        None => instructions.cloned(),
    }
}

fn named(connector: &Connector) -> Option<&str> {
    connector.name.as_deref().map(str::trim).filter(|name| !name.is_empty())
}

/// ASCII letters and digits in lower case, `_` for every other character but at both ends; `app` if nothing is left.
fn slug(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
    let text: String = text.chars().map(plain).collect();
    let text = text.trim_matches('_');
    if text.is_empty() { "app".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::super::naming::{NamingOptions, names};
    use super::*;

    fn connector(id: &str, name: Option<&str>) -> Connector {
        Connector { id: id.to_owned(), name: name.map(str::to_owned), account: None, description: None }
    }

    fn app(tool: &str, connector: Option<&Connector>) -> Nameable {
        nameable(ServerName::parse("codex_apps").unwrap(), RawToolName::parse(tool).unwrap(), connector)
    }

    /// Namespace and name in the order of the raw identities.
    fn named(tools: &[Nameable], exempt: bool) -> Vec<(String, String)> {
        let exempt = exempt.then(|| ServerName::parse("codex_apps").unwrap()).into_iter().collect();
        let options = NamingOptions { exempt, ..NamingOptions::default() };
        let pair = |named: super::super::naming::Named| (named.namespace.to_string(), named.callable.to_string());
        names(tools, &options).named.into_iter().map(pair).collect()
    }

    fn pair(namespace: &str, name: &str) -> (String, String) {
        (namespace.to_owned(), name.to_owned())
    }

    #[test]
    fn n5_the_raw_server_decides_whether_an_apps_namespace_has_the_prefix() {
        let calendar = connector("c1", Some("Calendar"));
        let tools = [app("list", Some(&calendar))];
        assert_eq!(named(&tools, true), [pair("codex_apps__calendar", "list")]);
        assert_eq!(named(&tools, false), [pair("mcp__codex_apps__calendar", "list")]);
    }

    #[test]
    fn h4_the_connectors_name_leaves_the_tools_and_its_separator_stays() {
        let calendar = connector("c1", Some("Calendar"));
        let tools = [app("calendar_create_event", Some(&calendar))];
        assert_eq!(named(&tools, false), [pair("mcp__codex_apps__calendar", "_create_event")]);
    }

    #[test]
    fn n16_two_connectors_of_one_slug_are_set_apart_and_each_namespace_keeps_its_tools() {
        let (one, other) = (connector("c1", Some("Cal")), connector("c2", Some("cal!")));
        let tools = [app("list", Some(&one)), app("list", Some(&other)), app("add", Some(&one))];
        let names = named(&tools, false);
        assert!(names.iter().all(|(namespace, _)| namespace.starts_with("mcp__codex_apps__cal_")), "{names:?}");
        assert_eq!(names[0].0, names[1].0);
        assert_ne!(names[1].0, names[2].0);
        assert_eq!(names[1].1, "list");
        assert_eq!(names[2].1, "list");
    }

    #[test]
    fn without_a_name_the_namespace_is_bare_and_the_id_leaves_the_tools_name() {
        for name in [None, Some(" ")] {
            let nameless = connector("google-mail", name);
            let wish = app("Google_Mail.send", Some(&nameless));
            assert_eq!((wish.namespace.as_str(), wish.callable.as_str()), ("codex_apps", "_send"));
        }
        let wish = app("send", None);
        assert_eq!((wish.namespace.as_str(), wish.callable.as_str(), wish.connector_id), ("codex_apps", "send", None));
    }

    #[test]
    fn a_name_that_would_be_empty_stays_whole_or_loses_the_id() {
        assert_eq!(app("Calendar", Some(&connector("c1", Some("Calendar")))).callable, "calendar");
        assert_eq!(app("calendar", Some(&connector("cal", Some("Calendar")))).callable, "endar");
        assert_eq!(app("mail_send", Some(&connector("mail", Some("Post")))).callable, "_send");
    }

    #[test]
    fn odd_names_have_slugs_too() {
        let odd = [("Größe 1", "gr__e_1"), ("--A--b--", "a__b"), ("カレンダー", "app"), ("", "app"), ("a\0b", "a_b")];
        for (text, wanted) in odd {
            assert_eq!(slug(text), wanted, "{text:?}");
        }
        let spaced = app("x", Some(&connector("c", Some("  My Calendar "))));
        assert_eq!(spaced.namespace, "codex_apps__my_calendar");
    }

    #[test]
    fn two_tools_of_one_slug_are_both_there_under_names_of_their_own() {
        let calendar = connector("c1", Some("Calendar"));
        let names = named(&[app("a-b", Some(&calendar)), app("a.b", Some(&calendar))], false);
        assert_eq!(names.len(), 2);
        assert_ne!(names[0], names[1]);
    }

    #[test]
    fn a_connector_without_a_description_does_not_borrow_the_servers_instructions() {
        let instructions: Arc<str> = "use me".into();
        let mut calendar = connector("c1", Some("Calendar"));
        assert_eq!(description(Some(&calendar), Some(&instructions)), None);
        calendar.description = Some("Your events.".to_owned());
        assert_eq!(description(Some(&calendar), Some(&instructions)).as_deref(), Some("Your events."));
        assert_eq!(description(None, Some(&instructions)), Some(instructions));
    }
}
