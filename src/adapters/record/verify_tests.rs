use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::adapters::record::jsonl::tests::{Heads, root};
use crate::adapters::record::jsonl::{JsonLines, Writing};
use crate::adapters::record::line::samples;
use crate::adapters::record::place::{Place, files_in};
use crate::model::chain::Key;
use crate::model::digest::Digest;
use crate::ports::chains::Chains;
use crate::ports::recorder::Recorder as _;

/// A record of one chain: start, `calls` started items, close; and what is known of it.
struct Recorded {
    dir: tempfile::TempDir,
    file: PathBuf,
    heads: Arc<Heads>,
}

fn recorded(calls: usize) -> Recorded {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("log.jsonl");
    let heads = Arc::new(Heads::default());
    let log = JsonLines::open(Place::File(file.clone()), Writing::default(), Arc::clone(&heads) as _).unwrap();
    (0..calls).for_each(|_| log.item(&samples::started()));
    drop(log);
    Recorded { dir, file, heads }
}

impl Recorded {
    fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.file).unwrap()
    }

    fn lines(&self) -> Vec<String> {
        String::from_utf8(self.bytes()).unwrap().lines().map(str::to_owned).collect()
    }

    fn write(&self, lines: &[String]) {
        std::fs::write(&self.file, lines.join("\n") + "\n").unwrap();
    }

    fn verify(&self, root: Option<&RootKey>, anchored: bool) -> Report {
        let known = Known {
            roots: root.map_or(&[], std::slice::from_ref),
            anchored: &|chain| if anchored { self.heads.anchored(chain) } else { Ok(None) },
            heads: &[],
            expected: &[],
            whole: false,
        };
        verify(std::slice::from_ref(&self.file), &known).unwrap()
    }

    fn findings(&self) -> Vec<(u64, What)> {
        self.verify(None, true).findings.into_iter().map(|finding| (finding.spot.line, finding.what)).collect()
    }
}

/// Changes one letter of a line's own members.
fn changed(line: &str) -> String {
    assert!(line.contains("\"tool\":\"write\""));
    line.replace("\"tool\":\"write\"", "\"tool\":\"wrote\"")
}

#[test]
fn r34_a_record_as_it_was_written_holds_and_is_anchored_to_its_end() {
    let record = recorded(200);
    for key in [None, Some(&root())] {
        let report = record.verify(key, true);
        assert!(report.holds(), "{:?}", report.findings);
        let chain = &report.chains[0];
        assert_eq!((chain.head.lines, chain.anchored, chain.unanchored, chain.closed), (202, Some(202), 0, true));
        assert_eq!(chain.marks, if key.is_some() { Marks::Checked } else { Marks::NoKey });
    }
    let report = record.verify(Some(&RootKey(Key::new([4; 32]))), false);
    assert_eq!(report.findings[0].what, What::Unmarked, "under another key nothing checks the marks");
    assert_eq!(
        (report.chains[0].marks, report.chains[0].anchored, report.chains[0].unanchored),
        (Marks::OtherKey, None, 202)
    );
}

#[test]
fn r34_a_changed_line_is_named_whichever_it_is() {
    let record = recorded(6);
    let whole = record.lines();
    for at in 1..=6 {
        let mut lines = whole.clone();
        lines[at] = changed(&lines[at]);
        record.write(&lines);
        let line = u64::try_from(at).unwrap() + 1;
        assert_eq!(record.findings(), [(line, What::Changed)]);
    }
    let mut lines = whole.clone();
    lines[7] = lines[7].replace("ended", "mended");
    record.write(&lines);
    assert_eq!(record.findings(), [(8, What::Changed)], "the last one is vouched for by the head");
    assert!(record.verify(None, false).holds(), "nothing else vouches for it");
    assert_eq!(record.verify(Some(&root()), false).findings[0].what, What::WrongMark);
}

#[test]
fn r34_a_changed_link_is_the_line_that_has_it() {
    let record = recorded(6);
    let whole = record.lines();
    let mut lines = whole.clone();
    let link = link::parse(lines[3].as_bytes()).unwrap().link;
    lines[3] = lines[3].replace(&link.prev.to_string(), &Digest::of(b"other").to_string());
    record.write(&lines);
    assert_eq!(record.findings(), [(4, What::Changed)]);
    lines = whole;
    lines[3] = lines[3].replace("\"seq\":3", "\"seq\":5");
    record.write(&lines);
    assert_eq!(record.findings(), [(4, What::Changed)]);
}

#[test]
fn r34_removed_moved_and_repeated_lines_are_named() {
    let record = recorded(6);
    let whole = record.lines();
    let mut lines = whole.clone();
    lines.remove(3);
    record.write(&lines);
    assert_eq!(record.findings(), [(4, What::Missing { from: 3, count: 1 })]);
    lines = whole.clone();
    lines.swap(3, 4);
    record.write(&lines);
    assert_eq!(record.findings(), [(4, What::Missing { from: 3, count: 1 }), (5, What::OutOfPlace { number: 3 })]);
    lines = whole.clone();
    lines.insert(5, lines[2].clone());
    record.write(&lines);
    assert_eq!(record.findings(), [(6, What::OutOfPlace { number: 2 })]);
    lines = whole.clone();
    lines.insert(2, "{\"type\":\"decision\"}".to_owned());
    record.write(&lines);
    assert_eq!(record.findings(), [(3, What::NotALine)]);
    record.write(&whole[2..]);
    assert_eq!(record.findings(), [(1, What::NoBeginning { number: 2 })]);
}

#[test]
fn r34_an_end_that_was_cut_off_is_named_with_what_was_known() {
    let record = recorded(6);
    let lines = record.lines();
    record.write(&lines[..5]);
    assert_eq!(record.findings(), [(5, What::CutOff { lines: 5, known: 8 })]);
    let head: Head = record.heads.of_place("").unwrap()[0].head.clone();
    let kept = head.to_string().parse().unwrap();
    let known = Known { roots: &[], anchored: &|_| Ok(None), heads: &[kept], expected: &[], whole: false };
    let report = verify(std::slice::from_ref(&record.file), &known).unwrap();
    assert_eq!(report.findings[0].what, What::CutOff { lines: 5, known: 8 }, "by a head that somebody kept");
    std::fs::write(&record.file, "").unwrap();
    let anchors = record.heads.of_place("").unwrap();
    let known = Known { expected: &anchors, ..known };
    let report = verify(std::slice::from_ref(&record.file), &known).unwrap();
    assert!(matches!(report.findings[0].what, What::Gone { known: 8, .. }), "{:?}", report.findings);
}

#[test]
fn r34_a_writer_that_was_killed_in_the_middle_of_a_line_is_told_and_its_successor_is_whole() {
    let record = recorded(6);
    let bytes = record.bytes();
    let lines = record.lines();
    // Killed: neither its last line is whole nor its chain closed, and the head that is known is an earlier one.
    let killed = bytes.len() - lines[7].len() - lines[6].len() / 2;
    std::fs::write(&record.file, &bytes[..killed]).unwrap();
    let report = record.verify(None, false);
    assert!(report.holds() && !report.chains[0].closed);
    assert_eq!(report.notes, [Note { spot: Spot { file: Some(record.file.clone()), line: 7 }, what: Aside::CutShort }]);
    let heads = Arc::new(Heads::default());
    let next = JsonLines::open(Place::File(record.file.clone()), Writing::default(), heads as _).unwrap();
    next.item(&samples::started());
    drop(next);
    let report = record.verify(None, false);
    assert!(report.holds(), "{:?}", report.findings);
    assert_eq!((report.chains.len(), report.notes[0].what.clone()), (2, Aside::Torn));
}

#[test]
fn r34_a_chain_whose_end_was_cut_off_is_told_by_the_one_after_it() {
    let record = recorded(6);
    let heads = Arc::clone(&record.heads);
    let next = JsonLines::open(Place::File(record.file.clone()), Writing::default(), heads as _).unwrap();
    next.item(&samples::started());
    drop(next);
    assert!(record.verify(None, false).holds());
    let mut lines = record.lines();
    lines.drain(5..8);
    record.write(&lines);
    let report = record.verify(None, false);
    assert_eq!(report.findings[0].what, What::CutOff { lines: 5, known: 8 }, "no store was asked");
}

#[test]
fn r34_a_chain_that_another_one_follows_must_be_there_and_a_first_line_says_what_it_follows() {
    let record = recorded(6);
    let heads = Arc::clone(&record.heads);
    let next = JsonLines::open(Place::File(record.file.clone()), Writing::default(), heads as _).unwrap();
    next.item(&samples::started());
    drop(next);
    let lines = record.lines();
    record.write(&lines[8..]);
    let known = Known { roots: &[], anchored: &|_| Ok(None), heads: &[], expected: &[], whole: true };
    let report = verify(std::slice::from_ref(&record.file), &known).unwrap();
    assert_eq!(report.findings[0].what, What::Gone { known: 8, was_in: None });
    assert!(verify(std::slice::from_ref(&record.file), &Known { whole: false, ..known }).unwrap().holds());
    // Whoever takes the mention away has a first line that follows something.
    let start: serde_json::Value = serde_json::from_str(&lines[8]).unwrap();
    let mention = format!("\"after\":{},", start["after"]);
    assert!(lines[8].contains(&mention), "{}", lines[8]);
    let mut without = lines.clone();
    without[8] = without[8].replace(&mention, "");
    record.write(&without);
    assert_eq!(record.findings(), [(9, What::Changed)]);
}

#[test]
fn r34_a_chain_over_several_files_holds_and_a_missing_file_between_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, heads) = (dir.path().join("records"), Arc::new(Heads::default()));
    let writing = Writing { rotate_bytes: 4096, ..Writing::default() };
    let log = JsonLines::open(Place::Folder(folder.clone()), writing, Arc::clone(&heads) as _).unwrap();
    (0..60).for_each(|_| log.item(&samples::started()));
    drop(log);
    let mut files = files_in(&folder).unwrap();
    assert!(files.len() > 3);
    let root = root();
    let known = Known {
        roots: std::slice::from_ref(&root),
        anchored: &|chain| heads.anchored(chain),
        heads: &[],
        expected: &[],
        whole: false,
    };
    let report = verify(&files, &known).unwrap();
    assert!(report.holds() && report.chains.len() == 1, "{:?}", report.findings);
    assert!(verify(&files[1..], &known).unwrap().holds(), "a file that goes on from others may be given without them");
    let known_whole = Known { whole: true, ..known };
    assert!(verify(&files, &known_whole).unwrap().holds());
    let report = verify(&files[1..], &known_whole).unwrap();
    assert!(
        matches!(report.findings[..], [Finding { what: What::Missing { from: 0, .. }, .. }]),
        "the first file of a place that is given whole: {:?}",
        report.findings
    );
    let known = Known { whole: false, ..known_whole };
    files.remove(1);
    let report = verify(&files, &known).unwrap();
    assert!(matches!(report.findings[..], [Finding { what: What::Missing { .. }, .. }]), "{:?}", report.findings);
    assert_eq!(report.findings[0].spot, Spot { file: Some(files[1].clone()), line: 1 });
}

#[test]
fn r34_100_000_lines_are_verified_and_every_kind_of_change_is_named() {
    let record = recorded(99_998);
    let whole = record.bytes();
    let report = record.verify(None, true);
    assert!(report.holds());
    assert_eq!((report.lines, report.chains[0].head.lines), (100_000, 100_000));

    let starts: Vec<usize> = std::iter::once(0)
        .chain(whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1))
        .collect();
    let mut flipped = whole.clone();
    flipped[starts[50_000] + 20] ^= 1;
    std::fs::write(&record.file, &flipped).unwrap();
    assert_eq!(record.findings(), [(50_001, What::Changed)], "one bit");

    let gone = [&whole[..starts[50_000]], &whole[starts[50_001]..]].concat();
    std::fs::write(&record.file, gone).unwrap();
    assert_eq!(record.findings(), [(50_001, What::Missing { from: 50_000, count: 1 })], "one line");

    let (one, two) = (&whole[starts[7]..starts[8]], &whole[starts[8]..starts[9]]);
    let swapped = [&whole[..starts[7]], two, one, &whole[starts[9]..]].concat();
    std::fs::write(&record.file, swapped).unwrap();
    assert_eq!(record.findings(), [(8, What::Missing { from: 7, count: 1 }), (9, What::OutOfPlace { number: 7 })]);

    std::fs::write(&record.file, &whole[..starts[99_000]]).unwrap();
    assert_eq!(record.findings(), [(99_000, What::CutOff { lines: 99_000, known: 100_000 })], "the tail");
    assert!(record.dir.path().exists());
}

proptest! {
    #[test]
    fn r34_any_single_byte_that_changes_is_found(at: prop::sample::Index, by in 1u8..) {
        let record = recorded(4);
        let mut bytes = record.bytes();
        let at = at.index(bytes.len());
        bytes[at] ^= by;
        std::fs::write(&record.file, &bytes).unwrap();
        prop_assert!(!record.verify(None, true).holds(), "byte {at} changed by {by} was not found");
    }
}
