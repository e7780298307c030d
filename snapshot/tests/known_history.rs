//! Histories that a store remembers: after each change of the repository, the store must not return the earlier one.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use proctor_git::files::file_stat::RacyWindow;
use proctor_git::protocol::GitHistory;
use proctor_snapshot::SnapshotStore;

use crate::repository::{FixtureRepo, helper, write_file};
use crate::{Requirement, SnapshotTestCase};

pub(crate) const CASES: &[SnapshotTestCase] = &[
    ("known history: is never older than the repository", Requirement::ReliableTimestamps, is_never_outdated),
    ("known history: follows a linked worktree", Requirement::ReliableTimestamps, follows_linked_worktree),
    ("known history: needs known sources", Requirement::ReliableTimestamps, needs_known_sources),
    ("known history: needs settled files", Requirement::ReliableTimestamps, needs_settled_files),
];

/// Time limit until no file is too recent to be trusted.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(20);

/// Returns a store for repositories whose files no process maps.
fn store() -> SnapshotStore {
    SnapshotStore::new(helper(), None).with_racy_window(RacyWindow(Duration::ZERO))
}

fn read(top: &Path) -> GitHistory {
    helper().history(top, &[]).unwrap_or_else(|error| panic!("{error}"))
}

/// Reads the history until the store remembers it.
fn settle(store: &SnapshotStore, top: &Path) {
    let until = Instant::now() + SETTLE_TIMEOUT;
    while store.known_history(top).is_none() {
        store.read_history(top).unwrap_or_else(|error| panic!("{error}"));
        assert!(Instant::now() < until, "the history is still unknown after {SETTLE_TIMEOUT:?}");
    }
}

/// Applies a change to a repository whose history is known, and checks that the store does not return an outdated one.
fn check_after(store: &SnapshotStore, top: &Path, name: &str, change: impl FnOnce()) {
    settle(store, top);
    let before = read(top);
    assert_eq!(store.known_history(top).as_deref(), Some(&before), "{name}: the known history differs before");
    change();
    let now = read(top);
    assert_ne!(before, now, "{name}: the case changes nothing");
    if let Some(known) = store.known_history(top) {
        assert_eq!(*known, now, "{name}: the known history is outdated");
    }
}

fn is_never_outdated() {
    let repo = FixtureRepo::small();
    let store = store();
    let git = |args: &[&str]| drop(repo.git(args));
    let check = |name: &str, change: &dyn Fn()| check_after(&store, &repo.top, name, change);
    let commit = |message: &str| git(&["commit", "-q", "--allow-empty", "-m", message]);
    check("a commit", &|| commit("second"));
    check("a branch", &|| git(&["branch", "other"]));
    check("a branch in a new directory", &|| git(&["branch", "deep/er/branch"]));
    check("a second branch in the directory", &|| git(&["branch", "deep/er/second", "HEAD~1"]));
    check("a branch that moves", &|| git(&["branch", "-f", "deep/er/second", "HEAD"]));
    check("a tag", &|| git(&["tag", "v1"]));
    check("an annotated tag", &|| git(&["tag", "-a", "v2", "-m", "x"]));
    check("another HEAD", &|| git(&["checkout", "-q", "other"]));
    check("a ref of another kind", &|| git(&["update-ref", "refs/notes/x", "HEAD"]));
    check("a symbolic ref", &|| git(&["symbolic-ref", "refs/remotes/origin/HEAD", "refs/heads/other"]));
    check("the target of the symbolic ref", &|| commit("third"));
    git(&["pack-refs", "--all"]);
    check("a branch that was packed", &|| commit("fourth"));
    check("a removed branch", &|| git(&["branch", "-D", "deep/er/branch"]));
    check("a line of packed-refs", &|| {
        let file = repo.at(".git/packed-refs");
        let text = fs::read_to_string(&file).expect("reads");
        write_file(&file, text.replace("refs/tags/v1", "refs/tags/v3").as_bytes());
    });
    check("a ref with the same size and time of modification", &|| {
        let file = repo.at(".git/refs/heads/other");
        let modified = fs::metadata(&file).and_then(|data| data.modified()).expect("reads");
        let earlier = repo.git(&["rev-parse", "other~1"]);
        write_file(&file, format!("{}\n", earlier.trim()).as_bytes());
        fs::File::options().write(true).open(&file).and_then(|file| file.set_modified(modified)).expect("sets");
    });
    check("ignore rules", &|| write_file(&repo.at(".git/info/exclude"), b"*.x\n"));
    check("a setting", &|| git(&["config", "core.ignoreCase", "true"]));
    check("a shallow boundary", &|| {
        let id = repo.git(&["rev-parse", "HEAD"]);
        write_file(&repo.at(".git/shallow"), format!("{}\n", id.trim()).as_bytes());
    });
    check("a detached HEAD", &|| git(&["checkout", "-q", "--detach"]));
    check("a replaced directory of refs", &|| {
        fs::rename(repo.at(".git/refs/heads"), repo.at(".git/refs/old")).expect("renames");
        fs::create_dir(repo.at(".git/refs/heads")).expect("creates");
    });
}

fn follows_linked_worktree() {
    let repo = FixtureRepo::small();
    repo.git(&["worktree", "add", "-q", "../linked", "-b", "linked"]);
    let top = repo.dir.path().canonicalize().expect("path exists").join("linked");
    let store = store();
    let check = |name: &str, change: &dyn Fn()| check_after(&store, &top, name, change);
    check("a branch of the main worktree", &|| drop(repo.git(&["branch", "other"])));
    check("its own HEAD", &|| drop(repo.git(&["-C", "../linked", "checkout", "-q", "other"])));
    check("a ref of its own", &|| drop(repo.git(&["-C", "../linked", "update-ref", "refs/bisect/bad", "HEAD"])));
}

fn needs_known_sources() {
    let repo = FixtureRepo::small();
    let store = store();
    settle(&store, &repo.top);
    write_file(&repo.at("rules"), b"*.y\n");
    let rules = repo.at("rules");
    repo.git(&["config", "core.excludesFile", rules.to_str().expect("text")]);
    let deadline = Instant::now() + Duration::from_millis(100);
    while Instant::now() < deadline {
        store.read_history(&repo.top).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(store.known_history(&repo.top), None, "rules in another file are not tracked");
    }
}

/// A write through a shared mapping changes a file without new stat data for a while.
fn needs_settled_files() {
    let repo = FixtureRepo::small();
    let of_mapped_files = SnapshotStore::new(helper(), None);
    settle(&store(), &repo.top);
    of_mapped_files.read_history(&repo.top).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(of_mapped_files.known_history(&repo.top), None, "the repository is younger than 40 s");
}
