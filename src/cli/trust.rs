//! `trust`: what trusting a project folder would mean, and the person's word for it.
//!
//! The person is at the controlling terminal and reads a code there that is shown nowhere else (R20): a program that this
//! user runs, such as an agent, can start the command but not answer it. A program that takes over the terminal itself is
//! beyond this.

use std::path::{Path, PathBuf};

use portcullis::config::Places;
use portcullis::config::trust::{Description, Grant, TrustStore, describe};
use portcullis::model::text::shown;
use serde_json::json;

use super::args::{Format, Global, Trust};
use super::exit::{Exit, Trouble};
use super::render::{self, STRONG, field, styled};
use super::setup;
use super::terminal::Terminal;

/// Lists, trusts, or takes trust back.
pub(crate) fn run(global: &Global, trust: &Trust) -> Result<Exit, Trouble> {
    let places = setup::places()?;
    let path = places.trust_store().ok_or_else(|| {
        Trouble::new(Exit::Failed, "there is no place to keep trust in").hint("set HOME or XDG_STATE_HOME")
    })?;
    let mut store = TrustStore::open(&path, places.user).map_err(|error| Trouble::from_error(Exit::Usage, &error))?;
    if trust.list {
        list(global, &store)
    } else if trust.remove {
        remove(&mut store, &trust.dir)
    } else {
        add(&mut store, &places, &trust.dir)
    }
}

fn list(global: &Global, store: &TrustStore) -> Result<Exit, Trouble> {
    match global.format {
        Format::Human => {
            let mut out = String::new();
            for (file, project) in store.projects() {
                out.push_str(&format!("{}\n", setup::shown(&folder(file))));
                out.push_str(&field(2, "sha256", &project.digest.to_string(), render::width()));
                out.push_str(&field(2, "binds", &format!("{} more files", project.files.len()), render::width()));
            }
            if out.is_empty() {
                out.push_str("No project is trusted.\n");
            }
            render::data(&out)?;
        }
        Format::Json => {
            let projects = store.projects().map(|(file, project)| {
                json!({
                    "folder": folder(file),
                    "digest": project.digest,
                    "files": project.files,
                    "variables": project.variables,
                    "may_allow": project.may_allow,
                })
            });
            render::json(&projects.collect::<Vec<_>>())?;
        }
    }
    Ok(Exit::Done)
}

/// A layer's file is `FOLDER/.portcullis/config.toml`.
fn folder(file: &Path) -> PathBuf {
    file.ancestors().nth(2).unwrap_or(file).to_owned()
}

/// Taking trust back only tightens: it needs no word of a person.
fn remove(store: &mut TrustStore, dir: &Path) -> Result<Exit, Trouble> {
    let absolute = setup::absolute(dir);
    // A folder that is gone cannot be resolved; its record has the path as it was.
    let project = absolute.canonicalize().unwrap_or(absolute);
    if !store.distrust(&project.join(".portcullis/config.toml")) {
        let what = format!("`{}` is not trusted", setup::shown(&project));
        return Err(Trouble::new(Exit::Failed, what).hint("`portcullis trust --list` shows what is"));
    }
    save(store)?;
    render::talk(&format!("`{}` is not trusted any more.", setup::shown(&project)));
    Ok(Exit::Done)
}

fn add(store: &mut TrustStore, places: &Places, dir: &Path) -> Result<Exit, Trouble> {
    let description = describe(places, dir).map_err(|error| Trouble::from_error(Exit::Usage, &error))?;
    let mut terminal = Terminal::controlling().ok_or_else(|| {
        Trouble::new(Exit::Refused, "trust needs a person at a terminal, and this process has none")
            .hint("run `portcullis trust` yourself, in a terminal")
    })?;
    let broken = |error| Trouble::caused(Exit::Failed, "the terminal cannot be used", &error);
    if !terminal.confirms(&explain(&description), "trust this").map_err(broken)? {
        return Err(Trouble::new(Exit::Refused, "that was not the code, so nothing is trusted"));
    }
    // What its servers name of the environment was shown, so it is granted; its allows stay without weight (R3).
    let grant = Grant { variables: description.variables.clone(), may_allow: false };
    store.trust(&description, grant).map_err(|error| Trouble::from_error(Exit::Failed, &error))?;
    save(store)?;
    render::talk(&format!("`{}` is trusted as it is now.", setup::shown(&folder(&description.file))));
    Ok(Exit::Done)
}

fn save(store: &TrustStore) -> Result<(), Trouble> {
    store.save().map_err(|error| Trouble::from_error(Exit::Failed, &error))
}

fn explain(description: &Description) -> String {
    let width = render::width();
    let mut out = format!("{}\n", styled(STRONG, &setup::shown(&folder(&description.file))));
    let mut say = |label: &str, text: String| out.push_str(&field(2, label, &text, width));
    say("layer", format!("{} (sha256 {})", setup::shown(&description.file), description.digest));
    for (server, command) in &description.servers {
        say("runs", format!("{server}: {}", shown(command, 500)));
    }
    if let Some(command) = &description.reviewer {
        say("runs", format!("reviewer: {}", shown(command, 500)));
    }
    for policy in &description.policies {
        say("policy", shown(policy, 128));
    }
    for (hook, command) in &description.hooks {
        say("hook", format!("{hook}: {}", shown(command, 500)));
    }
    for file in &description.files {
        let digest = file.digest.map_or_else(|| "does not exist yet".to_owned(), |digest| digest.short());
        say("binds", format!("{} ({digest})", setup::shown(&file.path)));
    }
    for variable in &description.variables {
        say("hands on", format!("${{{variable}}} of your environment"));
    }
    for path in &description.unbound {
        say("not bound", format!("what is or lies at {}", setup::shown(path)));
    }
    for problem in &description.problems {
        say("problem", shown(&problem.to_string(), 500));
    }
    anstream::adapter::strip_str(&out).to_string()
}
