//! The counters compared with a reference that is written apart, over memory and over a file.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::contract_tests::{Call, NOW, file, source};
use super::memory_state::in_memory;
use super::state::State;
use crate::ports::approval::PastState;
use crate::ports::state::{Effects, Moment, PolicyState};

/// What may happen to counters.
#[derive(Debug, Clone)]
enum Happens {
    Opens(usize),
    Counts { call: usize, key: usize, window: u64, dry: bool },
    Commits(usize),
    Ends { call: usize, ran: bool },
    Passes(u64),
}

fn happens() -> impl Strategy<Value = Happens> {
    let windows = prop::sample::select(vec![1_u64, 10, 100]);
    prop_oneof![
        2 => (0..4_usize).prop_map(Happens::Opens),
        5 => (0..4_usize, 0..2_usize, windows, any::<bool>())
            .prop_map(|(call, key, window, dry)| Happens::Counts { call, key, window, dry }),
        2 => (0..4_usize).prop_map(Happens::Commits),
        2 => (0..4_usize, any::<bool>()).prop_map(|(call, ran)| Happens::Ends { call, ran }),
        2 => (0..60_u64).prop_map(Happens::Passes),
    ]
}

/// The counters again, as a list of what was counted and when, without a word of how they are kept.
#[derive(Default)]
struct Reference {
    now: u64,
    open: BTreeMap<usize, Account>,
    events: Vec<(usize, u64)>,
    longest: BTreeMap<usize, u64>,
}

/// An open call.
#[derive(Default)]
struct Account {
    /// When its one decision took its moment.
    since: u64,
    /// What it was told, by key and window.
    told: BTreeMap<(usize, u64), u64>,
    /// What it counts, with the longest window.
    asked: BTreeMap<usize, u64>,
    committed: Option<Vec<(usize, u64)>>,
}

impl Reference {
    fn count(&mut self, call: usize, key: usize, window: u64, dry: bool) -> Option<u64> {
        let account = self.open.get(&call);
        if !dry && let Some(told) = account?.told.get(&(key, window)) {
            return Some(*told);
        }
        let now = account.filter(|_| !dry).map_or(self.now, |account| account.since);
        let longest = self.longest.get(&key).copied().unwrap_or(0);
        let live = |at: &u64| at + window.min(longest) > now;
        let sum = self.events.iter().filter(|(of, at)| *of == key && live(at)).count();
        let others = self.open.iter().filter(|(of, account)| **of != call && account.asked.contains_key(&key)).count();
        let committed = account.into_iter().flat_map(|account| account.committed.iter().flatten());
        let own = committed.filter(|(of, _)| *of == key).count() == 0;
        let answer = u64::try_from(sum + others).unwrap() + u64::from(own);
        if !dry && let Some(account) = self.open.get_mut(&call) {
            account.told.insert((key, window), answer);
            if own {
                let longest = account.asked.entry(key).or_default();
                *longest = window.max(*longest);
            }
        }
        Some(answer)
    }

    fn commit(&mut self, call: usize) -> bool {
        let Some(account) = self.open.get_mut(&call).filter(|account| account.committed.is_none()) else {
            return false;
        };
        let asked = std::mem::take(&mut account.asked);
        account.committed = Some(asked.keys().map(|key| (*key, self.now)).collect());
        for (key, window) in asked {
            let longest = self.longest.entry(key).or_default();
            let (now, over) = (self.now, *longest);
            self.events.retain(|(of, at)| *of != key || at + over > now);
            *longest = over.max(window);
            self.events.push((key, now));
        }
        true
    }

    fn end(&mut self, call: usize, ran: bool) {
        let Some(account) = self.open.remove(&call) else { return };
        for event in account.committed.into_iter().flatten().filter(|_| !ran) {
            if let Some(at) = self.events.iter().position(|other| other.0 == event.0 && other.1 >= event.1) {
                self.events.remove(at);
            }
            if !self.events.iter().any(|(key, _)| *key == event.0) {
                self.longest.remove(&event.0);
            }
        }
    }
}

fn agrees_with_the_reference(state: &State, story: &[Happens]) -> Result<(), TestCaseError> {
    let mut reference = Reference::default();
    let calls: Vec<Call> = (0..4).map(|n| Call::new(&format!("c{n}"))).collect();
    // One moment for each open call, as one decision has it.
    let mut moments: BTreeMap<usize, Moment> = BTreeMap::new();
    for step in story {
        let now = NOW + reference.now;
        match *step {
            Happens::Passes(ms) => reference.now += ms,
            Happens::Opens(n) => {
                state.note(calls[n].stated(), now, PastState::Open);
                let since = reference.now;
                reference.open.entry(n).or_insert_with(|| Account { since, ..Account::default() });
                moments.entry(n).or_insert_with(|| state.moment(calls[n].stated(), now, Effects::Reserve).unwrap());
            }
            Happens::Counts { call, key, window, dry } => {
                let ask = |moment: &Moment| moment.counters.count(&source("rate"), &format!("k{key}"), window).unwrap();
                let said = if dry {
                    Some(ask(&state.moment(calls[call].stated(), now, Effects::None).unwrap()))
                } else {
                    moments.get(&call).map(ask)
                };
                prop_assert_eq!(said, reference.count(call, key, window, dry), "{:?}", step);
            }
            Happens::Commits(n) => {
                prop_assert_eq!(state.commit(calls[n].stated(), now, &[]).is_ok(), reference.commit(n), "{:?}", step);
            }
            Happens::Ends { call, ran } => {
                state.note(calls[call].stated(), now, if ran { PastState::Ran } else { PastState::Refused });
                reference.end(call, ran);
                moments.remove(&call);
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn counters_are_those_of_the_reference(story in prop::collection::vec(happens(), 1..60)) {
        agrees_with_the_reference(&in_memory(), &story)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn counters_in_a_file_are_those_of_the_reference(story in prop::collection::vec(happens(), 1..60)) {
        let (_dir, state) = file();
        agrees_with_the_reference(&state, &story)?;
    }
}
