//! Creates real repositories in temporary directories with the `git` program, and layers for them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use proctor_core::decision::input_filter::{InputFilter, InputRules};
use proctor_core::model::drift::{ChangeKind, StepDrift};
use proctor_core::model::plan::{ReadOnly, RelPath};
use proctor_git::helper::{GitHelper, IgnoreQuery};
use proctor_snapshot::{
    DriftInput, LayerScan, ScanBounds, ScanError, Snapshot, SnapshotError, TreeView, WithheldContent, find_drift,
    keep_withheld, scan_layer,
};
use tempfile::TempDir;

/// Runs `git` in `dir`, isolated from the config of the machine and the user.
fn run_git(dir: &Path, args: &[&str]) -> Output {
    git_command(dir, args).output().expect("git runs")
}

/// Returns the output of git in `dir`, or nothing if it failed.
pub(crate) fn git_output(dir: &Path, args: &[&str]) -> Vec<u8> {
    let output = run_git(dir, args);
    if output.status.success() { output.stdout } else { Vec::new() }
}

fn git_command(dir: &Path, args: &[&str]) -> Command {
    #[expect(clippy::disallowed_methods, reason = "the repositories of tests are made by git itself")]
    let mut command = Command::new("git");
    command.args(["-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main"]).args(args).current_dir(dir);
    for (name, value) in [
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_AUTHOR_NAME", "a"),
        ("GIT_AUTHOR_EMAIL", "a@example.org"),
        ("GIT_COMMITTER_NAME", "c"),
        ("GIT_COMMITTER_EMAIL", "c@example.org"),
    ] {
        command.env(name, value);
    }
    command
}

/// Runs a program in `dir`.
pub(crate) fn run_program(dir: &Path, program: &str, args: &[&str]) -> Output {
    #[expect(clippy::disallowed_methods, reason = "tests use the machine's shell, unshare and mount")]
    let mut command = Command::new(program);
    command.args(args).current_dir(dir).output().expect("the program runs")
}

/// Checks whether this machine has Python.
pub(crate) fn has_python() -> bool {
    run_program(Path::new("/"), "sh", &["-c", "command -v python3"]).status.success()
}

/// Checks whether a git command succeeds on this machine, in a temporary directory.
pub(crate) fn git_supports(args: &[&str]) -> bool {
    let dir = TempDir::new().expect("a temporary directory");
    run_git(dir.path(), args).status.success()
}

/// Checks whether whiteouts can be created, by trying it. A sandbox forbids creating devices, even to root.
pub(crate) fn can_make_whiteouts() -> bool {
    let dir = TempDir::new().expect("a temporary directory");
    whiteout(&dir.path().join("whiteout")).is_ok()
}

/// Checks whether the owner of files can be changed, by trying it. The root user of a sandbox has no other user
/// ids.
pub(crate) fn can_change_owner() -> bool {
    let dir = TempDir::new().expect("a temporary directory");
    std::os::unix::fs::chown(dir.path(), Some(4242), Some(4343)).is_ok()
}

/// Returns the helper that cargo built with this test.
pub(crate) fn helper() -> GitHelper {
    GitHelper::new(env!("CARGO_BIN_EXE_proctor-git"))
}

/// A repository, with space for other files next to it.
pub(crate) struct FixtureRepo {
    /// The directory that contains `repo` and other files of a test.
    pub(crate) dir: TempDir,
    /// The top of the work tree.
    pub(crate) top: PathBuf,
}

impl FixtureRepo {
    /// Creates an empty repository.
    pub(crate) fn empty() -> Self {
        Self::with_options(&[])
    }

    /// Creates an empty repository with these options of `git init`.
    pub(crate) fn with_options(options: &[&str]) -> Self {
        let room = TempDir::new().expect("a temporary directory");
        let top = room.path().canonicalize().expect("path exists").join("repo");
        fs::create_dir(&top).expect("creates");
        let repo = Self { dir: room, top };
        repo.git(&[&["init", "-q"], options, &["."]].concat());
        repo
    }

    /// Creates a repository with two committed files and rules that ignore `target/` and `*.log`.
    pub(crate) fn small() -> Self {
        let repo = Self::empty();
        repo.write("src/main.rs", "fn main() {}\n").write("README.md", "hello\n");
        repo.write(".gitignore", "target/\n*.log\n").commit();
        repo
    }

    /// Runs git in the work tree and returns its output, trimmed.
    pub(crate) fn git(&self, args: &[&str]) -> String {
        let output = run_git(&self.top, args);
        assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Runs git in the work tree and returns whether it succeeds.
    pub(crate) fn try_git(&self, args: &[&str]) -> bool {
        run_git(&self.top, args).status.success()
    }

    /// Returns the tree that git makes of the current tracked content.
    pub(crate) fn worktree_tree(&self) -> String {
        self.try_worktree_tree().unwrap_or_else(|why| panic!("{why}"))
    }

    /// Returns the same tree, or the reason why git refuses.
    pub(crate) fn try_worktree_tree(&self) -> Result<String, String> {
        git_write_tree(&self.top)
    }

    /// Checks whether a path, in human-readable form, is a fifo.
    pub(crate) fn is_special(&self, shown: &str) -> bool {
        use std::os::unix::fs::FileTypeExt as _;
        self.at(shown).symlink_metadata().is_ok_and(|found| found.file_type().is_fifo())
    }

    /// Commits everything that is not ignored.
    pub(crate) fn commit(&self) -> &Self {
        self.git(&["add", "-A"]);
        self.git(&["commit", "-qm", "x"]);
        self
    }

    /// Returns the path on disk of a path in the work tree.
    pub(crate) fn at(&self, path: impl AsRef<[u8]>) -> PathBuf {
        self.top.join(OsStr::from_bytes(path.as_ref()))
    }

    /// Writes a file of the work tree.
    pub(crate) fn write(&self, path: impl AsRef<[u8]>, content: impl AsRef<[u8]>) -> &Self {
        write_file(&self.at(path), content.as_ref());
        self
    }

    /// Returns the content of a file in the work tree.
    pub(crate) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).expect("reads")
    }

    /// Takes a snapshot.
    pub(crate) fn take(&self) -> Result<Snapshot, SnapshotError> {
        Snapshot::take(&self.top, &helper())
    }

    /// Takes a snapshot, which must succeed.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.take().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns the view without layers.
    pub(crate) fn view(&self) -> TreeView {
        TreeView::new(Arc::new(self.snapshot()))
    }

    /// Returns the ignore rules.
    pub(crate) fn rules(&self) -> IgnoreQuery {
        IgnoreQuery::new(helper(), &self.top)
    }

    /// Returns the error message of a snapshot that is refused.
    pub(crate) fn refusal(&self) -> String {
        self.take().expect_err("must be refused").to_string()
    }

    /// Returns the drift of one layer on the tree.
    pub(crate) fn drift(&self, layer: &FixtureLayer, mode: ReadOnly) -> StepDrift {
        self.drift_on(&self.view(), layer, &[], mode)
    }

    /// Returns the drift of one layer on top of others.
    pub(crate) fn drift_on(
        &self,
        view: &TreeView,
        layer: &FixtureLayer,
        below: &[&FixtureLayer],
        mode: ReadOnly,
    ) -> StepDrift {
        self.find_drift_of(view, layer, &layer.scan(), below, mode)
    }

    /// Returns the drift of one layer on the tree, computed from a given scan.
    pub(crate) fn drift_from_scan(&self, layer: &FixtureLayer, scan: &LayerScan, mode: ReadOnly) -> StepDrift {
        self.find_drift_of(&self.view(), layer, scan, &[], mode)
    }

    /// Returns the scan of the layer of a step that saw only the files that match `glob`.
    pub(crate) fn scan_with_inputs(
        &self,
        layer: &FixtureLayer,
        below: &[&FixtureLayer],
        glob: &str,
    ) -> Result<LayerScan, ScanError> {
        let path = |text| RelPath::new(text).expect("a path");
        let rules = InputRules { globs: vec![glob.to_owned()], shown: vec![path("cache")], workdir: path(".") };
        let (inputs, mut scan) = (InputFilter::new(&rules).expect("a glob"), layer.scan());
        let view = below
            .iter()
            .fold(self.view(), |view, layer| view.with_layer(&layer.scan(), &self.rules()).expect("ignore rules"));
        let (top, upper) = (open(&self.top), layer.open());
        let below: Vec<OwnedFd> = below.iter().map(|layer| layer.open()).collect();
        let below: Vec<BorrowedFd<'_>> = below.iter().map(|fd| fd.as_fd()).collect();
        let (repo, upper) = (top.as_fd(), upper.as_fd());
        keep_withheld(&mut scan, WithheldContent { inputs: &inputs, view: &view, repo, upper, lower_uppers: &below })?;
        Ok(scan)
    }

    fn find_drift_of(
        &self,
        view: &TreeView,
        layer: &FixtureLayer,
        scan: &LayerScan,
        below: &[&FixtureLayer],
        mode: ReadOnly,
    ) -> StepDrift {
        let (top, upper) = (open(&self.top), layer.open());
        let below: Vec<OwnedFd> = below.iter().map(|layer| layer.open()).collect();
        let below: Vec<BorrowedFd<'_>> = below.iter().map(|fd| fd.as_fd()).collect();
        let caches = [RelPath::new("cache").expect("a path")];
        let ignored = self.rules();
        find_drift(DriftInput {
            view,
            scan,
            mode,
            ignored: &ignored,
            repo: top.as_fd(),
            upper: upper.as_fd(),
            lower_uppers: &below,
            caches: &caches,
        })
        .unwrap_or_else(|error| panic!("{error}"))
    }
}

/// Runs `git add -u` and `git write-tree` on a copy of the index with the same modification time, and with a
/// temporary object directory. Flags that hide changes are cleared. Paths that a sparse checkout omitted are kept
/// while they are missing.
pub(crate) fn git_write_tree(top: &Path) -> Result<String, String> {
    let room = TempDir::new().expect("a temporary directory");
    let git_dir = PathBuf::from(git_word(top, &["rev-parse", "--absolute-git-dir"]));
    let (index, paths) = (room.path().join("index"), room.path().join("paths"));
    if git_dir.join("index").exists() {
        let written = fs::metadata(git_dir.join("index")).and_then(|found| found.modified()).expect("a time");
        fs::copy(git_dir.join("index"), &index).expect("copies");
        fs::File::options().write(true).open(&index).and_then(|file| file.set_modified(written)).expect("sets");
    }
    let objects = top.join(git_word(top, &["rev-parse", "--git-path", "objects"]));
    let run = |args: &[&str]| {
        let mut command = git_command(top, args);
        command.env("GIT_INDEX_FILE", &index).env("GIT_OBJECT_DIRECTORY", room.path());
        command.env("GIT_ALTERNATE_OBJECT_DIRECTORIES", &objects);
        let output = command.output().expect("git runs");
        let complaint = || format!("git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        if output.status.success() { Ok(output.stdout.clone()) } else { Err(complaint()) }
    };
    let flagged = run(&["ls-files", "-v", "-z"])?;
    let clear = |flag: &str, hidden: &dyn Fn(u8, &[u8]) -> bool| {
        let lines = flagged.split(|b| *b == 0).filter(|line| line.len() > 2 && hidden(line[0], &line[2..]));
        write_file(&paths, &lines.flat_map(|line| [&line[2..], b"\0"].concat()).collect::<Vec<_>>());
        let script = format!("alias.clear=!git update-index -z {flag} --stdin < '{}'", paths.display());
        if fs::metadata(&paths).expect("there").len() > 0 { run(&["-c", &script, "clear"]).map(drop) } else { Ok(()) }
    };
    clear("--no-assume-unchanged", &|tag, _| tag.is_ascii_lowercase())?;
    clear("--no-skip-worktree", &|tag, path| {
        tag.eq_ignore_ascii_case(&b's') && top.join(OsStr::from_bytes(path)).symlink_metadata().is_ok()
    })?;
    run(&["-c", "core.safecrlf=false", "add", "--sparse", "-u"])?;
    Ok(String::from_utf8_lossy(&run(&["write-tree"])?).trim().to_owned())
}

/// Returns git's output in `dir`, trimmed; empty if git fails.
pub(crate) fn git_word(dir: &Path, args: &[&str]) -> String {
    String::from_utf8_lossy(&git_output(dir, args)).trim().to_owned()
}

/// An upper directory that the test writes in the form that the kernel uses.
pub(crate) struct FixtureLayer {
    dir: TempDir,
    upper: &'static str,
}

impl FixtureLayer {
    /// Creates a layer without entries.
    pub(crate) fn new() -> Self {
        Self { dir: TempDir::new().expect("a temporary directory"), upper: "" }
    }

    /// Returns the layer that the kernel writes when a shell runs `script` in an overlay of `lowers`, newest first.
    /// Returns `None` if the overlay cannot be mounted or the script fails.
    pub(crate) fn from_script(lowers: &[&Path], script: &str) -> Option<Self> {
        let room = TempDir::new().expect("a temporary directory");
        for name in ["upper", "work", "merged"] {
            fs::create_dir(room.path().join(name)).expect("creates");
        }
        let lowers: Vec<_> = lowers.iter().map(|path| path.display().to_string()).collect();
        let options = format!("userxattr,lowerdir={},upperdir=upper,workdir=work", lowers.join(":"));
        let whole = format!("mount -t overlay overlay -o '{options}' merged && cd merged && {{ {script}\n}}");
        let ran = run_program(room.path(), "unshare", &["-m", "sh", "-ec", &whole]);
        ran.status.success().then_some(Self { dir: room, upper: "upper" })
    }

    /// Returns the upper directory.
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join(self.upper)
    }

    /// Returns the path on disk of a path in the layer.
    pub(crate) fn at(&self, path: impl AsRef<[u8]>) -> PathBuf {
        self.path().join(OsStr::from_bytes(path.as_ref()))
    }

    /// Writes a file.
    pub(crate) fn write(&self, path: impl AsRef<[u8]>, content: impl AsRef<[u8]>) -> &Self {
        write_file(&self.at(path), content.as_ref());
        self
    }

    /// Creates a directory.
    pub(crate) fn mkdir(&self, path: &str) -> &Self {
        fs::create_dir_all(self.at(path)).expect("creates");
        self
    }

    /// Creates an opaque directory.
    pub(crate) fn opaque(&self, path: &str) -> &Self {
        self.mkdir(path).xattr(path, "user.overlay.opaque", "y")
    }

    /// Sets an extended attribute.
    pub(crate) fn xattr(&self, path: &str, name: &str, value: &str) -> &Self {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(self.at(path), name, value.as_bytes(), flags).expect("sets");
        self
    }

    /// Creates a symbolic link.
    pub(crate) fn link(&self, path: &str, target: &str) -> &Self {
        fs::create_dir_all(self.at(path).parent().expect("a parent")).expect("creates");
        symlink(target, self.at(path)).expect("links");
        self
    }

    /// Creates a whiteout, which requires root before Linux 5.8.
    pub(crate) fn whiteout(&self, path: &str) -> &Self {
        fs::create_dir_all(self.at(path).parent().expect("a parent")).expect("creates");
        whiteout(&self.at(path)).expect("makes a device");
        self
    }

    /// Creates a fifo.
    pub(crate) fn fifo(&self, path: &str) -> &Self {
        fifo(&self.at(path));
        self
    }

    /// Sets the mode of a file.
    pub(crate) fn chmod(&self, path: &str, mode: u32) -> &Self {
        chmod(&self.at(path), mode);
        self
    }

    /// Opens the upper directory.
    pub(crate) fn open(&self) -> OwnedFd {
        open(&self.path())
    }

    /// Scans the layer with the default bounds.
    pub(crate) fn scan(&self) -> LayerScan {
        scan_layer(self.open().as_fd(), ScanBounds::default()).unwrap_or_else(|error| panic!("{error}"))
    }
}

/// Writes a file and creates its parent directories.
pub(crate) fn write_file(path: &Path, content: &[u8]) {
    fs::create_dir_all(path.parent().expect("a parent")).expect("creates");
    #[expect(clippy::disallowed_methods, reason = "the files of tests need not be written atomically")]
    fs::write(path, content).expect("writes");
}

fn whiteout(path: &Path) -> rustix::io::Result<()> {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::CharacterDevice, Mode::empty(), 0)
}

/// Creates a fifo.
pub(crate) fn fifo(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    fs::create_dir_all(path.parent().expect("a parent")).expect("creates");
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("makes a fifo");
}

/// Sets the mode of a file.
pub(crate) fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("changes the mode");
}

/// Opens a directory.
pub(crate) fn open(path: &Path) -> OwnedFd {
    OwnedFd::from(fs::File::open(path).expect("opens"))
}

/// Returns the paths and kinds of the changes.
pub(crate) fn kinds(drift: &StepDrift) -> BTreeMap<&str, ChangeKind> {
    drift.changes.iter().map(|change| (change.path.as_str(), change.kind)).collect()
}
