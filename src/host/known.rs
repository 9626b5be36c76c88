//! What servers listed last, so that a list need not wait for one that is starting (catalog-dispatch 2.1 rule 14).
//!
//! In memory only, and for servers alone whose launch says which server they are ([`Upstream::may_be_remembered`]: child
//! processes). A list is found again under the same tenant, server name and launch; what is shown of it, and that nothing is
//! called by it, is the catalog's business ([`RememberedServer`]).
//!
//! [`Upstream::may_be_remembered`]: crate::ports::upstream::Upstream::may_be_remembered
//! [`RememberedServer`]: crate::pipeline::admit::remembered::RememberedServer

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::model::caller::TenantId;
use crate::model::digest::Digest;
use crate::model::name::ServerName;
use crate::model::tool::ToolDefinition;

/// How many lists are known.
pub const MAX_LISTS: usize = 32;
/// How long a list is known after it was read.
pub const LIFE: Duration = Duration::from_secs(30 * 60);
/// The most bytes of all definitions that are known.
pub const MAX_BYTES: usize = 64 * 1024 * 1024;

/// The definitions of one list, in the server's order, whole.
pub(super) type List = Arc<[Arc<ToolDefinition>]>;

/// What servers listed last. Clones share it: an embedder gives one to all hosts that may know of each other's servers.
#[derive(Debug, Clone)]
pub struct KnownLists {
    tenant: TenantId,
    all: Arc<Mutex<Lists>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    tenant: TenantId,
    server: ServerName,
    launch: Digest,
}

#[derive(Debug)]
struct Known {
    list: List,
    bytes: usize,
    read: Instant,
    /// When it was used last, as a count.
    used: u64,
}

#[derive(Debug, Default)]
struct Lists {
    of: HashMap<Key, Known>,
    uses: u64,
}

impl KnownLists {
    /// Knows nothing yet; for the servers of this tenant.
    #[must_use]
    pub fn new(tenant: TenantId) -> Self {
        Self { tenant, all: Arc::default() }
    }

    /// Returns the same memory for the servers of another tenant: neither finds what the other's have listed.
    #[must_use]
    pub fn for_tenant(&self, tenant: TenantId) -> Self {
        Self { tenant, all: Arc::clone(&self.all) }
    }

    fn key(&self, server: &ServerName, launch: Digest) -> Key {
        Key { tenant: self.tenant.clone(), server: server.clone(), launch }
    }

    /// Keeps what a server lists now. Beyond [`MAX_LISTS`] and [`MAX_BYTES`] what was not used for the longest time goes.
    pub(super) fn keep(&self, server: &ServerName, launch: Digest, definitions: &[Arc<ToolDefinition>]) {
        self.all.lock().keep(self.key(server, launch), definitions.into(), MAX_BYTES);
    }

    /// Forgets what a server has listed.
    pub(super) fn forget(&self, server: &ServerName, launch: Digest) {
        self.all.lock().of.remove(&self.key(server, launch));
    }

    /// Returns what a server listed last, if that is known and not older than [`LIFE`].
    pub(super) fn last(&self, server: &ServerName, launch: Digest) -> Option<List> {
        self.all.lock().last(&self.key(server, launch))
    }
}

impl Lists {
    fn keep(&mut self, key: Key, list: List, most: usize) {
        self.of.remove(&key);
        let bytes = list.iter().map(|tool| tool.verbatim().len()).sum();
        if bytes > most {
            return;
        }
        self.of.retain(|_, known| known.read.elapsed() < LIFE);
        while self.of.len() >= MAX_LISTS || self.bytes().saturating_add(bytes) > most {
            let oldest = self.of.iter().min_by_key(|(_, known)| known.used).map(|(key, _)| key.clone());
            let Some(oldest) = oldest else { break };
            self.of.remove(&oldest);
        }
        self.uses += 1;
        self.of.insert(key, Known { list, bytes, read: Instant::now(), used: self.uses });
    }

    fn last(&mut self, key: &Key) -> Option<List> {
        let known = self.of.get_mut(key)?;
        if known.read.elapsed() >= LIFE {
            self.of.remove(key);
            return None;
        }
        self.uses += 1;
        known.used = self.uses;
        Some(Arc::clone(&known.list))
    }

    fn bytes(&self) -> usize {
        self.of.values().map(|known| known.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(name: &str) -> Vec<Arc<ToolDefinition>> {
        let text = format!(r#"{{"name":"{name}","inputSchema":{{}}}}"#);
        vec![Arc::new(ToolDefinition::parse(&text).unwrap())]
    }

    fn server(name: &str) -> ServerName {
        ServerName::parse(name).unwrap()
    }

    fn tenant(name: &str) -> KnownLists {
        KnownLists::new(TenantId::new(name))
    }

    fn names(lists: &KnownLists, of: &str, launch: &[u8]) -> Vec<String> {
        let last = lists.last(&server(of), Digest::of(launch));
        last.iter().flat_map(|list| list.iter()).map(|tool| tool.name().to_string()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn b3_a_list_is_found_by_tenant_server_and_launch_and_by_nothing_less() {
        let one = tenant("one");
        one.keep(&server("s"), Digest::of(b"launch"), &list("a"));
        assert_eq!(names(&one, "s", b"launch"), ["a"]);
        assert!(names(&one, "s", b"other").is_empty(), "another launch");
        assert!(names(&one, "t", b"launch").is_empty(), "another server");
        let other = one.for_tenant(TenantId::new("two"));
        assert!(names(&other, "s", b"launch").is_empty(), "R37: another tenant");
        other.keep(&server("s"), Digest::of(b"launch"), &list("b"));
        assert_eq!((names(&one, "s", b"launch"), names(&other, "s", b"launch")), (vec!["a".into()], vec!["b".into()]));
        one.forget(&server("s"), Digest::of(b"launch"));
        assert!(names(&one, "s", b"launch").is_empty());
        assert_eq!(names(&other, "s", b"launch"), ["b"]);
    }

    #[tokio::test(start_paused = true)]
    async fn b3_a_list_is_known_for_half_an_hour_after_it_was_read() {
        let lists = tenant("one");
        lists.keep(&server("s"), Digest::of(b"l"), &list("a"));
        tokio::time::advance(LIFE - Duration::from_millis(1)).await;
        assert_eq!(names(&lists, "s", b"l"), ["a"]);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(names(&lists, "s", b"l").is_empty(), "using it does not make it younger");
        assert!(lists.all.lock().of.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn b3_of_more_than_thirty_two_lists_the_one_that_nobody_used_goes() {
        let lists = tenant("one");
        for at in 0..MAX_LISTS {
            lists.keep(&server(&format!("s{at}")), Digest::of(b"l"), &list("a"));
        }
        assert_eq!(names(&lists, "s0", b"l").len(), 1);
        lists.keep(&server("more"), Digest::of(b"l"), &list("a"));
        assert_eq!(lists.all.lock().of.len(), MAX_LISTS);
        assert_eq!(["s0", "s1", "s2", "more"].map(|of| names(&lists, of, b"l").len()), [1, 0, 1, 1]);
        // The same one again takes no more room.
        lists.keep(&server("more"), Digest::of(b"l"), &list("b"));
        assert_eq!((names(&lists, "s2", b"l").len(), names(&lists, "more", b"l")), (1, vec!["b".to_owned()]));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_known_is_bounded_in_bytes() {
        let key = |name: &str| tenant("one").key(&server(name), Digest::of(b"l"));
        let (a, b) = (list("a"), list("b"));
        let bytes = a[0].verbatim().len();
        let mut lists = Lists::default();
        lists.keep(key("a"), a.as_slice().into(), bytes * 2 - 1);
        lists.keep(key("b"), b.as_slice().into(), bytes * 2 - 1);
        assert!(lists.last(&key("a")).is_none() && lists.last(&key("b")).is_some());
        lists.keep(key("b"), b.as_slice().into(), bytes - 1);
        assert!(lists.of.is_empty(), "one that is too large alone leaves an old one behind");
    }
}
