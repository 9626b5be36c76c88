use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::*;
use crate::adapters::record::inputs::samples as input_samples;
use crate::adapters::record::line::samples;
use crate::adapters::record::link;
use crate::adapters::record::place::{Out, Sink, files_in, inputs_of};
use crate::model::chain::{ChainId, Head, RootKey};
use crate::ports::chains::{Anchor, Begun};

/// Heads and keys in memory.
#[derive(Default)]
pub(in crate::adapters::record) struct Heads(Mutex<Vec<Anchor>>);

/// The root that all chains of these tests begin with.
pub(in crate::adapters::record) fn root() -> RootKey {
    RootKey(Key::new([3; 32]))
}

impl Chains for Heads {
    fn begin(&self, chain: &ChainId, _place: &str) -> Result<Begun, ChainsFailed> {
        let after = self.0.lock().last().map(|anchor| anchor.head.clone());
        Ok(Begun { root: root().0.id(), step: 0, key: root().of_chain(chain, 0), after })
    }

    fn anchor(&self, head: &Head, _place: &str, file: &str) -> Result<(), ChainsFailed> {
        let mut all = self.0.lock();
        all.retain(|anchor| anchor.head.chain != head.chain);
        all.push(Anchor { head: head.clone(), file: file.to_owned() });
        Ok(())
    }

    fn anchored(&self, chain: &ChainId) -> Result<Option<Anchor>, ChainsFailed> {
        Ok(self.0.lock().iter().find(|anchor| anchor.head.chain == *chain).cloned())
    }

    fn of_place(&self, _place: &str) -> Result<Vec<Anchor>, ChainsFailed> {
        Ok(self.0.lock().clone())
    }

    fn renew(&self) -> Result<RootKey, ChainsFailed> {
        Ok(root())
    }

    fn inputs_key(&self) -> Result<Key, ChainsFailed> {
        Ok(Key::new([5; 32]))
    }
}

fn open(path: &Path, writing: Writing) -> JsonLines {
    JsonLines::open(Place::File(path.to_owned()), writing, Arc::new(Heads::default())).unwrap()
}

fn lines(path: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn types(path: &Path) -> Vec<String> {
    lines(path).iter().map(|line| line["type"].as_str().unwrap().to_owned()).collect()
}

fn continuing() -> Writing {
    Writing { on_failure: OnFailure::Continue, ..Writing::default() }
}

#[test]
fn r34_lines_are_in_the_file_when_the_call_returns_between_a_start_and_a_close() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.jsonl");
    let log = open(&path, Writing::default());
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 0, "nothing was recorded");
    log.decision(&samples::decision()).unwrap();
    assert_eq!(types(&path), ["chain-start", "decision"]);
    log.item(&samples::completed());
    drop(log);
    assert_eq!(types(&path), ["chain-start", "decision", "completed", "chain-close"]);
}

#[test]
fn r34_digests_of_what_the_caller_gave_are_marks_of_the_tenant_and_equal_for_equal_inputs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.jsonl");
    let log = open(&path, Writing::default());
    let (mut record, mut other) = (samples::decision(), samples::decision());
    record.decision.voices[0].heard = Some(Digest::of(b"heard"));
    other.caller.tenant = TenantId::new("other");
    for record in [&record, &record, &other] {
        log.decision(record).unwrap();
    }
    let digests: Vec<_> = lines(&path)[1..].iter().map(|line| line["arguments_digest"].clone()).collect();
    assert_eq!(digests[0], digests[1]);
    assert_ne!(digests[0], digests[2]);
    let text = std::fs::read_to_string(&path).unwrap();
    for plain in [record.arguments, Digest::of(b"heard")] {
        assert!(!text.contains(&plain.to_string()));
    }
}

#[test]
fn an_existing_log_is_continued_and_a_torn_line_spoils_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.jsonl");
    std::fs::write(&path, "{\"type\":\"star").unwrap();
    open(&path, Writing::default()).item(&samples::started());
    open(&path, Writing::default()).item(&samples::started());
    let text = std::fs::read_to_string(&path).unwrap();
    let good = text.lines().filter(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()).count();
    assert_eq!((text.lines().count(), good), (7, 6));
    assert!(link::parse(text.lines().nth(1).unwrap().as_bytes()).unwrap().link.torn);
}

#[test]
fn r34_a_decision_on_a_full_disk_is_an_error_with_its_cause() {
    let log = open(Path::new("/dev/full"), Writing::default());
    let RecordFailed(cause) = log.decision(&samples::decision()).unwrap_err();
    assert_eq!(cause.kind(), io::ErrorKind::StorageFull);
    assert_eq!((log.lost(), log.unrecorded()), (0, 0));
}

#[test]
fn r34_on_a_full_disk_continue_lets_the_call_go_on_and_counts_it() {
    let log = open(Path::new("/dev/full"), continuing());
    for _ in 0..3 {
        log.decision(&samples::decision()).unwrap();
    }
    assert_eq!((log.lost(), log.unrecorded()), (0, 3));
}

#[test]
fn items_lost_on_a_full_disk_are_counted() {
    let log = open(Path::new("/dev/full"), Writing::default());
    log.item(&samples::started());
    log.item(&samples::completed());
    assert_eq!(log.lost(), 2);
}

/// Writes what it is told into memory, but for these writes: of each it takes a few bytes and fails.
struct Tearing {
    kept: Arc<Mutex<Vec<u8>>>,
    writes: usize,
    torn: Vec<usize>,
}

impl Write for Tearing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writes += 1;
        if self.torn.contains(&self.writes) {
            self.kept.lock().extend_from_slice(&bytes[..bytes.len().min(5)]);
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        self.kept.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for Tearing {
    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn r34_a_line_after_torn_ones_begins_anew_and_says_what_was_lost_and_went_on() {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let sink = Tearing { kept: Arc::clone(&kept), writes: 0, torn: vec![2, 3] };
    let out = Out { to: Box::new(sink), path: "memory".into(), torn: false, size: 0 };
    let bounds = Writing::default().bounds();
    let writer = Writer::over(Place::File("memory".into()), Some(out), bounds, Arc::new(Heads::default()));
    let log = JsonLines::over(writer, continuing(), Key::new([5; 32]));
    log.decision(&samples::decision()).unwrap();
    log.item(&samples::started());
    log.decision(&samples::decision()).unwrap();
    let text = String::from_utf8(kept.lock().clone()).unwrap();
    let last = text.lines().last().unwrap();
    let link = link::parse(last.as_bytes()).unwrap().link;
    assert_eq!((link.seq, link.lost, link.unrecorded, link.torn), (1, 2, 1, true), "{text}");
    let whole = text.lines().filter(|line| link::parse(line.as_bytes()).is_some()).count();
    assert_eq!(whole, 2, "the start and the decision");
}

#[test]
fn a_log_that_cannot_be_opened_is_named() {
    let place = Place::File("/nowhere/log.jsonl".into());
    let error = JsonLines::open(place, Writing::default(), Arc::new(Heads::default())).unwrap_err();
    assert_eq!(error.to_string(), "cannot open the log file `/nowhere/log.jsonl`");
}

#[test]
fn r34_lines_written_at_once_do_not_mix_and_are_one_chain() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.jsonl");
    let log = open(&path, Writing { include_arguments: true, ..Writing::default() });
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..50).for_each(|_| log.item(&samples::started())));
        }
    });
    let text = std::fs::read_to_string(&path).unwrap();
    let numbers = text.lines().map(|line| link::parse(line.as_bytes()).unwrap().link.seq);
    assert!(numbers.eq(0..401));
}

#[test]
fn r34_a_full_file_gives_way_to_one_that_begins_with_its_predecessors_hash() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("records");
    let writing = Writing { rotate_bytes: 4096, ..Writing::default() };
    let log = JsonLines::open(Place::Folder(folder.clone()), writing, Arc::new(Heads::default())).unwrap();
    assert!(files_in(&folder).unwrap().is_empty(), "nothing was recorded");
    for _ in 0..20 {
        log.decision(&samples::decision()).unwrap();
    }
    drop(log);
    let files = files_in(&folder).unwrap();
    assert!(files.len() > 2, "{files:?}");
    for pair in files.windows(2) {
        let before = std::fs::read_to_string(&pair[0]).unwrap();
        let close = before.lines().last().unwrap();
        let start = lines(&pair[1])[0].clone();
        assert!(before.len() < 4096 + 1024);
        assert_eq!(serde_json::from_str::<serde_json::Value>(close).unwrap()["reason"], "rotated");
        assert_eq!(start["type"], "chain-start");
        assert_eq!(start["continues"].as_str(), pair[0].file_name().unwrap().to_str());
        assert_eq!(start["chain"]["prev"], Digest::of(close.as_bytes()).to_string());
    }
}

#[test]
fn r34_a_folder_that_others_may_read_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let place = Place::Folder(dir.path().to_owned());
    let OpenFailed::File { source, .. } =
        JsonLines::open(place, Writing::default(), Arc::new(Heads::default())).unwrap_err()
    else {
        panic!("another failure");
    };
    assert!(source.to_string().contains("`chmod 700` it"), "{source}");
}

#[test]
fn r35_inputs_are_kept_beside_the_record_only_if_asked_for_and_bound_by_the_decisions_line() {
    let folder = tempfile::tempdir().unwrap();
    let mut record = samples::decision();
    record.inputs = Some(Arc::new(input_samples::inputs()));
    for inputs in [false, true] {
        let path = folder.path().join(format!("{inputs}.jsonl"));
        open(&path, Writing { inputs, ..Writing::default() }).decision(&record).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let bound = link::parse(text.lines().nth(1).unwrap().as_bytes()).unwrap().link.inputs;
        assert_eq!(inputs_of(&path).exists(), inputs);
        assert_eq!(bound.is_some(), inputs);
        if let Some(bound) = bound {
            let kept = std::fs::read_to_string(inputs_of(&path)).unwrap();
            let of = Digest::of(kept.trim_end().as_bytes());
            let key = Heads::default().inputs_key().unwrap().of_tenant(record.caller.tenant.as_str());
            assert_eq!(marked(&key, of), bound, "a mark, no plain digest");
            assert_eq!(std::fs::metadata(inputs_of(&path)).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }
}

#[test]
fn r35_a_file_of_inputs_that_others_may_read_or_that_is_a_link_gets_none_and_the_decision_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let mut record = samples::decision();
    record.inputs = Some(Arc::new(input_samples::inputs()));
    let elsewhere = folder.path().join("elsewhere");
    for name in ["open", "link"] {
        let path = folder.path().join(format!("{name}.jsonl"));
        match name {
            "open" => {
                std::fs::write(inputs_of(&path), "").unwrap();
                std::fs::set_permissions(inputs_of(&path), std::fs::Permissions::from_mode(0o666)).unwrap();
            }
            _ => std::os::unix::fs::symlink(&elsewhere, inputs_of(&path)).unwrap(),
        }
        open(&path, Writing { inputs: true, ..Writing::default() }).decision(&record).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(link::parse(text.lines().nth(1).unwrap().as_bytes()).unwrap().link.inputs, None, "{name}");
        assert!(name == "link" || std::fs::read(inputs_of(&path)).unwrap().is_empty());
        assert!(!elsewhere.exists());
    }
}
