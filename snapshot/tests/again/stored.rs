//! The file in which a snapshot outlives its process: whatever it holds, the next one is right.

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

/// The one file of a store.
fn file_in(place: &TempDir) -> std::path::PathBuf {
    let files = fs::read_dir(place.path()).expect("reads").map(|file| file.expect("reads").path());
    let (beside, files): (Vec<_>, Vec<_>) = files.partition(|file| file.extension().is_some());
    assert_eq!((beside.len(), files.len()), (1, 1), "one file, one beside it, and nothing temporary");
    files[0].clone()
}

/// A store whose file knows all about a settled repository.
fn settled_file() -> (TempDir, Repo) {
    let place = TempDir::new().expect("a temporary directory");
    let watched = Watched { repo: Repo::small(), store: store_in(&place) };
    watched.settle();
    (place, watched.repo)
}

fn next_process() {
    let (place, repo) = settled_file();
    let taken = store_in(&place).take(&repo.top).expect("takes");
    assert_eq!((taken.stats.hashed, taken.stats.git_was_read), (0, false));
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
    let starts_anew = |bytes: &[u8], what: &str| {
        chmod(&file, 0o600);
        crate::repository::put(&file, bytes);
        let taken = store_in(&place).take(&repo.top).expect("takes");
        assert!(taken.stats.git_was_read && taken.stats.method == SnapshotMethod::First, "{what}: {:?}", taken.stats);
        same(&taken, &repo.snapshot(), what);
    };
    starts_anew(b"", "empty");
    starts_anew(&whole[..whole.len() / 2], "torn");
    starts_anew(&[&whole[..], b"x"].concat(), "longer");
    for at in [0, 14, 20, 26, whole.len() / 2, whole.len() - 1] {
        let mut damaged = whole.clone();
        damaged[at] ^= 4;
        starts_anew(&damaged, "damaged");
    }
    let (other_place, _other) = settled_file();
    starts_anew(&fs::read(file_in(&other_place)).expect("reads"), "another repository's");
    crate::repository::put(&file, &whole);
    chmod(&file, 0o644);
    assert!(store_in(&place).take(&repo.top).expect("takes").stats.git_was_read, "one that others may have written");
    crate::repository::put(&file, &whole);
    chmod(&file, 0o600);
    let moved = repo.room.path().join("moved");
    fs::rename(&repo.top, &moved).expect("renames");
    assert!(run_program(repo.room.path(), "cp", &["-a", "moved", "repo"]).status.success());
    let taken = store_in(&place).take(&repo.top).expect("takes");
    assert!(taken.stats.git_was_read && taken.stats.hashed == 3, "another directory of the same name");
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
