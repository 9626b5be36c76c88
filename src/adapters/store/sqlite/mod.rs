//! State in one SQLite file that only the user reads, shared by all processes of that user.
//!
//! Promises: a file that others may read, that somebody else made, that is newer than this version or damaged is refused,
//! and the error says what to do; it is never replaced or repaired here. Each change is one transaction: a process that is
//! killed leaves it whole or not at all. Waits at most a second for another process.
//!
//! A power cut may take the last moments with it, never more (`synchronous = NORMAL` over a write-ahead log).

mod asks;
mod chains;
mod grants;
mod open;
mod tables;

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

pub use chains::SqliteChains;
pub use grants::SqliteGrants;
pub use open::{FILE, OpenStateError};

use super::asks::Queue;
use super::state::State;
use tables::Database;

/// What a state file keeps. All of it is shared with other processes.
pub struct Opened {
    /// Labels, history, counters and pins.
    pub state: State,
    /// Approvals that last. Those of sessions are beside them, in memory.
    pub grants: SqliteGrants,
    /// Open questions.
    pub asks: Queue,
}

/// Opens what records need of the state in `folder`: heads and keys. On a connection of its own, so that a record waits for no
/// decision.
///
/// # Errors
/// An [`OpenStateError`] that names the file and says what to do.
pub fn open_chains(folder: &Path, user: u32) -> Result<SqliteChains, OpenStateError> {
    drop(open::connection(folder, user)?);
    Ok(SqliteChains::over(Database::new(open::forgetting(folder)?, folder.join(FILE))))
}

/// Opens the state in `folder`, which is made if it is missing. `user` is whose both must be.
///
/// # Errors
/// An [`OpenStateError`] that names the file and says what to do.
pub fn open(folder: &Path, user: u32) -> Result<Opened, OpenStateError> {
    let database = |connection| Database::new(connection, folder.join(FILE));
    let state = State::over(database(open::connection(folder, user)?));
    // A connection of their own: decisions do not wait for a look at the queue, nor it for them.
    let file = Arc::new(Mutex::new(database(open::another(folder)?)));
    Ok(Opened { state, grants: SqliteGrants::over(Arc::clone(&file)), asks: Queue::over(file) })
}
