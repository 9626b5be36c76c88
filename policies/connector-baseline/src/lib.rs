//! The built-in answer about tools of Apps: one layer's `[apps]` table and its requirements, for one tool (rows A01 to A30).
//!
//! ```json
//! { "apps": { "_default": { "enabled": true }, "calendar": { "tools": { "events/create": { "approval_mode": "prompt" } } } },
//!   "managed": { "calendar": { "enabled": false, "tools": { "events/create": { "approval_mode": "approve" } } } } }
//! ```
//!
//! It gives a mode only where the settings write one: what layers leave open is the host's to fill. Two rules are stricter than
//! those that it was made after: a switched-off `_default` is undone only by `enabled = true`, not by a mere table (A08); and
//! settings that it cannot read disable the tool (A30).
#![cfg_attr(target_arch = "wasm32", no_std)]

use portcullis_policy::connector::{AppTool, ConnectorPolicy, Decision, Hints, Mode};
use portcullis_policy::{String, connector, format, host};

struct Baseline;

impl ConnectorPolicy for Baseline {
    fn evaluate(tool: &AppTool) -> Decision {
        let decided = decide(tool).unwrap_or(Decided { rule: "settings-unreadable", enabled: false, mode: None });
        Decision { rule: Some(String::from(decided.rule)), enabled: Some(decided.enabled), mode: decided.mode }
    }
}

connector!(Baseline);

struct Decided {
    rule: &'static str,
    enabled: bool,
    mode: Option<Mode>,
}

/// The settings have another shape than they must have.
struct Unreadable;

fn decide(tool: &AppTool) -> Result<Decided, Unreadable> {
    let id = tool.connector().map(|connector| connector.id);
    let default = Table::root("apps")?.inside("_default")?;
    // An app of that name would be the defaults.
    let named = id.as_deref().filter(|id| *id != "_default");
    let app = Table::root("apps")?.of(named)?;
    let managed = Table::root("managed")?.of(named)?;
    let name = tool.name();

    let own = app.inside("tools")?;
    let by_name = own.inside(&name)?;
    // The two are not combined: an empty entry by name hides one by title.
    let entry = match tool.title() {
        Some(title) if !by_name.exists => own.inside(&title)?,
        _ => by_name,
    };
    let requirement = managed.inside("tools")?.inside(&name)?;

    let mode = match requirement.mode("approval_mode")?.or(entry.mode("approval_mode")?) {
        Some(mode) => Some(mode),
        None => match app.mode("default_tools_approval_mode")? {
            Some(mode) => Some(mode),
            None if id.is_some() => default.mode("default_tools_approval_mode")?,
            None => None,
        },
    };
    let (rule, enabled) = enabled(&managed, &app, &default, &entry, tool.hints())?;
    Ok(Decided { rule, enabled, mode })
}

/// The first rule that applies.
fn enabled(
    managed: &Table,
    app: &Table,
    default: &Table,
    entry: &Table,
    hints: Hints,
) -> Result<(&'static str, bool), Unreadable> {
    if managed.flag("enabled")? == Some(false) {
        return Ok(("required-off", false));
    }
    match (app.flag("enabled")?, default.flag("enabled")?) {
        (Some(false), _) => return Ok(("app-off", false)),
        (None, Some(false)) => return Ok(("default-off", false)),
        (Some(true), _) | (None, Some(true) | None) => {}
    }
    if let Some(on) = entry.flag("enabled")? {
        return Ok((if on { "tool-on" } else { "tool-off" }, on));
    }
    if let Some(on) = app.flag("default_tools_enabled")? {
        return Ok((if on { "tools-on" } else { "tools-off" }, on));
    }
    // What a tool does not say is taken for the worse.
    let gate = |key, hint: Option<bool>| -> Result<bool, Unreadable> {
        let open = app.flag(key)?.or(default.flag(key)?).unwrap_or(true);
        Ok(open || !hint.unwrap_or(true))
    };
    if !gate("destructive_enabled", hints.destructive)? {
        return Ok(("destructive-off", false));
    }
    if !gate("open_world_enabled", hints.open_world)? {
        return Ok(("open-world-off", false));
    }
    Ok(("on", true))
}

/// A table of the settings, or the place where none is.
struct Table {
    pointer: String,
    exists: bool,
}

impl Table {
    fn root(key: &str) -> Result<Self, Unreadable> {
        Self { pointer: String::new(), exists: true }.inside(key)
    }

    /// The table under `key`.
    fn inside(&self, key: &str) -> Result<Self, Unreadable> {
        let pointer = format!("{}/{}", self.pointer, escaped(key));
        match if self.exists { host::setting(&pointer) } else { None } {
            Some(text) if text.starts_with('{') => Ok(Self { pointer, exists: true }),
            Some(_) => Err(Unreadable),
            None => Ok(Self { pointer, exists: false }),
        }
    }

    /// The table of an app; none where the tool names no connector.
    fn of(&self, id: Option<&str>) -> Result<Self, Unreadable> {
        match id {
            Some(id) => self.inside(id),
            None => Ok(Self { pointer: String::new(), exists: false }),
        }
    }

    fn value(&self, key: &str) -> Option<String> {
        // The keys are ours and need no escape.
        if self.exists { host::setting(&format!("{}/{key}", self.pointer)) } else { None }
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, Unreadable> {
        match self.value(key).as_deref() {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(_) => Err(Unreadable),
        }
    }

    fn mode(&self, key: &str) -> Result<Option<Mode>, Unreadable> {
        match self.value(key).as_deref() {
            None => Ok(None),
            Some("\"auto\"") => Ok(Some(Mode::Auto)),
            Some("\"prompt\"") => Ok(Some(Mode::Prompt)),
            Some("\"writes\"") => Ok(Some(Mode::Writes)),
            Some("\"approve\"") => Ok(Some(Mode::Approve)),
            Some(_) => Err(Unreadable),
        }
    }
}

/// RFC 6901.
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}
