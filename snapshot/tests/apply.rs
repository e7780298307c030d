//! Tests which changes of a `read_only: off` step reach the worktree.

use std::fs;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::time::{Duration, Instant};

use proctor_snapshot::{ApplyError, ApplyInput, TreeView, apply_back};

use crate::repository::{FixtureLayer, FixtureRepo, chmod, open};
use crate::{Requirement, SnapshotTestCase};

pub(crate) const CASES: &[SnapshotTestCase] = &[
    ("apply: applies files, links and directories", Requirement::Nothing, applies_files_links_and_directories),
    ("apply: applied tree equals view", Requirement::Whiteouts, applied_tree_equals_view),
    ("apply: applies only exec bit", Requirement::Nothing, applies_only_exec_bit),
    ("apply: keeps owners", Requirement::ChangeableOwners, keeps_owners),
    ("apply: applies deletions", Requirement::Whiteouts, applies_deletions),
    ("apply: applies opaque directory", Requirement::Nothing, applies_opaque_directory),
    ("apply: applies type changes", Requirement::Nothing, applies_type_changes),
    (
        "apply: never applies git directories, artifacts or caches",
        Requirement::Whiteouts,
        never_applies_git_dirs_artifacts_or_caches,
    ),
    ("apply: refuses concurrent edits", Requirement::Whiteouts, refuses_concurrent_edits),
    ("apply: keeps ignored file that step never saw", Requirement::Whiteouts, keeps_ignored_file_that_step_never_saw),
    ("apply: keeps ignored file changed during run", Requirement::Nothing, keeps_ignored_file_changed_during_run),
    (
        "apply: keeps changed ignored file in deleted directory",
        Requirement::Whiteouts,
        keeps_changed_ignored_file_in_deleted_directory,
    ),
    ("apply: refuses link in place of directory", Requirement::Nothing, refuses_link_in_place_of_directory),
    ("apply: writes nothing without differences", Requirement::Nothing, writes_nothing_without_differences),
    ("apply: never replaces repository", Requirement::Nothing, never_replaces_repository),
    ("apply: refuses file beyond bound", Requirement::Nothing, refuses_file_beyond_bound),
    ("apply: rolls back incomplete update", Requirement::Whiteouts, rolls_back_incomplete_update),
    ("apply: never loses concurrent save", Requirement::Nothing, never_loses_concurrent_save),
    ("apply: never loses concurrent new file", Requirement::Nothing, never_loses_concurrent_new_file),
    ("apply: never loses edit of deleted file", Requirement::Whiteouts, never_loses_edit_of_deleted_file),
    ("apply: survives directory swapped for link", Requirement::Nothing, survives_directory_swapped_for_link),
];

/// Another process builds while a step deletes.
fn keeps_ignored_file_changed_during_run() {
    assert_refuses_after_concurrent_write(|layer| layer.opaque("target"));
    assert_refuses_after_concurrent_write(|layer| layer.write("target/mine", "the step's"));
}

fn keeps_changed_ignored_file_in_deleted_directory() {
    assert_refuses_after_concurrent_write(|layer| layer.whiteout("target"));
}

fn assert_refuses_after_concurrent_write(change: fn(&FixtureLayer) -> &FixtureLayer) {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    repo.write("target/old", "theirs").write("target/mine", "theirs");
    let view = repo.view();
    change(&layer);
    write_well_after(&repo, "target/mine", "target/old");
    let error = apply_on(&repo, &view, &layer).expect_err("must be refused");
    assert!(error.to_string().contains("changed during the run"), "{error}");
    assert_eq!((repo.read("target/old"), repo.read("target/mine")), ("theirs".into(), "mine".into()));
}

/// Writes `mine` until its modification time is some clock ticks later than that of the other file.
fn write_well_after(repo: &FixtureRepo, path: &str, other: &str) {
    let date = |path: &str| fs::metadata(repo.at(path)).expect("stats").modified().expect("a time");
    let (wanted, until) = (date(other) + Duration::from_millis(200), Instant::now() + Duration::from_secs(20));
    while {
        repo.write(path, "mine");
        date(path) < wanted
    } {
        assert!(Instant::now() < until, "the clock does not advance");
    }
}

/// Applies a layer and returns the changed paths.
pub(crate) fn apply_on(repo: &FixtureRepo, view: &TreeView, layer: &FixtureLayer) -> Result<Vec<String>, ApplyError> {
    let (top, upper) = (open(&repo.top), layer.open());
    let (scan, ignored) = (layer.scan(), repo.rules());
    let caches = [proctor_core::model::plan::RelPath::new("cache").expect("a path")];
    let input =
        ApplyInput { repo: top.as_fd(), view, scan: &scan, upper: upper.as_fd(), ignored: &ignored, caches: &caches };
    let applied = apply_back(input)?;
    Ok(applied.iter().map(|path| proctor_core::model::drift::display_path(path)).collect())
}

fn apply(repo: &FixtureRepo, layer: &FixtureLayer) -> Vec<String> {
    apply_on(repo, &repo.view(), layer).unwrap_or_else(|error| panic!("{error}"))
}

fn mode(repo: &FixtureRepo, path: &str) -> u32 {
    fs::metadata(repo.at(path)).expect("stats").permissions().mode() & 0o7777
}

fn count_staging_dirs(repo: &FixtureRepo) -> usize {
    let names = walkdir::WalkDir::new(&repo.top).into_iter().map(|entry| entry.expect("walks").file_name().to_owned());
    names.filter(|name| name.to_string_lossy().starts_with(".proctor-")).count()
}

fn applies_files_links_and_directories() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    layer
        .write("README.md", "new\n")
        .write("a/b/c", "x")
        .link("link", "README.md")
        .mkdir("empty")
        .write("target/x", "x");
    assert_eq!(apply(&repo, &layer), ["README.md", "a/b/c", "link", "target/x"]);
    assert_eq!((repo.read("README.md"), repo.read("a/b/c")), ("new\n".into(), "x".into()));
    assert_eq!(fs::read_link(repo.at("link")).expect("reads").to_str(), Some("README.md"));
    assert!(repo.at("empty").is_dir());
    assert_eq!(count_staging_dirs(&repo), 0);
}

fn applied_tree_equals_view() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    repo.write("old/a", "x").write("old/b/c", "x").write("f", "x").write("d/e", "x");
    layer.write("README.md", "new\n").chmod("README.md", 0o755).write("new/x", "x").whiteout("old").link("f", "x");
    layer.opaque("d").write("d/g", "x").write("src/main.rs/x", "x").write("a.log", "ignored");
    let view = repo.view();
    let after = view.with_layer(&layer.scan(), &repo.rules()).expect("applies");
    assert_ne!(after.id(), view.id());
    apply_on(&repo, &view, &layer).unwrap_or_else(|error| panic!("{error}"));
    let real = repo.snapshot();
    assert_eq!(after.difference(&real), Vec::<Vec<u8>>::new());
    assert_eq!(after.id(), real.id);
}

fn applies_only_exec_bit() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    chmod(&repo.at("README.md"), 0o640);
    // A set-user-id file cannot be created in our sandbox; there the set-group-id bit is tested.
    let set_id = if can_set_user_id(&repo) { 0o6000 } else { 0o2000 };
    layer.write("README.md", "#!\n").chmod("README.md", set_id | 0o777).write("new", "x").chmod("new", 0o600);
    layer.write("run", "x").chmod("run", set_id | 0o711);
    apply(&repo, &layer);
    assert_eq!((mode(&repo, "README.md"), mode(&repo, "new"), mode(&repo, "run")), (0o750, 0o644, 0o755));
}

fn can_set_user_id(repo: &FixtureRepo) -> bool {
    repo.write("target/tried", "x");
    fs::set_permissions(repo.at("target/tried"), fs::Permissions::from_mode(0o4755)).is_ok()
}

fn keeps_owners() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    layer.write("src/new/deep", "x").link("src/link", "x").write("README.md", "x");
    let view = repo.view();
    std::os::unix::fs::chown(repo.at("src"), Some(4242), Some(4343)).expect("gives");
    std::os::unix::fs::chown(repo.at("README.md"), Some(4242), Some(4343)).expect("gives");
    apply_on(&repo, &view, &layer).unwrap_or_else(|error| panic!("{error}"));
    for path in ["src/new", "src/new/deep", "src/link", "README.md"] {
        let found = fs::symlink_metadata(repo.at(path)).expect("stats");
        assert_eq!((found.uid(), found.gid()), (4242, 4343), "{path}");
    }
}

fn applies_deletions() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    repo.write("src/a/b", "x").write("target/a/b", "x");
    layer.whiteout("src").whiteout("README.md").whiteout("target").whiteout("never-there");
    assert_eq!(apply(&repo, &layer), ["README.md", "src/a/b", "src/main.rs", "target/a/b"]);
    assert!(!repo.at("src").exists() && !repo.at("target").exists());
}

fn applies_opaque_directory() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    repo.write("src/gone/x", "x").write("src/kept/y", "y").write("src/kept/gone", "x");
    layer.opaque("src").write("src/main.rs", "fn main() {}\n").write("src/kept/y", "y").write("src/new", "x");
    assert_eq!(apply(&repo, &layer), ["src/gone/x", "src/kept/gone", "src/new"]);
    assert!(!repo.at("src/gone").exists() && repo.at("src/kept/y").exists());
}

fn applies_type_changes() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    symlink("src", repo.at("link")).expect("links");
    layer.write("src", "now a file").write("README.md/x", "x").write("link", "now a file");
    assert_eq!(apply(&repo, &layer), ["README.md", "README.md/x", "link", "src", "src/main.rs"]);
    assert_eq!(repo.read("link"), "now a file");
}

fn never_applies_git_dirs_artifacts_or_caches() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    repo.write("sub/x", "x").git(&["init", "-q", "sub"]);
    repo.write("changes/a/05-status.json", "kept").write("cache/x", "kept");
    layer.write(".git/config", "x").write("sub/.git/config", "x").write("changes/a/verify/x.json", "x");
    layer.fifo("fifo").whiteout("changes/a/05-status.json").write("cache/x", "x");
    assert_eq!(apply(&repo, &layer), Vec::<String>::new());
    assert_ne!(repo.read("sub/.git/config"), "x");
    assert_eq!(repo.read("changes/a/05-status.json") + &repo.read("cache/x"), "keptkept");
    let layer = FixtureLayer::new();
    layer.whiteout("sub").whiteout("changes").whiteout(".git");
    assert_eq!(apply(&repo, &layer), ["sub/x"]);
    assert!(repo.at("sub/.git/config").exists() && repo.at("changes/a/05-status.json").exists());
    repo.snapshot();
}

fn refuses_concurrent_edits() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    let view = repo.view();
    repo.write("README.md", "edited\n").write("src/mine.rs", "x").write("new", "x").write("target/x", "x");
    layer.write("README.md", "new\n").whiteout("src").write("new", "y").write(".gitignore", "x").write("target/x", "y");
    let error = apply_on(&repo, &view, &layer).expect_err("must report a conflict");
    let ApplyError::Conflict { paths } = error else { panic!("{error}") };
    assert_eq!(paths, ["README.md", "new", "src/mine.rs"]);
    assert_eq!((repo.read("README.md"), repo.read("new")), ("edited\n".into(), "x".into()));
    assert_eq!((repo.read(".gitignore").as_str(), repo.read("target/x").as_str()), ("target/\n*.log\n", "x"));
}

fn keeps_ignored_file_that_step_never_saw() {
    for rebuilt in ["a.log", "target/x"] {
        let (repo, below, layer) = (FixtureRepo::small(), FixtureLayer::new(), FixtureLayer::new());
        repo.write("a.log", "precious").write("target/x", "precious").write("target/y", "precious");
        below.whiteout("a.log").whiteout("target");
        let view = repo.view().with_layer(&below.scan(), &repo.rules()).expect("applies");
        if rebuilt == "target/x" {
            layer.opaque("target");
        }
        layer.write(rebuilt, "new").write("README.md", "new\n");
        let error = apply_on(&repo, &view, &layer).expect_err("must be refused");
        assert!(matches!(error, ApplyError::Refused { .. }), "{error}");
        assert_eq!(repo.read("a.log") + &repo.read("target/x") + &repo.read("target/y"), "precious".repeat(3));
        assert_eq!(repo.read("README.md"), "hello\n");
    }
}

fn refuses_link_in_place_of_directory() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    let view = repo.view();
    let elsewhere = repo.dir.path().join("elsewhere");
    fs::rename(repo.at("src"), &elsewhere).expect("renames");
    symlink(&elsewhere, repo.at("src")).expect("links");
    layer.write("src/main.rs", "evil").write("src/new", "evil");
    let error = apply_on(&repo, &view, &layer).expect_err("must report a conflict");
    assert!(matches!(&error, ApplyError::Conflict { paths } if paths.contains(&"src".to_owned())), "{error}");
    assert_eq!(fs::read_to_string(elsewhere.join("main.rs")).expect("reads"), "fn main() {}\n");
    assert!(!elsewhere.join("new").exists());
}

fn writes_nothing_without_differences() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    repo.write("target/x", "x");
    layer.write("README.md", "hello\n").write("target/x", "x").mkdir("src");
    let before = fs::metadata(repo.at("README.md")).expect("stats").ino();
    assert_eq!(apply(&repo, &layer), Vec::<String>::new());
    assert_eq!(fs::metadata(repo.at("README.md")).expect("stats").ino(), before);
}

fn never_replaces_repository() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    repo.write("a/sub/x", "x").git(&["init", "-q", "a/sub"]);
    layer.write("a", "now a file");
    let error = apply_on(&repo, &repo.view(), &layer).expect_err("must be refused");
    assert!(matches!(error, ApplyError::Refused { .. }), "{error}");
    assert!(repo.at("a/sub/x").exists());
}

fn refuses_file_beyond_bound() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    layer.write("README.md", "x").write("big", "");
    fs::OpenOptions::new().write(true).open(layer.at("big")).expect("opens").set_len(5 << 30).expect("grows");
    let error = apply_on(&repo, &repo.view(), &layer).expect_err("must be refused");
    assert!(matches!(&error, ApplyError::Refused { path, .. } if path == "big"), "{error}");
    assert_eq!(repo.read("README.md"), "hello\n");
}

fn rolls_back_incomplete_update() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    repo.write("old/a", "a").write("old/b/c", "c").write("z/.git/not-a-repository", "x");
    fs::set_permissions(repo.at("old/b"), fs::Permissions::from_mode(0o711)).expect("a mode");
    layer.write("README.md", "new\n").write("made/x", "x").whiteout("old").link("src/main.rs", "x").mkdir("empty");
    // A directory that contains a `.git` is never removed, so no file can replace it.
    layer.write("z", "file");
    let before = repo.snapshot().id;
    let error = apply_on(&repo, &repo.view(), &layer).expect_err("the update cannot be completed");
    assert!(matches!(&error, ApplyError::Conflict { paths } if paths == &["z"]), "{error}");
    assert_eq!(repo.snapshot().id, before);
    assert!(!repo.at("made").exists() && !repo.at("empty").exists());
    assert_eq!(mode(&repo, "old/b"), 0o711);
    assert_eq!(count_staging_dirs(&repo), 0);
}

/// Returns the numbers of the attempts to make an edit collide with an update. `make test` makes every third attempt.
fn concurrent_rounds() -> std::iter::StepBy<std::ops::Range<usize>> {
    (0..300).step_by(crate::campaign_size(3, 1))
}

/// Applies a layer while another thread runs `edit`, with a different delay in each round.
fn apply_with_concurrent_edit(
    repo: &FixtureRepo,
    view: &TreeView,
    layer: &FixtureLayer,
    round: usize,
    edit: impl FnOnce() + Send,
) -> Result<Vec<String>, ApplyError> {
    let start = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            start.wait();
            // The delays range from before the check to after the last rename, depending on the machine.
            (0..round * 4_000).for_each(|n| {
                std::hint::black_box(n);
            });
            edit();
        });
        start.wait();
        apply_on(repo, view, layer)
    })
}

/// Saves a file as editors do: writes a temporary file and renames it over the original.
fn save_as_editor(repo: &FixtureRepo, path: &str, content: &str) {
    let beside = repo.dir.path().join("saved");
    crate::repository::write_file(&beside, content.as_bytes());
    fs::rename(beside, repo.at(path)).expect("renames");
}

fn never_loses_concurrent_save() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    let view = repo.view();
    layer.write("README.md", "the step's\n").write("src/main.rs", "the step's\n");
    let mut conflicts = 0;
    for round in concurrent_rounds() {
        repo.write("README.md", "hello\n").write("src/main.rs", "fn main() {}\n");
        let met =
            apply_with_concurrent_edit(&repo, &view, &layer, round, || save_as_editor(&repo, "src/main.rs", "mine\n"));
        // The user's save wins in any order of events.
        assert_eq!(repo.read("src/main.rs"), "mine\n", "{met:?}");
        match met {
            Ok(_) => assert_eq!(repo.read("README.md"), "the step's\n"),
            Err(error) => {
                assert!(matches!(error, ApplyError::Conflict { .. }), "{error}");
                assert_eq!(repo.read("README.md"), "hello\n", "a refused update was partly applied");
                conflicts += 1;
            }
        }
        assert_eq!(count_staging_dirs(&repo), 0);
    }
    let count = concurrent_rounds().len();
    assert!(conflicts > 0 && conflicts < count, "{conflicts} of {count} rounds had a conflict");
}

fn never_loses_concurrent_new_file() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    let view = repo.view();
    layer.write("README.md", "the step's\n").write("src/new.rs", "the step's\n");
    for round in concurrent_rounds() {
        repo.write("README.md", "hello\n");
        let _ = fs::remove_file(repo.at("src/new.rs"));
        let met =
            apply_with_concurrent_edit(&repo, &view, &layer, round, || save_as_editor(&repo, "src/new.rs", "mine\n"));
        assert_eq!(repo.read("src/new.rs"), "mine\n", "{met:?}");
        assert_eq!(repo.read("README.md"), if met.is_ok() { "the step's\n" } else { "hello\n" });
    }
    assert_eq!(count_staging_dirs(&repo), 0);
}

fn never_loses_edit_of_deleted_file() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    let view = repo.view();
    layer.write("README.md", "the step's\n").whiteout("src");
    for round in concurrent_rounds() {
        repo.write("README.md", "hello\n").write("src/main.rs", "fn main() {}\n");
        let saved = std::sync::atomic::AtomicBool::new(false);
        let met = apply_with_concurrent_edit(&repo, &view, &layer, round, || {
            let beside = repo.dir.path().join("saved");
            crate::repository::write_file(&beside, b"mine\n");
            // If the directory has been removed by then, the editor reports an error.
            let done = fs::rename(beside, repo.at("src/main.rs")).is_ok();
            saved.store(done, std::sync::atomic::Ordering::Release);
        });
        match saved.into_inner() {
            true => assert_eq!(repo.read("src/main.rs"), "mine\n", "{met:?}"),
            false => assert!(met.is_ok() && !repo.at("src").exists(), "{met:?}"),
        }
    }
    assert_eq!(count_staging_dirs(&repo), 0);
}

fn survives_directory_swapped_for_link() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    let view = repo.view();
    layer.write("README.md", "the step's\n").write("src/main.rs", "the step's\n").write("src/new.rs", "the step's\n");
    let outside = repo.dir.path().join("outside");
    fs::create_dir(&outside).expect("makes");
    crate::repository::write_file(&outside.join("main.rs"), b"outside\n");
    for round in concurrent_rounds() {
        repo.write("README.md", "hello\n").write("src/main.rs", "fn main() {}\n");
        let met = apply_with_concurrent_edit(&repo, &view, &layer, round, || {
            fs::rename(repo.at("src"), repo.at("aside")).expect("renames");
            symlink(&outside, repo.at("src")).expect("a link");
        });
        assert_eq!(fs::read_dir(&outside).expect("lists").count(), 1, "a write followed a link out of the tree");
        assert_eq!(fs::read_to_string(outside.join("main.rs")).expect("reads"), "outside\n");
        match met {
            Ok(_) => {
                assert_eq!(
                    (repo.read("README.md"), repo.read("aside/main.rs")),
                    owned_pair("the step's\n", "the step's\n")
                );
            }
            Err(ApplyError::PartlyRolledBack { .. }) => {}
            Err(_) => {
                assert_eq!(
                    (repo.read("README.md"), repo.read("aside/main.rs")),
                    owned_pair("hello\n", "fn main() {}\n")
                );
            }
        }
        fs::remove_file(repo.at("src")).expect("removes");
        fs::rename(repo.at("aside"), repo.at("src")).expect("renames");
        let _ = fs::remove_file(repo.at("src/new.rs"));
        remove_staging_dirs(&repo);
    }
}

fn owned_pair(a: &str, b: &str) -> (String, String) {
    (a.to_owned(), b.to_owned())
}

/// Removes the staging directories that torn updates left.
fn remove_staging_dirs(repo: &FixtureRepo) {
    for entry in fs::read_dir(&repo.top).expect("lists").flatten() {
        if entry.file_name().to_string_lossy().starts_with(".proctor-") {
            fs::remove_dir_all(entry.path()).expect("removes");
        }
    }
}
