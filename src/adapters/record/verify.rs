//! Is a record as it was written (R34)?
//!
//! Promises: a line that was changed, removed, put elsewhere or put in, and an end that was cut off, is found and named by file
//! and line; memory does not grow with the number of lines. What was known of a chain elsewhere (the state store, or a head
//! that somebody kept) tells whether its end is there: the lines behind that, the unanchored tail, are bound to each other
//! alone, and a tail that was cut off or written anew is not found there. With the root key every line's mark is checked too.
//!
//! Does not repair, and does not interpret what lines say.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::keys::Keys;
use super::line::MAX_LINE;
use super::link::{self, Linked, MAX_LINK};
use super::reading::{Line, Lines};
use super::walk::{Walk, predecessor};
use crate::model::chain::{ChainId, Head, RootKey};
use crate::ports::chains::{Anchor, ChainsFailed};

/// How many findings are told; beyond, they are counted.
pub const MAX_FINDINGS: usize = 1000;
/// How many chains one run follows.
pub const MAX_CHAINS: usize = 100_000;

/// Where in a record something is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Spot {
    /// The file; none: something that is in no file.
    pub file: Option<PathBuf>,
    /// The line, from 1; of something that is missing, the line that it should stand before or behind.
    pub line: u64,
}

/// Something that is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Where.
    #[serde(flatten)]
    pub spot: Spot,
    /// The chain, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chain: Option<ChainId>,
    /// What.
    pub what: What,
}

/// What is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum What {
    /// The line is no line of a record.
    NotALine,
    /// The line was changed after it was written.
    Changed,
    /// One of this line and the one before it in its chain was changed.
    ChangedHereOrBefore,
    /// The line's mark is not that of its key.
    WrongMark,
    /// Keys were given, and none of them tells the marks of this line's chain from here on.
    Unmarked,
    /// Lines are missing before this one.
    Missing {
        /// The number of the first one in the chain.
        from: u64,
        /// How many.
        count: u64,
    },
    /// The line stands where another one was written, or is there twice.
    OutOfPlace {
        /// Its number in the chain.
        number: u64,
    },
    /// The line is of a chain whose beginning is not there.
    NoBeginning {
        /// Its number in the chain.
        number: u64,
    },
    /// The line follows one that closed its chain.
    AfterTheEnd,
    /// Lines are missing at the end of the chain.
    CutOff {
        /// How many lines the chain has here.
        lines: u64,
        /// How many it is known to have had.
        known: u64,
    },
    /// None of the chain's lines is there.
    Gone {
        /// How many lines it is known to have had.
        known: u64,
        /// The file that they were in.
        #[serde(skip_serializing_if = "Option::is_none")]
        was_in: Option<String>,
    },
}

impl std::fmt::Display for What {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotALine => f.write_str("this is no line of a record: it was changed, or put there"),
            Self::Changed => f.write_str("this line was changed after it was written"),
            Self::ChangedHereOrBefore => {
                f.write_str("this line, or the one before it in its chain, was changed after it was written")
            }
            Self::WrongMark => {
                f.write_str("this line's mark is not that of its key: it was changed, or written by another")
            }
            Self::Unmarked => f.write_str(
                "no key that was given tells the marks of this line's chain from here on: it was begun under another one, or too far from it",
            ),
            Self::Missing { from, count: 1 } => write!(f, "before this line, number {from} of its chain is missing"),
            Self::Missing { from, count } => {
                write!(f, "before this line, numbers {from} to {} of its chain are missing", from + count - 1)
            }
            Self::OutOfPlace { number } => {
                write!(f, "this line is number {number} of its chain and does not belong here, or is here twice")
            }
            Self::NoBeginning { number } => {
                write!(f, "this line is number {number} of a chain whose beginning is not here")
            }
            Self::AfterTheEnd => f.write_str("this line follows the one that closed its chain"),
            Self::CutOff { lines, known } => {
                write!(
                    f,
                    "the chain ends here with {lines} lines, and is known to have had {known}: the end was cut off"
                )
            }
            Self::Gone { known, was_in: None } => write!(f, "a chain that is known to have had {known} lines is gone"),
            Self::Gone { known, was_in: Some(file) } => {
                write!(
                    f,
                    "a chain that is known to have had {known} lines in `{}` is gone",
                    crate::model::text::shown(file, 300)
                )
            }
        }
    }
}

/// Something to know that is no change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Note {
    /// Where.
    #[serde(flatten)]
    pub spot: Spot,
    /// What.
    pub what: Aside,
}

/// What there is to know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Aside {
    /// The beginning of a line that could not be written whole; the next line says so.
    Torn,
    /// The last line of the file is not whole: its writer was ended, or writes just now.
    CutShort,
    /// Lines could not be written before this one.
    Lost {
        /// How many.
        lines: u64,
        /// How many of them were decisions whose calls went on.
        unrecorded: u64,
    },
}

impl std::fmt::Display for Aside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Torn => f.write_str("the beginning of a line that could not be written whole"),
            Self::CutShort => f.write_str("the last line is not whole: its writer was ended, or is writing it"),
            Self::Lost { lines, unrecorded } => {
                write!(f, "before this line {lines} could not be written; {unrecorded} calls went on without")
            }
        }
    }
}

/// Whether lines' marks were checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Marks {
    /// They were.
    Checked,
    /// No key was given.
    NoKey,
    /// The key that was given is not the one that the chain begins with.
    OtherKey,
}

/// What one chain is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChainReport {
    /// Its head, as these files have it.
    pub head: Head,
    /// How many of its lines are vouched for by a head that is kept elsewhere; none: no head of it is known.
    pub anchored: Option<u64>,
    /// How many lines are behind that.
    pub unanchored: u64,
    /// Whether it was closed: otherwise its writer runs still, or was killed.
    pub closed: bool,
    /// Whether its marks were checked.
    pub marks: Marks,
    /// Where its last line is.
    pub last: Spot,
}

/// What a verification came to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// How many lines were read.
    pub lines: u64,
    /// What is not as it was written, in order of finding.
    pub findings: Vec<Finding>,
    /// How many findings more there were.
    pub more_findings: u64,
    /// What else there is to know.
    pub notes: Vec<Note>,
    /// The chains, in order of their first line.
    pub chains: Vec<ChainReport>,
}

impl Report {
    /// Whether all is as it was written, as far as that can be told.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.findings.is_empty()
    }

    pub(super) fn found(&mut self, spot: Spot, chain: Option<&ChainId>, what: What) {
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(Finding { spot, chain: chain.cloned(), what });
        } else {
            self.more_findings += 1;
        }
    }

    pub(super) fn note(&mut self, spot: Spot, what: Aside) {
        if self.notes.len() < MAX_FINDINGS {
            self.notes.push(Note { spot, what });
        }
    }
}

/// A verification that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum NotVerified {
    /// A file cannot be read.
    #[error("cannot read `{}`", crate::model::text::shown(&.0.display().to_string(), 300))]
    File(PathBuf, #[source] io::Error),
    /// What is known of the chains cannot be read.
    #[error(transparent)]
    Chains(#[from] ChainsFailed),
    /// More chains than one run follows.
    #[error("there are more than {MAX_CHAINS} chains in these files; verify fewer at once")]
    TooMany,
}

/// What is known besides the files.
pub struct Known<'a> {
    /// The root keys that somebody kept. With any, a chain under none of them is a finding.
    pub roots: &'a [RootKey],
    /// What the store knows of a chain.
    pub anchored: &'a dyn Fn(&ChainId) -> Result<Option<Anchor>, ChainsFailed>,
    /// Heads that somebody kept.
    pub heads: &'a [Head],
    /// Chains of which lines must be there, if all of their files are given.
    pub expected: &'a [Anchor],
    /// Whether all files of their place are given: every chain must begin, and those that others follow must be there.
    pub whole: bool,
}

impl std::fmt::Debug for Known<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Known").field("heads", &self.heads).finish_non_exhaustive()
    }
}

/// Verifies files, each from its beginning, in the order in which they were written.
///
/// # Errors
/// [`NotVerified`]. What is not as it was written is no error: it is in the report.
pub fn verify(files: &[PathBuf], known: &Known<'_>) -> Result<Report, NotVerified> {
    let (report, keys) = (Report::default(), Keys::of(known.roots));
    let mut verifying = Verifying { known, report, keys, walks: HashMap::new(), order: Vec::new(), afters: Vec::new() };
    for file in files {
        verifying.file(file)?;
    }
    verifying.end()
}

struct Verifying<'a> {
    known: &'a Known<'a>,
    report: Report,
    keys: Keys,
    walks: HashMap<ChainId, Walk>,
    order: Vec<ChainId>,
    /// What first lines say of the chains before theirs.
    afters: Vec<Head>,
}

impl Verifying<'_> {
    fn file(&mut self, file: &Path) -> Result<(), NotVerified> {
        let failed = |error| NotVerified::File(file.to_owned(), error);
        let mut lines =
            Lines::new(BufReader::with_capacity(256 * 1024, File::open(file).map_err(failed)?), MAX_LINE + MAX_LINK);
        let mut buffer = Vec::new();
        let (mut number, mut strange) = (0, None::<Spot>);
        loop {
            let read = lines.next(&mut buffer).map_err(failed)?;
            number += 1;
            let spot = || Spot { file: Some(file.to_owned()), line: number };
            let parsed = match read {
                Line::End => break,
                Line::TooLong => None,
                Line::Whole | Line::Torn => link::parse(&buffer),
            };
            self.report.lines += 1;
            match parsed {
                Some(linked) => {
                    if let Some(strange) = strange.take() {
                        self.strange(strange, linked.link.torn);
                    }
                    self.line(spot(), &buffer, &linked)?;
                }
                None if read == Line::Torn => self.report.note(spot(), Aside::CutShort),
                None => {
                    if let Some(before) = strange.replace(spot()) {
                        self.strange(before, false);
                    }
                }
            }
        }
        if let Some(strange) = strange {
            self.strange(strange, false);
        }
        Ok(())
    }

    /// A line that is none: the beginning of one that was cut off, if the next line says that there is one.
    fn strange(&mut self, spot: Spot, torn: bool) {
        if torn {
            self.report.note(spot, Aside::Torn);
        } else {
            self.report.found(spot, None, What::NotALine);
        }
    }

    fn line(&mut self, spot: Spot, line: &[u8], linked: &Linked<'_>) -> Result<(), NotVerified> {
        let id = &linked.link.id;
        if !self.walks.contains_key(id) {
            if self.walks.len() >= MAX_CHAINS {
                return Err(NotVerified::TooMany);
            }
            let kept = self.known.heads.iter().filter(|head| head.chain == *id).cloned();
            let heads = (self.known.anchored)(id)?.map(|anchor| anchor.head).into_iter().chain(kept).collect();
            let walk = Walk::begin(linked, heads, &mut self.keys, self.known.whole);
            self.afters.extend(predecessor(linked));
            self.order.push(id.clone());
            self.walks.insert(id.clone(), walk);
        }
        if let Some(walk) = self.walks.get_mut(id) {
            walk.line(spot, line, linked, &mut self.keys, &mut self.report);
        }
        Ok(())
    }

    fn end(mut self) -> Result<Report, NotVerified> {
        let mut followed = Vec::new();
        for head in std::mem::take(&mut self.afters) {
            match self.walks.get_mut(&head.chain) {
                Some(walk) => walk.vouch(head, &mut self.report),
                None if self.known.whole => followed.push(head),
                None => {}
            }
        }
        for id in &self.order {
            if let Some(walk) = self.walks.remove(id) {
                let chain = walk.end(id, &mut self.report);
                self.report.chains.push(chain);
            }
        }
        let seen: BTreeSet<&ChainId> = self.order.iter().collect();
        let gone = self.known.expected.iter().map(|anchor| (&anchor.head, Some(anchor.file.clone())));
        let gone = gone.chain(self.known.heads.iter().chain(&followed).map(|head| (head, None)));
        let nowhere = || Spot { file: None, line: 0 };
        let mut told = BTreeSet::new();
        for (head, was_in) in gone.filter(|(head, _)| !seen.contains(&head.chain)) {
            if !told.insert(&head.chain) {
                continue;
            }
            self.report.found(nowhere(), Some(&head.chain), What::Gone { known: head.lines, was_in });
        }
        Ok(self.report)
    }
}

#[cfg(test)]
#[path = "verify_tests.rs"]
mod tests;
