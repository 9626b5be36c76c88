//! What every keeper of chains promises (R34).

use super::memory_chains::MemoryChains;
use super::sqlite;
use crate::model::chain::{ChainId, Head};
use crate::model::digest::Digest;
use crate::ports::chains::Chains;

fn head(chain: &ChainId, lines: u64) -> Head {
    Head { chain: chain.clone(), lines, last: Digest::of(&lines.to_be_bytes()) }
}

fn keeps_its_promises(chains: &dyn Chains) {
    let (one, two) = (ChainId::fresh(), ChainId::fresh());
    let first = chains.begin(&one, "a").unwrap();
    let unknown_root = first.root.clone();
    assert_eq!((first.step, first.after), (0, None));
    chains.anchor(&head(&one, 1), "a", "a/1").unwrap();
    chains.anchor(&head(&one, 5), "a", "a/2").unwrap();
    chains.anchor(&head(&one, 4), "a", "a/1").unwrap();
    let known = chains.anchored(&one).unwrap().unwrap();
    assert_eq!((known.head, known.file.as_str()), (head(&one, 5), "a/2"));
    assert_eq!(chains.anchored(&two).unwrap(), None);

    let root = chains.renew().unwrap();
    let second = chains.begin(&two, "a").unwrap();
    assert_eq!((second.step, second.after), (0, Some(head(&one, 5))));
    assert_ne!(second.root, unknown_root);
    assert_eq!(second.key, root.of_chain(&two, 0));
    let elsewhere = chains.begin(&one, "b").unwrap();
    assert_eq!((elsewhere.step, elsewhere.after), (1, None));
    assert_eq!(elsewhere.key, root.of_chain(&one, 1));
    assert_eq!(chains.of_place("a").unwrap().len(), 1);
    assert!(chains.of_place("b").unwrap().is_empty());

    assert_eq!(chains.inputs_key().unwrap(), chains.inputs_key().unwrap());
}

#[test]
fn r34_chains_in_memory() {
    keeps_its_promises(&MemoryChains::default());
}

#[test]
fn r34_chains_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("portcullis");
    let user = rustix::process::getuid().as_raw();
    let chains = sqlite::open_chains(&folder, user).unwrap();
    keeps_its_promises(&chains);
    let again = sqlite::open_chains(&folder, user).unwrap();
    assert_eq!(again.inputs_key().unwrap(), chains.inputs_key().unwrap());
    assert_eq!(again.begin(&ChainId::fresh(), "c").unwrap().step, 2, "the root moves on for every process");
}
