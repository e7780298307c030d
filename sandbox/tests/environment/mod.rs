//! Provides a separate repository, home and state directory for each test, and the roles in which tests run.
#![expect(clippy::disallowed_methods, reason = "trials build their world with plain files and processes")]

mod processes;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use nix::sched::CloneFlags;
use proctor_core::model::enforcement::{Control, Enforcement, Tolerated};
use proctor_core::model::outcome::LimitKind;
use proctor_core::model::plan::{Argv, Leaks, Limit, Limits, Network, RelPath};
use proctor_core::model::trace::NoTrace;
use proctor_sandbox::{
    CacheMount, EventPoll, FileBatches, GitDirs, Host, HostConfig, Launcher, Layer, Policy, RepoFacts, RunSpace,
    RunSpaceConfig, RunningSandbox, SandboxEvent, SandboxReuse, Sealed, ToolMount, ViewTrace, WaitStatus,
};
use rustix::event::{PollFd, PollFlags};

pub(crate) use processes::{children, process_pidfds, process_statuses, wait_for_no_children};

/// The ordinary user of the tests; it need not exist.
const USER: u32 = 1001;
/// Timeout for every wait.
const DEADLINE: Duration = Duration::from_secs(30);

/// The user who runs a test, and the owner of the repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UserRole {
    /// Root, over root's repository: owners are mapped.
    RootOwn,
    /// Root, over an ordinary user's repository.
    RootForeign,
    /// An ordinary user, over their own repository.
    User,
    /// An ordinary user over their own repository, if the kernel refuses namespaces.
    Plain,
    /// Root over root's repository, if the kernel refuses namespaces.
    PlainRootOwn,
    /// Root over an ordinary user's repository, if the kernel refuses namespaces.
    PlainRootForeign,
}

/// All roles.
const ROLES: [UserRole; 6] = [
    UserRole::RootOwn,
    UserRole::RootForeign,
    UserRole::User,
    UserRole::Plain,
    UserRole::PlainRootOwn,
    UserRole::PlainRootForeign,
];

/// The reasons why tests of a role cannot run.
#[derive(Debug, Default)]
pub(crate) struct SkipReasons {
    /// The reason why none of them can run.
    reason: Option<String>,
    /// The controls that a sandbox of this role does not claim to enforce.
    controls: BTreeSet<Control>,
}

impl SkipReasons {
    /// Returns the reason for a machine that lacks this program.
    pub(crate) fn for_missing_program(program: &str) -> Self {
        Self { reason: Some(format!("needs {program}")), ..Self::default() }
    }
}

impl UserRole {
    fn name(self) -> &'static str {
        match self {
            Self::RootOwn => "root_own",
            Self::RootForeign => "root_foreign",
            Self::User => "user",
            Self::Plain => "plain",
            Self::PlainRootOwn => "plain_root_own",
            Self::PlainRootForeign => "plain_root_foreign",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        ROLES.into_iter().find(|role| role.name() == name)
    }

    pub(crate) fn is_set_up_by_root(self) -> bool {
        !matches!(self, Self::User | Self::Plain)
    }

    /// Returns whether the kernel refuses namespaces in this role.
    pub(crate) fn has_no_namespaces(self) -> bool {
        matches!(self, Self::Plain | Self::PlainRootOwn | Self::PlainRootForeign)
    }

    /// Returns whether another user owns the repository.
    pub(crate) fn is_foreign(self) -> bool {
        matches!(self, Self::RootForeign | Self::PlainRootForeign)
    }

    /// Returns the controls that may be missing in this role.
    fn tolerated(self) -> Tolerated {
        if self.has_no_namespaces() { Tolerated::all() } else { Tolerated::default() }
    }

    /// Returns the test, which runs in a separate process so that it can run as another user. The test is ignored if
    /// the machine lacks a requirement, or if a sandbox of this role does not claim a control that the test needs.
    pub(crate) fn trial(self, check: &'static str, needs: &[Control], lacks: &SkipReasons, host: HostAccess) -> Trial {
        let unclaimed = needs.iter().find(|control| lacks.controls.contains(control));
        let unclaimed = unclaimed.map(|control| format!("{} is not claimed", control.as_str()));
        let role = if host == HostAccess::View { format!("{}_view", self.name()) } else { self.name().to_owned() };
        match lacks.reason.clone().or(unclaimed) {
            Some(reason) => Trial::test(format!("{role}::{check} ({reason})"), || Ok(())).with_ignored_flag(true),
            None => Trial::test(format!("{role}::{check}"), move || {
                check_output(self.run_as_user(&["check", self.name(), check], host))
            }),
        }
    }

    /// Returns the reason why tests of this role cannot run on this machine.
    fn skip_reasons(self) -> SkipReasons {
        let because = |reason: String| SkipReasons { reason: Some(reason), ..SkipReasons::default() };
        if self.is_set_up_by_root() && !rustix::process::geteuid().is_root() {
            return because("needs root".to_owned());
        }
        match self.run_as_user(&["probe", self.name()], HostAccess::Direct) {
            Ok(output) if output.status.success() => {
                let named = String::from_utf8_lossy(&output.stdout);
                let controls =
                    Control::ALL.into_iter().filter(|control| named.lines().any(|one| one == control.as_str()));
                SkipReasons { reason: None, controls: controls.collect() }
            }
            Ok(output) => because(format!("needs namespaces: {}", String::from_utf8_lossy(&output.stderr).trim())),
            Err(error) => because(format!("needs setpriv: {error}")),
        }
    }

    /// Runs this program again in one of its parts, as the user of this role.
    fn run_as_user(self, part: &[&str], host: HostAccess) -> std::io::Result<Output> {
        let own = std::env::current_exe()?;
        let mut command = if !self.is_set_up_by_root() && rustix::process::geteuid().is_root() {
            let mut command = Command::new("unshare");
            command
                .args(["--mount", "sh", "-c", OPEN_FUSE_SCRIPT, "sh", "setpriv"])
                .arg(format!("--reuid={USER}"))
                .arg(format!("--regid={USER}"))
                .arg("--clear-groups")
                .arg(own);
            command
        } else {
            Command::new(own)
        };
        if host == HostAccess::View {
            command.env(VIEW_VARIABLE, "1");
        }
        command.arg(SUBPROCESS_FLAG).args(part).env("PROCTOR_TEST_SECRET", "do not leak").output()
    }
}

/// How the steps of a test see the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostAccess {
    /// Through the host's own mounts.
    Direct,
    /// Through a view.
    View,
}

/// The variable that makes the steps of this process run on views.
const VIEW_VARIABLE: &str = "PROCTOR_TEST_VIEW";

/// Returns whether the steps of this process run on views.
pub(crate) fn runs_on_views() -> bool {
    std::env::var_os(VIEW_VARIABLE).is_some()
}

/// Executes its arguments where every user can open `/dev/fuse`, as on most distributions.
const OPEN_FUSE_SCRIPT: &str = r#"
    if test -e /dev/fuse; then
        mount -t tmpfs -o mode=1777 none /dev/shm && mknod -m 666 /dev/shm/fuse c 10 229 &&
            mount --bind /dev/shm/fuse /dev/fuse
    fi && exec "$@""#;

/// Returns the path of the helper: cargo's from this build, or the value of `PROCTOR_TEST_HELPER`, such as a release
/// build.
fn helper() -> PathBuf {
    std::env::var_os("PROCTOR_TEST_HELPER").map_or_else(|| env!("CARGO_BIN_EXE_proctor-sandbox").into(), PathBuf::from)
}

pub(crate) fn roles() -> Vec<(UserRole, SkipReasons)> {
    ROLES.map(|role| (role, role.skip_reasons())).into()
}

fn check_output(output: std::io::Result<Output>) -> Result<(), Failed> {
    let output = output?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)).into())
}

/// A test.
pub(crate) type SandboxTestFn = fn(&SandboxTestEnv) -> Result<(), Failed>;

/// A test with its name and the controls that it needs.
pub(crate) type SandboxTestCase = (&'static str, &'static [Control], SandboxTestFn);

const SUBPROCESS_FLAG: &str = "--part";

/// Runs the part that another process of this program requested; `None` if none was requested.
pub(crate) fn run_subprocess(checks: &[SandboxTestCase]) -> Option<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let played = match words.as_slice() {
        [SUBPROCESS_FLAG, "probe", role] => probe_role(UserRole::from_name(role)?),
        [SUBPROCESS_FLAG, "check", role, name] => {
            let (_, _, check) = checks.iter().find(|(known, ..)| known == name)?;
            let role = UserRole::from_name(role)?;
            drop_role_privileges(role).and_then(|()| SandboxTestEnv::new(role)).and_then(|bench| check(&bench))
        }
        [SUBPROCESS_FLAG, "parent", role, script] => run_parent(UserRole::from_name(role)?, script),
        _ => return None,
    };
    Some(match played {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => {
            eprintln!("{}", failed.message().unwrap_or("failed"));
            ExitCode::FAILURE
        }
    })
}

/// Tries what every sandbox needs, without proctor's code.
fn probe_role(role: UserRole) -> Result<(), Failed> {
    if role.has_no_namespaces() {
        return probe_without_namespaces(role);
    }
    let mut flags = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNET;
    flags.set(CloneFlags::CLONE_NEWUSER, role == UserRole::User);
    nix::sched::unshare(flags)?;
    nix::mount::mount(None::<&str>, "/tmp", Some("tmpfs"), nix::mount::MsFlags::empty(), None::<&str>)?;
    Ok(())
}

/// Prints the controls that a sandbox of this role does not claim to enforce.
fn probe_without_namespaces(role: UserRole) -> Result<(), Failed> {
    drop_role_privileges(role)?;
    let ran = SandboxTestEnv::new(role)?.run(&TestCommand::shell("true"))?;
    let missing = ran.enforcement().missing().map(|(control, _)| control);
    missing.for_each(|control| println!("{}", control.as_str()));
    match ran.status() {
        Some(WaitStatus::Code(0)) => Ok(()),
        _ => Err(format!("{:?}", ran.reports).into()),
    }
}

/// Permanently removes the privileges that the role must lack from this process: an ordinary user enters a user
/// namespace in which no others can be created, and root loses the capability to create namespaces.
fn drop_role_privileges(role: UserRole) -> Result<(), Failed> {
    if !role.has_no_namespaces() {
        return Ok(());
    }
    let lost = rustix::thread::CapabilitySet::SYS_ADMIN;
    let none = rustix::thread::CapabilitySet::empty();
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    if role.is_set_up_by_root() {
        rustix::thread::remove_capability_from_bounding_set(lost)?;
        let mut own = rustix::thread::capabilities(None)?;
        own.effective.remove(lost);
        own.permitted.remove(lost);
        own.inheritable = none;
        rustix::thread::set_capabilities(None, own)?;
    } else if nix::sched::unshare(CloneFlags::CLONE_NEWUSER).is_ok() {
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
        fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
        fs::write("/proc/sys/user/max_user_namespaces", "0")?;
        let sets = rustix::thread::CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, sets)?;
    }
    let wanted = if role.is_set_up_by_root() { CloneFlags::CLONE_NEWNS } else { CloneFlags::CLONE_NEWUSER };
    match nix::sched::unshare(wanted) {
        Err(_) => Ok(()),
        Ok(()) => Err("the kernel gives namespaces all the same".into()),
    }
}

/// Runs a step in a process that is to be killed while the step runs.
fn run_parent(role: UserRole, script: &str) -> Result<(), Failed> {
    let bench = SandboxTestEnv::new(role)?;
    let (running, _layer) = bench.start(&TestCommand::shell(script), &[])?;
    std::io::copy(&mut File::from(running.stdout.try_clone()?), &mut std::io::stdout())?;
    Ok(())
}

/// Starts [`run_parent`] in a new process.
pub(crate) fn spawn_parent(role: UserRole, script: &str) -> Result<std::process::Child, Failed> {
    let mut command = Command::new(std::env::current_exe()?);
    Ok(command.args([SUBPROCESS_FLAG, "parent", role.name(), script]).stdout(std::process::Stdio::piped()).spawn()?)
}

/// The environment of one test.
pub(crate) struct SandboxTestEnv {
    pub(crate) role: UserRole,
    pub(crate) root: PathBuf,
    pub(crate) repo: PathBuf,
    pub(crate) home: PathBuf,
    pub(crate) facts: RepoFacts,
    pub(crate) launcher: Launcher,
    pub(crate) space: RunSpace,
    _dir: Option<tempfile::TempDir>,
}

/// A command with its settings.
#[derive(Debug, Clone)]
pub(crate) struct TestCommand {
    pub(crate) argv: Vec<String>,
    pub(crate) files: FileBatches,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) network: Network,
    pub(crate) limits: Limits,
    pub(crate) leaks: Leaks,
    pub(crate) workdir: &'static str,
    pub(crate) tools: Vec<ToolMount>,
    pub(crate) caches: Vec<CacheMount>,
    pub(crate) git: bool,
    /// `true` to run on a view.
    pub(crate) view: bool,
}

impl TestCommand {
    pub(crate) fn new(argv: &[&str]) -> Self {
        Self {
            argv: argv.iter().map(|word| (*word).to_owned()).collect(),
            files: FileBatches::default(),
            env: BTreeMap::from([("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned())]),
            network: Network::Deny,
            limits: Limits {
                pids: Limit::Max(64),
                disk: Limit::Max(16 << 20),
                cpu_seconds: Limit::Max(20),
                open_files: Limit::Max(256),
                ..Limits::UNLIMITED
            },
            leaks: Leaks::Warn,
            workdir: ".",
            tools: Vec::new(),
            caches: Vec::new(),
            git: true,
            view: runs_on_views(),
        }
    }

    pub(crate) fn shell(script: &str) -> Self {
        Self::new(&["sh", "-c", script])
    }
}

/// The results of a step.
#[derive(Debug)]
pub(crate) struct TestOutcome {
    pub(crate) reports: Vec<SandboxEvent>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) layer: Layer<Sealed>,
    pub(crate) trace: Option<ViewTrace>,
    pub(crate) withheld: Option<proctor_core::model::withheld::WithheldPaths>,
}

impl TestOutcome {
    pub(crate) fn status(&self) -> Option<WaitStatus> {
        match self.reports.last() {
            Some(SandboxEvent::Exited { status, .. }) => Some(*status),
            _ => None,
        }
    }

    /// Returns the limit that ended the step.
    pub(crate) fn limit(&self) -> Option<LimitKind> {
        match self.reports.last() {
            Some(SandboxEvent::Exited { limit, .. }) => *limit,
            _ => None,
        }
    }

    pub(crate) fn enforcement(&self) -> &Enforcement {
        match self.reports.first() {
            Some(SandboxEvent::Ready { enforcement }) => enforcement,
            other => panic!("not ready but {other:?}"),
        }
    }

    /// Returns the output of a step, which must have exited with 0.
    pub(crate) fn stdout_of_success(&self) -> &str {
        assert_eq!(self.status(), Some(WaitStatus::Code(0)), "{self:?}");
        self.stdout.trim_end()
    }
}

impl SandboxTestEnv {
    pub(crate) fn new(role: UserRole) -> Result<Self, Failed> {
        let dir = tempfile::Builder::new().prefix("proctor-sandbox").tempdir()?;
        // Root's tests over a user's repository run steps that must be able to reach it.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
        let root = fs::canonicalize(dir.path())?;
        make_repo(&root.join("repo"))?;
        fs::create_dir(root.join("home"))?;
        fs::write(root.join("home/secret"), "s3cret")?;
        if role.is_foreign() {
            chown_to_user(&root.join("repo"))?;
        }
        Ok(Self { _dir: Some(dir), ..Self::with_existing_files(role, &root)? })
    }

    /// Creates a second environment with the files of an existing one.
    pub(crate) fn with_existing_files(role: UserRole, root: &Path) -> Result<Self, Failed> {
        Self::with_state_dir(role, root, &root.join("state"))
    }

    /// Creates a second environment with a different state directory.
    pub(crate) fn with_state_dir(role: UserRole, root: &Path, state: &Path) -> Result<Self, Failed> {
        let (root, repo, home) = (root.to_owned(), root.join("repo"), root.join("home"));
        let host = Host::new(HostConfig { helper: helper(), state_dir: state.to_owned(), home: home.clone() })?;
        let facts = RepoFacts::read(&repo)?;
        let launcher = Launcher::start(host)?;
        let space = RunSpace::create(&launcher, space_config(role))?;
        Ok(Self { role, root, repo, home, facts, launcher, space, _dir: None })
    }

    /// Creates the run space of another run.
    pub(crate) fn new_run_space(&self) -> Result<RunSpace, Failed> {
        Ok(RunSpace::create(&self.launcher, space_config(self.role))?)
    }

    pub(crate) fn policy(&self, step: &TestCommand) -> Result<Policy, Failed> {
        let git = step.git.then(|| self.repo.join(".git"));
        Ok(Policy {
            checkout: None,
            repo: self.repo.clone(),
            git: GitDirs { worktree_git: git, ..GitDirs::default() },
            workdir: RelPath::new(step.workdir)?,
            argv: Argv::new(step.argv.clone())?,
            files: step.files.clone(),
            env: step.env.clone(),
            network: step.network,
            leaks: step.leaks,
            limits: step.limits,
            home: self.home.clone(),
            hide: vec![self.root.clone()],
            tools: step.tools.clone(),
            caches: step.caches.clone(),
            tolerated: self.role.tolerated(),
            view: step.view,
            inputs: None,
        })
    }

    pub(crate) fn start(
        &self,
        step: &TestCommand,
        lowers: &[&Layer<Sealed>],
    ) -> Result<(RunningSandbox, Layer<proctor_sandbox::Unsealed>), Failed> {
        Ok(self.launcher.spawn(&self.space, lowers, &self.facts, &self.policy(step)?)?)
    }

    /// Returns whether a path printed by a step is the step's view of `below` in the repository.
    pub(crate) fn is_path_in_repo(&self, printed: &str, below: &str) -> bool {
        let is_copy = self.role.has_no_namespaces() && printed.ends_with(&format!("/tree/{below}"));
        is_copy || printed == self.repo.join(below).display().to_string()
    }

    pub(crate) fn run(&self, step: &TestCommand) -> Result<TestOutcome, Failed> {
        self.run_over(step, &[])
    }

    pub(crate) fn run_over(&self, step: &TestCommand, lowers: &[&Layer<Sealed>]) -> Result<TestOutcome, Failed> {
        self.run_policy(&self.policy(step)?, lowers)
    }

    pub(crate) fn run_policy(&self, policy: &Policy, lowers: &[&Layer<Sealed>]) -> Result<TestOutcome, Failed> {
        let (running, layer) = self.launcher.spawn(&self.space, lowers, &self.facts, policy)?;
        let reports = collect_events(&running)?;
        let (stdout, stderr) = (read_to_end(&running.stdout)?, read_to_end(&running.stderr)?);
        let (trace, withheld) = (running.take_view_trace(), running.take_withheld_paths());
        drop(running);
        if let Some(Err(reason @ (NoTrace::Unavailable { .. } | NoTrace::Failed { .. }))) = &trace {
            return Err(format!("{reason}: {reports:?}").into());
        }
        Ok(TestOutcome { reports, stdout, stderr, layer: layer.seal(), trace, withheld })
    }
}

/// Waits for the next report; `None` at the end.
fn next_event(running: &RunningSandbox) -> Result<Option<SandboxEvent>, Failed> {
    loop {
        match running.recv()? {
            EventPoll::Event(report) => return Ok(Some(report)),
            EventPoll::Closed => return Ok(None),
            EventPoll::WouldBlock => wait_readable(running.as_fd())?,
        }
    }
}

pub(crate) fn collect_events(running: &RunningSandbox) -> Result<Vec<SandboxEvent>, Failed> {
    let mut reports = Vec::new();
    while let Some(report) = next_event(running)? {
        reports.push(report);
    }
    Ok(reports)
}

pub(crate) fn wait_readable(fd: BorrowedFd<'_>) -> Result<(), Failed> {
    let deadline = rustix::time::Timespec::try_from(DEADLINE)?;
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    match rustix::event::poll(&mut fds, Some(&deadline))? {
        0 => Err("nothing came within the deadline".into()),
        _ => Ok(()),
    }
}

pub(crate) fn read_to_end(fd: &std::os::fd::OwnedFd) -> Result<String, Failed> {
    let mut text = Vec::new();
    File::from(fd.try_clone()?).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Reads one line of the step's output.
pub(crate) fn read_line(fd: &std::os::fd::OwnedFd) -> Result<String, Failed> {
    let mut file = File::from(fd.try_clone()?);
    let mut text = Vec::new();
    while text.last() != Some(&b'\n') {
        wait_readable(fd.as_fd())?;
        let mut byte = [0];
        if file.read(&mut byte)? == 0 {
            break;
        }
        text.extend(byte);
    }
    Ok(String::from_utf8(text)?.trim_end().to_owned())
}

fn make_repo(repo: &Path) -> Result<(), Failed> {
    fs::create_dir_all(repo.join(".git"))?;
    fs::create_dir(repo.join("src"))?;
    fs::write(repo.join(".git/HEAD"), "ref: refs/heads/main\n")?;
    fs::write(repo.join("tracked.txt"), "as it was\n")?;
    fs::write(repo.join("src/lib.rs"), "// nothing\n")?;
    Ok(std::os::unix::fs::symlink("/etc", repo.join("link"))?)
}

pub(crate) fn chown_to_user(path: &Path) -> Result<(), Failed> {
    std::os::unix::fs::lchown(path, Some(USER), Some(USER))?;
    if fs::symlink_metadata(path)?.is_dir() {
        for entry in fs::read_dir(path)? {
            chown_to_user(&entry?.path())?;
        }
    }
    Ok(())
}

/// Returns the names in a directory of a layer, sorted.
pub(crate) fn names(dir: BorrowedFd<'_>) -> Result<Vec<String>, Failed> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Returns the content of a file of a layer.
pub(crate) fn content(dir: BorrowedFd<'_>, name: &str) -> Result<String, Failed> {
    read_to_end(&rustix::fs::openat(dir, name, rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty())?)
}

/// Gives this process its own mount namespace, so that a test can add mounts.
pub(crate) fn enter_mount_namespace() -> Result<(), Failed> {
    nix::sched::unshare(CloneFlags::CLONE_NEWNS)?;
    let flags = nix::mount::MsFlags::MS_PRIVATE | nix::mount::MsFlags::MS_REC;
    Ok(nix::mount::mount(None::<&str>, "/", None::<&str>, flags, None::<&str>)?)
}

fn space_config(role: UserRole) -> RunSpaceConfig {
    RunSpaceConfig {
        disk_bytes: 32 << 20,
        inodes: 10_000,
        tolerated: role.tolerated(),
        reuse: SandboxReuse::Allowed,
        caches: None,
    }
}
