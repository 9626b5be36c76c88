//! File arguments -> references to uploaded files (catalog-dispatch 5.2, R27).
//!
//! Uploads happen once the call is approved, outside of any lease, from the descriptors that were opened before. A call that is
//! refused, or stale by then, uploads nothing; one that becomes stale meanwhile is not sent. What was uploaded is kept
//! while the call is decided again, so that no file goes out twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Value};

use super::barrier;
use super::meta::TurnInfo;
use crate::model::app::action;
use crate::model::outcome::Failure;
use crate::model::text::shown;
use crate::pipeline::admit::catalog::{Catalog, LeaseRefusal};
use crate::pipeline::bind::files::{self, BoundFile, BoundFiles};
use crate::pipeline::bind::prepare::Prepared;
use crate::pipeline::consent::approve::Approved;
use crate::ports::files::{UploadError, UploadFor, UploadProgress, Uploaded};
use crate::ports::upstream::{Progress, ProgressSink};

/// What all uploads of a call together count as progress. A server that says how far it is begins above this, and a client
/// takes rising numbers alone.
const ALL: f64 = 1e-6;
/// The most characters of a file's name in a message.
const SHOWN_NAME: usize = 64;

/// Proof that the files of a call are uploaded, if it has any. Made by [`upload`] alone.
#[derive(Debug, Clone)]
pub struct Uploads(Option<Done>);

/// What was uploaded for a call so far. Kept while the call is decided again.
#[derive(Debug, Default)]
pub struct Sofar(Option<Done>);

#[derive(Debug, Clone)]
struct Done {
    of: Arc<BoundFiles>,
    references: Vec<Uploaded>,
}

impl Done {
    fn is_of(&self, bound: &Arc<BoundFiles>) -> bool {
        Arc::ptr_eq(&self.of, bound)
    }
}

impl Sofar {
    /// Whether a call has files that are not uploaded yet.
    #[must_use]
    pub fn lacks(&self, approved: &Approved) -> bool {
        let Some(bound) = approved.prepared().files() else { return false };
        let own = self.0.as_ref().filter(|done| done.is_of(bound));
        own.map_or(0, |done| done.references.len()) < bound.iter().len()
    }
}

/// Why not all files of a call are uploaded.
#[derive(Debug)]
pub enum NotUploaded {
    /// By now the call could not be leased; no more of its files were uploaded.
    Refused(LeaseRefusal),
    /// `upload-failed`, with the path and the argument of the file. Later files were not uploaded.
    Failed(Box<Failure>),
}

/// Uploads the files of an approved call, in order, as long as the call could still be sent. `sofar` is what was uploaded for
/// it already, and what is: no file goes out twice.
///
/// # Errors
/// [`NotUploaded`].
pub async fn upload(
    catalog: &Catalog,
    approved: &Approved,
    sofar: &mut Sofar,
    turn: &TurnInfo,
    progress: Option<&Arc<dyn ProgressSink>>,
) -> Result<Uploads, NotUploaded> {
    let Some(bound) = approved.prepared().files() else { return Ok(Uploads(None)) };
    let earlier = sofar.0.take().filter(|done| done.is_of(bound));
    let done = sofar.0.insert(earlier.unwrap_or_else(|| Done { of: Arc::clone(bound), references: Vec::new() }));
    let (all, purpose) = (bound.iter().len(), purpose(approved.prepared(), turn));
    for (at, file) in bound.iter().enumerate().skip(done.references.len()) {
        barrier::check(catalog, approved).map_err(NotUploaded::Refused)?;
        let (sink, name) = (progress.cloned(), shown(&file.facts().name, SHOWN_NAME));
        let steps = Arc::new(Steps { sink, name, done: at, all, percent: AtomicU64::new(0) });
        let uploaded = bound.access().uploader.upload(file.open(), purpose.as_ref(), steps).await;
        let failed = |why: UploadError| files::failure(file.path(), &file.field(), &why);
        done.references.push(uploaded.map_err(|why| NotUploaded::Failed(Box::new(failed(why))))?);
    }
    Ok(Uploads(Some(done.clone())))
}

/// What an App's files are uploaded for (rule 13); none unless connector and action are known.
fn purpose(prepared: &Prepared, turn: &TurnInfo) -> Option<UploadFor> {
    let (connector, action) = action(prepared.tool())?;
    let (connector, action) = (connector.id.clone(), action.to_owned());
    Some(UploadFor { connector, action, model: turn.model().map(str::to_owned) })
}

impl Uploads {
    fn are_of(&self, prepared: &Prepared) -> bool {
        match (&self.0, prepared.files()) {
            (Some(done), Some(bound)) => done.is_of(bound),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
    }

    /// Returns the arguments to send: references in the place of files, all else as it was given.
    ///
    /// # Errors
    /// `upload-failed`: these are the uploads of another call. Its paths are not sent.
    pub(super) fn rewritten(&self, prepared: &Prepared) -> Result<Option<Map<String, Value>>, Box<Failure>> {
        let given = prepared.arguments().object().cloned();
        match (&self.0, prepared.files()) {
            (Some(done), _) if self.are_of(prepared) => Ok(given.map(|given| done.rewrite(given))),
            (None, None) => Ok(given),
            (_, bound) => {
                let file = bound.and_then(|bound| bound.iter().next());
                let (path, field) = file.map_or(("", String::new()), |file| (file.path(), file.field()));
                Err(Box::new(files::failure(path, &field, &"it was not uploaded for this call")))
            }
        }
    }

    /// Returns what the call's arguments became, if they became something else.
    #[must_use]
    pub fn tool_input(&self, prepared: &Prepared) -> Option<Map<String, Value>> {
        self.0.as_ref()?;
        self.rewritten(prepared).ok()?
    }
}

impl Done {
    fn rewrite(&self, mut arguments: Map<String, Value>) -> Map<String, Value> {
        for (file, uploaded) in self.of.iter().zip(&self.references) {
            let Some(value) = arguments.get_mut(file.name()) else { continue };
            let place = match file.index() {
                Some(index) => value.get_mut(index),
                None => Some(value),
            };
            if let Some(place) = place {
                *place = reference(file, uploaded);
            }
        }
        arguments
    }
}

/// What a server gets for a file (rule 11).
fn reference(file: &BoundFile, uploaded: &Uploaded) -> Value {
    let mut reference = Map::new();
    let mut put = |key: &str, value: &str| _ = reference.insert(key.to_owned(), value.into());
    put("download_url", &uploaded.download_url);
    put("file_id", &uploaded.file_id);
    if let Some(kind) = uploaded.mime_type.as_deref().filter(|_| file.accepts().mime_type) {
        put("mime_type", kind);
    }
    if file.accepts().file_name {
        put("file_name", &uploaded.file_name);
    }
    Value::Object(reference)
}

/// The progress of one upload, as progress of the call: one step for each percent.
struct Steps {
    sink: Option<Arc<dyn ProgressSink>>,
    name: String,
    done: usize,
    all: usize,
    percent: AtomicU64,
}

impl UploadProgress for Steps {
    fn sent(&self, sent: u64, length: u64) {
        let Some(sink) = &self.sink else { return };
        let percent = sent.saturating_mul(100).checked_div(length).unwrap_or(100).min(100);
        if self.percent.fetch_max(percent, Ordering::AcqRel) >= percent {
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "a percentage, and at most 64 files")]
        let part = (self.done as f64 + percent as f64 / 100.0) / self.all as f64;
        let message = format!("uploading `{}`: {percent} %", self.name);
        sink.progress(Progress { progress: ALL * part, total: None, message: Some(message) });
    }
}
