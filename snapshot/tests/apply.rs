//! Tests which changes of a `read_only: off` step reach the worktree.

use std::fs;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::time::{Duration, Instant};

use proctor_snapshot::{ApplyError, ApplyInput, View, apply_back};

use crate::repository::{Layer, Repo, chmod, open};
use crate::{Case, Need};

pub(crate) const CASES: &[Case] = &[
    ("apply: files, links and directories", Need::Nothing, files_links_directories),
    ("apply: the tree is then what the view says", Need::Whiteouts, tree_equals_view),
    ("apply: modes", Need::Nothing, modes),
    ("apply: owners", Need::OtherOwners, owners),
    ("apply: deletions", Need::Whiteouts, deletions),
    ("apply: a directory made again", Need::Nothing, opaque_directory),
    ("apply: types", Need::Nothing, types),
    ("apply: never .git, artifacts, special files or caches", Need::Whiteouts, never),
    ("apply: an edit meanwhile is a conflict, and nothing is written", Need::Whiteouts, conflict),
    ("apply: an ignored file that the step never saw is not lost", Need::Whiteouts, never_seen),
    ("apply: an ignored file that is changed meanwhile is not lost", Need::Nothing, ignored_meanwhile),
    ("apply: nor is one whose directory the step deletes", Need::Whiteouts, ignored_and_deleted_meanwhile),
    ("apply: a link that took a directory's place is a conflict", Need::Nothing, link_in_the_way),
    ("apply: nothing where nothing differs", Need::Nothing, nothing_differs),
    ("apply: a repository is never replaced", Need::Nothing, repository_is_never_replaced),
    ("apply: a file beyond the bound is refused", Need::Nothing, beyond_the_bound),
    ("apply: what cannot be finished is taken back", Need::Whiteouts, taken_back),
    ("apply: a save meanwhile is never lost", Need::Nothing, saved_meanwhile),
    ("apply: a file made meanwhile is never lost", Need::Nothing, made_meanwhile),
    ("apply: an edit of what is deleted meanwhile is never lost", Need::Whiteouts, edited_while_deleted),
    ("apply: a directory swapped for a link meanwhile is all or nothing", Need::Nothing, swapped_meanwhile),
];

/// Another process builds while a step deletes.
fn ignored_meanwhile() {
    changed_while_built(|layer| layer.opaque("target"));
    changed_while_built(|layer| layer.write("target/mine", "the step's"));
}

fn ignored_and_deleted_meanwhile() {
    changed_while_built(|layer| layer.whiteout("target"));
}

fn changed_while_built(change: fn(&Layer) -> &Layer) {
    let (repo, layer) = (Repo::small(), Layer::new());
    repo.write("target/old", "theirs").write("target/mine", "theirs");
    let view = repo.view();
    change(&layer);
    written_well_after(&repo, "target/mine", "target/old");
    let error = apply_on(&repo, &view, &layer).expect_err("it is refused");
    assert!(error.to_string().contains("changed during the run"), "{error}");
    assert_eq!((repo.read("target/old"), repo.read("target/mine")), ("theirs".into(), "mine".into()));
}

/// Writes `mine` until its modification time is some clock ticks later than that of the other file.
fn written_well_after(repo: &Repo, path: &str, other: &str) {
    let date = |path: &str| fs::metadata(repo.at(path)).expect("stats").modified().expect("a time");
    let (wanted, until) = (date(other) + Duration::from_millis(200), Instant::now() + Duration::from_secs(20));
    while {
        repo.write(path, "mine");
        date(path) < wanted
    } {
        assert!(Instant::now() < until, "the clock stands");
    }
}

/// Applies a layer and returns the changed paths.
pub(crate) fn apply_on(repo: &Repo, view: &View, layer: &Layer) -> Result<Vec<String>, ApplyError> {
    let (top, upper) = (open(&repo.top), layer.open());
    let (scan, ignored) = (layer.scan(), repo.rules());
    let caches = [proctor_core::plan::RelPath::new("cache").expect("a path")];
    let input =
        ApplyInput { repo: top.as_fd(), view, scan: &scan, upper: upper.as_fd(), ignored: &ignored, caches: &caches };
    let applied = apply_back(input)?;
    Ok(applied.iter().map(|path| proctor_core::drift::display_path(path)).collect())
}

fn apply(repo: &Repo, layer: &Layer) -> Vec<String> {
    apply_on(repo, &repo.view(), layer).unwrap_or_else(|error| panic!("{error}"))
}

fn mode(repo: &Repo, path: &str) -> u32 {
    fs::metadata(repo.at(path)).expect("stats").permissions().mode() & 0o7777
}

fn leftovers(repo: &Repo) -> usize {
    let names = walkdir::WalkDir::new(&repo.top).into_iter().map(|entry| entry.expect("walks").file_name().to_owned());
    names.filter(|name| name.to_string_lossy().starts_with(".proctor-")).count()
}

fn files_links_directories() {
    let (repo, layer) = (Repo::small(), Layer::new());
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
    assert_eq!(leftovers(&repo), 0);
}

fn tree_equals_view() {
    let (repo, layer) = (Repo::small(), Layer::new());
    repo.write("old/a", "x").write("old/b/c", "x").write("f", "x").write("d/e", "x");
    layer.write("README.md", "new\n").chmod("README.md", 0o755).write("new/x", "x").whiteout("old").link("f", "x");
    layer.opaque("d").write("d/g", "x").write("src/main.rs/x", "x").write("a.log", "ignored");
    let view = repo.view();
    let after = view.apply(&layer.scan(), &repo.rules()).expect("applies");
    assert_ne!(after.id(), view.id());
    apply_on(&repo, &view, &layer).unwrap_or_else(|error| panic!("{error}"));
    let real = repo.snapshot();
    assert_eq!(after.difference(&real), Vec::<Vec<u8>>::new());
    assert_eq!(after.id(), real.id);
}

fn modes() {
    let (repo, layer) = (Repo::small(), Layer::new());
    chmod(&repo.at("README.md"), 0o640);
    // A set-user-id file cannot be created in our sandbox; there the set-group-id bit is tested.
    let set_id = if may_set_user_id(&repo) { 0o6000 } else { 0o2000 };
    layer.write("README.md", "#!\n").chmod("README.md", set_id | 0o777).write("new", "x").chmod("new", 0o600);
    layer.write("run", "x").chmod("run", set_id | 0o711);
    apply(&repo, &layer);
    assert_eq!((mode(&repo, "README.md"), mode(&repo, "new"), mode(&repo, "run")), (0o750, 0o644, 0o755));
}

fn may_set_user_id(repo: &Repo) -> bool {
    repo.write("target/tried", "x");
    fs::set_permissions(repo.at("target/tried"), fs::Permissions::from_mode(0o4755)).is_ok()
}

fn owners() {
    let (repo, layer) = (Repo::small(), Layer::new());
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

fn deletions() {
    let (repo, layer) = (Repo::small(), Layer::new());
    repo.write("src/a/b", "x").write("target/a/b", "x");
    layer.whiteout("src").whiteout("README.md").whiteout("target").whiteout("never-there");
    assert_eq!(apply(&repo, &layer), ["README.md", "src/a/b", "src/main.rs", "target/a/b"]);
    assert!(!repo.at("src").exists() && !repo.at("target").exists());
}

fn opaque_directory() {
    let (repo, layer) = (Repo::small(), Layer::new());
    repo.write("src/gone/x", "x").write("src/kept/y", "y").write("src/kept/gone", "x");
    layer.opaque("src").write("src/main.rs", "fn main() {}\n").write("src/kept/y", "y").write("src/new", "x");
    assert_eq!(apply(&repo, &layer), ["src/gone/x", "src/kept/gone", "src/new"]);
    assert!(!repo.at("src/gone").exists() && repo.at("src/kept/y").exists());
}

fn types() {
    let (repo, layer) = (Repo::small(), Layer::new());
    symlink("src", repo.at("link")).expect("links");
    layer.write("src", "now a file").write("README.md/x", "x").write("link", "now a file");
    assert_eq!(apply(&repo, &layer), ["README.md", "README.md/x", "link", "src", "src/main.rs"]);
    assert_eq!(repo.read("link"), "now a file");
}

fn never() {
    let (repo, layer) = (Repo::small(), Layer::new());
    repo.write("sub/x", "x").git(&["init", "-q", "sub"]);
    repo.write("changes/a/05-status.json", "kept").write("cache/x", "kept");
    layer.write(".git/config", "x").write("sub/.git/config", "x").write("changes/a/verify/x.json", "x");
    layer.fifo("fifo").whiteout("changes/a/05-status.json").write("cache/x", "x");
    assert_eq!(apply(&repo, &layer), Vec::<String>::new());
    assert_ne!(repo.read("sub/.git/config"), "x");
    assert_eq!(repo.read("changes/a/05-status.json") + &repo.read("cache/x"), "keptkept");
    let layer = Layer::new();
    layer.whiteout("sub").whiteout("changes").whiteout(".git");
    assert_eq!(apply(&repo, &layer), ["sub/x"]);
    assert!(repo.at("sub/.git/config").exists() && repo.at("changes/a/05-status.json").exists());
    repo.snapshot();
}

fn conflict() {
    let (repo, layer) = (Repo::small(), Layer::new());
    let view = repo.view();
    repo.write("README.md", "edited\n").write("src/mine.rs", "x").write("new", "x").write("target/x", "x");
    layer.write("README.md", "new\n").whiteout("src").write("new", "y").write(".gitignore", "x").write("target/x", "y");
    let error = apply_on(&repo, &view, &layer).expect_err("a conflict");
    let ApplyError::Conflict { paths } = error else { panic!("{error}") };
    assert_eq!(paths, ["README.md", "new", "src/mine.rs"]);
    assert_eq!((repo.read("README.md"), repo.read("new")), ("edited\n".into(), "x".into()));
    assert_eq!((repo.read(".gitignore").as_str(), repo.read("target/x").as_str()), ("target/\n*.log\n", "x"));
}

fn never_seen() {
    for rebuilt in ["a.log", "target/x"] {
        let (repo, below, layer) = (Repo::small(), Layer::new(), Layer::new());
        repo.write("a.log", "precious").write("target/x", "precious").write("target/y", "precious");
        below.whiteout("a.log").whiteout("target");
        let view = repo.view().apply(&below.scan(), &repo.rules()).expect("applies");
        if rebuilt == "target/x" {
            layer.opaque("target");
        }
        layer.write(rebuilt, "new").write("README.md", "new\n");
        let error = apply_on(&repo, &view, &layer).expect_err("it is refused");
        assert!(matches!(error, ApplyError::Refused { .. }), "{error}");
        assert_eq!(repo.read("a.log") + &repo.read("target/x") + &repo.read("target/y"), "precious".repeat(3));
        assert_eq!(repo.read("README.md"), "hello\n");
    }
}

fn link_in_the_way() {
    let (repo, layer) = (Repo::small(), Layer::new());
    let view = repo.view();
    let elsewhere = repo.room.path().join("elsewhere");
    fs::rename(repo.at("src"), &elsewhere).expect("renames");
    symlink(&elsewhere, repo.at("src")).expect("links");
    layer.write("src/main.rs", "evil").write("src/new", "evil");
    let error = apply_on(&repo, &view, &layer).expect_err("a conflict");
    assert!(matches!(&error, ApplyError::Conflict { paths } if paths.contains(&"src".to_owned())), "{error}");
    assert_eq!(fs::read_to_string(elsewhere.join("main.rs")).expect("reads"), "fn main() {}\n");
    assert!(!elsewhere.join("new").exists());
}

fn nothing_differs() {
    let (repo, layer) = (Repo::small(), Layer::new());
    repo.write("target/x", "x");
    layer.write("README.md", "hello\n").write("target/x", "x").mkdir("src");
    let before = fs::metadata(repo.at("README.md")).expect("stats").ino();
    assert_eq!(apply(&repo, &layer), Vec::<String>::new());
    assert_eq!(fs::metadata(repo.at("README.md")).expect("stats").ino(), before);
}

fn repository_is_never_replaced() {
    let (repo, layer) = (Repo::small(), Layer::new());
    repo.write("a/sub/x", "x").git(&["init", "-q", "a/sub"]);
    layer.write("a", "now a file");
    let error = apply_on(&repo, &repo.view(), &layer).expect_err("it is refused");
    assert!(matches!(error, ApplyError::Refused { .. }), "{error}");
    assert!(repo.at("a/sub/x").exists());
}

fn beyond_the_bound() {
    let (repo, layer) = (Repo::small(), Layer::new());
    layer.write("README.md", "x").write("big", "");
    fs::OpenOptions::new().write(true).open(layer.at("big")).expect("opens").set_len(5 << 30).expect("grows");
    let error = apply_on(&repo, &repo.view(), &layer).expect_err("it is refused");
    assert!(matches!(&error, ApplyError::Refused { path, .. } if path == "big"), "{error}");
    assert_eq!(repo.read("README.md"), "hello\n");
}

fn taken_back() {
    let (repo, layer) = (Repo::small(), Layer::new());
    repo.write("old/a", "a").write("old/b/c", "c").write("z/.git/not-a-repository", "x");
    fs::set_permissions(repo.at("old/b"), fs::Permissions::from_mode(0o711)).expect("a mode");
    layer.write("README.md", "new\n").write("made/x", "x").whiteout("old").link("src/main.rs", "x").mkdir("empty");
    // A directory that contains a `.git` is never removed, so no file can replace it.
    layer.write("z", "file");
    let before = repo.snapshot().id;
    let error = apply_on(&repo, &repo.view(), &layer).expect_err("it cannot be finished");
    assert!(matches!(&error, ApplyError::Conflict { paths } if paths == &["z"]), "{error}");
    assert_eq!(repo.snapshot().id, before);
    assert!(!repo.at("made").exists() && !repo.at("empty").exists());
    assert_eq!(mode(&repo, "old/b"), 0o711);
    assert_eq!(leftovers(&repo), 0);
}

/// Number of attempts to make an edit collide with an update.
const MEETINGS: usize = 300;

/// Applies a layer while another thread runs `edit`, with a different delay in each round.
fn meet(
    repo: &Repo,
    view: &View,
    layer: &Layer,
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
fn save(repo: &Repo, path: &str, content: &str) {
    let beside = repo.room.path().join("saved");
    crate::repository::put(&beside, content.as_bytes());
    fs::rename(beside, repo.at(path)).expect("renames");
}

fn saved_meanwhile() {
    let (repo, layer) = (Repo::small(), Layer::new());
    let view = repo.view();
    layer.write("README.md", "the step's\n").write("src/main.rs", "the step's\n");
    let mut conflicts = 0;
    for round in 0..MEETINGS {
        repo.write("README.md", "hello\n").write("src/main.rs", "fn main() {}\n");
        let met = meet(&repo, &view, &layer, round, || save(&repo, "src/main.rs", "mine\n"));
        // The user's save wins in any order of events.
        assert_eq!(repo.read("src/main.rs"), "mine\n", "{met:?}");
        match met {
            Ok(_) => assert_eq!(repo.read("README.md"), "the step's\n"),
            Err(error) => {
                assert!(matches!(error, ApplyError::Conflict { .. }), "{error}");
                assert_eq!(repo.read("README.md"), "hello\n", "half of it was applied");
                conflicts += 1;
            }
        }
        assert_eq!(leftovers(&repo), 0);
    }
    assert!(conflicts > 0 && conflicts < MEETINGS, "the two met {conflicts} times");
}

fn made_meanwhile() {
    let (repo, layer) = (Repo::small(), Layer::new());
    let view = repo.view();
    layer.write("README.md", "the step's\n").write("src/new.rs", "the step's\n");
    for round in 0..MEETINGS {
        repo.write("README.md", "hello\n");
        let _ = fs::remove_file(repo.at("src/new.rs"));
        let met = meet(&repo, &view, &layer, round, || save(&repo, "src/new.rs", "mine\n"));
        assert_eq!(repo.read("src/new.rs"), "mine\n", "{met:?}");
        assert_eq!(repo.read("README.md"), if met.is_ok() { "the step's\n" } else { "hello\n" });
    }
    assert_eq!(leftovers(&repo), 0);
}

fn edited_while_deleted() {
    let (repo, layer) = (Repo::small(), Layer::new());
    let view = repo.view();
    layer.write("README.md", "the step's\n").whiteout("src");
    for round in 0..MEETINGS {
        repo.write("README.md", "hello\n").write("src/main.rs", "fn main() {}\n");
        let saved = std::sync::atomic::AtomicBool::new(false);
        let met = meet(&repo, &view, &layer, round, || {
            let beside = repo.room.path().join("saved");
            crate::repository::put(&beside, b"mine\n");
            // If the directory has been removed by then, the editor reports an error.
            let done = fs::rename(beside, repo.at("src/main.rs")).is_ok();
            saved.store(done, std::sync::atomic::Ordering::Release);
        });
        match saved.into_inner() {
            true => assert_eq!(repo.read("src/main.rs"), "mine\n", "{met:?}"),
            false => assert!(met.is_ok() && !repo.at("src").exists(), "{met:?}"),
        }
    }
    assert_eq!(leftovers(&repo), 0);
}

fn swapped_meanwhile() {
    let (repo, layer) = (Repo::small(), Layer::new());
    let view = repo.view();
    layer.write("README.md", "the step's\n").write("src/main.rs", "the step's\n").write("src/new.rs", "the step's\n");
    let outside = repo.room.path().join("outside");
    fs::create_dir(&outside).expect("makes");
    crate::repository::put(&outside.join("main.rs"), b"outside\n");
    for round in 0..MEETINGS {
        repo.write("README.md", "hello\n").write("src/main.rs", "fn main() {}\n");
        let met = meet(&repo, &view, &layer, round, || {
            fs::rename(repo.at("src"), repo.at("aside")).expect("renames");
            symlink(&outside, repo.at("src")).expect("a link");
        });
        assert_eq!(fs::read_dir(&outside).expect("lists").count(), 1, "a write went through a link");
        assert_eq!(fs::read_to_string(outside.join("main.rs")).expect("reads"), "outside\n");
        match met {
            Ok(_) => {
                assert_eq!((repo.read("README.md"), repo.read("aside/main.rs")), two("the step's\n", "the step's\n"));
            }
            Err(ApplyError::Torn { .. }) => {}
            Err(_) => {
                assert_eq!((repo.read("README.md"), repo.read("aside/main.rs")), two("hello\n", "fn main() {}\n"));
            }
        }
        fs::remove_file(repo.at("src")).expect("removes");
        fs::rename(repo.at("aside"), repo.at("src")).expect("renames");
        let _ = fs::remove_file(repo.at("src/new.rs"));
        clear_stages(&repo);
    }
}

fn two(a: &str, b: &str) -> (String, String) {
    (a.to_owned(), b.to_owned())
}

/// Removes the staging directories that torn updates left.
fn clear_stages(repo: &Repo) {
    for entry in fs::read_dir(&repo.top).expect("lists").flatten() {
        if entry.file_name().to_string_lossy().starts_with(".proctor-") {
            fs::remove_dir_all(entry.path()).expect("removes");
        }
    }
}
