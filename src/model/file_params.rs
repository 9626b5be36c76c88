//! File parameters: which arguments of a tool are files, what the server takes of one, and what a model is shown instead.
//!
//! A server says in `_meta["openai/fileParams"]` which parameters it wants as references to uploaded files. A model is asked
//! for a local path there; the host uploads the file and puts the reference in its place. Source: catalog-dispatch 1.6,
//! rules 26 to 28, and 5.2, rule 10.
//!
//! Pure. Whether a server's word counts at all is decided elsewhere: this reads what any definition says.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::arguments::Arguments;
use super::spelled;
use super::tool::{BadDefinition, ToolDefinition};

/// Where a definition names its file parameters.
const DECLARED: &str = "openai/fileParams";
/// How deep references, compositions and items are followed. What lies deeper takes neither field: it is sent less, never more.
const MAX_DEPTH: usize = 64;
/// What is added to the description of a file parameter.
pub const SENTENCE: &str = "Give the absolute path of a local file, or a path inside the allowed folders; the file is uploaded and the tool gets a reference to it.";

/// Which optional fields a server takes with the reference to a file (rule 27).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accepts {
    /// `mime_type`.
    pub mime_type: bool,
    /// `file_name`.
    pub file_name: bool,
}

impl Accepts {
    const NEITHER: Self = Self { mime_type: false, file_name: false };

    fn both(self, other: Self) -> Self {
        Self { mime_type: self.mime_type && other.mime_type, file_name: self.file_name && other.file_name }
    }

    fn either(self, other: Self) -> Self {
        Self { mime_type: self.mime_type || other.mime_type, file_name: self.file_name || other.file_name }
    }
}

/// One file parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileParam {
    /// The argument's name: literal, no path.
    pub name: String,
    /// What may go with the reference.
    pub accepts: Accepts,
}

/// A file that a call's arguments name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileArgument<'a> {
    /// The parameter.
    pub param: &'a FileParam,
    /// Which of several.
    pub index: Option<usize>,
    /// The path as it was written.
    pub path: &'a str,
}

/// The file parameters of a tool; at least one. Immutable.
#[derive(Debug, Clone, PartialEq)]
pub struct FileParams {
    params: Vec<FileParam>,
    masked: Arc<ToolDefinition>,
}

impl FileParams {
    /// Reads the file parameters of a definition. `None`: it declares none.
    ///
    /// # Errors
    /// [`BadDefinition`]: what a model would be shown is larger than a definition may be.
    pub fn of(definition: &ToolDefinition) -> Result<Option<Self>, BadDefinition> {
        let Some(Value::Array(declared)) = definition.meta().and_then(|meta| meta.get(DECLARED)) else {
            return Ok(None);
        };
        let schema = definition.value().get("inputSchema").unwrap_or(&Value::Null);
        let properties = schema.get("properties").and_then(Value::as_object);
        let mut walk = Walk { root: schema, known: HashMap::new() };
        let (mut params, mut seen) = (Vec::new(), std::collections::HashSet::new());
        for name in declared.iter().filter_map(Value::as_str).filter(|name| !name.is_empty()) {
            if seen.insert(name) {
                let property = properties.and_then(|properties| properties.get(name));
                let accepts = property.and_then(|property| walk.accepts(property, 0)).unwrap_or(Accepts::NEITHER);
                params.push(FileParam { name: name.to_owned(), accepts });
            }
        }
        if params.is_empty() {
            return Ok(None);
        }
        let masks = properties.into_iter().flatten().filter(|(name, _)| seen.contains(name.as_str()));
        let masks = masks.map(|(name, property)| (name.as_str(), mask(schema, property).to_string())).collect();
        let masked = Arc::new(ToolDefinition::parse(&with_properties(definition.verbatim(), &masks))?);
        Ok(Some(Self { params, masked }))
    }

    /// Returns the parameters, in the order in which the server declares them.
    #[must_use]
    pub fn params(&self) -> &[FileParam] {
        &self.params
    }

    /// Returns the definition as a model is shown it: a path, or a list of paths, for each file (rule 28). All else is the
    /// server's own, byte for byte.
    #[must_use]
    pub fn masked(&self) -> &Arc<ToolDefinition> {
        &self.masked
    }

    /// Returns the files that the arguments name, in order (rule 10).
    ///
    /// A text is one file, a list of texts several. Anything else, a list with one other value in it too, names none and stays
    /// as it is.
    #[must_use]
    pub fn in_arguments<'a>(&'a self, arguments: &'a Arguments) -> Vec<FileArgument<'a>> {
        let mut found = Vec::new();
        for param in &self.params {
            match arguments.object().and_then(|object| object.get(&param.name)) {
                Some(Value::String(path)) => found.push(FileArgument { param, index: None, path }),
                Some(Value::Array(items)) if items.iter().all(Value::is_string) => {
                    let paths = items.iter().filter_map(Value::as_str).enumerate();
                    found.extend(paths.map(|(index, path)| FileArgument { param, index: Some(index), path }));
                }
                _ => {}
            }
        }
        found
    }
}

/// Looks for what schemas of objects accept. Every schema is looked into once, so that the work grows with the text alone.
struct Walk<'a> {
    root: &'a Value,
    /// By where a schema lies in memory; none while it is being looked into, which is how a cycle ends.
    known: HashMap<usize, Option<Accepts>>,
}

impl<'a> Walk<'a> {
    /// What an object must be that this schema takes; none where it says nothing of objects.
    fn accepts(&mut self, schema: &'a Value, depth: usize) -> Option<Accepts> {
        let schema = schema.as_object()?;
        let place = std::ptr::from_ref(schema).addr();
        if let Some(known) = self.known.get(&place) {
            return *known;
        }
        if depth > MAX_DEPTH {
            return Some(Accepts::NEITHER);
        }
        self.known.insert(place, None);
        // All of these must hold together, of alternatives one.
        let mut found = own(schema);
        let root = self.root;
        let target = schema.get("$ref").and_then(Value::as_str).and_then(|reference| resolve(root, reference));
        for part in target.into_iter().chain(list(schema, "allOf")) {
            found = join(found, self.accepts(part, depth + 1), Accepts::both);
        }
        for key in ["anyOf", "oneOf"] {
            let mut one_of = None;
            for part in list(schema, key) {
                one_of = join(one_of, self.accepts(part, depth + 1), Accepts::either);
            }
            found = join(found, one_of, Accepts::both);
        }
        let items = schema.get("items").into_iter().filter(|items| items.is_object());
        for item in items.chain(list(schema, "items")).chain(list(schema, "prefixItems")) {
            found = join(found, self.accepts(item, depth + 1), Accepts::either);
        }
        self.known.insert(place, found);
        found
    }
}

fn join(one: Option<Accepts>, other: Option<Accepts>, by: fn(Accepts, Accepts) -> Accepts) -> Option<Accepts> {
    match (one, other) {
        (Some(one), Some(other)) => Some(by(one, other)),
        (one, other) => one.or(other),
    }
}

fn list<'a>(schema: &'a Map<String, Value>, key: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    schema.get(key).and_then(Value::as_array).into_iter().flatten()
}

fn has_type(schema: &Map<String, Value>, wanted: &str) -> bool {
    match schema.get("type") {
        Some(Value::String(kind)) => kind == wanted,
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == wanted),
        _ => false,
    }
}

/// What a schema of an object itself says: a field is named, or the object is open.
fn own(schema: &Map<String, Value>) -> Option<Accepts> {
    let untyped = !schema.contains_key("type");
    let shaped = untyped && (schema.contains_key("properties") || schema.contains_key("additionalProperties"));
    if !shaped && !has_type(schema, "object") {
        return None;
    }
    let open = !matches!(schema.get("additionalProperties"), Some(Value::Bool(false) | Value::Object(_)));
    let accepts = |field: &str| match schema.get("properties").and_then(|properties| properties.get(field)) {
        Some(Value::Bool(false)) => false,
        Some(_) => true,
        None => open,
    };
    Some(Accepts { mime_type: accepts("mime_type"), file_name: accepts("file_name") })
}

/// A reference within this schema; none for any other.
fn resolve<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    root.pointer(reference.strip_prefix('#')?)
}

/// The schema that a model is shown for a file, or for several (rule 28).
fn mask(root: &Value, property: &Value) -> Value {
    let old = property.get("description").and_then(Value::as_str).unwrap_or_default();
    let description = match old.trim() {
        "" => SENTENCE.to_owned(),
        _ if old.contains(SENTENCE) => old.to_owned(),
        _ => format!("{old} {SENTENCE}"),
    };
    if is_list(root, property) {
        json!({ "description": description, "type": "array", "items": { "type": "string" } })
    } else {
        json!({ "description": description, "type": "string" })
    }
}

/// Whether a parameter is a list of files: its type, its `items`, or those of what it refers to.
fn is_list(root: &Value, property: &Value) -> bool {
    let mut next = Some(property);
    for _ in 0..MAX_DEPTH {
        let Some(schema) = next.and_then(Value::as_object) else { return false };
        if has_type(schema, "array") || schema.contains_key("items") || schema.contains_key("prefixItems") {
            return true;
        }
        next = schema.get("$ref").and_then(Value::as_str).and_then(|reference| resolve(root, reference));
    }
    false
}

/// Returns a definition's text with other values for these properties of its input schema.
fn with_properties(text: &str, masks: &HashMap<&str, String>) -> String {
    let inside = |text: &str, at: std::ops::Range<usize>, key: &str| {
        let found = text.get(at.clone()).and_then(|part| spelled::members(part).ok()).unwrap_or_default();
        let member = found.into_iter().find(|member| member.key == key);
        member.map(|member| at.start + member.value.start..at.start + member.value.end)
    };
    let schema = inside(text, 0..text.len(), "inputSchema");
    let Some(properties) = schema.and_then(|at| inside(text, at, "properties")) else { return text.to_owned() };
    let members = text.get(properties.clone()).and_then(|part| spelled::members(part).ok()).unwrap_or_default();
    let (mut out, mut from) = (String::with_capacity(text.len()), 0);
    for member in members {
        let Some(mask) = masks.get(member.key.as_str()) else { continue };
        let at = properties.start + member.value.start..properties.start + member.value.end;
        out.push_str(text.get(from..at.start).unwrap_or_default());
        out.push_str(mask);
        from = at.end;
    }
    out.push_str(text.get(from..).unwrap_or_default());
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn definition(properties: &Value, declared: &Value) -> ToolDefinition {
        let schema = json!({ "type": "object", "properties": properties, "$defs": {
            "closed": { "type": "object", "properties": { "mime_type": {} }, "additionalProperties": false },
            "many": { "type": "array", "items": { "$ref": "#/$defs/closed" } },
            "loop": { "anyOf": [{ "$ref": "#/$defs/loop" }, { "$ref": "#/$defs/closed" }] },
        }});
        let meta = json!({ DECLARED: declared });
        ToolDefinition::parse(&json!({ "name": "t", "inputSchema": schema, "_meta": meta }).to_string()).unwrap()
    }

    fn params(properties: &Value, declared: &Value) -> FileParams {
        FileParams::of(&definition(properties, declared)).unwrap().unwrap()
    }

    /// Whether the parameter `f` with this schema takes `mime_type` and `file_name`.
    fn accepts(schema: Value) -> (bool, bool) {
        let accepts = params(&json!({ "f": schema }), &json!(["f"])).params()[0].accepts;
        (accepts.mime_type, accepts.file_name)
    }

    fn paths(params: &FileParams, arguments: &Value) -> Vec<(String, Option<usize>, String)> {
        let arguments = Arguments::parse(&arguments.to_string()).unwrap();
        let found = params.in_arguments(&arguments);
        found.iter().map(|file| (file.param.name.clone(), file.index, file.path.to_owned())).collect()
    }

    #[test]
    fn u1_only_a_list_of_names_declares_file_parameters() {
        for none in [json!(null), json!("f"), json!({ "f": 1 }), json!([]), json!([1, "", null, ["f"]])] {
            assert_eq!(FileParams::of(&definition(&json!({ "f": {} }), &none)), Ok(None), "{none}");
        }
        let found = params(&json!({}), &json!(["b", "", 7, "a/b", "b"]));
        let names: Vec<_> = found.params().iter().map(|param| param.name.as_str()).collect();
        assert_eq!(names, ["b", "a/b"], "names are literal, each counts once");
    }

    #[test]
    fn u9_what_goes_with_a_reference_is_what_the_raw_schema_takes() {
        let both = json!({ "mime_type": {}, "file_name": {} });
        let rows = [
            (json!({ "type": "object", "additionalProperties": false }), (false, false)),
            (json!({ "type": "object" }), (true, true)),
            (json!({ "type": "object", "additionalProperties": true }), (true, true)),
            (json!({ "type": "object", "additionalProperties": {} }), (false, false)),
            (json!({ "properties": both, "additionalProperties": false }), (true, true)),
            (json!({ "items": { "properties": { "file_name": {} }, "additionalProperties": false } }), (false, true)),
            (json!({ "type": ["object", "null"], "properties": { "file_name": false } }), (true, false)),
            (json!({ "$ref": "#/$defs/closed" }), (true, false)),
            (json!({ "$ref": "#/$defs/many" }), (true, false)),
            (json!({ "$ref": "#/$defs/loop" }), (true, false)),
            (json!({ "anyOf": [{ "type": "string" }, { "$ref": "#/$defs/closed" }] }), (true, false)),
            (json!({ "oneOf": [{ "type": "object" }, { "$ref": "#/$defs/closed" }] }), (true, true)),
            // Both must take it.
            (json!({ "allOf": [{ "type": "object" }, { "$ref": "#/$defs/closed" }] }), (true, false)),
            (json!({ "type": "string" }), (false, false)),
            (json!({}), (false, false)),
            (json!(true), (false, false)),
            (json!({ "$ref": "https://a.example/x" }), (false, false)),
        ];
        for (schema, wanted) in rows {
            assert_eq!(accepts(schema.clone()), wanted, "{schema}");
        }
        let unknown = params(&json!({}), &json!(["f"]));
        assert_eq!(unknown.params()[0].accepts, Accepts::NEITHER, "a parameter without a schema");
    }

    #[test]
    fn u4_u7_a_text_and_a_list_of_texts_name_files_and_nothing_else_does() {
        let found = params(&json!({}), &json!(["file", "more"]));
        let arguments = json!({ "more": ["one.csv", "two.csv"], "file": "a.csv", "other": "b.csv" });
        let file = |name: &str, index, path: &str| (name.to_owned(), index, path.to_owned());
        let wanted = [file("file", None, "a.csv"), file("more", Some(0), "one.csv"), file("more", Some(1), "two.csv")];
        assert_eq!(paths(&found, &arguments), wanted);
        for unchanged in [json!(7), json!(["a", 7]), json!([7, "a"]), json!({ "f": "a" }), json!(null), json!([["a"]])]
        {
            assert_eq!(paths(&found, &json!({ "file": unchanged })), [], "{unchanged}");
        }
        assert!(found.in_arguments(&Arguments::none()).is_empty());
    }

    #[test]
    fn a_model_is_shown_a_path_where_the_server_wants_a_file() {
        let text = r##"{"_meta":{"openai/fileParams":["f","g","h","absent"]},"name":"t","inputSchema":{"x":1.50, "properties":
            { "f" : {"type":"object","description":"What.","title":"F"},"n":{"default":1e3}, "g":{"items":{}},
              "h":{"$ref":"#/$defs/many"}},"$defs":{"many":{"type":"array"}}}}"##;
        let raw = ToolDefinition::parse(text).unwrap();
        let found = FileParams::of(&raw).unwrap().unwrap();
        let list = format!(r#"{{"description":"{SENTENCE}","type":"array","items":{{"type":"string"}}}}"#);
        let wanted = text
            .replace('\n', " ")
            .replace(
                r#"{"type":"object","description":"What.","title":"F"}"#,
                &format!(r#"{{"description":"What. {SENTENCE}","type":"string"}}"#),
            )
            .replace(r#"{"items":{}}"#, &list)
            .replace(r##"{"$ref":"#/$defs/many"}"##, &list);
        assert_eq!(found.masked().verbatim().as_ref(), wanted);
        let again = FileParams::of(found.masked()).unwrap().unwrap();
        assert_eq!(again.masked().verbatim(), found.masked().verbatim(), "the sentence is not repeated");
    }

    #[test]
    fn a_schema_that_leads_into_itself_or_far_down_is_looked_into_once() {
        let mut chain = Map::new();
        for at in 0..12_000 {
            let next = format!("#/$defs/a{}", (at + 1) % 12_000);
            chain.insert(format!("a{at}"), json!({ "allOf": [{ "$ref": next }, { "$ref": next }] }));
        }
        let schema = json!({ "properties": { "f": { "$ref": "#/$defs/a0" } }, "$defs": chain });
        let text = json!({ "name": "t", "inputSchema": schema, "_meta": { DECLARED: ["f"] } }).to_string();
        let found = FileParams::of(&ToolDefinition::parse(&text).unwrap()).unwrap().unwrap();
        assert_eq!(found.params()[0].accepts, Accepts::NEITHER);
    }

    fn any_schema() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(json!({})),
            Just(json!({ "type": "object" })),
            Just(json!({ "type": "object", "additionalProperties": false })),
            Just(json!({ "$ref": "#/$defs/loop" })),
            Just(json!({ "$ref": "#" })),
            any::<bool>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 3, |inner| {
            let several = prop::collection::vec(inner.clone(), 0..3);
            prop_oneof![
                (prop::sample::select(vec!["allOf", "anyOf", "oneOf", "prefixItems"]), several)
                    .prop_map(|(key, parts)| json!({ key: parts })),
                inner.clone().prop_map(|items| json!({ "items": items })),
                inner.prop_map(|field| json!({ "properties": { "mime_type": field } })),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_schema_gets_a_mask_and_nothing_else_changes(schema in any_schema(), other in any_schema()) {
            let raw = definition(&json!({ "a": other, "f": schema, "z": other }), &json!(["f"]));
            let found = FileParams::of(&raw).unwrap().unwrap();
            let (mut before, mut after) = (raw.value().clone(), found.masked().value().clone());
            let file = before["inputSchema"]["properties"]["f"].take();
            let shown = after["inputSchema"]["properties"]["f"].take();
            prop_assert_eq!(before, after);
            prop_assert_eq!(&shown, &mask(&json!({}), &if is_list(&raw.value()["inputSchema"], &file) { json!({ "items": {} }) } else { json!({}) }));
        }
    }
}
