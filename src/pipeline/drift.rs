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
use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use similar::TextDiff;

use super::bind::noted::Stated;
use super::bind::prepare::Prepared;
use super::eyes::Eyes;
use crate::model::caller::TenantId;
use crate::model::digest::Digest;
use crate::model::name::ToolRef;
use crate::model::text;
use crate::model::tool::{CatalogTool, Hints, ToolDefinition};
use crate::model::verdict::Remember;
use crate::model::verdict::{MAX_REASON, Reason, RuleId};
use crate::ports::reviewer::{Question, Reply, Reviewer};
use crate::ports::state::{MAX_PINS, Pin, StateFailed};

/// The rule by which a person is asked.
pub const RULE: &str = "definition-changed";
/// The most lines of changes that a question shows.
pub const MAX_LINES: usize = 200;
/// The most characters of one line; a longer one goes on in the next.
const WIDTH: usize = 160;
/// The most lines of one definition that are compared; the time of a comparison grows with their square.
const MAX_COMPARED: usize = 2_000;
/// The most other tools of a server that are looked at for one question; the rest is asked about when it is called.
const MAX_OTHERS: usize = 64;
/// The members of a definition that a reason may name. Any other name is the server's own word, and no sanitiser has seen it.
const MEMBERS: [&str; 9] =
    ["title", "description", "inputSchema", "outputSchema", "annotations", "execution", "icons", "_meta", "name"];

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
        let others = eyes.others(tool);
        let pinned = stated.pinned(others.iter().map(|other| other.reference()).collect()).await?;
        let differ = others.into_iter().zip(pinned).filter_map(|(other, pin)| Some((other, pin?)));
        let others: Vec<_> = differ.filter(|(other, pin)| pin.digest != other.definition.digest()).collect();

        let mut told = Told::default();
        told.called(eyes, tool, &before).await;
        for (other, before) in others.iter().take(MAX_OTHERS) {
            if told.full {
                break;
            }
            // What is hidden from this caller is not there, and so has not changed either (R25).
            if !eyes.hides(other).await {
                told.other(eyes, other, before).await;
            }
        }
        let before = ToolDefinition::parse(&before.definition).ok();
        let reason = Reason { rule: RuleId::parse(RULE), text: sentence(tool, before.as_ref(), told.others) };
        Ok(Self { accepts: told.accepts.into(), reason: Some(reason), lines: told.lines.into() })
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
        out.push_str(&format!(" ({})", differing(before.value(), tool.definition.value()).join(", ")));
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

fn differing(was: &Map<String, Value>, is: &Map<String, Value>) -> Vec<String> {
    let keys: BTreeSet<&str> = was.keys().chain(is.keys()).map(String::as_str).collect();
    let differ = keys.into_iter().filter(|key| was.get(*key) != is.get(*key));
    let (known, other): (Vec<&str>, Vec<&str>) = differ.partition(|key| MEMBERS.contains(key));
    let known = known.into_iter().map(|key| format!("`{key}`"));
    known.chain((!other.is_empty()).then(|| "something of the server's own".to_owned())).collect()
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

/// What a question tells, at most [`MAX_LINES`] and one that says how many more there are.
#[derive(Default)]
struct Told {
    lines: Vec<String>,
    accepts: Vec<(ToolRef, Pin)>,
    others: usize,
    full: bool,
}

impl Told {
    /// Adds what changed of the tool that is called.
    async fn called(&mut self, eyes: &Eyes, tool: &CatalogTool, before: &Pin) {
        match changes(eyes, tool, before).await {
            Some(lines) => self.add(tool, lines),
            None => {
                let name = text::shown(&tool.reference().to_string(), WIDTH);
                self.lines.push(format!(
                    "{name}: what changed is too much or may not be shown; it is asked about every time"
                ));
            }
        }
    }

    /// Adds what changed of another tool of its server, if that can be shown.
    async fn other(&mut self, eyes: &Eyes, tool: &CatalogTool, before: &Pin) {
        if let Some(lines) = changes(eyes, tool, before).await {
            self.others += 1;
            self.add(tool, lines);
        }
    }

    fn add(&mut self, tool: &CatalogTool, lines: Vec<String>) {
        let room = MAX_LINES.saturating_sub(self.lines.len() + 1);
        let left = lines.len().saturating_sub(room);
        self.lines.push(text::shown(&tool.reference().to_string(), WIDTH));
        self.lines.extend(lines.into_iter().take(room));
        self.full = left > 0 || self.lines.len() >= MAX_LINES;
        if left > 0 {
            self.lines.push(format!("… {left} more lines; what is not shown whole is asked about again"));
        } else {
            self.accepts.push((tool.reference(), pin(tool)));
        }
    }
}

/// What changed of a tool; none where nothing of it may be shown, or it is too much to compare.
async fn changes(eyes: &Eyes, tool: &CatalogTool, before: &Pin) -> Option<Vec<String>> {
    let before = Arc::new(ToolDefinition::parse(&before.definition).ok()?);
    // Both without paths in the place of files: a person is shown what the server says.
    let was = CatalogTool { definition: before, files: None, ..tool.clone() };
    let is = CatalogTool { files: None, ..tool.clone() };
    let (was, is) = (eyes.look_at(&was).await.ok()?, eyes.look_at(&is).await.ok()?);
    diff(was.value(), is.value()).filter(|lines| !lines.is_empty())
}

/// The lines that differ, with one on each side of them; none for what is too long to compare. Keys are sorted: their order
/// means nothing.
fn diff(was: &Map<String, Value>, is: &Map<String, Value>) -> Option<Vec<String>> {
    let (was, is) = (readable(was)?, readable(is)?);
    let diff = TextDiff::from_lines(&was, &is);
    let mut unified = diff.unified_diff();
    let unified = unified.context_radius(1).missing_newline_hint(false).to_string();
    // The places are of a text that nobody has.
    let lines = unified.lines().filter(|line| !line.starts_with("@@"));
    Some(lines.map(|line| text::shown(line, WIDTH + 1)).collect())
}

/// A definition on at most [`MAX_COMPARED`] lines of at most [`WIDTH`] characters, none if it has more.
fn readable(definition: &Map<String, Value>) -> Option<String> {
    let mut value = Value::Object(definition.clone());
    value.sort_all_objects();
    let mut pretty = Bounded(Vec::new());
    serde_json::to_writer_pretty(&mut pretty, &value).ok()?;
    let text = String::from_utf8(pretty.0).ok()?;
    let (mut out, mut lines) = (String::with_capacity(text.len() + 1), 0);
    for line in text.lines() {
        let mut rest = line;
        while let Some((at, _)) = rest.char_indices().nth(WIDTH) {
            let (piece, more) = rest.split_at(at);
            out.push_str(piece);
            out.push('\n');
            (rest, lines) = (more, lines + 1);
        }
        out.push_str(rest);
        out.push('\n');
        lines += 1;
    }
    (lines <= MAX_COMPARED).then_some(out)
}

/// Takes as many bytes as [`MAX_COMPARED`] full lines may have: what is deep has far more on its lines than in its own text.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len().saturating_add(bytes.len()) > MAX_COMPARED * WIDTH * 4 {
            return Err(io::Error::other("too long to compare"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
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

    fn widest(&self) -> Remember {
        self.inner.widest()
    }
}

#[cfg(test)]
#[path = "drift_tests.rs"]
mod tests;
