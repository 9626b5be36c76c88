//! What a hook said, read from how its program ended (approval-results 3.1, 3.2, 10; R18).
//!
//! Exit code 0 with nothing, or with plain text, is no opinion. What begins like JSON must be the exact object of its event:
//! anything else is a failure, never half an answer, and so is text with a line in it that begins like JSON. Exit code 2 says no, with the reason on stderr. Every other end is a
//! failure.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::hook::{HookEvent, HookExit, HookFault, HookFaultCode};
use super::json::{Json, Limits};
use super::text;

/// The longest reason, in characters.
pub const MAX_REASON: usize = 2000;
/// The longest context or feedback, in bytes.
pub const MAX_CONTEXT: usize = 16 * 1024;
/// How deep a hook's JSON may nest, arguments included.
const MAX_DEPTH: usize = 64;
/// What a hook is taken to mean that says no and not why (K04).
const NO_REASON: &str = "the hook gave no reason";

/// What a `PermissionRequest` hook wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Permission {
    /// The call may run.
    Allow,
    /// It may not, for this reason.
    Deny(String),
}

/// What a `PreToolUse` hook wants.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Before {
    /// The call is blocked, for this reason.
    pub block: Option<String>,
    /// The arguments are these.
    pub arguments: Option<Map<String, Value>>,
    /// The model is told this.
    pub context: Option<String>,
}

/// What a `PostToolUse` hook wants.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct After {
    /// The answer is blocked, for this reason.
    pub block: Option<String>,
    /// The model reads this in the place of the answer.
    pub feedback: Option<String>,
    /// The model is told this as well.
    pub context: Option<String>,
}

/// Makes the name by which hooks know a tool (catalog-dispatch 4 rule 4). Not injective: see H7 and H8.
#[must_use]
pub fn hook_name(namespace: Option<&str>, name: &str) -> String {
    let joined = match namespace {
        Some(namespace) => format!("{}__{}", namespace.trim_end_matches('_'), name.trim_start_matches('_')),
        None => name.to_owned(),
    };
    if joined.starts_with("mcp__") { joined } else { format!("mcp__{joined}") }
}

/// Makes the name that a tool has for hooks whatever else is in the catalog: that of its raw server and name, with `_` for
/// what no name may hold. A server that comes beside it can change the other name ([`hook_name`]), not this one.
#[must_use]
pub fn plain_hook_name(server: &str, tool: &str) -> String {
    let plain =
        |text: &str| -> String { text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect() };
    hook_name(Some(&format!("mcp__{}", plain(server))), &plain(tool))
}

/// Returns a call's arguments as hooks are told of them: `{}` for none, a value for JSON, else the text itself.
#[must_use]
pub fn hook_input(arguments: &str) -> Value {
    if arguments.trim().is_empty() {
        return Value::Object(Map::new());
    }
    serde_json::from_str(arguments).unwrap_or_else(|_| Value::from(arguments))
}

/// Reads the answer of a `PermissionRequest` hook; none: no opinion (K01 to K12).
///
/// # Errors
/// [`HookFault`]; it counts as no opinion.
pub fn permission(exit: &HookExit) -> Result<Option<Permission>, HookFault> {
    let said = match ended(exit)? {
        Ended::Refused(reason) => return Ok(Some(Permission::Deny(reason))),
        Ended::Nothing => return Ok(None),
        Ended::Said(said) => said,
    };
    said.nothing_but("PermissionRequest", &["decision"])?;
    let Some(own) = said.own(HookEvent::PermissionRequest)? else { return Ok(None) };
    own.only(&["decision"])?;
    let Some(decision) = own.decision else { return Ok(None) };
    if decision.updated_input.is_some() || decision.updated_permissions.is_some() || decision.interrupt == Some(true) {
        return Err(invalid("a PermissionRequest hook cannot change the call, permissions or the turn"));
    }
    match (decision.behavior, decision.message) {
        (Behavior::Allow, None) => Ok(Some(Permission::Allow)),
        (Behavior::Allow, Some(_)) => Err(invalid("`message` belongs to a deny")),
        (Behavior::Deny, message) => Ok(Some(Permission::Deny(reason(message.as_deref())))),
    }
}

/// Reads the answer of a `PreToolUse` hook.
///
/// # Errors
/// [`HookFault`]; it blocks, unless the hook's layer says otherwise.
pub fn before(exit: &HookExit) -> Result<Before, HookFault> {
    let said = match ended(exit)? {
        Ended::Refused(reason) => return Ok(Before { block: Some(reason), ..Before::default() }),
        Ended::Nothing => return Ok(Before::default()),
        Ended::Said(said) => said,
    };
    said.nothing_but("PreToolUse", &["decision", "reason"])?;
    let blocked = said.blocks()?;
    let Some(own) = said.own(HookEvent::PreToolUse)? else {
        return Ok(Before { block: blocked, ..Before::default() });
    };
    own.only(&["permissionDecision", "permissionDecisionReason", "updatedInput", "additionalContext"])?;
    let context = context(own.additional_context.as_deref());
    let denied = match (own.permission_decision.as_deref(), &own.updated_input) {
        (Some("deny"), None) => Some(reason(own.permission_decision_reason.as_deref())),
        (Some("deny"), Some(_)) => return Err(invalid("a hook that denies cannot change the arguments, too")),
        (Some("allow"), Some(_)) => None,
        (Some("allow"), None) => {
            return Err(invalid("a PreToolUse hook cannot approve: `allow` is for changed arguments alone"));
        }
        (Some("ask"), _) => return Err(invalid("a PreToolUse hook cannot ask")),
        (Some(_), _) => return Err(invalid("`permissionDecision` must be `allow` or `deny`")),
        (None, Some(_)) => return Err(invalid("`updatedInput` needs `permissionDecision` = `allow`")),
        (None, None) => None,
    };
    Ok(Before { block: denied.or(blocked), arguments: own.updated_input, context })
}

/// Reads the answer of a `PostToolUse` hook (C7 to C9).
///
/// # Errors
/// [`HookFault`]; the answer stays as it is.
pub fn after(exit: &HookExit) -> Result<After, HookFault> {
    let said = match ended(exit)? {
        Ended::Refused(reason) => return Ok(After { block: Some(reason), ..After::default() }),
        Ended::Nothing => return Ok(After::default()),
        Ended::Said(said) => said,
    };
    said.nothing_but("PostToolUse", &["decision", "reason", "continue", "stopReason"])?;
    let stops = said.goes_on == Some(false);
    if said.stop_reason.is_some() && !stops {
        return Err(invalid("`stopReason` needs `continue` = false"));
    }
    let feedback = stops.then(|| feedback(said.stop_reason.as_deref().or(said.reason.as_deref())));
    let block = if stops && said.decision.is_none() { None } else { said.blocks()? };
    let context = match said.own(HookEvent::PostToolUse)? {
        Some(own) => {
            own.only(&["additionalContext"])?;
            context(own.additional_context.as_deref())
        }
        None => None,
    };
    Ok(After { block, feedback, context })
}

/// What a hook's end comes to, whatever its event.
enum Ended {
    Nothing,
    Refused(String),
    Said(Box<Said>),
}

fn ended(exit: &HookExit) -> Result<Ended, HookFault> {
    match exit.code {
        0 => {}
        2 if exit.stderr.trim().is_empty() => {
            return Err(HookFault::new(HookFaultCode::Exit, "it ended with exit code 2 and no reason on stderr"));
        }
        2 => return Ok(Ended::Refused(reason(Some(&exit.stderr)))),
        code => {
            let why = format!("it ended with exit code {code}: {}", exit.stderr.trim());
            return Err(HookFault::new(HookFaultCode::Exit, why));
        }
    }
    let text = exit.stdout.trim();
    if !text.starts_with(['{', '[']) {
        // An answer with something before it was meant to be one: taken for plain text, a deny would be lost.
        let later = text.lines().any(|line| line.trim_start().starts_with(['{', '[']));
        if later || text.starts_with('\u{feff}') {
            return Err(invalid("there is text before what looks like its answer; it must print that alone"));
        }
        return Ok(Ended::Nothing);
    }
    // One key twice would say two things.
    let limits = Limits { bytes: exit.stdout.len(), depth: MAX_DEPTH };
    let value = Json::parse(text, limits).and_then(Json::into_value).map_err(|fault| invalid(fault.to_string()))?;
    let said = serde_json::from_value(value).map_err(|error| invalid(error.to_string()))?;
    Ok(Ended::Said(Box::new(said)))
}

/// Everything that a hook of any event may say.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Said {
    #[serde(rename = "continue")]
    goes_on: Option<bool>,
    stop_reason: Option<String>,
    suppress_output: Option<bool>,
    system_message: Option<String>,
    decision: Option<String>,
    reason: Option<String>,
    hook_specific_output: Option<Own>,
}

/// What belongs to one event.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Own {
    hook_event_name: String,
    decision: Option<Decision>,
    permission_decision: Option<String>,
    permission_decision_reason: Option<String>,
    updated_input: Option<Map<String, Value>>,
    additional_context: Option<String>,
    #[serde(rename = "updatedMCPToolOutput")]
    updated_output: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Decision {
    behavior: Behavior,
    message: Option<String>,
    updated_input: Option<Value>,
    updated_permissions: Option<Value>,
    interrupt: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Behavior {
    Allow,
    Deny,
}

impl Said {
    /// Refuses fields that this event does not have. `systemMessage` is for a person at the agent; here it says nothing.
    fn nothing_but(&self, event: &str, fields: &[&str]) -> Result<(), HookFault> {
        let there = [
            ("continue", self.goes_on.is_some()),
            ("stopReason", self.stop_reason.is_some()),
            ("suppressOutput", self.suppress_output.is_some()),
            ("systemMessage", self.system_message.is_some()),
            ("decision", self.decision.is_some()),
            ("reason", self.reason.is_some()),
        ];
        // "Go on" is what happens anyway.
        let harmless = |field: &str| field == "systemMessage" || (field == "continue" && self.goes_on == Some(true));
        match there.into_iter().find(|(field, there)| *there && !fields.contains(field) && !harmless(field)) {
            Some((field, _)) => Err(invalid(format!("a {event} hook has no field `{field}`"))),
            None => Ok(()),
        }
    }

    /// Reads `decision` and `reason`.
    fn blocks(&self) -> Result<Option<String>, HookFault> {
        match self.decision.as_deref() {
            Some("block") => Ok(Some(reason(self.reason.as_deref()))),
            Some(_) => Err(invalid("`decision` must be `block`")),
            None if self.reason.is_some() => Err(invalid("`reason` needs `decision` = `block`")),
            None => Ok(None),
        }
    }

    fn own(self, event: HookEvent) -> Result<Option<Own>, HookFault> {
        match self.hook_specific_output {
            Some(own) if own.hook_event_name != event.as_str() => {
                Err(invalid(format!("`hookEventName` must be `{}`", event.as_str())))
            }
            own => Ok(own),
        }
    }
}

impl Own {
    /// Refuses fields that this event does not have.
    fn only(&self, fields: &[&str]) -> Result<(), HookFault> {
        let there = [
            ("decision", self.decision.is_some()),
            ("permissionDecision", self.permission_decision.is_some()),
            ("permissionDecisionReason", self.permission_decision_reason.is_some()),
            ("updatedInput", self.updated_input.is_some()),
            ("additionalContext", self.additional_context.is_some()),
            ("updatedMCPToolOutput", self.updated_output.is_some()),
        ];
        match there.into_iter().find(|(field, there)| *there && !fields.contains(field)) {
            Some((field, _)) => Err(invalid(format!("a {} hook cannot say `{field}`", self.hook_event_name))),
            None => Ok(()),
        }
    }
}

fn invalid(why: impl AsRef<str>) -> HookFault {
    HookFault::new(HookFaultCode::OutputInvalid, why)
}

fn reason(text: Option<&str>) -> String {
    let text = text.unwrap_or_default().trim();
    if text.is_empty() { NO_REASON.to_owned() } else { text::shown(text, MAX_REASON) }
}

fn feedback(text: Option<&str>) -> String {
    let text = text.unwrap_or_default().trim();
    if text.is_empty() { NO_REASON.to_owned() } else { lines(text) }
}

fn context(text: Option<&str>) -> Option<String> {
    text.map(str::trim).filter(|text| !text.is_empty()).map(lines)
}

/// A text of several lines, bounded, its other control characters visible.
fn lines(text: &str) -> String {
    let cut = text::prefix(text, MAX_CONTEXT);
    let mut shown = cut.lines().map(|line| text::shown(line, MAX_CONTEXT)).collect::<Vec<_>>().join("\n");
    if cut.len() < text.len() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
#[path = "hook_output_tests.rs"]
mod tests;
