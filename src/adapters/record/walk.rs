//! One chain, line by line: is each the one that was written there?
//!
//! A line whose successor has another digest of it was changed, unless it is the successor that was: which of the two the
//! line after it tells, or the head, or the marks. So a finding waits for one more line.

use serde::Deserialize;

use super::keys::Keys;
use super::link::Linked;
use super::verify::{Aside, ChainReport, Marks, Report, Spot, What};
use super::writer::{CLOSE, ROTATED, START};
use crate::model::chain::{ChainId, Head, Key};
use crate::model::digest::Digest;

/// How many lines may be missing in a row before a number counts as made up.
const MAX_GAP: u64 = 1_000_000;

/// What is read of the lines that begin and end a file of a chain.
#[derive(Deserialize)]
struct Border {
    r#type: String,
    #[serde(default)]
    root: Option<String>,
    #[serde(default)]
    step: u64,
    #[serde(default)]
    after: Option<Head>,
    #[serde(default)]
    continues: Option<String>,
    #[serde(default)]
    reason: Option<String>,
}

/// Where a chain has come to.
pub(super) struct Walk {
    /// The number of the next line.
    next: u64,
    last: Digest,
    at: Spot,
    /// Whether the last line was named already.
    named: bool,
    /// The line before the last one, if its digest is not the one that the last line has.
    suspect: Option<Spot>,
    /// The key of the next line.
    key: Option<Key>,
    marks: Marks,
    heads: Vec<Head>,
    /// What the first line is said to be that should not be.
    beginning: Option<What>,
    /// Whether nothing checks its marks although keys were given.
    unmarked: bool,
    closed: bool,
    /// Of lines that were read: how many lines the furthest head vouches for.
    anchored: Option<u64>,
}

impl Walk {
    /// Begins with the first line that was found of a chain. `whole`: all files of its place are given, so that a chain must
    /// be there from its first line on.
    pub(super) fn begin(first: &Linked<'_>, heads: Vec<Head>, keys: &mut Keys, whole: bool) -> Self {
        let border = border(first).filter(|border| border.r#type == START);
        let (seq, prev) = (first.link.seq, first.link.prev);
        let root = border.as_ref().and_then(|border| Some((border.root.as_deref()?, border.step)));
        let key = root.and_then(|(root, step)| keys.of_line(root, step, &first.link.id, seq));
        let marks = match &key {
            _ if !keys.are_given() => Marks::NoKey,
            Some(_) => Marks::Checked,
            None => Marks::OtherKey,
        };
        let beginning = match &border {
            // A file that goes on from others may be given without them.
            Some(border) if seq > 0 && border.continues.is_some() && !whole => None,
            _ if seq > 0 && whole => Some(What::Missing { from: 0, count: seq }),
            Some(border) if seq == 0 && border.continues.is_none() => {
                let before = border.after.as_ref().map_or(Digest::from_bytes([0; 32]), |head| head.last);
                (before != prev).then_some(What::Changed)
            }
            _ => Some(What::NoBeginning { number: seq }),
        };
        Self {
            next: seq,
            last: prev,
            at: Spot { file: None, line: 0 },
            named: false,
            suspect: None,
            key,
            marks,
            heads,
            beginning,
            unmarked: marks == Marks::OtherKey,
            closed: false,
            anchored: None,
        }
    }

    pub(super) fn line(&mut self, spot: Spot, line: &[u8], linked: &Linked<'_>, keys: &mut Keys, report: &mut Report) {
        let (link, chain) = (&linked.link, Some(&linked.link.id));
        let mut named = self.beginning == Some(What::Changed);
        if let Some(what) = self.beginning.take() {
            report.found(spot.clone(), chain, what);
        }
        if std::mem::take(&mut self.unmarked) {
            report.found(spot.clone(), chain, What::Unmarked);
        }
        if self.closed {
            self.closed = false;
            report.found(spot.clone(), chain, What::AfterTheEnd);
        }
        let follows = link.prev == self.last;
        let right = |key: &Key| key.mark(linked.marked) == linked.mac;
        // The digest binds the place: who follows the last line and has another number had it changed.
        if link.seq != self.next && follows || link.seq.saturating_sub(self.next) > MAX_GAP {
            named = true;
            report.found(spot.clone(), chain, What::Changed);
        } else if link.seq < self.next {
            report.found(spot, chain, What::OutOfPlace { number: link.seq });
            return;
        } else if link.seq > self.next {
            self.settle(chain, report);
            let (from, count) = (self.next, link.seq - self.next);
            report.found(spot.clone(), chain, What::Missing { from, count });
            if self.key.as_mut().is_some_and(|key| !keys.advance(key, count)) {
                (self.key, self.marks) = (None, Marks::OtherKey);
                report.found(spot.clone(), chain, What::Unmarked);
            }
            self.next = link.seq;
        } else {
            let mark = self.key.as_ref().map(right);
            self.compare(follows, mark, chain, report);
        }
        if let Some(key) = &mut self.key {
            if !named && !right(key) {
                named = true;
                report.found(spot.clone(), chain, What::WrongMark);
            }
            key.step();
        }
        if link.lost > 0 || link.unrecorded > 0 {
            report.note(spot.clone(), Aside::Lost { lines: link.lost, unrecorded: link.unrecorded });
        }
        self.last = Digest::of(line);
        self.next = self.next.saturating_add(1);
        let next = self.next;
        for head in self.heads.iter().filter(|head| head.lines == next) {
            self.anchored = Some(next);
            if head.last != self.last && !named {
                // Which tells, too, why it did not fit the line before it.
                (named, self.suspect) = (true, None);
                report.found(spot.clone(), chain, What::Changed);
            }
        }
        let border = border(linked);
        self.closed = border.is_some_and(|b| b.r#type == CLOSE && b.reason.as_deref() != Some(ROTATED));
        (self.at, self.named) = (spot, named);
    }

    /// Compares a line in its place with the one before it. `mark`: whether its mark is right, if that is known.
    fn compare(&mut self, follows: bool, mark: Option<bool>, chain: Option<&ChainId>, report: &mut Report) {
        match (follows, mark) {
            (true, _) => {
                // The last line is whole, so that it was right about the one before it.
                if let Some(suspect) = self.suspect.take() {
                    report.found(suspect, chain, What::Changed);
                }
            }
            // This line is the one that was changed, and is named for its mark.
            (false, Some(false)) => {}
            (false, _) if self.named => {}
            // This line is whole, so that it is right about the one before it.
            (false, Some(true)) => report.found(self.at.clone(), chain, What::Changed),
            (false, None) if self.suspect.take().is_some() => {
                // The last line fits neither the one before it nor this one.
                report.found(self.at.clone(), chain, What::Changed);
            }
            (false, None) => self.suspect = Some(self.at.clone()),
        }
    }

    /// No line follows that could tell which of two was changed; a head may.
    fn settle(&mut self, chain: Option<&ChainId>, report: &mut Report) {
        let Some(suspect) = self.suspect.take() else { return };
        if self.anchored == Some(self.next) {
            report.found(suspect, chain, What::Changed);
        } else {
            report.found(self.at.clone(), chain, What::ChangedHereOrBefore);
        }
    }

    /// Takes what a later chain knew of this one. It vouches for the end, if it knew the end.
    pub(super) fn vouch(&mut self, head: Head, report: &mut Report) {
        if head.lines == self.next && head.last != self.last && !self.named {
            (self.named, self.suspect) = (true, None);
            report.found(self.at.clone(), Some(&head.chain), What::Changed);
        } else if head.lines == self.next {
            self.anchored = Some(self.next);
        }
        if head.lines >= self.next {
            self.heads.push(head);
        }
    }

    pub(super) fn end(mut self, id: &ChainId, report: &mut Report) -> ChainReport {
        self.settle(Some(id), report);
        let lines = self.next;
        let known = self.heads.iter().map(|head| head.lines).max();
        if let Some(known) = known.filter(|known| *known > lines) {
            report.found(self.at.clone(), Some(id), What::CutOff { lines, known });
        }
        ChainReport {
            head: Head { chain: id.clone(), lines, last: self.last },
            anchored: known.map(|known| known.min(lines)),
            unanchored: lines - self.anchored.unwrap_or(0).min(lines),
            closed: self.closed,
            marks: self.marks,
            last: self.at,
        }
    }
}

/// What a first line says of the chain before it in its place.
pub(super) fn predecessor(first: &Linked<'_>) -> Option<Head> {
    border(first)?.after
}

fn border(linked: &Linked<'_>) -> Option<Border> {
    // Only these lines are read whole: all others are compared by their bytes.
    let is_border =
        [START, CLOSE].iter().any(|name| linked.body.starts_with(format!("{{\"type\":\"{name}\"").as_bytes()));
    if !is_border {
        return None;
    }
    serde_json::from_slice(&[linked.body, b"}"].concat()).ok()
}
