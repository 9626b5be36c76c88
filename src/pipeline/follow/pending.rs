//! The calls that are open right now: what a shutdown waits for, and what refuses a second call with the same id.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::model::caller::SessionId;
use crate::model::name::{CallId, Target};

/// All open calls of one host.
#[derive(Debug, Default)]
pub struct PendingCalls {
    open: Mutex<HashMap<(SessionId, CallId), Target>>,
    ended: Notify,
}

/// One open call; ends when it is dropped.
#[derive(Debug)]
pub struct Pending {
    calls: Arc<PendingCalls>,
    key: (SessionId, CallId),
}

impl PendingCalls {
    /// Opens a call; `None` when one with this id is open in the session.
    #[must_use]
    pub fn open(self: &Arc<Self>, session: &SessionId, id: &CallId, target: &Target) -> Option<Pending> {
        let key = (session.clone(), id.clone());
        match self.open.lock().entry(key.clone()) {
            std::collections::hash_map::Entry::Occupied(_) => None,
            std::collections::hash_map::Entry::Vacant(slot) => {
                slot.insert(target.clone());
                Some(Pending { calls: Arc::clone(self), key })
            }
        }
    }

    /// Returns how many calls are open.
    #[must_use]
    pub fn count(&self) -> usize {
        self.open.lock().len()
    }

    /// Waits until no call is open.
    pub async fn idle(&self) {
        loop {
            let ended = self.ended.notified();
            if self.count() == 0 {
                return;
            }
            ended.await;
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.calls.open.lock().remove(&self.key);
        self.calls.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::name::ToolRef;

    #[test]
    fn an_id_can_be_open_once_in_a_session_and_again_in_another() {
        let calls = Arc::new(PendingCalls::default());
        let (one, other) = (SessionId::new("one"), SessionId::new("other"));
        let id = CallId::new("1").unwrap();
        let target = Target::from(ToolRef::parse("s/t").unwrap());
        let open = calls.open(&one, &id, &target);
        assert!(open.is_some());
        assert!(calls.open(&one, &id, &target).is_none());
        assert!(calls.open(&other, &id, &target).is_some());
        drop(open);
        assert!(calls.open(&one, &id, &target).is_some());
    }
}
