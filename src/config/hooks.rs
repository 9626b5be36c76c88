//! Hooks of all layers: the entries of `[hooks]`, read one by one, and what each of them runs.
//!
//! An entry that cannot be read is still an entry: it is a hook without a program, for the tools that its group names, or
//! for all where that cannot be read either (R8). So is one whose program is missing, and one of a project that is not what
//! was trusted (R7). What a failure means is the hook's own word only where all of it can be read.
//!
//! Starts nothing. The digest of a program is that of its file when the configuration was read.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::hook_keys::{EVENTS, HookGroupTable, HookMatcher, HookTable};
use super::identity::find_executable;
use super::open::explained;
use super::parse::{LayerFile, MAX_ENTRIES, Source, first, take};
use super::policy_keys::is_policy_name;
use super::problem::Problem;
use super::requirements;
use super::stack::Layer;
use super::trust::{self, MAX_BOUND};
use super::unknown::{closest, schema_of};
use crate::model::digest::Digest;
use crate::model::hook::{DEFAULT_HOOK_TIMEOUT, HookEvent, HookFailureMeans};
use crate::model::layer::{LayerKind, LayerRef};
use crate::model::text::shown;

static GROUP: LazyLock<Value> = LazyLock::new(schema_of::<HookGroupTable>);
static HOOK: LazyLock<Value> = LazyLock::new(schema_of::<HookTable>);

/// One hook as its file has it.
#[derive(Debug, Clone)]
pub struct HookItem {
    /// The name, or its place: event, group and hook, counted from one.
    pub name: String,
    /// The path of the entry, for messages and lines.
    pub key: String,
    /// When it is run.
    pub event: HookEvent,
    /// The matcher of its group, as written.
    pub matcher: Option<String>,
    /// For which tools; all if that cannot be read.
    pub matches: HookMatcher,
    /// The entry, or what is wrong with it or its group.
    pub entry: Result<Box<HookTable>, Problem>,
}

/// One hook, as its layer configured it.
#[derive(Debug, Clone)]
pub struct HookEntry {
    /// Its name, unique in its layer.
    pub name: String,
    /// The layer.
    pub layer: LayerRef,
    /// The entry's key path in its file, for messages.
    pub key: String,
    /// The entry's line in its file, counted from one.
    pub line: Option<usize>,
    /// When it is run.
    pub event: HookEvent,
    /// The matcher as written.
    pub matcher: Option<String>,
    /// For which tools.
    pub matches: HookMatcher,
    /// The program and its arguments, as written; empty if they cannot be read.
    pub command: Vec<String>,
    /// How long it may run.
    pub timeout: Duration,
    /// What a failure of it means at `PreToolUse`.
    pub on_failure: HookFailureMeans,
    /// Where it runs: a project's in the project's folder, so that what was bound is what runs; any other in ours. Empty:
    /// nobody said where we are.
    pub cwd: PathBuf,
    /// What it runs, or why nothing.
    pub program: Result<HookFile, String>,
    /// Where its program is looked for, there or not; none: on `PATH`.
    pub place: Option<PathBuf>,
    /// Whether an allow of it counts (R3).
    pub may_allow: bool,
}

/// The file that a hook runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookFile {
    /// The program, absolute.
    pub path: PathBuf,
    /// Its digest; none: it is too large to be compared before each run, and no project's.
    pub digest: Option<Digest>,
    /// What must be as it was at each run: the program, but for root's own, and what a project's trust bound of this hook.
    pub bound: BTreeMap<PathBuf, Option<Digest>>,
}

impl HookEntry {
    /// Returns the files whose change changes what the hook is, or whether it can run.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let found = self.program.iter().flat_map(|file| file.bound.keys().chain([&file.path]));
        found.chain(&self.place).map(PathBuf::as_path)
    }
}

impl Source<'_> {
    /// Reads `[hooks]`: events, in each its groups, in each its hooks.
    pub(super) fn hooks(&self, value: Option<Spanned<DeValue<'_>>>, file: &mut LayerFile, fatal: &mut Vec<Problem>) {
        let Some(value) = value else { return };
        let DeValue::Table(table) = value.get_ref() else {
            let message = "must be written as `[[hooks.PreToolUse]]`, or with another event";
            fatal.push(self.problem(value.span().start, "hooks", message));
            return;
        };
        let known = || EVENTS.into_iter().map(HookEvent::as_str);
        for key in table.keys().filter(|key| !known().any(|event| event == key.get_ref().as_ref())) {
            let path = super::parse::join("hooks", key.get_ref());
            let suggestion = closest(key.get_ref(), known());
            fatal.push(Problem { suggestion, ..self.problem(key.span().start, &path, "unknown event") });
        }
        for event in EVENTS {
            let Some((_, value)) = table.iter().find(|(key, _)| key.get_ref().as_ref() == event.as_str()) else {
                continue;
            };
            let path = format!("hooks.{}", event.as_str());
            let DeValue::Array(groups) = value.get_ref() else {
                fatal.push(self.problem(value.span().start, &path, format!("must be written as `[[{path}]]`")));
                continue;
            };
            for (index, group) in groups.iter().enumerate().take(MAX_ENTRIES + 1) {
                self.group(group, (event, index), file);
            }
        }
        if file.hooks.len() > MAX_ENTRIES {
            fatal.push(self.problem(value.span().start, "hooks", format!("has more than {MAX_ENTRIES} hooks")));
            return;
        }
        let mut names = BTreeSet::new();
        for item in &mut file.hooks {
            if !names.insert(item.name.clone()) {
                let message = format!("the name `{}` is used twice in this layer", item.name);
                let line = file.lines.get(&item.key).copied();
                let problem = Problem::at(self.layer, line, &format!("{}.name", item.key), message);
                file.problems.push(problem.clone());
                item.name = format!("{}#{}", item.name, names.len());
                names.insert(item.name.clone());
                item.entry = Err(problem);
            }
        }
    }

    /// A mistake in a group is one of each of its hooks; a group without any is a broken hook itself.
    fn group(&self, value: &Spanned<DeValue<'_>>, (event, index): (HookEvent, usize), file: &mut LayerFile) {
        let mut group = Group {
            name: format!("{}.{}", event.as_str(), index + 1),
            key: format!("hooks.{}[{index}]", event.as_str()),
            event,
            matcher: None,
            matches: HookMatcher::Every,
        };
        let offset = value.span().start;
        let DeValue::Table(table) = value.get_ref() else {
            let problem = self.problem(offset, &group.key, "must be a table");
            file.problems.push(problem.clone());
            file.hooks.push(group.itself(problem));
            return;
        };
        let mut own = table.clone();
        let hooks = take(&mut own, "hooks");
        // A matcher that is no text is among these.
        let found = self.read::<HookGroupTable>(&own, &GROUP, &group.key).err().unwrap_or_default();
        let mut found = lined(found, file.lines.get(&group.key).copied());
        if let Some((matcher, text)) = own.get("matcher").and_then(|value| Some((value, value.get_ref().as_str()?))) {
            group.matcher = Some(text.to_owned());
            match HookMatcher::parse(text) {
                Ok(matches) => group.matches = matches,
                Err(why) => found.push(self.problem(matcher.span().start, &format!("{}.matcher", group.key), why)),
            }
        }
        let items = match hooks.as_ref().map(Spanned::get_ref) {
            Some(DeValue::Array(items)) if !items.is_empty() => items.iter().take(MAX_ENTRIES + 1).collect(),
            _ => {
                let at = hooks.as_ref().map_or(offset, |hooks| hooks.span().start);
                let message = format!("names no hook; write `[[hooks.{}.hooks]]` below it", event.as_str());
                found.push(self.problem(at, &format!("{}.hooks", group.key), message));
                Vec::new()
            }
        };
        let broken = first(&found);
        file.problems.extend(found);
        if let (Some(problem), true) = (&broken, items.is_empty()) {
            file.hooks.push(group.itself(problem.clone()));
        }
        for (index, item) in items.into_iter().enumerate() {
            if file.hooks.len() > MAX_ENTRIES {
                return;
            }
            let hook = self.hook(item, index, &group, file);
            file.hooks.push(match &broken {
                Some(problem) => HookItem { entry: Err(problem.clone()), ..hook },
                None => hook,
            });
        }
    }

    fn hook(&self, value: &Spanned<DeValue<'_>>, index: usize, group: &Group, file: &mut LayerFile) -> HookItem {
        let (key, offset) = (format!("{}.hooks[{index}]", group.key), value.span().start);
        let name = format!("{}.{}", group.name, index + 1);
        let DeValue::Table(table) = value.get_ref() else {
            let problem = self.problem(offset, &key, "must be a table");
            file.problems.push(problem.clone());
            return group.item(name, key, Err(problem));
        };
        let name = own_name(table).unwrap_or(name);
        let (entry, found) = match self.read::<HookTable>(table, &HOOK, &key) {
            Ok(hook) => {
                let faults = hook.faults(group.event);
                (Some(hook), self.placed(faults, &key, offset, &file.lines))
            }
            Err(problems) => (None, lined(problems, file.lines.get(&key).copied())),
        };
        let entry = match (first(&found), entry) {
            (None, Some(hook)) => Ok(Box::new(hook)),
            (Some(problem), _) => Err(problem),
            (None, None) => Err(self.problem(offset, &key, "cannot be read")),
        };
        file.problems.extend(found);
        group.item(name, key, entry)
    }
}

/// What all hooks of a group have in common.
struct Group {
    name: String,
    key: String,
    event: HookEvent,
    matcher: Option<String>,
    matches: HookMatcher,
}

impl Group {
    fn item(&self, name: String, key: String, entry: Result<Box<HookTable>, Problem>) -> HookItem {
        let (matcher, matches) = (self.matcher.clone(), self.matches.clone());
        HookItem { name, key, event: self.event, matcher, matches, entry }
    }

    /// A hook in the place of a group that has none.
    fn itself(&self, problem: Problem) -> HookItem {
        self.item(self.name.clone(), self.key.clone(), Err(problem))
    }
}

/// What is missing has no line of its own: that of the entry tells where.
fn lined(problems: Vec<Problem>, line: Option<usize>) -> Vec<Problem> {
    problems.into_iter().map(|problem| Problem { line: problem.line.or(line), ..problem }).collect()
}

fn own_name(table: &DeTable<'_>) -> Option<String> {
    let name = table.get("name").and_then(|value| value.get_ref().as_str());
    name.filter(|name| is_policy_name(name)).map(str::to_owned)
}

/// R1: every layer's hooks, the most trusted layer's first, in each file's order. What is wrong with a program is a problem.
pub(crate) fn resolve(
    layers: &[&Layer],
    sources: &[requirements::Source],
    path: Option<&OsStr>,
    problems: &mut Vec<Problem>,
) -> Vec<HookEntry> {
    let mut digests = Digests::default();
    let items = layers.iter().flat_map(|layer| layer.file.hooks.iter().map(move |item| (*layer, item)));
    let entry = |(layer, item): (&Layer, &HookItem)| {
        let line = layer.file.lines.get(&item.key).copied();
        let table = item.entry.as_ref().ok();
        let words = table.and_then(|table| table.command.words().ok()).unwrap_or_default();
        let program = match &item.entry {
            Err(problem) => Err(problem.to_string()),
            Ok(_) => may_run(layer, sources).and_then(|()| find(layer, &words, path, &mut digests)).map_err(|why| {
                let problem = Problem::at(&layer.reference, line, &format!("{}.command", item.key), why);
                problems.push(problem.clone());
                problem.to_string()
            }),
        };
        let own = table.and_then(|table| table.on_failure).unwrap_or_default();
        let strict = requirements::failures_deny(&layer.definer, sources);
        let place = words.first().filter(|program| program.contains('/'));
        HookEntry {
            place: place.and_then(|program| whole(&layer.folder.join(program)).ok()),
            name: item.name.clone(),
            layer: layer.reference.clone(),
            key: item.key.clone(),
            line,
            event: item.event,
            matcher: item.matcher.clone(),
            matches: item.matches.clone(),
            command: words,
            timeout: table
                .and_then(|table| table.timeout)
                .map_or(DEFAULT_HOOK_TIMEOUT, |seconds| Duration::from_secs(seconds.into())),
            on_failure: if strict { HookFailureMeans::Block } else { own },
            cwd: layer.cwd.clone(),
            program,
            may_allow: layer.may_allow,
        }
    };
    items.map(entry).collect()
}

/// Whether the hooks of a layer are run at all; they stay in their place either way.
fn may_run(layer: &Layer, sources: &[requirements::Source]) -> Result<(), String> {
    if let Some(why) = requirements::refused_hooks(&layer.definer, sources) {
        return Err(why);
    }
    match layer.defines {
        true => Ok(()),
        false => Err("is not run: the project is not what was trusted (R7); see `portcullis trust`".to_owned()),
    }
}

/// Finds the program of a hook or of a reviewer, and what must stay as it is.
pub(super) fn find(
    layer: &Layer,
    words: &[String],
    path: Option<&OsStr>,
    digests: &mut Digests,
) -> Result<HookFile, String> {
    let command = words.first().map(String::as_str).unwrap_or_default();
    let found = find_executable(command, &layer.folder, path)?;
    let program = whole(&found)?;
    let mut bound = BTreeMap::new();
    if let Some(pins) = &layer.pins {
        let named = trust::named_files(words.iter().skip(1).map(String::as_str), &layer.cwd);
        let own = named.chain([program.clone()]).filter_map(|file| pins.get_key_value(&file));
        bound.extend(own.map(|(file, digest)| (file.clone(), *digest)));
    }
    let named = || shown(&program.display().to_string(), 300);
    let projects = layer.definer.kind() == LayerKind::Project;
    let inside = |file: &Path| file.starts_with(&layer.cwd);
    let is_inside = projects && (inside(&program) || program.canonicalize().is_ok_and(|real| inside(&real)));
    // A name on PATH is looked up when the configuration is read: what it leads to in the project was not shown.
    if layer.pins.is_some() && is_inside && !bound.contains_key(&program) {
        return Err(format!("`{}` lies in the project and is not bound by its trust; name it by its path", named()));
    }
    let meta = program.metadata().map_err(|error| format!("`{}` cannot be read: {error}", named()))?;
    let large = meta.len() > MAX_BOUND;
    let roots = !is_inside && trust::is_roots_own(&program, &meta);
    if large && projects && !roots {
        return Err(format!("`{}` has more than {MAX_BOUND} bytes and cannot be bound (R7)", named()));
    }
    let digest = if large { None } else { Some(digests.of(&program)?) };
    if let Some(digest) = digest.filter(|_| !roots) {
        bound.entry(program.clone()).or_insert(Some(digest));
    }
    Ok(HookFile { path: program, digest, bound })
}

/// An absolute path without `.` and `..`, as trust spells it.
pub(super) fn whole(path: &Path) -> Result<PathBuf, String> {
    let absolute = std::path::absolute(path).map_err(|error| format!("has no whole path: {error}"))?;
    Ok(trust::lexical(&absolute))
}

/// Digests of programs, each made once: several hooks often have the same.
#[derive(Default)]
pub(super) struct Digests(BTreeMap<PathBuf, Result<Digest, String>>);

impl Digests {
    fn of(&mut self, program: &Path) -> Result<Digest, String> {
        let read = || match trust::digest_of(program) {
            Ok(digest) => digest.ok_or_else(|| "went away while it was read".to_owned()),
            Err(error) => Err(explained(&error)),
        };
        self.0.entry(program.to_owned()).or_insert_with(read).clone()
    }
}
