//! `policy lock`: writes `policies.lock` beside layer files, or says where one disagrees.

use portcullis::config::Problem;
use portcullis::config::locking::{self, Choice, Report, State};
use portcullis::config::requirements::signers;
use portcullis::model::layer::LayerKind;
use portcullis::model::text::shown;
use serde_json::{Value, json};

use super::args::{Format, Global, LayerWord, Lock};
use super::exit::{Exit, Trouble};
use super::render::{self, BAD, GOOD, WARN, field, styled};
use super::setup;

/// Locks, or compares.
pub(crate) fn run(global: &Global, wanted: &Lock) -> Result<Exit, Trouble> {
    let places = setup::places()?;
    let kind = wanted.layer.map(kind);
    let choice = match (&wanted.file, kind) {
        (Some(file), kind) => Choice::File(file.clone(), kind),
        (None, Some(kind)) => Choice::Kind(kind),
        (None, None) => Choice::All,
    };
    let keys = signers(&setup::resolve(global, &places));
    let reports = locking::lock(&places, &setup::session(global), &choice, &keys, !wanted.check);
    if reports.is_empty() && choice != Choice::All {
        let hint = "`portcullis config show` lists the layers, and `[[policies]]` adds one to a layer";
        return Err(Trouble::new(Exit::Usage, format!("{} has no policies to lock", asked(&choice))).hint(hint));
    }
    match global.format {
        Format::Human => render::data(&human(&reports))?,
        Format::Json => render::json(&json!({ "layers": reports.iter().map(machine).collect::<Vec<_>>() }))?,
    }
    let worst = reports.iter().map(|report| exit(&report.state, &choice)).max_by_key(|exit| *exit as u8);
    Ok(worst.unwrap_or(Exit::Done))
}

/// What was to be locked, for a message.
fn asked(choice: &Choice) -> String {
    match choice {
        Choice::All => "no layer".to_owned(),
        Choice::Kind(kind) => format!("the {} layer", kind.as_str()),
        Choice::File(file, _) => format!("`{}`", setup::shown(file)),
    }
}

/// What one layer means for the exit code. Without a choice, layers that are somebody else's to write are none of ours.
fn exit(state: &State, choice: &Choice) -> Exit {
    match state {
        State::Written(_) | State::Unchanged(_) => Exit::Done,
        State::NotWritten(_) if *choice == Choice::All => Exit::Done,
        State::NotWritten(_) | State::Refused(_) => Exit::Failed,
        State::Differs(_) => Exit::Refused,
    }
}

/// The layer that a word names.
pub(crate) fn kind(word: LayerWord) -> LayerKind {
    match word {
        LayerWord::Managed => LayerKind::Managed,
        LayerWord::System => LayerKind::System,
        LayerWord::Organisation => LayerKind::Organisation,
        LayerWord::User => LayerKind::User,
        LayerWord::Session => LayerKind::Session,
        LayerWord::Project => LayerKind::Project,
    }
}

/// The state's word, how many entries it has, and what is wrong.
fn parts(state: &State) -> (&'static str, Option<usize>, &[Problem], Option<&str>) {
    match state {
        State::Written(entries) => ("written", Some(*entries), &[], None),
        State::Unchanged(entries) => ("unchanged", Some(*entries), &[], None),
        State::Differs(problems) => ("differs", None, problems, None),
        State::Refused(problems) => ("refused", None, problems, None),
        State::NotWritten(why) => ("not written", None, &[], Some(why)),
    }
}

fn human(reports: &[Report]) -> String {
    let width = render::width();
    let mut out = String::new();
    if reports.is_empty() {
        out.push_str("No layer has policies.\n");
    }
    for report in reports {
        let (word, entries, problems, why) = parts(&report.state);
        let style = match &report.state {
            State::Written(_) | State::Unchanged(_) => GOOD,
            State::NotWritten(_) => WARN,
            State::Differs(_) | State::Refused(_) => BAD,
        };
        let entries = entries.map(|entries| format!(", policies: {entries}")).unwrap_or_default();
        let file = report.layer.file().map(setup::shown).unwrap_or_default();
        out.push_str(&field(
            0,
            &format!("{}:", report.layer),
            &format!("{file} {}{entries}", styled(style, word)),
            width,
        ));
        for problem in problems {
            out.push_str(&field(2, "because", &shown(&problem.to_string(), 1000), width));
        }
        if let Some(why) = why {
            out.push_str(&field(2, "because", &shown(why, 1000), width));
        }
    }
    out
}

fn machine(report: &Report) -> Value {
    let (word, entries, problems, why) = parts(&report.state);
    json!({
        "layer": report.layer,
        "file": report.layer.file(),
        "lock": report.lock,
        "state": word,
        "policies": entries,
        "problems": problems,
        "because": why,
    })
}
