//! Whoever is asked, whatever is recorded and remembered, and a clock that stands still.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use portcullis::adapters::store::memory_state::in_memory;
use portcullis::adapters::store::state::State;
use portcullis::model::caller::{Caller, TenantId};
use portcullis::model::item::{CompletedItem, Item, StartedItem};
use portcullis::model::name::ToolRef;
use portcullis::model::posture::Channel;
use portcullis::model::verdict::{Label, Remember};
use portcullis::ports::approval::PastState;
use portcullis::ports::clock::Clock;
use portcullis::ports::grants::{Grant, GrantSubject, Grants, NotRemembered};
use portcullis::ports::recorder::{DecisionRecord, ObservedRecord, RecordFailed, Recorder};
use portcullis::ports::reviewer::{Question, Reply, Reviewer, Roles};
use portcullis::ports::state::{Effects, Moment, Pin, PolicyState, StateFailed, StatedCall};

use super::{Gate, Journal};

/// Somebody who answers by a script; the last reply is given again and again.
pub(crate) struct Person {
    journal: Journal,
    replies: Mutex<VecDeque<Reply>>,
    gate: Mutex<Option<Arc<Gate>>>,
    questions: Mutex<Vec<Question>>,
    widest: Mutex<Remember>,
}

impl Person {
    pub(crate) fn replying(journal: &Journal, replies: impl IntoIterator<Item = Reply>) -> Arc<Self> {
        let replies = Mutex::new(replies.into_iter().collect());
        let (gate, questions, widest) = (Mutex::default(), Mutex::default(), Mutex::new(Remember::Always));
        Arc::new(Self { journal: journal.clone(), replies, gate, questions, widest })
    }

    /// Asked by a channel that offers no more than the session.
    pub(crate) fn without_always(self: Arc<Self>) -> Arc<Self> {
        *self.widest.lock() = Remember::Session;
        self
    }

    /// Answers only once the gate is open.
    pub(crate) fn at(self: Arc<Self>, gate: &Arc<Gate>) -> Arc<Self> {
        *self.gate.lock() = Some(Arc::clone(gate));
        self
    }

    pub(crate) fn questions(&self) -> Vec<Question> {
        self.questions.lock().clone()
    }
}

/// "Allow", remembered as long as this.
pub(crate) fn allowed(remember: Remember) -> Reply {
    Reply::Allowed { remember, approver: "ann".to_owned(), channel: Channel::Program, roles: Roles::none() }
}

#[async_trait]
impl Reviewer for Person {
    async fn ask(&self, question: &Question) -> Reply {
        self.journal.note("asked a person");
        self.questions.lock().push(question.clone());
        let gate = self.gate.lock().clone();
        if let Some(gate) = gate {
            gate.pass().await;
        }
        let mut replies = self.replies.lock();
        if replies.len() > 1 { replies.pop_front().unwrap() } else { replies.front().unwrap().clone() }
    }

    fn widest(&self) -> Remember {
        *self.widest.lock()
    }
}

/// Somebody whose channel is broken in the worst way.
pub(crate) struct Panics;

#[async_trait]
impl Reviewer for Panics {
    async fn ask(&self, _question: &Question) -> Reply {
        panic!("the reviewer panics, as scripted")
    }
}

/// Keeps every item and decision; refuses decisions on demand.
pub(crate) struct Tape {
    journal: Journal,
    items: Mutex<Vec<Item>>,
    decisions: Mutex<Vec<DecisionRecord>>,
    observed: Mutex<Vec<ObservedRecord>>,
    fails: AtomicBool,
}

impl Tape {
    pub(crate) fn new(journal: &Journal) -> Arc<Self> {
        let fails = AtomicBool::new(false);
        let (items, decisions, observed) = (Mutex::default(), Mutex::default(), Mutex::default());
        Arc::new(Self { journal: journal.clone(), items, decisions, observed, fails })
    }

    pub(crate) fn fail(&self) {
        self.fails.store(true, Ordering::SeqCst);
    }

    pub(crate) fn started(&self) -> Vec<StartedItem> {
        let started = |item: &Item| if let Item::Started(item) = item { Some(item.clone()) } else { None };
        self.items.lock().iter().filter_map(started).collect()
    }

    pub(crate) fn completed(&self) -> Vec<CompletedItem> {
        let completed = |item: &Item| if let Item::Completed(item) = item { Some(item.clone()) } else { None };
        self.items.lock().iter().filter_map(completed).collect()
    }

    pub(crate) fn observed(&self) -> Vec<ObservedRecord> {
        self.observed.lock().clone()
    }

    pub(crate) fn decisions(&self) -> Vec<DecisionRecord> {
        self.decisions.lock().clone()
    }

    /// The one completed item of the one call, after the one started item.
    pub(crate) fn only_pair(&self) -> CompletedItem {
        let kinds: Vec<&str> = self
            .items
            .lock()
            .iter()
            .map(|item| if matches!(item, Item::Started(_)) { "started" } else { "completed" })
            .collect();
        assert_eq!(kinds, ["started", "completed"]);
        self.completed().remove(0)
    }
}

impl Recorder for Tape {
    fn item(&self, item: &Item) {
        self.journal.note(match item {
            Item::Started(_) => "started item",
            Item::Completed(_) => "completed item",
        });
        self.items.lock().push(item.clone());
    }

    fn decision(&self, record: &DecisionRecord) -> Result<(), RecordFailed> {
        if self.fails.load(Ordering::SeqCst) {
            return Err(RecordFailed(std::io::Error::other("SECRET: the disk is full")));
        }
        self.journal.note("recorded the decision");
        self.decisions.lock().push(record.clone());
        Ok(())
    }

    fn observed(&self, record: &ObservedRecord) {
        self.journal.note("recorded the observation");
        self.observed.lock().push(record.clone());
    }
}

/// Grants in memory, as wide as a test wants.
pub(crate) struct Purse {
    journal: Journal,
    widest: Mutex<Remember>,
    grants: Mutex<Vec<Grant>>,
    fails: AtomicBool,
}

impl Purse {
    pub(crate) fn new(journal: &Journal) -> Arc<Self> {
        Arc::new(Self {
            journal: journal.clone(),
            widest: Mutex::new(Remember::Always),
            grants: Mutex::default(),
            fails: AtomicBool::new(false),
        })
    }

    pub(crate) fn fail(&self) {
        self.fails.store(true, Ordering::SeqCst);
    }

    pub(crate) fn kept(&self) -> Vec<Grant> {
        self.grants.lock().clone()
    }
}

impl Grants for Purse {
    fn widest(&self) -> Remember {
        *self.widest.lock()
    }

    fn find(&self, subject: &GrantSubject, now_ms: u64) -> Vec<Grant> {
        let lives = |grant: &&Grant| grant.binds(subject) && grant.expires_ms > now_ms;
        self.grants.lock().iter().filter(lives).cloned().collect()
    }

    fn related(&self, _caller: &Caller, tool: &ToolRef) -> Vec<Grant> {
        self.grants.lock().iter().filter(|grant| grant.subject.tool == *tool).cloned().collect()
    }

    fn take(&self, id: &str) -> Result<bool, NotRemembered> {
        let mut grants = self.grants.lock();
        let before = grants.len();
        grants.retain(|grant| grant.id != id);
        Ok(grants.len() < before)
    }

    fn store(&self, grant: Grant) -> Result<(), NotRemembered> {
        if self.fails.load(Ordering::SeqCst) {
            return Err(NotRemembered("the purse is closed".to_owned()));
        }
        self.journal.note("kept the grant");
        self.grants.lock().push(grant);
        Ok(())
    }

    fn forget(&self, id: &str) {
        self.journal.note("forgot the grant");
        self.grants.lock().retain(|grant| grant.id != id);
    }
}

/// A clock that stands still.
pub(crate) struct Still;

impl Clock for Still {
    fn now(&self) -> Timestamp {
        Timestamp::from_millisecond(1_700_000_000_000).unwrap()
    }
}

/// State in memory, which fails at a step on demand.
pub(crate) struct Ledger {
    journal: Journal,
    state: State,
    fails_at: Mutex<Option<Step>>,
    notes: AtomicBool,
}

/// A step of the state that can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Moment,
    Commit,
}

impl Ledger {
    pub(crate) fn new(journal: &Journal) -> Arc<Self> {
        let (fails_at, notes) = (Mutex::default(), AtomicBool::new(false));
        Arc::new(Self { journal: journal.clone(), state: in_memory(), fails_at, notes })
    }

    pub(crate) fn fail_at(&self, step: Step) {
        *self.fails_at.lock() = Some(step);
    }

    /// Writes a line into the journal for what changes the state.
    pub(crate) fn noting(&self) {
        self.notes.store(true, Ordering::SeqCst);
    }

    fn line(&self, line: &str) {
        if self.notes.load(Ordering::SeqCst) {
            self.journal.note(line);
        }
    }

    fn works(&self, step: Step) -> Result<(), StateFailed> {
        if *self.fails_at.lock() == Some(step) {
            return Err(StateFailed("SECRET: the disk is full".to_owned()));
        }
        Ok(())
    }
}

impl PolicyState for Ledger {
    fn moment(&self, call: StatedCall<'_>, now_ms: u64, effects: Effects) -> Result<Moment, StateFailed> {
        self.works(Step::Moment)?;
        self.state.moment(call, now_ms, effects)
    }

    fn note(&self, call: StatedCall<'_>, now_ms: u64, state: PastState) {
        self.line(match state {
            PastState::Open => "noted as open",
            PastState::Ran => "noted as run",
            PastState::Refused => "noted as refused",
        });
        self.state.note(call, now_ms, state);
    }

    fn commit(&self, call: StatedCall<'_>, now_ms: u64, labels: &[Label]) -> Result<(), StateFailed> {
        self.works(Step::Commit)?;
        self.line("committed");
        self.state.commit(call, now_ms, labels)
    }

    fn label(&self, caller: &Caller, now_ms: u64, labels: &[Label]) -> Result<(), StateFailed> {
        self.state.label(caller, now_ms, labels)
    }

    fn pinned(&self, tenant: &TenantId, tool: &ToolRef) -> Result<Option<Pin>, StateFailed> {
        self.state.pinned(tenant, tool)
    }

    fn pin(&self, tenant: &TenantId, tool: &ToolRef, pin: &Pin) -> Result<(), StateFailed> {
        self.state.pin(tenant, tool, pin)
    }
}
