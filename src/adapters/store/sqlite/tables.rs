//! The tables, read and changed. Every text in them was checked when it was written, and is checked again when it is read.

use std::path::PathBuf;

use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, TransactionBehavior, params};

use super::super::backing::{Backing, Counter, Ended, Kept, Owner, Past, too_many_labels, too_many_pins};
use super::super::form::{layer_columns, layer_of};
use crate::model::caller::{Caller, TenantId};
use crate::model::digest::Digest;
use crate::model::name::{RawToolName, ServerName, ToolRef};
use crate::model::text::shown;
use crate::model::verdict::{Label, Source};
use crate::ports::approval::{Kind, PastCall, PastState};
use crate::ports::state::{
    HISTORY_LIFE_MS, LABEL_LIFE_MS, MAX_COUNTER_POINTS, MAX_HISTORY, MAX_LABELS, MAX_PINS, Pin, StateFailed,
};

/// Which counter: tenant, layer, origin, component, key.
const COUNTER: &str = "tenant = ?1 AND layer = ?2 AND origin = ?3 AND component = ?4 AND key = ?5";

/// The open file.
pub(super) struct Database {
    connection: Connection,
    file: PathBuf,
}

/// Why a step failed: SQLite, or a bound.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    #[error(transparent)]
    State(#[from] StateFailed),
}

impl Database {
    pub(super) fn new(connection: Connection, file: PathBuf) -> Self {
        Self { connection, file }
    }

    /// One transaction that writes: kept whole, or not at all.
    pub(super) fn write<T>(
        &mut self,
        step: impl FnOnce(&Transaction<'_>) -> Result<T, Failed>,
    ) -> Result<T, StateFailed> {
        self.within(TransactionBehavior::Immediate, step)
    }

    /// One transaction that reads: all it sees is of one moment.
    pub(super) fn read<T>(
        &mut self,
        step: impl FnOnce(&Transaction<'_>) -> Result<T, Failed>,
    ) -> Result<T, StateFailed> {
        self.within(TransactionBehavior::Deferred, step)
    }

    fn within<T>(
        &mut self,
        behavior: TransactionBehavior,
        step: impl FnOnce(&Transaction<'_>) -> Result<T, Failed>,
    ) -> Result<T, StateFailed> {
        let all = || {
            let transaction = self.connection.transaction_with_behavior(behavior)?;
            let done = step(&transaction)?;
            transaction.commit()?;
            Ok(done)
        };
        all().map_err(|failed| match failed {
            Failed::Sqlite(error) => {
                let file = shown(&self.file.display().to_string(), 300);
                StateFailed(format!("`{file}`: {}", shown(&error.to_string(), 300)))
            }
            Failed::State(error) => error,
        })
    }
}

impl Backing for Database {
    fn sum(&mut self, counter: &Counter, now_ms: u64, window_ms: u64) -> Result<Kept, StateFailed> {
        self.read(|db| {
            let Some(found) = find(db, counter)? else { return Ok(Kept { sum: 0, known: false }) };
            let since = time(now_ms) - time(window_ms).min(found.window_ms);
            let mut sum =
                db.prepare_cached("SELECT coalesce(sum(n), 0) FROM counts WHERE counter = ?1 AND at_ms > ?2")?;
            let sum: i64 = sum.query_row([found.id, since], |row| row.get(0))?;
            let known = found.last_ms + found.window_ms > time(now_ms);
            Ok(Kept { sum: u64::try_from(sum).unwrap_or(0), known })
        })
    }

    fn counters(&mut self, owner: &Owner, now_ms: u64) -> Result<usize, StateFailed> {
        self.read(|db| {
            let mut count = db.prepare_cached(
                "SELECT count(*) FROM counters WHERE tenant = ?1 AND layer = ?2 AND origin = ?3 AND component = ?4 \
                 AND last_ms + window_ms > ?5",
            )?;
            let (layer, origin) = layer_columns(&owner.layer);
            let now = time(now_ms);
            let row = params![owner.tenant.as_str(), layer, origin, owner.component, now];
            let count: i64 = count.query_row(row, |row| row.get(0))?;
            Ok(usize::try_from(count).unwrap_or(0))
        })
    }

    fn commit(
        &mut self,
        caller: &Caller,
        setter: &str,
        now_ms: u64,
        counts: &[(Counter, u64)],
        labels: &[Label],
    ) -> Result<(), StateFailed> {
        self.write(|db| {
            set_labels(db, caller, setter, now_ms, labels)?;
            counts.iter().try_for_each(|(counter, window_ms)| add(db, counter, now_ms, *window_ms))
        })
    }

    fn take_back(&mut self, setter: &str, at_ms: u64, counters: &[Counter]) -> Result<(), StateFailed> {
        self.write(|db| {
            db.prepare_cached("DELETE FROM labels WHERE setter = ?1")?.execute([setter])?;
            counters.iter().try_for_each(|counter| subtract(db, counter, at_ms))
        })
    }

    fn past(&mut self, caller: &Caller, now_ms: u64) -> Result<Past, StateFailed> {
        self.read(|db| {
            let mut labels = db.prepare_cached(
                "SELECT name, layer, origin, component, digest FROM labels \
                 WHERE tenant = ?1 AND principal = ?2 AND expires_ms > ?3 ORDER BY name, layer, origin, component",
            )?;
            let of = params![caller.tenant.as_str(), caller.principal.as_str(), time(now_ms)];
            let labels = labels.query_and_then(of, label)?.collect::<Result<_, Failed>>()?;
            let mut calls = db.prepare_cached(
                "SELECT begun_ms, place, kind, server, tool, state FROM history \
                 WHERE tenant = ?1 AND principal = ?2 AND session = ?3 ORDER BY begun_ms DESC, place DESC LIMIT ?4",
            )?;
            let most = i64::try_from(MAX_HISTORY).unwrap_or(i64::MAX);
            let of = params![caller.tenant.as_str(), caller.principal.as_str(), caller.session.as_str(), most];
            let calls = calls.query_and_then(of, ended)?.collect::<Result<_, Failed>>()?;
            Ok((labels, calls))
        })
    }

    fn ended(&mut self, caller: &Caller, ended: &Ended) -> Result<(), StateFailed> {
        self.write(|db| {
            let (tenant, principal, session) =
                (caller.tenant.as_str(), caller.principal.as_str(), caller.session.as_str());
            let PastCall { kind, tool, state } = &ended.call;
            let place = i64::try_from(ended.order).unwrap_or(i64::MAX);
            db.prepare_cached(
                "INSERT INTO history (tenant, principal, session, begun_ms, place, kind, server, tool, state) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            )?
            .execute(params![
                tenant,
                principal,
                session,
                time(ended.begun_ms),
                place,
                kind_column(*kind),
                tool.server.as_str(),
                tool.tool.as_str(),
                state_column(*state)
            ])?;
            db.prepare_cached(
                "DELETE FROM history WHERE id IN (SELECT id FROM history WHERE tenant = ?1 AND principal = ?2 AND session = ?3 \
                 ORDER BY begun_ms DESC, place DESC LIMIT -1 OFFSET ?4)",
            )?
            .execute(params![tenant, principal, session, i64::try_from(MAX_HISTORY).unwrap_or(i64::MAX)])?;
            Ok(())
        })
    }

    fn purge(&mut self, now_ms: u64) -> Result<(), StateFailed> {
        self.write(|db| {
            let now = time(now_ms);
            db.execute("DELETE FROM counters WHERE last_ms + window_ms <= ?1", [now])?;
            db.execute("DELETE FROM labels WHERE expires_ms <= ?1", [now])?;
            db.execute(
                "DELETE FROM history WHERE (tenant, principal, session) IN (SELECT tenant, principal, session FROM history \
                 GROUP BY tenant, principal, session HAVING max(begun_ms) + ?2 <= ?1)",
                [now, time(HISTORY_LIFE_MS)],
            )?;
            Ok(())
        })
    }

    fn pinned(&mut self, tenant: &TenantId, tool: &ToolRef) -> Result<Option<Pin>, StateFailed> {
        self.read(|db| {
            let mut pin = db.prepare_cached(
                "SELECT digest, definition FROM pins WHERE tenant = ?1 AND server = ?2 AND tool = ?3",
            )?;
            let of = params![tenant.as_str(), tool.server.as_str(), tool.tool.as_str()];
            let found: Option<(String, String)> = pin.query_row(of, |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
            let Some((digest, definition)) = found else { return Ok(None) };
            Ok(Some(Pin { digest: parsed(Digest::parse(&digest).ok(), "digest")?, definition: definition.into() }))
        })
    }

    fn pin(&mut self, tenant: &TenantId, tool: &ToolRef, pin: &Pin) -> Result<(), StateFailed> {
        self.write(|db| {
            db.prepare_cached(
                "INSERT INTO pins (tenant, server, tool, digest, definition) VALUES (?1, ?2, ?3, ?4, ?5) \
                 ON CONFLICT DO UPDATE SET digest = excluded.digest, definition = excluded.definition",
            )?
            .execute(params![
                tenant.as_str(),
                tool.server.as_str(),
                tool.tool.as_str(),
                pin.digest.to_string(),
                &*pin.definition
            ])?;
            let mut count = db.prepare_cached("SELECT count(*) FROM pins WHERE tenant = ?1")?;
            let count: i64 = count.query_row([tenant.as_str()], |row| row.get(0))?;
            if usize::try_from(count).unwrap_or(usize::MAX) > MAX_PINS {
                return Err(too_many_pins().into());
            }
            Ok(())
        })
    }
}

/// A counter's row.
struct Found {
    id: i64,
    window_ms: i64,
    last_ms: i64,
}

fn find(db: &Transaction<'_>, counter: &Counter) -> rusqlite::Result<Option<Found>> {
    let mut find = db.prepare_cached(&format!("SELECT id, window_ms, last_ms FROM counters WHERE {COUNTER}"))?;
    let (layer, origin) = layer_columns(&counter.owner.layer);
    let of = params![counter.owner.tenant.as_str(), layer, origin, counter.owner.component, counter.key];
    find.query_row(of, |row| Ok(Found { id: row.get(0)?, window_ms: row.get(1)?, last_ms: row.get(2)? })).optional()
}

fn add(db: &Transaction<'_>, counter: &Counter, now_ms: u64, window_ms: u64) -> Result<(), Failed> {
    let (now, window) = (time(now_ms), time(window_ms));
    let id = match find(db, counter)? {
        Some(found) => {
            // What is older than the longest window so far is forgotten, also when that window becomes longer now.
            db.prepare_cached("DELETE FROM counts WHERE counter = ?1 AND at_ms <= ?2")?
                .execute([found.id, now - found.window_ms])?;
            db.prepare_cached(
                "UPDATE counters SET window_ms = max(window_ms, ?2), last_ms = max(last_ms, ?3) WHERE id = ?1",
            )?
            .execute([found.id, window, now])?;
            found.id
        }
        None => {
            let (layer, origin) = layer_columns(&counter.owner.layer);
            let Owner { tenant, component, .. } = &counter.owner;
            db.prepare_cached(
                "INSERT INTO counters (tenant, layer, origin, component, key, window_ms, last_ms) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            )?
            .execute(params![tenant.as_str(), layer, origin, component, counter.key, window, now])?;
            db.last_insert_rowid()
        }
    };
    db.prepare_cached("INSERT INTO counts (counter, at_ms, n) VALUES (?1, ?2, 1) ON CONFLICT DO UPDATE SET n = n + 1")?
        .execute([id, now])?;
    let mut points = db.prepare_cached("SELECT count(*) FROM counts WHERE counter = ?1")?;
    let points: i64 = points.query_row([id], |row| row.get(0))?;
    if usize::try_from(points).unwrap_or(0) > MAX_COUNTER_POINTS {
        merge_oldest(db, id)?;
    }
    Ok(())
}

/// The oldest two points become one at the time of the later: the sum errs upwards.
fn merge_oldest(db: &Transaction<'_>, id: i64) -> rusqlite::Result<()> {
    let mut oldest = db.prepare_cached("SELECT at_ms, n FROM counts WHERE counter = ?1 ORDER BY at_ms LIMIT 2")?;
    let found = oldest.query_map([id], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let found: Vec<(i64, i64)> = found.collect::<rusqlite::Result<_>>()?;
    if let [(first, n), (second, _)] = found[..] {
        db.execute("DELETE FROM counts WHERE counter = ?1 AND at_ms = ?2", [id, first])?;
        db.execute("UPDATE counts SET n = n + ?3 WHERE counter = ?1 AND at_ms = ?2", [id, second, n])?;
    }
    Ok(())
}

fn subtract(db: &Transaction<'_>, counter: &Counter, at_ms: u64) -> Result<(), Failed> {
    let Some(found) = find(db, counter)? else { return Ok(()) };
    // The point may have become one with a later one meanwhile.
    db.prepare_cached(
        "UPDATE counts SET n = n - 1 WHERE counter = ?1 AND at_ms = \
         (SELECT min(at_ms) FROM counts WHERE counter = ?1 AND at_ms >= ?2)",
    )?
    .execute([found.id, time(at_ms)])?;
    db.prepare_cached("DELETE FROM counts WHERE counter = ?1 AND n <= 0")?.execute([found.id])?;
    let mut last = db.prepare_cached("SELECT max(at_ms) FROM counts WHERE counter = ?1")?;
    let last: Option<i64> = last.query_row([found.id], |row| row.get(0))?;
    match last {
        Some(last) => db.execute("UPDATE counters SET last_ms = ?2 WHERE id = ?1", [found.id, last])?,
        None => db.execute("DELETE FROM counters WHERE id = ?1", [found.id])?,
    };
    Ok(())
}

fn set_labels(
    db: &Transaction<'_>,
    caller: &Caller,
    setter: &str,
    now_ms: u64,
    labels: &[Label],
) -> Result<(), Failed> {
    if labels.is_empty() {
        return Ok(());
    }
    let (tenant, principal) = (caller.tenant.as_str(), caller.principal.as_str());
    db.prepare_cached("DELETE FROM labels WHERE tenant = ?1 AND principal = ?2 AND expires_ms <= ?3")?
        .execute(params![tenant, principal, time(now_ms)])?;
    for label in labels {
        let (layer, origin) = layer_columns(&label.source.layer);
        // One that is there and is set again is nobody's to take back, unless it is this setter's own.
        db.prepare_cached(
            "INSERT INTO labels (tenant, principal, name, layer, origin, component, digest, expires_ms, setter) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT DO UPDATE SET digest = excluded.digest, \
             expires_ms = excluded.expires_ms, setter = CASE WHEN setter = excluded.setter THEN setter ELSE '' END",
        )?
        .execute(params![
            tenant,
            principal,
            label.name,
            layer,
            origin,
            &*label.source.component,
            label.source.digest.map(|digest| digest.to_string()),
            time(now_ms.saturating_add(LABEL_LIFE_MS)),
            setter
        ])?;
    }
    let mut count = db.prepare_cached("SELECT count(*) FROM labels WHERE tenant = ?1 AND principal = ?2")?;
    let count: i64 = count.query_row([tenant, principal], |row| row.get(0))?;
    if usize::try_from(count).unwrap_or(usize::MAX) > MAX_LABELS {
        return Err(too_many_labels().into());
    }
    Ok(())
}

fn label(row: &Row<'_>) -> Result<Label, Failed> {
    let (name, layer, origin, component): (String, String, Vec<u8>, String) =
        (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
    let digest: Option<String> = row.get(4)?;
    let digest = digest.map(|digest| parsed(Digest::parse(&digest).ok(), "digest")).transpose()?;
    let source = Source { layer: parsed(layer_of(&layer, &origin), "layer")?, component: component.into(), digest };
    Ok(Label { name, source })
}

fn ended(row: &Row<'_>) -> Result<Ended, Failed> {
    let (begun, place): (i64, i64) = (row.get(0)?, row.get(1)?);
    let (kind, server, tool, state): (String, String, String, String) =
        (row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?);
    let call = PastCall {
        kind: parsed(kind_of(&kind), "kind of call")?,
        tool: ToolRef {
            server: parsed(ServerName::parse(&server).ok(), "server")?,
            tool: parsed(RawToolName::parse(&tool).ok(), "tool")?,
        },
        state: parsed(state_of(&state), "state of a call")?,
    };
    let whole = |n: i64| u64::try_from(n).unwrap_or(0);
    Ok(Ended { begun_ms: whole(begun), order: whole(place), call })
}

/// A text that this version does not write: somebody else has.
pub(super) fn parsed<T>(value: Option<T>, what: &str) -> Result<T, StateFailed> {
    value.ok_or_else(|| StateFailed(format!("what is kept holds no {what} where one must be")))
}

/// Milliseconds as SQLite counts; what is beyond is the end of time, with room left for sums.
pub(super) fn time(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX).min(i64::MAX / 4)
}

fn kind_column(kind: Kind) -> &'static str {
    match kind {
        Kind::Tool => "tool",
        Kind::Read => "read",
        Kind::Prompt => "prompt",
        Kind::Completion => "completion",
        Kind::Reply => "reply",
    }
}

fn kind_of(text: &str) -> Option<Kind> {
    let all = [Kind::Tool, Kind::Read, Kind::Prompt, Kind::Completion, Kind::Reply];
    all.into_iter().find(|kind| kind_column(*kind) == text)
}

fn state_column(state: PastState) -> &'static str {
    match state {
        PastState::Open => "open",
        PastState::Ran => "ran",
        PastState::Refused => "refused",
    }
}

fn state_of(text: &str) -> Option<PastState> {
    [PastState::Open, PastState::Ran, PastState::Refused].into_iter().find(|state| state_column(*state) == text)
}
