//! Tests the file in which a snapshot is stored between processes. Whatever the file contains, the next snapshot is
//! correct, and an unusable file is reported in the log.

use std::io;
use std::sync::{Mutex, PoisonError};

use super::*;

pub(crate) const CASES: &[SnapshotTestCase] = &[
    ("stored snapshot: next process reuses snapshot", Requirement::ReliableTimestamps, next_process_reuses_snapshot),
    ("stored snapshot: discards unusable files", Requirement::ReliableTimestamps, discards_unusable_files),
    (
        "stored snapshot: survives lost or foreign listing",
        Requirement::ReliableTimestamps,
        survives_lost_or_foreign_listing,
    ),
    (
        "stored snapshot: ignores links and foreign files",
        Requirement::ChangeableOwners,
        ignores_links_and_foreign_files,
    ),
    ("stored snapshot: limits number of files", Requirement::ReliableTimestamps, limits_number_of_files),
    (
        "stored snapshot: reads everything without reliable timestamps",
        Requirement::Nothing,
        reads_everything_without_reliable_timestamps,
    ),
];

fn open_directory(place: &TempDir) -> std::os::fd::OwnedFd {
    crate::repository::open(place.path())
}

fn store_in(place: &TempDir) -> SnapshotStore {
    SnapshotStore::new(helper(), Some(open_directory(place))).with_racy_window(NO_RACY_WINDOW)
}

/// Returns the only snapshot file of a store.
fn snapshot_file(place: &TempDir) -> std::path::PathBuf {
    let files = fs::read_dir(place.path()).expect("reads").map(|file| file.expect("reads").path());
    let (beside, files): (Vec<_>, Vec<_>) = files.partition(|file| file.extension().is_some());
    assert_eq!((beside.len(), files.len()), (1, 1), "the store holds one snapshot, one sidecar and no temporary file");
    files[0].clone()
}

/// Returns a store whose file contains complete data about a settled repository.
fn settled_store() -> (TempDir, FixtureRepo) {
    let place = TempDir::new().expect("a temporary directory");
    let watched = WatchedRepo { repo: FixtureRepo::small(), store: store_in(&place) };
    watched.settle();
    (place, watched.repo)
}

/// The log of a thread.
#[derive(Clone, Default)]
struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl io::Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Takes a snapshot as the next process would. Returns it with the warnings in the log.
fn take_with_log(place: &TempDir, repo: &FixtureRepo) -> (Arc<Snapshot>, String) {
    let log = CapturedLog::default();
    let writer = log.clone();
    let logger = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_ansi(false);
    let logger = logger.with_writer(move || writer.clone()).finish();
    let taken = tracing::subscriber::with_default(logger, || store_in(place).take(&repo.top)).expect("takes");
    let told = String::from_utf8(log.0.lock().expect("no writer panics").clone()).expect("UTF-8");
    (taken, told)
}

/// Checks that the log contains exactly one line, which names the repository and the reason why its file is
/// discarded.
#[track_caller]
fn assert_discarded_with_warning(told: &str, repo: &FixtureRepo, why: &str) {
    let line = told.trim_end();
    assert_eq!(line.lines().count(), 1, "{told:?}");
    let repo_field = format!("repo={}", repo.top.display());
    for words in ["WARN", "the snapshot cache of a repository is discarded", &repo_field, why] {
        assert!(line.contains(words), "no {words:?} in {line:?}");
    }
}

fn next_process_reuses_snapshot() {
    let (place, repo) = settled_store();
    let (taken, told) = take_with_log(&place, &repo);
    assert_eq!((taken.stats.hashed, taken.stats.git_was_read), (0, false));
    assert_eq!(told, "", "a valid snapshot file logs no warning");
    assert_same_snapshot(&taken, &repo.snapshot(), "");
    repo.write("src/new.rs", "x");
    let taken = store_in(&place).take(&repo.top).expect("takes");
    assert_eq!((taken.stats.hashed, taken.stats.git_was_read), (1, false));
    assert_same_snapshot(&taken, &repo.snapshot(), "");
}

fn survives_lost_or_foreign_listing() {
    for damage in [true, false] {
        let (place, repo) = settled_store();
        let sidecar = snapshot_file(&place).with_extension("git");
        match damage {
            true => fs::remove_file(sidecar).expect("removes"),
            false => crate::repository::write_file(&sidecar, b"x"),
        }
        let store = store_in(&place);
        assert!(!store.take(&repo.top).expect("takes").stats.git_was_read);
        repo.write("README.md", "HELLO\n");
        let taken = store.take(&repo.top).expect("takes");
        assert!(taken.stats.git_was_read && taken.stats.hashed == 1, "{:?}", taken.stats);
        assert_same_snapshot(&taken, &repo.snapshot(), "");
    }
}

fn discards_unusable_files() {
    let (place, repo) = settled_store();
    let file = snapshot_file(&place);
    let whole = fs::read(&file).expect("reads");
    let starts_anew = |bytes: &[u8], what: &str, why: &str| {
        chmod(&file, 0o600);
        crate::repository::write_file(&file, bytes);
        let (taken, told) = take_with_log(&place, &repo);
        assert!(taken.stats.git_was_read && taken.stats.method == SnapshotMethod::First, "{what}: {:?}", taken.stats);
        assert_same_snapshot(&taken, &repo.snapshot(), what);
        assert_discarded_with_warning(&told, &repo, why);
    };
    starts_anew(b"", "empty", "is not a snapshot");
    starts_anew(&whole[..whole.len() / 2], "torn", "it is torn");
    starts_anew(&[&whole[..], b"x"].concat(), "longer", "it is torn");
    starts_anew(&with_flipped_bit(&whole, 0), "no marker of Proctor", "is not a snapshot");
    starts_anew(&with_flipped_bit(&whole, 14), "damaged", "why=it has another version");
    for at in [20, 26, whole.len() / 2, whole.len() - 1] {
        starts_anew(&with_flipped_bit(&whole, at), "damaged", "why=it is ");
    }
    starts_anew(&with_flipped_bit(&whole, whole.len() / 2), "damaged", "it is damaged");
    let (other_place, _other) = settled_store();
    starts_anew(
        &fs::read(snapshot_file(&other_place)).expect("reads"),
        "another's",
        "it belongs to another repository",
    );
    crate::repository::write_file(&file, &whole);
    chmod(&file, 0o644);
    let (taken, told) = take_with_log(&place, &repo);
    assert!(taken.stats.git_was_read, "a file that other users can write is discarded");
    assert_discarded_with_warning(&told, &repo, "another user could have written it");
    crate::repository::write_file(&file, &whole);
    chmod(&file, 0o600);
    let moved = repo.dir.path().join("moved");
    fs::rename(&repo.top, &moved).expect("renames");
    assert!(run_program(repo.dir.path(), "cp", &["-a", "moved", "repo"]).status.success());
    let taken = store_in(&place).take(&repo.top).expect("takes");
    assert!(taken.stats.git_was_read && taken.stats.hashed == 3, "another directory has the same path");
}

fn with_flipped_bit(whole: &[u8], at: usize) -> Vec<u8> {
    let mut damaged = whole.to_vec();
    damaged[at] ^= 4;
    damaged
}

fn ignores_links_and_foreign_files() {
    let (place, repo) = settled_store();
    let file = snapshot_file(&place);
    let whole = fs::read(&file).expect("reads");
    std::os::unix::fs::chown(&file, Some(1234), None).expect("changes the owner");
    assert!(store_in(&place).take(&repo.top).expect("takes").stats.git_was_read, "a file of another owner is ignored");
    let elsewhere = place.path().join("elsewhere");
    crate::repository::write_file(&elsewhere, &whole);
    chmod(&elsewhere, 0o600);
    fs::remove_file(&file).expect("removes");
    symlink(&elsewhere, &file).expect("links");
    assert!(store_in(&place).take(&repo.top).expect("takes").stats.git_was_read, "a link is ignored");
    fs::remove_file(&file).expect("removes");
    fifo(&file);
    assert!(store_in(&place).take(&repo.top).expect("takes").stats.git_was_read, "a fifo is ignored");
}

fn limits_number_of_files() {
    let (place, repo) = settled_store();
    let file = snapshot_file(&place);
    assert_eq!(fs::metadata(&file).expect("stats").mode() & 0o777, 0o600);
    (0..80).for_each(|n| crate::repository::write_file(&place.path().join(format!("{n:032}")), b"old"));
    repo.write("a", "x");
    store_in(&place).take(&repo.top).expect("takes");
    assert_eq!(fs::read_dir(place.path()).expect("reads").count(), 64);
    assert!(file.exists());
}

fn reads_everything_without_reliable_timestamps() {
    let Ok(room) = tempfile::tempdir_in("/dev/shm") else { return };
    let top = room.path().canonicalize().expect("path exists").join("repo");
    fs::create_dir(&top).expect("creates");
    let repo = FixtureRepo { dir: room, top };
    repo.git(&["init", "-q", "."]);
    repo.write("a", "x").commit();
    let store = SnapshotStore::new(helper(), None).with_racy_window(NO_RACY_WINDOW);
    for _ in 0..3 {
        let taken = store.take(&repo.top).expect("takes");
        let method = taken.stats.method;
        assert!(method == SnapshotMethod::Rehash && taken.stats.hashed == 1 || method != SnapshotMethod::Rehash);
        assert_same_snapshot(&taken, &repo.snapshot(), "");
    }
}
