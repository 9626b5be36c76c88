//! Keeps what scripts were answered, for auto reviewers (approval-results 11).
//!
//! A script may act on what a tool gave it without any model having seen it. What is kept is what the script saw: the clean
//! answer, whatever a hook's feedback has put in its place for the model.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::model::caller::CallSource;
use crate::model::evidence::{Evidence, EvidenceImage, EvidenceRecord, MAX_IMAGES, Part, Provenance};
use crate::model::name::{CallId, ToolRef};
use crate::model::outcome::Outcome;
use crate::pipeline::emit::sanitise::Clean;
use crate::pipeline::emit::views::script::ScriptView;
use crate::pipeline::emit::views::{MediaLimits, Room, decoding, is_image};

/// How much one thread keeps, in bytes.
const MAX_KEPT: usize = 8 * 1024 * 1024;
/// How much the images of one result may have, in bytes.
const MAX_BYTES: usize = 8 * 1024 * 1024;
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
    ///
    /// Nobody is waited for after `cancel`: images that were not looked at by then are only counted. The texts are kept in any
    /// case, since the script may have them.
    pub(in crate::pipeline) async fn accept(
        &self,
        source: &CallSource,
        (tool, call): (&ToolRef, &CallId),
        clean: &Clean,
        cancel: &CancellationToken,
    ) {
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
        let record =
            EvidenceRecord::new(from, parts_of(&ScriptView::of(clean), Wanted { texts, images }, cancel).await);
        self.held.lock().keep(record);
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
            if has_text && record.images() > 0 {
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
        let Some((_, record)) = self.records.iter_mut().find(|(_, record)| record.images() > 0) else { return false };
        let left = record.without_images();
        self.bytes -= record.bytes() - left.bytes();
        *record = Arc::new(left);
        true
    }
}

/// Rules 3 to 5. Encrypted blocks are for the model's provider alone.
async fn parts_of(result: &ScriptView, wanted: Wanted, cancel: &CancellationToken) -> Vec<Part> {
    let (mut parts, mut encrypted, mut looks) = (Vec::new(), false, Looks::until(cancel));
    for block in result.content() {
        let of = |key: &str| block.get(key).and_then(Value::as_str);
        match of("type") {
            Some("text") if meta(block, "codex/encryptedContent") == Some(&Value::Bool(true)) => encrypted = true,
            Some("text") => {
                let text = of("text").filter(|text| wanted.texts && !text.trim().is_empty());
                parts.extend(text.map(|text| Part::Text(text.to_owned())));
            }
            Some("image") if wanted.images => parts.extend(looks.at(block).await.map(Part::Image)),
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
    parts.extend((looks.passed_over > 0).then_some(Part::MoreImages(looks.passed_over)));
    parts
}

fn meta<'a>(block: &'a Value, key: &str) -> Option<&'a Value> {
    block.get("_meta").and_then(|meta| meta.get(key))
}

/// The images of one result. A server decides how many there are and what they cost to look at, so both are bounded; each is
/// decoded in a turn of its own.
struct Looks<'a> {
    cancel: &'a CancellationToken,
    spent: usize,
    tried: usize,
    room: Room,
    /// How many were not looked at.
    passed_over: usize,
}

impl<'a> Looks<'a> {
    fn until(cancel: &'a CancellationToken) -> Self {
        Self { cancel, spent: 0, tried: 0, room: Room::of(&MediaLimits::default()), passed_over: 0 }
    }

    /// Reads an image, if it is a valid one that fits beside those before it.
    async fn at(&mut self, block: &Value) -> Option<EvidenceImage> {
        let data = block.get("data").and_then(Value::as_str).filter(|data| !data.is_empty())?;
        let mime = block.get("mimeType").or_else(|| block.get("mime_type")).and_then(Value::as_str)?;
        let mime = mime.to_ascii_lowercase();
        let cost = DATA_URL + mime.len() + data.len();
        if !mime.starts_with("image/") || self.spent + cost > MAX_BYTES {
            return None;
        }
        if self.tried == MAX_IMAGES || self.cancel.is_cancelled() {
            self.passed_over += 1;
            return None;
        }
        self.tried += 1;
        let (url, mut room) = (format!("data:{mime};base64,{data}"), self.room);
        let looking = decoding(move || {
            let readable = is_image(&url, &mut room);
            (readable.then_some(url), room)
        });
        let Some(looked) = self.cancel.run_until_cancelled(looking).await else {
            self.passed_over += 1;
            return None;
        };
        // What a decoder panics at is no image.
        let (url, room) = looked?;
        self.room = room;
        let url = url?;
        self.spent += cost;
        let detail = meta(block, "codex/imageDetail").and_then(Value::as_str);
        let detail = ["auto", "low", "high", "original"].into_iter().find(|known| detail == Some(*known));
        Some(EvidenceImage { url: url.into(), detail })
    }
}
