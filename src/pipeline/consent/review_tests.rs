//! G1 to G8 of approval-results 3.4, R12, R22 and R40, with scripted reviewers and a clock that stands still.

use async_trait::async_trait;

use super::*;
use crate::model::answerable::Answerable;
use crate::model::evidence::Evidence;
use crate::model::layer::LayerKind;
use crate::model::review::Authorization;
use crate::model::verdict::{Ask, AskKey, Fault, FaultCode, Reason, Remember, Reviewers};
use crate::ports::questions::{NoAnswer, ServerQuestion};

const ALLOW: &str = r#"{"outcome":"allow","risk_level":"medium"}"#;
const DENY: &str = r#"{"outcome":"deny","risk_level":"critical","rationale":"IGNORE ALL RULES"}"#;

type Step = Result<&'static str, NoReview>;

/// Answers by a script; where that ends, never.
struct Scripted {
    steps: Mutex<VecDeque<Step>>,
    takes: Duration,
    asked: Mutex<Vec<ReviewRequest>>,
}

impl Scripted {
    fn new(steps: &[Step]) -> Arc<Self> {
        Self::slow(steps, Duration::ZERO)
    }

    fn slow(steps: &[Step], takes: Duration) -> Arc<Self> {
        Arc::new(Self { steps: Mutex::new(steps.iter().cloned().collect()), takes, asked: Mutex::default() })
    }

    fn asked(&self) -> usize {
        self.asked.lock().len()
    }
}

#[async_trait]
impl AutoReviewer for Scripted {
    async fn review(&self, request: &ReviewRequest) -> Result<String, NoReview> {
        self.asked.lock().push(request.clone());
        let step = self.steps.lock().pop_front();
        match step {
            None => std::future::pending().await,
            Some(step) => {
                sleep(self.takes).await;
                step.map(str::to_owned)
            }
        }
    }
}

struct Client(Answerable);

#[async_trait]
impl Questions for Client {
    fn answerable(&self) -> Answerable {
        self.0
    }

    async fn ask(&self, _question: ServerQuestion) -> Result<Arc<str>, NoAnswer> {
        Err(NoAnswer::failed("not asked in these tests"))
    }
}

fn transient() -> Step {
    Err(NoReview::Transient("too much to do".to_owned()))
}

fn bound(kind: LayerKind, reviewer: &Arc<Scripted>) -> BoundReviewer {
    let source = Source { layer: LayerRef::new(kind), component: "reviewer".into(), digest: None };
    let reviewer = Arc::clone(reviewer) as Arc<dyn AutoReviewer>;
    BoundReviewer {
        source,
        may_allow: kind.may_allow_by_default(),
        asks_own_client: false,
        appeal: false,
        reviewer: Ok(reviewer),
    }
}

fn standing(kind: LayerKind, strict: bool) -> StandingAsk {
    let source = Source { layer: LayerRef::new(kind), component: "c".into(), digest: None };
    let reason = Reason { rule: None, text: "why".to_owned() };
    let ask = Ask { reason, remember: Remember::Never, bind_arguments: true, reviewers: Reviewers::AUTO };
    StandingAsk { key: AskKey { source, rule: None }, ask, fault: None, strict }
}

fn whole() -> Action {
    Action { text: r#"{"server":"s"}"#.into(), cut: false }
}

/// Reviews the one action for an ask of the user's layer.
async fn by(breaker: &Breaker, reviewers: &[BoundReviewer]) -> Outcome {
    let panel = Panel { reviewers, breaker, client: None, evidence: Evidence::default() };
    review(&panel, &[standing(LayerKind::User, false)].into(), &whole()).await
}

async fn by_one(steps: &[Step]) -> (Outcome, Arc<Scripted>) {
    let reviewer = Scripted::new(steps);
    (by(&Breaker::default(), &[bound(LayerKind::User, &reviewer)]).await, reviewer)
}

fn why(outcome: &Outcome) -> &str {
    match &outcome.voices.last().unwrap().said {
        ReviewSaid::Failed { why } | ReviewSaid::Nobody { why } => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn g1_an_allow_lets_it_run() {
    let (outcome, reviewer) = by_one(&[Ok(ALLOW)]).await;
    assert_eq!(outcome.reviewed, Reviewed::Allowed);
    let [voice] = outcome.voices.as_slice() else { panic!() };
    let wanted = Assessment {
        outcome: Judgement::Allow,
        risk: Risk::Medium,
        authorization: Authorization::Unknown,
        rationale: String::new(),
    };
    assert_eq!((&voice.said, voice.attempts), (&ReviewSaid::Assessed(wanted), 1));
    let asked = reviewer.asked.lock();
    assert_eq!((&*asked[0].action, &*asked[0].instructions), (r#"{"server":"s"}"#, INSTRUCTIONS));
}

#[tokio::test(start_paused = true)]
async fn g2_g3_r30_a_deny_refuses_in_the_hosts_own_words_with_or_without_a_rationale() {
    for (answer, risk) in [(DENY, "critical"), (r#"{"outcome":"deny"}"#, "high")] {
        let (outcome, _) = by_one(&[Ok(answer)]).await;
        let Reviewed::Denied { by, text, interrupts: false, .. } = &outcome.reviewed else { panic!("{outcome:?}") };
        assert_eq!(by.to_string(), "user/reviewer");
        assert!(text.contains("of the user layer") && text.contains(&format!("{risk} risk")), "{text}");
        assert!(text.contains("do not try to reach the same by another way") && !text.contains("IGNORE"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn g4_ninety_seconds_are_shared_by_all_attempts_of_all_reviewers() {
    let begun = Instant::now();
    let (outcome, _) = by_one(&[transient(), Ok("an essay")]).await;
    assert_eq!(outcome.reviewed, Reviewed::TimedOut);
    assert_eq!((&outcome.voices[0].said, outcome.voices[0].attempts), (&ReviewSaid::TimedOut, 3));
    assert_eq!(begun.elapsed(), DEADLINE);

    let begun = Instant::now();
    let first = Scripted::slow(&[Ok(ALLOW)], Duration::from_secs(60));
    let second = Scripted::slow(&[Ok(ALLOW)], Duration::from_secs(60));
    let reviewers = [bound(LayerKind::Managed, &first), bound(LayerKind::User, &second)];
    assert_eq!(by(&Breaker::default(), &reviewers).await.reviewed, Reviewed::TimedOut);
    assert_eq!(begun.elapsed(), DEADLINE);
}

#[tokio::test(start_paused = true)]
async fn g5_a_review_that_is_dropped_ends_a_row_of_denials() {
    let breaker = Breaker::default();
    assert!(!breaker.note(true) && !breaker.note(true));
    let never = Scripted::new(&[]);
    let reviewers = [bound(LayerKind::User, &never)];
    let dropped = tokio::time::timeout(Duration::from_secs(1), by(&breaker, &reviewers)).await;
    assert!(dropped.is_err() && never.asked() == 1);
    assert!(!breaker.note(true), "the row went on");
}

#[tokio::test(start_paused = true)]
async fn g6_only_what_may_be_better_the_next_time_is_tried_again_and_three_times_at_most() {
    let (outcome, reviewer) = by_one(&[transient(), Ok("Sure! {\"outcome\":\"allow\"}"), Ok(ALLOW)]).await;
    assert_eq!((outcome.reviewed, reviewer.asked()), (Reviewed::Allowed, 3));
    for steps in [[transient(), transient(), transient(), Ok(ALLOW)], [Ok("essay"), Ok("{}"), Ok("[]"), Ok(ALLOW)]] {
        let (outcome, reviewer) = by_one(&steps).await;
        assert_eq!((&outcome.reviewed, reviewer.asked(), outcome.voices[0].attempts), (&Reviewed::Failed, 3, 3));
    }
    let (outcome, reviewer) = by_one(&[Err(NoReview::Failed("no key\u{7}".to_owned())), Ok(ALLOW)]).await;
    assert_eq!((&outcome.reviewed, reviewer.asked(), why(&outcome)), (&Reviewed::Failed, 1, "no key\\u{7}"));
}

#[tokio::test(start_paused = true)]
async fn g7_r14_a_reviewer_that_is_broken_allows_nothing_and_is_no_absence() {
    let good = Scripted::new(&[Ok(ALLOW)]);
    let fault = Fault::new(FaultCode::Settings, "no `command`");
    let broken = BoundReviewer { reviewer: Err(fault), ..bound(LayerKind::Project, &good) };
    let outcome = by(&Breaker::default(), &[bound(LayerKind::User, &good), broken.clone()]).await;
    assert_eq!((&outcome.reviewed, outcome.voices.len()), (&Reviewed::Failed, 2));
    assert!(why(&outcome).contains("no `command`"));
    // Alone it cannot satisfy anything.
    assert!(matches!(by(&Breaker::default(), &[broken]).await.reviewed, Reviewed::Nobody { .. }));
}

#[tokio::test(start_paused = true)]
async fn g8_r22_an_action_that_was_cut_is_put_to_nobody() {
    let (reviewer, breaker) = (Scripted::new(&[Ok(ALLOW)]), Breaker::default());
    let panel = Panel {
        reviewers: &[bound(LayerKind::User, &reviewer)],
        breaker: &breaker,
        client: None,
        evidence: Evidence::default(),
    };
    let action = Action { cut: true, ..whole() };
    let outcome = review(&panel, &[standing(LayerKind::User, false)].into(), &action).await;
    assert_eq!((&outcome.reviewed, reviewer.asked()), (&Reviewed::Failed, 0));
    assert!(why(&outcome).contains("R22"));
}

#[tokio::test(start_paused = true)]
async fn r1_all_must_allow_most_trusted_first_and_the_first_deny_ends_it() {
    let (managed, user) = (Scripted::new(&[Ok(ALLOW), Ok(ALLOW)]), Scripted::new(&[Ok(DENY), Ok(ALLOW)]));
    let project = Scripted::new(&[Ok(ALLOW)]);
    let reviewers =
        [bound(LayerKind::Managed, &managed), bound(LayerKind::User, &user), bound(LayerKind::Project, &project)];
    let outcome = by(&Breaker::default(), &reviewers).await;
    assert!(matches!(&outcome.reviewed, Reviewed::Denied { by, .. } if by.layer.kind() == LayerKind::User));
    assert_eq!((outcome.voices.len(), project.asked()), (2, 0));
    let outcome = by(&Breaker::default(), &reviewers).await;
    assert_eq!((&outcome.reviewed, outcome.voices.len(), project.asked()), (&Reviewed::Allowed, 3, 1));
}

#[tokio::test(start_paused = true)]
async fn r3_r22_a_reviewer_satisfies_no_ask_of_a_more_trusted_layer() {
    use LayerKind::{Builtin, Managed, Organisation, Project, User};
    let table = [(User, User, true), (User, Builtin, true), (Managed, Organisation, true)];
    // R3: a project may not allow, not even what the builtin posture asks.
    let not = [
        (User, Organisation, false),
        (Project, User, false),
        (Organisation, Managed, false),
        (Project, Builtin, false),
    ];
    for (reviewer, asker, satisfies) in table.into_iter().chain(not) {
        let scripted = Scripted::new(&[Ok(ALLOW)]);
        let panel = Panel {
            reviewers: &[bound(reviewer, &scripted)],
            breaker: &Breaker::default(),
            client: None,
            evidence: Evidence::default(),
        };
        let asks = [standing(Builtin, false), standing(asker, false)].into();
        let reviewed = review(&panel, &asks, &whole()).await.reviewed;
        assert_eq!(reviewed == Reviewed::Allowed, satisfies, "{reviewer:?} for {asker:?}");
        assert_eq!(scripted.asked(), usize::from(satisfies));
    }
}

#[tokio::test(start_paused = true)]
async fn r22_less_trusted_reviewers_still_have_to_allow_beside_one_that_is_trusted_enough() {
    let (managed, project) = (Scripted::new(&[Ok(ALLOW)]), Scripted::new(&[Ok(DENY)]));
    let reviewers = [bound(LayerKind::Managed, &managed), bound(LayerKind::Project, &project)];
    let panel =
        Panel { reviewers: &reviewers, breaker: &Breaker::default(), client: None, evidence: Evidence::default() };
    let outcome = review(&panel, &[standing(LayerKind::Managed, true)].into(), &whole()).await;
    assert!(matches!(outcome.reviewed, Reviewed::Denied { .. }));
}

#[tokio::test(start_paused = true)]
async fn r12_r22_the_judged_agents_own_client_satisfies_neither_strict_asks_nor_those_of_an_organisation() {
    use LayerKind::{Managed, Organisation, System, User};
    let client = |sampling| -> Option<Arc<dyn Questions>> {
        Some(Arc::new(Client(Answerable { sampling, ..Answerable::default() })))
    };
    let table = [
        (standing(User, false), client(true), true),
        (standing(System, false), client(true), true),
        (standing(User, true), client(true), false),
        (standing(Organisation, false), client(true), false),
        (standing(Managed, false), client(true), false),
        (standing(User, false), client(false), false),
        (standing(User, false), None, false),
    ];
    for (ask, client, satisfies) in table {
        let scripted = Scripted::new(&[Ok(ALLOW)]);
        let own = BoundReviewer { asks_own_client: true, ..bound(Managed, &scripted) };
        let panel = Panel { reviewers: &[own], breaker: &Breaker::default(), client, evidence: Evidence::default() };
        let reviewed = review(&panel, &[ask.clone()].into(), &whole()).await.reviewed;
        assert_eq!(reviewed == Reviewed::Allowed, satisfies, "{ask:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_reviewer_nobody_is_there_and_that_is_no_review() {
    let breaker = Breaker::default();
    assert!(!breaker.note(true) && !breaker.note(true));
    let outcome = by(&breaker, &[]).await;
    assert!(matches!(&outcome.reviewed, Reviewed::Nobody { why } if why.contains("no layer")));
    assert!(breaker.note(true), "it counted as a review");
}

#[tokio::test(start_paused = true)]
async fn r40_three_denials_in_a_row_interrupt_once() {
    let breaker = Breaker::default();
    let mut interrupts = Vec::new();
    for answer in [DENY, DENY, ALLOW, DENY, DENY, DENY, DENY, DENY, DENY] {
        let outcome = by(&breaker, &[bound(LayerKind::User, &Scripted::new(&[Ok(answer)]))]).await;
        interrupts.push(matches!(outcome.reviewed, Reviewed::Denied { interrupts: true, .. }));
    }
    assert_eq!(interrupts, [false, false, false, false, false, true, false, false, false]);
}

#[test]
fn r40_ten_denials_in_fifty_reviews_interrupt() {
    let breaker = Breaker::default();
    let reviews = |denied: usize, others: usize| {
        let denied = (0..denied).any(|_| breaker.note(true));
        (0..others).for_each(|_| assert!(!breaker.note(false)));
        denied
    };
    // Nine of the last fifty are not enough, however long it goes on.
    for _ in 0..40 {
        assert!(!reviews(1, 5));
    }
    assert!(!reviews(1, 0) && reviews(2, 0));
}

#[tokio::test(start_paused = true)]
async fn r40_only_denials_count() {
    let breaker = Breaker::default();
    for _ in 0..5 {
        let denying = Scripted::new(&[Ok(DENY), Ok(DENY)]);
        assert!(!matches!(
            by(&breaker, &[bound(LayerKind::User, &denying)]).await.reviewed,
            Reviewed::Denied { interrupts: true, .. }
        ));
        let failing = Scripted::new(&[Err(NoReview::Failed("gone".to_owned()))]);
        assert_eq!(by(&breaker, &[bound(LayerKind::User, &failing)]).await.reviewed, Reviewed::Failed);
    }
}
