use serde_json::json;

use super::*;
use crate::model::digest::Digest;
use crate::model::name::{RawToolName, ServerName};
use crate::model::tool::{Connector, Plugin, ServerIdentity, ToolDefinition};
use crate::pipeline::admit::naming::{self, Nameable};

fn tool(definition: &Value) -> CatalogTool {
    let definition = Arc::new(ToolDefinition::parse(&definition.to_string()).unwrap());
    let server = ServerName::parse("s").unwrap();
    let raw = RawToolName::parse(definition.name().as_str()).unwrap();
    let nameable = [Nameable::ordinary(server.clone(), raw)];
    let row = naming::names(&nameable, &naming::NamingOptions::default()).named.remove(0);
    CatalogTool {
        server,
        identity: ServerIdentity(Digest::of(b"s")),
        hints: definition.hints(),
        definition,
        namespace: row.namespace,
        callable: row.callable,
        flat: naming::flat_names(&nameable, naming::FlatStyle::default(), naming::NameLimit::LIBRARY)
            .named
            .remove(0)
            .flat,
        namespace_description: None,
        connector: None,
        plugin: None,
        files: None,
        unvouched: None,
    }
}

fn plain(name: &str) -> CatalogTool {
    tool(&json!({"name": name, "description": "Does it.", "inputSchema": {"type": "object"},
        "outputSchema": {"type": "object"}}))
}

fn spec(tool: &CatalogTool) -> ToolSpec {
    ToolSpec::new(tool, tool.definition.value(), tool.namespace_description.as_deref()).unwrap()
}

#[test]
fn r12_a_handler_is_one_namespace_with_one_function_in_the_form_of_the_responses_api() {
    let spec = spec(&plain("a"));
    let function = json!({"type": "function", "name": "a", "description": "Does it.", "strict": false,
        "parameters": {"type": "object", "properties": {}}});
    let expected = json!({"type": "namespace", "name": "mcp__s", "description": "", "tools": [function]});
    assert_eq!(serde_json::to_value(&*spec.namespace).unwrap(), expected);
}

#[test]
fn r16_defer_loading_is_there_only_when_asked_for() {
    let spec = spec(&plain("a"));
    let found = serde_json::to_value(Deferred(&spec.namespace)).unwrap();
    assert_eq!(found["tools"][0]["defer_loading"], json!(true));
    assert!(!serde_json::to_string(&*spec.namespace).unwrap().contains("defer_loading"));
}

#[test]
fn r13_the_description_is_the_servers_then_the_connectors_then_none() {
    let mut tool = plain("a");
    tool.namespace_description = Some("  \n".into());
    assert_eq!(&*spec(&tool).namespace.description, "");
    tool.connector =
        Some(Connector { id: "c".to_owned(), name: Some(" Mail ".to_owned()), account: None, description: None });
    assert_eq!(&*spec(&tool).namespace.description, "Tools for working with Mail.");
    tool.namespace_description = Some(" Says so. ".into());
    assert_eq!(&*spec(&tool).namespace.description, "Says so.");
}

#[test]
fn r13_a_long_description_ends_on_a_character_and_the_cut_is_told() {
    let mut tool = plain("a");
    tool.namespace_description = Some(format!("{}é", "a".repeat(MAX_NAMESPACE_DESCRIPTION - 1)).into());
    let spec = spec(&tool);
    assert_eq!(spec.namespace.description.len(), MAX_NAMESPACE_DESCRIPTION - 1);
    assert_eq!(spec.cuts, [Cut::NamespaceDescription(MAX_NAMESPACE_DESCRIPTION + 1)]);
}

#[test]
fn c30_a_plugins_description_is_cut_on_a_character_and_an_ordinary_one_is_not() {
    let text = |description: String| json!({"name": "a", "description": description, "inputSchema": {}});
    let mut plugin = tool(&text(format!("{}é", "a".repeat(999))));
    plugin.plugin = Some(Plugin { id: "p@here".to_owned(), name: "P".to_owned() });
    plugin.namespace_description = Some("b".repeat(1_001).into());
    let plugin = spec(&plugin);
    assert_eq!(plugin.function.description.len(), 999);
    assert_eq!(plugin.namespace.description.len(), 1_000);
    assert!(matches!(plugin.cuts[..], [Cut::NamespaceDescription(1_001), Cut::Description(_)]));
    assert_eq!(spec(&tool(&text("a".repeat(1_100)))).function.description.len(), 1_100);
}

#[test]
fn r17_a_plugins_function_that_is_too_long_keeps_its_name_and_opens_its_parameters() {
    let properties: Map<String, Value> =
        (0..300).map(|n| (format!("property_{n:03}"), json!({"type": "string"}))).collect();
    let mut tool = tool(&json!({"name": "a", "description": "Does it.", "inputSchema": {"properties": properties}}));
    assert_eq!(spec(&tool).cuts, []);
    tool.plugin = Some(Plugin { id: "p@here".to_owned(), name: "P".to_owned() });
    let spec = spec(&tool);
    assert_eq!(*spec.function.parameters, json!({"type": "object", "properties": {}, "additionalProperties": true}));
    assert_eq!(&*spec.function.description, "Does it. This tool is part of plugin `P`.");
    assert!(matches!(spec.cuts[..], [Cut::Parameters(_)]));
}

#[test]
fn the_sentence_on_plugins_follows_a_full_stop() {
    assert_eq!(with_plugins("Reads", &["A"]), "Reads. This tool is part of plugin `A`.");
    assert_eq!(with_plugins("Reads!", &["A", "B"]), "Reads! This tool is part of plugins `A`, `B`.");
    assert_eq!(with_plugins("", &["A"]), "This tool is part of plugin `A`.");
    assert_eq!(with_plugins("Reads", &[]), "Reads");
}

#[test]
fn r15_namespaces_of_one_name_become_one_with_sorted_functions() {
    let (b, mut a) = (plain("b"), plain("a"));
    let undescribed = merge([&*spec(&b).namespace]);
    assert_eq!(&*undescribed[0].description, "Tools in the mcp__s namespace.");
    a.namespace_description = Some("First.".into());
    let merged = merge([&*spec(&b).namespace, &*spec(&a).namespace]);
    assert_eq!(merged.len(), 1);
    assert_eq!(&*merged[0].description, "First.");
    let names: Vec<&str> = merged[0].tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
}

#[test]
fn r19_a_script_is_told_no_schemas_and_gets_the_output_in_its_envelope() {
    let spec = spec(&plain("a"));
    let script = serde_json::to_value(&**spec.script()).unwrap();
    assert_eq!(script, json!({"namespace": "mcp__s", "name": "a", "description": "Does it."}));
    assert!(Arc::ptr_eq(spec.script(), spec.script()));
    let output = spec.script_output();
    assert_eq!(output["properties"]["structuredContent"], json!({"type": "object"}));
    assert_eq!(output["required"], json!(["content"]));
    assert_eq!(output["additionalProperties"], json!(false));
}

#[test]
fn r18_a_tool_whose_schema_cannot_be_converted_has_no_specification() {
    let tool = tool(&json!({"name": "a", "inputSchema": {"properties": 1}}));
    assert_eq!(ToolSpec::new(&tool, tool.definition.value(), None).unwrap_err().pointer(), "/properties");
}
