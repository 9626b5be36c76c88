//! How many calls may be under way at once. A further one waits for a place, after it was approved and before its lease.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places for calls that were handed over and not answered; shared by its clones.
#[derive(Debug, Clone)]
pub struct Slots {
    most: usize,
    free: Arc<Semaphore>,
}

/// One taken place; free again when it is dropped.
#[derive(Debug)]
pub struct Slot(#[expect(dead_code, reason = "held for its drop")] Option<OwnedSemaphorePermit>);

impl Slots {
    /// Makes `most` places, at least one.
    #[must_use]
    pub fn new(most: usize) -> Self {
        let most = most.clamp(1, Semaphore::MAX_PERMITS);
        Self { most, free: Arc::new(Semaphore::new(most)) }
    }

    /// Waits for a place in each of `all`, in their order.
    pub(crate) async fn take(all: &[Self]) -> Vec<Slot> {
        let mut taken = Vec::with_capacity(all.len());
        for slots in all {
            // The semaphore is never closed.
            taken.push(Slot(Arc::clone(&slots.free).acquire_owned().await.ok()));
        }
        taken
    }
}

/// Two sets of places are alike if they have as many.
impl PartialEq for Slots {
    fn eq(&self, other: &Self) -> bool {
        self.most == other.most
    }
}

impl Eq for Slots {}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_place_is_free_again_when_its_call_has_ended() {
        let slots = [Slots::new(1)];
        let first = Slots::take(&slots).await;
        let mut second = Box::pin(Slots::take(&slots));
        assert!(futures::poll!(&mut second).is_pending());
        drop(first);
        assert_eq!(second.await.len(), 1);
    }
}
