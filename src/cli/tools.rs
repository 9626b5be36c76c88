//! `tools`: what is there, under which names, and what is not and why.

use std::sync::Arc;
use std::time::Duration;

use portcullis::config::Problem;
use portcullis::config::matcher::unmatched_tools;
use portcullis::host::Host;
use portcullis::host::fleet::{ServerState, ServerStatus};
use portcullis::host::session::Listing;
use portcullis::host::user::local_caller;
use portcullis::model::outcome::Origin;
use portcullis::model::text::shown;
use portcullis::model::tool::CatalogTool;
use portcullis::model::verdict::Refusal;
use portcullis::ports::reviewer::NobodyThere;
use serde_json::{Value, json};

use super::args::{Audience, Format, Global};
use super::exit::{Exit, Trouble};
use super::render::{self, BAD, FAINT, GOOD, STRONG, WARN, field, styled};
use super::{decision, setup};

/// What is shown is in the list itself: this version has no search that a tool could be deferred to.
const DIRECT: &str = "direct";
const REASON: &str = "listed by its server and not filtered";
const HIDDEN: &str = "hidden";

/// Lists the tools, and ends the servers.
pub(crate) async fn run(global: &Global, audience: Audience) -> Result<Exit, Trouble> {
    let stop = setup::stop_on_signals()?;
    let setup::Wired { resolved, parts, .. } = setup::wire(global).await?;
    if !resolved.refusals.is_empty() {
        // Said already, each with its layer; a list would only be half of the truth.
        let hint = "`portcullis config check` says what to mend";
        return Err(Trouble::new(Exit::Usage, "a layer cannot be read, so every call is refused").hint(hint));
    }
    let host = Host::start(parts);
    let session = host.session(local_caller(), Arc::new(NobodyThere));
    let settled = tokio::select! {
        () = host.fleet().settle_fully() => true,
        () = stop.cancelled() => false,
    };
    let (listing, servers) = (session.list().await, host.status());
    let unmatched = unmatched_tools(&resolved, &host.known_tools());
    host.shutdown(Duration::ZERO).await;
    if !settled {
        return Err(Trouble::new(Exit::Failed, "interrupted"));
    }
    for warning in &unmatched {
        render::talk(&format!("{}: {warning}", styled(WARN, "warning")));
    }
    let warnings: Vec<_> = resolved.warnings.iter().chain(&unmatched).collect();
    match global.format {
        Format::Human => render::data(&human(&listing, &servers, audience))?,
        Format::Json => render::json(&machine(&listing, &servers, &warnings, audience))?,
    }
    Ok(Exit::Done)
}

fn human(listing: &Listing, servers: &[ServerStatus], audience: Audience) -> String {
    let width = render::width();
    let mut out = String::new();
    if servers.is_empty() {
        out.push_str("No servers are configured.\n");
        out.push_str(&field(
            0,
            "hint:",
            "add [mcp_servers.NAME] to a configuration file; `portcullis config show` names the files",
            width,
        ));
    }
    for status in servers {
        let (style, word, text) = state(status);
        out.push_str(&format!("{} {}\n", styled(STRONG, status.server.as_str()), styled(style, word)));
        if let Some(text) = text {
            out.push_str(&field(2, "because", &text, width));
        }
        for tool in listing.snapshot().tools().iter().filter(|tool| tool.server == status.server) {
            out.push_str(&row(listing, tool, audience, width));
        }
        for problem in &status.problems {
            out.push_str(&field(2, "unusable", &shown(problem, 500), width));
        }
    }
    let own = |name: &str| servers.iter().any(|status| status.server.as_str() == name);
    for duplicate in listing.snapshot().duplicates().iter().filter(|tool| !own(tool.server.as_str())) {
        out.push_str(&field(
            0,
            "unusable",
            &format!("`{}` is listed twice", shown(&duplicate.to_string(), 256)),
            width,
        ));
    }
    out
}

/// Why a tool is in the list, or who hides it by which rule.
fn exposure(listing: &Listing, tool: &CatalogTool) -> (&'static str, String) {
    if let Some(unshown) = listing.withheld().get(&tool.reference()) {
        let Origin { layer, component, rule } = &unshown.origin;
        let rule = rule.as_ref().map(|rule| format!(", rule {rule}")).unwrap_or_default();
        let (component, why) = (shown(component, 128), shown(&unshown.why, 300));
        return (HIDDEN, format!("its definition was withheld by {layer}/{component}{rule} ({why})"));
    }
    let Some(by) = listing.hidden().get(&tool.reference()) else { return (DIRECT, REASON.to_owned()) };
    let by: Vec<String> = by.iter().map(said).collect();
    (HIDDEN, format!("disabled by {}", by.join("; ")))
}

fn said(by: &Refusal) -> String {
    let mut out = decision::source(&by.source);
    if let Some(rule) = &by.reason.rule {
        out.push_str(&format!(", rule {rule}"));
    }
    if let Some(fault) = &by.fault {
        out.push_str(&format!(", which failed ({})", shown(&fault.to_string(), 300)));
    }
    out
}

fn row(listing: &Listing, tool: &CatalogTool, audience: Audience, width: usize) -> String {
    let raw = shown(tool.definition.name().as_str(), 128);
    let visible = match audience {
        Audience::Mcp => tool.flat.to_string(),
        Audience::Responses => format!("{} {}", tool.namespace, tool.callable),
    };
    let (exposure, reason) = exposure(listing, tool);
    let mut out = field(2, &format!("{raw}:"), &format!("{visible} ({exposure})"), width);
    if exposure == HIDDEN {
        out.push_str(&field(4, "because", &reason, width));
    }
    let definition = listing.shown(&tool.reference());
    if let Some(description) = definition.and_then(|shown| shown.description()).filter(|text| !text.is_empty()) {
        out.push_str(&field(4, "", &shown(description.lines().next().unwrap_or_default(), 100), width));
    }
    out
}

fn state(status: &ServerStatus) -> (anstyle::Style, &'static str, Option<String>) {
    match &status.state {
        ServerState::Ready => (GOOD, "ready", None),
        ServerState::Starting => (WARN, "starting", None),
        ServerState::Failed { why, .. } => (BAD, "failed", Some(shown(&why.to_string(), 2000))),
        ServerState::Disabled { text } => (FAINT, "disabled", Some(shown(text, 1000))),
        ServerState::Stopped => (FAINT, "stopped", None),
    }
}

fn machine(listing: &Listing, servers: &[ServerStatus], warnings: &[&Problem], audience: Audience) -> Value {
    let tool = |tool: &Arc<CatalogTool>| {
        let (exposure, reason) = exposure(listing, tool);
        let mut row = json!({
            "server": tool.server,
            "tool": tool.definition.name(),
            "exposure": exposure,
            "reason": reason,
            "hints": tool.hints,
            "definition": tool.definition.digest(),
        });
        let names = match audience {
            Audience::Mcp => json!({ "name": tool.flat }),
            Audience::Responses => json!({ "namespace": tool.namespace, "name": tool.callable }),
        };
        if let (Value::Object(row), Value::Object(names)) = (&mut row, names) {
            row.extend(names);
        }
        row
    };
    json!({
        "revision": listing.snapshot().revision(),
        "tools": listing.snapshot().tools().iter().map(tool).collect::<Vec<_>>(),
        "servers": servers,
        "warnings": warnings,
        "duplicates": listing.snapshot().duplicates(),
    })
}
