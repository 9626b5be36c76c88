//! Heads and keys of records in the file. A chain takes its key and moves the root on in one transaction.

use parking_lot::Mutex;
use rusqlite::{OptionalExtension as _, Row, Transaction, params};

use super::super::memory_chains::random_key;
use super::tables::{Database, Failed};
use crate::model::chain::{ChainId, Head, Key, RootKey};
use crate::model::digest::Digest;
use crate::ports::chains::{Anchor, Begun, Chains, ChainsFailed, MAX_HEADS};
use crate::ports::state::StateFailed;

/// The key that chains begin with.
const ROOT: &str = "root";
/// The key of tenants' digests.
const INPUTS: &str = "inputs";

/// Heads and keys, shared by all processes of the user.
pub struct SqliteChains(Mutex<Database>);

impl SqliteChains {
    pub(super) fn over(database: Database) -> Self {
        Self(Mutex::new(database))
    }

    fn write<T>(&self, step: impl FnOnce(&Transaction<'_>) -> Result<T, Failed>) -> Result<T, ChainsFailed> {
        self.0.lock().write(step).map_err(|StateFailed(why)| ChainsFailed(why))
    }

    fn read<T>(&self, step: impl FnOnce(&Transaction<'_>) -> Result<T, Failed>) -> Result<T, ChainsFailed> {
        self.0.lock().read(step).map_err(|StateFailed(why)| ChainsFailed(why))
    }
}

impl std::fmt::Debug for SqliteChains {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SqliteChains")
    }
}

impl Chains for SqliteChains {
    fn begin(&self, chain: &ChainId, place: &str) -> Result<Begun, ChainsFailed> {
        // Made before the transaction: what it fails with is no failure of the file.
        let fresh = random_key()?;
        self.write(|db| {
            let (root, step, mut key) = key(db, ROOT)?.unwrap_or_else(|| (fresh.id(), 0, fresh));
            let after = db
                .prepare_cached(
                    "SELECT chain, lines, last, file FROM chains WHERE place = ?1 ORDER BY age DESC LIMIT 1",
                )?
                .query_row([place], columns)
                .optional()?;
            let after = after.map(anchor_of).transpose()?.map(|anchor| anchor.head);
            let begun = Begun { root: root.clone(), step, key: key.of_chain(chain), after };
            key.step();
            keep(db, ROOT, &root, step + 1, &key)?;
            Ok(begun)
        })
    }

    fn anchor(&self, head: &Head, place: &str, file: &str) -> Result<(), ChainsFailed> {
        self.write(|db| {
            db.prepare_cached(
                "INSERT INTO chains (chain, place, lines, last, file) VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (chain) \
                 DO UPDATE SET lines = excluded.lines, last = excluded.last, file = excluded.file \
                 WHERE excluded.lines > lines",
            )?
            .execute(params![
                head.chain.as_str(),
                place,
                lines(head.lines)?,
                head.last.to_string(),
                file
            ])?;
            db.prepare_cached("DELETE FROM chains WHERE age <= (SELECT max(age) FROM chains) - ?1")?
                .execute([i64::try_from(MAX_HEADS).unwrap_or(i64::MAX)])?;
            Ok(())
        })
    }

    fn anchored(&self, chain: &ChainId) -> Result<Option<Anchor>, ChainsFailed> {
        self.read(|db| {
            let found = db
                .prepare_cached("SELECT chain, lines, last, file FROM chains WHERE chain = ?1")?
                .query_row([chain.as_str()], columns)
                .optional()?;
            found.map(anchor_of).transpose()
        })
    }

    fn of_place(&self, place: &str) -> Result<Vec<Anchor>, ChainsFailed> {
        self.read(|db| {
            let mut all =
                db.prepare_cached("SELECT chain, lines, last, file FROM chains WHERE place = ?1 ORDER BY age")?;
            let rows: Vec<Columns> = all.query_map([place], columns)?.collect::<Result<_, _>>()?;
            rows.into_iter().map(anchor_of).collect()
        })
    }

    fn renew(&self) -> Result<RootKey, ChainsFailed> {
        let fresh = random_key()?;
        self.write(|db| keep(db, ROOT, &fresh.id(), 0, &fresh))?;
        Ok(RootKey(fresh))
    }

    fn inputs_key(&self) -> Result<Key, ChainsFailed> {
        let fresh = random_key()?;
        self.write(|db| {
            if let Some((_, _, key)) = key(db, INPUTS)? {
                return Ok(key);
            }
            keep(db, INPUTS, &fresh.id(), 0, &fresh)?;
            Ok(fresh)
        })
    }
}

fn key(db: &Transaction<'_>, name: &str) -> Result<Option<(String, u64, Key)>, Failed> {
    let found: Option<(String, i64, Vec<u8>)> = db
        .prepare_cached("SELECT id, step, key FROM record_keys WHERE name = ?1")?
        .query_row([name], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    let Some((id, step, bytes)) = found else { return Ok(None) };
    let bytes: [u8; 32] = bytes.try_into().map_err(|_| unreadable("key"))?;
    Ok(Some((id, u64::try_from(step).map_err(|_| unreadable("step"))?, Key::new(bytes))))
}

fn keep(db: &Transaction<'_>, name: &str, id: &str, step: u64, key: &Key) -> Result<(), Failed> {
    db.prepare_cached(
        "INSERT INTO record_keys (name, id, step, key) VALUES (?1, ?2, ?3, ?4) ON CONFLICT (name) \
         DO UPDATE SET id = excluded.id, step = excluded.step, key = excluded.key",
    )?
    .execute(params![name, id, lines(step)?, key.expose().as_slice()])?;
    Ok(())
}

/// A chain's row: chain, lines, last, file.
type Columns = (String, i64, String, String);

fn columns(row: &Row<'_>) -> rusqlite::Result<Columns> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
}

fn anchor_of((chain, lines, last, file): Columns) -> Result<Anchor, Failed> {
    let chain = ChainId::try_from(chain).map_err(|_| unreadable("chain"))?;
    let lines = u64::try_from(lines).map_err(|_| unreadable("number of lines"))?;
    let last = Digest::parse(&last).map_err(|_| unreadable("digest"))?;
    Ok(Anchor { head: Head { chain, lines, last }, file })
}

fn lines(count: u64) -> Result<i64, Failed> {
    i64::try_from(count).map_err(|_| unreadable("number of lines"))
}

fn unreadable(what: &str) -> Failed {
    Failed::State(StateFailed(format!("what is kept of the records has no {what} where one must be")))
}
