//! One contract, two backings: every test runs over memory and over a file.

use std::sync::{Arc, Barrier};

use super::memory_state::in_memory;
use super::sqlite;
use super::state::State;
use crate::model::caller::{Caller, SessionId, TenantId};
use crate::model::digest::Digest;
use crate::model::layer::{LayerKind, LayerRef};
use crate::model::name::{CallId, ToolRef};
use crate::model::verdict::{Label, Source};
use crate::ports::approval::{Kind, PastState};
use crate::ports::state::{
    Effects, HISTORY_LIFE_MS, LABEL_LIFE_MS, MAX_COUNTER_KEY, MAX_COUNTER_POINTS, MAX_COUNTER_WINDOW_MS, MAX_HISTORY,
    MAX_LABELS, Moment, Pin, PolicyState, StateFailed, StatedCall,
};

const HOUR: u64 = 60 * 60 * 1000;
pub(super) const NOW: u64 = 1_700_000_000_000;

pub(super) fn file() -> (tempfile::TempDir, State) {
    let dir = tempfile::tempdir().unwrap();
    let state = opened(&dir);
    (dir, state)
}

fn opened(dir: &tempfile::TempDir) -> State {
    sqlite::open(&dir.path().join("portcullis"), rustix::process::getuid().as_raw()).unwrap().state
}

/// Runs a test over both.
fn both(test: impl Fn(&State)) {
    test(&in_memory());
    let (_dir, state) = file();
    test(&state);
}

/// A call of one caller.
pub(super) struct Call {
    id: CallId,
    caller: Caller,
    tool: ToolRef,
}

impl Call {
    pub(super) fn new(id: &str) -> Self {
        let caller = Caller { session: SessionId::new("one"), ..Caller::local("ann") };
        Self { id: CallId::new(id).unwrap(), caller, tool: ToolRef::parse(&format!("files/{id}")).unwrap() }
    }

    fn of(id: &str, change: impl FnOnce(&mut Caller)) -> Self {
        let mut call = Self::new(id);
        change(&mut call.caller);
        call
    }

    pub(super) fn stated(&self) -> StatedCall<'_> {
        StatedCall { id: &self.id, caller: &self.caller, kind: Kind::Tool, tool: &self.tool }
    }

    fn open(self, state: &State) -> Self {
        state.note(self.stated(), NOW, PastState::Open);
        self
    }

    fn end(&self, state: &State, how: PastState) {
        state.note(self.stated(), NOW, how);
    }

    fn moment(&self, state: &State) -> Moment {
        state.moment(self.stated(), NOW, Effects::Reserve).unwrap()
    }

    fn dry(&self, state: &State) -> Moment {
        state.moment(self.stated(), NOW, Effects::None).unwrap()
    }

    fn commit(&self, state: &State, labels: &[Label]) {
        state.commit(self.stated(), NOW, labels).unwrap();
    }
}

pub(super) fn source(component: &str) -> Source {
    let digest = Some(Digest::of(component.as_bytes()));
    Source { layer: LayerRef::new(LayerKind::User), component: component.into(), digest }
}

fn label(name: &str) -> Label {
    Label { name: name.to_owned(), source: source("flow") }
}

fn count(moment: &Moment, key: &str) -> u64 {
    moment.counters.count(&source("rate"), key, HOUR).unwrap()
}

fn past(moment: &Moment) -> Vec<(&str, PastState)> {
    moment.history.iter().map(|call| (call.tool.tool.as_str(), call.state)).collect()
}

#[test]
fn r33_a_reservation_is_seen_by_others_gone_on_refusal_and_kept_on_commit() {
    both(|state| {
        let [a, b] = ["a", "b"].map(|id| Call::new(id).open(state));
        assert_eq!(count(&a.moment(state), "k"), 1);
        assert_eq!(count(&b.moment(state), "k"), 2, "a has reserved");
        a.end(state, PastState::Refused);
        assert_eq!(count(&b.moment(state), "k"), 1, "a has released");
        b.commit(state, &[]);
        b.end(state, PastState::Ran);
        assert_eq!(count(&Call::new("c").open(state).moment(state), "k"), 2, "b has committed");
    });
}

#[test]
fn asking_again_for_the_same_call_counts_once() {
    both(|state| {
        let call = Call::new("a").open(state);
        let moment = call.moment(state);
        assert_eq!([count(&moment, "k"), count(&moment, "k"), count(&call.moment(state), "k")], [1, 1, 1]);
        assert_eq!(
            moment.counters.count(&source("rate"), "k", 2 * HOUR),
            Err(StateFailed("the call is not open".into()))
        );
        call.commit(state, &[]);
        call.end(state, PastState::Ran);
        assert_eq!(count(&Call::new("b").dry(state), "k"), 2);
    });
}

#[test]
fn r33_only_what_the_last_decision_counted_is_kept() {
    both(|state| {
        let call = Call::new("a").open(state);
        count(&call.moment(state), "first");
        count(&call.moment(state), "second");
        call.commit(state, &[]);
        let other = Call::new("b").dry(state);
        assert_eq!([count(&other, "first"), count(&other, "second")], [1, 2]);
    });
}

#[test]
fn r33_a_dry_moment_answers_as_if_it_had_counted_and_leaves_nothing() {
    both(|state| {
        let call = Call::new("a");
        for _ in 0..3 {
            assert_eq!(count(&call.dry(state), "k"), 1);
        }
        assert_eq!(count(&Call::new("b").open(state).moment(state), "k"), 1);
        assert_eq!(count(&call.dry(state), "k"), 2);
    });
}

#[test]
fn a_call_that_was_committed_and_then_not_sent_takes_everything_back() {
    both(|state| {
        let [a, b] = ["a", "b"].map(|id| Call::new(id).open(state));
        count(&a.moment(state), "k");
        count(&b.moment(state), "k");
        a.commit(state, &[label("shared"), label("own")]);
        b.commit(state, &[label("shared")]);
        a.end(state, PastState::Refused);
        b.end(state, PastState::Ran);
        let moment = Call::new("c").dry(state);
        assert_eq!(count(&moment, "k"), 2);
        assert_eq!(*moment.labels, [label("shared")], "b has set it too");
    });
}

#[test]
fn what_has_ended_commits_nothing() {
    both(|state| {
        let call = Call::new("a").open(state);
        count(&call.moment(state), "k");
        call.end(state, PastState::Refused);
        assert!(state.commit(call.stated(), NOW, &[label("l")]).is_err());
        assert!(state.moment(call.stated(), NOW, Effects::Reserve).is_err());
        let moment = Call::new("b").dry(state);
        assert_eq!((count(&moment, "k"), moment.labels.len()), (1, 0));
    });
}

#[test]
fn a_counter_belongs_to_one_component_of_one_layer_in_one_tenant() {
    both(|state| {
        let call = Call::new("a").open(state);
        count(&call.moment(state), "k");
        call.commit(state, &[]);
        let other = Call::of("b", |caller| caller.tenant = TenantId::new("theirs"));
        assert_eq!(count(&other.dry(state), "k"), 1);
        let mine = Call::of("c", |caller| caller.principal = crate::model::caller::Principal::new("bob")).dry(state);
        assert_eq!(count(&mine, "k"), 2, "all principals of a tenant share its counters");
        let layers = [
            (LayerRef::new(LayerKind::Managed), 1),
            (LayerRef::from_file(LayerKind::User, "/elsewhere/config.toml".into()), 1),
            (LayerRef::new(LayerKind::User), 2),
        ];
        for (layer, want) in layers {
            let owner = Source { layer, digest: None, ..source("rate") };
            assert_eq!(mine.counters.count(&owner, "k", HOUR), Ok(want), "{owner:?}");
        }
    });
}

#[test]
fn a_key_a_window_and_a_number_of_counters_beyond_the_bounds_are_errors() {
    both(|state| {
        let moment = Call::new("a").open(state).moment(state);
        let ask = |key: &str, window| moment.counters.count(&source("rate"), key, window);
        assert!(ask(&"k".repeat(MAX_COUNTER_KEY), MAX_COUNTER_WINDOW_MS).is_ok());
        for (key, window) in
            [("k".repeat(MAX_COUNTER_KEY + 1), HOUR), ("k".into(), 0), ("k".into(), MAX_COUNTER_WINDOW_MS + 1)]
        {
            assert!(ask(&key, window).is_err(), "{window}");
        }
    });
}

#[test]
fn a_component_has_no_more_counters_than_it_may_and_its_old_ones_stay() {
    both(|state| {
        let most = 20;
        state.with_max_counters(most);
        let first = Call::new("first").open(state);
        let moment = first.moment(state);
        for n in 0..most / 2 {
            count(&moment, &format!("k{n}"));
        }
        first.commit(state, &[]);
        let moment = Call::new("second").open(state).moment(state);
        for n in 0..most {
            count(&moment, &format!("k{n}"));
        }
        let refused = moment.counters.count(&source("rate"), "one more", HOUR).unwrap_err();
        assert_eq!(refused.0, "`user/rate` has 20 counters, and can have no more");
        assert_eq!(count(&moment, "k0"), 2);
        assert!(moment.counters.count(&source("other"), "k", HOUR).is_ok());
        // Half of them are over.
        let later = state.moment(Call::new("third").stated(), NOW + 2 * HOUR, Effects::None).unwrap();
        assert!(later.counters.count(&source("rate"), "one more", HOUR).is_ok());
    });
}

#[test]
fn a_counter_of_many_moments_errs_upwards_only() {
    let points = u64::try_from(MAX_COUNTER_POINTS).unwrap();
    both(|state| {
        for n in 0..points + 2 {
            let call = Call::new("a").open(state);
            let moment = state.moment(call.stated(), NOW + n, Effects::Reserve).unwrap();
            moment.counters.count(&source("rate"), "k", HOUR).unwrap();
            state.commit(call.stated(), NOW + n, &[]).unwrap();
            call.end(state, PastState::Ran);
        }
        let sum = |window| {
            let moment = state.moment(Call::new("b").stated(), NOW + points + 1, Effects::None).unwrap();
            moment.counters.count(&source("rate"), "k", window).unwrap() - 1
        };
        assert_eq!(sum(HOUR), points + 2);
        assert_eq!(sum(10), 10);
        assert_eq!(sum(points), points + 2, "the oldest three count as of the third");
    });
}

#[test]
fn labels_are_of_a_principal_and_every_session_of_it() {
    both(|state| {
        let call = Call::new("a").open(state);
        call.commit(state, &[label("private")]);
        let other = Call::of("b", |caller| caller.session = SessionId::new("two"));
        assert_eq!(*other.dry(state).labels, [label("private")], "name, layer, component and digest are there");
        let bob = Call::of("c", |caller| caller.principal = crate::model::caller::Principal::new("bob"));
        assert!(bob.dry(state).labels.is_empty());
        let theirs = Call::of("d", |caller| caller.tenant = TenantId::new("theirs"));
        assert!(theirs.dry(state).labels.is_empty());
    });
}

#[test]
fn a_label_expires_and_is_renewed_when_it_is_set_again() {
    both(|state| {
        let caller = &Call::new("a").caller;
        let at = |now| state.moment(Call::new("a").stated(), now, Effects::None).unwrap().labels.len();
        state.label(caller, NOW, &[label("old"), label("kept")]).unwrap();
        state.label(caller, NOW + HOUR, &[label("kept")]).unwrap();
        assert_eq!([at(NOW + LABEL_LIFE_MS - 1), at(NOW + LABEL_LIFE_MS), at(NOW + LABEL_LIFE_MS + HOUR)], [2, 1, 0]);
    });
}

#[test]
fn a_label_too_many_sets_none_and_counts_nothing() {
    both(|state| {
        let call = Call::new("a").open(state);
        let all: Vec<Label> = (0..MAX_LABELS).map(|n| label(&format!("l{n}"))).collect();
        state.label(&call.caller, NOW, &all).unwrap();
        count(&call.moment(state), "k");
        assert!(state.commit(call.stated(), NOW, &[label("l0"), label("more")]).is_err());
        call.end(state, PastState::Refused);
        let moment = Call::new("b").dry(state);
        assert_eq!((moment.labels.len(), count(&moment, "k")), (MAX_LABELS, 1));
        assert!(state.label(&call.caller, NOW, &[label(&"x".repeat(257))]).is_err());
    });
}

#[test]
fn r33_history_shows_open_calls_newest_first_and_not_the_call_itself() {
    both(|state| {
        let calls = ["a", "b", "c"].map(|id| Call::new(id).open(state));
        calls[0].end(state, PastState::Ran);
        calls[1].end(state, PastState::Refused);
        let [_, _, c] = &calls;
        assert_eq!(past(&c.moment(state)), [("b", PastState::Refused), ("a", PastState::Ran)]);
        let d = Call::new("d").open(state);
        assert_eq!(past(&d.moment(state))[0], ("c", PastState::Open));
        let other = Call::of("e", |caller| caller.session = SessionId::new("two"));
        assert!(other.dry(state).history.is_empty());
    });
}

#[test]
fn history_keeps_the_newest_calls_of_a_session_and_forgets_old_sessions() {
    both(|state| {
        for n in 0..MAX_HISTORY + 5 {
            Call::new(&format!("c{n}")).open(state).end(state, PastState::Ran);
        }
        let moment = Call::new("next").dry(state);
        assert_eq!((moment.history.len(), past(&moment)[MAX_HISTORY - 1].0), (MAX_HISTORY, "c5"));
        let late = Call::of("late", |caller| caller.session = SessionId::new("two")).open(state);
        state.commit(late.stated(), NOW + HISTORY_LIFE_MS, &[]).unwrap();
        assert!(Call::new("next").dry(state).history.is_empty());
    });
}

#[test]
fn a_limit_of_one_is_given_to_one_of_many_at_once() {
    both(|state| {
        for round in 0..20 {
            let (key, barrier) = (format!("k{round}"), Barrier::new(8));
            let seen: Vec<u64> = std::thread::scope(|scope| {
                let call = |n: u32| {
                    let (key, barrier, call) = (&key, &barrier, Call::new(&format!("r{round}-{n}")).open(state));
                    scope.spawn(move || {
                        let moment = call.moment(state);
                        barrier.wait();
                        count(&moment, key)
                    })
                };
                let threads: Vec<_> = (0..8).map(call).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let mut sorted = seen.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [1, 2, 3, 4, 5, 6, 7, 8]);
        }
    });
}

#[test]
fn r24_a_pin_stays_until_another_is_set_each_tenant_its_own() {
    both(|state| {
        let (ours, theirs) = (TenantId::new("ours"), TenantId::new("theirs"));
        let tool = ToolRef::parse("files/write").unwrap();
        let pin = |text: &str| Pin { digest: Digest::of(text.as_bytes()), definition: text.into() };
        assert_eq!(state.pinned(&ours, &tool), Ok(None));
        state.pin(&ours, &tool, &pin("first")).unwrap();
        state.pin(&ours, &tool, &pin("second")).unwrap();
        assert_eq!(state.pinned(&ours, &tool), Ok(Some(pin("second"))));
        assert_eq!(state.pinned(&theirs, &tool), Ok(None));
        let long = Pin { definition: "x".repeat(crate::model::tool::MAX_DEFINITION + 1).into(), ..pin("long") };
        assert!(state.pin(&ours, &tool, &long).is_err());
    });
}

#[test]
fn what_is_committed_is_there_after_a_restart_and_in_another_process() {
    let (dir, state) = file();
    let beside = opened(&dir);
    let (call, tool) = (Call::new("a").open(&state), ToolRef::parse("files/write").unwrap());
    let pin = Pin { digest: Digest::of(b"d"), definition: "d".into() };
    count(&call.moment(&state), "k");
    assert_eq!(count(&Call::new("b").dry(&beside), "k"), 1, "an open reservation is of one process");
    call.commit(&state, &[label("private")]);
    call.end(&state, PastState::Ran);
    state.pin(&call.caller.tenant, &tool, &pin).unwrap();
    drop(state);
    for state in [beside, opened(&dir)] {
        let moment = Call::new("b").dry(&state);
        assert_eq!((count(&moment, "k"), past(&moment)), (2, vec![("a", PastState::Ran)]));
        assert_eq!(*moment.labels, [label("private")]);
        assert_eq!(state.pinned(&call.caller.tenant, &tool), Ok(Some(pin.clone())));
    }
}

#[test]
fn two_processes_that_commit_at_once_lose_nothing() {
    let (dir, first) = file();
    let (states, barrier) = ([Arc::new(first), Arc::new(opened(&dir))], Barrier::new(2));
    std::thread::scope(|scope| {
        for (n, state) in states.iter().enumerate() {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                for m in 0..50 {
                    let call = Call::new(&format!("p{n}-{m}")).open(state);
                    count(&call.moment(state), "k");
                    call.commit(state, &[]);
                    call.end(state, PastState::Ran);
                }
            });
        }
    });
    assert_eq!(count(&Call::new("last").dry(&states[0]), "k"), 101);
}
