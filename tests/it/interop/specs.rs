//! What a model is given of the real servers' tools: `portcullis tools --for responses`.
//!
//! The form is compared with what was written down when the servers were chosen, one file for each server: their versions
//! are pinned, so that another text is a change of ours. No part is masked: nothing in a spec is of the machine, of the
//! run, or of a version, and the test says so.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout};

use super::calls::{CALLS, made_up};
use super::servers::NEEDED;
use super::{Direct, Place, configured, servers, start};
use crate::support::PATIENCE;
use crate::support::installed::Installed;
use crate::support::raw_client::Definition;

/// All keywords that the conversion leaves (catalog-dispatch 1.5, rule 24, and rule 22's definitions).
const KEYWORDS: [&str; 14] = [
    "$ref",
    "type",
    "description",
    "encrypted",
    "enum",
    "items",
    "properties",
    "required",
    "additionalProperties",
    "anyOf",
    "oneOf",
    "allOf",
    "$defs",
    "definitions",
];

/// The types that providers know.
const TYPES: [&str; 7] = ["string", "number", "boolean", "integer", "object", "array", "null"];

/// What the Responses API takes as a namespace, with nothing besides.
fn form() -> Value {
    let name = json!({ "type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$" });
    let function = json!({
        "type": "object",
        "properties": {
            "type": { "const": "function" },
            "name": name,
            "description": { "type": "string" },
            "strict": { "const": false },
            "parameters": {
                "type": "object",
                "properties": { "type": { "const": "object" }, "properties": { "type": "object" } },
                "required": ["type", "properties"],
            },
        },
        "required": ["type", "name", "description", "strict", "parameters"],
        "additionalProperties": false,
    });
    json!({
        "type": "object",
        "properties": {
            "type": { "const": "namespace" },
            "name": name,
            "description": { "type": "string", "minLength": 1 },
            "tools": { "type": "array", "items": function, "minItems": 1 },
        },
        "required": ["type", "name", "description", "tools"],
        "additionalProperties": false,
    })
}

/// What no provider would take of a converted schema, a line each.
fn faults(schema: &Value) -> Vec<String> {
    let mut out = Vec::new();
    if !jsonschema::draft202012::meta::is_valid(schema) {
        out.push("not valid by the meta-schema".to_owned());
    }
    faults_at(schema, schema, "", &mut out);
    out
}

fn faults_at(schema: &Value, root: &Value, at: &str, out: &mut Vec<String>) {
    let Some(members) = schema.as_object() else {
        out.push(format!("`{at}` is no object: {schema}"));
        return;
    };
    for (key, value) in members {
        let at = format!("{at}/{key}");
        let each = |value: &Value, out: &mut Vec<String>| match value {
            Value::Object(table) => {
                table.iter().for_each(|(name, schema)| faults_at(schema, root, &format!("{at}/{name}"), out));
            }
            Value::Array(list) => {
                list.iter().enumerate().for_each(|(i, schema)| faults_at(schema, root, &format!("{at}/{i}"), out));
            }
            other => out.push(format!("`{at}` holds no schemas: {other}")),
        };
        match key.as_str() {
            "type" => {
                let several = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
                if several.is_empty() || !several.iter().all(|kind| TYPES.iter().any(|known| kind == known)) {
                    out.push(format!("`{at}` is no type: {value}"));
                }
            }
            "$ref" => {
                let inside = value.as_str().and_then(|text| text.strip_prefix('#'));
                if inside.and_then(|pointer| root.pointer(pointer)).is_none() {
                    out.push(format!("`{at}` leads nowhere: {value}"));
                }
            }
            "properties" | "$defs" | "definitions" | "anyOf" | "oneOf" | "allOf" => each(value, out),
            "additionalProperties" if value.is_boolean() => {}
            "items" | "additionalProperties" => faults_at(value, root, &at, out),
            other if KEYWORDS.contains(&other) => {}
            _ => out.push(format!("`{at}` is a keyword that no provider is promised")),
        }
    }
}

/// A tool as `portcullis tools` lists it, and what a model is given of it.
struct Told {
    server: String,
    tool: String,
    namespace: String,
    function: Value,
}

/// Runs the command and returns all that it printed.
async fn printed(place: &Place, config: &str) -> Value {
    let mut command = configured(place, config, &["tools", "--for", "responses", "--format", "json"]);
    let ran = timeout(PATIENCE * 2, command.kill_on_drop(true).output()).await.expect("it does not end").unwrap();
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success(), "{}: {said}", ran.status);
    serde_json::from_slice(&ran.stdout).unwrap()
}

/// Takes apart what was printed. Each listed tool is one function of the request, and there are no others.
fn told(printed: &Value) -> Vec<Told> {
    let mut functions = Vec::new();
    for namespace in printed["request"]["tools"].as_array().unwrap() {
        for function in namespace["tools"].as_array().unwrap() {
            functions.push((namespace["name"].as_str().unwrap(), function["name"].as_str().unwrap(), function));
        }
    }
    let rows = printed["tools"].as_array().unwrap();
    assert_eq!(functions.len(), rows.len());
    let told = |row: &Value| {
        assert_eq!(row["changes"], json!([]), "a real server's schema was repaired or cut: {row}");
        let text = |key: &str| row[key].as_str().unwrap().to_owned();
        let mut own = functions.iter().filter(|found| found.0 == row["namespace"] && found.1 == row["name"]);
        let function = own.next().unwrap_or_else(|| panic!("no model is told of {row}")).2.clone();
        assert!(own.next().is_none(), "told twice: {row}");
        Told { server: text("server"), tool: text("tool"), namespace: text("namespace"), function }
    };
    rows.iter().map(told).collect()
}

/// Runs the command until it lists what the servers list directly: some of them add tools after the handshake.
async fn settled(place: &Place, config: &str, directs: &mut [Direct]) -> Value {
    let give_up = Instant::now() + PATIENCE * 2;
    loop {
        let printed = printed(place, config).await;
        let mut wanted = BTreeSet::new();
        for direct in directs.iter_mut() {
            direct.tools = direct.client.tools().await;
            wanted.extend(direct.tools.iter().map(|tool| format!("{}/{}", direct.server.name, tool.name())));
        }
        let listed: BTreeSet<String> =
            told(&printed).iter().map(|told| format!("{}/{}", told.server, told.tool)).collect();
        if listed == wanted {
            return printed;
        }
        assert!(Instant::now() < give_up, "listed: {listed:?}; the servers': {wanted:?}");
    }
}

/// Arguments for a tool: those that the other test calls it with, what its schema requires, and that with each other
/// property.
fn samples(direct: &Direct, tool: &Definition) -> Vec<Value> {
    let (name, schema) = (tool.name(), tool.schema());
    let folder = direct.folders[0].to_str().unwrap();
    let calls = CALLS.iter().filter(|call| call.kind == direct.server.kind && call.tool == name);
    let mut out: Vec<Value> =
        calls.map(|call| serde_json::from_str(&call.arguments.replace("{folder}", folder)).unwrap()).collect();
    let least = made_up(&schema);
    for (property, schema) in schema["properties"].as_object().unwrap_or(&Map::new()) {
        let mut more = least.clone();
        more[property] = made_up(schema);
        out.push(more);
    }
    out.push(least);
    out
}

/// Conversion only widens: what the server's own schema takes the model's takes, too. Returns how many samples there were.
fn widened(direct: &Direct, tool: &Definition, parameters: &Value) -> usize {
    let raw = jsonschema::validator_for(&tool.schema()).unwrap();
    let converted = jsonschema::draft202012::new(parameters).unwrap();
    let taken: Vec<Value> = samples(direct, tool).into_iter().filter(|sample| raw.is_valid(sample)).collect();
    let name = format!("{}/{}", direct.server.name, tool.name());
    assert!(!taken.is_empty(), "{name}: no sample fits the server's own schema");
    for sample in &taken {
        assert!(converted.is_valid(sample), "{name}: the model's schema does not take {sample}: {parameters}");
    }
    taken.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_specs_of_the_real_servers_are_those_written_down_and_such_as_a_provider_takes() {
    let Some(installed) = Installed::with(&NEEDED) else { return };
    let place = Place(tempfile::tempdir().unwrap());
    let (mut directs, config) = start(&place, &installed, servers::real()).await;
    let printed = settled(&place, &config, &mut directs).await;
    let text = printed["request"].to_string();
    for of_the_machine in [place.0.path(), installed.folder()] {
        assert!(!text.contains(of_the_machine.to_str().unwrap()), "a folder of this machine is in a spec");
    }

    let told = told(&printed);
    let form = jsonschema::draft202012::new(&form()).unwrap();
    for namespace in printed["request"]["tools"].as_array().unwrap() {
        let wrong: Vec<String> =
            form.iter_errors(namespace).map(|error| format!("{}: {error}", error.instance_path())).collect();
        assert_eq!(wrong, Vec::<String>::new(), "{}", namespace["name"]);
    }
    let names: BTreeSet<_> = told.iter().map(|told| (&told.namespace, told.function["name"].as_str())).collect();
    assert_eq!(names.len(), told.len(), "two functions of one name");

    let mut samples = 0;
    for direct in &directs {
        for tool in &direct.tools {
            let own = |told: &&Told| told.server == direct.server.name && told.tool == tool.name();
            let parameters = &told.iter().find(own).unwrap().function["parameters"];
            assert_eq!(faults(parameters), Vec::<String>::new(), "{}/{}", direct.server.name, tool.name());
            samples += widened(direct, tool, parameters);
        }
    }
    println!("{} specs of {} servers, {samples} samples", told.len(), directs.len());

    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../snapshots");
    settings.set_omit_expression(true);
    settings.bind(|| {
        for direct in &directs {
            let server = direct.server.name;
            let of = &told.iter().find(|told| told.server == server).unwrap().namespace;
            let all = printed["request"]["tools"].as_array().unwrap();
            let own: Vec<_> = all.iter().filter(|namespace| namespace["name"] == of.as_str()).collect();
            insta::assert_json_snapshot!(server, own);
        }
    });
}

#[test]
fn what_no_provider_would_take_is_seen() {
    let good = json!({
        "type": "object",
        "properties": { "a": { "$ref": "#/$defs/b" }, "type": { "type": ["string", "null"], "enum": ["x"] } },
        "$defs": { "b": { "anyOf": [{ "type": "array", "items": { "type": "integer" } }, {}] } },
        "required": ["a"],
        "additionalProperties": false,
    });
    assert_eq!(faults(&good), Vec::<String>::new());
    let bad = [
        (json!({ "type": "object", "required": "a" }), "meta-schema"),
        (json!({ "type": "text" }), "`/type` is no type"),
        (json!({ "properties": { "a": { "format": "uri" } } }), "`/properties/a/format` is a keyword"),
        (json!({ "items": { "anyOf": [{ "const": 1 }] } }), "`/items/anyOf/0/const` is a keyword"),
        (json!({ "additionalProperties": { "title": "x" } }), "`/additionalProperties/title` is a keyword"),
        (json!({ "$defs": { "a": true } }), "`/$defs/a` is no object"),
        (json!({ "$ref": "#/$defs/a" }), "`/$ref` leads nowhere"),
        (json!({ "$ref": "https://example.org/schema" }), "`/$ref` leads nowhere"),
    ];
    for (schema, fault) in bad {
        let found = faults(&schema);
        assert!(found.iter().any(|line| line.contains(fault)), "{schema}: {found:?}");
    }
    let bad_name = json!({ "type": "namespace", "name": "a.b", "description": "x", "tools": [] });
    let wrong = jsonschema::draft202012::new(&form()).unwrap().iter_errors(&bad_name).count();
    assert_eq!(wrong, 2, "the name, and no function");
}
