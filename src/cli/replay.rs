//! `policy replay` and `policy diff`: recorded decisions, taken again.

use std::path::PathBuf;

use portcullis::adapters::wasm::Engine;
use portcullis::config::{Found, resolve};
use portcullis::host::entries::policies;
use portcullis::host::records::open_chains;
use portcullis::host::replay::{By, Came, Outcome, Retaken, Totals, retake};
use portcullis::model::layer::LayerKind;
use portcullis::model::text::shown;
use portcullis::ports::approval::PolicySet;
use serde_json::json;

use super::args::{Format, Global};
use super::exit::{Exit, Trouble};
use super::record_args::{Diff, Replay};
use super::render::{self, BAD, GOOD, STRONG, WARN, field, styled};
use super::{audit, lock, setup};

/// Takes decisions again by the policies in force.
pub(crate) async fn replay(global: &Global, wanted: &Replay) -> Result<Exit, Trouble> {
    run(global, &wanted.records, None).await
}

/// Takes decisions again as they would be with another layer.
pub(crate) async fn diff(global: &Global, wanted: &Diff) -> Result<Exit, Trouble> {
    let kind = lock::kind(wanted.layer);
    if kind == LayerKind::Project {
        let message = "a project's layer needs its folder and your trust, so that it cannot be tried like this";
        return Err(Trouble::new(Exit::Usage, message).hint("run `portcullis policy replay` in the project instead"));
    }
    run(global, &wanted.records, Some((kind, wanted.candidate.clone()))).await
}

async fn run(global: &Global, given: &[PathBuf], candidate: Option<(LayerKind, PathBuf)>) -> Result<Exit, Trouble> {
    let (files, _) = audit::files(global, given)?;
    let policies = load(global, candidate).await?;
    let chains = open_chains(&setup::places()?).map_err(|error| Trouble::from_error(Exit::Failed, &error))?;
    let key = chains.inputs_key().map_err(|error| Trouble::from_error(Exit::Failed, &error))?;
    let mut printed = Ok(());
    let each = |retaken: &Retaken| {
        // The first failure is told; a reader that has gone is none.
        if printed.is_ok() && retaken.came != Came::Same {
            printed = print(global, retaken);
        }
    };
    let totals = retake(&policies, &files, &key, each).await;
    printed?;
    let totals = totals.map_err(|error| Trouble::from_error(Exit::Failed, &error))?;
    match global.format {
        Format::Human => render::data(&summary(&totals))?,
        Format::Json => render::json(&json!({ "totals": totals }))?,
    }
    Ok(if totals.changed + totals.other_fuel == 0 { Exit::Done } else { Exit::Refused })
}

/// Reads the layers, one of them replaced if that is wanted, and loads their policies. Starts no server.
async fn load(global: &Global, candidate: Option<(LayerKind, PathBuf)>) -> Result<PolicySet, Trouble> {
    let places = setup::places()?;
    let (sandbox, session) = (setup::options(&places)?, setup::session(global));
    let loading = tokio::task::spawn_blocking(move || {
        let mut found = Found::read(&places, &session);
        if let Some((kind, file)) = &candidate {
            found.stand_in(*kind, file, &places);
        }
        let resolved = resolve(&places, &found);
        let engine = Engine::with_options(sandbox)?;
        let policies = policies(&resolved, places.user, &engine);
        Ok::<_, portcullis::adapters::wasm::EngineError>((resolved, policies))
    });
    let loaded = loading.await.map_err(|error| Trouble::caused(Exit::Failed, "loading was broken off", &error))?;
    let (resolved, policies) =
        loaded.map_err(|error| Trouble::caused(Exit::Failed, "the policy sandbox cannot start", &error))?;
    for problem in &resolved.problems {
        render::talk(&format!("{}: {problem}", styled(WARN, "warning")));
    }
    if let Some(refusal) = resolved.refusals.first() {
        let text = shown(&refusal.text, 1000);
        return Err(Trouble::new(
            Exit::Usage,
            format!("a layer cannot be used, so every call would be refused: {text}"),
        ));
    }
    Ok(policies)
}

fn print(global: &Global, retaken: &Retaken) -> Result<(), Trouble> {
    if global.format == Format::Json {
        return render::json(retaken);
    }
    let (width, mut out) = (render::width(), String::new());
    let (server, call) = (retaken.server.as_deref().unwrap_or_default(), shown(&retaken.call, 64));
    let tool = styled(STRONG, &shown(&format!("{server}/{}", retaken.tool), 128));
    match &retaken.came {
        Came::Same => return Ok(()),
        // Told by reason in the summary.
        Came::NotReproducible { .. } => return Ok(()),
        Came::OtherFuel { components } => {
            let who = shown(&components.join(", "), 500);
            let text = format!("{}: {who}", styled(BAD, "the same, but other inputs were heard or other fuel used"));
            out.push_str(&field(0, &format!("{call} {tool}"), &text, width));
        }
        Came::Changed { was, now, because } => {
            let text = format!("{} -> {}", in_words(was), in_words(now));
            out.push_str(&field(0, &format!("{call} {tool}"), &text, width));
            for difference in because {
                let word =
                    |said: &Option<String>| said.as_ref().map_or("not asked".to_owned(), |said| shown(said, 200));
                let who = format!("{}/{}:", shown(&difference.layer, 32), shown(&difference.component, 128));
                let text = format!("{} -> {}", word(&difference.was), word(&difference.now));
                out.push_str(&field(2, &who, &text, width));
            }
        }
    }
    render::data(&out)
}

fn in_words(outcome: &Outcome) -> String {
    let style = match outcome.verdict.as_str() {
        "run" => GOOD,
        "deny" => BAD,
        _ => WARN,
    };
    let by: Vec<String> = outcome.by.iter().map(whose).collect();
    let by = if by.is_empty() { String::new() } else { format!(" by {}", by.join(", ")) };
    format!("{}{}", styled(style, &shown(&outcome.verdict, 16)), shown(&by, 500))
}

fn whose(by: &By) -> String {
    let end = by.fault.as_deref().map(|code| format!(" (failed: {code})"));
    let end = end.or_else(|| by.rule.as_deref().map(|rule| format!(" rule {rule}"))).unwrap_or_default();
    format!("{}/{}{end}", by.layer, by.component)
}

fn summary(totals: &Totals) -> String {
    let width = render::width();
    let mut out = format!("{} decisions: {} the same, {} changed", totals.decisions, totals.same, totals.changed);
    if totals.other_fuel > 0 {
        out.push_str(&format!(", {} the same for other fuel", totals.other_fuel));
    }
    let not: u64 = totals.not_reproducible.values().sum();
    out.push_str(&format!(", {not} not reproducible\n"));
    for (why, count) in &totals.not_reproducible {
        out.push_str(&field(2, &format!("{count}:"), &shown(why, 300), width));
    }
    out
}
