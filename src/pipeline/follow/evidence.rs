//! Keeps what scripts were answered, for auto reviewers (approval-results 11).
//!
//! A script may act on what a tool gave it without any model having seen it. What is kept is what the script saw: the clean
//! answer, whatever a hook's feedback has put in its place for the model.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;

use crate::model::caller::CallSource;
use crate::model::evidence::{Evidence, EvidenceImage, EvidenceRecord, Part, Provenance};
use crate::model::name::{CallId, ToolRef};
use crate::model::outcome::Outcome;
use crate::pipeline::emit::sanitise::Clean;
use crate::pipeline::emit::views::script::ScriptView;
use crate::pipeline::emit::views::{decoding, is_image};

/// How much one thread keeps, in bytes.
const MAX_KEPT: usize = 8 * 1024 * 1024;
/// How much the images of one result may have, in bytes.
const MAX_IMAGES: usize = 8 * 1024 * 1024;
/// What a data URL has beside mime type and data: `data:`, `;base64,`.
const DATA_URL: usize = 13;
/// The raw names of the servers whose calls are a script's own eyes and hands.
const REPL_SERVERS: [&str; 2] = ["node_repl", "cua_repl"];

/// What is kept of accepted results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvidenceOptions {
    /// Whether texts are kept.
    pub transcripts: bool,
    /// Whether images are kept beside texts.
    pub images: bool,
    /// Whether the model is one whose scripts must be reviewed: texts and images are kept then, whatever else is said.
    pub required: bool,
    /// Whether images are captured even where nothing else is kept.
    pub capture_images: bool,
    /// The raw names of the servers whose results are kept. Default: `node_repl` and `cua_repl`.
    pub servers: BTreeSet<String>,
}

impl Default for EvidenceOptions {
    /// Texts and images.
    fn default() -> Self {
        let servers = REPL_SERVERS.into_iter().map(str::to_owned).collect();
        Self { transcripts: true, images: true, required: false, capture_images: false, servers }
    }
}

/// What of a result is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wanted {
    texts: bool,
    images: bool,
}

impl EvidenceOptions {
    fn wanted(&self) -> Wanted {
        let multimodal = self.required || (self.transcripts && self.images);
        Wanted { texts: multimodal || self.transcripts, images: multimodal || self.capture_images }
    }
}

/// The accepted results of one thread.
#[derive(Debug)]
pub struct EvidenceStore {
    options: EvidenceOptions,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    records: VecDeque<(u64, Arc<EvidenceRecord>)>,
    bytes: usize,
    last: u64,
}

impl EvidenceStore {
    /// An empty one.
    #[must_use]
    pub fn new(options: EvidenceOptions) -> Self {
        Self { options, held: Mutex::default() }
    }

    /// Returns what there is now.
    #[must_use]
    pub fn evidence(&self) -> Evidence {
        let held = self.held.lock();
        Evidence::new(held.records.iter().cloned().collect(), held.last)
    }

    /// Keeps an answer if it is one to be kept: a script's, of a server whose results are kept, a success of which something
    /// is shown. To be called once, after the hooks have let it pass.
    pub(in crate::pipeline) async fn accept(&self, source: &CallSource, tool: &ToolRef, call: &CallId, clean: &Clean) {
        let CallSource::Script { cell } = source else { return };
        let Wanted { texts, images } = self.options.wanted();
        if !(texts || images)
            || !self.options.servers.contains(tool.server.as_str())
            || *clean.outcome() != Outcome::Answered
            || clean.failure().is_some()
        {
            return;
        }
        let from = Provenance::of(tool, cell, call);
        let (view, wanted) = (ScriptView::of(clean), Wanted { texts, images });
        // Megabytes may have to be decoded. What a decoder panics at is not there.
        let parts = decoding(move || parts_of(&view, wanted)).await.unwrap_or_default();
        self.held.lock().keep(EvidenceRecord::new(from, parts));
    }
}

impl Held {
    /// Stores a record, and makes room for it. Images go before texts, old ones first.
    fn keep(&mut self, mut record: EvidenceRecord) {
        self.last += 1;
        while self.bytes + record.bytes() > MAX_KEPT {
            let has_text = self.records.front().is_none_or(|(_, oldest)| oldest.has_text());
            if has_text && self.drop_images() {
                continue;
            }
            if has_text && record.has_images() {
                record = record.without_images();
                continue;
            }
            let Some((_, oldest)) = self.records.pop_front() else { return };
            self.bytes -= oldest.bytes();
        }
        self.bytes += record.bytes();
        self.records.push_back((self.last, Arc::new(record)));
    }

    /// Drops the images of the oldest record that has some; false if none has.
    fn drop_images(&mut self) -> bool {
        let Some((_, record)) = self.records.iter_mut().find(|(_, record)| record.has_images()) else { return false };
        let left = record.without_images();
        self.bytes -= record.bytes() - left.bytes();
        *record = Arc::new(left);
        true
    }
}

/// Rules 3 to 5. Encrypted blocks are for the model's provider alone.
fn parts_of(result: &ScriptView, wanted: Wanted) -> Vec<Part> {
    let (mut parts, mut encrypted, mut spent) = (Vec::new(), false, 0);
    for block in result.content() {
        let of = |key: &str| block.get(key).and_then(Value::as_str);
        match of("type") {
            Some("text") if meta(block, "codex/encryptedContent") == Some(&Value::Bool(true)) => encrypted = true,
            Some("text") => {
                let text = of("text").filter(|text| wanted.texts && !text.trim().is_empty());
                parts.extend(text.map(|text| Part::Text(text.to_owned())));
            }
            Some("image") if wanted.images => parts.extend(image(block, &mut spent).map(Part::Image)),
            _ => {}
        }
    }
    let has_text = parts.iter().any(|part| matches!(part, Part::Text(_)));
    if wanted.texts
        && !has_text
        && !encrypted
        && let Some(structured) = result.structured()
    {
        parts.insert(0, Part::Text(structured.to_string()));
    }
    parts
}

fn meta<'a>(block: &'a Value, key: &str) -> Option<&'a Value> {
    block.get("_meta").and_then(|meta| meta.get(key))
}

/// Reads an image, if it is a valid one that fits beside those before it.
fn image(block: &Value, spent: &mut usize) -> Option<EvidenceImage> {
    let data = block.get("data").and_then(Value::as_str).filter(|data| !data.is_empty())?;
    let mime = block.get("mimeType").or_else(|| block.get("mime_type")).and_then(Value::as_str)?.to_ascii_lowercase();
    let cost = DATA_URL + mime.len() + data.len();
    if !mime.starts_with("image/") || *spent + cost > MAX_IMAGES {
        return None;
    }
    let url = format!("data:{mime};base64,{data}");
    if !is_image(&url) {
        return None;
    }
    *spent += cost;
    let detail = meta(block, "codex/imageDetail").and_then(Value::as_str);
    let detail = ["auto", "low", "high", "original"].into_iter().find(|known| detail == Some(*known));
    Some(EvidenceImage { url: url.into(), detail })
}
