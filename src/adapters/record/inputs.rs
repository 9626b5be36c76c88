//! What decisions were taken on, a line of JSON each (R35).
//!
//! The decision's line in the record has the digest of its line here, so that neither can be changed without the other. What
//! is read is checked like what a stranger wrote.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::model::arguments::{Arguments, MAX_ARGUMENTS};
use crate::model::caller::Caller;
use crate::model::digest::Digest;
use crate::model::layer::{LayerKind, LayerRef};
use crate::model::name::{CallId, RawToolName, ServerName, ToolRef};
use crate::model::tool::{Connector, Hints, ServerIdentity};
use crate::model::verdict::{Label, MAX_REASON, Reason, RuleId, Source};
use crate::ports::approval::{Kind, PastCall, PastState};
use crate::ports::inputs::{Case, Count, DecisionInputs};

/// The longest line, its newline included, in bytes: the longest arguments, and what is beside them.
pub const MAX_LINE: usize = 2 * MAX_ARGUMENTS;

/// A line of inputs is none of ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the inputs cannot be read: {0}")]
pub struct BadInputs(String);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    r#type: Type,
    call: String,
    kind: Kind,
    server: ServerName,
    tool: String,
    identity: ServerIdentity,
    definition: Digest,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    hints: Hints,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    connector: Option<Connector>,
    caller: Caller,
    /// Absent: none, which is not an empty object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    arguments: Option<Map<String, Value>>,
    now_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    changed: Option<(Option<String>, String)>,
    labels: Vec<LabelForm>,
    history: Vec<(Kind, ServerName, String, PastState)>,
    counts: Vec<(LayerKind, Arc<str>, String, u64, u64)>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    masked: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Type {
    Inputs,
}

/// A label. Components are told its name, and the layer and component that set it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LabelForm {
    name: String,
    layer: LayerKind,
    component: Arc<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    digest: Option<Digest>,
}

/// Returns the line, its newline included; none if it is too long to be kept.
///
/// # Errors
/// What is no JSON; there is no such thing among inputs.
pub(super) fn line(call: &CallId, inputs: &DecisionInputs) -> std::io::Result<Option<Vec<u8>>> {
    let case = &inputs.case;
    let label = |label: &Label| LabelForm {
        name: label.name.clone(),
        layer: label.source.layer.kind(),
        component: Arc::clone(&label.source.component),
        digest: label.source.digest,
    };
    let past = |past: &PastCall| (past.kind, past.tool.server.clone(), past.tool.tool.as_str().to_owned(), past.state);
    let count =
        |count: &Count| (count.layer, Arc::clone(&count.component), count.key.clone(), count.window_ms, count.sum);
    let form = Form {
        r#type: Type::Inputs,
        call: call.as_str().to_owned(),
        kind: case.kind,
        server: case.tool.server.clone(),
        tool: case.tool.tool.as_str().to_owned(),
        identity: case.identity,
        definition: case.definition,
        title: case.title.clone(),
        hints: case.hints,
        connector: case.connector.clone(),
        caller: case.caller.clone(),
        arguments: case.arguments.object().cloned(),
        now_ms: case.now_ms,
        changed: case
            .changed
            .as_ref()
            .map(|reason| (reason.rule.as_ref().map(|rule| rule.as_str().to_owned()), reason.text.clone())),
        labels: inputs.labels.iter().map(label).collect(),
        history: inputs.history.iter().map(past).collect(),
        counts: inputs.counts.iter().map(count).collect(),
        masked: inputs.masked,
    };
    let mut line = serde_json::to_vec(&form)?;
    line.push(b'\n');
    Ok((line.len() <= MAX_LINE).then_some(line))
}

/// Reads a line, its newline aside.
///
/// # Errors
/// [`BadInputs`].
pub fn read(line: &[u8]) -> Result<DecisionInputs, BadInputs> {
    let bad = |what: &dyn std::fmt::Display| BadInputs(what.to_string());
    let form: Form = serde_json::from_slice(line).map_err(|error| bad(&error))?;
    let tool = |server: ServerName, tool: &str| {
        RawToolName::parse(tool).map(|tool| ToolRef { server, tool }).map_err(|error| bad(&error))
    };
    let arguments = match &form.arguments {
        None => Arguments::none(),
        Some(map) => {
            let text = serde_json::to_string(map).map_err(|error| bad(&error))?;
            Arguments::parse(&text).map_err(|error| bad(&error))?
        }
    };
    let changed = match form.changed {
        None => None,
        Some((rule, text)) => {
            let rule = rule.map(|rule| RuleId::parse(&rule).ok_or_else(|| bad(&"a rule is none"))).transpose()?;
            Some(Reason { rule, text: text.chars().take(MAX_REASON).collect() })
        }
    };
    let label = |form: LabelForm| Label {
        name: form.name,
        source: Source { layer: LayerRef::new(form.layer), component: form.component, digest: form.digest },
    };
    let history = form
        .history
        .into_iter()
        .map(|(kind, server, name, state)| Ok(PastCall { kind, tool: tool(server, &name)?, state }));
    let history: Vec<PastCall> = history.collect::<Result<_, BadInputs>>()?;
    let counts = form.counts.into_iter().map(|(layer, component, key, window_ms, sum)| Count {
        layer,
        component,
        key,
        window_ms,
        sum,
    });
    Ok(DecisionInputs {
        labels: form.labels.into_iter().map(label).collect(),
        history: history.into(),
        counts: counts.collect(),
        masked: form.masked,
        case: Case {
            kind: form.kind,
            tool: tool(form.server, &form.tool)?,
            identity: form.identity,
            definition: form.definition,
            title: form.title,
            hints: form.hints,
            connector: form.connector,
            caller: form.caller,
            arguments,
            now_ms: form.now_ms,
            changed,
        },
    })
}

#[cfg(test)]
pub(super) mod samples {
    use super::*;

    pub(in crate::adapters::record) fn inputs() -> DecisionInputs {
        let source = Source { layer: LayerRef::new(LayerKind::User), component: "c".into(), digest: None };
        DecisionInputs {
            labels: Arc::new([Label { name: "seen".to_owned(), source }]),
            history: Arc::new([PastCall {
                kind: Kind::Tool,
                tool: ToolRef::parse("files/read").unwrap(),
                state: PastState::Ran,
            }]),
            counts: vec![Count {
                layer: LayerKind::User,
                component: "c".into(),
                key: "k".to_owned(),
                window_ms: 1000,
                sum: 3,
            }],
            masked: false,
            case: Case {
                kind: Kind::Tool,
                tool: ToolRef::parse("files/write").unwrap(),
                identity: ServerIdentity(Digest::of(b"identity")),
                definition: Digest::of(b"definition"),
                title: Some("Write".to_owned()),
                hints: Hints { read_only: Some(false), ..Hints::default() },
                connector: None,
                caller: Caller::local("me"),
                arguments: Arguments::parse(r#"{"z":1.50,"a":[1e2,{"k":"v"}]}"#).unwrap(),
                now_ms: 7,
                changed: Some(Reason { rule: RuleId::parse("changed"), text: "why".to_owned() }),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r35_inputs_read_as_they_were_written() {
        let before = samples::inputs();
        let text = line(&CallId::new("call_1").unwrap(), &before).unwrap().unwrap();
        let after = read(text.strip_suffix(b"\n").unwrap()).unwrap();
        assert_eq!(format!("{before:?}"), format!("{after:?}"));
        assert_eq!(after.case.arguments.digest(), before.case.arguments.digest());
    }

    #[test]
    fn r35_no_arguments_and_empty_ones_stay_apart() {
        for text in ["", "{}"] {
            let mut before = samples::inputs();
            before.case.arguments = Arguments::parse(text).unwrap();
            let line = line(&CallId::new("c").unwrap(), &before).unwrap().unwrap();
            assert_eq!(read(&line).unwrap().case.arguments.object(), before.case.arguments.object());
        }
    }

    #[test]
    fn what_is_none_of_ours_is_refused() {
        for bad in ["", "{}", "[]", r#"{"type":"inputs"}"#] {
            assert!(read(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
