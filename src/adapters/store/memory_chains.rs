//! Heads and keys of records in memory: for programs that keep nothing, and for tests.

use parking_lot::Mutex;

use crate::model::chain::{ChainId, Head, Key, RootKey};
use crate::ports::chains::{Anchor, Begun, Chains, ChainsFailed, MAX_HEADS};

/// Keeps them for as long as the process lives.
#[derive(Debug, Default)]
pub struct MemoryChains(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    root: Option<(String, u64, Key)>,
    inputs: Option<Key>,
    chains: Vec<(String, Anchor)>,
}

impl Chains for MemoryChains {
    fn begin(&self, chain: &ChainId, place: &str) -> Result<Begun, ChainsFailed> {
        let mut kept = self.0.lock();
        let after = kept.chains.iter().rev().find(|(of, _)| of == place).map(|(_, anchor)| anchor.head.clone());
        if kept.root.is_none() {
            let key = random_key()?;
            kept.root = Some((key.id(), 0, key));
        }
        let Some((root, step, key)) = &mut kept.root else { return Err(ChainsFailed("there is no root".to_owned())) };
        let begun = Begun { root: root.clone(), step: *step, key: key.of_chain(chain), after };
        key.step();
        *step += 1;
        Ok(begun)
    }

    fn anchor(&self, head: &Head, place: &str, file: &str) -> Result<(), ChainsFailed> {
        let mut kept = self.0.lock();
        let anchor = Anchor { head: head.clone(), file: file.to_owned() };
        match kept.chains.iter_mut().find(|(_, anchor)| anchor.head.chain == head.chain) {
            Some((_, known)) if known.head.lines < head.lines => *known = anchor,
            Some(_) => {}
            None => kept.chains.push((place.to_owned(), anchor)),
        }
        if kept.chains.len() > MAX_HEADS {
            kept.chains.remove(0);
        }
        Ok(())
    }

    fn anchored(&self, chain: &ChainId) -> Result<Option<Anchor>, ChainsFailed> {
        let kept = self.0.lock();
        Ok(kept.chains.iter().find(|(_, anchor)| anchor.head.chain == *chain).map(|(_, anchor)| anchor.clone()))
    }

    fn of_place(&self, place: &str) -> Result<Vec<Anchor>, ChainsFailed> {
        let kept = self.0.lock();
        Ok(kept.chains.iter().filter(|(of, _)| of == place).map(|(_, anchor)| anchor.clone()).collect())
    }

    fn renew(&self) -> Result<RootKey, ChainsFailed> {
        let key = random_key()?;
        self.0.lock().root = Some((key.id(), 0, key.clone()));
        Ok(RootKey(key))
    }

    fn inputs_key(&self) -> Result<Key, ChainsFailed> {
        let mut kept = self.0.lock();
        if kept.inputs.is_none() {
            kept.inputs = Some(random_key()?);
        }
        kept.inputs.clone().ok_or_else(|| ChainsFailed("there is no key".to_owned()))
    }
}

/// Makes a key of randomness.
pub(super) fn random_key() -> Result<Key, ChainsFailed> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| ChainsFailed(format!("there is no randomness: {error}")))?;
    Ok(Key::new(bytes))
}
