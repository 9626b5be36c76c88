//! Queues that are served in turn, so that one that is long does not hold up the others.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Things that wait.
pub(super) trait Waiting {
    /// What waits.
    type Item;

    /// Takes what is next.
    fn take(&mut self) -> Option<Self::Item>;

    /// Whether nothing waits.
    fn is_empty(&self) -> bool;
}

impl<T> Waiting for VecDeque<T> {
    type Item = T;

    fn take(&mut self) -> Option<T> {
        self.pop_front()
    }

    fn is_empty(&self) -> bool {
        VecDeque::is_empty(self)
    }
}

/// Queues by key. Each that has something waiting gives one thing a round, oldest key first. Holds nothing for the others.
#[derive(Debug)]
pub(super) struct Turns<K, Q> {
    queues: HashMap<K, Q>,
    order: VecDeque<K>,
}

impl<K, Q> Default for Turns<K, Q> {
    fn default() -> Self {
        Self { queues: HashMap::new(), order: VecDeque::new() }
    }
}

impl<K: Clone + Eq + Hash, Q: Default> Turns<K, Q> {
    /// Returns a key's queue; a new one has its turn after all others.
    pub(super) fn of(&mut self, key: &K) -> &mut Q {
        if !self.queues.contains_key(key) {
            self.order.push_back(key.clone());
        }
        self.queues.entry(key.clone()).or_default()
    }
}

impl<K: Clone + Eq + Hash, Q: Waiting> Waiting for Turns<K, Q> {
    type Item = Q::Item;

    fn take(&mut self) -> Option<Q::Item> {
        while let Some(key) = self.order.pop_front() {
            let Some(queue) = self.queues.get_mut(&key) else { continue };
            let item = queue.take();
            if queue.is_empty() {
                self.queues.remove(&key);
            } else {
                self.order.push_back(key);
            }
            if item.is_some() {
                return item;
            }
        }
        None
    }

    fn is_empty(&self) -> bool {
        self.queues.values().all(Waiting::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    type Nested = Turns<u8, Turns<u8, VecDeque<u32>>>;

    fn drain(turns: &mut Nested) -> Vec<u32> {
        std::iter::from_fn(|| turns.take()).collect()
    }

    #[test]
    fn r14_one_that_waits_alone_is_behind_at_most_one_of_each_other() {
        let mut turns = Nested::default();
        for item in 0..100 {
            turns.of(&1).of(&1).push_back(item);
        }
        turns.of(&1).of(&2).push_back(1000);
        turns.of(&2).of(&1).push_back(2000);
        assert_eq!(&drain(&mut turns)[..4], [0, 2000, 1000, 1]);
    }

    proptest! {
        /// Whatever comes in whatever order: all of it comes out once, and each queue's own order stays.
        #[test]
        fn nothing_is_lost_and_each_queue_keeps_its_order(
            steps in proptest::collection::vec(proptest::option::of((0_u8..4, 0_u8..3)), 0..200)
        ) {
            let mut turns = Nested::default();
            let (mut put, mut taken) = (BTreeMap::<_, Vec<_>>::new(), BTreeMap::<_, Vec<_>>::new());
            let mut whose = Vec::new();
            let mut note = |item: u32, whose: &[(u8, u8)]| {
                taken.entry(whose[item as usize]).or_default().push(item);
            };
            for step in steps {
                if let Some(key) = step {
                    let item = u32::try_from(whose.len()).unwrap();
                    whose.push(key);
                    put.entry(key).or_default().push(item);
                    turns.of(&key.0).of(&key.1).push_back(item);
                } else if let Some(item) = turns.take() {
                    note(item, &whose);
                }
            }
            for item in drain(&mut turns) {
                note(item, &whose);
            }
            prop_assert_eq!(put, taken);
            prop_assert!(turns.is_empty() && turns.queues.is_empty() && turns.order.is_empty());
        }
    }
}
