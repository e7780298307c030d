//! Tests the file in which a snapshot is stored between processes. Whatever the file contains, the next snapshot is
//! correct, and an unusable file is reported in the log.

use std::io;
use std::sync::{Mutex, PoisonError};

use super::random_edits::{EditNumbers, apply_random_edit};
use super::*;

pub(crate) const CASES: &[SnapshotTestCase] = &[
    ("stored snapshot: next process reuses snapshot", Requirement::ReliableTimestamps, next_process_reuses_snapshot),
    ("stored snapshot: discards unusable files", Requirement::ReliableTimestamps, discards_unusable_files),
    (
        "stored snapshot: survives lost or foreign listing",
        Requirement::ReliableTimestamps,
        survives_lost_or_foreign_listing,
    ),
    ("stored snapshot: appends changes to file", Requirement::ReliableTimestamps, appends_changes_to_file),
    ("stored snapshot: survives torn and foreign journal", Requirement::ReliableTimestamps, survives_torn_journal),
    ("stored snapshot: folds long journal", Requirement::ReliableTimestamps, folds_long_journal),
    (
        "stored snapshot: stays correct with several processes",
        Requirement::ReliableTimestamps,
        stays_correct_with_several_processes,
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
    let log_text = String::from_utf8(log.0.lock().expect("no writer panics").clone()).expect("UTF-8");
    (taken, log_text)
}

/// Checks that the log contains exactly one line, which names the repository and the reason why its file is
/// discarded.
#[track_caller]
fn assert_discarded_with_warning(log_text: &str, repo: &FixtureRepo, why: &str) {
    let line = log_text.trim_end();
    assert_eq!(line.lines().count(), 1, "{log_text:?}");
    let repo_field = format!("repo={}", repo.top.display());
    for words in ["WARN", "the snapshot cache of a repository is discarded", &repo_field, why] {
        assert!(line.contains(words), "no {words:?} in {line:?}");
    }
}

fn next_process_reuses_snapshot() {
    let (place, repo) = settled_store();
    let (taken, log_text) = take_with_log(&place, &repo);
    assert_eq!((taken.stats.hashed, taken.stats.git_was_read), (0, false));
    assert_eq!(log_text, "", "a valid snapshot file logs no warning");
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
        let (taken, log_text) = take_with_log(&place, &repo);
        assert!(taken.stats.git_was_read && taken.stats.method == SnapshotMethod::First, "{what}: {:?}", taken.stats);
        assert_same_snapshot(&taken, &repo.snapshot(), what);
        assert_discarded_with_warning(&log_text, &repo, why);
    };
    starts_anew(b"", "empty", "is not a snapshot");
    starts_anew(&whole[..whole.len() / 2], "torn", "it was written only partly");
    starts_anew(&with_flipped_bit(&whole, 0), "no marker of Proctor", "is not a snapshot");
    starts_anew(&with_flipped_bit(&whole, 14), "damaged", "why=it has another version");
    for at in [20, 26, whole.len() / 2, whole.len() - 1] {
        starts_anew(&with_flipped_bit(&whole, at), "damaged", "why=it ");
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
    let (taken, log_text) = take_with_log(&place, &repo);
    assert!(taken.stats.git_was_read, "a file that other users can write is discarded");
    assert_discarded_with_warning(&log_text, &repo, "another user could have written it");
    crate::repository::write_file(&file, &whole);
    chmod(&file, 0o600);
    let moved = repo.dir.path().join("moved");
    fs::rename(&repo.top, &moved).expect("renames");
    assert!(run_program(repo.dir.path(), "cp", &["-a", "moved", "repo"]).status.success());
    let taken = store_in(&place).take(&repo.top).expect("takes");
    assert!(taken.stats.git_was_read && taken.stats.hashed == 3, "another directory has the same path");
}

/// Returns a store whose file contains complete data about a settled repository with many files, so that a few changes
/// are appended to it.
fn large_settled_store() -> (TempDir, FixtureRepo) {
    let place = TempDir::new().expect("a temporary directory");
    let repo = FixtureRepo::small();
    add_many_files(&repo);
    let watched = WatchedRepo { repo, store: store_in(&place) };
    watched.settle();
    (place, watched.repo)
}

fn add_many_files(repo: &FixtureRepo) {
    for number in 0..1500 {
        repo.write(format!("many/{}/{number}", number % 7), "x");
    }
    repo.commit();
}

fn appends_changes_to_file() {
    let (place, repo) = large_settled_store();
    let file = snapshot_file(&place);
    let base = fs::read(&file).expect("reads");
    let mut before = base.clone();
    for edit in ["one", "two", "three"] {
        repo.write("many/3/10", edit).write("README.md", edit);
        let taken = store_in(&place).take(&repo.top).expect("takes");
        assert_same_snapshot(&taken, &repo.snapshot(), edit);
        let now = fs::read(&file).expect("reads");
        assert!(now.len() > before.len() && now.starts_with(&before), "{edit}: nothing is appended");
        // The next process finds the state of this one.
        let (taken, log_text) = take_with_log(&place, &repo);
        assert!(
            !taken.stats.git_was_read && taken.stats.hashed <= 2 && log_text.is_empty(),
            "{:?} {log_text}",
            taken.stats
        );
        assert_same_snapshot(&taken, &repo.snapshot(), edit);
        before = fs::read(&file).expect("reads");
        assert!(before.starts_with(&now), "{edit}: the file is written anew");
    }
    // A removed tracked file keeps its place in the file; a new path does not have one.
    fs::remove_file(repo.at("many/0/7")).expect("removes");
    assert_same_snapshot(&store_in(&place).take(&repo.top).expect("takes"), &repo.snapshot(), "removed");
    repo.write("many/0/new", "x");
    assert_same_snapshot(&store_in(&place).take(&repo.top).expect("takes"), &repo.snapshot(), "new path");
    assert!(!fs::read(&file).expect("reads").starts_with(&base));
    let (taken, log_text) = take_with_log(&place, &repo);
    assert!(!taken.stats.git_was_read && log_text.is_empty(), "{:?} {log_text}", taken.stats);
    assert_same_snapshot(&taken, &repo.snapshot(), "next process");
}

fn survives_torn_journal() {
    let (place, repo) = large_settled_store();
    let file = snapshot_file(&place);
    let base = fs::read(&file).expect("reads");
    repo.write("many/3/10", "changed").write("README.md", "changed");
    store_in(&place).take(&repo.top).expect("takes");
    let whole = fs::read(&file).expect("reads");
    assert!(whole.starts_with(&base) && whole.len() > base.len());
    let foreign = fs::read(snapshot_file(&large_settled_store().0)).expect("reads");
    let torn = (base.len()..whole.len()).step_by(97).map(|length| (whole[..length].to_vec(), length));
    let flipped = (base.len()..whole.len()).step_by(89).map(|at| (with_flipped_bit(&whole, at), at));
    let more = [&b"x"[..], &whole[base.len()..], &foreign[..100]];
    let longer = more.into_iter().map(|more| ([&whole[..], more].concat(), whole.len()));
    for (bytes, at) in torn.chain(flipped).chain(longer) {
        crate::repository::write_file(&file, &bytes);
        let (taken, log_text) = take_with_log(&place, &repo);
        assert!(!taken.stats.git_was_read && taken.stats.hashed <= 2 && log_text.is_empty(), "{at}: {:?}", taken.stats);
        assert_same_snapshot(&taken, &repo.snapshot(), &at.to_string());
    }
    // The last of these files was written again, or a later change writes it again.
    repo.write("many/3/10", "again");
    assert_same_snapshot(&store_in(&place).take(&repo.top).expect("takes"), &repo.snapshot(), "");
    let (taken, _) = take_with_log(&place, &repo);
    assert!(!taken.stats.git_was_read && taken.stats.hashed <= 1, "{:?}", taken.stats);
    // A process whose state is outdated writes the whole file, since its frame would not be read.
    let stores = [store_in(&place), store_in(&place)];
    stores.iter().for_each(|store| drop(store.take(&repo.top).expect("takes")));
    for (store, edit) in stores.iter().zip(["first", "second"]) {
        repo.write("many/3/10", edit);
        store.take(&repo.top).expect("takes");
    }
    let outdated = fs::read(&file).expect("reads");
    repo.write("many/3/10", "third");
    stores[0].take(&repo.top).expect("takes");
    assert!(!fs::read(&file).expect("reads").starts_with(&outdated), "a frame is appended that cannot be read");
    assert_same_snapshot(&take_with_log(&place, &repo).0, &repo.snapshot(), "");
}

fn folds_long_journal() {
    let (place, repo) = large_settled_store();
    let file = snapshot_file(&place);
    let (mut before, base) = (fs::metadata(&file).expect("stats").len(), fs::metadata(&file).expect("stats").len());
    let (store, mut folds) = (store_in(&place), 0);
    for edit in 0..40 {
        repo.write("many/3/10", format!("edit {edit}"));
        assert_same_snapshot(&store.take(&repo.top).expect("takes"), &repo.snapshot(), &edit.to_string());
        let now = fs::metadata(&file).expect("stats").len();
        assert!(now <= base + base / 16 + 1024, "{now} bytes after {edit} edits");
        folds += usize::from(now < before);
        before = now;
    }
    assert!(folds > 1, "{folds}");
    assert_same_snapshot(&take_with_log(&place, &repo).0, &repo.snapshot(), "next process");
}

/// Several processes edit and take snapshots in turn, some of them with an outdated state in memory.
fn stays_correct_with_several_processes() {
    const EDITS: usize = 12;
    for seed in 0..crate::campaign_size(2, 6) {
        let place = TempDir::new().expect("a temporary directory");
        let repo = FixtureRepo::small();
        add_many_files(&repo);
        let watched = WatchedRepo { repo, store: store_in(&place) };
        watched.settle();
        let repo = watched.repo;
        let mut numbers = EditNumbers(seed + 1000);
        let mut stores: Vec<SnapshotStore> = (0..3).map(|_| store_in(&place)).collect();
        let mut script = Vec::new();
        for _ in 0..EDITS {
            match numbers.below(3) {
                0 => script.push(apply_random_edit(&repo, &mut numbers)),
                _ => {
                    let path = format!("many/3/{}", 7 * numbers.below(70) + 3);
                    repo.write(&path, format!("edit {}", script.len()));
                    script.push(path);
                }
            }
            let at = numbers.below(stores.len());
            if numbers.below(3) == 0 {
                stores[at] = store_in(&place);
                script.push(format!("new process {at}"));
            }
            match (stores[at].take(&repo.top), repo.take()) {
                (Ok(taken), Ok(fresh)) => assert_same_snapshot(&taken, &fresh, &format!("seed {seed}: {script:#?}")),
                (Err(taken), Err(fresh)) => assert_eq!(taken.to_string(), fresh.to_string()),
                (taken, fresh) => panic!("seed {seed}: {script:#?}: {:?} {:?}", taken.err(), fresh.err()),
            }
        }
    }
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
    // The files of a repository are as old as the newer of them, and are removed together.
    let old = fs::metadata(place.path().join(format!("{:032}", 79))).expect("stats");
    let pairs: Vec<_> = (100..140).map(|n| (format!("{n:032}"), format!("{n:032}.git"))).collect();
    for (snapshot, listing) in &pairs {
        crate::repository::write_file(&place.path().join(snapshot), b"new");
        crate::repository::write_file(&place.path().join(listing), b"old");
        set_mtime(&place.path().join(listing), &old);
    }
    repo.write("b", "x");
    store_in(&place).take(&repo.top).expect("takes");
    let is_there = |name: &str| place.path().join(name).exists();
    assert!(pairs.iter().all(|(snapshot, listing)| is_there(snapshot) == is_there(listing)));
    let kept = pairs.iter().filter(|(snapshot, _)| is_there(snapshot)).count();
    assert!(kept == 31 && file.exists() && file.with_extension("git").exists(), "{kept} are kept");
    assert_eq!(fs::read_dir(place.path()).expect("reads").count(), 64);
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
