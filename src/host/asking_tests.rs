use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::adapters::clock::SystemClock;
use crate::adapters::store::memory::MemoryGrants;
use crate::adapters::store::memory_asks::in_memory;
use crate::model::layer::{LayerKind, LayerRef};
use crate::model::name::{CallId, ToolRef};
use crate::model::role::LayerRoles;
use crate::model::verdict::Reviewers;
use crate::ports::approval::Kind;
use crate::ports::asks::AskState;
use crate::ports::reviewer::{Agreement, NobodyThere};

struct Says(Reply);

#[async_trait]
impl Reviewer for Says {
    async fn ask(&self, _question: &Question) -> Reply {
        self.0.clone()
    }
}

/// Never answers; notes that it was withdrawn.
#[derive(Default)]
struct Silent(Arc<AtomicBool>);

struct Note(Arc<AtomicBool>);

impl Drop for Note {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[async_trait]
impl Reviewer for Silent {
    async fn ask(&self, _question: &Question) -> Reply {
        let _note = Note(Arc::clone(&self.0));
        std::future::pending().await
    }
}

fn question() -> Question {
    let tool = ToolRef::parse("s/t").unwrap();
    Question {
        id: "ask_1".to_owned(),
        call: CallId::fresh(),
        kind: Kind::Tool,
        agreement: Agreement::to_nothing(&tool),
        tool,
        title: None,
        description: None,
        connector: None,
        arguments: "{}".to_owned(),
        files: Vec::new(),
        changes: [].into(),
        cut: false,
        denial: None,
        asks: Vec::new(),
        reviewers: Reviewers::PERSON,
        options: vec![Remember::Never],
        channels: Channel::ALL.into(),
        roles: Vec::new(),
        deadline: Duration::from_secs(600),
    }
}

fn desk() -> Desk {
    Desk::new(Arc::new(in_memory(Arc::new(MemoryGrants::default()))), Arc::new(SystemClock)).patient()
}

fn answer(desk: &Desk, decision: Decision) {
    let answer = Answer { decision, approver: "ann".to_owned(), roles: BTreeSet::new(), own: false };
    desk.asks.answer("ask_1", &answer, desk.now_ms()).unwrap();
}

fn by_role(approver: &str, roles: &[&str]) -> Reply {
    let roles = Roles::Of(Role::of_groups(roles.iter().copied()));
    Reply::Allowed { remember: Remember::Never, approver: approver.to_owned(), channel: Channel::Program, roles }
}

fn allowed(approver: &str) -> Reply {
    by_role(approver, &[])
}

fn state(desk: &Desk) -> AskState {
    desk.asks.get("ask_1").unwrap().unwrap().state
}

#[tokio::test(start_paused = true)]
async fn r21_an_answer_from_the_queue_withdraws_the_channels_question() {
    let (desk, withdrawn) = (desk(), Arc::default());
    let both = desk.beside(Arc::new(Silent(Arc::clone(&withdrawn))));
    let asked = question();
    let mut asking = both.ask(&asked);
    assert!(futures::poll!(&mut asking).is_pending());
    answer(&desk, Decision::Allow(Remember::Never));
    let by_the_queue = |reply| matches!(reply, Reply::Allowed { channel: Channel::Queue, .. });
    assert!(by_the_queue(asking.await));
    assert!(withdrawn.load(Ordering::SeqCst));
}

#[tokio::test(start_paused = true)]
async fn r21_the_channels_answer_goes_through_the_queue() {
    for reply in [allowed("me"), Reply::Declined] {
        let desk = desk();
        assert_eq!(desk.beside(Arc::new(Says(reply.clone()))).ask(&question()).await, reply);
        let late = Answer { decision: Decision::Deny, approver: "ann".to_owned(), roles: BTreeSet::new(), own: false };
        assert!(matches!(desk.asks.answer("ask_1", &late, desk.now_ms()), Err(NotAnswered::Already(_))));
    }
}

#[tokio::test(start_paused = true)]
async fn a_channel_that_reaches_nobody_leaves_the_question_in_the_queue() {
    let desk = desk();
    let both = desk.beside(Arc::new(NobodyThere));
    let asked = question();
    let mut asking = both.ask(&asked);
    assert!(futures::poll!(&mut asking).is_pending());
    answer(&desk, Decision::Deny);
    assert_eq!(asking.await, Reply::Declined);
}

#[tokio::test(start_paused = true)]
async fn r21_a_caller_that_goes_leaves_its_question_without_requester() {
    let desk = desk();
    let both = desk.beside(Arc::new(NobodyThere));
    let asked = question();
    let mut asking = both.ask(&asked);
    assert!(futures::poll!(&mut asking).is_pending());
    assert!(desk.asks.get("ask_1").unwrap().unwrap().is_awaited(desk.now_ms()));
    drop(asking);
    assert!(!desk.asks.get("ask_1").unwrap().unwrap().is_awaited(desk.now_ms()));
    assert_eq!(state(&desk), AskState::Pending);
    answer(&desk, Decision::Allow(Remember::Never));
    assert!(matches!(state(&desk), AskState::Answered { outcome: crate::ports::asks::Delivery::Granted(_), .. }));
}

#[tokio::test(start_paused = true)]
async fn r20_a_question_that_the_queue_may_not_answer_is_not_in_it() {
    let desk = desk();
    let asked = Question { channels: [Channel::Program].into(), ..question() };
    assert_eq!(desk.beside(Arc::new(Says(allowed("me")))).ask(&asked).await, allowed("me"));
    assert!(desk.asks.get("ask_1").unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn r21_where_nobody_is_reached_the_call_ends_and_its_question_stays() {
    let desk = Desk { patient: false, ..desk() };
    assert_eq!(desk.beside(Arc::new(NobodyThere)).ask(&question()).await, Reply::Nobody);
    assert_eq!(state(&desk), AskState::Pending);
    answer(&desk, Decision::Allow(Remember::Never));
    assert!(matches!(state(&desk), AskState::Answered { outcome: crate::ports::asks::Delivery::Granted(_), .. }));
}

#[tokio::test(start_paused = true)]
async fn r20_an_allow_without_the_role_leaves_the_question_to_the_queue() {
    let desk = desk();
    let wanted = LayerRoles { layer: LayerRef::new(LayerKind::Managed), roles: Role::of_groups(["security"]) };
    let asked = Question { roles: vec![wanted], ..question() };
    let with = desk.beside(Arc::new(Says(by_role("me", &["security", "users"]))));
    assert!(matches!(with.ask(&asked).await, Reply::Allowed { .. }));
    let asked = Question { id: "ask_2".to_owned(), ..asked };
    let without = desk.beside(Arc::new(Says(by_role("me", &["users"]))));
    let mut asking = without.ask(&asked);
    assert!(futures::poll!(&mut asking).is_pending(), "somebody without the role has answered");
    let says = |roles: &[&str]| {
        let roles = Role::of_groups(roles.iter().copied());
        let answer =
            Answer { decision: Decision::Allow(Remember::Never), approver: "ann".to_owned(), roles, own: false };
        desk.asks.answer("ask_2", &answer, desk.now_ms())
    };
    assert!(matches!(says(&["users"]), Err(NotAnswered::WithoutRole(why)) if why.contains("`security`")));
    says(&["security"]).unwrap();
    let Reply::Allowed { approver, channel: Channel::Queue, .. } = asking.await else { panic!() };
    assert_eq!(approver, "ann as security");
}
