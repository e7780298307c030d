//! Sets up the trees in which scripts run: a repository, and for each script an overlay over it or a copy of it.

use std::fs;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use proctor_core::model::drift::{DriftMethod, StepDrift, ctime_detects_all_changes};
use proctor_core::model::plan::ReadOnly;
use proctor_git::helper::{GitHelper, IgnoreQuery};
use proctor_sandbox::helper::copy_changes::CopyBaseline;
use proctor_snapshot::{DriftInput, LayerScan, ScanBounds, Snapshot, TreeView, find_drift, scan_layer};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
};
use tempfile::TempDir;

use crate::script::{CONTENTS, EditScript, MAX_DEPTH, PATH_NAMES, TreeEdit};
use crate::tree::TreeListing;

/// Returns what the machine lacks for a method.
const INITIAL_FILES: [(&str, &str); 8] = [
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
const TRACKED_IGNORED_FILES: [&str; 2] = ["ign/kept", "c.log"];
/// A tracked file that is missing from the worktree.
const MISSING_FILE: &str = "d/c.log";

/// Returns what the machine lacks for a method.
pub(crate) fn missing_requirement(method: DriftMethod) -> Option<&'static str> {
    let is_root = rustix::process::geteuid().is_root();
    match method {
        DriftMethod::Layer if !is_root || mount_empty_overlay().is_none() => Some("root and overlay mounts"),
        DriftMethod::Stat if !is_temp_dir_on_disk() => Some("a disk below the temporary directory"),
        // The drift methods detect deletions by whiteouts; without whiteouts the law cannot be tested.
        DriftMethod::Stat | DriftMethod::Rehash if !can_create_whiteouts() => {
            Some("to make whiteouts, which a sandbox refuses")
        }
        // The sandbox crate tests whiteouts of ordinary users.
        _ => None,
    }
}

fn can_create_whiteouts() -> bool {
    let temp_dir = TempDir::new().expect("a temporary directory");
    mknodat(CWD, temp_dir.path().join("whiteout"), FileType::CharacterDevice, Mode::empty(), 0).is_ok()
}

fn mount_empty_overlay() -> Option<OwnedFd> {
    let (lower, upper_parent) = (TempDir::new().ok()?, TempDir::new().ok()?);
    mount_overlay(lower.path(), upper_parent.path()).ok()
}

fn is_temp_dir_on_disk() -> bool {
    let kind = rustix::fs::statfs(std::env::temp_dir()).map(|stat| u64::try_from(stat.f_type).unwrap_or_default());
    kind.is_ok_and(ctime_detects_all_changes)
}

/// A repository with its snapshot and ignore rules.
pub(crate) struct DriftFixture {
    method: DriftMethod,
    _temp_dir: TempDir,
    repo_dir: PathBuf,
    view: TreeView,
    ignore_rules: IgnoreQuery,
    /// The tree before any script.
    pub(crate) before: TreeListing,
}

/// The result of a script.
pub(crate) struct ScriptRun {
    /// The tree after the script.
    pub(crate) after: TreeListing,
    _temp_dir: TempDir,
    upper: OwnedFd,
    scan: LayerScan,
}

impl DriftFixture {
    pub(crate) fn new(method: DriftMethod) -> Self {
        let temp_dir = TempDir::new().expect("a temporary directory");
        let repo_dir = temp_dir.path().canonicalize().expect("it is there").join("repo");
        fs::create_dir(&repo_dir).expect("creates");
        run_git(&repo_dir, &["init", "-q", "."]);
        INITIAL_FILES.iter().for_each(|(path, content)| write_file(&repo_dir.join(path), content));
        write_file(&repo_dir.join(MISSING_FILE), "missing\n");
        write_file(&repo_dir.join(".gitignore"), "ign/\n*.log\n");
        fs::set_permissions(repo_dir.join("b/d/a"), std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .expect("a mode");
        std::os::unix::fs::symlink("a", repo_dir.join("d/b")).expect("links");
        run_git(&repo_dir, &["add", "-A"]);
        run_git(&repo_dir, &[&["add", "-f", MISSING_FILE], &TRACKED_IGNORED_FILES[..]].concat());
        run_git(&repo_dir, &["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"]);
        fs::remove_file(repo_dir.join(MISSING_FILE)).expect("removes");
        write_file(&repo_dir.join("d/d/a"), "untracked\n");
        let helper = GitHelper::new(built_program("proctor-git"));
        let snapshot = Snapshot::take(&repo_dir, &helper).unwrap_or_else(|error| panic!("{error}"));
        let rules = IgnoreQuery::new(helper, &repo_dir);
        // Query all paths at once, because each query starts a program.
        let all = all_paths();
        rules.are_ignored(&all.iter().map(String::as_bytes).collect::<Vec<_>>()).expect("answers");
        let before = TreeListing::read(open_dir(&repo_dir).as_fd());
        Self {
            method,
            _temp_dir: temp_dir,
            repo_dir,
            view: TreeView::new(Arc::new(snapshot)),
            ignore_rules: rules,
            before,
        }
    }

    /// Checks whether a snapshot covers an entry at `path`, by git's semantics for the ignore rules and the tree
    /// before the script.
    pub(crate) fn covers(&self, path: &str) -> bool {
        let in_ignored = path.match_indices('/').any(|(at, _)| {
            let directory = &path[..at];
            directory.ends_with(".log") || directory == "ign" || directory.ends_with("/ign")
        });
        let is_tracked = TRACKED_IGNORED_FILES.contains(&path) || path == MISSING_FILE;
        // Git does not treat a link or file in place of a directory as ignored.
        let is_ignored = path.ends_with(".log") && !self.repo_dir.join(path).is_dir();
        is_tracked || !in_ignored && !is_ignored
    }

    /// Runs a script as a step.
    pub(crate) fn run_script(&self, script: &EditScript) -> ScriptRun {
        let temp_dir = match self.method {
            DriftMethod::Layer if Path::new("/dev/shm").is_dir() => TempDir::new_in("/dev/shm"),
            _ => TempDir::new(),
        };
        let temp_dir = temp_dir.expect("a temporary directory");
        let (after, upper) = match self.method {
            DriftMethod::Layer => {
                let merged = mount_overlay(&self.repo_dir, temp_dir.path()).expect("it could be mounted");
                (apply_edits(script, merged.as_fd()), open_dir(&temp_dir.path().join("upper")))
            }
            DriftMethod::Stat | DriftMethod::Rehash => self.run_in_copy(script, temp_dir.path()),
        };
        let scan = scan_layer(upper.as_fd(), ScanBounds::default()).unwrap_or_else(|error| panic!("{error}"));
        ScriptRun { after, _temp_dir: temp_dir, upper, scan }
    }

    fn run_in_copy(&self, script: &EditScript, temp_dir: &Path) -> (TreeListing, OwnedFd) {
        let (tree, upper) = (temp_dir.join("tree"), temp_dir.join("upper"));
        copy_tree(&self.repo_dir, &tree);
        fs::create_dir(&upper).expect("creates");
        let (tree, upper) = (open_dir(&tree), open_dir(&upper));
        let baseline = CopyBaseline::record_with(self.method, tree.as_fd()).expect("a look at the copy");
        let after = apply_edits(script, tree.as_fd());
        baseline.seal(tree.as_fd(), upper.as_fd()).unwrap_or_else(|error| panic!("{error}"));
        (after, upper)
    }

    pub(crate) fn detect_drift(&self, script_run: &ScriptRun, mode: ReadOnly) -> StepDrift {
        let repo = open_dir(&self.repo_dir);
        let (view, scan, ignored) = (&self.view, &script_run.scan, &self.ignore_rules);
        let (repo, upper, lower_uppers, caches) = (repo.as_fd(), script_run.upper.as_fd(), &[][..], &[][..]);
        find_drift(DriftInput { view, scan, mode, ignored, repo, upper, lower_uppers, caches })
            .unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn identity_after(&self, script_run: &ScriptRun) -> String {
        self.view
            .with_layer(&script_run.scan, &self.ignore_rules)
            .unwrap_or_else(|error| panic!("{error}"))
            .id()
            .to_string()
    }
}

fn apply_edits(script: &[TreeEdit], top: BorrowedFd<'_>) -> TreeListing {
    for edit in script {
        // A script contains only edits that succeed; failed ones have no effect.
        let _ = edit.apply(top);
    }
    TreeListing::read(top)
}

/// Creates a detached overlay in the same way as the sandbox; its upper layer is `upper` in `room`.
fn mount_overlay(lower: &Path, upper_parent: &Path) -> rustix::io::Result<OwnedFd> {
    for name in ["upper", "work"] {
        fs::create_dir(upper_parent.join(name)).expect("creates");
    }
    let fs = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_flag(&fs, "userxattr")?;
    fsconfig_set_string(&fs, "lowerdir", lower)?;
    fsconfig_set_string(&fs, "upperdir", upper_parent.join("upper"))?;
    fsconfig_set_string(&fs, "workdir", upper_parent.join("work"))?;
    fsconfig_create(&fs)?;
    let mount = fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    rustix::fs::openat(&mount, ".", OPEN_DIRECTORY_FLAGS, Mode::empty())
}

const OPEN_DIRECTORY_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

fn open_dir(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OPEN_DIRECTORY_FLAGS, Mode::empty()).expect("opens")
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir(to).expect("creates");
    for entry in fs::read_dir(from).expect("reads").flatten() {
        let (kind, target) = (entry.file_type().expect("a kind"), to.join(entry.file_name()));
        if entry.file_name() == ".git" {
            fs::create_dir(target).expect("creates");
        } else if kind.is_dir() {
            copy_tree(&entry.path(), &target);
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(entry.path()).expect("a link"), target).expect("links");
        } else {
            fs::copy(entry.path(), target).expect("copies");
        }
    }
}

fn write_file(path: &Path, content: &str) {
    fs::create_dir_all(path.parent().expect("a parent")).expect("creates");
    #[expect(clippy::disallowed_methods, reason = "the files of tests need not be written atomically")]
    fs::write(path, content).expect("writes");
}

fn all_paths() -> Vec<String> {
    let mut paths: Vec<String> = vec![String::new()];
    let mut found = Vec::new();
    for _ in 0..MAX_DEPTH + 2 {
        paths = paths.iter().flat_map(|path| PATH_NAMES.iter().map(move |name| format!("{path}{name}/"))).collect();
        found.extend(paths.iter().map(|path| path.trim_end_matches('/').to_owned()));
    }
    found
}

fn run_git(dir: &Path, arguments: &[&str]) {
    #[expect(clippy::disallowed_methods, reason = "the repositories of tests are made by git itself")]
    let mut command = Command::new("git");
    command.args(arguments).current_dir(dir).env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
    assert!(command.status().expect("git runs").success(), "git {arguments:?}");
}

/// Returns the path of a program from this build, which is in a directory above the test binary.
fn built_program(name: &str) -> PathBuf {
    let this = std::env::current_exe().expect("the path of this test binary");
    let found = this.ancestors().map(|dir| dir.join(name)).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("{name} is not next to {}: run `make test`", this.display()))
}
