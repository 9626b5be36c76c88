//! Recorded decisions as they are read again: one after the other, however many there are.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::adapters::record::find::lines_of;
use crate::adapters::record::link;
use crate::adapters::record::reading::{Line, Lines};
use crate::model::digest::Digest;
use crate::model::verdict::FaultCode;

/// How many decisions are remembered whose files were being uploaded.
const MAX_UPLOADING: usize = 10_000;

/// One recorded decision, as far as it is compared. What is read is somebody's file: every field is checked by its type.
#[derive(Debug, Deserialize)]
pub(super) struct Recorded {
    pub(super) r#type: String,
    #[serde(default)]
    pub(super) time: String,
    pub(super) call: String,
    pub(super) server: Option<String>,
    pub(super) tool: String,
    #[serde(default)]
    pub(super) uploading: bool,
    pub(super) policy_set: Digest,
    pub(super) engine: Digest,
    pub(super) caller: Tenant,
    #[serde(flatten)]
    pub(super) said: Said,
}

#[derive(Debug, Deserialize)]
pub(super) struct Tenant {
    pub(super) tenant: String,
}

/// What a decision says, recorded or just taken.
#[derive(Debug, Deserialize)]
pub(super) struct Said {
    pub(super) folded: Value,
    #[serde(default)]
    pub(super) voices: Vec<SaidVoice>,
    #[serde(default)]
    pub(super) connectors: Vec<SaidVoice>,
}

#[derive(Debug, Deserialize)]
pub(super) struct SaidVoice {
    pub(super) source: Whose,
    #[serde(default)]
    pub(super) verdict: Option<Value>,
    #[serde(default)]
    pub(super) answer: Option<Value>,
    #[serde(default)]
    pub(super) fault: Option<Failed>,
    #[serde(default)]
    pub(super) posture: Option<(String, Value)>,
    #[serde(default)]
    pub(super) observed: bool,
    #[serde(default)]
    pub(super) fuel: u64,
    #[serde(default)]
    pub(super) heard: Option<Digest>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub(super) struct Whose {
    pub(super) layer: String,
    pub(super) component: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Failed {
    pub(super) code: FaultCode,
}

/// Records that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// A file cannot be read.
    #[error("cannot read `{}`", shown(file))]
    File {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is none of records: it has no line that is one.
    #[error("`{}` has no line of a record; give a file of records or of `--log`", shown(.0))]
    NoRecord(PathBuf),
}

fn shown(file: &Path) -> String {
    crate::model::text::shown(&file.display().to_string(), 300)
}

/// A decision as it is read.
pub(super) enum Read {
    Decision(Box<Recorded>, Option<Digest>),
    /// A line that is one, or may be, and cannot be read.
    Bad {
        line: u64,
        why: &'static str,
    },
}

/// The decisions of a file, one after the other. What was decided before files were uploaded counts only where nothing was decided
/// after that: the upload has failed, or the process ended.
pub(super) struct Decisions {
    file: PathBuf,
    lines: Lines<BufReader<File>>,
    buffer: Vec<u8>,
    number: u64,
    is_record: bool,
    before_upload: HashMap<String, (Box<Recorded>, Option<Digest>)>,
}

impl Decisions {
    pub(super) fn of(file: &Path) -> Result<Self, Unreadable> {
        let lines = lines_of(file).map_err(|source| Unreadable::File { file: file.to_owned(), source })?;
        let (buffer, before_upload) = (Vec::new(), HashMap::new());
        Ok(Self { file: file.to_owned(), lines, buffer, number: 0, is_record: false, before_upload })
    }

    pub(super) fn next(&mut self) -> Result<Option<Read>, Unreadable> {
        loop {
            let read = self.lines.next(&mut self.buffer);
            let read = read.map_err(|source| Unreadable::File { file: self.file.clone(), source })?;
            self.number += 1;
            let line = self.number;
            match read {
                Line::End if !self.is_record => return Err(Unreadable::NoRecord(self.file.clone())),
                Line::End => {
                    let call = self.before_upload.keys().next().cloned();
                    let left = call.and_then(|call| self.before_upload.remove(&call));
                    return Ok(left.map(|(recorded, kept)| Read::Decision(recorded, kept)));
                }
                Line::TooLong => return Ok(Some(Read::Bad { line, why: "its line is longer than any of a record" })),
                Line::Whole | Line::Torn => {}
            }
            let linked = link::parse(&self.buffer);
            self.is_record |= linked.is_some();
            if !self.buffer.starts_with(b"{\"type\":\"decision\"") {
                continue;
            }
            let kept = linked.and_then(|linked| linked.link.inputs);
            let recorded = serde_json::from_slice::<Recorded>(&self.buffer).map(Box::new);
            let Some(recorded) = recorded.ok().filter(|recorded| recorded.r#type == "decision") else {
                return Ok(Some(Read::Bad {
                    line,
                    why: "its line cannot be read: it was changed, or is of another version",
                }));
            };
            if !recorded.uploading {
                self.before_upload.remove(&recorded.call);
                return Ok(Some(Read::Decision(recorded, kept)));
            }
            if self.before_upload.len() == MAX_UPLOADING {
                return Ok(Some(Read::Bad { line, why: "too many uploads had begun and not ended before it" }));
            }
            self.before_upload.insert(recorded.call.clone(), (recorded, kept));
        }
    }
}
