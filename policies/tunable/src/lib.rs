//! A policy that says what its settings say, at all three decision points. Tests run it; it is not shipped.
//!
//! ```json
//! { "word": "secret", "longest": 40 }
//! ```
//!
//! `word` is what it looks for: a call whose argument `text` is the word is denied, an App's tool of that name disabled, and
//! every occurrence in an answer replaced. An argument `text` of more than `longest` bytes is denied too.
#![cfg_attr(target_arch = "wasm32", no_std)]

use portcullis_policy::connector::{self, AppTool, ConnectorPolicy};
use portcullis_policy::sanitiser::{self, Class, Output, Sanitiser};
use portcullis_policy::settings::{Problem, Settings};
use portcullis_policy::{Call, Decision, Policy, String, Vec, abstain, deny, format, host, vec};

/// What its settings are. That the word is one word is for [`Tunable::validate`]: two rules, so that both are seen to count.
const SCHEMA: &str = r#"{
    "type": "object",
    "properties": {
        "word": { "type": "string", "minLength": 3 },
        "longest": { "type": "integer", "minimum": 1, "maximum": 1000 }
    },
    "required": ["word"],
    "additionalProperties": false
}"#;

struct Tunable;

impl Settings for Tunable {
    fn schema() -> String {
        String::from(SCHEMA)
    }

    fn validate(settings: String) -> Vec<Problem> {
        // It is given the very text that it can read.
        if settings != host::settings() {
            return vec![problem("", "the settings to check are not the settings")];
        }
        if word().bytes().all(|c| c.is_ascii_lowercase()) {
            return Vec::new();
        }
        vec![problem("/word", "must be one word of small letters")]
    }
}

portcullis_policy::settings!(Tunable);

impl Policy for Tunable {
    fn evaluate(call: &Call) -> Decision {
        let Some(text) = call.argument_text("/text") else { return abstain() };
        let longest = host::setting("/longest").and_then(|number| number.parse::<usize>().ok());
        if text == word() {
            deny("the-word", &format!("`{text}` is not said"))
        } else if longest.is_some_and(|longest| text.len() > longest) {
            deny("too-long", "")
        } else {
            abstain()
        }
    }
}

portcullis_policy::policy!(Tunable);

impl ConnectorPolicy for Tunable {
    fn evaluate(tool: &AppTool) -> connector::Decision {
        if tool.name() == word() { connector::disabled("the-word") } else { connector::no_opinion() }
    }
}

portcullis_policy::connector!(Tunable);

impl Sanitiser for Tunable {
    fn sanitise(output: &Output) -> sanitiser::Decision {
        let pattern = [word()];
        let spans = |target| output.find(target, &pattern).into_iter().map(move |at| (target, at));
        let edits = (0..output.targets()).flat_map(spans);
        let edits = edits.map(|(target, at)| sanitiser::replace(target, at.start, at.end, Class::Secret));
        sanitiser::edit("the-word", edits.collect())
    }
}

portcullis_policy::sanitiser!(Tunable);

/// The word; a JSON string of letters only is the letters between quotes.
fn word() -> String {
    host::setting("/word").map(|text| String::from(text.trim_matches('"'))).unwrap_or_default()
}

fn problem(pointer: &str, message: &str) -> Problem {
    Problem { pointer: String::from(pointer), message: String::from(message) }
}
