//! The mark that a thread's memory is polluted by what servers answer (catalog-dispatch 5, step 10c).

use std::sync::{Arc, OnceLock};

use crate::ports::memory::MemorySink;

/// The memory of one thread, and who is told that it is polluted.
pub struct ThreadMemory {
    thread: String,
    sink: Arc<dyn MemorySink>,
    told: OnceLock<()>,
}

/// The memory that a call may pollute, and what is done once it has.
pub struct Marking<'a> {
    /// The memory of its thread.
    pub memory: &'a ThreadMemory,
    /// Notes that this call was one of those that pollute it.
    pub noted: &'a mut (dyn FnMut() + Send),
}

impl ThreadMemory {
    /// The memory of this thread, not polluted so far.
    #[must_use]
    pub fn new(thread: impl Into<String>, sink: Arc<dyn MemorySink>) -> Self {
        Self { thread: thread.into(), sink, told: OnceLock::new() }
    }

    /// Whether the sink was told.
    #[must_use]
    pub fn is_polluted(&self) -> bool {
        self.told.get().is_some()
    }
}

impl Marking<'_> {
    /// Marks the thread. Returns once its sink has been told, by whichever call came first.
    pub(super) fn mark(self) {
        self.memory.told.get_or_init(|| self.memory.sink.polluted(&self.memory.thread));
        (self.noted)();
    }
}
