//! Incremental snapshots: each must equal the snapshot that is taken without an earlier one.

pub(crate) mod mapped;
pub(crate) mod stored;

use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proctor_core::drift::display_path;
use proctor_snapshot::{Settling, Snapshot, SnapshotMethod, SnapshotStore};
use tempfile::TempDir;

use crate::repository::{Repo, chmod, fifo, helper, run_program};
use crate::{Case, Need};

pub(crate) const CASES: &[Case] = &[
    ("again: an unchanged tree is not read, and git is not asked", Need::TimesTell, unchanged),
    ("again: one changed file is the only one that is read", Need::TimesTell, one_changed_file),
    ("again: the same size and the same mtime", Need::TimesTell, same_size_and_mtime),
    ("again: written in place within a tick", Need::TimesTell, written_within_a_tick),
    ("again: touched, renamed away and back, another mode", Need::TimesTell, touched_and_back),
    ("again: a path becomes another kind of thing", Need::TimesTell, other_kinds),
    ("again: a new file in a directory whose mtime is set back", Need::TimesTell, new_file_and_old_mtime),
    ("again: rules of what is ignored change", Need::TimesTell, rules_change),
    ("again: rules of git's own and of the config", Need::TimesTell, rules_of_git),
    ("again: rules that ignore themselves", Need::TimesTell, rules_that_ignore_themselves),
    ("again: what git does to its index and HEAD", Need::TimesTell, git_changes),
    ("again: flags of the index, sparse checkouts", Need::TimesTell, flags_of_the_index),
    ("again: submodules move, nested repositories come and go", Need::TimesTell, repositories_inside),
    ("again: a submodule in an ignored directory is checked out", Need::TimesTell, submodule_in_ignored),
    ("again: touched, and git would convert it now", Need::TimesTell, touched_and_converted),
    ("again: a parent directory becomes a link", Need::TimesTell, parent_becomes_a_link),
    ("again: names of any bytes", Need::TimesTell, names_of_any_bytes),
    ("again: ignored directories are not entered", Need::TimesTell, ignored_directories),
    ("again: new names are asked about without the index", Need::TimesTell, new_names),
    ("again: a linked worktree", Need::TimesTell, linked_worktree),
    ("again: random scripts of edits", Need::TimesTell, random_scripts),
];

/// Checks whether timestamps in this machine's temporary directory reveal every change, so that snapshots can be
/// incremental.
pub(crate) fn times_tell() -> bool {
    Repo::empty().snapshot().stats.method != SnapshotMethod::Rehash
}

/// A repository, and the store that takes its snapshots.
struct Watched {
    repo: Repo,
    store: SnapshotStore,
}

/// No process maps files of these trees, except in the tests of mappings.
const AT_ONCE: Settling = Settling(Duration::ZERO);

/// Time limit until a snapshot reuses all data of the earlier one.
const PATIENCE: Duration = Duration::from_secs(20);

impl Watched {
    fn new(repo: Repo) -> Self {
        Self { repo, store: SnapshotStore::new(helper(), None).settling(AT_ONCE) }
    }

    fn small() -> Self {
        Self::new(Repo::small())
    }

    fn take(&self) -> Arc<Snapshot> {
        self.store.take(&self.repo.top).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Takes snapshots until no file is too recent to be trusted.
    fn settle(&self) -> Arc<Snapshot> {
        let until = Instant::now() + PATIENCE;
        loop {
            let taken = self.take();
            if taken.stats.hashed == 0 && !taken.stats.git_was_read {
                return taken;
            }
            assert!(Instant::now() < until, "it does not settle: {:?}", taken.stats);
        }
    }

    /// Takes the next snapshot and checks that it equals one without an earlier snapshot. Also returns whether it
    /// differs from `before`.
    fn check(&self, before: &Snapshot) -> (Arc<Snapshot>, bool) {
        let (taken, fresh) = (self.take(), self.repo.snapshot());
        same(&taken, &fresh, "");
        let differs = taken.id != before.id;
        (taken, differs)
    }

    /// Settles the tree, applies a change, and checks the next snapshot.
    fn after(&self, change: impl FnOnce(&Repo)) -> (Arc<Snapshot>, bool) {
        let before = self.settle();
        change(&self.repo);
        self.check(&before)
    }

    fn changes(&self, what: &str, change: impl FnOnce(&Repo)) {
        assert!(self.after(change).1, "{what}");
    }

    fn keeps(&self, what: &str, change: impl FnOnce(&Repo)) {
        assert!(!self.after(change).1, "{what}");
    }
}

fn same(taken: &Snapshot, fresh: &Snapshot, what: &str) {
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
fn in_place(path: &Path, bytes: &[u8]) {
    fs::OpenOptions::new().write(true).open(path).expect("opens").write_all_at(bytes, 0).expect("writes");
}

fn unchanged() {
    let watched = Watched::small();
    let settled = watched.settle();
    let taken = watched.take();
    assert_eq!((taken.stats.hashed, taken.stats.listed, taken.stats.git_was_read), (0, 0, false));
    assert_eq!((taken.stats.method, taken.stats.reused), (SnapshotMethod::Stat, 3));
    assert!(Arc::ptr_eq(&settled.entries, &taken.entries));
    assert_eq!(watched.repo.snapshot().stats.method, SnapshotMethod::First);
}

fn one_changed_file() {
    let watched = Watched::small();
    let (taken, differs) = watched.after(|repo| in_place(&repo.at("README.md"), b"HELLO\n"));
    assert!(differs);
    assert_eq!((taken.stats.hashed, taken.stats.reused, taken.stats.git_was_read), (1, 2, false));
}

fn same_size_and_mtime() {
    let watched = Watched::small();
    watched.changes("the ctime tells", |repo| {
        let before = fs::metadata(repo.at("README.md")).expect("stats");
        in_place(&repo.at("README.md"), b"HELLO\n");
        set_mtime(&repo.at("README.md"), &before);
    });
}

fn written_within_a_tick() {
    let watched = Watched::small();
    for round in 0..200_u32 {
        let content = format!("{:06}", round % 7);
        in_place(&watched.repo.at("README.md"), content.as_bytes());
        let taken = watched.take();
        in_place(&watched.repo.at("README.md"), b"xxxxxx");
        let (later, fresh) = (watched.take(), watched.repo.snapshot());
        assert_eq!(later.id, fresh.id, "round {round}");
        assert_ne!(taken.id, later.id, "round {round}");
    }
}

fn touched_and_back() {
    let watched = Watched::small();
    let before = watched.settle();
    let (taken, differs) = watched.after(|repo| {
        let stat = fs::metadata(repo.at("src")).expect("stats");
        set_mtime(&repo.at("README.md"), &stat);
    });
    assert!(!differs);
    assert_eq!(before.touched(&taken), [b"README.md".to_vec()]);
    watched.keeps("renamed away and back", |repo| {
        fs::rename(repo.at("src"), repo.at("moved")).expect("renames");
        fs::rename(repo.at("moved"), repo.at("src")).expect("renames");
    });
    watched.keeps("renamed away and back, with a look between", |repo| {
        fs::rename(repo.at("src"), repo.at("moved")).expect("renames");
        watched.take();
        fs::rename(repo.at("moved"), repo.at("src")).expect("renames");
    });
    watched.keeps("another mode of others", |repo| chmod(&repo.at("README.md"), 0o600));
    watched.changes("executable", |repo| chmod(&repo.at("README.md"), 0o755));
}

fn other_kinds() {
    let watched = Watched::small();
    let replace = |repo: &Repo, path: &str| {
        let path = repo.at(path);
        if path.symlink_metadata().is_ok_and(|found| found.is_dir()) {
            fs::remove_dir_all(path).expect("removes");
        } else {
            fs::remove_file(path).expect("removes");
        }
    };
    for path in ["README.md", "src", "src/main.rs"] {
        watched.changes("a link", |repo| {
            replace(repo, path);
            symlink("elsewhere", repo.at(path)).expect("links");
        });
        watched.changes("another target", |repo| {
            replace(repo, path);
            symlink("Elsewhere", repo.at(path)).expect("links");
        });
        watched.changes("a fifo", |repo| {
            replace(repo, path);
            fifo(&repo.at(path));
        });
        watched.changes("a directory", |repo| {
            replace(repo, path);
            repo.write(format!("{path}/in/it"), "x");
        });
        watched.changes("a file", |repo| {
            replace(repo, path);
            repo.write(path, "x");
        });
        watched.changes("nothing", |repo| replace(repo, path));
        watched.repo.git(&["checkout", "-q", "--", "."]);
    }
}

fn new_file_and_old_mtime() {
    let watched = Watched::small();
    watched.changes("the ctime of the directory shows it", |repo| {
        let before = fs::metadata(repo.at("src")).expect("stats");
        repo.write("src/new.rs", "x");
        set_mtime(&repo.at("src"), &before);
    });
    watched.changes("one goes", |repo| {
        let before = fs::metadata(repo.at("src")).expect("stats");
        fs::remove_file(repo.at("src/new.rs")).expect("removes");
        set_mtime(&repo.at("src"), &before);
    });
    watched.keeps("an empty directory", |repo| fs::create_dir(repo.at("src/empty")).expect("creates"));
    watched.changes("is filled", |repo| drop_repo(repo.write("src/empty/a", "x")));
}

fn drop_repo(_: &Repo) {}

fn rules_change() {
    let watched = Watched::small();
    watched.repo.write("src/a.tmp", "x").write("target/out", "x").write("src/deep/b.tmp", "x");
    watched.changes("a rule is added", |repo| drop_repo(repo.write(".gitignore", "target/\n*.log\n*.tmp\n")));
    watched.changes("and taken back", |repo| drop_repo(repo.write(".gitignore", "target/\n*.log\n")));
    watched.changes("a file of rules comes", |repo| drop_repo(repo.write("src/.gitignore", "*.tmp\n")));
    watched.changes("and goes", |repo| fs::remove_file(repo.at("src/.gitignore")).expect("removes"));
    watched.changes("target is not ignored", |repo| drop_repo(repo.write(".gitignore", "*.log\n")));
    watched.changes("everything is", |repo| drop_repo(repo.write(".gitignore", "*\n")));
    watched.changes("in place, with its mtime", |repo| {
        let before = fs::metadata(repo.at(".gitignore")).expect("stats");
        in_place(&repo.at(".gitignore"), b"#\n");
        set_mtime(&repo.at(".gitignore"), &before);
    });
}

fn rules_of_git() {
    let watched = Watched::small();
    watched.repo.write("a.tmp", "x").write("b.bak", "x");
    watched.changes("info/exclude", |repo| drop_repo(repo.write(".git/info/exclude", "*.tmp\n")));
    watched.changes("and back", |repo| drop_repo(repo.write(".git/info/exclude", "")));
    let rules = watched.repo.room.path().join("rules");
    crate::repository::put(&rules, b"*.bak\n");
    watched.changes("core.excludesFile", |repo| {
        repo.git(&["config", "core.excludesFile", &rules.display().to_string()]);
    });
    for content in [&b"*.tmp\n"[..], b"*.bak\n*.tmp\n"] {
        let before = watched.take();
        crate::repository::put(&rules, content);
        assert!(watched.check(&before).1, "its content");
    }
    watched.repo.git(&["config", "--unset", "core.excludesFile"]);
    watched.keeps("a hook", |repo| drop_repo(repo.write(".git/hooks/pre-push", "x")));
}

fn rules_that_ignore_themselves() {
    let watched = Watched::small();
    watched.repo.write("gen/.gitignore", "*\n").write("gen/a", "x").write("src/x", "y");
    watched.changes("they take in more", |repo| drop_repo(repo.write("gen/.gitignore", "/.gitignore\n")));
    watched.keeps("they go", |repo| fs::remove_file(repo.at("gen/.gitignore")).expect("removes"));
    watched.changes("they come", |repo| drop_repo(repo.write("gen/.gitignore", "*\n")));
}

fn git_changes() {
    let watched = Watched::small();
    watched.repo.write("new", "x").write("b.log", "x");
    watched.keeps("git add", |repo| drop(repo.git(&["add", "new"])));
    watched.changes("an ignored file is added", |repo| drop(repo.git(&["add", "-f", "b.log"])));
    watched.changes("and is not tracked any more", |repo| drop(repo.git(&["rm", "-q", "--cached", "b.log"])));
    watched.keeps("git rm --cached hides nothing", |repo| drop(repo.git(&["rm", "-q", "--cached", "README.md"])));
    watched.keeps("git commit", |repo| drop_repo(repo.commit()));
    watched.keeps("git add again", |repo| drop(repo.git(&["add", "README.md"])));
    watched.changes("another branch", |repo| {
        repo.git(&["checkout", "-q", "-b", "other"]);
        repo.write("src/other.rs", "x").commit();
    });
    watched.changes("and back", |repo| drop(repo.git(&["checkout", "-q", "-"])));
    watched.keeps("a branch of the same commit", |repo| drop(repo.git(&["checkout", "-q", "-b", "third"])));
    watched.keeps("a detached HEAD", |repo| drop(repo.git(&["checkout", "-q", "--detach"])));
    watched.keeps("packed refs", |repo| drop(repo.git(&["pack-refs", "--all"])));
    watched.keeps("an amended commit", |repo| drop(repo.git(&["commit", "-q", "--amend", "-m", "y"])));
    watched.changes("a missing file is there again", |repo| {
        fs::remove_file(repo.at("README.md")).expect("removes");
        watched.take();
        repo.write(".git/info/exclude", "README.md\n");
    });
    watched.changes("tracked, though ignored", |repo| drop_repo(repo.write("README.md", "back\n")));
}

fn flags_of_the_index() {
    let watched = Watched::small();
    watched.keeps("assume-unchanged", |repo| drop(repo.git(&["update-index", "--assume-unchanged", "README.md"])));
    watched.changes("hides nothing", |repo| drop_repo(repo.write("README.md", "HELLO\n")));
    watched.keeps("skip-worktree", |repo| drop(repo.git(&["update-index", "--skip-worktree", "src/main.rs"])));
    watched.changes("hides nothing either", |repo| drop_repo(repo.write("src/main.rs", "fn main() { }\n")));
    watched.repo.git(&["update-index", "--no-skip-worktree", "src/main.rs"]);
    watched.repo.git(&["checkout", "-q", "--force", "--", "src/main.rs"]);
    watched.changes("a sparse checkout", |repo| {
        repo.git(&["sparse-checkout", "set", "--no-cone", "/*", "!/src/"]);
    });
    watched.changes("an excluded file that is there all the same", |repo| {
        drop_repo(repo.write("src/main.rs", "fn main() {}\n"));
    });
}

fn repositories_inside() {
    let watched = Watched::small();
    let inner = Repo::small();
    let url = inner.top.display().to_string();
    watched.changes("a submodule comes", |repo| {
        repo.git(&["submodule", "--quiet", "add", &url, "sub"]);
        repo.commit();
    });
    watched.changes("a file in it", |repo| drop_repo(repo.write("sub/README.md", "HELLO\n")));
    watched.changes("its commit", |repo| drop(repo.git(&["-C", "sub", "commit", "-qam", "y"])));
    watched.keeps("an ignored file in it", |repo| drop_repo(repo.write("sub/target/x", "x")));
    watched.changes("its own rules", |repo| drop_repo(repo.write("sub/.gitignore", "*.log\n")));
    watched.changes("it is moved to another commit", |repo| {
        repo.git(&["-C", "sub", "checkout", "-q", "--force", "HEAD~"]);
    });
    watched.repo.write("vendor/a", "x").write("vendor/b.log", "x");
    watched.changes("a nested repository appears", |repo| drop(repo.git(&["init", "-q", "vendor"])));
    watched.changes("it gets a commit", |repo| {
        repo.git(&["-C", "vendor", "add", "-A", "-f"]);
        repo.git(&["-C", "vendor", "commit", "-qm", "x"]);
    });
    watched.changes("it goes", |repo| fs::remove_dir_all(repo.at("vendor/.git")).expect("removes"));
    watched.keeps("a directory called .git", |repo| fs::create_dir(repo.at("src/.git")).expect("creates"));
    watched.changes("becomes one of git", |repo| {
        fs::remove_dir(repo.at("src/.git")).expect("removes");
        repo.git(&["init", "-q", "src"]);
    });
    watched.changes("a HEAD goes", |repo| fs::remove_file(repo.at("src/.git/HEAD")).expect("removes"));
    watched.changes("a HEAD comes", |repo| drop_repo(repo.write("src/.git/HEAD", "ref: refs/heads/main\n")));
    watched.changes("the submodule is emptied", |repo| {
        repo.git(&["submodule", "--quiet", "deinit", "-f", "sub"]);
    });
    watched.changes("files in its place", |repo| drop_repo(repo.write("sub/x", "x")));
    watched.changes("it is gone", |repo| fs::remove_dir_all(repo.at("sub")).expect("removes"));
}

/// `target/` is ignored, so the scan does not enter it.
fn submodule_in_ignored() {
    let watched = Watched::small();
    let inner = Repo::small();
    let url = inner.top.display().to_string();
    watched.repo.write("target/kept", "x").git(&["add", "-f", "target/kept"]);
    watched.repo.git(&["submodule", "--quiet", "add", "-f", &url, "target/sub"]);
    watched.repo.commit();
    watched.repo.git(&["submodule", "--quiet", "deinit", "-f", "--all"]);
    let check_out = |repo: &Repo| drop(repo.git(&["clone", "-q", &url, "target/sub"]));
    watched.changes("it is checked out", check_out);
    watched.changes("it is gone", |repo| fs::remove_dir_all(repo.at("target/sub")).expect("removes"));
    watched.changes("it is there again", check_out);
}

/// A file that was added before an attribute existed is converted when it is touched.
fn touched_and_converted() {
    let repo = Repo::small();
    repo.write("a.txt", "a\r\n").commit();
    let watched = Watched::new(repo);
    watched.repo.write(".gitattributes", "*.txt text\n");
    watched.keeps("a new mtime", |repo| {
        let far = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        fs::File::options().write(true).open(repo.at("a.txt")).and_then(|file| file.set_modified(far)).expect("sets");
    });
}

fn parent_becomes_a_link() {
    let watched = Watched::small();
    watched.repo.write("src/deep/a", "x").commit();
    let elsewhere = watched.repo.room.path().join("elsewhere");
    watched.changes("entries below it are not read", |repo| {
        fs::rename(repo.at("src"), &elsewhere).expect("renames");
        symlink(&elsewhere, repo.at("src")).expect("links");
    });
    watched.keeps("regardless of its later changes", |_| crate::repository::put(&elsewhere.join("main.rs"), b"other"));
    watched.changes("the directory itself is", |repo| {
        fs::remove_file(repo.at("src")).expect("removes");
        fs::rename(&elsewhere, repo.at("src")).expect("renames");
    });
}

fn names_of_any_bytes() {
    let watched = Watched::small();
    let names: [&[u8]; 6] = [b"a\nb", b"caf\xe9", b"\xff/\xfe", b"t\\x", b"a-/x", b"a/x"];
    for name in names {
        watched.changes("it comes", |repo| drop_repo(repo.write(name, "x")));
    }
    watched.repo.commit();
    for name in names {
        watched.changes("it changes", |repo| drop_repo(repo.write(name, "y")));
    }
}

fn ignored_directories() {
    let watched = Watched::small();
    watched.repo.write("target/kept", "x").git(&["add", "-f", "target/kept"]);
    watched.settle();
    (0..2000).for_each(|n| drop_repo(watched.repo.write(format!("target/{n}"), "x")));
    let taken = watched.take();
    assert_eq!((taken.stats.listed, taken.stats.git_was_read), (0, false));
    watched.changes("what is tracked in one counts", |repo| drop_repo(repo.write("target/kept", "y")));
    watched.changes("it goes", |repo| fs::remove_dir_all(repo.at("target")).expect("removes"));
    watched.changes("and comes", |repo| drop_repo(repo.write("target/kept", "z").write("target/other", "x")));
}

fn new_names() {
    let watched = Watched::small();
    let (taken, differs) = watched.after(|repo| drop_repo(repo.write("src/new.rs", "x").write("src/new.log", "x")));
    assert!(differs && !taken.stats.git_was_read, "{:?}", taken.stats);
    assert_eq!((taken.stats.hashed, taken.stats.listed), (1, 1));
    let (taken, differs) = watched.after(|repo| drop_repo(repo.write("src/target/new.rs", "x")));
    assert!(!differs && !taken.stats.git_was_read, "{:?}", taken.stats);
    let (taken, differs) = watched.after(|repo| drop_repo(repo.write("changes/a/verify/x.json", "x")));
    assert!(!differs, "{:?}", taken.stats);
}

fn linked_worktree() {
    let watched = Watched::small();
    watched.repo.git(&["worktree", "add", "-q", "../linked", "-b", "other"]);
    let top = watched.repo.room.path().canonicalize().expect("it is there").join("linked");
    let linked = Watched { repo: Repo { room: TempDir::new().expect("room"), top }, store: watched.store };
    linked.keeps("a commit", |repo| drop(repo.git(&["commit", "-q", "--allow-empty", "-m", "y"])));
    linked.changes("a file", |repo| drop_repo(repo.write("README.md", "other\n")));
    linked.keeps("git add", |repo| drop(repo.git(&["add", "README.md"])));
    linked.changes("rules of the common directory", |repo| {
        drop_repo(repo.write("x.tmp", "x"));
        linked.take();
        crate::repository::put(&watched.repo.at(".git/info/exclude"), b"*.tmp\nREADME.md\n*.x\n");
        drop_repo(repo.write("y.md", "x").write("z.x", "x"));
    });
}

/// A pseudo-random number generator with a fixed sequence.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % bound
    }

    fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }
}

const PLACES: [&str; 12] =
    ["a", "b.log", "d/a", "d/b", "d/e/a", "d/e/b.log", "target/a", "d/target/a", "d-", "d.x/a", "f/g/h/a", "new"];
const DIRECTORIES: [&str; 6] = ["d", "d/e", "target", "d.x", "f", "f/g"];

/// Makes one edit, which may fail.
fn edit(repo: &Repo, numbers: &mut Numbers) -> String {
    let (path, directory) = (numbers.of(&PLACES), numbers.of(&DIRECTORIES));
    let clear = |path: &str| {
        let path = repo.at(path);
        let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
    };
    let write = |path: &str, content: &str| {
        let path = repo.at(path);
        let parent = path.parent().expect("a parent");
        if fs::create_dir_all(parent).is_ok() && !path.is_dir() {
            crate::repository::put(&path, content.as_bytes());
        }
    };
    let what = numbers.below(22);
    match what {
        0..=3 => write(path, numbers.of(&["one", "two", "six", "seven"])),
        4 => clear(path),
        5 => clear(directory),
        6 => drop(fs::rename(repo.at(path), repo.at(numbers.of(&PLACES)))),
        7 => drop(fs::rename(repo.at(directory), repo.at(numbers.of(&DIRECTORIES)))),
        8 => {
            if repo.at(path).is_file() {
                chmod(&repo.at(path), if numbers.below(2) == 0 { 0o755 } else { 0o644 });
            }
        }
        9 => {
            clear(path);
            drop(symlink(numbers.of(&["a", "d", "nowhere"]), repo.at(path)));
        }
        10 => {
            clear(directory);
            drop(symlink("d", repo.at(directory)));
        }
        11 => {
            // The directory may be a nested repository with its own rules.
            let rules = numbers.of(&["", "d/", "d/e/", "f/"]);
            let content =
                numbers.of(&["target/\n*.log\n", "a\n", "*.log\n!b.log\n", "d/\n", "/new\n", "e\n.gitignore\n"]);
            let path = repo.at(format!("{rules}.gitignore"));
            if path.parent().is_some_and(|parent| parent.is_dir()) {
                crate::repository::put(&path, content.as_bytes());
            }
        }
        12 => drop(fs::remove_file(repo.at(numbers.of(&[".gitignore", "d/.gitignore", "f/.gitignore"])))),
        13 => drop(repo.git_tries(&["add", "-A"])),
        14 => drop(repo.git_tries(&["add", "-f", path])),
        15 => drop(repo.git_tries(&["rm", "-q", "-r", "--cached", path])),
        16 => drop(repo.git_tries(&["commit", "-qm", "x", "--allow-empty"])),
        17 => drop(repo.git_tries(&["checkout", "-q", "--force", "HEAD", "--", "."])),
        18 => drop(repo.git_tries(&["reset", "-q", "--hard", "HEAD~"])),
        19 => write(".git/info/exclude", numbers.of(&["", "new\n", "d.x\n"])),
        20 => drop(repo.git_tries(&["init", "-q", directory])),
        _ => {
            if let Ok(stat) = repo.at(path).symlink_metadata() {
                write(path, "two");
                set_mtime(&repo.at(path), &stat);
            }
        }
    }
    format!("{what} {path} {directory}")
}

fn random_scripts() {
    const SCRIPTS: u64 = 40;
    const EDITS: usize = 10;
    for seed in 0..SCRIPTS {
        let mut numbers = Numbers(seed);
        let watched = Watched::small();
        if seed % 2 == 0 {
            watched.settle();
        }
        let mut script = Vec::new();
        for _ in 0..EDITS {
            script.push(edit(&watched.repo, &mut numbers));
            let (taken, fresh) = (watched.store.take(&watched.repo.top), watched.repo.take());
            match (taken, fresh) {
                (Ok(taken), Ok(fresh)) => same(&taken, &fresh, &format!("seed {seed}: {script:#?}")),
                (Err(taken), Err(fresh)) => assert_eq!(taken.to_string(), fresh.to_string()),
                (taken, fresh) => panic!("seed {seed}: {script:#?}: {:?} {:?}", taken.err(), fresh.err()),
            }
            // In half of the cases the next edit starts from a settled tree, otherwise from a racy one.
            if numbers.below(2) == 0 && watched.repo.take().is_ok() && script.len() % 3 == 0 {
                watched.settle_if_it_does();
            }
        }
    }
}

impl Watched {
    /// Waits only a short time, since for some trees git must be asked every time.
    fn settle_if_it_does(&self) {
        let until = Instant::now() + Duration::from_millis(100);
        while Instant::now() < until {
            let taken = self.take();
            if taken.stats.hashed == 0 && !taken.stats.git_was_read {
                return;
            }
        }
    }
}
