//! Calls a model through a program of the operator: JSON on standard input, JSON on standard output, in a sandbox. The
//! program has no network unless the operator allows it.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant as StdInstant};

use proctor_core::model::enforcement::Tolerated;
use proctor_core::model::plan::{Argv, Leaks, Limit, Limits, Network, RelPath};
use proctor_core::record::evidence::escape_output;
use proctor_core::spec::ProviderCommand;
use proctor_sandbox::{
    AccessRights, EventPoll, GitDirs, Launcher, Policy, RepoFacts, RunSpace, RunSpaceConfig, RunningSandbox,
    SandboxEvent, SandboxReuse, ToolKind, ToolMount, WaitStatus,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::completion::{Completion, MAX_BODY_BYTES, Prompt};
use super::model_provider::{BoxFuture, Provider, ProviderContext};
use super::provider_error::{CommandError, ProviderError};
use crate::secret::Secret;

/// The variable with the key in the environment of a program.
const KEY_VARIABLE: &str = "PROCTOR_KEY";
/// The search path of a program.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Connects standard input to the socket that is standard output, and starts the program.
const START_SCRIPT: &str = "exec \"$@\" 0<&1";
/// The directory that is the working directory of programs, in the state directory. It stays empty.
const DIRECTORY: &str = "ask-command";
/// Maximum length of standard error that is shown, in bytes.
const MAX_STDERR_BYTES: usize = 500;
/// Time for the report about the end of a program whose output has ended.
const END_TIMEOUT: Duration = Duration::from_secs(5);
const MEMORY_BYTES: u64 = 2 << 30;
const DISK_BYTES: u64 = 256 << 20;
const INODES: u64 = 4096;

/// The document on standard input.
#[derive(Serialize)]
struct CommandInput<'a> {
    version: u32,
    system: &'a str,
    prompt: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    max_tokens: u32,
}

/// The document on standard output.
#[derive(Deserialize)]
struct CommandOutput {
    #[serde(default)]
    text: String,
    error: Option<String>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    #[serde(default)]
    truncated: bool,
}

/// A program that calls a model.
pub struct CommandProvider {
    launcher: Arc<Launcher>,
    facts: RepoFacts,
    policy: Policy,
    tolerated: Tolerated,
    key: Option<Secret>,
    model: Option<String>,
    max_tokens: u32,
}

impl CommandProvider {
    /// Prepares a program without starting it.
    ///
    /// # Errors
    /// A path of the config does not exist, or the state directory is not writable.
    pub fn new(
        command: &ProviderCommand,
        key: Option<Secret>,
        model: Option<String>,
        max_tokens: u32,
        context: &ProviderContext,
    ) -> Result<Self, CommandError> {
        if command.network == Network::Allow && !context.allow_network {
            return Err(CommandError::NetworkRefused);
        }
        let launcher = context.launcher.clone().ok_or(CommandError::NoLauncher)?;
        let directory = launcher.host().state_dir().join(DIRECTORY);
        std::fs::create_dir_all(&directory)?;
        let facts = RepoFacts::read(&directory)?;
        let policy = policy(command, key.as_ref(), &launcher, &facts, &context.tolerated)?;
        Ok(Self { launcher, facts, policy, tolerated: context.tolerated.clone(), key, model, max_tokens })
    }

    fn run(&self, input: &[u8], deadline: StdInstant) -> Result<CommandOutput, CommandError> {
        let config = RunSpaceConfig {
            disk_bytes: DISK_BYTES,
            inodes: INODES,
            tolerated: self.tolerated.clone(),
            reuse: SandboxReuse::Never,
            caches: None,
        };
        let space = RunSpace::create(&self.launcher, config)?;
        let (running, _layer) = self.launcher.spawn_with_socket(&space, &self.facts, &self.policy)?;
        let socket = running.stdout.try_clone().map(UnixStream::from)?;
        let output = exchange(&socket, input, deadline);
        let result = output.and_then(|output| {
            self.check_end(&running, deadline.min(StdInstant::now() + END_TIMEOUT))?;
            serde_json::from_slice(&output).map_err(CommandError::NotAnAnswer)
        });
        drop(running.kill());
        result
    }

    /// Waits for the end of a program.
    ///
    /// # Errors
    /// The program failed, or did not end in time.
    fn check_end(&self, running: &RunningSandbox, deadline: StdInstant) -> Result<(), CommandError> {
        loop {
            match running.recv()? {
                EventPoll::Event(SandboxEvent::Ready { .. }) => {}
                EventPoll::Event(SandboxEvent::Exited { status: WaitStatus::Code(0), limit: None, .. }) => {
                    return Ok(());
                }
                EventPoll::Event(SandboxEvent::Exited { limit: Some(limit), .. }) => {
                    return Err(CommandError::Failed(format!("it reached its limit of {}", limit.as_str())));
                }
                EventPoll::Event(SandboxEvent::Exited { status, .. }) => {
                    return Err(CommandError::Failed(format!("{status:?}{}", self.last_words(running))));
                }
                EventPoll::Event(SandboxEvent::Refused { message, hint, .. }) => {
                    return Err(CommandError::Failed(format!("{message}; {hint}")));
                }
                EventPoll::Event(SandboxEvent::NotStarted { message, .. }) => {
                    return Err(CommandError::Failed(message));
                }
                EventPoll::Closed => return Err(CommandError::Failed("its sandbox ended early".to_owned())),
                EventPoll::WouldBlock => wait_for_report(running, deadline)?,
            }
        }
    }

    /// Returns a text of the program without the key.
    fn redact(&self, text: &str) -> String {
        self.key.as_ref().map_or_else(|| text.to_owned(), |key| key.redact(text))
    }

    /// Returns the start of standard error for a message, without the key.
    fn last_words(&self, running: &RunningSandbox) -> String {
        let mut bytes = vec![0; MAX_STDERR_BYTES];
        let stderr = rustix::io::ioctl_fionbio(&running.stderr, true).and_then(|()| {
            let length = rustix::io::read(&running.stderr, &mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes[..length]).trim().to_owned())
        });
        let text = self.redact(&stderr.unwrap_or_default());
        if text.is_empty() { text } else { format!(": {}", escape_output(text.as_bytes()).replace('\n', " ")) }
    }
}

impl Provider for Arc<CommandProvider> {
    fn complete<'a>(
        &'a self,
        prompt: &'a Prompt,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Completion, ProviderError>> {
        Box::pin(async move {
            let document = CommandInput {
                version: 1,
                system: &prompt.system,
                prompt: &prompt.user,
                model: self.model.as_deref(),
                max_tokens: self.max_tokens,
            };
            let input = serde_json::to_vec(&document).map_err(|error| CommandError::Io(error.into()))?;
            let (own, until) = (Arc::clone(self), deadline.into_std());
            let run = tokio::task::spawn_blocking(move || own.run(&input, until)).await;
            let output = run.map_err(CommandError::from)??;
            if let Some(error) = output.error {
                let error = escape_output(self.redact(&error).as_bytes()).replace('\n', " ");
                return Err(CommandError::Reported(error).into());
            }
            if output.text.trim().is_empty() && !output.truncated {
                return Err(ProviderError::Empty);
            }
            Ok(Completion {
                text: self.redact(&output.text),
                input_tokens: output.input_tokens,
                output_tokens: output.output_tokens,
                is_truncated: output.truncated,
            })
        })
    }
}

/// Writes the input, and reads the output to its end.
///
/// # Errors
/// The output is too long, or does not end in time.
fn exchange(socket: &UnixStream, input: &[u8], deadline: StdInstant) -> Result<Vec<u8>, CommandError> {
    let mut socket = socket;
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
            Ok(length) if (output.len() + length) as u64 > MAX_BODY_BYTES => return Err(CommandError::TooLong),
            Ok(length) => output.extend_from_slice(&buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(CommandError::TimedOut),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(output),
            Err(error) => return Err(error.into()),
        }
    }
}

fn time_left(deadline: StdInstant) -> Result<Duration, CommandError> {
    let left = deadline.saturating_duration_since(StdInstant::now());
    if left.is_zero() { Err(CommandError::TimedOut) } else { Ok(left) }
}

fn wait_for_report(running: &RunningSandbox, deadline: StdInstant) -> Result<(), CommandError> {
    let left = Timespec::try_from(time_left(deadline)?).map_err(io::Error::other)?;
    let mut fds = [PollFd::new(running, PollFlags::IN)];
    match poll(&mut fds, Some(&left)) {
        Ok(0) => Err(CommandError::TimedOut),
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(io::Error::from(error).into()),
    }
}

fn policy(
    command: &ProviderCommand,
    key: Option<&Secret>,
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
    env.extend(key.map(|key| (KEY_VARIABLE.to_owned(), key.expose().to_owned())));
    let shell = ["/bin/sh", "-c", START_SCRIPT, "sh"].map(str::to_owned);
    Ok(Policy {
        repo: facts.path.clone(),
        checkout: None,
        git: GitDirs::default(),
        workdir: RelPath::new(".")?,
        argv: Argv::new(shell.into_iter().chain(command.argv.iter().cloned()).collect())?,
        env,
        network: command.network,
        leaks: Leaks::Ignore,
        limits: Limits {
            memory: Limit::Max(MEMORY_BYTES),
            pids: Limit::Max(128),
            disk: Limit::Max(DISK_BYTES),
            output: Limit::Max(MAX_BODY_BYTES),
            open_files: Limit::Max(1024),
            ..Limits::UNLIMITED
        },
        home,
        hide: Vec::new(),
        tools,
        caches: Vec::new(),
        tolerated: tolerated.clone(),
    })
}

/// Returns the mount that shows a path. A symbolic link cannot be a mount point.
fn mount(path: &str) -> Result<ToolMount, CommandError> {
    let source = Path::new(path).canonicalize();
    let source = source.map_err(|source| CommandError::Path { path: PathBuf::from(path), source })?;
    Ok(ToolMount { at: source.clone(), source, kind: ToolKind::ReadOnly, rights: AccessRights::Ours })
}
