//! `tools`: what is there, under which names, and what is not and why.

use std::sync::Arc;
use std::time::Duration;

use portcullis::config::matcher::unmatched_tools;
use portcullis::config::{Problem, Resolved};
use portcullis::host::Host;
use portcullis::host::fleet::{ServerState, ServerStatus};
use portcullis::host::listing::{Listing, Searching, Surface};
use portcullis::host::session::Session;
use portcullis::host::step::Step;
use portcullis::host::user::local_caller;
use portcullis::model::exposure::Exposure;
use portcullis::model::outcome::Origin;
use portcullis::model::text::shown;
use portcullis::model::tool::CatalogTool;
use portcullis::model::verdict::Refusal;
use portcullis::pipeline::admit::exposure::Exposing;
use portcullis::pipeline::admit::spec::ToolSpec;
use portcullis::ports::reviewer::NobodyThere;
use serde_json::{Value, json};

use super::args::{Audience, Format, Global};
use super::exit::{Exit, Trouble};
use super::render::{self, BAD, FAINT, GOOD, STRONG, WARN, field, styled};
use super::{decision, setup};

/// What the model is taken to be like.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Model {
    /// Whether tools are found by search, whatever is configured.
    pub(crate) search: bool,
    /// Whether its provider takes namespaces.
    pub(crate) namespaces: bool,
}

/// Lists the tools, and ends the servers.
pub(crate) async fn run(global: &Global, audience: Audience, model: Model) -> Result<Exit, Trouble> {
    if audience == Audience::Mcp && !model.namespaces {
        let hint = "`--no-namespaces` goes with `--for responses`";
        return Err(Trouble::new(Exit::Usage, "names for MCP clients have no namespaces in any case").hint(hint));
    }
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
    session.show_on(surface(audience, model, &resolved));
    let (view, servers) = (View::of(&session, audience).await?, host.status());
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
        Format::Human => render::data(&human(&view, &servers))?,
        Format::Json => render::json(&machine(&view, &servers, &warnings))?,
    }
    Ok(Exit::Done)
}

/// What is listed for an audience.
enum View {
    Mcp(Box<Listing>),
    Responses(Box<Step>),
}

impl View {
    async fn of(session: &Session, audience: Audience) -> Result<Self, Trouble> {
        Ok(match audience {
            Audience::Mcp => Self::Mcp(Box::new(session.catalog().await)),
            Audience::Responses => {
                let step = session.step().await;
                Self::Responses(Box::new(step.map_err(|taken| Trouble::new(Exit::Failed, taken.to_string()))?))
            }
        })
    }

    fn listing(&self) -> &Listing {
        match self {
            Self::Mcp(listing) => listing,
            Self::Responses(step) => step.listing(),
        }
    }

    fn name(&self, tool: &CatalogTool) -> String {
        match self {
            Self::Mcp(_) => tool.flat.to_string(),
            Self::Responses(_) => format!("{} {}", tool.namespace, tool.callable),
        }
    }

    /// Which way a tool is reached, and why; or who hides it by which rule.
    fn exposure(&self, tool: &CatalogTool) -> (Exposure, String) {
        let (listing, reference) = (self.listing(), tool.reference());
        if let Some(unshown) = listing.withheld().get(&reference) {
            let Origin { layer, component, rule } = &unshown.origin;
            let rule = rule.as_ref().map(|rule| format!(", rule {rule}")).unwrap_or_default();
            let (component, why) = (shown(component, 128), shown(&unshown.why, 300));
            return (Exposure::Absent, format!("its definition was withheld by {layer}/{component}{rule} ({why})"));
        }
        if let Some(by) = listing.hidden().get(&reference) {
            let by: Vec<String> = by.iter().map(said).collect();
            return (Exposure::Absent, format!("disabled by {}", by.join("; ")));
        }
        if let Self::Responses(step) = self
            && let Some((_, why)) = step.left_out().iter().find(|(tool, _)| *tool == reference)
        {
            return (
                Exposure::Absent,
                format!("no model can be given its input schema: {}", shown(&why.to_string(), 300)),
            );
        }
        match listing.exposure(&reference) {
            Some(exposed) => (exposed.exposure, exposed.reason.to_string()),
            None => (Exposure::Absent, "a name is taken twice, and that was to be an error".to_owned()),
        }
    }

    fn spec(&self, tool: &CatalogTool) -> Option<&ToolSpec> {
        let Self::Responses(step) = self else { return None };
        step.offer(&tool.reference()).map(|offer| offer.handler.spec())
    }
}

/// Why the input schema cannot check arguments, if so.
fn unchecked(tool: &CatalogTool) -> Option<String> {
    tool.definition.unchecked().map(|why| shown(&why.to_string(), 300))
}

/// What the schema's conversion has changed or cut, a sentence each.
fn changes(spec: &ToolSpec) -> Vec<String> {
    let repaired = spec.schema.repairs.iter().map(|repair| format!("at `{}`: {}", repair.pointer, repair.what));
    let more = (spec.schema.unlisted > 0).then(|| format!("{} more repairs", spec.schema.unlisted));
    let shrunk = spec.schema.shrunk.to_string();
    let shrunk = (!shrunk.is_empty()).then_some(shrunk);
    repaired.chain(more).chain(shrunk).chain(spec.cuts.iter().map(ToString::to_string)).collect()
}

fn human(view: &View, servers: &[ServerStatus]) -> String {
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
        for tool in view.listing().snapshot().tools().iter().filter(|tool| tool.server == status.server) {
            out.push_str(&row(view, tool, width));
        }
        for filtered in &status.filtered {
            let raw = shown(filtered.tool.as_str(), 128);
            out.push_str(&field(2, &format!("{raw}:"), &format!("absent: {}", filtered.reason()), width));
        }
        if status.filtered_more > 0 {
            out.push_str(&field(2, "and", &format!("{} more that a layer filters", status.filtered_more), width));
        }
        for problem in &status.problems {
            out.push_str(&field(2, "unusable", &shown(problem, 500), width));
        }
    }
    let own = |name: &str| servers.iter().any(|status| status.server.as_str() == name);
    for duplicate in view.listing().snapshot().duplicates().iter().filter(|tool| !own(tool.server.as_str())) {
        out.push_str(&field(
            0,
            "unusable",
            &format!("`{}` is listed twice", shown(&duplicate.to_string(), 256)),
            width,
        ));
    }
    if let Some(collision) = view.listing().collision() {
        out.push_str(&field(0, "collision:", &collision.to_string(), width));
    }
    out
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

fn row(view: &View, tool: &CatalogTool, width: usize) -> String {
    let raw = shown(tool.definition.name().as_str(), 128);
    let (exposure, reason) = view.exposure(tool);
    let mut out = field(2, &format!("{raw}:"), &format!("{} ({exposure})", view.name(tool)), width);
    out.push_str(&field(4, "because", &reason, width));
    if let Some(why) = unchecked(tool) {
        out.push_str(&field(4, "unchecked", &format!("arguments are not checked before the call: {why}"), width));
    }
    for change in view.spec(tool).map(changes).into_iter().flatten() {
        out.push_str(&field(4, "changed", &change, width));
    }
    let definition = view.listing().shown(&tool.reference());
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

fn machine(view: &View, servers: &[ServerStatus], warnings: &[&Problem]) -> Value {
    let tool = |tool: &Arc<CatalogTool>| {
        let (exposure, reason) = view.exposure(tool);
        let mut row = json!({
            "server": tool.server,
            "tool": tool.definition.name(),
            "exposure": exposure,
            "reason": reason,
            "hints": tool.hints,
            "definition": tool.definition.digest(),
            "unchecked": unchecked(tool),
        });
        let more = match view {
            View::Mcp(_) => json!({ "name": tool.flat }),
            View::Responses(_) => json!({
                "namespace": tool.namespace,
                "name": tool.callable,
                "changes": view.spec(tool).map(changes).unwrap_or_default(),
            }),
        };
        if let (Value::Object(row), Value::Object(more)) = (&mut row, more) {
            row.extend(more);
        }
        row
    };
    let snapshot = view.listing().snapshot();
    let mut out = json!({
        "revision": snapshot.revision(),
        "tools": snapshot.tools().iter().map(tool).collect::<Vec<_>>(),
        "servers": servers,
        "warnings": warnings,
        "duplicates": snapshot.duplicates(),
        "collision": view.listing().collision().map(ToString::to_string),
    });
    if let (View::Responses(step), Value::Object(out)) = (view, &mut out) {
        out.insert("request".to_owned(), json!({ "tools": step.tools() }));
    }
    out
}

/// Where the tools would be shown.
fn surface(audience: Audience, Model { search, namespaces }: Model, resolved: &Resolved) -> Surface {
    let configured = Searching::of(&resolved.gateway);
    match audience {
        Audience::Mcp => {
            Surface::Gateway { searching: if search { Searching::Always } else { configured }, app_surface: false }
        }
        Audience::Responses => Surface::Library(Exposing { search, namespaces, ..Exposing::library() }),
    }
}
