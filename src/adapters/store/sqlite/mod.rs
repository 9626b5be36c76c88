//! State in one SQLite file that only the user reads, shared by all processes of that user.
//!
//! Promises: a file that others may read, that somebody else made, that is newer than this version or damaged is refused,
//! and the error says what to do; it is never replaced or repaired here. Each change is one transaction: a process that is
//! killed leaves it whole or not at all. Waits at most a second for another process.
//!
//! A power cut may take the last moments with it, never more (`synchronous = NORMAL` over a write-ahead log).

mod open;
mod tables;

use std::path::Path;

pub use open::{FILE, OpenStateError};

use super::state::State;

/// Opens the state in `folder`, which is made if it is missing. `user` is whose both must be.
///
/// # Errors
/// An [`OpenStateError`] that names the file and says what to do.
pub fn open(folder: &Path, user: u32) -> Result<State, OpenStateError> {
    let connection = open::connection(folder, user)?;
    Ok(State::over(tables::Database::new(connection, folder.join(FILE))))
}
