//! Tests which paths a snapshot covers, and which repositories are refused.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use proctor_core::model::drift::{EntryKind, display_path};
use proctor_core::model::plan::RelPath;
use proctor_git::files::file_stat::RacyWindow;
use proctor_git::helper::GitHelper;
use proctor_snapshot::{Snapshot, find_root};

use crate::repository::{FixtureRepo, chmod, fifo, helper};
use crate::{Requirement, SnapshotTestCase, includes};

pub(crate) const CASES: &[SnapshotTestCase] = &[
    ("snapshot: covers tracked and untracked files", Requirement::Nothing, covers_tracked_and_untracked_files),
    ("snapshot: tree id matches git write-tree", Requirement::Nothing, tree_id_matches_git_write_tree),
    ("snapshot: large tree matches git", Requirement::Nothing, large_tree_matches_git),
    ("snapshot: conflict uses worktree content", Requirement::Nothing, conflict_uses_worktree_content),
    ("snapshot: writes nothing below git directory", Requirement::Nothing, writes_nothing_below_git_dir),
    ("snapshot: supports unborn HEAD", Requirement::Nothing, supports_unborn_head),
    ("snapshot: records kinds and exec bits", Requirement::Nothing, records_kinds_and_exec_bits),
    ("snapshot: supports names of any bytes", Requirement::Nothing, supports_names_of_any_bytes),
    ("snapshot: covers assume-unchanged files", Requirement::Nothing, covers_assume_unchanged_files),
    ("snapshot: covers files removed from index", Requirement::Nothing, covers_files_removed_from_index),
    ("snapshot: follows no link", Requirement::Nothing, follows_no_link),
    ("snapshot: excludes evidence", Requirement::Nothing, excludes_evidence),
    (
        "snapshot: cannot re-include below ignored directory",
        Requirement::Nothing,
        cannot_reinclude_below_ignored_directory,
    ),
    ("snapshot: applies excludes of repository", Requirement::Nothing, applies_excludes_of_repository),
    ("snapshot: finds first path hidden by cache", Requirement::Nothing, finds_first_path_hidden_by_cache),
    ("snapshot: bounds tree depth", Requirement::Nothing, bounds_tree_depth),
    ("snapshot: covers submodules", Requirement::Nothing, covers_submodules),
    ("snapshot: covers nested repositories", Requirement::Nothing, covers_nested_repositories),
    ("snapshot: reports changed and restored files", Requirement::Nothing, reports_changed_and_restored_files),
    ("snapshot: covers files of missing submodule", Requirement::Nothing, covers_files_of_missing_submodule),
    ("snapshot: supports linked worktree", Requirement::Nothing, supports_linked_worktree),
    ("snapshot: refuses include of fifo", Requirement::Nothing, includes::refuses_include_of_fifo),
    ("snapshot: accepts includes of CI checkout", Requirement::Nothing, includes::accepts_includes_of_ci_checkout),
    ("snapshot: applies included settings", Requirement::Nothing, includes::applies_included_settings),
    ("snapshot: refuses special files in git directory", Requirement::Nothing, refuses_special_files_in_git_dir),
    ("snapshot: refuses large ignore files", Requirement::Nothing, refuses_large_ignore_files),
    ("snapshot: supports worktree of bare repository", Requirement::Nothing, supports_worktree_of_bare_repository),
    ("snapshot: supports separate git directory", Requirement::Nothing, supports_separate_git_dir),
    ("snapshot: refuses foreign gitfile", Requirement::Nothing, refuses_foreign_gitfile),
    ("snapshot: refuses foreign worktree setting", Requirement::Nothing, refuses_foreign_worktree_setting),
    ("snapshot: refuses fifo as config", Requirement::Nothing, refuses_fifo_as_config),
    ("snapshot: stops helper at deadline", Requirement::Nothing, stops_helper_at_deadline),
    ("snapshot: refuses fifo as ignore file", Requirement::Nothing, refuses_fifo_as_ignore_file),
    ("snapshot: refuses bare and missing repositories", Requirement::Nothing, refuses_bare_and_missing_repositories),
    ("snapshot: refuses worktree set in include", Requirement::Nothing, refuses_worktree_set_in_include),
    ("snapshot: reports failing helper", Requirement::Nothing, reports_failing_helper),
    ("snapshot: refuses ignore file that is a link", Requirement::Nothing, refuses_ignore_file_that_is_link),
    ("snapshot: refuses SHA-256 without git program", Requirement::GitWithSha256, refuses_sha256_without_git_program),
    (
        "snapshot: refuses reftable without git program",
        Requirement::GitWithReftable,
        refuses_reftable_without_git_program,
    ),
    ("snapshot: refuses split and sparse indexes", Requirement::Nothing, refuses_split_and_sparse_indexes),
    ("snapshot: refuses index with wrong checksum", Requirement::Nothing, refuses_index_with_wrong_checksum),
    (
        "snapshot: reads index with unusual names or no checksum",
        Requirement::Nothing,
        reads_index_with_unusual_names_or_no_checksum,
    ),
    ("snapshot: refuses partial clone", Requirement::Nothing, refuses_partial_clone),
    ("snapshot: refuses foreign owner", Requirement::ChangeableOwners, refuses_foreign_owner),
    ("snapshot: root reads as owner", Requirement::ChangeableOwners, root_reads_as_owner),
];

fn paths(snapshot: &Snapshot) -> Vec<String> {
    snapshot.entries.paths().map(|path| display_path(&path)).collect()
}

fn covers_tracked_and_untracked_files() {
    let repo = FixtureRepo::small();
    repo.write("target/kept.txt", "x").git(&["add", "-f", "target/kept.txt"]);
    repo.write("target/out", "x").write("a.log", "x").write("src/new.rs", "x");
    let expected = [".gitignore", "README.md", "src/main.rs", "src/new.rs", "target/kept.txt"];
    assert_eq!(paths(&repo.snapshot()), expected);
}

fn tree_id_matches_git_write_tree() {
    let repo = FixtureRepo::small();
    repo.write("a-b", "1").write("a/b/c", "2").write("a/b0", "3").write("a0", "4").commit();
    symlink("README.md", repo.at("link")).expect("links");
    chmod(&repo.at("a0"), 0o755);
    repo.git(&["add", "-A"]);
    let facts = repo.snapshot().git;
    assert_eq!(facts.tree, Ok(repo.git(&["write-tree"])));
    assert_eq!(facts.head_commit, Some(repo.git(&["rev-parse", "HEAD"])));
    assert_eq!(facts.branch.as_deref(), Some("main"));
    repo.write("later", "x").git(&["add", "-N", "later"]);
    assert_eq!(repo.snapshot().git.tree, Ok(repo.worktree_tree()));
    repo.git(&["checkout", "-q", "--detach"]);
    assert_eq!(repo.snapshot().git.branch, None);
}

/// A tree with more files than one thread handles, in the index and in one directory.
fn large_tree_matches_git() {
    let repo = FixtureRepo::small();
    for number in 0..5000 {
        let directory = if number < 1500 { "flat".to_owned() } else { format!("deep/{}", number / 500) };
        repo.write(format!("{directory}/{number}"), format!("{number}\n"));
    }
    repo.commit();
    let clean = repo.snapshot();
    assert_eq!((&clean.git.tree, clean.git.dirty), (&Ok(repo.git(&["write-tree"])), Some(false)));
    // A change in each part: modified, deleted, of another kind, and new.
    for (changed, gone, link) in [("flat/7", "flat/1499", "flat/800"), ("deep/4/2300", "deep/9/4999", "deep/9/4500")] {
        repo.write(changed, "changed\n");
        [gone, link].iter().for_each(|path| fs::remove_file(repo.at(path)).expect("removes"));
        symlink("target", repo.at(link)).expect("links");
        repo.write(format!("{gone}.new"), "new\n");
    }
    let mut expected: BTreeSet<_> = paths(&clean).into_iter().collect();
    ["flat/1499", "deep/9/4999"].iter().for_each(|gone| assert!(expected.remove(*gone)));
    expected.extend(["flat/1499.new", "deep/9/4999.new"].map(str::to_owned));
    let changed = repo.snapshot();
    assert_eq!(paths(&changed).into_iter().collect::<BTreeSet<_>>(), expected);
    assert_eq!((&changed.git.tree, changed.git.dirty), (&Ok(repo.worktree_tree()), Some(true)));
    assert_eq!(clean.difference(&changed).len(), 8);
    // An incremental snapshot equals the full one.
    let again = Snapshot::take_after(&repo.at(""), &helper(), Some(&clean), RacyWindow::default()).expect("a snapshot");
    assert_eq!((again.id, again.git), (changed.id, changed.git));
}

fn conflict_uses_worktree_content() {
    let repo = FixtureRepo::small();
    repo.git(&["checkout", "-q", "-b", "other"]);
    repo.write("README.md", "theirs\n").commit();
    repo.git(&["checkout", "-q", "main"]);
    repo.write("README.md", "ours\n").commit();
    assert!(!repo.try_git(&["merge", "-q", "other"]));
    assert_eq!(repo.snapshot().git.tree, Ok(repo.worktree_tree()));
    fs::remove_file(repo.at("README.md")).expect("removes");
    assert_eq!(repo.snapshot().git.tree, Ok(repo.worktree_tree()));
}

fn writes_nothing_below_git_dir() {
    let repo = FixtureRepo::small();
    repo.write("new", "x").git(&["add", "new"]);
    let listing = |repo: &FixtureRepo| repo.git(&["-c", "alias.ls=!find .git -printf '%p %s %T@\\n' | sort", "ls"]);
    let before = listing(&repo);
    repo.snapshot();
    assert_eq!(listing(&repo), before);
}

fn supports_unborn_head() {
    let repo = FixtureRepo::empty();
    repo.write("a", "x");
    let snapshot = repo.snapshot();
    assert_eq!(paths(&snapshot), ["a"]);
    assert_eq!((snapshot.git.head_commit, snapshot.git.branch.as_deref()), (None, Some("main")));
    assert_eq!(snapshot.git.tree.as_deref(), Ok("4b825dc642cb6eb9a060e54bf8d69288fbee4904"));
}

fn records_kinds_and_exec_bits() {
    let repo = FixtureRepo::small();
    symlink("/etc/passwd", repo.at("link")).expect("links");
    fifo(&repo.at("fifo"));
    chmod(&repo.at("README.md"), 0o755);
    let snapshot = repo.snapshot();
    let of = |path: &str| snapshot.entries.get(path.as_bytes()).expect("snapshot covers the path");
    assert_eq!((of("link").kind, of("fifo").kind), (EntryKind::Symlink, EntryKind::Special));
    assert_eq!(of("link").sha256, proctor_core::text::digest::Sha256Hex::digest(b"/etc/passwd"));
    assert!(of("README.md").executable && !of("src/main.rs").executable);
}

fn supports_names_of_any_bytes() {
    let repo = FixtureRepo::small();
    repo.write(b"a\nb", "x").write(b"caf\xe9", "x").write(b"\xff/\xfe", "x").commit();
    repo.write(b"new\n\xff", "x").write(b"t\\x", "y");
    let names: BTreeSet<_> = repo.snapshot().entries.paths().collect();
    for name in [&b"a\nb"[..], b"caf\xe9", b"\xff/\xfe", b"new\n\xff", b"t\\x"] {
        assert!(names.contains(name), "{}", display_path(name));
    }
}

fn covers_assume_unchanged_files() {
    let repo = FixtureRepo::small();
    repo.git(&["update-index", "--assume-unchanged", "README.md"]);
    let before = repo.snapshot();
    let times = fs::metadata(repo.at("README.md")).expect("stats").modified().expect("a time");
    repo.write("README.md", "HELLO\n");
    fs::File::open(repo.at("README.md")).expect("opens").set_modified(times).expect("sets");
    assert_eq!(repo.git(&["status", "--porcelain"]), "");
    let after = repo.snapshot();
    assert_eq!(before.difference(&after), [b"README.md".to_vec()]);
    assert_ne!(before.id, after.id);
}

fn covers_files_removed_from_index() {
    let repo = FixtureRepo::small();
    repo.git(&["rm", "-q", "--cached", "README.md"]);
    repo.write(".git/info/exclude", "README.md\n");
    assert!(paths(&repo.snapshot()).contains(&"README.md".to_owned()));
}

fn follows_no_link() {
    let repo = FixtureRepo::small();
    let elsewhere = repo.dir.path().join("elsewhere");
    fs::rename(repo.at("src"), &elsewhere).expect("renames");
    symlink(&elsewhere, repo.at("src")).expect("links");
    assert_eq!(paths(&repo.snapshot()), [".gitignore", "README.md", "src"]);
}

fn excludes_evidence() {
    let repo = FixtureRepo::small();
    repo.write("changes/009_x/00-meta.json", "{}").write("changes/009_x/05-status.json", "{}").commit();
    let before = repo.snapshot();
    repo.write("changes/009_x/05-status.json", "{\"a\":1}").write("changes/009_x/verify/a.json", "{}");
    let after = repo.snapshot();
    assert_eq!(before.id, after.id);
    assert!(paths(&after).contains(&"changes/009_x/00-meta.json".to_owned()));
}

fn cannot_reinclude_below_ignored_directory() {
    let repo = FixtureRepo::small();
    repo.write(".gitignore", "target/\n!target/kept\nout/*\n!out/kept\n");
    repo.write("target/kept", "x").write("out/kept", "x").write("out/gone", "x");
    symlink("src", repo.at("target2")).expect("links");
    let listed = repo.git(&["ls-files", "-co", "--exclude-standard"]);
    let listed: BTreeSet<_> = listed.lines().map(str::to_owned).collect();
    assert_eq!(paths(&repo.snapshot()).into_iter().collect::<BTreeSet<_>>(), listed);
    let rules = repo.rules();
    let queried: [&[u8]; 5] = [b"target/kept", b"out/kept", b"out/gone", b"target/x/.git/config", b"x/.git/config"];
    assert_eq!(rules.are_ignored(&queried).expect("answers"), [true, false, true, true, false]);
}

fn applies_excludes_of_repository() {
    let repo = FixtureRepo::small();
    let rules = repo.dir.path().join("rules");
    crate::repository::write_file(&rules, b"hidden\n");
    repo.git(&["config", "core.excludesFile", &rules.display().to_string()]);
    repo.write(".git/info/exclude", "secret\n").write("secret", "x").write("hidden", "x").write("open", "x");
    assert_eq!(paths(&repo.snapshot()), [".gitignore", "README.md", "open", "src/main.rs"]);
}

fn finds_first_path_hidden_by_cache() {
    let repo = FixtureRepo::small();
    repo.write("target/x", "x");
    let snapshot = repo.snapshot();
    let first = |directory: &str| {
        snapshot.first_covered_in(&RelPath::new(directory).expect("a path")).map(|path| display_path(&path))
    };
    assert_eq!((first("target"), first("sr"), first("nothing")), (None, None, None));
    assert_eq!((first("src").as_deref(), first("README.md").as_deref()), (Some("src/main.rs"), Some("README.md")));
    assert_eq!(first(".").as_deref(), Some(".gitignore"));
}

fn bounds_tree_depth() {
    let repo = FixtureRepo::small();
    repo.write(format!("{}f", "d/".repeat(30)), "x").commit();
    assert_eq!(repo.snapshot().git.tree, Ok(repo.worktree_tree()));
    repo.write(format!("{}f", "d/".repeat(260)), "x");
    assert_refused(&repo, &["more than 256 levels of directories"]);
}

fn refuses_worktree_set_in_include() {
    let repo = FixtureRepo::small();
    repo.git(&["config", "extensions.worktreeConfig", "true"]);
    repo.write(".git/config.worktree", "[core]\n\tbare = false\n");
    repo.snapshot();
    repo.write("more", "[core]\n\tworktree = /etc\n");
    repo.write(".git/config.worktree", "[INCLUDE] path = ../more\n");
    assert_refused(&repo, &["config.worktree", "core.worktree", "/etc"]);
}

fn reports_failing_helper() {
    let repo = FixtureRepo::small();
    for (exe, words) in
        [("/nonexistent/proctor-git", "No such file"), ("/bin/true", "EOF"), ("/bin/false", "exit status: 1")]
    {
        let refusal = Snapshot::take(&repo.top, &GitHelper::new(exe)).expect_err("must be refused").to_string();
        assert!(refusal.contains(exe) && refusal.contains(words) && refusal.contains("\nhint: "), "{refusal}");
    }
}

fn with_submodule() -> FixtureRepo {
    let (repo, inner) = (FixtureRepo::small(), FixtureRepo::small());
    let url = inner.top.display().to_string();
    repo.git(&["submodule", "--quiet", "add", &url, "sub"]);
    repo.commit();
    repo
}

fn covers_submodules() {
    let repo = with_submodule();
    repo.git(&["config", "submodule.sub.ignore", "all"]);
    let before = repo.snapshot();
    assert_eq!(before.entries.get(b"sub").map(|entry| entry.kind), Some(EntryKind::Gitlink));
    assert!(before.entries.contains(b"sub/src/main.rs"));
    assert_eq!(before.git.tree, Ok(repo.worktree_tree()));
    repo.write("sub/README.md", "HELLO\n").write("sub/target/x", "ignored by the rules of the submodule");
    assert_eq!(before.difference(&repo.snapshot()), [b"sub/README.md".to_vec()]);
    assert_eq!(repo.rules().are_ignored(&[b"sub/target/x", b"sub/new"]).expect("answers"), [true, false]);
    repo.git(&["-C", "sub", "commit", "-qam", "y"]);
    let moved = before.difference(&repo.snapshot());
    assert_eq!(moved, [b"sub".to_vec(), b"sub/README.md".to_vec()]);
}

fn covers_nested_repositories() {
    let repo = FixtureRepo::small();
    repo.write("vendor/a", "x").git(&["init", "-q", "vendor"]);
    repo.write("target/b/c", "x").git(&["init", "-q", "target/b"]);
    fs::create_dir_all(repo.at("fixture/.git")).expect("creates");
    repo.write("fixture/d", "x");
    let snapshot = repo.snapshot();
    assert_eq!(snapshot.entries.get(b"vendor").map(|entry| entry.kind), Some(EntryKind::Gitlink));
    let expected = [".gitignore", "README.md", "fixture/d", "src/main.rs", "vendor", "vendor/a"];
    assert_eq!(paths(&snapshot), expected);
}

fn reports_changed_and_restored_files() {
    let repo = FixtureRepo::small();
    let before = repo.snapshot();
    assert_eq!(before.touched(&repo.snapshot()), Vec::<Vec<u8>>::new());
    // The clock of the file system ticks more slowly than the test writes.
    while before.touched(&repo.snapshot()).is_empty() {
        repo.write("README.md", "edited\n").write("README.md", "hello\n");
    }
    let after = repo.snapshot();
    assert_eq!((before.touched(&after), before.id), (vec![b"README.md".to_vec()], after.id));
}

fn covers_files_of_missing_submodule() {
    let repo = with_submodule();
    repo.git(&["submodule", "--quiet", "deinit", "-f", "sub"]);
    let before = repo.snapshot();
    assert_eq!(before.entries.get(b"sub").map(|entry| entry.kind), Some(EntryKind::Gitlink));
    repo.write("sub/a.sh", "x").write("sub/a.log", "ignored").write("sub/b/c", "x");
    assert_eq!(before.difference(&repo.snapshot()), [b"sub/a.sh".to_vec(), b"sub/b/c".to_vec()]);
}

fn refuses_ignore_file_that_is_link() {
    let repo = FixtureRepo::small();
    repo.write("rules", "*.py\n");
    symlink("../rules", repo.at("src/.gitignore")).expect("links");
    assert_refused(&repo, &["a symbolic link as `src/.gitignore`"]);
}

fn supports_linked_worktree() {
    let repo = FixtureRepo::small();
    repo.git(&["worktree", "add", "-q", "../linked", "-b", "other"]);
    let top = repo.dir.path().canonicalize().expect("path exists").join("linked");
    let snapshot = Snapshot::take(&top, &helper()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(snapshot.id, repo.snapshot().id);
    assert_eq!(snapshot.git.branch.as_deref(), Some("other"));
    assert_eq!(snapshot.git.git_dir, repo.at(".git/worktrees/linked"));
    assert_eq!(snapshot.git.common_dir, repo.at(".git"));
    assert_eq!(find_root(&top.join("src")), Some(top));
}

fn supports_worktree_of_bare_repository() {
    let repo = FixtureRepo::small();
    let room = repo.dir.path().canonicalize().expect("path exists");
    repo.git(&["clone", "-q", "--bare", ".", "../bare.git"]);
    repo.git(&["--git-dir", "../bare.git", "worktree", "add", "-q", "../linked", "-b", "other"]);
    let snapshot = Snapshot::take(&room.join("linked"), &helper()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(snapshot.id, repo.snapshot().id);
    assert_eq!(snapshot.git.common_dir, room.join("bare.git"));
}

fn supports_separate_git_dir() {
    let repo = FixtureRepo::small();
    let id = repo.snapshot().id;
    let elsewhere = repo.dir.path().canonicalize().expect("path exists").join("elsewhere");
    std::fs::rename(repo.at(".git"), &elsewhere).expect("moves");
    repo.write(".git", format!("gitdir: {}\n", elsewhere.display()));
    assert_refused(&repo, &["elsewhere", "does not refer back to this directory", "git config core.worktree"]);
    repo.git(&["config", "core.worktree", repo.at(".").canonicalize().expect("path exists").to_str().expect("text")]);
    let snapshot = repo.snapshot();
    assert_eq!((snapshot.id, snapshot.git.git_dir), (id, elsewhere));
}

/// Otherwise every step could see another user's private repository.
fn refuses_foreign_gitfile() {
    let (private, repo) = (FixtureRepo::small(), FixtureRepo::small());
    private.git(&["worktree", "add", "-q", "../linked"]);
    std::fs::remove_dir_all(repo.at(".git")).expect("removes");
    let targets = [private.at(".git"), private.at(".git/worktrees/linked")];
    for target in targets {
        repo.write(".git", format!("gitdir: {}\n", target.display()));
        assert_refused(&repo, &["does not refer back to this directory"]);
    }
}

pub(crate) fn assert_refused(repo: &FixtureRepo, words: &[&str]) {
    let (started, refusal) = (Instant::now(), repo.refusal());
    for word in words {
        assert!(refusal.contains(word), "{refusal}");
    }
    assert!(refusal.contains("\nhint: "), "{refusal}");
    assert!(started.elapsed() < Duration::from_secs(30), "the refusal took {:?}", started.elapsed());
}

/// A special file in place of any file that git reads is refused quickly, by name.
fn refuses_special_files_in_git_dir() {
    let repo = FixtureRepo::small();
    repo.snapshot();
    for path in [
        "index",
        "HEAD",
        "packed-refs",
        "config",
        "config.worktree",
        "refs/heads/main",
        "info/exclude",
        "info/attributes",
        "shallow",
        "commondir",
        "objects/info/alternates",
        "objects/info/commit-graph",
    ] {
        let place = repo.top.join(".git").join(path);
        let aside = repo.dir.path().join("aside");
        let was_there = std::fs::rename(&place, &aside).is_ok();
        std::fs::create_dir_all(place.parent().expect("a directory")).expect("makes");
        fifo(&place);
        let started = Instant::now();
        let refusal = Snapshot::take(&repo.top, &helper()).map(|_| ());
        assert!(started.elapsed() < Duration::from_secs(5), "{path}: {:?}", started.elapsed());
        if let Err(error) = refusal {
            let text = error.to_string();
            assert!(text.contains(path) && text.contains("not a regular file"), "{path}: {text}");
        } else {
            assert!(path.starts_with("objects/"), "{path} was not checked");
        }
        std::fs::remove_file(&place).expect("ours");
        if was_there {
            std::fs::rename(&aside, &place).expect("ours");
        }
    }
    repo.snapshot();
}

/// An ignore file that exceeds the size limit is refused without being read.
fn refuses_large_ignore_files() {
    let repo = FixtureRepo::small();
    for path in [".gitignore", "src/.gitignore", ".git/info/exclude", ".git/HEAD", ".git/packed-refs"] {
        let (place, aside) = (repo.top.join(path), repo.dir.path().join("aside"));
        let was_there = std::fs::rename(&place, &aside).is_ok();
        let file = std::fs::File::create_new(&place).expect("makes");
        file.set_len(5 << 30).expect("a file with a hole");
        let started = Instant::now();
        assert_refused(&repo, &["is larger than"]);
        assert!(started.elapsed() < Duration::from_secs(5), "{path}: {:?}", started.elapsed());
        std::fs::remove_file(&place).expect("ours");
        if was_there {
            std::fs::rename(&aside, &place).expect("ours");
        }
    }
}

fn refuses_foreign_worktree_setting() {
    let repo = FixtureRepo::small();
    repo.git(&["config", "core.worktree", "/etc"]);
    assert_refused(&repo, &["core.worktree", "/etc", "--unset core.worktree"]);
    repo.git(&["config", "core.worktree", ".."]);
    repo.snapshot();
}

fn refuses_fifo_as_config() {
    let repo = FixtureRepo::small();
    fs::remove_file(repo.at(".git/config")).expect("removes");
    fifo(&repo.at(".git/config"));
    assert_refused(&repo, &["not a regular file"]);
}

fn stops_helper_at_deadline() {
    let repo = FixtureRepo::small();
    let mut helper = helper();
    helper.deadline = Duration::from_millis(200);
    // The helper itself detects that it blocks on an object, but only after this deadline.
    let id = repo.git(&["rev-parse", "HEAD"]);
    let (directory, name) = id.trim().split_at(2);
    let object = repo.at(format!(".git/objects/{directory}/{name}"));
    fs::remove_file(&object).expect("removes");
    fifo(&object);
    let refusal = Snapshot::take(&repo.top, &helper).expect_err("must be refused").to_string();
    assert!(refusal.contains("longer than 0.2 s"), "{refusal}");
}

fn refuses_fifo_as_ignore_file() {
    for place in [".gitignore", "sub/.gitignore", "new/.gitignore", ".git/info/exclude", "../rules"] {
        let repo = FixtureRepo::small();
        repo.write("sub/file", "x").write("new/file", "x");
        repo.git(&["add", "sub"]);
        repo.git(&["config", "core.excludesFile", &repo.dir.path().join("rules").display().to_string()]);
        let rules = repo.at(place);
        let _ = fs::remove_file(&rules);
        fifo(&rules);
        assert_refused(
            &repo,
            &["not a regular file", rules.file_name().and_then(|name| name.to_str()).expect("a name")],
        );
        let ignored = helper().are_ignored(&repo.top, &[&b"new/other"[..], b"sub/other"]);
        assert!(ignored.expect_err("must be refused").to_string().contains("not a regular file"), "{place}");
    }
}

fn refuses_bare_and_missing_repositories() {
    let repo = FixtureRepo::small();
    fs::rename(repo.at(".git"), repo.dir.path().join("bare.git")).expect("renames");
    assert_refused(&repo, &["is not a git repository", "git init"]);
    let bare = repo.dir.path().join("bare.git");
    let refusal = Snapshot::take(&bare, &helper()).expect_err("must be refused").to_string();
    assert!(refusal.contains("bare repository"), "{refusal}");
}

fn refuses_sha256_without_git_program() {
    let repo = FixtureRepo::small();
    fs::remove_dir_all(repo.at(".git")).expect("removes");
    repo.git(&["init", "-q", "--object-format=sha256", "."]);
    assert_refused(&repo, &["sha256 object format", "fast-export"]);
}

fn refuses_reftable_without_git_program() {
    let repo = FixtureRepo::small();
    fs::remove_dir_all(repo.at(".git")).expect("removes");
    repo.git(&["init", "-q", "--ref-format=reftable", "."]);
    assert_refused(&repo, &["reftable", "git refs migrate --ref-format=files"]);
}

fn refuses_split_and_sparse_indexes() {
    let repo = FixtureRepo::small();
    repo.git(&["update-index", "--split-index"]);
    assert_refused(&repo, &["split index", "--no-split-index"]);
    repo.git(&["update-index", "--no-split-index"]);
    repo.snapshot();
    repo.write("other/a", "x").commit();
    repo.git(&["sparse-checkout", "set", "--cone", "--sparse-index", "src"]);
    assert_refused(&repo, &["sparse index", "--no-sparse-index"]);
    repo.git(&["sparse-checkout", "reapply", "--no-sparse-index"]);
    let found = paths(&repo.snapshot());
    assert!(!found.contains(&"other/a".to_owned()), "{found:?}");
}

/// The helper sends the entries ahead before it verifies the checksum, so they must be discarded.
fn refuses_index_with_wrong_checksum() {
    let repo = FixtureRepo::small();
    let index = repo.at(".git/index");
    let mut bytes = fs::read(&index).expect("an index");
    *bytes.last_mut().expect("a sum") ^= 1;
    repo.write(".git/index", bytes);
    assert_refused(&repo, &["checksum"]);
}

/// The first index is sent ahead, but only libgit2 can read it. The second one is used as it was sent.
fn reads_index_with_unusual_names_or_no_checksum() {
    let repo = FixtureRepo::small();
    repo.git(&["-c", "index.skipHash=true", "update-index", "--force-write-index"]);
    assert!(fs::read(repo.at(".git/index")).expect("an index").ends_with(&[0; 20]));
    let before = paths(&repo.snapshot());
    repo.write("a\tb", "x").git(&["add", "-A"]);
    let after = repo.snapshot();
    assert_eq!(after.git.tree, Ok(repo.git(&["write-tree"])));
    assert_eq!(paths(&after).len(), before.len() + 1);
}

fn refuses_partial_clone() {
    let repo = FixtureRepo::small();
    repo.git(&["config", "core.repositoryformatversion", "1"]);
    repo.git(&["config", "extensions.partialclone", "origin"]);
    assert_refused(&repo, &["partial clone", "without `--filter`"]);
}

fn change_owner(path: &std::path::Path, uid: u32) {
    for entry in walkdir::WalkDir::new(path) {
        std::os::unix::fs::lchown(entry.expect("walks").path(), Some(uid), Some(uid)).expect("gives");
    }
}

fn refuses_foreign_owner() {
    let repo = FixtureRepo::small();
    change_owner(&repo.at(".git"), 4242);
    assert_refused(&repo, &["owned by another user", "run as its owner"]);
}

fn root_reads_as_owner() {
    let repo = FixtureRepo::small();
    let as_root = repo.snapshot();
    chmod(repo.dir.path(), 0o755);
    change_owner(&repo.top, 4242);
    chmod(&repo.at("README.md"), 0o600);
    assert_eq!(repo.snapshot().id, as_root.id);
}
