//! The queue of questions in the file. A question and the grant that it becomes change in one transaction.

use rusqlite::{OptionalExtension as _, Row, Transaction, params};

use super::super::asks::{AskBacking, Shelf, Standing, Step};
use super::super::form;
use super::super::memory::MAX_GRANTS;
use super::grants::{self, readable};
use super::tables::{Database, Failed, parsed, time};
use crate::model::caller::TenantId;
use crate::model::text::shown;
use crate::model::verdict::Remember;
use crate::ports::asks::{
    AskState, AsksFailed, Decision, Delivery, ENDED_LIFE_MS, KeptAsk, MAX_APPROVER, MAX_PENDING, NotQueued,
};
use crate::ports::grants::Grant;
use crate::ports::state::StateFailed;

/// What a question's row has.
const COLUMNS: &str =
    "question, created_ms, deadline_ms, live_until_ms, state, decision, approver, answered_ms, outcome, granted";

impl From<StateFailed> for AsksFailed {
    fn from(failed: StateFailed) -> Self {
        Self(failed.0)
    }
}

struct InFile<'a, 'b>(&'a Transaction<'b>);

impl Shelf for InFile<'_, '_> {
    fn put(&mut self, grant: Grant) -> Result<(), AsksFailed> {
        grants::insert(self.0, &grant, MAX_GRANTS).map_err(|failed| AsksFailed(failed.to_string()))
    }

    fn take(&mut self, id: &str) -> Result<bool, AsksFailed> {
        grants::remove(self.0, id).map_err(|failed| AsksFailed(failed.to_string()))
    }
}

impl AskBacking for Database {
    fn insert(&mut self, ask: &KeptAsk, text: &str) -> Result<(), NotQueued> {
        let caller = &ask.question.agreement.subject.caller;
        let most = i64::try_from(MAX_PENDING).unwrap_or(i64::MAX);
        let full = self.write(|db| {
            db.prepare_cached("DELETE FROM asks WHERE state <> 'pending' AND deadline_ms <= ?1")?
                .execute([time(ask.created_ms.saturating_sub(ENDED_LIFE_MS))])?;
            let mut count = db.prepare_cached("SELECT count(*) FROM asks WHERE tenant = ?1 AND state = 'pending'")?;
            let count: i64 = count.query_row([caller.tenant.as_str()], |row| row.get(0))?;
            if count >= most {
                return Ok(true);
            }
            db.prepare_cached(
                "DELETE FROM asks WHERE age IN (SELECT age FROM asks WHERE tenant = ?1 AND state <> 'pending' \
                 ORDER BY age DESC LIMIT -1 OFFSET ?2)",
            )?
            .execute(params![caller.tenant.as_str(), most])?;
            db.prepare_cached(
                "INSERT INTO asks (id, tenant, question, created_ms, deadline_ms, live_until_ms, state) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, 'pending')",
            )?
            .execute(params![
                ask.question.id,
                caller.tenant.as_str(),
                text,
                time(ask.created_ms),
                time(ask.deadline_ms),
                time(ask.live_until_ms)
            ])?;
            Ok(false)
        });
        if full.map_err(AsksFailed::from)? { Err(NotQueued::Full) } else { Ok(()) }
    }

    fn change(&mut self, id: &str, step: Step<'_>) -> Result<bool, AsksFailed> {
        let changed = self.write(|db| {
            let Some(mut ask) = get(db, id)? else { return Ok(false) };
            step(&mut ask, &mut InFile(db)).map_err(|AsksFailed(why)| StateFailed(why))?;
            save(db, &ask)?;
            Ok(true)
        });
        Ok(changed?)
    }

    fn standing(&mut self, id: &str) -> Result<Option<Standing>, AsksFailed> {
        let read = self.read(|db| {
            let mut standing =
                db.prepare_cached("SELECT state = 'pending', deadline_ms, live_until_ms FROM asks WHERE id = ?1")?;
            let standing = standing.query_row([id], |row| {
                let (pending, deadline, live): (bool, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
                Ok(Standing { pending, deadline_ms: whole(deadline), live_until_ms: whole(live) })
            });
            Ok(standing.optional()?)
        });
        Ok(read?)
    }

    fn get(&mut self, id: &str) -> Result<Option<KeptAsk>, AsksFailed> {
        Ok(self.read(|db| get(db, id))?)
    }

    fn list(&mut self, tenant: &TenantId, all: bool, now_ms: u64) -> Result<Vec<KeptAsk>, AsksFailed> {
        let most = i64::try_from(2 * MAX_PENDING).unwrap_or(i64::MAX);
        let read = self.read(|db| {
            let mut list = db.prepare_cached(&format!(
                "SELECT {COLUMNS} FROM asks WHERE tenant = ?1 AND (?2 OR (state = 'pending' AND deadline_ms > ?3)) \
                 ORDER BY age DESC LIMIT ?4"
            ))?;
            list.query_and_then(params![tenant.as_str(), all, time(now_ms), most], ask)?.collect()
        });
        Ok(read?)
    }

    fn due(&mut self, now_ms: u64) -> Result<Vec<String>, AsksFailed> {
        let read = self.read(|db| {
            let mut due = db.prepare_cached(
                "SELECT id FROM asks WHERE (state = 'pending' AND deadline_ms <= ?1) \
                 OR (outcome = 'waiting' AND live_until_ms <= ?1)",
            )?;
            let ids: rusqlite::Result<Vec<String>> = due.query_map([time(now_ms)], |row| row.get(0))?.collect();
            Ok(ids?)
        });
        Ok(read?)
    }
}

fn get(db: &Transaction<'_>, id: &str) -> Result<Option<KeptAsk>, Failed> {
    let mut get = db.prepare_cached(&format!("SELECT {COLUMNS} FROM asks WHERE id = ?1"))?;
    let mut rows = get.query_and_then([id], ask)?;
    rows.next().transpose()
}

fn save(db: &Transaction<'_>, ask: &KeptAsk) -> Result<(), Failed> {
    let (state, answer) = match &ask.state {
        AskState::Pending => ("pending", None),
        AskState::Expired => ("expired", None),
        AskState::Answered { decision, approver, at_ms, outcome } => {
            let (outcome, granted) = outcome_columns(outcome);
            ("answered", Some((decision_column(*decision), approver.as_str(), time(*at_ms), outcome, granted)))
        }
    };
    let (decision, approver, at_ms, outcome, granted) = match answer {
        Some((decision, approver, at_ms, outcome, granted)) => {
            (Some(decision), Some(approver), Some(at_ms), Some(outcome), granted)
        }
        None => (None, None, None, None, None),
    };
    db.prepare_cached(
        "UPDATE asks SET live_until_ms = ?2, state = ?3, decision = ?4, approver = ?5, answered_ms = ?6, outcome = ?7, \
         granted = ?8 WHERE id = ?1",
    )?
    .execute(params![
        ask.question.id,
        time(ask.live_until_ms),
        state,
        decision,
        approver,
        at_ms,
        outcome,
        granted
    ])?;
    Ok(())
}

fn ask(row: &Row<'_>) -> Result<KeptAsk, Failed> {
    let question: String = row.get(0)?;
    let (created, deadline, live): (i64, i64, i64) = (row.get(1)?, row.get(2)?, row.get(3)?);
    Ok(KeptAsk {
        question: readable(form::question_of(&question))?,
        created_ms: whole(created),
        deadline_ms: whole(deadline),
        live_until_ms: whole(live),
        state: state(row)?,
    })
}

fn state(row: &Row<'_>) -> Result<AskState, Failed> {
    let word: String = row.get(4)?;
    match word.as_str() {
        "pending" => Ok(AskState::Pending),
        "expired" => Ok(AskState::Expired),
        "answered" => {
            let (decision, approver, at): (String, String, i64) = (row.get(5)?, row.get(6)?, row.get(7)?);
            let (outcome, granted): (String, Option<String>) = (row.get(8)?, row.get(9)?);
            Ok(AskState::Answered {
                decision: parsed(decision_of(&decision), "decision")?,
                approver: shown(&approver, MAX_APPROVER),
                at_ms: whole(at),
                outcome: parsed(outcome_of(&outcome, granted), "outcome")?,
            })
        }
        _ => Ok(parsed(None, "state of a question")?),
    }
}

fn decision_column(decision: Decision) -> &'static str {
    match decision {
        Decision::Allow(Remember::Never) => "once",
        Decision::Allow(Remember::Session) => "session",
        Decision::Allow(Remember::Always) => "always",
        Decision::Deny => "deny",
    }
}

fn decision_of(text: &str) -> Option<Decision> {
    use Decision::{Allow, Deny};
    let all = [Allow(Remember::Never), Allow(Remember::Session), Allow(Remember::Always), Deny];
    all.into_iter().find(|decision| decision_column(*decision) == text)
}

fn outcome_columns(outcome: &Delivery) -> (&'static str, Option<&str>) {
    match outcome {
        Delivery::Waiting => ("waiting", None),
        Delivery::Delivered => ("delivered", None),
        Delivery::Granted(id) => ("granted", Some(id)),
        Delivery::Lost => ("lost", None),
    }
}

fn outcome_of(text: &str, granted: Option<String>) -> Option<Delivery> {
    match (text, granted) {
        ("waiting", None) => Some(Delivery::Waiting),
        ("delivered", None) => Some(Delivery::Delivered),
        ("granted", Some(id)) => Some(Delivery::Granted(shown(&id, 64))),
        ("lost", None) => Some(Delivery::Lost),
        _ => None,
    }
}

fn whole(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}
