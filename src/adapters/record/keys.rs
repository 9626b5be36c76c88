//! The keys of chains, found from the roots that somebody kept.
//!
//! A file says how many steps its chain's key is from its root, and a file is not to be trusted: all steps of one
//! verification are bounded together.

use crate::model::chain::{ChainId, Key, RootKey};

/// How many steps one verification takes, from roots to chains and over lines that are missing.
const MAX_STEPS: u64 = 50_000_000;

/// A root, and how far it was followed.
struct Followed {
    id: String,
    first: Key,
    at: Key,
    step: u64,
}

/// The roots of one verification.
pub(super) struct Keys {
    roots: Vec<Followed>,
    left: u64,
}

impl Keys {
    pub(super) fn of(roots: &[RootKey]) -> Self {
        let of = |root: &RootKey| Followed { id: root.0.id(), first: root.0.clone(), at: root.0.clone(), step: 0 };
        Self { roots: roots.iter().map(of).collect(), left: MAX_STEPS }
    }

    /// Whether there are any: marks are to be checked then.
    pub(super) fn are_given(&self) -> bool {
        !self.roots.is_empty()
    }

    /// Returns the key of line `seq` of a chain that was begun so many steps after the root that is called `root`; none: that
    /// root was not given, or is too far away.
    pub(super) fn of_line(&mut self, root: &str, step: u64, chain: &ChainId, seq: u64) -> Option<Key> {
        let at = self.roots.iter().position(|followed| followed.id == root)?;
        if let Some(followed) = self.roots.get_mut(at).filter(|followed| followed.step > step) {
            (followed.at, followed.step) = (followed.first.clone(), 0);
        }
        let (mut key, from) = self.roots.get(at).map(|followed| (followed.at.clone(), followed.step))?;
        self.advance(&mut key, step - from).then_some(())?;
        if let Some(followed) = self.roots.get_mut(at) {
            (followed.at, followed.step) = (key.clone(), step);
        }
        let mut key = key.of_chain(chain);
        self.advance(&mut key, seq).then_some(key)
    }

    /// Moves a key on; false, and it stays, if that is too far.
    pub(super) fn advance(&mut self, key: &mut Key, steps: u64) -> bool {
        let Some(left) = self.left.checked_sub(steps) else { return false };
        self.left = left;
        (0..steps).for_each(|_| key.step());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r34_a_chains_key_is_found_in_any_order_and_no_file_makes_us_step_without_end() {
        let root = RootKey(Key::new([3; 32]));
        let (id, chain) = (root.0.id(), ChainId::fresh());
        let mut keys = Keys::of(std::slice::from_ref(&root));
        for step in [0, 5, 2] {
            let mut wanted = root.of_chain(&chain, step);
            assert_eq!(keys.of_line(&id, step, &chain, 0), Some(wanted.clone()));
            wanted.step();
            assert_eq!(keys.of_line(&id, step, &chain, 1), Some(wanted));
        }
        assert_eq!(keys.of_line("another", 0, &chain, 0), None);
        assert_eq!(keys.of_line(&id, u64::MAX, &chain, 0), None);
        assert_eq!(keys.of_line(&id, 0, &chain, u64::MAX), None);
        assert!(keys.of_line(&id, 7, &chain, 0).is_some(), "what was refused has cost nothing");
    }
}
