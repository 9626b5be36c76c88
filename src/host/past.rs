//! The inputs of recorded decisions, found by their digest.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use crate::adapters::record::inputs::MAX_LINE;
use crate::adapters::record::jsonl::marked;
use crate::adapters::record::place::inputs_of;
use crate::adapters::record::reading::{Line, Lines};
use crate::model::chain::Key;
use crate::model::digest::Digest;

/// How many lines of one file are known; beyond, they are not found.
const MAX_KNOWN: usize = 5_000_000;

/// Why inputs were not found.
#[derive(Debug)]
pub(super) enum NotFound {
    NoFile,
    Absent,
    Failed(io::Error),
}

/// An open file, and where each of its lines is, by its digest.
type Index = (File, HashMap<Digest, (u64, usize)>);

/// A file of inputs. It is read once for what is where, so that their order does not matter, and then where it is asked for.
pub(super) struct InputsFile {
    path: PathBuf,
    known: Option<Result<Index, io::ErrorKind>>,
    /// The digests by their marks under the key of the tenant that was last asked for.
    marks: Option<(Key, HashMap<Digest, Digest>)>,
}

impl InputsFile {
    /// The one beside a file of records.
    pub(super) fn beside(file: &Path) -> Self {
        Self { path: inputs_of(file), known: None, marks: None }
    }

    /// Returns the line with this mark under the tenant's key, without its newline.
    pub(super) fn find(&mut self, wanted: Digest, key: &Key) -> Result<Vec<u8>, NotFound> {
        let path = &self.path;
        let known = self.known.get_or_insert_with(|| index(path).map_err(|error| error.kind()));
        let (file, places) = match known {
            Ok(known) => known,
            Err(io::ErrorKind::NotFound) => return Err(NotFound::NoFile),
            Err(kind) => return Err(NotFound::Failed((*kind).into())),
        };
        let marks = match self.marks.take().filter(|(of, _)| of == key) {
            Some((_, marks)) => marks,
            None => places.keys().map(|digest| (marked(key, *digest), *digest)).collect(),
        };
        let digest = marks.get(&wanted).copied();
        self.marks = Some((key.clone(), marks));
        let digest = digest.ok_or(NotFound::Absent)?;
        let (at, length) = *places.get(&digest).ok_or(NotFound::Absent)?;
        let mut line = vec![0; length];
        file.seek(SeekFrom::Start(at)).and_then(|_| file.read_exact(&mut line)).map_err(NotFound::Failed)?;
        // The file may have changed since.
        if Digest::of(&line) == digest { Ok(line) } else { Err(NotFound::Absent) }
    }
}

fn index(path: &Path) -> io::Result<Index> {
    let mut lines = Lines::new(BufReader::with_capacity(256 * 1024, File::open(path)?), MAX_LINE);
    let (mut places, mut buffer, mut at) = (HashMap::new(), Vec::new(), 0u64);
    loop {
        match lines.next(&mut buffer)? {
            Line::End | Line::Torn => break,
            // Where the next one begins is not known any more.
            Line::TooLong => break,
            Line::Whole => {
                if places.len() < MAX_KNOWN {
                    places.insert(Digest::of(&buffer), (at, buffer.len()));
                }
                at += u64::try_from(buffer.len()).unwrap_or(u64::MAX) + 1;
            }
        }
    }
    Ok((File::open(path)?, places))
}
