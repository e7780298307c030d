//! Tests the file in which a snapshot is stored between processes. Whatever the file contains, the next snapshot is
//! correct, and an unusable file is reported in the log.

use std::io;
use std::sync::{Mutex, PoisonError};

use super::*;

pub(crate) const CASES: &[Case] = &[
    ("cache: the next process begins with it", Need::TimesTell, next_process),
    ("cache: torn, damaged, foreign and of another version", Need::TimesTell, useless_files),
    ("cache: what git said is lost, or another's", Need::TimesTell, lost_sidecar),
    ("cache: a link or a stranger's file is not read", Need::OtherOwners, strange_files),
    ("cache: it is bounded, and readable by nobody else", Need::TimesTell, bounded),
    ("snapshot: where times tell nothing, everything is read", Need::Nothing, on_tmpfs),
];

fn directory_of(place: &TempDir) -> std::os::fd::OwnedFd {
    crate::repository::open(place.path())
}

fn store_in(place: &TempDir) -> SnapshotStore {
    SnapshotStore::new(helper(), Some(directory_of(place))).settling(AT_ONCE)
}

/// Returns the only snapshot file of a store.
fn file_in(place: &TempDir) -> std::path::PathBuf {
    let files = fs::read_dir(place.path()).expect("reads").map(|file| file.expect("reads").path());
    let (beside, files): (Vec<_>, Vec<_>) = files.partition(|file| file.extension().is_some());
    assert_eq!((beside.len(), files.len()), (1, 1), "one file, one beside it, and nothing temporary");
    files[0].clone()
}

/// Returns a store whose file contains complete data about a settled repository.
fn settled_file() -> (TempDir, Repo) {
    let place = TempDir::new().expect("a temporary directory");
    let watched = Watched { repo: Repo::small(), store: store_in(&place) };
    watched.settle();
    (place, watched.repo)
}

/// The log of a thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Takes a snapshot as the next process would. Returns it with the warnings in the log.
fn taken_and_told(place: &TempDir, repo: &Repo) -> (Arc<Snapshot>, String) {
    let log = Log::default();
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
fn demand_told(told: &str, repo: &Repo, why: &str) {
    let line = told.trim_end();
    assert_eq!(line.lines().count(), 1, "{told:?}");
    let whose = format!("repo={}", repo.top.display());
    for words in ["WARN", "the snapshot cache of a repository is thrown away", &whose, why] {
        assert!(line.contains(words), "no {words:?} in {line:?}");
    }
}

fn next_process() {
    let (place, repo) = settled_file();
    let (taken, told) = taken_and_told(&place, &repo);
    assert_eq!((taken.stats.hashed, taken.stats.git_was_read), (0, false));
    assert_eq!(told, "", "nothing is wrong with it");
    same(&taken, &repo.snapshot(), "");
    repo.write("src/new.rs", "x");
    let taken = store_in(&place).take(&repo.top).expect("takes");
    assert_eq!((taken.stats.hashed, taken.stats.git_was_read), (1, false));
    same(&taken, &repo.snapshot(), "");
}

fn lost_sidecar() {
    for damage in [true, false] {
        let (place, repo) = settled_file();
        let sidecar = file_in(&place).with_extension("git");
        match damage {
            true => fs::remove_file(sidecar).expect("removes"),
            false => crate::repository::put(&sidecar, b"x"),
        }
        let store = store_in(&place);
        assert!(!store.take(&repo.top).expect("takes").stats.git_was_read);
        repo.write("README.md", "HELLO\n");
        let taken = store.take(&repo.top).expect("takes");
        assert!(taken.stats.git_was_read && taken.stats.hashed == 1, "{:?}", taken.stats);
        same(&taken, &repo.snapshot(), "");
    }
}

fn useless_files() {
    let (place, repo) = settled_file();
    let file = file_in(&place);
    let whole = fs::read(&file).expect("reads");
    let starts_anew = |bytes: &[u8], what: &str, why: &str| {
        chmod(&file, 0o600);
        crate::repository::put(&file, bytes);
        let (taken, told) = taken_and_told(&place, &repo);
        assert!(taken.stats.git_was_read && taken.stats.method == SnapshotMethod::First, "{what}: {:?}", taken.stats);
        same(&taken, &repo.snapshot(), what);
        demand_told(&told, &repo, why);
    };
    starts_anew(b"", "empty", "no snapshot");
    starts_anew(&whole[..whole.len() / 2], "torn", "it is torn");
    starts_anew(&[&whole[..], b"x"].concat(), "longer", "it is torn");
    starts_anew(&with_a_bit_changed(&whole, 0), "no marker of Proctor", "no snapshot");
    for at in [14, 20, 26, whole.len() / 2, whole.len() - 1] {
        starts_anew(&with_a_bit_changed(&whole, at), "damaged", "why=it is");
    }
    starts_anew(&with_a_bit_changed(&whole, whole.len() / 2), "damaged", "it is damaged");
    let (other_place, _other) = settled_file();
    starts_anew(&fs::read(file_in(&other_place)).expect("reads"), "another's", "it is of another repository");
    crate::repository::put(&file, &whole);
    chmod(&file, 0o644);
    let (taken, told) = taken_and_told(&place, &repo);
    assert!(taken.stats.git_was_read, "one that others may have written");
    demand_told(&told, &repo, "another user could have written it");
    crate::repository::put(&file, &whole);
    chmod(&file, 0o600);
    let moved = repo.room.path().join("moved");
    fs::rename(&repo.top, &moved).expect("renames");
    assert!(run_program(repo.room.path(), "cp", &["-a", "moved", "repo"]).status.success());
    let taken = store_in(&place).take(&repo.top).expect("takes");
    assert!(taken.stats.git_was_read && taken.stats.hashed == 3, "another directory of the same name");
}

fn with_a_bit_changed(whole: &[u8], at: usize) -> Vec<u8> {
    let mut damaged = whole.to_vec();
    damaged[at] ^= 4;
    damaged
}

fn strange_files() {
    let (place, repo) = settled_file();
    let file = file_in(&place);
    let whole = fs::read(&file).expect("reads");
    std::os::unix::fs::chown(&file, Some(1234), None).expect("changes the owner");
    assert!(store_in(&place).take(&repo.top).expect("takes").stats.git_was_read, "a stranger's");
    let elsewhere = place.path().join("elsewhere");
    crate::repository::put(&elsewhere, &whole);
    chmod(&elsewhere, 0o600);
    fs::remove_file(&file).expect("removes");
    symlink(&elsewhere, &file).expect("links");
    assert!(store_in(&place).take(&repo.top).expect("takes").stats.git_was_read, "a link");
    fs::remove_file(&file).expect("removes");
    fifo(&file);
    assert!(store_in(&place).take(&repo.top).expect("takes").stats.git_was_read, "a fifo");
}

fn bounded() {
    let (place, repo) = settled_file();
    let file = file_in(&place);
    assert_eq!(fs::metadata(&file).expect("stats").mode() & 0o777, 0o600);
    (0..80).for_each(|n| crate::repository::put(&place.path().join(format!("{n:032}")), b"old"));
    repo.write("a", "x");
    store_in(&place).take(&repo.top).expect("takes");
    assert_eq!(fs::read_dir(place.path()).expect("reads").count(), 64);
    assert!(file.exists());
}

fn on_tmpfs() {
    let Ok(room) = tempfile::tempdir_in("/dev/shm") else { return };
    let top = room.path().canonicalize().expect("it is there").join("repo");
    fs::create_dir(&top).expect("creates");
    let repo = Repo { room, top };
    repo.git(&["init", "-q", "."]);
    repo.write("a", "x").commit();
    let store = SnapshotStore::new(helper(), None).settling(AT_ONCE);
    for _ in 0..3 {
        let taken = store.take(&repo.top).expect("takes");
        let method = taken.stats.method;
        assert!(method == SnapshotMethod::Rehash && taken.stats.hashed == 1 || method != SnapshotMethod::Rehash);
        same(&taken, &repo.snapshot(), "");
    }
}
