//! Opens the file: whose it is, whether it is ours and whole, and what has to be added to it.

use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};
use rustix::fs::OFlags;

use crate::model::text::shown;

/// The file's name.
pub const FILE: &str = "state.db";
/// How long another process's transaction is waited for.
pub(super) const BUSY: Duration = Duration::from_secs(1);
/// `PCst`: tells our file from any other database.
const APPLICATION: i64 = 0x5043_7374;
/// Readable or writable by group or others.
const SHARED: u32 = 0o077;
/// How long opening is tried again while other processes open the same file for the first time.
const OPENING: Duration = Duration::from_secs(5);
/// How long each pause is meanwhile.
const PAUSE: Duration = Duration::from_millis(10);

/// Each brings the file from one version to the next. Released ones never change.
const MIGRATIONS: [&str; 3] = ["
    CREATE TABLE counters (
        id INTEGER PRIMARY KEY,
        tenant TEXT NOT NULL, layer TEXT NOT NULL, origin BLOB NOT NULL, component TEXT NOT NULL, key TEXT NOT NULL,
        window_ms INTEGER NOT NULL, last_ms INTEGER NOT NULL,
        UNIQUE (tenant, layer, origin, component, key)
    ) STRICT;
    CREATE TABLE counts (
        counter INTEGER NOT NULL REFERENCES counters ON DELETE CASCADE, at_ms INTEGER NOT NULL, n INTEGER NOT NULL,
        PRIMARY KEY (counter, at_ms)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE labels (
        tenant TEXT NOT NULL, principal TEXT NOT NULL, name TEXT NOT NULL,
        layer TEXT NOT NULL, origin BLOB NOT NULL, component TEXT NOT NULL, digest TEXT,
        expires_ms INTEGER NOT NULL, setter TEXT NOT NULL,
        PRIMARY KEY (tenant, principal, name, layer, origin, component)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE history (
        id INTEGER PRIMARY KEY,
        tenant TEXT NOT NULL, principal TEXT NOT NULL, session TEXT NOT NULL,
        begun_ms INTEGER NOT NULL, place INTEGER NOT NULL,
        kind TEXT NOT NULL, server TEXT NOT NULL, tool TEXT NOT NULL, state TEXT NOT NULL
    ) STRICT;
    CREATE INDEX history_of_session ON history (tenant, principal, session, begun_ms, place);
    CREATE TABLE pins (
        tenant TEXT NOT NULL, server TEXT NOT NULL, tool TEXT NOT NULL, digest TEXT NOT NULL, definition TEXT NOT NULL,
        PRIMARY KEY (tenant, server, tool)
    ) STRICT, WITHOUT ROWID;
", "
    CREATE TABLE grants (
        age INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        tenant TEXT NOT NULL, principal TEXT NOT NULL, groups TEXT NOT NULL, session TEXT NOT NULL,
        server TEXT NOT NULL, tool TEXT NOT NULL, identity TEXT NOT NULL, definition TEXT NOT NULL, connector TEXT NOT NULL,
        answered TEXT NOT NULL, arguments TEXT, scope TEXT NOT NULL, expires_ms INTEGER NOT NULL, approver TEXT NOT NULL
    ) STRICT;
    CREATE INDEX grants_of_tool ON grants (tenant, principal, server, tool);
    CREATE TABLE asks (
        age INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, question TEXT NOT NULL,
        created_ms INTEGER NOT NULL, deadline_ms INTEGER NOT NULL, live_until_ms INTEGER NOT NULL, state TEXT NOT NULL,
        decision TEXT, approver TEXT, answered_ms INTEGER, outcome TEXT, granted TEXT
    ) STRICT;
    CREATE INDEX asks_of_tenant ON asks (tenant, state);
    CREATE INDEX asks_pending ON asks (deadline_ms) WHERE state = 'pending';
    CREATE INDEX asks_waiting ON asks (live_until_ms) WHERE outcome = 'waiting';
", "
    CREATE TABLE record_keys (name TEXT PRIMARY KEY, id TEXT NOT NULL, step INTEGER NOT NULL, key BLOB NOT NULL) STRICT;
    CREATE TABLE chains (
        age INTEGER PRIMARY KEY AUTOINCREMENT,
        chain TEXT NOT NULL UNIQUE, place TEXT NOT NULL,
        lines INTEGER NOT NULL, last TEXT NOT NULL, file TEXT NOT NULL
    ) STRICT;
    CREATE INDEX chains_of_place ON chains (place, age);
"];

/// Why the state cannot be opened. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenStateError {
    /// It cannot be made, opened or looked at.
    #[error("the state `{}` cannot be opened", path(.0))]
    Io(PathBuf, #[source] io::Error),
    /// A link, a folder, a pipe.
    #[error("the state `{}` is not a regular file; move it away", path(.0))]
    NotAFile(PathBuf),
    /// The place of the folder is taken by something else, or it is a link.
    #[error("`{}`, where the state is kept, is not a folder of its own; move it away", path(.0))]
    NotAFolder(PathBuf),
    /// Somebody else owns the file or its folder.
    #[error("`{}` is owned by user {owner}, not by you; set XDG_STATE_HOME to a folder of yours", path(place))]
    Owner {
        /// The file or folder.
        place: PathBuf,
        /// The owner's id.
        owner: u32,
    },
    /// Others may read or write the file or its folder.
    #[error(
        "`{}` is open to others (mode {mode:03o}); see who has changed it, then `chmod {wanted:03o} {}`",
        path(place),
        path(place)
    )]
    Shared {
        /// The file or folder.
        place: PathBuf,
        /// The permission bits.
        mode: u32,
        /// What they should be.
        wanted: u32,
    },
    /// A database of another program.
    #[error("`{}` is not a state of portcullis; move it away", path(.0))]
    NotOurs(PathBuf),
    /// A later version of this program has written it.
    #[error("the state `{}` is of version {version}, and this portcullis knows {}; use the newer portcullis, or move \
        the file away (counters, labels, history, pins, approvals and questions then start empty)", path(place), MIGRATIONS.len())]
    Newer {
        /// The file.
        place: PathBuf,
        /// Its version.
        version: i64,
    },
    /// It is no database, or not a whole one.
    #[error(
        "the state `{}` is damaged: {why}; restore it, or move it away with its `-wal` and `-shm` (counters, labels, \
        history, pins, approvals and questions then start empty)",
        path(place)
    )]
    Damaged {
        /// The file.
        place: PathBuf,
        /// What SQLite says.
        why: String,
    },
    /// SQLite cannot work with it.
    #[error(
        "the state `{}` cannot be used; it must be on a local disk with room, and no other program may hold it",
        path(place)
    )]
    Failed {
        /// The file.
        place: PathBuf,
        /// Why.
        #[source]
        source: rusqlite::Error,
    },
}

fn path(path: &Path) -> String {
    shown(&path.display().to_string(), 300)
}

/// Opens the file in `folder`, brought to this version.
pub(super) fn connection(folder: &Path, user: u32) -> Result<Connection, OpenStateError> {
    let file = folder.join(FILE);
    check_folder(folder, user)?;
    check_file(&file, user)?;
    let begun = Instant::now();
    loop {
        match connect(&file, true) {
            Ok(connection) => return Ok(connection),
            // Of processes that make one file at once, SQLite does not let every one wait: it would be for each other.
            Err(OpenStateError::Failed { source, .. }) if is_busy(&source) && begun.elapsed() < OPENING => {
                std::thread::sleep(PAUSE);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Opens the file once more, for keys: what is overwritten in it is gone, as far as SQLite can see to that (R34).
pub(super) fn forgetting(folder: &Path) -> Result<Connection, OpenStateError> {
    let file = folder.join(FILE);
    let connection = connect(&file, false)?;
    let failed = |source| OpenStateError::Failed { place: file.clone(), source };
    connection.pragma_update(None, "secure_delete", "ON").map_err(failed)?;
    Ok(connection)
}

/// Opens the file once more, which [`connection`] has just opened and checked.
pub(super) fn another(folder: &Path) -> Result<Connection, OpenStateError> {
    connect(&folder.join(FILE), false)
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

fn check_folder(folder: &Path, user: u32) -> Result<(), OpenStateError> {
    let io = |source| OpenStateError::Io(folder.to_owned(), source);
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(io)?;
    let found = folder.symlink_metadata().map_err(io)?;
    if !found.is_dir() {
        return Err(OpenStateError::NotAFolder(folder.to_owned()));
    }
    check_private(folder, user, (found.uid(), found.mode()), 0o700)
}

/// Makes the file if it is missing, for its owner alone, and checks what is there. The handle is gone before SQLite opens the
/// file: closing it later would end SQLite's own locks.
fn check_file(file: &Path, user: u32) -> Result<(), OpenStateError> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags.bits().cast_signed());
    let found = match file.symlink_metadata() {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let made = options.open(file).and_then(|made| made.metadata());
            made.map_err(|source| OpenStateError::Io(file.to_owned(), source))?
        }
        Err(error) => return Err(OpenStateError::Io(file.to_owned(), error)),
    };
    if !found.is_file() {
        return Err(OpenStateError::NotAFile(file.to_owned()));
    }
    check_private(file, user, (found.uid(), found.mode()), 0o600)
}

fn check_private(place: &Path, user: u32, (owner, mode): (u32, u32), wanted: u32) -> Result<(), OpenStateError> {
    if owner != user {
        return Err(OpenStateError::Owner { place: place.to_owned(), owner });
    }
    if mode & SHARED != 0 {
        return Err(OpenStateError::Shared { place: place.to_owned(), mode: mode & 0o777, wanted });
    }
    Ok(())
}

fn connect(file: &Path, check: bool) -> Result<Connection, OpenStateError> {
    let failed = |error: rusqlite::Error| match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            OpenStateError::Damaged { place: file.to_owned(), why: shown(&error.to_string(), 200) }
        }
        _ => OpenStateError::Failed { place: file.to_owned(), source: error },
    };
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(file, flags).map_err(failed)?;
    connection.busy_timeout(BUSY).map_err(failed)?;
    // What is in the file is data: nothing in its schema may run code or write where SQLite keeps its own.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true).map_err(failed)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false).map_err(failed)?;
    connection.set_prepared_statement_cache_capacity(64);

    version(&connection).map_err(failed)?.check(file)?;
    if check {
        let found: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(failed)?;
        if found != "ok" {
            return Err(OpenStateError::Damaged { place: file.to_owned(), why: shown(&found, 200) });
        }
    }
    connection.pragma_update(None, "journal_mode", "WAL").map_err(failed)?;
    connection.pragma_update(None, "synchronous", "NORMAL").map_err(failed)?;
    connection.pragma_update(None, "foreign_keys", "ON").map_err(failed)?;
    migrate(&mut connection, file, failed)?;
    Ok(connection)
}

/// What a file says it is.
struct Version {
    application: i64,
    version: i64,
    empty: bool,
}

impl Version {
    /// Returns how many migrations it has had.
    fn check(&self, file: &Path) -> Result<usize, OpenStateError> {
        if self.application != APPLICATION {
            let fresh = self.application == 0 && self.version == 0 && self.empty;
            return if fresh { Ok(0) } else { Err(OpenStateError::NotOurs(file.to_owned())) };
        }
        match usize::try_from(self.version) {
            Ok(version) if version <= MIGRATIONS.len() => Ok(version),
            _ => Err(OpenStateError::Newer { place: file.to_owned(), version: self.version }),
        }
    }
}

fn version(connection: &Connection) -> rusqlite::Result<Version> {
    let pragma = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let objects: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    Ok(Version { application: pragma("application_id")?, version: pragma("user_version")?, empty: objects == 0 })
}

fn migrate(
    connection: &mut Connection,
    file: &Path,
    failed: impl Fn(rusqlite::Error) -> OpenStateError,
) -> Result<(), OpenStateError> {
    let change = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(&failed)?;
    // Another process may have been first.
    let had = version(&change).map_err(&failed)?.check(file)?;
    for migration in MIGRATIONS.iter().skip(had) {
        change.execute_batch(migration).map_err(&failed)?;
    }
    if had < MIGRATIONS.len() {
        change.pragma_update(None, "application_id", APPLICATION).map_err(&failed)?;
        change
            .pragma_update(None, "user_version", i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX))
            .map_err(&failed)?;
    }
    change.commit().map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn me() -> u32 {
        rustix::process::getuid().as_raw()
    }

    fn place() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("portcullis");
        (dir, folder)
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().mode() & 0o777
    }

    fn refused(folder: &Path) -> String {
        connection(folder, me()).unwrap_err().to_string()
    }

    #[test]
    fn a_fresh_state_is_the_users_alone_its_log_included() {
        let (_dir, folder) = place();
        let _open = connection(&folder, me()).unwrap();
        assert_eq!(mode(&folder), 0o700);
        for file in ["state.db", "state.db-wal", "state.db-shm"] {
            assert_eq!(mode(&folder.join(file)), 0o600, "{file}");
        }
    }

    #[test]
    fn a_state_is_opened_again_and_again_and_by_many_at_once() {
        let (_dir, folder) = place();
        let barrier = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    barrier.wait();
                    connection(&folder, me()).unwrap();
                });
            }
        });
        let open = connection(&folder, me()).unwrap();
        assert_eq!(version(&open).unwrap().version, 3);
    }

    #[test]
    fn what_others_may_read_or_own_is_refused_with_the_way_out() {
        let (_dir, folder) = place();
        drop(connection(&folder, me()).unwrap());
        let file = folder.join(FILE);
        let chmod = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        chmod(&file, 0o640);
        assert!(refused(&folder).contains("(mode 640); see who has changed it, then `chmod 600 "));
        chmod(&file, 0o600);
        chmod(&folder, 0o755);
        assert!(refused(&folder).contains("then `chmod 700 "));
        chmod(&folder, 0o700);
        assert!(matches!(connection(&folder, me() + 1), Err(OpenStateError::Owner { .. })));
        assert!(connection(&folder, me()).is_ok());
    }

    #[test]
    fn a_link_is_refused() {
        let (dir, folder) = place();
        drop(connection(&folder, me()).unwrap());
        let other = dir.path().join("other");
        DirBuilder::new().mode(0o700).create(&other).unwrap();
        std::os::unix::fs::symlink(folder.join(FILE), other.join(FILE)).unwrap();
        assert!(matches!(connection(&other, me()), Err(OpenStateError::NotAFile(_))));
        let linked = dir.path().join("linked");
        std::os::unix::fs::symlink(&folder, &linked).unwrap();
        assert!(matches!(connection(&linked, me()), Err(OpenStateError::NotAFolder(_))));
    }

    #[test]
    fn a_newer_a_foreign_and_a_damaged_file_are_refused_with_the_way_out_and_left_as_they_are() {
        let (_dir, folder) = place();
        let file = folder.join(FILE);
        let open = connection(&folder, me()).unwrap();
        open.pragma_update(None, "user_version", 99).unwrap();
        drop(open);
        let said = refused(&folder);
        assert!(said.contains("state.db` is of version 99, and this portcullis knows 3; use the newer"), "{said}");

        let open = Connection::open(&file).unwrap();
        open.pragma_update(None, "application_id", 7).unwrap();
        drop(open);
        assert!(refused(&folder).ends_with("state.db` is not a state of portcullis; move it away"));

        std::fs::write(&file, "these are not the bytes of a database, whatever else they are".repeat(100)).unwrap();
        let before = std::fs::read(&file).unwrap();
        let said = refused(&folder);
        assert!(said.contains("state.db` is damaged: ") && said.contains("move it away"), "{said}");
        assert_eq!(std::fs::read(&file).unwrap(), before);
    }

    #[test]
    fn a_file_with_a_page_of_rubbish_is_damaged() {
        let (_dir, folder) = place();
        let open = connection(&folder, me()).unwrap();
        let insert = "INSERT INTO history (tenant, principal, session, begun_ms, place, kind, server, tool, state) \
            VALUES ('t', 'p', ?1, 1, ?1, 'tool', 's', 't', 'ran')";
        for n in 0..2000 {
            open.execute(insert, [n]).unwrap();
        }
        drop(open);
        let file = folder.join(FILE);
        let mut bytes = std::fs::read(&file).unwrap();
        let middle = bytes.len() / 2 / 4096 * 4096;
        bytes[middle..middle + 4096].fill(0xa5);
        std::fs::write(&file, bytes).unwrap();
        assert!(matches!(connection(&folder, me()), Err(OpenStateError::Damaged { .. })));
    }
}
