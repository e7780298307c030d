//! Runs the `git` program in a sandbox, for repositories that libgit2 cannot read. It sees the same files as a
//! step, can change nothing, and has no network. `proctor-snapshot` decides which commands it runs.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::str::Utf8Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proctor_core::model::enforcement::Control;
use proctor_core::model::outcome::LimitKind;
use proctor_core::model::plan::{Argv, BadArgv, BadRelPath, Leaks, Limit, Limits, Network, RelPath, max_files};
use proctor_git::program::{ENVIRONMENT as GIT_ENVIRONMENT, GitOutput, GitProgram, GitProgramError, GitTask};
use proctor_git::repository_paths::{OriginalRepository, RepositoryPaths};
use proctor_sandbox::{
    AccessRights, EventPoll, FsCredentials, GitDirs, Host, HostConfig, Launcher, Policy, RepoFacts, RunSpace,
    RunSpaceConfig, RunningSandbox, SandboxError, SandboxEvent, SandboxReuse, StepUser, ToolKind, ToolMount,
    WaitStatus,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{EngineError, one_line};
use crate::run::prepared_tree;
use crate::run::request::EngineConfig;
use crate::run::run_context::HostView;
use crate::store::StoreError;
use crate::store::directory::{Directory, TEMPORARY_SUFFIX, random_u64};

/// Timeout of one task.
const TASK_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout for the kernel to end killed processes.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum output of a task.
const MAX_OUTPUT_BYTES: u64 = 512 << 20;
/// Maximum length of standard error that is kept.
const MAX_STDERR_BYTES: usize = 4 << 10;
/// Maximum size of writes outside the tree: converted files, and files of filters.
const MAX_DISK_BYTES: u64 = 4 << 30;
/// Maximum memory of a task.
const MAX_MEMORY_BYTES: u64 = 2 << 30;
/// Path of a task's input in the sandbox.
const INPUT_PATH: &str = "/run/proctor/input";
/// Directory of the inputs of running tasks, in the state directory.
pub(crate) const INPUTS_DIR: &str = "inputs";

/// The reason why a task of `git` has no output.
#[derive(Debug, thiserror::Error)]
enum GitTaskError {
    /// The sandbox cannot be created.
    #[error("{}", one_line(.0))]
    Sandbox(#[from] SandboxError),
    /// The parts of the host that the task sees cannot be determined.
    #[error("{}", one_line(.0))]
    HostView(#[from] EngineError),
    /// The input cannot be written.
    #[error("the input of git cannot be written: {0}")]
    Input(#[from] GitInputError),
    /// The working directory is not UTF-8.
    #[error("a repository whose name is not UTF-8")]
    NotUtf8(#[source] Utf8Error),
    /// The working directory is not inside the repository.
    #[error(transparent)]
    Directory(#[from] BadRelPath),
    /// The script cannot be an argument.
    #[error(transparent)]
    Argv(#[from] BadArgv),
    /// The sandbox cannot be watched.
    #[error("git cannot be monitored in its sandbox: {0}")]
    Watch(#[from] io::Error),
    /// Killed processes did not end.
    #[error("the processes that git started could not be ended")]
    ProcessesRemain,
    /// The task took too long.
    #[error("git took longer than {} s", TASK_TIMEOUT.as_secs())]
    TimedOut,
    /// The task reached a limit.
    #[error("git was ended because of the limit `{0:?}`")]
    LimitReached(LimitKind),
    /// A control of the sandbox is not available.
    #[error("git has no sandbox: `{}` cannot be enforced: {message}", control.as_str())]
    Refused {
        /// The control.
        control: Control,
        /// The attempted action and the kernel's answer.
        message: String,
    },
    /// The shell did not start.
    #[error("git was not started: {0}")]
    NotStarted(String),
    /// The task printed too much.
    #[error("git printed more than {MAX_OUTPUT_BYTES} bytes")]
    LargeOutput,
}

/// The reason why the input of a task cannot be written.
#[derive(Debug, thiserror::Error)]
enum GitInputError {
    /// The state directory cannot be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The user of the task cannot be determined.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// A file cannot be created, or its mode cannot be set.
    #[error(transparent)]
    System(#[from] Errno),
    /// A file cannot be written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Runs `git` over any repository, each task in a new sandbox.
pub(crate) struct SandboxedGit {
    pub(crate) launcher: Arc<Launcher>,
    pub(crate) state: Directory,
    pub(crate) state_path: PathBuf,
    pub(crate) config: EngineConfig,
}

impl fmt::Debug for SandboxedGit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SandboxedGit").field("state_path", &self.state_path).finish_non_exhaustive()
    }
}

impl GitProgram for SandboxedGit {
    fn run(&self, places: &RepositoryPaths, task: &GitTask) -> Result<GitOutput, GitProgramError> {
        self.run_in_sandbox(places, task).map_err(|error| GitProgramError::NotRun(error.into()))
    }
}

impl SandboxedGit {
    /// Creates an instance with a new launcher.
    ///
    /// # Errors
    /// The state directory cannot be created, or the sandbox's helper is missing.
    pub(crate) fn open(config: &EngineConfig) -> Result<Self, EngineError> {
        let host = Host::new(HostConfig {
            helper: config.helpers.sandbox.clone(),
            state_dir: config.state_dir.clone(),
            home: config.home.clone(),
        })?;
        let state_path = host.state_dir().to_path_buf();
        let state = Directory::open(&state_path)?;
        Ok(Self { launcher: Arc::new(Launcher::start(host)?), state, state_path, config: config.clone() })
    }

    fn run_in_sandbox(&self, places: &RepositoryPaths, task: &GitTask) -> Result<GitOutput, GitTaskError> {
        let facts = RepoFacts::read(&places.worktree)?;
        let input = GitTaskInput::write(self, &facts, &task.input)?;
        let policy = self.policy(places, &facts, task, &input.path)?;
        let config = RunSpaceConfig {
            disk_bytes: MAX_DISK_BYTES,
            inodes: max_files(MAX_DISK_BYTES),
            tolerated: policy.tolerated.clone(),
            reuse: SandboxReuse::Never,
            caches: None,
        };
        let space = RunSpace::create(&self.launcher, config)?;
        let (running, _layer) = self.launcher.spawn(&space, &[], &facts, &policy)?;
        GitTaskWatch::new(running)?.run_until(Instant::now() + TASK_TIMEOUT)
    }

    fn policy(
        &self,
        places: &RepositoryPaths,
        facts: &RepoFacts,
        task: &GitTask,
        input: &Path,
    ) -> Result<Policy, GitTaskError> {
        let Self { launcher, state, state_path, config } = self;
        // The filters run as the repository's owner, who has no access to root's home.
        let reader = match StepUser::choose(launcher.host(), facts)? {
            StepUser::Owner { uid, gid } | StepUser::Copy { uid, gid, .. } => Some(FsCredentials { uid, gid }),
            StepUser::Own { .. } | StepUser::Mapped { .. } => None,
        };
        let tolerated = config.operator.may_miss.clone();
        let (repo, checkout, git) = match &places.checkout_of {
            // The repository appears at the path at which the steps of a run see it.
            Some(OriginalRepository { seen_at, objects }) => {
                (seen_at, Some(places.worktree.clone()), prepared_tree::copy_git_dirs(seen_at, objects, Vec::new()))
            }
            None => {
                let common = places.external_common_dir().map(Path::to_owned);
                (
                    &places.worktree,
                    None,
                    GitDirs { worktree_git: Some(places.worktree.join(".git")), common, nested: Vec::new() },
                )
            }
        };
        let host_view = HostView::for_repository(config, launcher, state, state_path, repo, reader, tolerated)?;
        let directory = std::str::from_utf8(&task.directory.0).map_err(GitTaskError::NotUtf8)?;
        let directory = if directory.is_empty() { "." } else { directory };
        let mut tools = host_view.tools.clone();
        let (kind, rights) = (ToolKind::ReadOnly, AccessRights::Ours);
        tools.push(ToolMount { source: input.to_owned(), at: INPUT_PATH.into(), kind, rights });
        Ok(Policy {
            git,
            checkout,
            workdir: RelPath::new(directory)?,
            argv: Argv::new(["/bin/sh", "-c", task.script].map(str::to_owned).into())?,
            files: proctor_sandbox::FileBatches::default(),
            env: environment(&host_view),
            network: Network::Deny,
            leaks: Leaks::Ignore,
            limits: task_limits(),
            repo: repo.clone(),
            home: host_view.home,
            hide: host_view.hidden,
            tools,
            caches: Vec::new(),
            tolerated: host_view.tolerated,
            view: false,
            inputs: None,
        })
    }
}

/// Returns an environment without variables from the caller or a spec.
fn environment(host_view: &HostView) -> BTreeMap<String, String> {
    let path = host_view.environment_inputs.path.join(":");
    let own = [
        ("PATH", path.as_str()),
        ("HOME", &host_view.environment_inputs.home),
        ("TMPDIR", "/tmp"),
        ("INPUT", INPUT_PATH),
    ];
    let toolchain =
        host_view.environment_inputs.toolchain_variables.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let all = toolchain.chain(own).chain(GIT_ENVIRONMENT.iter().copied());
    all.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn task_limits() -> Limits {
    Limits {
        memory: Limit::Max(MAX_MEMORY_BYTES),
        pids: Limit::Max(512),
        disk: Limit::Max(MAX_DISK_BYTES),
        output: Limit::Max(MAX_OUTPUT_BYTES),
        cpu_seconds: Limit::Max(2 * TASK_TIMEOUT.as_secs()),
        open_files: Limit::Max(4096),
    }
}

/// The input files of one task, which are removed on drop.
struct GitTaskInput {
    parent: Directory,
    directory: Directory,
    name: String,
    files: Vec<&'static str>,
    path: PathBuf,
}

impl GitTaskInput {
    /// Writes the input files so that the task's user can read them. Only this directory is mounted, in a sandbox
    /// that sees nothing else of the state directory.
    fn write(
        git: &SandboxedGit,
        repo: &RepoFacts,
        files: &BTreeMap<&'static str, Vec<u8>>,
    ) -> Result<Self, GitInputError> {
        let name = format!(".git.{:016x}{TEMPORARY_SUFFIX}", random_u64()?);
        let inputs = git.state.ensure(INPUTS_DIR, 0o700)?;
        let own = inputs.ensure(&name, 0o755)?;
        let path = git.state_path.join(INPUTS_DIR).join(&name);
        let input = Self { parent: inputs, directory: own, name, files: files.keys().copied().collect(), path };
        let user = StepUser::choose(git.launcher.host(), repo)?;
        // The umask may have reduced the modes.
        let set_mode = |fd: BorrowedFd<'_>, mode| rustix::fs::fchmod(fd, Mode::from_raw_mode(mode));
        set_mode(input.directory.as_fd(), 0o755)?;
        for (name, bytes) in files {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
            let file = rustix::fs::openat(input.directory.as_fd(), *name, flags, Mode::from_raw_mode(0o600));
            let mut file = File::from(file?);
            file.write_all(bytes)?;
            let mode = if user.is_set_up_by_root() { 0o444 } else { 0o400 };
            set_mode(file.as_fd(), mode)?;
        }
        Ok(input)
    }
}

impl Drop for GitTaskInput {
    fn drop(&mut self) {
        let files = self.files.iter().map(|file| rustix::fs::unlinkat(self.directory.as_fd(), *file, AtFlags::empty()));
        let removed = files.collect::<Result<(), Errno>>();
        let removed = removed.and_then(|()| rustix::fs::unlinkat(self.parent.as_fd(), &self.name, AtFlags::REMOVEDIR));
        if let Err(error) = removed {
            tracing::warn!(%error, input = self.name, "the input file of git cannot be removed from the state directory");
        }
    }
}

/// A running task.
struct GitTaskWatch {
    running: RunningSandbox,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    output: GitOutput,
    /// The reason why the task did not finish.
    failure: Option<GitTaskError>,
    processes_ended: bool,
}

impl GitTaskWatch {
    fn new(running: RunningSandbox) -> io::Result<Self> {
        let (stdout, stderr) = (running.stdout.try_clone()?, running.stderr.try_clone()?);
        for fd in [&stdout, &stderr] {
            rustix::io::ioctl_fionbio(fd, true)?;
        }
        let output = GitOutput { success: false, stdout: Vec::new(), stderr: Vec::new() };
        Ok(Self { running, stdout: Some(stdout), stderr: Some(stderr), output, failure: None, processes_ended: false })
    }

    /// Reads output and reports until all processes have ended; kills them at `deadline`.
    fn run_until(mut self, deadline: Instant) -> Result<GitOutput, GitTaskError> {
        let (mut deadline, mut killed) = (deadline, false);
        while !self.processes_ended {
            let left = deadline.saturating_duration_since(Instant::now());
            let late = left.is_zero() || (self.failure.is_some() && !killed);
            match (late, killed) {
                (true, true) => return Err(GitTaskError::ProcessesRemain),
                (true, false) => {
                    self.failure.get_or_insert(GitTaskError::TimedOut);
                    self.running.kill()?;
                    (deadline, killed) = (Instant::now() + KILL_TIMEOUT, true);
                }
                (false, _) => {
                    self.wait_for_events(left)?;
                    self.receive_reports()?;
                    self.read_output()?;
                }
            }
        }
        // No process writes any more: reads what is left in the pipes.
        self.read_output()?;
        self.failure.map_or(Ok(self.output), Err)
    }

    fn wait_for_events(&self, left: Duration) -> io::Result<()> {
        let fds = [
            Some(self.running.as_fd()),
            self.stdout.as_ref().map(OwnedFd::as_fd),
            self.stderr.as_ref().map(OwnedFd::as_fd),
        ];
        let mut fds: Vec<_> = fds.into_iter().flatten().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut fds, Some(&Timespec::try_from(left).map_err(io::Error::other)?)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn receive_reports(&mut self) -> io::Result<()> {
        loop {
            match self.running.recv()? {
                EventPoll::WouldBlock => return Ok(()),
                EventPoll::Closed => {
                    self.processes_ended = true;
                    return Ok(());
                }
                EventPoll::Event(report) => self.handle_report(report),
            }
        }
    }

    fn handle_report(&mut self, report: SandboxEvent) {
        match report {
            SandboxEvent::Ready { .. } => {}
            SandboxEvent::Exited { status, limit: None, .. } => self.output.success = status == WaitStatus::Code(0),
            SandboxEvent::Exited { limit: Some(limit), .. } => {
                self.failure = Some(GitTaskError::LimitReached(limit));
            }
            SandboxEvent::Refused { control, message, .. } => {
                self.failure = Some(GitTaskError::Refused { control, message });
            }
            SandboxEvent::NotStarted { message, .. } => self.failure = Some(GitTaskError::NotStarted(message)),
        }
    }

    fn read_output(&mut self) -> io::Result<()> {
        read_available(&mut self.stdout, &mut self.output.stdout)?;
        read_available(&mut self.stderr, &mut self.output.stderr)?;
        self.output.stderr.truncate(MAX_STDERR_BYTES);
        if self.output.stdout.len() as u64 > MAX_OUTPUT_BYTES {
            self.output.stdout.clear();
            self.failure.get_or_insert(GitTaskError::LargeOutput);
        }
        Ok(())
    }
}

/// Reads available bytes, up to a limit; closes the pipe at its end.
fn read_available(pipe: &mut Option<OwnedFd>, bytes: &mut Vec<u8>) -> io::Result<()> {
    const MAX_READS: usize = 64;
    let mut buffer = [0; 64 << 10];
    for _ in 0..MAX_READS {
        let Some(fd) = pipe.as_ref() else { return Ok(()) };
        match rustix::io::read(fd, &mut buffer) {
            Ok(0) => *pipe = None,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            Err(Errno::AGAIN) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
