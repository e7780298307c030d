//! Tests repositories in typical locations of real machines.

use std::path::Path;

use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::machine;
use crate::needs::{CaseDefinition, NEEDS_GIT, Needs, case};
use crate::test_spec::{TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("repository_locations::in_the_home_directory", in_home_directory).needs(NEEDS_GIT),
    case("", in_home_directory).needs(NEEDS_GIT).unprivileged("repository_locations::in_the_home_directory_as_a_user"),
    case("repository_locations::through_a_symbolic_link", through_symbolic_link),
    case("repository_locations::as_a_submodule", as_submodule).needs(NEEDS_GIT),
    case("repository_locations::as_a_shared_clone", shared_clone).needs(NEEDS_GIT),
    case("repository_locations::as_a_shallow_clone", shallow_clone).needs(NEEDS_GIT),
    case("repository_locations::on_a_tmpfs", on_tmpfs),
    case("repository_locations::on_btrfs", on_btrfs).needs(&[
        Needs::Root,
        Needs::Sandbox,
        needs_loop_mount("btrfs"),
        Needs::Program("filefrag"),
    ]),
    case("repository_locations::on_xfs", on_xfs).needs(&[
        Needs::Root,
        Needs::Sandbox,
        needs_loop_mount("xfs"),
        Needs::Program("filefrag"),
    ]),
    case("repository_locations::with_files_readable_only_by_their_owner", files_readable_only_by_owner),
    case("", files_readable_only_by_owner)
        .unprivileged("repository_locations::with_files_readable_only_by_their_owner_as_a_user"),
    case("repository_locations::state_directory_below_one_that_only_root_can_search", state_below_closed_directory)
        .needs(&[Needs::Sandbox, Needs::Root]),
    case("repository_locations::beside_another_repository", beside_another_repository),
];

/// Checks that git works and that the tree is complete, and makes an edit that must be detected.
const GIT_CHECK_SCRIPT: &str =
    "git log --oneline --format=%s && git status --porcelain && cat src/lib.rs && echo x >> README.md";

fn assert_drift_is_detected(repo: &Repo<'_>) {
    repo.run().exits(3).prints(&["README.md"]);
    let text = repo.step("it")["stdout_preview"].as_str().expect("text").to_owned();
    assert!(text.starts_with("a commit of a test\n") && text.contains("pub fn one"), "{text}");
    assert!(!text.contains(" M ") && !text.contains("?? "), "git reports changes in an unchanged tree: {text}");
}

fn in_home_directory(env: &TestEnvironment) {
    let repo = env.repo_at("home/src/project", &TestSpec::from_script(GIT_CHECK_SCRIPT));
    assert_drift_is_detected(&repo);
    let look = env.repo_at("home/src/look", &TestSpec::from_script("cat ~/secret.txt && exit 1; ls ~/src; exit 0"));
    look.run().exits(0);
    assert_eq!(look.step("it")["stdout_preview"], "look\n");
}

fn through_symbolic_link(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("pwd -P"));
    let link = env.root().join("link");
    std::os::unix::fs::symlink(repo.path(), &link).expect("a link of the test");
    let linked = Repo::at(env, link);
    linked.run().exits(0);
    assert_eq!(repo.step("it")["stdout_preview"], format!("{}\n", repo.path().display()));
}

fn as_submodule(env: &TestEnvironment) {
    let source = env.repo_at("source", &TestSpec::from_script(GIT_CHECK_SCRIPT));
    let outer = env.repo(&TestSpec::from_script("true"));
    let url = source.path().to_str().expect("UTF-8").to_owned();
    outer.git(&["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", &url, "sub"]);
    assert_drift_is_detected(&Repo::at(env, outer.file("sub")));
    assert!(outer.has_no_documents());
}

fn clone_of_source(env: &TestEnvironment, options: &[&str]) -> std::path::PathBuf {
    let source = env.repo_at("elsewhere/source", &TestSpec::from_script(GIT_CHECK_SCRIPT));
    let path = env.root().join("clone");
    let url = format!("file://{}", source.path().display());
    let from = if options.contains(&"--shared") { source.path().to_str().expect("UTF-8") } else { &url };
    source.git(&[&["clone", "--quiet"], options, &[from, path.to_str().expect("UTF-8")]].concat());
    path
}

/// The objects of the clone are in another repository, which a step must not see.
fn shared_clone(env: &TestEnvironment) {
    let repo = Repo::at(env, clone_of_source(env, &["--shared"]));
    let run = repo.run().exits(5).prints_to_stderr(&["error[", "elsewhere/source/.git/objects", "hint:"]);
    assert!(run.stdout.is_empty() && repo.has_no_documents(), "{run}");
    repo.git(&["repack", "-a", "-d", "--quiet"]);
    std::fs::remove_file(repo.file(".git/objects/info/alternates")).expect("it was there");
    assert_drift_is_detected(&repo);
}

fn shallow_clone(env: &TestEnvironment) {
    assert_drift_is_detected(&Repo::at(env, clone_of_source(env, &["--depth", "1"])));
}

fn on_tmpfs(env: &TestEnvironment) {
    let dir = tempfile::Builder::new().prefix("proctor-test-").tempdir_in("/dev/shm").expect("a directory on a tmpfs");
    let made = env.repo(&TestSpec::from_script("echo x >> README.md"));
    let path = dir.path().join("repo");
    let mut command = machine::command("cp");
    command.args([Path::new("-a"), made.path(), &path]);
    assert_eq!(crate::process::RunningProcess::start(command).wait().code, Some(0));
    Repo::at(env, path).run().exits(3).prints(&["README.md"]);
}

/// Requires a loop-mounted file system of this kind.
const fn needs_loop_mount(kind: &'static str) -> Needs {
    match kind.as_bytes() {
        b"btrfs" => Needs::WorkingCommand(&[
            "sh",
            "-c",
            "command -v mkfs.btrfs && grep -q btrfs /proc/filesystems && losetup -f",
        ]),
        _ => Needs::WorkingCommand(&["sh", "-c", "command -v mkfs.xfs && grep -q xfs /proc/filesystems && losetup -f"]),
    }
}

/// A file system in a file, mounted until it is dropped.
struct LoopMount(std::path::PathBuf);

impl LoopMount {
    fn create(env: &TestEnvironment, mkfs: &[&str]) -> Self {
        let (disk, at) = (env.root().join("disk"), env.root().join("mounted"));
        run_command(&["truncate", "--size=512M"], &[&disk]);
        std::fs::create_dir(&at).expect("a directory of the test");
        run_command(mkfs, &[&disk]);
        run_command(&["mount", "-o", "loop"], &[&disk, &at]);
        Self(at)
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        run_command(&["umount"], &[&self.0]);
    }
}

fn run_command(words: &[&str], paths: &[&Path]) -> String {
    let mut command = machine::command(words[0]);
    command.args(&words[1..]).args(paths);
    crate::process::RunningProcess::start(command).wait().exits(0).stdout
}

fn on_btrfs(env: &TestEnvironment) {
    assert_copy_shares_blocks(env, &["mkfs.btrfs", "--quiet"]);
}

fn on_xfs(env: &TestEnvironment) {
    assert_copy_shares_blocks(env, &["mkfs.xfs", "-q", "-m", "reflink=1"]);
}

/// If the worktree and the state directory are on one file system that can clone files, a private copy shares their
/// blocks, and an edit of the original does not change the copy.
fn assert_copy_shares_blocks(env: &TestEnvironment, mkfs: &[&str]) {
    let mounted = LoopMount::create(env, mkfs);
    let made = env.repo(&TestSpec::from_script("grep -c first large"));
    let (path, state) = (mounted.0.join("repo"), mounted.0.join("state"));
    run_command(&["cp", "-a"], &[made.path(), &path]);
    let repo = Repo::at(env, path);
    let large = |word: &str| format!("{word}\n{}", "x".repeat(1 << 20));
    repo.write("large", large("first"));
    let verify = || {
        let mut command = env.command(repo.path());
        command.args(["run", "--state-dir"]).arg(&state);
        crate::process::RunningProcess::start(command).wait()
    };
    verify().exits(0);
    let copy = run_command(&["find"], &[&state.join("mirrors")]);
    let copy = copy.lines().find(|line| line.ends_with("/tree/large")).expect("a private copy").to_owned();
    let extents = run_command(&["filefrag", "-v"], &[Path::new(&copy)]);
    assert!(extents.contains("shared"), "{extents}");
    repo.write("large", large("second"));
    verify().exits(1);
    repo.write("large", large("first"));
    verify().exits(0);
}

fn files_readable_only_by_owner(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("cat README.md private/file && echo x >> private/file"));
    repo.write("private/file", "private\n");
    repo.commit();
    let private = |path: &str, mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(repo.file(path), mode).expect("a mode");
    };
    private("private/file", 0o600);
    private("private", 0o700);
    private("README.md", 0o400);
    private("", 0o700);
    repo.run().exits(3).prints(&["private/file"]);
}

fn beside_another_repository(env: &TestEnvironment) {
    let other = env.repo_at("work/other", &TestSpec::from_script("true"));
    let script = format!("ls -A ..; cat ../other/README.md {} && exit 1; exit 0", other.file("README.md").display());
    let repo = env.repo_at("work/this", &TestSpec::from_script(&script));
    repo.run().exits(0);
    assert_eq!(repo.step("it")["stdout_preview"], "this\n");
}

/// The private copy has an owner of its own, and that owner cannot reach the copy by its path.
fn state_below_closed_directory(env: &TestEnvironment) {
    let closed = env.root().join("closed");
    let mode = rustix::fs::Mode::from_raw_mode;
    rustix::fs::mkdir(&closed, mode(0o700)).expect("creates");
    let state = closed.join("deep/state");
    rustix::fs::mkdir(closed.join("deep"), mode(0o755)).expect("creates");
    let steps = [
        TestStep::sh("leave", "mkdir -p target/x; echo built > target/x/y; echo log > new.log"),
        TestStep::sh("use", "cat target/x/y new.log; git status --porcelain"),
    ];
    let repo = env.repo(&TestSpec::from_steps(steps));
    repo.write(".gitignore", "target\n*.log\n");
    repo.commit();
    let run = ["--color", "never", "run", "--profile", "pr", "--changeset", CHANGESET, "--no-daemon", "--state-dir"];
    let run = [&run[..], &[state.to_str().expect("UTF-8")]].concat();
    for arguments in [&[][..], &["--rev", "HEAD"]] {
        repo.proctor(&[&run[..], arguments].concat()).exits(0);
        assert_eq!(repo.step("use")["stdout_preview"], "built\nlog\n", "{arguments:?}");
    }
    repo.write("tracked.txt", "untracked, and not ignored\n");
    repo.proctor(&run).exits(0);
    assert_eq!(repo.step("use")["stdout_preview"], "built\nlog\n?? tracked.txt\n");
}
