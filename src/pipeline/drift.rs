//! What a tool's definition is to the one that its tenant has accepted (R24).
//!
//! A definition is accepted by the first call that may run under it, right before its hand-over, and kept as a pin: over restarts, and while its
//! server lists the tool no more. Where the definition is another one by the time of a call, a person is asked and shown what
//! changed; agreeing accepts all changes of that server that the question showed whole, and no other. An agreement that was
//! remembered is of no use by then: it is for the definition that it was given for.
//!
//! What is compared is the server's own definition; what is shown of it passes the sanitisers (R31). A change that they
//! leave nothing of is asked about every time.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::Value;
use similar::TextDiff;

use super::bind::noted::Stated;
use super::bind::prepare::Prepared;
use super::eyes::Eyes;
use crate::model::caller::TenantId;
use crate::model::digest::Digest;
use crate::model::name::ToolRef;
use crate::model::text;
use crate::model::tool::{CatalogTool, Hints, ToolDefinition};
use crate::model::verdict::{MAX_REASON, Reason, RuleId};
use crate::ports::reviewer::{Question, Reply, Reviewer};
use crate::ports::state::{MAX_PINS, Pin, StateFailed};

/// The rule by which a person is asked.
pub const RULE: &str = "definition-changed";
/// The most lines of changes that a question shows.
pub const MAX_LINES: usize = 200;
/// The most characters of one line; a longer one goes on in the next.
const WIDTH: usize = 160;
/// The most members and tools that a reason names.
const NAMED: usize = 8;

/// The definitions that are known to be accepted, so that most calls need not read the state.
#[derive(Default)]
pub struct Accepted(Mutex<HashMap<(TenantId, ToolRef), Digest>>);

impl Accepted {
    fn has(&self, tenant: &TenantId, tool: &CatalogTool) -> bool {
        let key = (tenant.clone(), tool.reference());
        self.0.lock().get(&key) == Some(&tool.definition.digest())
    }

    /// Notes what was accepted.
    pub(super) fn note(&self, tenant: &TenantId, pins: &[(ToolRef, Pin)]) {
        let mut known = self.0.lock();
        if known.len().saturating_add(pins.len()) > MAX_PINS {
            known.clear();
        }
        known.extend(pins.iter().map(|(tool, pin)| ((tenant.clone(), tool.clone()), pin.digest)));
    }
}

/// What a call's hand-over accepts, and why somebody has to agree first.
#[derive(Default)]
pub(super) struct Drift {
    /// What is pinned once the call is handed over.
    pub(super) accepts: Arc<[(ToolRef, Pin)]>,
    /// Why a person is asked; none for a tool of which nothing was accepted before, or just this.
    pub(super) reason: Option<Reason>,
    /// What changed, line by line, fit to be shown.
    pub(super) lines: Arc<[String]>,
}

impl Drift {
    /// Compares a call's tool with what was accepted, and the other tools of its server if it is another.
    pub(super) async fn of(
        accepted: &Accepted,
        eyes: &Eyes,
        stated: &Stated,
        prepared: &Prepared,
    ) -> Result<Self, StateFailed> {
        let tool = prepared.tool();
        if accepted.has(&stated.caller().tenant, tool) {
            return Ok(Self::default());
        }
        let digest = tool.definition.digest();
        let before = match stated.pinned(vec![tool.reference()]).await?.pop().flatten() {
            None => return Ok(Self { accepts: [(tool.reference(), pin(tool))].into(), ..Self::default() }),
            Some(pin) if pin.digest == digest => {
                accepted.note(&stated.caller().tenant, &[(tool.reference(), pin)]);
                return Ok(Self::default());
            }
            Some(pin) => pin,
        };
        let mut changed = vec![(Arc::clone(tool), before)];
        let others = eyes.others(tool);
        let pinned = stated.pinned(others.iter().map(|other| other.reference()).collect()).await?;
        let differ = others.into_iter().zip(pinned).filter_map(|(other, pin)| Some((other, pin?)));
        changed.extend(differ.filter(|(other, pin)| pin.digest != other.definition.digest()));

        let mut told = Told::default();
        let mut accepts = Vec::new();
        for (tool, before) in &changed {
            if told.change(eyes, tool, before).await {
                accepts.push((tool.reference(), pin(tool)));
            }
        }
        let before = changed.first().and_then(|(_, before)| ToolDefinition::parse(&before.definition).ok());
        let reason = Reason { rule: RuleId::parse(RULE), text: sentence(tool, before.as_ref(), changed.len() - 1) };
        Ok(Self { accepts: accepts.into(), reason: Some(reason), lines: told.lines.into() })
    }

    /// A reviewer whose questions show what changed.
    pub(super) fn telling(&self, inner: Arc<dyn Reviewer>) -> Arc<dyn Reviewer> {
        if self.reason.is_none() {
            return inner;
        }
        Arc::new(Telling { lines: Arc::clone(&self.lines), inner })
    }
}

fn pin(tool: &CatalogTool) -> Pin {
    Pin { digest: tool.definition.digest(), definition: Arc::clone(tool.definition.verbatim()) }
}

/// What happened, in a sentence: the members that differ, the hints that relax, and how many tools of the server besides.
fn sentence(tool: &CatalogTool, before: Option<&ToolDefinition>, others: usize) -> String {
    let mut out = "the tool's definition changed since it was accepted".to_owned();
    if let Some(before) = before {
        let (was, is) = (before.value(), tool.definition.value());
        let keys: BTreeSet<&String> = was.keys().chain(is.keys()).filter(|key| was.get(*key) != is.get(*key)).collect();
        let named: Vec<String> = keys.iter().take(NAMED).map(|key| format!("`{}`", text::shown(key, 40))).collect();
        let more = if keys.len() > NAMED { " and more" } else { "" };
        out.push_str(&format!(" ({}{more})", named.join(", ")));
        let relaxed = relaxed(before.hints(), tool.definition.hints());
        if !relaxed.is_empty() {
            out.push_str(&format!("; hints that relax: {}", relaxed.join(", ")));
        }
    }
    match others {
        0 => {}
        1 => out.push_str("; 1 other tool of its server changed too"),
        others => out.push_str(&format!("; {others} other tools of its server changed too")),
    }
    text::prefix(&out, MAX_REASON).to_owned()
}

/// The hints that say less danger than before.
fn relaxed(was: Hints, is: Hints) -> Vec<&'static str> {
    let rows = [
        (was.read_only != Some(true) && is.read_only == Some(true), "it says that it only reads"),
        (was.destructive != Some(false) && is.destructive == Some(false), "it says that it destroys nothing"),
        (was.idempotent != Some(true) && is.idempotent == Some(true), "it says that it may be repeated"),
        (was.open_world != Some(false) && is.open_world == Some(false), "it says that it stays inside"),
    ];
    rows.into_iter().filter(|(relaxed, _)| *relaxed).map(|(_, words)| words).collect()
}

/// The lines of a question.
#[derive(Default)]
struct Told {
    lines: Vec<String>,
    full: bool,
}

impl Told {
    /// Adds what changed of one tool; tells whether it is there whole.
    async fn change(&mut self, eyes: &Eyes, tool: &CatalogTool, before: &Pin) -> bool {
        if self.full {
            return false;
        }
        let name = text::shown(&tool.reference().to_string(), WIDTH);
        let seen = async {
            let before = Arc::new(ToolDefinition::parse(&before.definition).ok()?);
            // Both without paths in the place of files: a person is shown what the server says.
            let (was, is) = (
                CatalogTool { definition: before, files: None, ..tool.clone() },
                CatalogTool { files: None, ..tool.clone() },
            );
            Some((eyes.look_at(&was).await.ok()?, eyes.look_at(&is).await.ok()?))
        };
        let lines = match seen.await {
            Some((was, is)) => diff(was.value(), is.value()),
            None => Vec::new(),
        };
        if lines.is_empty() {
            self.lines.push(format!("{name}: what changed may not be shown, so it is asked about every time"));
            return false;
        }
        let room = MAX_LINES.saturating_sub(self.lines.len() + 1);
        self.full = lines.len() > room;
        self.lines.push(name);
        let left = lines.len().saturating_sub(room);
        self.lines.extend(lines.into_iter().take(room));
        if self.full {
            self.lines.push(format!("… {left} more lines; what is not shown whole is asked about again"));
        }
        !self.full
    }
}

/// The lines that differ, with one on each side of them. Keys are sorted: their order means nothing.
fn diff(was: &serde_json::Map<String, Value>, is: &serde_json::Map<String, Value>) -> Vec<String> {
    let (was, is) = (readable(was), readable(is));
    let diff = TextDiff::from_lines(&was, &is);
    let mut unified = diff.unified_diff();
    let unified = unified.context_radius(1).missing_newline_hint(false).to_string();
    // The places are of a text that nobody has.
    unified.lines().filter(|line| !line.starts_with("@@")).map(|line| text::shown(line, WIDTH + 1)).collect()
}

fn readable(definition: &serde_json::Map<String, Value>) -> String {
    let mut value = Value::Object(definition.clone());
    value.sort_all_objects();
    let text = serde_json::to_string_pretty(&value).unwrap_or_default();
    let mut out = String::with_capacity(text.len() + 1);
    for line in text.lines() {
        let mut rest = line;
        while let Some((at, _)) = rest.char_indices().nth(WIDTH) {
            let (piece, more) = rest.split_at(at);
            out.push_str(piece);
            out.push('\n');
            rest = more;
        }
        out.push_str(rest);
        out.push('\n');
    }
    out
}

struct Telling {
    lines: Arc<[String]>,
    inner: Arc<dyn Reviewer>,
}

#[async_trait]
impl Reviewer for Telling {
    async fn ask(&self, question: &Question) -> Reply {
        self.inner.ask(&Question { changes: Arc::clone(&self.lines), ..question.clone() }).await
    }
}

#[cfg(test)]
#[path = "drift_tests.rs"]
mod tests;
