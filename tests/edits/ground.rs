//! Sets up the trees in which scripts run: a repository, and for each script an overlay over it or a copy of it.

use std::fs;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use proctor_core::drift::{DriftMethod, StepDrift, times_tell_of_changes};
use proctor_core::plan::ReadOnly;
use proctor_sandbox::helper::seal::Baseline;
use proctor_snapshot::{
    DriftInput, GitHelper, IgnoreQuery, LayerScan, ScanBounds, Snapshot, View, find_drift, scan_layer,
};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
};
use tempfile::TempDir;

use crate::script::{CONTENTS, DEPTH, Edit, NAMES, Script};
use crate::tree::Tree;

/// Returns what the machine lacks for a method.
const FILES: [(&str, &str); 8] = [
    ("a", CONTENTS[0]),
    ("b/a", CONTENTS[0]),
    ("b/d/a", CONTENTS[3]),
    ("d/d/d", CONTENTS[4]),
    ("b/ign/b", CONTENTS[4]),
    ("ign/old", CONTENTS[1]),
    ("ign/kept", CONTENTS[0]),
    ("c.log", CONTENTS[3]),
];
/// Ignored files that are tracked nevertheless.
const FORCED: [&str; 2] = ["ign/kept", "c.log"];
/// A tracked file that is missing from the worktree.
const MISSING: &str = "d/c.log";

/// Returns what the machine lacks for a method.
pub(crate) fn unmet(method: DriftMethod) -> Option<&'static str> {
    let is_root = rustix::process::geteuid().is_root();
    match method {
        DriftMethod::Layer if !is_root || overlay_over_nothing().is_none() => Some("root and overlay mounts"),
        DriftMethod::Stat if !on_a_disk() => Some("a disk below the temporary directory"),
        // The drift methods detect deletions by whiteouts; without whiteouts the law cannot be tested.
        DriftMethod::Stat | DriftMethod::Rehash if !whiteouts_can_be_made() => {
            Some("to make whiteouts, which a sandbox refuses")
        }
        // The sandbox crate tests whiteouts of ordinary users.
        _ => None,
    }
}

fn whiteouts_can_be_made() -> bool {
    let room = TempDir::new().expect("a temporary directory");
    mknodat(CWD, room.path().join("whiteout"), FileType::CharacterDevice, Mode::empty(), 0).is_ok()
}

fn overlay_over_nothing() -> Option<OwnedFd> {
    let (lower, room) = (TempDir::new().ok()?, TempDir::new().ok()?);
    overlay(lower.path(), room.path()).ok()
}

fn on_a_disk() -> bool {
    let kind = rustix::fs::statfs(std::env::temp_dir()).map(|stat| u64::try_from(stat.f_type).unwrap_or_default());
    kind.is_ok_and(times_tell_of_changes)
}

/// A repository with its snapshot and ignore rules.
pub(crate) struct Ground {
    method: DriftMethod,
    _room: TempDir,
    top: PathBuf,
    view: View,
    rules: IgnoreQuery,
    /// The tree before any script.
    pub(crate) before: Tree,
}

/// The result of a script.
pub(crate) struct Ran {
    /// The tree after the script.
    pub(crate) after: Tree,
    _room: TempDir,
    upper: OwnedFd,
    scan: LayerScan,
}

impl Ground {
    pub(crate) fn new(method: DriftMethod) -> Self {
        let room = TempDir::new().expect("a temporary directory");
        let top = room.path().canonicalize().expect("it is there").join("repo");
        fs::create_dir(&top).expect("creates");
        git(&top, &["init", "-q", "."]);
        FILES.iter().for_each(|(path, content)| put(&top.join(path), content));
        put(&top.join(MISSING), "missing\n");
        put(&top.join(".gitignore"), "ign/\n*.log\n");
        fs::set_permissions(top.join("b/d/a"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a mode");
        std::os::unix::fs::symlink("a", top.join("d/b")).expect("links");
        git(&top, &["add", "-A"]);
        git(&top, &[&["add", "-f", MISSING], &FORCED[..]].concat());
        git(&top, &["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"]);
        fs::remove_file(top.join(MISSING)).expect("removes");
        put(&top.join("d/d/a"), "untracked\n");
        let helper = GitHelper::new(built("proctor-git"));
        let snapshot = Snapshot::take(&top, &helper).unwrap_or_else(|error| panic!("{error}"));
        let rules = IgnoreQuery::new(helper, &top);
        // Query all paths at once, because each query starts a program.
        let all = all_paths();
        rules.ignored(&all.iter().map(String::as_bytes).collect::<Vec<_>>()).expect("answers");
        let before = Tree::read(open(&top).as_fd());
        Self { method, _room: room, top, view: View::new(Arc::new(snapshot)), rules, before }
    }

    /// Checks whether a snapshot covers an entry at `path`, by git's semantics for the ignore rules and the tree
    /// before the script.
    pub(crate) fn covers(&self, path: &str) -> bool {
        let in_ignored = path.match_indices('/').any(|(at, _)| {
            let directory = &path[..at];
            directory.ends_with(".log") || directory == "ign" || directory.ends_with("/ign")
        });
        let is_tracked = FORCED.contains(&path) || path == MISSING;
        // Git does not treat a link or file in place of a directory as ignored.
        let is_ignored = path.ends_with(".log") && !self.top.join(path).is_dir();
        is_tracked || !in_ignored && !is_ignored
    }

    /// Runs a script as a step.
    pub(crate) fn run(&self, script: &Script) -> Ran {
        let room = match self.method {
            DriftMethod::Layer if Path::new("/dev/shm").is_dir() => TempDir::new_in("/dev/shm"),
            _ => TempDir::new(),
        };
        let room = room.expect("a temporary directory");
        let (after, upper) = match self.method {
            DriftMethod::Layer => {
                let merged = overlay(&self.top, room.path()).expect("it could be mounted");
                (run(script, merged.as_fd()), open(&room.path().join("upper")))
            }
            DriftMethod::Stat | DriftMethod::Rehash => self.run_in_copy(script, room.path()),
        };
        let scan = scan_layer(upper.as_fd(), ScanBounds::default()).unwrap_or_else(|error| panic!("{error}"));
        Ran { after, _room: room, upper, scan }
    }

    fn run_in_copy(&self, script: &Script, room: &Path) -> (Tree, OwnedFd) {
        let (tree, upper) = (room.join("tree"), room.join("upper"));
        copy(&self.top, &tree);
        fs::create_dir(&upper).expect("creates");
        let (tree, upper) = (open(&tree), open(&upper));
        let baseline = Baseline::by(self.method, tree.as_fd()).expect("a look at the copy");
        let after = run(script, tree.as_fd());
        baseline.seal(tree.as_fd(), upper.as_fd()).unwrap_or_else(|error| panic!("{error}"));
        (after, upper)
    }

    pub(crate) fn drift(&self, ran: &Ran, mode: ReadOnly) -> StepDrift {
        let repo = open(&self.top);
        let (view, scan, ignored) = (&self.view, &ran.scan, &self.rules);
        let (repo, upper, lower_uppers, caches) = (repo.as_fd(), ran.upper.as_fd(), &[][..], &[][..]);
        find_drift(DriftInput { view, scan, mode, ignored, repo, upper, lower_uppers, caches })
            .unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn id_after(&self, ran: &Ran) -> String {
        self.view.apply(&ran.scan, &self.rules).unwrap_or_else(|error| panic!("{error}")).id().to_string()
    }
}

fn run(script: &[Edit], top: BorrowedFd<'_>) -> Tree {
    for edit in script {
        // A script contains only edits that succeed; failed ones have no effect.
        let _ = edit.run(top);
    }
    Tree::read(top)
}

/// Creates a detached overlay in the same way as the sandbox; its upper layer is `upper` in `room`.
fn overlay(lower: &Path, room: &Path) -> rustix::io::Result<OwnedFd> {
    for name in ["upper", "work"] {
        fs::create_dir(room.join(name)).expect("creates");
    }
    let fs = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_flag(&fs, "userxattr")?;
    fsconfig_set_string(&fs, "lowerdir", lower)?;
    fsconfig_set_string(&fs, "upperdir", room.join("upper"))?;
    fsconfig_set_string(&fs, "workdir", room.join("work"))?;
    fsconfig_create(&fs)?;
    let mount = fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    rustix::fs::openat(&mount, ".", DIRECTORY, Mode::empty())
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

fn open(path: &Path) -> OwnedFd {
    rustix::fs::open(path, DIRECTORY, Mode::empty()).expect("opens")
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).expect("creates");
    for entry in fs::read_dir(from).expect("reads").flatten() {
        let (kind, target) = (entry.file_type().expect("a kind"), to.join(entry.file_name()));
        if entry.file_name() == ".git" {
            fs::create_dir(target).expect("creates");
        } else if kind.is_dir() {
            copy(&entry.path(), &target);
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(entry.path()).expect("a link"), target).expect("links");
        } else {
            fs::copy(entry.path(), target).expect("copies");
        }
    }
}

fn put(path: &Path, content: &str) {
    fs::create_dir_all(path.parent().expect("a parent")).expect("creates");
    #[expect(clippy::disallowed_methods, reason = "the files of tests need not be written atomically")]
    fs::write(path, content).expect("writes");
}

fn all_paths() -> Vec<String> {
    let mut paths: Vec<String> = vec![String::new()];
    let mut found = Vec::new();
    for _ in 0..DEPTH + 2 {
        paths = paths.iter().flat_map(|path| NAMES.iter().map(move |name| format!("{path}{name}/"))).collect();
        found.extend(paths.iter().map(|path| path.trim_end_matches('/').to_owned()));
    }
    found
}

fn git(dir: &Path, arguments: &[&str]) {
    #[expect(clippy::disallowed_methods, reason = "the repositories of tests are made by git itself")]
    let mut command = Command::new("git");
    command.args(arguments).current_dir(dir).env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
    assert!(command.status().expect("git runs").success(), "git {arguments:?}");
}

/// Returns the path of a program from this build, which is in a directory above the test binary.
fn built(name: &str) -> PathBuf {
    let this = std::env::current_exe().expect("the path of this test binary");
    let found = this.ancestors().map(|dir| dir.join(name)).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("{name} is not next to {}: run `make test`", this.display()))
}
