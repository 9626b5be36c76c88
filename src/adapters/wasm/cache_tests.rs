//! What is kept is used only if it is what was put there.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use super::*;

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("state")).unwrap();
        mode(&dir.path().join("state"), 0o700);
        Self(dir)
    }

    fn folder(&self) -> PathBuf {
        self.0.path().join("compiled")
    }

    fn key(&self) -> PathBuf {
        self.0.path().join("state/cache.key")
    }

    fn open(&self, bound: u64) -> Result<Fitted, CacheError> {
        let user = rustix::process::getuid().as_raw();
        Cache::bounded(&self.folder(), &self.key(), user, bound).map(|cache| cache.fitted(Digest::of(b"engine")))
    }

    fn files(&self) -> Vec<PathBuf> {
        std::fs::read_dir(self.folder()).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

fn digest(text: &str) -> Digest {
    Digest::of(text.as_bytes())
}

#[test]
fn r36_what_was_put_comes_back_also_in_the_next_process() {
    let place = Place::new();
    place.open(MAX_BYTES).unwrap().put(digest("a"), b"code");
    let next = place.open(MAX_BYTES).unwrap();
    assert_eq!(next.get(digest("a")), Some(b"code".to_vec()));
    assert_eq!(next.get(digest("b")), None);
    let modes = [place.folder(), place.key(), place.files()[0].clone()]
        .map(|path| path.metadata().unwrap().permissions().mode() & 0o777);
    assert_eq!(modes, [0o700, 0o600, 0o600]);
}

#[test]
fn r36_a_file_with_any_byte_changed_or_cut_off_is_a_miss() {
    let place = Place::new();
    let cache = place.open(MAX_BYTES).unwrap();
    cache.put(digest("a"), b"code");
    let file = place.files().remove(0);
    let whole = std::fs::read(&file).unwrap();
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        std::fs::write(&file, changed).unwrap();
        assert_eq!(cache.get(digest("a")), None, "byte {at}");
        std::fs::write(&file, &whole[..at]).unwrap();
        assert_eq!(cache.get(digest("a")), None, "cut off at {at}");
    }
    std::fs::write(&file, [&whole[..], b"x"].concat()).unwrap();
    assert_eq!(cache.get(digest("a")), None, "a byte more");
    // It is compiled again and kept again.
    cache.put(digest("a"), b"code");
    assert_eq!(cache.get(digest("a")), Some(b"code".to_vec()));
}

#[test]
fn r36_a_file_under_the_name_of_another_is_a_miss() {
    let place = Place::new();
    let cache = place.open(MAX_BYTES).unwrap();
    cache.put(digest("harmless"), b"allow");
    let file = place.files().remove(0);
    std::fs::copy(&file, place.folder().join(cache.name(digest("strict")))).unwrap();
    assert_eq!(cache.get(digest("strict")), None);
}

#[test]
fn r36_another_key_or_another_engine_is_a_miss() {
    let place = Place::new();
    let cache = place.open(MAX_BYTES).unwrap();
    cache.put(digest("a"), b"code");
    let other = cache.cache.clone().fitted(digest("another engine"));
    assert_eq!(other.get(digest("a")), None);
    std::fs::copy(&place.files()[0], place.folder().join(other.name(digest("a")))).unwrap();
    assert_eq!(other.get(digest("a")), None, "its mark says which engine it is for");
    std::fs::remove_file(place.key()).unwrap();
    assert_eq!(place.open(MAX_BYTES).unwrap().get(digest("a")), None);
}

#[test]
fn r36_a_folder_or_key_that_others_can_get_at_is_not_used() {
    let place = Place::new();
    place.open(MAX_BYTES).unwrap();
    mode(&place.folder(), 0o750);
    assert!(matches!(place.open(MAX_BYTES), Err(CacheError::Shared { mode: 0o750, .. })));
    mode(&place.folder(), 0o700);
    mode(&place.key(), 0o644);
    assert!(matches!(place.open(MAX_BYTES), Err(CacheError::Shared { mode: 0o644, .. })));
    mode(&place.key(), 0o600);
    std::fs::write(place.key(), "short").unwrap();
    assert!(matches!(place.open(MAX_BYTES), Err(CacheError::Key(_))));
    std::fs::write(place.key(), [7; MARK]).unwrap();
    assert!(place.open(MAX_BYTES).is_ok());
}

#[test]
fn r36_a_link_or_a_shared_file_is_a_miss() {
    let place = Place::new();
    let cache = place.open(MAX_BYTES).unwrap();
    cache.put(digest("a"), b"code");
    let file = place.files().remove(0);
    mode(&file, 0o666);
    assert_eq!(cache.get(digest("a")), None);
    mode(&file, 0o600);
    let elsewhere = place.0.path().join("elsewhere");
    std::fs::rename(&file, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &file).unwrap();
    assert_eq!(cache.get(digest("a")), None);
}

#[test]
fn a_folder_that_cannot_be_used_costs_a_warning_only() {
    let place = Place::new();
    let cache = place.open(MAX_BYTES).unwrap();
    std::fs::remove_dir(place.folder()).unwrap();
    cache.put(digest("a"), b"code");
    assert_eq!(cache.get(digest("a")), None);
    std::fs::write(place.folder(), "a file").unwrap();
    assert!(matches!(place.open(MAX_BYTES), Err(CacheError::Io(..))));
}

#[test]
fn what_was_used_longest_ago_goes_first() {
    let place = Place::new();
    let size = 1000 + MARK as u64;
    let cache = place.open(2 * size).unwrap();
    let age = |name: &str, seconds| {
        let file = std::fs::File::open(place.folder().join(cache.name(digest(name)))).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
    };
    cache.put(digest("a"), &[1; 1000]);
    cache.put(digest("b"), &[2; 1000]);
    age("a", 500);
    age("b", 400);
    assert!(cache.get(digest("a")).is_some(), "used: now it is the younger one");
    cache.put(digest("c"), &[3; 1000]);
    assert!(cache.get(digest("b")).is_none());
    assert!(cache.get(digest("a")).is_some() && cache.get(digest("c")).is_some());
    cache.put(digest("huge"), &[4; 3000]);
    assert!(cache.get(digest("huge")).is_none(), "beyond the bound by itself");
}
