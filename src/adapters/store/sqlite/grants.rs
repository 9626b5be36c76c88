//! Grants in the file: those that hold "always", and those for one call, which another process may have given.
//!
//! A grant for the session stays in memory: its session dies with its process, and a file would only keep what nobody can
//! use. Reads and writes are short; a write waits at most a second for another process, as those of the state do.

use std::sync::Arc;

use parking_lot::Mutex;
use rusqlite::{Row, Transaction, params};

use super::super::asks::settle_due;
use super::super::form::{self, Unreadable};
use super::super::memory::{MAX_GRANTS, MemoryGrants, given_ms, is_same};
use super::tables::{Database, Failed, parsed, time};
use crate::model::caller::{Caller, Principal, SessionId, TenantId};
use crate::model::digest::Digest;
use crate::model::name::ToolRef;
use crate::model::text::shown;
use crate::model::tool::ServerIdentity;
use crate::model::verdict::Remember;
use crate::ports::asks::MAX_APPROVER;
use crate::ports::grants::{Grant, GrantSubject, Grants, MAX_RELATED, NotRemembered};
use crate::ports::state::StateFailed;

/// The most grants of one subject that are looked at for one call, the newest first. Beyond, its owner is asked again.
const MAX_FOUND: i64 = 1024;
/// What a grant's row has.
const COLUMNS: &str = "id, tenant, principal, groups, session, server, tool, identity, definition, connector, answered, \
                       arguments, scope, expires_ms, approver";

/// The grants of a state file, and those of this process's sessions.
pub struct SqliteGrants {
    file: Arc<Mutex<Database>>,
    sessions: MemoryGrants,
    max: usize,
}

impl SqliteGrants {
    pub(super) fn over(file: Arc<Mutex<Database>>) -> Self {
        Self { file, sessions: MemoryGrants::default(), max: MAX_GRANTS }
    }

    /// Changes how many grants a tenant can have.
    #[cfg(test)]
    pub(in crate::adapters::store) fn with_max(mut self, max: usize) -> Self {
        self.max = max;
        self
    }

    /// Returns a tenant's grants in the file that have not ended, the newest first.
    ///
    /// # Errors
    /// [`StateFailed`].
    pub fn all(&self, tenant: &TenantId, now_ms: u64) -> Result<Vec<Grant>, StateFailed> {
        self.file.lock().read(|db| {
            let mut all = db.prepare_cached(&format!(
                "SELECT {COLUMNS} FROM grants WHERE tenant = ?1 AND expires_ms > ?2 ORDER BY age DESC"
            ))?;
            all.query_and_then(params![tenant.as_str(), time(now_ms)], grant)?.collect()
        })
    }
}

impl Grants for SqliteGrants {
    fn widest(&self) -> Remember {
        Remember::Always
    }

    fn find(&self, subject: &GrantSubject, now_ms: u64) -> Vec<Grant> {
        let mut found = self.sessions.find(subject, now_ms);
        let mut file = self.file.lock();
        // An answer that nobody came for is a grant from the moment that its caller was gone.
        if let Err(error) = settle_due(&mut *file, now_ms) {
            tracing::warn!(%error, "answers that came late are not looked at");
        }
        match file.read(|db| find(db, subject, now_ms)) {
            Ok(kept) => found.extend(kept),
            // Whoever cannot tell what was agreed asks.
            Err(error) => tracing::warn!(%error, "remembered approvals cannot be read"),
        }
        found
    }

    fn related(&self, caller: &Caller, tool: &ToolRef) -> Vec<Grant> {
        let kept = self.file.lock().read(|db| {
            let mut related = db.prepare_cached(&format!(
                "SELECT {COLUMNS} FROM grants WHERE tenant = ?1 AND principal = ?2 AND server = ?3 AND tool = ?4 \
                 ORDER BY age DESC LIMIT ?5"
            ))?;
            let most = i64::try_from(MAX_RELATED).unwrap_or(i64::MAX);
            let of = params![
                caller.tenant.as_str(),
                caller.principal.as_str(),
                tool.server.as_str(),
                tool.tool.as_str(),
                most
            ];
            related.query_and_then(of, grant)?.collect::<Result<Vec<_>, Failed>>()
        });
        let kept = kept.unwrap_or_else(|error| {
            tracing::warn!(%error, "remembered approvals cannot be read");
            Vec::new()
        });
        let mut all = self.sessions.related(caller, tool);
        all.extend(kept);
        all.sort_by_key(|grant| std::cmp::Reverse(given_ms(grant)));
        all.truncate(MAX_RELATED);
        all
    }

    fn take(&self, id: &str) -> Result<bool, NotRemembered> {
        if self.sessions.take(id)? {
            return Ok(true);
        }
        self.file.lock().write(|db| Ok(remove(db, id)?)).map_err(failed)
    }

    fn store(&self, grant: Grant) -> Result<(), NotRemembered> {
        match grant.scope {
            Remember::Session => return self.sessions.store(grant),
            Remember::Never if grant.arguments.is_none() => {
                return Err(NotRemembered("it holds for one call and binds no arguments".to_owned()));
            }
            Remember::Never | Remember::Always => {}
        }
        self.file.lock().write(|db| insert(db, &grant, self.max)).map_err(failed)
    }

    fn forget(&self, id: &str) {
        self.sessions.forget(id);
        if let Err(error) = self.file.lock().write(|db| Ok(remove(db, id)?)) {
            tracing::warn!(%error, "an approval could not be forgotten; `portcullis approvals grants` shows what is there");
        }
    }
}

fn failed(error: StateFailed) -> NotRemembered {
    NotRemembered(error.0)
}

/// Removes a grant: true for whoever is first.
pub(super) fn remove(db: &Transaction<'_>, id: &str) -> rusqlite::Result<bool> {
    Ok(db.prepare_cached("DELETE FROM grants WHERE id = ?1")?.execute([id])? == 1)
}

/// Keeps a grant: the same agreement once, and the oldest makes room.
pub(super) fn insert(db: &Transaction<'_>, grant: &Grant, max: usize) -> Result<(), Failed> {
    let GrantSubject { caller, tool, identity, definition, connector } = &grant.subject;
    let tenant = caller.tenant.as_str();
    let given = given_ms(grant);
    db.prepare_cached("DELETE FROM grants WHERE expires_ms <= ?1")?.execute([time(given)])?;
    if find(db, &grant.subject, given)?.iter().any(|old| is_same(old, grant)) {
        return Ok(());
    }
    db.prepare_cached(&format!(
        "INSERT INTO grants ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)"
    ))?
    .execute(params![
        grant.id,
        tenant,
        caller.principal.as_str(),
        readable(form::groups_text(&caller.groups))?,
        caller.session.as_str(),
        tool.server.as_str(),
        tool.tool.as_str(),
        identity.0.to_string(),
        definition.to_string(),
        readable(form::connector_text(connector.as_ref()))?,
        readable(form::answered_text(&grant.answered))?,
        grant.arguments.map(|digest| digest.to_string()),
        scope_column(grant.scope),
        time(grant.expires_ms),
        shown(&grant.approver, MAX_APPROVER),
    ])?;
    db.prepare_cached(
        "DELETE FROM grants WHERE age IN (SELECT age FROM grants WHERE tenant = ?1 ORDER BY age DESC LIMIT -1 OFFSET ?2)",
    )?
    .execute(params![tenant, i64::try_from(max).unwrap_or(i64::MAX)])?;
    Ok(())
}

fn find(db: &Transaction<'_>, subject: &GrantSubject, now_ms: u64) -> Result<Vec<Grant>, Failed> {
    let mut find = db.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM grants WHERE tenant = ?1 AND principal = ?2 AND server = ?3 AND tool = ?4 \
         AND identity = ?5 AND definition = ?6 AND expires_ms > ?7 ORDER BY age DESC LIMIT ?8"
    ))?;
    let of = params![
        subject.caller.tenant.as_str(),
        subject.caller.principal.as_str(),
        subject.tool.server.as_str(),
        subject.tool.tool.as_str(),
        subject.identity.0.to_string(),
        subject.definition.to_string(),
        time(now_ms),
        MAX_FOUND
    ];
    let mut found: Vec<Grant> = find.query_and_then(of, grant)?.collect::<Result<_, Failed>>()?;
    found.retain(|grant| grant.binds(subject));
    Ok(found)
}

fn grant(row: &Row<'_>) -> Result<Grant, Failed> {
    let text = |at: usize| row.get::<_, String>(at);
    let digest = |text: &str| parsed(Digest::parse(text).ok(), "digest");
    let caller = Caller {
        tenant: TenantId::new(text(1)?),
        principal: Principal::new(text(2)?),
        groups: readable(form::groups_of(&text(3)?))?,
        session: SessionId::new(text(4)?),
    };
    let subject = GrantSubject {
        caller,
        tool: readable(form::tool_of(&text(5)?, &text(6)?))?,
        identity: ServerIdentity(digest(&text(7)?)?),
        definition: digest(&text(8)?)?,
        connector: readable(form::connector_of(&text(9)?))?,
    };
    let arguments: Option<String> = row.get(11)?;
    let expires: i64 = row.get(13)?;
    let scope = parsed(scope_of(&text(12)?), "scope")?;
    let arguments = arguments.as_deref().map(digest).transpose()?;
    if scope == Remember::Never && arguments.is_none() {
        return Err(StateFailed("what is kept holds a grant for one call that binds no arguments".to_owned()).into());
    }
    Ok(Grant {
        id: shown(&text(0)?, 64),
        subject,
        answered: readable(form::answered_of(&text(10)?))?,
        arguments,
        scope,
        expires_ms: u64::try_from(expires).unwrap_or(0),
        approver: shown(&text(14)?, MAX_APPROVER),
    })
}

pub(super) fn readable<T>(read: Result<T, Unreadable>) -> Result<T, StateFailed> {
    read.map_err(|Unreadable(why)| StateFailed(why))
}

fn scope_column(scope: Remember) -> &'static str {
    match scope {
        Remember::Never => "once",
        Remember::Session => "session",
        Remember::Always => "always",
    }
}

fn scope_of(text: &str) -> Option<Remember> {
    [Remember::Never, Remember::Always].into_iter().find(|scope| scope_column(*scope) == text)
}
