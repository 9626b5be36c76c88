//! `config show` and `config check`.

use portcullis::adapters::wasm::Engine;
use portcullis::config::policy_ref::PolicyEntry;
use portcullis::config::server::Transport;
use portcullis::config::show::{Shown, effective};
use portcullis::config::{LayerState, LayerStatus, Problem, Resolved};
use portcullis::host::entries;
use portcullis::model::layer::LayerRef;
use portcullis::model::text::shown;
use portcullis::ports::approval::PolicySet;
use serde_json::json;

use super::args::{Format, Global};
use super::exit::{Exit, Trouble};
use super::render::{self, BAD, FAINT, GOOD, STRONG, WARN, field, styled};
use super::setup;

/// Prints every place of a layer, and every effective value with its origin.
pub(crate) fn show(global: &Global) -> Result<Exit, Trouble> {
    let resolved = setup::resolve(global, &setup::places()?);
    let values = effective(&resolved);
    match global.format {
        Format::Human => render::data(&human(&resolved, &values))?,
        Format::Json => render::json(&json!({
            "layers": resolved.layers.iter().map(layer).collect::<Vec<_>>(),
            "values": values,
            "problems": resolved.problems,
            "warnings": resolved.warnings,
            "refusals": resolved.refusals,
            "digest": resolved.digest,
        }))?,
    }
    Ok(Exit::Done)
}

/// Prints what is wrong; exits 2 if anything is.
pub(crate) fn check(global: &Global) -> Result<Exit, Trouble> {
    let places = setup::places()?;
    let mut resolved = setup::resolve(global, &places);
    let engine =
        Engine::with_options(setup::options(&places)?).map_err(|error| Trouble::from_error(Exit::Failed, &error))?;
    let unusable = unusable(&resolved, &entries::policies(&resolved, places.user, &engine));
    resolved.problems.extend(unusable);
    let wrong = resolved.problems.len().max(resolved.refusals.len());
    match global.format {
        Format::Human if wrong == 0 => {
            render::data(&format!("{}The configuration is in order.\n", problems(&resolved, render::width())))?;
        }
        Format::Human => render::data(&problems(&resolved, render::width()))?,
        Format::Json => render::json(
            &json!({ "problems": resolved.problems, "warnings": resolved.warnings, "refusals": resolved.refusals }),
        )?,
    }
    Ok(if wrong == 0 { Exit::Done } else { Exit::Usage })
}

/// What the files say well, but cannot be had: components that cannot be loaded, commands and variables that are not there.
fn unusable(resolved: &Resolved, policies: &PolicySet) -> Vec<Problem> {
    let problem = |layer: &LayerRef, line: Option<usize>, key: String, message: String| Problem {
        file: layer.file().map(Into::into),
        layer: layer.clone(),
        line,
        key,
        message,
        suggestion: None,
    };
    let told =
        |component: &str| resolved.policies.iter().any(|entry| entry.name == component && entry.broken.is_some());
    let faulty = policies.components.iter().filter(|component| !told(&component.source.component));
    let mut found: Vec<Problem> = faulty
        .filter_map(|component| {
            let fault = component.component.as_ref().err()?;
            let source = &component.source;
            let own = |entry: &&PolicyEntry| entry.layer == source.layer && entry.name == *source.component;
            let entry = resolved.policies.iter().find(own);
            // The line is the problem's own, and is not said twice.
            let place = entry.map(|entry| format!("{}: ", entry.place())).unwrap_or_default();
            let text = fault.to_string().replacen(&place, "", 1);
            let component = entry.map(|entry| format!(" `{}`", setup::shown(&entry.component))).unwrap_or_default();
            let message = format!("the component{component} refuses every call: {text}");
            let key = format!("policies.{}", source.component);
            Some(problem(&source.layer, entry.and_then(|entry| entry.line), key, message))
        })
        .collect();
    let lookup = |name: &str| std::env::var(name).ok();
    for server in resolved.servers.values().filter(|server| server.enabled.is_ok()) {
        let Transport::Stdio(launch) = &server.transport else { continue };
        let texts = [
            launch.executable.as_ref().err().cloned(),
            launch.arguments(&lookup).err().map(|error| error.to_string()),
            launch.environment(&lookup).err().map(|error| error.to_string()),
        ];
        let key = format!("mcp_servers.{}", server.name);
        found.extend(texts.into_iter().flatten().map(|text| problem(&server.layer, None, key.clone(), text)));
    }
    found
}

fn human(resolved: &Resolved, values: &[Shown]) -> String {
    let width = render::width();
    let mut out = format!("{}\n", styled(STRONG, "layers, weak to strong"));
    for status in &resolved.layers {
        let (style, word) = state(status);
        let place = status.layer.file().map_or_else(|| "command line".to_owned(), setup::shown);
        out.push_str(&field(2, &format!("{}:", status.layer), &format!("{place} {}", styled(style, word)), width));
    }
    out.push_str(&format!("{}\n", styled(STRONG, "values")));
    for value in values {
        let line = value.line.map_or_else(String::new, |line| format!(":{line}"));
        let origin = match &value.file {
            Some(file) => format!("{} {}{line}", value.layer, setup::shown(file)),
            None => value.layer.to_string(),
        };
        // Values and their origins are copied from here: not wrapped.
        let text = shown(&value.value, 1000);
        out.push_str(&format!("  {} = {text}  {}\n", shown(&value.key, 300), styled(FAINT, &format!("# {origin}"))));
    }
    if !(resolved.problems.is_empty() && resolved.warnings.is_empty() && resolved.refusals.is_empty()) {
        out.push_str(&format!("{}\n", styled(STRONG, "problems")));
        out.push_str(&problems(resolved, width));
    }
    out
}

fn problems(resolved: &Resolved, width: usize) -> String {
    let mut out = String::new();
    for refusal in &resolved.refusals {
        out.push_str(&field(0, "refusal:", &shown(&refusal.text, 1000), width));
    }
    for warning in &resolved.warnings {
        out.push_str(&field(0, "warning:", &shown(&warning.to_string(), 1000), width));
    }
    for problem in &resolved.problems {
        out.push_str(&field(0, "problem:", &shown(&problem.to_string(), 1000), width));
    }
    out
}

fn layer(status: &LayerStatus) -> serde_json::Value {
    json!({
        "layer": status.layer,
        "file": status.layer.file(),
        "digest": status.digest,
        "status": status.state,
    })
}

fn state(status: &LayerStatus) -> (anstyle::Style, &'static str) {
    match status.state {
        LayerState::Applied => (GOOD, "in force"),
        LayerState::Absent => (FAINT, "absent"),
        LayerState::Untrusted => (WARN, "not trusted"),
        LayerState::Refused(_) => (WARN, "not read by a requirement"),
        LayerState::Changed(_) => (WARN, "changed since it was trusted"),
        LayerState::Broken(_) => (BAD, "cannot be read"),
    }
}
