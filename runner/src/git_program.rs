//! Runs the `git` program in a sandbox, for repositories that libgit2 cannot read. It sees the same files as a
//! step, can change nothing, and has no network. `proctor-snapshot` decides which commands it runs.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proctor_core::plan::{Argv, Leaks, Limit, Limits, Network, RelPath, files_of};
use proctor_sandbox::{
    GitDirs, Host, HostConfig, Launcher, Policy, Reader, Received, RepoFacts, Report, Rights, RunSpace, RunSpaceConfig,
    Running, Sandboxes, StepUser, ToolKind, ToolMount, WaitStatus,
};
use proctor_snapshot::{CheckoutOf, GIT_ENVIRONMENT, GitOutput, GitProgram, GitTask, Places};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::context::Sight;
use crate::error::{EngineError, one_line};
use crate::request::EngineConfig;
use crate::source;
use crate::store::directory::{Directory, TEMPORARY, random_u64};

/// Timeout of one task.
const DEADLINE: Duration = Duration::from_secs(60);
/// Timeout for the kernel to end killed processes.
const GONE: Duration = Duration::from_secs(10);
/// Maximum output of a task.
const OUTPUT_BYTES: u64 = 512 << 20;
/// Maximum length of standard error that is kept.
const COMPLAINT_BYTES: usize = 4 << 10;
/// Maximum size of writes outside the tree: converted files, and files of filters.
const DISK_BYTES: u64 = 4 << 30;
/// Maximum memory of a task.
const MEMORY_BYTES: u64 = 2 << 30;
/// Path of a task's input in the sandbox.
const INPUT: &str = "/run/proctor/input";
/// Directory of the inputs of running tasks, in the state directory.
pub(crate) const INPUTS: &str = "inputs";

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
    fn run(&self, places: &Places, task: &GitTask) -> Result<GitOutput, String> {
        let facts = RepoFacts::read(&places.worktree).map_err(|error| one_line(&error))?;
        let input = Input::write(self, &facts, &task.input)?;
        let policy = self.policy(places, &facts, task, &input.path)?;
        let config = RunSpaceConfig {
            disk_bytes: DISK_BYTES,
            inodes: files_of(DISK_BYTES),
            tolerated: policy.tolerated.clone(),
            sandboxes: Sandboxes::ForOne,
            caches: None,
        };
        let space = RunSpace::create(&self.launcher, config).map_err(|error| one_line(&error))?;
        let spawned = self.launcher.spawn(&space, &[], &facts, &policy);
        let (running, _layer) = spawned.map_err(|error| one_line(&error))?;
        let ended = Watch::new(running).and_then(|watch| watch.until(Instant::now() + DEADLINE));
        ended.map_err(|error| format!("git cannot be watched in its sandbox: {error}"))?
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

    fn policy(&self, places: &Places, facts: &RepoFacts, task: &GitTask, input: &Path) -> Result<Policy, String> {
        let Self { launcher, state, state_path, config } = self;
        // The filters run as the repository's owner, who has no access to root's home.
        let reader = match StepUser::choose(launcher.host(), facts).map_err(|error| one_line(&error))? {
            StepUser::Owner { uid, gid } | StepUser::Copy { uid, gid, .. } => Some(Reader { uid, gid }),
            StepUser::Own { .. } | StepUser::Mapped { .. } => None,
        };
        let tolerated = config.operator.may_miss.clone();
        let (repo, checkout, git) = match &places.checkout_of {
            // At the path at which the steps of a run see it.
            Some(CheckoutOf { seen_at, objects }) => {
                (seen_at, Some(places.worktree.clone()), source::git_dirs_of_copy(seen_at, objects, Vec::new()))
            }
            None => {
                let common = places.common_elsewhere().map(Path::to_owned);
                (
                    &places.worktree,
                    None,
                    GitDirs { worktree_git: Some(places.worktree.join(".git")), common, nested: Vec::new() },
                )
            }
        };
        let sight = Sight::of(config, launcher, state, state_path, repo, reader, tolerated)
            .map_err(|error| one_line(&error))?;
        let directory = std::str::from_utf8(&task.directory.0).map_err(|_| "a repository whose name is not UTF-8")?;
        let directory = if directory.is_empty() { "." } else { directory };
        let mut tools = sight.tools.clone();
        let (kind, rights) = (ToolKind::ReadOnly, Rights::Ours);
        tools.push(ToolMount { source: input.to_owned(), at: INPUT.into(), kind, rights });
        Ok(Policy {
            git,
            checkout,
            workdir: RelPath::new(directory).map_err(|error| error.to_string())?,
            argv: Argv::new(["/bin/sh", "-c", task.script].map(str::to_owned).into())
                .map_err(|error| error.to_string())?,
            env: environment(&sight),
            network: Network::Deny,
            leaks: Leaks::Ignore,
            limits: limits(),
            repo: repo.clone(),
            home: sight.home,
            hide: sight.hide,
            tools,
            caches: Vec::new(),
            tolerated: sight.tolerated,
        })
    }
}

/// Returns an environment without variables from the caller or a spec.
fn environment(sight: &Sight) -> BTreeMap<String, String> {
    let path = sight.surroundings.path.join(":");
    let own = [("PATH", path.as_str()), ("HOME", &sight.surroundings.home), ("TMPDIR", "/tmp"), ("INPUT", INPUT)];
    let toolchain = sight.surroundings.toolchain.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let all = toolchain.chain(own).chain(GIT_ENVIRONMENT.iter().copied());
    all.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn limits() -> Limits {
    Limits {
        memory: Limit::Max(MEMORY_BYTES),
        pids: Limit::Max(512),
        disk: Limit::Max(DISK_BYTES),
        output: Limit::Max(OUTPUT_BYTES),
        cpu_seconds: Limit::Max(2 * DEADLINE.as_secs()),
        open_files: Limit::Max(4096),
    }
}

/// The input files of one task, which are removed on drop.
struct Input {
    inputs: Directory,
    own: Directory,
    name: String,
    files: Vec<&'static str>,
    path: PathBuf,
}

impl Input {
    /// Writes the input files so that the task's user can read them. Only this directory is mounted, in a sandbox
    /// that sees nothing else of the state directory.
    fn write(git: &SandboxedGit, repo: &RepoFacts, files: &BTreeMap<&'static str, Vec<u8>>) -> Result<Self, String> {
        let told = |error: &dyn std::fmt::Display| format!("the input of git cannot be written: {error}");
        let name = format!(".git.{:016x}{TEMPORARY}", random_u64().map_err(|error| told(&error))?);
        let inputs = git.state.ensure(INPUTS, 0o700).map_err(|error| told(&error))?;
        let own = inputs.ensure(&name, 0o755).map_err(|error| told(&error))?;
        let path = git.state_path.join(INPUTS).join(&name);
        let input = Self { inputs, own, name, files: files.keys().copied().collect(), path };
        let user = StepUser::choose(git.launcher.host(), repo).map_err(|error| told(&error))?;
        // The umask may have reduced the modes.
        let shown = |fd: BorrowedFd<'_>, mode| rustix::fs::fchmod(fd, Mode::from_raw_mode(mode));
        shown(input.own.as_fd(), 0o755).map_err(|error| told(&error))?;
        for (name, bytes) in files {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
            let file = rustix::fs::openat(input.own.as_fd(), *name, flags, Mode::from_raw_mode(0o600));
            let mut file = File::from(file.map_err(|error| told(&error))?);
            file.write_all(bytes).map_err(|error| told(&error))?;
            let mode = if user.steps_down() { 0o444 } else { 0o400 };
            shown(file.as_fd(), mode).map_err(|error| told(&error))?;
        }
        Ok(input)
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        let files = self.files.iter().map(|file| rustix::fs::unlinkat(self.own.as_fd(), *file, AtFlags::empty()));
        let removed = files.collect::<Result<(), Errno>>();
        let removed = removed.and_then(|()| rustix::fs::unlinkat(self.inputs.as_fd(), &self.name, AtFlags::REMOVEDIR));
        if let Err(error) = removed {
            tracing::warn!(%error, input = self.name, "the input of git stays in the state directory");
        }
    }
}

/// A running task.
struct Watch {
    running: Running,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    output: GitOutput,
    /// Why the task did not finish.
    trouble: Option<String>,
    gone: bool,
}

impl Watch {
    fn new(running: Running) -> std::io::Result<Self> {
        let (stdout, stderr) = (running.stdout.try_clone()?, running.stderr.try_clone()?);
        for fd in [&stdout, &stderr] {
            rustix::io::ioctl_fionbio(fd, true)?;
        }
        let output = GitOutput { success: false, stdout: Vec::new(), stderr: Vec::new() };
        Ok(Self { running, stdout: Some(stdout), stderr: Some(stderr), output, trouble: None, gone: false })
    }

    /// Reads output and reports until all processes are gone; kills them at `deadline`.
    fn until(mut self, deadline: Instant) -> std::io::Result<Result<GitOutput, String>> {
        let (mut deadline, mut killed) = (deadline, false);
        while !self.gone {
            let left = deadline.saturating_duration_since(Instant::now());
            let late = left.is_zero() || (self.trouble.is_some() && !killed);
            match (late, killed) {
                (true, true) => return Ok(Err("what git had started could not be ended".to_owned())),
                (true, false) => {
                    self.trouble.get_or_insert_with(|| format!("git took longer than {} s", DEADLINE.as_secs()));
                    self.running.kill()?;
                    (deadline, killed) = (Instant::now() + GONE, true);
                }
                (false, _) => {
                    self.wait(left)?;
                    self.listen()?;
                    self.read()?;
                }
            }
        }
        // No process writes any more: reads what is left in the pipes.
        self.read()?;
        Ok(self.trouble.map_or(Ok(self.output), Err))
    }

    fn wait(&self, left: Duration) -> std::io::Result<()> {
        let fds = [
            Some(self.running.as_fd()),
            self.stdout.as_ref().map(OwnedFd::as_fd),
            self.stderr.as_ref().map(OwnedFd::as_fd),
        ];
        let mut fds: Vec<_> = fds.into_iter().flatten().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut fds, Some(&Timespec::try_from(left).map_err(std::io::Error::other)?)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn listen(&mut self) -> std::io::Result<()> {
        loop {
            match self.running.recv()? {
                Received::WouldBlock => return Ok(()),
                Received::Closed => {
                    self.gone = true;
                    return Ok(());
                }
                Received::Report(report) => self.hear(report),
            }
        }
    }

    fn hear(&mut self, report: Report) {
        match report {
            Report::Ready { .. } => {}
            Report::Exited { status, limit: None, .. } => self.output.success = status == WaitStatus::Code(0),
            Report::Exited { limit: Some(limit), .. } => {
                self.trouble = Some(format!("git was ended for the limit `{limit:?}`"));
            }
            Report::Refused { control, message, .. } => {
                self.trouble =
                    Some(format!("git has no sandbox: `{}` cannot be enforced: {message}", control.as_str()));
            }
            Report::NotStarted { message, .. } => self.trouble = Some(format!("git was not started: {message}")),
        }
    }

    fn read(&mut self) -> std::io::Result<()> {
        read_all(&mut self.stdout, &mut self.output.stdout)?;
        read_all(&mut self.stderr, &mut self.output.stderr)?;
        self.output.stderr.truncate(COMPLAINT_BYTES);
        if self.output.stdout.len() as u64 > OUTPUT_BYTES {
            self.output.stdout.clear();
            self.trouble.get_or_insert_with(|| format!("git printed more than {OUTPUT_BYTES} bytes"));
        }
        Ok(())
    }
}

/// Reads available bytes, up to a limit; closes the pipe at its end.
fn read_all(pipe: &mut Option<OwnedFd>, bytes: &mut Vec<u8>) -> std::io::Result<()> {
    const PIECES: usize = 64;
    let mut buffer = [0; 64 << 10];
    for _ in 0..PIECES {
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
