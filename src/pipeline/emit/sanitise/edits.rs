//! From an edit script to what is left of an answer (R29, R30).
//!
//! All positions of a script refer to the targets as the component saw them, and all are checked before anything is edited.
//! Edits only remove: what stands in the place of a run is the host's word. Runs that overlap, or leave fewer than
//! [`APART`] bytes between them, are one run. A drop beats spans of the same target, the drop of a key what is inside its value.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use serde_json::{Map, Value};

use super::targets::{Found, Origin};
use crate::model::json::push_pointer;
use crate::ports::sanitiser::{Class, Edit};

/// What is kept between two runs has at least this many bytes.
pub(super) const APART: usize = 16;
/// The most edits of one component.
pub(super) const MAX_EDITS: usize = 65_536;

/// Why a script cannot be applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadEdit {
    /// Too many.
    #[error("more than {MAX_EDITS} edits")]
    TooMany,
    /// There is no such target.
    #[error("there is no target {0}")]
    Target(u32),
    /// The span does not lie in its target on character boundaries.
    #[error("the span {1} to {2} of target {0} is out of range or not on character boundaries")]
    Span(u32, u32, u32),
}

/// What is removed of one text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Removal {
    dropped: Option<Class>,
    runs: Vec<(Range<usize>, Class)>,
}

/// What is removed of an answer, by pointer as [`crate::ports::sanitiser::Target`] spells it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Removals(HashMap<String, Removal>);

impl Removals {
    /// Whether nothing is removed: edits of nothing are none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether something is removed at or below one of these pointers.
    pub(super) fn touch(&self, pointer: &str) -> bool {
        self.0.keys().any(|at| {
            let at = at.strip_prefix("key:").unwrap_or(at);
            at.strip_prefix(pointer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }

    /// Whether a key goes or changes.
    pub(super) fn touch_keys(&self) -> bool {
        self.0.keys().any(|at| at.starts_with("key:"))
    }
}

/// Checks a script against what the component saw, and returns what it removes.
pub(super) fn resolve(found: &Found, edits: &[Edit]) -> Result<Removals, BadEdit> {
    if edits.len() > MAX_EDITS {
        return Err(BadEdit::TooMany);
    }
    let mut removals = Removals::default();
    for edit in edits {
        let (index, start, end, class) = match *edit {
            Edit::Replace { target, start, end, class } => (target, start, Some(end), class),
            Edit::Truncate { target, keep } => (target, keep, None, Class::Other),
            Edit::Drop { target } => {
                dropped(found, target as usize, &mut removals).ok_or(BadEdit::Target(target))?;
                continue;
            }
        };
        let target = found.targets.get(index as usize).ok_or(BadEdit::Target(index))?;
        let (from, to) = (start as usize, end.map_or(target.text.len(), |end| end as usize));
        if target.text.get(from..to).is_none() {
            return Err(BadEdit::Span(index, start, end.unwrap_or(start)));
        }
        if from < to {
            removed(found, index as usize, from..to, class, &mut removals);
        }
    }
    Ok(removals)
}

/// A whole target goes. `None`: there is no such target.
fn dropped(found: &Found, index: usize, removals: &mut Removals) -> Option<()> {
    let (target, origin) = (found.targets.get(index)?, found.origins.get(index)?);
    match origin {
        Origin::Text | Origin::Number | Origin::Key => {
            let removal = removals.0.entry(target.pointer.clone()).or_default();
            removal.dropped = heavier(removal.dropped, Class::Other);
        }
        Origin::Joined(segments) => {
            for (_, block) in segments {
                dropped(found, *block, removals)?;
            }
        }
        Origin::Decoded { of, at } => removed(found, *of, at.clone(), Class::Other, removals),
    }
    Some(())
}

/// A span that is not empty goes from a target that is there.
fn removed(found: &Found, index: usize, span: Range<usize>, class: Class, removals: &mut Removals) {
    let (Some(target), Some(origin)) = (found.targets.get(index), found.origins.get(index)) else { return };
    match origin {
        Origin::Text | Origin::Key => {
            removals.0.entry(target.pointer.clone()).or_default().runs.push((span, class));
        }
        Origin::Number => {
            // Part of a number is another number.
            let removal = removals.0.entry(target.pointer.clone()).or_default();
            removal.dropped = heavier(removal.dropped, class);
        }
        Origin::Joined(segments) => {
            for (segment, block) in segments {
                let (start, end) = (span.start.max(segment.start), span.end.min(segment.end));
                if start < end {
                    removed(found, *block, start - segment.start..end - segment.start, class, removals);
                }
            }
        }
        // The bytes of an escape are no place for a span of what it says: the whole string goes.
        Origin::Decoded { of, at } => removed(found, *of, at.clone(), class, removals),
    }
}

fn heavier(one: Option<Class>, other: Class) -> Option<Class> {
    Some(one.map_or(other, |class| class.min(other)))
}

/// Returns what is left of an answer.
pub(super) fn apply(root: Map<String, Value>, removals: &Removals) -> Map<String, Value> {
    object(root, removals, &mut String::new())
}

fn object(members: Map<String, Value>, removals: &Removals, at: &mut String) -> Map<String, Value> {
    // Keys that stay as they are have their names first: no edited one takes the place of another's value.
    let mut taken = HashSet::new();
    let mut rows = Vec::with_capacity(members.len());
    for (key, value) in members {
        let back = at.len();
        push_pointer(at, &key);
        let removal = removals.0.get(&format!("key:{at}"));
        if removal.is_none_or(|removal| removal.dropped.is_none()) {
            if removal.is_none() {
                taken.insert(key.clone());
            }
            let left = left(value, removals, at);
            rows.push((key, removal, left));
        }
        at.truncate(back);
    }
    let mut out = Map::with_capacity(rows.len());
    let mut numbers: HashMap<String, usize> = HashMap::new();
    for (key, removal, value) in rows {
        let key = match removal {
            None => key,
            Some(removal) => unlike(removal.left(&key), &mut taken, &mut numbers),
        };
        out.insert(key, value);
    }
    out
}

/// Keys of which the same is left are told apart by a number in their placeholder.
fn unlike(key: String, taken: &mut HashSet<String>, numbers: &mut HashMap<String, usize>) -> String {
    if taken.insert(key.clone()) {
        return key;
    }
    let end = key.rfind(']').unwrap_or(key.len());
    let (before, after) = key.split_at_checked(end).unwrap_or((&key, ""));
    let number = numbers.entry(key.clone()).or_insert(1);
    loop {
        *number += 1;
        let next = format!("{before} {number}{after}");
        if taken.insert(next.clone()) {
            return next;
        }
    }
}

fn left(value: Value, removals: &Removals, at: &mut String) -> Value {
    match value {
        Value::Null | Value::Bool(_) => value,
        Value::Number(_) => match removals.0.get(at.as_str()) {
            Some(removal) => Value::String(removal.left("")),
            None => value,
        },
        Value::String(text) => match removals.0.get(at.as_str()) {
            Some(removal) => Value::String(removal.left(&text)),
            None => Value::String(text),
        },
        Value::Array(items) => {
            let mut out = Vec::with_capacity(items.len());
            for (index, item) in items.into_iter().enumerate() {
                let back = at.len();
                push_pointer(at, &index.to_string());
                out.push(left(item, removals, at));
                at.truncate(back);
            }
            Value::Array(out)
        }
        Value::Object(members) => Value::Object(object(members, removals, at)),
    }
}

impl Removal {
    /// Returns what is left of a text.
    fn left(&self, text: &str) -> String {
        if let Some(class) = self.dropped {
            let class = self.runs.iter().fold(class, |class, run| class.min(run.1));
            return class.placeholder().to_owned();
        }
        let mut out = String::with_capacity(text.len());
        let mut from = 0;
        for (run, class) in merged(self.runs.iter().cloned().chain(placeholders(text)).collect()) {
            out.push_str(text.get(from..run.start).unwrap_or_default());
            out.push_str(class.placeholder());
            from = run.end;
        }
        out.push_str(text.get(from..).unwrap_or_default());
        out
    }
}

/// Runs of an earlier component: what is left between them and new ones counts, too. Those of keys may have a number
/// ([`unlike`]).
fn placeholders(text: &str) -> impl Iterator<Item = (Range<usize>, Class)> {
    Class::ALL.into_iter().flat_map(move |class| {
        let head = class.placeholder().trim_end_matches(']');
        text.match_indices(head).filter_map(move |(at, _)| {
            let rest = text.get(at + head.len()..)?;
            let number =
                rest.strip_prefix(' ').map_or(rest, |number| number.trim_start_matches(|c: char| c.is_ascii_digit()));
            let end = text.len() - number.strip_prefix(']')?.len();
            Some((at..end, class))
        })
    })
}

/// Returns the runs in order, those that are too close to each other as one.
fn merged(mut runs: Vec<(Range<usize>, Class)>) -> Vec<(Range<usize>, Class)> {
    runs.sort_by_key(|(run, class)| (run.start, run.end, *class));
    let mut out: Vec<(Range<usize>, Class)> = Vec::with_capacity(runs.len());
    for (run, class) in runs {
        match out.last_mut() {
            Some((last, of)) if run.start < last.end.saturating_add(APART) => {
                last.end = last.end.max(run.end);
                *of = (*of).min(class);
            }
            _ => out.push((run, class)),
        }
    }
    out
}
