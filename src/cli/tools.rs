//! `tools`: what is there, under which names, and what is not and why.

use std::sync::Arc;
use std::time::Duration;

use portcullis::host::Host;
use portcullis::host::fleet::{ServerState, ServerStatus};
use portcullis::host::user::local_caller;
use portcullis::model::text::shown;
use portcullis::model::tool::CatalogTool;
use portcullis::pipeline::admit::catalog::Snapshot;
use portcullis::ports::reviewer::NobodyThere;
use serde_json::{Value, json};

use super::args::{Audience, Format, Global};
use super::exit::{Exit, Trouble};
use super::render::{self, BAD, FAINT, GOOD, STRONG, WARN, field, styled};
use super::setup;

/// Every tool is in the list itself: this version has no search that a tool could be deferred to.
const EXPOSURE: &str = "direct";
const REASON: &str = "listed by its server and not filtered";

/// Lists the tools, and ends the servers.
pub(crate) async fn run(global: &Global, audience: Audience) -> Result<Exit, Trouble> {
    let stop = setup::stop_on_signals()?;
    let setup::Wired { resolved, parts } = setup::wire(global).await?;
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
    let (snapshot, servers) = (session.list().await, host.status());
    host.shutdown(Duration::ZERO).await;
    if !settled {
        return Err(Trouble::new(Exit::Failed, "interrupted"));
    }
    match global.format {
        Format::Human => render::data(&human(&snapshot, &servers, audience))?,
        Format::Json => render::json(&machine(&snapshot, &servers, audience))?,
    }
    Ok(Exit::Done)
}

fn human(snapshot: &Snapshot, servers: &[ServerStatus], audience: Audience) -> String {
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
        for tool in snapshot.tools().iter().filter(|tool| tool.server == status.server) {
            out.push_str(&row(tool, audience, width));
        }
        for problem in &status.problems {
            out.push_str(&field(2, "unusable", &shown(problem, 500), width));
        }
    }
    let own = |name: &str| servers.iter().any(|status| status.server.as_str() == name);
    for duplicate in snapshot.duplicates().iter().filter(|tool| !own(tool.server.as_str())) {
        out.push_str(&field(
            0,
            "unusable",
            &format!("`{}` is listed twice", shown(&duplicate.to_string(), 256)),
            width,
        ));
    }
    out
}

fn row(tool: &CatalogTool, audience: Audience, width: usize) -> String {
    let raw = shown(tool.definition.name().as_str(), 128);
    let visible = match audience {
        Audience::Mcp => tool.flat.to_string(),
        Audience::Responses => format!("{} {}", tool.namespace, tool.callable),
    };
    let mut out = field(2, &format!("{raw}:"), &format!("{visible} ({EXPOSURE})"), width);
    if let Some(description) = tool.definition.description().filter(|text| !text.is_empty()) {
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

fn machine(snapshot: &Snapshot, servers: &[ServerStatus], audience: Audience) -> Value {
    let tool = |tool: &Arc<CatalogTool>| {
        let mut row = json!({
            "server": tool.server,
            "tool": tool.definition.name(),
            "exposure": EXPOSURE,
            "reason": REASON,
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
        "revision": snapshot.revision(),
        "tools": snapshot.tools().iter().map(tool).collect::<Vec<_>>(),
        "servers": servers,
        "duplicates": snapshot.duplicates(),
    })
}
