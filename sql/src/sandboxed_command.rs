//! Runs a program of the operator that reads a document on standard input and writes one to standard output. It runs in a
//! sandbox, without network unless the operator allows it, and with bounds for time, memory and output.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proctor_core::model::enforcement::Tolerated;
use proctor_core::model::plan::{Argv, BadArgv, BadRelPath, Leaks, Limit, Limits, RelPath};
use proctor_core::record::evidence::escape_output;
use proctor_core::spec::CommandSettings;
use proctor_sandbox::{
    AccessRights, EventPoll, GitDirs, Launcher, Policy, RepoFacts, RunSpace, RunSpaceConfig, RunningSandbox,
    SandboxError, SandboxEvent, SandboxReuse, ToolKind, ToolMount, WaitStatus,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Maximum length of the output of a program, in bytes.
pub const MAX_OUTPUT_BYTES: u64 = 4 << 20;
/// The search path of a program.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Connects standard input to the socket that is standard output, and starts the program.
const START_SCRIPT: &str = "exec \"$@\" 0<&1";
/// The working directory of programs, in the state directory. It stays empty.
const DIRECTORY: &str = "commands";
/// Maximum length of standard error that is read, in bytes. A secret at its end may be incomplete, so less is shown.
const READ_STDERR_BYTES: usize = 4096;
/// Maximum length of standard error that is shown, in bytes.
const MAX_STDERR_BYTES: usize = 500;
/// Time for the report about the end of a program whose output has ended.
const END_TIMEOUT: Duration = Duration::from_secs(5);
const MEMORY_BYTES: u64 = 2 << 30;
const DISK_BYTES: u64 = 256 << 20;
const INODES: u64 = 4096;

/// The reason why a program gave no output.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The sandbox cannot be set up.
    #[error("no sandbox for the command: {0}")]
    Sandbox(#[from] SandboxError),
    /// A path of the config does not exist.
    #[error("`{}` of the config cannot be used: {source}", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The command line is invalid.
    #[error(transparent)]
    Argv(#[from] BadArgv),
    /// The working directory is invalid.
    #[error(transparent)]
    Workdir(#[from] BadRelPath),
    /// The socket of the program, or its working directory, cannot be used.
    #[error("the command cannot be reached: {0}")]
    Io(#[from] io::Error),
    /// The program did not start, or failed.
    #[error("the command failed: {reason}{}", stderr_suffix(stderr))]
    Failed {
        /// How it ended.
        reason: String,
        /// The start of its standard error, with control characters escaped.
        stderr: String,
    },
    /// The output is too long.
    #[error("the command printed more than {} MiB", MAX_OUTPUT_BYTES >> 20)]
    TooLong,
    /// The time was over.
    #[error("the command gave no answer in time")]
    TimedOut,
}

fn stderr_suffix(stderr: &str) -> String {
    if stderr.is_empty() { String::new() } else { format!(": {stderr}") }
}

fn failed(reason: impl Into<String>) -> CommandError {
    CommandError::Failed { reason: reason.into(), stderr: String::new() }
}

/// A program that can be run any number of times, each time in a new sandbox.
pub struct SandboxedCommand {
    launcher: Arc<Launcher>,
    facts: RepoFacts,
    policy: Policy,
    /// Texts that no error message contains.
    secrets: Vec<String>,
}

impl SandboxedCommand {
    /// Prepares a program without starting it. The variables in `secrets` are added to its environment, and their values
    /// are removed from error messages.
    ///
    /// # Errors
    /// A path of the config does not exist, or the state directory is not writable.
    pub fn new(
        command: &CommandSettings,
        secrets: BTreeMap<String, String>,
        launcher: Arc<Launcher>,
        tolerated: &Tolerated,
    ) -> Result<Self, CommandError> {
        let directory = launcher.host().state_dir().join(DIRECTORY);
        std::fs::create_dir_all(&directory)?;
        let facts = RepoFacts::read(&directory)?;
        let texts = secrets.values().filter(|value| !value.is_empty()).cloned().collect();
        let policy = policy(command, secrets, &launcher, &facts, tolerated)?;
        Ok(Self { launcher, facts, policy, secrets: texts })
    }

    /// Runs the program and returns its output. Blocks until the program has ended.
    ///
    /// # Errors
    /// The program cannot be started, fails, prints too much, or does not end in time.
    pub fn run(&self, input: &[u8], deadline: Instant) -> Result<Vec<u8>, CommandError> {
        let config = RunSpaceConfig {
            disk_bytes: DISK_BYTES,
            inodes: INODES,
            tolerated: self.policy.tolerated.clone(),
            reuse: SandboxReuse::Never,
            caches: None,
        };
        let space = RunSpace::create(&self.launcher, config)?;
        let (running, _layer) = self.launcher.spawn_with_socket(&space, &self.facts, &self.policy)?;
        let socket = running.stdout.try_clone().map(UnixStream::from)?;
        let output = exchange(&socket, input, deadline).and_then(|output| {
            self.check_end(&running, deadline.min(Instant::now() + END_TIMEOUT))?;
            Ok(output)
        });
        drop(running.kill());
        output
    }

    /// Waits for the end of a program.
    ///
    /// # Errors
    /// The program failed, or did not end in time.
    fn check_end(&self, running: &RunningSandbox, deadline: Instant) -> Result<(), CommandError> {
        loop {
            match running.recv()? {
                EventPoll::Event(SandboxEvent::Ready { .. }) => {}
                EventPoll::Event(SandboxEvent::Exited { status: WaitStatus::Code(0), limit: None, .. }) => {
                    return Ok(());
                }
                EventPoll::Event(SandboxEvent::Exited { limit: Some(limit), .. }) => {
                    return Err(failed(format!("it reached its limit of {}", limit.as_str())));
                }
                EventPoll::Event(SandboxEvent::Exited { status, .. }) => {
                    let stderr = self.stderr_start(running);
                    return Err(CommandError::Failed { reason: end_text(status), stderr });
                }
                EventPoll::Event(SandboxEvent::Refused { message, hint, .. }) => {
                    return Err(failed(format!("{message}; {hint}")));
                }
                EventPoll::Event(SandboxEvent::NotStarted { message, .. }) => return Err(failed(message)),
                EventPoll::Closed => return Err(failed("its sandbox ended early")),
                EventPoll::WouldBlock => wait_for_report(running, deadline)?,
            }
        }
    }

    /// Returns the start of the standard error of a program that has ended, as one line without secrets.
    fn stderr_start(&self, running: &RunningSandbox) -> String {
        let mut bytes = vec![0; READ_STDERR_BYTES];
        let read = rustix::io::ioctl_fionbio(&running.stderr, true)
            .and_then(|()| rustix::io::read(&running.stderr, &mut bytes))
            .unwrap_or(0);
        let text = String::from_utf8_lossy(&bytes[..read]);
        // Secrets are removed before the text is cut, so that no part of one remains.
        let text = self.secrets.iter().fold(text.into_owned(), |text, secret| text.replace(secret, "[redacted]"));
        let text = text.trim();
        let shown = &text[..text.floor_char_boundary(MAX_STDERR_BYTES)];
        escape_output(shown.as_bytes()).replace('\n', " ")
    }
}

fn end_text(status: WaitStatus) -> String {
    match status {
        WaitStatus::Code(code) => format!("it ended with exit code {code}"),
        other => format!("it ended with {other:?}"),
    }
}

/// Writes the input, and reads the output to its end.
///
/// # Errors
/// The output is too long, or does not end in time.
fn exchange(mut socket: &UnixStream, input: &[u8], deadline: Instant) -> Result<Vec<u8>, CommandError> {
    socket.set_write_timeout(Some(time_left(deadline)?))?;
    match socket.write_all(input).and_then(|()| socket.shutdown(Shutdown::Write)) {
        Ok(()) => {}
        // The program ended without reading its input; its output and its status say why.
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::NotConnected) => {}
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(CommandError::TimedOut),
        Err(error) => return Err(error.into()),
    }
    let mut output = Vec::new();
    let mut buffer = [0; 16 << 10];
    loop {
        socket.set_read_timeout(Some(time_left(deadline)?))?;
        match socket.read(&mut buffer) {
            Ok(0) => return Ok(output),
            Ok(length) if (output.len() + length) as u64 > MAX_OUTPUT_BYTES => return Err(CommandError::TooLong),
            Ok(length) => output.extend_from_slice(&buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(CommandError::TimedOut),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(output),
            Err(error) => return Err(error.into()),
        }
    }
}

fn time_left(deadline: Instant) -> Result<Duration, CommandError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(CommandError::TimedOut) } else { Ok(left) }
}

fn wait_for_report(running: &RunningSandbox, deadline: Instant) -> Result<(), CommandError> {
    let left = Timespec::try_from(time_left(deadline)?).map_err(io::Error::other)?;
    let mut fds = [PollFd::new(running, PollFlags::IN)];
    match poll(&mut fds, Some(&left)) {
        Ok(0) => Err(CommandError::TimedOut),
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(io::Error::from(error).into()),
    }
}

fn policy(
    command: &CommandSettings,
    secrets: BTreeMap<String, String>,
    launcher: &Launcher,
    facts: &RepoFacts,
    tolerated: &Tolerated,
) -> Result<Policy, CommandError> {
    let program = command.argv.first().map(String::as_str).unwrap_or_default();
    let paths = std::iter::once(program).chain(command.mounts.iter().map(String::as_str));
    let tools = paths.map(mount).collect::<Result<Vec<_>, _>>()?;
    let home = launcher.host().home().to_owned();
    let mut env = BTreeMap::from([
        ("PATH".to_owned(), SEARCH_PATH.to_owned()),
        ("HOME".to_owned(), home.to_string_lossy().into_owned()),
        ("TMPDIR".to_owned(), "/tmp".to_owned()),
        ("LANG".to_owned(), "C.UTF-8".to_owned()),
    ]);
    env.extend(secrets);
    let shell = ["/bin/sh", "-c", START_SCRIPT, "sh"].map(str::to_owned);
    Ok(Policy {
        repo: facts.path.clone(),
        checkout: None,
        git: GitDirs::default(),
        workdir: RelPath::new(".")?,
        argv: Argv::new(shell.into_iter().chain(command.argv.iter().cloned()).collect())?,
        files: proctor_sandbox::FileBatches::default(),
        env,
        network: command.network,
        leaks: Leaks::Ignore,
        limits: Limits {
            memory: Limit::Max(MEMORY_BYTES),
            pids: Limit::Max(128),
            disk: Limit::Max(DISK_BYTES),
            output: Limit::Max(MAX_OUTPUT_BYTES),
            open_files: Limit::Max(1024),
            ..Limits::UNLIMITED
        },
        home,
        hide: Vec::new(),
        tools,
        caches: Vec::new(),
        tolerated: tolerated.clone(),
        view: false,
        inputs: None,
    })
}

/// Returns the mount that shows a path. A symbolic link cannot be a mount point.
fn mount(path: &str) -> Result<ToolMount, CommandError> {
    let source = Path::new(path).canonicalize();
    let source = source.map_err(|source| CommandError::Path { path: PathBuf::from(path), source })?;
    Ok(ToolMount { at: source.clone(), source, kind: ToolKind::ReadOnly, rights: AccessRights::Ours })
}
