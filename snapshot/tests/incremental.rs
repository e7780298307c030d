//! Incremental snapshots: each must equal the snapshot that is taken without an earlier one.

pub(crate) mod mapped_files;
mod random_edits;
pub(crate) mod stored_snapshot;

use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proctor_core::model::drift::display_path;
use proctor_git::files::file_stat::RacyWindow;
use proctor_snapshot::{Snapshot, SnapshotMethod, SnapshotStore};
use tempfile::TempDir;

use crate::repository::{FixtureRepo, chmod, fifo, helper, run_program};
use crate::{Requirement, SnapshotTestCase};
use random_edits::matches_full_snapshot_after_random_edits;

pub(crate) const CASES: &[SnapshotTestCase] = &[
    ("incremental: reads nothing in unchanged tree", Requirement::ReliableTimestamps, reads_nothing_in_unchanged_tree),
    ("incremental: reads only changed file", Requirement::ReliableTimestamps, reads_only_changed_file),
    (
        "incremental: finds edit with same size and mtime",
        Requirement::ReliableTimestamps,
        finds_edit_with_same_size_and_mtime,
    ),
    ("incremental: finds edit within clock tick", Requirement::ReliableTimestamps, finds_edit_within_clock_tick),
    (
        "incremental: reports touched and restored files",
        Requirement::ReliableTimestamps,
        reports_touched_and_restored_files,
    ),
    ("incremental: finds changed file types", Requirement::ReliableTimestamps, finds_changed_file_types),
    (
        "incremental: finds new file in directory with old mtime",
        Requirement::ReliableTimestamps,
        finds_new_file_in_directory_with_old_mtime,
    ),
    ("incremental: finds changed ignore rules", Requirement::ReliableTimestamps, finds_changed_ignore_rules),
    ("incremental: finds changed exclude files", Requirement::ReliableTimestamps, finds_changed_exclude_files),
    (
        "incremental: finds changes of self-ignoring rules",
        Requirement::ReliableTimestamps,
        finds_changes_of_self_ignoring_rules,
    ),
    ("incremental: follows index and HEAD changes", Requirement::ReliableTimestamps, follows_index_and_head_changes),
    ("incremental: ignores hiding index flags", Requirement::ReliableTimestamps, ignores_hiding_index_flags),
    (
        "incremental: follows submodules and nested repositories",
        Requirement::ReliableTimestamps,
        follows_submodules_and_nested_repositories,
    ),
    (
        "incremental: finds submodule checked out in ignored directory",
        Requirement::ReliableTimestamps,
        finds_submodule_checked_out_in_ignored_directory,
    ),
    (
        "incremental: converts touched file as git does",
        Requirement::ReliableTimestamps,
        converts_touched_file_as_git_does,
    ),
    (
        "incremental: follows no link in parent directory",
        Requirement::ReliableTimestamps,
        follows_no_link_in_parent_directory,
    ),
    ("incremental: supports names of any bytes", Requirement::ReliableTimestamps, supports_names_of_any_bytes),
    ("incremental: skips ignored directories", Requirement::ReliableTimestamps, skips_ignored_directories),
    ("incremental: queries new names without index", Requirement::ReliableTimestamps, queries_new_names_without_index),
    ("incremental: supports linked worktree", Requirement::ReliableTimestamps, supports_linked_worktree),
    (
        "incremental: matches full snapshot after random edits",
        Requirement::ReliableTimestamps,
        matches_full_snapshot_after_random_edits,
    ),
];

/// Checks whether timestamps in this machine's temporary directory reveal every change, so snapshots can be
/// incremental.
pub(crate) fn has_reliable_timestamps() -> bool {
    FixtureRepo::empty().snapshot().stats.method != SnapshotMethod::Rehash
}

/// A repository, and the store that takes its snapshots.
struct WatchedRepo {
    repo: FixtureRepo,
    store: SnapshotStore,
}

/// No process maps files of these trees, except in the tests of mappings.
const NO_RACY_WINDOW: RacyWindow = RacyWindow(Duration::ZERO);

/// Time limit until a snapshot reuses all data of the earlier one.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(20);

impl WatchedRepo {
    fn new(repo: FixtureRepo) -> Self {
        Self { repo, store: SnapshotStore::new(helper(), None).with_racy_window(NO_RACY_WINDOW) }
    }

    fn small() -> Self {
        Self::new(FixtureRepo::small())
    }

    fn take(&self) -> Arc<Snapshot> {
        self.store.take(&self.repo.top).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Takes snapshots until no file is too recent to be trusted.
    fn settle(&self) -> Arc<Snapshot> {
        let until = Instant::now() + SETTLE_TIMEOUT;
        loop {
            let taken = self.take();
            if taken.stats.hashed == 0 && !taken.stats.git_was_read {
                return taken;
            }
            assert!(Instant::now() < until, "snapshots still rehash files after {SETTLE_TIMEOUT:?}: {:?}", taken.stats);
        }
    }

    /// Takes the next snapshot and checks that it equals one without an earlier snapshot. Also returns whether it
    /// differs from `before`.
    fn check(&self, before: &Snapshot) -> (Arc<Snapshot>, bool) {
        let (taken, fresh) = (self.take(), self.repo.snapshot());
        assert_same_snapshot(&taken, &fresh, "");
        let differs = taken.id != before.id;
        (taken, differs)
    }

    /// Waits until the times of all files can be trusted, applies a change, and checks the next snapshot.
    fn snapshot_after(&self, change: impl FnOnce(&FixtureRepo)) -> (Arc<Snapshot>, bool) {
        let before = self.settle();
        change(&self.repo);
        self.check(&before)
    }

    fn assert_changes(&self, what: &str, change: impl FnOnce(&FixtureRepo)) {
        assert!(self.snapshot_after(change).1, "{what}");
    }

    fn assert_unchanged(&self, what: &str, change: impl FnOnce(&FixtureRepo)) {
        assert!(!self.snapshot_after(change).1, "{what}");
    }
}

fn assert_same_snapshot(taken: &Snapshot, fresh: &Snapshot, what: &str) {
    let names = |snapshot: &Snapshot| -> Vec<String> {
        snapshot.entries.iter().map(|(path, entry)| format!("{} {entry:?}", display_path(&path))).collect()
    };
    assert_eq!(names(taken), names(fresh), "{what}");
    assert_eq!((&taken.id, &taken.git), (&fresh.id, &fresh.git), "{what}");
    assert_eq!(taken.ignored(), fresh.ignored(), "{what}");
    assert_eq!(fresh.touched(taken), Vec::<Vec<u8>>::new(), "{what}");
}

fn set_mtime(path: &Path, to: &fs::Metadata) {
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
    let at = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let times =
        Timestamps { last_access: at(to.atime(), to.atime_nsec()), last_modification: at(to.mtime(), to.mtime_nsec()) };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("sets times");
}

/// Overwrites the beginning of a file without creating a new file.
fn overwrite_in_place(path: &Path, bytes: &[u8]) {
    fs::OpenOptions::new().write(true).open(path).expect("opens").write_all_at(bytes, 0).expect("writes");
}

fn reads_nothing_in_unchanged_tree() {
    let watched = WatchedRepo::small();
    let settled = watched.settle();
    let taken = watched.take();
    assert_eq!((taken.stats.hashed, taken.stats.listed, taken.stats.git_was_read), (0, 0, false));
    assert_eq!((taken.stats.method, taken.stats.reused), (SnapshotMethod::Stat, 3));
    assert!(Arc::ptr_eq(&settled.entries, &taken.entries));
    assert_eq!(watched.repo.snapshot().stats.method, SnapshotMethod::First);
}

fn reads_only_changed_file() {
    let watched = WatchedRepo::small();
    let (taken, differs) = watched.snapshot_after(|repo| overwrite_in_place(&repo.at("README.md"), b"HELLO\n"));
    assert!(differs);
    assert_eq!((taken.stats.hashed, taken.stats.reused, taken.stats.git_was_read), (1, 2, false));
}

fn finds_edit_with_same_size_and_mtime() {
    let watched = WatchedRepo::small();
    watched.assert_changes("only the ctime changes", |repo| {
        let before = fs::metadata(repo.at("README.md")).expect("stats");
        overwrite_in_place(&repo.at("README.md"), b"HELLO\n");
        set_mtime(&repo.at("README.md"), &before);
    });
}

fn finds_edit_within_clock_tick() {
    let watched = WatchedRepo::small();
    for round in 0..200_u32 {
        let content = format!("{:06}", round % 7);
        overwrite_in_place(&watched.repo.at("README.md"), content.as_bytes());
        let taken = watched.take();
        overwrite_in_place(&watched.repo.at("README.md"), b"xxxxxx");
        let (later, fresh) = (watched.take(), watched.repo.snapshot());
        assert_eq!(later.id, fresh.id, "round {round}");
        assert_ne!(taken.id, later.id, "round {round}");
    }
}

fn reports_touched_and_restored_files() {
    let watched = WatchedRepo::small();
    let before = watched.settle();
    let (taken, differs) = watched.snapshot_after(|repo| {
        let stat = fs::metadata(repo.at("src")).expect("stats");
        set_mtime(&repo.at("README.md"), &stat);
    });
    assert!(!differs);
    assert_eq!(before.touched(&taken), [b"README.md".to_vec()]);
    watched.assert_unchanged("renamed away and back", |repo| {
        fs::rename(repo.at("src"), repo.at("moved")).expect("renames");
        fs::rename(repo.at("moved"), repo.at("src")).expect("renames");
    });
    watched.assert_unchanged("renamed away and back, with a snapshot in between", |repo| {
        fs::rename(repo.at("src"), repo.at("moved")).expect("renames");
        watched.take();
        fs::rename(repo.at("moved"), repo.at("src")).expect("renames");
    });
    watched.assert_unchanged("group and other permissions change", |repo| chmod(&repo.at("README.md"), 0o600));
    watched.assert_changes("executable", |repo| chmod(&repo.at("README.md"), 0o755));
}

fn finds_changed_file_types() {
    let watched = WatchedRepo::small();
    let replace = |repo: &FixtureRepo, path: &str| {
        let path = repo.at(path);
        if path.symlink_metadata().is_ok_and(|found| found.is_dir()) {
            fs::remove_dir_all(path).expect("removes");
        } else {
            fs::remove_file(path).expect("removes");
        }
    };
    for path in ["README.md", "src", "src/main.rs"] {
        watched.assert_changes("a link", |repo| {
            replace(repo, path);
            symlink("elsewhere", repo.at(path)).expect("links");
        });
        watched.assert_changes("another target", |repo| {
            replace(repo, path);
            symlink("Elsewhere", repo.at(path)).expect("links");
        });
        watched.assert_changes("a fifo", |repo| {
            replace(repo, path);
            fifo(&repo.at(path));
        });
        watched.assert_changes("a directory", |repo| {
            replace(repo, path);
            repo.write(format!("{path}/in/it"), "x");
        });
        watched.assert_changes("a file", |repo| {
            replace(repo, path);
            repo.write(path, "x");
        });
        watched.assert_changes("nothing", |repo| replace(repo, path));
        watched.repo.git(&["checkout", "-q", "--", "."]);
    }
}

fn finds_new_file_in_directory_with_old_mtime() {
    let watched = WatchedRepo::small();
    watched.assert_changes("only the ctime of the directory changes", |repo| {
        let before = fs::metadata(repo.at("src")).expect("stats");
        repo.write("src/new.rs", "x");
        set_mtime(&repo.at("src"), &before);
    });
    watched.assert_changes("a file is removed", |repo| {
        let before = fs::metadata(repo.at("src")).expect("stats");
        fs::remove_file(repo.at("src/new.rs")).expect("removes");
        set_mtime(&repo.at("src"), &before);
    });
    watched.assert_unchanged("an empty directory", |repo| fs::create_dir(repo.at("src/empty")).expect("creates"));
    watched.assert_changes("a file is added to the empty directory", |repo| drop_repo(repo.write("src/empty/a", "x")));
}

fn drop_repo(_: &FixtureRepo) {}

fn finds_changed_ignore_rules() {
    let watched = WatchedRepo::small();
    watched.repo.write("src/a.tmp", "x").write("target/out", "x").write("src/deep/b.tmp", "x");
    watched.assert_changes("a rule is added", |repo| drop_repo(repo.write(".gitignore", "target/\n*.log\n*.tmp\n")));
    watched.assert_changes("the rule is removed", |repo| drop_repo(repo.write(".gitignore", "target/\n*.log\n")));
    watched.assert_changes("an ignore file is added", |repo| drop_repo(repo.write("src/.gitignore", "*.tmp\n")));
    watched.assert_changes("the ignore file is removed", |repo| {
        fs::remove_file(repo.at("src/.gitignore")).expect("removes");
    });
    watched.assert_changes("`target` is no longer ignored", |repo| drop_repo(repo.write(".gitignore", "*.log\n")));
    watched.assert_changes("everything is ignored", |repo| drop_repo(repo.write(".gitignore", "*\n")));
    watched.assert_changes("ignore file rewritten with the same mtime", |repo| {
        let before = fs::metadata(repo.at(".gitignore")).expect("stats");
        overwrite_in_place(&repo.at(".gitignore"), b"#\n");
        set_mtime(&repo.at(".gitignore"), &before);
    });
}

fn finds_changed_exclude_files() {
    let watched = WatchedRepo::small();
    watched.repo.write("a.tmp", "x").write("b.bak", "x");
    watched.assert_changes("info/exclude", |repo| drop_repo(repo.write(".git/info/exclude", "*.tmp\n")));
    watched.assert_changes("the previous state is restored", |repo| drop_repo(repo.write(".git/info/exclude", "")));
    let rules = watched.repo.dir.path().join("rules");
    crate::repository::write_file(&rules, b"*.bak\n");
    watched.assert_changes("core.excludesFile", |repo| {
        repo.git(&["config", "core.excludesFile", &rules.display().to_string()]);
    });
    for content in [&b"*.tmp\n"[..], b"*.bak\n*.tmp\n"] {
        let before = watched.take();
        crate::repository::write_file(&rules, content);
        assert!(watched.check(&before).1, "content of the excludes file changes");
    }
    watched.repo.git(&["config", "--unset", "core.excludesFile"]);
    watched.assert_unchanged("a hook", |repo| drop_repo(repo.write(".git/hooks/pre-push", "x")));
}

fn finds_changes_of_self_ignoring_rules() {
    let watched = WatchedRepo::small();
    watched.repo.write("gen/.gitignore", "*\n").write("gen/a", "x").write("src/x", "y");
    watched.assert_changes("self-ignoring rules ignore fewer files", |repo| {
        drop_repo(repo.write("gen/.gitignore", "/.gitignore\n"));
    });
    watched.assert_unchanged("the ignore file is removed", |repo| {
        fs::remove_file(repo.at("gen/.gitignore")).expect("removes");
    });
    watched.assert_changes("the ignore file is added again", |repo| drop_repo(repo.write("gen/.gitignore", "*\n")));
}

fn follows_index_and_head_changes() {
    let watched = WatchedRepo::small();
    watched.repo.write("new", "x").write("b.log", "x");
    watched.assert_unchanged("git add", |repo| drop(repo.git(&["add", "new"])));
    watched.assert_changes("an ignored file is added", |repo| drop(repo.git(&["add", "-f", "b.log"])));
    watched.assert_changes("the ignored file is untracked again", |repo| {
        drop(repo.git(&["rm", "-q", "--cached", "b.log"]));
    });
    watched.assert_unchanged("`git rm --cached` keeps the file covered", |repo| {
        drop(repo.git(&["rm", "-q", "--cached", "README.md"]));
    });
    watched.assert_unchanged("git commit", |repo| drop_repo(repo.commit()));
    watched.assert_unchanged("git add again", |repo| drop(repo.git(&["add", "README.md"])));
    watched.assert_changes("another branch", |repo| {
        repo.git(&["checkout", "-q", "-b", "other"]);
        repo.write("src/other.rs", "x").commit();
    });
    watched.assert_changes("the previous state is restored", |repo| drop(repo.git(&["checkout", "-q", "-"])));
    watched.assert_unchanged("a branch of the same commit", |repo| drop(repo.git(&["checkout", "-q", "-b", "third"])));
    watched.assert_unchanged("a detached HEAD", |repo| drop(repo.git(&["checkout", "-q", "--detach"])));
    watched.assert_unchanged("packed refs", |repo| drop(repo.git(&["pack-refs", "--all"])));
    watched.assert_unchanged("an amended commit", |repo| drop(repo.git(&["commit", "-q", "--amend", "-m", "y"])));
    watched.assert_changes("a missing file is restored", |repo| {
        fs::remove_file(repo.at("README.md")).expect("removes");
        watched.take();
        repo.write(".git/info/exclude", "README.md\n");
    });
    watched
        .assert_changes("a tracked file that is ignored changes", |repo| drop_repo(repo.write("README.md", "back\n")));
}

fn ignores_hiding_index_flags() {
    let watched = WatchedRepo::small();
    watched.assert_unchanged("assume-unchanged", |repo| {
        drop(repo.git(&["update-index", "--assume-unchanged", "README.md"]));
    });
    watched.assert_changes("assume-unchanged file changes", |repo| drop_repo(repo.write("README.md", "HELLO\n")));
    watched
        .assert_unchanged("skip-worktree", |repo| drop(repo.git(&["update-index", "--skip-worktree", "src/main.rs"])));
    watched
        .assert_changes("skip-worktree file changes", |repo| drop_repo(repo.write("src/main.rs", "fn main() { }\n")));
    watched.repo.git(&["update-index", "--no-skip-worktree", "src/main.rs"]);
    watched.repo.git(&["checkout", "-q", "--force", "--", "src/main.rs"]);
    watched.assert_changes("a sparse checkout", |repo| {
        repo.git(&["sparse-checkout", "set", "--no-cone", "/*", "!/src/"]);
    });
    watched.assert_changes("an excluded file exists in the worktree", |repo| {
        drop_repo(repo.write("src/main.rs", "fn main() {}\n"));
    });
}

fn follows_submodules_and_nested_repositories() {
    let watched = WatchedRepo::small();
    let inner = FixtureRepo::small();
    let url = inner.top.display().to_string();
    watched.assert_changes("a submodule is added", |repo| {
        repo.git(&["submodule", "--quiet", "add", &url, "sub"]);
        repo.commit();
    });
    watched.assert_changes("a file in the submodule changes", |repo| drop_repo(repo.write("sub/README.md", "HELLO\n")));
    watched.assert_changes("the submodule gets a commit", |repo| drop(repo.git(&["-C", "sub", "commit", "-qam", "y"])));
    watched.assert_unchanged("an ignored file is added to the submodule", |repo| {
        drop_repo(repo.write("sub/target/x", "x"));
    });
    watched.assert_changes("ignore rules of the submodule change", |repo| {
        drop_repo(repo.write("sub/.gitignore", "*.log\n"));
    });
    watched.assert_changes("the submodule is checked out at another commit", |repo| {
        repo.git(&["-C", "sub", "checkout", "-q", "--force", "HEAD~"]);
    });
    watched.repo.write("vendor/a", "x").write("vendor/b.log", "x");
    watched.assert_changes("a nested repository appears", |repo| drop(repo.git(&["init", "-q", "vendor"])));
    watched.assert_changes("the nested repository gets a commit", |repo| {
        repo.git(&["-C", "vendor", "add", "-A", "-f"]);
        repo.git(&["-C", "vendor", "commit", "-qm", "x"]);
    });
    watched.assert_changes("the nested git directory is removed", |repo| {
        fs::remove_dir_all(repo.at("vendor/.git")).expect("removes");
    });
    watched.assert_unchanged("a directory called .git", |repo| fs::create_dir(repo.at("src/.git")).expect("creates"));
    watched.assert_changes("the directory becomes a git directory", |repo| {
        fs::remove_dir(repo.at("src/.git")).expect("removes");
        repo.git(&["init", "-q", "src"]);
    });
    watched.assert_changes("HEAD is removed", |repo| fs::remove_file(repo.at("src/.git/HEAD")).expect("removes"));
    watched.assert_changes("HEAD is restored", |repo| drop_repo(repo.write("src/.git/HEAD", "ref: refs/heads/main\n")));
    watched.assert_changes("the submodule is emptied", |repo| {
        repo.git(&["submodule", "--quiet", "deinit", "-f", "sub"]);
    });
    watched
        .assert_changes("a file is written at the path of the submodule", |repo| drop_repo(repo.write("sub/x", "x")));
    watched.assert_changes("the submodule is removed", |repo| fs::remove_dir_all(repo.at("sub")).expect("removes"));
}

/// `target/` is ignored, so the scan does not enter it.
fn finds_submodule_checked_out_in_ignored_directory() {
    let watched = WatchedRepo::small();
    let inner = FixtureRepo::small();
    let url = inner.top.display().to_string();
    watched.repo.write("target/kept", "x").git(&["add", "-f", "target/kept"]);
    watched.repo.git(&["submodule", "--quiet", "add", "-f", &url, "target/sub"]);
    watched.repo.commit();
    watched.repo.git(&["submodule", "--quiet", "deinit", "-f", "--all"]);
    let check_out = |repo: &FixtureRepo| drop(repo.git(&["clone", "-q", &url, "target/sub"]));
    watched.assert_changes("the submodule is checked out", check_out);
    watched
        .assert_changes("the submodule is removed", |repo| fs::remove_dir_all(repo.at("target/sub")).expect("removes"));
    watched.assert_changes("the submodule is checked out again", check_out);
}

/// A file that was added before an attribute existed is converted when it is touched.
fn converts_touched_file_as_git_does() {
    let repo = FixtureRepo::small();
    repo.write("a.txt", "a\r\n").commit();
    let watched = WatchedRepo::new(repo);
    watched.repo.write(".gitattributes", "*.txt text\n");
    watched.assert_unchanged("a new mtime", |repo| {
        let far = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        fs::File::options().write(true).open(repo.at("a.txt")).and_then(|file| file.set_modified(far)).expect("sets");
    });
}

fn follows_no_link_in_parent_directory() {
    let watched = WatchedRepo::small();
    watched.repo.write("src/deep/a", "x").commit();
    let elsewhere = watched.repo.dir.path().join("elsewhere");
    watched.assert_changes("a link replaces the parent directory", |repo| {
        fs::rename(repo.at("src"), &elsewhere).expect("renames");
        symlink(&elsewhere, repo.at("src")).expect("links");
    });
    watched.assert_unchanged("the link target changes", |_| {
        crate::repository::write_file(&elsewhere.join("main.rs"), b"other");
    });
    watched.assert_changes("the directory is restored", |repo| {
        fs::remove_file(repo.at("src")).expect("removes");
        fs::rename(&elsewhere, repo.at("src")).expect("renames");
    });
}

fn supports_names_of_any_bytes() {
    let watched = WatchedRepo::small();
    let names: [&[u8]; 6] = [b"a\nb", b"caf\xe9", b"\xff/\xfe", b"t\\x", b"a-/x", b"a/x"];
    for name in names {
        watched.assert_changes("the file is added", |repo| drop_repo(repo.write(name, "x")));
    }
    watched.repo.commit();
    for name in names {
        watched.assert_changes("the file changes", |repo| drop_repo(repo.write(name, "y")));
    }
}

fn skips_ignored_directories() {
    let watched = WatchedRepo::small();
    watched.repo.write("target/kept", "x").git(&["add", "-f", "target/kept"]);
    watched.settle();
    (0..2000).for_each(|n| drop_repo(watched.repo.write(format!("target/{n}"), "x")));
    let taken = watched.take();
    assert_eq!((taken.stats.listed, taken.stats.git_was_read), (0, false));
    watched.assert_changes("a tracked file in an ignored directory changes", |repo| {
        drop_repo(repo.write("target/kept", "y"));
    });
    watched.assert_changes("the ignored directory is removed", |repo| {
        fs::remove_dir_all(repo.at("target")).expect("removes");
    });
    watched.assert_changes("the ignored directory is restored", |repo| {
        drop_repo(repo.write("target/kept", "z").write("target/other", "x"));
    });
}

fn queries_new_names_without_index() {
    let watched = WatchedRepo::small();
    let (taken, differs) =
        watched.snapshot_after(|repo| drop_repo(repo.write("src/new.rs", "x").write("src/new.log", "x")));
    assert!(differs && !taken.stats.git_was_read, "{:?}", taken.stats);
    assert_eq!((taken.stats.hashed, taken.stats.listed), (1, 1));
    let (taken, differs) = watched.snapshot_after(|repo| drop_repo(repo.write("src/target/new.rs", "x")));
    assert!(!differs && !taken.stats.git_was_read, "{:?}", taken.stats);
    let (taken, differs) = watched.snapshot_after(|repo| drop_repo(repo.write("changes/a/verify/x.json", "x")));
    assert!(!differs, "{:?}", taken.stats);
}

fn supports_linked_worktree() {
    let watched = WatchedRepo::small();
    watched.repo.git(&["worktree", "add", "-q", "../linked", "-b", "other"]);
    let top = watched.repo.dir.path().canonicalize().expect("path exists").join("linked");
    let linked = WatchedRepo { repo: FixtureRepo { dir: TempDir::new().expect("room"), top }, store: watched.store };
    linked.assert_unchanged("a commit", |repo| drop(repo.git(&["commit", "-q", "--allow-empty", "-m", "y"])));
    linked.assert_changes("a file", |repo| drop_repo(repo.write("README.md", "other\n")));
    linked.assert_unchanged("git add", |repo| drop(repo.git(&["add", "README.md"])));
    linked.assert_changes("exclude rules of the common git directory change", |repo| {
        drop_repo(repo.write("x.tmp", "x"));
        linked.take();
        crate::repository::write_file(&watched.repo.at(".git/info/exclude"), b"*.tmp\nREADME.md\n*.x\n");
        drop_repo(repo.write("y.md", "x").write("z.x", "x"));
    });
}
