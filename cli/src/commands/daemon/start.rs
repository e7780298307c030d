//! Starts `proctord` detached from the terminal, and waits until it responds.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use proctor_client::daemon_address::{DaemonAddress, DaemonTrust};
use proctor_client::installation::{MAIN_PROGRAM, find_program};
use proctor_core::api::{Health, HealthStatus};
use proctor_core::code::{Coded as _, CommandCode};
use proctor_core::decision::verdict::EXIT_INCONCLUSIVE;
use proctor_daemon::client::Client;
use proctor_daemon::log;
use tokio::time::{Instant, sleep};

use crate::args::StartArgs;
use crate::caller::Caller;
use crate::daemon;
use crate::error::CliError;
use crate::installation::{self, show};
use crate::process_group::ProcessGroup;
use crate::screen::Screen;
use crate::text::escape_text;

/// Time limit for the start, which includes recovering the state of the previous daemon.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval between requests while the daemon starts.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Bytes of the log that are shown if the daemon did not start.
const MAX_SHOWN_LOG_BYTES: u64 = 4 << 10;

/// Starts the daemon, unless one already responds at the socket.
///
/// # Errors
/// The daemon is not installed, cannot be started, or exits at once.
pub(super) async fn start(args: &StartArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let named = args.daemon.socket.as_deref();
    let socket = daemon::own_socket(named, &args.daemon.operator, &args.state, caller)?;
    let client = Client::new(DaemonAddress { socket: socket.clone(), trust: DaemonTrust::OwnOrRoot(caller.uid) });
    if let Ok(health) = client.health().await {
        return report_running_daemon(&health, &socket, screen);
    }
    let log = DaemonLogFile::open(&installation::state_dir(&args.state, caller)?)?;
    let mut child = spawn(args, &socket, &log, caller)?;
    let began = Instant::now();
    loop {
        if let Ok(health) = client.health().await {
            screen.out(&format!("started a daemon at {}, process {}\n", show(&socket), health.pid));
            screen.err(&format!("its log is {}\n", show(&log.path)));
            return Ok(0);
        }
        match child.try_wait() {
            Ok(None) if began.elapsed() < START_TIMEOUT => sleep(POLL_INTERVAL).await,
            Ok(None) => return Err(start_timeout_error(child.id(), &log)),
            Ok(Some(status)) => return Err(start_failed_error(&format!("it exited immediately ({status})"), &log)),
            Err(error) => return Err(start_failed_error(&error.to_string(), &log)),
        }
    }
}

/// Reports that a daemon already responds at the socket. A daemon that is shutting down is an error, because it will
/// not be available for long.
fn report_running_daemon(health: &Health, socket: &Path, screen: &mut Screen) -> Result<u8, CliError> {
    let (at, pid) = (show(socket), health.pid);
    match health.status {
        HealthStatus::Ok => {
            screen.out(&format!("a daemon is already running at {at}, process {pid}\n"));
            Ok(0)
        }
        HealthStatus::Draining => Err(CliError::Engine {
            message: format!("the daemon at `{at}`, process {pid}, is shutting down, and no other daemon was started"),
            hint: Some("start one after it has stopped".to_owned()),
            exit_code: EXIT_INCONCLUSIVE,
            code: CommandCode::NotStarted.code(),
        }),
    }
}

/// Starts the process in its own process group, so that Ctrl-C in this terminal does not reach it, and in `/`, so
/// that it keeps no directory in use.
#[expect(clippy::disallowed_methods, reason = "starts Proctor's own daemon, as the caller requested")]
fn spawn(args: &StartArgs, socket: &Path, log: &DaemonLogFile, caller: &Caller) -> Result<ProcessGroup, CliError> {
    let mut command = Command::new(find_program(MAIN_PROGRAM, &caller.bin_dir)?);
    command.arg("--socket").arg(socket);
    if let Some(state) = &args.state.state_dir {
        command.arg("--state-dir").arg(caller.cwd.join(state));
    }
    if let Some(config) = &args.daemon.operator.config {
        command.arg("--config").arg(caller.cwd.join(config));
    }
    command.current_dir("/");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log.file.try_clone().map_err(|error| start_failed_error(&error.to_string(), log))?);
    ProcessGroup::spawn(&mut command).map_err(|error| start_failed_error(&error.to_string(), log))
}

/// The daemon's log file.
struct DaemonLogFile {
    path: PathBuf,
    file: File,
    /// Offset at which the log of this daemon starts.
    start_offset: u64,
}

impl DaemonLogFile {
    fn open(state: &Path) -> Result<Self, CliError> {
        let path = state.join(log::LOG_FILE_NAME);
        let opened = Self::open_at(state, &path);
        opened.map_err(|error| CliError::Environment {
            message: format!("the daemon's log `{}` cannot be written: {error}", show(&path)),
            hint: "fix this, or choose another state directory with `--state-dir`".to_owned(),
        })
    }

    fn open_at(state: &Path, path: &Path) -> io::Result<Self> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(state)?;
        if path.symlink_metadata().is_ok_and(|found| found.len() > log::MAX_LOG_FILE_BYTES) {
            std::fs::rename(path, state.join(log::ROTATED_LOG_FILE_NAME))?;
        }
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
        let file =
            OpenOptions::new().read(true).append(true).create(true).mode(0o600).custom_flags(flags).open(path)?;
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        Ok(Self { path: path.to_owned(), start_offset: found.len(), file })
    }

    /// Reads the end of this daemon's log.
    fn tail(&self) -> io::Result<String> {
        let mut file = self.file.try_clone()?;
        let end = file.seek(SeekFrom::End(0))?;
        file.seek(SeekFrom::Start(self.start_offset.max(end.saturating_sub(MAX_SHOWN_LOG_BYTES))))?;
        let mut bytes = Vec::new();
        file.take(MAX_SHOWN_LOG_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Returns the error for a daemon that is not ready in time. It is left running, because it may be recovering the
/// state of the previous daemon.
fn start_timeout_error(pid: u32, log: &DaemonLogFile) -> CliError {
    CliError::Engine {
        message: format!(
            "the daemon did not answer within {} s; process {pid} is still starting",
            START_TIMEOUT.as_secs()
        ),
        hint: Some(format!("check again with `proctor daemon status`; the daemon's log is `{}`", show(&log.path))),
        exit_code: EXIT_INCONCLUSIVE,
        code: CommandCode::NotStarted.code(),
    }
}

fn start_failed_error(what: &str, log: &DaemonLogFile) -> CliError {
    let log_end = log.tail().unwrap_or_default();
    let log_note = if log_end.is_empty() {
        String::new()
    } else {
        format!("; the end of its log:\n{}", escape_text(log_end.trim_end()))
    };
    CliError::Engine {
        message: format!("no daemon could be started: {what}{log_note}"),
        hint: Some(format!("fix the problem and try again; the daemon's log is `{}`", show(&log.path))),
        exit_code: EXIT_INCONCLUSIVE,
        code: CommandCode::NotStarted.code(),
    }
}
