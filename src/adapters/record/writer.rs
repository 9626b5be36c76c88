//! One writer of one chain (R34).
//!
//! Promises: the chain begins with its first line, so that a process which records nothing leaves nothing; a line that could
//! not be written takes no number, is counted in the next one, and a part of it that did get into the file stays a line of its
//! own; a file that is full gives way to the next one, which begins with the digest of its predecessor's last line; the store is
//! told how far the chain has come at the first line, at the last, and every [`ANCHOR_LINES`] lines or [`ANCHOR_TIME`] between.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::Serialize;

use super::link::{Link, seal};
use super::place::{Out, Place, inputs_of};
use crate::model::chain::{ChainId, Head, Key};
use crate::model::digest::Digest;
use crate::ports::chains::Chains;

/// How many lines the store may not know of while the process runs.
pub(super) const ANCHOR_LINES: u64 = 64;
/// For how long it may not, once there is another line.
pub(super) const ANCHOR_TIME: Duration = Duration::from_secs(1);
/// How long after a failure to keep a head it is tried again.
const ANCHOR_AGAIN: Duration = Duration::from_secs(10);

/// What begins a file of a chain.
#[derive(Serialize)]
struct Start<'a> {
    r#type: &'static str,
    time: Timestamp,
    version: &'static str,
    process: u32,
    /// What the root is called that the chain's key follows from, and by how many steps.
    root: &'a str,
    step: u64,
    /// The chain before this one in the same place, as far as the store knew it.
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<&'a Head>,
    /// The file that this one goes on from.
    #[serde(skip_serializing_if = "Option::is_none")]
    continues: Option<String>,
}

/// What ends one.
#[derive(Serialize)]
struct Close {
    r#type: &'static str,
    time: Timestamp,
    reason: &'static str,
}

/// The line that begins a chain, or one more file of it.
pub(super) const START: &str = "chain-start";
/// The line that ends a chain, or one file of it.
pub(super) const CLOSE: &str = "chain-close";
/// Why a file ended that another follows.
pub(super) const ROTATED: &str = "rotated";

/// What is said of lines that could not be written.
#[derive(Debug, Clone, Copy, Default)]
struct Unwritten {
    lost: u64,
    unrecorded: u64,
}

/// A chain that has begun.
struct Chain {
    id: ChainId,
    root: String,
    step: u64,
    after: Option<Head>,
    key: Key,
    seq: u64,
    prev: Digest,
    /// Its files have it in their names, so that they sort by their numbers even where a clock goes back.
    begun: Timestamp,
    number: u32,
}

/// How files end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// From how many bytes on a file of a folder gives way to the next.
    pub(super) rotate_bytes: u64,
    /// Whether it is on the disk when it has ended.
    pub(super) sync: bool,
}

pub(super) struct Writer {
    chains: Arc<dyn Chains>,
    place: Place,
    bounds: Bounds,
    out: Option<Out>,
    inputs: Option<Out>,
    /// When the store last refused the chain's head, if it has not taken one since.
    unanchored: Option<Instant>,
    chain: Option<Chain>,
    unwritten: Unwritten,
    anchored: (u64, Instant),
    quiet: bool,
}

/// What a decision was taken on, as a line of its own, and what the decision's line calls it by.
pub(super) struct Inputs {
    pub(super) line: Vec<u8>,
    /// Under the tenant's key: nobody finds out by trying what was given (R34).
    pub(super) mark: Digest,
}

impl Writer {
    /// Opens a file at once, and makes the folder; the first file of a folder is opened with the first line.
    pub(super) fn open(place: Place, bounds: Bounds, chains: Arc<dyn Chains>) -> io::Result<Self> {
        place.prepare()?;
        let out = match &place {
            Place::File(path) => Some(Out::open(path, false)?),
            Place::Folder(_) => None,
        };
        Ok(Self::over(place, out, bounds, chains))
    }

    pub(super) fn over(place: Place, out: Option<Out>, bounds: Bounds, chains: Arc<dyn Chains>) -> Self {
        let anchored = (0, Instant::now());
        let (inputs, chain, unwritten) = (None, None, Unwritten::default());
        let unanchored = None;
        Self { chains, place, bounds, out, inputs, unanchored, chain, unwritten, anchored, quiet: false }
    }

    /// Writes a line, and before it the line with a decision's inputs. What cannot be written is counted, inputs aside.
    pub(super) fn write(&mut self, body: &[u8], inputs: Option<&Inputs>) -> io::Result<()> {
        let written = self.begin(body.len()).and_then(|()| {
            let inputs = inputs.and_then(|inputs| self.keep_inputs(inputs));
            self.append(body, inputs)
        });
        match &written {
            Ok(()) => self.anchor(false),
            Err(_) => self.unwritten.lost += 1,
        }
        written
    }

    /// Notes that a call goes on although its decision is not recorded.
    pub(super) fn went_on(&mut self) {
        self.unwritten.unrecorded += 1;
        // One that was too long to be written at all was not counted yet.
        self.unwritten.lost = self.unwritten.lost.max(self.unwritten.unrecorded);
    }

    /// Waits until what was written is on the disk.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        let inputs = self.inputs.as_mut().map_or(Ok(()), |out| out.to.sync());
        self.out.as_mut().map_or(Ok(()), |out| out.to.sync()).and(inputs)
    }

    /// Ends the chain: no line follows.
    pub(super) fn close(&mut self) {
        if self.chain.as_ref().is_none_or(|chain| chain.seq == 0) {
            return;
        }
        if let Err(error) = self.end("ended") {
            tracing::warn!(%error, "the record could not be closed");
        }
        self.anchor(true);
        self.chain = None;
    }

    fn end(&mut self, reason: &'static str) -> io::Result<()> {
        let line = serde_json::to_vec(&Close { r#type: CLOSE, time: Timestamp::now(), reason })?;
        self.append(&line, None)?;
        if self.bounds.sync { self.sync() } else { Ok(()) }
    }

    /// Sees to it that the chain has begun and the file has room for a line of `length` bytes.
    fn begin(&mut self, length: usize) -> io::Result<()> {
        if self.chain.is_none() {
            let id = ChainId::fresh();
            let begun = self.chains.begin(&id, &self.place.name()).map_err(io::Error::other)?;
            let prev = begun.after.as_ref().map_or(Digest::from_bytes([0; 32]), |head| head.last);
            let (root, step, key, after) = (begun.root, begun.step, begun.key, begun.after);
            self.chain = Some(Chain { id, root, step, after, key, seq: 0, prev, begun: Timestamp::now(), number: 1 });
        }
        let Some(chain) = &self.chain else { return Err(io::Error::other("no chain has begun")) };
        if self.out.is_none() {
            self.out = Some(Out::open(&self.place.path(chain.begun, &chain.id, chain.number), true)?);
        }
        if chain.seq == 0 {
            return self.start(None);
        }
        let size = self.out.as_ref().map_or(0, |out| out.size);
        let full = size.saturating_add(u64::try_from(length).unwrap_or(u64::MAX)) > self.bounds.rotate_bytes;
        if full && matches!(self.place, Place::Folder(_)) { self.rotate() } else { Ok(()) }
    }

    /// The next file is there before the old one ends, so that one that cannot be made costs nothing.
    fn rotate(&mut self) -> io::Result<()> {
        let Some(chain) = &self.chain else { return Ok(()) };
        let number = chain.number + 1;
        let path = self.place.path(chain.begun, &chain.id, number);
        let next = match Out::open(&path, true) {
            Ok(next) => next,
            Err(error) => {
                if !std::mem::replace(&mut self.quiet, true) {
                    tracing::warn!(%error, "the next file of the record cannot be made; the old one goes on");
                }
                return Ok(());
            }
        };
        if let Err(error) = self.end(ROTATED) {
            let _ = std::fs::remove_file(&path);
            return Err(error);
        }
        let before = self.out.replace(next);
        self.inputs = None;
        if let Some(chain) = &mut self.chain {
            chain.number = number;
        }
        let name = |out: Out| out.path.file_name().map(|name| name.to_string_lossy().into_owned());
        self.start(before.and_then(name))
    }

    fn start(&mut self, continues: Option<String>) -> io::Result<()> {
        let Some(chain) = &self.chain else { return Err(io::Error::other("no chain has begun")) };
        let start = Start {
            r#type: START,
            time: Timestamp::now(),
            version: env!("CARGO_PKG_VERSION"),
            process: std::process::id(),
            root: &chain.root,
            step: chain.step,
            after: chain.after.as_ref().filter(|_| continues.is_none()),
            continues,
        };
        let line = serde_json::to_vec(&start)?;
        self.append(&line, None)?;
        self.anchor(true);
        Ok(())
    }

    /// Appends a line to the chain. It takes its number only once it is written.
    fn append(&mut self, body: &[u8], inputs: Option<Digest>) -> io::Result<()> {
        let (Some(chain), Some(out)) = (&mut self.chain, &mut self.out) else {
            return Err(io::Error::other("no chain has begun"));
        };
        let Unwritten { lost, unrecorded } = self.unwritten;
        let (id, seq, prev) = (chain.id.clone(), chain.seq, chain.prev);
        let line = seal(body, &Link { id, seq, prev, lost, unrecorded, torn: out.torn, inputs }, &chain.key)?;
        out.write(&line)?;
        chain.prev = Digest::of(line.strip_suffix(b"\n").unwrap_or(&line));
        chain.seq += 1;
        chain.key.step();
        self.unwritten = Unwritten::default();
        Ok(())
    }

    /// What a decision was taken on is kept if that can be done; the decision's line says whether it was.
    fn keep_inputs(&mut self, inputs: &Inputs) -> Option<Digest> {
        let file = self.out.as_ref().map(|out| inputs_of(&out.path))?;
        let kept = self.inputs_file(&file).and_then(|out| out.write(&inputs.line));
        match kept {
            Ok(()) => Some(inputs.mark),
            Err(error) => {
                if !std::mem::replace(&mut self.quiet, true) {
                    tracing::warn!(%error, "the inputs of a decision could not be kept; it cannot be replayed");
                }
                None
            }
        }
    }

    fn inputs_file(&mut self, file: &Path) -> io::Result<&mut Out> {
        match &mut self.inputs {
            Some(out) => Ok(out),
            none => Ok(none.insert(Out::open_private(file)?)),
        }
    }

    /// Tells the store how far the chain has come, if it is time.
    fn anchor(&mut self, now: bool) {
        let (Some(chain), Some(out)) = (&self.chain, &self.out) else { return };
        let (known, at) = self.anchored;
        let due = now || chain.seq - known >= ANCHOR_LINES || at.elapsed() >= ANCHOR_TIME;
        // A store that cannot be written makes no line wait for it again so soon.
        let soon = !now && self.unanchored.is_some_and(|since| since.elapsed() < ANCHOR_AGAIN);
        if !due || soon || chain.seq == 0 {
            return;
        }
        let head = Head { chain: chain.id.clone(), lines: chain.seq, last: chain.prev };
        let file = std::path::absolute(&out.path).unwrap_or_else(|_| out.path.clone());
        match self.chains.anchor(&head, &self.place.name(), &file.display().to_string()) {
            Ok(()) => (self.anchored, self.unanchored) = ((chain.seq, Instant::now()), None),
            // The lines are written all the same; `audit verify` tells how many of them nothing vouches for.
            Err(error) => {
                if self.unanchored.replace(Instant::now()).is_none() {
                    tracing::warn!(%error, "the record's head is not kept; it is tried again, without a word");
                }
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.close();
    }
}
