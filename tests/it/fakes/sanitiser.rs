//! Scripted sanitisers.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use portcullis::model::layer::LayerKind;
use portcullis::model::verdict::{Fault, FaultCode, Label, OnFailure, RuleId};
use portcullis::pipeline::emit::sanitise::Sanitiser;
use portcullis::ports::approval::Usage;
use portcullis::ports::sanitiser::{Class, Edit, OutputFacts, Sanitised, SanitiserComponent, Target, Verdict};

use super::policy::{Everything, source};

type Script = dyn Fn(&OutputFacts) -> Result<(Verdict, Option<RuleId>), Fault> + Send + Sync;

/// A sanitiser that answers by a script and keeps what it saw.
pub(crate) struct Cleaner {
    script: Box<Script>,
    labels: Vec<Label>,
    seen: Mutex<Vec<Arc<OutputFacts>>>,
}

impl Cleaner {
    pub(crate) fn by(
        script: impl Fn(&OutputFacts) -> Result<(Verdict, Option<RuleId>), Fault> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { script: Box::new(script), labels: Vec::new(), seen: Mutex::default() })
    }

    /// Lets everything pass.
    pub(crate) fn passes() -> Arc<Self> {
        Self::by(|_| Ok((Verdict::Pass, None)))
    }

    /// Takes every occurrence of a word out of every target.
    pub(crate) fn removes(word: &'static str, class: Class) -> Arc<Self> {
        Self::by(move |facts| {
            let edits: Vec<Edit> =
                facts.targets.iter().enumerate().flat_map(|(at, target)| spans(at, target, word, class)).collect();
            Ok((if edits.is_empty() { Verdict::Pass } else { Verdict::Edit(edits) }, RuleId::parse("a-word")))
        })
    }

    /// Drops every target that holds a word.
    pub(crate) fn drops(word: &'static str) -> Arc<Self> {
        Self::by(move |facts| {
            let with = facts.targets.iter().enumerate().filter(|(_, target)| target.text.contains(word));
            Ok((Verdict::Edit(with.map(|(at, _)| Edit::Drop { target: at as u32 }).collect()), None))
        })
    }

    /// Answers with this script, whatever it sees.
    pub(crate) fn edits(edits: Vec<Edit>) -> Arc<Self> {
        Self::by(move |_| Ok((Verdict::Edit(edits.clone()), None)))
    }

    pub(crate) fn withholds(rule: &'static str) -> Arc<Self> {
        Self::by(move |_| Ok((Verdict::Withhold("SECRET words of a component".to_owned()), RuleId::parse(rule))))
    }

    pub(crate) fn fails(code: FaultCode) -> Arc<Self> {
        Self::by(move |_| Err(Fault::new(code, "SECRET detail of the fault")))
    }

    /// Everything it was asked about, in order.
    pub(crate) fn seen(&self) -> Vec<Arc<OutputFacts>> {
        self.seen.lock().clone()
    }

    /// The texts and places that it saw last.
    pub(crate) fn last(&self) -> Vec<Target> {
        self.seen.lock().last().unwrap().targets.clone()
    }
}

fn spans(at: usize, target: &Target, word: &str, class: Class) -> Vec<Edit> {
    let span = |(start, found): (usize, &str)| Edit::Replace {
        target: at as u32,
        start: start as u32,
        end: (start + found.len()) as u32,
        class,
    };
    target.text.match_indices(word).map(span).collect()
}

#[async_trait]
impl SanitiserComponent for Cleaner {
    async fn sanitise(&self, facts: Arc<OutputFacts>) -> Sanitised {
        let result = (self.script)(&facts);
        self.seen.lock().push(facts);
        Sanitised { result, labels: self.labels.clone(), log: Vec::new(), usage: Usage::default() }
    }
}

/// A sanitiser as a layer binds it.
pub(crate) fn bound(layer: LayerKind, name: &str, component: &Arc<Cleaner>) -> Sanitiser {
    Sanitiser {
        source: source(layer, name),
        may_allow: false,
        on_failure: OnFailure::Deny,
        observe: false,
        matches: Arc::new(Everything),
        component: Ok(Arc::clone(component) as _),
    }
}
