//! `[reviewer]`: a layer's auto reviewer (R1, R12, R22).
//!
//! Every layer may have one; they stand side by side, and none replaces another's. What is wrong inside a table that can be
//! read fails that reviewer alone, closed: it allows nothing. The reviewer belongs to the layer that vouches for the file.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use url::Url;

use super::hooks::{self, Digests};
use super::policy_keys::is_policy_name;
use super::problem::Problem;
use super::stack::Layer;
use super::template::is_variable_name;
use super::{endpoint, requirements, server_keys};
use crate::model::digest::Digest;
use crate::model::here::is_private;
use crate::model::layer::LayerRef;

/// The longest time that one attempt may be given, in seconds: a whole review has no more.
const MAX_SECONDS: f64 = 90.0;
/// The most words of a command.
const MAX_WORDS: usize = 1024;
/// The longest model name, in bytes.
const MAX_MODEL: usize = 256;
/// The name of a reviewer that has none.
const NAME: &str = "reviewer";

/// `[reviewer]`.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReviewerTable {
    /// What reviews: a program (`command`), a model behind HTTP (`http`), or the model of the session's own client (`sampling`), which satisfies neither strict asks nor those of managed and organisation (R22).
    #[serde(rename = "type")]
    pub kind: ReviewerKind,
    /// Its name in records, as a policy's. Default `reviewer`.
    pub name: Option<String>,
    /// The program and its arguments: a list, or one text that is split like a shell splits it; no shell runs. Relative to the folder of this file, which it also runs in.
    pub command: Option<CommandLine>,
    /// The whole address: `https`, or `http` on this machine.
    pub url: Option<String>,
    /// `responses` (OpenAI Responses) or `chat` (Chat Completions). Default `responses`.
    pub form: Option<Form>,
    /// The model's name.
    pub model: Option<String>,
    /// The variable that holds the key: the bearer token of `http`; a `command` gets the variable itself. A project's needs the grant of `portcullis trust`.
    pub key_env: Option<String>,
    /// Whether its denial may be appealed to a person. Default `false`.
    pub appeal: Option<bool>,
    /// How long one attempt may take, in seconds, at most 90; a whole review takes no more than 90 either.
    pub timeout_sec: Option<f64>,
}

/// How a reviewer is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReviewerKind {
    /// A program is started.
    Command,
    /// A model is asked over HTTP.
    Http,
    /// The client's model is asked.
    Sampling,
}

/// The form of an HTTP reviewer's requests and answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// OpenAI Responses.
    #[default]
    Responses,
    /// Chat Completions.
    Chat,
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Responses => "Responses",
            Self::Chat => "Chat Completions",
        })
    }
}

/// A command, as it is written.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum CommandLine {
    /// One text.
    Text(String),
    /// Word by word.
    Words(Vec<String>),
}

impl JsonSchema for CommandLine {
    fn schema_name() -> Cow<'static, str> {
        "CommandLine".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": ["string", "array"] })
    }
}

impl CommandLine {
    /// Returns the words.
    ///
    /// # Errors
    /// An open quote, no word at all, too many of them, or a NUL character.
    fn words(&self) -> Result<Vec<String>, &'static str> {
        let words = match self {
            Self::Text(text) => shlex::split(text).ok_or("has a quote that is not closed")?,
            Self::Words(words) => words.clone(),
        };
        match words.first() {
            None => Err("is empty"),
            Some(program) if program.is_empty() => Err("names no program"),
            Some(_) if words.len() > MAX_WORDS => Err("has more than 1024 words"),
            Some(_) if words.iter().any(|word| word.contains('\0')) => Err("has a NUL character"),
            Some(_) => Ok(words),
        }
    }
}

impl ReviewerTable {
    /// Returns the words of its command; none if it has none that can be read.
    pub(super) fn words(&self) -> Vec<String> {
        let words = self.command.as_ref().filter(|_| self.kind == ReviewerKind::Command).map(CommandLine::words);
        words.and_then(Result::ok).unwrap_or_default()
    }

    fn name(&self) -> &str {
        self.name.as_deref().filter(|name| is_policy_name(name)).unwrap_or(NAME)
    }
}

/// One layer's reviewer, as it is in force.
#[derive(Debug, Clone, PartialEq)]
pub struct ReviewerEntry {
    /// The layer that vouches for it: whose asks it may satisfy is told by this (R22).
    pub layer: LayerRef,
    /// Whether its allow may take the place of a person's (R3).
    pub may_allow: bool,
    /// Its name.
    pub name: String,
    /// Whether its denial may be appealed to a person.
    pub appeal: bool,
    /// How long one attempt may take, if the table says so.
    pub timeout: Option<Duration>,
    /// What its table says of how it is asked.
    pub kind: ReviewerKind,
    /// How it is asked, or what is wrong with it: then it allows nothing.
    pub way: Result<ReviewerWay, String>,
    /// Where its program is looked for, there or not; none: on `PATH`, or it has none.
    pub place: Option<PathBuf>,
    /// Digest over all of this. Values of variables are not in it.
    pub digest: Digest,
}

/// How a reviewer is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReviewerWay {
    /// A program.
    Command {
        /// Its program, absolute.
        program: PathBuf,
        /// The words as written, the program's first.
        words: Vec<String>,
        /// Where it runs.
        folder: PathBuf,
        /// The variable that is handed on.
        key_env: Option<String>,
        /// What must be as it was when the configuration was read, at each start: the program, unless root keeps it, and what trust
        /// bound of a trusted project's (R7).
        bound: BTreeMap<PathBuf, Option<Digest>>,
    },
    /// A model behind HTTP.
    Http {
        /// The whole address.
        url: Url,
        /// The form.
        form: Form,
        /// The model's name.
        model: String,
        /// The variable that holds the key.
        key_env: Option<String>,
    },
    /// The client's model.
    Sampling,
}

impl ReviewerEntry {
    /// Returns the files whose change changes what the reviewer is, or whether it can run.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let found = self.way.iter().flat_map(|way| match way {
            ReviewerWay::Command { program, bound, .. } => bound.keys().chain([program]).collect(),
            ReviewerWay::Http { .. } | ReviewerWay::Sampling => Vec::new(),
        });
        found.chain(&self.place).map(PathBuf::as_path)
    }
}

/// Returns the reviewers of all layers, most trusted layer first (R1). What is wrong with one is a problem, too.
pub(super) fn resolve(
    layers: &[Layer],
    sources: &[requirements::Source],
    path: Option<&OsStr>,
    problems: &mut Vec<Problem>,
) -> Vec<ReviewerEntry> {
    let mut ordered: Vec<&Layer> = layers.iter().rev().collect();
    ordered.sort_by_key(|layer| std::cmp::Reverse(layer.definer.kind()));
    let tables = ordered.into_iter().filter_map(|layer| Some((layer, layer.file.settings.reviewer.as_ref()?)));
    tables.map(|(layer, table)| entry(layer, table, (sources, path), problems)).collect()
}

fn entry(
    layer: &Layer,
    table: &ReviewerTable,
    (sources, path): (&[requirements::Source], Option<&OsStr>),
    problems: &mut Vec<Problem>,
) -> ReviewerEntry {
    let timeout = table.timeout_sec.map(|value| match value <= MAX_SECONDS {
        true => server_keys::seconds(value),
        false => Err("must be more than 0 and at most 90 seconds".to_owned()),
    });
    let named = match &table.name {
        Some(name) if !is_policy_name(name) => {
            Err(("name", "must have letters, digits, `_`, `-` and `.`, at most 64".to_owned()))
        }
        _ => Ok(()),
    };
    let timed = timeout.clone().transpose().map(drop).map_err(|why| ("timeout_sec", why));
    let permitted = requirements::refused_reviewer(&layer.definer, sources).map_or(Ok(()), |why| Err(("", why)));
    let way = named.and(timed).and(permitted).and_then(|()| way(layer, table, path)).map_err(|(key, message)| {
        let key = if key.is_empty() { NAME.to_owned() } else { format!("{NAME}.{key}") };
        let line = layer.file.lines.get(&key).or_else(|| layer.file.lines.get(NAME)).copied();
        let problem = Problem::at(&layer.reference, line, &key, message);
        problems.push(problem.clone());
        problem.to_string()
    });
    let (name, appeal, kind) = (table.name().to_owned(), table.appeal.unwrap_or(false), table.kind);
    let timeout = timeout.and_then(Result::ok);
    let told = match &way {
        Ok(ReviewerWay::Command { program, words, folder, key_env, bound }) => {
            let bound: Vec<_> = bound.iter().map(|(file, digest)| (file.display().to_string(), digest)).collect();
            json!([program.display().to_string(), words, folder.display().to_string(), key_env, bound])
        }
        Ok(ReviewerWay::Http { url, form, model, key_env }) => json!([url.as_str(), form, model, key_env]),
        Ok(ReviewerWay::Sampling) => json!([]),
        Err(why) => json!(why),
    };
    let told = json!([layer.definer, name, kind, appeal, timeout.map(|time| time.as_millis() as u64), told]);
    let digest = Digest::of(told.to_string().as_bytes());
    let words = table.words();
    let place = words.first().filter(|program| program.contains('/'));
    let place = place.and_then(|program| hooks::whole(&layer.folder.join(program)).ok());
    let (layer, may_allow) = (layer.definer.clone(), layer.may_allow);
    ReviewerEntry { layer, may_allow, name, appeal, timeout, kind, way, place, digest }
}

/// Key below the table, and message.
type Wrong = (&'static str, String);

fn way(layer: &Layer, table: &ReviewerTable, path: Option<&OsStr>) -> Result<ReviewerWay, Wrong> {
    if !layer.defines {
        return Err((
            "",
            "its project is not trusted as it is now, so it allows nothing; run `portcullis trust`".to_owned(),
        ));
    }
    only_its_keys(table)?;
    if let Some(name) = &table.key_env {
        if !is_variable_name(name) {
            return Err(("key_env", "is no variable name".to_owned()));
        }
        if layer.variables.as_ref().is_some_and(|granted: &BTreeSet<String>| !granted.contains(name)) {
            let why =
                format!("names the environment variable `{name}`, which the trust in its project does not grant (R4)");
            return Err(("key_env", why));
        }
    }
    let key_env = table.key_env.clone();
    match table.kind {
        ReviewerKind::Sampling => Ok(ReviewerWay::Sampling),
        ReviewerKind::Command => {
            let words = table.command.as_ref().map_or(Err("is missing"), CommandLine::words);
            let words = words.map_err(|why| ("command", why.to_owned()))?;
            let file = hooks::find(layer, &words, path, &mut Digests::default()).map_err(|why| ("command", why))?;
            let mut bound = layer.pins.clone().unwrap_or_default();
            bound.extend(file.bound);
            Ok(ReviewerWay::Command { program: file.path, words, folder: layer.folder.clone(), key_env, bound })
        }
        ReviewerKind::Http => {
            let url = table.url.as_deref().ok_or_else(|| ("url", "is missing".to_owned()))?;
            // The words of a server's address; the key is another one.
            let url = endpoint::address(url).map_err(|why| ("url", why.to_string().replace("its `url`", "it")))?;
            if !is_private(&url) {
                return Err(("url", "actions are not sent over plain `http`; use `https`".to_owned()));
            }
            let model = table.model.clone().filter(|model| (1..=MAX_MODEL).contains(&model.len()));
            let model = model.ok_or_else(|| ("model", format!("must name a model, in 1 to {MAX_MODEL} bytes")))?;
            Ok(ReviewerWay::Http { url, form: table.form.unwrap_or_default(), model, key_env })
        }
    }
}

/// A key of another type would have no effect.
fn only_its_keys(table: &ReviewerTable) -> Result<(), Wrong> {
    use ReviewerKind::{Command, Http};
    let keys: [(bool, &str, &[ReviewerKind]); 5] = [
        (table.command.is_some(), "command", &[Command]),
        (table.url.is_some(), "url", &[Http]),
        (table.form.is_some(), "form", &[Http]),
        (table.model.is_some(), "model", &[Http]),
        (table.key_env.is_some(), "key_env", &[Command, Http]),
    ];
    match keys.into_iter().find(|(set, _, kinds)| *set && !kinds.contains(&table.kind)) {
        Some((_, key, _)) => Err((key, "has no effect with this `type`; remove it".to_owned())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Places, Resolved, SessionSources, load};
    use crate::model::layer::LayerKind;

    fn resolved(layers: &[(LayerKind, &str)]) -> Resolved {
        load(&Places::nowhere(), &SessionSources::of_texts(layers, &std::env::temp_dir()))
    }

    fn one(body: &str) -> ReviewerEntry {
        let mut found = resolved(&[(LayerKind::User, &format!("[reviewer]\n{body}"))]);
        assert!(found.refusals.is_empty(), "{:?}", found.refusals);
        found.reviewers.remove(0)
    }

    #[test]
    fn a_command_is_split_without_a_shell() {
        for command in [r#"'/bin/sh -c "echo  $HOME; exit" x'"#, r#"["/bin/sh", "-c", "echo  $HOME; exit", "x"]"#] {
            let entry = one(&format!(
                "type = 'command'\ncommand = {}\nkey_env = 'KEY'\n",
                command.replace("'/bin", "'''/bin").replace("x'", "x'''")
            ));
            let Ok(ReviewerWay::Command { program, words, key_env, .. }) = entry.way else { panic!("{entry:?}") };
            assert_eq!(
                (program, words),
                ("/bin/sh".into(), ["/bin/sh", "-c", "echo  $HOME; exit", "x"].map(str::to_owned).to_vec())
            );
            assert_eq!(key_env.as_deref(), Some("KEY"));
        }
    }

    #[test]
    fn a_model_behind_http_is_read_with_what_is_usual() {
        let entry = one(
            "type = 'http'\nurl = 'https://a.example/v1/responses'\nmodel = 'm'\ntimeout_sec = 20\nappeal = true\n",
        );
        let Ok(ReviewerWay::Http { url, form: Form::Responses, model, key_env: None }) = &entry.way else {
            panic!("{entry:?}")
        };
        assert_eq!((url.as_str(), model.as_str()), ("https://a.example/v1/responses", "m"));
        assert_eq!(
            (entry.name.as_str(), entry.appeal, entry.timeout),
            ("reviewer", true, Some(Duration::from_secs(20)))
        );
        let here = one(
            "type = 'http'\nurl = 'http://127.0.0.1:1/v1/chat/completions'\nmodel = 'm'\nform = 'chat'\nname = 'mine'\n",
        );
        assert!(here.way.is_ok() && here.name == "mine" && !here.appeal && here.timeout.is_none());
        assert_eq!(one("type = 'sampling'\n").way, Ok(ReviewerWay::Sampling));
    }

    #[test]
    fn r14_a_table_that_cannot_work_is_a_broken_reviewer_and_no_absence() {
        let http = "type = 'http'\nmodel = 'm'\nurl = 'https://a.example/'\n";
        for (bad, key) in [
            ("type = 'command'\n", "command"),
            ("type = 'command'\ncommand = ''\n", "command"),
            ("type = 'command'\ncommand = \"sh 'open\"\n", "command"),
            ("type = 'command'\ncommand = './no-such-program'\n", "command"),
            ("type = 'command'\ncommand = '/bin/sh'\nmodel = 'm'\n", "model"),
            ("type = 'http'\nmodel = 'm'\n", "url"),
            ("type = 'http'\nmodel = 'm'\nurl = 'http://a.example/'\n", "url"),
            ("type = 'http'\nmodel = 'm'\nurl = 'https://me:hush@a.example/'\n", "url"),
            ("type = 'http'\nurl = 'https://a.example/'\n", "model"),
            ("type = 'sampling'\nkey_env = 'K'\n", "key_env"),
            (&format!("{http}key_env = 'A=B'\n"), "key_env"),
            (&format!("{http}timeout_sec = 91\n"), "timeout_sec"),
            (&format!("{http}timeout_sec = 0\n"), "timeout_sec"),
            (&format!("{http}name = 'a b'\n"), "name"),
        ] {
            let found = resolved(&[(LayerKind::User, &format!("[reviewer]\n{bad}"))]);
            let [entry] = found.reviewers.as_slice() else { panic!("{bad}") };
            let why = entry.way.as_ref().unwrap_err();
            assert!(why.contains(&format!("`reviewer.{key}`")) && !why.contains("hush"), "{bad}: {why}");
            assert!(found.problems.iter().any(|problem| problem.to_string() == *why));
        }
    }

    #[test]
    fn r8_a_table_that_cannot_be_read_makes_its_layer_unreadable() {
        for bad in ["command = 'sh'\n", "type = 'person'\n", "type = 'sampling'\nurls = 1\n"] {
            assert!(!resolved(&[(LayerKind::User, &format!("[reviewer]\n{bad}"))]).refusals.is_empty(), "{bad}");
        }
    }

    #[test]
    fn r1_reviewers_of_all_layers_stand_side_by_side_most_trusted_first() {
        let text = "[reviewer]\ntype = 'sampling'\n";
        let kinds = [LayerKind::Session, LayerKind::User, LayerKind::Managed, LayerKind::Project];
        let found = resolved(&kinds.map(|kind| (kind, text)));
        let order: Vec<_> = found.reviewers.iter().map(|entry| entry.layer.kind()).collect();
        assert_eq!(order, [LayerKind::Managed, LayerKind::User, LayerKind::Session, LayerKind::Project]);
    }

    #[test]
    fn r4_a_projects_key_needs_a_grant() {
        let text = "[reviewer]\ntype = 'http'\nurl = 'https://a.example/'\nmodel = 'm'\nkey_env = 'KEY'\n";
        let found = resolved(&[(LayerKind::Project, text)]);
        assert!(found.reviewers[0].way.as_ref().unwrap_err().contains("does not grant"));
        assert!(resolved(&[(LayerKind::Session, text)]).reviewers[0].way.is_ok());
    }
}
