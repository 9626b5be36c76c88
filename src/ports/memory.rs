//! Whoever keeps what a thread remembers: it is told that a thread has read what must not be remembered.

/// Takes the mark that a thread's memory is polluted.
///
/// Contract: told at most once for a thread of a session, just before the first call is handed over that pollutes it; that
/// call and others of the session wait meanwhile, so this must not block. The mark is for good: whether the call is then
/// sent, and what it answers, takes nothing back. A mark that cannot be kept is this side's to deal with.
pub trait MemorySink: Send + Sync {
    /// The memory of this thread is polluted from now on.
    fn polluted(&self, thread: &str);
}
