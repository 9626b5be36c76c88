//! The record that the configuration asks for, and what `audit` compares it with.

use std::path::PathBuf;
use std::sync::Arc;

use super::wire::NoState;
use crate::adapters::record::fanout::Fanout;
use crate::adapters::record::jsonl::{JsonLines, OpenFailed, Writing};
use crate::adapters::record::place::Place;
use crate::adapters::store::sqlite;
use crate::config::records::KeptIn;
use crate::config::{Places, Resolved};
use crate::ports::chains::Chains;
use crate::ports::recorder::Recorder;

/// Where records are kept in the user's state.
const FOLDER: &str = "records";
/// Bytes of a MiB.
const MIB: u64 = 1024 * 1024;

/// Why there is no record.
#[derive(Debug, thiserror::Error)]
pub enum NoRecord {
    /// Its keys and heads cannot be kept.
    #[error(transparent)]
    State(#[from] NoState),
    /// It cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenFailed),
}

/// Opens what is known of records besides their files.
///
/// # Errors
/// [`NoState`].
pub fn open_chains(places: &Places) -> Result<Arc<dyn Chains>, NoState> {
    let folder = places.state.as_ref().ok_or(NoState::NoPlace)?;
    Ok(Arc::new(sqlite::open_chains(folder, places.user)?))
}

/// Returns the folder that the configuration keeps records in; none: it keeps none, or there is no place for them.
#[must_use]
pub fn folder(resolved: &Resolved, places: &Places) -> Option<PathBuf> {
    match &resolved.records.keep.as_ref()?.value {
        KeptIn::Folder(folder) => Some(folder.clone()),
        KeptIn::State => Some(places.state.as_ref()?.join(FOLDER)),
    }
}

/// Opens the record: in the configuration's folder, and in `log` as well if there is one. Without either nothing is kept.
///
/// # Errors
/// [`NoRecord`]: a host that should record and cannot does not start, whatever `on_failure` says.
pub fn open(
    resolved: &Resolved,
    places: &Places,
    log: Option<PathBuf>,
    include_arguments: bool,
) -> Result<Arc<dyn Recorder>, NoRecord> {
    let records = &resolved.records;
    let folder = match (&records.keep, folder(resolved, places)) {
        (Some(_), None) => return Err(NoState::NoPlace.into()),
        (_, folder) => folder,
    };
    if folder.is_none() && log.is_none() {
        return Ok(Arc::new(Fanout::default()));
    }
    let chains = open_chains(places)?;
    let writing = Writing {
        include_arguments: false,
        inputs: records.inputs.value,
        on_failure: records.on_failure.value,
        fsync: records.fsync.value,
        rotate_bytes: u64::from(records.rotate_mib.value) * MIB,
    };
    let mut all: Vec<Arc<dyn Recorder>> = Vec::new();
    if let Some(folder) = folder {
        all.push(Arc::new(JsonLines::open(Place::Folder(folder), writing, Arc::clone(&chains))?));
    }
    if let Some(log) = log {
        let writing = Writing { include_arguments, ..writing };
        all.push(Arc::new(JsonLines::open(Place::File(log), writing, chains)?));
    }
    Ok(match all.pop() {
        Some(only) if all.is_empty() => only,
        Some(last) => {
            all.push(last);
            Arc::new(Fanout::new(all))
        }
        None => Arc::new(Fanout::default()),
    })
}
