//! The sanitisers of all layers over one answer, from the most trusted layer to the least.
//!
//! Each sees the edited answer of the one before, so that none sees what a more trusted one removed. If a less trusted layer
//! edited, those more trusted than it look at what is left once more, and what they edit then counts, too (R30). One that
//! withholds or fails ends it: nothing is shown. Observed ones are not asked here; what they would have seen is kept (R16).

use std::sync::Arc;

use serde_json::{Map, Value};

use super::edits::{self, Removals};
use super::targets::{self, Beyond, Found, Shape};
use crate::model::caller::Caller;
use crate::model::cleaning::SanitiserVoice;
use crate::model::layer::LayerRef;
use crate::model::name::ToolRef;
use crate::model::outcome::Origin;
use crate::model::tool::ServerIdentity;
use crate::model::verdict::{Fault, FaultCode, Label, RuleId};
use crate::ports::approval::{Bound, Kind, PolicySet};
use crate::ports::sanitiser::{OutputFacts, Sanitised, SanitiserComponent, Verdict};

/// A sanitiser as a layer configured it.
pub type Sanitiser = Bound<dyn SanitiserComponent>;

/// What sanitisers may know besides the texts.
#[derive(Debug, Clone)]
pub struct About {
    /// What was called.
    pub kind: Kind,
    /// Raw server and tool.
    pub tool: ToolRef,
    /// What the server is.
    pub identity: ServerIdentity,
    /// Who called.
    pub caller: Caller,
    /// The labels of the caller's principal.
    pub labels: Arc<[Label]>,
    /// Milliseconds since the Unix epoch.
    pub now_ms: u64,
}

/// What is looked at, and what was removed of it so far.
pub(super) struct Document {
    pub(super) root: Map<String, Value>,
    pub(super) shape: Shape,
    /// The text that is shown as long as nothing is edited.
    pub(super) spelled: Option<Arc<str>>,
    pub(super) is_error: bool,
    /// What was removed, a set for each component that removed something.
    pub(super) removed: Vec<Removals>,
}

impl Document {
    pub(super) fn new(root: Map<String, Value>, shape: Shape, spelled: Option<Arc<str>>) -> Self {
        Self { root, shape, spelled, is_error: false, removed: Vec::new() }
    }

    pub(super) fn is_edited(&self) -> bool {
        !self.removed.is_empty()
    }
}

/// Why nothing is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Withheld {
    pub(super) origin: Origin,
    /// For people and records only.
    pub(super) why: String,
    /// Whether a component failed, which it may not do the next time.
    pub(super) fault: bool,
}

/// What came of it.
#[derive(Default)]
pub(super) struct Swept {
    pub(super) voices: Vec<SanitiserVoice>,
    pub(super) labels: Vec<Label>,
    pub(super) withheld: Option<Withheld>,
    /// Who edited, one for each of the document's removals.
    pub(super) editors: Vec<Origin>,
    pub(super) observers: Vec<(Sanitiser, Arc<OutputFacts>)>,
}

/// Returns the sanitisers that match, most trusted layer first.
pub(super) fn matching<'p>(policies: &'p PolicySet, about: &About) -> Vec<&'p Sanitiser> {
    let matches = |of: &&Sanitiser| of.matches.matches(about.kind, &about.tool, about.identity);
    policies.sanitisers.iter().filter(matches).collect()
}

/// Runs them.
pub(super) async fn sweep(sanitisers: &[&Sanitiser], about: &About, document: &mut Document) -> Swept {
    let mut sweep = Sweep { about, document, seen: None, swept: Swept::default() };
    let mut editors: Vec<&LayerRef> = Vec::new();
    for sanitiser in sanitisers {
        if sanitiser.observe {
            if let Ok(seen) = sweep.seen() {
                let facts = Arc::clone(&seen.facts);
                sweep.swept.observers.push(((*sanitiser).clone(), facts));
            }
            continue;
        }
        match sweep.ask(sanitiser, false).await {
            Ok(true) => editors.push(&sanitiser.source.layer),
            Ok(false) => {}
            Err(Stopped) => return sweep.swept,
        }
    }
    for sanitiser in sanitisers.iter().filter(|sanitiser| !sanitiser.observe) {
        let below = |editor: &&LayerRef| !editor.is_at_least_as_trusted_as(&sanitiser.source.layer);
        if editors.iter().any(below) && sweep.ask(sanitiser, true).await.is_err() {
            break;
        }
    }
    sweep.swept
}

/// Nothing will be shown.
struct Stopped;

/// The answer as the next component sees it.
struct Seen {
    found: Found,
    facts: Arc<OutputFacts>,
}

struct Sweep<'a> {
    about: &'a About,
    document: &'a mut Document,
    /// Kept until something is edited.
    seen: Option<Arc<Seen>>,
    swept: Swept,
}

impl Sweep<'_> {
    /// Asks one, and applies what it says. Tells whether something was edited.
    async fn ask(&mut self, sanitiser: &Sanitiser, again: bool) -> Result<bool, Stopped> {
        let source = &sanitiser.source;
        let component = source.component.to_string();
        let withheld = |component: String, rule: Option<RuleId>, why: String| Withheld {
            origin: Origin { layer: source.layer.clone(), component, rule },
            why,
            fault: false,
        };
        let seen = match self.seen() {
            Ok(seen) => seen,
            Err(beyond) => {
                self.swept.withheld = Some(withheld("host".to_owned(), None, beyond.to_string()));
                return Err(Stopped);
            }
        };
        let mut said = match &sanitiser.component {
            Ok(loaded) => loaded.sanitise(Arc::clone(&seen.facts)).await,
            Err(fault) => Sanitised::failed(fault.clone()),
        };
        let mut removals = Removals::default();
        if let Ok((Verdict::Edit(script), _)) = &said.result {
            match edits::resolve(&seen.found, script) {
                Ok(resolved) => removals = resolved,
                Err(bad) => said.result = Err(Fault::new(FaultCode::OutputInvalid, bad.to_string())),
            }
        }
        self.swept.voices.push(SanitiserVoice { again, ..said.voice(source, false) });
        let rule = match said.result {
            Ok((Verdict::Pass | Verdict::Edit(_), rule)) => rule,
            Ok((Verdict::Withhold(why), rule)) => {
                self.swept.labels.extend(said.labels);
                self.swept.withheld = Some(withheld(component, rule, why));
                return Err(Stopped);
            }
            Err(fault) => {
                self.swept.withheld = Some(Withheld { fault: true, ..withheld(component, None, fault.to_string()) });
                return Err(Stopped);
            }
        };
        self.swept.labels.extend(said.labels);
        if removals.is_empty() {
            return Ok(false);
        }
        let root = std::mem::take(&mut self.document.root);
        self.document.root = edits::apply(root, &removals);
        self.document.spelled = None;
        self.document.removed.push(removals);
        self.swept.editors.push(Origin { layer: source.layer.clone(), component, rule });
        self.seen = None;
        Ok(true)
    }

    fn seen(&mut self) -> Result<Arc<Seen>, Beyond> {
        if let Some(seen) = &self.seen {
            return Ok(Arc::clone(seen));
        }
        let document = &*self.document;
        let found = targets::find(&document.root, document.shape, document.spelled.as_deref())?;
        let About { kind, tool, identity, caller, labels, now_ms } = self.about.clone();
        let facts = Arc::new(OutputFacts {
            kind,
            tool,
            identity,
            caller,
            is_error: document.is_error,
            targets: found.targets.clone(),
            labels,
            now_ms,
        });
        let seen = Arc::new(Seen { found, facts });
        self.seen = Some(Arc::clone(&seen));
        Ok(seen)
    }
}
